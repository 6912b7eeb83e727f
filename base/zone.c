/* The files are other people's: every count is checked before it is used, and whatever
 * a file holds, the calls below come back with some number. */
#include "base/zone.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

enum {
    DAY = 86400,
    HEADER = 44,
    TRANSITIONS_MOST = 100000,
    OFFSET_MOST = 26 * 3600, /* RFC 8536, 3.2 */
    FILE_MOST = 4 << 20
};

/* ---- the calendar ---- */

/* Years are counted from March, so that a leap day is a year's last; 400 of them are
 * one era. */
int64_t kvm_days_of(int year, int month, int day)
{
    const int64_t y = (int64_t)year - (month <= 2);
    const int64_t era = (y >= 0 ? y : y - 399) / 400, of_era = y - era * 400;
    const int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

void kvm_date_of(int64_t days, int *year, int *month, int *day)
{
    const int64_t z = days + 719468;
    const int64_t era = (z >= 0 ? z : z - 146096) / 146097, of_era = z - era * 146097;
    const int64_t y = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    const int64_t of_year = of_era - (365 * y + y / 4 - y / 100);
    const int64_t m = (5 * of_year + 2) / 153;
    *day = (int)(of_year - (153 * m + 2) / 5 + 1);
    *month = (int)(m < 10 ? m + 3 : m - 9);
    *year = (int)(y + era * 400 + (*month <= 2));
}

int kvm_weekday_of(int64_t days)
{
    return (int)(((days + 4) % 7 + 7) % 7);
}

/* ---- the rule behind the last transition: CET-1CEST,M3.5.0,M10.5.0/3 ---- */

typedef struct reader {
    const char *at, *end;
} reader;

static bool take(reader *r, char c)
{
    if (r->at == r->end || *r->at != c) return false;
    r->at++;
    return true;
}

/* up to three digits */
static bool number(reader *r, int most, int *out)
{
    const char *from = r->at;
    *out = 0;
    while (r->at < r->end && r->at - from < 3 && *r->at >= '0' && *r->at <= '9')
        *out = *out * 10 + (*r->at++ - '0');
    return r->at > from && *out <= most;
}

/* a name of letters, or of anything in < > */
static bool skip_name(reader *r)
{
    const char *from = r->at;
    if (take(r, '<')) {
        while (r->at < r->end && *r->at != '>') r->at++;
        return take(r, '>');
    }
    while (r->at < r->end &&
           ((*r->at >= 'A' && *r->at <= 'Z') || (*r->at >= 'a' && *r->at <= 'z')))
        r->at++;
    return r->at - from >= 3;
}

/* [+-]hh[:mm[:ss]] in seconds */
static bool clock_time(reader *r, int hours_most, int32_t *out)
{
    int part[3] = {0};
    const bool minus = take(r, '-');
    if (!minus) take(r, '+');
    if (!number(r, hours_most, &part[0])) return false;
    for (int i = 1; i < 3 && take(r, ':'); i++)
        if (!number(r, 59, &part[i])) return false;
    *out = (int32_t)(part[0] * 3600 + part[1] * 60 + part[2]);
    if (minus) *out = -*out;
    return true;
}

static bool change_day(reader *r, kvm_zone_day *d)
{
    *d = (kvm_zone_day){.kind = 'D', .time = 2 * 3600};
    if (!take(r, ',')) return false;
    if (take(r, 'M')) {
        d->kind = 'M';
        if (!number(r, 12, &d->month) || d->month < 1 || !take(r, '.') ||
            !number(r, 5, &d->week) || d->week < 1 || !take(r, '.') ||
            !number(r, 6, &d->day))
            return false;
    } else {
        if (take(r, 'J')) d->kind = 'J';
        if (!number(r, 365, &d->day) || (d->kind == 'J' && d->day < 1)) return false;
    }
    return !take(r, '/') || clock_time(r, 167, &d->time);
}

/* POSIX counts west as positive. */
static bool read_rule(kvm_zone *z, kvm_str text)
{
    reader r = {text.at, text.at + text.len};
    if (!skip_name(&r) || !clock_time(&r, 24, &z->winter_offset)) return false;
    z->winter_offset = -z->winter_offset;
    z->rule = true;
    if (r.at == r.end) return true;
    z->summer = true;
    z->summer_offset = z->winter_offset + 3600;
    if (!skip_name(&r)) return false;
    if (r.at < r.end && *r.at != ',') {
        if (!clock_time(&r, 24, &z->summer_offset)) return false;
        z->summer_offset = -z->summer_offset;
    }
    return change_day(&r, &z->begins) && change_day(&r, &z->ends) && r.at == r.end;
}

/* the wall time of a change in that year, by the clock before it */
static int64_t change_in(const kvm_zone_day *d, int year)
{
    int64_t day = kvm_days_of(year, 1, 1) + d->day;
    if (d->kind == 'J') {
        const bool leap = kvm_days_of(year, 3, 1) - kvm_days_of(year, 2, 1) == 29;
        day -= d->day < 60 || !leap;
    } else if (d->kind == 'M') {
        const int64_t first = kvm_days_of(year, d->month, 1);
        const int64_t next = d->month == 12 ? kvm_days_of(year + 1, 1, 1)
                                            : kvm_days_of(year, d->month + 1, 1);
        day = first + (d->day - kvm_weekday_of(first) + 7) % 7 +
              INT64_C(7) * (d->week - 1);
        while (day >= next) day -= 7; /* the fifth is the last */
    }
    return day * DAY + d->time;
}

static int32_t offset_by_rule(const kvm_zone *z, int64_t t)
{
    int year, month, day;
    if (!z->summer) return z->winter_offset;
    const int64_t local = t + z->winter_offset;
    kvm_date_of((local >= 0 ? local : local - DAY + 1) / DAY, &year, &month, &day);
    const int64_t begins = change_in(&z->begins, year) - z->winter_offset;
    const int64_t ends = change_in(&z->ends, year) - z->summer_offset;
    const bool summer = begins < ends ? t >= begins && t < ends
                                      : t >= begins || t < ends; /* in the south */
    return summer ? z->summer_offset : z->winter_offset;
}

/* ---- the file ---- */

static int64_t big_endian(const char *at, int bytes)
{
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++) v = v << 8 | (unsigned char)at[i];
    return bytes == 4 ? (int64_t)(int32_t)(uint32_t)v : (int64_t)v;
}

