#include "translators/select.h"

#include <math.h>
#include <string.h>

#include "translators/ridge_internal.h"

/* ---- (source x target) maps ---- */

/* entries of one target layer that a map from x makes: all, or those of one head */
static void outputs(const kvm_moments *m, kvm_features x, kvm_output y, ptrdiff_t *from,
                    ptrdiff_t *p)
{
    const kvm_row_shape r = kvm_moments_shape(m, KVM_TARGET, y.space, y.layer);
    *from = x.head < 0 ? 0 : x.head * r.dim;
    *p = x.head < 0 ? r.heads * r.dim : r.dim;
}

static ptrdiff_t all_outputs(const kvm_moments *m, kvm_space out)
{
    ptrdiff_t p = 0;
    for (ptrdiff_t l = 0; l < kvm_moments_layers(m, KVM_TARGET); l++)
        p += kvm_shapes_width(kvm_moments_shapes(m, KVM_TARGET), out, l);
    return p;
}

/* the features that one source layer gives, without the token */
static kvm_features layer_items(const kvm_mapping *mapping, int32_t layer,
                                ptrdiff_t target, ptrdiff_t head, kvm_feature item[2])
{
    kvm_mapping bare = *mapping;
    bare.token = false;
    return (kvm_features){item, kvm_mapping_items(&bare, &layer, 1, target, item),
                          head};
}

size_t kvm_select_bytes(const kvm_moments *m, const kvm_mapping *mapping)
{
    size_t f = 0, widest = 0;
    for (int32_t l = 0; l < kvm_moments_layers(m, KVM_SOURCE); l++) {
        kvm_feature item[2];
        const size_t w =
            (size_t)kvm_features_width(m, layer_items(mapping, l, l, -1, item));
        f += w;
        widest = w > widest ? w : widest;
    }
    const size_t p = (size_t)all_outputs(m, mapping->out);
    const size_t maps = kvm_ridge_bytes((ptrdiff_t)widest, (ptrdiff_t)p);
    const size_t greedy =
        sizeof(double) * (f * f + f * p + widest * (widest + 3 * f + 3 * p)) + 65536;
    return maps > greedy ? maps : greedy;
}

/* R2 of every target layer from the features x, one factor and one solve for all;
 * heads of the target from `head` alone when x.head >= 0. Adds to fit, chosen
 * (targets). */
static kvm_status map_row(kvm_compute *c, const kvm_moments *m, kvm_features x,
                          const kvm_r2_map *map, kvm_space out,
                          const kvm_map_options *o, kvm_lambda lambda, double *fit,
                          double *chosen, kvm_arena scratch, kvm_err *err)
{
    const ptrdiff_t f = kvm_features_width(m, x), rows = kvm_moments_rows(m, KVM_FIT);
    if (rows <= f && !o->allow_wide)
        return kvm_fail(
            err, KVM_RANGE,
            "%s: %td rows for the %td features of source layer %td; capture "
            "more tokens or allow it explicitly",
            kvm_space_name(out), rows, f, x.item[0].layer);
    for (ptrdiff_t t = 0; t < map->targets; t++)
        TRY(kvm_moments_has(m, x, (kvm_output){out, map->target[t]}, err));
    kvm_system y;
    TRY(kvm_system__begin(&y, c, m, x, KVM_CHOOSE, &scratch, err));
    TRY(kvm_system__factor(&y, f, lambda, err));
    const ptrdiff_t all = all_outputs(m, out);
    double *b = kvm_new_raw(&scratch, double, f *all);
    double *z = kvm_new_raw(&scratch, double, f *all);
    if (!b || !z) return kvm_nomem(err, &scratch);
    ptrdiff_t at = 0, from, p;
    for (ptrdiff_t t = 0; t < map->targets; t++, at += p) {
        const kvm_output to = {out, map->target[t]};
        outputs(m, x, to, &from, &p);
        kvm_moments_get_cross(m, KVM_FIT, x, to, from, p, b + at, all);
    }
    const ptrdiff_t used = at;
    for (ptrdiff_t i = 0; i < f; i++)
        memcpy(z + i * used, b + i * all, sizeof *z * (size_t)used);
    TRY(kvm_system__solve(&y, f, z, used, scratch, err));
    for (ptrdiff_t i = 0; i < f; i++)
        memmove(b + i * used, b + i * all, sizeof *b * (size_t)used);
    at = 0;
    for (ptrdiff_t t = 0; t < map->targets; t++, at += p) {
        const kvm_output to = {out, map->target[t]};
        kvm_ridge_figures g;
        outputs(m, x, to, &from, &p);
        TRY(kvm_system__figures(&y, f, z + at, b + at, used, to, from, p, &g, scratch,
                                err));
        fit[t] += g.r2[KVM_FIT];
        chosen[t] += g.r2[KVM_CHOOSE];
    }
    return KVM_OK;
}

