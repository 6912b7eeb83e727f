/* graph_evaluate.c - what scores a translator: an evaluation for each suite of the
 * spec, and ablations, each a fit of its own and its evaluation. */
#include <string.h>

#include "jobs/ablations.h"
#include "jobs/graph_internal.h"

/* ---- suites ---- */

/* A spec that asks for more items than are scored would be answered with fewer. */
static kvm_status enough_items(kvm_builder *b, const kvm_suite *s)
{
    const kvm_jat evaluate = kvm_json_get(b->spec->root, b->keep, "evaluate");
    const kvm_jat at = kvm_json_get(evaluate, b->keep, "attention_items");
    int64_t wanted, items;
    TRY(kvm_json_i64_or(at, 0, &wanted, b->err));
    TRY(kvm_json_i64_or(kvm_json_get(evaluate, b->keep, "items"), 0, &items, b->err));
    if (items <= 0 || items > s->count) items = s->count;
    if (wanted <= items) return KVM_OK;
    return kvm_json_fail(b->err, KVM_RANGE, at,
                         "is %lld, and %lld items of suite %.*s are scored",
                         (long long)wanted, (long long)items, KVM_STR_ARG(s->name));
}

/* in params: of how many items attention outputs are compared */
static kvm_status with_attention(kvm_builder *b, const kvm_suite *s, json_t *params)
{
    b->quality |=
        s->kind != KVM_SUITE_PERPLEXITY || kvm_str_eq(s->metric, KVM_STR("agreement"));
    if (s->kind != KVM_SUITE_PERPLEXITY) return KVM_OK;
    TRY(enough_items(b, s));
    json_t *given = kvm_graph__section(b, "evaluate");
    kvm_graph__set(given, "attention_items", json_integer(8));
    json_t *items = json_object_get(given, "attention_items");
    json_object_set(params, "attention_items", items);
    b->attention |= json_integer_value(items) > 0;
    json_decref(given);
    return KVM_OK;
}

static const char *const keys[] = {"items", NULL};
static const kvm_scoring evaluate_by = {
    .section = "evaluate",
    .kind = KVM_JOB_EVALUATE,
    .wanted = KVM_HOLDS_ITEMS,
    .keys = keys,
    .fill = with_attention,
    .items = "items",
    .figures = "figures",
};

/* ---- ablations ---- */

/* the row that the others are compared with: nothing taken away, the fit of the run */
static const kvm_ablation complete = {"none", "complete closed form", "{}", ""};

static kvm_status ablated_fit(kvm_builder *b, const kvm_ablation *a, ptrdiff_t *node)
{
    *node = b->fit;
    if (a == &complete) return KVM_OK;
    json_t *fit = kvm_graph__section(b, "fit");
    json_object_set_new(fit, "sweep", json_false());
    const kvm_status s = kvm_ablation_apply(a, fit, b->err);
    if (s) return json_decref(fit), s;
    return kvm_graph__translator(b, fit, kvm_str_of(a->name), node);
}

/* its input of the report is ablation.NAME.SUITE */
static kvm_status score_ablation(kvm_builder *b, const kvm_ablation *a, ptrdiff_t fit,
                                 kvm_jat suite)
{
    json_t *p;
    kvm_suite *s;
    ptrdiff_t node;
    /* the evaluation has looked at these items, and compares attention outputs */
    TRY(kvm_graph__suite_params(b, &evaluate_by, suite, false, &p, &s));
    const kvm_str name = s->name;
    json_object_set_new(p, "arms", json_pack("[s]", "closed_form"));
    json_object_set_new(p, "as",
                        json_pack("s%++", name.at, (size_t)name.len, "/", a->name));
    TRY(kvm_graph__node(b, KVM_JOB_EVALUATE,
                        kvm_str_fmt(b->keep, "ablation %s on %.*s",
                                    a == &complete ? "of nothing" : a->name,
                                    KVM_STR_ARG(name)),
                        p, &node));
    TRY(kvm_graph__input(b, node, "translator", fit, "translator"));
    kvm_str input =
        kvm_str_fmt(b->keep, "ablation.%s.%.*s", a->name, KVM_STR_ARG(name));
    if (!input.at) return kvm_nomem(b->err, b->keep);
    return kvm_graph__input(b, b->report, input.at, node, "items");
}

