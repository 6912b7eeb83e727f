/* What a plan predicts for the example pair, against the same sums by hand. */
#include "jobs/plan.h"

#include <math.h>

#include "tests/support/check.h"

static void check_near(double got, double expected)
{
    assert_true(fabs(got - expected) <= 1e-9 * expected);
}

static void fit_of_both_directions(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_arena keep = check_arena((size_t)1 << 34);
    kvm_compute *c;
    check_ok(kvm_compute_new(&c, &keep, kvm_backend_find(KVM_STR("cpu")), 1, &err),
             &err);
    kvm_spec spec;
    check_ok(kvm_spec_read(&spec, &keep, KVM_STR("tests/zoo/pair.yaml"), &err), &err);
    const kvm_machine_rates rates = {.flops = 1e9, .bytes = 1e9};
    json_t *plan;
    check_ok(kvm_plan_json(&plan, &spec, c, &rates, &keep, &err), &err);
    kvm_json_own(&keep, plan);
    const json_t *fits = json_object_get(plan, "fit");
    assert_int_equal(json_array_size(fits), 2);

    /* 4 and 6 layers of 2 heads x 32: 256 and 384 features; k of 1, 2, 4 and of 1, 2, 4, 6 */
    const double small = 256, large = 384;
    const double squares = 64 * 64 + 128 * 128 + 256 * 256;
    const double sweep =
        7 * 2 * (6 * small * small * small / 3 + 2 * 3 * squares * large);
    const json_t *up = json_array_get(fits, 0);
    assert_string_equal(json_string_value(json_object_get(up, "source")), "small");
    check_near(json_number_value(json_object_get(up, "fit_flops")), sweep);
    check_near(json_number_value(json_object_get(up, "fit_s")), 2 * sweep / 1e9);
    const json_t *down = json_array_get(fits, 1);
    assert_string_equal(json_string_value(json_object_get(down, "source")), "large");
    const double rows = json_number_value(
        json_object_get(json_array_get(json_object_get(plan, "capture"), 0), "rows"));
    check_near(json_number_value(json_object_get(down, "stats_flops")),
               rows * 3 * (small + large) * (small + large));
    kvm_arena_free(&keep);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(fit_of_both_directions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
