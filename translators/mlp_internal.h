/* mlp_internal.h - one network and its training step; a seam for the gradient test */
#ifndef KVM_TRANSLATORS_MLP_INTERNAL_H
#define KVM_TRANSLATORS_MLP_INTERNAL_H

#include "kernels/ops.h"

/* y = W3 relu(W2 relu(W1 x + b1) + b2) + b3. Parameters lie in one run: W1 (W,I), b1
 * (W), W2 (W,W), b2 (W), W3 (O,W), b3 (O). */
typedef struct kvm_net {
    ptrdiff_t inputs, hidden, outputs;
} kvm_net;
typedef struct kvm_net_part {
    ptrdiff_t weight, bias, out, in; /* offsets and shape of layer 1, 2 or 3 */
} kvm_net_part;
kvm_net_part kvm_net__part(const kvm_net *n, int layer); /* 0, 1, 2 */
ptrdiff_t kvm_net__size(const kvm_net *n);

/* what a batch of n rows needs: hidden[0], hidden[1], back (n, W) each, y (n, O) */
typedef struct kvm_net_room {
    float *hidden[2], *back, *y;
} kvm_net_room;

KVM_MUST kvm_status kvm_net__forward(kvm_compute *c, const kvm_net *net, const float *p,
                                     const float *x, ptrdiff_t n, kvm_net_room *room,
                                     kvm_err *err);
/* after forward of the same x: room->y becomes dL/dy for L = mean (y - target)^2, grad
 * (size) is written; gives L. target (n,O), rows ldt apart. */
KVM_MUST kvm_status kvm_net__backward(kvm_compute *c, const kvm_net *net,
                                      const float *p, const float *x,
                                      const float *target, ptrdiff_t ldt, ptrdiff_t n,
                                      kvm_net_room *room, float *grad, double *loss,
                                      kvm_err *err);
/* uniform in +-1/sqrt(inputs of the layer), weights and biases */
void kvm_net__init(const kvm_net *net, float *p, uint64_t seed, uint64_t stream);

#endif
