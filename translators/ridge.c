#include "translators/ridge.h"

#include <math.h>
#include <string.h>

#include "translators/ridge_internal.h"

const kvm_lambda kvm_lambda_grid[KVM_LAMBDAS] = {
    {1e-6, false}, {1e-5, false}, {1e-4, false}, {1e-3, false},
    {1e-2, false}, {1e-1, false}, {1e-2, true},
};

kvm_status kvm_ridge__check_lambda(kvm_lambda l, kvm_err *err)
{
    if (l.value >= 0 && isfinite(l.value)) return KVM_OK;
    return kvm_fail(err, KVM_USAGE, "lambda is %g; it must be 0 or a positive number",
                    l.value);
}

void kvm_ridge__r2(const double *error, const double *total, ptrdiff_t p, ptrdiff_t dim,
                   double *mean, double *worst)
{
    const ptrdiff_t heads = p / dim;
    double sum = 0, least = HUGE_VAL;
    for (ptrdiff_t h = 0; h < p; h += dim) {
        double e = 0, t = 0;
        for (ptrdiff_t j = h; j < h + dim; j++) {
            e += error[j] > 0 ? error[j] : 0; /* cancellation may leave -1e-17 */
            t += total[j];
        }
        const double r2 = t > 0 ? 1 - e / t : e > 0 ? 0 : 1;
        sum += r2;
        if (!(r2 >= least)) least = r2;
    }
    *mean = sum / (double)heads;
    *worst = least;
}

/* ---- the system ---- */

kvm_status kvm_system__begin(kvm_system *y, kvm_compute *c, const kvm_moments *m,
                             kvm_features x, kvm_split last, kvm_arena *room,
                             kvm_err *err)
{
    const ptrdiff_t f = kvm_features_width(m, x);
    *y = (kvm_system){.c = c, .m = m, .x = x, .f = f, .last = last};
    y->scale = kvm_new(room, double, f);
    y->penalty = kvm_new(room, double, f);
    y->mean = kvm_new(room, double, f);
    y->value = kvm_new(room, double, f);
    y->factor = kvm_new_raw(room, double, f *f);
    if (!y->scale || !y->penalty || !y->mean || !y->value || !y->factor)
        return kvm_nomem(err, room);
    kvm_moments_get_mean(m, KVM_FIT, x, y->mean);
    for (kvm_split p = KVM_CHOOSE; p <= last; p++) {
        y->gram[p] = kvm_new_raw(room, double, f *f);
        y->shift[p] = kvm_new(room, double, f);
        if (!y->gram[p] || !y->shift[p]) return kvm_nomem(err, room);
        kvm_moments_get_gram(m, p, x, y->gram[p]);
        kvm_moments_get_mean(m, p, x, y->shift[p]);
        for (ptrdiff_t i = 0; i < f; i++) y->shift[p][i] -= y->mean[i];
    }
    return KVM_OK;
}

/* the leading n features' Gram, unit diagonal plus penalty, into factor */
static void load(kvm_system *y, ptrdiff_t n, kvm_lambda lambda)
{
    const ptrdiff_t f = y->f;
    kvm_moments_get_gram(y->m, KVM_FIT, y->x, y->factor);
    for (ptrdiff_t i = 0; i < n; i++) {
        const double d = y->factor[i * f + i];
        y->scale[i] = d > 0 ? 1 / sqrt(d) : 0;
    }
    for (ptrdiff_t i = 0; i < n; i++) {
        double *row = y->factor + i * f;
        for (ptrdiff_t j = 0; j < n; j++) row[j] *= y->scale[i] * y->scale[j];
        const double s = y->scale[i];
        y->penalty[i] = lambda.absolute ? lambda.value * s * s : lambda.value;
        row[i] = 1 + y->penalty[i]; /* of a constant feature too: its weight is 0 */
    }
}

static void add_jitter(kvm_system *y, ptrdiff_t n, double jitter)
{
    y->jitter = jitter;
    for (ptrdiff_t i = 0; i < n; i++) {
        y->penalty[i] += jitter;
        y->factor[i * y->f + i] += jitter;
    }
}

static kvm_tensor square_view(const kvm_system *y, double *a, ptrdiff_t n)
{
    kvm_tensor t = kvm_view2(a, KVM_F64, n, n);
    t.stride[0] = y->f;
    return t;
}

