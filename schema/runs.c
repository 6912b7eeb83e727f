/* runs.c - runs and workers as rows: begun, settled, looked up. */
#include <string.h>

#include "base/hash.h"
#include "schema/job_internal.h"

static const char *const run_states[] = {[KVM_RUN_OPEN] = "open",
                                         [KVM_RUN_SUCCEEDED] = "succeeded",
                                         [KVM_RUN_FAILED] = "failed",
                                         [KVM_RUN_CANCELLED] = "cancelled"};

static kvm_status state_of(kvm_str name, kvm_run_state *state, kvm_err *err)
{
    for (int i = 0; i < (int)(sizeof run_states / sizeof *run_states); i++)
        if (kvm_str_eq(name, kvm_str_of(run_states[i]))) {
            *state = (kvm_run_state)i;
            return KVM_OK;
        }
    return kvm_fail(err, KVM_VERSION, "a run is in the unknown state %.*s",
                    KVM_STR_ARG(name));
}

static kvm_status insert(kvm_db *db, const kvm_run_new *r, int64_t *run,
                         kvm_arena scratch, kvm_err *err)
{
    char sha[65];
    int64_t team = 0, pair = 0, spec = 0;
    TRY(kvm_sha_of(r->spec, sha, err));
    TRY(kvm_db_exec(db, KVM_SQL_TEAM_ADD, KVM_ARGS(kvm_cell_s(r->team)), NULL, err));
    TRY(kvm_db_one(db, KVM_SQL_TEAM_FIND, KVM_ARGS(kvm_cell_s(r->team)), &team, err));
    TRY(kvm_db_exec(db, KVM_SQL_PAIR_ADD,
                    KVM_ARGS(kvm_cell_i(team), kvm_cell_s(r->pair)), NULL, err));
    TRY(kvm_db_one(db, KVM_SQL_PAIR_FIND,
                   KVM_ARGS(kvm_cell_i(team), kvm_cell_s(r->pair)), &pair, err));
    TRY(kvm_db_exec(db, KVM_SQL_SPEC_ADD,
                    KVM_ARGS(kvm_cell_i(pair), kvm_cell_c(sha), kvm_cell_s(r->spec)),
                    NULL, err));
    TRY(kvm_db_one(db, KVM_SQL_SPEC_FIND, KVM_ARGS(kvm_cell_i(pair), kvm_cell_c(sha)),
                   &spec, err));
    TRY(kvm_db_one(db, KVM_SQL_RUN_ADD,
                   KVM_ARGS(kvm_cell_i(spec), kvm_cell_c(r->key),
                            kvm_cell_i(r->priority),
                            r->file.len ? kvm_cell_s(r->file) : (kvm_cell){0}),
                   run, err));
    TRY(kvm_db_exec(db, KVM_SQL_OUTBOX_ADD,
                    KVM_ARGS(kvm_cell_c("run"), kvm_cell_c(r->key)), NULL, err));
    return kvm_event__add(db, *run, 0, "submitted", r->pair, scratch, err);
}

kvm_status kvm_run_insert(kvm_catalogue *c, const kvm_run_new *r, int64_t *run,
                          kvm_err *err)
{
    TRY(kvm_db_begin(c->db, err));
    return kvm_db_end(c->db, insert(c->db, r, run, c->scratch, err), err);
}

kvm_status kvm_run__set(kvm_db *db, int64_t run, kvm_run_state state, kvm_err *err)
{
    return kvm_db_exec(db, KVM_SQL_RUN_SETTLE,
                       KVM_ARGS(kvm_cell_i(run), kvm_cell_c(run_states[state])), NULL,
                       err);
}

static kvm_status count_jobs(kvm_db *db, int64_t run, int64_t jobs[KVM_STATE_COUNT],
                             kvm_arena scratch, kvm_err *err)
{
    kvm_rows rows;
    memset(jobs, 0, sizeof *jobs * KVM_STATE_COUNT);
    TRY(kvm_db_query(db, KVM_SQL_RUN_COUNTS, KVM_ARGS(kvm_cell_i(run)), &rows, &scratch,
                     err));
    for (ptrdiff_t i = 0; i < rows.count; i++) {
        kvm_job_state s;
        if (kvm_state_find(kvm_rows_str(&rows, i, 0), &s))
            jobs[s] = kvm_rows_i64(&rows, i, 1);
    }
    return KVM_OK;
}

