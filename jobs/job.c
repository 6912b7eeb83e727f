#include "jobs/job.h"

#include <string.h>

#include "schema/step_key.h"

/* What kinds.def says of each kind; what a kind does is in jobs/kinds.c. */
static const struct row {
    kvm_kind_id id;
    const char *name;
    int version, flags;
} rows[] = {
#define X(id, NAME, name, version, flags, what) {KVM_JOB_##NAME, #name, version, flags},
#include "jobs/kinds.def"
#undef X
};
enum { ROWS = sizeof rows / sizeof *rows };

static const struct row *row_of(kvm_kind_id id)
{
    for (int i = 0; i < ROWS; i++)
        if (rows[i].id == id) return &rows[i];
    return NULL;
}

const char *kvm_job_kind_name(kvm_kind_id id)
{
    const struct row *r = row_of(id);
    return r ? r->name : NULL;
}

kvm_status kvm_job_kind_find(kvm_str name, kvm_kind_id *id)
{
    for (int i = 0; i < ROWS; i++)
        if (kvm_str_eq(name, kvm_str_of(rows[i].name))) {
            *id = rows[i].id;
            return KVM_OK;
        }
    return KVM_NOTFOUND;
}

int kvm_job_kind_version(kvm_kind_id id)
{
    const struct row *r = row_of(id);
    return r ? r->version : 0;
}

int kvm_job_kind_flags(kvm_kind_id id)
{
    const struct row *r = row_of(id);
    return r ? r->flags : 0;
}

static kvm_status no_output(kvm_job *j, const char *name, kvm_str path, kvm_err *err)
{
    (void)j, (void)name, (void)path, (void)err;
    return KVM_OK;
}
static kvm_status no_metric(kvm_job *j, const char *name, double value,
                            const json_t *labels, kvm_err *err)
{
    (void)j, (void)name, (void)value, (void)labels, (void)err;
    return KVM_OK;
}
static kvm_status no_sample(kvm_job *j, const char *suite, const char *arm,
                            const char *metric, kvm_str item, double value,
                            kvm_err *err)
{
    (void)j, (void)suite, (void)arm, (void)metric, (void)item, (void)value, (void)err;
    return KVM_OK;
}
static kvm_status no_timing(kvm_job *j, const char *arm, ptrdiff_t tokens,
                            const char *stage, const double *seconds, ptrdiff_t n,
                            kvm_err *err)
{
    (void)j, (void)arm, (void)tokens, (void)stage, (void)seconds, (void)n, (void)err;
    return KVM_OK;
}
static kvm_status no_event(kvm_job *j, const char *what, kvm_str text, kvm_err *err)
{
    (void)j, (void)what, (void)text, (void)err;
    return KVM_OK;
}

const kvm_job_host kvm_host_silent = {
    .output = no_output,
    .metric = no_metric,
    .sample = no_sample,
    .timing = no_timing,
    .event = no_event,
};

const kvm_job_input *kvm_job_find_input(const kvm_job *j, const char *name)
{
    for (ptrdiff_t i = 0; i < j->input_count; i++)
        if (!strcmp(j->inputs[i].name, name)) return &j->inputs[i];
    return NULL;
}

kvm_status kvm_job_key(char key[65], kvm_kind_id kind, const json_t *params,
                       const json_t *identity, const kvm_job_input *inputs, ptrdiff_t n,
                       kvm_str machine, kvm_arena scratch, kvm_err *err)
{
    const char *name = kvm_job_kind_name(kind);
    if (!name) return kvm_fail(err, KVM_NOTFOUND, "there is no job kind %d", (int)kind);
    kvm_str *names = kvm_new(&scratch, kvm_str, n + 1);
    kvm_str *shas = kvm_new(&scratch, kvm_str, n + 1);
    if (!names || !shas) return kvm_nomem(err, &scratch);
    for (ptrdiff_t i = 0; i < n; i++) {
        names[i] = kvm_str_of(inputs[i].name);
        shas[i] = kvm_str_of(inputs[i].sha);
    }
    const bool timed = kvm_job_kind_flags(kind) & KVM_KIND_TIMED;
    const kvm_step_facts step = {.kind = name,
                                 .version = kvm_job_kind_version(kind),
                                 .params = params,
                                 .identity = identity,
                                 .input_names = names,
                                 .input_shas = shas,
                                 .input_count = n,
                                 .machine = timed ? machine : KVM_STR("")};
    return kvm_step_key(key, &step, scratch, err);
}
