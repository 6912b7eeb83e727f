/* Small jobs that a worker claims together: each ends by what became of it, whatever
 * becomes of the others. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "workers/worker.h"

#include "tests/support/fake_kinds.h"
#include "workers/worker_internal.h"

static fake_base b;

static int set_up(void **state)
{
    (void)state;
    fake_open(&b, "worker_batch");
    return 0;
}
static int tear_down(void **state)
{
    (void)state;
    fake_no_children();
    fake_close(&b);
    return 0;
}

#define NUMBER(sql) kvm_test_number(b.db, sql)

/* none of our kinds is small */
static void submit_small(const kvm_graph *g)
{
    fake_submit(&b, g, false);
    kvm_test_sql(b.db, "UPDATE job SET class = 'small'");
}

static kvm_worker_stats work(void)
{
    kvm_worker_stats stats;
    const kvm_worker_options o = fake_options(30);
    MUST(kvm_worker_run(&o, &stats, e));
    return stats;
}

/* how many processes have served jobs */
static int children(void)
{
    int n = 0;
    for (int i = 0; fake_pid(i); i++) {
        bool again = false;
        for (int k = 0; k < i; k++) again = again || fake_pid(k) == fake_pid(i);
        n += !again;
    }
    return n;
}

static bool exists(const char *name)
{
    char path[700];
    snprintf(path, sizeof path, "%s/%s", fake_home, name);
    return kvm_path_exists(kvm_str_of(path));
}

static void one_child_serves_them_all(void **state)
{
    (void)state;
    enum { JOBS = 20 };
    const kvm_graph g = kvm_test_graph(&b.keep, JOBS, false, KVM_JOB_CAPTURE, 0);
    submit_small(&g);
    assert_int_equal(work().succeeded, JOBS);
    assert_int_equal(children(), 1);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM artefact"), JOBS);
    assert_int_equal(NUMBER("SELECT COUNT(DISTINCT sha) FROM artefact"), JOBS);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM metric WHERE name = 'n'"), JOBS);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM attempt WHERE outcome = 'succeeded'"),
                     JOBS);
    assert_int_equal(NUMBER("SELECT COUNT(DISTINCT ended_at - started_at) FROM attempt "
                            "WHERE ended_at < started_at"),
                     0);
    assert_int_equal(NUMBER("SELECT COUNT(DISTINCT log) FROM attempt"), 1);
    char name[400];
    snprintf(name, sizeof name, "%s/logs/1-1.log", fake_home);
    const kvm_str log = check_read(&b.keep, name);
    for (int i = 1; i <= JOBS; i++) {
        char word[64];
        snprintf(word, sizeof word, "event=job.begin job=%d token=1 ", i);
        check_contains(log.at, word);
        assert_null(strstr(strstr(log.at, word) + 1, word));
        snprintf(name, sizeof name, "work/%d", i);
        assert_false(exists(name));
    }
}

static void those_that_need_them_come_in_the_next_batch(void **state)
{
    (void)state;
    const kvm_graph g = kvm_test_graph(&b.keep, 3, true, KVM_JOB_CAPTURE, 0);
    submit_small(&g);
    assert_int_equal(work().succeeded, 3);
    assert_int_equal(children(), 3);
}

static void each_ends_by_its_own_verdict(void **state)
{
    (void)state;
    kvm_graph g = kvm_test_graph(&b.keep, 5, false, KVM_JOB_CAPTURE, 0);
    fake_do(&g, 1, "bad", 0);
    fake_do(&g, 3, "disk", 0);
    submit_small(&g);
    const kvm_worker_stats s = work();
    assert_int_equal(s.succeeded, 3);
    assert_int_equal(s.failed, 2);
    assert_int_equal(s.retried, 4);
    assert_string_equal(kvm_test_state(b.c, &b.keep, 2), "failed");
    assert_string_equal(kvm_test_state(b.c, &b.keep, 4), "parked");
    assert_int_equal(NUMBER("SELECT SUM(attempt) FROM job WHERE state = 'succeeded'"),
                     3);
}

/* The crash counts against the job it was at; what is done is committed, the rest is
 * given back and its attempt taken back. */
