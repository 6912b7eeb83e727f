/* backward.h - gradients of linear maps and of ops that work on each row by itself
 * (template; see vec.h). */
#ifndef KVM_KERNELS_BACKWARD_H
#define KVM_KERNELS_BACKWARD_H

#include "kernels/gemm.h"
#include "kernels/rows.h"

/* ---- linear_back: dx (T,I) = dy (T,O) W ------------------------------------------
 *
 * A part is a group of panels (columns of dx) and a range of rows. Rows of W are rows
 * of its panels as they lie: it widens a strip of columns for one block of O, then runs
 * all its rows over it. */

enum { BACK_COLUMNS = 256 }; /* of a strip at most, and whole blocks of any type */

typedef struct linear_back_job {
    kvm_in dx, dy, w;
    bool add;
    ptrdiff_t panels, group, groups; /* panels in all, per group; number of groups */
    ptrdiff_t chunks;                /* ranges of rows */
    ptrdiff_t block;                 /* of O */
    float *buffer;                   /* per thread: panels, then a row being widened */
    ptrdiff_t buffer_size;
} linear_back_job;

/* n numbers side by side to row r of panels of `rows` rows each */
static void spread_row(float *panels, ptrdiff_t rows, ptrdiff_t r, const float *from,
                       ptrdiff_t n)
{
    for (ptrdiff_t c = 0; c < n; c += NR, panels += rows * NR) {
        float *to = panels + r * NR;
        const ptrdiff_t width = least(NR, n - c);
        for (ptrdiff_t i = 0; i < width; i++) to[i] = from[c + i];
        for (ptrdiff_t i = width; i < NR; i++) to[i] = 0;
    }
}

V_INLINE void strip_as(const kvm_dtype d, float *panels, kvm_in w, ptrdiff_t o0,
                       ptrdiff_t rows, ptrdiff_t c0, ptrdiff_t n)
{
    for (ptrdiff_t r = 0; r < rows; r++) {
        const char *from = kvm_row(w, o0 + r) + c0 * simple_bytes(d);
        for (ptrdiff_t c = 0; c < n; c += VW)
            v_store(panels + c / NR * rows * NR + r * NR + c % NR,
                    n - c >= VW ? load_as(d, from, c) : load_as_n(d, from, c, n - c));
    }
}

/* rows o0 .. o0+rows of w, columns c0 .. c0+n (whole blocks), to panels */
static void pack_strip(float *panels, kvm_in w, ptrdiff_t o0, ptrdiff_t rows,
                       ptrdiff_t c0, ptrdiff_t n, float *wide)
{
    if (!w->scales && w->dtype == KVM_F32) {
        strip_as(KVM_F32, panels, w, o0, rows, c0, n);
    } else if (!w->scales && w->dtype == KVM_BF16) {
        strip_as(KVM_BF16, panels, w, o0, rows, c0, n);
    } else if (!w->scales && w->dtype == KVM_F16) {
        strip_as(KVM_F16, panels, w, o0, rows, c0, n);
    } else {
        for (ptrdiff_t r = 0; r < rows; r++) {
            widen_at(wide, w, o0 + r, c0, n);
            spread_row(panels, rows, r, wide, n);
        }
    }
}

static void linear_back_part(void *ctx, ptrdiff_t part, int thread)
{
    const linear_back_job *j = ctx;
    const ptrdiff_t inputs = j->dx->dim[1], outputs = j->dy->dim[1];
    const ptrdiff_t chunk = part / j->groups, first = part % j->groups * j->group;
    const ptrdiff_t end = least(first + j->group, j->panels), c0 = first * NR;
    const ptrdiff_t row0 = j->dx->dim[0] * chunk / j->chunks;
    const ptrdiff_t rows = j->dx->dim[0] * (chunk + 1) / j->chunks - row0;
    float *panels = j->buffer + thread * j->buffer_size;
    float *wide = panels + j->group * NR * j->block;
    for (ptrdiff_t o0 = 0; o0 < outputs; o0 += j->block) {
        const ptrdiff_t k = least(j->block, outputs - o0);
        pack_strip(panels, j->w, o0, k, c0, least(end * NR, inputs) - c0, wide);
        for (ptrdiff_t i = 0; i < tiles_in(rows); i++) {
            const ptrdiff_t r = row0 + tile_from(rows, i);
            const ptrdiff_t mr = row0 + tile_from(rows, i + 1) - r;
            for (ptrdiff_t p = first; p < end; p++)
                tile_of[mr](kvm_row32(j->dx, r) + p * NR, j->dx->stride[0],
                            kvm_row32(j->dy, r) + o0, j->dy->stride[0],
                            panels + (p - first) * k * NR, k, NULL, j->add || o0 > 0,
                            inputs - p * NR);
        }
    }
}

