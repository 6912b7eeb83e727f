/* report_ablations.c - what each ablation scores on every suite that they are scored
 * on, beside the complete closed form, item by item. */
#include <string.h>

#include "jobs/ablations.h"
#include "jobs/report_parts.h"

static json_t *get(const json_t *o, const char *key)
{
    return json_object_get(o, key);
}

/* An input "ablation.NAME.SUITE". */
typedef struct ablated {
    const char *name, *suite; /* "none": nothing is taken away */
    json_t *items;
} ablated;

/* One figure of a suite; of needles also of one length, or of those beyond what the
 * maps were fitted at, since a translator may fail there alone. */
typedef struct column {
    const ablated *complete;
    const kvm_report_metric *metric;
    int64_t length, beyond; /* 0: all */
} column;

typedef struct ablation_table {
    kvm_report_builder *b;
    ablated *of; /* (n) */
    ptrdiff_t n;
    column *columns; /* (column_count) */
    ptrdiff_t column_count;
    kvm_arena *keep;
} ablation_table;

/* ---- inputs ---- */

static kvm_status load(ablation_table *t, kvm_err *err)
{
    const kvm_job_input *in;
    const char *rest;
    t->of = kvm_new(t->keep, ablated, t->b->job->input_count);
    if (!t->of) return kvm_nomem(err, t->keep);
    for (; (in = kvm_report_nth(t->b, "ablation", t->n, &rest)); t->n++) {
        kvm_str name, suite;
        if (!kvm_str_cut(kvm_str_of(rest), '.', &name, &suite))
            return kvm_fail(err, KVM_FORMAT, "the input ablation.%s names no suite",
                            rest);
        name = kvm_str_copy(t->keep, name);
        if (!name.at) return kvm_nomem(err, t->keep);
        t->of[t->n] = (ablated){.name = name.at, .suite = suite.at};
        TRY(kvm_report_load_lines(t->b, in, &t->of[t->n].items, err));
    }
    return KVM_OK;
}

static const ablated *find(const ablation_table *t, const char *name, const char *suite)
{
    for (ptrdiff_t i = 0; i < t->n; i++)
        if (!strcmp(t->of[i].name, name) && !strcmp(t->of[i].suite, suite))
            return &t->of[i];
    return NULL;
}

/* ---- columns ---- */

static bool scored_all(const json_t *scores, const char *kind)
{
    for (const kvm_report_metric *m = kvm_report_metrics; m->kind; m++)
        if (strcmp(m->kind, kind) == 0 && !get(scores, m->name)) return false;
    return true;
}

/* Kinds share metrics: it is the one of which all were scored. */
static const char *kind_of_items(const json_t *items)
{
    const json_t *scores = get(get(json_array_get(items, 0), "scores"), "native");
    for (const kvm_report_metric *m = kvm_report_metrics; m->kind; m++)
        if (scored_all(scores, m->kind)) return m->kind;
    return "";
}

static void add_lengths(ablation_table *t, const ablated *complete,
                        const kvm_report_metric *m)
{
    int64_t lengths[KVM_REPORT_LENGTHS];
    const ptrdiff_t n = kvm_report_lengths(complete->items, lengths);
    const int64_t fitted =
        json_integer_value(get(get(t->b->job->params.v, "calibration"), "tokens"));
    for (ptrdiff_t i = 0; i < n; i++)
        t->columns[t->column_count++] = (column){complete, m, lengths[i], 0};
    if (n && fitted > 0 && lengths[n - 1] > fitted)
        t->columns[t->column_count++] = (column){complete, m, 0, fitted};
}

static void add_columns(ablation_table *t, const ablated *complete)
{
    const char *kind = kind_of_items(complete->items);
    for (const kvm_report_metric *m = kvm_report_metrics; m->kind; m++) {
        if (strcmp(m->kind, kind) != 0) continue;
        t->columns[t->column_count++] = (column){complete, m, 0, 0};
        if (strcmp(kind, "needle") == 0) add_lengths(t, complete, m);
    }
}

static kvm_status list_columns(ablation_table *t, kvm_err *err)
{
    ptrdiff_t metrics = 0;
    for (const kvm_report_metric *m = kvm_report_metrics; m->kind; m++) metrics++;
    t->columns = kvm_new(t->keep, column, t->n * metrics * (KVM_REPORT_LENGTHS + 2));
    if (!t->columns) return kvm_nomem(err, t->keep);
    for (ptrdiff_t i = 0; i < t->n; i++)
        if (strcmp(t->of[i].name, "none") == 0) add_columns(t, &t->of[i]);
    return KVM_OK;
}

/* ---- figures ---- */

static bool counts(const column *c, const json_t *item)
{
    const int64_t length = json_integer_value(get(item, "length"));
    return (!c->length || length == c->length) && length > c->beyond - !c->beyond;
}

/* the column of one arm on the items that count, and their weights; *n: how many */
static kvm_status values(const column *c, const json_t *items, kvm_arm arm, double **x,
                         double **weight, ptrdiff_t *n, kvm_arena *scratch,
                         kvm_err *err)
{
    json_t *item;
    size_t i;
    TRY(kvm_report_column(x, items, kvm_arms[arm].key, c->metric->name, scratch, err));
    *weight = kvm_new(scratch, double, (ptrdiff_t)json_array_size(items) + 1);
    if (!*weight) return kvm_nomem(err, scratch);
    *n = 0;
    json_array_foreach(items, i, item)
    {
        if (!counts(c, item)) continue;
        (*x)[*n] = (*x)[i];
        (*weight)[(*n)++] = json_number_value(get(item, "scored"));
    }
    if (c->metric->mean == KVM_MEAN_ITEM) *weight = NULL;
    return KVM_OK;
}

