#include "translators/moments.h"

#include <math.h>
#include <stdio.h>

#include "base/hash.h"
#include "translators/meta.h"
#include "translators/moments_internal.h"

/* ---- panels and names ---- */

kvm_status kvm_moments__panels(kvm_panels *out, kvm_arena *keep,
                               const kvm_row_shape *shape, ptrdiff_t layers,
                               kvm_err *err)
{
    kvm_panel *p = kvm_new(keep, kvm_panel, layers);
    if (!p) return kvm_nomem(err, keep);
    ptrdiff_t n = 0, at = 0;
    for (ptrdiff_t l = 0; l < layers; l++) {
        const ptrdiff_t w = shape[l].heads * shape[l].dim;
        const bool full =
            n > 0 && p[n - 1].width > 0 && w > 0 && p[n - 1].width + w > KVM_PANEL;
        if (n == 0 || full) p[n++] = (kvm_panel){.layer = l, .at = at};
        p[n - 1].layers++;
        p[n - 1].width += w;
        at += w;
    }
    *out = (kvm_panels){p, n, at};
    return KVM_OK;
}

kvm_str kvm_moments__name(kvm_arena *keep, const char *what, kvm_block_id id,
                          kvm_split p, ptrdiff_t i, ptrdiff_t j)
{
    const bool one = id.a == id.b;
    const char *plus = one ? "" : "+", *b = one ? "" : kvm_space_name(id.b);
    return i < 0 ? kvm_str_fmt(keep, "%s.%s%s%s.%s", what, kvm_space_name(id.a), plus,
                               b, kvm_split_name(p))
                 : kvm_str_fmt(keep, "%s.%s%s%s.%s.%td.%td", what, kvm_space_name(id.a),
                               plus, b, kvm_split_name(p), i, j);
}

kvm_status kvm_moments__put_blocks(json_t *meta, const kvm_block_id *blocks,
                                   ptrdiff_t n, kvm_err *err)
{
    kvm_text list = {0};
    for (ptrdiff_t i = 0; i < n; i++) {
        kvm_text_addf(&list, i ? ",%s" : "%s", kvm_space_name(blocks[i].a));
        if (blocks[i].a != blocks[i].b)
            kvm_text_addf(&list, "+%s", kvm_space_name(blocks[i].b));
    }
    const kvm_status s = list.failed
                             ? kvm_fail(err, KVM_NOMEM, "no memory for metadata")
                             : kvm_meta_put(meta, "blocks", kvm_text_str(&list), err);
    kvm_text_free(&list);
    return s;
}

kvm_status kvm_moments__read_blocks(const kvm_st *st, kvm_block_id *blocks,
                                    ptrdiff_t *n, kvm_err *err)
{
    kvm_str rest, item, a, b;
    TRY(kvm_meta_str(st, "blocks", &rest, err));
    *n = 0;
    for (bool more = true; more;) {
        more = kvm_str_cut(rest, ',', &item, &rest);
        if (!kvm_str_cut(item, '+', &a, &b)) b = a;
        kvm_block_id id;
        bool bad = *n == KVM_BLOCKS || kvm_space_of_name(a, &id.a) ||
                   kvm_space_of_name(b, &id.b);
        for (ptrdiff_t i = 0; !bad && i < *n; i++)
            bad = blocks[i].a == id.a && blocks[i].b == id.b;
        if (bad)
            return kvm_fail(err, KVM_FORMAT,
                            "%s: metadata `blocks`: '%s' is no block, or stands there "
                            "twice",
                            kvm_st_path(st).at, kvm_quote(item).at);
        blocks[(*n)++] = id;
    }
    return KVM_OK;
}

kvm_block_layout kvm_moments__layout(kvm_block_id id, bool cross, const kvm_panels *a,
                                     const kvm_panels *b)
{
    return (kvm_block_layout){id, cross, !cross && id.a == id.b, a, b};
}

