/* arm_caches.h - the same prefix, cached eight ways.
 *
 * For one item the source, the target and (for the wrong-donor control) another item
 * are prefilled once. Each arm of reports/arms.def then fills a working cache from
 * these, and only the working cache is ever scored on: what was prefilled is read,
 * never continued. */
#ifndef KVM_JOBS_ARM_CACHES_H
#define KVM_JOBS_ARM_CACHES_H

#include "models/model.h"
#include "reports/stats.h"
#include "translators/apply.h"

typedef struct kvm_arm_caches {
    kvm_model *source, *target; /* borrows */
    kvm_apply *apply
        [KVM_ARM_COUNT]; /* of the arms that are translators; NULL: arm not there */
    kvm_cache *source_prefix, *target_prefix, *donor_prefix; /* read only once filled */
    kvm_cache *source_work, *target_work;                    /* scored on */
    /* what translators read that a cache does not keep; NULL: nothing (_take) */
    kvm_taken *source_taken, *donor_taken;
    const int32_t *ids, *donor_ids; /* of the prefix; borrows from _prefill's caller */
    float *rows;                    /* scratch for the raw and zero controls */
    bool no_donor; /* some item has no other with a prefix of its own */
} kvm_arm_caches;

/* capacity: the longest prefix + what is fed and generated after it */
KVM_MUST kvm_status kvm_arm_caches_new(kvm_arm_caches *a, kvm_arena *keep,
                                       kvm_model *source, kvm_model *target,
                                       ptrdiff_t capacity, kvm_err *err);
/* kvm_arm_caches_take - room for the rows that the arms' translators need to have
 * taken, once apply is filled in */
KVM_MUST kvm_status kvm_arm_caches_take(kvm_arm_caches *a, kvm_arena *keep,
                                        ptrdiff_t capacity, kvm_err *err);
/* kvm_arm_caches_prefill - run both models over ids (n) and the source over the donor's
 * ids (also n; NULL: no arm asks for it). n = 0 is KVM_RANGE */
KVM_MUST kvm_status kvm_arm_caches_prefill(kvm_arm_caches *a, const int32_t *ids,
                                           const int32_t *donor, ptrdiff_t n,
                                           kvm_err *err);
/* NULL when the arm can be had for this pair; else why not (static) */
const char *kvm_arm_absent(const kvm_arm_caches *a, kvm_arm arm);
/* kvm_arm_fill - the working cache of that arm, filled with n tokens; *model is who
 * continues on it */
KVM_MUST kvm_status kvm_arm_fill(kvm_arm_caches *a, kvm_arm arm, kvm_model **model,
                                 kvm_cache **cache, kvm_err *err);
/* kvm_arm_fill_head - the target's working cache, of which a translator's arm made the
 * first `head` tokens and the target read the others itself. The source reads those
 * tokens again, for it cannot go back from a state: in the donor's place. */
KVM_MUST kvm_status kvm_arm_fill_head(kvm_arm_caches *a, kvm_arm by, ptrdiff_t head,
                                      kvm_cache **cache, kvm_err *err);

#endif
