/* recur.h - a chunk of the delta rule or of a scan as matrices, for their gradients
 * (template; see vec.h).
 *
 * Over a chunk that begins with S0, a the decays, up_i their product as far as token i,
 * down_j that of those after token j, f_ij = up_i / up_j, formed without the quotient:
 *     n = -k,  N_i = up_i n_i,  Q_i = up_i q_i,  K_j = down_j k_j
 *     B_ij = n_i . (f_ij k_j), j < i;  P_ij = q_i . (f_ij k_j), j <= i
 *     e_i = v_i + S0t N_i + sum over j of B_ij u_j,  u_i = beta_i e_i
 *     o_i = S0t Q_i + sum over j of P_ij u_j
 *     S   = up_C S0 + sum over j of K_j ujt
 * (Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule"). A scan
 * is this without N and B: e = v, and beta is dt. Decays per channel stand inside the
 * dots of B and P; those are formed row by row, the keys falling by one decay a row.
 *
 * First walk: S before every chunk, e, B and P are kept for the second one, which goes
 * back (recur_back.h). Columns of a state lie in panels of NR for the tiles of tile.h.
 * The last chunk is filled up with tokens of zeros that decay nothing. */
#ifndef KVM_KERNELS_RECUR_H
#define KVM_KERNELS_RECUR_H

#include "kernels/scan.h"

enum {
    RECUR = 32,               /* C, tokens of a chunk: whole panels */
    RECUR_V = RECUR / VW,     /* vectors of a row of B or P */
    RECUR_TURNS = RECUR / NR, /* panels of tokens */
    RECUR_SOLVE = 8,          /* rows of B solved one by one */
    RECUR_SQUARE = RECUR * RECUR,
};

typedef struct recur_job {
    kvm_in q, k, v, g, beta, state, dy; /* g: NULL of a scan, whose dt is beta */
    kvm_in dq, dk, dv, dg, dbeta, dstate;
    const float *rate, *skip;        /* (H) of a scan */
    ptrdiff_t group, chunks, panels; /* value heads of a key head; of tokens, of v */
    ptrdiff_t wide;                  /* D up to whole vectors */
    float *buffer;
    ptrdiff_t buffer_size;
} recur_job;

/* What one part works on; W is job.wide, rows of D numbers are W apart and end in 0. A
 * decay per head is the first number of its row, the others are not looked at. */
typedef struct recur_part {
    const recur_job *j;
    ptrdiff_t head, key_head, dk, tokens; /* tokens: of the chunk at hand */
    bool corrects, per_channel;           /* not a scan; decays */
    /* of each head of the part: */
    float *states; /* (group, chunks, panels, D, NR) S before each */
    float *lacks;  /* (group, chunks, panels, C, NR) e */
    float *scores; /* (group, chunks, 2, C, C) B, P */
    /* of the chunk at hand, which all heads share: */
    float *q, *k; /* (C,W) */
    float *dots;  /* (2,C,C) k . k, q . k, when decays are per head */
    /* and of its head at hand: */
    float *decay, *up, *down; /* (C,W) */
    float *nrow, *qrow;       /* (C,W) N, Q */
    float *beta;              /* (C) */
    float *f;                 /* (C,C) when decays are per head */
    float *kturn;             /* (D,C) Kt */
    float *u;                 /* (C,NR) */
    float *pack;              /* (C,W) K; (W,NR), (D,C) */
    struct recur_back *back;  /* recur_back.h */
} recur_part;

/* C (rows,cols) = [C +] A (rows,k) B (k,NR) */
static void recur_product(float *c, ptrdiff_t ldc, ptrdiff_t rows, const float *a,
                          ptrdiff_t lda, const float *b, ptrdiff_t k, bool add,
                          ptrdiff_t cols)
{
    for (ptrdiff_t i = 0; i < tiles_in(rows); i++) {
        const ptrdiff_t r = tile_from(rows, i), mr = tile_from(rows, i + 1) - r;
        tile_of[mr](c + r * ldc, ldc, a + r * lda, lda, b, k, NULL, add, cols);
    }
}

