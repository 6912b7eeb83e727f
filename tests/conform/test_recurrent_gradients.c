/* Gradients of conv, delta and scan as ref has them against differences of its forward
 * ops, both in f64. */
#include <stdio.h>

#include "tests/conform/f64.h"

#include "kernels/ref_recurrent.c"      /* NOLINT(bugprone-suspicious-include) */
#include "kernels/ref_recurrent_back.c" /* NOLINT(bugprone-suspicious-include) */

enum { VIEWS = 6 };

/* one case: L = sum of y dy and of the end state with dend */
typedef struct bed {
    kvm_tensor in[VIEWS], grad[VIEWS]; /* the last one is the state or the window */
    int views;
    kvm_tensor y, dy, end, dend;
    kvm_tensor w, rate, skip; /* have no gradient */
    const double *bias;
    kvm_status (*forward)(struct bed *b);
} bed;

static void add(bed *b, ptrdiff_t n0, ptrdiff_t n1, ptrdiff_t n2)
{
    assert_true(b->views < VIEWS);
    b->in[b->views] = random_view(n0, n1, n2);
    b->grad[b->views] = zero_view(b->in[b->views]);
    b->views++;
}

static void copy(kvm_tensor to, kvm_tensor from)
{
    memcpy(to.data, from.data, (size_t)kvm_tensor_count(&from) * sizeof(double));
}

/* y and random dy; random dend, which the gradient of the last input begins with */
static void aim(bed *b, ptrdiff_t n0, ptrdiff_t n1, ptrdiff_t n2)
{
    const kvm_tensor last = b->grad[b->views - 1];
    b->dy = random_view(n0, n1, n2);
    b->y = zero_view(b->dy);
    b->end = zero_view(last);
    b->dend = random_view(last.dim[0], last.dim[1], last.rank > 2 ? last.dim[2] : 0);
    copy(last, b->dend);
}

static double loss(void *ctx)
{
    bed *b = ctx;
    copy(b->end, b->in[b->views - 1]);
    OK(b->forward(b));
    return inner(b->y, b->dy) + inner(b->end, b->dend);
}

static void agree(bed *b, const char *what)
{
    char name[64];
    for (int i = 0; i < b->views; i++) {
        snprintf(name, sizeof name, "%s, input %d", what, i);
        check_gradient(name, b->in[i], b->grad[i], loss, b);
    }
}

/* f of each number */
static void each(kvm_tensor t, double (*f)(double x))
{
    double *x = t.data;
    for (ptrdiff_t i = 0; i < kvm_tensor_count(&t); i++) x[i] = f(x[i]);
}
static double half(double x)
{
    return x / 2;
}
static double below(double x)
{
    return -fabs(x);
}
static double above(double x)
{
    return fabs(x);
}
static double share(double x)
{
    return 1 / (1 + exp(-x));
}

/* ---- conv ------------------------------------------------------------------------ */

static kvm_status forward_conv(bed *b)
{
    return kvm_ref__conv(&context, &b->y, &b->in[0], &b->w, b->bias, &b->end, &failure);
}

static void test_conv(void **state)
{
    (void)state;
    static const double bias[] = {0.3, -0.2, 0.1};
    for (ptrdiff_t tokens = 1; tokens < 12; tokens += 5) {
        for (ptrdiff_t taps = 2; taps < 6; taps += 3) {
            bed b = {.forward = forward_conv, .bias = taps > 2 ? bias : NULL};
            add(&b, tokens, 3, 0), add(&b, 3, taps, 0);
            b.w = random_view(3, taps, 0);
            aim(&b, tokens, 3, 0);
            OK(kvm_ref__conv_back(&context, &b.grad[0], &b.grad[1], &b.in[0], &b.w,
                                  b.bias, &b.in[1], &b.dy, &failure));
            agree(&b, "conv");
        }
    }
}

/* ---- delta and scan -------------------------------------------------------------- */

enum { T = 7, K = 2, H = 4, D = 5, E = 3 };

static kvm_status forward_delta(bed *b)
{
    return kvm_ref__delta(&context, &b->y, &b->in[0], &b->in[1], &b->in[2], &b->in[3],
                          &b->in[4], &b->end, &failure);
}

static void test_delta(void **state)
{
    (void)state;
    for (int per_channel = 0; per_channel < 2; per_channel++) {
        bed b = {.forward = forward_delta};
        add(&b, T, K, D), add(&b, T, K, D), add(&b, T, H, E);
        add(&b, T, H, per_channel ? D : 0), add(&b, T, H, 0), add(&b, H, D, E);
        each(b.in[0], half), each(b.in[1], half);
        each(b.in[3], below), each(b.in[4], share);
        /* a token that writes nothing has a gradient of beta too */
        ((double *)b.in[4].data)[H] = 0;
        aim(&b, T, H, E);
        const kvm_delta_rows in = {b.in[0], b.in[1], b.in[2], b.in[3], b.in[4]};
        const kvm_delta_rows d = {b.grad[0], b.grad[1], b.grad[2], b.grad[3],
                                  b.grad[4]};
        OK(kvm_ref__delta_back(&context, &d, &b.grad[5], &in, &b.in[5], &b.dy,
                               &failure));
        agree(&b, per_channel ? "delta per channel" : "delta per head");
    }
}

static kvm_status forward_scan(bed *b)
{
    return kvm_ref__scan(&context, &b->y, &b->in[0], &b->in[1], &b->in[2], &b->in[3],
                         &b->rate, &b->skip, &b->end, &failure);
}

static void test_scan(void **state)
{
    (void)state;
    static double rates[H] = {0.2, 1, 2, 0.5}, skips[H] = {1, -0.5, 0, 0.3};
    bed b = {.forward = forward_scan,
             .rate = kvm_view1(rates, KVM_F64, H),
             .skip = kvm_view1(skips, KVM_F64, H)};
    add(&b, T, K, D), add(&b, T, K, D), add(&b, T, H, E);
    add(&b, T, H, 0), add(&b, H, E, D);
    each(b.in[3], above);
    aim(&b, T, H, E);
    const kvm_scan_rows in = {b.in[0], b.in[1], b.in[2], b.in[3]};
    const kvm_scan_rows d = {b.grad[0], b.grad[1], b.grad[2], b.grad[3]};
    OK(kvm_ref__scan_back(&context, &d, &b.grad[4], &in, &b.rate, &b.skip, &b.in[4],
                          &b.dy, &failure));
    agree(&b, "scan");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_conv, open_bed, close_bed),
        cmocka_unit_test_setup_teardown(test_delta, open_bed, close_bed),
        cmocka_unit_test_setup_teardown(test_scan, open_bed, close_bed),
    };
    return cmocka_run_group_tests_name("recurrent gradients", tests, NULL, NULL);
}
