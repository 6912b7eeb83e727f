/* Every call of the operating system that can fail the work goes through kvm_os
 * (base/os.h), so that tests/fault can fail each of them; hints (madvise) do not. A
 * failure leaves no descriptor, no mapping and no temporary behind. */
#define _DEFAULT_SOURCE /* madvise */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/os.h"
#include "base/roots.h"

/* A path as the operating system takes it; refuses what it would silently cut. */
static kvm_status os_path(char out[PATH_MAX], kvm_str path, kvm_err *err)
{
    if (path.len <= 0) return kvm_fail(err, KVM_USAGE, "an empty path names no file");
    if (memchr(path.at, 0, (size_t)path.len))
        return kvm_fail(err, KVM_USAGE, "%s...: the path holds a zero byte", path.at);
    if (path.len >= PATH_MAX)
        return kvm_fail(err, KVM_USAGE,
                        "%.60s...: a path of %td bytes; the limit is %d", path.at,
                        path.len, PATH_MAX - 1);
    memcpy(out, path.at, (size_t)path.len);
    out[path.len] = 0;
    return KVM_OK;
}

/* Opens a regular file to read; O_NONBLOCK, since a pipe of that name must not hang. */
static kvm_status open_regular(int *fd, struct stat *st, const char *path, kvm_err *err)
{
    const int f = kvm_os->open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
    if (f < 0 && errno == ENXIO)
        return kvm_fail(err, KVM_USAGE, "%s: is a socket or a device, not a file",
                        path);
    if (f < 0) return kvm_fail_errno(err, "%s: cannot open", path);
    kvm_status s = kvm_roots_admit_opened(f, path, err);
    if (!s && kvm_os->fstat(f, st)) s = kvm_fail_errno(err, "%s: cannot stat", path);
    if (!s && !S_ISREG(st->st_mode))
        s = kvm_fail(err, KVM_USAGE, "%s: is %s, not a file", path,
                     S_ISDIR(st->st_mode) ? "a directory" : "a device or pipe");
    if (s)
        kvm_os->close(f);
    else
        *fd = f;
    return s;
}

kvm_status kvm_file_open(int *fd, kvm_str path, kvm_err *err)
{
    char name[PATH_MAX];
    struct stat st;
    TRY(os_path(name, path, err));
    return open_regular(fd, &st, name, err);
}

/* up to n bytes from fd; *got < n at the end of the file */
static kvm_status read_all(int fd, char *into, size_t n, size_t *got, const char *path,
                           kvm_err *err)
{
    size_t have = 0;
    while (have < n) {
        const ssize_t r = kvm_os->read(fd, into + have, n - have);
        if (r < 0) return kvm_fail_errno(err, "%s: cannot read", path);
        if (r == 0) break;
        have += (size_t)r;
    }
    *got = have;
    return KVM_OK;
}

enum { UNSIZED_BYTES = 1 << 20 }; /* files of /proc say size 0 and are small */

static kvm_status read_into(kvm_str *out, kvm_arena *keep, int fd, size_t size,
                            size_t max_bytes, const char *path, kvm_err *err)
{
    const bool unsized = size == 0;
    if (unsized) size = max_bytes < UNSIZED_BYTES ? max_bytes : UNSIZED_BYTES;
    if (size > max_bytes)
        return kvm_fail(err, KVM_RANGE, "%s: %zu bytes; the limit here is %zu", path,
                        size, max_bytes);
    char *const before = keep->at;
    char *text = kvm_arena_alloc_raw(keep, 1, 16, (ptrdiff_t)size + 1);
    if (!text) return kvm_nomem(err, keep);
    size_t got = 0;
    /* one byte more than announced tells a file that grew, or one without a size */
    TRY(read_all(fd, text, size + unsized, &got, path, err));
    if (unsized && got > size)
        return kvm_fail(err, KVM_RANGE, "%s: the limit here is %zu bytes", path, size);
    if (!unsized && got < size)
        return kvm_fail(err, KVM_IO,
                        "%s: shrank from %zu to %zu bytes while it was read", path,
                        size, got);
    if (unsized) { /* keep only what came */
        keep->at = before;
        text = kvm_arena_alloc_raw(keep, 1, 16, (ptrdiff_t)got + 1);
    }
    text[got] = 0;
    *out = (kvm_str){text, (ptrdiff_t)got};
    return KVM_OK;
}

