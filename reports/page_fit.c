/* page_fit.c - how linear the caches are, and the fit layer by layer. */
#include "reports/page_internal.h"

#include <string.h>

enum { LEGEND_LAYERS = 8 };

static void map_figure(kvm_page *p, const kvm_r2_map *m)
{
    double sum = 0;
    ptrdiff_t targets = 0;
    for (ptrdiff_t c = 0; c < m->cols; c++) {
        double best = -(double)INFINITY;
        for (ptrdiff_t r = 0; r < m->rows; r++)
            if (m->r2[r * m->cols + c] > best) best = m->r2[r * m->cols + c];
        if (isfinite(best)) sum += best, targets++;
    }
    const kvm_heat_map heat = {
        .title = m->title,
        .desc = KVM_STR("R² of each source layer alone for each target layer."),
        .value = m->r2,
        .rows = m->rows,
        .cols = m->cols,
        .row_title = KVM_STR("source layer"),
        .col_title = KVM_STR("target layer"),
        .lo = 0,
        .hi = 1};
    const kvm_str mean =
        kvm_number(p->mem, targets ? sum / (double)targets : KVM_NONE, KVM_FORMAT_R2);
    kvm_page__figure(
        p, m->title,
        kvm_str_fmt(p->mem, "best single layer, mean R² %.*s", KVM_STR_ARG(mean)));
    kvm_svg_heat(p->out, &heat);
    kvm_page__figure_end(p);
}

/* An axis that ends at 1 and starts below the data, at 0 the lowest: what lies below is
 * drawn at the edge, for one bad layer must not flatten all others. */
static kvm_axis unit_axis(kvm_str title, const kvm_series *series, ptrdiff_t n)
{
    double least = 1;
    for (ptrdiff_t s = 0; s < n; s++)
        for (ptrdiff_t i = 0; i < series[s].n; i++)
            if (series[s].y[i] < least) least = series[s].y[i];
    const double lo = floor((least - 0.02) * 5) / 5;
    return (kvm_axis){.title = title,
                      .format = KVM_FORMAT_NUMBER,
                      .fixed = true,
                      .lo = lo > 0 ? lo : 0,
                      .hi = 1};
}

static kvm_status greedy_figure(kvm_page *p, const kvm_greedy *g)
{
    kvm_series *series = kvm_new(p->mem, kvm_series, g->count);
    if (g->count && !series) return kvm_nomem(p->err, p->mem);
    for (ptrdiff_t i = 0; i < g->count; i++) {
        const kvm_greedy_layer *l = &g->layers[i];
        double *x = kvm_new(p->mem, double, l->r2.n);
        if (l->r2.n && !x) return kvm_nomem(p->err, p->mem);
        for (ptrdiff_t k = 0; k < l->r2.n; k++) x[k] = (double)(k + 1);
        const bool named = g->count <= LEGEND_LAYERS || i == 0 || i == g->count - 1;
        series[i] = (kvm_series){
            .name = named ? kvm_str_fmt(p->mem, "layer %td", l->target) : KVM_STR(""),
            .x = x,
            .y = l->r2.at,
            .n = l->r2.n,
            .look = kvm_look_ramp(
                g->count > 1 ? 0.2 + 0.8 * (double)i / (double)(g->count - 1) : 0.7)};
    }
    const kvm_line_chart chart = {
        .title = g->title,
        .desc = KVM_STR("R² of each target layer as source layers are added, "
                        "the best first."),
        .x = {.title = KVM_STR("source layers used, k"),
              .format = KVM_FORMAT_COUNT,
              .whole = true},
        .y = unit_axis(KVM_STR("R², choosing split"), series, g->count),
        .series = series,
        .series_count = g->count};
    kvm_page__figure(
        p, g->title,
        KVM_STR("greedy forward selection, one line per target layer; a few "
                "layers, spread over the stack"));
    kvm_svg_lines(p->out, &chart);
    kvm_page__figure_end(p);
    return KVM_OK;
}

typedef struct sweep_words {
    kvm_str heading, note, axis, what, chosen;
    bool log;
} sweep_words;

/* The curve of one knob, the chosen value marked; the absolute lambda as single
 * points. */