/* suites: those that ablations are scored on */
static kvm_status add_ablation(kvm_builder *b, const kvm_ablation *a,
                               const kvm_jat *suites, ptrdiff_t n)
{
    ptrdiff_t fit;
    TRY(ablated_fit(b, a, &fit));
    for (ptrdiff_t i = 0; i < n; i++) TRY(score_ablation(b, a, fit, suites[i]));
    if (a == &complete) return KVM_OK; /* the report has that one */
    const kvm_str input = kvm_str_fmt(b->keep, "ablation_translator.%s", a->name);
    if (!input.at) return kvm_nomem(b->err, b->keep);
    return kvm_graph__input(b, b->report, input.at, fit, "translator");
}

/* The report compares ablated fits with the arms of a suite that it shows. */
static kvm_status among_suites(kvm_builder *b, kvm_jat at)
{
    kvm_str path;
    kvm_suite *s;
    TRY(kvm_graph__suite(b, at, evaluate_by.wanted, &path, &s));
    for (ptrdiff_t i = 0; i < b->graph->count; i++) {
        const kvm_node *n = &b->graph->nodes[i];
        const char *sha = json_string_value(json_object_get(n->params, "suite"));
        if (n->kind == KVM_JOB_EVALUATE && sha && !strcmp(sha, s->sha)) return KVM_OK;
    }
    return kvm_json_fail(b->err, KVM_USAGE, at, "\"%s\" is none of evaluate.suites",
                         json_string_value(at.v));
}

/* the suites that ablations are scored on; the first of all when the spec names none */
static kvm_status ablation_suites(kvm_builder *b, kvm_jat evaluate, kvm_jat first,
                                  const kvm_jat **out, ptrdiff_t *n)
{
    const kvm_jat list = kvm_json_get(evaluate, b->keep, "ablation_suites");
    *n = 1;
    if (kvm_json_has(list)) TRY(kvm_graph__suites(b, list, n));
    kvm_jat *suites = kvm_new(b->keep, kvm_jat, *n);
    if (!suites) return kvm_nomem(b->err, b->keep);
    suites[0] = first;
    for (ptrdiff_t i = 0; kvm_json_has(list) && i < *n; i++) {
        suites[i] = kvm_json_item(list, b->keep, i);
        TRY(among_suites(b, suites[i]));
    }
    *out = suites;
    return KVM_OK;
}

/* suites that nothing would be scored on are a mistake: ablations were forgotten */
static kvm_status not_idle(kvm_builder *b, kvm_jat evaluate, ptrdiff_t ablations)
{
    const kvm_jat suites = kvm_json_get(evaluate, b->keep, "ablation_suites");
    if (ablations > 0 || !kvm_json_has(suites)) return KVM_OK;
    return kvm_json_fail(b->err, KVM_USAGE, suites,
                         "is for evaluate.ablations, which names none: name some, or "
                         "leave it out");
}

static kvm_status add_ablations(kvm_builder *b, kvm_jat evaluate, kvm_jat first_suite)
{
    const kvm_jat list = kvm_json_get(evaluate, b->keep, "ablations");
    const kvm_jat *suites;
    ptrdiff_t n = 0, suite_count;
    TRY(ablation_suites(b, evaluate, first_suite, &suites, &suite_count));
    if (kvm_json_has(list)) TRY(kvm_json_array(list, &n, b->err));
    TRY(not_idle(b, evaluate, n));
    TRY(kvm_graph__listed_once(b, list, n));
    if (n) TRY(add_ablation(b, &complete, suites, suite_count));
    for (ptrdiff_t i = 0; i < n; i++) {
        const kvm_jat at = kvm_json_item(list, b->keep, i);
        kvm_str name;
        const kvm_ablation *a;
        TRY(kvm_json_str(at, &name, b->err));
        TRY(kvm_ablation_find(&a, name, at, b->err));
        TRY(add_ablation(b, a, suites, suite_count));
    }
    return KVM_OK;
}

/* ---- both ---- */

kvm_status kvm_graph__evaluations(kvm_builder *b)
{
    if (!kvm_graph__has_section(b, "evaluate")) return KVM_OK;
    const kvm_jat evaluate = kvm_json_get(b->spec->root, b->keep, "evaluate");
    const kvm_jat list = kvm_json_get(evaluate, b->keep, "suites");
    TRY(kvm_graph__score_suites(b, &evaluate_by));
    return add_ablations(b, evaluate, kvm_json_item(list, b->keep, 0));
}
