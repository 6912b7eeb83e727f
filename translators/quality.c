#include "translators/quality.h"

#include <math.h>
#include <string.h>

enum { QUERY_ROWS = 64 };

static ptrdiff_t visible(const kvm_quality_input *in, ptrdiff_t t, ptrdiff_t *from)
{
    const ptrdiff_t end = in->first + t + 1;
    *from = in->window > 0 && end > in->window ? end - in->window : 0;
    return end;
}

/* rows of one head of (rows, heads*dim) */
static kvm_tensor head_view(const float *x, ptrdiff_t rows, ptrdiff_t heads,
                            ptrdiff_t dim, ptrdiff_t h)
{
    kvm_tensor t = kvm_view2_const(x + h * dim, KVM_F32, rows, dim);
    t.stride[0] = heads * dim;
    return t;
}

static double scale_of(const kvm_quality_input *in)
{
    return in->scale > 0 ? in->scale : 1 / sqrt((double)in->dim);
}

/* ---- attention output ---- */

static kvm_status attend(kvm_compute *c, const kvm_quality_input *in, const float *k,
                         const float *v, float *y, kvm_err *err)
{
    kvm_tensor q = kvm_view3(NULL, KVM_F32, in->n, in->query_heads, in->dim);
    kvm_tensor kt = kvm_view3(NULL, KVM_F32, in->kv_heads, in->context, in->dim);
    kvm_tensor vt = kvm_view3(NULL, KVM_F32, in->kv_heads, in->context, in->value_dim);
    q.data = kvm_view2_const(in->q, KVM_F32, 1, 1).data;
    kt.data = kvm_view2_const(k, KVM_F32, 1, 1).data;
    vt.data = kvm_view2_const(v, KVM_F32, 1, 1).data;
    kt.stride[0] = in->dim;
    kt.stride[1] = in->kv_heads * in->dim;
    vt.stride[0] = in->value_dim;
    vt.stride[1] = in->kv_heads * in->value_dim;
    return kvm_op_attention(
        c, kvm_view3(y, KVM_F32, in->n, in->query_heads, in->value_dim), q, kt, vt,
        in->first, in->window, scale_of(in), err);
}

static kvm_status cosines(kvm_compute *c, const kvm_quality_input *in, kvm_quality *out,
                          kvm_arena scratch, kvm_err *err)
{
    const ptrdiff_t d = in->value_dim, width = in->query_heads * d;
    float *a = kvm_new_raw(&scratch, float, in->n *width);
    float *b = kvm_new_raw(&scratch, float, in->n *width);
    if (!a || !b) return kvm_nomem(err, &scratch);
    TRY(attend(c, in, in->k, in->v, a, err));
    TRY(attend(c, in, in->k_map, in->v_map, b, err));
    out->cosine_worst = HUGE_VAL;
    for (ptrdiff_t h = 0; h < in->query_heads; h++) {
        double sum = 0;
        for (ptrdiff_t t = 0; t < in->n; t++) {
            const float *x = a + t * width + h * d, *y = b + t * width + h * d;
            double xx = 0, yy = 0, xy = 0;
            for (ptrdiff_t i = 0; i < d; i++) {
                xx += (double)x[i] * (double)x[i];
                yy += (double)y[i] * (double)y[i];
                xy += (double)x[i] * (double)y[i];
            }
            sum += xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : xx == yy;
        }
        const double mean = sum / (double)in->n;
        out->cosine += mean / (double)in->query_heads;
        if (!(mean >= out->cosine_worst)) out->cosine_worst = mean;
    }
    return KVM_OK;
}

/* ---- concentration of the error ---- */

/* sum_j |Q e_j|^2 = <Q^T Q, E^T E>: both are D x D */
static kvm_status concentrate_keys(kvm_compute *c, const kvm_quality_input *in,
                                   const float *e, kvm_quality *out, kvm_arena scratch,
                                   kvm_err *err)
{
    const ptrdiff_t d = in->dim, group = in->query_heads / in->kv_heads;
    double *qq = kvm_new(&scratch, double, d *d), *ee = kvm_new(&scratch, double, d *d);
    if (!qq || !ee) return kvm_nomem(err, &scratch);
    for (ptrdiff_t h = 0; h < in->query_heads; h++) {
        memset(qq, 0, sizeof *qq * (size_t)(d * d));
        TRY(kvm_op_gram(c, kvm_view2(qq, KVM_F64, d, d),
                        head_view(in->q, in->n, in->query_heads, d, h), err));
        if (h % group == 0) {
            memset(ee, 0, sizeof *ee * (size_t)(d * d));
            TRY(kvm_op_gram(c, kvm_view2(ee, KVM_F64, d, d),
                            head_view(e, in->context, in->kv_heads, d, h / group),
                            err));
        }
        double both = 0, error = 0, query = 0;
        for (ptrdiff_t i = 0; i < d * d; i++) both += qq[i] * ee[i];
        for (ptrdiff_t i = 0; i < d; i++) {
            error += ee[i * d + i];
            query += qq[i * d + i];
        }
        if (!(error > 0) || !(query > 0)) continue;
        const double raw = (double)d * both / error;
        out->c_k_raw += raw / (double)in->query_heads;
        out->c_k += raw / query / (double)in->query_heads;
    }
    return KVM_OK;
}

