/* ngram.c - hashed n-gram embeddings (transformers' Qwen4ExpTextPLELayer).
 *
 *   ids before a token count back to the last end-of-text; before it they are that id
 *   mix_2 = id m0 ^ id' m1; mix_3 = mix_2 ^ id'' m2; ...
 *   head j of an order reads row mix mod size_j + offset_j of the table: e, all heads
 *   k = rms(Wk e) w, q = rms(R) w, v = Wv e; per stream z = k.q / sqrt(hidden),
 *   z = sign(z) sqrt(max(|z|, 1e-6)), a = sigmoid(z) v
 *   c = rms(a) w; R += a + silu(conv(c)), the taps `orders` tokens apart */
#include "models/ngram.h"

#include <math.h>
#include <string.h>

#include "models/activation.h"
#include "models/scales.h"

struct kvm_ngram {
    ptrdiff_t layer, hidden, wide, heads, width,
        reach; /* reach: tokens of the window */
    kvm_stream_config size;
    double eps;
    kvm_tensor *parts; /* (size.parts) of the table, rows in order */
    ptrdiff_t part_rows;
    int64_t *multipliers, *sizes, *offsets; /* (orders), (heads), (heads) */
    bool sizes_stored;
    kvm_weight *key, *value;
    float *key_norm, *query_norm, *conv_norm; /* (wide) */
    float *conv;                              /* (window, wide) */
};

/* ---- load ---- */

static kvm_status load_ids(kvm_loader *ld, kvm_weight_id id, ptrdiff_t layer,
                           ptrdiff_t n, int64_t **out, kvm_err *err)
{
    kvm_found f;
    const kvm_weight_at w = {.id = id, .layer = layer};
    TRY(kvm_checkpoint_get(ld->ck, w, 1, &n, &f, err));
    if (f.t.dtype != KVM_I64)
        return kvm_fail(err, KVM_DTYPE, "%s: tensor %.*s is stored as %s, not I64",
                        f.file.at, KVM_STR_ARG(f.name), kvm_dtype_name(f.t.dtype));
    *out = kvm_new(ld->keep, int64_t, n);
    if (!*out) return kvm_nomem(err, ld->keep);
    memcpy(*out, f.t.data, (size_t)n * sizeof **out);
    return KVM_OK;
}

static bool is_prime(int64_t n)
{
    if (n < 2 || n % 2 == 0) return n == 2;
    for (int64_t d = 3; d * d <= n; d += 2)
        if (n % d == 0) return false;
    return true;
}

/* Heads read as many rows as the primes from `base` on say, those of the layers before
 * first. */
static void derive_sizes(const kvm_ngram *g, ptrdiff_t before, int64_t *sizes)
{
    int64_t prime = g->size.base - 1;
    for (ptrdiff_t j = -before * g->heads; j < g->heads; j++) {
        do prime++;
        while (!is_prime(prime));
        if (j >= 0) sizes[j] = prime;
    }
}

/* SplitMix64 (Steele, Lea and Flood, 2014) of a counter */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* odd numbers whose product with an id stays below 2^63 */
static void derive_multipliers(const kvm_ngram *g, ptrdiff_t before, ptrdiff_t vocab,
                               int64_t *multipliers)
{
    const uint64_t half = (uint64_t)INT64_MAX / (uint64_t)vocab / 2;
    const uint64_t seed = (uint64_t)g->size.seed + 10007u * (uint64_t)before;
    for (ptrdiff_t k = 0; k < g->size.orders; k++) {
        const uint64_t at = seed + 0x9e3779b97f4a7c15u * (uint64_t)(k + 1);
        multipliers[k] = (int64_t)(2 * (mix(at) % (half > 0 ? half : 1)) + 1);
    }
}

/* of n numbers: those of the file, if it has them */
static kvm_status load_ids_or(kvm_loader *ld, kvm_weight_id id, ptrdiff_t layer,
                              ptrdiff_t n, int64_t **out, bool *found, kvm_err *err)
{
    *found = kvm_checkpoint_has(ld->ck, (kvm_weight_at){.id = id, .layer = layer});
    if (*found) return load_ids(ld, id, layer, n, out, err);
    *out = kvm_new(ld->keep, int64_t, n);
    return *out ? KVM_OK : kvm_nomem(err, ld->keep);
}

/* The rows that heads read. Files hold these numbers or leave them out, for they follow
 * from the config (_build_layer_multipliers and _find_nth_prime_after of
 * transformers). */
