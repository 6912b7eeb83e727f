#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "translators/meta.h"
#include "translators/moments.h"
#include "translators/moments_internal.h"

typedef struct block {
    kvm_block_layout layout;
    const double **tile[KVM_SPLITS]; /* (panels a, panels b) */
} block;

/* one opened file */
typedef struct moments_file {
    kvm_st *st; /* NULL: there is none */
    bool cross;
    kvm_str capture[2], model[2], name[2]; /* of a and b */
    kvm_shapes shapes[2];
    ptrdiff_t rows[KVM_SPLITS];
    kvm_panels panels[KVM_SPACES][2];
    block *block; /* (blocks) */
    ptrdiff_t blocks;
    /* of the first block that a side's space stands in */
    const double *mean[KVM_SPACES][KVM_SPLITS][2];
    const double *square[KVM_SPACES][KVM_SPLITS][2];
} moments_file;

struct kvm_moments {
    moments_file gram, cross, own;
    int source; /* which side of the cross file the Gram's capture is: 0 = a */
    kvm_str hash;
    uint64_t seed; /* of the split */
    double fraction;
};

/* ---- opening ---- */

static kvm_status read_sides(moments_file *f, kvm_arena *keep, kvm_err *err)
{
    for (int i = 0; i < (f->cross ? 2 : 1); i++) {
        const char *side = i ? "b." : "a.";
        char key[32];
        const struct {
            const char *key;
            kvm_str *to;
        } text[] = {{"capture", &f->capture[i]},
                    {"model", &f->model[i]},
                    {"model_name", &f->name[i]}};
        for (size_t t = 0; t < sizeof text / sizeof *text; t++) {
            snprintf(key, sizeof key, "%s%s", side, text[t].key);
            TRY(kvm_meta_str(f->st, key, text[t].to, err));
        }
        TRY(kvm_meta_shapes(f->st, side, keep, &f->shapes[i], err));
        for (int s = 0; s < KVM_SPACES; s++)
            if (f->shapes[i].of[s])
                TRY(kvm_moments__panels(&f->panels[s][i], keep, f->shapes[i].of[s],
                                        f->shapes[i].layers, err));
    }
    return KVM_OK;
}

static kvm_status need(const moments_file *f, kvm_str name, int rank,
                       const ptrdiff_t *dim, kvm_arena *keep, const double **out,
                       kvm_err *err)
{
    const kvm_st_tensor *t;
    if (!name.at) return kvm_nomem(err, keep);
    TRY(kvm_st_need(f->st, name, KVM_F64, rank, dim, &t, err));
    *out = t->t.data;
    return KVM_OK;
}

static kvm_status read_vector(const moments_file *f, kvm_arena *keep, const char *what,
                              const block *b, kvm_split p, int side, const double **out,
                              kvm_err *err)
{
    const double *read;
    const ptrdiff_t dim[] = {side ? b->layout.b->width : b->layout.a->width};
    TRY(need(f, kvm_moments__name(keep, what, b->layout.id, p, -1, -1), 1, dim, keep,
             &read, err));
    if (!*out) *out = read;
    return KVM_OK;
}

static kvm_status read_sums(moments_file *f, kvm_arena *keep, block *b, kvm_split p,
                            kvm_err *err)
{
    const kvm_block_layout *l = &b->layout;
    b->tile[p] = kvm_new(keep, const double *, l->a->count * l->b->count);
    if (!b->tile[p]) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i < l->a->count; i++)
        for (ptrdiff_t j = l->half ? i : 0; j < l->b->count; j++) {
            const ptrdiff_t dim[] = {l->a->p[i].width, l->b->p[j].width};
            const kvm_str name =
                kvm_moments__name(keep, f->cross ? "cross" : "gram", l->id, p, i, j);
            TRY(need(f, name, 2, dim, keep, &b->tile[p][i * l->b->count + j], err));
        }
    static const char *const means[] = {"mean.a", "mean.b"};
    static const char *const squares[] = {"square.a", "square.b"};
    for (int i = 0; i < (l->half ? 1 : 2); i++) {
        const kvm_space s = i ? l->id.b : l->id.a;
        const int side = f->cross ? i : 0; /* a Gram has one capture */
        TRY(read_vector(f, keep, means[i], b, p, i, &f->mean[s][p][side], err));
        if (!l->half)
            TRY(read_vector(f, keep, squares[i], b, p, i, &f->square[s][p][side], err));
    }
    return KVM_OK;
}

