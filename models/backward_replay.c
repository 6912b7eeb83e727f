/* backward_replay.c - from the gradient by a replayed state to its inputs
 * (kvm_model_pull_replay).
 *
 * The inputs are replayed once more, and state and window kept before every segment of
 * them; then gradients go back through one segment after the other. */
#include <string.h>

#include "models/backward.h"
#include "models/model_internal.h"

enum { SEGMENT = 256 }; /* tokens; whole chunks of kernels/recur.h */

/* one state and its inputs */
typedef struct replayed {
    const kvm_model *m;
    const kvm_layer *l;
    ptrdiff_t state, window, width; /* objects; of a row */
    ptrdiff_t n, segments;
    const float *rows;
    kvm_arena keep; /* scratch of the call */
    float *kept;    /* (segments, state and then window) before each */
    kvm_slot *now;  /* as they move on; then the gradients by them */
} replayed;

static ptrdiff_t numbers_of(const kvm_model *m, ptrdiff_t object)
{
    return m->objects[object].heads * m->objects[object].dim;
}

static kvm_step step_of(const replayed *r, ptrdiff_t segment, kvm_tensor *x)
{
    const ptrdiff_t from = segment * SEGMENT;
    const ptrdiff_t n = r->n - from < SEGMENT ? r->n - from : SEGMENT;
    *x = kvm_view2_const(r->rows + from * r->width, KVM_F32, n, r->width);
    return (kvm_step){.compute = r->m->compute,
                      .first = from,
                      .n = n,
                      .out = n,
                      .slots = r->now,
                      .scratch = r->keep};
}

static size_t bytes_of(const replayed *r)
{
    const kvm_model *m = r->m;
    const ptrdiff_t tokens = r->n < SEGMENT ? r->n : SEGMENT;
    const ptrdiff_t numbers = numbers_of(m, r->state) + numbers_of(m, r->window);
    size_t work = r->l->kind->scratch(r->l, tokens);
    const size_t back = r->l->kind->backward_scratch(r->l, 0, tokens);
    if (back > work) work = back;
    return work + kvm_step_rows_bytes(r->segments + 2, numbers) +
           2 * (size_t)m->info.objects * sizeof(kvm_slot) + 8192;
}

static kvm_status reserve(replayed *r, kvm_err *err)
{
    const kvm_model *m = r->m;
    const ptrdiff_t numbers = numbers_of(m, r->state) + numbers_of(m, r->window);
    r->now = kvm_new(&r->keep, kvm_slot, m->info.objects);
    r->kept = kvm_new_raw(&r->keep, float, r->segments *numbers);
    if (!r->now || !r->kept) return kvm_nomem(err, &r->keep);
    TRY(kvm_cache__slots(r->now, m, r->state, r->state + 1, 1, &r->keep, err));
    return kvm_cache__slots(r->now, m, r->window, r->window + 1, 1, &r->keep, err);
}

/* both objects to or from segment's place in `kept` */
static void keep_objects(const replayed *r, ptrdiff_t segment)
{
    const ptrdiff_t state = numbers_of(r->m, r->state);
    const ptrdiff_t window = numbers_of(r->m, r->window);
    float *to = r->kept + segment * (state + window);
    memcpy(to, r->now[r->state].rows, (size_t)state * sizeof *to);
    memcpy(to + state, r->now[r->window].rows, (size_t)window * sizeof *to);
}

static kvm_status ahead(const replayed *r, kvm_err *err)
{
    for (ptrdiff_t i = 0; i < r->segments; i++) {
        kvm_tensor x;
        const kvm_step s = step_of(r, i, &x);
        keep_objects(r, i);
        if (i + 1 < r->segments) TRY(r->l->kind->replay(r->l, &s, x, err));
    }
    return KVM_OK;
}

static kvm_status back(replayed *r, const float *dstate, const float *dwindow,
                       float *grad, kvm_err *err)
{
    const ptrdiff_t state = numbers_of(r->m, r->state);
    const ptrdiff_t window = numbers_of(r->m, r->window);
    float *ds = r->now[r->state].rows, *dw = r->now[r->window].rows;
    kvm_slot *before = kvm_new(&r->keep, kvm_slot, r->m->info.objects);
    if (!before) return kvm_nomem(err, &r->keep);
    memcpy(ds, dstate, (size_t)state * sizeof *ds);
    memset(dw, 0, (size_t)window * sizeof *dw);
    if (dwindow) memcpy(dw, dwindow, (size_t)window * sizeof *dw);
    before[r->state] = r->now[r->state];
    before[r->window] = r->now[r->window];
    for (ptrdiff_t i = r->segments - 1; i >= 0; i--) {
        kvm_tensor x;
        kvm_step s = step_of(r, i, &x);
        before[r->state].rows = r->kept + i * (state + window);
        before[r->window].rows = before[r->state].rows + state;
        s.slots = before;
        s.grads = r->now;
        TRY(r->l->kind->replay_back(
            r->l, &s, x,
            kvm_view2(grad + i * SEGMENT * r->width, KVM_F32, s.n, r->width), err));
    }
    return KVM_OK;
}

static kvm_status find(replayed *r, ptrdiff_t object, kvm_err *err)
{
    const kvm_model *m = r->m;
    if (object < 0 || object >= m->info.objects)
        return kvm_fail(err, KVM_RANGE, "object %td; %s keeps %td", object,
                        m->info.path.at, m->info.objects);
    const kvm_object *o = &m->objects[object];
    r->l = m->blocks[o->layer].mixer.layer;
    if (o->replay == 0 || !r->l->kind->replay_back)
        return kvm_fail(err, KVM_USAGE, "layer %td, %s: it is not replayed", o->layer,
                        kvm_object_name(o->kind));
    r->state = object;
    r->width = o->replay;
    r->window = kvm_model_find_object(m, KVM_OBJECT_WINDOW, o->layer);
    if (r->window >= 0) return KVM_OK;
    return kvm_fail(err, KVM_INTERNAL, "layer %td keeps a state and no window",
                    o->layer);
}

kvm_status kvm_model_pull_replay(const kvm_model *m, ptrdiff_t object, ptrdiff_t n,
                                 const float *rows, const float *dstate,
                                 const float *dwindow, float *grad, kvm_arena scratch,
                                 kvm_err *err)
{
    replayed r = {.m = m, .n = n, .rows = rows, .keep = scratch};
    TRY(find(&r, object, err));
    if (n < 0) return kvm_fail(err, KVM_RANGE, "%td inputs of a replay", n);
    if (n == 0) return KVM_OK;
    r.segments = (n + SEGMENT - 1) / SEGMENT;
    TRY(reserve(&r, err));
    TRY(ahead(&r, err));
    return back(&r, dstate, dwindow, grad, err);
}

size_t kvm_model_replay_bytes(const kvm_model *m, ptrdiff_t n)
{
    size_t most = 0;
    for (ptrdiff_t i = 0; i < m->info.objects; i++) {
        replayed r = {.m = m, .n = n, .segments = (n + SEGMENT - 1) / SEGMENT};
        if (m->objects[i].replay == 0 || find(&r, i, NULL)) continue;
        const size_t bytes = bytes_of(&r);
        if (bytes > most) most = bytes;
    }
    return most;
}
