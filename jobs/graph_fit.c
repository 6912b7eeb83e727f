/* graph_fit.c - the translator of a graph: one fit, or, where a section says auto, a
 * fit for each candidate and the job that chooses among them. */
#include "jobs/candidates.h"
#include "jobs/graph_internal.h"

static kvm_status add_fit(kvm_builder *b, json_t *params, kvm_str label,
                          ptrdiff_t *node)
{
    json_object_set_new(params, "source", json_string(b->source.info->fingerprint));
    json_object_set_new(params, "source_path", kvm_graph__str(b->source.path));
    kvm_graph__put_calibration(b, params);
    TRY(kvm_graph__node(b, KVM_JOB_FIT, label, params, node));
    TRY(kvm_graph__input(b, *node, "gram", b->gram, "moments"));
    TRY(kvm_graph__input(b, *node, "cross", b->cross, "moments"));
    if (b->own >= 0) TRY(kvm_graph__input(b, *node, "own", b->own, "moments"));
    TRY(kvm_graph__input(b, *node, "source_capture", b->capture[0], "capture"));
    return kvm_graph__input(b, *node, "target_capture", b->capture[1], "capture");
}

/* the lessons of the choosing split, as the job reads them */
static json_t *choose_params(const kvm_builder *b, const kvm_candidates *c)
{
    json_t *p = json_object(), *cal = kvm_graph__calibration(b), *titles = json_array();
    kvm_graph__put_models(b, p);
    kvm_graph__put_calibration(b, p);
    json_object_set(p, "held_out", json_object_get(cal, "held_out"));
    json_object_set_new(p, "split_seed", json_integer(b->spec->seed));
    for (ptrdiff_t i = 0; i < c->n; i++)
        json_array_append_new(titles, kvm_graph__str(c->at[i].title));
    json_object_set_new(p, "titles", titles);
    json_decref(cal);
    return p;
}

static kvm_status add_choice(kvm_builder *b, const kvm_candidates *c, kvm_str name,
                             ptrdiff_t *node)
{
    ptrdiff_t fit[KVM_CANDIDATES_MOST];
    for (ptrdiff_t i = 0; i < c->n; i++) {
        json_object_set_new(c->at[i].fit, "candidate", json_true());
        TRY(add_fit(b, json_incref(c->at[i].fit),
                    kvm_str_fmt(b->keep, "fit %.*s: %.*s", KVM_STR_ARG(c->at[i].title),
                                KVM_STR_ARG(name)),
                    &fit[i]));
    }
    TRY(kvm_graph__node(b, KVM_JOB_CHOOSE, kvm_graph__label(b, "choose", name),
                        choose_params(b, c), node));
    for (ptrdiff_t i = 0; i < c->n; i++) {
        TRY(kvm_graph__numbered(b, *node, "translator", i, fit[i], "translator"));
        TRY(kvm_graph__numbered(b, *node, "fit", i, fit[i], "fit"));
    }
    return KVM_OK;
}

kvm_status kvm_graph__translator(kvm_builder *b, json_t *fit, kvm_str name,
                                 ptrdiff_t *node)
{
    kvm_candidates c;
    if (!kvm_json_own(b->keep, fit)) return kvm_nomem(b->err, b->keep);
    TRY(kvm_candidates_read(&c, (kvm_jat){.v = fit}, &b->source.shapes,
                            &b->target.shapes, b->keep, b->err));
    if (c.n > 1) return add_choice(b, &c, name, node);
    return add_fit(b, json_incref(c.at[0].fit), kvm_graph__label(b, "fit", name), node);
}

/* the report takes an output of the node as PREFIX.WORDS */
static kvm_status report_takes(kvm_builder *b, const char *prefix, kvm_str words,
                               ptrdiff_t node, const char *output)
{
    const kvm_str name =
        words.at ? kvm_str_fmt(b->keep, "%s.%.*s", prefix, KVM_STR_ARG(words)) : words;
    return name.at ? kvm_graph__input(b, b->report, name.at, node, output)
                   : kvm_nomem(b->err, b->keep);
}

kvm_status kvm_graph__costs_of_fit(kvm_builder *b, bool back)
{
    const kvm_node *n = &b->graph->nodes[b->fit];
    const bool chosen = n->kind == KVM_JOB_CHOOSE;
    ptrdiff_t fits = 0;
    for (ptrdiff_t i = 0; chosen && i < n->input_count; i++) {
        if (!kvm_str_starts(kvm_str_of(n->inputs[i].name), KVM_STR("fit."))) continue;
        const ptrdiff_t fit = n->inputs[i].node;
        const kvm_str which =
            kvm_str_fmt(b->keep, "%s%td", back ? "back " : "", ++fits);
        const kvm_str step = kvm_str_fmt(b->keep, "fit %.*s", KVM_STR_ARG(which));
        TRY(report_takes(b, "cost", step, fit, "cost"));
        TRY(report_takes(b, "candidate", which, fit, "translator"));
    }
    const kvm_str step =
        kvm_str_fmt(b->keep, "%s%s", chosen ? "choose" : "fit", back ? " back" : "");
    return report_takes(b, "cost", step, b->fit, "cost");
}
