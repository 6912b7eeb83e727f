/* zone.h - wall clocks of the world, without the process's TZ: what offset a zone has
 * at an instant, and when its clocks show a time.
 *
 * An instant is seconds since 1970 in UTC; a wall time is what the zone's clocks show,
 * counted in the same way. A zone is a file of the IANA database (TZif, RFC 8536; the
 * package tzdata), read by name. Behind its last transition its footer, a POSIX TZ
 * rule, goes on. Instants and wall times are those of the years 1 to 9999. */
#ifndef KVM_BASE_ZONE_H
#define KVM_BASE_ZONE_H

#include "base/str.h"

/* A day of the year on which clocks change, and the time by the clock before. */
typedef struct kvm_zone_day {
    char kind; /* 'M' month, week, weekday; 'J' day 1-365, no leap day; 'D' day 0-365 */
    int month, week, day;
    int32_t time; /* seconds behind midnight, may be negative or beyond a day */
} kvm_zone_day;

typedef struct kvm_zone {
    const int64_t *at;      /* [count] instants of transitions, ascending */
    const int32_t *offsets; /* [count] seconds east of UTC from then on */
    ptrdiff_t count;
    int32_t first; /* before the first of them */
    /* behind the last one; summer: the clocks change twice a year */
    bool rule, summer;
    int32_t winter_offset, summer_offset;
    kvm_zone_day begins, ends; /* of summer time */
} kvm_zone;

/* kvm_zone_read - by name: "Europe/Berlin". UTC is known without the database, which is
 * looked for in TZDIR, else /usr/share/zoneinfo. KVM_NOTFOUND; KVM_USAGE for what is no
 * name; KVM_FORMAT, KVM_UNSUPPORTED (leap seconds) for the file. Arrays in keep. */
KVM_MUST kvm_status kvm_zone_read(kvm_zone *z, kvm_arena *keep, kvm_str name,
                                  kvm_err *err);
/* kvm_zone_parse - the same of a file's bytes; name for messages */
KVM_MUST kvm_status kvm_zone_parse(kvm_zone *z, kvm_arena *keep, kvm_str bytes,
                                   kvm_str name, kvm_err *err);

/* kvm_zone_offset - seconds east of UTC */
int32_t kvm_zone_offset(const kvm_zone *z, int64_t instant);
/* kvm_zone_instant - when clocks show this. Of a time that they show twice (they are
 * put back) the first; of one that they leap over, when they leap. */
int64_t kvm_zone_instant(const kvm_zone *z, int64_t wall);

/* Days since 1970-01-01 in the Gregorian calendar, and back. month, day from 1. */
int64_t kvm_days_of(int year, int month, int day);
void kvm_date_of(int64_t days, int *year, int *month, int *day);
/* 0: Sunday */
int kvm_weekday_of(int64_t days);

#endif
