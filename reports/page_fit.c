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
        .row_number = m->source,
        .col_number = m->target,
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

/* a mark at each value that was chosen, with the series it was chosen for where they
 * differ; gives how many */
static ptrdiff_t chosen_marks(kvm_page *p, const kvm_sweep *s, kvm_str word,
                              kvm_mark *marks)
{
    ptrdiff_t n = 0;
    bool differ = false;
    for (ptrdiff_t i = 1; i < s->count; i++) differ |= s->chosen[i] != s->chosen[0];
    for (ptrdiff_t i = 0; i < (differ ? s->count : 1); i++) {
        if (!isfinite(s->chosen[i])) continue;
        const kvm_str label = differ
                                  ? kvm_str_fmt(p->mem, "%.*s, %.*s", KVM_STR_ARG(word),
                                                KVM_STR_ARG(s->titles[i]))
                                  : word;
        marks[n++] = (kvm_mark){s->chosen[i], label, false};
    }
    return n;
}

/* The curve of one knob, the chosen values marked; the absolute lambda as single
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
    kvm_mark *marks = kvm_new(p->mem, kvm_mark, s->count + 1);
    if (!marks) return kvm_nomem(p->err, p->mem);
    ptrdiff_t mark_count = chosen_marks(p, s, w->chosen, marks);
    if (absolute)
        marks[mark_count++] = (kvm_mark){
            s->absolute_at,
            kvm_str_fmt(p->mem, "absolute λ %.*s",
                        KVM_STR_ARG(kvm_tick(p->mem, s->absolute, KVM_FORMAT_NUMBER))),
            false};
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
        .marks = marks,
        .mark_count = mark_count};
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
    kvm_page__html(p, " rows to fit at most ");
    kvm_page__number(p, p->d->calibration.features, KVM_FORMAT_COUNT);
    kvm_page__html(p, " features, ");
    kvm_page__number(p, p->d->calibration.choosing_rows, KVM_FORMAT_COUNT);
    kvm_page__html(p, " to choose layers, k and λ, ");
    kvm_page__number(p, p->d->calibration.held_out_rows, KVM_FORMAT_COUNT);
    kvm_page__html(p, " held out; split by sequence.</p>\n");
}

/* everything that was tried for objects that share a choice of layers */
static kvm_status group(kvm_page *p, const kvm_linear_group *g)
{
    const kvm_str why = p->d->absent[KVM_SECTION_LINEARITY];
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
    if (g->title.len) kvm_page__part(p, g->title);
    if (g->how.len) kvm_page__lede(p, g->how);
    if (!g->map_count) kvm_page__missing(p, KVM_STR("R² maps"), why);
    const bool own_row = g->map_count > 1; /* one alone stands beside the curves */
    if (own_row) {
        kvm_page__grid(p, 3);
        for (ptrdiff_t i = 0; i < g->map_count; i++) map_figure(p, &g->maps[i]);
        kvm_page__grid_end(p);
    }
    kvm_page__grid(p, 2);
    if (!own_row && g->map_count) map_figure(p, &g->maps[0]);
    for (ptrdiff_t i = 0; i < g->greedy_count; i++)
        TRY(greedy_figure(p, &g->greedy[i]));
    TRY(sweep_figure(p, &g->k, &k));
    TRY(sweep_figure(p, &g->lambda, &lambda));
    kvm_page__grid_end(p);
    if (!g->greedy_count) kvm_page__missing(p, KVM_STR("Greedy curves"), why);
    return KVM_OK;
}

kvm_status kvm_page__linearity(kvm_page *p)
{
    const kvm_document *d = p->d;
    if (!kvm_page__section(p, KVM_SECTION_LINEARITY, d->group_count > 0)) return KVM_OK;
    kvm_page__lede(p,
                   KVM_STR("Share of the target's variance that linear maps of the "
                           "source explain, on the sequences that chose layers, k "
                           "and λ: no fit has seen them, but the best of many is "
                           "flattered. It does not predict quality; the suites do."));
    calibration(p);
    for (ptrdiff_t i = 0; i < d->group_count; i++) TRY(group(p, &d->groups[i]));
    const kvm_table sweeps = kvm_report_table_sweeps(p->mem, d);
    TRY(kvm_page__folded(p, &sweeps, KVM_STR("k and λ, all values")));
    kvm_page__section_end(p);
    return KVM_OK;
}

/* ---- layer by layer ---- */

/* colours of objects, the first two as far apart as may be */
static kvm_look object_look(ptrdiff_t object, ptrdiff_t set)
{
    const ptrdiff_t at = object % 8;
    return kvm_look_palette((at < 4 ? 2 * at : 2 * at - 7) + set);
}

static kvm_str series_name(kvm_page *p, kvm_str name, kvm_arm arm)
{
    return p->d->layer_count > 1
               ? kvm_str_fmt(p->mem, "%.*s, %s", KVM_STR_ARG(name), kvm_arms[arm].label)
               : name;
}

/* an object's R2 in the layers that have it: others keep no such rows, so the line goes
 * on past them */
