/* attention_back.h - gradients of attention (template; see vec.h).
 *
 * A part is one kv head and a range of its rows, which are (query, head of the group)
 * as in attention.h. It takes a block of rows at a time over all keys that they see.
 * Rows lie across: a strip holds, for each panel of NR rows, NR numbers for each key.
 *
 *   S = K Qt and A = V dYt            one strip each
 *   P = 2^(S - top) / sum,  mean = sum of P A
 *   dS = scale P (A - mean)
 *   dV += P dY,  dK += dS Q,  dQt = Kt dS      tile of keys by tile of keys
 *
 * So weights are formed once and products are five. Where one head has many rows
 * (latent attention) several parts share it: each sums dK and dV by itself, and the
 * sums are added in order. How rows are cut depends on the shapes alone, so bits do not
 * depend on the threads. Source: Dao 2022 (B.4). */
#ifndef KVM_KERNELS_ATTENTION_BACK_H
#define KVM_KERNELS_ATTENTION_BACK_H

#include "kernels/gemm.h"

#include <math.h>

enum {
    BACK_KEYS = 64,  /* of a tile: one word of a mask */
    BACK_ROWS = 128, /* of a block, at most */
    BACK_PITCH = BACK_ROWS + 16,
    BACK_STRIP = 2 << 20, /* floats of a strip, where a panel has not more */
    BACK_PARTS = 8,       /* wanted */
    BACK_SUMS = 64 << 20, /* floats of the parts' own sums, at most */
    BACK_MERGE = 256,     /* keys added up at a time */
};

typedef struct attention_back_job {
    kvm_in dq, dk, dv, q, k, v, dy;
    ptrdiff_t first, window;
    const kvm_mask *mask;    /* NULL: none */
    float scale, scale2;     /* the second times log2 e */
    ptrdiff_t group;         /* query heads of a kv head */
    ptrdiff_t rows;          /* of a kv head */
    ptrdiff_t block, shares; /* rows at a time; parts of a head */
    ptrdiff_t keys, strip;   /* seen by any row; keys of the longest strip */
    float *buffer;
    ptrdiff_t buffer_size;
    float *sums; /* (Hk, shares, keys, D + E); NULL when shares is 1 */
} attention_back_job;

/* a block of rows; the pointers are into its thread's buffer */
typedef struct back_block {
    ptrdiff_t head, r0, rows, panels;
    ptrdiff_t lo, hi;  /* keys that some row sees, from the start of a tile */
    kvm_tensor dk, dv; /* (keys, .) of the head, or of the part alone */
    kvm_tensor k, v;
    float *qt, *yt; /* panels of rows: (D,NR), (E,NR) each; q times scale2 */
    float *qv, *yv; /* panels of columns: (rows,NR) each */
    float *s, *a;   /* strips: (keys,NR) for each panel of rows */
    float *p, *ds;  /* (BACK_KEYS, BACK_PITCH) */
    float *kt;      /* (D, BACK_KEYS) */
    float *dqt;     /* (D, block) */
    float *seen;    /* by tile of keys: 0 where no row looks at any */
} back_block;

static ptrdiff_t back_floats(const attention_back_job *j)
{
    const ptrdiff_t d = j->q->dim[2], e = j->v->dim[2], b = j->block;
    return b * (2 * d + e + up_to(d, NR) + up_to(e, NR)) + 2 * b * j->strip +
           2 * BACK_KEYS * BACK_PITCH + BACK_KEYS * d + j->strip / BACK_KEYS + 16;
}

static kvm_tensor head_rows(kvm_in t, ptrdiff_t head)
{
    kvm_tensor r = kvm_view2(kvm_row32(t, head), KVM_F32, t->dim[1], t->dim[2]);
    r.stride[0] = t->stride[1];
    return r;
}

/* rows of the block, n numbers each: across in panels of rows, times `by`, and as they
 * are in panels of columns */
