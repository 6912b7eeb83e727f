/* job_end.c - how an attempt ends: with results, an equal job's results, an error, a
 * dead process, a drained worker, or a lease that ran out (the reaper's part). The
 * diagram and the invariants are in job_state.c. */
#include "base/rng.h"
#include "schema/fault.h"
#include "schema/job_internal.h"

static const kvm_result nothing;

/* ---- what becomes of a job ---- */

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

static const char *release(kvm_job_row *j)
{
    const bool cancelled = j->state == KVM_STATE_CANCELLING;
    j->message = KVM_STR("");
    j->state = cancelled ? KVM_STATE_CANCELLED : KVM_STATE_READY;
    if (!cancelled) j->attempt--;
    return cancelled ? "cancelled" : "released";
}

static const char *finish(kvm_job_row *j, const kvm_end *e)
{
    const bool skipped = e->how == KVM_END_SKIP;
    j->state = skipped ? KVM_STATE_SKIPPED : KVM_STATE_SUCCEEDED;
    j->status = KVM_OK;
    j->message = KVM_STR("");
    if (skipped) j->equal = e->equal;
    if (!skipped && j->timed) j->key = e->result->key;
    return skipped ? "skipped" : "succeeded";
}

static const char *settle(kvm_job_row *j, const kvm_end *e, const kvm_queue_policy *p)
{
    switch (e->how) {
    case KVM_END_SUCCEED:
    case KVM_END_SKIP:
        return finish(j, e);
    case KVM_END_FAIL:
        j->message = kvm_str_of(e->why->msg);
        return settle_failure(j, e->why, p);
    case KVM_END_CRASH:
        j->message = e->message;
        return settle_failure(j, NULL, p);
    case KVM_END_RELEASE:
        break;
    }
    return release(j);
}

/* ---- running, cancelling -> anything ---- */

static bool is_done(const kvm_end *e)
{
    return e->how == KVM_END_SUCCEED || e->how == KVM_END_SKIP;
}

static bool still_held(const kvm_job_row *j, const kvm_end *e)
{
    return j && j->token == e->fence.token &&
           kvm_state_class_of(j->state) == KVM_CLASS_LIVE &&
           (!e->expired || j->expired);
}

static kvm_status copy_equal(kvm_db *db, const kvm_job_row *j, int64_t equal,
                             kvm_err *err)
{
    int64_t is_equal = 0;
    TRY(kvm_db_one(db, KVM_SQL_JOB_IS_EQUAL,
                   KVM_ARGS(kvm_cell_i(j->id), kvm_cell_i(equal)), &is_equal, err));
    if (!is_equal || j->timed)
        return kvm_fail(err, KVM_MISMATCH, "job %lld has not the results of job %lld",
                        (long long)equal, (long long)j->id);
    if (is_equal > 1)
        return kvm_fail(err, KVM_NOTFOUND,
                        "the results of job %lld, which is equal, have expired",
                        (long long)equal);
    return kvm_db_exec(db, KVM_SQL_ARTEFACT_COPY,
                       KVM_ARGS(kvm_cell_i(j->id), kvm_cell_i(equal)), NULL, err);
}

/* One end as a change of the row that is held. */
static kvm_status plan_end(kvm_job_leave *l, const kvm_job_row *j, const kvm_end *e,
                           const kvm_queue_policy *p, kvm_err *err)
{
    if (is_done(e) && j->state == KVM_STATE_CANCELLING)
        return kvm_fail(err, KVM_CANCELLED,
                        "job %lld: cancelled before it was committed",
                        (long long)j->id);
    kvm_end full = *e;
    if (!full.result) full.result = &nothing;
    *l = (kvm_job_leave){.move = {.was = *j, .is = *j},
                         .result = full.result,
                         .seconds = e->seconds < 0 ? j->claimed_s : e->seconds};
    l->outcome = settle(&l->move.is, &full, p);
    return KVM_OK;
}

/* Those that are held, and at their front those that succeed. */
typedef struct ending {
    kvm_job_leave *all;
    ptrdiff_t count, succeeding;
    bool needed; /* others wait for some of them */
    double now;
} ending;

