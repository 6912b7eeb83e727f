/* NFC by utf8proc, only where the text may not be in it already.
 *
 * Most text passes on two bits per character: no character that NFC could change or
 * join to the one before (KVM_CH_NFC_CHECK), and marks (KVM_CH_NFC_ORDER) in order.
 * Elsewhere the span from the last plain character to the next is handed to utf8proc.
 * The bits are those of the reference's NFC, which is at Unicode 9: marks that came
 * later are plain characters to it, so a span never holds one. */
#include <stdlib.h>
#include <utf8proc.h>

#include "models/tokenizer_internal.h"

static const utf8proc_option_t NFC = UTF8PROC_STABLE | UTF8PROC_COMPOSE;

static int class_of(uint32_t c)
{
    return utf8proc_get_property((utf8proc_int32_t)c)->combining_class;
}

static kvm_status span(kvm_nfc *n, kvm_str s, kvm_err *err)
{
    const ptrdiff_t need = 4 * s.len + 16; /* no NFD is longer than 4 codes a byte */
    if (need > n->cap) {
        free(n->codes);
        n->cap = 0;
        n->codes = malloc(2 * (size_t)need * sizeof *n->codes);
        if (!n->codes) return kvm_fail(err, KVM_NOMEM, "no memory for NFC");
        n->cap = 2 * need;
    }
    ptrdiff_t m = utf8proc_decompose((const utf8proc_uint8_t *)s.at, s.len, n->codes,
                                     n->cap, NFC);
    if (m >= 0 && m <= n->cap) m = utf8proc_normalize_utf32(n->codes, m, NFC);
    if (m < 0 || m > n->cap)
        return kvm_fail(err, KVM_INTERNAL, "utf8proc: %s", utf8proc_errmsg(m));
    for (ptrdiff_t i = 0; i < m; i++) {
        char c[4];
        const int len = kvm_utf8_put(c, (uint32_t)n->codes[i]);
        kvm_text_add(&n->out, (kvm_str){c, len});
    }
    return KVM_OK;
}

/* The end of the flagged characters from p on. */
static const unsigned char *flagged(const unsigned char *classes,
                                    const unsigned char *p, const unsigned char *end)
{
    for (const unsigned char *next = p; p < end; p = next)
        if (!(classes[kvm_utf8_next(&next)] & (KVM_CH_NFC_CHECK | KVM_CH_NFC_ORDER)))
            break;
    return p;
}

static unsigned bits_of(const unsigned char *classes, uint32_t c)
{
    return classes[c] & (KVM_CH_NFC_CHECK | KVM_CH_NFC_ORDER);
}

/* Where the span that includes p begins, given the last plain character before it. A
 * plain character that utf8proc would move as a mark stays outside. */
static const unsigned char *span_begin(const unsigned char *classes,
                                       const unsigned char *plain,
                                       const unsigned char *p)
{
    const unsigned char *next = plain;
    if (plain == p) return p;
    const uint32_t c = kvm_utf8_next(&next);
    return !bits_of(classes, c) && class_of(c) != 0 ? next : plain;
}

kvm_status kvm_nfc_apply(kvm_nfc *n, const unsigned char *classes, kvm_str text,
                         kvm_str *out, kvm_err *err)
{
    const unsigned char *p = (const unsigned char *)text.at, *end = p + text.len;
    const unsigned char *copied = p, *plain = p, *next; /* plain: the last such one */
    int last = 0; /* combining class of the character before */
    n->out.len = 0;
    for (; p < end; p = next) {
        next = p;
        const uint32_t c = kvm_utf8_next(&next);
        const unsigned bits = bits_of(classes, c);
        const int order = bits & KVM_CH_NFC_ORDER ? class_of(c) : 0;
        if (!bits) plain = p;
        if (!(bits & KVM_CH_NFC_CHECK) && (order == 0 || last <= order)) {
            last = order;
            continue;
        }
        const unsigned char *begin = span_begin(classes, plain, p);
        next = flagged(classes, next, end);
        kvm_text_add(&n->out, (kvm_str){(const char *)copied, begin - copied});
        TRY(span(n, (kvm_str){(const char *)begin, next - begin}, err));
        copied = plain = next;
        last = 0;
    }
    *out = text;
    if (copied == (const unsigned char *)text.at) return KVM_OK;
    kvm_text_add(&n->out, (kvm_str){(const char *)copied, end - copied});
    if (n->out.failed) return kvm_fail(err, KVM_NOMEM, "no memory for NFC");
    *out = kvm_text_str(&n->out);
    return KVM_OK;
}

void kvm_nfc_free(kvm_nfc *n)
{
    kvm_text_free(&n->out);
    free(n->codes);
    *n = (kvm_nfc){0};
}
