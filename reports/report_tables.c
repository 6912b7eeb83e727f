#include "reports/report_tables_internal.h"

const kvm_report_table kvm_report_tables[] = {
#define X(NAME, suffix, file) {file, kvm_report_table_##suffix},
    KVM_REPORT_TABLES(X)
#undef X
        {NULL, NULL}};

kvm_table kvm_report_table_gates(kvm_arena *keep, const kvm_document *d)
{
    static const kvm_column columns[] = {
        HEAD("gate", "Gate", TEXT),         HEAD("verdict", "Verdict", TEXT),
        HEAD("value", "Measured", EST),     HEAD("need", "Needs", TEXT),
        HEAD("required", "Required", TEXT), HEAD("where", "Where, why", TEXT)};
    static const char *const verdict[] = {"✓ passed", "✗ failed", "– not measured",
                                          "– does not apply"};
    static const kvm_tone tone[] = {KVM_TONE_GOOD, KVM_TONE_BAD, KVM_TONE_WARN,
                                    KVM_TONE_MUTED};
    kvm_table t = kvm_table_new(keep, "gates", KVM_STR("Gates"), COLUMNS(columns));
    for (ptrdiff_t i = 0; i < d->gate_count; i++) {
        const kvm_gate *g = &d->gates[i];
        kvm_table__words(&t, g->title);
        kvm_table_text(&t, kvm_str_of(verdict[g->verdict]), tone[g->verdict]);
        kvm_table_est(&t, g->value, g->format);
        kvm_table__words(&t, g->need.len ? g->need : KVM_STR("not stated"));
        kvm_table__static(&t, g->verdict == KVM_GATE_INAPPLICABLE ? "–"
                              : g->required                       ? "yes"
                                                                  : "advice");
        const kvm_str where =
            g->where.len && g->note.len
                ? kvm_str_fmt(keep, "%.*s: %.*s", KVM_STR_ARG(g->where),
                              KVM_STR_ARG(g->note))
                : (g->where.len ? g->where : g->note);
        kvm_table__words(&t, where.len ? where : KVM_STR("whole translator"));
    }
    return t;
}

static const char *group_name(kvm_arm arm)
{
    switch (kvm_arms[arm].group) {
    case KVM_ANCHOR:
        return "anchor";
    case KVM_ARM:
        return "translator";
    case KVM_CONTROL:
        return "control";
    }
    return "";
}

kvm_table kvm_report_table_quality(kvm_arena *keep, const kvm_document *d)
{
    static const kvm_column columns[] = {
        HEAD("suite", "Suite", TEXT),
        HEAD("cache", "Cache", TEXT),
        HEAD("group", "Group", TEXT),
        HEAD("metric", "Metric", TEXT),
        HEAD("items", "Items", NUMBER),
        HEAD("chance", "Chance", NUMBER),
        HEAD("score", "Score", EST),
        HEAD("retention", "Retention", EST),
        HEAD("floor_normalised", "After chance", EST),
        HEAD("gap_recovered", "Gap recovered", EST),
        HEAD("versus_native", "Versus native", EST),
        HEAD("versus_control", "Versus control", EST),
        HEAD("versus_closed", "Versus closed form", EST)};
    kvm_table t = kvm_table_new(keep, "quality", KVM_STR("Quality"), COLUMNS(columns));
    for (ptrdiff_t i = 0; i < d->suite_count; i++)
        for (int a = 0; a < KVM_ARM_COUNT; a++) {
            const kvm_suite *s = &d->suites[i];
            const kvm_suite_arm *arm = &s->arms[a];
            if (!arm->present) continue;
            kvm_table__words(&t, s->title);
            kvm_table__static(&t, kvm_arms[a].label);
            kvm_table__static(&t, group_name((kvm_arm)a));
            kvm_table__words(&t, s->metric.len ? s->metric : KVM_STR("not stated"));
            kvm_table_num(&t, s->items, KVM_FORMAT_COUNT);
            kvm_table_num(&t, s->chance, s->format);
            kvm_table_est(&t, arm->score, s->format);
            kvm_table_est(&t, arm->retention, KVM_FORMAT_PERCENT);
            kvm_table_est(&t, arm->floor_normalised, KVM_FORMAT_PERCENT);
            kvm_table_est(&t, arm->gap_recovered, KVM_FORMAT_PERCENT);
            kvm_table_est(&t, arm->versus_native, kvm_table__difference(s->format));
            kvm_table_est(&t, arm->versus_control, kvm_table__difference(s->format));
            kvm_table_est(&t, arm->versus_closed, kvm_table__difference(s->format));
        }
    return t;
}

