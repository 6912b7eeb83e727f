/* fault.h - die here on purpose: crash tests set KVMILL_FAULT=name:n (faults.def).
 * Costs one load when it is not set. */
#ifndef KVM_SCHEMA_FAULT_H
#define KVM_SCHEMA_FAULT_H

typedef enum kvm_fault_id {
#define X(NAME, name, what) KVM_FAULT_##NAME,
#include "schema/faults.def"
#undef X
    KVM_FAULT_COUNT
} kvm_fault_id;

const char *kvm_fault_name(kvm_fault_id id);
void kvm_fault(
    kvm_fault_id id); /* kill -9 of itself at the n-th passing of that point */

#endif
