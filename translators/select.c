#include "translators/select.h"

#include <math.h>
#include <string.h>

#include "translators/ridge_internal.h"

/* ---- (source x target) maps ---- */

static ptrdiff_t all_outputs(const kvm_moments *m, kvm_space s)
{
    ptrdiff_t p = 0;
    for (ptrdiff_t l = 0; l < kvm_moments_layers(m, KVM_TARGET); l++) {
        const kvm_row_shape t = kvm_moments_shape(m, KVM_TARGET, s, l);
        p += t.heads * t.dim;
    }
    return p;
}

size_t kvm_select_bytes(const kvm_moments *m)
{
    size_t most = 0;
    for (int s = 0; s < KVM_SPACES; s++) {
        size_t f = 0, widest = 0;
        for (ptrdiff_t l = 0; l < kvm_moments_layers(m, KVM_SOURCE); l++) {
            const kvm_row_shape r = kvm_moments_shape(m, KVM_SOURCE, (kvm_space)s, l);
            const size_t w = (size_t)(r.heads * r.dim);
            f += w;
            widest = w > widest ? w : widest;
        }
        const size_t p = (size_t)all_outputs(m, (kvm_space)s);
        const size_t maps = kvm_ridge_bytes((ptrdiff_t)widest, (ptrdiff_t)p);
        const size_t greedy =
            sizeof(double) * (f * f + f * p + widest * (widest + 3 * f + 3 * p)) +
            65536;
        most = maps > most ? maps : most;
        most = greedy > most ? greedy : most;
    }
    return most;
}

/* R2 of every target layer from the features x, one factor and one solve for all;
 * heads of the target from `head` alone when x.head >= 0 */
static kvm_status map_row(kvm_compute *c, const kvm_moments *m, kvm_space s,
                          kvm_features x, const kvm_map_options *o, kvm_lambda lambda,
                          double *fit, double *chosen, kvm_arena scratch, kvm_err *err)
{
    const ptrdiff_t targets = kvm_moments_layers(m, KVM_TARGET);
    const ptrdiff_t f = kvm_features_width(m, s, x),
                    rows = kvm_moments_rows(m, KVM_FIT);
    if (rows <= f && !o->allow_wide)
        return kvm_fail(err, KVM_RANGE,
                        "%s: %td rows for the %td features of source layer %d; capture "
                        "more tokens or allow it explicitly",
                        kvm_space_name(s), rows, f, (int)x.layers[0]);
    kvm_system y;
    TRY(kvm_system__begin(&y, c, m, s, x, KVM_CHOOSE, &scratch, err));
    TRY(kvm_system__factor(&y, f, lambda, err));
    const ptrdiff_t all = all_outputs(m, s);
    double *b = kvm_new_raw(&scratch, double, f *all);
    double *z = kvm_new_raw(&scratch, double, f *all);
    if (!b || !z) return kvm_nomem(err, &scratch);
    ptrdiff_t at = 0;
    for (ptrdiff_t t = 0; t < targets; t++) {
        const kvm_row_shape r = kvm_moments_shape(m, KVM_TARGET, s, t);
        const ptrdiff_t from = x.head < 0 ? 0 : x.head * r.dim;
        const ptrdiff_t p = x.head < 0 ? r.heads * r.dim : r.dim;
        kvm_moments_get_cross(m, s, KVM_FIT, x, t, from, p, b + at, all);
        at += p;
    }
    const ptrdiff_t used = at;
    for (ptrdiff_t i = 0; i < f; i++)
        memcpy(z + i * used, b + i * all, sizeof *z * (size_t)used);
    TRY(kvm_system__solve(&y, f, z, used, scratch, err));
    for (ptrdiff_t i = 0; i < f; i++)
        memmove(b + i * used, b + i * all, sizeof *b * (size_t)used);
    at = 0;
    for (ptrdiff_t t = 0; t < targets; t++) {
        const kvm_row_shape r = kvm_moments_shape(m, KVM_TARGET, s, t);
        const ptrdiff_t from = x.head < 0 ? 0 : x.head * r.dim;
        const ptrdiff_t p = x.head < 0 ? r.heads * r.dim : r.dim;
        kvm_ridge_figures g;
        TRY(kvm_system__figures(&y, f, z + at, b + at, used, t, from, p, &g, scratch,
                                err));
        fit[t] += g.r2[KVM_FIT];
        chosen[t] += g.r2[KVM_CHOOSE];
        at += p;
    }
    return KVM_OK;
}