static kvm_status sweep_figure(kvm_page *p, const kvm_sweep *s, const sweep_words *w)
{
    if (!s->knob.n || !s->count) {
        kvm_page__figure(p, w->heading, KVM_STR(""));
        kvm_page__missing(p, w->what, p->d->absent[KVM_SECTION_LINEARITY]);
        kvm_page__figure_end(p);
        return KVM_OK;
    }
    kvm_series *series = kvm_new(p->mem, kvm_series, 2 * s->count);
    if (!series) return kvm_nomem(p->err, p->mem);
    ptrdiff_t n = 0;
    for (ptrdiff_t i = 0; i < s->count; i++)
        series[n++] = (kvm_series){.name = s->titles[i],
                                   .x = s->knob.at,
                                   .y = s->r2[i].at,
                                   .n = s->knob.n,
                                   .look = kvm_look_palette(2 * i)};
    const bool absolute = s->absolute_r2.n > 0 && isfinite(s->absolute_at);
    for (ptrdiff_t i = 0; absolute && i < s->count; i++)
        series[n++] = (kvm_series){.x = &s->absolute_at,
                                   .y = &s->absolute_r2.at[i],
                                   .n = 1,
                                   .look = kvm_look_palette(2 * i),
                                   .no_line = true};
    const kvm_mark marks[] = {
        {s->chosen, w->chosen, false},
        {s->absolute_at,
         kvm_str_fmt(p->mem, "absolute λ %.*s",
                     KVM_STR_ARG(kvm_tick(p->mem, s->absolute, KVM_FORMAT_NUMBER))),
         false}};
    const bool chosen = isfinite(s->chosen);
    const kvm_line_chart chart = {
        .title = w->heading,
        .desc = w->note,
        .x = {.title = w->axis,
              .format = KVM_FORMAT_NUMBER,
              .log = w->log,
              .whole = true},
        .y = unit_axis(KVM_STR("R², choosing split"), series, n),
        .series = series,
        .series_count = n,
        .marks = chosen ? marks : marks + 1,
        .mark_count = chosen + absolute};
    kvm_page__figure(p, w->heading, w->note);
    kvm_svg_lines(p->out, &chart);
    kvm_page__figure_end(p);
    return KVM_OK;
}

static void calibration(kvm_page *p)
{
    if (!p->d->calibration.present) {
        kvm_page__missing(p, KVM_STR("Calibration"), KVM_STR(""));
        return;
    }
    kvm_page__html(p, "<p class=\"lede\">Calibration: ");
    kvm_page__text(p, p->d->calibration.text.len ? p->d->calibration.text
                                                 : KVM_STR("text not named"));
    kvm_page__html(p, "; ");
    kvm_page__number(p, p->d->calibration.sequences, KVM_FORMAT_COUNT);
    kvm_page__html(p, " sequences × ");
    kvm_page__number(p, p->d->calibration.sequence_tokens, KVM_FORMAT_COUNT);
    kvm_page__html(p, " tokens, stride ");
    kvm_page__number(p, p->d->calibration.stride, KVM_FORMAT_COUNT);
    kvm_page__html(p, "; ");
    kvm_page__number(p, p->d->calibration.rows, KVM_FORMAT_COUNT);
    kvm_page__html(p, " rows to fit ");
    kvm_page__number(p, p->d->calibration.features, KVM_FORMAT_COUNT);
    kvm_page__html(p, " features, ");
    kvm_page__number(p, p->d->calibration.choosing_rows, KVM_FORMAT_COUNT);
    kvm_page__html(p, " to choose layers, k and λ, ");
    kvm_page__number(p, p->d->calibration.held_out_rows, KVM_FORMAT_COUNT);
    kvm_page__html(p, " held out; split by sequence.</p>\n");
}

kvm_status kvm_page__linearity(kvm_page *p)
{
    const kvm_document *d = p->d;
    const bool measured =
        d->map_count + d->greedy_count + d->k.knob.n + d->lambda.knob.n > 0;
    if (!kvm_page__section(p, KVM_SECTION_LINEARITY, measured)) return KVM_OK;
    kvm_page__lede(p,
                   KVM_STR("Share of the target's variance that linear maps of the "
                           "source explain, on the sequences that chose layers, k "
                           "and λ: no fit has seen them, but the best of many is "
                           "flattered. It does not predict quality; the suites do."));
    calibration(p);
    if (d->map_count) {
        kvm_page__grid(p, 3);
        for (ptrdiff_t i = 0; i < d->map_count; i++) map_figure(p, &d->maps[i]);
        kvm_page__grid_end(p);
    } else {
        kvm_page__missing(p, KVM_STR("R² maps"), d->absent[KVM_SECTION_LINEARITY]);
    }
    kvm_page__grid(p, 2);
    for (ptrdiff_t i = 0; i < d->greedy_count; i++)
        TRY(greedy_figure(p, &d->greedy[i]));
    const sweep_words k = {KVM_STR("How many source layers"),
                           KVM_STR("top-k layers by single-layer R², mean over layers"),
                           KVM_STR("source layers used, k"),
                           KVM_STR("k curve"),
                           KVM_STR("chosen k"),
                           false};
    const sweep_words lambda = {KVM_STR("How much regularisation"),
                                KVM_STR("λ relative to the mean Gram diagonal"),
                                KVM_STR("relative λ"),
                                KVM_STR("λ curve"),
                                KVM_STR("chosen"),
                                true};
    TRY(sweep_figure(p, &d->k, &k));
    TRY(sweep_figure(p, &d->lambda, &lambda));
    kvm_page__grid_end(p);
    if (!d->greedy_count)
        kvm_page__missing(p, KVM_STR("Greedy curves"),
                          d->absent[KVM_SECTION_LINEARITY]);
    const kvm_table sweeps = kvm_report_table_sweeps(p->mem, d);
    TRY(kvm_page__folded(p, &sweeps, KVM_STR("k and λ, all values")));
    kvm_page__section_end(p);
    return KVM_OK;
}

