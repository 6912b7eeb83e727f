/* files.h - one input as several files, for parsers that are given paths. Parts are
 * divided by FUZZ_CUT; a part has the same path in every input, in a folder below /tmp
 * that goes with the process. */
#ifndef KVM_TESTS_FUZZ_FILES_H
#define KVM_TESTS_FUZZ_FILES_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/str.h"

#define FUZZ_CUT "\n%%%%\n"
enum { FUZZ_PARTS = 4 };

static char fuzz_dir[] = "/tmp/kvm_fuzz_XXXXXX";
static char fuzz_path[FUZZ_PARTS][64];

static void fuzz_remove(void)
{
    for (int i = 0; i < FUZZ_PARTS; i++)
        if (fuzz_path[i][0]) unlink(fuzz_path[i]);
    rmdir(fuzz_dir);
}

static void fuzz_begin(const char *const *names, int n)
{
    if (!mkdtemp(fuzz_dir)) abort();
    for (int i = 0; i < n; i++)
        snprintf(fuzz_path[i], sizeof fuzz_path[i], "%s/%s", fuzz_dir, names[i]);
    atexit(fuzz_remove);
}

/* the input's parts into files of these names; the last has all that is left, and those
 * that the input lacks are empty */
static void fuzz_files(const char *const *names, int n, const uint8_t *data,
                       size_t size)
{
    kvm_str rest = {(const char *)data, (ptrdiff_t)size};
    const ptrdiff_t gap = KVM_STR(FUZZ_CUT).len;
    if (!fuzz_path[0][0]) fuzz_begin(names, n);
    for (int i = 0; i < n; i++) {
        const ptrdiff_t cut = i + 1 < n ? kvm_str_find(rest, KVM_STR(FUZZ_CUT)) : -1;
        const ptrdiff_t end = cut < 0 ? rest.len : cut;
        const int fd = open(fuzz_path[i], O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (fd < 0 || write(fd, rest.at, (size_t)end) != end || close(fd)) abort();
        rest = kvm_str_slice(rest, cut < 0 ? end : cut + gap, rest.len);
    }
}

#endif