/* Jobs that are blocked when nothing is active can never start: what they need has
 * ended without result. */
static kvm_status settle(kvm_db *db, int64_t run, kvm_arena scratch, kvm_err *err)
{
    int64_t jobs[KVM_STATE_COUNT];
    TRY(count_jobs(db, run, jobs, scratch, err));
    const bool failed = jobs[KVM_STATE_FAILED] + jobs[KVM_STATE_PARKED] > 0;
    const bool cancelled = jobs[KVM_STATE_CANCELLED] + jobs[KVM_STATE_BLOCKED] > 0;
    return kvm_run__set(db, run,
                        failed      ? KVM_RUN_FAILED
                        : cancelled ? KVM_RUN_CANCELLED
                                    : KVM_RUN_SUCCEEDED,
                        err);
}

/* A run is locked before its jobs are looked at, else of two that end at once each
 * would see the other still running. */
kvm_status kvm_runs__settle(kvm_db *db, kvm_list *runs, kvm_arena scratch, kvm_err *err)
{
    kvm_cell arg;
    kvm_rows idle;
    TRY(kvm_list_give(runs, &arg, &scratch, err));
    TRY(kvm_db_exec(db, KVM_SQL_RUNS_LOCK, &arg, 1, NULL, err));
    TRY(kvm_db_query(db, KVM_SQL_RUNS_IDLE, &arg, 1, &idle, &scratch, err));
    for (ptrdiff_t i = 0; i < idle.count; i++)
        TRY(settle(db, kvm_rows_i64(&idle, i, 0), scratch, err));
    return KVM_OK;
}

kvm_status kvm_run__settle(kvm_db *db, int64_t run, kvm_arena scratch, kvm_err *err)
{
    kvm_list one = {0};
    kvm_list_add(&one, KVM_ARGS(kvm_cell_i(run)));
    return kvm_runs__settle(db, &one, scratch, err);
}

kvm_status kvm_run_look(kvm_catalogue *c, int64_t run, kvm_run_info *info,
                        kvm_arena *keep, kvm_err *err)
{
    kvm_rows rows;
    TRY(kvm_db_query(c->db, KVM_SQL_RUN_READ, KVM_ARGS(kvm_cell_i(run)), &rows, keep,
                     err));
    if (rows.count == 0)
        return kvm_fail(err, KVM_NOTFOUND, "there is no run %lld", (long long)run);
    *info = (kvm_run_info){.run = run,
                           .created_at = kvm_rows_f64(&rows, 0, 1),
                           .finished_at = kvm_rows_f64(&rows, 0, 2)};
    TRY(state_of(kvm_rows_str(&rows, 0, 0), &info->state, err));
    TRY(count_jobs(c->db, run, info->jobs, *keep, err));
    TRY(kvm_db_query(c->db, KVM_SQL_RUN_TROUBLE, KVM_ARGS(kvm_cell_i(run)), &rows, keep,
                     err));
    if (rows.count == 0) return KVM_OK;
    info->trouble = kvm_rows_i64(&rows, 0, 0);
    info->trouble_status = (kvm_status)kvm_rows_i64(&rows, 0, 1);
    info->trouble_label = kvm_rows_str(&rows, 0, 2);
    info->trouble_message = kvm_rows_str(&rows, 0, 3);
    return KVM_OK;
}

kvm_status kvm_run_state_of(kvm_catalogue *c, int64_t run, kvm_run_state *state,
                            kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    kvm_rows rows;
    TRY(kvm_db_query(c->db, KVM_SQL_RUN_READ, KVM_ARGS(kvm_cell_i(run)), &rows,
                     &scratch, err));
    if (rows.count == 0)
        return kvm_fail(err, KVM_NOTFOUND, "there is no run %lld", (long long)run);
    return state_of(kvm_rows_str(&rows, 0, 0), state, err);
}

kvm_status kvm_job_state_of(kvm_catalogue *c, int64_t job, kvm_job_state *state,
                            kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    kvm_rows rows;
    TRY(kvm_db_query(c->db, KVM_SQL_JOB_STATE, KVM_ARGS(kvm_cell_i(job)), &rows,
                     &scratch, err));
    if (rows.count == 1 && kvm_state_find(kvm_rows_str(&rows, 0, 0), state))
        return KVM_OK;
    return kvm_fail(err, KVM_NOTFOUND, "there is no job %lld", (long long)job);
}

