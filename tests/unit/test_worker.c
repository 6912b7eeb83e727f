/* The worker: runs, reuses, retries, cancels, drains; and what submitting twice
 * means. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "workers/worker.h"

#include <errno.h>
#include <sys/stat.h>

#include "tests/support/fake_kinds.h"
#include "tests/support/fault.h"
#include "workers/host.h"
#include "workers/machine.h"
#include "workers/worker_internal.h"

static fake_base b;

static int set_up(void **state)
{
    (void)state;
    fake_open(&b, "worker");
    return 0;
}
static int tear_down(void **state)
{
    (void)state;
    fake_close(&b);
    return 0;
}

static kvm_worker_stats work(void)
{
    kvm_worker_stats stats;
    const kvm_worker_options o = fake_options(30);
    MUST(kvm_worker_run(&o, &stats, e));
    return stats;
}

#define NUMBER(sql) kvm_test_number(b.db, sql)

static void a_chain_is_worked_off(void **state)
{
    (void)state;
    const kvm_graph g = kvm_test_graph(&b.keep, 3, true, KVM_JOB_CAPTURE, 0);
    const kvm_submitted s = fake_submit(&b, &g, false);
    assert_int_equal(s.outcome, KVM_SUBMIT_NEW);
    assert_int_equal(s.jobs, 3);
    const kvm_worker_stats w = work();
    assert_int_equal(w.succeeded, 3);
    assert_int_equal(w.failed + w.retried + w.skipped + w.lost, 0);
    char sha[65];
    int64_t bytes;
    kvm_str path, text;
    MUST(kvm_catalogue_output(b.c, KVM_STR("small-large"), s.run, "capture", "out", sha,
                              &bytes, e));
    MUST(kvm_store_get(b.store, &path, &b.keep, sha, bytes, e));
    MUST(kvm_file_read(&text, &b.keep, path, 1000, e));
    assert_string_equal(text.at, "2<1<0<>>>");
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM v_metrics"), 6);
    assert_int_equal(
        NUMBER("SELECT COUNT(*) FROM v_metrics WHERE labels='{\"layer\":3}'"), 3);
    assert_int_equal(NUMBER("SELECT SUM(items) FROM v_quality"), 3);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM v_ttft WHERE rounds=2"), 3);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM v_events WHERE what='done'"), 3);
    assert_int_equal(
        NUMBER("SELECT COUNT(*) FROM v_lineage WHERE from_sha IS NOT NULL"), 2);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM outbox WHERE sent_at IS NULL"), 0);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM worker WHERE gone_at IS NULL"), 0);
    char left[300]; /* no job's folder is left, the logs are */
    snprintf(left, sizeof left, "%s/work/1", fake_home);
    assert_false(kvm_path_exists(kvm_str_of(left)));
    snprintf(left, sizeof left, "%s/logs/1-1.log", fake_home);
    assert_true(kvm_path_exists(kvm_str_of(left)));
}

static void the_same_graph_again_is_done_already(void **state)
{
    (void)state;
    kvm_graph g = kvm_test_graph(&b.keep, 3, true, KVM_JOB_CAPTURE, 0);
    g.nodes[2].kind = KVM_JOB_TIMING;
    const kvm_submitted first = fake_submit(&b, &g, false);
    work();
    kvm_submitted s = fake_submit(&b, &g, false);
    assert_int_equal(s.outcome, KVM_SUBMIT_DONE);
    assert_int_equal(s.run, first.run);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM job"), 3);

    s = fake_submit(&b, &g,
                    true); /* on request: a new run, whose timing is measured again */
    assert_int_equal(s.outcome, KVM_SUBMIT_NEW);
    kvm_worker_stats w = work();
    assert_int_equal(w.skipped, 2);
    assert_int_equal(w.succeeded, 1);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM v_metrics WHERE run=2"), 6);
    assert_int_equal(
        NUMBER("SELECT COUNT(DISTINCT key) FROM job WHERE kind_name='timing'"), 1);

    /* a change of the second step: the first is reused, the rest is done */
    kvm_graph other = kvm_test_graph(&b.keep, 3, true, KVM_JOB_CAPTURE, 0);
    json_object_set_new(other.nodes[1].params, "n", json_integer(77));
    s = fake_submit(&b, &other, false);
    assert_int_equal(s.outcome, KVM_SUBMIT_NEW);
    w = work();
    assert_int_equal(w.skipped, 1);
    assert_int_equal(w.succeeded, 2);
}