static void lay_rows(const attention_back_job *j, const back_block *b, kvm_in x,
                     float *across, float *along, float by)
{
    const ptrdiff_t n = x->dim[2];
    memset(across, 0, (size_t)(b->panels * NR * n) * sizeof *across);
    for (ptrdiff_t r = 0; r < b->rows; r++) {
        const ptrdiff_t at = b->r0 + r;
        const float *from =
            kvm_head32(x, at / j->group, b->head * j->group + at % j->group);
        float *to = across + r / NR * NR * n + r % NR;
        for (ptrdiff_t i = 0; i < n; i++) to[i * NR] = from[i] * by;
        for (ptrdiff_t c = 0; c < n; c += VW)
            v_store(along + c / NR * b->rows * NR + r * NR + c % NR,
                    v_load_n(from + c, least(VW, n - c)));
    }
}

/* the query of row r, or of the last one before it */
static ptrdiff_t query_of(const attention_back_job *j, const back_block *b, ptrdiff_t r)
{
    return (b->r0 + least(r, b->rows - 1)) / j->group;
}

static back_block open_block(const attention_back_job *j, ptrdiff_t head, ptrdiff_t r0,
                             ptrdiff_t rows, int thread)
{
    const ptrdiff_t d = j->q->dim[2], e = j->v->dim[2], n = j->block;
    back_block b = {.head = head, .r0 = r0, .rows = rows};
    b.panels = (rows + NR - 1) / NR;
    b.hi = j->first + query_of(j, &b, rows) + 1;
    if (j->window) b.lo = most(0, j->first + query_of(j, &b, 0) - j->window + 1);
    b.lo = b.lo / BACK_KEYS * BACK_KEYS;
    b.k = head_rows(j->k, head);
    b.v = head_rows(j->v, head);
    b.qt = j->buffer + thread * j->buffer_size;
    b.yt = b.qt + n * d;
    b.qv = b.yt + n * e;
    b.yv = b.qv + n * up_to(d, NR);
    b.s = b.yv + n * up_to(e, NR);
    b.a = b.s + n * j->strip;
    b.p = b.a + n * j->strip;
    b.ds = b.p + BACK_KEYS * BACK_PITCH;
    b.kt = b.ds + BACK_KEYS * BACK_PITCH;
    b.dqt = b.kt + BACK_KEYS * d;
    b.seen = b.dqt + n * d;
    lay_rows(j, &b, j->q, b.qt, b.qv, j->scale2);
    lay_rows(j, &b, j->dy, b.yt, b.yv, 1);
    memset(b.dqt, 0, (size_t)(n * d) * sizeof *b.dqt);
    return b;
}

/* ---- weights --------------------------------------------------------------------- */

static bool tile_chosen(const attention_back_job *j, const back_block *b, ptrdiff_t j0)
{
    if (!j->mask) return true;
    for (ptrdiff_t t = query_of(j, b, 0); t <= query_of(j, b, b->rows); t++)
        if (j->mask->bits[t * j->mask->words + j0 / BACK_KEYS]) return true;
    return false;
}

/* scores of keys j0..j1 that a row of panel p does not see weigh nothing */
static void hide_keys(const attention_back_job *j, const back_block *b, ptrdiff_t p,
                      float *s, ptrdiff_t j0, ptrdiff_t j1)
{
    const ptrdiff_t low = j->first + query_of(j, b, p * NR);
    const ptrdiff_t high = j->first + query_of(j, b, p * NR + NR - 1);
    if (!j->mask && j1 <= low + 1 && (!j->window || j0 > high - j->window)) return;
    for (ptrdiff_t i = 0; i < least(NR, b->rows - p * NR); i++) {
        const ptrdiff_t t = query_of(j, b, p * NR + i), pos = j->first + t;
        const uint64_t *bits = j->mask ? j->mask->bits + t * j->mask->words : NULL;
        for (ptrdiff_t key = j0; key < j1; key++)
            if (key > pos || (j->window && key <= pos - j->window) ||
                (bits && !(bits[key / 64] >> key % 64 & 1)))
                s[(key - j0) * NR + i] = -INFINITY;
    }
}

