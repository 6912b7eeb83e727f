/* ffn.h - the feed-forward that a block, an expert and a shared expert have alike.
 *
 *   gated     y = Wd (silu(Wg x) * Wu x), with a limit L (GLM-5.3-Flash) of min(Wg x,
 *             L) and of Wu x between -L and L
 *   squared   y = Wd relu(Wu x)^2, where there is no gate (Nemotron-H) */
#ifndef KVM_MODELS_FFN_H
#define KVM_MODELS_FFN_H

#include "models/layer.h"

typedef struct kvm_ffn_maps {
    ptrdiff_t inner;
    kvm_weight *gate, *up, *down; /* gate NULL: squared */
    double limit;                 /* 0: none */
} kvm_ffn_maps;

/* y (n, .) = the feed-forward of x (n, .), or y += ; gate and up: room for n * inner
 * numbers each, gate unused when squared */
KVM_MUST kvm_status kvm_ffn_run(const kvm_step *step, const kvm_ffn_maps *m,
                                kvm_tensor x, kvm_tensor y, bool add, float *gate,
                                float *up, kvm_err *err);

/* dx (n, .) = the gradient by x, or dx +=, given dy, that by y. dots (n), or NULL: y .
 * dy of each row, of a Wd without a bias */
KVM_MUST kvm_status kvm_ffn_back(const kvm_step *step, const kvm_ffn_maps *m,
                                 kvm_tensor x, kvm_tensor dy, kvm_tensor dx, bool add,
                                 float *dots, kvm_err *err);
size_t kvm_ffn_back_scratch(const kvm_ffn_maps *m, ptrdiff_t n);

#endif
