/* cmd_report.c - `kvmill report`: the reports of a pair, a spec or a run, or of all
 * pairs, out of the store again. */
#include "cli/find.h"
#include "cli/publish.h"

static kvm_status one(kvm_cli *cli, kvm_catalogue *c, kvm_store *store,
                      kvm_found_report of, json_t *out, kvm_err *err)
{
    kvm_str html, json;
    TRY(kvm_cli_publish_report(cli, c, store, of.pair, of.run, &html, &json, err));
    if (!kvm_cli_has(cli, KVM_OPT_JSON)) {
        const kvm_str shown = kvm_cli_shown(cli->keep, html);
        printf("%.*s\n", KVM_STR_ARG(shown));
    }
    json_array_append_new(out, json_pack("{s:s%, s:s%, s:s%}", "pair", of.pair.at,
                                         (size_t)of.pair.len, "html", html.at,
                                         (size_t)html.len, "json", json.at,
                                         (size_t)json.len));
    return KVM_OK;
}

static kvm_status all(kvm_cli *cli, kvm_catalogue *c, kvm_store *store, json_t *out,
                      kvm_err *err)
{
    json_t *rows, *row;
    size_t i;
    TRY(kvm_catalogue_view(c, &rows, cli->keep, "v_pairs", NULL, 0, 0, err));
    json_array_foreach(rows, i, row)
    {
        const kvm_found_report of = {
            .pair = kvm_str_of(json_string_value(json_object_get(row, "pair")))};
        const kvm_status s = one(cli, c, store, of, out, err);
        if (s == KVM_NOTFOUND)
            *err = (kvm_err){0}; /* a pair without a finished report */
        else if (s)
            return s;
    }
    return KVM_OK;
}

static kvm_status named(kvm_cli *cli, kvm_catalogue *c, kvm_store *store, kvm_str what,
                        json_t *out, kvm_err *err)
{
    kvm_found_report *found;
    ptrdiff_t n;
    int64_t run;
    TRY(kvm_cli_find_reports(cli, c, what, &found, &n, err));
    if (kvm_cli_has(cli, KVM_OPT_RUN)) {
        if (found[0].run)
            return kvm_fail(err, KVM_USAGE,
                            "\"%s\" says which runs already: leave --run out, or give "
                            "it with the pair's name",
                            kvm_quote(what).at);
        TRY(kvm_cli_i64(cli, KVM_OPT_RUN, 0, 1, &run, err));
        found[0].run = run;
    }
    for (ptrdiff_t i = 0; i < n; i++) TRY(one(cli, c, store, found[i], out, err));
    return KVM_OK;
}

static kvm_status run(kvm_cli *cli, kvm_err *err)
{
    kvm_catalogue *c;
    kvm_store *store;
    json_t *out = json_array();
    if (!kvm_json_own(cli->keep, out)) return kvm_nomem(err, cli->keep);
    if (kvm_cli_has(cli, KVM_OPT_RUN) && cli->arg_count != 1)
        return kvm_fail(err, KVM_USAGE, "--run is of one pair: name it");
    TRY(kvm_cli_catalogue(cli, false, &c, err));
    TRY(kvm_cli_open_store(cli, cli->keep, &store, err));
    if (cli->arg_count == 0) TRY(all(cli, c, store, out, err));
    for (ptrdiff_t i = 0; i < cli->arg_count; i++)
        TRY(named(cli, c, store, cli->args[i], out, err));
    return kvm_cli_has(cli, KVM_OPT_JSON)
               ? kvm_cli_print_json(cli, json_incref(out), err)
               : KVM_OK;
}

static const kvm_option options[] = {
    {KVM_OPT_RUN, "run", "N", "that of this run of the pair, not of the newest"},
    {0},
};
const kvm_command kvm_command_report = {"report", options, run, KVM_ANY_ARGS};
