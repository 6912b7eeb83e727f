/* Gangs of two that really start, forked and by mpirun: what they give, and that none
 * of their processes is left, whoever dies, leaves, spins or is killed. This program is
 * the rank's too. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "schema/fault.h"
#include "tests/gang/ranks.h"

#define NUMBER(sql) kvm_test_number(b.db, sql)

static kvm_worker_options options(void)
{
    kvm_worker_options o = ranks_options(launcher);
    o.policy.crash_limit = 1;
    o.policy.retry_limit = 1;
    return o;
}

static kvm_worker_stats work(kvm_worker_options o)
{
    kvm_worker_stats stats;
    MUST(kvm_worker_run(&o, &stats, e));
    return stats;
}

static const char *message(void)
{
    json_t *rows;
    MUST(kvm_catalogue_view(b.c, &rows, &b.keep, "v_queue", NULL, 0, 0, e));
    return json_string_value(json_object_get(json_array_get(rows, 0), "message"));
}

static void a_gang_does_a_job(void **state)
{
    (void)state;
    const kvm_submitted s = ranks_submit("ok", 0, 50);
    const kvm_worker_stats w = work(options());
    assert_int_equal(w.succeeded, 1);
    assert_string_equal(ranks_result(s), "15 of 2");
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM v_metrics"), 1);
    assert_true(fake_pid(1) > 0 && fake_pid(0) != fake_pid(1));
    fake_no_children();
    char left[300];
    snprintf(left, sizeof left, "%s/work/1", fake_home);
    assert_false(kvm_path_exists(kvm_str_of(left)));
}

/* another job, in the folder of the one before, with what that has left */
static void again_after_a_crash(void **state)
{
    (void)state;
    const kvm_submitted s = ranks_submit("segv", 1, 0);
    kvm_worker_options o = options();
    o.policy.crash_limit = 3;
    o.policy.backoff_s = 1;
    o.policy.backoff_most_s = 1;
    const pid_t pid = fake_worker(o, NULL);
    fake_until(b.db, "SELECT COUNT(*) FROM job WHERE crashes = 1", 1, 60);
    kvm_test_sql(b.db, "UPDATE job SET params = '{\"n\":5}'");
    assert_int_equal(fake_join(pid, 60), 0);
    assert_string_equal(ranks_result(s), "15 of 2");
    fake_no_children();
}

/* seconds: until no rank was left */
static void note_ended(const char *how, double seconds)
{
    char what[80];
    snprintf(what, sizeof what, "a rank: %s, a gang by %s", how, launcher->name);
    chaos_record("12", what, 1, 0, 0, seconds);
}

static void a_rank_that_dies_is_a_crash(void **state)
{
    (void)state;
    static const char *const ways[] = {"segv", "abort", "exit", "exit7", "mpi_abort"};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const int rank = (int)(i + 1) % 2;
        ranks_tear_down(NULL);
        ranks_set_up(NULL);
        ranks_submit(ways[i], rank, 0);
        const double start = kvm_now();
        const kvm_worker_stats w = work(options());
        if (w.failed != 1 || NUMBER("SELECT crashes FROM job") != 1)
            fail_msg("%s of rank %d: failed %td, %s", ways[i], rank, w.failed,
                     message());
        check_contains(message(), "no verdict");
        fake_no_children();
        note_ended(ways[i], kvm_now() - start);
    }
}

static void a_rank_that_fails_fails_the_job(void **state)
{
    (void)state;
    ranks_submit("bad", 1, 0);
    const kvm_worker_stats w = work(options());
    assert_int_equal(w.failed, 1);
    assert_int_equal(w.why, KVM_SHAPE);
    assert_string_equal(message(), "rows differ");
    assert_int_equal(NUMBER("SELECT crashes FROM job"), 0);
    fake_no_children();
}

/* asks for it itself once all ranks are there, in a process of its own */
static void cancel(const char *how, int rank)
{
    ranks_submit(how, rank, 100);
    const pid_t pid = fake_worker(options(), NULL);
    const double until = kvm_now() + 60;
    while (!fake_pid(1) && kvm_now() < until) kvm_sleep(0.02);
    assert_true(fake_pid(1) > 0);
    kvm_sleep(0.5);
    MUST(kvm_job_cancel(b.c, 1, NULL, e));
    assert_int_equal(fake_join(pid, 30), 0);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM job WHERE state = 'cancelled'"), 1);
    fake_no_children();
}

