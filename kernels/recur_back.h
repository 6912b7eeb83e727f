/* recur_back.h - gradients of the delta rule and of the scan (template; see vec.h).
 *
 * After the first walk (recur.h) chunks are taken from the last to the first. With dS
 * that of the state after the chunk:
 *     du = Pt dO + K dS;  r = du + Bt w;  w = beta r
 *     dbeta_i = r_i . e_i;  dv = w
 *     dQ = dO S0t, dN = w S0t, dK = u dSt;  dP = dO ut, dB = w ut
 *     dS0 = up_C dS + Qt dO + Nt w
 * and, of what N, Q, K, B and P were made of,
 *     dq_i = up_i dQ_i + sum over j of dP_ij f_ij k_j, n likewise with dN and dB
 *     dk_j = down_j dK_j + sum over i of f_ij (dP_ij q_i + dB_ij n_i) - dn_j
 * A decay a_s stands in all that goes from before token s to s or later; d log a_s is
 * the sum of those terms, none of which is taken away again:
 *     up_C S0 . dS + sum over i >= s of (Q_i dQ_i + N_i dN_i)
 *         + sum over j < s of K_j dK_j
 *         + sum over i >= s > j of (P_ij dP_ij + B_ij dB_ij)
 * Six products with a state and two of the first walk, where the forward has three.
 *
 * A part is a key head, chunk by chunk for all heads that share it: they add up their
 * dq and dk, and dP and dB times f, which go through q and k once for all of them. */
#ifndef KVM_KERNELS_RECUR_BACK_H
#define KVM_KERNELS_RECUR_BACK_H

#include "kernels/recur.h"

/* gradients on their way through a chunk */
typedef struct recur_back {
    float *stacks;       /* (group, panels, D+2C, NR): dS, dO, w */
    float *both;         /* (D,2C) [Qt | Nt] */
    float *keys;         /* (C,D+C) [K | Pt] */
    float *bturn;        /* (C,C) Bt */
    float *dp, *db;      /* (C,C) */
    float *fdp, *fdb;    /* (C,C) f dP, f dB, sums over heads */
    float *qt, *nt, *kt; /* (D,C) dQ, dN, dK turned */
    float *dq, *dk;      /* (C,W), of q and k, sums over heads */
    float *dn;           /* (C,W), of n */
    float *dg, *all;     /* (C,W); (W) up_C S0 . dS */
    float *dbeta;        /* (C) */
    float *ot, *wt, *ut; /* (NR,C) in panels of tokens: dOt, wt, ut */
    float *mix, *mixed;  /* (C,2C), (2C,NR) */
    float *falls;        /* (C,C,VW) */
} recur_back;

static float *recur_stack(const recur_part *p, ptrdiff_t panel)
{
    return p->back->stacks +
           (p->head % p->j->group * p->j->panels + panel) * (p->dk + 2 * RECUR) * NR;
}

/* ---- through the chunk's matrices ------------------------------------------------ */

/* w (C,NR) is du and becomes w = beta r, r = du + Bt w; dbeta with it */
static void recur_unsolve(const recur_part *p, float *w, const float *e)
{
    const float *b = p->back->bturn;
    for (ptrdiff_t r = RECUR - RECUR_SOLVE; r >= 0; r -= RECUR_SOLVE) {
        const ptrdiff_t end = r + RECUR_SOLVE;
        if (p->corrects && end < RECUR)
            recur_product(w + r * NR, NR, RECUR_SOLVE, b + r * RECUR + end, RECUR,
                          w + end * NR, RECUR - end, true, NR);
        for (ptrdiff_t i = end - 1; i >= r; i--) {
            vf x[NV], sum = v_all(0);
            V_UNROLL for (int v = 0; v < NV; v++) x[v] = v_load(w + i * NR + v * VW);
            for (ptrdiff_t c = i + 1; p->corrects && c < end; c++) {
                const vf by = v_all(b[i * RECUR + c]);
                V_UNROLL for (int v = 0; v < NV; v++) x[v] =
                    v_fma(by, v_load(w + c * NR + v * VW), x[v]);
            }
            V_UNROLL for (int v = 0; v < NV; v++)
            {
                sum = v_fma(x[v], v_load(e + i * NR + v * VW), sum);
                v_store(w + i * NR + v * VW, v_all(p->beta[i]) * x[v]);
            }
            p->back->dbeta[i] += v_sum(sum);
        }
    }
}

