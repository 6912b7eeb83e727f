/* report_tables_analyses.c - analyses and inversion as tables. */
#include "reports/report_tables_internal.h"

static kvm_str group_title(kvm_str group)
{
    if (kvm_str_eq(group, KVM_STR("swap"))) return KVM_STR("native objects put in");
    if (kvm_str_eq(group, KVM_STR("split"))) return KVM_STR("parts alone");
    if (kvm_str_eq(group, KVM_STR("tail"))) return KVM_STR("tail read by the target");
    return KVM_STR("whole");
}

kvm_table kvm_report_table_analyses(kvm_arena *keep, const kvm_document *d)
{
    static const kvm_column columns[] = {
        HEAD("measure", "Measure", TEXT), HEAD("group", "Group", TEXT),
        HEAD("cache", "Cache", TEXT), HEAD("score", "Score", EST),
        HEAD("versus", "Versus translated", EST)};
    kvm_table t =
        kvm_table_new(keep, "analyses", KVM_STR("Analyses"), COLUMNS(columns));
    for (ptrdiff_t i = 0; i < d->analyses.suite_count; i++) {
        const kvm_analysis *a = &d->analyses.suites[i];
        const kvm_format difference =
            a->format == KVM_FORMAT_PERCENT ? KVM_FORMAT_POINTS : a->format;
        kvm_table__words(&t, a->title);
        kvm_table__words(&t, KVM_STR("whole"));
        kvm_table__words(&t, KVM_STR("native"));
        kvm_table_est(&t, a->native, a->format);
        kvm_table_est(&t, kvm_est_missing(KVM_STR("the cache to compare with")),
                      difference);
        for (ptrdiff_t k = 0; k < a->count; k++) {
            kvm_table__words(&t, a->title);
            kvm_table__words(&t, group_title(a->caches[k].group));
            kvm_table__words(&t, a->caches[k].title);
            kvm_table_est(&t, a->caches[k].score, a->format);
            kvm_table_est(&t, a->caches[k].versus, difference);
        }
        if (a->best.name.len) {
            kvm_table__words(&t, a->title);
            kvm_table__words(&t,
                             KVM_STR("best layer, on items that did not choose it"));
            kvm_table__words(&t, a->best.title);
            kvm_table_est(&t, a->best.score, a->format);
            kvm_table_est(&t, a->best.versus, difference);
        }
    }
    return t;
}

kvm_table kvm_report_table_chosen(kvm_arena *keep, const kvm_document *d)
{
    static const kvm_column columns[] = {
        HEAD("suite", "Suite", TEXT), HEAD("cache", "Cache", TEXT),
        HEAD("overlap", "Of the native choice", EST),
        HEAD("needle", "Needle among the chosen", EST)};
    kvm_table t = kvm_table_new(keep, "chosen", KVM_STR("What indexers choose"),
                                COLUMNS(columns));
    for (ptrdiff_t i = 0; i < d->analyses.suite_count; i++) {
        const kvm_analysis *a = &d->analyses.suites[i];
        for (ptrdiff_t k = 0; k < a->chosen_count; k++) {
            kvm_table__words(&t, a->suite);
            kvm_table__words(&t, a->chosen[k].title);
            kvm_table_est(&t, a->chosen[k].overlap, KVM_FORMAT_PERCENT);
            kvm_table_est(&t, a->chosen[k].needle, KVM_FORMAT_PERCENT);
        }
    }
    return t;
}

kvm_table kvm_report_table_tails(kvm_arena *keep, const kvm_document *d)
{
    static const kvm_column columns[] = {HEAD("tokens", "Length (tokens)", NUMBER),
                                         HEAD("share", "Read by the target", NUMBER),
                                         HEAD("seconds", "Switch TTFT", EST),
                                         HEAD("cold", "Cold TTFT", EST),
                                         HEAD("speedup", "Cold ÷ switch", EST),
                                         HEAD("rounds", "Rounds", NUMBER)};
    kvm_table t = kvm_table_new(keep, "tails", KVM_STR("Tails"), COLUMNS(columns));
    for (ptrdiff_t i = 0; i < d->analyses.tail_count; i++) {
        const kvm_tail_times *p = &d->analyses.tails[i];
        for (ptrdiff_t k = 0; k < p->count; k++) {
            kvm_table_num(&t, p->tokens, KVM_FORMAT_COUNT);
            kvm_table_num(&t, p->at[k].share, KVM_FORMAT_PERCENT);
            kvm_table_est(&t, p->at[k].seconds, KVM_FORMAT_SECONDS);
            kvm_table_est(&t, p->cold, KVM_FORMAT_SECONDS);
            kvm_table_est(&t, p->at[k].speedup, KVM_FORMAT_RATIO);
            kvm_table_num(&t, p->rounds, KVM_FORMAT_COUNT);
        }
    }
    return t;
}

static void inverted_rows(kvm_table *t, const kvm_inverted *v, const char *by)
{
    for (ptrdiff_t l = 0; l < v->count; l++) {
        kvm_table__words(t, v->model);
        kvm_table__words(t, v->side);
        kvm_table__words(t, v->object);
        kvm_table_num(t, v->point, KVM_FORMAT_COUNT);
        kvm_table_num(t, v->layers[l].layer, KVM_FORMAT_COUNT);
        kvm_table__words(t, kvm_str_of(by));
        kvm_table_est(t, v->layers[l].top1, KVM_FORMAT_PERCENT);
        kvm_table_num(t, v->layers[l].r2, KVM_FORMAT_R2);
    }
}

kvm_table kvm_report_table_inversion(kvm_arena *keep, const kvm_document *d)
{
    static const kvm_column columns[] = {
        HEAD("model", "Model", TEXT),      HEAD("side", "Side", TEXT),
        HEAD("object", "Object", TEXT),    HEAD("point", "Capture point", NUMBER),
        HEAD("layer", "Layer", NUMBER),    HEAD("by", "Read by", TEXT),
        HEAD("top1", "Right tokens", EST), HEAD("r2", "R², held-out", NUMBER)};
    kvm_table t =
        kvm_table_new(keep, "inversion", KVM_STR("Inversion"), COLUMNS(columns));
    for (ptrdiff_t i = 0; i < d->inversion.count; i++)
        inverted_rows(&t, &d->inversion.series[i], "ridge to embeddings");
    inverted_rows(&t, &d->inversion.codebook, "codebook");
    return t;
}
