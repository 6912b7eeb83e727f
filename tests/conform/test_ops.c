/* Every op of ops.def on every backend against ref, over many shapes: ragged, strided,
 * tiny, empty. Each case runs twice on the backend and must give the same bits, and may
 * not touch what lies between rows. A row of ops.def without a case here does not
 * link. */
#include "tests/conform/backward.h"
#include "tests/conform/bed.h"
#include "tests/conform/recurrent.h"
#include "tests/conform/recurrent_back.h"

/* ---- model forward --------------------------------------------------------------- */

static void cases_embed(bed *b)
{
    for (size_t i = 0; i < COUNT(readable); i++) {
        const kvm_dtype d = readable[i];
        const ptrdiff_t width = kvm_dtype_block(d) == 1 ? 37 : 512;
        for (ptrdiff_t t = 0; t < 9; t += 4) {
            LABEL(b, "%s T=%td", kvm_dtype_name(d), t);
            int32_t ids[9];
            for (int k = 0; k < 9; k++) ids[k] = (int32_t)kvm_rng_below(&b->rng, 11);
            kvm_tensor w = d == KVM_U8 || d == KVM_I32
                               ? make_stored(b, KVM_I8, 11, width)
                               : make_stored(b, d, 11, width);
            const kvm_tensor y = make(b, KVM_F32, t, width, t > 4);
            RUN(b, y, kvm_op_embed(c, o, ids, w, &err));
        }
    }
}

static void cases_rmsnorm(bed *b)
{
    static const struct {
        ptrdiff_t t, f, group, w;
    } shapes[] = {{1, 1, 1, 1},     {3, 7, 7, 7},      {1, 576, 576, 576},
                  {40, 96, 24, 24}, {33, 64, 16, 64},  {5, 129, 43, 43},
                  {0, 8, 8, 8},     {70, 520, 65, 520}};
    for (size_t i = 0; i < COUNT(shapes); i++) {
        const ptrdiff_t t = shapes[i].t, f = shapes[i].f;
        for (int form = 0; form < 4; form++) {
            LABEL(b, "T=%td F=%td group=%td form=%d", t, f, shapes[i].group, form);
            const kvm_tensor x = make(b, KVM_F32, t, f, form & 1);
            kvm_tensor w = make(b, KVM_F32, 1, shapes[i].w, false);
            w = kvm_view1(w.data, KVM_F32, shapes[i].w);
            const kvm_tensor y = make(b, KVM_F32, t, f, form & 1);
            RUN(b, y,
                kvm_op_rmsnorm(c, o, x, w, shapes[i].group, 1e-6, form & 2, &err));
            RUN(b, x,
                kvm_op_rmsnorm(c, o, o, w, shapes[i].group, 1e-6, form & 2, &err));
        }
    }
}

/* form: 1 with gaps between rows, 2 with a bias, 4 added to what is there */
static void run_linear(bed *b, kvm_tensor m, ptrdiff_t t, int form)
{
    const ptrdiff_t outs = m.dim[0], i = m.dim[1];
    const kvm_tensor x = make(b, KVM_F32, t, i, form & 1);
    const kvm_tensor y = make(b, KVM_F32, t, outs, form & 1);
    const kvm_tensor bias = make(b, KVM_F32, 1, outs, false);
    kvm_weight *w;
    kvm_err err0 = {0};
    check_ok(
        kvm_weight_new(&w, &b->keep, b->dev, m, form & 2 ? bias.data : NULL, &err0),
        &err0);
    RUN(b, y, kvm_op_linear(c, o, x, w, form & 4, &err));
}

static void linear_case(bed *b, kvm_dtype d, ptrdiff_t t, ptrdiff_t i, ptrdiff_t outs,
                        int form)
{
    LABEL(b, "%s T=%td I=%td O=%td form=%d", kvm_dtype_name(d), t, i, outs, form);
    run_linear(b, make_stored(b, d, outs, i), t, form);
}

