/* job_state.c - the life of a job. No other file changes a job's state.
 *
 *   insert ─► blocked ─promote─► ready ─claim─► running ─succeed─► succeeded
 *                │                ▲  ▲            │  │  └──skip──► skipped
 *                │                │  └─ crash, fail(RETRY), release, reap
 *                │                │               ├─ fail(FAIL) ─► failed
 *                │                │               ├─ crash, RETRY at limit ─► parked
 *                │                │               └─ cancel ─► cancelling ─► cancelled
 *                └──── cancel (also of ready) ──────────────────────────────► cancelled
 *   failed, parked, cancelled ─retry─► ready or blocked
 *   (dispatched is ready with a hint on its way; a queue that sends hints sets it.)
 *
 * Who makes each change
 *   submitter  insert                  kvm_job_insert
 *   anyone     promote                 wait_less, in the transaction of the last need
 *   worker     claim, succeed, skip,   with its fence; the cancelled of a live job too
 *              fail, crash, release
 *   reaper     reap                    kvm_jobs_reap, kvm_jobs_reap_dead
 *   person     cancel, retry           kvm_job_cancel, kvm_job_retry
 *
 * Invariants
 *   1. succeeded and skipped rows never change. failed, parked and cancelled change
 *      only by retry.
 *   2. lease_until is set exactly in running and cancelling (a CHECK of the table).
 *   3. token only grows: by one with each claim and each retry. A worker's writes name
 *      (job, token) and a live state; when they match no row the worker has lost the
 *      job and nothing was written.
 *   4. An attempt is counted when it is claimed, so a job that kills its worker is
 *      counted. Only release takes the count back.
 *   5. waits is the number of distinct jobs it needs that are neither succeeded nor
 *      skipped; a job is ready only at 0, and then has its key unless it is timed.
 *   6. Of the jobs with one key at most one is live (a unique index); the others wait
 *      their turn in ready and are then skipped.
 *   7. Results (artefacts, metrics …) are written in the transaction that makes the
 *      state succeeded, so the state alone says that they exist.
 *   8. Time is the database's. The reaper looks, then repeats its condition in the
 *      write: a completion that comes in between wins.
 * Every change goes through change(), which checks the table of legal ones and writes
 * only over the (id, token, state) that was read.
 *
 * Who else is at it. SQLite lets one transaction write at a time. On a server many do,
 * each statement sees what was committed before it began, and rows are locked. All lock
 * in one order, so that nobody waits in a circle: a name (catalogue.h), then jobs by
 * ascending id, then their run, which is the last.
 *   - A job is locked when it is read to be changed. Those that need it come next; they
 *     have greater ids, for a need is inserted before. Of two needs that end at once
 *     the second counts down what the first one left, and it promotes.
 *   - Its run is locked before its jobs are counted: of two jobs that end at once the
 *     second sees the first one's end, and settles the run.
 *   - Who changes several jobs of a run locks all of them first.
 *   - A claim passes over rows that are locked. Of two claims of one key the second
 *     meets the unique index of invariant 6 when the first commits, and looks again.
 *   - A foreign key is looked up without waiting for these locks (postgres.c). */
#include "schema/job_state.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "schema/fault.h"
#include "schema/job_internal.h"

#define BIT(NAME) (1u << KVM_STATE_##NAME)
/* legal[from]: the states that change() may lead to (claim is a statement of its
 * own) */
static const unsigned legal[KVM_STATE_COUNT] = {
    [KVM_STATE_BLOCKED] = BIT(READY) | BIT(CANCELLED),
    [KVM_STATE_READY] = BIT(CANCELLED),
    [KVM_STATE_DISPATCHED] = BIT(CANCELLED),
    [KVM_STATE_RUNNING] = BIT(SUCCEEDED) | BIT(SKIPPED) | BIT(FAILED) | BIT(PARKED) |
                          BIT(READY) | BIT(CANCELLING) | BIT(CANCELLED),
    [KVM_STATE_CANCELLING] = BIT(CANCELLED),
    [KVM_STATE_FAILED] = BIT(READY) | BIT(BLOCKED),
    [KVM_STATE_PARKED] = BIT(READY) | BIT(BLOCKED),
    [KVM_STATE_CANCELLED] = BIT(READY) | BIT(BLOCKED),
};

