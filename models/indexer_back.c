/* indexer_back.c - an indexer's scores for a loss of their own, and the way back from
 * them to its keys (models/indexer.c). Queries are constants: what they ask is the
 * model's, and the keys are what was injected. */
#include "models/indexer_internal.h"

#include <string.h>

ptrdiff_t kvm_indexer_heads(const kvm_indexer *i)
{
    return i->size.heads;
}

size_t kvm_indexer_scores_scratch(const kvm_indexer *i, ptrdiff_t tokens)
{
    const ptrdiff_t units = tokens / i->size.block + 1;
    return 2 * kvm_step_rows_bytes(units, i->size.dim) + kvm_step_rows_bytes(units, 1) +
           kvm_step_rows_bytes(512, 1);
}

static kvm_tensor queries(const kvm_indexer *i, const kvm_step *s, const kvm_asked *a)
{
    return kvm_view3(a->q, KVM_F32, s->n, i->size.heads, i->size.dim);
}

static kvm_tensor weights(const kvm_indexer *i, const kvm_step *s, const kvm_asked *a)
{
    return kvm_view2(a->w, KVM_F32, s->n, i->size.heads);
}

kvm_status kvm_indexer_scores(const kvm_indexer *i, const kvm_step *s, ptrdiff_t object,
                              const kvm_asked *asked, kvm_tensor scores, kvm_err *err)
{
    kvm_tensor units;
    TRY(kvm_indexer__units(i, s, object, &units, s->scratch, err));
    return kvm_op_index_score(s->compute, scores, queries(i, s, asked), units,
                              weights(i, s, asked), indexer_scale(i), err);
}

/* a unit of tokens from .. -> d (dim) by it to those of them that stand before the
 * step: each the same share */
static void mean_back(const kvm_indexer *i, const kvm_slot *grad, ptrdiff_t from,
                      ptrdiff_t end, const float *d)
{
    const float share = 1 / (float)i->size.block;
    for (ptrdiff_t t = from; t < end; t++)
        for (ptrdiff_t j = 0; j < i->size.dim; j++)
            grad->rows[t * grad->stride + j] += share * d[j];
}

/* the same by a pool: per channel p = softmax(z + a); dk = p d, dz = p (k - pool) d */
static void pool_back(const kvm_indexer *i, const kvm_step *s, ptrdiff_t object,
                      ptrdiff_t from, ptrdiff_t end, const float *pool, const float *d)
{
    const ptrdiff_t dim = i->size.dim, block = i->size.block;
    const float *keys = s->slots[object].rows + from * dim;
    const float *gates = s->slots[object + 1].rows + from * dim;
    float *dk = s->grads[object].rows + from * dim;
    float *dz = s->grads[object + 1].rows + from * dim;
    for (ptrdiff_t j = 0; j < dim; j++) {
        float top = -INFINITY, sum = 0;
        for (ptrdiff_t t = j; t < block * dim; t += dim)
            top = fmaxf(top, gates[t] + i->places[t]);
        for (ptrdiff_t t = j; t < block * dim; t += dim)
            sum += expf(gates[t] + i->places[t] - top);
        for (ptrdiff_t t = j; t < (end - from) * dim; t += dim) {
            const float p = expf(gates[t] + i->places[t] - top) / sum;
            dk[t] += p * d[j];
            dz[t] += p * (keys[t] - pool[j]) * d[j];
        }
    }
}

/* d (units, dim) by blocks -> by the means of their keys, in place; means: room */
static kvm_status blocks_back(const kvm_indexer *i, const kvm_step *s, ptrdiff_t object,
                              kvm_tensor d, kvm_tensor means, int32_t *pos,
                              kvm_err *err)
{
    const ptrdiff_t dim = i->size.dim, block = i->size.block;
    const kvm_slot *slot = &s->slots[object];
    memset(means.data, 0, (size_t)kvm_tensor_count(&means) * sizeof(float));
    for (ptrdiff_t b = 0; b < d.dim[0]; b++) {
        float *to = (float *)means.data + b * dim;
        pos[b] = (int32_t)(b * block);
        for (ptrdiff_t t = b * block; t < (b + 1) * block; t++)
            for (ptrdiff_t j = 0; j < dim; j++)
                to[j] += slot->rows[t * slot->stride + j] / (float)block;
    }
    TRY(kvm_op_rope_back(s->compute, kvm_heads(d, 0, 1, dim, dim), pos, &i->rope, err));
    return kvm_op_rmsnorm_back(s->compute, d, means, kvm_view1(i->norm, KVM_F32, dim),
                               d, dim, i->eps, false, false, err);
}

