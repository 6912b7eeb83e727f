/* ref_recurrent_back.c - gradients of the ops of recurrent mixers, token after token
 * from the last to the first, sums and states in f64. */
#include "kernels/ref.h"

#include <math.h>
#include <string.h>

/* ---- conv ------------------------------------------------------------------------ */

/* input number i of a channel's window and then its tokens */
static double conv_input(kvm_in window, kvm_in x, ptrdiff_t channel, ptrdiff_t i)
{
    const ptrdiff_t taps = window->dim[1];
    return (double)(i < taps ? kvm_row32(window, channel)[i]
                             : kvm_row32(x, i - taps)[channel]);
}

kvm_status kvm_ref__conv_back(kvm_compute *c, kvm_in dx, kvm_in dwindow, kvm_in x,
                              kvm_in w, const float *bias, kvm_in window, kvm_in dy,
                              kvm_err *err)
{
    const ptrdiff_t taps = w->dim[1], tokens = x->dim[0];
    kvm_arena scratch = c->scratch;
    double *du = kvm_new(&scratch, double, taps + tokens);
    if (!du) return kvm_nomem(err, &scratch);
    for (ptrdiff_t ch = 0; ch < x->dim[1]; ch++) {
        for (ptrdiff_t i = 0; i < taps + tokens; i++)
            du[i] = i < tokens ? 0 : (double)kvm_row32(dwindow, ch)[i - tokens];
        for (ptrdiff_t t = 0; t < tokens; t++) {
            double sum = bias ? (double)bias[ch] : 0;
            for (ptrdiff_t i = 0; i < taps; i++)
                sum +=
                    (double)kvm_row32(w, ch)[i] * conv_input(window, x, ch, t + 1 + i);
            const double s = 1 / (1 + exp(-sum));
            const double d = (double)kvm_row32(dy, t)[ch] * s * (1 + sum * (1 - s));
            for (ptrdiff_t i = 0; i < taps; i++)
                du[t + 1 + i] += d * (double)kvm_row32(w, ch)[i];
        }
        for (ptrdiff_t i = 0; i < taps; i++) kvm_row32(dwindow, ch)[i] = (float)du[i];
        for (ptrdiff_t t = 0; t < tokens; t++)
            kvm_row32(dx, t)[ch] = (float)du[taps + t];
    }
    return KVM_OK;
}

/* ---- what delta and scan share --------------------------------------------------- */

/* gradients of what a group of heads reads in common, summed over them; the states of
 * one head before each token and after the last, and the gradient of the state */
typedef struct back_sums {
    double *q, *k;      /* (T,D) */
    double *states, *d; /* (T+1, D*E), (D*E) */
    double *decay;      /* (D) of the token at hand */
} back_sums;

static bool take_sums(back_sums *s, kvm_arena *scratch, ptrdiff_t tokens, ptrdiff_t dk,
                      ptrdiff_t dv)
{
    *s = (back_sums){.q = kvm_new(scratch, double, tokens *dk),
                     .k = kvm_new(scratch, double, tokens *dk),
                     .states = kvm_new(scratch, double, (tokens + 1) * dk * dv),
                     .d = kvm_new(scratch, double, dk *dv),
                     .decay = kvm_new(scratch, double, dk)};
    return s->q && s->k && s->states && s->d && s->decay;
}

static void put_sums(const back_sums *s, kvm_in dq, kvm_in dk, ptrdiff_t key_head)
{
    const ptrdiff_t n = dq->dim[2];
    for (ptrdiff_t t = 0; t < dq->dim[0]; t++) {
        for (ptrdiff_t d = 0; d < n; d++) {
            kvm_head32(dq, t, key_head)[d] = (float)s->q[t * n + d];
            kvm_head32(dk, t, key_head)[d] = (float)s->k[t * n + d];
        }
    }
    memset(s->q, 0, (size_t)(dq->dim[0] * n) * sizeof *s->q);
    memset(s->k, 0, (size_t)(dq->dim[0] * n) * sizeof *s->k);
}

/* a head of a state to f64, or back */
static void take_state(double *s, kvm_in state, ptrdiff_t head)
{
    for (ptrdiff_t r = 0; r < state->dim[1]; r++)
        for (ptrdiff_t c = 0; c < state->dim[2]; c++)
            *s++ = (double)kvm_head32(state, head, r)[c];
}

static void put_state(const double *s, kvm_in state, ptrdiff_t head)
{
    for (ptrdiff_t r = 0; r < state->dim[1]; r++)
        for (ptrdiff_t c = 0; c < state->dim[2]; c++)
            kvm_head32(state, head, r)[c] = (float)*s++;
}

/* ---- delta ----------------------------------------------------------------------- */

