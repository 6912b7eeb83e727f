/* distill_cost.c - what a distillation takes. */
#include <math.h>

#include "jobs/cost.h"
#include "translators/distill.h"

/* Every lesson read by both models once; then for each lesson of a batch the maps
 * forward and back, the target over the continuation forward (twice: the tape makes
 * activations anew) and back, and the validations. Attention to the prefix counts in
 * both ways. */
kvm_status kvm_cost_distill(kvm_planner *a, const kvm_node *n, kvm_cost *c,
                            kvm_err *err)
{
    (void)err;
    const double steps = kvm_cost__number(n, "steps", 400),
                 batch = kvm_cost__number(n, "batch", 8);
    const double after = kvm_cost__number(n, "after", 64),
                 tokens = kvm_cost__number(n, "tokens", 0);
    const double all = kvm_cost__number(n, "sequences", 0),
                 most = kvm_cost__number(n, "lessons", 0);
    const double fits = all * (1 - a->p->held), holds = a->p->held * all / 2;
    const double held = most > 0 ? fmin(most, holds) : holds;
    const double asked =
        kvm_cost__number(n, "prefix", 0); /* 0: all before what follows */
    const double prefix = asked > 0 ? fmin(tokens - after, asked) : tokens - after;
    const double each = kvm_cost__call_s(a, a->target, prefix, after, after);
    const double maps = kvm_cost__switch_flops(a, prefix) / a->p->rates->flops;
    const double validations = steps / kvm_cost__number(n, "validate", 50) + 1;
    const double lessons = (most > 0 ? fmin(most, fits) : fits) + held;
    const ptrdiff_t vocab = kvm_model_info_of(a->target)->vocab;
    const double lesson_bytes =
        4 * (prefix * kvm_plan__row_width(a->source) +
             (double)kvm_said_numbers(
                 (ptrdiff_t)after, vocab,
                 kvm_said_top(vocab, (ptrdiff_t)kvm_cost__number(n, "native_top", 0))));
    const double parameters = kvm_plan__parameters(&a->pair, a->k);
    *c = (kvm_cost){
        lessons * (kvm_cost__call_s(a, a->source, 0, prefix, 0) +
                   kvm_cost__call_s(a, a->target, 0, prefix + after, after)) +
            steps * batch * (3 * maps + 4 * each) + validations * held * (maps + each),
        kvm_cost__map_bytes(n, parameters) + 16 * parameters,
        kvm_cost__weights_bytes(a) + lessons * lesson_bytes + 20 * parameters +
            (double)kvm_distill_bytes(a->source, a->target, (ptrdiff_t)prefix,
                                      (ptrdiff_t)after)};
    return KVM_OK;
}
