/* cmd_suites.c - `kvmill suites list | formats | import FORMAT INPUT --out CARD.yaml`:
 * what models are asked, and how public data sets and plain text become that. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/open.h"
#include "jobs/calibration.h"
#include "jobs/suite_import.h"
#include "reports/table.h"

enum { MAX_COLUMNS = 8 };

static kvm_str text_of(kvm_arena *keep, const json_t *v)
{
    if (json_is_string(v)) return kvm_str_of(json_string_value(v));
    return kvm_str_fmt(keep, "%lld", (long long)json_integer_value(v));
}

/* rows as JSON, or these columns of them as a table; rows is owned by keep */
static kvm_status print_rows(kvm_cli *cli, json_t *rows, const char *const *columns,
                             kvm_err *err)
{
    if (kvm_cli_has(cli, KVM_OPT_JSON))
        return kvm_cli_print_json(cli, json_incref(rows), err);
    kvm_column c[MAX_COLUMNS];
    ptrdiff_t n = 0;
    for (; columns[n]; n++)
        c[n] = (kvm_column){columns[n], kvm_str_of(columns[n]), KVM_COL_TEXT};
    kvm_table t = kvm_table_new(cli->keep, "suites", KVM_STR("suites"), c, n);
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row) for (ptrdiff_t k = 0; k < n; k++) kvm_table_text(
        &t, text_of(cli->keep, json_object_get(row, columns[k])), KVM_TONE_PLAIN);
    return kvm_cli_print_table(cli, NULL, &t, err);
}

/* ---- list ---- */

static kvm_status add_card(kvm_cli *cli, json_t *rows, kvm_str path, kvm_err *err)
{
    kvm_suite *s;
    TRY(kvm_suite_read(&s, cli->keep, path, err));
    json_t *row =
        json_pack("{s:s%, s:s, s:I, s:s%, s:f, s:s%, s:s%, s:s%}", "suite", s->name.at,
                  (size_t)s->name.len, "kind", kvm_suite_kind_name(s->kind), "items",
                  (json_int_t)s->count, "metric", s->metric.at ? s->metric.at : "",
                  (size_t)s->metric.len, "chance", s->chance, "licence", s->licence.at,
                  (size_t)s->licence.len, "provenance", s->provenance.at,
                  (size_t)s->provenance.len, "card", path.at, (size_t)path.len);
    if (!row || json_array_append_new(rows, row)) return kvm_nomem(err, cli->keep);
    return KVM_OK;
}

static int by_name(const void *a, const void *b)
{
    return kvm_str_cmp(*(const kvm_str *)a, *(const kvm_str *)b);
}

static kvm_status list(kvm_cli *cli, kvm_err *err)
{
    static const char *const columns[] = {"suite",  "kind",    "items",
                                          "metric", "licence", NULL};
    enum { MAX_CARDS = 256 };
    kvm_str dir, cards[MAX_CARDS];
    ptrdiff_t n = 0;
    json_t *rows = json_array();
    if (!kvm_json_own(cli->keep, rows)) return kvm_nomem(err, cli->keep);
    TRY(kvm_suites_dir(&dir, cli->keep, err));
    DIR *d = opendir(dir.at);
    if (!d)
        return kvm_fail_errno(err, "%.*s (KVMILL_SUITES names another folder)",
                              KVM_STR_ARG(dir));
    for (struct dirent *e; n < MAX_CARDS && (e = readdir(d));)
        if (kvm_str_ends(kvm_str_of(e->d_name), KVM_STR(".yaml")))
            cards[n++] = kvm_path_join(cli->keep, dir, kvm_str_of(e->d_name));
    closedir(d);
    for (ptrdiff_t i = 0; i < n; i++)
        if (!cards[i].at) return kvm_nomem(err, cli->keep);
    qsort(cards, (size_t)n, sizeof *cards, by_name); /* the folder has no order */
    for (ptrdiff_t i = 0; i < n; i++) TRY(add_card(cli, rows, cards[i], err));
    return print_rows(cli, rows, columns, err);
}

/* ---- formats ---- */

