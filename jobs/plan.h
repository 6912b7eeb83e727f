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
/* A model of which there is a config.json alone is planned with, and nothing else. */
bool kvm_plan_is_config(kvm_str path);
/* graphs: [before + n], the last n of this spec (kvm_specs_graphs), the others of specs
 * planned before it; a step that several share counts where it comes first.
 * n = 0: there are none, as of two configs; sequences are those of the spec, or 300 of
 * 512 tokens.
 * {"models": {...}, "capture": [...], "moments": {...},
 * "translator": [...], "fit": [... a direction each; the first has the cross moments of
 * both], "ttft": [... a row for each length of the spec's timing],
 * "jobs": [{"kind", "jobs", "seconds", "bytes", "memory_bytes", "ranks_share": what the
 * ranks of a gang share out, "nothing", "work" or "work or layers"} of each kind there
 * is, and of all "ablation"s], "total": {"jobs", "seconds", "cpu_seconds", "bytes",
 * "memory_bytes"}}; new reference. Memory is that of the largest job: they run one
 * after another. Where the fit chooses k, the largest is counted. */
KVM_MUST kvm_status kvm_plan_json(json_t **out, const kvm_spec *s,
                                  const kvm_graph *graphs, ptrdiff_t before,
                                  ptrdiff_t n, kvm_compute *c,
                                  const kvm_machine_rates *r, kvm_arena *keep,
                                  kvm_err *err);

#endif
