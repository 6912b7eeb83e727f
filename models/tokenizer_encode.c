/* Text to ids. Order of the reference: added tokens of the raw text, NFC of what lies
 * between them, added tokens of the normalized text, pieces, merging. */
#include <stdlib.h>
#include <string.h>

#include "models/tokenizer_internal.h"

struct kvm_encoder {
    const kvm_tokenizer *t;
    kvm_splitter *splitter;
    kvm_bpe_work *work;
    kvm_nfc nfc;
    int32_t *ids; /* (cap) of the text being encoded */
    ptrdiff_t n, cap;
    bool plain_specials;
};

static void release(void *arg)
{
    kvm_encoder *e = arg;
    kvm_nfc_free(&e->nfc);
    free(e->ids);
}

kvm_status kvm_encoder_new(kvm_encoder **out, kvm_arena *keep, const kvm_tokenizer *t,
                           kvm_err *err)
{
    kvm_encoder *e = kvm_new(keep, kvm_encoder, 1);
    if (!e) return kvm_nomem(err, keep);
    e->t = t;
    TRY(kvm_arena_defer(keep, release, e, err));
    TRY(kvm_splitter_new(&e->splitter, keep, &t->pre, err));
    TRY(kvm_bpe_work_new(&e->work, keep, err));
    *out = e;
    return KVM_OK;
}

static kvm_status reserve(kvm_encoder *e, ptrdiff_t more, kvm_err *err)
{
    if (e->cap - e->n >= more) return KVM_OK;
    const size_t cap = 2 * (size_t)(e->n + more) + 64;
    int32_t *ids = realloc(e->ids, cap * sizeof *ids);
    if (!ids) return kvm_fail(err, KVM_NOMEM, "no memory for %zu token ids", cap);
    e->ids = ids;
    e->cap = (ptrdiff_t)cap;
    return KVM_OK;
}

static kvm_status add_ids(kvm_encoder *e, const int32_t *ids, ptrdiff_t n, kvm_err *err)
{
    TRY(reserve(e, n, err));
    if (n > 0) memcpy(e->ids + e->n, ids, sizeof *ids * (size_t)n);
    e->n += n;
    return KVM_OK;
}

static kvm_status piece(void *ctx, const unsigned char *p, ptrdiff_t n, kvm_err *err)
{
    kvm_encoder *e = ctx;
    ptrdiff_t made;
    TRY(reserve(e, n, err));
    TRY(kvm_bpe_encode(&e->t->bpe, e->work, p, n, e->ids + e->n, &made, err));
    e->n += made;
    return KVM_OK;
}

/* --- what stands around an added token --- */

static bool word_before(const kvm_tokenizer *t, kvm_str s, ptrdiff_t i)
{
    if (i == 0) return false;
    do i--;
    while (((unsigned char)s.at[i] & 0xC0) == 0x80);
    const unsigned char *p = (const unsigned char *)s.at + i;
    return kvm_tokenizer__is_word(t, kvm_utf8_next(&p));
}

static bool word_after(const kvm_tokenizer *t, kvm_str s, ptrdiff_t i)
{
    const unsigned char *p = (const unsigned char *)s.at + i;
    return i < s.len && kvm_tokenizer__is_word(t, kvm_utf8_next(&p));
}

static ptrdiff_t back_over_spaces(const unsigned char *classes, kvm_str s, ptrdiff_t i)
{
    for (ptrdiff_t begin = i; begin > 0; i = begin) {
        do begin--;
        while (((unsigned char)s.at[begin] & 0xC0) == 0x80);
        const unsigned char *p = (const unsigned char *)s.at + begin;
        if (!(classes[kvm_utf8_next(&p)] & KVM_CH_SPACE)) return i;
    }
    return i;
}

static ptrdiff_t over_spaces(const unsigned char *classes, kvm_str s, ptrdiff_t i)
{
    const unsigned char *p = (const unsigned char *)s.at + i;
    const unsigned char *end = (const unsigned char *)s.at + s.len;
    for (const unsigned char *next = p; p < end; p = next)
        if (!(classes[kvm_utf8_next(&next)] & KVM_CH_SPACE)) break;
    return p - (const unsigned char *)s.at;
}

/* --- the two passes --- */

typedef kvm_status encode_part(kvm_encoder *e, kvm_str text, kvm_err *err);

/* Added tokens of one index as ids, the text between them to `between`. A token that is
 * passed over (plain, or inside a word) still ends the search there, and white space
 * taken by rstrip may hide the start of the next token: both as in the reference. */
