/* Training of one step. The checkpoint (training.h, format kvmill.mlp_checkpoint.v2,
 * config = SHA-256 of what the run follows from, epochs, steps, loss) holds p, m, v of
 * all groups side by side; it is replaced whole after each epoch. */
#include "translators/mlp.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "translators/adam.h"
#include "translators/mlp_internal.h"
#include "translators/ridge_internal.h"
#include "translators/training.h"

enum { EPOCH_STREAM = 1 << 20 }; /* streams below seed the weights, by group */

typedef struct trainer {
    kvm_compute *c;
    const kvm_rows *source, *target;
    const kvm_mapping *mapping;
    const int32_t *layers;
    ptrdiff_t count, target_layer;
    kvm_mlp_options o;                       /* defaults filled in */
    ptrdiff_t inputs, outputs, groups, size; /* size: parameters of one group */
    kvm_net net;
    ptrdiff_t *index[KVM_SPLITS], rows[KVM_SPLITS];
    double *mean_x, *mean_y;  /* of the fit rows */
    float *scale_x, *scale_y; /* 1/deviation; 0 for a constant entry */
    float *p, *m, *v, *grad;  /* (groups * size) each, grad (size) */
    float *x, *y;             /* (batch, inputs), (batch, outputs), normalised */
    ptrdiff_t *order, *pick;  /* (fit rows) permutation of the epoch, and its rows */
    kvm_net_room room;
    ptrdiff_t epoch, steps; /* done */
    double loss;
    char config[65];
} trainer;

/* ---- rows ---- */

/* rows index[0..n) of source and target as they are */
static kvm_status read_rows(trainer *t, const ptrdiff_t *index, ptrdiff_t n,
                            kvm_err *err)
{
    ptrdiff_t at = 0;
    const int spaces = kvm_mapping_spaces(t->mapping);
    for (ptrdiff_t i = 0; i < t->count * spaces; i++) {
        const kvm_space space = t->mapping->from[i % spaces];
        const int32_t layer = t->layers[i / spaces];
        TRY(kvm_rows_read(t->c, t->source, space, layer, 1, 0, index, n, t->x + at,
                          t->inputs, err));
        at += kvm_shapes_width(&kvm_rows_info_of(t->source)->shapes, space, layer);
    }
    return kvm_rows_read(t->c, t->target, t->mapping->out, t->target_layer, 1, 0, index,
                         n, t->y, t->outputs, err);
}

enum { ROWS_PER_PART = 64 };

typedef struct scale_job {
    float *x;
    const double *mean;
    const float *scale;
    ptrdiff_t n, width;
} scale_job;

static void scale_part(void *ctx, ptrdiff_t part, int thread)
{
    (void)thread;
    const scale_job *j = ctx;
    const ptrdiff_t from = part * ROWS_PER_PART;
    const ptrdiff_t end = from + ROWS_PER_PART < j->n ? from + ROWS_PER_PART : j->n;
    for (ptrdiff_t r = from; r < end; r++)
        for (ptrdiff_t i = 0; i < j->width; i++) {
            float *x = j->x + r * j->width + i;
            *x = (*x - (float)j->mean[i]) * j->scale[i];
        }
}

static kvm_status read_normalised(trainer *t, const ptrdiff_t *index, ptrdiff_t n,
                                  kvm_err *err)
{
    TRY(read_rows(t, index, n, err));
    scale_job x = {t->x, t->mean_x, t->scale_x, n, t->inputs};
    scale_job y = {t->y, t->mean_y, t->scale_y, n, t->outputs};
    const ptrdiff_t parts = (n + ROWS_PER_PART - 1) / ROWS_PER_PART;
    kvm_pool_run(kvm_compute_pool(t->c), parts, scale_part, &x);
    kvm_pool_run(kvm_compute_pool(t->c), parts, scale_part, &y);
    return KVM_OK;
}

