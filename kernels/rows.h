/* rows.h - ops that work on each row by itself (template; see vec.h). Rows are dealt
 * out to threads in runs of about ROWS_GRAIN numbers. */
#ifndef KVM_KERNELS_ROWS_H
#define KVM_KERNELS_ROWS_H

#include "kernels/pack.h"

#include <math.h>

enum { ROWS_GRAIN = 16384 };

typedef struct rows_job {
    void (*row)(const struct rows_job *j, ptrdiff_t t, int thread);
    ptrdiff_t rows, run; /* rows in all, per part */
    kvm_in y, x, w;
    const int32_t *ids;
    double *out;
    ptrdiff_t group;
    double eps;
    bool plus_one, inverse;
    const kvm_rope *rope;
    float *buffer; /* per thread: cos, sin */
    ptrdiff_t buffer_size;
} rows_job;

static void rows_part(void *ctx, ptrdiff_t part, int thread)
{
    const rows_job *j = ctx;
    const ptrdiff_t end = (part + 1) * j->run < j->rows ? (part + 1) * j->run : j->rows;
    for (ptrdiff_t t = part * j->run; t < end; t++) j->row(j, t, thread);
}

static void rows_run(kvm_compute *c, rows_job *j, ptrdiff_t rows, ptrdiff_t per_row)
{
    j->rows = rows;
    j->run = per_row < ROWS_GRAIN ? ROWS_GRAIN / per_row : 1;
    kvm_pool_run(c->pool, (rows + j->run - 1) / j->run, rows_part, j);
}

/* ---- embed ----------------------------------------------------------------------- */

static void embed_row(const rows_job *j, ptrdiff_t t, int thread)
{
    (void)thread;
    widen_at(kvm_row32(j->y, t), j->w, j->ids[t], 0, j->w->dim[1]);
}

static kvm_status embed(kvm_compute *c, kvm_in y, const int32_t *ids, kvm_in w,
                        kvm_err *err)
{
    (void)err;
    rows_job j = {.row = embed_row, .y = y, .w = w, .ids = ids};
    rows_run(c, &j, y->dim[0], y->dim[1]);
    return KVM_OK;
}

/* ---- rmsnorm --------------------------------------------------------------------- */

static void rmsnorm_row(const rows_job *j, ptrdiff_t t, int thread)
{
    (void)thread;
    const ptrdiff_t n = j->group, features = j->x->dim[1];
    const vf one = v_all(j->plus_one ? 1 : 0);
    for (ptrdiff_t g = 0; g < features; g += n) {
        const float *x = kvm_row32(j->x, t) + g;
        const float *w = (const float *)j->w->data + (j->w->dim[0] == n ? 0 : g);
        float *y = kvm_row32(j->y, t) + g;
        vf s0 = v_all(0), s1 = v_all(0);
        ptrdiff_t i = 0;
        for (; i + 2 * VW <= n; i += 2 * VW) {
            const vf a = v_load(x + i), b = v_load(x + i + VW);
            s0 = v_fma(a, a, s0);
            s1 = v_fma(b, b, s1);
        }
        for (; i < n; i += VW) {
            const vf a = v_load_n(x + i, n - i < VW ? n - i : VW);
            s0 = v_fma(a, a, s0);
        }
        const double mean = (double)v_sum(s0 + s1) / (double)n;
        const vf r = v_all((float)(1 / sqrt(mean + j->eps)));
        for (i = 0; i + VW <= n; i += VW)
            v_store(y + i, v_load(x + i) * r * (v_load(w + i) + one));
        if (i < n)
            v_store_n(y + i,
                      v_load_n(x + i, n - i) * r * (v_load_n(w + i, n - i) + one),
                      n - i);
    }
}

static kvm_status rmsnorm(kvm_compute *c, kvm_in y, kvm_in x, kvm_in w, ptrdiff_t group,
                          double eps, bool plus_one, kvm_err *err)
{
    (void)err;
    rows_job j = {.row = rmsnorm_row, .y = y, .x = x, .w = w, .group = group};
    j.eps = eps;
    j.plus_one = plus_one;
    rows_run(c, &j, x->dim[0], x->dim[1]);
    return KVM_OK;
}

/* ---- rope ------------------------------------------------------------------------ */

enum { EXACT_POSITIONS = 1 << 20 }; /* the reduction below is exact up to this angle */

/* cos and sin of x, |x| <= 2^20: x - n pi/2 in three parts, exact with FMA because n
 * times the first part is a multiple of 2^-23; polynomials of Cephes' sinf and cosf on
 * +-pi/4 */
