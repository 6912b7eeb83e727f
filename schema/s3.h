/* s3.h - objects of one bucket, or of a prefix in it, as S3 and its likes keep them.
 *
 * s3://BUCKET[/PREFIX] with what the environment says: AWS_ENDPOINT_URL_S3 or
 * AWS_ENDPOINT_URL (then buckets are folders of its path; else Amazon's host of the
 * bucket), AWS_REGION or AWS_DEFAULT_REGION (us-east-1), AWS_ACCESS_KEY_ID,
 * AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN. Each request is signed with the hash of
 * what it carries (sigv4.h), so that a server takes no damaged content; whoever reads
 * checks the hash himself. Failures are KVM_ENVIRONMENT (a key, a bucket, a permission
 * is missing), KVM_IO (the rest) or what base/http.h says: all of them worth another
 * try, but KVM_NOTFOUND. One thread. */
#ifndef KVM_SCHEMA_S3_H
#define KVM_SCHEMA_S3_H

#include "base/http.h"

typedef struct kvm_s3 kvm_s3;
typedef struct kvm_s3_options {
    kvm_str address;       /* s3://BUCKET[/PREFIX] */
    int64_t part_bytes;    /* what is longer is sent in parts of at least that; 0: 64
                              MiB */
    kvm_http_options http; /* zeros: defaults */
} kvm_s3_options;

bool kvm_s3_address(kvm_str where); /* it begins with s3:// */
/* kvm_s3_open - asks the server nothing. KVM_USAGE (an address that is none),
 * KVM_ENVIRONMENT (no keys). Freed by keep. */
KVM_MUST kvm_status kvm_s3_open(kvm_s3 **s3, kvm_arena *keep, const kvm_s3_options *o,
                                kvm_err *err);
/* "s3://bucket/prefix/KEY", for messages; at is NULL when keep is spent */
kvm_str kvm_s3_shown(const kvm_s3 *s3, kvm_arena *keep, kvm_str key);

/* Keys are those below PREFIX/. */

/* kvm_s3_head - the size of an object; -1: there is none */
KVM_MUST kvm_status kvm_s3_head(kvm_s3 *s3, kvm_str key, int64_t *bytes, kvm_err *err);
/* kvm_s3_get - into the file fd of that name, going on where it ends; bytes < 0:
 * unknown. KVM_NOTFOUND. The content is not checked. */
KVM_MUST kvm_status kvm_s3_get(kvm_s3 *s3, kvm_str key, int fd, kvm_str name,
                               int64_t bytes, kvm_err *err);
/* What is put: a file whose size and SHA-256 are known. */
typedef struct kvm_s3_content {
    int fd;
    const char *sha;
    int64_t bytes;
    bool replace; /* what is there of that key; else it stays */
    kvm_str note; /* a file for what an upload in parts has sent, so that it is gone on
                     with after whatever happened; removed when it is done */
} kvm_s3_content;
KVM_MUST kvm_status kvm_s3_put(kvm_s3 *s3, kvm_str key, const kvm_s3_content *c,
                               kvm_err *err);
/* kvm_s3_delete - KVM_OK when there was none */
KVM_MUST kvm_status kvm_s3_delete(kvm_s3 *s3, kvm_str key, kvm_err *err);

typedef struct kvm_s3_listed { /* borrows */
    kvm_str key;               /* without PREFIX/ */
    kvm_str upload;            /* of an upload in parts that is not done; else "" */
    int64_t bytes;
    double age_s; /* by the server's clock */
} kvm_s3_listed;
typedef kvm_status kvm_s3_each(void *ctx, const kvm_s3_listed *o, kvm_err *err);
/* kvm_s3_list - objects whose key begins so, in no order that matters; `each` may not
 * use the same kvm_s3 */
KVM_MUST kvm_status kvm_s3_list(kvm_s3 *s3, kvm_str begins, kvm_s3_each *each,
                                void *ctx, kvm_err *err);
/* kvm_s3_uploads - the same of uploads in parts that nobody has completed */
KVM_MUST kvm_status kvm_s3_uploads(kvm_s3 *s3, kvm_str begins, kvm_s3_each *each,
                                   void *ctx, kvm_err *err);
/* kvm_s3_abort - an upload and its parts are gone; KVM_OK when there was none */
KVM_MUST kvm_status kvm_s3_abort(kvm_s3 *s3, kvm_str key, kvm_str upload, kvm_err *err);

#endif
