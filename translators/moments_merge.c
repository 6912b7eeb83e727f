#include <stdio.h>
#include <string.h>

#include "translators/meta.h"
#include "translators/moments.h"
#include "translators/moments_internal.h"

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

/* ---- files ---- */

/* two shares of the same captures, and the file that they become */
typedef struct merge {
    kvm_st *x, *y;
    kvm_arena *own;
    bool cross;
    kvm_block_id id[KVM_BLOCKS];
    ptrdiff_t blocks;
    kvm_panels panels[KVM_SPACES][2];
    double n[KVM_SPLITS][2]; /* rows of x and y */
} merge;

static kvm_status same(const merge *m, const char *key, kvm_err *err)
{
    kvm_str a, b;
    TRY(kvm_meta_str(m->x, key, &a, err));
    TRY(kvm_meta_str(m->y, key, &b, err));
    if (kvm_str_eq(a, b)) return KVM_OK;
    return kvm_fail(err, KVM_MISMATCH, "%s and %s differ in %s (%s, %s)",
                    kvm_st_path(m->x).at, kvm_st_path(m->y).at, key, kvm_quote(a).at,
                    kvm_quote(b).at);
}

static kvm_status copy_meta(merge *m, json_t *meta, const char *key, kvm_err *err)
{
    kvm_str value;
    TRY(same(m, key, err));
    TRY(kvm_meta_str(m->x, key, &value, err));
    return kvm_meta_put(meta, key, value, err);
}

static kvm_status check_pair(merge *m, json_t *meta, kvm_err *err)
{
    static const char *const keys[] = {"format",         "kind",         "split.seed",
                                       "split.fraction", "blocks",       "a.capture",
                                       "a.model",        "a.model_name", "b.capture",
                                       "b.model",        "b.model_name"};
    TRY(kvm_meta_format(m->x, KVM_MOMENTS_FORMAT, err));
    TRY(kvm_meta_format(m->y, KVM_MOMENTS_FORMAT, err));
    kvm_str kind;
    TRY(kvm_meta_str(m->x, "kind", &kind, err));
    m->cross = kvm_str_eq(kind, KVM_STR("cross"));
    for (size_t i = 0; i < (m->cross ? 11 : 8); i++)
        TRY(copy_meta(m, meta, keys[i], err));
    kvm_str px, py;
    TRY(kvm_meta_str(m->x, "part", &px, err));
    TRY(kvm_meta_str(m->y, "part", &py, err));
    if (kvm_str_eq(px, py))
        return kvm_fail(err, KVM_MISMATCH, "%s and %s are the same share (%.*s)",
                        kvm_st_path(m->x).at, kvm_st_path(m->y).at, KVM_STR_ARG(px));
    TRY(kvm_meta_putf(meta, err, "part", "%.*s+%.*s", KVM_STR_ARG(px),
                      KVM_STR_ARG(py)));
    TRY(copy_meta(m, meta, "parts", err));
    for (int i = 0; i < (m->cross ? 2 : 1); i++) {
        const char *side = i ? "b." : "a.";
        kvm_shapes shapes;
        TRY(kvm_meta_shapes(m->x, side, m->own, &shapes, err));
        TRY(kvm_meta_put_shapes(meta, side, &shapes, err));
        for (int s = 0; s < KVM_SPACES; s++)
            if (shapes.of[s])
                TRY(kvm_moments__panels(&m->panels[s][i], m->own, shapes.of[s],
                                        shapes.layers, err));
    }
    TRY(kvm_moments__read_blocks(m->x, m->id, &m->blocks, err));
    for (ptrdiff_t i = 0; i < m->blocks; i++)
        if (m->panels[m->id[i].a][0].count == 0 ||
            m->panels[m->id[i].b][m->cross].count == 0)
            return kvm_fail(err, KVM_FORMAT,
                            "%s: a block of %s and %s, whose rows it does not describe",
                            kvm_st_path(m->x).at, kvm_space_name(m->id[i].a),
                            kvm_space_name(m->id[i].b));
    return KVM_OK;
}

static kvm_status read_rows(merge *m, int64_t sum[KVM_SPLITS], kvm_err *err)
{
    ptrdiff_t x[KVM_SPLITS], y[KVM_SPLITS];
    TRY(kvm_moments__read_rows(m->x, x, err));
    TRY(kvm_moments__read_rows(m->y, y, err));
    for (int p = 0; p < KVM_SPLITS; p++) {
        m->n[p][0] = (double)x[p];
        m->n[p][1] = (double)y[p];
        sum[p] = x[p] + y[p];
    }
    return KVM_OK;
}

/* a tensor of both files */
static kvm_status both(const merge *m, const kvm_st_spec *spec, const double **x,
                       const double **y, kvm_err *err)
{
    const kvm_st_tensor *t;
    TRY(kvm_st_need(m->x, spec->name, KVM_F64, spec->rank, spec->dim, &t, err));
    *x = t->t.data;
    TRY(kvm_st_need(m->y, spec->name, KVM_F64, spec->rank, spec->dim, &t, err));
    *y = t->t.data;
    return KVM_OK;
}

static kvm_status vector(const merge *m, const char *what, kvm_block_id id, kvm_split p,
                         ptrdiff_t n, const double **x, const double **y, kvm_err *err)
{
    const kvm_st_spec spec = {
        kvm_moments__name(m->own, what, id, p, -1, -1), KVM_F64, 1, {n}};
    if (!spec.name.at) return kvm_nomem(err, m->own);
    return both(m, &spec, x, y, err);
}

