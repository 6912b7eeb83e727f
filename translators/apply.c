#include "translators/apply.h"

#include <string.h>

#include "base/clock.h"
#include "translators/apply_internal.h"
#include "translators/identity.h"
#include "translators/states.h"

enum {
    BLOCK_TOKENS = 512, /* 128 .. 512 are alike; pool calls are fewer: RESULTS.md */
    ROWS_PER_PART = 64,
};

/* ---- planning ---- */

/* Rows whole pages apart would meet in one set of the first-level cache: a line between
 * them is worth a tenth of the products' time. */
static ptrdiff_t pitch_of(ptrdiff_t width)
{
    enum { LINE = 16 };
    return (width + LINE - 1) / LINE * LINE + LINE;
}

static bool reads_alike(const kvm_step *s, const kvm_pass *p)
{
    return s->mapping.from[0] == p->from[0] && s->mapping.from[1] == p->from[1];
}

/* the pass that a step belongs to: by what it reads of the source, or by what makes the
 * rows that it reads */
static kvm_pass *pass_of(kvm_apply *a, const kvm_step *s)
{
    if (s->mapping.side == KVM_TARGET && s->map != KVM_MAP_EXACT)
        s = kvm_translator_find(a->t, s->mapping.from[0], s->layer);
    if (s->map == KVM_MAP_EXACT) { /* with the other layers' rows of its space */
        for (ptrdiff_t i = 0; i < a->t->count; i++)
            if (a->t->steps[i].mapping.out == s->mapping.out &&
                a->t->steps[i].map != KVM_MAP_EXACT)
                return pass_of(a, &a->t->steps[i]);
        return &a->pass[0];
    }
    for (ptrdiff_t i = 0; i < a->passes; i++)
        if (reads_alike(s, &a->pass[i])) return &a->pass[i];
    kvm_pass *p = &a->pass[a->passes++];
    p->from[0] = s->mapping.from[0];
    p->from[1] = s->mapping.from[1];
    return p;
}

static kvm_status columns_new(kvm_rows_at *x, kvm_side side, kvm_space s,
                              kvm_arena *keep, kvm_err *err)
{
    if (x->at[side][s]) return KVM_OK;
    const ptrdiff_t layers = x->shapes[side]->layers;
    ptrdiff_t *at = x->at[side][s] = kvm_new(keep, ptrdiff_t, layers);
    if (!at) return kvm_nomem(err, keep);
    for (ptrdiff_t l = 0; l < layers; l++) at[l] = -1;
    return KVM_OK;
}

/* what a pass's steps read and make, as columns: of each space ascending by layer */
static kvm_status place_columns(kvm_apply *a, kvm_pass *p, kvm_arena *keep,
                                kvm_err *err)
{
    kvm_rows_at *x = &p->x;
    x->shapes[KVM_SOURCE] = &a->t->source.shapes;
    x->shapes[KVM_TARGET] = &a->t->target.shapes;
    for (ptrdiff_t i = 0; i < p->steps; i++) {
        const kvm_mapping *m = &p->step[i]->mapping;
        TRY(columns_new(x, KVM_TARGET, m->out, keep, err));
        p->token |= m->token;
        for (int k = 0; k < 2 && m->side == KVM_SOURCE; k++) {
            TRY(columns_new(x, KVM_SOURCE, m->from[k], keep, err));
            for (ptrdiff_t s = 0; s < p->step[i]->sources; s++)
                x->at[KVM_SOURCE][m->from[k]][p->step[i]->source[s]] = 0;
        }
    }
    if (p->token) {
        TRY(columns_new(x, KVM_TARGET, KVM_SPACE_TOKEN, keep, err));
        x->at[KVM_TARGET][KVM_SPACE_TOKEN][0] = x->ld;
        x->ld += kvm_shapes_width(&a->t->target.shapes, KVM_SPACE_TOKEN, 0);
    }
    p->source_at = x->ld;
    for (int s = 0; s < KVM_SPACES; s++)
        for (ptrdiff_t l = 0; x->at[KVM_SOURCE][s] && l < a->t->source.shapes.layers;
             l++) {
            if (x->at[KVM_SOURCE][s][l] < 0) continue;
            x->at[KVM_SOURCE][s][l] = x->ld;
            x->ld += kvm_shapes_width(&a->t->source.shapes, (kvm_space)s, l);
        }
    p->source_width = x->ld - p->source_at;
    for (int s = 0; s < KVM_SPACES; s++)
        for (ptrdiff_t i = 0; i < p->steps; i++) {
            const kvm_step *step = p->step[i];
            if (step->mapping.out != (kvm_space)s) continue;
            p->column[i] = x->at[KVM_TARGET][s][step->layer] = x->made_ld;
            x->made_ld +=
                kvm_shapes_width(&a->t->target.shapes, (kvm_space)s, step->layer);
        }
    x->ld = pitch_of(x->ld);
    x->made_ld = pitch_of(x->made_ld);
    return KVM_OK;
}

