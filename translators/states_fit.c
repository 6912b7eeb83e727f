/* states_fit.c - how states are corrected, from those that both models reach after the
 * same texts.
 *
 * Corrections are solved on the split to fit and go down a path of penalties, from a
 * copy (all of it) to nearly none: each penalty goes on from where the one before it
 * ended. What erred least on the split to choose is kept, and a copy is among it: few
 * texts, or states without much in common, end in a copy and never in something worse.
 * R2 on the third split is what a report shows. */
#include <math.h>
#include <string.h>

#include "translators/states.h"
#include "translators/translator_internal.h"

/* relative to the mean diagonal of the normal equations */
static const double penalties[] = {10, 1, 0.1, 0.01, 1e-3, 1e-4};
enum {
    PENALTIES = sizeof penalties / sizeof *penalties,
    ROUNDS_MOST = 8 /* of alternating ridge, for each of them */
};
/* a round that takes less than this share off the error on the choosing split was the
 * last of its penalty */
static const double LEAST_GAIN = 1e-3;

/* paired rows of one space: sequences of a split of both captures */
typedef struct pairs {
    float *x, *y; /* (n, width) */
    ptrdiff_t n, width;
} pairs;

/* ranks of the sequences of a split, ascending */
static kvm_status sequences_of(const kvm_rows *r, const kvm_state_options *o,
                               kvm_split split, ptrdiff_t **rank, ptrdiff_t *n,
                               kvm_arena *keep, kvm_err *err)
{
    ptrdiff_t *index, rows, at = -1, next = 0;
    const int32_t *sequence = kvm_rows_sequence(r);
    TRY(kvm_rows_split(r, o->seed, o->fraction, split, keep, &index, &rows, err));
    *rank = kvm_new(keep, ptrdiff_t, kvm_rows_sequences(r));
    if (!*rank) return kvm_nomem(err, keep);
    *n = 0;
    for (ptrdiff_t i = 0; i < kvm_rows_count(r) && next < rows; i++) {
        const bool fresh = i == 0 || sequence[i] != sequence[i - 1];
        at += fresh;
        if (i != index[next]) continue;
        if (*n == 0 || (*rank)[*n - 1] != at) (*rank)[(*n)++] = at;
        next++;
    }
    return KVM_OK;
}

typedef struct layers {
    const kvm_rows *source, *target;
    ptrdiff_t source_layer, target_layer;
} layers;

static kvm_status read_pairs(kvm_compute *c, const layers *l, kvm_space space,
                             const ptrdiff_t *rank, ptrdiff_t n, pairs *p,
                             kvm_arena *keep, kvm_err *err)
{
    p->n = n;
    p->width =
        kvm_shapes_width(&kvm_rows_info_of(l->target)->shapes, space, l->target_layer);
    p->x = kvm_new_raw(keep, float, n * p->width);
    p->y = kvm_new_raw(keep, float, n * p->width);
    if (!p->x || !p->y) return kvm_nomem(err, keep);
    TRY(kvm_rows_read(c, l->source, space, l->source_layer, 1, 0, rank, n, p->x,
                      p->width, err));
    return kvm_rows_read(c, l->target, space, l->target_layer, 1, 0, rank, n, p->y,
                         p->width, err);
}

/* of y against x as it is */
static double error_of_copy(const pairs *p)
{
    double sum = 0;
    for (ptrdiff_t i = 0; i < p->n * p->width; i++) {
        const double d = (double)p->y[i] - (double)p->x[i];
        sum += d * d;
    }
    return sum;
}

/* W (n,n) of min |x W - y|^2 + lambda |W - I|^2, from xx = sum x^T x and xy = sum x^T
 * y; lambda in units of xx's mean diagonal. Overwrites xx; the solution is in xy. */
