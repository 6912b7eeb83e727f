/* Jobs by the batch: who is next of several teams, claims, ends and leases of many at
 * once, hints. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "schema/job_order.h"

#include <string.h>

#include "base/clock.h"
#include "tests/support/one_run.h"

static int set_up(void **state)
{
    (void)state;
    return one_run_begin("job_batch");
}

#define NUMBER(sql) kvm_test_number(path, sql)
#define SQL(sql) kvm_test_sql(path, sql)

/* ---- jobs ---- */

static int serial;
static int64_t put(kvm_job_new j)
{
    int64_t id;
    if (!j.run) j.run = run;
    j.kind = 1;
    j.kind_name = "x";
    j.version = 1;
    j.label = KVM_STR("job");
    j.params = kvm_str_fmt(&keep, "{\"n\":%d}", serial++);
    j.identity = KVM_STR("{}");
    MUST(kvm_job_insert(c, &j, &id, e));
    return id;
}
static int64_t small(void)
{
    return put((kvm_job_new){.class = "small"});
}
static int64_t run_of(const char *team)
{
    int64_t r;
    const kvm_run_new n = {.team = kvm_str_of(team),
                           .pair = KVM_STR("p"),
                           .spec = KVM_STR("{}"),
                           .key = "other"};
    MUST(kvm_run_insert(c, &n, &r, e));
    return r;
}

static kvm_claim *claims;
static ptrdiff_t take(kvm_want want)
{
    ptrdiff_t n;
    MUST(kvm_jobs_take(c, &want, &claims, &n, &keep, worker, 60, e));
    return n;
}
static ptrdiff_t take_any(void)
{
    return take((kvm_want){0});
}
/* the job that is next, which stays where it is; 0: none */
static int64_t next(kvm_want want)
{
    kvm_job_batch b;
    ptrdiff_t found;
    MUST(kvm_jobs_next(c, &want, &b, 1, &found, e));
    return found ? b.jobs[0].job : 0;
}
static kvm_job_batch next_all(kvm_want want)
{
    kvm_job_batch b = {0};
    ptrdiff_t found;
    MUST(kvm_jobs_next(c, &want, &b, 1, &found, e));
    return b;
}

/* ---- claims ---- */

static void small_ones_are_claimed_together(void **state)
{
    (void)state;
    int64_t ids[4];
    for (int i = 0; i < 4; i++) ids[i] = small();
    const int64_t big = put((kvm_job_new){0}),
                  urgent = put((kvm_job_new){.class = "small", .priority = 3});
    assert_int_equal(take_any(), 5);
    assert_int_equal(claims[0].fence.job, urgent);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(claims[i + 1].fence.job, ids[i]);
        assert_int_equal(claims[i + 1].fence.token, 1);
        assert_int_equal(claims[i + 1].attempt, 1);
        assert_int_equal(claims[i + 1].key.len, 64);
        check_str(claims[i + 1].pair, "p");
    }
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM v_attempts WHERE ended_at IS NULL"),
                     5);
    char one_log[120];
    snprintf(one_log, sizeof one_log,
             "SELECT COUNT(*) FROM v_attempts WHERE log = 'logs/%lld-1.log'",
             (long long)urgent);
    assert_int_equal(NUMBER(one_log), 5);
    assert_int_equal(take_any(), 1);
    assert_int_equal(claims[0].fence.job, big);
    assert_int_equal(take_any(), 0);
}

static void a_batch_holds_no_more_than_it_may(void **state)
{
    (void)state;
    for (int i = 0; i < KVM_BATCH_MOST + 3; i++) small();
    assert_int_equal(take_any(), KVM_BATCH_MOST);
    assert_int_equal(take((kvm_want){.most = 2}), 2);
    assert_int_equal(take_any(), 1);
}

