/* Fails the nth call of the operating system, for n = 1, 2, ... until there is no nth,
 * under everything that base does with files. Each time: the status is the errno's, no
 * descriptor or mapping is left, no temporary file is left, and a file that stood there
 * before holds its old or its new content, whole. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/yaml.h"
#include "tests/support/check.h"
#include "tests/support/fault.h"

#define DIR_NAME "build/tmp/file_fault"
#define TARGET DIR_NAME "/target"

static char big[(3 << 20) + 17]; /* more than three buffers of kvm_out */

static kvm_status do_publish(kvm_arena *keep, kvm_err *err)
{
    return kvm_file_publish(KVM_STR(TARGET), KVM_STR("new content\n"), *keep, err);
}

static kvm_status do_write_pieces(kvm_arena *keep, kvm_err *err)
{
    kvm_out *out;
    char hex[65];
    TRY(kvm_out_begin(&out, keep, KVM_STR(TARGET), err));
    TRY(kvm_out_write(out, big, 1000, err));
    TRY(kvm_out_write(out, big + 1000, sizeof big - 1000 - 5, err));
    TRY(kvm_out_write(out, big + sizeof big - 5, 5, err));
    return kvm_out_publish(out, hex, err);
}

static kvm_status do_read(kvm_arena *keep, kvm_err *err)
{
    kvm_str text;
    return kvm_file_read(&text, keep, KVM_STR(DIR_NAME "/in.json"), 1 << 20, err);
}

static kvm_status do_map(kvm_arena *keep, kvm_err *err)
{
    kvm_str text;
    return kvm_file_map(&text, keep, KVM_STR(DIR_NAME "/in.json"), err);
}

static kvm_status do_json(kvm_arena *keep, kvm_err *err)
{
    kvm_jat root;
    return kvm_json_read(&root, keep, KVM_STR(DIR_NAME "/in.json"), err);
}

static kvm_status do_yaml(kvm_arena *keep, kvm_err *err)
{
    kvm_jat root;
    return kvm_yaml_read(&root, keep, KVM_STR(DIR_NAME "/in.json"), err);
}

static kvm_status do_hash(kvm_arena *keep, kvm_err *err)
{
    char hex[65];
    return kvm_sha_file(KVM_STR(DIR_NAME "/in.json"), hex, *keep, err);
}

static kvm_status do_dirs(kvm_arena *keep, kvm_err *err)
{
    (void)keep;
    remove(DIR_NAME "/a/b/c");
    remove(DIR_NAME "/a/b");
    remove(DIR_NAME "/a");
    return kvm_dir_make(KVM_STR(DIR_NAME "/a/b/c"), err);
}

static kvm_status do_log(kvm_arena *keep, kvm_err *err)
{
    kvm_log_file *log;
    check_write(DIR_NAME "/log", KVM_STR("{\"n\":1}\n{\"n\":2}\n{\"torn"));
    TRY(kvm_log_open(&log, keep, KVM_STR(DIR_NAME "/log"), err));
    TRY(kvm_log_append(log, KVM_STR("{\"n\":3}"), true, err));
    return kvm_log_append(log, KVM_STR("{\"n\":4}"), false, err);
}

static kvm_status do_new_log(kvm_arena *keep, kvm_err *err)
{
    kvm_log_file *log;
    remove(DIR_NAME "/log");
    TRY(kvm_log_open(&log, keep, KVM_STR(DIR_NAME "/log"), err));
    return kvm_log_append(log, KVM_STR("{\"n\":1}"), true, err);
}

static const struct {
    const char *name;
    kvm_status (*run)(kvm_arena *keep, kvm_err *err);
    long least; /* calls that can fail: a scenario that makes fewer tests nothing */
} scenarios[] = {
    {"publish", do_publish, 8}, {"pieces", do_write_pieces, 10},
    {"read", do_read, 4},       {"map", do_map, 4},
    {"json", do_json, 5},       {"yaml", do_yaml, 6},
    {"hash", do_hash, 4},       {"dirs", do_dirs, 12},
    {"log", do_log, 7},         {"new log", do_new_log, 8},
};

static const struct {
    int error;
    kvm_status status;
} errors[] = {{EIO, KVM_IO}, {ENOSPC, KVM_NOSPACE}, {EDQUOT, KVM_NOSPACE}};

static int temporaries(void)
{
    int n = 0;
    DIR *dir = opendir(DIR_NAME);
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir));)
        n += strstr(e->d_name, ".tmp") != NULL;
    closedir(dir);
    return n;
}

/* old, or one of the two new contents, and nothing between */
static void check_target(kvm_arena *keep)
{
    const kvm_str s = check_read(keep, TARGET);
    const bool whole = kvm_str_eq(s, KVM_STR("old")) ||
                       kvm_str_eq(s, KVM_STR("new content\n")) ||
                       kvm_str_eq(s, (kvm_str){big, (ptrdiff_t)sizeof big});
    assert_true(whole);
}

/* once opened again, every line of the log is a whole record */
static void check_log(kvm_arena *keep)
{
    kvm_err err = {0};
    kvm_log_file *log;
    check_ok(kvm_log_open(&log, keep, KVM_STR(DIR_NAME "/log"), &err), &err);
    kvm_str line, rest = check_read(keep, DIR_NAME "/log");
    while (rest.len > 0) {
        assert_true(kvm_str_cut(rest, '\n', &line, &rest));
        assert_int_equal(line.len, 7);
    }
}

