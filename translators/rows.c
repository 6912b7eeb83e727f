#include "translators/rows.h"

#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "base/hash.h"
#include "translators/meta.h"
#include "translators/rows_internal.h"

const kvm_space_row kvm_space_rows[KVM_SPACES] = {
#define X(id, name, text, object, other, point, stored, what)                          \
    [id] = {text, object, other, point, stored, what},
#include "translators/spaces.def"
#undef X
};

const char *kvm_space_name(kvm_space s)
{
    return kvm_space_rows[s].name;
}

bool kvm_space_derived(kvm_space s)
{
    return kvm_space_rows[s].stored != s;
}

bool kvm_space_once(kvm_space s)
{
    return s == KVM_SPACE_STATE || s == KVM_SPACE_WINDOW;
}

kvm_status kvm_space_of_name(kvm_str name, kvm_space *s)
{
    for (int i = 0; i < KVM_SPACES; i++) {
        if (!kvm_str_eq(name, kvm_str_of(kvm_space_rows[i].name))) continue;
        *s = (kvm_space)i;
        return KVM_OK;
    }
    return KVM_NOTFOUND;
}

const char *kvm_split_name(kvm_split s)
{
    return s == KVM_FIT ? "fit" : s == KVM_CHOOSE ? "choose" : "held";
}

/* ---- describing a model ---- */

kvm_shapes kvm_shapes_kv(ptrdiff_t layers, const kvm_row_shape *k,
                         const kvm_row_shape *v)
{
    kvm_shapes s = {.layers = layers};
    s.of[KVM_SPACE_K] = s.of[KVM_SPACE_K_ROTATED] = k;
    s.of[KVM_SPACE_V] = v;
    return s;
}

ptrdiff_t kvm_shapes_width(const kvm_shapes *s, kvm_space space, ptrdiff_t layer)
{
    const kvm_row_shape *of = s->of[space];
    return of ? of[layer].heads * of[layer].dim : 0;
}

kvm_row_shape kvm_space_part(kvm_space s, const kvm_object *o)
{
    const kvm_space_row *r = &kvm_space_rows[s];
    if (o->kind != r->object && o->kind != r->other) return (kvm_row_shape){0};
    if (!kvm_object_per_prompt(o)) return (kvm_row_shape){o->heads, o->dim, 0};
    if (r->point == KVM_POINT_RAW) return (kvm_row_shape){o->replay > 0, o->replay, 0};
    const ptrdiff_t outer = o->shape[0];
    return (kvm_row_shape){outer, o->heads * o->dim / outer,
                           s == KVM_SPACE_STATE ? o->shape[1] : 0};
}

static kvm_status shapes_of(const kvm_row_shape **out, kvm_arena *keep,
                            const kvm_model *m, kvm_space space, kvm_err *err)
{
    const kvm_model_info *info = kvm_model_info_of(m);
    bool any = space == KVM_SPACE_TOKEN;
    kvm_row_shape *s = kvm_new(keep, kvm_row_shape, info->layers);
    if (!s) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i < info->objects; i++) {
        const kvm_object *o = kvm_model_object(m, i);
        const kvm_row_shape part = kvm_space_part(space, o);
        if (part.dim == 0) continue;
        s[o->layer].heads = part.heads;
        s[o->layer].keys = part.keys;
        s[o->layer].dim += part.dim; /* both have one head where there are two */
        any = true;
    }
    if (space == KVM_SPACE_TOKEN) s[0] = (kvm_row_shape){1, info->hidden, 0};
    *out = any ? s : NULL;
    return KVM_OK;
}

kvm_status kvm_rows_shapes(kvm_shapes *s, kvm_arena *keep, const kvm_model *m,
                           kvm_err *err)
{
    *s = (kvm_shapes){.layers = kvm_model_info_of(m)->layers};
    for (int i = 0; i < KVM_SPACES; i++) {
        const kvm_space space = (kvm_space)i;
        if (!kvm_space_derived(space)) TRY(shapes_of(&s->of[i], keep, m, space, err));
    }
    for (int i = 0; i < KVM_SPACES; i++) s->of[i] = s->of[kvm_space_rows[i].stored];
    for (ptrdiff_t i = 0; i < kvm_model_info_of(m)->objects; i++)
        s->ngrams |= kvm_model_object(m, i)->kind == KVM_OBJECT_LAST_IDS;
    return KVM_OK;
}

