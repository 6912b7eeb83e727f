#include "translators/distill.h"

#include <math.h>
#include <string.h>

#include "translators/distill_internal.h"

/* ---- parameters ---- */

ptrdiff_t kvm_distill__weights(const kvm_step *s)
{
    return s->map == KVM_MAP_RIDGE ? s->outputs * s->inputs : 0;
}

ptrdiff_t kvm_distill__parameters(const kvm_step *s)
{
    return s->map == KVM_MAP_RIDGE ? kvm_distill__weights(s) + s->outputs : 0;
}

void kvm_distill__state_sizes(const kvm_state_step *s, ptrdiff_t n[4])
{
    const bool any = s->map == KVM_STATE_BILINEAR;
    n[0] = any ? kvm_tensor_count(&s->left) : 0;
    n[1] = any ? kvm_tensor_count(&s->right) : 0;
    n[2] = any ? kvm_tensor_count(&s->window) : 0;
    n[3] = any ? s->window.dim[0] * s->window.dim[1] : 0;
}

static kvm_status place(kvm_distill *d, const kvm_translator *t, kvm_arena *keep,
                        kvm_err *err)
{
    d->t = *t;
    d->steps = kvm_new(keep, kvm_step, t->count);
    d->states = kvm_new(keep, kvm_state_step, t->state_count);
    d->step_at = kvm_new(keep, ptrdiff_t, t->count);
    d->state_at = kvm_new(keep, ptrdiff_t, t->state_count);
    if (!d->steps || !d->states || !d->step_at || !d->state_at)
        return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i < t->count; i++) {
        if (t->steps[i].map == KVM_MAP_MLP)
            return kvm_fail(
                err, KVM_UNSUPPORTED,
                "%s of layer %td is an MLP: distillation trains linear maps",
                kvm_space_name(t->steps[i].mapping.out), t->steps[i].layer);
        d->step_at[i] = d->count;
        d->count += kvm_distill__parameters(&t->steps[i]);
    }
    for (ptrdiff_t i = 0; i < t->state_count; i++) {
        ptrdiff_t n[4];
        kvm_distill__state_sizes(&t->states[i], n);
        d->state_at[i] = d->count;
        d->count += n[0] + n[1] + n[2] + n[3];
    }
    float **const all[] = {&d->p, &d->m, &d->v, &d->g};
    for (int i = 0; i < 4; i++) {
        *all[i] = kvm_new(keep, float, d->count);
        if (!*all[i]) return kvm_nomem(err, keep);
    }
    return KVM_OK;
}

/* the steps read and write their weights where the parameters lie */
static kvm_status copy_weights(kvm_distill *d, kvm_err *err)
{
    for (ptrdiff_t i = 0; i < d->t.count; i++) {
        const kvm_step *from = &d->t.steps[i];
        kvm_step *s = &d->steps[i];
        *s = *from;
        if (s->map != KVM_MAP_RIDGE) continue;
        float *w = d->p + d->step_at[i], *bias = w + kvm_distill__weights(s);
        TRY(kvm_step__widen(w, &from->weight[0], 0, kvm_distill__weights(s), err));
        memcpy(bias, from->bias[0], sizeof *bias * (size_t)s->outputs);
        s->weight[0] =
            kvm_view3(w, KVM_F32, s->groups, s->outputs / s->groups, s->inputs);
        s->bias[0] = bias;
    }
    for (ptrdiff_t i = 0; i < d->t.state_count; i++) {
        const kvm_state_step *from = &d->t.states[i];
        kvm_state_step *s = &d->states[i];
        ptrdiff_t n[4];
        *s = *from;
        kvm_distill__state_sizes(from, n);
        float *at = d->p + d->state_at[i];
        const void *const data[] = {from->left.data, from->right.data,
                                    from->window.data, from->bias};
        kvm_tensor *const view[] = {&s->left, &s->right, &s->window};
        for (int k = 0; k < 4; k++) {
            if (n[k] > 0) memcpy(at, data[k], sizeof *at * (size_t)n[k]);
            if (n[k] > 0 && k < 3) view[k]->data = at;
            if (n[k] > 0 && k == 3) s->bias = at;
            at += n[k];
        }
    }
    d->t.steps = d->steps;
    d->t.states = d->states;
    return KVM_OK;
}