/* ---- layer by layer ---- */

/* One quantity of a layer, with its place in kvm_layer_row. */
typedef struct layer_line {
    kvm_str name;
    size_t at;
    int colour;
    bool dashed;
} layer_line;
#define LINE(label, member, colour, dashed)                                            \
    {                                                                                  \
        KVM_STR(label), offsetof(kvm_layer_row, member), colour, dashed                \
    }

typedef struct layer_chart {
    kvm_str heading, note, axis;
    kvm_format format;
    bool share; /* the axis is 0 ... 1 */
    layer_line lines[4];
    int count;
} layer_chart;

static kvm_status add_line(kvm_page *p, kvm_series *out, const kvm_layer_set *set,
                           const layer_line *line, bool several)
{
    double *x = kvm_new(p->mem, double, set->count);
    double *y = kvm_new(p->mem, double, set->count);
    if (set->count && (!x || !y)) return kvm_nomem(p->err, p->mem);
    for (ptrdiff_t i = 0; i < set->count; i++) {
        kvm_est e;
        memcpy(&e, (const char *)&set->rows[i] + line->at, sizeof e);
        x[i] = (double)set->rows[i].layer;
        y[i] = e.value;
    }
    const kvm_str name = several
                             ? kvm_str_fmt(p->mem, "%.*s, %s", KVM_STR_ARG(line->name),
                                           kvm_arms[set->arm].label)
                             : line->name;
    *out = (kvm_series){.name = name,
                        .x = x,
                        .y = y,
                        .n = set->count,
                        .look = kvm_look_palette(line->colour),
                        .dashed = line->dashed};
    return KVM_OK;
}

static kvm_status layer_figure(kvm_page *p, const layer_chart *c)
{
    const ptrdiff_t sets = p->d->layer_count;
    kvm_series *series =
        kvm_arena_alloc(p->mem, sizeof *series * 4, _Alignof(kvm_series), sets);
    if (!series) return kvm_nomem(p->err, p->mem);
    ptrdiff_t n = 0;
    for (ptrdiff_t s = 0; s < sets; s++)
        for (int i = 0; i < c->count; i++) {
            /* in-sample curves of the first translator only: enough to see
             * overfitting */
            if (c->lines[i].dashed && s > 0) continue;
            layer_line line = c->lines[i];
            line.colour += (int)s; /* a neighbour in the palette */
            TRY(add_line(p, &series[n++], &p->d->layers[s], &line, sets > 1));
        }
    kvm_line_chart chart = {.title = c->heading,
                            .desc = c->note,
                            .x = {.title = KVM_STR("target layer"),
                                  .format = KVM_FORMAT_COUNT,
                                  .whole = true},
                            .y = {.title = c->axis, .format = c->format},
                            .series = series,
                            .series_count = n};
    if (c->share) chart.y = unit_axis(c->axis, series, n);
    kvm_page__figure(p, c->heading, c->note);
    kvm_svg_lines(p->out, &chart);
    kvm_page__figure_end(p);
    return KVM_OK;
}

kvm_status kvm_page__layers(kvm_page *p)
{
    const layer_chart charts[] = {
        {KVM_STR("R² of the fit"),
         KVM_STR("on held-out sequences, which chose nothing; dotted: in-sample"),
         KVM_STR("R²"),
         KVM_FORMAT_NUMBER,
         true,
         {LINE("K", k_r2, 0, false), LINE("V", v_r2, 2, false),
          LINE("K in-sample", k_r2_fit, 0, true),
          LINE("V in-sample", v_r2_fit, 2, true)},
         4},
        {KVM_STR("Attention-output cosine"),
         KVM_STR("translated against native cache; of these figures the one that "
                 "goes with quality"),
         KVM_STR("cosine"),
         KVM_FORMAT_NUMBER,
         true,
         {LINE("cosine", cosine, 0, false)},
         1},
        {KVM_STR("Error concentration"),
         KVM_STR("above 1: the error lies where attention reads"),
         KVM_STR("c_K, c_V"),
         KVM_FORMAT_NUMBER,
         false,
         {LINE("c_K", c_k, 0, false), LINE("c_V", c_v, 2, false)},
         2}};
    if (!kvm_page__section(p, KVM_SECTION_LAYERS, p->d->layer_count > 0)) return KVM_OK;
    kvm_page__grid(p, 3);
    for (size_t i = 0; i < sizeof charts / sizeof *charts; i++)
        TRY(layer_figure(p, &charts[i]));
    kvm_page__grid_end(p);
    const kvm_table t = kvm_report_table_layers(p->mem, p->d);
    TRY(kvm_page__folded(p, &t, KVM_STR("Every layer in numbers")));
    kvm_page__section_end(p);
    return KVM_OK;
}
