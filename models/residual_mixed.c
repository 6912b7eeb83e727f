/* residual_mixed.c - the residual R of n streams of hidden numbers each, which are
 * mixed at every site (manifold-constrained hyper-connections, Xie et al. 2026;
 * GLM-5.3-Flash):
 *   [p | q | M] = W rms(R), the mean over all streams; each times its scale + base
 *   p = sigmoid(p) + e;  q = 2 sigmoid(q);  M = softmax of its rows + e, whose columns
 *   and rows are then made to sum to one by turns
 *   x = rms(sum over s of p_s R_s) w;  R_s = q_s layer(x) + sum over t of M_ts R_t
 *   after the last block rms(mean of R_s) w goes to the head */
#include <math.h>
#include <string.h>

#include "models/activation.h"
#include "models/residual.h"

typedef struct mix {
    double eps;
    ptrdiff_t rounds;
    kvm_weight *map;     /* (2 streams + streams^2, streams * hidden) */
    float *base, *scale; /* (2 streams + streams^2), (3) */
    float *ones;         /* (streams * hidden) */
} mix;

/* numbers per token: p (streams), q (streams), M (streams, streams) */
static ptrdiff_t factors(const kvm_site *s)
{
    return (2 + s->streams) * s->streams;
}

static kvm_status load(kvm_site *s, kvm_loader *ld, const kvm_site_weights *w,
                       ptrdiff_t index, kvm_err *err)
{
    const ptrdiff_t wide = s->streams * s->hidden;
    TRY(kvm_load_norm(ld, w->norm, index, s->hidden, &s->norm, err));
    if (w->head) return KVM_OK;
    mix *m = kvm_new(ld->keep, mix, 1);
    if (!m) return kvm_nomem(err, ld->keep);
    s->own = m;
    m->eps = ld->config->stream.eps;
    m->rounds = ld->config->stream.rounds;
    const kvm_plain_map map = {w->mix, factors(s), wide, &m->map};
    TRY(kvm_load_maps(ld, index, &map, 1, err));
    TRY(kvm_load_vector(ld, w->mix_base, index, factors(s), &m->base, err));
    TRY(kvm_load_vector(ld, w->mix_scale, index, 3, &m->scale, err));
    m->ones = kvm_new_raw(ld->keep, float, wide);
    if (!m->ones) return kvm_nomem(err, ld->keep);
    for (ptrdiff_t i = 0; i < wide; i++) m->ones[i] = 1;
    return KVM_OK;
}

static size_t scratch(const kvm_site *s, ptrdiff_t n)
{
    const ptrdiff_t wide = s->streams * s->hidden;
    return 2 * kvm_step_rows_bytes(n, s->hidden) + kvm_step_rows_bytes(n, factors(s)) +
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
static void balance(const mix *by, ptrdiff_t n, float *m)
{
    const float eps = (float)by->eps;
    for (ptrdiff_t i = 0; i < n; i++) {
        float *row = m + i * n, top = row[0], sum = 0;
        for (ptrdiff_t j = 1; j < n; j++) top = row[j] > top ? row[j] : top;
        for (ptrdiff_t j = 0; j < n; j++) sum += row[j] = expf(row[j] - top);
        for (ptrdiff_t j = 0; j < n; j++) row[j] = row[j] / sum + eps;
    }
    even(m, n, n, eps);
    for (ptrdiff_t round = 1; round < by->rounds; round++) {
        even(m, n, 1, eps);
        even(m, n, n, eps);
    }
}

/* what the map gave for a token becomes p, q and M */
static void shape(const kvm_site *s, float *c)
{
    const mix *by = s->own;
    const ptrdiff_t n = s->streams;
    for (ptrdiff_t i = 0; i < factors(s); i++)
        c[i] = c[i] * by->scale[i < n ? 0 : i < 2 * n ? 1 : 2] + by->base[i];
    for (ptrdiff_t i = 0; i < n; i++) {
        c[i] = kvm_sigmoid(c[i]) + (float)by->eps;
        c[n + i] = 2 * kvm_sigmoid(c[n + i]);
    }
    balance(by, n, c + 2 * n);
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
    const mix *by = s->own;
    const ptrdiff_t n = h.dim[0], hidden = s->hidden, wide = s->streams * hidden;
    kvm_tensor f = kvm_step_rows(&temp, n, wide);
    if (!f.data) return kvm_nomem(err, &temp);
    TRY(kvm_op_rmsnorm(step->compute, f, h, kvm_view1(by->ones, KVM_F32, wide), wide,
                       s->eps, false, err));
    TRY(kvm_op_linear(step->compute, c, f, by->map, false, err));
    for (ptrdiff_t t = 0; t < n; t++) {
        float *at = (float *)c.data + t * c.dim[1];
        shape(s, at);
        sum_streams((float *)x.data + t * hidden,
                    (const float *)h.data + t * h.stride[0], at, 1, s->streams, hidden);
    }
    return kvm_op_rmsnorm(step->compute, x, x, kvm_view1(s->norm, KVM_F32, hidden),
                          hidden, s->eps, false, err);
}

static kvm_status forward(const kvm_site *s, const kvm_step *step, kvm_tensor h,
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

static kvm_status read(const kvm_site *s, const kvm_step *step, kvm_tensor h,
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

const kvm_residual_kind kvm_residual_mixed = {
    .name = "mixed",
    .load = load,
    .scratch = scratch,
    .read = read,
    .forward = forward,
};
