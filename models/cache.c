/* cache.c - what a model keeps between tokens: one f32 slot per object. */
#include <string.h>

#include "models/model_internal.h"

static kvm_status reserve_units(kvm_slot *s, ptrdiff_t block, kvm_arena *keep,
                                kvm_err *err)
{
    s->units = kvm_new(keep, kvm_units, 1);
    if (!s->units) return kvm_nomem(err, keep);
    s->units->rows = kvm_new_raw(keep, float, (s->capacity / block + 1) * s->dim);
    return s->units->rows ? KVM_OK : kvm_nomem(err, keep);
}

kvm_status kvm_cache__slots(kvm_slot *slots, const kvm_model *m, ptrdiff_t first,
                            ptrdiff_t end, ptrdiff_t capacity, kvm_arena *keep,
                            kvm_err *err)
{
    const kvm_object *objects = m->objects;
    const bool once = kvm_object_per_prompt(&objects[first]);
    const ptrdiff_t heads = objects[first].heads;
    ptrdiff_t stride = 0;
    if (once) capacity = 1;
    for (ptrdiff_t i = first; i < end; i++) stride += objects[i].dim;
    float *rows = once ? kvm_new(keep, float, heads *stride)
                       : kvm_new_raw(keep, float, heads *stride *capacity);
    if (!rows) return kvm_nomem(err, keep);
    for (ptrdiff_t i = first; i < end; i++) {
        slots[i] = (kvm_slot){.rows = rows,
                              .heads = objects[i].heads,
                              .capacity = capacity,
                              .dim = objects[i].dim,
                              .stride = stride};
        rows += objects[i].dim;
        if (objects[i].block > 0)
            TRY(reserve_units(&slots[i], objects[i].block, keep, err));
    }
    return KVM_OK;
}

static void free_arena(void *arena)
{
    kvm_arena_free(arena);
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
        TRY(kvm_cache__slots(c->slots, m, i, end, c->capacity, keep, err));
    }
    for (ptrdiff_t i = 0; i < n; i++) {
        const kvm_object *o = &m->objects[i];
        if (!kvm_object_per_prompt(o) && o->heads * o->dim > widest)
            widest = o->heads * o->dim;
    }
    c->stage = kvm_new_raw(keep, float, KVM_STAGE_ROWS *widest);
    c->pos = kvm_new_raw(keep, int32_t, KVM_STAGE_ROWS);
    return c->stage && c->pos ? KVM_OK : kvm_nomem(err, keep);
}

static ptrdiff_t numbers(const kvm_object *o)
{
    return o->heads * o->dim;
}

/* a second place for the objects per prompt, and scratch to make them again */
static kvm_status reserve_states(kvm_cache *c, kvm_arena *keep, kvm_err *err)
{
    const kvm_model *m = c->model;
    size_t most = 0;
    c->mark = kvm_new(keep, float *, m->info.objects);
    if (!c->mark) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i < m->info.objects; i++) {
        const kvm_object *o = &m->objects[i];
        if (!kvm_object_per_prompt(o)) continue;
        c->mark[i] = kvm_new_raw(keep, float, numbers(o));
        if (!c->mark[i]) return kvm_nomem(err, keep);
        const kvm_layer *l = m->blocks[o->layer].mixer.layer;
        if (!l) continue; /* in another part of the model */
        const size_t bytes = l->kind->scratch(l, KVM_STAGE_ROWS);
        if (bytes > most) most = bytes;
    }
    TRY(kvm_arena_init(&c->replay, most, err));
    return kvm_arena_defer(keep, free_arena, &c->replay, err);
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
    *c = (kvm_cache){.model = m, .capacity = capacity, .marked = -1};
    TRY(reserve_slots(c, keep, err));
    if (m->recurrent) TRY(reserve_states(c, keep, err));
    *out = c;
    return KVM_OK;
}

ptrdiff_t kvm_cache_length(const kvm_cache *c)
{
    return c->length;
}

ptrdiff_t kvm_cache_dense(const kvm_cache *c)
{
    return c->dense;
}

