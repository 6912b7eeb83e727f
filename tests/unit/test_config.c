/* Configs: dialects, aliases, defaults, nesting, and numbers that cannot be. */
#include <math.h>
#include <string.h>

#include "models/config.h"
#include "models/residual.h"
#include "models/rope.h"
#include "tests/support/check.h"

#define SIZES                                                                          \
    "\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":4,"             \
    "\"num_attention_heads\":4,\"vocab_size\":97"

static kvm_status read(kvm_config *c, kvm_arena *a, const char *text, kvm_err *err)
{
    kvm_jat root;
    TRY(kvm_json_parse(&root, a, kvm_str_of(text), KVM_STR("config.json"), err));
    return kvm_config_of_json(c, a, root, err);
}

static kvm_config good(kvm_arena *a, const char *text)
{
    kvm_config c;
    kvm_err err = {0};
    check_ok(read(&c, a, text, &err), &err);
    return c;
}

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

/* a deepseek_v3 with its sizes, and more of them */
#define QUANTISED(more)                                                                \
    "{\"model_type\":\"llama\",\"quantization_config\":{" more "}," SIZES "}"
#define LATENT(more)                                                                   \
    "{\"model_type\":\"deepseek_v3\",\"kv_lora_rank\":32,\"qk_nope_head_dim\":16,"     \
    "\"qk_rope_head_dim\":8,\"v_head_dim\":12,\"moe_intermediate_size\":20," more      \
    "," SIZES "}"
