/* Reading and writing the translator file, whose layout translator.h sets down. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "translators/meta.h"
#include "translators/translator_internal.h"

#define FORMAT "kvmill.translator.v2"

static const char *const weight_names[3] = {"w1", "w2", "w3"};
static const char *const bias_names[3] = {"b1", "b2", "b3"};

static int parts_of(const kvm_step *s)
{
    return s->map == KVM_MAP_MLP ? 3 : s->map == KVM_MAP_RIDGE;
}

/* "K.3.weight", "V.0.b2" */
static kvm_str part_name(kvm_arena *keep, const kvm_step *s, int part, bool bias)
{
    const char *last = s->map == KVM_MAP_MLP ? (bias ? bias_names : weight_names)[part]
                       : bias                ? "bias"
                                             : "weight";
    return kvm_str_fmt(keep, "%s.%td.%s", kvm_space_name(s->mapping.out), s->layer,
                       last);
}

static ptrdiff_t bias_count(const kvm_step *s, int part)
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
    return json_pack("{s:s, s:I, s:s, s:s, s:o, s:b, s:b, s:o, s:I, s:I, s:s, s:s, s:o, "
                     "s:o, s:o}",
                     "rows", kvm_space_name(m->out), "layer", (json_int_t)s->layer,
                     "map", kvm_map_kind_name(s->map), "side", side_names[m->side],
                     "from", from, "token", m->token, "head_matched", s->head_matched,
                     "sources", sources, "groups", (json_int_t)s->groups, "hidden",
                     (json_int_t)s->hidden, "layout", "out,in", "dtype",
                     kvm_dtype_name(dtype), "lambda", real_or_null(s->lambda), "r2_fit",
                     real_or_null(s->r2_fit), "r2_held", real_or_null(s->r2_held));
}

static json_t *state_json(const kvm_state_step *s)
{
    return json_pack("{s:I, s:s, s:I, s:o, s:o}", "layer", (json_int_t)s->layer, "map",
                     kvm_state_map_name(s->map), "source", (json_int_t)s->source,
                     "r2_held", real_or_null(s->r2_held), "r2_window_held",
                     real_or_null(s->r2_window_held));
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
        keep, json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "format", FORMAT,
                        "keys", kvm_key_space_name(t->keys), "token",
                        kvm_token_kind_name(t->token), "source", side_json(&t->source),
                        "target", side_json(&t->target), "moments",
                        str_json(t->moments), "pair", pair, "steps", steps, "states",
                        states));
    kvm_str text;
    if (!root)
        return kvm_fail(err, KVM_NOMEM, "no memory for the translator's metadata");
    TRY(kvm_json_canonical(&text, keep, root, err));
    *meta = kvm_json_own(keep, json_object());
    if (!*meta) return kvm_nomem(err, keep);
    TRY(kvm_meta_put(*meta, "format", KVM_STR(FORMAT), err));
    return kvm_meta_put(*meta, "kvmill", text, err);
}