size_t kvm_cache_bytes(const kvm_cache *c)
{
    size_t bytes = 0;
    for (ptrdiff_t i = 0; i < c->model->info.objects; i++) {
        const kvm_object *o = &c->model->objects[i];
        const ptrdiff_t rows = kvm_object_per_prompt(o) ? c->length > 0 : c->length;
        bytes += (size_t)(numbers(o) * rows) * sizeof(float);
    }
    return bytes;
}

void kvm_cache__forget(kvm_cache *c)
{
    for (ptrdiff_t i = 0; i < c->model->info.objects; i++)
        if (kvm_object_per_prompt(&c->model->objects[i]))
            memset(c->slots[i].rows, 0,
                   (size_t)numbers(&c->model->objects[i]) * sizeof(float));
}

void kvm_cache_clear(kvm_cache *c)
{
    c->length = c->dense = 0;
    c->promised = 0;
    c->marked = -1;
    if (c->model->recurrent) kvm_cache__forget(c);
}

void kvm_cache_mark(kvm_cache *c)
{
    c->marked = c->length;
    c->marked_dense = c->dense;
    for (ptrdiff_t i = 0; c->mark && i < c->model->info.objects; i++)
        if (c->mark[i])
            memcpy(c->mark[i], c->slots[i].rows,
                   (size_t)numbers(&c->model->objects[i]) * sizeof(float));
}

/* what was made of rows that are copied goes with them; after a cut there may be more
 * than that */
static void copy_units(const kvm_units *from, kvm_units *to, const kvm_object *o,
                       ptrdiff_t length)
{
    const ptrdiff_t whole = length / o->block;
    to->n = from->n < whole ? from->n : whole;
    memcpy(to->rows, from->rows, (size_t)(to->n * o->dim) * sizeof(float));
}

/* objects per prompt as they were after `length` tokens */
static kvm_status go_back(kvm_cache *c, ptrdiff_t length, kvm_err *err)
{
    if (length == c->length) return KVM_OK;
    if (length != 0 && length != c->marked)
        return kvm_fail(err, KVM_UNSUPPORTED,
                        "%s has layers that keep a state of all tokens: it cannot be "
                        "cut from %td to %td tokens, which were not marked",
                        c->model->info.path.at, c->length, length);
    if (length == 0) kvm_cache__forget(c);
    for (ptrdiff_t i = 0; length > 0 && i < c->model->info.objects; i++)
        if (c->mark[i])
            memcpy(c->slots[i].rows, c->mark[i],
                   (size_t)numbers(&c->model->objects[i]) * sizeof(float));
    return KVM_OK;
}

/* fewer tokens are always looked at: blocks of those that now are chosen among may
 * never have been made */
static void choose_again(kvm_cache *c, ptrdiff_t length)
{
    const ptrdiff_t dense = length == c->marked ? c->marked_dense
                            : c->dense < length ? c->dense
                                                : length;
    if (length < c->marked) c->marked = -1; /* it was of tokens that are gone */
    if (length == c->length || dense == c->dense) return;
    c->dense = dense;
    for (ptrdiff_t i = 0; i < c->model->info.objects; i++)
        if (c->slots[i].units) c->slots[i].units->n = 0;
}

kvm_status kvm_cache_truncate(kvm_cache *c, ptrdiff_t length, kvm_err *err)
{
    if (c->promised > 0)
        return kvm_fail(err, KVM_USAGE, "rows are being injected: end that first");
    if (length < 0 || length > c->length)
        return kvm_fail(err, KVM_RANGE, "a cache of %td tokens cannot be cut to %td",
                        c->length, length);
    if (c->model->recurrent) TRY(go_back(c, length, err));
    choose_again(c, length);
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
        const kvm_object *o = &from->model->objects[i];
        const ptrdiff_t rows = kvm_object_per_prompt(o) ? 1 : from->length;
        if (o->block > 0) copy_units(a->units, b->units, o, from->length);
        if (o->beside) continue; /* went with the one before */
        for (ptrdiff_t h = 0; h < a->heads; h++)
            memcpy(b->rows + h * b->capacity * b->stride,
                   a->rows + h * a->capacity * a->stride,
                   (size_t)(rows * a->stride) * sizeof *a->rows);
    }
    to->length = from->length;
    to->dense = from->dense;
    to->marked = -1;
    return KVM_OK;
}