static kvm_status load_hashes(kvm_ngram *g, kvm_loader *ld, kvm_err *err)
{
    bool multipliers, offsets;
    ptrdiff_t before = 0;
    for (ptrdiff_t l = 0; l < g->layer; l++) before += g->size.ngrams[l];
    TRY(load_ids_or(ld, KVM_W_NGRAM_MULTIPLIERS, g->layer, g->size.orders,
                    &g->multipliers, &multipliers, err));
    TRY(load_ids_or(ld, KVM_W_NGRAM_SIZES, g->layer, g->heads, &g->sizes,
                    &g->sizes_stored, err));
    TRY(load_ids_or(ld, KVM_W_NGRAM_OFFSETS, g->layer, g->heads, &g->offsets, &offsets,
                    err));
    if (!multipliers) derive_multipliers(g, before, ld->config->vocab, g->multipliers);
    if (!g->sizes_stored) derive_sizes(g, before, g->sizes);
    for (ptrdiff_t j = 1; !offsets && j < g->heads; j++)
        g->offsets[j] = g->offsets[j - 1] + g->sizes[j - 1];
    return KVM_OK;
}

static kvm_status check_rows(const kvm_ngram *g, const kvm_loader *ld, ptrdiff_t rows,
                             kvm_err *err)
{
    for (ptrdiff_t j = 0; j < g->heads; j++)
        if (g->sizes[j] < 1 || g->offsets[j] < 0 || g->offsets[j] > rows - g->sizes[j])
            return kvm_fail(
                err, KVM_RANGE,
                "%s: layer %td: head %td of the n-grams reads %lld rows from "
                "%lld of a table of %td",
                kvm_checkpoint_path(ld->ck).at, g->layer, j, (long long)g->sizes[j],
                (long long)g->offsets[j], rows);
    return KVM_OK;
}

/* one tensor, or `parts` of equal height; heights follow from the offsets */
static kvm_status load_table(kvm_ngram *g, kvm_loader *ld, kvm_err *err)
{
    const int64_t end = g->offsets[g->heads - 1] + g->sizes[g->heads - 1];
    const bool whole =
        kvm_checkpoint_has(ld->ck, (kvm_weight_at){KVM_W_NGRAM_TABLE, g->layer, 0});
    const ptrdiff_t parts = whole ? 1 : g->size.parts, fill = g->size.multiple;
    const ptrdiff_t usual = ((ptrdiff_t)end + fill - 1) / fill * fill / parts;
    g->parts = kvm_new(ld->keep, kvm_tensor, parts);
    if (!g->parts) return kvm_nomem(err, ld->keep);
    for (ptrdiff_t i = 0; i < parts; i++) {
        kvm_found f;
        const kvm_weight_at w = {whole ? KVM_W_NGRAM_TABLE : KVM_W_NGRAM_PART, g->layer,
                                 i};
        ptrdiff_t scales;
        TRY(kvm_checkpoint_get_rows(ld->ck, w, usual, g->width, &f, err));
        TRY(kvm_scales_find(ld, w, &f, &scales, err));
        if (f.t.dtype != KVM_F32 && f.t.dtype != KVM_F16 && f.t.dtype != KVM_BF16 &&
            !f.t.scales)
            return kvm_fail(
                err, KVM_DTYPE,
                "%s: tensor %.*s is stored as %s; F32, F16, BF16 and F8_E4M3 are read",
                f.file.at, KVM_STR_ARG(f.name), kvm_dtype_name(f.t.dtype));
        TRY(kvm_load_note(ld, &f.t, err));
        if (i == 0) g->part_rows = f.t.dim[0];
        if (f.t.dim[0] != g->part_rows && i + 1 < parts)
            return kvm_fail(err, KVM_SHAPE, "%s: tensor %.*s has %td rows, not %td",
                            f.file.at, KVM_STR_ARG(f.name), f.t.dim[0], g->part_rows);
        g->parts[i] = f.t;
        ld->parameters += kvm_tensor_count(&f.t);
        ld->bytes += kvm_tensor_count(&f.t) * kvm_dtype_block_bytes(f.t.dtype) + scales;
    }
    const ptrdiff_t rows = (parts - 1) * g->part_rows + g->parts[parts - 1].dim[0];
    TRY(check_rows(g, ld, rows, err));
    if (end > rows)
        return kvm_fail(err, KVM_SHAPE,
                        "%s: layer %td: %td rows of n-grams, %lld are read",
                        kvm_checkpoint_path(ld->ck).at, g->layer, rows, (long long)end);
    if (g->sizes_stored || rows - end < g->size.multiple) return KVM_OK;
    return kvm_fail(
        err, KVM_MISMATCH,
        "%s: layer %td: %td rows of n-grams, but ngram_vocab_size_base and the like "
        "make it %lld, filled up to a multiple of %td",
        kvm_checkpoint_path(ld->ck).at, g->layer, rows, (long long)end,
        g->size.multiple);
}

