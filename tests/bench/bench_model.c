/* bench_model - tokens per second of a SmolLM2-135M-shaped model, against the FMA peak.
 *
 *   bench_model [BF16 | F32 | CHECKPOINT] [rounds] [threads] [longest prompt] [backend]
 *               [depth]
 *
 * The weights are random and written below build/tmp/bench_model once. First a check:
 * logits of a prompt in one pass and in chunks agree. Then rounds of prefill (three
 * lengths), prefill with captured keys and values, and decode after `depth` tokens,
 * each beside the FMA peak of that moment; figures are medians. A longest prompt of 0
 * leaves prefill out. Floating point operations: the layers' matrices, causal
 * attention, one row of logits. With one thread seconds are the process's own, so that
 * a busy machine measures too. */
#include <math.h>
#include <string.h>

#include "models/model.h"
#include "tests/bench/random_model.h"

#define DIR "build/tmp/bench_model"
enum {
    LAYERS = 30,
    HIDDEN = 576,
    FFN = 1536,
    KV = 192,
    VOCAB = 49152,
    MOST_ROUNDS = 64
};
enum { DECODED = 64, CHECKED = 300 };

/* ---- the model ---- */

static const char config[] =
    "{\"model_type\":\"llama\",\"hidden_size\":576,\"intermediate_size\":1536,"
    "\"num_hidden_layers\":30,\"num_attention_heads\":9,\"num_key_value_heads\":3,"
    "\"vocab_size\":49152,\"max_position_embeddings\":32768,\"rms_norm_eps\":1e-5,"
    "\"rope_theta\":100000,\"tie_word_embeddings\":true}\n";

static const struct {
    const char *name;
    ptrdiff_t rows, cols; /* cols 0: a norm */
} shapes[] = {
    {"input_layernorm", HIDDEN, 0},       {"post_attention_layernorm", HIDDEN, 0},
    {"self_attn.q_proj", HIDDEN, HIDDEN}, {"self_attn.k_proj", KV, HIDDEN},
    {"self_attn.v_proj", KV, HIDDEN},     {"self_attn.o_proj", HIDDEN, HIDDEN},
    {"mlp.gate_proj", FFN, HIDDEN},       {"mlp.up_proj", FFN, HIDDEN},
    {"mlp.down_proj", HIDDEN, FFN},
};
enum { SHAPES = sizeof shapes / sizeof *shapes, TENSORS = LAYERS * SHAPES + 2 };

static void write_model(kvm_arena *keep, kvm_str dir, kvm_dtype d)
{
    static kvm_st_spec specs[TENSORS];
    ptrdiff_t n = 0;
    specs[n++] =
        (kvm_st_spec){KVM_STR("model.embed_tokens.weight"), d, 2, {VOCAB, HIDDEN}};
    specs[n++] = (kvm_st_spec){KVM_STR("model.norm.weight"), d, 1, {HIDDEN}};
    for (ptrdiff_t l = 0; l < LAYERS; l++)
        for (ptrdiff_t i = 0; i < SHAPES; i++)
            specs[n++] = (kvm_st_spec){
                kvm_str_fmt(keep, "model.layers.%td.%s.weight", l, shapes[i].name),
                d,
                shapes[i].cols ? 2 : 1,
                {shapes[i].rows, shapes[i].cols}};
    random_model(keep, dir, config, specs, n);
}

/* the folder of the random model, made when it is not there */
static kvm_str model_path(kvm_arena *keep, const char *name)
{
    const bool f32 = strcmp(name, "F32") == 0;
    if (!f32 && strcmp(name, "BF16") != 0) return kvm_str_of(name);
    const kvm_str dir = kvm_str_fmt(keep, "%s/%s", DIR, name);
    write_model(keep, dir, f32 ? KVM_F32 : KVM_BF16);
    return dir;
}

/* ---- measuring ---- */

typedef struct bench {
    kvm_arena keep;
    kvm_compute *c;
    kvm_model *m;
    const kvm_model_info *info;
    kvm_cache *cache;
    int32_t *ids;
    float *logits, *sink;
    int rounds;
    ptrdiff_t depth; /* tokens in the cache before decoding */
} bench;

static kvm_status keep_rows(void *ctx, ptrdiff_t object, int point, ptrdiff_t first,
                            ptrdiff_t n, const float *rows, kvm_err *err)
{
    (void)point, (void)first, (void)err;
    bench *b = ctx;
    const kvm_object *o = kvm_model_object(b->m, object);
    memcpy(b->sink, rows, (size_t)(n * o->heads * o->dim) * sizeof *rows);
    return KVM_OK;
}

static double prefill(bench *b, ptrdiff_t n, bool capture)
{
    const kvm_capture c = {.rows = keep_rows, .points = 1u << 1, .ctx = b};
    const kvm_forward_options o = {
        .logits_last = 1, .logits = b->logits, .capture = capture ? &c : NULL};
    kvm_cache_clear(b->cache);
    const double from = seconds_of(b->c);
    OK(kvm_model_forward(b->m, b->cache, b->ids, n, &o, &err));
    return seconds_of(b->c) - from;
}