static void scaled_case(bed *b, ptrdiff_t t, ptrdiff_t i, ptrdiff_t outs, int form,
                        kvm_scales s)
{
    LABEL(b, "F8_E4M3 T=%td I=%td O=%td form=%d blocks %td x %td from %td", t, i, outs,
          form, s.rows, s.cols, s.first);
    run_linear(b, make_scaled(b, outs, i, s), t, form);
}

static void cases_scaled(bed *b)
{
    static const ptrdiff_t tokens[] = {1, 2, 3, 8, 9, 40};
    static const struct {
        ptrdiff_t i, o;
    } sizes[] = {{1, 1}, {7, 5}, {300, 33}, {384, 70}, {1100, 17}};
    static const kvm_scales blocks[] = {
        {.rows = 128, .cols = 128}, {.rows = 16, .cols = 16, .first = 28},
        {.rows = 1, .cols = 4096},  {.rows = 5, .cols = 3, .first = 2},
        {.rows = 4096, .cols = 7},
    };
    for (size_t t = 0; t < COUNT(tokens); t++)
        for (size_t s = 0; s < COUNT(sizes); s++)
            for (size_t k = 0; k < COUNT(blocks); k++)
                scaled_case(b, tokens[t], sizes[s].i, sizes[s].o, (int)(t + s + k) % 8,
                            blocks[k]);
}

/* every code of 8 bits by itself, times a scale: the very bits of ref, NaN for NaN */
static void every_code(bed *b)
{
    enum { CODES = 256 };
    static uint8_t codes[CODES];
    static const float grid[] = {0.37f, 3.0f};
    static const kvm_scales s = {grid, CODES, 100, 0, 0};
    kvm_err err = {0};
    for (int i = 0; i < CODES; i++) codes[i] = (uint8_t)i;
    for (ptrdiff_t tokens = 1; tokens <= 10; tokens += 3) {
        LABEL(b, "F8_E4M3 codes, T=%td", tokens);
        kvm_tensor m = kvm_view2(codes, KVM_F8_E4M3, CODES, 1);
        m.scales = &s;
        kvm_tensor x = make(b, KVM_F32, tokens, 1, false);
        for (ptrdiff_t t = 0; t < tokens; t++) ((float *)x.data)[t] = 1;
        kvm_tensor want = make(b, KVM_F32, tokens, CODES, false), got = copy(b, want);
        kvm_weight *w;
        check_ok(kvm_weight_new(&w, &b->keep, b->dev, m, NULL, &err), &err);
        check_ok(kvm_op_linear(b->ref, want, x, w, false, &err), &err);
        check_ok(kvm_op_linear(b->dev, got, x, w, false, &err), &err);
        for (ptrdiff_t i = 0; i < tokens * CODES; i++) {
            const float e = ((float *)want.data)[i], g = ((float *)got.data)[i];
            assert_true(isnan(e) == ((i & 0x7f) == 0x7f));
            if (isnan(e) ? !isnan(g) : e != g)
                fail_msg("%s: code %td is %g, not %g", b->label, i % CODES, (double)g,
                         (double)e);
        }
    }
}

static void cases_linear(bed *b)
{
    static const ptrdiff_t tokens[] = {0, 1, 2, 3, 5, 8, 9, 14, 15, 31, 64, 133};
    static const struct {
        ptrdiff_t i, o;
    } sizes[] = {{1, 1},    {7, 5},     {64, 33},  {96, 200},
                 {257, 31}, {1536, 64}, {2050, 17}};
    for (size_t t = 0; t < COUNT(tokens); t++)
        for (size_t s = 0; s < COUNT(sizes); s++)
            for (int d = 0; d < 3; d++)
                linear_case(b, readable[d], tokens[t], sizes[s].i, sizes[s].o,
                            (int)(t + s + (size_t)d) % 8);
    for (int form = 0; form < 8; form++) linear_case(b, KVM_BF16, 30, 72, 70, form);
    for (size_t i = 3; i < COUNT(readable); i++) {
        const bool block = kvm_dtype_block(readable[i]) > 1;
        if (readable[i] == KVM_U8 || readable[i] == KVM_I32) continue;
        for (ptrdiff_t t = 1; t < 60; t = 3 * t + 2) {
            linear_case(b, readable[i], t, block ? 256 : 33, 35, (int)(t & 7));
            linear_case(b, readable[i], t, block ? 1280 : 70, 6, (int)(t & 7));
        }
    }
    linear_case(b, KVM_F32, 4, 0, 6, 2); /* a sum over nothing is the bias */
    cases_scaled(b);
    every_code(b);
}

