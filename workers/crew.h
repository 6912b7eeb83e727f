/* crew.h - ranks that are processes forked from one, over memory that they share: a
 * gang of one machine without MPI. */
#ifndef KVM_WORKERS_CREW_H
#define KVM_WORKERS_CREW_H

#include "base/arena.h"
#include "jobs/team.h"

enum { KVM_CREW_MOST = 64 };

typedef struct kvm_crew kvm_crew;
/* kvm_crew_new - before the fork; unmapped by keep. KVM_RANGE beyond KVM_CREW_MOST. */
KVM_MUST kvm_status kvm_crew_new(kvm_crew **c, kvm_arena *keep, int size, kvm_err *err);
/* kvm_crew_join - in each process, once: its team, which borrows the crew. Ranks wait
 * for each other without end: who forks them kills all when one dies. */
void kvm_crew_join(kvm_crew *c, int rank, kvm_team *t);

#endif