static void recur_put_dv(const recur_part *p, ptrdiff_t chunk, ptrdiff_t panel,
                         const float *dy, const float *w)
{
    const recur_job *j = p->j;
    const ptrdiff_t cols = least(NR, j->v->dim[2] - panel * NR);
    const vf skip = v_all(j->skip ? j->skip[p->head] : 0);
    for (ptrdiff_t t = 0; t < p->tokens; t++) {
        float *to = kvm_head32(j->dv, chunk * RECUR + t, p->head) + panel * NR;
        for (ptrdiff_t c = 0; c < cols; c += VW) {
            const vf x = v_fma(skip, v_load(dy + t * NR + c), v_load(w + t * NR + c));
            store_cut(to + c, x, cols - c >= VW, cols - c);
        }
    }
}

/* (C,NR) to panels (NR,NR) of tokens */
static void recur_turn(float *to, const float *from)
{
    for (ptrdiff_t t = 0; t < RECUR; t += NR)
        scan_turn(to + t * NR, NR, from + t * NR, NR, NR, NR);
}

/* dQ, dN, dK, dP, dB from one panel of columns */
static void recur_outer(const recur_part *p, const float *s0, const float *stack,
                        bool add)
{
    const recur_back *r = p->back;
    const float *dy = stack + p->dk * NR, *w = dy + RECUR * NR;
    for (ptrdiff_t t = 0; t < RECUR; t += NR) {
        const float *o = r->ot + t * NR, *u = r->ut + t * NR;
        recur_product(r->qt + t, RECUR, p->dk, s0, NR, o, NR, add, NR);
        recur_product(r->kt + t, RECUR, p->dk, stack, NR, u, NR, add, NR);
        recur_product(r->dp + t, RECUR, RECUR, dy, NR, u, NR, add, NR);
        if (!p->corrects) continue;
        recur_product(r->nt + t, RECUR, p->dk, s0, NR, r->wt + t * NR, NR, add, NR);
        recur_product(r->db + t, RECUR, RECUR, w, NR, u, NR, add, NR);
    }
}

/* up_C S0 . dS, per channel */
static void recur_ends(const recur_part *p, const float *s0, const float *ds)
{
    const float *up = p->up + (RECUR - 1) * p->j->wide;
    vf sum = v_all(0);
    for (ptrdiff_t d = 0; d < p->dk; d++) {
        for (ptrdiff_t c = d * NR; c < (d + 1) * NR; c += VW)
            sum = v_fma(v_load(s0 + c), v_load(ds + c), sum);
        if (!p->per_channel) continue;
        p->back->all[d] += up[d] * v_sum(sum);
        sum = v_all(0);
    }
    if (!p->per_channel) p->back->all[0] += up[0] * v_sum(sum);
}

static void recur_panel_back(const recur_part *p, ptrdiff_t chunk, ptrdiff_t i)
{
    const recur_job *j = p->j;
    const recur_back *r = p->back;
    const float *s0 = recur_state(p, chunk, i), *e = recur_lack(p, chunk, i);
    float *ds = recur_stack(p, i), *dy = ds + p->dk * NR, *w = dy + RECUR * NR;
    recur_panel(dy, j->dy, chunk * RECUR, p->tokens, p->head, i);
    recur_scale(p->u, e, p->beta);
    recur_product(w, NR, RECUR, r->keys, p->dk + RECUR, ds, p->dk + RECUR, false, NR);
    recur_unsolve(p, w, e);
    recur_put_dv(p, chunk, i, dy, w);
    recur_turn(r->ot, dy);
    recur_turn(r->ut, p->u);
    if (p->corrects) recur_turn(r->wt, w);
    recur_outer(p, s0, ds, i > 0);
    recur_ends(p, s0, ds);
    recur_decay_state(p, ds, ds);
    recur_product(ds, NR, p->dk, r->both, 2 * RECUR, dy,
                  p->corrects ? 2 * RECUR : RECUR, true, NR);
}

