/* cmd_schedules.c - `kvmill schedules`: specs that a scheduler submits by the clock. */
#include <math.h>

#include "base/clock.h"
#include "base/file.h"
#include "cli/listing.h"
#include "cli/team.h"
#include "jobs/spec.h"
#include "scheduler/schedule.h"
#include "schema/teams.h"

enum { SHOWN = 3 };

/* "next": the three ticks to come; of one that is paused or cannot be read none */
static kvm_status add_next(kvm_cli *cli, json_t *row, kvm_err *err)
{
    kvm_schedule s;
    kvm_err why = {0};
    json_t *list = json_array();
    int64_t at = (int64_t)floor(kvm_wall());
    json_object_set_new(row, "next_at", list);
    if (json_integer_value(json_object_get(row, "paused"))) return KVM_OK;
    if (kvm_schedule_read(
            &s, cli->keep, kvm_str_of(json_string_value(json_object_get(row, "cron"))),
            kvm_str_of(json_string_value(json_object_get(row, "zone"))), &why)) {
        fprintf(stderr, "%s: %s\n", json_string_value(json_object_get(row, "schedule")),
                why.msg);
        return KVM_OK;
    }
    for (int i = 0; i < SHOWN; i++) {
        const kvm_str text =
            kvm_cli_time(cli->keep, (double)(at = kvm_schedule_next(&s, at)));
        if (!text.at) return kvm_nomem(err, cli->keep);
        json_array_append_new(list, json_string(text.at));
    }
    return KVM_OK;
}

static json_t *joined(const json_t *list)
{
    size_t i;
    json_t *one;
    kvm_text t = {0};
    json_array_foreach(list, i, one)
        kvm_text_addf(&t, "%s%s", i ? " " : "", json_string_value(one));
    json_t *text = json_stringn(t.at ? t.at : "-", t.at ? (size_t)t.len : 1);
    kvm_text_free(&t);
    return text;
}

static kvm_status list_those(kvm_cli *cli, kvm_catalogue *c, const kvm_view_filter *f,
                             ptrdiff_t n, kvm_err *err)
{
    static const char *const columns[] = {
        "schedule",     "team",        "cron",    "zone", "catch_up", "paused",
        "last_tick_at", "last_status", "next_at", "file", NULL};
    json_t *rows, *row;
    size_t i;
    TRY(kvm_catalogue_view(c, &rows, cli->keep, "v_schedules", f, n, 0, err));
    json_array_foreach(rows, i, row) TRY(add_next(cli, row, err));
    if (kvm_cli_has(cli, KVM_OPT_JSON))
        return kvm_cli_print_json(cli, json_incref(rows), err);
    json_array_foreach(rows, i, row)
        json_object_set_new(row, "next_at", joined(json_object_get(row, "next_at")));
    return kvm_cli_print_rows(cli, rows, "v_schedules", columns, err);
}

static kvm_status list(kvm_cli *cli, kvm_err *err)
{
    kvm_catalogue *c;
    TRY(kvm_cli_catalogue(cli, false, &c, err));
    return list_those(cli, c, NULL, 0, err);
}

/* the catalogue, the team and the name behind the verb */
static kvm_status named(kvm_cli *cli, bool make, kvm_catalogue **c, kvm_str *team,
                        kvm_str *name, kvm_err *err)
{
    TRY(kvm_cli_arg(cli, 1, "the schedule's name", name, err));
    TRY(kvm_team_check_name(*name, err));
    TRY(kvm_cli_team(cli, team, err));
    TRY(kvm_cli_catalogue(cli, make, c, err));
    return kvm_cli_admit(cli, *c, *team, err);
}

/* The spec is read whole, so that a mistake is told now and not at night. Its models
 * are not opened: they may come later. */
