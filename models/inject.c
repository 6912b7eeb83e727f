/* inject.c - rows and states put into a cache from outside, behind the tokens that it
 * holds: all that was announced, or none.
 *
 *   L tokens --begin(n)--> being filled --end, all there--> L + n tokens
 *                               |
 *                               +--end, something missing; cancel-->
 *                                  L tokens; none where a layer keeps a state, which
 *                                  may have moved on */
#include <string.h>

#include "models/model_internal.h"

kvm_status kvm_inject_begin(kvm_cache *c, ptrdiff_t tokens, kvm_err *err)
{
    if (c->promised > 0)
        return kvm_fail(err, KVM_USAGE,
                        "the cache is being filled from token %td on: end that first",
                        c->length);
    if (tokens < 1 || tokens > c->capacity - c->length)
        return kvm_fail(err, KVM_RANGE,
                        "%td tokens to inject after %td into a cache of %td tokens",
                        tokens, c->length, c->capacity);
    for (ptrdiff_t i = 0; i < c->model->info.objects; i++) {
        const ptrdiff_t block = c->model->objects[i].block;
        memset(c->seen + i * c->capacity + c->length, 0, (size_t)tokens);
        c->arrived[i] = c->length;
        /* a block that goes on behind the length is made when all of it is there */
        if (block > 0 && c->slots[i].units->n > c->length / block)
            c->slots[i].units->n = c->length / block;
    }
    if (c->model->recurrent && c->length == 0) kvm_cache__forget(c);
    c->without_index = false;
    c->promised = c->length + tokens;
    return KVM_OK;
}

void kvm_inject_cancel(kvm_cache *c)
{
    if (c->promised > 0 && c->model->recurrent) kvm_cache_clear(c);
    c->promised = 0;
}

static kvm_status check_rows(const kvm_cache *c, ptrdiff_t object, ptrdiff_t from,
                             ptrdiff_t n, kvm_err *err)
{
    if (c->promised == 0)
        return kvm_fail(err, KVM_USAGE, "kvm_inject_begin comes before rows");
    if (from < c->length || n < 0 || n > c->promised - from)
        return kvm_fail(err, KVM_RANGE,
                        "rows of tokens %td to %td; tokens %td to %td were announced",
                        from, from + n, c->length, c->promised);
    const unsigned char *seen = c->seen + object * c->capacity + from;
    const unsigned char *twice = n > 0 ? memchr(seen, 1, (size_t)n) : NULL;
    if (!twice) return KVM_OK;
    const kvm_object *o = &c->model->objects[object];
    return kvm_fail(err, KVM_MISMATCH, "layer %td, %s: token %td is injected twice",
                    o->layer, kvm_object_name(o->kind), from + (twice - seen));
}

/* ---- objects per prompt ---- */

static kvm_status check_state(const kvm_cache *c, const kvm_object *o,
                              const kvm_state *s, kvm_err *err)
{
    const char *axes = kvm_object_rows[o->kind].shape;
    const char *name = kvm_object_name(o->kind);
    if (!kvm_str_eq(s->axes, kvm_str_of(axes)))
        return kvm_fail(err, KVM_MISMATCH,
                        "layer %td, %s: its axes are %s, not %.*s: transpose it first",
                        o->layer, name, axes, KVM_STR_ARG(s->axes));
    for (int i = 0; i < 3; i++)
        if (s->dim[i] != o->shape[i])
            return kvm_fail(err, KVM_MISMATCH,
                            "layer %td, %s: axis %d of %s has %td entries here, not "
                            "%td",
                            o->layer, name, i + 1, axes, o->shape[i], s->dim[i]);
    if (o->dtype == KVM_F32 && s->dtype != KVM_F32)
        return kvm_fail(
            err, KVM_MISMATCH,
            "layer %td, %s: its numbers went through %s: a state is kept in "
            "F32, or the model forgets",
            o->layer, name, kvm_dtype_name(s->dtype));
    if (s->tokens == c->promised) return KVM_OK;
    return kvm_fail(err, KVM_MISMATCH,
                    "layer %td, %s: it stands after %td tokens; %td were announced",
                    o->layer, name, s->tokens, c->promised);
}

