/* page_quality.c - gates, suites, needle recall, answers, ablations. */
#include "reports/page_internal.h"

kvm_status kvm_page__gates(kvm_page *p)
{
    if (!kvm_page__section(p, KVM_SECTION_GATES, p->d->gate_count > 0)) return KVM_OK;
    kvm_page__lede(p,
                   KVM_STR("A required gate that fails decides the verdict. One that "
                           "was not measured leaves it open."));
    const kvm_table t = kvm_report_table_gates(p->mem, p->d);
    TRY(kvm_page__table(p, &t, false));
    kvm_page__section_end(p);
    return KVM_OK;
}

static kvm_str suite_note(kvm_page *p, const kvm_suite *s)
{
    const kvm_str items = kvm_counted(p->mem, s->items, "item");
    return kvm_str_fmt(p->mem, "%.*s%s%.*s%s", KVM_STR_ARG(s->metric),
                       s->metric.len ? ", " : "", KVM_STR_ARG(items),
                       s->lower_better ? ", lower is better" : "");
}

/* Where the axis of a suite of losses ends: controls can be worse by orders of
 * magnitude and must not squeeze what is compared. NaN: no need to cut. */
static double worth_showing(const kvm_suite *s)
{
    double most = 0, worst = 0;
    for (int a = 0; a < KVM_ARM_COUNT; a++) {
        const double v = s->arms[a].present ? s->arms[a].score.value : 0;
        if (!isfinite(v)) continue;
        if (kvm_arms[a].group != KVM_CONTROL) most = fmax(most, v);
        worst = fmax(worst, v);
    }
    return most > 0 && worst > 2 * most ? 1.5 * most : KVM_NONE;
}

/* One suite: a bar for every cache the target could continue on. */
static void suite_figure(kvm_page *p, const kvm_suite *s)
{
    kvm_bar bars[KVM_ARM_COUNT];
    ptrdiff_t n = 0;
    kvm_arm_group last = KVM_ANCHOR;
    for (int a = 0; a < KVM_ARM_COUNT; a++) {
        if (!s->arms[a].present) continue;
        const bool new_group = n > 0 && kvm_arms[a].group != last;
        bars[n++] = (kvm_bar){kvm_str_of(kvm_arms[a].label), s->arms[a].score,
                              kvm_look_arm((kvm_arm)a), new_group};
        last = kvm_arms[a].group;
    }
    const kvm_mark chance = {s->chance, KVM_STR("chance"), false};
    const bool marked = isfinite(s->chance) && s->chance != 0;
    const bool share = s->format == KVM_FORMAT_PERCENT;
    const double cut = s->lower_better ? worth_showing(s) : KVM_NONE;
    const kvm_bar_chart chart = {
        .title = s->title,
        .desc = KVM_STR("Score of the target on each cache, with 95 % intervals."),
        .format = s->format,
        .lo = 0,
        .hi = share ? 1 : cut,
        .bars = bars,
        .bar_count = n,
        .marks = &chance,
        .mark_count = marked};
    kvm_page__figure(p, s->title, suite_note(p, s));
    kvm_svg_bars(p->out, &chart);
    kvm_page__figure_end(p);
}

static void suite_notes(kvm_page *p)
{
    for (ptrdiff_t i = 0; i < p->d->suite_count; i++) {
        const kvm_suite *s = &p->d->suites[i];
        if (!s->note.len) continue;
        kvm_page__html(p, "<p class=\"foot\"><b>");
        kvm_page__text(p, s->title);
        kvm_page__html(p, ":</b> ");
        kvm_page__text(p, s->note);
        kvm_page__html(p, "</p>\n");
    }
}

/* What the names of the caches mean, for those that occur. */
static void arm_key(kvm_page *p)
{
    kvm_page__html(p, "<dl class=\"key\">");
    for (int a = 0; a < KVM_ARM_COUNT; a++) {
        bool used = false;
        for (ptrdiff_t i = 0; i < p->d->suite_count; i++)
            used |= p->d->suites[i].arms[a].present;
        if (!used) continue;
        kvm_text_addf(p->out, "<div class=\"%s\"><dt>%s</dt><dd>%s</dd></div>",
                      kvm_look_arm((kvm_arm)a).name, kvm_arms[a].label,
                      kvm_arms[a].what);
    }
    kvm_page__html(p, "</dl>\n");
}

