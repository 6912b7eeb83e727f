/* report_fit.c - what the fit found: translator, calibration, linearity. */
#include <string.h>
#include <sys/stat.h>

#include "jobs/report_parts.h"
#include "reports/stats.h"

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

kvm_arm kvm_report_arm(const kvm_report_builder *b)
{
    return kvm_job_find_input(b->job, "distilled") ? KVM_ARM_DISTILLED
                                                   : KVM_ARM_CLOSED_FORM;
}

static void add_translator(kvm_report_builder *b)
{
    const kvm_arm arm = kvm_report_arm(b);
    const char *file = arm == KVM_ARM_DISTILLED ? "distilled" : "translator";
    json_object_set_new(b->doc, "translator",
                        json_pack("{s:s, s:s, s:O*, s:f}", "arm", kvm_arms[arm].key,
                                  "shape", shape_text(b->fit), "parameters",
                                  get(b->fit, "parameters"), "bytes",
                                  file_bytes(kvm_job_find_input(b->job, file))));
}

/* the most that any map reads */
static json_int_t most_features(const json_t *fit)
{
    json_int_t most = 0;
    size_t i;
    json_t *row;
    json_array_foreach(get(fit, "layers"), i, row)
    {
        const json_int_t n = json_integer_value(get(row, "features"));
        if (n > most) most = n;
    }
    return most;
}

static void add_calibration(kvm_report_builder *b)
{
    const json_t *c = get(b->job->params.v, "calibration");
    json_object_set_new(
        b->doc, "calibration",
        json_pack("{s:O, s:O, s:O, s:O, s:O, s:O, s:O, s:I}", "text", get(c, "text"),
                  "sequences", get(c, "sequences"), "sequence_tokens", get(c, "tokens"),
                  "stride", get(c, "stride"), "rows", get(b->fit, "rows_fit"),
                  "choosing_rows", get(b->fit, "rows_choose"), "held_out_rows",
                  get(b->fit, "rows_held"), "features", most_features(b->fit)));
}

/* ---- linearity ---- */

static const char *title_of(const json_t *row)
{
    return kvm_report_object(json_string_value(get(row, "object"))).title;
}

static json_t *maps_json(const json_t *group)
{
    json_t *list = json_array(), *map;
    const char *space;
    json_object_foreach(get(group, "maps"), space, map)
    {
        const kvm_report_name name = kvm_report_object(space);
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:O, s:O*, s:O*}", "object", name.key, "title",
                            name.title, "r2", get(map, "choose"), "source_layers",
                            get(map, "source_layers"), "target_layers",
                            get(map, "target_layers")));
    }
    return list;
}

/* the curves of one object */
static json_t *greedy_layers(const json_t *group, const char *object)
{
    json_t *layers = json_array(), *row;
    size_t i;
    json_array_foreach(get(group, "greedy"), i, row)
    {
        if (strcmp(json_string_value(get(row, "object")), object) != 0) continue;
        json_array_append_new(
            layers, json_pack("{s:O, s:O, s:O}", "target", get(row, "target"), "order",
                              get(row, "order"), "r2", get(row, "choose")));
    }
    return layers;
}

static json_t *greedy_json(const json_t *group)
{
    json_t *list = json_array(), *object;
    size_t i;
    json_array_foreach(get(group, "rows"), i, object)
    {
        const char *label = json_string_value(object);
        const kvm_report_name name = kvm_report_object(label);
        json_array_append_new(list, json_pack("{s:s, s:s, s:o}", "object", name.key,
                                              "title", name.title, "layers",
                                              greedy_layers(group, label)));
    }
    return list;
}

/* what was chosen of a knob for an object: one number for all, or one each */
static json_t *chosen_for(json_t *chosen, const json_t *object)
{
    return json_is_object(chosen) ? get(chosen, json_string_value(object)) : chosen;
}

/* series of a curve; `keep` picks the points */
static json_t *series_json(const json_t *curve, json_t *chosen,
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
            list, json_pack("{s:s, s:O*, s:o}", "title", title_of(s), "chosen",
                            chosen_for(chosen, get(s, "object")), "r2", r2));
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

static json_t *lambda_json(const json_t *group)
{
    const json_t *curve = get(group, "lambda_curve");
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
    /* an absolute choice has no place on the axis: its points are shown */
    const bool placed = !json_is_true(get(group, "lambda_absolute"));
    json_t *out = json_pack(
        "{s:o, s:o}", "lambda", relative, "series",
        series_json(curve, placed ? get(group, "lambda") : NULL, is_relative));
    if (absolute) json_object_set_new(out, "absolute", absolute);
    return out;
}

/* "K, V" */
static json_t *group_title(const json_t *group)
{
    kvm_text title = {0};
    json_t *object;
    size_t i;
    json_array_foreach(get(group, "rows"), i, object)
        kvm_text_addf(&title, "%s%s", i ? ", " : "",
                      kvm_report_object(json_string_value(object)).brief);
    const kvm_str text = kvm_text_str(&title);
    json_t *out = json_stringn(text.at, (size_t)text.len);
    kvm_text_free(&title);
    return out;
}

/* NULL: nothing was swept, for there was nothing to choose, or the spec asks for one
 * fit */
static json_t *group_json(const json_t *group)
{
    const json_t *k = get(group, "k_curve");
    if (!k || !get(group, "maps")) return NULL;
    json_t *out =
        json_pack("{s:o, s:O*, s:o, s:o, s:o}", "title", group_title(group), "how",
                  json_array_get(get(group, "how"), 0), "maps", maps_json(group),
                  "greedy", greedy_json(group), "lambda", lambda_json(group));
    json_object_set_new(out, "k",
                        json_pack("{s:O, s:o}", "k", get(k, "k"), "series",
                                  series_json(k, get(group, "k"), every_point)));
    return out;
}

static void add_linearity(kvm_report_builder *b)
{
    json_t *groups = json_array(), *group;
    size_t i;
    json_array_foreach(get(b->fit, "groups"), i, group)
    {
        json_t *one = group_json(group);
        if (one) json_array_append_new(groups, one);
    }
    if (json_array_size(groups) == 0)
        json_object_set_new(b->absent, "linearity",
                            json_string("the fit ran without its sweep"));
    json_object_set_new(b->doc, "linearity", json_pack("{s:o}", "groups", groups));
}

kvm_status kvm_report_fit(kvm_report_builder *b, kvm_err *err)
{
    if (!b->fit)
        return kvm_fail(err, KVM_NOTFOUND, "a report needs the figures of a fit");
    add_translator(b);
    add_calibration(b);
    add_linearity(b);
    return KVM_OK;
}
