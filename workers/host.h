/* host.h - a job's host that writes everything down: one JSON line per output, metric,
 * sample, timing and event, appended to a file.
 *
 * The worker's child records into a file without a name, one for its batch, and the
 * parent commits what it reads there; the ranks of a gang, which may be elsewhere,
 * record into the job's folder; `kvmill fit` and its kin record into their output
 * folder and leave it at that (kvm_host_files). So a job behaves alike in all. */
#ifndef KVM_WORKERS_HOST_H
#define KVM_WORKERS_HOST_H

#include "jobs/job.h"
#include "schema/job_state.h"

extern const kvm_job_host kvm_host_recorder; /* host_ctx: a kvm_recorder */
typedef struct kvm_recorder kvm_recorder;

enum { KVM_RECORDS_BYTES = 1 << 30 }; /* of one file at most */

/* kvm_recorder_open - a new file in place of one of that name. kvm_recorder_on - from
 * the start of an empty file that is open; name: for messages. Closed by keep; fd stays
 * the caller's. */
KVM_MUST kvm_status kvm_recorder_open(kvm_recorder **r, kvm_arena *keep, kvm_str path,
                                      kvm_err *err);
KVM_MUST kvm_status kvm_recorder_on(kvm_recorder **r, kvm_arena *keep, int fd,
                                    kvm_str name, kvm_err *err);
/* kvm_recorder_copy - what another has recorded in a file, its verdict too */
KVM_MUST kvm_status kvm_recorder_copy(kvm_recorder *r, kvm_str path, kvm_err *err);
off_t kvm_recorder_size(const kvm_recorder *r); /* bytes recorded so far */
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
/* kvm_records_read - of a file. kvm_records_parse - of a text; name: for messages.
 * Texts live in keep. KVM_FORMAT names the line; a torn last line is ignored. */
KVM_MUST kvm_status kvm_records_read(kvm_records *r, kvm_arena *keep, kvm_str path,
                                     kvm_err *err);
KVM_MUST kvm_status kvm_records_parse(kvm_records *r, kvm_arena *keep, kvm_str lines,
                                      kvm_str name, kvm_err *err);

#endif
