/* bench_layers - the layers of hybrid models against what they cannot do without.
 *
 *   bench_layers [threads] [rounds] [tokens] [part]     part: experts mla kda token gdn
 *                                                       mamba2 pools (all)
 *
 * One layer of each kind, half the width of Moonlight's, Kimi Linear's and Nemotron 3
 * Nano's, BF16 weights, random, written below build/tmp/bench_layers once. Each is
 * given `tokens` tokens (2,048) in the chunks that a prefill takes. Beside it, in the
 * same rounds:
 *   experts    a plain feed-forward as wide as the experts that a token goes through
 *   mla, gdn, kda, mamba2   their matrix products (each once: projections, keys and
 *              values written out, half of scores and sums; or the products of a delta
 *              rule or a scan in chunks of 64) at the pace that sgemm has on
 *              (512,1024) x (1024,2048) of f32
 *   mla, one token   reading the cached latents once; its products at the FMA
 *              peak's pace
 * Of gdn, kda and mamba2 then their backward, in the same chunks, beside the forward,
 * kvm_model_pull_replay over all tokens beside the replay, and the replay as a switch
 * does it (kvm_inject_rows) beside the recurrence as the target's own forward comes to
 * it: projections, convolution, rule, and no output.
 * And alone: a latent attention layer with an indexer over pools, of GLM-5.3-Flash's
 * sizes, one token after three lengths.
 * Figures are medians; with one thread seconds are the process's own. */
#include <cblas.h>
#include <string.h>

#include "models/backward.h"
#include "models/model_internal.h"
#include "tests/bench/random_model.h"

#define DIR "build/tmp/bench_layers/"

enum {
    HIDDEN = 1024,
    HEADS = 8,
    NOPE = 128,
    ROTARY = 64,
    VALUE = 128,
    RANK = 512,
    EXPERTS = 32,
    ACTIVE = 6,
    INNER = 704,
    SHARED = 2 * INNER,
    DENSE = ACTIVE * INNER + SHARED,
    HEAD = 128, /* of a recurrent layer, which has HEADS of them */
    KEYS = 4,   /* key heads of gdn */
    VOCAB = 64,
    CONTEXT = 16384,
    DEPTH = 8192, /* tokens in the cache before decoding */
    WIDE = HEADS * HEAD,
    CONV = 3 * WIDE, /* of kda: queries, keys and values */
    MLA_QUERY = HEADS * (NOPE + ROTARY),
    MLA_UP = HEADS * (NOPE + VALUE), /* what a latent is multiplied out to */
    MLA_WIDE = HEADS * VALUE,
    GATE_UP = 2 * INNER,
    SCAN_HEADS = 32, /* of mamba2, SCAN_HEAD wide, in GROUPS with states of STATE */
    SCAN_HEAD = 64,
    GROUPS = 4,
    STATE = 128,
    SCAN_WIDE = SCAN_HEADS * SCAN_HEAD,
    SCAN_CONV = SCAN_WIDE + 2 * GROUPS * STATE,
    LOW = 512,        /* query latent of an indexer, and the next three */
    INDEX_HEADS = 32, /* of INDEX numbers */
    INDEX = 128,
    POOL = 4,
    M = 512, /* the product that gives sgemm's pace: (M,K) x (K,N) */
    N = 2048,
    K = 1024,
    MOST_ROUNDS = 51
};

static const char kimi[] =
    "{\"model_type\":\"kimi_linear\",\"hidden_size\":1024,\"intermediate_size\":5632,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":8,\"num_key_value_heads\":8,"
    "\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,"
    "\"v_head_dim\":128,\"layer_types\":[\"linear_attention\",\"full_attention\"],"
    "\"mlp_layer_types\":[\"dense\",\"sparse\"],\"linear_conv_kernel_dim\":4,"
    "\"linear_head_dim\":128,\"linear_num_heads\":8,\"num_experts\":32,"
    "\"num_experts_per_token\":6,\"moe_intermediate_size\":704,\"num_shared_experts\":"
    "2,"
    "\"moe_renormalize\":true,\"routed_scaling_factor\":2.446,\"vocab_size\":64,"
    "\"model_max_length\":16384,\"tie_word_embeddings\":true}\n";