static kvm_status around_added(kvm_encoder *e, const kvm_added_index *x, kvm_str s,
                               encode_part *between, kvm_err *err)
{
    const unsigned char *classes = e->t->pre.classes;
    ptrdiff_t done = 0, from = 0;
    for (;;) {
        const kvm_added_hit hit = kvm_added_find(x, s, from);
        if (!hit.token) break;
        from = hit.end;
        if (e->plain_specials && (hit.token->special || e->t->bpe.by_rank)) continue;
        if (hit.token->single_word &&
            (word_before(e->t, s, hit.begin) || word_after(e->t, s, hit.end)))
            continue;
        ptrdiff_t begin = hit.begin, end = hit.end;
        if (hit.token->lstrip) begin = back_over_spaces(classes, s, begin);
        if (hit.token->rstrip) end = over_spaces(classes, s, end);
        if (done < begin) TRY(between(e, kvm_str_slice(s, done, begin), err));
        TRY(add_ids(e, &hit.token->id, 1, err));
        done = end;
    }
    return done < s.len ? between(e, kvm_str_slice(s, done, s.len), err) : KVM_OK;
}

static kvm_status pieces(kvm_encoder *e, kvm_str text, kvm_err *err)
{
    return kvm_split(e->splitter, text, piece, e, err);
}

static kvm_status normalized(kvm_encoder *e, kvm_str text, kvm_err *err)
{
    if (e->t->nfc) TRY(kvm_nfc_apply(&e->nfc, e->t->pre.classes, text, &text, err));
    return around_added(e, &e->t->normalized, text, pieces, err);
}

/* --- slices --- */

static kvm_status slice(kvm_encoder *e, const unsigned char *p,
                        const unsigned char *end, kvm_err *err)
{
    const kvm_str text = {(const char *)p, end - p};
    return around_added(e, &e->t->raw, text, normalized, err);
}

/* The code that ships with tiktoken.model hands the text over in parts, each a text of
 * its own: at most 400,000 characters, and with no run of white space, or of anything
 * else, longer than 25,000. Cuts fall inside words and special tokens alike. */
enum { SLICE_CHARS = 400000, RUN_CHARS = 25000 };

static kvm_status in_slices(kvm_encoder *e, kvm_str text, kvm_err *err)
{
    const unsigned char *p = (const unsigned char *)text.at, *end = p + text.len;
    const unsigned char *begin = p;
    ptrdiff_t chars = 0, run = 0;
    bool space = false; /* what the run is of */
    for (const unsigned char *next = p; p < end; p = next, chars++) {
        const bool is = kvm_unicode_is_py_space(kvm_utf8_next(&next));
        const bool full = chars == SLICE_CHARS;
        if (full) chars = 0;
        run = run > 0 && is == space ? run + 1 : 1;
        space = is;
        if (!full && run <= RUN_CHARS) continue;
        TRY(slice(e, begin, p, err));
        begin = p;
        run = 1;
    }
    return begin < end ? slice(e, begin, end, err) : KVM_OK;
}

static kvm_status all(kvm_encoder *e, kvm_str text, bool add, kvm_err *err)
{
    const kvm_tokenizer *t = e->t;
    e->n = 0;
    TRY(reserve(e, text.len / 4, err));
    if (add) TRY(add_ids(e, t->prefix, t->n_prefix, err));
    if (t->sliced && text.len > RUN_CHARS)
        TRY(in_slices(e, text, err));
    else
        TRY(around_added(e, &t->raw, text, normalized, err));
    return add ? add_ids(e, t->suffix, t->n_suffix, err) : KVM_OK;
}

kvm_status kvm_encode(kvm_encoder *e, kvm_str text, const kvm_encode_options *o,
                      kvm_arena *keep, int32_t **ids, ptrdiff_t *n, kvm_err *err)
{
    static const kvm_encode_options none;
    if (!o) o = &none;
    e->plain_specials = o->plain_specials;
    char *repaired = NULL;
    if (kvm_utf8_valid(text) != text.len) {
        repaired = malloc(3 * (size_t)text.len);
        if (!repaired)
            return kvm_fail(err, KVM_NOMEM, "no memory to repair %td bytes of text",
                            text.len);
        text = (kvm_str){repaired, kvm_utf8_lossy(repaired, text)};
    }
    const kvm_status s = all(e, text, o->add_bos, err);
    free(repaired);
    TRY(s);
    int32_t *out = kvm_new_raw(keep, int32_t, e->n);
    if (!out) return kvm_nomem(err, keep);
    if (e->n > 0) memcpy(out, e->ids, sizeof *out * (size_t)e->n);
    *ids = out;
    *n = e->n;
    return KVM_OK;
}
