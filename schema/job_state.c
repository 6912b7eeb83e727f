/* job_state.c - the life of a job. Its state is changed here, in job_end.c (how an
 * attempt ends) and job_request.c (what people ask), always through kvm_job__change;
 * only the claim and its hint are statements of their own (job_claim.c).
 *
 *   insert ─► blocked ─promote─► ready ─claim─► running ─succeed─► succeeded
 *                │                ▲  ▲            │  │  └──skip──► skipped
 *                │                │  └─ crash, fail(RETRY), release, reap
 *                │                │               ├─ fail(FAIL) ─► failed
 *                │                │               ├─ crash, RETRY at limit ─► parked
 *                │                │               └─ cancel ─► cancelling ─► cancelled
 *                └──── cancel (also of ready) ──────────────────────────────► cancelled
 *   failed, parked, cancelled ─retry─► ready or blocked
 *   ready ─dispatch─► dispatched ─► as ready; dispatched again when its hint was lost
 *
 * Who makes each change
 *   submitter  insert                  kvm_job_insert
 *   anyone     promote                 wait_less, in the transaction of the last need
 *   dispatcher dispatch                kvm_jobs_dispatched; a worker claims without too
 *   worker     claim, succeed, skip,   with its fence; the cancelled of a live job too
 *              fail, crash, release    (kvm_jobs_claim, kvm_jobs_end)
 *   reaper     reap                    kvm_jobs_reap, kvm_jobs_reap_dead
 *   person     cancel, retry           kvm_job_cancel, kvm_job_retry
 *
 * Invariants
 *   1. succeeded and skipped rows never change. failed, parked and cancelled change
 *      only by retry.
 *   2. lease_until is set exactly in running and cancelling (a CHECK of the table).
 *   3. token only grows: by one with each claim and each retry. A worker's writes name
 *      (job, token) and a live state; when they match no row the worker has lost the
 *      job and nothing was written.
 *   4. An attempt is counted when it is claimed, so a job that kills its worker is
 *      counted. Only release takes the count back.
 *   5. waits is the number of distinct jobs it needs that are neither succeeded nor
 *      skipped; a job is ready only at 0, and then has its key unless it is timed.
 *   6. Of the jobs with one key at most one is live (a unique index); the others wait
 *      their turn in ready and are then skipped.
 *   7. Results (artefacts, metrics …) are written in the transaction that makes the
 *      state succeeded, so the state alone says that they exist. So is what its team
 *      has used by then, however the attempt ends.
 *   8. Time is the database's. The reaper looks, then repeats its condition in the
 *      write: a completion that comes in between wins.
 * Every other change goes through kvm_job__change, which checks the table of legal ones
 * and writes only over the (id, token, state) that was read: all of a list, or none.
 *
 * Who else is at it. SQLite lets one transaction write at a time. On a server many do,
 * each statement sees what was committed before it began, and rows are locked. All lock
 * in one order, so that nobody waits in a circle: a name (catalogue.h), then jobs by
 * ascending id, then runs by ascending id, then teams likewise, which are the last.
 *   - Jobs are locked when they are read to be changed: all that a transaction will
 *     change in one statement (kvm_job__hold), with those that need what is about to be
 *     done. Of two needs that end at once the second counts down what the first one
 *     left, and it promotes.
 *   - A run is locked before its jobs are counted: of two jobs that end at once the
 *     second sees the first one's end, and settles the run.
 *   - Who changes several jobs of a run locks all of them first.
 *   - A lease is renewed in that order too, for the same jobs may be about to end.
 *   - A look for the next jobs, and a claim, pass over rows that are locked. A claim
 *     waits for no other, not even at the unique index of invariant 6: of all open
 *     transactions one at a time claims a key ({mine}). One that looked before another
 *     committed meets the index, and looks again.
 *   - A foreign key is looked up without waiting for these locks (postgres.c). */
#include "schema/job_state.h"

#include <assert.h>
#include <string.h>

#include "schema/fault.h"
#include "schema/job_internal.h"

#define BIT(NAME) (1u << KVM_STATE_##NAME)
/* legal[from]: the states that kvm_job__change may lead to (the claim and its hint are
 * statements of their own) */
static const unsigned legal[KVM_STATE_COUNT] = {
    [KVM_STATE_BLOCKED] = BIT(READY) | BIT(CANCELLED),
    [KVM_STATE_READY] = BIT(CANCELLED),
    [KVM_STATE_DISPATCHED] = BIT(CANCELLED),
    [KVM_STATE_RUNNING] = BIT(SUCCEEDED) | BIT(SKIPPED) | BIT(FAILED) | BIT(PARKED) |
                          BIT(READY) | BIT(CANCELLING) | BIT(CANCELLED),
    [KVM_STATE_CANCELLING] = BIT(CANCELLED),
    [KVM_STATE_FAILED] = BIT(READY) | BIT(BLOCKED),
    [KVM_STATE_PARKED] = BIT(READY) | BIT(BLOCKED),
    [KVM_STATE_CANCELLED] = BIT(READY) | BIT(BLOCKED),
};

