/* cmd_teams.c - `kvmill teams`: shares, quotas and tokens. */
#include <math.h>
#include <sys/random.h>

#include "base/clock.h"
#include "cli/listing.h"
#include "cli/team.h"
#include "schema/teams.h"

enum { TOKEN_BYTES = 32 };

static double number(const json_t *row, const char *name)
{
    return json_number_value(json_object_get(row, name));
}

/* Use as it counts today, and beside the part that is a team's by its weight the one
 * that it has had. */
static void add_shares(json_t *rows)
{
    size_t i;
    json_t *row;
    double weights = 0, used = 0;
    const double now = kvm_wall();
    json_array_foreach(rows, i, row)
    {
        const double today =
            kvm_decayed(number(row, "used_s"), now - number(row, "used_at"));
        json_object_set_new(row, "used_now_s", json_real(today));
        weights += number(row, "weight");
        used += today;
    }
    json_array_foreach(rows, i, row)
    {
        json_object_set_new(
            row, "due", json_real(weights > 0 ? number(row, "weight") / weights : 0));
        json_object_set_new(row, "share",
                            json_real(used > 0 ? number(row, "used_now_s") / used : 0));
    }
}

static kvm_status list(kvm_cli *cli, kvm_err *err)
{
    static const char *const columns[] = {
        "team",       "weight",      "due",    "share",     "used_now_s", "live",
        "quota_live", "quota_day_s", "paused", "has_token", NULL};
    kvm_catalogue *c;
    json_t *rows;
    TRY(kvm_cli_catalogue(cli, false, &c, err));
    TRY(kvm_catalogue_view(c, &rows, cli->keep, "v_teams", NULL, 0, 0, err));
    add_shares(rows);
    return kvm_cli_has(cli, KVM_OPT_JSON)
               ? kvm_cli_print_json(cli, json_incref(rows), err)
               : kvm_cli_print_rows(cli, rows, "v_teams", columns, err);
}

/* the catalogue, and the name behind the verb; acting for a team takes its token */
static kvm_status named(kvm_cli *cli, bool make, kvm_catalogue **c, kvm_str *name,
                        kvm_err *err)
{
    TRY(kvm_cli_arg(cli, 1, "the team's name", name, err));
    TRY(kvm_team_check_name(*name, err));
    TRY(kvm_cli_catalogue(cli, make, c, err));
    return kvm_cli_admit(cli, *c, *name, err);
}

static kvm_status said(kvm_cli *cli, kvm_str name, const char *what, kvm_err *err)
{
    if (kvm_cli_has(cli, KVM_OPT_JSON))
        return kvm_cli_print_json(
            cli,
            json_pack("{s:s%, s:s}", "team", name.at, (size_t)name.len, "now", what),
            err);
    printf("team %.*s: %s\n", KVM_STR_ARG(name), what);
    return KVM_OK;
}

static kvm_status add(kvm_cli *cli, kvm_err *err)
{
    kvm_catalogue *c;
    kvm_str name;
    int64_t live, day;
    kvm_team_terms t = {.weight = -1};
    const char *weight = cli->value[KVM_OPT_WEIGHT];
    if (weight && (!kvm_str_to_f64(kvm_str_of(weight), &t.weight) ||
                   !(t.weight > 0 && t.weight <= 1e6)))
        return kvm_fail(err, KVM_USAGE, "--weight: \"%s\" is not above 0 and up to 1e6",
                        kvm_quote(kvm_str_of(weight)).at);
    TRY(kvm_cli_i64(cli, KVM_OPT_QUOTA_LIVE, -1, 0, &live, err));
    TRY(kvm_cli_i64(cli, KVM_OPT_QUOTA_DAY, -1, 0, &day, err));
    t.quota_live = live;
    t.quota_day_s = (double)day;
    TRY(named(cli, true, &c, &name, err));
    TRY(kvm_team_set(c, name, &t, err));
    return said(cli, name, "there", err);
}

static kvm_status pause(kvm_cli *cli, kvm_err *err)
{
    kvm_catalogue *c;
    kvm_str name;
    TRY(named(cli, false, &c, &name, err));
    TRY(kvm_team_pause(c, name, true, err));
    return said(cli, name, "paused", err);
}

static kvm_status resume(kvm_cli *cli, kvm_err *err)
{
    kvm_catalogue *c;
    kvm_str name;
    TRY(named(cli, false, &c, &name, err));
    TRY(kvm_team_pause(c, name, false, err));
    return said(cli, name, "resumed", err);
}

/* Shown once: nothing keeps it. Who has lost it is given another by whoever may
 * write to the database: UPDATE team SET token_sha = NULL WHERE name = '...'. */
static kvm_status token(kvm_cli *cli, kvm_err *err)
{
    kvm_catalogue *c;
    kvm_str name;
    unsigned char bytes[TOKEN_BYTES];
    char text[2 * TOKEN_BYTES + 1];
    TRY(named(cli, false, &c, &name, err));
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return kvm_fail_errno(err, "random bytes");
    for (ptrdiff_t i = 0; i < TOKEN_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    TRY(kvm_team_token(c, name, kvm_str_of(text), err));
    if (kvm_cli_has(cli, KVM_OPT_JSON))
        return kvm_cli_print_json(
            cli,
            json_pack("{s:s%, s:s}", "team", name.at, (size_t)name.len, "token", text),
            err);
    printf("%s\n", text);
    return KVM_OK;
}

static kvm_status teams(kvm_cli *cli, kvm_err *err)
{
    static const kvm_cli_verb verbs[] = {{"list", list, 0},
                                         {"add", add, 1},
                                         {"token", token, 1},
                                         {"pause", pause, 1},
                                         {"resume", resume, 1}};
    return kvm_cli_dispatch(cli, verbs, sizeof verbs / sizeof *verbs, err);
}

static const kvm_option options[] = {
    {KVM_OPT_WEIGHT, "weight", "W", "add: its part of the machines beside others' (1)"},
    {KVM_OPT_QUOTA_LIVE, "quota-live", "N", "add: most jobs at once (0: any)"},
    {KVM_OPT_QUOTA_DAY, "quota-day", "SECONDS",
     "add: most device-seconds a day (0: any)"},
    {0},
};
const kvm_command kvm_command_teams = {"teams", options, teams, 2};