static kvm_status towards_identity(kvm_compute *c, double *xx, double *xy, ptrdiff_t n,
                                   double lambda, kvm_err *err)
{
    double trace = 0;
    for (ptrdiff_t i = 0; i < n; i++) trace += xx[i * n + i];
    const double add = lambda * trace / (double)n + 1e-300; /* x is 0: identity */
    for (ptrdiff_t i = 0; i < n; i++) {
        xx[i * n + i] += add;
        xy[i * n + i] += add;
    }
    const kvm_tensor a = kvm_view2(xx, KVM_F64, n, n);
    TRY(kvm_op_cholesky(c, a, err));
    TRY(kvm_op_cholesky_solve(c, a, kvm_view2(xy, KVM_F64, n, n), err));
    for (ptrdiff_t i = 0; i < n * n; i++)
        if (!isfinite(xy[i]))
            return kvm_fail(err, KVM_NAN, "a state's correction is not finite");
    return KVM_OK;
}

static void identity(double *x, ptrdiff_t n)
{
    memset(x, 0, sizeof *x * (size_t)(n * n));
    for (ptrdiff_t i = 0; i < n; i++) x[i * n + i] = 1;
}

/* ---- states ---- */

/* Solving for A on transposed matrices makes both sides alike: T^T = (S B)^T A^T. */
typedef struct sides {
    kvm_compute *c;
    const pairs *fit, *choose;
    ptrdiff_t heads, k, v;
    int rounds;            /* so far */
    double *a, *b;         /* (H,K,K) transposed A, (H,V,V) B */
    double *xx, *xy;       /* (larger, larger), the latter thrice */
    double *m, *r, *s, *t; /* (K,V) */
} sides;

static void widen(double *to, const float *from, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) to[i] = (double)from[i];
}

static void read_head(const sides *f, const pairs *p, ptrdiff_t i, ptrdiff_t head)
{
    const ptrdiff_t n = f->k * f->v, at = i * p->width + head * n;
    widen(f->s, p->x + at, n);
    widen(f->t, p->y + at, n);
}

static kvm_status fit_side(sides *f, ptrdiff_t head, bool left, double lambda,
                           kvm_err *err)
{
    const ptrdiff_t k = f->k, v = f->v, n = left ? k : v;
    const kvm_tensor a = kvm_view2(f->a + head * k * k, KVM_F64, k, k);
    const kvm_tensor b = kvm_view2(f->b + head * v * v, KVM_F64, v, v);
    const kvm_tensor xx = kvm_view2(f->xx, KVM_F64, n, n);
    const kvm_tensor xy = kvm_view2(f->xy, KVM_F64, n, n);
    const kvm_tensor m = kvm_view2(f->m, KVM_F64, k, v);
    const kvm_tensor s = kvm_view2(f->s, KVM_F64, k, v);
    const kvm_tensor t = kvm_view2(f->t, KVM_F64, k, v);
    double *sum = f->xy + n * n, *one = sum + n * n; /* xx and xy of all sequences */
    memset(sum, 0, sizeof *sum * (size_t)(2 * n * n));
    for (ptrdiff_t i = 0; i < f->fit->n; i++) {
        read_head(f, f->fit, i, head);
        /* what the other side has made of the source's state */
        TRY(kvm_op_gemm64(f->c, m, left ? s : a, !left, left ? b : s, false, err));
        TRY(kvm_op_gemm64(f->c, xx, m, !left, m, left, err));
        TRY(kvm_op_gemm64(f->c, xy, m, !left, t, left, err));
        for (ptrdiff_t e = 0; e < n * n; e++) {
            sum[e] += f->xx[e];
            one[e] += f->xy[e];
        }
    }
    memcpy(f->xx, sum, sizeof *sum * (size_t)(n * n));
    memcpy(f->xy, one, sizeof *sum * (size_t)(n * n));
    TRY(towards_identity(f->c, f->xx, f->xy, n, lambda, err));
    memcpy(left ? a.data : b.data, f->xy, sizeof *sum * (size_t)(n * n));
    return KVM_OK;
}

