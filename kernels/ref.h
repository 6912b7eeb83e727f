/* ref.h - the reference ops, which other backends use where speed does not matter. */
#ifndef KVM_KERNELS_REF_H
#define KVM_KERNELS_REF_H

#include "kernels/backend.h"

kvm_status kvm_ref__embed(kvm_compute *c, kvm_in y, const int32_t *ids, kvm_in w,
                          kvm_err *err);
kvm_status kvm_ref__rmsnorm(kvm_compute *c, kvm_in y, kvm_in x, kvm_in w,
                            ptrdiff_t group, double eps, bool plus_one, kvm_err *err);
kvm_status kvm_ref__linear(kvm_compute *c, kvm_in y, kvm_in x, const kvm_weight *w,
                           bool add, kvm_err *err);
kvm_status kvm_ref__rope(kvm_compute *c, kvm_in x, const int32_t *pos,
                         const kvm_rope *r, bool inverse, kvm_err *err);
kvm_status kvm_ref__attention(kvm_compute *c, kvm_in y, kvm_in q, kvm_in k, kvm_in v,
                              ptrdiff_t first, ptrdiff_t window, const kvm_mask *mask,
                              double scale, kvm_err *err);
kvm_status kvm_ref__index_score(kvm_compute *c, kvm_in y, kvm_in q, kvm_in k, kvm_in w,
                                double scale, kvm_err *err);
kvm_status kvm_ref__silu_mul(kvm_compute *c, kvm_in y, kvm_in gate, kvm_in up,
                             kvm_err *err);
kvm_status kvm_ref__logprob(kvm_compute *c, double *out, kvm_in logits,
                            const int32_t *targets, kvm_err *err);
kvm_status kvm_ref__gram(kvm_compute *c, kvm_in g, kvm_in x, kvm_err *err);
kvm_status kvm_ref__cross(kvm_compute *c, kvm_in out, kvm_in x, kvm_in y, kvm_err *err);
kvm_status kvm_ref__cholesky(kvm_compute *c, kvm_in a, kvm_err *err);
kvm_status kvm_ref__cholesky_solve(kvm_compute *c, kvm_in factor, kvm_in b,
                                   kvm_err *err);
kvm_status kvm_ref__eigh(kvm_compute *c, kvm_in a, double *w, kvm_err *err);
kvm_status kvm_ref__gemm64(kvm_compute *c, kvm_in out, kvm_in a, kvm_in b,
                           kvm_err *err);
kvm_status kvm_ref__gemm32(kvm_compute *c, kvm_in out, kvm_in a, kvm_in b, double beta,
                           kvm_err *err);
kvm_status kvm_ref__sigmoid_mul(kvm_compute *c, kvm_in y, kvm_in gate, kvm_in up,
                                kvm_err *err);
kvm_status kvm_ref__conv(kvm_compute *c, kvm_in y, kvm_in x, kvm_in w,
                         const float *bias, kvm_in window, kvm_err *err);
kvm_status kvm_ref__delta(kvm_compute *c, kvm_in o, kvm_in q, kvm_in k, kvm_in v,
                          kvm_in g, kvm_in beta, kvm_in state, kvm_err *err);
kvm_status kvm_ref__scan(kvm_compute *c, kvm_in o, kvm_in q, kvm_in k, kvm_in v,
                         kvm_in dt, kvm_in rate, kvm_in skip, kvm_in state,
                         kvm_err *err);
kvm_status kvm_ref__conv_back(kvm_compute *c, kvm_in dx, kvm_in dwindow, kvm_in x,
                              kvm_in w, const float *bias, kvm_in window, kvm_in dy,
                              kvm_err *err);
kvm_status kvm_ref__delta_back(kvm_compute *c, const kvm_delta_rows *d, kvm_in dstate,
                               const kvm_delta_rows *in, kvm_in state, kvm_in dy,
                               kvm_err *err);
kvm_status kvm_ref__scan_back(kvm_compute *c, const kvm_scan_rows *d, kvm_in dstate,
                              const kvm_scan_rows *in, kvm_in rate, kvm_in skip,
                              kvm_in state, kvm_in dy, kvm_err *err);
kvm_status kvm_ref__relu2(kvm_compute *c, kvm_in y, kvm_in x, kvm_err *err);
kvm_status kvm_ref__rmsnorm_back(kvm_compute *c, kvm_in dx, kvm_in x, kvm_in w,
                                 kvm_in dy, ptrdiff_t group, double eps, bool plus_one,
                                 bool add, kvm_err *err);
kvm_status kvm_ref__linear_back(kvm_compute *c, kvm_in dx, kvm_in dy,
                                const kvm_weight *w, bool add, kvm_err *err);
kvm_status kvm_ref__attention_back(kvm_compute *c, kvm_in dq, kvm_in dk, kvm_in dv,
                                   kvm_in q, kvm_in k, kvm_in v, kvm_in dy,
                                   ptrdiff_t first, ptrdiff_t window,
                                   const kvm_mask *mask, double scale, kvm_err *err);
kvm_status kvm_ref__silu_mul_back(kvm_compute *c, kvm_in dgate, kvm_in dup, kvm_in gate,
                                  kvm_in up, kvm_in dy, kvm_err *err);
kvm_status kvm_ref__sigmoid_mul_back(kvm_compute *c, kvm_in dgate, kvm_in dup,
                                     kvm_in gate, kvm_in up, kvm_in dy, kvm_err *err);
kvm_status kvm_ref__relu2_back(kvm_compute *c, kvm_in dx, kvm_in x, kvm_in dy,
                               kvm_err *err);
kvm_status kvm_ref__index_score_back(kvm_compute *c, kvm_in dk, kvm_in q, kvm_in k,
                                     kvm_in w, kvm_in dy, double scale, kvm_err *err);
kvm_status kvm_ref__kl_back(kvm_compute *c, double *kl, kvm_in logits, kvm_in native,
                            double by, kvm_err *err);

#endif