/* once for each time, however often it is submitted */
static void a_time_of_a_schedule_makes_one_run(void **state)
{
    (void)state;
    const kvm_graph g = kvm_test_graph(&b.keep, 1, true, KVM_JOB_CAPTURE, 0);
    static const char *const ticks[] = {"1:60", "1:60", "1:120", "1:60", ""};
    static const int64_t runs[] = {1, 1, 2, 1, 3};
    for (int i = 0; i < 5; i++) {
        kvm_submitted s;
        const kvm_submit_options o = {.machine = KVM_STR("test machine"),
                                      .again = true,
                                      .tick = kvm_str_of(ticks[i])};
        MUST(kvm_submit(b.c, b.store, &g, &o, &s, b.keep, e));
        assert_int_equal(s.run, runs[i]);
        work();
    }
}

/* how many jobs were computed on a backend, by the events of their children */
static int64_t computed_on(const char *backend)
{
    return NUMBER(kvm_str_fmt(&b.keep,
                              "SELECT COUNT(*) FROM v_events WHERE what='backend' AND "
                              "text='%s'",
                              backend)
                      .at);
}

static kvm_worker_stats work_on(const char *backend)
{
    kvm_worker_stats stats;
    kvm_worker_options o = fake_options(30);
    o.backend = backend;
    MUST(kvm_worker_run(&o, &stats, e));
    return stats;
}

/* the backend in a step's identity is what the step is computed on, and parts it from
 * equal steps without one */
static void a_step_says_its_backend(void **state)
{
    (void)state;
    const kvm_graph g = kvm_test_graph(&b.keep, 2, true, KVM_JOB_CAPTURE, 0);
    fake_submit(&b, &g, false);
    assert_int_equal(work_on("cpu").succeeded, 2);
    assert_int_equal(computed_on("cpu"), 2);

    const kvm_graph other = kvm_test_graph(&b.keep, 2, true, KVM_JOB_CAPTURE, 0);
    other.nodes[0].identity =
        kvm_json_own(&b.keep, json_pack("{s:s}", "backend", "ref"));
    assert_int_equal(fake_submit(&b, &other, false).outcome, KVM_SUBMIT_NEW);
    const kvm_worker_stats w = work_on("cpu");
    assert_int_equal(w.succeeded, 1); /* the same bits, so the next step stands */
    assert_int_equal(w.skipped, 1);
    assert_int_equal(computed_on("ref"), 1);
}

static void a_step_without_a_backend_is_exact(void **state)
{
    (void)state;
    if (!kvm_backend_find(KVM_STR("cpu-bf16"))) {
        print_message("skipped: this machine has no AVX-512 BF16\n");
        skip();
    }
    const kvm_graph g = kvm_test_graph(&b.keep, 2, false, KVM_JOB_CAPTURE, 0);
    g.nodes[1].kind = KVM_JOB_TIMING;
    fake_submit(&b, &g, false);
    assert_int_equal(work_on("cpu-bf16").succeeded, 2);
    assert_int_equal(computed_on("cpu"), 2);
}

static void a_lost_artefact_is_made_again(void **state)
{
    (void)state;
    const kvm_graph g = kvm_test_graph(&b.keep, 2, true, KVM_JOB_CAPTURE, 0);
    const kvm_submitted first = fake_submit(&b, &g, false);
    work();
    kvm_result_artefact *all;
    ptrdiff_t n;
    MUST(kvm_run_artefacts(b.c, first.run, &all, &n, &b.keep, e));
    assert_int_equal(n, 2);
    char path[400];
    snprintf(path, sizeof path, "%s/objects/%.2s/%s", fake_home, all[0].sha.at,
             all[0].sha.at + 2);
    assert_int_equal(unlink(path), 0);
    const kvm_submitted s = fake_submit(&b, &g, false);
    assert_int_equal(s.outcome, KVM_SUBMIT_NEW);
    kvm_worker_stats w = work();
    assert_int_equal(w.succeeded,
                     1); /* its bits are the same, so the next step stands */
    assert_int_equal(w.skipped, 1);
    assert_true(kvm_path_exists(kvm_str_of(path)));

    FILE *f = fopen(path, "w"); /* damaged: same length, other content */
    assert_true(f && fputs("9<>", f) >= 0 && fclose(f) == 0);
    fake_submit(&b, &g, true);
    w = work();
    assert_int_equal(w.succeeded, 1);
    assert_int_equal(w.skipped, 1);
}

