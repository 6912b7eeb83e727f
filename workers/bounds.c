#include "workers/bounds.h"

#include "base/roots.h"
#include "jobs/suite.h"
#include "models/model.h"

kvm_status kvm_bounds_set(kvm_str allow, kvm_str home, kvm_err *err)
{
    enum { SCRATCH = 64 << 10 };
    kvm_str folders[KVM_ROOTS_MOST] = {home};
    ptrdiff_t n = 1;
    kvm_arena own;
    if (!allow.at) return KVM_OK;
    TRY(kvm_arena_init(&own, SCRATCH, err));
    kvm_status s = kvm_suites_dir(&folders[n++], &own, err);
    folders[n] = kvm_model_memos(&own);
    n += folders[n].len > 0;
    while (!s && allow.len > 0) {
        kvm_str folder;
        kvm_str_cut(allow, ':', &folder, &allow);
        if (folder.len == 0) continue;
        if (n == KVM_ROOTS_MOST)
            s = kvm_fail(err, KVM_USAGE, "more than %d folders are allowed",
                         KVM_ROOTS_MOST - 3);
        else
            folders[n++] = folder;
    }
    if (!s)
        s = kvm_roots_set(folders, n,
                          "who runs the worker allows others with --allow or "
                          "KVMILL_ALLOW",
                          err);
    kvm_arena_free(&own);
    return s;
}