static void add_moments(const float *x, ptrdiff_t n, ptrdiff_t width, double *sum,
                        double *square)
{
    for (ptrdiff_t r = 0; r < n; r++)
        for (ptrdiff_t i = 0; i < width; i++) {
            const double v = (double)x[r * width + i];
            sum[i] += v;
            square[i] += v * v;
        }
}

static kvm_status finish_scale(double *mean, const double *square, float *scale,
                               ptrdiff_t width, ptrdiff_t n, const char *what,
                               kvm_err *err)
{
    for (ptrdiff_t i = 0; i < width; i++) {
        mean[i] /= (double)n;
        const double variance = square[i] / (double)n - mean[i] * mean[i];
        if (!isfinite(variance))
            return kvm_fail(err, KVM_NAN, "%s entry %td is not finite", what, i);
        /* a constant in f32 leaves rounding of its square, not a variance */
        const bool constant = variance <= 1e-12 * mean[i] * mean[i];
        scale[i] = constant ? 0 : (float)(1 / sqrt(variance));
    }
    return KVM_OK;
}

static kvm_status measure(trainer *t, kvm_arena scratch, kvm_err *err)
{
    double *xx = kvm_new(&scratch, double, t->inputs);
    double *yy = kvm_new(&scratch, double, t->outputs);
    if (!xx || !yy) return kvm_nomem(err, &scratch);
    const ptrdiff_t rows = t->rows[KVM_FIT];
    for (ptrdiff_t from = 0; from < rows; from += t->o.batch) {
        const ptrdiff_t n = rows - from < t->o.batch ? rows - from : t->o.batch;
        TRY(read_rows(t, t->index[KVM_FIT] + from, n, err));
        add_moments(t->x, n, t->inputs, t->mean_x, xx);
        add_moments(t->y, n, t->outputs, t->mean_y, yy);
    }
    TRY(finish_scale(t->mean_x, xx, t->scale_x, t->inputs, rows, "source", err));
    return finish_scale(t->mean_y, yy, t->scale_y, t->outputs, rows, "target", err);
}

/* ---- beginning ---- */

static kvm_mlp_options defaults(const kvm_mlp_options *o)
{
    kvm_mlp_options d = *o;
    if (d.hidden == 0) d.hidden = 1024;
    if (d.epochs == 0) d.epochs = 20;
    if (d.batch == 0) d.batch = 4096;
    if (d.rate == 0) d.rate = 1e-3;
    if (d.fraction == 0) d.fraction = 0.2;
    return d;
}

static kvm_status check(trainer *t, kvm_err *err)
{
    const kvm_mlp_options *o = &t->o;
    TRY(kvm_rows_same(t->source, t->target, err));
    const ptrdiff_t sources = kvm_rows_info_of(t->source)->shapes.layers;
    const ptrdiff_t targets = kvm_rows_info_of(t->target)->shapes.layers;
    if (o->hidden < 1 || o->hidden > KVM_MLP_MOST_HIDDEN || o->epochs < 1 ||
        o->batch < 1 || o->batch > KVM_MLP_MOST_BATCH || !(o->rate > 0) ||
        !isfinite(o->rate))
        return kvm_fail(
            err, KVM_USAGE,
            "an MLP of width %td (1 to %d), %td epochs, batches of %td (1 to "
            "%d), rate %g",
            o->hidden, KVM_MLP_MOST_HIDDEN, o->epochs, o->batch, KVM_MLP_MOST_BATCH,
            o->rate);
    if (t->target_layer < 0 || t->target_layer >= targets || t->count < 1 ||
        t->count > sources)
        return kvm_fail(err, KVM_RANGE,
                        "target layer %td of %td from %td of %td layers",
                        t->target_layer, targets, t->count, sources);
    for (ptrdiff_t i = 0; i < t->count; i++)
        if (t->layers[i] < 0 || t->layers[i] >= sources)
            return kvm_fail(err, KVM_RANGE, "there is no source layer %d",
                            (int)t->layers[i]);
    return KVM_OK;
}

