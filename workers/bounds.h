/* bounds.h - what a process may read that opens what jobs name (base/roots.h): the
 * store's folder, the bundled suites, what is remembered of large checkpoints, and what
 * whoever started the worker allows. */
#ifndef KVM_WORKERS_BOUNDS_H
#define KVM_WORKERS_BOUNDS_H

#include "base/str.h"

/* kvm_bounds_set - for this process and those that it forks. allow: folders, split by
 * ':'; at NULL: there are no bounds. home: the store's folder. */
KVM_MUST kvm_status kvm_bounds_set(kvm_str allow, kvm_str home, kvm_err *err);

#endif
