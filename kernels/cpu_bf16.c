/* cpu_bf16.c - cpu_avx512.c where the machine also multiplies pairs of bf16 (AVX-512
 * BF16).
 *
 * Products of more than DOT_MOST tokens with bf16 weights round their activations to
 * bf16, for twice the peak; all else, products of fewer tokens too, is what it is
 * there. Less exact is for the user to choose: "cpu" never means this table, only
 * "cpu-bf16" does. */
#define CPU_TABLE kvm_backend__cpu_bf16
#define CPU_ISA "bf16"
#define CPU_SUPPORTED (CPU_HAS_AVX512 && __builtin_cpu_supports("avx512bf16"))
/* An activation moves by 2^-9 of itself. These errors add as the terms of a sum do when
 * they are of either sign, so the largest stays near 2^-9 of the largest entry; twice
 * that leaves room for sums that cancel. Of rounded activations the product is as exact
 * as ops.def says (tests/conform/test_pairs.c). */
#define CPU_LINEAR_TOLERANCE 0x1p-8
#include "kernels/cpu_table.h"
