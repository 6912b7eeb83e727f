#include "schema/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/os.h"
#include "schema/catalogue_internal.h"
#include "schema/fault.h"

typedef struct digest {
    char hex[64];
} digest;

struct kvm_store {
    char dir[PATH_MAX - 128]; /* DIR/objects */
    digest *seen;             /* verified by this process; on the heap */
    ptrdiff_t seen_count, seen_cap;
};

static void free_seen(void *arg)
{
    kvm_store *s = arg;
    free(s->seen);
    s->seen = NULL;
}

kvm_status kvm_store_open(kvm_store **out, kvm_arena *keep, kvm_str dir, kvm_err *err)
{
    kvm_store *s = kvm_new(keep, kvm_store, 1);
    if (!s) return kvm_nomem(err, keep);
    const int n = snprintf(s->dir, sizeof s->dir, "%.*s/objects", KVM_STR_ARG(dir));
    if (n < 0 || n >= (int)sizeof s->dir)
        return kvm_fail(err, KVM_USAGE, "store: a path of %td bytes is too long",
                        dir.len);
    TRY(kvm_dir_make(kvm_str_of(s->dir), err));
    TRY(kvm_arena_defer(keep, free_seen, s, err));
    *out = s;
    return KVM_OK;
}

/* Hashes come from the catalogue and from files of records: only real ones become
 * paths. */
static kvm_status object_path(const kvm_store *s, const char *sha, char path[PATH_MAX],
                              kvm_err *err)
{
    if (strspn(sha, "0123456789abcdef") != 64 || sha[64])
        return kvm_fail(err, KVM_FORMAT, "'%.80s' is no SHA-256 in hex", sha);
    snprintf(path, PATH_MAX, "%s/%.2s/%s", s->dir, sha, sha + 2);
    return KVM_OK;
}

static bool seen(const kvm_store *s, const char *sha)
{
    for (ptrdiff_t i = 0; i < s->seen_count; i++)
        if (!memcmp(s->seen[i].hex, sha, 64)) return true;
    return false;
}

/* Out of memory costs a second hashing, no more. */
void kvm_store_trust(kvm_store *s, const char *sha)
{
    if (strlen(sha) != 64 || seen(s, sha)) return;
    if (s->seen_count == s->seen_cap) {
        const ptrdiff_t cap = s->seen_cap ? 2 * s->seen_cap : 64;
        digest *more = realloc(s->seen, sizeof *more * (size_t)cap);
        if (!more) return;
        s->seen = more;
        s->seen_cap = cap;
    }
    memcpy(s->seen[s->seen_count++].hex, sha, 64);
}

/* kvm_sha_file takes no memory but for messages */
static kvm_status hash_file(const char *path, char hex[65], kvm_err *err)
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
    if (!r) r = hash_file(name, sha, err);
    if (!r) *bytes = st.st_size;
    return r;
}

static kvm_status sync_folder(const char *object, kvm_err *err)
{
    char dir[PATH_MAX];
    snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(object, '/') - object), object);
    const int fd = kvm_os->open(dir, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0) return kvm_fail_errno(err, "%s: cannot open", dir);
    kvm_status s = KVM_OK;
    if (kvm_os->fsync(fd) && errno != EINVAL)
        s = kvm_fail_errno(err, "%s: cannot sync", dir);
    kvm_os->close(fd);
    return s;
}

static kvm_status make_folder(const char *object, kvm_err *err)
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
    TRY(make_folder(to, err));
    if (kvm_os->rename(from, to) == 0) {
        kvm_fault(KVM_FAULT_IN_PUBLISH);
        return sync_folder(to, err);
    }
    if (errno != EXDEV) return kvm_fail_errno(err, "%s: cannot move to %s", from, to);
    TRY(copy_in(from, to, sha, err));
    kvm_os->unlink(from); /* what stays goes with the job's folder */
    return KVM_OK;
}

/* Whether a sound object is there. One that has rotted is replaced by the new file. */
static bool sound(kvm_store *s, const char *path, const char *sha, int64_t bytes)
{
    char hex[65];
    if (!kvm_store_has(s, sha, bytes)) return false;
    if (seen(s, sha)) return true;
    if (hash_file(path, hex, NULL) || strcmp(hex, sha) != 0) return false;
    kvm_store_trust(s, sha);
    return true;
}

/* Whether the content is there and as young as if it had just come in: an old object
 * that nobody names is a sweep's, and the catalogue will only name it when the job
 * commits. */
static bool renewed(kvm_store *s, const char *path, const char *sha, int64_t bytes)
{
    return sound(s, path, sha, bytes) && kvm_os->touch(path) == 0;
}

kvm_status kvm_store_put(kvm_store *s, kvm_str path, const char *sha, int64_t bytes,
                         kvm_err *err)
{
    char from[PATH_MAX], to[PATH_MAX];
    if (!text_of(path, from))
        return kvm_fail(err, KVM_USAGE, "store: a path of %td bytes", path.len);
    TRY(object_path(s, sha, to, err));
    if (renewed(s, to, sha, bytes)) {
        kvm_os->unlink(from);
        return KVM_OK;
    }
    TRY(move_in(from, to, sha, err));
    kvm_store_trust(s, sha);
    return KVM_OK;
}

