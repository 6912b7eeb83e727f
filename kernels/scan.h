/* scan.h - the recurrence of Mamba-2 (template; see vec.h).
 *
 * Few tokens: S is used where it lies, row by row.
 *
 * Many tokens (Dao and Gu 2024, section 6): over a chunk that begins with S0,
 *     o_i = (prod of a up to i) S0 q_i + sum over j <= i of m_ij v_j
 *     m_ij = (q_i . k_j) f_ij, f_ij = dt_j (prod of a from j+1 to i), m_ii += skip
 *     S   = (prod of a) S0 + sum over j of f_Lj v_j kt_j
 * with a = exp(-rate dt). One product of tile.h makes o of the rows [prod q_i | m_i]
 * and a panel of S0t over v; another adds to that S0t. q . k serves all heads of a
 * group. f comes from the row before it by one factor: no ratio of decays is formed and
 * no small difference of large sums. Of the 3 operations per number of S and token that
 * the recurrence takes 2 are left, in tiles that stay in registers.
 *
 * A part is some heads of a group, whose states stay in the thread's buffer for all
 * chunks. */
#ifndef KVM_KERNELS_SCAN_H
#define KVM_KERNELS_SCAN_H

#include "kernels/delta.h"

enum {
    SCAN_CHUNK = 64, /* tokens; a multiple of NR */
    SCAN_FEW = 4,    /* tokens not worth turning S round */
    SCAN_HEADS = 16, /* of a part, at most */
    SCAN_ROWS = 4,   /* of S side by side */
};

typedef struct scan_job {
    kvm_in o, q, k, v, dt, rate, skip, state;
    ptrdiff_t group;     /* heads of a key head */
    ptrdiff_t run, runs; /* heads per part; parts per key head */
    ptrdiff_t panels;    /* of NR columns, of a head's v */
    float *buffer;       /* per thread: see scan_part */
    ptrdiff_t buffer_size;
} scan_job;

/* what one part works on; D and E as in kvm_op_scan, C a chunk */
typedef struct scan_part {
    const scan_job *j;
    ptrdiff_t key_head, first, end; /* heads */
    ptrdiff_t dk, panel;            /* D; numbers of a panel */
    float *states;                  /* per head: panels of (D+C,NR), St and then v */
    float *scores;                  /* (C,C) q . k */
    float *keys;                    /* (D,C) kt */
    float *rows;                    /* (C,D+C) */
    float *decay, *fall;            /* (C) a, f of the row at hand */
    float *pack;                    /* (D,NR) k */
} scan_part;

/* ---- few tokens ------------------------------------------------------------------ */

/* `rows` rows of s (D numbers each): o = (a s + x kt) q, s with it */
V_INLINE void scan_step(float *s, ptrdiff_t pitch, ptrdiff_t dk, const int rows,
                        float decay, const float *x, const float *k, const float *q,
                        float *o)
{
    const vf a = v_all(decay);
    vf sum[SCAN_ROWS];
    V_UNROLL for (int i = 0; i < rows; i++) sum[i] = v_all(0);
    for (ptrdiff_t d = 0; d < dk; d += VW) {
        const ptrdiff_t n = least(VW, dk - d);
        const vf kv = load_cut(k + d, n == VW, n), qv = load_cut(q + d, n == VW, n);
        V_UNROLL for (int i = 0; i < rows; i++)
        {
            float *at = s + i * pitch + d;
            const vf y = v_fma(v_all(x[i]), kv, a * load_cut(at, n == VW, n));
            store_cut(at, y, n == VW, n);
            sum[i] = v_fma(y, qv, sum[i]);
        }
    }
    V_UNROLL for (int i = 0; i < rows; i++) o[i] = v_sum(sum[i]);
}

static float scan_decay(const scan_job *j, ptrdiff_t t, ptrdiff_t head)
{
    return expf(-((const float *)j->rate->data)[head] * kvm_row32(j->dt, t)[head]);
}

