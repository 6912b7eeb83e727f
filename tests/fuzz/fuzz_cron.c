/* Any text as a schedule's time: refused with a reason, or a time that comes again and
 * again, each one a minute that fits, later than the one before. */
#include <stdint.h>
#include <stdlib.h>

#include "base/zone.h"
#include "scheduler/cron.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_fits(const kvm_cron *c, int64_t wall)
{
    int year, month, day;
    const int64_t days = wall / 86400, minute = wall % 86400 / 60;
    kvm_date_of(days, &year, &month, &day);
    const bool of_month = c->fields[2] >> day & 1,
               of_week = c->fields[4] >> kvm_weekday_of(days) & 1;
    if (wall % 60 || !(c->fields[0] >> minute % 60 & 1) ||
        !(c->fields[1] >> minute / 60 & 1) || !(c->fields[3] >> month & 1) ||
        !(of_month || of_week))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { TIMES = 8 };
    kvm_cron c;
    kvm_err err = {0};
    const kvm_str text = {(const char *)data, (ptrdiff_t)size};
    if (kvm_cron_parse(&c, text, &err)) {
        if (err.code != KVM_USAGE || err.msg[0] == 0) abort();
        return 0;
    }
    int64_t wall = kvm_days_of(2026, 1, 1) * 86400;
    for (int i = 0; i < TIMES; i++) {
        const int64_t next = kvm_cron_next(&c, wall);
        if (next <= wall) abort();
        check_fits(&c, next);
        wall = next;
    }
    return 0;
}
