/* spec_check.c - what only the models and the jobs know is wrong with a spec, found
 * when it is planned and named by its line. */
#include <math.h>

#include "jobs/spec_internal.h"
#include "translators/rows.h"

static const size_t ITEMS_BYTES = (size_t)16 << 30; /* address space only */

static kvm_status check_node(const kvm_spec *s, const kvm_node *n, kvm_arena *keep,
                             kvm_err *err)
{
    const kvm_job_kind *kind = kvm_job_kind_of(n->kind);
    kvm_job j = {.keep = keep, .params = {.v = n->params}};
    const kvm_jat from =
        kind->section ? kvm_json_get(s->root, keep, kind->section) : s->root;
    TRY(kvm_json_place_as(&j.params, keep, from, err));
    TRY(kvm_schema_check(j.params, kind->params, *keep, err));
    return kind->check ? kind->check(&j, err) : KVM_OK;
}

/* k is a number of layers that the source has, which its job does not know */
static kvm_status check_k(const kvm_spec *s, const kvm_model_info *source,
                          kvm_arena *keep, kvm_err *err)
{
    double k = 1;
    const kvm_jat at = kvm_json_get(kvm_json_get(s->root, keep, "fit"), keep, "k");
    if (kvm_json_has(at) && !json_is_string(at.v)) TRY(kvm_json_f64(at, &k, err));
    if (k >= 1 && k <= (double)source->layers && k == floor(k)) return KVM_OK;
    return kvm_json_fail(err, KVM_RANGE, at,
                         "is %g, must be a whole number from 1 to %td, the layers of "
                         "%.*s",
                         k, source->layers, KVM_STR_ARG(source->name));
}

bool kvm_spec__fits_back(const kvm_spec *s)
{
    return s->both_directions || json_object_get(s->root.v, "alternate");
}

kvm_status kvm_spec__check_graph(const kvm_spec *s, const kvm_graph *g,
                                 const kvm_model_info *const *fitted_from, int n,
                                 kvm_arena *keep, kvm_err *err)
{
    for (int i = 0; i < n; i++) TRY(check_k(s, fitted_from[i], keep, err));
    for (ptrdiff_t i = 0; i < g->count; i++)
        TRY(check_node(s, &g->nodes[i], keep, err));
    return KVM_OK;
}

/* least..INT32_MAX, as the capture will want it */
static kvm_status size_of(kvm_jat at, int64_t fallback, int least, ptrdiff_t *out,
                          kvm_err *err)
{
    int64_t v;
    TRY(kvm_json_i64_or(at, fallback, &v, err));
    if (v < least || v > INT32_MAX)
        return kvm_json_fail(err, KVM_RANGE, at, "is %lld, must lie in %d..%d",
                             (long long)v, least, INT32_MAX);
    *out = (ptrdiff_t)v;
    return KVM_OK;
}

kvm_status kvm_spec__check_text(const kvm_spec *s, char sha[65], ptrdiff_t *sequences,
                                const kvm_tokenizer *t, kvm_arena *keep, kvm_err *err)
{
    const kvm_jat c = kvm_json_get(s->root, keep, "calibration");
    const kvm_jat text = kvm_json_get(c, keep, "text");
    const kvm_jat given = kvm_json_get(c, keep, "sequences");
    ptrdiff_t wanted, tokens, found;
    TRY(size_of(given, KVM_SEQUENCES, KVM_LEAST_SEQUENCES, &wanted, err));
    TRY(size_of(kvm_json_get(c, keep, "tokens"), KVM_TOKENS, 2, &tokens, err));
    const kvm_status st =
        kvm_calibration_count(&found, sha, s->text_path, t, wanted, tokens, err);
    if (st) return kvm_json_prefix(err, st, text);
    if (found < KVM_LEAST_SEQUENCES)
        return kvm_json_fail(
            err, KVM_RANGE, text,
            "gives %td of the at least %d sequences of up to %td tokens "
            "that a fit needs: give more text, or fewer tokens",
            found, KVM_LEAST_SEQUENCES, tokens);
    if (found < wanted && kvm_json_has(given))
        return kvm_json_fail(err, KVM_RANGE, given,
                             "is %td, and the text gives %td: ask for no more, or give "
                             "more text",
                             wanted, found);
    *sequences = found < wanted ? found : wanted;
    return KVM_OK;
}

kvm_status kvm_spec__read_overlap(const kvm_spec *s, kvm_overlap **o,
                                  ptrdiff_t sequences, const kvm_tokenizer *t,
                                  kvm_arena *keep, kvm_err *err)
{
    kvm_calibration c;
    ptrdiff_t tokens;
    const kvm_jat at = kvm_json_get(s->root, keep, "calibration");
    TRY(size_of(kvm_json_get(at, keep, "tokens"), KVM_TOKENS, 2, &tokens, err));
    TRY(kvm_calibration_read(&c, keep, s->text_path, t, sequences, tokens, err));
    return kvm_overlap_new(o, keep, &c, err);
}

static kvm_status look_at_items(const kvm_spec *s, const kvm_suite *suite,
                                ptrdiff_t wanted, const kvm_overlap *o,
                                const kvm_model_info *const models[2],
                                const kvm_tokenizer *t, kvm_arena *work, kvm_err *err)
{
    kvm_items it;
    TRY(kvm_items_read(&it, work, suite, wanted, t, err));
    for (int i = 0; i < 2; i++) TRY(kvm_items_fit(&it, models[i], err));
    return kvm_items_apart(&it, o, s->text_path, *work, err);
}

/* as many turns as every dialogue that is asked has, and at least one of each model */
static kvm_status turns_of(kvm_suite *suite, ptrdiff_t items, kvm_jat at,
                           kvm_arena *keep, kvm_err *err)
{
    int64_t v;
    ptrdiff_t *index, n, most = PTRDIFF_MAX;
    TRY(kvm_suite_sample(&index, &n, keep, suite, items, err));
    for (ptrdiff_t i = 0; i < n; i++)
        if (suite->items[index[i]].turn_count < most)
            most = suite->items[index[i]].turn_count;
    TRY(kvm_json_i64_or(at, KVM_TURNS, &v, err));
    suite->turns = (ptrdiff_t)v;
    if (v >= 2 && v <= most) return KVM_OK;
    return kvm_json_fail(err, KVM_RANGE, at,
                         "is %lld, must lie in 2..%td: two models take turns, and the "
                         "shortest dialogue asked of suite %.*s has %td",
                         (long long)v, most, KVM_STR_ARG(suite->name), most);
}

kvm_status kvm_spec__check_items(const kvm_spec *s, kvm_suite *suite, kvm_jat at,
                                 kvm_jat section, const kvm_overlap *o,
                                 const kvm_model_info *const models[2],
                                 const kvm_tokenizer *t, kvm_arena *keep, kvm_err *err)
{
    ptrdiff_t wanted;
    kvm_arena work = {0};
    TRY(size_of(kvm_json_get(section, keep, "items"), 0, 0, &wanted, err));
    if (suite->kind == KVM_SUITE_DIALOGUE)
        TRY(turns_of(suite, wanted, kvm_json_get(section, keep, "turns"), keep, err));
    TRY(kvm_arena_reserve(&work, ITEMS_BYTES, err));
    const kvm_status st = look_at_items(s, suite, wanted, o, models, t, &work, err);
    kvm_arena_free(&work);
    return st ? kvm_json_prefix(err, st, at) : KVM_OK;
}
