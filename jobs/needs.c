#include "jobs/needs.h"

#include "jobs/ablations.h"
#include "jobs/candidates.h"
#include "jobs/fit_recipes.h"
#include "jobs/invert.h"
#include "jobs/spec_internal.h"

static void add_set(kvm_block_set *to, const kvm_block_set *from, bool turned)
{
    for (ptrdiff_t i = 0; i < from->n; i++)
        kvm_block_set_add(to, turned ? from->id[i].b : from->id[i].a,
                          turned ? from->id[i].a : from->id[i].b);
}

/* what a fit section may come to, in one direction */
static kvm_status candidates_of(kvm_candidates *c, kvm_jat fit,
                                const kvm_shapes sides[2], int direction,
                                kvm_arena *keep, kvm_err *err)
{
    const kvm_status s = kvm_candidates_read(c, fit, &sides[direction],
                                             &sides[1 - direction], keep, err);
    return s && direction ? kvm_err_prefix(err, s, "in the reverse direction") : s;
}

static void add_outline(kvm_needs *n, const kvm_outline *out, int direction)
{
    const int source = direction, target = 1 - direction;
    n->rows[source] |= out->source;
    n->rows[target] |= out->target;
    add_set(&n->gram[source], &out->gram, false);
    add_set(&n->gram[target], &out->own, false);
    add_set(&n->cross, &out->cross, direction == 1);
    n->own[direction] |= out->own.n > 0;
}

/* c[0], and of `directions` 2 c[1] of the reverse */
static kvm_status add_fits(kvm_needs *n, kvm_candidates c[2], kvm_jat fit,
                           int directions, const kvm_shapes sides[2], kvm_arena *keep,
                           kvm_err *err)
{
    for (int d = 0; d < directions; d++) {
        TRY(candidates_of(&c[d], fit, sides, d, keep, err));
        for (ptrdiff_t i = 0; i < c[d].n; i++) add_outline(n, &c[d].at[i].outline, d);
    }
    return KVM_OK;
}

/* latents: 3 of a pair without latents would be answered with the same fit */
static kvm_status has_latents(kvm_jat fit, const kvm_shapes sides[2], kvm_arena *keep,
                              kvm_err *err)
{
    const kvm_jat at = kvm_json_get(fit, keep, "latents");
    if (!kvm_json_has(at) || json_integer_value(at.v) != KVM_POINT_ENGINE ||
        sides[0].of[KVM_SPACE_LATENT] || sides[1].of[KVM_SPACE_LATENT])
        return KVM_OK;
    return kvm_json_fail(err, KVM_USAGE, at,
                         "says where latents are taken, and neither model keeps any: "
                         "leave the key out");
}

/* lists of states are as long as the target has recurrent layers */
static kvm_status listed_each(kvm_jat fit, int directions, const kvm_shapes sides[2],
                              kvm_arena *keep, kvm_err *err)
{
    const kvm_jat at = kvm_json_get(fit, keep, "states");
    ptrdiff_t n;
    if (!kvm_json_has(at) || !json_is_array(at.v)) return KVM_OK;
    TRY(kvm_json_array(at, &n, err));
    for (int d = 0; d < directions; d++) {
        const ptrdiff_t layers = kvm_outline_recurrent(&sides[1 - d]);
        if (n == layers || (d == 1 && layers == 0)) continue;
        return kvm_json_fail(err, KVM_USAGE, at,
                             "lists %td ways, and the target%s has %td recurrent "
                             "layers: list one for each in their order, or write one "
                             "word for all",
                             n, d ? " of the reverse direction" : "", layers);
    }
    return KVM_OK;
}

/* what the pair refuses is refused at the section that asks for it */
static kvm_status add_spec(kvm_needs *n, kvm_candidates whole[2], kvm_jat fit,
                           const kvm_spec *s, const kvm_shapes sides[2],
                           kvm_arena *keep, kvm_err *err)
{
    const int directions = kvm_spec__fits_back(s) ? 2 : 1;
    TRY(kvm_fit_check_recipes(fit, keep, err)); /* names the key itself */
    TRY(has_latents(fit, sides, keep, err));
    TRY(listed_each(fit, directions, sides, keep, err));
    const kvm_status st = add_fits(n, whole, fit, directions, sides, keep, err);
    if (st) return kvm_json_prefix(err, st, fit);
    return kvm_candidates_leave(whole, directions, fit, keep, err);
}

/* A row that repeats the complete fit would read as if the part it takes away were
 * worth nothing. */
