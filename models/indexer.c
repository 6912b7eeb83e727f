/* indexer.c - three ways to choose what attention looks at.
 *
 * Tokens: DeepSeek sparse attention's lightning indexer (DeepSeek-V3.2, 2025; GLM-5).
 *   k = Wk x                                             point 1
 *   k = layernorm(k)                                     2
 *   first entries of k rotated at its position, appended 3
 *   q_h = Wq low, rotated likewise; w = Ww x
 *   score(p, t) = sum over heads of w_h relu(q_h . k_t) / sqrt(heads * dim)
 *   query p attends to the `most` visible tokens of the largest score
 *
 * The reference engine turns q and k by a Hadamard matrix and rounds both to 8 bits;
 * the first changes no product and the second is left out here.
 *
 * Pools of r tokens: GLM-5.3-Flash's (transformers' Glm5NextTextIndexer).
 *   k = layernorm(Wk x), without a rotation, appended; 1 and 2 as above
 *   z = G x, as it is, appended                          1, 2, 3
 *   of each whole pool, counted from token 0, per channel: b = sum of softmax(z + a) k
 *   over its tokens, a a row for each place in the pool
 *   score(p, b) as above; the most / r best of the pools that end at p or before, and
 *   what follows the last of them
 *
 * Blocks of r tokens: Qwen's sparse attention (transformers' Qwen4ExpTextQSAIndexer).
 *   [q | k] = Wqk x; k as it is, appended                1, 2, 3
 *   of each whole block, counted from token 0: b = rms(mean of its k), rotated at its
 *   first token; q_h = rms(q_h), rotated
 *   score(p, b) = sum over heads of relu(q_h . b) / sqrt(dim)
 *   query p attends to the most / r blocks of the largest score, of those that end at p
 *   or before, and to what follows the last of them. Its own block must win its
 *   place.
 *
 * Tokens without keys, of whichever kind (kvm_cache_dense): their units are looked at
 * always, scored never; the best are taken of those behind them. */
#include "models/indexer_internal.h"

#include <math.h>
#include <string.h>

enum {
    SCORE_ROWS = 32, /* queries whose scores over the whole cache are kept at once */
    UNIT_ROWS = 512  /* blocks that are rotated at once */
};

static kvm_rope rope_of(const kvm_config *c, const kvm_rope *stack)
{
    kvm_rope r = *stack;
    r.interleaved = c->index.interleaved;
    return r;
}

static kvm_status load_blocks(kvm_indexer *i, kvm_loader *ld, ptrdiff_t layer,
                              kvm_err *err)
{
    const ptrdiff_t dim = i->size.dim, heads = i->size.heads;
    const kvm_linear_row both = {.weight = KVM_W_BLOCK_INDEX_QK,
                                 .bias = KVM_W_BLOCK_INDEX_QK,
                                 .layer = layer,
                                 .out = (heads + 1) * dim,
                                 .in = i->hidden};
    TRY(kvm_load_linear(ld, &both, &i->q, err));
    TRY(kvm_load_norm(ld, KVM_W_BLOCK_INDEX_Q_NORM, layer, dim, &i->query_norm, err));
    TRY(kvm_load_norm(ld, KVM_W_BLOCK_INDEX_K_NORM, layer, dim, &i->norm, err));
    i->weights = kvm_new_raw(ld->keep, float, heads);
    if (!i->weights) return kvm_nomem(err, ld->keep);
    for (ptrdiff_t h = 0; h < heads; h++) i->weights[h] = 1;
    return KVM_OK;
}

static kvm_status load_pools(kvm_indexer *i, kvm_loader *ld, ptrdiff_t layer,
                             kvm_err *err)
{
    const kvm_plain_map gate = {KVM_W_INDEX_POOL_GATE, i->size.dim, i->hidden,
                                &i->gate};
    TRY(kvm_load_maps(ld, layer, &gate, 1, err));
    return kvm_load_grid(ld, KVM_W_INDEX_POOL_PLACES, layer, i->size.block, i->size.dim,
                         &i->places, err);
}

