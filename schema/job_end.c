/* job_end.c - how an attempt ends: with results, an equal job's results, an error, a
 * dead process, a drained worker, or a lease that ran out (the reaper's part). The
 * diagram and the invariants are in job_state.c. */
#include "base/rng.h"
#include "schema/fault.h"
#include "schema/job_internal.h"

/* ---- running, cancelling -> anything ---- */

static const kvm_result nothing;

static kvm_status succeed(kvm_db *db, kvm_fence f, const kvm_result *r,
                          kvm_arena scratch, kvm_err *err)
{
    kvm_job_row was, j;
    TRY(kvm_job__hold(db, KVM_SQL_JOB_HELD, f, &was, &scratch, err));
    if (was.state == KVM_STATE_CANCELLING)
        return kvm_fail(err, KVM_CANCELLED,
                        "job %lld: cancelled before it was committed",
                        (long long)f.job);
    TRY(kvm_results__write(db, f.job, r, err));
    kvm_fault(KVM_FAULT_IN_COMMIT);
    j = was;
    j.state = KVM_STATE_SUCCEEDED;
    j.status = KVM_OK;
    j.message = KVM_STR("");
    if (j.timed) j.key = r->key;
    return kvm_job__leave(db, &was, &j, "succeeded", r, scratch, err);
}

kvm_status kvm_job_succeed(kvm_catalogue *c, kvm_fence f, const kvm_result *r,
                           kvm_err *err)
{
    TRY(kvm_db_begin(c->db, err));
    return kvm_db_end(c->db, succeed(c->db, f, r ? r : &nothing, c->scratch, err), err);
}

static kvm_status skip(kvm_db *db, kvm_fence f, int64_t equal, kvm_arena scratch,
                       kvm_err *err)
{
    kvm_job_row was, j;
    int64_t is_equal = 0;
    TRY(kvm_job__hold(db, KVM_SQL_JOB_HELD, f, &was, &scratch, err));
    if (was.state == KVM_STATE_CANCELLING)
        return kvm_fail(err, KVM_CANCELLED, "job %lld: cancelled", (long long)f.job);
    TRY(kvm_db_one(db, KVM_SQL_JOB_IS_EQUAL,
                   KVM_ARGS(kvm_cell_i(f.job), kvm_cell_i(equal)), &is_equal, err));
    if (!is_equal || was.timed)
        return kvm_fail(err, KVM_MISMATCH, "job %lld has not the results of job %lld",
                        (long long)equal, (long long)f.job);
    TRY(kvm_db_exec(db, KVM_SQL_ARTEFACT_COPY,
                    KVM_ARGS(kvm_cell_i(f.job), kvm_cell_i(equal)), NULL, err));
    j = was;
    j.state = KVM_STATE_SKIPPED;
    j.equal = equal;
    j.status = KVM_OK;
    j.message = KVM_STR("");
    return kvm_job__leave(db, &was, &j, "skipped", &nothing, scratch, err);
}

kvm_status kvm_job_skip(kvm_catalogue *c, kvm_fence f, int64_t equal, kvm_err *err)
{
    TRY(kvm_db_begin(c->db, err));
    return kvm_db_end(c->db, skip(c->db, f, equal, c->scratch, err), err);
}

static kvm_queue_policy with_defaults(const kvm_queue_policy *p)
{
    kvm_queue_policy q = p ? *p : (kvm_queue_policy){0};
    if (q.crash_limit <= 0) q.crash_limit = 3;
    if (q.retry_limit <= 0) q.retry_limit = 5;
    if (q.backoff_s <= 0) q.backoff_s = 1;
    if (q.backoff_most_s <= 0) q.backoff_most_s = 300;
    return q;
}

/* 2^(n-1) times the base, capped, times a draw from [1/2, 1): workers that failed
 * together do not come back together. Seeded by the fence, so that a test repeats. */
static double backoff(const kvm_queue_policy *p, const kvm_job_row *j, int64_t n)
{
    double s = p->backoff_s;
    while (--n > 0 && s < p->backoff_most_s) s *= 2;
    kvm_rng r = kvm_rng_seed((uint64_t)j->id, (uint64_t)j->token);
    return (s < p->backoff_most_s ? s : p->backoff_most_s) *
           (0.5 + 0.5 * kvm_rng_unit(&r));
}

/* Where an attempt without result leads: crash (why NULL) or error. */
static const char *settle_failure(kvm_job_row *j, const kvm_err *why,
                                  const kvm_queue_policy *p)
{
    const kvm_action action = why ? kvm_status_action(why->code) : KVM_RETRY;
    j->status = why ? (int64_t)why->code : KVM_OK;
    if (j->state == KVM_STATE_CANCELLING || (why && why->code == KVM_CANCELLED)) {
        j->state = KVM_STATE_CANCELLED;
        return "cancelled";
    }
    if (action != KVM_RETRY) {
        j->state = KVM_STATE_FAILED;
        return "failed";
    }
    int64_t *count = why ? &j->retries : &j->crashes;
    ++*count;
    if (*count >= (why ? p->retry_limit : p->crash_limit)) {
        j->state = KVM_STATE_PARKED;
        return "parked";
    }
    j->delay = backoff(p, j, *count);
    j->state = KVM_STATE_READY;
    return why ? "retry" : "crashed";
}

