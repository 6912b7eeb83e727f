/* Gangs of two under a Slurm of one node that this test starts (tests/support/slurm):
 * srun and sbatch, the fates that Slurm can give a job, and what is left after a worker
 * was killed. Skipped, with the reason, where Slurm cannot be had. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "tests/gang/ranks.h"

#define NUMBER(sql) kvm_test_number(b.db, sql)

static char slurm[4200]; /* its folder; "": it cannot be had */

/* $SLURM_DIR is known to it */
static int shell(const char *line)
{
    fflush(NULL);
    return system(line);
}

static int start_slurm(void **state)
{
    (void)state;
    char here[4000], conf[4300];
    const char *build = getenv("KVM_BUILD");
    const char *slash = build ? strrchr(build, '/') : NULL;
    assert_non_null(getcwd(here, sizeof here));
    snprintf(slurm, sizeof slurm, "%s/build/tmp/slurm-%.32s", here,
             slash ? slash + 1 : "");
    setenv("SLURM_DIR", slurm, 1);
    shell("rm -rf \"$SLURM_DIR\"");
    snprintf(conf, sizeof conf, "%s/slurm.conf", slurm);
    setenv("SLURM_CONF", conf, 1);
    if (shell("tests/support/slurm start \"$SLURM_DIR\" >build/tmp/slurm.log 2>&1") ==
        0)
        return 0;
    printf("# Slurm cannot be had here, its tests are skipped:\n");
    shell("sed 's/^/# /' build/tmp/slurm.log");
    slurm[0] = '\0';
    return 0;
}

static int stop_slurm(void **state)
{
    (void)state;
    return slurm[0] && shell("tests/support/slurm stop \"$SLURM_DIR\"") ? 1 : 0;
}

static void need_slurm(void)
{
    if (!slurm[0]) skip();
}

static kvm_worker_options options(void)
{
    kvm_worker_options o = ranks_options(launcher);
    o.policy.crash_limit = 2;
    o.policy.retry_limit = 3;
    return o;
}

static void wait_for_ranks(void)
{
    const double until = kvm_now() + 60;
    while (!fake_pid(1) && kvm_now() < until) kvm_sleep(0.02);
    assert_true(fake_pid(1) > 0);
}

/* nothing of ours waits or runs in Slurm */
static void nothing_is_queued(void)
{
    const double until = kvm_now() + 15;
    while (shell("test -z \"$(squeue --me --noheader)\""))
        if (kvm_now() > until)
            fail_msg("Slurm still has a job");
        else
            kvm_sleep(0.2);
}

static void set_node(const char *state)
{
    char line[200];
    snprintf(line, sizeof line, "scontrol update nodename=$(hostname -s) state=%s",
             state);
    assert_int_equal(shell(line), 0);
}

/* it comes back by itself where it can */
static void node_is_back(void)
{
    const double until = kvm_now() + 30;
    shell("scontrol update nodename=$(hostname -s) state=resume 2>/dev/null");
    while (shell("sinfo --noheader --format=%T | grep -qE 'idle|alloc|mixed'"))
        if (kvm_now() > until)
            fail_msg("the node stays away");
        else
            kvm_sleep(0.2);
}

static void a_gang_does_a_job(void **state)
{
    (void)state;
    need_slurm();
    const kvm_submitted s = ranks_submit("ok", 0, 50);
    kvm_worker_stats w;
    const kvm_worker_options o = options();
    MUST(kvm_worker_run(&o, &w, e));
    assert_int_equal(w.succeeded, 1);
    assert_string_equal(ranks_result(s), "15 of 2");
    fake_no_children();
    nothing_is_queued();
}

static void a_rank_that_dies_is_a_crash(void **state)
{
    (void)state;
    need_slurm();
    ranks_submit("segv", 1, 0);
    kvm_worker_stats w;
    kvm_worker_options o = options();
    o.policy.crash_limit = 1;
    MUST(kvm_worker_run(&o, &w, e));
    assert_int_equal(w.failed, 1);
    assert_int_equal(NUMBER("SELECT crashes FROM job"), 1);
    fake_no_children();
    nothing_is_queued();
}

static void cancelling_reaches_all_ranks(void **state)
{
    (void)state;
    need_slurm();
    for (int deaf = 0; deaf < 2; deaf++) {
        ranks_tear_down(NULL);
        ranks_set_up(NULL);
        ranks_submit(deaf ? "deaf" : "spin", 1, 100);
        const pid_t pid = fake_worker(options(), NULL);
        wait_for_ranks();
        MUST(kvm_job_cancel(b.c, 1, NULL, e));
        assert_int_equal(fake_join(pid, 60), 0);
        assert_int_equal(NUMBER("SELECT COUNT(*) FROM job WHERE state = 'cancelled'"),
                         1);
        nothing_is_queued();
        fake_no_children();
    }
}

/* A node fails under the job: that is no crash of it, and it is tried again. */
static void a_node_that_fails_costs_no_crash(void **state)
{
    (void)state;
    need_slurm();
    const kvm_submitted s = ranks_submit("spin", 1, 0);
    kvm_worker_options o = options();
    o.policy.backoff_s = 1;
    const pid_t pid = fake_worker(o, NULL);
    wait_for_ranks();
    set_node("down reason=test");
    fake_until(b.db, "SELECT COUNT(*) FROM job WHERE retries = 1 AND crashes = 0", 1,
               60);
    kvm_test_sql(b.db, "UPDATE job SET params = '{\"n\":5}'");
    node_is_back();
    assert_int_equal(fake_join(pid, 120), 0);
    assert_string_equal(ranks_result(s), "15 of 2");
    nothing_is_queued();
    fake_no_children();
}

