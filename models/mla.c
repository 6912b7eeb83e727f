/* mla.c - multi-head latent attention (DeepSeek-V2, 2024; equations of V3).
 *
 *   [l | p] = Wkv_a x                                 point 1: latent l, rotary key p
 *   l = rms(l)                                        2: l
 *   p rotated at its position; l and p appended       3: p
 *   q = Wq x, or Wq_b rms(Wq_a x); per head [qn | qp], qp rotated
 *   per head h, token t: k = [Wk_h l_t | p_t], v = Wv_h l_t   (Wkv_b = Wk_h, Wv_h, ...)
 *   y += Wo attention(q, k, v)
 *
 * Two ways to the same sums. Expanded: k and v are written out for some heads at a
 * time, then ordinary attention. Absorbed: Wk_h is taken to the query's side and Wv_h
 * behind the sum, so that all heads read the cached rows [l | p] as they lie, once. A
 * pair of query and key costs rank + rope and rank products per head there, nope + rope
 * and value here, but here each key is written out first: many queries expand, few
 * absorb. */
#include "models/mla_internal.h"

#include <math.h>
#include <string.h>

/* keys and values that are written out at once, over all tokens and some heads */
enum { EXPANDED_BYTES = 32 << 20 };

/* ---- load ---- */

/* Wkv_b (heads * (nope + value), rank) cut into heads, and Wk_h transposed, widened */
static kvm_status cut_heads(mla *a, kvm_loader *ld, kvm_tensor b, kvm_err *err)
{
    const ptrdiff_t nope = a->size.nope, rank = a->size.rank, value = a->size.value;
    a->k = kvm_new(ld->keep, kvm_weight *, a->heads);
    a->v = kvm_new(ld->keep, kvm_weight *, a->heads);
    a->kt = kvm_new(ld->keep, kvm_weight *, a->heads);
    float *turned = kvm_new_raw(ld->keep, float, a->heads *rank *nope);
    float *row = kvm_new_raw(ld->keep, float, rank);
    if (!a->k || !a->v || !a->kt || !turned || !row) return kvm_nomem(err, ld->keep);
    for (ptrdiff_t h = 0; h < a->heads; h++) {
        const ptrdiff_t at = h * (nope + value);
        float *t = turned + h * rank * nope;
        for (ptrdiff_t i = 0; i < nope; i++) {
            TRY(kvm_widen_at(row, &b, at + i, 0, rank, err));
            for (ptrdiff_t j = 0; j < rank; j++) t[j * nope + i] = row[j];
        }
        TRY(kvm_weight_new(&a->kt[h], ld->keep, ld->compute,
                           kvm_view2(t, KVM_F32, rank, nope), NULL, err));
        TRY(kvm_load_rows(ld, b, at, nope, &a->k[h], err));
        TRY(kvm_load_rows(ld, b, at + nope, value, &a->v[h], err));
    }
    return KVM_OK;
}

static kvm_status load_queries(mla *a, kvm_loader *ld, ptrdiff_t layer, kvm_err *err)
{
    const kvm_config *c = ld->config;
    const ptrdiff_t out = a->heads * mla_key_size(a), rank = a->size.query_rank;
    const bool bias = c->o_bias; /* attention_bias: the maps from and to the stream */
    if (rank == 0) {
        const kvm_linear_row q = {.weight = KVM_W_ATTN_Q,
                                  .bias = KVM_W_ATTN_Q_BIAS,
                                  .layer = layer,
                                  .out = out,
                                  .in = c->hidden};
        return kvm_load_linear(ld, &q, &a->q, err);
    }
    const kvm_linear_row down = {
        KVM_W_MLA_Q_A, KVM_W_MLA_Q_A_BIAS, layer, rank, c->hidden, bias, 0, 0};
    const kvm_linear_row up = {.weight = KVM_W_MLA_Q_B,
                               .bias = KVM_W_MLA_Q_B,
                               .layer = layer,
                               .out = out,
                               .in = rank};
    TRY(kvm_load_linear(ld, &down, &a->q_a, err));
    TRY(kvm_load_vector(ld, KVM_W_MLA_Q_NORM, layer, rank, &a->q_norm, err));
    return kvm_load_linear(ld, &up, &a->q, err);
}