#define EXPERTS(total, chosen, groups, open)                                           \
    LATENT("\"n_routed_experts\":" #total ",\"num_experts_per_tok\":" #chosen          \
           ",\"n_group\":" #groups ",\"topk_group\":" #open)

/* a kimi_linear of four layers, which are counted from one */
#define KIMI(attends, recurs)                                                          \
    "{\"model_type\":\"kimi_linear\",\"kv_lora_rank\":32,\"qk_nope_head_dim\":16,"     \
    "\"qk_rope_head_dim\":8,\"v_head_dim\":12,\"linear_attn_config\":{\"num_heads\":"  \
    "4,"                                                                               \
    "\"head_dim\":16,\"full_attn_layers\":" attends ",\"kda_layers\":" recurs          \
    "}," SIZES "}"

/* a nemotron_h of four blocks, and more of its fields */
#define NEMOTRON(blocks, more)                                                         \
    "{\"model_type\":\"nemotron_h\"," blocks ",\"mamba_num_heads\":4,"                 \
    "\"mamba_head_dim\":12,\"ssm_state_size\":16," more "," SIZES "}"
#define LETTERS(letters) "\"hybrid_override_pattern\":\"" letters "\""
#define WORDS(words) "\"layers_block_type\":[" words "]"
#define GROUPS "\"n_groups\":2"
#define FEW_EXPERTS                                                                    \
    GROUPS ",\"n_routed_experts\":8,\"num_experts_per_tok\":3,"                        \
           "\"moe_intermediate_size\":20"

/* a glm5_next of four layers, and more of its fields */
#define GLM(more)                                                                      \
    "{\"model_type\":\"glm5_next_text\",\"q_lora_rank\":24,\"kv_lora_rank\":32,"       \
    "\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":0,\"v_head_dim\":12,"                \
    "\"linear_num_heads\":4,\"linear_head_dim\":16,\"index_n_heads\":4,"               \
    "\"index_head_dim\":16,\"index_topk\":32" more "," SIZES "}"

/* Kimi's object in it, and more of that one's fields */
#define IN_OBJECT(more)                                                                \
    ",\"linear_attn_config\":{\"num_heads\":4,\"head_dim\":16,"                        \
    "\"kda_layers\":[0,1,2],\"full_attn_layers\":[3]," more "}"

static const struct {
    const char *text;
    kvm_status status;
    const char *part;
} refusals[] = {
    {GLM(",\"linear_attn_config\":{\"num_heads\":4,\"head_dim\":16,\"kda_layers\":[1,2,"
         "3],\"full_attn_layers\":[4]}"),
     KVM_RANGE, "counts its 4 layers from 0"},
    {GLM(",\"linear_lower_bound\":5"), KVM_RANGE, "linear_lower_bound is 5"},
    {GLM(",\"linear_lower_bound\":0"), KVM_RANGE, "linear_lower_bound is 0"},
    {GLM(",\"linear_lower_bound\":\"none\""), KVM_FORMAT, "linear_lower_bound"},
    {GLM(IN_OBJECT("\"gate_lower_bound\":1")), KVM_RANGE, "gate_lower_bound is 1"},
    {GLM(IN_OBJECT("\"safe_gate\":1")), KVM_FORMAT, "safe_gate"},
    {GLM(",\"index_kpool\":3"), KVM_RANGE, "chooses 32 tokens, 3 at a time"},
    {GLM(",\"index_kpool_always_select_tail\":false"), KVM_UNSUPPORTED,
     "last whole pool"},
    {GLM(",\"hc_mult\":0"), KVM_RANGE, "hc_mult 0"},
    {GLM(",\"hc_mult\":17"), KVM_RANGE, "hc_mult 17"},
    {GLM(",\"hc_sinkhorn_iters\":0"), KVM_RANGE, "hc_sinkhorn_iters 0"},
    {GLM(",\"hc_eps\":-1"), KVM_RANGE, "hc_eps -1"},
    {GLM(",\"swiglu_limit\":0"), KVM_RANGE, "swiglu_limit is 0"},
    {GLM(",\"indexer_types\":[\"full\",\"full\",\"full\",\"shared\"]"), KVM_FORMAT,
     "layer 3 shares the indexer"},
    {GLM(",\"layer_types\":[\"linear_attention\",\"indexed_attention\",\"mamba\","
         "\"indexed_attention\"]"),
     KVM_UNSUPPORTED, "mamba"},
    {"{\"model_type\":\"deepseek_v3\",\"kv_lora_rank\":32,\"qk_nope_head_dim\":16,"
     "\"qk_rope_head_dim\":0,\"v_head_dim\":12," SIZES "}",
     KVM_RANGE, "qk_rope_head_dim is 0"},
    {NEMOTRON(LETTERS("MX*-"), GROUPS), KVM_UNSUPPORTED, "block 1 is \"X\""},
    {NEMOTRON(LETTERS("M*-"), GROUPS), KVM_FORMAT, "3 blocks for 4 layers"},
    {NEMOTRON(LETTERS("M*-M-"), GROUPS), KVM_FORMAT, "5 blocks for 4 layers"},
    {NEMOTRON(LETTERS("M*-E"), GROUPS), KVM_UNSUPPORTED, "n_routed_experts is 0"},
    {NEMOTRON(LETTERS("M*-E"), FEW_EXPERTS ",\"mlp_bias\":true"), KVM_UNSUPPORTED,
     "block 3 has experts, but mlp_bias"},
    {NEMOTRON(LETTERS("----"), GROUPS), KVM_UNSUPPORTED, "no block keeps anything"},
    {NEMOTRON("\"attention_bias\":false", GROUPS), KVM_FORMAT,
     "hybrid_override_pattern"},
    {NEMOTRON(WORDS("\"mamba\",\"attention\",\"mlp\",\"gated\""), GROUPS),
     KVM_UNSUPPORTED, "layers_block_type[3] is \"gated\""},
    {NEMOTRON(WORDS("\"mamba\",\"attention\",\"mlp\""), GROUPS), KVM_FORMAT,
     "3 blocks for 4 layers"},
    {NEMOTRON(LETTERS("M*-M"), "\"n_groups\":3"), KVM_RANGE,
     "4 heads cannot share 3 groups evenly"},
    {NEMOTRON(LETTERS("M*-M"), "\"n_groups\":0"), KVM_RANGE, "n_groups is 0"},
    {NEMOTRON(LETTERS("M*-M"), "\"conv_kernel\":4"), KVM_FORMAT, "n_groups"},
    {NEMOTRON(LETTERS("M*-M"), GROUPS ",\"conv_kernel\":9"), KVM_RANGE,
     "conv_kernel is 9"},
    {NEMOTRON(LETTERS("M*-M"), GROUPS ",\"use_bias\":true"), KVM_UNSUPPORTED,
     "use_bias is true"},
    {NEMOTRON(LETTERS("M*-M"), GROUPS ",\"mamba_proj_bias\":true"), KVM_UNSUPPORTED,
     "mamba_proj_bias is true"},
    {NEMOTRON(LETTERS("M*-M"), GROUPS ",\"mlp_hidden_act\":\"silu\""), KVM_UNSUPPORTED,
     "relu2 is run"},
    {NEMOTRON(LETTERS("M*-M"), GROUPS ",\"mamba_hidden_act\":\"gelu\""),
     KVM_UNSUPPORTED, "gelu"},
    {NEMOTRON(LETTERS("M*-M"), GROUPS ",\"time_step_limit\":[1,0.5]"), KVM_RANGE,
     "steps from 1 to 0.5"},
    {NEMOTRON(LETTERS("M*-M"), GROUPS ",\"time_step_limit\":[0]"), KVM_FORMAT,
     "time_step_limit"},
    {NEMOTRON(LETTERS("M*-E"), FEW_EXPERTS ",\"moe_latent_size\":200000"), KVM_RANGE,
     "moe_latent_size is 200000"},
    {KIMI("[3]", "[0,1,2]"), KVM_RANGE, "counts its 4 layers from 1"},
    {KIMI("[4]", "[1,2,5]"), KVM_RANGE, "kda_layers[2] is 5"},
    {KIMI("[4]", "[1,2,4]"), KVM_FORMAT, "layer 4 is listed twice"},
    {KIMI("[4]", "[1,2]"), KVM_FORMAT, "layer 2, counted from 0, is in neither list"},
    {KIMI("4", "[1,2,3]"), KVM_FORMAT, "full_attn_layers"},
    {"{\"model_type\":\"deepseek_v3\"," SIZES "}", KVM_FORMAT, "kv_lora_rank"},
    {LATENT("\"q_lora_rank\":-1"), KVM_RANGE, "q_lora_rank"},
    {LATENT("\"q_lora_rank\":70000"), KVM_RANGE, "q_lora_rank"},
    {EXPERTS(8, 9, 1, 1), KVM_RANGE, "9 of 8 experts"},
    {EXPERTS(8, 0, 1, 1), KVM_RANGE, "0 of 8 experts"},
    {EXPERTS(8, 2, 3, 1), KVM_RANGE, "3 even groups"},
    {EXPERTS(8, 2, 4, 5), KVM_RANGE, "5 of 4 groups"},
    {EXPERTS(8, 3, 4, 1), KVM_RANGE, "cannot give the 3"},
    {EXPERTS(99999, 3, 1, 1), KVM_RANGE, "99999 experts"},
    {LATENT("\"n_routed_experts\":8,\"num_experts_per_tok\":2,\"scoring_func\":"
            "\"softmax\""),
     KVM_UNSUPPORTED, "softmax"},
    {LATENT("\"n_routed_experts\":8,\"num_experts_per_tok\":2,\"mlp_only_layers\":[4]"),
     KVM_RANGE, "layer 4 of a stack of 4"},
    {LATENT("\"n_routed_experts\":8,\"num_experts_per_tok\":2,"
            "\"routed_scaling_factor\":0"),
     KVM_RANGE, "routed_scaling_factor"},
    {"{\"model_type\":\"gpt2\"," SIZES "}", KVM_UNSUPPORTED, "ministral3"},
    {"{" SIZES "}", KVM_FORMAT, "model_type"},
    {"{\"model_type\":\"llama\"}", KVM_FORMAT, "hidden_size"},
    {"{\"model_type\":\"llama\",\"num_key_value_heads\":3," SIZES "}", KVM_RANGE,
     "3 kv heads"},
    {"{\"model_type\":\"llama\",\"num_key_value_heads\":0," SIZES "}", KVM_RANGE,
     "kv heads"},
    {"{\"model_type\":\"llama\",\"head_dim\":15," SIZES "}", KVM_RANGE, "rotated"},
    {"{\"model_type\":\"llama\",\"head_dim\":-1," SIZES "}", KVM_RANGE, "head_dim"},
    {"{\"model_type\":\"llama\",\"head_dim\":\"16\"," SIZES "}", KVM_FORMAT,
     "head_dim"},
    {"{\"model_type\":\"llama\",\"rms_norm_eps\":0," SIZES "}", KVM_RANGE, "eps"},
    {"{\"model_type\":\"llama\",\"rope_theta\":1," SIZES "}", KVM_RANGE, "rope_theta"},
    {"{\"model_type\":\"llama\",\"hidden_act\":\"gelu\"," SIZES "}", KVM_UNSUPPORTED,
     "gelu"},
    {QUANTISED(""), KVM_FORMAT, "quantization_config.quant_method"},
    {QUANTISED("\"quant_method\":\"awq\""), KVM_UNSUPPORTED, "quant_method is \"awq\""},
    {QUANTISED("\"quant_method\":\"gptq\""), KVM_UNSUPPORTED,
     "quant_method is \"gptq\""},
    {QUANTISED("\"quant_method\":\"bitsandbytes\""), KVM_UNSUPPORTED, "GGUF"},
    {QUANTISED("\"quant_method\":\"fp8\",\"fmt\":\"e5m2\""), KVM_UNSUPPORTED,
     "fmt is \"e5m2\""},
    {QUANTISED("\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\""),
     KVM_UNSUPPORTED, "pack-quantized"},
    {QUANTISED("\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\""),
     KVM_UNSUPPORTED, "NVFP4"},
    {QUANTISED("\"quant_method\":\"fp8\",\"weight_block_size\":[128]"), KVM_FORMAT,
     "weight_block_size has 1 entries"},
    {QUANTISED("\"quant_method\":\"fp8\",\"weight_block_size\":[128,0]"), KVM_RANGE,
     "weight_block_size"},
    {QUANTISED("\"quant_method\":\"fp8\",\"weight_block_size\":128"), KVM_FORMAT,
     "weight_block_size"},
    {"{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"dynamic\"}," SIZES "}",
     KVM_UNSUPPORTED, "dynamic"},
    {"{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"yarn\"}," SIZES "}",
     KVM_FORMAT, "factor"},
    {"{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":0.5}"
     "," SIZES "}",
     KVM_RANGE, "factor"},
    {"{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,"
     "\"low_freq_factor\":4,\"high_freq_factor\":4}," SIZES "}",
     KVM_RANGE, "low_freq_factor"},
    {"{\"model_type\":\"llama\",\"rope_parameters\":{\"full_attention\":{}}," SIZES "}",
     KVM_UNSUPPORTED, "rope_parameters.full_attention"},
    {"{\"model_type\":\"llama\",\"partial_rotary_factor\":2," SIZES "}", KVM_RANGE,
     "partial_rotary_factor"},
    {"{\"model_type\":\"qwen3\",\"layer_types\":[\"full_attention\"]," SIZES "}",
     KVM_FORMAT, "4 layers"},
    {"{\"model_type\":\"qwen3\",\"layer_types\":[\"attention\",\"attention\","
     "\"attention\",\"attention\",\"attention\"]," SIZES "}",
     KVM_FORMAT, "layer_types has 5 entries for 4 layers"},
    {"{\"model_type\":\"qwen3\",\"layer_types\":[\"full_attention\",\"mamba\","
     "\"mamba\",\"mamba\"]," SIZES "}",
     KVM_UNSUPPORTED, "layer_types"},
    {"{\"model_type\":\"qwen3\",\"layer_types\":[\"sliding_attention\","
     "\"attention\","
     "\"attention\",\"attention\"]," SIZES "}",
     KVM_FORMAT, "sliding_window"},
    {"{\"model_type\":\"ministral3\"," SIZES "}", KVM_FORMAT, "rope_parameters"},
    {"{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,"
     "\"num_hidden_layers\":2000000000,\"num_attention_heads\":4,\"vocab_size\":"
     "97}",
     KVM_RANGE, "layers"},
    {"[]", KVM_FORMAT, "config.json"},
};

