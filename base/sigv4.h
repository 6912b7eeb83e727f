/* sigv4.h - AWS Signature Version 4 in a header, as S3 wants it: an HMAC chain of date,
 * region and service over a canonical form of the request. The path is signed as it is
 * sent, encoded once and not normalised (other services differ there).
 * Source: AWS, "Create a signed AWS API request" and "Authenticating requests:
 * Authorization header". */
#ifndef KVM_BASE_SIGV4_H
#define KVM_BASE_SIGV4_H

#include "base/http.h"

typedef struct kvm_sigv4_key { /* borrows */
    kvm_str id, secret, region, service;
} kvm_sigv4_key;

typedef struct kvm_sigv4_request {  /* borrows */
    const char *method;             /* "GET" */
    kvm_str path;                   /* "/bucket/key", percent-encoded */
    kvm_str query;                  /* "a=1&b=", percent-encoded, in any order */
    const kvm_http_header *headers; /* those that are signed, in any order: host,
                                       x-amz-date and all x-amz-* */
    ptrdiff_t header_count;
    kvm_str payload_sha; /* hex, or "UNSIGNED-PAYLOAD" */
    kvm_str date;        /* "20150830T123600Z", the value of x-amz-date */
} kvm_sigv4_request;

/* kvm_sigv4_sign - the value of the header Authorization, in keep. It holds no secret
 * but is one for its lifetime. KVM_USAGE for a date that is none. */
KVM_MUST kvm_status kvm_sigv4_sign(kvm_str *authorization, kvm_arena *keep,
                                   const kvm_sigv4_key *key, const kvm_sigv4_request *r,
                                   kvm_err *err);

/* kvm_sigv4_date - seconds since 1970 as such a date */
void kvm_sigv4_date(double wall, char out[17]);

#endif
