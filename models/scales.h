/* scales.h - FP8 weights: the scales that a checkpoint stores beside a matrix.
 *
 *   w[r,c] = fp8[r,c] * scale[r / rows, c / cols]
 *
 * The scales of NAME (R,C) are called NAME_scale_inv (DeepSeek, Qwen, GLM, Ministral;
 * whatever the name says, they multiply) or NAME_scale (compressed-tensors, ModelOpt).
 * They are
 *   (ceil(R / rows), ceil(C / cols))   a grid of the blocks that the config states
 *   (R) or (R, 1)                      one per row; of NAME_scale only
 *   () or (1)                          one for all; of NAME_scale_inv, no blocks stated
 * The scales of activations, which engines that compute in FP8 need, are left alone. */
#ifndef KVM_MODELS_SCALES_H
#define KVM_MODELS_SCALES_H

#include "models/load.h"

/* kvm_scales_find - f, an E4M3 matrix as the file has it, gets its scales; any other
 * tensor must have none. KVM_DTYPE: E4M3 without scales; KVM_SHAPE: a grid of another
 * size; KVM_RANGE: a scale that is negative or no number; KVM_MISMATCH. bytes: of the
 * scales. */
KVM_MUST kvm_status kvm_scales_find(kvm_loader *ld, kvm_weight_at w, kvm_found *f,
                                    ptrdiff_t *bytes, kvm_err *err);
/* the scales of rows from .. of a matrix, or of rows order[0..n-1]; NULL where it has
 * none */
KVM_MUST kvm_status kvm_scales_from(const kvm_scales **out, kvm_arena *keep,
                                    const kvm_tensor *m, ptrdiff_t from, kvm_err *err);
KVM_MUST kvm_status kvm_scales_picked(const kvm_scales **out, kvm_arena *keep,
                                      const kvm_tensor *m, const ptrdiff_t *order,
                                      ptrdiff_t n, kvm_err *err);

#endif