ptrdiff_t kvm_moments__spec_count(const kvm_block_layout *l)
{
    return l->half ? l->a->count * (l->a->count + 1) / 2 + 1
                   : l->a->count * l->b->count + 4;
}

kvm_status kvm_moments__specs(kvm_st_spec *spec, ptrdiff_t *n, kvm_arena *keep,
                              const kvm_block_layout *l, kvm_split p, kvm_err *err)
{
    const ptrdiff_t first = *n;
    for (ptrdiff_t i = 0; i < l->a->count; i++)
        for (ptrdiff_t j = l->half ? i : 0; j < l->b->count; j++)
            spec[(*n)++] = (kvm_st_spec){
                kvm_moments__name(keep, l->cross ? "cross" : "gram", l->id, p, i, j),
                KVM_F64,
                2,
                {l->a->p[i].width, l->b->p[j].width}};
    static const char *const vectors[] = {"mean.a", "mean.b", "square.a", "square.b"};
    for (int v = 0; v < (l->half ? 1 : 4); v++)
        spec[(*n)++] =
            (kvm_st_spec){kvm_moments__name(keep, vectors[v], l->id, p, -1, -1),
                          KVM_F64,
                          1,
                          {v % 2 ? l->b->width : l->a->width}};
    for (ptrdiff_t i = first; i < *n; i++)
        if (!spec[i].name.at) return kvm_nomem(err, keep);
    return KVM_OK;
}

/* ---- Chan merge ---- */

void kvm_chan_merge(double *m, const double *other, ptrdiff_t f, ptrdiff_t p, double nx,
                    double ny, const double *ax, const double *ay, const double *bx,
                    const double *by)
{
    const double scale = nx + ny > 0 ? nx * ny / (nx + ny) : 0;
    for (ptrdiff_t i = 0; i < f; i++) {
        const double da = (ay[i] - ax[i]) * scale;
        for (ptrdiff_t j = 0; j < p; j++)
            m[i * p + j] += other[i * p + j] + da * (by[j] - bx[j]);
    }
}

void kvm_chan_mean(double *x, const double *y, ptrdiff_t f, double nx, double ny)
{
    const double share = nx + ny > 0 ? ny / (nx + ny) : 0;
    for (ptrdiff_t i = 0; i < f; i++) x[i] += (y[i] - x[i]) * share;
}

/* ---- summing ---- */

/* one side's columns of the block being summed */
typedef struct columns {
    const kvm_rows *rows;
    kvm_space space;
    kvm_panels panels;
    float *shift;         /* (F) provisional mean */
    double *sum, *square; /* (F) of rows less shift, then mean and centred squares */
    bool *summed;         /* (panels) shift and sums are complete */
} columns;

typedef struct summer {
    kvm_compute *c;
    const ptrdiff_t *index; /* (n) rows of this split */
    ptrdiff_t n;
    columns a, b_own;
    columns *b;            /* &a where a block is half */
    bool half;             /* tiles i <= j of a symmetric matrix */
    ptrdiff_t first, last; /* panels of a in this pass */
    double **tile;         /* (last-first, b panels) */
    float **block;         /* (last-first) rows of each panel */
    float *beside;         /* rows of a panel outside of the pass */
    kvm_progress *progress;
    double done, total; /* row-passes */
} summer;

enum { STRIP = 128 }; /* columns of one part */

typedef struct centre_job {
    float *x; /* (n, width) */
    ptrdiff_t n, width;
    float *shift;
    double *sum, *square; /* NULL: not wanted */
    bool fresh;           /* shift is not known yet */
} centre_job;

/* the provisional mean of a strip: the first block's */
static void shift_strip(const centre_job *j, ptrdiff_t from, ptrdiff_t w)
{
    double sum[STRIP] = {0};
    for (ptrdiff_t r = 0; r < j->n; r++)
        for (ptrdiff_t k = 0; k < w; k++)
            sum[k] += (double)j->x[r * j->width + from + k];
    for (ptrdiff_t k = 0; k < w; k++)
        j->shift[from + k] = (float)(sum[k] / (double)j->n);
}