static kvm_status read_blocks(moments_file *f, kvm_arena *keep, kvm_err *err)
{
    kvm_block_id id[KVM_BLOCKS];
    TRY(kvm_moments__read_blocks(f->st, id, &f->blocks, err));
    f->block = kvm_new(keep, block, f->blocks);
    if (!f->block) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i < f->blocks; i++) {
        const int b = f->cross;
        if (!f->shapes[0].of[id[i].a] || !f->shapes[b].of[id[i].b] ||
            (!f->cross && id[i].a > id[i].b))
            return kvm_fail(err, KVM_FORMAT,
                            "%s: a block of %s and %s, whose rows the "
                            "captures do not hold",
                            kvm_st_path(f->st).at, kvm_space_name(id[i].a),
                            kvm_space_name(id[i].b));
        f->block[i].layout = kvm_moments__layout(
            id[i], f->cross, &f->panels[id[i].a][0], &f->panels[id[i].b][b]);
    }
    return KVM_OK;
}

static kvm_status open_file(moments_file *f, kvm_arena *keep, kvm_str path, bool cross,
                            kvm_err *err)
{
    TRY(kvm_st_open(&f->st, keep, path, err));
    TRY(kvm_meta_format(f->st, KVM_MOMENTS_FORMAT, err));
    f->cross = cross;
    kvm_str kind;
    TRY(kvm_meta_str(f->st, "kind", &kind, err));
    if (!kvm_str_eq(kind, kvm_str_of(cross ? "cross" : "gram")))
        return kvm_fail(err, KVM_FORMAT, "%s: holds %s moments, expected %s",
                        kvm_st_path(f->st).at, kvm_quote(kind).at,
                        cross ? "cross" : "gram");
    TRY(read_sides(f, keep, err));
    TRY(read_blocks(f, keep, err));
    TRY(kvm_moments__read_rows(f->st, f->rows, err));
    for (int p = 0; p < KVM_SPLITS; p++)
        for (ptrdiff_t i = 0; i < f->blocks; i++)
            TRY(read_sums(f, keep, &f->block[i], (kvm_split)p, err));
    return KVM_OK;
}

static kvm_status same_meta(const moments_file *a, const moments_file *b,
                            const char *key, kvm_err *err)
{
    kvm_str x, y;
    TRY(kvm_meta_str(a->st, key, &x, err));
    TRY(kvm_meta_str(b->st, key, &y, err));
    if (kvm_str_eq(x, y)) return KVM_OK;
    return kvm_fail(err, KVM_MISMATCH, "%s has %s %s, %s has %s", kvm_st_path(a->st).at,
                    key, kvm_quote(x).at, kvm_st_path(b->st).at, kvm_quote(y).at);
}

/* SHA-256 over the captures, the split and the row counts: what the sums follow from */
static kvm_status identity(kvm_moments *m, kvm_arena *keep, kvm_err *err)
{
    kvm_str seed, fraction;
    char hex[65];
    int64_t number;
    TRY(kvm_meta_i64(m->cross.st, "split.seed", 0, INT64_MAX, &number, err));
    TRY(kvm_meta_f64(m->cross.st, "split.fraction", &m->fraction, err));
    if (!(m->fraction > 0 && m->fraction < 1))
        return kvm_fail(err, KVM_FORMAT, "%s: metadata `split.fraction` is %g",
                        kvm_st_path(m->cross.st).at, m->fraction);
    m->seed = (uint64_t)number;
    TRY(kvm_meta_str(m->cross.st, "split.seed", &seed, err));
    TRY(kvm_meta_str(m->cross.st, "split.fraction", &fraction, err));
    const kvm_str text =
        kvm_str_fmt(keep, "%.*s %.*s %.*s %.*s %td %td %td",
                    KVM_STR_ARG(m->cross.capture[m->source]),
                    KVM_STR_ARG(m->cross.capture[1 - m->source]), KVM_STR_ARG(seed),
                    KVM_STR_ARG(fraction), m->cross.rows[KVM_FIT],
                    m->cross.rows[KVM_CHOOSE], m->cross.rows[KVM_HELD]);
    if (!text.at) return kvm_nomem(err, keep);
    TRY(kvm_sha_of(text, hex, err));
    m->hash = kvm_str_copy(keep, kvm_str_of(hex));
    return m->hash.at ? KVM_OK : kvm_nomem(err, keep);
}

