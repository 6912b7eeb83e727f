/* views.c - reading: documented views as JSON, and the newest result of a kind. */
#include <string.h>

#include "schema/catalogue.h"
#include "schema/catalogue_internal.h"

/* Each view's columns in full (what a filter may name) and the order of its rows. */
static const struct {
    const char *name, *columns, *order;
} views[] = {
    {"v_runs",
     "run team pair state priority created_at finished_at spec_sha key file stale_at "
     "stale_why",
     "run"},
    {"v_queue",
     "job run pair kind label state priority attempt crashes run_after lease_until "
     "worker "
     "status message created_at started_at finished_at equal_job key waits team class "
     "ranks paused done total unit",
     "job"},
    {"v_attempts",
     "job attempt token worker started_at ended_at outcome status message log",
     "job, token"},
    {"v_events", "event run job at what text", "event"},
    {"v_metrics", "pair run job kind label metric labels value",
     "run, job, metric, labels"},
    {"v_quality", "pair run job suite arm metric items mean run_created_at suite_sha",
     "run DESC, job, suite, arm, metric"},
    {"v_ttft",
     "pair run job arm tokens stage rounds median_s least_s most_s run_created_at",
     "run, job, tokens, arm, stage"},
    {"v_regressions", "pair run what name arm metric value previous change",
     "pair, what, name, arm, metric, run"},
    {"v_pairs",
     "team pair runs last_run last_state last_created_at last_finished_at stale "
     "stale_why",
     "team, pair"},
    {"v_artefacts",
     "pair run job kind label output sha bytes equal_job sensitive expired_at",
     "run, job, output"},
    {"v_lineage",
     "pair run job kind label output sha bytes equal_job input from_job from_output "
     "from_sha",
     "run, job, output, input"},
    {"v_workers",
     "worker host machine classes ranks memory_mib started_at seen_at gone_at drain "
     "live",
     "started_at, worker"},
    {"v_teams",
     "team weight quota_live quota_day_s used_s used_at paused has_token live "
     "created_at",
     "team"},
    {"v_schedules",
     "schedule team file cron zone catch_up again paused since_at last_tick_at "
     "last_status last_message",
     "team, schedule"},
};
enum { VIEW_COUNT = sizeof views / sizeof *views, FILTERS = 8 };

static kvm_status find_view(const char *name, int *at, kvm_err *err)
{
    kvm_text list = {0};
    for (int i = 0; i < VIEW_COUNT; i++) {
        if (!strcmp(views[i].name, name)) {
            *at = i;
            kvm_text_free(&list);
            return KVM_OK;
        }
        kvm_text_addf(&list, " %s", views[i].name);
    }
    const kvm_status s = kvm_fail(err, KVM_NOTFOUND, "no view %s; there are%.*s", name,
                                  KVM_STR_ARG(kvm_text_str(&list)));
    kvm_text_free(&list);
    return s;
}

static kvm_status check_column(int view, const char *column, kvm_err *err)
{
    kvm_str name, rest = kvm_str_of(views[view].columns);
    while (rest.len > 0) {
        kvm_str_cut(rest, ' ', &name, &rest);
        if (kvm_str_eq(name, kvm_str_of(column))) return KVM_OK;
    }
    return kvm_fail(err, KVM_NOTFOUND, "%s has no column %s; it has %s",
                    views[view].name, column, views[view].columns);
}

static json_t *value_of(const kvm_cell *c)
{
    switch (c->type) {
    case KVM_CELL_INT:
        return json_integer(c->i);
    case KVM_CELL_NUM:
        return json_real(c->f);
    case KVM_CELL_TEXT:
        return json_stringn(c->s.at, (size_t)c->s.len);
    case KVM_CELL_NULL:
        break;
    }
    return json_null();
}

static kvm_status to_json(json_t *list, const kvm_rows *rows, kvm_err *err)
{
    for (ptrdiff_t r = 0; r < rows->count; r++) {
        json_t *row = json_object();
        for (ptrdiff_t k = 0; k < rows->columns; k++)
            if (json_object_set_new(row, rows->names[k],
                                    value_of(&rows->cells[r * rows->columns + k]))) {
                json_decref(row);
                return kvm_fail(err, KVM_FORMAT, "%s of row %td is not text in UTF-8",
                                rows->names[k], r);
            }
        if (json_array_append_new(list, row))
            return kvm_fail(err, KVM_NOMEM, "out of memory");
    }
    return KVM_OK;
}

kvm_status kvm_catalogue_view(kvm_catalogue *c, json_t **out, kvm_arena *keep,
                              const char *view, const kvm_view_filter *filters,
                              ptrdiff_t filter_count, ptrdiff_t limit, kvm_err *err)
{
    int at = 0;
    kvm_cell args[FILTERS];
    TRY(find_view(view, &at, err));
    if (filter_count > FILTERS)
        return kvm_fail(err, KVM_RANGE, "%s: more than %d conditions", view, FILTERS);
    kvm_arena scratch = c->scratch, *a = &scratch;
    kvm_str sql = kvm_str_fmt(a, "SELECT * FROM %s", view);
    for (ptrdiff_t i = 0; i < filter_count; i++) {
        TRY(check_column(at, filters[i].column, err));
        sql = kvm_str_fmt(a, "%s %s %s = $%d", sql.at ? sql.at : "",
                          i ? "AND" : "WHERE", filters[i].column, (int)i + 1);
        args[i] = filters[i].text.at ? kvm_cell_s(filters[i].text)
                                     : kvm_cell_i(filters[i].number);
    }
    sql = kvm_str_fmt(a, "%s ORDER BY %s", sql.at ? sql.at : "", views[at].order);
    if (limit > 0 && sql.at) sql = kvm_str_fmt(a, "%s LIMIT %td", sql.at, limit);
    json_t *list = kvm_json_own(keep, json_array());
    if (!sql.at || !list) return kvm_nomem(err, sql.at ? keep : a);
    kvm_rows rows;
    TRY(c->db->driver->query(c->db, -1, sql.at, args, filter_count, &rows, a, NULL,
                             err));
    TRY(to_json(list, &rows, err));
    *out = list;
    return KVM_OK;
}

kvm_status kvm_catalogue_output(kvm_catalogue *c, kvm_str pair, int64_t run,
                                const char *kind, const char *output, char sha[65],
                                int64_t *bytes, kvm_err *err)
{
    kvm_rows rows;
    kvm_arena scratch = c->scratch;
    TRY(kvm_db_query(c->db, KVM_SQL_OUTPUT_FIND,
                     KVM_ARGS(kvm_cell_s(pair), kvm_cell_i(run), kvm_cell_c(kind),
                              kvm_cell_c(output)),
                     &rows, &scratch, err));
    if (rows.count == 0 && run)
        return kvm_fail(err, KVM_NOTFOUND,
                        "run %lld of pair %.*s has no finished %s with a %s",
                        (long long)run, KVM_STR_ARG(pair), kind, output);
    if (rows.count == 0)
        return kvm_fail(err, KVM_NOTFOUND, "pair %.*s has no finished %s with a %s",
                        KVM_STR_ARG(pair), kind, output);
    const kvm_str hex = kvm_rows_str(&rows, 0, 0);
    if (hex.len != 64)
        return kvm_fail(err, KVM_FORMAT, "artefact %s: its hash is malformed", output);
    memcpy(sha, hex.at, 65);
    *bytes = kvm_rows_i64(&rows, 0, 1);
    return KVM_OK;
}
