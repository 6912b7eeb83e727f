/* bench_back - gradients of recurrent ops against the ops themselves.
 *
 *   bench_back [backend] [threads] [rounds] [tokens] [part]
 *   part: conv delta channel scan (all)
 *
 * 2,048 tokens of one layer: conv of 8,192 channels and 4 inputs; delta rules of 16
 * heads of 128 x 128, decays per head and per channel; the scan of Nemotron 3 Nano, 64
 * heads of 64 in 8 groups with states of 128. Both arms run in the same rounds; figures
 * are medians. One thread is timed by its CPU clock. The share of the FMA peak counts
 * the products of a backward with states: 8 of them, of a scan 5 (kernels/recur.h). */
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "tests/bench/bench.h"

enum {
    MOST_ROUNDS = 101,
    CHANNELS = 8192,
    TAPS = 4,
    HEADS = 16,
    HEAD = 128,
    SCAN_HEADS = 64,
    SCAN_GROUPS = 8,
    SCAN_VALUE = 64,
    SCAN_STATE = 128
};

typedef struct bench {
    kvm_arena keep;
    kvm_compute *c;
    kvm_rng rng;
    int rounds;
    ptrdiff_t tokens;
    kvm_tensor y, dy, state, dstate, w, window, rate, skip; /* of the case at hand */
    kvm_delta_rows in, d;
} bench;

typedef void work(bench *b);

static kvm_tensor numbers(bench *b, ptrdiff_t n0, ptrdiff_t n1, ptrdiff_t n2)
{
    const ptrdiff_t n = n0 * n1 * (n2 ? n2 : 1);
    float *p = kvm_new_raw(&b->keep, float, n);
    if (!p) die("numbers", "out of memory");
    for (ptrdiff_t i = 0; i < n; i++) p[i] = (float)kvm_rng_unit(&b->rng) - 0.5f;
    return n2 ? kvm_view3(p, KVM_F32, n0, n1, n2) : kvm_view2(p, KVM_F32, n0, n1);
}

static double once(bench *b, work *f)
{
    const double from = seconds_of(b->c);
    f(b);
    return seconds_of(b->c) - from;
}

static void compare(bench *b, const char *name, work *ahead, work *back, double flops)
{
    double t0[MOST_ROUNDS], t1[MOST_ROUNDS], ratio[MOST_ROUNDS], share[MOST_ROUNDS];
    ahead(b), back(b);
    for (int i = 0; i < b->rounds; i++) {
        const double peak = fma_peak(b->c);
        t0[i] = once(b, ahead), t1[i] = once(b, back);
        ratio[i] = t1[i] / t0[i];
        share[i] = flops / t1[i] / peak;
    }
    printf(
        "%-18s T=%td forward %8.2f ms | backward %8.2f ms, ratio %5.2f | %4.1f %% of "
        "peak\n",
        name, b->tokens, 1e3 * median(t0, b->rounds), 1e3 * median(t1, b->rounds),
        median(ratio, b->rounds), 100 * median(share, b->rounds));
}

static void conv_ahead(bench *b)
{
    OK(kvm_op_conv(b->c, b->y, b->in.v, b->w, NULL, b->window, &err));
}
static void conv_back(bench *b)
{
    OK(kvm_op_conv_back(b->c, b->d.v, b->dstate, b->in.v, b->w, NULL, b->window, b->dy,
                        &err));
}

static void bench_conv(bench *b)
{
    b->in.v = numbers(b, b->tokens, CHANNELS, 0);
    b->y = numbers(b, b->tokens, CHANNELS, 0),
    b->dy = numbers(b, b->tokens, CHANNELS, 0);
    b->d.v = numbers(b, b->tokens, CHANNELS, 0);
    b->w = numbers(b, CHANNELS, TAPS, 0), b->window = numbers(b, CHANNELS, TAPS, 0);
    b->dstate = numbers(b, CHANNELS, TAPS, 0);
    compare(b, "conv", conv_ahead, conv_back,
            4.0 * TAPS * CHANNELS * (double)b->tokens);
}

static void zero(kvm_tensor t)
{
    memset(t.data, 0, (size_t)kvm_tensor_count(&t) * sizeof(float));
}

static void delta_ahead(bench *b)
{
    zero(b->state);
    OK(kvm_op_delta(b->c, b->y, b->in.q, b->in.k, b->in.v, b->in.g, b->in.beta,
                    b->state, &err));
}
static void delta_back(bench *b)
{
    zero(b->state), zero(b->dstate);
    OK(kvm_op_delta_back(b->c, &b->d, b->dstate, &b->in, b->state, b->dy, &err));
}

static void unit_heads(kvm_tensor x, float size)
{
    for (ptrdiff_t i = 0; i < x.dim[0] * x.dim[1]; i++) {
        float *head = (float *)x.data + i * x.dim[2], sum = 1e-6f;
        for (ptrdiff_t d = 0; d < x.dim[2]; d++) sum += head[d] * head[d];
        for (ptrdiff_t d = 0; d < x.dim[2]; d++) head[d] *= size / sqrtf(sum);
    }
}

