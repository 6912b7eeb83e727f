#include "cli/find.h"

#include <string.h>

#include "base/file.h"
#include "base/hash.h"

enum { LEAST_DIGITS = 4, HASH_DIGITS = 64, SHOWN_DIGITS = 12 };

/* Steps that make a translator, by what it is called. A run's is what the first of
 * those up to FIT has made, from CHOOSE on where the closed form is asked for. */
enum { DISTILL, CHOOSE, FIT, MLP, TRANSLATOR_COUNT };
static const struct {
    const char *kind, *what;
} translators[TRANSLATOR_COUNT] = {
    [DISTILL] = {"distill", "distilled translator"},
    [CHOOSE] = {"choose", "closed-form translator"},
    [FIT] = {"fit", "closed-form translator"},
    [MLP] = {"mlp", "MLP translator"},
};

typedef struct finding {
    kvm_cli *cli;
    kvm_catalogue *c;
} finding;

static const char *text(const json_t *row, const char *key)
{
    const char *v = json_string_value(json_object_get(row, key));
    return v ? v : "";
}

static kvm_status open_store(finding *f, kvm_cli *cli, kvm_err *err)
{
    f->cli = cli;
    return kvm_cli_catalogue(cli, false, &f->c, err);
}

/* what an artefact is called: a translator by how it was made, else its output */
static const char *called(const json_t *row)
{
    const char *output = text(row, "output"), *kind = text(row, "kind");
    for (int i = 0; i < TRANSLATOR_COUNT; i++)
        if (!strcmp(output, "translator") && !strcmp(kind, translators[i].kind))
            return translators[i].what;
    return output;
}

static kvm_status take(const finding *f, const json_t *row, kvm_found *out,
                       kvm_err *err)
{
    kvm_store *store;
    kvm_arena *keep = f->cli->keep;
    const kvm_str what = kvm_str_copy(keep, kvm_str_of(called(row)));
    const kvm_str sha = kvm_str_copy(keep, kvm_str_of(text(row, "sha")));
    if (!what.at || !sha.at) return kvm_nomem(err, keep);
    out->what = what.at;
    out->sha = sha.at;
    TRY(kvm_cli_open_store(f->cli, keep, &store, err));
    return kvm_store_get(store, &out->path, keep, sha.at,
                         json_integer_value(json_object_get(row, "bytes")), err);
}

/* The step of a kind that is of the run itself: those of its ablations and candidates
 * are named otherwise. NULL: none is done. */
static kvm_status made_by(const finding *f, int64_t run, const char *kind,
                          const json_t **out, kvm_err *err)
{
    const kvm_view_filter filters[] = {{"run", {0}, run},
                                       {"kind", kvm_str_of(kind), 0},
                                       {"output", KVM_STR("translator"), 0}};
    json_t *rows, *row;
    size_t i;
    *out = NULL;
    TRY(kvm_catalogue_view(f->c, &rows, f->cli->keep, "v_artefacts", filters, 3, 0,
                           err));
    json_array_foreach(rows, i, row)
    {
        const kvm_str label = kvm_str_of(text(row, "label"));
        const ptrdiff_t n = (ptrdiff_t)strlen(kind);
        if (label.len > n && kvm_str_starts(label, kvm_str_of(kind)) &&
            kvm_str_eq(kvm_str_slice(label, n + 1, label.len),
                       kvm_str_of(text(row, "pair"))))
            *out = row;
    }
    return KVM_OK;
}

/* what was distilled, unless the closed form is asked for; else what was chosen among
 * fits, or the one fit */
static kvm_status translator_of(const finding *f, int64_t run, const json_t **out,
                                kvm_err *err)
{
    *out = NULL;
    for (int i = kvm_cli_has(f->cli, KVM_OPT_CLOSED_FORM) ? CHOOSE : DISTILL;
         !*out && i <= FIT; i++)
        TRY(made_by(f, run, translators[i].kind, out, err));
    return KVM_OK;
}

static kvm_status not_run(kvm_cli *cli, const char *what, const kvm_spec *spec,
                          bool others, kvm_err *err)
{
    const kvm_str home = kvm_cli_store(cli);
    return kvm_fail(err, KVM_NOTFOUND,
                    "the store %.*s has no %s of this spec%s: `kvmill run %.*s` "
                    "makes it (--store names another store)",
                    KVM_STR_ARG(home), what,
                    others ? ", only of others that call their pair the same" : "",
                    KVM_STR_ARG(spec->file));
}

