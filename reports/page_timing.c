/* page_timing.c - time to the first token, stages, cost of the translator. */
#include "reports/page_internal.h"

#define STAGES_MOST 12

static bool ttft_series(kvm_page *p, kvm_series *s, const double *x, bool is_switch)
{
    const ptrdiff_t n = p->d->timing.count;
    double *y = kvm_new(p->mem, double, 3 * n);
    if (!y) return false;
    for (ptrdiff_t i = 0; i < n; i++) {
        const kvm_time_point *at = &p->d->timing.points[i];
        const kvm_est e = is_switch ? at->swap : at->cold;
        y[i] = e.value, y[n + i] = e.low, y[2 * n + i] = e.high;
    }
    *s = (kvm_series){.name = is_switch ? KVM_STR("switch: translated cache")
                                        : KVM_STR("cold: target prefills"),
                      .x = x,
                      .y = y,
                      .low = y + n,
                      .high = y + 2 * n,
                      .n = n,
                      .look = is_switch ? kvm_look_palette(0)
                                        : kvm_look_arm(KVM_ARM_NATIVE)};
    return true;
}

static kvm_status ttft_figure(kvm_page *p)
{
    const ptrdiff_t n = p->d->timing.count;
    double *x = kvm_new(p->mem, double, n);
    kvm_series series[2];
    if (!x || !ttft_series(p, &series[0], x, false) ||
        !ttft_series(p, &series[1], x, true))
        return kvm_nomem(p->err, p->mem);
    for (ptrdiff_t i = 0; i < n; i++) x[i] = p->d->timing.points[i].tokens;
    const kvm_est even = p->d->timing.break_even;
    const kvm_str label =
        kvm_est_has(even) ? kvm_str_fmt(p->mem, "%s %.*s tokens",
                                        even.note.len ? "sooner from" : "break-even",
                                        KVM_STR_ARG(kvm_number(p->mem, ceil(even.value),
                                                               KVM_FORMAT_COUNT)))
                          : KVM_STR("");
    const kvm_mark mark = {even.value, label, false};
    const kvm_line_chart chart = {
        .title = KVM_STR("Time to the first token by length"),
        .desc = KVM_STR("Median seconds to the first token of a cold prefill and of a "
                        "switch, both axes logarithmic; bands are quartiles."),
        .x = {.title = KVM_STR("prefix, tokens"),
              .format = KVM_FORMAT_TOKENS,
              .log = true,
              .doubling = true},
        .y = {.title = KVM_STR("time to the first token"),
              .format = KVM_FORMAT_SECONDS,
              .log = true},
        .series = series,
        .series_count = 2,
        .marks = &mark,
        .mark_count = kvm_est_has(even)};
    kvm_page__figure(p, KVM_STR("Cold prefill and switch"),
                     KVM_STR("median; bands are quartiles"));
    kvm_svg_lines(p->out, &chart);
    kvm_page__figure_end(p);
    return KVM_OK;
}

/* The names of the switch's stages in the order they first occur. */
static ptrdiff_t stage_names(const kvm_document *d, kvm_str names[STAGES_MOST])
{
    ptrdiff_t n = 0;
    for (ptrdiff_t i = 0; i < d->timing.count; i++) {
        const kvm_stages *s = &d->timing.points[i].switch_stages;
        for (ptrdiff_t j = 0; j < s->n; j++) {
            ptrdiff_t at = 0;
            while (at < n && !kvm_str_eq(names[at], s->at[j].name)) at++;
            if (at == n && n < STAGES_MOST) names[n++] = s->at[j].name;
        }
    }
    return n;
}

/* "first_decode" -> "first decode" */
static kvm_str in_words(kvm_arena *mem, kvm_str name)
{
    kvm_str out = KVM_STR("");
    for (kvm_str rest = name, piece; rest.len && out.at;) {
        const bool more = kvm_str_cut(rest, '_', &piece, &rest);
        out = kvm_str_fmt(mem, "%.*s%.*s%s", KVM_STR_ARG(out), KVM_STR_ARG(piece),
                          more ? " " : "");
    }
    return out;
}

static kvm_status stage_figure(kvm_page *p)
{
    const ptrdiff_t rows = p->d->timing.count;
    kvm_str names[STAGES_MOST], shown[STAGES_MOST];
    kvm_look looks[STAGES_MOST];
    const ptrdiff_t parts = stage_names(p->d, names);
    kvm_page__figure(p, KVM_STR("Where the switch spends its time"),
                     KVM_STR("share of each stage, and the sum"));
    if (!parts) {
        kvm_page__missing(p, KVM_STR("Stages"), KVM_STR("no stage was timed"));
        kvm_page__figure_end(p);
        return KVM_OK;
    }
    double *value = kvm_arena_alloc(p->mem, sizeof *value * STAGES_MOST, 64, rows);
    kvm_str *lengths = kvm_new(p->mem, kvm_str, rows);
    if (!value || !lengths) return kvm_nomem(p->err, p->mem);
    for (ptrdiff_t i = 0; i < parts; i++) {
        shown[i] = in_words(p->mem, names[i]);
        looks[i] = kvm_look_palette(i);
    }
    for (ptrdiff_t r = 0; r < rows; r++) {
        const kvm_time_point *at = &p->d->timing.points[r];
        lengths[r] = kvm_number(p->mem, at->tokens, KVM_FORMAT_TOKENS);
        for (ptrdiff_t j = 0; j < at->switch_stages.n; j++)
            for (ptrdiff_t i = 0; i < parts; i++)
                if (kvm_str_eq(names[i], at->switch_stages.at[j].name))
                    value[r * parts + i] = at->switch_stages.at[j].seconds;
    }
    const kvm_stack_chart chart = {
        .title = KVM_STR("Stages of the switch by length"),
        .desc = KVM_STR("For each length the share of each stage in the switch's time "
                        "to the first token."),
        .part_names = shown,
        .looks = looks,
        .part_count = parts,
        .row_names = lengths,
        .value = value,
        .row_count = rows,
        .format = KVM_FORMAT_SECONDS};
    kvm_svg_stack(p->out, &chart);
    kvm_page__figure_end(p);
    return KVM_OK;
}