static kvm_status plan(trainer *t, kvm_err *err)
{
    const kvm_shapes *from = &kvm_rows_info_of(t->source)->shapes;
    const int spaces = kvm_mapping_spaces(t->mapping);
    for (ptrdiff_t i = 0; i < t->count * spaces; i++)
        t->inputs +=
            kvm_shapes_width(from, t->mapping->from[i % spaces], t->layers[i / spaces]);
    const kvm_row_shape out =
        kvm_rows_shape(t->target, t->mapping->out, t->target_layer);
    t->outputs = out.heads * out.dim;
    t->groups = t->o.per_head ? out.heads : 1;
    t->net = (kvm_net){t->inputs, t->o.hidden, t->outputs / t->groups};
    t->size = kvm_net__size(&t->net);
    const kvm_rows_info *s = kvm_rows_info_of(t->source),
                        *d = kvm_rows_info_of(t->target);
    kvm_text text = {0};
    kvm_text_addf(
        &text, "%s %.*s %.*s %.*s %s %td %td %td %.17g %d %llu %llu %.17g %td:",
        t->o.identity ? t->o.identity : "", KVM_STR_ARG(s->model),
        KVM_STR_ARG(d->model), KVM_STR_ARG(s->text), kvm_space_name(t->mapping->out),
        t->target_layer, t->o.hidden, t->o.batch, t->o.rate, t->o.per_head,
        (unsigned long long)t->o.seed, (unsigned long long)t->o.split_seed,
        t->o.fraction, kvm_rows_count(t->source));
    for (ptrdiff_t i = 0; i < t->count; i++)
        kvm_text_addf(&text, " %d", (int)t->layers[i]);
    const kvm_status r = text.failed ? kvm_fail(err, KVM_NOMEM, "no memory for a hash")
                                     : kvm_sha_of(kvm_text_str(&text), t->config, err);
    kvm_text_free(&text);
    return r;
}

static kvm_status allocate(trainer *t, kvm_arena *a, kvm_err *err)
{
    for (int s = 0; s < KVM_SPLITS; s++)
        TRY(kvm_rows_split(t->source, t->o.split_seed, t->o.fraction, (kvm_split)s, a,
                           &t->index[s], &t->rows[s], err));
    const ptrdiff_t b = t->o.batch, w = t->o.hidden;
    t->mean_x = kvm_new(a, double, t->inputs);
    t->mean_y = kvm_new(a, double, t->outputs);
    t->scale_x = kvm_new(a, float, t->inputs);
    t->scale_y = kvm_new(a, float, t->outputs);
    t->p = kvm_new(a, float, t->groups * t->size);
    t->m = kvm_new(a, float, t->groups * t->size);
    t->v = kvm_new(a, float, t->groups * t->size);
    t->grad = kvm_new_raw(a, float, t->size);
    t->x = kvm_new_raw(a, float, b * t->inputs);
    t->y = kvm_new_raw(a, float, b * t->outputs);
    t->order = kvm_new(a, ptrdiff_t, t->rows[KVM_FIT]);
    t->pick = kvm_new(a, ptrdiff_t, b);
    t->room = (kvm_net_room){{kvm_new_raw(a, float, b *w), kvm_new_raw(a, float, b *w)},
                             kvm_new_raw(a, float, b *w),
                             kvm_new_raw(a, float, b * t->outputs)};
    const void *const all[] = {t->mean_x,
                               t->mean_y,
                               t->scale_x,
                               t->scale_y,
                               t->p,
                               t->m,
                               t->v,
                               t->grad,
                               t->x,
                               t->y,
                               t->order,
                               t->pick,
                               t->room.y,
                               t->room.back,
                               t->room.hidden[0],
                               t->room.hidden[1]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!all[i]) return kvm_nomem(err, a);
    return KVM_OK;
}