/* may an object come whole? */
static kvm_status check_whole(const kvm_cache *c, ptrdiff_t object, kvm_err *err)
{
    TRY(kvm_cache__check_object(c, object, err));
    const kvm_object *o = &c->model->objects[object];
    if (!kvm_object_per_prompt(o))
        return kvm_fail(err, KVM_USAGE, "%s comes in rows: kvm_inject_rows",
                        kvm_object_name(o->kind));
    if (c->promised == 0)
        return kvm_fail(err, KVM_USAGE, "kvm_inject_begin comes before states");
    if (c->arrived[object] == c->length) return KVM_OK;
    return kvm_fail(err, KVM_MISMATCH, "layer %td, %s: it is injected twice", o->layer,
                    kvm_object_name(o->kind));
}

kvm_status kvm_inject_state(kvm_cache *c, ptrdiff_t object, const kvm_state *s,
                            kvm_err *err)
{
    TRY(check_whole(c, object, err));
    const kvm_object *o = &c->model->objects[object];
    TRY(check_state(c, o, s, err));
    memcpy(c->slots[object].rows, s->data,
           (size_t)(o->heads * o->dim) * sizeof *s->data);
    c->arrived[object] = s->tokens;
    return KVM_OK;
}

kvm_status kvm_inject_unchanged(kvm_cache *c, ptrdiff_t object, kvm_err *err)
{
    TRY(check_whole(c, object, err));
    c->arrived[object] = c->promised;
    return KVM_OK;
}

/* inputs (n, replay) of a recurrent layer, in order, through its states */
static kvm_status replay(kvm_cache *c, ptrdiff_t object, int point, ptrdiff_t from,
                         ptrdiff_t n, const float *rows, kvm_err *err)
{
    const kvm_object *o = &c->model->objects[object];
    ptrdiff_t which;
    const kvm_layer *l = kvm_cache__owner(c, object, &which);
    if (o->replay == 0 || point != KVM_POINT_RAW)
        return kvm_fail(err, KVM_USAGE,
                        "layer %td, %s: it is injected whole (kvm_inject_state)%s",
                        o->layer, kvm_object_name(o->kind),
                        o->replay ? ", or made again from rows at point 1" : "");
    if (c->promised == 0)
        return kvm_fail(err, KVM_USAGE, "kvm_inject_begin comes before rows");
    if (from != c->arrived[object] || n < 0 || n > c->promised - from)
        return kvm_fail(err, KVM_MISMATCH,
                        "layer %td, %s: tokens %td to %td of %td; the next one is %td, "
                        "for a state is made in order",
                        o->layer, kvm_object_name(o->kind), from, from + n, c->promised,
                        c->arrived[object]);
    for (ptrdiff_t t = 0; t < n; t += KVM_STAGE_ROWS) {
        kvm_step s = {.compute = c->model->compute,
                      .first = from + t,
                      .n = n - t < KVM_STAGE_ROWS ? n - t : KVM_STAGE_ROWS,
                      .pos = c->pos,
                      .slots = c->slots,
                      .scratch = c->replay};
        kvm_cache__positions(c, s.first, s.n);
        const kvm_tensor x = kvm_view2((float *)(uintptr_t)(rows + t * o->replay),
                                       KVM_F32, s.n, o->replay);
        TRY(l->kind->replay(l, &s, x, err));
    }
    for (ptrdiff_t i = 0; i < c->model->info.objects; i++) { /* its window with it */
        const kvm_object *other = &c->model->objects[i];
        if (other->layer == o->layer &&
            (i == object || other->kind == KVM_OBJECT_WINDOW))
            c->arrived[i] += n;
    }
    return KVM_OK;
}

/* ---- rows ---- */