/* where the blocks of FP8 weights are stated */
static void scaled_weights(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        ptrdiff_t rows, cols;
    } configs[] = {
        {"{\"model_type\":\"llama\"," SIZES "}", 0, 0},
        {"{\"model_type\":\"llama\",\"quantization_config\":null," SIZES "}", 0, 0},
        {QUANTISED("\"quant_method\":\"fp8\",\"weight_block_size\":null"), 0, 0},
        {QUANTISED("\"quant_method\":\"fp8\",\"fmt\":\"e4m3\","
                   "\"weight_block_size\":[128,64]"),
         128, 64},
        {QUANTISED("\"quant_method\":\"fbgemm_fp8\""), 0, 0},
        {QUANTISED("\"quant_method\":\"modelopt\",\"quant_algo\":\"FP8\""), 0, 0},
        {QUANTISED("\"quant_method\":\"compressed-tensors\",\"format\":"
                   "\"float-quantized\",\"config_groups\":{\"group_0\":{"
                   "\"weights\":{\"block_structure\":[128,128]}}}"),
         128, 128},
        {"{\"model_type\":\"mistral3\",\"quantization_config\":{\"quant_method\":"
         "\"fp8\",\"weight_block_size\":[32,16]},\"text_config\":{\"model_type\":"
         "\"llama\"," SIZES "}}",
         32, 16},
    };
    for (size_t i = 0; i < COUNT(configs); i++) {
        kvm_arena a = check_arena(1 << 20);
        const kvm_config c = good(&a, configs[i].text);
        assert_int_equal(c.scale_rows, configs[i].rows);
        assert_int_equal(c.scale_cols, configs[i].cols);
        kvm_arena_free(&a);
    }
    kvm_arena a = check_arena(1 << 20);
    kvm_err err = {0};
    char hex[2][65];
    const kvm_config plain = good(&a, configs[0].text), fp8 = good(&a, configs[3].text);
    check_ok(kvm_config_hash(&plain, hex[0], a, &err), &err);
    check_ok(kvm_config_hash(&fp8, hex[1], a, &err), &err);
    assert_string_not_equal(hex[0], hex[1]);
    kvm_arena_free(&a);
}

