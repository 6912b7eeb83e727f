/* Sequences that pass the stack layer by layer, or through parts of it that are models
 * of their own: the rows of plain forwards, to the bit, for every kind of layer; and a
 * checkpoint that is larger than the memory which it runs in. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/rng.h"
#include "models/model.h"
#include "models/safetensors.h"
#include "tests/support/check.h"

#define DIR "build/tmp/layerwise"

/* ---- the same bits ---- */

/* what a sink was handed, in the order of (sequence, object, point, token) */
typedef struct tape {
    const kvm_model *m;
    ptrdiff_t sequence, longest;
    uint64_t *sums; /* (sequences, objects + layers, points, longest) */
} tape;
enum { SEQUENCES = 3, POINTS = 4 };

static uint64_t sum_of(const float *x, ptrdiff_t n)
{
    uint64_t h = 14695981039346656037u;
    for (ptrdiff_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, x + i, sizeof u);
        h = (h ^ u) * 1099511628211u;
    }
    return h;
}

static uint64_t *place(const tape *t, ptrdiff_t what, int point, ptrdiff_t token)
{
    const kvm_model_info *i = kvm_model_info_of(t->m);
    const ptrdiff_t row = t->sequence * (i->objects + i->layers) + what;
    return &t->sums[(row * POINTS + point) * t->longest + token];
}

static kvm_status on_rows(void *ctx, ptrdiff_t object, int point, ptrdiff_t first,
                          ptrdiff_t n, const float *rows, kvm_err *err)
{
    (void)err;
    const tape *t = ctx;
    const kvm_object *o = kvm_model_object(t->m, object);
    const bool whole = kvm_object_per_prompt(o) && point == KVM_POINT_ENGINE;
    const ptrdiff_t width = !kvm_object_per_prompt(o) || whole ? o->heads * o->dim
                            : point == KVM_POINT_RAW           ? o->replay
                                                               : o->inputs;
    for (ptrdiff_t i = 0; i < n; i++)
        *place(t, object, point, whole ? 0 : first + i) =
            sum_of(rows + i * width, width);
    return KVM_OK;
}

static kvm_status on_hidden(void *ctx, ptrdiff_t layer, ptrdiff_t first, ptrdiff_t n,
                            const float *h, kvm_err *err)
{
    (void)err;
    const tape *t = ctx;
    const kvm_model_info *info = kvm_model_info_of(t->m);
    for (ptrdiff_t i = 0; i < n; i++) /* the first stream of them, if there are more */
        *place(t, info->objects + layer, 0, first + i) =
            sum_of(h + i * info->hidden, 1);
    return KVM_OK;
}

static kvm_status on_sequence(void *ctx, ptrdiff_t layer, ptrdiff_t sequence,
                              kvm_err *err)
{
    (void)layer, (void)err;
    ((tape *)ctx)->sequence = sequence;
    return KVM_OK;
}

static kvm_model *open_at(kvm_arena *keep, const char *path, kvm_model_options o)
{
    kvm_err err = {0};
    kvm_compute *c;
    kvm_model *m;
    o.no_tokenizer = true;
    check_ok(kvm_compute_new(&c, keep, kvm_backend_find(KVM_STR("cpu")), 1, &err),
             &err);
    check_ok(kvm_model_open(&m, keep, c, kvm_str_of(path), &o, &err), &err);
    return m;
}

static int32_t *some_ids(kvm_arena *keep, ptrdiff_t n, ptrdiff_t vocab)
{
    kvm_rng r = kvm_rng_seed(7, 1);
    int32_t *ids = kvm_new(keep, int32_t, n);
    assert_non_null(ids);
    for (ptrdiff_t i = 0; i < n; i++)
        ids[i] = (int32_t)kvm_rng_below(&r, (uint64_t)vocab);
    return ids;
}

