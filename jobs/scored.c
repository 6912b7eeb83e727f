#include "jobs/scored.h"

#include <math.h>

#include "jobs/open.h"

static kvm_status open_suite(kvm_scored *s, const kvm_tokenizer *t,
                             kvm_suite_holds holds, kvm_err *err)
{
    kvm_job *j = s->job;
    kvm_str path;
    ptrdiff_t wanted;
    TRY(kvm_json_str(kvm_json_get(j->params, j->keep, "suite_path"), &path, err));
    TRY(kvm_suite_read(&s->suite, j->keep, path, err));
    TRY(kvm_job_unchanged(j, "suite", s->suite->sha, err));
    TRY(kvm_suite_serves(s->suite, holds, err));
    if (holds == KVM_HOLDS_DIALOGUES)
        TRY(kvm_job_i64(j, "turns", KVM_TURNS, 1, INT32_MAX, &s->suite->turns, err));
    TRY(kvm_json_str_or(kvm_json_get(j->params, j->keep, "as"), s->suite->name,
                        &s->name, err));
    TRY(kvm_job_i64(j, "items", 0, 0, INT32_MAX, &wanted, err));
    return kvm_items_read(&s->items, j->keep, s->suite, wanted, t, err);
}

static kvm_status refuse_overlap(kvm_scored *s, const kvm_tokenizer *t, kvm_err *err)
{
    kvm_job *j = s->job;
    kvm_str path;
    ptrdiff_t sequences, tokens;
    TRY(kvm_json_str(kvm_json_get(j->params, j->keep, "text_path"), &path, err));
    TRY(kvm_job_i64(j, "sequences", 0, 1, INT32_MAX, &sequences, err));
    TRY(kvm_job_i64(j, "tokens", 0, 2, INT32_MAX, &tokens, err));
    kvm_calibration c;
    kvm_overlap *o;
    TRY(kvm_calibration_read(&c, j->keep, path, t, sequences, tokens, err));
    TRY(kvm_job_unchanged(j, "text", c.sha, err));
    TRY(kvm_overlap_new(&o, j->keep, &c, err));
    return kvm_items_apart(&s->items, o, path, *j->keep, err);
}

kvm_status kvm_scored_open(kvm_scored *s, kvm_job *j, const kvm_tokenizer *t,
                           kvm_suite_holds holds, kvm_err *err)
{
    *s = (kvm_scored){.job = j};
    TRY(open_suite(s, t, holds, err));
    return refuse_overlap(s, t, err);
}

const kvm_item *kvm_scored_item(const kvm_scored *s, ptrdiff_t i)
{
    return &s->suite->items[s->items.index[i]];
}

/* ---- what an earlier attempt left ---- */

/* A score of a whole number stands there as an integer: the canonical form of 1.0 is
 * 1. */
static kvm_status replay_scores(kvm_scored *s, kvm_jat line, kvm_str item, kvm_err *err)
{
    const kvm_jat scores = kvm_json_get(line, s->job->keep, "scores");
    const char *arm, *metric;
    json_t *row, *value;
    json_object_foreach(json_object_get(line.v, "scores"), arm, row)
    {
        const kvm_jat at = kvm_json_get(scores, s->job->keep, arm);
        json_object_foreach(row, metric, value)
        {
            double x;
            TRY(kvm_json_f64(kvm_json_get(at, s->job->keep, metric), &x, err));
            TRY(s->job->host->sample(s->job, s->name.at, arm, metric, item, x, err));
        }
    }
    return KVM_OK;
}

/* samples of those lines, which are counted */
static kvm_status replay(kvm_scored *s, kvm_err *err)
{
    if (!kvm_path_exists(s->path)) return KVM_OK;
    kvm_str text, line;
    TRY(kvm_file_read(&text, s->job->keep, s->path, (size_t)1 << 32, err));
    while (kvm_str_cut(text, '\n', &line, &text)) {
        if (s->done == s->items.n) break;
        const kvm_item *item = kvm_scored_item(s, s->done);
        kvm_jat root;
        kvm_str id;
        TRY(kvm_json_parse(&root, s->job->keep, line, s->path, err));
        TRY(kvm_json_str(kvm_json_get(root, s->job->keep, "item"), &id, err));
        if (!kvm_str_eq(id, item->id))
            return kvm_fail(err, KVM_MISMATCH, "%.*s: line %td is not item %.*s",
                            KVM_STR_ARG(s->path), s->done + 1, KVM_STR_ARG(item->id));
        TRY(replay_scores(s, root, id, err));
        s->done++;
    }
    return KVM_OK;
}

