/* job_claim.c - taking a job and holding it: the claim, what was claimed (its key, its
 * inputs, an equal job that has its results), the lease. */
#include <string.h>

#include "schema/fault.h"
#include "schema/job_internal.h"
#include "schema/step_key.h"

static kvm_status read_files(kvm_db *db, kvm_sql sql, int64_t job,
                             kvm_claim_input **out, ptrdiff_t *count, kvm_arena *keep,
                             kvm_err *err)
{
    kvm_rows rows;
    TRY(kvm_db_query(db, sql, KVM_ARGS(kvm_cell_i(job)), &rows, keep, err));
    kvm_claim_input *files = kvm_new(keep, kvm_claim_input, rows.count + 1);
    if (!files) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i < rows.count; i++)
        files[i] = (kvm_claim_input){.name = kvm_rows_str(&rows, i, 0),
                                     .sha = kvm_rows_str(&rows, i, 1),
                                     .bytes = kvm_rows_i64(&rows, i, 2)};
    *out = files;
    *count = rows.count;
    return KVM_OK;
}

static kvm_status key_of(kvm_db *db, int64_t job, char key[65], kvm_arena *a,
                         kvm_err *err)
{
    kvm_rows row;
    kvm_claim_input *inputs;
    kvm_jat params, identity;
    kvm_step_facts step = {0};
    TRY(kvm_db_query(db, KVM_SQL_JOB_STEP, KVM_ARGS(kvm_cell_i(job)), &row, a, err));
    if (row.count == 0)
        return kvm_fail(err, KVM_NOTFOUND, "there is no job %lld", (long long)job);
    TRY(read_files(db, KVM_SQL_JOB_INPUTS, job, &inputs, &step.input_count, a, err));
    kvm_str *names = kvm_new(a, kvm_str, step.input_count + 1);
    kvm_str *shas = kvm_new(a, kvm_str, step.input_count + 1);
    if (!names || !shas) return kvm_nomem(err, a);
    for (ptrdiff_t i = 0; i < step.input_count; i++) {
        names[i] = inputs[i].name;
        shas[i] = inputs[i].sha;
    }
    const kvm_str file = kvm_str_fmt(a, "job %lld", (long long)job);
    if (!file.at) return kvm_nomem(err, a);
    TRY(kvm_json_parse(&params, a, kvm_rows_str(&row, 0, 2), file, err));
    TRY(kvm_json_parse(&identity, a, kvm_rows_str(&row, 0, 3), file, err));
    step.kind = kvm_rows_str(&row, 0, 0).at;
    step.version = (int)kvm_rows_i64(&row, 0, 1);
    step.params = params.v;
    step.identity = identity.v;
    step.input_names = names;
    step.input_shas = shas;
    return kvm_step_key(key, &step, *a, err);
}

/* The parsed documents register cleanups, which a scratch arena may not: it runs them
 * here. */
kvm_status kvm_job__key(kvm_db *db, int64_t job, char key[65], kvm_arena scratch,
                        kvm_err *err)
{
    kvm_arena a = kvm_arena_split(&scratch, kvm_arena_left(&scratch) / 2);
    const kvm_status s = key_of(db, job, key, &a, err);
    kvm_arena_free(&a);
    return s;
}

static kvm_status unpack(kvm_db *db, kvm_claim *k, const kvm_rows *r, kvm_arena *keep,
                         kvm_err *err)
{
    *k = (kvm_claim){
        .fence = {kvm_rows_i64(r, 0, 0), kvm_rows_i64(r, 0, 1)},
        .run = kvm_rows_i64(r, 0, 2),
        .attempt = (int)kvm_rows_i64(r, 0, 3),
        .kind = (int)kvm_rows_i64(r, 0, 4),
        .version = (int)kvm_rows_i64(r, 0, 5),
        .timed = kvm_rows_i64(r, 0, 6) != 0,
        .timeout_s = kvm_rows_f64(r, 0, 7),
        .label = kvm_rows_str(r, 0, 8),
        .params = kvm_rows_str(r, 0, 9),
        .identity = kvm_rows_str(r, 0, 10),
        .key = kvm_rows_str(r, 0, 11),
        .pair = kvm_rows_str(r, 0, 12),
    };
    TRY(read_files(db, KVM_SQL_JOB_INPUTS, k->fence.job, &k->inputs, &k->input_count,
                   keep, err));
    if (k->timed || k->key.len == 0) return KVM_OK;
    TRY(kvm_db_one(db, KVM_SQL_JOB_EQUAL, KVM_ARGS(kvm_cell_s(k->key)), &k->equal,
                   err));
    if (!k->equal) return KVM_OK;
    return read_files(db, KVM_SQL_JOB_OUTPUTS, k->equal, &k->outputs, &k->output_count,
                      keep, err);
}

