#include <math.h>

#include "jobs/timing.h"

static const int64_t default_lengths[] = {64,   128,  256,  512,   1024,
                                          2048, 4096, 8192, 16384, 32768};

kvm_status kvm_timing_lengths(kvm_jat list, kvm_arena *keep,
                              int64_t lengths[KVM_TIMING_LENGTHS], ptrdiff_t *n,
                              kvm_err *err)
{
    if (!kvm_json_has(list)) {
        *n = sizeof default_lengths / sizeof *default_lengths;
        for (ptrdiff_t i = 0; i < *n; i++) lengths[i] = default_lengths[i];
        return KVM_OK;
    }
    TRY(kvm_json_array(list, n, err));
    if (*n < 1 || *n > KVM_TIMING_LENGTHS)
        return kvm_json_fail(err, KVM_RANGE, list, "must name 1..%d prefix lengths",
                             KVM_TIMING_LENGTHS);
    for (ptrdiff_t i = 0; i < *n; i++) {
        const kvm_jat at = kvm_json_item(list, keep, i);
        TRY(kvm_json_i64(at, &lengths[i], err));
        if (lengths[i] < 1 || (i && lengths[i] <= lengths[i - 1]))
            return kvm_json_fail(err, KVM_RANGE, at,
                                 "is %lld: lengths must be positive and ascend",
                                 (long long)lengths[i]);
    }
    return KVM_OK;
}

double kvm_forward_flops(const kvm_model_info *i, double context, double tokens)
{
    const double visible = tokens * (context + tokens / 2);
    return i->flops_per_token * tokens +
           4.0 * (double)(i->layers * i->heads * i->head_dim) * visible;
}

double kvm_prefill_flops(const kvm_model_info *i, double tokens)
{
    return kvm_forward_flops(i, 0, tokens);
}

double kvm_decode_flops(const kvm_model_info *i, double tokens)
{
    return kvm_forward_flops(i, tokens, 1) + i->flops_per_logits;
}

double kvm_round_flops(const kvm_model_info *target, double apply_flops, double tokens)
{
    return kvm_prefill_flops(target, tokens) + apply_flops * tokens +
           2 * kvm_decode_flops(target, tokens);
}

double kvm_tails_flops(const kvm_model_info *target, double apply_flops,
                       const kvm_tails *tails, double tokens)
{
    double sum = 0;
    for (ptrdiff_t i = 0; i < tails->n; i++) {
        const double tail = tails->share[i] * tokens, head = tokens - tail;
        sum += apply_flops * head + kvm_forward_flops(target, head, tail) +
               kvm_decode_flops(target, tokens);
    }
    return sum;
}

double kvm_rounds_within(ptrdiff_t rounds, double budget_s, double each_s)
{
    if (budget_s <= 0 || each_s <= 0) return (double)rounds;
    const double n = floor(budget_s / each_s) + 1;
    return fmin((double)rounds, fmax(n, KVM_LEAST_ROUNDS));
}
