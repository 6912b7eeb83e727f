/* attention.h - causal attention in tiles with an online softmax (template; see vec.h).
 *
 * A part is one kv head and a block of queries, whose rows are (query, head of the
 * group), so that a tile of keys and values is widened once for the whole group. For
 * each tile of keys: S = Q Kt, P = 2^(S - m), O = O 2^(m_old - m) + P V, row tile by
 * row tile, so that S stays in the L1 cache. Scores carry a factor log2 e. Rows that
 * see nothing of a tile skip it.
 *
 * Few queries over a long cache: the keys are split into ranges of fixed length, each
 * gives (m, l, O), and the ranges are merged in order. Bits depend on neither threads
 * nor the cut of the queries into blocks, for key tiles start at multiples of their
 * size. Source: Milakov and Gimelshein 2018 (online softmax); Dao 2022 (tiling). */
#ifndef KVM_KERNELS_ATTENTION_H
#define KVM_KERNELS_ATTENTION_H

#include "kernels/gemm.h"

#include <math.h>

enum {
    KEYS = 256,           /* keys per tile */
    S_PITCH = KEYS + 16,  /* keeps the rows of a tile out of one cache set */
    ATTENTION_ROWS = 384, /* rows over which the widening of a tile is spread */
    SPLIT_QUERIES = 8,    /* up to so many queries the keys are split */
    SPLIT_KEYS = 2 * KEYS,
};
static const float no_key = -1e30f; /* running maximum of a row that saw no key: finite,
                                       so that differences stay numbers */

typedef struct attention_job {
    kvm_in y, q, k, v;
    ptrdiff_t first, window;
    const kvm_mask *mask; /* NULL: none */
    float scale;          /* times log2 e */
    ptrdiff_t group, block, blocks, splits;
    bool few;       /* rows: of the whole call, lest the bits depend on its cut */
    ptrdiff_t tile; /* keys that rows take before the next rows come */
    ptrdiff_t dv;   /* D of v, up to whole panels */
    float *buffer;
    ptrdiff_t buffer_size;
    float *ranges; /* (Hk, splits, rows, dv + 2): m, l, O; NULL when splits is 1 */
} attention_job;

/* what one part works on; the pointers are into its thread's buffer */
typedef struct attention_part {
    kvm_tensor k, v; /* (hi,D) of this head */
    ptrdiff_t head, q0, rows, hi;
    float *q;     /* (rows,D) scaled */
    float *o;     /* (rows,dv) */
    float *m, *l; /* (rows) running maximum and sum */
    float *s;     /* (MR,S_PITCH) */
    float *kp;    /* panels of keys, (D,NR) each */
    float *vp;    /* panels of values, (KEYS,NR) each */
    float *wide;
} attention_part;

static kvm_tensor head_of(kvm_in cache, ptrdiff_t head, ptrdiff_t rows)
{
    const ptrdiff_t at = head * cache->stride[0] * kvm_dtype_block_bytes(cache->dtype);
    kvm_tensor t =
        kvm_view2((char *)cache->data + at, cache->dtype, rows, cache->dim[2]);
    t.stride[0] = cache->stride[1];
    return t;
}

static attention_part open_part(const attention_job *j, ptrdiff_t head, ptrdiff_t block,
                                int thread)
{
    const ptrdiff_t d = j->q->dim[2], q0 = block * j->block;
    const ptrdiff_t queries = least(j->block, j->q->dim[0] - q0);
    const ptrdiff_t most_rows = j->block * j->group;
    attention_part a = {.head = head, .q0 = q0, .rows = queries * j->group};
    a.hi = j->first + q0 + queries;
    a.k = head_of(j->k, head, a.hi);
    a.v = head_of(j->v, head, a.hi);
    a.q = j->buffer + thread * j->buffer_size;
    a.o = a.q + most_rows * d;
    a.m = a.o + most_rows * j->dv;
    a.l = a.m + most_rows;
    a.s = a.l + most_rows;
    a.kp = a.s + MR * S_PITCH;
    a.vp = a.kp + KEYS * d;
    a.wide = a.vp + KEYS * j->dv;
    for (ptrdiff_t r = 0; r < a.rows; r++) {
        const float *from = kvm_row32(j->q, q0 + r / j->group) +
                            (head * j->group + r % j->group) * j->q->stride[1];
        for (ptrdiff_t i = 0; i < d; i++) a.q[r * d + i] = from[i] * j->scale;
        a.m[r] = no_key;
        a.l[r] = 0;
    }
    memset(a.o, 0, (size_t)(a.rows * j->dv) * sizeof *a.o);
    return a;
}

