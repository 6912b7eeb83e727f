/* gemm.h - y (T,O) = x (T,I) Wt + b for weights of any stored type (template; see
 * vec.h).
 *
 * Many tokens: a part of the work is a group of panels (columns of y) and a range of
 * rows. It widens its panels for one block of I into a buffer that stays in the L2
 * cache, then runs all its rows over them; x is read in place. Few tokens: the weights
 * are read once, in the order they lie, and the arithmetic hides behind that. */
#ifndef KVM_KERNELS_GEMM_H
#define KVM_KERNELS_GEMM_H

#include "kernels/pack.h"
#if defined(__AVX512BF16__)
#include "kernels/pairs.h"
#endif

enum {
    GEMM_K = 1024,       /* longest block of I: a panel of it is 128 KiB */
    GEMM_BUFFER = 98304, /* floats of packed panels per thread: 384 KiB of L2 */
    GEMM_PARTS = 4,      /* parts per thread, so that a slow core can be helped */
    GEMM_ROWS = 128,     /* rows worth widening a panel for, at least */
    DOT_ROWS = 4,        /* weight rows multiplied side by side when tokens are few */
    DOT_BYTES = 1 << 20, /* of weights per part, at most */
    DOT_TOKENS = VW == 16 ? 4 : 2,
    DOT_MOST = 8, /* tokens up to which the dot form wins */
    DOT_K = 2048, /* longest piece of a row widened at once: whole blocks of any type */
};

typedef struct linear_job {
    kvm_in x, y;
    kvm_in w;
    const float *bias;
    bool add;
    tile_fn *const *tiles;
    kvm_tensor words[2];             /* x and w in pairs of bf16 */
    ptrdiff_t run;                   /* few tokens: weight rows per part */
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
                j->tiles[mr](kvm_row32(j->y, r) + p * NR, j->y->stride[0],
                             kvm_row32(j->x, r) + k0, j->x->stride[0],
                             buffer + (p - first) * k * NR, k, bias, j->add || k0 > 0,
                             outputs - p * NR);
            }
        }
    }
}

/* ---- few tokens -------------------------------------------------------------------
 *
 * Memory gives most to one sequential stream (23 GB/s a core where four rows side by
 * side got 13), so a weight is read row after row: for one or two tokens straight into
 * the sums, for more through a few rows widened into the L1 cache. A stream takes 0.6
 * us to start, so a part is as long as the threads allow: pieces of 32 rows by turns
 * read at two thirds of the speed. */

/* out[r][t] = row r of w . x[t], all `rows` x `tokens` sums at once */
V_INLINE void dot_tile(const int rows, const int tokens, const float *w, ptrdiff_t ldw,
                       const float *x, ptrdiff_t ldx, ptrdiff_t k,
                       float out[DOT_ROWS][DOT_TOKENS])
{
    vf acc[DOT_ROWS][DOT_TOKENS];
    V_UNROLL for (int r = 0; r < rows; r++) V_UNROLL for (int t = 0; t < tokens; t++)
        acc[r][t] = v_all(0);
    ptrdiff_t p = 0;
    for (; p + VW <= k; p += VW) {
        vf xv[DOT_TOKENS];
        V_UNROLL for (int t = 0; t < tokens; t++) xv[t] = v_load(x + t * ldx + p);
        V_UNROLL for (int r = 0; r < rows; r++)
        {
            const vf wv = v_load(w + r * ldw + p);
            V_UNROLL for (int t = 0; t < tokens; t++) acc[r][t] =
                v_fma(wv, xv[t], acc[r][t]);
        }
    }
    if (p < k) {
        V_UNROLL for (int r = 0; r < rows; r++)
        {
            const vf wv = v_load_n(w + r * ldw + p, k - p);
            V_UNROLL for (int t = 0; t < tokens; t++) acc[r][t] =
                v_fma(wv, v_load_n(x + t * ldx + p, k - p), acc[r][t]);
        }
    }
    V_UNROLL for (int r = 0; r < rows; r++) V_UNROLL for (int t = 0; t < tokens; t++)
        out[r][t] = v_sum(acc[r][t]);
}

V_INLINE void dot_tokens(const int rows, ptrdiff_t tokens, const float *w,
                         ptrdiff_t ldw, const float *x, ptrdiff_t ldx, ptrdiff_t k,
                         float out[DOT_ROWS][DOT_TOKENS])
{
    if (tokens == 1) dot_tile(rows, 1, w, ldw, x, ldx, k, out);
    if (tokens == 2) dot_tile(rows, 2, w, ldw, x, ldx, k, out);
#if defined(__AVX512F__) /* DOT_TOKENS is 4 */
    if (tokens == 3) dot_tile(rows, 3, w, ldw, x, ldx, k, out);
    if (tokens == 4) dot_tile(rows, 4, w, ldw, x, ldx, k, out);
#endif
}

static void dot_store(const linear_job *j, ptrdiff_t o, ptrdiff_t t, bool first,
                      float sum)
{
    float *y = kvm_row32(j->y, t) + o;
    if (j->bias && first) sum += j->bias[o];
    *y = j->add || !first ? *y + sum : sum;
}

