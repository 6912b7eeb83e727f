#include "jobs/score_item.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "jobs/scoring.h"

static kvm_status tokenise(const int32_t **ids, ptrdiff_t *n, kvm_arena *keep,
                           kvm_encoder *e, kvm_str text, kvm_err *err)
{
    int32_t *out;
    TRY(kvm_encode(e, text, NULL, keep, &out, n, err));
    *ids = out;
    return KVM_OK;
}

/* the texts that may follow: the continuation, or the choices; generated answers have
 * none */
static void followers(const kvm_suite *s, const kvm_item *item, const kvm_str **texts,
                      ptrdiff_t *n)
{
    *texts = NULL;
    *n = 0;
    if (s->kind == KVM_SUITE_PERPLEXITY) {
        *texts = &item->continuation;
        *n = 1;
    } else if (s->kind == KVM_SUITE_MULTIPLE_CHOICE) {
        *texts = item->choices;
        *n = item->choice_count;
    }
}

/* lead and choice, tokenised apart as prefix and question are; *skip: ids of the
 * lead */
static kvm_status tokenise_led(const int32_t **ids, ptrdiff_t *n, ptrdiff_t *skip,
                               kvm_arena *keep, kvm_encoder *e, kvm_str lead,
                               kvm_str choice, kvm_err *err)
{
    const int32_t *a, *b;
    ptrdiff_t an, bn;
    TRY(tokenise(&a, &an, keep, e, lead, err));
    TRY(tokenise(&b, &bn, keep, e, choice, err));
    int32_t *both = kvm_new(keep, int32_t, an + bn + 1);
    if (!both) return kvm_nomem(err, keep);
    if (an) memcpy(both, a, (size_t)an * sizeof *a);
    if (bn) memcpy(both + an, b, (size_t)bn * sizeof *b);
    *ids = both;
    *n = an + bn;
    *skip = an;
    return KVM_OK;
}

/* The first turn's question is fed, the others follow; so does an answer of each. */
static kvm_status tokenise_turns(kvm_item_ids *ids, kvm_arena *keep, kvm_encoder *e,
                                 const kvm_suite *s, const kvm_item *item, kvm_err *err)
{
    const ptrdiff_t turns = s->turns ? s->turns : item->turn_count;
    if (turns > item->turn_count)
        return kvm_fail(err, KVM_RANGE, "item %.*s: has %td turns, not %td",
                        KVM_STR_ARG(item->id), item->turn_count, turns);
    const int32_t **after = kvm_new(keep, const int32_t *, turns);
    ptrdiff_t *after_n = kvm_new(keep, ptrdiff_t, turns);
    if (!after || !after_n) return kvm_nomem(err, keep);
    ids->longest = turns * s->max_new_tokens;
    for (ptrdiff_t i = 0; i < turns; i++) {
        TRY(tokenise(&after[i], &after_n[i], keep, e, item->turns[i].question, err));
        if (after_n[i] == 0)
            return kvm_fail(err, KVM_RANGE, "item %.*s: question %td has no tokens",
                            KVM_STR_ARG(item->id), i + 1);
        ids->longest += after_n[i];
    }
    ids->feed = after[0];
    ids->feed_n = after_n[0];
    ids->after = after + 1;
    ids->after_n = after_n + 1;
    ids->after_count = turns - 1;
    return KVM_OK;
}

