/* The life of a job: every legal change, every fence, and that nothing else can
 * happen. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "schema/job_state.h"

#include <string.h>

#include "base/clock.h"
#include "tests/support/one_run.h"

static int set_up(void **state)
{
    (void)state;
    return one_run_begin("job_state");
}

static kvm_claim claim(void)
{
    return claim_for(60);
}
static bool nothing_to_claim(void)
{
    kvm_claim k;
    bool found = true;
    MUST(kvm_test_claim(c, &k, &found, &keep, worker, 0, 60, e));
    return !found;
}

static kvm_run_state run_state(void)
{
    kvm_run_state s;
    MUST(kvm_run_state_of(c, run, &s, e));
    return s;
}

static const char *const B =
    "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

/* ---- the straight way ---- */

static void a_chain_runs_in_order(void **state)
{
    (void)state;
    const int64_t first = add(1);
    const kvm_job_dep d = {KVM_STR("in"), first, KVM_STR("out")};
    const int64_t second = add_kind(1, 2, &d, 1);
    STATE(first, "ready");
    STATE(second, "blocked");
    kvm_claim k = claim();
    assert_int_equal(k.fence.job, first);
    assert_int_equal(k.fence.token, 1);
    assert_int_equal(k.attempt, 1);
    assert_int_equal(k.key.len, 64);
    assert_string_equal(k.pair.at, "p");
    assert_int_equal(k.input_count, 0);
    assert_true(nothing_to_claim());
    STATE(first, "running");
    const kvm_result r = with_output(A);
    MUST(kvm_job_succeed(c, k.fence, &r, e));
    STATE(first, "succeeded");
    STATE(second, "ready");
    assert_int_equal(run_state(), KVM_RUN_OPEN);
    k = claim();
    assert_int_equal(k.fence.job, second);
    assert_int_equal(k.input_count, 1);
    assert_string_equal(k.inputs[0].name.at, "in");
    assert_string_equal(k.inputs[0].sha.at, A);
    MUST(kvm_job_succeed(c, k.fence, NULL, e));
    assert_int_equal(run_state(), KVM_RUN_SUCCEEDED);
}

static void two_inputs_of_one_job_are_one_need(void **state)
{
    (void)state;
    const int64_t first = add(1), other = add(2);
    const kvm_job_dep d[] = {{KVM_STR("a"), first, KVM_STR("out")},
                             {KVM_STR("b"), first, KVM_STR("out")},
                             {KVM_STR("c"), other, KVM_STR("out")}};
    const int64_t last = add_kind(1, 3, d, 3);
    const kvm_result r = with_output(A);
    kvm_claim k = claim();
    MUST(kvm_job_succeed(c, k.fence, &r, e));
    STATE(last, "blocked");
    k = claim();
    MUST(kvm_job_succeed(c, k.fence, &r, e));
    STATE(last, "ready");
    assert_int_equal(claim().input_count, 3);
}

