#include "translators/translator.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "translators/translator_internal.h"

/* names of a closed set, and back */
#define NAMES(type, stem, PREFIX, LIST)                                                \
    const char *kvm_##stem##_name(type v)                                              \
    {                                                                                  \
        static const struct {                                                          \
            type id;                                                                   \
            const char *text;                                                          \
        } all[] = {LIST(PREFIX)};                                                      \
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)                          \
            if (all[i].id == v) return all[i].text;                                    \
        return "unknown";                                                              \
    }                                                                                  \
    kvm_status kvm_##stem##_of_name(kvm_str name, type *v)                             \
    {                                                                                  \
        static const struct {                                                          \
            type id;                                                                   \
            const char *text;                                                          \
        } all[] = {LIST(PREFIX)};                                                      \
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {                        \
            if (!kvm_str_eq(name, kvm_str_of(all[i].text))) continue;                  \
            *v = all[i].id;                                                            \
            return KVM_OK;                                                             \
        }                                                                              \
        return KVM_NOTFOUND;                                                           \
    }
#define AS_MAP(id, name, text, what) {KVM_MAP_##name, text},
#define AS_KEYS(id, name, text, what) {KVM_KEYS_##name, text},
#define AS_TOKEN(id, name, text, what) {KVM_TOKEN_##name, text},
#define AS_STATE(id, name, text, what) {KVM_STATE_##name, text},
NAMES(kvm_map_kind, map_kind, AS_MAP, KVM_MAP_KINDS)
NAMES(kvm_key_space, key_space, AS_KEYS, KVM_KEY_SPACES)
NAMES(kvm_token_kind, token_kind, AS_TOKEN, KVM_TOKEN_KINDS)
NAMES(kvm_state_map, state_map, AS_STATE, KVM_STATE_MAPS)

/* ---- sides ---- */

static kvm_status describe_rope(kvm_side_info *s, kvm_arena *keep, kvm_err *err)
{
    const kvm_rope *r = &s->rope;
    s->rope_sha = KVM_STR("");
    s->theta = 0;
    if (r->width == 0) return KVM_OK;
    char hex[65];
    const kvm_str bytes = {(const char *)r->inv_freq,
                           (ptrdiff_t)sizeof(float) * (r->width / 2)};
    TRY(kvm_sha_of(bytes, hex, err));
    s->rope_sha = kvm_str_copy(keep, kvm_str_of(hex));
    if (!s->rope_sha.at) return kvm_nomem(err, keep);
    /* inv_freq[1] = theta^(-2/width): high frequencies are left alone by every
     * scaling */
    s->theta = r->width > 2 ? pow((double)r->inv_freq[1], -(double)r->width / 2) : 0;
    return KVM_OK;
}

kvm_status kvm_side_of_rows(kvm_side_info *s, kvm_arena *keep, const kvm_rows *r,
                            kvm_err *err)
{
    const kvm_rows_info *i = kvm_rows_info_of(r);
    *s = (kvm_side_info){.fingerprint = i->model,
                         .name = i->model_name,
                         .tokenizer = i->tokenizer,
                         .shapes = i->shapes,
                         .rope = i->rope};
    return describe_rope(s, keep, err);
}

kvm_status kvm_side_of_model(kvm_side_info *s, kvm_arena *keep, const kvm_model *m,
                             kvm_err *err)
{
    kvm_rows_info i;
    TRY(kvm_rows_describe(&i, keep, m, ~0U, err));
    *s = (kvm_side_info){.fingerprint = i.model,
                         .name = i.model_name,
                         .tokenizer = i.tokenizer,
                         .shapes = i.shapes,
                         .rope = i.rope};
    return describe_rope(s, keep, err);
}

/* ---- checking ---- */

kvm_row_shape kvm_step__shape(const kvm_translator *t, const kvm_step *s)
{
    const kvm_row_shape *of = t->target.shapes.of[s->mapping.out];
    return of ? of[s->layer] : (kvm_row_shape){0};
}

ptrdiff_t kvm_step__inputs(const kvm_translator *t, const kvm_step *s)
{
    kvm_feature item[3];
    ptrdiff_t n = 0;
    for (ptrdiff_t i = 0; i < (s->sources > 0 ? s->sources : 1); i++) {
        kvm_mapping rest = s->mapping;
        rest.token &= i == 0;
        const ptrdiff_t items = kvm_mapping_items(
            &rest, s->sources > 0 ? s->source + i : &(int32_t){0}, 1, s->layer, item);
        for (ptrdiff_t k = 0; k < items; k++) {
            const kvm_side_info *side =
                item[k].side == KVM_SOURCE ? &t->source : &t->target;
            const kvm_row_shape *of = side->shapes.of[item[k].space];
            const kvm_row_shape r = of ? of[item[k].layer] : (kvm_row_shape){0};
            n += (s->head_matched && r.heads > 0 ? 1 : r.heads) * r.dim;
        }
    }
    return n;
}