V_INLINE void v_cos_sin(vf x, vf *cosine, vf *sine)
{
    const vf magic = v_all(12582912.0f);
    const vf t = v_fma(x, v_all(0.636619772f), magic);
    const vf n = t - magic;
    vf r = v_fma(n, v_all(-1.57079637f), x);
    r = v_fma(n, v_all(4.37113883e-8f), r);
    r = v_fma(n, v_all(1.71512489e-15f), r);
    const vf z = r * r;
    vf s = v_all(-1.9515295891e-4f);
    s = v_fma(s, z, v_all(8.3321608736e-3f));
    s = v_fma(s, z, v_all(-1.6666654611e-1f));
    s = v_fma(s * z, r, r);
    vf k = v_all(2.443315711809948e-5f);
    k = v_fma(k, z, v_all(-1.388731625493765e-3f));
    k = v_fma(k, z, v_all(4.166664568298827e-2f));
    k = v_fma(k * z, z, v_fma(z, v_all(-0.5f), v_all(1.0f)));
    const vi bits = (vi)t, odd = -(bits & 1);
    const vi c0 = ((vi)s & odd) | ((vi)k & ~odd), s0 = ((vi)k & odd) | ((vi)s & ~odd);
    *cosine = (vf)(c0 ^ ((bits + 1) & 2) << 30);
    *sine = (vf)(s0 ^ (bits & 2) << 30);
}

/* cos and sin of position * inv_freq, times factor or, for the inverse, conjugate and
 * divided by it */
static void rope_angles(const rows_job *j, int32_t pos, float *cosine, float *sine)
{
    const kvm_rope *r = j->rope;
    const ptrdiff_t pairs = r->width / 2;
    const float size = j->inverse ? 1 / r->factor : r->factor;
    const float turn = j->inverse ? -size : size;
    float fastest = 0;
    for (ptrdiff_t i = 0; i < pairs; i++) {
        cosine[i] = (float)pos * r->inv_freq[i];
        fastest = fabsf(cosine[i]) > fastest ? fabsf(cosine[i]) : fastest;
    }
#if defined(__FMA__)
    if (fastest <= EXACT_POSITIONS) {
        for (ptrdiff_t i = 0; i < pairs; i += VW) {
            vf k, s;
            v_cos_sin(v_load(cosine + i), &k, &s);
            v_store(cosine + i, k * v_all(size));
            v_store(sine + i, s * v_all(turn));
        }
        return;
    }
#endif
    for (ptrdiff_t i = 0; i < pairs; i++) {
        const float angle = cosine[i];
        cosine[i] = cosf(angle) * size;
        sine[i] = sinf(angle) * turn;
    }
}

static void rope_row(const rows_job *j, ptrdiff_t t, int thread)
{
    const ptrdiff_t pairs = j->rope->width / 2;
    float *cosine = j->buffer + thread * j->buffer_size;
    float *sine = cosine + j->buffer_size / 2;
    rope_angles(j, j->ids[t], cosine, sine);
    for (ptrdiff_t h = 0; h < j->y->dim[1]; h++) {
        float *a = kvm_row32(j->y, t) + h * j->y->stride[1];
        if (j->rope->interleaved) {
            for (ptrdiff_t i = 0; i < pairs; i++) {
                const float x0 = a[2 * i], x1 = a[2 * i + 1];
                a[2 * i] = x0 * cosine[i] - x1 * sine[i];
                a[2 * i + 1] = x1 * cosine[i] + x0 * sine[i];
            }
            continue;
        }
        float *b = a + pairs;
        for (ptrdiff_t i = 0; i < pairs; i++) {
            const float x0 = a[i], x1 = b[i];
            a[i] = x0 * cosine[i] - x1 * sine[i];
            b[i] = x1 * cosine[i] + x0 * sine[i];
        }
    }
}

static kvm_status rope(kvm_compute *c, kvm_in x, const int32_t *pos, const kvm_rope *r,
                       bool inverse, kvm_err *err)
{
    rows_job j = {.row = rope_row, .y = x, .ids = pos, .rope = r, .inverse = inverse};
    kvm_arena scratch = c->scratch;
    j.buffer_size = 2 * ((r->width / 2 + 15) / 16 * 16);
    j.buffer = kvm_new_raw(&scratch, float, j.buffer_size * c->threads);
    if (!j.buffer) return kvm_nomem(err, &scratch);
    memset(j.buffer, 0, (size_t)(j.buffer_size * c->threads) * sizeof(float));
    rows_run(c, &j, x->dim[0], x->dim[1] * x->dim[2]);
    return KVM_OK;
}

/* ---- silu_mul, sigmoid_mul ------------------------------------------------------- */

