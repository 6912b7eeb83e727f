/* rng.h - seeded random numbers, the same on every machine: xoshiro256++ seeded by
 * SplitMix64. Streams of one seed are independent: kvm_rng_seed(seed, stream). */
#ifndef KVM_BASE_RNG_H
#define KVM_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

typedef struct kvm_rng {
    uint64_t s[4];
} kvm_rng;
kvm_rng kvm_rng_seed(uint64_t seed, uint64_t stream);
uint64_t kvm_rng_u64(kvm_rng *r);
uint64_t kvm_rng_below(kvm_rng *r, uint64_t n); /* 0 .. n-1 without bias; n > 0 */
double kvm_rng_unit(kvm_rng *r);                /* [0, 1) */
double kvm_rng_normal(kvm_rng *r); /* mean 0, variance 1 (polar method, one per call) */
void kvm_rng_shuffle(kvm_rng *r, ptrdiff_t *index, ptrdiff_t n); /* Fisher-Yates */

#endif
