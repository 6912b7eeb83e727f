/* ablations.h - what the closed form loses when a part of it is taken away: rows of
 * ablations.def. What a spec leaves to the fit (k: auto, lambda: auto) is chosen anew,
 * on the choosing split, for each of them. */
#ifndef KVM_JOBS_ABLATIONS_H
#define KVM_JOBS_ABLATIONS_H

#include "base/json.h"

typedef struct kvm_ablation {
    const char *name, *title, *change; /* static */
    const char *lacking; /* why a pair cannot have it; "": every pair can */
} kvm_ablation;

/* KVM_USAGE at the place `at`, with the names there are; `at` may be empty (NULL
 * value) */
KVM_MUST kvm_status kvm_ablation_find(const kvm_ablation **a, kvm_str name, kvm_jat at,
                                      kvm_err *err);
/* kvm_ablation_apply - change the parameters of a fit */
KVM_MUST kvm_status kvm_ablation_apply(const kvm_ablation *a, json_t *fit_params,
                                       kvm_err *err);

#endif