kvm_status kvm_cache__check_object(const kvm_cache *c, ptrdiff_t object, kvm_err *err)
{
    if (object >= 0 && object < c->model->info.objects) return KVM_OK;
    return kvm_fail(err, KVM_RANGE, "object %td; %s keeps %td", object,
                    c->model->info.path.at, c->model->info.objects);
}

kvm_status kvm_cache_view(const kvm_cache *c, ptrdiff_t object, kvm_tensor *view,
                          kvm_err *err)
{
    TRY(kvm_cache__check_object(c, object, err));
    const bool once = kvm_object_per_prompt(&c->model->objects[object]);
    *view = kvm_slot_view(&c->slots[object], once ? 1 : c->length);
    return KVM_OK;
}

/* the layer that an object belongs to, and which of its objects it is */
const kvm_layer *kvm_cache__owner(const kvm_cache *c, ptrdiff_t object,
                                  ptrdiff_t *which)
{
    const kvm_layer *l = c->model->blocks[c->model->objects[object].layer].mixer.layer;
    *which = object - l->first_object;
    return l;
}

kvm_status kvm_cache__check_point(int point, kvm_err *err)
{
    if (point >= KVM_POINT_RAW && point <= KVM_POINT_ENGINE) return KVM_OK;
    return kvm_fail(err, KVM_USAGE, "capture point %d; there are 1, 2 and 3", point);
}

void kvm_cache__positions(const kvm_cache *c, ptrdiff_t from, ptrdiff_t n)
{
    for (ptrdiff_t t = 0; t < n; t++) c->pos[t] = (int32_t)(from + t);
}

kvm_status kvm_cache_read(const kvm_cache *c, ptrdiff_t object, int point,
                          ptrdiff_t from, ptrdiff_t n, float *rows, kvm_err *err)
{
    TRY(kvm_cache__check_object(c, object, err));
    TRY(kvm_cache__check_point(point, err));
    if (from < 0 || n < 0 || n > c->length - from)
        return kvm_fail(err, KVM_RANGE, "tokens %td to %td of a cache of %td", from,
                        from + n, c->length);
    if (kvm_object_per_prompt(&c->model->objects[object]))
        return kvm_fail(err, KVM_USAGE, "%s has no rows: look at it (kvm_cache_view)",
                        kvm_object_name(c->model->objects[object].kind));
    const kvm_slot *s = &c->slots[object];
    const ptrdiff_t width = s->heads * s->dim;
    ptrdiff_t which;
    const kvm_layer *l = kvm_cache__owner(c, object, &which);
    for (ptrdiff_t t = 0; t < n; t += KVM_STAGE_ROWS) {
        const ptrdiff_t piece = n - t < KVM_STAGE_ROWS ? n - t : KVM_STAGE_ROWS;
        kvm_slot_get(s, from + t, piece, rows + t * width);
        kvm_cache__positions(c, from + t, piece);
        TRY(l->kind->retreat(l, c->model->compute, which, point, c->pos, piece,
                             rows + t * width, err));
    }
    return KVM_OK;
}

/* NULL: its mixer is no attention */
static const kvm_layer *attention_of(const kvm_model *m, ptrdiff_t layer)
{
    const kvm_layer *l = m->blocks[layer].mixer.layer;
    return l && l->kind->attended ? l : NULL;
}

bool kvm_model_attended(const kvm_model *m, ptrdiff_t layer, kvm_attended *a)
{
    const kvm_layer *l = attention_of(m, layer);
    if (l) *a = l->kind->attended(l);
    return l != NULL;
}

kvm_status kvm_cache_attended(const kvm_cache *c, ptrdiff_t layer, float *k, float *v,
                              kvm_err *err)
{
    const kvm_layer *l = attention_of(c->model, layer);
    if (!l) return kvm_fail(err, KVM_UNSUPPORTED, "layer %td has no attention", layer);
    return l->kind->expand(l, c->model->compute, c->slots + l->first_object, c->length,
                           k, v, err);
}