static kvm_status tokenise_after(kvm_item_ids *ids, kvm_arena *keep, kvm_encoder *e,
                                 const kvm_suite *s, const kvm_item *item, kvm_err *err)
{
    const kvm_str *texts;
    followers(s, item, &texts, &ids->after_count);
    const int32_t **after = kvm_new(keep, const int32_t *, ids->after_count + 1);
    ptrdiff_t *after_n = kvm_new(keep, ptrdiff_t, ids->after_count + 1);
    ptrdiff_t *skip = kvm_new(keep, ptrdiff_t, ids->after_count + 1);
    if (!after || !after_n || !skip) return kvm_nomem(err, keep);
    ids->longest = ids->after_count ? 0 : s->max_new_tokens;
    for (ptrdiff_t i = 0; i < ids->after_count; i++) {
        const kvm_str lead = item->leads ? item->leads[i] : KVM_STR("");
        TRY(tokenise_led(&after[i], &after_n[i], &skip[i], keep, e, lead, texts[i],
                         err));
        if (after_n[i] == skip[i])
            return kvm_fail(err, KVM_RANGE, "item %.*s: continuation %td has no tokens",
                            KVM_STR_ARG(item->id), i);
        if (after_n[i] > ids->longest) ids->longest = after_n[i];
    }
    ids->after = after;
    ids->after_n = after_n;
    ids->skip = skip;
    return KVM_OK;
}

/* begin-of-text before the prefix, once */
static kvm_status begin_with(kvm_item_ids *ids, kvm_arena *keep, int32_t bos,
                             kvm_err *err)
{
    if (bos < 0 || (ids->prefix_n > 0 && ids->prefix[0] == bos)) return KVM_OK;
    int32_t *all = kvm_new(keep, int32_t, ids->prefix_n + 1);
    if (!all) return kvm_nomem(err, keep);
    all[0] = bos;
    if (ids->prefix_n)
        memcpy(all + 1, ids->prefix, (size_t)ids->prefix_n * sizeof *all);
    ids->prefix = all;
    ids->prefix_n++;
    return KVM_OK;
}

bool kvm_item_same_prefix(const kvm_item_ids *a, const kvm_item_ids *b)
{
    const ptrdiff_t n = a->prefix_n < b->prefix_n ? a->prefix_n : b->prefix_n;
    return memcmp(a->prefix, b->prefix, (size_t)n * sizeof *a->prefix) == 0;
}

kvm_status kvm_item_tokenise(kvm_item_ids *ids, kvm_arena *keep, kvm_encoder *e,
                             int32_t bos, const kvm_suite *s, const kvm_item *item,
                             kvm_err *err)
{
    *ids = (kvm_item_ids){0};
    TRY(tokenise(&ids->prefix, &ids->prefix_n, keep, e, item->prefix, err));
    TRY(begin_with(ids, keep, bos, err));
    if (s->kind == KVM_SUITE_DIALOGUE)
        return tokenise_turns(ids, keep, e, s, item, err);
    TRY(tokenise(&ids->feed, &ids->feed_n, keep, e, item->question, err));
    if (ids->feed_n == 0 && ids->prefix_n > 0) { /* every arm needs something to read */
        ids->prefix_n--;
        ids->feed = ids->prefix + ids->prefix_n;
        ids->feed_n = 1;
    }
    if (ids->prefix_n < 1)
        return kvm_fail(err, KVM_RANGE, "item %.*s: the prefix is too short to cache",
                        KVM_STR_ARG(item->id));
    TRY(tokenise_after(ids, keep, e, s, item, err));
    ids->longest += ids->feed_n;
    return KVM_OK;
}

void kvm_figures_put(kvm_figures *f, const char *name, double value)
{
    assert(f->n < KVM_MAX_FIGURES);
    f->name[f->n] = name;
    f->value[f->n++] = value;
}

static kvm_status read_feed(kvm_model *m, kvm_cache *c, const kvm_item_ids *ids,
                            float *logits, kvm_err *err)
{
    return kvm_model_forward(m, c, ids->feed, ids->feed_n,
                             &(kvm_forward_options){.logits_last = 1, .logits = logits},
                             err);
}

/* logits (n,V) before each of the n ids of `after`, the last being before after[n-1] */
static kvm_status continue_over(kvm_model *m, kvm_cache *c, const float *before,
                                const int32_t *after, ptrdiff_t n, float *logits,
                                kvm_err *err)
{
    const ptrdiff_t vocab = kvm_model_info_of(m)->vocab;
    memcpy(logits, before, (size_t)vocab * sizeof *logits);
    if (n == 1) return KVM_OK;
    return kvm_model_forward(
        m, c, after, n - 1,
        &(kvm_forward_options){.logits_last = n - 1, .logits = logits + vocab}, err);
}

