/* mlp.c - train the two-hidden-layer maps of an ordered pair on captured rows.
 *
 * The source layers are those the closed form chose (its translator file says them), so
 * the two differ in the map alone. Steps are trained one after another, each with a
 * checkpoint after every epoch. A killed training goes on from the last epoch, bit for
 * bit. */
#include <math.h>

#include "base/clock.h"
#include "jobs/open.h"
#include "jobs/params.h"
#include "translators/mlp.h"

static const kvm_field params[] = {
    KVM_MLP_PARAMS,
    /* filled in by the graph */
    {"seed", KVM_FIELD_INT, false, "of weights and batches", NULL, 0},
    {"split_seed", KVM_FIELD_INT, true, "of the split by sequence", NULL, 0},
    {"held_out", KVM_FIELD_NUM, true,
     "fraction of the sequences that is kept from the fit", NULL, 0},
    {0},
};

/* Progress of one step as a share of all steps. */
typedef struct share {
    kvm_progress progress; /* what the training reports to */
    kvm_progress *whole;   /* NULL: nobody looks */
    ptrdiff_t step, steps;
} share;

static void show_share(kvm_progress *p, double done, double total, const char *unit,
                       double eta)
{
    (void)unit;
    (void)eta; /* of this step alone */
    const share *s = p->ctx;
    kvm_progress_at(s->whole, (double)s->step + done / total, (double)s->steps, "maps");
}

static bool share_cancelled(kvm_progress *p)
{
    return kvm_progress_cancelled(((const share *)p->ctx)->whole);
}

typedef struct training {
    kvm_job *job;
    kvm_compute *compute;
    kvm_rows *source, *target;
    kvm_translator closed, mlp;
    kvm_mlp_options options;
    kvm_dtype dtype; /* of the weights in the file */
    char config[65]; /* of the checkpoints */
    share share;
    kvm_arena scratch;
    json_t *layers;
} training;

static kvm_status read_options(training *t, kvm_err *err)
{
    kvm_job *j = t->job;
    ptrdiff_t seed, split_seed;
    kvm_mlp_options *o = &t->options;
    TRY(kvm_job_i64(j, "hidden", 1024, 1, KVM_MLP_MOST_HIDDEN, &o->hidden, err));
    TRY(kvm_job_i64(j, "epochs", 20, 1, 100000, &o->epochs, err));
    TRY(kvm_job_i64(j, "batch", 4096, 1, KVM_MLP_MOST_BATCH, &o->batch, err));
    TRY(kvm_job_f64(j, "rate", 1e-3, 1e-9, 1, &o->rate, err));
    TRY(kvm_job_i64(j, "seed", 1, 0, INT64_MAX, &seed, err));
    TRY(kvm_job_i64(j, "split_seed", 1, 0, INT64_MAX, &split_seed, err));
    TRY(kvm_job_f64(j, "held_out", 0.2, 0.01, 0.9, &o->fraction, err));
    TRY(kvm_json_bool_or(kvm_json_get(j->params, j->keep, "per_head"), false,
                         &o->per_head, err));
    TRY(kvm_param_dtype(j, &t->dtype, err));
    o->seed = (uint64_t)seed;
    o->split_seed = (uint64_t)split_seed;
    return KVM_OK;
}

static kvm_status open_inputs(training *t, kvm_err *err)
{
    kvm_job *j = t->job;
    const kvm_job_input *source, *target, *closed;
    TRY(kvm_job_need_input(j, "source_capture", &source, err));
    TRY(kvm_job_need_input(j, "target_capture", &target, err));
    TRY(kvm_job_need_input(j, "translator", &closed, err));
    TRY(kvm_rows_open(&t->source, j->keep, source->path, err));
    TRY(kvm_rows_open(&t->target, j->keep, target->path, err));
    TRY(kvm_rows_same(t->source, t->target, err));
    return kvm_translator_open(&t->closed, j->keep, closed->path, err);
}

static kvm_status put_layer(training *t, const kvm_step *s, const kvm_mlp_figures *f,
                            kvm_err *err)
{
    kvm_job *j = t->job;
    const char *object = kvm_mapping_label(&s->mapping);
    json_t *row =
        json_pack("{s:I, s:s, s:f, s:f, s:f, s:I}", "layer", (json_int_t)s->layer,
                  "object", object, "r2_fit", f->r2_fit, "r2_held", f->r2_held, "loss",
                  f->loss, "epochs", (json_int_t)f->epochs);
    if (!row)
        return kvm_fail(err, KVM_NAN, "%s of layer %td: a figure is not finite", object,
                        s->layer);
    json_array_append_new(t->layers, row);
    json_t *labels =
        json_pack("{s:s, s:I}", "object", object, "layer", (json_int_t)s->layer);
    const kvm_status st = j->host->metric(j, "mlp_r2_held", f->r2_held, labels, err);
    json_decref(labels);
    return st;
}

