/* Checkpoints that contradict themselves: each is refused with the tensor's name. The
 * golden llama model is copied, one thing is changed, and it is opened. */
#include <string.h>

#include "base/file.h"
#include "models/checkpoint.h"
#include "models/safetensors.h"
#include "tests/support/open_checkpoint.h"

#define GOLDEN "tests/golden/models/llama"
#define DIR "build/tmp/checkpoint"
#define FP8 "deepseek_v3-fp8"
#define FP8_DOWN "model.layers.0.mlp.down_proj.weight"

/* what happens to a tensor on its way into the copy */
typedef struct change {
    const char *model;  /* of the golden ones; NULL: llama */
    const char *tensor; /* NULL: none */
    const char *name;   /* new name, or NULL */
    bool drop, nan, negative;
    bool fold;       /* (n) becomes (2, n/2) */
    kvm_dtype dtype; /* another dtype of the same size, or KVM_DTYPES */
    const char *config_from, *config_to;
} change;
static const change none = {.dtype = KVM_DTYPES};

static kvm_status write_weights(const kvm_st *st, const change *c, kvm_arena *a,
                                kvm_err *err)
{
    kvm_st_spec specs[320];
    const kvm_st_tensor *from[320];
    kvm_st_writer *w;
    ptrdiff_t n = 0;
    assert_true(kvm_st_count(st) <= (ptrdiff_t)COUNT(specs));
    for (ptrdiff_t i = 0; i < kvm_st_count(st); i++) {
        const kvm_st_tensor *t = kvm_st_at(st, i);
        const bool hit = c->tensor && kvm_str_eq(t->name, kvm_str_of(c->tensor));
        if (hit && c->drop) continue;
        kvm_st_spec *s = &specs[n];
        *s = (kvm_st_spec){.name = t->name, .dtype = t->t.dtype, .rank = t->t.rank};
        memcpy(s->dim, t->t.dim, sizeof s->dim);
        if (hit && c->fold) s->rank = 2, s->dim[1] = s->dim[0] / 2, s->dim[0] = 2;
        if (hit && c->name) s->name = kvm_str_of(c->name);
        if (hit && c->dtype != KVM_DTYPES) s->dtype = c->dtype;
        from[n++] = t;
    }
    TRY(kvm_st_begin(&w, a, KVM_STR(DIR "/model.safetensors"), specs, n, NULL, err));
    for (ptrdiff_t i = 0; i < n; i++) {
        uint16_t *copy = kvm_new(a, uint16_t, (ptrdiff_t)from[i]->bytes / 2 + 1);
        const bool hit = c->tensor && kvm_str_eq(from[i]->name, kvm_str_of(c->tensor));
        memcpy(copy, from[i]->t.data, from[i]->bytes);
        if (hit && c->nan && from[i]->t.dtype == KVM_F8_E4M3)
            copy[5] = 0x7F38;
        else if (hit && c->nan)
            copy[5] = 0x7FC0;
        if (hit && c->negative) copy[5] |= 0x8000;
        TRY(kvm_st_append(w, copy, from[i]->bytes, err));
    }
    return kvm_st_publish(w, NULL, err);
}

static void copy_model(const change *c)
{
    kvm_arena a = check_arena(1 << 24);
    kvm_err err = {0};
    kvm_st *st;
    check_tmpdir("checkpoint");
    const kvm_str golden =
        kvm_str_fmt(&a, "tests/golden/models/%s", c->model ? c->model : "llama");
    kvm_str config = check_read(&a, kvm_str_fmt(&a, "%s/config.json", golden.at).at);
    if (c->config_from) {
        const ptrdiff_t at = kvm_str_find(config, kvm_str_of(c->config_from));
        assert_true(at >= 0);
        const kvm_str head = kvm_str_slice(config, 0, at);
        const kvm_str tail =
            kvm_str_slice(config, at + (ptrdiff_t)strlen(c->config_from), config.len);
        config = kvm_str_fmt(&a, "%.*s%s%.*s", KVM_STR_ARG(head), c->config_to,
                             KVM_STR_ARG(tail));
    }
    check_write(DIR "/config.json", config);
    check_ok(kvm_st_open(&st, &a, golden, &err), &err);
    check_ok(write_weights(st, c, &a, &err), &err);
    kvm_arena_free(&a);
}

