/* Gradients of conv, delta and scan as ref has them against central differences of
 * ref's own forwards. The sources of ref are read here once more with double for float:
 * both are then exact to f64, and a difference of fourth order agrees to 1e-6. */
#include <math.h>
#include <string.h>

#include "tests/support/check.h"

#include "base/rng.h"
#define float double
#include "kernels/ref_recurrent.c"
#include "kernels/ref_recurrent_back.c"

enum { MOST = 4096, VIEWS = 6 };

/* the inputs of one op side by side, a gradient for each number, and what it gives */
typedef struct bed {
    kvm_compute c;
    kvm_rng rng;
    ptrdiff_t used;
    double x[MOST], d[MOST];
    kvm_tensor in[VIEWS], grad[VIEWS]; /* the last one is the state or the window */
    kvm_tensor dy;
    double dend[MOST], end[MOST], y[MOST]; /* weights of the end state; results */
    kvm_tensor w, rate, skip;              /* have no gradient */
    bool biased;
    int views;
    void (*forward)(struct bed *b);
} bed;

static kvm_tensor shaped(double *p, ptrdiff_t n0, ptrdiff_t n1, ptrdiff_t n2)
{
    return n2 ? kvm_view3(p, KVM_F32, n0, n1, n2) : kvm_view2(p, KVM_F32, n0, n1);
}

static double normal(bed *b)
{
    return kvm_rng_normal(&b->rng);
}

/* the next input of the op, and the place of its gradient */
static void add(bed *b, ptrdiff_t n0, ptrdiff_t n1, ptrdiff_t n2)
{
    const int i = b->views++;
    b->in[i] = shaped(b->x + b->used, n0, n1, n2);
    b->grad[i] = shaped(b->d + b->used, n0, n1, n2);
    b->used += kvm_tensor_count(&b->in[i]);
    assert_true(b->used <= MOST && b->views <= VIEWS);
}

static kvm_tensor numbers(bed *b, ptrdiff_t n0, ptrdiff_t n1, ptrdiff_t n2)
{
    kvm_tensor t = shaped(NULL, n0, n1, n2);
    double *p = t.data = kvm_new(&b->c.scratch, double, kvm_tensor_count(&t));
    assert_non_null(p);
    for (ptrdiff_t i = 0; i < kvm_tensor_count(&t); i++) p[i] = normal(b);
    return t;
}

/* sum of dy y and of dend with the end state */
static double loss(bed *b)
{
    const kvm_tensor *last = &b->in[b->views - 1];
    const ptrdiff_t n = kvm_tensor_count(last);
    double sum = 0;
    memcpy(b->end, last->data, (size_t)n * sizeof *b->end);
    b->forward(b);
    for (ptrdiff_t i = 0; i < kvm_tensor_count(&b->dy); i++)
        sum += ((double *)b->dy.data)[i] * b->y[i];
    for (ptrdiff_t i = 0; i < n; i++) sum += b->dend[i] * b->end[i];
    return sum;
}

static double slope(bed *b, ptrdiff_t i)
{
    static const double step = 1e-3, weight[] = {1, -8, 8, -1}, at[] = {-2, -1, 1, 2};
    const double x = b->x[i];
    double sum = 0;
    for (int k = 0; k < 4; k++) {
        b->x[i] = x + at[k] * step;
        sum += weight[k] * loss(b);
    }
    b->x[i] = x;
    return sum / (12 * step);
}

/* b->d against differences, an input after the other, of the largest of each */
static void agree(bed *b, const char *name)
{
    for (int v = 0; v < b->views; v++) {
        const ptrdiff_t from = (double *)b->in[v].data - b->x;
        double top = 0, off = 0;
        for (ptrdiff_t i = from; i < from + kvm_tensor_count(&b->in[v]); i++) {
            const double want = slope(b, i);
            top = fmax(top, fabs(want));
            if (!(fabs(want - b->d[i]) <= off)) off = fabs(want - b->d[i]);
        }
        if (!(top > 1e-3 && off <= 1e-6 * top))
            fail_msg("%s: gradient of input %d is off by %g of %g", name, v, off, top);
    }
}

static void begin(bed *b)
{
    *b = (bed){.rng = kvm_rng_seed(9, 9)};
    b->c.scratch = check_arena((size_t)1 << 26);
    b->c.threads = 1;
}

/* random dend, which the gradient of the last input begins with, and dy */
static void aim(bed *b, ptrdiff_t n0, ptrdiff_t n1, ptrdiff_t n2)
{
    const kvm_tensor *last = &b->grad[b->views - 1];
    for (ptrdiff_t i = 0; i < kvm_tensor_count(last); i++)
        ((double *)last->data)[i] = b->dend[i] = normal(b);
    b->dy = numbers(b, n0, n1, n2);
    assert_true(kvm_tensor_count(&b->dy) <= MOST);
}

/* ---- conv ------------------------------------------------------------------------ */

static const double bias[] = {0.3, -0.2, 0.1};

static void forward_conv(bed *b)
{
    const kvm_tensor y = shaped(b->y, b->dy.dim[0], b->dy.dim[1], 0);
    const kvm_tensor window = shaped(b->end, b->w.dim[0], b->w.dim[1], 0);
    kvm_err err = {0};
    check_ok(kvm_ref__conv(&b->c, &y, &b->in[0], &b->w, b->biased ? bias : NULL,
                           &window, &err),
             &err);
}