static kvm_delta_rows rows(bench *b, bool per_channel)
{
    const ptrdiff_t t = b->tokens;
    return (kvm_delta_rows){.q = numbers(b, t, HEADS, HEAD),
                            .k = numbers(b, t, HEADS, HEAD),
                            .v = numbers(b, t, HEADS, HEAD),
                            .g = numbers(b, t, HEADS, per_channel ? HEAD : 0),
                            .beta = numbers(b, t, HEADS, 0)};
}

static void bench_delta(bench *b, bool per_channel)
{
    b->in = rows(b, per_channel), b->d = rows(b, per_channel);
    b->y = numbers(b, b->tokens, HEADS, HEAD);
    b->dy = numbers(b, b->tokens, HEADS, HEAD);
    b->state = numbers(b, HEADS, HEAD, HEAD), b->dstate = numbers(b, HEADS, HEAD, HEAD);
    unit_heads(b->in.k, 1), unit_heads(b->in.q, 0.0884f);
    float *g = b->in.g.data, *beta = b->in.beta.data;
    for (ptrdiff_t i = 0; i < kvm_tensor_count(&b->in.g); i++)
        g[i] = (g[i] - 0.5f) * 0.2f;
    for (ptrdiff_t i = 0; i < b->tokens * HEADS; i++) beta[i] += 0.5f;
    compare(b, per_channel ? "delta per channel" : "delta per head", delta_ahead,
            delta_back, 16.0 * HEADS * HEAD * HEAD * (double)b->tokens);
}

static void scan_ahead(bench *b)
{
    zero(b->state);
    OK(kvm_op_scan(b->c, b->y, b->in.q, b->in.k, b->in.v, b->in.beta, b->rate, b->skip,
                   b->state, &err));
}
static void scan_back(bench *b)
{
    const kvm_scan_rows in = {b->in.q, b->in.k, b->in.v, b->in.beta};
    const kvm_scan_rows d = {b->d.q, b->d.k, b->d.v, b->d.beta};
    zero(b->state), zero(b->dstate);
    OK(kvm_op_scan_back(b->c, &d, b->dstate, &in, b->rate, b->skip, b->state, b->dy,
                        &err));
}

static void bench_scan(bench *b)
{
    const ptrdiff_t t = b->tokens;
    for (int i = 0; i < 2; i++) {
        kvm_delta_rows *r = i ? &b->d : &b->in;
        r->q = numbers(b, t, SCAN_GROUPS, SCAN_STATE);
        r->k = numbers(b, t, SCAN_GROUPS, SCAN_STATE);
        r->v = numbers(b, t, SCAN_HEADS, SCAN_VALUE);
        r->beta = numbers(b, t, SCAN_HEADS, 0);
    }
    b->y = numbers(b, t, SCAN_HEADS, SCAN_VALUE);
    b->dy = numbers(b, t, SCAN_HEADS, SCAN_VALUE);
    b->rate = kvm_view1(numbers(b, 1, SCAN_HEADS, 0).data, KVM_F32, SCAN_HEADS);
    b->skip = kvm_view1(numbers(b, 1, SCAN_HEADS, 0).data, KVM_F32, SCAN_HEADS);
    b->state = numbers(b, SCAN_HEADS, SCAN_VALUE, SCAN_STATE);
    b->dstate = numbers(b, SCAN_HEADS, SCAN_VALUE, SCAN_STATE);
    float *dt = b->in.beta.data, *rate = b->rate.data;
    for (ptrdiff_t i = 0; i < t * SCAN_HEADS; i++) dt[i] = (dt[i] + 0.5f) * 0.1f;
    for (ptrdiff_t i = 0; i < SCAN_HEADS; i++) rate[i] = 1 + 8 * (rate[i] + 0.5f);
    compare(b, "scan", scan_ahead, scan_back,
            10.0 * SCAN_HEADS * SCAN_VALUE * SCAN_STATE * (double)t);
}

static bool wanted(int argc, char **argv, const char *part)
{
    return argc < 6 || strcmp(argv[5], part) == 0;
}

int main(int argc, char **argv)
{
    bench b = {.rounds = number_of(argc, argv, 3, 9),
               .tokens = number_of(argc, argv, 4, 2048)};
    if (b.rounds < 1 || b.rounds > MOST_ROUNDS) die("rounds", "1 to 101");
    if (b.tokens < 1) die("tokens", "1 or more");
    OK(kvm_arena_init(&b.keep, (size_t)8 << 30, &err));
    const kvm_backend *back = kvm_backend_find(kvm_str_of(argc > 1 ? argv[1] : "cpu"));
    OK(kvm_compute_new(&b.c, &b.keep, back, number_of(argc, argv, 2, 0), &err));
    b.rng = kvm_rng_seed(7, 0);
    printf("%s\nFMA peak now %.0f GF/s\n", kvm_compute_describe(b.c, &b.keep).at,
           fma_peak(b.c) * 1e-9);
    if (wanted(argc, argv, "conv")) bench_conv(&b);
    if (wanted(argc, argv, "delta")) bench_delta(&b, false);
    if (wanted(argc, argv, "channel")) bench_delta(&b, true);
    if (wanted(argc, argv, "scan")) bench_scan(&b);
    kvm_arena_free(&b.keep);
    return 0;
}