static const char qwen[] =
    "{\"model_type\":\"qwen3_5_text\",\"hidden_size\":1024,\"intermediate_size\":64,"
    "\"num_hidden_layers\":1,\"num_attention_heads\":8,\"num_key_value_heads\":2,"
    "\"head_dim\":128,\"layer_types\":[\"linear_attention\"],"
    "\"linear_conv_kernel_dim\":4,\"linear_key_head_dim\":128,"
    "\"linear_num_key_heads\":4,\"linear_num_value_heads\":8,"
    "\"linear_value_head_dim\":128,\"vocab_size\":64,"
    "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1e7},"
    "\"max_position_embeddings\":16384,\"tie_word_embeddings\":true}\n";

static const char nemotron[] =
    "{\"model_type\":\"nemotron_h\",\"hidden_size\":1024,\"intermediate_size\":64,"
    "\"hybrid_override_pattern\":\"M\",\"num_attention_heads\":8,"
    "\"num_key_value_heads\":2,\"head_dim\":128,\"mamba_num_heads\":32,"
    "\"mamba_head_dim\":64,\"n_groups\":4,\"ssm_state_size\":128,\"conv_kernel\":4,"
    "\"use_conv_bias\":false,\"vocab_size\":64,\"max_position_embeddings\":16384,"
    "\"tie_word_embeddings\":true}\n";

static const char glm[] =
    "{\"model_type\":\"glm5_next_text\",\"hidden_size\":1024,\"intermediate_size\":64,"
    "\"num_hidden_layers\":1,\"num_attention_heads\":8,\"q_lora_rank\":512,"
    "\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":0,"
    "\"v_head_dim\":128,\"layer_types\":[\"indexed_attention\"],\"index_n_heads\":32,"
    "\"index_head_dim\":128,\"index_topk\":2048,\"index_kpool\":4,"
    "\"indexer_types\":[\"full\"],\"linear_num_heads\":8,\"linear_head_dim\":128,"
    "\"hc_mult\":1,\"vocab_size\":64,\"max_position_embeddings\":16384,"
    "\"tie_word_embeddings\":true}\n";

typedef struct shape {
    const char *name;
    ptrdiff_t dim[3]; /* up to the first 0 */
} shape;

static const shape whole[] = {
    {"embed_tokens.weight", {VOCAB, HIDDEN}}, {"norm.weight", {HIDDEN}}, {0}};
static const shape norms[] = {{"input_layernorm.weight", {HIDDEN}},
                              {"post_attention_layernorm.weight", {HIDDEN}},
                              {0}};
static const shape kda[] = {{"self_attn.q_proj.weight", {WIDE, HIDDEN}},
                            {"self_attn.k_proj.weight", {WIDE, HIDDEN}},
                            {"self_attn.v_proj.weight", {WIDE, HIDDEN}},
                            {"self_attn.f_a_proj.weight", {HEAD, HIDDEN}},
                            {"self_attn.f_b_proj.weight", {WIDE, HEAD}},
                            {"self_attn.b_proj.weight", {HEADS, HIDDEN}},
                            {"self_attn.g_a_proj.weight", {HEAD, HIDDEN}},
                            {"self_attn.g_b_proj.weight", {WIDE, HEAD}},
                            {"self_attn.o_proj.weight", {HIDDEN, WIDE}},
                            {"self_attn.conv1d.weight", {CONV, 1, 4}},
                            {"self_attn.A_log", {HEADS}},
                            {"self_attn.dt_bias", {WIDE}},
                            {"self_attn.o_norm.weight", {HEAD}},
                            {0}};
static const shape dense[] = {{"mlp.gate_proj.weight", {DENSE, HIDDEN}},
                              {"mlp.up_proj.weight", {DENSE, HIDDEN}},
                              {"mlp.down_proj.weight", {HIDDEN, DENSE}},
                              {0}};
static const shape mla[] = {
    {"self_attn.q_proj.weight", {MLA_QUERY, HIDDEN}},
    {"self_attn.kv_a_proj_with_mqa.weight", {RANK + ROTARY, HIDDEN}},
    {"self_attn.kv_a_layernorm.weight", {RANK}},
    {"self_attn.kv_b_proj.weight", {MLA_UP, RANK}},
    {"self_attn.o_proj.weight", {HIDDEN, MLA_WIDE}},
    {0}};
