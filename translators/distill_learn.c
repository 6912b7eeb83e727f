#include <math.h>
#include <string.h>

#include "translators/adam.h"
#include "translators/distill_internal.h"

/* ---- backward ---- */

/* gradients by the rows of a step for tokens first .. first+n-1 into dy (n, outputs):
 * from point 3 back through the rotary and the norm of each object that they became.
 * made: the rows themselves, or NULL where no norm lies between. */
static kvm_status pull(kvm_distill *d, const kvm_step *s, const float *made,
                       ptrdiff_t made_ld, ptrdiff_t first, ptrdiff_t n, kvm_err *err)
{
    const kvm_space space = s->mapping.out;
    const bool bare = space == KVM_SPACE_K && d->t.keys == KVM_KEYS_CONTENT_NOROTATE;
    const int point = bare ? KVM_POINT_ENGINE : kvm_space_rows[space].point;
    ptrdiff_t at = 0;
    for (ptrdiff_t i = 0; i < kvm_model_info_of(d->target)->objects; i++) {
        const kvm_object *o = kvm_model_object(d->target, i);
        const kvm_row_shape part = kvm_space_part(space, o);
        const ptrdiff_t w = part.heads * part.dim;
        if (o->layer != s->layer || w == 0) continue;
        for (ptrdiff_t t = 0; made && t < n; t++)
            memcpy(d->part + t * w, made + t * made_ld + at,
                   sizeof *d->part * (size_t)w);
        TRY(kvm_gradients_read(d->gradients, i, first, n, d->part_dy, err));
        if (point != KVM_POINT_ENGINE)
            TRY(kvm_model_pull(d->target, i, point, first, n, made ? d->part : NULL,
                               d->part_dy, err));
        for (ptrdiff_t t = 0; t < n; t++)
            memcpy(d->dy + t * s->outputs + at, d->part_dy + t * w,
                   sizeof *d->dy * (size_t)w);
        at += w;
    }
    return KVM_OK;
}

/* gradients by a step's weights and bias += those of n rows, from dy (n, outputs) and
 * the features that stand in the pass */
static kvm_status add_step(kvm_distill *d, ptrdiff_t i, const kvm_ready *r,
                           const kvm_rows_at *x, const float *dy, ptrdiff_t n,
                           kvm_err *err)
{
    const kvm_step *s = &d->steps[i];
    const ptrdiff_t out = s->outputs / s->groups;
    float *w = d->g + d->step_at[i], *bias = w + kvm_distill__weights(s);
    for (ptrdiff_t g = 0; g < s->groups; g++) {
        kvm_tensor a = kvm_view2_const(dy + g * out, KVM_F32, n, out);
        a.stride[0] = s->outputs;
        ptrdiff_t at = 0;
        for (ptrdiff_t k = 0; k < r->pieces[g]; k++) {
            const kvm_piece *p = &r->piece[g][k];
            kvm_tensor in = kvm_view2((p->made ? x->made : x->read) + p->column,
                                      KVM_F32, n, p->width);
            in.stride[0] = p->made ? x->made_ld : x->ld;
            kvm_tensor to =
                kvm_view2(w + g * out * s->inputs + at, KVM_F32, out, p->width);
            to.stride[0] = s->inputs;
            TRY(kvm_op_gemm32(d->c, to, a, true, in, false, 1, err));
            at += p->width;
        }
    }
    for (ptrdiff_t t = 0; t < n; t++)
        for (ptrdiff_t e = 0; e < s->outputs; e++) bias[e] += dy[t * s->outputs + e];
    return KVM_OK;
}

static bool trained(const kvm_step *s)
{
    return s->map == KVM_MAP_RIDGE;
}

/* does a norm lie between the rows that a step makes and the cache? */
static bool behind_norm(const kvm_step *s)
{
    return kvm_space_rows[s->mapping.out].point == KVM_POINT_RAW;
}

static ptrdiff_t block_rows(const kvm_distill *d, const kvm_lesson *l, ptrdiff_t first)
{
    const ptrdiff_t left = l->prefix_n - first;
    return left < d->apply->block ? left : d->apply->block;
}

/* A replayed state: its gradient by all inputs comes at once, so all of them are made
 * first. */
