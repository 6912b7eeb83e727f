/* What the two public mapper layouts share: one matrix per object and layer, a list of
 * source layers per target layer, one head count and size per model. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "translators/translator_internal.h"

kvm_row_shape kvm_layout__shape(const kvm_side_info *s)
{
    return s->shapes.of[KVM_SPACE_K][0];
}

/* keys and values of one shape in every layer, and nothing else that a step makes */
static bool uniform(const kvm_side_info *s)
{
    static const kvm_space spaces[] = {KVM_SPACE_K, KVM_SPACE_V};
    for (int o = 0; o < 2; o++) {
        const kvm_row_shape *of = s->shapes.of[spaces[o]];
        for (ptrdiff_t l = 0; l < s->shapes.layers; l++) {
            const kvm_row_shape r = of ? of[l] : (kvm_row_shape){0};
            if (r.heads == 0 || r.heads != kvm_layout__shape(s).heads ||
                r.dim != kvm_layout__shape(s).dim)
                return false;
        }
    }
    return true;
}

kvm_status kvm_layout__check(const kvm_translator *t, const char *layout, kvm_err *err)
{
    TRY(kvm_translator_check(t, err));
    if (!uniform(&t->source) || !uniform(&t->target))
        return kvm_fail(err, KVM_UNSUPPORTED,
                        "layout %s has one head count and size for a whole model",
                        layout);
    if (t->count != 2 * t->target.shapes.layers || t->state_count > 0 || t->dense)
        return kvm_fail(err, KVM_UNSUPPORTED, "layout %s holds keys and values alone",
                        layout);
    for (ptrdiff_t i = 0; i < t->count; i++) {
        const kvm_step *s = &t->steps[i], *k = &t->steps[i - i % 2];
        if (s->mapping.token || s->mapping.from[0] != s->mapping.out)
            return kvm_fail(err, KVM_UNSUPPORTED,
                            "layout %s holds maps of keys from keys and values from "
                            "values; %s.%td reads others",
                            layout, kvm_space_name(s->mapping.out), s->layer);
        if (s->map != KVM_MAP_RIDGE || s->head_matched)
            return kvm_fail(
                err, KVM_UNSUPPORTED,
                "layout %s holds linear maps over all heads; %s.%td is %s%s", layout,
                kvm_space_name(s->mapping.out), s->layer,
                s->head_matched ? "head-matched " : "", kvm_map_kind_name(s->map));
        if (s->sources != t->steps[0].sources ||
            memcmp(s->source, k->source, sizeof *s->source * (size_t)s->sources) != 0)
            return kvm_fail(err, KVM_UNSUPPORTED,
                            "layout %s has one source list of one length for K and V; "
                            "%s.%td has another",
                            layout, kvm_space_name(s->mapping.out), s->layer);
    }
    return KVM_OK;
}

json_t *kvm_layout__str_json(kvm_str s)
{
    return json_stringn(s.at ? s.at : "", (size_t)s.len);
}

kvm_status kvm_layout__copy_str(kvm_jat obj, kvm_arena *keep, const char *key,
                                kvm_str *out, kvm_err *err)
{
    kvm_str s;
    TRY(kvm_json_str_or(kvm_json_get(obj, keep, key), KVM_STR(""), &s, err));
    *out = kvm_str_copy(keep, s);
    return out->at ? KVM_OK : kvm_nomem(err, keep);
}

kvm_status kvm_layout__publish(json_t *root, kvm_str path, kvm_arena scratch,
                               kvm_err *err)
{
    kvm_str text = {0};
    if (!root) return kvm_fail(err, KVM_NOMEM, "%s: no memory for it", path.at);
    const kvm_status s = kvm_json_pretty(&text, &scratch, root, err);
    json_decref(root);
    return s ? s : kvm_file_publish(path, text, scratch, err);
}