static kvm_status add(kvm_cli *cli, kvm_err *err)
{
    kvm_catalogue *c;
    kvm_str file;
    kvm_schedule read;
    kvm_spec *specs;
    ptrdiff_t n;
    kvm_schedule_row s = {.again = kvm_cli_has(cli, KVM_OPT_AGAIN)};
    const char *cron = cli->value[KVM_OPT_CRON], *zone = cli->value[KVM_OPT_ZONE];
    const char *catch_up = cli->value[KVM_OPT_CATCH_UP];
    TRY(kvm_cli_arg(cli, 2, "the pair's spec (PAIR.yaml)", &file, err));
    if (!cron || !zone)
        return kvm_fail(err, KVM_USAGE,
                        "--cron and --zone are needed: --cron \"30 2 * * mon-fri\" "
                        "--zone Europe/Berlin");
    s.cron = kvm_str_of(cron);
    s.zone = kvm_str_of(zone);
    s.catch_up = kvm_str_of(catch_up ? catch_up : "one");
    if (!kvm_catch_up_known(s.catch_up))
        return kvm_fail(err, KVM_USAGE, "--catch-up: \"%s\" is none of one, all, none",
                        kvm_quote(s.catch_up).at);
    TRY(kvm_schedule_read(&read, cli->keep, s.cron, s.zone, err));
    TRY(kvm_specs_read(&specs, &n, cli->keep, file, err));
    TRY(kvm_path_absolute(&s.file, cli->keep, file, err));
    TRY(named(cli, true, &c, &s.team, &s.name, err));
    TRY(kvm_schedule_add(c, &s, err));
    const kvm_view_filter f[] = {{"team", s.team, 0}, {"schedule", s.name, 0}};
    return list_those(cli, c, f, 2, err);
}

static kvm_status said(kvm_cli *cli, kvm_str name, const char *what, kvm_err *err)
{
    if (kvm_cli_has(cli, KVM_OPT_JSON))
        return kvm_cli_print_json(cli,
                                  json_pack("{s:s%, s:s}", "schedule", name.at,
                                            (size_t)name.len, "now", what),
                                  err);
    printf("schedule %.*s: %s\n", KVM_STR_ARG(name), what);
    return KVM_OK;
}

static kvm_status forget(kvm_cli *cli, kvm_err *err)
{
    kvm_catalogue *c;
    kvm_str team, name;
    TRY(named(cli, false, &c, &team, &name, err));
    TRY(kvm_schedule_remove(c, team, name, err));
    return said(cli, name, "removed", err);
}

static kvm_status set_paused(kvm_cli *cli, bool paused, kvm_err *err)
{
    kvm_catalogue *c;
    kvm_str team, name;
    TRY(named(cli, false, &c, &team, &name, err));
    TRY(kvm_schedule_pause(c, team, name, paused, err));
    return said(cli, name, paused ? "paused" : "resumed", err);
}

static kvm_status pause(kvm_cli *cli, kvm_err *err)
{
    return set_paused(cli, true, err);
}
static kvm_status resume(kvm_cli *cli, kvm_err *err)
{
    return set_paused(cli, false, err);
}

static kvm_status schedules(kvm_cli *cli, kvm_err *err)
{
    static const kvm_cli_verb verbs[] = {{"list", list, 0},
                                         {"add", add, 2},
                                         {"remove", forget, 1},
                                         {"pause", pause, 1},
                                         {"resume", resume, 1}};
    return kvm_cli_dispatch(cli, verbs, sizeof verbs / sizeof *verbs, err);
}

static const kvm_option options[] = {
    {KVM_OPT_CRON, "cron", "TIMES",
     "add: minute, hour, day of the month, month, day of the week"},
    {KVM_OPT_ZONE, "zone", "NAME", "add: whose clocks show it: Europe/Berlin, UTC"},
    {KVM_OPT_CATCH_UP, "catch-up", "HOW",
     "add: of times at which no scheduler ran submit once for all, all or none (one)"},
    {KVM_OPT_AGAIN, "again", NULL, "add: each time a new run, timings measured anew"},
    KVM_CLI_TEAM_OPTION,
    {0},
};
const kvm_command kvm_command_schedules = {"schedules", options, schedules, 3};
