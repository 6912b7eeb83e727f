/* evaluate.c - score one suite on every anchor and control, item by item.
 *
 * Items are independent: each is appended to items.jsonl with fsync when all its arms
 * are scored, and an attempt that follows a killed one starts after the last whole
 * line. Output "items" holds one line per item: {"item": id, "tokens": prefix length,
 * "bos": begin-of-text ids in it, "donor": the item whose prefix was the wrong one
 * (null: none), "scored": tokens of its continuation, "length" and
 * "depth": stated of a needle, "scores": {arm: {metric: x}}, "said": …}. */
#include <math.h>
#include <string.h>

#include "base/file.h"
#include "jobs/arm_caches.h"
#include "jobs/attention_quality.h"
#include "jobs/items.h"
#include "jobs/open.h"
#include "jobs/params.h"

static const kvm_field params[] = {
    KVM_EVALUATE_PARAMS,
    /* filled in by the graph */
    KVM_PAIR_PARAMS,
    {"suite", KVM_FIELD_STR, true, "hash of card and items", NULL, 0},
    {"suite_path", KVM_FIELD_STR, true, "the card", NULL, 0},
    {"text", KVM_FIELD_STR, true, "hash of the calibration text, to refuse overlap",
     NULL, 0},
    {"text_path", KVM_FIELD_STR, true, "the calibration text", NULL, 0},
    {"sequences", KVM_FIELD_INT, true, "calibration sequences", NULL, 0},
    {"tokens", KVM_FIELD_INT, true, "tokens per calibration sequence", NULL, 0},
    {"arms", KVM_FIELD_LIST, false, "arms to score besides native; absent: all", NULL,
     KVM_FIELD_STR},
    {"as", KVM_FIELD_STR, false, "the suite's name in samples, when not its own", NULL,
     0},
    {0},
};

typedef struct evaluation {
    kvm_job *job;
    kvm_model *source, *target;
    kvm_suite *suite;
    kvm_str name; /* of the suite in samples */
    kvm_items items;
    ptrdiff_t *donor; /* (items.n) the item whose prefix is the wrong one; -1: none */
    kvm_arm_caches caches;
    bool wanted[KVM_ARM_COUNT];
    float *native_logits;
    kvm_log_file *log;
    ptrdiff_t done; /* items whose line stands in the log */
} evaluation;

static kvm_status open_suite(evaluation *e, kvm_err *err)
{
    kvm_job *j = e->job;
    kvm_str path;
    ptrdiff_t wanted;
    TRY(kvm_json_str(kvm_json_get(j->params, j->keep, "suite_path"), &path, err));
    TRY(kvm_suite_read(&e->suite, j->keep, path, err));
    TRY(kvm_job_unchanged(j, "suite", e->suite->sha, err));
    if (e->suite->kind == KVM_SUITE_CALIBRATION)
        return kvm_fail(err, KVM_USAGE,
                        "suite %.*s is for calibration, not for scoring",
                        KVM_STR_ARG(e->suite->name));
    TRY(kvm_json_str_or(kvm_json_get(j->params, j->keep, "as"), e->suite->name,
                        &e->name, err));
    TRY(kvm_job_i64(j, "items", 0, 0, INT32_MAX, &wanted, err));
    return kvm_items_read(&e->items, j->keep, e->suite, wanted,
                          kvm_model_tokenizer(e->target), err);
}

/* The next item with a text of its own: one prefix that begins the other (questions on
 * one story, the turns of one conversation) would be the right donor in part. */
static kvm_status choose_donors(evaluation *e, kvm_err *err)
{
    e->donor = kvm_new(e->job->keep, ptrdiff_t, e->items.n);
    if (!e->donor) return kvm_nomem(err, e->job->keep);
    for (ptrdiff_t i = 0; i < e->items.n; i++) {
        e->donor[i] = -1;
        for (ptrdiff_t step = 1; step < e->items.n && e->donor[i] < 0; step++) {
            const ptrdiff_t other = (i + step) % e->items.n;
            if (!kvm_item_same_prefix(&e->items.ids[i], &e->items.ids[other]))
                e->donor[i] = other;
        }
        e->caches.no_donor |= e->donor[i] < 0;
    }
    return KVM_OK;
}

/* what was fitted on must not be scored on */
static kvm_status refuse_overlap(evaluation *e, kvm_err *err)
{
    kvm_job *j = e->job;
    kvm_str path;
    ptrdiff_t sequences, tokens;
    TRY(kvm_json_str(kvm_json_get(j->params, j->keep, "text_path"), &path, err));
    TRY(kvm_job_i64(j, "sequences", 0, 1, INT32_MAX, &sequences, err));
    TRY(kvm_job_i64(j, "tokens", 0, 2, INT32_MAX, &tokens, err));
    kvm_calibration c;
    kvm_overlap *o;
    TRY(kvm_calibration_read(&c, j->keep, path, kvm_model_tokenizer(e->target),
                             sequences, tokens, err));
    TRY(kvm_job_unchanged(j, "text", c.sha, err));
    TRY(kvm_overlap_new(&o, j->keep, &c, err));
    return kvm_items_apart(&e->items, o, path, *j->keep, err);
}