/* Pool part: a strip of columns. The order of additions is that of the rows, whatever
 * the thread count. Sums of FEW centred rows are held in f32: their rounding is 1e-7 of
 * a deviation and averages out, and the conversions would cost as much as the rest. */
static void centre_strip(void *ctx, ptrdiff_t part, int thread)
{
    enum { FEW = 16 };
    (void)thread;
    const centre_job *j = ctx;
    const ptrdiff_t from = part * STRIP;
    const ptrdiff_t w = j->width - from < STRIP ? j->width - from : STRIP;
    if (j->fresh) shift_strip(j, from, w);
    const float *shift = j->shift + from;
    for (ptrdiff_t first = 0; first < j->n; first += FEW) {
        const ptrdiff_t end = first + FEW < j->n ? first + FEW : j->n;
        float few[STRIP] = {0};
        for (ptrdiff_t r = first; r < end; r++) {
            float *restrict x = j->x + r * j->width + from;
            for (ptrdiff_t k = 0; k < w; k++) {
                x[k] -= shift[k];
                few[k] += x[k];
            }
            if (!j->square) continue;
            for (ptrdiff_t k = 0; k < w; k++)
                j->square[from + k] += (double)x[k] * (double)x[k];
        }
        for (ptrdiff_t k = 0; j->sum && k < w; k++) j->sum[from + k] += (double)few[k];
    }
}

/* rows of panel p of one capture, block at `from`, less the shift: read and centred by
 * pieces that stay in the second-level cache, once the shift is known */
static kvm_status load(summer *m, columns *side, ptrdiff_t p, ptrdiff_t from,
                       ptrdiff_t n, float *x, kvm_err *err)
{
    enum { PIECE = 256 };
    const kvm_panel *panel = &side->panels.p[p];
    const bool fresh = !side->summed[p] && from == 0;
    const ptrdiff_t most = fresh ? n : PIECE;
    for (ptrdiff_t at = 0; at < n; at += most) {
        const ptrdiff_t rows = n - at < most ? n - at : most;
        centre_job j = {.x = x + at * panel->width,
                        .n = rows,
                        .width = panel->width,
                        .shift = side->shift + panel->at,
                        .fresh = fresh};
        if (!side->summed[p]) j.sum = side->sum + panel->at;
        if (!side->summed[p] && !m->half) j.square = side->square + panel->at;
        TRY(kvm_rows_read(m->c, side->rows, side->space, panel->layer, panel->layers, 0,
                          m->index + from + at, rows, j.x, panel->width, err));
        kvm_pool_run(kvm_compute_pool(m->c), (panel->width + STRIP - 1) / STRIP,
                     centre_strip, &j);
    }
    return KVM_OK;
}

static kvm_status add_tile(summer *m, ptrdiff_t i, ptrdiff_t j, ptrdiff_t n,
                           const float *y, kvm_err *err)
{
    const ptrdiff_t fi = m->a.panels.p[i].width, fj = m->b->panels.p[j].width;
    const kvm_tensor x = kvm_view2(m->block[i - m->first], KVM_F32, n, fi);
    const kvm_tensor out =
        kvm_view2(m->tile[(i - m->first) * m->b->panels.count + j], KVM_F64, fi, fj);
    if (m->half && i == j) return kvm_op_gram(m->c, out, x, err);
    return kvm_op_cross(m->c, out, x, kvm_view2_const(y, KVM_F32, n, fj), err);
}

static kvm_status add_block(summer *m, ptrdiff_t from, ptrdiff_t n, kvm_err *err)
{
    for (ptrdiff_t i = m->first; i < m->last; i++)
        TRY(load(m, &m->a, i, from, n, m->block[i - m->first], err));
    for (ptrdiff_t j = m->half ? m->first : 0; j < m->b->panels.count; j++) {
        const bool inside = m->half && j < m->last;
        const float *y = inside ? m->block[j - m->first] : m->beside;
        if (!inside) TRY(load(m, m->b, j, from, n, m->beside, err));
        const ptrdiff_t end = inside ? j + 1 : m->last;
        for (ptrdiff_t i = m->first; i < end; i++) TRY(add_tile(m, i, j, n, y, err));
    }
    return KVM_OK;
}

