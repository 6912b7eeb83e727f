/* analyse_caches.h - the caches that an analysis compares, for one prefix.
 *
 *   swap   the target's own objects in the translated cache: one layer's, one kind's
 *          (mixed_cache.h), all, which must be the native cache again, or all but index
 *          keys: what these alone lose
 *   split  one kind of the translated objects, the others empty; nothing at all
 *   tail   the first part of the prefix translated, the last share r of it read by the
 *          target itself (r of 0: the translated cache)
 *
 * Those come after the native and the translated cache. Kinds that a target does not
 * keep bring no caches, nor do splits that would be whole. */
#ifndef KVM_JOBS_ANALYSE_CACHES_H
#define KVM_JOBS_ANALYSE_CACHES_H

#include "base/json.h"

#include "jobs/arm_caches.h"
#include "jobs/mixed_cache.h"
#include "jobs/tails.h"

enum { KVM_ANALYSE_NATIVE, KVM_ANALYSE_TRANSLATED };

typedef enum kvm_origin {
    KVM_FROM_TRANSLATED,
    KVM_FROM_NATIVE,
    KVM_FROM_NOTHING
} kvm_origin;

typedef struct kvm_analyse_cache {
    kvm_str name;                    /* in scores: "layer.3" */
    kvm_str title;                   /* for people: "layer 3 native" */
    const char *group;               /* "swap"; "": native and translated */
    kvm_origin part[KVM_PART_COUNT]; /* where objects of each kind come from, */
    ptrdiff_t layer;                 /* but for those of this layer: native; -1: none */
    double tail;                     /* > 0: a tail, the above is not looked at */
    bool chooses; /* what indexers choose on it is compared (jobs/selection.h) */
} kvm_analyse_cache;

typedef struct kvm_analyse_caches {
    kvm_arm_caches arms;
    kvm_arm by;               /* the translator */
    kvm_cache *translated;    /* read only once filled */
    kvm_analyse_cache *cache; /* (count) */
    ptrdiff_t count;
} kvm_analyse_caches;

/* capacity: as kvm_arm_caches_new. t, models: borrowed */
KVM_MUST kvm_status kvm_analyse_caches_new(kvm_analyse_caches *a, kvm_arena *keep,
                                           const kvm_translator *t, kvm_arm by,
                                           kvm_model *source, kvm_model *target,
                                           const kvm_tails *tails, ptrdiff_t capacity,
                                           kvm_err *err);
/* kvm_analyse_prefill - both models read the prefix, and it is translated */
KVM_MUST kvm_status kvm_analyse_prefill(kvm_analyse_caches *a, const int32_t *ids,
                                        ptrdiff_t n, kvm_err *err);
/* kvm_analyse_fill - the target's working cache as cache k says; of the prefix that was
 * prefilled, any number of times */
KVM_MUST kvm_status kvm_analyse_fill(kvm_analyse_caches *a, ptrdiff_t k,
                                     kvm_cache **cache, kvm_err *err);
/* all but the first two, as figures say them; a new reference */
json_t *kvm_analyse_caches_json(const kvm_analyse_caches *a);

#endif
