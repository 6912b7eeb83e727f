/* graph_evaluate.c - what scores a translator: an evaluation for each suite of the
 * spec, and ablations, each a fit of its own and its evaluation. */
#include <string.h>

#include "jobs/ablations.h"
#include "jobs/graph_internal.h"

/* ---- suites ---- */

/* n texts, each one once */
static kvm_status listed_once(kvm_builder *b, kvm_jat list, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++)
        for (ptrdiff_t k = 0; k < i; k++) {
            const kvm_jat at = kvm_json_item(list, b->keep, i);
            if (json_equal(at.v, kvm_json_item(list, b->keep, k).v))
                return kvm_json_fail(b->err, KVM_FORMAT, at,
                                     "\"%s\" stands in the list twice",
                                     json_string_value(at.v));
        }
    return KVM_OK;
}

kvm_status kvm_graph__suites(kvm_builder *b, kvm_jat list, ptrdiff_t *n)
{
    TRY(kvm_json_array(list, n, b->err));
    if (*n == 0)
        return kvm_json_fail(b->err, KVM_FORMAT, list,
                             "names none: name one, or leave the list out");
    return listed_once(b, list, *n);
}

/* the suite that the spec names at this place */
static kvm_status suite_of(kvm_builder *b, kvm_jat at, bool dialogues, kvm_str *path,
                           kvm_suite **out)
{
    kvm_str name;
    TRY(kvm_json_str(at, &name, b->err));
    kvm_status s = kvm_suite_find(path, b->keep, b->spec->dir, name, b->err);
    if (!s) s = kvm_suite_read(out, b->keep, *path, b->err);
    if (!s) s = kvm_suite_serves(*out, dialogues, b->err);
    return s ? kvm_json_prefix(b->err, s, at) : KVM_OK;
}

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

static kvm_status look_at_items(kvm_builder *b, kvm_suite *s, kvm_jat at,
                                const char *section)
{
    const kvm_model_info *const models[] = {b->source.info, b->target.info};
    if (!b->overlap)
        TRY(kvm_spec__read_overlap(b->spec, &b->overlap, b->sequences,
                                   b->target.tokenizer, b->keep, b->err));
    return kvm_spec__check_items(
        b->spec, s, at, kvm_json_get(b->spec->root, b->keep, section), b->overlap,
        models, b->target.tokenizer, b->keep, b->err);
}

/* among what the report says that it comes from; of two suites of one name the second
 * is told by its section too */
static kvm_status tell_report(kvm_builder *b, const kvm_suite *s, const char *section)
{
    json_t *suites = json_object_get(b->graph->nodes[b->report].params, "suites");
    const char *there = json_string_value(json_object_get(suites, s->name.at));
    const kvm_str key =
        !there || strcmp(there, s->sha) == 0
            ? s->name
            : kvm_str_fmt(b->keep, "%.*s, of %s", KVM_STR_ARG(s->name), section);
    if (!key.at) return kvm_nomem(b->err, b->keep);
    json_object_set_new(suites, key.at, json_string(s->sha));
    return KVM_OK;
}

kvm_status kvm_graph__suite_params(kvm_builder *b, kvm_jat suite, const char *section,
                                   bool check, json_t **params, kvm_suite **out)
{
    kvm_str path;
    kvm_suite *s;
    TRY(suite_of(b, suite, strcmp(section, "alternate") == 0, &path, &s));
    if (check) TRY(look_at_items(b, s, suite, section));
    TRY(tell_report(b, s, section));
    json_t *given = kvm_graph__section(b, section), *p = json_object();
    kvm_graph__put_models(b, p);
    kvm_graph__put_calibration(b, p);
    json_object_set_new(p, "suite", json_string(s->sha));
    json_object_set_new(p, "suite_path", kvm_graph__str(path));
    if (json_object_get(given, "items"))
        json_object_set(p, "items", json_object_get(given, "items"));
    json_decref(given);
    *params = p;
    *out = s;
    return KVM_OK;
}

static kvm_status evaluate_params(kvm_builder *b, kvm_jat suite, bool attention,
                                  json_t **out, kvm_str *name)
{
    kvm_suite *s;
    /* ablations score no other items */
    TRY(kvm_graph__suite_params(b, suite, "evaluate", attention && !b->reversed, out,
                                &s));
    *name = s->name;
    b->quality |=
        s->kind != KVM_SUITE_PERPLEXITY || kvm_str_eq(s->metric, KVM_STR("agreement"));
    if (!attention || s->kind != KVM_SUITE_PERPLEXITY) return KVM_OK;
    const kvm_status st = enough_items(b, s);
    if (st) return json_decref(*out), st;
    json_t *given = kvm_graph__section(b, "evaluate");
    kvm_graph__set(given, "attention_items", json_integer(8));
    json_t *items = json_object_get(given, "attention_items");
    json_object_set(*out, "attention_items", items);
    b->attention |= json_integer_value(items) > 0;
    json_decref(given);
    return KVM_OK;
}

/* Samples and the report know a suite by its name. */
static kvm_status named_once(kvm_builder *b, kvm_str evaluate, kvm_jat at)
{
    for (ptrdiff_t i = 0; i < b->graph->count; i++)
        if (kvm_str_eq(b->graph->nodes[i].label, evaluate))
            return kvm_json_fail(b->err, KVM_FORMAT, at,
                                 "\"%s\" has the name of a suite before it: each needs "
                                 "one of its own on its card",
                                 json_string_value(at.v));
    return KVM_OK;
}

static kvm_status add_suite(kvm_builder *b, kvm_jat suite, ptrdiff_t i)
{
    json_t *p;
    kvm_str name;
    ptrdiff_t node;
    TRY(evaluate_params(b, suite, true, &p, &name));
    const kvm_str evaluate = kvm_graph__label(b, "evaluate", name);
    const kvm_status s = named_once(b, evaluate, suite);
    if (s) return json_decref(p), s;
    TRY(kvm_graph__node(b, KVM_JOB_EVALUATE, evaluate, p, &node));
    TRY(kvm_graph__input(b, node, "translator", b->fit, "translator"));
    if (b->mlp >= 0) TRY(kvm_graph__input(b, node, "mlp", b->mlp, "translator"));
    if (b->distill >= 0)
        TRY(kvm_graph__input(b, node, "distilled", b->distill, "translator"));
    TRY(kvm_graph__numbered(b, b->report, "items", i, node, "items"));
    return kvm_graph__numbered(b, b->report, "figures", i, node, "figures");
}

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
    kvm_str name;
    ptrdiff_t node;
    TRY(evaluate_params(b, suite, false, &p, &name));
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
    TRY(suite_of(b, at, false, &path, &s));
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
    TRY(listed_once(b, list, n));
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
    ptrdiff_t n;
    TRY(kvm_graph__suites(b, list, &n));
    for (ptrdiff_t i = 0; i < n; i++)
        TRY(add_suite(b, kvm_json_item(list, b->keep, i), i));
    return add_ablations(b, evaluate, kvm_json_item(list, b->keep, 0));
}
