/* Schedules in the catalogue: each tick fires once, whoever looks and whatever the
 * clock does; what was missed is caught up as asked. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "scheduler/schedule.h"

#include <math.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "tests/support/chaos.h"
#include "tests/support/queue.h"

static kvm_arena keep;
static char path[400];
static kvm_catalogue *c;
static double t0; /* noon, UTC, of the day on which all schedules begin */

static int set_up(void **state)
{
    (void)state;
    setenv("TZDIR", "tests/golden/zones", 1);
    snprintf(path, sizeof path, "%s", kvm_test_catalogue(kvm_test_home("schedule")));
    if (kvm_arena_init(&keep, 256 << 20, NULL)) return -1;
    MUST(kvm_catalogue_open(&c, &keep, kvm_str_of(path), NULL, e));
    t0 = (double)kvm_days_of(2026, 6, 1) * 86400 + 43200;
    return 0;
}
static int tear_down(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    return 0;
}

static void add(const char *name, const char *cron, const char *catch_up)
{
    char sql[200];
    const kvm_schedule_row s = {.team = KVM_STR("t"),
                                .name = kvm_str_of(name),
                                .file = KVM_STR("/pair.yaml"),
                                .cron = kvm_str_of(cron),
                                .zone = KVM_STR("Europe/Berlin"),
                                .catch_up = kvm_str_of(catch_up)};
    MUST(kvm_schedule_add(c, &s, e));
    snprintf(sql, sizeof sql, "UPDATE schedule SET since_at = %.0f", t0);
    kvm_test_sql(path, sql);
}

/* the ticks due at a time, ended at once; [0] in *first, the last in *last */
static ptrdiff_t due_at(double now, double *first, double *last)
{
    kvm_due *due;
    ptrdiff_t n;
    MUST(kvm_schedules_due(c, now, 1000, &due, &n, &keep, e));
    for (ptrdiff_t i = 0; i < n; i++) {
        assert_string_equal(due[i].file.at, "/pair.yaml");
        MUST(kvm_tick_end(c, due[i].tick.schedule, due[i].tick.at, KVM_OK, KVM_STR(""),
                          e));
        if (i == 0 && first) *first = due[i].tick.at;
        if (last) *last = due[i].tick.at;
    }
    return n;
}

static void a_tick_comes_when_it_is_due_and_once(void **state)
{
    (void)state;
    double at = 0;
    add("daily", "30 20 * * *", "one"); /* 18:30 UTC */
    const double tick = t0 + 6.5 * 3600;
    assert_int_equal(due_at(tick - 1, NULL, NULL), 0);
    assert_int_equal(due_at(tick, &at, NULL), 1);
    assert_true(at == tick);
    assert_int_equal(due_at(tick, NULL, NULL), 0);
    assert_int_equal(due_at(tick + 3600, NULL, NULL), 0);
    assert_int_equal(due_at(tick - 3600, NULL, NULL), 0); /* the clock was put back */
    assert_int_equal(due_at(tick + 10, NULL, NULL), 0);
    assert_int_equal(due_at(tick + 86400, &at, NULL), 1);
    assert_true(at == tick + 86400);
    assert_int_equal(kvm_test_number(path, "SELECT COUNT(*) FROM tick"), 2);
}

