/* job_request.c - what people ask of jobs and runs: cancel, retry. The diagram and the
 * invariants are in job_state.c. */
#include "schema/job_internal.h"

static kvm_status cancel(kvm_db *db, int64_t id, kvm_job_state *now, kvm_arena scratch,
                         kvm_err *err)
{
    kvm_job_row was, j;
    TRY(kvm_job__read(db, id, &was, &scratch, err));
    j = was;
    if (kvm_state_class_of(was.state) == KVM_CLASS_WAITING)
        j.state = KVM_STATE_CANCELLED;
    if (was.state == KVM_STATE_RUNNING) j.state = KVM_STATE_CANCELLING;
    if (now) *now = j.state;
    if (j.state == was.state) return KVM_OK;
    j.message = KVM_STR("cancelled on request");
    j.status = KVM_CANCELLED;
    TRY(kvm_job__change(db, &was, &j, err));
    TRY(kvm_event__add(db, j.run, id, kvm_state_name(j.state), j.message, err));
    return kvm_run__settle(db, j.run, scratch, err);
}

kvm_status kvm_job_cancel(kvm_catalogue *c, int64_t id, kvm_job_state *now,
                          kvm_err *err)
{
    TRY(kvm_db_begin(c->db, err));
    return kvm_db_end(c->db, cancel(c->db, id, now, c->scratch, err), err);
}

static kvm_status retry(kvm_db *db, int64_t id, kvm_arena scratch, kvm_err *err)
{
    kvm_job_row was, j;
    char key[65];
    TRY(kvm_job__read(db, id, &was, &scratch, err));
    if (kvm_state_class_of(was.state) != KVM_CLASS_ENDED)
        return kvm_fail(err, KVM_USAGE,
                        "job %lld is %s: only failed, parked and cancelled jobs can be "
                        "tried again",
                        (long long)id, kvm_state_name(was.state));
    j = was;
    j.state = was.waits ? KVM_STATE_BLOCKED : KVM_STATE_READY;
    j.token++;
    j.attempt = j.crashes = j.retries = 0;
    j.status = KVM_OK;
    j.message = KVM_STR("");
    if (j.state == KVM_STATE_READY && !j.timed) {
        TRY(kvm_job__key(db, id, key, scratch, err));
        j.key = (kvm_str){key, 64};
    }
    TRY(kvm_job__change(db, &was, &j, err));
    TRY(kvm_event__add(db, j.run, id, "retry", KVM_STR("tried again on request"), err));
    return kvm_run__set(db, j.run, KVM_RUN_OPEN, err);
}

kvm_status kvm_job_retry(kvm_catalogue *c, int64_t id, kvm_err *err)
{
    TRY(kvm_db_begin(c->db, err));
    return kvm_db_end(c->db, retry(c->db, id, c->scratch, err), err);
}

/* cancel or retry every job of a run that the query lists; `done` counts them */
static kvm_status each(kvm_catalogue *c, kvm_sql list, int64_t run, bool again,
                       ptrdiff_t *done, kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    kvm_rows rows;
    TRY(kvm_db_query(c->db, list, KVM_ARGS(kvm_cell_i(run)), &rows, &scratch, err));
    for (ptrdiff_t i = 0; i < rows.count; i++) {
        const int64_t id = kvm_rows_i64(&rows, i, 0);
        TRY(again ? retry(c->db, id, scratch, err)
                  : cancel(c->db, id, NULL, scratch, err));
    }
    *done = rows.count;
    return KVM_OK;
}

kvm_status kvm_run_cancel(kvm_catalogue *c, int64_t run, kvm_err *err)
{
    ptrdiff_t done = 0;
    TRY(kvm_db_begin(c->db, err));
    return kvm_db_end(c->db, each(c, KVM_SQL_JOBS_TO_CANCEL, run, false, &done, err),
                      err);
}

kvm_status kvm_run_retry(kvm_catalogue *c, int64_t run, ptrdiff_t *retried,
                         kvm_err *err)
{
    ptrdiff_t done = 0;
    TRY(kvm_db_begin(c->db, err));
    kvm_status s = each(c, KVM_SQL_JOBS_TO_RETRY, run, true, &done, err);
    if (!s)
        s = kvm_db_exec(c->db, KVM_SQL_JOBS_FRESH, KVM_ARGS(kvm_cell_i(run)), NULL,
                        err);
    TRY(kvm_db_end(c->db, s, err));
    if (retried) *retried = done;
    return KVM_OK;
}