/* ---- through what they were made of ---------------------------------------------- */

/* dq, dn, dk and dg as far as they pass through the states at the chunk's ends; qrow,
 * nrow and pack are free for dQ, dN and dK */
static void recur_ends_back(const recur_part *p)
{
    const recur_back *r = p->back;
    const ptrdiff_t w = p->j->wide;
    scan_turn(p->qrow, w, r->qt, RECUR, p->dk, RECUR);
    scan_turn(p->pack, w, r->kt, RECUR, p->dk, RECUR);
    if (p->corrects) scan_turn(p->nrow, w, r->nt, RECUR, p->dk, RECUR);
    for (ptrdiff_t d = 0; d < w; d += VW) {
        vf before = v_load(r->all + d), after = v_all(0);
        for (ptrdiff_t at = 0; at < RECUR * w; at += w) {
            const ptrdiff_t i = at + d;
            const vf dk = recur_decay(p, p->down + at, d) * v_load(p->pack + i);
            v_store(r->dk + i, v_load(r->dk + i) + dk);
            v_store(r->dg + i, before);
            before = v_fma(v_load(p->k + i), dk, before);
        }
        for (ptrdiff_t at = (RECUR - 1) * w; at >= 0; at -= w) {
            const ptrdiff_t i = at + d;
            const vf up = recur_decay(p, p->up + at, d);
            const vf dq = up * v_load(p->qrow + i);
            v_store(r->dq + i, v_load(r->dq + i) + dq);
            after = v_fma(v_load(p->q + i), dq, after);
            if (p->corrects) {
                const vf dn = up * v_load(p->nrow + i);
                v_store(r->dn + i, dn);
                after = after - v_load(p->k + i) * dn;
            }
            v_store(r->dg + i, v_load(r->dg + i) + after);
        }
    }
}

/* d log a_s of a head, to dg[s * W]: what stands there and sums over i >= s > j of x_ij
 * (C,C) */
static void recur_decay_back(const recur_part *p, const float *x)
{
    const ptrdiff_t w = p->j->wide;
    float below[RECUR] = {0}; /* sums over i >= s */
    for (ptrdiff_t s = RECUR - 1; s >= 0; s--) {
        float *dg = p->back->dg + s * w;
        vf sum = v_all(0);
        for (ptrdiff_t c = 0; c < RECUR; c += VW)
            v_store(below + c, v_load(below + c) + v_load(x + s * RECUR + c));
        below[s] = 0; /* and those after it: j < s is left */
        for (ptrdiff_t c = 0; c < RECUR; c += VW) sum = sum + v_load(below + c);
        for (ptrdiff_t d = 0; d < w; d += VW) sum = sum + v_load(dg + d);
        *dg = v_sum(sum);
    }
}

/* when decays are per head: f dP and f dB for the heads' sums; n and its gradient
 * become those of k */
static void recur_heads_back(const recur_part *p, const float *b, const float *scores)
{
    const recur_back *r = p->back;
    const ptrdiff_t w = p->j->wide;
    float *x = r->falls;
    for (ptrdiff_t i = 0; i < RECUR_SQUARE; i += VW) {
        const vf f = v_load(p->f + i), dp = v_load(r->dp + i);
        vf sum = v_load(scores + i) * dp;
        v_store(r->fdp + i, v_fma(f, dp, v_load(r->fdp + i)));
        if (p->corrects) {
            const vf db = v_load(r->db + i);
            sum = v_fma(v_load(b + i), db, sum);
            v_store(r->fdb + i, v_fma(f, db, v_load(r->fdb + i)));
        }
        v_store(x + i, sum);
    }
    recur_decay_back(p, x);
    for (ptrdiff_t i = 0; p->corrects && i < RECUR * w; i += VW)
        v_store(r->dk + i, v_load(r->dk + i) - v_load(r->dn + i));
}

