#include "jobs/selection.h"

#include <math.h>
#include <string.h>

/* ---- what is asked ---- */

/* the text that is accepted behind what is fed */
static kvm_str answer_of(const kvm_suite *s, const kvm_item *item)
{
    return s->kind == KVM_SUITE_MULTIPLE_CHOICE ? item->choices[item->answer]
           : item->choice_count > 0             ? item->choices[0]
                                                : KVM_STR("");
}

/* the answer's tokens; those that are scored anyway as they were tokenised */
static kvm_status answer_ids(const int32_t **out, ptrdiff_t *n, kvm_arena *keep,
                             kvm_encoder *e, const kvm_suite *s, const kvm_item *item,
                             const kvm_item_ids *ids, kvm_err *err)
{
    if (ids->after_count > 0) {
        const ptrdiff_t right = s->kind == KVM_SUITE_MULTIPLE_CHOICE ? item->answer : 0;
        *out = ids->after[right];
        *n = ids->after_n[right];
        return KVM_OK;
    }
    int32_t *own;
    TRY(kvm_encode(e, answer_of(s, item), NULL, keep, &own, n, err));
    *out = own;
    return KVM_OK;
}

/* the bytes of ids (n) one behind the other, and where each of them begins: (n + 1) */
static kvm_status bytes_of(kvm_str *text, ptrdiff_t **begin, kvm_arena *keep,
                           const kvm_tokenizer *t, const int32_t *ids, ptrdiff_t n,
                           kvm_err *err)
{
    ptrdiff_t *at = kvm_new(keep, ptrdiff_t, n + 1), all = 0;
    if (!at) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i < n; i++) {
        at[i] = all;
        all += kvm_tokenizer_piece(t, ids[i]).len;
    }
    at[n] = all;
    char *bytes = kvm_new(keep, char, all + 1);
    if (!bytes) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i < n; i++)
        if (at[i + 1] > at[i])
            memcpy(bytes + at[i], kvm_tokenizer_piece(t, ids[i]).at,
                   (size_t)(at[i + 1] - at[i]));
    *text = (kvm_str){bytes, all};
    *begin = at;
    return KVM_OK;
}

/* where `part` stands, nearest to so many bytes; -1: nowhere */
static ptrdiff_t nearest(kvm_str text, kvm_str part, ptrdiff_t to)
{
    ptrdiff_t best = -1, from = 0;
    while (part.len > 0) {
        const ptrdiff_t next = kvm_str_find(kvm_str_slice(text, from, text.len), part);
        if (next < 0) break;
        const ptrdiff_t at = from + next, off = at > to ? at - to : to - at;
        if (best < 0 || off < (best > to ? best - to : to - best)) best = at;
        from = at + 1;
    }
    return best;
}

static kvm_status find_needle(kvm_asking *a, kvm_arena *keep, const kvm_tokenizer *t,
                              const kvm_suite *s, const kvm_item *item,
                              const kvm_item_ids *ids, kvm_err *err)
{
    kvm_str text;
    ptrdiff_t *begin;
    const kvm_str part = answer_of(s, item);
    a->needle = a->end = -1;
    if (s->kind != KVM_SUITE_NEEDLE) return KVM_OK;
    TRY(bytes_of(&text, &begin, keep, t, ids->prefix, ids->prefix_n, err));
    const ptrdiff_t at =
        nearest(text, part, (ptrdiff_t)(item->depth * (double)text.len));
    if (at < 0) return KVM_OK;
    a->needle = 0;
    while (begin[a->needle + 1] <= at) a->needle++;
    a->end = a->needle + 1;
    while (begin[a->end] < at + part.len) a->end++;
    return KVM_OK;
}

kvm_status kvm_asking_of(kvm_asking *a, kvm_arena *keep, kvm_encoder *e,
                         const kvm_tokenizer *t, const kvm_suite *s,
                         const kvm_item *item, const kvm_item_ids *ids, kvm_err *err)
{
    const int32_t *answer;
    ptrdiff_t n;
    TRY(answer_ids(&answer, &n, keep, e, s, item, ids, err));
    const ptrdiff_t room = ids->longest - ids->feed_n + 1; /* as caches have it */
    const ptrdiff_t queries = n < 1 ? 1 : n < room ? n : room;
    int32_t *all = kvm_new(keep, int32_t, ids->feed_n + queries - 1);
    if (!all) return kvm_nomem(err, keep);
    memcpy(all, ids->feed, (size_t)ids->feed_n * sizeof *all);
    memcpy(all + ids->feed_n, answer, (size_t)(queries - 1) * sizeof *all);
    *a = (kvm_asking){.ids = all, .n = ids->feed_n + queries - 1, .queries = queries};
    return find_needle(a, keep, t, s, item, ids, err);
}

/* ---- what is chosen ---- */

