/* job_internal.h - shared by job_state.c (the legal changes), job_claim.c (taking a job
 * and holding it), job_end.c (how attempts end), job_request.c (what people ask),
 * results.c (rows that an attempt leaves) and runs.c (how a run stands). Private to
 * schema/. */
#ifndef KVM_SCHEMA_JOB_INTERNAL_H
#define KVM_SCHEMA_JOB_INTERNAL_H

#include "schema/catalogue_internal.h"
#include "schema/job_state.h"

/* A job as read under the write lock; what is changed here is what kvm_job__change
 * writes. */
typedef struct job {
    int64_t id, run, token;
    kvm_job_state state;
    int64_t waits, attempt, crashes, retries, timed, equal;
    double delay; /* seconds until it may be claimed */
    kvm_str key, message;
    int64_t status;
} kvm_job_row;

/* kvm_job__read - KVM_NOTFOUND */
KVM_MUST kvm_status kvm_job__read(kvm_db *db, int64_t id, kvm_job_row *j,
                                  kvm_arena *scratch, kvm_err *err);
/* kvm_job__hold - the live job behind a fence, by one of the statements JOB_HELD*;
 * KVM_LOST when it is no longer there */
KVM_MUST kvm_status kvm_job__hold(kvm_db *db, kvm_sql sql, kvm_fence f, kvm_job_row *j,
                                  kvm_arena *scratch, kvm_err *err);
/* kvm_job__change - the one function that changes a state: `was` is what was read, `j`
 * what it becomes. KVM_LOST when somebody else was first. */
KVM_MUST kvm_status kvm_job__change(kvm_db *db, const kvm_job_row *was,
                                    const kvm_job_row *j, kvm_err *err);
/* kvm_job__leave - the end of an attempt: its row, its events, the state; then the run,
 * and those that wait for the job */
KVM_MUST kvm_status kvm_job__leave(kvm_db *db, const kvm_job_row *was,
                                   const kvm_job_row *j, const char *outcome,
                                   const kvm_result *r, kvm_arena scratch,
                                   kvm_err *err);
/* kvm_results__write - artefacts, metrics, samples, timings of a job that succeeds */
KVM_MUST kvm_status kvm_results__write(kvm_db *db, int64_t job, const kvm_result *r,
                                       kvm_err *err);
/* kvm_results__events - events alone; they are kept however the attempt ends */
KVM_MUST kvm_status kvm_results__events(kvm_db *db, int64_t run, int64_t job,
                                        const kvm_result *r, kvm_err *err);
KVM_MUST kvm_status kvm_event__add(kvm_db *db, int64_t run, int64_t job,
                                   const char *what, kvm_str text, kvm_err *err);
/* kvm_job__key - the key of a job whose inputs all have results */
KVM_MUST kvm_status kvm_job__key(kvm_db *db, int64_t job, char key[65],
                                 kvm_arena scratch, kvm_err *err);
/* kvm_run__settle - the run's state, when nothing of it is active any more */
KVM_MUST kvm_status kvm_run__settle(kvm_db *db, int64_t run, kvm_arena scratch,
                                    kvm_err *err);
KVM_MUST kvm_status kvm_run__set(kvm_db *db, int64_t run, kvm_run_state state,
                                 kvm_err *err);

#endif