/* to (keys,NR) = rows j0..j1 of x times a panel of rows */
static void score_tile(kvm_in x, const float *panel, float *to, ptrdiff_t j0,
                       ptrdiff_t j1)
{
    const ptrdiff_t n = x->dim[1], keys = j1 - j0;
    for (ptrdiff_t i = 0; i < tiles_in(keys); i++) {
        const ptrdiff_t at = tile_from(keys, i), mr = tile_from(keys, i + 1) - at;
        tile_of[mr](to + at * NR, NR, kvm_row32(x, j0 + at), x->stride[0], panel, n,
                    NULL, false, NR);
    }
}

static void fill_strips(const attention_back_job *j, back_block *b)
{
    for (ptrdiff_t j0 = b->lo; j0 < b->hi; j0 += BACK_KEYS) {
        const ptrdiff_t j1 = least(j0 + BACK_KEYS, b->hi), at = j0 - b->lo;
        const bool seen = tile_chosen(j, b, j0);
        b->seen[at / BACK_KEYS] = seen;
        for (ptrdiff_t p = 0; seen && p < b->panels; p++) {
            float *s = b->s + p * NR * j->strip + at * NR;
            score_tile(&b->k, b->qt + p * NR * b->k.dim[1], s, j0, j1);
            score_tile(&b->v, b->yt + p * NR * b->v.dim[1],
                       b->a + p * NR * j->strip + at * NR, j0, j1);
            hide_keys(j, b, p, s, j0, j1);
        }
    }
}

/* scores of a vector of rows -> weights that are not yet divided by their sum */
static void weigh_strip(const back_block *b, float *s, const float *a, float *share,
                        float *mean)
{
    const ptrdiff_t n = b->hi - b->lo;
    vf top = v_all(-INFINITY), sum = v_all(0), dot = v_all(0);
    for (ptrdiff_t i = 0; i < n; i++)
        if (b->seen[i / BACK_KEYS] != 0) top = v_max(top, v_load(s + i * NR));
    for (ptrdiff_t i = 0; i < n; i++) {
        if (b->seen[i / BACK_KEYS] == 0) continue;
        const vf p = v_exp2(v_load(s + i * NR) - top);
        v_store(s + i * NR, p);
        sum = sum + p;
        dot = v_fma(p, v_load(a + i * NR), dot);
    }
    v_store(share, v_all(1) / sum);
    v_store(mean, dot / sum);
}

/* ---- gradients ------------------------------------------------------------------- */

/* P and dS of keys j0..j1: by key into p and ds, and dS into the strip too */
static void slopes_of(const attention_back_job *j, back_block *b, const float *share,
                      const float *mean, ptrdiff_t j0, ptrdiff_t j1)
{
    const vf scale = v_all(j->scale);
    for (ptrdiff_t v = 0; v < b->panels * NR; v += VW) {
        const ptrdiff_t at = v / NR * NR * j->strip + v % NR + (j0 - b->lo) * NR;
        const float *s = b->s + at;
        float *a = b->a + at;
        const vf by = v_load(share + v), less = v_load(mean + v);
        for (ptrdiff_t i = 0; i < j1 - j0; i++) {
            const vf p = v_load(s + i * NR) * by;
            const vf ds = scale * p * (v_load(a + i * NR) - less);
            v_store(a + i * NR, ds);
            v_store(b->p + i * BACK_PITCH + v, p);
            v_store(b->ds + i * BACK_PITCH + v, ds);
        }
    }
}

/* to (keys, .) += weights (keys, rows) times panels of columns */
static void add_to_keys(const back_block *b, kvm_in to, const float *weights,
                        const float *panels, ptrdiff_t j0, ptrdiff_t j1)
{
    const ptrdiff_t keys = j1 - j0, columns = to->dim[1];
    for (ptrdiff_t c = 0; c < columns; c += NR)
        for (ptrdiff_t i = 0; i < tiles_in(keys); i++) {
            const ptrdiff_t at = tile_from(keys, i), mr = tile_from(keys, i + 1) - at;
            tile_of[mr](kvm_row32(to, j0 + at) + c, to->stride[0],
                        weights + at * BACK_PITCH, BACK_PITCH, panels + c * b->rows,
                        b->rows, NULL, true, columns - c);
        }
}

