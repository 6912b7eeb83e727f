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
    kvm_layer base;
    ptrdiff_t hidden, channels, values;
    kvm_recurrence rule;
    double eps;
    kvm_weight *qkv, *z, *a, *b, *out;
    float *decay, *bias; /* (value_heads) exp(A), d */
    float *head_norm;    /* (value_dim) */
} gdn;

/* ---- load ---- */

/* rows from .. from+n-1 of each key head's part of `part` rows, behind those in order */
static ptrdiff_t pick(const gdn *g, ptrdiff_t part, ptrdiff_t from, ptrdiff_t n,
                      ptrdiff_t *order, ptrdiff_t at)
{
    for (ptrdiff_t h = 0; h < g->rule.size.key_heads; h++)
        for (ptrdiff_t i = 0; i < n; i++) order[at++] = h * part + from + i;
    return at;
}

static kvm_status load_grouped(gdn *g, kvm_loader *ld, ptrdiff_t layer, kvm_err *err)
{
    const ptrdiff_t keys = g->rule.size.key_dim;
    const ptrdiff_t group = g->rule.size.value_heads / g->rule.size.key_heads;
    const ptrdiff_t values = group * g->rule.size.value_dim, part = 2 * (keys + values);
    kvm_tensor both, ba;
    TRY(kvm_load_matrix(ld, KVM_W_GDN_QKVZ, layer, g->channels + g->values, g->hidden,
                        &both, err));
    TRY(kvm_load_matrix(ld, KVM_W_GDN_BA, layer, 2 * g->rule.size.value_heads,
                        g->hidden, &ba, err));
    ptrdiff_t *order = kvm_new(ld->keep, ptrdiff_t, g->channels);
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
        (g->channels + g->values + 2 * g->rule.size.value_heads) * g->hidden;
    return KVM_OK;
}

static kvm_status load_maps(gdn *g, kvm_loader *ld, ptrdiff_t layer, kvm_err *err)
{
    const struct {
        kvm_weight_id id;
        ptrdiff_t out, in;
        kvm_weight **to;
    } maps[] = {
        {KVM_W_GDN_OUT, g->hidden, g->values, &g->out},
        {KVM_W_GDN_QKV, g->channels, g->hidden, &g->qkv},
        {KVM_W_GDN_Z, g->values, g->hidden, &g->z},
        {KVM_W_GDN_A, g->rule.size.value_heads, g->hidden, &g->a},
        {KVM_W_GDN_B, g->rule.size.value_heads, g->hidden, &g->b},
    };
    const bool grouped =
        kvm_checkpoint_has(ld->ck, (kvm_weight_at){KVM_W_GDN_QKVZ, layer, 0});
    for (size_t i = 0; i < (grouped ? 1 : sizeof maps / sizeof *maps); i++) {
        const kvm_linear_row row = {.weight = maps[i].id,
                                    .bias = maps[i].id,
                                    .layer = layer,
                                    .out = maps[i].out,
                                    .in = maps[i].in};
        TRY(kvm_load_linear(ld, &row, maps[i].to, err));
    }
    return grouped ? load_grouped(g, ld, layer, err) : KVM_OK;
}

static kvm_status load(kvm_layer **out, kvm_loader *ld, ptrdiff_t index, kvm_err *err)
{
    const kvm_config *c = ld->config;
    gdn *g = kvm_new(ld->keep, gdn, 1);
    if (!g) return kvm_nomem(err, ld->keep);
    const kvm_recurrent_config *r = &c->recurrent;
    const ptrdiff_t heads = r->value_heads;
    *g = (gdn){.hidden = c->hidden,
               .channels = kvm_recurrent_channels(r),
               .values = kvm_recurrent_values(r),
               .eps = c->eps};
    TRY(kvm_recurrence_of(&g->rule, ld->keep, c, err));
    TRY(load_maps(g, ld, index, err));
    TRY(kvm_load_grid(ld, KVM_W_GDN_CONV, index, g->channels, r->window, &g->rule.conv,
                      err));
    TRY(kvm_load_vector(ld, KVM_W_GDN_DECAY, index, heads, &g->decay, err));
    for (ptrdiff_t h = 0; h < heads; h++) g->decay[h] = expf(g->decay[h]);
    TRY(kvm_load_vector(ld, KVM_W_GDN_STEP, index, heads, &g->bias, err));
    TRY(kvm_load_vector(ld, KVM_W_GDN_NORM, index, r->value_dim, &g->head_norm, err));
    *out = &g->base;
    return KVM_OK;
}