static kvm_status score_perplexity(kvm_figures *out, const kvm_item_ids *ids,
                                   kvm_model *m, kvm_cache *c, bool native,
                                   float *native_logits, ptrdiff_t native_vocab,
                                   kvm_arena scratch, kvm_err *err)
{
    const ptrdiff_t n = ids->after_n[0], vocab = kvm_model_info_of(m)->vocab;
    const ptrdiff_t both = vocab < native_vocab ? vocab : native_vocab;
    float *before = kvm_new_raw(&scratch, float, vocab);
    float *logits = native ? native_logits : kvm_new_raw(&scratch, float, n *vocab);
    double *logprob = kvm_new_raw(&scratch, double, n);
    if (!before || !logits || !logprob) return kvm_nomem(err, &scratch);
    TRY(read_feed(m, c, ids, before, err));
    TRY(continue_over(m, c, before, ids->after[0], n, logits, err));
    TRY(kvm_op_logprob(kvm_model_compute(m), logprob,
                       kvm_view2(logits, KVM_F32, n, vocab), ids->after[0], err));
    double nll = 0, kl = 0, first = 0, agree = 0;
    for (ptrdiff_t t = 0; t < n; t++) {
        const float *mine = logits + t * vocab;
        const float *theirs = native_logits + t * native_vocab;
        const double d = native ? 0 : kvm_score_kl(theirs, mine, both);
        if (t == 0) first = d;
        kl += d;
        nll -= logprob[t];
        agree += kvm_score_argmax(mine, both) == kvm_score_argmax(theirs, both);
    }
    kvm_figures_put(out, "nll", nll / (double)n);
    kvm_figures_put(out, "kl", kl / (double)n);
    kvm_figures_put(out, "first_kl", first);
    kvm_figures_put(out, "agreement", agree / (double)n);
    return KVM_OK;
}

/* log-likelihood of what follows the first `skip` ids of `after` */
static kvm_status choice_logprob(double *sum, const int32_t *after, ptrdiff_t n,
                                 ptrdiff_t skip, kvm_model *m, kvm_cache *c,
                                 const float *before, kvm_arena scratch, kvm_err *err)
{
    const ptrdiff_t vocab = kvm_model_info_of(m)->vocab, length = kvm_cache_length(c);
    float *logits = kvm_new_raw(&scratch, float, n *vocab);
    double *logprob = kvm_new_raw(&scratch, double, n);
    if (!logits || !logprob) return kvm_nomem(err, &scratch);
    kvm_cache_mark(c); /* states cannot be cut back otherwise */
    TRY(continue_over(m, c, before, after, n, logits, err));
    TRY(kvm_op_logprob(kvm_model_compute(m), logprob,
                       kvm_view2(logits, KVM_F32, n, vocab), after, err));
    *sum = 0;
    for (ptrdiff_t t = skip; t < n; t++) *sum += logprob[t];
    return kvm_cache_truncate(c, length, err);
}

/* of a choice without the blank that joins it to the question, as lm-eval counts; a
 * choice of blanks alone counts whole */
static double bytes_of(kvm_str choice)
{
    const ptrdiff_t words = kvm_str_trim(choice).len;
    return (double)(words ? words : choice.len);
}

