/* gqa.c - grouped-query attention with rotary positions (Ainslie et al. 2023).
 *
 *   q, k, v = W x (+ b)                      point 1: k, v
 *   q, k = rms per head, where the family has it    2: k
 *   q, k rotated at their positions; k, v appended  3: k
 *   q tempered; y += Wo attention(q, K, V)
 *
 * Gated attention (Qwen3-Next): W gives each head a gate behind its query, and the
 * output goes through sigmoid(gate) before Wo. */
#include <math.h>
#include <string.h>

#include "models/indexer.h"

typedef struct gqa {
    kvm_layer base;
    ptrdiff_t heads, kv_heads, dim, window;
    double eps, scale;
    bool gated;
    kvm_indexer *index; /* NULL: attends to all */
    double temperature; /* 0: none */
    ptrdiff_t original; /* position at which the temperature sets in */
    kvm_rope rope;
    kvm_weight *q, *k, *v, *o;
    float *q_norm, *k_norm; /* (dim), or NULL */
} gqa;

enum { OBJECT_K, OBJECT_V, OBJECT_INDEX };

static kvm_status load_maps(gqa *g, kvm_loader *ld, ptrdiff_t layer, kvm_err *err)
{
    const kvm_config *c = ld->config;
    const ptrdiff_t q = g->heads * g->dim, kv = g->kv_heads * g->dim;
    const kvm_linear_row rows[] = {
        {KVM_W_ATTN_Q, KVM_W_ATTN_Q_BIAS, layer, g->gated ? 2 * q : q, c->hidden,
         c->qkv_bias, g->heads, 0},
        {KVM_W_ATTN_K, KVM_W_ATTN_K_BIAS, layer, kv, c->hidden, c->qkv_bias,
         g->kv_heads, 0},
        {KVM_W_ATTN_V, KVM_W_ATTN_V_BIAS, layer, kv, c->hidden, c->qkv_bias, 0, 0},
        {KVM_W_ATTN_O, KVM_W_ATTN_O_BIAS, layer, c->hidden, q, c->o_bias, 0, 0},
    };
    kvm_weight **const maps[] = {&g->q, &g->k, &g->v, &g->o};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        TRY(kvm_load_linear(ld, &rows[i], maps[i], err));
    return KVM_OK;
}

static kvm_status load(kvm_layer **out, kvm_loader *ld, ptrdiff_t index, kvm_err *err)
{
    const kvm_config *c = ld->config;
    gqa *g = kvm_new(ld->keep, gqa, 1);
    if (!g) return kvm_nomem(err, ld->keep);
    *g = (gqa){.heads = c->heads,
               .kv_heads = c->kv_heads,
               .dim = c->head_dim,
               .window = c->window[index],
               .eps = c->eps,
               .scale = 1 / sqrt((double)c->head_dim),
               .gated = c->family->gated,
               .temperature = c->temperature,
               .original = c->rope.original};
    TRY(load_maps(g, ld, index, err));
    if (c->family->qk_norm) {
        TRY(kvm_load_norm(ld, KVM_W_ATTN_Q_NORM, index, g->dim, &g->q_norm, err));
        TRY(kvm_load_norm(ld, KVM_W_ATTN_K_NORM, index, g->dim, &g->k_norm, err));
    }
    g->rope = ld->rope;
    if (c->index.heads > 0) TRY(kvm_indexer_load(&g->index, ld, index, err));
    *out = &g->base;
    return KVM_OK;
}

static const gqa *of(const kvm_layer *l)
{
    return (const gqa *)(const void *)l;
}

static ptrdiff_t objects(const kvm_config *c, ptrdiff_t layer, const kvm_rope *rope,
                         kvm_object *out)
{
    const kvm_object both = {.layer = layer,
                             .heads = c->kv_heads,
                             .dim = c->head_dim,
                             .window = c->window[layer]};
    out[OBJECT_K] = out[OBJECT_V] = both;
    out[OBJECT_K].kind = KVM_OBJECT_K;
    out[OBJECT_K].rotary = rope->width > 0;
    out[OBJECT_K].rope = *rope;
    out[OBJECT_K].normed = c->family->qk_norm;
    out[OBJECT_V].kind = KVM_OBJECT_V;
    return 2 + kvm_indexer_objects(c, layer, rope, &out[OBJECT_INDEX]);
}