/* ---- objects ---- */

static const gdn *of(const kvm_layer *l)
{
    return (const gdn *)(const void *)l;
}

static size_t scratch(const kvm_layer *l, ptrdiff_t n)
{
    const gdn *g = of(l);
    return kvm_step_rows_bytes(n, g->channels) +
           2 * kvm_step_rows_bytes(n, g->rule.size.value_heads) +
           2 * kvm_step_rows_bytes(n, g->values);
}

/* ---- forward ---- */

/* a, b (n, value_heads): log-decay and beta, in place */
static void gates(const gdn *g, kvm_tensor a, kvm_tensor b)
{
    const ptrdiff_t heads = g->rule.size.value_heads;
    for (ptrdiff_t i = 0; i < a.dim[0] * heads; i++) {
        float *decay = (float *)a.data + i, *beta = (float *)b.data + i;
        const float x = *decay + g->bias[i % heads];
        *decay = -g->decay[i % heads] * (x > 20 ? x : log1pf(expf(x)));
        *beta = 1 / (1 + expf(-*beta));
    }
}

/* x (n, hidden) normed -> o (n, values), the states moved on */
static kvm_status recur(const gdn *g, const kvm_step *s, kvm_tensor x, kvm_tensor o,
                        kvm_arena temp, kvm_err *err)
{
    const ptrdiff_t n = x.dim[0], heads = g->rule.size.value_heads;
    kvm_tensor u = kvm_step_rows(&temp, n, g->channels);
    kvm_tensor a = kvm_step_rows(&temp, n, heads);
    kvm_tensor b = kvm_step_rows(&temp, n, heads);
    if (!u.data || !a.data || !b.data) return kvm_nomem(err, &temp);
    TRY(kvm_op_linear(s->compute, u, x, g->qkv, false, err));
    TRY(kvm_op_linear(s->compute, a, x, g->a, false, err));
    TRY(kvm_op_linear(s->compute, b, x, g->b, false, err));
    gates(g, a, b);
    return kvm_recur(&g->rule, &g->base, s, u, a, b, o, err);
}

static kvm_status replay(const kvm_layer *l, const kvm_step *s, kvm_tensor x,
                         kvm_err *err)
{
    const gdn *g = of(l);
    kvm_arena temp = s->scratch;
    kvm_tensor o = kvm_step_rows(&temp, x.dim[0], g->values);
    if (!o.data) return kvm_nomem(err, &temp);
    return recur(g, s, x, o, temp, err);
}

/* y += W_out (rms(o) w act(W_z x)) */
static kvm_status give(const gdn *g, const kvm_step *s, kvm_tensor x, kvm_tensor o,
                       kvm_tensor y, kvm_arena temp, kvm_err *err)
{
    kvm_tensor z = kvm_step_rows(&temp, x.dim[0], g->values);
    if (!z.data) return kvm_nomem(err, &temp);
    TRY(kvm_op_linear(s->compute, z, x, g->z, false, err));
    TRY(kvm_recurrent_gate(&g->rule, s, o, g->head_norm, g->eps, z,
                           g->rule.size.sigmoid_gate, err));
    return kvm_op_linear(s->compute, y, o, g->out, true, err);
}

static kvm_status forward(const kvm_layer *l, const kvm_step *s, kvm_tensor x,
                          kvm_tensor y, kvm_err *err)
{
    const gdn *g = of(l);
    kvm_arena temp = s->scratch;
    kvm_tensor o = kvm_step_rows(&temp, s->n, g->values);
    if (!o.data) return kvm_nomem(err, &temp);
    const ptrdiff_t object = l->first_object;
    TRY(kvm_step_emit(s, object + KVM_RECURRENT_STATE, KVM_POINT_RAW, x.data, err));
    TRY(recur(g, s, x, o, temp, err));
    TRY(kvm_step_emit_state(s, object + KVM_RECURRENT_STATE, err));
    TRY(kvm_step_emit_state(s, object + KVM_RECURRENT_WINDOW, err));
    if (s->out == 0) return KVM_OK;
    return give(g, s, kvm_last_rows(x, s->out), kvm_last_rows(o, s->out), y, temp, err);
}

const kvm_layer_kind kvm_gdn = {.name = "gdn",
                                .load = load,
                                .objects = kvm_recurrent_objects,
                                .scratch = scratch,
                                .forward = forward,
                                .replay = replay};