static kvm_status rope_of_keys(kvm_rope *rope, const kvm_model *m, kvm_err *err)
{
    const kvm_object *first = NULL;
    *rope = (kvm_rope){.factor = 1};
    for (ptrdiff_t i = 0; i < kvm_model_info_of(m)->objects; i++) {
        const kvm_object *o = kvm_model_object(m, i);
        if (o->kind != KVM_OBJECT_K || !o->rotary) continue;
        if (!first) *rope = o->rope;
        if (!first) first = o;
        if (!kvm_rows__same_rope(rope, &o->rope))
            return kvm_fail(err, KVM_UNSUPPORTED,
                            "%s: layer %td has another rotary than layer %td",
                            kvm_model_info_of(m)->name.at, o->layer, first->layer);
    }
    return KVM_OK;
}

kvm_status kvm_rows_describe(kvm_rows_info *info, kvm_arena *keep, const kvm_model *m,
                             kvm_spaces which, kvm_err *err)
{
    const kvm_model_info *mi = kvm_model_info_of(m);
    *info = (kvm_rows_info){.model = kvm_str_copy(keep, kvm_str_of(mi->fingerprint)),
                            .model_name = kvm_str_copy(keep, mi->name),
                            .stride = 1,
                            .dtype = KVM_F32};
    TRY(rope_of_keys(&info->rope, m, err));
    TRY(kvm_rows_shapes(&info->shapes, keep, m, err));
    bool any = false;
    for (int s = 0; s < KVM_SPACES; s++) {
        if (!(which >> kvm_space_rows[s].stored & 1)) info->shapes.of[s] = NULL;
        any |= info->shapes.of[s] != NULL;
    }
    if (!any)
        return kvm_fail(err, KVM_UNSUPPORTED,
                        "%.*s: its layers keep none of the rows that are asked for",
                        KVM_STR_ARG(mi->name));
    const kvm_tokenizer *t = kvm_model_tokenizer(m);
    info->tokenizer = kvm_str_copy(keep, kvm_str_of(t ? kvm_tokenizer_hash(t) : ""));
    if (!info->model.at || !info->model_name.at || !info->tokenizer.at)
        return kvm_nomem(err, keep);
    return KVM_OK;
}

bool kvm_rows_factor(kvm_rope *r, double factor)
{
    enum { MOST = 1000000 }; /* as of configs: what stretches contexts is far below */
    if (!(factor > 1.0 / MOST && factor < MOST)) return false;
    r->factor = (float)factor;
    return true;
}

bool kvm_rows__same_rope(const kvm_rope *a, const kvm_rope *b)
{
    return a->width == b->width && a->interleaved == b->interleaved &&
           a->factor == b->factor &&
           (a->width == 0 || memcmp(a->inv_freq, b->inv_freq,
                                    sizeof(float) * (size_t)(a->width / 2)) == 0);
}

/* ---- opening ---- */

struct kvm_rows {
    kvm_rows_info info;
    kvm_str path;
    ptrdiff_t count, sequences;
    const int32_t *position, *sequence;
    kvm_tensor *row[KVM_SPACES]; /* (layers) each, by stored space; NULL: none */
};

kvm_str kvm_rows__name(kvm_arena *keep, kvm_space s, ptrdiff_t layer)
{
    return kvm_str_fmt(keep, "%s.%td", kvm_space_name(s), layer);
}

static kvm_status read_rope(kvm_rows *r, const kvm_st *st, kvm_err *err)
{
    int64_t width, interleaved;
    double factor;
    TRY(kvm_meta_i64(st, "rope.width", 0, 1 << 20, &width, err));
    TRY(kvm_meta_i64(st, "rope.interleaved", 0, 1, &interleaved, err));
    TRY(kvm_meta_f64(st, "rope.factor", &factor, err));
    if (width == 0) factor = 1;
    r->info.rope =
        (kvm_rope){.width = (ptrdiff_t)width, .interleaved = interleaved == 1};
    bool fits = width % 2 == 0 && kvm_rows_factor(&r->info.rope, factor);
    const kvm_row_shape *k = r->info.shapes.of[KVM_SPACE_K];
    for (ptrdiff_t l = 0; k && l < r->info.shapes.layers; l++)
        fits &= k[l].heads == 0 || width <= k[l].dim;
    if (!fits)
        return kvm_fail(
            err, KVM_FORMAT,
            "%s: a rotary of width %lld and factor %g does not fit the keys",
            r->path.at, (long long)width, factor);
    if (width == 0) return KVM_OK;
    const kvm_st_tensor *t;
    const ptrdiff_t dim[] = {(ptrdiff_t)width / 2};
    TRY(kvm_st_need(st, KVM_STR("rope.inv_freq"), KVM_F32, 1, dim, &t, err));
    r->info.rope.inv_freq = t->t.data;
    for (ptrdiff_t i = 0; i < dim[0]; i++)
        if (!isfinite(r->info.rope.inv_freq[i]))
            return kvm_fail(err, KVM_NAN, "%s: rope.inv_freq[%td] is not finite",
                            r->path.at, i);
    return KVM_OK;
}