static kvm_status hold_all(kvm_db *db, const kvm_end *ends, ptrdiff_t count,
                           kvm_job_row **rows, ptrdiff_t *held, double *now,
                           kvm_arena *a, kvm_err *err)
{
    kvm_list ids = {0};
    for (ptrdiff_t i = 0; i < count; i++)
        kvm_list_add(&ids, KVM_ARGS(kvm_cell_i(ends[i].fence.job),
                                    kvm_cell_i(is_done(&ends[i]))));
    return kvm_job__hold(db, &ids, rows, held, now, a, err);
}

static kvm_status plan_all(kvm_db *db, ending *p, const kvm_end *ends, ptrdiff_t count,
                           bool *lost, const kvm_queue_policy *policy, kvm_arena *a,
                           kvm_err *err)
{
    kvm_job_row *rows;
    ptrdiff_t held;
    TRY(hold_all(db, ends, count, &rows, &held, &p->now, a, err));
    p->all = kvm_new(a, kvm_job_leave, count + 1);
    if (!p->all) return kvm_nomem(err, a);
    for (int pass = 0; pass < 2; pass++) {
        for (ptrdiff_t i = 0; i < count; i++) {
            const kvm_job_row *j = kvm_job__find(rows, held, ends[i].fence.job);
            if ((ends[i].how == KVM_END_SUCCEED) != (pass == 0)) continue;
            lost[i] = !still_held(j, &ends[i]);
            if (!lost[i]) TRY(plan_end(&p->all[p->count++], j, &ends[i], policy, err));
            if (!lost[i] && ends[i].how == KVM_END_SKIP)
                TRY(copy_equal(db, j, ends[i].equal, err));
        }
        if (pass == 0) p->succeeding = p->count;
    }
    p->needed = held > p->count;
    return KVM_OK;
}

/* Captures that expire do so before it names them, or afterwards. Held before any row
 * is, as who lets them expire does. */
static kvm_status hold_results(kvm_catalogue *c, const kvm_end *ends, ptrdiff_t count,
                               kvm_err *err)
{
    for (ptrdiff_t i = 0; i < count; i++)
        if (ends[i].how == KVM_END_SKIP)
            return kvm_catalogue_hold(c, KVM_HOLD_OBJECTS, true, err);
    return KVM_OK;
}

static kvm_status end_all(kvm_db *db, const kvm_end *ends, ptrdiff_t count, bool *lost,
                          const kvm_queue_policy *policy, kvm_arena scratch,
                          kvm_err *err)
{
    const kvm_queue_policy p = with_defaults(policy);
    ending e = {0};
    TRY(plan_all(db, &e, ends, count, lost, &p, &scratch, err));
    if (e.count == 0) return KVM_OK;
    TRY(kvm_results__write(db, e.all, e.succeeding, scratch, err));
    if (e.succeeding) kvm_fault(KVM_FAULT_IN_COMMIT);
    return kvm_job__leave(db, e.all, e.count, e.needed, e.now, scratch, err);
}

kvm_status kvm_jobs_end(kvm_catalogue *c, const kvm_end *ends, ptrdiff_t count,
                        bool *lost, const kvm_queue_policy *policy, kvm_err *err)
{
    if (count == 0) return KVM_OK;
    TRY(kvm_db_begin(c->db, err));
    kvm_status s = hold_results(c, ends, count, err);
    if (!s) s = end_all(c->db, ends, count, lost, policy, c->scratch, err);
    return kvm_db_end(c->db, s, err);
}

/* ---- one job ---- */

static kvm_status end_one(kvm_catalogue *c, kvm_end e, const kvm_queue_policy *policy,
                          kvm_err *err)
{
    bool lost;
    e.seconds = -1;
    TRY(kvm_jobs_end(c, &e, 1, &lost, policy, err));
    if (!lost) return KVM_OK;
    return kvm_fail(err, KVM_LOST, "job %lld is no longer held under token %lld",
                    (long long)e.fence.job, (long long)e.fence.token);
}

kvm_status kvm_job_succeed(kvm_catalogue *c, kvm_fence f, const kvm_result *r,
                           kvm_err *err)
{
    const kvm_end e = {.fence = f, .how = KVM_END_SUCCEED, .result = r};
    return end_one(c, e, NULL, err);
}

kvm_status kvm_job_skip(kvm_catalogue *c, kvm_fence f, int64_t equal, kvm_err *err)
{
    const kvm_end e = {.fence = f, .how = KVM_END_SKIP, .equal = equal};
    return end_one(c, e, NULL, err);
}