static void cases_rope(bed *b)
{
    static const ptrdiff_t widths[] = {2, 8, 24, 34, 64};
    float inv_freq[32];
    for (int j = 0; j < 32; j++) inv_freq[j] = (float)pow(10000, -j / 32.0);
    for (size_t i = 0; i < COUNT(widths); i++) {
        for (int form = 0; form < 8; form++) {
            for (ptrdiff_t t = 0; t < 30; t += 7) {
                LABEL(b, "width=%td T=%td form=%d", widths[i], t, form);
                const kvm_rope r = {inv_freq, widths[i], form & 1, form & 2 ? 1.3f : 1};
                int32_t pos[30];
                for (int p = 0; p < 30; p++)
                    pos[p] = (int32_t)kvm_rng_below(&b->rng, 131072) - 9;
                if (t == 7) pos[3] = 0x7ffffff0; /* beyond the exact reduction */
                const ptrdiff_t head = form & 4 ? widths[i] : 70;
                const kvm_tensor x = make3(b, t, 3, head, form & 4);
                RUN(b, x, kvm_op_rope(c, o, pos, &r, false, &err));
                RUN(b, x, kvm_op_rope(c, o, pos, &r, true, &err));
            }
        }
    }
}

static void attention_case(bed *b, const attention_shape *s, bool strided)
{
    LABEL(b, "T=%td H=%td/%td D=%td Dv=%td C=%td first=%td window=%td %s", s->t,
          s->heads, s->kv, s->d, s->dv, s->c, s->first, s->window,
          kvm_dtype_name(s->dtype));
    const kvm_tensor q = make3(b, s->t, s->heads, s->d, strided);
    const kvm_tensor y = make3(b, s->t, s->heads, s->dv, strided);
    kvm_tensor k = make_stored(b, s->dtype, s->kv * s->c, s->d);
    kvm_tensor v = make_stored(b, s->dtype, s->kv * s->c, s->dv);
    k = kvm_view3(k.data, s->dtype, s->kv, s->c, s->d);
    v = kvm_view3(v.data, s->dtype, s->kv, s->c, s->dv);
    if (strided) { /* (C,Hk,D): heads within a token's row */
        k.stride[0] = s->d, k.stride[1] = s->kv * s->d;
        v.stride[0] = s->dv, v.stride[1] = s->kv * s->dv;
    }
    const double scale = 1 / sqrt((double)s->d);
    RUN(b, y, kvm_op_attention(c, o, q, k, v, s->first, s->window, scale, &err));
    /* a third of the keys, and the query's own */
    static uint64_t bits[512 * 40];
    const kvm_mask mask = {bits, (s->first + s->t + 63) / 64};
    assert_true(s->t * mask.words <= (ptrdiff_t)COUNT(bits));
    memset(bits, 0, (size_t)(s->t * mask.words) * sizeof *bits);
    for (ptrdiff_t t = 0; t < s->t; t++)
        for (ptrdiff_t i = 0; i <= s->first + t; i++)
            if (i == s->first + t || kvm_rng_below(&b->rng, 3) == 0)
                bits[t * mask.words + i / 64] |= (uint64_t)1 << i % 64;
    RUN(b, y, kvm_op_attention_some(c, o, q, k, v, s->first, &mask, scale, &err));
}

