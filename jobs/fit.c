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
 * then the states of recurrent layers, from both captures, and how many of the tokens
 * that the maps will be told are read right (fit_identity.c). Output "translator" is
 * the translator file, "fit" the figures as JSON: those of the first group, and of each
 * under "groups". A candidate (candidates.h) that cannot be fitted puts out "fit"
 * alone, which says why under "failed". */
#include <math.h>

#include "base/clock.h"
#include "jobs/candidates.h"
#include "jobs/fit_internal.h"
#include "jobs/fit_recipes.h"
#include "jobs/open.h"
#include "jobs/params.h"
#include "jobs/spec.h"

/* " rows_per_feature (1.0) held_out_r2 (0.0) ..." */
#define X(id, NAME, name, sense, reduce, threshold, ...) " " name " (" #threshold ")"
static const double MOST_LAMBDA = 1e6; /* where every map is long one to the mean */

static const char gate_names[] = "thresholds by gate name, with these defaults:"
#include "translators/gates.def"
    ;
#undef X

/* clang-format off */
#define FIT_PARAMS                                                                     \
    {"k", KVM_FIELD_ANY, false,                                                        \
     "source layers per target layer: a number, or auto (auto)", NULL, 0},             \
    {"k_slack", KVM_FIELD_NUM, false, "R2 given away for a smaller k (0.005)",         \
     NULL, 0},                                                                         \
    {"k_most", KVM_FIELD_INT, false,                                                   \
     "largest k that the sweep tries (all source layers)", NULL, 0},                   \
    {"lambda", KVM_FIELD_ANY, false,                                                   \
     "relative ridge penalty: a number, or auto (auto)", NULL, 0},                     \
    {"lambda_absolute", KVM_FIELD_NUM, false,                                          \
     "absolute penalty instead (the paper: 0.01)", NULL, 0},                           \
    {"select", KVM_FIELD_STR, false, "how source layers are chosen: r2 or depth (r2)", \
     NULL, 0},                                                                         \
    {"heads", KVM_FIELD_STR, false,                                                    \
     "features of a map: all (heads of its source layers) or matched (the one head "   \
     "that "                                                                           \
     "stands where the target's does) (all)",                                          \
     NULL, 0},                                                                         \
    {"keys", KVM_FIELD_STR, false, "content, rotated or content-norerotate (content)", \
     NULL, 0},                                                                         \
    {"token", KVM_FIELD_STR, false,                                                    \
     "whether maps are told which token a row is of: none, given (ids come with the "  \
     "cache), decoded (read out of the source's first layer), or auto, which tries "   \
     "what the pair can on the choosing split (told where the target keeps latents, "  \
     "indexers or states that must be made)",                                          \
     NULL, 0},                                                                         \
    {"states", KVM_FIELD_ANY, false,                                                   \
     "of recurrent layers: zero, copy, bilinear, replay; a list of these, one for "    \
     "each such layer of the target; or auto, as with token (bilinear where both "     \
     "models keep one geometry, else replay)",                                         \
     NULL, 0},                                                                         \
    {"latents", KVM_FIELD_ANY, false,                                                  \
     "capture point of latents: 1 (before norm and position), 3 (as engines keep "     \
     "them), or auto, as with token (1)",                                              \
     NULL, 0},                                                                         \
    {"indexers", KVM_FIELD_STR, false,                                                 \
     "index keys of the target: predicted, or dense: they are left out, and attention "\
     "looks at the whole translated prefix; or auto, as with token (predicted)",       \
     NULL, 0},                                                                         \
    {"dtype", KVM_FIELD_STR, false, "weights in the file: f32 or bf16 (f32)", NULL, 0},\
    {"allow_wide", KVM_FIELD_BOOL, false, "fit although rows <= features (false)",     \
     NULL, 0},                                                                         \
    {"sweep", KVM_FIELD_BOOL, false,                                                   \
     "false: only the one fit, no maps and curves (true)", NULL, 0},                   \
    {"gates", KVM_FIELD_OBJECT, false, gate_names, NULL, 0}