/* one pass over the rows for panels first..last-1 of a against all of b */
static kvm_status pass(summer *m, kvm_err *err)
{
    for (ptrdiff_t from = 0; from < m->n; from += KVM_BLOCK_ROWS) {
        const ptrdiff_t left = m->n - from;
        const ptrdiff_t n = left < KVM_BLOCK_ROWS ? left : KVM_BLOCK_ROWS;
        TRY(add_block(m, from, n, err));
        m->done += (double)n;
        kvm_progress_at(m->progress, m->done, m->total, "rows");
        if (kvm_progress_cancelled(m->progress))
            return kvm_fail(err, KVM_CANCELLED, "cancelled while summing moments");
    }
    for (ptrdiff_t i = m->first; i < m->last; i++) m->a.summed[i] = true;
    for (ptrdiff_t j = m->half ? m->first : 0; j < m->b->panels.count; j++)
        m->b->summed[j] = true;
    return KVM_OK;
}

/* put in the true means: sum (x-p)(y-q)^T - n (mean-p)(mean-q)^T */
static kvm_status append_tiles(summer *m, kvm_st_writer *st, kvm_err *err)
{
    const double inverse = m->n ? 1 / (double)m->n : 0;
    for (ptrdiff_t i = m->first; i < m->last; i++) {
        for (ptrdiff_t j = m->half ? i : 0; j < m->b->panels.count; j++) {
            const kvm_panel *pi = &m->a.panels.p[i], *pj = &m->b->panels.p[j];
            double *t = m->tile[(i - m->first) * m->b->panels.count + j];
            for (ptrdiff_t r = 0; r < pi->width; r++) {
                const double d = m->a.sum[pi->at + r];
                for (ptrdiff_t k = 0; k < pj->width; k++) /* symmetric in bits too */
                    t[r * pj->width + k] -= d * m->b->sum[pj->at + k] * inverse;
            }
            TRY(kvm_st_append(st, t, sizeof *t * (size_t)(pi->width * pj->width), err));
        }
    }
    return KVM_OK;
}

/* sums become the mean and the squares about it */
static kvm_status finish(const summer *m, columns *side, kvm_err *err)
{
    const double n = m->n ? (double)m->n : 1;
    for (ptrdiff_t p = 0; p < side->panels.count; p++) {
        const kvm_panel *panel = &side->panels.p[p];
        ptrdiff_t at = panel->at;
        for (ptrdiff_t l = panel->layer; l < panel->layer + panel->layers; l++) {
            const kvm_row_shape s = kvm_rows_shape(side->rows, side->space, l);
            for (ptrdiff_t e = s.heads * s.dim; e > 0; e--, at++) {
                const double d = side->sum[at] / n;
                side->square[at] -= d * side->sum[at];
                side->sum[at] = m->n ? (double)side->shift[at] + d : 0;
                if (!isfinite(side->sum[at]) || !isfinite(side->square[at]))
                    return kvm_fail(err, KVM_NAN, "%s: %s of layer %td is not finite",
                                    kvm_rows_path(side->rows).at,
                                    kvm_space_name(side->space), l);
            }
        }
    }
    return KVM_OK;
}

/* ---- memory ---- */

static size_t tile_bytes(const summer *m, ptrdiff_t i)
{
    const ptrdiff_t cols =
        m->half ? m->a.panels.width - m->a.panels.p[i].at : m->b->panels.width;
    return sizeof(double) * (size_t)(m->a.panels.p[i].width * cols);
}

static size_t block_bytes(ptrdiff_t width)
{
    return sizeof(float) * (size_t)KVM_BLOCK_ROWS * (size_t)width;
}