static kvm_status call_at_rest(kvm_catalogue *c, int64_t job, double age_s,
                               kvm_status (*done)(void *ctx, bool known, kvm_err *err),
                               void *ctx, kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    kvm_rows row;
    kvm_job_state state;
    TRY(kvm_db_query(c->db, KVM_SQL_JOB_REST, KVM_ARGS(kvm_cell_i(job)), &row, &scratch,
                     err));
    if (row.count == 0) return done(ctx, false, err);
    if (!kvm_state_find(kvm_rows_str(&row, 0, 0), &state)) return KVM_OK;
    switch (kvm_state_class_of(state)) {
    case KVM_CLASS_WAITING:
    case KVM_CLASS_LIVE:
        return KVM_OK;
    case KVM_CLASS_DONE:
        break;
    case KVM_CLASS_ENDED: /* a person may retry it: what it left is of use yet */
        if (kvm_rows_f64(&row, 0, 1) < age_s) return KVM_OK;
        break;
    }
    return done(ctx, true, err);
}

kvm_status kvm_job_at_rest(kvm_catalogue *c, int64_t job, double age_s,
                           kvm_status (*done)(void *ctx, bool known, kvm_err *err),
                           void *ctx, kvm_err *err)
{
    TRY(kvm_db_begin(c->db, err));
    return kvm_db_end(c->db, call_at_rest(c, job, age_s, done, ctx, err), err);
}

kvm_status kvm_runs_open(kvm_catalogue *c, bool *open, kvm_err *err)
{
    int64_t one = 0;
    TRY(kvm_db_one(c->db, KVM_SQL_RUNS_OPEN, KVM_NO_ARGS, &one, err));
    *open = one != 0;
    return KVM_OK;
}

kvm_status kvm_run_hold(kvm_catalogue *c, const char *key, kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    const kvm_str name = kvm_str_fmt(&scratch, "run %s", key);
    return name.at ? kvm_catalogue_hold(c, name, false, err) : kvm_nomem(err, &scratch);
}

/* the first row: run, state */
static kvm_status first_run(kvm_catalogue *c, kvm_sql sql, const kvm_cell *args, int n,
                            int64_t *run, kvm_run_state *state, kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    kvm_rows rows;
    TRY(kvm_db_query(c->db, sql, args, n, &rows, &scratch, err));
    *run = 0;
    if (rows.count == 0) return KVM_OK;
    TRY(state_of(kvm_rows_str(&rows, 0, 1), state, err));
    *run = kvm_rows_i64(&rows, 0, 0);
    return KVM_OK;
}

kvm_status kvm_run_find(kvm_catalogue *c, const char *key, int64_t *run,
                        kvm_run_state *state, kvm_err *err)
{
    const kvm_cell arg = kvm_cell_c(key);
    return first_run(c, KVM_SQL_RUN_FIND, &arg, 1, run, state, err);
}

kvm_status kvm_run_fired(kvm_catalogue *c, const char *key, kvm_str tick, int64_t *run,
                         kvm_run_state *state, kvm_err *err)
{
    const kvm_cell args[] = {kvm_cell_c(key), kvm_cell_s(tick)};
    return first_run(c, KVM_SQL_RUN_FIRED, args, 2, run, state, err);
}

kvm_status kvm_run_fire(kvm_catalogue *c, int64_t run, kvm_str tick, kvm_err *err)
{
    return kvm_event__add(c->db, run, 0, "fired", tick, c->scratch, err);
}

kvm_status kvm_run_artefacts(kvm_catalogue *c, int64_t run, kvm_result_artefact **out,
                             ptrdiff_t *count, kvm_arena *keep, kvm_err *err)
{
    kvm_rows rows;
    TRY(kvm_db_query(c->db, KVM_SQL_RUN_ARTEFACTS, KVM_ARGS(kvm_cell_i(run)), &rows,
                     keep, err));
    kvm_result_artefact *all = kvm_new(keep, kvm_result_artefact, rows.count + 1);
    if (!all) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i < rows.count; i++)
        all[i] = (kvm_result_artefact){.name = kvm_rows_str(&rows, i, 0),
                                       .sha = kvm_rows_str(&rows, i, 1),
                                       .bytes = kvm_rows_i64(&rows, i, 2)};
    *out = all;
    *count = rows.count;
    return KVM_OK;
}