/* the score without its interval: what another arm is measured against */
static kvm_est point_only(const kvm_suite_arm *arm)
{
    if (!arm->present) return kvm_est_missing(KVM_STR("this arm was not run"));
    return (kvm_est){arm->score.value, KVM_NONE, KVM_NONE, arm->score.note};
}

kvm_table kvm_report_table_translators(kvm_arena *keep, const kvm_document *d)
{
    static const kvm_column columns[] = {HEAD("suite", "Suite", TEXT),
                                         HEAD("translator", "Translator", TEXT),
                                         HEAD("score", "Score", EST),
                                         HEAD("native", "Target, own", NUMBER),
                                         HEAD("source", "Source alone", NUMBER),
                                         HEAD("retention", "Retention", EST),
                                         HEAD("floor_normalised", "After chance", EST),
                                         HEAD("gap_recovered", "Gap recovered", EST),
                                         HEAD("versus_control", "Versus control", EST)};
    kvm_table t =
        kvm_table_new(keep, "translators", KVM_STR("Translators"), COLUMNS(columns));
    for (ptrdiff_t i = 0; i < d->suite_count; i++)
        for (int a = 0; a < KVM_ARM_COUNT; a++) {
            const kvm_suite *s = &d->suites[i];
            const kvm_suite_arm *arm = &s->arms[a];
            if (!arm->present || kvm_arms[a].group != KVM_ARM) continue;
            kvm_table__words(&t, s->title);
            kvm_table__static(&t, kvm_arms[a].label);
            kvm_table_est(&t, arm->score, s->format);
            kvm_table_est(&t, point_only(&s->arms[KVM_ARM_NATIVE]), s->format);
            kvm_table_est(&t, point_only(&s->arms[KVM_ARM_SOURCE]), s->format);
            kvm_table_est(&t, arm->retention, KVM_FORMAT_PERCENT);
            kvm_table_est(&t, arm->floor_normalised, KVM_FORMAT_PERCENT);
            kvm_table_est(&t, arm->gap_recovered, KVM_FORMAT_PERCENT);
            kvm_table_est(&t, arm->versus_control, kvm_table__difference(s->format));
        }
    return t;
}

kvm_table kvm_report_table_needle(kvm_arena *keep, const kvm_document *d)
{
    static const kvm_column columns[] = {HEAD("tokens", "Length (tokens)", NUMBER),
                                         HEAD("achieved", "Achieved (tokens)", NUMBER),
                                         HEAD("bos", "BOS tokens", NUMBER),
                                         HEAD("cache", "Cache", TEXT),
                                         HEAD("recall", "Recall", EST)};
    kvm_table t =
        kvm_table_new(keep, "needle", KVM_STR("Needle recall"), COLUMNS(columns));
    for (ptrdiff_t i = 0; i < d->needle.count; i++)
        for (int a = 0; a < KVM_ARM_COUNT; a++) {
            const kvm_needle_point *p = &d->needle.points[i];
            if (!p->present[a]) continue;
            kvm_table_num(&t, p->tokens, KVM_FORMAT_COUNT);
            kvm_table_num(&t, p->achieved, KVM_FORMAT_COUNT);
            kvm_table_num(&t, p->bos, KVM_FORMAT_COUNT);
            kvm_table__static(&t, kvm_arms[a].label);
            kvm_table_est(&t, p->arms[a], KVM_FORMAT_PERCENT);
        }
    return t;
}

