#include "translators/distill.h"

#include <math.h>
#include <string.h>

#include "translators/adam.h"
#include "translators/apply_internal.h"

enum { ROWS = 32 }; /* of logits at a time */

struct kvm_distill {
    kvm_compute *c;
    kvm_model *source, *target;
    kvm_translator t;
    kvm_step *steps;        /* (t.count) whose weights are parameters */
    kvm_state_step *states; /* (t.state_count) likewise */
    ptrdiff_t *step_at;     /* (t.count) where a step's weights begin; bias behind */
    ptrdiff_t *state_at;    /* (t.state_count) likewise */
    float *p, *m, *v, *g;   /* (count) */
    ptrdiff_t count, updates;
    kvm_apply *apply;
    kvm_tape *tape;
    kvm_gradients *gradients;
    kvm_cache *source_cache, *cache;
    kvm_taken *taken;        /* NULL: nothing is */
    float *dy;               /* (block, widest row) gradient of a step's rows */
    float *part, *part_dy;   /* (block, widest row) one object's part of them */
    float *inputs, *dinputs; /* (prefix_most, widest input) of a replayed layer */
    double *kl;              /* (after_most) */
    float *scores;           /* (after_most, units) of an indexer */
    ptrdiff_t top;           /* tokens kept of what the target says; 0: all */
    float *logits;           /* (ROWS, V) */
    float *said;             /* (ROWS, V) what was said, spread out */
};

/* ---- parameters ---- */

static ptrdiff_t weights_of(const kvm_step *s)
{
    return s->map == KVM_MAP_RIDGE ? s->outputs * s->inputs : 0;
}

static ptrdiff_t parameters_of(const kvm_step *s)
{
    return s->map == KVM_MAP_RIDGE ? weights_of(s) + s->outputs : 0;
}

/* sizes of a state step's arrays: left, right, window, bias */
static void state_sizes(const kvm_state_step *s, ptrdiff_t n[4])
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
        d->count += parameters_of(&t->steps[i]);
    }
    for (ptrdiff_t i = 0; i < t->state_count; i++) {
        ptrdiff_t n[4];
        state_sizes(&t->states[i], n);
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
        float *w = d->p + d->step_at[i], *bias = w + weights_of(s);
        TRY(kvm_step__widen(w, &from->weight[0], 0, weights_of(s), err));
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
        state_sizes(from, n);
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
                       .logits = kvm_new_raw(keep, float, ROWS *vocab),
                       .said = kvm_new_raw(keep, float, ROWS *vocab)};
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
    d->kl = kvm_new(keep, double, after_most);
    d->scores = kvm_new_raw(keep, float, after_most *(prefix_most + after_most));
    if (!d->dy || !d->part || !d->part_dy || !d->inputs || !d->dinputs || !d->kl ||
        !d->scores)
        return kvm_nomem(err, keep);
    *out = d;
    return KVM_OK;
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

/* ---- indexers ---- */

static bool indexes(const kvm_step *s)
{
    return s->mapping.out == KVM_SPACE_INDEX;
}

static ptrdiff_t index_object(const kvm_distill *d, const kvm_step *s)
{
    return kvm_model_find_object(d->target, KVM_OBJECT_INDEX_KEY, s->layer);
}

/* tokens or whole blocks of the prefix that an indexer can choose: those of the
 * continuation are not predicted */
static ptrdiff_t choices(const kvm_distill *d, const kvm_step *s, ptrdiff_t prefix_n)
{
    const ptrdiff_t block = kvm_model_object(d->target, index_object(d, s))->block;
    return prefix_n / (block > 0 ? block : 1);
}

/* scores of one indexer over what of the prefix can be chosen whole */
typedef struct scoring {
    ptrdiff_t choices;
    float *native; /* (after_n, choices); taken, or compared with */
    bool take;
    double share; /* of this indexer in the loss, which is the mean over them */
    double kl;    /* mean over rows */
} scoring;

