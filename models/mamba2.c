/* mamba2.c - the state space layer of Mamba-2 (Dao and Gu 2024), as Nemotron-H has it.
 *
 *   x, the layer's input, is point 1, for a replay
 *   z | u | d = W_in x;  v, k, q = silu(conv(u) + c), the window keeps the last u
 *   dt = softplus(d + b) within the limits of time_step_limit, per head
 *   per head: S = exp(-exp(A) dt) S + dt v kt;  o = S q + D v
 *   y += W_out (w rms(o silu(z))), the norm per group of heads
 *   S (H,P,N) and the window (C,W), channels v|k|q, are what is kept       point 3
 *
 * v, k, q are x, B, C of the paper; the heads of a group share k and q. Without limits
 * there is none on dt; transformers raises dt to time_step_min in its prefill, but not
 * in its decode, and looks at no time_step_limit. */
#include <math.h>

#include "models/recurrent.h"

typedef struct mamba2 {
    kvm_recurrent base;
    kvm_weight *z, *u, *d;     /* parts of W_in */
    float *rate, *bias, *skip; /* (heads) exp(A), b, D */
} mamba2;

static const mamba2 *of(const kvm_recurrent *r)
{
    return (const mamba2 *)(const void *)r;
}

static ptrdiff_t objects(const kvm_config *c, ptrdiff_t layer, const kvm_rope *rope,
                         kvm_object *out)
{
    const ptrdiff_t n = kvm_recurrent_objects(c, layer, rope, out);
    kvm_object *state = &out[KVM_RECURRENT_STATE];
    state->kind = KVM_OBJECT_SSM_STATE;
    state->shape[1] = c->recurrent.value_dim;
    state->shape[2] = c->recurrent.key_dim;
    return n;
}

/* ---- load ---- */

static kvm_status load_maps(mamba2 *m, kvm_loader *ld, ptrdiff_t layer, kvm_err *err)
{
    const kvm_recurrent *r = &m->base;
    const ptrdiff_t heads = r->size.value_heads;
    const ptrdiff_t rows = r->values + r->channels + heads;
    const kvm_plain_map out = {KVM_W_MAMBA_OUT, r->hidden, r->values, &m->base.out};
    kvm_tensor in;
    TRY(kvm_load_matrix(ld, KVM_W_MAMBA_IN, layer, rows, r->hidden, &in, err));
    TRY(kvm_load_rows(ld, in, 0, r->values, &m->z, err));
    TRY(kvm_load_rows(ld, in, r->values, r->channels, &m->u, err));
    TRY(kvm_load_rows(ld, in, r->values + r->channels, heads, &m->d, err));
    ld->matrix_parameters += rows * r->hidden;
    return kvm_load_maps(ld, layer, &out, 1, err);
}

static kvm_status load_conv(kvm_recurrent *r, kvm_loader *ld, ptrdiff_t layer,
                            kvm_err *err)
{
    TRY(kvm_load_grid(ld, KVM_W_MAMBA_CONV, layer, r->channels, r->size.window,
                      &r->conv, err));
    if (r->size.conv_bias)
        return kvm_load_vector(ld, KVM_W_MAMBA_CONV_BIAS, layer, r->channels,
                               &r->conv_bias, err);
    if (!kvm_checkpoint_has(ld->ck, (kvm_weight_at){KVM_W_MAMBA_CONV_BIAS, layer, 0}))
        return KVM_OK;
    return kvm_fail(err, KVM_MISMATCH,
                    "%s: the convolution of layer %td has a bias that its config knows "
                    "nothing of (use_conv_bias)",
                    kvm_checkpoint_path(ld->ck).at, layer);
}

/* ---- forward ---- */

static kvm_status project(const kvm_recurrent *r, const kvm_step *s, kvm_tensor x,
                          const kvm_recurrent_inputs *in, kvm_arena temp, kvm_err *err)
{
    (void)temp;
    const mamba2 *m = of(r);
    const ptrdiff_t heads = r->size.value_heads, n = x.dim[0] * heads;
    const float least = (float)r->size.step_least, most = (float)r->size.step_most;
    TRY(kvm_op_linear(s->compute, in->u, x, m->u, false, err));
    TRY(kvm_op_linear(s->compute, in->decay, x, m->d, false, err));
    float *dt = in->decay.data;
    for (ptrdiff_t i = 0; i < n; i++) {
        dt[i] = kvm_softplus(dt[i] + m->bias[i % heads]);
        if (dt[i] < least) dt[i] = least;
        if (most > 0 && dt[i] > most) dt[i] = most;
    }
    return KVM_OK;
}

static kvm_status gate(const kvm_recurrent *r, const kvm_step *s, kvm_tensor x,
                       kvm_tensor z, kvm_arena temp, kvm_err *err)
{
    (void)temp;
    return kvm_op_linear(s->compute, z, x, of(r)->z, false, err);
}

