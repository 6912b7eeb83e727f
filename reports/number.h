/* number.h - how a figure is written for people: units everywhere, three or four digits
 * that mean something, a true minus sign, no-break spaces. One table of formats serves
 * terminal, page and charts. */
#ifndef KVM_REPORTS_NUMBER_H
#define KVM_REPORTS_NUMBER_H

#include "reports/stats.h"

/* X(NAME, "key in documents") */
#define KVM_FORMATS(X)                                                                 \
    X(NUMBER, "number")   /* 0.1234  12.3  1.2e-6 */                                   \
    X(PERCENT, "percent") /* of a fraction: 97.6 % */                                  \
    X(POINTS, "points")   /* a difference of fractions: -2.4 pp */                     \
    X(R2, "r2")           /* 0.812 */                                                  \
    X(RATIO, "ratio")     /* 6.3x */                                                   \
    X(SECONDS, "seconds") /* 1.24 s  13.5 ms  2 h 03 min */                            \
    X(BYTES, "bytes")     /* 3.2 MiB */                                                \
    X(COUNT, "count")     /* 32,768 */                                                 \
    X(TOKENS, "tokens")   /* 32K on an axis; 1,500 */                                  \
    X(RATE, "rate")       /* 1.35 M  (per second; the unit stands in the heading) */   \
    X(S, "s")             /* of seconds, always in this unit: 7,380 s */               \
    X(MS, "ms")           /* of seconds: 7,380,000 ms */                               \
    X(US, "us")           /* of seconds: 13.5 µs */

typedef enum kvm_format {
#define X(NAME, key) KVM_FORMAT_##NAME,
    KVM_FORMATS(X)
#undef X
        KVM_FORMAT_KINDS
} kvm_format;

bool kvm_format_find(kvm_str key, kvm_format *out);

/* A number in words, by value: for text that is written at once. */
typedef struct kvm_numeral {
    char at[96]; /* NUL-terminated */
} kvm_numeral;

/* v in words; an en dash when v is not finite */
kvm_numeral kvm_numeral_of(double v, kvm_format format);
/* the same for an axis or a label: "50 %" and "1 s" for 50.0 % and 1.00 s */
kvm_numeral kvm_numeral_tick(double v, kvm_format format);
/* the unit in which v seconds are written: KVM_FORMAT_S, _MS or _US */
kvm_format kvm_seconds_unit(double v);
/* "[95.0, 99.1]", in the unit of e's value; empty when e has no interval */
kvm_numeral kvm_numeral_interval(kvm_est e, kvm_format format);

/* the first two as strings in a; at NULL when it is spent */
kvm_str kvm_number(kvm_arena *a, double v, kvm_format format);
kvm_str kvm_tick(kvm_arena *a, double v, kvm_format format);

/* "1 item", "400 items"; a number that is not finite: "items not counted" */
kvm_str kvm_counted(kvm_arena *a, double n, const char *what);

/* kvm_est_text - value with its interval: "97.6 % [95.0, 99.1]"; when missing, the
 * reason in brackets: "not measured (no items)" */
kvm_str kvm_est_text(kvm_arena *a, kvm_est e, kvm_format format);

#endif
