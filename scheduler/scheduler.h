/* scheduler.h - the process that hands out work through a queue: it sends hints for
 * jobs that are ready, again for those that went astray, takes jobs back from workers
 * that fell silent, submits what schedules ask for, and lets old captures expire. It
 * decides nothing and owns nothing: the catalogue does; without a scheduler, or without
 * a queue of its own, workers look for themselves, only slower. Several may run: one
 * leads (schema/leader.h), the others stand by. */
#ifndef KVM_SCHEDULER_SCHEDULER_H
#define KVM_SCHEDULER_SCHEDULER_H

#include "schema/job_state.h"

typedef struct kvm_scheduler_options {
    kvm_str catalogue, queue;     /* addresses; without a queue it sends no hints */
    kvm_str home;                 /* the store, for what schedules submit (fire.h) */
    kvm_str allow;                /* where else it reads (fire.h) */
    kvm_str name;                 /* of this process, unique for ever */
    kvm_str host;                 /* of this machine, and … */
    bool (*dead)(kvm_str worker); /* … who of its workers is known to be gone */
    double reconcile_s; /* hints that went astray are looked for so often; 0: 30 */
    double lease_s;     /* of who leads; 0: 10 */
    double captures_s; /* captures are kept so long (schema/retention.h); 0: for ever */
    kvm_queue_policy policy;
    bool signals; /* SIGTERM and SIGINT end it */
} kvm_scheduler_options;

typedef struct kvm_scheduler_stats {
    int64_t sent, again; /* jobs whose hints were sent, once more */
    int64_t taken_back;  /* jobs of workers that are gone */
    int64_t expired;     /* captures */
} kvm_scheduler_stats;

/* kvm_scheduler_run - until it is told to stop. Trouble with catalogue or queue is told
 * and outlived, but for what cannot pass: a damaged or newer catalogue, an address that
 * cannot be read, a queue that at the start lets nobody in. stats may be NULL. */
KVM_MUST kvm_status kvm_scheduler_run(const kvm_scheduler_options *options,
                                      kvm_scheduler_stats *stats, kvm_err *err);
/* kvm_scheduler_stop - what a signal handler calls (async-signal-safe) */
void kvm_scheduler_stop(void);

#endif