static kvm_status r2_line(kvm_page *p, kvm_series *out, ptrdiff_t set, ptrdiff_t object,
                          bool in_sample)
{
    const kvm_layer_set *s = &p->d->layers[set];
    double *x = kvm_new(p->mem, double, s->count);
    double *y = kvm_new(p->mem, double, s->count);
    if (s->count && (!x || !y)) return kvm_nomem(p->err, p->mem);
    ptrdiff_t n = 0;
    for (ptrdiff_t i = 0; i < s->count; i++) {
        const kvm_layer_row *row = &s->rows[i];
        const kvm_est e = in_sample ? row->r2_fit[object] : row->r2[object];
        if (!kvm_est_has(e)) continue;
        x[n] = (double)row->layer;
        y[n++] = e.value;
    }
    const kvm_str title = p->d->layer_objects[object].title;
    const kvm_str name =
        in_sample ? kvm_str_fmt(p->mem, "%.*s in-sample", KVM_STR_ARG(title)) : title;
    *out = (kvm_series){.name = n ? series_name(p, name, s->arm) : KVM_STR(""),
                        .x = x,
                        .y = y,
                        .n = n,
                        .look = object_look(object, set),
                        .dashed = in_sample};
    return KVM_OK;
}

static kvm_status r2_figure(kvm_page *p)
{
    const ptrdiff_t objects = p->d->layer_object_count, sets = p->d->layer_count;
    kvm_series *series = kvm_arena_alloc(p->mem, sizeof *series * (size_t)(objects + 1),
                                         _Alignof(kvm_series), sets + 1);
    if (!series) return kvm_nomem(p->err, p->mem);
    ptrdiff_t n = 0;
    for (ptrdiff_t s = 0; s < sets; s++)
        for (ptrdiff_t o = 0; o < objects; o++)
            TRY(r2_line(p, &series[n++], s, o, false));
    /* in-sample curves of the first translator only: enough to see overfitting */
    for (ptrdiff_t o = 0; o < objects; o++) TRY(r2_line(p, &series[n++], 0, o, true));
    const kvm_str heading = KVM_STR("R² of the fit");
    const kvm_str note =
        KVM_STR("on held-out sequences, which chose nothing; dotted: in-sample");
    const kvm_line_chart chart = {.title = heading,
                                  .desc = note,
                                  .x = {.title = KVM_STR("target layer"),
                                        .format = KVM_FORMAT_COUNT,
                                        .whole = true},
                                  .y = unit_axis(KVM_STR("R²"), series, n),
                                  .series = series,
                                  .series_count = n};
    kvm_page__figure(p, heading, note);
    kvm_svg_lines(p->out, &chart);
    kvm_page__figure_end(p);
    return KVM_OK;
}

/* One quantity of a layer, with its place in kvm_layer_row. */
typedef struct layer_line {
    kvm_str name;
    size_t at;
    int colour;
} layer_line;
#define LINE(label, member, colour)                                                    \
    {                                                                                  \
        KVM_STR(label), offsetof(kvm_layer_row, member), colour                        \
    }

typedef struct layer_chart {
    kvm_str heading, note, axis;
    kvm_format format;
    bool share; /* the axis is 0 ... 1 */
    layer_line lines[2];
    int count;
} layer_chart;

static kvm_status add_line(kvm_page *p, kvm_series *out, const kvm_layer_set *set,
                           const layer_line *line)
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
    *out = (kvm_series){.name = series_name(p, line->name, set->arm),
                        .x = x,
                        .y = y,
                        .n = set->count,
                        .look = kvm_look_palette(line->colour)};
    return KVM_OK;
}

static kvm_status layer_figure(kvm_page *p, const layer_chart *c)
{
    const ptrdiff_t sets = p->d->layer_count;
    kvm_series *series =
        kvm_arena_alloc(p->mem, sizeof *series * 2, _Alignof(kvm_series), sets);
    if (!series) return kvm_nomem(p->err, p->mem);
    ptrdiff_t n = 0;
    for (ptrdiff_t s = 0; s < sets; s++)
        for (int i = 0; i < c->count; i++) {
            layer_line line = c->lines[i];
            line.colour += (int)s; /* a neighbour in the palette */
            TRY(add_line(p, &series[n++], &p->d->layers[s], &line));
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
        {KVM_STR("Attention-output cosine"),
         KVM_STR("translated against native cache; of these figures the one that "
                 "goes with quality"),
         KVM_STR("cosine"),
         KVM_FORMAT_NUMBER,
         true,
         {LINE("cosine", cosine, 0)},
         1},
        {KVM_STR("Error concentration"),
         KVM_STR("above 1: the error lies where attention reads"),
         KVM_STR("c_K, c_V"),
         KVM_FORMAT_NUMBER,
         false,
         {LINE("c_K", c_k, 0), LINE("c_V", c_v, 2)},
         2}};
    if (!kvm_page__section(p, KVM_SECTION_LAYERS, p->d->layer_count > 0)) return KVM_OK;
    kvm_page__grid(p, 3);
    TRY(r2_figure(p));
    for (size_t i = 0; i < sizeof charts / sizeof *charts; i++)
        TRY(layer_figure(p, &charts[i]));
    kvm_page__grid_end(p);
    const kvm_table t = kvm_report_table_layers(p->mem, p->d);
    TRY(kvm_page__folded(p, &t, KVM_STR("Every layer in numbers")));
    kvm_page__section_end(p);
    return KVM_OK;
}