/* A job as read under the write lock; what is changed here is what change() writes. */
typedef struct job {
    int64_t id, run, token;
    kvm_job_state state;
    int64_t waits, attempt, crashes, retries, timed, equal;
    double delay; /* seconds until it may be claimed */
    kvm_str key, message;
    int64_t status;
} job;

static kvm_status unpack(job *j, const kvm_rows *r, kvm_err *err)
{
    *j = (job){.id = kvm_rows_i64(r, 0, 0),
               .run = kvm_rows_i64(r, 0, 1),
               .token = kvm_rows_i64(r, 0, 2),
               .waits = kvm_rows_i64(r, 0, 4),
               .attempt = kvm_rows_i64(r, 0, 5),
               .crashes = kvm_rows_i64(r, 0, 6),
               .retries = kvm_rows_i64(r, 0, 7),
               .timed = kvm_rows_i64(r, 0, 8),
               .equal = kvm_rows_i64(r, 0, 9),
               .key = kvm_rows_str(r, 0, 10),
               .status = kvm_rows_i64(r, 0, 11),
               .message = kvm_rows_str(r, 0, 12)};
    if (kvm_state_find(kvm_rows_str(r, 0, 3), &j->state)) return KVM_OK;
    return kvm_fail(err, KVM_VERSION, "job %lld is in the unknown state %.*s",
                    (long long)j->id, KVM_STR_ARG(kvm_rows_str(r, 0, 3)));
}

static kvm_status read_job(kvm_db *db, int64_t id, job *j, kvm_arena *scratch,
                           kvm_err *err)
{
    kvm_rows rows;
    TRY(kvm_db_query(db, KVM_SQL_JOB_READ, KVM_ARGS(kvm_cell_i(id)), &rows, scratch,
                     err));
    if (rows.count == 0)
        return kvm_fail(err, KVM_NOTFOUND, "there is no job %lld", (long long)id);
    return unpack(j, &rows, err);
}

/* The live job behind a fence; KVM_LOST when it is no longer there. */
static kvm_status hold(kvm_db *db, kvm_sql sql, kvm_fence f, job *j, kvm_arena *scratch,
                       kvm_err *err)
{
    kvm_rows rows;
    TRY(kvm_db_query(db, sql, KVM_ARGS(kvm_cell_i(f.job), kvm_cell_i(f.token)), &rows,
                     scratch, err));
    if (rows.count == 0)
        return kvm_fail(err, KVM_LOST, "job %lld is no longer held under token %lld",
                        (long long)f.job, (long long)f.token);
    return unpack(j, &rows, err);
}

/* The one function that changes a state. `was` is what was read, `j` what it
 * becomes. */
static kvm_status change(kvm_db *db, const job *was, const job *j, kvm_err *err)
{
    int64_t changed = 0;
    assert(legal[was->state] & (1u << j->state));
    assert(j->id == was->id && j->token >= was->token);
    const kvm_state_class to = kvm_state_class_of(j->state);
    TRY(kvm_db_exec(db, KVM_SQL_JOB_CHANGE,
                    KVM_ARGS(kvm_cell_i(was->id), kvm_cell_i(was->token),
                             kvm_cell_c(kvm_state_name(was->state)),
                             kvm_cell_c(kvm_state_name(j->state)), kvm_cell_i(j->token),
                             kvm_cell_f(j->delay), kvm_cell_i(j->attempt),
                             kvm_cell_i(j->crashes), kvm_cell_i(j->retries),
                             j->equal ? kvm_cell_i(j->equal) : (kvm_cell){0},
                             j->key.len ? kvm_cell_s(j->key) : (kvm_cell){0},
                             kvm_cell_i(j->status), kvm_cell_s(j->message),
                             kvm_cell_i(to == KVM_CLASS_DONE || to == KVM_CLASS_ENDED)),
                    &changed, err));
    if (changed == 1) return KVM_OK;
    return kvm_fail(err, KVM_LOST, "job %lld was changed by somebody else",
                    (long long)was->id);
}

