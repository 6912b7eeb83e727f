#define _GNU_SOURCE /* pipe2, nftw */
#include "tests/support/janitor.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"

static int remove_entry(const char *path, const struct stat *st, int kind,
                        struct FTW *walk)
{
    (void)st, (void)kind, (void)walk;
    return remove(path);
}

void janitor_remove(const char *folder)
{
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* Reads the end of a pipe whose other end the test program holds until it ends. */
bool janitor_leave(const char *folder)
{
    int life[2];
    char byte;
    if (pipe2(life, O_CLOEXEC)) return false;
    const pid_t pid = fork();
    if (pid != 0) {
        close(life[0]);
        return pid > 0;
    }
    setsid();
    for (int i = 0; i < 256; i++)
        if (i != life[0]) close(i);
    while (read(life[0], &byte, 1) < 0 && errno == EINTR) {
    }
    for (int i = 0; i < 100; i++) { /* a server there dies of its parent's death */
        janitor_remove(folder);
        if (access(folder, F_OK)) break;
        kvm_sleep(0.1);
    }
    _exit(0);
}
