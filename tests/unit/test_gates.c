/* Gates: reductions, strict thresholds, and that nothing passes by default. */
#include "translators/gates.h"

#include <math.h>

#include "tests/support/check.h"

static void an_empty_gate_fails(void **state)
{
    (void)state;
    kvm_gate g[KVM_GATES];
    kvm_gates_init(g);
    for (int i = 0; i < KVM_GATES; i++) {
        assert_false(kvm_gate_met(&g[i]));
        assert_true(isnan(g[i].figure) && g[i].values == 0);
        assert_ptr_equal(kvm_gate_find(g, kvm_str_of(g[i].name)), &g[i]);
    }
    assert_false(kvm_gates_met(g));
    assert_null(kvm_gate_find(g, KVM_STR("held_out_r3")));
}

static void values_are_reduced_as_the_table_says(void **state)
{
    (void)state;
    kvm_gate g[KVM_GATES];
    kvm_gates_init(g);
    const double values[] = {0.9, 0.5, 0.7};
    for (size_t i = 0; i < COUNT(values); i++)
        for (int k = 0; k < KVM_GATES; k++) kvm_gate_add(g, g[k].id, values[i]);
    for (int k = 0; k < KVM_GATES; k++) {
        const double want = g[k].reduce == KVM_GATE_LEAST  ? 0.5
                            : g[k].reduce == KVM_GATE_MOST ? 0.9
                                                           : 0.7;
        assert_true(fabs(g[k].figure - want) < 1e-15);
        assert_int_equal(g[k].values, 3);
    }
}

static void a_threshold_itself_does_not_pass(void **state)
{
    (void)state;
    kvm_gate g[KVM_GATES];
    kvm_gates_init(g);
    for (int k = 0; k < KVM_GATES; k++) {
        const double step = g[k].sense == KVM_GATE_ABOVE ? 1e-9 : -1e-9;
        kvm_gate one = g[k];
        g[k].figure = one.threshold;
        g[k].values = 1;
        assert_false(kvm_gate_met(&g[k]));
        g[k].figure = one.threshold + step;
        assert_true(kvm_gate_met(&g[k]));
    }
    assert_true(kvm_gates_met(g));
    g[KVM_GATES - 1].figure = g[KVM_GATES - 1].threshold;
    assert_false(kvm_gates_met(g));
}

static void one_value_that_is_no_number_spoils_the_gate(void **state)
{
    (void)state;
    const double bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < COUNT(bad); i++) {
        kvm_gate g[KVM_GATES];
        kvm_gates_init(g);
        for (int k = 0; k < KVM_GATES; k++) {
            kvm_gate_add(g, g[k].id, 1.5);
            kvm_gate_add(g, g[k].id, bad[i]);
            kvm_gate_add(g, g[k].id, 1.5);
            assert_false(kvm_gate_met(&g[k]));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_gate_fails),
        cmocka_unit_test(values_are_reduced_as_the_table_says),
        cmocka_unit_test(a_threshold_itself_does_not_pass),
        cmocka_unit_test(one_value_that_is_no_number_spoils_the_gate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
