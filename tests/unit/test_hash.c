/* SHA-256 against the vectors of FIPS 180-4 and NIST's long message. */
#include "base/hash.h"

#include <string.h>

#include "tests/support/check.h"

static const char abc[] =
    "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
static const char empty[] =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
static const char million_a[] =
    "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";

static void in_one_call(void **state)
{
    (void)state;
    char hex[65];
    kvm_err err = {0};
    check_ok(kvm_sha_of(KVM_STR("abc"), hex, &err), &err);
    assert_string_equal(hex, abc);
    check_ok(kvm_sha_of((kvm_str){NULL, 0}, hex, &err), &err);
    assert_string_equal(hex, empty);
}

static void in_pieces(void **state)
{
    (void)state;
    char hex[65], piece[1000];
    kvm_err err = {0};
    kvm_sha *h;
    memset(piece, 'a', sizeof piece);
    check_ok(kvm_sha_begin(&h, &err), &err);
    for (int i = 0; i < 1000; i++)
        check_ok(kvm_sha_add(h, piece, sizeof piece, &err), &err);
    check_ok(kvm_sha_end(h, hex, &err), &err);
    assert_string_equal(hex, million_a);
    check_ok(kvm_sha_begin(&h, &err), &err);
    kvm_sha_drop(h);
}

static void of_a_file(void **state)
{
    (void)state;
    static char text[1000000];
    char hex[65];
    kvm_err err = {0};
    kvm_arena a = check_arena(1 << 20);
    check_tmpdir("hash");
    memset(text, 'a', sizeof text);
    check_write("build/tmp/hash/a", (kvm_str){text, sizeof text});
    check_ok(kvm_sha_file(KVM_STR("build/tmp/hash/a"), hex, a, &err), &err);
    assert_string_equal(hex, million_a);
    check_status(KVM_NOTFOUND, kvm_sha_file(KVM_STR("build/tmp/hash/b"), hex, a, &err),
                 &err);
    check_contains(err.msg, "build/tmp/hash/b");
    err = (kvm_err){0};
    kvm_arena nothing = {0};
    check_status(KVM_NOMEM,
                 kvm_sha_file(KVM_STR("build/tmp/hash/a"), hex, nothing, &err), &err);
    assert_string_equal(hex, million_a);
    kvm_arena_free(&a);
}

/* as `git hash-object` says */
static void of_a_git_blob(void **state)
{
    (void)state;
    char hex[41];
    kvm_err err = {0};
    kvm_arena a = check_arena(1 << 20);
    check_tmpdir("hash_git");
    check_write("build/tmp/hash_git/hello", KVM_STR("hello\n"));
    check_write("build/tmp/hash_git/empty", KVM_STR(""));
    check_ok(kvm_git_blob(KVM_STR("build/tmp/hash_git/hello"), 6, hex, a, &err), &err);
    assert_string_equal(hex, "ce013625030ba8dba906f756967f9e9ca394464a");
    check_ok(kvm_git_blob(KVM_STR("build/tmp/hash_git/empty"), 0, hex, a, &err), &err);
    assert_string_equal(hex, "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
    check_refused(KVM_NOTFOUND, "hash_git/no",
                  kvm_git_blob(KVM_STR("build/tmp/hash_git/no"), 0, hex, a, &no));
    kvm_arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_one_call),
        cmocka_unit_test(in_pieces),
        cmocka_unit_test(of_a_file),
        cmocka_unit_test(of_a_git_blob),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
