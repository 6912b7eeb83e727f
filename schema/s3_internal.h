/* s3_internal.h - one signed request, and a look into the XML of answers. */
#ifndef KVM_SCHEMA_S3_INTERNAL_H
#define KVM_SCHEMA_S3_INTERNAL_H

#include "base/sigv4.h"
#include "schema/s3.h"

enum { KVM_S3_ANSWER = 8 << 20, KVM_S3_ARENA = 64 << 20 };

struct kvm_s3 {
    kvm_http *http;
    kvm_sigv4_key key;
    kvm_str token;
    kvm_str base, host, path; /* "https://HOST", "HOST", "/bucket" or "" */
    kvm_str bucket, prefix;   /* "" or "a/b/" */
    int64_t part_bytes;
    bool unconditional; /* the server knows no If-None-Match on what is written */
};

typedef struct kvm_s3_call {
    kvm_http_method method;
    kvm_str key;   /* below the prefix; at is NULL: the bucket itself */
    kvm_str query; /* encoded */
    bool if_none;  /* only when there is no such object */
    kvm_str body;  /* or of a file: */
    int fd;
    int64_t at, bytes; /* bytes > 0 */
    const char *sha;   /* of what is sent; NULL: of body */
} kvm_s3_call;

/* what a request of that call is, signed; in keep */
KVM_MUST kvm_status kvm_s3__request(kvm_s3 *s, const kvm_s3_call *call,
                                    kvm_http_request *r, kvm_arena *keep, kvm_err *err);
KVM_MUST kvm_status kvm_s3__send(kvm_s3 *s, const kvm_s3_call *call,
                                 kvm_http_reply *reply, kvm_arena *keep, kvm_err *err);
/* a failure of every answer but 2xx, in S3's words */
KVM_MUST kvm_status kvm_s3__check(const kvm_s3 *s, kvm_str key,
                                  const kvm_http_reply *reply, kvm_err *err);

/* kvm_s3__next - the text between <name> and </name> from *at on, which moves behind
 * it; false: no more. Not for elements within their like; entities stay. */
bool kvm_s3__next(kvm_str *at, const char *name, kvm_str *text);
/* the first of them in a text, with the five entities of XML put back; at is NULL:
 * none, or keep is spent */
kvm_str kvm_s3__text(kvm_str xml, const char *name, kvm_arena *keep);

/* ---- s3_list.c ---- */

/* What a list consists of, in the words of its answer. */
typedef struct kvm_s3_list_kind {
    const char *query, *row, *time; /* the request; an element, and its date */
    const char *next[2];            /* elements that say where the next page begins */
    const char *from[2];            /* and the parameters that they become */
} kvm_s3_list_kind;
extern const kvm_s3_list_kind kvm_s3__objects, kvm_s3__uploads;

typedef struct kvm_s3_listing {
    kvm_s3 *s;
    const kvm_s3_list_kind *kind;
    kvm_str begins; /* keys, below the prefix */
    kvm_str first;  /* the query of the first page */
    kvm_s3_each *each;
    void *ctx;
} kvm_s3_listing;
/* kvm_s3__tell - tells of what a page lists.
 *   query  in: of this page; out: of the one behind it, in keep; at is NULL: none
 * Fails as kvm_s3__check does; KVM_IO: the pages go round in a circle. */
KVM_MUST kvm_status kvm_s3__tell(const kvm_s3_listing *l, const kvm_http_reply *reply,
                                 kvm_str *query, kvm_arena *keep, kvm_arena scratch,
                                 kvm_err *err);

/* ---- s3_parts.c ---- */

KVM_MUST kvm_status kvm_s3__put_parts(kvm_s3 *s, kvm_str key, const kvm_s3_content *c,
                                      kvm_err *err);

#endif
