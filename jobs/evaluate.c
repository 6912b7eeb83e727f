/* evaluate.c - score one suite on every anchor and control, item by item.
 *
 * Output "items" holds the lines of scored.h, each with "bos": begin-of-text ids in its
 * prefix, "donor": the item whose prefix was the wrong one (null: none), and "said":
 * what was generated. Scores of answers have "first_agreement" besides: the first token
 * is that of the target's own answer. */
#include <string.h>

#include "jobs/arm_caches.h"
#include "jobs/attention_quality.h"
#include "jobs/open.h"
#include "jobs/params.h"
#include "jobs/scored.h"

static const kvm_field params[] = {
    KVM_EVALUATE_PARAMS,
    /* filled in by the graph */
    KVM_PAIR_PARAMS,
    KVM_SCORED_PARAMS,
    {"arms", KVM_FIELD_LIST, false, "arms to score besides native; absent: all", NULL,
     KVM_FIELD_STR},
    {0},
};

typedef struct evaluation {
    kvm_job *job;
    kvm_model *source, *target;
    kvm_scored scored;
    ptrdiff_t *donor; /* (items) the item whose prefix is the wrong one; -1: none */
    kvm_arm_caches caches;
    bool wanted[KVM_ARM_COUNT];
    float *native_logits;
} evaluation;

/* The next item with a text of its own: one prefix that begins the other (questions on
 * one story, the turns of one conversation) would be the right donor in part. */
static kvm_status choose_donors(evaluation *e, kvm_err *err)
{
    e->donor = kvm_new(e->job->keep, ptrdiff_t, e->scored.items.n);
    if (!e->donor) return kvm_nomem(err, e->job->keep);
    for (ptrdiff_t i = 0; i < e->scored.items.n; i++) {
        e->donor[i] = -1;
        for (ptrdiff_t step = 1; step < e->scored.items.n && e->donor[i] < 0; step++) {
            const ptrdiff_t other = (i + step) % e->scored.items.n;
            if (!kvm_item_same_prefix(&e->scored.items.ids[i],
                                      &e->scored.items.ids[other]))
                e->donor[i] = other;
        }
        e->caches.no_donor |= e->donor[i] < 0;
    }
    return KVM_OK;
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
    return kvm_arm_caches_take(&e->caches, e->job->keep, e->scored.items.longest, err);
}

