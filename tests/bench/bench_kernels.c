/* bench_kernels - the kernels against OpenBLAS and against the machine's FMA peak.
 *
 *   bench_kernels [backend] [threads] [rounds] [part]
 *   part: linear decode attention gram rows delta scan (all)
 *
 * Shapes are those of SmolLM2-135M: d 576, 9 query and 3 kv heads of 64, ffn 1536,
 * vocabulary 49152. Each line first checks its result, then times both arms
 * interleaved; figures are medians and ratios of the same rounds, for the machine
 * changes speed by the second. One thread is timed by its CPU clock, so that neighbours
 * on the machine do not count. The peak is that of AVX2 FMA chains, which cores that
 * split 512-bit operations do not exceed. */
#include <cblas.h>
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "tests/bench/bench.h"

enum { MOST_ROUNDS = 101 };

typedef struct bench {
    kvm_arena keep;
    kvm_compute *c;
    kvm_rng rng;
    int threads, rounds;
} bench;

static float *numbers(bench *b, ptrdiff_t n)
{
    float *p = kvm_new_raw(&b->keep, float, n);
    if (!p) die("numbers", "out of memory");
    for (ptrdiff_t i = 0; i < n; i++) p[i] = (float)kvm_rng_unit(&b->rng) - 0.5f;
    return p;
}

static kvm_tensor stored(bench *b, kvm_dtype d, ptrdiff_t n0, ptrdiff_t n1)
{
    const float *from = numbers(b, n0 * n1);
    if (d == KVM_F32) return kvm_view2_const(from, d, n0, n1);
    uint8_t *p = kvm_new_raw(&b->keep, uint8_t, 2 * n0 * n1);
    if (!p) die("numbers", "out of memory");
    if (d == KVM_Q8_0) { /* scale 2^-8 */
        for (ptrdiff_t i = 0; i < n0 * n1 / 32; i++) {
            p[34 * i] = 0, p[34 * i + 1] = 0x1c;
            for (int k = 0; k < 32; k++)
                p[34 * i + 2 + k] = (uint8_t)(int8_t)(from[32 * i + k] * 255);
        }
    } else {
        OK(kvm_narrow_row(p, d, from, n0 * n1, &err));
    }
    return kvm_view2(p, d, n0, n1);
}

/* ---- time ------------------------------------------------------------------------ */

typedef void work(void *ctx);

/* seconds per call */
static double once(const bench *b, work *f, void *ctx, int calls)
{
    const double from = seconds_of(b->c);
    for (int i = 0; i < calls; i++) f(ctx);
    return (seconds_of(b->c) - from) / calls;
}

typedef struct arms {
    double ours, theirs, ratio, peak_share; /* medians: seconds, seconds, theirs/ours */
} arms;

static arms compare(bench *b, work *ours, work *theirs, void *ctx, double flops)
{
    double t0[MOST_ROUNDS], t1[MOST_ROUNDS], r[MOST_ROUNDS], p[MOST_ROUNDS];
    ours(ctx);
    if (theirs) theirs(ctx);
    const double first = once(b, ours, ctx, 1);
    const int calls = first < 2e-3 ? (int)(2e-3 / first) + 1 : 1;
    for (int i = 0; i < b->rounds; i++) {
        const double peak = fma_peak(b->c);
        t0[i] = once(b, ours, ctx, calls);
        t1[i] = theirs ? once(b, theirs, ctx, calls) : 0;
        r[i] = t1[i] / t0[i];
        p[i] = flops / t0[i] / peak;
    }
    return (arms){median(t0, b->rounds), median(t1, b->rounds), median(r, b->rounds),
                  median(p, b->rounds)};
}

/* ---- linear ---------------------------------------------------------------------- */

/* weights of 8 bits in blocks of 128 x 128, as FP8 checkpoints have them, their scales
 * 1/4 */
static kvm_tensor scaled(bench *b, kvm_tensor m)
{
    enum { BLOCK = 128 };
    const ptrdiff_t rows = (m.dim[0] + BLOCK - 1) / BLOCK;
    const ptrdiff_t cols = (m.dim[1] + BLOCK - 1) / BLOCK;
    float *grid = numbers(b, rows * cols);
    kvm_scales *s = kvm_new(&b->keep, kvm_scales, 1);
    if (!s) die("out of memory", NULL);
    for (ptrdiff_t i = 0; i < rows * cols; i++) grid[i] = 0.25f;
    *s = (kvm_scales){grid, BLOCK, BLOCK, cols, 0};
    m.scales = s;
    return m;
}