static void what_was_missed_is_caught_up_as_asked(void **state)
{
    (void)state;
    double first = 0, last = 0;
    add("one", "0 * * * *", "one");
    assert_int_equal(due_at(t0 + 50 * 3600 + 1, &first, NULL), 1);
    assert_true(first == t0 + 50 * 3600);
    MUST(kvm_schedule_remove(c, KVM_STR("t"), KVM_STR("one"), e));

    add("all", "0 * * * *", "all");
    assert_int_equal(due_at(t0 + 50 * 3600 + 1, &first, &last), 50);
    assert_true(first == t0 + 3600 && last == t0 + 50 * 3600);
    assert_int_equal(due_at(t0 + 1050 * 3600, &first, &last), KVM_CATCH_UP_MOST);
    assert_true(first == t0 + 951 * 3600 && last == t0 + 1050 * 3600);
    MUST(kvm_schedule_remove(c, KVM_STR("t"), KVM_STR("all"), e));

    add("none", "0 * * * *", "none");
    assert_int_equal(due_at(t0 + 50 * 3600 + KVM_TICK_LATE_S + 1, NULL, NULL), 0);
    assert_int_equal(due_at(t0 + 51 * 3600 + KVM_TICK_LATE_S - 1, &first, NULL), 1);
    assert_true(first == t0 + 51 * 3600);
    assert_int_equal(kvm_test_number(path, "SELECT COUNT(*) FROM tick"), 1);
}

static void little_room_leaves_the_rest_for_later(void **state)
{
    (void)state;
    kvm_due *due;
    ptrdiff_t n;
    add("all", "0 * * * *", "all");
    for (int i = 1; i < 10; i += 2) {
        MUST(kvm_schedules_due(c, t0 + 10 * 3600, 2, &due, &n, &keep, e));
        assert_int_equal(n, 2);
        assert_true(due[0].tick.at == t0 + i * 3600);
    }
    MUST(kvm_schedules_due(c, t0 + 10 * 3600, 2, &due, &n, &keep, e));
    assert_int_equal(n, 0);
}

static void paused_ones_fire_nothing_and_miss_nothing(void **state)
{
    (void)state;
    kvm_err err = {0};
    add("s", "0 * * * *", "all");
    MUST(kvm_schedule_pause(c, KVM_STR("t"), KVM_STR("s"), true, e));
    assert_int_equal(due_at(t0 + 5 * 3600, NULL, NULL), 0);
    MUST(kvm_schedule_pause(c, KVM_STR("t"), KVM_STR("s"), false, e));
    /* the times before now are not caught up: now is the catalogue's */
    assert_int_equal(kvm_test_number(path, "SELECT COUNT(*) FROM schedule WHERE "
                                           "since_at > created_at"),
                     1);
    MUST(kvm_schedule_pause(c, KVM_STR("t"), KVM_STR("s"), false, e));
    assert_int_equal(kvm_schedule_pause(c, KVM_STR("t"), KVM_STR("x"), true, &err),
                     KVM_NOTFOUND);
    check_contains(err.msg, "schedules list");
}

/* Ten processes look at once, all through a day on which the clocks of the zone change,
 * by clocks of their own that are up to an hour apart. Gives how many ticks fired. */
enum { SCHEDULERS = 10 };
static int fired_from(int year, int month, int day)
{
    pid_t pids[SCHEDULERS];
    t0 = (double)kvm_days_of(year, month, day) * 86400 + 43200;
    add("s", "*/20 * * * *", "all");
    kvm_catalogue_close(c);
    for (int i = 0; i < SCHEDULERS; i++) {
        pids[i] = fork();
        if (pids[i]) continue;
        kvm_arena a;
        kvm_catalogue *mine;
        if (kvm_arena_init(&a, 256 << 20, NULL) ||
            kvm_catalogue_open(&mine, &a, kvm_str_of(path), NULL, NULL))
            _exit(99);
        int fired = 0;
        for (int hour = 0; hour <= 24; hour++) {
            kvm_due *due;
            ptrdiff_t n;
            const double now = fmin(t0 + (hour + i % 3 - 1) * 3600.0, t0 + 24 * 3600);
            while (kvm_schedules_due(mine, now, 1000, &due, &n, &a, NULL))
                ; /* busy */
            fired += (int)n;
        }
        _exit(fired);
    }
    int fired = 0;
    for (int i = 0; i < SCHEDULERS; i++) {
        int how;
        waitpid(pids[i], &how, 0);
        fired += WEXITSTATUS(how);
    }
    assert_int_equal(kvm_test_number(path, "SELECT COUNT(*) FROM tick"), fired);
    chaos_record("8", "ten schedulers through a night of change, each tick once", 1, 0,
                 0, -1);
    return fired;
}