static const shape moe[] = {{"mlp.gate.weight", {EXPERTS, HIDDEN}},
                            {"mlp.gate.e_score_correction_bias", {EXPERTS}},
                            {"mlp.experts.gate_up_proj", {EXPERTS, GATE_UP, HIDDEN}},
                            {"mlp.experts.down_proj", {EXPERTS, HIDDEN, INNER}},
                            {"mlp.shared_experts.gate_proj.weight", {SHARED, HIDDEN}},
                            {"mlp.shared_experts.up_proj.weight", {SHARED, HIDDEN}},
                            {"mlp.shared_experts.down_proj.weight", {HIDDEN, SHARED}},
                            {0}};
static const shape gdn[] = {
    {"linear_attn.in_proj_qkv.weight", {2 * KEYS * HEAD + WIDE, HIDDEN}},
    {"linear_attn.in_proj_z.weight", {WIDE, HIDDEN}},
    {"linear_attn.in_proj_b.weight", {HEADS, HIDDEN}},
    {"linear_attn.in_proj_a.weight", {HEADS, HIDDEN}},
    {"linear_attn.conv1d.weight", {2 * KEYS * HEAD + WIDE, 1, 4}},
    {"linear_attn.A_log", {HEADS}},
    {"linear_attn.dt_bias", {HEADS}},
    {"linear_attn.norm.weight", {HEAD}},
    {"linear_attn.out_proj.weight", {HIDDEN, WIDE}},
    {0}};
static const shape narrow[] = {{"mlp.gate_proj.weight", {64, HIDDEN}},
                               {"mlp.up_proj.weight", {64, HIDDEN}},
                               {"mlp.down_proj.weight", {HIDDEN, 64}},
                               {0}};

static const shape mamba2[] = {
    {"mixer.in_proj.weight", {SCAN_WIDE + SCAN_CONV + SCAN_HEADS, HIDDEN}},
    {"mixer.conv1d.weight", {SCAN_CONV, 1, 4}},
    {"mixer.A_log", {SCAN_HEADS}},
    {"mixer.dt_bias", {SCAN_HEADS}},
    {"mixer.D", {SCAN_HEADS}},
    {"mixer.norm.weight", {SCAN_WIDE}},
    {"mixer.out_proj.weight", {HIDDEN, SCAN_WIDE}},
    {0}};
static const shape nothing[] = {{0}};

static const shape pools[] = {
    {"attn_hc.fn", {3, HIDDEN}}, /* of one stream */
    {"attn_hc.base", {3}},
    {"attn_hc.scale", {3}},
    {"ffn_hc.fn", {3, HIDDEN}},
    {"ffn_hc.base", {3}},
    {"ffn_hc.scale", {3}},
    {"self_attn.q_a_proj.weight", {LOW, HIDDEN}},
    {"self_attn.q_a_layernorm.weight", {LOW}},
    {"self_attn.q_b_proj.weight", {HEADS * NOPE, LOW}},
    {"self_attn.kv_a_proj_with_mqa.weight", {RANK, HIDDEN}},
    {"self_attn.kv_a_layernorm.weight", {RANK}},
    {"self_attn.kv_b_proj.weight", {MLA_UP, RANK}},
    {"self_attn.o_proj.weight", {HIDDEN, MLA_WIDE}},
    {"self_attn.indexer.wq_b.weight", {INDEX_HEADS * INDEX, LOW}},
    {"self_attn.indexer.wk.weight", {INDEX, HIDDEN}},
    {"self_attn.indexer.k_norm.weight", {INDEX}},
    {"self_attn.indexer.k_norm.bias", {INDEX}},
    {"self_attn.indexer.weights_proj.weight", {INDEX_HEADS, HIDDEN}},
    {"self_attn.indexer.index_kpool_compress_gate", {INDEX, HIDDEN}},
    {"self_attn.indexer.index_kpool_compress_ape", {POOL, INDEX}},
    {0}};

/* ---- models ---- */

typedef struct bench {
    kvm_arena keep;
    kvm_compute *c;
    kvm_rng rng;
    int rounds;
    ptrdiff_t tokens;
    float *x, *y, *dx; /* (CONTEXT, HIDDEN) */
    float *weights;    /* gradient by a state */
    int32_t *pos;      /* (CONTEXT) */
    kvm_choice choice;
    float *a, *b, *out;     /* of the sgemm */
    const kvm_model *model; /* of what is measured, and the next two */
    const kvm_layer *layer;
    const kvm_cache *cache;
    kvm_cache *injected;
    ptrdiff_t from;
} bench;