typedef struct linear_case {
    bench *b;
    kvm_tensor y, x;
    const float *w32;
    float *z;
    kvm_weight *w;
    ptrdiff_t t, i, o;
} linear_case;

static void linear_ours(void *ctx)
{
    linear_case *k = ctx;
    OK(kvm_op_linear(k->b->c, k->y, k->x, k->w, false, &err));
}

static void linear_blas(void *ctx)
{
    linear_case *k = ctx;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)k->t, (int)k->o,
                (int)k->i, 1, k->x.data, (int)k->i, k->w32, (int)k->i, 0, k->z,
                (int)k->o);
}

static void bench_linear(bench *b, kvm_dtype d, ptrdiff_t t, ptrdiff_t i, ptrdiff_t o)
{
    const kvm_arena at = b->keep;
    const kvm_tensor bare = stored(b, d, o, i);
    const kvm_tensor m = d == KVM_F8_E4M3 ? scaled(b, bare) : bare;
    float *w32 = kvm_new_raw(&b->keep, float, o *i);
    for (ptrdiff_t r = 0; r < o; r++) OK(kvm_widen_at(w32 + r * i, &m, r, 0, i, &err));
    linear_case k = {.b = b, .w32 = w32, .t = t, .i = i, .o = o};
    k.x = kvm_view2(numbers(b, t * i), KVM_F32, t, i);
    k.y = kvm_view2(numbers(b, t * o), KVM_F32, t, o);
    k.z = numbers(b, t * o);
    OK(kvm_weight_new(&k.w, &b->keep, b->c, m, NULL, &err));
    linear_ours(&k);
    linear_blas(&k);
    const float *y = k.y.data;
    for (ptrdiff_t n = 0; n < t * o; n++)
        if (!(fabsf(y[n] - k.z[n]) < 1e-3f)) die("check", "linear differs from sgemm");
    const double flops = 2.0 * (double)t * (double)i * (double)o;
    const arms a = compare(b, linear_ours, linear_blas, &k, flops);
    const double bytes =
        (double)(o * i) * kvm_dtype_block_bytes(d) / kvm_dtype_block(d);
    printf(
        "linear %-7s M=%-4td I=%-4td O=%-5td %7.1f GF/s %5.1f GB/s | sgemm f32 %7.1f | "
        "ratio %5.2f | %4.1f %% of peak\n",
        kvm_dtype_name(d), t, i, o, flops / a.ours * 1e-9, bytes / a.ours * 1e-9,
        flops / a.theirs * 1e-9, a.ratio, 100 * a.peak_share);
    b->keep = at;
}

/* ---- attention ------------------------------------------------------------------- */

typedef struct attention_case {
    bench *b;
    kvm_tensor y, q, k, v;
    ptrdiff_t first;
} attention_case;

static void attention_ours(void *ctx)
{
    attention_case *k = ctx;
    OK(kvm_op_attention(k->b->c, k->y, k->q, k->k, k->v, k->first, 0, 0.125, &err));
}

static void bench_attention(bench *b, kvm_dtype d, ptrdiff_t t, ptrdiff_t keys)
{
    const kvm_arena at = b->keep;
    attention_case k = {.b = b, .first = keys - t};
    k.q = kvm_view3(numbers(b, t * 576), KVM_F32, t, 9, 64);
    k.y = kvm_view3(numbers(b, t * 576), KVM_F32, t, 9, 64);
    k.k = kvm_view3(stored(b, d, 3 * keys, 64).data, d, 3, keys, 64);
    k.v = kvm_view3(stored(b, d, 3 * keys, 64).data, d, 3, keys, 64);
    const double seen = (double)t * ((double)keys + (double)(k.first + 1)) / 2;
    const double flops = 4.0 * 64 * 9 * seen; /* of the causal triangle, no more */
    const arms a = compare(b, attention_ours, NULL, &k, flops);
    printf("attention %-4s T=%-4td C=%-5td %9.3f ms %6.1f GF/s | %4.1f %% of peak\n",
           kvm_dtype_name(d), t, keys, 1e3 * a.ours, flops / a.ours * 1e-9,
           100 * a.peak_share);
    b->keep = at;
}

