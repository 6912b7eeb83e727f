/* analyse_cost.c - what an analysis of a suite takes. */
#include <math.h>

#include "jobs/analyse_caches.h"
#include "jobs/cost.h"

/* Every cache put together is scored; of the tails the source reads the head again, and
 * the target the rest. */
kvm_status kvm_cost_analyse(kvm_planner *a, const kvm_node *n, kvm_cost *c,
                            kvm_err *err)
{
    enum { SPLITS = 3, SWAPS = KVM_PART_COUNT + 1 };
    const kvm_items *it;
    double longest = 0;
    kvm_tails tails;
    const kvm_jat params = {.v = n->params, .file = "", .path = "analyse"};
    const kvm_model_info *s = kvm_model_info_of(a->source),
                         *t = kvm_model_info_of(a->target);
    TRY(kvm_cost__items(a, n, &it, err));
    TRY(kvm_tails_read(&tails, params, a->p->keep, kvm_default_tails, KVM_DEFAULT_TAILS,
                       err));
    const double caches = 2 + (double)t->layers + SWAPS + SPLITS + (double)tails.n;
    *c = (kvm_cost){0};
    for (ptrdiff_t i = 0; i < it->n; i++) {
        const kvm_item_ids *ids = &it->ids[i];
        const double prefix = (double)ids->prefix_n;
        c->seconds += kvm_cost__item_s(a, it->suite, ids, caches, 1, true);
        for (ptrdiff_t k = 0; k < tails.n; k++) {
            const double head = prefix * (1 - tails.share[k]);
            c->seconds += kvm_cost__call_s(a, a->source, 0, head, 0) +
                          head * kvm_cost__apply_flops(a) / a->p->rates->flops +
                          kvm_cost__call_s(a, a->target, head, prefix - head, 0);
        }
        longest = fmax(longest, prefix + (double)ids->longest);
    }
    c->memory = kvm_cost__weights_bytes(a) +
                longest * (2 * (double)s->token_bytes + 3 * (double)t->token_bytes);
    return KVM_OK;
}