/* ---- blocked -> ready ---- */

static kvm_status promote(kvm_db *db, int64_t id, kvm_arena scratch, kvm_err *err)
{
    job was, j;
    char key[65];
    TRY(read_job(db, id, &was, &scratch, err));
    j = was;
    j.state = KVM_STATE_READY;
    if (!j.timed) {
        TRY(kvm_job__key(db, id, key, scratch, err));
        j.key = (kvm_str){key, 64};
    }
    return change(db, &was, &j, err);
}

/* A job has its results: those that need it wait for one less. */
static kvm_status wait_less(kvm_db *db, int64_t done, kvm_arena scratch, kvm_err *err)
{
    kvm_rows rows;
    TRY(kvm_db_exec(db, KVM_SQL_JOBS_LOCK_NEEDING, KVM_ARGS(kvm_cell_i(done)), NULL,
                    err));
    TRY(kvm_db_query(db, KVM_SQL_JOBS_WAIT_LESS, KVM_ARGS(kvm_cell_i(done)), &rows,
                     &scratch, err));
    for (ptrdiff_t i = 0; i < rows.count; i++)
        if (kvm_rows_i64(&rows, i, 1) == 0 &&
            kvm_str_eq(kvm_rows_str(&rows, i, 2), KVM_STR("blocked")))
            TRY(promote(db, kvm_rows_i64(&rows, i, 0), scratch, err));
    return KVM_OK;
}

static ptrdiff_t distinct_needs(const kvm_job_new *n)
{
    ptrdiff_t count = 0;
    for (ptrdiff_t i = 0; i < n->dep_count; i++) {
        bool first = true;
        for (ptrdiff_t k = 0; k < i && first; k++)
            first = n->deps[k].needs != n->deps[i].needs;
        count += first;
    }
    return count;
}

static kvm_status insert(kvm_db *db, const kvm_job_new *n, int64_t *id,
                         kvm_arena scratch, kvm_err *err)
{
    const ptrdiff_t waits = distinct_needs(n);
    TRY(kvm_db_one(
        db, KVM_SQL_JOB_ADD,
        KVM_ARGS(kvm_cell_i(n->run), kvm_cell_i(n->kind), kvm_cell_c(n->kind_name),
                 kvm_cell_i(n->version), kvm_cell_i(n->timed), kvm_cell_s(n->label),
                 kvm_cell_s(n->params), kvm_cell_s(n->identity),
                 kvm_cell_i(n->priority), kvm_cell_i(waits), kvm_cell_f(n->timeout_s)),
        id, err));
    for (ptrdiff_t i = 0; i < n->dep_count; i++)
        TRY(kvm_db_exec(db, KVM_SQL_DEP_ADD,
                        KVM_ARGS(kvm_cell_i(*id), kvm_cell_s(n->deps[i].input),
                                 kvm_cell_i(n->deps[i].needs),
                                 kvm_cell_s(n->deps[i].output)),
                        NULL, err));
    return waits ? KVM_OK : promote(db, *id, scratch, err);
}

kvm_status kvm_job_insert(kvm_catalogue *c, const kvm_job_new *n, int64_t *id,
                          kvm_err *err)
{
    TRY(kvm_db_begin(c->db, err));
    return kvm_db_end(c->db, insert(c->db, n, id, c->scratch, err), err);
}

/* ---- ready -> running ---- */