static size_t scratch(const kvm_layer *l, ptrdiff_t n)
{
    const gqa *g = of(l);
    return 2 * kvm_step_rows_bytes(n, g->kv_heads * g->dim) +
           (g->gated ? 5 : 2) * kvm_step_rows_bytes(n, g->heads * g->dim) +
           (g->index ? kvm_indexer_scratch(g->index, n) : 0);
}

static kvm_status norm_heads(const gqa *g, kvm_compute *c, kvm_tensor x, float *w,
                             kvm_err *err)
{
    return kvm_op_rmsnorm(c, x, x, kvm_view1(w, KVM_F32, g->dim), g->dim, g->eps, false,
                          err);
}

static kvm_status rotate(const gqa *g, kvm_compute *c, kvm_tensor x, const int32_t *pos,
                         bool inverse, kvm_err *err)
{
    const kvm_tensor heads =
        kvm_view3(x.data, KVM_F32, x.dim[0], x.dim[1] / g->dim, g->dim);
    return kvm_op_rope(c, heads, pos, &g->rope, inverse, err);
}

/* x (T,hidden) normed -> new rows of K and V in the cache and in the capture */
static kvm_status append(const gqa *g, const kvm_step *s, kvm_tensor x, kvm_arena temp,
                         kvm_err *err)
{
    const ptrdiff_t object = g->base.first_object;
    kvm_tensor k = kvm_step_rows(&temp, s->n, g->kv_heads * g->dim);
    kvm_tensor v = kvm_step_rows(&temp, s->n, g->kv_heads * g->dim);
    if (!k.data || !v.data) return kvm_nomem(err, &temp);
    TRY(kvm_op_linear(s->compute, v, x, g->v, false, err));
    kvm_slot_put(&s->slots[object + OBJECT_V], s->first, s->n, v.data);
    for (int point = KVM_POINT_RAW; point <= KVM_POINT_ENGINE; point++)
        TRY(kvm_step_emit(s, object + OBJECT_V, point, v.data, err));
    TRY(kvm_op_linear(s->compute, k, x, g->k, false, err));
    TRY(kvm_step_emit(s, object + OBJECT_K, KVM_POINT_RAW, k.data, err));
    if (g->k_norm) TRY(norm_heads(g, s->compute, k, g->k_norm, err));
    TRY(kvm_step_emit(s, object + OBJECT_K, KVM_POINT_NORMED, k.data, err));
    TRY(rotate(g, s->compute, k, s->pos, false, err));
    TRY(kvm_step_emit(s, object + OBJECT_K, KVM_POINT_ENGINE, k.data, err));
    kvm_slot_put(&s->slots[object + OBJECT_K], s->first, s->n, k.data);
    return KVM_OK;
}

/* a query at position p grows by 1 + beta ln(1 + floor(p / L0)), beta:
 * llama_4_scaling_beta, L0: original_max_position_embeddings (transformers'
 * get_llama_4_attn_scale) */
static void temper(const gqa *g, kvm_tensor q, const int32_t *pos)
{
    for (ptrdiff_t t = 0; g->temperature > 0 && t < q.dim[0]; t++) {
        if (pos[t] < g->original) continue;
        const ptrdiff_t turns = pos[t] / g->original; /* floor */
        const float by = (float)(1 + g->temperature * log((double)(1 + turns)));
        float *row = (float *)q.data + t * q.dim[1];
        for (ptrdiff_t i = 0; i < q.dim[1]; i++) row[i] *= by;
    }
}

/* queries of x (n,hidden), and the gates that come with them */
static kvm_status ask(const gqa *g, kvm_compute *c, kvm_tensor x, kvm_tensor q,
                      kvm_tensor gate, kvm_arena temp, kvm_err *err)
{
    const ptrdiff_t n = x.dim[0], width = g->heads * g->dim;
    if (!g->gated) return kvm_op_linear(c, q, x, g->q, false, err);
    kvm_tensor both = kvm_step_rows(&temp, n, 2 * width);
    if (!both.data) return kvm_nomem(err, &temp);
    TRY(kvm_op_linear(c, both, x, g->q, false, err));
    const float *from = both.data;
    const size_t bytes = (size_t)g->dim * sizeof *from;
    for (ptrdiff_t i = 0; i < n * g->heads; i++, from += 2 * g->dim) {
        memcpy((float *)q.data + i * g->dim, from, bytes);
        memcpy((float *)gate.data + i * g->dim, from + g->dim, bytes);
    }
    return KVM_OK;
}

