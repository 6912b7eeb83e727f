/* apply_internal.h - one step on rows, for a whole cache and for captured rows alike */
#ifndef KVM_TRANSLATORS_APPLY_INTERNAL_H
#define KVM_TRANSLATORS_APPLY_INTERNAL_H

#include "translators/apply.h"
#include "translators/translator_internal.h"

/* a step with its weights made ready for linear: weight[part * groups + group] */
typedef struct kvm_ready {
    const kvm_step *step;
    ptrdiff_t parts;
    kvm_weight **weight;
} kvm_ready;
KVM_MUST kvm_status kvm_apply__ready(kvm_ready *r, kvm_arena *keep, kvm_compute *c,
                                     const kvm_step *s, kvm_err *err);

/* source rows: several layers side by side, `ld` floats from row to row */
typedef struct kvm_rows_at {
    float *rows;
    ptrdiff_t ld;
    const ptrdiff_t *at;        /* column of each source layer */
    const kvm_row_shape *shape; /* of each source layer */
} kvm_rows_at;

/* buffers of one step */
typedef struct kvm_apply_room {
    float *gathered;      /* (n, widest inputs) */
    float *hidden[2];     /* (n, widest hidden layer) */
    ptrdiff_t *at, *size; /* (most sources) pieces being gathered */
    int32_t *source;      /* (most sources) layers that `gathered` holds */
    ptrdiff_t held;       /* how many; 0: nothing. Reset for new rows. */
} kvm_apply_room;
KVM_MUST kvm_status kvm_apply__room(kvm_apply_room *room, kvm_arena *keep,
                                    const kvm_step *steps, ptrdiff_t count, ptrdiff_t n,
                                    kvm_err *err);

/* n rows of y (outputs wide, `ldy` apart) from n rows of x */
KVM_MUST kvm_status kvm_apply__step(kvm_compute *c, const kvm_ready *r,
                                    const kvm_rows_at *x, ptrdiff_t target_heads,
                                    ptrdiff_t n, float *y, ptrdiff_t ldy,
                                    kvm_apply_room *room, kvm_apply_times *times,
                                    kvm_err *err);

#endif