static ptrdiff_t attention_floats(const attention_job *j)
{
    const ptrdiff_t d = j->q->dim[2], rows = j->block * j->group;
    return rows * (d + j->dv + 2) + MR * S_PITCH + KEYS * (d + j->dv) + VW * d;
}

static void pack_keys(const attention_job *j, attention_part *a, ptrdiff_t j0,
                      ptrdiff_t j1)
{
    const ptrdiff_t d = a->k.dim[1], bytes = kvm_dtype_block_bytes(a->v.dtype);
    for (ptrdiff_t p = 0; p < j1 - j0; p += NR)
        pack_panel(a->kp + p * d, &a->k, j0 + p, 0, d, a->wide);
    for (ptrdiff_t i = j0; i < j1; i++) {
        const char *row = (const char *)a->v.data + i * a->v.stride[0] * bytes;
        for (ptrdiff_t c = 0; c < j->dv; c += VW) {
            const ptrdiff_t n = least(VW, a->v.dim[1] - c);
            float *to = a->vp + c / NR * KEYS * NR + (i - j0) * NR + c % NR;
            vf x = v_all(0);
            if (a->v.dtype == KVM_F32)
                x = n == VW ? v_load(row + 4 * c) : x;
            else if (n == VW)
                x = a->v.dtype == KVM_BF16 ? load_as(KVM_BF16, row, c)
                                           : load_as(KVM_F16, row, c);
            if (n > 0 && n < VW) x = load_as_n(a->v.dtype, row, c, n);
            v_store(to, x);
        }
    }
}

/* row of n scores -> weights relative to the running maximum; entries outside [from,to)
 * weigh nothing. Gives the factor of what was summed before. */
static float softmax_row(float *s, ptrdiff_t n, ptrdiff_t from, ptrdiff_t to, float *m,
                         float *l)
{
    const ptrdiff_t whole = up_to(n, VW);
    for (ptrdiff_t i = 0; i < from; i++) s[i] = -INFINITY;
    for (ptrdiff_t i = most(to, 0); i < whole; i++) s[i] = -INFINITY;
    vf top = v_all(*m);
    for (ptrdiff_t i = 0; i < whole; i += VW) top = v_max(top, v_load(s + i));
    const float high = v_top(top);
    const vf h = v_all(high);
    vf sum = v_all(0);
    for (ptrdiff_t i = 0; i < whole; i += VW) {
        const vf p = v_exp2(v_load(s + i) - h);
        sum = sum + p;
        v_store(s + i, p);
    }
    float factor[VW];
    v_store(factor, v_exp2(v_all(*m) - h));
    *l = *l * factor[0] + v_sum(sum);
    *m = high;
    return factor[0];
}

/* whether rows r..r+mr look at any of keys j0..j1 */
static bool any_chosen(const attention_job *j, const attention_part *a, ptrdiff_t r,
                       ptrdiff_t mr, ptrdiff_t j0, ptrdiff_t j1)
{
    const ptrdiff_t last = a->q0 + (r + mr - 1) / j->group;
    for (ptrdiff_t q = a->q0 + r / j->group; q <= last; q++) {
        const uint64_t *bits = j->mask->bits + q * j->mask->words;
        for (ptrdiff_t w = j0 / 64; w * 64 < j1; w++)
            if (bits[w]) return true; /* a neighbour's bit costs a tile, no more */
    }
    return false;
}

/* keys of j0..j1 that rows r..r+mr see, counted from j0; <= 0 when none */
static ptrdiff_t keys_seen(const attention_job *j, const attention_part *a, ptrdiff_t r,
                           ptrdiff_t mr, ptrdiff_t j0, ptrdiff_t j1)
{
    const ptrdiff_t at = j->first + a->q0;
    const ptrdiff_t low = at + r / j->group, high = at + (r + mr - 1) / j->group;
    if (j->window && j1 <= low - j->window + 1) return 0;
    if (j->mask && !any_chosen(j, a, r, mr, j0, least(j1, high + 1))) return 0;
    return least(j1, high + 1) - j0;
}

/* scores of keys that the query's mask takes away weigh nothing */
static void mask_row(const attention_job *j, ptrdiff_t query, float *s, ptrdiff_t j0,
                     ptrdiff_t n)
{
    const uint64_t *bits = j->mask->bits + query * j->mask->words;
    for (ptrdiff_t i = 0; i < n; i++)
        if (!(bits[(j0 + i) / 64] >> (j0 + i) % 64 & 1)) s[i] = -INFINITY;
}

