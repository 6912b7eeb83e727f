#include "translators/gather.h"

#include <string.h>

#include "base/clock.h"

/* parts of a layer's row of a space that are under way */
typedef struct assembly {
    ptrdiff_t width, have; /* numbers of a row, and how many of them have come */
    ptrdiff_t first, n;    /* tokens of the piece */
    float *rows;           /* (most, width); NULL where one object is the whole row */
} assembly;

struct kvm_gather {
    const kvm_model *m;
    kvm_spaces which;
    ptrdiff_t layers, most;
    assembly *of; /* (KVM_SPACES, layers) */
    kvm_gather_sink *sink;
    void *ctx;
    unsigned points;
};

kvm_status kvm_gather_new(kvm_gather **out, kvm_arena *keep, const kvm_model *m,
                          kvm_spaces which, ptrdiff_t most, kvm_gather_sink *sink,
                          void *ctx, kvm_err *err)
{
    kvm_gather *g = kvm_new(keep, kvm_gather, 1);
    if (!g) return kvm_nomem(err, keep);
    *g = (kvm_gather){.m = m,
                      .which = which,
                      .layers = kvm_model_info_of(m)->layers,
                      .most = most,
                      .sink = sink,
                      .ctx = ctx};
    g->of = kvm_new(keep, assembly, KVM_SPACES * g->layers);
    if (!g->of) return kvm_nomem(err, keep);
    for (int s = 0; s < KVM_SPACES; s++) {
        if (!(which >> s & 1)) continue;
        for (ptrdiff_t i = 0; i < kvm_model_info_of(m)->objects; i++) {
            const kvm_object *o = kvm_model_object(m, i);
            const kvm_row_shape part = kvm_space_part((kvm_space)s, o);
            assembly *a = &g->of[s * g->layers + o->layer];
            const bool second = a->width > 0;
            a->width += part.heads * part.dim;
            if (part.dim > 0) g->points |= 1U << kvm_space_rows[s].point;
            if (!second || part.dim == 0) continue;
            a->rows = kvm_new_raw(keep, float, most * a->width);
            if (!a->rows) return kvm_nomem(err, keep);
        }
    }
    *out = g;
    return KVM_OK;
}

/* column of an object's part in a row of the space */
static ptrdiff_t column_of(const kvm_gather *g, kvm_space s, ptrdiff_t object)
{
    ptrdiff_t at = 0;
    const ptrdiff_t layer = kvm_model_object(g->m, object)->layer;
    for (ptrdiff_t i = object - 1; i >= 0; i--) {
        const kvm_object *o = kvm_model_object(g->m, i);
        if (o->layer != layer) break;
        const kvm_row_shape part = kvm_space_part(s, o);
        at += part.heads * part.dim;
    }
    return at;
}

/* a piece of at most g->most rows of one part; whole rows go on */
static kvm_status add(kvm_gather *g, kvm_space s, ptrdiff_t object, ptrdiff_t width,
                      ptrdiff_t first, ptrdiff_t n, const float *rows, kvm_err *err)
{
    const ptrdiff_t layer = kvm_model_object(g->m, object)->layer;
    assembly *a = &g->of[(int)s * g->layers + layer];
    if (!a->rows) return g->sink(g->ctx, s, layer, first, n, rows, err);
    if (n > g->most)
        return kvm_fail(err, KVM_RANGE,
                        "layer %td, %s: a piece of %td rows, at most %td", layer,
                        kvm_space_name(s), n, g->most);
    if (a->have == 0) {
        a->first = first;
        a->n = n;
    }
    if (a->first != first || a->n != n)
        return kvm_fail(err, KVM_MISMATCH,
                        "layer %td, %s: its parts are of other tokens", layer,
                        kvm_space_name(s));
    float *to = a->rows + column_of(g, s, object);
    for (ptrdiff_t t = 0; t < n; t++)
        memcpy(to + t * a->width, rows + t * width, sizeof *to * (size_t)width);
    a->have += width;
    if (a->have < a->width) return KVM_OK;
    a->have = 0;
    return g->sink(g->ctx, s, layer, first, n, a->rows, err);
}

static kvm_status take(void *ctx, ptrdiff_t object, int point, ptrdiff_t first,
                       ptrdiff_t n, const float *rows, kvm_err *err)
{
    kvm_gather *g = ctx;
    for (int i = 0; i < KVM_SPACES; i++) {
        const kvm_space s = (kvm_space)i;
        if (!(g->which >> i & 1) || kvm_space_rows[i].point != point) continue;
        const kvm_row_shape part = kvm_space_part(s, kvm_model_object(g->m, object));
        const ptrdiff_t width = part.heads * part.dim;
        if (width > 0) TRY(add(g, s, object, width, first, n, rows, err));
    }
    return KVM_OK;
}

kvm_capture kvm_gather_capture(kvm_gather *g)
{
    return (kvm_capture){.rows = take, .points = g->points, .ctx = g};
}

