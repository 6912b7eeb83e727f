#include "jobs/attention_quality.h"

#include <string.h>

#include "jobs/open.h"
#include "translators/quality.h"

/* Queries of every layer with attention, kept while the target reads. */
typedef struct queries {
    const kvm_model *model;
    float **of; /* (layers), each (tokens, Hq*D); NULL: no attention */
} queries;

static kvm_status keep_queries(void *ctx, ptrdiff_t layer, ptrdiff_t first, ptrdiff_t n,
                               const float *q, const float *out, kvm_err *err)
{
    (void)out;
    (void)err;
    queries *k = ctx;
    kvm_attended a;
    if (!kvm_model_attended(k->model, layer, &a)) return KVM_OK;
    const ptrdiff_t width = a.query_heads * a.dim;
    memcpy(k->of[layer] + first * width, q, (size_t)(n * width) * sizeof *q);
    return KVM_OK;
}

static kvm_status compare_layer(kvm_arm_caches *a, const kvm_attended *at,
                                const float *q, ptrdiff_t layer, kvm_quality *out,
                                kvm_arena scratch, kvm_err *err)
{
    const ptrdiff_t n = kvm_cache_length(a->target_prefix);
    const ptrdiff_t kw = at->kv_heads * at->dim, vw = at->kv_heads * at->value_dim;
    float *k = kvm_new_raw(&scratch, float, n *kw),
          *v = kvm_new_raw(&scratch, float, n *vw);
    float *km = kvm_new_raw(&scratch, float, n *kw),
          *vm = kvm_new_raw(&scratch, float, n *vw);
    if (!k || !v || !km || !vm) return kvm_nomem(err, &scratch);
    TRY(kvm_cache_attended(a->target_prefix, layer, k, v, err));
    TRY(kvm_cache_attended(a->target_work, layer, km, vm, err));
    const kvm_quality_input in = {
        .q = q,
        .k = k,
        .v = v,
        .k_map = km,
        .v_map = vm,
        .n = n,
        .context = n,
        .first = 0,
        .query_heads = at->query_heads,
        .kv_heads = at->kv_heads,
        .dim = at->dim,
        .value_dim = at->value_dim,
        .window = at->window,
        .scale = at->scale,
    };
    return kvm_quality_layer(kvm_model_compute(a->target), &in, out, scratch, err);
}

static kvm_status compare_item(kvm_arm_caches *a, kvm_arm arm, const queries *q,
                               kvm_quality *of /* (layers) */, kvm_arena scratch,
                               kvm_err *err)
{
    kvm_model *m;
    kvm_cache *cache;
    TRY(kvm_arm_fill(a, arm, &m, &cache, err));
    for (ptrdiff_t l = 0; l < kvm_model_info_of(a->target)->layers; l++) {
        kvm_attended at;
        if (!kvm_model_attended(a->target, l, &at)) continue;
        TRY(compare_layer(a, &at, q->of[l], l, &of[l], scratch, err));
    }
    return KVM_OK;
}

static kvm_status publish(kvm_job *j, kvm_arm arm, const kvm_quality_sum *sums,
                          ptrdiff_t layers, json_t *attention, kvm_err *err)
{
    json_t *list = json_array();
    json_object_set_new(attention, kvm_arms[arm].key, list);
    for (ptrdiff_t l = 0; l < layers; l++) {
        if (sums[l].count == 0) continue; /* no attention */
        const kvm_quality q = kvm_quality_mean(&sums[l]);
        json_t *row =
            json_pack("{s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "layer",
                      (json_int_t)l, "cosine", q.cosine, "cosine_worst", q.cosine_worst,
                      "c_k", q.c_k, "c_k_raw", q.c_k_raw, "c_v", q.c_v, "c_v_raw",
                      q.c_v_raw, "r2_k", q.r2_k, "r2_v", q.r2_v);
        if (!row)
            return kvm_fail(err, KVM_NAN, "layer %td: attention quality is not finite",
                            l);
        json_array_append_new(list, row);
        const char *name;
        json_t *value;
        json_object_foreach(row, name, value)
        {
            if (!json_is_real(value)) continue;
            json_t *labels = json_pack("{s:s, s:I}", "arm", kvm_arms[arm].key, "layer",
                                       (json_int_t)l);
            const kvm_status s =
                j->host->metric(j, name, json_real_value(value), labels, err);
            json_decref(labels);
            TRY(s);
        }
    }
    return KVM_OK;
}