static kvm_status need_equal_heads(const kvm_moments *m, const kvm_mapping *mapping,
                                   const kvm_r2_map *map, kvm_err *err)
{
    const ptrdiff_t heads =
        kvm_moments_shape(m, KVM_SOURCE, mapping->from[0], map->source[0]).heads;
    for (ptrdiff_t i = 0; i < map->sources + map->targets; i++) {
        const bool from = i < map->sources;
        const kvm_row_shape r = kvm_moments_shape(
            m, from ? KVM_SOURCE : KVM_TARGET, from ? mapping->from[0] : mapping->out,
            from ? map->source[i] : map->target[i - map->sources]);
        if (r.heads != heads)
            return kvm_fail(err, KVM_SHAPE,
                            "maps by head need equal head counts; %s has %td and %td",
                            kvm_space_name(mapping->out), heads, r.heads);
    }
    return KVM_OK;
}

static kvm_status map_alloc(const kvm_moments *m, const kvm_mapping *mapping,
                            kvm_r2_map *map, kvm_arena *keep, kvm_err *err)
{
    const kvm_shapes *s = kvm_moments_shapes(m, KVM_SOURCE);
    const kvm_shapes *t = kvm_moments_shapes(m, KVM_TARGET);
    int32_t *source = kvm_new(keep, int32_t, s->layers);
    int32_t *target = kvm_new(keep, int32_t, t->layers);
    if (!source || !target) return kvm_nomem(err, keep);
    *map = (kvm_r2_map){.sources = kvm_mapping_layers(mapping, KVM_SOURCE, s, source),
                        .targets = kvm_mapping_layers(mapping, KVM_TARGET, t, target),
                        .source = source,
                        .target = target};
    for (int p = 0; p < KVM_HELD; p++) {
        map->r2[p] = kvm_new(keep, double, map->sources * map->targets);
        if (!map->r2[p]) return kvm_nomem(err, keep);
    }
    return KVM_OK;
}

kvm_status kvm_select_maps(kvm_compute *c, const kvm_moments *m,
                           const kvm_mapping *mapping, const kvm_map_options *o,
                           kvm_r2_map *map, kvm_arena *keep, kvm_arena scratch,
                           kvm_err *err)
{
    kvm_lambda lambda = o->lambda;
    kvm_r2_map out;
    if (lambda.value == 0) lambda = (kvm_lambda){.value = 1e-6};
    TRY(map_alloc(m, mapping, &out, keep, err));
    if (o->per_head) TRY(need_equal_heads(m, mapping, &out, err));
    const ptrdiff_t parts = o->parts > 1 ? o->parts : 1;
    for (ptrdiff_t s = o->part; s < out.sources; s += parts) {
        kvm_feature item[2];
        const kvm_row_shape r =
            kvm_moments_shape(m, KVM_SOURCE, mapping->from[0], out.source[s]);
        const ptrdiff_t heads = o->per_head ? r.heads : 1;
        double *fit = out.r2[KVM_FIT] + s * out.targets;
        double *chosen = out.r2[KVM_CHOOSE] + s * out.targets;
        for (ptrdiff_t h = 0; h < heads; h++)
            TRY(map_row(
                c, m,
                layer_items(mapping, out.source[s], 0, o->per_head ? h : -1, item),
                &out, mapping->out, o, lambda, fit, chosen, scratch, err));
        for (ptrdiff_t t = 0; t < out.targets; t++) {
            fit[t] /= (double)heads;
            chosen[t] /= (double)heads;
        }
    }
    *map = out;
    return KVM_OK;
}

