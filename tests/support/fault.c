#include "tests/support/fault.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/os.h"

static struct {
    fault_plan plan;
    long calls, files, mappings;
    bool fired;
    const char *call;
} fault;

static bool fails(const char *call)
{
    if (fault.plan.only && strcmp(fault.plan.only, call) != 0) return false;
    fault.calls++;
    const bool now = fault.calls == fault.plan.nth ||
                     (fault.plan.forever && fault.calls > fault.plan.nth);
    if (!now || fault.plan.nth < 1) return false;
    if (!fault.fired) fault.call = call;
    fault.fired = true;
    errno = fault.plan.error;
    return true;
}

static size_t some(size_t n)
{
    return fault.plan.halves && n > 1 ? n / 2 : n;
}

static int f_open(const char *path, int flags, mode_t mode)
{
    if (fails("open")) return -1;
    const int fd = kvm_os_real.open(path, flags, mode);
    fault.files += fd >= 0;
    return fd;
}
static ssize_t f_read(int fd, void *buf, size_t n)
{
    return fails("read") ? -1 : kvm_os_real.read(fd, buf, some(n));
}
static ssize_t f_pread(int fd, void *buf, size_t n, off_t at)
{
    return fails("pread") ? -1 : kvm_os_real.pread(fd, buf, some(n), at);
}
static ssize_t f_write(int fd, const void *buf, size_t n)
{
    return fails("write") ? -1 : kvm_os_real.write(fd, buf, some(n));
}
static ssize_t f_pwrite(int fd, const void *buf, size_t n, off_t at)
{
    return fails("pwrite") ? -1 : kvm_os_real.pwrite(fd, buf, some(n), at);
}
static int f_fsync(int fd)
{
    return fails("fsync") ? -1 : kvm_os_real.fsync(fd);
}
static int f_fdatasync(int fd)
{
    return fails("fdatasync") ? -1 : kvm_os_real.fdatasync(fd);
}
static int f_close(int fd)
{
    /* like Linux: the descriptor is gone even when close reports an error */
    const int why = fails("close") ? errno : 0;
    const int result = kvm_os_real.close(fd);
    fault.files--;
    if (why) errno = why;
    return why ? -1 : result;
}
static int f_fstat(int fd, struct stat *st)
{
    return fails("fstat") ? -1 : kvm_os_real.fstat(fd, st);
}
static int f_stat(const char *path, struct stat *st)
{
    return fails("stat") ? -1 : kvm_os_real.stat(path, st);
}
static int f_rename(const char *from, const char *to)
{
    return fails("rename") ? -1 : kvm_os_real.rename(from, to);
}
static int f_unlink(const char *path)
{
    return fails("unlink") ? -1 : kvm_os_real.unlink(path);
}
static int f_mkdir(const char *path, mode_t mode)
{
    return fails("mkdir") ? -1 : kvm_os_real.mkdir(path, mode);
}
static int f_touch(const char *path)
{
    return fails("touch") ? -1 : kvm_os_real.touch(path);
}
static int f_ftruncate(int fd, off_t n)
{
    return fails("ftruncate") ? -1 : kvm_os_real.ftruncate(fd, n);
}
static void *f_mmap(size_t n, int prot, int flags, int fd, off_t at)
{
    if (fails("mmap")) return MAP_FAILED;
    void *p = kvm_os_real.mmap(n, prot, flags, fd, at);
    fault.mappings += p != MAP_FAILED;
    return p;
}
static int f_munmap(void *p, size_t n)
{
    /* there is no way to go on with a mapping that cannot be removed: never failed */
    fault.mappings--;
    return kvm_os_real.munmap(p, n);
}

static const kvm_os_calls faulty = {
    .open = f_open,
    .read = f_read,
    .pread = f_pread,
    .write = f_write,
    .pwrite = f_pwrite,
    .fsync = f_fsync,
    .fdatasync = f_fdatasync,
    .close = f_close,
    .fstat = f_fstat,
    .stat = f_stat,
    .rename = f_rename,
    .unlink = f_unlink,
    .mkdir = f_mkdir,
    .touch = f_touch,
    .ftruncate = f_ftruncate,
    .mmap = f_mmap,
    .munmap = f_munmap,
};

void fault_begin(fault_plan plan)
{
    memset(&fault, 0, sizeof fault);
    fault.plan = plan;
    fault.call = "";
    kvm_os = &faulty;
}

bool fault_end(void)
{
    kvm_os = &kvm_os_real;
    return fault.fired;
}

const char *fault_call(void)
{
    return fault.call;
}

long fault_open_files(void)
{
    return fault.files;
}

long fault_mappings(void)
{
    return fault.mappings;
}