/* one token of one head, its inputs, and where their gradients go */
typedef struct delta_back_step {
    const float *q, *k, *v, *dy;
    double beta;
    const double *decay; /* (D) exp(g) */
    bool per_channel;
    ptrdiff_t dk, dv;
    double *dq, *dkey;     /* (D) added to */
    float *dval, *dg, *db; /* (E), (D) or one number, one number */
} delta_back_step;

/* before -> after, as kvm_ref__delta; lack (E) = v - St k */
static void delta_ahead(const delta_back_step *p, const double *before, double *after,
                        double *lack)
{
    for (ptrdiff_t e = 0; e < p->dv; e++) {
        double sum = 0;
        for (ptrdiff_t d = 0; d < p->dk; d++)
            sum += p->decay[d] * before[d * p->dv + e] * (double)p->k[d];
        lack[e] = (double)p->v[e] - sum;
        for (ptrdiff_t d = 0; d < p->dk; d++)
            after[d * p->dv + e] = p->decay[d] * before[d * p->dv + e] +
                                   (double)p->k[d] * p->beta * lack[e];
    }
}

/* ds (D,E): the gradient of the state after the token becomes that of the state before
 * it; before and after are those states */
static void delta_token_back(const delta_back_step *p, const double *before,
                             const double *after, const double *lack, double *ds)
{
    const ptrdiff_t n = p->dv;
    double dbeta = 0, dg = 0;
    for (ptrdiff_t d = 0; d < p->dk; d++) { /* o = St q */
        for (ptrdiff_t e = 0; e < n; e++) {
            p->dq[d] += after[d * n + e] * (double)p->dy[e];
            ds[d * n + e] += (double)p->q[d] * (double)p->dy[e];
        }
    }
    for (ptrdiff_t e = 0; e < n; e++) { /* S = S~ + k ut, u = beta (v - S~t k) */
        double du = 0;
        for (ptrdiff_t d = 0; d < p->dk; d++) du += ds[d * n + e] * (double)p->k[d];
        dbeta += du * lack[e];
        p->dval[e] = (float)(p->beta * du);
        for (ptrdiff_t d = 0; d < p->dk; d++) {
            p->dkey[d] += ds[d * n + e] * p->beta * lack[e] -
                          p->decay[d] * before[d * n + e] * p->beta * du;
            ds[d * n + e] -= (double)p->k[d] * p->beta * du;
        }
    }
    *p->db = (float)dbeta;
    for (ptrdiff_t d = 0; d < p->dk; d++) { /* S~ = exp(g) S */
        double sum = 0;
        for (ptrdiff_t e = 0; e < n; e++) {
            ds[d * n + e] *= p->decay[d];
            sum += ds[d * n + e] * before[d * n + e];
        }
        if (p->per_channel)
            p->dg[d] = (float)sum;
        else
            dg += sum;
    }
    if (!p->per_channel) *p->dg = (float)dg;
}

static delta_back_step delta_back_at(const kvm_delta_rows *d, const kvm_delta_rows *in,
                                     kvm_in dy, const back_sums *s, ptrdiff_t t,
                                     ptrdiff_t h)
{
    const ptrdiff_t key_head = h / (in->v.dim[1] / in->k.dim[1]), n = in->k.dim[2];
    const bool per_channel = in->g.rank == 3;
    for (ptrdiff_t i = 0; i < n; i++)
        s->decay[i] = exp((double)kvm_head32(&in->g, t, h)[per_channel ? i : 0]);
    return (delta_back_step){.q = kvm_head32(&in->q, t, key_head),
                             .k = kvm_head32(&in->k, t, key_head),
                             .v = kvm_head32(&in->v, t, h),
                             .dy = kvm_head32(dy, t, h),
                             .beta = (double)kvm_row32(&in->beta, t)[h],
                             .decay = s->decay,
                             .per_channel = per_channel,
                             .dk = n,
                             .dv = in->v.dim[2],
                             .dq = s->q + t * n,
                             .dkey = s->k + t * n,
                             .dval = kvm_head32(&d->v, t, h),
                             .dg = kvm_head32(&d->g, t, h),
                             .db = kvm_row32(&d->beta, t) + h};
}

kvm_status kvm_ref__delta_back(kvm_compute *c, const kvm_delta_rows *d, kvm_in dstate,
                               const kvm_delta_rows *in, kvm_in state, kvm_in dy,
                               kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    const ptrdiff_t heads = in->v.dim[1], group = heads / in->k.dim[1];
    const ptrdiff_t tokens = dy->dim[0], dv = in->v.dim[2], n = in->k.dim[2] * dv;
    back_sums s;
    double *lack = kvm_new(&scratch, double, (tokens + 1) * dv);
    if (!lack || !take_sums(&s, &scratch, tokens, in->k.dim[2], dv))
        return kvm_nomem(err, &scratch);
    for (ptrdiff_t h = 0; h < heads; h++) {
        take_state(s.states, state, h);
        take_state(s.d, dstate, h);
        for (ptrdiff_t t = 0; t < tokens; t++) {
            const delta_back_step p = delta_back_at(d, in, dy, &s, t, h);
            delta_ahead(&p, s.states + t * n, s.states + (t + 1) * n, lack + t * dv);
        }
        for (ptrdiff_t t = tokens - 1; t >= 0; t--) {
            const delta_back_step p = delta_back_at(d, in, dy, &s, t, h);
            delta_token_back(&p, s.states + t * n, s.states + (t + 1) * n,
                             lack + t * dv, s.d);
        }
        put_state(s.d, dstate, h);
        if (h % group == group - 1) put_sums(&s, &d->q, &d->k, h / group);
    }
    return KVM_OK;
}