/* one sequence through parts that hand its pieces on, as gangs do */
static void through_parts(kvm_model *const *part, kvm_cache *const *cache, int parts,
                          const int32_t *ids, ptrdiff_t n, const kvm_capture *sink)
{
    kvm_arena a = check_arena(1 << 26);
    kvm_err err = {0};
    const ptrdiff_t step = kvm_model_piece(n);
    for (int p = 0; p < parts; p++) kvm_cache_clear(cache[p]);
    for (ptrdiff_t t = 0; t < n; t += step) {
        const ptrdiff_t size = n - t < step ? n - t : step;
        const size_t bytes = kvm_model_between(part[0], t, size);
        char *between = kvm_new(&a, char, (ptrdiff_t)bytes);
        assert_non_null(between);
        for (int p = 0; p < parts; p++)
            check_ok(kvm_model_run_part(part[p], cache[p], ids + t, size, between, sink,
                                        &err),
                     &err);
    }
    kvm_arena_free(&a);
}

static void in_parts(const char *path, int parts, const int32_t *ids,
                     const ptrdiff_t offset[SEQUENCES + 1], kvm_capture sink, tape *t)
{
    enum { MOST = 8 };
    kvm_arena keep = check_arena((size_t)1 << 34);
    kvm_err err = {0};
    kvm_model *part[MOST];
    kvm_cache *cache[MOST];
    for (int p = 0; p < parts; p++) {
        part[p] = open_at(&keep, path, (kvm_model_options){.part = p, .parts = parts});
        check_ok(kvm_cache_new(&cache[p], &keep, part[p],
                               kvm_model_info_of(part[p])->context, &err),
                 &err);
    }
    t->m = part[0];
    sink.ctx = t;
    for (t->sequence = 0; t->sequence < SEQUENCES; t->sequence++)
        through_parts(part, cache, parts, ids + offset[t->sequence],
                      offset[t->sequence + 1] - offset[t->sequence], &sink);
    check_str(kvm_str_of(kvm_model_info_of(part[0])->fingerprint),
              kvm_model_info_of(part[parts - 1])->fingerprint);
    if (parts > 1) {
        check_status(KVM_USAGE,
                     kvm_model_forward(part[0], cache[0], ids, 1, NULL, &err), &err);
        check_contains(err.msg, "only layers 0 to");
    }
    kvm_arena_free(&keep);
}

static void same_bits(const char *path, const ptrdiff_t offset[SEQUENCES + 1],
                      bool hidden)
{
    kvm_arena keep = check_arena((size_t)1 << 32);
    kvm_err err = {0};
    kvm_model *m = open_at(&keep, path, (kvm_model_options){0}),
              *large = open_at(&keep, path, (kvm_model_options){.offload = true});
    const kvm_model_info *info = kvm_model_info_of(m);
    static const int parts[] = {1, 2, 3, 8}; /* 8: more than there are layers */
    enum { PLAIN, MEMORY, SPILLED, PARTS, TAPES = PARTS + COUNT(parts) };
    tape t[TAPES];
    kvm_cache *cache;
    const int32_t *ids = some_ids(&keep, offset[SEQUENCES], info->vocab);
    for (int i = 0; i < TAPES; i++) {
        t[i] = (tape){.m = i ? large : m, .longest = offset[SEQUENCES]};
        t[i].sums =
            kvm_new(&keep, uint64_t,
                    SEQUENCES * (info->objects + info->layers) * POINTS * t[i].longest);
        assert_non_null(t[i].sums);
    }
    kvm_capture sink = {.rows = on_rows,
                        .points = 1u << 1 | 1u << 2 | 1u << 3,
                        .hidden = hidden ? on_hidden : NULL,
                        .ctx = &t[0]};
    check_ok(kvm_cache_new(&cache, &keep, m, info->context, &err), &err);
    for (ptrdiff_t s = 0; s < SEQUENCES; s++) {
        t[0].sequence = s;
        kvm_cache_clear(cache);
        check_ok(kvm_model_forward(m, cache, ids + offset[s], offset[s + 1] - offset[s],
                                   &(kvm_forward_options){.capture = &sink}, &err),
                 &err);
    }
    for (int i = MEMORY; i <= SPILLED; i++) {
        sink.ctx = &t[i];
        const kvm_batch b = {.ids = ids,
                             .offset = offset,
                             .n = SEQUENCES,
                             .capture = &sink,
                             .sequence = on_sequence,
                             .ctx = &t[i],
                             .memory = i == SPILLED ? 100 : (size_t)1 << 30,
                             .spill = KVM_STR(DIR "/spill")};
        check_ok(kvm_model_run_layers(large, &b, &err), &err);
        assert_false(kvm_path_exists(b.spill));
    }
    for (size_t i = 0; i < COUNT(parts); i++)
        in_parts(path, parts[i], ids, offset, sink, &t[PARTS + i]);
    const size_t bytes =
        (size_t)(SEQUENCES * (info->objects + info->layers) * POINTS * t[0].longest) *
        sizeof(uint64_t);
    for (int i = MEMORY; i < TAPES; i++)
        if (memcmp(t[PLAIN].sums, t[i].sums, bytes) != 0)
            fail_msg("%s: other bits %s", path,
                     i < PARTS ? "layer by layer" : "part by part");
    kvm_arena_free(&keep);
}

