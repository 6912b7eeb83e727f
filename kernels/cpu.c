#include "kernels/cpu.h"

#include "kernels/ref.h"

static const char *isa(const kvm_compute *c)
{
    (void)c;
    return "none";
}

const kvm_backend kvm_backend__cpu = {
    .name = "cpu",
    .device = KVM_CPU,
    .scratch_bytes = (size_t)1 << 30,
    .isa = isa,
    .embed = kvm_ref__embed,
    .rmsnorm = kvm_ref__rmsnorm,
    .linear = kvm_ref__linear,
    .rope = kvm_ref__rope,
    .attention = kvm_ref__attention,
    .silu_mul = kvm_ref__silu_mul,
    .logprob = kvm_ref__logprob,
    .gram = kvm_ref__gram,
    .cross = kvm_ref__cross,
    .cholesky = kvm_cpu__cholesky,
    .cholesky_solve = kvm_cpu__cholesky_solve,
    .eigh = kvm_cpu__eigh,
    .gemm64 = kvm_cpu__gemm64,
    .gemm32 = kvm_cpu__gemm32,
};
