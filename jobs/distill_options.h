/* distill_options.h - what a spec sets of a distillation, and whether its lessons fit
 * into the memory that it may take: asked before anything runs, and by the job. */
#ifndef KVM_JOBS_DISTILL_OPTIONS_H
#define KVM_JOBS_DISTILL_OPTIONS_H

#include "jobs/job.h"
#include "translators/distill.h"

typedef struct kvm_distill_options {
    ptrdiff_t steps, batch, after, prefix, warmup, validate, lessons, memory_mib, seed;
    ptrdiff_t split_seed, sequences, tokens, top;
    double rate, decay, clip, held_out;
    kvm_dtype dtype;
} kvm_distill_options;

/* of the job's parameters; KVM_RANGE, KVM_USAGE name the place */
KVM_MUST kvm_status kvm_distill_read_options(kvm_distill_options *o, kvm_job *j,
                                             kvm_err *err);
/* kvm_distill_fits - KVM_RANGE, at memory_mib, when so many lessons take more; what:
 * "up to " of an estimate */
KVM_MUST kvm_status kvm_distill_fits(kvm_job *j, const kvm_distill_options *o,
                                     double bytes, ptrdiff_t lessons, const char *what,
                                     kvm_err *err);
/* kvm_distill_plan_fits - the same before there are sequences or a translator: of all
 * lessons that the split gives, each as long as a sequence allows */
KVM_MUST kvm_status kvm_distill_plan_fits(kvm_job *j, const kvm_outline *outline,
                                          const kvm_shapes *source,
                                          const kvm_shapes *target,
                                          const kvm_model *model, kvm_err *err);
/* kvm_distill_warning - of options that are good and surely not meant: a warm-up that
 * does not end before the training does. *warning: empty, or a sentence in j->keep
 * that names the key */
KVM_MUST kvm_status kvm_distill_warning(kvm_str *warning, kvm_job *j, kvm_err *err);

#endif
