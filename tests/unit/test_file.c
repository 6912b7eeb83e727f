/* Files: reading, mapping, publishing whole, directories, the record log. What happens
 * when calls fail is in tests/fault/test_file_fault.c. */
#define _DEFAULT_SOURCE /* usleep, mkfifo */
#include "base/file.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/hash.h"
#include "tests/support/check.h"

#define TMP "build/tmp/file/"

static kvm_arena keep;

static int entries(const char *path)
{
    int n = 0;
    DIR *dir = opendir(path);
    assert_non_null(dir);
    while (readdir(dir)) n++;
    closedir(dir);
    return n - 2;
}

static void reading(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_str s;
    check_write(TMP "a", KVM_STR("hello\0world"));
    check_ok(kvm_file_read(&s, &keep, KVM_STR(TMP "a"), 11, &err), &err);
    assert_int_equal(s.len, 11);
    assert_memory_equal(s.at, "hello\0world", 12);
    check_status(KVM_RANGE, kvm_file_read(&s, &keep, KVM_STR(TMP "a"), 10, &err), &err);
    check_contains(err.msg, TMP "a: 11 bytes; the limit here is 10");
    check_write(TMP "empty", KVM_STR(""));
    err = (kvm_err){0};
    const size_t used = kvm_arena_used(&keep);
    check_ok(kvm_file_read(&s, &keep, KVM_STR(TMP "empty"), 1 << 30, &err), &err);
    check_str(s, "");
    assert_string_equal(s.at, "");
    assert_true(kvm_arena_used(&keep) - used < 64);
    /* a file whose size is said to be 0 */
    check_ok(kvm_file_read(&s, &keep, KVM_STR("/proc/self/status"), 1 << 20, &err),
             &err);
    assert_true(kvm_str_starts(s, KVM_STR("Name:")));
    check_status(KVM_RANGE,
                 kvm_file_read(&s, &keep, KVM_STR("/proc/self/status"), 10, &err),
                 &err);
}

static void what_is_no_file_is_refused_at_once(void **state)
{
    (void)state;
    kvm_str s;
    kvm_err err = {0};
    assert_int_equal(mkfifo(TMP "pipe", 0666), 0);
    check_status(KVM_USAGE, kvm_file_read(&s, &keep, KVM_STR(TMP "pipe"), 99, &err),
                 &err);
    check_contains(err.msg, "not a file");
    err = (kvm_err){0};
    check_status(KVM_USAGE, kvm_file_map(&s, &keep, KVM_STR(TMP), &err), &err);
    err = (kvm_err){0};
    check_status(KVM_USAGE, kvm_file_read(&s, &keep, KVM_STR("/dev/zero"), 99, &err),
                 &err);
    err = (kvm_err){0};
    check_status(KVM_NOTFOUND, kvm_file_read(&s, &keep, KVM_STR(TMP "none"), 99, &err),
                 &err);
    check_contains(err.msg, TMP "none");
    err = (kvm_err){0};
    check_status(KVM_USAGE, kvm_file_read(&s, &keep, KVM_STR(""), 99, &err), &err);
    err = (kvm_err){0};
    check_status(KVM_USAGE, kvm_file_read(&s, &keep, KVM_STR(TMP "a\0b"), 99, &err),
                 &err);
    check_contains(err.msg, "zero byte");
    char path[PATH_MAX + 10];
    memset(path, 'p', sizeof path);
    err = (kvm_err){0};
    check_status(KVM_USAGE,
                 kvm_file_read(&s, &keep, (kvm_str){path, sizeof path}, 99, &err),
                 &err);
    assert_false(kvm_path_exists((kvm_str){path, sizeof path}));
    assert_false(kvm_path_exists(KVM_STR("")));
}

static void mapping(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_str s;
    kvm_arena own = check_arena(4096);
    check_write(TMP "m", KVM_STR("mapped"));
    check_ok(kvm_file_map(&s, &own, KVM_STR(TMP "m"), &err), &err);
    check_str(s, "mapped");
    struct stat said, is;
    check_ok(kvm_file_map_state(&s, &said, &own, KVM_STR(TMP "m"), &err), &err);
    assert_int_equal(stat(TMP "m", &is), 0);
    assert_true(said.st_ino == is.st_ino && said.st_size == 6);
    check_str(s, "mapped");
    check_write(TMP "e", KVM_STR(""));
    check_ok(kvm_file_map(&s, &own, KVM_STR(TMP "e"), &err), &err);
    assert_int_equal(s.len, 0);
    assert_string_equal(s.at, "");
    check_ok(kvm_file_map_state(&s, &said, &own, KVM_STR(TMP "e"), &err), &err);
    assert_int_equal(said.st_size, 0);
    kvm_arena_free(&own);
    kvm_arena none = {0};
    check_status(KVM_NOMEM, kvm_file_map(&s, &none, KVM_STR(TMP "m"), &err), &err);
}