static double softmax(const float *x, ptrdiff_t n, double *most)
{
    double sum = 0;
    *most = -HUGE_VAL;
    for (ptrdiff_t i = 0; i < n; i++) *most = fmax(*most, (double)x[i]);
    for (ptrdiff_t i = 0; i < n; i++) sum += exp((double)x[i] - *most);
    return sum;
}

/* a row of scores becomes the gradient of KL(native || it), by `by` */
static double compare(const float *native, float *x, ptrdiff_t n, double by)
{
    double most_p, most_q, kl = 0;
    const double sum_p = softmax(native, n, &most_p), sum_q = softmax(x, n, &most_q);
    for (ptrdiff_t i = 0; i < n; i++) {
        const double lp = (double)native[i] - most_p - log(sum_p);
        const double lq = (double)x[i] - most_q - log(sum_q);
        kl += exp(lp) * (lp - lq);
        x[i] = (float)(by * (exp(lq) - exp(lp)));
    }
    return kl;
}

static kvm_status see_scores(void *ctx, ptrdiff_t n, ptrdiff_t units, float *scores,
                             kvm_err *err)
{
    scoring *s = ctx;
    const ptrdiff_t most = s->choices;
    (void)err;
    for (ptrdiff_t t = 0; t < n; t++) {
        float *row = scores + t * units, *native = s->native + t * most;
        if (s->take)
            memcpy(native, row, sizeof *row * (size_t)most);
        else
            s->kl += compare(native, row, most, s->share / (double)n) / (double)n;
        const ptrdiff_t from = s->take ? 0 : most; /* no gradient by these */
        memset(row + from, 0, sizeof *row * (size_t)(units - from));
    }
    return KVM_OK;
}

/* every indexer's scores of the recorded tokens: taken as native, or compared with
 * them, their gradient added to the index keys' */
static kvm_status score_indexers(kvm_distill *d, const kvm_lesson *l, bool take,
                                 double *kl, kvm_err *err)
{
    double sum = 0, n = 0;
    for (ptrdiff_t i = 0; i < d->t.count; i++) n += indexes(&d->steps[i]);
    for (ptrdiff_t i = 0; i < d->t.count; i++) {
        if (!indexes(&d->steps[i])) continue;
        scoring s = {.choices = choices(d, &d->steps[i], l->prefix_n),
                     .native = l->scores[i],
                     .take = take,
                     .share = 1 / n};
        const kvm_tape_scores_loss loss = {see_scores, &s, d->scores};
        TRY(kvm_tape_scores(d->tape, d->cache, index_object(d, &d->steps[i]), &loss,
                            d->gradients, err));
        sum += s.kl;
    }
    *kl = n > 0 ? sum / n : 0;
    return KVM_OK;
}

static bool any_indexer(const kvm_distill *d)
{
    for (ptrdiff_t i = 0; i < d->t.count; i++)
        if (indexes(&d->steps[i])) return true;
    return false;
}

/* what the target's own index keys score, behind its own cache */
static kvm_status take_scores(kvm_distill *d, kvm_lesson *l, kvm_arena *keep,
                              kvm_err *err)
{
    double kl;
    l->scores = kvm_new(keep, float *, d->t.count);
    if (!l->scores) return kvm_nomem(err, keep);
    if (!any_indexer(d)) return KVM_OK;
    TRY(kvm_gradients_clear(d->gradients, l->prefix_n, err));
    TRY(kvm_tape_record(d->tape, d->cache, l->after, l->after_n, err));
    for (ptrdiff_t i = 0; i < d->t.count; i++) {
        if (!indexes(&d->steps[i])) continue;
        const ptrdiff_t n = choices(d, &d->steps[i], l->prefix_n);
        l->scores[i] = kvm_new_raw(keep, float, l->after_n *n);
        if (!l->scores[i]) return kvm_nomem(err, keep);
    }
    return score_indexers(d, l, true, &kl, err);
}

/* ---- lessons ---- */

