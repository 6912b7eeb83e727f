/* f64.h - ref's ops in f64, to be held against differences: a test includes the
 * kernels/ref_*.c that it needs behind this, where float is double. Views are of
 * KVM_F64; stored types are none but this. Included once by a test program, after all
 * headers that do not know kernels. */
#ifndef KVM_TESTS_F64_H
#define KVM_TESTS_F64_H

#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/pool.h"
#include "base/rng.h"
#include "tests/support/check.h"

#define float double
#include "kernels/ref.h"

/* in place of those of tensor.c, whose numbers are f32 */
#define kvm_widen_row f64_widen_row
#define kvm_widen_at f64_widen_at
static inline kvm_status f64_widen_row(double *out, const void *in, kvm_dtype d,
                                       ptrdiff_t n, kvm_err *err)
{
    (void)err;
    assert_int_equal(d, KVM_F64);
    memcpy(out, in, (size_t)n * sizeof *out);
    return KVM_OK;
}
static inline kvm_status f64_widen_at(double *out, const kvm_tensor *t, ptrdiff_t r,
                                      ptrdiff_t from, ptrdiff_t n, kvm_err *err)
{
    return f64_widen_row(out, kvm_row(t, r) + from * (ptrdiff_t)sizeof *out, t->dtype,
                         n, err);
}

static kvm_arena keep; /* of a test */
static kvm_rng rng;
static kvm_compute context; /* scratch alone */
static kvm_err failure;

/* random numbers in a view of the rank that n2 says (0: two axes) */
static kvm_tensor random_view(ptrdiff_t n0, ptrdiff_t n1, ptrdiff_t n2)
{
    kvm_tensor t = n2 > 0 ? kvm_view3(NULL, KVM_F64, n0, n1, n2)
                          : kvm_view2(NULL, KVM_F64, n0, n1);
    const ptrdiff_t n = kvm_tensor_count(&t);
    double *x = t.data = kvm_new_raw(&keep, double, n);
    assert_non_null(x);
    for (ptrdiff_t i = 0; i < n; i++) x[i] = kvm_rng_normal(&rng);
    return t;
}

static kvm_tensor zero_view(kvm_tensor like)
{
    like.data = kvm_new(&keep, double, kvm_tensor_count(&like));
    assert_non_null(like.data);
    return like;
}

static double inner(kvm_tensor a, kvm_tensor b)
{
    double sum = 0;
    for (ptrdiff_t i = 0; i < kvm_tensor_count(&a); i++)
        sum += ((const double *)a.data)[i] * ((const double *)b.data)[i];
    return sum;
}

/* every number of x, against f'(0) = (8 (f(h) - f(-h)) - f(2h) + f(-2h)) / 12h; of the
 * largest */
static void check_gradient(const char *what, kvm_tensor x, kvm_tensor grad,
                           double (*f)(void *ctx), void *ctx)
{
    const double h = 1e-3, tolerance = 1e-6;
    double top = 0, worst = 0;
    for (ptrdiff_t i = 0; i < kvm_tensor_count(&x); i++) {
        double *at = (double *)x.data + i, y[4];
        const double old = *at, got = ((const double *)grad.data)[i];
        const double moves[] = {h, -h, 2 * h, -2 * h};
        for (int k = 0; k < 4; k++) {
            *at = old + moves[k];
            y[k] = f(ctx);
        }
        *at = old;
        const double want = (8 * (y[0] - y[1]) - (y[2] - y[3])) / (12 * h);
        top = fmax(top, fabs(want));
        if (!(fabs(got - want) <= worst)) worst = fabs(got - want);
    }
    if (!(top > 0 && worst <= tolerance * top))
        fail_msg("%s: off by %g of %g", what, worst, top);
}

static int open_bed(void **state)
{
    (void)state;
    keep = check_arena((size_t)1 << 26);
    context.scratch = check_arena((size_t)1 << 26);
    rng = kvm_rng_seed(20260202, 1);
    return 0;
}

static int close_bed(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    kvm_arena_free(&context.scratch);
    return 0;
}

#define OK(call) check_ok(call, &failure)

#endif
