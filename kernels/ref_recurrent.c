/* ref_recurrent.c - the ops of recurrent mixers, and of what goes with them, as their
 * definitions say, token after token, sums and the running state in f64. */
#include "kernels/ref.h"

#include <math.h>
#include <string.h>

kvm_status kvm_ref__sigmoid_mul(kvm_compute *c, kvm_in y, kvm_in gate, kvm_in up,
                                kvm_err *err)
{
    (void)c, (void)err;
    for (ptrdiff_t t = 0; t < y->dim[0]; t++) {
        for (ptrdiff_t i = 0; i < y->dim[1]; i++) {
            const double g = (double)kvm_row32(gate, t)[i];
            const double u = (double)kvm_row32(up, t)[i];
            kvm_row32(y, t)[i] = (float)(u / (1 + exp(-g)));
        }
    }
    return KVM_OK;
}

kvm_status kvm_ref__relu2(kvm_compute *c, kvm_in y, kvm_in x, kvm_err *err)
{
    (void)c, (void)err;
    for (ptrdiff_t t = 0; t < y->dim[0]; t++) {
        for (ptrdiff_t i = 0; i < y->dim[1]; i++) {
            const float u = kvm_row32(x, t)[i];
            kvm_row32(y, t)[i] = u < 0 ? 0 : u * u; /* NaN stays */
        }
    }
    return KVM_OK;
}

kvm_status kvm_ref__conv(kvm_compute *c, kvm_in y, kvm_in x, kvm_in w,
                         const float *bias, kvm_in window, kvm_err *err)
{
    (void)c, (void)err;
    const ptrdiff_t taps = w->dim[1];
    for (ptrdiff_t ch = 0; ch < y->dim[1]; ch++) {
        float *u = kvm_row32(window, ch);
        for (ptrdiff_t t = 0; t < y->dim[0]; t++) {
            for (ptrdiff_t i = 0; i + 1 < taps; i++) u[i] = u[i + 1];
            u[taps - 1] = kvm_row32(x, t)[ch];
            double sum = bias ? (double)bias[ch] : 0;
            for (ptrdiff_t i = 0; i < taps; i++)
                sum += (double)kvm_row32(w, ch)[i] * (double)u[i];
            kvm_row32(y, t)[ch] = (float)(sum / (1 + exp(-sum)));
        }
    }
    return KVM_OK;
}

/* ---- delta ----------------------------------------------------------------------- */

/* one token of one head */
typedef struct delta_step {
    const float *q, *k; /* (D) */
    const float *g;     /* (D), or one number */
    bool per_channel;
    const float *v; /* (E) */
    double beta;
    float *o; /* (E) */
} delta_step;

/* s (D,E) and o one token further; u (E) scratch */
static void delta_token(const delta_step *p, double *s, double *u, ptrdiff_t dk,
                        ptrdiff_t dv)
{
    for (ptrdiff_t d = 0; d < dk; d++) {
        const double decay = exp((double)p->g[p->per_channel ? d : 0]);
        for (ptrdiff_t e = 0; e < dv; e++) s[d * dv + e] *= decay;
    }
    for (ptrdiff_t e = 0; e < dv; e++) {
        double sum = 0;
        for (ptrdiff_t d = 0; d < dk; d++) sum += s[d * dv + e] * (double)p->k[d];
        u[e] = p->beta * ((double)p->v[e] - sum);
    }
    for (ptrdiff_t d = 0; d < dk; d++)
        for (ptrdiff_t e = 0; e < dv; e++) s[d * dv + e] += (double)p->k[d] * u[e];
    for (ptrdiff_t e = 0; e < dv; e++) {
        double sum = 0;
        for (ptrdiff_t d = 0; d < dk; d++) sum += s[d * dv + e] * (double)p->q[d];
        p->o[e] = (float)sum;
    }
}