static kvm_status takes_away(const kvm_ablation *a, const kvm_candidates whole[2],
                             const kvm_candidates without[2], const kvm_spec *s,
                             kvm_err *err)
{
    if (!*a->lacking) return KVM_OK;
    for (int d = 0; d < (s->both_directions ? 2 : 1); d++)
        if (kvm_candidates_same(&whole[d], &without[d]))
            return kvm_fail(err, KVM_UNSUPPORTED, "it takes nothing away%s: %s",
                            d ? " in the reverse direction" : "", a->lacking);
    return KVM_OK;
}

static kvm_status add_ablation(kvm_needs *n, const kvm_candidates whole[2], kvm_jat at,
                               kvm_jat fit, const kvm_spec *s,
                               const kvm_shapes sides[2], kvm_arena *keep, kvm_err *err)
{
    kvm_str name;
    const kvm_ablation *a;
    kvm_candidates without[2];
    json_t *copy = kvm_json_own(keep, json_deep_copy(fit.v));
    kvm_jat changed = {.v = copy};
    if (!copy) return kvm_nomem(err, keep);
    TRY(kvm_json_str(at, &name, err));
    TRY(kvm_ablation_find(&a, name, at, err));
    TRY(kvm_ablation_apply(a, copy, err));
    TRY(kvm_json_place_as(&changed, keep, fit, err));
    kvm_status st =
        add_fits(n, without, changed, s->both_directions ? 2 : 1, sides, keep, err);
    if (!st) st = takes_away(a, whole, without, s, err);
    if (st) st = kvm_err_prefix(err, st, "ablation %s", a->name);
    return st ? kvm_json_prefix(err, st, at) : KVM_OK;
}

/* tokens are read out of the caches of both models, unless an analysis does without */
static kvm_status add_inversion(kvm_needs *n, const kvm_spec *s,
                                const kvm_shapes sides[2], kvm_arena *keep,
                                kvm_err *err)
{
    const kvm_jat analyse = kvm_json_get(s->root, keep, "analyse");
    if (!kvm_json_has(analyse)) return KVM_OK;
    TRY(kvm_json_bool_or(kvm_json_get(analyse, keep, "inversion"), true, &n->inversion,
                         err));
    for (int i = 0; n->inversion && i < 2; i++)
        kvm_invert_needs(&n->rows[i], &n->gram[i], &sides[i]);
    return KVM_OK;
}

kvm_status kvm_needs_read(kvm_needs *n, const kvm_spec *s, const kvm_shapes sides[2],
                          kvm_arena *keep, kvm_err *err)
{
    kvm_jat fit = kvm_json_get(s->root, keep, "fit");
    const kvm_jat evaluate = kvm_json_get(s->root, keep, "evaluate");
    const kvm_jat list = kvm_json_get(evaluate, keep, "ablations");
    json_t *none = kvm_json_own(keep, json_object());
    if (!none) return kvm_nomem(err, keep);
    if (!kvm_json_has(fit)) fit.v = none;
    ptrdiff_t count = 0;
    kvm_candidates whole[2];
    *n = (kvm_needs){0};
    TRY(add_spec(n, whole, fit, s, sides, keep, err));
    TRY(add_inversion(n, s, sides, keep, err));
    if (kvm_json_has(list)) TRY(kvm_json_array(list, &count, err));
    for (ptrdiff_t i = 0; i < count; i++)
        TRY(add_ablation(n, whole, kvm_json_item(list, keep, i), fit, s, sides, keep,
                         err));
    return KVM_OK;
}

void kvm_needs_gather(kvm_spaces *rows, kvm_block_set *gram, const kvm_needs *n,
                      int side)
{
    *rows |= n->rows[side];
    add_set(gram, &n->gram[side], false);
}

json_t *kvm_needs_rows(kvm_spaces rows)
{
    json_t *list = json_array();
    for (int i = 0; i < KVM_SPACES; i++)
        if (rows >> i & 1)
            json_array_append_new(list, json_string(kvm_space_name((kvm_space)i)));
    return list;
}

json_t *kvm_needs_blocks(const kvm_block_set *set)
{
    json_t *list = json_array();
    for (ptrdiff_t i = 0; i < set->n; i++) {
        const char *a = kvm_space_name(set->id[i].a), *b = kvm_space_name(set->id[i].b);
        json_array_append_new(list, set->id[i].a == set->id[i].b
                                        ? json_string(a)
                                        : json_pack("s++", a, "+", b));
    }
    return list;
}
