/* hash.h - SHA-256 (libcrypto), streaming and in one call. Hex is lower case,
 * NUL-terminated. */
#ifndef KVM_BASE_HASH_H
#define KVM_BASE_HASH_H

#include "base/str.h"

typedef struct kvm_sha kvm_sha;
KVM_MUST kvm_status kvm_sha_begin(kvm_sha **h, kvm_err *err);
KVM_MUST kvm_status kvm_sha_add(kvm_sha *h, const void *bytes, size_t n, kvm_err *err);
KVM_MUST kvm_status kvm_sha_end(kvm_sha *h, char hex[65],
                                kvm_err *err); /* frees h, always */
void kvm_sha_drop(kvm_sha *h);
KVM_MUST kvm_status kvm_sha_of(kvm_str bytes, char hex[65], kvm_err *err);
KVM_MUST kvm_status kvm_sha_file(kvm_str path, char hex[65], kvm_arena scratch,
                                 kvm_err *err);
/* kvm_git_blob - the name that git has for a file of so many bytes: SHA-1 over "blob
 * BYTES", a NUL and the content */
KVM_MUST kvm_status kvm_git_blob(kvm_str path, int64_t bytes, char hex[41],
                                 kvm_arena scratch, kvm_err *err);
/* 32 bytes in hex */
void kvm_sha_hex(const unsigned char digest[32], char hex[65]);

#endif