/* rows o .. o+rows of the weight, widened, against every token: elements k0 .. k0+k */
V_INLINE void dot_rows(const linear_job *j, const int rows, const float *w, ptrdiff_t o,
                       ptrdiff_t k0, ptrdiff_t k)
{
    float out[DOT_ROWS][DOT_TOKENS];
    for (ptrdiff_t t0 = 0; t0 < j->x->dim[0]; t0 += DOT_TOKENS) {
        const ptrdiff_t tokens = least(DOT_TOKENS, j->x->dim[0] - t0);
        dot_tokens(rows, tokens, w, k, kvm_row32(j->x, t0) + k0, j->x->stride[0], k,
                   out);
        for (ptrdiff_t t = 0; t < tokens; t++)
            for (int r = 0; r < rows; r++)
                dot_store(j, o + r, t0 + t, k0 == 0, out[r][t]);
    }
}

static void dot_part_widened(const linear_job *j, ptrdiff_t first, ptrdiff_t end,
                             float *wide)
{
    for (ptrdiff_t o = first; o < end; o += DOT_ROWS) {
        const ptrdiff_t rows = least(DOT_ROWS, end - o);
        for (ptrdiff_t k0 = 0; k0 < j->x->dim[1]; k0 += DOT_K) {
            const ptrdiff_t k = least(DOT_K, j->x->dim[1] - k0);
            for (ptrdiff_t r = 0; r < rows; r++)
                widen_at(wide + r * k, j->w, o + r, k0, k);
            if (rows == DOT_ROWS) {
                dot_rows(j, DOT_ROWS, wide, o, k0, k);
                continue;
            }
            for (ptrdiff_t r = 0; r < rows; r++)
                dot_rows(j, 1, wide + r * k, o + r, k0, k);
        }
    }
}

enum { DOT_STRAIGHT = 2 }; /* tokens up to which a weight goes straight into the sums */

/* sum (tokens) = elements p .. end of one row of the weight against as many tokens, in
 * WAYS sums under way. More of them made memory slower, not the sums faster
 * (RESULTS.md). */
V_INLINE void dot_span(const linear_job *j, const kvm_dtype d, const int tokens,
                       const char *w, ptrdiff_t p, ptrdiff_t end, vf sum[DOT_STRAIGHT])
{
    enum { WAYS = VW == 16 ? 2 : 16 / VW };
    const ptrdiff_t ldx = j->x->stride[0];
    const float *x = j->x->data;
    vf acc[WAYS][DOT_STRAIGHT];
    V_UNROLL for (int i = 0; i < WAYS; i++) V_UNROLL for (int t = 0; t < tokens; t++)
        acc[i][t] = v_all(0);
    for (; p + WAYS * VW <= end; p += WAYS * VW) {
        V_UNROLL for (int i = 0; i < WAYS; i++)
        {
            const vf wv = load_as(d, w, p + i * VW);
            V_UNROLL for (int t = 0; t < tokens; t++) acc[i][t] =
                v_fma(wv, v_load(x + t * ldx + p + i * VW), acc[i][t]);
        }
    }
    for (; p < end; p += VW) {
        const ptrdiff_t n = least(VW, end - p);
        const vf wv = load_as_n(d, w, p, n);
        V_UNROLL for (int t = 0; t < tokens; t++) acc[0][t] =
            v_fma(wv, v_load_n(x + t * ldx + p, n), acc[0][t]);
    }
    V_UNROLL for (int t = 0; t < tokens; t++)
    {
        V_UNROLL for (int i = 1; i < WAYS; i++) acc[0][t] = acc[0][t] + acc[i][t];
        sum[t] = acc[0][t];
    }
}

V_INLINE void dot_row(const linear_job *j, const kvm_dtype d, const int tokens,
                      const char *w, ptrdiff_t o)
{
    vf sum[DOT_STRAIGHT];
    dot_span(j, d, tokens, w, 0, j->x->dim[1], sum);
    V_UNROLL for (int t = 0; t < tokens; t++) dot_store(j, o, t, true, v_sum(sum[t]));
}

/* the same of a row with scales, one block of them after the other */
V_INLINE void dot_row_scaled(const linear_job *j, const kvm_dtype d, const int tokens,
                             const char *w, ptrdiff_t o)
{
    const kvm_scales *s = j->w->scales;
    const float *grid = scales_of(s, o);
    const ptrdiff_t k = j->x->dim[1];
    vf sum[DOT_STRAIGHT], all[DOT_STRAIGHT];
    V_UNROLL for (int t = 0; t < tokens; t++) all[t] = v_all(0);
    for (ptrdiff_t p = 0; p < k; p += s->cols, grid++) {
        dot_span(j, d, tokens, w, p, least(p + s->cols, k), sum);
        V_UNROLL for (int t = 0; t < tokens; t++) all[t] =
            v_fma(sum[t], v_all(*grid * scale_of(d)), all[t]);
    }
    V_UNROLL for (int t = 0; t < tokens; t++) dot_store(j, o, t, true, v_sum(all[t]));
}

