/* fleet.h - what a scheduler reads: which workers live, which hints nobody has
 * followed, how the jobs of each class stand. */
#ifndef KVM_SCHEMA_FLEET_H
#define KVM_SCHEMA_FLEET_H

#include "schema/job_state.h"

/* Workers that take the same. */
typedef struct kvm_fleet_workers {
    kvm_str classes; /* "cpu small" */
    int ranks;
    int64_t memory_mib;
    int64_t count;
} kvm_fleet_workers;
/* kvm_fleet_look - workers that were seen within silent_s or hold a job, and are not
 * asked to drain; smaller gangs and memories first. In keep. */
KVM_MUST kvm_status kvm_fleet_look(kvm_catalogue *c, double silent_s,
                                   kvm_fleet_workers **workers, ptrdiff_t *count,
                                   kvm_arena *keep, kvm_err *err);

/* A job whose hint was sent and that nobody has claimed. */
typedef struct kvm_fleet_sent {
    kvm_fence fence;
    kvm_str class;
    int ranks;
    int64_t memory_mib;
} kvm_fleet_sent;
/* kvm_fleet_unclaimed - those sent before age_s, the oldest first; the most that one
 * call gives is KVM_UNCLAIMED_MOST. In keep. */
enum { KVM_UNCLAIMED_MOST = 20000 };
KVM_MUST kvm_status kvm_fleet_unclaimed(kvm_catalogue *c, double age_s,
                                        kvm_fleet_sent **sent, ptrdiff_t *count,
                                        kvm_arena *keep, kvm_err *err);

/* Jobs of a class in a state that is neither blocked nor over; paused ones apart. */
typedef struct kvm_fleet_jobs {
    kvm_str class, state;
    int ranks;
    int64_t count;
    double oldest_s; /* since the first of them was submitted */
} kvm_fleet_jobs;
KVM_MUST kvm_status kvm_fleet_jobs_look(kvm_catalogue *c, kvm_fleet_jobs **jobs,
                                        ptrdiff_t *count, kvm_arena *keep,
                                        kvm_err *err);

#endif