static void failures_end_by_their_class(void **state)
{
    (void)state;
    kvm_graph g = kvm_test_graph(&b.keep, 6, false, KVM_JOB_CAPTURE, 0);
    const char *const how[] = {"segv", "oom", "exit", "bad", "disk", "ok"};
    const char *const want[] = {"parked", "parked", "parked",
                                "failed", "parked", "succeeded"};
    for (int i = 0; i < 6; i++) fake_do(&g, i, how[i], 0);
    const kvm_submitted s = fake_submit(&b, &g, false);
    work();
    for (int i = 0; i < 6; i++)
        assert_string_equal(kvm_test_state(b.c, &b.keep, i + 1), want[i]);
    assert_int_equal(NUMBER("SELECT crashes FROM job WHERE id=1"), 3);
    assert_int_equal(NUMBER("SELECT retries FROM job WHERE id=5"), 5);
    assert_int_equal(NUMBER("SELECT attempt FROM job WHERE id=4"), 1);
    assert_int_equal(NUMBER("SELECT message LIKE '%signal 11%' FROM job WHERE id=1"),
                     1);
    assert_int_equal(
        NUMBER("SELECT message LIKE '%exited with 137%' FROM job WHERE id=3"), 1);
    assert_int_equal(NUMBER("SELECT message = 'rows differ' FROM job WHERE id=4"), 1);
    assert_int_equal(
        NUMBER("SELECT COUNT(*) FROM attempt WHERE job_id=1 AND log IS NOT NULL"), 3);

    const kvm_submitted again = fake_submit(&b, &g, false); /* goes on where it stood */
    assert_int_equal(again.outcome, KVM_SUBMIT_RESUMED);
    assert_int_equal(again.run, s.run);
    assert_int_equal(again.retried, 5);
    assert_int_equal(work().succeeded, 0);
}

static double cost_of(int64_t run, const char *key)
{
    char sha[65];
    int64_t bytes;
    kvm_str path, text;
    kvm_jat cost;
    double v;
    MUST(kvm_catalogue_output(b.c, KVM_STR("small-large"), run, "capture", "cost", sha,
                              &bytes, e));
    MUST(kvm_store_get(b.store, &path, &b.keep, sha, bytes, e));
    MUST(kvm_file_read(&text, &b.keep, path, 1000, e));
    MUST(kvm_json_parse(&cost, &b.keep, text, path, e));
    MUST(kvm_json_f64(kvm_json_get(cost, &b.keep, key), &v, e));
    return v;
}

static void the_cost_of_a_step_is_that_of_all_attempts(void **state)
{
    (void)state;
    kvm_graph g = kvm_test_graph(&b.keep, 1, false, KVM_JOB_CAPTURE, 0);
    fake_do(&g, 0, "cost", 1500);
    const int64_t run = fake_submit(&b, &g, false).run;
    const pid_t pid = fake_worker(fake_options(30), NULL);
    fake_until(b.db, "SELECT COUNT(*) FROM job WHERE state='running'", 1, 5);
    kvm_sleep(1.2); /* the job is half way, and a second of it has been noted */
    kill(pid, SIGKILL);
    fake_join(pid, 5);
    kvm_sleep(1); /* nobody works: no cost */
    assert_int_equal(work().succeeded, 1);
    const double seconds = cost_of(run, "seconds"), cpu = cost_of(run, "cpu_seconds");
    if (!(seconds > 1.5 + 0.5 && seconds < 1.5 + 2.2)) fail_msg("%g s", seconds);
    assert_true(cpu > 0 && cpu < seconds);
    assert_int_equal((int)cost_of(run, "attempts"), 2);
}

