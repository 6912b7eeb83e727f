/* kda.c - Kimi delta attention: the gated delta rule with a decay per channel (Kimi
 * Linear, 2025).
 *
 *   x, the layer's input, is point 1, for a replay
 *   q, k, v = silu(conv([Wq x | Wk x | Wv x])), the window keeps the last inputs of it
 *   q, k of unit length per head, q / sqrt(K)
 *   f = Wf_b Wf_a x + d, per channel: g = -exp(A) softplus(f), or with a lower bound L
 *   (GLM-5.3-Flash) g = L sigmoid(exp(A) f); beta = sigmoid(Wb x) per head
 *   S, o as in gdn.c, each row of S with its own decay
 *   y += Wo (rms(o) w sigmoid(Wg_b Wg_a x)), the norm per head
 *   S (H,K,V) and the window (C,W), channels q|k|v, are what is kept       point 3 */
#include <math.h>
#include <string.h>

#include "models/recurrent.h"

typedef struct kda {
    kvm_layer base;
    ptrdiff_t hidden, heads, dim, width; /* width = heads * dim */
    kvm_recurrence rule;
    double eps;
    kvm_weight *q, *k, *v, *f_a, *f_b, *b, *g_a, *g_b, *out;
    float *decay, *bias; /* (heads) exp(A), (width) d */
    float *head_norm;    /* (dim) */
} kda;

/* ---- load ---- */

/* one tensor over q|k|v, or three */
static kvm_status load_conv(kda *a, kvm_loader *ld, ptrdiff_t layer, kvm_err *err)
{
    static const kvm_weight_id parts[] = {KVM_W_KDA_CONV_Q, KVM_W_KDA_CONV_K,
                                          KVM_W_KDA_CONV_V};
    const ptrdiff_t window = a->rule.size.window;
    if (kvm_checkpoint_has(ld->ck, (kvm_weight_at){KVM_W_KDA_CONV, layer, 0}))
        return kvm_load_grid(ld, KVM_W_KDA_CONV, layer, 3 * a->width, window,
                             &a->rule.conv, err);
    a->rule.conv = kvm_new_raw(ld->keep, float, 3 * a->width * window);
    if (!a->rule.conv) return kvm_nomem(err, ld->keep);
    for (int i = 0; i < 3; i++) {
        float *part;
        TRY(kvm_load_grid(ld, parts[i], layer, a->width, window, &part, err));
        memcpy(a->rule.conv + i * a->width * window, part,
               (size_t)(a->width * window) * sizeof *part);
    }
    return KVM_OK;
}

static kvm_status load_maps(kda *a, kvm_loader *ld, ptrdiff_t layer, kvm_err *err)
{
    const struct {
        kvm_weight_id id;
        ptrdiff_t out, in;
        kvm_weight **to;
    } maps[] = {
        {KVM_W_ATTN_Q, a->width, a->hidden, &a->q},
        {KVM_W_ATTN_K, a->width, a->hidden, &a->k},
        {KVM_W_ATTN_V, a->width, a->hidden, &a->v},
        {KVM_W_KDA_F_A, a->dim, a->hidden, &a->f_a},
        {KVM_W_KDA_F_B, a->width, a->dim, &a->f_b},
        {KVM_W_KDA_BETA, a->heads, a->hidden, &a->b},
        {KVM_W_KDA_G_A, a->dim, a->hidden, &a->g_a},
        {KVM_W_KDA_G_B, a->width, a->dim, &a->g_b},
        {KVM_W_ATTN_O, a->hidden, a->width, &a->out},
    };
    for (size_t i = 0; i < sizeof maps / sizeof *maps; i++) {
        const kvm_linear_row row = {.weight = maps[i].id,
                                    .bias = maps[i].id,
                                    .layer = layer,
                                    .out = maps[i].out,
                                    .in = maps[i].in};
        TRY(kvm_load_linear(ld, &row, maps[i].to, err));
    }
    return KVM_OK;
}

static kvm_status load(kvm_layer **out, kvm_loader *ld, ptrdiff_t index, kvm_err *err)
{
    const kvm_config *c = ld->config;
    kda *a = kvm_new(ld->keep, kda, 1);
    if (!a) return kvm_nomem(err, ld->keep);
    const kvm_recurrent_config *r = &c->recurrent;
    *a = (kda){.hidden = c->hidden,
               .heads = r->value_heads,
               .dim = r->value_dim,
               .width = kvm_recurrent_values(r),
               .eps = c->eps};
    TRY(kvm_recurrence_of(&a->rule, ld->keep, c, err));
    TRY(load_maps(a, ld, index, err));
    TRY(load_conv(a, ld, index, err));
    TRY(kvm_load_vector(ld, KVM_W_KDA_DECAY, index, a->heads, &a->decay, err));
    for (ptrdiff_t h = 0; h < a->heads; h++) a->decay[h] = expf(a->decay[h]);
    TRY(kvm_load_vector(ld, KVM_W_KDA_STEP, index, a->width, &a->bias, err));
    TRY(kvm_load_vector(ld, KVM_W_KDA_NORM, index, a->dim, &a->head_norm, err));
    *out = &a->base;
    return KVM_OK;
}

/* ---- forward ---- */