/* ---- rankings ---- */

/* indices of score (n), largest first; ties keep the lower index first */
static void rank(const double *score, ptrdiff_t n, int32_t *order)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        ptrdiff_t at = i;
        for (; at > 0 && score[order[at - 1]] < score[i]; at--)
            order[at] = order[at - 1];
        order[at] = (int32_t)i;
    }
}

static kvm_status rank_alloc(kvm_ranking *r, kvm_arena *keep, const kvm_r2_map *map,
                             double **score, kvm_err *err)
{
    *r = (kvm_ranking){map->sources, map->targets, map->target,
                       kvm_new(keep, int32_t, map->sources * map->targets)};
    *score = kvm_new(keep, double, map->sources);
    return r->order && *score ? KVM_OK : kvm_nomem(err, keep);
}

/* the ranking of target i: indices by score, then the layers that they stand for */
static void put_order(const kvm_ranking *r, ptrdiff_t i, const double *score,
                      const int32_t *source)
{
    int32_t *order = r->order + i * r->sources;
    rank(score, r->sources, order);
    for (ptrdiff_t s = 0; s < r->sources; s++) order[s] = source[order[s]];
}

kvm_status kvm_select_rank(kvm_ranking *r, kvm_arena *keep, const kvm_r2_map *maps,
                           ptrdiff_t n, kvm_split split, kvm_err *err)
{
    double *score;
    TRY(rank_alloc(r, keep, maps, &score, err));
    for (ptrdiff_t t = 0; t < maps->targets; t++) {
        for (ptrdiff_t s = 0; s < maps->sources; s++) {
            score[s] = 0;
            for (ptrdiff_t i = 0; i < n; i++)
                score[s] += maps[i].r2[split][s * maps->targets + t] / (double)n;
            if (!isfinite(score[s]))
                return kvm_fail(err, KVM_NAN,
                                "R2 of target layer %d from source layer %d is not "
                                "known on the %s split",
                                (int)maps->target[t], (int)maps->source[s],
                                kvm_split_name(split));
        }
        put_order(r, t, score, maps->source);
    }
    return KVM_OK;
}

kvm_status kvm_select_depth(kvm_ranking *r, kvm_arena *keep, const kvm_r2_map *map,
                            kvm_err *err)
{
    double *score;
    TRY(rank_alloc(r, keep, map, &score, err));
    for (ptrdiff_t t = 0; t < map->targets; t++) {
        const double depth = ((double)t + 0.5) / (double)map->targets;
        for (ptrdiff_t s = 0; s < map->sources; s++)
            score[s] = -fabs(((double)s + 0.5) / (double)map->sources - depth);
        put_order(r, t, score, map->source);
    }
    return KVM_OK;
}

ptrdiff_t kvm_select_ks(ptrdiff_t sources, ptrdiff_t ks[KVM_KS])
{
    static const ptrdiff_t grid[] = {1, 2, 4, 6, 8, 10, 12, 16, 20, 24};
    ptrdiff_t n = 0;
    for (size_t i = 0; i < sizeof grid / sizeof *grid && grid[i] < sources; i++)
        ks[n++] = grid[i];
    ks[n++] = sources;
    return n;
}

ptrdiff_t kvm_matched_head(ptrdiff_t h, ptrdiff_t source_heads, ptrdiff_t target_heads)
{
    return h * source_heads / target_heads;
}

/* ---- greedy forward selection ---- */

/* What is left of all candidates after the chosen layers: Schur complements, in place.
 * a (f,f) and b (f,p) start as the scaled, penalised Gram and the scaled cross
 * moments. */
typedef struct greedy {
    kvm_compute *c;
    double *a, *b;
    ptrdiff_t f, p, layers;
    int32_t *layer;        /* (layers) candidates */
    ptrdiff_t *at, *width; /* (layers) of each candidate's features */
} greedy;

static kvm_tensor block(double *base, ptrdiff_t pitch, ptrdiff_t rows, ptrdiff_t cols)
{
    kvm_tensor t = kvm_view2(base, KVM_F64, rows, cols);
    t.stride[0] = pitch;
    return t;
}