static kvm_status end_badly(kvm_db *db, kvm_sql held, kvm_fence f, const kvm_err *why,
                            kvm_str message, const kvm_result *r,
                            const kvm_queue_policy *policy, kvm_arena scratch,
                            kvm_err *err)
{
    const kvm_queue_policy p = with_defaults(policy);
    kvm_job_row was, j;
    TRY(kvm_job__hold(db, held, f, &was, &scratch, err));
    j = was;
    j.message = message;
    const char *outcome = settle_failure(&j, why, &p);
    return kvm_job__leave(db, &was, &j, outcome, r ? r : &nothing, scratch, err);
}

kvm_status kvm_job_fail(kvm_catalogue *c, kvm_fence f, const kvm_err *why,
                        const kvm_result *r, const kvm_queue_policy *policy,
                        kvm_err *err)
{
    TRY(kvm_db_begin(c->db, err));
    const kvm_status s = end_badly(c->db, KVM_SQL_JOB_HELD, f, why,
                                   kvm_str_of(why->msg), r, policy, c->scratch, err);
    return kvm_db_end(c->db, s, err);
}

kvm_status kvm_job_crash(kvm_catalogue *c, kvm_fence f, kvm_str how,
                         const kvm_result *r, const kvm_queue_policy *policy,
                         kvm_err *err)
{
    TRY(kvm_db_begin(c->db, err));
    const kvm_status s =
        end_badly(c->db, KVM_SQL_JOB_HELD, f, NULL, how, r, policy, c->scratch, err);
    return kvm_db_end(c->db, s, err);
}

static kvm_status release(kvm_db *db, kvm_fence f, const kvm_result *r,
                          kvm_arena scratch, kvm_err *err)
{
    kvm_job_row was, j;
    TRY(kvm_job__hold(db, KVM_SQL_JOB_HELD, f, &was, &scratch, err));
    j = was;
    j.message = KVM_STR("");
    const bool cancelled = was.state == KVM_STATE_CANCELLING;
    j.state = cancelled ? KVM_STATE_CANCELLED : KVM_STATE_READY;
    if (!cancelled) j.attempt--;
    return kvm_job__leave(db, &was, &j, cancelled ? "cancelled" : "released", r,
                          scratch, err);
}

kvm_status kvm_job_release(kvm_catalogue *c, kvm_fence f, const kvm_result *r,
                           kvm_err *err)
{
    TRY(kvm_db_begin(c->db, err));
    return kvm_db_end(c->db, release(c->db, f, r ? r : &nothing, c->scratch, err), err);
}

/* ---- the reaper ---- */

/* *reaped grows by one when the kvm_job_row was still as seen. */
static kvm_status reap_one(kvm_catalogue *c, kvm_sql held, kvm_fence f, kvm_str how,
                           const kvm_queue_policy *policy, ptrdiff_t *reaped,
                           kvm_err *err)
{
    kvm_err lost = {0};
    kvm_fault(KVM_FAULT_IN_REAP);
    TRY(kvm_db_begin(c->db, err));
    kvm_status s =
        end_badly(c->db, held, f, NULL, how, NULL, policy, c->scratch, &lost);
    if (s == KVM_LOST) {
        kvm_db_rollback(c->db);
        return KVM_OK;
    }
    if (s && err && !err->code) *err = lost;
    TRY(kvm_db_end(c->db, s, err));
    ++*reaped;
    return KVM_OK;
}

kvm_status kvm_jobs_reap(kvm_catalogue *c, const kvm_queue_policy *policy,
                         ptrdiff_t *reaped, kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    kvm_rows rows;
    *reaped = 0;
    TRY(kvm_db_query(c->db, KVM_SQL_JOBS_EXPIRED, KVM_NO_ARGS, &rows, &scratch, err));
    kvm_catalogue inner = {.db = c->db, .scratch = scratch}; /* beyond the rows */
    for (ptrdiff_t i = 0; i < rows.count; i++)
        TRY(reap_one(&inner, KVM_SQL_JOB_HELD_EXPIRED,
                     (kvm_fence){kvm_rows_i64(&rows, i, 0), kvm_rows_i64(&rows, i, 1)},
                     KVM_STR("the worker fell silent and its lease ran out"), policy,
                     reaped, err));
    return KVM_OK;
}

kvm_status kvm_jobs_reap_dead(kvm_catalogue *c, kvm_str host,
                              bool (*dead)(kvm_str worker_name),
                              const kvm_queue_policy *policy, ptrdiff_t *reaped,
                              kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    kvm_rows rows;
    *reaped = 0;
    TRY(kvm_db_query(c->db, KVM_SQL_JOBS_OF_HOST, KVM_ARGS(kvm_cell_s(host)), &rows,
                     &scratch, err));
    kvm_catalogue inner = {.db = c->db, .scratch = scratch};
    for (ptrdiff_t i = 0; i < rows.count; i++)
        if (dead(kvm_rows_str(&rows, i, 2)))
            TRY(reap_one(
                &inner, KVM_SQL_JOB_HELD,
                (kvm_fence){kvm_rows_i64(&rows, i, 0), kvm_rows_i64(&rows, i, 1)},
                KVM_STR("the worker's process is gone"), policy, reaped, err));
    return KVM_OK;
}