kvm_status kvm_file_read(kvm_str *out, kvm_arena *keep, kvm_str path, size_t max_bytes,
                         kvm_err *err)
{
    char name[PATH_MAX];
    struct stat st;
    int fd;
    TRY(os_path(name, path, err));
    TRY(open_regular(&fd, &st, name, err));
    if (max_bytes > PTRDIFF_MAX / 2) max_bytes = PTRDIFF_MAX / 2;
    const kvm_status s =
        read_into(out, keep, fd, (size_t)st.st_size, max_bytes, name, err);
    kvm_os->close(fd); /* read only: nothing can be lost */
    return s;
}

typedef struct mapping {
    void *at;
    size_t bytes;
} mapping;

static void unmap(void *arg)
{
    const mapping *m = arg;
    kvm_os->munmap(m->at, m->bytes);
}

kvm_status kvm_file_map_state(kvm_str *out, struct stat *state, kvm_arena *keep,
                              kvm_str path, kvm_err *err)
{
    char name[PATH_MAX];
    struct stat st;
    int fd;
    TRY(os_path(name, path, err));
    TRY(open_regular(&fd, &st, name, err));
    if (st.st_size == 0) {
        kvm_os->close(fd);
        *out = KVM_STR("");
        *state = st;
        return KVM_OK;
    }
    mapping *m = kvm_new(keep, mapping, 1);
    kvm_status s = m ? KVM_OK : kvm_nomem(err, keep);
    if (m) {
        m->bytes = (size_t)st.st_size;
        m->at = kvm_os->mmap(m->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (m->at == MAP_FAILED) s = kvm_fail_errno(err, "%s: cannot map", name);
        /* What comes from disk from now on may come in huge pages: a stream of weights
         * through them is faster by a third. Only a hint, so a refusal is no error. */
        if (!s) madvise(m->at, m->bytes, MADV_HUGEPAGE);
    }
    kvm_os->close(fd);
    if (s) return s;
    TRY(kvm_arena_defer(keep, unmap, m, err));
    *out = (kvm_str){m->at, (ptrdiff_t)m->bytes};
    *state = st;
    return KVM_OK;
}

kvm_status kvm_file_map(kvm_str *out, kvm_arena *keep, kvm_str path, kvm_err *err)
{
    struct stat state;
    return kvm_file_map_state(out, &state, keep, path, err);
}

/* whole pages around the bytes, or within them */
static void hint(const void *at, size_t n, bool around, int advice)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)at;
    const uintptr_t low = around ? from / page * page : (from + page - 1) / page * page;
    const uintptr_t high =
        around ? (from + n + page - 1) / page * page : (from + n) / page * page;
    if (low < high) madvise((void *)low, high - low, advice);
}

void kvm_file_want(const void *at, size_t n)
{
    hint(at, n, true, MADV_WILLNEED);
}

void kvm_file_leave(const void *at, size_t n)
{
    hint(at, n, false, MADV_DONTNEED);
}

/* --- files at places --- */

kvm_status kvm_file_read_at(int fd, kvm_str path, void *buf, size_t n, off_t at,
                            kvm_err *err)
{
    for (char *to = buf; n > 0;) {
        const ssize_t r = kvm_os->pread(fd, to, n, at);
        if (r < 0) return kvm_fail_errno(err, "%s: cannot read", path.at);
        if (r == 0) return kvm_fail(err, KVM_IO, "%s: ended early", path.at);
        to += r, at += r, n -= (size_t)r;
    }
    return KVM_OK;
}

kvm_status kvm_file_write_at(int fd, kvm_str path, const void *buf, size_t n, off_t at,
                             kvm_err *err)
{
    for (const char *from = buf; n > 0;) {
        const ssize_t w = kvm_os->pwrite(fd, from, n, at);
        if (w < 0) return kvm_fail_errno(err, "%s: cannot write", path.at);
        if (w == 0) return kvm_fail(err, KVM_IO, "%s: cannot write", path.at);
        from += w, at += w, n -= (size_t)w;
    }
    return KVM_OK;
}

/* --- files being written --- */

/* Write all of it; a short write is followed by another one, which says why. */
static kvm_status write_all(int fd, const char *from, size_t n, const char *path,
                            kvm_err *err)
{
    while (n > 0) {
        const ssize_t w = kvm_os->write(fd, from, n);
        if (w < 0) return kvm_fail_errno(err, "%s: cannot write", path);
        if (w == 0) return kvm_fail(err, KVM_IO, "%s: cannot write", path);
        from += w;
        n -= (size_t)w;
    }
    return KVM_OK;
}

