/* cmd_jobs.c - `kvmill jobs` and `pairs`: the catalogue's views, and two
 * changes of state. */
#include <math.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/file.h"
#include "cli/open.h"
#include "reports/number.h"
#include "reports/table.h"
#include "schema/job_state.h"

enum { MAX_COLUMNS = 32, IDLE_LOOKS = 3 };

static kvm_str cell_text(kvm_arena *keep, const json_t *v)
{
    if (json_is_string(v))
        return (kvm_str){json_string_value(v), (ptrdiff_t)json_string_length(v)};
    if (json_is_integer(v))
        return kvm_str_fmt(keep, "%lld", (long long)json_integer_value(v));
    if (json_is_real(v)) return kvm_str_fmt(keep, "%.4g", json_real_value(v));
    if (json_is_boolean(v)) return json_is_true(v) ? KVM_STR("yes") : KVM_STR("no");
    return KVM_STR("-");
}

/* seconds since 1970 as 2026-11-30T08:15:00Z */
static kvm_str time_text(kvm_arena *keep, double seconds)
{
    char text[32];
    struct tm utc;
    const time_t t = (time_t)floor(seconds);
    if (!gmtime_r(&t, &utc) ||
        strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0)
        return KVM_STR("-");
    return kvm_str_copy(keep, kvm_str_of(text));
}

static kvm_str column_text(kvm_arena *keep, const json_t *row, const char *column)
{
    const json_t *v = json_object_get(row, column);
    return json_is_real(v) && kvm_str_ends(kvm_str_of(column), KVM_STR("_at"))
               ? time_text(keep, json_real_value(v))
               : cell_text(keep, v);
}

/* the columns of a view that people look at first, in this order; NULL ends */
static kvm_status print_rows(kvm_cli *cli, const json_t *rows, const char *name,
                             const char *const *columns, kvm_err *err)
{
    kvm_column c[MAX_COLUMNS];
    ptrdiff_t n = 0;
    for (; columns[n]; n++)
        c[n] = (kvm_column){columns[n], kvm_str_of(columns[n]), KVM_COL_TEXT};
    kvm_table t = kvm_table_new(cli->keep, name, kvm_str_of(name), c, n);
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row) for (ptrdiff_t k = 0; k < n; k++)
        kvm_table_text(&t, column_text(cli->keep, row, columns[k]), KVM_TONE_PLAIN);
    return kvm_cli_print_table(cli, NULL, &t, err);
}

static kvm_status show_view(kvm_cli *cli, kvm_catalogue *c, const char *view,
                            const kvm_view_filter *filters, ptrdiff_t count,
                            const char *const *columns, kvm_err *err)
{
    json_t *rows;
    int64_t limit;
    TRY(kvm_cli_i64(cli, KVM_OPT_LIMIT, 0, 0, &limit, err));
    TRY(kvm_catalogue_view(c, &rows, cli->keep, view, filters, count, (ptrdiff_t)limit,
                           err));
    if (kvm_cli_has(cli, KVM_OPT_JSON))
        return kvm_cli_print_json(cli, json_incref(rows), err);
    return print_rows(cli, rows, view, columns, err);
}

static kvm_status job_id(kvm_cli *cli, int64_t *id, kvm_err *err)
{
    kvm_str text;
    TRY(kvm_cli_arg(cli, 1, "the job's number", &text, err));
    if (!kvm_str_to_i64(text, id) || *id < 1)
        return kvm_fail(err, KVM_USAGE, "\"%s\" is not a job's number",
                        kvm_quote(text).at);
    return KVM_OK;
}

/* the catalogue, and a job that it has */
static kvm_status find_job(kvm_cli *cli, kvm_catalogue **c, int64_t *id, kvm_err *err)
{
    kvm_job_state now;
    TRY(job_id(cli, id, err));
    TRY(kvm_cli_catalogue(cli, false, c, err));
    if (kvm_job_state_of(*c, *id, &now, NULL) != KVM_NOTFOUND) return KVM_OK;
    return kvm_fail(err, KVM_NOTFOUND,
                    "there is no job %lld; `kvmill jobs list` has those there are",
                    (long long)*id);
}

