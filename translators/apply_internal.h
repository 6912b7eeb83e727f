/* apply_internal.h - one step on rows, for a whole cache and for captured rows
 * alike; and a translator at work from the inside, for distillation, which goes the
 * way back. */
#ifndef KVM_TRANSLATORS_APPLY_INTERNAL_H
#define KVM_TRANSLATORS_APPLY_INTERNAL_H

#include "translators/apply.h"
#include "translators/identity.h"
#include "translators/translator_internal.h"

/* Rows of several layers side by side, what was read and what has been made: where the
 * rows of a feature stand. */
typedef struct kvm_rows_at {
    float *read, *made;    /* (n, ld), (n, made_ld) */
    ptrdiff_t ld, made_ld; /* floats from row to row */
    /* (layers) column of a side's rows of a space; -1 or NULL: not there. The token's
     * are among those read. */
    ptrdiff_t *at[2][KVM_SPACES];
    const kvm_shapes *shapes[2];
} kvm_rows_at;

/* A piece of the input, read where it lies: [column .. column+width) times its columns
 * of the first weight. Copying the chosen layers together first costs a tenth of the
 * time. */
typedef struct kvm_piece {
    bool made; /* among what has been made */
    ptrdiff_t column, width;
    kvm_weight *weight; /* the first of a group brings the bias */
} kvm_piece;

/* A step with its weights made ready: groups of pieces, then the MLP's upper layers. */
typedef struct kvm_ready {
    const kvm_step *step;
    ptrdiff_t *pieces;    /* (groups) how many */
    kvm_piece **piece;    /* (groups) */
    kvm_weight **weight2; /* (groups) NULL for ridge */
    kvm_weight **weight3;
} kvm_ready;
/* x: only where rows stand is looked at */
KVM_MUST kvm_status kvm_apply__ready(kvm_ready *r, kvm_arena *keep, kvm_compute *c,
                                     const kvm_translator *t, const kvm_step *s,
                                     const kvm_rows_at *x, kvm_err *err);

/* n rows of y (outputs wide, `ldy` apart) from n rows of x; hidden: two buffers of n
 * rows of the step's width, for an MLP */
KVM_MUST kvm_status kvm_apply__step(kvm_compute *c, const kvm_ready *r,
                                    const kvm_rows_at *x, ptrdiff_t n, float *y,
                                    ptrdiff_t ldy, float *const hidden[2],
                                    kvm_err *err);
/* the two buffers for n rows of any of the steps */
KVM_MUST kvm_status kvm_apply__hidden(float *hidden[2], kvm_arena *keep,
                                      const kvm_step *steps, ptrdiff_t count,
                                      ptrdiff_t n, kvm_err *err);
/* the items of a step's input, in order; room for 1 + 2 * (sources or 1) in out */
ptrdiff_t kvm_apply__items(const kvm_step *s, kvm_feature *out);

/* Steps that read the same spaces of the source, and those that read what they make. */
typedef struct kvm_pass {
    kvm_space from[2];
    const kvm_step **step; /* (steps) in the translator's order, dependent ones last */
    kvm_ready *ready;      /* (steps) */
    ptrdiff_t *column;     /* (steps) of their rows among those made */
    ptrdiff_t steps;
    kvm_rows_at x;
    ptrdiff_t source_at, source_width; /* columns of x.read that are the source's */
    bool token;                        /* the token's embedding is read, before these */
} kvm_pass;

/* where rows of one space go, and how wide they are */
typedef struct kvm_rows_to {
    kvm_space space;
    float *to; /* (n, ld) */
    ptrdiff_t ld, width;
} kvm_rows_to;