static void cases_index_score(bed *b)
{
    static const ptrdiff_t shapes[][4] = {/* T H D C */
                                          {1, 1, 1, 1},     {1, 64, 128, 300},
                                          {7, 4, 16, 33},   {40, 5, 24, 130},
                                          {70, 32, 64, 70}, {0, 2, 8, 4}};
    static const kvm_dtype types[] = {KVM_F32, KVM_BF16};
    for (size_t i = 0; i < COUNT(shapes); i++)
        for (int form = 0; form < 2; form++) {
            const ptrdiff_t t = shapes[i][0], h = shapes[i][1], d = shapes[i][2];
            LABEL(b, "T=%td H=%td D=%td C=%td form=%d", t, h, d, shapes[i][3], form);
            const kvm_tensor y = make(b, KVM_F32, t, shapes[i][3], form);
            const kvm_tensor q = make3(b, t, h, d, form);
            const kvm_tensor k = make_stored(b, types[form], shapes[i][3], d);
            const kvm_tensor w = make(b, KVM_F32, t, h, form);
            RUN(b, y, kvm_op_index_score(c, o, q, k, w, 0.3, &err));
        }
}

static void cases_attention(bed *b)
{
    static const attention_shape shapes[] = {
        {0, 2, 1, 8, 8, 4, 2, 0, KVM_F32},
        {1, 1, 1, 1, 1, 1, 0, 0, KVM_F32},
        {1, 9, 3, 64, 64, 700, 699, 0, KVM_F32},
        {1, 4, 2, 24, 24, 2000, 1500, 0, KVM_BF16},
        {3, 4, 4, 16, 40, 900, 890, 100, KVM_F16},
        {8, 6, 2, 33, 17, 530, 522, 7, KVM_F32},
        {9, 6, 2, 33, 17, 530, 521, 300, KVM_F32},
        {40, 4, 2, 16, 16, 40, 0, 0, KVM_F32},
        {40, 4, 2, 16, 16, 40, 0, 5, KVM_F32},
        {130, 9, 3, 64, 64, 400, 260, 0, KVM_F32},
        {300, 2, 1, 24, 24, 300, 0, 0, KVM_BF16},
        {300, 3, 3, 20, 48, 640, 333, 1, KVM_F32},
        {260, 4, 1, 8, 8, 777, 517, 256, KVM_F16},
        {61, 16, 2, 128, 128, 61, 0, 0, KVM_F32},
    };
    for (size_t i = 0; i < COUNT(shapes); i++) {
        attention_case(b, &shapes[i], false);
        attention_case(b, &shapes[i], true);
    }
}

static void cases_silu_mul(bed *b)
{
    static const ptrdiff_t widths[] = {0, 1, 7, 16, 33, 1536};
    for (size_t i = 0; i < COUNT(widths); i++) {
        for (ptrdiff_t t = 0; t < 40; t = 3 * t + 1) {
            LABEL(b, "T=%td F=%td", t, widths[i]);
            const kvm_tensor y = make(b, KVM_F32, t, widths[i], t == 4);
            const kvm_tensor g = make(b, KVM_F32, t, widths[i], t == 4);
            const kvm_tensor u = make(b, KVM_F32, t, widths[i], false);
            float *wild = g.data;
            for (ptrdiff_t k = 0; k < t * widths[i]; k += 5) wild[k] *= 60;
            RUN(b, y, kvm_op_silu_mul(c, o, g, u, &err));
            RUN(b, g, kvm_op_silu_mul(c, o, o, u, &err));
        }
    }
}