json_t *kvm_layout__selected_json(const kvm_translator *t)
{
    json_t *all = json_array();
    for (ptrdiff_t l = 0; l < t->target.shapes.layers; l++) {
        const kvm_step *s = &t->steps[2 * l];
        json_t *list = json_array();
        for (ptrdiff_t i = 0; i < s->sources; i++)
            json_array_append_new(list, json_integer(s->source[i]));
        json_array_append_new(all, list);
    }
    return all;
}

json_t *kvm_layout__r2_json(const kvm_translator *t, kvm_space space)
{
    json_t *list = json_array();
    for (ptrdiff_t l = 0; l < t->target.shapes.layers; l++) {
        const double r2 = t->steps[2 * l + (space == KVM_SPACE_V)].r2_fit;
        json_array_append_new(list, isfinite(r2) ? json_real(r2) : json_null());
    }
    return list;
}

/* ---- writing ---- */

static kvm_str tensor_name(kvm_arena *keep, const char *prefix, ptrdiff_t layer)
{
    return kvm_str_fmt(keep, "%s.%td", prefix, layer);
}

/* the step's W (O,I) as rows of the layout's tensor; w is f32 (O,I) */
static kvm_status append_weight(const kvm_step *s, const kvm_layout_names *names,
                                ptrdiff_t heads, const float *w, float *row,
                                kvm_dtype dtype, kvm_st_writer *out, kvm_err *err)
{
    const ptrdiff_t blocks = names->heads_outermost ? heads : 1;
    const ptrdiff_t cols = s->outputs / blocks;
    for (ptrdiff_t h = 0; h < blocks; h++)
        for (ptrdiff_t i = 0; i < s->inputs; i++) {
            for (ptrdiff_t j = 0; j < cols; j++)
                row[j] = w[(h * cols + j) * s->inputs + i];
            TRY(kvm_step__append(out, dtype, row, cols, err));
        }
    return KVM_OK;
}

static kvm_status append_all(const kvm_translator *t, const kvm_layout_names *names,
                             kvm_dtype dtype, kvm_st_writer *out, kvm_arena scratch,
                             kvm_err *err)
{
    for (ptrdiff_t i = 0; i < t->count; i++) {
        const kvm_step *s = &t->steps[i];
        kvm_arena room = scratch;
        float *w = kvm_new_raw(&room, float, s->outputs * s->inputs);
        float *row = kvm_new_raw(&room, float, s->outputs);
        if (!w || !row) return kvm_nomem(err, &room);
        TRY(kvm_step__widen(w, &s->weight[0], 0, s->outputs * s->inputs, err));
        TRY(append_weight(s, names, kvm_layout__shape(&t->target).heads, w, row, dtype,
                          out, err));
        TRY(kvm_step__append(out, dtype, s->bias[0], s->outputs, err));
    }
    return KVM_OK;
}

kvm_status kvm_layout__write(const kvm_translator *t, const kvm_layout_names *names,
                             kvm_dtype dtype, const json_t *meta, kvm_str path,
                             kvm_arena scratch, char sha_hex[65], kvm_err *err)
{
    if (dtype != KVM_F32 && dtype != KVM_BF16)
        return kvm_fail(err, KVM_DTYPE, "a mapper is stored as F32 or BF16, not %s",
                        kvm_dtype_name(dtype));
    kvm_arena own = {0};
    TRY(kvm_arena_init(&own, (size_t)16 << 20, err));
    kvm_status s = KVM_OK;
    kvm_st_spec *spec = kvm_new(&own, kvm_st_spec, 2 * t->count);
    if (!spec) s = kvm_nomem(err, &own);
    for (ptrdiff_t i = 0; !s && i < t->count; i++) {
        const kvm_step *step = &t->steps[i];
        const kvm_row_shape r = kvm_layout__shape(&t->target);
        const kvm_str w = tensor_name(&own, names->weight[i % 2], step->layer);
        const kvm_str b = tensor_name(&own, names->bias[i % 2], step->layer);
        spec[2 * i] = names->heads_outermost
                          ? (kvm_st_spec){w, dtype, 3, {r.heads, step->inputs, r.dim}}
                          : (kvm_st_spec){w, dtype, 2, {step->inputs, step->outputs}};
        spec[2 * i + 1] = names->heads_outermost
                              ? (kvm_st_spec){b, dtype, 2, {r.heads, r.dim}}
                              : (kvm_st_spec){b, dtype, 1, {step->outputs}};
        if (!w.at || !b.at) s = kvm_nomem(err, &own);
    }
    kvm_st_writer *out = NULL;
    if (!s) s = kvm_st_begin(&out, &own, path, spec, 2 * t->count, meta, err);
    if (!s) s = append_all(t, names, dtype, out, scratch, err);
    if (!s) s = kvm_st_publish(out, sha_hex, err);
    kvm_arena_free(&own);
    return s;
}