const kvm_step *kvm_translator_find(const kvm_translator *t, kvm_space space,
                                    ptrdiff_t layer)
{
    for (ptrdiff_t i = 0; i < t->count; i++)
        if (t->steps[i].mapping.out == space && t->steps[i].layer == layer)
            return &t->steps[i];
    return NULL;
}

static kvm_status check_sources(const kvm_translator *t, const kvm_step *s,
                                const char *name, kvm_err *err)
{
    const ptrdiff_t layers = t->source.shapes.layers;
    const bool chooses = s->map != KVM_MAP_EXACT && s->mapping.side == KVM_SOURCE;
    if (chooses ? s->sources < 1 || s->sources > layers : s->sources != 0)
        return kvm_fail(err, KVM_SHAPE, "step %s reads %td of %td source layers", name,
                        s->sources, layers);
    for (ptrdiff_t i = 0; i < s->sources; i++) {
        const int32_t l = s->source[i];
        bool there = l >= 0 && l < layers;
        for (int k = 0; there && k < 2; k++)
            there = kvm_shapes_width(&t->source.shapes, s->mapping.from[k], l) > 0;
        if (!there)
            return kvm_fail(err, KVM_SHAPE, "step %s reads source layer %d of %td",
                            name, (int)l, layers);
        for (ptrdiff_t j = 0; j < i; j++)
            if (l == s->source[j])
                return kvm_fail(err, KVM_SHAPE, "step %s reads source layer %d twice",
                                name, (int)l);
    }
    if (!chooses && s->map != KVM_MAP_EXACT &&
        !kvm_translator_find(t, s->mapping.from[0], s->layer))
        return kvm_fail(err, KVM_MISMATCH,
                        "step %s reads the layer's %s, which no step makes", name,
                        kvm_space_name(s->mapping.from[0]));
    if (s->mapping.token || s->map == KVM_MAP_EXACT)
        if (t->token == KVM_TOKEN_NONE || !t->target.shapes.of[KVM_SPACE_TOKEN])
            return kvm_fail(err, KVM_MISMATCH,
                            "step %s needs to know the tokens, and none are told",
                            name);
    return KVM_OK;
}

static kvm_status check_weights(const kvm_step *s, const char *name, kvm_err *err)
{
    const ptrdiff_t out = s->outputs / s->groups;
    const ptrdiff_t dims[3][2] = {
        {s->map == KVM_MAP_MLP ? s->hidden : out, s->inputs},
        {s->hidden, s->hidden},
        {out, s->hidden},
    };
    for (int i = 0; i < (s->map == KVM_MAP_MLP ? 3 : 1); i++) {
        const kvm_tensor *w = &s->weight[i];
        if (w->rank != 3 || w->dim[0] != s->groups || w->dim[1] != dims[i][0] ||
            w->dim[2] != dims[i][1] || !kvm_tensor_contiguous(w) || !s->bias[i])
            return kvm_fail(err, KVM_SHAPE,
                            "step %s: weight %d must be (%td,%td,%td) with a bias",
                            name, i + 1, s->groups, dims[i][0], dims[i][1]);
        if (w->dtype != KVM_F32 && w->dtype != KVM_BF16)
            return kvm_fail(err, KVM_DTYPE, "step %s: weight %d is %s, not F32 or BF16",
                            name, i + 1, kvm_dtype_name(w->dtype));
    }
    return KVM_OK;
}

