#include "reports/number.h"

#include <stdio.h>
#include <string.h>

#define NBSP "\xc2\xa0"
#define MINUS "\xe2\x88\x92"
#define DASH "\xe2\x80\x93"
#define TIMES "\xc3\x97"

static const char *const format_keys[KVM_FORMAT_KINDS] = {
#define X(NAME, key) key,
    KVM_FORMATS(X)
#undef X
};

bool kvm_format_find(kvm_str key, kvm_format *out)
{
    for (int f = 0; f < KVM_FORMAT_KINDS; f++)
        if (kvm_str_eq(key, kvm_str_of(format_keys[f])))
            return *out = (kvm_format)f, true;
    return false;
}

/* Digits after the point so that about `digits` significant ones are shown, of the
 * value as it will be rounded: 0.9996 is written 1.00. */
static int decimals(double v, int digits)
{
    const double size = fabs(v);
    double unit = 1, half = 0.5;
    for (int i = 0; i < digits; i++) half /= 10;
    if (size + half < 1) return digits;
    int whole = 1;
    while (whole < digits && size + 10 * half * unit >= 10 * unit) {
        unit *= 10;
        whole++;
    }
    return digits - whole;
}

typedef struct piece {
    char at[64];
} piece;

static piece general(double v)
{
    piece p;
    const double size = fabs(v);
    if (v == 0)
        snprintf(p.at, sizeof p.at, "0");
    else if (size < 1e-3 || size >= 1e6)
        snprintf(p.at, sizeof p.at, "%.2e", v);
    else
        snprintf(p.at, sizeof p.at, "%.*f", size < 0.1 ? 4 : decimals(v, 3), v);
    return p;
}

static piece grouped(double v)
{
    char digits[32];
    piece p;
    if (fabs(v) >= 1e15) {
        snprintf(p.at, sizeof p.at, "%.3e", v);
        return p;
    }
    int n = snprintf(digits, sizeof digits, "%.0f", v), to = 0;
    for (int i = 0; i < n && to < (int)sizeof p.at - 2; i++) {
        p.at[to++] = digits[i];
        const int left = n - 1 - i;
        if (left > 0 && left % 3 == 0 && digits[i] != '-') p.at[to++] = ',';
    }
    p.at[to] = 0;
    return p;
}

static piece kibi(double v)
{
    piece p = grouped(v / 1024);
    const size_t n = strlen(p.at);
    p.at[n] = 'K';
    p.at[n + 1] = 0;
    return p;
}

typedef struct unit {
    double size;
    const char *name;
} unit;

/* v in the largest unit (they stand in falling order) that leaves at least 1. */
static piece in_units(double v, const unit *units, int count)
{
    piece p;
    int u = 0;
    /* 999.7 of a unit would be shown as 1000 of it: the next one starts a bit sooner */
    while (u < count - 1 && fabs(v) < units[u].size * 0.9995) u++;
    const double scaled = v / units[u].size;
    if (fabs(scaled) >= 1e6)
        snprintf(p.at, sizeof p.at, "%.2e%s", scaled, units[u].name);
    else
        snprintf(p.at, sizeof p.at, "%.*f%s", v == 0 ? 0 : decimals(scaled, 3), scaled,
                 units[u].name);
    return p;
}

static piece seconds(double v)
{
    static const unit small[] = {
        {1, NBSP "s"}, {1e-3, NBSP "ms"}, {1e-6, NBSP "µs"}, {1e-9, NBSP "ns"}};
    piece p;
    const double whole = round(fabs(v));
    if (whole >= 36e5 || whole < 120) return in_units(v, small, whole >= 1 ? 1 : 4);
    const char *sign = v < 0 ? "-" : "";
    const int total = (int)whole;
    if (total >= 3600)
        snprintf(p.at, sizeof p.at, "%s%d" NBSP "h" NBSP "%02d" NBSP "min", sign,
                 total / 3600, total % 3600 / 60);
    else
        snprintf(p.at, sizeof p.at, "%s%d" NBSP "min" NBSP "%02d" NBSP "s", sign,
                 total / 60, total % 60);
    return p;
}

/* seconds in a unit that does not follow from v: beside others of one table */
static piece in_one_unit(double v, double size, const char *name)
{
    const double scaled = v / size;
    piece p = fabs(scaled) >= 1000 ? grouped(scaled) : general(scaled);
    const size_t n = strlen(p.at);
    snprintf(p.at + n, sizeof p.at - n, "%s", name);
    return p;
}

static piece bytes(double v)
{
    static const unit units[] = {{1099511627776.0, NBSP "TiB"},
                                 {1073741824.0, NBSP "GiB"},
                                 {1048576.0, NBSP "MiB"},
                                 {1024.0, NBSP "KiB"},
                                 {1.0, NBSP "B"}};
    piece p;
    if (fabs(v) >= 1023.5) return in_units(v, units, 5);
    snprintf(p.at, sizeof p.at, "%.0f" NBSP "B", v);
    return p;
}

static piece rate(double v)
{
    static const unit units[] = {
        {1e12, NBSP "T"}, {1e9, NBSP "G"}, {1e6, NBSP "M"}, {1e3, NBSP "k"}, {1, ""}};
    return in_units(v, units, 5);
}

static piece fixed(double v, int places, const char *unit_name)
{
    piece p;
    if (fabs(v) >= 1e7)
        snprintf(p.at, sizeof p.at, "%.2e%s", v, unit_name);
    else
        snprintf(p.at, sizeof p.at, "%.*f%s", places, v, unit_name);
    return p;
}

