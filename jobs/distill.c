/* distill.c - train a translator's maps on what the target says behind them.
 *
 * Lessons are the calibration's sequences: a prefix, and the tokens after it. Those of
 * the split to fit are learned from, those of the split to choose validate; the others
 * are kept for figures alone, as in every fit (translators/rows.h). Ranks learn from
 * one lesson of a batch each, round by round; all of them then add the gradients in
 * the batch's order and make the same step. The order of lessons follows from seed and
 * step. After each validation a checkpoint is published: a killed distillation goes on
 * from there, bit for bit; one that cannot be gone on from is not used. Output
 * "translator" has the parameters that validated best; "figures" the curve. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "jobs/distill_checkpoint.h"
#include "jobs/distill_options.h"
#include "jobs/lessons.h"
#include "jobs/open.h"
#include "jobs/params.h"
#include "translators/training.h"

static const kvm_field params[] = {
    KVM_PAIR_PARAMS,
    KVM_DISTILL_PARAMS,
    KVM_LESSON_PARAMS,
    {0},
};

typedef struct distillation {
    kvm_job *job;
    kvm_compute *compute;
    kvm_model *source, *target;
    kvm_calibration text;
    kvm_translator closed;
    kvm_distill_options o;
    kvm_distill *trainer;
    kvm_lesson *lesson[2];        /* to learn from, to validate on */
    kvm_distill_loss *learned_of; /* (batch) of the lessons of the latest one */
    kvm_distill_loss *validated;  /* (lessons[1]) */
    ptrdiff_t lessons[2];
    ptrdiff_t *order; /* (lessons[0]) of the epoch at hand */
    ptrdiff_t epoch;
    float *batch; /* (parameters) gradient of the lessons of a batch so far */
    kvm_distill_progress at;
    kvm_str checkpoint;
    char config[65];
    double loss, norm, rate; /* of the latest update */
    double learned;          /* mean loss since the last validation */
    double indexed;          /* likewise, of indexers' scores */
    ptrdiff_t since;         /* updates since then */
    double started;          /* of the updates of this attempt */
    double tokens;           /* that they have gone through */
} distillation;

/* ---- lessons ---- */

static kvm_status list_lessons(distillation *d, ptrdiff_t *longest, kvm_err *err)
{
    const kvm_lesson_options o = {.seed = (uint64_t)d->o.split_seed,
                                  .held_out = d->o.held_out,
                                  .after = d->o.after,
                                  .prefix = d->o.prefix,
                                  .most = d->o.lessons};
    *longest = 0;
    for (int k = 0; k < 2; k++) {
        TRY(kvm_lessons_list(&d->lesson[k], &d->lessons[k], &d->text,
                             k ? KVM_CHOOSE : KVM_FIT, &o, d->job->keep, err));
        const ptrdiff_t n = kvm_lessons_longest(d->lesson[k], d->lessons[k]);
        if (n > *longest) *longest = n;
    }
    return KVM_OK;
}

static kvm_status check_memory(const distillation *d, kvm_err *err)
{
    const kvm_lesson_size size = kvm_distill_lesson_size(d->trainer);
    double bytes = 0;
    for (int k = 0; k < 2; k++)
        for (ptrdiff_t i = 0; i < d->lessons[k]; i++)
            bytes += (double)kvm_lesson_bytes(&size, d->lesson[k][i].prefix_n,
                                              d->lesson[k][i].after_n);
    return kvm_distill_fits(d->job, &d->o, bytes, d->lessons[0] + d->lessons[1], "",
                            err);
}

static kvm_status prepare(distillation *d, kvm_err *err)
{
    const double all = (double)(d->lessons[0] + d->lessons[1]);
    ptrdiff_t done = 0;
    for (int k = 0; k < 2; k++)
        for (ptrdiff_t i = 0; i < d->lessons[k]; i++, done++) {
            kvm_progress_at(d->job->progress, (double)done, all, "lessons");
            if (kvm_progress_cancelled(d->job->progress))
                return kvm_fail(err, KVM_CANCELLED,
                                "cancelled while lessons were read");
            TRY(kvm_distill_prepare(d->trainer, &d->lesson[k][i], d->job->keep, err));
        }
    return KVM_OK;
}

/* the lesson of place n in the endless row of epochs, each in an order of its own */
static ptrdiff_t lesson_at(distillation *d, ptrdiff_t n)
{
    const ptrdiff_t epoch = n / d->lessons[0];
    if (epoch != d->epoch) {
        for (ptrdiff_t i = 0; i < d->lessons[0]; i++) d->order[i] = i;
        kvm_rng rng = kvm_rng_seed((uint64_t)d->o.seed, (uint64_t)epoch + 1);
        kvm_rng_shuffle(&rng, d->order, d->lessons[0]);
        d->epoch = epoch;
    }
    return d->order[n % d->lessons[0]];
}