static kvm_status read_queries(kvm_arm_caches *a, queries *q, const kvm_item_ids *ids,
                               kvm_arena *scratch, kvm_err *err)
{
    const ptrdiff_t layers = kvm_model_info_of(a->target)->layers;
    *q = (queries){.model = a->target};
    q->of = kvm_new(scratch, float *, layers);
    if (!q->of) return kvm_nomem(err, scratch);
    for (ptrdiff_t l = 0; l < layers; l++) {
        kvm_attended at;
        if (!kvm_model_attended(a->target, l, &at)) continue;
        q->of[l] = kvm_new_raw(scratch, float, ids->prefix_n *at.query_heads *at.dim);
        if (!q->of[l]) return kvm_nomem(err, scratch);
    }
    const kvm_capture sink = {.attention = keep_queries, .ctx = q};
    TRY(kvm_arm_caches_prefill(a, ids->prefix, ids->prefix, ids->prefix_n, err));
    kvm_cache_clear(a->target_prefix);
    return kvm_model_forward(a->target, a->target_prefix, ids->prefix, ids->prefix_n,
                             &(kvm_forward_options){.capture = &sink}, err);
}

static bool is_translator(const kvm_arm_caches *a, kvm_arm arm)
{
    return kvm_arms[arm].group == KVM_ARM && !kvm_arm_absent(a, arm);
}

/* of (n, arms, layers): each rank its items, then all ranks all of them */
static kvm_status compare_items(kvm_job *j, kvm_arm_caches *a, const kvm_item_ids *ids,
                                ptrdiff_t n, kvm_quality *of, kvm_err *err)
{
    const ptrdiff_t layers = kvm_model_info_of(a->target)->layers;
    const ptrdiff_t each = KVM_ARM_COUNT * layers;
    kvm_arena scratch = {0};
    TRY(kvm_arena_reserve(&scratch, (size_t)32 << 30, err));
    kvm_status s = KVM_OK;
    for (ptrdiff_t i = 0; !s && i < n; i++) {
        queries q;
        if (!kvm_team_mine(j->team, i)) continue;
        kvm_progress_at(j->progress, (double)i, (double)n, "items (attention)");
        s = read_queries(a, &q, &ids[i], &scratch, err);
        for (kvm_arm arm = 0; !s && arm < KVM_ARM_COUNT; arm++)
            if (is_translator(a, arm))
                s = compare_item(a, arm, &q, of + i * each + arm * layers, scratch,
                                 err);
        kvm_arena_reset(&scratch);
    }
    kvm_arena_free(&scratch);
    if (s) return s;
    return kvm_team_unite(j->team, of, n * each * (ptrdiff_t)sizeof *of, err);
}

static void add_items(const kvm_arm_caches *a, const kvm_quality *of, ptrdiff_t n,
                      kvm_quality_sum *sums)
{
    const ptrdiff_t layers = kvm_model_info_of(a->target)->layers;
    for (ptrdiff_t i = 0; i < n; i++)
        for (kvm_arm arm = 0; arm < KVM_ARM_COUNT; arm++)
            for (ptrdiff_t l = 0; l < layers; l++) {
                const ptrdiff_t at = arm * layers + l;
                kvm_attended attended;
                if (is_translator(a, arm) &&
                    kvm_model_attended(a->target, l, &attended))
                    kvm_quality_add(&sums[at], &of[i * KVM_ARM_COUNT * layers + at]);
            }
}

kvm_status kvm_attention_quality(kvm_job *j, kvm_arm_caches *a, const kvm_item_ids *ids,
                                 ptrdiff_t n, json_t *figures, kvm_err *err)
{
    const ptrdiff_t layers = kvm_model_info_of(a->target)->layers;
    ptrdiff_t wanted;
    TRY(kvm_job_i64(j, "attention_items", 0, 0, KVM_MOST_ATTENTION_ITEMS, &wanted,
                    err));
    if (wanted == 0) return KVM_OK;
    kvm_quality_sum *sums = kvm_new(j->keep, kvm_quality_sum, KVM_ARM_COUNT * layers);
    n = wanted < n ? wanted : n;
    kvm_quality *of = kvm_new(j->keep, kvm_quality, n * KVM_ARM_COUNT * layers);
    if (!sums || !of) return kvm_nomem(err, j->keep);
    TRY(compare_items(j, a, ids, n, of, err));
    add_items(a, of, n, sums);
    json_t *attention = json_object();
    json_object_set_new(figures, "attention", attention);
    for (kvm_arm arm = 0; arm < KVM_ARM_COUNT; arm++)
        if (is_translator(a, arm))
            TRY(publish(j, arm, sums + arm * layers, layers, attention, err));
    return KVM_OK;
}
