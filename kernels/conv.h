/* conv.h - short causal convolution of each channel by itself, then silu (template; see
 * vec.h).
 *
 * A part is a strip of channels and all tokens in order, so that y may lie over x: the
 * last inputs stay in the thread's buffer, (K, strip), oldest first. Every sum runs
 * from the oldest input to the token itself, whatever the cut into strips or calls. */
#ifndef KVM_KERNELS_CONV_H
#define KVM_KERNELS_CONV_H

#include "kernels/rows.h"

enum { CONV_STRIP = 256 }; /* channels; K = 4: 9 KiB of L1 */

typedef struct conv_job {
    kvm_in y, x, w, window;
    const float *bias;
    float *buffer; /* per thread: taps (K,strip), bias (strip), inputs (K,strip) */
    ptrdiff_t buffer_size;
} conv_job;

/* one token; u: its inputs, oldest first, the last to be filled in with x */
V_INLINE void conv_token(float *y, const float *x, ptrdiff_t n, const float *w,
                         const float *bias, float *const *u, const ptrdiff_t taps)
{
    for (ptrdiff_t c = 0; c < n; c += VW) {
        const ptrdiff_t some = n - c < VW ? n - c : VW;
        const vf in = some == VW ? v_load(x + c) : v_load_n(x + c, some);
        vf sum = v_load(bias + c);
        for (ptrdiff_t i = 0; i + 1 < taps; i++)
            sum = v_fma(v_load(w + i * CONV_STRIP + c), v_load(u[i] + c), sum);
        sum = v_fma(v_load(w + (taps - 1) * CONV_STRIP + c), in, sum);
        v_store(u[taps - 1] + c, in);
        const vf out = v_gated(sum, v_all(1), true);
        if (some == VW)
            v_store(y + c, out);
        else
            v_store_n(y + c, out, some);
    }
}

static void conv_part(void *ctx, ptrdiff_t part, int thread)
{
    const conv_job *j = ctx;
    const ptrdiff_t first = part * CONV_STRIP, taps = j->w->dim[1];
    const ptrdiff_t left = j->x->dim[1] - first;
    const ptrdiff_t n = left < CONV_STRIP ? left : CONV_STRIP;
    float *w = j->buffer + thread * j->buffer_size;
    float *bias = w + taps * CONV_STRIP, *u[KVM_CONV_TAPS];
    memset(w, 0, (size_t)j->buffer_size * sizeof *w);
    for (ptrdiff_t i = 0; i < taps; i++) {
        u[i] = bias + (1 + i) * CONV_STRIP;
        for (ptrdiff_t c = 0; c < n; c++) {
            w[i * CONV_STRIP + c] = kvm_row32(j->w, first + c)[i];
            u[i][c] = kvm_row32(j->window, first + c)[i];
        }
    }
    if (j->bias) memcpy(bias, j->bias + first, (size_t)n * sizeof *bias);
    for (ptrdiff_t t = 0; t < j->x->dim[0]; t++) {
        float *y = kvm_row32(j->y, t) + first, *oldest = u[0];
        const float *x = kvm_row32(j->x, t) + first;
        for (ptrdiff_t i = 0; i + 1 < taps; i++) u[i] = u[i + 1];
        u[taps - 1] = oldest;
        if (taps == 4)
            conv_token(y, x, n, w, bias, u, 4);
        else
            conv_token(y, x, n, w, bias, u, taps);
    }
    for (ptrdiff_t i = 0; i < taps; i++)
        for (ptrdiff_t c = 0; c < n; c++) kvm_row32(j->window, first + c)[i] = u[i][c];
}

static kvm_status conv(kvm_compute *c, kvm_in y, kvm_in x, kvm_in w, const float *bias,
                       kvm_in window, kvm_err *err)
{
    conv_job j = {.y = y, .x = x, .w = w, .window = window, .bias = bias};
    kvm_arena scratch = c->scratch;
    j.buffer_size = (2 * w->dim[1] + 1) * CONV_STRIP;
    j.buffer = kvm_new_raw(&scratch, float, j.buffer_size * c->threads);
    if (!j.buffer) return kvm_nomem(err, &scratch);
    kvm_pool_run(c->pool, (x->dim[1] + CONV_STRIP - 1) / CONV_STRIP, conv_part, &j);
    return KVM_OK;
}

#endif
