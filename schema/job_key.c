/* job_key.c - files of jobs by name, and the keys of steps out of them. */
#include <string.h>

#include "schema/job_internal.h"
#include "schema/step_key.h"

kvm_status kvm_jobs__files(kvm_db *db, kvm_sql sql, kvm_list *ids, kvm_job_files *out,
                           kvm_arena *a, kvm_err *err)
{
    kvm_cell list;
    kvm_rows rows;
    TRY(kvm_list_give(ids, &list, a, err));
    TRY(kvm_db_query(db, sql, &list, 1, &rows, a, err));
    int64_t *jobs = kvm_new(a, int64_t, rows.count + 1);
    kvm_claim_input *files = kvm_new(a, kvm_claim_input, rows.count + 1);
    if (!jobs || !files) return kvm_nomem(err, a);
    for (ptrdiff_t i = 0; i < rows.count; i++) {
        jobs[i] = kvm_rows_i64(&rows, i, 0);
        files[i] = (kvm_claim_input){.name = kvm_rows_str(&rows, i, 1),
                                     .sha = kvm_rows_str(&rows, i, 2),
                                     .bytes = kvm_rows_i64(&rows, i, 3)};
    }
    *out = (kvm_job_files){.jobs = jobs, .files = files, .count = rows.count};
    return KVM_OK;
}

kvm_claim_input *kvm_jobs__files_of(const kvm_job_files *f, int64_t job,
                                    ptrdiff_t *count)
{
    ptrdiff_t from = 0;
    while (from < f->count && f->jobs[from] < job) from++;
    *count = 0;
    while (from + *count < f->count && f->jobs[from + *count] == job) ++*count;
    return &f->files[from];
}

/* One row of JOBS_STEP and the files of that job. */
static kvm_status key_of(const kvm_rows *r, ptrdiff_t row, const kvm_job_files *inputs,
                         char key[65], kvm_arena *a, kvm_err *err)
{
    const int64_t job = kvm_rows_i64(r, row, 0);
    kvm_jat params, identity;
    kvm_step_facts step = {0};
    const kvm_claim_input *in = kvm_jobs__files_of(inputs, job, &step.input_count);
    kvm_str *names = kvm_new(a, kvm_str, step.input_count + 1);
    kvm_str *shas = kvm_new(a, kvm_str, step.input_count + 1);
    const kvm_str file = kvm_str_fmt(a, "job %lld", (long long)job);
    if (!names || !shas || !file.at) return kvm_nomem(err, a);
    for (ptrdiff_t i = 0; i < step.input_count; i++) {
        names[i] = in[i].name;
        shas[i] = in[i].sha;
    }
    TRY(kvm_json_parse(&params, a, kvm_rows_str(r, row, 3), file, err));
    TRY(kvm_json_parse(&identity, a, kvm_rows_str(r, row, 4), file, err));
    step.kind = kvm_rows_str(r, row, 1).at;
    step.version = (int)kvm_rows_i64(r, row, 2);
    step.params = params.v;
    step.identity = identity.v;
    step.input_names = names;
    step.input_shas = shas;
    return kvm_step_key(key, &step, *a, err);
}

/* The parsed documents register cleanups, which a scratch arena may not: it runs them
 * here. A step that cannot be read has no key: it fails when its turn comes, with the
 * reason, and takes neither the step before it nor the rest of a batch along. */
static kvm_status key_aside(const kvm_rows *r, ptrdiff_t row,
                            const kvm_job_files *inputs, char key[65],
                            kvm_arena scratch, kvm_err *err)
{
    kvm_arena a = kvm_arena_split(&scratch, kvm_arena_left(&scratch) / 2);
    kvm_err why = {0};
    const kvm_status s = key_of(r, row, inputs, key, &a, &why);
    kvm_arena_free(&a);
    if (s == KVM_FORMAT) key[0] = '\0';
    if (s && s != KVM_FORMAT && err && !err->code) *err = why;
    return s == KVM_FORMAT ? KVM_OK : s;
}

static kvm_job_row *row_of(kvm_job_row *const *jobs, ptrdiff_t count, int64_t id)
{
    for (ptrdiff_t i = 0; i < count; i++)
        if (jobs[i]->id == id) return jobs[i];
    return NULL;
}

kvm_status kvm_jobs__keys(kvm_db *db, kvm_job_row *const *jobs, ptrdiff_t count,
                          kvm_arena *a, kvm_err *err)
{
    kvm_cell list;
    kvm_rows steps;
    kvm_job_files inputs;
    kvm_list ids = {0};
    for (ptrdiff_t i = 0; i < count; i++)
        if (!jobs[i]->timed) kvm_list_add(&ids, KVM_ARGS(kvm_cell_i(jobs[i]->id)));
    if (ids.count == 0) return KVM_OK;
    TRY(kvm_list_give(&ids, &list, a, err));
    TRY(kvm_db_query(db, KVM_SQL_JOBS_STEP, &list, 1, &steps, a, err));
    for (ptrdiff_t i = 0; i < steps.count; i++)
        kvm_list_add(&ids, KVM_ARGS(kvm_cell_i(kvm_rows_i64(&steps, i, 0))));
    TRY(kvm_jobs__files(db, KVM_SQL_JOBS_INPUTS, &ids, &inputs, a, err));
    for (ptrdiff_t i = 0; i < steps.count; i++) {
        char key[65];
        kvm_job_row *j = row_of(jobs, count, kvm_rows_i64(&steps, i, 0));
        TRY(key_aside(&steps, i, &inputs, key, *a, err));
        j->key = kvm_str_copy(a, kvm_str_of(key));
        if (!j->key.at) return kvm_nomem(err, a);
    }
    return KVM_OK;
}
