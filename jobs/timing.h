/* timing.h - what a timing is asked for, and how much work that is: for the job, its
 * progress and a plan.
 *
 * Work is counted in flops of the models and the maps. That is an estimate of time,
 * good to a small factor: short prefixes are bound by memory. */
#ifndef KVM_JOBS_TIMING_H
#define KVM_JOBS_TIMING_H

#include "jobs/tails.h"
#include "models/model.h"

enum {
    KVM_TIMING_LENGTHS = 64,
    KVM_LEAST_ROUNDS = 3,
    KVM_ROUNDS = 10,
    KVM_WARMUPS = 2
};

/* kvm_timing_lengths - a list of ascending prefix lengths in tokens; absent: those
 * there are by default */
KVM_MUST kvm_status kvm_timing_lengths(kvm_jat list, kvm_arena *keep,
                                       int64_t lengths[KVM_TIMING_LENGTHS],
                                       ptrdiff_t *n, kvm_err *err);
/* of a forward over tokens behind `context` cached ones: matrices, and 4 D flops per
 * query head, layer and visible key */
double kvm_forward_flops(const kvm_model_info *i, double context, double tokens);
double kvm_prefill_flops(const kvm_model_info *i, double tokens);
/* of one more token behind `tokens`, with its logits */
double kvm_decode_flops(const kvm_model_info *i, double tokens);
/* both arms once: a prefill of the target, a translation of apply_flops a token, and a
 * first decode in either */
double kvm_round_flops(const kvm_model_info *target, double apply_flops, double tokens);
/* what a round takes more with arms that read a tail themselves: each a shorter
 * translation, a forward behind it and a first decode */
double kvm_tails_flops(const kvm_model_info *target, double apply_flops,
                       const kvm_tails *tails, double tokens);
/* how many of `rounds` that take each_s begin within budget_s; 0: not limited, not
 * known */
double kvm_rounds_within(ptrdiff_t rounds, double budget_s, double each_s);

#endif
