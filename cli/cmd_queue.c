/* cmd_queue.c - `kvmill queue`: what waits and who works, by the catalogue and, where
 * there is a queue, by its streams. */
#include <string.h>

#include "cli/open.h"
#include "scheduler/queue.h"
#include "schema/fleet.h"
#include "schema/leader.h"
#include "workers/machine.h"

static const double SILENT_S = 30; /* as the scheduler counts them (scheduler.c) */

static json_t *text(kvm_str s)
{
    return json_stringn(s.at, (size_t)s.len);
}

static kvm_status read_jobs(kvm_cli *cli, kvm_catalogue *c, json_t *out, kvm_err *err)
{
    kvm_fleet_jobs *jobs;
    ptrdiff_t n;
    TRY(kvm_fleet_jobs_look(c, &jobs, &n, cli->keep, err));
    for (ptrdiff_t i = 0; i < n; i++)
        json_array_append_new(
            out, json_pack("{s:o, s:i, s:o, s:I, s:f}", "class", text(jobs[i].class),
                           "ranks", jobs[i].ranks, "state", text(jobs[i].state), "jobs",
                           (json_int_t)jobs[i].count, "oldest_s", jobs[i].oldest_s));
    return KVM_OK;
}

static kvm_status read_workers(kvm_cli *cli, kvm_catalogue *c, json_t *out,
                               kvm_err *err)
{
    kvm_fleet_workers *w;
    ptrdiff_t n;
    TRY(kvm_fleet_look(c, SILENT_S, &w, &n, cli->keep, err));
    for (ptrdiff_t i = 0; i < n; i++)
        json_array_append_new(out, json_pack("{s:o, s:i, s:I, s:I}", "classes",
                                             text(w[i].classes), "ranks", w[i].ranks,
                                             "memory_mib", (json_int_t)w[i].memory_mib,
                                             "workers", (json_int_t)w[i].count));
    return KVM_OK;
}

static kvm_status read_streams(kvm_cli *cli, kvm_catalogue *c, kvm_str where,
                               json_t *out, kvm_err *err)
{
    char id[KVM_CATALOGUE_ID];
    kvm_queue *q;
    kvm_queue_stream *s;
    ptrdiff_t n;
    TRY(kvm_catalogue_id(c, id, err));
    TRY(kvm_queue_open(&q, cli->keep,
                       &(kvm_queue_options){.where = where,
                                            .catalogue = kvm_str_of(id),
                                            .name = kvm_worker_name(cli->keep)},
                       err));
    TRY(kvm_queue_look(q, &s, &n, cli->keep, err));
    for (ptrdiff_t i = 0; i < n; i++)
        json_array_append_new(
            out, json_pack("{s:o, s:I, s:I, s:I, s:f}", "stream", text(s[i].key),
                           "length", (json_int_t)s[i].length, "pending",
                           (json_int_t)s[i].pending, "consumers",
                           (json_int_t)s[i].consumers, "oldest_s", s[i].oldest_s));
    return KVM_OK;
}

/* Every column of every row; the first row names the columns. */
static kvm_status print_rows(kvm_cli *cli, const char *title, json_t *rows,
                             kvm_err *err)
{
    enum { MOST = 8 };
    kvm_column columns[MOST];
    ptrdiff_t n = 0;
    const char *name;
    json_t *row, *v;
    size_t i;
    if (json_array_size(rows) == 0) return KVM_OK;
    json_object_foreach(json_array_get(rows, 0), name, v) if (n < MOST) columns[n++] =
        (kvm_column){name, kvm_str_of(name),
                     json_is_string(v) ? KVM_COL_TEXT : KVM_COL_NUMBER};
    kvm_table t = kvm_table_new(cli->keep, title, kvm_str_of(title), columns, n);
    json_array_foreach(rows, i, row) for (ptrdiff_t k = 0; k < n; k++)
    {
        v = json_object_get(row, columns[k].key);
        if (json_is_string(v))
            kvm_table_text(&t, kvm_str_of(json_string_value(v)), KVM_TONE_PLAIN);
        else
            kvm_table_num(&t, json_number_value(v),
                          json_is_real(v) ? KVM_FORMAT_SECONDS : KVM_FORMAT_COUNT);
    }
    return kvm_cli_print_table(cli, title, &t, err);
}

static kvm_status show(kvm_cli *cli, json_t *doc, kvm_err *err)
{
    static const char *const parts[] = {"jobs", "workers", "streams"};
    if (kvm_cli_has(cli, KVM_OPT_JSON))
        return kvm_cli_print_json(cli, json_incref(doc), err);
    const char *leader = json_string_value(json_object_get(doc, "scheduler"));
    printf("scheduler: %s\n", leader ? leader : "none");
    for (int i = 0; i < 3; i++)
        TRY(print_rows(cli, parts[i], json_object_get(doc, parts[i]), err));
    return KVM_OK;
}

static kvm_status run(kvm_cli *cli, kvm_err *err)
{
    kvm_catalogue *c;
    kvm_str where, leader;
    json_t *jobs = json_array(), *workers = json_array(), *streams = json_array();
    json_t *doc = kvm_json_own(cli->keep,
                               json_pack("{s:n, s:o, s:o, s:o}", "scheduler", "jobs",
                                         jobs, "workers", workers, "streams", streams));
    if (!doc) return kvm_nomem(err, cli->keep);
    TRY(kvm_cli_queue(cli, &where, err));
    TRY(kvm_cli_catalogue(cli, false, &c, err));
    TRY(kvm_leader_of(c, KVM_STR("scheduler"), &leader, cli->keep, err));
    if (leader.len) json_object_set_new(doc, "scheduler", text(leader));
    TRY(read_jobs(cli, c, jobs, err));
    TRY(read_workers(cli, c, workers, err));
    if (where.len) TRY(read_streams(cli, c, where, streams, err));
    return show(cli, doc, err);
}

static const kvm_option options[] = {
    {KVM_OPT_QUEUE, "queue", "URL", "its streams as well (KVMILL_QUEUE)"},
    {0},
};
const kvm_command kvm_command_queue = {"queue", options, run, 0};
