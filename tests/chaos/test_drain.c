/* Workers that are told to stop: what they can finish they finish, what they cannot
 * goes back, and no attempt is spent. (queue.md, 5: row 11.) */
#define _XOPEN_SOURCE 700 /* nftw */
#include "tests/chaos/fleet.h"

/* Attempts that were begun and cost the job something. A drained one is taken back. */
#define BURNED                                                                         \
    "SELECT COALESCE(SUM(attempt - 1 + crashes + retries), 0) FROM job WHERE state = " \
    "'succeeded'"

enum { WORKERS = 3 };

static int64_t done(void)
{
    return NUMBER("SELECT COUNT(*) FROM job WHERE state = 'succeeded'");
}

/* One worker after the other is told to stop, and another takes its place, until all is
 * done: the whole fleet is replaced several times. */
static void a_rolling_restart_burns_no_attempt(void **state)
{
    (void)state;
    const int jobs = 200, again = chaos_count(6, 30);
    pid_t pids[WORKERS];
    fleet_open("drain");
    kvm_graph g = kvm_test_graph(&b.keep, jobs, false, KVM_JOB_CAPTURE, 0);
    for (int i = 0; i < jobs; i++) fake_do(&g, i, "ok", chaos_count(20, 200));
    fake_submit(&b, &g, false);
    kvm_test_sql(b.db, "UPDATE job SET class = 'small' WHERE id % 3 <> 0");
    kvm_worker_options o = fleet_options(60);
    o.grace_s = 0.05; /* most have to let go of what they are at */
    fleet_scheduler = fleet_start_scheduler();
    for (int i = 0; i < WORKERS; i++) pids[i] = fake_worker(o, NULL);
    int restarts = 0;
    double slowest = 0;
    for (; restarts < again || done() < jobs / 4; restarts++) {
        const int64_t before = done();
        pid_t *const one = &pids[restarts % WORKERS];
        for (const double until = kvm_now() + 60; done() < before + 3;)
            if (kvm_now() > until || before + 3 > jobs)
                break;
            else
                kvm_sleep(0.02);
        const double told = kvm_now();
        kill(*one, SIGTERM);
        assert_int_equal(fake_join(*one, 60), 7);
        if (kvm_now() - told > slowest) slowest = kvm_now() - told;
        *one = fake_worker(o, NULL);
    }
    fake_until(b.db, FLEET_LEFT, 0, 300);
    fleet_stop(pids, WORKERS);
    assert_int_equal(done(), jobs);
    assert_int_equal(sound_doubled(&b), 0);
    assert_int_equal(NUMBER(BURNED), 0);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM artefact"), jobs);
    fleet_record("11", "a worker of 3 drained and replaced, 200 jobs", restarts,
                 slowest);
    fake_close(&b);
}

/* A job that ends within the grace ends; one that does not is given back: at the end of
 * the grace, or at once when the signal comes twice. */
static void drain_with(int ms, double grace_s, int signals, bool ends)
{
    fleet_open("drain");
    kvm_graph g = kvm_test_graph(&b.keep, 1, false, KVM_JOB_CAPTURE, 0);
    fake_do(&g, 0, "ok", ms);
    fake_submit(&b, &g, false);
    kvm_worker_options o = fleet_options(60);
    o.grace_s = grace_s;
    fleet_scheduler = fleet_start_scheduler();
    const pid_t pid = fake_worker(o, NULL);
    fake_until(b.db, "SELECT COUNT(*) FROM job WHERE state = 'running'", 1, 60);
    while (!fake_pid(0)) kvm_sleep(0.01);
    const double told = kvm_now();
    for (int i = 0; i < signals; i++) {
        kill(pid, SIGTERM);
        kvm_sleep(0.3); /* two at once are one */
    }
    assert_int_equal(fake_join(pid, ms / 1e3 + 60), 7);
    const double took = kvm_now() - told;
    fleet_stop(NULL, 0);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM job WHERE state = 'succeeded'"),
                     ends);
    assert_int_equal(NUMBER(FLEET_LEFT), !ends);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM job WHERE state = 'running'"), 0);
    assert_int_equal(NUMBER("SELECT crashes + retries FROM job"), 0);
    assert_int_equal(NUMBER("SELECT attempt FROM job"), ends);
    char what[80];
    snprintf(what, sizeof what, "SIGTERM%s under a job of %g s, grace %g s",
             signals > 1 ? " twice" : "", ms / 1e3, grace_s);
    fleet_record("11", what, 1, took);
    fake_close(&b);
}

static void a_job_ends_within_the_grace_or_is_given_back(void **state)
{
    (void)state;
    enum { TEN_MINUTES = 600000 };
    const double grace_s = 60;
    drain_with(chaos_count(1000, 10000), grace_s, 1, true);
    drain_with(TEN_MINUTES, chaos_count(1, 20), 1, false);
    drain_with(TEN_MINUTES, grace_s, 2, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rolling_restart_burns_no_attempt),
        cmocka_unit_test(a_job_ends_within_the_grace_or_is_given_back),
    };
    if (!fleet_servers()) return 0;
    return cmocka_run_group_tests_name("drain", tests, NULL, NULL);
}