/* names the pairs there are when `pair` is none of them */
static kvm_status check_pair(kvm_cli *cli, kvm_catalogue *c, kvm_str pair, kvm_err *err)
{
    json_t *rows, *row;
    size_t i;
    TRY(kvm_catalogue_view(c, &rows, cli->keep, "v_pairs", NULL, 0, 0, err));
    kvm_text names = {0};
    bool found = false;
    json_array_foreach(rows, i, row)
    {
        const char *name = json_string_value(json_object_get(row, "pair"));
        found |= kvm_str_eq(pair, kvm_str_of(name));
        kvm_text_addf(&names, "%s%s", i ? ", " : "", name);
    }
    const kvm_quoted quoted = kvm_quote(pair);
    const kvm_status s =
        found ? KVM_OK
              : kvm_fail(err, KVM_NOTFOUND, "there is no pair \"%s\"; there are: %.*s",
                         quoted.at, names.len ? (int)names.len : 4,
                         names.len ? names.at : "none");
    kvm_text_free(&names);
    return s;
}

static kvm_status check_state(const kvm_cli *cli, kvm_str name, kvm_err *err)
{
    kvm_job_state state;
    kvm_text names = {0};
    if (kvm_state_find(name, &state)) return KVM_OK;
    for (int i = 0; i < KVM_STATE_COUNT; i++)
        kvm_text_addf(&names, "%s%s", i ? ", " : "", kvm_state_name((kvm_job_state)i));
    const kvm_quoted quoted = kvm_quote(name);
    const kvm_status s = kvm_fail(
        err, KVM_USAGE, "%s: \"%s\" is no state; there are %.*s",
        cli->from[KVM_OPT_STATE], quoted.at, KVM_STR_ARG(kvm_text_str(&names)));
    kvm_text_free(&names);
    return s;
}

/* of the latest claim: to its end, or so far */
static void add_took(json_t *row)
{
    const json_t *from = json_object_get(row, "started_at");
    const json_t *to = json_object_get(row, "finished_at");
    if (!json_is_real(from)) return;
    const char *state = json_string_value(json_object_get(row, "state"));
    const bool runs = !strcmp(state, "running") || !strcmp(state, "cancelling");
    if (!json_is_real(to) && !runs) return;
    const double end = json_is_real(to) ? json_real_value(to) : kvm_wall();
    json_object_set_new(
        row, "took",
        json_string(
            kvm_numeral_of(end - json_real_value(from), KVM_FORMAT_SECONDS).at));
}

static kvm_status list(kvm_cli *cli, kvm_err *err)
{
    static const char *const columns[] = {"job",     "run",        "pair", "label",
                                          "state",   "started_at", "took", "attempt",
                                          "message", NULL};
    kvm_catalogue *c;
    json_t *rows, *row;
    size_t i;
    int64_t limit;
    kvm_view_filter f = {"state", {0}, 0};
    if (kvm_cli_has(cli, KVM_OPT_STATE)) {
        f.text = kvm_str_of(cli->value[KVM_OPT_STATE]);
        TRY(check_state(cli, f.text, err));
    }
    TRY(kvm_cli_catalogue(cli, false, &c, err));
    if (kvm_cli_has(cli, KVM_OPT_JSON))
        return show_view(cli, c, "v_queue", &f, kvm_cli_has(cli, KVM_OPT_STATE),
                         columns, err);
    TRY(kvm_cli_i64(cli, KVM_OPT_LIMIT, 0, 0, &limit, err));
    TRY(kvm_catalogue_view(c, &rows, cli->keep, "v_queue", &f,
                           kvm_cli_has(cli, KVM_OPT_STATE), (ptrdiff_t)limit, err));
    json_array_foreach(rows, i, row) add_took(row);
    return print_rows(cli, rows, "v_queue", columns, err);
}

static kvm_status show(kvm_cli *cli, kvm_err *err)
{
    static const char *const columns[] = {"attempt",    "outcome",  "status", "message",
                                          "started_at", "ended_at", "log",    NULL};
    kvm_catalogue *c;
    kvm_view_filter f = {"job", {0}, 0};
    TRY(find_job(cli, &c, &f.number, err));
    return show_view(cli, c, "v_attempts", &f, 1, columns, err);
}

/* what an attempt wrote; *text is {0} when nothing is there */
static kvm_status read_log(kvm_cli *cli, const json_t *attempt, kvm_str *text,
                           kvm_err *err)
{
    const char *log = json_string_value(json_object_get(attempt, "log"));
    *text = (kvm_str){0};
    if (!log) return KVM_OK;
    const kvm_str path = kvm_path_join(cli->keep, kvm_cli_store(cli), kvm_str_of(log));
    if (!path.at) return kvm_nomem(err, cli->keep);
    if (!kvm_path_exists(path)) return KVM_OK;
    return kvm_file_read(text, cli->keep, path, (size_t)1 << 30, err);
}

