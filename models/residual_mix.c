/* residual_mix.c - the residual whose streams are mixed at every site
 * (models/residual.h). */
#include <math.h>
#include <string.h>

#include "models/activation.h"
#include "models/residual.h"

/* numbers per token: p (streams), q (streams), M (streams, streams) */
static ptrdiff_t factors(const kvm_site *s)
{
    return (2 + s->streams) * s->streams;
}

kvm_status kvm_mix__load(kvm_site *s, kvm_loader *ld, const kvm_site_weights *w,
                         ptrdiff_t index, kvm_err *err)
{
    const ptrdiff_t wide = s->streams * s->hidden;
    const kvm_plain_map map = {w->mix, factors(s), wide, &s->mix};
    TRY(kvm_load_norm(ld, w->norm, index, s->hidden, &s->norm, err));
    if (w->head) return KVM_OK;
    TRY(kvm_load_maps(ld, index, &map, 1, err));
    TRY(kvm_load_vector(ld, w->mix_base, index, factors(s), &s->mix_base, err));
    TRY(kvm_load_vector(ld, w->mix_scale, index, 3, &s->mix_scale, err));
    s->ones = kvm_new_raw(ld->keep, float, wide);
    if (!s->ones) return kvm_nomem(err, ld->keep);
    for (ptrdiff_t i = 0; i < wide; i++) s->ones[i] = 1;
    return KVM_OK;
}

size_t kvm_mix__scratch(const kvm_site *s, ptrdiff_t n)
{
    const ptrdiff_t wide = s->streams * s->hidden;
    return kvm_step_rows_bytes(n, s->hidden) + kvm_step_rows_bytes(n, factors(s)) +
           kvm_step_rows_bytes(n, wide) + kvm_step_rows_bytes(1, wide);
}

/* each of n lines of m, whose n numbers are `step` apart, divided by its sum */
static void even(float *m, ptrdiff_t n, ptrdiff_t step, float eps)
{
    const ptrdiff_t next = step == 1 ? n : 1;
    for (ptrdiff_t i = 0; i < n; i++, m += next) {
        float sum = 0;
        for (ptrdiff_t j = 0; j < n; j++) sum += m[j * step];
        for (ptrdiff_t j = 0; j < n; j++) m[j * step] /= sum + eps;
    }
}

/* rows become their softmax, and then rows and columns are made to sum to one
 * (Sinkhorn) */
static void balance(const kvm_site *s, float *m)
{
    const ptrdiff_t n = s->streams;
    const float eps = (float)s->mix_eps;
    for (ptrdiff_t i = 0; i < n; i++) {
        float *row = m + i * n, top = row[0], sum = 0;
        for (ptrdiff_t j = 1; j < n; j++) top = row[j] > top ? row[j] : top;
        for (ptrdiff_t j = 0; j < n; j++) sum += row[j] = expf(row[j] - top);
        for (ptrdiff_t j = 0; j < n; j++) row[j] = row[j] / sum + eps;
    }
    even(m, n, n, eps);
    for (ptrdiff_t round = 1; round < s->mix_rounds; round++) {
        even(m, n, 1, eps);
        even(m, n, n, eps);
    }
}

/* what the map gave for a token becomes p, q and M */
static void shape(const kvm_site *s, float *c)
{
    const ptrdiff_t n = s->streams;
    for (ptrdiff_t i = 0; i < factors(s); i++)
        c[i] = c[i] * s->mix_scale[i < n ? 0 : i < 2 * n ? 1 : 2] + s->mix_base[i];
    for (ptrdiff_t i = 0; i < n; i++) {
        c[i] = kvm_sigmoid(c[i]) + (float)s->mix_eps;
        c[n + i] = 2 * kvm_sigmoid(c[n + i]);
    }
    balance(s, c + 2 * n);
}

