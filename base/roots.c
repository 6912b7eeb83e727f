#define _DEFAULT_SOURCE /* realpath, readlink */
#include "base/roots.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    bool set;
    int count;
    char *at[KVM_ROOTS_MOST]; /* resolved */
    const char *remedy;
} roots;

void kvm_roots_clear(void)
{
    for (int i = 0; i < roots.count; i++) free(roots.at[i]);
    roots.count = 0;
    roots.set = false;
}

static bool terminated(char out[PATH_MAX], kvm_str path)
{
    if (path.len <= 0 || path.len >= PATH_MAX || memchr(path.at, 0, (size_t)path.len))
        return false;
    memcpy(out, path.at, (size_t)path.len);
    out[path.len] = 0;
    return true;
}

kvm_status kvm_roots_set(const kvm_str *folders, ptrdiff_t n, const char *remedy,
                         kvm_err *err)
{
    char path[PATH_MAX];
    if (n > KVM_ROOTS_MOST)
        return kvm_fail(err, KVM_RANGE, "%td folders to read of; at most %d", n,
                        KVM_ROOTS_MOST);
    kvm_roots_clear();
    roots.set = true;
    roots.remedy = remedy;
    for (ptrdiff_t i = 0; i < n; i++) {
        char *real = terminated(path, folders[i]) ? realpath(path, NULL) : NULL;
        if (real) roots.at[roots.count++] = real;
    }
    return KVM_OK;
}

static bool below(const char *path)
{
    for (int i = 0; i < roots.count; i++) {
        const size_t n = strlen(roots.at[i]);
        if (n == 1) return true; /* the root of all */
        if (strncmp(path, roots.at[i], n) == 0 && (path[n] == '/' || !path[n]))
            return true;
    }
    return false;
}

static kvm_status deny(const char *path, kvm_err *err)
{
    char list[KVM_ERR_BYTES / 2] = "";
    size_t n = 0;
    for (int i = 0; i < roots.count && n < sizeof list; i++)
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "",
                              roots.at[i]);
    return kvm_fail(err, KVM_DENIED,
                    "%s: lies outside of the folders that may be read here; %s (there "
                    "are: %s)",
                    path, roots.remedy, roots.count ? list : "none");
}

/* Where path leads: of what is not there, as far as it is, and the rest as it stands;
 * false when that cannot be said. */
static bool resolve(char real[PATH_MAX], const char *path)
{
    char front[PATH_MAX];
    const char *rest = "";
    snprintf(front, sizeof front, "%s", path);
    while (!realpath(front, real)) {
        char *slash = strrchr(front, '/');
        rest = path + (slash ? slash - front : 0);
        if (strstr(rest, "..")) return false;
        if (!slash) return realpath(".", real) != NULL;
        *slash = 0;
        if (slash == front) {
            snprintf(real, PATH_MAX, "%s", rest);
            return true;
        }
    }
    const size_t n = strlen(real);
    snprintf(real + n, PATH_MAX - n, "%s", rest);
    return true;
}

kvm_status kvm_roots_admit(kvm_str path, kvm_err *err)
{
    char name[PATH_MAX], real[PATH_MAX];
    if (!roots.set) return KVM_OK;
    if (!terminated(name, path))
        return kvm_fail(err, KVM_USAGE, "%.60s: is no path", kvm_quote(path).at);
    return resolve(real, name) && below(real) ? KVM_OK : deny(name, err);
}

kvm_status kvm_roots_admit_opened(int fd, const char *path, kvm_err *err)
{
    char link[40], real[PATH_MAX];
    if (!roots.set) return KVM_OK;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, real, sizeof real - 1);
    if (n < 0) return kvm_fail_errno(err, "%s: where %s leads", link, path);
    real[n] = 0;
    return below(real) ? KVM_OK : deny(path, err);
}
