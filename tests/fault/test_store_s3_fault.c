/* Every call of the operating system fails once while an object goes into a bucket from
 * one home and comes out of it in another: what is there is whole, the next attempt
 * succeeds, and no descriptor is left. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "schema/store.h"
#include "tests/support/check.h"
#include "tests/support/fault.h"
#include "tests/support/s3.h"

#define DIR "build/tmp/store_s3_fault"

static int start(void **state)
{
    (void)state;
    check_tmpdir("store_s3_fault_server");
    s3_start("build/tmp/store_s3_fault_server");
    return 0;
}

static const kvm_store_options options = {
    .where = {"s3://mill/fault", 15}, .part_bytes = 2000, .http = {.backoff_s = 0.01}};

static kvm_status there_and_back(kvm_str content, const char *sha, kvm_arena *a,
                                 kvm_err *err)
{
    kvm_store *from, *to;
    kvm_str path, got;
    TRY(kvm_store_open(&from, a, KVM_STR(DIR "/a"), &options, err));
    TRY(kvm_store_put(from, KVM_STR(DIR "/file"), sha, content.len, err));
    TRY(kvm_store_open(&to, a, KVM_STR(DIR "/b"), &options, err));
    TRY(kvm_store_get(to, &path, a, sha, content.len, err));
    TRY(kvm_file_read(&got, a, path, 1 << 20, err));
    assert_true(kvm_str_eq(got, content));
    return KVM_OK;
}

/* bytes: of an object in one piece, or in parts */
static void each_call_fails(ptrdiff_t bytes, int error)
{
    bool fired = true;
    for (long n = 1; fired; n++) {
        kvm_arena a = check_arena(64 << 20);
        char sha[65], text[5000];
        kvm_err err = {0};
        memset(text, 'x', sizeof text);
        snprintf(text, sizeof text, "%td %d %ld", bytes, error, n);
        const kvm_str content = {text, bytes};
        check_tmpdir("store_s3_fault");
        check_write(DIR "/file", content);
        check_ok(kvm_sha_of(content, sha, &err), &err);
        fault_begin((fault_plan){.nth = n, .error = error});
        const kvm_status s = there_and_back(content, sha, &a, &err);
        kvm_arena_free(&a);
        fired = fault_end();
        assert_int_equal(fault_open_files(), 0);
        if (s) assert_int_equal(s, err.code);
        if (s) assert_int_equal(kvm_status_action(s), KVM_RETRY);
        if (!fired) assert_int_equal(s, KVM_OK);
        a = check_arena(64 << 20);
        if (!kvm_path_exists(KVM_STR(DIR "/file"))) check_write(DIR "/file", content);
        err = (kvm_err){0};
        check_ok(there_and_back(content, sha, &a, &err), &err);
        kvm_arena_free(&a);
    }
}

static void in_one_piece(void **state)
{
    (void)state;
    each_call_fails(1500, EIO);
}

static void in_parts(void **state)
{
    (void)state;
    each_call_fails(4500, ENOSPC);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(in_one_piece),
                                       cmocka_unit_test(in_parts)};
    return cmocka_run_group_tests(tests, start, NULL);
}
