/* job_state.c - the life of a job. Its state is changed here, in job_end.c (how an
 * attempt ends) and in job_request.c (what people ask), always through kvm_job__change;
 * only the claim is a statement of its own (job_claim.c).
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
 * Every change goes through kvm_job__change, which checks the table of legal ones and
 * writes only over the (id, token, state) that was read.
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
#include <string.h>

#include "schema/fault.h"
#include "schema/job_internal.h"

#define BIT(NAME) (1u << KVM_STATE_##NAME)
/* legal[from]: the states that kvm_job__change may lead to (claim is a statement of its
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

static kvm_status unpack(kvm_job_row *j, const kvm_rows *r, kvm_err *err)
{
    *j = (kvm_job_row){.id = kvm_rows_i64(r, 0, 0),
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

kvm_status kvm_job__read(kvm_db *db, int64_t id, kvm_job_row *j, kvm_arena *scratch,
                         kvm_err *err)
{
    kvm_rows rows;
    TRY(kvm_db_query(db, KVM_SQL_JOB_READ, KVM_ARGS(kvm_cell_i(id)), &rows, scratch,
                     err));
    if (rows.count == 0)
        return kvm_fail(err, KVM_NOTFOUND, "there is no job %lld", (long long)id);
    return unpack(j, &rows, err);
}

kvm_status kvm_job__hold(kvm_db *db, kvm_sql sql, kvm_fence f, kvm_job_row *j,
                         kvm_arena *scratch, kvm_err *err)
{
    kvm_rows rows;
    TRY(kvm_db_query(db, sql, KVM_ARGS(kvm_cell_i(f.job), kvm_cell_i(f.token)), &rows,
                     scratch, err));
    if (rows.count == 0)
        return kvm_fail(err, KVM_LOST, "job %lld is no longer held under token %lld",
                        (long long)f.job, (long long)f.token);
    return unpack(j, &rows, err);
}

kvm_status kvm_job__change(kvm_db *db, const kvm_job_row *was, const kvm_job_row *j,
                           kvm_err *err)
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
    kvm_job_row was, j;
    char key[65];
    TRY(kvm_job__read(db, id, &was, &scratch, err));
    j = was;
    j.state = KVM_STATE_READY;
    if (!j.timed) {
        TRY(kvm_job__key(db, id, key, scratch, err));
        j.key = (kvm_str){key, 64};
    }
    return kvm_job__change(db, &was, &j, err);
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

/* ---- running, cancelling -> anything ---- */

kvm_status kvm_job__leave(kvm_db *db, const kvm_job_row *was, const kvm_job_row *j,
                          const char *outcome, const kvm_result *r, kvm_arena scratch,
                          kvm_err *err)
{
    TRY(kvm_results__events(db, was->run, was->id, r, err));
    TRY(kvm_job__change(db, was, j, err));
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
