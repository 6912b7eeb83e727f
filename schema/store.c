#include "schema/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/os.h"
#include "schema/fault.h"
#include "schema/s3.h"
#include "schema/store_internal.h"

static void free_seen(void *arg)
{
    kvm_store *s = arg;
    free(s->seen);
    s->seen = NULL;
}

/* The home itself, or a place behind it. */
static kvm_status choose_driver(kvm_store *s, kvm_arena *keep,
                                const kvm_store_options *o, kvm_err *err)
{
    s->driver = &kvm_store_directory;
    if (!o || !kvm_s3_address(o->where)) return KVM_OK;
    const kvm_s3_options s3 = {
        .address = o->where, .part_bytes = o->part_bytes, .http = o->http};
    s->driver = &kvm_store_s3;
    s->cache_bytes = o->cache_bytes;
    return kvm_s3_open(&s->s3, keep, &s3, err);
}

kvm_status kvm_store_open(kvm_store **out, kvm_arena *keep, kvm_str home,
                          const kvm_store_options *o, kvm_err *err)
{
    kvm_store *s = kvm_new(keep, kvm_store, 1);
    if (!s) return kvm_nomem(err, keep);
    const int n = snprintf(s->dir, sizeof s->dir, "%.*s/objects", KVM_STR_ARG(home));
    if (n < 0 || n >= (int)sizeof s->dir)
        return kvm_fail(err, KVM_USAGE, "store: a path of %td bytes is too long",
                        home.len);
    TRY(choose_driver(s, keep, o, err));
    TRY(kvm_dir_make(kvm_str_of(s->dir), err));
    TRY(kvm_arena_defer(keep, free_seen, s, err));
    *out = s;
    return KVM_OK;
}

bool kvm_store__is_name(const char *name)
{
    return strspn(name, "0123456789abcdef") == 62 && !name[62];
}

kvm_status kvm_store__path(const kvm_store *s, const char *sha, char path[PATH_MAX],
                           kvm_err *err)
{
    if (strspn(sha, "0123456789abcdef") != 64 || sha[64])
        return kvm_fail(err, KVM_FORMAT, "'%.80s' is no SHA-256 in hex", sha);
    snprintf(path, PATH_MAX, "%s/%.2s/%s", s->dir, sha, sha + 2);
    return KVM_OK;
}

bool kvm_store__seen(const kvm_store *s, const char *sha)
{
    for (ptrdiff_t i = 0; i < s->seen_count; i++)
        if (!memcmp(s->seen[i].hex, sha, 64)) return true;
    return false;
}

/* Out of memory costs a second hashing, no more. */
void kvm_store_trust(kvm_store *s, const char *sha)
{
    if (strlen(sha) != 64 || kvm_store__seen(s, sha)) return;
    if (s->seen_count == s->seen_cap) {
        const ptrdiff_t cap = s->seen_cap ? 2 * s->seen_cap : 64;
        kvm_store_digest *more = realloc(s->seen, sizeof *more * (size_t)cap);
        if (!more) return;
        s->seen = more;
        s->seen_cap = cap;
    }
    memcpy(s->seen[s->seen_count++].hex, sha, 64);
}

kvm_status kvm_store__hash(const char *path, char hex[65], kvm_err *err)
{
    kvm_arena scratch;
    TRY(kvm_arena_init(&scratch, 4 << 20, err));
    const kvm_status s = kvm_sha_file(kvm_str_of(path), hex, scratch, err);
    kvm_arena_free(&scratch);
    return s;
}

static bool text_of(kvm_str path, char out[PATH_MAX])
{
    if (path.len <= 0 || path.len >= PATH_MAX) return false;
    memcpy(out, path.at, (size_t)path.len);
    out[path.len] = 0;
    return strlen(out) == (size_t)path.len;
}

kvm_status kvm_store_hash(kvm_store *s, kvm_str path, char sha[65], int64_t *bytes,
                          kvm_err *err)
{
    char name[PATH_MAX];
    struct stat st;
    (void)s;
    if (!text_of(path, name))
        return kvm_fail(err, KVM_USAGE, "store: a path of %td bytes", path.len);
    const int fd = kvm_os->open(name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd < 0) return kvm_fail_errno(err, "%s: cannot open", name);
    kvm_status r = KVM_OK;
    if (kvm_os->fstat(fd, &st))
        r = kvm_fail_errno(err, "%s: cannot stat", name);
    else if (!S_ISREG(st.st_mode))
        r = kvm_fail(err, KVM_FORMAT, "%s: an artefact must be a plain file", name);
    else if (kvm_os->fsync(fd))
        r = kvm_fail_errno(err, "%s: cannot sync", name);
    if (kvm_os->close(fd) && !r) r = kvm_fail_errno(err, "%s: cannot close", name);
    if (!r) r = kvm_store__hash(name, sha, err);
    if (!r) *bytes = st.st_size;
    return r;
}

kvm_status kvm_store__make_folder(const char *object, kvm_err *err)
{
    return kvm_dir_make((kvm_str){object, strrchr(object, '/') - object}, err);
}

/* From another file system: read and publish. */
static kvm_status copy_in(const char *from, const char *to, const char *sha,
                          kvm_err *err)
{
    char hex[65];
    kvm_arena a;
    kvm_str content;
    kvm_out *out;
    TRY(kvm_arena_init(&a, 1 << 20, err));
    kvm_status s = kvm_file_map(&content, &a, kvm_str_of(from), err);
    if (!s) s = kvm_out_begin(&out, &a, kvm_str_of(to), err);
    if (!s) s = kvm_out_write(out, content.at, (size_t)content.len, err);
    if (!s) s = kvm_out_publish(out, hex, err);
    kvm_arena_free(&a);
    if (!s && strcmp(hex, sha) != 0) {
        kvm_os->unlink(to);
        s = kvm_fail(err, KVM_IO, "%s changed while it was published", from);
    }
    return s;
}

