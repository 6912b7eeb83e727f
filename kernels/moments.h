/* moments.h - Xt Y in f64 from f32 rows (template; see vec.h).
 *
 * A part owns a rectangle of the result. For each <= 4096 rows it sums f32 products block by
 * block into an f32 rectangle, then adds that into f64 (design.md 3): an entry's bits
 * depend on the rows alone. X's side is transposed into rows for the tile loop, Y's side is
 * copied into panels. Of a Gram matrix only entries with column >= row are summed; the rest
 * is mirrored. */
#ifndef KVM_KERNELS_MOMENTS_H
#define KVM_KERNELS_MOMENTS_H

#include "kernels/gemm.h"

enum {
    SUM_ROWS = 4096,        /* rows summed in f32 */
    SUM_K = 256,            /* rows per packed block */
    SUM_PITCH = SUM_K + 16, /* keeps the rows of a tile out of one cache set */
    MIRROR = 64,
};

typedef struct moments_job {
    kvm_in out, x, y;
    bool symmetric;
    ptrdiff_t tall, wide, across; /* rectangle; number of them along a row */
    float *buffer;
    ptrdiff_t buffer_size;
} moments_job;

/* features i0..i0+m of rows n0..n0+k of x, to (m,SUM_PITCH) */
static void pack_features(float *to, kvm_in x, ptrdiff_t i0, ptrdiff_t m, ptrdiff_t n0,
                          ptrdiff_t k)
{
    for (ptrdiff_t p = 0; p < k; p += VW) {
        for (ptrdiff_t i = 0; i < m; i += VW) {
            vf r[VW];
            for (int q = 0; q < VW; q++) {
                if (p + q >= k)
                    r[q] = v_all(0);
                else if (m - i >= VW)
                    r[q] = v_load(kvm_row32(x, n0 + p + q) + i0 + i);
                else
                    r[q] = v_load_n(kvm_row32(x, n0 + p + q) + i0 + i, m - i);
            }
            v_transpose(r);
            for (int q = 0; q < VW && i + q < m; q++)
                v_store(to + (i + q) * SUM_PITCH + p, r[q]);
        }
    }
}

/* columns j0..j0+NR of rows n0..n0+k of y, to (k,NR) */
static void pack_columns(float *to, kvm_in y, ptrdiff_t j0, ptrdiff_t n0, ptrdiff_t k)
{
    for (ptrdiff_t p = 0; p < k; p++) {
        const float *from = kvm_row32(y, n0 + p) + j0;
        for (int v = 0; v < NV; v++) {
            const ptrdiff_t left = y->dim[1] - j0 - v * VW;
            vf w = v_all(0);
            if (left >= VW)
                w = v_load(from + v * VW);
            else if (left > 0)
                w = v_load_n(from + v * VW, left);
            v_store(to + p * NR + v * VW, w);
        }
    }
}

/* sum (m,pitch) f32 += over rows n0..n0+k */
static void sum_block(const moments_job *j, float *sum, float *a, float *panel,
                      ptrdiff_t i0, ptrdiff_t m, ptrdiff_t j0, ptrdiff_t end,
                      ptrdiff_t n0, ptrdiff_t k, bool add)
{
    pack_features(a, j->x, i0, m, n0, k);
    for (ptrdiff_t col = j0; col < end; col += NR) {
        if (j->symmetric && col + NR <= i0) continue;
        pack_columns(panel, j->y, col, n0, k);
        for (ptrdiff_t t = 0; t < tiles_in(m); t++) {
            const ptrdiff_t r = tile_from(m, t), mr = tile_from(m, t + 1) - r;
            if (j->symmetric && i0 + r >= col + NR) break;
            tile_of[mr](sum + r * j->wide + (col - j0), j->wide, a + r * SUM_PITCH,
                        SUM_PITCH, panel, k, NULL, add, NR);
        }
    }
}

/* entries of the rectangle that were summed, into f64 */
static void sum_out(const moments_job *j, const float *sum, ptrdiff_t i0, ptrdiff_t m,
                    ptrdiff_t j0, ptrdiff_t end)
{
    for (ptrdiff_t r = 0; r < m; r++) {
        double *to = kvm_row64(j->out, i0 + r);
        ptrdiff_t col = j->symmetric ? most(j0, i0 + r) : j0;
        for (; col + VW <= end; col += VW)
            v_add_f64(to + col, v_load(sum + r * j->wide + (col - j0)));
        for (; col < end; col++) to[col] += (double)sum[r * j->wide + (col - j0)];
    }
}

static void moments_part(void *ctx, ptrdiff_t part, int thread)
{
    const moments_job *j = ctx;
    const ptrdiff_t i0 = part / j->across * j->tall, j0 = part % j->across * j->wide;
    const ptrdiff_t m = least(j->tall, j->out->dim[0] - i0);
    const ptrdiff_t end = least(j0 + j->wide, j->out->dim[1]), rows = j->x->dim[0];
    if (j->symmetric && end <= i0) return;
    float *sum = j->buffer + thread * j->buffer_size;
    float *a = sum + j->tall * j->wide, *panel = a + j->tall * SUM_PITCH;
    for (ptrdiff_t n0 = 0; n0 < rows; n0 += SUM_ROWS) {
        const ptrdiff_t stop = least(n0 + SUM_ROWS, rows);
        for (ptrdiff_t n = n0; n < stop; n += SUM_K)
            sum_block(j, sum, a, panel, i0, m, j0, end, n, least(SUM_K, stop - n),
                      n > n0);
        sum_out(j, sum, i0, m, j0, end);
    }
}

static void mirror_part(void *ctx, ptrdiff_t part, int thread)
{
    (void)thread;
    const moments_job *j = ctx;
    const ptrdiff_t n = j->out->dim[0], i0 = part * MIRROR;
    const ptrdiff_t i1 = least(i0 + MIRROR, n);
    for (ptrdiff_t j0 = i0; j0 < n; j0 += MIRROR)
        for (ptrdiff_t col = j0; col < least(j0 + MIRROR, n); col++)
            for (ptrdiff_t i = i0; i < least(i1, col); i++)
                kvm_row64(j->out, col)[i] = kvm_row64(j->out, i)[col];
}

static kvm_status moments(kvm_compute *c, kvm_in out, kvm_in x, kvm_in y,
                          bool symmetric, kvm_err *err)
{
    const bool large = out->dim[0] >= 4096;
    moments_job j = {.out = out, .x = x, .y = y, .symmetric = symmetric};
    j.tall = (large ? 32 : 16) * MR;
    j.wide = large ? 1024 : 256;
    j.across = (out->dim[1] + j.wide - 1) / j.wide;
    j.buffer_size = j.tall * j.wide + j.tall * SUM_PITCH + SUM_K * NR;
    kvm_arena scratch = c->scratch;
    j.buffer = kvm_new_raw(&scratch, float, j.buffer_size * c->threads);
    if (!j.buffer) return kvm_nomem(err, &scratch);
    const ptrdiff_t down = (out->dim[0] + j.tall - 1) / j.tall;
    kvm_pool_run(c->pool, down * j.across, moments_part, &j);
    if (symmetric)
        kvm_pool_run(c->pool, (out->dim[0] + MIRROR - 1) / MIRROR, mirror_part, &j);
    return KVM_OK;
}

static kvm_status gram(kvm_compute *c, kvm_in g, kvm_in x, kvm_err *err)
{
    return moments(c, g, x, x, true, err);
}

static kvm_status cross(kvm_compute *c, kvm_in out, kvm_in x, kvm_in y, kvm_err *err)
{
    return moments(c, out, x, y, false, err);
}

#endif
