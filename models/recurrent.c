#include "models/recurrent.h"

#include <math.h>
#include <string.h>

static const double unit_eps = 1e-6; /* beside the sum of squares, not their mean */

static ptrdiff_t keys_of(const kvm_recurrent_config *r)
{
    return r->key_heads * r->key_dim;
}
static ptrdiff_t values_of(const kvm_recurrent_config *r)
{
    return r->value_heads * r->value_dim;
}
static ptrdiff_t channels_of(const kvm_recurrent_config *r)
{
    return 2 * keys_of(r) + values_of(r);
}

/* numbers that the rule reads of a token: channels after the convolution, decays, and
 * beta, which Mamba-2 has none of */
static ptrdiff_t inputs_of(const kvm_config *c)
{
    const kvm_recurrent_config *r = &c->recurrent;
    const kvm_layer_id kind = c->family->recurrent;
    return channels_of(r) + r->value_heads * ((kind == KVM_LAYER_KDA ? r->key_dim : 1) +
                                              (kind == KVM_LAYER_MAMBA2 ? 0 : 1));
}

static const kvm_recurrent *of(const kvm_layer *l)
{
    return (const kvm_recurrent *)(const void *)l;
}

/* ---- the delta rule ---- */

kvm_status kvm_recurrent_units(const kvm_recurrent *r, const kvm_step *s, kvm_tensor u,
                               kvm_err *err)
{
    const ptrdiff_t n = r->size.key_dim, keys = keys_of(&r->size);
    const double eps = unit_eps / (double)n;
    for (int i = 0; r->unit && i < 2; i++) {
        const kvm_tensor x = kvm_columns(u, i * keys, keys);
        const kvm_tensor w = kvm_view1(i ? r->unit_key : r->unit_query, KVM_F32, n);
        TRY(kvm_op_rmsnorm(s->compute, x, x, w, n, eps, false, err));
    }
    return KVM_OK;
}

kvm_status kvm_recurrent_units_back(const kvm_recurrent *r, const kvm_step *s,
                                    kvm_tensor u, kvm_tensor du, kvm_err *err)
{
    const ptrdiff_t n = r->size.key_dim, keys = keys_of(&r->size);
    const double eps = unit_eps / (double)n;
    for (int i = 0; r->unit && i < 2; i++) {
        const kvm_tensor x = kvm_columns(u, i * keys, keys);
        const kvm_tensor dx = kvm_columns(du, i * keys, keys);
        const kvm_tensor w = kvm_view1(i ? r->unit_key : r->unit_query, KVM_F32, n);
        TRY(kvm_op_rmsnorm_back(s->compute, dx, x, w, dx, n, eps, false, false, err));
    }
    return KVM_OK;
}

/* numbers of a token as the rule reads them, or gradients by them */
static kvm_delta_rows rows_of(const kvm_recurrent *r, const kvm_recurrent_inputs *in)
{
    const kvm_recurrent_config *z = &r->size;
    const ptrdiff_t keys = keys_of(z);
    kvm_tensor decay = in->decay;
    if (r->per_channel)
        decay = kvm_heads(decay, 0, z->value_heads, z->key_dim, z->key_dim);
    return (kvm_delta_rows){
        .q = kvm_heads(in->u, 0, z->key_heads, z->key_dim, z->key_dim),
        .k = kvm_heads(in->u, keys, z->key_heads, z->key_dim, z->key_dim),
        .v = kvm_heads(in->u, 2 * keys, z->value_heads, z->value_dim, z->value_dim),
        .g = decay,
        .beta = in->beta};
}

static kvm_tensor state_of(const kvm_recurrent *r, float *numbers)
{
    const kvm_recurrent_config *z = &r->size;
    return kvm_view3(numbers, KVM_F32, z->value_heads, z->key_dim, z->value_dim);
}

static kvm_tensor values_in(const kvm_recurrent *r, kvm_tensor o)
{
    const kvm_recurrent_config *z = &r->size;
    return kvm_heads(o, 0, z->value_heads, z->value_dim, z->value_dim);
}

static kvm_status delta_rule(const kvm_recurrent *r, const kvm_step *s,
                             const kvm_recurrent_inputs *in, float *state, kvm_tensor o,
                             kvm_err *err)
{
    const kvm_delta_rows d = rows_of(r, in);
    return kvm_op_delta(s->compute, values_in(r, o), d.q, d.k, d.v, d.g, d.beta,
                        state_of(r, state), err);
}