kvm_status kvm_job__claim_row(kvm_db *db, kvm_rows *rows, kvm_arena *keep,
                              int64_t worker, int64_t run, double lease_s, kvm_err *err)
{
    TRY(kvm_db_query(db, KVM_SQL_JOB_CLAIM,
                     KVM_ARGS(kvm_cell_i(worker), kvm_cell_f(lease_s), kvm_cell_i(run)),
                     rows, keep, err));
    if (rows->count == 0) return KVM_OK;
    kvm_fault(KVM_FAULT_IN_CLAIM);
    return kvm_db_exec(db, KVM_SQL_ATTEMPT_ADD,
                       KVM_ARGS(kvm_cell_i(kvm_rows_i64(rows, 0, 0)),
                                kvm_cell_i(kvm_rows_i64(rows, 0, 1)),
                                kvm_cell_i(kvm_rows_i64(rows, 0, 3)),
                                kvm_cell_i(worker)),
                       NULL, err);
}

kvm_status kvm_job_renew(kvm_catalogue *c, kvm_fence f, double lease_s,
                         bool *cancelling, kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    kvm_rows rows;
    TRY(kvm_db_query(
        c->db, KVM_SQL_JOB_RENEW,
        KVM_ARGS(kvm_cell_i(f.job), kvm_cell_i(f.token), kvm_cell_f(lease_s)), &rows,
        &scratch, err));
    if (rows.count == 0)
        return kvm_fail(err, KVM_LOST, "job %lld: the lease of token %lld is gone",
                        (long long)f.job, (long long)f.token);
    *cancelling = kvm_str_eq(kvm_rows_str(&rows, 0, 0), KVM_STR("cancelling"));
    return KVM_OK;
}

kvm_status kvm_job_asked(kvm_catalogue *c, kvm_fence f, bool *cancelling, kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    kvm_rows rows;
    TRY(kvm_db_query(c->db, KVM_SQL_JOB_ASKED,
                     KVM_ARGS(kvm_cell_i(f.job), kvm_cell_i(f.token)), &rows, &scratch,
                     err));
    if (rows.count == 0)
        return kvm_fail(err, KVM_LOST, "job %lld: the lease of token %lld is gone",
                        (long long)f.job, (long long)f.token);
    *cancelling = kvm_str_eq(kvm_rows_str(&rows, 0, 0), KVM_STR("cancelling"));
    return KVM_OK;
}

/* ---- running, cancelling -> anything ---- */

static const kvm_result nothing;

/* The attempt's row, its events, the state; then the run, and those that wait. */
static kvm_status leave(kvm_db *db, const job *was, const job *j, const char *outcome,
                        const kvm_result *r, kvm_arena scratch, kvm_err *err)
{
    TRY(kvm_results__events(db, was->run, was->id, r, err));
    TRY(change(db, was, j, err));
    TRY(kvm_db_exec(db, KVM_SQL_ATTEMPT_END,
                    KVM_ARGS(kvm_cell_i(was->id), kvm_cell_i(was->token),
                             kvm_cell_c(outcome), kvm_cell_i(j->status),
                             kvm_cell_s(j->message)),
                    NULL, err));
    const kvm_state_class to = kvm_state_class_of(j->state);
    if (to == KVM_CLASS_DONE) TRY(wait_less(db, j->id, scratch, err));
    if (to == KVM_CLASS_ENDED)
        TRY(kvm_event__add(db, j->run, j->id, kvm_state_name(j->state), j->message,
                           err));
    if (to == KVM_CLASS_DONE || to == KVM_CLASS_ENDED)
        TRY(kvm_run__settle(db, j->run, scratch, err));
    kvm_fault(KVM_FAULT_BEFORE_COMMIT);
    return KVM_OK;
}

