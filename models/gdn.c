/* gdn.c - the gated delta rule (Gated DeltaNet, Yang et al. 2025; Qwen3-Next, Qwen3.5).
 *
 *   x, the layer's input, is point 1, for a replay
 *   u = W_qkv x; q, k, v = silu(conv(u)), the window keeps the last inputs u
 *   q, k of unit length per key head, q / sqrt(K)
 *   g = -exp(A) softplus(W_a x + d), beta = sigmoid(W_b x), per value head
 *   per value head: S = exp(g) S; S += k (beta (v - S' k))'; o = S' q
 *   y += W_out (rms(o) w silu(W_z x)), the norm per head
 *   S (H,K,V) and the window (C,W) are what is kept       point 3
 *
 * Qwen3-Next stores W_qkv with W_z, and W_b with W_a, one key head after the other. */
#include <math.h>

#include "models/recurrent.h"

typedef struct gdn {
    kvm_recurrent base;
    kvm_weight *qkv, *z, *a, *b;
    float *decay, *bias; /* (value_heads) exp(A), d */
} gdn;

/* rows from .. from+n-1 of each key head's part of `part` rows, behind those in
 * order */
static ptrdiff_t pick(const gdn *g, ptrdiff_t part, ptrdiff_t from, ptrdiff_t n,
                      ptrdiff_t *order, ptrdiff_t at)
{
    for (ptrdiff_t h = 0; h < g->base.size.key_heads; h++)
        for (ptrdiff_t i = 0; i < n; i++) order[at++] = h * part + from + i;
    return at;
}

static kvm_status load_grouped(gdn *g, kvm_loader *ld, ptrdiff_t layer, kvm_err *err)
{
    const ptrdiff_t keys = g->base.size.key_dim;
    const ptrdiff_t group = g->base.size.value_heads / g->base.size.key_heads;
    const ptrdiff_t values = group * g->base.size.value_dim, part = 2 * (keys + values);
    kvm_tensor both, ba;
    TRY(kvm_load_matrix(ld, KVM_W_GDN_QKVZ, layer, g->base.channels + g->base.values,
                        g->base.hidden, &both, err));
    TRY(kvm_load_matrix(ld, KVM_W_GDN_BA, layer, 2 * g->base.size.value_heads,
                        g->base.hidden, &ba, err));
    ptrdiff_t *order = kvm_new(ld->keep, ptrdiff_t, g->base.channels);
    if (!order) return kvm_nomem(err, ld->keep);
    ptrdiff_t n = pick(g, part, 0, keys, order, 0);
    n = pick(g, part, keys, keys, order, n);
    n = pick(g, part, 2 * keys, values, order, n);
    TRY(kvm_load_picked(ld, both, order, n, &g->qkv, err));
    n = pick(g, part, 2 * keys + values, values, order, 0);
    TRY(kvm_load_picked(ld, both, order, n, &g->z, err));
    n = pick(g, 2 * group, 0, group, order, 0);
    TRY(kvm_load_picked(ld, ba, order, n, &g->b, err));
    n = pick(g, 2 * group, group, group, order, 0);
    TRY(kvm_load_picked(ld, ba, order, n, &g->a, err));
    ld->matrix_parameters +=
        (g->base.channels + g->base.values + 2 * g->base.size.value_heads) *
        g->base.hidden;
    return KVM_OK;
}

static kvm_status load_maps(gdn *g, kvm_loader *ld, ptrdiff_t layer, kvm_err *err)
{
    const kvm_recurrent *r = &g->base;
    const ptrdiff_t heads = r->size.value_heads;
    const kvm_plain_map maps[] = {
        {KVM_W_GDN_OUT, r->hidden, r->values, &g->base.out},
        {KVM_W_GDN_QKV, r->channels, r->hidden, &g->qkv},
        {KVM_W_GDN_Z, r->values, r->hidden, &g->z},
        {KVM_W_GDN_A, heads, r->hidden, &g->a},
        {KVM_W_GDN_B, heads, r->hidden, &g->b},
    };
    const bool grouped =
        kvm_checkpoint_has(ld->ck, (kvm_weight_at){KVM_W_GDN_QKVZ, layer, 0});
    TRY(kvm_load_maps(ld, layer, maps,
                      grouped ? 1 : (ptrdiff_t)(sizeof maps / sizeof *maps), err));
    return grouped ? load_grouped(g, ld, layer, err) : KVM_OK;
}