static void each_claim_has_its_own_inputs(void **state)
{
    (void)state;
    static const char *const sha[] = {
        "1111111111111111111111111111111111111111111111111111111111111111",
        "2222222222222222222222222222222222222222222222222222222222222222"};
    const int64_t a = small(), b = small();
    assert_int_equal(take_any(), 2);
    kvm_result r[2] = {with_output(sha[0]), with_output(sha[1])};
    MUST(kvm_job_succeed(c, claims[0].fence, &r[0], e));
    MUST(kvm_job_succeed(c, claims[1].fence, &r[1], e));
    const kvm_job_dep of_b = {KVM_STR("in"), b, KVM_STR("out")};
    const kvm_job_dep both[] = {{KVM_STR("x"), b, KVM_STR("out")},
                                {KVM_STR("y"), a, KVM_STR("out")}};
    put((kvm_job_new){.class = "small", .deps = &of_b, .dep_count = 1});
    small();
    put((kvm_job_new){.class = "small", .deps = both, .dep_count = 2});
    SQL("UPDATE job SET waits = 0, state = 'ready' WHERE state = 'blocked'");
    assert_int_equal(take_any(), 3);
    assert_int_equal(claims[0].input_count, 1);
    check_str(claims[0].inputs[0].sha, sha[1]);
    assert_int_equal(claims[1].input_count, 0);
    assert_int_equal(claims[2].input_count, 2);
    check_str(claims[2].inputs[0].name, "x");
    check_str(claims[2].inputs[1].sha, sha[0]);
}

static void a_hint_with_an_old_token_claims_nothing(void **state)
{
    (void)state;
    small(), small();
    const kvm_job_batch hint = next_all((kvm_want){0});
    ptrdiff_t n;
    assert_int_equal(hint.count, 2);
    assert_int_equal(take((kvm_want){.most = 1}), 1);
    const kvm_fence first = claims[0].fence;
    MUST(kvm_jobs_claim(c, &hint, &claims, &n, &keep, worker, 60, e));
    assert_int_equal(n, 1); /* what is left of it */
    assert_int_equal(claims[0].fence.job, hint.jobs[1].job);
    MUST(kvm_job_release(c, first, NULL, e));
    MUST(kvm_jobs_claim(c, &hint, &claims, &n, &keep, worker, 60, e));
    assert_int_equal(n, 0); /* ready again, under another token */
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM attempt"), 2);
}

static void of_equal_steps_in_a_hint_one_is_claimed(void **state)
{
    (void)state;
    kvm_job_batch hint = {.count = 3};
    ptrdiff_t n;
    serial = 900;
    hint.jobs[0].job = small();
    hint.jobs[1].job = small();
    serial = 900;
    hint.jobs[2].job = small();
    MUST(kvm_jobs_claim(c, &hint, &claims, &n, &keep, worker, 60, e));
    assert_int_equal(n, 2);
    assert_int_equal(claims[0].fence.job, hint.jobs[0].job);
    assert_int_equal(claims[1].fence.job, hint.jobs[1].job);
}

static void a_worker_gets_what_it_can_run(void **state)
{
    (void)state;
    const int64_t cpu = put((kvm_job_new){.memory_mib = 1000});
    const int64_t gpu = put((kvm_job_new){.class = "gpu"});
    const int64_t gang = put((kvm_job_new){.ranks = 4, .priority = 1});
    const int64_t wide = put((kvm_job_new){.ranks = 8, .priority = 9});
    const kvm_want on_gpu = {.classes = {KVM_STR("gpu")}, .class_count = 1};
    assert_int_equal(next((kvm_want){0}), cpu);
    assert_int_equal(next((kvm_want){.memory_mib = 999}), 0);
    assert_int_equal(next((kvm_want){.memory_mib = 1000}), cpu);
    assert_int_equal(next(on_gpu), gpu);
    assert_int_equal(next((kvm_want){.ranks = 4}), gang);
    assert_int_equal(next((kvm_want){.ranks = 8}), wide);
    assert_int_equal(next((kvm_want){.ranks = 8, .run = run}), wide);
    assert_int_equal(next((kvm_want){.run = run + 1}), 0);
    assert_int_equal(take((kvm_want){.run = run}), 1);
    assert_int_equal(claims[0].fence.job, cpu);
}