static kvm_status score_choice(kvm_figures *out, const kvm_item *item,
                               const kvm_item_ids *ids, kvm_model *m, kvm_cache *c,
                               kvm_arena scratch, kvm_err *err)
{
    float *before = kvm_new_raw(&scratch, float, kvm_model_info_of(m)->vocab);
    if (!before) return kvm_nomem(err, &scratch);
    TRY(read_feed(m, c, ids, before, err));
    double best = -INFINITY, best_norm = -INFINITY, gold = 0;
    ptrdiff_t pick = 0, pick_norm = 0;
    for (ptrdiff_t i = 0; i < ids->after_count; i++) {
        double sum;
        TRY(choice_logprob(&sum, ids->after[i], ids->after_n[i], ids->skip[i], m, c,
                           before, scratch, err));
        const double norm = sum / bytes_of(item->choices[i]);
        if (sum > best) best = sum, pick = i;
        if (norm > best_norm) best_norm = norm, pick_norm = i;
        if (i == item->answer) gold = sum;
    }
    kvm_figures_put(out, "accuracy", pick == item->answer);
    kvm_figures_put(out, "accuracy_norm", pick_norm == item->answer);
    kvm_figures_put(out, "logprob_gold", gold);
    return KVM_OK;
}

static bool begins_blank(kvm_str text)
{
    return text.len > 0 && kvm_str_trim(kvm_str_slice(text, 0, 1)).len == 0;
}

static kvm_status score_generation(kvm_figures *out, const kvm_suite *s,
                                   const kvm_item *item, const kvm_item_ids *ids,
                                   kvm_model *m, kvm_cache *c, kvm_arena *keep,
                                   kvm_answer *said, kvm_arena scratch, kvm_err *err)
{
    float *logits = kvm_new_raw(&scratch, float, kvm_model_info_of(m)->vocab);
    if (!logits) return kvm_nomem(err, &scratch);
    TRY(read_feed(m, c, ids, logits, err));
    TRY(kvm_answer_now(said, keep, m, c, logits, item, s->max_new_tokens, err));
    kvm_answer_score score;
    TRY(kvm_score_answer(&score, said->text, item->choices, item->choice_count, scratch,
                         err));
    if (s->kind == KVM_SUITE_NEEDLE) {
        kvm_figures_put(out, "recall", score.gold_in_answer);
        kvm_figures_put(out, "exact_match", score.exact_match);
    } else {
        kvm_figures_put(out, "exact_match", score.exact_match);
        kvm_figures_put(out, "f1", score.f1);
        kvm_figures_put(out, "gold_in_answer", score.gold_in_answer);
    }
    kvm_figures_put(out, "answer_tokens", (double)said->kept);
    kvm_figures_put(out, "answer_blank", begins_blank(said->text));
    kvm_figures_put(out, "answer_empty", kvm_str_trim(said->text).len == 0);
    return KVM_OK;
}

kvm_status kvm_score_item(kvm_figures *out, const kvm_suite *s, const kvm_item *item,
                          const kvm_item_ids *ids, kvm_model *m, kvm_cache *cache,
                          bool native, float *native_logits, ptrdiff_t native_vocab,
                          kvm_arena *keep, kvm_answer *said, kvm_err *err)
{
    *out = (kvm_figures){0};
    kvm_answer unheard;
    if (!said) said = &unheard;
    *said = (kvm_answer){.text = KVM_STR("")};
    kvm_arena scratch = {0};
    TRY(kvm_arena_reserve(&scratch, (size_t)8 << 30, err));
    kvm_status st = KVM_OK;
    switch (s->kind) {
    case KVM_SUITE_PERPLEXITY:
        st = score_perplexity(out, ids, m, cache, native, native_logits, native_vocab,
                              scratch, err);
        break;
    case KVM_SUITE_MULTIPLE_CHOICE:
        st = score_choice(out, item, ids, m, cache, scratch, err);
        break;
    case KVM_SUITE_GENERATION:
    case KVM_SUITE_NEEDLE:
        st = score_generation(out, s, item, ids, m, cache, keep, said, scratch, err);
        break;
    case KVM_SUITE_CALIBRATION:
    case KVM_SUITE_DIALOGUE:
        st = kvm_suite_serves(s, KVM_HOLDS_ITEMS, err);
        break;
    }
    kvm_arena_free(&scratch);
    return st;
}