static void cases_sigmoid_mul(bed *b)
{
    static const ptrdiff_t widths[] = {0, 1, 7, 16, 33, 1536};
    for (size_t i = 0; i < COUNT(widths); i++) {
        for (ptrdiff_t t = 0; t < 40; t = 3 * t + 1) {
            LABEL(b, "T=%td F=%td", t, widths[i]);
            const kvm_tensor y = make(b, KVM_F32, t, widths[i], t == 4);
            const kvm_tensor g = make(b, KVM_F32, t, widths[i], t == 4);
            const kvm_tensor u = make(b, KVM_F32, t, widths[i], t == 4);
            float *wild = g.data;
            for (ptrdiff_t k = 0; k < t * widths[i]; k += 5) wild[k] *= 60;
            RUN(b, y, kvm_op_sigmoid_mul(c, o, g, u, &err));
            RUN(b, g, kvm_op_sigmoid_mul(c, o, o, u, &err));
            RUN(b, u, kvm_op_sigmoid_mul(c, o, g, o, &err));
        }
    }
}

static void cases_relu2(bed *b)
{
    static const ptrdiff_t widths[] = {0, 1, 7, 16, 33, 1536};
    for (size_t i = 0; i < COUNT(widths); i++) {
        for (ptrdiff_t t = 0; t < 40; t = 3 * t + 1) {
            LABEL(b, "T=%td F=%td", t, widths[i]);
            const kvm_tensor y = make(b, KVM_F32, t, widths[i], t == 4);
            const kvm_tensor x = make(b, KVM_F32, t, widths[i], t == 4);
            RUN(b, y, kvm_op_relu2(c, o, x, &err));
            RUN(b, x, kvm_op_relu2(c, o, o, &err));
        }
    }
}

static void cases_logprob(bed *b)
{
    static const ptrdiff_t widths[] = {1, 3, 16, 100, 2048, 49153};
    for (size_t i = 0; i < COUNT(widths); i++) {
        for (int form = 0; form < 4; form++) {
            LABEL(b, "V=%td form=%d", widths[i], form);
            const ptrdiff_t t = form & 1 ? 7 : 1;
            const kvm_tensor x = make(b, KVM_F32, t, widths[i], form & 1);
            int32_t targets[7];
            for (int k = 0; k < 7; k++)
                targets[k] = (int32_t)kvm_rng_below(&b->rng, (uint64_t)widths[i]);
            double want[7], got[7], again[7];
            kvm_err err = {0};
            const int32_t *which = form & 2 ? targets : NULL;
            check_ok(kvm_op_logprob(b->ref, want, x, which, &err), &err);
            check_ok(kvm_op_logprob(b->dev, got, x, which, &err), &err);
            check_ok(kvm_op_logprob(b->dev, again, x, which, &err), &err);
            for (ptrdiff_t k = 0; k < t; k++)
                if (!(fabs(want[k] - got[k]) <= kvm_op_rows[b->op].tolerance))
                    fail_msg("%s: %.9g, not %.9g", b->label, got[k], want[k]);
            assert_memory_equal(got, again, sizeof(double) * (size_t)t);
        }
    }
}

/* ---- translators ----------------------------------------------------------------- */

static const struct {
    ptrdiff_t n, f, p;
} moment_shapes[] = {{0, 3, 2},   {1, 1, 1},    {5, 7, 33},     {300, 40, 5},
                     {64, 96, 1}, {257, 65, 9}, {100, 300, 31}, {4200, 17, 20}};

static void cases_gram(bed *b)
{
    for (size_t i = 0; i < COUNT(moment_shapes); i++) {
        const ptrdiff_t n = moment_shapes[i].n, f = moment_shapes[i].f;
        for (int form = 0; form < 2; form++) {
            LABEL(b, "N=%td F=%td strided=%d", n, f, form);
            const kvm_tensor x = make(b, KVM_F32, n, f, form);
            const kvm_tensor g = make(b, KVM_F64, f, f, form);
            for (ptrdiff_t r = 0; r < f; r++)
                for (ptrdiff_t k = 0; k < r; k++)
                    kvm_row64(&g, k)[r] = kvm_row64(&g, r)[k];
            RUN(b, g, kvm_op_gram(c, o, x, &err));
        }
    }
}