static kvm_status load_conv(kvm_ngram *g, kvm_loader *ld, kvm_err *err)
{
    float *w; /* (wide, window) */
    TRY(kvm_load_grid(ld, KVM_W_NGRAM_CONV, g->layer, g->wide, g->size.window, &w,
                      err));
    g->conv = kvm_new_raw(ld->keep, float, g->size.window * g->wide);
    if (!g->conv) return kvm_nomem(err, ld->keep);
    for (ptrdiff_t i = 0; i < g->size.window; i++)
        for (ptrdiff_t c = 0; c < g->wide; c++)
            g->conv[i * g->wide + c] = w[c * g->size.window + i];
    return KVM_OK;
}

kvm_status kvm_ngram_load(kvm_ngram **out, kvm_loader *ld, ptrdiff_t index,
                          kvm_err *err)
{
    const kvm_config *c = ld->config;
    kvm_ngram *g = kvm_new(ld->keep, kvm_ngram, 1);
    if (!g) return kvm_nomem(err, ld->keep);
    *g = (kvm_ngram){.layer = index,
                     .hidden = c->hidden,
                     .wide = c->stream.count * c->hidden,
                     .heads = (c->stream.orders - 1) * c->stream.heads,
                     .reach = (c->stream.window - 1) * c->stream.orders,
                     .size = c->stream,
                     .eps = c->eps};
    g->width = c->stream.ngram_dim / g->heads;
    const ptrdiff_t e = c->stream.ngram_dim;
    const kvm_plain_map maps[] = {{KVM_W_NGRAM_KEY, g->wide, e, &g->key},
                                  {KVM_W_NGRAM_VALUE, g->hidden, e, &g->value}};
    TRY(kvm_load_maps(ld, index, maps, 2, err));
    TRY(kvm_load_norm(ld, KVM_W_NGRAM_KEY_NORM, index, g->wide, &g->key_norm, err));
    TRY(kvm_load_norm(ld, KVM_W_NGRAM_QUERY_NORM, index, g->wide, &g->query_norm, err));
    TRY(kvm_load_norm(ld, KVM_W_NGRAM_CONV_NORM, index, g->wide, &g->conv_norm, err));
    TRY(load_conv(g, ld, err));
    TRY(load_hashes(g, ld, err));
    TRY(load_table(g, ld, err));
    *out = g;
    return KVM_OK;
}

/* ---- objects ---- */

ptrdiff_t kvm_ngram_objects(const kvm_config *c, ptrdiff_t layer, kvm_object *out)
{
    if (!c->stream.ngrams || !c->stream.ngrams[layer]) return 0;
    const ptrdiff_t wide = c->stream.count * c->hidden;
    const ptrdiff_t reach = (c->stream.window - 1) * c->stream.orders;
    out[0] = (kvm_object){.kind = KVM_OBJECT_NGRAM_WINDOW,
                          .layer = layer,
                          .heads = 1,
                          .dim = wide * reach,
                          .shape = {wide, reach}};
    out[1] = (kvm_object){.kind = KVM_OBJECT_LAST_IDS,
                          .layer = layer,
                          .heads = 1,
                          .dim = c->stream.orders - 1,
                          .shape = {c->stream.orders - 1}};
    return 2;
}

size_t kvm_ngram_scratch(const kvm_ngram *g, ptrdiff_t n)
{
    return kvm_step_rows_bytes(n, g->size.ngram_dim) +
           3 * kvm_step_rows_bytes(n, g->wide) + kvm_step_rows_bytes(n, g->hidden) +
           kvm_step_rows_bytes(n + g->reach, g->wide) +
           kvm_step_rows_bytes(n + g->size.orders, 2);
}

/* ---- forward ---- */

static kvm_status read_row(const kvm_ngram *g, int64_t row, float *out, kvm_err *err)
{
    const kvm_tensor *part = &g->parts[row / g->part_rows];
    return kvm_widen_at(out, part, row % g->part_rows, 0, g->width, err);
}

