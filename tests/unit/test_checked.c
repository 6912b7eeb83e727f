/* Sizes that cannot wrap. */
#include "base/checked.h"

#include "tests/support/check.h"

static void products_and_sums_that_fit(void **state)
{
    (void)state;
    ptrdiff_t r = -1;
    assert_true(kvm_mul(6, 7, &r) && r == 42);
    assert_true(kvm_mul(0, PTRDIFF_MAX, &r) && r == 0);
    assert_true(kvm_mul(1, PTRDIFF_MAX, &r) && r == PTRDIFF_MAX);
    assert_true(kvm_add(PTRDIFF_MAX - 1, 1, &r) && r == PTRDIFF_MAX);
    int i = -1;
    assert_true(kvm_to_int(INT_MAX, &i) && i == INT_MAX);
    assert_true(kvm_to_int(0, &i) && i == 0);
}

static void those_that_do_not_leave_the_output_alone(void **state)
{
    (void)state;
    ptrdiff_t r = 77;
    assert_false(kvm_mul(PTRDIFF_MAX / 2 + 1, 2, &r));
    assert_false(kvm_mul((ptrdiff_t)1 << 32, (ptrdiff_t)1 << 31, &r));
    assert_false(kvm_mul(-1, 2, &r));
    assert_false(kvm_mul(2, -1, &r));
    assert_false(kvm_add(PTRDIFF_MAX, 1, &r));
    assert_false(kvm_add(-1, 1, &r));
    assert_int_equal(r, 77);
    int i = 77;
    assert_false(kvm_to_int((ptrdiff_t)INT_MAX + 1, &i));
    assert_false(kvm_to_int(-1, &i));
    assert_int_equal(i, 77);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_and_sums_that_fit),
        cmocka_unit_test(those_that_do_not_leave_the_output_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