/* dQt (D, rows) += Kt (D, keys) dS */
static void add_to_queries(const attention_back_job *j, back_block *b, ptrdiff_t j0,
                           ptrdiff_t j1)
{
    const ptrdiff_t d = b->k.dim[1], keys = j1 - j0;
    for (ptrdiff_t i = 0; i < keys; i++) {
        const float *row = kvm_row32(&b->k, j0 + i);
        for (ptrdiff_t c = 0; c < d; c++) b->kt[c * BACK_KEYS + i] = row[c];
    }
    for (ptrdiff_t p = 0; p < b->panels; p++)
        for (ptrdiff_t i = 0; i < tiles_in(d); i++) {
            const ptrdiff_t at = tile_from(d, i), mr = tile_from(d, i + 1) - at;
            tile_of[mr](b->dqt + at * j->block + p * NR, j->block,
                        b->kt + at * BACK_KEYS, BACK_KEYS,
                        b->a + p * NR * j->strip + (j0 - b->lo) * NR, keys, NULL, true,
                        NR);
        }
}

static void block_back(const attention_back_job *j, back_block *b)
{
    float share[BACK_ROWS], mean[BACK_ROWS];
    fill_strips(j, b);
    for (ptrdiff_t v = 0; v < b->panels * NR; v += VW) {
        const ptrdiff_t at = v / NR * NR * j->strip + v % NR;
        weigh_strip(b, b->s + at, b->a + at, share + v, mean + v);
    }
    for (ptrdiff_t j0 = b->lo; j0 < b->hi; j0 += BACK_KEYS) {
        const ptrdiff_t j1 = least(j0 + BACK_KEYS, b->hi);
        if (b->seen[(j0 - b->lo) / BACK_KEYS] == 0) continue;
        slopes_of(j, b, share, mean, j0, j1);
        add_to_keys(b, &b->dv, b->p, b->yv, j0, j1);
        add_to_keys(b, &b->dk, b->ds, b->qv, j0, j1);
        add_to_queries(j, b, j0, j1);
    }
    for (ptrdiff_t r = 0; r < b->rows; r++) {
        const ptrdiff_t at = b->r0 + r;
        float *to =
            kvm_head32(j->dq, at / j->group, b->head * j->group + at % j->group);
        for (ptrdiff_t i = 0; i < j->dq->dim[2]; i++) to[i] = b->dqt[i * j->block + r];
    }
}

static void attention_back_part(void *ctx, ptrdiff_t part, int thread)
{
    const attention_back_job *j = ctx;
    const ptrdiff_t head = part / j->shares, share = part % j->shares;
    const ptrdiff_t blocks = (j->rows + j->block - 1) / j->block;
    const ptrdiff_t d = j->k->dim[2], e = j->v->dim[2];
    kvm_tensor dk = head_rows(j->dk, head), dv = head_rows(j->dv, head);
    if (j->sums) {
        float *own = j->sums + part * j->keys * (d + e);
        memset(own, 0, (size_t)(j->keys * (d + e)) * sizeof *own);
        dk = kvm_view2(own, KVM_F32, j->keys, d);
        dv = kvm_view2(own + j->keys * d, KVM_F32, j->keys, e);
    }
    for (ptrdiff_t i = blocks * share / j->shares; i < blocks * (share + 1) / j->shares;
         i++) {
        const ptrdiff_t r0 = i * j->block;
        back_block b = open_block(j, head, r0, least(j->block, j->rows - r0), thread);
        b.dk = dk;
        b.dv = dv;
        block_back(j, &b);
    }
}