kvm_status kvm_indexer_load(kvm_indexer **out, kvm_loader *ld, ptrdiff_t layer,
                            kvm_err *err)
{
    const kvm_config *c = ld->config;
    *out = NULL;
    if (!c->index.full[layer]) {
        if (!kvm_checkpoint_has(ld->ck, (kvm_weight_at){KVM_W_INDEX_K, layer, 0}))
            return KVM_OK;
        return kvm_fail(
            err, KVM_MISMATCH,
            "%s: layer %td has an indexer of its own, but the config lets it "
            "share another's (indexer_types)",
            kvm_checkpoint_path(ld->ck).at, layer);
    }
    kvm_indexer *i = kvm_new(ld->keep, kvm_indexer, 1);
    if (!i) return kvm_nomem(err, ld->keep);
    *i = (kvm_indexer){.layer = layer,
                       .hidden = c->hidden,
                       .low = c->mla.query_rank,
                       .size = c->index,
                       .rope = rope_of(c, &ld->rope),
                       .eps = c->eps};
    const ptrdiff_t dim = c->index.dim;
    if (indexer_is_late(&c->index)) {
        TRY(load_blocks(i, ld, layer, err));
        *out = i;
        return KVM_OK;
    }
    const kvm_plain_map maps[] = {{KVM_W_INDEX_Q, c->index.heads * dim, i->low, &i->q},
                                  {KVM_W_INDEX_K, dim, c->hidden, &i->k},
                                  {KVM_W_INDEX_W, c->index.heads, c->hidden, &i->w}};
    TRY(kvm_load_maps(ld, layer, maps, (ptrdiff_t)(sizeof maps / sizeof *maps), err));
    TRY(kvm_load_vector(ld, KVM_W_INDEX_NORM, layer, dim, &i->norm, err));
    TRY(kvm_load_vector(ld, KVM_W_INDEX_NORM_BIAS, layer, dim, &i->norm_bias, err));
    if (c->index.pooled) TRY(load_pools(i, ld, layer, err));
    *out = i;
    return KVM_OK;
}

ptrdiff_t kvm_indexer_objects(const kvm_config *c, ptrdiff_t layer,
                              const kvm_rope *rope, kvm_object *out)
{
    if (c->index.heads == 0 || !c->index.full[layer]) return 0;
    out[0] = (kvm_object){.kind = KVM_OBJECT_INDEX_KEY,
                          .layer = layer,
                          .heads = 1,
                          .dim = c->index.dim,
                          .block = c->index.block > 1 ? c->index.block : 0,
                          .normed = !indexer_is_late(&c->index),
                          .rotary = !indexer_is_late(&c->index) && rope->width > 0,
                          .rope = rope_of(c, rope)};
    if (!c->index.pooled) return 1;
    out[1] = (kvm_object){
        .kind = KVM_OBJECT_INDEX_GATE, .layer = layer, .heads = 1, .dim = c->index.dim};
    return 2;
}

/* ---- keys ---- */

static void layer_norm(const kvm_indexer *i, float *rows, ptrdiff_t n)
{
    const ptrdiff_t dim = i->size.dim;
    for (ptrdiff_t t = 0; t < n; t++, rows += dim) {
        double mean = 0, square = 0;
        for (ptrdiff_t j = 0; j < dim; j++) mean += (double)rows[j];
        mean /= (double)dim;
        for (ptrdiff_t j = 0; j < dim; j++) {
            const double d = (double)rows[j] - mean;
            square += d * d;
        }
        const double by = 1 / sqrt(square / (double)dim + KVM_INDEX_NORM_EPS);
        for (ptrdiff_t j = 0; j < dim; j++)
            rows[j] =
                (float)(((double)rows[j] - mean) * by) * i->norm[j] + i->norm_bias[j];
    }
}

kvm_status kvm_indexer_advance(const kvm_indexer *i, ptrdiff_t which, kvm_compute *c,
                               int point, const int32_t *pos, ptrdiff_t n, float *rows,
                               kvm_err *err)
{
    if (which > 0 || point == KVM_POINT_ENGINE || indexer_is_late(&i->size))
        return KVM_OK;
    if (point == KVM_POINT_RAW) layer_norm(i, rows, n);
    return kvm_op_rope(c, kvm_view3(rows, KVM_F32, n, 1, i->size.dim), pos, &i->rope,
                       false, err);
}