/* squared error of A S B on the choosing split */
static kvm_status error_of(sides *f, double *error, kvm_err *err)
{
    const ptrdiff_t k = f->k, v = f->v;
    *error = 0;
    for (ptrdiff_t h = 0; h < f->heads; h++)
        for (ptrdiff_t i = 0; i < f->choose->n; i++) {
            read_head(f, f->choose, i, h);
            TRY(kvm_op_gemm64(f->c, kvm_view2(f->m, KVM_F64, k, v),
                              kvm_view2(f->a + h * k * k, KVM_F64, k, k), true,
                              kvm_view2(f->s, KVM_F64, k, v), false, err));
            TRY(kvm_op_gemm64(f->c, kvm_view2(f->r, KVM_F64, k, v),
                              kvm_view2(f->m, KVM_F64, k, v), false,
                              kvm_view2(f->b + h * v * v, KVM_F64, v, v), false, err));
            for (ptrdiff_t e = 0; e < k * v; e++)
                *error += (f->r[e] - f->t[e]) * (f->r[e] - f->t[e]);
        }
    return KVM_OK;
}

static void keep_sides(const sides *f, float *left, float *right)
{
    const ptrdiff_t k = f->k, v = f->v;
    for (ptrdiff_t h = 0; h < f->heads; h++)
        for (ptrdiff_t r = 0; r < k; r++)
            for (ptrdiff_t e = 0; e < k; e++)
                left[(h * k + r) * k + e] = (float)f->a[(h * k + e) * k + r];
    for (ptrdiff_t e = 0; e < f->heads * v * v; e++) right[e] = (float)f->b[e];
}

/* rounds of one penalty, from where a and b stand; the best yet goes to left, right */
static kvm_status alternate(sides *f, double lambda, double *least,
                            kvm_state_figure *figure, float *left, float *right,
                            kvm_err *err)
{
    double error, last;
    TRY(error_of(f, &last, err));
    for (int round = 0; round < ROUNDS_MOST; round++) {
        for (ptrdiff_t h = 0; h < f->heads; h++) {
            TRY(fit_side(f, h, true, lambda, err));
            TRY(fit_side(f, h, false, lambda, err));
        }
        f->rounds++;
        TRY(error_of(f, &error, err));
        if (error < *least) {
            *least = error;
            figure->penalty = lambda;
            figure->rounds = f->rounds;
            keep_sides(f, left, right);
        }
        if (error > last * (1 - LEAST_GAIN)) break;
        last = error;
    }
    return KVM_OK;
}

static kvm_status fit_state(kvm_compute *c, const pairs *fit, const pairs *choose,
                            kvm_row_shape shape, kvm_state_step *s,
                            kvm_state_figure *figure, kvm_arena *keep,
                            kvm_arena scratch, kvm_err *err)
{
    const ptrdiff_t k = shape.keys, v = shape.dim / k, most = k > v ? k : v;
    sides f = {.c = c,
               .fit = fit,
               .choose = choose,
               .heads = shape.heads,
               .k = k,
               .v = v,
               .a = kvm_new(&scratch, double, shape.heads *k *k),
               .b = kvm_new(&scratch, double, shape.heads *v *v),
               .xx = kvm_new(&scratch, double, most *most),
               .xy = kvm_new(&scratch, double, 3 * most * most),
               .m = kvm_new(&scratch, double, k *v),
               .r = kvm_new(&scratch, double, k *v),
               .s = kvm_new(&scratch, double, k *v),
               .t = kvm_new(&scratch, double, k *v)};
    float *left = kvm_new(keep, float, shape.heads *k *k);
    float *right = kvm_new(keep, float, shape.heads *v *v);
    if (!left || !right) return kvm_nomem(err, keep);
    if (!f.a || !f.b || !f.xx || !f.xy || !f.m || !f.r || !f.s || !f.t)
        return kvm_nomem(err, &scratch);
    for (ptrdiff_t h = 0; h < shape.heads; h++) {
        identity(f.a + h * k * k, k);
        identity(f.b + h * v * v, v);
    }
    keep_sides(&f, left, right);
    double least = error_of_copy(choose);
    for (int i = 0; i < PENALTIES; i++)
        TRY(alternate(&f, penalties[i], &least, figure, left, right, err));
    s->left = kvm_view3(left, KVM_F32, shape.heads, k, k);
    s->right = kvm_view3(right, KVM_F32, shape.heads, v, v);
    return KVM_OK;
}

