/* timing_cost.c - what timing a switch over lengths takes. */
#include <math.h>

#include "jobs/cost.h"

kvm_status kvm_cost_timing(kvm_planner *a, const kvm_node *n, kvm_cost *c, kvm_err *err)
{
    int64_t lengths[KVM_TIMING_LENGTHS];
    ptrdiff_t count;
    const kvm_jat params = {.v = n->params, .file = "", .path = "timing"};
    kvm_tails tails;
    TRY(kvm_timing_lengths(kvm_json_get(params, a->p->keep, "lengths"), a->p->keep,
                           lengths, &count, err));
    TRY(kvm_tails_read(&tails, params, a->p->keep, NULL, 0, err));
    const kvm_model_info *s = kvm_model_info_of(a->source),
                         *t = kvm_model_info_of(a->target);
    const double rounds = kvm_cost__number(n, "rounds", KVM_ROUNDS);
    *c = (kvm_cost){0};
    for (ptrdiff_t i = 0; i < count; i++) {
        const double length = (double)lengths[i];
        const double arms = 3 + 2 * (double)tails.n; /* calls of the target */
        const double round =
            (kvm_round_flops(t, kvm_cost__apply_flops(a), length) +
             kvm_tails_flops(t, kvm_cost__apply_flops(a), &tails, length)) /
                a->p->rates->flops +
            arms * (double)t->weight_bytes / a->p->rates->bytes;
        c->seconds +=
            kvm_cost__call_s(a, a->source, 0, length, 0) +
            round * (kvm_cost__number(n, "warmups", KVM_WARMUPS) +
                     kvm_rounds_within((ptrdiff_t)rounds,
                                       kvm_cost__number(n, "seconds", 0), round));
    }
    c->memory = kvm_cost__weights_bytes(a) +
                ((double)lengths[count - 1] + 1) *
                    (2 * (double)s->token_bytes + (double)t->token_bytes);
    return KVM_OK;
}
