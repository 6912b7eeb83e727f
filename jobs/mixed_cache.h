/* mixed_cache.h - a target's cache put together out of others, object by object.
 *
 * What is taken from a cache is copied as an engine keeps it, into a cache that is
 * being injected; the cache that it is taken from is read and never continued. */
#ifndef KVM_JOBS_MIXED_CACHE_H
#define KVM_JOBS_MIXED_CACHE_H

#include "models/model.h"

/* The kinds of things that a cache holds, for taking it apart. X(NAME, "key",
 * "title") */
#define KVM_CACHE_PARTS(X)                                                             \
    X(ATTENTION, "attention", "attention") /* keys, values, latents */                 \
    X(STATES, "states", "states")          /* all that is kept once per prompt */      \
    X(INDEXERS, "indexers", "index keys")  /* by which tokens are chosen */
typedef enum kvm_cache_part {
#define X(NAME, key, title) KVM_PART_##NAME,
    KVM_CACHE_PARTS(X)
#undef X
        KVM_PART_COUNT
} kvm_cache_part;
kvm_cache_part kvm_cache_part_of(const kvm_object *o);

/* kvm_mix_room - *rows: scratch for the largest object of both models (b: NULL or
 * another one) at so many tokens */
KVM_MUST kvm_status kvm_mix_room(float **rows, kvm_arena *keep, const kvm_model *a,
                                 const kvm_model *b, ptrdiff_t tokens, kvm_err *err);

/* Where an object comes from. */
typedef struct kvm_mix_source {
    const kvm_cache *cache; /* NULL: zeros */
    ptrdiff_t object;       /* of that cache's model, of the same shape */
} kvm_mix_source;

/* kvm_mix_object - one object of m into the cache `to` that n tokens are announced of
 * (kvm_inject_begin); rows: kvm_mix_room */
KVM_MUST kvm_status kvm_mix_object(kvm_cache *to, const kvm_model *m, ptrdiff_t object,
                                   kvm_mix_source from, ptrdiff_t n, float *rows,
                                   kvm_err *err);

#endif
