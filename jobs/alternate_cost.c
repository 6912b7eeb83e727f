/* alternate_cost.c - what conversations in turns take. */
#include "jobs/alternate.h"
#include "jobs/cost.h"

/* Of one turn: what catching up takes in each condition, the history read once more for
 * the reference of those that translate, question and answer, which is read again. */
static double turn_s(const kvm_planner *a, const kvm_model *m, double history,
                     double news, double question, double most)
{
    const double map = kvm_cost__apply_flops(a) / a->p->rates->flops;
    const double reread = kvm_cost__call_s(a, m, 0, history, 0);
    const double talk = kvm_cost__call_s(a, m, history, question, 1) +
                        most * kvm_cost__call_s(a, m, history, 1, 1) +
                        kvm_cost__call_s(a, m, history, most, 0);
    const double translated = 2 * news * map + history * map;
    const double references =
        3 * (reread + kvm_cost__call_s(a, m, history, question, 1));
    return reread + translated + references + KVM_CONDITION_COUNT * talk;
}

kvm_status kvm_cost_alternate(kvm_planner *a, const kvm_node *n, kvm_cost *c,
                              kvm_err *err)
{
    const kvm_items *it;
    const kvm_model_info *s = kvm_model_info_of(a->source),
                         *t = kvm_model_info_of(a->target);
    TRY(kvm_cost__items(a, n, &it, err));
    const double most = (double)it->suite->max_new_tokens;
    *c = (kvm_cost){0};
    for (ptrdiff_t i = 0; i < it->n; i++) {
        const kvm_item_ids *ids = &it->ids[i];
        double history = (double)ids->prefix_n, news = history;
        for (ptrdiff_t k = 0; k <= ids->after_count; k++) {
            const double question = (double)(k ? ids->after_n[k - 1] : ids->feed_n);
            c->seconds +=
                turn_s(a, k % 2 ? a->target : a->source, history, news, question, most);
            news = question + most;
            history += news;
        }
    }
    c->memory = kvm_cost__weights_bytes(a) + 2 * kvm_cost__apply_flops(a) +
                2 * (double)it->longest * (double)(s->token_bytes + t->token_bytes);
    return KVM_OK;
}
