/* os.h - the one door to the operating system's files.
 *
 * What makes, names, reads, writes and maps the files of base, models, translators and
 * the store crosses this table, hints to the kernel apart, and so does memory that is
 * mapped. A test can thus fail the nth call of a kind, once or for good (tests/fault),
 * and have a full disk without one. Outside of it stay listings of folders, processes
 * with their pipes, locks and logs, SQLite's own files, and what is read of the machine
 * (/proc, mounts). Calls have POSIX meaning: -1 and errno; the real ones restart after
 * EINTR. kvm_os is the real table unless a test swapped it.
 */
#ifndef KVM_BASE_OS_H
#define KVM_BASE_OS_H

#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>

typedef struct kvm_os_calls {
    int (*open)(const char *path, int flags, mode_t mode);
    ssize_t (*read)(int fd, void *buf, size_t n);
    ssize_t (*pread)(int fd, void *buf, size_t n, off_t at);
    ssize_t (*write)(int fd, const void *buf, size_t n);
    ssize_t (*pwrite)(int fd, const void *buf, size_t n, off_t at);
    int (*fsync)(int fd);
    int (*fdatasync)(int fd);
    int (*close)(int fd);
    int (*fstat)(int fd, struct stat *st);
    int (*stat)(const char *path, struct stat *st);
    int (*rename)(const char *from, const char *to);
    int (*unlink)(const char *path);
    int (*mkdir)(const char *path, mode_t mode);
    int (*touch)(const char *path); /* utimensat: all its times are now */
    int (*ftruncate)(int fd, off_t n);
    void *(*mmap)(size_t n, int prot, int flags, int fd, off_t at); /* MAP_FAILED */
    int (*munmap)(void *p, size_t n);
} kvm_os_calls;

extern const kvm_os_calls kvm_os_real;
extern const kvm_os_calls *kvm_os; /* set before any thread starts */

#endif
