/* report_gates.c - the gates of a fit: what each has read, where it was worst, and of
 * one that was not measured why. Those that a fit cannot measure are read out of what
 * the evaluations found. */
#include <math.h>
#include <string.h>

#include "jobs/report_parts.h"
#include "reports/document.h"

static json_t *get(const json_t *o, const char *key)
{
    return json_object_get(o, key);
}

typedef struct gate_context {
    const kvm_report_builder *b;
    const json_t *attention; /* figures of the closed form, by layer; NULL: none */
    const kvm_document *doc; /* as far as it has come */
} gate_context;

typedef struct reading {
    double figure;   /* NaN: not measured */
    json_t *where;   /* owned; NULL: of the whole translator */
    const char *why; /* it was not measured; NULL: it was */
    bool excused;    /* and cannot be: it does not apply to such a pair */
} reading;

static reading not_measured(const char *why, bool excused)
{
    return (reading){.figure = (double)NAN, .why = why, .excused = excused};
}

static reading of_fit(const json_t *gate)
{
    const json_t *figure = get(gate, "figure");
    return json_is_number(figure) ? (reading){.figure = json_number_value(figure)}
                                  : not_measured("the fit has no such figure", false);
}

/* ---- of single maps ---- */

static double rows_per_feature(const json_t *row)
{
    return json_number_value(get(row, "rows")) /
           json_number_value(get(row, "features"));
}

static double held_out(const json_t *row)
{
    return json_number_value(get(row, "r2_held"));
}

static double weight_norm(const json_t *row)
{
    return json_number_value(get(row, "weight_norm"));
}

/* the objects of a fit's maps, each once: "K, V" */
static void add_objects(kvm_text *t, const json_t *layers)
{
    json_t *row;
    size_t i;
    json_array_foreach(layers, i, row)
    {
        const char *object = json_string_value(get(row, "object"));
        size_t k = 0;
        while (strcmp(json_string_value(get(json_array_get(layers, k), "object")),
                      object) != 0)
            k++;
        if (k == i)
            kvm_text_addf(t, "%s%s", i ? ", " : "", kvm_report_object(object).brief);
    }
}

/* whether maps make states: their figures stand in the recipes, no gate reads them */
static bool fits_states(const json_t *fit)
{
    json_t *row;
    size_t i;
    json_array_foreach(get(fit, "states"), i, row) if (get(row, "r2_held")) return true;
    return false;
}

/* "layer 3, V: the worst of 22 maps (of K, V; not of states and windows)" */
static json_t *worst_map(const json_t *fit, double (*figure)(const json_t *row),
                         bool above)
{
    const json_t *layers = get(fit, "layers"), *worst = NULL;
    json_t *row;
    size_t i;
    json_array_foreach(layers, i, row)
    {
        if (worst &&
            (above ? figure(row) >= figure(worst) : figure(row) <= figure(worst)))
            continue;
        worst = row;
    }
    if (!worst) return NULL;
    kvm_text t = {0};
    kvm_text_addf(&t, "layer %d, %s: the worst of %d maps (of ",
                  (int)json_integer_value(get(worst, "layer")),
                  kvm_report_object(json_string_value(get(worst, "object"))).brief,
                  (int)json_array_size(layers));
    add_objects(&t, layers);
    kvm_text_addf(&t, "%s)", fits_states(fit) ? "; not of states and windows" : "");
    json_t *where = t.failed ? NULL : json_stringn(t.at, (size_t)t.len);
    kvm_text_free(&t);
    return where;
}

static reading of_maps(const gate_context *c, const json_t *gate)
{
    static const struct {
        const char *gate;
        double (*figure)(const json_t *row);
    } rows[] = {{"rows_per_feature", rows_per_feature},
                {"held_out_r2", held_out},
                {"weight_norm", weight_norm}};
    reading r = of_fit(gate);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(json_string_value(get(gate, "name")), rows[i].gate) == 0)
            r.where =
                worst_map(c->b->fit, rows[i].figure, json_is_true(get(gate, "above")));
    return r;
}

/* ---- of attention ---- */

static reading of_attention(const gate_context *c, const json_t *gate)
{
    const char *name = json_string_value(get(gate, "name"));
    const char *key = strcmp(name, "attention_cosine") == 0 ? "cosine" : name;
    const size_t n = json_array_size(c->attention);
    double sum = 0;
    size_t i;
    json_t *row;
    if (!c->attention)
        return not_measured("evaluate names no perplexity suite with attention_items",
                            false);
    if (n == 0) return not_measured("the target has no attention", true);
    json_array_foreach(c->attention, i, row) sum += json_number_value(get(row, key));
    return (reading){.figure = sum / (double)n,
                     .where = json_sprintf("mean of %d layers", (int)n)};
}

/* ---- of answers ---- */

