/* cpu_table.h - the op table of one instruction set (template): the includer defines
 * CPU_TABLE (its symbol), CPU_ISA and CPU_SUPPORTED, and CPU_LINEAR_TOLERANCE where
 * products round more than ops.def allows. */
#include "kernels/attention.h"
#include "kernels/attention_back.h"
#include "kernels/backward.h"
#include "kernels/conv.h"
#include "kernels/conv_back.h"
#include "kernels/cpu.h"
#include "kernels/delta.h"
#include "kernels/gemm.h"
#include "kernels/index.h"
#include "kernels/index_back.h"
#include "kernels/moments.h"
#include "kernels/recur_back.h"
#include "kernels/rows.h"
#include "kernels/scan.h"

#ifndef CPU_LINEAR_TOLERANCE
#define CPU_LINEAR_TOLERANCE 0
#endif

static const char *isa(void)
{
    return CPU_ISA;
}

static bool supported(void)
{
    return CPU_SUPPORTED;
}

const kvm_backend CPU_TABLE = {
    .name = "cpu",
    .device = KVM_CPU,
    .scratch_bytes = (size_t)1 << 30,
    .scratch_per_thread = (size_t)1 << 26,
    .isa = isa,
    .supported = supported,
    .linear_tolerance = CPU_LINEAR_TOLERANCE,
    .embed = embed,
    .rmsnorm = rmsnorm,
    .linear = linear,
    .rope = rope,
    .attention = attention,
    .index_score = index_score,
    .silu_mul = silu_mul,
    .logprob = logprob,
    .gram = gram,
    .cross = cross,
    .cholesky = kvm_cpu__cholesky,
    .cholesky_solve = kvm_cpu__cholesky_solve,
    .eigh = kvm_cpu__eigh,
    .gemm64 = kvm_cpu__gemm64,
    .gemm32 = kvm_cpu__gemm32,
    .sigmoid_mul = sigmoid_mul,
    .conv = conv,
    .delta = delta,
    .scan = scan,
    .relu2 = relu2,
    .rmsnorm_back = rmsnorm_back,
    .linear_back = linear_back,
    .attention_back = attention_back,
    .silu_mul_back = silu_mul_back,
    .sigmoid_mul_back = sigmoid_mul_back,
    .relu2_back = relu2_back,
    .kl_back = kl_back,
    .index_score_back = index_score_back,
    .conv_back = conv_back,
    .delta_back = delta_back,
    .scan_back = scan_back,
};
