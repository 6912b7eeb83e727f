/* store_sweep.c - garbage: objects that no artefact row names. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/os.h"
#include "schema/catalogue_internal.h"
#include "schema/fault.h"
#include "schema/store_internal.h"

/* The change time is looked at: it is when the file entered, however old its
 * content. */
static bool old_enough(const kvm_store_sweeping *w, const char *path, struct stat *st)
{
    return kvm_os->stat(path, st) == 0 && S_ISREG(st->st_mode) &&
           kvm_seconds(st->st_ctim) <= w->before;
}

kvm_status kvm_store__named(kvm_catalogue *c, const char *sha, bool *named,
                            kvm_err *err)
{
    int64_t n = 0;
    TRY(kvm_db_one(c->db, KVM_SQL_ARTEFACT_NAMED, KVM_ARGS(kvm_cell_c(sha)), &n, err));
    *named = n != 0;
    return KVM_OK;
}

/* What is no object is temporary. */
static kvm_status sweep_file(kvm_store_sweeping *w, const char *folder,
                             const char *name, kvm_err *err)
{
    char path[PATH_MAX], sha[65];
    struct stat st;
    bool named = false;
    if (snprintf(path, sizeof path, "%s/%s/%s", w->store->dir, folder, name) >=
        (int)sizeof path)
        return KVM_OK;
    if (!old_enough(w, path, &st)) return KVM_OK;
    const bool object = kvm_store__is_name(name);
    if (object) {
        snprintf(sha, sizeof sha, "%.2s%.62s", folder, name);
        TRY(kvm_store__named(w->catalogue, sha, &named, err));
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

static kvm_status sweep_folder(kvm_store_sweeping *w, const char *folder, kvm_err *err)
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
    kvm_store_sweeping w = {.store = s, .catalogue = c, .o = o};
    TRY(oldest_kept(c, o->age_s, &w.before, err));
    if (s->driver->sweep) TRY(s->driver->sweep(&w, err));
    for (int i = 0; i < 256; i++) {
        char folder[3];
        snprintf(folder, sizeof folder, "%02x", i);
        TRY(sweep_folder(&w, folder, err));
    }
    return KVM_OK;
}
