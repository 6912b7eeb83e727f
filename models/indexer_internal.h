/* indexer_internal.h - an indexer from the inside: for indexer.c and indexer_back.c. */
#ifndef KVM_MODELS_INDEXER_INTERNAL_H
#define KVM_MODELS_INDEXER_INTERNAL_H

#include <math.h>

#include "models/indexer.h"

#define KVM_INDEX_NORM_EPS 1e-6

struct kvm_indexer {
    ptrdiff_t layer, hidden, low;
    kvm_index_config size;
    kvm_rope rope;
    kvm_weight *q, *k, *w;       /* of blocks: q holds [q | k] */
    kvm_weight *gate;            /* of pools */
    float *places;               /* (block, dim) a of pools */
    float *norm, *norm_bias;     /* (dim) of keys */
    float *query_norm, *weights; /* (dim), (heads) ones: of blocks */
    double eps;
};

/* Qwen's blocks, whose keys are normed when they are scored */
static inline bool indexer_is_late(const kvm_index_config *c)
{
    return c->block > 1 && !c->pooled;
}

static inline double indexer_scale(const kvm_indexer *i)
{
    const ptrdiff_t heads = indexer_is_late(&i->size) ? 1 : i->size.heads;
    return 1 / sqrt((double)(i->size.dim * heads));
}

/* What queries are scored against: the cached keys, or blocks made of them, each once
 * while its tokens stand; those of tokens without keys are not made. */
KVM_MUST kvm_status kvm_indexer__units(const kvm_indexer *i, const kvm_step *s,
                                       ptrdiff_t object, kvm_tensor *units,
                                       kvm_arena temp, kvm_err *err);

#endif
