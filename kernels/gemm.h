/* gemm.h - y (T,O) = x (T,I) Wt + b for weights of any stored type (template; see vec.h).
 *
 * Many tokens: a part of the work is a group of panels (columns of y) and a range of rows. It
 * widens its panels for one block of I into a buffer that stays in the L2 cache, then runs
 * all its rows over them; x is read in place. Few tokens: the weights are read once, in the
 * order they lie, and the arithmetic hides behind that. */
#ifndef KVM_KERNELS_GEMM_H
#define KVM_KERNELS_GEMM_H

#include "kernels/pack.h"

enum {
    GEMM_K = 1024,       /* longest block of I: a panel of it is 128 KiB */
    GEMM_BUFFER = 98304, /* floats of packed panels per thread: 384 KiB of L2 */
    GEMM_PARTS = 4,      /* parts per thread, so that a slow core can be helped */
    GEMM_ROWS = 128,     /* rows worth widening a panel for, at least */
    DOT_ROWS = 4,        /* weight rows read side by side when tokens are few */
    DOT_PART = 32,       /* weight rows per part */
    DOT_TOKENS = VW == 16 ? 4 : 2,
    DOT_MOST = 8, /* tokens up to which the dot form wins */
};

typedef struct linear_job {
    kvm_in x, y;
    kvm_in w;
    const float *bias;
    bool add;
    ptrdiff_t panels, group, groups; /* panels in all, per group; number of groups */
    ptrdiff_t chunks;                /* ranges of rows */
    ptrdiff_t block;                 /* of I */
    float *buffer;                   /* per thread: panels, then rows being widened */
    ptrdiff_t buffer_size;
} linear_job;

