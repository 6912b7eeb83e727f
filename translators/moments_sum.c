/* moments_sum.c - the moments of one block over the rows of one split: sums about a
 * provisional mean, in as many passes over the rows as memory asks for. */
#include <math.h>

#include "translators/moments_internal.h"

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
    kvm_summing *s;
    const ptrdiff_t *index; /* (n) rows of this split */
    ptrdiff_t n;
    columns a, b_own;
    columns *b;            /* &a where a block is half */
    bool half;             /* tiles i <= j of a symmetric matrix */
    ptrdiff_t first, last; /* panels of a in this pass */
    double **tile;         /* (last-first, b panels) */
    float **block;         /* (last-first) rows of each panel */
    float *beside;         /* rows of a panel outside of the pass */
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
        TRY(kvm_rows_read(m->s->c, side->rows, side->space, panel->layer, panel->layers,
                          0, m->index + from + at, rows, j.x, panel->width, err));
        kvm_pool_run(kvm_compute_pool(m->s->c), (panel->width + STRIP - 1) / STRIP,
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
    if (m->half && i == j) return kvm_op_gram(m->s->c, out, x, err);
    return kvm_op_cross(m->s->c, out, x, kvm_view2_const(y, KVM_F32, n, fj), err);
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
        m->s->done += (double)n;
        kvm_progress_at(m->s->progress, m->s->done, m->s->total, "rows");
        if (kvm_progress_cancelled(m->s->progress))
            return kvm_fail(err, KVM_CANCELLED, "cancelled while summing moments");
    }
    for (ptrdiff_t i = m->first; i < m->last; i++) m->a.summed[i] = true;
    for (ptrdiff_t j = m->half ? m->first : 0; j < m->b->panels.count; j++)
        m->b->summed[j] = true;
    return KVM_OK;
}

static ptrdiff_t widest(const kvm_panels *p)
{
    ptrdiff_t w = 0;
    for (ptrdiff_t i = 0; i < p->count; i++) w = p->p[i].width > w ? p->p[i].width : w;
    return w;
}

/* sums of the columns that no tile of this share has asked for */
static kvm_status sum_others(summer *m, columns *side, kvm_arena *own, kvm_err *err)
{
    bool all = true;
    for (ptrdiff_t p = 0; p < side->panels.count; p++) all &= side->summed[p];
    if (all) return KVM_OK;
    kvm_arena_reset(own);
    float *x = kvm_new_raw(own, float, KVM_BLOCK_ROWS *widest(&side->panels));
    if (!x) return kvm_nomem(err, own);
    for (ptrdiff_t p = 0; p < side->panels.count; p++) {
        if (side->summed[p]) continue;
        for (ptrdiff_t from = 0; from < m->n; from += KVM_BLOCK_ROWS) {
            const ptrdiff_t left = m->n - from;
            TRY(load(m, side, p, from, left < KVM_BLOCK_ROWS ? left : KVM_BLOCK_ROWS, x,
                     err));
        }
        side->summed[p] = true;
    }
    return KVM_OK;
}

static kvm_status put(const summer *m, const double *x, ptrdiff_t n, kvm_err *err)
{
    const kvm_sums *to = &m->s->to;
    const size_t bytes = sizeof *x * (size_t)n;
    return to->file ? kvm_st_append(to->file, x, bytes, err)
                    : kvm_out_write(to->share, x, bytes, err);
}

/* put in the true means: sum (x-p)(y-q)^T - n (mean-p)(mean-q)^T */
static kvm_status append_tiles(summer *m, kvm_err *err)
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
            TRY(put(m, t, pi->width * pj->width, err));
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

/* columns of a row of tiles */
static ptrdiff_t row_columns(const summer *m, ptrdiff_t row)
{
    return m->half ? m->a.panels.width - m->a.panels.p[row].at : m->b->panels.width;
}

static size_t tile_bytes(const summer *m, ptrdiff_t i)
{
    return sizeof(double) * (size_t)(m->a.panels.p[i].width * row_columns(m, i));
}

static size_t block_bytes(ptrdiff_t width)
{
    return sizeof(float) * (size_t)KVM_BLOCK_ROWS * (size_t)width;
}

