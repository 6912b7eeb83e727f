/* report_layers.c - the fit layer by layer. */
#include <string.h>

#include "jobs/report_parts.h"
#include "reports/stats.h"

enum { MOST_OBJECTS = 16 };

static json_t *get(const json_t *o, const char *key)
{
    return json_object_get(o, key);
}

/* ---- which objects and layers there are ---- */

/* A figure of one object in one layer. */
typedef struct cell {
    const char *object; /* label of the fit */
    json_int_t layer;
    const json_t *held, *fit; /* NULL: none */
} cell;

/* calls back for every object of every layer that a fit's figures know */
static void each_cell(const json_t *figures, void (*fn)(void *, const cell *),
                      void *ctx)
{
    json_t *row;
    size_t i;
    json_array_foreach(get(figures, "layers"), i, row)
        fn(ctx, &(cell){json_string_value(get(row, "object")),
                        json_integer_value(get(row, "layer")), get(row, "r2_held"),
                        get(row, "r2_fit")});
    json_array_foreach(get(figures, "exact"), i, row)
        fn(ctx, &(cell){json_string_value(get(row, "object")),
                        json_integer_value(get(row, "layer")), NULL, NULL});
    json_array_foreach(get(figures, "states"), i, row)
    {
        const json_int_t layer = json_integer_value(get(row, "layer"));
        fn(ctx, &(cell){"state", layer, get(row, "r2_held"), NULL});
        fn(ctx, &(cell){"window", layer, get(row, "window_r2_held"), NULL});
    }
}

/* The columns of the section, in the order in which the fit has them. */
typedef struct columns {
    const char *object[MOST_OBJECTS];
    ptrdiff_t n;
} columns;

static ptrdiff_t column_of(const columns *c, const char *object)
{
    for (ptrdiff_t i = 0; i < c->n; i++)
        if (strcmp(c->object[i], object) == 0) return i;
    return -1;
}

static void add_column(void *ctx, const cell *at)
{
    columns *c = ctx;
    if (column_of(c, at->object) < 0 && c->n < MOST_OBJECTS)
        c->object[c->n++] = at->object;
}

static json_t *columns_json(const columns *c)
{
    json_t *list = json_array();
    for (ptrdiff_t i = 0; i < c->n; i++) {
        const kvm_report_name name = kvm_report_object(c->object[i]);
        json_array_append_new(
            list, json_pack("{s:s, s:s}", "object", name.key, "title", name.brief));
    }
    return list;
}

/* ---- rows ---- */

typedef struct layer_rows {
    const columns *columns;
    json_t *of; /* array, ascending by layer */
} layer_rows;

static json_t *no_rows(const columns *c)
{
    json_t *list = json_array();
    for (ptrdiff_t i = 0; i < c->n; i++)
        json_array_append_new(list,
                              kvm_est_json(kvm_est_missing(KVM_STR("no such map"))));
    return list;
}

/* the row of a layer, made where there is none yet */
static json_t *row_of(layer_rows *r, json_int_t layer)
{
    size_t i = 0;
    for (; i < json_array_size(r->of); i++) {
        json_t *row = json_array_get(r->of, i);
        const json_int_t at = json_integer_value(get(row, "layer"));
        if (at == layer) return row;
        if (at > layer) break;
    }
    json_array_insert_new(r->of, i,
                          json_pack("{s:I, s:o, s:o}", "layer", layer, "r2",
                                    no_rows(r->columns), "r2_fit",
                                    no_rows(r->columns)));
    return json_array_get(r->of, i);
}

static void put(json_t *row, const char *key, ptrdiff_t column, json_t *figure)
{
    json_array_set_new(get(row, key), (size_t)column, figure);
}

static void add_cell(void *ctx, const cell *at)
{
    layer_rows *r = ctx;
    const ptrdiff_t column = column_of(r->columns, at->object);
    if (column < 0) return;
    json_t *row = row_of(r, at->layer);
    const char *why = at->held ? KVM_REPORT_NO_SHARE : "no figure: it is not fitted";
    put(row, "r2", column, kvm_report_figure(at->held, why));
    if (at->held && !at->fit) why = "read on held-out states alone";
    put(row, "r2_fit", column, kvm_report_figure(at->fit, why));
}

static void copy(json_t *to, const char *key, const json_t *from)
{
    json_t *v = get(from, key);
    if (v) json_object_set(to, key, v);
}

/* one arm: R2 from its fit, attention figures from the evaluation */
static json_t *arm_rows(const columns *c, const json_t *figures,
                        const json_t *attention)
{
    layer_rows r = {c, json_array()};
    json_t *a;
    size_t i;
    each_cell(figures, add_cell, &r);
    json_array_foreach(attention, i, a)
    {
        json_t *row = row_of(&r, json_integer_value(get(a, "layer")));
        copy(row, "cosine", a);
        copy(row, "c_k", a);
        copy(row, "c_v", a);
    }
    return r.of;
}

kvm_status kvm_report_attention(kvm_report_builder *b, kvm_arm arm, json_t **out,
                                kvm_err *err)
{
    *out = NULL;
    const kvm_job_input *in;
    for (ptrdiff_t i = 0; !*out && (in = kvm_report_nth(b, "figures", i, NULL)); i++) {
        json_t *figures;
        TRY(kvm_report_load(b, in, &figures, err));
        *out = get(get(figures, "attention"), kvm_arms[arm].key);
    }
    return KVM_OK;
}

static json_t *arm_json(kvm_arm arm, json_t *rows)
{
    return json_pack("{s:s, s:o}", "arm", kvm_arms[arm].key, "rows", rows);
}

kvm_status kvm_report_layers(kvm_report_builder *b, kvm_err *err)
{
    json_t *arms = json_array(), *closed;
    columns c = {0};
    each_cell(b->fit, add_column, &c);
    json_object_set_new(
        b->doc, "layers",
        json_pack("{s:o, s:o}", "objects", columns_json(&c), "arms", arms));
    TRY(kvm_report_attention(b, KVM_ARM_CLOSED_FORM, &closed, err));
    json_array_append_new(arms,
                          arm_json(KVM_ARM_CLOSED_FORM, arm_rows(&c, b->fit, closed)));
    const kvm_job_input *mlp = kvm_job_find_input(b->job, "mlp");
    if (!mlp) return KVM_OK;
    json_t *figures, *attention;
    TRY(kvm_report_load(b, mlp, &figures, err));
    TRY(kvm_report_attention(b, KVM_ARM_MLP, &attention, err));
    json_array_append_new(arms,
                          arm_json(KVM_ARM_MLP, arm_rows(&c, figures, attention)));
    return KVM_OK;
}