kvm_status kvm_distill_new(kvm_distill **out, kvm_arena *keep, kvm_compute *c,
                           const kvm_translator *t, kvm_model *source,
                           kvm_model *target, ptrdiff_t prefix_most,
                           ptrdiff_t after_most, ptrdiff_t top, kvm_err *err)
{
    kvm_distill *d = kvm_new(keep, kvm_distill, 1);
    if (!d) return kvm_nomem(err, keep);
    const ptrdiff_t vocab = kvm_model_info_of(target)->vocab;
    *d = (kvm_distill){.c = c,
                       .source = source,
                       .target = target,
                       .top = top,
                       .logits = kvm_new_raw(keep, float, KVM_DISTILL_ROWS *vocab),
                       .said = kvm_new_raw(keep, float, KVM_DISTILL_ROWS *vocab)};
    if (!d->logits || !d->said) return kvm_nomem(err, keep);
    TRY(place(d, t, keep, err));
    TRY(copy_weights(d, err));
    TRY(kvm_apply_new(&d->apply, keep, c, &d->t, source, target, NULL, err));
    TRY(kvm_tape_new(&d->tape, keep, target, prefix_most, after_most, err));
    TRY(kvm_gradients_new(&d->gradients, keep, target, prefix_most + after_most, err));
    TRY(kvm_cache_new(&d->cache, keep, target, prefix_most + after_most, err));
    TRY(kvm_cache_new(&d->source_cache, keep, source, prefix_most, err));
    if (kvm_apply_takes(d->apply))
        TRY(kvm_taken_new(&d->taken, keep, source, kvm_apply_takes(d->apply),
                          prefix_most, err));
    ptrdiff_t widest = 1;
    for (ptrdiff_t i = 0; i < t->count; i++)
        if (t->steps[i].outputs > widest) widest = t->steps[i].outputs;
    d->dy = kvm_new_raw(keep, float, d->apply->block *widest);
    ptrdiff_t input = 0;
    for (ptrdiff_t i = 0; i < t->count; i++)
        if (t->steps[i].mapping.out == KVM_SPACE_INPUT && t->steps[i].outputs > input)
            input = t->steps[i].outputs;
    ptrdiff_t head = 0; /* numbers of a state's largest head */
    for (ptrdiff_t i = 0; i < t->state_count; i++) {
        const ptrdiff_t n =
            t->target.shapes.of[KVM_SPACE_STATE][t->states[i].layer].dim;
        head = n > head ? n : head;
    }
    const ptrdiff_t part = d->apply->block * widest;
    d->part = kvm_new_raw(keep, float, part > head ? part : head);
    d->part_dy = kvm_new_raw(keep, float, part);
    d->inputs = kvm_new_raw(keep, float, prefix_most *input);
    d->dinputs = kvm_new_raw(keep, float, prefix_most *input);
    const size_t replay = input > 0 ? kvm_model_replay_bytes(target, prefix_most) : 0;
    d->replay = kvm_arena_split(keep, replay);
    d->kl = kvm_new(keep, double, after_most);
    d->scores = kvm_new_raw(keep, float, after_most *(prefix_most + after_most));
    if (!d->dy || !d->part || !d->part_dy || !d->inputs || !d->dinputs || !d->kl ||
        !d->scores || (replay > 0 && !d->replay.base))
        return kvm_nomem(err, keep);
    *out = d;
    return KVM_OK;
}

/* numbers that a model's cache keeps of a token, and once */
static void kept_numbers(const kvm_model *m, size_t *token, size_t *once)
{
    *token = *once = 0;
    for (ptrdiff_t i = 0; i < kvm_model_info_of(m)->objects; i++) {
        const kvm_object *o = kvm_model_object(m, i);
        *(kvm_object_per_prompt(o) ? once : token) += (size_t)(o->heads * o->dim);
    }
}

/* numbers of a token's rows, read or made, and of the widest of them: at most */
static size_t row_numbers(const kvm_model *m, size_t *widest)
{
    const kvm_model_info *info = kvm_model_info_of(m);
    size_t sum = (size_t)info->hidden; /* the token's embedding */
    *widest = sum;
    for (ptrdiff_t i = 0; i < info->objects; i++) {
        const kvm_object *o = kvm_model_object(m, i);
        const size_t n =
            (size_t)(kvm_object_per_prompt(o) ? o->replay : o->heads * o->dim);
        sum += n;
        *widest = n > *widest ? n : *widest;
    }
    return sum;
}

size_t kvm_distill_bytes(const kvm_model *source, const kvm_model *target,
                         ptrdiff_t prefix_most, ptrdiff_t after_most)
{
    enum { BLOCK = 512 }; /* tokens of rows at a time */
    const kvm_model_info *info = kvm_model_info_of(target);
    const size_t both = (size_t)(prefix_most + after_most);
    size_t from, from_once, to, to_once, widest, ignored;
    kept_numbers(source, &from, &from_once);
    kept_numbers(target, &to, &to_once);
    const size_t rows = row_numbers(source, &ignored) + row_numbers(target, &widest);
    const size_t numbers =
        (size_t)prefix_most * from + from_once + 2 * (both * to + to_once) +
        BLOCK * (rows + 4 * widest) + 2 * (size_t)(prefix_most * info->hidden) +
        (size_t)after_most * both + 2 * (size_t)(KVM_DISTILL_ROWS * info->vocab);
    return numbers * sizeof(float) + kvm_tape_bytes(target, prefix_most, after_most) +
           kvm_model_replay_bytes(target, prefix_most);
}