/* ---- moments --------------------------------------------------------------------- */

typedef struct gram_case {
    bench *b;
    kvm_tensor g, x;
    float *s;
} gram_case;

static void gram_ours(void *ctx)
{
    gram_case *k = ctx;
    OK(kvm_op_gram(k->b->c, k->g, k->x, &err));
}

static void gram_blas(void *ctx)
{
    gram_case *k = ctx;
    const int f = (int)k->x.dim[1], n = (int)k->x.dim[0];
    cblas_ssyrk(CblasRowMajor, CblasLower, CblasTrans, f, n, 1, k->x.data, f, 0, k->s,
                f);
}

static void bench_gram(bench *b, ptrdiff_t n, ptrdiff_t f)
{
    const kvm_arena at = b->keep;
    gram_case k = {.b = b};
    k.x = kvm_view2(numbers(b, n * f), KVM_F32, n, f);
    k.s = numbers(b, f * f);
    k.g = kvm_view2(kvm_new(&b->keep, double, f *f), KVM_F64, f, f);
    if (!k.g.data) die("numbers", "out of memory");
    const double flops = (double)n * (double)f * (double)f;
    const arms a = compare(b, gram_ours, gram_blas, &k, flops);
    printf("gram N=%-5td F=%-5td %7.1f GF/s | ssyrk %7.1f | ratio %5.2f | %4.1f %% of "
           "peak\n",
           n, f, flops / a.ours * 1e-9, flops / a.theirs * 1e-9, a.ratio,
           100 * a.peak_share);
    b->keep = at;
}

/* ---- row ops --------------------------------------------------------------------- */

typedef struct rows_case {
    bench *b;
    kvm_tensor x, y, w, heads, taps, window;
    int32_t *pos;
    double *out;
    kvm_rope rope;
} rows_case;

static void rmsnorm_ours(void *ctx)
{
    rows_case *k = ctx;
    OK(kvm_op_rmsnorm(k->b->c, k->y, k->x, k->w, k->x.dim[1], 1e-5, false, &err));
}
static void rope_ours(void *ctx)
{
    rows_case *k = ctx;
    OK(kvm_op_rope(k->b->c, k->heads, k->pos, &k->rope, false, &err));
}
static void silu_ours(void *ctx)
{
    rows_case *k = ctx;
    OK(kvm_op_silu_mul(k->b->c, k->y, k->x, k->x, &err));
}
static void conv_ours(void *ctx)
{
    rows_case *k = ctx;
    OK(kvm_op_conv(k->b->c, k->y, k->x, k->taps, NULL, k->window, &err));
}
static void logprob_ours(void *ctx)
{
    rows_case *k = ctx;
    OK(kvm_op_logprob(k->b->c, k->out, k->x, NULL, &err));
}

static void bench_row_op(bench *b, const char *name, work *f, ptrdiff_t t, ptrdiff_t n)
{
    const kvm_arena at = b->keep;
    rows_case k = {.b = b};
    k.x = kvm_view2(numbers(b, t * n), KVM_F32, t, n);
    k.y = kvm_view2(numbers(b, t * n), KVM_F32, t, n);
    k.w = kvm_view1(numbers(b, n), KVM_F32, n);
    k.taps = kvm_view2(numbers(b, 4 * n), KVM_F32, n, 4);
    k.window = kvm_view2(numbers(b, 4 * n), KVM_F32, n, 4);
    k.heads = kvm_view3(k.y.data, KVM_F32, t, n / 64, 64);
    k.rope = (kvm_rope){numbers(b, 32), 64, false, 1};
    k.pos = kvm_new_raw(&b->keep, int32_t, t);
    k.out = kvm_new_raw(&b->keep, double, t);
    for (ptrdiff_t i = 0; i < t; i++) k.pos[i] = (int32_t)i;
    const arms a = compare(b, f, NULL, &k, 1);
    printf("%-8s T=%-4td F=%-5td %8.3f ms %6.2f G elements/s\n", name, t, n,
           1e3 * a.ours, (double)(t * n) / a.ours * 1e-9);
    b->keep = at;
}