/* dq += M k, dk += Mt q - (Nt + N) k, where M and N are f dP and f dB of all heads */
static void recur_through_keys(const recur_part *p)
{
    const recur_back *r = p->back;
    const ptrdiff_t w = p->j->wide;
    scan_turn(r->mix, 2 * RECUR, r->fdp, RECUR, RECUR, RECUR);
    if (p->corrects) {
        for (ptrdiff_t i = 0; i < RECUR; i++) r->fdb[i * (RECUR + 1)] = 0; /* j < i */
        scan_turn(r->mix + RECUR, 2 * RECUR, r->fdb, RECUR, RECUR, RECUR);
        for (ptrdiff_t i = 0; i < RECUR; i++) {
            float *to = r->mix + (2 * i + 1) * RECUR;
            for (ptrdiff_t c = 0; c < RECUR; c += VW)
                v_store(to + c,
                        v_all(0) - v_load(to + c) - v_load(r->fdb + i * RECUR + c));
        }
    }
    for (ptrdiff_t c = 0; c < w; c += NR) {
        const ptrdiff_t cols = least(NR, w - c);
        float *keys = r->mixed + RECUR * NR;
        for (ptrdiff_t t = 0; t < RECUR; t++) {
            memcpy(r->mixed + t * NR, p->q + t * w + c, (size_t)cols * sizeof *keys);
            memcpy(keys + t * NR, p->k + t * w + c, (size_t)cols * sizeof *keys);
        }
        recur_product(r->dq + c, w, RECUR, r->fdp, RECUR, keys, RECUR, true, cols);
        recur_product(r->dk + c, w, RECUR, r->mix, 2 * RECUR, r->mixed,
                      p->corrects ? 2 * RECUR : RECUR, true, cols);
    }
}

/* one vector of channels from d: dq and dn row by row, falls[i][j] = f_ij k_j kept */
static void recur_channels_ahead(const recur_part *p, ptrdiff_t d)
{
    const recur_back *r = p->back;
    const ptrdiff_t w = p->j->wide;
    for (ptrdiff_t i = 0; i < p->tokens; i++) {
        const float *dp = r->dp + i * RECUR, *db = r->db + i * RECUR;
        float *fall = r->falls + i * RECUR * VW;
        const float *old = i > 0 ? fall - RECUR * VW : NULL;
        const vf a = v_load(p->decay + i * w + d), k = v_load(p->k + i * w + d);
        vf dq[2] = {v_load(r->dq + i * w + d), v_all(dp[i]) * k};
        vf dn[2] = {v_load(r->dn + i * w + d), v_all(0)};
        for (ptrdiff_t c = 0; c + 1 < i; c += 2) {
            V_UNROLL for (int h = 0; h < 2; h++)
            {
                const vf x = a * v_load(old + (c + h) * VW);
                v_store(fall + (c + h) * VW, x);
                dq[h] = v_fma(v_all(dp[c + h]), x, dq[h]);
                dn[h] = v_fma(v_all(db[c + h]), x, dn[h]);
            }
        }
        if (i % 2) {
            const vf x = a * v_load(old + (i - 1) * VW);
            v_store(fall + (i - 1) * VW, x);
            dq[0] = v_fma(v_all(dp[i - 1]), x, dq[0]);
            dn[0] = v_fma(v_all(db[i - 1]), x, dn[0]);
        }
        v_store(fall + i * VW, k);
        v_store(r->dq + i * w + d, dq[0] + dq[1]);
        v_store(r->dn + i * w + d, dn[0] + dn[1]);
    }
}