kvm_status kvm_system__factor(kvm_system *y, ptrdiff_t n, kvm_lambda lambda,
                              kvm_err *err)
{
    static const double ladder[] = {0, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8};
    TRY(kvm_ridge__check_lambda(lambda, err));
    y->ready = n;
    y->eigen = false;
    y->dropped = 0;
    for (size_t i = 0; i < sizeof ladder / sizeof *ladder; i++) {
        load(y, n, lambda);
        add_jitter(y, n, ladder[i]);
        const kvm_status s = kvm_op_cholesky(y->c, square_view(y, y->factor, n), NULL);
        if (!s) return KVM_OK;
        if (s != KVM_SINGULAR)
            return kvm_fail(err, s, "factoring %td features: %s", n,
                            kvm_status_text(s));
    }
    load(y, n, lambda);
    y->jitter = 0;
    y->eigen = true;
    TRY(kvm_op_eigh(y->c, square_view(y, y->factor, n), y->value, err));
    const double floor = (double)n * 2.2e-16 * fabs(y->value[n - 1]);
    for (ptrdiff_t i = 0; i < n; i++) {
        const bool keep = y->value[i] > floor;
        y->dropped += !keep;
        y->value[i] = keep ? 1 / y->value[i] : 0;
    }
    return KVM_OK;
}

kvm_status kvm_system__solve(kvm_system *y, ptrdiff_t n, double *z, ptrdiff_t p,
                             kvm_arena scratch, kvm_err *err)
{
    for (ptrdiff_t i = 0; i < n; i++)
        for (ptrdiff_t j = 0; j < p; j++) z[i * p + j] *= y->scale[i];
    const kvm_tensor out = kvm_view2(z, KVM_F64, n, p);
    const kvm_tensor factor = square_view(y, y->factor, n);
    if (!y->eigen) return kvm_op_cholesky_solve(y->c, factor, out, err);
    double *t = kvm_new_raw(&scratch, double, n *p);
    if (!t) return kvm_nomem(err, &scratch);
    const kvm_tensor inner = kvm_view2(t, KVM_F64, n, p);
    TRY(kvm_op_gemm64(y->c, inner, factor, false, out, false, err));
    for (ptrdiff_t i = 0; i < n; i++)
        for (ptrdiff_t j = 0; j < p; j++) t[i * p + j] *= y->value[i];
    return kvm_op_gemm64(y->c, out, factor, true, inner, false, err);
}

/* ---- figures ---- */

/* squared errors (p) of weights w (n,p) on a split outside of the fit:
 * y2 - 2 w.b + w.Aw + rows * shift^2 */
static kvm_status split_errors(kvm_system *y, kvm_split split, ptrdiff_t n,
                               const double *w, kvm_output out, ptrdiff_t from,
                               ptrdiff_t p, double *error, double *total,
                               kvm_arena scratch, kvm_err *err)
{
    double *b = kvm_new_raw(&scratch, double, y->f *p);
    double *aw = kvm_new_raw(&scratch, double, n *p);
    double *mean = kvm_new(&scratch, double, p), *fit = kvm_new(&scratch, double, p);
    if (!b || !aw || !mean || !fit) return kvm_nomem(err, &scratch);
    kvm_moments_get_cross(y->m, split, y->x, out, from, p, b, p);
    kvm_moments_get_target(y->m, split, out, from, p, total, mean);
    kvm_moments_get_target(y->m, KVM_FIT, out, from, p, NULL, fit);
    TRY(kvm_op_gemm64(y->c, kvm_view2(aw, KVM_F64, n, p),
                      square_view(y, y->gram[split], n), false,
                      kvm_view2_const(w, KVM_F64, n, p), false, err));
    for (ptrdiff_t j = 0; j < p; j++) {
        error[j] = total[j];
        mean[j] -= fit[j];
    }
    for (ptrdiff_t i = 0; i < n; i++)
        for (ptrdiff_t j = 0; j < p; j++) {
            const double v = w[i * p + j];
            error[j] += v * (aw[i * p + j] - 2 * b[i * p + j]);
            mean[j] -= v * y->shift[split][i];
        }
    const double rows = (double)kvm_moments_rows(y->m, split);
    for (ptrdiff_t j = 0; j < p; j++) error[j] += rows * mean[j] * mean[j];
    return KVM_OK;
}