static void a_crash_takes_no_other_along(void **state)
{
    (void)state;
    kvm_graph g = kvm_test_graph(&b.keep, 6, false, KVM_JOB_CAPTURE, 0);
    fake_do(&g, 2, "segv", 0);
    submit_small(&g);
    const kvm_worker_stats s = work();
    assert_int_equal(s.succeeded, 5);
    assert_int_equal(s.failed, 1);
    assert_true(s.released >= 3 && s.released % 3 == 0);
    assert_string_equal(kvm_test_state(b.c, &b.keep, 3), "parked");
    assert_int_equal(NUMBER("SELECT crashes FROM job WHERE id = 3"), 3);
    assert_int_equal(NUMBER("SELECT SUM(crashes) FROM job WHERE id <> 3"), 0);
    assert_int_equal(NUMBER("SELECT MAX(attempt) FROM job WHERE id <> 3"), 1);
    assert_int_equal(NUMBER("SELECT message LIKE '%signal 11%' FROM job WHERE id = 3"),
                     1);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM attempt WHERE outcome = 'released'"),
                     s.released);
}

static void a_result_that_is_refused_ends_its_job_alone(void **state)
{
    (void)state;
    kvm_graph g = kvm_test_graph(&b.keep, 4, false, KVM_JOB_CAPTURE, 0);
    fake_do(&g, 1, "twice", 0);
    submit_small(&g);
    const kvm_worker_stats s = work();
    assert_int_equal(s.succeeded, 3);
    assert_int_equal(s.failed, 1);
    assert_string_equal(kvm_test_state(b.c, &b.keep, 2), "failed");
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM artefact"), 3);
}

static void one_that_is_cancelled_stops_alone(void **state)
{
    (void)state;
    kvm_graph g = kvm_test_graph(&b.keep, 4, false, KVM_JOB_CAPTURE, 0);
    fake_do(&g, 1, "ok", 60000);
    submit_small(&g);
    const pid_t pid = fake_worker(fake_options(30), NULL);
    fake_until(b.db, "SELECT COUNT(*) FROM job WHERE state = 'running'", 4, 10);
    kvm_sleep(0.2);
    MUST(kvm_job_cancel(b.c, 4, NULL, e)); /* it has not come to this one */
    MUST(kvm_job_cancel(b.c, 2, NULL, e));
    assert_int_equal(fake_join(pid, 20), 0);
    assert_string_equal(kvm_test_state(b.c, &b.keep, 1), "succeeded");
    assert_string_equal(kvm_test_state(b.c, &b.keep, 2), "cancelled");
    assert_string_equal(kvm_test_state(b.c, &b.keep, 3), "succeeded");
    assert_string_equal(kvm_test_state(b.c, &b.keep, 4), "cancelled");
    assert_int_equal(NUMBER("SELECT SUM(attempt) FROM job WHERE state = 'succeeded'"),
                     2);
    assert_int_equal(fake_pid(3), 0); /* nobody ran the fourth */
}

static void one_that_is_lost_is_left_alone(void **state)
{
    (void)state;
    kvm_graph g = kvm_test_graph(&b.keep, 3, false, KVM_JOB_CAPTURE, 0);
    fake_do(&g, 1, "ok", 60000);
    submit_small(&g);
    kvm_worker_options o = fake_options(3);
    const pid_t pid = fake_worker(o, NULL);
    fake_until(b.db, "SELECT COUNT(*) FROM job WHERE state = 'running'", 3, 10);
    kvm_sleep(0.2);
    kvm_test_sql(b.db,
                 "UPDATE job SET token = token + 1, lease_until = lease_until + 9 "
                 "WHERE id < 3");
    fake_until(b.db, "SELECT COUNT(*) FROM job WHERE state = 'succeeded'", 1, 10);
    assert_string_equal(kvm_test_state(b.c, &b.keep, 3), "succeeded");
    assert_string_equal(kvm_test_state(b.c, &b.keep, 1), "running");
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM artefact"), 1);
    assert_true(exists("work/1/dir/out.bin"));
    kill(pid, SIGTERM);
    fake_join(pid, 10);
}

static void a_budget_is_of_one_job(void **state)
{
    (void)state;
    kvm_graph g = kvm_test_graph(&b.keep, 3, false, KVM_JOB_CAPTURE, 0);
    for (int i = 0; i < 3; i++) fake_do(&g, i, "ok", i == 1 ? 60000 : 300);
    submit_small(&g);
    kvm_test_sql(b.db, "UPDATE job SET timeout_s = 0.5");
    kvm_worker_options o = fake_options(30);
    o.policy.crash_limit = 1;
    kvm_worker_stats s;
    MUST(kvm_worker_run(&o, &s, e));
    assert_int_equal(s.succeeded, 2);
    assert_string_equal(kvm_test_state(b.c, &b.keep, 2), "parked");
    assert_int_equal(NUMBER("SELECT message LIKE '%budget of 0.5 s%' FROM job "
                            "WHERE id = 2"),
                     1);
}

