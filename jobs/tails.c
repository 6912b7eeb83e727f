#include "jobs/tails.h"

#include <math.h>

const double kvm_default_tails[KVM_DEFAULT_TAILS] = {0.05, 0.10, 0.25, 0.50};

kvm_status kvm_tails_read(kvm_tails *t, kvm_jat params, kvm_arena *keep,
                          const double *otherwise, ptrdiff_t n, kvm_err *err)
{
    const kvm_jat list = kvm_json_get(params, keep, "tails");
    if (!kvm_json_has(list)) {
        t->n = n;
        for (ptrdiff_t i = 0; i < n; i++) t->share[i] = otherwise[i];
        return KVM_OK;
    }
    TRY(kvm_json_array(list, &t->n, err));
    if (t->n > KVM_MOST_TAILS)
        return kvm_json_fail(err, KVM_RANGE, list, "are %td, at most %d", t->n,
                             KVM_MOST_TAILS);
    for (ptrdiff_t i = 0; i < t->n; i++) {
        const kvm_jat at = kvm_json_item(list, keep, i);
        const double least = i ? t->share[i - 1] : 0;
        TRY(kvm_json_f64(at, &t->share[i], err));
        if (!(t->share[i] > least && t->share[i] < 1))
            return kvm_json_fail(err, KVM_RANGE, at,
                                 "is %g, must be a share more than %g and less than 1",
                                 t->share[i], least);
    }
    return KVM_OK;
}

ptrdiff_t kvm_tail_tokens(double share, ptrdiff_t n)
{
    const ptrdiff_t tail = (ptrdiff_t)floor(share * (double)n + 0.5);
    return tail < n ? tail : n - 1;
}
