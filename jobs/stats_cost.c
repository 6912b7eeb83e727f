/* stats_cost.c - what moments take. */
#include <math.h>

#include "jobs/cost.h"

/* the shapes of a stats node's input i */
static const kvm_shapes *captured_of(const kvm_planner *a, const kvm_node *n,
                                     ptrdiff_t i)
{
    const kvm_node *capture = &a->graph->nodes[n->inputs[i].node];
    const char *model = kvm_model_info_of(a->source)->fingerprint;
    return kvm_str_eq(kvm_cost__text(capture, "model"), kvm_str_of(model))
               ? a->pair.source
               : a->pair.target;
}

kvm_status kvm_cost_stats(kvm_planner *a, const kvm_node *n, kvm_cost *c, kvm_err *err)
{
    (void)err;
    const bool gram = n->input_count == 1;
    const double flops = kvm_plan__blocks_flops(
        json_object_get(n->params, "blocks"), captured_of(a, n, 0),
        gram ? NULL : captured_of(a, n, 1), a->p->rows);
    const double bytes = flops / a->p->rows * KVM_SPLITS * sizeof(double) / 2;
    *c = (kvm_cost){flops / a->p->rates->flops, bytes,
                    fmin(bytes, (double)((size_t)1 << 30))};
    return KVM_OK;
}
