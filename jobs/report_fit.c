/* report_fit.c - what the fit found: translator, calibration, linearity, layers,
 * gates. */
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "jobs/report_parts.h"
#include "reports/stats.h"

static const char *title_of(const char *object)
{
    if (strcmp(object, "K") == 0) return "K content (position stripped)";
    if (strcmp(object, "K_rotated") == 0) return "K rotated";
    return "V";
}

static const char *object_key(const char *object)
{
    if (strcmp(object, "K") == 0) return "k_content";
    if (strcmp(object, "K_rotated") == 0) return "k_rotated";
    return "v";
}

static json_t *get(const json_t *o, const char *key)
{
    return json_object_get(o, key);
}

static double file_bytes(const kvm_job_input *in)
{
    struct stat st;
    return in && stat(in->path.at, &st) == 0 ? (double)st.st_size : 0;
}

static const char *shape_text(const json_t *fit)
{
    const bool matched = strcmp(json_string_value(get(fit, "heads")), "matched") == 0;
    return matched ? "per target head, the matched head of the k best source layers"
                   : "per target layer, all heads of the k best source layers";
}

static void add_translator(kvm_report_builder *b)
{
    const kvm_job_input *in = kvm_job_find_input(b->job, "translator");
    json_object_set_new(b->doc, "translator",
                        json_pack("{s:s, s:s, s:O, s:O, s:O, s:f, s:O}", "arm",
                                  kvm_arms[KVM_ARM_CLOSED_FORM].key, "shape",
                                  shape_text(b->fit), "k", get(b->fit, "k"), "lambda",
                                  get(b->fit, "lambda_k"), "parameters",
                                  get(b->fit, "parameters"), "bytes", file_bytes(in),
                                  "selected", get(b->fit, "selected")));
}

static void add_calibration(kvm_report_builder *b)
{
    const json_t *c = get(b->job->params.v, "calibration");
    const json_t *first = json_array_get(get(b->fit, "layers"), 0);
    json_object_set_new(
        b->doc, "calibration",
        json_pack("{s:O, s:O, s:O, s:O, s:O, s:O, s:O, s:O}", "text", get(c, "text"),
                  "sequences", get(c, "sequences"), "sequence_tokens", get(c, "tokens"),
                  "stride", get(c, "stride"), "rows", get(b->fit, "rows_fit"),
                  "choosing_rows", get(b->fit, "rows_choose"), "held_out_rows",
                  get(b->fit, "rows_held"), "features", get(first, "features")));
}

/* ---- linearity ---- */

static json_t *maps_json(const json_t *fit)
{
    json_t *list = json_array(), *splits;
    const char *space;
    json_object_foreach(get(fit, "maps"), space, splits) json_array_append_new(
        list, json_pack("{s:s, s:s, s:O}", "object", object_key(space), "title",
                        title_of(space), "r2", get(splits, "choose")));
    return list;
}

static json_t *greedy_json(const json_t *fit)
{
    static const char *const objects[] = {"K", "V"};
    json_t *list = json_array();
    for (int o = 0; o < 2; o++) {
        json_t *layers = json_array(), *row;
        size_t i;
        json_array_foreach(
            get(fit, "greedy"), i,
            row) if (strcmp(json_string_value(get(row, "object")), objects[o]) == 0)
            json_array_append_new(layers, json_pack("{s:O, s:O, s:O}", "target",
                                                    get(row, "target"), "order",
                                                    get(row, "order"), "r2",
                                                    get(row, "choose")));
        json_array_append_new(list, json_pack("{s:s, s:s, s:o}", "object",
                                              object_key(objects[o]), "title",
                                              title_of(objects[o]), "layers", layers));
    }
    return list;
}