static kvm_status check_step(const kvm_translator *t, ptrdiff_t i, kvm_err *err)
{
    const kvm_step *s = &t->steps[i], *before = i ? s - 1 : NULL;
    char name[48];
    snprintf(name, sizeof name, "%s.%td", kvm_space_name(s->mapping.out), s->layer);
    const bool ascends =
        !before || before->layer < s->layer ||
        (before->layer == s->layer && before->mapping.out < s->mapping.out);
    const bool there = s->layer >= 0 && s->layer < t->target.shapes.layers &&
                       kvm_step__shape(t, s).heads > 0;
    if (!ascends || !there || kvm_space_once(s->mapping.out))
        return kvm_fail(
            err, KVM_MISMATCH,
            "step %td makes %s, which is not due there; a translator has one "
            "step for each space of every target layer, in order",
            i, name);
    if (s->map != KVM_MAP_EXACT && !kvm_mapping_known(&s->mapping))
        return kvm_fail(err, KVM_MISMATCH, "step %s: no recipe reads %s for it", name,
                        kvm_space_name(s->mapping.from[0]));
    TRY(check_sources(t, s, name, err));
    const kvm_row_shape out = kvm_step__shape(t, s);
    if (s->map == KVM_MAP_EXACT) {
        if (s->layer == 0) return KVM_OK;
        return kvm_fail(err, KVM_MISMATCH,
                        "step %s: rows of the first layer alone follow from the token",
                        name);
    }
    if (s->outputs != out.heads * out.dim || s->inputs != kvm_step__inputs(t, s))
        return kvm_fail(err, KVM_SHAPE,
                        "step %s maps %td to %td numbers; its layers have %td and %td",
                        name, s->inputs, s->outputs, kvm_step__inputs(t, s),
                        out.heads * out.dim);
    const bool known = s->map == KVM_MAP_RIDGE || s->map == KVM_MAP_MLP;
    const bool grouped =
        s->groups == out.heads && (s->head_matched || s->map == KVM_MAP_MLP);
    if (!known || s->groups < 1 ||
        (s->head_matched && (s->map == KVM_MAP_MLP || !grouped)) ||
        (s->groups != 1 && !grouped) || (s->map == KVM_MAP_MLP && s->hidden < 1))
        return kvm_fail(err, KVM_SHAPE, "step %s: %td groups of a %s map of width %td",
                        name, s->groups, kvm_map_kind_name(s->map), s->hidden);
    return check_weights(s, name, err);
}

/* the kinds of object that rows of a space fill */
static unsigned kinds_of(kvm_space s)
{
    const kvm_space_row *r = &kvm_space_rows[s];
    if (r->object == KVM_OBJECT_KINDS) return 0;
    /* a state is one of two kinds; its window is made with it or told beside it */
    if (s == KVM_SPACE_INPUT || kvm_space_once(s)) return 1U << KVM_OBJECT_STATE;
    return 1U << r->object;
}

/* index keys are left out of every layer, and there are some */
static kvm_status check_dense(const kvm_translator *t, kvm_err *err)
{
    bool any = false;
    for (ptrdiff_t l = 0; t->dense && l < t->target.shapes.layers; l++) {
        any |= kvm_shapes_width(&t->target.shapes, KVM_SPACE_INDEX, l) > 0;
        if (kvm_translator_find(t, KVM_SPACE_INDEX, l))
            return kvm_fail(err, KVM_MISMATCH,
                            "the translator leaves index keys out, and makes those of "
                            "target layer %td",
                            l);
    }
    if (!t->dense || any) return KVM_OK;
    return kvm_fail(err, KVM_MISMATCH,
                    "the translator leaves index keys out, and the target has none");
}

/* whole: every kind of object that the target's layers keep is made, and once; but for
 * index keys that are left out */
static kvm_status check_whole(const kvm_translator *t, kvm_err *err)
{
    for (ptrdiff_t l = 0; l < t->target.shapes.layers; l++) {
        unsigned due = 0, made = 0, twice = 0;
        for (int s = 0; s < KVM_SPACES; s++) {
            const unsigned kinds = kinds_of((kvm_space)s);
            const bool out = t->dense && s == KVM_SPACE_INDEX;
            if (!out && kvm_shapes_width(&t->target.shapes, (kvm_space)s, l) > 0)
                due |= kinds;
            if (!kvm_translator_find(t, (kvm_space)s, l)) continue;
            twice |= made & kinds;
            made |= kinds;
        }
        for (ptrdiff_t i = 0; i < t->state_count; i++) {
            if (t->states[i].layer != l) continue;
            twice |= made & 1U << KVM_OBJECT_STATE;
            made |= 1U << KVM_OBJECT_STATE;
        }
        for (int k = 0; k < KVM_OBJECT_KINDS; k++)
            if ((((due ^ made) | twice) >> k & 1) != 0)
                return kvm_fail(err, KVM_MISMATCH,
                                "%s of target layer %td is made by %s; a translator is "
                                "whole, and has one step for each",
                                kvm_object_name((kvm_object_kind)k), l,
                                twice >> k & 1  ? "two steps"
                                : made >> k & 1 ? "a step, and the layer has none"
                                                : "no step");
    }
    return KVM_OK;
}