kvm_status kvm_scored_resume(kvm_scored *s, kvm_err *err)
{
    TRY(kvm_job_path(s->job, "items.jsonl", &s->path, err));
    TRY(kvm_log_open(&s->log, s->job->keep, s->path, err));
    return replay(s, err);
}

/* ---- one line ---- */

json_t *kvm_scored_line(const kvm_scored *s, ptrdiff_t i, kvm_arena *scratch)
{
    const kvm_item *item = kvm_scored_item(s, i);
    const kvm_item_ids *ids = &s->items.ids[i];
    json_t *line = kvm_json_own(scratch, json_object());
    if (!line) return NULL;
    json_object_set_new(line, "item", json_stringn(item->id.at, (size_t)item->id.len));
    json_object_set_new(line, "tokens", json_integer(ids->prefix_n));
    if (s->suite->kind == KVM_SUITE_PERPLEXITY)
        json_object_set_new(line, "scored", json_integer(ids->after_n[0]));
    json_object_set_new(line, "length", json_integer(item->length));
    if (item->length) json_object_set_new(line, "depth", json_real(item->depth));
    json_object_set_new(line, "scores", json_object());
    return line;
}

kvm_status kvm_scored_put(kvm_scored *s, ptrdiff_t i, const char *arm,
                          const kvm_figures *f, json_t *line, kvm_err *err)
{
    const kvm_item *item = kvm_scored_item(s, i);
    json_t *row = json_object();
    for (ptrdiff_t k = 0; k < f->n; k++) {
        if (!isfinite(f->value[k]))
            return json_decref(row),
                   kvm_fail(err, KVM_NAN, "item %.*s, arm %s: %s is not finite",
                            KVM_STR_ARG(item->id), arm, f->name[k]);
        json_object_set_new(row, f->name[k], json_real(f->value[k]));
    }
    json_object_set_new(json_object_get(line, "scores"), arm, row);
    for (ptrdiff_t k = 0; k < f->n; k++)
        TRY(s->job->host->sample(s->job, s->name.at, arm, f->name[k], item->id,
                                 f->value[k], err));
    return KVM_OK;
}

static kvm_status score_line(kvm_scored *s, ptrdiff_t i, kvm_score_one *one, void *ctx,
                             kvm_arena *scratch, kvm_err *err)
{
    kvm_str text;
    json_t *line = kvm_scored_line(s, i, scratch);
    if (!line) return kvm_nomem(err, scratch);
    TRY(one(ctx, i, line, scratch, err));
    TRY(kvm_json_canonical(&text, scratch, line, err));
    return kvm_log_append(s->log, text, true, err);
}

kvm_status kvm_scored_all(kvm_scored *s, kvm_score_one *one, void *ctx, kvm_err *err)
{
    kvm_arena scratch = {0};
    TRY(kvm_arena_reserve(&scratch, (size_t)4 << 30, err));
    kvm_status st = KVM_OK;
    for (ptrdiff_t i = s->done; !st && i < s->items.n; i++) {
        kvm_progress_at(s->job->progress, (double)i, (double)s->items.n, "items");
        if (kvm_progress_cancelled(s->job->progress))
            st = kvm_fail(err, KVM_CANCELLED, "cancelled after %td of %td items", i,
                          s->items.n);
        else
            st = score_line(s, i, one, ctx, &scratch, err);
        if (st && st != KVM_CANCELLED)
            st = kvm_err_prefix(err, st, "item %.*s",
                                KVM_STR_ARG(kvm_scored_item(s, i)->id));
        kvm_arena_reset(&scratch);
    }
    kvm_arena_free(&scratch);
    return st;
}

kvm_status kvm_scored_card(const kvm_scored *s, const kvm_compute *c, json_t **card,
                           kvm_err *err)
{
    const kvm_str backend = kvm_backend_label(kvm_compute_backend(c), s->job->keep);
    if (!backend.at) return kvm_nomem(err, s->job->keep);
    *card = json_pack(
        "{s:s%, s:s, s:s, s:f, s:I, s:s%}", "suite", s->suite->name.at,
        (size_t)s->suite->name.len, "kind", kvm_suite_kind_name(s->suite->kind),
        "metric", s->suite->metric.at, "chance", s->suite->chance, "items",
        (json_int_t)s->items.n, "backend", backend.at, (size_t)backend.len);
    return *card ? KVM_OK : kvm_nomem(err, s->job->keep);
}