kvm_status kvm_ref__delta(kvm_compute *c, kvm_in o, kvm_in q, kvm_in k, kvm_in v,
                          kvm_in g, kvm_in beta, kvm_in state, kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    const ptrdiff_t heads = v->dim[1], dk = k->dim[2], dv = v->dim[2];
    const ptrdiff_t group = heads / k->dim[1];
    double *s = kvm_new(&scratch, double, dk *dv);
    double *u = kvm_new(&scratch, double, dv);
    if (!s || !u) return kvm_nomem(err, &scratch);
    for (ptrdiff_t h = 0; h < heads; h++) {
        for (ptrdiff_t d = 0; d < dk; d++)
            for (ptrdiff_t e = 0; e < dv; e++)
                s[d * dv + e] = (double)kvm_head32(state, h, d)[e];
        for (ptrdiff_t t = 0; t < o->dim[0]; t++) {
            const delta_step p = {
                .q = kvm_head32(q, t, h / group),
                .k = kvm_head32(k, t, h / group),
                .g = kvm_head32(g, t, h),
                .per_channel = g->rank == 3,
                .v = kvm_head32(v, t, h),
                .beta = (double)kvm_row32(beta, t)[h],
                .o = kvm_head32(o, t, h),
            };
            delta_token(&p, s, u, dk, dv);
        }
        for (ptrdiff_t d = 0; d < dk; d++)
            for (ptrdiff_t e = 0; e < dv; e++)
                kvm_head32(state, h, d)[e] = (float)s[d * dv + e];
    }
    return KVM_OK;
}

/* ---- scan ------------------------------------------------------------------------ */

/* one token of one head */
typedef struct scan_step {
    const float *q, *k, *v; /* (D), (D), (E) */
    double dt, decay, skip;
    float *o; /* (E) */
} scan_step;

/* s (E,D) and o one token further */
static void scan_token(const scan_step *p, double *s, ptrdiff_t dv, ptrdiff_t dk)
{
    for (ptrdiff_t e = 0; e < dv; e++, s += dk) {
        const double v = (double)p->v[e];
        double sum = p->skip * v;
        for (ptrdiff_t d = 0; d < dk; d++) {
            s[d] = p->decay * s[d] + p->dt * v * (double)p->k[d];
            sum += s[d] * (double)p->q[d];
        }
        p->o[e] = (float)sum;
    }
}

kvm_status kvm_ref__scan(kvm_compute *c, kvm_in o, kvm_in q, kvm_in k, kvm_in v,
                         kvm_in dt, kvm_in rate, kvm_in skip, kvm_in state,
                         kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    const ptrdiff_t heads = v->dim[1], dv = v->dim[2], dk = k->dim[2];
    const ptrdiff_t group = heads / k->dim[1];
    double *s = kvm_new(&scratch, double, dv *dk);
    if (!s) return kvm_nomem(err, &scratch);
    for (ptrdiff_t h = 0; h < heads; h++) {
        const double fall = (double)((const float *)rate->data)[h];
        for (ptrdiff_t e = 0; e < dv; e++)
            for (ptrdiff_t d = 0; d < dk; d++)
                s[e * dk + d] = (double)kvm_head32(state, h, e)[d];
        for (ptrdiff_t t = 0; t < o->dim[0]; t++) {
            const double step = (double)kvm_row32(dt, t)[h];
            const scan_step p = {
                .q = kvm_head32(q, t, h / group),
                .k = kvm_head32(k, t, h / group),
                .v = kvm_head32(v, t, h),
                .dt = step,
                .decay = exp(-fall * step),
                .skip = (double)((const float *)skip->data)[h],
                .o = kvm_head32(o, t, h),
            };
            scan_token(&p, s, dv, dk);
        }
        for (ptrdiff_t e = 0; e < dv; e++)
            for (ptrdiff_t d = 0; d < dk; d++)
                kvm_head32(state, h, e)[d] = (float)s[e * dk + d];
    }
    return KVM_OK;
}
