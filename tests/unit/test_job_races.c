/* Jobs whose workers, reapers and people meet in random order. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "schema/job_state.h"

#include "base/rng.h"
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
    TRY(kvm_job_claim(eye, &k, &found, &scratch, worker, 0, lease_s, err));
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
    for (int step = 0; step < STEPS; step++) {
        kvm_err err = {0};
        const kvm_status s = live_step(&l, &err);
        if (s && s != KVM_LOST) fail_msg("step %d: %s", step, err.msg);
        for (int i = 0; i < JOBS && step % 100 == 0; i++) {
            kvm_job_state now;
            MUST(kvm_job_state_of(c, l.first + i, &now, e));
            assert_int_equal(now == KVM_STATE_SUCCEEDED, l.ended[i]);
        }
    }
    assert_in_range(l.done, 20, JOBS - 1);
    assert_int_equal(kvm_test_number(path, "SELECT COUNT(*) FROM artefact"), l.done);
    assert_int_equal(
        kvm_test_number(path, "SELECT COUNT(*) FROM job WHERE state='succeeded'"),
        l.done);
}

/* The reaper has seen that a job's worker is gone; before it writes, that worker
 * commits after all. */
static kvm_fence in_between;
static bool dead_but_commits(kvm_str name)
{
    (void)name;
    const kvm_result result = with_output(A);
    if (in_between.job) MUST(kvm_job_succeed(c, in_between, &result, e));
    return true;
}

static void a_completion_between_look_and_reap_wins(void **state)
{
    (void)state;
    kvm_rng r = kvm_rng_seed(7, 0);
    kvm_catalogue *reaper;
    MUST(kvm_catalogue_open(&reaper, &keep, kvm_str_of(path), NULL, e));
    for (int i = 0; i < 2000; i++) {
        ptrdiff_t reaped;
        const int64_t job = add(i);
        const kvm_claim k = claim_for(60);
        const bool commits = kvm_rng_below(&r, 2);
        in_between = commits ? k.fence : (kvm_fence){0};
        MUST(kvm_jobs_reap_dead(reaper, KVM_STR("host"), dead_but_commits, &quick,
                                &reaped, e));
        assert_int_equal(reaped, !commits);
        if (!commits) {
            assert_int_equal(kvm_job_succeed(c, k.fence, NULL, NULL), KVM_LOST);
            MUST(kvm_job_cancel(c, job, NULL, e));
        }
        STATE(job, commits ? "succeeded" : "cancelled");
    }
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(no_interleaving_turns_a_job_back),
        T(a_completion_between_look_and_reap_wins),
    };
    return kvm_test_both("job_races", tests);
}
