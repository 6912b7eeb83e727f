/* jobs.h - what `kvmill jobs` is made of: looking (cmd_jobs.c), reading what a job says
 * (job_logs.c), waiting (job_watch.c) and asking (job_ask.c). */
#ifndef KVM_CLI_JOBS_H
#define KVM_CLI_JOBS_H

#include "cli/open.h"

/* the number at args[i], and that text when it is none */
KVM_MUST kvm_status kvm_cli_job_id(kvm_cli *cli, ptrdiff_t i, int64_t *id,
                                   kvm_err *err);
/* the catalogue, and the job of args[1] that it has */
KVM_MUST kvm_status kvm_cli_find_job(kvm_cli *cli, kvm_catalogue **c, int64_t *id,
                                     kvm_err *err);

/* ---- verbs ---- */
KVM_MUST kvm_status kvm_cli_job_logs(kvm_cli *cli, kvm_err *err);
KVM_MUST kvm_status kvm_cli_job_watch(kvm_cli *cli, kvm_err *err);
KVM_MUST kvm_status kvm_cli_job_cancel(kvm_cli *cli, kvm_err *err);
KVM_MUST kvm_status kvm_cli_job_retry(kvm_cli *cli, kvm_err *err);
KVM_MUST kvm_status kvm_cli_job_pause(kvm_cli *cli, kvm_err *err);
KVM_MUST kvm_status kvm_cli_job_resume(kvm_cli *cli, kvm_err *err);
KVM_MUST kvm_status kvm_cli_job_priority(kvm_cli *cli, kvm_err *err);

#endif
