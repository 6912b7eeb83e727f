/* host.h - a job's host that writes everything down: one JSON line per output, metric,
 * sample, timing and event, in an append-only file.
 *
 * The worker's child records into its job's folder and the parent commits what it reads
 * there; `kvmill fit` and its kin record into their output folder and leave it at that
 * (kvm_host_files). So a job behaves alike in both. */
#ifndef KVM_WORKERS_HOST_H
#define KVM_WORKERS_HOST_H

#include "jobs/job.h"
#include "schema/job_state.h"

extern const kvm_job_host kvm_host_recorder; /* host_ctx: a kvm_recorder */
typedef struct kvm_recorder kvm_recorder;

/* kvm_recorder_open - truncates the file: one file per attempt. Closed by keep. */
KVM_MUST kvm_status kvm_recorder_open(kvm_recorder **r, kvm_arena *keep, kvm_str path,
                                      kvm_err *err);
/* kvm_recorder_end - the verdict, last line: without it the process died */
KVM_MUST kvm_status kvm_recorder_end(kvm_recorder *r, kvm_status s, const kvm_err *why,
                                     kvm_err *err);

/* what a worker's child adds: an input it has verified; that an equal step's results
 * stand */
KVM_MUST kvm_status kvm_recorder_verified(kvm_recorder *r, kvm_str sha, kvm_err *err);
KVM_MUST kvm_status kvm_recorder_reuse(kvm_recorder *r, kvm_err *err);

/* kvm_host_files - make j record into dir/records.jsonl, its results being plain files
 * of dir (made when absent): for single commands. Sets j->host, host_ctx and dir. */
KVM_MUST kvm_status kvm_host_files(kvm_job *j, kvm_arena *keep, kvm_str dir,
                                   kvm_err *err);

/* What a file of records says. */
typedef struct kvm_recorded_output {
    kvm_str name, path;
} kvm_recorded_output;
typedef struct kvm_records {
    const kvm_recorded_output *outputs;
    ptrdiff_t output_count;
    kvm_result result;       /* metrics, samples, timings, events; no artefacts yet */
    const kvm_str *verified; /* hashes that the child has checked */
    ptrdiff_t verified_count;
    bool reuse;  /* an equal step's artefacts are all sound: nothing was run */
    bool ended;  /* there is a verdict … */
    kvm_err end; /* … and this is it: end.code KVM_OK or why */
} kvm_records;
/* kvm_records_read - texts live in keep. KVM_FORMAT names the line; a torn last line is
 * ignored. */
KVM_MUST kvm_status kvm_records_read(kvm_records *r, kvm_arena *keep, kvm_str path,
                                     kvm_err *err);

#endif