static kvm_status read_index(kvm_rows *r, const kvm_st *st, kvm_err *err)
{
    const ptrdiff_t any[] = {-1};
    const kvm_st_tensor *t;
    TRY(kvm_st_need(st, KVM_STR("position"), KVM_I32, 1, any, &t, err));
    r->position = t->t.data;
    r->count = t->t.dim[0];
    TRY(kvm_st_need(st, KVM_STR("sequence"), KVM_I32, 1, &r->count, &t, err));
    r->sequence = t->t.data;
    if (r->count < 1)
        return kvm_fail(err, KVM_FORMAT, "%s: the capture has no rows", r->path.at);
    for (ptrdiff_t i = 0; i < r->count; i++) {
        const bool fresh = i == 0 || r->sequence[i] > r->sequence[i - 1];
        r->sequences += fresh;
        const bool ordered = fresh || (r->sequence[i] == r->sequence[i - 1] &&
                                       r->position[i] > r->position[i - 1]);
        if (!ordered || r->position[i] < 0 || r->sequence[i] < 0)
            return kvm_fail(err, KVM_FORMAT,
                            "%s: row %td (sequence %d, position %d) is out of order",
                            r->path.at, i, (int)r->sequence[i], (int)r->position[i]);
    }
    return KVM_OK;
}

static kvm_status read_space(kvm_rows *r, kvm_arena *keep, const kvm_st *st,
                             kvm_space s, kvm_err *err)
{
    const ptrdiff_t layers = r->info.shapes.layers;
    kvm_tensor *row = r->row[s] = kvm_new(keep, kvm_tensor, layers);
    if (!row) return kvm_nomem(err, keep);
    for (ptrdiff_t l = 0; l < layers; l++) {
        const ptrdiff_t dim[] = {kvm_space_once(s) ? r->sequences : r->count,
                                 kvm_shapes_width(&r->info.shapes, s, l)};
        if (dim[1] == 0) continue;
        const kvm_str name = kvm_rows__name(keep, s, l);
        if (!name.at) return kvm_nomem(err, keep);
        const kvm_st_tensor *t;
        const bool once = kvm_space_once(s);
        TRY(kvm_st_need(st, name, once ? KVM_F32 : KVM_DTYPES, 2, dim, &t, err));
        row[l] = t->t;
        if (once) continue;
        if (r->info.dtype == KVM_DTYPES) r->info.dtype = t->t.dtype;
        if (t->t.dtype != r->info.dtype ||
            (t->t.dtype != KVM_F32 && t->t.dtype != KVM_BF16))
            return kvm_fail(err, KVM_DTYPE,
                            "%s: %s is %s, expected F32 or BF16 throughout", r->path.at,
                            name.at, kvm_dtype_name(t->t.dtype));
    }
    return KVM_OK;
}

static kvm_status read_from(kvm_rows **out, kvm_arena *keep, const kvm_st *st,
                            kvm_err *err)
{
    kvm_rows *r = kvm_new(keep, kvm_rows, 1);
    if (!r) return kvm_nomem(err, keep);
    r->path = kvm_st_path(st);
    TRY(kvm_meta_format(st, KVM_CAPTURE_FORMAT, err));
    int64_t stride, tokens;
    TRY(kvm_meta_i64(st, "stride", 1, INT32_MAX, &stride, err));
    TRY(kvm_meta_i64(st, "tokens", 1, INT32_MAX, &tokens, err));
    r->info.stride = (ptrdiff_t)stride;
    r->info.tokens = (ptrdiff_t)tokens;
    TRY(kvm_meta_str(st, "model", &r->info.model, err));
    TRY(kvm_meta_str(st, "model_name", &r->info.model_name, err));
    TRY(kvm_meta_str(st, "text", &r->info.text, err));
    TRY(kvm_meta_str(st, "tokenizer", &r->info.tokenizer, err));
    TRY(kvm_meta_shapes(st, "", keep, &r->info.shapes, err));
    TRY(read_rope(r, st, err));
    TRY(read_index(r, st, err));
    r->info.dtype = KVM_DTYPES;
    for (int s = 0; s < KVM_SPACES; s++)
        if (r->info.shapes.of[s] && !kvm_space_derived((kvm_space)s))
            TRY(read_space(r, keep, st, (kvm_space)s, err));
    *out = r;
    return KVM_OK;
}

