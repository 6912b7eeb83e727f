/* fit_solve.c - the maps of a fit: layers are ranked, k and lambda chosen, and every
 * step solved, group by group; then the states. */
#include "jobs/fit_internal.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "translators/states.h"

/* mappings that share a choice */
typedef struct group {
    const kvm_mapping *mapping; /* (mappings) */
    int mappings;
    kvm_ranking ranking;
    kvm_fit_choice choice;
    json_t *figures;
} group;

/* Layers of keys are ranked by their content, whatever space is mapped: the figures of
 * an ablation are of the same layers. */
static kvm_status rank(kvm_fit *f, group *g, kvm_err *err)
{
    kvm_r2_map maps[KVM_GROUP], rotated;
    kvm_job *j = f->job;
    const kvm_map_options o = {.allow_wide = f->allow_wide};
    const bool keys = kvm_space_rows[g->mapping[0].out].stored == KVM_SPACE_K &&
                      g->mapping[0].from[0] == g->mapping[0].out;
    for (int i = 0; i < g->mappings; i++) {
        kvm_mapping m = g->mapping[i];
        if (i == 0 && keys) m.out = m.from[0] = m.from[1] = KVM_SPACE_K;
        TRY(kvm_select_maps(f->compute, f->moments, &m, &o, &maps[i], j->keep,
                            f->scratch, err));
        if (f->sweep) TRY(kvm_fit_put_map(g->figures, &m, &maps[i], err));
        if (i > 0 || !keys || !f->sweep) continue;
        m.out = m.from[0] = m.from[1] = KVM_SPACE_K_ROTATED;
        TRY(kvm_select_maps(f->compute, f->moments, &m, &o, &rotated, j->keep,
                            f->scratch, err));
        TRY(kvm_fit_put_map(g->figures, &m, &rotated, err));
    }
    if (f->by_depth) return kvm_select_depth(&g->ranking, j->keep, &maps[0], err);
    return kvm_select_rank(&g->ranking, j->keep, maps, g->mappings, KVM_CHOOSE, err);
}

/* ---- the maps ---- */

static kvm_lambda lambda_of(const group *g, int mapping)
{
    return g->choice.lambda_given ? g->choice.lambda : g->choice.best[mapping];
}

static json_t *layers_json(const int32_t *layer, ptrdiff_t n)
{
    json_t *list = json_array();
    for (ptrdiff_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer(layer[i]));
    return list;
}

/* what one step reports and what its gates see */
static kvm_status put_layer(kvm_fit *f, const kvm_step *s, const kvm_ridge_figures *g,
                            kvm_err *err)
{
    kvm_job *j = f->job;
    const char *object = kvm_mapping_label(&s->mapping);
    json_t *row = json_pack(
        "{s:I, s:s, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:f, s:f, s:I}", "layer",
        (json_int_t)s->layer, "object", object, "r2_fit", g->r2[KVM_FIT], "r2_choose",
        g->r2[KVM_CHOOSE], "r2_held", g->r2[KVM_HELD], "worst_fit", g->worst[KVM_FIT],
        "worst_held", g->worst[KVM_HELD], "rows", (json_int_t)g->rows, "features",
        (json_int_t)g->features, "weight_norm", g->weight_norm, "jitter", g->jitter,
        "dropped", (json_int_t)g->dropped);
    if (!row)
        return kvm_fail(err, KVM_NAN, "%s of layer %td: a figure is not finite", object,
                        s->layer);
    json_object_set_new(row, "sources", layers_json(s->source, s->sources));
    json_array_append_new(f->layers, row);
    kvm_gate_add(f->gates, KVM_GATE_ROWS_PER_FEATURE,
                 (double)g->rows / (double)g->features);
    kvm_gate_add(f->gates, KVM_GATE_HELD_OUT_R2, g->r2[KVM_HELD]);
    kvm_gate_add(f->gates, KVM_GATE_WEIGHT_NORM, g->weight_norm);
    json_t *labels =
        json_pack("{s:s, s:I}", "object", object, "layer", (json_int_t)s->layer);
    kvm_status st = j->host->metric(j, "r2_held", g->r2[KVM_HELD], labels, err);
    if (!st) st = j->host->metric(j, "r2_fit", g->r2[KVM_FIT], labels, err);
    json_decref(labels);
    return st;
}

