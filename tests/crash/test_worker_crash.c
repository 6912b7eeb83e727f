/* Workers killed, stopped and poisoned: each job ends once, with one result, and
 * nothing is left over. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "base/rng.h"
#include "schema/fault.h"
#include "tests/support/fake_kinds.h"
#include "workers/machine.h"

#define NUMBER(sql) kvm_test_number(b.db, sql)

static fake_base b;

/* Every job has succeeded once, in one attempt of however many; every artefact is
 * sound; the last one has the content that an undisturbed run gives; no garbage but
 * files nobody names. */
static void assert_sound(int64_t run, int jobs, const char *last)
{
    kvm_result_artefact *all;
    ptrdiff_t n = 0;
    kvm_run_info info;
    json_t *problems;
    kvm_str path, text = {0};
    kvm_arena keep;
    fake_no_children();
    MUST(kvm_arena_init(&keep, 16 << 20, e));
    MUST(kvm_run_look(b.c, run, &info, &keep, e));
    if (info.state != KVM_RUN_SUCCEEDED)
        fail_msg("the run is in state %d: %.*s", (int)info.state,
                 KVM_STR_ARG(info.trouble_message));
    assert_int_equal(info.jobs[KVM_STATE_SUCCEEDED] + info.jobs[KVM_STATE_SKIPPED],
                     jobs);
    assert_int_equal(
        NUMBER("SELECT COUNT(*) FROM (SELECT job_id FROM attempt WHERE outcome "
               "IN ('succeeded','skipped') GROUP BY job_id HAVING COUNT(*) > 1)"),
        0);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM job WHERE state NOT IN "
                            "('succeeded','skipped')"),
                     0);
    assert_int_equal(
        NUMBER("SELECT COUNT(*) FROM job j WHERE (SELECT COUNT(*) FROM artefact "
               "a WHERE a.job_id = j.id) <> 1"),
        0);
    kvm_store *fresh; /* has verified nothing yet */
    MUST(kvm_store_open(&fresh, &keep, kvm_str_of(fake_home), NULL, e));
    MUST(kvm_run_artefacts(b.c, run, &all, &n, &keep, e));
    assert_int_equal(n, jobs);
    for (ptrdiff_t i = 0; i < n; i++) {
        MUST(kvm_store_get(fresh, &path, &keep, all[i].sha.at, all[i].bytes, e));
        MUST(kvm_file_read(&text, &keep, path, 1 << 20, e));
        assert_int_equal(kvm_str_find(path, KVM_STR(".tmp")), -1);
    }
    if (last) assert_string_equal(text.at, last);
    MUST(kvm_catalogue_check(b.c, &problems, &keep, e));
    assert_int_equal(json_array_size(problems), 0);
    kvm_arena_free(&keep);
}

static void assert_no_folders_left(void)
{
    for (int job = 1; job < 10; job++) {
        char path[300];
        snprintf(path, sizeof path, "%s/work/%d", fake_home, job);
        assert_false(kvm_path_exists(kvm_str_of(path)));
    }
}

/* Submits and works in a process of its own, which the fault may end anywhere. */
static pid_t run_all(const kvm_graph *g, bool again, const char *fault, double lease_s)
{
    const pid_t pid = fork();
    if (pid > 0) return pid;
    if (fault) setenv("KVMILL_FAULT", fault, 1);
    kvm_arena keep;
    kvm_catalogue *c;
    kvm_store *store;
    kvm_submitted s;
    kvm_worker_stats stats;
    kvm_err err = {0};
    const kvm_submit_options so = {.machine = KVM_STR("test machine"), .again = again};
    kvm_worker_options o = fake_options(lease_s);
    if (kvm_arena_init(&keep, 64 << 20, &err) ||
        kvm_catalogue_open(&c, &keep, kvm_str_of(b.db), NULL, &err) ||
        kvm_store_open(&store, &keep, kvm_str_of(fake_home), NULL, &err) ||
        kvm_submit(c, store, g, &so, &s, keep, &err)) {
        fprintf(stderr, "# %s\n", err.msg);
        _exit(1);
    }
    o.run = s.run;
    o.until_idle = false;
    if (kvm_worker_run(&o, &stats, &err)) {
        fprintf(stderr, "# %s\n", err.msg);
        _exit(1);
    }
    _exit(0);
}

static bool in_child(kvm_fault_id f)
{
    return f == KVM_FAULT_CHILD_START || f == KVM_FAULT_CHILD_OUTPUT ||
           f == KVM_FAULT_CHILD_END;
}

/* The state from which a point can be reached. Gives whether to submit anew. */
static bool lead_to(kvm_fault_id f, const kvm_graph *g)
{
    if (f == KVM_FAULT_IN_SKIP)
        assert_int_equal(fake_join(run_all(g, false, NULL, 30), 30), 0);
    if (f == KVM_FAULT_IN_REAP)
        assert_int_equal(fake_join(run_all(g, false, "after_claim:1", 1), 30), 137);
    return f == KVM_FAULT_IN_SKIP;
}