static void scan_few(const scan_part *p, ptrdiff_t head)
{
    const scan_job *j = p->j;
    const ptrdiff_t dv = j->v->dim[2], pitch = j->state->stride[1];
    const float skip = ((const float *)j->skip->data)[head];
    for (ptrdiff_t t = 0; t < j->o->dim[0]; t++) {
        const float *v = kvm_head32(j->v, t, head), dt = kvm_row32(j->dt, t)[head];
        const float *k = kvm_head32(j->k, t, p->key_head);
        const float *q = kvm_head32(j->q, t, p->key_head);
        const float a = scan_decay(j, t, head);
        float *s = kvm_row32(j->state, head), *o = kvm_head32(j->o, t, head);
        for (ptrdiff_t e = 0; e < dv; e += SCAN_ROWS) {
            const ptrdiff_t n = least(SCAN_ROWS, dv - e);
            float x[SCAN_ROWS], y[SCAN_ROWS];
            for (ptrdiff_t i = 0; i < n; i++) x[i] = dt * v[e + i];
            if (n == SCAN_ROWS)
                scan_step(s + e * pitch, pitch, p->dk, SCAN_ROWS, a, x, k, q, y);
            for (ptrdiff_t i = 0; n < SCAN_ROWS && i < n; i++)
                scan_step(s + (e + i) * pitch, pitch, p->dk, 1, a, x + i, k, q, y + i);
            for (ptrdiff_t i = 0; i < n; i++) o[e + i] = y[i] + skip * v[e + i];
        }
    }
}

/* ---- many tokens ----------------------------------------------------------------- */

/* to[c][r] = from[r][c] */
static void scan_turn(float *to, ptrdiff_t ldt, const float *from, ptrdiff_t ldf,
                      ptrdiff_t rows, ptrdiff_t cols)
{
    for (ptrdiff_t r = 0; r < rows; r += VW) {
        const ptrdiff_t nr = least(VW, rows - r);
        for (ptrdiff_t c = 0; c < cols; c += VW) {
            const ptrdiff_t nc = least(VW, cols - c);
            vf x[VW];
            for (int i = 0; i < VW; i++)
                x[i] = i < nr ? load_cut(from + (r + i) * ldf + c, nc == VW, nc)
                              : v_all(0);
            v_transpose(x);
            for (int i = 0; i < VW && i < nc; i++)
                store_cut(to + (c + i) * ldt + r, x[i], nr == VW, nr);
        }
    }
}

static float *scan_panel(const scan_part *p, ptrdiff_t head, ptrdiff_t i)
{
    return p->states + ((head - p->first) * p->j->panels + i) * p->panel;
}

/* states of all heads of the part to their panels, or back */
static void scan_copy(const scan_part *p, const bool back)
{
    const scan_job *j = p->j;
    const ptrdiff_t dv = j->v->dim[2], pitch = j->state->stride[1];
    for (ptrdiff_t h = p->first; h < p->end; h++) {
        for (ptrdiff_t i = 0; i < j->panels; i++) {
            const ptrdiff_t n = least(NR, dv - i * NR);
            float *s = kvm_row32(j->state, h) + i * NR * pitch;
            float *own = scan_panel(p, h, i);
            if (back)
                scan_turn(s, pitch, own, NR, p->dk, n);
            else
                scan_turn(own, NR, s, pitch, n, p->dk);
        }
    }
}