/* ---- delta ----------------------------------------------------------------------- */

enum { HEADS = 16, HEAD = 128, GEMM_CHUNK = 64 };

typedef struct delta_case {
    bench *b;
    kvm_tensor o, q, k, v, g, beta, state, again;
    float *products; /* per head (4 GEMM_CHUNK, HEAD) */
} delta_case;

static kvm_tensor tokens_of(kvm_tensor t, ptrdiff_t from, ptrdiff_t n)
{
    t.data = (float *)t.data + from * t.stride[0];
    t.dim[0] = n;
    return t;
}

/* `run` tokens a call */
static void delta_run(delta_case *k, ptrdiff_t run)
{
    for (ptrdiff_t t = 0; t < k->o.dim[0]; t += run)
        OK(kvm_op_delta(k->b->c, tokens_of(k->o, t, run), tokens_of(k->q, t, run),
                        tokens_of(k->k, t, run), tokens_of(k->v, t, run),
                        tokens_of(k->g, t, run), tokens_of(k->beta, t, run), k->state,
                        &err));
}

static void delta_ours(void *ctx)
{
    delta_case *k = ctx;
    delta_run(k, k->o.dim[0]);
}

static void delta_tokens(void *ctx)
{
    delta_run(ctx, 1);
}

static void sgemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int m, int n, int k,
                  const float *x, int ldx, const float *y, int ldy, float *out, int ldo)
{
    cblas_sgemm(CblasRowMajor, ta, tb, m, n, k, 1, x, ldx, y, ldy, 0, out, ldo);
}

/* the products of the WY form in chunks of C tokens: K S, Q S, K Kt, Q Kt, two of those
 * (C,C) by (C,E), and Kt U */
static void delta_gemms_of(void *ctx, ptrdiff_t head, int thread)
{
    (void)thread;
    const delta_case *k = ctx;
    enum { C = GEMM_CHUNK, D = HEAD, ROW = HEADS * HEAD };
    float *x = k->products + head * 4 * C * D, *y = x + (ptrdiff_t)2 * C * D;
    float *xq = x + (ptrdiff_t)C * D, *yq = y + (ptrdiff_t)C * C;
    float *s = (float *)k->again.data + head * D * D;
    for (ptrdiff_t t = 0; t < k->o.dim[0]; t += C) {
        const float *kt = (const float *)k->k.data + t * ROW + head * D;
        const float *qt = (const float *)k->q.data + t * ROW + head * D;
        sgemm(CblasNoTrans, CblasNoTrans, C, D, D, kt, ROW, s, D, x, D);
        sgemm(CblasNoTrans, CblasNoTrans, C, D, D, qt, ROW, s, D, xq, D);
        sgemm(CblasNoTrans, CblasTrans, C, C, D, kt, ROW, kt, ROW, y, C);
        sgemm(CblasNoTrans, CblasTrans, C, C, D, qt, ROW, kt, ROW, yq, C);
        sgemm(CblasNoTrans, CblasNoTrans, C, D, C, y, C, qt, ROW, x, D);
        sgemm(CblasNoTrans, CblasNoTrans, C, D, C, yq, C, kt, ROW, xq, D);
        sgemm(CblasTrans, CblasNoTrans, D, D, C, kt, ROW, qt, ROW, s, D);
    }
}

static void delta_gemms(void *ctx)
{
    const delta_case *k = ctx;
    kvm_pool_run(kvm_compute_pool(k->b->c), HEADS, delta_gemms_of, ctx);
}

static void unit_heads(kvm_tensor x, float size)
{
    for (ptrdiff_t i = 0; i < x.dim[0] * x.dim[1]; i++) {
        float *head = (float *)x.data + i * x.dim[2], sum = 1e-6f;
        for (ptrdiff_t d = 0; d < x.dim[2]; d++) sum += head[d] * head[d];
        for (ptrdiff_t d = 0; d < x.dim[2]; d++) head[d] *= size / sqrtf(sum);
    }
}

