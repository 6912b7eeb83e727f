/* bench_hybrids - what a switch between hybrid models has besides maps of rows: states
 * that are corrected, and tokens that are read back. (Replay: bench_layers.)
 *
 *   bench_hybrids [part] [threads] [rounds]
 *   part: states codebook (all)
 *
 * states    gdn-a -> gdn-b of the zoo, random maps: the stage of states in a switch of
 *           several lengths, in the same rounds; and one layer of 32 heads of 128 x 128
 *           with its window, beside its products at the FMA peak.
 * codebook  Rows of several widths and vocabularies to tokens, beside the same products
 *           alone, panel by panel into one small buffer, on the same backend.
 *
 * Figures are medians; with one thread seconds are the process's own, but for stages
 * of a switch, which a switch takes by the wall clock. */
#include <math.h>
#include <string.h>

#include "models/safetensors.h"
#include "tests/bench/random_model.h"
#include "tests/support/translators.h"
#include "translators/apply.h"
#include "translators/identity.h"
#include "translators/states.h"

#define DIR "build/tmp/bench_hybrids/"

enum { MOST_ROUNDS = 101, LENGTHS = 4 };

static kvm_arena keep;
static kvm_compute *compute;
static int rounds;

static float *noise(ptrdiff_t n, double size)
{
    float *x = kvm_new_raw(&keep, float, n);
    kvm_rng rng = kvm_rng_seed(5, (uint64_t)n);
    if (!x) die("noise", "out of memory");
    for (ptrdiff_t i = 0; i < n; i++)
        x[i] = (float)(size * (2 * kvm_rng_unit(&rng) - 1));
    return x;
}

/* ---- states ---- */

static kvm_model *opened(const char *path)
{
    kvm_model *m;
    const kvm_model_options o = {.no_tokenizer = true};
    OK(kvm_model_open(&m, &keep, compute, kvm_str_of(path), &o, &err));
    return m;
}

/* a source's cache of so many random tokens */
static kvm_cache *read_by(kvm_model *m, ptrdiff_t tokens)
{
    kvm_cache *c;
    kvm_rng rng = kvm_rng_seed(1, 1);
    int32_t *ids = kvm_new(&keep, int32_t, tokens);
    if (!ids) die("ids", "out of memory");
    for (ptrdiff_t i = 0; i < tokens; i++)
        ids[i] = (int32_t)kvm_rng_below(&rng, (uint64_t)kvm_model_info_of(m)->vocab);
    OK(kvm_cache_new(&c, &keep, m, tokens, &err));
    OK(kvm_model_forward(m, c, ids, tokens, NULL, &err));
    return c;
}

static void bench_lengths(void)
{
    static const ptrdiff_t length[LENGTHS] = {64, 512, 2048, 8192};
    static double states[LENGTHS][MOST_ROUNDS], ratio[LENGTHS][MOST_ROUNDS];
    static double whole[LENGTHS][MOST_ROUNDS];
    const kvm_outline_options content = {.keys = KVM_KEYS_CONTENT};
    kvm_model *from = opened("tests/zoo/gdn-a"), *to = opened("tests/zoo/gdn-b");
    kvm_cache *source[LENGTHS], *out;
    kvm_translator t;
    kvm_apply *a;
    made_translator(&t, &keep, from, to, &content, 0.5);
    OK(kvm_apply_new(&a, &keep, compute, &t, from, to, NULL, &err));
    OK(kvm_cache_new(&out, &keep, to, length[LENGTHS - 1], &err));
    for (int i = 0; i < LENGTHS; i++) source[i] = read_by(from, length[i]);
    for (int r = -1; r < rounds; r++)
        for (int i = 0; i < LENGTHS; i++) {
            kvm_apply_times times = {0};
            const double start = kvm_now();
            kvm_cache_clear(out);
            OK(kvm_apply_run(a, &(kvm_handover){.cache = source[i]}, out, &times,
                             &err));
            if (r < 0) continue;
            whole[i][r] = kvm_now() - start;
            states[i][r] = times.states;
            ratio[i][r] = times.states / states[0][r];
        }
    for (int i = LENGTHS - 1; i >= 0; i--)
        printf(
            "states    %td corrected, prefix of %4td: %.3f ms (%.2f of %td tokens') in "
            "a switch of %.2f ms\n",
            t.state_count, length[i], 1e3 * median(states[i], rounds),
            median(ratio[i], rounds), length[0], 1e3 * median(whole[i], rounds));
}

