/* cmd_pull.c - `kvmill pull REPO`: a checkpoint from a hub of models into a folder.
 *
 * Several files come at a time, each by a thread with a connection of its own. A file
 * is NAME.<digits of its hash>.part until it is whole and has that hash; then it gets
 * its name. So a part of another version is never gone on with, a pull that was stopped
 * goes on where it was, and one that was done only checks. */
#define _XOPEN_SOURCE 700 /* lstat */
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/os.h"
#include "base/progress.h"
#include "cli/hub.h"
#include "cli/open.h"
#include "reports/number.h"

enum { AT_A_TIME = 4, PART_DIGITS = 16, SHA_DIGITS = 64, UNSIZED_BYTES = 64 << 20 };

typedef struct pulled {
    kvm_hub_file f;
    const char *checked; /* "sha256", "git", "length": by what */
    bool fetched;        /* else it was there */
} pulled;

typedef struct pull {
    kvm_hub hub;
    kvm_str commit, to;
    pulled *files;
    ptrdiff_t count;
    double bytes; /* of all, as far as they are known */
    _Atomic ptrdiff_t next;
    _Atomic int64_t moved; /* bytes that are there */
    _Atomic int working;   /* threads */
    atomic_bool stop;
    pthread_mutex_t lock; /* of status and err */
    kvm_status status;    /* of the first file that failed */
    kvm_err err;
} pull;

/* One thread's. */
typedef struct puller {
    pull *p;
    kvm_http *http;
    kvm_arena keep;
} puller;

static bool note_bytes(void *ctx, int64_t bytes)
{
    pull *p = ctx;
    atomic_fetch_add(&p->moved, bytes);
    return !atomic_load(&p->stop);
}

/* ---- one file ---- */

/* Folders of a name below `to`, made; a link among them would lead out. */
static kvm_status make_folders(const pull *p, kvm_str name, kvm_arena *keep,
                               kvm_err *err)
{
    for (ptrdiff_t i = 0; i < name.len; i++) {
        struct stat st;
        if (name.at[i] != '/') continue;
        const kvm_str folder = kvm_path_join(keep, p->to, kvm_str_slice(name, 0, i));
        if (!folder.at) return kvm_nomem(err, keep);
        if (lstat(folder.at, &st) == 0 && !S_ISDIR(st.st_mode))
            return kvm_fail(err, KVM_EXISTS, "%s: is no folder; move it away",
                            folder.at);
        TRY(kvm_dir_make(folder, err));
    }
    return KVM_OK;
}

/* What a file is checked by: its length, and the hash when one is known. */
static kvm_status is_sound(const kvm_hub_file *f, kvm_str path, bool *sound,
                           kvm_arena scratch, kvm_err *err)
{
    char hex[SHA_DIGITS + 1];
    struct stat st;
    *sound = false;
    if (lstat(path.at, &st))
        return errno == ENOENT ? KVM_OK : kvm_fail_errno(err, "%s", path.at);
    if (!S_ISREG(st.st_mode))
        return kvm_fail(err, KVM_EXISTS, "%s: is no file; move it away", path.at);
    if (f->bytes >= 0 && st.st_size != f->bytes) return KVM_OK;
    if (f->hash.len == SHA_DIGITS)
        TRY(kvm_sha_file(path, hex, scratch, err));
    else if (f->hash.len > 0)
        TRY(kvm_git_blob(path, st.st_size, hex, scratch, err));
    *sound = f->hash.len > 0 ? kvm_str_eq(f->hash, kvm_str_of(hex)) : f->bytes >= 0;
    return KVM_OK;
}

static kvm_status fetch_into(puller *t, const kvm_hub_file *f, int fd, kvm_str part,
                             kvm_err *err)
{
    kvm_http_reply reply;
    kvm_http_request r = kvm_hub_request(&t->p->hub, t->p->commit, f->name, &t->keep);
    if (!r.url.at) return kvm_nomem(err, &t->keep);
    r.moved = note_bytes;
    r.ctx = t->p;
    r.most_bytes = UNSIZED_BYTES; /* of a file that nobody told the length of */
    TRY(kvm_http_fetch(t->http, &r, fd, part, f->bytes, &reply, &t->keep, err));
    TRY(kvm_http_check(&reply, r.url, err));
    if (kvm_os->fsync(fd)) return kvm_fail_errno(err, "%s: cannot sync", part.at);
    return KVM_OK;
}

/* A part whose end was fetched today may have begun on another day: it is fetched once
 * more before the hub is blamed. */
