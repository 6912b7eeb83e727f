#include "translators/apply.h"

#include <string.h>

#include "base/clock.h"
#include "translators/apply_internal.h"
#include "translators/select.h"

enum {
    BLOCK_TOKENS = 1024, /* a weight is packed once per block: measured in RESULTS.md */
    ROWS_PER_PART = 64,
};

/* ---- one step ---- */

kvm_status kvm_apply__ready(kvm_ready *r, kvm_arena *keep, kvm_compute *c,
                            const kvm_step *s, kvm_err *err)
{
    *r = (kvm_ready){.step = s, .parts = s->map == KVM_MAP_MLP ? 3 : 1};
    r->weight = kvm_new(keep, kvm_weight *, r->parts * s->groups);
    if (!r->weight) return kvm_nomem(err, keep);
    for (ptrdiff_t p = 0; p < r->parts; p++)
        for (ptrdiff_t g = 0; g < s->groups; g++) {
            const kvm_tensor *w = &s->weight[p];
            const ptrdiff_t rows = w->dim[1], cols = w->dim[2];
            char *from = (char *)w->data +
                         g * rows * cols * (ptrdiff_t)kvm_dtype_block_bytes(w->dtype);
            TRY(kvm_weight_new(&r->weight[p * s->groups + g], keep, c,
                               kvm_view2(from, w->dtype, rows, cols),
                               s->bias[p] + g * rows, err));
        }
    return KVM_OK;
}

typedef struct gather_job {
    const float *x;
    ptrdiff_t ldx, n, pieces, width; /* width of the gathered row */
    const ptrdiff_t *at, *size;      /* (pieces) in a row of x */
    float *out;
} gather_job;

static void gather_part(void *ctx, ptrdiff_t part, int thread)
{
    (void)thread;
    const gather_job *j = ctx;
    const ptrdiff_t from = part * ROWS_PER_PART;
    const ptrdiff_t end = from + ROWS_PER_PART < j->n ? from + ROWS_PER_PART : j->n;
    for (ptrdiff_t t = from; t < end; t++) {
        float *to = j->out + t * j->width;
        for (ptrdiff_t i = 0; i < j->pieces; i++) {
            memcpy(to, j->x + t * j->ldx + j->at[i], sizeof *to * (size_t)j->size[i]);
            to += j->size[i];
        }
    }
}

/* the pieces of a row of x that group g of the step reads; true when they are one run */
static bool pieces_of(const kvm_step *s, const kvm_rows_at *x, ptrdiff_t g,
                      ptrdiff_t target_heads, ptrdiff_t *at, ptrdiff_t *size)
{
    bool run = true;
    for (ptrdiff_t i = 0; i < s->sources; i++) {
        const kvm_row_shape r = x->shape[s->source[i]];
        at[i] = x->at[s->source[i]];
        size[i] = r.heads * r.dim;
        if (s->head_matched) {
            at[i] += kvm_matched_head(g, r.heads, target_heads) * r.dim;
            size[i] = r.dim;
        }
        run = run && (i == 0 || at[i] == at[i - 1] + size[i - 1]);
    }
    return run;
}