static void results_and_state_are_one_transaction(void **state)
{
    (void)state;
    const int64_t job = add(1);
    const kvm_claim k = claim();
    const double seconds[] = {3, 1, 2, 10};
    const kvm_result_metric m[] = {{KVM_STR("r2"), KVM_STR("{}"), .5},
                                   {KVM_STR("r2"), KVM_STR("{\"layer\":1}"), .25}};
    const kvm_result_sample s[] = {
        {KVM_STR("needle"), KVM_STR("native"), KVM_STR("em"), KVM_STR("i1"), 1},
        {KVM_STR("needle"), KVM_STR("native"), KVM_STR("em"), KVM_STR("i2"), 0}};
    const kvm_result_timing t = {KVM_STR("cold"), KVM_STR("ttft"), 512, seconds, 4};
    const kvm_result_event ev = {KVM_STR("note"), KVM_STR("hello")};
    kvm_result r = with_output(A);
    r.metrics = m, r.metric_count = 2, r.samples = s, r.sample_count = 2;
    r.timings = &t, r.timing_count = 1, r.events = &ev, r.event_count = 1;

    /* one bad row and nothing of it is there */
    kvm_result_metric bad[] = {m[0], m[0]};
    kvm_result twice = r;
    twice.metrics = bad;
    assert_int_equal(kvm_job_succeed(c, k.fence, &twice, NULL), KVM_EXISTS);
    bad[1] = (kvm_result_metric){KVM_STR("x"), KVM_STR("{}"), 0.0 / 0.0};
    assert_int_equal(kvm_job_succeed(c, k.fence, &twice, NULL), KVM_NAN);
    STATE(job, "running");
    assert_int_equal(kvm_test_number(path, "SELECT COUNT(*) FROM artefact"), 0);

    MUST(kvm_job_succeed(c, k.fence, &r, e));
    assert_int_equal(kvm_test_number(path, "SELECT COUNT(*) FROM artefact"), 1);
    assert_int_equal(kvm_test_number(path, "SELECT COUNT(*) FROM v_metrics"), 2);
    assert_int_equal(kvm_test_number(path, "SELECT 10*mean FROM v_quality"), 5);
    assert_int_equal(kvm_test_number(path, "SELECT items FROM v_quality"), 2);
    assert_int_equal(kvm_test_number(path, "SELECT 10*median_s FROM v_ttft"), 25);
    assert_int_equal(kvm_test_number(path, "SELECT rounds FROM v_ttft"), 4);
    assert_int_equal(kvm_test_number(path, "SELECT most_s FROM v_ttft"), 10);
    assert_int_equal(
        kvm_test_number(path, "SELECT COUNT(*) FROM v_events WHERE what='note'"), 1);
    char sha[65];
    int64_t bytes;
    MUST(kvm_catalogue_output(c, KVM_STR("p"), 0, "x", "out", sha, &bytes, e));
    assert_string_equal(sha, A);
    assert_int_equal(bytes, 3);
    assert_int_equal(
        kvm_catalogue_output(c, KVM_STR("p"), 0, "x", "none", sha, &bytes, NULL),
        KVM_NOTFOUND);
}

static void priority_goes_before_age(void **state)
{
    (void)state;
    add(1);
    int64_t id;
    const kvm_job_new j = {.run = run,
                           .kind = 1,
                           .kind_name = "x",
                           .version = 1,
                           .priority = 5,
                           .label = KVM_STR("urgent"),
                           .params = KVM_STR("{\"n\":9}"),
                           .identity = KVM_STR("{}")};
    MUST(kvm_job_insert(c, &j, &id, e));
    assert_int_equal(claim().fence.job, id);
}

/* ---- keys ---- */

static void equal_steps_are_done_once(void **state)
{
    (void)state;
    const int64_t first = add(1), twin = add(1), later = add(2);
    const kvm_claim k = claim();
    assert_int_equal(k.fence.job, first);
    assert_int_equal(k.equal, 0);
    const kvm_claim other = claim(); /* the twin waits while its key is running */
    assert_int_equal(other.fence.job, later);
    assert_true(nothing_to_claim());
    const kvm_result r = with_output(A);
    MUST(kvm_job_succeed(c, k.fence, &r, e));
    const kvm_claim t = claim();
    assert_int_equal(t.fence.job, twin);
    assert_int_equal(t.equal, first);
    assert_int_equal(t.output_count, 1);
    assert_string_equal(t.outputs[0].sha.at, A);
    assert_int_equal(kvm_job_skip(c, t.fence, later, NULL), KVM_MISMATCH);
    MUST(kvm_job_skip(c, t.fence, first, e));
    STATE(twin, "skipped");
    assert_int_equal(kvm_test_number(path, "SELECT COUNT(*) FROM artefact"), 2);
}

static void timings_are_never_reused(void **state)
{
    (void)state;
    add_kind(6, 1, NULL, 0);
    add_kind(6, 1, NULL, 0);
    const kvm_claim a = claim(), b = claim(); /* both at once */
    kvm_result r = with_output(A);
    r.key = kvm_str_of(B);
    MUST(kvm_job_succeed(c, a.fence, &r, e));
    MUST(kvm_job_succeed(c, b.fence, &r, e));
    add_kind(6, 1, NULL, 0);
    const kvm_claim k = claim();
    assert_int_equal(k.equal, 0);
    assert_int_equal(kvm_job_skip(c, k.fence, a.fence.job, NULL), KVM_MISMATCH);
}

