/* load.h - weights on their way from a checkpoint into a layer: shape against the
 * config, type against what kernels read, finite when asked, counted. */
#ifndef KVM_MODELS_LOAD_H
#define KVM_MODELS_LOAD_H

#include "kernels/ops.h"
#include "models/checkpoint.h"

typedef struct kvm_loader {
    const kvm_checkpoint *ck; /* borrows */
    const kvm_config *config;
    kvm_compute *compute;
    kvm_arena *keep;
    bool check_finite;
    ptrdiff_t parameters, bytes;       /* of everything loaded, as stored */
    ptrdiff_t matrix_parameters;       /* of linear maps */
    ptrdiff_t dtype_bytes[KVM_DTYPES]; /* matrix bytes by type */
} kvm_loader;

/* A linear map of weights.def. */
typedef struct kvm_linear_row {
    kvm_weight_id weight, bias;
    ptrdiff_t layer, out, in;
    bool has_bias;
    ptrdiff_t rotary_heads; /* > 0: rows are so many rotated heads, put in halves if the
                               file holds them in pair order */
    ptrdiff_t expert;       /* where weights.def asks for one */
} kvm_linear_row;

/* KVM_NOTFOUND, KVM_SHAPE, KVM_DTYPE, KVM_NAN name the tensor; KVM_MISMATCH: a bias
 * that the config knows nothing of */
KVM_MUST kvm_status kvm_load_linear(kvm_loader *ld, const kvm_linear_row *row,
                                    kvm_weight **w, kvm_err *err);
/* n numbers widened to f32, in keep: norms, biases, frequency divisors */
KVM_MUST kvm_status kvm_load_vector(kvm_loader *ld, kvm_weight_id id, ptrdiff_t layer,
                                    ptrdiff_t n, float **out, kvm_err *err);
/* a matrix as stored (embedding) */
KVM_MUST kvm_status kvm_load_matrix(kvm_loader *ld, kvm_weight_id id, ptrdiff_t layer,
                                    ptrdiff_t rows, ptrdiff_t cols, kvm_tensor *out,
                                    kvm_err *err);
/* n matrices in one tensor (n, rows, cols), as stored */
KVM_MUST kvm_status kvm_load_stack(kvm_loader *ld, kvm_weight_id id, ptrdiff_t layer,
                                   ptrdiff_t n, ptrdiff_t rows, ptrdiff_t cols,
                                   kvm_tensor *out, kvm_err *err);

#endif