static void a_published_file_appears_whole(void **state)
{
    (void)state;
    static char big[3000000];
    kvm_err err = {0};
    kvm_out *out;
    char hex[65], again[65];
    check_tmpdir("file/pub");
    for (size_t i = 0; i < sizeof big; i++) big[i] = (char)(i * 31 >> 3);
    const kvm_str path = KVM_STR(TMP "pub/x");
    check_ok(kvm_out_begin(&out, &keep, path, &err), &err);
    assert_false(kvm_path_exists(path));
    assert_int_equal(entries(TMP "pub"), 1);
    size_t at = 0;
    for (size_t n = 1; at < sizeof big; n = n * 3 + 1) {
        const size_t part = n < sizeof big - at ? n : sizeof big - at;
        check_ok(kvm_out_write(out, big + at, part, &err), &err);
        at += part;
    }
    check_ok(kvm_out_write(out, big, 0, &err), &err);
    assert_false(kvm_path_exists(path));
    check_ok(kvm_out_publish(out, hex, &err), &err);
    assert_int_equal(entries(TMP "pub"), 1);
    kvm_arena memory = check_arena(sizeof big + 4096);
    const kvm_str s = check_read(&memory, path.at);
    assert_int_equal(s.len, (ptrdiff_t)sizeof big);
    assert_memory_equal(s.at, big, sizeof big);
    check_ok(kvm_sha_of(s, again, &err), &err);
    assert_string_equal(hex, again);
    kvm_arena_free(&memory);

    kvm_out_drop(out); /* after publish: nothing */
    assert_true(kvm_path_exists(path));
    check_status(KVM_INTERNAL, kvm_out_write(out, "x", 1, &err), &err);
    err = (kvm_err){0};
    check_status(KVM_INTERNAL, kvm_out_publish(out, NULL, &err), &err);
    err = (kvm_err){0};
    check_ok(kvm_out_begin(&out, &keep, path, &err), &err);
    kvm_out_unhashed(out);
    check_ok(kvm_out_write(out, big, sizeof big, &err), &err);
    check_status(KVM_INTERNAL, kvm_out_publish(out, hex, &err), &err);
    check_contains(err.msg, "its hash was not wanted");
    assert_int_equal(entries(TMP "pub"), 1);
    err = (kvm_err){0};
    check_ok(kvm_file_publish(path, KVM_STR("second"), keep, &err), &err);
    check_str(check_read(&keep, path.at), "second");
    assert_int_equal(entries(TMP "pub"), 1);
}

static void a_dropped_file_leaves_nothing(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_out *out;
    check_tmpdir("file/drop");
    check_ok(kvm_out_begin(&out, &keep, KVM_STR(TMP "drop/x"), &err), &err);
    check_ok(kvm_out_write(out, "abc", 3, &err), &err);
    kvm_out_drop(out);
    kvm_out_drop(out);
    assert_int_equal(entries(TMP "drop"), 0);
    kvm_arena own = check_arena(1 << 16); /* by the arena's cleanup as well */
    check_ok(kvm_out_begin(&out, &own, KVM_STR(TMP "drop/x"), &err), &err);
    assert_int_equal(entries(TMP "drop"), 1);
    kvm_arena_free(&own);
    assert_int_equal(entries(TMP "drop"), 0);
    check_status(KVM_NOTFOUND,
                 kvm_out_begin(&out, &keep, KVM_STR(TMP "drop/no/x"), &err), &err);
}

static void directories(void **state)
{
    (void)state;
    kvm_err err = {0};
    check_ok(kvm_dir_make(KVM_STR(TMP "d/e/f"), &err), &err);
    assert_true(kvm_path_is_dir(KVM_STR(TMP "d/e/f")));
    check_ok(kvm_dir_make(KVM_STR(TMP "d/e/f"), &err), &err);
    check_ok(kvm_dir_make(KVM_STR(TMP "d//g/"), &err), &err);
    assert_true(kvm_path_is_dir(KVM_STR(TMP "d/g")));
    check_ok(kvm_dir_make(KVM_STR("/"), &err), &err);
    check_ok(kvm_dir_make(KVM_STR("."), &err), &err);
    check_write(TMP "plain", KVM_STR("x"));
    assert_true(kvm_path_exists(KVM_STR(TMP "plain")));
    assert_false(kvm_path_is_dir(KVM_STR(TMP "plain")));
    check_status(KVM_EXISTS, kvm_dir_make(KVM_STR(TMP "plain"), &err), &err);
    check_contains(err.msg, "is a file");
    err = (kvm_err){0};
    assert_int_not_equal(kvm_dir_make(KVM_STR(TMP "plain/x"), &err), KVM_OK);
}

