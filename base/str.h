/* str.h - strings are pointer + length; NUL-terminated only at the operating system's
 * door. A kvm_str borrows. Text that a call makes lives in the arena that the call was
 * given and carries a NUL after its last byte, so `.at` may be handed to libc. */
#ifndef KVM_BASE_STR_H
#define KVM_BASE_STR_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"

typedef struct kvm_str {
    const char *at;
    ptrdiff_t len;
} kvm_str;

#define KVM_STR(lit) ((kvm_str){"" lit, (ptrdiff_t)sizeof(lit) - 1})
#define KVM_STR_ARG(s) (int)(s).len, (s).at /* for "%.*s" */

kvm_str
kvm_str_of(const char *nul_terminated); /* borrows; NULL gives the empty string */
bool kvm_str_eq(kvm_str a, kvm_str b);
int kvm_str_cmp(kvm_str a, kvm_str b); /* bytes, then length */
bool kvm_str_starts(kvm_str s, kvm_str prefix);
bool kvm_str_ends(kvm_str s, kvm_str suffix);
ptrdiff_t kvm_str_find(kvm_str s, kvm_str needle);              /* -1 when absent */
kvm_str kvm_str_slice(kvm_str s, ptrdiff_t from, ptrdiff_t to); /* clamped */
kvm_str kvm_str_trim(kvm_str s);                                /* ASCII white space */
/* kvm_str_cut - s = head + sep + tail; false (head = s, tail empty) when sep is absent
 */
bool kvm_str_cut(kvm_str s, char sep, kvm_str *head, kvm_str *tail);
bool kvm_str_to_i64(kvm_str s, int64_t *out); /* whole string, decimal */
/* kvm_str_is_number - [+-] digits with an optional fraction and exponent; no spaces */
bool kvm_str_is_number(kvm_str s);
bool kvm_str_to_f64(kvm_str s, double *out); /* a whole number text, finite */
/* kvm_str_nearest - index of the candidate with the least edit distance, or -1 when
 * none is closer than half its length: for "did you mean". */
ptrdiff_t kvm_str_nearest(kvm_str s, const kvm_str *candidates, ptrdiff_t n);

/* kvm_quote - text out of a file or from a command line as a message quotes it: so much
 * that it can be found, in whole characters, with "..." where there was more, so that a
 * long one does not push the remedy out. To be used at once:
 *   kvm_fail(err, KVM_FORMAT, "no token \"%s\"", kvm_quote(text).at) */
enum { KVM_QUOTE_BYTES = 80 };
typedef struct kvm_quoted {
    char at[KVM_QUOTE_BYTES + 4];
} kvm_quoted;
kvm_quoted kvm_quote(kvm_str s);

/* all of these: at == NULL when the arena is spent */
kvm_str kvm_str_copy(kvm_arena *a, kvm_str s);
kvm_str kvm_str_fmt(kvm_arena *a, const char *fmt, ...) KVM_PRINTF(2, 3);
kvm_str kvm_path_join(kvm_arena *a, kvm_str dir, kvm_str name);

/* kvm_text - a growing text on the heap (HTML, JSON, CSV). Zero value is empty and
 * valid. After a failed allocation it keeps what it had and `failed` is set: check once
 * at the end. */
typedef struct kvm_text {
    char *at;
    ptrdiff_t len, cap;
    bool failed;
} kvm_text;
void kvm_text_add(kvm_text *t, kvm_str s);
void kvm_text_addf(kvm_text *t, const char *fmt, ...) KVM_PRINTF(2, 3);
void kvm_text_free(kvm_text *t);
static inline kvm_str kvm_text_str(const kvm_text *t)
{
    return (kvm_str){t->at ? t->at : "", t->len};
}

#endif
