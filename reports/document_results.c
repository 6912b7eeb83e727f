/* document_results.c - the parts of a report document that come from running the
 * models: quality, timing, cost, ablations, and where it all came from. */
#include "reports/document_internal.h"

static kvm_suite_arm read_suite_arm(kvm_doc_reader *r, kvm_jat at)
{
    if (!r->status) r->status = kvm_json_object(at, r->err);
    const kvm_jat each = kvm_doc__get(r, at, "versus_controls");
    kvm_suite_arm arm = {
        .present = true,
        .score = kvm_doc__est(r, at, "score"),
        .retention = kvm_doc__est(r, at, "retention"),
        .floor_normalised = kvm_doc__est(r, at, "floor_normalised"),
        .gap_recovered = kvm_doc__est(r, at, "gap_recovered"),
        .versus_native = kvm_doc__est(r, at, "versus_native"),
        .versus_control = kvm_doc__est(r, at, "versus_control"),
        .versus_closed = kvm_doc__est(r, at, "versus_closed"),
    };
    for (int i = 0; i < KVM_CONTROLS; i++)
        arm.versus_each[i] = kvm_doc__est(r, each, kvm_arms[kvm_controls[i]].key);
    return arm;
}

/* calls back for every member of the object at.arms; keys are arms */
static void each_arm(kvm_doc_reader *r, kvm_jat at,
                     void (*fn)(kvm_doc_reader *, void *, kvm_arm, kvm_jat), void *out)
{
    const kvm_jat arms = kvm_doc__get(r, at, "arms");
    if (r->status || !kvm_json_has(arms)) return;
    r->status = kvm_json_object(arms, r->err);
    kvm_str key;
    const json_t *value;
    for (void *it = NULL; !r->status && kvm_json_next(arms, &it, &key, &value);) {
        const kvm_arm arm = kvm_doc__arm(r, arms, key);
        if (!r->status) fn(r, out, arm, kvm_doc__get(r, arms, key.at));
    }
}

static void put_suite_arm(kvm_doc_reader *r, void *out, kvm_arm arm, kvm_jat at)
{
    ((kvm_suite *)out)->arms[arm] = read_suite_arm(r, at);
}

static void put_needle_arm(kvm_doc_reader *r, void *out, kvm_arm arm, kvm_jat at)
{
    kvm_needle_point *p = out;
    p->present[arm] = true;
    p->arms[arm] = kvm_doc__est_at(r, at);
}

bool kvm_doc__lower_better(kvm_doc_reader *r, kvm_jat at)
{
    const kvm_str word = kvm_doc__str(r, at, "better");
    const bool low = kvm_str_eq(word, KVM_STR("low"));
    if (!r->status && word.len && !low && !kvm_str_eq(word, KVM_STR("high")))
        r->status = kvm_fail(r->err, KVM_FORMAT,
                             "%s: %s.better: \"%.*s\"; expected high or low", at.file,
                             at.path, KVM_STR_ARG(word));
    return low;
}

static void read_suites(kvm_doc_reader *r, kvm_jat doc)
{
    const kvm_jat list = kvm_doc__get(r, doc, "suites");
    kvm_suite *suites = kvm_doc__list_at(r, list, sizeof *suites, &r->d->suite_count);
    for (ptrdiff_t i = 0; i < r->d->suite_count; i++) {
        const kvm_jat at = kvm_doc__item(r, list, i);
        kvm_suite *s = &suites[i];
        s->name = kvm_doc__str(r, at, "name");
        s->title = kvm_doc__str(r, at, "title");
        s->metric = kvm_doc__str(r, at, "metric");
        s->note = kvm_doc__str(r, at, "note");
        s->format = kvm_doc__format(r, at);
        s->chance = kvm_doc__num(r, at, "chance");
        s->items = kvm_doc__num(r, at, "items");
        s->lower_better = kvm_doc__lower_better(r, at);
        s->secondary = kvm_doc__flag(r, at, "secondary", false);
        if (!s->title.len) s->title = s->name;
        each_arm(r, at, put_suite_arm, s);
    }
    r->d->suites = suites;
}

