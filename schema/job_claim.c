/* job_claim.c - taking jobs and holding them: hints that are sent, the claim, what was
 * claimed (its inputs, an equal job that has its results), the lease. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "schema/fault.h"
#include "schema/job_internal.h"

static kvm_status list_fences(const kvm_fence *f, ptrdiff_t count, kvm_cell *arg,
                              kvm_arena *a, kvm_err *err)
{
    kvm_list l = {0};
    for (ptrdiff_t i = 0; i < count; i++)
        kvm_list_add(&l, KVM_ARGS(kvm_cell_i(f[i].job), kvm_cell_i(f[i].token)));
    return kvm_list_give(&l, arg, a, err);
}

/* ---- the claim ---- */

static kvm_claim unpack(const kvm_rows *r, ptrdiff_t row)
{
    return (kvm_claim){
        .fence = {kvm_rows_i64(r, row, 0), kvm_rows_i64(r, row, 1)},
        .run = kvm_rows_i64(r, row, 2),
        .attempt = (int)kvm_rows_i64(r, row, 3),
        .kind = (int)kvm_rows_i64(r, row, 4),
        .version = (int)kvm_rows_i64(r, row, 5),
        .timed = kvm_rows_i64(r, row, 6) != 0,
        .timeout_s = kvm_rows_f64(r, row, 7),
        .label = kvm_rows_str(r, row, 8),
        .params = kvm_rows_str(r, row, 9),
        .identity = kvm_rows_str(r, row, 10),
        .key = kvm_rows_str(r, row, 11),
        .pair = kvm_rows_str(r, row, 12),
        .equal = kvm_rows_i64(r, row, 13),
        .ranks = (int)kvm_rows_i64(r, row, 14),
    };
}

/* What is claimed together runs in one process, and has one log. */
static kvm_status name_log(kvm_claim *all, ptrdiff_t count, kvm_arena *keep,
                           kvm_err *err)
{
    const kvm_str log =
        kvm_str_fmt(keep, "logs/%lld-%lld.log", (long long)all->fence.job,
                    (long long)all->fence.token);
    if (!log.at) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i < count; i++) all[i].log = log;
    return KVM_OK;
}

/* The claimed rows in the order of the batch: a database gives them in any. */
static kvm_status in_order(const kvm_job_batch *batch, const kvm_rows *r,
                           kvm_claim **out, kvm_arena *keep, kvm_err *err)
{
    kvm_claim *all = kvm_new(keep, kvm_claim, r->count + 1);
    if (!all) return kvm_nomem(err, keep);
    ptrdiff_t n = 0;
    for (ptrdiff_t i = 0; i < batch->count; i++)
        for (ptrdiff_t row = 0; row < r->count; row++)
            if (kvm_rows_i64(r, row, 0) == batch->jobs[i].job)
                all[n++] = unpack(r, row);
    *out = all;
    return n ? name_log(all, n, keep, err) : KVM_OK;
}

static kvm_status add_attempts(kvm_db *db, const kvm_claim *k, ptrdiff_t count,
                               int64_t worker, kvm_arena scratch, kvm_err *err)
{
    kvm_list l = {0};
    kvm_cell arg;
    for (ptrdiff_t i = 0; i < count; i++)
        kvm_list_add(&l,
                     KVM_ARGS(kvm_cell_i(k[i].fence.job), kvm_cell_i(k[i].fence.token),
                              kvm_cell_i(k[i].attempt)));
    TRY(kvm_list_give(&l, &arg, &scratch, err));
    return kvm_db_exec(db, KVM_SQL_ATTEMPTS_ADD,
                       KVM_ARGS(arg, kvm_cell_i(worker), kvm_cell_s(k->log)), NULL,
                       err);
}

static kvm_status read_files(kvm_db *db, kvm_claim *k, ptrdiff_t count, kvm_arena *keep,
                             kvm_err *err)
{
    kvm_list jobs = {0}, equals = {0};
    kvm_job_files inputs, outputs = {0};
    for (ptrdiff_t i = 0; i < count; i++)
        kvm_list_add(&jobs, KVM_ARGS(kvm_cell_i(k[i].fence.job)));
    TRY(kvm_jobs__files(db, KVM_SQL_JOBS_INPUTS, &jobs, &inputs, keep, err));
    for (ptrdiff_t i = 0; i < count; i++)
        if (k[i].equal) kvm_list_add(&equals, KVM_ARGS(kvm_cell_i(k[i].equal)));
    if (equals.count)
        TRY(kvm_jobs__files(db, KVM_SQL_JOBS_OUTPUTS, &equals, &outputs, keep, err));
    for (ptrdiff_t i = 0; i < count; i++) {
        k[i].inputs = kvm_jobs__files_of(&inputs, k[i].fence.job, &k[i].input_count);
        if (k[i].equal)
            k[i].outputs = kvm_jobs__files_of(&outputs, k[i].equal, &k[i].output_count);
    }
    return KVM_OK;
}

