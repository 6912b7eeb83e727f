/* cmd_pairs.c - `kvmill pairs`: how they stand. */
#include "cli/listing.h"

static kvm_status list(kvm_cli *cli, kvm_err *err)
{
    static const char *const columns[] = {
        "pair", "runs", "last_run", "last_state", "stale", "stale_why", NULL};
    kvm_catalogue *c;
    TRY(kvm_cli_catalogue(cli, false, &c, err));
    return kvm_cli_show_view(cli, c, "v_pairs", NULL, 0, columns, err);
}

static kvm_status show(kvm_cli *cli, kvm_err *err)
{
    static const char *const columns[] = {"run",   "suite", "metric", "arm",
                                          "items", "mean",  NULL};
    kvm_catalogue *c;
    kvm_view_filter f = {"pair", {0}, 0};
    TRY(kvm_cli_arg(cli, 1, "the pair's name", &f.text, err));
    TRY(kvm_cli_catalogue(cli, false, &c, err));
    TRY(kvm_cli_check_pair(cli, c, f.text, err));
    return kvm_cli_show_view(cli, c, "v_quality", &f, 1, columns, err);
}

static kvm_status pairs(kvm_cli *cli, kvm_err *err)
{
    static const kvm_cli_verb verbs[] = {{"list", list, 0}, {"show", show, 1}};
    return kvm_cli_dispatch(cli, verbs, sizeof verbs / sizeof *verbs, err);
}

static const kvm_option options[] = {
    {KVM_OPT_LIMIT, "limit", "N", "at most so many rows"},
    {0},
};
const kvm_command kvm_command_pairs = {"pairs", options, pairs, 2};
