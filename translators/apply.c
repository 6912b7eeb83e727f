#include "translators/apply.h"

#include <string.h>

#include "base/clock.h"
#include "translators/apply_internal.h"
#include "translators/select.h"

enum {
    BLOCK_TOKENS = 512, /* 128 .. 512 are alike; pool calls are fewer: RESULTS.md */
    ROWS_PER_PART = 64,
};

/* ---- one step ---- */

/* columns of source i that group g reads */
static kvm_piece piece_of(const kvm_step *s, const kvm_rows_at *x, ptrdiff_t i,
                          ptrdiff_t g, ptrdiff_t target_heads)
{
    const kvm_row_shape r = x->shape[s->source[i]];
    kvm_piece p = {.column = x->at[s->source[i]], .width = r.heads * r.dim};
    if (s->head_matched) {
        p.column += kvm_matched_head(g, r.heads, target_heads) * r.dim;
        p.width = r.dim;
    }
    return p;
}

/* group g of weight `part` as (out, in) */
static kvm_tensor group_of(const kvm_step *s, int part, ptrdiff_t g)
{
    const kvm_tensor *w = &s->weight[part];
    char *from = (char *)w->data +
                 g * w->dim[1] * w->dim[2] * (ptrdiff_t)kvm_dtype_block_bytes(w->dtype);
    return kvm_view2(from, w->dtype, w->dim[1], w->dim[2]);
}

static kvm_status ready_group(kvm_ready *r, kvm_arena *keep, kvm_compute *c,
                              const kvm_rows_at *x, ptrdiff_t g, ptrdiff_t target_heads,
                              kvm_err *err)
{
    const kvm_step *s = r->step;
    const kvm_tensor whole = group_of(s, 0, g);
    kvm_piece *p = r->piece[g] = kvm_new(keep, kvm_piece, s->sources);
    if (!p) return kvm_nomem(err, keep);
    ptrdiff_t n = 0;
    for (ptrdiff_t i = 0; i < s->sources; i++) { /* neighbours in x become one piece */
        const kvm_piece q = piece_of(s, x, i, g, target_heads);
        if (n > 0 && p[n - 1].column + p[n - 1].width == q.column)
            p[n - 1].width += q.width;
        else
            p[n++] = q;
    }
    kvm_tensor w = whole;
    for (ptrdiff_t i = 0; i < n; i++) {
        w.dim[1] = p[i].width;
        TRY(kvm_weight_new(&p[i].weight, keep, c, w,
                           i == 0 ? s->bias[0] + g * whole.dim[0] : NULL, err));
        w.data = (char *)w.data + p[i].width * kvm_dtype_block_bytes(w.dtype);
    }
    r->pieces[g] = n;
    if (s->map == KVM_MAP_RIDGE) return KVM_OK;
    TRY(kvm_weight_new(&r->weight2[g], keep, c, group_of(s, 1, g),
                       s->bias[1] + g * s->hidden, err));
    return kvm_weight_new(&r->weight3[g], keep, c, group_of(s, 2, g),
                          s->bias[2] + g * s->weight[2].dim[1], err);
}

kvm_status kvm_apply__ready(kvm_ready *r, kvm_arena *keep, kvm_compute *c,
                            const kvm_step *s, const kvm_rows_at *x,
                            ptrdiff_t target_heads, kvm_err *err)
{
    *r = (kvm_ready){.step = s,
                     .pieces = kvm_new(keep, ptrdiff_t, s->groups),
                     .piece = kvm_new(keep, kvm_piece *, s->groups),
                     .weight2 = kvm_new(keep, kvm_weight *, s->groups),
                     .weight3 = kvm_new(keep, kvm_weight *, s->groups)};
    if (!r->pieces || !r->piece || !r->weight2 || !r->weight3)
        return kvm_nomem(err, keep);
    for (ptrdiff_t g = 0; g < s->groups; g++)
        TRY(ready_group(r, keep, c, x, g, target_heads, err));
    return KVM_OK;
}

typedef struct relu_job {
    float *x;
    ptrdiff_t n;
} relu_job;

enum { RELU_PART = 16384 };

static void relu_part(void *ctx, ptrdiff_t part, int thread)
{
    (void)thread;
    const relu_job *j = ctx;
    const ptrdiff_t end = (part + 1) * RELU_PART < j->n ? (part + 1) * RELU_PART : j->n;
    for (ptrdiff_t i = part * RELU_PART; i < end; i++)
        j->x[i] = j->x[i] > 0 ? j->x[i] : 0;
}