/* ---- reading ---- */

kvm_status kvm_layout__side(kvm_side_info *side, kvm_arena *keep, int64_t layers,
                            int64_t heads, int64_t dim, const char *file, kvm_err *err)
{
    enum { MOST_LAYERS = 4096, MOST = 1 << 16 };
    if (layers < 1 || layers > MOST_LAYERS || heads < 1 || heads > MOST || dim < 1 ||
        dim > MOST)
        return kvm_fail(err, KVM_FORMAT, "%s: %lld layers of %lld heads of %lld", file,
                        (long long)layers, (long long)heads, (long long)dim);
    kvm_row_shape *s = kvm_new(keep, kvm_row_shape, layers);
    if (!s) return kvm_nomem(err, keep);
    for (ptrdiff_t l = 0; l < layers; l++)
        s[l] = (kvm_row_shape){(ptrdiff_t)heads, (ptrdiff_t)dim, 0};
    side->shapes = kvm_shapes_kv((ptrdiff_t)layers, s, s);
    side->rope.factor = 1;
    side->rope_sha = KVM_STR("");
    return KVM_OK;
}

kvm_status kvm_layout__selected(kvm_jat list, const kvm_translator *t, kvm_arena *keep,
                                const int32_t ***out, ptrdiff_t *k, kvm_err *err)
{
    ptrdiff_t n;
    TRY(kvm_json_array(list, &n, err));
    if (n != t->target.shapes.layers)
        return kvm_fail(err, KVM_FORMAT, "%s: %s has %td lists for %td target layers",
                        list.file, list.path, n, t->target.shapes.layers);
    const int32_t **sources = kvm_new(keep, const int32_t *, n);
    if (!sources) return kvm_nomem(err, keep);
    for (ptrdiff_t l = 0; l < n; l++) {
        ptrdiff_t count;
        const kvm_jat item = kvm_json_item(list, keep, l);
        TRY(kvm_step__sources(item, t->source.shapes.layers, keep, &sources[l], &count,
                              err));
        if (l == 0) *k = count;
        if (count != *k)
            return kvm_fail(err, KVM_FORMAT,
                            "%s: %s has %td source layers, the first %td", item.file,
                            item.path, count, *k);
    }
    *out = sources;
    return KVM_OK;
}

