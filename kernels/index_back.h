/* index_back.h - the gradient of an indexer's scores by its keys (template; see vec.h).
 *
 * Rows are (query, head) and lie across, as in attention_back.h. A part is a run of
 * keys: for a block of rows their dots with its keys, which become dy w where they are
 * positive, and the keys' sums of those times the queries. */
#ifndef KVM_KERNELS_INDEX_BACK_H
#define KVM_KERNELS_INDEX_BACK_H

#include "kernels/attention_back.h"

typedef struct index_back_job {
    kvm_in dk, q, k, w, dy;
    float scale;
    ptrdiff_t rows, panels; /* (query, head) in all; panels of NR of them */
    float *across, *along;  /* panels of rows (D,NR), and of columns (rows,NR) */
    float *buffer;          /* per thread: (BACK_KEYS, NR), then (BACK_KEYS,
                               BACK_PITCH) */
} index_back_job;

enum { INDEX_BACK_FLOATS = BACK_KEYS * (NR + BACK_PITCH) };

static void lay_index_rows(index_back_job *j)
{
    const ptrdiff_t heads = j->q->dim[1], d = j->q->dim[2];
    memset(j->across, 0, (size_t)(j->panels * NR * d) * sizeof *j->across);
    for (ptrdiff_t r = 0; r < j->rows; r++) {
        const float *from = kvm_head32(j->q, r / heads, r % heads);
        float *to = j->across + r / NR * NR * d + r % NR;
        for (ptrdiff_t i = 0; i < d; i++) to[i * NR] = from[i];
        for (ptrdiff_t c = 0; c < d; c += VW)
            v_store(j->along + c / NR * NR * j->rows + r * NR + c % NR,
                    v_load_n(from + c, least(VW, d - c)));
    }
}

/* dots (keys,NR) of rows r0 .. r0+n -> their part of the weights (keys,BACK_PITCH) */
static void open_dots(const index_back_job *j, const float *dots, float *weights,
                      ptrdiff_t r0, ptrdiff_t n, ptrdiff_t j0, ptrdiff_t keys)
{
    const ptrdiff_t heads = j->q->dim[1];
    for (ptrdiff_t i = 0; i < n; i++) {
        const ptrdiff_t t = (r0 + i) / heads;
        const float by = j->scale * kvm_row32(j->w, t)[(r0 + i) % heads];
        const float *dy = kvm_row32(j->dy, t) + j0;
        for (ptrdiff_t key = 0; key < keys; key++)
            weights[key * BACK_PITCH + i] =
                j->scale * dots[key * NR + i] > 0 ? by * dy[key] : 0;
    }
}

static void index_back_part(void *ctx, ptrdiff_t part, int thread)
{
    const index_back_job *j = ctx;
    const ptrdiff_t d = j->q->dim[2], j0 = part * BACK_KEYS;
    const ptrdiff_t keys = least(BACK_KEYS, j->k->dim[0] - j0);
    float *dots = j->buffer + thread * INDEX_BACK_FLOATS;
    float *weights = dots + BACK_KEYS * NR;
    for (ptrdiff_t r0 = 0; r0 < j->rows; r0 += BACK_ROWS) {
        const ptrdiff_t rows = least(BACK_ROWS, j->rows - r0);
        for (ptrdiff_t r = 0; r < rows; r += NR) {
            score_tile(j->k, j->across + (r0 + r) * d, dots, j0, j0 + keys);
            open_dots(j, dots, weights + r, r0 + r, least(NR, rows - r), j0, keys);
        }
        for (ptrdiff_t c = 0; c < d; c += NR)
            for (ptrdiff_t i = 0; i < tiles_in(keys); i++) {
                const ptrdiff_t at = tile_from(keys, i);
                const ptrdiff_t mr = tile_from(keys, i + 1) - at;
                tile_of[mr](kvm_row32(j->dk, j0 + at) + c, j->dk->stride[0],
                            weights + at * BACK_PITCH, BACK_PITCH,
                            j->along + c * j->rows + r0 * NR, rows, NULL, true, d - c);
            }
    }
}

static kvm_status index_score_back(kvm_compute *c, kvm_in dk, kvm_in q, kvm_in k,
                                   kvm_in w, kvm_in dy, double scale, kvm_err *err)
{
    index_back_job j = {.dk = dk, .q = q, .k = k, .w = w, .dy = dy};
    const ptrdiff_t d = q->dim[2];
    j.scale = (float)scale;
    j.rows = q->dim[0] * q->dim[1];
    j.panels = (j.rows + NR - 1) / NR;
    kvm_arena scratch = c->scratch;
    j.across = kvm_new_raw(&scratch, float, j.panels *NR *d);
    j.along = kvm_new_raw(&scratch, float, j.rows *up_to(d, NR));
    j.buffer = kvm_new_raw(&scratch, float, (ptrdiff_t)c->threads *INDEX_BACK_FLOATS);
    if (!j.across || !j.along || !j.buffer) return kvm_nomem(err, &scratch);
    lay_index_rows(&j);
    kvm_pool_run(c->pool, (k->dim[0] + BACK_KEYS - 1) / BACK_KEYS, index_back_part, &j);
    return KVM_OK;
}

#endif
