/* cron.h - times that come again: "30 2 * * mon-fri".
 *
 * Five fields: minute (0-59), hour (0-23), day of the month (1-31), month (1-12 or
 * jan-dec), day of the week (0-7 or sun-sat; 0 and 7 are Sunday). A field is a list of
 * numbers, ranges (a-b) and steps (a-b/n, or * with /n), divided by commas; * is all.
 * Where both days are restricted, a day that fits either is one, as cron(8) has it.
 * Times are wall times (base/zone.h). */
#ifndef KVM_SCHEDULER_CRON_H
#define KVM_SCHEDULER_CRON_H

#include "base/str.h"

typedef struct kvm_cron {
    uint64_t fields[5];        /* a bit for each value that fits */
    bool any_day, any_weekday; /* the field begins with * */
} kvm_cron;

/* kvm_cron_parse - KVM_USAGE names the field and what it may be, or says that such a
 * time never comes */
KVM_MUST kvm_status kvm_cron_parse(kvm_cron *c, kvm_str text, kvm_err *err);
/* kvm_cron_next - the first fitting minute after this wall time */
int64_t kvm_cron_next(const kvm_cron *c, int64_t wall);

#endif