/* two files over the same split of the same rows */
static kvm_status same_rows(const moments_file *g, const moments_file *x, kvm_err *err)
{
    TRY(same_meta(g, x, "split.seed", err));
    TRY(same_meta(g, x, "split.fraction", err));
    if (memcmp(g->rows, x->rows, sizeof g->rows) == 0) return KVM_OK;
    return kvm_fail(err, KVM_MISMATCH, "%s and %s are not over the same rows",
                    kvm_st_path(g->st).at, kvm_st_path(x->st).at);
}

/* Where both are of one capture, they describe it alike. */
static kvm_status same_capture(const moments_file *g, const moments_file *x, int side,
                               kvm_err *err)
{
    bool same = kvm_str_eq(g->capture[0], x->capture[side]) &&
                g->shapes[0].layers == x->shapes[side].layers;
    for (int s = 0; same && s < KVM_SPACES; s++) {
        const kvm_row_shape *a = g->shapes[0].of[s], *b = x->shapes[side].of[s];
        same = !a == !b &&
               (!a || memcmp(a, b, sizeof *a * (size_t)g->shapes[0].layers) == 0);
    }
    if (same) return same_rows(g, x, err);
    return kvm_fail(err, KVM_MISMATCH,
                    "%s is of capture %.12s, %s pairs %.12s and %.12s",
                    kvm_st_path(g->st).at, g->capture[0].at, kvm_st_path(x->st).at,
                    x->capture[0].at, x->capture[1].at);
}

kvm_status kvm_moments_open(kvm_moments **out, kvm_arena *keep, kvm_str gram,
                            kvm_str cross, kvm_str own, kvm_err *err)
{
    kvm_moments *m = kvm_new(keep, kvm_moments, 1);
    if (!m) return kvm_nomem(err, keep);
    TRY(open_file(&m->gram, keep, gram, false, err));
    TRY(open_file(&m->cross, keep, cross, true, err));
    m->source = !kvm_str_eq(m->gram.capture[0], m->cross.capture[0]);
    TRY(same_capture(&m->gram, &m->cross, m->source, err));
    if (own.at) {
        TRY(open_file(&m->own, keep, own, false, err));
        TRY(same_capture(&m->own, &m->cross, 1 - m->source, err));
    }
    TRY(identity(m, keep, err));
    *out = m;
    return KVM_OK;
}

/* ---- facts ---- */

static int side_of(const kvm_moments *m, kvm_side side)
{
    return side == KVM_SOURCE ? m->source : 1 - m->source;
}

kvm_str kvm_moments_model(const kvm_moments *m, kvm_side side)
{
    return m->cross.model[side_of(m, side)];
}

kvm_str kvm_moments_model_name(const kvm_moments *m, kvm_side side)
{
    return m->cross.name[side_of(m, side)];
}

kvm_str kvm_moments_hash(const kvm_moments *m)
{
    return m->hash;
}

void kvm_moments_split(const kvm_moments *m, uint64_t *seed, double *fraction)
{
    *seed = m->seed;
    *fraction = m->fraction;
}

const kvm_shapes *kvm_moments_shapes(const kvm_moments *m, kvm_side side)
{
    return &m->cross.shapes[side_of(m, side)];
}

ptrdiff_t kvm_moments_layers(const kvm_moments *m, kvm_side side)
{
    return kvm_moments_shapes(m, side)->layers;
}

kvm_row_shape kvm_moments_shape(const kvm_moments *m, kvm_side side, kvm_space s,
                                ptrdiff_t layer)
{
    const kvm_row_shape *of = kvm_moments_shapes(m, side)->of[s];
    return of ? of[layer] : (kvm_row_shape){0};
}

