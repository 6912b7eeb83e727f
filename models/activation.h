/* activation.h - the scalar functions that layers put their numbers through where no op
 * does (kernels/ops.h). */
#ifndef KVM_MODELS_ACTIVATION_H
#define KVM_MODELS_ACTIVATION_H

#include <math.h>

static inline float kvm_sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

static inline float kvm_silu(float x)
{
    return x / (1 + expf(-x));
}

/* slopes of the two at x */
static inline float kvm_sigmoid_slope(float x)
{
    const float s = kvm_sigmoid(x);
    return s * (1 - s);
}

static inline float kvm_silu_slope(float x)
{
    const float s = kvm_sigmoid(x);
    return s + x * s * (1 - s);
}

/* ln(1 + e^x) */
static inline float kvm_softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

#endif