size_t kvm_mlp_bytes(ptrdiff_t inputs, ptrdiff_t outputs, ptrdiff_t groups,
                     ptrdiff_t rows, const kvm_mlp_options *options)
{
    const kvm_mlp_options o = defaults(options);
    const kvm_net net = {inputs, o.hidden, outputs / groups};
    const size_t size = (size_t)kvm_net__size(&net), g = (size_t)groups;
    const size_t b = (size_t)o.batch, i = (size_t)inputs, out = (size_t)outputs;
    return 4 * (size * (3 * g + 1) + b * (i + 2 * out + 3 * (size_t)o.hidden)) +
           8 * (5 * (size_t)rows + b) + 24 * (i + 4 * out) + ((size_t)1 << 20);
}

/* ---- checkpoints ---- */

static ptrdiff_t batches_of(const trainer *t)
{
    return (t->rows[KVM_FIT] + t->o.batch - 1) / t->o.batch;
}

static kvm_training training_of(const trainer *t)
{
    return (kvm_training){
        .format = "kvmill.mlp_checkpoint.v2",
        .what = "run (its rows, layers, options, backend or version differ)",
        .config = t->config,
        .told = {"epochs", "steps", "loss"},
        .name = {"p", "m", "v"},
        .array = {t->p, t->m, t->v},
        .n = t->groups * t->size,
    };
}

static kvm_status read_strings(void *ctx, const kvm_st *st, kvm_arena *own,
                               kvm_err *err)
{
    (void)own;
    trainer *t = ctx;
    int64_t epochs, steps;
    double loss;
    TRY(kvm_meta_i64(st, "epochs", 0, t->o.epochs, &epochs, err));
    const int64_t due = epochs * batches_of(t);
    TRY(kvm_meta_i64(st, "steps", due, due, &steps, err));
    TRY(kvm_meta_f64(st, "loss", &loss, err));
    t->epoch = (ptrdiff_t)epochs;
    t->steps = (ptrdiff_t)steps;
    t->loss = loss;
    return KVM_OK;
}

/* from where the checkpoint stands, else from the start */
static kvm_status begin(trainer *t, kvm_err *err)
{
    const kvm_training what = training_of(t);
    bool resumed = false;
    if (t->o.checkpoint.len && kvm_path_exists(t->o.checkpoint)) {
        const kvm_status s =
            kvm_training_load(&what, read_strings, t, t->o.checkpoint, err);
        TRY(kvm_training_anew(s, err));
        resumed = s == KVM_OK;
    }
    for (ptrdiff_t g = 0; !resumed && g < t->groups; g++)
        kvm_net__init(&t->net, t->p + g * t->size, t->o.seed, (uint64_t)g);
    return KVM_OK;
}

static kvm_status put_strings(json_t *meta, const trainer *t, kvm_err *err)
{
    TRY(kvm_meta_putf(meta, err, "epochs", "%td", t->epoch));
    TRY(kvm_meta_putf(meta, err, "steps", "%td", t->steps));
    return kvm_meta_putf(meta, err, "loss", "%.17g", t->loss);
}

static kvm_status save_checkpoint(const trainer *t, kvm_err *err)
{
    const kvm_training what = training_of(t);
    if (t->o.checkpoint.len == 0) return KVM_OK;
    json_t *meta = json_object();
    if (!meta) return kvm_fail(err, KVM_NOMEM, "no memory for a checkpoint");
    kvm_status s = put_strings(meta, t, err);
    if (!s) s = kvm_training_save(&what, meta, t->o.checkpoint, err);
    json_decref(meta);
    return s;
}

/* ---- training ---- */

static kvm_status train_batch(trainer *t, ptrdiff_t n, double *loss, kvm_err *err)
{
    TRY(read_normalised(t, t->pick, n, err));
    t->steps++;
    for (ptrdiff_t g = 0; g < t->groups; g++) {
        const ptrdiff_t at = g * t->size;
        double l;
        TRY(kvm_net__forward(t->c, &t->net, t->p + at, t->x, n, &t->room, err));
        TRY(kvm_net__backward(t->c, &t->net, t->p + at, t->x, t->y + g * t->net.outputs,
                              t->outputs, n, &t->room, t->grad, &l, err));
        kvm_adam_step(t->c, t->p + at, t->m + at, t->v + at, t->grad, t->size, 1,
                      t->o.rate, 0, t->steps);
        *loss += l / (double)t->groups;
    }
    if (!isfinite(*loss))
        return kvm_fail(err, KVM_NAN,
                        "%s of target layer %td: the loss is %g after %td steps; lower "
                        "the rate",
                        kvm_space_name(t->mapping->out), t->target_layer, *loss,
                        t->steps);
    return KVM_OK;
}