static ptrdiff_t widest(const kvm_panels *p)
{
    ptrdiff_t w = 0;
    for (ptrdiff_t i = 0; i < p->count; i++) w = p->p[i].width > w ? p->p[i].width : w;
    return w;
}

/* what panels first..last-1 take in one pass */
static size_t pass_bytes(const summer *m, ptrdiff_t first, ptrdiff_t last)
{
    size_t bytes = block_bytes(widest(&m->b->panels));
    for (ptrdiff_t i = first; i < last; i++)
        bytes += tile_bytes(m, i) + block_bytes(m->a.panels.p[i].width);
    return bytes;
}

static ptrdiff_t pass_end(const summer *m, ptrdiff_t first, size_t budget)
{
    ptrdiff_t last = first + 1;
    while (last < m->a.panels.count && pass_bytes(m, first, last + 1) <= budget) last++;
    return last;
}

static kvm_status pass_alloc(summer *m, kvm_arena *own, kvm_err *err)
{
    const ptrdiff_t panels = m->last - m->first, cols = m->b->panels.count;
    m->tile = kvm_new(own, double *, panels *cols);
    m->block = kvm_new(own, float *, panels);
    m->beside = kvm_new_raw(own, float, KVM_BLOCK_ROWS *widest(&m->b->panels));
    if (!m->tile || !m->block || !m->beside) return kvm_nomem(err, own);
    for (ptrdiff_t i = m->first; i < m->last; i++) {
        const ptrdiff_t w = m->a.panels.p[i].width;
        float *rows = kvm_new_raw(own, float, KVM_BLOCK_ROWS *w);
        if (!rows) return kvm_nomem(err, own);
        m->block[i - m->first] = rows;
        for (ptrdiff_t j = m->half ? i : 0; j < cols; j++) {
            double *t = kvm_new(own, double, w * m->b->panels.p[j].width);
            if (!t) return kvm_nomem(err, own);
            m->tile[(i - m->first) * cols + j] = t;
        }
    }
    return KVM_OK;
}

/* ---- the file ---- */

typedef struct job {
    summer m;
    const kvm_rows *a, *b;
    const kvm_moments_options *o;
    double fraction;
    size_t budget;
    kvm_arena *own; /* small things: names, indices, vectors */
    ptrdiff_t *index[KVM_SPLITS], n[KVM_SPLITS];
    kvm_panels panels_a[KVM_SPACES], panels_b[KVM_SPACES];
    kvm_block_id blocks[KVM_BLOCKS];
    ptrdiff_t block_count;
} job;

/* a row for every token: states have none */
static bool holds(const kvm_rows *r, kvm_space s)
{
    return kvm_rows_info_of(r)->shapes.of[s] != NULL && !kvm_space_once(s);
}

static kvm_status panels_of(const kvm_rows *r, kvm_panels *out, kvm_arena *own,
                            kvm_err *err)
{
    const kvm_shapes *shapes = &kvm_rows_info_of(r)->shapes;
    for (int s = 0; s < KVM_SPACES; s++)
        if (shapes->of[s])
            TRY(kvm_moments__panels(&out[s], own, shapes->of[s], shapes->layers, err));
    return KVM_OK;
}

static kvm_status choose_blocks(job *j, kvm_err *err)
{
    const kvm_rows *b = j->b ? j->b : j->a;
    const kvm_moments_options *o = j->o;
    for (int s = 0; !o->blocks && s < KVM_SPACES; s++)
        if (holds(j->a, (kvm_space)s) && holds(b, (kvm_space)s))
            j->blocks[j->block_count++] = (kvm_block_id){(kvm_space)s, (kvm_space)s};
    if (o->blocks && (o->block_count < 1 || o->block_count > KVM_BLOCKS))
        return kvm_fail(err, KVM_RANGE, "moments of %td blocks", o->block_count);
    for (ptrdiff_t i = 0; o->blocks && i < o->block_count; i++) {
        const kvm_block_id id = j->blocks[j->block_count++] = o->blocks[i];
        if (holds(j->a, id.a) && holds(b, id.b) && (j->b || id.a <= id.b)) continue;
        return kvm_fail(err, KVM_RANGE, "%s, %s: there is no block of %s and %s",
                        kvm_rows_path(j->a).at, kvm_rows_path(b).at,
                        kvm_space_name(id.a), kvm_space_name(id.b));
    }
    if (j->block_count == 0)
        return kvm_fail(err, KVM_MISMATCH, "%s and %s hold no rows of one space",
                        kvm_rows_path(j->a).at, kvm_rows_path(b).at);
    return KVM_OK;
}