static void cases_cross(bed *b)
{
    for (size_t i = 0; i < COUNT(moment_shapes); i++) {
        const ptrdiff_t n = moment_shapes[i].n, f = moment_shapes[i].f;
        const ptrdiff_t p = moment_shapes[i].p;
        for (int form = 0; form < 2; form++) {
            LABEL(b, "N=%td F=%td P=%td strided=%d", n, f, p, form);
            const kvm_tensor x = make(b, KVM_F32, n, f, form);
            const kvm_tensor y = make(b, KVM_F32, n, p, form);
            const kvm_tensor out = make(b, KVM_F64, f, p, form);
            RUN(b, out, kvm_op_cross(c, o, x, y, &err));
        }
    }
}

static const ptrdiff_t orders[] = {0, 1, 2, 17, 60};

/* X Xt / n + 1: symmetric, eigenvalues >= 1 */
static kvm_tensor positive(bed *b, ptrdiff_t n, bool strided)
{
    const kvm_tensor x = make(b, KVM_F64, n, n, false);
    const kvm_tensor a = make(b, KVM_F64, n, n, strided);
    for (ptrdiff_t i = 0; i < n; i++) {
        for (ptrdiff_t j = 0; j < n; j++) {
            double sum = i == j;
            for (ptrdiff_t k = 0; k < n; k++)
                sum += kvm_row64(&x, i)[k] * kvm_row64(&x, j)[k] / (double)n;
            kvm_row64(&a, i)[j] = sum;
        }
    }
    return a;
}

static void cases_cholesky(bed *b)
{
    for (size_t i = 0; i < COUNT(orders); i++) {
        LABEL(b, "F=%td", orders[i]);
        const kvm_tensor a = positive(b, orders[i], i % 2);
        RUN(b, a, kvm_op_cholesky(c, o, &err));
    }
    LABEL(b, "indefinite");
    kvm_tensor a = positive(b, 20, true);
    kvm_row64(&a, 13)[13] = -1;
    kvm_err err = {0};
    const kvm_tensor kept = copy(b, a);
    check_status(KVM_SINGULAR, kvm_op_cholesky(b->dev, a, &err), &err);
    check_contains(err.msg, "pivot 13");
    memcpy(a.data, kept.data, span(&a));
    kvm_row64(&a, 13)[13] = NAN;
    err = (kvm_err){0};
    check_status(KVM_SINGULAR, kvm_op_cholesky(b->dev, a, &err), &err);
}

static void cases_cholesky_solve(bed *b)
{
    for (size_t i = 0; i < COUNT(orders); i++) {
        for (ptrdiff_t p = 1; p < 40; p = 5 * p + 1) {
            LABEL(b, "F=%td P=%td", orders[i], p);
            kvm_err err0 = {0};
            const kvm_tensor f = positive(b, orders[i], i % 2);
            check_ok(kvm_op_cholesky(b->ref, f, &err0), &err0);
            const kvm_tensor x = make(b, KVM_F64, orders[i], p, p > 1);
            RUN(b, x, kvm_op_cholesky_solve(c, f, o, &err));
        }
    }
}

/* vectors are unique up to sign: V diag(w) Vt is compared */
static kvm_status eigh_product(kvm_compute *c, kvm_tensor out, kvm_tensor a,
                               kvm_err *err)
{
    double w[64];
    TRY(kvm_op_eigh(c, a, w, err));
    for (ptrdiff_t k = 1; k < a.dim[0]; k++) assert_true(w[k - 1] <= w[k]);
    for (ptrdiff_t i = 0; i < a.dim[0]; i++) {
        for (ptrdiff_t j = 0; j < a.dim[0]; j++) {
            double sum = 0;
            for (ptrdiff_t k = 0; k < a.dim[0]; k++)
                sum += kvm_row64(&a, k)[i] * w[k] * kvm_row64(&a, k)[j];
            kvm_row64(&out, i)[j] = sum;
        }
    }
    return KVM_OK;
}