/* mean of the heads' figures; sizes are those of one map */
static void merge_heads(kvm_ridge_figures *sum, const kvm_ridge_figures *one,
                        ptrdiff_t h)
{
    if (h == 0) {
        *sum = *one;
        return;
    }
    const double share = 1.0 / (double)(h + 1);
    for (int s = 0; s < KVM_SPLITS; s++) {
        sum->r2[s] += (one->r2[s] - sum->r2[s]) * share;
        sum->worst[s] = fmin(sum->worst[s], one->worst[s]);
    }
    sum->weight_norm = fmax(sum->weight_norm, one->weight_norm);
    sum->jitter = fmax(sum->jitter, one->jitter);
    sum->dropped += one->dropped;
}

/* the chosen source layers of a target layer, best first; none where a map reads its
 * own layer's rows */
static const int32_t *chosen(const group *g, ptrdiff_t layer, ptrdiff_t *n)
{
    *n = 0;
    for (ptrdiff_t t = 0; t < g->ranking.targets; t++) {
        if (g->ranking.target[t] != layer) continue;
        *n = g->choice.k;
        return g->ranking.order + t * g->ranking.sources;
    }
    return NULL;
}

static kvm_status solve_step(kvm_fit *f, const group *g, int mapping, ptrdiff_t layer,
                             kvm_step *step, kvm_err *err)
{
    kvm_job *j = f->job;
    const kvm_mapping *m = &g->mapping[mapping];
    const kvm_row_shape to = kvm_moments_shape(f->moments, KVM_TARGET, m->out, layer);
    ptrdiff_t sources;
    const int32_t *order = chosen(g, layer, &sources);
    const ptrdiff_t groups = f->head_matched ? to.heads : 1;
    const kvm_ridge_options o = {lambda_of(g, mapping), f->allow_wide};
    const double **weight = kvm_new(j->keep, const double *, groups);
    const double **bias = kvm_new(j->keep, const double *, groups);
    kvm_feature *item = kvm_new(j->keep, kvm_feature, 3 + 2 * sources);
    if (!weight || !bias || !item) return kvm_nomem(err, j->keep);
    kvm_features x = {item, kvm_mapping_items(m, order, sources, layer, item), -1};
    kvm_ridge_figures figures = {0};
    kvm_ridge_map map = {0};
    for (ptrdiff_t h = 0; h < groups; h++) {
        const ptrdiff_t heads =
            kvm_moments_shape(f->moments, item[0].side, item[0].space, item[0].layer)
                .heads;
        kvm_ridge_figures one;
        if (f->head_matched) x.head = kvm_matched_head(h, heads, to.heads);
        TRY(kvm_ridge_fit(f->compute, f->moments, x, (kvm_output){m->out, layer},
                          f->head_matched ? h : -1, &o, &map, &one, j->keep, f->scratch,
                          err));
        merge_heads(&figures, &one, h);
        weight[h] = map.weight;
        bias[h] = map.bias;
    }
    TRY(kvm_step_ridge(step, j->keep, m, layer, order, sources, groups, map.inputs,
                       to.heads * to.dim, weight, bias, err));
    step->head_matched = f->head_matched;
    step->lambda = o.lambda.absolute ? -o.lambda.value : o.lambda.value;
    step->r2_fit = figures.r2[KVM_FIT];
    step->r2_held = figures.r2[KVM_HELD];
    return put_layer(f, step, &figures, err);
}

/* one step of a mapping for a target layer that has such rows */
static kvm_status make_step(kvm_fit *f, const group *g, int mapping, ptrdiff_t layer,
                            kvm_err *err)
{
    kvm_job *j = f->job;
    const kvm_mapping *m = &g->mapping[mapping];
    kvm_step *step = &f->steps[f->translator.count];
    kvm_progress_at(j->progress, (double)f->translator.count,
                    (double)(f->outline.mappings * f->translator.target.shapes.layers),
                    "maps");
    if (kvm_progress_cancelled(j->progress))
        return kvm_fail(err, KVM_CANCELLED, "cancelled after %td maps",
                        f->translator.count);
    if (m->out == KVM_SPACE_LATENT && layer == 0 && f->outline.exact) {
        *step = (kvm_step){.mapping = {.out = m->out},
                           .map = KVM_MAP_EXACT,
                           .lambda = (double)NAN,
                           .r2_fit = (double)NAN,
                           .r2_held = (double)NAN};
        json_object_set_new(f->figures, "exact",
                            json_pack("[{s:s, s:I}]", "object", kvm_mapping_label(m),
                                      "layer", (json_int_t)layer));
    } else {
        const kvm_status s = solve_step(f, g, mapping, layer, step, err);
        if (s)
            return kvm_err_prefix(err, s, "%s of target layer %td",
                                  kvm_mapping_label(m), layer);
    }
    f->translator.count++;
    return KVM_OK;
}