/* sqrt of what YaRN multiplies the scale of scores by, for these families alone
 * (yarn_get_mscale of transformers) */
static double correction(const kvm_rope_config *r)
{
    if (r->kind == KVM_ROPE_DEFAULT || r->mscale_all_dim == 0 || r->factor <= 1)
        return 1;
    return 0.1 * r->mscale_all_dim * log(r->factor) + 1;
}

static kvm_status load(kvm_layer **out, kvm_loader *ld, ptrdiff_t index, kvm_err *err)
{
    const kvm_config *c = ld->config;
    mla *a = kvm_new(ld->keep, mla, 1);
    if (!a) return kvm_nomem(err, ld->keep);
    *a = (mla){.heads = c->heads,
               .context = c->context,
               .size = c->mla,
               .inner_eps = c->family->lora_eps > 0 ? c->family->lora_eps : c->eps,
               .rope = ld->rope};
    const double m = correction(&c->rope);
    a->scale = m * m / sqrt((double)mla_key_size(a));
    const kvm_linear_row kv_a = {
        KVM_W_MLA_KV_A, KVM_W_MLA_KV_A_BIAS, index, mla_row_size(a),
        c->hidden,      c->o_bias,           0,     0};
    const kvm_linear_row o = {KVM_W_ATTN_O,
                              KVM_W_ATTN_O_BIAS,
                              index,
                              c->hidden,
                              a->heads * a->size.value,
                              c->o_bias,
                              0,
                              0};
    kvm_tensor kv_b;
    TRY(load_queries(a, ld, index, err));
    TRY(kvm_load_linear(ld, &kv_a, &a->kv_a, err));
    TRY(kvm_load_vector(ld, KVM_W_MLA_KV_NORM, index, a->size.rank, &a->kv_norm, err));
    const ptrdiff_t heads = a->heads * (a->size.nope + a->size.value);
    TRY(kvm_load_matrix(ld, KVM_W_MLA_KV_B, index, heads, a->size.rank, &kv_b, err));
    ld->matrix_parameters += heads * a->size.rank;
    TRY(kvm_load_linear(ld, &o, &a->o, err));
    TRY(cut_heads(a, ld, kv_b, err));
    a->chooses = c->index.heads > 0;
    if (a->chooses) TRY(kvm_indexer_load(&a->index, ld, index, err));
    *out = &a->base;
    return KVM_OK;
}

/* ---- objects ---- */

static ptrdiff_t objects(const kvm_config *c, ptrdiff_t layer, const kvm_rope *rope,
                         kvm_object *out)
{
    out[OBJECT_LATENT] = (kvm_object){.kind = KVM_OBJECT_LATENT,
                                      .layer = layer,
                                      .heads = 1,
                                      .dim = c->mla.rank,
                                      .normed = true};
    if (c->mla.rope > 0)
        out[OBJECT_ROTARY] = (kvm_object){.kind = KVM_OBJECT_ROTARY_KEY,
                                          .layer = layer,
                                          .heads = 1,
                                          .dim = c->mla.rope,
                                          .rotary = rope->width > 0,
                                          .rope = *rope,
                                          .beside = true};
    const ptrdiff_t own = mla_index_object(&c->mla);
    return own + kvm_indexer_objects(c, layer, rope, &out[own]);
}

/* heads whose keys and values over `tokens` are written out at once */
static ptrdiff_t heads_at_once(const mla *a, ptrdiff_t tokens)
{
    const ptrdiff_t bytes =
        tokens * (mla_key_size(a) + a->size.value) * (ptrdiff_t)sizeof(float);
    const ptrdiff_t n = EXPANDED_BYTES / (bytes > 0 ? bytes : 1);
    return n < 1 ? 1 : n < a->heads ? n : a->heads;
}

