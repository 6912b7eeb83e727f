/* report_timing.c - time to first token over lengths, and what building the translator
 * cost. */
#include <math.h>
#include <string.h>

#include "jobs/report_parts.h"
#include "reports/stats.h"

enum { MAX_POINTS = 64 };

static json_t *get(const json_t *o, const char *key)
{
    return json_object_get(o, key);
}

const double *kvm_report_numbers(const json_t *list, ptrdiff_t *n, kvm_arena *a)
{
    *n = (ptrdiff_t)json_array_size(list);
    double *x = kvm_new(a, double, *n + 1);
    for (ptrdiff_t i = 0; x && i < *n; i++)
        x[i] = json_number_value(json_array_get(list, (size_t)i));
    return x;
}

kvm_est kvm_report_median(const json_t *arm, const char *stage, kvm_arena scratch)
{
    ptrdiff_t n;
    const double *x = kvm_report_numbers(get(arm, stage), &n, &scratch);
    return x ? kvm_median(x, n, scratch) : kvm_est_missing(KVM_STR("out of memory"));
}

static json_t *stages_json(json_t *arm, kvm_arena scratch)
{
    json_t *out = json_object(), *list;
    const char *stage;
    json_object_foreach(arm, stage, list) if (strcmp(stage, "total") != 0)
        json_object_set_new(out, stage,
                            json_real(kvm_report_median(arm, stage, scratch).value));
    return out;
}

kvm_est kvm_report_speedup(const kvm_report_builder *b, const json_t *cold,
                           const json_t *swap, kvm_arena scratch)
{
    ptrdiff_t n, m;
    const double *x = kvm_report_numbers(get(cold, "total"), &n, &scratch);
    const double *y = kvm_report_numbers(get(swap, "total"), &m, &scratch);
    if (!x || !y || n != m)
        return kvm_est_missing(KVM_STR("rounds of the arms differ"));
    return kvm_ratio_rounds(x, y, n, b->seed, scratch);
}

/* seconds that making the target's cache takes, of the median round of each stage */
static double translation(const json_t *swap, kvm_arena scratch)
{
    static const char *const stages[] = {"tokens", "translate", "states"};
    double sum = 0;
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++)
        if (get(swap, stages[i]))
            sum += kvm_report_median(swap, stages[i], scratch).value;
    return sum;
}

static json_t *point_json(kvm_est sooner, const json_t *p, kvm_arena scratch)
{
    json_t *cold = get(p, "cold"), *swap = get(p, "switch");
    const double tokens = json_number_value(get(p, "tokens"));
    const double translate = translation(swap, scratch);
    json_t *out = json_object();
    json_object_set(out, "tokens", get(p, "tokens"));
    json_object_set(out, "rounds", get(p, "rounds"));
    json_object_set_new(out, "cold",
                        kvm_est_json(kvm_report_median(cold, "total", scratch)));
    json_object_set_new(out, "switch",
                        kvm_est_json(kvm_report_median(swap, "total", scratch)));
    json_object_set_new(out, "speedup", kvm_est_json(sooner));
    json_object_set_new(out, "cold_stages", stages_json(cold, scratch));
    json_object_set_new(out, "switch_stages", stages_json(swap, scratch));
    json_object_set(out, "computed_bytes", get(p, "computed_bytes"));
    json_object_set(out, "peak_bytes", get(p, "peak_bytes"));
    if (translate > 0)
        json_object_set_new(out, "translate_tokens_per_s",
                            json_real(tokens / translate));
    return out;
}

/* The steps whose cost a report is given (kvm_graph__report_inputs): a title, which the
 * model of that side ends; whom the result serves; and whether the closed form, which
 * amortisation is about, was built with it. */
static const struct cost_row {
    const char *step, *title, *side, *serves;
    bool closed_form;
} cost_rows[] = {
    {"capture source", "capture of ", "source", "model", true},
    {"capture target", "capture of ", "target", "model", true},
    /* the Gram of one capture; the target's where maps read its own rows */
    {"stats source", "moments of ", "source", "model", true},
    {"stats target", "moments of ", "target", "model", true},
    /* is read transposed in the other direction */
    {"stats cross", "moments of both models", NULL, "directions", true},
    {"fit", "fit", NULL, "direction", true}, /* also of every candidate: "fit 1" */
    {"choose", "choice among the fits", NULL, "direction", true},
    {"mlp", "training of the MLP maps", NULL, "direction", false},
    {"distill", "distillation", NULL, "direction", false},
    /* the way back, which conversations take: the other direction's translator */
    {"stats back", "moments of ", "target", "model", false},
    {"fit back", "fit of the way back", NULL, "directions", false}, /* "fit back 1" */
    {"choose back", "choice among the fits of the way back", NULL, "directions", false},
    {"distill back", "distillation of the way back", NULL, "directions", false},
};

static const struct cost_row *cost_row(const char *step)
{
    for (size_t i = 0; i < sizeof cost_rows / sizeof *cost_rows; i++)
        if (strcmp(cost_rows[i].step, step) == 0) return &cost_rows[i];
    if (strncmp(step, "fit back ", 9) == 0) return cost_row("fit back");
    return strncmp(step, "fit ", 4) == 0 ? cost_row("fit") : NULL;
}

/* "fit 2" -> "fit: states copy", as the table of what was tried has it; the report has
 * no such table of the way back: "fit of the way back, 2" */