/* x, h (out rows): h += Wo attention(q) */
static kvm_status attend(const gqa *g, const kvm_step *s, kvm_tensor x, kvm_tensor h,
                         kvm_arena temp, kvm_err *err)
{
    const ptrdiff_t n = x.dim[0], skipped = s->n - n, end = s->first + s->n;
    const kvm_slot *slot = &s->slots[g->base.first_object];
    kvm_tensor q = kvm_step_rows(&temp, n, g->heads * g->dim);
    kvm_tensor y = kvm_step_rows(&temp, n, g->heads * g->dim);
    kvm_tensor gate = kvm_step_rows(&temp, g->gated ? n : 0, g->heads * g->dim);
    if (!q.data || !y.data || !gate.data) return kvm_nomem(err, &temp);
    TRY(ask(g, s->compute, x, q, gate, temp, err));
    if (g->q_norm) TRY(norm_heads(g, s->compute, q, g->q_norm, err));
    TRY(rotate(g, s->compute, q, s->pos + skipped, false, err));
    temper(g, q, s->pos + skipped);
    TRY(kvm_step_attend(s, g->index != NULL, kvm_heads(y, 0, g->heads, g->dim, g->dim),
                        kvm_heads(q, 0, g->heads, g->dim, g->dim),
                        kvm_slot_view(&slot[OBJECT_K], end),
                        kvm_slot_view(&slot[OBJECT_V], end), g->window, g->scale, err));
    if (s->capture && s->capture->attention)
        TRY(s->capture->attention(s->capture->ctx, g->base.index, s->first + skipped, n,
                                  q.data, y.data, err));
    if (g->gated) TRY(kvm_op_sigmoid_mul(s->compute, y, gate, y, err));
    return kvm_op_linear(s->compute, h, y, g->o, true, err);
}

static kvm_status forward(const kvm_layer *l, const kvm_step *s, kvm_tensor x,
                          kvm_tensor y, kvm_err *err)
{
    const gqa *g = of(l);
    TRY(append(g, s, x, s->scratch, err));
    if (g->index)
        TRY(kvm_indexer_choose(g->index, s, l->first_object + OBJECT_INDEX, x, x, err));
    if (s->out == 0) return KVM_OK;
    return attend(g, s, kvm_last_rows(x, s->out), y, s->scratch, err);
}

static kvm_status advance(const kvm_layer *l, kvm_compute *c, ptrdiff_t which,
                          int point, const int32_t *pos, ptrdiff_t n, float *rows,
                          kvm_err *err)
{
    const gqa *g = of(l);
    if (which == OBJECT_V || point == KVM_POINT_ENGINE) return KVM_OK;
    if (which == OBJECT_INDEX)
        return kvm_indexer_advance(g->index, 0, c, point, pos, n, rows, err);
    const kvm_tensor k = kvm_view2(rows, KVM_F32, n, g->kv_heads * g->dim);
    if (point == KVM_POINT_RAW && g->k_norm) TRY(norm_heads(g, c, k, g->k_norm, err));
    return rotate(g, c, k, pos, false, err);
}

static kvm_status retreat(const kvm_layer *l, kvm_compute *c, ptrdiff_t which,
                          int point, const int32_t *pos, ptrdiff_t n, float *rows,
                          kvm_err *err)
{
    const gqa *g = of(l);
    if (which == OBJECT_V || point == KVM_POINT_ENGINE) return KVM_OK;
    if (which == OBJECT_INDEX)
        return kvm_indexer_retreat(g->index, 0, c, point, pos, n, rows, err);
    if (point == KVM_POINT_RAW && g->k_norm)
        return kvm_fail(
            err, KVM_UNSUPPORTED,
            "layer %td: keys cannot be taken back through their norm; capture "
            "them at point 1 during the forward",
            l->index);
    return rotate(g, c, kvm_view2(rows, KVM_F32, n, g->kv_heads * g->dim), pos, true,
                  err);
}

/* ---- backward ---- */

static size_t backward_scratch(const kvm_layer *l, ptrdiff_t first, ptrdiff_t n)
{
    (void)first;
    const gqa *g = of(l);
    return 3 * kvm_step_rows_bytes(n, g->kv_heads * g->dim) +
           (g->gated ? 8 : 4) * kvm_step_rows_bytes(n, g->heads * g->dim);
}

