/* residual.h - what a layer takes from the residual stream and how it adds to it.
 * Layers know nothing of this.
 *
 * Plain:   x = rms(h) w;  h += layer(x)
 * Streams (Qwen's gated residual): the residual R is n streams of hidden numbers each.
 *   R' = rms of each stream, times w;  m = sigmoid(Up silu(Down R' / n))
 *   x = mean over streams of m * R';   i = 2 sigmoid(B R' / n)
 *   R_s += i_s layer(x);               after the last block x goes to the head
 * Mixed streams (manifold-constrained hyper-connections, Xie et al. 2026;
 * GLM-5.3-Flash):
 *   [p | q | M] = W rms(R), the mean over all streams; each times its scale + base
 *   p = sigmoid(p) + e;  q = 2 sigmoid(q);  M = softmax of its rows + e, whose columns
 *   and rows are then made to sum to one by turns
 *   x = rms(sum over s of p_s R_s) w;  R_s = q_s layer(x) + sum over t of M_ts R_t
 *   after the last block rms(mean of R_s) w goes to the head (models/residual_mix.c) */
#ifndef KVM_MODELS_RESIDUAL_H
#define KVM_MODELS_RESIDUAL_H

#include "models/layer.h"

/* the tensors of a site */
typedef struct kvm_site_weights {
    kvm_weight_id norm, stream_norm, down, up, inject;
    kvm_weight_id mix, mix_base, mix_scale;
    bool head; /* of the head: adds nothing to the residual, so has no tensors for it */
} kvm_site_weights;
extern const kvm_site_weights kvm_mixer_site, kvm_ffn_site, kvm_final_site;

typedef struct kvm_site {
    kvm_layer *layer; /* NULL: of the head, or a half that the block lacks */
    double eps;
    ptrdiff_t hidden, streams, rank;
    float *norm;                    /* (streams * hidden) */
    kvm_weight *down, *up, *inject; /* NULL with one stream; inject: at the head */
    bool mixed;                     /* its streams are, by the next */
    double mix_eps;
    ptrdiff_t mix_rounds;
    kvm_weight *mix;             /* (2 streams + streams^2, streams * hidden) */
    float *mix_base, *mix_scale; /* (2 streams + streams^2), (3) */
    float *ones;                 /* (streams * hidden) */
} kvm_site;

/* the kind's layer of block `index`. KVM_LAYER_NONE: the site of the head, or of a
 * block that has no such half, where out stays as it is (all 0) */
KVM_MUST kvm_status kvm_site_load(kvm_site *out, kvm_loader *ld, kvm_layer_id kind,
                                  const kvm_site_weights *weights, ptrdiff_t index,
                                  kvm_err *err);
size_t kvm_site_scratch(const kvm_site *site, ptrdiff_t n);
/* h (T, streams * hidden): the last step->out rows += the layer's result. rows: all T
 * for a mixer, which keeps something of each; step->out for a feed-forward. */
KVM_MUST kvm_status kvm_site_forward(const kvm_site *site, const kvm_step *step,
                                     kvm_tensor h, ptrdiff_t rows, kvm_err *err);
/* what the head is given: h (n, streams * hidden) -> x (n, hidden) */
KVM_MUST kvm_status kvm_site_read(const kvm_site *site, const kvm_step *step,
                                  kvm_tensor h, kvm_tensor x, kvm_err *err);

/* the three of a mixed site (models/residual_mix.c) */
KVM_MUST kvm_status kvm_mix__load(kvm_site *s, kvm_loader *ld,
                                  const kvm_site_weights *w, ptrdiff_t index,
                                  kvm_err *err);
size_t kvm_mix__scratch(const kvm_site *s, ptrdiff_t n);
KVM_MUST kvm_status kvm_mix__forward(const kvm_site *s, const kvm_step *step,
                                     kvm_tensor h, ptrdiff_t rows, kvm_err *err);
KVM_MUST kvm_status kvm_mix__read(const kvm_site *s, const kvm_step *step, kvm_tensor h,
                                  kvm_tensor x, kvm_err *err);

#endif