/* ---- windows ---- */

/* y = W x + b of blocks of d channels, over all columns of all windows */
typedef struct blocks {
    kvm_compute *c;
    const pairs *fit, *choose;
    ptrdiff_t count, d, columns;
    double *xx, *xy;         /* (count, d, d) about the means */
    double *mx, *my;         /* (count * d) */
    double *x, *y, *w, *sum; /* (n, d) rows twice, (d, d) twice */
    float *weight, *bias;    /* (count, d, d), (count * d) of the penalty at hand */
} blocks;

/* rows of a block: columns of windows, of n sequences */
static void read_block(const blocks *f, const pairs *p, ptrdiff_t block)
{
    const ptrdiff_t d = f->d, columns = f->columns;
    for (ptrdiff_t i = 0; i < p->n * columns; i++)
        for (ptrdiff_t e = 0; e < d; e++) {
            const ptrdiff_t at =
                i / columns * p->width + (block * d + e) * columns + i % columns;
            f->x[i * d + e] = (double)p->x[at];
            f->y[i * d + e] = (double)p->y[at];
        }
}

static kvm_status sum_block(const blocks *f, ptrdiff_t block, kvm_err *err)
{
    const ptrdiff_t d = f->d, n = f->fit->n * f->columns;
    double *mx = f->mx + block * d, *my = f->my + block * d;
    read_block(f, f->fit, block);
    for (ptrdiff_t i = 0; i < n * d; i++) {
        mx[i % d] += f->x[i] / (double)n;
        my[i % d] += f->y[i] / (double)n;
    }
    for (ptrdiff_t i = 0; i < n * d; i++) {
        f->x[i] -= mx[i % d];
        f->y[i] -= my[i % d];
    }
    const kvm_tensor x = kvm_view2(f->x, KVM_F64, n, d);
    const kvm_tensor y = kvm_view2(f->y, KVM_F64, n, d);
    TRY(kvm_op_gemm64(f->c, kvm_view2(f->xx + block * d * d, KVM_F64, d, d), x, true, x,
                      false, err));
    return kvm_op_gemm64(f->c, kvm_view2(f->xy + block * d * d, KVM_F64, d, d), x, true,
                         y, false, err);
}

static kvm_status solve_block(const blocks *f, ptrdiff_t block, double lambda,
                              kvm_err *err)
{
    const ptrdiff_t d = f->d;
    const double *mx = f->mx + block * d, *my = f->my + block * d;
    float *weight = f->weight + block * d * d, *bias = f->bias + block * d;
    memcpy(f->sum, f->xx + block * d * d, sizeof *f->sum * (size_t)(d * d));
    memcpy(f->w, f->xy + block * d * d, sizeof *f->w * (size_t)(d * d));
    TRY(towards_identity(f->c, f->sum, f->w, d, lambda, err));
    for (ptrdiff_t o = 0; o < d; o++) {
        double b = my[o];
        for (ptrdiff_t i = 0; i < d; i++) {
            weight[o * d + i] = (float)f->w[i * d + o];
            b -= f->w[i * d + o] * mx[i];
        }
        bias[o] = (float)b;
    }
    return KVM_OK;
}

/* squared error on the choosing split of what solve_block has just left in w */
static double error_of_block(const blocks *f, ptrdiff_t block)
{
    const ptrdiff_t d = f->d;
    double sum = 0;
    read_block(f, f->choose, block);
    for (ptrdiff_t i = 0; i < f->choose->n * f->columns; i++)
        for (ptrdiff_t o = 0; o < d; o++) {
            double e = f->y[i * d + o] - (double)f->bias[block * d + o];
            for (ptrdiff_t k = 0; k < d; k++) e -= f->w[k * d + o] * f->x[i * d + k];
            sum += e * e;
        }
    return sum;
}