static size_t scratch(const kvm_layer *l, ptrdiff_t n)
{
    const mla *a = mla_of(l);
    const ptrdiff_t key = mla_key_size(a), value = a->size.value;
    const size_t whole = kvm_step_rows_bytes(a->context, key + value);
    const size_t expanded = whole > EXPANDED_BYTES ? whole : EXPANDED_BYTES;
    const size_t absorbed = kvm_step_rows_bytes(n, a->heads * mla_row_size(a)) +
                            kvm_step_rows_bytes(n, a->heads * a->size.rank);
    return kvm_step_rows_bytes(n, mla_row_size(a)) +
           kvm_step_rows_bytes(n, a->size.query_rank) +
           kvm_step_rows_bytes(n, a->heads * key) +
           kvm_step_rows_bytes(n, a->heads * value) + 256 + expanded + absorbed +
           (a->index ? kvm_indexer_scratch(a->index, n) : 0);
}

/* ---- forward ---- */

static kvm_status norm_latent(const mla *a, kvm_compute *c, kvm_tensor latent,
                              kvm_err *err)
{
    return kvm_op_rmsnorm(c, latent, latent,
                          kvm_view1(a->kv_norm, KVM_F32, a->size.rank), a->size.rank,
                          a->inner_eps, false, err);
}

static kvm_status rotate(const mla *a, kvm_compute *c, kvm_tensor heads,
                         const int32_t *pos, bool inverse, kvm_err *err)
{
    return kvm_op_rope(c, heads, pos, &a->rope, inverse, err);
}

/* hand out both objects of rows (n, rank + rope) at a point; temp holds one of them */
static kvm_status emit(const mla *a, const kvm_step *s, int point, kvm_tensor rows,
                       kvm_arena temp, kvm_err *err)
{
    const ptrdiff_t from[] = {0, a->size.rank}, size[] = {a->size.rank, a->size.rope};
    if (!s->capture || !(s->capture->points & 1u << point)) return KVM_OK;
    for (int o = 0; o < mla_index_object(&a->size); o++) {
        kvm_arena part = temp;
        float *out = kvm_new_raw(&part, float, s->n *size[o]);
        if (!out) return kvm_nomem(err, &part);
        for (ptrdiff_t t = 0; t < s->n; t++)
            memcpy(out + t * size[o], (float *)rows.data + t * rows.stride[0] + from[o],
                   (size_t)size[o] * sizeof *out);
        TRY(kvm_step_emit(s, a->base.first_object + o, point, out, err));
    }
    return KVM_OK;
}

/* x (T,hidden) normed -> new rows of both objects in the cache and in the capture */
static kvm_status append(const mla *a, const kvm_step *s, kvm_tensor x, kvm_arena temp,
                         kvm_err *err)
{
    const kvm_slot *slot = &s->slots[a->base.first_object];
    kvm_tensor rows = kvm_slot_view(slot, s->first + s->n);
    rows = kvm_view2((float *)rows.data + s->first * slot->stride, KVM_F32, s->n,
                     mla_row_size(a));
    TRY(kvm_op_linear(s->compute, rows, x, a->kv_a, false, err));
    TRY(emit(a, s, KVM_POINT_RAW, rows, temp, err));
    kvm_tensor latent = kvm_columns(rows, 0, a->size.rank);
    TRY(norm_latent(a, s->compute, latent, err));
    TRY(emit(a, s, KVM_POINT_NORMED, rows, temp, err));
    kvm_tensor keys = kvm_heads(rows, a->size.rank, 1, a->size.rope, 0);
    TRY(rotate(a, s->compute, keys, s->pos, false, err));
    return emit(a, s, KVM_POINT_ENGINE, rows, temp, err);
}

kvm_status kvm_mla__lower(const mla *a, const kvm_step *s, kvm_tensor *x,
                          kvm_arena *temp, kvm_err *err)
{
    if (!a->q_a) return KVM_OK;
    const ptrdiff_t rank = a->size.query_rank;
    kvm_tensor low = kvm_step_rows(temp, x->dim[0], rank);
    if (!low.data) return kvm_nomem(err, temp);
    TRY(kvm_op_linear(s->compute, low, *x, a->q_a, false, err));
    TRY(kvm_op_rmsnorm(s->compute, low, low, kvm_view1(a->q_norm, KVM_F32, rank), rank,
                       a->inner_eps, false, err));
    *x = low;
    return KVM_OK;
}

