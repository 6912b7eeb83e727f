/* job_request.c - what people ask of jobs and runs: cancel, retry; pause, priority,
 * which are no states. The diagram and the invariants are in job_state.c. */
#include "schema/job_internal.h"

/* The job alone: its run is settled by the caller, when all of its jobs are changed. */
static kvm_status cancel(kvm_db *db, int64_t id, kvm_job_row *j, kvm_arena *scratch,
                         kvm_err *err)
{
    kvm_job_row was;
    TRY(kvm_job__read(db, id, &was, scratch, err));
    *j = was;
    if (kvm_state_class_of(was.state) == KVM_CLASS_WAITING)
        j->state = KVM_STATE_CANCELLED;
    if (was.state == KVM_STATE_RUNNING) j->state = KVM_STATE_CANCELLING;
    if (j->state == was.state) return KVM_OK;
    j->message = KVM_STR("cancelled on request");
    j->status = KVM_CANCELLED;
    TRY(kvm_job__change(db, &(kvm_job_move){was, *j}, 1, *scratch, err));
    return kvm_event__add(db, j->run, id, kvm_state_name(j->state), j->message,
                          *scratch, err);
}

static kvm_status cancel_one(kvm_db *db, int64_t id, kvm_job_state *now,
                             kvm_arena scratch, kvm_err *err)
{
    kvm_job_row j;
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

static kvm_status retry(kvm_db *db, int64_t id, kvm_job_row *j, kvm_arena *scratch,
                        kvm_err *err)
{
    kvm_job_row was;
    TRY(kvm_job__read(db, id, &was, scratch, err));
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
    if (j->state == KVM_STATE_READY) TRY(kvm_jobs__keys(db, &j, 1, scratch, err));
    TRY(kvm_job__change(db, &(kvm_job_move){was, *j}, 1, *scratch, err));
    return kvm_event__add(db, j->run, id, "retry", KVM_STR("tried again on request"),
                          *scratch, err);
}

static kvm_status retry_one(kvm_db *db, int64_t id, kvm_arena scratch, kvm_err *err)
{
    kvm_job_row j;
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
                       kvm_status (*one)(kvm_db *db, int64_t id, kvm_job_row *j,
                                         kvm_arena *scratch, kvm_err *err),
                       ptrdiff_t *done, kvm_arena scratch, kvm_err *err)
{
    kvm_rows rows;
    TRY(kvm_db_exec(db, KVM_SQL_JOBS_LOCK, KVM_ARGS(kvm_cell_i(run)), NULL, err));
    TRY(kvm_db_query(db, list, KVM_ARGS(kvm_cell_i(run)), &rows, &scratch, err));
    for (ptrdiff_t i = 0; i < rows.count; i++) {
        kvm_arena a = scratch;
        kvm_job_row j;
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

kvm_status kvm_run_ranks(kvm_catalogue *c, int64_t run, int kind, int ranks,
                         kvm_err *err)
{
    return kvm_db_exec(c->db, KVM_SQL_RUN_RANKS,
                       KVM_ARGS(kvm_cell_i(run), kvm_cell_i(kind), kvm_cell_i(ranks)),
                       NULL, err);
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

/* ---- pause, priority ---- */

/* Of one job, or of all of a run's, which are locked in order first. KVM_USAGE when
 * there is nothing left to ask for. */
static kvm_status ask(kvm_catalogue *c, kvm_sql one, kvm_sql all, kvm_which which,
                      int64_t value, kvm_err *err)
{
    int64_t changed = 0, known = 0;
    const kvm_cell args[] = {kvm_cell_i(which.run ? which.run : which.job),
                             kvm_cell_i(value)};
    TRY(kvm_db_one(c->db, which.run ? KVM_SQL_RUN_KNOWN : KVM_SQL_JOB_KNOWN, args, 1,
                   &known, err));
    if (!known)
        return kvm_fail(err, KVM_NOTFOUND, "there is no %s %lld",
                        which.run ? "run" : "job", (long long)args[0].i);
    if (which.run) TRY(kvm_db_exec(c->db, KVM_SQL_JOBS_LOCK, args, 1, NULL, err));
    TRY(kvm_db_exec(c->db, which.run ? all : one, args, 2, &changed, err));
    if (changed) return KVM_OK;
    return kvm_fail(err, KVM_USAGE, "%s %lld is done", which.run ? "run" : "job",
                    (long long)args[0].i);
}

kvm_status kvm_jobs_pause(kvm_catalogue *c, kvm_which which, bool paused, kvm_err *err)
{
    TRY(kvm_db_begin(c->db, err));
    return kvm_db_end(
        c->db, ask(c, KVM_SQL_JOB_PAUSE, KVM_SQL_JOBS_PAUSE, which, paused, err), err);
}

static kvm_status set_priority(kvm_catalogue *c, kvm_which which, int priority,
                               kvm_err *err)
{
    TRY(ask(c, KVM_SQL_JOB_PRIORITY, KVM_SQL_JOBS_PRIORITY, which, priority, err));
    if (!which.run) return KVM_OK;
    return kvm_db_exec(c->db, KVM_SQL_RUN_PRIORITY,
                       KVM_ARGS(kvm_cell_i(which.run), kvm_cell_i(priority)), NULL,
                       err);
}

kvm_status kvm_jobs_priority(kvm_catalogue *c, kvm_which which, int priority,
                             kvm_err *err)
{
    TRY(kvm_db_begin(c->db, err));
    return kvm_db_end(c->db, set_priority(c, which, priority, err), err);
}