/* rows of x as one matrix (n, inputs): in place when they are one run, else gathered */
static kvm_tensor inputs_of(kvm_compute *c, const kvm_ready *r, const kvm_rows_at *x,
                            ptrdiff_t g, ptrdiff_t target_heads, ptrdiff_t n,
                            kvm_apply_room *room)
{
    const kvm_step *s = r->step;
    if (pieces_of(s, x, g, target_heads, room->at, room->size)) {
        kvm_tensor t = kvm_view2(x->rows + room->at[0], KVM_F32, n, s->inputs);
        t.stride[0] = x->ld;
        return t;
    }
    const kvm_tensor out = kvm_view2(room->gathered, KVM_F32, n, s->inputs);
    /* neighbours often read the same layers */
    const bool same =
        !s->head_matched && room->held == s->sources &&
        memcmp(room->source, s->source, sizeof *s->source * (size_t)s->sources) == 0;
    if (same) return out;
    gather_job j = {.x = x->rows,
                    .ldx = x->ld,
                    .n = n,
                    .pieces = s->sources,
                    .width = s->inputs,
                    .at = room->at,
                    .size = room->size,
                    .out = room->gathered};
    kvm_pool_run(kvm_compute_pool(c), (n + ROWS_PER_PART - 1) / ROWS_PER_PART,
                 gather_part, &j);
    room->held = s->head_matched ? 0 : s->sources;
    memcpy(room->source, s->source, sizeof *s->source * (size_t)s->sources);
    return out;
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

static kvm_status hidden_layer(kvm_compute *c, kvm_tensor y, kvm_tensor x,
                               const kvm_weight *w, kvm_err *err)
{
    TRY(kvm_op_linear(c, y, x, w, false, err));
    relu_job j = {y.data, kvm_tensor_count(&y)};
    kvm_pool_run(kvm_compute_pool(c), (j.n + RELU_PART - 1) / RELU_PART, relu_part, &j);
    return KVM_OK;
}

kvm_status kvm_apply__step(kvm_compute *c, const kvm_ready *r, const kvm_rows_at *x,
                           ptrdiff_t target_heads, ptrdiff_t n, float *y, ptrdiff_t ldy,
                           kvm_apply_room *room, kvm_apply_times *times, kvm_err *err)
{
    const kvm_step *s = r->step;
    const ptrdiff_t out = s->outputs / s->groups;
    for (ptrdiff_t g = 0; g < s->groups; g++) {
        const double start = kvm_now();
        kvm_tensor in = inputs_of(c, r, x, g, target_heads, n, room);
        const double gathered = kvm_now();
        kvm_tensor to = kvm_view2(y + g * out, KVM_F32, n, out);
        to.stride[0] = ldy;
        kvm_weight *const *w = r->weight + g;
        if (s->map == KVM_MAP_MLP) {
            const kvm_tensor h1 = kvm_view2(room->hidden[0], KVM_F32, n, s->hidden);
            const kvm_tensor h2 = kvm_view2(room->hidden[1], KVM_F32, n, s->hidden);
            TRY(hidden_layer(c, h1, in, w[0], err));
            TRY(hidden_layer(c, h2, h1, w[s->groups], err));
            in = h2;
            w += 2 * s->groups;
        }
        TRY(kvm_op_linear(c, to, in, w[0], false, err));
        times->gather += gathered - start;
        times->map += kvm_now() - gathered;
    }
    return KVM_OK;
}

kvm_status kvm_apply__room(kvm_apply_room *room, kvm_arena *keep, const kvm_step *steps,
                           ptrdiff_t count, ptrdiff_t n, kvm_err *err)
{
    ptrdiff_t inputs = 1, sources = 1, hidden = 1;
    for (ptrdiff_t i = 0; i < count; i++) {
        inputs = steps[i].inputs > inputs ? steps[i].inputs : inputs;
        sources = steps[i].sources > sources ? steps[i].sources : sources;
        if (steps[i].map == KVM_MAP_MLP && steps[i].hidden > hidden)
            hidden = steps[i].hidden;
    }
    *room = (kvm_apply_room){.gathered = kvm_new_raw(keep, float, n *inputs),
                             .hidden = {kvm_new_raw(keep, float, n *hidden),
                                        kvm_new_raw(keep, float, n *hidden)},
                             .at = kvm_new(keep, ptrdiff_t, sources),
                             .size = kvm_new(keep, ptrdiff_t, sources),
                             .source = kvm_new(keep, int32_t, sources)};
    if (!room->gathered || !room->hidden[0] || !room->hidden[1] || !room->at ||
        !room->size || !room->source)
        return kvm_nomem(err, keep);
    return KVM_OK;
}

/* ---- a whole cache ---- */

/* one object, K or V, of both models */
typedef struct pass {
    kvm_object_kind object;
    const kvm_row_shape *from, *to; /* (Ls), (Lt) */
    ptrdiff_t *at;             /* (Ls) column of each layer that is read; -1: none */
    ptrdiff_t width, to_width; /* of all layers read, of all target layers */
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
    float *x, *y, *out; /* (block, width), (block, to_width), (block, widest layer) */
    int32_t *position;  /* (block) */
    kvm_apply_room room;
};

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
        TRY(kvm_apply__ready(&p->ready[l], keep, a->c, s, err));
        for (ptrdiff_t i = 0; i < s->sources; i++) p->at[s->source[i]] = 1;
        p->to_width += s->outputs;
    }
    for (ptrdiff_t l = 0; l < t->source.layers; l++) {
        const bool used = p->at[l] != 0;
        p->at[l] = used ? p->width : -1;
        p->width += used ? p->from[l].heads * p->from[l].dim : 0;
    }
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
        width = p->width > width ? p->width : width;
        to_width = p->to_width > to_width ? p->to_width : to_width;
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
    TRY(kvm_apply__room(&a->room, keep, t->steps, t->count, a->block, err));
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
        read_job j = {.from = first, .n = n, .ld = p->width, .out = a->x + p->at[l]};
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
        copy_job j = {a->y + column, a->out, n, p->to_width, w};
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
    a->room.held = 0;
    double start = kvm_now(), now;
    TRY(read_layers(a, p, from, first, n, err));
    times->read += (now = kvm_now()) - start;
    start = now;
    if (p->strip)
        TRY(rotate_layers(a, a->x, p->width, p->from, p->at, t->source.layers, n,
                          &p->from_rope, true, err));
    times->strip += kvm_now() - start;
    const kvm_rows_at x = {a->x, p->width, p->at, p->from};
    ptrdiff_t column = 0;
    for (ptrdiff_t l = 0; l < t->target.layers; l++) {
        TRY(kvm_apply__step(a->c, &p->ready[l], &x, p->to[l].heads, n, a->y + column,
                            p->to_width, &a->room, times, err));
        column += p->to[l].heads * p->to[l].dim;
    }
    start = kvm_now();
    if (p->rotate)
        TRY(rotate_layers(a, a->y, p->to_width, p->to, NULL, t->target.layers, n,
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
    kvm_ready ready;
    kvm_apply_room room;
    kvm_apply_times times = {0};
    TRY(kvm_apply__ready(&ready, &scratch, c, s, err));
    TRY(kvm_apply__room(&room, &scratch, s, 1, BLOCK_TOKENS, err));
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
    float *x = kvm_new_raw(&scratch, float, BLOCK_TOKENS *width);
    if (!x) return kvm_nomem(err, &scratch);
    const ptrdiff_t heads = kvm_step__shape(&t->target, s->object)[s->layer].heads;
    for (ptrdiff_t first = 0; first < n; first += BLOCK_TOKENS) {
        const ptrdiff_t m = n - first < BLOCK_TOKENS ? n - first : BLOCK_TOKENS;
        for (ptrdiff_t l = 0; l < s->sources; l++)
            TRY(kvm_rows_read(c, source, space, s->source[l], 1, first,
                              index ? index + first : NULL, m, x + at[s->source[l]],
                              width, err));
        room.held = 0;
        TRY(kvm_apply__step(c, &ready, &(kvm_rows_at){x, width, at, shape}, heads, m,
                            out + first * s->outputs, s->outputs, &room, &times, err));
    }
    return KVM_OK;
}
