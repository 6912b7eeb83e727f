/* cmd_compare.c - `kvmill compare RUN RUN`: what changed between two runs, item by
 * item.
 *
 * Evaluations of the same label and the same suite (by its hash, not its name) are
 * compared on the items that both scored, arm by arm and metric by metric: the paired
 * difference with its bootstrap interval. */
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "cli/open.h"
#include "reports/stats.h"
#include "reports/table.h"
#include "schema/job_state.h"

enum { MAX_ITEMS_BYTES = 1 << 30 };

typedef struct comparing {
    kvm_cli *cli;
    kvm_catalogue *c;
    kvm_store *store;
    int64_t run[2];
    json_t *rows;
} comparing;

/* the suites that a run's jobs have scored: {job: hash of card and items} */
static kvm_status suites_of(comparing *w, int64_t run, json_t **out, kvm_err *err)
{
    const kvm_view_filter f = {"run", {0}, run};
    json_t *rows, *row;
    size_t i;
    *out = json_object();
    if (!kvm_json_own(w->cli->keep, *out)) return kvm_nomem(err, w->cli->keep);
    TRY(kvm_catalogue_view(w->c, &rows, w->cli->keep, "v_quality", &f, 1, 0, err));
    json_array_foreach(rows, i, row)
    {
        char job[32];
        snprintf(job, sizeof job, "%lld",
                 (long long)json_integer_value(json_object_get(row, "job")));
        json_object_set(*out, job, json_object_get(row, "suite_sha"));
    }
    return KVM_OK;
}

/* {label: [hash of its "items", hash of its suite]} of a run's evaluations */
static kvm_status evaluations(comparing *w, int64_t run, json_t **out, kvm_err *err)
{
    const kvm_view_filter f[] = {{"run", {0}, run},
                                 {"kind", KVM_STR("evaluate"), 0},
                                 {"output", KVM_STR("items"), 0}};
    json_t *rows, *row, *suites;
    size_t i;
    kvm_run_state state;
    if (kvm_run_state_of(w->c, run, &state, NULL) == KVM_NOTFOUND)
        return kvm_fail(
            err, KVM_NOTFOUND,
            "there is no run %lld; `kvmill jobs list` shows those there are",
            (long long)run);
    *out = json_object();
    if (!kvm_json_own(w->cli->keep, *out)) return kvm_nomem(err, w->cli->keep);
    TRY(suites_of(w, run, &suites, err));
    TRY(kvm_catalogue_view(w->c, &rows, w->cli->keep, "v_artefacts", f, 3, 0, err));
    json_array_foreach(rows, i, row)
    {
        char job[32];
        snprintf(job, sizeof job, "%lld",
                 (long long)json_integer_value(json_object_get(row, "job")));
        json_object_set_new(*out, json_string_value(json_object_get(row, "label")),
                            json_pack("[O, O?]", json_object_get(row, "sha"),
                                      json_object_get(suites, job)));
    }
    if (json_object_size(*out) == 0)
        return kvm_fail(err, KVM_NOTFOUND, "run %lld has no evaluation to compare",
                        (long long)run);
    return KVM_OK;
}

/* {item: scores} */
static kvm_status read_items(comparing *w, const char *sha, json_t **out, kvm_err *err)
{
    kvm_arena *keep = w->cli->keep;
    kvm_str path, text, line;
    *out = json_object();
    if (!kvm_json_own(keep, *out)) return kvm_nomem(err, keep);
    TRY(kvm_store_get(w->store, &path, keep, sha, -1, err));
    TRY(kvm_file_read(&text, keep, path, MAX_ITEMS_BYTES, err));
    while (kvm_str_cut(text, '\n', &line, &text)) {
        kvm_jat root;
        TRY(kvm_json_parse(&root, keep, line, path, err));
        json_object_set(*out, json_string_value(json_object_get(root.v, "item")),
                        json_object_get(root.v, "scores"));
    }
    return KVM_OK;
}

static const json_t *score_of(const json_t *scores, const char *arm, const char *metric)
{
    return json_object_get(json_object_get(scores, arm), metric);
}

/* the values that both runs have, as two columns */
static ptrdiff_t both_columns(json_t *items[2], const char *arm, const char *metric,
                              double *x, double *y)
{
    const char *id;
    json_t *scores;
    ptrdiff_t n = 0;
    json_object_foreach(items[0], id, scores)
    {
        const json_t *a = score_of(scores, arm, metric);
        const json_t *b = score_of(json_object_get(items[1], id), arm, metric);
        if (!a || !b) continue;
        x[n] = json_number_value(a);
        y[n++] = json_number_value(b);
    }
    return n;
}

static kvm_status compare_one(comparing *w, const char *label, json_t *items[2],
                              const char *arm, const char *metric, kvm_arena scratch,
                              kvm_err *err)
{
    const ptrdiff_t most = (ptrdiff_t)json_object_size(items[0]);
    double *x = kvm_new(&scratch, double, most + 1);
    double *y = kvm_new(&scratch, double, most + 1);
    kvm_comparison c[KVM_ARM_COUNT];
    if (!x || !y) return kvm_nomem(err, &scratch);
    kvm_scores s = {
        .n = both_columns(items, arm, metric, x, y), .chance = KVM_NONE, .seed = 1};
    if (s.n == 0) return KVM_OK;
    s.item[KVM_ARM_NATIVE] = x; /* the first run stands where native does */
    s.item[KVM_ARM_CLOSED_FORM] = y;
    TRY(kvm_compare(c, &s, scratch, err));
    json_array_append_new(
        w->rows, json_pack("{s:s, s:s, s:s, s:I, s:o, s:o, s:o}", "evaluation", label,
                           "arm", arm, "metric", metric, "items", (json_int_t)s.n,
                           "before", kvm_est_json(c[KVM_ARM_NATIVE].score), "after",
                           kvm_est_json(c[KVM_ARM_CLOSED_FORM].score), "change",
                           kvm_est_json(c[KVM_ARM_CLOSED_FORM].versus_native)));
    return KVM_OK;
}

