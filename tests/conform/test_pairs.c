/* cpu-bf16: products with bf16 weights equal those of rounded activations to the
 * tolerance of f32 sums, so rounding is all that it adds; every other product has the
 * bits of avx512. Skipped on machines that cannot multiply pairs of bf16. */
#include "kernels/backend.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "tests/support/check.h"

enum { THREADS = 3 };
static kvm_arena keep, temp;                       /* temp is emptied between cases */
static kvm_compute *ref, *wide, *dev[THREADS + 1]; /* by threads */
static kvm_rng rng;

/* y = x Wt of one shape; rows of x, y and w may lie `gap` numbers apart */
typedef struct product {
    kvm_tensor x, y, w;
    float *bias;
    bool add;
    char label[80];
} product;

static kvm_tensor rows_of(kvm_dtype d, ptrdiff_t n0, ptrdiff_t n1, ptrdiff_t gap)
{
    kvm_err err = {0};
    kvm_tensor t = kvm_view2(NULL, d, n0, n1);
    t.stride[0] += gap;
    const ptrdiff_t n = n0 * t.stride[0];
    float *from = kvm_new(&temp, float, n);
    t.data = kvm_new(&temp, float, n);
    assert_true(from && t.data);
    for (ptrdiff_t i = 0; i < n; i++) from[i] = (float)kvm_rng_normal(&rng);
    check_ok(kvm_narrow_row(t.data, d, from, n, &err), &err);
    return t;
}

static product shape(kvm_dtype d, ptrdiff_t t, ptrdiff_t i, ptrdiff_t o, ptrdiff_t gap)
{
    kvm_arena_reset(&temp);
    product p = {.x = rows_of(KVM_F32, t, i, gap), .add = o % 3 == 1};
    p.y = rows_of(KVM_F32, t, o, gap);
    p.w = rows_of(d, o, i, gap);
    p.bias = o % 2 ? rows_of(KVM_F32, 1, o, 0).data : NULL;
    snprintf(p.label, sizeof p.label, "%s T=%td I=%td O=%td gap=%td", kvm_dtype_name(d),
             t, i, o, gap);
    return p;
}

/* the product by c, in fresh rows */
static kvm_tensor by(kvm_compute *c, const product *p)
{
    kvm_err err = {0};
    kvm_weight *w;
    kvm_tensor y = p->y;
    const ptrdiff_t n = y.dim[0] * y.stride[0];
    y.data = kvm_new(&temp, float, n);
    assert_non_null(y.data);
    memcpy(y.data, p->y.data, (size_t)n * sizeof(float));
    check_ok(kvm_weight_new(&w, &temp, c, p->w, p->bias, &err), &err);
    check_ok(kvm_op_linear(c, y, p->x, w, p->add, &err), &err);
    return y;
}

static bool same_bits(kvm_tensor a, kvm_tensor b)
{
    return memcmp(a.data, b.data, (size_t)(a.dim[0] * a.stride[0]) * sizeof(float)) ==
           0;
}

static product rounded(const product *p)
{
    kvm_err err = {0};
    product r = *p;
    const ptrdiff_t n = p->x.dim[0] * p->x.stride[0];
    uint16_t *half = kvm_new(&temp, uint16_t, n);
    r.x.data = kvm_new(&temp, float, n);
    assert_true(half && r.x.data);
    check_ok(kvm_narrow_row(half, KVM_BF16, p->x.data, n, &err), &err);
    check_ok(kvm_widen_row(r.x.data, half, KVM_BF16, n, &err), &err);
    return r;
}

/* got against want: entries that are no finite numbers alike, the others within `share`
 * of the largest */
static void close_to(const product *p, kvm_tensor got, kvm_tensor want, double share)
{
    double top = 0, worst = 0;
    for (ptrdiff_t t = 0; t < want.dim[0]; t++) {
        for (ptrdiff_t o = 0; o < want.dim[1]; o++) {
            const float a = kvm_row32(&got, t)[o], b = kvm_row32(&want, t)[o];
            if (isfinite(b)) {
                top = fmax(top, fabs((double)b));
                if (!(fabs((double)a - (double)b) <= worst))
                    worst = fabs((double)a - (double)b);
            } else if (isnan(b) ? !isnan(a) : a != b) { /* NOLINT(*equality*) */
                fail_msg("%s: %g for %g at %td,%td", p->label, (double)a, (double)b, t,
                         o);
            }
        }
    }
    if (!(worst <= share * top))
        fail_msg("%s: off by %.3g of %.3g", p->label, worst, top);
}