static double least_rounds(const kvm_document *d)
{
    double least = d->timing.rounds;
    for (ptrdiff_t i = 0; i < d->timing.count; i++)
        if (d->timing.points[i].rounds < least) least = d->timing.points[i].rounds;
    return least;
}

static void conditions(kvm_page *p)
{
    kvm_page__html(p, "<p class=\"lede\">Both arms in one process, interleaved, same "
                      "kernels and threads. Cold: the target’s prefill and first "
                      "decode. Switch: capture of what the source’s cache does not "
                      "keep, transfer, tokens read out of it where maps are told them, "
                      "translation, states, injection and first decode (the source has "
                      "read the prefix already). ");
    const double least = least_rounds(p->d);
    const bool fewer = least < p->d->timing.rounds;
    if (fewer) {
        kvm_page__number(p, least, KVM_FORMAT_COUNT);
        kvm_page__html(p, " to ");
    }
    kvm_page__number(p, p->d->timing.rounds, KVM_FORMAT_COUNT);
    kvm_page__html(p, " rounds");
    if (fewer) kvm_page__html(p, " (the fewest where they take longest)");
    kvm_page__html(p, " after ");
    kvm_page__number(p, p->d->timing.warmups, KVM_FORMAT_COUNT);
    kvm_page__html(p, " warm-ups, ");
    kvm_page__number(p, p->d->timing.threads, KVM_FORMAT_COUNT);
    if (p->d->timing.threads == 1)
        kvm_page__html(p, " thread, ");
    else
        kvm_page__html(p, " threads, ");
    kvm_page__text(p, p->d->timing.machine.len ? p->d->timing.machine
                                               : KVM_STR("machine not stated"));
    kvm_page__html(p, ". Cache bytes are computed, not measured: tokens × bytes of a "
                      "row of every source layer that the maps read and of every "
                      "target layer, in the type an engine keeps it in.</p>\n");
}

kvm_status kvm_page__timing(kvm_page *p)
{
    if (!kvm_page__section(p, KVM_SECTION_TIMING, p->d->timing.count > 0))
        return KVM_OK;
    conditions(p);
    kvm_page__grid(p, 2);
    TRY(ttft_figure(p));
    TRY(stage_figure(p));
    kvm_page__grid_end(p);
    if (!kvm_est_has(p->d->timing.break_even))
        kvm_page__missing(p, KVM_STR("Break-even length"),
                          p->d->timing.break_even.note);
    const kvm_table t = kvm_report_table_timing(p->mem, p->d);
    TRY(kvm_page__table(p, &t, false));
    const kvm_table stages = kvm_report_table_stages(p->mem, p->d);
    TRY(kvm_page__folded(p, &stages, KVM_STR("Every stage of both arms")));
    kvm_page__section_end(p);
    return KVM_OK;
}

static void translator_facts(kvm_page *p)
{
    const kvm_document *d = p->d;
    kvm_page__html(p, "<p class=\"lede\">");
    if (d->translator.shape.len) {
        kvm_page__html(p, "Maps: ");
        kvm_page__text(p, d->translator.shape);
        kvm_page__html(p, "; ");
    }
    if (isfinite(d->translator.parameters)) {
        kvm_page__number(p, d->translator.parameters, KVM_FORMAT_COUNT);
        kvm_page__html(p, " parameters, ");
    }
    const double bytes =
        isfinite(d->build.bytes) ? d->build.bytes : d->translator.bytes;
    kvm_page__html(p, "file size ");
    if (isfinite(bytes))
        kvm_page__number(p, bytes, KVM_FORMAT_BYTES);
    else
        kvm_page__html(p, "not measured");
    kvm_page__html(p, ".</p>\n");
}

kvm_status kvm_page__build(kvm_page *p)
{
    const bool measured = p->d->build.step_count > 0 || p->d->build.amortise_count > 0;
    if (!kvm_page__section(p, KVM_SECTION_BUILD, measured)) return KVM_OK;
    translator_facts(p);
    kvm_page__html(p, "<div class=\"columns\">");
    kvm_page__html(p, "<div>");
    const kvm_table steps = kvm_report_table_build(p->mem, p->d);
    if (kvm_table_rows(&steps))
        TRY(kvm_page__table(p, &steps, false));
    else
        kvm_page__missing(p, KVM_STR("Steps"), KVM_STR(""));
    kvm_page__html(p, "</div><div>");
    const kvm_table pays = kvm_report_table_amortise(p->mem, p->d);
    if (kvm_table_rows(&pays))
        TRY(kvm_page__table(p, &pays, false));
    else
        kvm_page__missing(p, KVM_STR("Amortisation"), p->d->absent[KVM_SECTION_TIMING]);
    kvm_page__html(p, "</div></div>\n");
    kvm_page__section_end(p);
    return KVM_OK;
}
