/* The same model in another form: with layers that predict further tokens, inside a
 * wrapper, with norms moved. What it says is the same to the last bit, or it is
 * refused. */
#include <stdio.h>
#include <string.h>

#include "models/safetensors.h"
#include "tests/support/open_checkpoint.h"

#define DIR "build/tmp/checkpoint_forms"
#define NEXT "\"num_nextn_predict_layers\": 1,"
#define MTP "\"mtp_num_hidden_layers\": 1,"

enum { SOME = 24, V = 97 };

/* logits of SOME tokens, and what is known of the model in DIR or elsewhere */
static kvm_model_info run(const char *path, float logits[SOME * V], char config[65])
{
    kvm_arena a = check_arena(1 << 27);
    kvm_err err = {0};
    kvm_compute *c;
    kvm_model *m;
    kvm_cache *cache;
    int32_t ids[SOME];
    const kvm_model_options o = {.no_tokenizer = true, .check_finite = true};
    for (int i = 0; i < SOME; i++) ids[i] = (int32_t)(i * 31 % V);
    check_ok(kvm_compute_new(&c, &a, kvm_backend_find(KVM_STR("cpu")), 1, &err), &err);
    check_ok(kvm_model_open(&m, &a, c, kvm_str_of(path), &o, &err), &err);
    check_ok(kvm_cache_new(&cache, &a, m, SOME, &err), &err);
    check_ok(kvm_model_forward(
                 m, cache, ids, SOME,
                 &(kvm_forward_options){.logits_last = SOME, .logits = logits}, &err),
             &err);
    const kvm_model_info info = *kvm_model_info_of(m);
    snprintf(config, 65, "%s", info.config_hash);
    kvm_arena_free(&a);
    return info;
}

/* a tensor on its way into DIR */
typedef struct form {
    kvm_st_spec spec;
    const void *data;
} form;

/* a golden model in DIR, its config begun with other members, each tensor in up to two
 * forms */
static void write_form(const char *model, const char *config,
                       int (*forms)(const kvm_st_tensor *t, form out[2], kvm_arena *a))
{
    enum { MOST = 640 };
    static kvm_st_spec specs[MOST];
    static form all[MOST];
    kvm_arena a = check_arena(1 << 24);
    kvm_err err = {0};
    kvm_st *st;
    kvm_st_writer *w;
    ptrdiff_t n = 0;
    check_tmpdir("checkpoint_forms");
    const kvm_str golden = kvm_str_fmt(&a, "tests/golden/models/%s", model);
    const kvm_str text =
        check_read(&a, kvm_str_fmt(&a, "%s/config.json", golden.at).at);
    check_write(DIR "/config.json",
                kvm_str_fmt(&a, "{%s%.*s", config,
                            KVM_STR_ARG(kvm_str_slice(text, 1, text.len))));
    check_ok(kvm_st_open(&st, &a, golden, &err), &err);
    for (ptrdiff_t i = 0; i < kvm_st_count(st); i++) {
        assert_true(n + 2 <= MOST);
        n += forms(kvm_st_at(st, i), all + n, &a);
    }
    for (ptrdiff_t i = 0; i < n; i++) specs[i] = all[i].spec;
    check_ok(
        kvm_st_begin(&w, &a, KVM_STR(DIR "/model.safetensors"), specs, n, NULL, &err),
        &err);
    for (ptrdiff_t i = 0; i < n; i++) {
        ptrdiff_t bytes = kvm_dtype_block_bytes(specs[i].dtype);
        for (int d = 0; d < specs[i].rank; d++) bytes *= specs[i].dim[d];
        check_ok(kvm_st_append(w, all[i].data, (size_t)bytes, &err), &err);
    }
    check_ok(kvm_st_publish(w, NULL, &err), &err);
    kvm_arena_free(&a);
}

static form same(const kvm_st_tensor *t)
{
    form f = {{.name = t->name, .dtype = t->t.dtype, .rank = t->t.rank}, t->t.data};
    memcpy(f.spec.dim, t->t.dim, sizeof f.spec.dim);
    return f;
}

/* what predicts further tokens: once more the last layer, under the name it has
 * there */
static const char *last_layer, *further;

static int with_further(const kvm_st_tensor *t, form out[2], kvm_arena *a)
{
    out[0] = same(t);
    const kvm_str from = kvm_str_of(last_layer);
    if (!kvm_str_starts(t->name, from)) return 1;
    kvm_str what = kvm_str_slice(t->name, from.len, t->name.len);
    if (kvm_str_eq(what, KVM_STR("input_layernorm.weight"))) /* by which it is known */
        what = KVM_STR("eh_proj.weight");
    out[1] = out[0];
    out[1].spec.name = kvm_str_fmt(a, "%s%.*s", further, KVM_STR_ARG(what));
    assert_non_null(out[1].spec.name.at);
    return 2;
}

/* Layers that predict further tokens are no part of the model that runs here: it is the
 * same with and without them, but for the bytes of its file. */