static const struct {
    change c;
    kvm_status status;
    const char *part;
} contradicting[] = {
    {{.tensor = "model.layers.1.mlp.up_proj.weight", .drop = true, .dtype = KVM_DTYPES},
     KVM_NOTFOUND,
     "model.layers.1.mlp.up_proj.weight is missing"},
    {{.tensor = "lm_head.weight", .drop = true, .dtype = KVM_DTYPES},
     KVM_NOTFOUND,
     "not tied"},
    {{.tensor = "model.embed_tokens.weight", .drop = true, .dtype = KVM_DTYPES},
     KVM_NOTFOUND,
     "embed_tokens"},
    {{.tensor = "model.norm.weight", .dtype = KVM_I16},
     KVM_DTYPE,
     "model.norm.weight is stored as I16"},
    {{.tensor = "model.layers.0.self_attn.k_proj.weight",
      .nan = true,
      .dtype = KVM_DTYPES},
     KVM_NAN,
     "model.layers.0.self_attn.k_proj.weight: number 5"},
    {{.tensor = "model.layers.2.input_layernorm.weight",
      .name = "model.layers.2.self_attn.q_proj.bias",
      .dtype = KVM_DTYPES},
     KVM_NOTFOUND,
     "input_layernorm"},
    {{.dtype = KVM_DTYPES,
      .config_from = "\"vocab_size\": 97",
      .config_to = "\"vocab_size\": 98"},
     KVM_SHAPE,
     "model.embed_tokens.weight has shape [97, 64], but the config implies "
     "[98, 64]"},
    {{.dtype = KVM_DTYPES,
      .config_from = "\"head_dim\": 16",
      .config_to = "\"head_dim\": 24"},
     KVM_SHAPE,
     "self_attn.q_proj.weight"},
    {{.dtype = KVM_DTYPES,
      .config_from = "\"num_hidden_layers\": 3",
      .config_to = "\"num_hidden_layers\": 4"},
     KVM_NOTFOUND,
     "model.layers.3."},
    {{.dtype = KVM_DTYPES, .config_from = "\"llama\"", .config_to = "\"qwen2\""},
     KVM_NOTFOUND,
     "q_proj.bias"},
    /* what hybrid families may contradict */
    {{.model = "qwen3_5",
      .tensor = "model.layers.2.linear_attn.A_log",
      .drop = true,
      .dtype = KVM_DTYPES},
     KVM_NOTFOUND,
     "model.layers.2.linear_attn.A_log is missing"},
    {{.model = "qwen3_5",
      .dtype = KVM_DTYPES,
      .config_from = "\"linear_num_value_heads\": 6",
      .config_to = "\"linear_num_value_heads\": 4"},
     KVM_SHAPE,
     "linear_attn.out_proj.weight has shape [48, 144], but the config implies [48, "
     "96]"},
    {{.model = "qwen3_5",
      .dtype = KVM_DTYPES,
      .config_from = "\"linear_conv_kernel_dim\": 4",
      .config_to = "\"linear_conv_kernel_dim\": 3"},
     KVM_SHAPE,
     "linear_attn.conv1d.weight has shape [208, 1, 4]"},
    {{.model = "deepseek_v3",
      .tensor = "model.layers.1.mlp.gate.e_score_correction_bias",
      .drop = true,
      .dtype = KVM_DTYPES},
     KVM_NOTFOUND,
     "e_score_correction_bias"},
    {{.model = "deepseek_v3",
      .dtype = KVM_DTYPES,
      .config_from = "\"n_routed_experts\": 8",
      .config_to = "\"n_routed_experts\": 9"},
     KVM_SHAPE,
     "mlp.gate.weight has shape [8, 48]"},
    {{.model = "glm_moe_dsa",
      .dtype = KVM_DTYPES,
      .config_from = "\"shared\",\n  \"full\"",
      .config_to = "\"shared\",\n  \"shared\""},
     KVM_MISMATCH,
     "layer 2 has an indexer of its own"},
    {{.model = "qwen3_5",
      .tensor = "model.layers.2.linear_attn.dt_bias",
      .fold = true,
      .dtype = KVM_DTYPES},
     KVM_SHAPE,
     "linear_attn.dt_bias has shape [2, 3], but the config implies [6]"},
    /* blocks of one layer each */
    {{.model = "nemotron_h-published",
      .tensor = "backbone.layers.4.mixer.A_log",
      .drop = true,
      .dtype = KVM_DTYPES},
     KVM_NOTFOUND,
     "backbone.layers.4.mixer.A_log is missing"},
    {{.model = "nemotron_h",
      .tensor = "model.layers.0.mixer.dt_bias",
      .fold = true,
      .dtype = KVM_DTYPES},
     KVM_SHAPE,
     "layers.0.mixer.dt_bias has shape [2, 2], but the config implies [4]"},
    {{.model = "nemotron_h",
      .dtype = KVM_DTYPES,
      .config_from = "\"n_groups\": 2",
      .config_to = "\"n_groups\": 1"},
     KVM_SHAPE,
     "layers.0.mixer.in_proj.weight has shape [164, 48], but the config implies [132, "
     "48]"},
    {{.model = "nemotron_h",
      .dtype = KVM_DTYPES,
      .config_from = "\"use_conv_bias\": true",
      .config_to = "\"use_conv_bias\": false"},
     KVM_MISMATCH,
     "use_conv_bias"},
    {{.model = "nemotron_h",
      .dtype = KVM_DTYPES,
      .config_from = "\"moe_latent_size\": 24",
      .config_to = "\"moe_latent_size\": null"},
     KVM_SHAPE,
     "mixer.experts.up_proj has shape [8, 20, 24]"},
    {{.model = "nemotron_h-published",
      .dtype = KVM_DTYPES,
      .config_from = "ME*-M*E",
      .config_to = "ME*-*ME"},
     KVM_NOTFOUND,
     "backbone.layers.4.mixer.q_proj.weight is missing"},
    {{.model = "nemotron_h-published",
      .dtype = KVM_DTYPES,
      .config_from = "ME*-M*E",
      .config_to = "ME*-M*-"},
     KVM_NOTFOUND,
     "backbone.layers.6.mixer.up_proj.weight is missing"},
    {{.model = "nemotron_h-published",
      .tensor = "backbone.embeddings.weight",
      .drop = true,
      .dtype = KVM_DTYPES},
     KVM_NOTFOUND,
     "embeddings.weight under backbone."},
    {{.model = "glm5_next-published",
      .tensor = "model.language_model.layers.1.self_attn.indexer.index_kpool_compress_"
                "gate",
      .drop = true,
      .dtype = KVM_DTYPES},
     KVM_NOTFOUND,
     "indexer.index_kpool_compress_gate is missing"},
    {{.model = "glm5_next",
      .dtype = KVM_DTYPES,
      .config_from = "\"index_kpool\": 4",
      .config_to = "\"index_kpool\": 2"},
     KVM_SHAPE,
     "index_kpool_compress_ape has shape [4, 16], but the config implies [2, 16]"},
    {{.model = "glm5_next",
      .dtype = KVM_DTYPES,
      .config_from = "\"hc_mult\": 3",
      .config_to = "\"hc_mult\": 4"},
     KVM_SHAPE,
     "attn_hc.fn has shape [15, 144], but the config implies [24, 192]"},
    {{.model = "glm5_next",
      .tensor = "model.layers.2.ffn_hc.scale",
      .drop = true,
      .dtype = KVM_DTYPES},
     KVM_NOTFOUND,
     "model.layers.2.ffn_hc.scale is missing"},
    /* weights of 8 bits and their scales */
    {{.model = FP8, .tensor = FP8_DOWN "_scale_inv", .drop = true, .dtype = KVM_DTYPES},
     KVM_DTYPE,
     FP8_DOWN " is stored as F8_E4M3, but its scales"},
    {{.model = FP8,
      .dtype = KVM_DTYPES,
      .config_from = "   16,\n   16\n",
      .config_to = "   16,\n   32\n"},
     KVM_SHAPE,
     "but blocks of 16 x 32 make a grid of ["},
    {{.model = FP8,
      .dtype = KVM_DTYPES,
      .config_from = "\"weight_block_size\"",
      .config_to = "\"no_block_size\""},
     KVM_SHAPE,
     "states no weight_block_size"},
    {{.model = FP8, .tensor = FP8_DOWN "_scale_inv", .nan = true, .dtype = KVM_DTYPES},
     KVM_RANGE,
     FP8_DOWN "_scale_inv: scale 2 is nan"},
    {{.model = FP8,
      .tensor = FP8_DOWN "_scale_inv",
      .negative = true,
      .dtype = KVM_DTYPES},
     KVM_RANGE,
     FP8_DOWN "_scale_inv: scale 2 is -"},
    {{.model = FP8, .tensor = FP8_DOWN "_scale_inv", .dtype = KVM_I32},
     KVM_DTYPE,
     FP8_DOWN "_scale_inv is stored as I32"},
    {{.model = FP8, .tensor = FP8_DOWN, .dtype = KVM_F8_E5M2},
     KVM_MISMATCH,
     FP8_DOWN " is stored as F8_E5M2"},
    {{.model = FP8, .tensor = FP8_DOWN, .dtype = KVM_I8},
     KVM_MISMATCH,
     FP8_DOWN " is stored as I8"},
    {{.model = FP8, .tensor = FP8_DOWN, .nan = true, .dtype = KVM_DTYPES},
     KVM_NAN,
     FP8_DOWN ": number 11 is nan"},
    {{.model = FP8,
      .tensor = "model.layers.0.self_attn.o_proj.weight_scale_inv",
      .name = "model.layers.0.mlp.down_proj.weight_scale",
      .dtype = KVM_DTYPES},
     KVM_DTYPE,
     "self_attn.o_proj.weight is stored as F8_E4M3, but its scales"},
    {{.model = FP8,
      .tensor = "model.layers.1.mlp.experts.7.up_proj.weight_scale_inv",
      .name = "model.layers.0.mlp.down_proj.weight_scale",
      .dtype = KVM_DTYPES},
     KVM_MISMATCH,
     "scales twice"},
    {{.model = "ministral3-fp8",
      .tensor = "model.layers.0.mlp.down_proj.weight_scale_inv",
      .drop = true,
      .dtype = KVM_DTYPES},
     KVM_DTYPE,
     "its scales (model.layers.0.mlp.down_proj.weight_scale_inv or _scale) are "
     "missing"},
    {{.model = "qwen3-fp8",
      .tensor = "model.layers.0.self_attn.q_proj.weight_scale",
      .name = "model.layers.0.self_attn.q_proj.weight_scale_inv",
      .dtype = KVM_DTYPES},
     KVM_SHAPE,
     "one scale would be expected"},
    {{.dtype = KVM_DTYPES,
      .config_from = "\"num_hidden_layers\": 3",
      .config_to = "\"num_hidden_layers\": 2"},
     KVM_MISMATCH,
     "/model.safetensors: tensor model.layers.2."},
    {{.model = "deepseek_v3",
      .dtype = KVM_DTYPES,
      .config_from = "\"num_hidden_layers\": 3",
      .config_to = "\"num_hidden_layers\": 2"},
     KVM_MISMATCH,
     "is of layer 2, counted from 0, but num_hidden_layers of config.json is 2"},
    {{.model = "qwen3_5",
      .dtype = KVM_DTYPES,
      .config_from = "\"num_hidden_layers\": 4",
      .config_to = "\"num_hidden_layers\": 3"},
     KVM_FORMAT,
     "layer_types has 4 entries for 3 layers"},
    {{.dtype = KVM_DTYPES, .config_from = "{", .config_to = "["},
     KVM_FORMAT,
     "config.json"},
};

