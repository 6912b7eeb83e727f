/* graph_analyse.c - the analyses of a spec: one for each suite, of the distilled
 * translator when there is one, else of the closed form. */
#include "jobs/graph_internal.h"

static kvm_status add_suite(kvm_builder *b, kvm_jat suite, ptrdiff_t i)
{
    json_t *p, *given = kvm_graph__section(b, "analyse");
    kvm_suite *s;
    ptrdiff_t node;
    json_t *tails = json_incref(json_object_get(given, "tails"));
    json_decref(given);
    const kvm_status st =
        kvm_graph__suite_params(b, suite, "analyse", !b->reversed, &p, &s);
    if (st) return json_decref(tails), st;
    if (tails) json_object_set_new(p, "tails", tails);
    json_object_set_new(p, "as",
                        json_pack("s%+", s->name.at, (size_t)s->name.len, "/analysis"));
    TRY(kvm_graph__node(b, KVM_JOB_ANALYSE,
                        kvm_str_fmt(b->keep, "analyse %.*s", KVM_STR_ARG(s->name)), p,
                        &node));
    TRY(kvm_graph__input(b, node, "translator", b->fit, "translator"));
    if (b->distill >= 0)
        TRY(kvm_graph__input(b, node, "distilled", b->distill, "translator"));
    TRY(kvm_graph__numbered(b, b->report, "analysis", i, node, "items"));
    return kvm_graph__numbered(b, b->report, "analysis_figures", i, node, "figures");
}

kvm_status kvm_graph__analyses(kvm_builder *b)
{
    if (!kvm_graph__has_section(b, "analyse")) return KVM_OK;
    const kvm_jat at = kvm_json_get(b->spec->root, b->keep, "analyse");
    const kvm_jat list = kvm_json_get(at, b->keep, "suites");
    ptrdiff_t n;
    TRY(kvm_graph__suites(b, list, &n));
    for (ptrdiff_t i = 0; i < n; i++)
        TRY(add_suite(b, kvm_json_item(list, b->keep, i), i));
    return KVM_OK;
}
