#include "cli/team.h"

#include <stdlib.h>

#include "schema/schedules.h"
#include "schema/teams.h"

kvm_status kvm_cli_team(const kvm_cli *cli, kvm_str *team, kvm_err *err)
{
    *team = KVM_STR("default");
    if (!kvm_cli_has(cli, KVM_OPT_TEAM)) return KVM_OK;
    *team = kvm_str_of(cli->value[KVM_OPT_TEAM]);
    return kvm_err_prefix(err, kvm_team_check_name(*team, err), "%s",
                          cli->from[KVM_OPT_TEAM]);
}

kvm_status kvm_cli_admit(kvm_cli *cli, kvm_catalogue *c, kvm_str team, kvm_err *err)
{
    (void)cli;
    return kvm_team_admit(c, team, kvm_str_of(getenv("KVMILL_TOKEN")), err);
}

kvm_status kvm_cli_admit_file(kvm_cli *cli, kvm_catalogue *c, kvm_str team,
                              kvm_str file, kvm_err *err)
{
    kvm_str schedule, at;
    kvm_tick_id tick;
    int64_t instant;
    bool yes = false;
    const char *fired = getenv("KVMILL_TICK");
    if (fired && kvm_str_cut(kvm_str_of(fired), ':', &schedule, &at) &&
        kvm_str_to_i64(schedule, &tick.schedule) && kvm_str_to_i64(at, &instant)) {
        tick.at = (double)instant;
        TRY(kvm_tick_admits(c, tick, team, file, &yes, err));
    }
    return yes ? KVM_OK : kvm_cli_admit(cli, c, team, err);
}

kvm_status kvm_cli_admit_which(kvm_cli *cli, kvm_catalogue *c, kvm_which which,
                               kvm_err *err)
{
    json_t *rows;
    const char *what = which.run ? "run" : "job";
    const kvm_view_filter f = {what, {0}, which.run ? which.run : which.job};
    TRY(kvm_catalogue_view(c, &rows, cli->keep, which.run ? "v_runs" : "v_queue", &f, 1,
                           0, err));
    const char *team =
        json_string_value(json_object_get(json_array_get(rows, 0), "team"));
    if (!team)
        return kvm_fail(err, KVM_NOTFOUND,
                        "there is no %s %lld; `kvmill jobs list` has those there are",
                        what, (long long)f.number);
    const char *given = cli->value[KVM_OPT_TEAM];
    if (given && kvm_str_starts(kvm_str_of(cli->from[KVM_OPT_TEAM]), KVM_STR("--")) &&
        !kvm_str_eq(kvm_str_of(given), kvm_str_of(team)))
        return kvm_fail(err, KVM_USAGE, "%s %lld is of team %s", what,
                        (long long)f.number, team);
    return kvm_cli_admit(cli, c, kvm_str_of(team), err);
}