static ptrdiff_t add(kvm_st_spec *to, ptrdiff_t n, const shape *s, ptrdiff_t layer,
                     kvm_arena *keep)
{
    for (; s->name; s++) {
        kvm_st_spec *spec = &to[n++];
        *spec = (kvm_st_spec){.dtype = KVM_BF16};
        spec->name = layer < 0
                         ? kvm_str_fmt(keep, "model.%s", s->name)
                         : kvm_str_fmt(keep, "model.layers.%td.%s", layer, s->name);
        while (spec->rank < 3 && s->dim[spec->rank]) {
            spec->dim[spec->rank] = s->dim[spec->rank];
            spec->rank++;
        }
    }
    return n;
}

static const kvm_model *open_model(bench *b, const char *name, const char *config,
                                   const shape *const *layers, ptrdiff_t n)
{
    kvm_st_spec specs[64];
    ptrdiff_t count = add(specs, 0, whole, -1, &b->keep);
    for (ptrdiff_t l = 0; l < n; l++) {
        count = add(specs, count, norms, l, &b->keep);
        count = add(specs, count, layers[2 * l], l, &b->keep);
        count = add(specs, count, layers[2 * l + 1], l, &b->keep);
    }
    const kvm_str dir = kvm_str_fmt(&b->keep, DIR "%s", name);
    random_model(&b->keep, dir, config, specs, count);
    const kvm_model_options o = {.no_tokenizer = true};
    kvm_model *m;
    kvm_cache *cache;
    OK(kvm_model_open(&m, &b->keep, b->c, dir, &o, &err));
    OK(kvm_cache_new(&cache, &b->keep, m, CONTEXT, &err));
    b->cache = cache;
    /* the activations' arena, as large as a chunk of a prefill takes */
    int32_t *ids = kvm_new(&b->keep, int32_t, b->tokens);
    if (!ids) die("ids", "out of memory");
    OK(kvm_model_forward(m, cache, ids, b->tokens, NULL, &err));
    return m;
}

/* ---- arms ---- */

/* the layer over tokens from .. from+n-1, in the chunks of a prefill */
static double run(const bench *b, const kvm_layer *l, ptrdiff_t from, ptrdiff_t n)
{
    kvm_choice choice = b->choice;
    const ptrdiff_t chunk = n < b->model->work_chunk ? n : b->model->work_chunk;
    const double start = seconds_of(b->c);
    for (ptrdiff_t t = from; t < from + n; t += chunk) {
        const ptrdiff_t size = from + n - t < chunk ? from + n - t : chunk;
        const kvm_step s = {.compute = b->c,
                            .first = t,
                            .n = size,
                            .out = size,
                            .pos = b->pos + t,
                            .slots = b->cache->slots,
                            .choice = &choice,
                            .scratch = b->model->work};
        const kvm_tensor x = kvm_view2(b->x + t * HIDDEN, KVM_F32, size, HIDDEN);
        const kvm_tensor y = kvm_view2(b->y + t * HIDDEN, KVM_F32, size, HIDDEN);
        OK(l->kind->forward(l, &s, x, y, &err));
    }
    return seconds_of(b->c) - start;
}

/* state and window and the gradients by them, for the layer's backward */
static kvm_step back_step(bench *b, const kvm_layer *l, ptrdiff_t chunk)
{
    const kvm_model *m = b->model;
    kvm_slot *slots = kvm_new(&b->keep, kvm_slot, m->info.objects);
    kvm_slot *grads = kvm_new(&b->keep, kvm_slot, m->info.objects);
    if (!slots || !grads) die("slots", "out of memory");
    for (ptrdiff_t i = l->first_object; i < l->first_object + 2; i++) {
        OK(kvm_cache__slots(slots, m, i, i + 1, 1, &b->keep, &err));
        OK(kvm_cache__slots(grads, m, i, i + 1, 1, &b->keep, &err));
    }
    const size_t bytes = l->kind->backward_scratch(l, 0, chunk) + 4096;
    return (kvm_step){.compute = b->c,
                      .n = chunk,
                      .out = chunk,
                      .pos = b->pos,
                      .slots = slots,
                      .grads = grads,
                      .scratch = kvm_arena_split(&b->keep, bytes)};
}