/* scores (n,n) and keys (D,n) of tokens t0 .. t0+n */
static void scan_scores(const scan_part *p, ptrdiff_t t0, ptrdiff_t n)
{
    const scan_job *j = p->j;
    const float *q = kvm_head32(j->q, t0, p->key_head);
    kvm_tensor k = kvm_view2(kvm_head32(j->k, t0, p->key_head), KVM_F32, n, p->dk);
    k.stride[0] = j->k->stride[0];
    for (ptrdiff_t c = 0; c < n; c += NR) {
        pack_panel(p->pack, &k, c, 0, p->dk, NULL);
        for (ptrdiff_t i = 0; i < tiles_in(n); i++) {
            const ptrdiff_t r = tile_from(n, i), mr = tile_from(n, i + 1) - r;
            tile_of[mr](p->scores + r * SCAN_CHUNK + c, SCAN_CHUNK,
                        q + r * j->q->stride[0], j->q->stride[0], p->pack, p->dk, NULL,
                        false, NR);
        }
    }
    scan_turn(p->keys, SCAN_CHUNK, k.data, k.stride[0], n, p->dk);
}

/* rows [prod q | m] of a head; gives the product of all decays. p->fall is left as the
 * last row has it. */
static float scan_rows(const scan_part *p, ptrdiff_t head, ptrdiff_t t0, ptrdiff_t n)
{
    const scan_job *j = p->j;
    const ptrdiff_t dk = p->dk, wide = dk + SCAN_CHUNK;
    const vf rate = v_all(-((const float *)j->rate->data)[head]);
    const float skip = ((const float *)j->skip->data)[head];
    float dt[SCAN_CHUNK] = {0}, prod = 1;
    for (ptrdiff_t i = 0; i < n; i++) dt[i] = kvm_row32(j->dt, t0 + i)[head];
    for (ptrdiff_t i = 0; i < n; i += VW)
        v_store(p->decay + i, v_exp(rate * v_load(dt + i)));
    memset(p->fall, 0, SCAN_CHUNK * sizeof *p->fall);
    for (ptrdiff_t i = 0; i < n; i++) {
        const float *q = kvm_head32(j->q, t0 + i, p->key_head);
        const float *score = p->scores + i * SCAN_CHUNK;
        float *row = p->rows + i * wide;
        const vf a = v_all(p->decay[i]), all = v_all(prod *= p->decay[i]);
        for (ptrdiff_t d = 0; d < dk; d += VW) {
            const ptrdiff_t some = least(VW, dk - d);
            store_cut(row + d, all * load_cut(q + d, some == VW, some), some == VW,
                      some);
        }
        for (ptrdiff_t c = 0; c <= i; c += VW)
            v_store(p->fall + c, a * v_load(p->fall + c));
        p->fall[i] = dt[i];
        for (ptrdiff_t c = 0; c < n; c += VW)
            v_store(row + dk + c, v_load(p->fall + c) * v_load(score + c));
        row[dk + i] += skip;
    }
    return prod;
}

/* one chunk of one panel of a head: o, and S with it */
static void scan_columns(const scan_part *p, ptrdiff_t head, ptrdiff_t i, ptrdiff_t t0,
                         ptrdiff_t n, float prod)
{
    const scan_job *j = p->j;
    const ptrdiff_t dk = p->dk, cols = least(NR, j->v->dim[2] - i * NR);
    float *s = scan_panel(p, head, i), *v = s + dk * NR;
    for (ptrdiff_t t = 0; t < n; t++)
        memcpy(v + t * NR, kvm_head32(j->v, t0 + t, head) + i * NR,
               (size_t)cols * sizeof *v);
    for (ptrdiff_t r = 0; r < tiles_in(n); r++) {
        const ptrdiff_t from = tile_from(n, r), end = tile_from(n, r + 1);
        tile_of[end - from](kvm_head32(j->o, t0 + from, head) + i * NR, j->o->stride[0],
                            p->rows + from * (dk + SCAN_CHUNK), dk + SCAN_CHUNK, s,
                            dk + end, NULL, false, cols);
    }
    for (ptrdiff_t t = 0; t < n; t++)
        for (int c = 0; c < NR; c += VW)
            v_store(v + t * NR + c, v_all(p->fall[t]) * v_load(v + t * NR + c));
    for (ptrdiff_t c = 0; c < dk * NR; c += VW)
        v_store(s + c, v_all(prod) * v_load(s + c));
    for (ptrdiff_t r = 0; r < tiles_in(dk); r++) {
        const ptrdiff_t from = tile_from(dk, r), end = tile_from(dk, r + 1);
        tile_of[end - from](s + from * NR, NR, p->keys + from * SCAN_CHUNK, SCAN_CHUNK,
                            v, n, NULL, true, NR);
    }
}