static kvm_status choose(kvm_fit *f, group *g, kvm_err *err)
{
    if (g->mapping[0].side == KVM_TARGET) { /* nothing to choose among */
        g->choice.k = 0;
        for (int i = 0; i < g->mappings && !g->choice.lambda_given; i++)
            g->choice.best[i] = kvm_lambda_grid[3];
        return KVM_OK;
    }
    TRY(rank(f, g, err));
    const kvm_fit_sweep sweep = {
        .compute = f->compute,
        .moments = f->moments,
        .ranking = &g->ranking,
        .mapping = g->mapping,
        .mappings = g->mappings,
        .allow_wide = f->allow_wide,
        .full = f->sweep,
        .progress = f->job->progress,
    };
    return kvm_fit_run_sweep(&sweep, &g->choice, g->figures, f->job->keep, f->scratch,
                             err);
}

static json_t *selected_json(const group *g)
{
    json_t *all = json_array();
    for (ptrdiff_t t = 0; t < g->ranking.targets; t++)
        json_array_append_new(
            all, layers_json(g->ranking.order + t * g->ranking.sources, g->choice.k));
    return all;
}

static kvm_status put_group(kvm_fit *f, const group *g, kvm_err *err)
{
    json_t *rows = json_array(), *how = json_array(), *lambdas = json_object();
    for (int i = 0; i < g->mappings; i++) {
        const char *label = kvm_mapping_label(&g->mapping[i]);
        json_array_append_new(rows, json_string(label));
        json_array_append_new(how, json_string(g->mapping[i].how));
        json_object_set_new(lambdas, label, json_real(lambda_of(g, i).value));
    }
    json_object_set_new(g->figures, "rows", rows);
    json_object_set_new(g->figures, "how", how);
    json_object_set_new(g->figures, "k", json_integer(g->choice.k));
    json_object_set_new(g->figures, "lambda", lambdas);
    json_object_set_new(g->figures, "lambda_absolute",
                        json_boolean(lambda_of(g, 0).absolute));
    json_object_set_new(g->figures, "selected", selected_json(g));
    json_t *groups = json_object_get(f->figures, "groups");
    if (!groups) json_object_set_new(f->figures, "groups", groups = json_array());
    return json_array_append(groups, g->figures)
               ? kvm_fail(err, KVM_NOMEM, "no memory for the figures")
               : KVM_OK;
}

static kvm_status solve_group(kvm_fit *f, int number, kvm_err *err)
{
    group g = {.choice = f->asked,
               .figures = kvm_json_own(f->job->keep, json_object())};
    if (!g.figures) return kvm_nomem(err, f->job->keep);
    for (int i = f->outline.mappings - 1; i >= 0; i--) {
        if (f->outline.group[i] != number) continue;
        g.mapping = &f->outline.mapping[i];
        g.mappings++;
    }
    assert(g.mapping); /* a group is of mappings */
    TRY(choose(f, &g, err));
    for (ptrdiff_t l = 0; l < f->translator.target.shapes.layers; l++)
        for (int i = 0; i < g.mappings; i++)
            if (kvm_outline_makes(&f->outline, &f->translator.target.shapes,
                                  g.mapping[i].out, l))
                TRY(make_step(f, &g, i, l, err));
    return put_group(f, &g, err);
}

/* steps come by group; a translator has them by layer, then space */
static int by_layer(const void *a, const void *b)
{
    const kvm_step *x = a, *y = b;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    return (int)x->mapping.out - (int)y->mapping.out;
}

