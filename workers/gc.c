#include "workers/gc.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/os.h"
#include "schema/fault.h"
#include "schema/job_state.h"
#include "workers/worker_internal.h"

#define DOOMED ".gc-" /* a folder that is about to be removed, in HOME/work */

typedef struct collector {
    kvm_str home;
    kvm_catalogue *catalogue;
    const kvm_sweep *o;
    char path[PATH_MAX], doomed[PATH_MAX]; /* of the folder in hand */
} collector;

static bool join(char out[PATH_MAX], const char *a, const char *b)
{
    return snprintf(out, PATH_MAX, "%s/%s", a, b) < PATH_MAX;
}

/* bytes of the plain files below, following no links */
static int64_t tree_bytes(const char *path)
{
    struct stat st;
    if (lstat(path, &st)) return 0;
    if (!S_ISDIR(st.st_mode)) return S_ISREG(st.st_mode) ? st.st_size : 0;
    int64_t sum = 0;
    DIR *d = opendir(path);
    const struct dirent *e;
    while (d && (e = readdir(d))) {
        char inner[PATH_MAX];
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
            join(inner, path, e->d_name))
            sum += tree_bytes(inner);
    }
    if (d) closedir(d);
    return sum;
}

static bool old_enough(const collector *g, const char *path)
{
    struct stat st;
    return !lstat(path, &st) && kvm_seconds(st.st_ctim) <= kvm_wall() - g->o->age_s - 1;
}

/* The folder is of a job at rest. Renamed while the catalogue is locked, removed
 * afterwards: an attempt that comes then begins with an empty one. */
static kvm_status doom(void *ctx, bool known, kvm_err *err)
{
    collector *g = ctx;
    if (!known && !old_enough(g, g->path)) return KVM_OK;
    if (!g->o->dry && kvm_os->rename(g->path, g->doomed)) {
        /* ENOTEMPTY, EEXIST: a leftover that could not be removed; this one waits
         * too */
        return errno == ENOENT || errno == ENOTEMPTY || errno == EEXIST
                   ? KVM_OK
                   : kvm_fail_errno(err, "%s: cannot rename", g->path);
    }
    if (g->o->dry)
        g->o->found(g->o->ctx, KVM_SWEPT_FOLDER, g->path, tree_bytes(g->path));
    return KVM_OK;
}

/* Only what is really gone is found: not what stays, nor what was removed since it was
 * listed. */
static void remove_doomed(collector *g, const char *path)
{
    struct stat st;
    if (lstat(path, &st)) return;
    const int64_t bytes = tree_bytes(path);
    if (!g->o->dry) {
        kvm_tree__remove(kvm_str_of(path));
        if (!lstat(path, &st)) return;
    }
    g->o->found(g->o->ctx, KVM_SWEPT_FOLDER, path, bytes);
    kvm_fault(KVM_FAULT_IN_SWEEP);
}

static kvm_status collect_folder(collector *g, const char *work, const char *name,
                                 kvm_err *err)
{
    int64_t job;
    if (!strncmp(name, DOOMED, strlen(DOOMED)) && join(g->path, work, name)) {
        remove_doomed(g, g->path); /* of a collector that was killed */
        return KVM_OK;
    }
    if (!kvm_str_to_i64(kvm_str_of(name), &job) || !join(g->path, work, name) ||
        snprintf(g->doomed, PATH_MAX, "%s/" DOOMED "%s", work, name) >= PATH_MAX)
        return KVM_OK;
    if (!g->o->dry) remove_doomed(g, g->doomed); /* it would be in the way */
    TRY(kvm_job_at_rest(g->catalogue, job, g->o->age_s, doom, g, err));
    if (!g->o->dry) remove_doomed(g, g->doomed);
    return KVM_OK;
}

/* what kvm_file_publish leaves when it is killed: NAME.PID-N.tmp */
static kvm_status collect_temporary(collector *g, const char *folder, const char *name,
                                    kvm_err *err)
{
    struct stat st;
    if (!kvm_str_ends(kvm_str_of(name), KVM_STR(".tmp")) ||
        !join(g->path, folder, name))
        return KVM_OK;
    if (lstat(g->path, &st) || !S_ISREG(st.st_mode) || !old_enough(g, g->path))
        return KVM_OK;
    if (!g->o->dry && kvm_os->unlink(g->path))
        return errno == ENOENT ? KVM_OK
                               : kvm_fail_errno(err, "%s: cannot remove", g->path);
    g->o->found(g->o->ctx, KVM_SWEPT_TEMPORARY, g->path, st.st_size);
    return KVM_OK;
}

static kvm_status each_entry(collector *g, const char *name,
                             kvm_status (*fn)(collector *g, const char *folder,
                                              const char *entry, kvm_err *err),
                             kvm_err *err)
{
    char folder[PATH_MAX];
    if (snprintf(folder, sizeof folder, "%.*s/%s", KVM_STR_ARG(g->home), name) >=
        PATH_MAX)
        return kvm_fail(err, KVM_USAGE, "%.*s: the path is too long",
                        KVM_STR_ARG(g->home));
    DIR *d = opendir(folder);
    if (!d) return errno == ENOENT ? KVM_OK : kvm_fail_errno(err, "%s", folder);
    kvm_status s = KVM_OK;
    const struct dirent *e;
    while (!s && (e = readdir(d))) s = fn(g, folder, e->d_name, err);
    closedir(d);
    return s;
}

kvm_status kvm_gc(kvm_str home, kvm_catalogue *c, kvm_store *s, const kvm_sweep *o,
                  kvm_err *err)
{
    collector g = {.home = home, .catalogue = c, .o = o};
    TRY(kvm_store_sweep(s, c, o, err));
    TRY(each_entry(&g, "work", collect_folder, err));
    TRY(each_entry(&g, ".", collect_temporary, err));
    return each_entry(&g, "reports", collect_temporary, err);
}