/* ---- training ---- */

/* linear up, then a cosine down to a tenth */
static double rate_at(const kvm_distill_options *o, ptrdiff_t step)
{
    if (step < o->warmup) return o->rate * (double)(step + 1) / (double)o->warmup;
    const double left = (double)(o->steps - o->warmup);
    const double at = left > 0 ? (double)(step - o->warmup) / left : 1;
    return o->rate * (0.55 + 0.45 * cos(3.14159265358979 * at));
}

static kvm_status validate(distillation *d, kvm_distill_loss *mean, kvm_err *err)
{
    kvm_team *team = d->job->team;
    const ptrdiff_t n = d->lessons[1];
    memset(d->validated, 0, sizeof *d->validated * (size_t)n);
    for (ptrdiff_t i = 0; i < n; i++) {
        if (!kvm_team_mine(team, i)) continue;
        const kvm_status s =
            kvm_distill_score(d->trainer, &d->lesson[1][i], &d->validated[i], err);
        if (s)
            return kvm_err_prefix(err, s, "after step %td, validation lesson %td",
                                  *kvm_distill_steps(d->trainer), i);
    }
    TRY(kvm_team_unite(team, d->validated, n * (ptrdiff_t)sizeof *d->validated, err));
    *mean = (kvm_distill_loss){0};
    for (ptrdiff_t i = 0; i < n; i++) {
        mean->kl += d->validated[i].kl / (double)n;
        mean->first += d->validated[i].first / (double)n;
    }
    return KVM_OK;
}

/* one point of the curve; the best parameters so far are kept, and a checkpoint */
static kvm_status put_point(distillation *d, kvm_err *err)
{
    kvm_job *j = d->job;
    kvm_distill_loss v = {0};
    const ptrdiff_t step = *kvm_distill_steps(d->trainer);
    const double seconds = kvm_now() - d->started;
    TRY(validate(d, &v, err));
    if (v.kl < d->at.best_kl) {
        d->at.best_kl = v.kl;
        d->at.best_step = step;
        memcpy(d->at.best, kvm_distill_values(d->trainer),
               sizeof *d->at.best * (size_t)kvm_distill_parameters(d->trainer));
    }
    json_t *point =
        json_pack("{s:I, s:f, s:f, s:o, s:o, s:f, s:f, s:f}", "step", (json_int_t)step,
                  "kl", v.kl, "first_kl", v.first, "train_kl",
                  d->since ? json_real(d->learned / (double)d->since) : json_null(),
                  "norm", d->since ? json_real(d->norm) : json_null(), "rate", d->rate,
                  "tokens_per_s", seconds > 0 ? d->tokens / seconds : 0.0, "index_kl",
                  d->since ? d->indexed / (double)d->since : 0.0);
    if (!point)
        return kvm_fail(err, KVM_NAN, "a figure of step %td is not finite", step);
    json_array_append_new(d->at.curve, point);
    d->learned = d->indexed = 0;
    d->since = 0;
    json_t *labels = json_pack("{s:I}", "step", (json_int_t)step);
    const kvm_status s = j->host->metric(j, "distill_kl", v.kl, labels, err);
    json_decref(labels);
    if (s || !kvm_team_leads(j->team)) return s;
    return kvm_distill_save(d->trainer, &d->at, d->config, d->checkpoint, err);
}

/* lesson b of the batch: its gradient alone stands in the trainer then */
static kvm_status learn(distillation *d, ptrdiff_t b, kvm_distill_loss *loss,
                        kvm_err *err)
{
    const ptrdiff_t step = *kvm_distill_steps(d->trainer);
    const ptrdiff_t i = lesson_at(d, step * d->o.batch + b);
    kvm_distill_forget(d->trainer);
    const kvm_status s = kvm_distill_learn(d->trainer, &d->lesson[0][i], loss, err);
    if (!s) return KVM_OK;
    return kvm_err_prefix(err, s,
                          "step %td, lesson %td (the checkpoint of the last validation "
                          "stays)",
                          step + 1, i);
}

/* Lessons b .. b+n-1 of the batch, one to a rank. Each gradient is added to the batch's
 * in the order of lessons, so that the number of ranks does not tell. */
static kvm_status learn_round(distillation *d, ptrdiff_t b, ptrdiff_t n,
                              kvm_distill_loss *of /* (batch) */, kvm_err *err)
{
    kvm_team *team = d->job->team;
    if (team->rank < n) TRY(learn(d, b + team->rank, &of[b + team->rank], err));
    return kvm_team_add(team, d->batch, kvm_distill_gradient(d->trainer),
                        kvm_distill_parameters(d->trainer), (int)n, err);
}

