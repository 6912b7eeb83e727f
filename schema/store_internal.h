/* store_internal.h - the folder of a store, and what may stand behind it.
 *
 * Whatever a store is, an object is used as DIR/objects/ab/cdef…. A driver says where
 * it lies besides, if anywhere: then DIR/objects is a cache that others of this home
 * use as well (store_cache.c). */
#ifndef KVM_SCHEMA_STORE_INTERNAL_H
#define KVM_SCHEMA_STORE_INTERNAL_H

#include <limits.h>

#include "schema/store.h"

typedef struct kvm_store_sweeping {
    kvm_store *store;
    kvm_catalogue *catalogue;
    const kvm_sweep *o;
    double before; /* wall clock: older files may go */
} kvm_store_sweeping;

typedef struct kvm_store_driver {
    const char *name;
    /* whether the object is there for everybody who shares the store; bytes < 0: of any
     * size */
    kvm_status (*look)(kvm_store *s, const char *sha, int64_t bytes, bool *there,
                       kvm_err *err);
    /* The rest is NULL where DIR/objects is all there is.
     * fetch: the object becomes the file `to`, verified. KVM_DAMAGED: it has gone. */
    kvm_status (*fetch)(kvm_store *s, const char *sha, int64_t bytes, const char *to,
                        kvm_err *err);
    /* send: the content of `from` is there for everybody; `to` is its name here */
    kvm_status (*send)(kvm_store *s, const char *from, const char *to, const char *sha,
                       int64_t bytes, kvm_err *err);
    /* check: as kvm_store_check */
    kvm_status (*check)(kvm_store *s, kvm_err *err);
    /* sweep: as kvm_store_sweep, of what does not lie here */
    kvm_status (*sweep)(kvm_store_sweeping *w, kvm_err *err);
} kvm_store_driver;

extern const kvm_store_driver kvm_store_directory, kvm_store_s3;

typedef struct kvm_store_digest {
    char hex[64];
} kvm_store_digest;

struct kvm_store {
    const kvm_store_driver *driver;
    char dir[PATH_MAX - 128]; /* DIR/objects */
    kvm_store_digest *seen;   /* verified by this process; on the heap */
    ptrdiff_t seen_count, seen_cap;
    struct kvm_s3 *s3;   /* of the driver of that name */
    int64_t cache_bytes; /* 0: no bound */
};

/* Hashes come from the catalogue and from files of records: only real ones become
 * paths; KVM_FORMAT. */
KVM_MUST kvm_status kvm_store__path(const kvm_store *s, const char *sha,
                                    char path[PATH_MAX], kvm_err *err);
/* an object's file name within folder ab is 62 hex digits */
bool kvm_store__is_name(const char *name);
KVM_MUST kvm_status kvm_store__make_folder(const char *object, kvm_err *err);
bool kvm_store__seen(const kvm_store *s, const char *sha);
/* takes no memory but for messages */
KVM_MUST kvm_status kvm_store__hash(const char *path, char hex[65], kvm_err *err);

/* kvm_store__cached - the verified object, fetched when it is not here; it is not
 * evicted while keep lives. */
KVM_MUST kvm_status kvm_store__cached(kvm_store *s, kvm_str *path, kvm_arena *keep,
                                      const char *sha, int64_t bytes, kvm_err *err);
/* kvm_store__evict - makes room for so many bytes: objects that were not used for
 * longest go, none that is in use or lies only here. More is kept than the bound
 * allows when all of it is used. */
KVM_MUST kvm_status kvm_store__evict(kvm_store *s, int64_t bytes, kvm_err *err);

/* whether an artefact row names the object */
KVM_MUST kvm_status kvm_store__named(kvm_catalogue *c, const char *sha, bool *named,
                                     kvm_err *err);

#endif
