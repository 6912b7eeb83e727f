/* choose_cost.c - what choosing among fits takes. */
#include <math.h>

#include "jobs/cost.h"
#include "translators/distill.h"

/* Every lesson heard natively once, then by each candidate: the source reads its
 * prefix, the maps run over it, the target reads on. (Lengths as choose.c has them.) */
kvm_status kvm_cost_choose(kvm_planner *a, const kvm_node *n, kvm_cost *c, kvm_err *err)
{
    (void)err;
    const double candidates =
        (double)json_array_size(json_object_get(n->params, "titles"));
    const double tokens = kvm_cost__number(n, "tokens", 0),
                 after = fmin(64, tokens / 2);
    const double lessons =
        fmin(64, a->p->held * kvm_cost__number(n, "sequences", 0) / 2);
    const double prefix = tokens - after;
    const double reads = kvm_cost__call_s(a, a->target, prefix, after, after);
    const double maps = kvm_cost__switch_flops(a, prefix) / a->p->rates->flops;
    const ptrdiff_t vocab = kvm_model_info_of(a->target)->vocab;
    const double said =
        (double)kvm_said_numbers((ptrdiff_t)after, vocab, kvm_said_top(vocab, 0));
    *c = (kvm_cost){
        lessons * (kvm_cost__call_s(a, a->target, 0, prefix, 0) + reads) +
            candidates * lessons *
                (kvm_cost__call_s(a, a->source, 0, prefix, 0) + maps + reads),
        kvm_cost__map_bytes(n, kvm_plan__parameters(&a->pair, a->k)),
        kvm_cost__weights_bytes(a) + 4 * lessons * said};
    return KVM_OK;
}
