/* plan.h - what a spec will cost before anything runs: bytes, FLOPs, memory, predicted
 * times.
 *
 * Arithmetic on the two models' shapes, no forward pass. Times come from two rates of a
 * machine: FLOP/s of large fp32 products and bytes/s of memory; both measured here in a
 * moment, or given for another machine. */
#ifndef KVM_JOBS_PLAN_H
#define KVM_JOBS_PLAN_H

#include "jobs/spec.h"

typedef struct kvm_machine_rates {
    double flops; /* per second, fp32 products over all threads */
    double bytes; /* per second, read */
} kvm_machine_rates;

/* about a third of a second */
KVM_MUST kvm_status kvm_plan_measure(kvm_machine_rates *r, kvm_compute *c,
                                     kvm_err *err);
/* g: the graph of the spec's first direction (kvm_spec_graphs), whose captures say how
 * many sequences there are.
 * {"models": {...}, "capture": [...], "moments": {...},
 * "translator": [...], "fit": [... a direction each; the first has the cross moments of
 * both], "ttft": [...]}; new reference */
KVM_MUST kvm_status kvm_plan_json(json_t **out, const kvm_spec *s, const kvm_graph *g,
                                  kvm_compute *c, const kvm_machine_rates *r,
                                  kvm_arena *keep, kvm_err *err);

#endif