static kvm_tensor cube(bench *b, ptrdiff_t n0, ptrdiff_t n1, ptrdiff_t n2)
{
    return kvm_view3(numbers(b, n0 * n1 * n2), KVM_F32, n0, n1, n2);
}

static void delta_agrees(delta_case *k)
{
    const ptrdiff_t n = kvm_tensor_count(&k->state);
    float *s = k->state.data, *kept = k->again.data;
    memset(s, 0, (size_t)n * sizeof *s);
    delta_ours(k);
    for (ptrdiff_t i = 0; i < n; i++) kept[i] = s[i], s[i] = 0;
    delta_tokens(k);
    for (ptrdiff_t i = 0; i < n; i++)
        if (!(fabsf(s[i] - kept[i]) < 1e-4f))
            die("check", "delta differs from delta token by token");
}

static void bench_delta(bench *b, ptrdiff_t t, bool per_channel)
{
    const kvm_arena at = b->keep;
    delta_case k = {.b = b};
    k.q = cube(b, t, HEADS, HEAD), k.k = cube(b, t, HEADS, HEAD);
    k.v = cube(b, t, HEADS, HEAD), k.o = cube(b, t, HEADS, HEAD);
    k.g = per_channel ? cube(b, t, HEADS, HEAD)
                      : kvm_view2(numbers(b, t * HEADS), KVM_F32, t, HEADS);
    k.beta = kvm_view2(numbers(b, t * HEADS), KVM_F32, t, HEADS);
    k.state = cube(b, HEADS, HEAD, HEAD), k.again = cube(b, HEADS, HEAD, HEAD);
    k.products = numbers(b, (ptrdiff_t)HEADS * 4 * GEMM_CHUNK * HEAD);
    unit_heads(k.k, 1), unit_heads(k.q, 0.0884f);
    float *g = k.g.data, *beta = k.beta.data;
    for (ptrdiff_t i = 0; i < kvm_tensor_count(&k.g); i++) g[i] = (g[i] - 0.5f) * 0.2f;
    for (ptrdiff_t i = 0; i < t * HEADS; i++) beta[i] += 0.5f;
    delta_agrees(&k);
    openblas_set_num_threads(1); /* the pool deals out heads */
    const double flops = 6.0 * HEADS * HEAD * HEAD * (double)t; /* St k, k ut, St q */
    const arms tokens = compare(b, delta_ours, delta_tokens, &k, flops);
    const arms gemms = compare(b, delta_ours, delta_gemms, &k, flops);
    openblas_set_num_threads(b->threads);
    printf(
        "delta %-11s T=%td H=%d D=%d %8.2f ms | token by token %8.2f ms, ratio %5.2f "
        "| sgemms alone %8.2f ms, ratio %5.2f | %4.1f %% of peak\n",
        per_channel ? "per channel" : "per head", t, HEADS, HEAD, 1e3 * tokens.ours,
        1e3 * tokens.theirs, tokens.ratio, 1e3 * gemms.theirs, gemms.ratio,
        100 * gemms.peak_share);
    b->keep = at;
}

/* ---- scan ------------------------------------------------------------------------ */

/* Nemotron 3 Nano: 64 heads of 64 in 8 groups, states of 128 */
enum { SCAN_HEADS = 64, SCAN_GROUPS = 8, SCAN_VALUE = 64, SCAN_STATE = 128 };

typedef struct scan_case {
    bench *b;
    kvm_tensor o, q, k, v, dt, rate, skip, state, again;
    float *products; /* per group (2 GEMM_CHUNK, SCAN_STATE) */
} scan_case;

/* `run` tokens a call */
static void scan_run(scan_case *k, ptrdiff_t run)
{
    for (ptrdiff_t t = 0; t < k->o.dim[0]; t += run)
        OK(kvm_op_scan(k->b->c, tokens_of(k->o, t, run), tokens_of(k->q, t, run),
                       tokens_of(k->k, t, run), tokens_of(k->v, t, run),
                       tokens_of(k->dt, t, run), k->rate, k->skip, k->state, &err));
}

static void scan_ours(void *ctx)
{
    scan_case *k = ctx;
    scan_run(k, k->o.dim[0]);
}

static void scan_tokens(void *ctx)
{
    scan_run(ctx, 1);
}