static void contradictions(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(contradicting); i++) {
        kvm_err err = {0};
        copy_model(&contradicting[i].c);
        check_status(contradicting[i].status, open_model(DIR, true, NULL, NULL, &err),
                     &err);
        check_contains(err.msg, contradicting[i].part);
        check_contains(err.msg, DIR);
    }
    kvm_err err = {0};
    copy_model(&none);
    check_ok(open_model(DIR, true, NULL, NULL, &err), &err);
    /* layers behind the stack predict further tokens: they are left alone */
    const change behind = {.model = "deepseek_v3",
                           .tensor = "model.layers.2.input_layernorm.weight",
                           .name = "model.layers.2.eh_proj.weight",
                           .dtype = KVM_DTYPES,
                           .config_from = "\"num_hidden_layers\": 3",
                           .config_to = "\"num_hidden_layers\": 2"};
    copy_model(&behind);
    check_ok(open_model(DIR, true, NULL, NULL, &err), &err);
}

/* the count follows its key and type in the file's metadata */
static void fewer_blocks_than_the_file_has(void **state)
{
    (void)state;
    kvm_arena a = check_arena(1 << 22);
    kvm_err err = {0};
    kvm_checkpoint *ck;
    const kvm_str key = KVM_STR("mistral3.block_count");
    const kvm_str whole = check_read(&a, "tests/golden/models/mistral3.gguf");
    const ptrdiff_t at = kvm_str_find(whole, key);
    assert_true(at > 0);
    char *bytes = kvm_new(&a, char, whole.len);
    memcpy(bytes, whole.at, (size_t)whole.len);
    bytes[at + key.len + 4]--;
    check_tmpdir("checkpoint");
    check_write(DIR "/fewer.gguf", (kvm_str){bytes, whole.len});
    check_status(KVM_MISMATCH,
                 kvm_checkpoint_open(&ck, &a, KVM_STR(DIR "/fewer.gguf"), &err), &err);
    check_contains(err.msg, DIR "/fewer.gguf: tensor blk.");
    check_contains(err.msg, "but block_count is ");
    kvm_arena_free(&a);
}

