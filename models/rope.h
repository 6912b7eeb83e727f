/* rope.h - the frequencies and the factor of a rotary encoding: the kinds of rope_type
 * in a config, as transformers' modeling_rope_utils computes them (YaRN: Peng et al.
 * 2023). */
#ifndef KVM_MODELS_ROPE_H
#define KVM_MODELS_ROPE_H

#include "kernels/ops.h"
#include "models/config.h"

/* kvm_rope_of - half-rotation with the scaling of r; inv_freq lives in keep. divisors
 * (width/2) or NULL: what a GGUF file's rope_freqs divides the frequencies by. */
KVM_MUST kvm_status kvm_rope_of(kvm_rope *out, kvm_arena *keep,
                                const kvm_rope_config *r, const float *divisors,
                                kvm_err *err);

#endif