/* the products of chunks of C tokens: Q Kt once a group; per head that (C,C) by V, Q S
 * and Vt K */
static void scan_gemms_of(void *ctx, ptrdiff_t group, int thread)
{
    (void)thread;
    const scan_case *k = ctx;
    enum { C = GEMM_CHUNK, D = SCAN_STATE, E = SCAN_VALUE };
    enum { KEYS = SCAN_GROUPS * D, VALUES = SCAN_HEADS * E };
    float *x = k->products + group * 2 * C * D, *y = x + (ptrdiff_t)C * D;
    for (ptrdiff_t t = 0; t < k->o.dim[0]; t += C) {
        const float *kt = (const float *)k->k.data + t * KEYS + group * D;
        const float *qt = (const float *)k->q.data + t * KEYS + group * D;
        sgemm(CblasNoTrans, CblasTrans, C, C, D, qt, KEYS, kt, KEYS, y, C);
        for (ptrdiff_t h = 0; h < SCAN_HEADS / SCAN_GROUPS; h++) {
            const ptrdiff_t head = group * (SCAN_HEADS / SCAN_GROUPS) + h;
            const float *v = (const float *)k->v.data + t * VALUES + head * E;
            float *s = (float *)k->again.data + head * D * E;
            sgemm(CblasNoTrans, CblasNoTrans, C, E, C, y, C, v, VALUES, x, E);
            sgemm(CblasNoTrans, CblasTrans, C, E, D, qt, KEYS, s, D, x, E);
            sgemm(CblasTrans, CblasNoTrans, E, D, C, v, VALUES, kt, KEYS, s, D);
        }
    }
}

static void scan_gemms(void *ctx)
{
    const scan_case *k = ctx;
    kvm_pool_run(kvm_compute_pool(k->b->c), SCAN_GROUPS, scan_gemms_of, ctx);
}

static void scan_agrees(scan_case *k)
{
    const ptrdiff_t n = kvm_tensor_count(&k->state);
    float *s = k->state.data, *kept = k->again.data;
    memset(s, 0, (size_t)n * sizeof *s);
    scan_ours(k);
    for (ptrdiff_t i = 0; i < n; i++) kept[i] = s[i], s[i] = 0;
    scan_tokens(k);
    for (ptrdiff_t i = 0; i < n; i++)
        if (!(fabsf(s[i] - kept[i]) < 1e-4f))
            die("scan differs from scan token by token", NULL);
}

static void bench_scan(bench *b, ptrdiff_t t)
{
    const kvm_arena at = b->keep;
    scan_case k = {.b = b};
    k.q = cube(b, t, SCAN_GROUPS, SCAN_STATE),
    k.k = cube(b, t, SCAN_GROUPS, SCAN_STATE);
    k.v = cube(b, t, SCAN_HEADS, SCAN_VALUE), k.o = cube(b, t, SCAN_HEADS, SCAN_VALUE);
    k.dt = kvm_view2(numbers(b, t * SCAN_HEADS), KVM_F32, t, SCAN_HEADS);
    k.rate = kvm_view1(numbers(b, SCAN_HEADS), KVM_F32, SCAN_HEADS);
    k.skip = kvm_view1(numbers(b, SCAN_HEADS), KVM_F32, SCAN_HEADS);
    k.state = cube(b, SCAN_HEADS, SCAN_VALUE, SCAN_STATE);
    k.again = cube(b, SCAN_HEADS, SCAN_VALUE, SCAN_STATE);
    k.products = numbers(b, (ptrdiff_t)SCAN_GROUPS * 2 * GEMM_CHUNK * SCAN_STATE);
    float *dt = k.dt.data, *rate = k.rate.data;
    for (ptrdiff_t i = 0; i < t * SCAN_HEADS; i++) dt[i] = (dt[i] + 0.5f) * 0.1f;
    for (ptrdiff_t i = 0; i < SCAN_HEADS; i++) rate[i] = 1 + 8 * (rate[i] + 0.5f);
    scan_agrees(&k);
    openblas_set_num_threads(1); /* the pool deals out groups */
    const double flops = 4.0 * SCAN_HEADS * SCAN_VALUE * SCAN_STATE * (double)t;
    const arms tokens = compare(b, scan_ours, scan_tokens, &k, flops);
    const arms gemms = compare(b, scan_ours, scan_gemms, &k, flops);
    openblas_set_num_threads(b->threads);
    printf("scan T=%td H=%d/%d D=%d E=%d %8.2f ms | token by token %8.2f ms, ratio "
           "%5.2f | sgemms alone %8.2f ms, ratio %5.2f | %4.1f %% of peak\n",
           t, SCAN_HEADS, SCAN_GROUPS, SCAN_STATE, SCAN_VALUE, 1e3 * tokens.ours,
           1e3 * tokens.theirs, tokens.ratio, 1e3 * gemms.theirs, gemms.ratio,
           100 * gemms.peak_share);
    b->keep = at;
}