static kvm_status need_equal_heads(const kvm_moments *m, kvm_err *err)
{
    for (int s = 0; s < KVM_SPACES; s++) {
        const ptrdiff_t heads = kvm_moments_shape(m, KVM_SOURCE, (kvm_space)s, 0).heads;
        for (int side = 0; side < 2; side++)
            for (ptrdiff_t l = 0; l < kvm_moments_layers(m, (kvm_side)side); l++)
                if (kvm_moments_shape(m, (kvm_side)side, (kvm_space)s, l).heads !=
                    heads)
                    return kvm_fail(
                        err, KVM_SHAPE,
                        "maps by head need equal head counts; %s has "
                        "%td and %td",
                        kvm_space_name((kvm_space)s), heads,
                        kvm_moments_shape(m, (kvm_side)side, (kvm_space)s, l).heads);
    }
    return KVM_OK;
}

kvm_status kvm_select_maps(kvm_compute *c, const kvm_moments *m,
                           const kvm_map_options *o, kvm_r2_map *maps, kvm_arena *keep,
                           kvm_arena scratch, kvm_err *err)
{
    const ptrdiff_t sources = kvm_moments_layers(m, KVM_SOURCE);
    const ptrdiff_t targets = kvm_moments_layers(m, KVM_TARGET);
    kvm_lambda lambda = o->lambda;
    if (lambda.value == 0) lambda = (kvm_lambda){.value = 1e-6};
    if (o->per_head) TRY(need_equal_heads(m, err));
    kvm_r2_map out = {.sources = sources, .targets = targets};
    for (int s = 0; s < KVM_SPACES; s++)
        for (int p = 0; p < KVM_HELD; p++) {
            out.r2[s][p] = kvm_new(keep, double, sources *targets);
            if (!out.r2[s][p]) return kvm_nomem(err, keep);
        }
    for (int s = 0; s < KVM_SPACES; s++)
        for (int32_t l = 0; l < sources; l++) {
            const ptrdiff_t heads =
                o->per_head ? kvm_moments_shape(m, KVM_SOURCE, (kvm_space)s, l).heads
                            : 1;
            double *fit = out.r2[s][KVM_FIT] + l * targets;
            double *chosen = out.r2[s][KVM_CHOOSE] + l * targets;
            for (ptrdiff_t h = 0; h < heads; h++)
                TRY(map_row(c, m, (kvm_space)s,
                            (kvm_features){&l, 1, o->per_head ? h : -1}, o, lambda, fit,
                            chosen, scratch, err));
            for (ptrdiff_t t = 0; t < targets; t++) {
                fit[t] /= (double)heads;
                chosen[t] /= (double)heads;
            }
        }
    *maps = out;
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

static kvm_status rank_alloc(kvm_ranking *r, kvm_arena *keep, ptrdiff_t sources,
                             ptrdiff_t targets, double **score, kvm_err *err)
{
    *r = (kvm_ranking){sources, targets, kvm_new(keep, int32_t, sources * targets)};
    *score = kvm_new(keep, double, sources);
    return r->order && *score ? KVM_OK : kvm_nomem(err, keep);
}

kvm_status kvm_select_rank(kvm_ranking *r, kvm_arena *keep, const kvm_r2_map *maps,
                           kvm_split split, kvm_err *err)
{
    double *score;
    TRY(rank_alloc(r, keep, maps->sources, maps->targets, &score, err));
    for (ptrdiff_t t = 0; t < maps->targets; t++) {
        for (ptrdiff_t s = 0; s < maps->sources; s++) {
            const ptrdiff_t at = s * maps->targets + t;
            score[s] =
                (maps->r2[KVM_SPACE_K][split][at] + maps->r2[KVM_SPACE_V][split][at]) /
                2;
            if (!isfinite(score[s]))
                return kvm_fail(err, KVM_NAN,
                                "R2 of target layer %td from source layer %td is not "
                                "known on the %s split",
                                t, s, kvm_split_name(split));
        }
        rank(score, maps->sources, r->order + t * maps->sources);
    }
    return KVM_OK;
}

kvm_status kvm_select_depth(kvm_ranking *r, kvm_arena *keep, ptrdiff_t sources,
                            ptrdiff_t targets, kvm_err *err)
{
    double *score;
    TRY(rank_alloc(r, keep, sources, targets, &score, err));
    for (ptrdiff_t t = 0; t < targets; t++) {
        const double depth = ((double)t + 0.5) / (double)targets;
        for (ptrdiff_t s = 0; s < sources; s++)
            score[s] = -fabs(((double)s + 0.5) / (double)sources - depth);
        rank(score, sources, r->order + t * sources);
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
    ptrdiff_t *at, *width; /* (layers) of each layer's features */
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
static kvm_status greedy_begin(greedy *g, const kvm_moments *m, kvm_space s,
                               ptrdiff_t target, kvm_lambda lambda, kvm_arena *room,
                               kvm_err *err)
{
    const kvm_row_shape t = kvm_moments_shape(m, KVM_TARGET, s, target);
    g->layers = kvm_moments_layers(m, KVM_SOURCE);
    g->p = t.heads * t.dim;
    int32_t *all = kvm_new(room, int32_t, g->layers);
    g->at = kvm_new(room, ptrdiff_t, g->layers);
    g->width = kvm_new(room, ptrdiff_t, g->layers);
    if (!all || !g->at || !g->width) return kvm_nomem(err, room);
    for (ptrdiff_t l = 0; l < g->layers; l++) {
        const kvm_row_shape r = kvm_moments_shape(m, KVM_SOURCE, s, l);
        all[l] = (int32_t)l;
        g->at[l] = g->f;
        g->width[l] = r.heads * r.dim;
        g->f += g->width[l];
    }
    const kvm_features x = {all, g->layers, -1};
    g->a = kvm_new_raw(room, double, g->f * g->f);
    g->b = kvm_new_raw(room, double, g->f * g->p);
    double *scale = kvm_new(room, double, g->f);
    if (!g->a || !g->b || !scale) return kvm_nomem(err, room);
    kvm_moments_get_gram(m, s, KVM_FIT, x, g->a);
    kvm_moments_get_cross(m, s, KVM_FIT, x, target, 0, g->p, g->b, g->p);
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

kvm_status kvm_select_greedy(kvm_compute *c, const kvm_moments *m, kvm_space s,
                             ptrdiff_t target, kvm_lambda lambda, int32_t *order,
                             ptrdiff_t count, kvm_arena scratch, kvm_err *err)
{
    TRY(kvm_ridge__check_lambda(lambda, err));
    if (target < 0 || target >= kvm_moments_layers(m, KVM_TARGET))
        return kvm_fail(err, KVM_RANGE, "there is no target layer %td", target);
    if (count < 0 || count > kvm_moments_layers(m, KVM_SOURCE))
        return kvm_fail(err, KVM_RANGE, "%td of %td source layers", count,
                        kvm_moments_layers(m, KVM_SOURCE));
    greedy g = {.c = c};
    TRY(greedy_begin(&g, m, s, target, lambda, &scratch, err));
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
                if (g.width[l]) order[step++] = (int32_t)l;
            return KVM_OK;
        }
        order[step] = (int32_t)best;
        if (step + 1 < count) TRY(eliminate(&g, best, scratch, err));
    }
    return KVM_OK;
}