kvm_status kvm_file_settle(const char *path, kvm_err *err)
{
    char dir[PATH_MAX];
    const char *slash = strrchr(path, '/');
    const size_t n = slash ? (size_t)(slash - path) : 0;
    memcpy(dir, path, n);
    memcpy(dir + n, n ? "" : slash ? "/" : ".", n ? 1 : 2);
    const int fd = kvm_os->open(dir, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0) return kvm_fail_errno(err, "%s: cannot open the directory", dir);
    kvm_status s = KVM_OK;
    /* EINVAL: a file system that has no such operation has nothing to sync */
    if (kvm_os->fsync(fd) && errno != EINVAL)
        s = kvm_fail_errno(err, "%s: cannot sync the directory", dir);
    kvm_os->close(fd);
    return s;
}

enum { OUT_BYTES = 1 << 20 };

struct kvm_out {
    int fd;        /* -1 when closed */
    bool at_temp;  /* the temporary name exists */
    size_t filled; /* bytes of buffer that wait to be written */
    char *buffer;  /* OUT_BYTES, on the heap: a dropped file gives it back at once */
    kvm_sha *sha;
    char path[PATH_MAX], temp[PATH_MAX];
};

static void close_out(kvm_out *out)
{
    if (out->fd >= 0) kvm_os->close(out->fd);
    out->fd = -1;
    if (out->sha) kvm_sha_drop(out->sha);
    out->sha = NULL;
    free(out->buffer);
    out->buffer = NULL;
}

void kvm_out_drop(kvm_out *out)
{
    close_out(out);
    if (out->at_temp) kvm_os->unlink(out->temp);
    out->at_temp = false;
}

static void drop_out(void *arg)
{
    kvm_out_drop(arg);
}

static kvm_status open_temp(kvm_out *out, kvm_err *err)
{
    static _Atomic unsigned serial;
    for (int tries = 0; tries < 100; tries++) {
        const int n = snprintf(out->temp, sizeof out->temp, "%s.%ld-%u.tmp", out->path,
                               (long)getpid(), atomic_fetch_add(&serial, 1u));
        if (n < 0 || n >= (int)sizeof out->temp)
            return kvm_fail(err, KVM_USAGE, "%.60s...: the path is too long",
                            out->path);
        out->fd = kvm_os->open(out->temp, O_WRONLY | O_CREAT | O_EXCL, 0666);
        if (out->fd >= 0) {
            out->at_temp = true;
            return KVM_OK;
        }
        if (errno != EEXIST) break; /* else: left by a process that had our number */
    }
    return kvm_fail_errno(err, "%s: cannot create", out->temp);
}

kvm_status kvm_out_begin(kvm_out **out, kvm_arena *keep, kvm_str path, kvm_err *err)
{
    kvm_out *o = kvm_new(keep, kvm_out, 1);
    if (!o) return kvm_nomem(err, keep);
    o->fd = -1;
    TRY(os_path(o->path, path, err));
    TRY(kvm_arena_defer(keep, drop_out, o, err));
    o->buffer = malloc(OUT_BYTES);
    kvm_status s = o->buffer ? KVM_OK : kvm_fail(err, KVM_NOMEM, "no memory to write");
    if (!s) s = kvm_sha_begin(&o->sha, err);
    if (!s) s = open_temp(o, err);
    if (s)
        kvm_out_drop(o);
    else
        *out = o;
    return s;
}

void kvm_out_unhashed(kvm_out *out)
{
    kvm_sha_drop(out->sha);
    out->sha = NULL;
}

static kvm_status out_flush(kvm_out *out, kvm_err *err)
{
    const size_t n = out->filled;
    out->filled = 0;
    return write_all(out->fd, out->buffer, n, out->temp, err);
}

static kvm_status out_write(kvm_out *out, const char *bytes, size_t n, kvm_err *err)
{
    if (out->sha) TRY(kvm_sha_add(out->sha, bytes, n, err));
    if (n > OUT_BYTES - out->filled) TRY(out_flush(out, err));
    if (n >= OUT_BYTES) return write_all(out->fd, bytes, n, out->temp, err);
    memcpy(out->buffer + out->filled, bytes, n);
    out->filled += n;
    return KVM_OK;
}

kvm_status kvm_out_write(kvm_out *out, const void *bytes, size_t n, kvm_err *err)
{
    if (out->fd < 0)
        return kvm_fail(err, KVM_INTERNAL, "%s: written to after its end", out->path);
    if (n == 0) return KVM_OK;
    const kvm_status s = out_write(out, bytes, n, err);
    if (s) kvm_out_drop(out);
    return s;
}

