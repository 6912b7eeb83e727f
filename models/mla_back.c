/* mla_back.c - the way back through latent attention (models/mla.c), in its absorbed
 * form: of a few queries over many tokens, which a distillation has, it is the cheaper
 * one. */
#include "models/mla_internal.h"

#include <string.h>

size_t kvm_mla__backward_scratch(const kvm_layer *l, ptrdiff_t first, ptrdiff_t n)
{
    const mla *a = mla_of(l);
    return 2 * kvm_step_rows_bytes(n, a->size.query_rank) +
           2 * kvm_step_rows_bytes(n, mla_row_size(a)) +
           2 * kvm_step_rows_bytes(n, a->heads * mla_row_size(a)) +
           kvm_step_rows_bytes(n, a->heads * mla_key_size(a)) +
           kvm_step_rows_bytes(n, a->heads * a->size.value) +
           kvm_step_rows_bytes(n, a->heads * a->size.rank) +
           kvm_step_rows_bytes(first + n, a->size.rank);
}

static kvm_status rotate_back(const mla *a, kvm_compute *c, kvm_tensor heads,
                              const int32_t *pos, kvm_err *err)
{
    return kvm_op_rope_back(c, heads, pos, &a->rope, err);
}

static kvm_status norm_back(const mla *a, kvm_compute *c, kvm_tensor dx, kvm_tensor x,
                            float *w, kvm_err *err)
{
    const ptrdiff_t n = x.dim[1];
    return kvm_op_rmsnorm_back(c, dx, x, kvm_view1(w, KVM_F32, n), dx, n, a->inner_eps,
                               false, false, err);
}

/* what the step's own rows, whose gradients lie in the slots, owe to x */
static kvm_status append_back(const mla *a, const kvm_step *s, kvm_tensor x,
                              kvm_tensor dx, kvm_arena temp, kvm_err *err)
{
    const kvm_slot *grad = &s->grads[a->base.first_object];
    const ptrdiff_t row = mla_row_size(a), rank = a->size.rank;
    const kvm_tensor d =
        kvm_view2(grad->rows + s->first * grad->stride, KVM_F32, s->n, row);
    kvm_tensor raw = kvm_step_rows(&temp, s->n, row);
    if (!raw.data) return kvm_nomem(err, &temp);
    TRY(kvm_op_linear(s->compute, raw, x, a->kv_a, false, err));
    TRY(norm_back(a, s->compute, kvm_columns(d, 0, rank), kvm_columns(raw, 0, rank),
                  a->kv_norm, err));
    TRY(rotate_back(a, s->compute, kvm_heads(d, rank, 1, a->size.rope, 0), s->pos,
                    err));
    return kvm_op_linear_back(s->compute, dx, d, a->kv_a, true, err);
}

/* dz (n, heads * value), the gradient by what Wo is given -> dwide by the absorbed
 * queries; the cached rows' to grads */
static kvm_status attend_back(const mla *a, const kvm_step *s, kvm_tensor wide,
                              kvm_tensor dz, kvm_tensor dwide, kvm_arena temp,
                              kvm_err *err)
{
    const ptrdiff_t tokens = s->first + s->n, row = mla_row_size(a);
    const ptrdiff_t rank = a->size.rank, value = a->size.value;
    float *grad = s->grads[a->base.first_object].rows;
    kvm_tensor dsums = kvm_step_rows(&temp, s->n, a->heads * rank);
    float *dv = kvm_new_raw(&temp, float, tokens *rank);
    if (!dsums.data || !dv) return kvm_nomem(err, &temp);
    memset(dv, 0, (size_t)(tokens * rank) * sizeof *dv);
    for (ptrdiff_t h = 0; h < a->heads; h++)
        TRY(kvm_op_linear_back(s->compute, kvm_columns(dsums, h * rank, rank),
                               kvm_columns(dz, h * value, value), a->v[h], false, err));
    const kvm_tensor rows = kvm_mla__cached(a, s);
    const kvm_tensor k = kvm_view3(rows.data, KVM_F32, 1, tokens, row);
    kvm_tensor v = k;
    v.dim[2] = rank;
    TRY(kvm_step_attend_back(
        s, a->chooses, kvm_heads(dwide, 0, a->heads, row, row),
        kvm_view3(grad, KVM_F32, 1, tokens, row),
        kvm_view3(dv, KVM_F32, 1, tokens, rank), kvm_heads(wide, 0, a->heads, row, row),
        k, v, kvm_heads(dsums, 0, a->heads, rank, rank), 0, a->scale, err));
    for (ptrdiff_t t = 0; t < tokens; t++) /* latents are keys and values */
        for (ptrdiff_t i = 0; i < rank; i++) grad[t * row + i] += dv[t * rank + i];
    return KVM_OK;
}

