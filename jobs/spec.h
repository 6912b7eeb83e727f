/* spec.h - a pair's YAML file, and the graph of jobs that it asks for.
 *
 * The spec is checked whole (unknown keys with the nearest known one and the line,
 * types, ranges, suites, both checkpoints, equal tokenizers) before anything is
 * submitted. Its sections are the parameters of the job kinds; paths are relative to
 * the file. */
#ifndef KVM_JOBS_SPEC_H
#define KVM_JOBS_SPEC_H

#include "jobs/job.h"
#include "models/model.h"

/* the spec's fit section is the fit's own parameters (fit.c) */
extern const kvm_field kvm_fit_params[];
extern const kvm_field kvm_spec_fields[]; /* for `kvmill help spec` */

typedef struct kvm_spec {
    kvm_str file, dir, name;          /* name: of the pair */
    kvm_str source_path, target_path; /* resolved */
    kvm_str text_path;                /* calibration, resolved */
    bool both_directions;
    int64_t seed;
    kvm_jat root; /* the whole document */
    kvm_str text; /* the file as it stands, for the report */
} kvm_spec;

/* KVM_FORMAT / KVM_USAGE / KVM_RANGE with file and line */
KVM_MUST kvm_status kvm_spec_read(kvm_spec *s, kvm_arena *keep, kvm_str path,
                                  kvm_err *err);

/* kvm_specs_read - the specs of a file: the one of a pair, or, of a family of models,
 * one for every two of them */
KVM_MUST kvm_status kvm_specs_read(kvm_spec **specs, ptrdiff_t *n, kvm_arena *keep,
                                   kvm_str path, kvm_err *err);

/* kvm_spec_graphs - one graph per direction (1 or 2), sharing captures and moments by
 * their keys. Opens both models once for their fingerprints. KVM_MISMATCH: the
 * tokenizers differ (first entry named). The reverse of "a-b" is called by
 * `reverse_name`, or "b-a" when the name is SOURCE-TARGET, else NAME-reversed. */
KVM_MUST kvm_status kvm_spec_graphs(const kvm_spec *s, kvm_arena *keep, kvm_compute *c,
                                    kvm_graph graphs[2], ptrdiff_t *n, kvm_err *err);
typedef struct kvm_graphs { /* of one spec: a direction each */
    kvm_graph of[2];
    ptrdiff_t n;
} kvm_graphs;
/* kvm_specs_graphs - the same of all specs of a file, whose captures and moments hold
 * what any of them needs: a model is captured once for all its pairs.
 *   graphs  [count] */
KVM_MUST kvm_status kvm_specs_graphs(const kvm_spec *specs, ptrdiff_t count,
                                     kvm_arena *keep, kvm_compute *c,
                                     kvm_graphs **graphs, kvm_err *err);

#endif