/* whoever wrote it */
static void a_hint_gives_no_worker_what_it_does_not_serve(void **state)
{
    (void)state;
    kvm_job_batch hint = {.count = 3};
    ptrdiff_t n;
    hint.jobs[0].job = put((kvm_job_new){.ranks = 2});
    hint.jobs[1].job = put((kvm_job_new){.class = "gpu"});
    hint.jobs[2].job = put((kvm_job_new){.memory_mib = 1000});
    kvm_want want = {.memory_mib = 999};
    MUST(kvm_worker_serves(c, worker, &want, e));
    MUST(kvm_jobs_claim(c, &hint, &claims, &n, &keep, worker, 60, e));
    assert_int_equal(n, 0);
    want = (kvm_want){.classes = {KVM_STR("cpu"), KVM_STR("gpu")},
                      .class_count = 2,
                      .ranks = 2,
                      .memory_mib = 1000};
    MUST(kvm_worker_serves(c, worker, &want, e));
    MUST(kvm_jobs_claim(c, &hint, &claims, &n, &keep, worker, 60, e));
    assert_int_equal(n, 3);
}

static void a_job_waits_for_its_time(void **state)
{
    (void)state;
    const int64_t job = small();
    SQL("UPDATE job SET run_after = run_after + 1000");
    assert_int_equal(next((kvm_want){0}), 0);
    assert_int_equal(next((kvm_want){.run = run}), 0);
    SQL("UPDATE job SET run_after = 0");
    assert_int_equal(next((kvm_want){0}), job);
}

/* ---- teams ---- */

static void teams_take_turns_by_what_they_use(void **state)
{
    (void)state;
    const int64_t other = run_of("u");
    for (int i = 0; i < 3; i++) put((kvm_job_new){0});
    for (int i = 0; i < 3; i++) put((kvm_job_new){.run = other});
    int64_t runs[6];
    for (int i = 0; i < 6; i++) {
        assert_int_equal(take_any(), 1);
        runs[i] = claims[0].run;
        bool lost;
        const kvm_end end = {.fence = claims[0].fence, .seconds = 10 + i};
        MUST(kvm_jobs_end(c, &end, 1, &lost, NULL, e));
    }
    for (int i = 0; i < 6; i++) assert_int_equal(runs[i], i % 2 ? other : run);
}

static void use_fades_by_half_in_a_week(void **state)
{
    (void)state;
    const int64_t other = run_of("u");
    const int64_t ours = put((kvm_job_new){0}),
                  theirs = put((kvm_job_new){.run = other});
    const char *now = kvm_test_on_server ? "EXTRACT(EPOCH FROM now())"
                                         : "((julianday('now') - 2440587.5) * 86400)";
    SQL(kvm_str_fmt(&keep,
                    "UPDATE team SET used_s = 60, used_at = %s; UPDATE team SET "
                    "used_s = 100, used_at = %s - 604800 WHERE name = 't'",
                    now, now)
            .at);
    assert_int_equal(next((kvm_want){0}), ours); /* 100 / 2 < 60 */
    SQL("UPDATE team SET used_s = 125 WHERE name = 't'");
    assert_int_equal(next((kvm_want){0}), theirs);
    assert_int_equal(take((kvm_want){.run = run}), 1); /* and is written down faded */
    bool lost;
    const kvm_end end = {.fence = claims[0].fence, .seconds = 1};
    MUST(kvm_jobs_end(c, &end, 1, &lost, NULL, e));
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM team WHERE name = 't' "
                            "AND used_s > 63.4 AND used_s < 63.6"),
                     1);
}