static void relu(kvm_compute *c, kvm_tensor x)
{
    relu_job j = {x.data, kvm_tensor_count(&x)};
    kvm_pool_run(kvm_compute_pool(c), (j.n + RELU_PART - 1) / RELU_PART, relu_part, &j);
}

/* y = sum over the pieces of x_piece W_piece^T + bias */
static kvm_status first_layer(kvm_compute *c, const kvm_ready *r, const kvm_rows_at *x,
                              ptrdiff_t g, ptrdiff_t n, kvm_tensor y, kvm_err *err)
{
    for (ptrdiff_t i = 0; i < r->pieces[g]; i++) {
        const kvm_piece *p = &r->piece[g][i];
        kvm_tensor in = kvm_view2(x->rows + p->column, KVM_F32, n, p->width);
        in.stride[0] = x->ld;
        TRY(kvm_op_linear(c, y, in, p->weight, i > 0, err));
    }
    return KVM_OK;
}

kvm_status kvm_apply__step(kvm_compute *c, const kvm_ready *r, const kvm_rows_at *x,
                           ptrdiff_t n, float *y, ptrdiff_t ldy, float *const hidden[2],
                           kvm_err *err)
{
    const kvm_step *s = r->step;
    const ptrdiff_t out = s->outputs / s->groups;
    for (ptrdiff_t g = 0; g < s->groups; g++) {
        kvm_tensor to = kvm_view2(y + g * out, KVM_F32, n, out);
        to.stride[0] = ldy;
        if (s->map == KVM_MAP_RIDGE) {
            TRY(first_layer(c, r, x, g, n, to, err));
            continue;
        }
        const kvm_tensor h1 = kvm_view2(hidden[0], KVM_F32, n, s->hidden);
        const kvm_tensor h2 = kvm_view2(hidden[1], KVM_F32, n, s->hidden);
        TRY(first_layer(c, r, x, g, n, h1, err));
        relu(c, h1);
        TRY(kvm_op_linear(c, h2, h1, r->weight2[g], false, err));
        relu(c, h2);
        TRY(kvm_op_linear(c, to, h2, r->weight3[g], false, err));
    }
    return KVM_OK;
}

kvm_status kvm_apply__hidden(float *hidden[2], kvm_arena *keep, const kvm_step *steps,
                             ptrdiff_t count, ptrdiff_t n, kvm_err *err)
{
    ptrdiff_t widest = 0;
    for (ptrdiff_t i = 0; i < count; i++)
        if (steps[i].map == KVM_MAP_MLP && steps[i].hidden > widest)
            widest = steps[i].hidden;
    for (int i = 0; i < 2; i++) {
        hidden[i] = kvm_new_raw(keep, float, n *widest);
        if (!hidden[i]) return kvm_nomem(err, keep);
    }
    return KVM_OK;
}

/* ---- a whole cache ---- */

/* one object, K or V, of both models */
typedef struct pass {
    kvm_object_kind object;
    const kvm_row_shape *from, *to; /* (Ls), (Lt) */
    ptrdiff_t *at;             /* (Ls) column of each layer that is read; -1: none */
    ptrdiff_t width, to_width; /* of all layers read, of all target layers */
    ptrdiff_t ld, to_ld;       /* from row to row of x and y */
    kvm_ready *ready;          /* (Lt) */
    bool strip, rotate;
    kvm_rope from_rope, to_rope;
} pass;

struct kvm_apply {
    kvm_compute *c;
    const kvm_translator *t;
    const kvm_model *source, *target;
    pass pass[2];
    ptrdiff_t block;
    float *x, *y, *out; /* (block, ld), (block, to_ld), (block, widest layer) */
    int32_t *position;  /* (block) */
    float *hidden[2];   /* (block, widest hidden layer) */
};

/* Rows whole pages apart would meet in one set of the first-level cache: a line between
 * them is worth a tenth of the products' time. */
static ptrdiff_t pitch_of(ptrdiff_t width)
{
    enum { LINE = 16 };
    return (width + LINE - 1) / LINE * LINE + LINE;
}

