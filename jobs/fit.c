/* fit.c - solve the closed-form maps of an ordered pair from moments alone.
 *
 * The outline (translators/outline.h) says which mappings there are; those that share a
 * choice of layers are a group (keys and values). For each group
 * 1. R2 of every target layer from every source layer alone (maps), and the ranking
 * 2. every k and every lambda of the sweep; greedy curves for a few target layers
 * 3. the choice: the smallest k whose R2 is within `k_slack` of the best, the best
 *    lambda of that k, on the choosing split
 * 4. one map per space and target layer with that choice; figures and gates, read on
 *    the held-out split, which nothing was chosen on
 * then the states of recurrent layers, from both captures. Output "translator" is the
 * translator file, "fit" the figures as JSON: those of the first group, and of each
 * under "groups". */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "jobs/fit_recipes.h"
#include "jobs/fit_sweep.h"
#include "jobs/open.h"
#include "jobs/params.h"
#include "jobs/spec.h"
#include "translators/gates.h"
#include "translators/outline.h"
#include "translators/states.h"

/* " rows_per_feature (1.0) held_out_r2 (0.0) ..." */
#define X(id, NAME, name, sense, reduce, threshold, ...) " " name " (" #threshold ")"
static const char gate_names[] = "thresholds by gate name, with these defaults:"
#include "translators/gates.def"
    ;
#undef X

const kvm_field kvm_fit_params[] = {
    {"k", KVM_FIELD_ANY, false,
     "source layers per target layer: a number, or auto (auto)", NULL, 0},
    {"k_slack", KVM_FIELD_NUM, false, "R2 given away for a smaller k (0.005)", NULL, 0},
    {"k_most", KVM_FIELD_INT, false,
     "largest k that the sweep tries (all source layers)", NULL, 0},
    {"lambda", KVM_FIELD_ANY, false, "relative ridge penalty: a number, or auto (auto)",
     NULL, 0},
    {"lambda_absolute", KVM_FIELD_NUM, false,
     "absolute penalty instead (the paper: 0.01)", NULL, 0},
    {"select", KVM_FIELD_STR, false, "how source layers are chosen: r2 or depth (r2)",
     NULL, 0},
    {"heads", KVM_FIELD_STR, false,
     "features of a map: all (heads of its source layers) or matched (the one head "
     "that "
     "stands where the target's does) (all)",
     NULL, 0},
    {"keys", KVM_FIELD_STR, false, "content, rotated or content-norerotate (content)",
     NULL, 0},
    {"token", KVM_FIELD_STR, false,
     "whether maps are told which token a row is of: none, given (ids come with the "
     "cache), decoded (read out of the source's first layer) or auto (auto: where the "
     "target keeps latents, indexers or states that must be made)",
     NULL, 0},
    {"states", KVM_FIELD_STR, false,
     "of recurrent layers: zero, copy, bilinear, replay or auto (auto)", NULL, 0},
    {"latents", KVM_FIELD_INT, false,
     "capture point of latents: 1 (before norm and position) or 3 (as engines keep "
     "them) (1)",
     NULL, 0},
    {"dtype", KVM_FIELD_STR, false, "weights in the file: f32 or bf16 (f32)", NULL, 0},
    {"allow_wide", KVM_FIELD_BOOL, false, "fit although rows <= features (false)", NULL,
     0},
    {"sweep", KVM_FIELD_BOOL, false,
     "false: only the one fit, no maps and curves (true)", NULL, 0},
    {"gates", KVM_FIELD_OBJECT, false, gate_names, NULL, 0},
    {0},
};

typedef struct fit {
    kvm_job *job;
    kvm_compute *compute;
    kvm_moments *moments;
    kvm_rows *rows[2]; /* the captures */
    kvm_fit_choice asked;
    bool head_matched, allow_wide, by_depth, sweep;
    kvm_outline_options options;
    kvm_outline outline;
    kvm_dtype dtype;
    kvm_translator translator;
    kvm_step *steps;
    kvm_gate gates[KVM_GATES];
    json_t *figures, *layers;
    kvm_arena scratch;
} fit;