static kvm_status formats(kvm_cli *cli, kvm_err *err)
{
    static const char *const columns[] = {"format", "kind", "metric", "input", NULL};
    json_t *rows = json_array();
    if (!kvm_json_own(cli->keep, rows)) return kvm_nomem(err, cli->keep);
    const kvm_import_format *f;
    for (ptrdiff_t i = 0; (f = kvm_import_format_at(i)); i++)
        if (json_array_append_new(
                rows, json_pack("{s:s, s:s, s:s, s:f, s:s, s:s}", "format", f->name,
                                "kind", f->kind, "metric", f->metric, "chance",
                                f->chance, "licence", f->licence, "input", f->input)))
            return kvm_nomem(err, cli->keep);
    return print_rows(cli, rows, columns, err);
}

/* ---- import ---- */

static kvm_status import(kvm_cli *cli, kvm_err *err)
{
    kvm_import_options o = {0};
    kvm_imported done;
    int64_t limit, tokens;
    TRY(kvm_cli_arg(cli, 1, "the format (`kvmill suites formats` lists them)",
                    &o.format, err));
    TRY(kvm_cli_arg(cli, 2, "the input", &o.input, err));
    if (!cli->value[KVM_OPT_OUT])
        return kvm_fail(err, KVM_USAGE, "--out CARD.yaml is missing");
    TRY(kvm_cli_i64(cli, KVM_OPT_LIMIT, 0, 0, &limit, err));
    TRY(kvm_cli_i64(cli, KVM_OPT_TOKENS, 0, 1, &tokens, err));
    if (limit > INT32_MAX || tokens > INT32_MAX)
        return kvm_fail(err, KVM_USAGE, "--limit and --tokens end at %d", INT32_MAX);
    o.card = kvm_str_of(cli->value[KVM_OPT_OUT]);
    o.licence = kvm_str_of(cli->value[KVM_OPT_LICENCE]);
    o.tokenizer = kvm_str_of(cli->value[KVM_OPT_TOKENIZER]);
    o.apart = kvm_str_of(cli->value[KVM_OPT_APART]);
    o.limit = (ptrdiff_t)limit;
    o.tokens = (ptrdiff_t)tokens;
    TRY(kvm_suite_import(&done, cli->keep, &o, err));
    if (done.replaced >= 0)
        fprintf(stderr, "%.*s: replaces a card of %td items\n", KVM_STR_ARG(done.card),
                done.replaced);
    if (kvm_cli_has(cli, KVM_OPT_JSON))
        return kvm_cli_print_json(
            cli,
            json_pack("{s:s%, s:I, s:I, s:s, s:I}", "card", done.card.at,
                      (size_t)done.card.len, "items", (json_int_t)done.items,
                      "left_out", (json_int_t)done.left_out, "why", done.why,
                      "overlapping", (json_int_t)done.overlapping),
            err);
    printf("%.*s: %td items\n", KVM_STR_ARG(done.card), done.items);
    if (done.overlapping)
        printf("%td left out: %d tokens in a row also stand in %s\n", done.overlapping,
               KVM_OVERLAP_TOKENS, cli->value[KVM_OPT_APART]);
    if (done.left_out) printf("%td left out: %s\n", done.left_out, done.why);
    return KVM_OK;
}

static kvm_status run(kvm_cli *cli, kvm_err *err)
{
    kvm_str verb;
    TRY(kvm_cli_arg(cli, 0, "list, formats or import", &verb, err));
    if (kvm_str_eq(verb, KVM_STR("list"))) return list(cli, err);
    if (kvm_str_eq(verb, KVM_STR("formats"))) return formats(cli, err);
    if (kvm_str_eq(verb, KVM_STR("import"))) return import(cli, err);
    return kvm_fail(err, KVM_USAGE,
                    "suites list, suites formats or suites import FORMAT INPUT, not "
                    "\"%s\"",
                    kvm_quote(verb).at);
}

static const kvm_option options[] = {
    {KVM_OPT_OUT, "out", "CARD.yaml", "the card to write; its items go beside it"},
    {KVM_OPT_LIMIT, "limit", "N", "at most so many items, spread evenly (all)"},
    {KVM_OPT_TOKENS, "tokens", "N",
     "text: tokens of a prefix (512); needle: the longest (2048)"},
    {KVM_OPT_TOKENIZER, "tokenizer", "DIR",
     "a checkpoint that counts them; else four bytes are one"},
    {KVM_OPT_APART, "apart", "TEXT",
     "leave out items of which tokens also stand in this calibration text"},
    {KVM_OPT_LICENCE, "licence", "TEXT", "of the data, when not the format's"},
    {0},
};
const kvm_command kvm_command_suites = {"suites", options, run, 3};