/* as v_runs has it */
static kvm_status spec_hash(kvm_cli *cli, const kvm_spec *spec, char sha[65],
                            kvm_err *err)
{
    kvm_str canonical;
    TRY(kvm_json_canonical(&canonical, cli->keep, spec->root.v, err));
    return kvm_sha_of(canonical, sha, err);
}

kvm_status kvm_cli_spec_translator(kvm_cli *cli, const kvm_spec *spec, kvm_found *out,
                                   kvm_err *err)
{
    finding f;
    *out = (kvm_found){.source = spec->source_path, .target = spec->target_path};
    char sha[65];
    json_t *rows;
    const json_t *row = NULL;
    bool others = false;
    TRY(open_store(&f, cli, err));
    TRY(spec_hash(cli, spec, sha, err));
    const kvm_view_filter filter = {"pair", spec->name, 0};
    TRY(kvm_catalogue_view(f.c, &rows, cli->keep, "v_runs", &filter, 1, 0, err));
    for (size_t i = json_array_size(rows); !row && i-- > 0;) {
        const json_t *run = json_array_get(rows, i);
        if (strcmp(text(run, "spec_sha"), sha) != 0)
            others = true;
        else
            TRY(translator_of(&f, json_integer_value(json_object_get(run, "run")), &row,
                              err));
    }
    return row ? take(&f, row, out, err)
               : not_run(cli, "translator", spec, others, err);
}

static kvm_status of_run(kvm_cli *cli, int64_t run, kvm_found *out, kvm_err *err)
{
    finding f;
    const json_t *row;
    TRY(open_store(&f, cli, err));
    TRY(translator_of(&f, run, &row, err));
    return row ? take(&f, row, out, err) : KVM_OK;
}

static bool hash_like(kvm_str s)
{
    bool good = s.len >= LEAST_DIGITS && s.len <= HASH_DIGITS;
    for (ptrdiff_t i = 0; i < s.len; i++)
        good &=
            (s.at[i] >= '0' && s.at[i] <= '9') || (s.at[i] >= 'a' && s.at[i] <= 'f');
    return good;
}

/* one artefact, under however many names */
static kvm_status of_hash(kvm_cli *cli, kvm_str what, kvm_found *out, kvm_err *err)
{
    finding f;
    json_t *rows, *row, *hit = NULL;
    size_t i;
    TRY(open_store(&f, cli, err));
    TRY(kvm_catalogue_view(f.c, &rows, cli->keep, "v_artefacts", NULL, 0, 0, err));
    json_array_foreach(rows, i, row)
    {
        if (!kvm_str_starts(kvm_str_of(text(row, "sha")), what)) continue;
        if (hit && strcmp(text(hit, "sha"), text(row, "sha")) != 0)
            return kvm_fail(err, KVM_USAGE,
                            "\"%s\" begins the hashes of more than one artefact: "
                            "give more of its digits",
                            kvm_quote(what).at);
        hit = row;
    }
    return hit ? take(&f, hit, out, err) : KVM_OK;
}

static kvm_status none_such(kvm_cli *cli, kvm_str what, kvm_err *err)
{
    return kvm_fail(
        err, KVM_NOTFOUND,
        "\"%s\" is no file, no run that has made a translator, and begins the "
        "hash of no artefact (`kvmill jobs artefacts` lists those of the store "
        "%s)",
        kvm_quote(what).at, kvm_quote(kvm_cli_store(cli)).at);
}

kvm_status kvm_cli_find(kvm_cli *cli, kvm_str what, kvm_found *out, kvm_err *err)
{
    int64_t run;
    *out = (kvm_found){.path = what};
    if (kvm_str_ends(what, KVM_STR(".yaml"))) {
        kvm_spec spec;
        TRY(kvm_spec_read(&spec, cli->keep, what, err));
        return kvm_cli_spec_translator(cli, &spec, out, err);
    }
    const bool file = kvm_path_exists(what);
    if (!file && kvm_str_to_i64(what, &run) && run > 0) TRY(of_run(cli, run, out, err));
    if (out->what) return KVM_OK;
    if (!file && hash_like(what)) TRY(of_hash(cli, what, out, err));
    if (!file && !out->what) return none_such(cli, what, err);
    if (!kvm_cli_has(cli, KVM_OPT_CLOSED_FORM)) return KVM_OK;
    return kvm_fail(err, KVM_USAGE,
                    "--closed-form chooses among the translators of PAIR.yaml or of a "
                    "run, and \"%s\" names one %s: leave it out",
                    kvm_quote(what).at, file ? "file" : "artefact");
}