static kvm_status plan_passes(kvm_apply *a, kvm_arena *keep, kvm_err *err)
{
    const kvm_translator *t = a->t;
    const ptrdiff_t most = t->count + 1;
    a->pass = kvm_new(keep, kvm_pass, most);
    if (!a->pass) return kvm_nomem(err, keep);
    for (int dependent = 0; dependent < 2; dependent++)
        for (ptrdiff_t i = 0; i < t->count; i++) {
            const kvm_step *s = &t->steps[i];
            if ((s->mapping.side == KVM_TARGET && s->map != KVM_MAP_EXACT) != dependent)
                continue;
            kvm_pass *p = pass_of(a, s);
            if (!p->step) p->step = kvm_new(keep, const kvm_step *, most);
            if (!p->step) return kvm_nomem(err, keep);
            p->step[p->steps++] = s;
        }
    if (a->passes == 0 && t->count > 0) a->passes = 1; /* exact steps alone */
    for (ptrdiff_t i = 0; i < a->passes; i++) {
        kvm_pass *p = &a->pass[i];
        p->ready = kvm_new(keep, kvm_ready, p->steps);
        p->column = kvm_new(keep, ptrdiff_t, p->steps);
        if (!p->ready || !p->column) return kvm_nomem(err, keep);
        TRY(place_columns(a, p, keep, err));
        for (ptrdiff_t k = 0; k < p->steps; k++)
            if (p->step[k]->map != KVM_MAP_EXACT)
                TRY(kvm_apply__ready(&p->ready[k], keep, a->c, t, p->step[k], &p->x,
                                     err));
    }
    return KVM_OK;
}

/* one buffer each serves all passes, which run one after the other, and the first
 * layer's rows that tell the tokens before them */
static kvm_status reserve(kvm_apply *a, kvm_arena *keep, kvm_err *err)
{
    const kvm_shapes *to = &a->t->target.shapes;
    ptrdiff_t read = 1, made = 1, widest = 1;
    for (ptrdiff_t i = 0; i < a->passes; i++) {
        read = a->pass[i].x.ld > read ? a->pass[i].x.ld : read;
        made = a->pass[i].x.made_ld > made ? a->pass[i].x.made_ld : made;
    }
    for (ptrdiff_t i = 0; i < a->t->count; i++) {
        const kvm_step *s = &a->t->steps[i];
        const ptrdiff_t w = kvm_shapes_width(to, s->mapping.out, s->layer);
        widest = w > widest ? w : widest;
    }
    if (a->codebook) {
        const ptrdiff_t w =
            kvm_shapes_width(&a->t->source.shapes, kvm_codebook_of(a->codebook), 0);
        read = w > read ? w : read;
    }
    float *x = kvm_new_raw(keep, float, a->block *read);
    float *y = kvm_new_raw(keep, float, a->block *made);
    a->out = kvm_new_raw(keep, float, a->block *widest);
    a->position = kvm_new(keep, int32_t, a->block);
    if (!x || !y || !a->out || !a->position) return kvm_nomem(err, keep);
    a->first_rows = x;
    for (ptrdiff_t i = 0; i < a->passes; i++) {
        a->pass[i].x.read = x;
        a->pass[i].x.made = y;
    }
    return kvm_apply__hidden(a->hidden, keep, a->t->steps, a->t->count, a->block, err);
}

