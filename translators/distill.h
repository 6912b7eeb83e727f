/* distill.h - a translator's maps trained on what the target says behind them.
 *
 * Both models are frozen. A lesson is a prefix and the tokens that follow it; what the
 * source's cache holds of the prefix, and what the target says on its own cache, are
 * kept once. A step injects the translated prefix, runs the target over the
 * continuation, and takes the gradient of
 *
 *   mean over continuation tokens of KL(native || translated)
 *
 * back through the target's layers to the injected cache (models/backward.h), through
 * norm and rotary to the rows that the maps made, and so to their weights (Castin et
 * al. 2026, stage 2). Index keys choose, and a choice has no gradient: where the target
 * has an indexer, its maps learn from a loss of their own, the KL of the scores that
 * the continuation gives to the prefix's tokens or blocks, native against predicted.
 * AdamW, gradients clipped by their norm over all parameters.
 *
 *   new -> prepare (each lesson, once) -> [learn * batch -> update] * steps
 *
 * Parameters, moments and gradients are one array each, in the translator's order:
 * weights and bias of a step, then left, right, window and its bias of a state step. */
#ifndef KVM_TRANSLATORS_DISTILL_H
#define KVM_TRANSLATORS_DISTILL_H

#include "models/backward.h"
#include "translators/apply.h"
#include "translators/outline.h"
#include "translators/said.h"

typedef struct kvm_distill kvm_distill;

typedef struct kvm_lesson {
    const int32_t *prefix, *after; /* borrows */
    ptrdiff_t prefix_n, after_n;
    int32_t *told;   /* (prefix_n) tokens as the translator is told them */
    float **rows;    /* (passes) of (prefix_n, width), stripped of position */
    float **states;  /* (state steps, 2) the source's; NULL: not read */
    float **scores;  /* (steps) of an index step (after_n, units); NULL of others */
    kvm_said native; /* (after_n) the target on its own cache */
} kvm_lesson;

/* kvm_distill_new - t is copied, its weights as f32; models are borrowed. prefix_most,
 * after_most: of the longest lesson; top: tokens that are kept of what the target says
 * (said.h), 0: all. KVM_UNSUPPORTED: a map that is not linear, or a
 * layer of the target that has no backward. */
KVM_MUST kvm_status kvm_distill_new(kvm_distill **d, kvm_arena *keep, kvm_compute *c,
                                    const kvm_translator *t, kvm_model *source,
                                    kvm_model *target, ptrdiff_t prefix_most,
                                    ptrdiff_t after_most, ptrdiff_t top, kvm_err *err);
/* kvm_distill_bytes - at most what a distillation takes beside the models, its
 * parameters (four arrays) and its lessons: caches, gradients, a tape, pieces of
 * logits, a block of rows; not a codebook (identity.h), where tokens are decoded.
 * Never tokens times vocabulary. */
size_t kvm_distill_bytes(const kvm_model *source, const kvm_model *target,
                         ptrdiff_t prefix_most, ptrdiff_t after_most);
/* What a lesson keeps, but for its lengths. */
typedef struct kvm_lesson_size {
    ptrdiff_t vocab, top;      /* of what the target says (said.h) */
    ptrdiff_t rows;            /* numbers of a prefix token, of all passes */
    ptrdiff_t states;          /* numbers of the source's states */
    ptrdiff_t indexers, block; /* that score the prefix by so many tokens */
} kvm_lesson_size;
/* kvm_lesson_size_most - before there is a translator: none of this outline keeps more,
 * whichever layers its maps will read */
kvm_lesson_size kvm_lesson_size_most(const kvm_outline *o, const kvm_shapes *source,
                                     const kvm_shapes *target, ptrdiff_t block,
                                     ptrdiff_t vocab, ptrdiff_t top);
size_t kvm_lesson_bytes(const kvm_lesson_size *s, ptrdiff_t prefix_n,
                        ptrdiff_t after_n);
kvm_lesson_size kvm_distill_lesson_size(const kvm_distill *d);
/* bytes that a prepared lesson keeps */
size_t kvm_distill_lesson_bytes(const kvm_distill *d, ptrdiff_t prefix_n,
                                ptrdiff_t after_n);
/* kvm_distill_prepare - l with prefix and after filled in; the rest into keep */
KVM_MUST kvm_status kvm_distill_prepare(kvm_distill *d, kvm_lesson *l, kvm_arena *keep,
                                        kvm_err *err);

typedef struct kvm_distill_loss {
    double kl;    /* mean over the continuation's tokens */
    double first; /* of its first token */
    double index; /* of indexers' scores, mean over them; 0: none, or not asked */
} kvm_distill_loss;
/* kvm_distill_score - the loss alone */
KVM_MUST kvm_status kvm_distill_score(kvm_distill *d, const kvm_lesson *l,
                                      kvm_distill_loss *loss, kvm_err *err);
/* kvm_distill_learn - the loss, and its gradient added to what is there. KVM_NAN
 * when it is not finite: nothing was added. */
KVM_MUST kvm_status kvm_distill_learn(kvm_distill *d, const kvm_lesson *l,
                                      kvm_distill_loss *loss, kvm_err *err);

typedef struct kvm_distill_rates {
    double rate, decay; /* of AdamW */
    double clip;        /* largest norm of the mean gradient; 0: none */
} kvm_distill_rates;
/* kvm_distill_forget - gradients so far */
void kvm_distill_forget(kvm_distill *d);
/* kvm_distill_update - one step with the mean gradient of `lessons` lessons, which are
 * then forgotten; norm: of that mean, before clipping. Who adds lessons up himself puts
 * the sum where kvm_distill_gradient is, before it. Index maps, which learn from
 * another loss, are clipped by themselves and not in `norm`. */
KVM_MUST kvm_status kvm_distill_update(kvm_distill *d, ptrdiff_t lessons,
                                       const kvm_distill_rates *r, double *norm,
                                       kvm_err *err);

/* ---- what a checkpoint keeps ---- */
ptrdiff_t kvm_distill_parameters(const kvm_distill *d);
float *kvm_distill_values(kvm_distill *d);            /* (parameters) */
float *kvm_distill_moment(kvm_distill *d, int which); /* 0: first, 1: second */
float *kvm_distill_gradient(kvm_distill *d);  /* (parameters) of lessons so far */
ptrdiff_t *kvm_distill_steps(kvm_distill *d); /* updates so far */
/* the translator with its weights as they now are; borrows d's arrays */
const kvm_translator *kvm_distill_translator(const kvm_distill *d);

#endif