static kvm_status make_panels(job *j, kvm_err *err)
{
    TRY(panels_of(j->a, j->panels_a, j->own, err));
    TRY(panels_of(j->b ? j->b : j->a, j->panels_b, j->own, err));
    return choose_blocks(j, err);
}

static kvm_block_layout layout(const job *j, ptrdiff_t block)
{
    const kvm_block_id id = j->blocks[block];
    return kvm_moments__layout(id, j->b != NULL, &j->panels_a[id.a],
                               &j->panels_b[id.b]);
}

/* rows of a split that fall to this share of a gang */
static kvm_status take_share(job *j, kvm_split p, kvm_err *err)
{
    TRY(kvm_rows_split(j->a, j->o->seed, j->fraction, p, j->own, &j->index[p], &j->n[p],
                       err));
    if (j->o->parts <= 1) return KVM_OK;
    if (j->o->part < 0 || j->o->part >= j->o->parts)
        return kvm_fail(err, KVM_USAGE, "share %d of %d does not exist", j->o->part,
                        j->o->parts);
    const int32_t *sequence = kvm_rows_sequence(j->a);
    ptrdiff_t kept = 0, rank = -1;
    for (ptrdiff_t i = 0; i < j->n[p]; i++) {
        const ptrdiff_t row = j->index[p][i];
        rank += i == 0 || sequence[row] != sequence[j->index[p][i - 1]];
        if (rank % j->o->parts == j->o->part) j->index[p][kept++] = row;
    }
    j->n[p] = kept;
    return KVM_OK;
}

static kvm_status put_side(json_t *meta, const char *side, const kvm_rows *r,
                           const char *hash, kvm_arena *own, kvm_err *err)
{
    char key[32], computed[65];
    const kvm_rows_info *i = kvm_rows_info_of(r);
    if (!hash) {
        TRY(kvm_sha_file(kvm_rows_path(r), computed, *own, err));
        hash = computed;
    }
    const struct {
        const char *key;
        kvm_str value;
    } text[] = {{"capture", kvm_str_of(hash)},
                {"model", i->model},
                {"model_name", i->model_name}};
    for (size_t t = 0; t < sizeof text / sizeof *text; t++) {
        snprintf(key, sizeof key, "%s%s", side, text[t].key);
        TRY(kvm_meta_put(meta, key, text[t].value, err));
    }
    return kvm_meta_put_shapes(meta, side, &i->shapes, err);
}

