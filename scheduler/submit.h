/* submit.h - a graph of jobs becomes a run in the catalogue, in one transaction.
 *
 * The run's key covers the spec, every node (kind, code version, parameters,
 * identity, wiring), the team and, when a node is timed, the machine. The same graph
 * submitted again is the same run: done already (nothing is written), or taken up
 * where it stands, its failed, parked and cancelled jobs retried. `again` makes a
 * new run instead: equal steps are still skipped by their keys, timings are measured
 * anew. Earlier runs of the same spec on other content are marked stale
 * (schema/stale.h). */
#ifndef KVM_SCHEDULER_SUBMIT_H
#define KVM_SCHEDULER_SUBMIT_H

#include "jobs/job.h"
#include "schema/catalogue.h"
#include "schema/job_state.h"
#include "schema/stale.h"
#include "schema/store.h"

typedef enum kvm_submit_outcome {
    KVM_SUBMIT_NEW,     /* a new run */
    KVM_SUBMIT_RESUMED, /* an unfinished run of the same key goes on */
    KVM_SUBMIT_DONE /* a finished run of the same key stands, all its artefacts there */
} kvm_submit_outcome;

typedef struct kvm_submit_options {
    kvm_str team; /* empty: "default" */
    int priority;
    int ranks; /* of the gang that a step is for, if its kind can be dealt out; 0: 1 */
    bool again;
    kvm_str tick; /* for which time of a schedule, with again: it makes one run of each
                   * graph, however often that is submitted; empty: for none */
    kvm_str machine; /* class of the machine that times (workers/machine.h) */
    kvm_str file;    /* the spec's, absolute, to be submitted again; empty: not known */
} kvm_submit_options;

typedef struct kvm_submitted {
    int64_t run;
    kvm_submit_outcome outcome;
    ptrdiff_t jobs;
    ptrdiff_t retried; /* of a resumed run: jobs that had ended without result */
    kvm_stale stale;   /* the newest earlier run of this spec that is now out of date */
} kvm_submitted;

/* kvm_submit - KVM_FORMAT for a graph whose inputs do not point backwards or whose
 * input names repeat. options NULL: defaults. */
KVM_MUST kvm_status kvm_submit(kvm_catalogue *c, kvm_store *store, const kvm_graph *g,
                               const kvm_submit_options *options, kvm_submitted *out,
                               kvm_arena scratch, kvm_err *err);

#endif
