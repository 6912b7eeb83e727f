/* meta.h - typed values in a safetensors file's metadata, which holds only strings.
 * Errors are KVM_FORMAT and name file and key. */
#ifndef KVM_TRANSLATORS_META_H
#define KVM_TRANSLATORS_META_H

#include "models/safetensors.h"
#include "translators/rows.h"

/* the string, which must be there; borrows from the file */
KVM_MUST kvm_status kvm_meta_str(const kvm_st *st, const char *key, kvm_str *out,
                                 kvm_err *err);
KVM_MUST kvm_status kvm_meta_i64(const kvm_st *st, const char *key, int64_t least,
                                 int64_t most, int64_t *out, kvm_err *err);
KVM_MUST kvm_status kvm_meta_f64(const kvm_st *st, const char *key, double *out,
                                 kvm_err *err);
/* format must be `want`: KVM_FORMAT for another kind of file, KVM_VERSION for another
 * version of the same (the part after the last dot differs) */
KVM_MUST kvm_status kvm_meta_format(const kvm_st *st, const char *want, kvm_err *err);
/* <prefix>layers and spaces, and of each space <prefix>heads.<space>, .dim.<space>;
 * arrays in keep */
KVM_MUST kvm_status kvm_meta_shapes(const kvm_st *st, const char *prefix,
                                    kvm_arena *keep, kvm_shapes *out, kvm_err *err);

/* KVM_NOMEM when jansson could not */
KVM_MUST kvm_status kvm_meta_put(json_t *meta, const char *key, kvm_str value,
                                 kvm_err *err);
KVM_MUST kvm_status kvm_meta_putf(json_t *meta, kvm_err *err, const char *key,
                                  const char *fmt, ...) KVM_PRINTF(4, 5);
KVM_MUST kvm_status kvm_meta_put_shapes(json_t *meta, const char *prefix,
                                        const kvm_shapes *shapes, kvm_err *err);

#endif