static kvm_status logs(kvm_cli *cli, kvm_err *err)
{
    kvm_catalogue *c;
    json_t *rows, *row, *out = json_array();
    size_t i;
    kvm_view_filter f = {"job", {0}, 0};
    if (!kvm_json_own(cli->keep, out)) return kvm_nomem(err, cli->keep);
    TRY(find_job(cli, &c, &f.number, err));
    TRY(kvm_catalogue_view(c, &rows, cli->keep, "v_attempts", &f, 1, 0, err));
    json_array_foreach(rows, i, row)
    {
        const json_int_t attempt = json_integer_value(json_object_get(row, "attempt"));
        kvm_str text;
        TRY(read_log(cli, row, &text, err));
        if (kvm_cli_has(cli, KVM_OPT_JSON)) {
            json_array_append_new(
                out, json_pack("{s:I, s:O, s:o}", "attempt", attempt, "log",
                               json_object_get(row, "log"), "text",
                               text.at ? kvm_cli_json_text(text) : json_null()));
            continue;
        }
        printf("== attempt %lld\n", attempt);
        if (text.at) TRY(kvm_cli_print(text, err));
    }
    return kvm_cli_has(cli, KVM_OPT_JSON)
               ? kvm_cli_print_json(cli, json_incref(out), err)
               : KVM_OK;
}

static kvm_status artefacts(kvm_cli *cli, kvm_err *err)
{
    static const char *const columns[] = {"run", "job",   "label", "output",
                                          "sha", "bytes", NULL};
    kvm_catalogue *c;
    kvm_view_filter f = {"pair", {0}, 0};
    TRY(kvm_cli_catalogue(cli, false, &c, err));
    if (cli->arg_count > 1) {
        f.text = cli->args[1];
        TRY(check_pair(cli, c, f.text, err));
    }
    return show_view(cli, c, "v_artefacts", &f, cli->arg_count > 1, columns, err);
}

static kvm_status print_state(kvm_cli *cli, int64_t id, kvm_job_state now, kvm_err *err)
{
    if (kvm_cli_has(cli, KVM_OPT_JSON))
        return kvm_cli_print_json(cli,
                                  json_pack("{s:I, s:s}", "job", (json_int_t)id,
                                            "state", kvm_state_name(now)),
                                  err);
    printf("job %lld is %s\n", (long long)id, kvm_state_name(now));
    return KVM_OK;
}

static kvm_status cancel(kvm_cli *cli, kvm_err *err)
{
    kvm_catalogue *c;
    int64_t id;
    kvm_job_state now;
    TRY(find_job(cli, &c, &id, err));
    TRY(kvm_job_cancel(c, id, &now, err));
    if (now != KVM_STATE_CANCELLED && now != KVM_STATE_CANCELLING)
        return kvm_fail(err, KVM_USAGE, "job %lld is %s: there is nothing to cancel",
                        (long long)id, kvm_state_name(now));
    return print_state(cli, id, now, err);
}

static kvm_status retry(kvm_cli *cli, kvm_err *err)
{
    kvm_catalogue *c;
    int64_t id;
    kvm_job_state now;
    TRY(find_job(cli, &c, &id, err));
    TRY(kvm_job_retry(c, id, err));
    TRY(kvm_job_state_of(c, id, &now, err));
    return print_state(cli, id, now, err);
}

/* how many jobs stand in each state: "succeeded 12, running 1", or {"succeeded": 12,
 * ...} */
static json_t *count_states(const json_t *rows, kvm_text *line)
{
    json_t *counts = json_object();
    for (int st = 0; st < KVM_STATE_COUNT; st++) {
        const char *name = kvm_state_name((kvm_job_state)st);
        size_t i;
        json_t *row;
        ptrdiff_t n = 0;
        json_array_foreach(rows, i, row) n +=
            strcmp(json_string_value(json_object_get(row, "state")), name) == 0;
        if (n) kvm_text_addf(line, "%s%s %td", line->len ? ", " : "", name, n);
        if (n) json_object_set_new(counts, name, json_integer(n));
    }
    return counts;
}

/* one look: a line when it differs from *last, which it replaces; *open is asked first,
 * so that the last line is of a queue at rest */