static kvm_status move_in(const char *from, const char *to, const char *sha,
                          kvm_err *err)
{
    TRY(kvm_store__make_folder(to, err));
    if (kvm_os->rename(from, to) == 0) {
        kvm_fault(KVM_FAULT_IN_PUBLISH);
        return kvm_file_settle(to, err);
    }
    if (errno != EXDEV) return kvm_fail_errno(err, "%s: cannot move to %s", from, to);
    TRY(copy_in(from, to, sha, err));
    kvm_os->unlink(from); /* what stays goes with the job's folder */
    return KVM_OK;
}

static bool is_here(const char *path, int64_t bytes)
{
    struct stat st;
    return kvm_os->stat(path, &st) == 0 && S_ISREG(st.st_mode) &&
           (bytes < 0 || st.st_size == bytes);
}

/* Whether a sound object is here. One that has rotted is replaced by the new file. */
static bool sound(kvm_store *s, const char *path, const char *sha, int64_t bytes)
{
    char hex[65];
    if (!is_here(path, bytes)) return false;
    if (kvm_store__seen(s, sha)) return true;
    if (kvm_store__hash(path, hex, NULL) || strcmp(hex, sha) != 0) return false;
    kvm_store_trust(s, sha);
    return true;
}

/* Whether the content is here and as young as if it had just come in: an old object
 * that nobody names is a sweep's, and the catalogue will only name it when the job
 * commits. */
static bool renewed(kvm_store *s, const char *path, const char *sha, int64_t bytes)
{
    return sound(s, path, sha, bytes) && kvm_os->touch(path) == 0;
}

static kvm_status send_out(kvm_store *s, const char *from, const char *to,
                           const char *sha, int64_t bytes, kvm_err *err)
{
    return s->driver->send ? s->driver->send(s, from, to, sha, bytes, err) : KVM_OK;
}

kvm_status kvm_store_put(kvm_store *s, kvm_str path, const char *sha, int64_t bytes,
                         kvm_err *err)
{
    char from[PATH_MAX], to[PATH_MAX];
    if (!text_of(path, from))
        return kvm_fail(err, KVM_USAGE, "store: a path of %td bytes", path.len);
    TRY(kvm_store__path(s, sha, to, err));
    TRY(send_out(s, from, to, sha, bytes, err));
    if (renewed(s, to, sha, bytes)) {
        kvm_os->unlink(from);
        return KVM_OK;
    }
    TRY(move_in(from, to, sha, err));
    kvm_store_trust(s, sha);
    return kvm_store__evict(s, 0, err);
}

kvm_status kvm_store_add(kvm_store *s, kvm_str content, char sha[65], kvm_err *err)
{
    char path[PATH_MAX];
    kvm_arena scratch;
    TRY(kvm_sha_of(content, sha, err));
    TRY(kvm_store__path(s, sha, path, err));
    if (!renewed(s, path, sha, content.len)) {
        TRY(kvm_store__make_folder(path, err));
        TRY(kvm_arena_init(&scratch, 1 << 20, err));
        const kvm_status r = kvm_file_publish(kvm_str_of(path), content, scratch, err);
        kvm_arena_free(&scratch);
        TRY(r);
        kvm_store_trust(s, sha);
    }
    return send_out(s, path, path, sha, content.len, err);
}

kvm_status kvm_store_look(kvm_store *s, const char *sha, int64_t bytes, bool *there,
                          kvm_err *err)
{
    return s->driver->look(s, sha, bytes, there, err);
}

kvm_status kvm_store_check(kvm_store *s, kvm_err *err)
{
    return s->driver->check ? s->driver->check(s, err) : KVM_OK;
}

/* ---- a directory and nothing behind it ---- */

static kvm_status look_here(kvm_store *s, const char *sha, int64_t bytes, bool *there,
                            kvm_err *err)
{
    char path[PATH_MAX];
    TRY(kvm_store__path(s, sha, path, err));
    *there = is_here(path, bytes);
    return KVM_OK;
}

const kvm_store_driver kvm_store_directory = {.name = "directory", .look = look_here};

kvm_status kvm_store_get(kvm_store *s, kvm_str *path, kvm_arena *keep, const char *sha,
                         int64_t bytes, kvm_err *err)
{
    char name[PATH_MAX], hex[65];
    struct stat st;
    if (s->driver->fetch) return kvm_store__cached(s, path, keep, sha, bytes, err);
    TRY(kvm_store__path(s, sha, name, err));
    if (kvm_os->stat(name, &st)) {
        if (errno != ENOENT && errno != ENOTDIR)
            return kvm_fail_errno(err, "artefact %s", name);
        return kvm_fail(err, KVM_DAMAGED,
                        "artefact %s has gone from the store: run again", name);
    }
    if (bytes >= 0 && st.st_size != bytes)
        return kvm_fail(err, KVM_DAMAGED,
                        "artefact %s has %lld bytes instead of %lld: it was damaged; "
                        "delete it and run again",
                        name, (long long)st.st_size, (long long)bytes);
    if (!kvm_store__seen(s, sha)) {
        TRY(kvm_store__hash(name, hex, err));
        if (strcmp(hex, sha) != 0)
            return kvm_fail(err, KVM_DAMAGED,
                            "artefact %s: its content has the hash %.12s…: it was "
                            "damaged; delete it and run again",
                            name, hex);
        kvm_store_trust(s, sha);
    }
    *path = kvm_str_copy(keep, kvm_str_of(name));
    return path->at ? KVM_OK : kvm_nomem(err, keep);
}
