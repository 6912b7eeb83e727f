/* ref_backward.c - gradients of the forward ops as calculus says, one loop per index,
 * sums in f64. Slow; every other backend is judged by these, and these by differences
 * of the forward ops (tests/conform/test_differences.c). */
#include "kernels/ref.h"

#include <math.h>
#include <string.h>

kvm_status kvm_ref__rmsnorm_back(kvm_compute *c, kvm_in dx, kvm_in x, kvm_in w,
                                 kvm_in dy, ptrdiff_t group, double eps, bool plus_one,
                                 bool add, kvm_err *err)
{
    (void)c, (void)err;
    const float *scale = w->data;
    for (ptrdiff_t t = 0; t < x->dim[0]; t++) {
        const float *at = kvm_row32(x, t), *dout = kvm_row32(dy, t);
        float *to = kvm_row32(dx, t);
        for (ptrdiff_t g = 0; g < x->dim[1]; g += group) {
            double squares = 0, dot = 0;
            for (ptrdiff_t i = g; i < g + group; i++) {
                const double s = (double)scale[i % w->dim[0]] + (plus_one ? 1 : 0);
                squares += (double)at[i] * (double)at[i];
                dot += (double)at[i] * s * (double)dout[i];
            }
            const double r = 1 / sqrt(squares / (double)group + eps);
            const double pull = r * r * r * dot / (double)group;
            for (ptrdiff_t i = g; i < g + group; i++) {
                const double s = (double)scale[i % w->dim[0]] + (plus_one ? 1 : 0);
                const double d = r * s * (double)dout[i] - pull * (double)at[i];
                to[i] = (float)(add ? (double)to[i] + d : d);
            }
        }
    }
    return KVM_OK;
}

kvm_status kvm_ref__linear_back(kvm_compute *c, kvm_in dx, kvm_in dy,
                                const kvm_weight *w, bool add, kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    const ptrdiff_t inputs = dx->dim[1], tokens = dx->dim[0];
    float *row = kvm_new_raw(&scratch, float, inputs);
    double *sum = kvm_new(&scratch, double, tokens *inputs);
    if (!row || !sum) return kvm_nomem(err, &scratch);
    for (ptrdiff_t o = 0; o < dy->dim[1]; o++) {
        TRY(kvm_widen_at(row, &w->matrix, o, 0, inputs, err));
        for (ptrdiff_t t = 0; t < tokens; t++)
            for (ptrdiff_t i = 0; i < inputs; i++)
                sum[t * inputs + i] += (double)kvm_row32(dy, t)[o] * (double)row[i];
    }
    for (ptrdiff_t t = 0; t < tokens; t++) {
        float *to = kvm_row32(dx, t);
        for (ptrdiff_t i = 0; i < inputs; i++)
            to[i] = (float)((add ? (double)to[i] : 0) + sum[t * inputs + i]);
    }
    return KVM_OK;
}