static kvm_status open_translators(evaluation *e, kvm_err *err)
{
    static const struct {
        const char *input;
        kvm_arm arm;
    } rows[] = {{"translator", KVM_ARM_CLOSED_FORM},
                {"mlp", KVM_ARM_MLP},
                {"distilled", KVM_ARM_DISTILLED}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const kvm_job_input *in = kvm_job_find_input(e->job, rows[i].input);
        if (!in) continue;
        kvm_translator *t = kvm_new(e->job->keep, kvm_translator, 1);
        if (!t) return kvm_nomem(err, e->job->keep);
        TRY(kvm_translator_open(t, e->job->keep, in->path, err));
        TRY(kvm_apply_new(&e->caches.apply[rows[i].arm], e->job->keep,
                          kvm_model_compute(e->target), t, e->source, e->target, NULL,
                          err));
    }
    return kvm_arm_caches_take(&e->caches, e->job->keep, e->items.longest, err);
}

static kvm_status open_caches(evaluation *e, kvm_err *err)
{
    ptrdiff_t longest_after = 1;
    for (ptrdiff_t i = 0; i < e->items.n; i++) {
        const kvm_item_ids *ids = &e->items.ids[i];
        if (ids->after_count && ids->after_n[0] > longest_after)
            longest_after = ids->after_n[0];
    }
    TRY(kvm_arm_caches_new(&e->caches, e->job->keep, e->source, e->target,
                           e->items.longest, err));
    if (e->suite->kind == KVM_SUITE_PERPLEXITY) {
        e->native_logits = kvm_new_raw(
            e->job->keep, float, longest_after *kvm_model_info_of(e->target)->vocab);
        if (!e->native_logits) return kvm_nomem(err, e->job->keep);
    }
    return open_translators(e, err);
}

static kvm_status read_arms(evaluation *e, kvm_err *err)
{
    const kvm_jat list = kvm_json_get(e->job->params, e->job->keep, "arms");
    for (kvm_arm arm = 0; arm < KVM_ARM_COUNT; arm++)
        e->wanted[arm] = !kvm_json_has(list) || arm == KVM_ARM_NATIVE;
    if (!kvm_json_has(list)) return KVM_OK;
    ptrdiff_t n;
    TRY(kvm_json_array(list, &n, err));
    for (ptrdiff_t i = 0; i < n; i++) {
        kvm_str key;
        kvm_arm arm;
        const kvm_jat at = kvm_json_item(list, e->job->keep, i);
        TRY(kvm_json_str(at, &key, err));
        if (!kvm_arm_find(key, &arm))
            return kvm_json_fail(err, KVM_USAGE, at, "\"%s\" is no arm",
                                 kvm_quote(key).at);
        e->wanted[arm] = true;
    }
    return KVM_OK;
}

/* another item's prefix, repeated to n tokens */
static kvm_status donor_ids(const evaluation *e, ptrdiff_t i, kvm_arena *scratch,
                            int32_t **donor, kvm_err *err)
{
    const kvm_item_ids *mine = &e->items.ids[i];
    const kvm_item_ids *other = &e->items.ids[e->donor[i] < 0 ? i : e->donor[i]];
    int32_t *ids = kvm_new(scratch, int32_t, mine->prefix_n);
    if (!ids) return kvm_nomem(err, scratch);
    for (ptrdiff_t t = 0; t < mine->prefix_n; t++)
        ids[t] = other->prefix[t % other->prefix_n];
    *donor = ids;
    return KVM_OK;
}

/* one arm's scores into the item's line and to the host */
static kvm_status put_scores(evaluation *e, kvm_arm arm, const kvm_item *item,
                             const kvm_figures *f, json_t *scores, kvm_err *err)
{
    json_t *row = json_object();
    for (ptrdiff_t k = 0; k < f->n; k++) {
        if (!isfinite(f->value[k]))
            return json_decref(row),
                   kvm_fail(err, KVM_NAN, "item %.*s, arm %s: %s is not finite",
                            KVM_STR_ARG(item->id), kvm_arms[arm].key, f->name[k]);
        json_object_set_new(row, f->name[k], json_real(f->value[k]));
    }
    json_object_set_new(scores, kvm_arms[arm].key, row);
    for (ptrdiff_t k = 0; k < f->n; k++)
        TRY(e->job->host->sample(e->job, e->name.at, kvm_arms[arm].key, f->name[k],
                                 item->id, f->value[k], err));
    return KVM_OK;
}