static void refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(refusals); i++) {
        kvm_arena a = check_arena(1 << 20);
        kvm_err err = {0};
        kvm_config c;
        check_status(refusals[i].status, read(&c, &a, refusals[i].text, &err), &err);
        check_contains(err.msg, refusals[i].part);
        check_contains(err.msg, "config.json");
        kvm_arena_free(&a);
    }
}

/* letters, and words old and new; the number of layers is theirs where it is left
 * out */
static void single_blocks(void **state)
{
    (void)state;
    static const char *const same[] = {
        NEMOTRON(LETTERS("ME*-"), FEW_EXPERTS ",\"time_step_limit\":[0,1e40]"),
        NEMOTRON(WORDS("\"mamba\",\"moe\",\"attention\",\"mlp\""), FEW_EXPERTS),
        "{\"model_type\":\"nemotron_h\"," WORDS(
            "\"linear_attention\",\"moe\",\"full_attention\",\"mlp\"") ",\"mamba_num_"
                                                                       "heads\":4,"
                                                                       "\"mamba_head_"
                                                                       "dim\":12,\"ssm_"
                                                                       "state_size\":"
                                                                       "16,\"hidden_"
                                                                       "size\":64,"
                                                                       "\"intermediate_"
                                                                       "size\":96,"
                                                                       "\"num_"
                                                                       "attention_"
                                                                       "heads\":4,"
                                                                       "\"vocab_size\":"
                                                                       "97,"
                                                                       "\"time_step_"
                                                                       "limit\":[0,{\"_"
                                                                       "_float__\":"
                                                                       "\"Infinity\"}]"
                                                                       "," FEW_EXPERTS
                                                                       "}",
        /* and others */
        NEMOTRON(LETTERS("ME*-"), FEW_EXPERTS ",\"time_step_limit\":[0,1]"),
        NEMOTRON(LETTERS("ME-*"), FEW_EXPERTS),
        NEMOTRON(LETTERS("ME*-"), FEW_EXPERTS ",\"use_conv_bias\":false"),
        NEMOTRON(LETTERS("ME*-"), FEW_EXPERTS ",\"moe_latent_size\":24"),
    };
    char first[65], hex[65];
    for (size_t i = 0; i < COUNT(same); i++) {
        kvm_arena a = check_arena(1 << 20);
        kvm_err err = {0};
        const kvm_config c = good(&a, same[i]);
        assert_int_equal(c.layers, 4);
        assert_int_equal(c.blocks[0].mixer, KVM_LAYER_MAMBA2);
        assert_int_equal(c.blocks[0].ffn, KVM_LAYER_NONE);
        assert_int_equal(c.blocks[1].mixer, KVM_LAYER_NONE);
        assert_int_equal(c.blocks[1].ffn, KVM_LAYER_MOE);
        check_ok(kvm_config_hash(&c, i ? hex : first, a, &err), &err);
        if (i > 0 && i < 3) assert_string_equal(first, hex);
        if (i >= 3) assert_string_not_equal(first, hex);
        kvm_arena_free(&a);
    }
}