static void read_needle(kvm_doc_reader *r, kvm_jat doc)
{
    const kvm_jat at = kvm_doc__get(r, doc, "needle");
    r->d->needle.items = kvm_doc__num(r, at, "items");
    r->d->needle.note = kvm_doc__str(r, at, "note");
    const kvm_jat list = kvm_doc__get(r, at, "points");
    kvm_needle_point *points =
        kvm_doc__list_at(r, list, sizeof *points, &r->d->needle.count);
    for (ptrdiff_t i = 0; i < r->d->needle.count; i++) {
        const kvm_jat point = kvm_doc__item(r, list, i);
        for (int a = 0; a < KVM_ARM_COUNT; a++)
            points[i].arms[a] = kvm_est_missing(KVM_STR(""));
        points[i].tokens = kvm_doc__num(r, point, "tokens");
        points[i].achieved = kvm_doc__num(r, point, "achieved");
        points[i].bos = kvm_doc__num(r, point, "bos");
        points[i].items = kvm_doc__num(r, point, "items");
        each_arm(r, point, put_needle_arm, &points[i]);
    }
    r->d->needle.points = points;
}

static void put_answers_arm(kvm_doc_reader *r, void *out, kvm_arm arm, kvm_jat at)
{
    ((kvm_answers *)out)->arms[arm] = (kvm_answers_arm){
        .present = true,
        .tokens = kvm_doc__est(r, at, "tokens"),
        .versus_native = kvm_doc__est(r, at, "versus_native"),
        .blank = kvm_doc__est(r, at, "blank"),
        .empty = kvm_doc__est(r, at, "empty"),
        .first_agreement = kvm_doc__est(r, at, "first_agreement"),
    };
}

static void read_answers(kvm_doc_reader *r, kvm_jat doc)
{
    const kvm_jat list = kvm_doc__get(r, doc, "answers");
    kvm_answers *answers =
        kvm_doc__list_at(r, list, sizeof *answers, &r->d->answers.count);
    for (ptrdiff_t i = 0; i < r->d->answers.count; i++) {
        const kvm_jat at = kvm_doc__item(r, list, i);
        answers[i].suite = kvm_doc__str(r, at, "suite");
        answers[i].items = kvm_doc__num(r, at, "items");
        each_arm(r, at, put_answers_arm, &answers[i]);
    }
    r->d->answers.at = answers;
}

static kvm_stages read_stages(kvm_doc_reader *r, kvm_jat point, const char *key)
{
    kvm_stages s = {0};
    const kvm_jat at = kvm_doc__get(r, point, key);
    if (r->status || !kvm_json_has(at)) return s;
    r->status = kvm_json_object(at, r->err);
    const ptrdiff_t n = (ptrdiff_t)json_object_size(at.v);
    s.at = kvm_new(r->keep, kvm_stage, n);
    if (n && !s.at && !r->status) r->status = kvm_nomem(r->err, r->keep);
    kvm_str name;
    const json_t *value;
    for (void *it = NULL; !r->status && kvm_json_next(at, &it, &name, &value);)
        s.at[s.n++] = (kvm_stage){name, kvm_doc__num(r, at, name.at)};
    return s;
}

/* of a length; where it says nothing, as many as any */
static double rounds_of(kvm_doc_reader *r, kvm_jat point)
{
    const double own = kvm_doc__num(r, point, "rounds");
    return isfinite(own) ? own : r->d->timing.rounds;
}