static void a_log_keeps_whole_records(void **state)
{
    (void)state;
    static const struct {
        const char *found, *left; /* in the file before, and after it was opened */
    } rows[] = {
        {"", ""},
        {"one\n", "one\n"},
        {"one\ntwo\n", "one\ntwo\n"},
        {"one\ntw", "one\n"},
        {"torn", ""},
        {"\n", "\n"},
        {"one\n\n{", "one\n\n"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        kvm_err err = {0};
        kvm_log_file *log;
        kvm_arena own = check_arena(1 << 16);
        check_write(TMP "log", kvm_str_of(rows[i].found));
        check_ok(kvm_log_open(&log, &own, KVM_STR(TMP "log"), &err), &err);
        check_str(check_read(&own, TMP "log"), rows[i].left);
        check_ok(kvm_log_append(log, KVM_STR("{\"n\": 3}"), i % 2, &err), &err);
        check_ok(kvm_log_append(log, KVM_STR(""), true, &err), &err);
        const kvm_str expected = kvm_str_fmt(&own, "%s{\"n\": 3}\n\n", rows[i].left);
        check_str(check_read(&own, TMP "log"), expected.at);
        kvm_arena_free(&own);
    }
}

static void a_torn_line_longer_than_a_block_is_cut(void **state)
{
    (void)state;
    static char text[100000];
    for (size_t whole = 4090; whole < 4102; whole++) {
        kvm_err err = {0};
        kvm_log_file *log;
        kvm_arena own = check_arena(1 << 18);
        memset(text, 'x', sizeof text);
        text[whole - 1] = '\n';
        check_write(TMP "log", (kvm_str){text, sizeof text});
        check_ok(kvm_log_open(&log, &own, KVM_STR(TMP "log"), &err), &err);
        assert_int_equal(check_read(&own, TMP "log").len, whole);
        kvm_arena_free(&own);
    }
}

static void a_log_refuses_what_would_break_it(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_log_file *log;
    remove(TMP "log");
    check_ok(kvm_log_open(&log, &keep, KVM_STR(TMP "log"), &err), &err);
    check_status(KVM_USAGE, kvm_log_append(log, KVM_STR("a\nb"), true, &err), &err);
    check_str(check_read(&keep, TMP "log"), "");
    err = (kvm_err){0};
    check_status(KVM_USAGE, kvm_log_open(&log, &keep, KVM_STR("/dev/null"), &err),
                 &err);
    err = (kvm_err){0};
    assert_int_not_equal(kvm_log_open(&log, &keep, KVM_STR(TMP), &err), KVM_OK);
}

/* A writer is killed without warning, over and over: what is in the log afterwards is
 * what was appended, in order, and nothing else. */
static void a_log_survives_kill_9(void **state)
{
    (void)state;
    long before = 0;
    remove(TMP "killed");
    for (int round = 0; round < 8; round++) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            kvm_arena own;
            kvm_log_file *log;
            char line[64];
            if (kvm_arena_init(&own, 1 << 16, NULL) ||
                kvm_log_open(&log, &own, KVM_STR(TMP "killed"), NULL))
                _exit(1);
            for (long n = before;; n++) {
                snprintf(line, sizeof line, "record %ld", n);
                if (kvm_log_append(log, kvm_str_of(line), false, NULL)) _exit(1);
            }
        }
        usleep(3000 + 2000 * (useconds_t)round);
        kill(child, SIGKILL);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        kvm_arena own = check_arena(64 << 20);
        kvm_log_file *log;
        kvm_err err = {0};
        check_ok(kvm_log_open(&log, &own, KVM_STR(TMP "killed"), &err), &err);
        kvm_str line, rest = check_read(&own, TMP "killed");
        long n = 0;
        while (rest.len > 0) {
            char expected[64];
            assert_true(kvm_str_cut(rest, '\n', &line, &rest));
            snprintf(expected, sizeof expected, "record %ld", n++);
            check_str(line, expected);
        }
        assert_true(n >= before);
        before = n;
        kvm_arena_free(&own);
    }
    assert_true(before > 0);
}

static int setup(void **state)
{
    (void)state;
    check_tmpdir("file");
    keep = check_arena(16 << 20);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reading),
        cmocka_unit_test(what_is_no_file_is_refused_at_once),
        cmocka_unit_test(mapping),
        cmocka_unit_test(a_published_file_appears_whole),
        cmocka_unit_test(a_dropped_file_leaves_nothing),
        cmocka_unit_test(directories),
        cmocka_unit_test(a_log_keeps_whole_records),
        cmocka_unit_test(a_torn_line_longer_than_a_block_is_cut),
        cmocka_unit_test(a_log_refuses_what_would_break_it),
        cmocka_unit_test(a_log_survives_kill_9),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