/* every fourth layer attends where neither words nor lists say it; the bound has a
 * default */
static void glm_defaults(void **state)
{
    (void)state;
    kvm_arena a = check_arena(1 << 20);
    const kvm_config c = good(&a, GLM(""));
    for (ptrdiff_t l = 0; l < 4; l++) {
        assert_int_equal(c.blocks[l].mixer, l == 3 ? KVM_LAYER_MLA : KVM_LAYER_KDA);
        assert_int_equal(c.index.full[l], l == 3);
    }
    assert_true(c.recurrent.lower_bound == -5 && c.swiglu_limit == 10);
    assert_int_equal(c.stream.count, 4);
    assert_int_equal(c.stream.rounds, 20);
    assert_int_equal(c.index.block, 16);
    kvm_arena_free(&a);
}

/* null is no bound, as transformers reads it, and not a field that is missing; beside
 * Kimi's object a safe gate has one all the same */
static void bounds(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double bound;
    } cases[] = {
        {GLM(""), -5},
        {GLM(",\"linear_lower_bound\":-3"), -3},
        {GLM(",\"linear_lower_bound\":null"), 0},
        {GLM(IN_OBJECT("\"gate_lower_bound\":-4")), -4},
        {GLM(IN_OBJECT("\"gate_lower_bound\":-4,\"safe_gate\":false")), -4},
        {GLM(IN_OBJECT("\"gate_lower_bound\":null")), -5},
        {GLM(IN_OBJECT("\"gate_lower_bound\":null,\"safe_gate\":false")), 0},
        {GLM(IN_OBJECT("\"safe_gate\":false")), -5},
        {GLM(",\"linear_lower_bound\":-3" IN_OBJECT("\"safe_gate\":true")), -3},
        {GLM(",\"linear_lower_bound\":null" IN_OBJECT("\"safe_gate\":true")), -5},
        {GLM(",\"linear_lower_bound\":null" IN_OBJECT("\"safe_gate\":false")), 0},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        kvm_arena a = check_arena(1 << 20);
        assert_true(good(&a, cases[i].text).recurrent.lower_bound == cases[i].bound);
        kvm_arena_free(&a);
    }
}

