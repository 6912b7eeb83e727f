/* specs.h - specs between models of tests/zoo, in a folder of the test's own, read and
 * built. All in the header, as queue.h. The includer defines SPECS, the folder's name,
 * first. */
#ifndef KVM_TESTS_SUPPORT_SPECS_H
#define KVM_TESTS_SUPPORT_SPECS_H

#include "jobs/spec.h"
#include "kernels/backend.h"
#include "tests/support/check.h"

#define DIR "build/tmp/" SPECS

static kvm_arena arena;

static inline int setup(void **state)
{
    (void)state;
    arena = check_arena((size_t)1 << 36);
    check_tmpdir(SPECS);
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&arena);
    return 0;
}

#define HEAD                                                                           \
    "name: small-large\nsource: ../../../tests/zoo/small\ntarget: "                    \
    "../../../tests/zoo/large\n"
#define FEW /* 4 sequences of 8 tokens */                                              \
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
#define CALIBRATION "calibration: {text: calibration}\n"

static inline kvm_status read(const char *yaml, kvm_spec *s, kvm_err *err)
{
    *err = (kvm_err){0};
    check_write(DIR "/pair.yaml", kvm_str_of(yaml));
    return kvm_spec_read(s, &arena, KVM_STR(DIR "/pair.yaml"), err);
}

static inline kvm_status build(const char *yaml, kvm_graph g[2], kvm_err *err)
{
    kvm_spec s;
    kvm_compute *c;
    ptrdiff_t n;
    check_ok(read(yaml, &s, err), err);
    check_ok(kvm_compute_new(&c, &arena, kvm_backend_find(KVM_STR("cpu")), 1, err),
             err);
    return kvm_spec_graphs(&s, &arena, c, g, &n, err);
}

#endif