kvm_status kvm_fit__solve(kvm_fit *f, kvm_err *err)
{
    kvm_arena *keep = f->job->keep;
    f->steps = kvm_new(keep, kvm_step,
                       f->outline.mappings * f->translator.target.shapes.layers);
    if (!f->steps) return kvm_nomem(err, keep);
    for (int g = 0; g < f->outline.groups; g++) TRY(solve_group(f, g, err));
    qsort(f->steps, (size_t)f->translator.count, sizeof *f->steps, by_layer);
    f->translator.steps = f->steps;
    return KVM_OK;
}

/* ---- states ---- */

static kvm_state_map map_of(kvm_state_way w)
{
    return w == KVM_STATES_COPY       ? KVM_STATE_COPY
           : w == KVM_STATES_BILINEAR ? KVM_STATE_BILINEAR
                                      : KVM_STATE_ZERO;
}

/* a state is one row a sequence: of a single one that is held out no share can be
 * told; nor has a copy a penalty */
static json_t *share(double r2)
{
    return isfinite(r2) ? json_real(r2) : json_null();
}

/* members PREFIXr2_held, ...; a penalty of null: as it is */
static void put_state_figure(json_t *row, const char *prefix, const kvm_state_figure *g)
{
    const struct {
        const char *name;
        json_t *value;
    } members[] = {{"r2_choose", share(g->r2[KVM_CHOOSE])},
                   {"r2_choose_copy", share(g->r2_copy[KVM_CHOOSE])},
                   {"r2_held", share(g->r2[KVM_HELD])},
                   {"r2_copy", share(g->r2_copy[KVM_HELD])},
                   {"penalty", share(g->penalty)},
                   {"rounds", json_integer(g->rounds)}};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        char key[32];
        snprintf(key, sizeof key, "%s%s", prefix, members[i].name);
        json_object_set_new(row, key, members[i].value);
    }
}

static kvm_status fit_state(kvm_fit *f, ptrdiff_t layer, kvm_state_step *s,
                            json_t *list, kvm_err *err)
{
    kvm_job *j = f->job;
    const kvm_state_map map =
        map_of(kvm_outline_way(&f->outline, &f->translator.target.shapes, layer));
    *s = (kvm_state_step){
        .layer = layer, .r2_held = (double)NAN, .r2_window_held = (double)NAN};
    if (map == KVM_STATE_ZERO) {
        json_array_append_new(list, json_pack("{s:I, s:s}", "layer", (json_int_t)layer,
                                              "map", kvm_state_map_name(map)));
        return KVM_OK;
    }
    kvm_state_figures figures;
    kvm_state_options o = {0};
    kvm_moments_split(f->moments, &o.seed, &o.fraction);
    TRY(kvm_states_fit(f->compute, f->rows[0], f->rows[1], map,
                       kvm_outline_state_source(&f->translator.source.shapes,
                                                &f->translator.target.shapes, layer),
                       layer, &o, s, &figures, j->keep, f->scratch, err));
    json_t *row = json_pack("{s:I, s:I, s:s}", "layer", (json_int_t)layer, "source",
                            (json_int_t)s->source, "map", kvm_state_map_name(map));
    put_state_figure(row, "", &figures.state);
    put_state_figure(row, "window_", &figures.window);
    json_array_append_new(list, row);
    return KVM_OK;
}

kvm_status kvm_fit__states(kvm_fit *f, kvm_err *err)
{
    const kvm_shapes *to = &f->translator.target.shapes;
    if (!to->of[KVM_SPACE_STATE] || f->outline.states == KVM_STATES_REPLAY)
        return KVM_OK;
    json_t *list = json_array();
    json_object_set_new(f->figures, "states", list);
    kvm_state_step *s = kvm_new(f->job->keep, kvm_state_step, to->layers);
    if (!s) return kvm_nomem(err, f->job->keep);
    f->translator.states = s;
    for (ptrdiff_t l = 0; l < to->layers; l++)
        if (kvm_shapes_width(to, KVM_SPACE_STATE, l) > 0 &&
            kvm_outline_way(&f->outline, to, l) != KVM_STATES_REPLAY)
            TRY(fit_state(f, l, &s[f->translator.state_count++], list, err));
    return KVM_OK;
}
