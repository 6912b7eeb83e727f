/* cmd_submit.c - `kvmill submit`: a spec becomes runs that others work on; or every
 * spec that is known does so again. */
#include <stdlib.h>

#include "cli/open.h"
#include "cli/submit.h"
#include "cli/team.h"
#include "scheduler/queue.h"
#include "workers/bounds.h"

static void add_runs(json_t *out, const kvm_cli_plans *p)
{
    for (ptrdiff_t i = 0; i < p->n; i++) {
        kvm_cli_announce(&p->of[i]);
        json_array_append_new(out,
                              json_pack("{s:s%, s:I, s:I}", "pair", p->of[i].pair.at,
                                        (size_t)p->of[i].pair.len, "run",
                                        (json_int_t)p->of[i].submitted.run, "jobs",
                                        (json_int_t)p->of[i].submitted.jobs));
    }
}

static kvm_status submit_file(kvm_cli *cli, kvm_str path, json_t *out, kvm_err *err)
{
    kvm_cli_plans p;
    TRY(kvm_cli_submit(cli, path, &p, err));
    add_runs(out, &p);
    return KVM_OK;
}

/* The files of the team's specs, each once: of every pair that of its newest run. */
static kvm_status known_files(kvm_cli *cli, json_t **files, kvm_err *err)
{
    kvm_catalogue *c;
    json_t *rows, *row, *newest = kvm_json_own(cli->keep, json_object());
    size_t i;
    const char *pair;
    kvm_view_filter team = {"team", {0}, 0};
    *files = kvm_json_own(cli->keep, json_object());
    if (!newest || !*files) return kvm_nomem(err, cli->keep);
    TRY(kvm_cli_team(cli, &team.text, err));
    TRY(kvm_cli_catalogue(cli, false, &c, err));
    TRY(kvm_catalogue_view(c, &rows, cli->keep, "v_runs", &team, 1, 0, err));
    kvm_catalogue_close(c);
    json_array_foreach(rows, i, row) /* by their numbers: the last one stays */
        json_object_set(newest, json_string_value(json_object_get(row, "pair")),
                        json_object_get(row, "file"));
    json_object_foreach(newest, pair, row) if (json_is_string(row))
        json_object_set_new(*files, json_string_value(row), json_true());
    return KVM_OK;
}

/* One that cannot be submitted keeps no other from it; the first failure is the
 * command's. */
static kvm_status refresh(kvm_cli *cli, json_t *out, kvm_err *err)
{
    json_t *files, *yes;
    const char *file;
    kvm_status first = KVM_OK;
    if (cli->arg_count)
        return kvm_fail(err, KVM_USAGE, "--refresh takes no spec: all that are known");
    TRY(known_files(cli, &files, err));
    json_object_foreach(files, file, yes)
    {
        kvm_err why = {0};
        const kvm_status s = submit_file(cli, kvm_str_of(file), out, &why);
        if (!s) continue;
        if (first) fprintf(stderr, "%s\n", why.msg);
        if (!first) *err = why;
        first = first ? first : s;
    }
    return first;
}

/* A scheduler looks every half second anyway: without the server that is all. */
static kvm_status wake(kvm_cli *cli, kvm_str queue, kvm_err *err)
{
    char id[KVM_CATALOGUE_ID];
    kvm_catalogue *c;
    kvm_queue *q;
    kvm_err why = {0};
    TRY(kvm_cli_catalogue(cli, false, &c, err));
    TRY(kvm_catalogue_id(c, id, err));
    kvm_catalogue_close(c);
    const kvm_queue_options o = {.where = queue,
                                 .home = kvm_cli_store(cli),
                                 .catalogue = kvm_str_of(id),
                                 .name = KVM_STR("submit")};
    if (kvm_queue_open(&q, cli->keep, &o, &why) || kvm_queue_wake(q, &why))
        fprintf(stderr, "%s; submitted all the same\n", why.msg);
    return KVM_OK;
}

/* Of a schedule's file, and what that names, a scheduler reads what a worker would. */
static kvm_status bound(kvm_cli *cli, kvm_err *err)
{
    kvm_str allow;
    if (!getenv("KVMILL_TICK")) return KVM_OK;
    TRY(kvm_cli_allow(cli, &allow, err));
    return kvm_bounds_set(allow, kvm_cli_store(cli), err);
}

static kvm_status submit(kvm_cli *cli, kvm_err *err)
{
    kvm_str queue, path = {0};
    json_t *out = kvm_json_own(cli->keep, json_array());
    if (!out) return kvm_nomem(err, cli->keep);
    const bool all = kvm_cli_has(cli, KVM_OPT_REFRESH);
    TRY(bound(cli, err));
    TRY(kvm_cli_queue(cli, &queue, err));
    if (!all) TRY(kvm_cli_arg(cli, 0, "the pair's spec (PAIR.yaml)", &path, err));
    TRY(all ? refresh(cli, out, err) : submit_file(cli, path, out, err));
    TRY(wake(cli, queue, err));
    return kvm_cli_has(cli, KVM_OPT_JSON)
               ? kvm_cli_print_json(cli, json_incref(out), err)
               : KVM_OK;
}

static const kvm_option options[] = {
    {KVM_OPT_AGAIN, "again", NULL, "a new run, timings measured anew"},
    {KVM_OPT_REFRESH, "refresh", NULL,
     "no spec, but all that the team has: what has changed is done again"},
    KVM_CLI_TEAM_OPTION,
    {KVM_OPT_RANKS, "ranks", "N", "steps are for gangs of so many processes (1)"},
    {KVM_OPT_QUEUE, "queue", "URL", "wake the scheduler of this queue (KVMILL_QUEUE)"},
    {0},
};
const kvm_command kvm_command_submit = {"submit", options, submit, 1};
