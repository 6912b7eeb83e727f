/* Configs: dialects, aliases, defaults, nesting, and the frequencies of a rotary. */
#include <math.h>
#include <string.h>

#include "models/residual.h"
#include "models/rope.h"
#include "tests/support/configs.h"

static void defaults(void **state)
{
    (void)state;
    kvm_arena a = check_arena(1 << 20);
    const kvm_config c = good(&a, "{\"model_type\":\"llama\"," SIZES "}");
    assert_string_equal(c.family->name, "llama");
    assert_int_equal(c.kv_heads, 4);
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.rope.width, 16);
    assert_true(c.eps == 1e-6 && c.rope.theta == 1e4);
    assert_false(c.tied || c.qkv_bias || c.o_bias || c.mlp_bias);
    const kvm_config q = good(&a, "{\"model_type\":\"qwen2\"," SIZES "}");
    assert_true(q.qkv_bias && !q.o_bias);
    const kvm_config b = good(
        &a, "{\"model_type\":\"llama\",\"attention_bias\":true,\"mlp_bias\":true," SIZES
            "}");
    assert_true(b.qkv_bias && b.o_bias && b.mlp_bias);
    kvm_arena_free(&a);
}

/* every row is the kind of its name, whole */
static void layer_kinds(void **state)
{
    (void)state;
#define X(NAME, word, what)                                                            \
    assert_string_equal(kvm_layer_kinds[KVM_LAYER_##NAME]->name, #word);               \
    assert_non_null(kvm_layer_kinds[KVM_LAYER_##NAME]->load);                          \
    assert_non_null(kvm_layer_kinds[KVM_LAYER_##NAME]->scratch);                       \
    assert_non_null(kvm_layer_kinds[KVM_LAYER_##NAME]->forward);
#include "models/layer_kinds.def"
#undef X
}

/* likewise, and each is some family's */
static void residual_kinds(void **state)
{
    (void)state;
#define X(NAME, word, what)                                                            \
    assert_string_equal(kvm_residual_kinds[KVM_RESIDUAL_##NAME]->name, #word);         \
    assert_non_null(kvm_residual_kinds[KVM_RESIDUAL_##NAME]->load);                    \
    assert_non_null(kvm_residual_kinds[KVM_RESIDUAL_##NAME]->scratch);                 \
    assert_non_null(kvm_residual_kinds[KVM_RESIDUAL_##NAME]->read);                    \
    assert_non_null(kvm_residual_kinds[KVM_RESIDUAL_##NAME]->forward);
#include "models/residual_kinds.def"
#undef X
    bool used[KVM_RESIDUAL_KINDS] = {false};
    for (ptrdiff_t i = 0; i < kvm_families_count; i++)
        used[kvm_families[i].residual] = true;
    for (int k = 0; k < KVM_RESIDUAL_KINDS; k++) assert_true(used[k]);
}

/* a family is found by its row's names, and no two rows share one */
static void families(void **state)
{
    (void)state;
    kvm_arena a = check_arena(1 << 16);
    for (ptrdiff_t i = 0; i < kvm_families_count; i++) {
        const kvm_family *f = &kvm_families[i];
        assert_ptr_equal(kvm_config__family(kvm_str_of(f->name), false), f);
        if (f->gguf) assert_ptr_equal(kvm_config__family(kvm_str_of(f->gguf), true), f);
        assert_true(f->eps > 0 && f->theta > 1);
        check_contains(kvm_config__family_list(&a, false).at, f->name);
        /* a mixer keeps objects and a feed-forward none */
        assert_non_null(kvm_layer_kinds[f->mixer]->objects);
        assert_null(kvm_layer_kinds[f->ffn]->objects);
    }
    assert_null(kvm_config__family(KVM_STR("gpt2"), false));
    kvm_arena_free(&a);
}

static void dialects(void **state)
{
    (void)state;
    static const char *const same[] = {
        "{\"model_type\":\"llama\",\"rope_theta\":5e5,\"rope_scaling\":{\"type\":"
        "\"llama3\","
        "\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,"
        "\"original_max_position_embeddings\":8192}," SIZES "}",
        "{\"model_type\":\"llama\",\"rope_theta\":5e5,\"rope_scaling\":{\"rope_type\":"
        "\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
        "\"original_max_position_embeddings\":8192}," SIZES "}",
        "{\"model_type\":\"llama\",\"rope_parameters\":{\"rope_theta\":500000,"
        "\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
        "\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}," SIZES "}",
        "{\"model_type\":\"wrapped\",\"text_config\":{\"model_type\":\"llama\","
        "\"original_max_position_embeddings\":8192,\"rope_parameters\":{\"rope_theta\":"
        "500000,\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
        "\"high_freq_factor\":4}," SIZES "}}",
    };
    char first[65], hex[65];
    for (size_t i = 0; i < COUNT(same); i++) {
        kvm_arena a = check_arena(1 << 20);
        kvm_err err = {0};
        const kvm_config c = good(&a, same[i]);
        check_ok(kvm_config_hash(&c, i ? hex : first, a, &err), &err);
        if (i) assert_string_equal(first, hex);
        kvm_arena_free(&a);
    }
}

/* what a wrapper says of its language model is found under either name, the numbers of
 * its weights too; where both are there, text_config is transformers' own */
static void wrappers(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{\"model_type\":\"NemotronH_Nano_VL_V2\",\"llm_config\":{\"model_type\":"
        "\"llama\","
        "\"torch_dtype\":\"float32\"," SIZES "}}",
        "{\"model_type\":\"wrapped\",\"llm_config\":{\"model_type\":\"gpt2\"},"
        "\"text_config\":{\"model_type\":\"llama\",\"torch_dtype\":\"float32\"," SIZES
        "}}",
        "{\"model_type\":\"wrapped\",\"text_config\":null,\"llm_config\":{"
        "\"model_type\":\"llama\",\"torch_dtype\":\"float32\"," SIZES "}}",
    };
    for (size_t i = 0; i < COUNT(texts); i++) {
        kvm_arena a = check_arena(1 << 20);
        kvm_err err = {0};
        kvm_jat root;
        kvm_dtype d;
        const kvm_config c = good(&a, texts[i]);
        assert_string_equal(c.family->name, "llama");
        check_ok(kvm_json_parse(&root, &a, kvm_str_of(texts[i]), KVM_STR("c"), &err),
                 &err);
        check_ok(kvm_config_dtype(&d, &a, root, &err), &err);
        assert_int_equal(d, KVM_F32);
        kvm_arena_free(&a);
    }
}

static void windows(void **state)
{
    (void)state;
    kvm_arena a = check_arena(1 << 20);
    static const struct {
        const char *fields;
        ptrdiff_t window[4];
    } rows[] = {
        {"\"model_type\":\"qwen2\",\"sliding_window\":9", {0, 0, 0, 0}},
        {"\"model_type\":\"qwen2\",\"sliding_window\":9,\"use_sliding_window\":true,"
         "\"max_window_layers\":2",
         {0, 0, 9, 9}},
        {"\"model_type\":\"qwen3\",\"sliding_window\":9,\"layer_types\":["
         "\"sliding_attention\",\"full_attention\",\"attention\",\"sliding_"
         "attention\"]",
         {9, 0, 0, 9}},
        {"\"model_type\":\"llama\",\"sliding_window\":9", {0, 0, 0, 0}},
        {"\"model_type\":\"ministral3\",\"sliding_window\":9,\"rope_parameters\":"
         "{\"rope_type\":\"yarn\",\"factor\":16}",
         {9, 9, 9, 9}},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        const kvm_str text = kvm_str_fmt(&a, "{%s," SIZES "}", rows[i].fields);
        const kvm_config c = good(&a, text.at);
        assert_memory_equal(c.window, rows[i].window, sizeof rows[i].window);
    }
    kvm_arena_free(&a);
}

static void tied_heads(void **state)
{
    (void)state;
    kvm_arena a = check_arena(1 << 20);
    static const struct {
        const char *text;
        bool tied;
    } rows[] = {
        {"{\"model_type\":\"llama\",\"tie_word_embeddings\":true," SIZES "}", true},
        {"{\"tie_word_embeddings\":true,\"text_config\":{\"model_type\":"
         "\"llama\"," SIZES "}}",
         true},
        {"{\"tie_word_embeddings\":true,\"text_config\":{\"model_type\":\"llama\","
         "\"tie_word_embeddings\":false," SIZES "}}",
         false},
    };
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_int_equal(good(&a, rows[i].text).tied, rows[i].tied);
    kvm_arena_free(&a);
}

/* By hand: width 4, theta 100, so frequencies 1 and 1/10. */
static void frequencies(void **state)
{
    (void)state;
    kvm_arena a = check_arena(1 << 20);
    kvm_err err = {0};
    kvm_rope r;
    kvm_rope_config c = {.theta = 100, .width = 4, .factor = 4, .original = 20};
    check_ok(kvm_rope_of(&r, &a, &c, NULL, &err), &err);
    assert_true(r.inv_freq[0] == 1.0f && fabs((double)r.inv_freq[1] - 0.1) < 1e-8);
    assert_true(r.factor == 1.0f && !r.interleaved && r.width == 4);
    c.kind = KVM_ROPE_LINEAR;
    check_ok(kvm_rope_of(&r, &a, &c, NULL, &err), &err);
    assert_true(r.inv_freq[0] == 0.25f);
    /* llama3: wave lengths 6.28 and 62.8 against 20/4 and 20/1: between, and beyond */
    c.kind = KVM_ROPE_LLAMA3, c.low = 1, c.high = 4;
    check_ok(kvm_rope_of(&r, &a, &c, NULL, &err), &err);
    const double m = (20 / (2 * acos(-1.0)) - 1) / 3;
    assert_true(fabs((double)r.inv_freq[0] - (m + (1 - m) / 4)) < 1e-6);
    assert_true(fabs((double)r.inv_freq[1] - 0.025) < 1e-8);
    /* YaRN: attention factor given, from mscale pairs, or from the factor alone */
    c.kind = KVM_ROPE_YARN, c.beta_fast = 32, c.beta_slow = 1, c.truncate = true;
    check_ok(kvm_rope_of(&r, &a, &c, NULL, &err), &err);
    assert_true(fabs((double)r.factor - (0.1 * log(4) + 1)) < 1e-6);
    c.mscale = c.mscale_all_dim = 1;
    check_ok(kvm_rope_of(&r, &a, &c, NULL, &err), &err);
    assert_true(r.factor == 1.0f);
    c.attention_factor = 1.5;
    check_ok(kvm_rope_of(&r, &a, &c, NULL, &err), &err);
    assert_true(r.factor == 1.5f);
    const float divisors[] = {1, 2};
    c.kind = KVM_ROPE_DEFAULT;
    check_ok(kvm_rope_of(&r, &a, &c, divisors, &err), &err);
    assert_true(fabs((double)r.inv_freq[1] - 0.05) < 1e-8);
    kvm_arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),       cmocka_unit_test(families),
        cmocka_unit_test(dialects),       cmocka_unit_test(windows),
        cmocka_unit_test(tied_heads),     cmocka_unit_test(layer_kinds),
        cmocka_unit_test(residual_kinds), cmocka_unit_test(wrappers),
        cmocka_unit_test(frequencies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
