/* graph_analyse.c - the analyses of a spec: one for each suite, of the distilled
 * translator when there is one, else of the closed form. */
#include "jobs/graph_internal.h"
#include "jobs/timing.h"

static const char *const keys[] = {"items", "tails", NULL};
static const kvm_scoring analyse_by = {
    .section = "analyse",
    .kind = KVM_JOB_ANALYSE,
    .wanted = KVM_HOLDS_ITEMS,
    .as = "/analysis",
    .keys = keys,
    .items = "analysis",
    .figures = "analysis_figures",
};

/* *n stays when there is no list; an empty one asks for nothing */
static kvm_status read_lengths(kvm_builder *b, kvm_jat list, ptrdiff_t *n)
{
    int64_t lengths[KVM_TIMING_LENGTHS];
    if (!kvm_json_has(list)) return KVM_OK;
    TRY(kvm_json_array(list, n, b->err));
    if (*n == 0) return KVM_OK;
    TRY(kvm_timing_lengths(list, b->keep, lengths, n, b->err));
    return kvm_graph__fits(b, kvm_json_item(list, b->keep, *n - 1));
}

/* What a tail costs is timed as a switch is: by its kind, which reuses no results. */
static kvm_status time_tails(kvm_builder *b, kvm_jat analyse)
{
    const ptrdiff_t a = b->source.info->context, c = b->target.info->context;
    const ptrdiff_t most = (a < c ? a : c) - 1, usual = most < 1024 ? most : 1024;
    const kvm_jat lengths = kvm_json_get(analyse, b->keep, "tail_lengths");
    kvm_tails tails;
    ptrdiff_t n = 1, node;
    TRY(read_lengths(b, lengths, &n));
    TRY(kvm_tails_read(&tails, analyse, b->keep, kvm_default_tails, KVM_DEFAULT_TAILS,
                       b->err));
    if (n == 0 || tails.n == 0) return KVM_OK;
    json_t *p = json_object(), *shares = json_array();
    for (ptrdiff_t i = 0; i < tails.n; i++)
        json_array_append_new(shares, json_real(tails.share[i]));
    kvm_graph__put_models(b, p);
    json_object_set_new(p, "seed", json_integer(b->spec->seed));
    json_object_set_new(p, "lengths",
                        kvm_json_has(lengths) ? json_deep_copy(lengths.v)
                                              : json_pack("[I]", (json_int_t)usual));
    json_object_set_new(p, "tails", shares);
    TRY(kvm_graph__node(b, KVM_JOB_TIMING, KVM_STR("timing of tails"), p, &node));
    TRY(kvm_graph__input(b, node, "translator", b->distill >= 0 ? b->distill : b->fit,
                         "translator"));
    return kvm_graph__input(b, b->report, "tails", node, "timing");
}

static kvm_status add_inversion(kvm_builder *b)
{
    if (!b->needs->inversion) return KVM_OK;
    ptrdiff_t gram, node;
    TRY(kvm_graph__gram(b, 1, &gram));
    json_t *p = kvm_graph__split_params(b);
    kvm_graph__put_models(b, p);
    kvm_graph__put_calibration(b, p);
    TRY(kvm_graph__node(
        b, KVM_JOB_INVERT,
        kvm_str_fmt(b->keep, "invert %.*s", KVM_STR_ARG(b->graph->pair)), p, &node));
    TRY(kvm_graph__input(b, node, "source_capture", b->capture[0], "capture"));
    TRY(kvm_graph__input(b, node, "target_capture", b->capture[1], "capture"));
    TRY(kvm_graph__input(b, node, "source_gram", b->gram, "moments"));
    TRY(kvm_graph__input(b, node, "target_gram", gram, "moments"));
    TRY(kvm_graph__input(b, node, "cross", b->cross, "moments"));
    return kvm_graph__input(b, b->report, "inversion", node, "figures");
}

kvm_status kvm_graph__analyses(kvm_builder *b)
{
    if (!kvm_graph__has_section(b, "analyse")) return KVM_OK;
    const kvm_jat at = kvm_json_get(b->spec->root, b->keep, "analyse");
    TRY(kvm_graph__score_suites(b, &analyse_by));
    TRY(time_tails(b, at));
    return add_inversion(b);
}
