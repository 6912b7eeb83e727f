/* Jobs whose workers, reapers and people meet in random order. (queue.md, 5: row 3.) */
#define _XOPEN_SOURCE 700 /* nftw */
#include "schema/job_state.h"

#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "schema/db.h"
#include "tests/support/chaos.h"
#include "tests/support/one_run.h"

static int set_up(void **state)
{
    (void)state;
    return one_run_begin("job_races");
}

/* ---- 10,000 random lives ----
 * Two workers and a reaper at a few hundred jobs, in random order, with leases that end
 * at random: a job that has reached its end stays there, one result is committed,
 * tokens grow. */
enum { JOBS = 400, STEPS = 10000, HELD = 3 };
typedef struct lives {
    kvm_rng r;
    kvm_catalogue *eyes[2]; /* each worker's connection */
    kvm_fence held[2][HELD];
    int64_t tokens[JOBS], first, done;
    bool ended[JOBS];
} lives;

static kvm_status live_claim(lives *l, kvm_catalogue *eye, kvm_fence *f, kvm_err *err)
{
    kvm_claim k;
    bool found = false;
    kvm_arena scratch = keep;
    const double lease_s = kvm_rng_below(&l->r, 2) ? -1.0 : 60.0;
    TRY(kvm_test_claim(eye, &k, &found, &scratch, worker, 0, lease_s, err));
    if (!found) return KVM_OK;
    const int64_t i = k.fence.job - l->first;
    assert_in_range(i, 0, JOBS - 1);
    assert_false(l->ended[i]);
    assert_true(k.fence.token > l->tokens[i]);
    l->tokens[i] = k.fence.token;
    *f = k.fence;
    return KVM_OK;
}

static kvm_status live_succeed(lives *l, kvm_catalogue *eye, kvm_fence f, kvm_err *err)
{
    const int64_t i = f.job - l->first;
    const kvm_result result = with_output(A);
    if (kvm_rng_below(&l->r, 4)) return KVM_OK; /* seldom, or it would soon be over */
    TRY(kvm_job_succeed(eye, f, &result, err));
    assert_int_equal(f.token, l->tokens[i]);
    assert_false(l->ended[i]);
    l->ended[i] = true;
    l->done++;
    return KVM_OK;
}

static kvm_status live_step(lives *l, kvm_err *err)
{
    const kvm_err why = {.code = KVM_IO, .msg = "x"};
    const kvm_queue_policy p = {.crash_limit = 1 << 30,
                                .retry_limit = 1 << 30,
                                .backoff_s = 1e-6,
                                .backoff_most_s = 1e-6};
    const int me = (int)kvm_rng_below(&l->r, 2);
    kvm_catalogue *eye = l->eyes[me];
    kvm_fence *f = &l->held[me][kvm_rng_below(&l->r, HELD)];
    const uint64_t what = kvm_rng_below(&l->r, 8);
    ptrdiff_t reaped;
    bool cancelling;
    if (what < 2) return live_claim(l, eye, f, err);
    if (what == 2) return kvm_jobs_reap(eye, &p, &reaped, err);
    if (!f->job) return KVM_OK;
    switch (what) {
    case 3:
        return live_succeed(l, eye, *f, err);
    case 4:
        return kvm_job_fail(eye, *f, &why, NULL, &p, err);
    case 5:
        return kvm_job_crash(eye, *f, KVM_STR("x"), NULL, &p, err);
    case 6:
        return kvm_job_release(eye, *f, NULL, err);
    default:
        return kvm_job_renew(eye, *f, 60, &cancelling, err);
    }
}

static void no_interleaving_turns_a_job_back(void **state)
{
    (void)state;
    lives l = {.r = kvm_rng_seed(20240607, 0), .eyes = {c}};
    MUST(kvm_catalogue_open(&l.eyes[1], &keep, kvm_str_of(path), NULL, e));
    l.first = add(0);
    for (int i = 1; i < JOBS; i++) add(i);
    const int steps = chaos_count(kvm_test_on_server ? STEPS / 5 : STEPS, STEPS);
    for (int step = 0; step < steps; step++) {
        kvm_err err = {0};
        const kvm_status s = live_step(&l, &err);
        if (s && s != KVM_LOST) fail_msg("step %d: %s", step, err.msg);
        for (int i = 0; i < JOBS && step % 100 == 0; i++) {
            kvm_job_state now;
            MUST(kvm_job_state_of(c, l.first + i, &now, e));
            assert_int_equal(now == KVM_STATE_SUCCEEDED, l.ended[i]);
        }
    }
    assert_in_range(l.done, steps / 500, JOBS - 1);
    assert_int_equal(kvm_test_number(path, "SELECT COUNT(*) FROM artefact"), l.done);
    assert_int_equal(
        kvm_test_number(path, "SELECT COUNT(*) FROM job WHERE state='succeeded'"),
        l.done);
}

/* ---- between the reaper's read and its write ----
 * The reaper has seen that a lease is over, or that a process is gone; before it
 * writes, that worker is heard of after all. */

typedef enum meanwhile { NOTHING, COMMITS, FAILS, GIVES_BACK, WAYS } meanwhile;
static kvm_fence in_between;
static meanwhile what;