/* to (n) = sum over streams of by[s * step] * r (streams, n) */
static void sum_streams(float *restrict to, const float *restrict r, const float *by,
                        ptrdiff_t step, ptrdiff_t streams, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) to[i] = by[0] * r[i];
    for (ptrdiff_t s = 1; s < streams; s++)
        for (ptrdiff_t i = 0; i < n; i++) to[i] += by[s * step] * r[s * n + i];
}

/* h (n, streams * hidden) -> factors c (n, ..) and x (n, hidden), normed */
static kvm_status collapse(const kvm_site *s, const kvm_step *step, kvm_tensor h,
                           kvm_tensor c, kvm_tensor x, kvm_arena temp, kvm_err *err)
{
    const ptrdiff_t n = h.dim[0], hidden = s->hidden, wide = s->streams * hidden;
    kvm_tensor f = kvm_step_rows(&temp, n, wide);
    if (!f.data) return kvm_nomem(err, &temp);
    TRY(kvm_op_rmsnorm(step->compute, f, h, kvm_view1(s->ones, KVM_F32, wide), wide,
                       s->eps, false, err));
    TRY(kvm_op_linear(step->compute, c, f, s->mix, false, err));
    for (ptrdiff_t t = 0; t < n; t++) {
        float *at = (float *)c.data + t * c.dim[1];
        shape(s, at);
        sum_streams((float *)x.data + t * hidden,
                    (const float *)h.data + t * h.stride[0], at, 1, s->streams, hidden);
    }
    return kvm_op_rmsnorm(step->compute, x, x, kvm_view1(s->norm, KVM_F32, hidden),
                          hidden, s->eps, false, err);
}

kvm_status kvm_mix__forward(const kvm_site *s, const kvm_step *step, kvm_tensor h,
                            ptrdiff_t rows, kvm_err *err)
{
    const ptrdiff_t hidden = s->hidden, n = s->streams, out = step->out;
    kvm_step inner = *step;
    kvm_tensor x = kvm_step_rows(&inner.scratch, rows, hidden);
    kvm_tensor y = kvm_step_rows(&inner.scratch, out, hidden);
    kvm_tensor c = kvm_step_rows(&inner.scratch, rows, factors(s));
    float *old = kvm_new_raw(&inner.scratch, float, n *hidden);
    if (!x.data || !y.data || !c.data || !old) return kvm_nomem(err, &inner.scratch);
    TRY(collapse(s, step, kvm_last_rows(h, rows), c, x, inner.scratch, err));
    memset(y.data, 0, (size_t)(out * hidden) * sizeof(float));
    TRY(s->layer->kind->forward(s->layer, &inner, x, y, err));
    h = kvm_last_rows(h, out);
    c = kvm_last_rows(c, out);
    for (ptrdiff_t t = 0; t < out; t++) {
        const float *q = (const float *)c.data + t * c.dim[1] + n, *m = q + n;
        const float *from = (const float *)y.data + t * hidden;
        float *to = (float *)h.data + t * h.stride[0];
        memcpy(old, to, (size_t)(n * hidden) * sizeof *old);
        for (ptrdiff_t k = 0; k < n; k++, to += hidden) {
            sum_streams(to, old, m + k, n, n, hidden);
            for (ptrdiff_t i = 0; i < hidden; i++) to[i] += q[k] * from[i];
        }
    }
    return KVM_OK;
}

kvm_status kvm_mix__read(const kvm_site *s, const kvm_step *step, kvm_tensor h,
                         kvm_tensor x, kvm_err *err)
{
    const ptrdiff_t hidden = s->hidden;
    const float share = 1 / (float)s->streams;
    for (ptrdiff_t t = 0; t < h.dim[0]; t++)
        sum_streams((float *)x.data + t * x.stride[0],
                    (const float *)h.data + t * h.stride[0], &share, 0, s->streams,
                    hidden);
    return kvm_op_rmsnorm(step->compute, x, x, kvm_view1(s->norm, KVM_F32, hidden),
                          hidden, s->eps, false, err);
}
