/* gang_internal.h - what a rank says and hears in the gang's folder (gang.c), for the
 * rank (gang_rank.c). */
#ifndef KVM_WORKERS_GANG_INTERNAL_H
#define KVM_WORKERS_GANG_INTERNAL_H

#include <time.h>

#include "workers/gang.h"

void kvm_gang__progress_write(kvm_str folder, const kvm_gang_progress *p);
void kvm_gang__start(kvm_str folder);
bool kvm_gang__cancelled(kvm_str folder);
/* when the child last touched `alive`; false: it never did, or it cannot be seen */
bool kvm_gang__beat(kvm_str folder, struct timespec *at);

#endif
