/* tensor.h - a view of numbers: where they lie, their type, shape and strides.
 *
 * A view borrows. Shapes are row-major, dim[0] outermost; strides count elements.
 * Block-quantised types are contiguous along the last axis, whose extent is a multiple
 * of the block. Numbers of 8 bits come with scales, which lie elsewhere. Public calls
 * take views and check them once; inner loops take raw pointers. */
#ifndef KVM_KERNELS_TENSOR_H
#define KVM_KERNELS_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

typedef enum kvm_dtype {
#define X(id, name, st, gguf, block, bytes) KVM_##name = id,
#include "kernels/dtypes.def"
#undef X
    KVM_DTYPES
} kvm_dtype;

const char *kvm_dtype_name(kvm_dtype d);                         /* "BF16", static */
kvm_status kvm_dtype_of_safetensors(kvm_str name, kvm_dtype *d); /* KVM_DTYPE */
kvm_status kvm_dtype_of_gguf(int64_t id, kvm_dtype *d);          /* KVM_DTYPE */
int kvm_dtype_block(kvm_dtype d);                                /* elements */
int kvm_dtype_block_bytes(kvm_dtype d);
/* bytes of n elements (n a multiple of the block); false on overflow or a ragged
 * block */
bool kvm_dtype_bytes(kvm_dtype d, ptrdiff_t n, ptrdiff_t *bytes);

enum { KVM_MAX_RANK = 4 };
typedef enum kvm_device { KVM_CPU, KVM_CUDA } kvm_device;

/* What the numbers of a stored matrix are multiplied by: entry (r,c) by
 * grid[(first + r) / rows * pitch + c / cols] */
typedef struct kvm_scales {
    const float *grid;    /* borrows */
    ptrdiff_t rows, cols; /* of a block, whose numbers share one */
    ptrdiff_t pitch;      /* scales from one row of blocks to the next */
    ptrdiff_t first;      /* row of the grid's matrix that row 0 of the view is */
} kvm_scales;

typedef struct kvm_tensor {
    void *data;
    ptrdiff_t dim[KVM_MAX_RANK];
    ptrdiff_t stride[KVM_MAX_RANK]; /* elements */
    int rank;
    kvm_dtype dtype;
    kvm_device device;
    const kvm_scales *scales; /* borrows; NULL: numbers by themselves */
} kvm_tensor;

/* contiguous views on CPU memory; const is cast away by kvm_view_const, the op table
 * says who writes */
kvm_tensor kvm_view1(void *data, kvm_dtype d, ptrdiff_t n0);
kvm_tensor kvm_view2(void *data, kvm_dtype d, ptrdiff_t n0, ptrdiff_t n1);
kvm_tensor kvm_view3(void *data, kvm_dtype d, ptrdiff_t n0, ptrdiff_t n1, ptrdiff_t n2);
kvm_tensor kvm_view2_const(const void *data, kvm_dtype d, ptrdiff_t n0, ptrdiff_t n1);
ptrdiff_t kvm_tensor_count(const kvm_tensor *t);
bool kvm_tensor_contiguous(const kvm_tensor *t);

/* kvm_widen_row / kvm_narrow_row - n elements between a stored type and f32. Narrowing
 * rounds to nearest even; quantised types are read only. */
KVM_MUST kvm_status kvm_widen_row(float *out, const void *in, kvm_dtype d, ptrdiff_t n,
                                  kvm_err *err);
/* kvm_widen_at - elements from .. from+n (whole blocks) of row r of a matrix, times
 * their scales */
KVM_MUST kvm_status kvm_widen_at(float *out, const kvm_tensor *t, ptrdiff_t r,
                                 ptrdiff_t from, ptrdiff_t n, kvm_err *err);
/* x (n), elements from .. of row r, times their scales */
void kvm_scale_row(float *x, const kvm_scales *s, ptrdiff_t r, ptrdiff_t from,
                   ptrdiff_t n);
KVM_MUST kvm_status kvm_narrow_row(void *out, kvm_dtype d, const float *in, ptrdiff_t n,
                                   kvm_err *err);

#endif