static void further_layers(void **state)
{
    (void)state;
    static const struct {
        const char *model, *last, *further, *config;
    } models[] = {
        {"deepseek_v3", "model.layers.2.", "model.layers.3.", ""},
        {"deepseek_v32", "model.layers.2.", "model.layers.3.", NEXT},
        {"glm_moe_dsa", "model.layers.2.", "model.layers.3.", NEXT},
        {"qwen3_next", "model.layers.3.", "mtp.layers.0.", ""},
        {"qwen3_5", "model.layers.3.", "mtp.layers.0.", MTP},
        {"qwen3_5_moe", "model.layers.3.", "mtp.layers.0.", MTP},
        {"qwen4_exp", "model.layers.3.", "mtp.layers.0.", MTP},
    };
    static float alone[SOME * V], beside[SOME * V];
    for (size_t i = 0; i < COUNT(models); i++) {
        kvm_arena a = check_arena(1 << 16);
        char hash[2][65];
        last_layer = models[i].last, further = models[i].further;
        write_form(models[i].model, models[i].config, with_further);
        const kvm_str golden =
            kvm_str_fmt(&a, "tests/golden/models/%s", models[i].model);
        const kvm_model_info x = run(golden.at, alone, hash[0]);
        const kvm_model_info y = run(DIR, beside, hash[1]);
        assert_memory_equal(alone, beside, sizeof alone);
        assert_string_equal(hash[0], hash[1]);
        assert_int_equal(x.layers, y.layers);
        assert_int_equal(x.objects, y.objects);
        assert_int_equal(x.parameters, y.parameters);
        assert_int_equal(x.weight_bytes, y.weight_bytes);
        kvm_arena_free(&a);
    }
}

static int inside_a_wrapper(const kvm_st_tensor *t, form out[2], kvm_arena *a)
{
    out[0] = same(t);
    out[0].spec.name = kvm_str_fmt(a, "language_model.%.*s", KVM_STR_ARG(t->name));
    return 1;
}

/* Nemotron VL as published: llm_config, and every name behind language_model. */
static void wrapped(void **state)
{
    (void)state;
    static float alone[SOME * V], inside[SOME * V];
    char hash[2][65];
    kvm_arena a = check_arena(1 << 20);
    const kvm_str golden = KVM_STR("tests/golden/models/nemotron_h-published");
    const kvm_model_info x = run(golden.at, alone, hash[0]);
    write_form("nemotron_h-published", "", inside_a_wrapper);
    const kvm_str text = check_read(&a, DIR "/config.json");
    check_write(
        DIR "/config.json",
        kvm_str_fmt(&a, "{\"model_type\":\"NemotronH_Nano_VL_V2\",\"llm_config\":%.*s}",
                    KVM_STR_ARG(text)));
    const kvm_model_info y = run(DIR, inside, hash[1]);
    assert_memory_equal(alone, inside, sizeof alone);
    assert_int_equal(x.parameters, y.parameters);
    kvm_arena_free(&a);
}

static float add; /* to norms */

static int with_norms_moved(const kvm_st_tensor *t, form out[2], kvm_arena *a)
{
    kvm_err err = {0};
    out[0] = same(t);
    if (kvm_str_find(t->name, KVM_STR("norm")) < 0 ||
        kvm_str_find(t->name, KVM_STR("linear_attn")) >= 0)
        return 1;
    const ptrdiff_t n = kvm_tensor_count(&t->t);
    float *x = kvm_new(a, float, n);
    check_ok(kvm_widen_row(x, t->t.data, t->t.dtype, n, &err), &err);
    for (ptrdiff_t i = 0; i < n; i++) x[i] += add;
    out[0].spec.dtype = KVM_F32;
    out[0].data = x;
    return 1;
}

/* norms to which one has been added are known by the lowest mean; what may be either is
 * refused, and families that add nothing take any */
static void moved_norms(void **state)
{
    (void)state;
    static const char *const models[] = {"qwen3_5", "qwen3_next", "qwen4_exp"};
    static float alone[SOME * V], moved[SOME * V];
    char hash[2][65];
    for (size_t i = 0; i < COUNT(models); i++) {
        kvm_arena a = check_arena(1 << 16);
        kvm_err err = {0};
        run(kvm_str_fmt(&a, "tests/golden/models/%s", models[i]).at, alone, hash[0]);
        add = 1;
        write_form(models[i], "", with_norms_moved);
        run(DIR, moved, hash[1]);
        assert_memory_equal(alone, moved, sizeof alone);
        add = 0.5f;
        write_form(models[i], "", with_norms_moved);
        check_status(KVM_MISMATCH, open_model(DIR, true, NULL, NULL, &err), &err);
        check_contains(err.msg, "norm weights are 0.");
        add = 2.5f, err = (kvm_err){0};
        write_form(models[i], "", with_norms_moved);
        check_status(KVM_MISMATCH, open_model(DIR, true, NULL, NULL, &err), &err);
        check_contains(err.msg, "norm weights are 2.");
        kvm_arena_free(&a);
    }
    kvm_err err = {0};
    add = -0.5f;
    write_form("llama", "", with_norms_moved);
    check_ok(open_model(DIR, true, NULL, NULL, &err), &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(further_layers),
        cmocka_unit_test(wrapped),
        cmocka_unit_test(moved_norms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
