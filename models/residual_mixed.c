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

/* rows become their softmax + eps */
static void soften(float *m, ptrdiff_t n, float eps)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        float *row = m + i * n, top = row[0], sum = 0;
        for (ptrdiff_t j = 1; j < n; j++) top = row[j] > top ? row[j] : top;
        for (ptrdiff_t j = 0; j < n; j++) sum += row[j] = expf(row[j] - top);
        for (ptrdiff_t j = 0; j < n; j++) row[j] = row[j] / sum + eps;
    }
}

/* and then columns and rows are made to sum to one by turns (Sinkhorn) */
static void balance(const mix *by, ptrdiff_t n, float *m)
{
    const float eps = (float)by->eps;
    soften(m, n, eps);
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

/* what a site's factors are made of, and what is made of them */
typedef struct collapsed {
    kvm_tensor f, raw, sum; /* (n, wide), (n, factors), (n, hidden) before its norm */
} collapsed;

static kvm_status open_map(const kvm_site *s, const kvm_step *step, kvm_tensor h,
                           kvm_tensor c, collapsed *o, kvm_err *err)
{
    const mix *by = s->own;
    const ptrdiff_t n = h.dim[0], hidden = s->hidden, wide = s->streams * hidden;
    TRY(kvm_op_rmsnorm(step->compute, o->f, h, kvm_view1(by->ones, KVM_F32, wide), wide,
                       s->eps, false, err));
    TRY(kvm_op_linear(step->compute, o->raw, o->f, by->map, false, err));
    if (c.data != o->raw.data)
        memcpy(c.data, o->raw.data, (size_t)(n * factors(s)) * sizeof(float));
    for (ptrdiff_t t = 0; t < n; t++) {
        float *at = (float *)c.data + t * c.dim[1];
        shape(s, at);
        sum_streams((float *)o->sum.data + t * hidden,
                    (const float *)h.data + t * h.stride[0], at, 1, s->streams, hidden);
    }
    return KVM_OK;
}

/* h (n, streams * hidden) -> factors c (n, ..) and x (n, hidden), normed */
static kvm_status collapse(const kvm_site *s, const kvm_step *step, kvm_tensor h,
                           kvm_tensor c, kvm_tensor x, kvm_arena temp, kvm_err *err)
{
    const ptrdiff_t n = h.dim[0], hidden = s->hidden;
    collapsed o = {
        .f = kvm_step_rows(&temp, n, s->streams * hidden), .raw = c, .sum = x};
    if (!o.f.data) return kvm_nomem(err, &temp);
    TRY(open_map(s, step, h, c, &o, err));
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

/* x (n, hidden) = the mean of h's streams */
static void average(const kvm_site *s, kvm_tensor h, kvm_tensor x)
{
    const float share = 1 / (float)s->streams;
    for (ptrdiff_t t = 0; t < h.dim[0]; t++)
        sum_streams((float *)x.data + t * x.stride[0],
                    (const float *)h.data + t * h.stride[0], &share, 0, s->streams,
                    s->hidden);
}

static kvm_status read(const kvm_site *s, const kvm_step *step, kvm_tensor h,
                       kvm_tensor x, kvm_err *err)
{
    const ptrdiff_t hidden = s->hidden;
    average(s, h, x);
    return kvm_op_rmsnorm(step->compute, x, x, kvm_view1(s->norm, KVM_F32, hidden),
                          hidden, s->eps, false, err);
}

/* ---- backward ---- */

/* M on its way through balance: as softmax and after each time that its lines were made
 * even, with what they were divided by */
typedef struct balanced {
    ptrdiff_t turns;
    float *m;   /* (1 + turns, streams, streams) */
    float *sum; /* (turns, streams) */
} balanced;

static ptrdiff_t balanced_floats(const kvm_site *s)
{
    const mix *by = s->own;
    const ptrdiff_t n = s->streams;
    return by ? 2 * by->rounds * (n + 1) * n : 0;
}

static size_t backward_scratch(const kvm_site *s, ptrdiff_t n)
{
    const ptrdiff_t wide = s->streams * s->hidden;
    return 7 * kvm_step_rows_bytes(n, s->hidden) +
           3 * kvm_step_rows_bytes(n, factors(s)) + 2 * kvm_step_rows_bytes(n, wide) +
           kvm_step_rows_bytes(1, wide) + kvm_step_rows_bytes(1, balanced_floats(s));
}

/* m, which is the next one's before, made even along columns (step n) or rows (1) */
static void even_again(float *m, const float *before, float *sum, ptrdiff_t n,
                       ptrdiff_t step, float eps)
{
    const ptrdiff_t next = step == 1 ? n : 1;
    memcpy(m, before, (size_t)(n * n) * sizeof *m);
    for (ptrdiff_t i = 0; i < n; i++) {
        sum[i] = eps;
        for (ptrdiff_t j = 0; j < n; j++) sum[i] += m[i * next + j * step];
    }
    even(m, n, step, eps);
}

/* d (streams, streams) by M -> by what its softmax was taken of, in place; scores are
 * those */
static void balance_back(const mix *by, ptrdiff_t n, const float *scores, balanced *b,
                         float *d)
{
    const ptrdiff_t size = n * n;
    memcpy(b->m, scores, (size_t)size * sizeof *d);
    soften(b->m, n, (float)by->eps);
    for (ptrdiff_t i = 0; i < b->turns; i++)
        even_again(b->m + (i + 1) * size, b->m + i * size, b->sum + i * n, n,
                   i % 2 ? 1 : n, (float)by->eps);
    for (ptrdiff_t i = b->turns; i > 0; i--) {
        const ptrdiff_t step = (i - 1) % 2 ? 1 : n, next = step == 1 ? n : 1;
        for (ptrdiff_t k = 0; k < n; k++) { /* out = in / sum */
            const float *out = b->m + i * size + k * next;
            float *line = d + k * next, dot = 0;
            for (ptrdiff_t j = 0; j < n; j++) dot += line[j * step] * out[j * step];
            for (ptrdiff_t j = 0; j < n; j++)
                line[j * step] = (line[j * step] - dot) / b->sum[(i - 1) * n + k];
        }
    }
    for (ptrdiff_t k = 0; k < n; k++) { /* softmax, to which eps was added */
        const float *p = b->m + k * n;
        float *row = d + k * n, dot = 0;
        for (ptrdiff_t j = 0; j < n; j++) dot += row[j] * (p[j] - (float)by->eps);
        for (ptrdiff_t j = 0; j < n; j++)
            row[j] = (p[j] - (float)by->eps) * (row[j] - dot);
    }
}

/* of a token: d (factors) by p, q and M -> by what the map gave, which is in c */
static void shape_back(const kvm_site *s, const float *raw, balanced *b, float *scaled,
                       float *d)
{
    const mix *by = s->own;
    const ptrdiff_t n = s->streams;
    for (ptrdiff_t i = 0; i < factors(s); i++)
        scaled[i] = raw[i] * by->scale[i < n ? 0 : i < 2 * n ? 1 : 2] + by->base[i];
    for (ptrdiff_t i = 0; i < n; i++) {
        d[i] *= kvm_sigmoid_slope(scaled[i]);
        d[n + i] *= 2 * kvm_sigmoid_slope(scaled[n + i]);
    }
    balance_back(by, n, scaled + 2 * n, b, d + 2 * n);
    for (ptrdiff_t i = 0; i < factors(s); i++)
        d[i] *= by->scale[i < n ? 0 : i < 2 * n ? 1 : 2];
}

static float dot_of(const float *a, const float *b, ptrdiff_t n)
{
    float sum = 0;
    for (ptrdiff_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* of a token, dh (streams, hidden) as forward left it: dy, d by q and M, and dh by the
 * streams that were mixed; room for them */
static void mixing_back(const kvm_site *s, const float *c, const float *h,
                        const float *y, float *dh, float *dy, float *d, float *room)
{
    const ptrdiff_t n = s->streams, hidden = s->hidden;
    const float *q = c + n, *m = q + n;
    memcpy(room, dh, (size_t)(n * hidden) * sizeof *dh);
    sum_streams(dy, room, q, 1, n, hidden);
    for (ptrdiff_t k = 0; k < n; k++) {
        d[n + k] = dot_of(room + k * hidden, y, hidden);
        for (ptrdiff_t t = 0; t < n; t++)
            d[2 * n + t * n + k] = dot_of(room + k * hidden, h + t * hidden, hidden);
    }
    for (ptrdiff_t t = 0; t < n; t++)
        sum_streams(dh + t * hidden, room, m + t * n, 1, n, hidden);
}

/* dsum (n, hidden) by what was summed, d (n, factors) by q and M -> dh += */
static kvm_status map_back(const kvm_site *s, const kvm_step *step, kvm_tensor h,
                           kvm_tensor c, const collapsed *o, kvm_tensor dsum,
                           kvm_tensor d, kvm_tensor dh, kvm_arena temp, kvm_err *err)
{
    const mix *by = s->own;
    const ptrdiff_t n = s->streams, hidden = s->hidden, wide = n * hidden;
    balanced b = {.turns = 2 * by->rounds - 1};
    b.m = kvm_new_raw(&temp, float, balanced_floats(s));
    if (!b.m) return kvm_nomem(err, &temp);
    b.sum = b.m + (1 + b.turns) * n * n;
    for (ptrdiff_t t = 0; t < h.dim[0]; t++) {
        const float *from = (const float *)h.data + t * wide;
        const float *ds = (const float *)dsum.data + t * hidden;
        float *p = (float *)c.data + t * c.dim[1], *dt = (float *)d.data + t * c.dim[1];
        float *to = (float *)dh.data + t * wide;
        for (ptrdiff_t k = 0; k < n; k++) {
            dt[k] = dot_of(ds, from + k * hidden, hidden);
            for (ptrdiff_t i = 0; i < hidden; i++) to[k * hidden + i] += p[k] * ds[i];
        }
        shape_back(s, (const float *)o->raw.data + t * c.dim[1], &b, p, dt);
    }
    TRY(kvm_op_linear_back(step->compute, o->f, d, by->map, false, err));
    return kvm_op_rmsnorm_back(step->compute, dh, h, kvm_view1(by->ones, KVM_F32, wide),
                               o->f, wide, s->eps, false, true, err);
}

static kvm_status backward(const kvm_site *s, const kvm_step *step, kvm_tensor h,
                           kvm_tensor dh, kvm_err *err)
{
    kvm_step inner = *step;
    kvm_arena *temp = &inner.scratch;
    const ptrdiff_t n = step->n, hidden = s->hidden, wide = s->streams * hidden;
    const kvm_tensor norm = kvm_view1(s->norm, KVM_F32, hidden);
    const kvm_tensor x = kvm_step_rows(temp, n, hidden);
    const kvm_tensor y = kvm_step_rows(temp, n, hidden);
    const kvm_tensor dy = kvm_step_rows(temp, n, hidden);
    const kvm_tensor dx = kvm_step_rows(temp, n, hidden);
    const kvm_tensor c = kvm_step_rows(temp, n, factors(s));
    const kvm_tensor d = kvm_step_rows(temp, n, factors(s));
    collapsed o = {.f = kvm_step_rows(temp, n, wide),
                   .raw = kvm_step_rows(temp, n, factors(s)),
                   .sum = kvm_step_rows(temp, n, hidden)};
    float *room = kvm_new_raw(temp, float, wide);
    if (!x.data || !y.data || !dy.data || !dx.data || !c.data || !d.data || !o.f.data ||
        !o.raw.data || !o.sum.data || !room)
        return kvm_nomem(err, temp);
    TRY(open_map(s, step, h, c, &o, err));
    TRY(kvm_op_rmsnorm(step->compute, x, o.sum, norm, hidden, s->eps, false, err));
    TRY(kvm_site__again(s, &inner, x, y, err));
    for (ptrdiff_t t = 0; t < n; t++)
        mixing_back(
            s, (const float *)c.data + t * c.dim[1], (const float *)h.data + t * wide,
            (const float *)y.data + t * hidden, (float *)dh.data + t * wide,
            (float *)dy.data + t * hidden, (float *)d.data + t * c.dim[1], room);
    memset(dx.data, 0, (size_t)(n * hidden) * sizeof(float));
    TRY(s->layer->kind->backward(s->layer, &inner, x, dy, dx, err));
    TRY(kvm_op_rmsnorm_back(step->compute, dx, o.sum, norm, dx, hidden, s->eps, false,
                            false, err));
    return map_back(s, step, h, c, &o, dx, d, dh, inner.scratch, err);
}

static kvm_status read_back(const kvm_site *s, const kvm_step *step, kvm_tensor h,
                            kvm_tensor dx, kvm_tensor dh, kvm_err *err)
{
    kvm_arena temp = step->scratch;
    const ptrdiff_t n = h.dim[0], hidden = s->hidden;
    const float share = 1 / (float)s->streams;
    const kvm_tensor mean = kvm_step_rows(&temp, n, hidden);
    const kvm_tensor dmean = kvm_step_rows(&temp, n, hidden);
    if (!mean.data || !dmean.data) return kvm_nomem(err, &temp);
    average(s, h, mean);
    TRY(kvm_op_rmsnorm_back(step->compute, dmean, mean,
                            kvm_view1(s->norm, KVM_F32, hidden), dx, hidden, s->eps,
                            false, false, err));
    for (ptrdiff_t i = 0; i < n * s->streams; i++) {
        const float *from = (const float *)dmean.data + i / s->streams * hidden;
        float *to = (float *)dh.data + i * hidden;
        for (ptrdiff_t k = 0; k < hidden; k++) to[k] = share * from[k];
    }
    return KVM_OK;
}

const kvm_residual_kind kvm_residual_mixed = {
    .name = "mixed",
    .load = load,
    .scratch = scratch,
    .read = read,
    .forward = forward,
    .backward_scratch = backward_scratch,
    .backward = backward,
    .read_back = read_back,
};