static kvm_status train_epoch(trainer *t, kvm_err *err)
{
    const ptrdiff_t rows = t->rows[KVM_FIT];
    const ptrdiff_t batches = batches_of(t);
    kvm_rng rng = kvm_rng_seed(t->o.seed, (uint64_t)(EPOCH_STREAM + t->epoch));
    for (ptrdiff_t i = 0; i < rows; i++) t->order[i] = i;
    kvm_rng_shuffle(&rng, t->order, rows);
    double sum = 0;
    for (ptrdiff_t b = 0; b < batches; b++) {
        const ptrdiff_t from = b * t->o.batch;
        const ptrdiff_t n = rows - from < t->o.batch ? rows - from : t->o.batch;
        for (ptrdiff_t i = 0; i < n; i++)
            t->pick[i] = t->index[KVM_FIT][t->order[from + i]];
        double loss = 0;
        TRY(train_batch(t, n, &loss, err));
        sum += loss;
        kvm_progress_at(t->o.progress, (double)(t->epoch * batches + b + 1),
                        (double)(t->o.epochs * batches), "batches");
        if (kvm_progress_cancelled(t->o.progress))
            return kvm_fail(err, KVM_CANCELLED, "cancelled in epoch %td", t->epoch + 1);
    }
    t->loss = sum / (double)batches;
    t->epoch++;
    return save_checkpoint(t, err);
}

/* ---- the finished step ---- */

/* R2 of a split, mean over heads, in normalised entries turned back by their
 * variance */
static kvm_status score(trainer *t, kvm_split split, double *r2, kvm_arena scratch,
                        kvm_err *err)
{
    double *error = kvm_new(&scratch, double, t->outputs);
    double *total = kvm_new(&scratch, double, t->outputs);
    double *sum = kvm_new(&scratch, double, t->outputs);
    if (!error || !total || !sum) return kvm_nomem(err, &scratch);
    const ptrdiff_t rows = t->rows[split], width = t->net.outputs;
    for (ptrdiff_t from = 0; from < rows; from += t->o.batch) {
        const ptrdiff_t n = rows - from < t->o.batch ? rows - from : t->o.batch;
        TRY(read_normalised(t, t->index[split] + from, n, err));
        add_moments(t->y, n, t->outputs, sum, total);
        for (ptrdiff_t g = 0; g < t->groups; g++) {
            TRY(kvm_net__forward(t->c, &t->net, t->p + g * t->size, t->x, n, &t->room,
                                 err));
            for (ptrdiff_t r = 0; r < n; r++)
                for (ptrdiff_t i = 0; i < width; i++) {
                    const double d = (double)t->room.y[r * width + i] -
                                     (double)t->y[r * t->outputs + g * width + i];
                    error[g * width + i] += d * d;
                }
        }
    }
    for (ptrdiff_t i = 0; i < t->outputs; i++) {
        const double s = t->scale_y[i] > 0 ? 1 / (double)t->scale_y[i] : 0;
        total[i] = (total[i] - sum[i] * sum[i] / (double)rows) * s * s;
        error[i] *= s * s;
    }
    double worst;
    kvm_ridge__r2(error, total, t->outputs,
                  kvm_rows_shape(t->target, t->mapping->out, t->target_layer).dim, r2,
                  &worst);
    return KVM_OK;
}

