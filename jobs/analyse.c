/* analyse.c - where in a translated cache the information is: one suite, and caches put
 * together out of the translated one, the target's own and nothing (analyse_caches.h).
 *
 * Scored like an evaluation's arms, on the same items, so that every difference is a
 * paired one (scored.h). Output "figures" says which caches there were: "caches":
 * [{"cache": its name in the scores, "group": "swap" | "split" | "tail", "title",
 * "layer" or "share"}], and "translator": whose cache was taken apart. Where the target
 * has indexers, scores of the native cache, the translated one, and both with each
 * other's index keys have "overlap" and "needle" besides (selection.h), where they are
 * defined. */
#include <math.h>

#include "jobs/analyse_caches.h"
#include "jobs/open.h"
#include "jobs/params.h"
#include "jobs/scored.h"
#include "jobs/selection.h"

static const kvm_field params[] = {
    KVM_ANALYSE_PARAMS,
    KVM_PAIR_PARAMS,
    KVM_SCORED_PARAMS,
    {0},
};

typedef struct analysis {
    kvm_job *job;
    kvm_model *source, *target;
    kvm_scored scored;
    kvm_arm arm; /* the translator */
    kvm_analyse_caches caches;
    float *native_logits; /* of a perplexity suite; else NULL */
    kvm_encoder *encoder; /* of answers */
} analysis;

static kvm_status read_tails(kvm_tails *t, kvm_job *j, kvm_err *err)
{
    return kvm_tails_read(t, j->params, j->keep, kvm_default_tails, KVM_DEFAULT_TAILS,
                          err);
}

static kvm_status open_caches(analysis *a, const kvm_tails *tails, kvm_err *err)
{
    kvm_job *j = a->job;
    const kvm_items *items = &a->scored.items;
    const kvm_job_input *distilled = kvm_job_find_input(j, "distilled"), *in;
    kvm_translator *t = kvm_new(j->keep, kvm_translator, 1);
    ptrdiff_t after = 1;
    if (!t) return kvm_nomem(err, j->keep);
    TRY(kvm_job_need_input(j, distilled ? "distilled" : "translator", &in, err));
    TRY(kvm_translator_open(t, j->keep, in->path, err));
    a->arm = distilled ? KVM_ARM_DISTILLED : KVM_ARM_CLOSED_FORM;
    TRY(kvm_encoder_new(&a->encoder, j->keep, kvm_model_tokenizer(a->target), err));
    TRY(kvm_analyse_caches_new(&a->caches, j->keep, t, a->arm, a->source, a->target,
                               tails, items->longest, err));
    if (a->scored.suite->kind != KVM_SUITE_PERPLEXITY) return KVM_OK;
    for (ptrdiff_t i = 0; i < items->n; i++)
        if (items->ids[i].after_n[0] > after) after = items->ids[i].after_n[0];
    a->native_logits =
        kvm_new_raw(j->keep, float, after *kvm_model_info_of(a->target)->vocab);
    return a->native_logits ? KVM_OK : kvm_nomem(err, j->keep);
}

/* what an item asks, and what is chosen of it natively */
typedef struct choosing {
    kvm_asking asking;
    kvm_selection native;
} choosing;

static void put_share(kvm_figures *f, const char *name, double x)
{
    if (isfinite(x)) kvm_figures_put(f, name, x);
}

/* what indexers choose on cache k, which is filled once more */
static kvm_status put_choice(analysis *a, ptrdiff_t k, choosing *c, kvm_figures *f,
                             kvm_arena *scratch, kvm_err *err)
{
    kvm_cache *cache;
    kvm_selection s;
    if (!a->caches.cache[k].chooses) return KVM_OK;
    TRY(kvm_analyse_fill(&a->caches, k, &cache, err));
    TRY(kvm_selection_take(&s, scratch, a->target, cache, &c->asking, err));
    if (k == KVM_ANALYSE_NATIVE)
        c->native = s;
    else
        put_share(f, "overlap", kvm_selection_overlap(&c->native, &s));
    put_share(f, "needle", kvm_selection_needle(&c->native, &s, &c->asking));
    return KVM_OK;
}

static kvm_status score_one(void *ctx, ptrdiff_t i, json_t *line, kvm_arena *scratch,
                            kvm_err *err)
{
    analysis *a = ctx;
    const kvm_item_ids *ids = &a->scored.items.ids[i];
    choosing c;
    TRY(kvm_asking_of(&c.asking, scratch, a->encoder, kvm_model_tokenizer(a->target),
                      a->scored.suite, kvm_scored_item(&a->scored, i), ids, err));
    TRY(kvm_analyse_prefill(&a->caches, ids->prefix, ids->prefix_n, err));
    for (ptrdiff_t k = 0; k < a->caches.count; k++) {
        kvm_cache *cache;
        kvm_figures f;
        TRY(kvm_analyse_fill(&a->caches, k, &cache, err));
        TRY(kvm_score_item(&f, a->scored.suite, kvm_scored_item(&a->scored, i), ids,
                           a->target, cache, k == KVM_ANALYSE_NATIVE, a->native_logits,
                           kvm_model_info_of(a->target)->vocab, scratch, NULL, err));
        TRY(put_choice(a, k, &c, &f, scratch, err));
        TRY(kvm_scored_put(&a->scored, i, a->caches.cache[k].name.at, &f, line, err));
    }
    return KVM_OK;
}

static kvm_status finish(analysis *a, kvm_err *err)
{
    json_t *figures;
    TRY(kvm_scored_card(&a->scored, kvm_model_compute(a->target), &figures, err));
    json_object_set_new(figures, "translator", json_string(kvm_arms[a->arm].key));
    json_object_set_new(figures, "caches", kvm_analyse_caches_json(&a->caches));
    TRY(kvm_job_put_json(a->job, "figures", "figures.json", figures, err));
    return a->job->host->output(a->job, "items", a->scored.path, err);
}

static kvm_status run(kvm_job *j, kvm_err *err)
{
    analysis a = {.job = j};
    kvm_compute *c;
    kvm_tails tails;
    TRY(read_tails(&tails, j, err));
    TRY(kvm_job_compute(j, &c, err));
    TRY(kvm_job_model(j, c, "source", &a.source, err));
    TRY(kvm_job_model(j, c, "target", &a.target, err));
    TRY(kvm_scored_open(&a.scored, j, kvm_model_tokenizer(a.target), KVM_HOLDS_ITEMS,
                        err));
    TRY(open_caches(&a, &tails, err));
    TRY(kvm_scored_resume(&a.scored, err));
    TRY(kvm_scored_all(&a.scored, score_one, &a, err));
    return finish(&a, err);
}

static kvm_status check(kvm_job *j, kvm_err *err)
{
    kvm_tails tails;
    ptrdiff_t n;
    TRY(kvm_job_i64(j, "items", 0, 0, INT32_MAX, &n, err));
    return read_tails(&tails, j, err);
}

static const char *const inputs[] = {"translator", "distilled?", NULL};
static const char *const outputs[] = {"items", "figures", NULL};
const kvm_job_kind kvm_job_analyse = {
    .id = KVM_JOB_ANALYSE,
    .inputs = inputs,
    .outputs = outputs,
    .params = params,
    .section = "analyse",
    .run = run,
    .check = check,
};