ptrdiff_t kvm_distill_parameters(const kvm_distill *d)
{
    return d->count;
}

float *kvm_distill_values(kvm_distill *d)
{
    return d->p;
}

float *kvm_distill_moment(kvm_distill *d, int which)
{
    return which ? d->v : d->m;
}

float *kvm_distill_gradient(kvm_distill *d)
{
    return d->g;
}

ptrdiff_t *kvm_distill_steps(kvm_distill *d)
{
    return &d->updates;
}

const kvm_translator *kvm_distill_translator(const kvm_distill *d)
{
    return &d->t;
}

/* ---- lessons ---- */

static kvm_status reserve(const kvm_distill *d, kvm_lesson *l, kvm_arena *keep,
                          kvm_err *err)
{
    const kvm_apply *a = d->apply;
    l->told = kvm_new(keep, int32_t, l->prefix_n);
    l->rows = kvm_new(keep, float *, a->passes);
    l->states = kvm_new(keep, float *, 2 * d->t.state_count);
    TRY(kvm_said_new(&l->native, keep, l->after_n, kvm_model_info_of(d->target)->vocab,
                     d->top, err));
    if (!l->told || !l->rows || !l->states) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i < a->passes; i++) {
        l->rows[i] = kvm_new_raw(keep, float, l->prefix_n * a->pass[i].source_width);
        if (!l->rows[i]) return kvm_nomem(err, keep);
    }
    for (ptrdiff_t i = 0; i < 2 * d->t.state_count; i++) {
        const ptrdiff_t n = kvm_distill__state_numbers(d, i / 2, (int)(i % 2));
        l->states[i] = n > 0 ? kvm_new_raw(keep, float, n) : NULL;
        if (n > 0 && !l->states[i]) return kvm_nomem(err, keep);
    }
    return KVM_OK;
}

static kvm_status read_source(kvm_distill *d, kvm_lesson *l, kvm_err *err)
{
    kvm_apply *a = d->apply;
    kvm_apply_times times = {0};
    kvm_capture sink;
    kvm_forward_options o = {0};
    if (d->taken) {
        sink = kvm_taken_capture(d->taken);
        o.capture = &sink;
    }
    kvm_cache_clear(d->source_cache);
    TRY(kvm_model_forward(d->source, d->source_cache, l->prefix, l->prefix_n, &o, err));
    const kvm_handover from = {
        .cache = d->source_cache, .taken = d->taken, .ids = l->prefix};
    TRY(kvm_apply__taken(a, &from, 0, l->prefix_n, err));
    TRY(kvm_apply__tokens(a, &from, 0, l->prefix_n, err));
    if (a->told) memcpy(l->told, a->told, sizeof *l->told * (size_t)l->prefix_n);
    for (ptrdiff_t i = 0; i < a->passes; i++)
        for (ptrdiff_t first = 0; first < l->prefix_n; first += a->block) {
            const kvm_pass *p = &a->pass[i];
            const ptrdiff_t left = l->prefix_n - first, w = p->source_width;
            const ptrdiff_t n = left < a->block ? left : a->block;
            TRY(kvm_apply__read(a, p, &from, first, n, &times, err));
            for (ptrdiff_t t = 0; t < n; t++)
                memcpy(l->rows[i] + (first + t) * w,
                       p->x.read + t * p->x.ld + p->source_at,
                       sizeof(float) * (size_t)w);
        }
    TRY(kvm_apply__find_states(a, d->source_cache, a->states, err));
    for (ptrdiff_t i = 0; i < 2 * d->t.state_count; i++)
        if (l->states[i])
            memcpy(l->states[i], a->states[i],
                   sizeof(float) *
                       (size_t)kvm_distill__state_numbers(d, i / 2, (int)(i % 2)));
    return KVM_OK;
}

kvm_status kvm_distill_prepare(kvm_distill *d, kvm_lesson *l, kvm_arena *keep,
                               kvm_err *err)
{
    TRY(reserve(d, l, keep, err));
    TRY(read_source(d, l, err));
    kvm_cache_clear(d->cache);
    TRY(kvm_model_forward(d->target, d->cache, l->prefix, l->prefix_n,
                          &(kvm_forward_options){0}, err));
    const ptrdiff_t v = kvm_model_info_of(d->target)->vocab;
    kvm_cache_mark(d->cache);
    TRY(kvm_distill__take_scores(d, l, keep, err));
    TRY(kvm_cache_truncate(d->cache, l->prefix_n, err));
    for (ptrdiff_t t = 0; t < l->after_n; t += KVM_DISTILL_ROWS) {
        const ptrdiff_t n =
            l->after_n - t < KVM_DISTILL_ROWS ? l->after_n - t : KVM_DISTILL_ROWS;
        TRY(kvm_model_forward(
            d->target, d->cache, l->after + t, n,
            &(kvm_forward_options){.logits_last = n, .logits = d->logits}, err));
        for (ptrdiff_t r = 0; r < n; r++)
            TRY(kvm_said_put(&l->native, t + r, d->logits + r * v, err));
    }
    return KVM_OK;
}

