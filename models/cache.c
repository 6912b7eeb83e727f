/* cache.c - what a model keeps between tokens: one f32 slot per object. */
#include <string.h>

#include "models/model_internal.h"

/* the slots of an object and of those that stand beside it */
static kvm_status reserve_row(kvm_cache *c, ptrdiff_t first, ptrdiff_t end,
                              kvm_arena *keep, kvm_err *err)
{
    ptrdiff_t stride = 0, heads = c->model->objects[first].heads;
    for (ptrdiff_t i = first; i < end; i++) stride += c->model->objects[i].dim;
    float *rows = kvm_new_raw(keep, float, heads *stride * c->capacity);
    if (!rows) return kvm_nomem(err, keep);
    for (ptrdiff_t i = first; i < end; i++) {
        const kvm_object *o = &c->model->objects[i];
        c->slots[i] = (kvm_slot){.rows = rows,
                                 .heads = o->heads,
                                 .capacity = c->capacity,
                                 .dim = o->dim,
                                 .stride = stride};
        rows += o->dim;
    }
    return KVM_OK;
}

static kvm_status reserve_slots(kvm_cache *c, kvm_arena *keep, kvm_err *err)
{
    const kvm_model *m = c->model;
    const ptrdiff_t n = m->info.objects;
    ptrdiff_t widest = 0;
    c->slots = kvm_new(keep, kvm_slot, n);
    c->arrived = kvm_new(keep, ptrdiff_t, n);
    c->seen = kvm_new_raw(keep, unsigned char, n * c->capacity);
    if (!c->slots || !c->arrived || !c->seen) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && m->objects[end].beside;) end++;
        TRY(reserve_row(c, i, end, keep, err));
    }
    for (ptrdiff_t i = 0; i < n; i++) {
        const ptrdiff_t width = m->objects[i].heads * m->objects[i].dim;
        if (width > widest) widest = width;
    }
    c->stage = kvm_new_raw(keep, float, KVM_STAGE_ROWS *widest);
    c->pos = kvm_new_raw(keep, int32_t, KVM_STAGE_ROWS);
    return c->stage && c->pos ? KVM_OK : kvm_nomem(err, keep);
}

kvm_status kvm_cache_new(kvm_cache **out, kvm_arena *keep, const kvm_model *m,
                         ptrdiff_t capacity, kvm_err *err)
{
    if (capacity < 1 || capacity > m->info.context)
        return kvm_fail(err, KVM_RANGE,
                        "a cache of %td tokens; %s has a context of %td tokens",
                        capacity, m->info.path.at, m->info.context);
    kvm_cache *c = kvm_new(keep, kvm_cache, 1);
    if (!c) return kvm_nomem(err, keep);
    *c = (kvm_cache){.model = m, .capacity = capacity};
    TRY(reserve_slots(c, keep, err));
    *out = c;
    return KVM_OK;
}

ptrdiff_t kvm_cache_length(const kvm_cache *c)
{
    return c->length;
}

size_t kvm_cache_bytes(const kvm_cache *c)
{
    size_t bytes = 0;
    for (ptrdiff_t i = 0; i < c->model->info.objects; i++)
        bytes +=
            (size_t)(c->slots[i].heads * c->slots[i].dim * c->length) * sizeof(float);
    return bytes;
}

void kvm_cache_clear(kvm_cache *c)
{
    c->length = 0;
    c->promised = 0;
}

kvm_status kvm_cache_truncate(kvm_cache *c, ptrdiff_t length, kvm_err *err)
{
    if (length < 0 || length > c->length)
        return kvm_fail(err, KVM_RANGE, "a cache of %td tokens cannot be cut to %td",
                        c->length, length);
    c->length = length;
    return KVM_OK;
}

kvm_status kvm_cache_copy(kvm_cache *to, const kvm_cache *from, kvm_err *err)
{
    if (to->model != from->model)
        return kvm_fail(err, KVM_MISMATCH, "the two caches belong to two models");
    if (from->promised > 0 || to->promised > 0)
        return kvm_fail(err, KVM_USAGE, "rows are being injected: end that first");
    if (from->length > to->capacity)
        return kvm_fail(err, KVM_RANGE,
                        "%td tokens do not fit into a cache of %td tokens",
                        from->length, to->capacity);
    for (ptrdiff_t i = 0; i < from->model->info.objects; i++) {
        const kvm_slot *a = &from->slots[i], *b = &to->slots[i];
        if (from->model->objects[i].beside) continue; /* went with the one before */
        for (ptrdiff_t h = 0; h < a->heads; h++)
            memcpy(b->rows + h * b->capacity * b->stride,
                   a->rows + h * a->capacity * a->stride,
                   (size_t)(from->length * a->stride) * sizeof *a->rows);
    }
    to->length = from->length;
    return KVM_OK;
}

static kvm_status check_object(const kvm_cache *c, ptrdiff_t object, kvm_err *err)
{
    if (object >= 0 && object < c->model->info.objects) return KVM_OK;
    return kvm_fail(err, KVM_RANGE, "object %td; %s keeps %td", object,
                    c->model->info.path.at, c->model->info.objects);
}

kvm_status kvm_cache_view(const kvm_cache *c, ptrdiff_t object, kvm_tensor *view,
                          kvm_err *err)
{
    TRY(check_object(c, object, err));
    *view = kvm_slot_view(&c->slots[object], c->length);
    return KVM_OK;
}

/* the layer that an object belongs to, and which of its objects it is */
static const kvm_layer *owner(const kvm_cache *c, ptrdiff_t object, ptrdiff_t *which)
{
    const kvm_layer *l = c->model->blocks[c->model->objects[object].layer].mixer;
    *which = object - l->first_object;
    return l;
}