static kvm_status look(kvm_cli *cli, kvm_catalogue *c, kvm_text *last, bool *open,
                       int *idle, kvm_err *err)
{
    kvm_arena each = {0};
    kvm_text line = {0};
    json_t *rows;
    const bool as_json = kvm_cli_has(cli, KVM_OPT_JSON);
    TRY(kvm_runs_open(c, open, err));
    TRY(kvm_arena_reserve(&each, (size_t)1 << 32, err));
    kvm_status s = kvm_catalogue_view(c, &rows, &each, "v_queue", NULL, 0, 0, err);
    if (s) return kvm_arena_free(&each), s;
    json_t *counts = count_states(rows, &line);
    const bool works = json_object_get(counts, "running") != NULL ||
                       json_object_get(counts, "cancelling") != NULL;
    *idle = works || !*open ? 0 : *idle + 1;
    kvm_arena_free(&each);
    if (!as_json && !kvm_str_eq(kvm_text_str(&line), kvm_text_str(last)))
        printf("%.*s\n", KVM_STR_ARG(kvm_text_str(&line)));
    kvm_text_free(last);
    *last = line;
    if (as_json && !*open) return kvm_cli_print_json(cli, counts, err);
    json_decref(counts);
    return fflush(stdout) || ferror(stdout) ? kvm_fail_errno(err, "stdout") : KVM_OK;
}

/* a line whenever something changed, until no run can go on; as JSON the last one
 * alone */
static kvm_status watch(kvm_cli *cli, kvm_err *err)
{
    kvm_catalogue *c;
    kvm_text last = {0};
    bool open = true;
    TRY(kvm_cli_catalogue(cli, false, &c, err));
    int idle = 0; /* looks at which nothing ran */
    kvm_status s = look(cli, c, &last, &open, &idle, err);
    while (!s && open) {
        kvm_sleep(1);
        s = look(cli, c, &last, &open, &idle, err);
        if (idle == IDLE_LOOKS)
            fprintf(stderr,
                    "nobody works on these jobs: `kvmill worker` or `kvmill run` "
                    "does\n");
    }
    kvm_text_free(&last);
    return s;
}

typedef struct verb {
    const char *name;
    kvm_status (*run)(kvm_cli *cli, kvm_err *err);
} verb;

static kvm_status dispatch(kvm_cli *cli, const verb *verbs, ptrdiff_t n, kvm_err *err)
{
    if (cli->arg_count == 0) return verbs[0].run(cli, err);
    for (ptrdiff_t i = 0; i < n; i++)
        if (kvm_str_eq(cli->args[0], kvm_str_of(verbs[i].name)))
            return verbs[i].run(cli, err);
    return kvm_fail(err, KVM_USAGE,
                    "\"%s\" is none of the verbs that `kvmill help` lists",
                    kvm_quote(cli->args[0]).at);
}

static kvm_status jobs(kvm_cli *cli, kvm_err *err)
{
    static const verb verbs[] = {
        {"list", list},           {"show", show},     {"logs", logs},  {"watch", watch},
        {"artefacts", artefacts}, {"cancel", cancel}, {"retry", retry}};
    return dispatch(cli, verbs, sizeof verbs / sizeof *verbs, err);
}

static kvm_status pairs_list(kvm_cli *cli, kvm_err *err)
{
    static const char *const columns[] = {"pair", "runs", "last_run", "last_state",
                                          NULL};
    kvm_catalogue *c;
    TRY(kvm_cli_catalogue(cli, false, &c, err));
    return show_view(cli, c, "v_pairs", NULL, 0, columns, err);
}

static kvm_status pairs_show(kvm_cli *cli, kvm_err *err)
{
    static const char *const columns[] = {"run",   "suite", "metric", "arm",
                                          "items", "mean",  NULL};
    kvm_catalogue *c;
    kvm_view_filter f = {"pair", {0}, 0};
    TRY(kvm_cli_arg(cli, 1, "the pair's name", &f.text, err));
    TRY(kvm_cli_catalogue(cli, false, &c, err));
    TRY(check_pair(cli, c, f.text, err));
    return show_view(cli, c, "v_quality", &f, 1, columns, err);
}

static kvm_status pairs(kvm_cli *cli, kvm_err *err)
{
    static const verb verbs[] = {{"list", pairs_list}, {"show", pairs_show}};
    return dispatch(cli, verbs, sizeof verbs / sizeof *verbs, err);
}

static const kvm_option list_options[] = {
    {KVM_OPT_STATE, "state", "NAME", "only jobs in this state"},
    {KVM_OPT_LIMIT, "limit", "N", "at most so many rows"},
    {0},
};
static const kvm_option pairs_options[] = {
    {KVM_OPT_LIMIT, "limit", "N", "at most so many rows"},
    {0},
};
const kvm_command kvm_command_jobs = {"jobs", list_options, jobs, 2};
const kvm_command kvm_command_pairs = {"pairs", pairs_options, pairs, 2};
