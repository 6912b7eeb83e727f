/* translator_write.c - writing the translator file, whose layout translator.h sets
 * down, and what its tensors are called. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "translators/meta.h"
#include "translators/translator_internal.h"

static const char *const weight_names[3] = {"w1", "w2", "w3"};
static const char *const bias_names[3] = {"b1", "b2", "b3"};

int kvm_step__parts(const kvm_step *s)
{
    return s->map == KVM_MAP_MLP ? 3 : s->map == KVM_MAP_RIDGE;
}

kvm_str kvm_step__part_name(kvm_arena *keep, const kvm_step *s, int part, bool bias)
{
    const char *last = s->map == KVM_MAP_MLP ? (bias ? bias_names : weight_names)[part]
                       : bias                ? "bias"
                                             : "weight";
    return kvm_str_fmt(keep, "%s.%td.%s", kvm_space_name(s->mapping.out), s->layer,
                       last);
}

ptrdiff_t kvm_step__bias_count(const kvm_step *s, int part)
{
    return s->map == KVM_MAP_MLP && part < 2 ? s->groups * s->hidden : s->outputs;
}

/* ---- numbers ---- */

kvm_status kvm_step__widen(float *out, const kvm_tensor *t, ptrdiff_t at, ptrdiff_t n,
                           kvm_err *err)
{
    const char *from =
        (const char *)t->data + at * (ptrdiff_t)kvm_dtype_block_bytes(t->dtype);
    return kvm_widen_row(out, from, t->dtype, n, err);
}

kvm_status kvm_step__append(kvm_st_writer *w, kvm_dtype dtype, const float *x,
                            ptrdiff_t n, kvm_err *err)
{
    enum { CHUNK = 1024 };
    unsigned char buffer[4 * CHUNK];
    for (ptrdiff_t i = 0; i < n; i += CHUNK) {
        const ptrdiff_t m = n - i < CHUNK ? n - i : CHUNK;
        TRY(kvm_narrow_row(buffer, dtype, x + i, m, err));
        TRY(kvm_st_append(w, buffer, (size_t)(m * kvm_dtype_block_bytes(dtype)), err));
    }
    return KVM_OK;
}

bool kvm_step__finite(const kvm_tensor *t, ptrdiff_t n)
{
    enum { CHUNK = 1024 };
    float x[CHUNK];
    for (ptrdiff_t i = 0; i < n; i += CHUNK) {
        const ptrdiff_t m = n - i < CHUNK ? n - i : CHUNK;
        if (kvm_step__widen(x, t, i, m, NULL)) return false;
        for (ptrdiff_t k = 0; k < m; k++)
            if (!isfinite(x[k])) return false;
    }
    return true;
}

/* ---- writing ---- */

static json_t *shapes_json(const kvm_row_shape *s, ptrdiff_t n)
{
    json_t *heads = json_array(), *dims = json_array(), *keys = json_array();
    for (ptrdiff_t l = 0; l < n; l++) {
        json_array_append_new(heads, json_integer(s[l].heads));
        json_array_append_new(dims, json_integer(s[l].dim));
        json_array_append_new(keys, json_integer(s[l].keys));
    }
    return json_pack("{s:o, s:o, s:o}", "heads", heads, "dim", dims, "keys", keys);
}

static json_t *rows_json(const kvm_shapes *s)
{
    json_t *all = json_object();
    for (int i = 0; i < KVM_SPACES; i++)
        if (s->of[i] && !kvm_space_derived((kvm_space)i))
            json_object_set_new(all, kvm_space_name((kvm_space)i),
                                shapes_json(s->of[i], s->layers));
    return all;
}

static json_t *str_json(kvm_str s)
{
    return json_stringn(s.at ? s.at : "", (size_t)s.len);
}

static json_t *side_json(const kvm_side_info *s)
{
    json_t *rotary =
        json_pack("{s:I, s:b, s:f, s:f, s:o}", "width", (json_int_t)s->rope.width,
                  "interleaved", s->rope.interleaved, "factor", (double)s->rope.factor,
                  "theta", s->theta, "sha", str_json(s->rope_sha));
    return json_pack("{s:o, s:o, s:o, s:I, s:o, s:o}", "fingerprint",
                     str_json(s->fingerprint), "name", str_json(s->name), "tokenizer",
                     str_json(s->tokenizer), "layers", (json_int_t)s->shapes.layers,
                     "rows", rows_json(&s->shapes), "rotary", rotary);
}

