/* choose.c - which of several fits is taken, decided on validation.
 *
 * The lessons are those of the split to choose, as a distillation validates on them:
 * behind the translated prefix the target reads the tokens that follow, and what it
 * says of each is compared with what it says on its own cache,
 *
 *   mean over lessons and tokens of KL(native || translated)
 *
 * The least wins; of equal ones the fit with fewer parameters, then the one that stands
 * first (candidates.h: the cheaper switch). One that could not be fitted or cannot be
 * applied loses, and so does one behind which something is not finite: the figures say
 * why. The winner's translator and figures are the job's,
 * with "tried", a row for each, so that whatever takes a fit can take a choice.
 *
 * A line of choose.jsonl is a candidate that is scored: a killed job goes on after the
 * last of them. */
#include <assert.h>
#include <math.h>

#include "base/clock.h"
#include "base/file.h"
#include "jobs/candidates.h"
#include "jobs/lessons.h"
#include "jobs/open.h"
#include "jobs/params.h"

enum {
    AFTER = 64,        /* tokens that a lesson is judged by; half of shorter ones */
    LESSONS_MOST = 64, /* enough to tell fits apart by far less than they differ */
    ROWS = 16          /* tokens that the target reads at a time */
};
static const size_t CANDIDATE_BYTES = (size_t)64 << 30; /* address space only */

static const kvm_field params[] = {
    KVM_PAIR_PARAMS,
    KVM_LESSON_PARAMS,
    {"titles", KVM_FIELD_LIST, true, "what tells the candidates apart", NULL,
     KVM_FIELD_STR},
    {0},
};

typedef struct candidate {
    kvm_str title;
    const kvm_job_input *translator, *fit;
    int64_t parameters;
    double kl, first_kl; /* NaN: it has lost */
    kvm_str reason;      /* why it has; else empty */
} candidate;

typedef struct choice {
    kvm_job *job;
    kvm_compute *compute;
    kvm_model *source, *target;
    kvm_calibration text;
    kvm_lesson *lesson;
    ptrdiff_t lessons, longest, after;
    kvm_cache *source_cache, *target_cache;
    float *logits, *said; /* (ROWS, vocab) */
    candidate at[KVM_CANDIDATES_MOST];
    ptrdiff_t count, done;
    kvm_log_file *log;
} choice;

/* ---- what there is to choose among ---- */

static kvm_status numbered_input(choice *h, const char *name, ptrdiff_t i,
                                 const kvm_job_input **in, kvm_err *err)
{
    const kvm_str full = kvm_str_fmt(h->job->keep, "%s.%td", name, i);
    if (!full.at) return kvm_nomem(err, h->job->keep);
    return kvm_job_need_input(h->job, full.at, in, err);
}

static kvm_status read_figures(choice *h, const kvm_job_input *in, kvm_jat *root,
                               kvm_err *err)
{
    kvm_str text;
    TRY(kvm_file_read(&text, h->job->keep, in->path, (size_t)1 << 32, err));
    return kvm_json_parse(root, h->job->keep, text, in->path, err);
}

static kvm_status read_candidates(choice *h, kvm_err *err)
{
    kvm_arena *keep = h->job->keep;
    const kvm_jat titles = kvm_json_get(h->job->params, keep, "titles");
    TRY(kvm_json_array(titles, &h->count, err));
    if (h->count < 1 || h->count > KVM_CANDIDATES_MOST)
        return kvm_json_fail(err, KVM_RANGE, titles, "has %td names, must have 1 to %d",
                             h->count, KVM_CANDIDATES_MOST);
    for (ptrdiff_t i = 0; i < h->count; i++) {
        candidate *a = &h->at[i];
        kvm_jat figures;
        TRY(kvm_json_str(kvm_json_item(titles, keep, i), &a->title, err));
        TRY(numbered_input(h, "fit", i, &a->fit, err));
        TRY(read_figures(h, a->fit, &figures, err));
        TRY(kvm_json_str_or(kvm_json_get(figures, keep, "failed"), KVM_STR(""),
                            &a->reason, err));
        if (a->reason.len) continue;
        TRY(numbered_input(h, "translator", i, &a->translator, err));
        TRY(kvm_json_i64(kvm_json_get(figures, keep, "parameters"), &a->parameters,
                         err));
    }
    return KVM_OK;
}