static kvm_status linear_back(kvm_compute *c, kvm_in dx, kvm_in dy, const kvm_weight *w,
                              bool add, kvm_err *err)
{
    linear_back_job j = {.dx = dx, .dy = dy, .w = &w->matrix, .add = add};
    const ptrdiff_t want = (ptrdiff_t)c->threads * GEMM_PARTS, outputs = dy->dim[1];
    const ptrdiff_t whole = most(1, kvm_dtype_block(w->matrix.dtype) / NR);
    j.panels = (dx->dim[1] + NR - 1) / NR;
    j.group = up_to(most(1, least(BACK_COLUMNS / NR, j.panels / want)), whole);
    j.groups = (j.panels + j.group - 1) / j.group;
    j.chunks = most(1, least(want / j.groups, dx->dim[0] / GEMM_ROWS));
    const ptrdiff_t longest = least(GEMM_K, GEMM_BUFFER / (j.group * NR));
    const ptrdiff_t blocks = (outputs + longest - 1) / longest;
    j.block = (outputs + blocks - 1) / blocks;
    j.buffer_size = up_to(j.group * NR * (j.block + 1), 16);
    kvm_arena scratch = c->scratch;
    j.buffer = kvm_new_raw(&scratch, float, j.buffer_size * c->threads);
    if (!j.buffer) return kvm_nomem(err, &scratch);
    kvm_pool_run(c->pool, j.groups * j.chunks, linear_back_part, &j);
    return KVM_OK;
}

/* ---- row by row ------------------------------------------------------------------ */

typedef struct back_job {
    rows_job rows; /* y: what is written */
    kvm_in dup, dy;
    bool add;
    double by;
} back_job;

static const back_job *back_of(const rows_job *j)
{
    return (const back_job *)(const void *)j;
}

static void rmsnorm_back_row(const rows_job *j, ptrdiff_t t, int thread)
{
    (void)thread;
    const back_job *b = back_of(j);
    const ptrdiff_t n = j->group, features = j->x->dim[1];
    const vf one = v_all(j->plus_one ? 1 : 0);
    for (ptrdiff_t g = 0; g < features; g += n) {
        const float *x = kvm_row32(j->x, t) + g, *dy = kvm_row32(b->dy, t) + g;
        const float *w = (const float *)j->w->data + (j->w->dim[0] == n ? 0 : g);
        float *dx = kvm_row32(j->y, t) + g;
        vf squares = v_all(0), dots = v_all(0);
        for (ptrdiff_t i = 0; i < n; i += VW) {
            const ptrdiff_t m = least(VW, n - i);
            const vf a = v_load_n(x + i, m);
            const vf s = (v_load_n(w + i, m) + one) * v_load_n(dy + i, m);
            squares = v_fma(a, a, squares);
            dots = v_fma(a, s, dots);
        }
        const double r = 1 / sqrt((double)v_sum(squares) / (double)n + j->eps);
        const vf by = v_all((float)r);
        const vf pull = v_all((float)(-r * r * r * (double)v_sum(dots) / (double)n));
        for (ptrdiff_t i = 0; i < n; i += VW) {
            const ptrdiff_t m = least(VW, n - i);
            const vf s = (v_load_n(w + i, m) + one) * v_load_n(dy + i, m);
            vf d = v_fma(by, s, pull * v_load_n(x + i, m));
            if (b->add) d = d + v_load_n(dx + i, m);
            v_store_n(dx + i, d, m);
        }
    }
}

static kvm_status rmsnorm_back(kvm_compute *c, kvm_in dx, kvm_in x, kvm_in w, kvm_in dy,
                               ptrdiff_t group, double eps, bool plus_one, bool add,
                               kvm_err *err)
{
    (void)err;
    back_job j = {
        .rows = {.row = rmsnorm_back_row, .y = dx, .x = x, .w = w, .group = group},
        .dy = dy,
        .add = add};
    j.rows.eps = eps;
    j.rows.plus_one = plus_one;
    rows_run(c, &j.rows, x->dim[0], x->dim[1]);
    return KVM_OK;
}