static ptrdiff_t least(ptrdiff_t a, ptrdiff_t b)
{
    return a < b ? a : b;
}
static ptrdiff_t most(ptrdiff_t a, ptrdiff_t b)
{
    return a > b ? a : b;
}
static ptrdiff_t up_to(ptrdiff_t n, ptrdiff_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

static void linear_part(void *ctx, ptrdiff_t part, int thread)
{
    const linear_job *j = ctx;
    const ptrdiff_t inputs = j->x->dim[1], outputs = j->y->dim[1];
    const ptrdiff_t chunk = part / j->groups, first = part % j->groups * j->group;
    const ptrdiff_t end = least(first + j->group, j->panels);
    const ptrdiff_t row0 = j->x->dim[0] * chunk / j->chunks;
    const ptrdiff_t rows = j->x->dim[0] * (chunk + 1) / j->chunks - row0;
    float *buffer = j->buffer + thread * j->buffer_size;
    float *wide = buffer + j->group * j->block * NR;
    for (ptrdiff_t k0 = 0; k0 < inputs; k0 += j->block) {
        const ptrdiff_t k = least(j->block, inputs - k0);
        for (ptrdiff_t p = first; p < end; p++)
            pack_panel(buffer + (p - first) * k * NR, j->w, p * NR, k0, k, wide);
        for (ptrdiff_t i = 0; i < tiles_in(rows); i++) {
            const ptrdiff_t r = row0 + tile_from(rows, i);
            const ptrdiff_t mr = row0 + tile_from(rows, i + 1) - r;
            for (ptrdiff_t p = first; p < end; p++) {
                const float *bias = j->bias && k0 == 0 ? j->bias + p * NR : NULL;
                tile_of[mr](kvm_row32(j->y, r) + p * NR, j->y->stride[0],
                            kvm_row32(j->x, r) + k0, j->x->stride[0],
                            buffer + (p - first) * k * NR, k, bias, j->add || k0 > 0,
                            outputs - p * NR);
            }
        }
    }
}

/* ---- few tokens ------------------------------------------------------------------- */

/* out[r][t] = row r of w . x[t], all `rows` x `tokens` sums at once */
V_INLINE void dot_tile(const int rows, const int tokens, const kvm_dtype d,
                       const char *w, ptrdiff_t pitch, const float *x, ptrdiff_t ldx,
                       ptrdiff_t k, float out[DOT_ROWS][DOT_TOKENS])
{
    vf acc[DOT_ROWS][DOT_TOKENS];
    for (int r = 0; r < rows; r++)
        for (int t = 0; t < tokens; t++) acc[r][t] = v_all(0);
    ptrdiff_t p = 0;
    for (; p + VW <= k; p += VW) {
        vf xv[DOT_TOKENS];
        for (int t = 0; t < tokens; t++) xv[t] = v_load(x + t * ldx + p);
        for (int r = 0; r < rows; r++) {
            const vf wv = load_as(d, w + r * pitch, p);
            for (int t = 0; t < tokens; t++) acc[r][t] = v_fma(wv, xv[t], acc[r][t]);
        }
    }
    for (int r = 0; p < k && r < rows; r++) {
        const vf wv = load_as_n(d, w + r * pitch, p, k - p);
        for (int t = 0; t < tokens; t++)
            acc[r][t] = v_fma(wv, v_load_n(x + t * ldx + p, k - p), acc[r][t]);
    }
    for (int r = 0; r < rows; r++)
        for (int t = 0; t < tokens; t++) out[r][t] = v_sum(acc[r][t]);
}

V_INLINE void dot_tokens(const int rows, ptrdiff_t tokens, const kvm_dtype d,
                         const char *w, ptrdiff_t pitch, const float *x, ptrdiff_t ldx,
                         ptrdiff_t k, float out[DOT_ROWS][DOT_TOKENS])
{
    if (tokens == 1) dot_tile(rows, 1, d, w, pitch, x, ldx, k, out);
    if (tokens == 2) dot_tile(rows, 2, d, w, pitch, x, ldx, k, out);
    if (DOT_TOKENS >= 3 && tokens == 3) dot_tile(rows, 3, d, w, pitch, x, ldx, k, out);
    if (DOT_TOKENS >= 4 && tokens == 4) dot_tile(rows, 4, d, w, pitch, x, ldx, k, out);
}

/* rows o .. o+rows of the weight against every token, elements k0 .. k0+k */
V_INLINE void dot_rows(const linear_job *j, const int rows, const kvm_dtype d,
                       const char *w, ptrdiff_t pitch, ptrdiff_t o, ptrdiff_t k0,
                       ptrdiff_t k)
{
    float out[DOT_ROWS][DOT_TOKENS];
    for (ptrdiff_t t0 = 0; t0 < j->x->dim[0]; t0 += DOT_TOKENS) {
        const ptrdiff_t tokens = least(DOT_TOKENS, j->x->dim[0] - t0);
        dot_tokens(rows, tokens, d, w, pitch, kvm_row32(j->x, t0) + k0, j->x->stride[0],
                   k, out);
        for (ptrdiff_t t = 0; t < tokens; t++) {
            float *y = kvm_row32(j->y, t0 + t) + o;
            for (int r = 0; r < rows; r++) {
                const float b = j->bias && k0 == 0 ? j->bias[o + r] : 0;
                y[r] = (j->add || k0 > 0 ? y[r] : 0) + (out[r][t] + b);
            }
        }
    }
}

V_INLINE void dot_part_as(const linear_job *j, const kvm_dtype d, ptrdiff_t first,
                          ptrdiff_t end)
{
    const ptrdiff_t pitch = j->w->stride[0] * (d == KVM_F32 ? 4 : 2);
    const ptrdiff_t k = j->x->dim[1];
    const char *w = j->w->data;
    ptrdiff_t o = first;
    for (; o + DOT_ROWS <= end; o += DOT_ROWS)
        dot_rows(j, DOT_ROWS, d, w + o * pitch, pitch, o, 0, k);
    for (; o < end; o++) dot_rows(j, 1, d, w + o * pitch, pitch, o, 0, k);
}

static void dot_part_widened(const linear_job *j, ptrdiff_t first, ptrdiff_t end,
                             float *wide)
{
    const int block = kvm_dtype_block(j->w->dtype);
    const ptrdiff_t bytes = kvm_dtype_block_bytes(j->w->dtype);
    for (ptrdiff_t o = first; o < end; o += DOT_ROWS) {
        const ptrdiff_t rows = least(DOT_ROWS, end - o);
        for (ptrdiff_t k0 = 0; k0 < j->x->dim[1]; k0 += GEMM_K) {
            const ptrdiff_t k = least(GEMM_K, j->x->dim[1] - k0);
            for (ptrdiff_t r = 0; r < rows; r++)
                widen(wide + r * k, kvm_row(j->w, o + r) + k0 / block * bytes,
                      j->w->dtype, k);
            if (rows == DOT_ROWS) {
                dot_rows(j, DOT_ROWS, KVM_F32, (const char *)wide, 4 * k, o, k0, k);
                continue;
            }
            for (ptrdiff_t r = 0; r < rows; r++)
                dot_rows(j, 1, KVM_F32, (const char *)(wide + r * k), 0, o + r, k0, k);
        }
    }
}

static void dot_part(void *ctx, ptrdiff_t part, int thread)
{
    const linear_job *j = ctx;
    const ptrdiff_t first = part * DOT_PART;
    const ptrdiff_t end = least(first + DOT_PART, j->y->dim[1]);
    if (j->w->dtype == KVM_F32)
        dot_part_as(j, KVM_F32, first, end);
    else if (j->w->dtype == KVM_BF16)
        dot_part_as(j, KVM_BF16, first, end);
    else if (j->w->dtype == KVM_F16)
        dot_part_as(j, KVM_F16, first, end);
    else
        dot_part_widened(j, first, end, j->buffer + thread * j->buffer_size);
}

/* ---- both ------------------------------------------------------------------------- */

static kvm_status linear(kvm_compute *c, kvm_in y, kvm_in x, const kvm_weight *w,
                         bool add, kvm_err *err)
{
    const ptrdiff_t tokens = x->dim[0], inputs = x->dim[1], outputs = y->dim[1];
    linear_job j = {.x = x, .y = y, .w = &w->matrix, .bias = w->bias, .add = add};
    const bool few = tokens <= DOT_MOST;
    ptrdiff_t parts = (outputs + DOT_PART - 1) / DOT_PART;
    if (few) {
        j.buffer_size = DOT_ROWS * GEMM_K;
    } else {
        const ptrdiff_t blocks = (inputs + GEMM_K - 1) / GEMM_K;
        const ptrdiff_t whole = kvm_dtype_block(w->matrix.dtype);
        const ptrdiff_t want = (ptrdiff_t)c->threads * GEMM_PARTS;
        j.block = up_to((inputs + blocks - 1) / blocks, whole > VW ? whole : VW);
        j.panels = (outputs + NR - 1) / NR;
        j.group = most(1, least(GEMM_BUFFER / (j.block * NR), j.panels / want));
        j.groups = (j.panels + j.group - 1) / j.group;
        j.chunks = most(1, least(want / j.groups, tokens / GEMM_ROWS));
        j.buffer_size = (j.group * NR + VW) * j.block;
        parts = j.groups * j.chunks;
    }
    kvm_arena scratch = c->scratch;
    j.buffer = kvm_new_raw(&scratch, float, j.buffer_size * c->threads);
    if (!j.buffer) return kvm_nomem(err, &scratch);
    kvm_pool_run(c->pool, parts, few ? dot_part : linear_part, &j);
    return KVM_OK;
}

#endif