/* u = W_qkv x; g = -exp(A) softplus(W_a x + d); beta = sigmoid(W_b x) */
static kvm_status project(const kvm_recurrent *r, const kvm_step *s, kvm_tensor x,
                          const kvm_recurrent_inputs *in, kvm_arena temp, kvm_err *err)
{
    (void)temp;
    const gdn *g = (const gdn *)(const void *)r;
    const ptrdiff_t heads = r->size.value_heads, n = x.dim[0] * heads;
    TRY(kvm_op_linear(s->compute, in->u, x, g->qkv, false, err));
    TRY(kvm_op_linear(s->compute, in->decay, x, g->a, false, err));
    TRY(kvm_op_linear(s->compute, in->beta, x, g->b, false, err));
    float *decay = in->decay.data;
    for (ptrdiff_t i = 0; i < n; i++)
        decay[i] = kvm_log_decay(g->decay[i % heads], decay[i] + g->bias[i % heads]);
    kvm_sigmoids(in->beta.data, n);
    return KVM_OK;
}

static kvm_status gate(const kvm_recurrent *r, const kvm_step *s, kvm_tensor x,
                       kvm_tensor z, kvm_arena temp, kvm_err *err)
{
    (void)temp;
    return kvm_op_linear(s->compute, z, x, ((const gdn *)(const void *)r)->z, false,
                         err);
}

static kvm_status project_back(const kvm_recurrent *r, const kvm_step *s,
                               const kvm_recurrent_inputs *in,
                               const kvm_recurrent_inputs *d, kvm_tensor dx,
                               kvm_arena temp, kvm_err *err)
{
    (void)temp;
    const gdn *g = (const gdn *)(const void *)r;
    const ptrdiff_t heads = r->size.value_heads, n = dx.dim[0] * heads;
    const float *decay = in->decay.data;
    float *slope = d->decay.data;
    for (ptrdiff_t i = 0; i < n; i++)
        slope[i] *= kvm_log_decay_slope(g->decay[i % heads], decay[i]);
    kvm_sigmoids_back(d->beta.data, in->beta.data, n);
    TRY(kvm_op_linear_back(s->compute, dx, d->u, g->qkv, true, err));
    TRY(kvm_op_linear_back(s->compute, dx, d->decay, g->a, true, err));
    return kvm_op_linear_back(s->compute, dx, d->beta, g->b, true, err);
}

static kvm_status gate_back(const kvm_recurrent *r, const kvm_step *s, kvm_tensor dz,
                            kvm_tensor dx, kvm_arena temp, kvm_err *err)
{
    (void)temp;
    return kvm_op_linear_back(s->compute, dx, dz, ((const gdn *)(const void *)r)->z,
                              true, err);
}

static kvm_status load(kvm_layer **out, kvm_loader *ld, ptrdiff_t index, kvm_err *err)
{
    gdn *g = kvm_new(ld->keep, gdn, 1);
    if (!g) return kvm_nomem(err, ld->keep);
    kvm_recurrent *r = &g->base;
    TRY(kvm_recurrent_of(r, ld->keep, ld->config, err));
    const ptrdiff_t heads = r->size.value_heads;
    r->sigmoid = r->size.sigmoid_gate;
    r->project = project;
    r->gate = gate;
    r->project_back = project_back;
    r->gate_back = gate_back;
    TRY(load_maps(g, ld, index, err));
    TRY(kvm_load_grid(ld, KVM_W_GDN_CONV, index, r->channels, r->size.window, &r->conv,
                      err));
    TRY(kvm_load_vector(ld, KVM_W_GDN_DECAY, index, heads, &g->decay, err));
    for (ptrdiff_t h = 0; h < heads; h++) g->decay[h] = expf(g->decay[h]);
    TRY(kvm_load_vector(ld, KVM_W_GDN_STEP, index, heads, &g->bias, err));
    TRY(kvm_load_vector(ld, KVM_W_GDN_NORM, index, r->size.value_dim, &r->norm, err));
    *out = &r->base;
    return KVM_OK;
}

const kvm_layer_kind kvm_gdn = {.name = "gdn",
                                .load = load,
                                .objects = kvm_recurrent_objects,
                                .scratch = kvm_recurrent_scratch,
                                .forward = kvm_recurrent_forward,
                                .backward_scratch = kvm_recurrent_backward_scratch,
                                .backward = kvm_recurrent_backward,
                                .replay = kvm_recurrent_replay,
                                .replay_back = kvm_recurrent_replay_back};
