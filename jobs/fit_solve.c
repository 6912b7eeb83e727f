/* fit_solve.c - the maps of a fit: layers are ranked, k and lambda chosen, and every
 * step solved, group by group. Ranks take source layers of the maps of R2 and target
 * layers of the rest; the figures and choices that follow are made by all, alike. */
#include "jobs/fit_internal.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

/* mappings that share a choice */
typedef struct group {
    const kvm_mapping *mapping; /* (mappings) */
    int mappings;
    kvm_ranking ranking;
    kvm_fit_choice choice;
    json_t *figures;
} group;

/* the map of R2, one source layer after the other dealt out */
static kvm_status make_map(kvm_fit *f, const kvm_mapping *m, kvm_r2_map *map,
                           kvm_err *err)
{
    kvm_job *j = f->job;
    const kvm_map_options o = {
        .allow_wide = f->allow_wide, .part = j->team->rank, .parts = j->team->size};
    TRY(kvm_select_maps(f->compute, f->moments, m, &o, map, j->keep, f->scratch, err));
    const ptrdiff_t bytes = map->sources * map->targets * (ptrdiff_t)sizeof *map->r2[0];
    for (int p = 0; p < KVM_HELD; p++)
        TRY(kvm_team_unite(j->team, map->r2[p], bytes, err));
    return KVM_OK;
}

/* Layers of keys are ranked by their content, whatever space is mapped: the figures of
 * an ablation are of the same layers. */
static kvm_status rank(kvm_fit *f, group *g, kvm_err *err)
{
    kvm_r2_map maps[KVM_GROUP], rotated;
    kvm_job *j = f->job;
    const bool keys = kvm_space_rows[g->mapping[0].out].stored == KVM_SPACE_K &&
                      g->mapping[0].from[0] == g->mapping[0].out;
    for (int i = 0; i < g->mappings; i++) {
        kvm_mapping m = g->mapping[i];
        if (i == 0 && keys) m.out = m.from[0] = m.from[1] = KVM_SPACE_K;
        TRY(make_map(f, &m, &maps[i], err));
        if (f->sweep) TRY(kvm_fit_put_map(g->figures, &m, &maps[i], err));
        if (i > 0 || !keys || !f->sweep) continue;
        m.out = m.from[0] = m.from[1] = KVM_SPACE_K_ROTATED;
        TRY(make_map(f, &m, &rotated, err));
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

/* a map of zeros: what it is, another rank tells (share_steps) */
static kvm_status no_map(kvm_ridge_map *map, ptrdiff_t inputs, ptrdiff_t outputs,
                         kvm_arena *keep, kvm_err *err)
{
    *map = (kvm_ridge_map){.inputs = inputs,
                           .outputs = outputs,
                           .weight = kvm_new(keep, double, inputs *outputs),
                           .bias = kvm_new(keep, double, outputs)};
    return map->weight && map->bias ? KVM_OK : kvm_nomem(err, keep);
}

static kvm_status solve_step(kvm_fit *f, const group *g, int mapping, ptrdiff_t layer,
                             kvm_step *step, kvm_ridge_figures *figures, kvm_err *err)
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
    kvm_ridge_map map = {0};
    kvm_arena room = f->scratch;
    for (ptrdiff_t h = 0; h < groups; h++) {
        const ptrdiff_t heads =
            kvm_moments_shape(f->moments, item[0].side, item[0].space, item[0].layer)
                .heads;
        kvm_ridge_figures one;
        if (f->head_matched) x.head = kvm_matched_head(h, heads, to.heads);
        if (kvm_team_mine(j->team, layer)) {
            TRY(kvm_ridge_fit(f->compute, f->moments, x, (kvm_output){m->out, layer},
                              f->head_matched ? h : -1, &o, &map, &one, j->keep,
                              f->scratch, err));
            merge_heads(figures, &one, h);
        } else
            TRY(no_map(&map, kvm_features_width(f->moments, x),
                       to.heads * to.dim / groups, &room, err));
        weight[h] = map.weight;
        bias[h] = map.bias;
    }
    TRY(kvm_step_ridge(step, j->keep, m, layer, order, sources, groups, map.inputs,
                       to.heads * to.dim, weight, bias, err));
    step->head_matched = f->head_matched;
    step->lambda = o.lambda.absolute ? -o.lambda.value : o.lambda.value;
    return KVM_OK;
}

/* steps from .. : every rank gets those that others have solved, and then reports them
 * in the order of a rank alone */
static kvm_status share_steps(kvm_fit *f, ptrdiff_t from, kvm_err *err)
{
    kvm_team *team = f->job->team;
    for (ptrdiff_t i = from; i < f->translator.count; i++) {
        kvm_step *s = &f->steps[i];
        if (s->map != KVM_MAP_RIDGE) continue;
        TRY(kvm_team_unite(team, s->weight[0].data,
                           kvm_tensor_count(&s->weight[0]) * (ptrdiff_t)sizeof(float),
                           err));
        const kvm_tensor bias = kvm_view2_const(s->bias[0], KVM_F32, 1, s->outputs);
        TRY(kvm_team_unite(team, bias.data, s->outputs * (ptrdiff_t)sizeof(float),
                           err));
        TRY(kvm_team_unite(team, &f->solved[i], sizeof f->solved[i], err));
        s->r2_fit = f->solved[i].r2[KVM_FIT];
        s->r2_held = f->solved[i].r2[KVM_HELD];
        TRY(put_layer(f, s, &f->solved[i], err));
    }
    return KVM_OK;
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
        const kvm_status s = solve_step(f, g, mapping, layer, step,
                                        &f->solved[f->translator.count], err);
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
        .team = f->job->team,
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
    const ptrdiff_t from = f->translator.count;
    for (ptrdiff_t l = 0; l < f->translator.target.shapes.layers; l++)
        for (int i = 0; i < g.mappings; i++)
            if (kvm_outline_makes(&f->outline, &f->translator.target.shapes,
                                  g.mapping[i].out, l))
                TRY(make_step(f, &g, i, l, err));
    TRY(share_steps(f, from, err));
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
    const ptrdiff_t most = f->outline.mappings * f->translator.target.shapes.layers;
    f->steps = kvm_new(keep, kvm_step, most);
    f->solved = kvm_new(keep, kvm_ridge_figures, most);
    if (!f->steps || !f->solved) return kvm_nomem(err, keep);
    for (int g = 0; g < f->outline.groups; g++) TRY(solve_group(f, g, err));
    qsort(f->steps, (size_t)f->translator.count, sizeof *f->steps, by_layer);
    f->translator.steps = f->steps;
    return KVM_OK;
}
