/* folder.c - what a job keeps from one attempt to the next.
 *
 *   HOME/work/<job>/  owner  whose it is       lock  held by the child that is at it
 *                     spent  (spent.h)         dir/  the job's own
 *
 * It is made when the job first asks for a place in it, or has run for a while: most
 * small jobs never do. A child of an earlier attempt that is still about (its worker
 * was stopped, say) has lost the job, since ours was claimed after it; it is killed
 * before ours reads or writes what is here. */
#define _DEFAULT_SOURCE /* lstat */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/os.h"
#include "workers/worker_internal.h"

void kvm_tree__remove(kvm_str path)
{
    char name[PATH_MAX];
    struct stat st;
    if (snprintf(name, sizeof name, "%.*s", KVM_STR_ARG(path)) >= (int)sizeof name)
        return;
    if (lstat(name, &st)) return;
    if (!S_ISDIR(st.st_mode)) {
        kvm_os->unlink(name);
        return;
    }
    DIR *d = opendir(name);
    const struct dirent *e;
    while (d && (e = readdir(d))) {
        char inner[PATH_MAX];
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        if (snprintf(inner, sizeof inner, "%s/%s", name, e->d_name) < (int)sizeof inner)
            kvm_tree__remove(kvm_str_of(inner));
    }
    if (d) closedir(d);
    rmdir(name);
}

/* What a folder belongs to: not the job's number alone, which a new catalogue gives
 * again. */
static kvm_str owner_of(const kvm_claim *c, kvm_arena *a)
{
    kvm_str s =
        kvm_str_fmt(a, "%.*s\n%.*s\n", KVM_STR_ARG(c->key), KVM_STR_ARG(c->params));
    for (ptrdiff_t i = 0; i < c->input_count && s.at; i++)
        s = kvm_str_fmt(a, "%.*s%.*s\n", KVM_STR_ARG(s), KVM_STR_ARG(c->inputs[i].sha));
    return s;
}

static bool is_ours(const kvm_work *k, kvm_arena scratch)
{
    kvm_str found;
    const kvm_str owner = owner_of(&k->claim, &scratch);
    const kvm_str path = kvm_path_join(&scratch, k->folder, KVM_STR("owner"));
    return owner.at && path.at &&
           !kvm_file_read(&found, &scratch, path, 64 << 20, NULL) &&
           kvm_str_eq(found, owner);
}

kvm_status kvm_folder__find(kvm_work *k, kvm_str home, kvm_arena *keep, kvm_err *err)
{
    k->folder = kvm_str_fmt(keep, "%.*s/work/%lld", KVM_STR_ARG(home),
                            (long long)k->claim.fence.job);
    k->dir = kvm_path_join(keep, k->folder, KVM_STR("dir"));
    if (!k->dir.at) return kvm_nomem(err, keep);
    if (!kvm_path_exists(k->folder)) return KVM_OK;
    if (is_ours(k, *keep))
        k->before = kvm_spent_read(k->folder);
    else
        kvm_tree__remove(k->folder);
    return KVM_OK;
}

/* Not synced: a text that a power cut has spoilt is nobody's. */
static kvm_status write_owner(const kvm_work *k, kvm_arena scratch, kvm_err *err)
{
    const kvm_str owner = owner_of(&k->claim, &scratch);
    const kvm_str path = kvm_path_join(&scratch, k->folder, KVM_STR("owner"));
    if (!owner.at || !path.at) return kvm_nomem(err, &scratch);
    const int fd =
        kvm_os->open(path.at, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return kvm_fail_errno(err, "%s: cannot write", path.at);
    const kvm_status s =
        kvm_file_write_at(fd, path, owner.at, (size_t)owner.len, 0, err);
    kvm_os->close(fd);
    return s;
}

/* Not synced either: what a power cut takes is begun anew. */
static kvm_status make(kvm_str path, kvm_err *err)
{
    if (kvm_os->mkdir(path.at, 0777) == 0 || errno == EEXIST) return KVM_OK;
    return kvm_dir_make(path, err);
}

/* What says whose it is is not touched again: a kill in the middle, or a full disk,
 * would make the folder nobody's. */
kvm_status kvm_folder__make(const kvm_work *k, kvm_arena scratch, kvm_err *err)
{
    if (is_ours(k, scratch)) return KVM_OK;
    TRY(make(k->folder, err));
    TRY(make(k->dir, err));
    return write_owner(k, scratch, err);
}

kvm_status kvm_folder__lock(const kvm_work *k, int *lock, kvm_err *err)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.*s/lock", KVM_STR_ARG(k->folder));
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return kvm_fail_errno(err, "%s: cannot open", path);
    *lock = fd;
    for (int tries = 0; tries < 100; tries++) {
        struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        if (fcntl(fd, F_SETLK, &l) == 0) return KVM_OK;
        l = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET};
        if (fcntl(fd, F_GETLK, &l) == 0 && l.l_type != F_UNLCK && l.l_pid > 1) {
            kill(-l.l_pid, SIGKILL);
            kill(l.l_pid, SIGKILL);
        }
        kvm_sleep(0.02);
    }
    return kvm_fail(err, KVM_BUSY, "%s: an earlier attempt still holds it", path);
}