static kvm_status succeed(kvm_db *db, kvm_fence f, const kvm_result *r,
                          kvm_arena scratch, kvm_err *err)
{
    job was, j;
    TRY(hold(db, KVM_SQL_JOB_HELD, f, &was, &scratch, err));
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
    return leave(db, &was, &j, "succeeded", r, scratch, err);
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
    job was, j;
    int64_t is_equal = 0;
    TRY(hold(db, KVM_SQL_JOB_HELD, f, &was, &scratch, err));
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
    return leave(db, &was, &j, "skipped", &nothing, scratch, err);
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
static double backoff(const kvm_queue_policy *p, const job *j, int64_t n)
{
    double s = p->backoff_s;
    while (--n > 0 && s < p->backoff_most_s) s *= 2;
    kvm_rng r = kvm_rng_seed((uint64_t)j->id, (uint64_t)j->token);
    return (s < p->backoff_most_s ? s : p->backoff_most_s) *
           (0.5 + 0.5 * kvm_rng_unit(&r));
}

/* Where an attempt without result leads: crash (why NULL) or error. */
static const char *settle_failure(job *j, const kvm_err *why, const kvm_queue_policy *p)
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
    job was, j;
    TRY(hold(db, held, f, &was, &scratch, err));
    j = was;
    j.message = message;
    const char *outcome = settle_failure(&j, why, &p);
    return leave(db, &was, &j, outcome, r ? r : &nothing, scratch, err);
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
    job was, j;
    TRY(hold(db, KVM_SQL_JOB_HELD, f, &was, &scratch, err));
    j = was;
    j.message = KVM_STR("");
    const bool cancelled = was.state == KVM_STATE_CANCELLING;
    j.state = cancelled ? KVM_STATE_CANCELLED : KVM_STATE_READY;
    if (!cancelled) j.attempt--;
    return leave(db, &was, &j, cancelled ? "cancelled" : "released", r, scratch, err);
}

kvm_status kvm_job_release(kvm_catalogue *c, kvm_fence f, const kvm_result *r,
                           kvm_err *err)
{
    TRY(kvm_db_begin(c->db, err));
    return kvm_db_end(c->db, release(c->db, f, r ? r : &nothing, c->scratch, err), err);
}

/* ---- the reaper ---- */

/* *reaped grows by one when the job was still as seen. */
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

/* ---- people ---- */

/* The job alone: its run is settled by the caller, when all of its jobs are changed. */
static kvm_status cancel(kvm_db *db, int64_t id, job *j, kvm_arena *scratch,
                         kvm_err *err)
{
    job was;
    TRY(read_job(db, id, &was, scratch, err));
    *j = was;
    if (kvm_state_class_of(was.state) == KVM_CLASS_WAITING)
        j->state = KVM_STATE_CANCELLED;
    if (was.state == KVM_STATE_RUNNING) j->state = KVM_STATE_CANCELLING;
    if (j->state == was.state) return KVM_OK;
    j->message = KVM_STR("cancelled on request");
    j->status = KVM_CANCELLED;
    TRY(change(db, &was, j, err));
    return kvm_event__add(db, j->run, id, kvm_state_name(j->state), j->message, err);
}

static kvm_status cancel_one(kvm_db *db, int64_t id, kvm_job_state *now,
                             kvm_arena scratch, kvm_err *err)
{
    job j;
    TRY(cancel(db, id, &j, &scratch, err));
    if (now) *now = j.state;
    return kvm_run__settle(db, j.run, scratch, err);
}

kvm_status kvm_job_cancel(kvm_catalogue *c, int64_t id, kvm_job_state *now,
                          kvm_err *err)
{
    TRY(kvm_db_begin(c->db, err));
    return kvm_db_end(c->db, cancel_one(c->db, id, now, c->scratch, err), err);
}

