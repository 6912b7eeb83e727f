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
    return 2 * kvm_step_rows_bytes(n, s->streams) +
           2 * kvm_step_rows_bytes(n, s->streams * s->hidden) +
           2 * kvm_step_rows_bytes(n, g->rank) + 2 * kvm_step_rows_bytes(n, s->hidden);
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

/* what collapse makes on its way, before silu and sigmoids */
typedef struct opened {
    kvm_tensor r, m, low, inject; /* inject: of no rows at the head */
} opened;

static kvm_status open_gates(const kvm_site *s, const kvm_step *step, kvm_tensor h,
                             opened *o, kvm_arena *temp, kvm_err *err)
{
    const gates *g = s->own;
    const ptrdiff_t n = h.dim[0], wide = s->streams * s->hidden;
    const float share = 1 / (float)s->streams;
    *o = (opened){.r = kvm_step_rows(temp, n, wide),
                  .m = kvm_step_rows(temp, n, wide),
                  .low = kvm_step_rows(temp, n, g->rank),
                  .inject = kvm_step_rows(temp, g->inject ? n : 0, s->streams)};
    kvm_arena rest = *temp;
    const kvm_tensor bent = kvm_step_rows(&rest, n, g->rank);
    if (!o->r.data || !o->m.data || !o->low.data || !o->inject.data || !bent.data)
        return kvm_nomem(err, temp);
    TRY(kvm_op_rmsnorm(step->compute, o->r, h, kvm_view1(s->norm, KVM_F32, wide),
                       s->hidden, s->eps, false, err));
    TRY(kvm_op_linear(step->compute, o->low, o->r, g->down, false, err));
    for (ptrdiff_t i = 0; i < n * g->rank; i++) {
        float *v = (float *)o->low.data + i;
        *v *= share;
        ((float *)bent.data)[i] = kvm_silu(*v);
    }
    TRY(kvm_op_linear(step->compute, o->m, bent, g->up, false, err));
    if (!g->inject) return KVM_OK;
    TRY(kvm_op_linear(step->compute, o->inject, o->r, g->inject, false, err));
    for (ptrdiff_t i = 0; i < n * s->streams; i++)
        ((float *)o->inject.data)[i] *= share;
    return KVM_OK;
}

/* h (n, streams * hidden) -> x (n, hidden), and inject (n, streams) unless at the
 * head */