/* ---- scan ------------------------------------------------------------------------ */

/* one token of one head, its inputs, and where their gradients go */
typedef struct scan_back_step {
    const float *q, *k, *v, *dy;
    double dt, rate, skip;
    ptrdiff_t dk, dv;
    double *dq, *dkey; /* (D) added to */
    float *dval, *ddt; /* (E), one number */
} scan_back_step;

static void scan_ahead(const scan_back_step *p, const double *before, double *after)
{
    const double a = exp(-p->rate * p->dt);
    for (ptrdiff_t e = 0; e < p->dv; e++)
        for (ptrdiff_t d = 0; d < p->dk; d++)
            *after++ = a * *before++ + p->dt * (double)p->v[e] * (double)p->k[d];
}

static void scan_token_back(const scan_back_step *p, const double *before,
                            const double *after, double *ds)
{
    const double a = exp(-p->rate * p->dt);
    double ddt = 0;
    for (ptrdiff_t e = 0; e < p->dv; e++) {
        const double v = (double)p->v[e], dy = (double)p->dy[e];
        double dv = 0;
        for (ptrdiff_t d = 0; d < p->dk; d++, before++, after++, ds++) {
            const double k = (double)p->k[d];
            p->dq[d] += *after * dy;
            *ds += (double)p->q[d] * dy;
            dv += *ds * k;
            p->dkey[d] += *ds * p->dt * v;
            ddt += *ds * (v * k - p->rate * a * *before);
            *ds *= a;
        }
        p->dval[e] = (float)(p->dt * dv + p->skip * dy);
    }
    *p->ddt = (float)ddt;
}

static scan_back_step scan_back_at(const kvm_scan_rows *d, const kvm_scan_rows *in,
                                   kvm_in rate, kvm_in skip, kvm_in dy,
                                   const back_sums *s, ptrdiff_t t, ptrdiff_t h)
{
    const ptrdiff_t key_head = h / (in->v.dim[1] / in->k.dim[1]), n = in->k.dim[2];
    return (scan_back_step){.q = kvm_head32(&in->q, t, key_head),
                            .k = kvm_head32(&in->k, t, key_head),
                            .v = kvm_head32(&in->v, t, h),
                            .dy = kvm_head32(dy, t, h),
                            .dt = (double)kvm_row32(&in->dt, t)[h],
                            .rate = (double)((const float *)rate->data)[h],
                            .skip = (double)((const float *)skip->data)[h],
                            .dk = n,
                            .dv = in->v.dim[2],
                            .dq = s->q + t * n,
                            .dkey = s->k + t * n,
                            .dval = kvm_head32(&d->v, t, h),
                            .ddt = kvm_row32(&d->dt, t) + h};
}

kvm_status kvm_ref__scan_back(kvm_compute *c, const kvm_scan_rows *d, kvm_in dstate,
                              const kvm_scan_rows *in, kvm_in rate, kvm_in skip,
                              kvm_in state, kvm_in dy, kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    const ptrdiff_t heads = in->v.dim[1], group = heads / in->k.dim[1];
    const ptrdiff_t tokens = dy->dim[0], n = in->k.dim[2] * in->v.dim[2];
    back_sums s;
    if (!take_sums(&s, &scratch, tokens, in->k.dim[2], in->v.dim[2]))
        return kvm_nomem(err, &scratch);
    for (ptrdiff_t h = 0; h < heads; h++) {
        take_state(s.states, state, h);
        take_state(s.d, dstate, h);
        for (ptrdiff_t t = 0; t < tokens; t++) {
            const scan_back_step p = scan_back_at(d, in, rate, skip, dy, &s, t, h);
            scan_ahead(&p, s.states + t * n, s.states + (t + 1) * n);
        }
        for (ptrdiff_t t = tokens - 1; t >= 0; t--) {
            const scan_back_step p = scan_back_at(d, in, rate, skip, dy, &s, t, h);
            scan_token_back(&p, s.states + t * n, s.states + (t + 1) * n, s.d);
        }
        put_state(s.d, dstate, h);
        if (h % group == group - 1) put_sums(&s, &d->q, &d->k, h / group);
    }
    return KVM_OK;
}
