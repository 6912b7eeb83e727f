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
    kvm_recurrent base; /* keys are as many and as large as values */
    kvm_weight *q, *k, *v, *f_a, *f_b, *b, *g_a, *g_b;
    float *decay, *bias; /* (heads) exp(A), (values) d */
} kda;

/* one tensor over q|k|v, or three */
static kvm_status load_conv(kda *a, kvm_loader *ld, ptrdiff_t layer, kvm_err *err)
{
    static const kvm_weight_id parts[] = {KVM_W_KDA_CONV_Q, KVM_W_KDA_CONV_K,
                                          KVM_W_KDA_CONV_V};
    const ptrdiff_t window = a->base.size.window;
    if (kvm_checkpoint_has(ld->ck, (kvm_weight_at){KVM_W_KDA_CONV, layer, 0}))
        return kvm_load_grid(ld, KVM_W_KDA_CONV, layer, 3 * a->base.values, window,
                             &a->base.conv, err);
    a->base.conv = kvm_new_raw(ld->keep, float, 3 * a->base.values * window);
    if (!a->base.conv) return kvm_nomem(err, ld->keep);
    for (int i = 0; i < 3; i++) {
        float *part;
        TRY(kvm_load_grid(ld, parts[i], layer, a->base.values, window, &part, err));
        memcpy(a->base.conv + i * a->base.values * window, part,
               (size_t)(a->base.values * window) * sizeof *part);
    }
    return KVM_OK;
}

static kvm_status load_maps(kda *a, kvm_loader *ld, ptrdiff_t layer, kvm_err *err)
{
    const ptrdiff_t hidden = a->base.hidden, width = a->base.values;
    const ptrdiff_t heads = a->base.size.value_heads, dim = a->base.size.value_dim;
    const kvm_plain_map maps[] = {
        {KVM_W_ATTN_Q, width, hidden, &a->q},
        {KVM_W_ATTN_K, width, hidden, &a->k},
        {KVM_W_ATTN_V, width, hidden, &a->v},
        {KVM_W_KDA_F_A, dim, hidden, &a->f_a},
        {KVM_W_KDA_F_B, width, dim, &a->f_b},
        {KVM_W_KDA_BETA, heads, hidden, &a->b},
        {KVM_W_KDA_G_A, dim, hidden, &a->g_a},
        {KVM_W_KDA_G_B, width, dim, &a->g_b},
        {KVM_W_ATTN_O, hidden, width, &a->base.out},
    };
    return kvm_load_maps(ld, layer, maps, (ptrdiff_t)(sizeof maps / sizeof *maps), err);
}

/* ---- projections ---- */

static const kda *of(const kvm_recurrent *r)
{
    return (const kda *)(const void *)r;
}

/* project and gate take this much beside what all recurrent layers take */
static size_t scratch(const kvm_layer *l, ptrdiff_t n)
{
    const kvm_recurrent *r = (const kvm_recurrent *)(const void *)l;
    return kvm_recurrent_scratch(l, n) + kvm_step_rows_bytes(n, r->size.value_dim);
}

/* y (n,values) = W_b W_a x */
static kvm_status twice(const kvm_recurrent *r, const kvm_step *s, kvm_tensor x,
                        const kvm_weight *first, const kvm_weight *second, kvm_tensor y,
                        kvm_arena temp, kvm_err *err)
{
    kvm_tensor low = kvm_step_rows(&temp, x.dim[0], r->size.value_dim);
    if (!low.data) return kvm_nomem(err, &temp);
    TRY(kvm_op_linear(s->compute, low, x, first, false, err));
    return kvm_op_linear(s->compute, y, low, second, false, err);
}

/* Each decay takes a logarithm of its own, a tenth of the layer's time on one thread:
 * tokens are shared out. */
typedef struct decays {
    const kda *a;
    float *x;       /* (n, values) */
    const float *y; /* (n, values) of a way back: the log-decays */
    ptrdiff_t n;
} decays;

enum { DECAY_TOKENS = 16 }; /* of a part */

static void share_decays(kvm_compute *c, decays *d,
                         void (*part)(void *ctx, ptrdiff_t part, int thread))
{
    kvm_pool_run(kvm_compute_pool(c), (d->n + DECAY_TOKENS - 1) / DECAY_TOKENS, part,
                 d);
}

static ptrdiff_t tokens_of(const decays *d, ptrdiff_t part)
{
    const ptrdiff_t left = d->n - part * DECAY_TOKENS;
    return left < DECAY_TOKENS ? left : DECAY_TOKENS;
}

/* f becomes log-decay */
static void decay_part(void *ctx, ptrdiff_t part, int thread)
{
    (void)thread;
    const decays *d = ctx;
    const kda *a = d->a;
    const float bound = (float)a->base.size.lower_bound;
    float *x = d->x + part * DECAY_TOKENS * a->base.values;
    for (ptrdiff_t t = 0; t < tokens_of(d, part); t++)
        for (ptrdiff_t i = 0; i < a->base.values; i++, x++) {
            const float rate = a->decay[i / a->base.size.value_dim];
            const float y = *x + a->bias[i];
            *x = bound < 0 ? bound / (1 + expf(-rate * y)) : kvm_log_decay(rate, y);
        }
}

