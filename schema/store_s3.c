/* store_s3.c - the driver of stores whose objects lie in a bucket, as
 * PREFIX/objects/ab/cdef….
 *
 * Sending: look -> put, unless somebody else was first. Fetching: into NAME.part under
 * a lock, so that of the processes of a home one fetches and the others find it; then
 * the hash is checked, and the part gets its name. What came with a wrong hash twice
 * leaves NAME.bad, which makes the next job that has this content send it in spite of
 * what is there. Parts, marks and notes of uploads are temporary files to a sweep. */
#define _DEFAULT_SOURCE /* flock */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/os.h"
#include "schema/catalogue_internal.h"
#include "schema/fault.h"
#include "schema/s3.h"
#include "schema/store_internal.h"

#define FOLDER "objects/"

static kvm_str key_of(const char *sha, char key[80])
{
    snprintf(key, 80, FOLDER "%.2s/%.62s", sha, sha + 2);
    return kvm_str_of(key);
}

static kvm_status beside(char out[PATH_MAX], const char *path, const char *end,
                         kvm_err *err)
{
    if (snprintf(out, PATH_MAX, "%s%s", path, end) < PATH_MAX) return KVM_OK;
    return kvm_fail(err, KVM_USAGE, "%.60s...: the path is too long", path);
}

static kvm_status look(kvm_store *s, const char *sha, int64_t bytes, bool *there,
                       kvm_err *err)
{
    char path[PATH_MAX], key[80];
    int64_t found;
    TRY(kvm_store__path(s, sha, path, err)); /* it is a hash */
    TRY(kvm_s3_head(s->s3, key_of(sha, key), &found, err));
    *there = found >= 0 && (bytes < 0 || found == bytes);
    return KVM_OK;
}

/* ---- sending ---- */

static kvm_status send_file(kvm_store *s, const char *from, kvm_str key,
                            kvm_s3_content *c, kvm_err *err)
{
    c->fd = kvm_os->open(from, O_RDONLY | O_NOFOLLOW, 0);
    if (c->fd < 0) return kvm_fail_errno(err, "%s: cannot open", from);
    const kvm_status r = kvm_s3_put(s->s3, key, c, err);
    kvm_os->close(c->fd);
    return r;
}

static kvm_status send(kvm_store *s, const char *from, const char *to, const char *sha,
                       int64_t bytes, kvm_err *err)
{
    char key[80], bad[PATH_MAX], note[PATH_MAX];
    int64_t found;
    struct stat st;
    TRY(beside(bad, to, ".bad", err));
    TRY(beside(note, to, ".upload", err));
    TRY(kvm_store__make_folder(to, err));
    const bool doubted = kvm_os->stat(bad, &st) == 0;
    TRY(kvm_s3_head(s->s3, key_of(sha, key), &found, err));
    if (found == bytes && !doubted) return KVM_OK;
    kvm_s3_content c = {
        .sha = sha, .bytes = bytes, .replace = found >= 0, .note = kvm_str_of(note)};
    TRY(send_file(s, from, kvm_str_of(key), &c, err));
    return doubted ? kvm_file_remove(kvm_str_of(bad), err) : KVM_OK;
}

/* ---- fetching ---- */

/* *fd is -1: another process has fetched it meanwhile */
static kvm_status lock_part(const char *part, const char *to, int *fd, kvm_err *err)
{
    for (;;) {
        struct stat mine, named;
        *fd = kvm_os->open(part, O_RDWR | O_CREAT | O_NOFOLLOW, 0666);
        if (*fd < 0) return kvm_fail_errno(err, "%s: cannot create", part);
        if (flock(*fd, LOCK_EX) || kvm_os->fstat(*fd, &mine)) {
            const kvm_status r = kvm_fail_errno(err, "%s: cannot lock", part);
            kvm_os->close(*fd);
            return r;
        }
        const bool ours = kvm_os->stat(part, &named) == 0 &&
                          named.st_ino == mine.st_ino && named.st_dev == mine.st_dev;
        if (ours) return KVM_OK;
        kvm_os->close(*fd); /* it has got its name, or was given up */
        *fd = -1;
        if (kvm_os->stat(to, &named) == 0) return KVM_OK;
    }
}

/* A server that announces another length, or bytes that do not fit, has broken off as
 * far as we are concerned. */