static void work_that_was_begun_is_found_again(void **state)
{
    (void)state;
    kvm_graph g = kvm_test_graph(&b.keep, 1, false, KVM_JOB_CAPTURE, 0);
    fake_do(&g, 0, "segv", 0);
    fake_submit(&b, &g, false);
    work();
    char tries[300];
    struct stat st;
    snprintf(tries, sizeof tries, "%s/work/1/dir/tries", fake_home);
    assert_int_equal(stat(tries, &st), 0);
    assert_int_equal(st.st_size, 3); /* three attempts in one folder */

    /* a new catalogue gives the number again, not the folder */
    kvm_catalogue_close(b.c);
    fake_new_catalogue(&b);
    kvm_graph other = kvm_test_graph(&b.keep, 1, false, KVM_JOB_CAPTURE, 5);
    fake_submit(&b, &other, false);
    assert_int_equal(work().succeeded, 1);
    assert_int_equal(NUMBER("SELECT value FROM metric WHERE name='tries'"), 1);
}

static void a_folder_stays_its_jobs_own(void **state)
{
    (void)state;
    char owner[300];
    kvm_work k = {
        .claim = {.fence = {7, 1}, .key = KVM_STR("the key"), .params = KVM_STR("{}")}};
    MUST(kvm_folder__find(&k, kvm_str_of(fake_home), &b.keep, e));
    assert_false(kvm_path_exists(k.folder));
    MUST(kvm_folder__make(&k, b.keep, e));
    snprintf(owner, sizeof owner, "%s/work/7/owner", fake_home);
    const kvm_str text = check_read(&b.keep, owner);
    fault_begin(
        (fault_plan){.nth = 1, .error = ENOSPC, .only = "pwrite", .forever = true});
    MUST(kvm_folder__make(&k, b.keep, e)); /* as it is when time is noted */
    fault_end();
    check_str(check_read(&b.keep, owner), text.at);
    MUST(kvm_folder__find(&k, kvm_str_of(fake_home), &b.keep, e));
    assert_true(kvm_path_exists(k.dir));
    k.claim.key = KVM_STR("another");
    MUST(kvm_folder__find(&k, kvm_str_of(fake_home), &b.keep, e));
    assert_false(kvm_path_exists(k.folder));
}

static void cancel_stops_a_running_job(void **state)
{
    (void)state;
    kvm_graph g = kvm_test_graph(&b.keep, 2, false, KVM_JOB_CAPTURE, 0);
    fake_do(&g, 0, "ok", 60000);
    fake_do(&g, 1, "deaf", 60000);
    const kvm_submitted s = fake_submit(&b, &g, false);
    for (int i = 1; i <= 2; i++) {
        const pid_t pid = fake_worker(fake_options(30), NULL);
        char sql[100];
        snprintf(sql, sizeof sql,
                 "SELECT COUNT(*) FROM job WHERE id=%d AND state='running'", i);
        fake_until(b.db, sql, 1, 10);
        kvm_sleep(0.1);
        const double asked = kvm_now();
        MUST(kvm_job_cancel(b.c, i, NULL, e));
        snprintf(sql, sizeof sql,
                 "SELECT COUNT(*) FROM job WHERE id=%d AND state='cancelled'", i);
        fake_until(b.db, sql, 1, i == 1 ? 2.5 : 6.5); /* deaf ones are killed */
        assert_true(kvm_now() - asked < 6.5);
        if (i == 1) kill(pid, SIGKILL); /* has gone on to the second */
        fake_join(pid, 10);
        if (i == 1) {
            ptrdiff_t reaped;
            MUST(kvm_jobs_reap_dead(b.c, kvm_machine_host(&b.keep), kvm_worker_dead,
                                    NULL, &reaped, e));
            kvm_test_sql(b.db, "UPDATE job SET run_after = 0");
        }
    }
    kvm_run_state now;
    MUST(kvm_run_state_of(b.c, s.run, &now, e));
    assert_int_equal(now, KVM_RUN_CANCELLED);
    assert_int_equal(
        NUMBER("SELECT COUNT(*) FROM v_attempts WHERE job = 2 AND message = "
               "'cancelled; did not stop within 4 s'"),
        1);
    fake_no_children();
}