/* ---- ends without result ---- */

static void errors_go_by_their_class(void **state)
{
    (void)state;
    const kvm_queue_policy p = {.retry_limit = 3, .backoff_s = 1e-3};
    for (int code = 1; code <= 22; code++) {
        const int64_t job = add(100 + code);
        const kvm_err why = {.code = (kvm_status)code, .msg = "because"};
        const kvm_claim k = claim();
        assert_int_equal(k.fence.job, job);
        MUST(kvm_job_fail(c, k.fence, &why, NULL, &p, e));
        if (code == KVM_CANCELLED) {
            STATE(job, "cancelled");
        } else if (kvm_status_action(why.code) == KVM_RETRY) {
            STATE(job, "ready");
            for (int i = 2; i <= 3; i++) {
                kvm_sleep(0.01);
                const kvm_claim again = claim();
                assert_int_equal(again.fence.job, job);
                assert_int_equal(again.attempt, i);
                MUST(kvm_job_fail(c, again.fence, &why, NULL, &p, e));
            }
            STATE(job, "parked");
        } else {
            STATE(job, "failed");
        }
    }
    kvm_run_info info;
    MUST(kvm_run_look(c, run, &info, &keep, e));
    assert_int_equal(info.state, KVM_RUN_FAILED);
    assert_string_equal(info.trouble_message.at, "because");
    assert_true(info.jobs[KVM_STATE_PARKED] > 0 && info.jobs[KVM_STATE_FAILED] > 0);
}

static void a_retry_waits_longer_each_time(void **state)
{
    (void)state;
    const kvm_queue_policy p = {
        .retry_limit = 100, .backoff_s = 100, .backoff_most_s = 900};
    const kvm_err why = {.code = KVM_IO, .msg = "disk"};
    const int64_t job = add(1);
    double expect = 100;
    for (int i = 0; i < 6; i++) {
        const kvm_claim k = claim();
        MUST(kvm_job_fail(c, k.fence, &why, NULL, &p, e));
        STATE(job, "ready");
        assert_true(nothing_to_claim());
        const int64_t wait = kvm_test_number(
            path,
            kvm_test_on_server
                ? "SELECT floor(run_after - EXTRACT(EPOCH FROM now())) FROM job"
                : "SELECT run_after - (julianday('now') - 2440587.5) * 86400.0 FROM "
                  "job");
        assert_in_range(wait, (int)(expect / 2) - 2, (int)expect);
        expect = expect * 2 < 900 ? expect * 2 : 900;
        kvm_test_sql(path, "UPDATE job SET run_after = 0");
    }
}

static void three_crashes_park(void **state)
{
    (void)state;
    const int64_t job = add(1);
    for (int i = 1; i <= 3; i++) {
        STATE(job, "ready");
        kvm_sleep(0.005);
        const kvm_claim k = claim();
        assert_int_equal(k.attempt, i);
        MUST(kvm_job_crash(c, k.fence, KVM_STR("signal 11"), NULL, &quick, e));
    }
    STATE(job, "parked");
    assert_int_equal(
        kvm_test_number(
            path, "SELECT COUNT(*) FROM v_attempts WHERE log LIKE 'logs/1-_.log'"),
        3);
    assert_int_equal(run_state(), KVM_RUN_FAILED);

    MUST(kvm_job_retry(c, job, e)); /* fresh counters */
    assert_int_equal(run_state(), KVM_RUN_OPEN);
    const kvm_claim k = claim();
    assert_int_equal(k.attempt, 1);
    assert_true(k.fence.token > 3);
    MUST(kvm_job_crash(c, k.fence, KVM_STR("signal 11"), NULL, &quick, e));
    STATE(job, "ready");
}