static void conv_passes_gradients_back(void **state)
{
    (void)state;
    for (ptrdiff_t tokens = 1; tokens < 12; tokens += 5) {
        for (ptrdiff_t taps = 2; taps < 6; taps += 3) {
            bed b;
            kvm_err err = {0};
            begin(&b);
            b.forward = forward_conv;
            b.biased = taps > 2;
            add(&b, tokens, 3, 0), add(&b, 3, taps, 0);
            for (ptrdiff_t i = 0; i < b.used; i++) b.x[i] = normal(&b);
            b.w = numbers(&b, 3, taps, 0);
            aim(&b, tokens, 3, 0);
            check_ok(kvm_ref__conv_back(&b.c, &b.grad[0], &b.grad[1], &b.in[0], &b.w,
                                        b.biased ? bias : NULL, &b.in[1], &b.dy, &err),
                     &err);
            agree(&b, "conv");
            kvm_arena_free(&b.c.scratch);
        }
    }
}

/* ---- delta and scan -------------------------------------------------------------- */

enum { T = 7, K = 2, H = 4, D = 5, E = 3 };

static void forward_delta(bed *b)
{
    const kvm_tensor y = shaped(b->y, T, H, E), s = shaped(b->end, H, D, E);
    kvm_err err = {0};
    check_ok(kvm_ref__delta(&b->c, &y, &b->in[0], &b->in[1], &b->in[2], &b->in[3],
                            &b->in[4], &s, &err),
             &err);
}

static void delta_passes_gradients_back(void **state)
{
    (void)state;
    for (int per_channel = 0; per_channel < 2; per_channel++) {
        bed b;
        kvm_err err = {0};
        begin(&b);
        b.forward = forward_delta;
        add(&b, T, K, D), add(&b, T, K, D), add(&b, T, H, E);
        add(&b, T, H, per_channel ? D : 0), add(&b, T, H, 0), add(&b, H, D, E);
        for (ptrdiff_t i = 0; i < b.used; i++) b.x[i] = 0.5 * normal(&b);
        double *g = b.in[3].data, *beta = b.in[4].data;
        for (ptrdiff_t i = 0; i < kvm_tensor_count(&b.in[3]); i++) g[i] = -fabs(g[i]);
        for (ptrdiff_t i = 0; i < T * H; i++) beta[i] = kvm_rng_unit(&b.rng);
        beta[H] = 0; /* a token that writes nothing has a gradient of beta too */
        aim(&b, T, H, E);
        const kvm_delta_rows in = {b.in[0], b.in[1], b.in[2], b.in[3], b.in[4]};
        const kvm_delta_rows d = {b.grad[0], b.grad[1], b.grad[2], b.grad[3],
                                  b.grad[4]};
        check_ok(kvm_ref__delta_back(&b.c, &d, &b.grad[5], &in, &b.in[5], &b.dy, &err),
                 &err);
        agree(&b, per_channel ? "delta per channel" : "delta per head");
        kvm_arena_free(&b.c.scratch);
    }
}

static void forward_scan(bed *b)
{
    const kvm_tensor y = shaped(b->y, T, H, E), s = shaped(b->end, H, E, D);
    kvm_err err = {0};
    check_ok(kvm_ref__scan(&b->c, &y, &b->in[0], &b->in[1], &b->in[2], &b->in[3],
                           &b->rate, &b->skip, &s, &err),
             &err);
}

static void scan_passes_gradients_back(void **state)
{
    (void)state;
    bed b;
    kvm_err err = {0};
    begin(&b);
    b.forward = forward_scan;
    add(&b, T, K, D), add(&b, T, K, D), add(&b, T, H, E);
    add(&b, T, H, 0), add(&b, H, E, D);
    for (ptrdiff_t i = 0; i < b.used; i++) b.x[i] = 0.5 * normal(&b);
    double *dt = b.in[3].data;
    for (ptrdiff_t i = 0; i < T * H; i++) dt[i] = fabs(dt[i]);
    static double rates[H] = {0.2, 1, 2, 0.5}, skips[H] = {1, -0.5, 0, 0.3};
    b.rate = kvm_view1(rates, KVM_F32, H);
    b.skip = kvm_view1(skips, KVM_F32, H);
    aim(&b, T, H, E);
    const kvm_scan_rows in = {b.in[0], b.in[1], b.in[2], b.in[3]};
    const kvm_scan_rows d = {b.grad[0], b.grad[1], b.grad[2], b.grad[3]};
    check_ok(kvm_ref__scan_back(&b.c, &d, &b.grad[4], &in, &b.rate, &b.skip, &b.in[4],
                                &b.dy, &err),
             &err);
    agree(&b, "scan");
    kvm_arena_free(&b.c.scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conv_passes_gradients_back),
        cmocka_unit_test(delta_passes_gradients_back),
        cmocka_unit_test(scan_passes_gradients_back),
    };
    return cmocka_run_group_tests_name("recurrent gradients", tests, NULL, NULL);
}
