/* queue.h - how a worker hears that there may be work. The catalogue owns the work; a
 * queue only carries hints, so losing one loses time, never a job.
 *
 * Local: a FIFO beside the catalogue wakes the workers of this machine; who misses it
 * polls. */
#ifndef KVM_SCHEDULER_QUEUE_H
#define KVM_SCHEDULER_QUEUE_H

#include "schema/catalogue.h"
#include "schema/job_state.h"

typedef struct kvm_queue kvm_queue;

/* kvm_queue_local - HOME/wake; closed by keep */
KVM_MUST kvm_status kvm_queue_local(kvm_queue **q, kvm_arena *keep, kvm_str home,
                                    kvm_err *err);
/* kvm_queue_wake - hint that a job became ready; never blocks, never fails loudly */
void kvm_queue_wake(kvm_queue *q);
/* kvm_queue_wait - until a hint or for at most `seconds`; true: a hint came. Signals
 * end it. */
bool kvm_queue_wait(kvm_queue *q, double seconds);
/* kvm_queue_relay - hand the outbox's rows on as hints and mark them sent */
KVM_MUST kvm_status kvm_queue_relay(kvm_queue *q, kvm_catalogue *c, kvm_err *err);

#endif
