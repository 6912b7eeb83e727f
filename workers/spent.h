/* spent.h - what a job's attempts have taken, kept in its folder while they run, so
 * that the cost of a result that took several attempts is that of all of them. The rows
 * of the catalogue cannot say it: an attempt whose worker was killed ends there when
 * that is noticed, hours later perhaps. */
#ifndef KVM_WORKERS_SPENT_H
#define KVM_WORKERS_SPENT_H

#include "jobs/job.h"

/* zero when there is none, or it cannot be read */
kvm_job_spent kvm_spent_read(kvm_str folder);
/* kvm_spent_write - one write in place, so that a kill leaves the old or the new; not
 * synced. A failure is of no matter: the next write comes. */
void kvm_spent_write(kvm_str folder, kvm_job_spent s);

#endif