static kvm_status score_arms(evaluation *e, ptrdiff_t i, json_t *scores, json_t *said,
                             kvm_arena *scratch, kvm_err *err)
{
    const kvm_item *item = &e->suite->items[e->items.index[i]];
    for (kvm_arm arm = 0; arm < KVM_ARM_COUNT; arm++) {
        if (!e->wanted[arm] || kvm_arm_absent(&e->caches, arm)) continue;
        kvm_model *m;
        kvm_cache *cache;
        kvm_figures f;
        kvm_str text;
        TRY(kvm_arm_fill(&e->caches, arm, &m, &cache, err));
        TRY(kvm_score_item(&f, e->suite, item, &e->items.ids[i], m, cache,
                           arm == KVM_ARM_NATIVE, e->native_logits,
                           kvm_model_info_of(e->target)->vocab, scratch, &text, err));
        TRY(put_scores(e, arm, item, &f, scores, err));
        /* generated bytes may end inside a character: jansson then refuses them */
        if (text.len)
            json_object_set_new(said, kvm_arms[arm].key,
                                json_stringn(text.at, (size_t)text.len));
    }
    return KVM_OK;
}

/* more than one says that a prompt brought its own, and is then another prompt */
static ptrdiff_t count_bos(const evaluation *e, const kvm_item_ids *ids)
{
    ptrdiff_t n = 0;
    for (ptrdiff_t t = 0; t < ids->prefix_n; t++)
        n += e->items.bos >= 0 && ids->prefix[t] == e->items.bos;
    return n;
}

static json_t *donor_json(const evaluation *e, ptrdiff_t i)
{
    if (e->donor[i] < 0) return json_null();
    const kvm_str id = e->suite->items[e->items.index[e->donor[i]]].id;
    return json_stringn(id.at, (size_t)id.len);
}

static kvm_status score_one(evaluation *e, ptrdiff_t i, kvm_arena *scratch,
                            kvm_err *err)
{
    const kvm_item *item = &e->suite->items[e->items.index[i]];
    const kvm_item_ids *ids = &e->items.ids[i];
    json_t *line = json_object(), *scores = json_object(), *said = json_object();
    if (!kvm_json_own(scratch, line)) return kvm_nomem(err, scratch);
    json_object_set_new(line, "item", json_stringn(item->id.at, (size_t)item->id.len));
    json_object_set_new(line, "tokens", json_integer(ids->prefix_n));
    json_object_set_new(line, "bos", json_integer(count_bos(e, ids)));
    json_object_set_new(line, "donor", donor_json(e, i));
    if (e->suite->kind == KVM_SUITE_PERPLEXITY)
        json_object_set_new(line, "scored", json_integer(ids->after_n[0]));
    json_object_set_new(line, "length", json_integer(item->length));
    if (item->length) json_object_set_new(line, "depth", json_real(item->depth));
    json_object_set_new(line, "scores", scores);
    json_object_set_new(line, "said", said);
    int32_t *donor;
    kvm_str text;
    TRY(donor_ids(e, i, scratch, &donor, err));
    TRY(kvm_arm_caches_prefill(&e->caches, ids->prefix, donor, ids->prefix_n, err));
    TRY(score_arms(e, i, scores, said, scratch, err));
    TRY(kvm_json_canonical(&text, scratch, line, err));
    return kvm_log_append(e->log, text, true, err);
}

/* A score of a whole number stands there as an integer: the canonical form of 1.0 is
 * 1. */
static kvm_status replay_scores(evaluation *e, kvm_jat line, kvm_str item, kvm_err *err)
{
    const kvm_jat scores = kvm_json_get(line, e->job->keep, "scores");
    const char *arm, *metric;
    json_t *row, *value;
    json_object_foreach(json_object_get(line.v, "scores"), arm, row)
    {
        const kvm_jat at = kvm_json_get(scores, e->job->keep, arm);
        json_object_foreach(row, metric, value)
        {
            double x;
            TRY(kvm_json_f64(kvm_json_get(at, e->job->keep, metric), &x, err));
            TRY(e->job->host->sample(e->job, e->name.at, arm, metric, item, x, err));
        }
    }
    return KVM_OK;
}

