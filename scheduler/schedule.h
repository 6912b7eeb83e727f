/* schedule.h - when specs are submitted by themselves.
 *
 * A schedule has a cron (cron.h) that is read by the clocks of a zone (base/zone.h); in
 * the catalogue all is UTC. Every time that the clocks show is one tick, once: of times
 * that they show twice in autumn the first, and those that they leap over in spring
 * come at the leap, all of them as one. Whoever finds a tick due may fire it, and one
 * does (schema/schedules.h). Of times at which nobody looked, for no scheduler ran,
 *   one   the latest is fired, for all of them
 *   all   each is, the latest KVM_CATCH_UP_MOST
 *   none  none is, but for one that is at most KVM_TICK_LATE_S late */
#ifndef KVM_SCHEDULER_SCHEDULE_H
#define KVM_SCHEDULER_SCHEDULE_H

#include "base/zone.h"
#include "scheduler/cron.h"
#include "schema/schedules.h"

enum { KVM_CATCH_UP_MOST = 100, KVM_TICK_LATE_S = 300, KVM_TICK_HOLD_S = 3600 };

typedef struct kvm_schedule {
    kvm_cron cron;
    kvm_zone zone;
} kvm_schedule;
/* kvm_schedule_read - KVM_USAGE, KVM_NOTFOUND: which of both cannot be read, and why */
KVM_MUST kvm_status kvm_schedule_read(kvm_schedule *s, kvm_arena *keep, kvm_str cron,
                                      kvm_str zone, kvm_err *err);
/* kvm_schedule_next - the first tick after that instant */
int64_t kvm_schedule_next(const kvm_schedule *s, int64_t after);

/* one | all | none */
bool kvm_catch_up_known(kvm_str word);

typedef struct kvm_due {
    kvm_tick_id tick;
    kvm_str team, name, file;
    bool again;
} kvm_due;
/* kvm_schedules_due - the ticks that are the caller's to fire now: they are claimed,
 * for KVM_TICK_HOLD_S, and to be ended with kvm_tick_end. A schedule that cannot be
 * read (its zone has gone) fires nothing and is logged.
 *   now    seconds since 1970; 0: by the catalogue's clock
 *   most   more are left for the next call */
KVM_MUST kvm_status kvm_schedules_due(kvm_catalogue *c, double now, ptrdiff_t most,
                                      kvm_due **due, ptrdiff_t *count, kvm_arena *keep,
                                      kvm_err *err);

#endif