static void bench_layer_state(void)
{
    enum { HEADS = 32, SIZE = 128, TAPS = 4, CHANNELS = HEADS * SIZE * 2 };
    static double t[MOST_ROUNDS], share[MOST_ROUNDS];
    const ptrdiff_t n = (ptrdiff_t)HEADS * SIZE * SIZE, blocks = CHANNELS / SIZE;
    const kvm_row_shape state = {.heads = HEADS, .dim = SIZE * SIZE, .keys = SIZE};
    const kvm_row_shape window = {.heads = CHANNELS, .dim = TAPS};
    const kvm_state_step s = {
        .map = KVM_STATE_BILINEAR,
        .left = kvm_view3(noise(n, 0.1), KVM_F32, HEADS, SIZE, SIZE),
        .right = kvm_view3(noise(n, 0.1), KVM_F32, HEADS, SIZE, SIZE),
        .window =
            kvm_view3(noise(blocks * SIZE * SIZE, 0.1), KVM_F32, blocks, SIZE, SIZE),
        .bias = noise(CHANNELS, 0.1)};
    const float *from = noise(n, 1), *from_window = noise(CHANNELS * TAPS, 1);
    float *to = noise(n, 1), *to_window = noise(CHANNELS * TAPS, 1);
    float *temp = noise(SIZE * SIZE, 1);
    const double flops = 2.0 * SIZE * ((double)n * 2 + (double)(CHANNELS * TAPS));
    for (int r = -1; r < rounds; r++) {
        const double start = seconds_of(compute);
        OK(kvm_states_apply(compute, &s, state, window, from, from_window, to,
                            to_window, temp, &err));
        if (r < 0) continue;
        t[r] = seconds_of(compute) - start;
        share[r] = flops / fma_peak(compute) / t[r];
    }
    printf("states    a layer of %d heads of %d x %d, window of %d x %d: %.2f ms, its "
           "products at the FMA peak %.0f %%\n",
           HEADS, SIZE, SIZE, CHANNELS, TAPS, 1e3 * median(t, rounds),
           100 * median(share, rounds));
}

/* ---- codebook ---- */

/* one layer whose values are `width` wide */
static kvm_model *told_by(ptrdiff_t vocab, ptrdiff_t width)
{
    enum { HIDDEN = 256, FFN = 64 };
    const kvm_str dir = kvm_str_fmt(&keep, DIR "%td.%td", vocab, width);
    const kvm_str config = kvm_str_fmt(
        &keep,
        "{\"model_type\":\"llama\",\"hidden_size\":%d,\"intermediate_size\":%d,"
        "\"num_hidden_layers\":1,\"num_attention_heads\":%td,"
        "\"num_key_value_heads\":%td,\"head_dim\":64,\"vocab_size\":%td,"
        "\"max_position_embeddings\":4096,\"rms_norm_eps\":1e-5,\"rope_theta\":10000,"
        "\"tie_word_embeddings\":true}\n",
        HIDDEN, FFN, width / 64, width / 64, vocab);
#define LAYER "model.layers.0."
    const kvm_st_spec specs[] = {
        {KVM_STR("model.embed_tokens.weight"), KVM_BF16, 2, {vocab, HIDDEN}},
        {KVM_STR("model.norm.weight"), KVM_BF16, 1, {HIDDEN}},
        {KVM_STR(LAYER "input_layernorm.weight"), KVM_BF16, 1, {HIDDEN}},
        {KVM_STR(LAYER "post_attention_layernorm.weight"), KVM_BF16, 1, {HIDDEN}},
        {KVM_STR(LAYER "self_attn.q_proj.weight"), KVM_BF16, 2, {width, HIDDEN}},
        {KVM_STR(LAYER "self_attn.k_proj.weight"), KVM_BF16, 2, {width, HIDDEN}},
        {KVM_STR(LAYER "self_attn.v_proj.weight"), KVM_BF16, 2, {width, HIDDEN}},
        {KVM_STR(LAYER "self_attn.o_proj.weight"), KVM_BF16, 2, {HIDDEN, width}},
        {KVM_STR(LAYER "mlp.gate_proj.weight"), KVM_BF16, 2, {FFN, HIDDEN}},
        {KVM_STR(LAYER "mlp.up_proj.weight"), KVM_BF16, 2, {FFN, HIDDEN}},
        {KVM_STR(LAYER "mlp.down_proj.weight"), KVM_BF16, 2, {HIDDEN, FFN}}};
    random_model(&keep, dir, config.at, specs, sizeof specs / sizeof *specs);
    return opened(dir.at);
}

