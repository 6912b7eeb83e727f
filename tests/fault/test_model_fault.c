/* Fails the nth call of the operating system under opening a model and writing tensors,
 * for every n: the status is the errno's, nothing is left open or mapped, and a
 * half-written file never appears. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "models/model.h"
#include "models/safetensors.h"
#include "tests/support/check.h"
#include "tests/support/fault.h"

#define DIR_NAME "build/tmp/model_fault"
#define TARGET DIR_NAME "/out.safetensors"

static kvm_status do_open(kvm_arena *keep, kvm_str path, kvm_err *err)
{
    kvm_compute *c;
    kvm_model *m;
    const kvm_model_options o = {.no_tokenizer = true};
    TRY(kvm_compute_new(&c, keep, kvm_backend_find(KVM_STR("ref")), 1, err));
    return kvm_model_open(&m, keep, c, path, &o, err);
}

static kvm_status do_folder(kvm_arena *keep, kvm_err *err)
{
    return do_open(keep, KVM_STR("tests/golden/models/mistral3"), err);
}

static kvm_status do_gguf(kvm_arena *keep, kvm_err *err)
{
    return do_open(keep, KVM_STR("tests/golden/models/llama-mixed.gguf"), err);
}

static kvm_status do_write(kvm_arena *keep, kvm_err *err)
{
    static char big[2 << 20];
    const kvm_st_spec spec = {KVM_STR("x"), KVM_U8, 1, {sizeof big}};
    kvm_st_writer *w;
    TRY(kvm_st_begin(&w, keep, KVM_STR(TARGET), &spec, 1, NULL, err));
    TRY(kvm_st_append(w, big, sizeof big, err));
    return kvm_st_publish(w, NULL, err);
}

/* NOMEM: memory was mapped; NOTFOUND, USAGE: kvm_path_exists or kvm_path_is_dir said
 * no */
static bool expected(kvm_status s, int error)
{
    if (s == KVM_NOTFOUND || s == KVM_USAGE || s == KVM_NOMEM) return true;
    return error == ENOSPC ? s == KVM_NOSPACE : s == KVM_IO;
}

/* the file is there only when all but the sync of its folder went well */
static void whole_or_absent(void)
{
    if (!kvm_path_exists(KVM_STR(TARGET))) return;
    kvm_arena a = check_arena(1 << 24);
    kvm_err err = {0};
    kvm_st *st;
    check_ok(kvm_st_open(&st, &a, KVM_STR(TARGET), &err), &err);
    assert_int_equal(kvm_st_count(st), 1);
    kvm_arena_free(&a);
}

static void every_call(kvm_status (*work)(kvm_arena *, kvm_err *), int error)
{
    for (long n = 1;; n++) {
        kvm_arena keep = {0};
        kvm_err err = {0};
        remove(TARGET);
        fault_begin((fault_plan){.nth = n, .error = error});
        kvm_status s = kvm_arena_init(&keep, 1 << 26, &err);
        if (!s) s = work(&keep, &err);
        kvm_arena_free(&keep);
        const long files = fault_open_files(), maps = fault_mappings();
        const bool fired = fault_end();
        assert_int_equal(files, 0);
        assert_int_equal(maps, 0);
        if (!fired) {
            check_ok(s, &err);
            assert_true(n > 3);
            return;
        }
        if (s == KVM_OK) continue; /* a failing close or munmap at the very end */
        if (!expected(s, error))
            fail_msg("call %ld: %s: %s", n, kvm_status_name(s), err.msg);
        assert_int_equal(err.code, s);
        if (work == do_write) whole_or_absent();
    }
}

static void test_folder(void **state)
{
    (void)state;
    every_call(do_folder, EIO);
}

static void test_gguf(void **state)
{
    (void)state;
    every_call(do_gguf, EIO);
}

static void test_write(void **state)
{
    (void)state;
    check_tmpdir("model_fault");
    every_call(do_write, ENOSPC);
    check_tmpdir("model_fault");
    every_call(do_write, EIO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folder),
        cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