/* The checkpoint of the last epoch stays: a finished step is read back from it in no
 * time. */
static kvm_status train_step(training *t, ptrdiff_t i, kvm_step *out, kvm_err *err)
{
    kvm_job *j = t->job;
    const kvm_step *like = &t->closed.steps[i];
    kvm_mlp_figures figures;
    if (like->mapping.side == KVM_TARGET || like->mapping.token ||
        like->map == KVM_MAP_EXACT) { /* the closed form's */
        *out = *like;
        return KVM_OK;
    }
    kvm_mlp_options o = t->options;
    o.progress = &t->share.progress;
    o.identity = t->config;
    t->share.step = i;
    kvm_str name = kvm_str_fmt(j->keep, "step-%td.checkpoint", i);
    if (!name.at) return kvm_nomem(err, j->keep);
    TRY(kvm_job_path(j, name.at, &o.checkpoint, err));
    TRY(kvm_mlp_train(t->compute, t->source, t->target, &like->mapping, like->source,
                      like->sources, like->layer, &o, out, &figures, j->keep,
                      t->scratch, err));
    return put_layer(t, out, &figures, err);
}

static kvm_status train_all(training *t, kvm_err *err)
{
    kvm_job *j = t->job;
    kvm_step *steps = kvm_new(j->keep, kvm_step, t->closed.count);
    if (!steps) return kvm_nomem(err, j->keep);
    t->share = (share){.whole = j->progress, .steps = t->closed.count};
    t->share.progress = (kvm_progress){show_share, share_cancelled, .ctx = &t->share};
    for (ptrdiff_t i = 0; i < t->closed.count; i++) {
        const kvm_status s = train_step(t, i, &steps[i], err);
        if (s)
            return kvm_err_prefix(err, s, "%s of target layer %td",
                                  kvm_space_name(t->closed.steps[i].mapping.out),
                                  t->closed.steps[i].layer);
    }
    t->mlp = t->closed;
    t->mlp.steps = steps;
    return KVM_OK;
}

static kvm_status put_results(training *t, kvm_err *err)
{
    kvm_job *j = t->job;
    kvm_str path;
    TRY(kvm_job_path(j, "mlp.safetensors", &path, err));
    TRY(kvm_translator_write(&t->mlp, t->dtype, path, t->scratch, NULL, err));
    TRY(j->host->output(j, "translator", path, err));
    json_t *figures = json_pack("{s:O, s:I}", "layers", t->layers, "parameters",
                                (json_int_t)kvm_translator_parameters(&t->mlp));
    if (!figures) return kvm_nomem(err, j->keep);
    return kvm_job_put_json(j, "figures", "mlp.json", figures, err);
}

static kvm_status run(kvm_job *j, kvm_err *err)
{
    const double started = kvm_now();
    training t = {.job = j, .layers = json_array()};
    if (!kvm_json_own(j->keep, t.layers)) return kvm_nomem(err, j->keep);
    TRY(kvm_job_compute(j, &t.compute, err));
    TRY(read_options(&t, err));
    TRY(open_inputs(&t, err));
    TRY(kvm_job_config(j, KVM_JOB_MLP, t.compute, t.config, err));
    TRY(kvm_arena_reserve(&t.scratch, (size_t)64 << 30, err));
    kvm_status s = train_all(&t, err);
    if (!s) s = put_results(&t, err);
    kvm_arena_free(&t.scratch);
    return s ? s : kvm_job_put_cost(j, started, err);
}

static kvm_status check(kvm_job *j, kvm_err *err)
{
    training t = {.job = j};
    return read_options(&t, err);
}

static const char *const inputs[] = {"source_capture", "target_capture", "translator",
                                     NULL};
static const char *const outputs[] = {"translator", "figures", "cost", NULL};
const kvm_job_kind kvm_job_mlp = {
    .id = KVM_JOB_MLP,
    .inputs = inputs,
    .outputs = outputs,
    .params = params,
    .section = "mlp",
    .run = run,
    .check = check,
};
