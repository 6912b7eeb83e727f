/* job_internal.h - shared by job_state.c (changes), job_claim.c (what a claimed job
 * is), results.c (rows that an attempt leaves) and runs.c (how a run stands). Private
 * to schema/. */
#ifndef KVM_SCHEMA_JOB_INTERNAL_H
#define KVM_SCHEMA_JOB_INTERNAL_H

#include "schema/catalogue_internal.h"
#include "schema/job_state.h"

/* kvm_results__write - artefacts, metrics, samples, timings of a job that succeeds */
KVM_MUST kvm_status kvm_results__write(kvm_db *db, int64_t job, const kvm_result *r,
                                       kvm_err *err);
/* kvm_results__events - events alone; they are kept however the attempt ends */
KVM_MUST kvm_status kvm_results__events(kvm_db *db, int64_t run, int64_t job,
                                        const kvm_result *r, kvm_err *err);
KVM_MUST kvm_status kvm_event__add(kvm_db *db, int64_t run, int64_t job,
                                   const char *what, kvm_str text, kvm_err *err);
/* kvm_job__claim_row - the claim itself, within a transaction: JOB_CLAIM's row, none
 * when there is nothing to take. KVM_EXISTS: another has just begun an equal step */
KVM_MUST kvm_status kvm_job__claim_row(kvm_db *db, kvm_rows *rows, kvm_arena *keep,
                                       int64_t worker, int64_t run, double lease_s,
                                       kvm_err *err);
/* kvm_job__key - the key of a job whose inputs all have results */
KVM_MUST kvm_status kvm_job__key(kvm_db *db, int64_t job, char key[65],
                                 kvm_arena scratch, kvm_err *err);
/* kvm_run__settle - the run's state, when nothing of it is active any more */
KVM_MUST kvm_status kvm_run__settle(kvm_db *db, int64_t run, kvm_arena scratch,
                                    kvm_err *err);
KVM_MUST kvm_status kvm_run__set(kvm_db *db, int64_t run, kvm_run_state state,
                                 kvm_err *err);

#endif
