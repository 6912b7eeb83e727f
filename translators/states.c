#include "translators/states.h"

#include <math.h>
#include <string.h>

#include "translators/translator_internal.h"

enum { ROUNDS = 2 }; /* of alternating ridge */

/* ---- geometry ---- */

static kvm_row_shape shape_of(const kvm_shapes *s, kvm_space space, ptrdiff_t layer)
{
    return s->of[space] && layer >= 0 && layer < s->layers ? s->of[space][layer]
                                                           : (kvm_row_shape){0};
}

kvm_status kvm_states_same(const kvm_shapes *source, ptrdiff_t source_layer,
                           const kvm_shapes *target, ptrdiff_t target_layer,
                           kvm_err *err)
{
    static const kvm_space spaces[] = {KVM_SPACE_STATE, KVM_SPACE_WINDOW};
    for (int i = 0; i < 2; i++) {
        const kvm_row_shape a = shape_of(source, spaces[i], source_layer);
        const kvm_row_shape b = shape_of(target, spaces[i], target_layer);
        const bool whole = spaces[i] != KVM_SPACE_STATE || a.keys > 0; /* a matrix */
        if (a.heads > 0 && whole && a.heads == b.heads && a.dim == b.dim &&
            a.keys == b.keys)
            continue;
        return kvm_fail(
            err, KVM_MISMATCH,
            "the %s of source layer %td has %td heads of %td (%td keys), that "
            "of target layer %td %td of %td (%td): it cannot be copied; "
            "states: replay lets the target's own recurrence make it",
            kvm_space_name(spaces[i]), source_layer, a.heads, a.dim, a.keys,
            target_layer, b.heads, b.dim, b.keys);
    }
    return KVM_OK;
}

