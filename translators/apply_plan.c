/* apply_plan.c - what a translation consists of, decided once: passes over the source,
 * columns of their buffers, weights made ready; and what it costs per token. */
#include "translators/apply_internal.h"

enum {
    BLOCK_TOKENS = 512
}; /* 128 .. 512 are alike; pool calls are fewer: RESULTS.md */

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

/* what makes the rows of exact steps, where there are any */
static kvm_status plan_exact(kvm_apply *a, kvm_arena *keep, kvm_err *err)
{
    kvm_spaces spaces = 0;
    for (ptrdiff_t i = 0; i < a->t->count; i++)
        if (a->t->steps[i].map == KVM_MAP_EXACT)
            spaces |= 1U << a->t->steps[i].mapping.out;
    if (!spaces) return KVM_OK;
    return kvm_gather_new(&a->exact, keep, a->target, spaces, a->block,
                          kvm_apply__take_exact, &a->exact_to, err);
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
    TRY(plan_exact(a, keep, err));
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
