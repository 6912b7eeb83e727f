#include "jobs/scored.h"

#include <math.h>
#include <stdio.h>

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

/* the log of a rank: of one alone it is the output itself */
static kvm_status log_path(const kvm_scored *s, int rank, kvm_str *path, kvm_err *err)
{
    char name[64] = "items.jsonl";
    const int ranks = s->job->team->size;
    if (ranks > 1) snprintf(name, sizeof name, "items.%d-%d.jsonl", rank, ranks);
    return kvm_job_path(s->job, name, path, err);
}

/* the item of a rank's n-th line */
static ptrdiff_t item_of(const kvm_scored *s, int rank, ptrdiff_t n)
{
    return n * s->job->team->size + rank;
}

/* a line that must be item i's; its samples for the host, where that is asked */
static kvm_status check_line(kvm_scored *s, kvm_str path, kvm_str line, ptrdiff_t i,
                             bool tell, kvm_err *err)
{
    const kvm_item *item = kvm_scored_item(s, i);
    kvm_jat root;
    kvm_str id;
    TRY(kvm_json_parse(&root, s->job->keep, line, path, err));
    TRY(kvm_json_str(kvm_json_get(root, s->job->keep, "item"), &id, err));
    if (!kvm_str_eq(id, item->id))
        return kvm_fail(err, KVM_MISMATCH, "%.*s: line %td is not item %.*s",
                        KVM_STR_ARG(path), i / s->job->team->size + 1,
                        KVM_STR_ARG(item->id));
    return tell ? replay_scores(s, root, id, err) : KVM_OK;
}

/* lines of this rank's log, which are counted. Of a rank among several the host hears
 * when all are done. */
static kvm_status replay(kvm_scored *s, kvm_str path, kvm_err *err)
{
    const kvm_team *team = s->job->team;
    kvm_str text, line;
    if (!kvm_path_exists(path)) return KVM_OK;
    TRY(kvm_file_read(&text, s->job->keep, path, (size_t)1 << 32, err));
    while (kvm_str_cut(text, '\n', &line, &text)) {
        const ptrdiff_t i = item_of(s, team->rank, s->done);
        if (i >= s->items.n) break;
        TRY(check_line(s, path, line, i, team->size == 1, err));
        s->done++;
    }
    return KVM_OK;
}

kvm_status kvm_scored_resume(kvm_scored *s, kvm_err *err)
{
    kvm_str path;
    TRY(kvm_job_path(s->job, "items.jsonl", &s->path, err));
    TRY(log_path(s, s->job->team->rank, &path, err));
    TRY(kvm_log_open(&s->log, s->job->keep, path, err));
    return replay(s, path, err);
}

/* ---- the lines of all ranks ---- */

static kvm_status put_in_order(kvm_scored *s, kvm_str *rest, kvm_text *all,
                               kvm_err *err)
{
    const int ranks = s->job->team->size;
    for (ptrdiff_t i = 0; i < s->items.n; i++) {
        kvm_str path, line, *from = &rest[i % ranks];
        TRY(log_path(s, (int)(i % ranks), &path, err));
        if (!kvm_str_cut(*from, '\n', &line, from))
            return kvm_fail(err, KVM_MISMATCH, "%.*s: ends before item %.*s",
                            KVM_STR_ARG(path), KVM_STR_ARG(kvm_scored_item(s, i)->id));
        TRY(check_line(s, path, line, i, true, err));
        kvm_text_addf(all, "%.*s\n", KVM_STR_ARG(line));
    }
    if (all->failed) return kvm_fail(err, KVM_NOMEM, "no memory for the lines");
    return kvm_file_publish(s->path, kvm_text_str(all), *s->job->keep, err);
}

static kvm_status collect(kvm_scored *s, kvm_err *err)
{
    kvm_job *j = s->job;
    kvm_text all = {0};
    if (j->team->size == 1) return KVM_OK;
    TRY(kvm_team_wait(j->team, err));
    if (!kvm_team_leads(j->team)) return KVM_OK;
    kvm_str *rest = kvm_new(j->keep, kvm_str, j->team->size);
    if (!rest) return kvm_nomem(err, j->keep);
    for (int r = 0; r < j->team->size; r++) {
        kvm_str path;
        TRY(log_path(s, r, &path, err));
        TRY(kvm_file_read(&rest[r], j->keep, path, (size_t)1 << 32, err));
    }
    const kvm_status st = put_in_order(s, rest, &all, err);
    kvm_text_free(&all);
    return st;
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
    if (s->job->team->size > 1) return KVM_OK; /* told in order, when all are done */
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
    const kvm_team *team = s->job->team;
    for (ptrdiff_t i = item_of(s, team->rank, s->done); !st && i < s->items.n;
         i += team->size) {
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
    return st ? st : collect(s, err);
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
