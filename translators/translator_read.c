/* translator_read.c - reading the translator file, whose layout translator.h sets
 * down. */
#include <math.h>
#include <string.h>

#include "translators/meta.h"
#include "translators/translator_internal.h"

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
    const kvm_jat scale = kvm_json_get(rotary, keep, "factor");
    TRY(kvm_json_f64(scale, &factor, err));
    TRY(kvm_json_f64(kvm_json_get(rotary, keep, "theta"), &s->theta, err));
    if (!kvm_rows_factor(&s->rope, factor))
        return kvm_json_fail(err, KVM_FORMAT, scale,
                             "is %g; a rotary scales by more than 0", factor);
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
    for (int p = 0; p < kvm_step__parts(s); p++) {
        const kvm_str weight = kvm_step__part_name(keep, s, p, false);
        const kvm_str bias = kvm_step__part_name(keep, s, p, true);
        if (!weight.at || !bias.at) return kvm_nomem(err, keep);
        const ptrdiff_t dim[] = {s->groups, rows[p], cols[p]},
                        n = kvm_step__bias_count(s, p);
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
    TRY(take_count(at, keep, "source", 0, t->source.shapes.layers - 1, &s->source,
                   err));
    TRY(take_real(at, keep, "r2_held", &s->r2_held, err));
    TRY(take_real(at, keep, "r2_window_held", &s->r2_window_held, err));
    if (s->map != KVM_STATE_BILINEAR) return KVM_OK;
    const ptrdiff_t any[] = {-1, -1, -1};
    const kvm_st_tensor *part[KVM_STATE_PARTS];
    for (int p = 0; p < KVM_STATE_PARTS; p++) {
        const kvm_str name = kvm_step__state_name(keep, s, p);
        if (!name.at) return kvm_nomem(err, keep);
        TRY(kvm_st_need(st, name, KVM_F32, kvm_state_parts[p].rank, any, &part[p],
                        err));
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
    *tensors += KVM_STATE_PARTS;
    return KVM_OK;
}

/* the format that the file's metadata has, said again beside what it is of */
static kvm_status take_format(kvm_translator *t, kvm_jat root, const char *want,
                              kvm_arena *keep, kvm_err *err)
{
    kvm_str format, word;
    const kvm_jat at = kvm_json_get(root, keep, "indexers");
    TRY(kvm_json_str(kvm_json_get(root, keep, "format"), &format, err));
    if (!kvm_str_eq(format, kvm_str_of(want)))
        return kvm_fail(err, KVM_FORMAT,
                        "%s: its metadata says %s, and beside the steps stands '%s': "
                        "the file was changed, export it again",
                        t->path.at, want, kvm_quote(format).at);
    TRY(kvm_json_str_or(at, KVM_STR("predicted"), &word, err));
    t->dense = kvm_str_eq(word, KVM_STR("dense"));
    if (t->dense == (strcmp(want, KVM_TRANSLATOR_FORMAT_DENSE) == 0) &&
        (t->dense || kvm_str_eq(word, KVM_STR("predicted"))))
        return KVM_OK;
    return kvm_fail(err, KVM_FORMAT, "%s: %s: '%s' does not go with %s", at.file,
                    at.path, kvm_quote(word).at, want);
}

static kvm_status take_header(kvm_translator *t, kvm_jat root, kvm_arena *keep,
                              kvm_err *err)
{
    kvm_str keys, token;
    const kvm_jat at = kvm_json_get(root, keep, "keys");
    const kvm_jat told = kvm_json_get(root, keep, "token");
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
    const kvm_str said = kvm_st_meta(st, KVM_STR("format"));
    const bool dense =
        said.at && kvm_str_eq(said, KVM_STR(KVM_TRANSLATOR_FORMAT_DENSE));
    const char *want = dense ? KVM_TRANSLATOR_FORMAT_DENSE : KVM_TRANSLATOR_FORMAT;
    TRY(kvm_meta_format(st, want, err));
    TRY(kvm_meta_str(st, "kvmill", &text, err));
    TRY(kvm_json_parse(&root, keep, text, t.path, err));
    TRY(take_format(&t, root, want, keep, err));
    TRY(take_header(&t, root, keep, err));
    const kvm_jat steps = kvm_json_get(root, keep, "steps");
    const kvm_jat states = kvm_json_get(root, keep, "states");
    TRY(kvm_json_array(steps, &t.count, err));
    TRY(kvm_json_array(states, &t.state_count, err));
    if (t.count > (ptrdiff_t)KVM_SPACES * t.target.shapes.layers ||
        t.state_count > t.target.shapes.layers)
        return kvm_fail(err, KVM_MISMATCH,
                        "%s: %td and %td steps for %td target layers", t.path.at,
                        t.count, t.state_count, t.target.shapes.layers);
    kvm_step *step = kvm_new(keep, kvm_step, t.count);
    kvm_state_step *state = kvm_new(keep, kvm_state_step, t.state_count);
    if (!step || !state) return kvm_nomem(err, keep);
    ptrdiff_t tensors = 0;
    for (ptrdiff_t i = 0; i < t.count; i++) {
        TRY(take_step(&t, kvm_json_item(steps, keep, i), st, keep, &step[i], err));
        tensors += 2 * (ptrdiff_t)kvm_step__parts(&step[i]);
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