static kvm_status get(kvm_store *s, kvm_str key, int fd, const char *part,
                      int64_t bytes, kvm_err *err)
{
    kvm_err why = {0};
    kvm_status r = kvm_s3_get(s->s3, key, fd, kvm_str_of(part), bytes, &why);
    if (r == KVM_FORMAT || r == KVM_RANGE || r == KVM_USAGE)
        return kvm_fail(err, KVM_IO, "%s", why.msg);
    if (r && err && !err->code) *err = why;
    return r;
}

static kvm_status mark_bad(const char *to, kvm_err *err)
{
    char bad[PATH_MAX];
    TRY(beside(bad, to, ".bad", err));
    const int fd = kvm_os->open(bad, O_WRONLY | O_CREAT, 0666);
    if (fd < 0) return kvm_fail_errno(err, "%s: cannot create", bad);
    kvm_os->close(fd);
    return KVM_OK;
}

/* A part that was gone on with may have begun wrongly: what has a wrong hash is fetched
 * whole once more before the bucket is blamed. */
static kvm_status fetch_checked(kvm_store *s, const char *sha, int64_t bytes, int fd,
                                const char *part, const char *to, kvm_err *err)
{
    char key[80], hex[65];
    for (int tries = 0; tries < 2; tries++) {
        TRY(get(s, key_of(sha, key), fd, part, bytes, err));
        if (kvm_os->fsync(fd)) return kvm_fail_errno(err, "%s: cannot sync", part);
        TRY(kvm_store__hash(part, hex, err));
        if (strcmp(hex, sha) == 0) return KVM_OK;
        if (kvm_os->ftruncate(fd, 0))
            return kvm_fail_errno(err, "%s: cannot cut", part);
    }
    TRY(mark_bad(to, err));
    return kvm_fail(
        err, KVM_IO,
        "artefact %.12s…: the bucket's content has the hash %.12s…: it was "
        "damaged there or on the way; a job that makes it again replaces it",
        sha, hex);
}

static kvm_status fetch_part(kvm_store *s, const char *sha, int64_t bytes, int fd,
                             const char *part, const char *to, kvm_err *err)
{
    const kvm_status r = fetch_checked(s, sha, bytes, fd, part, to, err);
    if (r) return r;
    if (kvm_os->rename(part, to))
        return kvm_fail_errno(err, "%s: cannot rename to %s", part, to);
    kvm_store_trust(s, sha);
    return kvm_file_settle(to, err);
}

static kvm_status fetch(kvm_store *s, const char *sha, int64_t bytes, const char *to,
                        kvm_err *err)
{
    char part[PATH_MAX], key[80];
    kvm_err why = {0};
    int fd;
    if (bytes < 0) TRY(kvm_s3_head(s->s3, key_of(sha, key), &bytes, err));
    TRY(kvm_store__make_folder(to, err));
    TRY(beside(part, to, ".part", err));
    TRY(kvm_store__evict(s, bytes > 0 ? bytes : 0, err));
    TRY(lock_part(part, to, &fd, err));
    if (fd < 0) return KVM_OK;
    kvm_status r = fetch_part(s, sha, bytes, fd, part, to, &why);
    if (r == KVM_NOTFOUND) {
        kvm_os->unlink(part);
        r = kvm_fail(err, KVM_DAMAGED,
                     "artefact %.12s… has gone from the store: run "
                     "again (%s)",
                     sha, why.msg);
    } else if (r && err && !err->code)
        *err = why;
    kvm_os->close(fd);
    return r;
}

/* ---- garbage ---- */

/* What a list shows that may go. */
typedef struct candidates {
    kvm_store_sweeping *w;
    double age_s;
    struct candidate {
        char sha[65], upload[1024];
        int64_t bytes;
    } * at; /* on the heap */
    ptrdiff_t count, cap;
} candidates;

static bool is_object(kvm_str key, char sha[65])
{
    const kvm_str name = kvm_str_slice(key, (ptrdiff_t)strlen(FOLDER), key.len);
    char rest[63];
    if (!kvm_str_starts(key, KVM_STR(FOLDER)) || name.len != 65 || name.at[2] != '/')
        return false;
    snprintf(rest, sizeof rest, "%.62s", name.at + 3);
    snprintf(sha, 65, "%.2s%s", name.at, rest);
    return kvm_store__is_name(rest) && strspn(sha, "0123456789abcdef") == 64;
}