kvm_status kvm_translator_check(const kvm_translator *t, kvm_err *err)
{
    if (t->source.shapes.layers < 1 || t->target.shapes.layers < 1)
        return kvm_fail(err, KVM_MISMATCH, "a translator of %td and %td layers",
                        t->source.shapes.layers, t->target.shapes.layers);
    if (kvm_key_space_of_name(kvm_str_of(kvm_key_space_name(t->keys)),
                              &(kvm_key_space){0}))
        return kvm_fail(err, KVM_USAGE, "key space %d is unknown", (int)t->keys);
    for (ptrdiff_t i = 0; i < t->count; i++) TRY(check_step(t, i, err));
    for (ptrdiff_t i = 0; i < t->state_count; i++) TRY(kvm_states__check(t, i, err));
    TRY(check_dense(t, err));
    return check_whole(t, err);
}

/* ---- fitting a model ---- */

static kvm_status shapes_fit(const kvm_side_info *s, const kvm_shapes *have,
                             const char *side, const char *name, kvm_err *err)
{
    if (have->layers != s->shapes.layers)
        return kvm_fail(err, KVM_MISMATCH,
                        "the translator's %s has %td layers, %s has %td", side,
                        s->shapes.layers, name, have->layers);
    for (int k = 0; k < KVM_SPACES; k++)
        for (ptrdiff_t l = 0; s->shapes.of[k] && l < have->layers; l++) {
            const kvm_row_shape a = s->shapes.of[k][l];
            const kvm_row_shape b = have->of[k] ? have->of[k][l] : (kvm_row_shape){0};
            if (a.heads != b.heads || a.dim != b.dim)
                return kvm_fail(err, KVM_MISMATCH,
                                "the translator's %s has %td heads of %td in %s of "
                                "layer %td, %s has %td of %td",
                                side, a.heads, a.dim, kvm_space_name((kvm_space)k), l,
                                name, b.heads, b.dim);
        }
    return KVM_OK;
}

static kvm_status same_side(const kvm_side_info *s, const kvm_side_info *have,
                            const char *side, const char *name, bool force,
                            kvm_err *err)
{
    TRY(shapes_fit(s, &have->shapes, side, name, err));
    if (s->rope_sha.len && /* "" = the layout does not say */
        (!kvm_str_eq(s->rope_sha, have->rope_sha) ||
         s->rope.width != have->rope.width ||
         s->rope.interleaved != have->rope.interleaved ||
         s->rope.factor != have->rope.factor))
        return kvm_fail(err, KVM_MISMATCH,
                        "the translator's %s has another rotary than %s", side, name);
    if (force || !s->fingerprint.len || kvm_str_eq(s->fingerprint, have->fingerprint))
        return KVM_OK;
    return kvm_fail(
        err, KVM_MISMATCH, "the translator's %s is %.*s (%.12s...), not %s (%.12s...)",
        side, KVM_STR_ARG(s->name), s->fingerprint.at, name, have->fingerprint.at);
}

static kvm_status side_fits(const kvm_side_info *s, const kvm_model *m,
                            const char *side, bool force, kvm_err *err)
{
    kvm_arena own = {0};
    kvm_side_info have;
    TRY(kvm_arena_init(&own, 4 << 20, err));
    kvm_status r = kvm_side_of_model(&have, &own, m, err);
    if (!r) r = same_side(s, &have, side, kvm_model_info_of(m)->name.at, force, err);
    kvm_arena_free(&own);
    return r;
}

/* every object of the target is made by a step, follows from the tokens, or is left
 * out */
static kvm_status covers(const kvm_translator *t, const kvm_model *target, kvm_err *err)
{
    for (ptrdiff_t i = 0; i < kvm_model_info_of(target)->objects; i++) {
        const kvm_object *o = kvm_model_object(target, i);
        const bool ngrams =
            o->kind == KVM_OBJECT_NGRAM_WINDOW || o->kind == KVM_OBJECT_LAST_IDS;
        bool made = (ngrams && t->token != KVM_TOKEN_NONE) ||
                    (t->dense && kvm_object_chooses(o));
        for (ptrdiff_t k = 0; k < t->state_count; k++)
            made |=
                t->states[k].layer == o->layer && kvm_object_per_prompt(o) && !ngrams;
        for (ptrdiff_t k = 0; k < t->count; k++) {
            const kvm_space_row *r = &kvm_space_rows[t->steps[k].mapping.out];
            const bool window = o->kind == KVM_OBJECT_WINDOW &&
                                t->steps[k].mapping.out == KVM_SPACE_INPUT;
            made |= t->steps[k].layer == o->layer &&
                    (r->object == o->kind || r->other == o->kind || window);
        }
        if (!made)
            return kvm_fail(err, KVM_MISMATCH,
                            "the translator makes no %s of layer %td, which %s keeps",
                            kvm_object_name(o->kind), o->layer,
                            kvm_model_info_of(target)->name.at);
    }
    return KVM_OK;
}