typedef struct taking {
    kvm_selection *s;
    ptrdiff_t first, queries; /* position of the first query */
    ptrdiff_t *indexer;       /* (layers) which of those that choose; -1: none */
} taking;

static kvm_status take(void *ctx, ptrdiff_t layer, ptrdiff_t first, ptrdiff_t n,
                       const kvm_mask *mask, kvm_err *err)
{
    (void)err;
    const taking *t = ctx;
    const kvm_selection *s = t->s;
    for (ptrdiff_t i = 0; i < n; i++) {
        const ptrdiff_t query = first + i - t->first;
        if (query < 0) continue;
        uint64_t *to = s->bits + (t->indexer[layer] * t->queries + query) * s->words;
        const uint64_t *from = mask ? mask->bits + i * mask->words : NULL;
        for (ptrdiff_t u = 0; u < s->units; u++) {
            const ptrdiff_t token = u * s->block;
            if (!from || from[token / 64] >> token % 64 & 1)
                to[u / 64] |= (uint64_t)1 << u % 64;
        }
    }
    return KVM_OK;
}

/* which layers choose, and in units of how many tokens */
static kvm_status find_indexers(taking *t, ptrdiff_t *n, kvm_arena *keep,
                                const kvm_model *m, kvm_err *err)
{
    const ptrdiff_t layers = kvm_model_info_of(m)->layers;
    t->indexer = kvm_new(keep, ptrdiff_t, layers);
    if (!t->indexer) return kvm_nomem(err, keep);
    *n = 0;
    for (ptrdiff_t l = 0; l < layers; l++) {
        const ptrdiff_t object = kvm_model_find_object(m, KVM_OBJECT_INDEX_KEY, l);
        t->indexer[l] = object < 0 ? -1 : (*n)++;
        if (object >= 0 && kvm_model_object(m, object)->block > 0)
            t->s->block = kvm_model_object(m, object)->block;
    }
    return KVM_OK;
}

kvm_status kvm_selection_take(kvm_selection *s, kvm_arena *keep, kvm_model *m,
                              kvm_cache *cache, const kvm_asking *a, kvm_err *err)
{
    const ptrdiff_t prefix = kvm_cache_length(cache);
    taking t = {.s = s, .first = prefix + a->n - a->queries, .queries = a->queries};
    ptrdiff_t indexers;
    *s = (kvm_selection){.block = 1};
    TRY(find_indexers(&t, &indexers, keep, m, err));
    s->pairs = indexers * a->queries;
    s->units = prefix / s->block;
    s->words = (s->units + 63) / 64;
    if (s->pairs == 0) return KVM_OK;
    s->bits = kvm_new(keep, uint64_t, s->pairs * s->words);
    if (!s->bits) return kvm_nomem(err, keep);
    const kvm_capture capture = {.choice = take, .ctx = &t};
    return kvm_model_forward(m, cache, a->ids, a->n,
                             &(kvm_forward_options){.capture = &capture}, err);
}

/* ---- figures ---- */

static ptrdiff_t common(const kvm_selection *a, const kvm_selection *b, ptrdiff_t pair)
{
    ptrdiff_t n = 0;
    for (ptrdiff_t w = pair * a->words; w < (pair + 1) * a->words; w++)
        for (uint64_t x = a->bits[w] & b->bits[w]; x; x &= x - 1) n++;
    return n;
}

/* units that are chosen natively; 0: all are, or none, and the pair does not count */
static ptrdiff_t native_units(const kvm_selection *native, ptrdiff_t pair)
{
    const ptrdiff_t n = common(native, native, pair);
    return n < native->units ? n : 0;
}

double kvm_selection_overlap(const kvm_selection *native, const kvm_selection *s)
{
    double sum = 0;
    ptrdiff_t pairs = 0;
    for (ptrdiff_t i = 0; i < native->pairs; i++) {
        const ptrdiff_t n = native_units(native, i);
        if (n == 0) continue;
        sum += (double)common(native, s, i) / (double)n;
        pairs++;
    }
    return pairs > 0 ? sum / (double)pairs : (double)NAN;
}

double kvm_selection_needle(const kvm_selection *native, const kvm_selection *s,
                            const kvm_asking *a)
{
    ptrdiff_t pairs = 0, found = 0;
    if (a->needle < 0) return (double)NAN;
    const ptrdiff_t first = a->needle / s->block, last = (a->end - 1) / s->block;
    for (ptrdiff_t i = 0; i < native->pairs && first < s->units; i++) {
        if (native_units(native, i) == 0) continue;
        bool holds = false;
        for (ptrdiff_t u = first; u <= last && u < s->units; u++)
            holds |= s->bits[i * s->words + u / 64] >> u % 64 & 1;
        found += holds;
        pairs++;
    }
    return pairs > 0 ? (double)found / (double)pairs : (double)NAN;
}