static void cases_eigh(bed *b)
{
    for (size_t i = 0; i < COUNT(orders); i++) {
        LABEL(b, "F=%td", orders[i]);
        const kvm_tensor a = positive(b, orders[i], i % 2);
        const kvm_tensor out = make(b, KVM_F64, orders[i], orders[i], false);
        RUN(b, out, eigh_product(c, o, copy(b, a), &err));
    }
}

static void gemm_case(bed *b, kvm_dtype d, ptrdiff_t m, ptrdiff_t k, ptrdiff_t p,
                      int form)
{
    LABEL(b, "M=%td K=%td P=%td form=%d", m, k, p, form);
    const bool at = form & 1, bt = form & 2, strided = form & 4;
    const kvm_tensor x = make(b, d, at ? k : m, at ? m : k, strided);
    const kvm_tensor y = make(b, d, bt ? p : k, bt ? k : p, strided);
    const kvm_tensor out = make(b, d, m, p, strided);
    if (d == KVM_F64) {
        RUN(b, out, kvm_op_gemm64(c, o, x, at, y, bt, &err));
        return;
    }
    const double beta = form & 4 ? 0.5 : form & 2;
    RUN(b, out, kvm_op_gemm32(c, o, x, at, y, bt, beta, &err));
}

static const ptrdiff_t gemm_shapes[][3] = {{1, 1, 1},   {3, 5, 2},    {0, 4, 3},
                                           {4, 0, 3},   {64, 33, 65}, {17, 300, 1},
                                           {1, 40, 90}, {130, 70, 40}};

static void cases_gemm64(bed *b)
{
    for (size_t i = 0; i < COUNT(gemm_shapes); i++)
        for (int form = 0; form < 8; form++)
            gemm_case(b, KVM_F64, gemm_shapes[i][0], gemm_shapes[i][1],
                      gemm_shapes[i][2], form);
}

static void cases_gemm32(bed *b)
{
    for (size_t i = 0; i < COUNT(gemm_shapes); i++)
        for (int form = 0; form < 8; form++)
            gemm_case(b, KVM_F32, gemm_shapes[i][0], gemm_shapes[i][1],
                      gemm_shapes[i][2], form);
}

/* ---- the loops over the tables --------------------------------------------------- */

static void (*const cases_of[KVM_OPS])(bed *) = {
#define X(id, name, rule, tolerance, reason) [id] = cases_##name,
#include "kernels/ops.def"
#undef X
};

static void run_op(kvm_op_id op)
{
    kvm_arena keep = check_arena((size_t)1 << 30);
    bed b = {.op = op};
    kvm_err err = {0};
    const kvm_backend *ref = kvm_backend_find(KVM_STR("ref"));
    check_ok(kvm_compute_new(&b.ref, &keep, ref, 1, &err), &err);
    b.keep = check_arena((size_t)1 << 28);
    for (int i = 0; kvm_backend__at(i); i++) {
        const kvm_backend *dev = kvm_backend__at(i);
        if (!dev->supported()) continue;
        for (int threads = 1; threads <= 3; threads += 2) {
            check_ok(kvm_compute_new(&b.dev, &keep, dev, threads, &err), &err);
            b.rng = kvm_rng_seed(20260131, (uint64_t)op);
            cases_of[op](&b);
        }
    }
    kvm_arena_free(&b.keep);
    kvm_arena_free(&keep);
}

#define X(id, name, rule, tolerance, reason)                                           \
    static void name##_equals_ref(void **state)                                        \
    {                                                                                  \
        (void)state;                                                                   \
        run_op(KVM_OP_##name);                                                         \
    }
#include "kernels/ops.def"
#undef X

int main(void)
{
    const struct CMUnitTest tests[] = {
#define X(id, name, rule, tolerance, reason) cmocka_unit_test(name##_equals_ref),
#include "kernels/ops.def"
#undef X
    };
    return cmocka_run_group_tests_name("ops", tests, NULL, NULL);
}