kvm_status kvm_indexer_scores_back(const kvm_indexer *i, const kvm_step *s,
                                   ptrdiff_t object, const kvm_asked *asked,
                                   kvm_tensor dscores, kvm_err *err)
{
    kvm_arena temp = s->scratch;
    const ptrdiff_t dim = i->size.dim, block = i->size.block, n = dscores.dim[1];
    const kvm_slot *grad = &s->grads[object];
    kvm_tensor units;
    TRY(kvm_indexer__units(i, s, object, &units, temp, err));
    const kvm_tensor d = kvm_step_rows(&temp, n, dim);
    const kvm_tensor means = kvm_step_rows(&temp, n, dim);
    int32_t *pos = kvm_new_raw(&temp, int32_t, n);
    if (!d.data || !means.data || !pos) return kvm_nomem(err, &temp);
    memset(d.data, 0, (size_t)kvm_tensor_count(&d) * sizeof(float));
    TRY(kvm_op_index_score_back(s->compute, d, queries(i, s, asked), units,
                                weights(i, s, asked), dscores, indexer_scale(i), err));
    if (indexer_is_late(&i->size)) TRY(blocks_back(i, s, object, d, means, pos, err));
    for (ptrdiff_t b = 0; b < n && b * block < s->first; b++) {
        const ptrdiff_t from = b * block;
        const ptrdiff_t end = from + block < s->first ? from + block : s->first;
        const float *by = (const float *)d.data + b * dim;
        if (i->gate)
            pool_back(i, s, object, from, end, (const float *)units.data + b * dim, by);
        else
            mean_back(i, grad, from, end, by);
    }
    return KVM_OK;
}

/* of y = (x - mean) / deviation * w + b */
static void layer_norm_back(const kvm_indexer *i, const float *x, float *d, ptrdiff_t n)
{
    const ptrdiff_t dim = i->size.dim;
    for (ptrdiff_t t = 0; t < n; t++, x += dim, d += dim) {
        double mean = 0, square = 0, sum = 0, dot = 0;
        for (ptrdiff_t j = 0; j < dim; j++) mean += (double)x[j] / (double)dim;
        for (ptrdiff_t j = 0; j < dim; j++) {
            const double off = (double)x[j] - mean;
            const double g = (double)d[j] * (double)i->norm[j];
            square += off * off / (double)dim;
            sum += g / (double)dim;
            dot += g * off / (double)dim;
        }
        const double by = 1 / sqrt(square + KVM_INDEX_NORM_EPS);
        for (ptrdiff_t j = 0; j < dim; j++) {
            const double off = (double)x[j] - mean;
            const double g = (double)d[j] * (double)i->norm[j];
            d[j] = (float)(by * (g - sum - off * by * by * dot));
        }
    }
}

kvm_status kvm_indexer_pull(const kvm_indexer *i, ptrdiff_t which, kvm_compute *c,
                            int point, const int32_t *pos, ptrdiff_t n,
                            const float *rows, float *grad, kvm_err *err)
{
    if (which > 0 || point == KVM_POINT_ENGINE || indexer_is_late(&i->size))
        return KVM_OK;
    TRY(kvm_op_rope_back(c, kvm_view3(grad, KVM_F32, n, 1, i->size.dim), pos, &i->rope,
                         err));
    if (point == KVM_POINT_RAW) layer_norm_back(i, rows, grad, n);
    return KVM_OK;
}