static kvm_status reserve_states(kvm_apply *a, kvm_arena *keep, kvm_err *err)
{
    ptrdiff_t most[2] = {0, 0};
    static const kvm_space spaces[] = {KVM_SPACE_STATE, KVM_SPACE_WINDOW};
    for (ptrdiff_t i = 0; i < a->t->state_count; i++)
        for (int k = 0; k < 2; k++) {
            const ptrdiff_t w = kvm_shapes_width(&a->t->target.shapes, spaces[k],
                                                 a->t->states[i].layer);
            most[k] = w > most[k] ? w : most[k];
        }
    for (int k = 0; k < 2; k++) {
        a->state_out[k] = kvm_new(keep, float, most[k]);
        if (!a->state_out[k]) return kvm_nomem(err, keep);
    }
    a->head = kvm_new(keep, float, most[0]);
    a->states = kvm_new(keep, const float *, 2 * a->t->state_count);
    return a->head && a->states ? KVM_OK : kvm_nomem(err, keep);
}

static kvm_rope rope_of_keys(const kvm_model *m)
{
    for (ptrdiff_t i = 0; i < kvm_model_info_of(m)->objects; i++) {
        const kvm_object *o = kvm_model_object(m, i);
        if (o->kind == KVM_OBJECT_K && o->rotary) return o->rope;
    }
    return (kvm_rope){0};
}

/* are the source's rows read as its engine keeps them? */
static bool at_engine(const kvm_translator *t)
{
    for (ptrdiff_t i = 0; i < t->count; i++)
        if (t->steps[i].map != KVM_MAP_EXACT &&
            t->steps[i].mapping.from[0] == KVM_SPACE_LATENT_ENGINE)
            return true;
    return false;
}

/* a copied state must be the same kind of object, whatever its sizes */
static kvm_status states_alike(const kvm_apply *a, kvm_err *err)
{
    for (ptrdiff_t i = 0; i < a->t->state_count; i++) {
        const kvm_state_step *s = &a->t->states[i];
        for (int kind = 0; s->map != KVM_STATE_ZERO && kind < KVM_OBJECT_KINDS;
             kind++) {
            const kvm_object_kind k = (kvm_object_kind)kind;
            if (k != KVM_OBJECT_STATE && k != KVM_OBJECT_SSM_STATE) continue;
            if ((kvm_model_find_object(a->source, k, s->source) < 0) !=
                (kvm_model_find_object(a->target, k, s->layer) < 0))
                return kvm_fail(err, KVM_MISMATCH,
                                "source layer %td and target layer %td keep states of "
                                "different kinds: states: replay makes the target's",
                                s->source, s->layer);
        }
    }
    return KVM_OK;
}

kvm_status kvm_apply_new(kvm_apply **out, kvm_arena *keep, kvm_compute *c,
                         const kvm_translator *t, kvm_model *source, kvm_model *target,
                         const kvm_apply_options *o, kvm_err *err)
{
    TRY(kvm_translator_check(t, err));
    TRY(kvm_translator_fits(t, source, target, o && o->force, err));
    kvm_apply *a = kvm_new(keep, kvm_apply, 1);
    if (!a) return kvm_nomem(err, keep);
    *a = (kvm_apply){.c = c,
                     .t = t,
                     .source = source,
                     .target = target,
                     .keep = keep,
                     .from_rope = rope_of_keys(source),
                     .to_rope = rope_of_keys(target)};
    a->block = o && o->block > 0 ? o->block : BLOCK_TOKENS;
    a->strip = t->keys != KVM_KEYS_ROTATED && a->from_rope.width > 0;
    a->rotate = t->keys == KVM_KEYS_CONTENT && a->to_rope.width > 0;
    TRY(states_alike(a, err));
    TRY(plan_passes(a, keep, err));
    if (t->token == KVM_TOKEN_DECODED)
        TRY(kvm_codebook_new(&a->codebook, keep, c, source, at_engine(t), NULL, err));
    TRY(reserve(a, keep, err));
    TRY(reserve_states(a, keep, err));
    *out = a;
    return KVM_OK;
}