/* by how much layer l would lower the ridge objective: tr(B_l^T A_ll^-1 B_l); -1 when
 * nothing of the layer is left */
static kvm_status gain(const greedy *g, ptrdiff_t l, double *out, kvm_arena scratch,
                       kvm_err *err)
{
    const ptrdiff_t w = g->width[l], p = g->p;
    double *a = kvm_new_raw(&scratch, double, w *w),
           *z = kvm_new_raw(&scratch, double, w *p);
    if (!a || !z) return kvm_nomem(err, &scratch);
    const double *b = g->b + g->at[l] * p;
    for (ptrdiff_t i = 0; i < w; i++)
        memcpy(a + i * w, g->a + (g->at[l] + i) * g->f + g->at[l],
               sizeof *a * (size_t)w);
    memcpy(z, b, sizeof *z * (size_t)(w * p));
    const kvm_tensor factor = kvm_view2(a, KVM_F64, w, w);
    *out = -1;
    const kvm_status s = kvm_op_cholesky(g->c, factor, NULL);
    if (s == KVM_SINGULAR) return KVM_OK;
    if (s) return kvm_fail(err, s, "greedy selection: %s", kvm_status_text(s));
    TRY(kvm_op_cholesky_solve(g->c, factor, kvm_view2(z, KVM_F64, w, p), err));
    double sum = 0;
    for (ptrdiff_t i = 0; i < w * p; i++) sum += z[i] * b[i];
    *out = sum;
    return KVM_OK;
}

/* take layer l out of all others: A -= A_l^T A_ll^-1 A_l, B -= A_l^T A_ll^-1 B_l */
static kvm_status eliminate(const greedy *g, ptrdiff_t l, kvm_arena scratch,
                            kvm_err *err)
{
    const ptrdiff_t w = g->width[l], f = g->f, p = g->p;
    double *a = kvm_new_raw(&scratch, double, w *w);
    double *x = kvm_new_raw(&scratch, double, w *f),
           *y = kvm_new_raw(&scratch, double, w *p);
    double *row = kvm_new_raw(&scratch, double, w *f);
    double *da = kvm_new_raw(&scratch, double, w *(f > p ? f : p));
    if (!a || !x || !y || !row || !da) return kvm_nomem(err, &scratch);
    for (ptrdiff_t i = 0; i < w; i++) {
        const double *from = g->a + (g->at[l] + i) * f;
        memcpy(a + i * w, from + g->at[l], sizeof *a * (size_t)w);
        memcpy(row + i * f, from, sizeof *row * (size_t)f);
    }
    memcpy(x, row, sizeof *x * (size_t)(w * f));
    memcpy(y, g->b + g->at[l] * p, sizeof *y * (size_t)(w * p));
    const kvm_tensor factor = kvm_view2(a, KVM_F64, w, w);
    TRY(kvm_op_cholesky(g->c, factor, err));
    TRY(kvm_op_cholesky_solve(g->c, factor, kvm_view2(x, KVM_F64, w, f), err));
    TRY(kvm_op_cholesky_solve(g->c, factor, kvm_view2(y, KVM_F64, w, p), err));
    for (ptrdiff_t o = 0; o < g->layers; o++) { /* strips of rows, to bound the room */
        if (g->width[o] == 0 || o == l) continue;
        const ptrdiff_t v = g->width[o];
        for (ptrdiff_t from = 0; from < v; from += w) {
            const ptrdiff_t n = v - from < w ? v - from : w, at = g->at[o] + from;
            const kvm_tensor left = block(row + at, f, w, n);
            TRY(kvm_op_gemm64(g->c, kvm_view2(da, KVM_F64, n, f), left, true,
                              kvm_view2(x, KVM_F64, w, f), false, err));
            for (ptrdiff_t i = 0; i < n; i++)
                for (ptrdiff_t j = 0; j < f; j++)
                    g->a[(at + i) * f + j] -= da[i * f + j];
            TRY(kvm_op_gemm64(g->c, kvm_view2(da, KVM_F64, n, p), left, true,
                              kvm_view2(y, KVM_F64, w, p), false, err));
            for (ptrdiff_t i = 0; i < n * p; i++) g->b[at * p + i] -= da[i];
        }
    }
    g->width[l] = 0; /* chosen */
    return KVM_OK;
}