static kvm_status list_lessons(choice *h, kvm_err *err)
{
    kvm_job *j = h->job;
    kvm_str path;
    ptrdiff_t sequences, tokens, seed;
    double held_out;
    TRY(kvm_job_i64(j, "sequences", 0, KVM_LEAST_SEQUENCES, INT32_MAX, &sequences,
                    err));
    TRY(kvm_job_i64(j, "tokens", 0, 2, INT32_MAX, &tokens, err));
    TRY(kvm_job_i64(j, "split_seed", 1, 0, INT64_MAX, &seed, err));
    TRY(kvm_job_f64(j, "held_out", 0.2, 0.01, 0.9, &held_out, err));
    TRY(kvm_json_str(kvm_json_get(j->params, j->keep, "text_path"), &path, err));
    TRY(kvm_calibration_read(&h->text, j->keep, path, kvm_model_tokenizer(h->target),
                             sequences, tokens, err));
    TRY(kvm_job_unchanged(j, "text", h->text.sha, err));
    h->after = h->text.longest / 2 < AFTER ? h->text.longest / 2 : AFTER;
    const kvm_lesson_options o = {.seed = (uint64_t)seed,
                                  .held_out = held_out,
                                  .after = h->after,
                                  .most = LESSONS_MOST};
    TRY(kvm_lessons_list(&h->lesson, &h->lessons, &h->text, KVM_CHOOSE, &o, j->keep,
                         err));
    h->longest = kvm_lessons_longest(h->lesson, h->lessons);
    return KVM_OK;
}

static kvm_status open_all(choice *h, kvm_err *err)
{
    kvm_job *j = h->job;
    kvm_arena *keep = j->keep;
    TRY(kvm_job_compute(j, &h->compute, err));
    TRY(kvm_job_model(j, h->compute, "source", &h->source, err));
    TRY(kvm_job_model(j, h->compute, "target", &h->target, err));
    TRY(read_candidates(h, err));
    TRY(list_lessons(h, err));
    const ptrdiff_t vocab = kvm_model_info_of(h->target)->vocab;
    h->logits = kvm_new_raw(keep, float, ROWS *vocab);
    h->said = kvm_new_raw(keep, float, ROWS *vocab);
    if (!h->logits || !h->said) return kvm_nomem(err, keep);
    TRY(kvm_cache_new(&h->source_cache, keep, h->source, h->longest, err));
    return kvm_cache_new(&h->target_cache, keep, h->target, h->longest + h->after, err);
}

/* ---- scoring ---- */

/* what the target says after its cache, ROWS at a time: kept as the lesson's native
 * rows, or compared with them */
static kvm_status listen(choice *h, kvm_lesson *l, bool keep, double *kl, kvm_err *err)
{
    const ptrdiff_t vocab = kvm_model_info_of(h->target)->vocab;
    for (ptrdiff_t t = 0; t < l->after_n; t += ROWS) {
        const ptrdiff_t n = l->after_n - t < ROWS ? l->after_n - t : ROWS;
        const kvm_forward_options o = {.logits_last = n, .logits = h->logits};
        TRY(kvm_model_forward(h->target, h->target_cache, l->after + t, n, &o, err));
        for (ptrdiff_t i = 0; keep && i < n; i++)
            TRY(kvm_said_put(&l->native, t + i, h->logits + i * vocab, err));
        if (keep) continue;
        float *native = kvm_said_rows(&l->native, t, n, h->said);
        TRY(kvm_op_kl_back(h->compute, kl + t, kvm_view2(h->logits, KVM_F32, n, vocab),
                           kvm_view2(native, KVM_F32, n, vocab), 1, err));
    }
    return KVM_OK;
}

static kvm_status hear_native(choice *h, kvm_err *err)
{
    const ptrdiff_t vocab = kvm_model_info_of(h->target)->vocab;
    for (ptrdiff_t i = 0; i < h->lessons; i++) {
        kvm_lesson *l = &h->lesson[i];
        kvm_progress_at(h->job->progress, (double)i, (double)h->lessons, "lessons");
        if (kvm_progress_cancelled(h->job->progress))
            return kvm_fail(err, KVM_CANCELLED, "cancelled while lessons were read");
        TRY(kvm_said_new(&l->native, h->job->keep, l->after_n, vocab,
                         kvm_said_top(vocab, 0), err));
        kvm_cache_clear(h->target_cache);
        TRY(kvm_model_forward(h->target, h->target_cache, l->prefix, l->prefix_n, NULL,
                              err));
        TRY(listen(h, l, true, NULL, err));
    }
    return KVM_OK;
}

