/* bench.h - what the benches share: giving up, clocks, medians, the machine's peak. */
#ifndef KVM_TESTS_BENCH_H
#define KVM_TESTS_BENCH_H

#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "kernels/ops.h"

static inline void die(const char *what, const char *why)
{
    fprintf(stderr, "bench: %s: %s\n", what, why);
    exit(1);
}

/* call is given &err */
#define OK(call)                                                                       \
    do {                                                                               \
        kvm_err err = {0};                                                             \
        if (call) die(#call, err.msg);                                                 \
    } while (0)

/* argument i as a number of 0 .. 2^20, or `other` where there are fewer */
static inline int number_of(int argc, char **argv, int i, int other)
{
    int64_t n = other;
    if (i < argc && (!kvm_str_to_i64(kvm_str_of(argv[i]), &n) || n < 0 || n > 1 << 20))
        die(argv[i], "not a number of 0 to 1048576");
    return (int)n;
}

static inline int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* sorts x */
static inline double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_size);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

/* seconds; with one thread the process's own, so that a busy machine measures too */
static inline double seconds_of(const kvm_compute *c)
{
    struct timespec t;
    if (kvm_compute_threads(c) > 1) return kvm_now();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return kvm_seconds(t);
}

__attribute__((target("avx2,fma"))) static inline void
fma_part(void *ctx, ptrdiff_t part, int thread)
{
    (void)thread;
    __m256 acc[12];
    for (int i = 0; i < 12; i++) acc[i] = _mm256_set1_ps((float)i);
    const __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);
    for (int i = 0; i < 1000000; i++)
        for (int k = 0; k < 12; k++) acc[k] = _mm256_fmadd_ps(acc[k], x, y);
    for (int i = 1; i < 12; i++) acc[0] = _mm256_add_ps(acc[0], acc[i]);
    ((volatile float *)ctx)[16 * part] = _mm256_cvtss_f32(acc[0]);
}

/* flop/s of all threads together with 8-wide FMAs, now */
static inline double fma_peak(const kvm_compute *c)
{
    float out[16 * 64];
    const int threads = kvm_compute_threads(c);
    const double from = seconds_of(c);
    kvm_pool_run(kvm_compute_pool(c), threads, fma_part, out);
    return 1e6 * 12 * 16 * threads / (seconds_of(c) - from);
}

#endif
