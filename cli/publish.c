#include "cli/publish.h"

#include "base/file.h"

enum { MAX_REPORT_BYTES = 1 << 30 };

static kvm_status put(kvm_cli *cli, kvm_store *store, const char *sha, int64_t bytes,
                      kvm_str dir, kvm_str name, kvm_str *path, kvm_err *err)
{
    kvm_arena *keep = cli->keep;
    kvm_str from, text;
    *path = kvm_path_join(keep, dir, name);
    if (!path->at) return kvm_nomem(err, keep);
    TRY(kvm_store_get(store, &from, keep, sha, bytes, err));
    TRY(kvm_file_read(&text, keep, from, MAX_REPORT_BYTES, err));
    return kvm_file_publish(*path, text, *keep, err);
}

/* "csv.suites" of pair "a-b" is the file a-b.suites.csv; "html" is a-b.html */
static kvm_str file_name(kvm_arena *keep, kvm_str pair, kvm_str output)
{
    kvm_str extension, table;
    if (kvm_str_cut(output, '.', &extension, &table))
        return kvm_str_fmt(keep, "%.*s.%.*s.%.*s", KVM_STR_ARG(pair),
                           KVM_STR_ARG(table), KVM_STR_ARG(extension));
    return kvm_str_fmt(keep, "%.*s.%.*s", KVM_STR_ARG(pair), KVM_STR_ARG(output));
}

static kvm_status put_all(kvm_cli *cli, kvm_catalogue *c, kvm_store *store,
                          kvm_str pair, int64_t run, kvm_str dir, kvm_str *html,
                          kvm_str *json, kvm_err *err)
{
    const char *outputs[] = {"html", "json"};
    kvm_str *const paths[] = {html, json};
    for (int i = 0; i < 2; i++) {
        char sha[65];
        int64_t bytes;
        const kvm_str name = file_name(cli->keep, pair, kvm_str_of(outputs[i]));
        TRY(kvm_catalogue_output(c, pair, run, "report", outputs[i], sha, &bytes, err));
        TRY(put(cli, store, sha, bytes, dir, name, paths[i], err));
    }
    json_t *rows, *row;
    size_t i;
    const kvm_view_filter f[] = {{"pair", pair, 0}, {"kind", KVM_STR("report"), 0}};
    TRY(kvm_catalogue_view(c, &rows, cli->keep, "v_artefacts", f, 2, 0, err));
    json_array_foreach(rows, i, row)
    {
        const kvm_str output =
            kvm_str_of(json_string_value(json_object_get(row, "output")));
        if (!kvm_str_starts(output, KVM_STR("csv."))) continue;
        if (run && json_integer_value(json_object_get(row, "run")) != run) continue;
        kvm_str path;
        TRY(put(cli, store, json_string_value(json_object_get(row, "sha")),
                json_integer_value(json_object_get(row, "bytes")), dir,
                file_name(cli->keep, pair, output), &path, err));
    }
    return KVM_OK;
}

kvm_status kvm_cli_publish_report(kvm_cli *cli, kvm_catalogue *c, kvm_store *store,
                                  kvm_str pair, int64_t run, kvm_str *html,
                                  kvm_str *json, kvm_err *err)
{
    const kvm_str dir =
        kvm_path_join(cli->keep, kvm_cli_store(cli), KVM_STR("reports"));
    if (!dir.at) return kvm_nomem(err, cli->keep);
    TRY(kvm_dir_make(dir, err));
    return put_all(cli, c, store, pair, run, dir, html, json, err);
}