static void cancelled_is_not_failed(void **state)
{
    (void)state;
    kvm_graph g = kvm_test_graph(&b.keep, 1, false, KVM_JOB_CAPTURE, 0);
    fake_do(&g, 0, "ok", 60000);
    fake_submit(&b, &g, false);
    const pid_t pid = fork();
    if (pid == 0) {
        fake_until(b.db, "SELECT COUNT(*) FROM job WHERE state='running'", 1, 10);
        kvm_test_sql(b.db, "UPDATE job SET state = 'cancelling'");
        _exit(0);
    }
    const kvm_worker_stats w = work();
    assert_int_equal(fake_join(pid, 10), 0);
    assert_string_equal(kvm_test_state(b.c, &b.keep, 1), "cancelled");
    assert_int_equal(w.cancelled, 1);
    assert_int_equal(w.failed, 0);
}

static void mark_drain(void *ctx, const kvm_worker_note *n)
{
    if (n->what == KVM_WORKER_DRAIN) check_write(ctx, n->label);
}

/* ... and says at once that it has heard */
static void await(const char *path)
{
    for (int i = 0; i < 1000 && !kvm_path_exists(kvm_str_of(path)); i++)
        kvm_sleep(0.01);
    assert_true(kvm_path_exists(kvm_str_of(path)));
}

static void a_drained_worker_burns_no_attempt(void **state)
{
    (void)state;
    char drained[300];
    snprintf(drained, sizeof drained, "%s/drained", fake_home);
    kvm_graph g = kvm_test_graph(&b.keep, 2, false, KVM_JOB_CAPTURE, 0);
    fake_do(&g, 0, "ok", 500);
    fake_do(&g, 1, "ok", 60000);
    fake_submit(&b, &g, false);
    kvm_worker_options o = fake_options(30);
    o.grace_s = 5;
    o.note = mark_drain;
    o.note_ctx = drained;
    pid_t pid = fake_worker(o, NULL); /* the short job may end … */
    fake_until(b.db, "SELECT COUNT(*) FROM job WHERE state='running'", 1, 10);
    assert_false(kvm_path_exists(kvm_str_of(drained)));
    kill(pid, SIGTERM);
    await(drained);
    assert_string_equal(kvm_test_state(b.c, &b.keep, 1), "running");
    assert_int_equal(fake_join(pid, 10), 7);
    assert_string_equal(kvm_test_state(b.c, &b.keep, 1), "succeeded");
    assert_string_equal(kvm_test_state(b.c, &b.keep, 2), "ready");

    o.grace_s = 0.2;
    pid = fake_worker(o, NULL); /* … the long one is asked to stop after the grace … */
    fake_until(b.db, "SELECT COUNT(*) FROM job WHERE state='running'", 1, 10);
    kvm_sleep(0.1);
    kill(pid, SIGTERM);
    assert_int_equal(fake_join(pid, 10), 7);
    assert_string_equal(kvm_test_state(b.c, &b.keep, 2), "ready");
    assert_int_equal(NUMBER("SELECT attempt FROM job WHERE id=2"), 0);

    o.grace_s = 60;
    pid = fake_worker(o, NULL); /* … and a second signal waits for nothing */
    fake_until(b.db, "SELECT COUNT(*) FROM job WHERE state='running'", 1, 10);
    kvm_sleep(0.1);
    unlink(drained);
    kill(pid, SIGTERM);
    await(drained);
    kill(pid, SIGTERM);
    assert_int_equal(fake_join(pid, 10), 7);
    assert_string_equal(kvm_test_state(b.c, &b.keep, 2), "ready");
    assert_int_equal(NUMBER("SELECT attempt FROM job WHERE id=2"), 0);
    fake_no_children();
}