/* then dk and dg: sums[j] over i >= s of f_is (dP_ij q_i + dB_ij n_i) */
static void recur_channels_back(const recur_part *p, ptrdiff_t d)
{
    const recur_back *r = p->back;
    const ptrdiff_t w = p->j->wide;
    vf sums[RECUR], a = v_all(0);
    for (ptrdiff_t s = 0; s < RECUR; s++) sums[s] = v_all(0);
    for (ptrdiff_t s = p->tokens - 1; s >= 0; s--) {
        const ptrdiff_t at = s * w + d;
        const float *dp = r->dp + s * RECUR, *db = r->db + s * RECUR;
        const float *fall = r->falls + s * RECUR * VW;
        const vf q = v_load(p->q + at), n = v_all(0) - v_load(p->k + at);
        vf dg[2] = {v_load(r->dg + at), v_all(0)};
        for (ptrdiff_t c = 0; c < s; c++) {
            vf x = v_fma(v_all(dp[c]), q, a * sums[c]);
            x = v_fma(v_all(db[c]), n, x);
            sums[c] = x;
            dg[c % 2] = v_fma(x, v_load(fall + c * VW), dg[c % 2]);
        }
        const vf own = v_fma(v_all(dp[s]), q, a * sums[s]);
        v_store(r->dk + at, v_load(r->dk + at) + own - v_load(r->dn + at));
        v_store(r->dg + at, dg[0] + dg[1]);
        a = v_load(p->decay + at);
    }
}

/* ---- the second walk ------------------------------------------------------------- */

static void recur_put_rows(const recur_part *p, kvm_in to, ptrdiff_t t0,
                           const float *from, ptrdiff_t head)
{
    for (ptrdiff_t t = 0; t < p->tokens; t++)
        memcpy(kvm_head32(to, t0 + t, head), from + t * p->j->wide,
               (size_t)p->dk * sizeof *from);
}

/* dg and dbeta of the head at hand */
static void recur_put(const recur_part *p, ptrdiff_t t0)
{
    const recur_job *j = p->j;
    const recur_back *r = p->back;
    if (p->per_channel) recur_put_rows(p, j->dg, t0, r->dg, p->head);
    for (ptrdiff_t t = 0; t < p->tokens; t++) {
        const float dg = r->dg[t * j->wide];
        float *db = kvm_row32(j->dbeta, t0 + t) + p->head;
        *db = p->corrects ? r->dbeta[t] : r->dbeta[t] - j->rate[p->head] * dg;
        if (j->dg && !p->per_channel) kvm_row32(j->dg, t0 + t)[p->head] = dg;
    }
}

static void recur_chunk_back(const recur_part *p, ptrdiff_t chunk)
{
    const recur_job *j = p->j;
    const recur_back *r = p->back;
    const float *b = recur_scores(p, chunk), *scores = b + RECUR_SQUARE;
    const ptrdiff_t w = j->wide, pitch = p->dk + RECUR;
    recur_load(p, chunk);
    scan_turn(r->both, 2 * RECUR, p->qrow, w, RECUR, p->dk);
    if (p->corrects) {
        scan_turn(r->both + RECUR, 2 * RECUR, p->nrow, w, RECUR, p->dk);
        scan_turn(r->bturn, RECUR, b, RECUR, RECUR, RECUR);
    }
    for (ptrdiff_t t = 0; t < RECUR; t++) /* K, which recur_load left there */
        memcpy(r->keys + t * pitch, p->pack + t * w, (size_t)p->dk * sizeof *r->keys);
    scan_turn(r->keys + p->dk, pitch, scores, RECUR, RECUR, RECUR);
    memset(r->dbeta, 0, RECUR * sizeof *r->dbeta);
    memset(r->all, 0, (size_t)w * sizeof *r->all);
    for (ptrdiff_t i = 0; i < j->panels; i++) recur_panel_back(p, chunk, i);
    recur_ends_back(p);
    if (p->per_channel) {
        for (ptrdiff_t d = 0; d < w; d += VW) {
            recur_channels_ahead(p, d);
            recur_channels_back(p, d);
        }
    } else {
        recur_fall(p);
        recur_heads_back(p, b, scores);
    }
    recur_put(p, chunk * RECUR);
}

/* a chunk of all heads */
static void recur_group_back(recur_part *p, ptrdiff_t chunk)
{
    const recur_job *j = p->j;
    const recur_back *r = p->back;
    recur_load_keys(p, chunk);
    memset(r->dq, 0, (size_t)(RECUR * j->wide) * sizeof *r->dq);
    memset(r->dk, 0, (size_t)(RECUR * j->wide) * sizeof *r->dk);
    memset(r->fdp, 0, RECUR_SQUARE * sizeof *r->fdp);
    memset(r->fdb, 0, RECUR_SQUARE * sizeof *r->fdb);
    for (ptrdiff_t h = 0; h < j->group; h++) {
        p->head = p->key_head * j->group + h;
        recur_chunk_back(p, chunk);
    }
    if (!p->per_channel) recur_through_keys(p);
    recur_put_rows(p, j->dq, chunk * RECUR, r->dq, p->key_head);
    recur_put_rows(p, j->dk, chunk * RECUR, r->dk, p->key_head);
}

