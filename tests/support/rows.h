/* rows.h - captures in a folder of the test's own, opened. All in the header, as
 * queue.h. The includer defines ROWS, the folder's name, first. */
#ifndef KVM_TESTS_SUPPORT_ROWS_H
#define KVM_TESTS_SUPPORT_ROWS_H

#include "tests/support/check.h"
#include "translators/rows.h"

#define TMP "build/tmp/" ROWS "/"

static kvm_arena keep;
static kvm_compute *compute;

static inline int setup(void **state)
{
    (void)state;
    kvm_err err = {0};
    check_tmpdir(ROWS);
    keep = check_arena((size_t)1 << 32);
    check_ok(
        kvm_compute_new(&compute, &keep, kvm_backend_find(KVM_STR("cpu")), 2, &err),
        &err);
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    return 0;
}

static inline kvm_rows *open_rows(const char *path)
{
    kvm_err err = {0};
    kvm_rows *r;
    check_ok(kvm_rows_open(&r, &keep, kvm_str_of(path), &err), &err);
    return r;
}

#endif