kvm_status kvm_system__figures(kvm_system *y, ptrdiff_t n, const double *z,
                               const double *b, ptrdiff_t ldz, kvm_output out,
                               ptrdiff_t from, ptrdiff_t p, kvm_ridge_figures *figures,
                               kvm_arena scratch, kvm_err *err)
{
    double *w = kvm_new_raw(&scratch, double, n *p);
    double *error = kvm_new(&scratch, double, p), *total = kvm_new(&scratch, double, p);
    if (!w || !error || !total) return kvm_nomem(err, &scratch);
    kvm_moments_get_target(y->m, KVM_FIT, out, from, p, total, NULL);
    memcpy(error, total, sizeof *error * (size_t)p);
    double norm = 0;
    /* (A+P) z = b in unit-diagonal coordinates, so |y - xw|^2 = y2 - z.b - z.Pz */
    for (ptrdiff_t i = 0; i < n; i++)
        for (ptrdiff_t j = 0; j < p; j++) {
            const double v = z[i * ldz + j];
            w[i * p + j] = v * y->scale[i];
            error[j] -= v * (y->scale[i] * b[i * ldz + j] + y->penalty[i] * v);
            if (total[j] > 0) norm += v * v / total[j];
        }
    if (!isfinite(norm))
        return kvm_fail(err, KVM_NAN,
                        "%s of target layer %td: the solution is not finite",
                        kvm_space_name(out.space), out.layer);
    const ptrdiff_t dim = kvm_moments_shape(y->m, KVM_TARGET, out.space, out.layer).dim;
    *figures = (kvm_ridge_figures){.rows = kvm_moments_rows(y->m, KVM_FIT),
                                   .features = n,
                                   .weight_norm = sqrt(norm / (double)p),
                                   .jitter = y->jitter,
                                   .dropped = y->dropped};
    kvm_ridge__r2(error, total, p, dim, &figures->r2[KVM_FIT],
                  &figures->worst[KVM_FIT]);
    for (kvm_split q = KVM_CHOOSE; q < KVM_SPLITS; q++) {
        figures->r2[q] = figures->worst[q] = (double)NAN;
        if (q > y->last || kvm_moments_rows(y->m, q) == 0) continue;
        TRY(split_errors(y, q, n, w, out, from, p, error, total, scratch, err));
        kvm_ridge__r2(error, total, p, dim, &figures->r2[q], &figures->worst[q]);
    }
    return KVM_OK;
}

/* ---- fitting ---- */

size_t kvm_ridge_bytes(ptrdiff_t features, ptrdiff_t outputs)
{
    const size_t f = (size_t)features, p = (size_t)outputs;
    return sizeof(double) * (3 * f * f + 7 * f * p + 9 * f + 16 * p) + 65536;
}

static kvm_status item_exists(const kvm_moments *m, kvm_feature f, ptrdiff_t head,
                              kvm_err *err)
{
    if (f.layer >= 0 && f.layer < kvm_moments_layers(m, f.side) &&
        head < kvm_moments_shape(m, f.side, f.space, f.layer).heads)
        return KVM_OK;
    return kvm_fail(err, KVM_RANGE, "%s layer %td, head %td does not exist",
                    f.side == KVM_SOURCE ? "source" : "target", f.layer, head);
}

/* entries of the output that out_head stands for */
static kvm_status out_range(const kvm_moments *m, kvm_features x, kvm_output y,
                            ptrdiff_t out_head, ptrdiff_t *from, ptrdiff_t *p,
                            kvm_err *err)
{
    const ptrdiff_t layers = kvm_moments_layers(m, KVM_TARGET);
    if (y.layer < 0 || y.layer >= layers || x.count < 1)
        return kvm_fail(err, KVM_RANGE,
                        "target layer %td of %td from the rows of %td layers", y.layer,
                        layers, x.count);
    for (ptrdiff_t i = 0; i < x.count; i++) TRY(item_exists(m, x.item[i], x.head, err));
    TRY(kvm_moments_has(m, x, y, err));
    const kvm_row_shape t = kvm_moments_shape(m, KVM_TARGET, y.space, y.layer);
    if (out_head >= t.heads)
        return kvm_fail(err, KVM_RANGE, "target layer %td has no head %td", y.layer,
                        out_head);
    *from = out_head < 0 ? 0 : out_head * t.dim;
    *p = out_head < 0 ? t.heads * t.dim : t.dim;
    return KVM_OK;
}