kvm_table kvm_report_table_recall(kvm_arena *keep, const kvm_document *d)
{
    kvm_table failed = {.name = "recall", .failed = true};
    kvm_column *columns = kvm_new(keep, kvm_column, KVM_ARM_COUNT + 2);
    int arms[KVM_ARM_COUNT], n = 0;
    if (!columns) return failed;
    columns[0] = (kvm_column)HEAD("tokens", "Length (tokens)", NUMBER);
    columns[1] = (kvm_column)HEAD("achieved", "Achieved", NUMBER);
    for (int a = 0; a < KVM_ARM_COUNT; a++) {
        bool any = false;
        for (ptrdiff_t i = 0; i < d->needle.count; i++)
            any |= d->needle.points[i].present[a];
        if (!any) continue;
        columns[2 + n] = (kvm_column){kvm_arms[a].key, kvm_str_of(kvm_arms[a].label),
                                      KVM_COL_NUMBER};
        arms[n++] = a;
    }
    kvm_table t = kvm_table_new(keep, "recall", KVM_STR("Recall"), columns, 2 + n);
    for (ptrdiff_t i = 0; i < d->needle.count; i++) {
        const kvm_needle_point *p = &d->needle.points[i];
        kvm_table_num(&t, p->tokens, KVM_FORMAT_COUNT);
        kvm_table_num(&t, p->achieved, KVM_FORMAT_COUNT);
        for (int a = 0; a < n; a++) {
            const kvm_est e = p->arms[arms[a]];
            kvm_table_est(&t, (kvm_est){e.value, KVM_NONE, KVM_NONE, e.note},
                          KVM_FORMAT_PERCENT);
        }
    }
    return t;
}

kvm_table kvm_report_table_timing(kvm_arena *keep, const kvm_document *d)
{
    static const kvm_column columns[] = {
        HEAD("tokens", "Length (tokens)", NUMBER),
        HEAD("cold", "Cold TTFT", EST),
        HEAD("switch", "Switch TTFT", EST),
        HEAD("speedup", "Cold ÷ switch", EST),
        HEAD("rounds", "Rounds", NUMBER),
        HEAD("computed_bytes", "Cache bytes, computed", NUMBER),
        HEAD("peak_bytes", "Peak memory", NUMBER),
        HEAD("translate_tokens_per_s", "Translate (tokens/s)", NUMBER),
        HEAD("note", "Note", TEXT)};
    kvm_table t = kvm_table_new(keep, "timing", KVM_STR("Timing"), COLUMNS(columns));
    for (ptrdiff_t i = 0; i < d->timing.count; i++) {
        const kvm_time_point *p = &d->timing.points[i];
        kvm_table_num(&t, p->tokens, KVM_FORMAT_COUNT);
        kvm_table_est(&t, p->cold, KVM_FORMAT_SECONDS);
        kvm_table_est(&t, p->swap, KVM_FORMAT_SECONDS);
        kvm_table_est(&t, p->speedup, KVM_FORMAT_RATIO);
        kvm_table_num(&t, p->rounds, KVM_FORMAT_COUNT);
        kvm_table_num(&t, p->computed_bytes, KVM_FORMAT_BYTES);
        kvm_table_num(&t, p->peak_bytes, KVM_FORMAT_BYTES);
        kvm_table_num(&t, p->tokens_per_s, KVM_FORMAT_RATE);
        kvm_table__words(&t, p->note.len ? p->note : KVM_STR("–"));
    }
    return t;
}

