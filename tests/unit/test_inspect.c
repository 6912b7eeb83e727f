/* What `kvmill models inspect` knows of a model. */
#include <math.h>
#include <string.h>

#include "models/inspect.h"
#include "tests/support/check.h"

static const json_t *at(const json_t *v, const char *path)
{
    char copy[128];
    strncpy(copy, path, sizeof copy - 1);
    copy[sizeof copy - 1] = 0;
    for (char *key = copy, *next; v && key; key = next) {
        next = strchr(key, '.');
        if (next) *next++ = 0;
        v = json_is_array(v) ? json_array_get(v, (size_t)(*key - '0'))
                             : json_object_get(v, key);
    }
    assert_non_null(v);
    return v;
}

static json_t *inspect(kvm_arena *a, const char *path)
{
    kvm_err err = {0};
    kvm_compute *c;
    kvm_model *m;
    json_t *v;
    const kvm_model_options o = {.no_tokenizer = true};
    check_ok(kvm_compute_new(&c, a, kvm_backend_find(KVM_STR("ref")), 1, &err), &err);
    check_ok(kvm_model_open(&m, a, c, kvm_str_of(path), &o, &err), &err);
    check_ok(kvm_model_inspect(&v, a, m, &err), &err);
    return v;
}

static void check_int(const json_t *v, const char *path, json_int_t expected)
{
    assert_true(json_is_integer(at(v, path)));
    assert_int_equal(json_integer_value(at(v, path)), expected);
}

static void check_text(const json_t *v, const char *path, const char *expected)
{
    assert_true(json_is_string(at(v, path)));
    assert_string_equal(json_string_value(at(v, path)), expected);
}

static void normed_keys(void **state)
{
    (void)state;
    kvm_arena a = check_arena(1 << 26);
    const json_t *v = inspect(&a, "tests/golden/models/qwen3");
    check_text(v, "model.family", "qwen3");
    check_text(v, "model.weight_dtype", "BF16");
    assert_int_equal(json_array_size(at(v, "layers")), 2);
    check_text(v, "layers.1.objects.0.object", "K");
    check_int(v, "layers.1.objects.0.shape.0", 2);
    check_text(v, "layers.1.objects.0.shape.1", "T");
    check_int(v, "layers.1.objects.0.shape.2", 24);
    check_text(v, "layers.1.objects.0.dtype", "BF16");
    check_text(v, "layers.1.objects.0.position", "rotary");
    check_text(v, "layers.1.objects.0.points.1.what", "after the norm");
    check_text(v, "layers.1.objects.1.object", "V");
    check_text(v, "layers.1.objects.1.position", "none");
    check_text(v, "layers.1.objects.1.points.2.what", "as 1");
    check_int(v, "layers.1.objects.1.bytes_per_token", 96);
    check_int(v, "totals.bytes_per_token", 384);
    check_int(v, "totals.bytes_per_prompt", 0);
    check_int(v, "totals.objects", 4);
    check_text(v, "position.scaling", "none");
    kvm_arena_free(&a);
}

static void scaled_positions(void **state)
{
    (void)state;
    kvm_arena a = check_arena(1 << 26);
    const json_t *v = inspect(&a, "tests/golden/models/mistral3.gguf");
    check_text(v, "model.name", "mistral3");
    check_text(v, "model.weight_dtype", "Q8_0");
    check_text(v, "layers.0.objects.0.dtype", "F16"); /* of a quantised engine */
    check_text(v, "position.scaling", "yarn");
    check_int(v, "position.original_context", 8);
    assert_true(json_real_value(at(v, "position.query_temperature")) > 0.09);
    const json_t *w = inspect(&a, "tests/golden/models/qwen2");
    check_int(w, "layers.0.window", 0);
    check_int(w, "layers.1.window", 9);
    kvm_arena_free(&a);
}

/* published config.json values: what their caches weigh, by the paper's Table 1 and
 * 7 */
static void published_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *file;
        json_int_t per_token, per_prompt;
    } models[] = {
        /* 27 layers of 576 numbers: 30 KiB */
        {"kimi_vl", 27LL * 576 * 2, 0},
        /* 16 layers of K and V, 4 x 256: 64 KiB; 48 states and windows: 148 MiB */
        {"qwen3_5_27b", 65536, 48LL * (48 * 128 * 128 * 4 + 10240 * 4 * 2)},
        /* 36 layers, 8 x 128: 147 KB */
        {"qwen3_8b", 147456, 0},
        /* 11 layers of latents, index keys and gates; 34 states and windows: 142 MiB */
        {"glm5_3_flash", 11LL * (512 + 2 * 128) * 2,
         34LL * (64 * 128 * 128 * 4 + 3 * 8192 * 4 * 2)},
        /* 7 layers of latents; 20 states and windows: 41.9 MiB */
        {"kimi_linear_48b", 7LL * 576 * 2,
         20LL * (32 * 128 * 128 * 4 + 3 * 4096 * 4 * 2)},
        /* 12 layers of K, V and index keys; 36 states and windows: 111 MiB, with the 9
         * inputs of the n-grams' convolution and the two last ids */
        {"qwen3_8_flash_next", 12LL * (2 * 2 * 256 + 128) * 2,
         36LL * (48 * 128 * 128 * 4 + 10240 * 4 * 2) + 4LL * 2560 * 9 * 2 + 16},
        /* 6 of 52 layers, 2 x 128: 6 KiB; 23 states and windows: 47 MiB */
        {"nemotron_3_nano", 6144, 23LL * (64 * 64 * 128 * 4 + 6144 * 4 * 2)},
    };
    for (size_t i = 0; i < COUNT(models); i++) {
        kvm_arena a = check_arena(1 << 26);
        kvm_err err = {0};
        json_t *v;
        const kvm_str path =
            kvm_str_fmt(&a, "tests/golden/configs/%s.json", models[i].file);
        check_ok(kvm_config_inspect(&v, &a, path, &err), &err);
        check_int(v, "totals.bytes_per_token", models[i].per_token);
        check_int(v, "totals.bytes_per_prompt", models[i].per_prompt);
        kvm_arena_free(&a);
    }
}

