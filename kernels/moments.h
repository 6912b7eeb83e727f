/* moments.h - Xt Y in f64 from f32 rows (template; see vec.h).
 *
 * Rows come in chunks of <= 4096. A chunk is first copied into panels, in which a
 * column is no longer a page apart from row to row. Then each part owns a rectangle of
 * the result: it sums f32 products over the chunk, and adds that into f64. X's side of
 * a rectangle is turned back into rows for the tile loop. Of a Gram matrix only entries
 * with column >= row are summed; the rest is mirrored. An entry's bits depend on the
 * shapes alone, not on threads. */
#ifndef KVM_KERNELS_MOMENTS_H
#define KVM_KERNELS_MOMENTS_H

#include "kernels/gemm.h"

enum {
    SUM_ROWS = 4096,      /* rows summed in f32, at most */
    SUM_FLOATS = 1 << 24, /* of packed chunk, unless that is under SUM_LEAST rows */
    SUM_LEAST = 256,
    SUM_K = 256,            /* rows per step of a rectangle */
    SUM_PITCH = SUM_K + 16, /* keeps the rows of a tile out of one cache set */
    SUM_TALL = 8 * MR, /* a rectangle, its sums and X's side of it fit L2; wide, for
                               X's side is turned anew for each rectangle of a row */
    SUM_WIDE = 512,
    MIRROR = 8, /* a cache line of f64: rows may lie a power of two apart */
};

typedef struct moments_job {
    kvm_in out, x, y;
    bool symmetric;
    ptrdiff_t row0, rows, chunk; /* of this chunk; the longest */
    float *xp, *yp;   /* panels of the chunk, (F/NR,chunk,NR); one when symmetric */
    ptrdiff_t across; /* rectangles side by side */
    float *buffer;
    ptrdiff_t buffer_size;
} moments_job;

/* VW rows of t into its panels */
static void pack_rows(const moments_job *j, kvm_in t, float *panels, ptrdiff_t first)
{
    for (ptrdiff_t col = 0; col < t->dim[1]; col += NR) {
        float *to = panels + col * j->chunk + first * NR;
        for (ptrdiff_t i = first; i < least(first + VW, j->rows); i++, to += NR) {
            const float *from = kvm_row32(t, j->row0 + i) + col;
            for (int v = 0; v < NV; v++) {
                const ptrdiff_t left = t->dim[1] - col - v * VW;
                vf w = v_all(0);
                if (left >= VW)
                    w = v_load(from + v * VW);
                else if (left > 0)
                    w = v_load_n(from + v * VW, left);
                v_store(to + v * VW, w);
            }
        }
    }
}

static void pack_part(void *ctx, ptrdiff_t part, int thread)
{
    (void)thread;
    const moments_job *j = ctx;
    pack_rows(j, j->x, j->xp, part * VW);
    if (!j->symmetric) pack_rows(j, j->y, j->yp, part * VW);
}

/* features i0..i0+m of rows n..n+k of the chunk, to (m,SUM_PITCH); i0 and the bounds of
 * panels need not meet */
static void turn_features(const moments_job *j, float *to, ptrdiff_t i0, ptrdiff_t m,
                          ptrdiff_t n, ptrdiff_t k)
{
    for (ptrdiff_t i = i0 / VW * VW; i < i0 + m; i += VW) {
        const float *from = j->xp + i / NR * NR * j->chunk + n * NR + i % NR;
        for (ptrdiff_t p = 0; p < k; p += VW) {
            vf r[VW];
            for (int q = 0; q < VW; q++)
                r[q] = p + q < k ? v_load(from + (p + q) * NR) : v_all(0);
            v_transpose(r);
            for (int q = 0; q < VW; q++)
                if (i + q >= i0 && i + q < i0 + m)
                    v_store(to + (i + q - i0) * SUM_PITCH + p, r[q]);
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
            v_add_f64(to + col, v_load(sum + r * SUM_WIDE + (col - j0)));
        for (; col < end; col++) to[col] += (double)sum[r * SUM_WIDE + (col - j0)];
    }
}

static void moments_part(void *ctx, ptrdiff_t part, int thread)
{
    const moments_job *j = ctx;
    const ptrdiff_t i0 = part / j->across * SUM_TALL, j0 = part % j->across * SUM_WIDE;
    const ptrdiff_t m = least(SUM_TALL, j->out->dim[0] - i0);
    const ptrdiff_t end = least(j0 + SUM_WIDE, j->out->dim[1]);
    if (j->symmetric && end <= i0) return;
    float *sum = j->buffer + thread * j->buffer_size, *a = sum + SUM_TALL * SUM_WIDE;
    for (ptrdiff_t n = 0; n < j->rows; n += SUM_K) {
        const ptrdiff_t k = least(SUM_K, j->rows - n);
        turn_features(j, a, i0, m, n, k);
        for (ptrdiff_t col = j0; col < end; col += NR) {
            const float *panel = j->yp + col * j->chunk + n * NR;
            for (ptrdiff_t t = 0; t < tiles_in(m); t++) {
                const ptrdiff_t r = tile_from(m, t), mr = tile_from(m, t + 1) - r;
                if (j->symmetric && i0 + r >= col + NR) break;
                tile_of[mr](sum + r * SUM_WIDE + (col - j0), SUM_WIDE,
                            a + r * SUM_PITCH, SUM_PITCH, panel, k, NULL, n > 0, NR);
            }
        }
    }
    sum_out(j, sum, i0, m, j0, end);
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
    const ptrdiff_t rows = x->dim[0], down = (out->dim[0] + SUM_TALL - 1) / SUM_TALL;
    const ptrdiff_t fx = up_to(x->dim[1], NR),
                    fy = symmetric ? 0 : up_to(y->dim[1], NR);
    moments_job j = {.out = out, .x = x, .y = y, .symmetric = symmetric};
    j.across = (out->dim[1] + SUM_WIDE - 1) / SUM_WIDE;
    j.chunk = SUM_ROWS;
    while (j.chunk > SUM_LEAST && j.chunk * (fx + fy) > SUM_FLOATS) j.chunk /= 2;
    j.chunk = least(j.chunk, up_to(rows, VW));
    j.buffer_size = SUM_TALL * (SUM_WIDE + SUM_PITCH);
    kvm_arena scratch = c->scratch;
    j.buffer = kvm_new_raw(&scratch, float, j.buffer_size * c->threads);
    j.xp = kvm_new_raw(&scratch, float, j.chunk *(fx + fy));
    if (!j.buffer || !j.xp) return kvm_nomem(err, &scratch);
    j.yp = j.xp + j.chunk * (symmetric ? 0 : fx);
    for (j.row0 = 0; j.row0 < rows; j.row0 += j.chunk) {
        j.rows = least(j.chunk, rows - j.row0);
        kvm_pool_run(c->pool, (j.rows + VW - 1) / VW, pack_part, &j);
        kvm_pool_run(c->pool, down * j.across, moments_part, &j);
    }
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
