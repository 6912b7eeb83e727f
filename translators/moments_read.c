#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "translators/meta.h"
#include "translators/moments.h"
#include "translators/moments_internal.h"

/* one opened file */
typedef struct moments_file {
    kvm_st *st;
    bool cross;
    kvm_str capture[2], model[2], name[2]; /* of a and b */
    ptrdiff_t layers[2];
    const kvm_row_shape *k[2], *v[2];
    ptrdiff_t rows[KVM_SPLITS];
    kvm_panels panels[KVM_SPACES][2];
    const double **tile[KVM_SPACES][KVM_SPLITS]; /* (panels a, panels b) */
    const double *mean[KVM_SPACES][KVM_SPLITS][2];
    const double *square[KVM_SPACES][KVM_SPLITS][2];
} moments_file;

struct kvm_moments {
    moments_file gram, cross;
    int source; /* which side of the cross file the Gram's capture is: 0 = a */
    kvm_str hash;
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
        TRY(kvm_meta_shapes(f->st, side, keep, &f->layers[i], &f->k[i], &f->v[i], err));
        for (int s = 0; s < KVM_SPACES; s++)
            TRY(kvm_moments__panels(
                &f->panels[s][i], keep,
                kvm_space_object((kvm_space)s) == KVM_OBJECT_V ? f->v[i] : f->k[i],
                f->layers[i], err));
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

static kvm_status read_sums(moments_file *f, kvm_arena *keep, kvm_space s, kvm_split p,
                            kvm_err *err)
{
    const kvm_panels *a = &f->panels[s][0], *b = &f->panels[s][f->cross];
    f->tile[s][p] = kvm_new(keep, const double *, a->count * b->count);
    if (!f->tile[s][p]) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i < a->count; i++)
        for (ptrdiff_t j = f->cross ? 0 : i; j < b->count; j++) {
            const ptrdiff_t dim[] = {a->p[i].width, b->p[j].width};
            const kvm_str name =
                kvm_moments__name(keep, f->cross ? "cross" : "gram", s, p, i, j);
            TRY(need(f, name, 2, dim, keep, &f->tile[s][p][i * b->count + j], err));
        }
    for (int side = 0; side < (f->cross ? 2 : 1); side++) {
        const ptrdiff_t dim[] = {f->panels[s][side].width};
        TRY(need(f, kvm_moments__name(keep, side ? "mean.b" : "mean.a", s, p, -1, -1),
                 1, dim, keep, &f->mean[s][p][side], err));
        if (f->cross)
            TRY(need(
                f,
                kvm_moments__name(keep, side ? "square.b" : "square.a", s, p, -1, -1),
                1, dim, keep, &f->square[s][p][side], err));
    }
    return KVM_OK;
}

