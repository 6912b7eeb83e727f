/* one_run.h - a catalogue with one worker and one run that jobs are put into, for the
 * tests of a job's states. All in the header, as queue.h. The includer defines
 * _XOPEN_SOURCE 700 (nftw) first. */
#ifndef KVM_TESTS_SUPPORT_ONE_RUN_H
#define KVM_TESTS_SUPPORT_ONE_RUN_H

#include <stdio.h>

#include "tests/support/queue.h"

static kvm_arena keep;
static char path[400]; /* the catalogue's */
static kvm_catalogue *c;
static int64_t worker, run;
static const kvm_queue_policy quick = {.backoff_s = 1e-3, .backoff_most_s = 1e-3};

/* in the folder of a test of that name */
static inline int one_run_begin(const char *name)
{
    snprintf(path, sizeof path, "%s", kvm_test_catalogue(kvm_test_home(name)));
    if (kvm_arena_init(&keep, 256 << 20, NULL)) return -1;
    MUST(kvm_catalogue_open(&c, &keep, kvm_str_of(path), NULL, e));
    MUST(kvm_worker_register(c, KVM_STR("w1"), KVM_STR("host"), KVM_STR("m"), &worker,
                             e));
    const kvm_run_new r = {
        .team = KVM_STR("t"), .pair = KVM_STR("p"), .spec = KVM_STR("{}"), .key = "k"};
    MUST(kvm_run_insert(c, &r, &run, e));
    return 0;
}

static inline int tear_down(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    return 0;
}

static inline int64_t add_kind(int kind, int n, const kvm_job_dep *deps,
                               ptrdiff_t dep_count)
{
    int64_t id;
    const kvm_job_new j = {.run = run,
                           .kind = kind,
                           .kind_name = kind == 6 ? "timing" : "x",
                           .version = 1,
                           .timed = kind == 6,
                           .label = kvm_str_fmt(&keep, "job %d", n),
                           .params = kvm_str_fmt(&keep, "{\"n\":%d}", n),
                           .identity = KVM_STR("{}"),
                           .deps = deps,
                           .dep_count = dep_count};
    MUST(kvm_job_insert(c, &j, &id, e));
    return id;
}

static inline int64_t add(int n)
{
    return add_kind(1, n, NULL, 0);
}

static inline kvm_claim claim_for(double lease_s)
{
    kvm_claim k = {0};
    bool found = false;
    MUST(kvm_test_claim(c, &k, &found, &keep, worker, 0, lease_s, e));
    assert_true(found);
    return k;
}

static inline kvm_result with_output(const char *sha)
{
    kvm_result_artefact *a = kvm_new(&keep, kvm_result_artefact, 1);
    *a = (kvm_result_artefact){KVM_STR("out"), kvm_str_of(sha), 3};
    return (kvm_result){.artefacts = a, .artefact_count = 1};
}

#define STATE(job, name) assert_string_equal(kvm_test_state(c, &keep, job), name)

static const char *const A =
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

#endif