/* mappings that share a choice */
typedef struct group {
    const kvm_mapping *mapping; /* (mappings) */
    int mappings;
    kvm_ranking ranking;
    kvm_fit_choice choice;
    json_t *figures;
} group;

/* "auto" (or absent) gives false; a number gives true */
static kvm_status number_or_auto(kvm_job *j, const char *key, double *out, bool *given,
                                 kvm_err *err)
{
    const kvm_jat at = kvm_json_get(j->params, j->keep, key);
    *given = kvm_json_has(at) && !json_is_string(at.v);
    if (*given) return kvm_json_f64(at, out, err);
    kvm_str word;
    TRY(kvm_json_str_or(at, KVM_STR("auto"), &word, err));
    if (!kvm_str_eq(word, KVM_STR("auto")))
        return kvm_json_fail(err, KVM_USAGE, at, "is a number or auto, not \"%s\"",
                             kvm_quote(word).at);
    return KVM_OK;
}

static kvm_status read_choice(fit *f, kvm_err *err)
{
    kvm_job *j = f->job;
    double k = 0;
    bool k_given, lambda_given;
    TRY(number_or_auto(j, "k", &k, &k_given, err));
    TRY(number_or_auto(j, "lambda", &f->asked.lambda.value, &lambda_given, err));
    TRY(kvm_job_f64(j, "k_slack", 0.005, 0, 1, &f->asked.k_slack, err));
    TRY(kvm_job_i64(j, "k_most", 4096, 1, 4096, &f->asked.k_most, err));
    const kvm_jat absolute = kvm_json_get(j->params, j->keep, "lambda_absolute");
    const kvm_jat lambda = kvm_json_get(j->params, j->keep, "lambda");
    const kvm_jat at_k = kvm_json_get(j->params, j->keep, "k");
    if (kvm_json_has(absolute)) {
        TRY(kvm_json_f64(absolute, &f->asked.lambda.value, err));
        f->asked.lambda.absolute = true;
        if (lambda_given)
            return kvm_json_fail(err, KVM_USAGE, absolute,
                                 "give lambda or lambda_absolute, not both");
        lambda_given = true;
    }
    if (lambda_given && !(f->asked.lambda.value >= 0))
        return kvm_json_fail(err, KVM_RANGE,
                             f->asked.lambda.absolute ? absolute : lambda,
                             "is %g, must be 0 or more", f->asked.lambda.value);
    if (k_given && (k < 1 || k != floor(k) || k > 4096))
        return kvm_json_fail(err, KVM_RANGE, at_k,
                             "is %g, must be a whole number of layers", k);
    f->asked.k = k_given ? (ptrdiff_t)k : 0;
    f->asked.lambda_given = lambda_given;
    return KVM_OK;
}

/* thresholds are strict: one at the end of the reach is never passed either */
static kvm_status can_be_met(const kvm_gate *g, kvm_jat at, kvm_err *err)
{
    const bool above = g->sense == KVM_GATE_ABOVE;
    if (above ? g->threshold < g->reach : g->threshold > g->reach) return KVM_OK;
    return kvm_json_fail(err, KVM_RANGE, at,
                         "is %g, a gate that is never met: must be %s than %g",
                         g->threshold, above ? "less" : "more", g->reach);
}

static kvm_status no_gate(const fit *f, kvm_str name, kvm_jat at, kvm_err *err)
{
    kvm_str names[KVM_GATES];
    kvm_text list = {0};
    for (int i = 0; i < KVM_GATES; i++) {
        names[i] = kvm_str_of(f->gates[i].name);
        kvm_text_addf(&list, "%s%s", i ? ", " : "", f->gates[i].name);
    }
    const ptrdiff_t nearest = kvm_str_nearest(name, names, KVM_GATES);
    const kvm_status s =
        nearest >= 0
            ? kvm_json_fail(err, KVM_USAGE, at, "is no gate; did you mean \"%.*s\"?",
                            KVM_STR_ARG(names[nearest]))
            : kvm_json_fail(err, KVM_USAGE, at, "is no gate; there are %.*s",
                            KVM_STR_ARG(kvm_text_str(&list)));
    kvm_text_free(&list);
    return s;
}