static json_t *real_or_null(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static const char *const side_names[] = {"source", "target"};

static json_t *step_json(const kvm_step *s, kvm_dtype dtype)
{
    const kvm_mapping *m = &s->mapping;
    json_t *sources = json_array(), *from = json_array();
    for (ptrdiff_t i = 0; i < s->sources; i++)
        json_array_append_new(sources, json_integer(s->source[i]));
    for (int i = 0; i < kvm_mapping_spaces(m) && s->map != KVM_MAP_EXACT; i++)
        json_array_append_new(from, json_string(kvm_space_name(m->from[i])));
    return json_pack(
        "{s:s, s:I, s:s, s:s, s:o, s:b, s:b, s:o, s:I, s:I, s:s, s:s, s:o, "
        "s:o, s:o}",
        "rows", kvm_space_name(m->out), "layer", (json_int_t)s->layer, "map",
        kvm_map_kind_name(s->map), "side", side_names[m->side], "from", from, "token",
        m->token, "head_matched", s->head_matched, "sources", sources, "groups",
        (json_int_t)s->groups, "hidden", (json_int_t)s->hidden, "layout", "out,in",
        "dtype", kvm_dtype_name(dtype), "lambda", real_or_null(s->lambda), "r2_fit",
        real_or_null(s->r2_fit), "r2_held", real_or_null(s->r2_held));
}

static json_t *state_json(const kvm_state_step *s)
{
    return json_pack("{s:I, s:s, s:I, s:o, s:o}", "layer", (json_int_t)s->layer, "map",
                     kvm_state_map_name(s->map), "source", (json_int_t)s->source,
                     "r2_held", real_or_null(s->r2_held), "r2_window_held",
                     real_or_null(s->r2_window_held));
}

static const char *format_of(const kvm_translator *t)
{
    return t->dense ? KVM_TRANSLATOR_FORMAT_DENSE : KVM_TRANSLATOR_FORMAT;
}

static kvm_status metadata(const kvm_translator *t, kvm_dtype dtype, kvm_arena *keep,
                           json_t **meta, kvm_err *err)
{
    json_t *steps = json_array(), *states = json_array();
    for (ptrdiff_t i = 0; i < t->count; i++)
        json_array_append_new(steps, step_json(&t->steps[i], dtype));
    for (ptrdiff_t i = 0; i < t->state_count; i++)
        json_array_append_new(states, state_json(&t->states[i]));
    json_t *pair = json_null();
    if (t->pair.len) {
        kvm_jat parsed;
        const kvm_status s =
            kvm_json_parse(&parsed, keep, t->pair, KVM_STR("pair"), err);
        if (s) {
            json_decref(steps);
            json_decref(states);
            return s;
        }
        pair = json_deep_copy(parsed.v);
    }
    json_t *root = kvm_json_own(
        keep,
        json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "format",
                  format_of(t), "keys", kvm_key_space_name(t->keys), "token",
                  kvm_token_kind_name(t->token), "source", side_json(&t->source),
                  "target", side_json(&t->target), "moments", str_json(t->moments),
                  "pair", pair, "steps", steps, "states", states));
    kvm_str text;
    if (!root)
        return kvm_fail(err, KVM_NOMEM, "no memory for the translator's metadata");
    if (t->dense) json_object_set_new(root, "indexers", json_string("dense"));
    TRY(kvm_json_canonical(&text, keep, root, err));
    *meta = kvm_json_own(keep, json_object());
    if (!*meta) return kvm_nomem(err, keep);
    TRY(kvm_meta_put(*meta, "format", kvm_str_of(format_of(t)), err));
    return kvm_meta_put(*meta, "kvmill", text, err);
}

static kvm_status append_step(const kvm_step *s, kvm_dtype dtype, kvm_st_writer *w,
                              kvm_arena scratch, kvm_err *err)
{
    for (int p = 0; p < kvm_step__parts(s); p++) {
        const kvm_tensor *t = &s->weight[p];
        const ptrdiff_t rows = t->dim[0] * t->dim[1], cols = t->dim[2];
        kvm_arena room = scratch;
        float *row = kvm_new_raw(&room, float, cols);
        if (!row) return kvm_nomem(err, &room);
        for (ptrdiff_t r = 0; r < rows; r++) {
            TRY(kvm_step__widen(row, t, r * cols, cols, err));
            TRY(kvm_step__append(w, dtype, row, cols, err));
        }
    }
    return KVM_OK;
}

/* ---- state steps ---- */

const kvm_state_part kvm_state_parts[KVM_STATE_PARTS] = {{"state", "left", 3},
                                                         {"state", "right", 3},
                                                         {"window", "weight", 3},
                                                         {"window", "bias", 1}};

static int state_parts(const kvm_state_step *s)
{
    return s->map == KVM_STATE_BILINEAR ? KVM_STATE_PARTS : 0;
}

kvm_str kvm_step__state_name(kvm_arena *keep, const kvm_state_step *s, int part)
{
    return kvm_str_fmt(keep, "%s.%td.%s", kvm_state_parts[part].object, s->layer,
                       kvm_state_parts[part].name);
}