enum { PANEL = 512, ROWS = 512, TOKENS = 2048 };

/* the products of a decode alone: TOKENS rows of `width`, ROWS at a time, with all
 * entries, PANEL at a time, into a buffer that stays in the cache */
static double products(kvm_weight *const *panel, ptrdiff_t vocab, ptrdiff_t width,
                       float *low, float *score)
{
    const double start = seconds_of(compute);
    for (ptrdiff_t t = 0; t < TOKENS; t += ROWS)
        for (ptrdiff_t p = 0; p * PANEL < vocab; p++) {
            const ptrdiff_t left = vocab - p * PANEL, n = left < PANEL ? left : PANEL;
            OK(kvm_op_linear(compute, kvm_view2(score, KVM_F32, ROWS, n),
                             kvm_view2(low + t * width, KVM_F32, ROWS, width), panel[p],
                             false, &err));
        }
    return seconds_of(compute) - start;
}

static void bench_codebook(ptrdiff_t vocab, ptrdiff_t row)
{
    static double t[MOST_ROUNDS], share[MOST_ROUNDS];
    const kvm_arena saved = keep;
    const ptrdiff_t width = row < KVM_CODEBOOK_WIDTH ? row : KVM_CODEBOOK_WIDTH;
    kvm_model *m = told_by(vocab, row);
    kvm_codebook *b;
    kvm_weight **panel = kvm_new(&keep, kvm_weight *, vocab / PANEL + 1);
    int32_t *ids = kvm_new(&keep, int32_t, TOKENS);
    const float *rows = noise(TOKENS * row, 1);
    float *entry = noise(vocab * width, 1), *half = noise(vocab, 1);
    float *low = noise(TOKENS * width, 1), *score = noise(ROWS * PANEL, 1);
    if (!panel || !ids) die("panels", "out of memory");
    OK(kvm_codebook_new(&b, &keep, compute, m, false, NULL, &err));
    for (ptrdiff_t p = 0; p * PANEL < vocab; p++) {
        const ptrdiff_t left = vocab - p * PANEL, n = left < PANEL ? left : PANEL;
        OK(kvm_weight_new(&panel[p], &keep, compute,
                          kvm_view2(entry + p * PANEL * width, KVM_F32, n, width),
                          half + p * PANEL, &err));
    }
    for (int r = -1; r < rounds; r++) {
        const double start = seconds_of(compute);
        OK(kvm_codebook_decode(b, rows, row, TOKENS, ids, &err));
        const double decode = seconds_of(compute) - start;
        const double alone = products(panel, vocab, width, low, score);
        if (r < 0) continue;
        t[r] = decode;
        share[r] = alone / decode;
    }
    printf("codebook  vocabulary %6td, rows of %3td: %7.0f tokens/s, %.1f GF/s; its "
           "products alone take %.0f %% of the time\n",
           vocab, row, TOKENS / median(t, rounds),
           TOKENS * kvm_codebook_flops(b) / t[rounds / 2] / 1e9,
           100 * median(share, rounds));
    keep = saved;
}

int main(int argc, char **argv)
{
    const char *part = argc > 1 ? argv[1] : "all";
    const bool all = strcmp(part, "all") == 0;
    rounds = number_of(argc, argv, 3, 21);
    if (rounds < 1 || rounds > MOST_ROUNDS) die("rounds", "1 to 101");
    OK(kvm_arena_init(&keep, (size_t)16 << 30, &err));
    OK(kvm_compute_new(&compute, &keep, kvm_backend_find(KVM_STR("cpu")),
                       number_of(argc, argv, 2, 1), &err));
    printf("%s\n", kvm_compute_describe(compute, &keep).at);
    if (all || strcmp(part, "states") == 0) {
        bench_lengths();
        bench_layer_state();
    }
    if (all || strcmp(part, "codebook") == 0) {
        bench_codebook(32768, 64);
        bench_codebook(32768, 512);
        bench_codebook(131072, 512);
    }
    kvm_arena_free(&keep);
    return 0;
}