/* samples of the lines that an earlier attempt left, which also counts them */
static kvm_status replay(evaluation *e, kvm_str path, kvm_err *err)
{
    if (!kvm_path_exists(path)) return KVM_OK;
    kvm_str text, line;
    TRY(kvm_file_read(&text, e->job->keep, path, (size_t)1 << 32, err));
    while (kvm_str_cut(text, '\n', &line, &text)) {
        if (e->done == e->items.n) break;
        const kvm_item *item = &e->suite->items[e->items.index[e->done]];
        kvm_jat root;
        kvm_str id;
        TRY(kvm_json_parse(&root, e->job->keep, line, path, err));
        TRY(kvm_json_str(kvm_json_get(root, e->job->keep, "item"), &id, err));
        if (!kvm_str_eq(id, item->id))
            return kvm_fail(err, KVM_MISMATCH, "%.*s: line %td is not item %.*s",
                            KVM_STR_ARG(path), e->done + 1, KVM_STR_ARG(item->id));
        TRY(replay_scores(e, root, id, err));
        e->done++;
    }
    return KVM_OK;
}

static kvm_status score_all(evaluation *e, kvm_err *err)
{
    kvm_arena scratch = {0};
    TRY(kvm_arena_reserve(&scratch, (size_t)4 << 30, err));
    kvm_status s = KVM_OK;
    for (ptrdiff_t i = e->done; !s && i < e->items.n; i++) {
        kvm_progress_at(e->job->progress, (double)i, (double)e->items.n, "items");
        if (kvm_progress_cancelled(e->job->progress))
            s = kvm_fail(err, KVM_CANCELLED, "cancelled after %td of %td items", i,
                         e->items.n);
        else
            s = score_one(e, i, &scratch, err);
        if (s && s != KVM_CANCELLED)
            s = kvm_err_prefix(err, s, "item %.*s",
                               KVM_STR_ARG(e->suite->items[e->items.index[i]].id));
        kvm_arena_reset(&scratch);
    }
    kvm_arena_free(&scratch);
    return s;
}

/* The backend by the name of its instruction set: scores differ between two in
 * rounding. */
static json_t *suite_card(const evaluation *e, kvm_str backend)
{
    static const char *const kinds[] = {"calibration", "perplexity", "multiple_choice",
                                        "generation", "needle"};
    json_t *absent = json_object();
    for (kvm_arm arm = 0; arm < KVM_ARM_COUNT; arm++)
        if (kvm_arm_absent(&e->caches, arm))
            json_object_set_new(absent, kvm_arms[arm].key,
                                json_string(kvm_arm_absent(&e->caches, arm)));
    return json_pack("{s:s%, s:s, s:s, s:f, s:I, s:s%, s:o}", "suite",
                     e->suite->name.at, (size_t)e->suite->name.len, "kind",
                     kinds[e->suite->kind], "metric", e->suite->metric.at, "chance",
                     e->suite->chance, "items", (json_int_t)e->items.n, "backend",
                     backend.at, (size_t)backend.len, "absent", absent);
}

static kvm_status finish(evaluation *e, kvm_str items, kvm_err *err)
{
    const kvm_compute *c = kvm_model_compute(e->target);
    const kvm_str backend = kvm_backend_label(kvm_compute_backend(c), e->job->keep);
    json_t *figures = backend.at ? suite_card(e, backend) : NULL;
    if (!figures) return kvm_nomem(err, e->job->keep);
    TRY(kvm_attention_quality(e->job, &e->caches, e->items.ids, e->items.n, figures,
                              err));
    TRY(kvm_job_put_json(e->job, "figures", "figures.json", figures, err));
    return e->job->host->output(e->job, "items", items, err);
}

static kvm_status run(kvm_job *j, kvm_err *err)
{
    evaluation e = {.job = j};
    kvm_compute *c;
    kvm_str path;
    TRY(kvm_job_compute(j, &c, err));
    TRY(kvm_job_model(j, c, "source", &e.source, err));
    TRY(kvm_job_model(j, c, "target", &e.target, err));
    TRY(read_arms(&e, err));
    TRY(open_suite(&e, err));
    TRY(refuse_overlap(&e, err));
    TRY(open_caches(&e, err));
    TRY(choose_donors(&e, err));
    TRY(kvm_job_path(j, "items.jsonl", &path, err));
    TRY(kvm_log_open(&e.log, j->keep, path, err));
    TRY(replay(&e, path, err));
    TRY(score_all(&e, err));
    return finish(&e, path, err);
}

static kvm_status check(kvm_job *j, kvm_err *err)
{
    evaluation e = {.job = j};
    ptrdiff_t n;
    TRY(read_arms(&e, err));
    TRY(kvm_job_i64(j, "items", 0, 0, INT32_MAX, &n, err));
    return kvm_job_i64(j, "attention_items", 0, 0, KVM_MOST_ATTENTION_ITEMS, &n, err);
}

static const char *const inputs[] = {"translator", "mlp?", "distilled?", NULL};
static const char *const outputs[] = {"items", "figures", NULL};
const kvm_job_kind kvm_job_evaluate = {
    .id = KVM_JOB_EVALUATE,
    .inputs = inputs,
    .outputs = outputs,
    .params = params,
    .section = "evaluate",
    .run = run,
    .check = check,
};
