/* gang.h - a job on several ranks: what a rank is given, what it does, and how the
 * worker's child looks after all of them.
 *
 * The child (child.c) holds the job's folder, writes task.json into it, has a launcher
 * (launch.h) start the ranks, and waits. Every rank reads the task, opens the inputs
 * and runs the job with its team (jobs/team.h); the one that leads records what is
 * found and the verdict, as the child of a job of one rank would. A gang that ends
 * without a verdict has crashed. All ranks see the folder: on several machines the
 * store's home lies on a file system that they share.
 *
 * In the folder, besides:
 *   started   the ranks have found each other (written by the one that leads)
 *   progress  how far it is, likewise
 *   alive     touched by the child every second: ranks that see it stand still end
 *   cancel    they are asked to stop */
#ifndef KVM_WORKERS_GANG_H
#define KVM_WORKERS_GANG_H

#include "jobs/job.h"
#include "schema/job_state.h"
#include "schema/store.h"
#include "workers/host.h"

#define KVM_GANG_RECORDS "records.jsonl" /* of rank 0, in the folder */

typedef struct kvm_task {
    kvm_claim claim; /* fence, run, attempt, kind, version, texts, inputs */
    int ranks;
    kvm_str place;           /* the folder, absolute: what a rank is told */
    kvm_str cwd;             /* of the worker, which paths below are relative to … */
    kvm_str folder, home;    /* … as it spells them */
    kvm_str allow;           /* as of the worker; at NULL: no bounds */
    kvm_store_options store; /* a bucket, when there is one; keys in the environment */
    const char *backend;     /* as the child has chosen it */
    int threads;             /* of each rank */
    size_t offload, memory;  /* as of kvm_job */
    size_t job_bytes;
    kvm_job_spent before;
} kvm_task;

/* kvm_task_write - task.json of the folder, in place of what is left of an earlier
 * gang */
KVM_MUST kvm_status kvm_task_write(const kvm_task *t, kvm_arena scratch, kvm_err *err);
/* kvm_task_read - the one of that place, in keep. Any bytes are refused that are no
 * task of it, by line: KVM_FORMAT, KVM_RANGE, KVM_MISMATCH. */
KVM_MUST kvm_status kvm_task_read(kvm_task *t, kvm_arena *keep, kvm_str place,
                                  kvm_err *err);

/* where a rank runs: the first on its machine hashes the inputs for the others, and
 * CPUs are shared out among them unless a number of threads is asked for */
typedef struct kvm_seat {
    int rank, size; /* among those of this machine */
} kvm_seat;
/* kvm_gang_rank - this process's part of the job. All ranks of the team call it; it
 * ends with the verdict recorded, be it that the job has failed: KVM_OK then. Another
 * status: there is no verdict. The process's working folder becomes the worker's. */
typedef const kvm_job_kind *kvm_kind_of(kvm_kind_id id);
KVM_MUST kvm_status kvm_gang_rank(kvm_team *team, kvm_seat seat, kvm_str place,
                                  kvm_kind_of *kind_of, kvm_err *err);

/* ---- for the child ---- */

/* how far the gang has come; false: nothing is known */
typedef struct kvm_gang_progress {
    double done, total;
    char unit[KVM_PROGRESS_UNIT];
} kvm_gang_progress;
bool kvm_gang_progress_read(kvm_str folder, kvm_gang_progress *p);
bool kvm_gang_started(kvm_str folder);
void kvm_gang_cancel(kvm_str folder);
void kvm_gang_alive(kvm_str folder);

#endif