static kvm_status check_point(int point, kvm_err *err)
{
    if (point >= KVM_POINT_RAW && point <= KVM_POINT_ENGINE) return KVM_OK;
    return kvm_fail(err, KVM_USAGE, "capture point %d; there are 1, 2 and 3", point);
}

static void fill_positions(const kvm_cache *c, ptrdiff_t from, ptrdiff_t n)
{
    for (ptrdiff_t t = 0; t < n; t++) c->pos[t] = (int32_t)(from + t);
}

kvm_status kvm_cache_read(const kvm_cache *c, ptrdiff_t object, int point,
                          ptrdiff_t from, ptrdiff_t n, float *rows, kvm_err *err)
{
    TRY(check_object(c, object, err));
    TRY(check_point(point, err));
    if (from < 0 || n < 0 || n > c->length - from)
        return kvm_fail(err, KVM_RANGE, "tokens %td to %td of a cache of %td", from,
                        from + n, c->length);
    const kvm_slot *s = &c->slots[object];
    const ptrdiff_t width = s->heads * s->dim;
    ptrdiff_t which;
    const kvm_layer *l = owner(c, object, &which);
    for (ptrdiff_t t = 0; t < n; t += KVM_STAGE_ROWS) {
        const ptrdiff_t piece = n - t < KVM_STAGE_ROWS ? n - t : KVM_STAGE_ROWS;
        kvm_slot_get(s, from + t, piece, rows + t * width);
        fill_positions(c, from + t, piece);
        TRY(l->kind->retreat(l, c->model->compute, which, point, c->pos, piece,
                             rows + t * width, err));
    }
    return KVM_OK;
}

/* ---- injection ---- */

kvm_status kvm_inject_begin(kvm_cache *c, ptrdiff_t tokens, kvm_err *err)
{
    if (c->length > 0 || c->promised > 0)
        return kvm_fail(
            err, KVM_USAGE,
            "rows are injected into an empty cache only; this one holds %td "
            "tokens or is being filled",
            c->length);
    if (tokens < 1 || tokens > c->capacity)
        return kvm_fail(err, KVM_RANGE,
                        "%td tokens to inject into a cache of %td tokens", tokens,
                        c->capacity);
    for (ptrdiff_t i = 0; i < c->model->info.objects; i++) {
        memset(c->seen + i * c->capacity, 0, (size_t)tokens);
        c->arrived[i] = 0;
    }
    c->promised = tokens;
    return KVM_OK;
}

static kvm_status check_rows(const kvm_cache *c, ptrdiff_t object, ptrdiff_t from,
                             ptrdiff_t n, kvm_err *err)
{
    if (c->promised == 0)
        return kvm_fail(err, KVM_USAGE, "kvm_inject_begin comes before rows");
    if (from < 0 || n < 0 || n > c->promised - from)
        return kvm_fail(err, KVM_RANGE,
                        "rows of tokens %td to %td; %td tokens were announced", from,
                        from + n, c->promised);
    const unsigned char *seen = c->seen + object * c->capacity + from;
    const unsigned char *twice = n > 0 ? memchr(seen, 1, (size_t)n) : NULL;
    if (!twice) return KVM_OK;
    const kvm_object *o = &c->model->objects[object];
    return kvm_fail(err, KVM_MISMATCH, "layer %td, %s: token %td is injected twice",
                    o->layer, kvm_object_name(o->kind), from + (twice - seen));
}

kvm_status kvm_inject_rows(kvm_cache *c, ptrdiff_t object, int point, ptrdiff_t from,
                           ptrdiff_t n, const float *rows, kvm_err *err)
{
    TRY(check_object(c, object, err));
    TRY(check_point(point, err));
    TRY(check_rows(c, object, from, n, err));
    const kvm_slot *s = &c->slots[object];
    const ptrdiff_t width = s->heads * s->dim;
    ptrdiff_t which;
    const kvm_layer *l = owner(c, object, &which);
    for (ptrdiff_t t = 0; t < n; t += KVM_STAGE_ROWS) {
        const ptrdiff_t piece = n - t < KVM_STAGE_ROWS ? n - t : KVM_STAGE_ROWS;
        const float *kept = rows + t * width;
        if (point != KVM_POINT_ENGINE) {
            memcpy(c->stage, kept, (size_t)(piece * width) * sizeof *kept);
            fill_positions(c, from + t, piece);
            TRY(l->kind->advance(l, c->model->compute, which, point, c->pos, piece,
                                 c->stage, err));
            kept = c->stage;
        }
        kvm_slot_put(s, from + t, piece, kept);
    }
    memset(c->seen + object * c->capacity + from, 1, (size_t)n);
    c->arrived[object] += n;
    return KVM_OK;
}

kvm_status kvm_inject_end(kvm_cache *c, kvm_err *err)
{
    const ptrdiff_t tokens = c->promised;
    if (tokens == 0)
        return kvm_fail(err, KVM_USAGE, "kvm_inject_begin comes before the end");
    c->promised = 0;
    for (ptrdiff_t i = 0; i < c->model->info.objects; i++) {
        if (c->arrived[i] == tokens) continue;
        const kvm_object *o = &c->model->objects[i];
        const unsigned char *seen = c->seen + i * c->capacity;
        const unsigned char *hole = memchr(seen, 0, (size_t)tokens);
        return kvm_fail(err, KVM_MISMATCH,
                        "layer %td, %s: token %td of %td was not injected; a cache is "
                        "whole or it is refused",
                        o->layer, kvm_object_name(o->kind), hole ? hole - seen : 0,
                        tokens);
    }
    c->length = tokens;
    return KVM_OK;
}