static void scan_many(const scan_part *p)
{
    const scan_job *j = p->j;
    const ptrdiff_t tokens = j->o->dim[0];
    /* columns past the last of a panel are 0 and stay so */
    memset(p->states, 0,
           (size_t)((p->end - p->first) * j->panels * p->panel) * sizeof(float));
    scan_copy(p, false);
    for (ptrdiff_t t = 0; t < tokens; t += SCAN_CHUNK) {
        const ptrdiff_t n = least(SCAN_CHUNK, tokens - t);
        scan_scores(p, t, n);
        for (ptrdiff_t h = p->first; h < p->end; h++) {
            const float prod = scan_rows(p, h, t, n);
            for (ptrdiff_t i = 0; i < j->panels; i++) scan_columns(p, h, i, t, n, prod);
        }
    }
    scan_copy(p, true);
}

/* ---- both ------------------------------------------------------------------------ */

static void scan_part_run(void *ctx, ptrdiff_t part, int thread)
{
    const scan_job *j = ctx;
    scan_part p = {.j = j, .key_head = part / j->runs, .dk = j->k->dim[2]};
    p.first = p.key_head * j->group + part % j->runs * j->run;
    p.end = least(p.first + j->run, (p.key_head + 1) * j->group);
    p.panel = (p.dk + SCAN_CHUNK) * NR;
    p.decay = j->buffer + thread * j->buffer_size;
    p.fall = p.decay + SCAN_CHUNK;
    p.scores = p.fall + SCAN_CHUNK;
    p.keys = p.scores + SCAN_CHUNK * SCAN_CHUNK;
    p.rows = p.keys + p.dk * SCAN_CHUNK;
    p.pack = p.rows + SCAN_CHUNK * (p.dk + SCAN_CHUNK);
    p.states = p.pack + p.dk * NR;
    if (j->o->dim[0] <= SCAN_FEW)
        for (ptrdiff_t h = p.first; h < p.end; h++) scan_few(&p, h);
    else
        scan_many(&p);
}

static kvm_status scan(kvm_compute *c, kvm_in o, kvm_in q, kvm_in k, kvm_in v,
                       kvm_in dt, kvm_in rate, kvm_in skip, kvm_in state, kvm_err *err)
{
    scan_job j = {.o = o,
                  .q = q,
                  .k = k,
                  .v = v,
                  .dt = dt,
                  .rate = rate,
                  .skip = skip,
                  .state = state};
    const ptrdiff_t keys = k->dim[1], dk = k->dim[2];
    const ptrdiff_t cuts = (c->threads + keys - 1) / keys; /* groups are too few */
    j.group = v->dim[1] / keys;
    j.run = least(SCAN_HEADS, (j.group + cuts - 1) / cuts);
    j.runs = (j.group + j.run - 1) / j.run;
    j.panels = (v->dim[2] + NR - 1) / NR;
    j.buffer_size = up_to(SCAN_CHUNK * (2 + 2 * SCAN_CHUNK + 2 * dk) + dk * NR +
                              j.run * j.panels * (dk + SCAN_CHUNK) * NR,
                          16);
    kvm_arena scratch = c->scratch;
    j.buffer = kvm_new_raw(&scratch, float, j.buffer_size * c->threads);
    if (!j.buffer) return kvm_nomem(err, &scratch);
    kvm_pool_run(c->pool, keys * j.runs, scan_part_run, &j);
    return KVM_OK;
}

#endif