static void recur_group(recur_part *p, ptrdiff_t chunk)
{
    recur_load_keys(p, chunk);
    if (!p->per_channel) recur_dots(p);
    for (ptrdiff_t h = 0; h < p->j->group; h++) {
        p->head = p->key_head * p->j->group + h;
        recur_chunk(p, chunk);
    }
}

/* a head of a state to panels `pitch` numbers apart, or back; a scan's rows are columns
 * here */
static void recur_copy_state(const recur_part *p, kvm_in state, float *own,
                             ptrdiff_t pitch, bool back)
{
    const ptrdiff_t rows = state->dim[1], ld = state->stride[1];
    for (ptrdiff_t i = 0; i < p->j->panels; i++, own += pitch) {
        const ptrdiff_t n = least(NR, p->j->v->dim[2] - i * NR);
        float *s = kvm_row32(state, p->head) + i * NR * (p->corrects ? 1 : ld);
        if (!back && n < NR) memset(own, 0, (size_t)(p->dk * NR) * sizeof *own);
        if (!p->corrects && back) scan_turn(s, ld, own, NR, p->dk, n);
        if (!p->corrects && !back) scan_turn(own, NR, s, ld, n, p->dk);
        for (ptrdiff_t d = 0; p->corrects && d < rows; d++) {
            const size_t bytes = (size_t)n * sizeof *s;
            if (back)
                memcpy(s + d * ld, own + d * NR, bytes);
            else
                memcpy(own + d * NR, s + d * ld, bytes);
        }
    }
}

/* states and their gradients of all heads, or the gradients back */
static void recur_states(recur_part *p, bool back)
{
    const recur_job *j = p->j;
    const ptrdiff_t pitch = (p->dk + 2 * RECUR) * NR;
    for (ptrdiff_t h = 0; h < j->group; h++) {
        p->head = p->key_head * j->group + h;
        if (!back)
            recur_copy_state(p, j->state, recur_state(p, 0, 0), p->dk * NR, false);
        recur_copy_state(p, j->dstate, recur_stack(p, 0), pitch, back);
    }
}

/* ---- both ------------------------------------------------------------------------ */

/* n numbers from `at`, which moves on; at NULL: only counted */
static float *recur_take(float *base, ptrdiff_t *at, ptrdiff_t n)
{
    float *p = base ? base + *at : NULL;
    *at += up_to(n, 16);
    return p;
}

/* the part's pointers into a thread's buffer; gives its size */
static ptrdiff_t recur_layout(const recur_job *j, recur_part *p, float *base)
{
    const ptrdiff_t dk = j->k->dim[2], rows = RECUR * j->wide, turned = dk * RECUR;
    recur_back *r = p->back;
    ptrdiff_t at = 0;
    const ptrdiff_t kept = j->group * j->chunks;
    p->states = recur_take(base, &at, kept * j->panels * dk * NR);
    p->lacks = recur_take(base, &at, kept * j->panels * RECUR * NR);
    p->scores = recur_take(base, &at, kept * 2 * RECUR_SQUARE);
    p->dots = recur_take(base, &at, 2 * RECUR_SQUARE);
    float **const of_rows[] = {&p->q,    &p->k,  &p->decay, &p->up, &p->down, &p->nrow,
                               &p->qrow, &r->dq, &r->dn,    &r->dk, &r->dg};
    for (size_t i = 0; i < sizeof of_rows / sizeof *of_rows; i++)
        *of_rows[i] = recur_take(base, &at, rows);
    float **const of_turned[] = {&p->kturn, &r->qt, &r->nt, &r->kt};
    for (size_t i = 0; i < sizeof of_turned / sizeof *of_turned; i++)
        *of_turned[i] = recur_take(base, &at, turned);
    float **const of_panels[] = {&p->u, &r->ot, &r->wt, &r->ut};
    for (size_t i = 0; i < sizeof of_panels / sizeof *of_panels; i++)
        *of_panels[i] = recur_take(base, &at, RECUR * NR);
    float **const squares[] = {&p->f, &r->bturn, &r->dp, &r->db, &r->fdp, &r->fdb};
    for (size_t i = 0; i < sizeof squares / sizeof *squares; i++)
        *squares[i] = recur_take(base, &at, RECUR_SQUARE);
    p->beta = recur_take(base, &at, RECUR);
    p->pack = recur_take(base, &at, rows);
    r->stacks = recur_take(base, &at, j->group * j->panels * (dk + 2 * RECUR) * NR);
    r->both = recur_take(base, &at, 2 * turned);
    r->keys = recur_take(base, &at, RECUR * (dk + RECUR));
    r->all = recur_take(base, &at, j->wide);
    r->dbeta = recur_take(base, &at, RECUR);
    r->mix = recur_take(base, &at, 2 * RECUR_SQUARE);
    r->mixed = recur_take(base, &at, 2 * RECUR * NR);
    r->falls = recur_take(base, &at, RECUR_SQUARE * VW);
    return at;
}