/* numbers of state k (0: state, 1: window) that a state step reads; 0: it reads none */
static ptrdiff_t state_numbers(const kvm_distill *d, ptrdiff_t i, int k)
{
    const kvm_state_step *s = &d->states[i];
    if (s->map == KVM_STATE_ZERO) return 0;
    return kvm_shapes_width(&d->t.source.shapes, k ? KVM_SPACE_WINDOW : KVM_SPACE_STATE,
                            s->source);
}

size_t kvm_distill_lesson_bytes(const kvm_distill *d, ptrdiff_t prefix_n,
                                ptrdiff_t after_n)
{
    ptrdiff_t numbers =
        kvm_said_numbers(after_n, kvm_model_info_of(d->target)->vocab, d->top) +
        prefix_n;
    for (ptrdiff_t i = 0; i < d->apply->passes; i++)
        numbers += prefix_n * d->apply->pass[i].source_width;
    for (ptrdiff_t i = 0; i < 2 * d->t.state_count; i++)
        numbers += state_numbers(d, i / 2, (int)(i % 2));
    for (ptrdiff_t i = 0; i < d->t.count; i++)
        if (indexes(&d->steps[i]))
            numbers += after_n * choices(d, &d->steps[i], prefix_n);
    return (size_t)numbers * sizeof(float);
}

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
        const ptrdiff_t n = state_numbers(d, i / 2, (int)(i % 2));
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
    TRY(kvm_apply__tokens(a, &from, l->prefix_n, err));
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
                   sizeof(float) * (size_t)state_numbers(d, i / 2, (int)(i % 2)));
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
    TRY(take_scores(d, l, keep, err));
    TRY(kvm_cache_truncate(d->cache, l->prefix_n, err));
    for (ptrdiff_t t = 0; t < l->after_n; t += ROWS) {
        const ptrdiff_t n = l->after_n - t < ROWS ? l->after_n - t : ROWS;
        TRY(kvm_model_forward(
            d->target, d->cache, l->after + t, n,
            &(kvm_forward_options){.logits_last = n, .logits = d->logits}, err));
        for (ptrdiff_t r = 0; r < n; r++)
            TRY(kvm_said_put(&l->native, t + r, d->logits + r * v, err));
    }
    return KVM_OK;
}

/* ---- forward ---- */

