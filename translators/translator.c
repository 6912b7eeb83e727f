#include "translators/translator.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "translators/translator_internal.h"

const char *kvm_map_kind_name(kvm_map_kind k)
{
    switch (k) {
#define X(id, name, text, what)                                                        \
    case KVM_MAP_##name:                                                               \
        return text;
        KVM_MAP_KINDS(X)
#undef X
    }
    return "unknown";
}

const char *kvm_key_space_name(kvm_key_space k)
{
    switch (k) {
#define X(id, name, text, what)                                                        \
    case KVM_KEYS_##name:                                                              \
        return text;
        KVM_KEY_SPACES(X)
#undef X
    }
    return "unknown";
}

kvm_status kvm_key_space_of_name(kvm_str name, kvm_key_space *k)
{
#define X(id, NAME, text, what)                                                        \
    if (kvm_str_eq(name, KVM_STR(text))) {                                             \
        *k = KVM_KEYS_##NAME;                                                          \
        return KVM_OK;                                                                 \
    }
    KVM_KEY_SPACES(X)
#undef X
    return KVM_NOTFOUND;
}

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
                         .layers = i->layers,
                         .k = i->k,
                         .v = i->v,
                         .rope = i->rope};
    return describe_rope(s, keep, err);
}

kvm_status kvm_side_of_model(kvm_side_info *s, kvm_arena *keep, const kvm_model *m,
                             kvm_err *err)
{
    kvm_rows_info i;
    TRY(kvm_rows_describe(&i, keep, m, err));
    *s = (kvm_side_info){.fingerprint = i.model,
                         .name = i.model_name,
                         .tokenizer = i.tokenizer,
                         .layers = i.layers,
                         .k = i.k,
                         .v = i.v,
                         .rope = i.rope};
    return describe_rope(s, keep, err);
}

/* ---- checking ---- */

const kvm_row_shape *kvm_step__shape(const kvm_side_info *side, kvm_object_kind object)
{
    return object == KVM_OBJECT_V ? side->v : side->k;
}

ptrdiff_t kvm_step__inputs(const kvm_translator *t, const kvm_step *s)
{
    ptrdiff_t n = 0;
    for (ptrdiff_t i = 0; i < s->sources; i++) {
        const kvm_row_shape r = kvm_step__shape(&t->source, s->object)[s->source[i]];
        n += (s->head_matched ? 1 : r.heads) * r.dim;
    }
    return n;
}

static kvm_status check_sources(const kvm_translator *t, const kvm_step *s,
                                const char *name, kvm_err *err)
{
    if (s->sources < 1 || s->sources > t->source.layers)
        return kvm_fail(err, KVM_SHAPE, "step %s reads %td of %td source layers", name,
                        s->sources, t->source.layers);
    for (ptrdiff_t i = 0; i < s->sources; i++) {
        if (s->source[i] < 0 || s->source[i] >= t->source.layers)
            return kvm_fail(err, KVM_SHAPE, "step %s reads source layer %d of %td",
                            name, (int)s->source[i], t->source.layers);
        for (ptrdiff_t j = 0; j < i; j++)
            if (s->source[i] == s->source[j])
                return kvm_fail(err, KVM_SHAPE, "step %s reads source layer %d twice",
                                name, (int)s->source[i]);
    }
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
    const kvm_step *s = &t->steps[i];
    char name[32];
    snprintf(name, sizeof name, "%c.%td", "KV"[i % 2], i / 2);
    if (s->object != (i % 2 ? KVM_OBJECT_V : KVM_OBJECT_K) || s->layer != i / 2)
        return kvm_fail(err, KVM_MISMATCH,
                        "step %td makes %s.%td where %s is due; a translator has one "
                        "step for K and V of every target layer, in order",
                        i, kvm_object_name(s->object), s->layer, name);
    TRY(check_sources(t, s, name, err));
    const kvm_row_shape out = kvm_step__shape(&t->target, s->object)[s->layer];
    if (s->outputs != out.heads * out.dim || s->inputs != kvm_step__inputs(t, s))
        return kvm_fail(err, KVM_SHAPE,
                        "step %s maps %td to %td numbers; its layers have %td and %td",
                        name, s->inputs, s->outputs, kvm_step__inputs(t, s),
                        out.heads * out.dim);
    const bool known = s->map == KVM_MAP_RIDGE || s->map == KVM_MAP_MLP;
    const bool grouped =
        s->groups == out.heads && (s->head_matched || s->map == KVM_MAP_MLP);
    if (!known || (s->head_matched && (s->map == KVM_MAP_MLP || !grouped)) ||
        (s->groups != 1 && !grouped) || (s->map == KVM_MAP_MLP && s->hidden < 1))
        return kvm_fail(err, KVM_SHAPE, "step %s: %td groups of a %s map of width %td",
                        name, s->groups, kvm_map_kind_name(s->map), s->hidden);
    return check_weights(s, name, err);
}