static void an_attempt_is_charged_however_it_ends(void **state)
{
    (void)state;
    const kvm_err why = {.code = KVM_IO, .msg = "disk"};
    for (int i = 0; i < 4; i++)
        put((kvm_job_new){.class = "small", .ranks = 1 + i / 3});
    assert_int_equal(take((kvm_want){.ranks = 1}), 3);
    kvm_end ends[] = {{.how = KVM_END_SUCCEED, .seconds = 1},
                      {.how = KVM_END_FAIL, .why = &why, .seconds = 2},
                      {.how = KVM_END_CRASH, .message = KVM_STR("x"), .seconds = 4}};
    bool lost[3];
    for (int i = 0; i < 3; i++) ends[i].fence = claims[i].fence;
    MUST(kvm_jobs_end(c, ends, 3, lost, &quick, e));
    assert_int_equal(NUMBER("SELECT CAST(used_s * 100 AS BIGINT) FROM team"), 700);
    assert_int_equal(NUMBER("SELECT CAST(day_s * 100 AS BIGINT) FROM team"), 700);
    SQL("UPDATE job SET run_after = run_after + 1000 WHERE ranks = 1");
    MUST(kvm_worker_serves(c, worker, &(kvm_want){.ranks = 2}, e));
    assert_int_equal(take((kvm_want){.ranks = 2}), 1);
    const kvm_end gang = {
        .fence = claims[0].fence, .how = KVM_END_RELEASE, .seconds = 8};
    MUST(kvm_jobs_end(c, &gang, 1, lost, &quick, e));
    assert_int_equal(NUMBER("SELECT CAST(day_s * 100 AS BIGINT) FROM team"),
                     700 + 2 * 800);
}

static void what_is_paused_is_passed_over(void **state)
{
    (void)state;
    const int64_t other = run_of("u");
    const int64_t ours = small(), theirs = put((kvm_job_new){.run = other});
    kvm_job_batch hint = {.count = 1, .jobs = {{ours, 0}}};
    ptrdiff_t n;
    SQL("UPDATE team SET paused = 1 WHERE name = 't'");
    assert_int_equal(next((kvm_want){0}), theirs);
    assert_int_equal(next((kvm_want){.run = run}), 0);
    MUST(kvm_jobs_claim(c, &hint, &claims, &n, &keep, worker, 60, e));
    assert_int_equal(n, 0);
    SQL("UPDATE team SET paused = 0; UPDATE job SET paused = 1 WHERE run_id = 1");
    assert_int_equal(next((kvm_want){0}), theirs);
    assert_int_equal(next((kvm_want){.run = run}), 0);
    MUST(kvm_jobs_claim(c, &hint, &claims, &n, &keep, worker, 60, e));
    assert_int_equal(n, 0);
    SQL("UPDATE job SET paused = 0");
    assert_int_equal(next((kvm_want){0}), ours);
}

static void a_team_stays_within_its_quota(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) small();
    SQL("UPDATE team SET quota_live = 2");
    assert_int_equal(take_any(), 2);
    assert_int_equal(take_any(), 0);
    MUST(kvm_job_release(c, claims[0].fence, NULL, e));
    assert_int_equal(take_any(), 1);
    SQL("UPDATE team SET quota_live = 0, quota_day_s = 50");
    assert_int_equal(take((kvm_want){.most = 1}), 1);
    bool lost;
    const kvm_end end = {.fence = claims[0].fence, .seconds = 60};
    MUST(kvm_jobs_end(c, &end, 1, &lost, NULL, e));
    assert_int_equal(take_any(), 0);
    SQL("UPDATE team SET day = day - 1"); /* it was yesterday */
    assert_int_equal(take_any(), 2);
}

/* ---- ends ---- */