static kvm_status read_gates(fit *f, kvm_err *err)
{
    kvm_gates_init(f->gates);
    const kvm_jat at = kvm_json_get(f->job->params, f->job->keep, "gates");
    if (!kvm_json_has(at)) return KVM_OK;
    kvm_str name;
    const json_t *value;
    for (void *it = NULL; kvm_json_next(at, &it, &name, &value);) {
        kvm_gate *g = kvm_gate_find(f->gates, name);
        if (!g) return no_gate(f, name, kvm_json_get(at, f->job->keep, name.at), err);
        const kvm_jat threshold = kvm_json_get(at, f->job->keep, name.at);
        TRY(kvm_json_f64(threshold, &g->threshold, err));
        TRY(can_be_met(g, threshold, err));
    }
    return KVM_OK;
}

static kvm_status read_params(fit *f, kvm_err *err)
{
    kvm_job *j = f->job;
    TRY(read_choice(f, err));
    TRY(kvm_param_word(j, "select", "r2", "depth", &f->by_depth, err));
    TRY(kvm_param_word(j, "heads", "all", "matched", &f->head_matched, err));
    TRY(kvm_param_dtype(j, &f->dtype, err));
    TRY(kvm_fit_read_recipes(j, &f->options, err));
    TRY(kvm_json_bool_or(kvm_json_get(j->params, j->keep, "allow_wide"), false,
                         &f->allow_wide, err));
    TRY(kvm_json_bool_or(kvm_json_get(j->params, j->keep, "sweep"), true, &f->sweep,
                         err));
    return read_gates(f, err);
}

/* ---- inputs ---- */

static kvm_status open_moments(fit *f, kvm_err *err)
{
    const kvm_job_input *gram, *cross, *own = kvm_job_find_input(f->job, "own");
    TRY(kvm_job_need_input(f->job, "gram", &gram, err));
    TRY(kvm_job_need_input(f->job, "cross", &cross, err));
    return kvm_moments_open(&f->moments, f->job->keep, gram->path, cross->path,
                            own ? own->path : (kvm_str){0}, err);
}

static kvm_status open_sides(fit *f, kvm_err *err)
{
    static const char *const names[] = {"source_capture", "target_capture"};
    kvm_side_info *const sides[] = {&f->translator.source, &f->translator.target};
    for (int i = 0; i < 2; i++) {
        const kvm_job_input *in;
        TRY(kvm_job_need_input(f->job, names[i], &in, err));
        TRY(kvm_rows_open(&f->rows[i], f->job->keep, in->path, err));
        TRY(kvm_side_of_rows(sides[i], f->job->keep, f->rows[i], err));
    }
    TRY(kvm_outline_make(&f->outline, &f->options, &f->translator.source.shapes,
                         &f->translator.target.shapes, err));
    if (!f->head_matched) return KVM_OK;
    for (int i = 0; i < f->outline.mappings; i++) {
        const kvm_mapping *m = &f->outline.mapping[i];
        if (m->token || m->from[0] != m->out)
            return kvm_fail(err, KVM_UNSUPPORTED,
                            "heads: matched is for keys from keys and values from "
                            "values; %s reads others",
                            kvm_mapping_label(m));
    }
    return KVM_OK;
}

/* Layers of keys are ranked by their content, whatever space is mapped: the figures of
 * an ablation are of the same layers. */
static kvm_status rank(fit *f, group *g, kvm_err *err)
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