static kvm_status plan_pass(kvm_apply *a, pass *p, kvm_arena *keep, kvm_err *err)
{
    const kvm_translator *t = a->t;
    const bool v = p->object == KVM_OBJECT_V;
    p->from = v ? t->source.v : t->source.k;
    p->to = v ? t->target.v : t->target.k;
    p->at = kvm_new(keep, ptrdiff_t, t->source.layers);
    p->ready = kvm_new(keep, kvm_ready, t->target.layers);
    if (!p->at || !p->ready) return kvm_nomem(err, keep);
    for (ptrdiff_t l = 0; l < t->target.layers; l++) {
        const kvm_step *s = &t->steps[2 * l + v];
        for (ptrdiff_t i = 0; i < s->sources; i++) p->at[s->source[i]] = 1;
        p->to_width += s->outputs;
    }
    for (ptrdiff_t l = 0; l < t->source.layers; l++) {
        const bool used = p->at[l] != 0;
        p->at[l] = used ? p->width : -1;
        p->width += used ? p->from[l].heads * p->from[l].dim : 0;
    }
    p->ld = pitch_of(p->width);
    p->to_ld = pitch_of(p->to_width);
    const kvm_rows_at x = {.at = p->at, .shape = p->from};
    for (ptrdiff_t l = 0; l < t->target.layers; l++)
        TRY(kvm_apply__ready(&p->ready[l], keep, a->c, &t->steps[2 * l + v], &x,
                             p->to[l].heads, err));
    if (v) return KVM_OK;
    p->from_rope =
        kvm_model_object(a->source, kvm_model_find_object(a->source, p->object, 0))
            ->rope;
    p->to_rope =
        kvm_model_object(a->target, kvm_model_find_object(a->target, p->object, 0))
            ->rope;
    p->strip = t->keys != KVM_KEYS_ROTATED && p->from_rope.width > 0;
    p->rotate = t->keys == KVM_KEYS_CONTENT && p->to_rope.width > 0;
    return KVM_OK;
}

kvm_status kvm_apply_new(kvm_apply **out, kvm_arena *keep, kvm_compute *c,
                         const kvm_translator *t, const kvm_model *source,
                         const kvm_model *target, const kvm_apply_options *o,
                         kvm_err *err)
{
    TRY(kvm_translator_check(t, err));
    TRY(kvm_translator_fits(t, source, target, o && o->force, err));
    kvm_apply *a = kvm_new(keep, kvm_apply, 1);
    if (!a) return kvm_nomem(err, keep);
    *a = (kvm_apply){.c = c, .t = t, .source = source, .target = target};
    a->block = o && o->block > 0 ? o->block : BLOCK_TOKENS;
    ptrdiff_t width = 1, to_width = 1, layer = 1;
    for (int i = 0; i < 2; i++) {
        pass *p = &a->pass[i];
        p->object = i ? KVM_OBJECT_V : KVM_OBJECT_K;
        TRY(plan_pass(a, p, keep, err));
        width = p->ld > width ? p->ld : width;
        to_width = p->to_ld > to_width ? p->to_ld : to_width;
        for (ptrdiff_t l = 0; l < t->target.layers; l++) {
            const ptrdiff_t w = p->to[l].heads * p->to[l].dim;
            layer = w > layer ? w : layer;
        }
    }
    a->x = kvm_new_raw(keep, float, a->block *width);
    a->y = kvm_new_raw(keep, float, a->block *to_width);
    a->out = kvm_new_raw(keep, float, a->block *layer);
    a->position = kvm_new(keep, int32_t, a->block);
    if (!a->x || !a->y || !a->out || !a->position) return kvm_nomem(err, keep);
    TRY(kvm_apply__hidden(a->hidden, keep, t->steps, t->count, a->block, err));
    *out = a;
    return KVM_OK;
}

typedef struct read_job {
    kvm_tensor view; /* (H,T,D) of the cache */
    ptrdiff_t from, n, ld;
    float *out;
} read_job;

/* rows of one layer from the cache's head-major view */
static void read_part(void *ctx, ptrdiff_t part, int thread)
{
    (void)thread;
    const read_job *j = ctx;
    const ptrdiff_t first = part * ROWS_PER_PART, dim = j->view.dim[2];
    const ptrdiff_t end = first + ROWS_PER_PART < j->n ? first + ROWS_PER_PART : j->n;
    const ptrdiff_t bytes = kvm_dtype_block_bytes(j->view.dtype);
    for (ptrdiff_t h = 0; h < j->view.dim[0]; h++)
        for (ptrdiff_t t = first; t < end; t++) {
            const ptrdiff_t at =
                h * j->view.stride[0] + (j->from + t) * j->view.stride[1];
            float *to = j->out + t * j->ld + h * dim;
            /* caches are F32, F16 or BF16, which cannot fail */
            const kvm_status s = kvm_widen_row(
                to, (const char *)j->view.data + at * bytes, j->view.dtype, dim, NULL);
            (void)s;
        }
}

