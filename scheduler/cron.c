#include "scheduler/cron.h"

#include <string.h>

#include "base/zone.h"

enum { MINUTE, HOUR, DAY, MONTH, WEEKDAY, FIELDS };
enum { YEARS = 41 }; /* 29 February on each weekday comes in 40, also around 2100 */

static const struct {
    const char *name;
    int least, most;
    const char *words; /* of three letters, for least and up */
} rows[FIELDS] = {
    [MINUTE] = {"minute", 0, 59, ""},
    [HOUR] = {"hour", 0, 23, ""},
    [DAY] = {"day of the month", 1, 31, ""},
    [MONTH] = {"month", 1, 12, "janfebmaraprmayjunjulaugsepoctnovdec"},
    [WEEKDAY] = {"day of the week", 0, 7, "sunmontuewedthufrisat"},
};

static bool value_of(int field, kvm_str text, int *out)
{
    int64_t n;
    char word[3];
    if (text.len == 3 && text.at[0] > '9') {
        for (int i = 0; i < 3; i++) word[i] = (char)(text.at[i] | 0x20);
        const char *at = rows[field].words;
        for (int v = rows[field].least; *at; at += 3, v++)
            if (!memcmp(word, at, 3)) {
                *out = v;
                return true;
            }
        return false;
    }
    for (ptrdiff_t i = 0; i < text.len; i++)
        if (text.at[i] < '0' || text.at[i] > '9') return false;
    if (text.len > 2 || !kvm_str_to_i64(text, &n) || n < rows[field].least ||
        n > rows[field].most)
        return false;
    *out = (int)n;
    return true;
}

/* one part of a list: *, a, a-b, each but `a` with a step */
static bool take_part(kvm_cron *c, int field, kvm_str part)
{
    kvm_str range, step, from, to;
    int low = rows[field].least, high = rows[field].most, by = 1;
    int64_t n;
    if (kvm_str_cut(part, '/', &range, &step)) {
        if (step.len > 2 || !kvm_str_to_i64(step, &n) || n < 1 || step.at[0] == '+')
            return false;
        by = (int)n;
    }
    if (kvm_str_eq(range, KVM_STR("*"))) {
        if (field == WEEKDAY) high = 6;
    } else if (kvm_str_cut(range, '-', &from, &to)) {
        if (!value_of(field, from, &low) || !value_of(field, to, &high) || low > high)
            return false;
    } else {
        if (!value_of(field, range, &low) || by > 1) return false;
        high = low;
    }
    for (int v = low; v <= high; v += by)
        c->fields[field] |= (uint64_t)1 << (field == WEEKDAY ? v % 7 : v);
    return true;
}

static kvm_status take_field(kvm_cron *c, int field, kvm_str text, kvm_err *err)
{
    kvm_str part, rest = text;
    bool good = text.len > 0, more = true;
    while (good && more) {
        more = kvm_str_cut(rest, ',', &part, &rest);
        good = take_part(c, field, part);
    }
    if (good) return KVM_OK;
    return kvm_fail(
        err, KVM_USAGE,
        "cron: \"%s\" is no %s: a list of numbers from %d to %d%s, of ranges "
        "a-b and of steps a-b/n or */n",
        kvm_quote(text).at, rows[field].name, rows[field].least, rows[field].most,
        field == MONTH     ? " or jan to dec"
        : field == WEEKDAY ? " or sun to sat"
                           : "");
}

static bool fits_day(const kvm_cron *c, int64_t days)
{
    int year, month, day;
    kvm_date_of(days, &year, &month, &day);
    if (!(c->fields[MONTH] >> month & 1)) return false;
    const bool of_month = c->fields[DAY] >> day & 1;
    const bool of_week = c->fields[WEEKDAY] >> kvm_weekday_of(days) & 1;
    return c->any_day || c->any_weekday ? of_month && of_week : of_month || of_week;
}

/* -1: never */
static int64_t next_minute(const kvm_cron *c, int64_t minute)
{
    int64_t day = (minute >= 0 ? minute : minute - 1439) / 1440;
    int64_t from = minute - day * 1440;
    for (const int64_t last = day + (int64_t)YEARS * 366; day < last; day++, from = 0) {
        if (!fits_day(c, day)) continue;
        for (int64_t m = from; m < 1440; m++)
            if (c->fields[HOUR] >> (m / 60) & 1 && c->fields[MINUTE] >> (m % 60) & 1)
                return day * 1440 + m;
    }
    return -1;
}

int64_t kvm_cron_next(const kvm_cron *c, int64_t wall)
{
    const int64_t minute = (wall >= 0 ? wall : wall - 59) / 60;
    return next_minute(c, minute + 1) * 60;
}

kvm_status kvm_cron_parse(kvm_cron *c, kvm_str text, kvm_err *err)
{
    kvm_cron out = {0};
    kvm_str field, rest = kvm_str_trim(text);
    for (int i = 0; i < FIELDS; i++) {
        kvm_str_cut(rest, ' ', &field, &rest);
        rest = kvm_str_trim(rest);
        if (i == DAY) out.any_day = kvm_str_starts(field, KVM_STR("*"));
        if (i == WEEKDAY) out.any_weekday = kvm_str_starts(field, KVM_STR("*"));
        TRY(take_field(&out, i, field, err));
    }
    if (rest.len)
        return kvm_fail(err, KVM_USAGE,
                        "cron: \"%s\" has more than the five fields minute, hour, day "
                        "of the month, month, day of the week",
                        kvm_quote(text).at);
    if (next_minute(&out, 0) < 0)
        return kvm_fail(err, KVM_USAGE, "cron: the time \"%s\" never comes",
                        kvm_quote(text).at);
    *c = out;
    return KVM_OK;
}
