/* fit_internal.h - a fit under way, shared by its reading and reporting (fit.c) and its
 * solving (fit_solve.c, fit_states.c, fit_identity.c). */
#ifndef KVM_JOBS_FIT_INTERNAL_H
#define KVM_JOBS_FIT_INTERNAL_H

#include "jobs/fit_sweep.h"
#include "jobs/job.h"
#include "translators/gates.h"
#include "translators/outline.h"
#include "translators/states.h"

typedef struct kvm_fit {
    kvm_job *job;
    kvm_compute *compute;
    kvm_moments *moments;
    kvm_rows *rows[2]; /* the captures */
    kvm_fit_choice asked;
    bool head_matched, allow_wide, by_depth, sweep;
    kvm_outline_options options;
    kvm_outline outline;
    kvm_dtype dtype;
    kvm_translator translator;
    kvm_step *steps;
    kvm_ridge_figures *solved; /* of each step */
    kvm_gate gates[KVM_GATES];
    json_t *figures, *layers;
    kvm_arena scratch;
} kvm_fit;

/* all steps of the translator, in its order, with their figures and gates */
KVM_MUST kvm_status kvm_fit__solve(kvm_fit *f, kvm_err *err);
/* what becomes of recurrent layers' states, where no step makes their inputs */
KVM_MUST kvm_status kvm_fit__states(kvm_fit *f, kvm_err *err);
/* of maps that are told decoded tokens: how many held-out ones are decoded right, into
 * figures and gate; nothing where the job is told no source */
KVM_MUST kvm_status kvm_fit__identity(kvm_fit *f, kvm_err *err);

#endif
