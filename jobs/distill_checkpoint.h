/* distill_checkpoint.h - a distillation on disk, so that a killed one goes on bit for
 * bit: parameters, moments, the best parameters so far, and the curve. */
#ifndef KVM_JOBS_DISTILL_CHECKPOINT_H
#define KVM_JOBS_DISTILL_CHECKPOINT_H

#include <jansson.h>

#include "translators/distill.h"

/* What beside the arrays tells where a distillation stands. */
typedef struct kvm_distill_progress {
    double best_kl; /* on the validation lessons; HUGE_VAL: none yet */
    ptrdiff_t best_step;
    float *best;   /* (parameters) */
    json_t *curve; /* array of points */
} kvm_distill_progress;

/* kvm_distill_save - the file has a SHA-256 of each array and of its metadata. config:
 * hex of everything that the numbers follow from (kvm_job_config) */
KVM_MUST kvm_status kvm_distill_save(kvm_distill *d, const kvm_distill_progress *p,
                                     const char *config, kvm_str path, kvm_err *err);
/* kvm_distill_load - what save left, of a distillation of `steps` steps. p->best has
 * room, p->curve is an empty array. KVM_MISMATCH when it is of another distillation,
 * KVM_FORMAT names what is not as it was written; d and p are then untouched. */
KVM_MUST kvm_status kvm_distill_load(kvm_distill *d, kvm_distill_progress *p,
                                     const char *config, ptrdiff_t steps, kvm_str path,
                                     kvm_err *err);

#endif