static void cut_weights(void **state)
{
    (void)state;
    kvm_arena a = check_arena(1 << 22);
    kvm_err err = {0};
    copy_model(&none);
    const kvm_str whole = check_read(&a, DIR "/model.safetensors");
    check_write(DIR "/model.safetensors", kvm_str_slice(whole, 0, whole.len - 9));
    check_status(KVM_FORMAT, open_model(DIR, false, NULL, NULL, &err), &err);
    check_contains(err.msg, "damaged weights; download them again: " DIR);
    kvm_arena_free(&a);
}

/* the golden model's weights and one tensor more, whose data is `bytes` long */
static void write_with(kvm_arena *a, const kvm_st_spec *more, const void *data,
                       size_t bytes)
{
    kvm_err err = {0};
    kvm_st *st;
    kvm_st_writer *w;
    kvm_st_spec specs[64];
    check_ok(kvm_st_open(&st, a, KVM_STR(GOLDEN), &err), &err);
    const ptrdiff_t n = kvm_st_count(st);
    for (ptrdiff_t i = 0; i < n; i++) {
        const kvm_st_tensor *t = kvm_st_at(st, i);
        specs[i] =
            (kvm_st_spec){.name = t->name, .dtype = t->t.dtype, .rank = t->t.rank};
        memcpy(specs[i].dim, t->t.dim, sizeof specs[i].dim);
    }
    specs[n] = *more;
    check_ok(kvm_st_begin(&w, a, KVM_STR(DIR "/model.safetensors"), specs, n + 1, NULL,
                          &err),
             &err);
    for (ptrdiff_t i = 0; i < n; i++)
        check_ok(
            kvm_st_append(w, kvm_st_at(st, i)->t.data, kvm_st_at(st, i)->bytes, &err),
            &err);
    check_ok(kvm_st_append(w, data, bytes, &err), &err);
    check_ok(kvm_st_publish(w, NULL, &err), &err);
}

