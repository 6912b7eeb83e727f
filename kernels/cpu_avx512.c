/* cpu_avx512.c - the cpu backend for x86-64-v4: AVX-512 F, BW, CD, DQ, VL. Twice the
 * registers of twice the width: the same peak as AVX2 on cores that split a 512-bit
 * operation, with half the instructions. */
#define CPU_TABLE kvm_backend__cpu_avx512
#define CPU_ISA "avx512"
#define CPU_SUPPORTED CPU_HAS_AVX512
#include "kernels/cpu_table.h"