kvm_status kvm_rows_open(kvm_rows **r, kvm_arena *keep, kvm_str path, kvm_err *err)
{
    kvm_st *st;
    TRY(kvm_st_open(&st, keep, path, err));
    return read_from(r, keep, st, err);
}

kvm_status kvm_rows_parse(kvm_rows **r, kvm_arena *keep, kvm_str bytes, kvm_str name,
                          kvm_err *err)
{
    kvm_st *st;
    TRY(kvm_st_parse(&st, keep, bytes, name, err));
    return read_from(r, keep, st, err);
}

const kvm_rows_info *kvm_rows_info_of(const kvm_rows *r)
{
    return &r->info;
}

kvm_str kvm_rows_path(const kvm_rows *r)
{
    return r->path;
}

ptrdiff_t kvm_rows_count(const kvm_rows *r)
{
    return r->count;
}

ptrdiff_t kvm_rows_sequences(const kvm_rows *r)
{
    return r->sequences;
}

const int32_t *kvm_rows_position(const kvm_rows *r)
{
    return r->position;
}

const int32_t *kvm_rows_sequence(const kvm_rows *r)
{
    return r->sequence;
}

kvm_row_shape kvm_rows_shape(const kvm_rows *r, kvm_space s, ptrdiff_t layer)
{
    const kvm_row_shape *of = r->info.shapes.of[s];
    return of ? of[layer] : (kvm_row_shape){0};
}

kvm_status kvm_rows_same(const kvm_rows *a, const kvm_rows *b, kvm_err *err)
{
    const char *pa = a->path.at, *pb = b->path.at;
    const struct {
        const char *what, *remedy;
        kvm_str a, b;
    } text[] = {
        {"text set", "capture both on one text set", a->info.text, b->info.text},
        {"tokenizer", "only models of one tokenizer can be paired", a->info.tokenizer,
         b->info.tokenizer},
    };
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        if (!kvm_str_eq(text[i].a, text[i].b))
            return kvm_fail(err, KVM_MISMATCH, "%s and %s differ in %s (%s, %s); %s",
                            pa, pb, text[i].what, kvm_quote(text[i].a).at,
                            kvm_quote(text[i].b).at, text[i].remedy);
    if (a->info.stride != b->info.stride)
        return kvm_fail(err, KVM_MISMATCH, "%s has stride %td, %s has %td", pa,
                        a->info.stride, pb, b->info.stride);
    const ptrdiff_t n = a->count < b->count ? a->count : b->count;
    for (ptrdiff_t i = 0; i < n; i++)
        if (a->sequence[i] != b->sequence[i] || a->position[i] != b->position[i])
            return kvm_fail(
                err, KVM_MISMATCH,
                "%s and %s differ at row %td: (sequence %d, position %d) and "
                "(%d, %d)",
                pa, pb, i, (int)a->sequence[i], (int)a->position[i],
                (int)b->sequence[i], (int)b->position[i]);
    if (a->count != b->count)
        return kvm_fail(err, KVM_MISMATCH, "%s has %td rows, %s has %td", pa, a->count,
                        pb, b->count);
    return KVM_OK;
}

/* ---- reading rows ---- */

enum { READ_ROWS = 64 };

typedef struct read_job {
    const kvm_tensor *row; /* of the first layer */
    ptrdiff_t layers, from, n, ld;
    const ptrdiff_t *index;
    float *out;
} read_job;

/* pool part: READ_ROWS rows of all layers, widened side by side */
static void read_part(void *ctx, ptrdiff_t part, int thread)
{
    (void)thread;
    const read_job *j = ctx;
    const ptrdiff_t end = (part + 1) * READ_ROWS < j->n ? (part + 1) * READ_ROWS : j->n;
    for (ptrdiff_t i = part * READ_ROWS; i < end; i++) {
        const ptrdiff_t at = j->index ? j->index[i] : j->from + i;
        float *to = j->out + i * j->ld;
        for (ptrdiff_t l = 0; l < j->layers; l++) {
            const kvm_tensor *t = &j->row[l];
            const ptrdiff_t w = t->dim[1]; /* 0: the layer has no rows */
            const char *from = (const char *)t->data +
                               at * w * (ptrdiff_t)kvm_dtype_block_bytes(t->dtype);
            /* F32 and BF16 cannot fail: they were checked at opening */
            const kvm_status s = kvm_widen_row(to, from, t->dtype, w, NULL);
            (void)s;
            to += w;
        }
    }
}