static kvm_status read_step(const kvm_translator *t, const kvm_st *st,
                            const kvm_layout_names *names, kvm_step *s, kvm_arena *keep,
                            kvm_err *err)
{
    const kvm_row_shape r = kvm_layout__shape(&t->target);
    const int o = s->mapping.out == KVM_SPACE_V;
    const kvm_str name = tensor_name(keep, names->weight[o], s->layer);
    const kvm_str bias_name = tensor_name(keep, names->bias[o], s->layer);
    const ptrdiff_t by_head[] = {r.heads, s->inputs, r.dim};
    const ptrdiff_t flat[] = {s->inputs, s->outputs};
    const bool heads = names->heads_outermost;
    const kvm_st_tensor *w, *b;
    if (!name.at || !bias_name.at) return kvm_nomem(err, keep);
    TRY(kvm_st_need(st, name, KVM_DTYPES, heads ? 3 : 2, heads ? by_head : flat, &w,
                    err));
    TRY(kvm_st_need(st, bias_name, KVM_DTYPES, heads ? 2 : 1,
                    heads ? (const ptrdiff_t[]){r.heads, r.dim} : &s->outputs, &b,
                    err));
    const kvm_st_tensor *const part[] = {w, b};
    for (int i = 0; i < 2; i++) {
        const kvm_dtype d = part[i]->t.dtype;
        if (d != KVM_F32 && d != KVM_BF16)
            return kvm_fail(err, KVM_DTYPE, "%s: %.*s is %s, not F32 or BF16",
                            t->path.at, KVM_STR_ARG(part[i]->name), kvm_dtype_name(d));
        if (!kvm_step__finite(&part[i]->t, kvm_tensor_count(&part[i]->t)))
            return kvm_fail(err, KVM_NAN, "%s: %.*s is not finite", t->path.at,
                            KVM_STR_ARG(part[i]->name));
    }
    float *to = kvm_new_raw(keep, float, s->outputs * s->inputs);
    float *bias = kvm_new_raw(keep, float, s->outputs);
    float *row = kvm_new_raw(keep, float, s->outputs);
    if (!to || !bias || !row) return kvm_nomem(err, keep);
    const ptrdiff_t blocks = heads ? r.heads : 1, cols = s->outputs / blocks;
    for (ptrdiff_t h = 0; h < blocks; h++)
        for (ptrdiff_t i = 0; i < s->inputs; i++) {
            TRY(kvm_step__widen(row, &w->t, (h * s->inputs + i) * cols, cols, err));
            for (ptrdiff_t j = 0; j < cols; j++)
                to[(h * cols + j) * s->inputs + i] = row[j];
        }
    TRY(kvm_step__widen(bias, &b->t, 0, s->outputs, err));
    s->weight[0] = kvm_view3(to, KVM_F32, 1, s->outputs, s->inputs);
    s->bias[0] = bias;
    return KVM_OK;
}

kvm_status kvm_layout__read(kvm_translator *t, const kvm_st *st,
                            const kvm_layout_names *names,
                            const int32_t *const *sources, ptrdiff_t k, kvm_arena *keep,
                            kvm_err *err)
{
    const kvm_row_shape r = kvm_layout__shape(&t->target);
    kvm_step *steps = kvm_new(keep, kvm_step, 2 * t->target.shapes.layers);
    if (!steps) return kvm_nomem(err, keep);
    t->steps = steps;
    t->count = 2 * t->target.shapes.layers;
    for (ptrdiff_t i = 0; i < t->count; i++) {
        kvm_step *s = &steps[i];
        const kvm_space space = i % 2                         ? KVM_SPACE_V
                                : t->keys == KVM_KEYS_ROTATED ? KVM_SPACE_K_ROTATED
                                                              : KVM_SPACE_K;
        *s = (kvm_step){.mapping = kvm_mapping_same(space),
                        .layer = i / 2,
                        .map = KVM_MAP_RIDGE,
                        .sources = k,
                        .source = sources[i / 2],
                        .outputs = r.heads * r.dim,
                        .groups = 1,
                        .r2_fit = (double)NAN,
                        .r2_held = (double)NAN};
        s->inputs = kvm_step__inputs(t, s);
        TRY(read_step(t, st, names, s, keep, err));
    }
    if (kvm_st_count(st) != 2 * t->count)
        return kvm_fail(err, KVM_FORMAT, "%s: %td tensors for %td target layers",
                        t->path.at, kvm_st_count(st), t->target.shapes.layers);
    const kvm_status s = kvm_translator_check(t, err);
    return s ? kvm_err_prefix(err, s, "%s", t->path.at) : KVM_OK;
}
