/* process.h - programs that a job's process starts: launchers of gangs, and what asks
 * Slurm. For a process of one thread. */
#ifndef KVM_WORKERS_PROCESS_H
#define KVM_WORKERS_PROCESS_H

#include <sys/types.h>

#include "base/str.h"

/* kvm_process_start - argv (NULL-terminated; argv[0] is looked up in PATH) with
 * /dev/null as its input and our own output, or `out` when that is >= 0. It is killed
 * when we end. KVM_ENVIRONMENT names the program that is not there. */
KVM_MUST kvm_status kvm_process_start(pid_t *pid, const char *const *argv, int out,
                                      kvm_err *err);
/* kvm_process_read - all that a command says, in keep, and its exit status (128 + n:
 * signal n). KVM_BUSY when it takes longer than `seconds`: it is killed then. */
KVM_MUST kvm_status kvm_process_read(kvm_str *text, int *code, const char *const *argv,
                                     double seconds, kvm_arena *keep, kvm_err *err);
/* as a shell gives it: 128 + n of signal n */
int kvm_process_code(int status);

/* kvm_process_adopt - orphans of processes below this one become its children, instead
 * of getting away: ranks are process groups of their own, and outlive a launcher that
 * is killed */
void kvm_process_adopt(void);
/* kvm_process_end_tree - kill all below this process, and again what they have started
 * meanwhile, until none is left; false when some are after `seconds` */
bool kvm_process_end_tree(double seconds);

#endif
