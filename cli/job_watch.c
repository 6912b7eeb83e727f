/* job_watch.c - `kvmill jobs watch`: how far the queue is, until it rests. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "cli/jobs.h"
#include "schema/job_state.h"

enum { IDLE_LOOKS = 3, PROGRESS_MOST = 6 };

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

/* " (capture small 40 %, fit small-large 0 %)" of jobs that run, wherever that is. In
 * tens, so that a line is worth printing. */
static void add_progress(const json_t *rows, kvm_text *line)
{
    size_t i;
    json_t *row;
    int shown = 0;
    json_array_foreach(rows, i, row)
    {
        const double done = json_number_value(json_object_get(row, "done"));
        const double total = json_number_value(json_object_get(row, "total"));
        const char *state = json_string_value(json_object_get(row, "state"));
        if (strcmp(state, "running") != 0 || !(total > 0) || shown == PROGRESS_MOST)
            continue;
        kvm_text_addf(line, "%s%s %.0f %%", shown++ ? ", " : " (",
                      json_string_value(json_object_get(row, "label")),
                      10 * floor(10 * done / total));
    }
    if (shown) kvm_text_addf(line, ")");
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
    add_progress(rows, &line);
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
kvm_status kvm_cli_job_watch(kvm_cli *cli, kvm_err *err)
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
