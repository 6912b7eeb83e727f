/* A family that nobody has: latent attention in every other block, the gated delta rule
 * in the others, experts behind a sigmoid router from the second block on. It is one
 * row of models/families.def, here put in front of the table, and nothing else. */
#include "base/json.h"

#define kvm_config__family table_family
/* NOLINTNEXTLINE(bugprone-suspicious-include): with the table's own look-up renamed */
#include "models/config.c"
#undef kvm_config__family

#include <stdio.h>
#include <string.h>

#include "models/model.h"
#include "models/safetensors.h"
#include "tests/support/check.h"

#define X(id, ...)                                                                     \
    {                                                                                  \
        .name = #id, __VA_ARGS__                                                       \
    }
static const kvm_family row =
    X(latent_delta, .mixer = KVM_LAYER_MLA, .recurrent = KVM_LAYER_GDN,
      .ffn = KVM_LAYER_FFN, .moe = KVM_LAYER_MOE, .sigmoid = true, .eps = 1e-6,
      .theta = 1e4, .lora_eps = 1e-6);
#undef X

const kvm_family *kvm_config__family(kvm_str name, bool gguf);
const kvm_family *kvm_config__family(kvm_str name, bool gguf)
{
    return !gguf && kvm_str_eq(name, kvm_str_of(row.name)) ? &row
                                                           : table_family(name, gguf);
}

#define DIR "build/tmp/family"
enum { LAYERS = 4, MOST = 256, T = 41, V = 97, PREFIX = 23 };

/* ---- a checkpoint out of two others ---- */

typedef struct mixture {
    kvm_arena *keep;
    kvm_st_spec specs[MOST];
    const void *data[MOST];
    ptrdiff_t n;
} mixture;

/* the tensors of st whose names begin with `from`, under names that begin with `to` */
static void take(mixture *x, const kvm_st *st, const char *from, const char *to)
{
    const kvm_str prefix = kvm_str_of(from);
    const ptrdiff_t before = x->n;
    for (ptrdiff_t i = 0; i < kvm_st_count(st); i++) {
        const kvm_st_tensor *t = kvm_st_at(st, i);
        if (!kvm_str_starts(t->name, prefix)) continue;
        assert_true(x->n < MOST);
        kvm_st_spec *s = &x->specs[x->n];
        *s = (kvm_st_spec){.dtype = t->t.dtype, .rank = t->t.rank};
        memcpy(s->dim, t->t.dim, sizeof s->dim);
        s->name =
            kvm_str_fmt(x->keep, "%s%.*s", to,
                        KVM_STR_ARG(kvm_str_slice(t->name, prefix.len, t->name.len)));
        assert_non_null(s->name.at);
        x->data[x->n++] = t->t.data;
    }
    assert_true(x->n > before);
}

/* blocks 0 and 2 with the delta rule of qwen3_5, 1 and 3 with deepseek_v3's latents */
static void mix(void)
{
    kvm_arena a = check_arena(1 << 24);
    kvm_err err = {0};
    kvm_st *latent, *delta;
    kvm_st_writer *w;
    static mixture x;
    x = (mixture){.keep = &a};
    check_tmpdir("family");
    check_ok(kvm_st_open(&latent, &a, KVM_STR("tests/golden/models/deepseek_v3"), &err),
             &err);
    check_ok(kvm_st_open(&delta, &a, KVM_STR("tests/golden/models/qwen3_5"), &err),
             &err);
    take(&x, latent, "model.embed_tokens.", "model.embed_tokens.");
    take(&x, latent, "model.norm.", "model.norm.");
    take(&x, latent, "lm_head.", "lm_head.");
    for (int l = 0; l < LAYERS; l++) {
        const bool recurs = l % 2 == 0;
        char from[64], to[64];
        static const char *const parts[] = {"mlp.", "input_layernorm.",
                                            "post_attention_layernorm."};
        for (size_t p = 0; p < COUNT(parts); p++) {
            snprintf(from, sizeof from, "model.layers.%d.%s", l < 3 ? l : 1, parts[p]);
            snprintf(to, sizeof to, "model.layers.%d.%s", l, parts[p]);
            take(&x, latent, from, to);
        }
        const char *mixer = recurs ? "linear_attn." : "self_attn.";
        snprintf(from, sizeof from, "model.layers.%d.%s", recurs ? l : l / 2 + 1,
                 mixer);
        snprintf(to, sizeof to, "model.layers.%d.%s", l, mixer);
        take(&x, recurs ? delta : latent, from, to);
    }
    check_ok(kvm_st_begin(&w, &a, KVM_STR(DIR "/model.safetensors"), x.specs, x.n, NULL,
                          &err),
             &err);
    for (ptrdiff_t i = 0; i < x.n; i++) {
        ptrdiff_t bytes = kvm_dtype_block_bytes(x.specs[i].dtype);
        for (int d = 0; d < x.specs[i].rank; d++) bytes *= x.specs[i].dim[d];
        check_ok(kvm_st_append(w, x.data[i], (size_t)bytes, &err), &err);
    }
    check_ok(kvm_st_publish(w, NULL, &err), &err);
    check_write(DIR "/config.json",
                KVM_STR("{\"model_type\": \"latent_delta\", \"hidden_size\": 48, "
                        "\"intermediate_size\": 72, \"num_hidden_layers\": 4, "
                        "\"num_attention_heads\": 4, \"vocab_size\": 97, "
                        "\"max_position_embeddings\": 128, \"kv_lora_rank\": 32, "
                        "\"qk_nope_head_dim\": 16, \"qk_rope_head_dim\": 8, "
                        "\"v_head_dim\": 12, \"linear_num_key_heads\": 2, "
                        "\"linear_num_value_heads\": 6, \"linear_key_head_dim\": 16, "
                        "\"linear_value_head_dim\": 24, \"layer_types\": "
                        "[\"linear_attention\", \"full_attention\", "
                        "\"linear_attention\", \"full_attention\"], "
                        "\"n_routed_experts\": 8, \"num_experts_per_tok\": 3, "
                        "\"n_shared_experts\": 2, \"moe_intermediate_size\": 20, "
                        "\"first_k_dense_replace\": 1}"));
    kvm_arena_free(&a);
}

