/* crew.h - work on several ranks at once in a test: processes forked from its own,
 * which is rank 0 (workers/crew.h). */
#ifndef KVM_TESTS_SUPPORT_CREW_H
#define KVM_TESTS_SUPPORT_CREW_H

#include "jobs/team.h"

enum { CREW_MOST = 8 };

typedef struct crew_end {
    kvm_status status;
    kvm_err err;
} crew_end;

/* crew_run - work(team, ctx) on `size` ranks at once, then what all have agreed on:
 * ends (size) of each. The test fails when a rank dies. The caller has one thread. */
typedef kvm_status crew_work(kvm_team *t, void *ctx, kvm_err *err);
void crew_run(int size, crew_work *work, void *ctx, crew_end *ends);

#endif