static kvm_status unpack(kvm_job_row *j, const kvm_rows *r, ptrdiff_t row, kvm_err *err)
{
    *j = (kvm_job_row){.id = kvm_rows_i64(r, row, 0),
                       .run = kvm_rows_i64(r, row, 1),
                       .token = kvm_rows_i64(r, row, 2),
                       .waits = kvm_rows_i64(r, row, 4),
                       .attempt = kvm_rows_i64(r, row, 5),
                       .crashes = kvm_rows_i64(r, row, 6),
                       .retries = kvm_rows_i64(r, row, 7),
                       .timed = kvm_rows_i64(r, row, 8),
                       .equal = kvm_rows_i64(r, row, 9),
                       .key = kvm_rows_str(r, row, 10),
                       .status = kvm_rows_i64(r, row, 11),
                       .message = kvm_rows_str(r, row, 12),
                       .team = kvm_rows_i64(r, row, 13),
                       .ranks = kvm_rows_i64(r, row, 14),
                       .claimed_s = kvm_rows_f64(r, row, 15),
                       .expired = kvm_rows_i64(r, row, 16) != 0};
    if (kvm_state_find(kvm_rows_str(r, row, 3), &j->state)) return KVM_OK;
    return kvm_fail(err, KVM_VERSION, "job %lld is in the unknown state %.*s",
                    (long long)j->id, KVM_STR_ARG(kvm_rows_str(r, row, 3)));
}

kvm_status kvm_job__read(kvm_db *db, int64_t id, kvm_job_row *j, kvm_arena *scratch,
                         kvm_err *err)
{
    kvm_rows rows;
    TRY(kvm_db_query(db, KVM_SQL_JOB_READ, KVM_ARGS(kvm_cell_i(id)), &rows, scratch,
                     err));
    if (rows.count == 0)
        return kvm_fail(err, KVM_NOTFOUND, "there is no job %lld", (long long)id);
    return unpack(j, &rows, 0, err);
}

kvm_status kvm_job__hold(kvm_db *db, kvm_list *ids, kvm_job_row **out, ptrdiff_t *count,
                         double *now, kvm_arena *a, kvm_err *err)
{
    kvm_cell list;
    kvm_rows rows;
    TRY(kvm_list_give(ids, &list, a, err));
    TRY(kvm_db_query(db, KVM_SQL_JOBS_HOLD, &list, 1, &rows, a, err));
    kvm_job_row *all = kvm_new(a, kvm_job_row, rows.count + 1);
    if (!all) return kvm_nomem(err, a);
    for (ptrdiff_t i = 0; i < rows.count; i++) TRY(unpack(&all[i], &rows, i, err));
    if (now) *now = rows.count ? kvm_rows_f64(&rows, 0, 17) : 0;
    *out = all;
    *count = rows.count;
    return KVM_OK;
}

kvm_job_row *kvm_job__find(kvm_job_row *rows, ptrdiff_t count, int64_t id)
{
    while (count > 0) { /* ascending ids */
        kvm_job_row *const middle = &rows[count / 2];
        if (middle->id == id) return middle;
        if (middle->id < id) {
            rows = middle + 1;
            count -= count / 2 + 1;
        } else {
            count /= 2;
        }
    }
    return NULL;
}

kvm_status kvm_job__change(kvm_db *db, const kvm_job_move *moves, ptrdiff_t count,
                           kvm_arena scratch, kvm_err *err)
{
    int64_t changed = 0;
    kvm_cell arg;
    kvm_list list = {0};
    for (ptrdiff_t i = 0; i < count; i++) {
        const kvm_job_row *was = &moves[i].was, *j = &moves[i].is;
        const kvm_state_class to = kvm_state_class_of(j->state);
        assert(legal[was->state] & (1u << j->state));
        assert(j->id == was->id && j->token >= was->token);
        kvm_list_add(
            &list, KVM_ARGS(kvm_cell_i(was->id), kvm_cell_i(was->token),
                            kvm_cell_c(kvm_state_name(was->state)),
                            kvm_cell_c(kvm_state_name(j->state)), kvm_cell_i(j->token),
                            kvm_cell_f(j->delay), kvm_cell_i(j->attempt),
                            kvm_cell_i(j->crashes), kvm_cell_i(j->retries),
                            j->equal ? kvm_cell_i(j->equal) : (kvm_cell){0},
                            j->key.len ? kvm_cell_s(j->key) : (kvm_cell){0},
                            kvm_cell_i(j->status), kvm_cell_s(j->message),
                            kvm_cell_i(to == KVM_CLASS_DONE || to == KVM_CLASS_ENDED)));
    }
    TRY(kvm_list_give(&list, &arg, &scratch, err));
    TRY(kvm_db_exec(db, KVM_SQL_JOBS_CHANGE, &arg, 1, &changed, err));
    if (changed == count) return KVM_OK;
    return kvm_fail(err, KVM_LOST, "job %lld%s: changed by somebody else",
                    (long long)moves[0].was.id, count > 1 ? " or one after it" : "");
}

