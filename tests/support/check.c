#define _GNU_SOURCE /* nftw, memmem */
#include "tests/support/check.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

void check_status_at(kvm_status expected, kvm_status got, const kvm_err *err,
                     const char *file, int line)
{
    if (got != expected) {
        print_error("%s:%d: expected %s, got %s: %s\n", file, line,
                    kvm_status_name(expected), kvm_status_name(got),
                    err ? err->msg : "");
        _fail(file, line);
    }
    if (err && err->code != expected) {
        print_error("%s:%d: returned %s, but err says %s: %s\n", file, line,
                    kvm_status_name(got), kvm_status_name(err->code), err->msg);
        _fail(file, line);
    }
}

void check_contains_at(const char *text, const char *part, const char *file, int line)
{
    if (strstr(text, part)) return;
    print_error("%s:%d: \"%s\" does not contain \"%s\"\n", file, line, text, part);
    _fail(file, line);
}

void check_str_at(kvm_str s, const char *text, const char *file, int line)
{
    if (kvm_str_eq(s, kvm_str_of(text))) return;
    print_error("%s:%d: found \"%.*s\", expected \"%s\"\n", file, line, KVM_STR_ARG(s),
                text);
    _fail(file, line);
}

kvm_arena check_arena(size_t bytes)
{
    kvm_arena a;
    kvm_err err = {0};
    check_ok(kvm_arena_init(&a, bytes, &err), &err);
    return a;
}

void check_spent(size_t most, kvm_status (*fn)(kvm_arena *a, kvm_err *err))
{
    int failures = 0, successes = 0;
    for (size_t bytes = 0; bytes < most; bytes += 8) {
        kvm_arena all = check_arena(2 * most);
        kvm_arena a = kvm_arena_split(&all, bytes);
        kvm_err err = {0};
        const kvm_status s = fn(&a, &err);
        check_status(s ? KVM_NOMEM : KVM_OK, s, &err);
        failures += s != KVM_OK;
        successes += s == KVM_OK;
        kvm_arena_free(&a);
        kvm_arena_free(&all);
    }
    assert_true(failures > 0 && successes > 0);
}

static int remove_entry(const char *path, const struct stat *st, int kind,
                        struct FTW *walk)
{
    (void)st, (void)kind, (void)walk;
    return remove(path);
}

/* Until this process ends the folder is ours: the same test of another build waits. One
 * byte of one file for each name, held already when it is asked for again. */
static void lock_name(const char *name)
{
    static int fd = -1;
    if (fd < 0) fd = open("build/tmp/lock", O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    assert_true(fd >= 0);
    off_t at = 0;
    for (const char *c = name; *c; c++) at = (at * 31 + *c) % 1000000007;
    struct flock l = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    assert_int_equal(fcntl(fd, F_SETLKW, &l), 0);
}

void check_tmpdir(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "build/tmp/%s", name);
    mkdir("build", 0777);
    mkdir("build/tmp", 0777);
    lock_name(name);
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    assert_int_equal(mkdir(path, 0777), 0);
}

void check_write(const char *path, kvm_str s)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(s.at, 1, (size_t)s.len, f), s.len);
    assert_int_equal(fclose(f), 0);
}

kvm_str check_read(kvm_arena *keep, const char *path)
{
    struct stat st;
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fstat(fileno(f), &st), 0);
    char *text = kvm_new(keep, char, st.st_size + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)st.st_size, f), st.st_size);
    fclose(f);
    return (kvm_str){text, st.st_size};
}

int check_open_files(void)
{
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir)) n++;
    closedir(dir);
    return n - 3; /* ".", ".." and the descriptor of the directory itself */
}