static kvm_status out_publish(kvm_out *out, char hex[65], kvm_err *err)
{
    char digest[65];
    TRY(out_flush(out, err));
    kvm_sha *sha = out->sha;
    out->sha = NULL;
    if (sha) TRY(kvm_sha_end(sha, digest, err));
    if (hex && !sha)
        return kvm_fail(err, KVM_INTERNAL, "%s: its hash was not wanted", out->path);
    if (kvm_os->fsync(out->fd))
        return kvm_fail_errno(err, "%s: cannot sync", out->temp);
    const int fd = out->fd;
    out->fd = -1;
    if (kvm_os->close(fd)) return kvm_fail_errno(err, "%s: cannot close", out->temp);
    if (kvm_os->rename(out->temp, out->path))
        return kvm_fail_errno(err, "%s: cannot rename to %s", out->temp, out->path);
    out->at_temp = false;
    TRY(kvm_file_settle(out->path, err));
    if (hex) memcpy(hex, digest, sizeof digest);
    return KVM_OK;
}

kvm_status kvm_out_publish(kvm_out *out, char sha256_hex[65], kvm_err *err)
{
    if (out->fd < 0)
        return kvm_fail(err, KVM_INTERNAL, "%s: published after its end", out->path);
    const kvm_status s = out_publish(out, sha256_hex, err);
    kvm_out_drop(out);
    return s;
}

kvm_status kvm_file_publish(kvm_str path, kvm_str bytes, kvm_arena scratch,
                            kvm_err *err)
{
    kvm_out *out;
    /* the cleanup on our copy of scratch never runs, so publish or drop always does */
    TRY(kvm_out_begin(&out, &scratch, path, err));
    kvm_out_unhashed(out);
    TRY(kvm_out_write(out, bytes.at, (size_t)bytes.len, err));
    return kvm_out_publish(out, NULL, err);
}

/* --- directories --- */

static kvm_status make_one(const char *path, kvm_err *err)
{
    struct stat st;
    if (kvm_os->mkdir(path, 0777) == 0) return kvm_file_settle(path, err);
    const int why = errno; /* EEXIST, or EROFS, EACCES, ... of one that is there */
    if (kvm_os->stat(path, &st) == 0) {
        if (S_ISDIR(st.st_mode)) return KVM_OK;
        return kvm_fail(err, KVM_EXISTS, "%s: is a file, not a directory", path);
    }
    if (why != EEXIST) errno = why;
    return kvm_fail_errno(err, "%s: cannot make the directory", path);
}

kvm_status kvm_dir_make(kvm_str path, kvm_err *err)
{
    char name[PATH_MAX];
    TRY(os_path(name, path, err));
    if (kvm_path_is_dir(path)) return KVM_OK;
    for (char *p = name + 1; *p; p++) {
        if (*p != '/') continue;
        *p = 0;
        TRY(make_one(name, err));
        *p = '/';
    }
    return make_one(name, err);
}

kvm_status kvm_file_remove(kvm_str path, kvm_err *err)
{
    char name[PATH_MAX];
    TRY(os_path(name, path, err));
    if (kvm_os->unlink(name) && errno != ENOENT)
        return kvm_fail_errno(err, "%s: cannot remove", name);
    return KVM_OK;
}

static bool stat_path(kvm_str path, struct stat *st)
{
    char name[PATH_MAX];
    return os_path(name, path, NULL) == KVM_OK && kvm_os->stat(name, st) == 0;
}

bool kvm_path_exists(kvm_str path)
{
    struct stat st;
    return stat_path(path, &st);
}

bool kvm_path_is_dir(kvm_str path)
{
    struct stat st;
    return stat_path(path, &st) && S_ISDIR(st.st_mode);
}

kvm_status kvm_path_absolute(kvm_str *out, kvm_arena *keep, kvm_str path, kvm_err *err)
{
    char here[PATH_MAX] = "/";
    if (!kvm_str_starts(path, KVM_STR("/")) && !getcwd(here, sizeof here))
        return kvm_fail_errno(err, "the working directory");
    *out = kvm_path_join(keep, kvm_str_of(here), path);
    return out->at ? KVM_OK : kvm_nomem(err, keep);
}

/* --- record logs --- */

struct kvm_log_file {
    int fd;
    off_t size;   /* bytes of whole records */
    bool torn;    /* the file may hold more than `size`: cut before the next record */
    char *buffer; /* a record and its newline, on the heap */
    size_t room;
    char path[PATH_MAX];
};

static void log_close(void *arg)
{
    kvm_log_file *log = arg;
    if (log->fd >= 0) kvm_os->close(log->fd);
    log->fd = -1;
    free(log->buffer);
    log->buffer = NULL;
}