static void a_batch_ends_in_one_go(void **state)
{
    (void)state;
    const kvm_err why = {.code = KVM_SHAPE, .msg = "rows \"differ\""};
    const kvm_result_event ev = {KVM_STR("note"), KVM_STR("hello")};
    kvm_result r = with_output(A);
    r.events = &ev, r.event_count = 1;
    for (int i = 0; i < 4; i++) small();
    assert_int_equal(take_any(), 4);
    const kvm_end ends[] = {
        {.fence = claims[2].fence,
         .how = KVM_END_CRASH,
         .message = KVM_STR("signal 11"),
         .result = &r},
        {.fence = claims[0].fence, .how = KVM_END_SUCCEED, .result = &r},
        {.fence = claims[3].fence, .how = KVM_END_RELEASE},
        {.fence = claims[1].fence, .how = KVM_END_FAIL, .why = &why}};
    bool lost[4];
    MUST(kvm_jobs_end(c, ends, 4, lost, &quick, e));
    for (int i = 0; i < 4; i++) assert_false(lost[i]);
    STATE(claims[0].fence.job, "succeeded");
    STATE(claims[1].fence.job, "failed");
    STATE(claims[2].fence.job, "ready");
    STATE(claims[3].fence.job, "ready");
    assert_int_equal(NUMBER("SELECT attempt FROM job WHERE id = 4"), 0);
    assert_int_equal(NUMBER("SELECT crashes FROM job WHERE id = 3"), 1);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM artefact"), 1);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM event WHERE what = 'note'"), 2);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM event WHERE what = 'failed' AND "
                            "job_id = 2 AND text = 'rows \"differ\"'"),
                     1);
    static const char *const outcome[] = {"succeeded", "failed", "crashed", "released"};
    for (int i = 0; i < 4; i++)
        assert_int_equal(NUMBER(kvm_str_fmt(&keep,
                                            "SELECT COUNT(*) FROM attempt WHERE job_id "
                                            "= %d AND outcome = '%s'",
                                            i + 1, outcome[i])
                                    .at),
                         1);
}

static void one_bad_result_and_none_has_ended(void **state)
{
    (void)state;
    small(), small();
    assert_int_equal(take_any(), 2);
    const kvm_result_metric twice[] = {{KVM_STR("x"), KVM_STR("{}"), 1},
                                       {KVM_STR("x"), KVM_STR("{}"), 2}};
    const kvm_result good = with_output(A);
    const kvm_result bad = {.metrics = twice, .metric_count = 2};
    const kvm_end ends[] = {{.fence = claims[0].fence, .result = &good},
                            {.fence = claims[1].fence, .result = &bad}};
    bool lost[2];
    assert_int_equal(kvm_jobs_end(c, ends, 2, lost, NULL, NULL), KVM_EXISTS);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM job WHERE state = 'running'"), 2);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM artefact"), 0);
    MUST(kvm_jobs_end(c, ends, 1, lost, NULL, e));
    STATE(claims[0].fence.job, "succeeded");
}

static void a_lost_one_does_not_keep_the_others(void **state)
{
    (void)state;
    ptrdiff_t reaped;
    for (int i = 0; i < 3; i++) small();
    assert_int_equal(take_any(), 3);
    SQL("UPDATE job SET lease_until = 1 WHERE id = 2");
    MUST(kvm_jobs_reap(c, &quick, &reaped, e));
    assert_int_equal(reaped, 1);
    const kvm_result r = with_output(A);
    kvm_end ends[3];
    bool lost[3];
    for (int i = 0; i < 3; i++)
        ends[i] = (kvm_end){.fence = claims[i].fence, .result = &r};
    MUST(kvm_jobs_end(c, ends, 3, lost, NULL, e));
    assert_false(lost[0]);
    assert_true(lost[1]);
    assert_false(lost[2]);
    STATE(2, "ready");
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM artefact"), 2);
    MUST(kvm_jobs_end(c, ends, 3, lost, NULL, e)); /* again: nothing */
    for (int i = 0; i < 3; i++) assert_true(lost[i]);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM artefact"), 2);
}