static void many_schedulers_fire_each_tick_once(void **state)
{
    (void)state;
    for (int i = 0; i < chaos_count(1, 10); i++) {
        if (i) tear_down(state), set_up(state);
        /* an hour comes twice and fires once */
        assert_int_equal(fired_from(2026, 10, 24), 24 * 3 - 3);
    }
}

static void and_when_an_hour_is_left_out(void **state)
{
    (void)state;
    for (int i = 0; i < chaos_count(1, 10); i++) {
        if (i) tear_down(state), set_up(state);
        /* its ticks are those of the hour after it */
        assert_int_equal(fired_from(2026, 3, 28), 24 * 3);
    }
}

static void who_dies_is_taken_over_from(void **state)
{
    (void)state;
    kvm_due *due;
    ptrdiff_t n;
    bool yes;
    add("s", "0 * * * *", "one");
    MUST(kvm_schedules_due(c, t0 + 3600, 10, &due, &n, &keep, e));
    assert_int_equal(n, 1);
    const kvm_tick_id tick = due[0].tick;
    MUST(kvm_tick_admits(c, tick, KVM_STR("t"), KVM_STR("/pair.yaml"), &yes, e));
    assert_true(yes);
    MUST(kvm_tick_admits(c, tick, KVM_STR("u"), KVM_STR("/pair.yaml"), &yes, e));
    assert_false(yes);
    MUST(kvm_tick_admits(c, tick, KVM_STR("t"), KVM_STR("/other.yaml"), &yes, e));
    assert_false(yes);
    assert_int_equal(due_at(t0 + 3601, NULL, NULL), 0); /* it is being fired */
    kvm_test_sql(path, "UPDATE tick SET until_at = 0");
    MUST(kvm_tick_admits(c, tick, KVM_STR("t"), KVM_STR("/pair.yaml"), &yes, e));
    assert_false(yes);
    double at = 0;
    assert_int_equal(due_at(t0 + 3602, &at, NULL), 1);
    assert_true(at == tick.at);
    kvm_test_sql(path, "UPDATE tick SET until_at = 0");
    assert_int_equal(due_at(t0 + 3603, NULL, NULL), 0); /* it has ended */
}

static void what_cannot_be_read_fires_nothing(void **state)
{
    (void)state;
    kvm_err err = {0};
    add("s", "0 * * * *", "one");
    add("t", "0 * * * *", "one");
    kvm_test_sql(path, "UPDATE schedule SET zone = 'Europe/Gone' WHERE name = 's'");
    kvm_log_set(KVM_LOG_ERROR, NULL, NULL);
    assert_int_equal(due_at(t0 + 3600, NULL, NULL), 1);
    kvm_log_set(KVM_LOG_INFO, NULL, NULL);
    const kvm_schedule_row twice = {.team = KVM_STR("t"),
                                    .name = KVM_STR("s"),
                                    .file = KVM_STR("/x"),
                                    .cron = KVM_STR("* * * * *"),
                                    .zone = KVM_STR("UTC"),
                                    .catch_up = KVM_STR("one")};
    assert_int_equal(kvm_schedule_add(c, &twice, &err), KVM_EXISTS);
    assert_int_equal(kvm_schedule_remove(c, KVM_STR("u"), KVM_STR("s"), NULL),
                     KVM_NOTFOUND);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(a_tick_comes_when_it_is_due_and_once),
        T(what_was_missed_is_caught_up_as_asked),
        T(little_room_leaves_the_rest_for_later),
        T(paused_ones_fire_nothing_and_miss_nothing),
        T(many_schedulers_fire_each_tick_once),
        T(and_when_an_hour_is_left_out),
        T(who_dies_is_taken_over_from),
        T(what_cannot_be_read_fires_nothing),
    };
    return kvm_test_both("schedule", tests);
}