/* part `layer` of all groups, the normalisation folded into the first and the last */
static kvm_status fold_layer(const trainer *t, int layer, kvm_step *s, kvm_arena *keep,
                             kvm_err *err)
{
    const kvm_net_part q = kvm_net__part(&t->net, layer);
    float *w = kvm_new_raw(keep, float, t->groups *q.out *q.in);
    float *b = kvm_new_raw(keep, float, t->groups *q.out);
    if (!w || !b) return kvm_nomem(err, keep);
    for (ptrdiff_t g = 0; g < t->groups; g++)
        for (ptrdiff_t o = 0; o < q.out; o++) {
            const float *from = t->p + g * t->size + q.weight + o * q.in;
            float *to = w + (g * q.out + o) * q.in;
            double bias = (double)t->p[g * t->size + q.bias + o];
            const ptrdiff_t out = g * t->net.outputs + o;
            const float sy = layer == 2 ? t->scale_y[out] : 1;
            const float back = sy > 0 ? 1 / sy : 0;
            for (ptrdiff_t i = 0; i < q.in; i++) {
                const float v = from[i] * (layer == 0 ? t->scale_x[i] : 1);
                if (layer == 0) bias -= (double)v * (double)(float)t->mean_x[i];
                to[i] = v * back;
            }
            if (layer == 2) bias = bias * (double)back + t->mean_y[out];
            b[g * q.out + o] = (float)bias;
        }
    s->weight[layer] = kvm_view3(w, KVM_F32, t->groups, q.out, q.in);
    s->bias[layer] = b;
    return KVM_OK;
}

static kvm_status make_step(const trainer *t, kvm_step *step, kvm_arena *keep,
                            kvm_err *err)
{
    int32_t *source = kvm_new(keep, int32_t, t->count);
    if (!source) return kvm_nomem(err, keep);
    memcpy(source, t->layers, sizeof *source * (size_t)t->count);
    kvm_step s = {.mapping = *t->mapping,
                  .layer = t->target_layer,
                  .map = KVM_MAP_MLP,
                  .sources = t->count,
                  .source = source,
                  .inputs = t->inputs,
                  .outputs = t->outputs,
                  .groups = t->groups,
                  .hidden = t->o.hidden};
    for (int layer = 0; layer < 3; layer++) TRY(fold_layer(t, layer, &s, keep, err));
    *step = s;
    return KVM_OK;
}

kvm_status kvm_mlp_train(kvm_compute *c, const kvm_rows *source, const kvm_rows *target,
                         const kvm_mapping *mapping, const int32_t *layers,
                         ptrdiff_t count, ptrdiff_t target_layer,
                         const kvm_mlp_options *o, kvm_step *step,
                         kvm_mlp_figures *figures, kvm_arena *keep, kvm_arena scratch,
                         kvm_err *err)
{
    trainer t = {.c = c,
                 .source = source,
                 .target = target,
                 .mapping = mapping,
                 .layers = layers,
                 .count = count,
                 .target_layer = target_layer,
                 .o = defaults(o)};
    TRY(check(&t, err));
    TRY(plan(&t, err));
    TRY(allocate(&t, &scratch, err));
    TRY(measure(&t, scratch, err));
    TRY(begin(&t, err));
    ptrdiff_t last = t.o.epochs;
    if (t.o.stop_after > 0 && t.epoch + t.o.stop_after < last)
        last = t.epoch + t.o.stop_after;
    while (t.epoch < last) TRY(train_epoch(&t, err));
    kvm_mlp_figures out = {.loss = t.loss,
                           .epochs = t.epoch,
                           .steps = t.steps,
                           .complete = t.epoch >= t.o.epochs,
                           .r2_fit = (double)NAN,
                           .r2_held = (double)NAN};
    if (out.complete) {
        kvm_step s;
        TRY(score(&t, KVM_FIT, &out.r2_fit, scratch, err));
        TRY(score(&t, KVM_HELD, &out.r2_held, scratch, err));
        TRY(make_step(&t, &s, keep, err));
        s.r2_fit = out.r2_fit;
        s.r2_held = out.r2_held;
        *step = s;
    }
    *figures = out;
    return KVM_OK;
}