kvm_spaces kvm_apply_takes(const kvm_apply *a)
{
    kvm_spaces s = 0;
    for (ptrdiff_t i = 0; i < a->passes; i++)
        if (a->pass[i].x.at[KVM_SOURCE][KVM_SPACE_LATENT]) s |= 1U << KVM_SPACE_LATENT;
    if (a->codebook && kvm_codebook_of(a->codebook) == KVM_SPACE_LATENT)
        s |= 1U << KVM_SPACE_LATENT;
    return s;
}

/* ---- reading ---- */

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

static ptrdiff_t parts_of(ptrdiff_t n)
{
    return (n + ROWS_PER_PART - 1) / ROWS_PER_PART;
}

/* a layer's rows of a space as the cache keeps them, into out (n, ld) */
static kvm_status read_cached(kvm_apply *a, const kvm_cache *from, kvm_space s,
                              ptrdiff_t layer, ptrdiff_t first, ptrdiff_t n, float *out,
                              ptrdiff_t ld, kvm_err *err)
{
    for (ptrdiff_t i = 0; i < kvm_model_info_of(a->source)->objects; i++) {
        const kvm_object *o = kvm_model_object(a->source, i);
        const kvm_row_shape part = kvm_space_part(s, o);
        if (o->layer != layer || part.dim == 0) continue;
        read_job j = {.from = first, .n = n, .ld = ld, .out = out};
        TRY(kvm_cache_view(from, i, &j.view, err));
        kvm_pool_run(kvm_compute_pool(a->c), parts_of(n), read_part, &j);
        out += part.heads * part.dim;
    }
    return KVM_OK;
}

typedef struct copy_job {
    const float *from;
    float *to;
    ptrdiff_t n, from_ld, to_ld, width;
} copy_job;

static void copy_part(void *ctx, ptrdiff_t part, int thread)
{
    (void)thread;
    const copy_job *j = ctx;
    const ptrdiff_t first = part * ROWS_PER_PART;
    const ptrdiff_t end = first + ROWS_PER_PART < j->n ? first + ROWS_PER_PART : j->n;
    for (ptrdiff_t t = first; t < end; t++)
        memcpy(j->to + t * j->to_ld, j->from + t * j->from_ld,
               sizeof *j->to * (size_t)j->width);
}

static void copy_rows(kvm_apply *a, copy_job j)
{
    kvm_pool_run(kvm_compute_pool(a->c), parts_of(j.n), copy_part, &j);
}

/* one layer's rows of a space, taken or cached */
static kvm_status read_layer(kvm_apply *a, const kvm_handover *from, kvm_space s,
                             ptrdiff_t layer, ptrdiff_t first, ptrdiff_t n, float *out,
                             ptrdiff_t ld, kvm_err *err)
{
    if (kvm_space_rows[s].point != KVM_POINT_RAW)
        return read_cached(a, from->cache, s, layer, first, n, out, ld, err);
    const ptrdiff_t w = kvm_shapes_width(&a->t->source.shapes, s, layer);
    const float *rows = from->taken ? kvm_taken_rows(from->taken, s, layer) : NULL;
    if (!rows)
        return kvm_fail(
            err, KVM_USAGE,
            "layer %td: its %s rows stand before a norm, and were not taken "
            "while the source read",
            layer, kvm_space_name(s));
    copy_rows(a, (copy_job){rows + first * w, out, n, w, ld, w});
    return KVM_OK;
}

kvm_status kvm_apply__embed(kvm_apply *a, const kvm_pass *p, ptrdiff_t first,
                            ptrdiff_t n, kvm_err *err)
{
    const kvm_rows_at *x = &p->x;
    if (!p->token) return KVM_OK;
    return kvm_model_embed_tokens(a->target, a->told + first, n,
                                  x->read + x->at[KVM_TARGET][KVM_SPACE_TOKEN][0],
                                  x->ld, err);
}

