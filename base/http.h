/* http.h - requests over HTTP and HTTPS (libcurl).
 *
 * A kvm_http is a client with its open connections, for one thread. A request is tried
 * again, with growing waits or those that the server asks for (Retry-After), while the
 * other side is at fault: no connection, one that broke or fell silent, 408, 425, 429
 * and 5xx. An answer that came is KVM_OK, whatever its status: kvm_http_check makes a
 * failure of it. Headers that a caller gives, credentials among them, go to the origin
 * (scheme, host, port) of the request's URL and are never passed on by a redirect.
 * Certificates are checked; other protocols are refused. Messages name an URL without
 * its query, which may hold a signature. After a fork the child begins with
 * connections of its own. */
#ifndef KVM_BASE_HTTP_H
#define KVM_BASE_HTTP_H

#include "base/str.h"

typedef struct kvm_http kvm_http;

typedef enum kvm_http_method {
    KVM_HTTP_GET,
    KVM_HTTP_HEAD,
    KVM_HTTP_PUT,
    KVM_HTTP_POST,
    KVM_HTTP_DELETE
} kvm_http_method;

typedef struct kvm_http_options {
    double connect_s;  /* a connection has to stand within that; 0: 15 */
    double stall_s;    /* less than a KiB a second for so long ends the try; 0: 60 */
    double answer_s;   /* a whole answer that is kept in memory; 0: 300 */
    int tries;         /* in a row that bring nothing; 0: 5 */
    int offline_tries; /* ... without a connection, which people wait for; 0: 3 */
    double backoff_s;  /* before the second try, then doubled; 0: 0.5 */
    double patience_s; /* a server that asks for more is asked no more; 0: 60 */
} kvm_http_options;

typedef struct kvm_http_header {
    const char *name;
    kvm_str value;
} kvm_http_header;

typedef struct kvm_http_request {
    kvm_http_method method;
    kvm_str url;
    const kvm_http_header *headers;
    ptrdiff_t header_count;
    kvm_str body; /* of PUT and POST, unless file_bytes > 0 */
    int file;     /* file_bytes of this descriptor, from file_at on */
    int64_t file_at, file_bytes;
    int redirects; /* followed at most, by GET and HEAD; 0: their answer comes back */
    size_t most_bytes; /* of an answer in memory; 0: 1 MiB */
    /* told of bytes that came or went (below 0: they begin anew), and asked in between
     * with 0; false: stop with KVM_CANCELLED. NULL: go on */
    bool (*moved)(void *ctx, int64_t bytes);
    void *ctx;
} kvm_http_request;

typedef struct kvm_http_reply {
    int status;
    kvm_str headers; /* as they came */
    kvm_str body;
} kvm_http_reply;

/* kvm_http_new - options NULL: defaults. Closed by keep's cleanup. */
KVM_MUST kvm_status kvm_http_new(kvm_http **h, kvm_arena *keep,
                                 const kvm_http_options *o, kvm_err *err);

/* kvm_http_send - the answer, in keep. KVM_USAGE (no http or https URL, user or
 * password in it, a header with a line break), KVM_RANGE (a good answer of more than
 * most_bytes; a bad one is cut there), KVM_FORMAT (more redirects than allowed, or from
 * https to http), KVM_ENVIRONMENT (no such host, nobody answers there, a certificate
 * that is not trusted), KVM_IO (it broke off or fell silent), KVM_CANCELLED. */
KVM_MUST kvm_status kvm_http_send(kvm_http *h, const kvm_http_request *r,
                                  kvm_http_reply *reply, kvm_arena *keep, kvm_err *err);

/* kvm_http_fetch - kvm_http_send of a GET whose good answer goes into the file `fd` of
 * that name, which may hold its first bytes already: it is gone on with where it ends
 * (Range; If-Range by the validator of the answer that was broken off), or begun anew
 * when the server does not offer that. bytes: what is expected of the whole, -1 when
 * nobody said; then the server has to announce it, or it may be most_bytes. Also
 * KVM_FORMAT: another length than expected. An answer that is no 200 or 206 is in
 * reply, and the file as it was. Not synced. */
KVM_MUST kvm_status kvm_http_fetch(kvm_http *h, const kvm_http_request *r, int fd,
                                   kvm_str name, int64_t bytes, kvm_http_reply *reply,
                                   kvm_arena *keep, kvm_err *err);

/* kvm_http_check - KVM_OK for a status from 200 to 299, else what it means to us: 404
 * and 410 KVM_NOTFOUND; 401, 403 and 407 KVM_ENVIRONMENT; 412 KVM_EXISTS; 416
 * KVM_RANGE; 408, 425, 429 and 5xx KVM_IO; 3xx KVM_FORMAT; the rest KVM_USAGE. */
KVM_MUST kvm_status kvm_http_check(const kvm_http_reply *reply, kvm_str url,
                                   kvm_err *err);

/* the value of the last header of that name (any case), trimmed; at is NULL: none */
kvm_str kvm_http_field(const kvm_http_reply *reply, const char *name);
/* the server's clock as its answer tells it, or another field that holds a date, in
 * seconds since 1970; -1: none */
double kvm_http_date(const kvm_http_reply *reply, const char *name);
/* kvm_http_shown - the URL as messages name it: without query, user and password */
kvm_quoted kvm_http_shown(kvm_str url);
/* kvm_http_keeps_secrets - by https, or to this machine itself */
bool kvm_http_keeps_secrets(kvm_str url);
/* kvm_http_encode - percent-encoded but for A-Z a-z 0-9 - . _ ~, and '/' where slashes
 * stay (RFC 3986). In keep; at is NULL when that is spent. */
kvm_str kvm_http_encode(kvm_arena *keep, kvm_str s, bool slashes);

#endif