static void release_spends_no_attempt(void **state)
{
    (void)state;
    add(1);
    for (int i = 0; i < 5; i++) {
        const kvm_claim k = claim();
        assert_int_equal(k.attempt, 1);
        assert_int_equal(k.fence.token, i + 1);
        MUST(kvm_job_release(c, k.fence, NULL, e));
    }
}

/* ---- people ---- */

static void cancel_reaches_every_state(void **state)
{
    (void)state;
    kvm_job_state now;
    const int64_t running = add(1), ready = add(2);
    const kvm_job_dep d = {KVM_STR("in"), running, KVM_STR("out")};
    const int64_t blocked = add_kind(1, 3, &d, 1);
    const kvm_claim k = claim();
    bool cancelling = true;
    MUST(kvm_job_asked(c, k.fence, &cancelling, e));
    assert_false(cancelling);
    MUST(kvm_run_cancel(c, run, e));
    STATE(ready, "cancelled");
    STATE(blocked, "cancelled");
    STATE(running, "cancelling");
    assert_int_equal(run_state(), KVM_RUN_OPEN); /* until the worker has stopped */
    MUST(kvm_job_renew(c, k.fence, 60, &cancelling, e));
    assert_true(cancelling);
    MUST(kvm_job_cancel(c, running, &now, e)); /* again: nothing new */
    assert_int_equal(now, KVM_STATE_CANCELLING);
    assert_int_equal(kvm_job_succeed(c, k.fence, NULL, NULL), KVM_CANCELLED);
    STATE(running, "cancelling");
    MUST(kvm_job_crash(c, k.fence, KVM_STR("killed"), NULL, NULL, e));
    STATE(running, "cancelled");
    assert_int_equal(run_state(), KVM_RUN_CANCELLED);

    ptrdiff_t retried = 0;
    MUST(kvm_run_retry(c, run, &retried, e));
    assert_int_equal(retried, 3);
    STATE(running, "ready");
    STATE(blocked, "blocked");
    assert_int_equal(run_state(), KVM_RUN_OPEN);
    kvm_claim again = claim();
    MUST(kvm_job_succeed(c, again.fence, NULL, e));
    STATE(blocked, "ready");
}

static void only_ended_jobs_can_be_tried_again(void **state)
{
    (void)state;
    const int64_t job = add(1);
    assert_int_equal(kvm_job_retry(c, job, NULL), KVM_USAGE);
    const kvm_claim k = claim();
    assert_int_equal(kvm_job_retry(c, job, NULL), KVM_USAGE);
    MUST(kvm_job_succeed(c, k.fence, NULL, e));
    kvm_err err = {0};
    assert_int_equal(kvm_job_retry(c, job, &err), KVM_USAGE);
    assert_non_null(strstr(err.msg, "succeeded"));
    assert_int_equal(kvm_job_retry(c, 999, NULL), KVM_NOTFOUND);
    assert_int_equal(kvm_job_cancel(c, 999, NULL, NULL), KVM_NOTFOUND);
    kvm_job_state now;
    MUST(kvm_job_cancel(c, job, &now, e)); /* done is done */
    assert_int_equal(now, KVM_STATE_SUCCEEDED);
}

static void what_needs_a_failed_job_waits_for_its_retry(void **state)
{
    (void)state;
    const int64_t first = add(1);
    const kvm_job_dep d = {KVM_STR("in"), first, KVM_STR("out")};
    const int64_t second = add_kind(1, 2, &d, 1);
    const kvm_err why = {.code = KVM_SHAPE, .msg = "bad"};
    kvm_claim k = claim();
    MUST(kvm_job_fail(c, k.fence, &why, NULL, NULL, e));
    STATE(second, "blocked");
    assert_int_equal(run_state(), KVM_RUN_FAILED);
    MUST(kvm_job_retry(c, first, e));
    k = claim();
    MUST(kvm_job_succeed(c, k.fence, NULL, e));
    STATE(second, "ready");
    assert_int_equal(run_state(), KVM_RUN_OPEN);
}