static kvm_status read_pass(kvm_apply *a, const kvm_pass *p, const kvm_handover *from,
                            ptrdiff_t first, ptrdiff_t n, kvm_err *err)
{
    const kvm_rows_at *x = &p->x;
    for (int s = 0; s < KVM_SPACES; s++)
        for (ptrdiff_t l = 0; x->at[KVM_SOURCE][s] && l < a->t->source.shapes.layers;
             l++) {
            const ptrdiff_t at = x->at[KVM_SOURCE][s][l];
            if (at >= 0)
                TRY(read_layer(a, from, (kvm_space)s, l, first, n, x->read + at, x->ld,
                               err));
        }
    return kvm_apply__embed(a, p, first, n, err);
}

/* ---- the rotary ---- */

/* All layers side by side are one row of many heads: the angles of a position are made
 * once for all of them. Layers of another head size are another call. */
static kvm_status rotate_keys(kvm_apply *a, float *rows, ptrdiff_t ld,
                              const kvm_shapes *shapes, const ptrdiff_t *at,
                              ptrdiff_t n, const kvm_rope *rope, bool inverse,
                              kvm_err *err)
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
    for (ptrdiff_t i = 0; i < kvm_model_info_of(a->target)->objects; i++) {
        const kvm_object *o = kvm_model_object(a->target, i);
        const kvm_row_shape part = kvm_space_part(space, o);
        const ptrdiff_t w = part.heads * part.dim;
        if (o->layer != s->layer || w == 0) continue;
        copy_rows(a, (copy_job){rows, a->out, n, ld, w, w});
        TRY(kvm_inject_rows(to, i, point, first, n, a->out, err));
        rows += w;
    }
    return KVM_OK;
}

/* where the rows of an exact step go */
typedef struct exact {
    const kvm_model *m;
    kvm_gather *gather;
    float *to;
    ptrdiff_t ld, width, first;
} exact;

static kvm_status take_exact(void *ctx, kvm_space space, ptrdiff_t layer,
                             ptrdiff_t first, ptrdiff_t n, const float *rows,
                             kvm_err *err)
{
    (void)space, (void)layer, (void)err;
    const exact *e = ctx;
    for (ptrdiff_t t = 0; t < n; t++)
        memcpy(e->to + (first + t) * e->ld, rows + t * e->width,
               sizeof *rows * (size_t)e->width);
    return KVM_OK;
}

static kvm_status make_exact(kvm_apply *a, const kvm_step *s, ptrdiff_t first,
                             ptrdiff_t n, float *to, ptrdiff_t ld, kvm_err *err)
{
    kvm_arena own = {0};
    exact e = {.to = to,
               .ld = ld,
               .width = kvm_shapes_width(&a->t->target.shapes, s->mapping.out, 0)};
    kvm_gather *g;
    TRY(kvm_arena_reserve(&own, (size_t)1 << 32, err));
    kvm_status st = kvm_gather_new(&g, &own, a->target, 1U << s->mapping.out, a->block,
                                   take_exact, &e, err);
    if (!st) {
        const kvm_capture sink = kvm_gather_capture(g);
        st = kvm_model_token_rows(a->target, a->told + first, n, &sink, err);
    }
    kvm_arena_free(&own);
    return st;
}

/* ---- a block ---- */

kvm_status kvm_apply__read(kvm_apply *a, const kvm_pass *p, const kvm_handover *from,
                           ptrdiff_t first, ptrdiff_t n, kvm_apply_times *times,
                           kvm_err *err)
{
    const kvm_rows_at *x = &p->x;
    for (ptrdiff_t i = 0; i < n; i++) a->position[i] = (int32_t)(first + i);
    double start = kvm_now(), now;
    TRY(read_pass(a, p, from, first, n, err));
    times->read += (now = kvm_now()) - start;
    start = now;
    if (a->strip && x->at[KVM_SOURCE][KVM_SPACE_K])
        TRY(rotate_keys(a, x->read, x->ld, &a->t->source.shapes,
                        x->at[KVM_SOURCE][KVM_SPACE_K], n, &a->from_rope, true, err));
    times->strip += kvm_now() - start;
    return KVM_OK;
}

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
        TRY(rotate_keys(a, x->made, x->made_ld, &a->t->target.shapes,
                        x->at[KVM_TARGET][KVM_SPACE_K], n, &a->to_rope, false, err));
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