/* ---- forward ---- */

kvm_status kvm_distill__load_block(kvm_distill *d, const kvm_lesson *l, ptrdiff_t i,
                                   ptrdiff_t first, ptrdiff_t n, kvm_err *err)
{
    kvm_apply *a = d->apply;
    const kvm_pass *p = &a->pass[i];
    const ptrdiff_t w = p->source_width;
    a->told = d->t.token == KVM_TOKEN_NONE ? NULL : l->told;
    for (ptrdiff_t t = 0; t < n; t++)
        memcpy(p->x.read + t * p->x.ld + p->source_at, l->rows[i] + (first + t) * w,
               sizeof(float) * (size_t)w);
    return kvm_apply__embed(a, p, first, n, err);
}

/* the translated prefix into the target's cache */
kvm_status kvm_distill__translate(kvm_distill *d, const kvm_lesson *l, kvm_err *err)
{
    kvm_apply *a = d->apply;
    kvm_apply_times times = {0};
    kvm_cache_clear(d->cache);
    TRY(kvm_inject_begin(d->cache, l->prefix_n, err));
    if (d->t.dense) TRY(kvm_inject_dense(d->cache, err));
    for (ptrdiff_t i = 0; i < a->passes; i++)
        for (ptrdiff_t first = 0; first < l->prefix_n; first += a->block) {
            const ptrdiff_t left = l->prefix_n - first;
            const ptrdiff_t n = left < a->block ? left : a->block;
            TRY(kvm_distill__load_block(d, l, i, first, n, err));
            TRY(kvm_apply__map(a, &a->pass[i], first, n, &times, err));
            TRY(kvm_apply__put(a, &a->pass[i], d->cache, first, n, &times, err));
        }
    TRY(kvm_apply__states(a, (const float *const *)l->states, d->cache, l->prefix_n,
                          err));
    if (a->told) TRY(kvm_inject_tokens(d->cache, a->told, err));
    return kvm_inject_end(d->cache, err);
}

kvm_status kvm_distill__judge(void *ctx, ptrdiff_t from, ptrdiff_t n, float *logits,
                              kvm_err *err)
{
    const kvm_distill_judging *j = ctx;
    const ptrdiff_t v = kvm_model_info_of(j->d->target)->vocab;
    for (ptrdiff_t t = 0; t < n; t += KVM_DISTILL_ROWS) {
        const ptrdiff_t m = n - t < KVM_DISTILL_ROWS ? n - t : KVM_DISTILL_ROWS;
        float *said = kvm_said_rows(&j->l->native, from + t, m, j->d->said);
        TRY(kvm_op_kl_back(
            j->d->c, j->d->kl + from + t, kvm_view2(logits + t * v, KVM_F32, m, v),
            kvm_view2(said, KVM_F32, m, v), 1 / (double)j->l->after_n, err));
    }
    return KVM_OK;
}

kvm_status kvm_distill__sum_loss(const kvm_distill *d, const kvm_lesson *l,
                                 kvm_distill_loss *loss, kvm_err *err)
{
    double sum = 0;
    for (ptrdiff_t t = 0; t < l->after_n; t++) sum += d->kl[t];
    if (!isfinite(sum)) return kvm_fail(err, KVM_NAN, "the loss is not finite");
    *loss = (kvm_distill_loss){sum / (double)l->after_n, d->kl[0], 0};
    return KVM_OK;
}

kvm_status kvm_distill_score(kvm_distill *d, const kvm_lesson *l,
                             kvm_distill_loss *loss, kvm_err *err)
{
    kvm_distill_judging j = {d, l};
    TRY(kvm_distill__translate(d, l, err));
    for (ptrdiff_t t = 0; t < l->after_n; t += KVM_DISTILL_ROWS) {
        const ptrdiff_t n =
            l->after_n - t < KVM_DISTILL_ROWS ? l->after_n - t : KVM_DISTILL_ROWS;
        TRY(kvm_model_forward(
            d->target, d->cache, l->after + t, n,
            &(kvm_forward_options){.logits_last = n, .logits = d->logits}, err));
        TRY(kvm_distill__judge(&j, t, n, d->logits, err));
    }
    return kvm_distill__sum_loss(d, l, loss, err);
}