static kvm_status choose_window(blocks *f, float *weight, float *bias,
                                kvm_state_figure *figure, kvm_err *err)
{
    const ptrdiff_t d = f->d;
    double least = error_of_copy(f->choose);
    for (ptrdiff_t i = 0; i < f->count * d; i++) weight[i * d + i % d] = 1;
    for (ptrdiff_t b = 0; b < f->count; b++) TRY(sum_block(f, b, err));
    for (int i = 0; i < PENALTIES; i++) {
        double error = 0;
        for (ptrdiff_t b = 0; b < f->count; b++) {
            TRY(solve_block(f, b, penalties[i], err));
            error += error_of_block(f, b);
        }
        if (!(error < least)) continue;
        least = error;
        figure->penalty = penalties[i];
        memcpy(weight, f->weight, sizeof *weight * (size_t)(f->count * d * d));
        memcpy(bias, f->bias, sizeof *bias * (size_t)(f->count * d));
    }
    return KVM_OK;
}

static kvm_status fit_window(kvm_compute *c, const pairs *fit, const pairs *choose,
                             kvm_row_shape shape, ptrdiff_t d, kvm_state_step *s,
                             kvm_state_figure *figure, kvm_arena *keep,
                             kvm_arena scratch, kvm_err *err)
{
    const ptrdiff_t count = shape.heads / d, all = count * d * d;
    const ptrdiff_t most = (fit->n > choose->n ? fit->n : choose->n) * shape.dim;
    blocks f = {.c = c,
                .fit = fit,
                .choose = choose,
                .count = count,
                .d = d,
                .columns = shape.dim,
                .xx = kvm_new(&scratch, double, all),
                .xy = kvm_new(&scratch, double, all),
                .mx = kvm_new(&scratch, double, shape.heads),
                .my = kvm_new(&scratch, double, shape.heads),
                .x = kvm_new(&scratch, double, most *d),
                .y = kvm_new(&scratch, double, most *d),
                .w = kvm_new(&scratch, double, d *d),
                .sum = kvm_new(&scratch, double, d *d),
                .weight = kvm_new(&scratch, float, all),
                .bias = kvm_new(&scratch, float, shape.heads)};
    float *weight = kvm_new(keep, float, all);
    float *bias = kvm_new(keep, float, shape.heads);
    if (!weight || !bias) return kvm_nomem(err, keep);
    if (!f.xx || !f.xy || !f.mx || !f.my || !f.x || !f.y || !f.w || !f.sum ||
        !f.weight || !f.bias)
        return kvm_nomem(err, &scratch);
    TRY(choose_window(&f, weight, bias, figure, err));
    s->window = kvm_view3(weight, KVM_F32, count, d, d);
    s->bias = bias;
    return KVM_OK;
}

/* ---- figures ---- */

/* of got against p's targets: 1 - error / squares about the mean; NaN when constant */
static double r2_of(const pairs *p, const float *got)
{
    double error = 0, total = 0;
    for (ptrdiff_t e = 0; e < p->width; e++) {
        double mean = 0;
        for (ptrdiff_t i = 0; i < p->n; i++)
            mean += (double)p->y[i * p->width + e] / (double)p->n;
        for (ptrdiff_t i = 0; i < p->n; i++) {
            const double y = (double)p->y[i * p->width + e];
            const double d = y - (double)got[i * p->width + e];
            error += d * d;
            total += (y - mean) * (y - mean);
        }
    }
    return total > 0 ? 1 - error / total : (double)NAN;
}