kvm_status kvm_inject_rows(kvm_cache *c, ptrdiff_t object, int point, ptrdiff_t from,
                           ptrdiff_t n, const float *rows, kvm_err *err)
{
    TRY(kvm_cache__check_object(c, object, err));
    TRY(kvm_cache__check_point(point, err));
    if (kvm_object_per_prompt(&c->model->objects[object]))
        return replay(c, object, point, from, n, rows, err);
    TRY(check_rows(c, object, from, n, err));
    const kvm_slot *s = &c->slots[object];
    const ptrdiff_t width = s->heads * s->dim;
    ptrdiff_t which;
    const kvm_layer *l = kvm_cache__owner(c, object, &which);
    for (ptrdiff_t t = 0; t < n; t += KVM_STAGE_ROWS) {
        const ptrdiff_t piece = n - t < KVM_STAGE_ROWS ? n - t : KVM_STAGE_ROWS;
        const float *kept = rows + t * width;
        if (point != KVM_POINT_ENGINE) {
            memcpy(c->stage, kept, (size_t)(piece * width) * sizeof *kept);
            kvm_cache__positions(c, from + t, piece);
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

/* ---- index keys that do not come ---- */

kvm_status kvm_inject_dense(kvm_cache *c, kvm_err *err)
{
    if (c->promised == 0)
        return kvm_fail(err, KVM_USAGE,
                        "kvm_inject_begin comes before what is left out");
    if (c->model->config.index.heads == 0)
        return kvm_fail(err, KVM_UNSUPPORTED,
                        "%s has no indexer: it looks at all tokens anyway",
                        c->model->info.path.at);
    c->without_index = true;
    return KVM_OK;
}

/* the rows of an indexer: 0, so that what is read of them is the same every time */
static kvm_status leave_out(kvm_cache *c, ptrdiff_t object, kvm_err *err)
{
    const kvm_slot *s = &c->slots[object];
    const kvm_object *o = &c->model->objects[object];
    if (c->arrived[object] > c->length)
        return kvm_fail(err, KVM_MISMATCH,
                        "layer %td, %s: %td tokens were injected, and were to be left "
                        "out",
                        o->layer, kvm_object_name(o->kind),
                        c->arrived[object] - c->length);
    for (ptrdiff_t t = c->length; t < c->promised; t++)
        memset(s->rows + t * s->stride, 0, (size_t)s->dim * sizeof *s->rows);
    c->arrived[object] = c->promised;
    return KVM_OK;
}

static kvm_status leave_out_index(kvm_cache *c, kvm_err *err)
{
    for (ptrdiff_t i = 0; c->without_index && i < c->model->info.objects; i++)
        if (kvm_object_chooses(&c->model->objects[i])) TRY(leave_out(c, i, err));
    return KVM_OK;
}

/* ---- the end ---- */

static kvm_status check_all(const kvm_cache *c, kvm_err *err)
{
    const ptrdiff_t tokens = c->promised;
    for (ptrdiff_t i = 0; i < c->model->info.objects; i++) {
        if (c->arrived[i] == tokens) continue;
        const kvm_object *o = &c->model->objects[i];
        if (kvm_object_per_prompt(o))
            return kvm_fail(err, KVM_MISMATCH,
                            "layer %td, %s: it stands after %td of %td tokens; a cache "
                            "is whole or it is refused",
                            o->layer, kvm_object_name(o->kind), c->arrived[i], tokens);
        const unsigned char *seen = c->seen + i * c->capacity;
        const unsigned char *hole =
            memchr(seen + c->length, 0, (size_t)(tokens - c->length));
        return kvm_fail(err, KVM_MISMATCH,
                        "layer %td, %s: token %td of %td was not injected; a cache is "
                        "whole or it is refused",
                        o->layer, kvm_object_name(o->kind), hole ? hole - seen : 0,
                        tokens);
    }
    return KVM_OK;
}

kvm_status kvm_inject_end(kvm_cache *c, kvm_err *err)
{
    if (c->promised == 0)
        return kvm_fail(err, KVM_USAGE, "kvm_inject_begin comes before the end");
    kvm_status s = leave_out_index(c, err);
    if (!s) s = check_all(c, err);
    if (s) {
        kvm_inject_cancel(c);
        return s;
    }
    c->length = c->promised;
    if (c->without_index) c->dense = c->length;
    c->promised = 0;
    return KVM_OK;
}
