/* clock.h - time for measuring (monotonic) and time for people (UTC, RFC 3339). */
#ifndef KVM_BASE_CLOCK_H
#define KVM_BASE_CLOCK_H

#include <time.h>

#include "base/str.h"

double kvm_seconds(struct timespec t); /* of a clock, or a file's times */
struct rusage;
double kvm_cpu_seconds(const struct rusage *u); /* user and system */
double kvm_now(void);  /* seconds, CLOCK_MONOTONIC; differences only */
double kvm_wall(void); /* seconds since 1970, CLOCK_REALTIME */
void kvm_wall_text(double wall, char out[32]); /* 2026-01-31T12:00:00.123Z */
void kvm_sleep(double seconds);

#endif