/* sums of one lesson's mean and of its first token, onto a's */
static kvm_status score_lesson(choice *h, candidate *a, kvm_apply *apply,
                               kvm_taken *taken, kvm_lesson *l, double *kl,
                               kvm_err *err)
{
    kvm_capture sink;
    kvm_forward_options o = {0};
    double sum = 0;
    if (taken) {
        sink = kvm_taken_capture(taken);
        o.capture = &sink;
    }
    kvm_cache_clear(h->source_cache);
    kvm_cache_clear(h->target_cache);
    TRY(kvm_model_forward(h->source, h->source_cache, l->prefix, l->prefix_n, &o, err));
    const kvm_handover from = {
        .cache = h->source_cache, .taken = taken, .ids = l->prefix};
    TRY(kvm_apply_run(apply, &from, h->target_cache, NULL, err));
    TRY(listen(h, l, false, kl, err));
    for (ptrdiff_t t = 0; t < l->after_n; t++) sum += kl[t];
    a->kl += sum / (double)(l->after_n * h->lessons);
    a->first_kl += kl[0] / (double)h->lessons;
    if (isfinite(sum)) return KVM_OK;
    return kvm_fail(err, KVM_NAN, "what the target says behind it is not finite");
}

static kvm_status score_in(choice *h, candidate *a, kvm_arena *work, kvm_err *err)
{
    kvm_translator t;
    kvm_apply *apply;
    kvm_taken *taken = NULL;
    double *kl = kvm_new(work, double, h->after);
    if (!kl) return kvm_nomem(err, work);
    TRY(kvm_translator_open(&t, work, a->translator->path, err));
    TRY(kvm_apply_new(&apply, work, h->compute, &t, h->source, h->target, NULL, err));
    const kvm_spaces takes = kvm_apply_takes(apply);
    if (takes) TRY(kvm_taken_new(&taken, work, h->source, takes, h->longest, err));
    const double all = (double)(h->count * h->lessons);
    for (ptrdiff_t i = 0; i < h->lessons; i++) {
        kvm_progress_at(h->job->progress, (double)((a - h->at) * h->lessons + i), all,
                        "lessons");
        if (kvm_progress_cancelled(h->job->progress))
            return kvm_fail(err, KVM_CANCELLED, "cancelled after %td of %td candidates",
                            (ptrdiff_t)(a - h->at), h->count);
        TRY(score_lesson(h, a, apply, taken, &h->lesson[i], kl, err));
    }
    return KVM_OK;
}

/* that it cannot be scored is an answer: it has lost */
static kvm_status lose(choice *h, candidate *a, const kvm_err *why, kvm_err *err)
{
    if (!kvm_candidate_lost(why->code)) {
        if (err) *err = *why;
        return kvm_err_prefix(err, why->code, "%.*s", KVM_STR_ARG(a->title));
    }
    a->kl = a->first_kl = (double)NAN;
    a->reason = kvm_str_fmt(h->job->keep, "%s", why->msg);
    return a->reason.at ? KVM_OK : kvm_nomem(err, h->job->keep);
}

static kvm_status score(choice *h, candidate *a, kvm_err *err)
{
    kvm_arena work = {0};
    kvm_err why = {0};
    if (!a->translator) { /* its fit has lost, and said why */
        a->kl = a->first_kl = (double)NAN;
        return KVM_OK;
    }
    TRY(kvm_arena_reserve(&work, CANDIDATE_BYTES, err));
    const kvm_status s = score_in(h, a, &work, &why);
    kvm_arena_free(&work);
    return s ? lose(h, a, &why, err) : KVM_OK;
}

/* ---- the log ---- */

static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

/* what a row of "tried" and a line of the log both say */
static json_t *row_of(const candidate *a)
{
    json_t *row =
        json_pack("{s:s%, s:o, s:o}", "title", a->title.at, (size_t)a->title.len, "kl",
                  number(a->kl), "first_kl", number(a->first_kl));
    if (a->reason.len)
        json_object_set_new(row, "reason",
                            json_stringn(a->reason.at, (size_t)a->reason.len));
    return row;
}

static kvm_status number_of(kvm_jat at, double *x, kvm_err *err)
{
    *x = (double)NAN;
    return kvm_json_has(at) ? kvm_json_f64(at, x, err) : KVM_OK;
}

static kvm_status resume(choice *h, kvm_err *err)
{
    kvm_str path, text, line;
    kvm_arena *keep = h->job->keep;
    TRY(kvm_job_path(h->job, "choose.jsonl", &path, err));
    TRY(kvm_log_open(&h->log, keep, path, err));
    TRY(kvm_file_read(&text, keep, path, (size_t)1 << 20, err));
    while (h->done < h->count && kvm_str_cut(text, '\n', &line, &text)) {
        candidate *a = &h->at[h->done];
        kvm_jat row;
        kvm_str title;
        TRY(kvm_json_parse(&row, keep, line, path, err));
        TRY(kvm_json_str(kvm_json_get(row, keep, "title"), &title, err));
        if (!kvm_str_eq(title, a->title))
            return kvm_fail(err, KVM_MISMATCH, "%.*s: line %td is not of \"%.*s\"",
                            KVM_STR_ARG(path), h->done + 1, KVM_STR_ARG(a->title));
        TRY(number_of(kvm_json_get(row, keep, "kl"), &a->kl, err));
        TRY(number_of(kvm_json_get(row, keep, "first_kl"), &a->first_kl, err));
        TRY(kvm_json_str_or(kvm_json_get(row, keep, "reason"), KVM_STR(""), &a->reason,
                            err));
        h->done++;
    }
    return KVM_OK;
}