/* the golden file with one text replaced by another of the same length */
static kvm_status patched(kvm_config *c, kvm_arena *a, const char *from, const char *to,
                          kvm_err *err)
{
    kvm_str bytes = check_read(a, "tests/golden/models/mistral3.gguf");
    kvm_gguf *g;
    if (from) {
        const ptrdiff_t at = kvm_str_find(bytes, kvm_str_of(from));
        assert_true(at > 0);
        memcpy((char *)(uintptr_t)bytes.at + at, to, strlen(to));
    }
    TRY(kvm_gguf_parse(&g, a, bytes, KVM_STR("m.gguf"), err));
    return kvm_config_of_gguf(c, a, g, err);
}

static void from_gguf(void **state)
{
    (void)state;
    kvm_arena a = check_arena(1 << 22);
    kvm_err err = {0};
    kvm_config c = {0};
    check_ok(patched(&c, &a, NULL, NULL, &err), &err);
    check_str(kvm_str_of(c.family ? c.family->name : ""), "ministral3");
    assert_int_equal(c.vocab, 97);
    assert_int_equal(c.kv_heads, 2);
    assert_int_equal(c.rope.kind, KVM_ROPE_YARN);
    assert_int_equal(c.rope.original, 8);
    assert_true(fabs(c.temperature - 0.1) < 1e-6);
    assert_false(c.tied);
    static const struct {
        const char *from, *to;
        kvm_status status;
        const char *part;
    } rows[] = {
        {"mistral3", "mistralX", KVM_UNSUPPORTED, "mistralX"},
        {"mistral3.block_count", "mistral3.block_kount", KVM_NOTFOUND, "block_count"},
        {"mistral3.rope.freq_base", "mistral3.rope.freq_bose", KVM_OK, ""},
        {"token_embd.weight", "token_embt.weight", KVM_FORMAT, "token_embd"},
        {"mistral3.attention.key_length", "mistral3.attention.kez_length", KVM_OK,
         ""}, /* 64 / 4 heads */
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        err = (kvm_err){0};
        check_status(rows[i].status, patched(&c, &a, rows[i].from, rows[i].to, &err),
                     &err);
        check_contains(err.msg, rows[i].part);
    }
    kvm_arena_free(&a);
}