/* e (n, ngram_dim) of ids, of which `orders - 1` stand before the first */
static kvm_status embed(const kvm_ngram *g, const int64_t *ids, ptrdiff_t n, float *e,
                        kvm_err *err)
{
    const ptrdiff_t before = g->size.orders - 1;
    for (ptrdiff_t t = 0; t < n; t++) {
        const int64_t *now = ids + before + t;
        uint64_t mixed = (uint64_t)now[0] * (uint64_t)g->multipliers[0];
        bool ended = false; /* an end stands between */
        for (ptrdiff_t order = 2; order <= g->size.orders; order++) {
            ended = ended || now[1 - order] == g->size.end_id;
            const int64_t id = ended ? g->size.end_id : now[1 - order];
            mixed ^= (uint64_t)id * (uint64_t)g->multipliers[order - 1];
            for (ptrdiff_t k = 0; k < g->size.heads; k++) {
                const ptrdiff_t j = (order - 2) * g->size.heads + k;
                const int64_t row =
                    (int64_t)(mixed % (uint64_t)g->sizes[j]) + g->offsets[j];
                TRY(read_row(g, row, e + t * g->size.ngram_dim + j * g->width, err));
            }
        }
    }
    return KVM_OK;
}

/* the i-th of the ids that stand before the token at `first`; exact: ids are below
 * 2^24 */
static int64_t kept_id(const kvm_ngram *g, ptrdiff_t first, const float *kept,
                       ptrdiff_t i)
{
    return first == 0 ? g->size.end_id : (int64_t)kept[i];
}

/* the step's ids behind those that are kept */
static void gather_ids(const kvm_ngram *g, const kvm_step *s, ptrdiff_t object,
                       int64_t *ids)
{
    const ptrdiff_t before = g->size.orders - 1;
    for (ptrdiff_t i = 0; i < before; i++)
        ids[i] = kept_id(g, s->first, s->slots[object].rows, i);
    for (ptrdiff_t t = 0; t < s->n; t++) ids[before + t] = s->ids[t];
}

