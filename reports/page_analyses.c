/* page_analyses.c - what of a cache matters, and what it gives away. */
#include "reports/page_internal.h"

static bool in_group(const kvm_analysed_cache *c, const char *group)
{
    return !c->group.len || kvm_str_eq(c->group, kvm_str_of(group));
}

/* ---- caches put together ---- */

/* The translated cache and those of one group, a bar each. */
static kvm_status bars_of(kvm_page *p, const kvm_analysis *a, const char *group,
                          kvm_str heading)
{
    kvm_bar *bars = kvm_new(p->mem, kvm_bar, a->count);
    ptrdiff_t n = 0;
    if (!bars) return kvm_nomem(p->err, p->mem);
    for (ptrdiff_t i = 0; i < a->count; i++) {
        const kvm_analysed_cache *c = &a->caches[i];
        if (!in_group(c, group)) continue;
        const bool whole = !c->group.len;
        bars[n] = (kvm_bar){
            c->title, c->score,
            whole ? kvm_look_arm((kvm_arm)a->translator) : kvm_look_palette(1), n == 1};
        n++;
    }
    if (n < 2) return KVM_OK;
    const bool share = a->format == KVM_FORMAT_PERCENT;
    const kvm_mark native = {a->native.value, KVM_STR("native"), false};
    const kvm_bar_chart chart = {.title = heading,
                                 .desc = KVM_STR("Score of the target on each cache, "
                                                 "with 95 % intervals."),
                                 .format = a->format,
                                 .lo = 0,
                                 .hi = share ? 1 : KVM_NONE,
                                 .bars = bars,
                                 .bar_count = n,
                                 .marks = &native,
                                 .mark_count = share && kvm_est_has(a->native)};
    const kvm_str items = kvm_counted(p->mem, a->items, "item");
    kvm_page__figure(p, heading,
                     kvm_str_fmt(p->mem, "%.*s, %.*s%s", KVM_STR_ARG(a->title),
                                 KVM_STR_ARG(items),
                                 a->lower_better ? ", lower is better" : ""));
    kvm_svg_bars(p->out, &chart);
    kvm_page__figure_end(p);
    return KVM_OK;
}

/* Score against the share that the target reads itself, from none on. */
static kvm_status tail_figure(kvm_page *p, const kvm_analysis *a)
{
    double *x = kvm_new(p->mem, double, 4 * a->count);
    ptrdiff_t n = 0;
    if (!x) return kvm_nomem(p->err, p->mem);
    double *y = x + a->count, *low = y + a->count, *high = low + a->count;
    for (ptrdiff_t i = 0; i < a->count; i++) {
        const kvm_analysed_cache *c = &a->caches[i];
        if (!in_group(c, "tail")) continue;
        x[n] = c->group.len ? c->share : 0;
        y[n] = c->score.value, low[n] = c->score.low, high[n] = c->score.high;
        n++;
    }
    if (n < 2) return KVM_OK;
    const kvm_series series = {.x = x,
                               .y = y,
                               .low = low,
                               .high = high,
                               .n = n,
                               .look = kvm_look_arm((kvm_arm)a->translator)};
    const bool share = a->format == KVM_FORMAT_PERCENT;
    const kvm_line_chart chart = {
        .title = KVM_STR("Partial recompute"),
        .desc = KVM_STR("Score against the share of the prefix that the target reads "
                        "itself behind a translated head."),
        .x = {.title = KVM_STR("read by the target"), .format = KVM_FORMAT_PERCENT},
        .y =
            {.title = a->metric, .format = a->format, .fixed = share, .lo = 0, .hi = 1},
        .series = &series,
        .series_count = 1};
    kvm_page__figure(p, KVM_STR("Partial recompute"), a->title);
    kvm_svg_lines(p->out, &chart);
    kvm_page__figure_end(p);
    return KVM_OK;
}

/* The lowest of many bars is low by chance too: what it is on items that did not pick
 * it. */
static kvm_status best_layer(kvm_page *p, const kvm_analysis *a)
{
    const kvm_best_layer *best = &a->best;
    if (!best->name.len) return KVM_OK;
    const kvm_str on = kvm_counted(p->mem, best->chosen_on, "item");
    const kvm_str others = kvm_counted(p->mem, best->items, "other");
    const kvm_str score = kvm_est_text(p->mem, best->score, a->format);
    const kvm_str now = kvm_est_text(p->mem, best->translated, a->format);
    const kvm_str share = kvm_est_text(p->mem, best->share, KVM_FORMAT_PERCENT);
    if (!on.at || !others.at || !score.at || !now.at || !share.at)
        return kvm_nomem(p->err, p->mem);
    const kvm_str says = kvm_str_fmt(
        p->mem,
        "The best single layer, chosen on every second of the items (%.*s), judged on "
        "the %.*s: %.*s, %.*s; translated %.*s; of what all native restores %.*s.",
        KVM_STR_ARG(on), KVM_STR_ARG(others), KVM_STR_ARG(best->title),
        KVM_STR_ARG(score), KVM_STR_ARG(now), KVM_STR_ARG(share));
    if (!says.at) return kvm_nomem(p->err, p->mem);
    kvm_page__lede(p, says);
    return KVM_OK;
}

static kvm_status suite_figures(kvm_page *p, const kvm_analysis *a)
{
    kvm_page__part(p, a->title);
    kvm_page__grid(p, 3);
    TRY(bars_of(p, a, "swap", KVM_STR("Native objects put in")));
    TRY(bars_of(p, a, "split", KVM_STR("Parts alone")));
    TRY(tail_figure(p, a));
    kvm_page__grid_end(p);
    return best_layer(p, a);
}