/* softmax of QUERY_ROWS rows of scores; per row sum a^2 |e|^2 and sum a^2 */
typedef struct weigh_job {
    const kvm_quality_input *in;
    const float *scores;       /* (rows, context), not yet scaled */
    const double *error;       /* (context) |e_j|^2 */
    ptrdiff_t first;           /* query of row 0 */
    double *weighted, *square; /* (rows) */
} weigh_job;

static void weigh_row(void *ctx, ptrdiff_t r, int thread)
{
    (void)thread;
    const weigh_job *j = ctx;
    const float *s = j->scores + r * j->in->context;
    const double scale = scale_of(j->in);
    ptrdiff_t from;
    const ptrdiff_t end = visible(j->in, j->first + r, &from);
    double top = -HUGE_VAL, total = 0, weighted = 0, square = 0;
    for (ptrdiff_t k = from; k < end; k++)
        if ((double)s[k] > top) top = (double)s[k];
    for (ptrdiff_t k = from; k < end; k++) {
        const double a = exp(((double)s[k] - top) * scale);
        total += a;
        square += a * a;
        weighted += a * a * j->error[k];
    }
    j->weighted[r] = weighted / (total * total);
    j->square[r] = square / (total * total);
}

static kvm_status concentrate_values(kvm_compute *c, const kvm_quality_input *in,
                                     const float *e, kvm_quality *out,
                                     kvm_arena scratch, kvm_err *err)
{
    const ptrdiff_t d = in->value_dim, group = in->query_heads / in->kv_heads;
    float *scores = kvm_new_raw(&scratch, float, QUERY_ROWS * in->context);
    double *error = kvm_new(&scratch, double, in->context);
    if (!scores || !error) return kvm_nomem(err, &scratch);
    for (ptrdiff_t h = 0; h < in->query_heads; h++) {
        double mean = 0, raw = 0, even = 0;
        for (ptrdiff_t j = 0; j < in->context; j++) {
            const float *row = e + (j * in->kv_heads + h / group) * d;
            error[j] = 0;
            for (ptrdiff_t i = 0; i < d; i++)
                error[j] += (double)row[i] * (double)row[i];
            mean += error[j] / (double)in->context;
        }
        if (!(mean > 0)) continue;
        for (ptrdiff_t t = 0; t < in->n; t += QUERY_ROWS) {
            const ptrdiff_t rows = in->n - t < QUERY_ROWS ? in->n - t : QUERY_ROWS;
            double weighted[QUERY_ROWS], square[QUERY_ROWS];
            const kvm_tensor q = head_view(in->q + t * in->query_heads * in->dim, rows,
                                           in->query_heads, in->dim, h);
            TRY(kvm_op_gemm32(
                c, kvm_view2(scores, KVM_F32, rows, in->context), q, false,
                head_view(in->k, in->context, in->kv_heads, in->dim, h / group), true,
                0, err));
            weigh_job j = {in, scores, error, t, weighted, square};
            kvm_pool_run(kvm_compute_pool(c), rows, weigh_row, &j);
            for (ptrdiff_t r = 0; r < rows; r++) {
                raw += weighted[r] / (double)in->context;
                even += weighted[r] / square[r];
            }
        }
        const double queries = (double)in->n * (double)in->query_heads;
        out->c_v_raw += raw * (double)d / mean / queries;
        out->c_v += even / mean / queries;
    }
    return KVM_OK;
}

/* ---- plain errors ---- */