static kvm_status consider(void *ctx, const kvm_s3_listed *o, kvm_err *err)
{
    candidates *c = ctx;
    char sha[65];
    if (o->age_s < c->age_s || !is_object(o->key, sha) ||
        o->upload.len >= (ptrdiff_t)sizeof c->at->upload)
        return KVM_OK;
    if (c->count == c->cap) {
        const ptrdiff_t cap = c->cap ? 2 * c->cap : 64;
        struct candidate *more = realloc(c->at, sizeof *more * (size_t)cap);
        if (!more) return kvm_fail(err, KVM_NOMEM, "no memory for a list of garbage");
        c->at = more;
        c->cap = cap;
    }
    struct candidate *n = &c->at[c->count++];
    memcpy(n->sha, sha, sizeof sha);
    snprintf(n->upload, sizeof n->upload, "%.*s", KVM_STR_ARG(o->upload));
    n->bytes = o->bytes;
    return KVM_OK;
}

static void tell(const candidates *c, const struct candidate *n, kvm_swept what)
{
    char key[80];
    const kvm_store_sweeping *w = c->w;
    kvm_arena scratch = w->catalogue->scratch;
    const kvm_str shown = kvm_s3_shown(w->store->s3, &scratch, key_of(n->sha, key));
    w->o->found(w->o->ctx, what, shown.at ? shown.at : n->sha, n->bytes);
    kvm_fault(KVM_FAULT_IN_SWEEP);
}

static kvm_status sweep_object(const candidates *c, const struct candidate *n,
                               kvm_err *err)
{
    char key[80];
    bool named;
    const kvm_store_sweeping *w = c->w;
    TRY(kvm_store__named(w->catalogue, n->sha, &named, err));
    if (named) return KVM_OK;
    if (!w->o->dry) TRY(kvm_s3_delete(w->store->s3, key_of(n->sha, key), err));
    tell(c, n, KVM_SWEPT_OBJECT);
    return KVM_OK;
}

/* So many at a time, since a database may be locked as a whole meanwhile. */
enum { AT_A_TIME = 16 };

static kvm_status sweep_objects(candidates *c, kvm_err *err)
{
    for (ptrdiff_t i = 0; i < c->count;) {
        const ptrdiff_t end = i + AT_A_TIME < c->count ? i + AT_A_TIME : c->count;
        TRY(kvm_catalogue_begin(c->w->catalogue, err));
        kvm_status r =
            kvm_catalogue_hold(c->w->catalogue, KVM_HOLD_OBJECTS, false, err);
        for (; i < end && !r; i++) r = sweep_object(c, &c->at[i], err);
        TRY(kvm_db_end(c->w->catalogue->db, r, err));
    }
    return KVM_OK;
}

static kvm_status sweep_uploads(const candidates *c, kvm_err *err)
{
    for (ptrdiff_t i = 0; i < c->count; i++) {
        char key[80];
        const struct candidate *n = &c->at[i];
        if (!c->w->o->dry)
            TRY(kvm_s3_abort(c->w->store->s3, key_of(n->sha, key),
                             kvm_str_of(n->upload), err));
        tell(c, n, KVM_SWEPT_TEMPORARY);
    }
    return KVM_OK;
}

/* The bucket is listed without the lock: an object only gets older, and whether it is
 * named is asked under the lock. Ages are of the server's clock, to the second. */
static kvm_status sweep(kvm_store_sweeping *w, kvm_err *err)
{
    candidates c = {.w = w, .age_s = kvm_wall() - w->before + 1};
    kvm_status r = KVM_OK;
    for (int i = 0; i < 16 && !r; i++) {
        char begins[16];
        snprintf(begins, sizeof begins, FOLDER "%x", i);
        c.count = 0;
        r = kvm_s3_list(w->store->s3, kvm_str_of(begins), consider, &c, err);
        if (!r) r = sweep_objects(&c, err);
    }
    c.count = 0;
    if (!r) r = kvm_s3_uploads(w->store->s3, KVM_STR(FOLDER), consider, &c, err);
    if (!r) r = sweep_uploads(&c, err);
    free(c.at);
    return r;
}

static kvm_status ignore(void *ctx, const kvm_s3_listed *o, kvm_err *err)
{
    (void)ctx, (void)o, (void)err;
    return KVM_OK;
}

/* A list, for what answers it says why when it refuses; few objects begin so. */
static kvm_status check(kvm_store *s, kvm_err *err)
{
    return kvm_s3_list(s->s3, KVM_STR(FOLDER "00/0000"), ignore, NULL, err);
}

const kvm_store_driver kvm_store_s3 = {.name = "s3",
                                       .look = look,
                                       .fetch = fetch,
                                       .send = send,
                                       .check = check,
                                       .sweep = sweep};