kvm_status kvm_page__quality(kvm_page *p)
{
    if (!kvm_page__section(p, KVM_SECTION_SUITES, p->d->suite_count > 0)) return KVM_OK;
    kvm_page__lede(p, KVM_STR("The same items on every cache. Intervals are 95 % "
                              "percentile intervals of a paired bootstrap over items. "
                              "Controls show what a score is worth: a cache that holds "
                              "nothing of the prefix should not reach it."));
    arm_key(p);
    kvm_page__grid(p, 2);
    for (ptrdiff_t i = 0; i < p->d->suite_count; i++) suite_figure(p, &p->d->suites[i]);
    kvm_page__grid_end(p);
    suite_notes(p);
    kvm_page__part(p, KVM_STR("What the translators keep"));
    const kvm_table brief = kvm_report_table_translators(p->mem, p->d);
    if (kvm_table_rows(&brief))
        TRY(kvm_page__table(p, &brief, true));
    else
        kvm_page__missing(p, KVM_STR("Translators"), KVM_STR("none was scored"));
    kvm_page__html(p,
                   "<p class=\"foot\"><b>Retention</b> = score ÷ target’s own score. "
                   "<b>After chance</b> = (score − chance) ÷ (own − chance). <b>Gap "
                   "recovered</b> = (score − source alone) ÷ (own − source alone). "
                   "<b>Versus control</b> = score − the best of raw source, "
                   "wrong donor and zero. The verdict looks at measures of enough "
                   "items only, and at these intervals widened for the number of "
                   "comparisons with controls.</p>\n");
    const kvm_table full = kvm_report_table_quality(p->mem, p->d);
    TRY(kvm_page__folded(p, &full, KVM_STR("All caches, all figures")));
    kvm_page__section_end(p);
    return KVM_OK;
}

/* The recall of every cache that occurs, bands for the translators only: with all of
 * them the figure would be one blot. */
static kvm_status needle_series(kvm_page *p, kvm_series series[KVM_ARM_COUNT],
                                ptrdiff_t *count)
{
    const ptrdiff_t n = p->d->needle.count;
    double *x = kvm_new(p->mem, double, n);
    if (!x) return kvm_nomem(p->err, p->mem);
    for (ptrdiff_t i = 0; i < n; i++) x[i] = p->d->needle.points[i].tokens;
    for (int a = 0; a < KVM_ARM_COUNT; a++) {
        double *y = kvm_new(p->mem, double, 3 * n);
        if (!y) return kvm_nomem(p->err, p->mem);
        bool any = false;
        for (ptrdiff_t i = 0; i < n; i++) {
            const kvm_est e = p->d->needle.points[i].arms[a];
            y[i] = e.value, y[n + i] = e.low, y[2 * n + i] = e.high;
            any |= p->d->needle.points[i].present[a];
        }
        if (!any) continue;
        const bool band = kvm_arms[a].group == KVM_ARM;
        series[(*count)++] = (kvm_series){.name = kvm_str_of(kvm_arms[a].label),
                                          .x = x,
                                          .y = y,
                                          .low = band ? y + n : NULL,
                                          .high = band ? y + 2 * n : NULL,
                                          .n = n,
                                          .look = kvm_look_arm((kvm_arm)a),
                                          .dashed = kvm_arms[a].group == KVM_CONTROL};
    }
    return KVM_OK;
}

/* "40 items at each length", "2 to 3 items at each length" */
static kvm_str items_by_length(kvm_page *p)
{
    double least = p->d->needle.items, most = least;
    for (ptrdiff_t i = 0; i < p->d->needle.count; i++) {
        least = fmin(least, p->d->needle.points[i].items); /* passes NaN over */
        most = fmax(most, p->d->needle.points[i].items);
    }
    const kvm_str counted = kvm_counted(p->mem, most, "item");
    if (!(least < most))
        return kvm_str_fmt(p->mem, "%.*s at each length", KVM_STR_ARG(counted));
    return kvm_str_fmt(p->mem, "%s to %.*s at each length",
                       kvm_numeral_of(least, KVM_FORMAT_COUNT).at,
                       KVM_STR_ARG(counted));
}

