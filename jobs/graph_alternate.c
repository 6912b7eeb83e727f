/* graph_alternate.c - the conversations of a spec, which need the translators of both
 * directions: that of the other one is made here too, out of the same captures. Its
 * nodes are those of the other direction's graph, so that neither is computed twice. */
#include "jobs/graph_internal.h"

/* The builder of the other direction, on the nodes that stand in this graph; what it
 * adds gets its names from there. */
static kvm_status turned(const kvm_builder *b, kvm_builder *back)
{
    *back = *b;
    back->source = b->target;
    back->target = b->source;
    back->reversed = !b->reversed;
    back->capture[0] = b->capture[1];
    back->capture[1] = b->capture[0];
    back->own = b->needs->own[back->reversed] ? b->gram : -1;
    return kvm_graph__gram(back, 0, &back->gram);
}

/* What the report takes of the way back: translators, and what only they took. */
static kvm_status report_back(kvm_builder *b, kvm_builder *back)
{
    if (b->own < 0)
        TRY(kvm_graph__input(b, b->report, "cost.stats back", back->gram, "cost"));
    TRY(kvm_graph__costs_of_fit(back, true));
    TRY(kvm_graph__input(b, b->report, "back_translator", back->fit, "translator"));
    if (back->distill < 0) return KVM_OK;
    TRY(kvm_graph__input(b, b->report, "cost.distill back", back->distill, "cost"));
    return kvm_graph__input(b, b->report, "back_distilled", back->distill,
                            "translator");
}

/* of the other direction; *node makes it */
static kvm_status add_back(kvm_builder *b, ptrdiff_t *node)
{
    kvm_builder back;
    TRY(turned(b, &back));
    const kvm_str name = kvm_graph__label(b, "back", b->graph->pair);
    if (!name.at) return kvm_nomem(b->err, b->keep);
    TRY(kvm_graph__translator(&back, kvm_graph__section(b, "fit"), name, &back.fit));
    back.distill = -1;
    TRY(kvm_graph__distill(&back, "distill back"));
    *node = back.distill >= 0 ? back.distill : back.fit;
    return report_back(b, &back);
}

static const char *const keys[] = {"items", "turns", "refresh", NULL};
/* of one suite, whose job takes other inputs */
static const kvm_scoring alternate_by = {
    .section = "alternate",
    .kind = KVM_JOB_ALTERNATE,
    .wanted = KVM_HOLDS_DIALOGUES,
    .as = "/alternation",
    .keys = keys,
};

kvm_status kvm_graph__alternation(kvm_builder *b)
{
    if (!kvm_graph__has_section(b, "alternate")) return KVM_OK;
    const kvm_jat at = kvm_json_get(b->spec->root, b->keep, "alternate");
    ptrdiff_t back, node;
    TRY(add_back(b, &back));
    TRY(kvm_graph__score(b, &alternate_by, kvm_json_get(at, b->keep, "suite"), &node));
    TRY(kvm_graph__input(b, node, "translator", b->distill >= 0 ? b->distill : b->fit,
                         "translator"));
    TRY(kvm_graph__input(b, node, "back", back, "translator"));
    TRY(kvm_graph__input(b, b->report, "alternation", node, "items"));
    TRY(kvm_graph__input(b, b->report, "alternation_figures", node, "figures"));
    return kvm_graph__input(b, b->report, "alternation_seconds", node, "seconds");
}