static kvm_status chosen_table(kvm_page *p)
{
    const kvm_table t = kvm_report_table_chosen(p->mem, p->d);
    if (kvm_table_rows(&t) == 0) return KVM_OK;
    kvm_page__part(p, KVM_STR("What indexers choose"));
    kvm_page__lede(
        p,
        KVM_STR("Of the tokens from which answers are predicted, and the layers with "
                "an indexer, where the native choice leaves part of the prefix out: "
                "how much of the native choice is chosen here too, and how often "
                "something that holds the needle’s answer."));
    return kvm_page__table(p, &t, false);
}

kvm_status kvm_page__analyses(kvm_page *p)
{
    const bool any = p->d->analyses.suite_count > 0;
    if (!kvm_page__section(p, KVM_SECTION_ANALYSES, any)) return KVM_OK;
    kvm_page__lede(
        p,
        KVM_STR("The translated cache with native objects put in, with all but one "
                "kind of object emptied, and with its last tokens read by the target "
                "itself. All native is the floor: it is the target’s own cache, put "
                "together the same way. Empty objects are zeros of the same "
                "length."));
    for (ptrdiff_t i = 0; i < p->d->analyses.suite_count; i++)
        TRY(suite_figures(p, &p->d->analyses.suites[i]));
    const kvm_table t = kvm_report_table_analyses(p->mem, p->d);
    TRY(kvm_page__folded(p, &t, KVM_STR("All caches, with what they differ by")));
    TRY(chosen_table(p));
    if (p->d->analyses.tail_count) {
        kvm_page__part(p, KVM_STR("What a tail costs"));
        const kvm_table tails = kvm_report_table_tails(p->mem, p->d);
        TRY(kvm_page__table(p, &tails, false));
    }
    kvm_page__section_end(p);
    return KVM_OK;
}

/* ---- tokens ---- */

static kvm_status inverted_series(kvm_page *p, kvm_series *s, const kvm_inverted *v,
                                  ptrdiff_t i)
{
    double *x = kvm_new(p->mem, double, 4 * v->count);
    if (!x) return kvm_nomem(p->err, p->mem);
    double *y = x + v->count, *low = y + v->count, *high = low + v->count;
    for (ptrdiff_t l = 0; l < v->count; l++) {
        const kvm_est e = v->layers[l].top1;
        x[l] = v->layers[l].layer;
        y[l] = e.value, low[l] = e.low, high[l] = e.high;
    }
    *s = (kvm_series){.name = kvm_str_fmt(p->mem, "%.*s %.*s, point %g",
                                          KVM_STR_ARG(v->model), KVM_STR_ARG(v->object),
                                          v->point),
                      .x = x,
                      .y = y,
                      .low = low,
                      .high = high,
                      .n = v->count,
                      .look = kvm_look_palette(i),
                      .dashed = v->point != 3};
    return s->name.at ? KVM_OK : kvm_nomem(p->err, p->mem);
}

static kvm_status inversion_figure(kvm_page *p)
{
    const ptrdiff_t n = p->d->inversion.count;
    kvm_series *series = kvm_new(p->mem, kvm_series, n);
    if (!series) return kvm_nomem(p->err, p->mem);
    for (ptrdiff_t i = 0; i < n; i++)
        TRY(inverted_series(p, &series[i], &p->d->inversion.series[i], i));
    const kvm_line_chart chart = {
        .title = KVM_STR("Tokens recovered by layer"),
        .desc =
            KVM_STR("Share of held-out rows whose token is the nearest embedding to "
                    "a linear map of the row, by layer."),
        .x = {.title = KVM_STR("layer"), .format = KVM_FORMAT_COUNT, .whole = true},
        .y = {.title = KVM_STR("right tokens"),
              .format = KVM_FORMAT_PERCENT,
              .fixed = true,
              .lo = 0,
              .hi = 1},
        .series = series,
        .series_count = n};
    const kvm_str rows = kvm_number(p->mem, p->d->inversion.rows, KVM_FORMAT_COUNT);
    const kvm_str vocab = kvm_number(p->mem, p->d->inversion.vocab, KVM_FORMAT_COUNT);
    kvm_page__figure(p, KVM_STR("Tokens recovered by layer"),
                     kvm_str_fmt(p->mem,
                                 "%.*s held-out rows, %.*s tokens to choose from",
                                 KVM_STR_ARG(rows), KVM_STR_ARG(vocab)));
    kvm_svg_lines(p->out, &chart);
    kvm_page__figure_end(p);
    return KVM_OK;
}

kvm_status kvm_page__inversion(kvm_page *p)
{
    if (!kvm_page__section(p, KVM_SECTION_INVERSION, p->d->inversion.count > 0))
        return KVM_OK;
    kvm_page__lede(
        p,
        KVM_STR("A ridge from one layer’s cached row to the model’s own embedding of "
                "the token, then the nearest embedding of the vocabulary: the least "
                "that a cached row gives away of its prompt. A cache is to be "
                "protected like the text itself."));
    kvm_page__grid(p, 2);
    TRY(inversion_figure(p));
    kvm_page__grid_end(p);
    const kvm_table t = kvm_report_table_inversion(p->mem, p->d);
    TRY(kvm_page__folded(p, &t, KVM_STR("All layers and capture points")));
    kvm_page__section_end(p);
    return KVM_OK;
}