/* scores of rows r..r+mr to weights; O by the same factor */
static void weigh_rows(const attention_job *j, attention_part *a, ptrdiff_t r,
                       ptrdiff_t mr, ptrdiff_t j0, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < mr; i++) {
        const ptrdiff_t pos = j->first + a->q0 + (r + i) / j->group;
        const ptrdiff_t from = j->window ? pos - j->window + 1 - j0 : 0;
        if (j->mask)
            mask_row(j, a->q0 + (r + i) / j->group, a->s + i * S_PITCH, j0,
                     least(pos + 1 - j0, n));
        const float f = softmax_row(a->s + i * S_PITCH, n, least(from, n),
                                    least(pos + 1 - j0, n), a->m + r + i, a->l + r + i);
        float *o = a->o + (r + i) * j->dv;
        for (ptrdiff_t c = 0; c < j->dv; c += VW)
            v_store(o + c, v_load(o + c) * v_all(f));
    }
}

/* rows r..r+mr over keys j0..j1, which lie in panels */
static void attend_rows(const attention_job *j, attention_part *a, ptrdiff_t r,
                        ptrdiff_t mr, ptrdiff_t j0, ptrdiff_t j1)
{
    const ptrdiff_t d = a->k.dim[1], n = keys_seen(j, a, r, mr, j0, j1);
    if (n <= 0) return;
    for (ptrdiff_t p = 0; p < n; p += NR)
        tile_of[mr](a->s + p, S_PITCH, a->q + r * d, d, a->kp + p * d, d, NULL, false,
                    NR);
    weigh_rows(j, a, r, mr, j0, n);
    for (ptrdiff_t c = 0; c < j->dv; c += NR)
        tile_of[mr](a->o + r * j->dv + c, j->dv, a->s, S_PITCH, a->vp + c * KEYS, n,
                    NULL, true, NR);
}

/* ---- few rows: keys and values are read once, in order, and not packed ----------- */

enum {
    FEW = 4,         /* rows, */
    FEW_KEYS = 2,    /* keys and */
    FEW_VECTORS = 2, /* vectors of values that are in registers together */
    /* keys and values of a tile: rows beyond the first find them in the second cache */
    FEW_FLOATS = 32 << 10
};

/* keys of a tile; KEYS is a multiple */
static ptrdiff_t few_tile(ptrdiff_t floats)
{
    ptrdiff_t n = KEYS;
    while (n > 16 && n * floats > FEW_FLOATS) n /= 2;
    return n;
}

/* scores of rows r..r+mr against `keys` keys from the i-th of the tile, which lies at
 * key */
V_INLINE void score_few(const float *q, const char *key, float *s, ptrdiff_t pitch,
                        ptrdiff_t d, const kvm_dtype type, const int mr, const int keys)
{
    vf acc[FEW][FEW_KEYS];
    V_UNROLL for (int h = 0; h < mr; h++) V_UNROLL for (int k = 0; k < keys; k++)
        acc[h][k] = v_all(0);
    for (ptrdiff_t p = 0; p < d; p += VW) {
        const ptrdiff_t n = d - p;
        vf kv[FEW_KEYS];
        V_UNROLL for (int k = 0; k < keys; k++) kv[k] =
            n >= VW ? load_as(type, key + k * pitch, p)
                    : load_as_n(type, key + k * pitch, p, n);
        V_UNROLL for (int h = 0; h < mr; h++)
        {
            const vf x = n >= VW ? v_load(q + h * d + p) : v_load_n(q + h * d + p, n);
            V_UNROLL for (int k = 0; k < keys; k++) acc[h][k] =
                v_fma(kv[k], x, acc[h][k]);
        }
    }
    V_UNROLL for (int h = 0; h < mr; h++) V_UNROLL for (int k = 0; k < keys; k++)
        s[h * S_PITCH + k] = v_sum(acc[h][k]);
}

/* `vectors` vectors of O of rows r..r+mr += weights of n keys times their values, which
 * lie at value; the last one has `last` numbers */
