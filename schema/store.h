/* store.h - artefacts by content: HOME/objects/ab/cdef… is the file whose SHA-256 is
 * abcdef….
 *
 * That folder is the store (a shared one, for several machines), or it is what a home
 * keeps of a bucket (S3), where the same names hold the same content for all homes.
 * A file enters whole or not at all (fsync, hash, rename, fsync the directory) and
 * never changes. That it is a *result* is said by the catalogue alone: files nobody
 * references are garbage and go, after a grace period, in kvm_store_sweep. Reading
 * checks the size each time and the hash on first use by this process. */
#ifndef KVM_SCHEMA_STORE_H
#define KVM_SCHEMA_STORE_H

#include "base/http.h"
#include "schema/catalogue.h"

typedef struct kvm_store kvm_store;

typedef struct kvm_store_options {
    kvm_str where;       /* s3://BUCKET[/PREFIX] (schema/s3.h); all else: the home */
    int64_t cache_bytes; /* of objects that a home keeps of a bucket's; 0: no bound */
    /* for tests; 0: schema/s3.h */
    int64_t part_bytes;
    kvm_http_options http;
} kvm_store_options;

/* kvm_store_open - makes HOME/objects when absent, and asks nobody. options NULL: the
 * home is the store. Freed by keep. KVM_USAGE, KVM_ENVIRONMENT (no keys). */
KVM_MUST kvm_status kvm_store_open(kvm_store **s, kvm_arena *keep, kvm_str home,
                                   const kvm_store_options *o, kvm_err *err);

/* kvm_store_hash - make a finished file durable and hash it, where it is; the slow half
 * of putting. KVM_NOTFOUND, KVM_FORMAT (not a regular file), KVM_IO, KVM_NOSPACE. */
KVM_MUST kvm_status kvm_store_hash(kvm_store *s, kvm_str path, char sha[65],
                                   int64_t *bytes, kvm_err *err);
/* kvm_store_put - move a file that kvm_store_hash has seen into the store (a copy when
 * it lies on another file system), and into its bucket before. Equal content that is
 * there already stays; the file is then removed. */
KVM_MUST kvm_status kvm_store_put(kvm_store *s, kvm_str path, const char *sha,
                                  int64_t bytes, kvm_err *err);
/* kvm_store_add - publish bytes from memory */
KVM_MUST kvm_status kvm_store_add(kvm_store *s, kvm_str content, char sha[65],
                                  kvm_err *err);

/* kvm_store_get - the verified file's path, in keep; it stays there while keep lives.
 * KVM_DAMAGED when it is not there or when size or hash differ; KVM_IO or
 * KVM_ENVIRONMENT when a bucket could not give it whole. bytes < 0: size unknown. */
KVM_MUST kvm_status kvm_store_get(kvm_store *s, kvm_str *path, kvm_arena *keep,
                                  const char *sha, int64_t bytes, kvm_err *err);
/* kvm_store_look - whether it is there with that size, for all who share the store;
 * reads no content */
KVM_MUST kvm_status kvm_store_look(kvm_store *s, const char *sha, int64_t bytes,
                                   bool *there, kvm_err *err);
/* kvm_store_check - whether what stands behind the home can be reached and read:
 * KVM_ENVIRONMENT or KVM_IO say what is missing */
KVM_MUST kvm_status kvm_store_check(kvm_store *s, kvm_err *err);
/* kvm_store_trust - another process of ours has verified this object: do not hash it
 * again */
void kvm_store_trust(kvm_store *s, const char *sha);

/* What garbage collection may find (store_sweep.c, workers/gc.c). */
typedef enum kvm_swept {
    KVM_SWEPT_OBJECT,    /* in the store, and no artefact row names it */
    KVM_SWEPT_FOLDER,    /* work of a job that nobody will go on with */
    KVM_SWEPT_TEMPORARY, /* left by a process that was killed while it wrote */
    KVM_SWEPT_COUNT
} kvm_swept;
typedef struct kvm_sweep {
    double age_s; /* only what has not changed for so long, and a second more */
    bool dry;     /* find, and remove nothing */
    void (*found)(void *ctx, kvm_swept what, const char *path, int64_t bytes);
    void *ctx;
} kvm_sweep;
/* kvm_store_sweep - remove objects that no artefact row names and temporary files, both
 * of that age and older than any attempt that is under way. Holds the catalogue's write
 * lock per folder (256 of them), so that a commit either comes before (and the object
 * is named) or finds it missing (and its job is tried again: publishing takes no lock,
 * and an old object can go in the moment in which it is published again). Of a bucket
 * uploads that nobody went on with go as well. Killed at any time it leaves a store
 * that works. */
KVM_MUST kvm_status kvm_store_sweep(kvm_store *s, kvm_catalogue *c, const kvm_sweep *o,
                                    kvm_err *err);

#endif
