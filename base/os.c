#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

/* A signal handler may run in the middle of any of these; the call is then made again.
 */
#define RESTART(type, call)                                                            \
    type r;                                                                            \
    do r = (call);                                                                     \
    while (r < 0 && errno == EINTR);                                                   \
    return r

static int os_open(const char *path, int flags, mode_t mode)
{
    RESTART(int, open(path, flags | O_CLOEXEC, mode));
}
static ssize_t os_read(int fd, void *buf, size_t n)
{
    RESTART(ssize_t, read(fd, buf, n));
}
static ssize_t os_pread(int fd, void *buf, size_t n, off_t at)
{
    RESTART(ssize_t, pread(fd, buf, n, at));
}
static ssize_t os_write(int fd, const void *buf, size_t n)
{
    RESTART(ssize_t, write(fd, buf, n));
}
static ssize_t os_pwrite(int fd, const void *buf, size_t n, off_t at)
{
    RESTART(ssize_t, pwrite(fd, buf, n, at));
}
static int os_touch(const char *path)
{
    return utimensat(AT_FDCWD, path, NULL, 0);
}
static int os_fsync(int fd)
{
    RESTART(int, fsync(fd));
}
static int os_fdatasync(int fd)
{
    RESTART(int, fdatasync(fd));
}
static int os_ftruncate(int fd, off_t n)
{
    RESTART(int, ftruncate(fd, n));
}
static void *os_mmap(size_t n, int prot, int flags, int fd, off_t at)
{
    return mmap(NULL, n, prot, flags, fd, at);
}

const kvm_os_calls kvm_os_real = {
    .open = os_open,
    .read = os_read,
    .pread = os_pread,
    .write = os_write,
    .pwrite = os_pwrite,
    .fsync = os_fsync,
    .fdatasync = os_fdatasync,
    .close = close, /* never restarted: Linux has freed the number even on EINTR */
    .fstat = fstat,
    .stat = stat,
    .rename = rename,
    .unlink = unlink,
    .mkdir = mkdir,
    .touch = os_touch,
    .ftruncate = os_ftruncate,
    .mmap = os_mmap,
    .munmap = munmap,
};
const kvm_os_calls *kvm_os = &kvm_os_real;
