/* Progress: estimates, cancelling, and what a terminal and a pipe get to see. */
#define _XOPEN_SOURCE 600 /* posix_openpt */
#include "base/progress.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/support/check.h"

static double last_eta;
static int shows;

static void note(kvm_progress *p, double done, double total, const char *unit,
                 double eta_s)
{
    (void)done, (void)total, (void)unit;
    assert_string_equal(p->title, "work");
    last_eta = eta_s;
    shows++;
}

static bool always(kvm_progress *p)
{
    (void)p;
    return true;
}

static void the_estimate_extends_the_rate_so_far(void **state)
{
    (void)state;
    kvm_progress p = {.show = note};
    kvm_progress_begin(&p, "work");
    kvm_progress_at(&p, 0, 100, "x");
    assert_true(last_eta < 0.0); /* not known yet */
    p.started = kvm_now() - 10.0;
    kvm_progress_at(&p, 25, 100, "x");
    assert_true(fabs(last_eta - 30.0) < 1.0);
    kvm_progress_at(&p, 100, 100, "x");
    assert_true(fabs(last_eta) < 1e-9);
    kvm_progress_at(&p, 5, 0, "x"); /* the total is not known */
    assert_true(last_eta < 0.0);
    assert_int_equal(shows, 4);
    kvm_progress_end(&p);
}

static void no_progress_is_fine(void **state)
{
    (void)state;
    kvm_progress quiet = {0};
    kvm_progress_begin(NULL, "x");
    kvm_progress_at(NULL, 1, 2, "x");
    kvm_progress_end(NULL);
    assert_false(kvm_progress_cancelled(NULL));
    kvm_progress_begin(&quiet, "x");
    kvm_progress_at(&quiet, 1, 2, NULL);
    kvm_progress_end(&quiet);
    assert_false(kvm_progress_cancelled(&quiet));
    quiet.cancelled = always;
    assert_true(kvm_progress_cancelled(&quiet));
}

/* What is written to standard error while `report` runs with `fd` in its place. */
static void draw(int fd, void (*report)(void))
{
    const int before = dup(STDERR_FILENO);
    assert_true(dup2(fd, STDERR_FILENO) >= 0);
    report();
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    close(before);
}

static void report_quickly(void)
{
    kvm_progress p;
    kvm_progress_terminal(&p, "capture small");
    for (int i = 0; i <= 1000; i++) kvm_progress_at(&p, i, 1000, "sequences");
    kvm_progress_end(&p);
}

static void report_after_a_while(void)
{
    kvm_progress p;
    kvm_progress_terminal(&p, "capture small");
    p.started -= 11.0;
    kvm_progress_at(&p, 12345, 100000, "tokens");
    kvm_progress_at(&p, 12346, 100000, "tokens");
    kvm_progress_end(&p);
}

/* what is counted is whole, and the longest unit stands there whole */
static void report_a_share(void)
{
    kvm_progress p;
    kvm_progress_terminal(&p, "mlp a");
    p.started -= 20.0;
    kvm_progress_at(&p, 1.6, 12, "items (attention outputs)");
    kvm_progress_end(&p);
}

static void a_share_is_no_count(void **state)
{
    (void)state;
    int fds[2];
    char text[1024];
    assert_int_equal(pipe(fds), 0);
    draw(fds[1], report_a_share);
    close(fds[1]);
    const ssize_t n = read(fds[0], text, sizeof text - 1);
    assert_true(n > 0);
    text[n] = 0;
    assert_string_equal(text,
                        "mlp a   13%  1 / 12 items (attention outputs)  2:10 left\n");
    close(fds[0]);
}

static void a_pipe_gets_a_line_in_a_while(void **state)
{
    (void)state;
    int fds[2];
    char text[1024];
    assert_int_equal(pipe(fds), 0);
    draw(fds[1], report_quickly);
    draw(fds[1], report_after_a_while);
    close(fds[1]);
    const ssize_t n = read(fds[0], text, sizeof text - 1);
    assert_true(n > 0);
    text[n] = 0;
    assert_string_equal(text, "capture small   12%  12.3k / 100k tokens  1:18 left\n");
    close(fds[0]);
}

/* A terminal hands on what was written when it gets to it: read on until the text ends
 * so (a read that never ends is the runner's timeout). */
static ssize_t read_until(int fd, char *text, size_t size, const char *end)
{
    size_t n = 0;
    const size_t tail = strlen(end);
    while (n < size - 1 && (n < tail || memcmp(text + n - tail, end, tail) != 0)) {
        const ssize_t got = read(fd, text + n, size - 1 - n);
        assert_true(got > 0);
        n += (size_t)got;
    }
    text[n] = 0;
    return (ssize_t)n;
}

static void a_terminal_gets_one_line_redrawn(void **state)
{
    (void)state;
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(terminal >= 0);
    assert_int_equal(grantpt(terminal), 0);
    assert_int_equal(unlockpt(terminal), 0);
    const int side = open(ptsname(terminal), O_RDWR | O_NOCTTY);
    assert_true(side >= 0);
    draw(side, report_quickly);
    char text[4096];
    const ssize_t n = read_until(terminal, text, sizeof text, "\r\x1b[K");
    check_contains(text, "\rcapture small    0%  0 / 1000 sequences");
    assert_null(strchr(text, '\n'));
    check_contains(text, "\x1b[K");
    /* drawn at most ten times a second, not a thousand times at once */
    int draws = 0;
    for (const char *at = text; (at = strchr(at, '%')); at++) draws++;
    assert_true(draws >= 1 && draws < 20);
    assert_string_equal(text + n - 4, "\r\x1b[K");
    close(side);
    close(terminal);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_estimate_extends_the_rate_so_far),
        cmocka_unit_test(no_progress_is_fine),
        cmocka_unit_test(a_share_is_no_count),
        cmocka_unit_test(a_pipe_gets_a_line_in_a_while),
        cmocka_unit_test(a_terminal_gets_one_line_redrawn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
