/* load.h - weights on their way from a checkpoint into a layer: shape against the
 * config, type against what kernels read, finite when asked, counted. */
#ifndef KVM_MODELS_LOAD_H
#define KVM_MODELS_LOAD_H

#include "kernels/ops.h"
#include "models/checkpoint.h"

/* bytes of a checkpoint's mapped file that a block reads */
typedef struct kvm_extent {
    const char *at;
    ptrdiff_t bytes;
    struct kvm_extent *next;
} kvm_extent;

typedef struct kvm_loader {
    const kvm_checkpoint *ck; /* borrows */
    const kvm_config *config;
    kvm_compute *compute;
    kvm_arena *keep;
    kvm_rope rope; /* of the stack */
    bool check_finite;
    bool norms_whole;     /* one has been added to them already: kvm_load_norm_form */
    kvm_extent **extents; /* what was loaded, the last first; NULL: nobody asks */
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
/* linear maps of one layer that have no bias and are not rotated */
typedef struct kvm_plain_map {
    kvm_weight_id id;
    ptrdiff_t out, in;
    kvm_weight **to;
} kvm_plain_map;
KVM_MUST kvm_status kvm_load_maps(kvm_loader *ld, ptrdiff_t layer,
                                  const kvm_plain_map *maps, ptrdiff_t n, kvm_err *err);
/* n numbers widened to f32, in keep: biases, frequency divisors; and a small matrix */
KVM_MUST kvm_status kvm_load_vector(kvm_loader *ld, kvm_weight_id id, ptrdiff_t layer,
                                    ptrdiff_t n, float **out, kvm_err *err);
KVM_MUST kvm_status kvm_load_grid(kvm_loader *ld, kvm_weight_id id, ptrdiff_t layer,
                                  ptrdiff_t rows, ptrdiff_t cols, float **out,
                                  kvm_err *err);
/* a matrix as stored, with its scales (embedding) */
KVM_MUST kvm_status kvm_load_matrix(kvm_loader *ld, kvm_weight_id id, ptrdiff_t layer,
                                    ptrdiff_t rows, ptrdiff_t cols, kvm_tensor *out,
                                    kvm_err *err);
/* kvm_load_norm_form - how norms of a family that adds one to them are stored, by their
 * mean over the stack: training keeps what is added near zero, and converters that add
 * it (MLX, GGUF) leave it near one. KVM_MISMATCH between the two and far above. */
KVM_MUST kvm_status kvm_load_norm_form(kvm_loader *ld, kvm_err *err);
/* a vector, plus one where the family and the file store norms so */
KVM_MUST kvm_status kvm_load_norm(kvm_loader *ld, kvm_weight_id id, ptrdiff_t layer,
                                  ptrdiff_t n, float **out, kvm_err *err);
/* rows order[0..n-1] of a matrix as a map of their own: a copy, in the stored type */
KVM_MUST kvm_status kvm_load_picked(kvm_loader *ld, kvm_tensor matrix,
                                    const ptrdiff_t *order, ptrdiff_t n, kvm_weight **w,
                                    kvm_err *err);
/* rows from .. from+n of a matrix as a map of their own, where they lie */
KVM_MUST kvm_status kvm_load_rows(kvm_loader *ld, kvm_tensor matrix, ptrdiff_t from,
                                  ptrdiff_t n, kvm_weight **w, kvm_err *err);
/* n matrices in one tensor (n, rows, cols), as stored */
KVM_MUST kvm_status kvm_load_stack(kvm_loader *ld, kvm_weight_id id, ptrdiff_t layer,
                                   ptrdiff_t n, ptrdiff_t rows, ptrdiff_t cols,
                                   kvm_tensor *out, kvm_err *err);

/* kvm_load_note - a tensor of the file is read by what is being loaded */
KVM_MUST kvm_status kvm_load_note(kvm_loader *ld, const kvm_tensor *t, kvm_err *err);

/* ld->rope, from the config and from what the file divides its frequencies by */
KVM_MUST kvm_status kvm_load_rope(kvm_loader *ld, kvm_err *err);

#endif
