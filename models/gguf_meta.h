/* gguf_meta.h - what a GGUF file says about itself: its keys and its tensor table.
 *
 * The file (v2 or v3, little-endian) is mapped and checked whole when opened: every
 * length against the bytes that are left, every tensor against the end of the file and
 * against its neighbours. Afterwards lookups cannot run out of bounds. Tensor bytes are
 * not read here; models/gguf.h turns the table into a checkpoint, models/tokenizer.h
 * reads the vocabulary keys.
 *
 *   1. "GGUF", u32 version, u64 tensor count, u64 key count
 *   2. keys: string (u64 length, bytes), u32 type, value; an array is u32 element type,
 *      u64 count, elements; arrays of arrays are refused
 *   3. tensor infos: name, u32 rank (1..4), u64 dims (fastest first), u32 type, u64
 *      offset from the data start, a multiple of general.alignment (default 32)
 *   4. zero bytes up to the next multiple of the alignment: the data start */
#ifndef KVM_MODELS_GGUF_META_H
#define KVM_MODELS_GGUF_META_H

#include "kernels/tensor.h"

typedef struct kvm_gguf kvm_gguf;

typedef struct kvm_gguf_tensor {
    kvm_str name; /* borrows from the map */
    kvm_dtype dtype;
    int rank;                    /* 1 .. KVM_MAX_RANK */
    ptrdiff_t dim[KVM_MAX_RANK]; /* as stored, fastest first; 1 beyond rank */
    ptrdiff_t offset, bytes;     /* from the start of the file; inside it */
} kvm_gguf_tensor;

/* kvm_gguf_open - map and check; unmapped by keep's cleanup.
 * KVM_FORMAT (the file, the entry and what is wrong), KVM_VERSION (v1, big-endian),
 * KVM_DTYPE (a tensor of a type that no reader here knows). */
KVM_MUST kvm_status kvm_gguf_open(kvm_gguf **g, kvm_arena *keep, kvm_str path,
                                  kvm_err *err);
/* kvm_gguf_parse - the same over bytes that the caller keeps alive; name is for
 * messages */
KVM_MUST kvm_status kvm_gguf_parse(kvm_gguf **g, kvm_arena *keep, kvm_str bytes,
                                   kvm_str name, kvm_err *err);

kvm_str kvm_gguf_bytes(const kvm_gguf *g); /* the whole file; borrows */
/* what fstat said of the file that was mapped, whatever its path names now; all zero
 * after kvm_gguf_parse */
struct stat;
const struct stat *kvm_gguf_state(const kvm_gguf *g);
kvm_str kvm_gguf_name(const kvm_gguf *g); /* the path it was opened by; borrows */

bool kvm_gguf_has(const kvm_gguf *g, const char *key);
bool kvm_gguf_is_array(const kvm_gguf *g, const char *key); /* false when absent */

/* Scalars. KVM_NOTFOUND when absent, KVM_FORMAT when of another kind. u64 takes every
 * integer type and refuses negative values, f64 takes integers too. The _or forms give
 * the fallback when absent and still refuse another kind. Strings borrow. */
KVM_MUST kvm_status kvm_gguf_u64(const kvm_gguf *g, const char *key, uint64_t *out,
                                 kvm_err *err);
KVM_MUST kvm_status kvm_gguf_u64_or(const kvm_gguf *g, const char *key,
                                    uint64_t fallback, uint64_t *out, kvm_err *err);
KVM_MUST kvm_status kvm_gguf_f64(const kvm_gguf *g, const char *key, double *out,
                                 kvm_err *err);
KVM_MUST kvm_status kvm_gguf_f64_or(const kvm_gguf *g, const char *key, double fallback,
                                    double *out, kvm_err *err);
KVM_MUST kvm_status kvm_gguf_bool_or(const kvm_gguf *g, const char *key, bool fallback,
                                     bool *out, kvm_err *err);
KVM_MUST kvm_status kvm_gguf_str(const kvm_gguf *g, const char *key, kvm_str *out,
                                 kvm_err *err);
KVM_MUST kvm_status kvm_gguf_str_or(const kvm_gguf *g, const char *key,
                                    kvm_str fallback, kvm_str *out, kvm_err *err);

/* Arrays, copied into keep (strings inside borrow from the map). i64s takes integers
 * and booleans, f64s any number. */
KVM_MUST kvm_status kvm_gguf_strs(const kvm_gguf *g, const char *key, kvm_arena *keep,
                                  kvm_str **out, ptrdiff_t *n, kvm_err *err);
KVM_MUST kvm_status kvm_gguf_i64s(const kvm_gguf *g, const char *key, kvm_arena *keep,
                                  int64_t **out, ptrdiff_t *n, kvm_err *err);
KVM_MUST kvm_status kvm_gguf_f64s(const kvm_gguf *g, const char *key, kvm_arena *keep,
                                  double **out, ptrdiff_t *n, kvm_err *err);

/* tensors in file order; find gives NULL when absent; data borrows from the map */
ptrdiff_t kvm_gguf_tensors(const kvm_gguf *g);
const kvm_gguf_tensor *kvm_gguf_tensor_at(const kvm_gguf *g, ptrdiff_t i);
const kvm_gguf_tensor *kvm_gguf_tensor_find(const kvm_gguf *g, kvm_str name);
const void *kvm_gguf_data(const kvm_gguf *g, const kvm_gguf_tensor *t);

#endif