kvm_status kvm_mla__ask(const mla *a, const kvm_step *s, kvm_tensor x,
                        const int32_t *pos, kvm_tensor q, kvm_err *err)
{
    TRY(kvm_op_linear(s->compute, q, x, a->q, false, err));
    return rotate(a, s->compute,
                  kvm_heads(q, a->size.nope, a->heads, a->size.rope, mla_key_size(a)),
                  pos, false, err);
}

kvm_tensor kvm_mla__cached(const mla *a, const kvm_step *s)
{
    const kvm_slot *slot = &s->slots[a->base.first_object];
    return kvm_view2(slot->rows, KVM_F32, s->first + s->n, mla_row_size(a));
}

/* k (heads of it, tokens, nope+rope) and v (.., value) of heads from .., out of cached
 * rows (tokens, rank+rope) */
static kvm_status write_out(const mla *a, kvm_compute *c, kvm_tensor rows,
                            ptrdiff_t from, kvm_tensor k, kvm_tensor v, kvm_err *err)
{
    const ptrdiff_t tokens = k.dim[1], key = mla_key_size(a);
    const kvm_tensor latent = kvm_columns(rows, 0, a->size.rank);
    for (ptrdiff_t h = 0; h < k.dim[0]; h++) {
        float *keys = (float *)k.data + h * k.stride[0];
        kvm_tensor all = kvm_view2(keys, KVM_F32, tokens, key);
        kvm_tensor values = kvm_view2((float *)v.data + h * v.stride[0], KVM_F32,
                                      tokens, a->size.value);
        all.stride[0] = k.stride[1];
        values.stride[0] = v.stride[1];
        TRY(kvm_op_linear(c, kvm_columns(all, 0, a->size.nope), latent, a->k[from + h],
                          false, err));
        for (ptrdiff_t t = 0; t < tokens; t++)
            memcpy(keys + t * all.stride[0] + a->size.nope,
                   (float *)rows.data + t * rows.stride[0] + a->size.rank,
                   (size_t)a->size.rope * sizeof *keys);
        TRY(kvm_op_linear(c, values, latent, a->v[from + h], false, err));
    }
    return KVM_OK;
}

static kvm_status attend_expanded(const mla *a, const kvm_step *s, kvm_tensor q,
                                  kvm_tensor y, kvm_arena temp, kvm_err *err)
{
    const ptrdiff_t tokens = s->first + s->n;
    const ptrdiff_t most = heads_at_once(a, tokens), key = mla_key_size(a);
    float *k = kvm_new_raw(&temp, float, most *tokens *key);
    float *v = kvm_new_raw(&temp, float, most *tokens * a->size.value);
    if (!k || !v) return kvm_nomem(err, &temp);
    for (ptrdiff_t h = 0; h < a->heads; h += most) {
        const ptrdiff_t n = a->heads - h < most ? a->heads - h : most;
        const kvm_tensor kh = kvm_view3(k, KVM_F32, n, tokens, key);
        const kvm_tensor vh = kvm_view3(v, KVM_F32, n, tokens, a->size.value);
        TRY(write_out(a, s->compute, kvm_mla__cached(a, s), h, kh, vh, err));
        const kvm_tensor qh = kvm_heads(q, h * key, n, key, key);
        const kvm_tensor yh =
            kvm_heads(y, h * a->size.value, n, a->size.value, a->size.value);
        TRY(kvm_step_attend(s, a->chooses, yh, qh, kh, vh, 0, a->scale, err));
    }
    return KVM_OK;
}

void kvm_mla__copy_heads(const mla *a, kvm_tensor to, ptrdiff_t at, ptrdiff_t apart,
                         kvm_tensor from, ptrdiff_t from_at, ptrdiff_t from_apart,
                         ptrdiff_t n)
{
    for (ptrdiff_t t = 0; t < to.dim[0]; t++)
        for (ptrdiff_t h = 0; h < a->heads; h++)
            memcpy((float *)to.data + t * to.stride[0] + h * apart + at,
                   (float *)from.data + t * from.stride[0] + h * from_apart + from_at,
                   (size_t)n * sizeof(float));
}

