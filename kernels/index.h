/* index.h - how well a cached token suits a query, for layers that attend to the best
 * of them only (template; see vec.h).
 *
 * A part is a block of queries, all their heads as rows; the keys go by in tiles, as in
 * attention.h, and each score is added to its token's sum at once. Heads are added in
 * their order, so bits depend on neither threads nor blocks. */
#ifndef KVM_KERNELS_INDEX_H
#define KVM_KERNELS_INDEX_H

#include "kernels/attention.h"

enum { INDEX_ROWS = 256 }; /* rows over which the widening of a tile is spread */

typedef struct index_job {
    kvm_in y, q, k, w;
    float scale;
    ptrdiff_t block; /* queries of a part */
    float *buffer;   /* per thread: queries, a panel of keys, a tile of scores */
    ptrdiff_t buffer_size;
} index_job;

static void index_part(void *ctx, ptrdiff_t part, int thread)
{
    const index_job *j = ctx;
    const ptrdiff_t d = j->k->dim[1], heads = j->q->dim[1], keys = j->k->dim[0];
    const ptrdiff_t q0 = part * j->block, n = least(j->block, j->q->dim[0] - q0);
    const ptrdiff_t rows = n * heads;
    float *q = j->buffer + thread * j->buffer_size, *panel = q + j->block * heads * d;
    float *scores = panel + NR * d, *wide = scores + MR * NR;
    for (ptrdiff_t r = 0; r < rows; r++)
        memcpy(q + r * d, kvm_row32(j->q, q0 + r / heads) + r % heads * j->q->stride[1],
               (size_t)d * sizeof *q);
    for (ptrdiff_t k0 = 0; k0 < keys; k0 += NR) {
        const ptrdiff_t count = least(NR, keys - k0);
        pack_panel(panel, j->k, k0, 0, d, wide);
        for (ptrdiff_t t = 0; t < n; t++)
            memset(kvm_row32(j->y, q0 + t) + k0, 0, (size_t)count * sizeof(float));
        for (ptrdiff_t i = 0; i < tiles_in(rows); i++) {
            const ptrdiff_t r = tile_from(rows, i), mr = tile_from(rows, i + 1) - r;
            tile_of[mr](scores, NR, q + r * d, d, panel, d, NULL, false, NR);
            for (ptrdiff_t m = 0; m < mr; m++) {
                const ptrdiff_t t = q0 + (r + m) / heads;
                const float weight = kvm_row32(j->w, t)[(r + m) % heads] * j->scale;
                float *to = kvm_row32(j->y, t) + k0;
                for (ptrdiff_t c = 0; c < count; c++) {
                    const float s = scores[m * NR + c];
                    to[c] += s > 0 ? weight * s : 0;
                }
            }
        }
    }
}

static kvm_status index_score(kvm_compute *c, kvm_in y, kvm_in q, kvm_in k, kvm_in w,
                              double scale, kvm_err *err)
{
    const ptrdiff_t d = k->dim[1], heads = q->dim[1], queries = q->dim[0];
    index_job j = {.y = y, .q = q, .k = k, .w = w, .scale = (float)scale};
    j.block =
        most(1, least(INDEX_ROWS / heads, (queries + c->threads - 1) / c->threads));
    j.buffer_size = up_to(j.block * heads * d + NR * d + MR * NR + VW * d, 16);
    kvm_arena scratch = c->scratch;
    j.buffer = kvm_new_raw(&scratch, float, j.buffer_size * c->threads);
    if (!j.buffer) return kvm_nomem(err, &scratch);
    kvm_pool_run(c->pool, (queries + j.block - 1) / j.block, index_part, &j);
    return KVM_OK;
}

#endif