static kvm_status begin(job *j, kvm_str path, kvm_st_writer **st, kvm_err *err)
{
    json_t *meta = kvm_json_own(j->own, json_object());
    if (!meta) return kvm_nomem(err, j->own);
    TRY(kvm_meta_put(meta, "format", KVM_STR(KVM_MOMENTS_FORMAT), err));
    TRY(kvm_meta_putf(meta, err, "kind", "%s", j->b ? "cross" : "gram"));
    TRY(kvm_meta_putf(meta, err, "split.seed", "%lld", (long long)j->o->seed));
    TRY(kvm_meta_putf(meta, err, "split.fraction", "%.17g", j->fraction));
    TRY(kvm_meta_putf(meta, err, "part", "%d", j->o->parts > 1 ? j->o->part : 0));
    TRY(kvm_meta_putf(meta, err, "parts", "%d", j->o->parts > 1 ? j->o->parts : 1));
    TRY(put_side(meta, "a.", j->a, j->o->hash_a, j->own, err));
    if (j->b) TRY(put_side(meta, "b.", j->b, j->o->hash_b, j->own, err));
    TRY(kvm_moments__put_blocks(meta, j->blocks, j->block_count, err));
    ptrdiff_t specs = 1, n = 0;
    for (ptrdiff_t i = 0; i < j->block_count; i++) {
        const kvm_block_layout l = layout(j, i);
        specs += KVM_SPLITS * kvm_moments__spec_count(&l);
    }
    kvm_st_spec *spec = kvm_new(j->own, kvm_st_spec, specs);
    if (!spec) return kvm_nomem(err, j->own);
    spec[n++] = (kvm_st_spec){KVM_STR("rows"), KVM_I64, 1, {KVM_SPLITS}};
    for (ptrdiff_t i = 0; i < j->block_count; i++)
        for (int p = 0; p < KVM_SPLITS; p++) {
            const kvm_block_layout l = layout(j, i);
            TRY(kvm_moments__specs(spec, &n, j->own, &l, (kvm_split)p, err));
        }
    TRY(kvm_st_begin(st, j->own, path, spec, n, meta, err));
    int64_t rows[KVM_SPLITS];
    for (int p = 0; p < KVM_SPLITS; p++) rows[p] = j->n[p];
    return kvm_st_append(*st, rows, sizeof rows, err);
}

static kvm_status start_columns(columns *c, const kvm_rows *r, kvm_space space,
                                kvm_panels p, kvm_arena *own, kvm_err *err)
{
    *c = (columns){.rows = r,
                   .space = space,
                   .panels = p,
                   .shift = kvm_new(own, float, p.width),
                   .sum = kvm_new(own, double, p.width),
                   .square = kvm_new(own, double, p.width),
                   .summed = kvm_new(own, bool, p.count)};
    return c->shift && c->sum && c->square && c->summed ? KVM_OK : kvm_nomem(err, own);
}

/* all passes of one block and split, appended to the file */
static kvm_status sum_one(job *j, ptrdiff_t block, kvm_split p, kvm_st_writer *st,
                          kvm_arena vectors, kvm_arena *passes, kvm_err *err)
{
    summer *m = &j->m;
    const kvm_block_layout l = layout(j, block);
    m->half = l.half;
    m->index = j->index[p];
    m->n = j->n[p];
    TRY(start_columns(&m->a, j->a, l.id.a, *l.a, &vectors, err));
    m->b = &m->a;
    if (!l.half) {
        m->b = &m->b_own;
        TRY(start_columns(m->b, j->b ? j->b : j->a, l.id.b, *l.b, &vectors, err));
    }
    for (m->first = 0; m->first < m->a.panels.count; m->first = m->last) {
        m->last = pass_end(m, m->first, j->budget);
        kvm_arena_reset(passes);
        TRY(pass_alloc(m, passes, err));
        TRY(pass(m, err));
        TRY(append_tiles(m, st, err));
    }
    TRY(finish(m, &m->a, err));
    if (!l.half) TRY(finish(m, m->b, err));
    const size_t fa = sizeof(double) * (size_t)m->a.panels.width;
    const size_t fb = sizeof(double) * (size_t)m->b->panels.width;
    TRY(kvm_st_append(st, m->a.sum, fa, err));
    if (l.half) return KVM_OK;
    TRY(kvm_st_append(st, m->b->sum, fb, err));
    TRY(kvm_st_append(st, m->a.square, fa, err));
    return kvm_st_append(st, m->b->square, fb, err);
}

/* for counting passes: a summer that sums nothing */
static void sketch(const job *j, ptrdiff_t block, summer *m)
{
    const kvm_block_layout l = layout(j, block);
    *m = (summer){.half = l.half, .a.panels = *l.a, .b_own.panels = *l.b};
    m->b = l.half ? &m->a : &m->b_own;
}

