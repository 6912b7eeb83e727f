/* fit.c - solve the closed-form maps of an ordered pair from moments alone.
 *
 * 1. R2 of every target layer from every source layer alone (maps), and the ranking by
 * K content and V
 * 2. every k and every lambda of the sweep; greedy curves for a few target
 * layers
 * 3. the choice: the smallest k whose R2 is within `k_slack` of the best, the
 * best lambda of that k, on the choosing split
 * 4. one map per object and target layer with that choice; figures and gates, read on
 * the held-out split, which nothing was chosen on. Output
 * "translator" is the translator file, "fit" the figures of 1-4 as JSON. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "jobs/fit_sweep.h"
#include "jobs/open.h"
#include "jobs/params.h"
#include "jobs/spec.h"
#include "translators/gates.h"
#include "translators/translator.h"

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
    kvm_fit_choice choice;
    kvm_ranking ranking;
    bool head_matched, allow_wide, by_depth, sweep;
    kvm_key_space keys;
    kvm_dtype dtype;
    kvm_translator translator;
    kvm_gate gates[KVM_GATES];
    json_t *figures, *layers;
    kvm_arena scratch;
} fit;

static kvm_space space_of(const fit *f, kvm_object_kind object)
{
    if (object == KVM_OBJECT_V) return KVM_SPACE_V;
    return f->keys == KVM_KEYS_ROTATED ? KVM_SPACE_K_ROTATED : KVM_SPACE_K;
}

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
    TRY(number_or_auto(j, "lambda", &f->choice.lambda.value, &lambda_given, err));
    TRY(kvm_job_f64(j, "k_slack", 0.005, 0, 1, &f->choice.k_slack, err));
    TRY(kvm_job_i64(j, "k_most", 4096, 1, 4096, &f->choice.k_most, err));
    const kvm_jat absolute = kvm_json_get(j->params, j->keep, "lambda_absolute");
    const kvm_jat lambda = kvm_json_get(j->params, j->keep, "lambda");
    const kvm_jat at_k = kvm_json_get(j->params, j->keep, "k");
    if (kvm_json_has(absolute)) {
        TRY(kvm_json_f64(absolute, &f->choice.lambda.value, err));
        f->choice.lambda.absolute = true;
        if (lambda_given)
            return kvm_json_fail(err, KVM_USAGE, absolute,
                                 "give lambda or lambda_absolute, not both");
        lambda_given = true;
    }
    if (lambda_given && !(f->choice.lambda.value >= 0))
        return kvm_json_fail(err, KVM_RANGE,
                             f->choice.lambda.absolute ? absolute : lambda,
                             "is %g, must be 0 or more", f->choice.lambda.value);
    if (k_given && (k < 1 || k != floor(k) || k > 4096))
        return kvm_json_fail(err, KVM_RANGE, at_k,
                             "is %g, must be a whole number of layers", k);
    f->choice.k = k_given ? (ptrdiff_t)k : 0;
    f->choice.lambda_given = lambda_given;
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
    kvm_str keys;
    TRY(read_choice(f, err));
    TRY(kvm_param_word(j, "select", "r2", "depth", &f->by_depth, err));
    TRY(kvm_param_word(j, "heads", "all", "matched", &f->head_matched, err));
    TRY(kvm_param_dtype(j, &f->dtype, err));
    const kvm_jat at = kvm_json_get(j->params, j->keep, "keys");
    TRY(kvm_json_str_or(at, KVM_STR("content"), &keys, err));
    if (kvm_key_space_of_name(keys, &f->keys))
        return kvm_json_fail(err, KVM_USAGE, at,
                             "is content, rotated or content-norerotate, not \"%s\"",
                             kvm_quote(keys).at);
    TRY(kvm_json_bool_or(kvm_json_get(j->params, j->keep, "allow_wide"), false,
                         &f->allow_wide, err));
    TRY(kvm_json_bool_or(kvm_json_get(j->params, j->keep, "sweep"), true, &f->sweep,
                         err));
    return read_gates(f, err);
}

/* ---- inputs ---- */

static kvm_status open_moments(fit *f, kvm_err *err)
{
    const kvm_job_input *gram, *cross;
    TRY(kvm_job_need_input(f->job, "gram", &gram, err));
    TRY(kvm_job_need_input(f->job, "cross", &cross, err));
    return kvm_moments_open(&f->moments, f->job->keep, gram->path, cross->path, err);
}

static kvm_status open_sides(fit *f, kvm_err *err)
{
    static const char *const names[] = {"source_capture", "target_capture"};
    kvm_side_info *const sides[] = {&f->translator.source, &f->translator.target};
    for (int i = 0; i < 2; i++) {
        const kvm_job_input *in;
        kvm_rows *rows;
        TRY(kvm_job_need_input(f->job, names[i], &in, err));
        TRY(kvm_rows_open(&rows, f->job->keep, in->path, err));
        TRY(kvm_side_of_rows(sides[i], f->job->keep, rows, err));
    }
    return KVM_OK;
}

static kvm_status rank(fit *f, kvm_err *err)
{
    kvm_r2_map maps;
    kvm_job *j = f->job;
    const kvm_map_options o = {.allow_wide = f->allow_wide};
    TRY(kvm_select_maps(f->compute, f->moments, &o, &maps, j->keep, f->scratch, err));
    if (f->sweep) TRY(kvm_fit_put_maps(f->figures, &maps, err));
    if (f->by_depth)
        return kvm_select_depth(&f->ranking, j->keep, maps.sources, maps.targets, err);
    return kvm_select_rank(&f->ranking, j->keep, &maps, KVM_CHOOSE, err);
}

/* ---- the maps ---- */