static void meddle(void)
{
    const kvm_result result = with_output(A);
    const kvm_err why = {.code = KVM_SHAPE, .msg = "x"};
    const kvm_fence f = in_between;
    in_between.job = 0; /* once */
    if (f.job == 0) return;
    if (what == COMMITS) MUST(kvm_job_succeed(c, f, &result, e));
    if (what == FAILS) MUST(kvm_job_fail(c, f, &why, NULL, &quick, e));
    if (what == GIVES_BACK) MUST(kvm_job_release(c, f, NULL, e));
}

static bool is_dead(kvm_str name)
{
    (void)name;
    meddle();
    return true;
}

static const kvm_db_driver *behind;
static kvm_status look_then_meddle(kvm_db *db, int slot, const char *sql,
                                   const kvm_cell *args, ptrdiff_t n, kvm_rows *rows,
                                   kvm_arena *a, int64_t *changed, kvm_err *err)
{
    TRY(behind->query(db, slot, sql, args, n, rows, a, changed, err));
    if (slot == KVM_SQL_JOBS_EXPIRED) meddle();
    return KVM_OK;
}
static const kvm_db_driver *in_front(const kvm_db_driver *driver)
{
    static kvm_db_driver front;
    behind = driver;
    front = *driver;
    front.query = look_then_meddle;
    return &front;
}

/* One job, whose worker does `what`; no state that has been reached is left again. */
static void between_look_and_reap(kvm_catalogue *reaper, int i, bool by_lease,
                                  kvm_arena scratch)
{
    static const char *const states[] = {"ready", "succeeded", "failed", "ready"};
    ptrdiff_t reaped;
    kvm_claim k;
    bool found;
    kvm_job_state now;
    const int64_t job = add(i);
    MUST(kvm_test_claim(c, &k, &found, &scratch, worker, run, by_lease ? -1 : 60, e));
    assert_true(found && k.fence.job == job);
    in_between = k.fence;
    if (by_lease)
        MUST(kvm_jobs_reap(reaper, &quick, &reaped, e));
    else
        MUST(kvm_jobs_reap_dead(reaper, KVM_STR("host"), is_dead, &quick, &reaped, e));
    assert_int_equal(in_between.job, 0);
    assert_int_equal(reaped, what == NOTHING);
    MUST(kvm_job_state_of(c, job, &now, e));
    assert_string_equal(kvm_state_name(now), states[what]);
    if (what != COMMITS)
        assert_int_equal(kvm_job_succeed(c, k.fence, NULL, NULL), KVM_LOST);
    MUST(kvm_jobs_reap(reaper, &quick, &reaped, e));
    assert_int_equal(reaped, 0);
    if (what == NOTHING || what == GIVES_BACK) MUST(kvm_job_cancel(c, job, NULL, e));
}

static void what_happens_between_look_and_reap_wins(void **state)
{
    (void)state;
    kvm_rng r = kvm_rng_seed(7, 0);
    kvm_catalogue *reaper;
    int counts[WAYS] = {0};
    kvm_db_in_front = in_front;
    MUST(kvm_catalogue_open(&reaper, &keep, kvm_str_of(path), NULL, e));
    kvm_db_in_front = NULL;
    add_kind(1, -1, NULL, 0); /* the run stays open */
    kvm_test_sql(path, "UPDATE job SET run_after = 1e12");
    /* in a quarter of them nothing happens: 10,000 are left */
    const int rounds = chaos_count(kvm_test_on_server ? 200 : 2000, 13600);
    for (int i = 0; i < rounds; i++) {
        what = (meanwhile)kvm_rng_below(&r, WAYS);
        counts[what]++;
        between_look_and_reap(reaper, i, kvm_rng_below(&r, 2), keep);
    }
    const int ended = (int)kvm_test_number(
        path, "SELECT COUNT(*) FROM job WHERE state = 'succeeded'");
    const int lost = counts[COMMITS] - ended;
    chaos_record("3",
                 kvm_test_on_server
                     ? "a worker is heard of between the reaper's two steps, PostgreSQL"
                     : "a worker is heard of between the reaper's two steps, SQLite",
                 rounds - counts[NOTHING], lost, 0, -1);
    assert_int_equal(lost, 0);
}

/* ---- two at once ----
 * This process has done its part and not yet committed when the other one does its own,
 * which waits for us or has to see what we did. */

static pid_t other;
static int go[2]; /* closed when the other may begin */

/* Before we lock anything: a fork must not inherit an SQLite lock. */
static void begin_with_other(bool (*part)(kvm_catalogue *own))
{
    char byte;
    fflush(NULL);
    assert_int_equal(pipe(go), 0);
    other = fork();
    assert_true(other >= 0);
    if (other == 0) {
        kvm_catalogue *own;
        kvm_arena a;
        close(go[1]);
        if (kvm_arena_init(&a, 64 << 20, NULL) ||
            kvm_catalogue_open(&own, &a, kvm_str_of(path), NULL, NULL) ||
            read(go[0], &byte, 1) != 0)
            _exit(2);
        _exit(part(own) ? 0 : 1);
    }
    close(go[0]);
    MUST(kvm_catalogue_begin(c, e));
}