/* clang-format on */

const kvm_field kvm_fit_params[] = {FIT_PARAMS, {0}};

static const kvm_field params[] = {
    FIT_PARAMS,
    /* filled in by the graph: to check tokens that are decoded */
    {"source", KVM_FIELD_STR, false, "fingerprint", NULL, 0},
    {"source_path", KVM_FIELD_STR, false, "checkpoint", NULL, 0},
    KVM_TEXT_PARAMS(false),
    {"candidate", KVM_FIELD_BOOL, false, "one of several that are chosen among", NULL,
     0},
    {0},
};

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

static kvm_status read_choice(kvm_fit *f, kvm_err *err)
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
    const bool in_range =
        f->asked.lambda.value >= 0 && f->asked.lambda.value <= MOST_LAMBDA;
    if (lambda_given && !in_range)
        return kvm_json_fail(
            err, KVM_RANGE, f->asked.lambda.absolute ? absolute : lambda,
            "is %g, must lie in 0..%g", f->asked.lambda.value, MOST_LAMBDA);
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

static kvm_status no_gate(const kvm_fit *f, kvm_str name, kvm_jat at, kvm_err *err)
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

static kvm_status read_gates(kvm_fit *f, kvm_err *err)
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

static kvm_status read_params(kvm_fit *f, kvm_err *err)
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

static kvm_status open_moments(kvm_fit *f, kvm_err *err)
{
    const kvm_job_input *gram, *cross, *own = kvm_job_find_input(f->job, "own");
    TRY(kvm_job_need_input(f->job, "gram", &gram, err));
    TRY(kvm_job_need_input(f->job, "cross", &cross, err));
    return kvm_moments_open(&f->moments, f->job->keep, gram->path, cross->path,
                            own ? own->path : (kvm_str){0}, err);
}

static kvm_status open_sides(kvm_fit *f, kvm_err *err)
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

/* ---- results ---- */

/* gates that another step measures stand here with no values */
static json_t *gates_json(const kvm_gate gates[KVM_GATES])
{
    json_t *list = json_array();
    for (int i = 0; i < KVM_GATES; i++) {
        const kvm_gate *g = &gates[i];
        json_array_append_new(
            list,
            json_pack("{s:s, s:s, s:o, s:f, s:b, s:b, s:b, s:I}", "name", g->name,
                      "what", g->what, "figure",
                      isfinite(g->figure) ? json_real(g->figure) : json_null(),
                      "threshold", g->threshold, "above", g->sense == KVM_GATE_ABOVE,
                      "required", g->rank == KVM_GATE_REQUIRED, "met", kvm_gate_met(g),
                      "values", (json_int_t)g->values));
    }
    return list;
}

/* layers whose index keys are left out, for the report; nothing where none are */
static void put_dense(kvm_fit *f)
{
    const kvm_shapes *to = &f->translator.target.shapes;
    if (!f->outline.dense) return;
    json_t *list = json_array();
    for (ptrdiff_t l = 0; l < to->layers; l++)
        if (kvm_shapes_width(to, KVM_SPACE_INDEX, l) > 0)
            json_array_append_new(list, json_pack("{s:I}", "layer", (json_int_t)l));
    json_object_set_new(f->figures, "dense", list);
}

/* of states that are made layer by layer, how: in the order of recurrent layers */
static void put_ways(kvm_fit *f)
{
    if (!f->outline.each) return;
    json_t *list = json_array();
    for (ptrdiff_t i = 0; i < f->outline.ways; i++)
        json_array_append_new(list,
                              json_string(kvm_state_way_name(f->outline.each[i])));
    json_object_set_new(f->figures, "state_ways", list);
    if (f->outline.states == KVM_STATES_AUTO)
        json_object_del(f->figures, "state_way"); /* there is none of all */
}

