/* cpu.h - the parts of the cpu backend: algebra through OpenBLAS. */
#ifndef KVM_KERNELS_CPU_H
#define KVM_KERNELS_CPU_H

#include "kernels/backend.h"

/* what x86-64-v4 asks of a machine */
#define CPU_HAS_AVX512                                                                 \
    (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&        \
     __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&       \
     __builtin_cpu_supports("avx512vl"))

kvm_status kvm_cpu__cholesky(kvm_compute *c, kvm_in a, kvm_err *err);
kvm_status kvm_cpu__cholesky_solve(kvm_compute *c, kvm_in factor, kvm_in b,
                                   kvm_err *err);
kvm_status kvm_cpu__eigh(kvm_compute *c, kvm_in a, double *w, kvm_err *err);
kvm_status kvm_cpu__gemm64(kvm_compute *c, kvm_in out, kvm_in a, kvm_in b,
                           kvm_err *err);
kvm_status kvm_cpu__gemm32(kvm_compute *c, kvm_in out, kvm_in a, kvm_in b, double beta,
                           kvm_err *err);

#endif