static double dot_of(const float *a, const float *b, ptrdiff_t n)
{
    double sum = 0;
    for (ptrdiff_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

/* how far a stream whose key and query fit by z is open; *slope, unless NULL: by z */
static double opening(double z, double *slope)
{
    const double size = sqrt(fmax(fabs(z), 1e-6));
    const double by = 1 / (1 + exp(z > 0 ? -size : z < 0 ? size : 0));
    if (slope) *slope = fabs(z) > 1e-6 ? by * (1 - by) / (2 * size) : 0;
    return by;
}

/* a (n, wide) = sigmoid of each stream's fit of key and query, times value (n,
 * hidden) */
static void gate(const kvm_ngram *g, const float *key, const float *query,
                 const float *value, ptrdiff_t n, float *a)
{
    for (ptrdiff_t i = 0; i < n * g->size.count; i++) {
        const float *k = key + i * g->hidden, *q = query + i * g->hidden;
        const float *v = value + i / g->size.count * g->hidden;
        const double z = dot_of(k, q, g->hidden) / sqrt((double)g->hidden);
        const float by = (float)opening(z, NULL);
        for (ptrdiff_t j = 0; j < g->hidden; j++) a[i * g->hidden + j] = by * v[j];
    }
}

/* h += a + silu(conv(c)); c (reach + n, wide) begins with what the window keeps */
static void convolve(const kvm_ngram *g, const float *c, const float *a, ptrdiff_t n,
                     float *h)
{
    for (ptrdiff_t t = 0; t < n; t++)
        for (ptrdiff_t i = 0; i < g->wide; i++) {
            float sum = 0;
            for (ptrdiff_t w = 0; w < g->size.window; w++)
                sum += g->conv[w * g->wide + i] *
                       c[(t + w * g->size.orders) * g->wide + i];
            h[t * g->wide + i] += a[t * g->wide + i] + kvm_silu(sum);
        }
}

/* window (wide, reach) <-> the rows before the first of c */
static void move_window(const kvm_ngram *g, float *window, float *rows, bool out)
{
    for (ptrdiff_t r = 0; r < g->reach; r++)
        for (ptrdiff_t i = 0; i < g->wide; i++) {
            float *kept = window + i * g->reach + r, *row = rows + r * g->wide + i;
            *(out ? row : kept) = *(out ? kept : row);
        }
}

/* what the embeddings of a step come to, before the convolution */
typedef struct gathered {
    kvm_tensor e, key, query, a, value;
    kvm_tensor c; /* (reach + n, wide) behind the window */
    int64_t *ids;
} gathered;

static kvm_status gather(const kvm_ngram *g, const kvm_step *s, ptrdiff_t object,
                         kvm_tensor h, gathered *o, kvm_arena *temp, kvm_err *err)
{
    const ptrdiff_t n = s->n, wide = g->wide;
    *o = (gathered){.e = kvm_step_rows(temp, n, g->size.ngram_dim),
                    .key = kvm_step_rows(temp, n, wide),
                    .query = kvm_step_rows(temp, n, wide),
                    .a = kvm_step_rows(temp, n, wide),
                    .value = kvm_step_rows(temp, n, g->hidden),
                    .c = kvm_step_rows(temp, n + g->reach, wide),
                    .ids = kvm_new_raw(temp, int64_t, n + g->size.orders)};
    if (!o->e.data || !o->key.data || !o->query.data || !o->a.data || !o->value.data ||
        !o->c.data || !o->ids)
        return kvm_nomem(err, temp);
    gather_ids(g, s, object + 1, o->ids);
    TRY(embed(g, o->ids, n, o->e.data, err));
    TRY(kvm_op_linear(s->compute, o->key, o->e, g->key, false, err));
    TRY(kvm_op_linear(s->compute, o->value, o->e, g->value, false, err));
    TRY(kvm_op_rmsnorm(s->compute, o->key, o->key,
                       kvm_view1(g->key_norm, KVM_F32, wide), g->hidden, g->eps, false,
                       err));
    TRY(kvm_op_rmsnorm(s->compute, o->query, h, kvm_view1(g->query_norm, KVM_F32, wide),
                       g->hidden, g->eps, false, err));
    gate(g, o->key.data, o->query.data, o->value.data, n, o->a.data);
    move_window(g, s->slots[object].rows, o->c.data, true);
    return kvm_op_rmsnorm(s->compute, kvm_last_rows(o->c, n), o->a,
                          kvm_view1(g->conv_norm, KVM_F32, wide), g->hidden, g->eps,
                          false, err);
}

kvm_status kvm_ngram_forward(const kvm_ngram *g, const kvm_step *s, ptrdiff_t object,
                             kvm_tensor h, kvm_err *err)
{
    kvm_arena temp = s->scratch;
    const ptrdiff_t n = s->n;
    gathered o;
    TRY(gather(g, s, object, h, &o, &temp, err));
    convolve(g, o.c.data, o.a.data, n, h.data);
    move_window(g, s->slots[object].rows, (float *)o.c.data + n * g->wide, false);
    float *kept = s->slots[object + 1].rows;
    for (ptrdiff_t i = 0; i < g->size.orders - 1; i++) kept[i] = (float)o.ids[n + i];
    TRY(kvm_step_emit_state(s, object, err));
    return kvm_step_emit_state(s, object + 1, err);
}

kvm_status kvm_ngram_follow(const kvm_ngram *g, kvm_compute *compute, ptrdiff_t first,
                            const int32_t *ids, ptrdiff_t n, const kvm_slot *slots,
                            ptrdiff_t object, kvm_err *err)
{
    /* the tokens that the window looks back at, and those that their n-grams need */
    const ptrdiff_t before = g->size.orders - 1;
    const ptrdiff_t rows = n < g->reach ? n : g->reach;
    kvm_arena own = {0};
    TRY(kvm_arena_init(&own,
                       3 * kvm_step_rows_bytes(g->reach, g->wide) +
                           kvm_step_rows_bytes(g->reach, g->size.ngram_dim) +
                           kvm_step_rows_bytes(g->reach, g->hidden) + 4096,
                       err));
    kvm_tensor e = kvm_step_rows(&own, rows, g->size.ngram_dim);
    kvm_tensor value = kvm_step_rows(&own, rows, g->hidden);
    kvm_tensor a = kvm_step_rows(&own, rows, g->wide);
    kvm_tensor c =
        kvm_step_rows(&own, g->reach + rows, g->wide); /* behind the window */
    int64_t *near = kvm_new_raw(&own, int64_t, rows + g->size.orders);
    kvm_status s = e.data && value.data && a.data && c.data && near
                       ? KVM_OK
                       : kvm_nomem(err, &own);
    if (!s) {
        float *kept = slots[object + 1].rows;
        for (ptrdiff_t i = 0; i < before + rows; i++) {
            const ptrdiff_t t = n - rows - before + i;
            near[i] = t >= 0 ? ids[t] : kept_id(g, first, kept, before + t);
        }
        for (ptrdiff_t i = 0; i < before; i++) kept[i] = (float)near[rows + i];
        s = embed(g, near, rows, e.data, err);
    }
    if (!s) s = kvm_op_linear(compute, value, e, g->value, false, err);
    if (!s) {
        for (ptrdiff_t i = 0; i < rows * g->size.count; i++)
            memcpy((float *)a.data + i * g->hidden,
                   (const float *)value.data + i / g->size.count * g->hidden,
                   (size_t)g->hidden * sizeof(float));
        s = kvm_op_rmsnorm(compute, kvm_last_rows(c, rows), a,
                           kvm_view1(g->conv_norm, KVM_F32, g->wide), g->hidden, g->eps,
                           false, err);
    }
    if (!s) {
        move_window(g, slots[object].rows, c.data, true);
        move_window(g, slots[object].rows, (float *)c.data + rows * g->wide, false);
    }
    kvm_arena_free(&own);
    return s;
}

/* ---- backward ---- */

size_t kvm_ngram_backward_scratch(const kvm_ngram *g, ptrdiff_t n)
{
    return kvm_ngram_scratch(g, n) + kvm_step_rows_bytes(n, g->wide) +
           kvm_step_rows_bytes(n + g->reach, g->wide);
}

/* dh (n, wide) by what convolve added to -> dc (reach + n, wide) += */
static void convolve_back(const kvm_ngram *g, const float *c, const float *dh,
                          ptrdiff_t n, float *dc)
{
    for (ptrdiff_t t = 0; t < n; t++)
        for (ptrdiff_t i = 0; i < g->wide; i++) {
            float sum = 0;
            for (ptrdiff_t w = 0; w < g->size.window; w++)
                sum += g->conv[w * g->wide + i] *
                       c[(t + w * g->size.orders) * g->wide + i];
            const float d = dh[t * g->wide + i] * kvm_silu_slope(sum);
            for (ptrdiff_t w = 0; w < g->size.window; w++)
                dc[(t + w * g->size.orders) * g->wide + i] +=
                    d * g->conv[w * g->wide + i];
        }
}

/* da (n, wide) by gated values -> by queries, in place */
static void gate_back(const kvm_ngram *g, const gathered *o, ptrdiff_t n, float *da)
{
    const double root = sqrt((double)g->hidden);
    for (ptrdiff_t i = 0; i < n * g->size.count; i++) {
        const float *k = (const float *)o->key.data + i * g->hidden;
        const float *q = (const float *)o->query.data + i * g->hidden;
        const float *v = (const float *)o->value.data + i / g->size.count * g->hidden;
        float *d = da + i * g->hidden;
        double slope;
        opening(dot_of(k, q, g->hidden) / root, &slope);
        const float by = (float)(dot_of(d, v, g->hidden) * slope / root);
        for (ptrdiff_t j = 0; j < g->hidden; j++) d[j] = by * k[j];
    }
}

kvm_status kvm_ngram_backward(const kvm_ngram *g, const kvm_step *s, ptrdiff_t object,
                              kvm_tensor h, kvm_tensor dh, kvm_err *err)
{
    kvm_arena temp = s->scratch;
    const ptrdiff_t n = s->n, wide = g->wide;
    gathered o;
    TRY(gather(g, s, object, h, &o, &temp, err));
    const kvm_tensor da = kvm_step_rows(&temp, n, wide);
    const kvm_tensor dc = kvm_step_rows(&temp, n + g->reach, wide);
    if (!da.data || !dc.data) return kvm_nomem(err, &temp);
    memset(dc.data, 0, (size_t)kvm_tensor_count(&dc) * sizeof(float));
    memcpy(da.data, dh.data, (size_t)kvm_tensor_count(&da) * sizeof(float));
    convolve_back(g, o.c.data, dh.data, n, dc.data);
    float *window = s->grads[object].rows;
    for (ptrdiff_t r = 0; r < g->reach; r++)
        for (ptrdiff_t i = 0; i < wide; i++)
            window[i * g->reach + r] += ((const float *)dc.data)[r * wide + i];
    TRY(kvm_op_rmsnorm_back(s->compute, da, o.a, kvm_view1(g->conv_norm, KVM_F32, wide),
                            kvm_last_rows(dc, n), g->hidden, g->eps, false, true, err));
    gate_back(g, &o, n, da.data);
    return kvm_op_rmsnorm_back(s->compute, dh, h,
                               kvm_view1(g->query_norm, KVM_F32, wide), da, g->hidden,
                               g->eps, false, true, err);
}
