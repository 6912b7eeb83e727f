/* delta.h - the gated delta rule (template; see vec.h).
 *
 * Columns of a state never meet, so a part is one value head and a range of columns.
 * Token after token: per strip of columns one pass over S for St k, one for the new S
 * and o. */
#ifndef KVM_KERNELS_DELTA_H
#define KVM_KERNELS_DELTA_H

#include "kernels/gemm.h"

enum { DELTA_STRIP = 4 * VW }; /* columns whose sums stay in registers */

typedef struct delta_job {
    kvm_in o, q, k, v, g, beta, state;
    ptrdiff_t group;     /* value heads of a key head */
    ptrdiff_t run, runs; /* columns per part; parts per head */
    float *buffer;
    ptrdiff_t buffer_size;
} delta_job;

/* what one part works on */
typedef struct delta_part {
    ptrdiff_t head, key_head;
    ptrdiff_t e0, columns;
    float *decay; /* (D) of the token */
} delta_part;

/* exp(g) of token t into decay (D) */
static void delta_decay(const delta_job *j, const delta_part *p, ptrdiff_t t)
{
    const ptrdiff_t n = j->k->dim[2];
    const float *g = kvm_head32(j->g, t, p->head);
    if (j->g->rank == 2) {
        const vf a = v_exp(v_all(*g));
        for (ptrdiff_t d = 0; d < n; d += VW) v_store(p->decay + d, a);
        return;
    }
    for (ptrdiff_t d = 0; d < n; d += VW)
        v_store(p->decay + d, v_exp(v_load_n(g + d, least(VW, n - d))));
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

/* token t of `ways` vectors of columns from e; the last one has n columns unless whole */
V_INLINE void delta_strip(const delta_job *j, const delta_part *p, ptrdiff_t t,
                          ptrdiff_t e, const int ways, const bool whole, ptrdiff_t n)
{
    const ptrdiff_t dk = j->k->dim[2], pitch = j->state->stride[1];
    const float *k = kvm_head32(j->k, t, p->key_head);
    const float *q = kvm_head32(j->q, t, p->key_head);
    const float *v = kvm_head32(j->v, t, p->head) + e;
    const vf beta = v_all(kvm_row32(j->beta, t)[p->head]);
    float *s0 = kvm_row32(j->state, p->head) + e, *s = s0;
    vf u[4], o[4];
    V_UNROLL for (int i = 0; i < ways; i++) u[i] = o[i] = v_all(0);
    for (ptrdiff_t d = 0; d < dk; d++, s += pitch) {
        const vf a = v_all(p->decay[d]), kd = v_all(k[d]);
        V_UNROLL for (int i = 0; i < ways; i++) u[i] =
            v_fma(a * load_cut(s + i * VW, whole, n), kd, u[i]);
    }
    V_UNROLL for (int i = 0; i < ways; i++) u[i] =
        beta * (load_cut(v + i * VW, whole, n) - u[i]);
    s = s0;
    for (ptrdiff_t d = 0; d < dk; d++, s += pitch) {
        const vf a = v_all(p->decay[d]), kd = v_all(k[d]), qd = v_all(q[d]);
        V_UNROLL for (int i = 0; i < ways; i++)
        {
            const vf next = v_fma(kd, u[i], a * load_cut(s + i * VW, whole, n));
            store_cut(s + i * VW, next, whole, n);
            o[i] = v_fma(next, qd, o[i]);
        }
    }
    float *to = kvm_head32(j->o, t, p->head) + e;
    V_UNROLL for (int i = 0; i < ways; i++) store_cut(to + i * VW, o[i], whole, n);
}

static void delta_few(const delta_job *j, const delta_part *p)
{
    const ptrdiff_t end = p->e0 + p->columns;
    for (ptrdiff_t t = 0; t < j->o->dim[0]; t++) {
        delta_decay(j, p, t);
        ptrdiff_t e = p->e0;
        for (; e + DELTA_STRIP <= end; e += DELTA_STRIP)
            delta_strip(j, p, t, e, 4, true, 0);
        for (; e + VW <= end; e += VW) delta_strip(j, p, t, e, 1, true, 0);
        if (e < end) delta_strip(j, p, t, e, 1, false, end - e);
    }
}

static void delta_part_run(void *ctx, ptrdiff_t part, int thread)
{
    const delta_job *j = ctx;
    delta_part p = {.head = part / j->runs, .e0 = part % j->runs * j->run};
    p.key_head = p.head / j->group;
    p.columns = least(j->run, j->v->dim[2] - p.e0);
    p.decay = j->buffer + thread * j->buffer_size;
    delta_few(j, &p);
}

static kvm_status delta(kvm_compute *c, kvm_in o, kvm_in q, kvm_in k, kvm_in v,
                        kvm_in g, kvm_in beta, kvm_in state, kvm_err *err)
{
    delta_job j = {
        .o = o, .q = q, .k = k, .v = v, .g = g, .beta = beta, .state = state};
    const ptrdiff_t heads = v->dim[1], dv = v->dim[2];
    j.group = heads / k->dim[1];
    const ptrdiff_t want = (c->threads + heads - 1) / heads;
    j.run = up_to((dv + want - 1) / want, DELTA_STRIP);
    j.runs = (dv + j.run - 1) / j.run;
    j.buffer_size = up_to(k->dim[2], 16);
    kvm_arena scratch = c->scratch;
    j.buffer = kvm_new_raw(&scratch, float, j.buffer_size * c->threads);
    if (!j.buffer) return kvm_nomem(err, &scratch);
    kvm_pool_run(c->pool, heads * j.runs, delta_part_run, &j);
    return KVM_OK;
}

#endif