static void every_kind_of_layer(void **state)
{
    (void)state;
    static const char *const models[] = {"llama",
                                         "qwen2",
                                         "ministral3-fp8",
                                         "deepseek_v3-groups",
                                         "kimi_linear",
                                         "qwen3_next",
                                         "deepseek_v32",
                                         "glm_moe_dsa",
                                         "qwen4_exp",
                                         "qwen3_5_moe",
                                         "llama-mixed.gguf",
                                         "nemotron_h",
                                         "nemotron_h-dense",
                                         "glm5_next"};
    static const ptrdiff_t offset[] = {0, 53, 54, 90};
    check_tmpdir("layerwise");
    for (size_t i = 0; i < COUNT(models); i++) {
        char path[80];
        snprintf(path, sizeof path, "tests/golden/models/%s", models[i]);
        same_bits(path, offset, false);
        same_bits(path, offset, true);
    }
}

/* sequences of several steps: shared choices of tokens are kept for each */
static void long_sequences(void **state)
{
    (void)state;
    static const char *const models[] = {"glm_moe_dsa", "qwen4_exp"};
    static const ptrdiff_t offset[] = {0, 700, 720, 1300};
    check_tmpdir("layerwise");
    for (size_t i = 0; i < COUNT(models); i++) {
        kvm_arena a = check_arena(1 << 22);
        static const char from[] = "\"max_position_embeddings\": 128";
        const kvm_str golden = kvm_str_fmt(&a, "tests/golden/models/%s", models[i]);
        const kvm_str config =
            check_read(&a, kvm_str_fmt(&a, "%s/config.json", golden.at).at);
        const ptrdiff_t at = kvm_str_find(config, kvm_str_of(from));
        assert_true(at > 0);
        const kvm_str tail =
            kvm_str_slice(config, at + (ptrdiff_t)strlen(from), config.len);
        check_write(DIR "/config.json",
                    kvm_str_fmt(&a, "%.*s\"max_position_embeddings\": 2048%.*s",
                                (int)at, config.at, KVM_STR_ARG(tail)));
        check_write(
            DIR "/model.safetensors",
            check_read(&a, kvm_str_fmt(&a, "%s/model.safetensors", golden.at).at));
        same_bits(DIR, offset, true);
        kvm_arena_free(&a);
    }
}

/* ---- larger than memory ---- */

enum {
    HIDDEN = 1024,
    FFN = 3072,
    LAYERS = 12,
    VOCAB = 64,
    LAYER_MIB = 22, /* 2 bytes of 2.5 HIDDEN^2 + 3 HIDDEN FFN */
    MIB = 1 << 20
};

