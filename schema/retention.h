/* retention.h - captures do not stay for ever.
 *
 * Text can be read out of the rows of a capture, so they are kept for a time and no
 * longer, although runs name them. Their artefact rows stay (what was made of them has
 * to say of what) and are marked; what is marked is no longer named, so garbage
 * collection takes the bytes (store.h). A job that needs them is done anew, and a run
 * that has such is not gone on with: submitted again it is a new one. */
#ifndef KVM_SCHEMA_RETENTION_H
#define KVM_SCHEMA_RETENTION_H

#include "schema/catalogue.h"

/* kvm_captures_expire - marks captures that were made more than age_s ago, wherever
 * they are named, but for those that an open run names or a live job is about to; an
 * event each. A job that began in the same moment and finds its results marked is not
 * skipped but done anew (kvm_jobs_end: KVM_NOTFOUND). *count: rows marked. */
KVM_MUST kvm_status kvm_captures_expire(kvm_catalogue *c, double age_s,
                                        ptrdiff_t *count, kvm_err *err);
/* kvm_run_expired - whether results of this run have been marked */
KVM_MUST kvm_status kvm_run_expired(kvm_catalogue *c, int64_t run, bool *yes,
                                    kvm_err *err);

#endif
