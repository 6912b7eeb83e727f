/* cmd_export.c - `kvmill export WHAT --out FILE`: a translator, or any other artefact,
 * out of the store. */
#include <unistd.h>

#include "base/file.h"
#include "cli/find.h"

enum { BLOCK = 1 << 20 };

static kvm_status copy(FILE *from, kvm_str path, kvm_out *to, int64_t *bytes,
                       kvm_arena scratch, kvm_err *err)
{
    char *block = kvm_new(&scratch, char, BLOCK);
    if (!block) return kvm_nomem(err, &scratch);
    *bytes = 0;
    for (size_t n; (n = fread(block, 1, BLOCK, from)) > 0; *bytes += (int64_t)n)
        TRY(kvm_out_write(to, block, n, err));
    return ferror(from) ? kvm_fail_errno(err, "%.*s", KVM_STR_ARG(path)) : KVM_OK;
}

static kvm_status run(kvm_cli *cli, kvm_err *err)
{
    kvm_str what;
    kvm_found found;
    kvm_out *out;
    int64_t bytes;
    TRY(kvm_cli_arg(cli, 0, "what to export (PAIR.yaml, a run's number or a hash)",
                    &what, err));
    if (!cli->value[KVM_OPT_OUT])
        return kvm_fail(err, KVM_USAGE, "--out FILE is missing");
    TRY(kvm_cli_find(cli, what, &found, err));
    const kvm_str path = kvm_str_of(cli->value[KVM_OPT_OUT]);
    FILE *from = fopen(found.path.at, "rb");
    if (!from) return kvm_fail_errno(err, "%.*s", KVM_STR_ARG(found.path));
    kvm_status s = kvm_out_begin(&out, cli->keep, path, err);
    if (!s) s = copy(from, found.path, out, &bytes, *cli->keep, err);
    fclose(from);
    TRY(s);
    TRY(kvm_out_publish(out, NULL, err));
    if (kvm_cli_has(cli, KVM_OPT_JSON))
        return kvm_cli_print_json(cli,
                                  json_pack("{s:s, s:I, s:s*, s:s*}", "file", path.at,
                                            "bytes", (json_int_t)bytes, "what",
                                            found.what, "sha", found.sha),
                                  err);
    kvm_cli_say_found(&found);
    printf("%s: %lld bytes\n", kvm_cli_shown(cli->keep, path).at, (long long)bytes);
    return KVM_OK;
}

static const kvm_option options[] = {
    {KVM_OPT_OUT, "out", "FILE", "the file to write"},
    KVM_CLI_CLOSED_FORM,
    {0},
};
const kvm_command kvm_command_export = {"export", options, run, 1};