ptrdiff_t kvm_apply__find_state(const kvm_model *m, kvm_space s, ptrdiff_t layer)
{
    const kvm_space_row *r = &kvm_space_rows[s];
    const ptrdiff_t i = kvm_model_find_object(m, r->object, layer);
    return i >= 0 ? i : kvm_model_find_object(m, r->other, layer);
}

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

kvm_status kvm_apply__states(kvm_apply *a, const float *const *from, kvm_cache *to,
                             ptrdiff_t tokens, kvm_err *err)
{
    static const kvm_space spaces[] = {KVM_SPACE_STATE, KVM_SPACE_WINDOW};
    for (ptrdiff_t i = 0; i < a->t->state_count; i++) {
        const kvm_state_step *s = &a->t->states[i];
        const kvm_shapes *shapes = &a->t->target.shapes;
        TRY(kvm_states_apply(a->c, s, shapes->of[KVM_SPACE_STATE][s->layer],
                             shapes->of[KVM_SPACE_WINDOW][s->layer], from[2 * i],
                             from[2 * i + 1], a->state_out[0], a->state_out[1], a->head,
                             err));
        for (int k = 0; k < 2; k++)
            TRY(put_state(a, spaces[k], s->layer, tokens, a->state_out[k], to, err));
    }
    return KVM_OK;
}

kvm_status kvm_apply__find_states(kvm_apply *a, const kvm_cache *from,
                                  const float **out, kvm_err *err)
{
    static const kvm_space spaces[] = {KVM_SPACE_STATE, KVM_SPACE_WINDOW};
    for (ptrdiff_t i = 0; i < 2 * a->t->state_count; i++) {
        const kvm_state_step *s = &a->t->states[i / 2];
        kvm_tensor view;
        out[i] = NULL;
        if (s->map == KVM_STATE_ZERO) continue;
        TRY(kvm_cache_view(from,
                           kvm_apply__find_state(a->source, spaces[i % 2], s->source),
                           &view, err));
        out[i] = view.data;
    }
    return KVM_OK;
}

/* ---- tokens ---- */

static bool needs_tokens(const kvm_apply *a)
{
    return a->t->token != KVM_TOKEN_NONE;
}

/* room grows by doubling, and so is never more than twice what was needed */
static kvm_status ids_room(kvm_apply *a, ptrdiff_t tokens, kvm_err *err)
{
    if (tokens <= a->ids_room) return KVM_OK;
    const ptrdiff_t room = tokens > 2 * a->ids_room ? tokens : 2 * a->ids_room;
    a->ids = kvm_new_raw(a->keep, int32_t, room);
    if (!a->ids) return kvm_nomem(err, a->keep);
    a->ids_room = room;
    return KVM_OK;
}

kvm_status kvm_apply__tokens(kvm_apply *a, const kvm_handover *from, ptrdiff_t tokens,
                             kvm_err *err)
{
    a->told = NULL;
    if (!needs_tokens(a)) return KVM_OK;
    TRY(ids_room(a, tokens, err));
    a->told = a->ids;
    if (!a->codebook) {
        if (!from->ids)
            return kvm_fail(
                err, KVM_USAGE,
                "the translator needs the prompt's token ids, and they were "
                "not handed over with the cache");
        memcpy(a->ids, from->ids, sizeof *a->ids * (size_t)tokens);
        return KVM_OK;
    }
    const kvm_space s = kvm_codebook_of(a->codebook);
    for (ptrdiff_t first = 0; first < tokens; first += a->block) {
        const ptrdiff_t n = tokens - first < a->block ? tokens - first : a->block;
        const ptrdiff_t w = kvm_shapes_width(&a->t->source.shapes, s, 0);
        TRY(read_layer(a, from, s, 0, first, n, a->first_rows, w, err));
        TRY(kvm_codebook_decode(a->codebook, a->first_rows, w, n, a->ids + first, err));
    }
    return KVM_OK;
}