static kvm_status append_step(const kvm_step *s, kvm_dtype dtype, kvm_st_writer *w,
                              kvm_arena scratch, kvm_err *err)
{
    for (int p = 0; p < parts_of(s); p++) {
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

/* a tensor of a state step */
typedef struct state_part {
    const char *object, *name; /* "state", "left" */
    int rank;
    ptrdiff_t dim[3];
    const float *data;
} state_part;
enum { STATE_PARTS = 4 };

static int state_parts(const kvm_state_step *s, state_part part[STATE_PARTS])
{
    if (s->map != KVM_STATE_BILINEAR) return 0;
    const kvm_tensor *t[] = {&s->left, &s->right, &s->window};
    static const char *const names[][2] = {
        {"state", "left"}, {"state", "right"}, {"window", "weight"}};
    for (int i = 0; i < 3; i++)
        part[i] = (state_part){names[i][0],
                               names[i][1],
                               3,
                               {t[i]->dim[0], t[i]->dim[1], t[i]->dim[2]},
                               t[i]->data};
    part[3] = (state_part){
        "window", "bias", 1, {s->window.dim[0] * s->window.dim[1]}, s->bias};
    return STATE_PARTS;
}

static kvm_str state_name(kvm_arena *keep, const kvm_state_step *s,
                          const state_part *part)
{
    return kvm_str_fmt(keep, "%s.%td.%s", part->object, s->layer, part->name);
}

static ptrdiff_t part_count(const state_part *p)
{
    return p->dim[0] * (p->rank > 1 ? p->dim[1] * p->dim[2] : 1);
}

static kvm_status append_state(const kvm_state_step *s, kvm_st_writer *w, kvm_err *err)
{
    state_part part[STATE_PARTS];
    const int parts = state_parts(s, part);
    for (int p = 0; p < parts; p++)
        TRY(kvm_st_append(w, part[p].data,
                          sizeof(float) * (size_t)part_count(&part[p]), err));
    return KVM_OK;
}

/* names and shapes: all that is F32 whatever the weights are first, so
 * that no type after it needs padding */
static kvm_status plan_tensors(const kvm_translator *t, kvm_dtype dtype,
                               kvm_arena *keep, kvm_st_spec **out, ptrdiff_t *n,
                               kvm_err *err)
{
    kvm_st_spec *spec = kvm_new(keep, kvm_st_spec, 6 * t->count + 4 * t->state_count);
    if (!spec) return kvm_nomem(err, keep);
    *out = spec;
    *n = 0;
    for (ptrdiff_t i = 0; i < t->state_count; i++) {
        state_part part[STATE_PARTS];
        const int parts = state_parts(&t->states[i], part);
        for (int p = 0; p < parts; p++) {
            const kvm_str name = state_name(keep, &t->states[i], &part[p]);
            if (!name.at) return kvm_nomem(err, keep);
            spec[(*n)++] = (kvm_st_spec){
                name, KVM_F32, part[p].rank,
                {part[p].dim[0], part[p].dim[1], part[p].dim[2]}};
        }
    }
    for (int bias = 1; bias >= 0; bias--)
        for (ptrdiff_t i = 0; i < t->count; i++)
            for (int p = 0; p < parts_of(&t->steps[i]); p++) {
                const kvm_step *s = &t->steps[i];
                const ptrdiff_t *d = s->weight[p].dim;
                const kvm_str name = part_name(keep, s, p, bias);
                if (!name.at) return kvm_nomem(err, keep);
                spec[(*n)++] = bias
                                   ? (kvm_st_spec){name, KVM_F32, 1, {bias_count(s, p)}}
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
        for (int p = 0; p < parts_of(&t->steps[i]); p++)
            TRY(kvm_st_append(w, t->steps[i].bias[p],
                              sizeof(float) * (size_t)bias_count(&t->steps[i], p),
                              err));
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

/* ---- reading ---- */

static kvm_status take_str(kvm_jat obj, kvm_arena *keep, const char *key, kvm_str *out,
                           kvm_err *err)
{
    kvm_str s;
    TRY(kvm_json_str(kvm_json_get(obj, keep, key), &s, err));
    *out = kvm_str_copy(keep, s);
    return out->at ? KVM_OK : kvm_nomem(err, keep);
}

static kvm_status take_count(kvm_jat obj, kvm_arena *keep, const char *key,
                             int64_t least, int64_t most, ptrdiff_t *out, kvm_err *err)
{
    int64_t v;
    const kvm_jat at = kvm_json_get(obj, keep, key);
    TRY(kvm_json_i64(at, &v, err));
    if (v < least || v > most)
        return kvm_fail(err, KVM_FORMAT, "%s: %s: %lld is not between %lld and %lld",
                        at.file, at.path, (long long)v, (long long)least,
                        (long long)most);
    *out = (ptrdiff_t)v;
    return KVM_OK;
}

static kvm_status take_shapes(kvm_jat at, kvm_arena *keep, ptrdiff_t layers,
                              const kvm_row_shape **out, kvm_err *err)
{
    enum { MOST = 1 << 24 };
    kvm_row_shape *s = kvm_new(keep, kvm_row_shape, layers);
    if (!s) return kvm_nomem(err, keep);
    static const char *const parts[] = {"dim", "heads", "keys"};
    for (int part = 0; part < 3; part++) {
        const kvm_jat list = kvm_json_get(at, keep, parts[part]);
        ptrdiff_t n;
        TRY(kvm_json_array(list, &n, err));
        if (n != layers)
            return kvm_fail(err, KVM_FORMAT, "%s: %s has %td entries for %td layers",
                            list.file, list.path, n, layers);
        for (ptrdiff_t l = 0; l < n; l++) {
            int64_t v;
            const kvm_jat item = kvm_json_item(list, keep, l);
            TRY(kvm_json_i64(item, &v, err));
            if (v < 0 || v > MOST || (part == 1 && (v > 0) != (s[l].dim > 0)) ||
                (part == 2 && v > 0 && s[l].dim % v))
                return kvm_fail(err, KVM_FORMAT, "%s: %s is %lld", item.file, item.path,
                                (long long)v);
            ptrdiff_t *const to[] = {&s[l].dim, &s[l].heads, &s[l].keys};
            *to[part] = (ptrdiff_t)v;
        }
    }
    *out = s;
    return KVM_OK;
}

static kvm_status take_rows(kvm_jat side, kvm_arena *keep, kvm_shapes *s, kvm_err *err)
{
    const kvm_jat rows = kvm_json_get(side, keep, "rows");
    TRY(kvm_json_object(rows, err));
    kvm_str name;
    const json_t *value;
    for (void *it = NULL; kvm_json_next(rows, &it, &name, &value);) {
        kvm_space space;
        const kvm_jat at = kvm_json_get(rows, keep, name.at);
        if (kvm_space_of_name(name, &space) || kvm_space_derived(space))
            return kvm_fail(err, KVM_FORMAT, "%s: %s is no space of rows", at.file,
                            at.path);
        TRY(take_shapes(at, keep, s->layers, &s->of[space], err));
    }
    for (int i = 0; i < KVM_SPACES; i++) s->of[i] = s->of[kvm_space_rows[i].stored];
    return KVM_OK;
}

static kvm_status take_side(kvm_jat root, kvm_arena *keep, const char *key,
                            kvm_side_info *s, kvm_err *err)
{
    enum { MOST_LAYERS = 4096, MOST_WIDTH = 1 << 20 };
    const kvm_jat at = kvm_json_get(root, keep, key);
    TRY(kvm_json_object(at, err));
    TRY(take_str(at, keep, "fingerprint", &s->fingerprint, err));
    TRY(take_str(at, keep, "name", &s->name, err));
    TRY(take_str(at, keep, "tokenizer", &s->tokenizer, err));
    TRY(take_count(at, keep, "layers", 1, MOST_LAYERS, &s->shapes.layers, err));
    TRY(take_rows(at, keep, &s->shapes, err));
    const kvm_jat rotary = kvm_json_get(at, keep, "rotary");
    double factor;
    TRY(take_count(rotary, keep, "width", 0, MOST_WIDTH, &s->rope.width, err));
    TRY(kvm_json_bool_or(kvm_json_get(rotary, keep, "interleaved"), false,
                         &s->rope.interleaved, err));
    TRY(kvm_json_f64(kvm_json_get(rotary, keep, "factor"), &factor, err));
    TRY(kvm_json_f64(kvm_json_get(rotary, keep, "theta"), &s->theta, err));
    s->rope.factor = (float)factor;
    return take_str(rotary, keep, "sha", &s->rope_sha, err);
}

kvm_status kvm_step__sources(kvm_jat list, ptrdiff_t layers, kvm_arena *keep,
                             const int32_t **out, ptrdiff_t *n, kvm_err *err)
{
    ptrdiff_t count;
    TRY(kvm_json_array(list, &count, err));
    if (count > layers)
        return kvm_fail(err, KVM_FORMAT, "%s: %s names %td of %td source layers",
                        list.file, list.path, count, layers);
    int32_t *source = kvm_new(keep, int32_t, count);
    if (!source) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i < count; i++) {
        int64_t v;
        const kvm_jat item = kvm_json_item(list, keep, i);
        TRY(kvm_json_i64(item, &v, err));
        if (v < 0 || v >= layers)
            return kvm_fail(err, KVM_FORMAT,
                            "%s: %s is %lld; the source has %td layers", item.file,
                            item.path, (long long)v, layers);
        source[i] = (int32_t)v;
    }
    *out = source;
    *n = count;
    return KVM_OK;
}

static kvm_status take_real(kvm_jat obj, kvm_arena *keep, const char *key, double *out,
                            kvm_err *err)
{
    return kvm_json_f64_or(kvm_json_get(obj, keep, key), (double)NAN, out, err);
}

static kvm_status take_space(kvm_jat at, kvm_space *s, kvm_err *err)
{
    kvm_str name;
    TRY(kvm_json_str(at, &name, err));
    if (kvm_space_of_name(name, s))
        return kvm_fail(err, KVM_FORMAT, "%s: %s: '%s' is no space of rows", at.file,
                        at.path, kvm_quote(name).at);
    return KVM_OK;
}

static kvm_status take_mapping(kvm_jat at, kvm_arena *keep, kvm_step *s, kvm_err *err)
{
    kvm_mapping *m = &s->mapping;
    kvm_str side;
    const kvm_jat from = kvm_json_get(at, keep, "from");
    const kvm_jat where = kvm_json_get(at, keep, "side");
    ptrdiff_t n;
    TRY(take_space(kvm_json_get(at, keep, "rows"), &m->out, err));
    TRY(kvm_json_str(where, &side, err));
    if (!kvm_str_eq(side, KVM_STR("source")) && !kvm_str_eq(side, KVM_STR("target")))
        return kvm_fail(err, KVM_FORMAT, "%s: %s: '%s' is source or target", where.file,
                        where.path, kvm_quote(side).at);
    m->side = kvm_str_eq(side, KVM_STR("target")) ? KVM_TARGET : KVM_SOURCE;
    TRY(kvm_json_array(from, &n, err));
    if (s->map == KVM_MAP_EXACT ? n != 0 : n < 1 || n > 2)
        return kvm_fail(err, KVM_FORMAT, "%s: %s names %td spaces", from.file,
                        from.path, n);
    for (ptrdiff_t i = 0; i < n; i++)
        TRY(take_space(kvm_json_item(from, keep, i), &m->from[i], err));
    if (n == 1) m->from[1] = m->from[0];
    return kvm_json_bool_or(kvm_json_get(at, keep, "token"), false, &m->token, err);
}

static kvm_status take_kind(kvm_jat at, kvm_arena *keep, kvm_step *s, kvm_err *err)
{
    kvm_str map, layout;
    const kvm_jat m = kvm_json_get(at, keep, "map");
    const kvm_jat y = kvm_json_get(at, keep, "layout");
    TRY(kvm_json_str(m, &map, err));
    TRY(kvm_json_str(y, &layout, err));
    if (kvm_map_kind_of_name(map, &s->map))
        return kvm_fail(err, KVM_FORMAT, "%s: %s: '%s' is no kind of map", m.file,
                        m.path, kvm_quote(map).at);
    if (!kvm_str_eq(layout, KVM_STR("out,in")))
        return kvm_fail(err, KVM_FORMAT, "%s: %s: layout '%s' is not 'out,in'", y.file,
                        y.path, kvm_quote(layout).at);
    return take_mapping(at, keep, s, err);
}

/* the step's tensors, as views of the file; the shapes follow from the sides */
static kvm_status take_tensors(const kvm_translator *t, kvm_step *s, const kvm_st *st,
                               kvm_arena *keep, kvm_err *err)
{
    const ptrdiff_t out = s->outputs / s->groups;
    const ptrdiff_t rows[3] = {s->map == KVM_MAP_MLP ? s->hidden : out, s->hidden, out};
    const ptrdiff_t cols[3] = {s->inputs, s->hidden, s->hidden};
    for (int p = 0; p < parts_of(s); p++) {
        const kvm_str weight = part_name(keep, s, p, false);
        const kvm_str bias = part_name(keep, s, p, true);
        if (!weight.at || !bias.at) return kvm_nomem(err, keep);
        const ptrdiff_t dim[] = {s->groups, rows[p], cols[p]}, n = bias_count(s, p);
        const kvm_st_tensor *w, *b;
        TRY(kvm_st_need(st, weight, KVM_DTYPES, 3, dim, &w, err));
        TRY(kvm_st_need(st, bias, KVM_F32, 1, &n, &b, err));
        if (w->t.dtype != KVM_F32 && w->t.dtype != KVM_BF16)
            return kvm_fail(err, KVM_DTYPE, "%s: %s is %s, not F32 or BF16", t->path.at,
                            weight.at, kvm_dtype_name(w->t.dtype));
        if (!kvm_step__finite(&w->t, kvm_tensor_count(&w->t)) ||
            !kvm_step__finite(&b->t, n))
            return kvm_fail(err, KVM_NAN, "%s: %s or its bias is not finite",
                            t->path.at, weight.at);
        s->weight[p] = w->t;
        s->bias[p] = b->t.data;
    }
    return KVM_OK;
}

static kvm_status take_step(const kvm_translator *t, kvm_jat at, const kvm_st *st,
                            kvm_arena *keep, kvm_step *s, kvm_err *err)
{
    enum { MOST_WIDTH = 1 << 20 };
    TRY(kvm_json_object(at, err));
    TRY(take_kind(at, keep, s, err));
    TRY(take_count(at, keep, "layer", 0, t->target.shapes.layers - 1, &s->layer, err));
    TRY(kvm_json_bool_or(kvm_json_get(at, keep, "head_matched"), false,
                         &s->head_matched, err));
    TRY(kvm_step__sources(kvm_json_get(at, keep, "sources"), t->source.shapes.layers,
                          keep, &s->source, &s->sources, err));
    const kvm_row_shape out = kvm_step__shape(t, s);
    if (out.heads == 0)
        return kvm_fail(err, KVM_FORMAT, "%s: %s: the target's layer has no such rows",
                        at.file, at.path);
    TRY(take_count(at, keep, "groups", 0, out.heads, &s->groups, err));
    TRY(take_count(at, keep, "hidden", 0, MOST_WIDTH, &s->hidden, err));
    if (s->map == KVM_MAP_EXACT) return KVM_OK;
    if (s->groups < 1 || out.heads % s->groups)
        return kvm_fail(err, KVM_FORMAT, "%s: %s: %td groups for %td heads", at.file,
                        at.path, s->groups, out.heads);
    TRY(take_real(at, keep, "lambda", &s->lambda, err));
    TRY(take_real(at, keep, "r2_fit", &s->r2_fit, err));
    TRY(take_real(at, keep, "r2_held", &s->r2_held, err));
    s->outputs = out.heads * out.dim;
    s->inputs = kvm_step__inputs(t, s);
    return take_tensors(t, s, st, keep, err);
}

/* shapes that a state step's tensors have between these sides */
static kvm_status take_state(const kvm_translator *t, kvm_jat at, const kvm_st *st,
                             kvm_arena *keep, kvm_state_step *s, ptrdiff_t *tensors,
                             kvm_err *err)
{
    kvm_str map;
    const kvm_jat m = kvm_json_get(at, keep, "map");
    TRY(kvm_json_str(m, &map, err));
    if (kvm_state_map_of_name(map, &s->map))
        return kvm_fail(err, KVM_FORMAT, "%s: %s: '%s' is zero, copy or bilinear",
                        m.file, m.path, kvm_quote(map).at);
    TRY(take_count(at, keep, "layer", 0, t->target.shapes.layers - 1, &s->layer, err));
    TRY(take_count(at, keep, "source", 0, t->source.shapes.layers - 1, &s->source, err));
    TRY(take_real(at, keep, "r2_held", &s->r2_held, err));
    TRY(take_real(at, keep, "r2_window_held", &s->r2_window_held, err));
    if (s->map != KVM_STATE_BILINEAR) return KVM_OK;
    static const struct {
        const char *object, *name;
        int rank;
    } parts[STATE_PARTS] = {{"state", "left", 3},
                            {"state", "right", 3},
                            {"window", "weight", 3},
                            {"window", "bias", 1}};
    const ptrdiff_t any[] = {-1, -1, -1};
    const kvm_st_tensor *part[STATE_PARTS];
    for (int p = 0; p < STATE_PARTS; p++) {
        const kvm_str name = kvm_str_fmt(keep, "%s.%td.%s", parts[p].object, s->layer,
                                         parts[p].name);
        if (!name.at) return kvm_nomem(err, keep);
        TRY(kvm_st_need(st, name, KVM_F32, parts[p].rank, any, &part[p], err));
        if (!kvm_step__finite(&part[p]->t, kvm_tensor_count(&part[p]->t)))
            return kvm_fail(err, KVM_NAN, "%s: %s is not finite", t->path.at, name.at);
    }
    s->left = part[0]->t;
    s->right = part[1]->t;
    s->window = part[2]->t;
    s->bias = part[3]->t.data;
    if (part[3]->t.dim[0] != s->window.dim[0] * s->window.dim[1])
        return kvm_fail(err, KVM_SHAPE, "%s: window.%td.bias has %td entries",
                        t->path.at, s->layer, part[3]->t.dim[0]);
    *tensors += STATE_PARTS;
    return KVM_OK;
}

static kvm_status take_header(kvm_translator *t, kvm_jat root, kvm_arena *keep,
                              kvm_err *err)
{
    kvm_str format, keys, token;
    const kvm_jat at = kvm_json_get(root, keep, "keys");
    const kvm_jat told = kvm_json_get(root, keep, "token");
    TRY(kvm_json_str(kvm_json_get(root, keep, "format"), &format, err));
    if (!kvm_str_eq(format, KVM_STR(FORMAT)))
        return kvm_fail(err, KVM_VERSION, "%s: format '%s', expected " FORMAT,
                        t->path.at, kvm_quote(format).at);
    TRY(kvm_json_str(at, &keys, err));
    if (kvm_key_space_of_name(keys, &t->keys))
        return kvm_fail(err, KVM_FORMAT, "%s: %s: '%s' is no key space", at.file,
                        at.path, kvm_quote(keys).at);
    TRY(kvm_json_str(told, &token, err));
    if (kvm_token_kind_of_name(token, &t->token))
        return kvm_fail(err, KVM_FORMAT, "%s: %s: '%s' is none, given or decoded",
                        told.file, told.path, kvm_quote(token).at);
    TRY(take_side(root, keep, "source", &t->source, err));
    TRY(take_side(root, keep, "target", &t->target, err));
    TRY(take_str(root, keep, "moments", &t->moments, err));
    const kvm_jat pair = kvm_json_get(root, keep, "pair");
    t->pair = KVM_STR("");
    return kvm_json_has(pair) ? kvm_json_canonical(&t->pair, keep, pair.v, err)
                              : KVM_OK;
}

/* out is untouched unless the whole file is sound */
static kvm_status read_from(kvm_translator *out, kvm_arena *keep, const kvm_st *st,
                            kvm_err *err)
{
    kvm_str text;
    kvm_jat root;
    kvm_translator t = {.path = kvm_st_path(st)};
    TRY(kvm_meta_format(st, FORMAT, err));
    TRY(kvm_meta_str(st, "kvmill", &text, err));
    TRY(kvm_json_parse(&root, keep, text, t.path, err));
    TRY(take_header(&t, root, keep, err));
    const kvm_jat steps = kvm_json_get(root, keep, "steps");
    const kvm_jat states = kvm_json_get(root, keep, "states");
    TRY(kvm_json_array(steps, &t.count, err));
    TRY(kvm_json_array(states, &t.state_count, err));
    if (t.count > (ptrdiff_t)KVM_SPACES * t.target.shapes.layers ||
        t.state_count > t.target.shapes.layers)
        return kvm_fail(err, KVM_MISMATCH, "%s: %td and %td steps for %td target layers",
                        t.path.at, t.count, t.state_count, t.target.shapes.layers);
    kvm_step *step = kvm_new(keep, kvm_step, t.count);
    kvm_state_step *state = kvm_new(keep, kvm_state_step, t.state_count);
    if (!step || !state) return kvm_nomem(err, keep);
    ptrdiff_t tensors = 0;
    for (ptrdiff_t i = 0; i < t.count; i++) {
        TRY(take_step(&t, kvm_json_item(steps, keep, i), st, keep, &step[i], err));
        tensors += 2 * (ptrdiff_t)parts_of(&step[i]);
    }
    for (ptrdiff_t i = 0; i < t.state_count; i++)
        TRY(take_state(&t, kvm_json_item(states, keep, i), st, keep, &state[i],
                       &tensors, err));
    t.steps = step;
    t.states = state;
    const kvm_status s = kvm_translator_check(&t, err);
    if (s) return kvm_err_prefix(err, s, "%s", t.path.at);
    if (kvm_st_count(st) != tensors)
        return kvm_fail(err, KVM_FORMAT, "%s: %td tensors, its steps have %td",
                        t.path.at, kvm_st_count(st), tensors);
    *out = t;
    return KVM_OK;
}

kvm_status kvm_translator_read(kvm_translator *t, kvm_arena *keep, kvm_str path,
                               kvm_err *err)
{
    kvm_st *st;
    TRY(kvm_st_open(&st, keep, path, err));
    return read_from(t, keep, st, err);
}

kvm_status kvm_translator_parse(kvm_translator *t, kvm_arena *keep, kvm_str bytes,
                                kvm_str name, kvm_err *err)
{
    kvm_st *st;
    TRY(kvm_st_parse(&st, keep, bytes, name, err));
    return read_from(t, keep, st, err);
}
