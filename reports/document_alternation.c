/* document_alternation.c - conversations of two models. */
#include "reports/document_internal.h"

static void read_turn(kvm_doc_reader *r, kvm_turn_figures *t, kvm_jat at)
{
    *t = (kvm_turn_figures){.turn = kvm_doc__num(r, at, "turn"),
                            .answer_tokens = kvm_doc__num(r, at, "answer_tokens"),
                            .seconds = kvm_doc__est(r, at, "seconds"),
                            .seconds_so_far = kvm_doc__est(r, at, "seconds_so_far"),
                            .model = kvm_doc__str(r, at, "model"),
                            .f1 = kvm_doc__est(r, at, "f1"),
                            .gold = kvm_doc__est(r, at, "gold"),
                            .first_kl = kvm_doc__est(r, at, "first_kl"),
                            .versus_native = kvm_doc__est(r, at, "versus_native"),
                            .versus_segment = kvm_doc__est(r, at, "versus_segment")};
}

static void read_condition(kvm_doc_reader *r, kvm_condition_figures *c, kvm_jat at)
{
    const kvm_jat turns = kvm_doc__get(r, at, "turns");
    *c = (kvm_condition_figures){
        .key = kvm_doc__str(r, at, "key"),
        .title = kvm_doc__str(r, at, "title"),
        .f1 = kvm_doc__est(r, at, "f1"),
        .gold = kvm_doc__est(r, at, "gold"),
        .versus_native = kvm_doc__est(r, at, "versus_native"),
        .versus_segment = kvm_doc__est(r, at, "versus_segment"),
        .gold_versus_native = kvm_doc__est(r, at, "gold_versus_native"),
        .gold_versus_segment = kvm_doc__est(r, at, "gold_versus_segment")};
    c->turns = kvm_doc__list_at(r, turns, sizeof *c->turns, &c->count);
    for (ptrdiff_t i = 0; i < c->count; i++)
        read_turn(r, &c->turns[i], kvm_doc__item(r, turns, i));
}

void kvm_doc__alternation(kvm_doc_reader *r, kvm_jat doc)
{
    const kvm_jat at = kvm_doc__get(r, doc, "alternation");
    const kvm_jat list = kvm_doc__get(r, at, "conditions");
    if (!kvm_json_has(at)) return;
    r->d->alternation.suite = kvm_doc__str(r, at, "suite");
    r->d->alternation.dialogues = kvm_doc__num(r, at, "dialogues");
    r->d->alternation.refresh = kvm_doc__num(r, at, "refresh");
    r->d->alternation.translator =
        (int)kvm_doc__arm(r, at, kvm_doc__str(r, at, "translator"));
    kvm_condition_figures *c =
        kvm_doc__list_at(r, list, sizeof *c, &r->d->alternation.count);
    for (ptrdiff_t i = 0; i < r->d->alternation.count; i++)
        read_condition(r, &c[i], kvm_doc__item(r, list, i));
    r->d->alternation.conditions = c;
}
