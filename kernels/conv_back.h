/* conv_back.h - gradients of the short convolution (template; see vec.h).
 *
 * A part is a strip of channels and all tokens from the last to the first. What the
 * sums pass back, d of them, stays in the thread's buffer for K tokens: an input's
 * gradient is complete when the walk comes to it, so dx may lie over dy. */
#ifndef KVM_KERNELS_CONV_BACK_H
#define KVM_KERNELS_CONV_BACK_H

#include "kernels/conv.h"

typedef struct conv_back_job {
    kvm_in dx, dwindow, x, w, window, dy;
    const float *bias;
    float *buffer; /* per thread: taps, window, d of sums, each (K,strip); bias */
    ptrdiff_t buffer_size;
} conv_back_job;

/* what one part works on; (K,strip) each */
typedef struct conv_back_part {
    const conv_back_job *j;
    ptrdiff_t first, n, taps; /* channels; K */
    float *w, *window, *bias;
    float *d[KVM_CONV_TAPS]; /* of the token at hand and those after it */
} conv_back_part;

/* one token; u: its inputs, oldest first */
V_INLINE void conv_token_back(const conv_back_part *p, float *dx, const float *dy,
                              const float *const *u, const ptrdiff_t taps)
{
    for (ptrdiff_t c = 0; c < p->n; c += VW) {
        const ptrdiff_t some = p->n - c < VW ? p->n - c : VW;
        vf sum = v_load(p->bias + c), back = v_all(0);
        for (ptrdiff_t i = 0; i < taps; i++)
            sum = v_fma(v_load(p->w + i * CONV_STRIP + c),
                        some == VW ? v_load(u[i] + c) : v_load_n(u[i] + c, some), sum);
        const vf s = v_all(1) / (v_all(1) + v_exp(-sum));
        const vf slope = s * v_fma(sum, v_all(1) - s, v_all(1));
        v_store(p->d[0] + c,
                slope * (some == VW ? v_load(dy + c) : v_load_n(dy + c, some)));
        for (ptrdiff_t i = 0; i < taps; i++)
            back = v_fma(v_load(p->w + i * CONV_STRIP + c),
                         v_load(p->d[taps - 1 - i] + c), back);
        if (some == VW)
            v_store(dx + c, back);
        else
            v_store_n(dx + c, back, some);
    }
}

/* the window's own gradient, and what the tokens get of that of the last window */
static void conv_window_back(const conv_back_part *p)
{
    const conv_back_job *j = p->j;
    const ptrdiff_t tokens = j->x->dim[0], taps = p->taps;
    for (ptrdiff_t c = 0; c < p->n; c++) {
        float *d = kvm_row32(j->dwindow, p->first + c);
        for (ptrdiff_t i = taps - 1; i >= 0; i--)
            if (i + tokens >= taps)
                kvm_row32(j->dx, i + tokens - taps)[p->first + c] += d[i];
        for (ptrdiff_t i = taps - 1; i >= 0; i--) {
            float sum = i >= tokens ? d[i - tokens] : 0;
            for (ptrdiff_t t = 0; t < i && t < tokens; t++)
                sum += p->w[(i - 1 - t) * CONV_STRIP + c] * p->d[t][c];
            d[i] = sum;
        }
    }
}

static void conv_back_walk(conv_back_part *p)
{
    const conv_back_job *j = p->j;
    for (ptrdiff_t t = j->x->dim[0] - 1; t >= 0; t--) {
        const float *u[KVM_CONV_TAPS];
        for (ptrdiff_t i = 0; i < p->taps; i++) {
            const ptrdiff_t at = t + 1 + i - p->taps; /* before 0: in the window */
            u[i] = at < 0 ? p->window + (at + p->taps) * CONV_STRIP
                          : kvm_row32(j->x, at) + p->first;
        }
        float *last = p->d[p->taps - 1];
        for (ptrdiff_t i = p->taps - 1; i > 0; i--) p->d[i] = p->d[i - 1];
        p->d[0] = last;
        float *dx = kvm_row32(j->dx, t) + p->first;
        const float *dy = kvm_row32(j->dy, t) + p->first;
        if (p->taps == 4)
            conv_token_back(p, dx, dy, u, 4);
        else
            conv_token_back(p, dx, dy, u, p->taps);
    }
    conv_window_back(p);
}

static void conv_back_part_run(void *ctx, ptrdiff_t part, int thread)
{
    const conv_back_job *j = ctx;
    const ptrdiff_t first = part * CONV_STRIP, taps = j->w->dim[1];
    const ptrdiff_t left = j->x->dim[1] - first;
    conv_back_part p = {.j = j, .first = first, .taps = taps};
    p.n = left < CONV_STRIP ? left : CONV_STRIP;
    p.w = j->buffer + thread * j->buffer_size;
    p.window = p.w + taps * CONV_STRIP;
    p.bias = p.window + 2 * taps * CONV_STRIP;
    memset(p.w, 0, (size_t)j->buffer_size * sizeof *p.w);
    for (ptrdiff_t i = 0; i < taps; i++) {
        p.d[i] = p.window + (taps + i) * CONV_STRIP;
        for (ptrdiff_t c = 0; c < p.n; c++) {
            p.w[i * CONV_STRIP + c] = kvm_row32(j->w, first + c)[i];
            p.window[i * CONV_STRIP + c] = kvm_row32(j->window, first + c)[i];
        }
    }
    if (j->bias) memcpy(p.bias, j->bias + first, (size_t)p.n * sizeof *p.bias);
    conv_back_walk(&p);
}

static kvm_status conv_back(kvm_compute *c, kvm_in dx, kvm_in dwindow, kvm_in x,
                            kvm_in w, const float *bias, kvm_in window, kvm_in dy,
                            kvm_err *err)
{
    conv_back_job j = {.dx = dx,
                       .dwindow = dwindow,
                       .x = x,
                       .w = w,
                       .window = window,
                       .dy = dy,
                       .bias = bias};
    kvm_arena scratch = c->scratch;
    j.buffer_size = (3 * w->dim[1] + 1) * CONV_STRIP;
    j.buffer = kvm_new_raw(&scratch, float, j.buffer_size * c->threads);
    if (!j.buffer) return kvm_nomem(err, &scratch);
    kvm_pool_run(c->pool, (x->dim[1] + CONV_STRIP - 1) / CONV_STRIP, conv_back_part_run,
                 &j);
    return KVM_OK;
}

#endif
