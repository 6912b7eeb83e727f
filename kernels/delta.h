/* delta.h - the gated delta rule (template; see vec.h).
 *
 * Columns of a state never meet, so a part is one value head and a range of columns,
 * and within it strips of columns whose sums stay in registers.
 *
 * Few tokens: S is used where it lies, in two passes per token: St k, then the new S
 * and o.
 *
 * Many tokens: strips are copied into the thread's buffer and each walks through a
 * block of tokens while it lies in the L1 cache, in one pass per token: the pass that
 * decays S and forms St k of a token also completes the token before, S + k ut and St
 * q. That is one load, one store and four operations per number of S and token.
 *
 * The form in chunks (WY, Yang et al. 2024) needs 3 + O(chunk / D) operations instead,
 * plus its triangular systems. Built on tile.h with chunks of 16, 24 and 32 tokens it
 * took the same time, for S is in the L1 cache either way. So the recurrence stays: it
 * forms exp(g) and no ratio of decays, and each number goes through the same
 * operations in the same order however tokens are cut into blocks or calls and columns
 * into parts: bits depend on neither cut nor threads. */
#ifndef KVM_KERNELS_DELTA_H
#define KVM_KERNELS_DELTA_H

#include "kernels/gemm.h"

enum {
    DELTA_WAYS = 4,                /* vectors of a strip */
    DELTA_STRIP = DELTA_WAYS * VW, /* columns */
    DELTA_BLOCK = 16,              /* tokens that a strip walks through */
    DELTA_FEW = 7,                 /* tokens not worth the copy of S */
};

typedef struct delta_job {
    kvm_in o, q, k, v, g, beta, state;
    ptrdiff_t group;     /* value heads of a key head */
    ptrdiff_t run, runs; /* columns per part; parts per head */
    ptrdiff_t pitch;     /* of decays: D up to whole vectors */
    float *buffer;       /* per thread: decays (block, pitch), strips (D+1, strip) */
    ptrdiff_t buffer_size;
} delta_job;

/* what one part works on */
typedef struct delta_part {
    const delta_job *j;
    ptrdiff_t head, key_head, first, end; /* columns */
    float *decay;
} delta_part;

/* one token of a part, from column e */
typedef struct delta_token {
    const float *q, *k, *v, *decay;
    float *o, beta;
} delta_token;

/* exp(g) of token t, (D) even when it is one number */
static void delta_decay(const delta_part *p, ptrdiff_t t, float *decay)
{
    const kvm_in g = p->j->g;
    const float *from = kvm_head32(g, t, p->head);
    const ptrdiff_t n = p->j->k->dim[2];
    if (g->rank == 2) {
        const vf a = v_exp(v_all(*from));
        for (ptrdiff_t d = 0; d < n; d += VW) v_store(decay + d, a);
        return;
    }
    for (ptrdiff_t d = 0; d < n; d += VW) {
        const vf x = n - d < VW ? v_load_n(from + d, n - d) : v_load(from + d);
        v_store(decay + d, v_exp(x));
    }
}

static delta_token delta_at(const delta_part *p, ptrdiff_t t, ptrdiff_t e,
                            const float *decay)
{
    const delta_job *j = p->j;
    return (delta_token){
        .q = kvm_head32(j->q, t, p->key_head),
        .k = kvm_head32(j->k, t, p->key_head),
        .v = kvm_head32(j->v, t, p->head) + e,
        .o = kvm_head32(j->o, t, p->head) + e,
        .beta = kvm_row32(j->beta, t)[p->head],
        .decay = decay,
    };
}

V_INLINE vf load_cut(const float *p, const bool whole, ptrdiff_t n)
{
    return whole ? v_load(p) : v_load_n(p, n);
}

V_INLINE void store_cut(float *p, vf v, const bool whole, ptrdiff_t n)
{
    if (whole)
        v_store(p, v);
    else
        v_store_n(p, v, n);
}

/* ---- few tokens ------------------------------------------------------------------ */