static void cancelling_reaches_all_ranks(void **state)
{
    (void)state;
    cancel("spin", 1);
}

static void ranks_that_do_not_listen_are_killed(void **state)
{
    (void)state;
    cancel("deaf", 0);
}

static void a_gang_ends_with_its_budget(void **state)
{
    (void)state;
    ranks_submit("spin", 0, 0);
    kvm_test_sql(b.db, "UPDATE job SET timeout_s = 2");
    const double start = kvm_now();
    const kvm_worker_stats w = work(options());
    assert_int_equal(w.failed, 1);
    check_contains(message(), "budget");
    fake_no_children();
    note_ended("spins past its budget", kvm_now() - start - 2);
}

/* ---- kill -9 ---- */

enum { KILLED_MS = 1500 };
typedef enum whom { WORKER, RANK_0, RANK_1, LAUNCHER } whom;
static const char *const names[] = {"the worker", "rank 0", "rank 1", "the launcher"};

static void tried_again(const kvm_submitted s, const char *what, double recovery_s)
{
    char text[100];
    assert_string_equal(ranks_result(s), "15 of 2");
    assert_int_equal(NUMBER("SELECT attempt FROM job"), 2);
    fake_no_children();
    snprintf(text, sizeof text, "kill -9 %s, a gang by %s", what, launcher->name);
    sound_record(&b, "1", text, 1, recovery_s);
}

static kvm_worker_options outlives_crashes(void)
{
    kvm_worker_options o = options();
    o.policy.crash_limit = 3;
    return o;
}