static kvm_status read_layers(kvm_apply *a, const pass *p, const kvm_cache *from,
                              ptrdiff_t first, ptrdiff_t n, kvm_err *err)
{
    for (ptrdiff_t l = 0; l < a->t->source.layers; l++) {
        if (p->at[l] < 0) continue;
        read_job j = {.from = first, .n = n, .ld = p->ld, .out = a->x + p->at[l]};
        TRY(kvm_cache_view(from, kvm_model_find_object(a->source, p->object, l),
                           &j.view, err));
        kvm_pool_run(kvm_compute_pool(a->c), (n + ROWS_PER_PART - 1) / ROWS_PER_PART,
                     read_part, &j);
    }
    return KVM_OK;
}

/* All layers side by side are one row of many heads: the angles of a position are made
 * once for all of them. Layers of another head size are another call. */
static kvm_status rotate_layers(kvm_apply *a, float *rows, ptrdiff_t ld,
                                const kvm_row_shape *shape, const ptrdiff_t *at,
                                ptrdiff_t layers, ptrdiff_t n, const kvm_rope *rope,
                                bool inverse, kvm_err *err)
{
    ptrdiff_t column = 0;
    for (ptrdiff_t l = 0, next; l < layers; l = next) {
        ptrdiff_t heads = 0;
        for (next = l; next < layers && shape[next].dim == shape[l].dim; next++)
            heads += at && at[next] < 0 ? 0 : shape[next].heads;
        if (heads == 0) continue;
        kvm_tensor x = kvm_view3(rows + column, KVM_F32, n, heads, shape[l].dim);
        x.stride[0] = ld;
        TRY(kvm_op_rope(a->c, x, a->position, rope, inverse, err));
        column += heads * shape[l].dim;
    }
    return KVM_OK;
}

typedef struct copy_job {
    const float *from;
    float *to;
    ptrdiff_t n, ld, width;
} copy_job;

static void copy_part(void *ctx, ptrdiff_t part, int thread)
{
    (void)thread;
    const copy_job *j = ctx;
    const ptrdiff_t first = part * ROWS_PER_PART;
    const ptrdiff_t end = first + ROWS_PER_PART < j->n ? first + ROWS_PER_PART : j->n;
    for (ptrdiff_t t = first; t < end; t++)
        memcpy(j->to + t * j->width, j->from + t * j->ld,
               sizeof *j->to * (size_t)j->width);
}

static kvm_status inject(kvm_apply *a, const pass *p, kvm_cache *to, ptrdiff_t first,
                         ptrdiff_t n, kvm_err *err)
{
    ptrdiff_t column = 0;
    for (ptrdiff_t l = 0; l < a->t->target.layers; l++) {
        const ptrdiff_t w = p->to[l].heads * p->to[l].dim;
        copy_job j = {a->y + column, a->out, n, p->to_ld, w};
        kvm_pool_run(kvm_compute_pool(a->c), (n + ROWS_PER_PART - 1) / ROWS_PER_PART,
                     copy_part, &j);
        TRY(kvm_inject_rows(to, kvm_model_find_object(a->target, p->object, l),
                            KVM_POINT_ENGINE, first, n, a->out, err));
        column += w;
    }
    return KVM_OK;
}

static kvm_status run_block(kvm_apply *a, const pass *p, const kvm_cache *from,
                            kvm_cache *to, ptrdiff_t first, ptrdiff_t n,
                            kvm_apply_times *times, kvm_err *err)
{
    const kvm_translator *t = a->t;
    for (ptrdiff_t i = 0; i < n; i++) a->position[i] = (int32_t)(first + i);
    double start = kvm_now(), now;
    TRY(read_layers(a, p, from, first, n, err));
    times->read += (now = kvm_now()) - start;
    start = now;
    if (p->strip)
        TRY(rotate_layers(a, a->x, p->ld, p->from, p->at, t->source.layers, n,
                          &p->from_rope, true, err));
    times->strip += (now = kvm_now()) - start;
    start = now;
    const kvm_rows_at x = {a->x, p->ld, p->at, p->from};
    ptrdiff_t column = 0;
    for (ptrdiff_t l = 0; l < t->target.layers; l++) {
        TRY(kvm_apply__step(a->c, &p->ready[l], &x, n, a->y + column, p->to_ld,
                            a->hidden, err));
        column += p->to[l].heads * p->to[l].dim;
    }
    times->map += (now = kvm_now()) - start;
    start = now;
    if (p->rotate)
        TRY(rotate_layers(a, a->y, p->to_ld, p->to, NULL, t->target.layers, n,
                          &p->to_rope, false, err));
    times->rotate += (now = kvm_now()) - start;
    start = now;
    TRY(inject(a, p, to, first, n, err));
    times->inject += kvm_now() - start;
    return KVM_OK;
}