/* `ways` vectors of columns of s (D rows); the only one has n columns unless whole */
V_INLINE void delta_step(const delta_token *t, float *s, ptrdiff_t pitch, ptrdiff_t dk,
                         const int ways, const bool whole, ptrdiff_t n)
{
    vf u[DELTA_WAYS], o[DELTA_WAYS];
    V_UNROLL for (int i = 0; i < ways; i++) u[i] = o[i] = v_all(0);
    for (ptrdiff_t d = 0; d < dk; d++) {
        const vf a = v_all(t->decay[d]), k = v_all(t->k[d]);
        const float *row = s + d * pitch;
        V_UNROLL for (int i = 0; i < ways; i++) u[i] =
            v_fma(a * load_cut(row + i * VW, whole, n), k, u[i]);
    }
    V_UNROLL for (int i = 0; i < ways; i++) u[i] =
        v_all(t->beta) * (load_cut(t->v + i * VW, whole, n) - u[i]);
    for (ptrdiff_t d = 0; d < dk; d++) {
        const vf a = v_all(t->decay[d]), k = v_all(t->k[d]), q = v_all(t->q[d]);
        float *row = s + d * pitch;
        V_UNROLL for (int i = 0; i < ways; i++)
        {
            const vf x = v_fma(k, u[i], a * load_cut(row + i * VW, whole, n));
            store_cut(row + i * VW, x, whole, n);
            o[i] = v_fma(x, q, o[i]);
        }
    }
    V_UNROLL for (int i = 0; i < ways; i++) store_cut(t->o + i * VW, o[i], whole, n);
}

static void delta_few(const delta_part *p)
{
    const kvm_in state = p->j->state;
    const ptrdiff_t dk = state->dim[1], pitch = state->stride[1];
    for (ptrdiff_t t = 0; t < p->j->o->dim[0]; t++) {
        delta_decay(p, t, p->decay);
        for (ptrdiff_t e = p->first; e < p->end;) {
            const delta_token at = delta_at(p, t, e, p->decay);
            float *s = kvm_row32(state, p->head) + e;
            const ptrdiff_t left = p->end - e;
            if (left >= DELTA_STRIP)
                delta_step(&at, s, pitch, dk, DELTA_WAYS, true, 0);
            else if (left >= VW)
                delta_step(&at, s, pitch, dk, 1, true, 0);
            else
                delta_step(&at, s, pitch, dk, 1, false, left);
            e += left >= DELTA_STRIP ? DELTA_STRIP : VW;
        }
    }
}

/* ---- many tokens ----------------------------------------------------------------- */

/* One pass over a strip s (D,STRIP), after which lies u: completes token `old`, begins
 * token `t`; either may be none. u stays in memory, for the sums fill the registers. */
V_INLINE void delta_pass(float *s, ptrdiff_t dk, const delta_token *old,
                         const delta_token *t, const bool ends, const bool begins,
                         const bool per_channel, ptrdiff_t cols)
{
    vf o[DELTA_WAYS], w[DELTA_WAYS];
    float *u = s + dk * DELTA_STRIP;
    const vf one = begins ? v_all(t->decay[0]) : v_all(1);
    V_UNROLL for (int i = 0; i < DELTA_WAYS; i++) o[i] = w[i] = v_all(0);
    for (ptrdiff_t d = 0; d < dk; d++, s += DELTA_STRIP) {
        const vf k0 = ends ? v_all(old->k[d]) : one, q0 = ends ? v_all(old->q[d]) : one;
        const vf k1 = begins ? v_all(t->k[d]) : one;
        const vf a = begins && per_channel ? v_all(t->decay[d]) : one;
        V_UNROLL for (int i = 0; i < DELTA_WAYS; i++)
        {
            vf x = v_load(s + i * VW);
            if (ends) x = v_fma(k0, v_load(u + i * VW), x);
            if (ends) o[i] = v_fma(x, q0, o[i]);
            if (begins) x = a * x;
            v_store(s + i * VW, x);
            if (begins) w[i] = v_fma(x, k1, w[i]);
        }
    }
    V_UNROLL for (int i = 0; i < DELTA_WAYS; i++)
    {
        const ptrdiff_t n = least(VW, cols - i * VW);
        if (ends && n > 0) store_cut(old->o + i * VW, o[i], n == VW, n);
        if (!begins) continue;
        const vf v = n > 0 ? load_cut(t->v + i * VW, n == VW, n) : v_all(0);
        v_store(u + i * VW, v_all(t->beta) * (v - w[i]));
    }
}