static void count_batch(distillation *d)
{
    const ptrdiff_t batch = d->o.batch, step = *kvm_distill_steps(d->trainer);
    d->loss = 0;
    for (ptrdiff_t b = 0; b < batch; b++) {
        const kvm_lesson *l = &d->lesson[0][lesson_at(d, step * batch + b)];
        d->loss += d->learned_of[b].kl / (double)batch;
        d->indexed += d->learned_of[b].index / (double)batch;
        d->tokens += (double)(l->prefix_n + l->after_n);
    }
}

static kvm_status update(distillation *d, kvm_err *err)
{
    kvm_team *team = d->job->team;
    const ptrdiff_t batch = d->o.batch, step = *kvm_distill_steps(d->trainer);
    const size_t bytes = sizeof *d->batch * (size_t)kvm_distill_parameters(d->trainer);
    memset(d->batch, 0, bytes);
    memset(d->learned_of, 0, sizeof *d->learned_of * (size_t)batch);
    for (ptrdiff_t b = 0; b < batch; b += team->size)
        TRY(learn_round(d, b, batch - b < team->size ? batch - b : team->size,
                        d->learned_of, err));
    TRY(kvm_team_unite(team, d->learned_of, batch * (ptrdiff_t)sizeof *d->learned_of,
                       err));
    count_batch(d);
    memcpy(kvm_distill_gradient(d->trainer), d->batch, bytes);
    d->rate = rate_at(&d->o, step);
    const kvm_distill_rates r = {d->rate, d->o.decay, d->o.clip};
    TRY(kvm_distill_update(d->trainer, d->o.batch, &r, &d->norm, err));
    d->learned += d->loss;
    d->since++;
    return KVM_OK;
}

/* whether nothing that was validated is better than what the training began with */
static bool closed_form_is_best(const distillation *d)
{
    return d->at.best_step == 0;
}

static void show_progress(const distillation *d, ptrdiff_t step)
{
    char unit[KVM_PROGRESS_UNIT];
    snprintf(unit, sizeof unit, "steps, KL %.4f%s", d->loss,
             closed_form_is_best(d) ? ", none kept yet" : "");
    kvm_progress_at(d->job->progress, (double)step, (double)d->o.steps, unit);
}

static kvm_status train(distillation *d, kvm_err *err)
{
    d->started = kvm_now();
    if (json_array_size(d->at.curve) == 0) TRY(put_point(d, err));
    while (*kvm_distill_steps(d->trainer) < d->o.steps) {
        TRY(update(d, err));
        const ptrdiff_t step = *kvm_distill_steps(d->trainer);
        show_progress(d, step);
        if (kvm_progress_cancelled(d->job->progress))
            return kvm_fail(err, KVM_CANCELLED, "cancelled after %td of %td steps",
                            step, d->o.steps);
        if (step % d->o.validate == 0 || step == d->o.steps) TRY(put_point(d, err));
    }
    return KVM_OK;
}

/* ---- in and out ---- */

static ptrdiff_t kept_tokens(const distillation *d)
{
    return kvm_said_top(kvm_model_info_of(d->target)->vocab, d->o.top);
}

/* nats per token that keeping the likeliest alone loses, over all lessons */
static double lost(const distillation *d)
{
    double sum = 0, rows = 0;
    for (int k = 0; k < 2; k++)
        for (ptrdiff_t i = 0; i < d->lessons[k]; i++) {
            sum += d->lesson[k][i].native.lost;
            rows += (double)d->lesson[k][i].native.rows;
        }
    return sum / rows;
}

static kvm_status open_all(distillation *d, kvm_err *err)
{
    kvm_job *j = d->job;
    const kvm_job_input *closed;
    kvm_str path;
    ptrdiff_t longest;
    TRY(kvm_job_compute(j, &d->compute, err));
    TRY(kvm_distill_read_options(&d->o, j, err));
    TRY(kvm_job_model(j, d->compute, "source", &d->source, err));
    TRY(kvm_job_model(j, d->compute, "target", &d->target, err));
    TRY(kvm_job_need_input(j, "translator", &closed, err));
    TRY(kvm_translator_open(&d->closed, j->keep, closed->path, err));
    TRY(kvm_json_str(kvm_json_get(j->params, j->keep, "text_path"), &path, err));
    TRY(kvm_calibration_read(&d->text, j->keep, path, kvm_model_tokenizer(d->target),
                             d->o.sequences, d->o.tokens, err));
    TRY(kvm_job_unchanged(j, "text", d->text.sha, err));
    TRY(kvm_job_config(j, KVM_JOB_DISTILL, d->compute, d->config, err));
    TRY(list_lessons(d, &longest, err));
    TRY(kvm_distill_new(&d->trainer, j->keep, d->compute, &d->closed, d->source,
                        d->target, longest, d->o.after, kept_tokens(d), err));
    d->order = kvm_new(j->keep, ptrdiff_t, d->lessons[0]);
    d->at.best = kvm_new(j->keep, float, kvm_distill_parameters(d->trainer));
    d->batch = kvm_new(j->keep, float, kvm_distill_parameters(d->trainer));
    d->learned_of = kvm_new(j->keep, kvm_distill_loss, d->o.batch);
    d->validated = kvm_new(j->keep, kvm_distill_loss, d->lessons[1]);
    if (!d->order || !d->at.best || !d->batch || !d->learned_of || !d->validated)
        return kvm_nomem(err, j->keep);
    TRY(check_memory(d, err));
    TRY(prepare(d, err));
    TRY(kvm_job_path(j, "distill.checkpoint", &d->checkpoint, err));
    if (!kvm_path_exists(d->checkpoint)) return KVM_OK;
    return kvm_training_anew(
        kvm_distill_load(d->trainer, &d->at, d->config, d->o.steps, d->checkpoint, err),
        err);
}