static const char *candidate_title(const kvm_report_builder *b, const char *step)
{
    int64_t n = 0;
    if (strncmp(step, "fit back ", 9) == 0)
        return kvm_str_fmt(b->job->keep, "fit of the way back, %s", step + 9).at;
    const json_t *tried = b->fit ? get(b->fit, "tried") : NULL;
    if (!kvm_str_to_i64(kvm_str_of(step + strlen("fit ")), &n) || n < 1) return step;
    const char *title =
        json_string_value(get(json_array_get(tried, (size_t)(n - 1)), "title"));
    return title ? kvm_str_fmt(b->job->keep, "fit: %s", title).at : step;
}

const char *kvm_report_step_title(const kvm_report_builder *b, const char *step)
{
    const struct cost_row *row = cost_row(step);
    if (!row) return NULL;
    if (strcmp(step, row->step) != 0) return candidate_title(b, step);
    if (!row->side) return row->title;
    const json_t *model = get(b->job->params.v, row->side);
    return kvm_str_fmt(b->job->keep, "%s%s", row->title,
                       json_string_value(get(model, "name")))
        .at;
}

static double total_cost(kvm_report_builder *b, json_t *steps, kvm_err *err,
                         kvm_status *s)
{
    double sum = 0;
    const char *name;
    const kvm_job_input *in;
    for (ptrdiff_t i = 0; !*s && (in = kvm_report_nth(b, "cost", i, &name)); i++) {
        json_t *cost;
        const struct cost_row *row = cost_row(name);
        *s = row ? kvm_report_load(b, in, &cost, err)
                 : kvm_fail(err, KVM_USAGE, "cost.%s: there is no such step", name);
        if (*s) break;
        const double seconds = json_number_value(get(cost, "seconds"));
        if (row->closed_form) sum += seconds;
        json_array_append_new(steps, json_pack("{s:s, s:s, s:f, s:O*, s:O*}", "title",
                                               kvm_report_step_title(b, name), "serves",
                                               row->serves, "seconds", seconds,
                                               "cpu_seconds", get(cost, "cpu_seconds"),
                                               "attempts", get(cost, "attempts")));
    }
    return sum;
}

/* The lengths of a timing, each with its medians and their ratio. */
typedef struct timed {
    double tokens[MAX_POINTS], cold[MAX_POINTS], swap[MAX_POINTS];
    kvm_est sooner[MAX_POINTS];
    ptrdiff_t n;
} timed;

static kvm_est paid_after(double seconds, const timed *t, ptrdiff_t i)
{
    if (kvm_est_spans(t->sooner[i], 1))
        return kvm_est_missing(
            KVM_STR("the switch is not shown to be sooner: the ratio's interval "
                    "contains 1"));
    return kvm_amortise(seconds, t->cold[i], t->swap[i]);
}

static kvm_status add_build(kvm_report_builder *b, const timed *t, kvm_err *err)
{
    json_t *steps = json_array(), *amortise = json_array();
    kvm_status s = KVM_OK;
    const double seconds = total_cost(b, steps, err, &s);
    json_t *build = json_pack("{s:o, s:o}", "steps", steps, "amortise", amortise);
    json_object_set_new(b->doc, "build", build);
    json_object_set(build, "bytes", get(get(b->doc, "translator"), "bytes"));
    for (ptrdiff_t i = 0; i < t->n; i++)
        json_array_append_new(
            amortise, json_pack("{s:f, s:o}", "tokens", t->tokens[i], "switches",
                                kvm_est_json(paid_after(seconds, t, i))));
    return s;
}

static kvm_status add_timing(kvm_report_builder *b, timed *t, const json_t *timing,
                             kvm_arena scratch, kvm_err *err)
{
    json_t *points = json_array(), *p;
    size_t i;
    json_int_t rounds = 0;
    json_array_foreach(get(timing, "points"), i, p)
    {
        const json_t *cold = get(p, "cold"), *swap = get(p, "switch");
        if (t->n == MAX_POINTS) break;
        t->tokens[t->n] = json_number_value(get(p, "tokens"));
        t->cold[t->n] = kvm_report_median(cold, "total", scratch).value;
        t->swap[t->n] = kvm_report_median(swap, "total", scratch).value;
        t->sooner[t->n] = kvm_report_speedup(b, cold, swap, scratch);
        json_array_append_new(points, point_json(t->sooner[t->n], p, scratch));
        rounds = json_integer_value(get(p, "rounds")) > rounds
                     ? json_integer_value(get(p, "rounds"))
                     : rounds;
        t->n++;
    }
    const kvm_est even = kvm_break_even(t->tokens, t->sooner, t->n, scratch);
    json_object_set_new(b->doc, "timing",
                        json_pack("{s:O, s:O, s:O, s:I, s:o, s:o}", "machine",
                                  get(timing, "compute"), "threads",
                                  get(timing, "threads"), "warmups",
                                  get(timing, "warmups"), "rounds", rounds,
                                  "break_even", kvm_est_json(even), "points", points));
    return add_build(b, t, err);
}

kvm_status kvm_report_timing(kvm_report_builder *b, kvm_err *err)
{
    const kvm_job_input *in = kvm_job_find_input(b->job, "timing");
    timed t = {0};
    if (!in) {
        json_object_set_new(b->absent, "timing", json_string("the spec asks for none"));
        return add_build(b, &t, err);
    }
    json_t *timing;
    kvm_arena scratch = {0};
    TRY(kvm_report_load(b, in, &timing, err));
    TRY(kvm_arena_reserve(&scratch, (size_t)1 << 30, err));
    const kvm_status s = add_timing(b, &t, timing, scratch, err);
    kvm_arena_free(&scratch);
    return s;
}
