/* A capture on a full disk: whatever call fails, the job says so, nothing is declared
 * as a result, nothing is left open, and the same job run again afterwards gives the
 * same bits as if nothing had happened. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "jobs/calibration.h"
#include "jobs/job.h"
#include "models/model.h"
#include "tests/support/check.h"
#include "tests/support/fault.h"

#define DIR "build/tmp/capture_fault"

extern const kvm_job_kind kvm_job_capture;

static int outputs;

static kvm_status count_output(kvm_job *j, const char *name, kvm_str path, kvm_err *err)
{
    (void)j;
    (void)name;
    (void)path;
    (void)err;
    outputs++;
    return KVM_OK;
}

static const kvm_job_host host = {.output = count_output};

static kvm_jat params(kvm_arena *keep)
{
    kvm_err err = {0};
    kvm_jat root;
    kvm_compute *c;
    kvm_model *m;
    char text[65];
    check_ok(kvm_compute_new(&c, keep, kvm_backend_find(KVM_STR("cpu")), 1, &err),
             &err);
    check_ok(kvm_model_open(&m, keep, c, KVM_STR("tests/zoo/small"),
                            &(kvm_model_options){0}, &err),
             &err);
    check_ok(kvm_calibration_hash(text, KVM_STR(DIR "/text.txt"), *keep, &err), &err);
    const kvm_str yaml = kvm_str_fmt(keep,
                                     "{model: \"%s\", model_path: tests/zoo/small, "
                                     "text: \"%s\", text_path: %s/text.txt, "
                                     "sequences: 4, tokens: 32, stride: 2}",
                                     kvm_model_info_of(m)->fingerprint, text, DIR);
    check_ok(kvm_yaml_parse(&root, keep, yaml, KVM_STR("params"), &err), &err);
    return root;
}

static kvm_status capture(kvm_jat p, kvm_str dir, size_t offload, kvm_err *err)
{
    kvm_arena keep = check_arena((size_t)1 << 36);
    kvm_job j = {.host = &host,
                 .params = p,
                 .dir = dir,
                 .keep = &keep,
                 .team = &kvm_team_alone,
                 .backend = "cpu",
                 .threads = 1,
                 .offload = offload};
    outputs = 0;
    *err = (kvm_err){0};
    const kvm_status s = kvm_job_capture.run(&j, err);
    kvm_arena_free(&keep);
    return s;
}

static void hash(char sha[65], const char *path)
{
    kvm_err err = {0};
    kvm_arena a = check_arena(1 << 24);
    check_ok(kvm_sha_file(kvm_str_of(path), sha, a, &err), &err);
    kvm_arena_free(&a);
}

static void a_full_disk_loses_nothing(void **state)
{
    (void)state;
    check_tmpdir("capture_fault");
    check_tmpdir("capture_fault/good");
    check_tmpdir("capture_fault/bad");
    check_write(
        DIR "/text.txt",
        KVM_STR(
            "In the beginning God created the heaven and the earth. And the earth was "
            "without form, and void; and darkness was upon the face of the deep. And "
            "the Spirit of God moved upon the face of the waters. And God said, Let "
            "there be light: and there was light. And God saw the light, that it was "
            "good: and God divided the light from the darkness. And God called the "
            "light Day, and the darkness he called Night.\n"));
    kvm_arena keep = check_arena((size_t)1 << 34);
    kvm_err err;
    char good[65], bad[65];
    const kvm_jat p = params(&keep);
    check_ok(capture(p, KVM_STR(DIR "/good"), 0, &err), &err);
    assert_int_equal(outputs, 2);
    hash(good, DIR "/good/capture.safetensors");
    /* sequence by sequence; and layer by layer, with more between two than may stay in
     * memory */
    const char *const calls[] = {"write", "fsync",  "fdatasync", "rename",
                                 "open",  "pwrite", "pread",     "ftruncate"};
    for (size_t offload = 0; offload < 2; offload++) {
        long fired = 0;
        check_tmpdir("capture_fault/bad");
        for (size_t c = 0; c < COUNT(calls); c++) {
            for (long n = 1;; n++, fired++) {
                fault_begin((fault_plan){.nth = n, .error = ENOSPC, .only = calls[c]});
                const kvm_status st = capture(p, KVM_STR(DIR "/bad"), offload, &err);
                const long files = fault_open_files();
                if (!fault_end()) break;
                assert_int_equal(st, KVM_NOSPACE);
                assert_true(outputs < 2); /* a job that failed is never committed */
                assert_int_equal(files, 0);
            }
        }
        assert_true(fired > (offload ? 40 : 10));
        /* what is left is gone on from */
        check_ok(capture(p, KVM_STR(DIR "/bad"), offload, &err), &err);
        hash(bad, DIR "/bad/capture.safetensors");
        assert_string_equal(good, bad);
        assert_false(kvm_path_exists(KVM_STR(DIR "/bad/between_layers.0")));
    }
    kvm_arena_free(&keep);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_full_disk_loses_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