static void a_worker_that_dies_leaves_them_to_the_next(void **state)
{
    (void)state;
    static const char *const points[] = {"before_run",    "child_end", "before_publish",
                                         "after_publish", "in_commit", "before_commit",
                                         "after_commit"};
    for (size_t i = 0; i < COUNT(points); i++) {
        fake_close(&b);
        fake_open(&b, "worker_batch");
        const kvm_graph g = kvm_test_graph(&b.keep, 3, false, KVM_JOB_CAPTURE, 0);
        submit_small(&g);
        fake_join(fake_worker(fake_options(30), points[i]), 20);
        work();
        assert_int_equal(NUMBER("SELECT COUNT(*) FROM job WHERE state = 'succeeded'"),
                         3);
        assert_int_equal(NUMBER("SELECT COUNT(*) FROM artefact"), 3);
        assert_int_equal(NUMBER("SELECT COUNT(*) FROM attempt WHERE outcome = "
                                "'succeeded'"),
                         3);
        fake_no_children();
    }
}

static void draining_gives_the_rest_back(void **state)
{
    (void)state;
    kvm_graph g = kvm_test_graph(&b.keep, 4, false, KVM_JOB_CAPTURE, 0);
    fake_do(&g, 1, "ok", 60000);
    submit_small(&g);
    kvm_worker_options o = fake_options(30);
    o.grace_s = 0.2;
    const pid_t pid = fake_worker(o, NULL);
    fake_until(b.db, "SELECT COUNT(*) FROM job WHERE state = 'running'", 4, 10);
    kvm_sleep(0.2);
    kvm_test_sql(b.db, "UPDATE worker SET drain = 1"); /* as a person asks for it */
    assert_int_equal(fake_join(pid, 10), 7);
    assert_string_equal(kvm_test_state(b.c, &b.keep, 1), "succeeded");
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM job WHERE state = 'ready' AND "
                            "attempt = 0"),
                     3);
}

static void an_idle_worker_hears_it_too(void **state)
{
    (void)state;
    const kvm_graph g = kvm_test_graph(&b.keep, 1, false, KVM_JOB_CAPTURE, 0);
    submit_small(&g);
    kvm_test_sql(b.db, "UPDATE job SET run_after = run_after + 1000");
    const pid_t pid = fake_worker(fake_options(30), NULL);
    fake_until(b.db, "SELECT COUNT(*) FROM worker", 1, 10);
    kvm_test_sql(b.db, "UPDATE worker SET drain = 1");
    assert_int_equal(fake_join(pid, 10), 7);
}

/* who is asked and then told by a signal is told once: its job may end */
static void a_wish_and_a_signal_are_not_two_signals(void **state)
{
    (void)state;
    kvm_graph g = kvm_test_graph(&b.keep, 1, false, KVM_JOB_CAPTURE, 0);
    fake_do(&g, 0, "ok", 3000);
    submit_small(&g);
    kvm_worker_options o = fake_options(3);
    o.grace_s = 60;
    const pid_t pid = fake_worker(o, NULL);
    fake_until(b.db, "SELECT COUNT(*) FROM v_queue WHERE done > 0", 1, 10);
    kvm_test_sql(b.db, "UPDATE worker SET drain = 1");
    kvm_sleep(1); /* it asks twice a second */
    kill(pid, SIGTERM);
    assert_int_equal(fake_join(pid, 20), 7);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM job WHERE state = 'succeeded'"), 1);
}

static void people_see_how_far_it_is(void **state)
{
    (void)state;
    kvm_graph g = kvm_test_graph(&b.keep, 1, false, KVM_JOB_CAPTURE, 0);
    fake_do(&g, 0, "ok", 60000);
    submit_small(&g);
    kvm_worker_options o = fake_options(30);
    o.grace_s = 0.1;
    const pid_t pid = fake_worker(o, NULL);
    fake_until(b.db,
               "SELECT COUNT(*) FROM v_queue WHERE done > 0 AND total = 60000 "
               "AND unit = 'ms'",
               1, 10);
    kill(pid, SIGTERM);
    fake_join(pid, 10);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(one_child_serves_them_all),
        T(those_that_need_them_come_in_the_next_batch),
        T(each_ends_by_its_own_verdict),
        T(a_crash_takes_no_other_along),
        T(a_result_that_is_refused_ends_its_job_alone),
        T(one_that_is_cancelled_stops_alone),
        T(one_that_is_lost_is_left_alone),
        T(a_budget_is_of_one_job),
        T(a_worker_that_dies_leaves_them_to_the_next),
        T(draining_gives_the_rest_back),
        T(an_idle_worker_hears_it_too),
        T(a_wish_and_a_signal_are_not_two_signals),
        T(people_see_how_far_it_is),
    };
    return kvm_test_both("worker_batch", tests);
}
