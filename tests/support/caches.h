/* caches.h - models for tests, and how far two caches of one are apart. On any failure
 * the test fails. */
#ifndef KVM_TESTS_SUPPORT_CACHES_H
#define KVM_TESTS_SUPPORT_CACHES_H

#include "models/model.h"

/* without its tokenizer, which few of the small ones have */
kvm_model *open_model(kvm_arena *keep, kvm_compute *c, const char *path);

/* largest difference of an object over the largest number of it; both caches are of one
 * length */
float object_differs(kvm_arena scratch, const kvm_model *m, ptrdiff_t object,
                     const kvm_cache *a, const kvm_cache *b);
/* of the worst object */
float caches_differ(kvm_arena scratch, const kvm_model *m, const kvm_cache *a,
                    const kvm_cache *b);
/* what each cache says of the n tokens that follow, which both then hold: largest
 * difference of the logits */
float logits_differ(kvm_arena scratch, kvm_model *m, kvm_cache *a, kvm_cache *b,
                    const int32_t *ids, ptrdiff_t n);

#endif