static kvm_tensor part_of(float *rows, ptrdiff_t from, ptrdiff_t n)
{
    return kvm_view2(rows + from * HIDDEN, KVM_F32, n, HIDDEN);
}

/* the backward over all tokens, or their replay */
static double run_back(const bench *b, const kvm_layer *l, kvm_step s, bool back)
{
    const double start = seconds_of(b->c);
    for (ptrdiff_t t = 0; t + s.n <= b->tokens; t += s.n) {
        const kvm_tensor x = part_of(b->x, t, s.n);
        if (back)
            OK(l->kind->backward(l, &s, x, part_of(b->y, t, s.n),
                                 part_of(b->dx, t, s.n), &err));
        else
            OK(l->kind->replay(l, &s, x, &err));
    }
    return seconds_of(b->c) - start;
}

/* what the layer's forward does for its state alone */
static double run_state(const bench *b, const kvm_layer *l, kvm_step s)
{
    const double start = seconds_of(b->c);
    s.out = 0;
    for (ptrdiff_t t = 0; t + s.n <= b->tokens; t += s.n)
        OK(l->kind->forward(l, &s, part_of(b->x, t, s.n), part_of(b->y, t, s.n), &err));
    return seconds_of(b->c) - start;
}

static double run_inject(const bench *b, const kvm_layer *l)
{
    enum { BLOCK = 512 }; /* as in translators/apply.c */
    const double start = seconds_of(b->c);
    kvm_cache_clear(b->injected);
    OK(kvm_inject_begin(b->injected, b->tokens, &err));
    for (ptrdiff_t t = 0; t < b->tokens; t += BLOCK) {
        const ptrdiff_t n = b->tokens - t < BLOCK ? b->tokens - t : BLOCK;
        OK(kvm_inject_rows(b->injected, l->first_object, KVM_POINT_RAW, t, n,
                           b->x + t * HIDDEN, &err));
    }
    return seconds_of(b->c) - start;
}

static void bench_replay(bench *b, const kvm_layer *l, kvm_step s)
{
    double t[MOST_ROUNDS], ratio[MOST_ROUNDS], of[MOST_ROUNDS];
    OK(kvm_cache_new(&b->injected, &b->keep, b->model, b->tokens, &err));
    for (int i = 0; i < b->rounds; i++) {
        t[i] = run_inject(b, l);
        ratio[i] = t[i] / run_state(b, l, s);
        of[i] = t[i] / run(b, l, 0, b->tokens);
    }
    printf(
        "%-9s replay %8.1f tokens/s, %.2f of the recurrence's time, %.2f of the whole "
        "layer's\n",
        l->kind->name, (double)b->tokens / median(t, b->rounds),
        median(ratio, b->rounds), median(of, b->rounds));
}

static double run_pull(const bench *b, const kvm_layer *l)
{
    const double start = seconds_of(b->c);
    OK(kvm_model_pull_replay(b->model, l->first_object, b->tokens, b->x, b->weights,
                             NULL, b->dx, b->keep, &err));
    return seconds_of(b->c) - start;
}

static void bench_back(bench *b, const kvm_layer *l)
{
    double t[MOST_ROUNDS], ratio[MOST_ROUNDS], pull[MOST_ROUNDS], of[MOST_ROUNDS];
    const ptrdiff_t work = b->model->work_chunk;
    const kvm_arena at = b->keep;
    const kvm_step s = back_step(b, l, work < b->tokens ? work : b->tokens);
    for (int i = 0; i < b->rounds; i++) {
        t[i] = run_back(b, l, s, true);
        ratio[i] = t[i] / run(b, l, 0, b->tokens);
        pull[i] = run_pull(b, l);
        of[i] = pull[i] / run_back(b, l, s, false);
    }
    printf("%-9s backward %8.1f tokens/s, %.2f of the forward's time   replay pulled "
           "back %8.1f tokens/s, %.2f of the replay's\n",
           l->kind->name, (double)b->tokens / median(t, b->rounds),
           median(ratio, b->rounds), (double)b->tokens / median(pull, b->rounds),
           median(of, b->rounds));
    bench_replay(b, l, s);
    b->keep = at;
}

static double sgemm_pace(const bench *b)
{
    const double start = seconds_of(b->c);
    for (int i = 0; i < 4; i++)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, M, N, K, 1, b->a, K, b->b,
                    K, 0, b->out, N);
    return 4 * 2.0 * M * N * K / (seconds_of(b->c) - start);
}