/* of the head at hand */
static ptrdiff_t recur_at(const recur_part *p, ptrdiff_t chunk)
{
    return p->head % p->j->group * p->j->chunks + chunk;
}
static float *recur_state(const recur_part *p, ptrdiff_t chunk, ptrdiff_t panel)
{
    return p->states + (recur_at(p, chunk) * p->j->panels + panel) * p->dk * NR;
}
static float *recur_lack(const recur_part *p, ptrdiff_t chunk, ptrdiff_t panel)
{
    return p->lacks + (recur_at(p, chunk) * p->j->panels + panel) * RECUR * NR;
}
static float *recur_scores(const recur_part *p, ptrdiff_t chunk)
{
    return p->scores + recur_at(p, chunk) * 2 * RECUR_SQUARE;
}

/* vector d of a row of decays */
V_INLINE vf recur_decay(const recur_part *p, const float *row, ptrdiff_t d)
{
    return p->per_channel ? v_load(row + d) : v_all(*row);
}

/* ---- what a chunk reads ---------------------------------------------------------- */

/* n rows of a head (wide apart in `to`, the rest 0), the others `fill` */
static void recur_rows(float *to, ptrdiff_t wide, kvm_in from, ptrdiff_t t0,
                       ptrdiff_t n, ptrdiff_t head, float fill)
{
    const ptrdiff_t cols = from->dim[2];
    for (ptrdiff_t t = 0; t < RECUR; t++, to += wide) {
        if (t < n)
            memcpy(to, kvm_head32(from, t0 + t, head), (size_t)cols * sizeof *to);
        for (ptrdiff_t d = t < n ? cols : 0; d < wide; d++) to[d] = fill;
    }
}

/* (C,W) decays of tokens t0 .. */
static void recur_decays(const recur_part *p, ptrdiff_t t0)
{
    const recur_job *j = p->j;
    const ptrdiff_t w = j->wide;
    if (p->per_channel) {
        recur_rows(p->decay, w, j->g, t0, p->tokens, p->head, 0);
        for (ptrdiff_t i = 0; i < RECUR * w; i += VW)
            v_store(p->decay + i, v_exp(v_load(p->decay + i)));
        return;
    }
    float x[RECUR] = {0};
    for (ptrdiff_t t = 0; t < p->tokens; t++)
        x[t] = p->corrects ? kvm_row32(j->g, t0 + t)[p->head]
                           : -j->rate[p->head] * p->beta[t];
    for (ptrdiff_t t = 0; t < RECUR; t += VW) v_store(x + t, v_exp(v_load(x + t)));
    for (ptrdiff_t t = 0; t < RECUR; t++) p->decay[t * w] = x[t];
}

/* up and down of all decays */
static void recur_products(const recur_part *p)
{
    const ptrdiff_t w = p->j->wide;
    float up = 1, down = 1;
    for (ptrdiff_t d = 0; p->per_channel && d < w; d += VW) {
        vf ups = v_all(1), downs = v_all(1);
        for (ptrdiff_t i = d; i < RECUR * w; i += w)
            v_store(p->up + i, ups = ups * v_load(p->decay + i));
        for (ptrdiff_t i = (RECUR - 1) * w + d; i >= 0; i -= w) {
            v_store(p->down + i, downs);
            downs = downs * v_load(p->decay + i);
        }
    }
    if (p->per_channel) return;
    for (ptrdiff_t i = 0; i < RECUR * w; i += w) p->up[i] = up *= p->decay[i];
    for (ptrdiff_t i = (RECUR - 1) * w; i >= 0; i -= w) {
        p->down[i] = down;
        down *= p->decay[i];
    }
}

/* beta and decays of the head at hand; N, Q, K and Kt */
static void recur_load(const recur_part *p, ptrdiff_t chunk)
{
    const recur_job *j = p->j;
    const ptrdiff_t t0 = chunk * RECUR, w = j->wide;
    for (ptrdiff_t t = 0; t < RECUR; t++)
        p->beta[t] = t < p->tokens ? kvm_row32(j->beta, t0 + t)[p->head] : 0;
    recur_decays(p, t0);
    recur_products(p);
    for (ptrdiff_t at = 0; at < RECUR * w; at += w) {
        for (ptrdiff_t d = 0; d < w; d += VW) {
            const vf up = recur_decay(p, p->up + at, d), k = v_load(p->k + at + d);
            v_store(p->qrow + at + d, up * v_load(p->q + at + d));
            if (p->corrects) v_store(p->nrow + at + d, v_all(0) - up * k);
            v_store(p->pack + at + d, recur_decay(p, p->down + at, d) * k);
        }
    }
    scan_turn(p->kturn, RECUR, p->pack, w, RECUR, p->dk);
}

