/* Quality figures at their limits. Their values are checked in tests/golden. */
#include "translators/quality.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "tests/support/check.h"

enum { N = 200, HQ = 4, HK = 2, D = 8, DV = 6 };

static kvm_arena keep, scratch;
static kvm_compute *compute;
static float q[N * HQ * D], k[N * HK * D], v[N * HK * DV], k2[N * HK * D],
    v2[N * HK * DV];

static kvm_quality_input input(void)
{
    return (kvm_quality_input){.q = q,
                               .k = k,
                               .v = v,
                               .k_map = k2,
                               .v_map = v2,
                               .n = N,
                               .context = N,
                               .query_heads = HQ,
                               .kv_heads = HK,
                               .dim = D,
                               .value_dim = DV};
}

static int setup(void **state)
{
    (void)state;
    kvm_err err = {0};
    keep = check_arena((size_t)1 << 32);
    scratch = check_arena((size_t)1 << 26);
    check_ok(
        kvm_compute_new(&compute, &keep, kvm_backend_find(KVM_STR("cpu")), 2, &err),
        &err);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    kvm_arena_free(&scratch);
    return 0;
}

static void fill(float *x, size_t n, uint64_t stream)
{
    kvm_rng rng = kvm_rng_seed(8, stream);
    for (size_t i = 0; i < n; i++) x[i] = (float)kvm_rng_normal(&rng);
}

static void refill(void)
{
    fill(q, COUNT(q), 1);
    fill(k, COUNT(k), 2);
    fill(v, COUNT(v), 3);
    memcpy(k2, k, sizeof k);
    memcpy(v2, v, sizeof v);
}

static kvm_quality measure(const kvm_quality_input *in)
{
    kvm_err err = {0};
    kvm_quality out;
    check_ok(kvm_quality_layer(compute, in, &out, scratch, &err), &err);
    return out;
}

static void no_error_is_perfect(void **state)
{
    (void)state;
    refill();
    const kvm_quality_input in = input();
    const kvm_quality g = measure(&in);
    assert_true(fabs(g.cosine - 1) < 1e-6 && fabs(g.cosine_worst - 1) < 1e-6);
    assert_true(g.c_k == 0 && g.c_v == 0 && g.r2_k == 1 && g.r2_v == 1);
}

static void an_error_without_direction_concentrates_nowhere(void **state)
{
    (void)state;
    refill();
    kvm_rng rng = kvm_rng_seed(9, 0);
    for (size_t i = 0; i < COUNT(k2); i++) k2[i] += 0.1F * (float)kvm_rng_normal(&rng);
    for (size_t i = 0; i < COUNT(v2); i++) v2[i] += 0.1F * (float)kvm_rng_normal(&rng);
    const kvm_quality_input in = input();
    const kvm_quality g = measure(&in);
    assert_true(fabs(g.c_k - 1) < 0.1 && fabs(g.c_v - 1) < 0.1);
    assert_true(fabs(g.r2_k - 0.99) < 0.002 && fabs(g.r2_v - 0.99) < 0.002);
    assert_true(g.cosine > 0.95 && g.cosine < 0.9999 && g.cosine_worst <= g.cosine);
}

static void an_error_where_queries_look_concentrates(void **state)
{
    (void)state;
    refill();
    for (ptrdiff_t t = 0; t < N; t++)
        for (ptrdiff_t h = 0; h < HQ; h++) q[(t * HQ + h) * D] *= 5;
    for (ptrdiff_t t = 0; t < N; t++)
        for (ptrdiff_t h = 0; h < HK; h++) k2[(t * HK + h) * D] += 0.1F;
    kvm_quality_input in = input();
    assert_true(measure(&in).c_k > 3); /* 25 D / (25 + D - 1) = 6.25 */
    refill();
    for (ptrdiff_t t = 0; t < N; t++)
        for (ptrdiff_t h = 0; h < HQ; h++) q[(t * HQ + h) * D] = 0;
    for (ptrdiff_t t = 0; t < N; t++)
        for (ptrdiff_t h = 0; h < HK; h++) k2[(t * HK + h) * D] += 0.1F;
    const kvm_quality g = measure(&in);
    assert_true(g.c_k == 0 && fabs(g.cosine - 1) < 1e-6);
}

static void a_window_hides_what_lies_before_it(void **state)
{
    (void)state;
    refill();
    for (int i = 0; i < 100 * HK * DV; i++) v2[i] += 1;
    kvm_quality_input in = input();
    in.q = &q[(ptrdiff_t)150 * HQ * D];
    in.n = N - 150;
    in.first = 150;
    in.window = 40;
    const kvm_quality g = measure(&in);
    assert_true(g.c_v == 0 && fabs(g.cosine - 1) < 1e-6);
    in.window = 0;
    assert_true(measure(&in).c_v > 0.1);
}

static void bad_shapes_and_numbers_are_refused(void **state)
{
    (void)state;
    refill();
    kvm_err err = {0};
    kvm_quality out;
    kvm_quality_input in = input();
    in.first = 1;
    check_status(KVM_SHAPE, kvm_quality_layer(compute, &in, &out, scratch, &err), &err);
    in = input();
    in.kv_heads = 3;
    err = (kvm_err){0};
    check_status(KVM_SHAPE, kvm_quality_layer(compute, &in, &out, scratch, &err), &err);
    in = input();
    v2[7] = NAN;
    err = (kvm_err){0};
    check_status(KVM_NAN, kvm_quality_layer(compute, &in, &out, scratch, &err), &err);
    const kvm_quality_sum none = {0};
    assert_true(isnan(kvm_quality_mean(&none).cosine));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_error_is_perfect),
        cmocka_unit_test(an_error_without_direction_concentrates_nowhere),
        cmocka_unit_test(an_error_where_queries_look_concentrates),
        cmocka_unit_test(a_window_hides_what_lies_before_it),
        cmocka_unit_test(bad_shapes_and_numbers_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