static void write_large(const char *dir)
{
    kvm_arena a = check_arena(1 << 26);
    kvm_err err = {0};
    enum { KINDS = 9 };
    static const struct {
        const char *name;
        ptrdiff_t rows, cols;
    } kinds[KINDS] = {
        {"input_layernorm", HIDDEN, 0},
        {"post_attention_layernorm", HIDDEN, 0},
        {"self_attn.q_proj", HIDDEN, HIDDEN},
        {"self_attn.k_proj", HIDDEN / 4, HIDDEN},
        {"self_attn.v_proj", HIDDEN / 4, HIDDEN},
        {"self_attn.o_proj", HIDDEN, HIDDEN},
        {"mlp.gate_proj", FFN, HIDDEN},
        {"mlp.up_proj", FFN, HIDDEN},
        {"mlp.down_proj", HIDDEN, FFN},
    };
    kvm_st_spec specs[2 + LAYERS * KINDS] = {
        {KVM_STR("model.embed_tokens.weight"), KVM_BF16, 2, {VOCAB, HIDDEN}},
        {KVM_STR("model.norm.weight"), KVM_BF16, 1, {HIDDEN}}};
    const ptrdiff_t n = 2 + LAYERS * KINDS;
    for (ptrdiff_t i = 2; i < n; i++) {
        const ptrdiff_t l = (i - 2) / KINDS, k = (i - 2) % KINDS;
        specs[i] = (kvm_st_spec){
            .name = kvm_str_fmt(&a, "model.layers.%td.%s.weight", l, kinds[k].name),
            .dtype = KVM_BF16,
            .rank = kinds[k].cols ? 2 : 1,
            .dim = {kinds[k].rows, kinds[k].cols}};
    }
    kvm_st_writer *w;
    const kvm_str path = kvm_str_fmt(&a, "%s/model.safetensors", dir);
    check_ok(kvm_st_begin(&w, &a, path, specs, n, NULL, &err), &err);
    const ptrdiff_t numbers = (ptrdiff_t)FFN * HIDDEN;
    uint16_t *piece = kvm_new(&a, uint16_t, numbers);
    kvm_rng r = kvm_rng_seed(11, 3);
    for (ptrdiff_t i = 0; i < numbers; i++) /* +- 2^-6 .. 2^-5 */
        piece[i] =
            (uint16_t)(0x3c80 | (kvm_rng_below(&r, 2) << 15) | kvm_rng_below(&r, 128));
    for (ptrdiff_t i = 0; i < n; i++) {
        const ptrdiff_t count =
            specs[i].dim[0] * (specs[i].rank == 2 ? specs[i].dim[1] : 1);
        check_ok(kvm_st_append(w, piece, (size_t)count * 2, &err), &err);
    }
    check_ok(kvm_st_publish(w, NULL, &err), &err);
    check_write(kvm_str_fmt(&a, "%s/config.json", dir).at,
                KVM_STR("{\"model_type\": \"llama\", \"hidden_size\": 1024, "
                        "\"intermediate_size\": 3072, \"num_hidden_layers\": 12, "
                        "\"num_attention_heads\": 8, \"num_key_value_heads\": 2, "
                        "\"vocab_size\": 64, \"tie_word_embeddings\": true, "
                        "\"torch_dtype\": \"bfloat16\"}"));
    kvm_arena_free(&a);
}

/* most memory that this process has had, in MiB */
static long high_water(void)
{
    char line[128];
    long kib = -1;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, "VmHWM:", 6) == 0) kib = strtol(line + 6, NULL, 10);
    fclose(f);
    return kib / 1024;
}

static kvm_status count_rows(void *ctx, ptrdiff_t object, int point, ptrdiff_t first,
                             ptrdiff_t n, const float *rows, kvm_err *err)
{
    (void)object, (void)point, (void)first, (void)rows, (void)err;
    *(ptrdiff_t *)ctx += n;
    return KVM_OK;
}

typedef enum way { WHOLE, STREAMED, PART } way;
enum { PART_OF = 4 }; /* the third of four parts */

static kvm_status run_third_part(kvm_model *m, kvm_cache *cache, const int32_t *ids,
                                 ptrdiff_t n, const kvm_capture *sink, kvm_err *err)
{
    static float between[96 * HIDDEN]; /* of a part before: any numbers will do */
    assert_true(kvm_model_between(m, 0, n) <= sizeof between);
    return kvm_model_run_part(m, cache, ids, n, between, sink, err);
}

/* in a process of its own: MiB that a capture took; the weights' file is hashed as
 * well, and looked through for NaN but by a part, which is opened when a plan has */