static kvm_lambda lambda_of(const fit *f, kvm_object_kind object)
{
    if (f->choice.lambda_given) return f->choice.lambda;
    return f->choice.best[object == KVM_OBJECT_V];
}

/* what one step reports and what its gates see */
static kvm_status put_layer(fit *f, const kvm_step *s, const kvm_ridge_figures *g,
                            kvm_err *err)
{
    kvm_job *j = f->job;
    const char *object = kvm_object_name(s->object);
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

static kvm_status solve_step(fit *f, kvm_step *step, kvm_object_kind object,
                             ptrdiff_t layer, kvm_err *err)
{
    kvm_job *j = f->job;
    const kvm_space space = space_of(f, object);
    const kvm_row_shape to = kvm_moments_shape(f->moments, KVM_TARGET, space, layer);
    const int32_t *order = f->ranking.order + layer * f->ranking.sources;
    const ptrdiff_t groups = f->head_matched ? to.heads : 1;
    const kvm_ridge_options o = {lambda_of(f, object), f->allow_wide};
    const double **weight = kvm_new(j->keep, const double *, groups);
    const double **bias = kvm_new(j->keep, const double *, groups);
    if (!weight || !bias) return kvm_nomem(err, j->keep);
    kvm_ridge_figures figures = {0};
    kvm_ridge_map map = {0};
    for (ptrdiff_t h = 0; h < groups; h++) {
        const ptrdiff_t from = kvm_matched_head(
            h, kvm_moments_shape(f->moments, KVM_SOURCE, space, 0).heads, to.heads);
        const kvm_features x = {order, f->choice.k, f->head_matched ? from : -1};
        kvm_ridge_figures one;
        TRY(kvm_ridge_fit(f->compute, f->moments, space, x, layer,
                          f->head_matched ? h : -1, &o, &map, &one, j->keep, f->scratch,
                          err));
        merge_heads(&figures, &one, h);
        weight[h] = map.weight;
        bias[h] = map.bias;
    }
    TRY(kvm_step_ridge(step, j->keep, object, layer, order, f->choice.k, groups,
                       map.inputs, to.heads * to.dim, weight, bias, err));
    step->head_matched = f->head_matched;
    step->lambda = o.lambda.absolute ? -o.lambda.value : o.lambda.value;
    step->r2_fit = figures.r2[KVM_FIT];
    step->r2_held = figures.r2[KVM_HELD];
    return put_layer(f, step, &figures, err);
}

static kvm_status solve_all(fit *f, kvm_err *err)
{
    static const kvm_object_kind objects[] = {KVM_OBJECT_K, KVM_OBJECT_V};
    kvm_job *j = f->job;
    const ptrdiff_t layers = kvm_moments_layers(f->moments, KVM_TARGET);
    kvm_step *steps = kvm_new(j->keep, kvm_step, 2 * layers);
    if (!steps) return kvm_nomem(err, j->keep);
    for (ptrdiff_t i = 0; i < 2 * layers; i++) {
        kvm_progress_at(j->progress, (double)i, (double)(2 * layers), "maps");
        if (kvm_progress_cancelled(j->progress))
            return kvm_fail(err, KVM_CANCELLED, "cancelled after %td of %td maps", i,
                            2 * layers);
        const kvm_status s = solve_step(f, &steps[i], objects[i % 2], i / 2, err);
        if (s)
            return kvm_err_prefix(err, s, "%s of target layer %td",
                                  kvm_object_name(objects[i % 2]), i / 2);
    }
    f->translator.steps = steps;
    f->translator.count = 2 * layers;
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

static json_t *selected_json(const fit *f)
{
    json_t *all = json_array();
    for (ptrdiff_t t = 0; t < f->ranking.targets; t++) {
        json_t *one = json_array();
        for (ptrdiff_t i = 0; i < f->choice.k; i++)
            json_array_append_new(
                one, json_integer(f->ranking.order[t * f->ranking.sources + i]));
        json_array_append_new(all, one);
    }
    return all;
}

static kvm_status put_results(fit *f, kvm_err *err)
{
    kvm_job *j = f->job;
    kvm_str path;
    TRY(kvm_job_path(j, "translator.safetensors", &path, err));
    TRY(kvm_translator_write(&f->translator, f->dtype, path, f->scratch, NULL, err));
    TRY(j->host->output(j, "translator", path, err));
    const kvm_lambda lk = lambda_of(f, KVM_OBJECT_K), lv = lambda_of(f, KVM_OBJECT_V);
    json_object_set_new(f->figures, "k", json_integer(f->choice.k));
    json_object_set_new(f->figures, "lambda_k", json_real(lk.value));
    json_object_set_new(f->figures, "lambda_v", json_real(lv.value));
    json_object_set_new(f->figures, "lambda_absolute", json_boolean(lk.absolute));
    json_object_set_new(f->figures, "keys", json_string(kvm_key_space_name(f->keys)));
    json_object_set_new(f->figures, "heads",
                        json_string(f->head_matched ? "matched" : "all"));
    json_object_set_new(f->figures, "selected", selected_json(f));
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
    f->translator.keys = f->keys;
    f->translator.moments = kvm_moments_hash(f->moments);
    f->translator.pair = KVM_STR("");
    TRY(rank(f, err));
    const kvm_fit_sweep sweep = {
        .compute = f->compute,
        .moments = f->moments,
        .ranking = &f->ranking,
        .keys = space_of(f, KVM_OBJECT_K),
        .allow_wide = f->allow_wide,
        .full = f->sweep,
        .progress = j->progress,
    };
    TRY(kvm_fit_run_sweep(&sweep, &f->choice, f->figures, j->keep, f->scratch, err));
    TRY(solve_all(f, err));
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

static const char *const inputs[] = {"gram", "cross", "source_capture",
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