kvm_status kvm_ridge_fit(kvm_compute *c, const kvm_moments *m, kvm_features x,
                         kvm_output y, ptrdiff_t out_head, const kvm_ridge_options *o,
                         kvm_ridge_map *map, kvm_ridge_figures *figures,
                         kvm_arena *keep, kvm_arena scratch, kvm_err *err)
{
    ptrdiff_t from, p;
    TRY(out_range(m, x, y, out_head, &from, &p, err));
    TRY(kvm_ridge__check_lambda(o->lambda, err));
    const ptrdiff_t f = kvm_features_width(m, x), rows = kvm_moments_rows(m, KVM_FIT);
    if (rows <= f && !o->allow_wide)
        return kvm_fail(
            err, KVM_RANGE,
            "%s of target layer %td: %td rows for %td features; noise alone "
            "would fit: capture more tokens, take fewer layers, or allow it "
            "explicitly",
            kvm_space_name(y.space), y.layer, rows, f);
    kvm_system system;
    TRY(kvm_system__begin(&system, c, m, x, KVM_HELD, &scratch, err));
    double *b = kvm_new_raw(&scratch, double, f *p);
    double *z = kvm_new_raw(&scratch, double, f *p);
    double *w = kvm_new_raw(keep, double, f *p), *bias = kvm_new(keep, double, p);
    if (!b || !z) return kvm_nomem(err, &scratch);
    if (!w || !bias) return kvm_nomem(err, keep);
    kvm_moments_get_cross(m, KVM_FIT, x, y, from, p, b, p);
    memcpy(z, b, sizeof *z * (size_t)(f * p));
    TRY(kvm_system__factor(&system, f, o->lambda, err));
    TRY(kvm_system__solve(&system, f, z, p, scratch, err));
    TRY(kvm_system__figures(&system, f, z, b, p, y, from, p, figures, scratch, err));
    kvm_moments_get_target(m, KVM_FIT, y, from, p, NULL, bias);
    for (ptrdiff_t i = 0; i < f; i++)
        for (ptrdiff_t j = 0; j < p; j++) {
            w[i * p + j] = z[i * p + j] * system.scale[i];
            bias[j] -= w[i * p + j] * system.mean[i];
        }
    *map = (kvm_ridge_map){.inputs = f, .outputs = p, .weight = w, .bias = bias};
    return KVM_OK;
}

/* one prefix of the sweep from a factor that may serve several */
static kvm_status prefix(kvm_system *y, ptrdiff_t n, kvm_lambda lambda, kvm_output out,
                         ptrdiff_t p, const double *b, double *z,
                         kvm_ridge_figures *figures, kvm_arena scratch, kvm_err *err)
{
    /* a factor with jitter or eigenvectors is of the longest prefix's making alone */
    if (n != y->ready && (y->eigen || y->jitter > 0))
        TRY(kvm_system__factor(y, n, lambda, err));
    memcpy(z, b, sizeof *z * (size_t)(n * p));
    TRY(kvm_system__solve(y, n, z, p, scratch, err));
    return kvm_system__figures(y, n, z, b, p, out, 0, p, figures, scratch, err);
}

