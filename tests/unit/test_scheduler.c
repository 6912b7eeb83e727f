/* What a scheduler does without a queue: it takes back, and lets captures expire. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "scheduler/scheduler.h"

#include "tests/support/fake_kinds.h"

static fake_base b;

static int set_up(void **state)
{
    (void)state;
    fake_open(&b, "scheduler");
    return 0;
}
static int tear_down(void **state)
{
    (void)state;
    fake_close(&b);
    return 0;
}

#define NUMBER(sql) kvm_test_number(b.db, sql)

static pid_t scheduler(double captures_s)
{
    const pid_t pid = fork();
    if (pid > 0) return pid;
    kvm_err err = {0};
    const kvm_scheduler_options o = {.catalogue = fake_catalogue,
                                     .name = KVM_STR("one"),
                                     .captures_s = captures_s,
                                     .lease_s = 2,
                                     .signals = true};
    if (kvm_scheduler_run(&o, NULL, &err)) fprintf(stderr, "# %s\n", err.msg);
    _exit(err.code);
}

static void stop(pid_t pid)
{
    kill(pid, SIGTERM);
    assert_int_equal(fake_join(pid, 20), 0);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM leader"), 0);
}

static void it_takes_back_without_a_queue(void **state)
{
    (void)state;
    kvm_test_hold(b.c, &b.keep, "k");
    kvm_test_sql(b.db, "UPDATE job SET lease_until = 1");
    const pid_t pid = scheduler(0);
    fake_until(b.db, "SELECT COUNT(*) FROM job WHERE state = 'ready' AND crashes = 1",
               1, 20);
    stop(pid);
}

/* those whose time is over, and says so; without a time none */
static void it_lets_captures_expire(void **state)
{
    (void)state;
    const kvm_graph g = kvm_test_graph(&b.keep, 1, true, KVM_JOB_CAPTURE, 0);
    const kvm_worker_options o = fake_options(30);
    kvm_worker_stats stats;
    fake_submit(&b, &g, false);
    MUST(kvm_worker_run(&o, &stats, e));
    kvm_test_sql(b.db, "UPDATE artefact SET name = 'capture', created_at = "
                       "created_at - 100000 WHERE name = 'out'");
    pid_t pid = scheduler(0);
    fake_until(b.db, "SELECT COUNT(*) FROM leader", 1, 20);
    kvm_sleep(0.2);
    stop(pid);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM artefact WHERE expired_at > 0"), 0);
    pid = scheduler(86400);
    fake_until(b.db, "SELECT COUNT(*) FROM artefact WHERE expired_at > 0", 1, 20);
    stop(pid);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM event WHERE what = 'expired'"), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
        T(it_takes_back_without_a_queue),
        T(it_lets_captures_expire),
    };
    return kvm_test_both("scheduler", tests);
}