kvm_status kvm_apply_run(kvm_apply *a, const kvm_cache *from, kvm_cache *to,
                         kvm_apply_times *times, kvm_err *err)
{
    kvm_apply_times ignored = {0};
    const ptrdiff_t tokens = kvm_cache_length(from);
    if (tokens < 1)
        return kvm_fail(err, KVM_RANGE,
                        "the source cache is empty; nothing to translate");
    TRY(kvm_inject_begin(to, tokens, err));
    for (int i = 0; i < 2; i++)
        for (ptrdiff_t first = 0; first < tokens; first += a->block) {
            const ptrdiff_t left = tokens - first;
            TRY(run_block(a, &a->pass[i], from, to, first,
                          left < a->block ? left : a->block, times ? times : &ignored,
                          err));
        }
    return kvm_inject_end(to, err);
}

double kvm_apply_flops(const kvm_apply *a)
{
    double flops = 0;
    for (ptrdiff_t i = 0; i < a->t->count; i++) {
        const kvm_step *s = &a->t->steps[i];
        for (int p = 0; p < (s->map == KVM_MAP_MLP ? 3 : 1); p++)
            flops += 2 * (double)kvm_tensor_count(&s->weight[p]);
    }
    return flops;
}

double kvm_apply_bytes(const kvm_apply *a)
{
    double bytes = 0;
    for (int i = 0; i < 2; i++) {
        const pass *p = &a->pass[i];
        const ptrdiff_t from = kvm_model_find_object(a->source, p->object, 0);
        const ptrdiff_t to = kvm_model_find_object(a->target, p->object, 0);
        bytes += (double)p->width *
                     kvm_dtype_block_bytes(kvm_model_object(a->source, from)->dtype) +
                 (double)p->to_width *
                     kvm_dtype_block_bytes(kvm_model_object(a->target, to)->dtype);
    }
    return bytes;
}

/* ---- captured rows ---- */

kvm_status kvm_apply_rows(kvm_compute *c, const kvm_translator *t, ptrdiff_t i,
                          const kvm_rows *source, const ptrdiff_t *index, ptrdiff_t n,
                          float *out, kvm_arena scratch, kvm_err *err)
{
    if (i < 0 || i >= t->count)
        return kvm_fail(err, KVM_RANGE, "step %td of %td", i, t->count);
    const kvm_step *s = &t->steps[i];
    const bool v = s->object == KVM_OBJECT_V;
    const kvm_space space = v                             ? KVM_SPACE_V
                            : t->keys == KVM_KEYS_ROTATED ? KVM_SPACE_K_ROTATED
                                                          : KVM_SPACE_K;
    ptrdiff_t *at = kvm_new(&scratch, ptrdiff_t, t->source.layers), width = 0;
    if (!at) return kvm_nomem(err, &scratch);
    const kvm_row_shape *shape = v ? t->source.v : t->source.k;
    for (ptrdiff_t l = 0; l < s->sources; l++) {
        const kvm_row_shape want = shape[s->source[l]];
        const kvm_row_shape have = s->source[l] < kvm_rows_info_of(source)->layers
                                       ? kvm_rows_shape(source, space, s->source[l])
                                       : (kvm_row_shape){0};
        if (want.heads != have.heads || want.dim != have.dim)
            return kvm_fail(
                err, KVM_MISMATCH,
                "%s: layer %d has %td heads of %td, the translator reads %td "
                "of %td",
                kvm_rows_path(source).at, (int)s->source[l], have.heads, have.dim,
                want.heads, want.dim);
        at[s->source[l]] = width;
        width += want.heads * want.dim;
    }
    kvm_ready ready;
    float *hidden[2];
    kvm_rows_at x = {kvm_new_raw(&scratch, float, BLOCK_TOKENS *width), width, at,
                     shape};
    if (!x.rows) return kvm_nomem(err, &scratch);
    TRY(kvm_apply__ready(&ready, &scratch, c, s, &x,
                         kvm_step__shape(&t->target, s->object)[s->layer].heads, err));
    TRY(kvm_apply__hidden(hidden, &scratch, s, 1, BLOCK_TOKENS, err));
    for (ptrdiff_t first = 0; first < n; first += BLOCK_TOKENS) {
        const ptrdiff_t m = n - first < BLOCK_TOKENS ? n - first : BLOCK_TOKENS;
        for (ptrdiff_t l = 0; l < s->sources; l++)
            TRY(kvm_rows_read(c, source, space, s->source[l], 1, first,
                              index ? index + first : NULL, m,
                              x.rows + at[s->source[l]], width, err));
        TRY(kvm_apply__step(c, &ready, &x, m, out + first * s->outputs, s->outputs,
                            hidden, err));
    }
    return KVM_OK;
}
