/* kinds.c - the table of kinds.def with each row's implementation. */
#include "jobs/job.h"

#define X(id, NAME, name, version, flags, what)                                        \
    extern const kvm_job_kind kvm_job_##name;
#include "jobs/kinds.def"
#undef X

const kvm_job_kind *kvm_job_kind_of(kvm_kind_id id)
{
    switch (id) {
#define X(id, NAME, name, version, flags, what)                                        \
    case KVM_JOB_##NAME:                                                               \
        return &kvm_job_##name;
#include "jobs/kinds.def"
#undef X
    }
    return NULL;
}