kvm_status kvm_indexer_retreat(const kvm_indexer *i, ptrdiff_t which, kvm_compute *c,
                               int point, const int32_t *pos, ptrdiff_t n, float *rows,
                               kvm_err *err)
{
    if (which > 0 || point == KVM_POINT_ENGINE || indexer_is_late(&i->size))
        return KVM_OK;
    if (point == KVM_POINT_NORMED)
        return kvm_op_rope(c, kvm_view3(rows, KVM_F32, n, 1, i->size.dim), pos,
                           &i->rope, true, err);
    return kvm_fail(err, KVM_UNSUPPORTED,
                    "layer %td: index keys cannot be taken back through their norm; "
                    "capture them at point 1 during the forward",
                    i->layer);
}

static kvm_status append(const kvm_indexer *i, const kvm_step *s, ptrdiff_t object,
                         kvm_tensor x, kvm_arena temp, kvm_err *err)
{
    kvm_tensor k = kvm_step_rows(&temp, s->n, i->size.dim);
    if (!k.data) return kvm_nomem(err, &temp);
    TRY(kvm_op_linear(s->compute, k, x, i->k, false, err));
    TRY(kvm_step_emit(s, object, KVM_POINT_RAW, k.data, err));
    layer_norm(i, k.data, s->n);
    TRY(kvm_step_emit(s, object, KVM_POINT_NORMED, k.data, err));
    TRY(kvm_indexer_advance(i, 0, s->compute, KVM_POINT_NORMED, s->pos, s->n, k.data,
                            err));
    TRY(kvm_step_emit(s, object, KVM_POINT_ENGINE, k.data, err));
    kvm_slot_put(&s->slots[object], s->first, s->n, k.data);
    if (!i->gate) return KVM_OK;
    TRY(kvm_op_linear(s->compute, k, x, i->gate, false, err));
    for (int point = KVM_POINT_RAW; point <= KVM_POINT_ENGINE; point++)
        TRY(kvm_step_emit(s, object + 1, point, k.data, err));
    kvm_slot_put(&s->slots[object + 1], s->first, s->n, k.data);
    return KVM_OK;
}

/* ---- choice ---- */

/* the k-th largest of n numbers, which change places; 1 <= k <= n */
static float kth_largest(float *x, ptrdiff_t n, ptrdiff_t k)
{
    ptrdiff_t lo = 0, hi = n - 1;
    while (lo < hi) {
        const float pivot = x[lo + (hi - lo) / 2];
        ptrdiff_t a = lo, b = hi;
        while (a <= b) {
            while (x[a] > pivot) a++;
            while (pivot > x[b]) b--;
            if (a > b) break;
            const float swap = x[a];
            x[a++] = x[b], x[b--] = swap;
        }
        if (k - 1 <= b)
            hi = b;
        else if (k - 1 >= a)
            lo = a;
        else
            break; /* between the two all are the pivot */
    }
    return x[k - 1];
}

/* units that some token without a key stands in */
static ptrdiff_t dense_units(const kvm_indexer *i, const kvm_step *s)
{
    return (s->dense + i->size.block - 1) / i->size.block;
}

typedef struct choosing {
    kvm_tensor scores;     /* (rows, units) of those behind the dense ones */
    float *copy;           /* (rows, units) */
    ptrdiff_t most, first; /* units that are taken; position of the first row */
    ptrdiff_t block;       /* tokens of a unit */
    ptrdiff_t dense;       /* units that are looked at whatever they score */
    uint64_t *bits;        /* of the first row */
    ptrdiff_t words;
} choosing;

static void set_bits(uint64_t *bits, ptrdiff_t from, ptrdiff_t n)
{
    for (ptrdiff_t j = from; j < from + n; j++) bits[j / 64] |= (uint64_t)1 << j % 64;
}

/* one row: the best of its visible units, of equals the earlier ones, and the tokens
 * behind the last whole unit */