/* All is read before the commit: when that fails, nothing was claimed. */
static kvm_status claim(kvm_db *db, const kvm_job_batch *batch, kvm_claim **claims,
                        ptrdiff_t *count, kvm_arena *keep, int64_t worker,
                        double lease_s, kvm_err *err)
{
    kvm_cell arg;
    kvm_rows rows;
    *count = 0;
    if (batch->count == 0) return KVM_OK;
    TRY(list_fences(batch->jobs, batch->count, &arg, keep, err));
    TRY(kvm_db_query(db, KVM_SQL_JOBS_CLAIM,
                     KVM_ARGS(arg, kvm_cell_i(worker), kvm_cell_f(lease_s)), &rows,
                     keep, err));
    if (rows.count == 0) return KVM_OK;
    kvm_fault(KVM_FAULT_IN_CLAIM);
    TRY(in_order(batch, &rows, claims, keep, err));
    TRY(add_attempts(db, *claims, rows.count, worker, *keep, err));
    TRY(read_files(db, *claims, rows.count, keep, err));
    *count = rows.count;
    return KVM_OK;
}

/* What is asked for: a batch, or else what a look finds; and where it goes. */
typedef struct taking {
    const kvm_job_batch *batch; /* or NULL: */
    const kvm_want *want;
    kvm_claim **claims;
    ptrdiff_t *count;
    kvm_arena *keep;
    int64_t worker;
    double lease_s;
    ptrdiff_t found; /* out: how many a look has found */
} taking;

static kvm_status take_within(kvm_catalogue *c, taking *t, kvm_team_use *teams,
                              ptrdiff_t team_count, kvm_arena scratch, kvm_err *err)
{
    kvm_job_batch next = {0};
    const kvm_job_batch *batch = t->batch ? t->batch : &next;
    kvm_arena a = *t->keep;
    ptrdiff_t batches;
    if (!t->batch && kvm_jobs__bounded(teams, team_count))
        TRY(kvm_jobs__teams(c->db, t->want, true, &teams, &team_count, &scratch, err));
    if (!t->batch)
        TRY(kvm_jobs__of_teams(c->db, t->want, teams, team_count, &next, 1, &batches,
                               scratch, err));
    t->found = batch->count;
    TRY(claim(c->db, batch, t->claims, t->count, &a, t->worker, t->lease_s, err));
    *t->keep = a;
    return KVM_OK;
}

/* Looking first keeps idle workers from taking the write lock several times a
 * second. */
static kvm_status take_once(kvm_catalogue *c, taking *t, kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    kvm_team_use *teams = NULL;
    ptrdiff_t team_count = 0;
    *t->count = t->found = 0;
    if (!t->batch) {
        TRY(kvm_jobs__teams(c->db, t->want, true, &teams, &team_count, &scratch, err));
        if (team_count == 0) return KVM_OK;
    }
    TRY(kvm_db_begin(c->db, err));
    return kvm_db_end(c->db, take_within(c, t, teams, team_count, scratch, err), err);
}

/* KVM_EXISTS: another has just begun an equal step; the next try sees it and passes
 * over this one's twin. So it is when nothing could be had of what was next: another is
 * about to. Within a transaction of the caller's, which is now spoilt, it is trouble
 * that passes. */
static kvm_status take(kvm_catalogue *c, taking *t, kvm_err *err)
{
    enum { TRIES = 100 };
    const bool alone = c->db->depth == 0;
    for (int i = 1;; i++) {
        kvm_err mine = {0};
        kvm_status s = take_once(c, t, &mine);
        const bool missed = !s && !t->batch && t->found > 0 && *t->count == 0;
        if (alone && i < TRIES && (missed || s == KVM_EXISTS)) {
            kvm_sleep(missed ? 0.005 : 0.001);
            continue;
        }
        if (s == KVM_EXISTS) s = mine.code = KVM_BUSY;
        if (s) *t->count = 0;
        if (s && err && !err->code) *err = mine;
        return s;
    }
}