/* series of a curve; `keep` picks the points */
static json_t *series_json(const json_t *curve,
                           bool (*keep)(const json_t *curve, size_t i))
{
    json_t *list = json_array(), *s;
    size_t n, i;
    json_array_foreach(get(curve, "series"), n, s)
    {
        json_t *r2 = json_array(), *v;
        json_array_foreach(get(s, "choose"), i, v) if (keep(curve, i))
            json_array_append(r2, v);
        json_array_append_new(
            list, json_pack("{s:s, s:o}", "title",
                            title_of(json_string_value(get(s, "object"))), "r2", r2));
    }
    return list;
}

static bool every_point(const json_t *curve, size_t i)
{
    (void)curve;
    (void)i;
    return true;
}

static bool is_absolute(const json_t *curve, size_t i)
{
    return json_is_true(get(json_array_get(get(curve, "lambda"), i), "absolute"));
}

static bool is_relative(const json_t *curve, size_t i)
{
    return !is_absolute(curve, i);
}

static json_t *lambda_json(const json_t *fit)
{
    const json_t *curve = get(fit, "lambda_curve");
    json_t *relative = json_array(), *absolute = NULL, *row;
    size_t i;
    json_array_foreach(get(curve, "lambda"), i, row)
    {
        if (is_relative(curve, i)) {
            json_array_append(relative, get(row, "value"));
            continue;
        }
        json_t *r2 = json_array(), *s;
        size_t n;
        json_array_foreach(get(curve, "series"), n, s)
            json_array_append(r2, json_array_get(get(s, "choose"), i));
        absolute = json_pack("{s:O, s:O, s:o}", "lambda", get(row, "value"), "relative",
                             get(row, "relative"), "r2", r2);
    }
    json_t *out =
        json_pack("{s:o, s:O, s:o}", "lambda", relative, "chosen", get(fit, "lambda_k"),
                  "series", series_json(curve, is_relative));
    if (absolute) json_object_set_new(out, "absolute", absolute);
    return out;
}

static void add_linearity(kvm_report_builder *b)
{
    json_t *linearity = json_pack("{s:o, s:o}", "maps", maps_json(b->fit), "greedy",
                                  greedy_json(b->fit));
    const json_t *k = get(b->fit, "k_curve");
    json_object_set_new(linearity, "k",
                        json_pack("{s:O, s:O, s:o}", "k", get(k, "k"), "chosen",
                                  get(b->fit, "k"), "series",
                                  series_json(k, every_point)));
    json_object_set_new(linearity, "lambda", lambda_json(b->fit));
    json_object_set_new(b->doc, "linearity", linearity);
}

kvm_status kvm_report_fit(kvm_report_builder *b, kvm_err *err)
{
    if (!b->fit)
        return kvm_fail(err, KVM_NOTFOUND, "a report needs the figures of a fit");
    add_translator(b);
    add_calibration(b);
    if (get(b->fit, "maps") && get(b->fit, "k_curve"))
        add_linearity(b);
    else
        json_object_set_new(b->absent, "linearity",
                            json_string("the fit ran without its sweep"));
    return KVM_OK;
}

/* ---- layers ---- */

/* the row of a layer and object in a fit's "layers" */
static const json_t *find_layer(const json_t *layers, ptrdiff_t layer,
                                const char *object)
{
    size_t i;
    json_t *row;
    json_array_foreach(layers, i,
                       row) if (json_integer_value(get(row, "layer")) == layer &&
                                strcmp(json_string_value(get(row, "object")), object) ==
                                    0) return row;
    return NULL;
}

static void copy(json_t *to, const char *key, const json_t *from, const char *from_key)
{
    json_t *v = from ? get(from, from_key) : NULL;
    if (v) json_object_set(to, key, v);
}