void kvm_cli_say_found(const kvm_found *found)
{
    if (!found->what) return;
    fprintf(stderr, "%s %.*s…\n", found->what, SHOWN_DIGITS, found->sha);
}

/* ---- reports ---- */

static kvm_status has_report(kvm_cli *cli, kvm_catalogue *c, int64_t run, bool *has,
                             kvm_err *err)
{
    const kvm_view_filter filters[] = {{"run", {0}, run},
                                       {"kind", KVM_STR("report"), 0},
                                       {"output", KVM_STR("html"), 0}};
    json_t *rows;
    TRY(kvm_catalogue_view(c, &rows, cli->keep, "v_artefacts", filters, 3, 1, err));
    *has = json_array_size(rows) > 0;
    return KVM_OK;
}

static bool listed(const kvm_found_report *found, ptrdiff_t n, kvm_str pair)
{
    for (ptrdiff_t i = 0; i < n; i++)
        if (kvm_str_eq(found[i].pair, pair)) return true;
    return false;
}

/* Both directions of a spec are runs of their own, with its hash. */
static kvm_status reports_of_spec(kvm_cli *cli, kvm_catalogue *c, const kvm_spec *spec,
                                  kvm_found_report **found, ptrdiff_t *n, kvm_err *err)
{
    char sha[65];
    json_t *rows;
    TRY(spec_hash(cli, spec, sha, err));
    const kvm_view_filter filter = {"spec_sha", kvm_str_of(sha), 0};
    TRY(kvm_catalogue_view(c, &rows, cli->keep, "v_runs", &filter, 1, 0, err));
    const ptrdiff_t runs = (ptrdiff_t)json_array_size(rows), had = *n;
    kvm_found_report *all = kvm_new(cli->keep, kvm_found_report, had + runs + 1);
    if (!all) return kvm_nomem(err, cli->keep);
    for (ptrdiff_t i = 0; i < had; i++) all[i] = (*found)[i];
    *found = all;
    for (ptrdiff_t i = runs - 1; i >= 0; i--) {
        const json_t *row = json_array_get(rows, (size_t)i);
        const kvm_str pair = kvm_str_of(text(row, "pair"));
        const int64_t run = json_integer_value(json_object_get(row, "run"));
        bool has = false;
        if (!listed(all, *n, pair)) TRY(has_report(cli, c, run, &has, err));
        if (has) all[(*n)++] = (kvm_found_report){pair, run};
    }
    return *n > had ? KVM_OK : not_run(cli, "report", spec, false, err);
}

static kvm_status reports_of_file(kvm_cli *cli, kvm_catalogue *c, kvm_str path,
                                  kvm_found_report **found, ptrdiff_t *n, kvm_err *err)
{
    kvm_spec *specs;
    ptrdiff_t count;
    TRY(kvm_specs_read(&specs, &count, cli->keep, path, err));
    for (ptrdiff_t i = 0; i < count; i++)
        TRY(reports_of_spec(cli, c, &specs[i], found, n, err));
    return KVM_OK;
}

/* at most one row of a view whose column is that text, or that number */
static kvm_status look_up(kvm_cli *cli, kvm_catalogue *c, const char *view,
                          kvm_view_filter filter, const json_t **row, kvm_err *err)
{
    json_t *rows;
    TRY(kvm_catalogue_view(c, &rows, cli->keep, view, &filter, 1, 1, err));
    *row = json_array_get(rows, 0);
    return KVM_OK;
}

kvm_status kvm_cli_find_reports(kvm_cli *cli, kvm_catalogue *c, kvm_str what,
                                kvm_found_report **found, ptrdiff_t *n, kvm_err *err)
{
    const json_t *row;
    int64_t run;
    *n = 0;
    if (kvm_str_ends(what, KVM_STR(".yaml")))
        return reports_of_file(cli, c, what, found, n, err);
    *found = kvm_new(cli->keep, kvm_found_report, 1);
    if (!*found) return kvm_nomem(err, cli->keep);
    (*found)[(*n)++] = (kvm_found_report){.pair = what};
    TRY(look_up(cli, c, "v_pairs", (kvm_view_filter){"pair", what, 0}, &row, err));
    if (row || !kvm_str_to_i64(what, &run) || run < 1) return KVM_OK;
    TRY(look_up(cli, c, "v_runs", (kvm_view_filter){"run", {0}, run}, &row, err));
    if (row) (*found)[0] = (kvm_found_report){kvm_str_of(text(row, "pair")), run};
    return KVM_OK;
}