kvm_status kvm_jobs_claim(kvm_catalogue *c, const kvm_job_batch *batch,
                          kvm_claim **claims, ptrdiff_t *count, kvm_arena *keep,
                          int64_t worker, double lease_s, kvm_err *err)
{
    taking t = {.batch = batch,
                .claims = claims,
                .count = count,
                .keep = keep,
                .worker = worker,
                .lease_s = lease_s};
    return take(c, &t, err);
}

kvm_status kvm_jobs_take(kvm_catalogue *c, const kvm_want *want, kvm_claim **claims,
                         ptrdiff_t *count, kvm_arena *keep, int64_t worker,
                         double lease_s, kvm_err *err)
{
    taking t = {.want = want,
                .claims = claims,
                .count = count,
                .keep = keep,
                .worker = worker,
                .lease_s = lease_s};
    return take(c, &t, err);
}

/* ---- hints ---- */

static int by_job(const void *a, const void *b)
{
    const kvm_fence *x = a, *y = b;
    return (x->job > y->job) - (x->job < y->job);
}

/* In the order in which everybody locks rows: ascending. */
kvm_status kvm_jobs_dispatched(kvm_catalogue *c, const kvm_job_batch *batch,
                               kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    kvm_job_batch b = *batch;
    kvm_cell arg;
    if (b.count == 0) return KVM_OK;
    qsort(b.jobs, (size_t)b.count, sizeof *b.jobs, by_job);
    TRY(list_fences(b.jobs, b.count, &arg, &scratch, err));
    return kvm_db_exec(c->db, KVM_SQL_JOBS_SENT, &arg, 1, NULL, err);
}

/* ---- the lease ---- */

static void read_leases(const kvm_rows *r, const kvm_fence *f, ptrdiff_t count,
                        unsigned char *states)
{
    for (ptrdiff_t i = 0; i < count; i++) {
        states[i] = KVM_LEASE_LOST;
        for (ptrdiff_t row = 0; row < r->count; row++)
            if (kvm_rows_i64(r, row, 0) == f[i].job)
                states[i] = kvm_str_eq(kvm_rows_str(r, row, 1), KVM_STR("cancelling"))
                                ? KVM_LEASE_CANCELLING
                                : KVM_LEASE_HELD;
    }
}

kvm_status kvm_jobs_renew(kvm_catalogue *c, const kvm_fence *fences, ptrdiff_t count,
                          double lease_s, unsigned char *states, kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    kvm_cell arg;
    kvm_rows rows;
    TRY(list_fences(fences, count, &arg, &scratch, err));
    TRY(kvm_db_query(c->db, KVM_SQL_JOBS_RENEW, KVM_ARGS(arg, kvm_cell_f(lease_s)),
                     &rows, &scratch, err));
    read_leases(&rows, fences, count, states);
    return KVM_OK;
}

kvm_status kvm_jobs_asked(kvm_catalogue *c, const kvm_fence *fences, ptrdiff_t count,
                          unsigned char *states, kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    kvm_cell arg;
    kvm_rows rows;
    TRY(list_fences(fences, count, &arg, &scratch, err));
    TRY(kvm_db_query(c->db, KVM_SQL_JOBS_ASKED, &arg, 1, &rows, &scratch, err));
    read_leases(&rows, fences, count, states);
    return KVM_OK;
}

static kvm_status one_lease(kvm_fence f, unsigned char state, bool *cancelling,
                            kvm_err *err)
{
    if (state == KVM_LEASE_LOST)
        return kvm_fail(err, KVM_LOST, "job %lld: the lease of token %lld is gone",
                        (long long)f.job, (long long)f.token);
    *cancelling = state == KVM_LEASE_CANCELLING;
    return KVM_OK;
}

kvm_status kvm_job_renew(kvm_catalogue *c, kvm_fence f, double lease_s,
                         bool *cancelling, kvm_err *err)
{
    unsigned char state;
    TRY(kvm_jobs_renew(c, &f, 1, lease_s, &state, err));
    return one_lease(f, state, cancelling, err);
}

kvm_status kvm_job_asked(kvm_catalogue *c, kvm_fence f, bool *cancelling, kvm_err *err)
{
    unsigned char state;
    TRY(kvm_jobs_asked(c, &f, 1, &state, err));
    return one_lease(f, state, cancelling, err);
}

kvm_status kvm_job_progress(kvm_catalogue *c, kvm_fence f, double done, double total,
                            kvm_str unit, kvm_err *err)
{
    return kvm_db_exec(c->db, KVM_SQL_JOB_PROGRESS,
                       KVM_ARGS(kvm_cell_i(f.job), kvm_cell_i(f.token),
                                kvm_cell_f(done), kvm_cell_f(total), kvm_cell_s(unit)),
                       NULL, err);
}