/* A reader of the log would else take what is put out for trained. */
static kvm_status log_outcome(const distillation *d, kvm_err *err)
{
    kvm_job *j = d->job;
    const json_t *first = json_array_get(d->at.curve, 0);
    const double closed = json_number_value(json_object_get(first, "kl"));
    const kvm_str text =
        closed_form_is_best(d)
            ? kvm_str_fmt(j->keep,
                          "the closed form is kept: KL %.4g on the validation lessons, "
                          "and no validation of %td steps is below",
                          closed, d->o.steps)
            : kvm_str_fmt(j->keep,
                          "step %td of %td is kept: KL %.4g on the validation lessons, "
                          "the closed form's %.4g",
                          d->at.best_step, d->o.steps, d->at.best_kl, closed);
    if (!text.at) return kvm_nomem(err, j->keep);
    return j->host->event(j, "distill.kept", text, err);
}

static kvm_status put_results(distillation *d, kvm_err *err)
{
    kvm_job *j = d->job;
    kvm_str path;
    kvm_arena scratch = {0};
    memcpy(kvm_distill_values(d->trainer), d->at.best,
           sizeof *d->at.best * (size_t)kvm_distill_parameters(d->trainer));
    TRY(kvm_job_path(j, "distilled.safetensors", &path, err));
    TRY(kvm_arena_reserve(&scratch, (size_t)4 << 30, err));
    kvm_status s = KVM_OK;
    if (kvm_team_leads(j->team))
        s = kvm_translator_write(kvm_distill_translator(d->trainer), d->o.dtype, path,
                                 scratch, NULL, err);
    kvm_arena_free(&scratch);
    if (s) return s;
    TRY(j->host->output(j, "translator", path, err));
    const json_t *first = json_array_get(d->at.curve, 0);
    json_t *figures = json_pack(
        "{s:O, s:I, s:I, s:f, s:O, s:I, s:I, s:I, s:I, s:I, s:f}", "curve", d->at.curve,
        "steps", (json_int_t)d->o.steps, "best_step", (json_int_t)d->at.best_step,
        "best_kl", d->at.best_kl, "closed_kl", json_object_get(first, "kl"), "batch",
        (json_int_t)d->o.batch, "lessons", (json_int_t)d->lessons[0], "validation",
        (json_int_t)d->lessons[1], "parameters",
        (json_int_t)kvm_distill_parameters(d->trainer), "native_top",
        (json_int_t)kept_tokens(d), "native_lost", lost(d));
    if (!figures) return kvm_nomem(err, j->keep);
    return kvm_job_put_json(j, "figures", "distill.json", figures, err);
}

static kvm_status run(kvm_job *j, kvm_err *err)
{
    const double started = kvm_now();
    distillation d = {
        .job = j, .epoch = -1, .at = {.best_kl = HUGE_VAL, .curve = json_array()}};
    if (!kvm_json_own(j->keep, d.at.curve)) return kvm_nomem(err, j->keep);
    TRY(open_all(&d, err));
    TRY(train(&d, err));
    TRY(log_outcome(&d, err));
    TRY(put_results(&d, err));
    return kvm_job_put_cost(j, started, err);
}

static kvm_status check(kvm_job *j, kvm_err *err)
{
    kvm_distill_options o;
    return kvm_distill_read_options(&o, j, err);
}

static const char *const inputs[] = {"translator", NULL};
static const char *const outputs[] = {"translator", "figures", "cost", NULL};
const kvm_job_kind kvm_job_distill = {
    .id = KVM_JOB_DISTILL,
    .inputs = inputs,
    .outputs = outputs,
    .params = params,
    .section = "distill",
    .run = run,
    .check = check,
};
