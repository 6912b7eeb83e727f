/* store_cache.c - what a home keeps of the objects of a bucket.
 *
 *   fetched (its hash checked) or put -> used, again and again -> evicted
 *
 * Processes of one home share the files. Who uses one holds a lock on it (flock,
 * shared) as long as its arena lives; who evicts takes the other kind without waiting,
 * and passes over what he does not get. The kernel lets go of the locks of a process
 * that dies. A file's time of change says when it was last used. */
#define _DEFAULT_SOURCE /* flock */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/os.h"
#include "schema/store_internal.h"

/* ---- using ---- */

typedef struct held {
    int fd;
} held;

static void let_go(void *arg)
{
    const held *h = arg;
    kvm_os->close(h->fd);
}

/* fd with the object locked, or -1: it is not here, or was evicted just now */
static kvm_status hold(const char *path, int *fd, struct stat *st, kvm_err *err)
{
    *fd = kvm_os->open(path, O_RDONLY | O_NOFOLLOW, 0);
    if (*fd < 0)
        return errno == ENOENT ? KVM_OK : kvm_fail_errno(err, "artefact %s", path);
    if (flock(*fd, LOCK_SH) || kvm_os->fstat(*fd, st)) {
        const kvm_status s = kvm_fail_errno(err, "%s: cannot lock", path);
        kvm_os->close(*fd);
        return s;
    }
    if (st->st_nlink > 0) return KVM_OK;
    kvm_os->close(*fd);
    *fd = -1;
    return KVM_OK;
}

/* Whether the held file is the object: what has rotted here is had again. */
static kvm_status is_sound(kvm_store *s, const char *path, const struct stat *st,
                           const char *sha, int64_t bytes, bool *sound, kvm_err *err)
{
    char hex[65];
    *sound = S_ISREG(st->st_mode) && (bytes < 0 || st->st_size == bytes);
    if (!*sound || kvm_store__seen(s, sha)) return KVM_OK;
    TRY(kvm_store__hash(path, hex, err));
    *sound = strcmp(hex, sha) == 0;
    if (*sound) kvm_store_trust(s, sha);
    return KVM_OK;
}

static kvm_status take_held(kvm_str *path, const char *name, int fd, kvm_arena *keep,
                            kvm_err *err)
{
    held *h = kvm_new(keep, held, 1);
    const kvm_str copy = kvm_str_copy(keep, kvm_str_of(name));
    if (!h || !copy.at) {
        kvm_os->close(fd);
        return kvm_nomem(err, keep);
    }
    h->fd = fd;
    kvm_os->touch(name); /* of use to evictions alone */
    TRY(kvm_arena_defer(keep, let_go, h, err));
    *path = copy;
    return KVM_OK;
}

kvm_status kvm_store__cached(kvm_store *s, kvm_str *path, kvm_arena *keep,
                             const char *sha, int64_t bytes, kvm_err *err)
{
    enum { TRIES = 10 }; /* an eviction may come between fetching and holding */
    char name[PATH_MAX];
    TRY(kvm_store__path(s, sha, name, err));
    for (int i = 0; i < TRIES; i++) {
        struct stat st;
        int fd;
        bool sound = false;
        TRY(hold(name, &fd, &st, err));
        if (fd >= 0) {
            const kvm_status r = is_sound(s, name, &st, sha, bytes, &sound, err);
            if (!r && sound) return take_held(path, name, fd, keep, err);
            if (!r && !sound) kvm_os->unlink(name);
            kvm_os->close(fd);
            TRY(r);
        }
        TRY(s->driver->fetch(s, sha, bytes, name, err));
    }
    return kvm_fail(err, KVM_BUSY,
                    "artefact %s: evicted as often as it was fetched: allow more with "
                    "--cache",
                    name);
}

/* ---- evicting ---- */

typedef struct entry {
    char sha[65];
    int64_t bytes;
    double used;
} entry;

typedef struct content {
    entry *at; /* on the heap */
    ptrdiff_t count, cap;
    int64_t bytes;
} content;

static kvm_status add_entry(content *c, const char *folder, const char *name,
                            const struct stat *st, kvm_err *err)
{
    if (c->count == c->cap) {
        const ptrdiff_t cap = c->cap ? 2 * c->cap : 256;
        entry *more = realloc(c->at, sizeof *more * (size_t)cap);
        if (!more) return kvm_fail(err, KVM_NOMEM, "no memory for a list of the cache");
        c->at = more;
        c->cap = cap;
    }
    entry *e = &c->at[c->count++];
    snprintf(e->sha, sizeof e->sha, "%.2s%.62s", folder, name);
    e->bytes = st->st_size;
    e->used = kvm_seconds(st->st_mtim);
    c->bytes += e->bytes;
    return KVM_OK;
}

static kvm_status list_folder(const kvm_store *s, content *c, const char *folder,
                              kvm_err *err)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", s->dir, folder);
    DIR *d = opendir(path);
    if (!d) return errno == ENOENT ? KVM_OK : kvm_fail_errno(err, "%s", path);
    kvm_status r = KVM_OK;
    const struct dirent *e;
    while (!r && (e = readdir(d))) {
        struct stat st;
        if (kvm_store__is_name(e->d_name) &&
            snprintf(path, sizeof path, "%s/%s/%s", s->dir, folder, e->d_name) <
                (int)sizeof path &&
            kvm_os->stat(path, &st) == 0)
            r = add_entry(c, folder, e->d_name, &st, err);
    }
    closedir(d);
    return r;
}

static int by_use(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    return x->used < y->used ? -1 : x->used > y->used;
}

/* An object of a home that was a store of its own before lies only here. */
static kvm_status evict_one(kvm_store *s, const entry *e, bool *gone, kvm_err *err)
{
    char path[PATH_MAX];
    bool elsewhere = false;
    *gone = false;
    TRY(kvm_store__path(s, e->sha, path, err));
    const int fd = kvm_os->open(path, O_RDONLY | O_NOFOLLOW, 0);
    if (fd < 0) return KVM_OK;
    kvm_status r = KVM_OK;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        r = s->driver->look(s, e->sha, e->bytes, &elsewhere, err);
        *gone = !r && elsewhere && kvm_os->unlink(path) == 0;
    }
    kvm_os->close(fd);
    return r;
}

kvm_status kvm_store__evict(kvm_store *s, int64_t bytes, kvm_err *err)
{
    content c = {0};
    kvm_status r = KVM_OK;
    if (s->cache_bytes <= 0) return KVM_OK;
    for (int i = 0; i < 256 && !r; i++) {
        char folder[3];
        snprintf(folder, sizeof folder, "%02x", i);
        r = list_folder(s, &c, folder, err);
    }
    if (c.count > 0) qsort(c.at, (size_t)c.count, sizeof *c.at, by_use);
    for (ptrdiff_t i = 0; i < c.count && !r && c.bytes > s->cache_bytes - bytes; i++) {
        bool gone;
        r = evict_one(s, &c.at[i], &gone, err);
        if (!r && gone) c.bytes -= c.at[i].bytes;
    }
    free(c.at);
    return r;
}
