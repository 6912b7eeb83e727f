/* cmd_gc.c - `kvmill gc`: remove what no run in the catalogue needs. */
#include <string.h>

#include "cli/open.h"
#include "reports/number.h"
#include "reports/table.h"
#include "schema/retention.h"
#include "workers/gc.h"

static const char *const names[KVM_SWEPT_COUNT] = {"object", "folder", "temporary"};

typedef struct found {
    json_t *list;
    int64_t bytes;
} found;

static void note(void *ctx, kvm_swept what, const char *path, int64_t bytes)
{
    found *f = ctx;
    f->bytes += bytes;
    json_array_append_new(f->list, json_pack("{s:s, s:s, s:I}", "what", names[what],
                                             "path", path, "bytes", (json_int_t)bytes));
}

static kvm_status print_list(kvm_cli *cli, const found *f, kvm_err *err)
{
    static const kvm_column columns[] = {{"what", {"what", 4}, KVM_COL_TEXT},
                                         {"bytes", {"size", 4}, KVM_COL_NUMBER},
                                         {"path", {"path", 4}, KVM_COL_TEXT}};
    kvm_table t = kvm_table_new(cli->keep, "garbage", KVM_STR("garbage"), columns, 3);
    size_t i;
    json_t *row;
    json_array_foreach(f->list, i, row)
    {
        kvm_table_text(&t, kvm_str_of(json_string_value(json_object_get(row, "what"))),
                       KVM_TONE_PLAIN);
        kvm_table_num(&t, json_number_value(json_object_get(row, "bytes")),
                      KVM_FORMAT_BYTES);
        kvm_table_text(&t, kvm_str_of(json_string_value(json_object_get(row, "path"))),
                       KVM_TONE_PLAIN);
    }
    return kvm_cli_print_table(cli, NULL, &t, err);
}

static kvm_status print_found(kvm_cli *cli, const found *f, bool dry, kvm_err *err)
{
    const size_t n = json_array_size(f->list);
    if (dry && n) TRY(print_list(cli, f, err));
    const kvm_str size = kvm_number(cli->keep, (double)f->bytes, KVM_FORMAT_BYTES);
    printf("%s%zu %s, %.*s\n", dry ? "would remove " : "removed ", n,
           n == 1 ? "thing" : "things", KVM_STR_ARG(size));
    return KVM_OK;
}

/* Captures whose time is over are garbage from then on; a dry run takes that back. */
static kvm_status collect(kvm_cli *cli, kvm_catalogue *c, kvm_store *store,
                          const kvm_sweep *o, int64_t days, kvm_err *err)
{
    ptrdiff_t marked = 0;
    if (!days) return kvm_gc(kvm_cli_store(cli), c, store, o, err);
    if (o->dry) TRY(kvm_catalogue_begin(c, err));
    kvm_status s = kvm_captures_expire(c, (double)days * 86400, &marked, err);
    if (!s) s = kvm_gc(kvm_cli_store(cli), c, store, o, err);
    if (o->dry) kvm_catalogue_rollback(c);
    return s;
}

static kvm_status run(kvm_cli *cli, kvm_err *err)
{
    kvm_catalogue *c;
    kvm_store *store;
    int64_t hours, days;
    found f = {.list = kvm_json_own(cli->keep, json_array())};
    const bool dry = kvm_cli_has(cli, KVM_OPT_DRY_RUN);
    if (!f.list) return kvm_nomem(err, cli->keep);
    TRY(kvm_cli_i64(cli, KVM_OPT_HOURS, 24, 0, &hours, err));
    TRY(kvm_cli_i64(cli, KVM_OPT_CAPTURES, 0, 1, &days, err));
    TRY(kvm_cli_catalogue(cli, false, &c, err));
    TRY(kvm_cli_open_store(cli, cli->keep, &store, err));
    const kvm_sweep o = {(double)hours * 3600, dry, note, &f};
    TRY(collect(cli, c, store, &o, days, err));
    if (!kvm_cli_has(cli, KVM_OPT_JSON)) return print_found(cli, &f, dry, err);
    return kvm_cli_print_json(cli,
                              json_pack("{s:b, s:I, s:I, s:O}", "dry_run", dry, "hours",
                                        (json_int_t)hours, "bytes", (json_int_t)f.bytes,
                                        "found", f.list),
                              err);
}

static const kvm_option options[] = {
    {KVM_OPT_DRY_RUN, "dry-run", NULL,
     "say what and how many bytes, and remove nothing"},
    {KVM_OPT_HOURS, "hours", "N", "only what is so old (24)"},
    {KVM_OPT_CAPTURES, "captures-older-than", "DAYS",
     "also captures that were made so long ago, although runs name them "
     "(KVMILL_CAPTURES_DAYS)"},
    {0},
};
const kvm_command kvm_command_gc = {"gc", options, run, 0};