static kvm_status learn_replay(kvm_distill *d, const kvm_lesson *l, ptrdiff_t pass,
                               ptrdiff_t k, kvm_err *err)
{
    const kvm_pass *p = &d->apply->pass[pass];
    const kvm_step *s = p->step[k];
    const ptrdiff_t w = s->outputs;
    for (ptrdiff_t first = 0; first < l->prefix_n; first += d->apply->block) {
        const ptrdiff_t n = block_rows(d, l, first);
        TRY(kvm_distill__load_block(d, l, pass, first, n, err));
        TRY(kvm_apply__step(d->c, &p->ready[k], &p->x, n, d->inputs + first * w, w,
                            d->apply->hidden, err));
    }
    const float *dstate = NULL, *dwindow = NULL;
    ptrdiff_t state = -1;
    for (ptrdiff_t i = 0; i < kvm_model_info_of(d->target)->objects; i++) {
        const kvm_object *o = kvm_model_object(d->target, i);
        kvm_tensor view;
        if (o->layer != s->layer || !kvm_object_per_prompt(o)) continue;
        if (kvm_space_part(KVM_SPACE_INPUT, o).dim > 0) state = i;
        if (state != i && o->kind != KVM_OBJECT_WINDOW) continue;
        TRY(kvm_gradients_view(d->gradients, i, &view, err));
        *(state == i ? &dstate : &dwindow) = view.data;
    }
    TRY(kvm_model_pull_replay(d->target, state, l->prefix_n, d->inputs, dstate, dwindow,
                              d->dinputs, d->replay, err));
    for (ptrdiff_t first = 0; first < l->prefix_n; first += d->apply->block) {
        const ptrdiff_t n = block_rows(d, l, first);
        TRY(kvm_distill__load_block(d, l, pass, first, n, err));
        TRY(add_step(d, s - d->steps, &p->ready[k], &p->x, d->dinputs + first * w, n,
                     err));
    }
    return KVM_OK;
}

static kvm_status learn_rows(kvm_distill *d, const kvm_lesson *l, ptrdiff_t pass,
                             ptrdiff_t first, kvm_err *err)
{
    const kvm_pass *p = &d->apply->pass[pass];
    const ptrdiff_t n = block_rows(d, l, first);
    const bool indexed = kvm_distill__any_indexer(d);
    TRY(kvm_distill__load_block(d, l, pass, first, n, err));
    for (ptrdiff_t k = 0; k < p->steps; k++) {
        const kvm_step *s = p->step[k];
        float *made = p->x.made + p->column[k];
        if (!trained(s) || s->mapping.out == KVM_SPACE_INPUT) continue;
        /* what a norm is behind, and what another step of the layer reads */
        if (behind_norm(s) || indexed)
            TRY(kvm_apply__step(d->c, &p->ready[k], &p->x, n, made, p->x.made_ld,
                                d->apply->hidden, err));
        TRY(pull(d, s, behind_norm(s) ? made : NULL, p->x.made_ld, first, n, err));
        TRY(add_step(d, s - d->steps, &p->ready[k], &p->x, d->dy, n, err));
    }
    return KVM_OK;
}

/* S' = A S B of one head: dA = dS' (S B)^T, dB = (A S)^T dS' */
static kvm_status learn_head(kvm_distill *d, const kvm_state_step *s, ptrdiff_t h,
                             const float *state, const float *grad, float *da,
                             float *db, kvm_err *err)
{
    const ptrdiff_t k = s->left.dim[1], v = s->right.dim[1];
    const kvm_tensor a = kvm_view2((float *)s->left.data + h * k * k, KVM_F32, k, k);
    const kvm_tensor b = kvm_view2((float *)s->right.data + h * v * v, KVM_F32, v, v);
    const kvm_tensor from = kvm_view2_const(state + h * k * v, KVM_F32, k, v);
    const kvm_tensor g = kvm_view2_const(grad + h * k * v, KVM_F32, k, v);
    const kvm_tensor mid = kvm_view2(d->part, KVM_F32, k, v);
    TRY(kvm_op_gemm32(d->c, mid, from, false, b, false, 0, err));
    TRY(kvm_op_gemm32(d->c, kvm_view2(da + h * k * k, KVM_F32, k, k), g, false, mid,
                      true, 1, err));
    TRY(kvm_op_gemm32(d->c, mid, a, false, from, false, 0, err));
    return kvm_op_gemm32(d->c, kvm_view2(db + h * v * v, KVM_F32, v, v), mid, true, g,
                         false, 1, err);
}

/* y = W x + b of each block of channels, in every column alike */
static kvm_status learn_window(kvm_distill *d, const kvm_state_step *s,
                               ptrdiff_t columns, const float *window,
                               const float *grad, float *dw, float *dbias, kvm_err *err)
{
    const ptrdiff_t blocks = s->window.dim[0], n = s->window.dim[1];
    for (ptrdiff_t i = 0; i < blocks * n; i++)
        for (ptrdiff_t t = 0; t < columns; t++) dbias[i] += grad[i * columns + t];
    for (ptrdiff_t b = 0; b < blocks; b++) {
        const ptrdiff_t at = b * n * columns;
        TRY(kvm_op_gemm32(d->c, kvm_view2(dw + b * n * n, KVM_F32, n, n),
                          kvm_view2_const(grad + at, KVM_F32, n, columns), false,
                          kvm_view2_const(window + at, KVM_F32, n, columns), true, 1,
                          err));
    }
    return KVM_OK;
}