static void read_timing(kvm_doc_reader *r, kvm_jat doc)
{
    const kvm_jat at = kvm_doc__get(r, doc, "timing");
    r->d->timing.machine = kvm_doc__str(r, at, "machine");
    r->d->timing.threads = kvm_doc__num(r, at, "threads");
    r->d->timing.rounds = kvm_doc__num(r, at, "rounds");
    r->d->timing.warmups = kvm_doc__num(r, at, "warmups");
    r->d->timing.break_even = kvm_doc__est(r, at, "break_even");
    const kvm_jat list = kvm_doc__get(r, at, "points");
    kvm_time_point *points =
        kvm_doc__list_at(r, list, sizeof *points, &r->d->timing.count);
    for (ptrdiff_t i = 0; i < r->d->timing.count; i++) {
        const kvm_jat point = kvm_doc__item(r, list, i);
        points[i] = (kvm_time_point){
            .tokens = kvm_doc__num(r, point, "tokens"),
            .rounds = rounds_of(r, point),
            .cold = kvm_doc__est(r, point, "cold"),
            .swap = kvm_doc__est(r, point, "switch"),
            .speedup = kvm_doc__est(r, point, "speedup"),
            .cold_stages = read_stages(r, point, "cold_stages"),
            .switch_stages = read_stages(r, point, "switch_stages"),
            .computed_bytes = kvm_doc__num(r, point, "computed_bytes"),
            .peak_bytes = kvm_doc__num(r, point, "peak_bytes"),
            .tokens_per_s = kvm_doc__num(r, point, "translate_tokens_per_s"),
            .note = kvm_doc__str(r, point, "note"),
        };
    }
    r->d->timing.points = points;
}

static kvm_step_serves read_serves(kvm_doc_reader *r, kvm_jat at)
{
    static const char *const words[KVM_STEP_SERVES_COUNT] = {"model", "directions",
                                                             "direction"};
    const kvm_str word = kvm_doc__str(r, at, "serves");
    for (kvm_step_serves s = 0; s < KVM_STEP_SERVES_COUNT; s++)
        if (kvm_str_eq(word, kvm_str_of(words[s]))) return s;
    if (!r->status)
        r->status = kvm_fail(r->err, KVM_FORMAT,
                             "%s: %s.serves: \"%s\"; expected model, directions or "
                             "direction",
                             at.file, at.path, kvm_quote(word).at);
    return KVM_STEP_DIRECTION;
}

static void read_build(kvm_doc_reader *r, kvm_jat doc)
{
    const kvm_jat at = kvm_doc__get(r, doc, "build");
    r->d->build.bytes = kvm_doc__num(r, at, "bytes");
    const kvm_jat steps = kvm_doc__get(r, at, "steps");
    r->d->build.steps =
        kvm_doc__list_at(r, steps, sizeof *r->d->build.steps, &r->d->build.step_count);
    for (ptrdiff_t i = 0; i < r->d->build.step_count; i++) {
        const kvm_jat step = kvm_doc__item(r, steps, i);
        r->d->build.steps[i] = (kvm_build_step){
            .title = kvm_doc__str(r, step, "title"),
            .seconds = kvm_doc__num(r, step, "seconds"),
            .cpu_seconds = kvm_doc__num(r, step, "cpu_seconds"),
            .attempts = kvm_doc__num(r, step, "attempts"),
            .serves = read_serves(r, step),
        };
    }
    const kvm_jat list = kvm_doc__get(r, at, "amortise");
    r->d->build.amortise = kvm_doc__list_at(r, list, sizeof *r->d->build.amortise,
                                            &r->d->build.amortise_count);
    for (ptrdiff_t i = 0; i < r->d->build.amortise_count; i++) {
        const kvm_jat item = kvm_doc__item(r, list, i);
        r->d->build.amortise[i] = (kvm_amortised){
            .tokens = kvm_doc__num(r, item, "tokens"),
            .switches = kvm_doc__est(r, item, "switches"),
        };
    }
}

/* (columns) figures of a row, or NULL */
static kvm_est *read_cells(kvm_doc_reader *r, kvm_jat row, const char *key)
{
    ptrdiff_t n;
    const kvm_jat list = kvm_doc__get(r, row, key);
    kvm_est *cells = kvm_doc__list_at(r, list, sizeof *cells, &n);
    if (kvm_json_has(list))
        kvm_doc__length(r, row, key, n, r->d->ablations.column_count);
    for (ptrdiff_t c = 0; c < n && !r->status; c++)
        cells[c] = kvm_doc__est_at(r, kvm_json_item(list, r->keep, c));
    return cells;
}