/* what panels first..last-1 take in one pass */
static size_t pass_bytes(const summer *m, ptrdiff_t first, ptrdiff_t last)
{
    size_t bytes = block_bytes(widest(&m->b->panels));
    for (ptrdiff_t i = first; i < last; i++)
        bytes += tile_bytes(m, i) + block_bytes(m->a.panels.p[i].width);
    return bytes;
}

/* where a pass ends that begins with `first`, of rows of tiles up to `end` */
static ptrdiff_t pass_end(const summer *m, ptrdiff_t first, ptrdiff_t end,
                          size_t budget)
{
    ptrdiff_t last = first + 1;
    while (last < end && pass_bytes(m, first, last + 1) <= budget) last++;
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

/* ---- one block of one split ---- */

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

/* for counting passes: a summer that sums nothing */
static void sketch(const kvm_block_layout *l, summer *m)
{
    *m = (summer){.half = l->half, .a.panels = *l->a, .b_own.panels = *l->b};
    m->b = l->half ? &m->a : &m->b_own;
}

size_t kvm_moments__least(const kvm_block_layout *l)
{
    summer m;
    size_t most = 0;
    sketch(l, &m);
    for (ptrdiff_t i = 0; i < m.a.panels.count; i++) {
        const size_t bytes = pass_bytes(&m, i, i + 1);
        if (bytes > most) most = bytes;
    }
    return most;
}

ptrdiff_t kvm_moments__passes(const kvm_block_layout *l, kvm_tile_rows r, size_t budget)
{
    summer m;
    ptrdiff_t passes = 0;
    sketch(l, &m);
    for (ptrdiff_t i = r.first; i < r.last; i = pass_end(&m, i, r.last, budget))
        passes++;
    return passes;
}

double kvm_moments__row_cost(const kvm_block_layout *l, ptrdiff_t row)
{
    summer m;
    sketch(l, &m);
    return (double)m.a.panels.p[row].width * (double)row_columns(&m, row);
}

size_t kvm_moments__row_bytes(const kvm_block_layout *l, ptrdiff_t row)
{
    summer m;
    sketch(l, &m);
    ptrdiff_t n = m.a.panels.p[row].width * row_columns(&m, row);
    if (row + 1 == m.a.panels.count)
        n += m.half ? m.a.panels.width : 2 * (m.a.panels.width + m.b->panels.width);
    return sizeof(double) * (size_t)n;
}

/* means and squares of all columns, behind the last tile of a block */
static kvm_status append_columns(summer *m, kvm_arena *passes, kvm_err *err)
{
    const ptrdiff_t fa = m->a.panels.width, fb = m->b->panels.width;
    TRY(sum_others(m, &m->a, passes, err));
    if (!m->half) TRY(sum_others(m, m->b, passes, err));
    TRY(finish(m, &m->a, err));
    if (!m->half) TRY(finish(m, m->b, err));
    TRY(put(m, m->a.sum, fa, err));
    if (m->half) return KVM_OK;
    TRY(put(m, m->b->sum, fb, err));
    TRY(put(m, m->a.square, fa, err));
    return put(m, m->b->square, fb, err);
}

kvm_status kvm_moments__sum(kvm_summing *s, const kvm_block_layout *l, kvm_tile_rows r,
                            const ptrdiff_t *index, ptrdiff_t n, kvm_arena vectors,
                            kvm_arena *passes, kvm_err *err)
{
    summer own = {.s = s, .half = l->half, .index = index, .n = n}, *m = &own;
    TRY(start_columns(&m->a, s->a, l->id.a, *l->a, &vectors, err));
    m->b = &m->a;
    if (!l->half) {
        m->b = &m->b_own;
        TRY(start_columns(m->b, s->b ? s->b : s->a, l->id.b, *l->b, &vectors, err));
    }
    for (m->first = r.first; m->first < r.last; m->first = m->last) {
        m->last = pass_end(m, m->first, r.last, s->budget);
        kvm_arena_reset(passes);
        TRY(pass_alloc(m, passes, err));
        TRY(pass(m, err));
        TRY(append_tiles(m, err));
    }
    return r.last == m->a.panels.count ? append_columns(m, passes, err) : KVM_OK;
}
