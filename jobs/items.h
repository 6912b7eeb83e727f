/* items.h - the items of a suite as both models of a pair read them.
 *
 * Those that are scored, tokenised, and what can be wrong with them that their text
 * does not show: nothing to cache, more than a model's context holds, or text that was
 * fitted on. A plan asks it so that nothing of it is left for the job to find; the job
 * asks again. */
#ifndef KVM_JOBS_ITEMS_H
#define KVM_JOBS_ITEMS_H

#include "jobs/calibration.h"
#include "jobs/score_item.h"

typedef struct kvm_items {
    const kvm_suite *suite; /* borrowed */
    ptrdiff_t *index;       /* (n) of the suite's items: kvm_suite_sample */
    kvm_item_ids *ids;      /* (n) */
    ptrdiff_t n;
    int32_t bos;       /* begin-of-text id; -1: the tokenizer puts none */
    ptrdiff_t longest; /* most ids of an item, with all that may follow its prefix */
} kvm_items;

/* wanted: as kvm_suite_sample. KVM_RANGE names the item that has nothing to cache or to
 * measure */
KVM_MUST kvm_status kvm_items_read(kvm_items *it, kvm_arena *keep,
                                   const kvm_suite *suite, ptrdiff_t wanted,
                                   const kvm_tokenizer *t, kvm_err *err);
/* kvm_items_fit - KVM_RANGE names the first item that the model's context does not
 * hold */
KVM_MUST kvm_status kvm_items_fit(const kvm_items *it, const kvm_model_info *m,
                                  kvm_err *err);
/* kvm_items_apart - KVM_MISMATCH names an item of which a window also stands in the
 * calibration text `path`: what was fitted on must not be scored on */
KVM_MUST kvm_status kvm_items_apart(const kvm_items *it, const kvm_overlap *o,
                                    kvm_str path, kvm_arena scratch, kvm_err *err);

/* kvm_item_overlap - the token of an item, with all that may follow its prefix, at
 * which a window of the calibration text stands; -1: none */
KVM_MUST kvm_status kvm_item_overlap(const kvm_overlap *o, const kvm_item_ids *ids,
                                     kvm_arena scratch, ptrdiff_t *at, kvm_err *err);

#endif