static kvm_status needle_figure(kvm_page *p)
{
    kvm_series series[KVM_ARM_COUNT];
    ptrdiff_t count = 0;
    TRY(needle_series(p, series, &count));
    const kvm_line_chart chart = {
        .title = KVM_STR("Needle recall by length"),
        .desc = KVM_STR("Recall of the hidden answer on each cache against the length "
                        "of the prefix."),
        .x = {.title = KVM_STR("prefix, tokens"),
              .format = KVM_FORMAT_TOKENS,
              .log = true,
              .doubling = true},
        .y = {.title = KVM_STR("recall"),
              .format = KVM_FORMAT_PERCENT,
              .fixed = true,
              .lo = 0,
              .hi = 1},
        .series = series,
        .series_count = count};
    kvm_page__figure(p, KVM_STR("Recall by length"), items_by_length(p));
    kvm_svg_lines(p->out, &chart);
    kvm_page__figure_end(p);
    return KVM_OK;
}

kvm_status kvm_page__needle(kvm_page *p)
{
    if (!kvm_page__section(p, KVM_SECTION_NEEDLE, p->d->needle.count > 0))
        return KVM_OK;
    kvm_page__lede(p, KVM_STR("Share of prompts in which the answer hidden in the "
                              "prefix comes back, by length of the prefix."));
    kvm_page__grid(p, 2);
    TRY(needle_figure(p));
    const kvm_table recall = kvm_report_table_recall(p->mem, p->d);
    kvm_page__html(p, "<div class=\"beside\">");
    TRY(kvm_page__table(p, &recall, false));
    kvm_page__html(p, "</div>\n");
    kvm_page__grid_end(p);
    if (p->d->needle.note.len) kvm_page__lede(p, p->d->needle.note);
    const kvm_table t = kvm_report_table_needle(p->mem, p->d);
    TRY(kvm_page__folded(
        p, &t, KVM_STR("Recall with intervals, achieved lengths and BOS counts")));
    kvm_page__section_end(p);
    return KVM_OK;
}

kvm_status kvm_page__answers(kvm_page *p)
{
    if (!kvm_page__section(p, KVM_SECTION_ANSWERS, p->d->answers.count > 0))
        return KVM_OK;
    kvm_page__lede(p,
                   KVM_STR("A cache carries manners over too: how long answers are, "
                           "whether they begin with a blank or say nothing. Neither "
                           "KL nor accuracy shows it. Tokens are those before a stop "
                           "string."));
    const kvm_table t = kvm_report_table_answers(p->mem, p->d);
    TRY(kvm_page__table(p, &t, true));
    kvm_page__section_end(p);
    return KVM_OK;
}

/* of one suite: its columns, and how far they are from the complete row's */
static kvm_status ablated_suite(kvm_page *p, kvm_str suite)
{
    const kvm_table t = kvm_report_table_ablated(p->mem, p->d, suite);
    if (suite.len) kvm_page__part(p, suite);
    return kvm_page__table(p, &t, false);
}

static bool before(const kvm_document *d, ptrdiff_t column)
{
    for (ptrdiff_t i = 0; i < column; i++)
        if (kvm_str_eq(d->ablations.columns[i].suite,
                       d->ablations.columns[column].suite))
            return true;
    return false;
}

kvm_status kvm_page__ablations(kvm_page *p)
{
    if (!kvm_page__section(p, KVM_SECTION_ABLATIONS, p->d->ablations.row_count > 0))
        return KVM_OK;
    kvm_page__lede(p, KVM_STR("The same pair with one part of the translator taken "
                              "away, scored on the same items. The difference from "
                              "the complete translator is paired."));
    for (ptrdiff_t i = 0; i < p->d->ablations.column_count; i++)
        if (!before(p->d, i)) TRY(ablated_suite(p, p->d->ablations.columns[i].suite));
    const kvm_table t = kvm_report_table_ablations(p->mem, p->d);
    TRY(kvm_page__folded(p, &t, KVM_STR("Every figure, with its difference")));
    kvm_page__section_end(p);
    return KVM_OK;
}