static void those_that_need_a_batch_are_made_ready(void **state)
{
    (void)state;
    const int64_t a = small();
    const kvm_job_dep of_a = {KVM_STR("in"), a, KVM_STR("out")};
    const int64_t after_a =
        put((kvm_job_new){.class = "small", .deps = &of_a, .dep_count = 1});
    const int64_t b = small(), third = small();
    const kvm_job_dep both[] = {{KVM_STR("a"), a, KVM_STR("out")},
                                {KVM_STR("b"), b, KVM_STR("out")},
                                {KVM_STR("a2"), a, KVM_STR("out")}};
    const int64_t after_both =
        put((kvm_job_new){.class = "small", .deps = both, .dep_count = 3});
    const kvm_job_dep rest[] = {both[0], {KVM_STR("c"), third, KVM_STR("out")}};
    const int64_t later =
        put((kvm_job_new){.class = "small", .deps = rest, .dep_count = 2});
    assert_int_equal(take((kvm_want){.most = 2}), 2);
    const kvm_result r = with_output(A);
    const kvm_end ends[] = {{.fence = claims[1].fence, .result = &r},
                            {.fence = claims[0].fence, .result = &r}};
    bool lost[2];
    MUST(kvm_jobs_end(c, ends, 2, lost, NULL, e));
    STATE(after_a, "ready");
    STATE(after_both, "ready");
    STATE(later, "blocked");
    assert_int_equal(NUMBER("SELECT waits FROM job WHERE state = 'blocked'"), 1);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM job WHERE state = 'ready' AND key IS "
                            "NULL"),
                     0);
    kvm_run_state s;
    MUST(kvm_run_state_of(c, run, &s, e));
    assert_int_equal(s, KVM_RUN_OPEN);
}

static void runs_of_a_batch_are_settled(void **state)
{
    (void)state;
    const int64_t other = run_of("u");
    small(), put((kvm_job_new){.run = other, .class = "small"});
    assert_int_equal(take_any(), 2);
    kvm_end ends[2];
    bool lost[2];
    const kvm_result r = with_output(A);
    for (int i = 0; i < 2; i++)
        ends[i] = (kvm_end){.fence = claims[i].fence, .result = &r, .seconds = 1};
    MUST(kvm_jobs_end(c, ends, 2, lost, NULL, e));
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM run WHERE state = 'succeeded'"), 2);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM team WHERE used_s > 0.9"), 2);
}

/* ---- hints, leases, progress ---- */

static void hints_are_sent_once_and_again(void **state)
{
    (void)state;
    const kvm_want fresh = {.unsent = true};
    for (int i = 0; i < 3; i++) small();
    kvm_job_batch hint = next_all(fresh);
    assert_int_equal(hint.count, 3);
    assert_int_equal(take((kvm_want){.most = 1}), 1);
    MUST(kvm_jobs_dispatched(c, &hint, e));
    STATE(1, "running"); /* a worker was faster */
    STATE(2, "dispatched");
    STATE(3, "dispatched");
    assert_int_equal(next_all(fresh).count, 0);
    assert_int_equal(next_all((kvm_want){0}).count, 2);
    SQL("UPDATE job SET sent_at = 5");
    MUST(kvm_jobs_dispatched(c, &hint, e));
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM job WHERE sent_at > 5"), 2);
    ptrdiff_t n;
    MUST(kvm_jobs_claim(c, &hint, &claims, &n, &keep, worker, 60, e));
    assert_int_equal(n, 2);
    MUST(kvm_job_release(c, claims[0].fence, NULL, e));
    MUST(kvm_jobs_dispatched(c, &hint, e)); /* its token is old */
    STATE(2, "ready");
}

static void hints_on_their_way_count_in_a_quota(void **state)
{
    (void)state;
    const kvm_want fresh = {.unsent = true};
    for (int i = 0; i < 3; i++) small();
    SQL("UPDATE team SET quota_live = 2");
    const kvm_job_batch hint = next_all(fresh);
    assert_int_equal(hint.count, 2);
    MUST(kvm_jobs_dispatched(c, &hint, e));
    assert_int_equal(next_all(fresh).count, 0);
    assert_int_equal(take_any(), 2);
}

