#include "base/clock.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

double kvm_seconds(struct timespec t)
{
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double kvm_cpu_seconds(const struct rusage *u)
{
    return (double)(u->ru_utime.tv_sec + u->ru_stime.tv_sec) +
           1e-6 * (double)(u->ru_utime.tv_usec + u->ru_stime.tv_usec);
}

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return kvm_seconds(t);
}

double kvm_now(void)
{
    return seconds_of(CLOCK_MONOTONIC);
}

double kvm_wall(void)
{
    return seconds_of(CLOCK_REALTIME);
}

void kvm_wall_text(double wall, char out[32])
{
    /* beyond the years 0001 to 9999 the format has no meaning */
    const double first = -62135596800.0, last = 253402300799.0;
    if (!(wall >= first)) wall = first;
    if (wall > last) wall = last;
    double whole = floor(wall);
    int ms = (int)floor((wall - whole) * 1000.0 + 0.5);
    if (ms == 1000) {
        ms = 0;
        whole += 1.0;
    }
    const time_t t = (time_t)whole;
    struct tm tm;
    gmtime_r(&t, &tm);
    char text[96]; /* as wide as the compiler fears; 24 bytes are written */
    snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ",
             tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min,
             tm.tm_sec, ms);
    memcpy(out, text, 31);
    out[31] = 0;
}

void kvm_sleep(double seconds)
{
    if (!(seconds > 0.0)) return;
    if (seconds > 1e9) seconds = 1e9;
    struct timespec t = {.tv_sec = (time_t)seconds};
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    while (nanosleep(&t, &t) && errno == EINTR) continue;
}
