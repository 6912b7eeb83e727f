/* invert.c - which tokens can be read out of cached rows, layer by layer.
 *
 * Per layer and capture point a ridge from the cached row to the model's own embedding
 * of the token, solved from moments; then the nearest embedding of the vocabulary, on
 * rows of held-out sequences. So simple a decoder gives a lower bound. Beside it the
 * codebook that translators decode tokens with (translators/identity.h), where the
 * source has one. Output "figures" is the report's section "inversion"
 * (reports/page.h). */
#include <math.h>

#include "jobs/held_tokens.h"
#include "jobs/invert.h"
#include "jobs/open.h"
#include "jobs/params.h"
#include "translators/ridge.h"

static const kvm_field params[] = {
    KVM_PAIR_PARAMS,
    KVM_TEXT_PARAMS(true),
    {"seed", KVM_FIELD_INT, true, "of the split by sequence", NULL, 0},
    {"held_out", KVM_FIELD_NUM, true,
     "fraction of the sequences that is kept from the fit", NULL, 0},
    {0},
};

/* what engines keep of a token, at the points where a capture can hold it */
static const struct {
    kvm_space space;
    int point;
} cached[] = {
    {KVM_SPACE_K, KVM_POINT_NORMED},
    {KVM_SPACE_K_ROTATED, KVM_POINT_ENGINE},
    {KVM_SPACE_V, KVM_POINT_ENGINE},
    {KVM_SPACE_LATENT, KVM_POINT_RAW},
    {KVM_SPACE_LATENT_ENGINE, KVM_POINT_ENGINE},
    {KVM_SPACE_INDEX, KVM_POINT_RAW},
};
enum { CACHED = sizeof cached / sizeof *cached };

void kvm_invert_needs(kvm_spaces *rows, kvm_block_set *gram, const kvm_shapes *s)
{
    *rows |= 1U << KVM_SPACE_TOKEN;
    for (int i = 0; i < CACHED; i++) {
        const kvm_space space = cached[i].space;
        if (!s->of[space]) continue;
        *rows |= 1U << kvm_space_rows[space].stored;
        kvm_block_set_add(gram, space, space);
        kvm_block_set_add(gram, space, KVM_SPACE_TOKEN);
    }
}

typedef struct side {
    const char *name;
    kvm_model *model;
    kvm_rows *rows;
    kvm_moments *moments;  /* in which this side is the target */
    kvm_codebook *nearest; /* of the embeddings */
} side;

typedef struct inversion {
    kvm_job *job;
    kvm_compute *compute;
    side side[2];
    kvm_held_tokens held;
    json_t *series;
} inversion;

/* ---- inputs ---- */

static kvm_status open_side(inversion *v, int i, kvm_err *err)
{
    static const char *const names[] = {"source", "target"};
    static const char *const captures[] = {"source_capture", "target_capture"};
    static const char *const grams[] = {"source_gram", "target_gram"};
    kvm_job *j = v->job;
    side *s = &v->side[i];
    const kvm_job_input *capture, *own, *other, *cross;
    s->name = names[i];
    TRY(kvm_job_need_input(j, captures[i], &capture, err));
    TRY(kvm_job_need_input(j, grams[i], &own, err));
    TRY(kvm_job_need_input(j, grams[1 - i], &other, err));
    TRY(kvm_job_need_input(j, "cross", &cross, err));
    TRY(kvm_job_model(j, v->compute, names[i], &s->model, err));
    TRY(kvm_rows_open(&s->rows, j->keep, capture->path, err));
    TRY(kvm_moments_open(&s->moments, j->keep, other->path, cross->path, own->path,
                         err));
    return kvm_codebook_of_embeddings(&s->nearest, j->keep, v->compute, s->model, err);
}

/* the tokens of the rows that were held out */
static kvm_status read_tokens(inversion *v, kvm_err *err)
{
    kvm_job *j = v->job;
    const side *s = &v->side[0];
    ptrdiff_t seed;
    double fraction;
    TRY(kvm_job_i64(j, "seed", 0, 0, INT64_MAX, &seed, err));
    TRY(kvm_job_f64(j, "held_out", 0.2, 0.01, 0.9, &fraction, err));
    TRY(kvm_rows_same(s->rows, v->side[1].rows, err));
    return kvm_held_tokens_read(&v->held, j, s->rows, kvm_model_tokenizer(s->model),
                                (uint64_t)seed, fraction, err);
}