struct kvm_apply {
    kvm_compute *c;
    const kvm_translator *t;
    kvm_model *source, *target;
    kvm_pass *pass;
    ptrdiff_t passes;
    ptrdiff_t block;
    float *first_rows; /* (block, any) of the source's first layer, for decoding */
    float *out;        /* (block, widest row) */
    int32_t *position; /* (block) */
    float *hidden[2];  /* (block, widest hidden layer) */
    kvm_rope from_rope, to_rope; /* of keys; width 0: none */
    bool strip, rotate;
    kvm_codebook *codebook; /* tokens are decoded */
    kvm_arena *keep;
    int32_t *ids;        /* room for decoded ids */
    const int32_t *told; /* ids of the run at hand; NULL: none */
    ptrdiff_t told_from; /* token that the first of them is of */
    ptrdiff_t ids_room;
    kvm_taken
        *made; /* takes what the target's cache does not keep; NULL: nobody does */
    kvm_gather *exact;    /* of rows that follow from the token alone; NULL: none */
    kvm_rows_to exact_to; /* where they go, of the step at hand */
    const float **states; /* (states, 2) of the source, of the run at hand */
    float *state_out[2], *head; /* one layer's state and window; one head */
};

/* rows (n, width), so many floats apart on either side */
typedef struct kvm_row_copy {
    const float *from;
    float *to;
    ptrdiff_t n, from_ld, to_ld, width;
} kvm_row_copy;
void kvm_apply__copy(kvm_apply *a, kvm_row_copy c);

/* takes rows of a gather; ctx: kvm_rows_to */
KVM_MUST kvm_status kvm_apply__take_exact(void *ctx, kvm_space space, ptrdiff_t layer,
                                          ptrdiff_t first, ptrdiff_t n,
                                          const float *rows, kvm_err *err);

/* keys of n tokens at a->position, in the columns `at` of the layers (-1: none) */
KVM_MUST kvm_status kvm_apply__rotate(kvm_apply *a, float *rows, ptrdiff_t ld,
                                      const kvm_shapes *shapes, const ptrdiff_t *at,
                                      ptrdiff_t n, const kvm_rope *rope, bool inverse,
                                      kvm_err *err);

/* The stages of a block of n tokens from `first` on: rows of the source into
 * pass->x.read, stripped of their position; maps, into x.made; rotation and
 * injection. */
KVM_MUST kvm_status kvm_apply__read(kvm_apply *a, const kvm_pass *p,
                                    const kvm_handover *from, ptrdiff_t first,
                                    ptrdiff_t n, kvm_apply_times *times, kvm_err *err);
KVM_MUST kvm_status kvm_apply__map(kvm_apply *a, const kvm_pass *p, ptrdiff_t first,
                                   ptrdiff_t n, kvm_apply_times *times, kvm_err *err);
KVM_MUST kvm_status kvm_apply__put(kvm_apply *a, const kvm_pass *p, kvm_cache *to,
                                   ptrdiff_t first, ptrdiff_t n, kvm_apply_times *times,
                                   kvm_err *err);
/* embeddings of the tokens first .. that are told into their columns of x.read */
KVM_MUST kvm_status kvm_apply__embed(kvm_apply *a, const kvm_pass *p, ptrdiff_t first,
                                     ptrdiff_t n, kvm_err *err);
/* states of the source (state steps, 2: state and window) into the target's */
KVM_MUST kvm_status kvm_apply__states(kvm_apply *a, const float *const *from,
                                      kvm_cache *to, ptrdiff_t tokens, kvm_err *err);
/* index of a layer's object of a space that is kept once; -1: none */
ptrdiff_t kvm_apply__find_state(const kvm_model *m, kvm_space s, ptrdiff_t layer);
/* state and window of the source that each state step reads, where they lie (state
 * steps, 2); NULL for one that starts empty */
KVM_MUST kvm_status kvm_apply__find_states(kvm_apply *a, const kvm_cache *from,
                                           const float **out, kvm_err *err);
/* a->told: n tokens of the source's cache, from `first` on, as they are given or
 * decoded */
KVM_MUST kvm_status kvm_apply__tokens(kvm_apply *a, const kvm_handover *from,
                                      ptrdiff_t first, ptrdiff_t n, kvm_err *err);
/* KVM_USAGE: of those tokens some row that is to be taken is not there */
KVM_MUST kvm_status kvm_apply__taken(const kvm_apply *a, const kvm_handover *from,
                                     ptrdiff_t first, ptrdiff_t n, kvm_err *err);

#endif
