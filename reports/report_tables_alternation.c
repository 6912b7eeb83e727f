/* report_tables_alternation.c - conversations as tables. */
#include "reports/report_tables_internal.h"

kvm_table kvm_report_table_alternation(kvm_arena *keep, const kvm_document *d)
{
    static const kvm_column columns[] = {
        HEAD("condition", "Catching up by", TEXT),
        HEAD("f1", "Token F1", EST),
        HEAD("versus_native", "versus re-reading", EST),
        HEAD("versus_segment", "versus segment", EST),
        HEAD("gold", "Gold in answer", EST),
        HEAD("gold_versus_native", "versus re-reading", EST),
        HEAD("gold_versus_segment", "versus segment", EST),
        HEAD("seconds", "Catching up, in all", EST)};
    kvm_table t =
        kvm_table_new(keep, "alternation", KVM_STR("Taking turns"), COLUMNS(columns));
    for (ptrdiff_t i = 0; i < d->alternation.count; i++) {
        const kvm_condition_figures *c = &d->alternation.conditions[i];
        const kvm_est none = kvm_est_missing(KVM_STR("there are no turns"));
        kvm_table__words(&t, c->title);
        kvm_table_est(&t, c->f1, KVM_FORMAT_PERCENT);
        kvm_table_est(&t, c->versus_native, KVM_FORMAT_POINTS);
        kvm_table_est(&t, c->versus_segment, KVM_FORMAT_POINTS);
        kvm_table_est(&t, c->gold, KVM_FORMAT_PERCENT);
        kvm_table_est(&t, c->gold_versus_native, KVM_FORMAT_POINTS);
        kvm_table_est(&t, c->gold_versus_segment, KVM_FORMAT_POINTS);
        kvm_table_est(&t, c->count ? c->turns[c->count - 1].seconds_so_far : none,
                      KVM_FORMAT_SECONDS);
    }
    return t;
}

kvm_table kvm_report_table_turns(kvm_arena *keep, const kvm_document *d)
{
    static const kvm_column columns[] = {
        HEAD("condition", "Catching up by", TEXT),
        HEAD("turn", "Turn", NUMBER),
        HEAD("model", "Answered by", TEXT),
        HEAD("f1", "Token F1", EST),
        HEAD("versus_native", "versus re-reading", EST),
        HEAD("versus_segment", "versus segment", EST),
        HEAD("gold", "Gold in answer", EST),
        HEAD("first_kl", "First-token KL", EST),
        HEAD("answer_tokens", "Tokens of the answer", NUMBER),
        HEAD("seconds", "Catching up", EST)};
    kvm_table t = kvm_table_new(keep, "turns", KVM_STR("Turns"), COLUMNS(columns));
    for (ptrdiff_t i = 0; i < d->alternation.count; i++) {
        const kvm_condition_figures *c = &d->alternation.conditions[i];
        for (ptrdiff_t k = 0; k < c->count; k++) {
            const kvm_turn_figures *v = &c->turns[k];
            kvm_table__words(&t, c->title);
            kvm_table_num(&t, v->turn, KVM_FORMAT_COUNT);
            kvm_table__words(&t, v->model);
            kvm_table_est(&t, v->f1, KVM_FORMAT_PERCENT);
            kvm_table_est(&t, v->versus_native, KVM_FORMAT_POINTS);
            kvm_table_est(&t, v->versus_segment, KVM_FORMAT_POINTS);
            kvm_table_est(&t, v->gold, KVM_FORMAT_PERCENT);
            kvm_table_est(&t, v->first_kl, KVM_FORMAT_NUMBER);
            kvm_table_num(&t, v->answer_tokens, KVM_FORMAT_NUMBER);
            kvm_table_est(&t, v->seconds, KVM_FORMAT_SECONDS);
        }
    }
    return t;
}
