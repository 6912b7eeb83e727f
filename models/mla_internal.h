/* mla_internal.h - latent attention from the inside: for mla.c and mla_back.c. */
#ifndef KVM_MODELS_MLA_INTERNAL_H
#define KVM_MODELS_MLA_INTERNAL_H

#include "models/indexer.h"

typedef struct mla {
    kvm_layer base;
    ptrdiff_t heads, context;
    kvm_mla_config size;
    double inner_eps, scale;
    kvm_rope rope;
    float *q_norm, *kv_norm; /* (query_rank), NULL without one; (rank) */
    kvm_weight *q_a, *q, *kv_a, *o;
    kvm_weight **k, **v; /* (heads) Wk_h (nope, rank), Wv_h (value, rank) */
    kvm_weight **kt;     /* (heads) Wk_h transposed (rank, nope) */
    bool chooses;        /* attends to some tokens only */
    kvm_indexer *index;  /* NULL: none, or the choice of a layer before is shared */
} mla;

/* then the indexer's; a key without a rotary part has no such object */
enum { OBJECT_LATENT, OBJECT_ROTARY };
static inline ptrdiff_t mla_index_object(const kvm_mla_config *m)
{
    return m->rope > 0 ? 2 : 1;
}

/* entries of a head's key, of a cached row, of a token's queries and outputs */
static inline ptrdiff_t mla_key_size(const mla *a)
{
    return a->size.nope + a->size.rope;
}
static inline ptrdiff_t mla_row_size(const mla *a)
{
    return a->size.rank + a->size.rope;
}

static inline const mla *mla_of(const kvm_layer *l)
{
    return (const mla *)(const void *)l;
}

/* *x (n,hidden) becomes what queries are projected from: its query latent, if there is
 * one */
KVM_MUST kvm_status kvm_mla__lower(const mla *a, const kvm_step *s, kvm_tensor *x,
                                   kvm_arena *temp, kvm_err *err);
/* x (n, hidden or query_rank) at pos -> q (n, heads*(nope+rope)), rotated */
KVM_MUST kvm_status kvm_mla__ask(const mla *a, const kvm_step *s, kvm_tensor x,
                                 const int32_t *pos, kvm_tensor q, kvm_err *err);
/* q (n, heads * (nope + rope)) -> wide (n, heads * (rank + rope)), asked of [l | p] */
KVM_MUST kvm_status kvm_mla__absorb(const mla *a, const kvm_step *s, kvm_tensor q,
                                    kvm_tensor wide, kvm_err *err);
/* n columns from .. of heads that are `apart` wide, to others of the same rows */
void kvm_mla__copy_heads(const mla *a, kvm_tensor to, ptrdiff_t at, ptrdiff_t apart,
                         kvm_tensor from, ptrdiff_t from_at, ptrdiff_t from_apart,
                         ptrdiff_t n);
/* the cached rows [l | p] of all tokens up to the step's end */
kvm_tensor kvm_mla__cached(const mla *a, const kvm_step *s);

/* of the kind's table (models/mla_back.c) */
size_t kvm_mla__backward_scratch(const kvm_layer *l, ptrdiff_t first, ptrdiff_t n);
KVM_MUST kvm_status kvm_mla__backward(const kvm_layer *l, const kvm_step *s,
                                      kvm_tensor x, kvm_tensor dy, kvm_tensor dx,
                                      kvm_err *err);
KVM_MUST kvm_status kvm_mla__pull(const kvm_layer *l, kvm_compute *c, ptrdiff_t which,
                                  int point, const int32_t *pos, ptrdiff_t n,
                                  const float *rows, float *grad, kvm_err *err);

#endif
