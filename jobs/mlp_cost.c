/* mlp_cost.c - what training MLP maps takes. */
#include <math.h>

#include "jobs/cost.h"
#include "translators/mlp.h"

kvm_status kvm_cost_mlp(kvm_planner *a, const kvm_node *n, kvm_cost *c, kvm_err *err)
{
    (void)err;
    static const kvm_object_kind kinds[] = {KVM_OBJECT_K, KVM_OBJECT_V};
    const double hidden = kvm_cost__number(n, "hidden", 1024),
                 epochs = kvm_cost__number(n, "epochs", 20);
    const double rows = a->p->rows * (1 - a->p->held);
    const double targets = (double)kvm_model_info_of(a->target)->layers;
    const bool per_head = json_is_true(json_object_get(n->params, "per_head"));
    const double heads = per_head ? (double)kvm_model_info_of(a->target)->kv_heads : 1;
    kvm_cost all = {0};
    for (int i = 0; i < 2; i++) {
        const double in = a->k * kvm_plan__features(a->source, kinds[i]) /
                          (double)kvm_model_info_of(a->source)->layers;
        const double out = kvm_plan__features(a->target, kinds[i]) / targets;
        const double each = heads * hidden * (in + hidden + out / heads);
        /* forward, and both halves of backward; at the end R2 over all rows */
        all.seconds +=
            targets * each * 2 * (3 * rows * epochs + a->p->rows) / a->p->rates->flops;
        all.bytes += kvm_cost__map_bytes(n, targets * each);
        all.memory =
            fmax(all.memory,
                 (double)kvm_mlp_bytes(
                     (ptrdiff_t)in, (ptrdiff_t)out, (ptrdiff_t)heads, (ptrdiff_t)rows,
                     &(kvm_mlp_options){
                         .hidden = (ptrdiff_t)hidden,
                         .batch = (ptrdiff_t)kvm_cost__number(n, "batch", 0)}));
    }
    *c = all;
    return KVM_OK;
}