/* ---- blocked -> ready ---- */

static kvm_status promote(kvm_db *db, kvm_list *ids, kvm_arena scratch, kvm_err *err)
{
    kvm_job_row *rows;
    ptrdiff_t count;
    if (ids->count == 0) return KVM_OK;
    TRY(kvm_job__hold(db, ids, &rows, &count, NULL, &scratch, err));
    kvm_job_move *moves = kvm_new(&scratch, kvm_job_move, count + 1);
    kvm_job_row **is = kvm_new(&scratch, kvm_job_row *, count + 1);
    if (!moves || !is) return kvm_nomem(err, &scratch);
    for (ptrdiff_t i = 0; i < count; i++) {
        moves[i] = (kvm_job_move){.was = rows[i], .is = rows[i]};
        moves[i].is.state = KVM_STATE_READY;
        is[i] = &moves[i].is;
    }
    TRY(kvm_jobs__keys(db, is, count, &scratch, err));
    return kvm_job__change(db, moves, count, scratch, err);
}

/* Jobs have their results: those that need them wait for so many less. */
static kvm_status wait_less(kvm_db *db, kvm_list *done, kvm_arena scratch, kvm_err *err)
{
    kvm_cell arg;
    kvm_rows rows;
    kvm_list free_now = {0};
    TRY(kvm_list_give(done, &arg, &scratch, err));
    TRY(kvm_db_query(db, KVM_SQL_JOBS_WAIT_LESS, &arg, 1, &rows, &scratch, err));
    for (ptrdiff_t i = 0; i < rows.count; i++)
        if (kvm_rows_i64(&rows, i, 1) == 0 &&
            kvm_str_eq(kvm_rows_str(&rows, i, 2), KVM_STR("blocked")))
            kvm_list_add(&free_now, KVM_ARGS(kvm_cell_i(kvm_rows_i64(&rows, i, 0)),
                                             kvm_cell_i(0)));
    return promote(db, &free_now, scratch, err);
}

static ptrdiff_t distinct_needs(const kvm_job_new *n)
{
    ptrdiff_t count = 0;
    for (ptrdiff_t i = 0; i < n->dep_count; i++) {
        bool first = true;
        for (ptrdiff_t k = 0; k < i && first; k++)
            first = n->deps[k].needs != n->deps[i].needs;
        count += first;
    }
    return count;
}

static kvm_status insert(kvm_db *db, const kvm_job_new *n, int64_t *id,
                         kvm_arena scratch, kvm_err *err)
{
    const ptrdiff_t waits = distinct_needs(n);
    TRY(kvm_db_one(
        db, KVM_SQL_JOB_ADD,
        KVM_ARGS(kvm_cell_i(n->run), kvm_cell_i(n->kind), kvm_cell_c(n->kind_name),
                 kvm_cell_i(n->version), kvm_cell_i(n->timed), kvm_cell_s(n->label),
                 kvm_cell_s(n->params), kvm_cell_s(n->identity),
                 kvm_cell_i(n->priority), kvm_cell_i(waits), kvm_cell_f(n->timeout_s),
                 kvm_cell_c(n->class ? n->class : "cpu"),
                 kvm_cell_i(n->ranks > 0 ? n->ranks : 1), kvm_cell_i(n->memory_mib)),
        id, err));
    for (ptrdiff_t i = 0; i < n->dep_count; i++)
        TRY(kvm_db_exec(db, KVM_SQL_DEP_ADD,
                        KVM_ARGS(kvm_cell_i(*id), kvm_cell_s(n->deps[i].input),
                                 kvm_cell_i(n->deps[i].needs),
                                 kvm_cell_s(n->deps[i].output)),
                        NULL, err));
    if (waits) return KVM_OK;
    kvm_list one = {0};
    kvm_list_add(&one, KVM_ARGS(kvm_cell_i(*id), kvm_cell_i(0)));
    return promote(db, &one, scratch, err);
}

kvm_status kvm_job_insert(kvm_catalogue *c, const kvm_job_new *n, int64_t *id,
                          kvm_err *err)
{
    TRY(kvm_db_begin(c->db, err));
    return kvm_db_end(c->db, insert(c->db, n, id, c->scratch, err), err);
}

/* ---- running, cancelling -> anything ---- */

static kvm_state_class class_of(const kvm_job_leave *l)
{
    return kvm_state_class_of(l->move.is.state);
}

