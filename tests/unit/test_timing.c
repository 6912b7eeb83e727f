/* A timing of the small pair: what its progress says on the way, and how much work it
 * is taken for. */
#include "jobs/timing.h"

#include <math.h>

#include "tests/support/check.h"
#include "tests/support/host.h"

enum { MOST = 256 };
static struct {
    double done[MOST], total[MOST];
    int n;
} seen;

static void keep_seen(kvm_progress *p, double done, double total, const char *unit,
                      double eta)
{
    (void)p, (void)eta;
    assert_string_equal(unit, "FLOPs");
    assert_true(seen.n < MOST);
    seen.done[seen.n] = done;
    seen.total[seen.n++] = total;
}

/* 16 and 512 tokens: the shorter one is next to nothing */
static void progress_is_work_done_of_work_planned(void **state)
{
    (void)state;
    host h;
    kvm_err err = {0};
    kvm_progress p = {.show = keep_seen};
    host_open(&h, "timing",
              "name: small-large\nsource: ../../tests/zoo/small\n"
              "target: ../../tests/zoo/large\n"
              "calibration: {text: calibration, sequences: 12, tokens: 64}\n"
              "fit: {k: 1, lambda: 1e-3}\n"
              "timing: {lengths: [16, 512], rounds: 4, warmups: 1}\n");
    const ptrdiff_t node = host_node(&h, "timing small-large");
    host_run_to(&h, host_node(&h, "fit small-large"));
    h.progress = &p;
    kvm_progress_begin(&p, "timing");
    check_ok(host_run(&h, node, &err), &err);
    /* the source's prefill, the warm-up and four rounds of each length */
    assert_int_equal(seen.n, 2 * (1 + 1 + 4));
    for (int i = 0; i < seen.n; i++) {
        assert_true(i == 0 || seen.done[i] > seen.done[i - 1]);
        assert_true(fabs(seen.total[i] / seen.total[0] - 1) < 1e-9);
    }
    assert_true(seen.done[5] < 0.1 * seen.total[5]); /* the first length is over */
    assert_true(seen.done[9] > 0.5 * seen.total[9] &&
                seen.done[9] < 0.9 * seen.total[9]);
    assert_true(fabs(seen.done[11] / seen.total[11] - 1) < 1e-9);
    host_close(&h);
}

/* beside the switch, switches of shorter heads, whose tail the target reads */
static void tails_are_arms_of_the_same_rounds(void **state)
{
    (void)state;
    host h;
    kvm_err err = {0};
    host_open(&h, "timing_tails",
              "name: small-large\nsource: ../../tests/zoo/small\n"
              "target: ../../tests/zoo/large\n"
              "calibration: {text: calibration, sequences: 12, tokens: 64}\n"
              "fit: {k: 1, lambda: 1e-3}\n"
              "timing: {lengths: [16], rounds: 3, warmups: 1}\n");
    const ptrdiff_t node = host_node(&h, "timing small-large");
    host_run_to(&h, host_node(&h, "fit small-large"));
    json_object_set_new(h.graph.nodes[node].params, "tails", json_pack("[f]", 0.25));
    check_ok(host_run(&h, node, &err), &err);
    const json_t *points = json_object_get(host_json(&h, node, "timing").v, "points");
    const json_t *point = json_array_get(points, 0);
    const json_t *tail = json_object_get(point, "tail.0.25");
    assert_int_equal(json_array_size(json_object_get(tail, "recompute")), 3);
    assert_int_equal(json_array_size(json_object_get(tail, "total")), 3);
    assert_null(json_object_get(json_object_get(point, "switch"), "recompute"));
    assert_int_equal(
        json_array_size(json_object_get(json_object_get(point, "switch"), "total")), 3);
    host_close(&h);
}

static void a_budget_bounds_the_rounds(void **state)
{
    (void)state;
    assert_true(kvm_rounds_within(10, 0, 5) == 10);
    assert_true(kvm_rounds_within(10, 60, 0) == 10);
    assert_true(kvm_rounds_within(10, 60, 10) == 7); /* the seventh begins at 60 s */
    assert_true(kvm_rounds_within(10, 60, 100) == KVM_LEAST_ROUNDS);
    assert_true(kvm_rounds_within(2, 60, 100) == 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(progress_is_work_done_of_work_planned),
        cmocka_unit_test(tails_are_arms_of_the_same_rounds),
        cmocka_unit_test(a_budget_bounds_the_rounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