ptrdiff_t kvm_moments_rows(const kvm_moments *m, kvm_split split)
{
    return m->cross.rows[split];
}

ptrdiff_t kvm_features_width(const kvm_moments *m, kvm_features x)
{
    ptrdiff_t w = 0;
    for (ptrdiff_t i = 0; i < x.count; i++) {
        const kvm_feature *f = &x.item[i];
        const kvm_row_shape r = kvm_moments_shape(m, f->side, f->space, f->layer);
        w += (x.head < 0 ? r.heads : 1) * r.dim;
    }
    return w;
}

/* ---- gathering ---- */

/* the block of a file whose products are of space a and space b; turned: its b side is
 * our a */
static const block *find_block(const moments_file *f, kvm_space a, kvm_space b,
                               bool turned)
{
    for (ptrdiff_t i = 0; f->st && i < f->blocks; i++) {
        const kvm_block_id id = f->block[i].layout.id;
        if (turned ? id.a == b && id.b == a : id.a == a && id.b == b)
            return &f->block[i];
    }
    return NULL;
}

/* Where the products of two layers' rows lie. */
typedef struct place {
    const moments_file *file;
    const block *block;
    bool turned; /* rows of the block are the second's */
} place;

static place find(const kvm_moments *m, kvm_feature a, kvm_feature b)
{
    place p = {.file = &m->cross};
    if (a.side == b.side) {
        p.file = a.side == KVM_SOURCE ? &m->gram : &m->own;
        p.turned = a.space > b.space; /* a Gram keeps one half */
    } else {
        p.turned = (a.side == KVM_SOURCE) != (m->source == 0);
    }
    p.block = find_block(p.file, a.space, b.space, p.turned);
    return p;
}

static kvm_feature as_feature(kvm_output y)
{
    return (kvm_feature){KVM_TARGET, y.space, y.layer};
}

kvm_status kvm_moments_has(const kvm_moments *m, kvm_features x, kvm_output y,
                           kvm_err *err)
{
    const kvm_feature out = as_feature(y);
    for (ptrdiff_t i = 0; i < x.count; i++)
        for (ptrdiff_t j = i; j <= x.count; j++) {
            const kvm_feature *a = &x.item[i], *b = j < x.count ? &x.item[j] : &out;
            const place p = find(m, *a, *b);
            if (p.block &&
                kvm_moments_shape(m, a->side, a->space, a->layer).heads > 0 &&
                kvm_moments_shape(m, b->side, b->space, b->layer).heads > 0)
                continue;
            return kvm_fail(err, KVM_MISMATCH,
                            "%s: no products of %s of %s layer %td with %s of %s layer "
                            "%td",
                            kvm_st_path(p.file->st ? p.file->st : m->cross.st).at,
                            kvm_space_name(a->space),
                            a->side == KVM_SOURCE ? "source" : "target", a->layer,
                            kvm_space_name(b->space),
                            b->side == KVM_SOURCE ? "source" : "target", b->layer);
        }
    return KVM_OK;
}

/* a run of features: which panel it lies in, where, how many */
typedef struct run {
    ptrdiff_t panel, at, width; /* `at` within the panel */
} run;

static run layer_run(const kvm_panels *p, const kvm_row_shape *shape, ptrdiff_t layer,
                     ptrdiff_t head)
{
    run r = {0};
    while (layer >= p->p[r.panel].layer + p->p[r.panel].layers) r.panel++;
    for (ptrdiff_t l = p->p[r.panel].layer; l < layer; l++)
        r.at += shape[l].heads * shape[l].dim;
    r.width = shape[layer].heads * shape[layer].dim;
    if (head >= 0) {
        r.at += head * shape[layer].dim;
        r.width = shape[layer].dim;
    }
    return r;
}

static run run_of(const kvm_moments *m, kvm_feature f, ptrdiff_t head)
{
    const int side = side_of(m, f.side);
    return layer_run(&m->cross.panels[f.space][side], m->cross.shapes[side].of[f.space],
                     f.layer, head);
}

/* out (a.width, b.width), rows ld apart, = the tile's block, which lies transposed when
 * the tile's panels stand the other way round */