static kvm_status change_all(kvm_db *db, const kvm_job_leave *of, ptrdiff_t count,
                             kvm_arena scratch, kvm_err *err)
{
    kvm_list ends = {0};
    kvm_cell arg;
    kvm_job_move *moves = kvm_new(&scratch, kvm_job_move, count + 1);
    if (!moves) return kvm_nomem(err, &scratch);
    for (ptrdiff_t i = 0; i < count; i++) {
        const kvm_job_row *is = &of[i].move.is;
        moves[i] = of[i].move;
        kvm_list_add(&ends, KVM_ARGS(kvm_cell_i(is->id), kvm_cell_i(is->token),
                                     kvm_cell_c(of[i].outcome), kvm_cell_i(is->status),
                                     kvm_cell_s(is->message)));
    }
    TRY(kvm_list_give(&ends, &arg, &scratch, err));
    TRY(kvm_job__change(db, moves, count, scratch, err));
    return kvm_db_exec(db, KVM_SQL_ATTEMPTS_END, &arg, 1, NULL, err);
}

/* What the attempts reported, and how they ended. */
static kvm_status write_events(kvm_db *db, const kvm_job_leave *of, ptrdiff_t count,
                               kvm_arena scratch, kvm_err *err)
{
    kvm_list l = {0};
    for (ptrdiff_t i = 0; i < count; i++) {
        const kvm_job_row *is = &of[i].move.is;
        for (ptrdiff_t k = 0; k < of[i].result->event_count; k++)
            kvm_event__list(&l, is->run, is->id, of[i].result->events[k].what,
                            of[i].result->events[k].text);
        if (class_of(&of[i]) == KVM_CLASS_ENDED)
            kvm_event__list(&l, is->run, is->id, kvm_str_of(kvm_state_name(is->state)),
                            is->message);
    }
    return kvm_events__write(db, &l, scratch, err);
}

/* Of each run and each team once, however many of its jobs end. */
static bool seen_before(const kvm_job_leave *of, ptrdiff_t i, bool team)
{
    const kvm_job_row *is = &of[i].move.is;
    for (ptrdiff_t k = 0; k < i; k++)
        if (team ? of[k].move.is.team == is->team : of[k].move.is.run == is->run)
            return true;
    return false;
}

static kvm_status settle_runs(kvm_db *db, const kvm_job_leave *of, ptrdiff_t count,
                              kvm_arena scratch, kvm_err *err)
{
    kvm_list runs = {0};
    for (ptrdiff_t i = 0; i < count; i++)
        if (!seen_before(of, i, false))
            kvm_list_add(&runs, KVM_ARGS(kvm_cell_i(of[i].move.is.run)));
    return kvm_runs__settle(db, &runs, scratch, err);
}

/* One after the other, by ascending id. */
static kvm_status charge_teams(kvm_db *db, const kvm_job_leave *of, ptrdiff_t count,
                               double now, kvm_err *err)
{
    for (int64_t last = 0;;) {
        int64_t team = INT64_MAX;
        double seconds = 0;
        for (ptrdiff_t i = 0; i < count; i++)
            if (of[i].move.is.team > last && of[i].move.is.team < team)
                team = of[i].move.is.team;
        if (team == INT64_MAX) return KVM_OK;
        for (ptrdiff_t i = 0; i < count; i++)
            if (of[i].move.is.team == team)
                seconds += of[i].seconds * (double)of[i].move.is.ranks;
        TRY(kvm_db_exec(db, KVM_SQL_TEAM_CHARGE,
                        KVM_ARGS(kvm_cell_i(team), kvm_cell_f(seconds),
                                 kvm_cell_i((int64_t)(now / KVM_DAY_S))),
                        NULL, err));
        last = team;
    }
}

kvm_status kvm_job__leave(kvm_db *db, const kvm_job_leave *of, ptrdiff_t count,
                          bool needed, double now, kvm_arena scratch, kvm_err *err)
{
    kvm_list done = {0};
    bool over = false;
    TRY(change_all(db, of, count, scratch, err));
    TRY(write_events(db, of, count, scratch, err));
    for (ptrdiff_t i = 0; i < count; i++) {
        const kvm_state_class to = class_of(&of[i]);
        over = over || to == KVM_CLASS_DONE || to == KVM_CLASS_ENDED;
        if (needed && to == KVM_CLASS_DONE)
            kvm_list_add(&done, KVM_ARGS(kvm_cell_i(of[i].move.is.id)));
    }
    if (done.count) TRY(wait_less(db, &done, scratch, err));
    if (over) TRY(settle_runs(db, of, count, scratch, err));
    TRY(charge_teams(db, of, count, now, err));
    kvm_fault(KVM_FAULT_BEFORE_COMMIT);
    return KVM_OK;
}
