#include "jobs/needs.h"

#include "jobs/ablations.h"
#include "jobs/fit_recipes.h"
#include "jobs/invert.h"

static void add_set(kvm_block_set *to, const kvm_block_set *from, bool turned)
{
    for (ptrdiff_t i = 0; i < from->n; i++)
        kvm_block_set_add(to, turned ? from->id[i].b : from->id[i].a,
                          turned ? from->id[i].a : from->id[i].b);
}

/* n-grams are no rows: no recipe asks for them */
static kvm_status ngrams_told(const kvm_outline *out, const kvm_shapes *target,
                              kvm_err *err)
{
    if (!target->ngrams || out->token != KVM_TOKEN_NONE) return KVM_OK;
    return kvm_fail(err, KVM_UNSUPPORTED,
                    "the target keeps n-grams, which follow from the tokens: without "
                    "them (token: none) its cache is not whole");
}

kvm_status kvm_needs_outline(kvm_outline *out, kvm_jat fit, const kvm_shapes *source,
                             const kvm_shapes *target, kvm_arena *keep, kvm_err *err)
{
    kvm_outline_options o = {0};
    kvm_job job = {.keep = keep, .params = fit};
    TRY(kvm_fit_read_recipes(&job, &o, err));
    TRY(kvm_outline_make(out, &o, source, target, err));
    return ngrams_told(out, target, err);
}

/* what one fit's parameters ask for, in one direction */
static kvm_status outline_of(kvm_outline *out, kvm_jat fit, const kvm_shapes sides[2],
                             int direction, kvm_arena *keep, kvm_err *err)
{
    const kvm_status st = kvm_needs_outline(out, fit, &sides[direction],
                                            &sides[1 - direction], keep, err);
    return st && direction ? kvm_err_prefix(err, st, "in the reverse direction") : st;
}

static kvm_status add_fit(kvm_needs *n, kvm_jat fit, const kvm_shapes sides[2],
                          int direction, kvm_arena *keep, kvm_err *err)
{
    const int source = direction, target = 1 - direction;
    kvm_outline out;
    TRY(outline_of(&out, fit, sides, direction, keep, err));
    n->rows[source] |= out.source;
    n->rows[target] |= out.target;
    add_set(&n->gram[source], &out.gram, false);
    add_set(&n->gram[target], &out.own, false);
    add_set(&n->cross, &out.cross, direction == 1);
    n->own[direction] |= out.own.n > 0;
    return KVM_OK;
}

static kvm_status add_both(kvm_needs *n, kvm_jat fit, const kvm_spec *s,
                           const kvm_shapes sides[2], kvm_arena *keep, kvm_err *err)
{
    for (int d = 0; d < (s->both_directions ? 2 : 1); d++)
        TRY(add_fit(n, fit, sides, d, keep, err));
    return KVM_OK;
}

/* what the pair refuses is refused at the section that asks for it */
static kvm_status add_spec(kvm_needs *n, kvm_jat fit, const kvm_spec *s,
                           const kvm_shapes sides[2], kvm_arena *keep, kvm_err *err)
{
    kvm_outline_options o = {0};
    kvm_job job = {.keep = keep, .params = fit};
    TRY(kvm_fit_read_recipes(&job, &o, err)); /* names the key itself */
    const kvm_status st = add_both(n, fit, s, sides, keep, err);
    return st ? kvm_json_prefix(err, st, fit) : KVM_OK;
}

/* A row that repeats the complete fit would read as if the part it takes away were
 * worth nothing. */
static kvm_status takes_away(const kvm_ablation *a, kvm_jat fit, kvm_jat changed,
                             const kvm_spec *s, const kvm_shapes sides[2],
                             kvm_arena *keep, kvm_err *err)
{
    if (!*a->lacking) return KVM_OK;
    for (int d = 0; d < (s->both_directions ? 2 : 1); d++) {
        kvm_outline whole, without;
        TRY(outline_of(&whole, fit, sides, d, keep, err));
        TRY(outline_of(&without, changed, sides, d, keep, err));
        if (kvm_outline_same(&whole, &without))
            return kvm_fail(err, KVM_UNSUPPORTED, "it takes nothing away%s: %s",
                            d ? " in the reverse direction" : "", a->lacking);
    }
    return KVM_OK;
}

static kvm_status add_ablation(kvm_needs *n, kvm_jat at, kvm_jat fit, const kvm_spec *s,
                               const kvm_shapes sides[2], kvm_arena *keep, kvm_err *err)
{
    kvm_str name;
    const kvm_ablation *a;
    json_t *copy = kvm_json_own(keep, json_deep_copy(fit.v));
    kvm_jat changed = {.v = copy};
    if (!copy) return kvm_nomem(err, keep);
    TRY(kvm_json_str(at, &name, err));
    TRY(kvm_ablation_find(&a, name, at, err));
    TRY(kvm_ablation_apply(a, copy, err));
    TRY(kvm_json_place_as(&changed, keep, fit, err));
    kvm_status st = takes_away(a, fit, changed, s, sides, keep, err);
    if (!st) st = add_both(n, changed, s, sides, keep, err);
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
    *n = (kvm_needs){0};
    TRY(add_spec(n, fit, s, sides, keep, err));
    TRY(add_inversion(n, s, sides, keep, err));
    if (kvm_json_has(list)) TRY(kvm_json_array(list, &count, err));
    for (ptrdiff_t i = 0; i < count; i++)
        TRY(add_ablation(n, kvm_json_item(list, keep, i), fit, s, sides, keep, err));
    return KVM_OK;
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