static kvm_status fetch_sound(puller *t, const kvm_hub_file *f, int fd, kvm_str part,
                              kvm_err *err)
{
    struct stat st;
    bool sound = false;
    if (kvm_os->fstat(fd, &st)) return kvm_fail_errno(err, "%s: cannot stat", part.at);
    TRY(is_sound(f, part, &sound, t->keep, err));
    note_bytes(t->p, st.st_size);
    for (int tries = st.st_size > 0 ? 2 : 1; !sound; tries--) {
        TRY(fetch_into(t, f, fd, part, err));
        if (f->hash.len == 0) return KVM_OK;
        TRY(is_sound(f, part, &sound, t->keep, err));
        if (sound) break;
        if (kvm_os->fstat(fd, &st) || kvm_os->ftruncate(fd, 0))
            return kvm_fail_errno(err, "%s: cannot cut", part.at);
        note_bytes(t->p, -st.st_size);
        if (tries == 1)
            return kvm_fail(err, KVM_IO,
                            "what came has another hash than the hub lists: it was "
                            "damaged on the way, or the hub is; pull again");
    }
    return KVM_OK;
}

static kvm_status publish(kvm_str part, kvm_str path, kvm_err *err)
{
    if (kvm_os->rename(part.at, path.at))
        return kvm_fail_errno(err, "%s: cannot rename to %s", part.at, path.at);
    return kvm_file_settle(path.at, err);
}

/* Of a file without a hash nothing tells whether its part is of the same version. */
static kvm_status fetch(puller *t, const kvm_hub_file *f, kvm_str path, kvm_err *err)
{
    const kvm_str part =
        kvm_str_fmt(&t->keep, "%s.%.*s.part", path.at,
                    KVM_STR_ARG(kvm_str_slice(f->hash, 0, PART_DIGITS)));
    if (!part.at) return kvm_nomem(err, &t->keep);
    const int fd = kvm_os->open(
        part.at, O_RDWR | O_CREAT | O_NOFOLLOW | (f->hash.len ? 0 : O_TRUNC), 0666);
    if (fd < 0) return kvm_fail_errno(err, "%s: cannot create", part.at);
    kvm_status s = fetch_sound(t, f, fd, part, err);
    if (kvm_os->close(fd) && !s) s = kvm_fail_errno(err, "%s: cannot close", part.at);
    return s ? s : publish(part, path, err);
}

static kvm_status pull_one(puller *t, pulled *one, kvm_err *err)
{
    bool there;
    kvm_hub_file f = one->f; /* what is asked for here lives in this thread's arena */
    const kvm_str path = kvm_path_join(&t->keep, t->p->to, f.name);
    if (!path.at) return kvm_nomem(err, &t->keep);
    if (f.bytes < 0 || f.hash.len == 0)
        TRY(kvm_hub_ask(&f, &t->p->hub, t->p->commit, t->http, &t->keep, err));
    one->checked = f.hash.len == SHA_DIGITS ? "sha256" : f.hash.len ? "git" : "length";
    TRY(make_folders(t->p, f.name, &t->keep, err));
    TRY(is_sound(&f, path, &there, t->keep, err));
    if (there)
        note_bytes(t->p, f.bytes);
    else
        TRY(fetch(t, &f, path, err));
    one->fetched = !there;
    struct stat st;
    if (kvm_os->stat(path.at, &st)) return kvm_fail_errno(err, "%s", path.at);
    one->f.bytes = st.st_size;
    return KVM_OK;
}

/* ---- all of them ---- */

static void note_failure(pull *p, kvm_str name, kvm_status s, kvm_err *why)
{
    if (s != KVM_CANCELLED) s = kvm_err_prefix(why, s, "%.*s", KVM_STR_ARG(name));
    pthread_mutex_lock(&p->lock);
    if (!p->status) {
        p->status = s;
        p->err = *why;
    }
    pthread_mutex_unlock(&p->lock);
    atomic_store(&p->stop, true); /* the others' parts stay */
}

static void *pull_files(void *arg)
{
    puller *t = arg;
    pull *p = t->p;
    for (;;) {
        const ptrdiff_t i = atomic_fetch_add(&p->next, 1);
        kvm_err why = {0};
        puller scratch = *t; /* of one file: its arena is a copy */
        if (i >= p->count || atomic_load(&p->stop)) break;
        const kvm_status s = pull_one(&scratch, &p->files[i], &why);
        if (s) note_failure(p, p->files[i].f.name, s, &why);
    }
    atomic_fetch_sub(&p->working, 1);
    return NULL;
}

