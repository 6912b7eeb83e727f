/* cmd_workers.c - `kvmill workers`: who works, and asking them to stop. */
#include "base/clock.h"
#include "cli/listing.h"
#include "schema/job_state.h"

/* Those that are there; with --json all that have ever been. */
static kvm_status list(kvm_cli *cli, kvm_err *err)
{
    static const char *const columns[] = {"worker",     "classes", "ranks", "live",
                                          "started_at", "seen_at", "drain", NULL};
    kvm_catalogue *c;
    json_t *rows, *row;
    size_t i;
    TRY(kvm_cli_catalogue(cli, false, &c, err));
    if (kvm_cli_has(cli, KVM_OPT_JSON))
        return kvm_cli_show_view(cli, c, "v_workers", NULL, 0, columns, err);
    TRY(kvm_catalogue_view(c, &rows, cli->keep, "v_workers", NULL, 0, 0, err));
    json_t *there = kvm_json_own(cli->keep, json_array());
    if (!there) return kvm_nomem(err, cli->keep);
    json_array_foreach(rows, i, row) if (json_is_null(json_object_get(row, "gone_at")))
        json_array_append(there, row);
    return kvm_cli_print_rows(cli, there, "v_workers", columns, err);
}

static kvm_status drain(kvm_cli *cli, kvm_err *err)
{
    kvm_catalogue *c;
    kvm_str name;
    ptrdiff_t asked, all = 0;
    TRY(kvm_cli_arg(cli, 1, "the worker's name, or its host's", &name, err));
    TRY(kvm_cli_catalogue(cli, false, &c, err));
    for (ptrdiff_t i = 1; i < cli->arg_count; i++) {
        TRY(kvm_workers_drain(c, cli->args[i], &asked, err));
        all += asked;
    }
    if (kvm_cli_has(cli, KVM_OPT_JSON))
        return kvm_cli_print_json(cli, json_pack("{s:I}", "asked", (json_int_t)all),
                                  err);
    printf("%td worker%s asked to stop when %s jobs have ended\n", all,
           all == 1 ? "" : "s", all == 1 ? "its" : "their");
    return KVM_OK;
}

static kvm_status workers(kvm_cli *cli, kvm_err *err)
{
    static const kvm_cli_verb verbs[] = {{"list", list, 0},
                                         {"drain", drain, KVM_ANY_ARGS}};
    return kvm_cli_dispatch(cli, verbs, sizeof verbs / sizeof *verbs, err);
}

static const kvm_option options[] = {
    {KVM_OPT_LIMIT, "limit", "N", "list --json: at most so many rows"},
    {0},
};
const kvm_command kvm_command_workers = {"workers", options, workers, KVM_ANY_ARGS};
