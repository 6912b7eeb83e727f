/* unicode.h - code points, UTF-8 and the classes that tokenizer patterns ask for.
 *
 * The classes are those of the `tokenizers` library (unicode.def says how they were
 * found), so that ids agree byte for byte whatever Unicode version the C libraries on
 * this machine know. Hot loops read one byte per code point from a flat table. */
#ifndef KVM_MODELS_UNICODE_H
#define KVM_MODELS_UNICODE_H

#include <stdint.h>

#include "base/str.h"

enum {
    KVM_CH_UPPER = 1,       /* Lu Lt */
    KVM_CH_LOWER = 2,       /* Ll */
    KVM_CH_OTHER = 4,       /* Lm Lo */
    KVM_CH_LETTER = 7,      /* L */
    KVM_CH_MARK = 8,        /* M */
    KVM_CH_NUMBER = 16,     /* N */
    KVM_CH_SPACE = 32,      /* \s: White_Space */
    KVM_CH_NFC_CHECK = 64,  /* NFC quick check is No or Maybe */
    KVM_CH_NFC_ORDER = 128, /* canonical combining class is not 0 */
    KVM_CODE_POINTS = 0x110000
};

/* kvm_unicode_classes - the flat table, (KVM_CODE_POINTS) of KVM_CH_ bits, in keep. */
KVM_MUST kvm_status kvm_unicode_classes(const unsigned char **table, kvm_arena *keep,
                                        kvm_err *err);

typedef struct kvm_range {
    uint32_t first, last;
} kvm_range;
enum { KVM_SET_MAX = 1024 }; /* ranges of the largest set, rounded up */

/* kvm_unicode_set - the code points of a property, ascending, apart: a general category
 * ("L", "Lu"), "Han", or "s", "d", "w" as the backslash classes of the reference's
 * regular expressions read them. Returns the number of ranges, -1 for an unknown
 * name. */
ptrdiff_t kvm_unicode_set(kvm_str name, kvm_range out[KVM_SET_MAX]);

/* script Han, which kimi's pattern sets apart */
bool kvm_unicode_is_han(uint32_t c);

/* Python's str.isspace(): White_Space and U+001C .. U+001F */
static inline bool kvm_unicode_is_py_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 ||
           c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
           c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

/* kvm_utf8_next - decode one code point of VALID UTF-8 at p and step over it. */
static inline uint32_t kvm_utf8_next(const unsigned char **p)
{
    const unsigned char *s = *p;
    if (s[0] < 0x80) {
        *p = s + 1;
        return s[0];
    }
    if (s[0] < 0xE0) {
        *p = s + 2;
        return (uint32_t)(s[0] & 0x1F) << 6 | (s[1] & 0x3F);
    }
    if (s[0] < 0xF0) {
        *p = s + 3;
        return (uint32_t)(s[0] & 0x0F) << 12 | (uint32_t)(s[1] & 0x3F) << 6 |
               (s[2] & 0x3F);
    }
    *p = s + 4;
    return (uint32_t)(s[0] & 0x07) << 18 | (uint32_t)(s[1] & 0x3F) << 12 |
           (uint32_t)(s[2] & 0x3F) << 6 | (s[3] & 0x3F);
}

/* kvm_utf8_put - encode c (a scalar value); returns the bytes written, at most 4. */
int kvm_utf8_put(char out[4], uint32_t c);

/* kvm_utf8_valid - bytes from the front that are valid UTF-8; s.len when all are. */
ptrdiff_t kvm_utf8_valid(kvm_str s);

/* kvm_utf8_require - KVM_FORMAT with line and byte of the first that is not UTF-8: text
 * that people chose, of another encoding or another file than was meant, must not be
 * read as replacement characters. */
KVM_MUST kvm_status kvm_utf8_require(kvm_str text, kvm_str file, kvm_err *err);

/* kvm_utf8_lossy - s with each maximal ill-formed part as U+FFFD (the WHATWG and
 * Unicode practice that Rust and Python follow). out holds 3 * s.len bytes; returns the
 * length. */
ptrdiff_t kvm_utf8_lossy(char *out, kvm_str s);

#endif