static kvm_status begin_puller(puller *t, pull *p, kvm_err *err)
{
    t->p = p;
    TRY(kvm_arena_init(&t->keep, 64 << 20, err));
    return kvm_http_new(&t->http, &t->keep, NULL, err);
}

static void watch(pull *p, bool quiet)
{
    kvm_progress progress;
    kvm_progress_terminal(&progress, "pull");
    if (!quiet) kvm_progress_begin(&progress, "pull");
    while (atomic_load(&p->working) > 0) {
        if (!quiet)
            kvm_progress_at(&progress, (double)atomic_load(&p->moved) / 1e6,
                            p->bytes / 1e6, "MB");
        kvm_sleep(0.05);
    }
    if (!quiet) kvm_progress_end(&progress);
}

static kvm_status pull_all(pull *p, bool quiet, kvm_err *err)
{
    puller t[AT_A_TIME] = {0};
    pthread_t threads[AT_A_TIME];
    int n = 0;
    kvm_status s = KVM_OK;
    for (; n < AT_A_TIME && n < p->count && !s; n++) {
        s = begin_puller(&t[n], p, err);
        if (s) break;
        atomic_fetch_add(&p->working, 1);
        if (pthread_create(&threads[n], NULL, pull_files, &t[n])) {
            atomic_fetch_sub(&p->working, 1);
            s = kvm_fail(err, KVM_NOMEM, "cannot start a thread");
            break;
        }
    }
    if (s) atomic_store(&p->stop, true);
    watch(p, quiet);
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < AT_A_TIME; i++) kvm_arena_free(&t[i].keep);
    if (!s && p->status && err) *err = p->err;
    return s ? s : p->status;
}

/* ---- which ---- */

/* what a checkpoint is read from (models/checkpoint.h, tokenizer.h, chat.h), and its
 * licence */
static bool is_read(kvm_str name)
{
    static const char *const ends[] = {".safetensors", ".gguf", ".json",
                                       ".model",       ".txt",  ".jinja"};
    if (memchr(name.at, '/', (size_t)name.len)) return false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (kvm_str_ends(name, kvm_str_of(ends[i]))) return true;
    return kvm_str_starts(name, KVM_STR("LICENSE")) ||
           kvm_str_eq(name, KVM_STR("README.md"));
}

static int by_name(const void *a, const void *b)
{
    const pulled *x = a, *y = b;
    return kvm_str_cmp(x->f.name, y->f.name);
}

static kvm_status check_names(const pull *p, const char *glob, kvm_err *err)
{
    int gguf = 0;
    kvm_str one = {0};
    for (ptrdiff_t i = 0; i < p->count; i++) {
        const kvm_str name = p->files[i].f.name;
        if (kvm_str_ends(name, KVM_STR(".gguf"))) {
            gguf++;
            one = name;
        }
        if (!kvm_hub_name_is_safe(name))
            return kvm_fail(err, KVM_FORMAT,
                            "the hub lists a file \"%s\": refused, for it would not be "
                            "a file below the folder",
                            kvm_quote(name).at);
        if (i > 0 && kvm_str_eq(name, p->files[i - 1].f.name))
            return kvm_fail(err, KVM_FORMAT, "the hub lists \"%s\" twice",
                            kvm_quote(name).at);
    }
    if (gguf > 1 && !glob)
        return kvm_fail(err, KVM_USAGE,
                        "%d GGUF files, which are versions of one model, as a rule: "
                        "say which with --file, as in --file '%.*s'",
                        gguf, KVM_STR_ARG(one));
    return KVM_OK;
}

static kvm_status choose(kvm_cli *cli, pull *p, const kvm_hub_list *list, kvm_err *err)
{
    const char *glob = cli->value[KVM_OPT_FILE];
    p->files = kvm_new(cli->keep, pulled, list->count + 1);
    if (!p->files) return kvm_nomem(err, cli->keep);
    for (ptrdiff_t i = 0; i < list->count; i++) {
        const kvm_hub_file *f = &list->files[i];
        if (glob ? fnmatch(glob, f->name.at, 0) != 0 : !is_read(f->name)) continue;
        p->files[p->count++].f = *f;
        p->bytes += f->bytes > 0 ? (double)f->bytes : 0;
    }
    if (p->count == 0)
        return kvm_fail(err, KVM_NOTFOUND, "%.*s has %td files, and %s%s",
                        KVM_STR_ARG(p->hub.repo), list->count,
                        glob ? "none is called " : "none that kvmill reads (--file)",
                        glob ? glob : "");
    qsort(p->files, (size_t)p->count, sizeof *p->files, by_name);
    return check_names(p, glob, err);
}