/* the counts of a header, in its order */
enum { UTC_MARKS, STANDARD_MARKS, LEAPS, TIMES, TYPES, CHARS, COUNTS };

/* *bytes: of the block of data behind the header, with times of `width` bytes */
static bool read_header(kvm_str file, int width, int64_t n[COUNTS], int64_t *bytes)
{
    if (file.len < HEADER || memcmp(file.at, "TZif", 4) != 0) return false;
    for (ptrdiff_t i = 0; i < COUNTS; i++) {
        n[i] = big_endian(file.at + 20 + 4 * i, 4);
        if (n[i] < 0 || n[i] > TRANSITIONS_MOST) return false;
    }
    *bytes = n[TIMES] * (width + 1) + n[TYPES] * 6 + n[CHARS] + n[LEAPS] * (width + 4) +
             n[STANDARD_MARKS] + n[UTC_MARKS];
    return n[TYPES] > 0 && n[TYPES] <= 256 && file.len - HEADER >= *bytes;
}

static bool read_type(const char *types, int64_t count, int64_t i, int32_t *offset)
{
    if (i >= count) return false;
    *offset = (int32_t)big_endian(types + 6 * i, 4);
    return *offset >= -OFFSET_MOST && *offset <= OFFSET_MOST;
}

static bool read_transitions(kvm_zone *z, const char *data, const int64_t n[COUNTS],
                             int64_t *at, int32_t *offsets)
{
    const char *which = data + 8 * n[TIMES], *types = which + n[TIMES];
    if (!read_type(types, n[TYPES], 0, &z->first)) return false;
    for (int64_t i = 0; i < n[TIMES]; i++) {
        at[i] = big_endian(data + 8 * i, 8);
        if ((i && at[i] <= at[i - 1]) ||
            !read_type(types, n[TYPES], (unsigned char)which[i], &offsets[i]))
            return false;
    }
    z->at = at;
    z->offsets = offsets;
    z->count = n[TIMES];
    return true;
}

static kvm_status malformed(kvm_str name, kvm_err *err)
{
    return kvm_fail(err, KVM_FORMAT,
                    "zone %.*s: its file is no time zone of version 2 or later "
                    "(TZif); install the package tzdata anew",
                    KVM_STR_ARG(name));
}

/* Version 2 and later: a block with times of 32 bits, which is passed over, one of 64,
 * and the rule between two newlines. */