kvm_status kvm_translator_check(const kvm_translator *t, kvm_err *err)
{
    if (t->source.layers < 1 || t->target.layers < 1 ||
        t->count != 2 * t->target.layers)
        return kvm_fail(err, KVM_MISMATCH,
                        "a translator of %td steps for %td target layers; it needs one "
                        "for K and one for V of each",
                        t->count, t->target.layers);
    if (kvm_key_space_of_name(kvm_str_of(kvm_key_space_name(t->keys)),
                              &(kvm_key_space){0}))
        return kvm_fail(err, KVM_USAGE, "key space %d is unknown", (int)t->keys);
    for (ptrdiff_t i = 0; i < t->count; i++) TRY(check_step(t, i, err));
    return KVM_OK;
}

/* ---- fitting a model ---- */

static kvm_status side_fits(const kvm_side_info *s, const kvm_model *m,
                            const char *side, bool force, kvm_err *err)
{
    kvm_arena own = {0};
    kvm_side_info have;
    TRY(kvm_arena_init(&own, 4 << 20, err));
    kvm_status r = kvm_side_of_model(&have, &own, m, err);
    const char *name = kvm_model_info_of(m)->name.at;
    if (!r && have.layers != s->layers)
        r = kvm_fail(err, KVM_MISMATCH,
                     "the translator's %s has %td layers, %s has %td", side, s->layers,
                     name, have.layers);
    for (ptrdiff_t l = 0; !r && l < s->layers; l++)
        for (int o = 0; !r && o < 2; o++) {
            const kvm_row_shape a = (o ? s->v : s->k)[l], b = (o ? have.v : have.k)[l];
            if (a.heads != b.heads || a.dim != b.dim)
                r = kvm_fail(err, KVM_MISMATCH,
                             "the translator's %s has %td heads of %td in %c of layer "
                             "%td, %s has %td of %td",
                             side, a.heads, a.dim, "KV"[o], l, name, b.heads, b.dim);
        }
    if (!r && s->rope_sha.len && /* "" = the layout does not say */
        (!kvm_str_eq(s->rope_sha, have.rope_sha) || s->rope.width != have.rope.width ||
         s->rope.interleaved != have.rope.interleaved ||
         s->rope.factor != have.rope.factor))
        r = kvm_fail(err, KVM_MISMATCH,
                     "the translator's %s has another rotary than %s", side, name);
    if (!r && !force && s->fingerprint.len &&
        !kvm_str_eq(s->fingerprint, have.fingerprint))
        r = kvm_fail(err, KVM_MISMATCH,
                     "the translator's %s is %.*s (%.12s...), not %s (%.12s...)", side,
                     KVM_STR_ARG(s->name), s->fingerprint.at, name,
                     have.fingerprint.at);
    kvm_arena_free(&own);
    return r;
}

kvm_status kvm_translator_fits(const kvm_translator *t, const kvm_model *source,
                               const kvm_model *target, bool force, kvm_err *err)
{
    TRY(side_fits(&t->source, source, "source", force, err));
    return side_fits(&t->target, target, "target", force, err);
}

ptrdiff_t kvm_translator_parameters(const kvm_translator *t)
{
    ptrdiff_t n = 0;
    for (ptrdiff_t i = 0; i < t->count; i++) {
        const kvm_step *s = &t->steps[i];
        n += s->outputs;
        if (s->map == KVM_MAP_MLP) n += 2 * s->groups * s->hidden;
        for (int w = 0; w < (s->map == KVM_MAP_MLP ? 3 : 1); w++)
            n += kvm_tensor_count(&s->weight[w]);
    }
    return n;
}

/* ---- making steps ---- */

kvm_status kvm_step_ridge(kvm_step *s, kvm_arena *keep, kvm_object_kind object,
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
    memcpy(list, source, sizeof *list * (size_t)sources);
    for (ptrdiff_t g = 0; g < groups; g++)
        for (ptrdiff_t o = 0; o < out; o++) {
            float *row = w + (g * out + o) * inputs;
            for (ptrdiff_t i = 0; i < inputs; i++)
                row[i] = (float)weight[g][i * out + o];
            b[g * out + o] = (float)bias[g][o];
        }
    *s = (kvm_step){.object = object,
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
