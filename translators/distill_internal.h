/* distill_internal.h - a distillation from the inside: distill.c has parameters,
 * lessons and the way forward, distill_index.c the loss of indexers, distill_learn.c
 * the way back and the step of the optimiser. */
#ifndef KVM_TRANSLATORS_DISTILL_INTERNAL_H
#define KVM_TRANSLATORS_DISTILL_INTERNAL_H

#include "translators/apply_internal.h"
#include "translators/distill.h"

enum { KVM_DISTILL_ROWS = 32 }; /* of logits at a time */

struct kvm_distill {
    kvm_compute *c;
    kvm_model *source, *target;
    kvm_translator t;
    kvm_step *steps;        /* (t.count) whose weights are parameters */
    kvm_state_step *states; /* (t.state_count) likewise */
    ptrdiff_t *step_at;     /* (t.count) where a step's weights begin; bias behind */
    ptrdiff_t *state_at;    /* (t.state_count) likewise */
    float *p, *m, *v, *g;   /* (count) */
    ptrdiff_t count, updates;
    kvm_apply *apply;
    kvm_tape *tape;
    kvm_gradients *gradients;
    kvm_cache *source_cache, *cache;
    kvm_taken *taken;        /* NULL: nothing is */
    float *dy;               /* (block, widest row) gradient of a step's rows */
    float *part, *part_dy;   /* (block, widest row) one object's part of them */
    float *inputs, *dinputs; /* (prefix_most, widest input) of a replayed layer */
    kvm_arena replay;        /* for the way back through one */
    double *kl;              /* (after_most) */
    float *scores;           /* (after_most, units) of an indexer */
    ptrdiff_t top;           /* tokens kept of what the target says; 0: all */
    float *logits;           /* (KVM_DISTILL_ROWS, V) */
    float *said;             /* (KVM_DISTILL_ROWS, V) what was said, spread out */
};

/* numbers of a step's weights, and with its bias; 0: a map that is not trained */
ptrdiff_t kvm_distill__weights(const kvm_step *s);
ptrdiff_t kvm_distill__parameters(const kvm_step *s);
/* sizes of a state step's arrays: left, right, window, bias */
void kvm_distill__state_sizes(const kvm_state_step *s, ptrdiff_t n[4]);

/* numbers of state k (0: state, 1: window) that a state step reads; 0: it reads none */
ptrdiff_t kvm_distill__state_numbers(const kvm_distill *d, ptrdiff_t i, int k);

/* ---- forward ---- */

/* rows that a lesson's pass i reads, into what its steps take them from */
KVM_MUST kvm_status kvm_distill__load_block(kvm_distill *d, const kvm_lesson *l,
                                            ptrdiff_t i, ptrdiff_t first, ptrdiff_t n,
                                            kvm_err *err);
/* the target's cache of a lesson's prefix, made by the translator */
KVM_MUST kvm_status kvm_distill__translate(kvm_distill *d, const kvm_lesson *l,
                                           kvm_err *err);

typedef struct kvm_distill_judging {
    kvm_distill *d;
    const kvm_lesson *l;
} kvm_distill_judging;

/* logits become the gradient of the mean KL by them; ctx: kvm_distill_judging */
KVM_MUST kvm_status kvm_distill__judge(void *ctx, ptrdiff_t from, ptrdiff_t n,
                                       float *logits, kvm_err *err);
/* the mean over what was judged; KVM_NAN when it is not finite */
KVM_MUST kvm_status kvm_distill__sum_loss(const kvm_distill *d, const kvm_lesson *l,
                                          kvm_distill_loss *loss, kvm_err *err);

/* ---- indexers ---- */

/* whether a step makes index keys, which learn from their indexer's scores alone */
bool kvm_distill__indexes(const kvm_step *s);
bool kvm_distill__any_indexer(const kvm_distill *d);
/* tokens or whole blocks of the prefix that an indexer can choose: those of the
 * continuation are not predicted */
ptrdiff_t kvm_distill__choices(const kvm_distill *d, const kvm_step *s,
                               ptrdiff_t prefix_n);
/* what the target's own index keys score, behind its own cache, into the lesson */
KVM_MUST kvm_status kvm_distill__take_scores(kvm_distill *d, kvm_lesson *l,
                                             kvm_arena *keep, kvm_err *err);
/* every indexer's scores of the recorded tokens: taken as native, or compared with
 * them, their gradient added to the index keys' */
KVM_MUST kvm_status kvm_distill__score_indexers(kvm_distill *d, const kvm_lesson *l,
                                                bool take, double *kl, kvm_err *err);

#endif
