/* ref_model.c - the forward ops as their definitions say, one loop per index, sums in
 * f64. Slow; every other backend is judged by these. */
#include "kernels/ref.h"

#include <math.h>
#include <string.h>

kvm_status kvm_ref__embed(kvm_compute *c, kvm_in y, const int32_t *ids, kvm_in w,
                          kvm_err *err)
{
    (void)c;
    for (ptrdiff_t t = 0; t < y->dim[0]; t++)
        TRY(kvm_widen_at(kvm_row32(y, t), w, ids[t], 0, w->dim[1], err));
    return KVM_OK;
}

kvm_status kvm_ref__rmsnorm(kvm_compute *c, kvm_in y, kvm_in x, kvm_in w,
                            ptrdiff_t group, double eps, bool plus_one, kvm_err *err)
{
    (void)c, (void)err;
    const float *scale = w->data;
    for (ptrdiff_t t = 0; t < x->dim[0]; t++) {
        const float *from = kvm_row32(x, t);
        float *to = kvm_row32(y, t);
        for (ptrdiff_t g = 0; g < x->dim[1]; g += group) {
            double sum = 0;
            for (ptrdiff_t i = g; i < g + group; i++)
                sum += (double)from[i] * (double)from[i];
            const double r = 1 / sqrt(sum / (double)group + eps);
            for (ptrdiff_t i = g; i < g + group; i++) {
                const double s = (double)scale[i % w->dim[0]] + (plus_one ? 1 : 0);
                to[i] = (float)((double)from[i] * r * s);
            }
        }
    }
    return KVM_OK;
}

kvm_status kvm_ref__linear(kvm_compute *c, kvm_in y, kvm_in x, const kvm_weight *w,
                           bool add, kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    const ptrdiff_t inputs = x->dim[1];
    float *row = kvm_new_raw(&scratch, float, inputs);
    if (!row) return kvm_nomem(err, &scratch);
    for (ptrdiff_t o = 0; o < y->dim[1]; o++) {
        TRY(kvm_widen_at(row, &w->matrix, o, 0, inputs, err));
        for (ptrdiff_t t = 0; t < y->dim[0]; t++) {
            const float *in = kvm_row32(x, t);
            float *out = kvm_row32(y, t) + o;
            double sum = w->bias ? (double)w->bias[o] : 0;
            if (add) sum += (double)*out;
            for (ptrdiff_t i = 0; i < inputs; i++)
                sum += (double)in[i] * (double)row[i];
            *out = (float)sum;
        }
    }
    return KVM_OK;
}

kvm_status kvm_ref__rope(kvm_compute *c, kvm_in x, const int32_t *pos,
                         const kvm_rope *r, bool inverse, kvm_err *err)
{
    (void)c, (void)err;
    const ptrdiff_t pairs = r->width / 2;
    const double size = inverse ? 1 / (double)r->factor : (double)r->factor;
    for (ptrdiff_t t = 0; t < x->dim[0]; t++) {
        for (ptrdiff_t j = 0; j < pairs; j++) {
            const float angle = (float)pos[t] * r->inv_freq[j];
            const double cosine = cos((double)angle) * size;
            const double sine = (inverse ? -1 : 1) * sin((double)angle) * size;
            const ptrdiff_t i0 = r->interleaved ? 2 * j : j;
            const ptrdiff_t i1 = r->interleaved ? 2 * j + 1 : j + pairs;
            for (ptrdiff_t h = 0; h < x->dim[1]; h++) {
                float *head = kvm_row32(x, t) + h * x->stride[1];
                const double a = (double)head[i0], b = (double)head[i1];
                head[i0] = (float)(a * cosine - b * sine);
                head[i1] = (float)(b * cosine + a * sine);
            }
        }
    }
    return KVM_OK;
}

/* row j of head h of a cache (H,C,D), widened */
static kvm_status cache_row(float *out, kvm_in cache, ptrdiff_t h, ptrdiff_t j,
                            kvm_err *err)
{
    const ptrdiff_t at = h * cache->stride[0] + j * cache->stride[1];
    const char *from =
        (const char *)cache->data + at * kvm_dtype_block_bytes(cache->dtype);
    return kvm_widen_row(out, from, cache->dtype, cache->dim[2], err);
}

/* bits NULL: all keys are seen */
static bool is_seen(const uint64_t *bits, ptrdiff_t j)
{
    return !bits || (bits[j / 64] >> j % 64 & 1);
}