static kvm_status norm_heads_back(const gqa *g, kvm_compute *c, kvm_tensor dx,
                                  kvm_tensor x, float *w, kvm_err *err)
{
    return kvm_op_rmsnorm_back(c, dx, x, kvm_view1(w, KVM_F32, g->dim), dx, g->dim,
                               g->eps, false, false, err);
}

static kvm_status rotate_back(const gqa *g, kvm_compute *c, kvm_tensor dx,
                              const int32_t *pos, kvm_err *err)
{
    return kvm_op_rope_back(c, kvm_heads(dx, 0, dx.dim[1] / g->dim, g->dim, g->dim),
                            pos, &g->rope, err);
}

/* what the step's own keys and values, whose gradients lie in the slots, owe to x */
static kvm_status append_back(const gqa *g, const kvm_step *s, kvm_tensor x,
                              kvm_tensor dx, kvm_arena temp, kvm_err *err)
{
    const kvm_slot *grad = &s->grads[g->base.first_object];
    const ptrdiff_t width = g->kv_heads * g->dim;
    kvm_tensor k = kvm_step_rows(&temp, s->n, width);
    kvm_tensor dk = kvm_step_rows(&temp, s->n, width);
    kvm_tensor dv = kvm_step_rows(&temp, s->n, width);
    if (!k.data || !dk.data || !dv.data) return kvm_nomem(err, &temp);
    kvm_slot_get(&grad[OBJECT_V], s->first, s->n, dv.data);
    TRY(kvm_op_linear_back(s->compute, dx, dv, g->v, true, err));
    kvm_slot_get(&grad[OBJECT_K], s->first, s->n, dk.data);
    TRY(rotate_back(g, s->compute, dk, s->pos, err));
    if (g->k_norm) {
        TRY(kvm_op_linear(s->compute, k, x, g->k, false, err));
        TRY(norm_heads_back(g, s->compute, dk, k, g->k_norm, err));
    }
    return kvm_op_linear_back(s->compute, dx, dk, g->k, true, err);
}

/* dx += what queries, and the gates beside them, owe to it */
static kvm_status ask_back(const gqa *g, kvm_compute *c, kvm_tensor dq,
                           kvm_tensor dgate, kvm_tensor dx, kvm_arena temp,
                           kvm_err *err)
{
    const ptrdiff_t n = dx.dim[0], width = g->heads * g->dim;
    if (!g->gated) return kvm_op_linear_back(c, dx, dq, g->q, true, err);
    kvm_tensor both = kvm_step_rows(&temp, n, 2 * width);
    if (!both.data) return kvm_nomem(err, &temp);
    float *to = both.data;
    const size_t bytes = (size_t)g->dim * sizeof *to;
    for (ptrdiff_t i = 0; i < n * g->heads; i++, to += 2 * g->dim) {
        memcpy(to, (const float *)dq.data + i * g->dim, bytes);
        memcpy(to + g->dim, (const float *)dgate.data + i * g->dim, bytes);
    }
    return kvm_op_linear_back(c, dx, both, g->q, true, err);
}

/* da (n, heads * dim), the gradient by what Wo is given -> by the attention's output;
 * gate becomes its own gradient */
static kvm_status gate_back(const gqa *g, const kvm_step *s, kvm_tensor q,
                            kvm_tensor gate, kvm_tensor da, kvm_arena temp,
                            kvm_err *err)
{
    const ptrdiff_t end = s->first + s->n;
    const kvm_slot *slot = &s->slots[g->base.first_object];
    kvm_tensor y = kvm_step_rows(&temp, s->n, g->heads * g->dim);
    if (!y.data) return kvm_nomem(err, &temp);
    TRY(kvm_step_attend(s, g->index != NULL, kvm_heads(y, 0, g->heads, g->dim, g->dim),
                        kvm_heads(q, 0, g->heads, g->dim, g->dim),
                        kvm_slot_view(&slot[OBJECT_K], end),
                        kvm_slot_view(&slot[OBJECT_V], end), g->window, g->scale, err));
    return kvm_op_sigmoid_mul_back(s->compute, gate, da, gate, y, da, err);
}

