/* machine.h - which machine this is: its class goes into the keys of timings, its
 * identity into leases. */
#ifndef KVM_WORKERS_MACHINE_H
#define KVM_WORKERS_MACHINE_H

#include "base/str.h"

/* kvm_machine_class - "Intel(R) Xeon(R) …, 2 cpus, cpu backend": equal for machines
 * whose timings may be compared. In keep; at == NULL when spent. */
kvm_str kvm_machine_class(kvm_arena *keep, const char *backend);
kvm_str kvm_machine_host(kvm_arena *keep);
/* kvm_worker_name - host/boot/pid-namespace/pid/start/nonce of this process */
kvm_str kvm_worker_name(kvm_arena *keep);
/* kvm_worker_dead - whether the process of that name is known to be gone: another boot
 * of this host, or no such process in this namespace. False when that cannot be told
 * from here. */
bool kvm_worker_dead(kvm_str name);

#endif
