/* apply.c - running a translation: blocks of tokens through maps into the target. */
#include "translators/apply.h"

#include <string.h>

#include "base/clock.h"
#include "translators/apply_internal.h"
#include "translators/states.h"

/* ---- the rotary ---- */

/* All layers side by side are one row of many heads: the angles of a position are made
 * once for all of them. Layers of another head size are another call. */
kvm_status kvm_apply__rotate(kvm_apply *a, float *rows, ptrdiff_t ld,
                             const kvm_shapes *shapes, const ptrdiff_t *at, ptrdiff_t n,
                             const kvm_rope *rope, bool inverse, kvm_err *err)
{
    const kvm_row_shape *k = shapes->of[KVM_SPACE_K];
    for (ptrdiff_t l = 0, next; l < shapes->layers; l = next) {
        ptrdiff_t heads = 0, first = -1;
        for (next = l; next < shapes->layers; next++) {
            if (at[next] < 0) continue;
            if (first >= 0 && k[next].dim != k[first].dim) break;
            if (first < 0) first = next;
            heads += k[next].heads;
        }
        if (first < 0) return KVM_OK;
        kvm_tensor x = kvm_view3(rows + at[first], KVM_F32, n, heads, k[first].dim);
        x.stride[0] = ld;
        TRY(kvm_op_rope(a->c, x, a->position, rope, inverse, err));
    }
    return KVM_OK;
}

/* ---- injecting ---- */

/* a step's rows (n, made_ld) into the objects that they are of */
static kvm_status inject(kvm_apply *a, const kvm_step *s, const float *rows,
                         ptrdiff_t ld, kvm_cache *to, ptrdiff_t first, ptrdiff_t n,
                         kvm_err *err)
{
    const kvm_space space = s->mapping.out;
    /* keys have been rotated, and values are what they are */
    const bool done = space == KVM_SPACE_K || space == KVM_SPACE_V;
    const int point = done ? KVM_POINT_ENGINE : kvm_space_rows[space].point;
    if (a->made && point == KVM_POINT_RAW)
        TRY(kvm_taken_put(a->made, space, s->layer, first, n, rows, ld, err));
    for (ptrdiff_t i = 0; i < kvm_model_info_of(a->target)->objects; i++) {
        const kvm_object *o = kvm_model_object(a->target, i);
        const kvm_row_shape part = kvm_space_part(space, o);
        const ptrdiff_t w = part.heads * part.dim;
        if (o->layer != s->layer || w == 0) continue;
        kvm_apply__copy(a, (kvm_row_copy){rows, a->out, n, ld, w, w});
        TRY(kvm_inject_rows(to, i, point, first, n, a->out, err));
        rows += w;
    }
    return KVM_OK;
}

kvm_status kvm_apply__take_exact(void *ctx, kvm_space space, ptrdiff_t layer,
                                 ptrdiff_t first, ptrdiff_t n, const float *rows,
                                 kvm_err *err)
{
    (void)layer, (void)err;
    const kvm_rows_to *e = ctx;
    for (ptrdiff_t t = 0; space == e->space && t < n; t++)
        memcpy(e->to + (first + t) * e->ld, rows + t * e->width,
               sizeof *rows * (size_t)e->width);
    return KVM_OK;
}

static kvm_status make_exact(kvm_apply *a, const kvm_step *s, ptrdiff_t first,
                             ptrdiff_t n, float *to, ptrdiff_t ld, kvm_err *err)
{
    const kvm_capture sink = kvm_gather_capture(a->exact);
    a->exact_to = (kvm_rows_to){
        .space = s->mapping.out,
        .to = to,
        .ld = ld,
        .width = kvm_shapes_width(&a->t->target.shapes, s->mapping.out, 0)};
    return kvm_model_token_rows(a->target, a->told + first - a->told_from, n, &sink,
                                err);
}

/* ---- a block ---- */

kvm_status kvm_apply__map(kvm_apply *a, const kvm_pass *p, ptrdiff_t first, ptrdiff_t n,
                          kvm_apply_times *times, kvm_err *err)
{
    const kvm_rows_at *x = &p->x;
    const double start = kvm_now();
    for (ptrdiff_t i = 0; i < p->steps; i++) {
        float *y = x->made + p->column[i];
        TRY(p->step[i]->map == KVM_MAP_EXACT
                ? make_exact(a, p->step[i], first, n, y, x->made_ld, err)
                : kvm_apply__step(a->c, &p->ready[i], x, n, y, x->made_ld, a->hidden,
                                  err));
    }
    times->map += kvm_now() - start;
    return KVM_OK;
}

kvm_status kvm_apply__put(kvm_apply *a, const kvm_pass *p, kvm_cache *to,
                          ptrdiff_t first, ptrdiff_t n, kvm_apply_times *times,
                          kvm_err *err)
{
    const kvm_rows_at *x = &p->x;
    double start = kvm_now();
    for (ptrdiff_t i = 0; i < n; i++) a->position[i] = (int32_t)(first + i);
    if (a->rotate && x->at[KVM_TARGET][KVM_SPACE_K])
        TRY(kvm_apply__rotate(a, x->made, x->made_ld, &a->t->target.shapes,
                              x->at[KVM_TARGET][KVM_SPACE_K], n, &a->to_rope, false,
                              err));
    times->rotate += kvm_now() - start;
    for (ptrdiff_t i = 0; i < p->steps; i++) {
        start = kvm_now();
        TRY(inject(a, p->step[i], x->made + p->column[i], x->made_ld, to, first, n,
                   err));
        const bool replayed = p->step[i]->mapping.out == KVM_SPACE_INPUT;
        *(replayed ? &times->states : &times->inject) += kvm_now() - start;
    }
    return KVM_OK;
}

