/* Configs: what their blocks are and how large, in the words of each family, and
 * numbers that cannot be. */
#include <string.h>

#include "tests/support/configs.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scaled_weights), cmocka_unit_test(refused),
        cmocka_unit_test(single_blocks),  cmocka_unit_test(glm_defaults),
        cmocka_unit_test(bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
