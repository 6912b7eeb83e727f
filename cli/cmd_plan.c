/* cmd_plan.c - `kvmill plan`: what a pair will cost, before anything runs. */
#include <unistd.h>

#include "cli/open.h"
#include "jobs/plan.h"
#include "reports/number.h"
#include "reports/table.h"

static double get(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static kvm_str text_of(const json_t *o, const char *key)
{
    return kvm_str_of(json_string_value(json_object_get(o, key)));
}

/* a list of objects as a table: text where the column says so, else numbers */
typedef struct column {
    const char *key, *title;
    kvm_format format;
    bool text;
} column;

static kvm_status print_list(kvm_cli *cli, const json_t *list, const char *title,
                             const column *columns, ptrdiff_t n, kvm_err *err)
{
    kvm_column *c = kvm_new(cli->keep, kvm_column, n);
    if (!c) return kvm_nomem(err, cli->keep);
    for (ptrdiff_t i = 0; i < n; i++)
        c[i] = (kvm_column){columns[i].key, kvm_str_of(columns[i].title),
                            columns[i].text ? KVM_COL_TEXT : KVM_COL_NUMBER};
    kvm_table t = kvm_table_new(cli->keep, title, kvm_str_of(title), c, n);
    size_t i;
    json_t *row;
    json_array_foreach(list, i, row) for (ptrdiff_t k = 0; k < n;
                                          k++) if (columns[k].text)
        kvm_table_text(&t, text_of(row, columns[k].key), KVM_TONE_PLAIN);
    else kvm_table_num(&t, get(row, columns[k].key), columns[k].format);
    return kvm_cli_print_table(cli, title, &t, err);
}

#define LIST(name, title, ...)                                                         \
    do {                                                                               \
        static const column columns_[] = {__VA_ARGS__};                                \
        TRY(print_list(cli, json_object_get(plan, name), title, columns_,              \
                       sizeof columns_ / sizeof *columns_, err));                      \
    } while (0)

static void print_total(const json_t *t)
{
    const double threads = get(t, "threads");
    printf("\nin all, estimated: %s on %.0f thread%s with nothing beside it (%s of "
           "processor time), %s on disk, %s of memory; steps that are in the store "
           "already cost nothing\n",
           kvm_numeral_of(get(t, "seconds"), KVM_FORMAT_SECONDS).at, threads,
           threads > 1 ? "s" : "",
           kvm_numeral_of(get(t, "cpu_seconds"), KVM_FORMAT_SECONDS).at,
           kvm_numeral_of(get(t, "bytes"), KVM_FORMAT_BYTES).at,
           kvm_numeral_of(get(t, "memory_bytes"), KVM_FORMAT_BYTES).at);
}

static kvm_status print_plan(kvm_cli *cli, const json_t *plan, kvm_err *err)
{
    const json_t *machine = json_object_get(plan, "machine");
    printf("rates: %.0f GFLOP/s of fp32 products, %.1f GB/s of memory\n",
           get(machine, "flops") / 1e9, get(machine, "bytes") / 1e9);
    LIST("models", "models", {"name", "model", KVM_FORMAT_COUNT, true},
         {"parameters", "parameters", KVM_FORMAT_COUNT, false},
         {"weight_bytes", "weights", KVM_FORMAT_BYTES, false},
         {"cache_bytes_per_token", "cache per token", KVM_FORMAT_BYTES, false},
         {"flops_per_token", "FLOPs per token", KVM_FORMAT_COUNT, false});
    LIST("capture", "capture", {"model", "model", KVM_FORMAT_COUNT, true},
         {"rows", "rows", KVM_FORMAT_COUNT, false},
         {"bytes", "on disk", KVM_FORMAT_BYTES, false},
         {"seconds", "predicted", KVM_FORMAT_SECONDS, false});
    LIST("fit", "moments and the sweep over k and lambda",
         {"source", "source", KVM_FORMAT_COUNT, true},
         {"target", "target", KVM_FORMAT_COUNT, true},
         {"stats_s", "moments, predicted", KVM_FORMAT_SECONDS, false},
         {"fit_s", "fit, predicted", KVM_FORMAT_SECONDS, false});
    LIST("translator", "translator by k", {"k", "k", KVM_FORMAT_COUNT, false},
         {"parameters", "parameters", KVM_FORMAT_COUNT, false},
         {"bytes_f32", "f32 file", KVM_FORMAT_BYTES, false},
         {"rows_per_feature", "fit rows per feature", KVM_FORMAT_NUMBER, false});
    LIST("ttft", "predicted time to first token, k = all",
         {"tokens", "tokens", KVM_FORMAT_COUNT, false},
         {"cold_s", "cold", KVM_FORMAT_SECONDS, false},
         {"switch_s", "switch", KVM_FORMAT_SECONDS, false},
         {"speedup", "sooner by", KVM_FORMAT_RATIO, false});
    const bool jobs = json_array_size(json_object_get(plan, "jobs")) > 0;
    if (jobs)
        LIST("jobs", "jobs, estimated", {"kind", "step", KVM_FORMAT_COUNT, true},
             {"jobs", "jobs", KVM_FORMAT_COUNT, false},
             {"seconds", "time", KVM_FORMAT_SECONDS, false},
             {"bytes", "on disk", KVM_FORMAT_BYTES, false},
             {"memory_bytes", "memory of one", KVM_FORMAT_BYTES, false},
             {"ranks_share", "a gang's ranks share", KVM_FORMAT_COUNT, true});
    const char *warning = json_string_value(json_object_get(plan, "warning"));
    const json_t *m = json_object_get(plan, "moments");
    printf("\nmoments on disk: %.1f MiB + %.1f MiB (Gram), %.1f MiB (cross)\n",
           get(m, "gram_source_bytes") / (1 << 20),
           get(m, "gram_target_bytes") / (1 << 20), get(m, "cross_bytes") / (1 << 20));
    if (jobs) print_total(json_object_get(plan, "total"));
    if (warning) printf("\nwarning: %s\n", warning);
    return KVM_OK;
}

static kvm_status rate(const kvm_cli *cli, kvm_opt_id id, double unit, double *out,
                       kvm_err *err)
{
    if (!cli->value[id]) return KVM_OK;
    double v;
    if (!kvm_str_to_f64(kvm_str_of(cli->value[id]), &v) || v <= 0)
        return kvm_fail(err, KVM_USAGE, "%s: \"%s\" is not a positive number",
                        cli->from[id], cli->value[id]);
    *out = v * unit;
    return KVM_OK;
}

/* a family's pairs in the order of the file */
typedef struct planning {
    kvm_spec *specs;
    ptrdiff_t specs_n;
    kvm_graph *graphs; /* of all specs, one behind the other */
    kvm_graphs *of;
    kvm_compute *compute;
    kvm_machine_rates rates;
} planning;

static bool of_sizes(const planning *p)
{
    return p->specs_n == 1 && kvm_plan_is_config(p->specs->source_path) &&
           kvm_plan_is_config(p->specs->target_path);
}

static kvm_status plan_graphs(kvm_cli *cli, planning *p, kvm_err *err)
{
    ptrdiff_t n = 0;
    TRY(kvm_specs_graphs(p->specs, p->specs_n, cli->keep, p->compute, &p->of, err));
    p->graphs = kvm_new(cli->keep, kvm_graph, 2 * p->specs_n);
    if (!p->graphs) return kvm_nomem(err, cli->keep);
    for (ptrdiff_t i = 0; i < p->specs_n; i++)
        for (ptrdiff_t k = 0; k < p->of[i].n; k++) p->graphs[n++] = p->of[i].of[k];
    return KVM_OK;
}

static kvm_status open_planning(kvm_cli *cli, planning *p, kvm_err *err)
{
    kvm_str path;
    TRY(kvm_cli_arg(cli, 0, "the pair's spec (PAIR.yaml)", &path, err));
    TRY(kvm_specs_read(&p->specs, &p->specs_n, cli->keep, path, err));
    TRY(kvm_cli_compute(cli, cli->keep, &p->compute, err));
    if (!of_sizes(p)) TRY(plan_graphs(cli, p, err)); /* refuse what run does */
    TRY(kvm_plan_measure(&p->rates, p->compute, err));
    TRY(rate(cli, KVM_OPT_GFLOPS, 1e9, &p->rates.flops, err));
    return rate(cli, KVM_OPT_GBS, 1e9, &p->rates.bytes, err);
}

static kvm_status plan_of(kvm_cli *cli, const planning *p, ptrdiff_t i,
                          ptrdiff_t before, json_t **plan, kvm_err *err)
{
    kvm_str warning = KVM_STR("sizes of two configs: what the checkpoints hold was not "
                              "looked at");
    TRY(kvm_plan_json(plan, &p->specs[i], p->graphs, before, p->of ? p->of[i].n : 0,
                      p->compute, &p->rates, cli->keep, err));
    if (!kvm_json_own(cli->keep, *plan)) return kvm_nomem(err, cli->keep);
    if (p->of) warning = p->graphs[before].warning;
    if (warning.len)
        json_object_set_new(*plan, "warning",
                            json_stringn(warning.at, (size_t)warning.len));
    return KVM_OK;
}

static void print_heading(const planning *p, ptrdiff_t i)
{
    if (p->specs_n == 1) return;
    printf("%s== %.*s%s\n", i ? "\n" : "", KVM_STR_ARG(p->specs[i].name),
           i ? " (steps shared with those above cost nothing more)" : "");
}

static kvm_status run(kvm_cli *cli, kvm_err *err)
{
    planning p = {0};
    ptrdiff_t before = 0;
    const bool json = kvm_cli_has(cli, KVM_OPT_JSON);
    json_t *plan = NULL, *list = kvm_json_own(cli->keep, json_array());
    if (!list) return kvm_nomem(err, cli->keep);
    TRY(open_planning(cli, &p, err));
    for (ptrdiff_t i = 0; i < p.specs_n; i++) {
        TRY(plan_of(cli, &p, i, before, &plan, err));
        if (p.of) before += p.of[i].n;
        json_array_append(list, plan);
        if (!json) print_heading(&p, i);
        if (!json) TRY(print_plan(cli, plan, err));
    }
    if (!json) return KVM_OK;
    return kvm_cli_print_json(cli, json_incref(p.specs_n > 1 ? list : plan), err);
}

static const kvm_option options[] = {
    {KVM_OPT_GFLOPS, "gflops", "N",
     "rate of fp32 products of the machine to predict for"},
    {KVM_OPT_GBS, "gbs", "N", "its memory bandwidth in GB/s"},
    {0},
};
const kvm_command kvm_command_plan = {"plan", options, run, 1};