/* ---- running it ---- */

enum { OBJECTS = 8, WIDEST = 48 * PREFIX };
typedef struct tape {
    const kvm_model *m;
    float rows[OBJECTS][6 * 16 * 24 > WIDEST ? 6 * 16 * 24 : WIDEST];
} tape;

/* rows and states as they are kept */
static kvm_status record(void *ctx, ptrdiff_t object, int point, ptrdiff_t first,
                         ptrdiff_t n, const float *rows, kvm_err *err)
{
    (void)point, (void)err;
    tape *t = ctx;
    const kvm_object *o = kvm_model_object(t->m, object);
    const ptrdiff_t width = o->heads * o->dim;
    const ptrdiff_t from = kvm_object_per_prompt(o) ? 0 : first * width;
    memcpy(t->rows[object] + from, rows, (size_t)(n * width) * sizeof *rows);
    return KVM_OK;
}

static void inject(kvm_cache *c, const tape *t)
{
    kvm_err err = {0};
    check_ok(kvm_inject_begin(c, PREFIX, &err), &err);
    for (ptrdiff_t i = 0; i < OBJECTS; i++) {
        const kvm_object *o = kvm_model_object(t->m, i);
        if (!kvm_object_per_prompt(o)) {
            check_ok(kvm_inject_rows(c, i, 3, 0, PREFIX, t->rows[i], &err), &err);
            continue;
        }
        const kvm_state s = {.data = t->rows[i],
                             .axes = kvm_str_of(kvm_object_axes(o->kind)),
                             .dim = {o->shape[0], o->shape[1], o->shape[2]},
                             .dtype = KVM_F32,
                             .tokens = PREFIX};
        check_ok(kvm_inject_state(c, i, &s, &err), &err);
    }
    check_ok(kvm_inject_end(c, &err), &err);
}

/* every object of both kinds of block; pieces of any size; itself put back, to the
 * bit */
static void runs(const char *backend)
{
    kvm_arena a = check_arena((size_t)1 << 28);
    kvm_err err = {0};
    kvm_compute *c;
    kvm_model *m;
    kvm_cache *cache, *other;
    int32_t ids[T];
    static float whole[T * V], rest[T * V];
    static tape t;
    const kvm_backend *b = kvm_backend_find(kvm_str_of(backend));
    const kvm_model_options o = {.no_tokenizer = true, .check_finite = true};
    for (int i = 0; i < T; i++) ids[i] = (int32_t)(i * 29 % V);
    check_ok(kvm_compute_new(&c, &a, b, 1, &err), &err);
    check_ok(kvm_model_open(&m, &a, c, KVM_STR(DIR), &o, &err), &err);
    static const char *const kinds[OBJECTS] = {"state",      "window",    "latent",
                                               "rotary key", "state",     "window",
                                               "latent",     "rotary key"};
    assert_int_equal(kvm_model_info_of(m)->objects, OBJECTS);
    for (int i = 0; i < OBJECTS; i++)
        assert_string_equal(kvm_object_name(kvm_model_object(m, i)->kind), kinds[i]);
    check_ok(kvm_cache_new(&cache, &a, m, T, &err), &err);
    check_ok(kvm_cache_new(&other, &a, m, T, &err), &err);
    kvm_forward_options f = {.logits_last = T, .logits = whole};
    check_ok(kvm_model_forward(m, cache, ids, T, &f, &err), &err);
    double top = 0;
    for (int i = 0; i < T * V; i++) top = fmax(top, fabs((double)whole[i]));
    assert_true(top > 0.1 && isfinite(top));

    kvm_cache_clear(cache);
    t.m = m;
    const kvm_capture sink = {.rows = record, .points = 1u << 3, .ctx = &t};
    f = (kvm_forward_options){.capture = &sink, .chunk = 7};
    check_ok(kvm_model_forward(m, cache, ids, PREFIX, &f, &err), &err);
    f = (kvm_forward_options){.logits_last = T - PREFIX, .logits = rest};
    check_ok(kvm_model_forward(m, cache, ids + PREFIX, T - PREFIX, &f, &err), &err);
    for (int i = 0; i < (T - PREFIX) * V; i++)
        assert_true(fabs((double)rest[i] - (double)whole[PREFIX * V + i]) < 1e-5 * top);
    inject(other, &t);
    f.logits = whole;
    check_ok(kvm_model_forward(m, other, ids + PREFIX, T - PREFIX, &f, &err), &err);
    assert_memory_equal(whole, rest, sizeof *rest * (T - PREFIX) * V);
    kvm_arena_free(&a);
}

static void one_row_is_a_family(void **state)
{
    (void)state;
    mix();
    runs("ref");
    runs("cpu");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_row_is_a_family)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