static kvm_status open_caches(evaluation *e, kvm_err *err)
{
    ptrdiff_t longest_after = 1;
    for (ptrdiff_t i = 0; i < e->scored.items.n; i++) {
        const kvm_item_ids *ids = &e->scored.items.ids[i];
        if (ids->after_count && ids->after_n[0] > longest_after)
            longest_after = ids->after_n[0];
    }
    TRY(kvm_arm_caches_new(&e->caches, e->job->keep, e->source, e->target,
                           e->scored.items.longest, err));
    if (e->scored.suite->kind == KVM_SUITE_PERPLEXITY) {
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
    const kvm_item_ids *mine = &e->scored.items.ids[i];
    const kvm_item_ids *other = &e->scored.items.ids[e->donor[i] < 0 ? i : e->donor[i]];
    int32_t *ids = kvm_new(scratch, int32_t, mine->prefix_n);
    if (!ids) return kvm_nomem(err, scratch);
    for (ptrdiff_t t = 0; t < mine->prefix_n; t++)
        ids[t] = other->prefix[t % other->prefix_n];
    *donor = ids;
    return KVM_OK;
}

static bool generates(const kvm_suite *s)
{
    return s->kind == KVM_SUITE_GENERATION || s->kind == KVM_SUITE_NEEDLE;
}

static kvm_status score_arms(evaluation *e, ptrdiff_t i, json_t *line, json_t *said,
                             kvm_arena *scratch, kvm_err *err)
{
    const kvm_item *item = kvm_scored_item(&e->scored, i);
    int32_t first = -1; /* token of the target's own answer */
    for (kvm_arm arm = 0; arm < KVM_ARM_COUNT; arm++) {
        if (!e->wanted[arm] || kvm_arm_absent(&e->caches, arm)) continue;
        kvm_model *m;
        kvm_cache *cache;
        kvm_figures f;
        kvm_answer heard;
        TRY(kvm_arm_fill(&e->caches, arm, &m, &cache, err));
        TRY(kvm_score_item(&f, e->scored.suite, item, &e->scored.items.ids[i], m, cache,
                           arm == KVM_ARM_NATIVE, e->native_logits,
                           kvm_model_info_of(e->target)->vocab, scratch, &heard, err));
        const int32_t begins = heard.n ? heard.ids[0] : -1;
        if (arm == KVM_ARM_NATIVE) first = begins; /* it is the first of them */
        if (generates(e->scored.suite))
            kvm_figures_put(&f, "first_agreement", begins == first);
        TRY(kvm_scored_put(&e->scored, i, kvm_arms[arm].key, &f, line, err));
        /* generated bytes may end inside a character: jansson then refuses them */
        if (heard.text.len)
            json_object_set_new(said, kvm_arms[arm].key,
                                json_stringn(heard.text.at, (size_t)heard.text.len));
    }
    return KVM_OK;
}

/* more than one says that a prompt brought its own, and is then another prompt */
static ptrdiff_t count_bos(const evaluation *e, const kvm_item_ids *ids)
{
    ptrdiff_t n = 0;
    for (ptrdiff_t t = 0; t < ids->prefix_n; t++)
        n += e->scored.items.bos >= 0 && ids->prefix[t] == e->scored.items.bos;
    return n;
}

static json_t *donor_json(const evaluation *e, ptrdiff_t i)
{
    if (e->donor[i] < 0) return json_null();
    const kvm_str id = kvm_scored_item(&e->scored, e->donor[i])->id;
    return json_stringn(id.at, (size_t)id.len);
}

static kvm_status score_one(void *ctx, ptrdiff_t i, json_t *line, kvm_arena *scratch,
                            kvm_err *err)
{
    evaluation *e = ctx;
    const kvm_item_ids *ids = &e->scored.items.ids[i];
    json_t *said = json_object();
    int32_t *donor;
    json_object_set_new(line, "bos", json_integer(count_bos(e, ids)));
    json_object_set_new(line, "donor", donor_json(e, i));
    json_object_set_new(line, "said", said);
    TRY(donor_ids(e, i, scratch, &donor, err));
    TRY(kvm_arm_caches_prefill(&e->caches, ids->prefix, donor, ids->prefix_n, err));
    return score_arms(e, i, line, said, scratch, err);
}

static json_t *absent_arms(const evaluation *e)
{
    json_t *absent = json_object();
    for (kvm_arm arm = 0; arm < KVM_ARM_COUNT; arm++)
        if (kvm_arm_absent(&e->caches, arm))
            json_object_set_new(absent, kvm_arms[arm].key,
                                json_string(kvm_arm_absent(&e->caches, arm)));
    return absent;
}

static kvm_status finish(evaluation *e, kvm_err *err)
{
    json_t *figures;
    TRY(kvm_scored_card(&e->scored, kvm_model_compute(e->target), &figures, err));
    json_object_set_new(figures, "absent", absent_arms(e));
    TRY(kvm_attention_quality(e->job, &e->caches, e->scored.items.ids,
                              e->scored.items.n, figures, err));
    TRY(kvm_job_put_json(e->job, "figures", "figures.json", figures, err));
    return e->job->host->output(e->job, "items", e->scored.path, err);
}

static kvm_status run(kvm_job *j, kvm_err *err)
{
    evaluation e = {.job = j};
    kvm_compute *c;
    TRY(kvm_job_compute(j, &c, err));
    TRY(kvm_job_model(j, c, "source", &e.source, err));
    TRY(kvm_job_model(j, c, "target", &e.target, err));
    TRY(read_arms(&e, err));
    TRY(kvm_scored_open(&e.scored, j, kvm_model_tokenizer(e.target), KVM_HOLDS_ITEMS,
                        err));
    TRY(open_caches(&e, err));
    TRY(choose_donors(&e, err));
    TRY(kvm_scored_resume(&e.scored, err));
    TRY(kvm_scored_all(&e.scored, score_one, &e, err));
    return finish(&e, err);
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
