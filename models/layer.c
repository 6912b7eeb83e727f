/* layer.c - what layers of all kinds use: the list of kinds, slots of the cache, views
 * of rows, and what a step hands out. */
#include "models/layer.h"

#include <string.h>

const kvm_layer_kind *const kvm_layer_kinds[] = {
#define X(NAME, name, what) [KVM_LAYER_##NAME] = &kvm_##name,
#include "models/layer_kinds.def"
#undef X
};

kvm_tensor kvm_slot_view(const kvm_slot *s, ptrdiff_t n)
{
    kvm_tensor t = kvm_view3(s->rows, KVM_F32, s->heads, n, s->dim);
    t.stride[0] = s->capacity * s->stride;
    t.stride[1] = s->stride;
    return t;
}

void kvm_slot_put(const kvm_slot *s, ptrdiff_t from, ptrdiff_t n, const float *rows)
{
    for (ptrdiff_t h = 0; h < s->heads; h++) {
        float *to = s->rows + (h * s->capacity + from) * s->stride;
        const float *row = rows + h * s->dim;
        for (ptrdiff_t t = 0; t < n; t++, to += s->stride, row += s->heads * s->dim)
            memcpy(to, row, (size_t)s->dim * sizeof *to);
    }
}

void kvm_slot_get(const kvm_slot *s, ptrdiff_t from, ptrdiff_t n, float *rows)
{
    for (ptrdiff_t h = 0; h < s->heads; h++) {
        const float *at = s->rows + (h * s->capacity + from) * s->stride;
        float *row = rows + h * s->dim;
        for (ptrdiff_t t = 0; t < n; t++, at += s->stride, row += s->heads * s->dim)
            memcpy(row, at, (size_t)s->dim * sizeof *row);
    }
}

kvm_tensor kvm_step_rows(kvm_arena *scratch, ptrdiff_t n, ptrdiff_t width)
{
    return kvm_view2(kvm_new_raw(scratch, float, n *width), KVM_F32, n, width);
}

kvm_status kvm_step_attend(const kvm_step *s, bool chosen, kvm_tensor y, kvm_tensor q,
                           kvm_tensor k, kvm_tensor v, ptrdiff_t window, double scale,
                           kvm_err *err)
{
    const ptrdiff_t first = s->first + s->n - q.dim[0];
    if (!chosen || s->choice->all)
        return kvm_op_attention(s->compute, y, q, k, v, first, window, scale, err);
    const ptrdiff_t words = s->choice->words;
    const kvm_mask mask = {s->choice->bits + (first - s->first) * words, words};
    return kvm_op_attention_some(s->compute, y, q, k, v, first, &mask, scale, err);
}

kvm_status kvm_step_attend_back(const kvm_step *s, bool chosen, kvm_tensor dq,
                                kvm_tensor dk, kvm_tensor dv, kvm_tensor q,
                                kvm_tensor k, kvm_tensor v, kvm_tensor dy,
                                ptrdiff_t window, double scale, kvm_err *err)
{
    const bool all = !chosen || s->choice->all;
    const kvm_mask mask = {all ? NULL : s->choice->bits, all ? 0 : s->choice->words};
    return kvm_op_attention_back(s->compute, dq, dk, dv, q, k, v, dy, s->first,
                                 all ? window : 0, all ? NULL : &mask, scale, err);
}

kvm_tensor kvm_columns(kvm_tensor rows, ptrdiff_t from, ptrdiff_t n)
{
    rows.data = (float *)rows.data + from;
    rows.dim[1] = n;
    return rows;
}

kvm_tensor kvm_last_rows(kvm_tensor rows, ptrdiff_t n)
{
    rows.data = (float *)rows.data + (rows.dim[0] - n) * rows.stride[0];
    rows.dim[0] = n;
    return rows;
}

kvm_tensor kvm_heads(kvm_tensor rows, ptrdiff_t from, ptrdiff_t heads, ptrdiff_t dim,
                     ptrdiff_t apart)
{
    kvm_tensor t =
        kvm_view3((float *)rows.data + from, KVM_F32, rows.dim[0], heads, dim);
    t.stride[0] = rows.stride[0];
    t.stride[1] = apart;
    return t;
}

kvm_status kvm_step_emit(const kvm_step *s, ptrdiff_t object, int point,
                         const float *rows, kvm_err *err)
{
    const kvm_capture *c = s->capture;
    if (!c || !c->rows || !(c->points & 1u << point)) return KVM_OK;
    return c->rows(c->ctx, object, point, s->first, s->n, rows, err);
}

kvm_status kvm_step_emit_state(const kvm_step *s, ptrdiff_t object, kvm_err *err)
{
    const kvm_capture *c = s->capture;
    if (!c || !c->rows || !(c->points & 1u << KVM_POINT_ENGINE)) return KVM_OK;
    return c->rows(c->ctx, object, KVM_POINT_ENGINE, s->first + s->n, 1,
                   s->slots[object].rows, err);
}