static void check_pairs(const product *p)
{
    const product r = rounded(p);
    const kvm_tensor y = by(dev[1], p);
    close_to(p, y, by(ref, &r), kvm_op_rows[KVM_OP_linear].tolerance);
    for (int threads = 2; threads <= THREADS; threads++)
        if (!same_bits(y, by(dev[threads], p)))
            fail_msg("%s: %d threads differ", p->label, threads);
}

/* in each test: cmocka takes a skip in a fixture for a failure */
static void need_pairs(void)
{
    if (!ref) skip(); /* setup has said why */
}

static void products_are_those_of_rounded_activations(void **state)
{
    (void)state;
    need_pairs();
    static const ptrdiff_t tokens[] = {9, 14, 15, 31, 128, 133, 300};
    static const ptrdiff_t sizes[][2] = {{2, 1},     {6, 5},      {64, 33},
                                         {96, 200},  {1536, 130}, {258, 31},
                                         {2050, 17}, {4100, 40}};
    for (size_t t = 0; t < COUNT(tokens); t++) {
        for (size_t s = 0; s < COUNT(sizes); s++) {
            const product p = shape(KVM_BF16, tokens[t], sizes[s][0], sizes[s][1],
                                    (ptrdiff_t)(t + s) % 2 * 6);
            check_pairs(&p);
        }
    }
}

/* rounding must be seen, or the test above compares nothing */
static void activations_are_rounded(void **state)
{
    (void)state;
    need_pairs();
    const product p = shape(KVM_BF16, 40, 64, 32, 0);
    assert_false(same_bits(by(dev[1], &p), by(wide, &p)));
    close_to(&p, by(dev[1], &p), by(ref, &p),
             kvm_backend_find(KVM_STR("cpu-bf16"))->linear_tolerance);
}

static void other_products_keep_their_bits(void **state)
{
    (void)state;
    need_pairs();
    static const kvm_dtype types[] = {KVM_F32, KVM_F16, KVM_F8_E4M3};
    for (size_t d = 0; d < COUNT(types); d++) {
        const product p = shape(types[d], 40, 64, 35, 0);
        assert_true(same_bits(by(dev[1], &p), by(wide, &p)));
    }
    for (ptrdiff_t t = 1; t <= 8; t++) { /* few tokens */
        const product p = shape(KVM_BF16, t, 96, 35, 0);
        assert_true(same_bits(by(dev[1], &p), by(wide, &p)));
    }
    /* no whole pairs: an odd row, an odd distance */
    for (ptrdiff_t i = 95; i <= 96; i++) {
        const product p = shape(KVM_BF16, 40, i, 35, i == 96);
        assert_true(same_bits(by(dev[1], &p), by(wide, &p)));
    }
}

static void what_is_no_number_stays_so(void **state)
{
    (void)state;
    need_pairs();
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < COUNT(odd); i++) {
        const uint16_t half[] = {0x7fc0, 0x7f80, 0xff80};
        product p = shape(KVM_BF16, 20, 70, 37, 0);
        ((uint16_t *)p.w.data)[5 * 70 + 69] = half[i];
        ((uint16_t *)p.w.data)[36 * 70 + 68] = half[i];
        check_pairs(&p);
        kvm_row32(&p.x, 3)[1] = odd[i];
        check_pairs(&p);
    }
}

static int setup(void **state)
{
    (void)state;
    kvm_err err = {0};
    const kvm_backend *b = kvm_backend_find(KVM_STR("cpu-bf16"));
    if (!b) {
        print_message("skipped: this machine does not multiply pairs of bf16\n");
        return 0;
    }
    keep = check_arena((size_t)1 << 30);
    temp = check_arena((size_t)1 << 28);
    rng = kvm_rng_seed(20261130, 1);
    check_ok(kvm_compute_new(&ref, &keep, kvm_backend_find(KVM_STR("ref")), 1, &err),
             &err);
    check_ok(
        kvm_compute_new(&wide, &keep, kvm_backend_find(KVM_STR("cpu-avx512")), 1, &err),
        &err);
    for (int threads = 1; threads <= THREADS; threads++)
        check_ok(kvm_compute_new(&dev[threads], &keep, b, threads, &err), &err);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&temp);
    kvm_arena_free(&keep);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_those_of_rounded_activations),
        cmocka_unit_test(activations_are_rounded),
        cmocka_unit_test(other_products_keep_their_bits),
        cmocka_unit_test(what_is_no_number_stays_so),
    };
    return cmocka_run_group_tests_name("pairs of bf16", tests, setup, teardown);
}