static kvm_status run_block(kvm_apply *a, const kvm_pass *p, const kvm_handover *from,
                            kvm_cache *to, ptrdiff_t first, ptrdiff_t n,
                            kvm_apply_times *times, kvm_err *err)
{
    TRY(kvm_apply__read(a, p, from, first, n, times, err));
    TRY(kvm_apply__map(a, p, first, n, times, err));
    return kvm_apply__put(a, p, to, first, n, times, err);
}

/* ---- states ---- */

static kvm_status put_state(kvm_apply *a, kvm_space s, ptrdiff_t layer,
                            ptrdiff_t tokens, const float *data, kvm_cache *to,
                            kvm_err *err)
{
    const ptrdiff_t i = kvm_apply__find_state(a->target, s, layer);
    const kvm_object *o = kvm_model_object(a->target, i);
    const kvm_state state = {.data = data,
                             .axes = kvm_str_of(kvm_object_axes(o->kind)),
                             .dim = {o->shape[0], o->shape[1], o->shape[2]},
                             .dtype = KVM_F32,
                             .tokens = tokens};
    return kvm_inject_state(to, i, &state, err);
}

static kvm_status make_states(kvm_apply *a, const kvm_state_step *s,
                              const float *const from[2], kvm_err *err)
{
    const kvm_shapes *shapes = &a->t->target.shapes;
    return kvm_states_apply(a->c, s, shapes->of[KVM_SPACE_STATE][s->layer],
                            shapes->of[KVM_SPACE_WINDOW][s->layer], from[0], from[1],
                            a->state_out[0], a->state_out[1], a->head, err);
}

kvm_status kvm_apply__states(kvm_apply *a, const float *const *from, kvm_cache *to,
                             ptrdiff_t tokens, kvm_err *err)
{
    static const kvm_space spaces[] = {KVM_SPACE_STATE, KVM_SPACE_WINDOW};
    for (ptrdiff_t i = 0; i < a->t->state_count; i++) {
        const kvm_state_step *s = &a->t->states[i];
        const bool own = s->map == KVM_STATE_ZERO; /* nothing comes of the source */
        if (!own) TRY(make_states(a, s, from + 2 * i, err));
        for (int k = 0; k < 2; k++)
            TRY(own ? kvm_inject_unchanged(
                          to, kvm_apply__find_state(a->target, spaces[k], s->layer),
                          err)
                    : put_state(a, spaces[k], s->layer, tokens, a->state_out[k], to,
                                err));
    }
    return KVM_OK;
}

/* ---- the tokens that a cache lacks ---- */

void kvm_apply_keep(kvm_apply *a, kvm_taken *made)
{
    a->made = made;
}

/* tokens first .. end-1, which are announced, into the target */
static kvm_status fill(kvm_apply *a, const kvm_handover *from, kvm_cache *to,
                       ptrdiff_t first, ptrdiff_t end, kvm_apply_times *times,
                       kvm_err *err)
{
    if (a->t->dense) TRY(kvm_inject_dense(to, err));
    for (ptrdiff_t i = 0; i < a->passes; i++)
        for (ptrdiff_t t = first; t < end; t += a->block)
            TRY(run_block(a, &a->pass[i], from, to, t,
                          end - t < a->block ? end - t : a->block, times, err));
    const double start = kvm_now();
    TRY(kvm_apply__find_states(a, from->cache, a->states, err));
    TRY(kvm_apply__states(a, a->states, to, end, err));
    if (a->told) TRY(kvm_inject_tokens(to, a->told, err));
    times->states += kvm_now() - start;
    return kvm_inject_end(to, err);
}

kvm_status kvm_apply_run(kvm_apply *a, const kvm_handover *from, kvm_cache *to,
                         kvm_apply_times *times, kvm_err *err)
{
    kvm_apply_times ignored = {0};
    if (!times) times = &ignored;
    const ptrdiff_t end = kvm_cache_length(from->cache), first = kvm_cache_length(to);
    if (end < 1)
        return kvm_fail(err, KVM_RANGE,
                        "the source cache is empty; nothing to translate");
    if (first >= end)
        return kvm_fail(err, KVM_RANGE,
                        "the target's cache holds %td tokens and the source's %td: it "
                        "lacks none of them; cut or clear it to translate them again",
                        first, end);
    TRY(kvm_apply__taken(a, from, first, end - first, err));
    const double start = kvm_now();
    TRY(kvm_apply__tokens(a, from, first, end - first, err));
    times->tokens += kvm_now() - start;
    TRY(kvm_inject_begin(to, end - first, err));
    const kvm_status s = fill(a, from, to, first, end, times, err);
    if (s) kvm_inject_cancel(to);
    return s;
}