/* ---- keeping them ---- */

/* one layer's rows of a space */
typedef struct taken_rows {
    float *rows; /* (capacity, width); NULL: not kept */
    ptrdiff_t width;
    ptrdiff_t from, end; /* tokens whose rows are there */
} taken_rows;

struct kvm_taken {
    kvm_gather *gather;
    ptrdiff_t capacity, layers;
    taken_rows *of;   /* (KVM_SPACES, layers) */
    kvm_capture sink; /* the gatherer's, which is timed */
    double seconds;
};

static taken_rows *rows_at(const kvm_taken *t, kvm_space space, ptrdiff_t layer)
{
    return &t->of[(int)space * t->layers + layer];
}

kvm_status kvm_taken_put(kvm_taken *t, kvm_space space, ptrdiff_t layer,
                         ptrdiff_t first, ptrdiff_t n, const float *rows, ptrdiff_t ld,
                         kvm_err *err)
{
    taken_rows *to = rows_at(t, space, layer);
    if (!to->rows || n == 0) return KVM_OK;
    if (first < 0 || n > t->capacity - first)
        return kvm_fail(err, KVM_RANGE,
                        "tokens %td to %td do not fit into %td rows that are taken",
                        first, first + n, t->capacity);
    for (ptrdiff_t r = 0; r < n; r++)
        memcpy(to->rows + (first + r) * to->width, rows + r * ld,
               sizeof *rows * (size_t)to->width);
    if (first < to->from || first > to->end) to->from = first;
    to->end = first + n;
    return KVM_OK;
}

static kvm_status put(void *ctx, kvm_space space, ptrdiff_t layer, ptrdiff_t first,
                      ptrdiff_t n, const float *rows, kvm_err *err)
{
    kvm_taken *t = ctx;
    return kvm_taken_put(t, space, layer, first, n, rows,
                         rows_at(t, space, layer)->width, err);
}

kvm_status kvm_taken_new(kvm_taken **out, kvm_arena *keep, const kvm_model *m,
                         kvm_spaces which, ptrdiff_t capacity, kvm_err *err)
{
    enum { PIECE = 512 }; /* a forward's chunk is no longer, unless it is told so */
    kvm_shapes shapes;
    kvm_taken *t = kvm_new(keep, kvm_taken, 1);
    if (!t) return kvm_nomem(err, keep);
    TRY(kvm_rows_shapes(&shapes, keep, m, err));
    t->capacity = capacity;
    t->layers = shapes.layers;
    t->of = kvm_new(keep, taken_rows, KVM_SPACES * shapes.layers);
    if (!t->of) return kvm_nomem(err, keep);
    for (int s = 0; s < KVM_SPACES; s++)
        for (ptrdiff_t l = 0; l < shapes.layers; l++) {
            const ptrdiff_t w = kvm_shapes_width(&shapes, (kvm_space)s, l);
            taken_rows *to = rows_at(t, (kvm_space)s, l);
            if (!(which >> s & 1) || w == 0 || kvm_space_once((kvm_space)s)) continue;
            to->width = w;
            to->rows = kvm_new_raw(keep, float, capacity *w);
            if (!to->rows) return kvm_nomem(err, keep);
        }
    TRY(kvm_gather_new(&t->gather, keep, m, which, capacity < PIECE ? capacity : PIECE,
                       put, t, err));
    t->sink = kvm_gather_capture(t->gather);
    *out = t;
    return KVM_OK;
}

static kvm_status timed(void *ctx, ptrdiff_t object, int point, ptrdiff_t first,
                        ptrdiff_t n, const float *rows, kvm_err *err)
{
    kvm_taken *t = ctx;
    const double started = kvm_now();
    TRY(t->sink.rows(t->sink.ctx, object, point, first, n, rows, err));
    t->seconds += kvm_now() - started;
    return KVM_OK;
}

kvm_capture kvm_taken_capture(kvm_taken *t)
{
    return (kvm_capture){.rows = timed, .points = t->sink.points, .ctx = t};
}

double kvm_taken_seconds(const kvm_taken *t)
{
    return t->seconds;
}

bool kvm_taken_has(const kvm_taken *t, kvm_space space, ptrdiff_t layer,
                   ptrdiff_t first, ptrdiff_t n)
{
    const taken_rows *r = rows_at(t, space, layer);
    return r->rows && first >= r->from && first + n <= r->end;
}

void kvm_taken_cut(kvm_taken *t, ptrdiff_t length)
{
    for (ptrdiff_t i = 0; i < KVM_SPACES * t->layers; i++) {
        taken_rows *r = &t->of[i];
        if (r->end > length) r->end = length;
        if (r->from > r->end) r->from = r->end;
    }
}

const float *kvm_taken_rows(const kvm_taken *t, kvm_space space, ptrdiff_t layer)
{
    return rows_at(t, space, layer)->rows;
}