/* ---- fences ---- */

static void assert_stale(kvm_fence f)
{
    bool cancelling;
    const kvm_err why = {.code = KVM_IO, .msg = "x"};
    const kvm_result r = with_output(B);
    assert_int_equal(kvm_job_succeed(c, f, &r, NULL), KVM_LOST);
    assert_int_equal(kvm_job_skip(c, f, 1, NULL), KVM_LOST);
    assert_int_equal(kvm_job_fail(c, f, &why, NULL, NULL, NULL), KVM_LOST);
    assert_int_equal(kvm_job_crash(c, f, KVM_STR("x"), NULL, NULL, NULL), KVM_LOST);
    assert_int_equal(kvm_job_release(c, f, NULL, NULL), KVM_LOST);
    assert_int_equal(kvm_job_renew(c, f, 60, &cancelling, NULL), KVM_LOST);
    assert_int_equal(kvm_job_asked(c, f, &cancelling, NULL), KVM_LOST);
}

static void a_stale_fence_writes_nothing(void **state)
{
    (void)state;
    const int64_t job = add(1);
    const kvm_claim old = claim_for(0.01);
    ptrdiff_t reaped = 0;
    kvm_sleep(0.05);
    MUST(kvm_jobs_reap(c, &quick, &reaped, e));
    assert_int_equal(reaped, 1);
    assert_stale(old.fence); /* nobody has it */
    kvm_sleep(0.01);
    const kvm_claim now = claim();
    assert_int_equal(now.fence.job, job);
    assert_stale(old.fence); /* another has it */
    const kvm_result r = with_output(A);
    MUST(kvm_job_succeed(c, now.fence, &r, e));
    assert_stale(old.fence); /* it is done … */
    assert_stale(now.fence); /* … also for who did it */
    STATE(job, "succeeded");
    assert_int_equal(
        kvm_test_number(path, "SELECT COUNT(*) FROM artefact WHERE sha LIKE 'a%'"), 1);
    assert_int_equal(kvm_test_number(path, "SELECT COUNT(*) FROM artefact"), 1);
}

static void a_renewed_lease_is_not_reaped(void **state)
{
    (void)state;
    const int64_t job = add(1);
    const kvm_claim k = claim_for(0.05);
    bool cancelling;
    ptrdiff_t reaped;
    MUST(kvm_job_renew(c, k.fence, 60, &cancelling, e));
    kvm_sleep(0.1);
    MUST(kvm_jobs_reap(c, NULL, &reaped, e));
    assert_int_equal(reaped, 0);
    STATE(job, "running");
}

static bool w1_is_dead(kvm_str name)
{
    return kvm_str_eq(name, KVM_STR("w1"));
}

static void jobs_of_dead_processes_are_taken_at_once(void **state)
{
    (void)state;
    add(1);
    const kvm_claim k = claim();
    ptrdiff_t reaped;
    MUST(kvm_jobs_reap_dead(c, KVM_STR("elsewhere"), w1_is_dead, &quick, &reaped, e));
    assert_int_equal(reaped, 0);
    MUST(kvm_jobs_reap_dead(c, KVM_STR("host"), w1_is_dead, &quick, &reaped, e));
    assert_int_equal(reaped, 1);
    assert_stale(k.fence);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(a_chain_runs_in_order),
        T(two_inputs_of_one_job_are_one_need),
        T(results_and_state_are_one_transaction),
        T(priority_goes_before_age),
        T(equal_steps_are_done_once),
        T(timings_are_never_reused),
        T(errors_go_by_their_class),
        T(a_retry_waits_longer_each_time),
        T(three_crashes_park),
        T(release_spends_no_attempt),
        T(cancel_reaches_every_state),
        T(only_ended_jobs_can_be_tried_again),
        T(what_needs_a_failed_job_waits_for_its_retry),
        T(a_stale_fence_writes_nothing),
        T(a_renewed_lease_is_not_reaped),
        T(jobs_of_dead_processes_are_taken_at_once),
    };
    return kvm_test_both("job_state", tests);
}
