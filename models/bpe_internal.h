/* bpe_internal.h - what bpe.c (tables) and bpe_encode.c (merging) share. */
#ifndef KVM_MODELS_BPE_INTERNAL_H
#define KVM_MODELS_BPE_INTERNAL_H

#include "models/bpe.h"

uint64_t kvm_bpe__hash(kvm_str s);
int32_t kvm_bpe__find_raw(const kvm_bpe *b, kvm_str raw); /* -1: none */

static inline uint64_t kvm_bpe__key(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* the row of a pair of symbols, or the empty row (key all ones) where it belongs */
static inline kvm_bpe_pair *kvm_bpe__pair(const kvm_bpe *b, int32_t left, int32_t right)
{
    const uint64_t key = kvm_bpe__key(left, right);
    const uint64_t mixed = key * 0x9E3779B97F4A7C15u;
    uint64_t at = (mixed ^ mixed >> 32) & b->pair_mask;
    while (b->pairs[at].key != key && b->pairs[at].key != UINT64_MAX)
        at = (at + 1) & b->pair_mask;
    return &b->pairs[at];
}

#endif