static void a_budget_ends_a_job(void **state)
{
    (void)state;
    kvm_graph g = kvm_test_graph(&b.keep, 1, false, KVM_JOB_CAPTURE, 0);
    fake_do(&g, 0, "ok", 60000);
    fake_submit(&b, &g, false);
    kvm_test_sql(b.db, "UPDATE job SET timeout_s = 0.1");
    work();
    assert_string_equal(kvm_test_state(b.c, &b.keep, 1), "parked");
    assert_int_equal(NUMBER("SELECT message LIKE '%budget of 0.1 s%' FROM job"), 1);
}

static void jobs_that_cannot_be_run_fail_with_their_reason(void **state)
{
    (void)state;
    const kvm_graph g = kvm_test_graph(&b.keep, 4, false, KVM_JOB_CAPTURE, 0);
    fake_submit(&b, &g, false);
    kvm_test_sql(b.db, "UPDATE job SET kind = 999 WHERE id = 1;"
                       "UPDATE job SET version = 99 WHERE id = 2;"
                       "UPDATE job SET params = '{oops' WHERE id = 3;");
    work();
    const char *const why[] = {"does not know", "version 99", "step 2"};
    for (int i = 0; i < 3; i++) {
        char sql[200];
        snprintf(
            sql, sizeof sql,
            "SELECT COUNT(*) FROM job WHERE id=%d AND state='failed' AND message LIKE "
            "'%%%s%%'",
            i + 1, why[i]);
        if (NUMBER(sql) != 1) fail_msg("%s", sql);
    }
    assert_string_equal(kvm_test_state(b.c, &b.keep, 4), "succeeded"); /* it lives */
}

static void graphs_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    kvm_submitted s;
    kvm_graph g = kvm_test_graph(&b.keep, 2, true, KVM_JOB_CAPTURE, 0);
    g.nodes[0].inputs[0].node = 1; /* forwards */
    g.nodes[0].input_count = 1;
    assert_int_equal(kvm_submit(b.c, b.store, &g, NULL, &s, b.keep, NULL), KVM_FORMAT);
    g = kvm_test_graph(&b.keep, 1, false, (kvm_kind_id)77, 0);
    assert_int_equal(kvm_submit(b.c, b.store, &g, NULL, &s, b.keep, NULL),
                     KVM_NOTFOUND);
    g.count = 0;
    assert_int_equal(kvm_submit(b.c, b.store, &g, NULL, &s, b.keep, NULL), KVM_FORMAT);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM run"), 0);
}

static void plain_files_record_alike(void **state)
{
    (void)state;
    kvm_jat params;
    kvm_job j = {.keep = &b.keep};
    char dir[300], path[320];
    snprintf(dir, sizeof dir, "%s/single", fake_home);
    MUST(kvm_json_parse(&params, &b.keep, KVM_STR("{\"n\":4}"), KVM_STR("params"), e));
    j.params = params;
    MUST(kvm_host_files(&j, &b.keep, kvm_str_of(dir), e));
    MUST(fake_run(&j, e));
    kvm_records r;
    snprintf(path, sizeof path, "%s/records.jsonl", dir);
    MUST(kvm_records_read(&r, &b.keep, kvm_str_of(path), e));
    assert_int_equal(r.output_count, 1);
    assert_string_equal(r.outputs[0].name.at, "out");
    assert_int_equal(r.result.metric_count, 2);
    assert_int_equal(r.result.sample_count, 1);
    assert_int_equal(r.result.timing_count, 1);
    assert_true(r.result.timings[0].count == 2 &&
                r.result.timings[0].seconds[1] < 0.26);
    assert_false(r.ended);
    assert_int_equal(j.host->metric(&j, "x", 0.0 / 0.0, NULL, NULL), KVM_NAN);
}