/* e = mapped - true; gives R2, mean over heads. KVM_NAN when not finite. */
static kvm_status residual(const float *x, const float *mapped, ptrdiff_t rows,
                           ptrdiff_t heads, ptrdiff_t dim, const char *what, float *e,
                           double *r2, kvm_arena scratch, kvm_err *err)
{
    const ptrdiff_t width = heads * dim;
    double *mean = kvm_new(&scratch, double, width);
    double *error = kvm_new(&scratch, double, width);
    double *total = kvm_new(&scratch, double, width);
    if (!mean || !error || !total) return kvm_nomem(err, &scratch);
    for (ptrdiff_t i = 0; i < rows * width; i++)
        mean[i % width] += (double)x[i] / (double)rows;
    for (ptrdiff_t i = 0; i < rows * width; i++) {
        const double d = (double)x[i] - mean[i % width];
        e[i] = mapped[i] - x[i];
        error[i % width] += (double)e[i] * (double)e[i];
        total[i % width] += d * d;
    }
    *r2 = 0;
    for (ptrdiff_t h = 0; h < heads; h++) {
        double a = 0, b = 0;
        for (ptrdiff_t i = h * dim; i < (h + 1) * dim; i++) {
            a += error[i];
            b += total[i];
        }
        if (!isfinite(a) || !isfinite(b))
            return kvm_fail(err, KVM_NAN, "%s of head %td are not finite", what, h);
        *r2 += (b > 0 ? 1 - a / b : a == 0) / (double)heads;
    }
    return KVM_OK;
}

/* ---- a layer ---- */

static kvm_status check(const kvm_quality_input *in, kvm_err *err)
{
    if (in->n < 1 || in->context < 1 || in->dim < 1 || in->value_dim < 1 ||
        in->kv_heads < 1 || in->query_heads < 1 || in->query_heads % in->kv_heads ||
        in->first < 0 || in->first > in->context - in->n || in->window < 0)
        return kvm_fail(err, KVM_SHAPE,
                        "quality of %td queries from position %td over %td keys, %td "
                        "query heads over %td kv heads",
                        in->n, in->first, in->context, in->query_heads, in->kv_heads);
    return KVM_OK;
}

size_t kvm_quality_bytes(const kvm_quality_input *in)
{
    const size_t c = (size_t)in->context, n = (size_t)in->n;
    const size_t kv = (size_t)(in->kv_heads * (in->dim + in->value_dim));
    const size_t q = (size_t)(in->query_heads * in->value_dim);
    return 4 * (c * kv + 2 * n * q + QUERY_ROWS * c) + 8 * (c + 3 * kv) +
           16 * (size_t)(in->dim * in->dim) + 65536;
}

kvm_status kvm_quality_layer(kvm_compute *c, const kvm_quality_input *in,
                             kvm_quality *out, kvm_arena scratch, kvm_err *err)
{
    TRY(check(in, err));
    kvm_quality q = {0};
    float *ek = kvm_new_raw(&scratch, float, in->context * in->kv_heads * in->dim);
    float *ev =
        kvm_new_raw(&scratch, float, in->context * in->kv_heads * in->value_dim);
    if (!ek || !ev) return kvm_nomem(err, &scratch);
    TRY(residual(in->k, in->k_map, in->context, in->kv_heads, in->dim, "keys", ek,
                 &q.r2_k, scratch, err));
    TRY(residual(in->v, in->v_map, in->context, in->kv_heads, in->value_dim, "values",
                 ev, &q.r2_v, scratch, err));
    TRY(cosines(c, in, &q, scratch, err));
    TRY(concentrate_keys(c, in, ek, &q, scratch, err));
    TRY(concentrate_values(c, in, ev, &q, scratch, err));
    *out = q;
    return KVM_OK;
}

void kvm_quality_add(kvm_quality_sum *s, const kvm_quality *q)
{
    const double worst = s->count > 0 && s->sum.cosine_worst < q->cosine_worst
                             ? s->sum.cosine_worst
                             : q->cosine_worst;
    s->sum.cosine += q->cosine;
    s->sum.c_k += q->c_k;
    s->sum.c_k_raw += q->c_k_raw;
    s->sum.c_v += q->c_v;
    s->sum.c_v_raw += q->c_v_raw;
    s->sum.r2_k += q->r2_k;
    s->sum.r2_v += q->r2_v;
    s->sum.cosine_worst = worst;
    s->count += 1;
}

kvm_quality kvm_quality_mean(const kvm_quality_sum *s)
{
    const double n = s->count > 0 ? s->count : (double)NAN;
    return (kvm_quality){.cosine = s->sum.cosine / n,
                         .cosine_worst = s->count > 0 ? s->sum.cosine_worst : n,
                         .c_k = s->sum.c_k / n,
                         .c_k_raw = s->sum.c_k_raw / n,
                         .c_v = s->sum.c_v / n,
                         .c_v_raw = s->sum.c_v_raw / n,
                         .r2_k = s->sum.r2_k / n,
                         .r2_v = s->sum.r2_v / n};
}