/* dq (n, heads * (nope + rope)) by rotated queries -> dx += */
static kvm_status ask_back(const mla *a, const kvm_step *s, kvm_tensor dq, kvm_tensor x,
                           kvm_tensor dx, kvm_arena temp, kvm_err *err)
{
    TRY(rotate_back(
        a, s->compute,
        kvm_heads(dq, a->size.nope, a->heads, a->size.rope, mla_key_size(a)), s->pos,
        err));
    if (!a->q_a) return kvm_op_linear_back(s->compute, dx, dq, a->q, true, err);
    kvm_tensor raw = kvm_step_rows(&temp, s->n, a->size.query_rank);
    kvm_tensor dlow = kvm_step_rows(&temp, s->n, a->size.query_rank);
    if (!raw.data || !dlow.data) return kvm_nomem(err, &temp);
    TRY(kvm_op_linear(s->compute, raw, x, a->q_a, false, err));
    TRY(kvm_op_linear_back(s->compute, dlow, dq, a->q, false, err));
    TRY(norm_back(a, s->compute, dlow, raw, a->q_norm, err));
    return kvm_op_linear_back(s->compute, dx, dlow, a->q_a, true, err);
}

static kvm_status queries_back(const mla *a, const kvm_step *s, kvm_tensor x,
                               kvm_tensor dy, kvm_tensor dx, kvm_arena temp,
                               kvm_err *err)
{
    const ptrdiff_t n = s->n, row = mla_row_size(a), key = mla_key_size(a);
    kvm_tensor q = kvm_step_rows(&temp, n, a->heads * key), low = x;
    kvm_tensor dz = kvm_step_rows(&temp, n, a->heads * a->size.value);
    kvm_tensor wide = kvm_step_rows(&temp, n, a->heads * row);
    kvm_tensor dwide = kvm_step_rows(&temp, n, a->heads * row);
    if (!q.data || !dz.data || !wide.data || !dwide.data) return kvm_nomem(err, &temp);
    kvm_arena rest = temp;
    TRY(kvm_mla__lower(a, s, &low, &rest, err));
    TRY(kvm_mla__ask(a, s, low, s->pos, q, err));
    TRY(kvm_mla__absorb(a, s, q, wide, err));
    TRY(kvm_op_linear_back(s->compute, dz, dy, a->o, false, err));
    TRY(attend_back(a, s, wide, dz, dwide, temp, err));
    const kvm_tensor dq = q; /* which is needed no more */
    for (ptrdiff_t h = 0; h < a->heads; h++)
        TRY(kvm_op_linear_back(s->compute, kvm_columns(dq, h * key, a->size.nope),
                               kvm_columns(dwide, h * row, a->size.rank), a->kt[h],
                               false, err));
    kvm_mla__copy_heads(a, dq, a->size.nope, key, dwide, a->size.rank, row,
                        a->size.rope);
    return ask_back(a, s, dq, x, dx, temp, err);
}

kvm_status kvm_mla__backward(const kvm_layer *l, const kvm_step *s, kvm_tensor x,
                             kvm_tensor dy, kvm_tensor dx, kvm_err *err)
{
    const mla *a = mla_of(l);
    TRY(queries_back(a, s, x, dy, dx, s->scratch, err));
    return append_back(a, s, x, dx, s->scratch, err);
}

kvm_status kvm_mla__pull(const kvm_layer *l, kvm_compute *c, ptrdiff_t which, int point,
                         const int32_t *pos, ptrdiff_t n, const float *rows,
                         float *grad, kvm_err *err)
{
    const mla *a = mla_of(l);
    const ptrdiff_t rank = a->size.rank, rope = a->size.rope;
    if (which >= mla_index_object(&a->size))
        return kvm_indexer_pull(a->index, which - mla_index_object(&a->size), c, point,
                                pos, n, rows, grad, err);
    if (which == OBJECT_ROTARY)
        return rotate_back(a, c, kvm_view3(grad, KVM_F32, n, 1, rope), pos, err);
    if (point != KVM_POINT_RAW) return KVM_OK;
    return norm_back(a, c, kvm_view2(grad, KVM_F32, n, rank),
                     kvm_view2_const(rows, KVM_F32, n, rank), a->kv_norm, err);
}