/* blocks that are a mixer or a feed-forward alone */
static void single_blocks(void **state)
{
    (void)state;
    kvm_arena a = check_arena(1 << 26);
    const json_t *v = inspect(&a, "tests/golden/models/nemotron_h");
    static const char *const kinds[][2] = {
        {"mamba2", "none"}, {"none", "moe"}, {"gqa", "none"}, {"none", "ffn"},
        {"mamba2", "none"}, {"gqa", "none"}, {"none", "moe"}};
    assert_int_equal(json_array_size(at(v, "layers")), COUNT(kinds));
    for (size_t l = 0; l < COUNT(kinds); l++) {
        const json_t *layer = json_array_get(at(v, "layers"), l);
        check_text(layer, "kind", kinds[l][0]);
        check_text(layer, "ffn", kinds[l][1]);
        assert_int_equal(json_array_size(at(layer, "objects")),
                         kinds[l][0][0] == 'n' ? 0 : 2);
    }
    check_text(v, "layers.0.objects.0.object", "ssm state");
    check_text(v, "layers.0.objects.0.axes", "(H,P,N)");
    check_text(v, "layers.0.objects.0.dtype", "F32");
    check_int(v, "layers.0.objects.0.shape.1", 12);
    check_int(v, "layers.0.objects.0.shape.2", 16);
    check_int(v, "layers.0.objects.1.shape.0", 112);
    check_text(v, "layers.2.objects.0.points.2.what", "as 1");
    check_text(v, "position.encoding", "none");
    kvm_arena_free(&a);
}

/* sizes that do not enter what a cache weighs per prompt */
#define ANY                                                                            \
    "\"hidden_size\":1024,\"intermediate_size\":64,\"num_attention_heads\":4,"         \
    "\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":64,"        \
    "\"vocab_size\":64"

/* a config.json of these words: its cache's bytes per prompt, so many MiB */
static json_t *check_flagship(kvm_arena *a, kvm_str config, json_int_t bytes,
                              double mib)
{
    kvm_err err = {0};
    json_t *v;
    check_tmpdir("inspect");
    check_write("build/tmp/inspect/config.json", config);
    check_ok(kvm_config_inspect(&v, a, KVM_STR("build/tmp/inspect/config.json"), &err),
             &err);
    check_int(v, "totals.bytes_per_prompt", bytes);
    assert_true(fabs((double)bytes / (1 << 20) - mib) < 0.5);
    return v;
}

/* What the paper's Table 1 says of Qwen3.8-2.4T-A95B, 563 MiB: 69 layers with a state
 * of 128 heads and 23 with attention. */
static void a_flagship(void **state)
{
    (void)state;
    kvm_arena a = check_arena(1 << 26);
    check_flagship(&a,
                   KVM_STR("{\"model_type\":\"qwen3_5_moe\",\"num_hidden_layers\":92,"
                           "\"linear_num_value_heads\":128,"
                           "\"linear_num_key_heads\":16,"
                           "\"linear_key_head_dim\":128,"
                           "\"linear_value_head_dim\":128,\"head_dim\":256,"
                           "\"shared_expert_intermediate_size\":64," ANY "}"),
                   69LL * (128 * 128 * 128 * 4 + (2 * 2048 + 16384) * 4 * 2), 563);
    kvm_arena_free(&a);
}

/* And of Kimi-K3, 433 MiB: 69 layers with a state of 96 heads, 24 of latent attention
 * without positions. kvmill does not run that model and reads none of its files: these
 * are its sizes in a config of kimi_linear, whose caches have the same objects. */
static void another_flagship(void **state)
{
    (void)state;
    kvm_arena a = check_arena(1 << 26);
    kvm_str attends = KVM_STR("93"), recurs = KVM_STR("");
    for (int l = 1; l < 93; l++) {
        kvm_str *list = l % 4 == 0 ? &attends : &recurs;
        *list = kvm_str_fmt(&a, "%s%s%d", list->at, list->len > 0 ? "," : "", l);
    }
    const kvm_str config = kvm_str_fmt(
        &a,
        "{\"model_type\":\"kimi_linear\",\"num_hidden_layers\":93,"
        "\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,"
        "\"v_head_dim\":128,\"linear_attn_config\":{\"num_heads\":96,"
        "\"head_dim\":128,\"full_attn_layers\":[%s],\"kda_layers\":[%s]}," ANY "}",
        attends.at, recurs.at);
    const json_t *v = check_flagship(
        &a, config, 69LL * (96 * 128 * 128 * 4 + 3 * 96 * 128 * 4 * 2), 433);
    check_int(v, "totals.bytes_per_token", 24LL * (512 + 64) * 2);
    check_text(v, "position.encoding", "none");
    kvm_arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(normed_keys),      cmocka_unit_test(scaled_positions),
        cmocka_unit_test(published_sizes),  cmocka_unit_test(a_flagship),
        cmocka_unit_test(another_flagship), cmocka_unit_test(single_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