static kvm_status retry(kvm_db *db, int64_t id, job *j, kvm_arena *scratch,
                        kvm_err *err)
{
    job was;
    char key[65];
    TRY(read_job(db, id, &was, scratch, err));
    if (kvm_state_class_of(was.state) != KVM_CLASS_ENDED)
        return kvm_fail(err, KVM_USAGE,
                        "job %lld is %s: only failed, parked and cancelled jobs can be "
                        "tried again",
                        (long long)id, kvm_state_name(was.state));
    *j = was;
    j->state = was.waits ? KVM_STATE_BLOCKED : KVM_STATE_READY;
    j->token++;
    j->attempt = j->crashes = j->retries = 0;
    j->status = KVM_OK;
    j->message = KVM_STR("");
    if (j->state == KVM_STATE_READY && !j->timed) {
        TRY(kvm_job__key(db, id, key, *scratch, err));
        j->key = (kvm_str){key, 64};
    }
    TRY(change(db, &was, j, err));
    j->key = KVM_STR(""); /* its text ends here */
    return kvm_event__add(db, j->run, id, "retry", KVM_STR("tried again on request"),
                          err);
}

static kvm_status retry_one(kvm_db *db, int64_t id, kvm_arena scratch, kvm_err *err)
{
    job j;
    TRY(retry(db, id, &j, &scratch, err));
    return kvm_run__set(db, j.run, KVM_RUN_OPEN, err);
}

kvm_status kvm_job_retry(kvm_catalogue *c, int64_t id, kvm_err *err)
{
    TRY(kvm_db_begin(c->db, err));
    return kvm_db_end(c->db, retry_one(c->db, id, c->scratch, err), err);
}

/* Cancel or retry every job of a run that the query lists; `done` counts them. */
static kvm_status each(kvm_db *db, kvm_sql list, int64_t run,
                       kvm_status (*one)(kvm_db *db, int64_t id, job *j,
                                         kvm_arena *scratch, kvm_err *err),
                       ptrdiff_t *done, kvm_arena scratch, kvm_err *err)
{
    kvm_rows rows;
    TRY(kvm_db_exec(db, KVM_SQL_JOBS_LOCK, KVM_ARGS(kvm_cell_i(run)), NULL, err));
    TRY(kvm_db_query(db, list, KVM_ARGS(kvm_cell_i(run)), &rows, &scratch, err));
    for (ptrdiff_t i = 0; i < rows.count; i++) {
        kvm_arena a = scratch;
        job j;
        TRY(one(db, kvm_rows_i64(&rows, i, 0), &j, &a, err));
    }
    *done = rows.count;
    return KVM_OK;
}

static kvm_status cancel_all(kvm_db *db, int64_t run, kvm_arena scratch, kvm_err *err)
{
    ptrdiff_t done = 0;
    TRY(each(db, KVM_SQL_JOBS_TO_CANCEL, run, cancel, &done, scratch, err));
    return done ? kvm_run__settle(db, run, scratch, err) : KVM_OK;
}

kvm_status kvm_run_cancel(kvm_catalogue *c, int64_t run, kvm_err *err)
{
    TRY(kvm_db_begin(c->db, err));
    return kvm_db_end(c->db, cancel_all(c->db, run, c->scratch, err), err);
}

static kvm_status retry_all(kvm_db *db, int64_t run, ptrdiff_t *done, kvm_arena scratch,
                            kvm_err *err)
{
    TRY(each(db, KVM_SQL_JOBS_TO_RETRY, run, retry, done, scratch, err));
    TRY(kvm_db_exec(db, KVM_SQL_JOBS_FRESH, KVM_ARGS(kvm_cell_i(run)), NULL, err));
    return *done ? kvm_run__set(db, run, KVM_RUN_OPEN, err) : KVM_OK;
}

kvm_status kvm_run_retry(kvm_catalogue *c, int64_t run, ptrdiff_t *retried,
                         kvm_err *err)
{
    ptrdiff_t done = 0;
    TRY(kvm_db_begin(c->db, err));
    TRY(kvm_db_end(c->db, retry_all(c->db, run, &done, c->scratch, err), err));
    if (retried) *retried = done;
    return KVM_OK;
}