static kvm_status compare_label(comparing *w, const char *label, const char *sha_a,
                                const char *sha_b, kvm_err *err)
{
    json_t *items[2], *first, *arm_scores, *value;
    const char *arm, *metric;
    TRY(read_items(w, sha_a, &items[0], err));
    TRY(read_items(w, sha_b, &items[1], err));
    void *at = json_object_iter(items[0]);
    if (!at) return KVM_OK;
    first = json_object_iter_value(at);
    json_object_foreach(first, arm, arm_scores)
        json_object_foreach(arm_scores, metric, value)
            TRY(compare_one(w, label, items, arm, metric, *w->cli->keep, err));
    return KVM_OK;
}

static kvm_est est_of(const json_t *v)
{
    if (json_is_number(v)) return kvm_est_of(json_number_value(v));
    const json_t *value = json_object_get(v, "value");
    if (!json_is_number(value)) return kvm_est_missing(KVM_STR("not comparable"));
    kvm_est e = kvm_est_of(json_number_value(value));
    const json_t *low = json_object_get(v, "low"), *high = json_object_get(v, "high");
    if (json_is_number(low)) e.low = json_number_value(low);
    if (json_is_number(high)) e.high = json_number_value(high);
    return e;
}

static kvm_status print_rows(comparing *w, kvm_err *err)
{
    static const kvm_column columns[] = {
        {"evaluation", {"evaluation", 10}, KVM_COL_TEXT},
        {"arm", {"arm", 3}, KVM_COL_TEXT},
        {"metric", {"metric", 6}, KVM_COL_TEXT},
        {"items", {"items", 5}, KVM_COL_NUMBER},
        {"before", {"before", 6}, KVM_COL_EST},
        {"after", {"after", 5}, KVM_COL_EST},
        {"change", {"change, 95 % interval", 21}, KVM_COL_EST},
    };
    kvm_table t = kvm_table_new(w->cli->keep, "compare", KVM_STR("two runs"), columns,
                                sizeof columns / sizeof *columns);
    size_t i;
    json_t *row;
    json_array_foreach(w->rows, i, row)
    {
        for (int k = 0; k < 3; k++)
            kvm_table_text(
                &t, kvm_str_of(json_string_value(json_object_get(row, columns[k].key))),
                KVM_TONE_PLAIN);
        kvm_table_num(&t, json_number_value(json_object_get(row, "items")),
                      KVM_FORMAT_COUNT);
        for (int k = 4; k < 7; k++)
            kvm_table_est(&t, est_of(json_object_get(row, columns[k].key)),
                          KVM_FORMAT_NUMBER);
    }
    return kvm_cli_print_table(w->cli, NULL, &t, err);
}

static kvm_status read_runs(comparing *w, kvm_err *err)
{
    for (int i = 0; i < 2; i++) {
        kvm_str text;
        TRY(kvm_cli_arg(w->cli, i,
                        i ? "the second run's number" : "the first run's number", &text,
                        err));
        if (!kvm_str_to_i64(text, &w->run[i]) || w->run[i] < 1)
            return kvm_fail(err, KVM_USAGE, "\"%s\" is not a run's number",
                            kvm_quote(text).at);
    }
    return KVM_OK;
}

static kvm_status run(kvm_cli *cli, kvm_err *err)
{
    comparing w = {.cli = cli, .rows = json_array()};
    json_t *before, *after, *one;
    const char *label;
    ptrdiff_t unlike = 0;
    if (!kvm_json_own(cli->keep, w.rows)) return kvm_nomem(err, cli->keep);
    TRY(read_runs(&w, err));
    TRY(kvm_cli_catalogue(cli, false, &w.c, err));
    TRY(kvm_cli_open_store(cli, cli->keep, &w.store, err));
    TRY(evaluations(&w, w.run[0], &before, err));
    TRY(evaluations(&w, w.run[1], &after, err));
    json_object_foreach(before, label, one)
    {
        const json_t *other = json_object_get(after, label);
        if (!other) continue;
        if (!json_equal(json_array_get(one, 1), json_array_get(other, 1))) {
            fprintf(stderr, "%s: the runs have different suites of this name\n", label);
            unlike++;
            continue;
        }
        TRY(compare_label(&w, label, json_string_value(json_array_get(one, 0)),
                          json_string_value(json_array_get(other, 0)), err));
    }
    if (json_array_size(w.rows) == 0)
        return kvm_fail(err, KVM_NOTFOUND,
                        "runs %lld and %lld have no item in common that both scored%s",
                        (long long)w.run[0], (long long)w.run[1],
                        unlike ? ": their suites differ" : "");
    return kvm_cli_has(cli, KVM_OPT_JSON)
               ? kvm_cli_print_json(cli, json_incref(w.rows), err)
               : print_rows(&w, err);
}

const kvm_command kvm_command_compare = {"compare", NULL, run, 2};