/* whether a run that succeeded may do so although this call failed: its result says
 * nothing (closing what was only read), the next call tells the same, or less memory
 * than was asked for does (a document's arena) */
static bool may_be_ignored(size_t scenario, const char *call)
{
    const char *name = scenarios[scenario].name;
    const bool document = !strcmp(name, "json") || !strcmp(name, "yaml");
    return !strcmp(call, "close") || !strcmp(call, "stat") || !strcmp(call, "mkdir") ||
           (document && !strcmp(call, "mmap"));
}

/* one run with a fault in it; whether the fault came */
static bool one(size_t scenario, fault_plan plan, kvm_status expected)
{
    check_write(TARGET, KVM_STR("old"));
    check_write(DIR_NAME "/log", KVM_STR(""));
    kvm_arena keep = check_arena(16 << 20);
    kvm_err err = {0};
    const int files = check_open_files();
    fault_begin(plan);
    const kvm_status s = scenarios[scenario].run(&keep, &err);
    kvm_arena_free(&keep); /* what is still open belongs to keep */
    const bool fired = fault_end();

    assert_int_equal(fault_open_files(), 0);
    assert_int_equal(check_open_files(), files);
    assert_int_equal(fault_mappings(), -1); /* keep, which was mapped before */
    if (!plan.forever) assert_int_equal(temporaries(), 0);
    if (!fired)
        check_ok(s, &err);
    else if (s == KVM_OK)
        assert_true(may_be_ignored(scenario, fault_call()) && err.code == KVM_OK);
    else if (s == KVM_NOMEM) /* of an arena, whatever the errno */
        check_contains(err.msg, "cannot reserve");
    else
        check_status(expected, s, &err);
    keep = check_arena(16 << 20);
    check_target(&keep);
    check_log(&keep);
    kvm_arena_free(&keep);
    return fired;
}

static void every_call_fails_once(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(scenarios); i++)
        for (size_t e = 0; e < COUNT(errors); e++)
            for (long n = 1;; n++) {
                const fault_plan plan = {.nth = n, .error = errors[e].error};
                if (!one(i, plan, errors[e].status)) {
                    if (n - 1 < scenarios[i].least)
                        print_error("%s: only %ld calls\n", scenarios[i].name, n - 1);
                    assert_true(n - 1 >= scenarios[i].least);
                    break;
                }
            }
}

static void everything_fails_from_the_nth_call_on(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(scenarios); i++)
        for (long n = 1;; n++) {
            const fault_plan plan = {.nth = n, .error = EIO, .forever = true};
            const bool fired = one(i, plan, KVM_IO);
            check_tmpdir("file_fault"); /* temporaries that could not be unlinked */
            check_write(DIR_NAME "/in.json", KVM_STR("{\"a\": [1, 2, 3]}"));
            if (!fired) break;
        }
}

static void short_reads_and_writes_are_continued(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(scenarios); i++)
        assert_false(one(i, (fault_plan){.halves = true}, KVM_OK));
    /* and a disk that fills in the middle of a record */
    for (long n = 1; n < 20; n++) {
        const fault_plan plan = {.nth = n,
                                 .error = ENOSPC,
                                 .forever = true,
                                 .halves = true,
                                 .only = "write"};
        for (size_t i = 0; i < COUNT(scenarios); i++) one(i, plan, KVM_NOSPACE);
    }
}

/* The disk fills while a record is written, and then there is room again: the log goes
 * on with whole records only. */
static void a_log_goes_on_after_a_full_disk(void **state)
{
    (void)state;
    kvm_arena keep = check_arena(1 << 20);
    kvm_err err = {0};
    kvm_log_file *log;
    remove(DIR_NAME "/log");
    check_ok(kvm_log_open(&log, &keep, KVM_STR(DIR_NAME "/log"), &err), &err);
    check_ok(kvm_log_append(log, KVM_STR("one"), true, &err), &err);
    /* the second write of the record fails, and so does taking the first back */
    fault_begin(
        (fault_plan){.nth = 2, .error = ENOSPC, .forever = true, .halves = true});
    check_status(KVM_NOSPACE, kvm_log_append(log, KVM_STR("half a record"), true, &err),
                 &err);
    assert_true(fault_end());
    check_str(check_read(&keep, DIR_NAME "/log"), "one\nhalf a ");
    err = (kvm_err){0};
    check_ok(kvm_log_append(log, KVM_STR("two"), true, &err), &err);
    check_str(check_read(&keep, DIR_NAME "/log"), "one\ntwo\n");
    kvm_arena_free(&keep);
}

static int setup(void **state)
{
    (void)state;
    check_tmpdir("file_fault");
    check_write(DIR_NAME "/in.json", KVM_STR("{\"a\": [1, 2, 3]}"));
    for (size_t i = 0; i < sizeof big; i++) big[i] = (char)(i * 2654435761u >> 13);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_fails_once),
        cmocka_unit_test(everything_fails_from_the_nth_call_on),
        cmocka_unit_test(short_reads_and_writes_are_continued),
        cmocka_unit_test(a_log_goes_on_after_a_full_disk),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