/* "facts-qa, distilled: 4.1 tokens, the target's own 5.0: shorter; ..." */
static json_t *style_of(const kvm_answers *a, const kvm_answers_arm *of, kvm_arm arm)
{
    const kvm_answers_arm *own = &a->arms[KVM_ARM_NATIVE];
    const double by = of->tokens.value - own->tokens.value;
    return json_sprintf(
        "%.*s, %s: %.3g tokens, the target’s own %.3g%s; %.3g %% begin with a blank "
        "(%.3g %%), %.3g %% are empty (%.3g %%)",
        KVM_STR_ARG(a->suite), kvm_arms[arm].label, of->tokens.value, own->tokens.value,
        by > 0   ? ": longer"
        : by < 0 ? ": shorter"
                 : "",
        100 * of->blank.value, 100 * own->blank.value, 100 * of->empty.value,
        100 * own->empty.value);
}

/* of one suite; less than a hundredth of a token counts as that */
static double factor(const kvm_answers *a, kvm_arm arm)
{
    const double own = fmax(a->arms[KVM_ARM_NATIVE].tokens.value, 0.01);
    const double x = fmax(a->arms[arm].tokens.value, 0.01);
    return x > own ? x / own : own / x;
}

static reading of_answers(const gate_context *c, const json_t *gate)
{
    (void)gate;
    const int arm = kvm_document_arm(c->doc);
    const kvm_answers *worst = NULL;
    for (ptrdiff_t i = 0; i < c->doc->answers.count && arm >= 0; i++) {
        const kvm_answers *a = &c->doc->answers.at[i];
        if (!a->arms[arm].present || !a->arms[KVM_ARM_NATIVE].present) continue;
        if (!worst || factor(a, (kvm_arm)arm) > factor(worst, (kvm_arm)arm)) worst = a;
    }
    if (!worst)
        return not_measured("evaluate names no suite that asks for answers", false);
    return (reading){.figure = factor(worst, (kvm_arm)arm),
                     .where = style_of(worst, &worst->arms[arm], (kvm_arm)arm)};
}

/* ---- of tokens ---- */

static reading of_tokens(const gate_context *c, const json_t *gate)
{
    const char *token = json_string_value(get(c->b->fit, "token"));
    const json_t *identity = get(c->b->fit, "identity");
    if (!token || strcmp(token, "decoded") != 0)
        return not_measured(token && strcmp(token, "given") == 0
                                ? "token ids come with the cache"
                                : "maps are told no token",
                            true);
    if (!identity)
        return not_measured("the fit was given no source to check it on", false);
    reading r = of_fit(gate);
    r.where = json_sprintf("%d held-out rows",
                           (int)json_integer_value(get(identity, "rows")));
    return r;
}

/* ---- all of them ---- */

static const struct {
    const char *gate;
    reading (*read)(const gate_context *c, const json_t *gate);
} readers[] = {{"attention_cosine", of_attention},
               {"c_k", of_attention},
               {"c_v", of_attention},
               {"answer_style", of_answers},
               {"token_identity", of_tokens},
               {NULL, of_maps}};

static reading read_gate(const gate_context *c, const json_t *gate)
{
    size_t i = 0;
    while (readers[i].gate &&
           strcmp(readers[i].gate, json_string_value(get(gate, "name"))) != 0)
        i++;
    return readers[i].read(c, gate);
}

static json_t *gate_json(const gate_context *c, const json_t *g)
{
    const reading r = read_gate(c, g);
    const double threshold = json_number_value(get(g, "threshold"));
    const bool above = json_is_true(get(g, "above")), measured = isfinite(r.figure);
    const bool met = above ? r.figure > threshold : r.figure < threshold;
    char need[64];
    snprintf(need, sizeof need, "%s %g", above ? ">" : "<", threshold);
    return json_pack("{s:O, s:O, s:o, s:s, s:s, s:s, s:b, s:o, s:s*}", "name",
                     get(g, "name"), "title", get(g, "what"), "value",
                     measured ? json_real(r.figure) : json_null(), "format", "number",
                     "need", need, "verdict",
                     r.excused   ? "inapplicable"
                     : !measured ? "unmeasured"
                     : met       ? "pass"
                                 : "fail",
                     "required", json_is_true(get(g, "required")) && !r.excused,
                     "where", r.where ? r.where : json_null(), "note", r.why);
}

kvm_status kvm_report_gates(kvm_report_builder *b, kvm_err *err)
{
    json_t *gates = json_array(), *attention, *g;
    size_t i;
    kvm_document so_far;
    const kvm_jat at = {.v = b->doc, .file = "report", .path = ""};
    json_object_set_new(b->doc, "gates", gates);
    TRY(kvm_report_attention(b, kvm_report_arm(b), &attention, err));
    TRY(kvm_document_read(&so_far, b->job->keep, at, err));
    const gate_context c = {b, attention, &so_far};
    json_array_foreach(get(b->fit, "gates"), i, g)
        json_array_append_new(gates, gate_json(&c, g));
    return KVM_OK;
}
