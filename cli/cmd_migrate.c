/* cmd_migrate.c - `kvmill init` and `migrate`: a catalogue of this program's schema, or
 * a copy of one in another database. */
#include "base/file.h"
#include "cli/open.h"
#include "schema/copy.h"

static kvm_status bring_up(kvm_cli *cli, kvm_err *err)
{
    kvm_catalogue *c;
    int from, to;
    TRY(kvm_cli_catalogue(cli, true, &c, err));
    TRY(kvm_catalogue_migrate(c, &from, &to, err));
    if (kvm_cli_has(cli, KVM_OPT_JSON))
        return kvm_cli_print_json(cli, json_pack("{s:i, s:i}", "from", from, "to", to),
                                  err);
    printf("catalogue schema %d\n", to);
    return KVM_OK;
}

static kvm_status show(kvm_cli *cli, const kvm_copied *tables, ptrdiff_t count,
                       kvm_err *err)
{
    json_t *out = json_object();
    for (ptrdiff_t i = 0; i < count; i++)
        json_object_set_new(out, tables[i].table, json_integer(tables[i].rows));
    if (kvm_cli_has(cli, KVM_OPT_JSON)) return kvm_cli_print_json(cli, out, err);
    json_decref(out);
    for (ptrdiff_t i = 0; i < count; i++)
        if (tables[i].rows)
            printf("%-10s %lld\n", tables[i].table, (long long)tables[i].rows);
    printf("copied and compared\n");
    return KVM_OK;
}

static kvm_status copy(kvm_cli *cli, kvm_err *err)
{
    kvm_catalogue *a, *b;
    kvm_copied *tables;
    ptrdiff_t count;
    kvm_str from, to, path;
    if (!kvm_cli_has(cli, KVM_OPT_FROM) || !kvm_cli_has(cli, KVM_OPT_TO))
        return kvm_fail(err, KVM_USAGE, "--from and --to go together");
    TRY(kvm_cli_address(cli, KVM_OPT_FROM, &from, err));
    TRY(kvm_cli_address(cli, KVM_OPT_TO, &to, err));
    if (kvm_catalogue_file(from, &path) && !kvm_path_exists(path))
        return kvm_fail(err, KVM_ENVIRONMENT, "there is no catalogue %.*s",
                        KVM_STR_ARG(path));
    TRY(kvm_catalogue_open(&a, cli->keep, from,
                           &(kvm_catalogue_options){.no_migrate = true}, err));
    TRY(kvm_catalogue_open(&b, cli->keep, to, NULL, err));
    TRY(kvm_catalogue_copy(a, b, &tables, &count, cli->keep, err));
    return show(cli, tables, count, err);
}

static kvm_status migrate(kvm_cli *cli, kvm_err *err)
{
    const bool other = kvm_cli_has(cli, KVM_OPT_FROM) || kvm_cli_has(cli, KVM_OPT_TO);
    return other ? copy(cli, err) : bring_up(cli, err);
}

static const kvm_option migrate_options[] = {
    {KVM_OPT_FROM, "from", "WHERE", "copy this catalogue: a file, or postgres://…"},
    {KVM_OPT_TO, "to", "WHERE", "into this one, which is empty"},
    {0},
};
const kvm_command kvm_command_init = {"init", NULL, bring_up, 0};
const kvm_command kvm_command_migrate = {"migrate", migrate_options, migrate, 0};
