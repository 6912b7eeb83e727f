/* report_parts.h - the parts of a report document, each from the artefacts it is
 * measured in. Every part adds its members (reports/page.h) to doc, or a reason to
 * doc's "absent". */
#ifndef KVM_JOBS_REPORT_PARTS_H
#define KVM_JOBS_REPORT_PARTS_H

#include "jobs/job.h"

typedef struct kvm_report_builder {
    kvm_job *job;
    json_t *doc;      /* owned by the job's arena */
    json_t *fit;      /* figures of the fit; NULL: none */
    json_t *absent;   /* inside doc */
    json_t *backends; /* [suite, what scored it] of each evaluation; owned likewise */
    uint64_t seed;
} kvm_report_builder;

/* an input's JSON (or the lines of a .jsonl as an array), owned by the job's arena */
KVM_MUST kvm_status kvm_report_load(kvm_report_builder *b, const kvm_job_input *in,
                                    json_t **v, kvm_err *err);
KVM_MUST kvm_status kvm_report_load_lines(kvm_report_builder *b,
                                          const kvm_job_input *in, json_t **v,
                                          kvm_err *err);
/* inputs "prefix.rest" one after another: i counts matches; NULL past the last; *rest
 * is what follows the dot */
const kvm_job_input *kvm_report_nth(const kvm_report_builder *b, const char *prefix,
                                    ptrdiff_t i, const char **rest);

KVM_MUST kvm_status kvm_report_fit(
    kvm_report_builder *b, kvm_err *err); /* translator, calibration, linearity */
KVM_MUST kvm_status kvm_report_layers(kvm_report_builder *b,
                                      kvm_err *err); /* layers, gates */
KVM_MUST kvm_status kvm_report_quality(kvm_report_builder *b,
                                       kvm_err *err); /* suites, needle */
KVM_MUST kvm_status kvm_report_ablations(kvm_report_builder *b, kvm_err *err);
KVM_MUST kvm_status kvm_report_timing(kvm_report_builder *b,
                                      kvm_err *err); /* timing, build */

#endif