static void choose_row(void *ctx, ptrdiff_t row, int thread)
{
    (void)thread;
    const choosing *c = ctx;
    const ptrdiff_t tokens = c->first + row + 1, whole = tokens / c->block;
    const ptrdiff_t dense = whole < c->dense ? whole : c->dense, seen = whole - dense;
    const float *score = (const float *)c->scores.data + row * c->scores.dim[1];
    float *copy = c->copy + row * c->scores.dim[1];
    uint64_t *bits = c->bits + row * c->words;
    memset(bits, 0, (size_t)c->words * sizeof *bits);
    float least = -INFINITY;
    ptrdiff_t equals = seen; /* how many of those equal to the least are taken */
    if (seen > c->most) {
        memcpy(copy, score, (size_t)seen * sizeof *copy);
        least = kth_largest(copy, seen, c->most);
        equals = c->most;
        for (ptrdiff_t j = 0; j < seen; j++) equals -= score[j] > least;
    }
    set_bits(bits, 0, dense * c->block);
    for (ptrdiff_t j = 0; j < seen; j++) {
        const bool in = seen <= c->most || score[j] > least ||
                        (!(score[j] < least) && equals-- > 0);
        if (in) set_bits(bits, (dense + j) * c->block, c->block);
    }
    set_bits(bits, whole * c->block, tokens - whole * c->block);
}

typedef struct pooling {
    const kvm_indexer *i;
    const float *keys, *gates; /* (tokens, dim) */
    ptrdiff_t from;            /* the first pool that is made */
    float *to;                 /* (pools, dim) */
} pooling;

static void make_pool(void *ctx, ptrdiff_t b, int thread)
{
    (void)thread;
    const pooling *p = ctx;
    const ptrdiff_t dim = p->i->size.dim, block = p->i->size.block;
    const ptrdiff_t at = (p->from + b) * block * dim;
    const float *keys = p->keys + at, *gates = p->gates + at;
    for (ptrdiff_t j = 0; j < dim; j++) {
        float top = -INFINITY, sum = 0, all = 0;
        for (ptrdiff_t t = j; t < block * dim; t += dim) {
            const float z = gates[t] + p->i->places[t];
            if (z > top) top = z;
        }
        for (ptrdiff_t t = j; t < block * dim; t += dim) {
            const float e = expf(gates[t] + p->i->places[t] - top);
            sum += e;
            all += e * keys[t];
        }
        p->to[b * dim + j] = all / sum;
    }
}

/* blocks from .. from+n-1 of cached keys (tokens, dim) to units (n, dim): their mean,
 * normed, rotated at their first token */
static kvm_status make_blocks(const kvm_indexer *i, const kvm_step *s,
                              const float *keys, ptrdiff_t from, kvm_tensor units,
                              kvm_arena temp, kvm_err *err)
{
    const ptrdiff_t dim = i->size.dim, block = i->size.block, n = units.dim[0];
    int32_t *pos = kvm_new_raw(&temp, int32_t, n);
    if (!pos) return kvm_nomem(err, &temp);
    keys += from * block * dim;
    for (ptrdiff_t b = 0; b < n; b++) {
        float *to = (float *)units.data + b * dim;
        pos[b] = (int32_t)((from + b) * block);
        for (ptrdiff_t j = 0; j < dim; j++) {
            float sum = 0;
            for (ptrdiff_t t = 0; t < block; t++)
                sum += keys[(b * block + t) * dim + j];
            to[j] = sum / (float)block;
        }
    }
    TRY(kvm_op_rmsnorm(s->compute, units, units, kvm_view1(i->norm, KVM_F32, dim), dim,
                       i->eps, false, err));
    return kvm_op_rope(s->compute, kvm_heads(units, 0, 1, dim, dim), pos, &i->rope,
                       false, err);
}