/* one query over keys from..last, of those that its bits leave: softmax(scale q.k) v */
static kvm_status attend(float *out, const float *q, kvm_in k, kvm_in v, ptrdiff_t h,
                         ptrdiff_t from, ptrdiff_t last, const uint64_t *bits,
                         double scale, kvm_arena scratch, kvm_err *err)
{
    const ptrdiff_t keys = last - from + 1, dv = v->dim[2];
    double *score = kvm_new_raw(&scratch, double, keys);
    double *sum = kvm_new(&scratch, double, dv);
    float *row = kvm_new_raw(&scratch, float, k->dim[2] > dv ? k->dim[2] : dv);
    if (!score || !sum || !row) return kvm_nomem(err, &scratch);
    double top = -HUGE_VAL, total = 0;
    for (ptrdiff_t j = 0; j < keys; j++) {
        TRY(cache_row(row, k, h, from + j, err));
        double dot = 0;
        for (ptrdiff_t i = 0; i < k->dim[2]; i++) dot += (double)q[i] * (double)row[i];
        score[j] = is_seen(bits, from + j) ? dot * scale : -HUGE_VAL;
        top = fmax(top, score[j]);
    }
    for (ptrdiff_t j = 0; j < keys; j++) {
        const double p = exp(score[j] - top);
        total += p;
        TRY(cache_row(row, v, h, from + j, err));
        for (ptrdiff_t i = 0; i < dv; i++) sum[i] += p * (double)row[i];
    }
    for (ptrdiff_t i = 0; i < dv; i++) out[i] = (float)(sum[i] / total);
    return KVM_OK;
}

kvm_status kvm_ref__attention(kvm_compute *c, kvm_in y, kvm_in q, kvm_in k, kvm_in v,
                              ptrdiff_t first, ptrdiff_t window, const kvm_mask *mask,
                              double scale, kvm_err *err)
{
    const ptrdiff_t group = q->dim[1] / k->dim[0];
    for (ptrdiff_t t = 0; t < q->dim[0]; t++) {
        const ptrdiff_t last = first + t;
        const ptrdiff_t from = window > 0 && last >= window ? last - window + 1 : 0;
        for (ptrdiff_t h = 0; h < q->dim[1]; h++)
            TRY(attend(kvm_row32(y, t) + h * y->stride[1],
                       kvm_row32(q, t) + h * q->stride[1], k, v, h / group, from, last,
                       mask ? mask->bits + t * mask->words : NULL, scale, c->scratch,
                       err));
    }
    return KVM_OK;
}

kvm_status kvm_ref__index_score(kvm_compute *c, kvm_in y, kvm_in q, kvm_in k, kvm_in w,
                                double scale, kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    const ptrdiff_t d = k->dim[1];
    float *key = kvm_new_raw(&scratch, float, d);
    if (!key) return kvm_nomem(err, &scratch);
    for (ptrdiff_t j = 0; j < k->dim[0]; j++) {
        TRY(kvm_widen_row(key, kvm_row(k, j), k->dtype, d, err));
        for (ptrdiff_t t = 0; t < q->dim[0]; t++) {
            double sum = 0;
            for (ptrdiff_t h = 0; h < q->dim[1]; h++) {
                const float *query = kvm_row32(q, t) + h * q->stride[1];
                double dot = 0;
                for (ptrdiff_t i = 0; i < d; i++)
                    dot += (double)query[i] * (double)key[i];
                sum += (double)kvm_row32(w, t)[h] * fmax(0, scale * dot);
            }
            kvm_row32(y, t)[j] = (float)sum;
        }
    }
    return KVM_OK;
}

kvm_status kvm_ref__silu_mul(kvm_compute *c, kvm_in y, kvm_in gate, kvm_in up,
                             kvm_err *err)
{
    (void)c, (void)err;
    for (ptrdiff_t t = 0; t < y->dim[0]; t++) {
        for (ptrdiff_t i = 0; i < y->dim[1]; i++) {
            const double g = (double)kvm_row32(gate, t)[i];
            const double u = (double)kvm_row32(up, t)[i];
            kvm_row32(y, t)[i] = (float)(g / (1 + exp(-g)) * u);
        }
    }
    return KVM_OK;
}

kvm_status kvm_ref__logprob(kvm_compute *c, double *out, kvm_in logits,
                            const int32_t *targets, kvm_err *err)
{
    (void)c, (void)err;
    for (ptrdiff_t t = 0; t < logits->dim[0]; t++) {
        const float *row = kvm_row32(logits, t);
        double top = -HUGE_VAL, sum = 0;
        for (ptrdiff_t i = 0; i < logits->dim[1]; i++) top = fmax(top, (double)row[i]);
        for (ptrdiff_t i = 0; i < logits->dim[1]; i++) sum += exp((double)row[i] - top);
        out[t] = (targets ? (double)row[targets[t]] : 0) - top - log(sum);
    }
    return KVM_OK;
}
