/* The generator against an independent implementation (tests/golden/rng.py), and what
 * its users rely on: no bias, independent streams, permutations. */
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "tests/support/check.h"

static kvm_arena keep;
static kvm_jat cases;
static ptrdiff_t n_cases;

static uint64_t hex(kvm_jat at)
{
    kvm_err err = {0};
    kvm_str s;
    check_ok(kvm_json_str(at, &s, &err), &err);
    return strtoull(s.at, NULL, 16);
}

static kvm_rng seed_of(kvm_jat c)
{
    return kvm_rng_seed(hex(kvm_json_get(c, &keep, "seed")),
                        hex(kvm_json_get(c, &keep, "stream")));
}

static void words_equal_the_reference(void **state)
{
    (void)state;
    for (ptrdiff_t i = 0; i < n_cases; i++) {
        const kvm_jat c = kvm_json_item(cases, &keep, i);
        const kvm_jat words = kvm_json_get(c, &keep, "u64");
        kvm_rng r = seed_of(c);
        for (ptrdiff_t j = 0; j < 8; j++)
            assert_true(kvm_rng_u64(&r) == hex(kvm_json_item(words, &keep, j)));
    }
}

static void bounded_numbers_equal_the_reference(void **state)
{
    (void)state;
    for (ptrdiff_t i = 0; i < n_cases; i++) {
        const kvm_jat c = kvm_json_item(cases, &keep, i);
        const kvm_jat rows = kvm_json_get(c, &keep, "below");
        const kvm_jat big = kvm_json_get(c, &keep, "below_big");
        kvm_rng r = seed_of(c);
        for (ptrdiff_t j = 0; j < 8; j++) {
            const kvm_jat row = kvm_json_item(rows, &keep, j);
            kvm_err err = {0};
            int64_t n, expected;
            check_ok(kvm_json_i64(kvm_json_item(row, &keep, 0), &n, &err), &err);
            check_ok(kvm_json_i64(kvm_json_item(row, &keep, 1), &expected, &err), &err);
            assert_true(kvm_rng_below(&r, (uint64_t)n) == (uint64_t)expected);
        }
        assert_true(kvm_rng_below(&r, hex(kvm_json_item(big, &keep, 0))) ==
                    hex(kvm_json_item(big, &keep, 1)));
    }
}

static void reals_equal_the_reference(void **state)
{
    (void)state;
    for (ptrdiff_t i = 0; i < n_cases; i++) {
        const kvm_jat c = kvm_json_item(cases, &keep, i);
        const kvm_jat units = kvm_json_get(c, &keep, "unit");
        const kvm_jat normals = kvm_json_get(c, &keep, "normal");
        kvm_err err = {0};
        double expected;
        kvm_rng r = seed_of(c);
        for (ptrdiff_t j = 0; j < 4; j++) {
            check_ok(kvm_json_f64(kvm_json_item(units, &keep, j), &expected, &err),
                     &err);
            assert_true(kvm_rng_unit(&r) == expected);
        }
        r = seed_of(c);
        for (ptrdiff_t j = 0; j < 8; j++) { /* theirs uses libm's logarithm */
            check_ok(kvm_json_f64(kvm_json_item(normals, &keep, j), &expected, &err),
                     &err);
            assert_true(fabs(kvm_rng_normal(&r) - expected) <=
                        4e-16 + 4e-15 * fabs(expected));
        }
    }
}

static void below_has_no_bias(void **state)
{
    (void)state;
    enum { N = 6, DRAWS = 600000 };
    long count[N] = {0};
    kvm_rng r = kvm_rng_seed(7, 0);
    for (int i = 0; i < DRAWS; i++) count[kvm_rng_below(&r, N)]++;
    double chi2 = 0.0;
    for (int i = 0; i < N; i++) {
        const double d = (double)count[i] - DRAWS / (double)N;
        chi2 += d * d / (DRAWS / (double)N);
    }
    assert_true(chi2 < 20.5); /* 5 degrees of freedom, p = 0.001 */
}

static void normals_have_the_right_moments(void **state)
{
    (void)state;
    enum { DRAWS = 400000 };
    double sum = 0.0, sum2 = 0.0, sum4 = 0.0;
    kvm_rng r = kvm_rng_seed(11, 3);
    for (int i = 0; i < DRAWS; i++) {
        const double x = kvm_rng_normal(&r);
        assert_true(isfinite(x));
        sum += x;
        sum2 += x * x;
        sum4 += x * x * x * x;
    }
    /* five standard errors of each */
    assert_true(fabs(sum / DRAWS) < 5.0 * sqrt(1.0 / DRAWS));
    assert_true(fabs(sum2 / DRAWS - 1.0) < 5.0 * sqrt(2.0 / DRAWS));
    assert_true(fabs(sum4 / DRAWS - 3.0) < 5.0 * sqrt(96.0 / DRAWS));
}

static void streams_differ(void **state)
{
    (void)state;
    enum { N = 64 };
    uint64_t first[N];
    for (uint64_t i = 0; i < N; i++) {
        kvm_rng r = kvm_rng_seed(5, i);
        first[i] = kvm_rng_u64(&r);
        for (uint64_t j = 0; j < i; j++) assert_true(first[i] != first[j]);
    }
}

static void a_shuffle_is_a_permutation_and_each_is_possible(void **state)
{
    (void)state;
    int seen[6] = {0};
    kvm_rng r = kvm_rng_seed(3, 0);
    for (int t = 0; t < 6000; t++) {
        ptrdiff_t x[3] = {0, 1, 2};
        kvm_rng_shuffle(&r, x, 3);
        assert_int_equal(1 << x[0] | 1 << x[1] | 1 << x[2], 7);
        seen[2 * x[0] + (x[1] > x[2])]++;
    }
    for (int i = 0; i < 6; i++) assert_true(seen[i] > 800 && seen[i] < 1200);
    ptrdiff_t one = 5;
    kvm_rng_shuffle(&r, &one, 1);
    kvm_rng_shuffle(&r, &one, 0);
    assert_int_equal(one, 5);
}

static int setup(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_jat root;
    keep = check_arena(4 << 20);
    check_ok(kvm_json_read(&root, &keep, KVM_STR("tests/golden/rng.json"), &err), &err);
    cases = kvm_json_get(root, &keep, "cases");
    check_ok(kvm_json_array(cases, &n_cases, &err), &err);
    return n_cases > 0 ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_equal_the_reference),
        cmocka_unit_test(bounded_numbers_equal_the_reference),
        cmocka_unit_test(reals_equal_the_reference),
        cmocka_unit_test(below_has_no_bias),
        cmocka_unit_test(normals_have_the_right_moments),
        cmocka_unit_test(streams_differ),
        cmocka_unit_test(a_shuffle_is_a_permutation_and_each_is_possible),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