kvm_status kvm_store_add(kvm_store *s, kvm_str content, char sha[65], kvm_err *err)
{
    char path[PATH_MAX];
    kvm_arena scratch;
    TRY(kvm_sha_of(content, sha, err));
    TRY(object_path(s, sha, path, err));
    if (renewed(s, path, sha, content.len)) return KVM_OK;
    TRY(make_folder(path, err));
    TRY(kvm_arena_init(&scratch, 1 << 20, err));
    const kvm_status r = kvm_file_publish(kvm_str_of(path), content, scratch, err);
    kvm_arena_free(&scratch);
    if (!r) kvm_store_trust(s, sha);
    return r;
}

bool kvm_store_has(kvm_store *s, const char *sha, int64_t bytes)
{
    char path[PATH_MAX];
    struct stat st;
    return object_path(s, sha, path, NULL) == KVM_OK && kvm_os->stat(path, &st) == 0 &&
           S_ISREG(st.st_mode) && (bytes < 0 || st.st_size == bytes);
}

kvm_status kvm_store_get(kvm_store *s, kvm_str *path, kvm_arena *keep, const char *sha,
                         int64_t bytes, kvm_err *err)
{
    char name[PATH_MAX], hex[65];
    struct stat st;
    TRY(object_path(s, sha, name, err));
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
    if (!seen(s, sha)) {
        TRY(hash_file(name, hex, err));
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

/* ---- garbage ---- */

typedef struct sweep {
    kvm_store *store;
    kvm_catalogue *catalogue;
    const kvm_sweep *o;
    double before; /* wall clock: older files may go */
} sweep;

/* The change time is looked at: it is when the file entered, however old its
 * content. */
static bool old_enough(const sweep *w, const char *path, struct stat *st)
{
    return kvm_os->stat(path, st) == 0 && S_ISREG(st->st_mode) &&
           kvm_seconds(st->st_ctim) <= w->before;
}

/* An object's file name within folder ab is 62 hex digits; all else there is
 * temporary. */
static kvm_status sweep_file(sweep *w, const char *folder, const char *name,
                             kvm_err *err)
{
    char path[PATH_MAX], sha[65];
    struct stat st;
    int64_t named = 0;
    if (snprintf(path, sizeof path, "%s/%s/%s", w->store->dir, folder, name) >=
        (int)sizeof path)
        return KVM_OK;
    if (!old_enough(w, path, &st)) return KVM_OK;
    const bool object = strspn(name, "0123456789abcdef") == 62 && !name[62];
    if (object) {
        snprintf(sha, sizeof sha, "%.2s%.62s", folder, name);
        TRY(kvm_db_one(w->catalogue->db, KVM_SQL_ARTEFACT_NAMED,
                       KVM_ARGS(kvm_cell_c(sha)), &named, err));
    }
    /* once more: it may have been published again meanwhile */
    if (named || !old_enough(w, path, &st)) return KVM_OK;
    if (!w->o->dry && kvm_os->unlink(path))
        return errno == ENOENT ? KVM_OK /* another sweep */
                               : kvm_fail_errno(err, "%s: cannot remove", path);
    w->o->found(w->o->ctx, object ? KVM_SWEPT_OBJECT : KVM_SWEPT_TEMPORARY, path,
                st.st_size);
    kvm_fault(KVM_FAULT_IN_SWEEP);
    return KVM_OK;
}

static kvm_status sweep_folder(sweep *w, const char *folder, kvm_err *err)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", w->store->dir, folder);
    DIR *d = opendir(path);
    if (!d) return errno == ENOENT ? KVM_OK : kvm_fail_errno(err, "%s", path);
    kvm_status s = kvm_catalogue_begin(w->catalogue, err);
    if (!s) {
        s = kvm_catalogue_hold(w->catalogue, KVM_HOLD_OBJECTS, false, err);
        const struct dirent *e;
        while (!s && (e = readdir(d)))
            if (e->d_name[0] != '.') s = sweep_file(w, folder, e->d_name, err);
        s = kvm_db_end(w->catalogue->db, s, err);
    }
    closedir(d);
    return s;
}

/* What an attempt that is under way has published and not yet committed is younger than
 * the attempt. Change times lag behind the clock by a tick or two: hence the second. */
static kvm_status oldest_kept(kvm_catalogue *c, double age_s, double *before,
                              kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    kvm_rows row;
    const double now = kvm_wall();
    TRY(kvm_db_query(c->db, KVM_SQL_JOB_LONGEST, KVM_NO_ARGS, &row, &scratch, err));
    const double longest = row.count ? kvm_rows_f64(&row, 0, 0) : 0;
    *before = now - 1 - (longest > age_s ? longest : age_s);
    return KVM_OK;
}

kvm_status kvm_store_sweep(kvm_store *s, kvm_catalogue *c, const kvm_sweep *o,
                           kvm_err *err)
{
    sweep w = {.store = s, .catalogue = c, .o = o};
    TRY(oldest_kept(c, o->age_s, &w.before, err));
    for (int i = 0; i < 256; i++) {
        char folder[3];
        snprintf(folder, sizeof folder, "%02x", i);
        TRY(sweep_folder(&w, folder, err));
    }
    return KVM_OK;
}
