/* capture_cost.c - what a capture takes: a forward over the text, and rows written. */
#include "jobs/cost.h"

kvm_status kvm_cost_capture(kvm_planner *a, const kvm_node *n, kvm_cost *c,
                            kvm_err *err)
{
    (void)err;
    const bool first =
        kvm_str_eq(kvm_cost__text(n, "model_path"), a->p->spec->source_path);
    const kvm_model *m = first ? a->p->source : a->p->target;
    const double tokens = kvm_cost__number(n, "tokens", 0);
    const double bytes = kvm_plan__capture_bytes(
        json_object_get(n->params, "rows"),
        m == a->source ? a->pair.source : a->pair.target, a->p->rows,
        kvm_cost__number(n, "sequences", 0), a->p->row_bytes);
    *c = (kvm_cost){kvm_cost__number(n, "sequences", 0) *
                            kvm_cost__call_s(a, m, 0, tokens, 0) +
                        bytes / a->p->rates->bytes,
                    bytes,
                    (double)kvm_model_info_of(m)->weight_bytes +
                        tokens * (double)kvm_model_info_of(m)->token_bytes};
    return KVM_OK;
}
