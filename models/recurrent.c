#include "models/recurrent.h"

#include <math.h>

static const double unit_eps = 1e-6; /* beside the sum of squares, not their mean */

ptrdiff_t kvm_recurrent_keys(const kvm_recurrent_config *r)
{
    return r->key_heads * r->key_dim;
}
ptrdiff_t kvm_recurrent_values(const kvm_recurrent_config *r)
{
    return r->value_heads * r->value_dim;
}
ptrdiff_t kvm_recurrent_channels(const kvm_recurrent_config *r)
{
    return 2 * kvm_recurrent_keys(r) + kvm_recurrent_values(r);
}

/* Unit length is an RMS norm: x / sqrt(sum + eps) = rms_{eps/n}(x) / sqrt(n). */
kvm_status kvm_recurrence_of(kvm_recurrence *out, kvm_arena *keep, const kvm_config *c,
                             kvm_err *err)
{
    const ptrdiff_t n = c->recurrent.key_dim;
    const double by = 1 / sqrt((double)n);
    *out = (kvm_recurrence){.size = c->recurrent,
                            .unit_query = kvm_new_raw(keep, float, n),
                            .unit_key = kvm_new_raw(keep, float, n)};
    if (!out->unit_query || !out->unit_key) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i < n; i++) {
        out->unit_key[i] = (float)by;
        out->unit_query[i] = (float)(by * by); /* q / sqrt(K) besides */
    }
    return KVM_OK;
}

ptrdiff_t kvm_recurrent_objects(const kvm_config *c, ptrdiff_t layer,
                                const kvm_rope *rope, kvm_object *out)
{
    (void)rope;
    const kvm_recurrent_config *r = &c->recurrent;
    const ptrdiff_t channels = kvm_recurrent_channels(r);
    out[KVM_RECURRENT_STATE] =
        (kvm_object){.kind = KVM_OBJECT_STATE,
                     .layer = layer,
                     .heads = r->value_heads,
                     .dim = r->key_dim * r->value_dim,
                     .shape = {r->value_heads, r->key_dim, r->value_dim},
                     .replay = c->hidden};
    out[KVM_RECURRENT_WINDOW] = (kvm_object){.kind = KVM_OBJECT_WINDOW,
                                             .layer = layer,
                                             .heads = 1,
                                             .dim = channels * r->window,
                                             .shape = {channels, r->window}};
    return KVM_RECURRENT_OBJECTS;
}

static kvm_status unit(const kvm_recurrence *r, kvm_compute *c, kvm_tensor u,
                       ptrdiff_t from, float *weight, kvm_err *err)
{
    const ptrdiff_t n = r->size.key_dim;
    const kvm_tensor x = kvm_columns(u, from, kvm_recurrent_keys(&r->size));
    return kvm_op_rmsnorm(c, x, x, kvm_view1(weight, KVM_F32, n), n,
                          unit_eps / (double)n, false, err);
}

kvm_status kvm_recur(const kvm_recurrence *r, const kvm_layer *l, const kvm_step *s,
                     kvm_tensor u, kvm_tensor decay, kvm_tensor beta, kvm_tensor o,
                     kvm_err *err)
{
    const kvm_recurrent_config *z = &r->size;
    const kvm_slot *slot = &s->slots[l->first_object];
    const ptrdiff_t keys = kvm_recurrent_keys(z), channels = kvm_recurrent_channels(z);
    const kvm_tensor conv = kvm_view2(r->conv, KVM_F32, channels, z->window);
    const kvm_tensor window =
        kvm_view2(slot[KVM_RECURRENT_WINDOW].rows, KVM_F32, channels, z->window);
    const kvm_tensor state = kvm_view3(slot[KVM_RECURRENT_STATE].rows, KVM_F32,
                                       z->value_heads, z->key_dim, z->value_dim);
    TRY(kvm_op_conv(s->compute, u, u, conv, NULL, window, err));
    TRY(unit(r, s->compute, u, 0, r->unit_query, err));
    TRY(unit(r, s->compute, u, keys, r->unit_key, err));
    return kvm_op_delta(
        s->compute, kvm_heads(o, 0, z->value_heads, z->value_dim, z->value_dim),
        kvm_heads(u, 0, z->key_heads, z->key_dim, z->key_dim),
        kvm_heads(u, keys, z->key_heads, z->key_dim, z->key_dim),
        kvm_heads(u, 2 * keys, z->value_heads, z->value_dim, z->value_dim), decay, beta,
        state, err);
}

kvm_status kvm_recurrent_gate(const kvm_recurrence *r, const kvm_step *s, kvm_tensor o,
                              float *w, double eps, kvm_tensor z, bool sigmoid,
                              kvm_err *err)
{
    const ptrdiff_t n = r->size.value_dim;
    TRY(kvm_op_rmsnorm(s->compute, o, o, kvm_view1(w, KVM_F32, n), n, eps, false, err));
    return sigmoid ? kvm_op_sigmoid_mul(s->compute, o, z, o, err)
                   : kvm_op_silu_mul(s->compute, o, z, o, err);
}
