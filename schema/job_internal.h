/* job_internal.h - shared by job_state.c (the legal changes), job_order.c (who is
 * next), job_claim.c (taking jobs and holding them), job_end.c (how attempts end),
 * job_request.c (what people ask), job_key.c (the key of a step), results.c (rows that
 * an attempt leaves) and runs.c (how a run stands). Private to schema/. */
#ifndef KVM_SCHEMA_JOB_INTERNAL_H
#define KVM_SCHEMA_JOB_INTERNAL_H

#include "schema/catalogue_internal.h"
#include "schema/job_order.h"
#include "schema/list.h"

enum { KVM_DAY_S = 86400 };

/* A job as read under a lock; what is changed here is what kvm_job__change writes. */
typedef struct kvm_job_row {
    int64_t id, run, token;
    kvm_job_state state;
    int64_t waits, attempt, crashes, retries, timed, equal;
    double delay; /* seconds until it may be claimed */
    kvm_str key, message;
    int64_t status;
    /* of the live attempt: whose it is, its processes, seconds since the claim, whether
     * its lease is over */
    int64_t team, ranks;
    double claimed_s;
    bool expired;
} kvm_job_row;

typedef struct kvm_job_move {
    kvm_job_row was, is; /* what was read, what it becomes */
} kvm_job_move;

/* kvm_job__read - KVM_NOTFOUND */
KVM_MUST kvm_status kvm_job__read(kvm_db *db, int64_t id, kvm_job_row *j,
                                  kvm_arena *scratch, kvm_err *err);
/* kvm_job__hold - locks jobs in their one order: those of the list (id, done), and
 * those that need one whose done is 1. Rows by ascending id. now: the database's clock,
 * may be NULL. */
KVM_MUST kvm_status kvm_job__hold(kvm_db *db, kvm_list *ids, kvm_job_row **rows,
                                  ptrdiff_t *count, double *now, kvm_arena *a,
                                  kvm_err *err);
/* kvm_job__find - that job's row among those held; NULL: it is not there */
kvm_job_row *kvm_job__find(kvm_job_row *rows, ptrdiff_t count, int64_t id);
/* kvm_job__change - the one function that changes states. KVM_LOST when somebody else
 * was first. */
KVM_MUST kvm_status kvm_job__change(kvm_db *db, const kvm_job_move *moves,
                                    ptrdiff_t count, kvm_arena scratch, kvm_err *err);

/* An attempt that ends. */
typedef struct kvm_job_leave {
    kvm_job_move move;
    const char *outcome; /* attempt.outcome */
    const kvm_result *result;
    double seconds; /* to charge for each rank */
} kvm_job_leave;
/* kvm_job__leave - ends attempts: their rows, their events, the states; those that wait
 * for what is done, when there are any (needed); their runs, their teams. now: the
 * database's clock. */
KVM_MUST kvm_status kvm_job__leave(kvm_db *db, const kvm_job_leave *of, ptrdiff_t count,
                                   bool needed, double now, kvm_arena scratch,
                                   kvm_err *err);

/* kvm_results__write - artefacts, metrics, samples and timings of those that succeed */
KVM_MUST kvm_status kvm_results__write(kvm_db *db, const kvm_job_leave *of,
                                       ptrdiff_t count, kvm_arena scratch,
                                       kvm_err *err);
/* events, collected in a list (run, job, what, text) and written at once */
void kvm_event__list(kvm_list *l, int64_t run, int64_t job, kvm_str what, kvm_str text);
KVM_MUST kvm_status kvm_events__write(kvm_db *db, kvm_list *l, kvm_arena scratch,
                                      kvm_err *err);
KVM_MUST kvm_status kvm_event__add(kvm_db *db, int64_t run, int64_t job,
                                   const char *what, kvm_str text, kvm_arena scratch,
                                   kvm_err *err);

/* kvm_jobs__files - what a statement (JOBS_INPUTS, JOBS_OUTPUTS) gives for the list of
 * ids; those of one job stand together, by ascending id */
typedef struct kvm_job_files {
    const int64_t *jobs; /* [count] */
    kvm_claim_input *files;
    ptrdiff_t count;
} kvm_job_files;
KVM_MUST kvm_status kvm_jobs__files(kvm_db *db, kvm_sql sql, kvm_list *ids,
                                    kvm_job_files *out, kvm_arena *a, kvm_err *err);
/* kvm_jobs__files_of - borrows */
kvm_claim_input *kvm_jobs__files_of(const kvm_job_files *f, int64_t job,
                                    ptrdiff_t *count);
/* kvm_jobs__keys - sets the key of those that are not timed; their inputs all have
 * results. Texts live in a. */
KVM_MUST kvm_status kvm_jobs__keys(kvm_db *db, kvm_job_row *const *jobs,
                                   ptrdiff_t count, kvm_arena *a, kvm_err *err);

/* kvm_jobs__bounded - whether what any of them may have is bounded by a number of jobs:
 * it is then counted in the transaction that claims */
bool kvm_jobs__bounded(const kvm_team_use *teams, ptrdiff_t count);
/* kvm_jobs__teams - those that have room. asked: and something waiting; else they may
 * have, where there are few. Within a transaction the rows of teams so bounded are held
 * until it ends. */
KVM_MUST kvm_status kvm_jobs__teams(kvm_db *db, const kvm_want *want, bool asked,
                                    kvm_team_use **teams, ptrdiff_t *count,
                                    kvm_arena *a, kvm_err *err);
/* kvm_jobs__of_teams - batches[most] of what is next of these teams, *found of them */
KVM_MUST kvm_status kvm_jobs__of_teams(kvm_db *db, const kvm_want *want,
                                       kvm_team_use *teams, ptrdiff_t count,
                                       kvm_job_batch *batches, ptrdiff_t most,
                                       ptrdiff_t *found, kvm_arena scratch,
                                       kvm_err *err);

/* kvm_runs__settle - the state of runs, when nothing of them is active any more */
KVM_MUST kvm_status kvm_runs__settle(kvm_db *db, kvm_list *runs, kvm_arena scratch,
                                     kvm_err *err);
KVM_MUST kvm_status kvm_run__settle(kvm_db *db, int64_t run, kvm_arena scratch,
                                    kvm_err *err);
KVM_MUST kvm_status kvm_run__set(kvm_db *db, int64_t run, kvm_run_state state,
                                 kvm_err *err);

#endif