/* rotate rows of layers that lie side by side: equal heads in one call */
static kvm_status rotate(kvm_compute *c, const kvm_rows *r, ptrdiff_t layer,
                         ptrdiff_t count, const int32_t *pos, ptrdiff_t n, float *out,
                         ptrdiff_t ld, kvm_err *err)
{
    ptrdiff_t at = 0;
    for (ptrdiff_t l = layer, next; l < layer + count; l = next) {
        const kvm_row_shape *k = r->info.shapes.of[KVM_SPACE_K];
        const ptrdiff_t dim = k[l].dim;
        ptrdiff_t heads = 0;
        for (next = l; next < layer + count && k[next].dim == dim; next++)
            heads += k[next].heads;
        if (heads == 0) continue;
        kvm_tensor x = kvm_view3(out + at, KVM_F32, n, heads, dim);
        x.stride[0] = ld;
        TRY(kvm_op_rope(c, x, pos, &r->info.rope, false, err));
        at += heads * dim;
    }
    return KVM_OK;
}

kvm_status kvm_rows_read(kvm_compute *c, const kvm_rows *r, kvm_space s,
                         ptrdiff_t layer, ptrdiff_t count, ptrdiff_t from,
                         const ptrdiff_t *index, ptrdiff_t n, float *out, ptrdiff_t ld,
                         kvm_err *err)
{
    enum { CHUNK = 1024 };
    read_job j = {.row = r->row[kvm_space_rows[s].stored] + layer,
                  .layers = count,
                  .from = from,
                  .n = n,
                  .ld = ld,
                  .index = index,
                  .out = out};
    kvm_pool_run(kvm_compute_pool(c), (n + READ_ROWS - 1) / READ_ROWS, read_part, &j);
    if (!kvm_space_derived(s) || r->info.rope.width == 0) return KVM_OK;
    int32_t pos[CHUNK];
    for (ptrdiff_t i = 0; i < n; i += CHUNK) {
        const ptrdiff_t m = n - i < CHUNK ? n - i : CHUNK;
        for (ptrdiff_t t = 0; t < m; t++)
            pos[t] = r->position[index ? index[i + t] : from + i + t];
        TRY(rotate(c, r, layer, count, pos, m, out + i * ld, ld, err));
    }
    return KVM_OK;
}

/* ---- splitting ---- */

kvm_status kvm_split_sequences(kvm_split **out, ptrdiff_t sequences, uint64_t seed,
                               double fraction, kvm_arena *keep, kvm_err *err)
{
    if (!(fraction > 0 && fraction < 1) || sequences < KVM_LEAST_SEQUENCES)
        return kvm_fail(err, KVM_RANGE,
                        "cannot hold out a fraction of %g of %td sequences; hold out "
                        "a part between 0 and 1 of at least %d",
                        fraction, sequences, KVM_LEAST_SEQUENCES);
    ptrdiff_t kept = (ptrdiff_t)floor(fraction * (double)sequences + 0.5);
    kept = kept < 2 ? 2 : kept >= sequences ? sequences - 1 : kept;
    ptrdiff_t *order = kvm_new(keep, ptrdiff_t, sequences);
    kvm_split *of = kvm_new(keep, kvm_split, sequences);
    if (!order || !of) return kvm_nomem(err, keep);
    for (ptrdiff_t q = 0; q < sequences; q++) order[q] = q;
    kvm_rng rng = kvm_rng_seed(seed, 0x5EED5);
    kvm_rng_shuffle(&rng, order, sequences);
    for (ptrdiff_t q = 0; q < sequences; q++)
        of[order[q]] = q < kept / 2 ? KVM_CHOOSE : q < kept ? KVM_HELD : KVM_FIT;
    *out = of;
    return KVM_OK;
}

kvm_status kvm_rows_split(const kvm_rows *r, uint64_t seed, double fraction,
                          kvm_split split, kvm_arena *keep, ptrdiff_t **index,
                          ptrdiff_t *n, kvm_err *err)
{
    kvm_split *of;
    const kvm_status s =
        kvm_split_sequences(&of, r->sequences, seed, fraction, keep, err);
    if (s) return kvm_err_prefix(err, s, "%s", r->path.at);
    ptrdiff_t *rows = kvm_new(keep, ptrdiff_t, r->count);
    if (!rows) return kvm_nomem(err, keep);
    ptrdiff_t rank = -1, count = 0;
    for (ptrdiff_t i = 0; i < r->count; i++) {
        rank += i == 0 || r->sequence[i] != r->sequence[i - 1];
        if (of[rank] == split) rows[count++] = i;
    }
    *index = rows;
    *n = count;
    return KVM_OK;
}
