/* open_checkpoint.h - a checkpoint opened and closed again, for the tests of what is
 * refused. All in the header, as queue.h. */
#ifndef KVM_TESTS_SUPPORT_OPEN_CHECKPOINT_H
#define KVM_TESTS_SUPPORT_OPEN_CHECKPOINT_H

#include <stdio.h>

#include "models/model.h"
#include "tests/support/check.h"

/* info and hashes (of config, weights, both) are filled in, or both NULL */
static inline kvm_status open_model(const char *path, bool check_finite,
                                    kvm_model_info *info, char hashes[3][65],
                                    kvm_err *err)
{
    kvm_arena a = check_arena(1 << 26);
    kvm_compute *c;
    kvm_model *m;
    const kvm_model_options o = {.no_tokenizer = true, .check_finite = check_finite};
    kvm_status s = kvm_compute_new(&c, &a, kvm_backend_find(KVM_STR("ref")), 1, err);
    if (!s) s = kvm_model_open(&m, &a, c, kvm_str_of(path), &o, err);
    if (!s && info) {
        *info = *kvm_model_info_of(m);
        snprintf(hashes[0], 65, "%s", info->config_hash);
        snprintf(hashes[1], 65, "%s", info->weights_hash);
        snprintf(hashes[2], 65, "%s", info->fingerprint);
    }
    kvm_arena_free(&a);
    return s;
}

#endif