kvm_status kvm_indexer__units(const kvm_indexer *i, const kvm_step *s, ptrdiff_t object,
                              kvm_tensor *units, kvm_arena temp, kvm_err *err)
{
    const ptrdiff_t dim = i->size.dim, n = (s->first + s->n) / i->size.block;
    const kvm_slot *slot = &s->slots[object];
    kvm_units *u = slot->units;
    *units = kvm_view2(u ? u->rows : slot->rows, KVM_F32, n, dim);
    if (u && u->n < dense_units(i, s)) u->n = dense_units(i, s); /* nobody reads them */
    if (!u || u->n >= n) return KVM_OK;
    if (i->gate) {
        pooling p = {i, slot->rows, s->slots[object + 1].rows, u->n,
                     u->rows + u->n * dim};
        kvm_pool_run(kvm_compute_pool(s->compute), n - u->n, make_pool, &p);
        u->n = n;
        return KVM_OK;
    }
    while (u->n < n) {
        const ptrdiff_t piece = n - u->n < UNIT_ROWS ? n - u->n : UNIT_ROWS;
        const kvm_tensor to = kvm_view2(u->rows + u->n * dim, KVM_F32, piece, dim);
        TRY(make_blocks(i, s, slot->rows, u->n, to, temp, err));
        u->n += piece;
    }
    return KVM_OK;
}

/* the step's tokens are new: no block of them is known */
static void forget_units(const kvm_indexer *i, const kvm_step *s, ptrdiff_t object)
{
    kvm_units *u = s->slots[object].units;
    const ptrdiff_t stand = s->first / i->size.block;
    if (u && u->n > stand) u->n = stand;
}

/* queries of rows from .. from+n-1 of the step: their scores, and then their choice */
static kvm_status choose(const kvm_indexer *i, const kvm_step *s, kvm_tensor units,
                         ptrdiff_t from, kvm_tensor q, kvm_tensor w, kvm_arena temp,
                         kvm_err *err)
{
    const ptrdiff_t n = q.dim[0], dim = i->size.dim, block = i->size.block;
    const ptrdiff_t dense = dense_units(i, s), whole = (s->first + from + n) / block;
    if (whole > dense) units.data = (float *)units.data + dense * dim;
    units.dim[0] = whole > dense ? whole - dense : 0;
    choosing c = {.scores = kvm_step_rows(&temp, n, units.dim[0]),
                  .copy = kvm_new_raw(&temp, float, n *units.dim[0]),
                  .most = i->size.most / block,
                  .block = block,
                  .dense = dense,
                  .first = s->first + from,
                  .bits = s->choice->bits + from * s->choice->words,
                  .words = s->choice->words};
    if (!c.scores.data || !c.copy) return kvm_nomem(err, &temp);
    if (units.dim[0] > 0)
        TRY(kvm_op_index_score(s->compute, c.scores,
                               kvm_heads(q, 0, i->size.heads, dim, dim), units, w,
                               indexer_scale(i), err));
    kvm_pool_run(kvm_compute_pool(s->compute), n, choose_row, &c);
    return KVM_OK;
}

size_t kvm_indexer_scratch(const kvm_indexer *i, ptrdiff_t n)
{
    const ptrdiff_t rows = n < SCORE_ROWS ? n : SCORE_ROWS;
    return kvm_step_rows_bytes(n, i->size.dim) +
           kvm_step_rows_bytes(n, (i->size.heads + 1) * i->size.dim) +
           kvm_step_rows_bytes(n, i->size.heads) +
           2 * kvm_step_rows_bytes(rows, i->size.context) +
           kvm_step_rows_bytes(UNIT_ROWS, 1);
}

/* queries of the last n tokens, and the weights of their heads */
static kvm_status ask(const kvm_indexer *i, const kvm_step *s, kvm_tensor x,
                      kvm_tensor low, kvm_tensor *q, kvm_tensor *w, kvm_arena *temp,
                      kvm_err *err)
{
    const ptrdiff_t n = s->out, heads = i->size.heads, dim = i->size.dim;
    *q = kvm_step_rows(temp, n, heads * dim);
    *w = kvm_step_rows(temp, n, heads);
    if (!q->data || !w->data) return kvm_nomem(err, temp);
    TRY(kvm_op_linear(s->compute, *q, kvm_last_rows(low, n), i->q, false, err));
    return kvm_op_linear(s->compute, *w, kvm_last_rows(x, n), i->w, false, err);
}

/* the same for blocks, whose projection gives queries and keys at once; keys are
 * appended */