kvm_table kvm_report_table_stages(kvm_arena *keep, const kvm_document *d)
{
    static const kvm_column columns[] = {
        HEAD("tokens", "Length (tokens)", NUMBER), HEAD("arm", "Start", TEXT),
        HEAD("stage", "Stage", TEXT), HEAD("seconds", "Time", NUMBER)};
    kvm_table t = kvm_table_new(keep, "stages", KVM_STR("Stages"), COLUMNS(columns));
    for (ptrdiff_t i = 0; i < d->timing.count; i++) {
        const kvm_time_point *p = &d->timing.points[i];
        const kvm_stages *arms[] = {&p->cold_stages, &p->switch_stages};
        for (int a = 0; a < 2; a++)
            for (ptrdiff_t s = 0; s < arms[a]->n; s++) {
                kvm_table_num(&t, p->tokens, KVM_FORMAT_COUNT);
                kvm_table__static(&t, a ? "switch" : "cold");
                kvm_table__words(&t, arms[a]->at[s].name);
                kvm_table_num(&t, arms[a]->at[s].seconds, KVM_FORMAT_SECONDS);
            }
    }
    return t;
}

kvm_table kvm_report_table_build(kvm_arena *keep, const kvm_document *d)
{
    static const char *const whom[KVM_STEP_SERVES_COUNT] = {
        "every pair of the model", "both directions", "this direction"};
    static const kvm_column columns[] = {
        HEAD("step", "Step", TEXT), HEAD("seconds", "Time", NUMBER),
        HEAD("cpu_seconds", "CPU time", NUMBER), HEAD("attempts", "Attempts", NUMBER),
        HEAD("serves", "Serves", TEXT)};
    kvm_table t = kvm_table_new(keep, "build", KVM_STR("Cost of the translator"),
                                COLUMNS(columns));
    double sum = 0, cpu = 0, attempts = 0;
    for (ptrdiff_t i = 0; i < d->build.step_count; i++) {
        const kvm_build_step *s = &d->build.steps[i];
        kvm_table__words(&t, s->title);
        kvm_table_num(&t, s->seconds, KVM_FORMAT_SECONDS);
        kvm_table_num(&t, s->cpu_seconds, KVM_FORMAT_SECONDS);
        kvm_table_num(&t, s->attempts, KVM_FORMAT_COUNT);
        kvm_table__static(&t, whom[s->serves]);
        sum += s->seconds;
        cpu += s->cpu_seconds;
        attempts += s->attempts;
    }
    if (d->build.step_count) {
        kvm_table_text(&t, KVM_STR("all steps"), KVM_TONE_STRONG);
        kvm_table_num(&t, sum, KVM_FORMAT_SECONDS);
        kvm_table_num(&t, cpu, KVM_FORMAT_SECONDS);
        kvm_table_num(&t, attempts, KVM_FORMAT_COUNT);
        kvm_table__static(&t, "–");
    }
    return t;
}

kvm_table kvm_report_table_amortise(kvm_arena *keep, const kvm_document *d)
{
    static const kvm_column columns[] = {
        HEAD("tokens", "Length (tokens)", NUMBER),
        HEAD("switches", "Switches that pay for the build", EST)};
    kvm_table t =
        kvm_table_new(keep, "amortise", KVM_STR("Amortisation"), COLUMNS(columns));
    for (ptrdiff_t i = 0; i < d->build.amortise_count; i++) {
        kvm_table_num(&t, d->build.amortise[i].tokens, KVM_FORMAT_COUNT);
        kvm_table_est(&t, d->build.amortise[i].switches, KVM_FORMAT_COUNT);
    }
    return t;
}

kvm_table kvm_report_table_provenance(kvm_arena *keep, const kvm_document *d)
{
    static const kvm_column columns[] = {HEAD("group", "Group", TEXT),
                                         HEAD("item", "Item", TEXT),
                                         HEAD("value", "Value", TEXT)};
    kvm_table t =
        kvm_table_new(keep, "provenance", KVM_STR("Provenance"), COLUMNS(columns));
    for (ptrdiff_t f = 0; f < d->fact_count; f++)
        for (ptrdiff_t i = 0; i < d->provenance[f].count; i++) {
            kvm_table__words(&t, d->provenance[f].title);
            kvm_table__words(&t, d->provenance[f].rows[i][0]);
            kvm_table__words(&t, d->provenance[f].rows[i][1]);
        }
    return t;
}
