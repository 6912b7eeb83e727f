/* residual_streams.c - the residual R of n streams of hidden numbers each, which are
 * read and written through gates (Qwen's gated residual):
 *   R' = rms of each stream, times w;  m = sigmoid(Up silu(Down R' / n))
 *   x = mean over streams of m * R';   i = 2 sigmoid(B R' / n)
 *   R_s += i_s layer(x);               after the last block x goes to the head */
#include <string.h>

#include "models/activation.h"
#include "models/residual.h"

typedef struct gates {
    ptrdiff_t rank;
    kvm_weight *down, *up, *inject; /* inject: NULL at the head */
} gates;

static kvm_status load(kvm_site *s, kvm_loader *ld, const kvm_site_weights *w,
                       ptrdiff_t index, kvm_err *err)
{
    const ptrdiff_t wide = s->streams * s->hidden;
    gates *g = kvm_new(ld->keep, gates, 1);
    if (!g) return kvm_nomem(err, ld->keep);
    s->own = g;
    g->rank = ld->config->stream.rank;
    const kvm_plain_map maps[] = {{w->down, g->rank, wide, &g->down},
                                  {w->up, wide, g->rank, &g->up},
                                  {w->inject, s->streams, wide, &g->inject}};
    TRY(kvm_load_norm(ld, w->stream_norm, index, wide, &s->norm, err));
    return kvm_load_maps(ld, index, maps, w->head ? 2 : 3, err);
}

static size_t scratch(const kvm_site *s, ptrdiff_t n)
{
    const gates *g = s->own;
    return kvm_step_rows_bytes(n, s->streams) +
           2 * kvm_step_rows_bytes(n, s->streams * s->hidden) +
           kvm_step_rows_bytes(n, g->rank) + 2 * kvm_step_rows_bytes(n, s->hidden);
}

/* to (hidden) = share * the sum of all streams of from */
static void average(float *to, const float *from, const kvm_site *s, float share)
{
    for (ptrdiff_t i = 0; i < s->hidden; i++) {
        float sum = 0;
        for (ptrdiff_t k = 0; k < s->streams; k++) sum += from[k * s->hidden + i];
        to[i] = sum * share;
    }
}

/* h (n, streams * hidden) -> x (n, hidden), and inject (n, streams) unless at the
 * head */
static kvm_status collapse(const kvm_site *s, const kvm_step *step, kvm_tensor h,
                           kvm_tensor x, kvm_tensor inject, kvm_arena temp,
                           kvm_err *err)
{
    const gates *g = s->own;
    const ptrdiff_t n = h.dim[0], wide = s->streams * s->hidden;
    const float share = 1 / (float)s->streams;
    kvm_tensor r = kvm_step_rows(&temp, n, wide), m = kvm_step_rows(&temp, n, wide);
    kvm_tensor low = kvm_step_rows(&temp, n, g->rank);
    if (!r.data || !m.data || !low.data) return kvm_nomem(err, &temp);
    TRY(kvm_op_rmsnorm(step->compute, r, h, kvm_view1(s->norm, KVM_F32, wide),
                       s->hidden, s->eps, false, err));
    TRY(kvm_op_linear(step->compute, low, r, g->down, false, err));
    for (ptrdiff_t i = 0; i < n * g->rank; i++) {
        float *v = (float *)low.data + i;
        *v = kvm_silu(*v * share);
    }
    TRY(kvm_op_linear(step->compute, m, low, g->up, false, err));
    TRY(kvm_op_sigmoid_mul(step->compute, m, m, r, err));
    for (ptrdiff_t t = 0; t < n; t++)
        average((float *)x.data + t * x.stride[0], (const float *)m.data + t * wide, s,
                share);
    if (!g->inject) return KVM_OK;
    TRY(kvm_op_linear(step->compute, inject, r, g->inject, false, err));
    for (ptrdiff_t i = 0; i < n * s->streams; i++) {
        float *v = (float *)inject.data + i;
        *v = 2 * kvm_sigmoid(*v * share);
    }
    return KVM_OK;
}

static kvm_status read(const kvm_site *s, const kvm_step *step, kvm_tensor h,
                       kvm_tensor x, kvm_err *err)
{
    return collapse(s, step, h, x, x, step->scratch, err);
}

static kvm_status forward(const kvm_site *s, const kvm_step *step, kvm_tensor h,
                          ptrdiff_t rows, kvm_err *err)
{
    const ptrdiff_t hidden = s->hidden, out = step->out;
    kvm_step inner = *step;
    kvm_tensor x = kvm_step_rows(&inner.scratch, rows, hidden);
    kvm_tensor y = kvm_step_rows(&inner.scratch, out, hidden);
    kvm_tensor inject = kvm_step_rows(&inner.scratch, rows, s->streams);
    if (!x.data || !y.data || !inject.data) return kvm_nomem(err, &inner.scratch);
    TRY(collapse(s, step, kvm_last_rows(h, rows), x, inject, inner.scratch, err));
    memset(y.data, 0, (size_t)(out * hidden) * sizeof(float));
    TRY(s->layer->kind->forward(s->layer, &inner, x, y, err));
    h = kvm_last_rows(h, out);
    inject = kvm_last_rows(inject, out);
    for (ptrdiff_t i = 0; i < out * s->streams; i++) {
        const float by = ((const float *)inject.data)[i];
        const float *from = (const float *)y.data + i / s->streams * hidden;
        float *to = (float *)h.data + i * hidden;
        for (ptrdiff_t k = 0; k < hidden; k++) to[k] += by * from[k];
    }
    return KVM_OK;
}

const kvm_residual_kind kvm_residual_streams = {
    .name = "streams",
    .load = load,
    .scratch = scratch,
    .read = read,
    .forward = forward,
};
