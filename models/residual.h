/* residual.h - what a layer takes from the residual and how it adds to it. Layers know
 * nothing of this.
 *
 * A site is the place of a layer in a block: a kind, which is a constant table like
 * that of layers, and what the kind loaded. The head's site is without a layer: the
 * residual ends there. Adding a kind is one file, with its equations on top, and one
 * row of residual_kinds.def; sizes of its own are read in config_residual.c. */
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

typedef struct kvm_site kvm_site;

typedef struct kvm_residual_kind {
    const char *name;
    /* the tensors of a site whose sizes stand */
    kvm_status (*load)(kvm_site *s, kvm_loader *ld, const kvm_site_weights *w,
                       ptrdiff_t index, kvm_err *err);
    /* bytes of scratch that n tokens take, those of the layer left out */
    size_t (*scratch)(const kvm_site *s, ptrdiff_t n);
    /* what the head is given: h (n, streams * hidden) -> x (n, hidden) */
    kvm_status (*read)(const kvm_site *s, const kvm_step *step, kvm_tensor h,
                       kvm_tensor x, kvm_err *err);
    /* h (T, streams * hidden): the last step->out rows take the layer's result, which
     * is given the last `rows` of them */
    kvm_status (*forward)(const kvm_site *s, const kvm_step *step, kvm_tensor h,
                          ptrdiff_t rows, kvm_err *err);
    /* The way back, all rows wanted, h as forward or read was given it: dh, the
     * gradient by h as forward left it -> by h as it found it; dx, that by what was
     * read -> dh, written. NULL: not there yet. */
    size_t (*backward_scratch)(const kvm_site *s, ptrdiff_t n);
    kvm_status (*backward)(const kvm_site *s, const kvm_step *step, kvm_tensor h,
                           kvm_tensor dh, kvm_err *err);
    kvm_status (*read_back)(const kvm_site *s, const kvm_step *step, kvm_tensor h,
                            kvm_tensor dx, kvm_tensor dh, kvm_err *err);
} kvm_residual_kind;

struct kvm_site {
    const kvm_residual_kind *kind;
    kvm_layer *layer; /* NULL: of the head, or a half that the block lacks */
    double eps;
    ptrdiff_t hidden, streams;
    float *norm; /* (hidden), or of all streams */
    void *own;   /* the kind's; NULL: it keeps nothing else */
};

#define X(NAME, name, what) extern const kvm_residual_kind kvm_residual_##name;
#include "models/residual_kinds.def"
#undef X
extern const kvm_residual_kind *const kvm_residual_kinds[]; /* by kvm_residual_id */

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

/* the way back through either (kvm_residual_kind) */
KVM_MUST kvm_status kvm_site_backward(const kvm_site *site, const kvm_step *step,
                                      kvm_tensor h, kvm_tensor dh, kvm_err *err);
KVM_MUST kvm_status kvm_site_read_back(const kvm_site *site, const kvm_step *step,
                                       kvm_tensor h, kvm_tensor dx, kvm_tensor dh,
                                       kvm_err *err);
/* for n tokens behind `first` */
size_t kvm_site_backward_scratch(const kvm_site *site, ptrdiff_t first, ptrdiff_t n);
/* y (T, hidden) = what the site's layer makes of x, once more; states stay as they are
 */
KVM_MUST kvm_status kvm_site__again(const kvm_site *site, const kvm_step *step,
                                    kvm_tensor x, kvm_tensor y, kvm_err *err);
/* the name of the kind that has no way back, of the residual or of the layer; NULL:
 * both have one */
const char *kvm_site_lacks_backward(const kvm_site *site);

#endif