/* ---- one layer ---- */

/* lambda by the choosing split, then the map */
static kvm_status solve(const inversion *v, const side *s, kvm_space space,
                        ptrdiff_t layer, kvm_ridge_map *map, double *r2,
                        kvm_arena *scratch, kvm_err *err)
{
    const kvm_feature item = {KVM_TARGET, space, layer};
    const kvm_features x = {&item, 1, -1};
    const kvm_output y = {KVM_SPACE_TOKEN, 0};
    const ptrdiff_t one = 1;
    kvm_ridge_figures tried[KVM_LAMBDAS], f;
    int best = 0;
    TRY(kvm_ridge_sweep(v->compute, s->moments, x, y, &one, 1, kvm_lambda_grid,
                        KVM_LAMBDAS, true, tried, *scratch, err));
    for (int i = 1; i < KVM_LAMBDAS; i++)
        if (tried[i].r2[KVM_CHOOSE] > tried[best].r2[KVM_CHOOSE]) best = i;
    kvm_arena room = {0};
    TRY(kvm_arena_reserve(&room, (size_t)8 << 30, err));
    const kvm_ridge_options o = {.lambda = kvm_lambda_grid[best], .allow_wide = true};
    const kvm_status st = kvm_ridge_fit(v->compute, s->moments, x, y, -1, &o, map, &f,
                                        scratch, room, err);
    kvm_arena_free(&room);
    *r2 = f.r2[KVM_HELD];
    return st;
}

/* the map as a kernel's weight: (outputs, inputs) f32 and a bias */
static kvm_status as_weight(const inversion *v, const kvm_ridge_map *map,
                            kvm_weight **w, kvm_arena *scratch, kvm_err *err)
{
    float *turned = kvm_new(scratch, float, map->inputs * map->outputs);
    float *bias = kvm_new(scratch, float, map->outputs);
    if (!turned || !bias) return kvm_nomem(err, scratch);
    for (ptrdiff_t i = 0; i < map->inputs; i++)
        for (ptrdiff_t o = 0; o < map->outputs; o++)
            turned[o * map->inputs + i] = (float)map->weight[i * map->outputs + o];
    for (ptrdiff_t o = 0; o < map->outputs; o++) bias[o] = (float)map->bias[o];
    return kvm_weight_new(w, scratch, v->compute,
                          kvm_view2(turned, KVM_F32, map->outputs, map->inputs), bias,
                          err);
}

/* r2 NaN: there is none, the codebook has read them */
static kvm_status put_layer(inversion *v, json_t *series, ptrdiff_t layer,
                            ptrdiff_t right, double r2, kvm_err *err)
{
    kvm_job *j = v->job;
    const double top1 = (double)right / (double)v->held.n;
    json_t *row = json_pack("{s:I, s:f}", "layer", (json_int_t)layer, "top1", top1);
    if (isfinite(r2)) json_object_set_new(row, "r2", json_real(r2));
    json_array_append_new(json_object_get(series, "layers"), row);
    json_t *labels =
        json_pack("{s:O, s:O, s:O, s:I}", "model", json_object_get(series, "model"),
                  "object", json_object_get(series, "object"), "point",
                  json_object_get(series, "point"), "layer", (json_int_t)layer);
    const kvm_status st = j->host->metric(
        j, isfinite(r2) ? "inversion_top1" : "codebook_top1", top1, labels, err);
    json_decref(labels);
    return st;
}

static kvm_status invert_layer(inversion *v, const side *s, kvm_space space,
                               ptrdiff_t layer, json_t *series, kvm_arena scratch,
                               kvm_err *err)
{
    kvm_ridge_map map;
    kvm_weight *w;
    double r2;
    ptrdiff_t right;
    TRY(solve(v, s, space, layer, &map, &r2, &scratch, err));
    TRY(as_weight(v, &map, &w, &scratch, err));
    const kvm_token_reader by = {s->nearest, w, map.outputs};
    TRY(kvm_held_tokens_right(&v->held, v->compute, s->rows, space, layer, by, &right,
                              scratch, err));
    return put_layer(v, series, layer, right, r2, err);
}

/* ---- all of them ---- */