V_INLINE void sum_few(float *o, const char *value, const float *s, ptrdiff_t pitch,
                      ptrdiff_t dv, ptrdiff_t n, const kvm_dtype type, const int mr,
                      const int vectors, ptrdiff_t c, ptrdiff_t last)
{
    vf acc[FEW][FEW_VECTORS];
    V_UNROLL for (int h = 0; h < mr; h++) V_UNROLL for (int x = 0; x < vectors; x++)
        acc[h][x] = v_load(o + h * dv + x * VW);
    for (ptrdiff_t i = 0; i < n; i++, value += pitch) {
        vf v[FEW_VECTORS];
        V_UNROLL for (int x = 0; x < vectors; x++) v[x] =
            x < vectors - 1 || last == VW ? load_as(type, value, c + x * VW)
                                          : load_as_n(type, value, c + x * VW, last);
        V_UNROLL for (int h = 0; h < mr; h++)
        {
            const vf w = v_all(s[h * S_PITCH + i]);
            V_UNROLL for (int x = 0; x < vectors; x++) acc[h][x] =
                v_fma(w, v[x], acc[h][x]);
        }
    }
    V_UNROLL for (int h = 0; h < mr; h++) V_UNROLL for (int x = 0; x < vectors; x++)
        v_store(o + h * dv + x * VW, acc[h][x]);
}

V_INLINE void attend_few_as(const attention_job *j, attention_part *a,
                            const kvm_dtype type, const int mr, ptrdiff_t r,
                            ptrdiff_t j0, ptrdiff_t n)
{
    const ptrdiff_t d = a->k.dim[1], values = a->v.dim[1];
    const ptrdiff_t kp = a->k.stride[0] * simple_bytes(type);
    const ptrdiff_t vp = a->v.stride[0] * simple_bytes(type);
    const char *key = (const char *)a->k.data + j0 * kp;
    const char *value = (const char *)a->v.data + j0 * vp;
    ptrdiff_t i = 0, c = 0;
    for (; i + FEW_KEYS <= n; i += FEW_KEYS) {
        for (ptrdiff_t b = 0; b < FEW_KEYS * vp; b += 64) /* read in columns below */
            __builtin_prefetch(value + i * vp + b);
        score_few(a->q + r * d, key + i * kp, a->s + i, kp, d, type, mr, FEW_KEYS);
    }
    for (; i < n; i++)
        score_few(a->q + r * d, key + i * kp, a->s + i, kp, d, type, mr, 1);
    weigh_rows(j, a, r, mr, j0, n);
    for (; c + FEW_VECTORS * VW <= values; c += FEW_VECTORS * VW)
        sum_few(a->o + r * j->dv + c, value, a->s, vp, j->dv, n, type, mr, FEW_VECTORS,
                c, VW);
    for (; c < values; c += VW)
        sum_few(a->o + r * j->dv + c, value, a->s, vp, j->dv, n, type, mr, 1, c,
                least(VW, values - c));
}

#define FEW_TYPES(mr)                                                                  \
    if (type == KVM_F32) attend_few_as(j, a, KVM_F32, mr, r, j0, n);                   \
    if (type == KVM_F16) attend_few_as(j, a, KVM_F16, mr, r, j0, n);                   \
    if (type == KVM_BF16) attend_few_as(j, a, KVM_BF16, mr, r, j0, n);                 \
    break
static void attend_few(const attention_job *j, attention_part *a, ptrdiff_t r,
                       ptrdiff_t mr, ptrdiff_t j0, ptrdiff_t j1)
{
    const ptrdiff_t n = keys_seen(j, a, r, mr, j0, j1);
    const kvm_dtype type = a->k.dtype;
    if (n <= 0) return;
    switch (mr) {
    case 1:
        FEW_TYPES(1);
    case 2:
        FEW_TYPES(2);
    case 3:
        FEW_TYPES(3);
    default:
        FEW_TYPES(4);
    }
}
#undef FEW_TYPES

/* ---- one part -------------------------------------------------------------------- */

static void attend_tile(const attention_job *j, attention_part *a, ptrdiff_t j0,
                        ptrdiff_t j1)
{
    if (j->few) {
        for (ptrdiff_t r = 0; r < a->rows; r += FEW)
            attend_few(j, a, r, least(FEW, a->rows - r), j0, j1);
        return;
    }
    pack_keys(j, a, j0, j1);
    for (ptrdiff_t i = 0; i < tiles_in(a->rows); i++) {
        const ptrdiff_t r = tile_from(a->rows, i);
        attend_rows(j, a, r, tile_from(a->rows, i + 1) - r, j0, j1);
    }
}

