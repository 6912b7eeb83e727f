/* cpu_plain.c - the cpu backend for any machine: vectors of four, no FMA. */
#define CPU_TABLE kvm_backend__cpu_plain
#define CPU_ISA "plain"
#define CPU_SUPPORTED true
#include "kernels/cpu_table.h"
