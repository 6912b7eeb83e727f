/* evaluate_cost.c - what scoring a suite takes. */
#include <math.h>

#include "jobs/cost.h"

/* what follows the prefix, on one cache; a generated answer may end sooner */
static double score_s(const kvm_planner *a, const kvm_suite *s, const kvm_item_ids *ids,
                      const kvm_model *m)
{
    const double prefix = (double)ids->prefix_n;
    double seconds = kvm_cost__call_s(a, m, prefix, (double)ids->feed_n, 1);
    for (ptrdiff_t i = 0; i < ids->after_count; i++)
        seconds += kvm_cost__call_s(a, m, prefix, (double)ids->after_n[i],
                                    (double)ids->after_n[i]);
    if (s->kind == KVM_SUITE_GENERATION || s->kind == KVM_SUITE_NEEDLE)
        seconds += (double)s->max_new_tokens * kvm_cost__call_s(a, m, prefix, 1, 1);
    return seconds;
}

double kvm_cost__item_s(const kvm_planner *a, const kvm_suite *s,
                        const kvm_item_ids *ids, double arms, double maps, bool alone)
{
    const double n = (double)ids->prefix_n;
    double seconds = 2 * kvm_cost__call_s(a, a->source, 0, n, 0) +
                     kvm_cost__call_s(a, a->target, 0, n, 0);
    if (!alone) seconds += score_s(a, s, ids, a->source);
    return seconds + arms * score_s(a, s, ids, a->target) +
           maps * n * kvm_cost__apply_flops(a) / a->p->rates->flops;
}

/* the prefix read again, and the target's attention on each translator's rows */
static double attention_s(const kvm_planner *a, const kvm_item_ids *ids, double maps)
{
    const double n = (double)ids->prefix_n;
    const kvm_model_info *t = kvm_model_info_of(a->target);
    const double attention =
        kvm_prefill_flops(t, n) - t->flops_per_token * n + n * kvm_cost__apply_flops(a);
    return 2 * kvm_cost__call_s(a, a->source, 0, n, 0) +
           2 * kvm_cost__call_s(a, a->target, 0, n, 0) +
           maps * 2 * attention / a->p->rates->flops;
}

kvm_status kvm_cost_evaluate(kvm_planner *a, const kvm_node *n, kvm_cost *c,
                             kvm_err *err)
{
    const kvm_items *it;
    TRY(kvm_cost__items(a, n, &it, err));
    const bool alone = json_object_get(n->params, "arms"); /* an ablation: two arms */
    const double translators = (double)n->input_count;
    const double maps = alone ? 1 : translators + 1; /* also of the wrong donor */
    const double arms = alone ? 2 : 4 + maps;
    const double attention = kvm_cost__number(n, "attention_items", 0);
    double longest = 0;
    *c = (kvm_cost){0};
    for (ptrdiff_t i = 0; i < it->n; i++) {
        c->seconds += kvm_cost__item_s(a, it->suite, &it->ids[i], arms, maps, alone);
        if ((double)i < attention)
            c->seconds += attention_s(a, &it->ids[i], translators);
        longest = fmax(longest, (double)(it->ids[i].prefix_n + it->ids[i].longest));
    }
    const kvm_model_info *s = kvm_model_info_of(a->source),
                         *t = kvm_model_info_of(a->target);
    c->memory = kvm_cost__weights_bytes(a) +
                longest * (3 * (double)s->token_bytes + 2 * (double)t->token_bytes);
    return KVM_OK;
}