kvm_status kvm_ridge_sweep(kvm_compute *c, const kvm_moments *m, kvm_features x,
                           kvm_output y, const ptrdiff_t *ks, ptrdiff_t nk,
                           const kvm_lambda *lambdas, ptrdiff_t nl, bool allow_wide,
                           kvm_ridge_figures *figures, kvm_arena scratch, kvm_err *err)
{
    ptrdiff_t from, p, longest = 0;
    TRY(out_range(m, x, y, -1, &from, &p, err));
    const ptrdiff_t rows = kvm_moments_rows(m, KVM_FIT);
    ptrdiff_t *width = kvm_new(&scratch, ptrdiff_t, nk);
    if (!width) return kvm_nomem(err, &scratch);
    for (ptrdiff_t i = 0; i < nk; i++) {
        if (ks[i] < 1 || ks[i] > x.count)
            return kvm_fail(err, KVM_RANGE, "a sweep over %td of %td layers' rows",
                            ks[i], x.count);
        width[i] = kvm_features_width(m, (kvm_features){x.item, ks[i], x.head});
        if (rows <= width[i] && !allow_wide) {
            for (ptrdiff_t l = 0; l < nl; l++)
                figures[i * nl + l] = (kvm_ridge_figures){
                    .rows = rows, .features = width[i], .refused = true};
            width[i] = 0;
        } else if (ks[i] > longest) {
            longest = ks[i];
        }
    }
    if (longest == 0) return KVM_OK;
    kvm_system system;
    TRY(kvm_system__begin(&system, c, m, (kvm_features){x.item, longest, x.head},
                          KVM_CHOOSE, &scratch, err));
    double *b = kvm_new_raw(&scratch, double, system.f *p);
    double *z = kvm_new_raw(&scratch, double, system.f *p);
    if (!b || !z) return kvm_nomem(err, &scratch);
    kvm_moments_get_cross(m, KVM_FIT, system.x, y, 0, p, b, p);
    for (ptrdiff_t l = 0; l < nl; l++) {
        TRY(kvm_system__factor(&system, system.f, lambdas[l], err));
        for (ptrdiff_t i = nk; i-- > 0;)
            if (width[i] > 0)
                TRY(prefix(&system, width[i], lambdas[l], y, p, b, z,
                           &figures[i * nl + l], scratch, err));
    }
    return KVM_OK;
}

kvm_status kvm_ridge_score(kvm_compute *c, const kvm_moments *m, kvm_features x,
                           kvm_output y, ptrdiff_t out_head, const double *weight,
                           const double *bias, kvm_ridge_figures *figures,
                           kvm_arena scratch, kvm_err *err)
{
    ptrdiff_t from, p;
    TRY(out_range(m, x, y, out_head, &from, &p, err));
    const ptrdiff_t f = kvm_features_width(m, x);
    double *g = kvm_new_raw(&scratch, double, f *f),
           *b = kvm_new_raw(&scratch, double, f *p);
    double *aw = kvm_new_raw(&scratch, double, f *p),
           *mx = kvm_new(&scratch, double, f);
    double *error = kvm_new(&scratch, double, p), *total = kvm_new(&scratch, double, p);
    double *my = kvm_new(&scratch, double, p);
    if (!g || !b || !aw || !mx || !error || !total || !my)
        return kvm_nomem(err, &scratch);
    kvm_ridge_figures out = {.rows = kvm_moments_rows(m, KVM_FIT), .features = f};
    for (int split = 0; split < KVM_SPLITS; split++) {
        const kvm_split q = (kvm_split)split;
        kvm_moments_get_gram(m, q, x, g);
        kvm_moments_get_cross(m, q, x, y, from, p, b, p);
        kvm_moments_get_mean(m, q, x, mx);
        kvm_moments_get_target(m, q, y, from, p, total, my);
        TRY(kvm_op_gemm64(c, kvm_view2(aw, KVM_F64, f, p),
                          kvm_view2_const(g, KVM_F64, f, f), false,
                          kvm_view2_const(weight, KVM_F64, f, p), false, err));
        double norm = 0;
        for (ptrdiff_t j = 0; j < p; j++) {
            error[j] = total[j];
            my[j] -= bias[j];
        }
        for (ptrdiff_t i = 0; i < f; i++)
            for (ptrdiff_t j = 0; j < p; j++) {
                const double w = weight[i * p + j];
                error[j] += w * (aw[i * p + j] - 2 * b[i * p + j]);
                my[j] -= w * mx[i];
                if (total[j] > 0) norm += w * w * g[i * f + i] / total[j];
            }
        const double rows = (double)kvm_moments_rows(m, q);
        for (ptrdiff_t j = 0; j < p; j++) error[j] += rows * my[j] * my[j];
        const ptrdiff_t dim = kvm_moments_shape(m, KVM_TARGET, y.space, y.layer).dim;
        kvm_ridge__r2(error, total, p, dim, &out.r2[q], &out.worst[q]);
        if (q == KVM_FIT) out.weight_norm = sqrt(norm / (double)p);
    }
    *figures = out;
    return KVM_OK;
}