static void recur_part_run(void *ctx, ptrdiff_t part, int thread)
{
    const recur_job *j = ctx;
    recur_back r;
    recur_part p = {.j = j, .key_head = part, .dk = j->k->dim[2], .back = &r};
    p.corrects = j->g;
    p.per_channel = j->g && j->g->rank == 3;
    recur_layout(j, &p, j->buffer + thread * j->buffer_size);
    recur_states(&p, false);
    for (ptrdiff_t i = 0; i < j->chunks; i++) recur_group(&p, i);
    for (ptrdiff_t i = j->chunks - 1; i >= 0; i--) recur_group_back(&p, i);
    recur_states(&p, true);
}

static kvm_status recur_run(kvm_compute *c, recur_job *j, kvm_err *err)
{
    recur_back r;
    recur_part p = {.back = &r};
    kvm_arena scratch = c->scratch;
    j->group = j->v->dim[1] / j->k->dim[1];
    j->chunks = (j->v->dim[0] + RECUR - 1) / RECUR;
    j->panels = (j->v->dim[2] + NR - 1) / NR;
    j->wide = up_to(j->k->dim[2], VW);
    j->buffer_size = recur_layout(j, &p, NULL);
    j->buffer = kvm_new_raw(&scratch, float, j->buffer_size * c->threads);
    if (!j->buffer) return kvm_nomem(err, &scratch);
    kvm_pool_run(c->pool, j->k->dim[1], recur_part_run, j);
    return KVM_OK;
}

static kvm_status delta_back(kvm_compute *c, const kvm_delta_rows *d, kvm_in dstate,
                             const kvm_delta_rows *in, kvm_in state, kvm_in dy,
                             kvm_err *err)
{
    recur_job j = {.q = &in->q,
                   .k = &in->k,
                   .v = &in->v,
                   .g = &in->g,
                   .beta = &in->beta,
                   .state = state,
                   .dy = dy,
                   .dq = &d->q,
                   .dk = &d->k,
                   .dv = &d->v,
                   .dg = &d->g,
                   .dbeta = &d->beta,
                   .dstate = dstate};
    return recur_run(c, &j, err);
}

static kvm_status scan_back(kvm_compute *c, const kvm_scan_rows *d, kvm_in dstate,
                            const kvm_scan_rows *in, kvm_in rate, kvm_in skip,
                            kvm_in state, kvm_in dy, kvm_err *err)
{
    recur_job j = {.q = &in->q,
                   .k = &in->k,
                   .v = &in->v,
                   .beta = &in->dt,
                   .state = state,
                   .dy = dy,
                   .dq = &d->q,
                   .dk = &d->k,
                   .dv = &d->v,
                   .dbeta = &d->dt,
                   .dstate = dstate,
                   .rate = rate->data,
                   .skip = skip->data};
    return recur_run(c, &j, err);
}

#endif
