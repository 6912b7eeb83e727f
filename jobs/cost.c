#include "jobs/cost.h"

double kvm_cost__number(const kvm_node *n, const char *key, double fallback)
{
    const json_t *v = json_object_get(n->params, key);
    return json_is_number(v) ? json_number_value(v) : fallback;
}

kvm_str kvm_cost__text(const kvm_node *n, const char *key)
{
    const json_t *v = json_object_get(n->params, key);
    return (kvm_str){json_string_value(v), (ptrdiff_t)json_string_length(v)};
}

double kvm_cost__call_s(const kvm_planner *a, const kvm_model *m, double context,
                        double tokens, double logits)
{
    const kvm_model_info *i = kvm_model_info_of(m);
    const double flops =
        kvm_forward_flops(i, context, tokens) + logits * i->flops_per_logits;
    return flops / a->p->rates->flops + (double)i->weight_bytes / a->p->rates->bytes;
}

double kvm_cost__apply_flops(const kvm_planner *a)
{
    return kvm_plan__apply_flops(&a->pair, a->target, a->k);
}

double kvm_cost__switch_flops(const kvm_planner *a, double tokens)
{
    return tokens * kvm_cost__apply_flops(a) + kvm_plan__prompt_flops(&a->pair);
}

double kvm_cost__weights_bytes(const kvm_planner *a)
{
    return (double)(kvm_model_info_of(a->source)->weight_bytes +
                    kvm_model_info_of(a->target)->weight_bytes) +
           2 * kvm_cost__apply_flops(a);
}

double kvm_cost__map_bytes(const kvm_node *n, double parameters)
{
    return parameters *
           (kvm_str_eq(kvm_cost__text(n, "dtype"), KVM_STR("bf16")) ? 2 : 4);
}

kvm_status kvm_cost__items(kvm_planner *a, const kvm_node *n, const kvm_items **out,
                           kvm_err *err)
{
    const kvm_str path = kvm_cost__text(n, "suite_path");
    const int64_t wanted = (int64_t)kvm_cost__number(n, "items", 0);
    const ptrdiff_t turns = (ptrdiff_t)kvm_cost__number(n, "turns", KVM_TURNS);
    kvm_suite *s;
    for (ptrdiff_t i = 0; i < a->suite_count; i++)
        if (kvm_str_eq(a->suites[i].path, path) && a->suites[i].wanted == wanted &&
            a->suites[i].items.suite->turns == turns) {
            *out = &a->suites[i].items;
            return KVM_OK;
        }
    if (a->suite_count == KVM_PLAN_SUITES)
        return kvm_fail(err, KVM_RANGE, "more than %d suites", KVM_PLAN_SUITES);
    kvm_suite_items *new = &a->suites[a->suite_count];
    *new = (kvm_suite_items){.path = path, .wanted = wanted};
    TRY(kvm_suite_read(&s, a->p->keep, path, err));
    s->turns = turns;
    TRY(kvm_items_read(&new->items, a->p->keep, s, (ptrdiff_t)wanted,
                       kvm_model_tokenizer(a->target), err));
    a->suite_count++;
    *out = &new->items;
    return KVM_OK;
}
