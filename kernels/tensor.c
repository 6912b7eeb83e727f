#include "kernels/tensor.h"

#include "base/checked.h"

#include <string.h>

typedef struct dtype_row {
    const char *name, *safetensors;
    int gguf, block, bytes;
} dtype_row;

static const dtype_row rows[KVM_DTYPES] = {
#define X(id, name, st, gguf, block, bytes) [id] = {#name, st, gguf, block, bytes},
#include "kernels/dtypes.def"
#undef X
};

static bool known(kvm_dtype d)
{
    return (int)d >= 0 && d < KVM_DTYPES;
}

const char *kvm_dtype_name(kvm_dtype d)
{
    return known(d) ? rows[d].name : "?";
}

kvm_status kvm_dtype_of_safetensors(kvm_str name, kvm_dtype *d)
{
    for (int i = 0; i < KVM_DTYPES; i++) {
        if (!rows[i].safetensors[0]) continue;
        if (!kvm_str_eq(name, kvm_str_of(rows[i].safetensors))) continue;
        *d = (kvm_dtype)i;
        return KVM_OK;
    }
    return KVM_DTYPE;
}

kvm_status kvm_dtype_of_gguf(int64_t id, kvm_dtype *d)
{
    for (int i = 0; i < KVM_DTYPES; i++) {
        if (rows[i].gguf < 0 || rows[i].gguf != id) continue;
        *d = (kvm_dtype)i;
        return KVM_OK;
    }
    return KVM_DTYPE;
}

int kvm_dtype_block(kvm_dtype d)
{
    return known(d) ? rows[d].block : 1;
}

int kvm_dtype_block_bytes(kvm_dtype d)
{
    return known(d) ? rows[d].bytes : 0;
}

bool kvm_dtype_bytes(kvm_dtype d, ptrdiff_t n, ptrdiff_t *bytes)
{
    if (!known(d) || n < 0 || n % rows[d].block) return false;
    return kvm_mul(n / rows[d].block, rows[d].bytes, bytes);
}

kvm_tensor kvm_view1(void *data, kvm_dtype d, ptrdiff_t n0)
{
    return (kvm_tensor){
        .data = data, .dtype = d, .rank = 1, .dim = {n0}, .stride = {1}};
}

kvm_tensor kvm_view2(void *data, kvm_dtype d, ptrdiff_t n0, ptrdiff_t n1)
{
    return (kvm_tensor){
        .data = data, .dtype = d, .rank = 2, .dim = {n0, n1}, .stride = {n1, 1}};
}

kvm_tensor kvm_view3(void *data, kvm_dtype d, ptrdiff_t n0, ptrdiff_t n1, ptrdiff_t n2)
{
    return (kvm_tensor){.data = data,
                        .dtype = d,
                        .rank = 3,
                        .dim = {n0, n1, n2},
                        .stride = {n1 * n2, n2, 1}};
}

kvm_tensor kvm_view2_const(const void *data, kvm_dtype d, ptrdiff_t n0, ptrdiff_t n1)
{
    kvm_tensor t = kvm_view2(NULL, d, n0, n1);
    memcpy(&t.data, &data, sizeof data); /* sheds const; ops.def says who writes */
    return t;
}

ptrdiff_t kvm_tensor_count(const kvm_tensor *t)
{
    ptrdiff_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= t->dim[i];
    return n;
}

bool kvm_tensor_contiguous(const kvm_tensor *t)
{
    ptrdiff_t expect = 1;
    for (int i = t->rank - 1; i >= 0; i--) {
        if (t->dim[i] != 1 && t->stride[i] != expect) return false;
        expect *= t->dim[i];
    }
    return true;
}
