/* cpu_avx2.c - the cpu backend for x86-64-v3: AVX2, FMA, F16C. */
/* F16C is older than AVX2 and in every CPU that has it; clang 14 cannot ask for it. */
#define CPU_TABLE kvm_backend__cpu_avx2
#define CPU_ISA "avx2"
#define CPU_SUPPORTED                                                                  \
    (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&                \
     __builtin_cpu_supports("bmi2"))
#include "kernels/cpu_table.h"