static kvm_status ask_blocks(const kvm_indexer *i, const kvm_step *s, ptrdiff_t object,
                             kvm_tensor x, kvm_tensor *q, kvm_tensor *w,
                             kvm_arena *temp, kvm_err *err)
{
    const ptrdiff_t heads = i->size.heads, dim = i->size.dim;
    kvm_tensor both = kvm_step_rows(temp, s->n, (heads + 1) * dim);
    kvm_tensor k = kvm_step_rows(temp, s->n, dim);
    if (!both.data || !k.data) return kvm_nomem(err, temp);
    TRY(kvm_op_linear(s->compute, both, x, i->q, false, err));
    for (ptrdiff_t t = 0; t < s->n; t++)
        memcpy((float *)k.data + t * dim,
               (float *)both.data + t * both.dim[1] + heads * dim,
               (size_t)dim * sizeof(float));
    for (int point = KVM_POINT_RAW; point <= KVM_POINT_ENGINE; point++)
        TRY(kvm_step_emit(s, object, point, k.data, err));
    kvm_slot_put(&s->slots[object], s->first, s->n, k.data);
    *q = kvm_columns(kvm_last_rows(both, s->out), 0, heads * dim);
    *w = kvm_view2(i->weights, KVM_F32, s->out, heads);
    w->stride[0] = 0; /* one row for all */
    return kvm_op_rmsnorm(s->compute, *q, *q, kvm_view1(i->query_norm, KVM_F32, dim),
                          dim, i->eps, false, err);
}

static void keep_asked(const kvm_indexer *i, kvm_tensor q, kvm_tensor w,
                       const kvm_asked *to)
{
    const ptrdiff_t heads = i->size.heads, width = heads * i->size.dim;
    for (ptrdiff_t t = 0; t < q.dim[0]; t++) {
        memcpy(to->q + t * width, (const float *)q.data + t * q.stride[0],
               (size_t)width * sizeof(float));
        memcpy(to->w + t * heads, (const float *)w.data + t * w.stride[0],
               (size_t)heads * sizeof(float));
    }
}

/* kvm_indexer_choose, but for handing the choice out */
static kvm_status fill_choice(const kvm_indexer *i, const kvm_step *s, ptrdiff_t object,
                              kvm_tensor x, kvm_tensor low, kvm_err *err)
{
    kvm_arena temp = s->scratch;
    const ptrdiff_t n = s->out, skipped = s->n - n, block = i->size.block;
    kvm_tensor q, w, units;
    forget_units(i, s, object);
    if (indexer_is_late(&i->size))
        TRY(ask_blocks(i, s, object, x, &q, &w, &temp, err));
    else
        TRY(append(i, s, object, x, temp, err));
    s->choice->all = s->first + s->n - dense_units(i, s) * block < i->size.most + block;
    if (n == 0 || (s->choice->all && !s->asked)) return KVM_OK;
    if (!indexer_is_late(&i->size)) TRY(ask(i, s, x, low, &q, &w, &temp, err));
    TRY(kvm_op_rope(s->compute,
                    kvm_heads(q, 0, i->size.heads, i->size.dim, i->size.dim),
                    s->pos + skipped, &i->rope, false, err));
    if (s->asked) keep_asked(i, q, w, s->asked);
    if (s->choice->all) return KVM_OK;
    TRY(kvm_indexer__units(i, s, object, &units, temp, err));
    for (ptrdiff_t t = 0; t < n; t += SCORE_ROWS) {
        kvm_tensor qt = kvm_last_rows(q, n - t), wt = kvm_last_rows(w, n - t);
        qt.dim[0] = wt.dim[0] = n - t < SCORE_ROWS ? n - t : SCORE_ROWS;
        TRY(choose(i, s, units, skipped + t, qt, wt, temp, err));
    }
    return KVM_OK;
}

kvm_status kvm_indexer_choose(const kvm_indexer *i, const kvm_step *s, ptrdiff_t object,
                              kvm_tensor x, kvm_tensor low, kvm_err *err)
{
    TRY(fill_choice(i, s, object, x, low, err));
    if (!s->capture || !s->capture->choice || s->out == 0) return KVM_OK;
    const ptrdiff_t skipped = s->n - s->out, words = s->choice->words;
    const kvm_mask mask = {s->choice->bits + skipped * words, words};
    return s->capture->choice(s->capture->ctx, i->layer, s->first + skipped, s->out,
                              s->choice->all ? NULL : &mask, err);
}