/* A key more in front of the golden file's: a filler behind it keeps the data
 * aligned. */
static kvm_str with_key(kvm_arena *a, kvm_str file, const char *key, uint32_t type,
                        const void *value, size_t bytes)
{
    enum { STRING = 8 };
    char head[512];
    size_t n = 0;
    const uint64_t key_len = strlen(key), one = 1;
    uint64_t keys;
    memcpy(head + n, &key_len, 8), n += 8;
    for (size_t i = 0; i < key_len; i++) head[n++] = key[i];
    memcpy(head + n, &type, 4), n += 4;
    memcpy(head + n, value, bytes), n += bytes;
    const uint32_t text = STRING;
    const uint64_t fill = (32 - (n + 8 + 1 + 4 + 8) % 32) % 32;
    memcpy(head + n, &one, 8), n += 8;
    head[n++] = (char)('A' + file.at[16] % 26); /* a name of its own */
    memcpy(head + n, &text, 4), n += 4;
    memcpy(head + n, &fill, 8), n += 8;
    memset(head + n, 'x', fill), n += fill;
    char *out = kvm_new(a, char, file.len + (ptrdiff_t)n);
    memcpy(out, file.at, 24);
    memcpy(&keys, file.at + 16, 8);
    keys += 2;
    memcpy(out + 16, &keys, 8);
    memcpy(out + 24, head, n);
    memcpy(out + 24 + n, file.at + 24, (size_t)file.len - 24);
    return (kvm_str){out, file.len + (ptrdiff_t)n};
}

typedef struct extra {
    const char *key;
    double value; /* stored as f32; of split.count as u16 */
} extra;

static kvm_status extended(kvm_config *c, kvm_arena *a, const char *from,
                           const char *to, const extra *x, kvm_err *err)
{
    enum { U16 = 2, F32 = 6 };
    kvm_gguf *g;
    kvm_str bytes = check_read(a, "tests/golden/models/mistral3.gguf");
    if (from) {
        const ptrdiff_t at = kvm_str_find(bytes, kvm_str_of(from));
        assert_true(at > 0);
        memcpy((char *)(uintptr_t)bytes.at + at, to, strlen(to));
    }
    for (; x->key; x++) {
        const float real = (float)x->value;
        const uint16_t whole = (uint16_t)x->value;
        const bool split = strcmp(x->key, "split.count") == 0;
        bytes = split ? with_key(a, bytes, x->key, U16, &whole, sizeof whole)
                      : with_key(a, bytes, x->key, F32, &real, sizeof real);
    }
    TRY(kvm_gguf_parse(&g, a, bytes, KVM_STR("m.gguf"), err));
    return kvm_config_of_gguf(c, a, g, err);
}