kvm_status kvm_job_fail(kvm_catalogue *c, kvm_fence f, const kvm_err *why,
                        const kvm_result *r, const kvm_queue_policy *policy,
                        kvm_err *err)
{
    const kvm_end e = {.fence = f, .how = KVM_END_FAIL, .result = r, .why = why};
    return end_one(c, e, policy, err);
}

kvm_status kvm_job_crash(kvm_catalogue *c, kvm_fence f, kvm_str how,
                         const kvm_result *r, const kvm_queue_policy *policy,
                         kvm_err *err)
{
    const kvm_end e = {.fence = f, .how = KVM_END_CRASH, .result = r, .message = how};
    return end_one(c, e, policy, err);
}

kvm_status kvm_job_release(kvm_catalogue *c, kvm_fence f, const kvm_result *r,
                           kvm_err *err)
{
    const kvm_end e = {.fence = f, .how = KVM_END_RELEASE, .result = r};
    return end_one(c, e, NULL, err);
}

/* ---- the reaper ---- */

/* Leases that ran out, by rows (job, token); a completion that came in between has won
 * and is not counted. */
static kvm_status reap(kvm_catalogue *c, const kvm_fence *f, ptrdiff_t count,
                       bool expired, kvm_str how, const kvm_queue_policy *policy,
                       kvm_arena scratch, ptrdiff_t *reaped, kvm_err *err)
{
    kvm_end *ends = kvm_new(&scratch, kvm_end, count + 1);
    bool *lost = kvm_new(&scratch, bool, count + 1);
    if (!ends || !lost) return kvm_nomem(err, &scratch);
    for (ptrdiff_t i = 0; i < count; i++)
        ends[i] = (kvm_end){.fence = f[i],
                            .how = KVM_END_CRASH,
                            .message = how,
                            .seconds = -1,
                            .expired = expired};
    if (count) kvm_fault(KVM_FAULT_IN_REAP);
    kvm_catalogue inner = {.db = c->db, .scratch = scratch}; /* beyond the rows */
    TRY(kvm_jobs_end(&inner, ends, count, lost, policy, err));
    for (ptrdiff_t i = 0; i < count; i++) *reaped += !lost[i];
    return KVM_OK;
}

static kvm_fence fence_of(const kvm_rows *r, ptrdiff_t row)
{
    return (kvm_fence){kvm_rows_i64(r, row, 0), kvm_rows_i64(r, row, 1)};
}

kvm_status kvm_jobs_reap(kvm_catalogue *c, const kvm_queue_policy *policy,
                         ptrdiff_t *reaped, kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    kvm_rows rows;
    *reaped = 0;
    TRY(kvm_db_query(c->db, KVM_SQL_JOBS_EXPIRED, KVM_NO_ARGS, &rows, &scratch, err));
    kvm_fence *f = kvm_new(&scratch, kvm_fence, rows.count + 1);
    if (!f) return kvm_nomem(err, &scratch);
    for (ptrdiff_t i = 0; i < rows.count; i++) f[i] = fence_of(&rows, i);
    return reap(c, f, rows.count, true,
                KVM_STR("the worker fell silent and its lease ran out"), policy,
                scratch, reaped, err);
}

kvm_status kvm_jobs_reap_dead(kvm_catalogue *c, kvm_str host,
                              bool (*dead)(kvm_str worker_name),
                              const kvm_queue_policy *policy, ptrdiff_t *reaped,
                              kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    kvm_rows rows;
    ptrdiff_t n = 0;
    *reaped = 0;
    TRY(kvm_db_query(c->db, KVM_SQL_JOBS_OF_HOST, KVM_ARGS(kvm_cell_s(host)), &rows,
                     &scratch, err));
    kvm_fence *f = kvm_new(&scratch, kvm_fence, rows.count + 1);
    if (!f) return kvm_nomem(err, &scratch);
    for (ptrdiff_t i = 0; i < rows.count; i++)
        if (dead(kvm_rows_str(&rows, i, 2))) f[n++] = fence_of(&rows, i);
    return reap(c, f, n, false, KVM_STR("the worker's process is gone"), policy,
                scratch, reaped, err);
}
