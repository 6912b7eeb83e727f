/* store.h - artefacts by content: DIR/objects/ab/cdef… is the file whose SHA-256 is
 * abcdef….
 *
 * A file enters whole or not at all (fsync, hash, rename, fsync the directory) and
 * never changes. That it is a *result* is said by the catalogue alone: files nobody
 * references are garbage and go, after a grace period, in kvm_store_sweep. Reading
 * checks the size each time and the hash on first use by this process. */
#ifndef KVM_SCHEMA_STORE_H
#define KVM_SCHEMA_STORE_H

#include "base/str.h"
#include "schema/catalogue.h"

typedef struct kvm_store kvm_store;

/* kvm_store_open - makes DIR/objects when absent. Freed by keep. */
KVM_MUST kvm_status kvm_store_open(kvm_store **s, kvm_arena *keep, kvm_str dir,
                                   kvm_err *err);

/* kvm_store_hash - make a finished file durable and hash it, where it is; the slow half
 * of putting. KVM_NOTFOUND, KVM_FORMAT (not a regular file), KVM_IO, KVM_NOSPACE. */
KVM_MUST kvm_status kvm_store_hash(kvm_store *s, kvm_str path, char sha[65],
                                   int64_t *bytes, kvm_err *err);
/* kvm_store_put - move a file that kvm_store_hash has seen into the store (a copy when
 * it lies on another file system). Equal content that is there already stays; the file
 * is then removed. */
KVM_MUST kvm_status kvm_store_put(kvm_store *s, kvm_str path, const char *sha,
                                  int64_t bytes, kvm_err *err);
/* kvm_store_add - publish bytes from memory */
KVM_MUST kvm_status kvm_store_add(kvm_store *s, kvm_str content, char sha[65],
                                  kvm_err *err);

/* kvm_store_get - the verified file's path, in keep. KVM_DAMAGED when it is not there
 * or when size or hash differ. bytes < 0: size unknown. */
KVM_MUST kvm_status kvm_store_get(kvm_store *s, kvm_str *path, kvm_arena *keep,
                                  const char *sha, int64_t bytes, kvm_err *err);
/* kvm_store_has - there with that size; reads no content */
bool kvm_store_has(kvm_store *s, const char *sha, int64_t bytes);
/* kvm_store_trust - another process of ours has verified this object: do not hash it
 * again */
void kvm_store_trust(kvm_store *s, const char *sha);

/* What garbage collection may find (store.c, workers/gc.c). */
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
 * and an old object can go in the moment in which it is published again). Killed at any
 * time it leaves a store that works. */
KVM_MUST kvm_status kvm_store_sweep(kvm_store *s, kvm_catalogue *c, const kvm_sweep *o,
                                    kvm_err *err);

#endif
