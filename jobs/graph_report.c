/* graph_report.c - the report's node. The report is the last job but the first to be
 * known: its node is made first, filled on the way, and moved to the end, where a
 * node's inputs must point backwards. */
#include <string.h>

#include "jobs/graph_internal.h"

/* the kinds of rows and states that a model's cache can be told by */
static json_t *keeps(const kvm_shapes *s)
{
    static const kvm_space shown[] = {KVM_SPACE_K, KVM_SPACE_V, KVM_SPACE_LATENT,
                                      KVM_SPACE_STATE, KVM_SPACE_INDEX};
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
        if (s->of[shown[i]])
            json_array_append_new(list, json_string(kvm_space_name(shown[i])));
    return list;
}

static json_t *model_json(const kvm_graph_side *s)
{
    const kvm_model_info *i = s->info;
    return json_pack("{s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:o}", "name",
                     kvm_graph__str(i->name), "family", kvm_graph__str(i->family),
                     "parameters", (json_int_t)i->parameters, "layers",
                     (json_int_t)i->layers, "kv_heads", (json_int_t)i->kv_heads,
                     "head_dim", (json_int_t)i->head_dim, "context",
                     (json_int_t)i->context, "dtype", kvm_dtype_name(i->weight_dtype),
                     "fingerprint", i->fingerprint, "keeps", keeps(&s->shapes));
}

static kvm_status report_params(kvm_builder *b, kvm_str reverse, json_t **out)
{
    json_t *p = json_object();
    json_object_set_new(p, "pair", kvm_graph__str(b->graph->pair));
    if (reverse.len) json_object_set_new(p, "reverse", kvm_graph__str(reverse));
    json_object_set_new(p, "source", model_json(&b->source));
    json_object_set_new(p, "target", model_json(&b->target));
    json_object_set_new(p, "calibration", kvm_graph__calibration(b));
    json_object_set_new(p, "text", json_string(b->text_sha));
    json_object_set_new(p, "suites", json_object()); /* by graph_suites.c */
    json_object_set_new(p, "spec", kvm_graph__str(b->spec->text));
    json_object_set_new(p, "seed", json_integer(b->spec->seed));
    if (b->rounds.len) json_object_set_new(p, "backend", kvm_graph__str(b->rounds));
    *out = p;
    return KVM_OK;
}

kvm_status kvm_graph__report(kvm_builder *b, kvm_str reverse)
{
    json_t *p;
    TRY(report_params(b, reverse, &p));
    return kvm_graph__node(b, KVM_JOB_REPORT,
                           kvm_graph__label(b, "report", b->graph->pair), p,
                           &b->report);
}

kvm_status kvm_graph__report_inputs(kvm_builder *b)
{
    static const char *const names[] = {"source", "target"};
    for (int i = 0; i < 2; i++) {
        kvm_str s = kvm_str_fmt(b->keep, "cost.capture %s", names[i]);
        if (!s.at) return kvm_nomem(b->err, b->keep);
        TRY(kvm_graph__input(b, b->report, s.at, b->capture[i], "cost"));
    }
    TRY(kvm_graph__input(b, b->report, "cost.stats source", b->gram, "cost"));
    if (b->own >= 0)
        TRY(kvm_graph__input(b, b->report, "cost.stats target", b->own, "cost"));
    TRY(kvm_graph__input(b, b->report, "cost.stats cross", b->cross, "cost"));
    TRY(kvm_graph__costs_of_fit(b, false));
    TRY(kvm_graph__input(b, b->report, "fit", b->fit, "fit"));
    TRY(kvm_graph__input(b, b->report, "translator", b->fit, "translator"));
    if (b->mlp >= 0) {
        TRY(kvm_graph__input(b, b->report, "cost.mlp", b->mlp, "cost"));
        TRY(kvm_graph__input(b, b->report, "mlp", b->mlp, "figures"));
        TRY(kvm_graph__input(b, b->report, "mlp_translator", b->mlp, "translator"));
    }
    if (b->distill < 0) return KVM_OK;
    TRY(kvm_graph__input(b, b->report, "cost.distill", b->distill, "cost"));
    TRY(kvm_graph__input(b, b->report, "distilled", b->distill, "translator"));
    return kvm_graph__input(b, b->report, "distill", b->distill, "figures");
}

void kvm_graph__report_last(kvm_builder *b)
{
    kvm_graph *g = b->graph;
    const kvm_node report = g->nodes[0];
    memmove(g->nodes, g->nodes + 1, (size_t)(g->count - 1) * sizeof *g->nodes);
    g->nodes[g->count - 1] = report;
    for (ptrdiff_t i = 0; i < g->count; i++)
        for (ptrdiff_t k = 0; k < g->nodes[i].input_count; k++)
            g->nodes[i].inputs[k].node--;
}
