/* gc.h - garbage of a store: objects that no run names, folders of jobs that nobody
 * will go on with, files of processes that were killed while they wrote.
 *
 * Logs, reports and everything that the catalogue names stay. What a live lease holds
 * is never touched: neither its folder nor what it has published and not yet
 * committed. */
#ifndef KVM_WORKERS_GC_H
#define KVM_WORKERS_GC_H

#include "schema/store.h"

/* kvm_gc - all of it that is o->age_s old: objects since they entered the store,
 * folders since their job ended (a job that has its results needs none, whatever its
 * age). Killed at any time it leaves a store that works, and the next one goes on. */
KVM_MUST kvm_status kvm_gc(kvm_str home, kvm_catalogue *c, kvm_store *s,
                           const kvm_sweep *o, kvm_err *err);

#endif