/* one arm: held-out R2 from its fit, attention figures from the evaluation */
static json_t *arm_layers(const json_t *layers, const json_t *attention)
{
    json_t *rows = json_array();
    const ptrdiff_t n = (ptrdiff_t)json_array_size(layers) / 2;
    for (ptrdiff_t l = 0; l < n; l++) {
        json_t *row = json_pack("{s:I}", "layer", (json_int_t)l);
        const json_t *k = find_layer(layers, l, "K"), *v = find_layer(layers, l, "V");
        const json_t *a = attention ? json_array_get(attention, (size_t)l) : NULL;
        copy(row, "k_r2", k, "r2_held");
        copy(row, "k_r2_fit", k, "r2_fit");
        copy(row, "v_r2", v, "r2_held");
        copy(row, "v_r2_fit", v, "r2_fit");
        copy(row, "cosine", a, "cosine");
        copy(row, "c_k", a, "c_k");
        copy(row, "c_v", a, "c_v");
        json_array_append_new(rows, row);
    }
    return rows;
}

/* attention figures of an arm: of the first suite that measured them */
static kvm_status attention_of(kvm_report_builder *b, kvm_arm arm, json_t **out,
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

static double mean_of(const json_t *rows, const char *key)
{
    double sum = 0;
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row) sum += json_number_value(get(row, key));
    return json_array_size(rows) ? sum / (double)json_array_size(rows) : (double)NAN;
}

/* gates whose figure is measured by an evaluation, by the attention figure that they
 * read */
static const struct {
    const char *gate, *figure;
} attention_gates[] = {{"attention_cosine", "cosine"}, {"c_k", "c_k"}, {"c_v", "c_v"}};

static json_t *gate_json(const json_t *g, const json_t *attention)
{
    const char *name = json_string_value(get(g, "name"));
    const double threshold = json_number_value(get(g, "threshold"));
    const bool above = json_is_true(get(g, "above"));
    double figure = json_is_number(get(g, "figure"))
                        ? json_number_value(get(g, "figure"))
                        : (double)NAN;
    bool advisory = false;
    for (size_t i = 0; i < sizeof attention_gates / sizeof *attention_gates; i++)
        if (strcmp(name, attention_gates[i].gate) == 0) {
            figure =
                attention ? mean_of(attention, attention_gates[i].figure) : (double)NAN;
            advisory = i > 0; /* concentration explains; the cosine decides */
        }
    char need[64];
    snprintf(need, sizeof need, "%s %g", above ? ">" : "<", threshold);
    const bool met = above ? figure > threshold : figure < threshold;
    return json_pack("{s:s, s:O, s:o, s:s, s:s, s:s, s:b}", "name", name, "title",
                     get(g, "what"), "value",
                     isfinite(figure) ? json_real(figure) : json_null(), "format",
                     "number", "need", need, "verdict",
                     isfinite(figure) ? (met ? "pass" : "fail") : "unmeasured",
                     "required", !advisory);
}

kvm_status kvm_report_layers(kvm_report_builder *b, kvm_err *err)
{
    json_t *layers = json_array(), *gates = json_array(), *closed, *g;
    size_t i;
    json_object_set_new(b->doc, "layers", layers);
    json_object_set_new(b->doc, "gates", gates);
    TRY(attention_of(b, KVM_ARM_CLOSED_FORM, &closed, err));
    json_array_append_new(layers, json_pack("{s:s, s:o}", "arm",
                                            kvm_arms[KVM_ARM_CLOSED_FORM].key, "rows",
                                            arm_layers(get(b->fit, "layers"), closed)));
    json_array_foreach(get(b->fit, "gates"), i, g)
        json_array_append_new(gates, gate_json(g, closed));
    const kvm_job_input *mlp = kvm_job_find_input(b->job, "mlp");
    if (!mlp) return KVM_OK;
    json_t *figures, *attention;
    TRY(kvm_report_load(b, mlp, &figures, err));
    TRY(attention_of(b, KVM_ARM_MLP, &attention, err));
    json_array_append_new(
        layers, json_pack("{s:s, s:o}", "arm", kvm_arms[KVM_ARM_MLP].key, "rows",
                          arm_layers(get(figures, "layers"), attention)));
    return KVM_OK;
}