static kvm_status collapse(const kvm_site *s, const kvm_step *step, kvm_tensor h,
                           kvm_tensor x, kvm_tensor inject, kvm_arena temp,
                           kvm_err *err)
{
    const gates *g = s->own;
    const ptrdiff_t n = h.dim[0], wide = s->streams * s->hidden;
    opened o;
    TRY(open_gates(s, step, h, &o, &temp, err));
    TRY(kvm_op_sigmoid_mul(step->compute, o.m, o.m, o.r, err));
    for (ptrdiff_t t = 0; t < n; t++)
        average((float *)x.data + t * x.stride[0], (const float *)o.m.data + t * wide,
                s, 1 / (float)s->streams);
    for (ptrdiff_t i = 0; g->inject && i < n * s->streams; i++)
        ((float *)inject.data)[i] = 2 * kvm_sigmoid(((const float *)o.inject.data)[i]);
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

/* ---- backward ---- */

static size_t backward_scratch(const kvm_site *s, ptrdiff_t n)
{
    const gates *g = s->own;
    return 3 * kvm_step_rows_bytes(n, s->streams * s->hidden) +
           2 * kvm_step_rows_bytes(n, g->rank) + kvm_step_rows_bytes(n, s->streams) +
           4 * kvm_step_rows_bytes(n, s->hidden);
}

/* dx (n, hidden) -> dh = the gradient by what x was read from, or dh +=; o->inject
 * holds that by what B gave */
static kvm_status collapse_back(const kvm_site *s, const kvm_step *step, kvm_tensor h,
                                opened *o, kvm_tensor dx, kvm_tensor dh, bool add,
                                kvm_arena temp, kvm_err *err)
{
    const gates *g = s->own;
    const ptrdiff_t n = h.dim[0], hidden = s->hidden, wide = s->streams * hidden;
    const float share = 1 / (float)s->streams;
    const kvm_tensor dr = kvm_step_rows(&temp, n, wide);
    const kvm_tensor dlow = kvm_step_rows(&temp, n, g->rank);
    if (!dr.data || !dlow.data) return kvm_nomem(err, &temp);
    for (ptrdiff_t i = 0; i < n * s->streams; i++) {
        const float *from = (const float *)dx.data + i / s->streams * dx.stride[0];
        float *to = (float *)dr.data + i * hidden;
        for (ptrdiff_t k = 0; k < hidden; k++) to[k] = share * from[k];
    }
    TRY(kvm_op_sigmoid_mul_back(step->compute, o->m, dr, o->m, o->r, dr, err));
    TRY(kvm_op_linear_back(step->compute, dlow, o->m, g->up, false, err));
    for (ptrdiff_t i = 0; i < n * g->rank; i++)
        ((float *)dlow.data)[i] *=
            share * kvm_silu_slope(((const float *)o->low.data)[i]);
    TRY(kvm_op_linear_back(step->compute, dr, dlow, g->down, true, err));
    if (g->inject)
        TRY(kvm_op_linear_back(step->compute, dr, o->inject, g->inject, true, err));
    return kvm_op_rmsnorm_back(step->compute, dh, h, kvm_view1(s->norm, KVM_F32, wide),
                               dr, hidden, s->eps, false, add, err);
}

/* of dh (n, streams * hidden): dy (n, hidden) by the layer's result y, and what B gave
 * becomes the gradient by it */
static void inject_back(const kvm_site *s, kvm_tensor dh, kvm_tensor y, kvm_tensor dy,
                        float *inject)
{
    const ptrdiff_t hidden = s->hidden;
    const float share = 1 / (float)s->streams;
    memset(dy.data, 0, (size_t)kvm_tensor_count(&dy) * sizeof(float));
    for (ptrdiff_t i = 0; i < dh.dim[0] * s->streams; i++) {
        const float *from = (const float *)dh.data + i * hidden;
        const float *result = (const float *)y.data + i / s->streams * hidden;
        float *to = (float *)dy.data + i / s->streams * hidden, dot = 0;
        const float by = 2 * kvm_sigmoid(inject[i]);
        for (ptrdiff_t k = 0; k < hidden; k++) {
            to[k] += by * from[k];
            dot += from[k] * result[k];
        }
        inject[i] = 2 * share * dot * kvm_sigmoid_slope(inject[i]);
    }
}

static kvm_status backward(const kvm_site *s, const kvm_step *step, kvm_tensor h,
                           kvm_tensor dh, kvm_err *err)
{
    kvm_step inner = *step;
    const ptrdiff_t n = step->n, hidden = s->hidden;
    const kvm_tensor x = kvm_step_rows(&inner.scratch, n, hidden);
    const kvm_tensor y = kvm_step_rows(&inner.scratch, n, hidden);
    const kvm_tensor dx = kvm_step_rows(&inner.scratch, n, hidden);
    const kvm_tensor dy = kvm_step_rows(&inner.scratch, n, hidden);
    opened o;
    if (!x.data || !y.data || !dx.data || !dy.data)
        return kvm_nomem(err, &inner.scratch);
    TRY(collapse(s, step, h, x, dy /* has room for the gates */, inner.scratch, err));
    TRY(kvm_site__again(s, &inner, x, y, err));
    TRY(open_gates(s, step, h, &o, &inner.scratch, err));
    inject_back(s, dh, y, dy, o.inject.data);
    memset(dx.data, 0, (size_t)(n * hidden) * sizeof(float));
    TRY(s->layer->kind->backward(s->layer, &inner, x, dy, dx, err));
    return collapse_back(s, step, h, &o, dx, dh, true, inner.scratch, err);
}

static kvm_status read_back(const kvm_site *s, const kvm_step *step, kvm_tensor h,
                            kvm_tensor dx, kvm_tensor dh, kvm_err *err)
{
    kvm_arena temp = step->scratch;
    opened o;
    TRY(open_gates(s, step, h, &o, &temp, err));
    return collapse_back(s, step, h, &o, dx, dh, false, temp, err);
}

const kvm_residual_kind kvm_residual_streams = {
    .name = "streams",
    .load = load,
    .scratch = scratch,
    .read = read,
    .forward = forward,
    .backward_scratch = backward_scratch,
    .backward = backward,
    .read_back = read_back,
};
