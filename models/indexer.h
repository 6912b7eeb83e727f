/* indexer.h - which cached tokens an attention layer looks at, where it does not look
 * at all: the lightning indexer of DeepSeek-V3.2 and GLM-5 (DSA), that over pools of
 * tokens of GLM-5.3-Flash, and the block indexer of Qwen3.8-Flash-Next (QSA). */
#ifndef KVM_MODELS_INDEXER_H
#define KVM_MODELS_INDEXER_H

#include "models/layer.h"

typedef struct kvm_indexer kvm_indexer;

/* *out NULL where the config lets the layer share the choice of one before it */
KVM_MUST kvm_status kvm_indexer_load(kvm_indexer **out, kvm_loader *ld, ptrdiff_t layer,
                                     kvm_err *err);
/* what it keeps: nothing, keys, or keys and gates */
ptrdiff_t kvm_indexer_objects(const kvm_config *c, ptrdiff_t layer,
                              const kvm_rope *rope, kvm_object *out);
size_t kvm_indexer_scratch(const kvm_indexer *i, ptrdiff_t n);

/* kvm_indexer_choose - x (T,hidden), low (T, query_rank) its normed query latent (not
 * read where blocks are chosen):
 * keys of all T tokens go to the cache (object, and the next for gates) and the
 * capture; for the last `out` tokens step->choice is filled. */
KVM_MUST kvm_status kvm_indexer_choose(const kvm_indexer *i, const kvm_step *step,
                                       ptrdiff_t object, kvm_tensor x, kvm_tensor low,
                                       kvm_err *err);
/* ---- a loss on its scores ---- */

ptrdiff_t kvm_indexer_heads(const kvm_indexer *i);
/* scores (n, units) of the step's queries, which it asked, against the cached keys, or
 * what is made of whole blocks of them */
KVM_MUST kvm_status kvm_indexer_scores(const kvm_indexer *i, const kvm_step *step,
                                       ptrdiff_t object, const kvm_asked *asked,
                                       kvm_tensor scores, kvm_err *err);
/* step->grads of tokens before the step += the gradient by keys (and gates), given that
 * by the scores */
KVM_MUST kvm_status kvm_indexer_scores_back(const kvm_indexer *i, const kvm_step *step,
                                            ptrdiff_t object, const kvm_asked *asked,
                                            kvm_tensor dscores, kvm_err *err);
size_t kvm_indexer_scores_scratch(const kvm_indexer *i, ptrdiff_t tokens);
KVM_MUST kvm_status kvm_indexer_pull(const kvm_indexer *i, ptrdiff_t which,
                                     kvm_compute *c, int point, const int32_t *pos,
                                     ptrdiff_t n, const float *rows, float *grad,
                                     kvm_err *err);

/* rows of its first (0) or second object from a point to 3 and back, as
 * kvm_layer_kind's */
KVM_MUST kvm_status kvm_indexer_advance(const kvm_indexer *i, ptrdiff_t which,
                                        kvm_compute *c, int point, const int32_t *pos,
                                        ptrdiff_t n, float *rows, kvm_err *err);
KVM_MUST kvm_status kvm_indexer_retreat(const kvm_indexer *i, ptrdiff_t which,
                                        kvm_compute *c, int point, const int32_t *pos,
                                        ptrdiff_t n, float *rows, kvm_err *err);

#endif
