/* answer.h - a model answers what it has read: greedily, until it ends itself, a stop
 * string of the item or a limit. */
#ifndef KVM_JOBS_ANSWER_H
#define KVM_JOBS_ANSWER_H

#include "jobs/suite.h"
#include "models/model.h"

typedef struct kvm_answer {
    kvm_str text;       /* before the first stop string */
    const int32_t *ids; /* (n) all that was generated */
    ptrdiff_t n;
    ptrdiff_t kept; /* so many of them lie before the stop string, whole */
} kvm_answer;

/* kvm_answer_now - at most `most` tokens behind what the cache holds, of which the last
 * token's logits (V) are given; the cache then holds all n of them. Text and ids lie in
 * keep. KVM_RANGE when the cache is full first. */
KVM_MUST kvm_status kvm_answer_now(kvm_answer *a, kvm_arena *keep, kvm_model *m,
                                   kvm_cache *c, const float *logits,
                                   const kvm_item *item, ptrdiff_t most, kvm_err *err);

#endif