/* the capture point that latents are read and made at, where a model keeps any */
static void put_latents(kvm_fit *f)
{
    static const kvm_space kept[] = {KVM_SPACE_LATENT, KVM_SPACE_LATENT_ENGINE};
    bool any = false;
    for (int i = 0; i < 2; i++)
        any |= f->translator.source.shapes.of[kept[i]] ||
               f->translator.target.shapes.of[kept[i]];
    if (any)
        json_object_set_new(
            f->figures, "latents",
            json_integer(f->options.engine ? KVM_POINT_ENGINE : KVM_POINT_RAW));
}

static kvm_status put_results(kvm_fit *f, kvm_err *err)
{
    kvm_job *j = f->job;
    kvm_str path;
    TRY(kvm_job_path(j, "translator.safetensors", &path, err));
    if (kvm_team_leads(j->team))
        TRY(kvm_translator_write(&f->translator, f->dtype, path, f->scratch, NULL,
                                 err));
    TRY(j->host->output(j, "translator", path, err));
    json_object_update_missing(
        f->figures, json_array_get(json_object_get(f->figures, "groups"), 0));
    json_object_set_new(f->figures, "keys",
                        json_string(kvm_key_space_name(f->options.keys)));
    json_object_set_new(f->figures, "token",
                        json_string(kvm_token_kind_name(f->outline.token)));
    json_object_set_new(f->figures, "state_way",
                        json_string(kvm_state_way_name(f->outline.states)));
    put_latents(f);
    put_dense(f);
    put_ways(f);
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

static kvm_status run_fit(kvm_fit *f, kvm_err *err)
{
    f->translator.keys = f->options.keys;
    f->translator.token = f->outline.token;
    f->translator.dense = f->outline.dense;
    f->translator.moments = kvm_moments_hash(f->moments);
    f->translator.pair = KVM_STR("");
    TRY(kvm_fit__solve(f, err));
    TRY(kvm_fit__states(f, err));
    TRY(kvm_fit__identity(f, err));
    return put_results(f, err);
}

static kvm_status fit(kvm_job *j, kvm_err *err)
{
    kvm_fit f = {.job = j, .figures = json_object(), .layers = json_array()};
    if (!kvm_json_own(j->keep, f.figures) || !kvm_json_own(j->keep, f.layers))
        return kvm_nomem(err, j->keep);
    TRY(kvm_job_compute(j, &f.compute, err));
    TRY(read_params(&f, err));
    TRY(open_moments(&f, err));
    TRY(open_sides(&f, err));
    TRY(kvm_arena_reserve(&f.scratch, (size_t)64 << 30, err));
    const kvm_status s = run_fit(&f, err);
    kvm_arena_free(&f.scratch);
    return s;
}

static kvm_status run(kvm_job *j, kvm_err *err)
{
    const double started = kvm_now();
    kvm_err why = {0};
    const kvm_status s = kvm_team_agree(j->team, fit(j, &why), &why);
    const bool others = json_is_true(json_object_get(j->params.v, "candidate"));
    if (s && others && kvm_candidate_lost(s)) {
        TRY(j->host->event(j, "lost", kvm_str_of(why.msg), err));
        TRY(kvm_job_put_json(j, "fit", "fit.json",
                             json_pack("{s:s}", "failed", why.msg), err));
    } else if (s) {
        if (err) *err = why;
        return s;
    }
    return kvm_job_put_cost(j, started, err);
}

static kvm_status check(kvm_job *j, kvm_err *err)
{
    kvm_fit f = {.job = j};
    return read_params(&f, err);
}

static const char *const inputs[] = {"gram",           "cross",          "own?",
                                     "source_capture", "target_capture", NULL};
static const char *const outputs[] = {"translator?", "fit", "cost", NULL};
const kvm_job_kind kvm_job_fit = {
    .id = KVM_JOB_FIT,
    .inputs = inputs,
    .outputs = outputs,
    .params = params,
    .section = "fit",
    .run = run,
    .check = check,
};