static void records_are_not_believed(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "{\"output\":1,\"path\":\"x\"}\n",
        "[]\n",
        "nonsense\n",
        "{\"what\":1}\n",
        "{\"metric\":\"m\",\"value\":1}\n",
        "{\"timing\":\"a\",\"tokens\":1,\"stage\":\"s\"}\n",
        "{\"timing\":\"a\",\"tokens\":1e300,\"stage\":\"s\",\"seconds\":[]}\n",
        "{\"timing\":\"a\",\"tokens\":-1,\"stage\":\"s\",\"seconds\":[]}\n",
        "{\"end\":1e300,\"message\":\"\",\"file\":\"\",\"line\":0}\n",
        "{\"end\":1.5,\"message\":\"\",\"file\":\"\",\"line\":0}\n",
        "{\"end\":-1,\"message\":\"\",\"file\":\"\",\"line\":0}\n",
        "{\"end\":999,\"message\":\"\",\"file\":\"\",\"line\":0}\n",
        "{\"end\":4294967296,\"message\":\"\",\"file\":\"\",\"line\":0}\n",
        "{\"end\":6,\"message\":\"\",\"file\":\"\",\"line\":1e300}\n",
        "{\"end\":0,\"message\":\"\",\"file\":\"\",\"line\":0}\n{\"reuse\":true}\n"};
    char path[300];
    kvm_records r;
    snprintf(path, sizeof path, "%s/records", fake_home);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kvm_err err = {0};
        MUST(kvm_file_publish(kvm_str_of(path), kvm_str_of(bad[i]), b.keep, e));
        assert_int_equal(kvm_records_read(&r, &b.keep, kvm_str_of(path), &err),
                         KVM_FORMAT);
        assert_non_null(strstr(err.msg, "records:"));
    }
    /* a torn last line is no line */
    MUST(kvm_file_publish(kvm_str_of(path),
                          KVM_STR("{\"event\":\"a\",\"text\":\"b\"}\n{\"end\":0"),
                          b.keep, e));
    MUST(kvm_records_read(&r, &b.keep, kvm_str_of(path), e));
    assert_int_equal(r.result.event_count, 1);
    assert_false(r.ended);
}

static void workers_know_the_dead(void **state)
{
    (void)state;
    const kvm_str me = kvm_worker_name(&b.keep);
    assert_false(kvm_worker_dead(me));
    kvm_str head, rest;
    kvm_str_cut(me, '/', &head, &rest);
    assert_true(kvm_str_eq(head, kvm_machine_host(&b.keep)));
    assert_false(kvm_worker_dead(KVM_STR("elsewhere/boot/pid:[1]/1/1/x")));
    assert_false(kvm_worker_dead(KVM_STR("rubbish")));
    assert_true(kvm_worker_dead(
        kvm_str_fmt(&b.keep, "%.*s/other-boot/pid:[1]/1/1/x", KVM_STR_ARG(head))));
    /* a process that has ended */
    int ends[2];
    char name[512] = "";
    assert_int_equal(pipe(ends), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        const kvm_str its = kvm_worker_name(&b.keep);
        _exit(write(ends[1], its.at, (size_t)its.len) == its.len ? 0 : 1);
    }
    close(ends[1]);
    const ssize_t n = read(ends[0], name, sizeof name - 1);
    close(ends[0]);
    assert_true(n > 0);
    assert_int_equal(fake_join(pid, 10), 0);
    assert_true(kvm_worker_dead((kvm_str){name, n}));
}

/* pages of a table go bad while a worker is at it: no time is spent on trying again */
static void a_damaged_catalogue_ends_the_worker(void **state)
{
    (void)state;
    const kvm_graph g = kvm_test_graph(&b.keep, 1, false, KVM_JOB_CAPTURE, 0);
    fake_submit(&b, &g, false);
    kvm_catalogue_close(b.c);
    kvm_test_sql(b.db, "PRAGMA wal_checkpoint(TRUNCATE)");
    const long page = (long)NUMBER("PRAGMA page_size");
    const long root =
        (long)NUMBER("SELECT rootpage FROM sqlite_master WHERE name = 'job'");
    FILE *f = fopen(b.db, "r+");
    assert_true(f && fseek(f, page * (root - 1), SEEK_SET) == 0);
    for (long i = 0; i < page; i++) fputc('x', f);
    assert_int_equal(fclose(f), 0);

    const double began = kvm_now();
    kvm_err err = {0};
    const kvm_worker_options o = fake_options(30);
    check_status(KVM_DAMAGED, kvm_worker_run(&o, NULL, &err), &err);
    check_contains(err.msg, "move the file away");
    assert_true(kvm_now() - began < 10);
}

