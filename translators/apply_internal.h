/* apply_internal.h - one step on rows, for a whole cache and for captured rows alike */
#ifndef KVM_TRANSLATORS_APPLY_INTERNAL_H
#define KVM_TRANSLATORS_APPLY_INTERNAL_H

#include "translators/apply.h"
#include "translators/translator_internal.h"

/* Rows of several layers side by side, what was read and what has been made: where the
 * rows of a feature stand. */
typedef struct kvm_rows_at {
    float *read, *made;      /* (n, ld), (n, made_ld) */
    ptrdiff_t ld, made_ld;   /* floats from row to row */
    ptrdiff_t *at[2][KVM_SPACES]; /* (layers) column of a side's rows of a space; -1 or
                                     NULL: not there. The token's are among those read */
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

#endif