/* the unit-diagonal system of all layers */
static kvm_status greedy_begin(greedy *g, const kvm_moments *m,
                               const kvm_mapping *mapping, kvm_output y,
                               kvm_lambda lambda, kvm_arena *room, kvm_err *err)
{
    const kvm_shapes *source = kvm_moments_shapes(m, KVM_SOURCE);
    g->p = kvm_shapes_width(kvm_moments_shapes(m, KVM_TARGET), y.space, y.layer);
    g->layer = kvm_new(room, int32_t, source->layers);
    g->at = kvm_new(room, ptrdiff_t, source->layers);
    g->width = kvm_new(room, ptrdiff_t, source->layers);
    kvm_feature *item = kvm_new(room, kvm_feature, 2 * source->layers);
    if (!g->layer || !g->at || !g->width || !item) return kvm_nomem(err, room);
    g->layers = kvm_mapping_layers(mapping, KVM_SOURCE, source, g->layer);
    kvm_features x = {item, 0, -1};
    for (ptrdiff_t l = 0; l < g->layers; l++) {
        const kvm_features one =
            layer_items(mapping, g->layer[l], y.layer, -1, item + x.count);
        x.count += one.count;
        g->at[l] = g->f;
        g->width[l] = kvm_features_width(m, one);
        g->f += g->width[l];
    }
    TRY(kvm_moments_has(m, x, y, err));
    g->a = kvm_new_raw(room, double, g->f * g->f);
    g->b = kvm_new_raw(room, double, g->f * g->p);
    double *scale = kvm_new(room, double, g->f);
    if (!g->a || !g->b || !scale) return kvm_nomem(err, room);
    kvm_moments_get_gram(m, KVM_FIT, x, g->a);
    kvm_moments_get_cross(m, KVM_FIT, x, y, 0, g->p, g->b, g->p);
    for (ptrdiff_t i = 0; i < g->f; i++) {
        const double d = g->a[i * g->f + i];
        scale[i] = d > 0 ? 1 / sqrt(d) : 0;
    }
    for (ptrdiff_t i = 0; i < g->f; i++) {
        for (ptrdiff_t j = 0; j < g->f; j++) g->a[i * g->f + j] *= scale[i] * scale[j];
        g->a[i * g->f + i] =
            1 + (lambda.absolute ? lambda.value * scale[i] * scale[i] : lambda.value);
        for (ptrdiff_t j = 0; j < g->p; j++) g->b[i * g->p + j] *= scale[i];
    }
    return KVM_OK;
}

kvm_status kvm_select_greedy(kvm_compute *c, const kvm_moments *m,
                             const kvm_mapping *mapping, ptrdiff_t target,
                             kvm_lambda lambda, int32_t *order, ptrdiff_t count,
                             kvm_arena scratch, kvm_err *err)
{
    TRY(kvm_ridge__check_lambda(lambda, err));
    if (target < 0 || target >= kvm_moments_layers(m, KVM_TARGET))
        return kvm_fail(err, KVM_RANGE, "there is no target layer %td", target);
    greedy g = {.c = c};
    TRY(greedy_begin(&g, m, mapping, (kvm_output){mapping->out, target}, lambda,
                     &scratch, err));
    if (count < 0 || count > g.layers)
        return kvm_fail(err, KVM_RANGE, "%td of %td source layers", count, g.layers);
    for (ptrdiff_t step = 0; step < count; step++) {
        ptrdiff_t best = -1;
        double most = -HUGE_VAL;
        for (ptrdiff_t l = 0; l < g.layers; l++) {
            double v;
            if (g.width[l] == 0) continue;
            TRY(gain(&g, l, &v, scratch, err));
            if (v > most) {
                most = v;
                best = l;
            }
        }
        if (most < 0) { /* the rest adds nothing: in order of depth */
            for (ptrdiff_t l = 0; l < g.layers && step < count; l++)
                if (g.width[l]) order[step++] = g.layer[l];
            return KVM_OK;
        }
        order[step] = g.layer[best];
        if (step + 1 < count) TRY(eliminate(&g, best, scratch, err));
    }
    return KVM_OK;
}