static void killed_at_every_point(void **state)
{
    (void)state;
    int points = 0;
    for (int f = 0; f < KVM_FAULT_COUNT; f++)
        for (int nth = 1; nth <= 2; nth++) {
            if (f >= KVM_FAULT_RANK_LEADS && f <= KVM_FAULT_GANG_STARTED)
                continue; /* of gangs alone */
            if (f == KVM_FAULT_IN_SWEEP || f == KVM_FAULT_BEFORE_SEND ||
                f == KVM_FAULT_AFTER_SEND)
                continue; /* not a worker's: unit/test_gc, unit/test_dispatch */
            if (nth == 2 && (f == KVM_FAULT_IN_SUBMIT || f == KVM_FAULT_AFTER_SUBMIT ||
                             f == KVM_FAULT_IN_REAP || f == KVM_FAULT_IN_RENEW))
                continue; /* passed once a process here */
            char fault[64];
            fake_open(&b, "worker_crash");
            kvm_graph g = kvm_test_graph(&b.keep, 3, true, KVM_JOB_CAPTURE, 0);
            if (f == KVM_FAULT_IN_RENEW) fake_do(&g, 1, "ok", 500);
            const double lease_s = f == KVM_FAULT_IN_RENEW ? 0.9 : 30;
            const bool again = lead_to((kvm_fault_id)f, &g);
            snprintf(fault, sizeof fault, "%s:%d", kvm_fault_name((kvm_fault_id)f),
                     nth);
            print_message("# %s\n", fault);
            const int code = fake_join(run_all(&g, again, fault, lease_s), 60);
            assert_int_equal(code, in_child((kvm_fault_id)f) ? 0 : 137);
            points++;
            /* nobody had heard of a run whose transaction was cut off */
            if (f == KVM_FAULT_IN_SUBMIT)
                assert_int_equal(NUMBER("SELECT COUNT(*) FROM run"), 0);
            assert_int_equal(fake_join(run_all(&g, false, NULL, 30), 60), 0);
            assert_sound(again ? 2 : 1, 3, "2<1<0<>>>");
            assert_no_folders_left();
            fake_close(&b);
        }
    assert_true(points >= 20);
}

static void killed_at_ten_random_moments(void **state)
{
    (void)state;
    const uint64_t seed = 99;
    kvm_rng r = kvm_rng_seed(seed, 0);
    fake_open(&b, "worker_crash");
    kvm_graph g = kvm_test_graph(&b.keep, 5, true, KVM_JOB_CAPTURE, 0);
    for (int i = 0; i < 5; i++) fake_do(&g, i, "ok", 150);
    for (int i = 0; i < 10; i++) {
        const pid_t pid = run_all(&g, false, NULL, 30);
        kvm_sleep(0.02 + 0.25 * kvm_rng_unit(&r));
        kill(pid, SIGKILL);
        fake_join(pid, 10);
    }
    assert_int_equal(fake_join(run_all(&g, false, NULL, 30), 60), 0);
    assert_sound(1, 5, "4<3<2<1<0<>>>>>");
    fake_close(&b);
}

static void a_poison_job_is_parked_and_the_rest_goes_on(void **state)
{
    (void)state;
    fake_open(&b, "worker_crash");
    const char *const poisons[] = {"segv", "oom", "exit"};
    kvm_graph g = kvm_test_graph(&b.keep, 9, false, KVM_JOB_CAPTURE, 0);
    for (ptrdiff_t i = 0; i < 3; i++) fake_do(&g, 3 * i, poisons[i], 0);
    fake_submit(&b, &g, false);
    const pid_t one = fake_worker(fake_options(30), NULL);
    const pid_t two = fake_worker(fake_options(30), NULL);
    assert_int_equal(fake_join(one, 30), 0);
    assert_int_equal(fake_join(two, 30), 0);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM job WHERE state='succeeded'"), 6);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM job WHERE state='parked'"), 3);
    assert_int_equal(
        NUMBER("SELECT COUNT(*) FROM v_attempts WHERE outcome='crashed' OR "
               "outcome='parked'"),
        9);
    for (int i = 0; i < 3; i++) { /* the logs of all three attempts are there */
        char sql[200];
        for (int token = 1; token <= 3; token++) {
            char path[300];
            snprintf(path, sizeof path, "%s/logs/%d-%d.log", fake_home, 3 * i + 1,
                     token);
            assert_true(kvm_path_exists(kvm_str_of(path)));
        }
        snprintf(sql, sizeof sql, "SELECT attempt FROM job WHERE id = %d", 3 * i + 1);
        assert_int_equal(NUMBER(sql), 3);
    }
    fake_no_children();
    fake_close(&b);
}