/* A worker that slept through its lease finds its child at an end: the job's folder is
 * another attempt's by then, and so are the note of what it took and the output. */
static void a_worker_that_lost_its_lease_touches_nothing(void **state)
{
    (void)state;
    kvm_graph g = kvm_test_graph(&b.keep, 1, false, KVM_JOB_CAPTURE, 0);
    fake_do(&g, 0, "ok", 300);
    fake_submit(&b, &g, false);
    kvm_worker_options o = fake_options(1);
    o.until_idle = false;
    o.run = 1;
    const pid_t worker = fake_worker(o, NULL);
    for (double until = kvm_now() + 10; !fake_pid(0) && kvm_now() < until;)
        kvm_sleep(0.005);
    kill(worker, SIGSTOP);
    kvm_sleep(1.5);
    kvm_test_sql(b.db,
                 "UPDATE job SET token = token + 1, lease_until = lease_until + 9");
    char path[300];
    snprintf(path, sizeof path, "%s/work/1/spent", fake_home);
    check_write(path, KVM_STR("another's"));
    kill(worker, SIGCONT);
    kvm_sleep(1.5);
    check_str(check_read(&b.keep, path), "another's");
    snprintf(path, sizeof path, "%s/work/1/dir/out.bin", fake_home);
    assert_true(kvm_path_exists(kvm_str_of(path)));
    kill(worker, SIGTERM);
    fake_join(worker, 10);
}

/* The lease ends after the child was waited for: while the outputs are hashed, say. */
static void a_lease_that_ends_before_a_commit_moves_nothing(void **state)
{
    (void)state;
    const kvm_str dir = kvm_str_fmt(&b.keep, "%s/work/1/dir", fake_home);
    kvm_recorded_output out = {.name = KVM_STR("out"),
                               .path = kvm_path_join(&b.keep, dir, KVM_STR("out.bin"))};
    kvm_worker w = {.store = b.store, .mem = b.keep};
    for (int lost = 0; lost < 2; lost++) { /* another has it; it could not be renewed */
        kvm_work k = {.dir = dir, .records = {.outputs = &out, .output_count = 1}};
        kvm_load l = {.works = &k, .count = 1};
        kvm_err err = {0};
        kvm_beat__set(&l.beat, &(kvm_fence){1, 1}, 1, 9, kvm_now() - (lost ? 0 : 10));
        if (lost) atomic_store(&l.beat.lease[0], KVM_LEASE_LOST);
        MUST(kvm_dir_make(dir, e));
        MUST(kvm_file_publish(out.path, KVM_STR("row"), b.keep, e));
        MUST(kvm_commit__hash(&w, &k, e));
        check_status(KVM_LOST, kvm_commit__publish(&w, &l, 0, &err), &err);
        assert_true(kvm_path_exists(out.path));
    }
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest files[] = {T(a_damaged_catalogue_ends_the_worker)};
    const struct CMUnitTest tests[] = {
        T(a_chain_is_worked_off),
        T(the_same_graph_again_is_done_already),
        T(a_time_of_a_schedule_makes_one_run),
        T(a_step_says_its_backend),
        T(a_step_without_a_backend_is_exact),
        T(a_worker_that_lost_its_lease_touches_nothing),
        T(a_lease_that_ends_before_a_commit_moves_nothing),
        T(a_lost_artefact_is_made_again),
        T(failures_end_by_their_class),
        T(the_cost_of_a_step_is_that_of_all_attempts),
        T(work_that_was_begun_is_found_again),
        T(a_folder_stays_its_jobs_own),
        T(cancel_stops_a_running_job),
        T(cancelled_is_not_failed),
        T(a_drained_worker_burns_no_attempt),
        T(a_budget_ends_a_job),
        T(jobs_that_cannot_be_run_fail_with_their_reason),
        T(graphs_that_make_no_sense_are_refused),
        T(plain_files_record_alike),
        T(records_are_not_believed),
        T(workers_know_the_dead),
    };
    const int bad = cmocka_run_group_tests(files, NULL, NULL);
    return bad + kvm_test_both("worker", tests);
}