static long memory_of(way how)
{
    enum { TOKENS = 96, BATCH = 6, MOST = 250 };
    const ptrdiff_t tokens = (ptrdiff_t)BATCH * TOKENS;
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        kvm_arena keep = check_arena((size_t)1 << 34);
        kvm_err err = {0};
        kvm_compute *c;
        kvm_model *m;
        kvm_cache *cache;
        ptrdiff_t offset[BATCH + 1], rows = 0;
        const long before = high_water();
        const kvm_model_options o = {.no_tokenizer = true,
                                     .check_finite = how != PART,
                                     .offload = how == STREAMED,
                                     .part = how == PART ? 2 : 0,
                                     .parts = how == PART ? PART_OF : 1};
        const int32_t *ids = some_ids(&keep, tokens, VOCAB);
        const kvm_capture sink = {.rows = count_rows, .points = 1u << 2, .ctx = &rows};
        for (int i = 0; i <= BATCH; i++) offset[i] = tokens / BATCH * i;
        if (kvm_compute_new(&c, &keep, kvm_backend_find(KVM_STR("cpu")), 1, &err) ||
            kvm_model_open(&m, &keep, c, KVM_STR(DIR "/large"), &o, &err))
            _exit(MOST + 1);
        const kvm_batch b = {.ids = ids,
                             .offset = offset,
                             .n = BATCH,
                             .capture = &sink,
                             .memory = 1 << 20,
                             .spill = KVM_STR(DIR "/spill")};
        kvm_status s = KVM_OK;
        if (how == STREAMED) {
            s = kvm_model_run_layers(m, &b, &err);
        } else {
            s = kvm_cache_new(&cache, &keep, m, TOKENS, &err);
            for (int i = 0; !s && i < BATCH; i++) {
                kvm_cache_clear(cache);
                const int32_t *at = ids + offset[i];
                s = how == PART
                        ? run_third_part(m, cache, at, TOKENS, &sink, &err)
                        : kvm_model_forward(m, cache, at, TOKENS,
                                            &(kvm_forward_options){.capture = &sink},
                                            &err);
            }
        }
        const ptrdiff_t layers = how == PART ? LAYERS / PART_OF : LAYERS;
        if (s || rows != tokens * 2 * layers) _exit(MOST + 2);
        const long took = high_water() - before;
        _exit(took < MOST ? (int)took : MOST);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_true(WEXITSTATUS(status) <= MOST);
    return WEXITSTATUS(status);
}

static void larger_than_memory(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("skipped: a sanitizer's own memory would be counted\n");
    skip();
#endif
    /* a layer, the next one's first pages, activations; 2 of 12 layers, of 264 MiB in
     * all */
    enum { LIMIT = 2 * LAYER_MIB + 12 };
    check_tmpdir("layerwise");
    check_tmpdir("layerwise/large");
    check_tmpdir("layerwise/cache");
    assert_int_equal(setenv("XDG_CACHE_HOME", "/nonexistent", 1), 0);
    write_large(DIR "/large");
    const long streamed = memory_of(STREAMED), part = memory_of(PART),
               whole = memory_of(WHOLE);
    kvm_model_weight w;
    kvm_err err = {0};
    check_ok(kvm_model_weigh(&w, KVM_STR(DIR "/large"), PART_OF, &err), &err);
    check_ok(kvm_file_remove(KVM_STR(DIR "/large/model.safetensors"), &err), &err);
    print_message("%d MiB of weights: %ld MiB layer by layer, %ld MiB of a quarter, "
                  "%ld MiB as a whole\n",
                  LAYERS * LAYER_MIB, streamed, part, whole);
    assert_true(streamed <= LIMIT);
    assert_true(w.all / MIB >= (ptrdiff_t)LAYERS * LAYER_MIB);
    assert_true(w.most - w.all / PART_OF < MIB);
    assert_true(part <= w.most / MIB + 16);
    assert_true(whole > LAYERS * LAYER_MIB * 8 / 10); /* what is measured can fail */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_layer),
        cmocka_unit_test(long_sequences),
        cmocka_unit_test(larger_than_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
