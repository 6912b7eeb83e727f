/* ngram.h - embeddings of the last few tokens, added to every stream of the residual
 * before a block (Qwen's per-layer embedding). Keeps the last inputs of its convolution
 * and the last tokens. */
#ifndef KVM_MODELS_NGRAM_H
#define KVM_MODELS_NGRAM_H

#include "models/layer.h"

typedef struct kvm_ngram kvm_ngram;

KVM_MUST kvm_status kvm_ngram_load(kvm_ngram **out, kvm_loader *ld, ptrdiff_t index,
                                   kvm_err *err);
/* 0 or 2 */
ptrdiff_t kvm_ngram_objects(const kvm_config *c, ptrdiff_t layer, kvm_object *out);
size_t kvm_ngram_scratch(const kvm_ngram *g, ptrdiff_t n);
/* h (T, streams * hidden) += the embeddings of the step's ids; `object` is its first */
KVM_MUST kvm_status kvm_ngram_forward(const kvm_ngram *g, const kvm_step *step,
                                      ptrdiff_t object, kvm_tensor h, kvm_err *err);
/* kvm_ngram_follow - what it keeps after `first` tokens (of none: all 0), its slots,
 * becomes that after n more. The gate is left out: the norm behind it takes a factor
 * away. */
KVM_MUST kvm_status kvm_ngram_follow(const kvm_ngram *g, kvm_compute *c,
                                     ptrdiff_t first, const int32_t *ids, ptrdiff_t n,
                                     const kvm_slot *slots, ptrdiff_t object,
                                     kvm_err *err);

/* dh: the gradient by h as forward left it -> by h as it found it; step->grads take
 * that by the window */
KVM_MUST kvm_status kvm_ngram_backward(const kvm_ngram *g, const kvm_step *step,
                                       ptrdiff_t object, kvm_tensor h, kvm_tensor dh,
                                       kvm_err *err);
size_t kvm_ngram_backward_scratch(const kvm_ngram *g, ptrdiff_t n);

#endif