/* A worker is stopped for three leases (its child goes on, or is stopped too); another
 * one does the job; the first wakes up: what it writes is refused and the winner's
 * artefact stands. A hundred times, in batches that sleep together: one at a time they
 * would take three minutes, most of it waiting. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { JOB_MS = 6000, DONE_S = 120 }; /* all have begun before the first one ends */
#else
enum { JOB_MS = 1500, DONE_S = 30 };
#endif
enum { SLEEPERS = 20, BATCHES = 5 };

/* A process that is stopped within a transaction keeps SQLite's write lock, and with it
 * everybody: that is SQLite's affair and not looked at here. Such a one may end it. */
static void stop_all(const pid_t *pids)
{
    for (int i = 0; i < SLEEPERS; i++) kill(pids[i], SIGSTOP);
    for (int tries = 0; !kvm_test_writable(b.db); tries++) {
        assert_true(tries < 100);
        for (int i = 0; i < SLEEPERS; i++) kill(pids[i], SIGCONT);
        kvm_sleep(0.005);
        for (int i = 0; i < SLEEPERS; i++) kill(pids[i], SIGSTOP);
    }
}

static void sleep_together(int batch)
{
    const double lease_s = 0.5;
    pid_t slow[SLEEPERS], quick[SLEEPERS];
    fake_open(&b, "worker_crash");
    kvm_graph g = kvm_test_graph(&b.keep, SLEEPERS, false, KVM_JOB_CAPTURE, 0);
    for (int i = 0; i < SLEEPERS; i++) fake_do(&g, i, "ok", JOB_MS);
    fake_submit(&b, &g, false);
    for (int i = 0; i < SLEEPERS; i++)
        slow[i] = fake_worker(fake_options(lease_s), NULL);
    fake_until(b.db, "SELECT COUNT(*) FROM job WHERE state='running'", SLEEPERS, 10);
    kvm_sleep(0.02 * (batch + 1));
    for (int i = 0; i < SLEEPERS; i += 2)
        if (fake_pid(i)) kill((pid_t)fake_pid(i), SIGSTOP);
    stop_all(slow);
    const double stopped = kvm_now();
    for (int i = 0; i < SLEEPERS; i++) quick[i] = fake_worker(fake_options(30), NULL);
    fake_until(b.db, "SELECT COUNT(*) FROM job WHERE state='succeeded'", SLEEPERS,
               DONE_S);
    /* none was done by its sleeper; more than one taking over is no fault */
    assert_int_equal(NUMBER("SELECT MIN(token) FROM job"), 2);
    const int64_t tokens = NUMBER("SELECT SUM(token) FROM job");
    while (kvm_now() < stopped + 3 * lease_s) kvm_sleep(0.01);
    for (int i = SLEEPERS; fake_pid(i); i++) /* children of sleepers: the first */
        kill((pid_t)fake_pid(i), SIGCONT);
    for (int i = 0; i < SLEEPERS; i++) kill(slow[i], SIGCONT);
    for (int i = 0; i < SLEEPERS; i++) {
        assert_int_equal(fake_join(slow[i], 20), 0);
        assert_int_equal(fake_join(quick[i], 20), 0);
    }
    assert_int_equal(NUMBER("SELECT SUM(token) FROM job"), tokens);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM attempt WHERE outcome='succeeded'"),
                     SLEEPERS);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM metric"), 2 * SLEEPERS);
    assert_sound(1, SLEEPERS, NULL);
    fake_close(&b);
}

static void a_worker_that_slept_is_refused(void **state)
{
    (void)state;
    for (int batch = 0; batch < BATCHES; batch++) sleep_together(batch);
}

static void many_workers_share_many_jobs(void **state)
{
    (void)state;
    enum { WORKERS = 4, JOBS = 60 };
    pid_t pids[WORKERS];
    fake_open(&b, "worker_crash");
    kvm_graph g = kvm_test_graph(&b.keep, JOBS, false, KVM_JOB_CAPTURE, 0);
    for (int i = 0; i < JOBS; i += 2) /* every second one is a twin of the one before */
        json_object_set_new(g.nodes[i].params, "n", json_integer(i + 1));
    fake_submit(&b, &g, false);
    for (int i = 0; i < WORKERS; i++) pids[i] = fake_worker(fake_options(30), NULL);
    kvm_sleep(0.1);
    kill(pids[0], SIGKILL); /* one of them dies */
    fake_join(pids[0], 10);
    for (int i = 1; i < WORKERS; i++) assert_int_equal(fake_join(pids[i], 60), 0);
    assert_sound(1, JOBS, NULL);
    assert_int_equal(NUMBER("SELECT COUNT(DISTINCT key) FROM job"), JOBS / 2);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM job WHERE state='skipped'"),
                     JOBS / 2);
    fake_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_at_every_point),
        cmocka_unit_test(killed_at_ten_random_moments),
        cmocka_unit_test(a_poison_job_is_parked_and_the_rest_goes_on),
        cmocka_unit_test(a_worker_that_slept_is_refused),
        cmocka_unit_test(many_workers_share_many_jobs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
