/* Added tokens: found in text before anything else happens to it. */
#include <stdlib.h>
#include <string.h>

#include "models/tokenizer_internal.h"

static int by_wanted(const void *a, const void *b)
{
    const kvm_added *const *x = a, *const *y = b;
    return kvm_str_cmp((*x)->wanted, (*y)->wanted);
}

static kvm_status index_some(kvm_added_index *x, const kvm_tokenizer *t,
                             bool normalized, kvm_arena *keep, kvm_err *err)
{
    x->by_wanted = kvm_new(keep, const kvm_added *, t->n_added);
    if (!x->by_wanted) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i < t->n_added; i++)
        if (t->added[i].normalized == normalized) x->by_wanted[x->n++] = &t->added[i];
    if (x->n > 0) qsort(x->by_wanted, (size_t)x->n, sizeof *x->by_wanted, by_wanted);
    for (ptrdiff_t i = 1; i < x->n; i++)
        if (kvm_str_eq(x->by_wanted[i - 1]->wanted, x->by_wanted[i]->wanted))
            return kvm_fail(
                err, KVM_FORMAT, "%.*s: the added tokens %d and %d are both \"%s\"",
                KVM_STR_ARG(t->file), (int)x->by_wanted[i - 1]->id,
                (int)x->by_wanted[i]->id, kvm_quote(x->by_wanted[i]->wanted).at);
    for (ptrdiff_t i = 0, c = 0; c <= 256; c++) {
        while (i < x->n && (unsigned char)x->by_wanted[i]->wanted.at[0] < c) i++;
        x->first[c] = (int32_t)i;
    }
    return KVM_OK;
}

/* Rust's \w: Oniguruma's, without its Latin-1 digits and with the joiners. */
static kvm_status word_set(kvm_tokenizer *t, kvm_arena *keep, kvm_err *err)
{
    kvm_range *r = kvm_new(keep, kvm_range, KVM_SET_MAX);
    if (!r) return kvm_nomem(err, keep);
    const ptrdiff_t n = kvm_unicode_set(KVM_STR("w"), r);
    for (ptrdiff_t i = 0; i < n; i++) {
        const bool latin1 = r[i].first >= 0xB2 && r[i].last <= 0xBE &&
                            r[i].first != 0xB5 && r[i].first != 0xBA;
        if (!latin1) r[t->n_word++] = r[i];
    }
    t->word = r;
    return KVM_OK;
}

bool kvm_tokenizer__is_word(const kvm_tokenizer *t, uint32_t c)
{
    ptrdiff_t low = 0, high = t->n_word;
    while (low < high) {
        const ptrdiff_t mid = low + (high - low) / 2;
        if (t->word[mid].last < c)
            low = mid + 1;
        else
            high = mid;
    }
    return (low < t->n_word && t->word[low].first <= c) || c == 0x200C || c == 0x200D;
}

kvm_status kvm_tokenizer__index_added(kvm_tokenizer *t, kvm_arena *keep, kvm_err *err)
{
    kvm_nfc nfc = {0};
    kvm_status s = KVM_OK;
    bool single_word = false;
    for (ptrdiff_t i = 0; !s && i < t->n_added; i++) {
        kvm_added *a = &t->added[i];
        a->wanted = a->content;
        single_word |= a->single_word;
        if (!t->nfc || !a->normalized) continue;
        s = kvm_nfc_apply(&nfc, t->pre.classes, a->content, &a->wanted, err);
        if (!s && a->wanted.at != a->content.at) {
            a->wanted = kvm_str_copy(keep, a->wanted);
            if (!a->wanted.at) s = kvm_nomem(err, keep);
        }
    }
    kvm_nfc_free(&nfc);
    TRY(s);
    if (single_word) TRY(word_set(t, keep, err));
    TRY(index_some(&t->raw, t, false, keep, err));
    return index_some(&t->normalized, t, true, keep, err);
}

/* First row in [low, high) whose byte at `depth` is at least c; all are longer. */
static ptrdiff_t lower(const kvm_added_index *x, ptrdiff_t low, ptrdiff_t high,
                       ptrdiff_t depth, int c)
{
    while (low < high) {
        const ptrdiff_t mid = low + (high - low) / 2;
        if ((unsigned char)x->by_wanted[mid]->wanted.at[depth] < c)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* The longest token that begins the text; NULL: none. Rows that share a prefix stand
 * together, the shortest first, so each further byte narrows the range. */
static const kvm_added *longest(const kvm_added_index *x, kvm_str text)
{
    const unsigned char *p = (const unsigned char *)text.at;
    ptrdiff_t low = x->first[p[0]], high = x->first[p[0] + 1];
    const kvm_added *best = NULL;
    for (ptrdiff_t depth = 1; low < high; depth++) {
        if (x->by_wanted[low]->wanted.len == depth) best = x->by_wanted[low++];
        if (depth == text.len) break;
        low = lower(x, low, high, depth, p[depth]);
        high = lower(x, low, high, depth, p[depth] + 1);
    }
    return best;
}

kvm_added_hit kvm_added_find(const kvm_added_index *x, kvm_str text, ptrdiff_t from)
{
    if (x->n == 0) return (kvm_added_hit){0};
    for (ptrdiff_t i = from; i < text.len; i++) {
        const unsigned char c = (unsigned char)text.at[i];
        if (x->first[c] == x->first[c + 1]) continue;
        const kvm_added *a = longest(x, kvm_str_slice(text, i, text.len));
        if (a) return (kvm_added_hit){a, i, i + a->wanted.len};
    }
    return (kvm_added_hit){0};
}
