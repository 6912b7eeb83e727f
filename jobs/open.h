/* open.h - what most jobs open first: a compute context and the models that their
 * parameters name.
 *
 * A model parameter is a pair of members: "source" holds the fingerprint (part of the
 * job's key) and "source_path" says where it lies (members that end in _path are places
 * and take no part in keys). So are a text and a suite, with the hash of what they
 * hold. */
#ifndef KVM_JOBS_OPEN_H
#define KVM_JOBS_OPEN_H

#include "jobs/job.h"
#include "models/model.h"

KVM_MUST kvm_status kvm_job_compute(kvm_job *j, kvm_compute **c, kvm_err *err);
/* KVM_MISMATCH when what lies at the path is no longer the model that was planned
 * with */
KVM_MUST kvm_status kvm_job_model(kvm_job *j, kvm_compute *c, const char *role,
                                  kvm_model **m, kvm_err *err);
/* the same; of the layers only run `part` of `parts` is loaded (kvm_model_run_part) */
KVM_MUST kvm_status kvm_job_model_part(kvm_job *j, kvm_compute *c, const char *role,
                                       int part, int parts, kvm_model **m,
                                       kvm_err *err);
/* kvm_job_places - every place that the parameters name lies where this process may
 * read: KVM_DENIED (base/roots.h). What a file there names besides, or a link leads to,
 * is found out when it is opened. */
KVM_MUST kvm_status kvm_job_places(const kvm_job *j, kvm_err *err);
/* kvm_job_unchanged - KVM_MISMATCH when what was read at "<role>_path" has another hash
 * than `role` of the parameters says, which the result will be known by */
KVM_MUST kvm_status kvm_job_unchanged(kvm_job *j, const char *role, const char *found,
                                      kvm_err *err);
/* a path inside the job's directory */
KVM_MUST kvm_status kvm_job_path(kvm_job *j, const char *name, kvm_str *path,
                                 kvm_err *err);
/* an input that must be there */
KVM_MUST kvm_status kvm_job_need_input(kvm_job *j, const char *name,
                                       const kvm_job_input **in, kvm_err *err);
/* kvm_job_config - SHA-256 hex of everything that the job's numbers follow from, for
 * files that later attempts go on with: its key on this backend */
KVM_MUST kvm_status kvm_job_config(kvm_job *j, kvm_kind_id kind, const kvm_compute *c,
                                   char hex[65], kvm_err *err);
/* numbers of the parameters, in [least, most]; KVM_RANGE names the place */
KVM_MUST kvm_status kvm_job_i64(kvm_job *j, const char *key, int64_t fallback,
                                int64_t least, int64_t most, ptrdiff_t *out,
                                kvm_err *err);
KVM_MUST kvm_status kvm_job_f64(kvm_job *j, const char *key, double fallback,
                                double least, double most, double *out, kvm_err *err);
/* a JSON figure file in the job's directory, published and declared as an output, by
 * the rank that leads; takes v */
KVM_MUST kvm_status kvm_job_put_json(kvm_job *j, const char *output, const char *file,
                                     json_t *v, kvm_err *err);

/* kvm_job_put_cost - output "cost": what this step took, all its attempts together
 * ({"seconds", "cpu_seconds" of all ranks, "attempts", "threads" of each, "ranks"}),
 * kept apart from its result so
 * that results are equal bit for bit whenever they are computed */
KVM_MUST kvm_status kvm_job_put_cost(kvm_job *j, double started, kvm_err *err);

#endif