static kvm_status project_back(const kvm_recurrent *r, const kvm_step *s,
                               const kvm_recurrent_inputs *in,
                               const kvm_recurrent_inputs *d, kvm_tensor dx,
                               kvm_arena temp, kvm_err *err)
{
    (void)temp;
    const mamba2 *m = of(r);
    const float least = (float)r->size.step_least, most = (float)r->size.step_most;
    const float *dt = in->decay.data;
    float *slope = d->decay.data;
    for (ptrdiff_t i = 0; i < dx.dim[0] * r->size.value_heads; i++) {
        const bool held = dt[i] <= least || (most > 0 && dt[i] >= most);
        slope[i] *= held ? 0 : -expm1f(-dt[i]); /* softplus' = 1 - exp(-softplus) */
    }
    TRY(kvm_op_linear_back(s->compute, dx, d->u, m->u, true, err));
    return kvm_op_linear_back(s->compute, dx, d->decay, m->d, true, err);
}

static kvm_status gate_back(const kvm_recurrent *r, const kvm_step *s, kvm_tensor dz,
                            kvm_tensor dx, kvm_arena temp, kvm_err *err)
{
    (void)temp;
    return kvm_op_linear_back(s->compute, dx, dz, of(r)->z, true, err);
}

/* numbers of a token as the scan reads them, or gradients by them */
static kvm_scan_rows rows_of(const kvm_recurrent *r, const kvm_recurrent_inputs *in)
{
    const kvm_recurrent_config *z = &r->size;
    const ptrdiff_t keys = z->key_heads * z->key_dim;
    return (kvm_scan_rows){
        .q = kvm_heads(in->u, r->values + keys, z->key_heads, z->key_dim, z->key_dim),
        .k = kvm_heads(in->u, r->values, z->key_heads, z->key_dim, z->key_dim),
        .v = kvm_heads(in->u, 0, z->value_heads, z->value_dim, z->value_dim),
        .dt = in->decay};
}

static kvm_tensor state_of(const kvm_recurrent *r, float *numbers)
{
    const kvm_recurrent_config *z = &r->size;
    return kvm_view3(numbers, KVM_F32, z->value_heads, z->value_dim, z->key_dim);
}

static kvm_status rule(const kvm_recurrent *r, const kvm_step *s,
                       const kvm_recurrent_inputs *in, float *state, kvm_tensor o,
                       kvm_err *err)
{
    const mamba2 *m = of(r);
    const kvm_scan_rows d = rows_of(r, in);
    const ptrdiff_t heads = r->size.value_heads, dim = r->size.value_dim;
    return kvm_op_scan(s->compute, kvm_heads(o, 0, heads, dim, dim), d.q, d.k, d.v,
                       d.dt, kvm_view1(m->rate, KVM_F32, heads),
                       kvm_view1(m->skip, KVM_F32, heads), state_of(r, state), err);
}

static kvm_status rule_back(const kvm_recurrent *r, const kvm_step *s,
                            const kvm_recurrent_inputs *in,
                            const kvm_recurrent_inputs *d, float *state, float *dstate,
                            kvm_tensor dout, kvm_err *err)
{
    const mamba2 *m = of(r);
    const kvm_scan_rows from = rows_of(r, in), to = rows_of(r, d);
    const ptrdiff_t heads = r->size.value_heads, dim = r->size.value_dim;
    return kvm_op_scan_back(s->compute, &to, state_of(r, dstate), &from,
                            kvm_view1(m->rate, KVM_F32, heads),
                            kvm_view1(m->skip, KVM_F32, heads), state_of(r, state),
                            kvm_heads(dout, 0, heads, dim, dim), err);
}

static kvm_status load(kvm_layer **out, kvm_loader *ld, ptrdiff_t index, kvm_err *err)
{
    mamba2 *m = kvm_new(ld->keep, mamba2, 1);
    if (!m) return kvm_nomem(err, ld->keep);
    kvm_recurrent *r = &m->base;
    TRY(kvm_recurrent_of(r, ld->keep, ld->config, err));
    const ptrdiff_t heads = r->size.value_heads;
    r->gate_first = true;
    r->norm_width = r->values;
    r->norm_group = r->values / r->size.key_heads;
    r->unit = false;
    r->project = project;
    r->gate = gate;
    r->project_back = project_back;
    r->gate_back = gate_back;
    r->rule = rule;
    r->rule_back = rule_back;
    TRY(load_maps(m, ld, index, err));
    TRY(load_conv(r, ld, index, err));
    TRY(kvm_load_vector(ld, KVM_W_MAMBA_DECAY, index, heads, &m->rate, err));
    for (ptrdiff_t h = 0; h < heads; h++) m->rate[h] = expf(m->rate[h]);
    TRY(kvm_load_vector(ld, KVM_W_MAMBA_STEP, index, heads, &m->bias, err));
    TRY(kvm_load_vector(ld, KVM_W_MAMBA_SKIP, index, heads, &m->skip, err));
    TRY(kvm_load_vector(ld, KVM_W_MAMBA_NORM, index, r->values, &r->norm, err));
    *out = &r->base;
    return KVM_OK;
}

const kvm_layer_kind kvm_mamba2 = {.name = "mamba2",
                                   .load = load,
                                   .objects = objects,
                                   .scratch = kvm_recurrent_scratch,
                                   .forward = kvm_recurrent_forward,
                                   .backward_scratch = kvm_recurrent_backward_scratch,
                                   .backward = kvm_recurrent_backward,
                                   .replay = kvm_recurrent_replay,
                                   .replay_back = kvm_recurrent_replay_back};