kvm_status kvm_zone_parse(kvm_zone *z, kvm_arena *keep, kvm_str bytes, kvm_str name,
                          kvm_err *err)
{
    int64_t n[COUNTS], size;
    kvm_zone out = {0};
    kvm_str rule, rest;
    if (!read_header(bytes, 4, n, &size) || bytes.at[4] < '2')
        return malformed(name, err);
    const kvm_str second = kvm_str_slice(bytes, HEADER + (ptrdiff_t)size, bytes.len);
    if (!read_header(second, 8, n, &size)) return malformed(name, err);
    if (n[LEAPS])
        return kvm_fail(err, KVM_UNSUPPORTED,
                        "zone %.*s counts leap seconds; use the one without",
                        KVM_STR_ARG(name));
    int64_t *at = kvm_new(keep, int64_t, n[TIMES] + 1);
    int32_t *offsets = kvm_new(keep, int32_t, n[TIMES] + 1);
    if (!at || !offsets) return kvm_nomem(err, keep);
    const kvm_str foot = kvm_str_slice(second, HEADER + (ptrdiff_t)size, second.len);
    if (!read_transitions(&out, second.at + HEADER, n, at, offsets) ||
        !kvm_str_starts(foot, KVM_STR("\n")) ||
        !kvm_str_cut(kvm_str_slice(foot, 1, foot.len), '\n', &rule, &rest) ||
        (rule.len && !read_rule(&out, rule)))
        return malformed(name, err);
    *z = out;
    return KVM_OK;
}

/* Letters, digits, _ + - in parts between slashes: nothing that leads out of the
 * folder. */
static bool is_name(kvm_str name)
{
    bool part = false;
    for (ptrdiff_t i = 0; i < name.len; i++) {
        const char c = name.at[i];
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                            (c >= '0' && c <= '9') || c == '_' || c == '+' || c == '-';
        if (!letter && (c != '/' || !part)) return false;
        part = letter;
    }
    return part && name.len < 64;
}

kvm_status kvm_zone_read(kvm_zone *z, kvm_arena *keep, kvm_str name, kvm_err *err)
{
    const char *set = getenv("TZDIR");
    const char *dir = set && *set ? set : "/usr/share/zoneinfo";
    kvm_str bytes;
    if (!is_name(name))
        return kvm_fail(err, KVM_USAGE,
                        "\"%s\" is no name of a time zone: Europe/Berlin is one",
                        kvm_quote(name).at);
    *z = (kvm_zone){.rule = true};
    if (kvm_str_eq(name, KVM_STR("UTC"))) return KVM_OK;
    const kvm_str path = kvm_path_join(keep, kvm_str_of(dir), name);
    if (!path.at) return kvm_nomem(err, keep);
    if (!kvm_path_exists(path) || kvm_path_is_dir(path))
        return kvm_fail(err, KVM_NOTFOUND,
                        "there is no time zone %.*s in %s (package tzdata)",
                        KVM_STR_ARG(name), dir);
    TRY(kvm_file_read(&bytes, keep, path, FILE_MOST, err));
    return kvm_zone_parse(z, keep, bytes, name, err);
}

/* ---- asking ---- */

int32_t kvm_zone_offset(const kvm_zone *z, int64_t instant)
{
    ptrdiff_t low = 0, high = z->count; /* the first transition after it */
    while (low < high) {
        const ptrdiff_t mid = low + (high - low) / 2;
        if (z->at[mid] <= instant)
            low = mid + 1;
        else
            high = mid;
    }
    if (low == z->count && z->rule) return offset_by_rule(z, instant);
    return low ? z->offsets[low - 1] : z->first;
}

/* Offsets more than a day before and after are those on both sides of a change near by.
 * The earlier instant comes first: by the offset before, when it still holds. */
int64_t kvm_zone_instant(const kvm_zone *z, int64_t wall)
{
    const int32_t before = kvm_zone_offset(z, wall - DAY - OFFSET_MOST / 2);
    const int32_t after = kvm_zone_offset(z, wall + DAY + OFFSET_MOST / 2);
    int64_t low = wall - after, high = wall - before;
    if (kvm_zone_offset(z, high) == before) return high;
    if (kvm_zone_offset(z, low) == after) return low;
    if (low > high) return low;
    const int32_t here = kvm_zone_offset(z, low);
    while (high - low > 1) { /* the change lies in (low, high] */
        const int64_t mid = low + (high - low) / 2;
        if (kvm_zone_offset(z, mid) == here)
            low = mid;
        else
            high = mid;
    }
    return high;
}