kvm_status kvm_mla__absorb(const mla *a, const kvm_step *s, kvm_tensor q,
                           kvm_tensor wide, kvm_err *err)
{
    const ptrdiff_t rank = a->size.rank, nope = a->size.nope;
    const ptrdiff_t row = mla_row_size(a), key = mla_key_size(a);
    for (ptrdiff_t h = 0; h < a->heads; h++)
        TRY(kvm_op_linear(s->compute, kvm_columns(wide, h * row, rank),
                          kvm_columns(q, h * key, nope), a->kt[h], false, err));
    kvm_mla__copy_heads(a, wide, rank, row, q, nope, key, a->size.rope);
    return KVM_OK;
}

static kvm_status attend_absorbed(const mla *a, const kvm_step *s, kvm_tensor q,
                                  kvm_tensor y, kvm_arena temp, kvm_err *err)
{
    const ptrdiff_t n = q.dim[0], tokens = s->first + s->n, row = mla_row_size(a);
    const ptrdiff_t rank = a->size.rank;
    kvm_tensor wide = kvm_step_rows(&temp, n, a->heads * row);
    kvm_tensor sums = kvm_step_rows(&temp, n, a->heads * rank);
    if (!wide.data || !sums.data) return kvm_nomem(err, &temp);
    TRY(kvm_mla__absorb(a, s, q, wide, err));
    const kvm_tensor rows = kvm_mla__cached(a, s);
    const kvm_tensor k = kvm_view3(rows.data, KVM_F32, 1, tokens, row);
    kvm_tensor v = k;
    v.dim[2] = rank;
    TRY(kvm_step_attend(s, a->chooses, kvm_heads(sums, 0, a->heads, rank, rank),
                        kvm_heads(wide, 0, a->heads, row, row), k, v, 0, a->scale,
                        err));
    for (ptrdiff_t h = 0; h < a->heads; h++)
        TRY(kvm_op_linear(s->compute, kvm_columns(y, h * a->size.value, a->size.value),
                          kvm_columns(sums, h * rank, rank), a->v[h], false, err));
    return KVM_OK;
}

/* what each way multiplies per head: see the top */
static bool absorbs(const mla *a, ptrdiff_t queries, ptrdiff_t tokens)
{
    const double pairs = (double)queries * (double)tokens;
    const double map = (double)a->size.rank * (double)(a->size.nope + a->size.value);
    const double expanded =
        pairs * (double)(mla_key_size(a) + a->size.value) + map * (double)tokens;
    const double absorbed =
        pairs * (double)(mla_row_size(a) + a->size.rank) + map * (double)queries;
    return absorbed < expanded;
}

static kvm_status attend(const mla *a, const kvm_step *s, kvm_tensor x, kvm_tensor h,
                         kvm_arena temp, kvm_err *err)
{
    const ptrdiff_t n = x.dim[0], skipped = s->n - n;
    kvm_tensor q = kvm_step_rows(&temp, n, a->heads * mla_key_size(a));
    kvm_tensor y = kvm_step_rows(&temp, n, a->heads * a->size.value);
    if (!q.data || !y.data) return kvm_nomem(err, &temp);
    TRY(kvm_mla__ask(a, s, x, s->pos + skipped, q, err));
    if (absorbs(a, n, s->first + s->n))
        TRY(attend_absorbed(a, s, q, y, temp, err));
    else
        TRY(attend_expanded(a, s, q, y, temp, err));
    if (s->capture && s->capture->attention)
        TRY(s->capture->attention(s->capture->ctx, a->base.index, s->first + skipped, n,
                                  q.data, y.data, err));
    return kvm_op_linear(s->compute, h, y, a->o, true, err);
}