kvm_status kvm_worker_register(kvm_catalogue *c, kvm_str name, kvm_str host,
                               kvm_str machine, int64_t *worker, kvm_err *err)
{
    return kvm_db_one(c->db, KVM_SQL_WORKER_ADD,
                      KVM_ARGS(kvm_cell_s(name), kvm_cell_s(host), kvm_cell_s(machine)),
                      worker, err);
}

kvm_status kvm_worker_gone(kvm_catalogue *c, int64_t worker, kvm_err *err)
{
    return kvm_db_exec(c->db, KVM_SQL_WORKER_GONE, KVM_ARGS(kvm_cell_i(worker)), NULL,
                       err);
}

kvm_status kvm_worker_serves(kvm_catalogue *c, int64_t worker, const kvm_want *want,
                             kvm_err *err)
{
    kvm_arena a = c->scratch;
    kvm_str classes = want->class_count ? KVM_STR("") : KVM_STR("cpu small");
    for (int i = 0; i < want->class_count && classes.at; i++)
        classes = kvm_str_fmt(&a, "%.*s%s%.*s", KVM_STR_ARG(classes), i ? " " : "",
                              KVM_STR_ARG(want->classes[i]));
    if (!classes.at) return kvm_nomem(err, &a);
    return kvm_db_exec(c->db, KVM_SQL_WORKER_SERVES,
                       KVM_ARGS(kvm_cell_i(worker), kvm_cell_s(classes),
                                kvm_cell_i(want->ranks > 0 ? want->ranks : 1),
                                kvm_cell_i(want->memory_mib)),
                       NULL, err);
}

kvm_status kvm_worker_asked(kvm_catalogue *c, int64_t worker, bool *drain, kvm_err *err)
{
    static const double SEEN_S = 10;
    kvm_arena scratch = c->scratch;
    kvm_rows r;
    TRY(kvm_db_query(c->db, KVM_SQL_WORKER_ASKED, KVM_ARGS(kvm_cell_i(worker)), &r,
                     &scratch, err));
    *drain = r.count > 0 && kvm_rows_i64(&r, 0, 0) != 0;
    if (r.count == 0 || kvm_rows_f64(&r, 0, 1) < SEEN_S) return KVM_OK;
    return kvm_db_exec(c->db, KVM_SQL_WORKER_SEEN, KVM_ARGS(kvm_cell_i(worker)), NULL,
                       err);
}

kvm_status kvm_workers_drain(kvm_catalogue *c, kvm_str name, ptrdiff_t *asked,
                             kvm_err *err)
{
    int64_t changed = 0;
    TRY(kvm_db_exec(c->db, KVM_SQL_WORKERS_DRAIN, KVM_ARGS(kvm_cell_s(name)), &changed,
                    err));
    *asked = (ptrdiff_t)changed;
    if (changed) return KVM_OK;
    return kvm_fail(
        err, KVM_NOTFOUND,
        "no worker \"%s\" is there; `kvmill workers list` has those that are",
        kvm_quote(name).at);
}

kvm_status kvm_outbox_next(kvm_catalogue *c, int64_t ids[KVM_OUTBOX_MOST],
                           ptrdiff_t *count, kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    kvm_rows rows;
    TRY(kvm_db_query(c->db, KVM_SQL_OUTBOX_NEXT, KVM_NO_ARGS, &rows, &scratch, err));
    *count = rows.count < KVM_OUTBOX_MOST ? rows.count : KVM_OUTBOX_MOST;
    for (ptrdiff_t i = 0; i < *count; i++) ids[i] = kvm_rows_i64(&rows, i, 0);
    return KVM_OK;
}

/* Row by row: numbers are given out before rows are committed, so one that is smaller
 * than the last may not have been seen. */
static kvm_status mark_sent(kvm_catalogue *c, const int64_t *ids, ptrdiff_t count,
                            kvm_err *err)
{
    TRY(kvm_catalogue_unsynced(c, err)); /* hints that are sent again do no harm */
    for (ptrdiff_t i = 0; i < count; i++)
        TRY(kvm_db_exec(c->db, KVM_SQL_OUTBOX_SENT, KVM_ARGS(kvm_cell_i(ids[i])), NULL,
                        err));
    return KVM_OK;
}

kvm_status kvm_outbox_sent(kvm_catalogue *c, const int64_t *ids, ptrdiff_t count,
                           kvm_err *err)
{
    TRY(kvm_db_begin(c->db, err));
    return kvm_db_end(c->db, mark_sent(c, ids, count, err), err);
}