/* the most that one pass over one panel takes, over all blocks */
static size_t least(job *j)
{
    size_t most = 0;
    for (ptrdiff_t block = 0; block < j->block_count; block++) {
        summer m;
        sketch(j, block, &m);
        for (ptrdiff_t i = 0; i < m.a.panels.count; i++) {
            const size_t bytes = pass_bytes(&m, i, i + 1);
            if (bytes > most) most = bytes;
        }
    }
    return most;
}

size_t kvm_moments_least_budget(const kvm_rows *a, const kvm_rows *b,
                                const kvm_moments_options *o)
{
    kvm_arena own = {0};
    job j = {.a = a, .b = b, .o = o, .own = &own};
    size_t bytes = SIZE_MAX;
    if (!kvm_arena_init(&own, (size_t)16 << 20, NULL) && !make_panels(&j, NULL))
        bytes = least(&j);
    kvm_arena_free(&own);
    return bytes;
}

static double all_passes(const job *j)
{
    double rows = 0;
    for (ptrdiff_t block = 0; block < j->block_count; block++) {
        summer m;
        sketch(j, block, &m);
        ptrdiff_t passes = 0;
        for (ptrdiff_t i = 0; i < m.a.panels.count; i = pass_end(&m, i, j->budget))
            passes++;
        for (int p = 0; p < KVM_SPLITS; p++) rows += (double)passes * (double)j->n[p];
    }
    return rows;
}

static kvm_status sum_all(job *j, kvm_str path, kvm_arena *passes, char sha_hex[65],
                          kvm_err *err)
{
    kvm_st_writer *st;
    for (int p = 0; p < KVM_SPLITS; p++) TRY(take_share(j, (kvm_split)p, err));
    TRY(begin(j, path, &st, err));
    j->m.total = all_passes(j);
    for (ptrdiff_t i = 0; i < j->block_count; i++)
        for (int p = 0; p < KVM_SPLITS; p++)
            TRY(sum_one(j, i, (kvm_split)p, st, *j->own, passes, err));
    return kvm_st_publish(st, sha_hex, err);
}

static kvm_status run(kvm_compute *c, const kvm_rows *a, const kvm_rows *b,
                      const kvm_moments_options *o, kvm_str path, char sha_hex[65],
                      kvm_err *err)
{
    enum { MIB = 1 << 20 };
    kvm_arena own = {0}, passes = {0};
    job j = {.m = {.c = c, .progress = o->progress},
             .a = a,
             .b = b,
             .o = o,
             .fraction = o->fraction == 0 ? 0.2 : o->fraction,
             .budget = o->budget ? o->budget : (size_t)1024 * MIB,
             .own = &own};
    const size_t names = (size_t)1024 * MIB; /* address space; touched as needed */
    kvm_status s = kvm_arena_init(&own, names, err);
    if (!s) s = make_panels(&j, err);
    if (!s && least(&j) > j.budget)
        s = kvm_fail(err, KVM_RANGE,
                     "%s: moments need a memory budget of at least %zu MiB, not %zu",
                     kvm_rows_path(a).at, least(&j) / MIB + 1, j.budget / MIB);
    if (!s) s = kvm_arena_init(&passes, j.budget + (size_t)64 * MIB, err);
    if (!s) s = sum_all(&j, path, &passes, sha_hex, err);
    kvm_arena_free(&passes);
    kvm_arena_free(&own);
    return s;
}

kvm_status kvm_moments_gram(kvm_compute *c, const kvm_rows *a,
                            const kvm_moments_options *o, kvm_str path,
                            char sha_hex[65], kvm_err *err)
{
    return run(c, a, NULL, o, path, sha_hex, err);
}

kvm_status kvm_moments_cross(kvm_compute *c, const kvm_rows *a, const kvm_rows *b,
                             const kvm_moments_options *o, kvm_str path,
                             char sha_hex[65], kvm_err *err)
{
    TRY(kvm_rows_same(a, b, err));
    return run(c, a, b, o, path, sha_hex, err);
}