/* Places that are not to be had are not waited for without end. */
static void a_gang_that_finds_no_place_is_given_up(void **state)
{
    (void)state;
    need_slurm();
    ranks_submit("ok", 0, 0);
    kvm_worker_stats w;
    kvm_worker_options o = options();
    o.start_s = 2;
    o.policy.retry_limit = 1;
    set_node("drain reason=test");
    MUST(kvm_worker_run(&o, &w, e));
    node_is_back();
    assert_int_equal(w.failed, 1);
    assert_int_equal(NUMBER("SELECT crashes FROM job"), 0);
    nothing_is_queued();
}

/* What a killed worker has left in Slurm is ended before the next attempt begins. */
static void the_next_attempt_makes_way_for_itself(void **state)
{
    (void)state;
    need_slurm();
    const kvm_submitted s = ranks_submit("deaf", 1, 0);
    const pid_t pid = fake_worker(options(), NULL);
    wait_for_ranks();
    const long first = fake_pid(0);
    kill(pid, SIGKILL);
    assert_int_equal(fake_join(pid, 10), 128 + SIGKILL);
    kvm_test_sql(b.db, "UPDATE job SET params = '{\"n\":5}'");
    kvm_worker_stats w;
    const kvm_worker_options o = options();
    MUST(kvm_worker_run(&o, &w, e));
    assert_int_equal(w.succeeded, 1);
    assert_string_equal(ranks_result(s), "15 of 2");
    assert_false(fake_alive(first));
    fake_no_children();
    nothing_is_queued();
}

/* Of four places one is taken: one gang runs and the other waits, is given up when it
 * has waited for too long, and is tried again until there is room. */
static void two_gangs_on_three_places(void **state)
{
    (void)state;
    need_slurm();
    enum { GANGS = 2, MS = 4000 };
    pid_t pids[GANGS];
    assert_int_equal(shell("sbatch --quiet -n 1 -o /dev/null --wrap 'sleep 600'"), 0);
    kvm_graph g = kvm_test_graph(&b.keep, GANGS, false, KVM_JOB_CAPTURE, 5);
    for (int i = 0; i < GANGS; i++) fake_do(&g, i, "ok", MS);
    fake_submit(&b, &g, false);
    kvm_test_sql(b.db, "UPDATE job SET ranks = 2");
    kvm_worker_options o = options();
    o.start_s = 3;
    o.policy = (kvm_queue_policy){
        .retry_limit = 1000, .backoff_s = 0.2, .backoff_most_s = 0.5};
    const double start = kvm_now();
    for (int i = 0; i < GANGS; i++) pids[i] = fake_worker(o, NULL);
    for (int i = 0; i < GANGS; i++) assert_int_equal(fake_join(pids[i], 240), 0);
    const double took = kvm_now() - start;
    assert_int_equal(NUMBER("SELECT SUM(crashes) FROM job"), 0);
    fake_no_children();
    sound_record(&b, "12", "two gangs of two on three places", 1, took - MS / 1e3);
    assert_int_equal(shell("scancel --me"), 0);
    nothing_is_queued();
}

static void words_of_slurm(void **state)
{
    (void)state;
    static const struct {
        const char *word;
        kvm_launch_state is;
    } rows[] = {{"PENDING", KVM_LAUNCH_WAITING},    {"RUNNING", KVM_LAUNCH_RUNNING},
                {"COMPLETING", KVM_LAUNCH_RUNNING}, {"COMPLETED", KVM_LAUNCH_ENDED},
                {"FAILED", KVM_LAUNCH_ENDED},       {"NODE_FAIL", KVM_LAUNCH_GONE},
                {"PREEMPTED", KVM_LAUNCH_GONE},     {"REQUEUED", KVM_LAUNCH_WAITING},
                {"OF_TOMORROW", KVM_LAUNCH_RUNNING}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(kvm_slurm__state(kvm_str_of(rows[i].word)), rows[i].is);
}

int main(int argc, char **argv)
{
    if (argc == 2 && argv[1][0] == '/') return kvm_gang_main(argc, argv, ranks_kind_of);
#define TEST(t) cmocka_unit_test_setup_teardown(t, ranks_set_up, ranks_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_gang_does_a_job),
        TEST(a_rank_that_dies_is_a_crash),
        TEST(cancelling_reaches_all_ranks),
        TEST(a_node_that_fails_costs_no_crash),
        TEST(a_gang_that_finds_no_place_is_given_up),
        TEST(the_next_attempt_makes_way_for_itself),
        TEST(two_gangs_on_three_places),
    };
    const struct CMUnitTest words[] = {cmocka_unit_test(words_of_slurm)};
    int bad = cmocka_run_group_tests_name("words", words, start_slurm, NULL);
    launcher = &kvm_launch_srun;
    bad += cmocka_run_group_tests_name("srun", tests, NULL, NULL);
    launcher = &kvm_launch_sbatch;
    return bad + cmocka_run_group_tests_name("sbatch", tests, NULL, stop_slurm);
}