/* commits what is open when the other has had time to come to it */
static void commit_with_other(void)
{
    int status;
    close(go[1]);
    kvm_sleep(0.3);
    MUST(kvm_catalogue_commit(c, e));
    waitpid(other, &status, 0);
    assert_int_equal(status, 0);
}

static kvm_fence theirs;
static int64_t meant;

static bool they_succeed(kvm_catalogue *own)
{
    const kvm_result r = with_output(A);
    return !kvm_job_succeed(own, theirs, &r, NULL);
}

static void two_that_end_at_once_settle_their_run(void **state)
{
    (void)state;
    kvm_run_state s;
    add(1), add(2);
    const kvm_fence ours = claim_for(60).fence;
    theirs = claim_for(60).fence;
    begin_with_other(they_succeed);
    MUST(kvm_job_succeed(c, ours, NULL, e));
    commit_with_other();
    MUST(kvm_run_state_of(c, run, &s, e));
    assert_int_equal(s, KVM_RUN_SUCCEEDED);
}

static void two_needs_that_end_at_once_make_ready(void **state)
{
    (void)state;
    const kvm_job_dep d[] = {{KVM_STR("a"), add(1), KVM_STR("out")},
                             {KVM_STR("b"), add(2), KVM_STR("out")}};
    const int64_t last = add_kind(1, 3, d, 2), also = add_kind(1, 4, d, 2);
    const kvm_fence ours = claim_for(60).fence;
    const kvm_result r = with_output(A);
    theirs = claim_for(60).fence;
    begin_with_other(they_succeed);
    MUST(kvm_job_succeed(c, ours, &r, e));
    commit_with_other();
    STATE(last, "ready");
    STATE(also, "ready");
    assert_int_equal(claim_for(60).input_count, 2);
}

static bool they_claim_what_is_meant(kvm_catalogue *own)
{
    kvm_claim k;
    bool found = false;
    return !kvm_test_claim(own, &k, &found, &keep, worker, 0, 60, NULL) && found &&
           k.fence.job == meant;
}

static void of_equal_steps_one_is_claimed(void **state)
{
    (void)state;
    add(1), add(1);
    meant = add(2);
    begin_with_other(they_claim_what_is_meant);
    claim_for(60);
    commit_with_other();
}

static bool they_find_nothing_to_reap(kvm_catalogue *own)
{
    ptrdiff_t reaped = 7;
    return !kvm_jobs_reap(own, &quick, &reaped, NULL) && reaped == 0;
}

static void a_completion_keeps_the_reaper_away(void **state)
{
    (void)state;
    const int64_t job = add(1);
    const kvm_fence ours = claim_for(-1).fence; /* its lease is over */
    begin_with_other(they_find_nothing_to_reap);
    MUST(kvm_job_succeed(c, ours, NULL, e));
    commit_with_other();
    STATE(job, "succeeded");
}

static bool they_cancel_the_run(kvm_catalogue *own)
{
    return !kvm_run_cancel(own, run, NULL);
}

static void what_is_done_is_not_cancelled(void **state)
{
    (void)state;
    const kvm_job_dep d = {KVM_STR("a"), add(1), KVM_STR("out")};
    const int64_t next = add_kind(1, 3, &d, 1);
    const kvm_fence ours = claim_for(60).fence;
    const kvm_result r = with_output(A);
    kvm_run_state s;
    begin_with_other(they_cancel_the_run);
    MUST(kvm_job_succeed(c, ours, &r, e));
    commit_with_other();
    STATE(ours.job, "succeeded");
    STATE(next, "cancelled");
    MUST(kvm_run_state_of(c, run, &s, e));
    assert_int_equal(s, KVM_RUN_CANCELLED);
}

static kvm_store *store;
static kvm_graph graph;

static bool they_find_our_run(kvm_catalogue *own)
{
    kvm_submitted s;
    return !kvm_submit(own, store, &graph, NULL, &s, keep, NULL) &&
           s.outcome == KVM_SUBMIT_RESUMED && s.run == meant;
}

static void a_graph_submitted_twice_at_once_is_one_run(void **state)
{
    (void)state;
    kvm_submitted s;
    graph = kvm_test_graph(&keep, 3, true, KVM_JOB_CAPTURE, 0);
    MUST(kvm_store_open(&store, &keep, KVM_STR("build/tmp/job_races_store"), NULL, e));
    meant = run + 1;
    begin_with_other(they_find_our_run);
    MUST(kvm_submit(c, store, &graph, NULL, &s, keep, e));
    assert_int_equal(s.run, meant);
    commit_with_other();
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(no_interleaving_turns_a_job_back),
        T(what_happens_between_look_and_reap_wins),
        T(two_that_end_at_once_settle_their_run),
        T(two_needs_that_end_at_once_make_ready),
        T(of_equal_steps_one_is_claimed),
        T(a_completion_keeps_the_reaper_away),
        T(what_is_done_is_not_cancelled),
        T(a_graph_submitted_twice_at_once_is_one_run),
    };
    return kvm_test_both("job_races", tests);
}