/* ---- figures ---- */

static void bench_experts(bench *b, const kvm_layer *experts, const kvm_layer *plain)
{
    double t[MOST_ROUNDS], ratio[MOST_ROUNDS];
    for (int i = 0; i < b->rounds; i++) {
        t[i] = run(b, experts, 0, b->tokens);
        ratio[i] = t[i] / run(b, plain, 0, b->tokens);
    }
    printf(
        "experts   %d of %d x %d and one of %d   %8.1f tokens/s   %.2f of the time of "
        "a plain one\n",
        ACTIVE, EXPERTS, INNER, SHARED, (double)b->tokens / median(t, b->rounds),
        median(ratio, b->rounds));
}

static void bench_products(bench *b, const kvm_layer *l, double flops)
{
    double t[MOST_ROUNDS], share[MOST_ROUNDS];
    for (int i = 0; i < b->rounds; i++) {
        t[i] = run(b, l, 0, b->tokens);
        share[i] = flops / sgemm_pace(b) / t[i];
    }
    printf("%-9s %td tokens, %5.2f GF   %8.1f tokens/s   its products at the pace of "
           "sgemm: %.2f of its time\n",
           l->kind->name, b->tokens, flops * 1e-9,
           (double)b->tokens / median(t, b->rounds), median(share, b->rounds));
}

static double mla_flops(double n)
{
    const double maps =
        HIDDEN * (MLA_QUERY + RANK + ROTARY) + RANK * MLA_UP + MLA_WIDE * HIDDEN;
    return 2 * (n * maps + n * n / 2 * HEADS * (NOPE + ROTARY + VALUE));
}

/* products of a delta rule with state (HEAD,HEAD) in chunks of 64, per token and head:
 * K S, Q S and Kt U; K Kt, Q Kt, and both of those by (64,HEAD) */
static double delta_flops(void)
{
    return 2.0 * HEADS * (3 * HEAD * HEAD + 4 * 64 * HEAD);
}

/* products of a scan in chunks of 64, per token: q . k once a group; per head what S0
 * and what the chunk give, half of it, and what S is given */
static double scan_flops(void)
{
    return 2.0 * (GROUPS * 64 * STATE +
                  SCAN_HEADS * (2 * SCAN_HEAD * STATE + 32 * SCAN_HEAD));
}

static double read_latents(const bench *b, const kvm_layer *l)
{
    const float *x = b->cache->slots[l->first_object].rows;
    const double start = seconds_of(b->c);
    ((volatile float *)b->out)[0] = cblas_sasum(DEPTH * (RANK + ROTARY), x, 1);
    return seconds_of(b->c) - start;
}

static void bench_token(bench *b, const kvm_layer *l)
{
    double t[MOST_ROUNDS], read[MOST_ROUNDS], products[MOST_ROUNDS];
    const double flops = 2.0 * HEADS * DEPTH * (2 * RANK + ROTARY);
    run(b, l, 0, DEPTH);
    for (int i = 0; i < b->rounds; i++) {
        t[i] = run(b, l, DEPTH, 1);
        read[i] = t[i] / read_latents(b, l);
        products[i] = flops / fma_peak(b->c) / t[i];
    }
    printf("mla       1 token after %d   %.2f ms   %.1f of the time of reading the "
           "latents "
           "once; its products at the FMA peak: %.2f of its time\n",
           DEPTH, 1e3 * median(t, b->rounds), median(read, b->rounds),
           median(products, b->rounds));
}

static void bench_pools(bench *b, const kvm_layer *l)
{
    static const ptrdiff_t depths[] = {4096, DEPTH, CONTEXT - 1};
    double t[MOST_ROUNDS];
    for (size_t d = 0; d < sizeof depths / sizeof *depths; d++) {
        run(b, l, 0, depths[d]);
        for (int i = 0; i < b->rounds; i++) t[i] = run(b, l, depths[d], 1);
        printf("pools     1 token after %td   %.3f ms\n", depths[d],
               1e3 * median(t, b->rounds));
    }
}

static float *numbers(bench *b, ptrdiff_t n)
{
    float *x = kvm_new_raw(&b->keep, float, n);
    if (!x) die("numbers", "out of memory");
    for (ptrdiff_t i = 0; i < n; i++) x[i] = (float)kvm_rng_unit(&b->rng) - 0.5f;
    return x;
}