static kvm_status attend_back(const gqa *g, const kvm_step *s, kvm_tensor x,
                              kvm_tensor dy, kvm_tensor dx, kvm_arena temp,
                              kvm_err *err)
{
    const ptrdiff_t n = s->n, end = s->first + n, width = g->heads * g->dim;
    const kvm_slot *slot = &s->slots[g->base.first_object];
    const kvm_slot *grad = &s->grads[g->base.first_object];
    kvm_tensor raw = kvm_step_rows(&temp, n, width), q = kvm_step_rows(&temp, n, width);
    kvm_tensor dq = kvm_step_rows(&temp, n, width), da = kvm_step_rows(&temp, n, width);
    kvm_tensor gate = kvm_step_rows(&temp, g->gated ? n : 0, width);
    if (!raw.data || !q.data || !dq.data || !da.data || !gate.data)
        return kvm_nomem(err, &temp);
    TRY(ask(g, s->compute, x, raw, gate, temp, err));
    memcpy(q.data, raw.data, (size_t)(n * width) * sizeof(float));
    if (g->q_norm) TRY(norm_heads(g, s->compute, q, g->q_norm, err));
    TRY(rotate(g, s->compute, q, s->pos, false, err));
    temper(g, q, s->pos);
    TRY(kvm_op_linear_back(s->compute, da, dy, g->o, false, err));
    if (g->gated) TRY(gate_back(g, s, q, gate, da, temp, err));
    TRY(kvm_step_attend_back(
        s, g->index != NULL, kvm_heads(dq, 0, g->heads, g->dim, g->dim),
        kvm_slot_view(&grad[OBJECT_K], end), kvm_slot_view(&grad[OBJECT_V], end),
        kvm_heads(q, 0, g->heads, g->dim, g->dim), kvm_slot_view(&slot[OBJECT_K], end),
        kvm_slot_view(&slot[OBJECT_V], end), kvm_heads(da, 0, g->heads, g->dim, g->dim),
        g->window, g->scale, err));
    temper(g, dq, s->pos);
    TRY(rotate_back(g, s->compute, dq, s->pos, err));
    if (g->q_norm) TRY(norm_heads_back(g, s->compute, dq, raw, g->q_norm, err));
    return ask_back(g, s->compute, dq, gate, dx, temp, err);
}

static kvm_status backward(const kvm_layer *l, const kvm_step *s, kvm_tensor x,
                           kvm_tensor dy, kvm_tensor dx, kvm_err *err)
{
    const gqa *g = of(l);
    TRY(attend_back(g, s, x, dy, dx, s->scratch, err));
    return append_back(g, s, x, dx, s->scratch, err);
}

static kvm_status pull(const kvm_layer *l, kvm_compute *c, ptrdiff_t which, int point,
                       const int32_t *pos, ptrdiff_t n, const float *rows, float *grad,
                       kvm_err *err)
{
    const gqa *g = of(l);
    if (which == OBJECT_V) return KVM_OK;
    if (which == OBJECT_INDEX)
        return kvm_indexer_pull(g->index, 0, c, point, pos, n, rows, grad, err);
    const kvm_tensor dk = kvm_view2(grad, KVM_F32, n, g->kv_heads * g->dim);
    TRY(rotate_back(g, c, dk, pos, err));
    if (point != KVM_POINT_RAW || !g->k_norm) return KVM_OK;
    return norm_heads_back(g, c, dk, kvm_view2_const(rows, KVM_F32, n, dk.dim[1]),
                           g->k_norm, err);
}

static const kvm_indexer *indexer(const kvm_layer *l, ptrdiff_t *object)
{
    *object = l->first_object + OBJECT_INDEX;
    return of(l)->index;
}

static kvm_attended attended(const kvm_layer *l)
{
    const gqa *g = of(l);
    return (kvm_attended){g->heads, g->kv_heads, g->dim, g->dim, g->window, g->scale};
}

static kvm_status expand(const kvm_layer *l, kvm_compute *c, const kvm_slot *slots,
                         ptrdiff_t n, float *k, float *v, kvm_err *err)
{
    (void)l, (void)c, (void)err;
    kvm_slot_get(&slots[OBJECT_K], 0, n, k);
    kvm_slot_get(&slots[OBJECT_V], 0, n, v);
    return KVM_OK;
}

const kvm_layer_kind kvm_gqa = {.name = "gqa",
                                .load = load,
                                .objects = objects,
                                .scratch = scratch,
                                .forward = forward,
                                .advance = advance,
                                .retreat = retreat,
                                .backward_scratch = backward_scratch,
                                .backward = backward,
                                .pull = pull,
                                .indexer = indexer,
                                .attended = attended,
                                .expand = expand};
