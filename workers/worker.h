/* worker.h - claim, run, commit; again.
 *
 * What is claimed is a batch: one job, or several small ones. They run in a child
 * process (forked while the worker has one thread), one after another, so that whatever
 * a job does, the worker lives to record it. A heartbeat thread renews the leases on a
 * connection of its own and passes a cancellation on; when it cannot renew, the worker
 * ends the child before the leases do. The child records what it found (host.h); the
 * worker moves the outputs into the store and commits all of it in one transaction, or
 * nothing. HOME holds catalogue.db, objects/, work/<job>/, logs/. */
#ifndef KVM_WORKERS_WORKER_H
#define KVM_WORKERS_WORKER_H

#include "jobs/job.h"
#include "schema/job_state.h"
#include "schema/store.h"

typedef enum kvm_worker_what {
    KVM_WORKER_START,   /* a job begins */
    KVM_WORKER_SUCCEED, /* its results are committed */
    KVM_WORKER_SKIP,    /* an equal step had succeeded; its results are reused */
    KVM_WORKER_RETRY,   /* it will run again later: message */
    KVM_WORKER_FAIL,    /* failed or parked: message */
    KVM_WORKER_CANCEL,  /* cancelled: somebody asked for it */
    KVM_WORKER_LOST,    /* another worker has it; what was done here is discarded */
    KVM_WORKER_RELEASE, /* drained: given back */
    KVM_WORKER_DRAIN    /* it is to stop: nothing is claimed after this */
} kvm_worker_what;
typedef struct kvm_worker_note {
    kvm_worker_what what;
    int64_t run, job;
    int attempt;
    kvm_kind_id kind;
    kvm_str label;
    double seconds;      /* since the claim */
    const char *message; /* "" when there is none */
    kvm_str log;         /* path of the attempt's log */
} kvm_worker_note;

typedef struct kvm_worker_options {
    kvm_str home;
    kvm_str catalogue;       /* empty: HOME/catalogue.db */
    kvm_store_options store; /* zero: the home is the store */
    /* folders that jobs may name files of besides the store's and the suites
     * (bounds.h), split by ':'; at NULL: whatever may be read, for jobs of our own */
    kvm_str allow;
    kvm_str queue; /* redis://… (scheduler/redis.h); empty, or with a run: local */
    const kvm_job_kind *(*kind_of)(kvm_kind_id id); /* required: kvm_job_kind_of */
    const char *backend;                            /* "cpu" */
    int threads;                                    /* for jobs; 0: all */
    size_t offload;                                 /* for jobs (jobs/job.h); 0: none */
    kvm_str machine; /* empty: kvm_machine_class (machine.h) */
    int64_t run;     /* > 0: only this run's jobs; returns when it is over */
    kvm_want want;   /* what else it takes, by class; want.run is not looked at */
    bool until_idle; /* return when nothing is waiting or live */
    double lease_s;  /* 0: 30 */
    double poll_s;   /* look at the catalogue so often without a hint; 0: 0.2, 5 when a
                    * scheduler sends them */
    double grace_s;  /* a drained worker lets its job go on so long; 0: 10 */
    size_t
        job_bytes; /* address space of a job's arena; 0: 64 GiB (reserved, not used) */
    kvm_queue_policy policy;
    /* of gangs, jobs of up to want.ranks ranks: what starts them (launch.h; NULL:
     * fork), with further words for it (NULL: none) */
    const struct kvm_launcher *launcher;
    const char *const *launch_args; /* NULL-terminated */
    kvm_str rank_program;           /* empty: kvmill-rank beside this program */
    double start_s; /* ranks have not come together for so long: tried later; 0: 300 */
    bool signals;   /* SIGTERM and SIGINT drain, a second one ends the job now */
    kvm_progress *progress; /* shows the running job's; NULL: quiet */
    void (*note)(void *ctx, const kvm_worker_note *note); /* NULL: nobody listens */
    void *note_ctx;
} kvm_worker_options;

typedef struct kvm_worker_stats {
    ptrdiff_t succeeded, skipped, retried, failed, cancelled, lost, released;
    kvm_status why; /* the first failure's; KVM_OK: a crash, or none */
    bool drained;   /* returned because of a signal */
} kvm_worker_stats;

/* kvm_worker_run - works until the run is over, nothing is left, or it is drained.
 * Failures of jobs are recorded, noted and counted, not returned; what is returned is
 * the worker's own trouble. Must be called while the process has one thread. */
KVM_MUST kvm_status kvm_worker_run(const kvm_worker_options *options,
                                   kvm_worker_stats *stats, kvm_err *err);
/* kvm_worker_drain - what a signal handler calls (async-signal-safe) */
void kvm_worker_drain(void);

#endif
