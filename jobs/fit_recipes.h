/* fit_recipes.h - what a spec's fit section says of recipes, for the fit and for the
 * graph, which has to know what the captures before it must hold. */
#ifndef KVM_JOBS_FIT_RECIPES_H
#define KVM_JOBS_FIT_RECIPES_H

#include "jobs/job.h"
#include "translators/outline.h"

/* keys, token, states, latents and indexers of the fit's parameters, lists into the
 * job's arena; KVM_USAGE names the place, also of an auto that nothing has been chosen
 * for (candidates.h) */
KVM_MUST kvm_status kvm_fit_read_recipes(kvm_job *j, kvm_outline_options *o,
                                         kvm_err *err);
/* kvm_fit_check_recipes - what a spec's section says, autos passed over */
KVM_MUST kvm_status kvm_fit_check_recipes(kvm_jat fit, kvm_arena *keep, kvm_err *err);

#endif