static json_t *new_series(const side *s, kvm_space space, int point)
{
    const kvm_str name = kvm_model_info_of(s->model)->name;
    const kvm_space stored = kvm_space_rows[space].stored;
    /* points differ, the object is one */
    const char *object = space == KVM_SPACE_LATENT_ENGINE
                             ? kvm_space_name(KVM_SPACE_LATENT)
                             : kvm_space_name(stored);
    return json_pack("{s:s%, s:s, s:s, s:i, s:[]}", "model", name.at, (size_t)name.len,
                     "side", s->name, "object", object, "point", point, "layers");
}

static kvm_status invert_space(inversion *v, const side *s, kvm_space space, int point,
                               kvm_err *err)
{
    const ptrdiff_t layers = kvm_model_info_of(s->model)->layers;
    json_t *series = new_series(s, space, point);
    kvm_arena scratch = {0};
    if (!series) return kvm_nomem(err, v->job->keep);
    json_array_append_new(v->series, series);
    TRY(kvm_arena_reserve(&scratch, (size_t)16 << 30, err));
    kvm_status st = KVM_OK;
    for (ptrdiff_t l = 0; !st && l < layers; l++) {
        if (kvm_progress_cancelled(v->job->progress))
            st = kvm_fail(err, KVM_CANCELLED, "cancelled at layer %td", l);
        else if (kvm_rows_shape(s->rows, space, l).heads > 0)
            st = invert_layer(v, s, space, l, series, scratch, err);
        kvm_arena_reset(&scratch);
    }
    kvm_arena_free(&scratch);
    return st;
}

static kvm_status invert_side(inversion *v, const side *s, kvm_err *err)
{
    for (int i = 0; i < CACHED; i++) {
        bool there = false;
        for (ptrdiff_t l = 0; l < kvm_model_info_of(s->model)->layers; l++)
            there |= kvm_rows_shape(s->rows, cached[i].space, l).heads > 0;
        if (there) TRY(invert_space(v, s, cached[i].space, cached[i].point, err));
    }
    return KVM_OK;
}

/* what a translator of this source decodes tokens with; *series NULL: it has nothing
 * that tells */
static kvm_status read_codebook(inversion *v, json_t **series, kvm_err *err)
{
    const side *s = &v->side[0];
    kvm_codebook *book;
    kvm_space space;
    kvm_arena scratch = {0};
    ptrdiff_t right;
    *series = NULL;
    if (kvm_codebook_space(&space, s->model, NULL)) return KVM_OK;
    TRY(kvm_codebook_new(&book, v->job->keep, v->compute, s->model, false, NULL, err));
    *series = new_series(s, space, kvm_space_rows[space].point);
    if (!kvm_json_own(v->job->keep, *series)) return kvm_nomem(err, v->job->keep);
    TRY(kvm_arena_reserve(&scratch, (size_t)1 << 30, err));
    const kvm_token_reader by = {.book = book};
    const kvm_status st = kvm_held_tokens_right(&v->held, v->compute, s->rows, space, 0,
                                                by, &right, scratch, err);
    kvm_arena_free(&scratch);
    return st ? st : put_layer(v, *series, 0, right, (double)NAN, err);
}

static kvm_status run(kvm_job *j, kvm_err *err)
{
    inversion v = {.job = j, .series = json_array()};
    json_t *codebook;
    if (!kvm_json_own(j->keep, v.series)) return kvm_nomem(err, j->keep);
    TRY(kvm_job_compute(j, &v.compute, err));
    for (int i = 0; i < 2; i++) TRY(open_side(&v, i, err));
    TRY(read_tokens(&v, err));
    for (int i = 0; i < 2; i++) {
        kvm_progress_at(j->progress, i, 2, "models");
        TRY(invert_side(&v, &v.side[i], err));
    }
    TRY(read_codebook(&v, &codebook, err));
    json_t *figures =
        json_pack("{s:I, s:I, s:O, s:O*}", "rows", (json_int_t)v.held.n, "vocab",
                  (json_int_t)kvm_model_info_of(v.side[0].model)->vocab, "series",
                  v.series, "codebook", codebook);
    return kvm_job_put_json(j, "figures", "figures.json", figures, err);
}

static const char *const inputs[] = {"source_capture", "target_capture", "source_gram",
                                     "target_gram",    "cross",          NULL};
static const char *const outputs[] = {"figures", NULL};
const kvm_job_kind kvm_job_invert = {
    .id = KVM_JOB_INVERT,
    .inputs = inputs,
    .outputs = outputs,
    .params = params,
    .section = "calibration",
    .run = run,
};