static const kda *of(const kvm_layer *l)
{
    return (const kda *)(const void *)l;
}

static size_t scratch(const kvm_layer *l, ptrdiff_t n)
{
    const kda *a = of(l);
    return 2 * kvm_step_rows_bytes(n, a->width) + kvm_step_rows_bytes(n, 3 * a->width) +
           kvm_step_rows_bytes(n, a->heads) + 2 * kvm_step_rows_bytes(n, a->dim);
}

/* y (n,width) = W_b W_a x */
static kvm_status twice(const kda *a, const kvm_step *s, kvm_tensor x,
                        const kvm_weight *first, const kvm_weight *second, kvm_tensor y,
                        kvm_arena temp, kvm_err *err)
{
    kvm_tensor low = kvm_step_rows(&temp, x.dim[0], a->dim);
    if (!low.data) return kvm_nomem(err, &temp);
    TRY(kvm_op_linear(s->compute, low, x, first, false, err));
    return kvm_op_linear(s->compute, y, low, second, false, err);
}

/* f (n,width) -> log-decay, b (n,heads) -> beta, in place */
static void gates(const kda *a, kvm_tensor f, kvm_tensor b)
{
    const float bound = (float)a->rule.size.lower_bound;
    float *x = f.data, *beta = b.data;
    for (ptrdiff_t t = 0; t < f.dim[0]; t++)
        for (ptrdiff_t i = 0; i < a->width; i++, x++) {
            const float rate = a->decay[i / a->dim], y = *x + a->bias[i];
            *x = bound < 0 ? bound / (1 + expf(-rate * y))
                           : -rate * (y > 20 ? y : log1pf(expf(y)));
        }
    for (ptrdiff_t i = 0; i < f.dim[0] * a->heads; i++)
        beta[i] = 1 / (1 + expf(-beta[i]));
}

/* x (n, hidden) normed -> o (n, width), the states moved on */
static kvm_status recur(const kda *a, const kvm_step *s, kvm_tensor x, kvm_tensor o,
                        kvm_arena temp, kvm_err *err)
{
    const ptrdiff_t n = x.dim[0];
    kvm_tensor u = kvm_step_rows(&temp, n, 3 * a->width);
    kvm_tensor f = kvm_step_rows(&temp, n, a->width);
    kvm_tensor b = kvm_step_rows(&temp, n, a->heads);
    if (!u.data || !f.data || !b.data) return kvm_nomem(err, &temp);
    const kvm_weight *const maps[] = {a->q, a->k, a->v};
    for (int i = 0; i < 3; i++)
        TRY(kvm_op_linear(s->compute, kvm_columns(u, i * a->width, a->width), x,
                          maps[i], false, err));
    TRY(twice(a, s, x, a->f_a, a->f_b, f, temp, err));
    TRY(kvm_op_linear(s->compute, b, x, a->b, false, err));
    gates(a, f, b);
    return kvm_recur(&a->rule, &a->base, s, u,
                     kvm_heads(f, 0, a->heads, a->dim, a->dim), b, o, err);
}

static kvm_status replay(const kvm_layer *l, const kvm_step *s, kvm_tensor x,
                         kvm_err *err)
{
    const kda *a = of(l);
    kvm_arena temp = s->scratch;
    kvm_tensor o = kvm_step_rows(&temp, x.dim[0], a->width);
    if (!o.data) return kvm_nomem(err, &temp);
    return recur(a, s, x, o, temp, err);
}

/* y += Wo (rms(o) w sigmoid(Wg_b Wg_a x)) */
static kvm_status give(const kda *a, const kvm_step *s, kvm_tensor x, kvm_tensor o,
                       kvm_tensor y, kvm_arena temp, kvm_err *err)
{
    kvm_tensor z = kvm_step_rows(&temp, x.dim[0], a->width);
    if (!z.data) return kvm_nomem(err, &temp);
    TRY(twice(a, s, x, a->g_a, a->g_b, z, temp, err));
    TRY(kvm_recurrent_gate(&a->rule, s, o, a->head_norm, a->eps, z, true, err));
    return kvm_op_linear(s->compute, y, o, a->out, true, err);
}

static kvm_status forward(const kvm_layer *l, const kvm_step *s, kvm_tensor x,
                          kvm_tensor y, kvm_err *err)
{
    const kda *a = of(l);
    kvm_arena temp = s->scratch;
    kvm_tensor o = kvm_step_rows(&temp, s->n, a->width);
    if (!o.data) return kvm_nomem(err, &temp);
    const ptrdiff_t object = l->first_object;
    TRY(kvm_step_emit(s, object + KVM_RECURRENT_STATE, KVM_POINT_RAW, x.data, err));
    TRY(recur(a, s, x, o, temp, err));
    TRY(kvm_step_emit_state(s, object + KVM_RECURRENT_STATE, err));
    TRY(kvm_step_emit_state(s, object + KVM_RECURRENT_WINDOW, err));
    if (s->out == 0) return KVM_OK;
    return give(a, s, kvm_last_rows(x, s->out), kvm_last_rows(o, s->out), y, temp, err);
}

const kvm_layer_kind kvm_kda = {.name = "kda",
                                .load = load,
                                .objects = kvm_recurrent_objects,
                                .scratch = scratch,
                                .forward = forward,
                                .replay = replay};
