/* Clocks and the text of a time. */
#include "base/clock.h"

#include <math.h>
#include <sys/resource.h>

#include "tests/support/check.h"

static void times_have_a_text(void **state)
{
    (void)state;
    static const struct {
        double wall;
        const char *text;
    } rows[] = {
        {0.0, "1970-01-01T00:00:00.000Z"},
        {1769860800.123, "2026-01-31T12:00:00.123Z"},
        {951782400.0, "2000-02-29T00:00:00.000Z"},
        {1.9996, "1970-01-01T00:00:02.000Z"},
        {-0.5, "1969-12-31T23:59:59.500Z"},
        {253402300799.0, "9999-12-31T23:59:59.000Z"},
        {1e300, "9999-12-31T23:59:59.000Z"},
        {-1e300, "0001-01-01T00:00:00.000Z"},
    };
    char text[32];
    for (size_t i = 0; i < COUNT(rows); i++) {
        kvm_wall_text(rows[i].wall, text);
        assert_string_equal(text, rows[i].text);
    }
    kvm_wall_text(NAN, text);
    assert_string_equal(text, "0001-01-01T00:00:00.000Z");
}

static void sleeping_takes_at_least_that_long(void **state)
{
    (void)state;
    const double start = kvm_now();
    kvm_sleep(0.01);
    assert_true(kvm_now() - start >= 0.01);
    kvm_sleep(0.0);
    kvm_sleep(-5.0);
    kvm_sleep(NAN);
    assert_true(kvm_wall() > 1.7e9);
}

static void times_of_the_system_are_seconds(void **state)
{
    (void)state;
    const struct timespec t = {.tv_sec = 7, .tv_nsec = 250000000};
    const struct rusage u = {.ru_utime = {.tv_sec = 20, .tv_usec = 500000},
                             .ru_stime = {.tv_sec = 3, .tv_usec = 250000}};
    assert_true(kvm_seconds(t) == 7.25);
    assert_true(fabs(kvm_cpu_seconds(&u) - 23.75) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_have_a_text),
        cmocka_unit_test(times_of_the_system_are_seconds),
        cmocka_unit_test(sleeping_takes_at_least_that_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