/* tokens t0 .. t0+n over the strip of columns from e; the last of all is completed */
V_INLINE void delta_walk(const delta_part *p, float *s, ptrdiff_t e, ptrdiff_t t0,
                         ptrdiff_t n, const bool per_channel)
{
    const ptrdiff_t dk = p->j->k->dim[2], pitch = p->j->pitch;
    const ptrdiff_t cols = p->end - e;
    delta_token old = {0}, at;
    if (t0 > 0) old = delta_at(p, t0 - 1, e, NULL);
    for (ptrdiff_t t = t0; t < t0 + n; t++, old = at) {
        at = delta_at(p, t, e, p->decay + (t - t0) * pitch);
        if (t > 0)
            delta_pass(s, dk, &old, &at, true, true, per_channel, cols);
        else
            delta_pass(s, dk, NULL, &at, false, true, per_channel, cols);
    }
    if (t0 + n == p->j->o->dim[0])
        delta_pass(s, dk, &old, NULL, true, false, false, cols);
}

/* state of a part to its strips, or back */
V_INLINE void delta_copy(const delta_part *p, float *to, const bool back)
{
    const kvm_in state = p->j->state;
    const ptrdiff_t dk = state->dim[1], pitch = state->stride[1];
    for (ptrdiff_t e = p->first; e < p->end; e += DELTA_STRIP, to += DELTA_STRIP) {
        float *row = kvm_row32(state, p->head) + e;
        for (ptrdiff_t d = 0; d < dk; d++, row += pitch, to += DELTA_STRIP) {
            V_UNROLL for (int i = 0; i < DELTA_WAYS; i++)
            {
                const ptrdiff_t n = least(VW, p->end - e - i * VW);
                float *at = row + i * VW, *own = to + i * VW;
                if (back && n > 0)
                    store_cut(at, v_load(own), n == VW, n);
                else if (!back)
                    v_store(own, n > 0 ? load_cut(at, n == VW, n) : v_all(0));
            }
        }
    }
}

static void delta_many(const delta_part *p)
{
    const delta_job *j = p->j;
    float *const strips = p->decay + DELTA_BLOCK * j->pitch;
    const ptrdiff_t tokens = j->o->dim[0], size = (j->k->dim[2] + 1) * DELTA_STRIP;
    delta_copy(p, strips, false);
    for (ptrdiff_t t = 0; t < tokens; t += DELTA_BLOCK) {
        const ptrdiff_t n = least(DELTA_BLOCK, tokens - t);
        float *s = strips;
        for (ptrdiff_t i = 0; i < n; i++)
            delta_decay(p, t + i, p->decay + i * j->pitch);
        for (ptrdiff_t e = p->first; e < p->end; e += DELTA_STRIP, s += size) {
            if (j->g->rank == 3)
                delta_walk(p, s, e, t, n, true);
            else
                delta_walk(p, s, e, t, n, false);
        }
    }
    delta_copy(p, strips, true);
}

/* ---- both ------------------------------------------------------------------------ */

static void delta_part_run(void *ctx, ptrdiff_t part, int thread)
{
    const delta_job *j = ctx;
    delta_part p = {.j = j, .head = part / j->runs, .first = part % j->runs * j->run};
    p.key_head = p.head / j->group;
    p.end = least(p.first + j->run, j->v->dim[2]);
    p.decay = j->buffer + thread * j->buffer_size;
    if (j->o->dim[0] <= DELTA_FEW)
        delta_few(&p);
    else
        delta_many(&p);
}

static kvm_status delta(kvm_compute *c, kvm_in o, kvm_in q, kvm_in k, kvm_in v,
                        kvm_in g, kvm_in beta, kvm_in state, kvm_err *err)
{
    delta_job j = {
        .o = o, .q = q, .k = k, .v = v, .g = g, .beta = beta, .state = state};
    const ptrdiff_t heads = v->dim[1], dk = k->dim[2], dv = v->dim[2];
    const ptrdiff_t cuts = (c->threads + heads - 1) / heads; /* heads are too few */
    j.group = heads / k->dim[1];
    j.run = up_to((dv + cuts - 1) / cuts, DELTA_STRIP);
    j.runs = (dv + j.run - 1) / j.run;
    j.pitch = up_to(dk, 16);
    j.buffer_size = up_to(DELTA_BLOCK * j.pitch + (dk + 1) * j.run, 16);
    kvm_arena scratch = c->scratch;
    j.buffer = kvm_new_raw(&scratch, float, j.buffer_size * c->threads);
    if (!j.buffer) return kvm_nomem(err, &scratch);
    kvm_pool_run(c->pool, heads * j.runs, delta_part_run, &j);
    return KVM_OK;
}

#endif