ptrdiff_t kvm_states__block(kvm_row_shape state)
{
    ptrdiff_t a = state.keys, b = state.dim / state.keys;
    while (b) {
        const ptrdiff_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

static bool is_cube(const kvm_tensor *t, ptrdiff_t n, ptrdiff_t side)
{
    return t->rank == 3 && t->dim[0] == n && t->dim[1] == side && t->dim[2] == side;
}

kvm_status kvm_states__check(const kvm_translator *t, ptrdiff_t i, kvm_err *err)
{
    const kvm_state_step *s = &t->states[i];
    const kvm_row_shape state = shape_of(&t->target.shapes, KVM_SPACE_STATE, s->layer);
    const kvm_row_shape window =
        shape_of(&t->target.shapes, KVM_SPACE_WINDOW, s->layer);
    if (state.heads == 0 || window.heads == 0 || state.keys < 1 ||
        (i > 0 && t->states[i - 1].layer >= s->layer))
        return kvm_fail(
            err, KVM_MISMATCH,
            "state step %td is of layer %td, which keeps no state, or comes "
            "out of order",
            i, s->layer);
    if (s->map == KVM_STATE_ZERO) return KVM_OK;
    TRY(kvm_states_same(&t->source.shapes, s->source, &t->target.shapes, s->layer,
                        err));
    if (s->map == KVM_STATE_COPY) return KVM_OK;
    const ptrdiff_t d = kvm_states__block(state);
    if (s->map == KVM_STATE_BILINEAR && is_cube(&s->left, state.heads, state.keys) &&
        is_cube(&s->right, state.heads, state.dim / state.keys) &&
        window.heads % d == 0 && is_cube(&s->window, window.heads / d, d) && s->bias)
        return KVM_OK;
    return kvm_fail(
        err, KVM_SHAPE,
        "state step of layer %td: its maps do not fit %td heads of (%td,%td) "
        "and %td channels",
        s->layer, state.heads, state.keys, state.dim / state.keys, window.heads);
}

/* ---- fitting ---- */

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

static kvm_status read_pairs(kvm_compute *c, const kvm_rows *source,
                             ptrdiff_t source_layer, const kvm_rows *target,
                             ptrdiff_t target_layer, kvm_space space,
                             const ptrdiff_t *rank, ptrdiff_t n, pairs *p,
                             kvm_arena *keep, kvm_err *err)
{
    p->n = n;
    p->width = kvm_shapes_width(&kvm_rows_info_of(target)->shapes, space, target_layer);
    p->x = kvm_new_raw(keep, float, n * p->width);
    p->y = kvm_new_raw(keep, float, n * p->width);
    if (!p->x || !p->y) return kvm_nomem(err, keep);
    TRY(kvm_rows_read(c, source, space, source_layer, 1, 0, rank, n, p->x, p->width,
                      err));
    return kvm_rows_read(c, target, space, target_layer, 1, 0, rank, n, p->y, p->width,
                         err);
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

/* One head of the state. Solving for A on transposed matrices makes both sides alike:
 * T^T = (S B)^T A^T. */
typedef struct head_fit {
    kvm_compute *c;
    const pairs *p;
    ptrdiff_t at, k, v; /* where the head's matrix begins */
    double lambda;
    double *a, *b;   /* (K,K) transposed A, (V,V) B */
    double *xx, *xy; /* (larger, larger) */
    double *m, *s, *t;
} head_fit;

static void widen(double *to, const float *from, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) to[i] = (double)from[i];
}

static kvm_status fit_side(head_fit *h, bool left, kvm_err *err)
{
    const ptrdiff_t k = h->k, v = h->v, n = left ? k : v;
    const kvm_tensor xx = kvm_view2(h->xx, KVM_F64, n, n);
    const kvm_tensor xy = kvm_view2(h->xy, KVM_F64, n, n);
    const kvm_tensor m = kvm_view2(h->m, KVM_F64, k, v);
    const kvm_tensor s = kvm_view2(h->s, KVM_F64, k, v);
    const kvm_tensor t = kvm_view2(h->t, KVM_F64, k, v);
    double *sum = h->xy + n * n, *one = sum + n * n; /* xx and xy of all sequences */
    memset(sum, 0, sizeof *sum * (size_t)(2 * n * n));
    for (ptrdiff_t i = 0; i < h->p->n; i++) {
        widen(h->s, h->p->x + i * h->p->width + h->at, k * v);
        widen(h->t, h->p->y + i * h->p->width + h->at, k * v);
        /* what the other side has made of the source's state */
        TRY(kvm_op_gemm64(h->c, m, left ? s : kvm_view2(h->a, KVM_F64, k, k), !left,
                          left ? kvm_view2(h->b, KVM_F64, v, v) : s, false, err));
        TRY(kvm_op_gemm64(h->c, xx, m, !left, m, left, err));
        TRY(kvm_op_gemm64(h->c, xy, m, !left, t, left, err));
        for (ptrdiff_t e = 0; e < n * n; e++) {
            sum[e] += h->xx[e];
            one[e] += h->xy[e];
        }
    }
    memcpy(h->xx, sum, sizeof *sum * (size_t)(n * n));
    memcpy(h->xy, one, sizeof *sum * (size_t)(n * n));
    TRY(towards_identity(h->c, h->xx, h->xy, n, h->lambda, err));
    memcpy(left ? h->a : h->b, h->xy, sizeof *sum * (size_t)(n * n));
    return KVM_OK;
}

static void identity(double *x, ptrdiff_t n)
{
    memset(x, 0, sizeof *x * (size_t)(n * n));
    for (ptrdiff_t i = 0; i < n; i++) x[i * n + i] = 1;
}

static kvm_status fit_head(head_fit *h, kvm_err *err)
{
    identity(h->a, h->k);
    identity(h->b, h->v);
    for (int round = 0; round < ROUNDS; round++) {
        TRY(fit_side(h, true, err));
        TRY(fit_side(h, false, err));
    }
    return KVM_OK;
}

static kvm_status fit_state(kvm_compute *c, const pairs *p, kvm_row_shape shape,
                            double lambda, kvm_state_step *s, kvm_arena *keep,
                            kvm_arena scratch, kvm_err *err)
{
    const ptrdiff_t k = shape.keys, v = shape.dim / k, most = k > v ? k : v;
    head_fit h = {.c = c,
                  .p = p,
                  .k = k,
                  .v = v,
                  .lambda = lambda,
                  .a = kvm_new(&scratch, double, k *k),
                  .b = kvm_new(&scratch, double, v *v),
                  .xx = kvm_new(&scratch, double, most *most),
                  .xy = kvm_new(&scratch, double, 3 * most * most),
                  .m = kvm_new(&scratch, double, k *v),
                  .s = kvm_new(&scratch, double, k *v),
                  .t = kvm_new(&scratch, double, k *v)};
    float *left = kvm_new(keep, float, shape.heads *k *k);
    float *right = kvm_new(keep, float, shape.heads *v *v);
    if (!left || !right) return kvm_nomem(err, keep);
    if (!h.a || !h.b || !h.xx || !h.xy || !h.m || !h.s || !h.t)
        return kvm_nomem(err, &scratch);
    for (ptrdiff_t i = 0; i < shape.heads; i++) {
        h.at = i * k * v;
        TRY(fit_head(&h, err));
        for (ptrdiff_t r = 0; r < k; r++)
            for (ptrdiff_t e = 0; e < k; e++)
                left[(i * k + r) * k + e] = (float)h.a[e * k + r];
        for (ptrdiff_t e = 0; e < v * v; e++) right[i * v * v + e] = (float)h.b[e];
    }
    s->left = kvm_view3(left, KVM_F32, shape.heads, k, k);
    s->right = kvm_view3(right, KVM_F32, shape.heads, v, v);
    return KVM_OK;
}

/* y = W x + b of one block of channels, over all columns of all windows */
static kvm_status fit_block(kvm_compute *c, const pairs *p, ptrdiff_t block,
                            ptrdiff_t d, ptrdiff_t columns, double lambda,
                            float *weight, float *bias, kvm_arena scratch, kvm_err *err)
{
    const ptrdiff_t n = p->n * columns;
    double *x = kvm_new(&scratch, double, n *d), *y = kvm_new(&scratch, double, n *d);
    double *mx = kvm_new(&scratch, double, d), *my = kvm_new(&scratch, double, d);
    double *xx = kvm_new(&scratch, double, d *d), *xy = kvm_new(&scratch, double, d *d);
    if (!x || !y || !mx || !my || !xx || !xy) return kvm_nomem(err, &scratch);
    for (ptrdiff_t i = 0; i < n; i++)
        for (ptrdiff_t e = 0; e < d; e++) {
            const ptrdiff_t at =
                i / columns * p->width + (block * d + e) * columns + i % columns;
            x[i * d + e] = (double)p->x[at];
            y[i * d + e] = (double)p->y[at];
            mx[e] += x[i * d + e] / (double)n;
            my[e] += y[i * d + e] / (double)n;
        }
    for (ptrdiff_t i = 0; i < n * d; i++) {
        x[i] -= mx[i % d];
        y[i] -= my[i % d];
    }
    const kvm_tensor vx = kvm_view2(x, KVM_F64, n, d), vy = kvm_view2(y, KVM_F64, n, d);
    TRY(kvm_op_gemm64(c, kvm_view2(xx, KVM_F64, d, d), vx, true, vx, false, err));
    TRY(kvm_op_gemm64(c, kvm_view2(xy, KVM_F64, d, d), vx, true, vy, false, err));
    TRY(towards_identity(c, xx, xy, d, lambda, err));
    for (ptrdiff_t o = 0; o < d; o++) {
        double b = my[o];
        for (ptrdiff_t i = 0; i < d; i++) {
            weight[o * d + i] = (float)xy[i * d + o];
            b -= xy[i * d + o] * mx[i];
        }
        bias[o] = (float)b;
    }
    return KVM_OK;
}

static kvm_status fit_window(kvm_compute *c, const pairs *p, kvm_row_shape shape,
                             ptrdiff_t d, double lambda, kvm_state_step *s,
                             kvm_arena *keep, kvm_arena scratch, kvm_err *err)
{
    const ptrdiff_t blocks = shape.heads / d;
    float *weight = kvm_new(keep, float, blocks *d *d);
    float *bias = kvm_new(keep, float, blocks *d);
    if (!weight || !bias) return kvm_nomem(err, keep);
    for (ptrdiff_t b = 0; b < blocks; b++)
        TRY(fit_block(c, p, b, d, shape.dim, lambda, weight + b * d * d, bias + b * d,
                      scratch, err));
    s->window = kvm_view3(weight, KVM_F32, blocks, d, d);
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

static kvm_status measure(kvm_compute *c, const pairs *state, const pairs *window,
                          kvm_row_shape shape, kvm_row_shape shape_w, kvm_state_step *s,
                          kvm_state_figures *f, kvm_arena scratch, kvm_err *err)
{
    float *to = kvm_new(&scratch, float, state->n * state->width);
    float *to_w = kvm_new(&scratch, float, window->n * window->width);
    float *temp = kvm_new(&scratch, float, shape.dim);
    if (!to || !to_w || !temp) return kvm_nomem(err, &scratch);
    for (ptrdiff_t i = 0; i < state->n; i++)
        TRY(kvm_states_apply(c, s, shape, shape_w, state->x + i * state->width,
                             window->x + i * window->width, to + i * state->width,
                             to_w + i * window->width, temp, err));
    f->r2_copy = r2_of(state, state->x);
    f->r2_window_copy = r2_of(window, window->x);
    s->r2_held = f->r2 = r2_of(state, to);
    s->r2_window_held = f->r2_window = r2_of(window, to_w);
    return KVM_OK;
}

kvm_status kvm_states_fit(kvm_compute *c, const kvm_rows *source,
                          const kvm_rows *target, kvm_state_map map,
                          ptrdiff_t source_layer, ptrdiff_t target_layer,
                          const kvm_state_options *o, kvm_state_step *s,
                          kvm_state_figures *figures, kvm_arena *keep,
                          kvm_arena scratch, kvm_err *err)
{
    const kvm_shapes *from = &kvm_rows_info_of(source)->shapes;
    const kvm_shapes *to = &kvm_rows_info_of(target)->shapes;
    const kvm_row_shape state = shape_of(to, KVM_SPACE_STATE, target_layer);
    const kvm_row_shape window = shape_of(to, KVM_SPACE_WINDOW, target_layer);
    const double lambda = o->lambda > 0 ? o->lambda : 1e-3;
    ptrdiff_t *fit, *held, n, n_held;
    pairs p, w, ph, wh;
    TRY(kvm_states_same(from, source_layer, to, target_layer, err));
    TRY(kvm_rows_same(source, target, err));
    TRY(sequences_of(source, o, KVM_FIT, &fit, &n, &scratch, err));
    TRY(sequences_of(source, o, KVM_HELD, &held, &n_held, &scratch, err));
    if (map == KVM_STATE_BILINEAR && n < 2)
        return kvm_fail(err, KVM_RANGE,
                        "%td sequences to fit a state's correction on: capture more",
                        n);
    const kvm_rows *const sides[] = {source, target};
    const struct {
        kvm_space space;
        const ptrdiff_t *rank;
        ptrdiff_t n;
        pairs *to;
    } reads[] = {{KVM_SPACE_STATE, fit, n, &p},
                 {KVM_SPACE_WINDOW, fit, n, &w},
                 {KVM_SPACE_STATE, held, n_held, &ph},
                 {KVM_SPACE_WINDOW, held, n_held, &wh}};
    for (size_t i = 0; i < sizeof reads / sizeof *reads; i++)
        TRY(read_pairs(c, sides[0], source_layer, sides[1], target_layer,
                       reads[i].space, reads[i].rank, reads[i].n, reads[i].to, &scratch,
                       err));
    *s = (kvm_state_step){.layer = target_layer, .map = map, .source = source_layer};
    if (map == KVM_STATE_BILINEAR) {
        TRY(fit_state(c, &p, state, lambda, s, keep, scratch, err));
        TRY(fit_window(c, &w, window, kvm_states__block(state), lambda, s, keep,
                       scratch, err));
    }
    *figures = (kvm_state_figures){.sequences = n};
    return measure(c, &ph, &wh, state, window, s, figures, scratch, err);
}

/* ---- applying ---- */

/* W x + b of each block of channels, in every column alike */
static kvm_status correct_window(kvm_compute *c, const kvm_state_step *s,
                                 kvm_row_shape window, const float *from, float *to,
                                 kvm_err *err)
{
    const ptrdiff_t blocks = s->window.dim[0], d = s->window.dim[1], w = window.dim;
    for (ptrdiff_t i = 0; i < blocks * d; i++)
        for (ptrdiff_t t = 0; t < w; t++) to[i * w + t] = s->bias[i];
    for (ptrdiff_t b = 0; b < blocks; b++)
        TRY(kvm_op_gemm32(c, kvm_view2(to + b * d * w, KVM_F32, d, w),
                          kvm_view2((float *)s->window.data + b * d * d, KVM_F32, d, d),
                          false, kvm_view2_const(from + b * d * w, KVM_F32, d, w),
                          false, 1, err));
    return KVM_OK;
}

kvm_status kvm_states_apply(kvm_compute *c, const kvm_state_step *s,
                            kvm_row_shape state, kvm_row_shape window,
                            const float *from, const float *from_window, float *to,
                            float *to_window, float *temp, kvm_err *err)
{
    const size_t bytes = sizeof *to * (size_t)(state.heads * state.dim);
    const size_t window_bytes = sizeof *to * (size_t)(window.heads * window.dim);
    if (s->map == KVM_STATE_ZERO) {
        memset(to, 0, bytes);
        memset(to_window, 0, window_bytes);
        return KVM_OK;
    }
    if (s->map == KVM_STATE_COPY) {
        memcpy(to, from, bytes);
        memcpy(to_window, from_window, window_bytes);
        return KVM_OK;
    }
    const ptrdiff_t k = state.keys, v = state.dim / k;
    for (ptrdiff_t h = 0; h < state.heads; h++) {
        const kvm_tensor left =
            kvm_view2((float *)s->left.data + h * k * k, KVM_F32, k, k);
        const kvm_tensor right =
            kvm_view2((float *)s->right.data + h * v * v, KVM_F32, v, v);
        const kvm_tensor mid = kvm_view2(temp, KVM_F32, k, v);
        TRY(kvm_op_gemm32(c, mid, left, false,
                          kvm_view2_const(from + h * k * v, KVM_F32, k, v), false, 0,
                          err));
        TRY(kvm_op_gemm32(c, kvm_view2(to + h * k * v, KVM_F32, k, v), mid, false,
                          right, false, 0, err));
    }
    return correct_window(c, s, window, from_window, to_window, err);
}