V_INLINE vf v_gated(vf g, vf u, const bool silu)
{
    const vf below = v_all(1) + v_exp(v_all(0) - g);
    return silu ? g / below * u : u / below;
}

V_INLINE void gated_row(const rows_job *j, ptrdiff_t t, const bool silu)
{
    const float *g = kvm_row32(j->x, t), *u = kvm_row32(j->w, t);
    float *y = kvm_row32(j->y, t);
    const ptrdiff_t n = j->y->dim[1];
    ptrdiff_t i = 0;
    for (; i + VW <= n; i += VW)
        v_store(y + i, v_gated(v_load(g + i), v_load(u + i), silu));
    if (i < n)
        v_store_n(y + i, v_gated(v_load_n(g + i, n - i), v_load_n(u + i, n - i), silu),
                  n - i);
}

static void silu_mul_row(const rows_job *j, ptrdiff_t t, int thread)
{
    (void)thread;
    gated_row(j, t, true);
}

static void sigmoid_mul_row(const rows_job *j, ptrdiff_t t, int thread)
{
    (void)thread;
    gated_row(j, t, false);
}

static kvm_status silu_mul(kvm_compute *c, kvm_in y, kvm_in gate, kvm_in up,
                           kvm_err *err)
{
    (void)err;
    rows_job j = {.row = silu_mul_row, .y = y, .x = gate, .w = up};
    rows_run(c, &j, y->dim[0], y->dim[1]);
    return KVM_OK;
}

static kvm_status sigmoid_mul(kvm_compute *c, kvm_in y, kvm_in gate, kvm_in up,
                              kvm_err *err)
{
    (void)err;
    rows_job j = {.row = sigmoid_mul_row, .y = y, .x = gate, .w = up};
    rows_run(c, &j, y->dim[0], y->dim[1]);
    return KVM_OK;
}

/* ---- relu2 ----------------------------------------------------------------------- */

V_INLINE vf v_relu2(vf x) /* v_max gives its second where one is NaN */
{
    x = v_max(v_all(0), x);
    return x * x;
}

static void relu2_row(const rows_job *j, ptrdiff_t t, int thread)
{
    (void)thread;
    const float *x = kvm_row32(j->x, t);
    float *y = kvm_row32(j->y, t);
    const ptrdiff_t n = j->y->dim[1];
    ptrdiff_t i = 0;
    for (; i + VW <= n; i += VW) v_store(y + i, v_relu2(v_load(x + i)));
    if (i < n) v_store_n(y + i, v_relu2(v_load_n(x + i, n - i)), n - i);
}

static kvm_status relu2(kvm_compute *c, kvm_in y, kvm_in x, kvm_err *err)
{
    (void)err;
    rows_job j = {.row = relu2_row, .y = y, .x = x};
    rows_run(c, &j, y->dim[0], y->dim[1]);
    return KVM_OK;
}

/* ---- logprob --------------------------------------------------------------------- */

/* the largest of n numbers, and the sum of e^(x - it): f32 within a block, f64 over
 * blocks */
static double shares_of(const float *x, ptrdiff_t n, float *top)
{
    enum { BLOCK = 32 * VW };
    vf tops = v_all(-INFINITY);
    ptrdiff_t i = 0;
    for (; i + VW <= n; i += VW) tops = v_max(tops, v_load(x + i));
    *top = v_top(tops);
    for (; i < n; i++) *top = x[i] > *top ? x[i] : *top;
    double sum = 0;
    for (i = 0; i < n;) {
        const ptrdiff_t end = n - i < BLOCK ? n : i + BLOCK;
        vf part = v_all(0);
        for (; i + VW <= end; i += VW) part = part + v_exp(v_load(x + i) - v_all(*top));
        sum += (double)v_sum(part);
        for (; i < end; i++) sum += exp((double)x[i] - (double)*top);
    }
    return sum;
}

static void logprob_row(const rows_job *j, ptrdiff_t t, int thread)
{
    (void)thread;
    const float *x = kvm_row32(j->x, t);
    float top;
    const double sum = shares_of(x, j->x->dim[1], &top);
    const double target = j->ids ? (double)x[j->ids[t]] : 0;
    j->out[t] = target - (double)top - log(sum);
}

static kvm_status logprob(kvm_compute *c, double *out, kvm_in logits,
                          const int32_t *targets, kvm_err *err)
{
    (void)err;
    rows_job j = {.row = logprob_row, .x = logits, .ids = targets, .out = out};
    rows_run(c, &j, logits->dim[0], logits->dim[1]);
    return KVM_OK;
}

#endif
