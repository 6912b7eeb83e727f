/* Log lines: their form, levels, length, and bytes that would forge another line. */
#include "base/log.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/check.h"

static struct {
    kvm_log_level level;
    int lines;
    char text[4096];
} seen;

static void keep_line(void *ctx, kvm_log_level level, const char *line)
{
    assert_ptr_equal(ctx, &seen);
    seen.level = level;
    seen.lines++;
    snprintf(seen.text, sizeof seen.text, "%s", line);
}

static void a_line_has_time_level_event_and_fields(void **state)
{
    (void)state;
    kvm_log_set(KVM_LOG_INFO, keep_line, &seen);
    kvm_log(KVM_LOG_WARN, "job.start", "job=%d kind=%s", 7, "fit");
    assert_int_equal(seen.level, KVM_LOG_WARN);
    assert_int_equal(strncmp(seen.text, "time=20", 7), 0);
    check_contains(seen.text, "Z level=warn event=job.start job=7 kind=fit");
    kvm_log(KVM_LOG_ERROR, "bare", "%s", "");
    check_contains(seen.text, "level=error event=bare");
}

static void levels_below_the_least_are_not_made(void **state)
{
    (void)state;
    seen.lines = 0;
    kvm_log_set(KVM_LOG_WARN, keep_line, &seen);
    kvm_log(KVM_LOG_DEBUG, "x", "%d", 1);
    kvm_log(KVM_LOG_INFO, "x", "%d", 1);
    assert_int_equal(seen.lines, 0);
    kvm_log(KVM_LOG_WARN, "x", "%d", 1);
    kvm_log(KVM_LOG_ERROR, "x", "%d", 1);
    assert_int_equal(seen.lines, 2);
}

static void a_line_stays_one_line(void **state)
{
    (void)state;
    char big[8000];
    kvm_log_set(KVM_LOG_DEBUG, keep_line, &seen);
    kvm_log(KVM_LOG_DEBUG, "x", "name=%s", "a\nlevel=error\x1b[2J");
    assert_null(strpbrk(seen.text, "\n\x1b"));
    check_contains(seen.text, "name=a?level=error?[2J");
    memset(big, 'b', sizeof big - 1);
    big[sizeof big - 1] = 0;
    kvm_log(KVM_LOG_DEBUG, "x", "%s", big);
    assert_true(strlen(seen.text) > 1500 && strlen(seen.text) < 2048);
    kvm_log(KVM_LOG_DEBUG, big, "%s", big);
    assert_true(strlen(seen.text) < 2048);
}

static void without_a_sink_it_goes_to_standard_error(void **state)
{
    (void)state;
    int fds[2];
    char text[512];
    assert_int_equal(pipe(fds), 0);
    const int before = dup(STDERR_FILENO);
    assert_true(dup2(fds[1], STDERR_FILENO) >= 0);
    kvm_log_set(KVM_LOG_INFO, NULL, NULL);
    kvm_log(KVM_LOG_INFO, "hello", "n=%d", 1);
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    close(before);
    close(fds[1]);
    const ssize_t n = read(fds[0], text, sizeof text - 1);
    assert_true(n > 0);
    text[n] = 0;
    check_contains(text, "level=info event=hello n=1\n");
    assert_int_equal(read(fds[0], text, sizeof text), 0);
    close(fds[0]);
}

static void trouble_is_told_once_per_cause(void **state)
{
    (void)state;
    kvm_trouble t = {0};
    seen.lines = 0;
    kvm_log_set(KVM_LOG_INFO, keep_line, &seen);
    kvm_log_relief(&t, "x.trouble", 7);
    assert_int_equal(seen.lines, 0);
    for (int i = 0; i < 5; i++) kvm_log_trouble(&t, "x.trouble", 7, "the disk is full");
    assert_int_equal(seen.lines, 1);
    check_contains(seen.text,
                   "level=warn event=x.trouble job=7 error=\"the disk is full\"");
    kvm_log_trouble(&t, "x.trouble", 7, "another");
    assert_int_equal(seen.lines, 3); /* the end of the first, the second */
    check_contains(seen.text, "another");
    kvm_log_trouble(&t, "x.trouble", 7, "another");
    kvm_log_relief(&t, "x.trouble", 7);
    kvm_log_relief(&t, "x.trouble", 7);
    assert_int_equal(seen.lines, 4);
    check_contains(seen.text, "level=info event=x.trouble job=7 over=1 times=2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trouble_is_told_once_per_cause),
        cmocka_unit_test(a_line_has_time_level_event_and_fields),
        cmocka_unit_test(levels_below_the_least_are_not_made),
        cmocka_unit_test(a_line_stays_one_line),
        cmocka_unit_test(without_a_sink_it_goes_to_standard_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
