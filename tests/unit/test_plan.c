/* What a plan predicts for the example pair, against the same sums by hand. */
#include "jobs/plan.h"

#include <math.h>

#include "tests/support/check.h"

static void check_near(double got, double expected)
{
    assert_true(fabs(got - expected) <= 1e-9 * expected);
}

static json_t *plan_of(kvm_arena *keep, const char *path)
{
    kvm_err err = {0};
    kvm_compute *c;
    check_ok(kvm_compute_new(&c, keep, kvm_backend_find(KVM_STR("cpu")), 1, &err),
             &err);
    kvm_spec spec;
    check_ok(kvm_spec_read(&spec, keep, kvm_str_of(path), &err), &err);
    const kvm_machine_rates rates = {.flops = 1e9, .bytes = 1e9};
    json_t *plan;
    check_ok(kvm_plan_json(&plan, &spec, c, &rates, keep, &err), &err);
    kvm_json_own(keep, plan);
    return plan;
}

static double fit_flops(const json_t *plan, size_t direction)
{
    return json_number_value(json_object_get(
        json_array_get(json_object_get(plan, "fit"), direction), "fit_flops"));
}

static void fit_of_both_directions(void **state)
{
    (void)state;
    kvm_arena keep = check_arena((size_t)1 << 34);
    const json_t *plan = plan_of(&keep, "tests/zoo/pair.yaml");
    const json_t *fits = json_object_get(plan, "fit");
    assert_int_equal(json_array_size(fits), 2);

    /* 4 and 6 layers of 2 heads x 32: 256 and 384 features; k of 1, 2, 4 and of 1, 2, 4, 6 */
    const double small = 256, large = 384;
    const double squares = 64 * 64 + 128 * 128 + 256 * 256;
    const double sweep =
        7 * 2 * (6 * small * small * small / 3 + 2 * 3 * squares * large);
    const json_t *up = json_array_get(fits, 0);
    assert_string_equal(json_string_value(json_object_get(up, "source")), "small");
    check_near(fit_flops(plan, 0), sweep);
    check_near(json_number_value(json_object_get(up, "fit_s")), 2 * sweep / 1e9);
    const json_t *down = json_array_get(fits, 1);
    assert_string_equal(json_string_value(json_object_get(down, "source")), "large");
    const double rows = json_number_value(
        json_object_get(json_array_get(json_object_get(plan, "capture"), 0), "rows"));
    check_near(json_number_value(json_object_get(down, "stats_flops")),
               rows * 3 * (small + large) * (small + large));
    kvm_arena_free(&keep);
}

/* a largest k bounds the factor and leaves out the wider prefixes */
static void largest_k_bounds_the_sweep(void **state)
{
    (void)state;
    kvm_arena keep = check_arena((size_t)1 << 34);
    check_tmpdir("plan");
    check_write("build/tmp/plan/pair.yaml",
                KVM_STR("name: a-b\n"
                        "source: ../../../tests/zoo/small\n"
                        "target: ../../../tests/zoo/large\n"
                        "calibration: {text: calibration, sequences: 8, tokens: 128}\n"
                        "fit: {k_most: 3}\n"));
    const json_t *plan = plan_of(&keep, "build/tmp/plan/pair.yaml");
    const double widest = 128, squares = 64 * 64 + 128 * 128;
    check_near(fit_flops(plan, 0),
               7 * 2 * (6 * widest * widest * widest / 3 + 2 * 3 * squares * 384));
    assert_int_equal(json_array_size(json_object_get(plan, "fit")), 1);
    kvm_arena_free(&keep);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fit_of_both_directions),
        cmocka_unit_test(largest_k_bounds_the_sweep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
