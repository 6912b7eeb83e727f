/* plan_internal.h - shared by plan.c (what the two models' shapes say) and plan_jobs.c
 * (what every job of the graphs takes). */
#ifndef KVM_JOBS_PLAN_INTERNAL_H
#define KVM_JOBS_PLAN_INTERNAL_H

#include "jobs/plan.h"

typedef struct kvm_plan_context {
    const kvm_spec *spec;
    const kvm_model *source, *target; /* of the first direction */
    const kvm_machine_rates *rates;
    int threads;
    double rows, held, row_bytes; /* of a capture; share kept from the fit */
    double k_most;
    kvm_arena *keep;
} kvm_plan_context;

/* entries of one object kind over all layers: the features of a Gram matrix */
double kvm_plan__features(const kvm_model *m, kvm_object_kind kind);
/* entries of a token's rows of every kind */
double kvm_plan__row_width(const kvm_model *m);
/* every kind of row, content and where there is a position rotated, over every split,
 * fp64 */
double kvm_plan__moment_bytes(const kvm_model *a, const kvm_model *b, bool symmetric);
/* of the maps with k source layers, of every kind of row that both keep: weights and
 * bias */
double kvm_plan__translator_parameters(const kvm_model *source, const kvm_model *target,
                                       double k);
double kvm_plan__stats_flops(const kvm_model *source, const kvm_model *target,
                             double rows);
/* full: with the greedy curves */
double kvm_plan__sweep_flops(const kvm_model *source, const kvm_model *target,
                             double k_most, bool full);

/* kvm_plan__jobs - "jobs" and "total" of a plan (plan.h); both owned by p->keep */
KVM_MUST kvm_status kvm_plan__jobs(json_t **jobs, json_t **total,
                                   const kvm_plan_context *p, const kvm_graph *graphs,
                                   ptrdiff_t n, kvm_err *err);

#endif