static kvm_status delta_rule_back(const kvm_recurrent *r, const kvm_step *s,
                                  const kvm_recurrent_inputs *in,
                                  const kvm_recurrent_inputs *d, float *state,
                                  float *dstate, kvm_tensor dout, kvm_err *err)
{
    const kvm_delta_rows from = rows_of(r, in), to = rows_of(r, d);
    return kvm_op_delta_back(s->compute, &to, state_of(r, dstate), &from,
                             state_of(r, state), values_in(r, dout), err);
}

/* ---- sizes ---- */

/* Unit length is an RMS norm: x / sqrt(sum + eps) = rms_{eps/n}(x) / sqrt(n). */
kvm_status kvm_recurrent_of(kvm_recurrent *out, kvm_arena *keep, const kvm_config *c,
                            kvm_err *err)
{
    const kvm_recurrent_config *r = &c->recurrent;
    const ptrdiff_t n = r->key_dim;
    const double by = 1 / sqrt((double)n);
    *out = (kvm_recurrent){.size = *r,
                           .hidden = c->hidden,
                           .channels = channels_of(r),
                           .inputs = inputs_of(c),
                           .values = values_of(r),
                           .eps = c->eps,
                           .norm_width = r->value_dim,
                           .norm_group = r->value_dim,
                           .unit = true,
                           .rule = delta_rule,
                           .rule_back = delta_rule_back,
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
    const ptrdiff_t channels = channels_of(r);
    out[KVM_RECURRENT_STATE] =
        (kvm_object){.kind = KVM_OBJECT_STATE,
                     .layer = layer,
                     .heads = r->value_heads,
                     .dim = r->key_dim * r->value_dim,
                     .shape = {r->value_heads, r->key_dim, r->value_dim},
                     .replay = c->hidden,
                     .inputs = inputs_of(c)};
    out[KVM_RECURRENT_WINDOW] = (kvm_object){.kind = KVM_OBJECT_WINDOW,
                                             .layer = layer,
                                             .heads = 1,
                                             .dim = channels * r->window,
                                             .shape = {channels, r->window}};
    return KVM_RECURRENT_OBJECTS;
}

float kvm_log_decay(float rate, float x)
{
    return -rate * kvm_softplus(x);
}

/* sigmoid(x) = 1 - exp(-softplus(x)) */
float kvm_log_decay_slope(float rate, float y)
{
    return rate * expm1f(y / rate);
}

void kvm_sigmoids(float *x, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) x[i] = kvm_sigmoid(x[i]);
}

void kvm_sigmoids_back(float *d, const float *y, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) d[i] *= y[i] * (1 - y[i]);
}

/* ---- forward ---- */

ptrdiff_t kvm_recurrent_decays(const kvm_recurrent *r)
{
    return r->size.value_heads * (r->per_channel ? r->size.key_dim : 1);
}

size_t kvm_recurrent_scratch(const kvm_layer *l, ptrdiff_t n)
{
    const kvm_recurrent *r = of(l);
    return 2 * kvm_step_rows_bytes(n, r->values) + kvm_step_rows_bytes(n, r->channels) +
           kvm_step_rows_bytes(n, kvm_recurrent_decays(r)) +
           kvm_step_rows_bytes(n, r->size.value_heads) +
           kvm_step_rows_bytes(n, r->inputs);
}

static void put_columns(kvm_tensor to, ptrdiff_t *at, kvm_tensor from)
{
    const ptrdiff_t n = from.dim[1] < to.dim[1] - *at ? from.dim[1] : to.dim[1] - *at;
    for (ptrdiff_t t = 0; t < from.dim[0]; t++)
        memcpy((float *)to.data + t * to.dim[1] + *at,
               (float *)from.data + t * from.stride[0], (size_t)n * sizeof(float));
    *at += n;
}

/* point 2: what the rule has read, side by side; a replay has no use for it */
static kvm_status emit_inputs(const kvm_recurrent *r, const kvm_step *s,
                              const kvm_recurrent_inputs *in, kvm_arena temp,
                              kvm_err *err)
{
    ptrdiff_t at = 0;
    if (!s->capture || !(s->capture->points & 1u << KVM_POINT_NORMED)) return KVM_OK;
    kvm_tensor rows = kvm_step_rows(&temp, in->u.dim[0], r->inputs);
    if (!rows.data) return kvm_nomem(err, &temp);
    put_columns(rows, &at, in->u);
    put_columns(rows, &at, in->decay);
    put_columns(rows, &at, in->beta);
    return kvm_step_emit(s, r->base.first_object + KVM_RECURRENT_STATE,
                         KVM_POINT_NORMED, rows.data, err);
}