/* what the arms read and write */
static void fill(bench *b)
{
    const ptrdiff_t rows = (ptrdiff_t)CONTEXT * HIDDEN;
    b->rng = kvm_rng_seed(1, 2);
    b->x = numbers(b, rows), b->y = numbers(b, rows), b->dx = numbers(b, rows);
    b->weights = numbers(b, (ptrdiff_t)SCAN_WIDE * STATE);
    b->a = numbers(b, (ptrdiff_t)M * K), b->b = numbers(b, (ptrdiff_t)K * N);
    b->out = numbers(b, (ptrdiff_t)M * N);
    b->pos = kvm_new(&b->keep, int32_t, CONTEXT);
    if (!b->pos) die("positions", "out of memory");
    for (int32_t i = 0; i < CONTEXT; i++) b->pos[i] = i;
    b->choice.words = CONTEXT / 64;
    b->choice.bits = kvm_new(&b->keep, uint64_t, CONTEXT * b->choice.words);
    if (!b->choice.bits) die("choice", "out of memory");
}

static bool wanted(int argc, char **argv, const char *part)
{
    return argc < 5 || strcmp(argv[4], part) == 0;
}

int main(int argc, char **argv)
{
    bench b = {.rounds = number_of(argc, argv, 2, 5),
               .tokens = number_of(argc, argv, 3, 2048)};
    if (b.rounds < 1 || b.rounds > MOST_ROUNDS) die("rounds", "1 to 51");
    if (b.tokens < 1 || b.tokens > CONTEXT) die("tokens", "1 to 16384");
    OK(kvm_arena_init(&b.keep, (size_t)8 << 30, &err));
    OK(kvm_compute_new(&b.c, &b.keep, kvm_backend_find(KVM_STR("cpu")),
                       number_of(argc, argv, 1, 0), &err));
    openblas_set_num_threads(kvm_compute_threads(b.c));
    fill(&b);
    printf("%s\n", kvm_compute_describe(b.c, &b.keep).at);

    const double n = (double)b.tokens;
    const shape *const hybrid[] = {kda, dense, mla, moe}, *const gated[] = {gdn,
                                                                            narrow};
    b.model = open_model(&b, "kimi", kimi, hybrid, 2);
    const kvm_block *blocks = b.model->blocks;
    if (wanted(argc, argv, "experts"))
        bench_experts(&b, blocks[1].ffn.layer, blocks[0].ffn.layer);
    if (wanted(argc, argv, "mla"))
        bench_products(&b, blocks[1].mixer.layer, mla_flops(n));
    if (wanted(argc, argv, "kda")) {
        bench_products(
            &b, blocks[0].mixer.layer,
            n * (2.0 * (HIDDEN * (4 * WIDE + 2 * HEAD + HEADS) + 2 * HEAD * WIDE) +
                 delta_flops()));
        bench_back(&b, blocks[0].mixer.layer);
    }
    if (wanted(argc, argv, "token")) bench_token(&b, blocks[1].mixer.layer);
    if (wanted(argc, argv, "gdn")) {
        b.model = open_model(&b, "qwen", qwen, gated, 1);
        bench_products(&b, b.model->blocks[0].mixer.layer,
                       n * (2.0 * HIDDEN * (2 * KEYS * HEAD + 3 * WIDE + 2 * HEADS) +
                            delta_flops()));
        bench_back(&b, b.model->blocks[0].mixer.layer);
    }
    if (wanted(argc, argv, "mamba2")) {
        const shape *const scan[] = {mamba2, nothing};
        const double maps = HIDDEN * (2.0 * SCAN_WIDE + SCAN_CONV + SCAN_HEADS);
        b.model = open_model(&b, "nemotron", nemotron, scan, 1);
        bench_products(&b, b.model->blocks[0].mixer.layer,
                       n * (2 * maps + scan_flops()));
        bench_back(&b, b.model->blocks[0].mixer.layer);
    }
    if (wanted(argc, argv, "pools")) {
        const shape *const pooled[] = {pools, narrow};
        b.model = open_model(&b, "glm", glm, pooled, 1);
        bench_pools(&b, b.model->blocks[0].mixer.layer);
    }
    kvm_arena_free(&b.keep);
    return 0;
}