/* a part's numbers, with their shape in `spec` */
static const float *state_part(const kvm_state_step *s, int part, kvm_st_spec *spec)
{
    const kvm_tensor *const t[] = {&s->left, &s->right, &s->window};
    spec->dtype = KVM_F32;
    spec->rank = kvm_state_parts[part].rank;
    if (part < 3) {
        for (int d = 0; d < 3; d++) spec->dim[d] = t[part]->dim[d];
        return t[part]->data;
    }
    spec->dim[0] = s->window.dim[0] * s->window.dim[1];
    return s->bias;
}

static kvm_status append_state(const kvm_state_step *s, kvm_st_writer *w, kvm_err *err)
{
    for (int p = 0; p < state_parts(s); p++) {
        kvm_st_spec spec = {.dim = {1, 1, 1}};
        const float *data = state_part(s, p, &spec);
        TRY(kvm_st_append(
            w, data, sizeof(float) * (size_t)(spec.dim[0] * spec.dim[1] * spec.dim[2]),
            err));
    }
    return KVM_OK;
}

/* names and shapes: all that is F32 whatever the weights are first, so
 * that no type after it needs padding */
static kvm_status plan_tensors(const kvm_translator *t, kvm_dtype dtype,
                               kvm_arena *keep, kvm_st_spec **out, ptrdiff_t *n,
                               kvm_err *err)
{
    kvm_st_spec *spec =
        kvm_new(keep, kvm_st_spec, 6 * t->count + KVM_STATE_PARTS * t->state_count);
    if (!spec) return kvm_nomem(err, keep);
    *out = spec;
    *n = 0;
    for (ptrdiff_t i = 0; i < t->state_count; i++)
        for (int p = 0; p < state_parts(&t->states[i]); p++) {
            kvm_st_spec *s = &spec[(*n)++];
            state_part(&t->states[i], p, s);
            s->name = kvm_step__state_name(keep, &t->states[i], p);
            if (!s->name.at) return kvm_nomem(err, keep);
        }
    for (int bias = 1; bias >= 0; bias--)
        for (ptrdiff_t i = 0; i < t->count; i++)
            for (int p = 0; p < kvm_step__parts(&t->steps[i]); p++) {
                const kvm_step *s = &t->steps[i];
                const ptrdiff_t *d = s->weight[p].dim;
                const kvm_str name = kvm_step__part_name(keep, s, p, bias);
                if (!name.at) return kvm_nomem(err, keep);
                spec[(*n)++] =
                    bias ? (kvm_st_spec){name, KVM_F32, 1, {kvm_step__bias_count(s, p)}}
                         : (kvm_st_spec){name, dtype, 3, {d[0], d[1], d[2]}};
            }
    return KVM_OK;
}

static kvm_status write_file(const kvm_translator *t, kvm_dtype dtype, kvm_str path,
                             kvm_arena *own, kvm_arena scratch, char sha_hex[65],
                             kvm_err *err)
{
    json_t *meta = NULL;
    kvm_st_spec *spec;
    kvm_st_writer *w;
    ptrdiff_t n;
    TRY(metadata(t, dtype, own, &meta, err));
    TRY(plan_tensors(t, dtype, own, &spec, &n, err));
    TRY(kvm_st_begin(&w, own, path, spec, n, meta, err));
    for (ptrdiff_t i = 0; i < t->state_count; i++)
        TRY(append_state(&t->states[i], w, err));
    for (ptrdiff_t i = 0; i < t->count; i++)
        for (int p = 0; p < kvm_step__parts(&t->steps[i]); p++)
            TRY(kvm_st_append(
                w, t->steps[i].bias[p],
                sizeof(float) * (size_t)kvm_step__bias_count(&t->steps[i], p), err));
    for (ptrdiff_t i = 0; i < t->count; i++)
        TRY(append_step(&t->steps[i], dtype, w, scratch, err));
    return kvm_st_publish(w, sha_hex, err);
}

kvm_status kvm_translator_write(const kvm_translator *t, kvm_dtype dtype, kvm_str path,
                                kvm_arena scratch, char sha_hex[65], kvm_err *err)
{
    TRY(kvm_translator_check(t, err));
    if (dtype != KVM_F32 && dtype != KVM_BF16)
        return kvm_fail(err, KVM_DTYPE, "a translator is stored as F32 or BF16, not %s",
                        kvm_dtype_name(dtype));
    kvm_arena own = {0};
    TRY(kvm_arena_init(&own, (size_t)64 << 20, err));
    const kvm_status s = write_file(t, dtype, path, &own, scratch, sha_hex, err);
    kvm_arena_free(&own);
    return s;
}
