/* Workers killed and poisoned: each job ends once, with one result, and nothing is left
 * over. (queue.md, 5: row 1, what a worker passes; the fleet's is test_fleet_crash.) */
#define _XOPEN_SOURCE 700 /* nftw */
#include "base/rng.h"
#include "schema/fault.h"
#include "tests/support/sound.h"

#define NUMBER(sql) kvm_test_number(b.db, sql)

static fake_base b;

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
    o.policy.crash_limit = 100; /* a slow machine begins a job often */
    if (kvm_arena_init(&keep, 64 << 20, &err) ||
        kvm_catalogue_open(&c, &keep, kvm_str_of(b.db), NULL, &err) ||
        kvm_store_open(&store, &keep, kvm_str_of(fake_home), NULL, &err) ||
        kvm_submit(c, store, g, &so, &s, keep, &err)) {
        fprintf(stderr, "# %s\n", err.msg);
        _exit(1);
    }
    o.run = s.run;
    o.policy.crash_limit = 100; /* what is killed so often here is no poison */
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

/* of gangs (gang/test_launch), of a sweep (unit/test_gc), of a scheduler */
static bool of_others(kvm_fault_id f)
{
    return f == KVM_FAULT_RANK_LEADS || f == KVM_FAULT_RANK_FOLLOWS ||
           f == KVM_FAULT_GANG_STARTED || f == KVM_FAULT_IN_SWEEP ||
           f == KVM_FAULT_BEFORE_SEND || f == KVM_FAULT_AFTER_SEND;
}

static bool passed_once(kvm_fault_id f)
{
    return f == KVM_FAULT_IN_SUBMIT || f == KVM_FAULT_AFTER_SUBMIT ||
           f == KVM_FAULT_IN_REAP || f == KVM_FAULT_IN_RENEW;
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

/* A submission that was cut off has taken a number (PostgreSQL). */
static int64_t newest_run(void)
{
    return NUMBER("SELECT MAX(id) FROM run");
}

static void killed_at(kvm_fault_id f, int nth)
{
    char fault[64];
    fake_open(&b, "worker_crash");
    kvm_graph g = kvm_test_graph(&b.keep, 3, true, KVM_JOB_CAPTURE, 0);
    if (f == KVM_FAULT_IN_RENEW) fake_do(&g, 1, "ok", 500);
    const double lease_s = f == KVM_FAULT_IN_RENEW ? 0.9 : 30;
    const bool again = lead_to(f, &g);
    snprintf(fault, sizeof fault, "%s:%d", kvm_fault_name(f), nth);
    print_message("# %s\n", fault);
    const int code = fake_join(run_all(&g, again, fault, lease_s), 60);
    assert_int_equal(code, in_child(f) ? 0 : 137);
    /* nobody had heard of a run whose transaction was cut off */
    if (f == KVM_FAULT_IN_SUBMIT)
        assert_int_equal(NUMBER("SELECT COUNT(*) FROM run"), 0);
    const double start = kvm_now();
    assert_int_equal(fake_join(run_all(&g, false, NULL, 30), 60), 0);
    snprintf(fault, sizeof fault, "kill -9 at a named point of a worker");
    sound_record(&b, "1", fault, 1, in_child(f) ? -1 : kvm_now() - start);
    sound_assert(&b, newest_run(), 3, "2<1<0<>>>");
    assert_no_folders_left();
    fake_close(&b);
}

static void killed_at_every_point(void **state)
{
    (void)state;
    int points = 0;
    for (kvm_fault_id f = 0; f < KVM_FAULT_COUNT; f++)
        for (int nth = 1; nth <= chaos_count(2, 3); nth++) {
            if (of_others(f) || (nth > 1 && passed_once(f))) continue;
            killed_at(f, nth);
            points += nth == 1;
        }
    assert_true(points >= 20);
}

static void killed_at_random_moments(void **state)
{
    (void)state;
    kvm_rng r = kvm_rng_seed(99, 0);
    for (int round = 0; round < chaos_count(1, 10); round++) {
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
        sound_record(&b, "1", "kill -9 of a worker at any moment", 10, -1);
        sound_assert(&b, newest_run(), 5, "4<3<2<1<0<>>>>>");
        fake_close(&b);
    }
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
    sound_assert(&b, 1, JOBS, NULL);
    assert_int_equal(NUMBER("SELECT COUNT(DISTINCT key) FROM job"), JOBS / 2);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM job WHERE state='skipped'"),
                     JOBS / 2);
    fake_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_at_every_point),
        cmocka_unit_test(killed_at_random_moments),
        cmocka_unit_test(a_poison_job_is_parked_and_the_rest_goes_on),
        cmocka_unit_test(many_workers_share_many_jobs),
    };
    return kvm_test_both("worker crashes", tests);
}