V_INLINE void gated_back_row(const rows_job *j, ptrdiff_t t, const bool silu)
{
    const back_job *b = back_of(j);
    const float *gate = kvm_row32(j->x, t), *up = kvm_row32(j->w, t);
    const float *dy = kvm_row32(b->dy, t);
    float *dgate = kvm_row32(j->y, t), *dup = kvm_row32(b->dup, t);
    const ptrdiff_t n = b->dy->dim[1];
    for (ptrdiff_t i = 0; i < n; i += VW) {
        const ptrdiff_t m = least(VW, n - i);
        const vf g = v_load_n(gate + i, m), u = v_load_n(up + i, m);
        const vf d = v_load_n(dy + i, m), one = v_all(1);
        const vf s = one / (one + v_exp(v_all(0) - g));
        const vf slope = s / (one + v_exp(g));
        vf by_gate = slope, by_up = s;
        if (silu) {
            by_gate = v_fma(g, slope, s);
            by_up = g * s;
        }
        v_store_n(dgate + i, d * u * by_gate, m);
        v_store_n(dup + i, d * by_up, m);
    }
}

static void silu_mul_back_row(const rows_job *j, ptrdiff_t t, int thread)
{
    (void)thread;
    gated_back_row(j, t, true);
}

static void sigmoid_mul_back_row(const rows_job *j, ptrdiff_t t, int thread)
{
    (void)thread;
    gated_back_row(j, t, false);
}

static kvm_status silu_mul_back(kvm_compute *c, kvm_in dgate, kvm_in dup, kvm_in gate,
                                kvm_in up, kvm_in dy, kvm_err *err)
{
    (void)err;
    back_job j = {.rows = {.row = silu_mul_back_row, .y = dgate, .x = gate, .w = up},
                  .dup = dup,
                  .dy = dy};
    rows_run(c, &j.rows, dy->dim[0], dy->dim[1]);
    return KVM_OK;
}

static kvm_status sigmoid_mul_back(kvm_compute *c, kvm_in dgate, kvm_in dup,
                                   kvm_in gate, kvm_in up, kvm_in dy, kvm_err *err)
{
    (void)err;
    back_job j = {.rows = {.row = sigmoid_mul_back_row, .y = dgate, .x = gate, .w = up},
                  .dup = dup,
                  .dy = dy};
    rows_run(c, &j.rows, dy->dim[0], dy->dim[1]);
    return KVM_OK;
}

static void relu2_back_row(const rows_job *j, ptrdiff_t t, int thread)
{
    (void)thread;
    const float *x = kvm_row32(j->x, t), *dy = kvm_row32(back_of(j)->dy, t);
    float *dx = kvm_row32(j->y, t);
    const ptrdiff_t n = j->y->dim[1];
    for (ptrdiff_t i = 0; i < n; i += VW) {
        const ptrdiff_t m = least(VW, n - i);
        const vf up = v_max(v_all(0), v_load_n(x + i, m));
        v_store_n(dx + i, (up + up) * v_load_n(dy + i, m), m);
    }
}

static kvm_status relu2_back(kvm_compute *c, kvm_in dx, kvm_in x, kvm_in dy,
                             kvm_err *err)
{
    (void)err;
    back_job j = {.rows = {.row = relu2_back_row, .y = dx, .x = x}, .dy = dy};
    rows_run(c, &j.rows, dx->dim[0], dx->dim[1]);
    return KVM_OK;
}

/* ---- kl_back --------------------------------------------------------------------- */

static void kl_back_row(const rows_job *j, ptrdiff_t t, int thread)
{
    (void)thread;
    float *x = kvm_row32(j->y, t), top_x, top_p;
    const float *p = kvm_row32(j->x, t);
    const ptrdiff_t n = j->y->dim[1];
    const double sum_x = shares_of(x, n, &top_x), sum_p = shares_of(p, n, &top_p);
    const vf share_x = v_all((float)(1 / sum_x)), share_p = v_all((float)(1 / sum_p));
    const vf by = v_all((float)back_of(j)->by);
    double kl = 0;
    for (ptrdiff_t i = 0; i < n; i += VW) {
        const ptrdiff_t m = least(VW, n - i);
        const vf a = v_load_n(x + i, m) - v_all(top_x);
        const vf b = v_load_n(p + i, m) - v_all(top_p);
        const vf q = v_exp(a) * share_x, r = v_exp(b) * share_p;
        float terms[VW];
        v_store(terms, r * (b - a));
        v_store_n(x + i, by * (q - r), m);
        for (ptrdiff_t k = 0; k < m; k++) kl += (double)terms[k];
    }
    j->out[t] = kl + log(sum_x) - log(sum_p);
}

static kvm_status kl_back(kvm_compute *c, double *kl, kvm_in logits, kvm_in native,
                          double by, kvm_err *err)
{
    (void)err;
    back_job j = {.rows = {.row = kl_back_row, .y = logits, .x = native, .out = kl},
                  .by = by};
    rows_run(c, &j.rows, logits->dim[0], logits->dim[1]);
    return KVM_OK;
}

#endif