/* the ranks' parent: mpirun, or the child that has forked them */
static pid_t parent_of(pid_t pid)
{
    char path[64], text[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    if (!f || !fgets(text, sizeof text, f)) fail_msg("%s", path);
    fclose(f);
    return (pid_t)strtol(strrchr(text, ')') + 3, NULL, 10);
}

static void kill_and_see(whom w)
{
    const kvm_submitted s = ranks_submit("ok", 0, KILLED_MS);
    pid_t pid = fake_worker(outlives_crashes(), NULL);
    const double until = kvm_now() + 60;
    char what[40];
    while (!fake_pid(1) && kvm_now() < until) kvm_sleep(0.02);
    assert_true(fake_pid(1) > 0);
    const double struck = kvm_now();
    if (w == WORKER) {
        kill(pid, SIGKILL);
        assert_int_equal(fake_join(pid, 10), 128 + SIGKILL);
        fake_no_children();
        pid = fake_worker(outlives_crashes(), NULL);
    } else if (w == LAUNCHER) {
        kill(parent_of(ranks_pid(0)), SIGKILL);
    } else {
        kill(ranks_pid(w - RANK_0), SIGKILL);
    }
    assert_int_equal(fake_join(pid, 60), 0);
    snprintf(what, sizeof what, "of %s", names[w]);
    tried_again(s, what, kvm_now() - struck - KILLED_MS / 1e3);
}

static void nobody_outlives_who_is_killed(void **state)
{
    (void)state;
    for (int i = 0; i < chaos_count(4, 20); i++) {
        ranks_tear_down(NULL);
        ranks_set_up(NULL);
        kill_and_see((whom)(i % 4));
    }
}

/* Passings are counted in memory that forked ranks share with the worker; one that
 * mpirun has started would die again and again. */
static void killed_at_every_point_of_a_gang(void **state)
{
    (void)state;
    static const kvm_fault_id points[] = {KVM_FAULT_GANG_STARTED, KVM_FAULT_RANK_LEADS,
                                          KVM_FAULT_RANK_FOLLOWS};
    for (int i = 0; i < (launcher->forks ? 3 : 1); i++) {
        char what[60];
        ranks_tear_down(NULL);
        ranks_set_up(NULL);
        const kvm_submitted s = ranks_submit("ok", 0, 50);
        const double start = kvm_now();
        const pid_t pid = fake_worker(outlives_crashes(), kvm_fault_name(points[i]));
        assert_int_equal(fake_join(pid, 60), 0);
        snprintf(what, sizeof what, "at %s", kvm_fault_name(points[i]));
        tried_again(s, what, kvm_now() - start);
    }
}

static void a_drained_worker_gives_a_gang_back(void **state)
{
    (void)state;
    ranks_submit("spin", 1, 0);
    kvm_worker_options o = options();
    o.grace_s = 0.5;
    const pid_t pid = fake_worker(o, NULL);
    const double until = kvm_now() + 60;
    while (!fake_pid(1) && kvm_now() < until) kvm_sleep(0.02);
    kvm_sleep(0.2);
    kill(pid, SIGTERM);
    assert_int_equal(fake_join(pid, 30), 7);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM job WHERE state = 'ready'"), 1);
    assert_int_equal(NUMBER("SELECT crashes + retries FROM job"), 0);
    fake_no_children();
}

/* ---- what only a program of its own can do ---- */

static void write_script(const char *name, const char *text, char path[300])
{
    snprintf(path, 300, "%s/%s", fake_home, name);
    check_write(path, kvm_str_of(text));
    assert_int_equal(chmod(path, 0755), 0);
}

/* places that never become a gang are given back */
static void ranks_that_never_meet_are_given_up(void **state)
{
    (void)state;
    char path[300];
    if (launcher->forks) skip();
    ranks_submit("ok", 0, 0);
    write_script("asleep", "#!/bin/sh\necho $$ >> \"$1/../../pids\"\nexec sleep 60\n",
                 path);
    kvm_worker_options o = options();
    o.rank_program = kvm_str_of(path);
    o.start_s = 2;
    const kvm_worker_stats w = work(o);
    assert_int_equal(w.failed, 1);
    check_contains(message(), "have not come together");
    assert_int_equal(NUMBER("SELECT crashes FROM job"), 0);
    fake_no_children();
}

static void a_rank_of_no_task_ends_the_gang(void **state)
{
    (void)state;
    char path[300], script[900];
    if (launcher->forks) skip();
    ranks_submit("ok", 0, 0);
    snprintf(script, sizeof script, "#!/bin/sh\nexec '%.*s' /nowhere\n",
             KVM_STR_ARG(options().rank_program));
    write_script("lost", script, path);
    kvm_worker_options o = options();
    o.rank_program = kvm_str_of(path);
    const kvm_worker_stats w = work(o);
    assert_int_equal(w.failed, 1);
    assert_int_equal(NUMBER("SELECT crashes FROM job"), 1);
    fake_no_children();
}

static void a_program_that_is_not_there_is_named(void **state)
{
    (void)state;
    if (launcher->forks) skip();
    ranks_submit("ok", 0, 0);
    kvm_worker_options o = options();
    o.rank_program = KVM_STR("/nowhere/kvmill-rank");
    const kvm_worker_stats w = work(o);
    assert_int_equal(w.failed, 1);
    check_contains(message(), "/nowhere/kvmill-rank");
    assert_int_equal(NUMBER("SELECT crashes FROM job"), 0);
}

static void a_worker_without_ranks_leaves_gangs_alone(void **state)
{
    (void)state;
    ranks_submit("ok", 0, 0);
    kvm_worker_options o = options();
    o.want.ranks = 1;
    o.until_idle = false;
    const pid_t pid = fake_worker(o, NULL);
    kvm_sleep(0.5);
    kill(pid, SIGTERM);
    assert_int_equal(fake_join(pid, 30), 7);
    assert_int_equal(NUMBER("SELECT attempt FROM job"), 0);
}

int main(int argc, char **argv)
{
    if (argc == 2 && argv[1][0] == '/') return kvm_gang_main(argc, argv, ranks_kind_of);
#define TEST(t) cmocka_unit_test_setup_teardown(t, ranks_set_up, ranks_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_gang_does_a_job),
        TEST(again_after_a_crash),
        TEST(a_rank_that_dies_is_a_crash),
        TEST(a_rank_that_fails_fails_the_job),
        TEST(cancelling_reaches_all_ranks),
        TEST(ranks_that_do_not_listen_are_killed),
        TEST(a_gang_ends_with_its_budget),
        TEST(nobody_outlives_who_is_killed),
        TEST(killed_at_every_point_of_a_gang),
        TEST(a_drained_worker_gives_a_gang_back),
        TEST(ranks_that_never_meet_are_given_up),
        TEST(a_rank_of_no_task_ends_the_gang),
        TEST(a_program_that_is_not_there_is_named),
        TEST(a_worker_without_ranks_leaves_gangs_alone),
    };
    launcher = &kvm_launch_fork;
    const int bad = cmocka_run_group_tests_name("fork", tests, NULL, NULL);
    launcher = &kvm_launch_mpirun;
    return bad + cmocka_run_group_tests_name("mpirun", tests, NULL, NULL);
}