static void read_ablation_row(kvm_doc_reader *r, kvm_ablation_row *row, kvm_jat at)
{
    *row = (kvm_ablation_row){
        .name = kvm_doc__str(r, at, "name"),
        .title = kvm_doc__str(r, at, "title"),
        .note = kvm_doc__str(r, at, "note"),
        .cells = read_cells(r, at, "cells"),
        .versus = read_cells(r, at, "versus"),
    };
    if (!row->cells) kvm_doc__length(r, at, "cells", 0, r->d->ablations.column_count);
}

static void read_ablations(kvm_doc_reader *r, kvm_jat doc)
{
    const kvm_jat at = kvm_doc__get(r, doc, "ablations");
    const kvm_jat columns = kvm_doc__get(r, at, "columns");
    const kvm_jat rows = kvm_doc__get(r, at, "rows");
    kvm_ablation_column *c =
        kvm_doc__list_at(r, columns, sizeof *c, &r->d->ablations.column_count);
    for (ptrdiff_t i = 0; i < r->d->ablations.column_count; i++) {
        const kvm_jat column = kvm_doc__item(r, columns, i);
        c[i] = (kvm_ablation_column){
            .title = kvm_doc__str(r, column, "title"),
            .suite = kvm_doc__str(r, column, "suite"),
            .metric = kvm_doc__str(r, column, "metric"),
            .format = kvm_doc__format(r, column),
            .tokens = kvm_doc__num(r, column, "tokens"),
            .beyond = kvm_doc__num(r, column, "beyond"),
            .items = kvm_doc__num(r, column, "items"),
            .native = kvm_doc__est(r, column, "native"),
        };
    }
    r->d->ablations.columns = c;
    r->d->ablations.rows = kvm_doc__list_at(r, rows, sizeof *r->d->ablations.rows,
                                            &r->d->ablations.row_count);
    for (ptrdiff_t i = 0; i < r->d->ablations.row_count; i++)
        read_ablation_row(r, &r->d->ablations.rows[i], kvm_doc__item(r, rows, i));
}

static void read_fact(kvm_doc_reader *r, kvm_str out[2], kvm_jat row)
{
    ptrdiff_t n = 0;
    if (!r->status) r->status = kvm_json_array(row, &n, r->err);
    kvm_doc__length(r, row, "[]", n, 2);
    for (ptrdiff_t i = 0; i < 2 && !r->status; i++)
        r->status = kvm_json_str(kvm_json_item(row, r->keep, i), &out[i], r->err);
}

static void read_provenance(kvm_doc_reader *r, kvm_jat doc)
{
    const kvm_jat list = kvm_doc__get(r, doc, "provenance");
    r->d->provenance =
        kvm_doc__list_at(r, list, sizeof *r->d->provenance, &r->d->fact_count);
    for (ptrdiff_t i = 0; i < r->d->fact_count; i++) {
        const kvm_jat at = kvm_doc__item(r, list, i);
        kvm_facts *f = &r->d->provenance[i];
        f->title = kvm_doc__str(r, at, "title");
        const kvm_jat rows = kvm_doc__get(r, at, "rows");
        f->rows = kvm_doc__list_at(r, rows, sizeof *f->rows, &f->count);
        for (ptrdiff_t j = 0; j < f->count && !r->status; j++)
            read_fact(r, f->rows[j], kvm_json_item(rows, r->keep, j));
    }
}

void kvm_doc__results(kvm_doc_reader *r, kvm_jat doc)
{
    read_suites(r, doc);
    read_needle(r, doc);
    read_answers(r, doc);
    read_timing(r, doc);
    read_build(r, doc);
    read_ablations(r, doc);
    read_provenance(r, doc);
}
