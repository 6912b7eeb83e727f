/* leader.h - who schedules: a row with a lease, so that of several schedulers one works
 * and the others stand by. It saves work and no more: two that both believe to lead
 * send hints twice, and hints may come twice. */
#ifndef KVM_SCHEMA_LEADER_H
#define KVM_SCHEMA_LEADER_H

#include "schema/catalogue.h"

/* kvm_leader_hold - take or renew the lease `name` for `seconds`; leads: whether holder
 * has it now. Times are the database's. */
KVM_MUST kvm_status kvm_leader_hold(kvm_catalogue *c, kvm_str name, kvm_str holder,
                                    double seconds, bool *leads, kvm_err *err);
/* kvm_leader_leave - the next one need not wait for the lease to end */
KVM_MUST kvm_status kvm_leader_leave(kvm_catalogue *c, kvm_str name, kvm_str holder,
                                     kvm_err *err);
/* kvm_leader_of - who has it, in keep; empty: nobody */
KVM_MUST kvm_status kvm_leader_of(kvm_catalogue *c, kvm_str name, kvm_str *holder,
                                  kvm_arena *keep, kvm_err *err);

#endif