/* a bias in the file that the config does not announce would be left out in silence */
static void unknown_bias(void **state)
{
    (void)state;
    kvm_arena a = check_arena(1 << 24);
    kvm_err err = {0};
    copy_model(&none);
    const float bias[64] = {1};
    write_with(
        &a,
        &(kvm_st_spec){{"model.layers.1.self_attn.o_proj.bias", 36}, KVM_F32, 1, {64}},
        bias, sizeof bias);
    check_status(KVM_MISMATCH, open_model(DIR, false, NULL, NULL, &err), &err);
    check_contains(err.msg, "attention_bias");
    kvm_arena_free(&a);
}

static void places(void **state)
{
    (void)state;
    kvm_err err = {0};
    check_status(KVM_NOTFOUND, open_model("build/tmp/nowhere", false, NULL, NULL, &err),
                 &err);
    err = (kvm_err){0};
    check_tmpdir("checkpoint");
    check_status(KVM_NOTFOUND, open_model(DIR, false, NULL, NULL, &err), &err);
    check_contains(err.msg, "config.json");
    err = (kvm_err){0};
    check_status(KVM_FORMAT, open_model("Makefile", false, NULL, NULL, &err), &err);
}

/* The fingerprint follows every byte of config and weights, and nothing else. */
static void fingerprints(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_model_info info = {0};
    char first[3][65], other[3][65];
    copy_model(&none);
    check_ok(open_model(DIR, false, &info, first, &err), &err);
    assert_int_equal(strlen(first[0]), 64);
    assert_int_equal(strlen(first[1]), 64);
    assert_int_equal(strlen(first[2]), 64);
    check_str(info.family, "llama");
    assert_int_equal(info.weight_dtype, KVM_BF16);
    assert_int_equal(info.parameters,
                     2 * 97 * 64 + 64 +
                         3 * (2 * 64 + 2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 72));
    assert_int_equal(info.weight_bytes, 2 * info.parameters);
    assert_true(info.flops_per_token ==
                2.0 * 3 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 72));
    check_ok(open_model(DIR, false, &info, other, &err), &err);
    assert_memory_equal(first, other, sizeof first);

    const change config = {.dtype = KVM_DTYPES,
                           .config_from = "\"rms_norm_eps\": 1e-06",
                           .config_to = "\"rms_norm_eps\": 1e-05"};
    copy_model(&config);
    check_ok(open_model(DIR, false, &info, other, &err), &err);
    assert_string_not_equal(first[0], other[0]);
    assert_string_equal(first[1], other[1]);
    assert_string_not_equal(first[2], other[2]);

    const change weight = {
        .tensor = "model.norm.weight", .nan = true, .dtype = KVM_DTYPES};
    copy_model(&weight);
    check_ok(open_model(DIR, false, &info, other, &err), &err);
    assert_string_equal(first[0], other[0]);
    assert_string_not_equal(first[1], other[1]);
    assert_string_not_equal(first[2], other[2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contradictions),
        cmocka_unit_test(unknown_bias),
        cmocka_unit_test(places),
        cmocka_unit_test(fingerprints),
        cmocka_unit_test(cut_weights),
        cmocka_unit_test(fewer_blocks_than_the_file_has),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
