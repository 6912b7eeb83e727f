#include "schema/schedules.h"

#include "schema/catalogue_internal.h"

static kvm_status add(kvm_db *db, const kvm_schedule_row *s, kvm_err *err)
{
    int64_t team = 0, added = 0;
    TRY(kvm_db_exec(db, KVM_SQL_TEAM_ADD, KVM_ARGS(kvm_cell_s(s->team)), NULL, err));
    TRY(kvm_db_one(db, KVM_SQL_TEAM_FIND, KVM_ARGS(kvm_cell_s(s->team)), &team, err));
    TRY(kvm_db_exec(db, KVM_SQL_SCHEDULE_ADD,
                    KVM_ARGS(kvm_cell_i(team), kvm_cell_s(s->name), kvm_cell_s(s->file),
                             kvm_cell_s(s->cron), kvm_cell_s(s->zone),
                             kvm_cell_s(s->catch_up), kvm_cell_i(s->again)),
                    &added, err));
    if (added) return KVM_OK;
    return kvm_fail(err, KVM_EXISTS,
                    "team %.*s has a schedule %s; remove that one or name this one "
                    "otherwise",
                    KVM_STR_ARG(s->team), kvm_quote(s->name).at);
}

kvm_status kvm_schedule_add(kvm_catalogue *c, const kvm_schedule_row *s, kvm_err *err)
{
    TRY(kvm_db_begin(c->db, err));
    return kvm_db_end(c->db, add(c->db, s, err), err);
}

static kvm_status missing(kvm_str team, kvm_str name, kvm_err *err)
{
    return kvm_fail(err, KVM_NOTFOUND,
                    "team %s has no schedule \"%s\"; `kvmill schedules list` has those "
                    "there are",
                    kvm_quote(team).at, kvm_quote(name).at);
}

static kvm_status forget(kvm_db *db, kvm_str team, kvm_str name, kvm_err *err)
{
    int64_t gone = 0;
    const kvm_cell who[] = {kvm_cell_s(team), kvm_cell_s(name)};
    TRY(kvm_db_exec(db, KVM_SQL_TICKS_DROP, who, 2, NULL, err));
    TRY(kvm_db_exec(db, KVM_SQL_SCHEDULE_DROP, who, 2, &gone, err));
    return gone ? KVM_OK : missing(team, name, err);
}

kvm_status kvm_schedule_remove(kvm_catalogue *c, kvm_str team, kvm_str name,
                               kvm_err *err)
{
    TRY(kvm_db_begin(c->db, err));
    return kvm_db_end(c->db, forget(c->db, team, name, err), err);
}

kvm_status kvm_schedule_pause(kvm_catalogue *c, kvm_str team, kvm_str name, bool paused,
                              kvm_err *err)
{
    int64_t changed = 0;
    TRY(kvm_db_exec(c->db, KVM_SQL_SCHEDULE_PAUSE,
                    KVM_ARGS(kvm_cell_s(team), kvm_cell_s(name), kvm_cell_i(paused)),
                    &changed, err));
    return changed ? KVM_OK : missing(team, name, err);
}

kvm_status kvm_schedules_read(kvm_catalogue *c, kvm_schedule_row **out,
                              ptrdiff_t *count, double *now, kvm_arena *keep,
                              kvm_err *err)
{
    kvm_rows r, clock;
    TRY(kvm_db_query(c->db, KVM_SQL_CLOCK, KVM_NO_ARGS, &clock, keep, err));
    TRY(kvm_db_query(c->db, KVM_SQL_SCHEDULES, KVM_NO_ARGS, &r, keep, err));
    kvm_schedule_row *rows = kvm_new(keep, kvm_schedule_row, r.count + 1);
    if (!rows) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i < r.count; i++)
        rows[i] = (kvm_schedule_row){.id = kvm_rows_i64(&r, i, 0),
                                     .team = kvm_rows_str(&r, i, 1),
                                     .name = kvm_rows_str(&r, i, 2),
                                     .file = kvm_rows_str(&r, i, 3),
                                     .cron = kvm_rows_str(&r, i, 4),
                                     .zone = kvm_rows_str(&r, i, 5),
                                     .catch_up = kvm_rows_str(&r, i, 6),
                                     .again = kvm_rows_i64(&r, i, 7) != 0,
                                     .paused = kvm_rows_i64(&r, i, 8) != 0,
                                     .since_at = kvm_rows_f64(&r, i, 9),
                                     .last_at = kvm_rows_f64(&r, i, 10)};
    *out = rows;
    *count = r.count;
    *now = kvm_rows_f64(&clock, 0, 0);
    return KVM_OK;
}

kvm_status kvm_tick_claim(kvm_catalogue *c, int64_t schedule, double at, double hold_s,
                          bool *mine, kvm_err *err)
{
    int64_t changed = 0;
    TRY(kvm_db_exec(c->db, KVM_SQL_TICK_CLAIM,
                    KVM_ARGS(kvm_cell_i(schedule), kvm_cell_f(at), kvm_cell_f(hold_s)),
                    &changed, err));
    *mine = changed == 1;
    return KVM_OK;
}

kvm_status kvm_tick_end(kvm_catalogue *c, int64_t schedule, double at,
                        kvm_status status, kvm_str message, kvm_err *err)
{
    return kvm_db_exec(c->db, KVM_SQL_TICK_END,
                       KVM_ARGS(kvm_cell_i(schedule), kvm_cell_f(at),
                                kvm_cell_i((int64_t)status), kvm_cell_s(message)),
                       NULL, err);
}

kvm_status kvm_ticks_left(kvm_catalogue *c, kvm_tick_id **out, ptrdiff_t *count,
                          kvm_arena *keep, kvm_err *err)
{
    kvm_rows r;
    TRY(kvm_db_query(c->db, KVM_SQL_TICKS_LEFT, KVM_NO_ARGS, &r, keep, err));
    kvm_tick_id *ticks = kvm_new(keep, kvm_tick_id, r.count + 1);
    if (!ticks) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i < r.count; i++)
        ticks[i] = (kvm_tick_id){kvm_rows_i64(&r, i, 0), kvm_rows_f64(&r, i, 1)};
    *out = ticks;
    *count = r.count;
    return KVM_OK;
}

kvm_status kvm_tick_admits(kvm_catalogue *c, kvm_tick_id tick, kvm_str team,
                           kvm_str file, bool *yes, kvm_err *err)
{
    int64_t one = 0;
    TRY(kvm_db_one(c->db, KVM_SQL_TICK_ADMITS,
                   KVM_ARGS(kvm_cell_i(tick.schedule), kvm_cell_f(tick.at),
                            kvm_cell_s(team), kvm_cell_s(file)),
                   &one, err));
    *yes = one != 0;
    return KVM_OK;
}