static kvm_status forward(const kvm_layer *l, const kvm_step *s, kvm_tensor x,
                          kvm_tensor y, kvm_err *err)
{
    const mla *a = mla_of(l);
    kvm_step rest = *s; /* what is left of the scratch */
    TRY(append(a, s, x, s->scratch, err));
    kvm_tensor low = a->index ? x : kvm_last_rows(x, s->out);
    if (low.dim[0] > 0) TRY(kvm_mla__lower(a, s, &low, &rest.scratch, err));
    if (a->index)
        TRY(kvm_indexer_choose(a->index, &rest,
                               a->base.first_object + mla_index_object(&a->size), x,
                               low, err));
    if (s->out == 0) return KVM_OK;
    return attend(a, s, kvm_last_rows(low, s->out), y, rest.scratch, err);
}

/* ---- injection ---- */

static kvm_status advance(const kvm_layer *l, kvm_compute *c, ptrdiff_t which,
                          int point, const int32_t *pos, ptrdiff_t n, float *rows,
                          kvm_err *err)
{
    const mla *a = mla_of(l);
    if (which >= mla_index_object(&a->size))
        return kvm_indexer_advance(a->index, which - mla_index_object(&a->size), c,
                                   point, pos, n, rows, err);
    if (point == KVM_POINT_ENGINE) return KVM_OK;
    if (which == OBJECT_LATENT) {
        const kvm_tensor latent = kvm_view2(rows, KVM_F32, n, a->size.rank);
        return point == KVM_POINT_RAW ? norm_latent(a, c, latent, err) : KVM_OK;
    }
    return rotate(a, c, kvm_view3(rows, KVM_F32, n, 1, a->size.rope), pos, false, err);
}

static kvm_status retreat(const kvm_layer *l, kvm_compute *c, ptrdiff_t which,
                          int point, const int32_t *pos, ptrdiff_t n, float *rows,
                          kvm_err *err)
{
    const mla *a = mla_of(l);
    if (which >= mla_index_object(&a->size))
        return kvm_indexer_retreat(a->index, which - mla_index_object(&a->size), c,
                                   point, pos, n, rows, err);
    if (point == KVM_POINT_ENGINE) return KVM_OK;
    if (which == OBJECT_ROTARY)
        return rotate(a, c, kvm_view3(rows, KVM_F32, n, 1, a->size.rope), pos, true,
                      err);
    if (point == KVM_POINT_NORMED) return KVM_OK;
    return kvm_fail(err, KVM_UNSUPPORTED,
                    "layer %td: latents cannot be taken back through their norm; "
                    "capture them at point 1 during the forward",
                    l->index);
}

static const kvm_indexer *indexer(const kvm_layer *l, ptrdiff_t *object)
{
    *object = l->first_object + mla_index_object(&mla_of(l)->size);
    return mla_of(l)->index;
}

static kvm_attended attended(const kvm_layer *l)
{
    const mla *a = mla_of(l);
    return (kvm_attended){.query_heads = a->heads,
                          .kv_heads = a->heads,
                          .dim = mla_key_size(a),
                          .value_dim = a->size.value,
                          .scale = a->scale};
}

static kvm_status expand(const kvm_layer *l, kvm_compute *c, const kvm_slot *slots,
                         ptrdiff_t n, float *k, float *v, kvm_err *err)
{
    const mla *a = mla_of(l);
    const ptrdiff_t key = mla_key_size(a), value = a->size.value;
    const kvm_tensor rows =
        kvm_view2(slots[OBJECT_LATENT].rows, KVM_F32, n, mla_row_size(a));
    kvm_tensor kt = kvm_view3(k, KVM_F32, a->heads, n, key);
    kvm_tensor vt = kvm_view3(v, KVM_F32, a->heads, n, value);
    kt.stride[0] = key, kt.stride[1] = a->heads * key;
    vt.stride[0] = value, vt.stride[1] = a->heads * value;
    return write_out(a, c, rows, 0, kt, vt, err);
}

const kvm_layer_kind kvm_mla = {.name = "mla",
                                .load = load,
                                .objects = objects,
                                .scratch = scratch,
                                .forward = forward,
                                .advance = advance,
                                .retreat = retreat,
                                .backward_scratch = kvm_mla__backward_scratch,
                                .backward = kvm_mla__backward,
                                .pull = kvm_mla__pull,
                                .indexer = indexer,
                                .attended = attended,
                                .expand = expand};