const int32_t *kvm_apply_ids(const kvm_apply *a)
{
    return a->told;
}

/* ---- a whole cache ---- */

kvm_status kvm_apply_run(kvm_apply *a, const kvm_handover *from, kvm_cache *to,
                         kvm_apply_times *times, kvm_err *err)
{
    kvm_apply_times ignored = {0};
    if (!times) times = &ignored;
    const ptrdiff_t tokens = kvm_cache_length(from->cache);
    if (tokens < 1)
        return kvm_fail(err, KVM_RANGE,
                        "the source cache is empty; nothing to translate");
    double start = kvm_now();
    TRY(kvm_apply__tokens(a, from, tokens, err));
    times->tokens += kvm_now() - start;
    TRY(kvm_inject_begin(to, tokens, err));
    for (ptrdiff_t i = 0; i < a->passes; i++)
        for (ptrdiff_t first = 0; first < tokens; first += a->block) {
            const ptrdiff_t left = tokens - first;
            TRY(run_block(a, &a->pass[i], from, to, first,
                          left < a->block ? left : a->block, times, err));
        }
    start = kvm_now();
    TRY(kvm_apply__find_states(a, from->cache, a->states, err));
    TRY(kvm_apply__states(a, a->states, to, tokens, err));
    if (a->told) TRY(kvm_inject_tokens(to, a->told, err));
    times->states += kvm_now() - start;
    return kvm_inject_end(to, err);
}

/* ---- what it costs ---- */

double kvm_apply_flops(const kvm_apply *a)
{
    double flops = a->codebook ? kvm_codebook_flops(a->codebook) : 0;
    for (ptrdiff_t i = 0; i < a->t->count; i++) {
        const kvm_step *s = &a->t->steps[i];
        if (s->map == KVM_MAP_EXACT) continue;
        for (int p = 0; p < (s->map == KVM_MAP_MLP ? 3 : 1); p++)
            flops += 2 * (double)kvm_tensor_count(&s->weight[p]);
    }
    return flops;
}

/* bytes of a number of a layer's rows of a space, as an engine keeps them */
static double entry_bytes(const kvm_model *m, kvm_space s, ptrdiff_t layer)
{
    for (ptrdiff_t i = 0; i < kvm_model_info_of(m)->objects; i++) {
        const kvm_object *o = kvm_model_object(m, i);
        if (o->layer == layer && kvm_space_part(s, o).dim > 0)
            return (double)kvm_dtype_block_bytes(o->dtype);
    }
    return 0;
}

double kvm_apply_bytes(const kvm_apply *a)
{
    double bytes = 0;
    for (ptrdiff_t i = 0; i < a->passes; i++)
        for (int s = 0; s < KVM_SPACES; s++)
            for (ptrdiff_t l = 0;
                 a->pass[i].x.at[KVM_SOURCE][s] && l < a->t->source.shapes.layers; l++)
                if (a->pass[i].x.at[KVM_SOURCE][s][l] >= 0)
                    bytes += (double)kvm_shapes_width(&a->t->source.shapes,
                                                      (kvm_space)s, l) *
                             entry_bytes(a->source, (kvm_space)s, l);
    for (ptrdiff_t i = 0; i < a->t->count; i++) {
        const kvm_step *s = &a->t->steps[i];
        if (s->mapping.out == KVM_SPACE_INPUT) continue; /* it becomes a state */
        bytes +=
            (double)kvm_shapes_width(&a->t->target.shapes, s->mapping.out, s->layer) *
            entry_bytes(a->target, s->mapping.out, s->layer);
    }
    return bytes;
}