/* a gradient by log-decays, which are y, becomes that by f */
static void decay_back_part(void *ctx, ptrdiff_t part, int thread)
{
    (void)thread;
    const decays *d = ctx;
    const kda *a = d->a;
    const float bound = (float)a->base.size.lower_bound;
    const ptrdiff_t first = part * DECAY_TOKENS * a->base.values;
    const float *at = d->y + first;
    float *x = d->x + first;
    for (ptrdiff_t t = 0; t < tokens_of(d, part); t++)
        for (ptrdiff_t i = 0; i < a->base.values; i++, x++, at++) {
            const float rate = a->decay[i / a->base.size.value_dim];
            *x *= bound < 0 ? rate * *at * (1 - *at / bound)
                            : kvm_log_decay_slope(rate, *at);
        }
}

static kvm_status project(const kvm_recurrent *r, const kvm_step *s, kvm_tensor x,
                          const kvm_recurrent_inputs *in, kvm_arena temp, kvm_err *err)
{
    const kda *a = of(r);
    const kvm_weight *const maps[] = {a->q, a->k, a->v};
    for (int i = 0; i < 3; i++)
        TRY(kvm_op_linear(s->compute, kvm_columns(in->u, i * r->values, r->values), x,
                          maps[i], false, err));
    TRY(twice(r, s, x, a->f_a, a->f_b, in->decay, temp, err));
    TRY(kvm_op_linear(s->compute, in->beta, x, a->b, false, err));
    share_decays(s->compute, &(decays){.a = a, .x = in->decay.data, .n = x.dim[0]},
                 decay_part);
    kvm_sigmoids(in->beta.data, x.dim[0] * r->size.value_heads);
    return KVM_OK;
}

static kvm_status gate(const kvm_recurrent *r, const kvm_step *s, kvm_tensor x,
                       kvm_tensor z, kvm_arena temp, kvm_err *err)
{
    return twice(r, s, x, of(r)->g_a, of(r)->g_b, z, temp, err);
}

/* dx += (W_b W_a)' dy */
static kvm_status twice_back(const kvm_recurrent *r, const kvm_step *s, kvm_tensor dy,
                             const kvm_weight *first, const kvm_weight *second,
                             kvm_tensor dx, kvm_arena temp, kvm_err *err)
{
    kvm_tensor low = kvm_step_rows(&temp, dx.dim[0], r->size.value_dim);
    if (!low.data) return kvm_nomem(err, &temp);
    TRY(kvm_op_linear_back(s->compute, low, dy, second, false, err));
    return kvm_op_linear_back(s->compute, dx, low, first, true, err);
}

static kvm_status project_back(const kvm_recurrent *r, const kvm_step *s,
                               const kvm_recurrent_inputs *in,
                               const kvm_recurrent_inputs *d, kvm_tensor dx,
                               kvm_arena temp, kvm_err *err)
{
    const kda *a = of(r);
    const kvm_weight *const maps[] = {a->q, a->k, a->v};
    share_decays(
        s->compute,
        &(decays){.a = a, .x = d->decay.data, .y = in->decay.data, .n = dx.dim[0]},
        decay_back_part);
    kvm_sigmoids_back(d->beta.data, in->beta.data, dx.dim[0] * r->size.value_heads);
    for (int i = 0; i < 3; i++)
        TRY(kvm_op_linear_back(s->compute, dx,
                               kvm_columns(d->u, i * r->values, r->values), maps[i],
                               true, err));
    TRY(twice_back(r, s, d->decay, a->f_a, a->f_b, dx, temp, err));
    return kvm_op_linear_back(s->compute, dx, d->beta, a->b, true, err);
}

static kvm_status gate_back(const kvm_recurrent *r, const kvm_step *s, kvm_tensor dz,
                            kvm_tensor dx, kvm_arena temp, kvm_err *err)
{
    return twice_back(r, s, dz, of(r)->g_a, of(r)->g_b, dx, temp, err);
}

static size_t backward_scratch(const kvm_layer *l, ptrdiff_t first, ptrdiff_t n)
{
    const kvm_recurrent *r = (const kvm_recurrent *)(const void *)l;
    return kvm_recurrent_backward_scratch(l, first, n) +
           kvm_step_rows_bytes(n, r->size.value_dim);
}

static kvm_status load(kvm_layer **out, kvm_loader *ld, ptrdiff_t index, kvm_err *err)
{
    kda *a = kvm_new(ld->keep, kda, 1);
    if (!a) return kvm_nomem(err, ld->keep);
    kvm_recurrent *r = &a->base;
    TRY(kvm_recurrent_of(r, ld->keep, ld->config, err));
    const ptrdiff_t heads = r->size.value_heads;
    r->per_channel = true;
    r->sigmoid = true;
    r->project = project;
    r->gate = gate;
    r->project_back = project_back;
    r->gate_back = gate_back;
    TRY(load_maps(a, ld, index, err));
    TRY(load_conv(a, ld, index, err));
    TRY(kvm_load_vector(ld, KVM_W_KDA_DECAY, index, heads, &a->decay, err));
    for (ptrdiff_t h = 0; h < heads; h++) a->decay[h] = expf(a->decay[h]);
    TRY(kvm_load_vector(ld, KVM_W_KDA_STEP, index, r->values, &a->bias, err));
    TRY(kvm_load_vector(ld, KVM_W_KDA_NORM, index, r->size.value_dim, &r->norm, err));
    *out = &r->base;
    return KVM_OK;
}

const kvm_layer_kind kvm_kda = {.name = "kda",
                                .load = load,
                                .objects = kvm_recurrent_objects,
                                .scratch = scratch,
                                .forward = kvm_recurrent_forward,
                                .backward_scratch = backward_scratch,
                                .backward = kvm_recurrent_backward,
                                .replay = kvm_recurrent_replay,
                                .replay_back = kvm_recurrent_replay_back};
