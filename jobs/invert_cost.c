/* invert_cost.c - what reading tokens back out of rows takes. */
#include "jobs/cost.h"

kvm_status kvm_cost_invert(kvm_planner *a, const kvm_node *n, kvm_cost *c, kvm_err *err)
{
    (void)n, (void)err;
    const double held = a->p->rows * a->p->held / 2;
    const kvm_model *const models[] = {a->source, a->target};
    kvm_cost all = {.seconds =
                        (kvm_plan__invert_flops(a->pair.source, a->source, held) +
                         kvm_plan__invert_flops(a->pair.target, a->target, held)) /
                        a->p->rates->flops};
    for (int i = 0; i < 2; i++) {
        const kvm_model_info *m = kvm_model_info_of(models[i]);
        all.memory += (double)m->weight_bytes + 8 * (double)(m->vocab * m->hidden);
    }
    *c = all;
    return KVM_OK;
}