kvm_status kvm_recurrent_mix(const kvm_recurrent *r, const kvm_step *s, kvm_tensor y,
                             kvm_tensor u, float *window, kvm_err *err)
{
    const ptrdiff_t taps = r->size.window;
    return kvm_op_conv(s->compute, y, u, kvm_view2(r->conv, KVM_F32, r->channels, taps),
                       r->conv_bias, kvm_view2(window, KVM_F32, r->channels, taps),
                       err);
}

/* x -> o (T, values); the state and the window move on by T tokens */
static kvm_status recur(const kvm_recurrent *r, const kvm_step *s, kvm_tensor x,
                        kvm_tensor o, kvm_arena temp, kvm_err *err)
{
    const ptrdiff_t n = x.dim[0];
    const kvm_recurrent_inputs in = {
        .u = kvm_step_rows(&temp, n, r->channels),
        .decay = kvm_step_rows(&temp, n, kvm_recurrent_decays(r)),
        .beta = kvm_step_rows(&temp, n, r->size.value_heads)};
    if (!in.u.data || !in.decay.data || !in.beta.data) return kvm_nomem(err, &temp);
    const kvm_slot *slot = &s->slots[r->base.first_object];
    TRY(r->project(r, s, x, &in, temp, err));
    TRY(kvm_recurrent_mix(r, s, in.u, in.u, slot[KVM_RECURRENT_WINDOW].rows, err));
    TRY(kvm_recurrent_units(r, s, in.u, err));
    TRY(r->rule(r, s, &in, slot[KVM_RECURRENT_STATE].rows, o, err));
    return emit_inputs(r, s, &in, temp, err);
}

kvm_status kvm_recurrent_replay(const kvm_layer *l, const kvm_step *s, kvm_tensor x,
                                kvm_err *err)
{
    const kvm_recurrent *r = of(l);
    kvm_arena temp = s->scratch;
    kvm_tensor o = kvm_step_rows(&temp, x.dim[0], r->values);
    if (!o.data) return kvm_nomem(err, &temp);
    return recur(r, s, x, o, temp, err);
}

static kvm_status norm(const kvm_recurrent *r, const kvm_step *s, kvm_tensor o,
                       kvm_err *err)
{
    return kvm_op_rmsnorm(s->compute, o, o, kvm_view1(r->norm, KVM_F32, r->norm_width),
                          r->norm_group, r->eps, false, err);
}

/* y += Wout (rms(o) w act(z)), the norm per group; or the norm of o act(z) */
static kvm_status give(const kvm_recurrent *r, const kvm_step *s, kvm_tensor x,
                       kvm_tensor o, kvm_tensor y, kvm_arena temp, kvm_err *err)
{
    kvm_tensor z = kvm_step_rows(&temp, x.dim[0], r->values);
    if (!z.data) return kvm_nomem(err, &temp);
    TRY(r->gate(r, s, x, z, temp, err));
    if (!r->gate_first) TRY(norm(r, s, o, err));
    TRY(r->sigmoid ? kvm_op_sigmoid_mul(s->compute, o, z, o, err)
                   : kvm_op_silu_mul(s->compute, o, z, o, err));
    if (r->gate_first) TRY(norm(r, s, o, err));
    return kvm_op_linear(s->compute, y, o, r->out, true, err);
}

kvm_status kvm_recurrent_forward(const kvm_layer *l, const kvm_step *s, kvm_tensor x,
                                 kvm_tensor y, kvm_err *err)
{
    const kvm_recurrent *r = of(l);
    kvm_arena temp = s->scratch;
    kvm_tensor o = kvm_step_rows(&temp, s->n, r->values);
    if (!o.data) return kvm_nomem(err, &temp);
    const ptrdiff_t object = l->first_object;
    TRY(kvm_step_emit(s, object + KVM_RECURRENT_STATE, KVM_POINT_RAW, x.data, err));
    TRY(recur(r, s, x, o, temp, err));
    TRY(kvm_step_emit_state(s, object + KVM_RECURRENT_STATE, err));
    TRY(kvm_step_emit_state(s, object + KVM_RECURRENT_WINDOW, err));
    if (s->out == 0) return KVM_OK;
    return give(r, s, kvm_last_rows(x, s->out), kvm_last_rows(o, s->out), y, temp, err);
}
