#include "translators/states.h"

#include <string.h>

#include "translators/translator_internal.h"

/* ---- geometry ---- */

static kvm_row_shape shape_of(const kvm_shapes *s, kvm_space space, ptrdiff_t layer)
{
    return s->of[space] && layer >= 0 && layer < s->layers ? s->of[space][layer]
                                                           : (kvm_row_shape){0};
}

kvm_status kvm_states_same(const kvm_shapes *source, ptrdiff_t source_layer,
                           const kvm_shapes *target, ptrdiff_t target_layer,
                           kvm_err *err)
{
    static const kvm_space spaces[] = {KVM_SPACE_STATE, KVM_SPACE_WINDOW};
    for (int i = 0; i < 2; i++) {
        const kvm_row_shape a = shape_of(source, spaces[i], source_layer);
        const kvm_row_shape b = shape_of(target, spaces[i], target_layer);
        const bool whole = spaces[i] != KVM_SPACE_STATE || a.keys > 0; /* a matrix */
        if (a.heads > 0 && whole && a.heads == b.heads && a.dim == b.dim &&
            a.keys == b.keys)
            continue;
        return kvm_fail(
            err, KVM_MISMATCH,
            "the %s of source layer %td has %td heads of %td (%td keys), that "
            "of target layer %td %td of %td (%td): it cannot be copied; "
            "states: replay lets the target's own recurrence make it",
            kvm_space_name(spaces[i]), source_layer, a.heads, a.dim, a.keys,
            target_layer, b.heads, b.dim, b.keys);
    }
    return KVM_OK;
}

ptrdiff_t kvm_states_block(kvm_row_shape state)
{
    ptrdiff_t a = state.keys, b = state.dim / state.keys;
    while (b) {
        const ptrdiff_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

static bool is_cube(const kvm_tensor *t, ptrdiff_t n, ptrdiff_t side)
{
    return t->rank == 3 && t->dim[0] == n && t->dim[1] == side && t->dim[2] == side;
}

kvm_status kvm_states__check(const kvm_translator *t, ptrdiff_t i, kvm_err *err)
{
    const kvm_state_step *s = &t->states[i];
    const kvm_row_shape state = shape_of(&t->target.shapes, KVM_SPACE_STATE, s->layer);
    const kvm_row_shape window =
        shape_of(&t->target.shapes, KVM_SPACE_WINDOW, s->layer);
    if (state.heads == 0 || window.heads == 0 || state.keys < 1 ||
        (i > 0 && t->states[i - 1].layer >= s->layer))
        return kvm_fail(
            err, KVM_MISMATCH,
            "state step %td is of layer %td, which keeps no state, or comes "
            "out of order",
            i, s->layer);
    if (s->map == KVM_STATE_ZERO) return KVM_OK;
    TRY(kvm_states_same(&t->source.shapes, s->source, &t->target.shapes, s->layer,
                        err));
    if (s->map == KVM_STATE_COPY) return KVM_OK;
    const ptrdiff_t d = kvm_states_block(state);
    if (s->map == KVM_STATE_BILINEAR && is_cube(&s->left, state.heads, state.keys) &&
        is_cube(&s->right, state.heads, state.dim / state.keys) &&
        window.heads % d == 0 && is_cube(&s->window, window.heads / d, d) && s->bias)
        return KVM_OK;
    return kvm_fail(
        err, KVM_SHAPE,
        "state step of layer %td: its maps do not fit %td heads of (%td,%td) "
        "and %td channels",
        s->layer, state.heads, state.keys, state.dim / state.keys, window.heads);
}

/* ---- applying ---- */

/* W x + b of each block of channels, in every column alike */
static kvm_status correct_window(kvm_compute *c, const kvm_state_step *s,
                                 kvm_row_shape window, const float *from, float *to,
                                 kvm_err *err)
{
    const ptrdiff_t blocks = s->window.dim[0], d = s->window.dim[1], w = window.dim;
    for (ptrdiff_t i = 0; i < blocks * d; i++)
        for (ptrdiff_t t = 0; t < w; t++) to[i * w + t] = s->bias[i];
    for (ptrdiff_t b = 0; b < blocks; b++)
        TRY(kvm_op_gemm32(c, kvm_view2(to + b * d * w, KVM_F32, d, w),
                          kvm_view2((float *)s->window.data + b * d * d, KVM_F32, d, d),
                          false, kvm_view2_const(from + b * d * w, KVM_F32, d, w),
                          false, 1, err));
    return KVM_OK;
}

kvm_status kvm_states_apply(kvm_compute *c, const kvm_state_step *s,
                            kvm_row_shape state, kvm_row_shape window,
                            const float *from, const float *from_window, float *to,
                            float *to_window, float *temp, kvm_err *err)
{
    const size_t bytes = sizeof *to * (size_t)(state.heads * state.dim);
    const size_t window_bytes = sizeof *to * (size_t)(window.heads * window.dim);
    if (s->map == KVM_STATE_ZERO) {
        memset(to, 0, bytes);
        memset(to_window, 0, window_bytes);
        return KVM_OK;
    }
    if (s->map == KVM_STATE_COPY) {
        memcpy(to, from, bytes);
        memcpy(to_window, from_window, window_bytes);
        return KVM_OK;
    }
    const ptrdiff_t k = state.keys, v = state.dim / k;
    for (ptrdiff_t h = 0; h < state.heads; h++) {
        const kvm_tensor left =
            kvm_view2((float *)s->left.data + h * k * k, KVM_F32, k, k);
        const kvm_tensor right =
            kvm_view2((float *)s->right.data + h * v * v, KVM_F32, v, v);
        const kvm_tensor mid = kvm_view2(temp, KVM_F32, k, v);
        TRY(kvm_op_gemm32(c, mid, left, false,
                          kvm_view2_const(from + h * k * v, KVM_F32, k, v), false, 0,
                          err));
        TRY(kvm_op_gemm32(c, kvm_view2(to + h * k * v, KVM_F32, k, v), mid, false,
                          right, false, 0, err));
    }
    return correct_window(c, s, window, from_window, to_window, err);
}