kvm_status kvm_translator_fits(const kvm_translator *t, const kvm_model *source,
                               const kvm_model *target, bool force, kvm_err *err)
{
    TRY(side_fits(&t->source, source, "source", force, err));
    TRY(side_fits(&t->target, target, "target", force, err));
    return covers(t, target, err);
}

ptrdiff_t kvm_translator_parameters(const kvm_translator *t)
{
    ptrdiff_t n = 0;
    for (ptrdiff_t i = 0; i < t->count; i++) {
        const kvm_step *s = &t->steps[i];
        if (s->map == KVM_MAP_EXACT) continue;
        n += s->outputs;
        if (s->map == KVM_MAP_MLP) n += 2 * s->groups * s->hidden;
        for (int w = 0; w < (s->map == KVM_MAP_MLP ? 3 : 1); w++)
            n += kvm_tensor_count(&s->weight[w]);
    }
    for (ptrdiff_t i = 0; i < t->state_count; i++) {
        const kvm_state_step *s = &t->states[i];
        if (s->map != KVM_STATE_BILINEAR) continue;
        n += kvm_tensor_count(&s->left) + kvm_tensor_count(&s->right);
        n += kvm_tensor_count(&s->window) + s->window.dim[0] * s->window.dim[1];
    }
    return n;
}

/* ---- making steps ---- */

kvm_status kvm_step_ridge(kvm_step *s, kvm_arena *keep, const kvm_mapping *mapping,
                          ptrdiff_t layer, const int32_t *source, ptrdiff_t sources,
                          ptrdiff_t groups, ptrdiff_t inputs, ptrdiff_t outputs,
                          const double *const *weight, const double *const *bias,
                          kvm_err *err)
{
    const ptrdiff_t out = outputs / groups;
    float *w = kvm_new_raw(keep, float, outputs *inputs);
    float *b = kvm_new_raw(keep, float, outputs);
    int32_t *list = kvm_new(keep, int32_t, sources);
    if (!w || !b || !list) return kvm_nomem(err, keep);
    if (sources > 0) memcpy(list, source, sizeof *list * (size_t)sources);
    for (ptrdiff_t g = 0; g < groups; g++)
        for (ptrdiff_t o = 0; o < out; o++) {
            float *row = w + (g * out + o) * inputs;
            for (ptrdiff_t i = 0; i < inputs; i++)
                row[i] = (float)weight[g][i * out + o];
            b[g * out + o] = (float)bias[g][o];
        }
    *s = (kvm_step){.mapping = *mapping,
                    .layer = layer,
                    .map = KVM_MAP_RIDGE,
                    .head_matched = groups > 1,
                    .sources = sources,
                    .source = list,
                    .inputs = inputs,
                    .outputs = outputs,
                    .groups = groups,
                    .weight = {kvm_view3(w, KVM_F32, groups, out, inputs)},
                    .bias = {b},
                    .r2_fit = (double)NAN,
                    .r2_held = (double)NAN};
    return KVM_OK;
}

/* ---- opening whichever kind a path is ---- */

kvm_status kvm_translator_open(kvm_translator *t, kvm_arena *keep, kvm_str path,
                               kvm_err *err)
{
    static const char *const pickles[] = {".pt", ".pth", ".bin", ".pkl"};
    for (size_t i = 0; i < sizeof pickles / sizeof *pickles; i++)
        if (kvm_str_ends(path, kvm_str_of(pickles[i])))
            return kvm_fail(
                err, KVM_UNSUPPORTED,
                "%.*s: a pickled file can run code when it is read; convert "
                "it to safetensors",
                KVM_STR_ARG(path));
    if (!kvm_path_is_dir(path)) return kvm_translator_read(t, keep, path, err);
    const kvm_str a = kvm_path_join(keep, path, KVM_STR("manifest.json"));
    const kvm_str b = kvm_path_join(keep, path, KVM_STR("mapper.json"));
    if (!a.at || !b.at) return kvm_nomem(err, keep);
    if (kvm_path_exists(a)) return kvm_layout_a_read(t, keep, path, err);
    if (kvm_path_exists(b)) return kvm_layout_b_read(t, keep, path, err);
    return kvm_fail(err, KVM_NOTFOUND,
                    "%.*s: no manifest.json and no mapper.json: not a mapper's folder",
                    KVM_STR_ARG(path));
}