static double dot_of(const float *a, const float *b, ptrdiff_t n)
{
    double sum = 0;
    for (ptrdiff_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

/* to += by * from */
static void add_times(float *to, double by, const float *from, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++)
        to[i] = (float)((double)to[i] + by * (double)from[i]);
}

/* bits NULL: all keys are seen */
static bool looked_at(const uint64_t *bits, ptrdiff_t j)
{
    return !bits || (bits[j / 64] >> j % 64 & 1);
}

/* One query: p = softmax(scale q.k), a = dy.v of each key, mean = sum of p a;
 * dv += p dy, and of ds = scale p (a - mean): dq = sum of ds k, dk += ds q */
kvm_status kvm_ref__attention_back(kvm_compute *c, kvm_in dq, kvm_in dk, kvm_in dv,
                                   kvm_in q, kvm_in k, kvm_in v, kvm_in dy,
                                   ptrdiff_t first, ptrdiff_t window,
                                   const kvm_mask *mask, double scale, kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    const ptrdiff_t group = q->dim[1] / k->dim[0], d = k->dim[2], e = v->dim[2];
    const ptrdiff_t end = first + q->dim[0];
    double *p = kvm_new_raw(&scratch, double, end);
    double *a = kvm_new_raw(&scratch, double, end);
    double *sum = kvm_new_raw(&scratch, double, d);
    if (!p || !a || !sum) return kvm_nomem(err, &scratch);
    for (ptrdiff_t at = 0; at < q->dim[0] * q->dim[1]; at++) {
        const ptrdiff_t t = at / q->dim[1], h = at % q->dim[1], kv = h / group;
        const ptrdiff_t last = first + t;
        const ptrdiff_t from = window > 0 && last >= window ? last - window + 1 : 0;
        const uint64_t *bits = mask ? mask->bits + t * mask->words : NULL;
        const float *query = kvm_head32(q, t, h), *dout = kvm_head32(dy, t, h);
        double top = -HUGE_VAL, total = 0, mean = 0;
        for (ptrdiff_t j = from; j <= last; j++) {
            const double s = scale * dot_of(query, kvm_head32(k, kv, j), d);
            p[j] = looked_at(bits, j) ? s : -HUGE_VAL;
            a[j] = dot_of(dout, kvm_head32(v, kv, j), e);
            top = fmax(top, p[j]);
        }
        for (ptrdiff_t j = from; j <= last; j++) total += p[j] = exp(p[j] - top);
        for (ptrdiff_t j = from; j <= last; j++) mean += (p[j] /= total) * a[j];
        memset(sum, 0, (size_t)d * sizeof *sum);
        for (ptrdiff_t j = from; j <= last; j++) {
            const double ds = scale * p[j] * (a[j] - mean);
            const float *key = kvm_head32(k, kv, j);
            for (ptrdiff_t i = 0; i < d; i++) sum[i] += ds * (double)key[i];
            add_times(kvm_head32(dk, kv, j), ds, query, d);
            add_times(kvm_head32(dv, kv, j), p[j], dout, e);
        }
        for (ptrdiff_t i = 0; i < d; i++) kvm_head32(dq, t, h)[i] = (float)sum[i];
    }
    return KVM_OK;
}

kvm_status kvm_ref__index_score_back(kvm_compute *c, kvm_in dk, kvm_in q, kvm_in k,
                                     kvm_in w, kvm_in dy, double scale, kvm_err *err)
{
    (void)c, (void)err;
    const ptrdiff_t d = k->dim[1];
    for (ptrdiff_t at = 0; at < q->dim[0] * q->dim[1]; at++) {
        const ptrdiff_t t = at / q->dim[1], h = at % q->dim[1];
        const float *query = kvm_head32(q, t, h);
        const double by = scale * (double)kvm_row32(w, t)[h];
        for (ptrdiff_t j = 0; j < k->dim[0]; j++)
            if (scale * dot_of(query, kvm_row32(k, j), d) > 0)
                add_times(kvm_row32(dk, j), by * (double)kvm_row32(dy, t)[j], query, d);
    }
    return KVM_OK;
}

/* of y = g s(g) u, or of y = s(g) u */
static void gated_back(kvm_in dgate, kvm_in dup, kvm_in gate, kvm_in up, kvm_in dy,
                       bool silu)
{
    for (ptrdiff_t t = 0; t < dy->dim[0]; t++) {
        for (ptrdiff_t i = 0; i < dy->dim[1]; i++) {
            const double g = (double)kvm_row32(gate, t)[i];
            const double u = (double)kvm_row32(up, t)[i];
            const double d = (double)kvm_row32(dy, t)[i];
            const double s = 1 / (1 + exp(-g)), slope = s / (1 + exp(g));
            kvm_row32(dgate, t)[i] = (float)(d * u * (silu ? s + g * slope : slope));
            kvm_row32(dup, t)[i] = (float)(d * (silu ? g * s : s));
        }
    }
}

kvm_status kvm_ref__silu_mul_back(kvm_compute *c, kvm_in dgate, kvm_in dup, kvm_in gate,
                                  kvm_in up, kvm_in dy, kvm_err *err)
{
    (void)c, (void)err;
    gated_back(dgate, dup, gate, up, dy, true);
    return KVM_OK;
}

kvm_status kvm_ref__sigmoid_mul_back(kvm_compute *c, kvm_in dgate, kvm_in dup,
                                     kvm_in gate, kvm_in up, kvm_in dy, kvm_err *err)
{
    (void)c, (void)err;
    gated_back(dgate, dup, gate, up, dy, false);
    return KVM_OK;
}

kvm_status kvm_ref__relu2_back(kvm_compute *c, kvm_in dx, kvm_in x, kvm_in dy,
                               kvm_err *err)
{
    (void)c, (void)err;
    for (ptrdiff_t t = 0; t < dx->dim[0]; t++)
        for (ptrdiff_t i = 0; i < dx->dim[1]; i++)
            kvm_row32(dx, t)[i] = (float)(2 * fmax((double)kvm_row32(x, t)[i], 0) *
                                          (double)kvm_row32(dy, t)[i]);
    return KVM_OK;
}

static double log_sum_exp(const float *x, ptrdiff_t n)
{
    double top = -HUGE_VAL, sum = 0;
    for (ptrdiff_t i = 0; i < n; i++) top = fmax(top, (double)x[i]);
    for (ptrdiff_t i = 0; i < n; i++) sum += exp((double)x[i] - top);
    return top + log(sum);
}

kvm_status kvm_ref__kl_back(kvm_compute *c, double *kl, kvm_in logits, kvm_in native,
                            double by, kvm_err *err)
{
    (void)c, (void)err;
    const ptrdiff_t n = logits->dim[1];
    for (ptrdiff_t t = 0; t < logits->dim[0]; t++) {
        float *x = kvm_row32(logits, t);
        const float *p = kvm_row32(native, t);
        const double all_x = log_sum_exp(x, n), all_p = log_sum_exp(p, n);
        double sum = 0;
        for (ptrdiff_t i = 0; i < n; i++) {
            const double lp = (double)p[i] - all_p, lx = (double)x[i] - all_x;
            sum += exp(lp) * (lp - lx);
            x[i] = (float)(by * (exp(lx) - exp(lp)));
        }
        kl[t] = sum;
    }
    return KVM_OK;
}