static kvm_status claim(kvm_db *db, kvm_rows *rows, kvm_arena *keep, int64_t worker,
                        int64_t run, double lease_s, kvm_err *err)
{
    TRY(kvm_db_query(db, KVM_SQL_JOB_CLAIM,
                     KVM_ARGS(kvm_cell_i(worker), kvm_cell_f(lease_s), kvm_cell_i(run)),
                     rows, keep, err));
    if (rows->count == 0) return KVM_OK;
    kvm_fault(KVM_FAULT_IN_CLAIM);
    return kvm_db_exec(db, KVM_SQL_ATTEMPT_ADD,
                       KVM_ARGS(kvm_cell_i(kvm_rows_i64(rows, 0, 0)),
                                kvm_cell_i(kvm_rows_i64(rows, 0, 1)),
                                kvm_cell_i(kvm_rows_i64(rows, 0, 3)),
                                kvm_cell_i(worker)),
                       NULL, err);
}

static kvm_status take(kvm_db *db, kvm_claim *k, bool *found, kvm_arena *keep,
                       int64_t worker, int64_t run, double lease_s, kvm_err *err)
{
    kvm_rows rows;
    TRY(claim(db, &rows, keep, worker, run, lease_s, err));
    *found = rows.count > 0;
    return *found ? unpack(db, k, &rows, keep, err) : KVM_OK;
}

/* Looking first keeps idle workers from taking the write lock several times a second.
 * All is read before the commit: when that fails, nothing was claimed. KVM_EXISTS:
 * another has just begun an equal step; the next look sees it and passes over this
 * one's twin. Within a transaction of the caller's, which is now spoilt, it is trouble
 * that passes. */
kvm_status kvm_job_claim(kvm_catalogue *c, kvm_claim *k, bool *found, kvm_arena *keep,
                         int64_t worker, int64_t run, double lease_s, kvm_err *err)
{
    int64_t there = 0;
    const bool alone = c->db->depth == 0;
    *found = false;
    TRY(kvm_db_one(c->db, KVM_SQL_JOB_PEEK, KVM_ARGS(kvm_cell_i(run)), &there, err));
    while (there) {
        kvm_err mine = {0};
        kvm_arena a = *keep;
        TRY(kvm_db_begin(c->db, err));
        kvm_status s = take(c->db, k, found, &a, worker, run, lease_s, &mine);
        if (s == KVM_EXISTS && alone) {
            kvm_db_rollback(c->db);
            continue;
        }
        if (s == KVM_EXISTS) s = mine.code = KVM_BUSY;
        if (s && err && !err->code) *err = mine;
        s = kvm_db_end(c->db, s, err);
        if (s) *found = false;
        if (!s) *keep = a;
        return s;
    }
    return KVM_OK;
}

kvm_status kvm_job_renew(kvm_catalogue *c, kvm_fence f, double lease_s,
                         bool *cancelling, kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    kvm_rows rows;
    TRY(kvm_db_query(
        c->db, KVM_SQL_JOB_RENEW,
        KVM_ARGS(kvm_cell_i(f.job), kvm_cell_i(f.token), kvm_cell_f(lease_s)), &rows,
        &scratch, err));
    if (rows.count == 0)
        return kvm_fail(err, KVM_LOST, "job %lld: the lease of token %lld is gone",
                        (long long)f.job, (long long)f.token);
    *cancelling = kvm_str_eq(kvm_rows_str(&rows, 0, 0), KVM_STR("cancelling"));
    return KVM_OK;
}

kvm_status kvm_job_asked(kvm_catalogue *c, kvm_fence f, bool *cancelling, kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    kvm_rows rows;
    TRY(kvm_db_query(c->db, KVM_SQL_JOB_ASKED,
                     KVM_ARGS(kvm_cell_i(f.job), kvm_cell_i(f.token)), &rows, &scratch,
                     err));
    if (rows.count == 0)
        return kvm_fail(err, KVM_LOST, "job %lld: the lease of token %lld is gone",
                        (long long)f.job, (long long)f.token);
    *cancelling = kvm_str_eq(kvm_rows_str(&rows, 0, 0), KVM_STR("cancelling"));
    return KVM_OK;
}