/* unit false: the ends of an interval whose value carries the unit */
static piece piece_of(double v, kvm_format format, bool unit_shown)
{
    switch (format) {
    case KVM_FORMAT_PERCENT:
        return fixed(100 * v, 1, unit_shown ? NBSP "%" : "");
    case KVM_FORMAT_POINTS: {
        piece p = fixed(100 * v, 1, unit_shown ? NBSP "pp" : "");
        if (v > 0) {
            memmove(p.at + 1, p.at, strlen(p.at) + 1);
            p.at[0] = '+';
        }
        return p;
    }
    case KVM_FORMAT_R2:
        return fixed(v, fabs(v) < 10 ? 3 : 1, "");
    case KVM_FORMAT_RATIO:
        return fixed(v, decimals(v, 3) > 2 ? 2 : decimals(v, 3),
                     unit_shown ? TIMES : "");
    case KVM_FORMAT_SECONDS:
        return seconds(v);
    case KVM_FORMAT_S:
        return in_one_unit(v, 1, unit_shown ? NBSP "s" : "");
    case KVM_FORMAT_MS:
        return in_one_unit(v, 1e-3, unit_shown ? NBSP "ms" : "");
    case KVM_FORMAT_US:
        return in_one_unit(v, 1e-6, unit_shown ? NBSP "µs" : "");
    case KVM_FORMAT_BYTES:
        return bytes(v);
    case KVM_FORMAT_COUNT:
        return grouped(v);
    case KVM_FORMAT_TOKENS:
        return fmod(v, 1024) == 0 && v != 0 ? kibi(v) : grouped(v);
    case KVM_FORMAT_RATE:
        return rate(v);
    case KVM_FORMAT_NUMBER:
    case KVM_FORMAT_KINDS:
        break;
    }
    return general(v);
}

/* "-0.00" reads as a fault: a sign stands only before a digit above zero */
static const char *without_minus(const char *text, bool *negative)
{
    *negative = text[0] == '-' && strpbrk(text, "123456789");
    return text[0] == '-' ? text + 1 : text;
}

/* "1.00e-06" as "1.00e-6" */
static void tidy_exponent(char *text)
{
    char *from = strchr(text, 'e');
    if (!from || !strchr("+-", from[1]) || !from[1]) return;
    char *to = ++from;
    if (*from == '-') to++;
    from++;
    while (*from == '0' && from[1] >= '0' && from[1] <= '9') from++;
    memmove(to, from, strlen(from) + 1);
}

/* "1.50 s" as "1.5 s", "1.00 s" as "1 s" */
static void drop_zeros(char *text)
{
    char *point = strchr(text, '.');
    if (!point) return;
    char *end = point + 1;
    while (*end >= '0' && *end <= '9') end++;
    char *keep = end;
    while (keep[-1] == '0') keep--;
    if (keep - 1 == point) keep--;
    memmove(keep, end, strlen(end) + 1);
}

static kvm_numeral numeral(double v, kvm_format format, bool unit_shown,
                           bool short_form)
{
    kvm_numeral out;
    bool negative = v < 0;
    if (!isfinite(v) || fabs(v) > 1e300) { /* a percentage of it would overflow */
        snprintf(out.at, sizeof out.at, "%s",
                 !isfinite(v) ? DASH
                 : negative   ? "< " MINUS "1e300"
                              : "> 1e300");
        return out;
    }
    piece p = piece_of(v, format, unit_shown);
    tidy_exponent(p.at);
    if (short_form) drop_zeros(p.at);
    const char *digits = without_minus(p.at, &negative);
    snprintf(out.at, sizeof out.at, "%s%s", negative ? MINUS : "", digits);
    return out;
}

kvm_numeral kvm_numeral_of(double v, kvm_format format)
{
    return numeral(v, format, true, false);
}

kvm_numeral kvm_numeral_tick(double v, kvm_format format)
{
    return numeral(v, format, true, true);
}

kvm_format kvm_seconds_unit(double v)
{
    const double size = fabs(v);
    return size >= 0.5         ? KVM_FORMAT_S
           : size >= 0.9995e-3 ? KVM_FORMAT_MS
                               : KVM_FORMAT_US;
}

kvm_numeral kvm_numeral_interval(kvm_est e, kvm_format format)
{
    kvm_numeral out = {""};
    if (!kvm_est_has_interval(e)) return out;
    if (format == KVM_FORMAT_SECONDS && fabs(e.value) < 119.5)
        format = kvm_seconds_unit(e.value);
    const kvm_numeral low = numeral(e.low, format, false, false);
    const kvm_numeral high = numeral(e.high, format, false, false);
    snprintf(out.at, sizeof out.at, "[%.40s, %.40s]", low.at, high.at);
    return out;
}

kvm_str kvm_number(kvm_arena *a, double v, kvm_format format)
{
    return kvm_str_fmt(a, "%s", kvm_numeral_of(v, format).at);
}

kvm_str kvm_tick(kvm_arena *a, double v, kvm_format format)
{
    return kvm_str_fmt(a, "%s", kvm_numeral_tick(v, format).at);
}

kvm_str kvm_counted(kvm_arena *a, double n, const char *what)
{
    if (!isfinite(n)) return kvm_str_fmt(a, "%ss not counted", what);
    return kvm_str_fmt(a, "%s %s%s", kvm_numeral_of(n, KVM_FORMAT_COUNT).at, what,
                       n == 1 ? "" : "s");
}

kvm_str kvm_est_text(kvm_arena *a, kvm_est e, kvm_format format)
{
    if (!kvm_est_has(e))
        return e.note.len ? kvm_str_fmt(a, "not measured (%.*s)", KVM_STR_ARG(e.note))
                          : KVM_STR("not measured");
    const kvm_numeral interval = kvm_numeral_interval(e, format);
    return kvm_str_fmt(a, "%s%s%s", kvm_numeral_of(e.value, format).at,
                       *interval.at ? " " : "", interval.at);
}