static kvm_status learn_state(kvm_distill *d, const kvm_lesson *l, ptrdiff_t i,
                              kvm_err *err)
{
    const kvm_state_step *s = &d->states[i];
    kvm_tensor state, window;
    ptrdiff_t n[4];
    if (s->map != KVM_STATE_BILINEAR) return KVM_OK;
    TRY(kvm_gradients_view(d->gradients,
                           kvm_apply__find_state(d->target, KVM_SPACE_STATE, s->layer),
                           &state, err));
    TRY(kvm_gradients_view(d->gradients,
                           kvm_apply__find_state(d->target, KVM_SPACE_WINDOW, s->layer),
                           &window, err));
    kvm_distill__state_sizes(s, n);
    float *g = d->g + d->state_at[i];
    for (ptrdiff_t h = 0; h < s->left.dim[0]; h++)
        TRY(learn_head(d, s, h, l->states[2 * i], state.data, g, g + n[0], err));
    return learn_window(d, s, d->t.target.shapes.of[KVM_SPACE_WINDOW][s->layer].dim,
                        l->states[2 * i + 1], window.data, g + n[0] + n[1],
                        g + n[0] + n[1] + n[2], err);
}

kvm_status kvm_distill_learn(kvm_distill *d, const kvm_lesson *l,
                             kvm_distill_loss *loss, kvm_err *err)
{
    kvm_distill_judging j = {d, l};
    TRY(kvm_distill__translate(d, l, err));
    TRY(kvm_gradients_clear(d->gradients, l->prefix_n, err));
    TRY(kvm_tape_record(d->tape, d->cache, l->after, l->after_n, err));
    TRY(kvm_tape_backward(d->tape, d->cache, &(kvm_loss){kvm_distill__judge, &j},
                          d->gradients, err));
    TRY(kvm_distill__sum_loss(d, l, loss, err));
    TRY(kvm_distill__score_indexers(d, l, false, &loss->index, err));
    for (ptrdiff_t i = 0; i < d->apply->passes; i++) {
        for (ptrdiff_t first = 0; first < l->prefix_n; first += d->apply->block)
            TRY(learn_rows(d, l, i, first, err));
        for (ptrdiff_t k = 0; k < d->apply->pass[i].steps; k++)
            if (d->apply->pass[i].step[k]->mapping.out == KVM_SPACE_INPUT)
                TRY(learn_replay(d, l, i, k, err));
    }
    for (ptrdiff_t i = 0; i < d->t.state_count; i++) TRY(learn_state(d, l, i, err));
    return KVM_OK;
}

void kvm_distill_forget(kvm_distill *d)
{
    memset(d->g, 0, sizeof *d->g * (size_t)d->count);
}

/* norm of the gradient by parameters [from, from+n) */
static double norm_of(const kvm_distill *d, ptrdiff_t from, ptrdiff_t n)
{
    double sum = 0;
    for (ptrdiff_t i = from; i < from + n; i++)
        sum += (double)d->g[i] * (double)d->g[i];
    return sqrt(sum);
}

static double shrink_by(double norm, double clip)
{
    return clip > 0 && norm > clip ? clip / norm : 1;
}

static void step(kvm_distill *d, ptrdiff_t from, ptrdiff_t n, double by,
                 const kvm_distill_rates *r)
{
    kvm_adam_step(d->c, d->p + from, d->m + from, d->v + from, d->g + from, n, by,
                  r->rate, r->decay, d->updates);
}

/* of all parameters but those of index maps */
static double norm_of_others(const kvm_distill *d)
{
    double sum = 0;
    ptrdiff_t from = 0;
    for (ptrdiff_t i = 0; i <= d->t.count; i++) {
        if (i < d->t.count && !kvm_distill__indexes(&d->steps[i])) continue;
        const ptrdiff_t at = i < d->t.count ? d->step_at[i] : d->count;
        const double run = norm_of(d, from, at - from);
        sum += run * run;
        from = i < d->t.count ? at + kvm_distill__parameters(&d->steps[i]) : at;
    }
    return sqrt(sum);
}

/* Index maps learn from another loss: each is clipped by its own norm, the others by
 * theirs together. */
kvm_status kvm_distill_update(kvm_distill *d, ptrdiff_t lessons,
                              const kvm_distill_rates *r, double *norm, kvm_err *err)
{
    const double share = 1 / (double)lessons;
    *norm = norm_of_others(d) * share;
    if (!isfinite(norm_of(d, 0, d->count)))
        return kvm_fail(err, KVM_NAN, "the gradient of step %td is not finite",
                        d->updates + 1);
    d->updates++;
    ptrdiff_t from = 0; /* of a run of parameters that are no index map's */
    const double by = shrink_by(*norm, r->clip) * share;
    for (ptrdiff_t i = 0; i < d->t.count; i++) {
        if (!kvm_distill__indexes(&d->steps[i])) continue;
        const ptrdiff_t at = d->step_at[i], n = kvm_distill__parameters(&d->steps[i]);
        step(d, from, at - from, by, r);
        step(d, at, n, shrink_by(norm_of(d, at, n) * share, r->clip) * share, r);
        from = at + n;
    }
    step(d, from, d->count - from, by, r);
    kvm_distill_forget(d);
    return KVM_OK;
}
