/* models.h - the tiny models of tests/golden/models/make.py, each opened on a backend
 * beside what PyTorch expects of it. All in the header, for the tests of one pass. */
#ifndef KVM_TESTS_GOLDEN_MODELS_H
#define KVM_TESTS_GOLDEN_MODELS_H

#include <math.h>
#include <stdio.h>

#include "models/model.h"
#include "models/safetensors.h"
#include "tests/support/check.h"

#define ROOT "tests/golden/models/"

typedef struct golden {
    const char *model, *expect, *family;
    bool tied;
    ptrdiff_t layers;
} golden;
/* -published: the same model under other names of tensors and fields */
static const golden cases[] = {
    {ROOT "llama", ROOT "llama/expect.safetensors", "llama", false, 3},
    {ROOT "qwen2", ROOT "qwen2/expect.safetensors", "qwen2", true, 2},
    {ROOT "qwen3", ROOT "qwen3/expect.safetensors", "qwen3", false, 2},
    {ROOT "qwen3-tied", ROOT "qwen3-tied/expect.safetensors", "qwen3", true, 2},
    {ROOT "ministral3", ROOT "ministral3/expect.safetensors", "ministral3", false, 3},
    {ROOT "mistral3", ROOT "mistral3/expect.safetensors", "ministral3", true, 2},
    {ROOT "deepseek_v3", ROOT "deepseek_v3/expect.safetensors", "deepseek_v3", false,
     3},
    {ROOT "deepseek_v3-groups", ROOT "deepseek_v3-groups/expect.safetensors",
     "deepseek_v3", false, 3},
    {ROOT "qwen3_5", ROOT "qwen3_5/expect.safetensors", "qwen3_5", false, 4},
    {ROOT "qwen3_5_moe", ROOT "qwen3_5_moe/expect.safetensors", "qwen3_5_moe", false,
     4},
    {ROOT "qwen3_next", ROOT "qwen3_next/expect.safetensors", "qwen3_next", false, 4},
    {ROOT "qwen3_moe", ROOT "qwen3_moe/expect.safetensors", "qwen3_moe", false, 2},
    {ROOT "kimi_linear", ROOT "kimi_linear/expect.safetensors", "kimi_linear", false,
     4},
    {ROOT "kimi_linear-published", ROOT "kimi_linear/expect.safetensors", "kimi_linear",
     false, 4},
    {ROOT "deepseek_v32", ROOT "deepseek_v32/expect.safetensors", "deepseek_v32", false,
     3},
    {ROOT "glm_moe_dsa", ROOT "glm_moe_dsa/expect.safetensors", "glm_moe_dsa", false,
     3},
    {ROOT "qwen4_exp", ROOT "qwen4_exp/expect.safetensors", "qwen4_exp", false, 4},
    {ROOT "nemotron_h", ROOT "nemotron_h/expect.safetensors", "nemotron_h", false, 7},
    {ROOT "nemotron_h-published", ROOT "nemotron_h/expect.safetensors", "nemotron_h",
     false, 7},
    {ROOT "nemotron_h-dense", ROOT "nemotron_h-dense/expect.safetensors", "nemotron_h",
     false, 4},
    {ROOT "glm5_next", ROOT "glm5_next/expect.safetensors", "glm5_next", false, 4},
    {ROOT "glm5_next-published", ROOT "glm5_next/expect.safetensors", "glm5_next",
     false, 4},
    {ROOT "deepseek_v3-fp8", ROOT "deepseek_v3-fp8/expect.safetensors", "deepseek_v3",
     false, 2},
    {ROOT "qwen3_next-fp8", ROOT "qwen3_next-fp8/expect.safetensors", "qwen3_next",
     false, 2},
    {ROOT "qwen4_exp-fp8", ROOT "qwen4_exp-fp8/expect.safetensors", "qwen4_exp", false,
     3},
    {ROOT "ministral3-fp8", ROOT "ministral3-fp8/expect.safetensors", "ministral3",
     false, 2},
    {ROOT "qwen3-fp8", ROOT "qwen3-fp8/expect.safetensors", "qwen3", false, 2},
    {ROOT "llama-mixed.gguf", ROOT "llama-mixed.expect.safetensors", "llama", false, 2},
    {ROOT "llama-k.gguf", ROOT "llama-k.expect.safetensors", "llama", true, 1},
    {ROOT "mistral3.gguf", ROOT "mistral3.expect.safetensors", "ministral3", false, 2},
};

enum { V = 97, T = 53 }; /* logits, tokens of a pass */

/* where the logits of token t lie */
static inline ptrdiff_t at(ptrdiff_t t)
{
    return t * V;
}

typedef struct run {
    const golden *g;
    kvm_arena keep;
    kvm_st *expect;
    kvm_model *model;
    const kvm_model_info *info;
    const int32_t *ids;  /* (T) */
    const float *logits; /* (T,V) expected */
} run;

static inline const kvm_st_tensor *want(const run *r, const char *name, ptrdiff_t layer)
{
    char full[48];
    if (layer < 0)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "%s.%td", name, layer);
    return kvm_st_find(r->expect, kvm_str_of(full));
}

static inline run start_on(const golden *g, const kvm_backend *b)
{
    kvm_err err = {0};
    kvm_compute *c;
    run r = {.g = g, .keep = check_arena((size_t)1 << 30)};
    assert_non_null(b);
    check_ok(kvm_compute_new(&c, &r.keep, b, 2, &err), &err);
    const kvm_model_options o = {.no_tokenizer = true, .check_finite = true};
    check_ok(kvm_model_open(&r.model, &r.keep, c, kvm_str_of(g->model), &o, &err),
             &err);
    check_ok(kvm_st_open(&r.expect, &r.keep, kvm_str_of(g->expect), &err), &err);
    r.info = kvm_model_info_of(r.model);
    r.ids = want(&r, "ids", -1)->t.data;
    r.logits = want(&r, "logits", -1)->t.data;
    return r;
}

static inline run start(const golden *g, const char *backend)
{
    return start_on(g, kvm_backend_find(kvm_str_of(backend)));
}

static inline kvm_cache *fresh(run *r)
{
    kvm_err err = {0};
    kvm_cache *c;
    check_ok(kvm_cache_new(&c, &r->keep, r->model, 100, &err), &err);
    return c;
}

/* largest difference over the largest expected magnitude */
static inline double worst(const float *got, const float *expected, ptrdiff_t n)
{
    double diff = 0, most = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        const double d = fabs((double)got[i] - (double)expected[i]);
        if (!(d <= diff)) diff = d;
        most = fmax(most, fabs((double)expected[i]));
    }
    return diff / most;
}

#define check_close(r, what, got, expected, n, tolerance)                              \
    do {                                                                               \
        const double w_ = worst(got, expected, n);                                     \
        if (!(w_ <= (tolerance)))                                                      \
            fail_msg("%s: %s differs by %.2e of its largest (%.0e allowed)",           \
                     (r)->g->model, what, w_, tolerance);                              \
    } while (0)

#endif