/* the offset behind the last newline among the first `size` bytes */
static kvm_status whole_lines(const kvm_log_file *log, off_t size, off_t *end,
                              kvm_err *err)
{
    char block[4096];
    while (size > 0) {
        const size_t want =
            size % (off_t)sizeof block ? (size_t)size % sizeof block : sizeof block;
        const off_t at = size - (off_t)want;
        for (size_t have = 0; have < want;) {
            const ssize_t r =
                kvm_os->pread(log->fd, block + have, want - have, at + (off_t)have);
            if (r < 0) return kvm_fail_errno(err, "%s: cannot read", log->path);
            if (r == 0) return kvm_fail(err, KVM_IO, "%s: shrank", log->path);
            have += (size_t)r;
        }
        for (size_t i = want; i > 0; i--)
            if (block[i - 1] == '\n') {
                *end = at + (off_t)i;
                return KVM_OK;
            }
        size = at;
    }
    *end = 0;
    return KVM_OK;
}

static kvm_status log_cut(kvm_log_file *log, kvm_err *err)
{
    if (kvm_os->ftruncate(log->fd, log->size))
        return kvm_fail_errno(err, "%s: cannot cut a torn record off", log->path);
    log->torn = false;
    return KVM_OK;
}

static kvm_status log_open(kvm_log_file *log, kvm_err *err)
{
    struct stat st;
    log->fd = kvm_os->open(log->path, O_RDWR | O_CREAT | O_APPEND | O_NONBLOCK, 0666);
    if (log->fd < 0) return kvm_fail_errno(err, "%s: cannot open", log->path);
    if (kvm_os->fstat(log->fd, &st))
        return kvm_fail_errno(err, "%s: cannot stat", log->path);
    if (!S_ISREG(st.st_mode))
        return kvm_fail(err, KVM_USAGE, "%s: is no file", log->path);
    TRY(whole_lines(log, st.st_size, &log->size, err));
    if (log->size < st.st_size) TRY(log_cut(log, err));
    return st.st_size == 0 ? kvm_file_settle(log->path, err) : KVM_OK;
}

kvm_status kvm_log_open(kvm_log_file **log, kvm_arena *keep, kvm_str path, kvm_err *err)
{
    kvm_log_file *l = kvm_new(keep, kvm_log_file, 1);
    if (!l) return kvm_nomem(err, keep);
    l->fd = -1;
    TRY(os_path(l->path, path, err));
    TRY(kvm_arena_defer(keep, log_close, l, err));
    const kvm_status s = log_open(l, err);
    if (s)
        log_close(l);
    else
        *log = l;
    return s;
}

/* The record in one write; what a short write left is taken back, so that neither half
 * of it is ever read as a record. */
static kvm_status log_write(kvm_log_file *log, size_t n, kvm_err *err)
{
    size_t have = 0;
    kvm_status s = KVM_OK;
    while (have < n && !s) {
        const ssize_t w = kvm_os->write(log->fd, log->buffer + have, n - have);
        if (w < 0)
            s = kvm_fail_errno(err, "%s: cannot append", log->path);
        else if (w == 0)
            s = kvm_fail(err, KVM_IO, "%s: cannot append", log->path);
        else
            have += (size_t)w;
    }
    if (s && have > 0) {
        log->torn = true;
        (void)!log_cut(log, NULL); /* tried again before the next record */
    }
    if (!s) log->size += (off_t)n;
    return s;
}

kvm_status kvm_log_append(kvm_log_file *log, kvm_str line, bool sync, kvm_err *err)
{
    const size_t n = (size_t)line.len + 1;
    if (line.len > 0 && memchr(line.at, '\n', (size_t)line.len))
        return kvm_fail(err, KVM_USAGE, "%s: a record holds a newline", log->path);
    if (log->fd < 0)
        return kvm_fail(err, KVM_INTERNAL, "%s: written to after its end", log->path);
    if (n > log->room) {
        char *buffer = realloc(log->buffer, 2 * n);
        if (!buffer)
            return kvm_fail(err, KVM_NOMEM, "no memory for a record of %zu bytes", n);
        log->buffer = buffer;
        log->room = 2 * n;
    }
    if (log->torn) TRY(log_cut(log, err));
    if (line.len > 0) memcpy(log->buffer, line.at, (size_t)line.len);
    log->buffer[n - 1] = '\n';
    TRY(log_write(log, n, err));
    if (sync && kvm_os->fdatasync(log->fd))
        return kvm_fail_errno(err, "%s: cannot sync", log->path);
    return KVM_OK;
}