static void leases_are_renewed_together(void **state)
{
    (void)state;
    unsigned char states[3];
    kvm_fence f[3];
    for (int i = 0; i < 3; i++) small();
    assert_int_equal(take_any(), 3);
    for (int i = 0; i < 3; i++) f[i] = claims[i].fence;
    SQL("UPDATE job SET lease_until = 7");
    MUST(kvm_job_cancel(c, f[1].job, NULL, e));
    f[2].token++;
    for (int i = 0; i < 2; i++) {
        MUST(i ? kvm_jobs_renew(c, f, 3, 60, states, e)
               : kvm_jobs_asked(c, f, 3, states, e));
        assert_int_equal(states[0], KVM_LEASE_HELD);
        assert_int_equal(states[1], KVM_LEASE_CANCELLING);
        assert_int_equal(states[2], KVM_LEASE_LOST);
        assert_int_equal(NUMBER("SELECT COUNT(*) FROM job WHERE lease_until > 7"),
                         i ? 2 : 0);
    }
}

static void progress_is_of_the_live_attempt(void **state)
{
    (void)state;
    small();
    assert_int_equal(take_any(), 1);
    const kvm_fence f = claims[0].fence;
    MUST(kvm_job_progress(c, f, 3, 8, KVM_STR("layers"), e));
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM v_queue WHERE done = 3 AND total = 8 "
                            "AND unit = 'layers'"),
                     1);
    MUST(kvm_job_release(c, f, NULL, e));
    assert_int_equal(take_any(), 1);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM v_queue WHERE done IS NULL"), 1);
    MUST(
        kvm_job_progress(c, f, 4, 8, KVM_STR("layers"), e)); /* an old fence: nothing */
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM v_queue WHERE done IS NULL"), 1);
}

static void a_worker_hears_that_it_is_to_drain(void **state)
{
    (void)state;
    bool drain = true;
    const kvm_want want = {.classes = {KVM_STR("gpu"), KVM_STR("small")},
                           .class_count = 2,
                           .ranks = 4,
                           .memory_mib = 9};
    MUST(kvm_worker_serves(c, worker, &want, e));
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM worker WHERE classes = 'gpu small' "
                            "AND ranks = 4 AND memory_mib = 9"),
                     1);
    MUST(kvm_worker_asked(c, worker, &drain, e));
    assert_false(drain);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM worker WHERE seen_at > 9"), 1);
    SQL("UPDATE worker SET drain = 1");
    MUST(kvm_worker_asked(c, worker, &drain, e));
    assert_true(drain);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(small_ones_are_claimed_together),
        T(a_batch_holds_no_more_than_it_may),
        T(each_claim_has_its_own_inputs),
        T(a_hint_with_an_old_token_claims_nothing),
        T(of_equal_steps_in_a_hint_one_is_claimed),
        T(a_worker_gets_what_it_can_run),
        T(a_hint_gives_no_worker_what_it_does_not_serve),
        T(a_job_waits_for_its_time),
        T(teams_take_turns_by_what_they_use),
        T(use_fades_by_half_in_a_week),
        T(an_attempt_is_charged_however_it_ends),
        T(what_is_paused_is_passed_over),
        T(a_team_stays_within_its_quota),
        T(a_batch_ends_in_one_go),
        T(one_bad_result_and_none_has_ended),
        T(a_lost_one_does_not_keep_the_others),
        T(those_that_need_a_batch_are_made_ready),
        T(runs_of_a_batch_are_settled),
        T(hints_are_sent_once_and_again),
        T(hints_on_their_way_count_in_a_quota),
        T(leases_are_renewed_together),
        T(progress_is_of_the_live_attempt),
        T(a_worker_hears_that_it_is_to_drain),
    };
    return kvm_test_both("job_batch", tests);
}