static double decode(bench *b)
{
    const kvm_forward_options o = {.logits_last = 1, .logits = b->logits};
    prefill(b, b->depth, false);
    const double from = seconds_of(b->c);
    for (int i = 0; i < DECODED; i++)
        OK(kvm_model_forward(b->m, b->cache, b->ids + i, 1, &o, &err));
    return seconds_of(b->c) - from;
}

static double flops_of(const bench *b, ptrdiff_t n)
{
    const kvm_model_info *i = b->info;
    const double pairs = (double)n * ((double)n + 1) / 2;
    return i->flops_per_token * (double)n + i->flops_per_logits +
           4.0 * (double)(i->layers * i->heads * i->head_dim) * pairs;
}

static void bench_prefill(bench *b, ptrdiff_t n)
{
    double t[MOST_ROUNDS], share[MOST_ROUNDS], ratio[MOST_ROUNDS];
    for (int i = 0; i < b->rounds; i++) {
        const double peak = fma_peak(b->c);
        t[i] = prefill(b, n, false);
        ratio[i] = t[i] / prefill(b, n, true);
        share[i] = flops_of(b, n) / t[i] / peak;
    }
    const double s = median(t, b->rounds);
    printf("prefill %5td tokens %8.1f tokens/s  %6.1f GF/s  %4.1f %% of the FMA peak  "
           "with capture %.2fx\n",
           n, (double)n / s, flops_of(b, n) / s * 1e-9, 100 * median(share, b->rounds),
           median(ratio, b->rounds));
    fflush(stdout);
}

static void bench_decode(bench *b)
{
    double t[MOST_ROUNDS];
    for (int i = 0; i < b->rounds; i++) t[i] = decode(b) / DECODED;
    const double s = median(t, b->rounds);
    printf("decode after %5td    %8.1f tokens/s  %6.1f GB/s of weights\n", b->depth,
           1 / s, (double)b->info->weight_bytes / s * 1e-9);
}

/* one pass against uneven chunks */
static void verify(bench *b)
{
    const ptrdiff_t v = b->info->vocab;
    kvm_forward_options o = {.chunk = CHECKED, .logits_last = 1, .logits = b->logits};
    OK(kvm_model_forward(b->m, b->cache, b->ids, CHECKED, &o, &err));
    kvm_cache_clear(b->cache);
    o.chunk = 77, o.logits = b->logits + v;
    OK(kvm_model_forward(b->m, b->cache, b->ids, CHECKED, &o, &err));
    double diff = 0, most = 0;
    for (ptrdiff_t i = 0; i < v; i++) {
        diff = fmax(diff, fabs((double)b->logits[i] - (double)b->logits[v + i]));
        most = fmax(most, fabs((double)b->logits[i]));
    }
    printf("check: chunks differ by %.1e of the largest logit\n", diff / most);
    if (!(diff <= 1e-4 * most)) die("check", "one pass and chunks differ");
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "BF16";
    bench b = {.rounds = number_of(argc, argv, 2, 5)};
    const int threads = number_of(argc, argv, 3, 0);
    ptrdiff_t longest = number_of(argc, argv, 4, 8192);
    const char *backend = argc > 5 ? argv[5] : "cpu";
    b.depth = number_of(argc, argv, 6, 512);
    if (b.rounds < 1 || b.rounds > MOST_ROUNDS) die("rounds", "1 to 64");
    OK(kvm_arena_init(&b.keep, (size_t)1 << 34, &err));
    OK(kvm_compute_new(&b.c, &b.keep, kvm_backend_find(kvm_str_of(backend)), threads,
                       &err));
    const kvm_model_options o = {.no_tokenizer = true};
    OK(kvm_model_open(&b.m, &b.keep, b.c, model_path(&b.keep, name), &o, &err));
    b.info = kvm_model_info_of(b.m);
    if (longest > b.info->context) longest = b.info->context;
    if (b.depth > b.info->context - DECODED) b.depth = b.info->context - DECODED;
    ptrdiff_t room = b.depth + DECODED;
    if (room < longest) room = longest;
    if (room < CHECKED) room = CHECKED;
    OK(kvm_cache_new(&b.cache, &b.keep, b.m, room, &err));
    b.ids = kvm_new(&b.keep, int32_t, room);
    b.logits = kvm_new(&b.keep, float, 2 * b.info->vocab);
    b.sink = kvm_new(&b.keep, float, 4096 * b.info->kv_heads * b.info->head_dim);
    if (!b.ids || !b.logits || !b.sink) die("buffers", "out of memory");
    kvm_rng rng = kvm_rng_seed(1, 2);
    for (ptrdiff_t i = 0; i < room; i++)
        b.ids[i] = (int32_t)kvm_rng_below(&rng, (uint64_t)b.info->vocab);
    printf("%s: %s, FMA peak %.0f GF/s\n", name, kvm_compute_describe(b.c, &b.keep).at,
           fma_peak(b.c) * 1e-9);
    verify(&b);
    for (ptrdiff_t n = 512; n <= longest; n *= 4) bench_prefill(&b, n);
    bench_decode(&b);
    kvm_arena_free(&b.keep);
    return 0;
}
