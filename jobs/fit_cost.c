/* fit_cost.c - what solving the maps takes. */
#include <math.h>

#include "jobs/cost.h"

static double layers_of_map(const kvm_planner *a, const kvm_node *n)
{
    const double layers = (double)kvm_model_info_of(a->source)->layers;
    return fmin(layers,
                kvm_cost__number(n, "k", kvm_cost__number(n, "k_most", layers)));
}

kvm_status kvm_cost_fit(kvm_planner *a, const kvm_node *n, kvm_cost *c, kvm_err *err)
{
    (void)err;
    const bool full = !json_is_false(json_object_get(n->params, "sweep"));
    const double k = layers_of_map(a, n),
                 layers = (double)kvm_model_info_of(a->source)->layers;
    const double wide = k * kvm_plan__features(a->source, KVM_OBJECT_K) / layers;
    const double sequences = a->p->sequences, held = a->p->held / 2 * sequences;
    const double flops =
        kvm_plan__fit_flops(&a->pair, full ? kvm_cost__number(n, "k_most", layers) : k,
                            full) +
        kvm_plan__states_flops(&a->pair, sequences - 2 * held, held);
    *c = (kvm_cost){2 * flops / a->p->rates->flops, /* fp64 */
                    kvm_cost__map_bytes(n, kvm_plan__parameters(&a->pair, k)),
                    kvm_plan__moment_bytes(a->source, a->source, true) +
                        kvm_plan__moment_bytes(a->source, a->target, false) +
                        3 * 8 * wide * wide};
    return KVM_OK;
}
