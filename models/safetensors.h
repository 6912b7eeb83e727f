/* safetensors.h - named tensors in a file: read by mapping, written in one pass.
 *
 * 1. u64 little-endian n; n bytes of JSON, padded with spaces; data to the end of the
 * file.
 * 2. JSON: name -> {dtype, shape, data_offsets [begin,end)} from byte 8+n;
 * `__metadata__` maps strings to strings.
 * 3. Tensors tile the data without gap or overlap, so length = 8 + n + largest end.
 * 4. Sharded: model.safetensors.index.json maps tensor names to files of the same
 * folder. Everything is checked against the file's length before a byte of data is
 * looked at. */
#ifndef KVM_MODELS_SAFETENSORS_H
#define KVM_MODELS_SAFETENSORS_H

#include "base/json.h"
#include "kernels/tensor.h"

/* ---- reading ---- */

typedef struct kvm_st kvm_st; /* lives in keep; the mapping goes with it */

typedef struct kvm_st_tensor {
    kvm_str name; /* borrows from the kvm_st */
    kvm_tensor t; /* read only; rank 0 = scalar; beyond rank 4 the trailing axes are
                     merged into dim[3] */
    size_t bytes; /* of data */
    kvm_str file; /* the shard it lies in, for messages */
} kvm_st_tensor;

/* kvm_st_open - a file, or a folder with model.safetensors.index.json or
 * model.safetensors. A tensor whose bytes are not aligned to its type is copied into
 * keep, every other one is a view of the map. KVM_NOTFOUND, KVM_FORMAT, KVM_DTYPE; the
 * message names file and tensor. */
KVM_MUST kvm_status kvm_st_open(kvm_st **st, kvm_arena *keep, kvm_str path,
                                kvm_err *err);
/* kvm_st_parse - the same over the bytes of one file that the caller keeps alive */
KVM_MUST kvm_status kvm_st_parse(kvm_st **st, kvm_arena *keep, kvm_str bytes,
                                 kvm_str name, kvm_err *err);
kvm_str kvm_st_path(const kvm_st *st);
ptrdiff_t kvm_st_files(const kvm_st *st);           /* 1, or the number of shards */
kvm_str kvm_st_file(const kvm_st *st, ptrdiff_t i); /* path; by name */
/* the file that was mapped, whatever its path names now: all its bytes, and what fstat
 * said of it (all zero after kvm_st_parse); both borrow */
kvm_str kvm_st_whole(const kvm_st *st, ptrdiff_t i);
struct stat;
const struct stat *kvm_st_state(const kvm_st *st, ptrdiff_t i);
ptrdiff_t kvm_st_count(const kvm_st *st);
/* tensors in byte order of their names, i < count */
const kvm_st_tensor *kvm_st_at(const kvm_st *st, ptrdiff_t i);
const kvm_st_tensor *kvm_st_find(const kvm_st *st, kvm_str name); /* NULL: absent */
/* kvm_st_need - the tensor, which must have this dtype (KVM_DTYPES: any) and shape (a
 * dim of -1: any). KVM_NOTFOUND, KVM_DTYPE, KVM_SHAPE */
KVM_MUST kvm_status kvm_st_need(const kvm_st *st, kvm_str name, kvm_dtype dtype,
                                int rank, const ptrdiff_t *dim,
                                const kvm_st_tensor **out, kvm_err *err);
/* value of `__metadata__` (of the first file that has the key); at NULL when absent */
kvm_str kvm_st_meta(const kvm_st *st, kvm_str key);

/* ---- writing ---- */

typedef struct kvm_st_spec {
    kvm_str name;
    kvm_dtype dtype; /* one with a safetensors name */
    int rank;        /* 0 .. KVM_MAX_RANK */
    ptrdiff_t dim[KVM_MAX_RANK];
} kvm_st_spec;

typedef struct kvm_st_writer kvm_st_writer;

/* kvm_st_begin - the header is written at once; then the data of every tensor in the
 * order of specs, in pieces of any size. meta: an object of strings (borrowed during
 * the call) or NULL. The file appears only with kvm_st_publish (temp, fsync, rename); a
 * writer that is not published is dropped by keep's cleanup. KVM_USAGE for a name twice
 * or a meta value that is no string. */
KVM_MUST kvm_status kvm_st_begin(kvm_st_writer **w, kvm_arena *keep, kvm_str path,
                                 const kvm_st_spec *specs, ptrdiff_t n,
                                 const json_t *meta, kvm_err *err);
/* KVM_MISMATCH when more bytes arrive than the specs hold */
KVM_MUST kvm_status kvm_st_append(kvm_st_writer *w, const void *bytes, size_t n,
                                  kvm_err *err);
void kvm_st_unhashed(kvm_st_writer *w); /* as of a kvm_out (base/file.h) */
/* sha_hex (may be NULL): of the whole file. KVM_MISMATCH when bytes are missing. */
KVM_MUST kvm_status kvm_st_publish(kvm_st_writer *w, char sha_hex[65], kvm_err *err);
void kvm_st_drop(kvm_st_writer *w); /* removes the temporary; safe after publish */

#endif