#define ROPE "mistral3.rope.scaling."
/* The keys as llama.cpp's converter writes and its loader reads them, with its
 * defaults. */
static const struct {
    const char *from, *to;
    extra x[2];
    kvm_rope_kind kind;
    int original;
    double attention; /* the factor of rotated rows */
} scaled[] = {
    {NULL, NULL, {{0}}, KVM_ROPE_YARN, 8, 1},
    /* log_multiplier is mscale_all_dim; without one, the factor alone counts */
    {"log_multiplier", "log_multiplies", {{0}}, KVM_ROPE_YARN, 8, 1.1386294},
    {NULL, NULL, {{ROPE "yarn_attn_factor", 1.5}}, KVM_ROPE_YARN, 8, 1.5},
    {NULL, NULL, {{ROPE "attn_factor", 1}}, KVM_ROPE_YARN, 8, 1},
    {"original_context", "original_kontext", {{0}}, KVM_ROPE_YARN, 128, 1},
    /* a factor without a type is linear; the temperature has its context all the
     * same */
    {ROPE "type", ROPE "tipe", {{0}}, KVM_ROPE_LINEAR, 8, 1},
};

static void scaling_keys_of_gguf(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(scaled); i++) {
        kvm_arena a = check_arena(1 << 22);
        kvm_err err = {0};
        kvm_config c = {0};
        kvm_rope r;
        check_ok(extended(&c, &a, scaled[i].from, scaled[i].to, scaled[i].x, &err),
                 &err);
        check_ok(kvm_rope_of(&r, &a, &c.rope, NULL, &err), &err);
        assert_int_equal(c.rope.kind, scaled[i].kind);
        assert_int_equal(c.rope.original, scaled[i].original);
        assert_true(c.rope.factor == 4);
        assert_true(fabs((double)r.factor - scaled[i].attention) < 1e-6);
        assert_true(fabs(c.temperature - 0.1) < 1e-6);
        kvm_arena_free(&a);
    }
}

static void keys_of_gguf_that_are_refused(void **state)
{
    (void)state;
    static const struct {
        extra x[2];
        const char *part;
    } rows[] = {
        {{{ROPE "yarn_ext_factor", 0.5}}, ROPE "yarn_ext_factor is 0.5; only 1 is run"},
        {{{ROPE "attn_factor", 2}}, ROPE "attn_factor is 2; only 1 is run"},
        {{{"split.count", 3}},
         "m.gguf: one of 3 parts; join them first: llama-gguf-split "},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        kvm_arena a = check_arena(1 << 22);
        kvm_err err = {0};
        kvm_config c;
        check_status(KVM_UNSUPPORTED, extended(&c, &a, NULL, NULL, rows[i].x, &err),
                     &err);
        check_contains(err.msg, rows[i].part);
        kvm_arena_free(&a);
    }
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
        cmocka_unit_test(defaults),
        cmocka_unit_test(families),
        cmocka_unit_test(dialects),
        cmocka_unit_test(windows),
        cmocka_unit_test(tied_heads),
        cmocka_unit_test(scaled_weights),
        cmocka_unit_test(refused),
        cmocka_unit_test(single_blocks),
        cmocka_unit_test(glm_defaults),
        cmocka_unit_test(layer_kinds),
        cmocka_unit_test(residual_kinds),
        cmocka_unit_test(bounds),
        cmocka_unit_test(wrappers),
        cmocka_unit_test(scaling_keys_of_gguf),
        cmocka_unit_test(keys_of_gguf_that_are_refused),
        cmocka_unit_test(from_gguf),
        cmocka_unit_test(frequencies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