static bool wanted(int argc, char **argv, const char *part)
{
    return argc < 5 || strcmp(argv[4], part) == 0;
}

static void linear_all(bench *b, bool decode)
{
    static const ptrdiff_t prefill_m[] = {8, 32, 512, 2048}, decode_m[] = {1, 2, 4};
    static const ptrdiff_t shapes[][2] = {
        {576, 576}, {576, 192}, {576, 1536}, {1536, 576}};
    static const kvm_dtype types[] = {KVM_F32, KVM_BF16, KVM_F8_E4M3, KVM_F16,
                                      KVM_Q8_0};
    for (int d = 0; d < (decode ? 5 : 3); d++) {
        for (int m = 0; m < (decode ? 3 : 4); m++) {
            const ptrdiff_t t = decode ? decode_m[m] : prefill_m[m];
            for (int s = 0; s < 4; s++)
                bench_linear(b, types[d], t, shapes[s][0], shapes[s][1]);
            if (decode) bench_linear(b, types[d], t, 576, 49152);
        }
    }
}

int main(int argc, char **argv)
{
    bench b = {.rounds = number_of(argc, argv, 3, 9)};
    if (b.rounds < 1 || b.rounds > MOST_ROUNDS) die("rounds", "1 to 101");
    OK(kvm_arena_init(&b.keep, (size_t)8 << 30, &err));
    const kvm_backend *back = kvm_backend_find(kvm_str_of(argc > 1 ? argv[1] : "cpu"));
    OK(kvm_compute_new(&b.c, &b.keep, back, number_of(argc, argv, 2, 0), &err));
    b.threads = kvm_compute_threads(b.c);
    b.rng = kvm_rng_seed(7, 0);
    openblas_set_num_threads(b.threads);
    printf("%s\nFMA peak now %.0f GF/s\n", kvm_compute_describe(b.c, &b.keep).at,
           fma_peak(b.c) * 1e-9);
    if (wanted(argc, argv, "linear")) linear_all(&b, false);
    if (wanted(argc, argv, "decode")) linear_all(&b, true);
    if (wanted(argc, argv, "attention")) {
        for (ptrdiff_t t = 512; t <= 8192; t *= 4) bench_attention(&b, KVM_F32, t, t);
        bench_attention(&b, KVM_BF16, 2048, 2048);
        for (ptrdiff_t keys = 512; keys <= 32768; keys *= 4)
            bench_attention(&b, KVM_F32, 1, keys);
        bench_attention(&b, KVM_BF16, 1, 32768);
    }
    if (wanted(argc, argv, "gram"))
        for (ptrdiff_t f = 1024; f <= 8192; f *= 2) bench_gram(&b, 4096, f);
    if (wanted(argc, argv, "rows")) {
        bench_row_op(&b, "rmsnorm", rmsnorm_ours, 2048, 576);
        bench_row_op(&b, "rope", rope_ours, 2048, 576);
        bench_row_op(&b, "silu_mul", silu_ours, 2048, 1536);
        bench_row_op(&b, "conv", conv_ours, 2048, 8192);
        bench_row_op(&b, "conv", conv_ours, 1, 8192);
        bench_row_op(&b, "logprob", logprob_ours, 256, 49152);
    }
    if (wanted(argc, argv, "delta")) {
        bench_delta(&b, 2048, false);
        bench_delta(&b, 2048, true);
    }
    if (wanted(argc, argv, "scan")) bench_scan(&b, 2048);
    kvm_arena_free(&b.keep);
    return 0;
}
