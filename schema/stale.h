/* stale.h - noticing that what a run was made of is no longer what its spec makes.
 *
 * A spec names checkpoints, texts and suites by their places; a run holds what lay
 * there when it was submitted. Submitted again, the same spec may find other
 * content: equal steps are then skipped by their keys and the others done anew. The
 * runs before are marked stale, with the first reasons in words, found by comparing
 * steps by label. A run that is current again, for a change was taken back, loses
 * the mark. */
#ifndef KVM_SCHEMA_STALE_H
#define KVM_SCHEMA_STALE_H

#include "schema/catalogue.h"

/* A model's parts, so that a changed fingerprint can be told apart. */
typedef struct kvm_model_new {
    kvm_str name, family;
    const char *fingerprint, *config_sha, *tokenizer_sha, *weights_sha; /* hex */
} kvm_model_new;
/* kvm_model_record - known from now on; nothing when it was */
KVM_MUST kvm_status kvm_model_record(kvm_catalogue *c, const kvm_model_new *m,
                                     kvm_err *err);

typedef struct kvm_stale {
    int64_t run; /* the newest that is stale since this call; 0: none */
    char why[240];
} kvm_stale;
/* kvm_run_current - this run is what its spec makes now: the spec's other runs, as
 * far as their steps differ, are stale. Runs that differ in the machine that timed,
 * or in the backend that was asked for, are not: nothing has changed. Part of the
 * submission's transaction.
 *   file   of the spec, absolute; empty: as it was */
KVM_MUST kvm_status kvm_run_current(kvm_catalogue *c, int64_t run, kvm_str file,
                                    kvm_stale *stale, kvm_err *err);

#endif