/* what one step reports and what its gates see */
static kvm_status put_layer(fit *f, const kvm_step *s, const kvm_ridge_figures *g,
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

static kvm_status solve_step(fit *f, const group *g, int mapping, ptrdiff_t layer,
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
static kvm_status make_step(fit *f, const group *g, int mapping, ptrdiff_t layer,
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
    if (m->out == KVM_SPACE_LATENT && layer == 0 && f->outline.exact)
        *step = (kvm_step){.mapping = {.out = m->out},
                           .map = KVM_MAP_EXACT,
                           .lambda = (double)NAN,
                           .r2_fit = (double)NAN,
                           .r2_held = (double)NAN};
    else {
        const kvm_status s = solve_step(f, g, mapping, layer, step, err);
        if (s)
            return kvm_err_prefix(err, s, "%s of target layer %td",
                                  kvm_mapping_label(m), layer);
    }
    f->translator.count++;
    return KVM_OK;
}

static kvm_status choose(fit *f, group *g, kvm_err *err)
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
    for (ptrdiff_t t = 0; t < g->ranking.targets; t++) {
        json_t *one = json_array();
        for (ptrdiff_t i = 0; i < g->choice.k; i++)
            json_array_append_new(
                one, json_integer(g->ranking.order[t * g->ranking.sources + i]));
        json_array_append_new(all, one);
    }
    return all;
}

static kvm_status put_group(fit *f, const group *g, kvm_err *err)
{
    json_t *rows = json_array(), *lambdas = json_object();
    for (int i = 0; i < g->mappings; i++) {
        const char *label = kvm_mapping_label(&g->mapping[i]);
        json_array_append_new(rows, json_string(label));
        json_object_set_new(lambdas, label, json_real(lambda_of(g, i).value));
    }
    json_object_set_new(g->figures, "rows", rows);
    json_object_set_new(g->figures, "how", json_string(g->mapping[0].how));
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

static kvm_status solve_group(fit *f, int number, kvm_err *err)
{
    group g = {.choice = f->asked,
               .figures = kvm_json_own(f->job->keep, json_object())};
    if (!g.figures) return kvm_nomem(err, f->job->keep);
    for (int i = f->outline.mappings - 1; i >= 0; i--) {
        if (f->outline.group[i] != number) continue;
        g.mapping = &f->outline.mapping[i];
        g.mappings++;
    }
    TRY(choose(f, &g, err));
    for (ptrdiff_t l = 0; l < f->translator.target.shapes.layers; l++)
        for (int i = 0; i < g.mappings; i++)
            if (kvm_shapes_width(&f->translator.target.shapes, g.mapping[i].out, l) > 0)
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

/* ---- states ---- */

static kvm_state_map map_of(kvm_state_way w)
{
    return w == KVM_STATES_COPY       ? KVM_STATE_COPY
           : w == KVM_STATES_BILINEAR ? KVM_STATE_BILINEAR
                                      : KVM_STATE_ZERO;
}

static kvm_status fit_state(fit *f, ptrdiff_t layer, kvm_state_step *s, json_t *list,
                            kvm_err *err)
{
    kvm_job *j = f->job;
    const kvm_state_map map = map_of(f->outline.states);
    *s = (kvm_state_step){
        .layer = layer, .r2_held = (double)NAN, .r2_window_held = (double)NAN};
    if (map == KVM_STATE_ZERO) return KVM_OK;
    kvm_state_figures figures;
    kvm_state_options o = {0};
    kvm_moments_split(f->moments, &o.seed, &o.fraction);
    TRY(kvm_states_fit(f->compute, f->rows[0], f->rows[1], map,
                       kvm_outline_state_source(&f->translator.source.shapes,
                                                &f->translator.target.shapes, layer),
                       layer, &o, s, &figures, j->keep, f->scratch, err));
    json_array_append_new(
        list, json_pack("{s:I, s:I, s:s, s:f, s:f, s:f, s:f}", "layer",
                        (json_int_t)layer, "source", (json_int_t)s->source, "map",
                        kvm_state_map_name(map), "r2_copy", figures.r2_copy, "r2_held",
                        figures.r2, "window_r2_copy", figures.r2_window_copy,
                        "window_r2_held", figures.r2_window));
    return KVM_OK;
}

static kvm_status fit_states(fit *f, kvm_err *err)
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
        if (kvm_shapes_width(to, KVM_SPACE_STATE, l) > 0)
            TRY(fit_state(f, l, &s[f->translator.state_count++], list, err));
    return KVM_OK;
}

/* ---- results ---- */

/* gates that another step measures stand here with no values */
static json_t *gates_json(const kvm_gate gates[KVM_GATES])
{
    json_t *list = json_array();
    for (int i = 0; i < KVM_GATES; i++) {
        const kvm_gate *g = &gates[i];
        json_array_append_new(
            list,
            json_pack("{s:s, s:s, s:o, s:f, s:b, s:b, s:I}", "name", g->name, "what",
                      g->what, "figure",
                      isfinite(g->figure) ? json_real(g->figure) : json_null(),
                      "threshold", g->threshold, "above", g->sense == KVM_GATE_ABOVE,
                      "met", kvm_gate_met(g), "values", (json_int_t)g->values));
    }
    return list;
}

static kvm_status put_results(fit *f, kvm_err *err)
{
    kvm_job *j = f->job;
    kvm_str path;
    TRY(kvm_job_path(j, "translator.safetensors", &path, err));
    TRY(kvm_translator_write(&f->translator, f->dtype, path, f->scratch, NULL, err));
    TRY(j->host->output(j, "translator", path, err));
    json_object_update_missing(
        f->figures, json_array_get(json_object_get(f->figures, "groups"), 0));
    json_object_set_new(f->figures, "keys",
                        json_string(kvm_key_space_name(f->options.keys)));
    json_object_set_new(f->figures, "token",
                        json_string(kvm_token_kind_name(f->outline.token)));
    json_object_set_new(f->figures, "state_way",
                        json_string(kvm_state_way_name(f->outline.states)));
    json_object_set_new(f->figures, "heads",
                        json_string(f->head_matched ? "matched" : "all"));
    json_object_set_new(f->figures, "layers", json_incref(f->layers));
    json_object_set_new(f->figures, "gates", gates_json(f->gates));
    json_object_set_new(f->figures, "parameters",
                        json_integer(kvm_translator_parameters(&f->translator)));
    json_object_set_new(f->figures, "rows_fit",
                        json_integer(kvm_moments_rows(f->moments, KVM_FIT)));
    json_object_set_new(f->figures, "rows_choose",
                        json_integer(kvm_moments_rows(f->moments, KVM_CHOOSE)));
    json_object_set_new(f->figures, "rows_held",
                        json_integer(kvm_moments_rows(f->moments, KVM_HELD)));
    return kvm_job_put_json(j, "fit", "fit.json", json_incref(f->figures), err);
}

static kvm_status run_fit(fit *f, kvm_err *err)
{
    kvm_job *j = f->job;
    f->translator.keys = f->options.keys;
    f->translator.token = f->outline.token;
    f->translator.moments = kvm_moments_hash(f->moments);
    f->translator.pair = KVM_STR("");
    f->steps = kvm_new(j->keep, kvm_step,
                       f->outline.mappings * f->translator.target.shapes.layers);
    if (!f->steps) return kvm_nomem(err, j->keep);
    for (int g = 0; g < f->outline.groups; g++) TRY(solve_group(f, g, err));
    qsort(f->steps, (size_t)f->translator.count, sizeof *f->steps, by_layer);
    f->translator.steps = f->steps;
    TRY(fit_states(f, err));
    return put_results(f, err);
}

static kvm_status run(kvm_job *j, kvm_err *err)
{
    const double started = kvm_now();
    fit f = {.job = j, .figures = json_object(), .layers = json_array()};
    if (!kvm_json_own(j->keep, f.figures) || !kvm_json_own(j->keep, f.layers))
        return kvm_nomem(err, j->keep);
    TRY(kvm_job_compute(j, &f.compute, err));
    TRY(read_params(&f, err));
    TRY(open_moments(&f, err));
    TRY(open_sides(&f, err));
    TRY(kvm_arena_reserve(&f.scratch, (size_t)64 << 30, err));
    const kvm_status s = run_fit(&f, err);
    kvm_arena_free(&f.scratch);
    return s ? s : kvm_job_put_cost(j, started, err);
}

static kvm_status check(kvm_job *j, kvm_err *err)
{
    fit f = {.job = j};
    return read_params(&f, err);
}

static const char *const inputs[] = {"gram", "cross", "own?", "source_capture",
                                     "target_capture", NULL};
static const char *const outputs[] = {"translator", "fit", "cost", NULL};
const kvm_job_kind kvm_job_fit = {
    .id = KVM_JOB_FIT,
    .inputs = inputs,
    .outputs = outputs,
    .params = kvm_fit_params,
    .section = "fit",
    .run = run,
    .check = check,
};