/* an arm of some items, and less the complete closed form on the same */
static kvm_status compare(const ablation_table *t, const column *c, const json_t *items,
                          kvm_arm arm, kvm_est *score, kvm_est *versus, kvm_err *err)
{
    kvm_arena scratch = *t->keep;
    double *x, *base, *weight;
    ptrdiff_t n, other;
    TRY(values(c, c->complete->items, KVM_ARM_CLOSED_FORM, &base, &weight, &other,
               &scratch, err));
    TRY(values(c, items, arm, &x, &weight, &n, &scratch, err));
    if (n != other)
        return kvm_fail(err, KVM_MISMATCH,
                        "an ablation was scored on %td items of %s, the complete "
                        "closed form on %td",
                        n, c->complete->suite, other);
    const kvm_pair_of_scores p = {.item = x,
                                  .base = base,
                                  .weight = weight,
                                  .exp_of_mean = c->metric->mean == KVM_MEAN_PERPLEXITY,
                                  .n = n,
                                  .seed = t->b->seed};
    return kvm_paired(score, versus, &p, scratch, err);
}

static json_t *column_title(const column *c)
{
    if (c->length)
        return json_sprintf("%s at %lld", c->metric->title, (long long)c->length);
    if (c->beyond)
        return json_sprintf("%s beyond %lld", c->metric->title, (long long)c->beyond);
    return json_string(c->metric->title);
}

static json_int_t items_of(const column *c)
{
    json_int_t n = 0;
    json_t *item;
    size_t i;
    json_array_foreach(c->complete->items, i, item) n += counts(c, item);
    return n;
}

static kvm_status column_json(const ablation_table *t, const column *c, json_t *list,
                              kvm_err *err)
{
    kvm_est native, versus;
    TRY(compare(t, c, c->complete->items, KVM_ARM_NATIVE, &native, &versus, err));
    json_t *out = json_pack("{s:o, s:s, s:s, s:s, s:o, s:I}", "title", column_title(c),
                            "format", c->metric->format, "suite", c->complete->suite,
                            "metric", c->metric->name, "native", kvm_est_json(native),
                            "items", items_of(c));
    if (c->length) json_object_set_new(out, "tokens", json_integer(c->length));
    if (c->beyond) json_object_set_new(out, "beyond", json_integer(c->beyond));
    json_array_append_new(list, out);
    return KVM_OK;
}

static kvm_status add_row(const ablation_table *t, const char *name, const char *title,
                          json_t *rows, kvm_err *err)
{
    json_t *cells = json_array(), *versus = json_array();
    json_t *row =
        json_pack("{s:s, s:s, s:o}", "name", name, "title", title, "cells", cells);
    if (strcmp(name, "none") != 0) json_object_set(row, "versus", versus);
    json_array_append_new(rows, row);
    kvm_status s = KVM_OK;
    for (ptrdiff_t i = 0; !s && i < t->column_count; i++) {
        const column *c = &t->columns[i];
        const ablated *a = find(t, name, c->complete->suite);
        kvm_est score = kvm_est_missing(KVM_STR("not scored on this suite"));
        kvm_est less = score;
        if (a) s = compare(t, c, a->items, KVM_ARM_CLOSED_FORM, &score, &less, err);
        json_array_append_new(cells, kvm_est_json(score));
        json_array_append_new(versus, kvm_est_json(less));
    }
    json_decref(versus);
    return s;
}

/* what the others are compared with stands first; an ablation is one row, on however
 * many suites */
static kvm_status add_rows(const ablation_table *t, json_t *rows, kvm_err *err)
{
    TRY(add_row(t, "none", "complete closed form", rows, err));
    for (ptrdiff_t i = 0; i < t->n; i++) {
        const kvm_ablation *a;
        if (strcmp(t->of[i].name, "none") == 0) continue;
        if (strcmp(t->of[i].suite, t->columns[0].complete->suite) != 0) continue;
        TRY(kvm_ablation_find(&a, kvm_str_of(t->of[i].name),
                              (kvm_jat){.file = "report"}, err));
        TRY(add_row(t, a->name, a->title, rows, err));
    }
    return KVM_OK;
}

static kvm_status ablations(kvm_report_builder *b, kvm_arena *keep, kvm_err *err)
{
    ablation_table t = {.b = b, .keep = keep};
    json_t *columns = json_array(), *rows = json_array();
    json_object_set_new(b->doc, "ablations",
                        json_pack("{s:o, s:o}", "columns", columns, "rows", rows));
    TRY(load(&t, err));
    TRY(list_columns(&t, err));
    if (t.column_count == 0)
        return kvm_fail(err, KVM_NOTFOUND, "no ablation of nothing was scored");
    for (ptrdiff_t i = 0; i < t.column_count; i++)
        TRY(column_json(&t, &t.columns[i], columns, err));
    return add_rows(&t, rows, err);
}

kvm_status kvm_report_ablations(kvm_report_builder *b, kvm_err *err)
{
    kvm_arena keep = {0};
    if (!kvm_report_nth(b, "ablation", 0, NULL)) {
        json_object_set_new(b->absent, "ablations",
                            json_string("the spec asks for none"));
        return KVM_OK;
    }
    TRY(kvm_arena_reserve(&keep, (size_t)4 << 30, err));
    const kvm_status s = ablations(b, &keep, err);
    kvm_arena_free(&keep);
    return s;
}
