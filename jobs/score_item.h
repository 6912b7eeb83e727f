/* score_item.h - one item, one cache, some numbers.
 *
 * A scorer continues on a working cache that holds the item's prefix: it feeds what the
 * model still has to read, then measures. It may grow and truncate that cache; it never
 * sees the one it was copied from. */
#ifndef KVM_JOBS_SCORE_ITEM_H
#define KVM_JOBS_SCORE_ITEM_H

#include "jobs/answer.h"
#include "jobs/suite.h"
#include "models/model.h"

/* An item as ids. prefix: to be cached; feed: read by the model in every arm (at least
 * one id); after: the continuation or the choices. Of a dialogue feed is the first
 * turn's question, and after those of the turns that follow (kvm_suite.turns). */
typedef struct kvm_item_ids {
    const int32_t *prefix, *feed;
    ptrdiff_t prefix_n, feed_n;
    const int32_t *const *after;
    const ptrdiff_t *after_n;
    const ptrdiff_t *skip; /* of each `after`: its first ids, read and not scored; NULL
                              of a dialogue */
    ptrdiff_t after_count;
    ptrdiff_t longest; /* most ids that may follow the prefix: of a dialogue all its
                          questions and answers */
} kvm_item_ids;

/* bos: id that stands before the prefix unless its text brings it (-1: none), see
 * kvm_text_begin. KVM_RANGE when nothing is left to cache or to measure */
KVM_MUST kvm_status kvm_item_tokenise(kvm_item_ids *ids, kvm_arena *keep,
                                      kvm_encoder *e, int32_t bos, const kvm_suite *s,
                                      const kvm_item *item, kvm_err *err);
/* whether the shorter prefix begins the longer one */
bool kvm_item_same_prefix(const kvm_item_ids *a, const kvm_item_ids *b);

enum { KVM_MAX_FIGURES = 8 };
typedef struct kvm_figures { /* metric names are static */
    const char *name[KVM_MAX_FIGURES];
    double value[KVM_MAX_FIGURES];
    ptrdiff_t n;
} kvm_figures;
void kvm_figures_put(kvm_figures *f, const char *name, double value);

/* Metrics by suite kind (per item):
 *   perplexity       nll (mean nats per token), kl (mean KL(native||arm)), first_kl,
 *                    agreement (argmax equal)
 *   multiple choice  accuracy (summed log-likelihood), accuracy_norm (per byte of the
 *                    choice, without the space before it), logprob_gold
 *   generation       exact_match, f1, gold_in_answer, of the text before a stop string
 *   needle           recall (= gold_in_answer), exact_match
 *   both of these    answer_tokens (kvm_answer.kept), answer_blank (it begins with a
 *                    blank), answer_empty (it is blank)
 * native_logits (after_n[0], native_vocab): written when `native`, read otherwise
 * (perplexity only; NULL otherwise). Models of one tokenizer may pad their vocabularies
 * differently: KL is between the distributions over the ids that both have. said
 * (optional): what was generated, in keep. */
KVM_MUST kvm_status kvm_score_item(kvm_figures *out, const kvm_suite *s,
                                   const kvm_item *item, const kvm_item_ids *ids,
                                   kvm_model *m, kvm_cache *cache, bool native,
                                   float *native_logits, ptrdiff_t native_vocab,
                                   kvm_arena *keep, kvm_answer *said, kvm_err *err);

#endif