static kvm_status put_line(choice *h, const candidate *a, kvm_err *err)
{
    kvm_str text;
    json_t *row = kvm_json_own(h->job->keep, row_of(a));
    if (!row) return kvm_nomem(err, h->job->keep);
    TRY(kvm_json_canonical(&text, h->job->keep, row, err));
    return kvm_log_append(h->log, text, true, err);
}

static kvm_status score_all(choice *h, kvm_err *err)
{
    if (h->done < h->count) TRY(hear_native(h, err));
    for (ptrdiff_t i = h->done; i < h->count; i++) {
        TRY(score(h, &h->at[i], err));
        TRY(put_line(h, &h->at[i], err));
    }
    return KVM_OK;
}

/* ---- the choice ---- */

static kvm_status least(const choice *h, const candidate **out, kvm_err *err)
{
    const candidate *best = NULL;
    for (ptrdiff_t i = 0; i < h->count; i++) {
        const candidate *a = &h->at[i];
        if (!isfinite(a->kl)) continue;
        if (!best || a->kl < best->kl ||
            (a->kl == best->kl && a->parameters < best->parameters))
            best = a;
    }
    *out = best;
    if (best) return KVM_OK;
    return kvm_fail(err, KVM_UNSUPPORTED,
                    "none of %td fits can be taken; the first: %.*s", h->count,
                    KVM_STR_ARG(h->at[0].reason));
}

static kvm_status copy_translator(choice *h, const candidate *a, kvm_err *err)
{
    kvm_job *j = h->job;
    kvm_str path, bytes;
    assert(a->translator); /* it has a KL */
    TRY(kvm_job_path(j, "translator.safetensors", &path, err));
    TRY(kvm_file_map(&bytes, j->keep, a->translator->path, err));
    TRY(kvm_file_publish(path, bytes, *j->keep, err));
    return j->host->output(j, "translator", path, err);
}

static kvm_status put_metrics(choice *h, const candidate *a, kvm_err *err)
{
    if (!isfinite(a->kl)) return KVM_OK;
    json_t *labels =
        json_pack("{s:s%}", "candidate", a->title.at, (size_t)a->title.len);
    const kvm_status s = h->job->host->metric(h->job, "choose_kl", a->kl, labels, err);
    json_decref(labels);
    return s;
}

static kvm_status put_results(choice *h, kvm_err *err)
{
    const candidate *best;
    kvm_jat figures;
    json_t *tried = json_array();
    if (!kvm_json_own(h->job->keep, tried)) return kvm_nomem(err, h->job->keep);
    TRY(least(h, &best, err));
    for (ptrdiff_t i = 0; i < h->count; i++) {
        json_t *row = row_of(&h->at[i]);
        if (h->at[i].translator)
            json_object_set_new(row, "parameters", json_integer(h->at[i].parameters));
        json_object_set_new(row, "chosen", json_boolean(&h->at[i] == best));
        json_array_append_new(tried, row);
        TRY(put_metrics(h, &h->at[i], err));
    }
    TRY(read_figures(h, best->fit, &figures, err));
    TRY(copy_translator(h, best, err));
    json_t *out = json_deep_copy(figures.v);
    json_object_set(out, "tried", tried);
    json_object_set_new(out, "tried_lessons", json_integer(h->lessons));
    json_object_set_new(out, "tried_after", json_integer(h->after));
    return kvm_job_put_json(h->job, "fit", "fit.json", out, err);
}

static kvm_status run(kvm_job *j, kvm_err *err)
{
    const double started = kvm_now();
    choice h = {.job = j};
    TRY(open_all(&h, err));
    TRY(resume(&h, err));
    TRY(score_all(&h, err));
    TRY(put_results(&h, err));
    return kvm_job_put_cost(j, started, err);
}

static const char *const inputs[] = {"translator.*", "fit.*", NULL};
static const char *const outputs[] = {"translator", "fit", "cost", NULL};
const kvm_job_kind kvm_job_choose = {
    .id = KVM_JOB_CHOOSE,
    .inputs = inputs,
    .outputs = outputs,
    .params = params,
    .run = run,
};
