/* moments_internal.h - panels and tensor names, shared by the moments' writer, reader
 * and merge. */
#ifndef KVM_TRANSLATORS_MOMENTS_INTERNAL_H
#define KVM_TRANSLATORS_MOMENTS_INTERNAL_H

#include "models/safetensors.h"
#include "translators/moments.h"

#define KVM_MOMENTS_FORMAT "kvmill.moments.v2"

/* whole layers of at most KVM_PANEL features together, or one wider layer */
typedef struct kvm_panel {
    ptrdiff_t layer, layers; /* first, how many */
    ptrdiff_t at, width;     /* features */
} kvm_panel;
typedef struct kvm_panels {
    kvm_panel *p;
    ptrdiff_t count, width; /* panels, features of all of them */
} kvm_panels;

KVM_MUST kvm_status kvm_moments__panels(kvm_panels *out, kvm_arena *keep,
                                        const kvm_row_shape *shape, ptrdiff_t layers,
                                        kvm_err *err);

/* specs of one (space, split): tiles, then means and squares, in the order of the file;
 * n in and out counts what is in spec already */
KVM_MUST kvm_status kvm_moments__specs(kvm_st_spec *spec, ptrdiff_t *n, kvm_arena *keep,
                                       kvm_space s, kvm_split p, const kvm_panels *a,
                                       const kvm_panels *b, kvm_err *err);
ptrdiff_t kvm_moments__spec_count(const kvm_panels *a, const kvm_panels *b);
/* "cross.K.fit.0.1", "mean.a.K.fit" (i < 0); at NULL when keep is spent */
kvm_str kvm_moments__name(kvm_arena *keep, const char *what, kvm_space s, kvm_split p,
                          ptrdiff_t i, ptrdiff_t j);

#endif