V_INLINE void dot_part_as(const linear_job *j, const kvm_dtype d, const bool scaled,
                          ptrdiff_t first, ptrdiff_t end)
{
    const ptrdiff_t pitch = j->w->stride[0] * simple_bytes(d);
    const char *row = (const char *)j->w->data + first * pitch;
    for (ptrdiff_t o = first; o < end; o++, row += pitch) {
        if (scaled && j->x->dim[0] == 1)
            dot_row_scaled(j, d, 1, row, o);
        else if (scaled)
            dot_row_scaled(j, d, 2, row, o);
        else if (j->x->dim[0] == 1)
            dot_row(j, d, 1, row, o);
        else
            dot_row(j, d, 2, row, o);
    }
}

static void dot_part(void *ctx, ptrdiff_t part, int thread)
{
    const linear_job *j = ctx;
    const ptrdiff_t first = part * j->run;
    const ptrdiff_t end = least(first + j->run, j->y->dim[1]);
    const bool straight = j->x->dim[0] <= DOT_STRAIGHT, scaled = j->w->scales;
    if (straight && j->w->dtype == KVM_F8_E4M3 && scaled)
        dot_part_as(j, KVM_F8_E4M3, true, first, end);
    else if (straight && !scaled && j->w->dtype == KVM_F32)
        dot_part_as(j, KVM_F32, false, first, end);
    else if (straight && !scaled && j->w->dtype == KVM_BF16)
        dot_part_as(j, KVM_BF16, false, first, end);
    else if (straight && !scaled && j->w->dtype == KVM_F16)
        dot_part_as(j, KVM_F16, false, first, end);
    else
        dot_part_widened(j, first, end, j->buffer + thread * j->buffer_size);
}

/* cuts the work of few tokens; gives the number of parts */
static ptrdiff_t cut_dots(linear_job *j, ptrdiff_t threads)
{
    const ptrdiff_t outputs = j->y->dim[1], whole = kvm_dtype_block(j->w->dtype);
    const ptrdiff_t bytes = j->w->dim[1] / whole * kvm_dtype_block_bytes(j->w->dtype);
    const ptrdiff_t rows = (outputs + threads - 1) / threads; /* of a thread */
    const ptrdiff_t pieces = 1 + rows * bytes / DOT_BYTES;
    j->run = up_to((rows + pieces - 1) / pieces, DOT_ROWS);
    j->buffer_size = DOT_ROWS * DOT_K;
    return (outputs + j->run - 1) / j->run;
}

/* ---- both ------------------------------------------------------------------------ */

/* cuts the work of many tokens; gives the number of parts */
static ptrdiff_t cut_linear(linear_job *j, ptrdiff_t threads)
{
    const ptrdiff_t tokens = j->x->dim[0], inputs = j->x->dim[1];
    const ptrdiff_t blocks = (inputs + GEMM_K - 1) / GEMM_K,
                    want = threads * GEMM_PARTS;
    const ptrdiff_t whole = kvm_dtype_block(j->w->dtype);
    j->block = up_to((inputs + blocks - 1) / blocks, whole > VW ? whole : VW);
    j->panels = (j->y->dim[1] + NR - 1) / NR;
    j->group = most(1, least(GEMM_BUFFER / (j->block * NR), j->panels / want));
    j->groups = (j->panels + j->group - 1) / j->group;
    j->chunks = most(1, least(want / j->groups, tokens / GEMM_ROWS));
    j->buffer_size = (j->group * NR + VW) * j->block;
    return j->groups * j->chunks;
}

/* bf16 weights, and x with them, as pairs where the instruction set multiplies those;
 * false when scratch is spent */
static bool take_pairs(kvm_compute *c, kvm_arena *scratch, linear_job *j)
{
#if defined(__AVX512BF16__)
    if (!are_pairs(j->w)) return true;
    if (!round_to_pairs(c, scratch, j->x, &j->words[0])) return false;
    j->words[1] = pairs_in_place(j->w);
    j->x = &j->words[0];
    j->w = &j->words[1];
    j->tiles = pair_tile_of;
#else
    (void)c, (void)scratch, (void)j;
#endif
    return true;
}

static kvm_status linear(kvm_compute *c, kvm_in y, kvm_in x, const kvm_weight *w,
                         bool add, kvm_err *err)
{
    linear_job j = {.x = x, .y = y, .w = &w->matrix, .bias = w->bias, .add = add};
    kvm_arena scratch = c->scratch;
    const bool few = x->dim[0] <= DOT_MOST;
    j.tiles = tile_of;
    if (!few && !take_pairs(c, &scratch, &j)) return kvm_nomem(err, &scratch);
    const ptrdiff_t parts = few ? cut_dots(&j, c->threads) : cut_linear(&j, c->threads);
    j.buffer = kvm_new_raw(&scratch, float, j.buffer_size * c->threads);
    if (!j.buffer) return kvm_nomem(err, &scratch);
    kvm_pool_run(c->pool, parts, few ? dot_part : linear_part, &j);
    return KVM_OK;
}

#endif