/* what the heads share of a chunk */
static void recur_load_keys(recur_part *p, ptrdiff_t chunk)
{
    const recur_job *j = p->j;
    const ptrdiff_t t0 = chunk * RECUR, w = j->wide;
    p->tokens = least(RECUR, j->v->dim[0] - t0);
    recur_rows(p->q, w, j->q, t0, p->tokens, p->key_head, 0);
    recur_rows(p->k, w, j->k, t0, p->tokens, p->key_head, 0);
}

static void recur_dots(const recur_part *p)
{
    const ptrdiff_t w = p->j->wide;
    const kvm_tensor k = kvm_view2(p->k, KVM_F32, RECUR, w);
    float *kk = p->dots, *qk = kk + RECUR_SQUARE;
    for (ptrdiff_t c = 0; c < RECUR; c += NR) {
        pack_panel(p->pack, &k, c, 0, w, NULL);
        recur_product(qk + c, RECUR, RECUR, p->q, w, p->pack, w, false, NR);
        if (p->corrects)
            recur_product(kk + c, RECUR, RECUR, p->k, w, p->pack, w, false, NR);
    }
}

/* ---- B and P --------------------------------------------------------------------- */

/* row i of f from the row before it */
static void recur_fall(const recur_part *p)
{
    float fall[RECUR] = {0};
    for (ptrdiff_t i = 0; i < RECUR; i++) {
        const vf a = v_all(p->decay[i * p->j->wide]);
        for (ptrdiff_t c = 0; c < RECUR; c += VW)
            v_store(fall + c, a * v_load(fall + c));
        fall[i] = 1;
        memcpy(p->f + i * RECUR, fall, sizeof fall);
    }
}

static void recur_scores_of_heads(const recur_part *p, float *b, float *scores)
{
    const float *kk = p->dots, *qk = kk + RECUR_SQUARE;
    for (ptrdiff_t i = 0; i < RECUR_SQUARE; i += VW) {
        const vf f = v_load(p->f + i);
        v_store(scores + i, f * v_load(qk + i));
        if (p->corrects) v_store(b + i, v_all(0) - f * v_load(kk + i));
    }
    for (ptrdiff_t i = 0; p->corrects && i < RECUR; i++) b[i * (RECUR + 1)] = 0;
}

/* row i of both over the first `ways` vectors of tokens, of the keys `fall` (D,C) as
 * they were a token before */
V_INLINE void recur_scores_row(const recur_part *p, float *fall, ptrdiff_t i,
                               const int ways, float *b, float *scores)
{
    const ptrdiff_t at = i * p->j->wide;
    const float *a = p->decay + at, *q = p->q + at, *k = p->k + at;
    vf sq[RECUR_V], sk[RECUR_V];
    V_UNROLL for (int v = 0; v < ways; v++) sq[v] = sk[v] = v_all(0);
    for (ptrdiff_t d = 0; d < p->dk; d++, fall += RECUR) {
        const vf ad = v_all(a[d]), qd = v_all(q[d]), kd = v_all(k[d]);
        V_UNROLL for (int v = 0; v < ways; v++)
        {
            const vf x = ad * v_load(fall + v * VW);
            v_store(fall + v * VW, x);
            sq[v] = v_fma(qd, x, sq[v]);
            sk[v] = v_fma(kd, x, sk[v]);
        }
        fall[i] = k[d];
    }
    V_UNROLL for (int v = 0; v < ways; v++)
    {
        v_store(scores + v * VW, sq[v]);
        v_store(b + v * VW, v_all(0) - sk[v]);
    }
}

static void recur_scores_of_channels(const recur_part *p, float *b, float *scores)
{
    const ptrdiff_t w = p->j->wide;
    float *fall = p->pack;
    memset(fall, 0, (size_t)(p->dk * RECUR) * sizeof *fall);
    memset(b, 0, 2 * RECUR_SQUARE * sizeof *b);
    for (ptrdiff_t i = 0; i < p->tokens; i++) {
        float *bi = b + i * RECUR, *si = scores + i * RECUR;
        if (i < VW)
            recur_scores_row(p, fall, i, 1, bi, si);
        else if (i < 2 * VW)
            recur_scores_row(p, fall, i, 2, bi, si);
        else
            recur_scores_row(p, fall, i, RECUR_V, bi, si);
        vf sum = v_all(0);
        for (ptrdiff_t d = i * w; d < (i + 1) * w; d += VW)
            sum = v_fma(v_load(p->q + d), v_load(p->k + d), sum);
        si[i] = v_sum(sum);
    }
}