static kvm_block_layout layout(const merge *m, ptrdiff_t block)
{
    const kvm_block_id id = m->id[block];
    return kvm_moments__layout(id, m->cross, &m->panels[id.a][0],
                               &m->panels[id.b][m->cross]);
}

/* tiles, means and squares of one (block, split) in the order of kvm_moments__specs */
static kvm_status merge_one(const merge *m, ptrdiff_t block, kvm_split p,
                            kvm_st_writer *st, kvm_arena room, kvm_err *err)
{
    const kvm_block_layout l = layout(m, block);
    const kvm_panels *a = l.a, *b = l.b;
    const double nx = m->n[p][0], ny = m->n[p][1], *x, *y, *mean[2][2];
    for (int i = 0; i <= !l.half; i++)
        TRY(vector(m, i ? "mean.b" : "mean.a", l.id, p, i ? b->width : a->width,
                   &mean[i][0], &mean[i][1], err));
    const double *const *ma = mean[0], *const *mb = mean[!l.half];
    const ptrdiff_t specs = kvm_moments__spec_count(&l);
    const ptrdiff_t widest = a->width > b->width ? a->width : b->width;
    kvm_st_spec *spec = kvm_new(&room, kvm_st_spec, specs);
    double *sum = kvm_new_raw(&room, double, widest);
    if (!spec || !sum) return kvm_nomem(err, &room);
    ptrdiff_t n = 0, t = 0;
    TRY(kvm_moments__specs(spec, &n, &room, &l, p, err));
    for (ptrdiff_t i = 0; i < a->count; i++)
        for (ptrdiff_t j = l.half ? i : 0; j < b->count; j++, t++) {
            const ptrdiff_t f = a->p[i].width, q = b->p[j].width;
            kvm_arena tile = room;
            double *z = kvm_new_raw(&tile, double, f *q);
            if (!z) return kvm_nomem(err, &tile);
            TRY(both(m, &spec[t], &x, &y, err));
            memcpy(z, x, sizeof *z * (size_t)(f * q));
            kvm_chan_merge(z, y, f, q, nx, ny, ma[0] + a->p[i].at, ma[1] + a->p[i].at,
                           mb[0] + b->p[j].at, mb[1] + b->p[j].at);
            TRY(kvm_st_append(st, z, sizeof *z * (size_t)(f * q), err));
        }
    for (; t < n; t++) { /* mean.a [mean.b square.a square.b] */
        const ptrdiff_t side = (t - (n - (l.half ? 1 : 4))) % 2, w = spec[t].dim[0];
        TRY(both(m, &spec[t], &x, &y, err));
        memcpy(sum, x, sizeof *sum * (size_t)w);
        if (kvm_str_starts(spec[t].name, KVM_STR("mean")))
            kvm_chan_mean(sum, y, w, nx, ny);
        else
            for (ptrdiff_t i = 0; i < w; i++)
                kvm_chan_merge(sum + i, y + i, 1, 1, nx, ny, mean[side][0] + i,
                               mean[side][1] + i, mean[side][0] + i, mean[side][1] + i);
        TRY(kvm_st_append(st, sum, sizeof *sum * (size_t)w, err));
    }
    return KVM_OK;
}

static kvm_status merge_files(merge *m, kvm_str path, char sha_hex[65], kvm_err *err)
{
    json_t *meta = kvm_json_own(m->own, json_object());
    if (!meta) return kvm_nomem(err, m->own);
    int64_t rows[KVM_SPLITS];
    TRY(check_pair(m, meta, err));
    TRY(read_rows(m, rows, err));
    ptrdiff_t specs = 1, n = 0;
    for (ptrdiff_t i = 0; i < m->blocks; i++) {
        const kvm_block_layout l = layout(m, i);
        specs += KVM_SPLITS * kvm_moments__spec_count(&l);
    }
    kvm_st_spec *spec = kvm_new(m->own, kvm_st_spec, specs);
    if (!spec) return kvm_nomem(err, m->own);
    spec[n++] = (kvm_st_spec){KVM_STR("rows"), KVM_I64, 1, {KVM_SPLITS}};
    for (ptrdiff_t i = 0; i < m->blocks; i++)
        for (int p = 0; p < KVM_SPLITS; p++) {
            const kvm_block_layout l = layout(m, i);
            TRY(kvm_moments__specs(spec, &n, m->own, &l, (kvm_split)p, err));
        }
    kvm_st_writer *st;
    TRY(kvm_st_begin(&st, m->own, path, spec, n, meta, err));
    TRY(kvm_st_append(st, rows, sizeof rows, err));
    for (ptrdiff_t i = 0; i < m->blocks; i++)
        for (int p = 0; p < KVM_SPLITS; p++)
            TRY(merge_one(m, i, (kvm_split)p, st, *m->own, err));
    return kvm_st_publish(st, sha_hex, err);
}

kvm_status kvm_moments_merge(kvm_str path, kvm_str x, kvm_str y, char sha_hex[65],
                             kvm_err *err)
{
    kvm_arena own = {0};
    TRY(kvm_arena_reserve(&own, (size_t)2 << 30, err));
    merge m = {.own = &own};
    kvm_status s = kvm_st_open(&m.x, &own, x, err);
    if (!s) s = kvm_st_open(&m.y, &own, y, err);
    if (!s) s = merge_files(&m, path, sha_hex, err);
    kvm_arena_free(&own);
    return s;
}
