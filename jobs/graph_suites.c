/* graph_suites.c - the suites of a section, each scored by a job of its own: what the
 * sections evaluate, analyse and alternate have in common. */
#include <string.h>

#include "jobs/graph_internal.h"

/* ---- lists ---- */

kvm_status kvm_graph__listed_once(kvm_builder *b, kvm_jat list, ptrdiff_t n)
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
    return kvm_graph__listed_once(b, list, *n);
}

/* ---- parameters ---- */

kvm_status kvm_graph__suite(kvm_builder *b, kvm_jat at, kvm_suite_holds wanted,
                            kvm_str *path, kvm_suite **out)
{
    kvm_str name;
    TRY(kvm_json_str(at, &name, b->err));
    kvm_status s = kvm_suite_find(path, b->keep, b->spec->dir, name, b->err);
    if (!s) s = kvm_suite_read(out, b->keep, *path, b->err);
    if (!s) s = kvm_suite_serves(*out, wanted, b->err);
    kvm_json_prefix(b->err, s, at);
    return s;
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

kvm_status kvm_graph__suite_params(kvm_builder *b, const kvm_scoring *by, kvm_jat suite,
                                   bool check, json_t **params, kvm_suite **out)
{
    kvm_str path;
    kvm_suite *s;
    TRY(kvm_graph__suite(b, suite, by->wanted, &path, &s));
    if (check) TRY(look_at_items(b, s, suite, by->section));
    TRY(tell_report(b, s, by->section));
    json_t *given = kvm_graph__section(b, by->section), *p = json_object();
    kvm_graph__put_models(b, p);
    kvm_graph__put_calibration(b, p);
    json_object_set_new(p, "suite", json_string(s->sha));
    json_object_set_new(p, "suite_path", kvm_graph__str(path));
    for (const char *const *key = by->keys; *key; key++) {
        json_t *v = json_object_get(given, *key);
        if (v) json_object_set(p, *key, v);
    }
    json_decref(given);
    *params = p;
    *out = s;
    return KVM_OK;
}

/* ---- nodes ---- */

/* Samples and the report know a suite by its name. */
static kvm_status named_once(kvm_builder *b, kvm_str label, kvm_jat at)
{
    for (ptrdiff_t i = 0; i < b->graph->count; i++)
        if (kvm_str_eq(b->graph->nodes[i].label, label))
            return kvm_json_fail(b->err, KVM_FORMAT, at,
                                 "\"%s\" has the name of a suite before it: each needs "
                                 "one of its own on its card",
                                 json_string_value(at.v));
    return KVM_OK;
}

kvm_status kvm_graph__score(kvm_builder *b, const kvm_scoring *by, kvm_jat suite,
                            ptrdiff_t *node)
{
    json_t *p;
    kvm_suite *of;
    TRY(kvm_graph__suite_params(b, by, suite, !b->reversed, &p, &of));
    if (by->as)
        json_object_set_new(
            p, "as", json_pack("s%+", of->name.at, (size_t)of->name.len, by->as));
    const kvm_str label = kvm_graph__label(b, by->section, of->name);
    kvm_status s = by->fill ? by->fill(b, of, p) : KVM_OK;
    if (!s) s = named_once(b, label, suite);
    if (s) return json_decref(p), s;
    return kvm_graph__node(b, by->kind, label, p, node);
}

/* whether the kind takes an input of that name where there is one */
static bool may_take(kvm_kind_id kind, const char *name)
{
    const size_t n = strlen(name);
    for (const char *const *in = kvm_job_kind_of(kind)->inputs; *in; in++)
        if (strncmp(*in, name, n) == 0 && strcmp(*in + n, "?") == 0) return true;
    return false;
}

/* the closed form, and what else there is of the translators that the kind scores */
static kvm_status take_translators(kvm_builder *b, kvm_kind_id kind, ptrdiff_t node)
{
    const struct {
        const char *name;
        ptrdiff_t node;
    } others[] = {{"mlp", b->mlp}, {"distilled", b->distill}};
    TRY(kvm_graph__input(b, node, "translator", b->fit, "translator"));
    for (int i = 0; i < 2; i++)
        if (others[i].node >= 0 && may_take(kind, others[i].name))
            TRY(kvm_graph__input(b, node, others[i].name, others[i].node,
                                 "translator"));
    return KVM_OK;
}

kvm_status kvm_graph__score_suites(kvm_builder *b, const kvm_scoring *by)
{
    const kvm_jat section = kvm_json_get(b->spec->root, b->keep, by->section);
    const kvm_jat list = kvm_json_get(section, b->keep, "suites");
    ptrdiff_t n, node;
    TRY(kvm_graph__suites(b, list, &n));
    for (ptrdiff_t i = 0; i < n; i++) {
        TRY(kvm_graph__score(b, by, kvm_json_item(list, b->keep, i), &node));
        TRY(take_translators(b, by->kind, node));
        TRY(kvm_graph__numbered(b, b->report, by->items, i, node, "items"));
        TRY(kvm_graph__numbered(b, b->report, by->figures, i, node, "figures"));
    }
    return KVM_OK;
}