static kvm_status load_block(kvm_distill *d, const kvm_lesson *l, ptrdiff_t i,
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
static kvm_status translate(kvm_distill *d, const kvm_lesson *l, kvm_err *err)
{
    kvm_apply *a = d->apply;
    kvm_apply_times times = {0};
    kvm_cache_clear(d->cache);
    TRY(kvm_inject_begin(d->cache, l->prefix_n, err));
    for (ptrdiff_t i = 0; i < a->passes; i++)
        for (ptrdiff_t first = 0; first < l->prefix_n; first += a->block) {
            const ptrdiff_t left = l->prefix_n - first;
            const ptrdiff_t n = left < a->block ? left : a->block;
            TRY(load_block(d, l, i, first, n, err));
            TRY(kvm_apply__map(a, &a->pass[i], first, n, &times, err));
            TRY(kvm_apply__put(a, &a->pass[i], d->cache, first, n, &times, err));
        }
    TRY(kvm_apply__states(a, (const float *const *)l->states, d->cache, l->prefix_n,
                          err));
    if (a->told) TRY(kvm_inject_tokens(d->cache, a->told, err));
    return kvm_inject_end(d->cache, err);
}

typedef struct judging {
    kvm_distill *d;
    const kvm_lesson *l;
} judging;

/* logits become the gradient of the mean KL by them */
static kvm_status judge(void *ctx, ptrdiff_t from, ptrdiff_t n, float *logits,
                        kvm_err *err)
{
    const judging *j = ctx;
    const ptrdiff_t v = kvm_model_info_of(j->d->target)->vocab;
    for (ptrdiff_t t = 0; t < n; t += ROWS) {
        const ptrdiff_t m = n - t < ROWS ? n - t : ROWS;
        float *said = kvm_said_rows(&j->l->native, from + t, m, j->d->said);
        TRY(kvm_op_kl_back(
            j->d->c, j->d->kl + from + t, kvm_view2(logits + t * v, KVM_F32, m, v),
            kvm_view2(said, KVM_F32, m, v), 1 / (double)j->l->after_n, err));
    }
    return KVM_OK;
}

static kvm_status sum_loss(const kvm_distill *d, const kvm_lesson *l,
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
    judging j = {d, l};
    TRY(translate(d, l, err));
    for (ptrdiff_t t = 0; t < l->after_n; t += ROWS) {
        const ptrdiff_t n = l->after_n - t < ROWS ? l->after_n - t : ROWS;
        TRY(kvm_model_forward(
            d->target, d->cache, l->after + t, n,
            &(kvm_forward_options){.logits_last = n, .logits = d->logits}, err));
        TRY(judge(&j, t, n, d->logits, err));
    }
    return sum_loss(d, l, loss, err);
}

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
    float *w = d->g + d->step_at[i], *bias = w + weights_of(s);
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
        TRY(load_block(d, l, pass, first, n, err));
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
                              d->dinputs, err));
    for (ptrdiff_t first = 0; first < l->prefix_n; first += d->apply->block) {
        const ptrdiff_t n = block_rows(d, l, first);
        TRY(load_block(d, l, pass, first, n, err));
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
    const bool indexed = any_indexer(d);
    TRY(load_block(d, l, pass, first, n, err));
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
static void learn_window(const kvm_state_step *s, ptrdiff_t columns,
                         const float *window, const float *grad, float *dw,
                         float *dbias)
{
    const ptrdiff_t d = s->window.dim[1];
    for (ptrdiff_t c = 0; c < s->window.dim[0] * d; c++)
        for (ptrdiff_t t = 0; t < columns; t++) {
            const float g = grad[c * columns + t];
            dbias[c] += g;
            for (ptrdiff_t i = 0; i < d; i++)
                dw[c * d + i] += g * window[(c / d * d + i) * columns + t];
        }
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
    state_sizes(s, n);
    float *g = d->g + d->state_at[i];
    for (ptrdiff_t h = 0; h < s->left.dim[0]; h++)
        TRY(learn_head(d, s, h, l->states[2 * i], state.data, g, g + n[0], err));
    learn_window(s, d->t.target.shapes.of[KVM_SPACE_WINDOW][s->layer].dim,
                 l->states[2 * i + 1], window.data, g + n[0] + n[1],
                 g + n[0] + n[1] + n[2]);
    return KVM_OK;
}

kvm_status kvm_distill_learn(kvm_distill *d, const kvm_lesson *l,
                             kvm_distill_loss *loss, kvm_err *err)
{
    judging j = {d, l};
    TRY(translate(d, l, err));
    TRY(kvm_gradients_clear(d->gradients, l->prefix_n, err));
    TRY(kvm_tape_record(d->tape, d->cache, l->after, l->after_n, err));
    TRY(kvm_tape_backward(d->tape, d->cache, &(kvm_loss){judge, &j}, d->gradients,
                          err));
    TRY(sum_loss(d, l, loss, err));
    TRY(score_indexers(d, l, false, &loss->index, err));
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
        if (i < d->t.count && !indexes(&d->steps[i])) continue;
        const ptrdiff_t at = i < d->t.count ? d->step_at[i] : d->count;
        const double run = norm_of(d, from, at - from);
        sum += run * run;
        from = i < d->t.count ? at + parameters_of(&d->steps[i]) : at;
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
        if (!indexes(&d->steps[i])) continue;
        const ptrdiff_t at = d->step_at[i], n = parameters_of(&d->steps[i]);
        step(d, from, at - from, by, r);
        step(d, at, n, shrink_by(norm_of(d, at, n) * share, r->clip) * share, r);
        from = at + n;
    }
    step(d, from, d->count - from, by, r);
    memset(d->g, 0, sizeof *d->g * (size_t)d->count);
    return KVM_OK;
}