/* all shares of a gang have been merged into the file: "2+0+1" of 3 */
static kvm_status whole(const moments_file *f, kvm_err *err)
{
    int64_t parts, merged = 1;
    kvm_str part;
    TRY(kvm_meta_i64(f->st, "parts", 1, 1 << 20, &parts, err));
    TRY(kvm_meta_str(f->st, "part", &part, err));
    for (ptrdiff_t i = 0; i < part.len; i++) merged += part.at[i] == '+';
    if (merged == parts) return KVM_OK;
    return kvm_fail(err, KVM_MISMATCH,
                    "%s: holds %lld of %lld shares; merge the others",
                    kvm_st_path(f->st).at, (long long)merged, (long long)parts);
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
    TRY(whole(f, err));
    TRY(read_sides(f, keep, err));
    const ptrdiff_t dim[] = {KVM_SPLITS};
    const kvm_st_tensor *rows;
    TRY(kvm_st_need(f->st, KVM_STR("rows"), KVM_I64, 1, dim, &rows, err));
    for (int p = 0; p < KVM_SPLITS; p++) {
        int64_t n;
        memcpy(&n, (const int64_t *)rows->t.data + p, sizeof n);
        if (n < 0 || n > INT32_MAX)
            return kvm_fail(err, KVM_FORMAT, "%s: rows[%d] is %lld",
                            kvm_st_path(f->st).at, p, (long long)n);
        f->rows[p] = (ptrdiff_t)n;
        for (int s = 0; s < KVM_SPACES; s++)
            TRY(read_sums(f, keep, (kvm_space)s, (kvm_split)p, err));
    }
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

kvm_status kvm_moments_open(kvm_moments **out, kvm_arena *keep, kvm_str gram,
                            kvm_str cross, kvm_err *err)
{
    kvm_moments *m = kvm_new(keep, kvm_moments, 1);
    if (!m) return kvm_nomem(err, keep);
    TRY(open_file(&m->gram, keep, gram, false, err));
    TRY(open_file(&m->cross, keep, cross, true, err));
    const moments_file *g = &m->gram, *x = &m->cross;
    if (kvm_str_eq(g->capture[0], x->capture[0]))
        m->source = 0;
    else if (kvm_str_eq(g->capture[0], x->capture[1]))
        m->source = 1;
    else
        return kvm_fail(err, KVM_MISMATCH,
                        "%s is of capture %.12s, %s pairs %.12s and %.12s",
                        kvm_st_path(g->st).at, g->capture[0].at, kvm_st_path(x->st).at,
                        x->capture[0].at, x->capture[1].at);
    TRY(same_meta(g, x, "split.seed", err));
    TRY(same_meta(g, x, "split.fraction", err));
    if (memcmp(g->rows, x->rows, sizeof g->rows) != 0 ||
        g->layers[0] != x->layers[m->source])
        return kvm_fail(err, KVM_MISMATCH, "%s and %s are not over the same rows",
                        kvm_st_path(g->st).at, kvm_st_path(x->st).at);
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

ptrdiff_t kvm_moments_layers(const kvm_moments *m, kvm_side side)
{
    return m->cross.layers[side_of(m, side)];
}

kvm_row_shape kvm_moments_shape(const kvm_moments *m, kvm_side side, kvm_space s,
                                ptrdiff_t layer)
{
    const int i = side_of(m, side);
    return (kvm_space_object(s) == KVM_OBJECT_V ? m->cross.v : m->cross.k)[i][layer];
}

ptrdiff_t kvm_moments_rows(const kvm_moments *m, kvm_split split)
{
    return m->cross.rows[split];
}

/* ---- gathering ---- */

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

static const kvm_row_shape *shapes(const moments_file *f, kvm_space s, int side)
{
    return kvm_space_object(s) == KVM_OBJECT_V ? f->v[side] : f->k[side];
}

ptrdiff_t kvm_features_width(const kvm_moments *m, kvm_space s, kvm_features x)
{
    ptrdiff_t w = 0;
    for (ptrdiff_t i = 0; i < x.count; i++) {
        const kvm_row_shape r = kvm_moments_shape(m, KVM_SOURCE, s, x.layers[i]);
        w += (x.head < 0 ? r.heads : 1) * r.dim;
    }
    return w;
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

void kvm_moments_get_gram(const kvm_moments *m, kvm_space s, kvm_split split,
                          kvm_features x, double *g)
{
    const moments_file *f = &m->gram;
    const kvm_panels *p = &f->panels[s][0];
    const kvm_row_shape *shape = shapes(f, s, 0);
    const ptrdiff_t width = kvm_features_width(m, s, x);
    ptrdiff_t row = 0;
    for (ptrdiff_t i = 0; i < x.count; i++) {
        const run a = layer_run(p, shape, x.layers[i], x.head);
        ptrdiff_t col = 0;
        for (ptrdiff_t j = 0; j < x.count; j++) {
            const run b = layer_run(p, shape, x.layers[j], x.head);
            const bool turned = a.panel > b.panel;
            const ptrdiff_t pi = turned ? b.panel : a.panel;
            const ptrdiff_t pj = turned ? a.panel : b.panel;
            copy_block(f->tile[s][split][pi * p->count + pj], p->p[pj].width, a, b,
                       turned, g + row * width + col, width);
            col += b.width;
        }
        row += a.width;
    }
}

void kvm_moments_get_cross(const kvm_moments *m, kvm_space s, kvm_split split,
                           kvm_features x, ptrdiff_t target, ptrdiff_t from,
                           ptrdiff_t p, double *out, ptrdiff_t ld)
{
    const moments_file *f = &m->cross;
    const int a = m->source, b = 1 - a;
    run to = layer_run(&f->panels[s][b], shapes(f, s, b), target, -1);
    to.at += from;
    to.width = p;
    ptrdiff_t row = 0;
    for (ptrdiff_t i = 0; i < x.count; i++) {
        const run r = layer_run(&f->panels[s][a], shapes(f, s, a), x.layers[i], x.head);
        const ptrdiff_t pi = a == 0 ? r.panel : to.panel;
        const ptrdiff_t pj = a == 0 ? to.panel : r.panel;
        copy_block(f->tile[s][split][pi * f->panels[s][1].count + pj],
                   f->panels[s][1].p[pj].width, r, to, a == 1, out + row * ld, ld);
        row += r.width;
    }
}

void kvm_moments_get_mean(const kvm_moments *m, kvm_space s, kvm_split split,
                          kvm_features x, double *mean)
{
    const moments_file *f = &m->gram;
    const kvm_panels *p = &f->panels[s][0];
    for (ptrdiff_t i = 0; i < x.count; i++) {
        const run r = layer_run(p, shapes(f, s, 0), x.layers[i], x.head);
        memcpy(mean, f->mean[s][split][0] + p->p[r.panel].at + r.at,
               sizeof *mean * (size_t)r.width);
        mean += r.width;
    }
}

void kvm_moments_get_target(const kvm_moments *m, kvm_space s, kvm_split split,
                            ptrdiff_t target, ptrdiff_t from, ptrdiff_t p,
                            double *square, double *mean)
{
    const moments_file *f = &m->cross;
    const int b = 1 - m->source;
    const kvm_panels *panels = &f->panels[s][b];
    const run r = layer_run(panels, shapes(f, s, b), target, -1);
    const ptrdiff_t at = panels->p[r.panel].at + r.at + from;
    if (square) memcpy(square, f->square[s][split][b] + at, sizeof *square * (size_t)p);
    if (mean) memcpy(mean, f->mean[s][split][b] + at, sizeof *mean * (size_t)p);
}