static void attention_part_run(void *ctx, ptrdiff_t part, int thread)
{
    const attention_job *j = ctx;
    const ptrdiff_t heads = j->k->dim[0], split = part % j->splits;
    const ptrdiff_t head = part / j->splits % heads;
    /* the last block sees most keys: it goes first, so that threads end together */
    const ptrdiff_t block = j->blocks - 1 - part / (j->splits * heads);
    attention_part a = open_part(j, head, block, thread);
    ptrdiff_t lo = 0, hi = a.hi;
    if (j->window) lo = most(0, j->first + a.q0 - j->window + 1);
    if (j->splits > 1) {
        lo = most(lo, split * SPLIT_KEYS);
        hi = least(hi, (split + 1) * SPLIT_KEYS);
    }
    for (ptrdiff_t j0 = lo / KEYS * KEYS; j0 < hi; j0 += j->tile)
        attend_tile(j, &a, j0, least(j0 + j->tile, hi));
    for (ptrdiff_t r = 0; r < a.rows; r++) {
        if (j->splits > 1) {
            float *to =
                j->ranges + ((head * j->splits + split) * a.rows + r) * (j->dv + 2);
            to[0] = a.m[r], to[1] = a.l[r];
            memcpy(to + 2, a.o + r * j->dv, (size_t)j->dv * sizeof *to);
            continue;
        }
        float *to = kvm_row32(j->y, a.q0 + r / j->group) +
                    (head * j->group + r % j->group) * j->y->stride[1];
        const float share = 1 / a.l[r];
        for (ptrdiff_t i = 0; i < j->v->dim[2]; i++) to[i] = a.o[r * j->dv + i] * share;
    }
}

/* one row of one kv head from its ranges of keys, in order */
static void merge_row(const attention_job *j, ptrdiff_t head, ptrdiff_t r)
{
    const ptrdiff_t rows = j->q->dim[0] * j->group, pitch = j->dv + 2;
    const float *from = j->ranges + (head * j->splits * rows + r) * pitch;
    float *to = kvm_row32(j->y, r / j->group) +
                (head * j->group + r % j->group) * j->y->stride[1];
    float top = no_key, total = 0;
    for (ptrdiff_t s = 0; s < j->splits; s++)
        top = from[s * rows * pitch] > top ? from[s * rows * pitch] : top;
    for (ptrdiff_t i = 0; i < j->v->dim[2]; i++) to[i] = 0;
    for (ptrdiff_t s = 0; s < j->splits; s++) {
        const float *range = from + s * rows * pitch;
        const float f = exp2f(range[0] - top);
        total += range[1] * f;
        for (ptrdiff_t i = 0; i < j->v->dim[2]; i++) to[i] += range[2 + i] * f;
    }
    for (ptrdiff_t i = 0; i < j->v->dim[2]; i++) to[i] /= total;
}

static kvm_status attention(kvm_compute *c, kvm_in y, kvm_in q, kvm_in k, kvm_in v,
                            ptrdiff_t first, ptrdiff_t window, const kvm_mask *mask,
                            double scale, kvm_err *err)
{
    const ptrdiff_t heads = k->dim[0], queries = q->dim[0], keys = first + queries;
    attention_job j = {
        .y = y, .q = q, .k = k, .v = v, .first = first, .window = window, .mask = mask};
    j.scale = (float)(scale * 1.4426950408889634);
    j.group = q->dim[1] / heads;
    j.dv = up_to(v->dim[2], NR);
    const ptrdiff_t want = (ptrdiff_t)c->threads * GEMM_PARTS;
    j.block = least(most(1, ATTENTION_ROWS / j.group),
                    most((2 * MR + j.group - 1) / j.group, queries * heads / want));
    j.splits = 1;
    if (queries <= SPLIT_QUERIES) {
        j.block = queries;
        j.splits = (keys + SPLIT_KEYS - 1) / SPLIT_KEYS;
    }
    j.few = queries * j.group <= 2 * FEW && k->dtype == v->dtype;
    j.tile = j.few ? few_tile(k->dim[2] + v->dim[2]) : KEYS;
    j.blocks = (queries + j.block - 1) / j.block;
    j.buffer_size = up_to(attention_floats(&j), 16);
    kvm_arena scratch = c->scratch;
    j.buffer = kvm_new_raw(&scratch, float, j.buffer_size * c->threads);
    if (j.splits > 1)
        j.ranges =
            kvm_new_raw(&scratch, float, heads *j.splits *queries *j.group *(j.dv + 2));
    if (!j.buffer || (j.splits > 1 && !j.ranges)) return kvm_nomem(err, &scratch);
    kvm_pool_run(c->pool, heads * j.blocks * j.splits, attention_part_run, &j);
    for (ptrdiff_t h = 0; j.splits > 1 && h < heads; h++)
        for (ptrdiff_t r = 0; r < queries * j.group; r++) merge_row(&j, h, r);
    return KVM_OK;
}

#endif
