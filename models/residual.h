/* residual.h - what a layer takes from the residual stream and how it adds to it.
 *
 * Plain: x = rms(h) w, h += layer(x). Layers know nothing of this. */
#ifndef KVM_MODELS_RESIDUAL_H
#define KVM_MODELS_RESIDUAL_H

#include "models/layer.h"

typedef struct kvm_site {
    kvm_layer *layer;
    double eps;
    float *norm; /* (hidden) */
} kvm_site;

/* the kind's layer of block `index` with its norm */
KVM_MUST kvm_status kvm_site_load(kvm_site *out, kvm_loader *ld, kvm_layer_id kind,
                                  kvm_weight_id norm, ptrdiff_t index, kvm_err *err);
size_t kvm_site_scratch(const kvm_site *site, ptrdiff_t n);
/* h (T,hidden): the last step->out rows += the layer's result. rows: all T for a mixer,
 * which keeps something of each; step->out for a feed-forward. */
KVM_MUST kvm_status kvm_site_forward(const kvm_site *site, const kvm_step *step,
                                     kvm_tensor h, ptrdiff_t rows, kvm_err *err);

#endif