/* ---- the first walk -------------------------------------------------------------- */

static void recur_scale(float *u, const float *e, const float *beta)
{
    for (ptrdiff_t t = 0; t < RECUR; t++)
        for (ptrdiff_t c = t * NR; c < (t + 1) * NR; c += VW)
            v_store(u + c, v_all(beta[t]) * v_load(e + c));
}

/* e (C,NR) = e + B u, u = beta e with it */
static void recur_solve(float *e, float *u, const float *b, const float *beta)
{
    for (ptrdiff_t r = 0; r < RECUR; r += RECUR_SOLVE) {
        if (r > 0)
            recur_product(e + r * NR, NR, RECUR_SOLVE, b + r * RECUR, RECUR, u, r, true,
                          NR);
        for (ptrdiff_t i = r; i < r + RECUR_SOLVE; i++) {
            vf x[NV];
            V_UNROLL for (int v = 0; v < NV; v++) x[v] = v_load(e + i * NR + v * VW);
            for (ptrdiff_t c = r; c < i; c++) {
                const vf by = v_all(b[i * RECUR + c]);
                V_UNROLL for (int v = 0; v < NV; v++) x[v] =
                    v_fma(by, v_load(u + c * NR + v * VW), x[v]);
            }
            V_UNROLL for (int v = 0; v < NV; v++)
            {
                v_store(e + i * NR + v * VW, x[v]);
                v_store(u + i * NR + v * VW, v_all(beta[i]) * x[v]);
            }
        }
    }
}

/* (C,NR) panel i of rows t0 .. of a head, zeros beyond them */
static void recur_panel(float *to, kvm_in from, ptrdiff_t t0, ptrdiff_t n,
                        ptrdiff_t head, ptrdiff_t i)
{
    const ptrdiff_t cols = least(NR, from->dim[2] - i * NR);
    if (n < RECUR || cols < NR) memset(to, 0, RECUR * NR * sizeof *to);
    for (ptrdiff_t t = 0; t < n; t++)
        memcpy(to + t * NR, kvm_head32(from, t0 + t, head) + i * NR,
               (size_t)cols * sizeof *to);
}

/* s (D,NR) = up_C s0 + ... */
static void recur_decay_state(const recur_part *p, float *s, const float *s0)
{
    const float *all = p->up + (RECUR - 1) * p->j->wide;
    const ptrdiff_t step = p->per_channel;
    for (ptrdiff_t d = 0; d < p->dk; d++)
        for (ptrdiff_t c = d * NR; c < (d + 1) * NR; c += VW)
            v_store(s + c, v_all(all[d * step]) * v_load(s0 + c));
}

static void recur_chunk(const recur_part *p, ptrdiff_t chunk)
{
    const recur_job *j = p->j;
    float *b = recur_scores(p, chunk);
    recur_load(p, chunk);
    if (p->per_channel) {
        recur_scores_of_channels(p, b, b + RECUR_SQUARE);
    } else {
        recur_fall(p);
        recur_scores_of_heads(p, b, b + RECUR_SQUARE);
    }
    for (ptrdiff_t i = 0; i < j->panels; i++) {
        float *e = recur_lack(p, chunk, i), *s = recur_state(p, chunk, i);
        recur_panel(e, j->v, chunk * RECUR, p->tokens, p->head, i);
        if (p->corrects) {
            recur_product(e, NR, RECUR, p->nrow, j->wide, s, p->dk, true, NR);
            recur_solve(e, p->u, b, p->beta);
        } else {
            recur_scale(p->u, e, p->beta);
        }
        if (chunk + 1 == j->chunks) continue;
        float *next = recur_state(p, chunk + 1, i);
        recur_decay_state(p, next, s);
        recur_product(next, NR, p->dk, p->kturn, RECUR, p->u, RECUR, true, NR);
    }
}

#endif