/* ---- the command ---- */

static json_t *files_json(const pull *p)
{
    json_t *rows = json_array();
    for (ptrdiff_t i = 0; i < p->count; i++) {
        const pulled *f = &p->files[i];
        json_array_append_new(rows, json_pack("{s:s%, s:I, s:s, s:s}", "file",
                                              f->f.name.at, (size_t)f->f.name.len,
                                              "bytes", (json_int_t)f->f.bytes, "state",
                                              f->fetched ? "fetched" : "there",
                                              "checked", f->checked));
    }
    return rows;
}

static kvm_status print(kvm_cli *cli, const pull *p, kvm_err *err)
{
    ptrdiff_t fetched = 0, unchecked = 0;
    double bytes = 0;
    for (ptrdiff_t i = 0; i < p->count; i++) {
        fetched += p->files[i].fetched;
        unchecked += !strcmp(p->files[i].checked, "length");
        bytes += (double)p->files[i].f.bytes;
    }
    if (kvm_cli_has(cli, KVM_OPT_JSON))
        return kvm_cli_print_json(cli,
                                  json_pack("{s:s%, s:s%, s:s%, s:o}", "repo",
                                            p->hub.repo.at, (size_t)p->hub.repo.len,
                                            "commit", p->commit.at,
                                            (size_t)p->commit.len, "to", p->to.at,
                                            (size_t)p->to.len, "files", files_json(p)),
                                  err);
    const kvm_str shown = kvm_cli_shown(cli->keep, p->to),
                  commit = kvm_cli_shown(cli->keep, p->commit);
    const kvm_str size = kvm_number(cli->keep, bytes, KVM_FORMAT_BYTES);
    printf(
        "%.*s, commit %.12s: %td files, %.*s, in %.*s; %td fetched, %td were there\n",
        KVM_STR_ARG(p->hub.repo), commit.at ? commit.at : "", p->count,
        KVM_STR_ARG(size), KVM_STR_ARG(shown), fetched, p->count - fetched);
    if (unchecked)
        fprintf(stderr,
                "%td of them by their length only: the hub has no hash of them\n",
                unchecked);
    return KVM_OK;
}

/* the folder: --to, else one in this folder, named as the model is */
static kvm_status where_to(kvm_cli *cli, pull *p, kvm_err *err)
{
    kvm_str org, name;
    if (!kvm_str_cut(p->hub.repo, '/', &org, &name)) name = p->hub.repo;
    p->to = kvm_cli_has(cli, KVM_OPT_TO) ? kvm_str_of(cli->value[KVM_OPT_TO])
                                         : kvm_str_copy(cli->keep, name);
    if (!p->to.at) return kvm_nomem(err, cli->keep);
    return kvm_dir_make(p->to, err);
}

static kvm_status run(kvm_cli *cli, kvm_err *err)
{
    kvm_str repo;
    kvm_http *http;
    kvm_hub_list list;
    pull p = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const kvm_str revision = kvm_cli_has(cli, KVM_OPT_REVISION)
                                 ? kvm_str_of(cli->value[KVM_OPT_REVISION])
                                 : KVM_STR("main");
    TRY(kvm_cli_arg(cli, 0, "a repository (ORG/NAME)", &repo, err));
    TRY(kvm_hub_open(&p.hub, cli->keep, repo, err));
    TRY(kvm_http_new(&http, cli->keep, NULL, err));
    TRY(kvm_hub_look(&list, &p.hub, revision, http, cli->keep, err));
    p.commit = list.commit;
    TRY(choose(cli, &p, &list, err));
    TRY(where_to(cli, &p, err));
    TRY(pull_all(&p, kvm_cli_has(cli, KVM_OPT_QUIET), err));
    return print(cli, &p, err);
}

static const kvm_option options[] = {
    {KVM_OPT_REVISION, "revision", "R", "a branch, tag or commit (main)"},
    {KVM_OPT_TO, "to", "DIR", "the folder (./NAME)"},
    {KVM_OPT_FILE, "file", "GLOB",
     "only files of that name (else those that kvmill reads)"},
    {0},
};
const kvm_command kvm_command_pull = {"pull", options, run, 1};
