/* dispatch.h - from ready jobs to hints, and hints that went astray.
 *
 * Which job is next the catalogue says (schema/job_order.h); how many hints are out is
 * kept small, so that who comes late with a greater priority does not wait behind many:
 * for each class of workers twice as many batches as there are workers, and some (of
 * batches of small jobs fewer, since each is many jobs). It is filled up when half of
 * that has gone: a look costs the same for one batch and for many. */
#ifndef KVM_SCHEDULER_DISPATCH_H
#define KVM_SCHEDULER_DISPATCH_H

#include "base/log.h"
#include "scheduler/queue.h"

enum {
    KVM_DISPATCH_CLASSES = 64,
    KVM_DISPATCH_SPARE = 64,
    KVM_DISPATCH_SPARE_SMALL = 8
};

/* Those who can do the same, and how many they are. */
typedef struct kvm_dispatch_class {
    kvm_queue_class class;
    int64_t workers;
    bool broken; /* its stream's name is another program's: nothing can be sent */
} kvm_dispatch_class;

typedef struct kvm_dispatch {
    kvm_catalogue *catalogue;
    kvm_queue *queue;
    kvm_arena names;   /* of the classes; empty at first */
    kvm_arena scratch; /* temporaries of one call: used by value */
    kvm_dispatch_class classes[KVM_DISPATCH_CLASSES];
    ptrdiff_t count;
    kvm_trouble trouble; /* of a class's stream alone */
} kvm_dispatch;

/* kvm_dispatch_look - which workers there are now; one that was not seen for silent_s
 * and holds no job does not count */
KVM_MUST kvm_status kvm_dispatch_look(kvm_dispatch *d, double silent_s, kvm_err *err);
/* kvm_dispatch_ready - hints for ready jobs, up to the window of each class. A job is
 * marked first, in a transaction of several batches, and its hint sent then: a worker
 * that hears of it finds no lock. What is marked and was never sent, since the process
 * or the server died in between, the next audit sends.
 *   jobs  grows by those that were sent */
KVM_MUST kvm_status kvm_dispatch_ready(kvm_dispatch *d, int64_t *jobs, kvm_err *err);
/* kvm_dispatch_audit - jobs that are dispatched, unclaimed and in no stream are sent
 * again; entries that a worker has had for idle_s count as lost.
 *   jobs  grows by those that were sent again */
KVM_MUST kvm_status kvm_dispatch_audit(kvm_dispatch *d, double idle_s, int64_t *jobs,
                                       kvm_err *err);

#endif