/* on one split */
static kvm_status measure(kvm_compute *c, const kvm_state_step *s, const pairs *state,
                          const pairs *window, kvm_row_shape shape,
                          kvm_row_shape shape_w, kvm_split split, kvm_state_figures *f,
                          kvm_arena scratch, kvm_err *err)
{
    float *to = kvm_new(&scratch, float, state->n * state->width);
    float *to_w = kvm_new(&scratch, float, window->n * window->width);
    float *temp = kvm_new(&scratch, float, shape.dim);
    if (!to || !to_w || !temp) return kvm_nomem(err, &scratch);
    for (ptrdiff_t i = 0; i < state->n; i++)
        TRY(kvm_states_apply(c, s, shape, shape_w, state->x + i * state->width,
                             window->x + i * window->width, to + i * state->width,
                             to_w + i * window->width, temp, err));
    f->state.r2_copy[split] = r2_of(state, state->x);
    f->state.r2[split] = r2_of(state, to);
    f->window.r2_copy[split] = r2_of(window, window->x);
    f->window.r2[split] = r2_of(window, to_w);
    return KVM_OK;
}

static kvm_status read_splits(kvm_compute *c, const layers *l,
                              const kvm_state_options *o, pairs state[KVM_SPLITS],
                              pairs window[KVM_SPLITS], kvm_arena *keep, kvm_err *err)
{
    for (int i = 0; i < KVM_SPLITS; i++) {
        ptrdiff_t *rank, n;
        TRY(sequences_of(l->source, o, (kvm_split)i, &rank, &n, keep, err));
        TRY(read_pairs(c, l, KVM_SPACE_STATE, rank, n, &state[i], keep, err));
        TRY(read_pairs(c, l, KVM_SPACE_WINDOW, rank, n, &window[i], keep, err));
    }
    return KVM_OK;
}

kvm_status kvm_states_fit(kvm_compute *c, const kvm_rows *source,
                          const kvm_rows *target, kvm_state_map map,
                          ptrdiff_t source_layer, ptrdiff_t target_layer,
                          const kvm_state_options *o, kvm_state_step *s,
                          kvm_state_figures *figures, kvm_arena *keep,
                          kvm_arena scratch, kvm_err *err)
{
    const layers l = {source, target, source_layer, target_layer};
    const kvm_shapes *to = &kvm_rows_info_of(target)->shapes;
    pairs state[KVM_SPLITS], window[KVM_SPLITS];
    TRY(kvm_states_same(&kvm_rows_info_of(source)->shapes, source_layer, to,
                        target_layer, err));
    const kvm_row_shape shape = to->of[KVM_SPACE_STATE][target_layer];
    const kvm_row_shape columns = to->of[KVM_SPACE_WINDOW][target_layer];
    TRY(kvm_rows_same(source, target, err));
    TRY(read_splits(c, &l, o, state, window, &scratch, err));
    if (map == KVM_STATE_BILINEAR && state[KVM_FIT].n < 2)
        return kvm_fail(err, KVM_RANGE,
                        "%td sequences to fit a state's correction on: capture more",
                        state[KVM_FIT].n);
    kvm_state_step step = {.layer = target_layer, .map = map, .source = source_layer};
    kvm_state_figures f = {.state.penalty = (double)INFINITY,
                           .window.penalty = (double)INFINITY,
                           .sequences = state[KVM_FIT].n};
    if (map == KVM_STATE_BILINEAR) {
        TRY(fit_state(c, &state[KVM_FIT], &state[KVM_CHOOSE], shape, &step, &f.state,
                      keep, scratch, err));
        TRY(fit_window(c, &window[KVM_FIT], &window[KVM_CHOOSE], columns,
                       kvm_states_block(shape), &step, &f.window, keep, scratch, err));
    }
    for (int i = 0; i < KVM_SPLITS; i++)
        TRY(measure(c, &step, &state[i], &window[i], shape, columns, (kvm_split)i, &f,
                    scratch, err));
    step.r2_held = f.state.r2[KVM_HELD];
    step.r2_window_held = f.window.r2[KVM_HELD];
    *s = step;
    *figures = f;
    return KVM_OK;
}