/* rows of n numbers of a head += those of its parts, in order */
static void add_parts(const attention_back_job *j, kvm_in to, const float *from,
                      ptrdiff_t apart, ptrdiff_t j0, ptrdiff_t j1)
{
    const ptrdiff_t n = to->dim[1];
    for (ptrdiff_t key = j0; key < j1; key++)
        for (ptrdiff_t share = 0; share < j->shares; share++) {
            const float *row = from + share * apart + key * n;
            float *out = kvm_row32(to, key);
            for (ptrdiff_t i = 0; i < n; i++) out[i] += row[i];
        }
}

static void merge_part(void *ctx, ptrdiff_t part, int thread)
{
    (void)thread;
    const attention_back_job *j = ctx;
    const ptrdiff_t runs = (j->keys + BACK_MERGE - 1) / BACK_MERGE;
    const ptrdiff_t head = part / runs, j0 = part % runs * BACK_MERGE;
    const ptrdiff_t d = j->k->dim[2], apart = j->keys * (d + j->v->dim[2]);
    const float *from = j->sums + head * j->shares * apart;
    const kvm_tensor dk = head_rows(j->dk, head), dv = head_rows(j->dv, head);
    add_parts(j, &dk, from, apart, j0, least(j0 + BACK_MERGE, j->keys));
    add_parts(j, &dv, from + j->keys * d, apart, j0, least(j0 + BACK_MERGE, j->keys));
}

/* how many parts a head's rows are cut into */
static ptrdiff_t shares_of_head(const attention_back_job *j)
{
    const ptrdiff_t heads = j->k->dim[0], blocks = (j->rows + j->block - 1) / j->block;
    const ptrdiff_t sums = heads * j->keys * (j->k->dim[2] + j->v->dim[2]);
    const ptrdiff_t want = least((BACK_PARTS + heads - 1) / heads, blocks);
    return most(1, least(want, BACK_SUMS / sums));
}

static kvm_status attention_back(kvm_compute *c, kvm_in dq, kvm_in dk, kvm_in dv,
                                 kvm_in q, kvm_in k, kvm_in v, kvm_in dy,
                                 ptrdiff_t first, ptrdiff_t window,
                                 const kvm_mask *mask, double scale, kvm_err *err)
{
    attention_back_job j = {.dq = dq, .dk = dk, .dv = dv, .q = q, .k = k, .v = v};
    const ptrdiff_t heads = k->dim[0];
    j.dy = dy;
    j.first = first;
    j.window = window;
    j.mask = mask;
    j.scale = (float)scale;
    j.scale2 = (float)(scale * 1.4426950408889634);
    j.group = q->dim[1] / heads;
    j.rows = q->dim[0] * j.group;
    j.keys = first + q->dim[0];
    j.strip = up_to(j.keys, BACK_KEYS);
    j.block = least(BACK_ROWS, most(NR, BACK_STRIP / j.strip / NR * NR));
    j.block = least(j.block, up_to(j.rows, NR));
    j.shares = shares_of_head(&j);
    if (window)
        j.strip = least(j.strip,
                        up_to(window + j.block / j.group + 1, BACK_KEYS) + BACK_KEYS);
    j.buffer_size = up_to(back_floats(&j), 16);
    kvm_arena scratch = c->scratch;
    j.buffer = kvm_new_raw(&scratch, float, j.buffer_size * c->threads);
    if (j.shares > 1)
        j.sums = kvm_new_raw(&scratch, float,
                             heads *j.shares *j.keys *(k->dim[2] + v->dim[2]));
    if (!j.buffer || (j.shares > 1 && !j.sums)) return kvm_nomem(err, &scratch);
    kvm_pool_run(c->pool, heads * j.shares, attention_back_part, &j);
    const ptrdiff_t runs = (j.keys + BACK_MERGE - 1) / BACK_MERGE;
    if (j.shares > 1) kvm_pool_run(c->pool, heads * runs, merge_part, &j);
    return KVM_OK;
}

#endif
