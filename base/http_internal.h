/* http_internal.h - one try of a request (http_try.c), and what is made of it
 * (http.c). */
#ifndef KVM_BASE_HTTP_INTERNAL_H
#define KVM_BASE_HTTP_INTERNAL_H

#include "base/http.h"
#include "base/rng.h"

enum { KVM_HTTP_HEADERS = 256 << 10 }; /* bytes of headers; a server may send no more */

struct kvm_http {
    kvm_http_options o; /* no zeros */
    void *curl;         /* CURL */
    long owner;         /* the process whose connections these are */
    kvm_rng jitter;
};

/* A file that is fetched. */
typedef struct kvm_http_file {
    int fd;
    kvm_str name;
    int64_t whole; /* bytes; -1: not known yet */
    bool given;    /* ... as the caller knows, and not only the server */
    int64_t have;
    char etag[256]; /* validator of the answer that `have` came with; "": none */
} kvm_http_file;

/* How a try ended, besides its status. */
typedef struct kvm_http_try {
    const kvm_http_request *r;
    kvm_http_file *file; /* NULL: into memory */
    kvm_text headers, body;
    int status;       /* of the answer; 0: none came */
    bool again;       /* the other side is at fault */
    bool unreachable; /* ... and there was no connection */
    char *next;       /* where a redirect leads; on the heap, NULL: nowhere */
    /* private */
    kvm_status sink; /* why bytes were not taken, and its message */
    kvm_err why;
    bool begun; /* the file was looked at for this answer */
    bool cut;   /* enough of a bad answer has come */
    int64_t sent;
} kvm_http_try;

/* kvm_http__once - one request to url; `own`: it is of the request's own origin.
 * Free with kvm_http__free. */
KVM_MUST kvm_status kvm_http__once(kvm_http *h, kvm_http_try *t, const char *url,
                                   bool own, kvm_err *err);
void kvm_http__free(kvm_http_try *t);
/* a client whose connections are this process's own; KVM_NOMEM */
KVM_MUST kvm_status kvm_http__connect(kvm_http *h, kvm_err *err);
void kvm_http__close(kvm_http *h);

#endif
