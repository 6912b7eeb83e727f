/* schedules.h - schedules and the times at which they were fired, as rows. When they
 * are due is scheduler/schedule.h's to say.
 *
 * A tick is one time of a schedule. Who fires it writes its row first; there is one
 * row for a time, so one of several wins. The row says until when it must have
 * ended: of who dies in between, another takes it over. */
#ifndef KVM_SCHEMA_SCHEDULES_H
#define KVM_SCHEMA_SCHEDULES_H

#include "schema/catalogue.h"

typedef struct kvm_schedule_row {
    int64_t id;
    kvm_str team, name, file, cron, zone, catch_up; /* file: absolute */
    bool again, paused;
    double since_at, last_at; /* last_at: of its latest tick; 0: none */
} kvm_schedule_row;

/* kvm_schedule_add - counts from now on; id, paused and times are not read. KVM_EXISTS
 * when the team has one of that name. */
KVM_MUST kvm_status kvm_schedule_add(kvm_catalogue *c, const kvm_schedule_row *s,
                                     kvm_err *err);
/* Each by team and name; KVM_NOTFOUND. Resumed, it counts from then on. */
KVM_MUST kvm_status kvm_schedule_remove(kvm_catalogue *c, kvm_str team, kvm_str name,
                                        kvm_err *err);
KVM_MUST kvm_status kvm_schedule_pause(kvm_catalogue *c, kvm_str team, kvm_str name,
                                       bool paused, kvm_err *err);
/* kvm_schedules_read - all of them, and the catalogue's time */
KVM_MUST kvm_status kvm_schedules_read(kvm_catalogue *c, kvm_schedule_row **rows,
                                       ptrdiff_t *count, double *now, kvm_arena *keep,
                                       kvm_err *err);

/* kvm_tick_claim - mine: it is now for the caller to fire, within hold_s. One that has
 * ended, or that another one holds, is not. */
KVM_MUST kvm_status kvm_tick_claim(kvm_catalogue *c, int64_t schedule, double at,
                                   double hold_s, bool *mine, kvm_err *err);
KVM_MUST kvm_status kvm_tick_end(kvm_catalogue *c, int64_t schedule, double at,
                                 kvm_status status, kvm_str message, kvm_err *err);
typedef struct kvm_tick_id {
    int64_t schedule;
    double at;
} kvm_tick_id;
/* kvm_ticks_left - those of schedules at work whose holder should have ended them; a
 * few at a time */
KVM_MUST kvm_status kvm_ticks_left(kvm_catalogue *c, kvm_tick_id **ticks,
                                   ptrdiff_t *count, kvm_arena *keep, kvm_err *err);
/* kvm_tick_admits - whether this tick is being fired now, of this file and team */
KVM_MUST kvm_status kvm_tick_admits(kvm_catalogue *c, kvm_tick_id tick, kvm_str team,
                                    kvm_str file, bool *yes, kvm_err *err);

#endif
