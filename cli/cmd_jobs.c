/* cmd_jobs.c - `kvmill jobs`: the catalogue's views of them; its other verbs are in
 * job_*.c. */
#include <string.h>

#include "base/clock.h"
#include "cli/jobs.h"
#include "cli/listing.h"
#include "cli/team.h"
#include "reports/number.h"
#include "schema/job_state.h"

kvm_status kvm_cli_job_id(kvm_cli *cli, ptrdiff_t i, int64_t *id, kvm_err *err)
{
    kvm_str text;
    TRY(kvm_cli_arg(cli, i, "the job's number", &text, err));
    if (!kvm_str_to_i64(text, id) || *id < 1)
        return kvm_fail(err, KVM_USAGE, "\"%s\" is not a job's number",
                        kvm_quote(text).at);
    return KVM_OK;
}

kvm_status kvm_cli_find_job(kvm_cli *cli, kvm_catalogue **c, int64_t *id, kvm_err *err)
{
    kvm_job_state now;
    TRY(kvm_cli_job_id(cli, 1, id, err));
    TRY(kvm_cli_catalogue(cli, false, c, err));
    if (kvm_job_state_of(*c, *id, &now, NULL) != KVM_NOTFOUND) return KVM_OK;
    return kvm_fail(err, KVM_NOTFOUND,
                    "there is no job %lld; `kvmill jobs list` has those there are",
                    (long long)*id);
}

static kvm_status check_state(const kvm_cli *cli, kvm_str name, kvm_err *err)
{
    kvm_job_state state;
    kvm_text names = {0};
    if (kvm_state_find(name, &state)) return KVM_OK;
    for (int i = 0; i < KVM_STATE_COUNT; i++)
        kvm_text_addf(&names, "%s%s", i ? ", " : "", kvm_state_name((kvm_job_state)i));
    const kvm_quoted quoted = kvm_quote(name);
    const kvm_status s = kvm_fail(
        err, KVM_USAGE, "%s: \"%s\" is no state; there are %.*s",
        cli->from[KVM_OPT_STATE], quoted.at, KVM_STR_ARG(kvm_text_str(&names)));
    kvm_text_free(&names);
    return s;
}

/* of the latest claim: to its end, or so far */
static void add_took(json_t *row)
{
    const json_t *from = json_object_get(row, "started_at");
    const json_t *to = json_object_get(row, "finished_at");
    if (!json_is_real(from)) return;
    const char *state = json_string_value(json_object_get(row, "state"));
    const bool runs = !strcmp(state, "running") || !strcmp(state, "cancelling");
    if (!json_is_real(to) && !runs) return;
    const double end = json_is_real(to) ? json_real_value(to) : kvm_wall();
    json_object_set_new(
        row, "took",
        json_string(
            kvm_numeral_of(end - json_real_value(from), KVM_FORMAT_SECONDS).at));
}

/* --state and --team; KVMILL_TEAM is for whom one acts, and hides nothing */
static kvm_status read_filters(const kvm_cli *cli, kvm_view_filter f[2], ptrdiff_t *n,
                               kvm_err *err)
{
    *n = 0;
    if (kvm_cli_has(cli, KVM_OPT_STATE)) {
        f[*n] = (kvm_view_filter){"state", kvm_str_of(cli->value[KVM_OPT_STATE]), 0};
        TRY(check_state(cli, f[(*n)++].text, err));
    }
    if (kvm_cli_has(cli, KVM_OPT_TEAM) &&
        kvm_str_starts(kvm_str_of(cli->from[KVM_OPT_TEAM]), KVM_STR("--")))
        f[(*n)++] = (kvm_view_filter){"team", kvm_str_of(cli->value[KVM_OPT_TEAM]), 0};
    return KVM_OK;
}

static kvm_status list(kvm_cli *cli, kvm_err *err)
{
    static const char *const columns[] = {"job",     "run",        "pair", "label",
                                          "state",   "started_at", "took", "attempt",
                                          "message", NULL};
    kvm_catalogue *c;
    json_t *rows, *row;
    size_t i;
    int64_t limit;
    kvm_view_filter f[2];
    ptrdiff_t n;
    TRY(read_filters(cli, f, &n, err));
    TRY(kvm_cli_catalogue(cli, false, &c, err));
    if (kvm_cli_has(cli, KVM_OPT_JSON))
        return kvm_cli_show_view(cli, c, "v_queue", f, n, columns, err);
    TRY(kvm_cli_i64(cli, KVM_OPT_LIMIT, 0, 0, &limit, err));
    TRY(kvm_catalogue_view(c, &rows, cli->keep, "v_queue", f, n, (ptrdiff_t)limit,
                           err));
    json_array_foreach(rows, i, row)
    {
        add_took(row);
        if (json_integer_value(json_object_get(row, "paused")))
            json_object_set_new(
                row, "state",
                json_sprintf("%s, paused",
                             json_string_value(json_object_get(row, "state"))));
    }
    return kvm_cli_print_rows(cli, rows, "v_queue", columns, err);
}

static kvm_status show(kvm_cli *cli, kvm_err *err)
{
    static const char *const columns[] = {"attempt",    "outcome",  "status", "message",
                                          "started_at", "ended_at", "log",    NULL};
    kvm_catalogue *c;
    kvm_view_filter f = {"job", {0}, 0};
    TRY(kvm_cli_find_job(cli, &c, &f.number, err));
    return kvm_cli_show_view(cli, c, "v_attempts", &f, 1, columns, err);
}

static kvm_status artefacts(kvm_cli *cli, kvm_err *err)
{
    static const char *const columns[] = {"run", "job",   "label", "output",
                                          "sha", "bytes", NULL};
    kvm_catalogue *c;
    kvm_view_filter f = {"pair", {0}, 0};
    TRY(kvm_cli_catalogue(cli, false, &c, err));
    if (cli->arg_count > 1) {
        f.text = cli->args[1];
        TRY(kvm_cli_check_pair(cli, c, f.text, err));
    }
    return kvm_cli_show_view(cli, c, "v_artefacts", &f, cli->arg_count > 1, columns,
                             err);
}

static kvm_status jobs(kvm_cli *cli, kvm_err *err)
{
    static const kvm_cli_verb verbs[] = {
        {"list", list, 0},
        {"show", show, 1},
        {"logs", kvm_cli_job_logs, 1},
        {"watch", kvm_cli_job_watch, 0},
        {"artefacts", artefacts, 1},
        {"cancel", kvm_cli_job_cancel, 1},
        {"retry", kvm_cli_job_retry, 1},
        {"pause", kvm_cli_job_pause, KVM_ANY_ARGS},
        {"resume", kvm_cli_job_resume, KVM_ANY_ARGS},
        {"priority", kvm_cli_job_priority, KVM_ANY_ARGS}};
    return kvm_cli_dispatch(cli, verbs, sizeof verbs / sizeof *verbs, err);
}

static const kvm_option options[] = {
    {KVM_OPT_STATE, "state", "NAME", "list: only jobs in this state"},
    {KVM_OPT_LIMIT, "limit", "N", "list: at most so many rows"},
    {KVM_OPT_FOLLOW, "follow", NULL, "logs: go on until the attempt ends"},
    {KVM_OPT_RUN, "run", "N", "pause, resume, priority: all of this run's"},
    {KVM_OPT_TEAM, "team", "NAME",
     "list: only this team's; else for whom (KVMILL_TEAM), its token in KVMILL_TOKEN"},
    {0},
};
const kvm_command kvm_command_jobs = {"jobs", options, jobs, KVM_ANY_ARGS};
