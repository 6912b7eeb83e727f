/* apply_internal.h - one step on rows, for a whole cache and for captured rows alike */
#ifndef KVM_TRANSLATORS_APPLY_INTERNAL_H
#define KVM_TRANSLATORS_APPLY_INTERNAL_H

#include "translators/apply.h"
#include "translators/translator_internal.h"

/* source rows: several layers side by side, `ld` floats from row to row */
typedef struct kvm_rows_at {
    float *rows;
    ptrdiff_t ld;
    const ptrdiff_t *at;        /* column of each source layer */
    const kvm_row_shape *shape; /* of each source layer */
} kvm_rows_at;

/* A piece of the input, read where it lies: x[column .. column+width) times its columns
 * of the first weight. Copying the chosen layers together first costs a tenth of the
 * time. */
typedef struct kvm_piece {
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
/* x: only at and shape are looked at */
KVM_MUST kvm_status kvm_apply__ready(kvm_ready *r, kvm_arena *keep, kvm_compute *c,
                                     const kvm_step *s, const kvm_rows_at *x,
                                     ptrdiff_t target_heads, kvm_err *err);

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

#endif