static void copy_block(const double *tile, ptrdiff_t pitch, run a, run b, bool turned,
                       double *out, ptrdiff_t ld)
{
    for (ptrdiff_t i = 0; i < a.width; i++)
        for (ptrdiff_t j = 0; j < b.width; j++)
            out[i * ld + j] = turned ? tile[(b.at + j) * pitch + a.at + i]
                                     : tile[(a.at + i) * pitch + b.at + j];
}

/* products of two runs into out (ra.width, rb.width) */
static void copy_products(const kvm_moments *m, kvm_split split, kvm_feature a, run ra,
                          kvm_feature b, run rb, double *out, ptrdiff_t ld)
{
    const place p = find(m, a, b);
    assert(p.block); /* of a mapping that the file was made for */
    const kvm_block_layout *l = &p.block->layout;
    bool turned = p.turned;
    if (l->half && ra.panel > rb.panel) turned = !turned;
    const ptrdiff_t i = turned ? rb.panel : ra.panel, j = turned ? ra.panel : rb.panel;
    copy_block(p.block->tile[split][i * l->b->count + j], l->b->p[j].width, ra, rb,
               turned, out, ld);
}

void kvm_moments_get_gram(const kvm_moments *m, kvm_split split, kvm_features x,
                          double *g)
{
    const ptrdiff_t width = kvm_features_width(m, x);
    ptrdiff_t row = 0;
    for (ptrdiff_t i = 0; i < x.count; i++) {
        const run a = run_of(m, x.item[i], x.head);
        ptrdiff_t col = 0;
        for (ptrdiff_t j = 0; j < x.count; j++) {
            const run b = run_of(m, x.item[j], x.head);
            copy_products(m, split, x.item[i], a, x.item[j], b, g + row * width + col,
                          width);
            col += b.width;
        }
        row += a.width;
    }
}

void kvm_moments_get_cross(const kvm_moments *m, kvm_split split, kvm_features x,
                           kvm_output y, ptrdiff_t from, ptrdiff_t p, double *out,
                           ptrdiff_t ld)
{
    run to = run_of(m, as_feature(y), -1);
    to.at += from;
    to.width = p;
    ptrdiff_t row = 0;
    for (ptrdiff_t i = 0; i < x.count; i++) {
        const run r = run_of(m, x.item[i], x.head);
        copy_products(m, split, x.item[i], r, as_feature(y), to, out + row * ld, ld);
        row += r.width;
    }
}

/* the mean of a side's space in the file that is at hand, or in the cross file */
static const double *mean_of(const kvm_moments *m, kvm_side side, kvm_space s,
                             kvm_split split)
{
    const moments_file *one = side == KVM_SOURCE ? &m->gram : &m->own;
    const double *mean = one->st ? one->mean[s][split][0] : NULL;
    return mean ? mean : m->cross.mean[s][split][side_of(m, side)];
}

void kvm_moments_get_mean(const kvm_moments *m, kvm_split split, kvm_features x,
                          double *mean)
{
    for (ptrdiff_t i = 0; i < x.count; i++) {
        const kvm_feature *f = &x.item[i];
        const run r = run_of(m, *f, x.head);
        const kvm_panels *p = &m->cross.panels[f->space][side_of(m, f->side)];
        memcpy(mean, mean_of(m, f->side, f->space, split) + p->p[r.panel].at + r.at,
               sizeof *mean * (size_t)r.width);
        mean += r.width;
    }
}

void kvm_moments_get_target(const kvm_moments *m, kvm_split split, kvm_output y,
                            ptrdiff_t from, ptrdiff_t p, double *square, double *mean)
{
    const int b = 1 - m->source;
    const bool paired = m->cross.square[y.space][split][b] != NULL;
    const moments_file *f = paired ? &m->cross : &m->own;
    const int side = paired ? b : 0;
    const run r = run_of(m, as_feature(y), -1);
    const ptrdiff_t at = m->cross.panels[y.space][b].p[r.panel].at + r.at + from;
    const size_t bytes = sizeof(double) * (size_t)p;
    if (square) memcpy(square, f->square[y.space][split][side] + at, bytes);
    if (mean) memcpy(mean, f->mean[y.space][split][side] + at, bytes);
}
