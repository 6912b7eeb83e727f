/* report_recipes.c - what every object of the target is made of, and how the maps were
 * trained. */
#include <string.h>

#include "jobs/report_parts.h"
#include "translators/outline.h"

static json_t *get(const json_t *o, const char *key)
{
    return json_object_get(o, key);
}

static json_t *recipe(const char *label, json_t *how, json_t *layers)
{
    const kvm_report_name name = kvm_report_object(label);
    return json_pack("{s:s, s:s, s:o, s:o}", "object", name.key, "title", name.brief,
                     "how", how ? how : json_null(), "layers", layers);
}

/* the layers of one object, as a fit's "layers" has them */
static json_t *map_layers(const json_t *layers, const char *object)
{
    json_t *list = json_array(), *row;
    size_t i;
    json_array_foreach(
        layers, i, row) if (strcmp(json_string_value(get(row, "object")), object) == 0)
        json_array_append(list, row);
    return list;
}

/* of a fit's row what a document has */
static json_t *named_figures(const json_t *row)
{
    static const char *const keys[] = {"layer",   "sources", "r2_fit",   "r2_choose",
                                       "r2_held", "rows",    "features", "weight_norm"};
    json_t *out = json_object();
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (get(row, keys[i])) json_object_set(out, keys[i], get(row, keys[i]));
    return out;
}

static void add_group(json_t *list, const json_t *fit, const json_t *group)
{
    json_t *object;
    size_t i, l;
    json_array_foreach(get(group, "rows"), i, object)
    {
        const char *label = json_string_value(object);
        json_t *rows = map_layers(get(fit, "layers"), label), *layers = json_array();
        json_t *row, *how = json_array_get(get(group, "how"), i);
        json_array_foreach(rows, l, row)
            json_array_append_new(layers, named_figures(row));
        json_decref(rows);
        json_t *one = recipe(label, json_incref(how), layers);
        if (json_integer_value(get(group, "k")) > 0)
            json_object_set(one, "k", get(group, "k"));
        json_object_set(one, "lambda", get(get(group, "lambda"), label));
        json_object_set(one, "absolute", get(group, "lambda_absolute"));
        json_array_append_new(list, one);
    }
}

static void add_exact(json_t *list, const json_t *fit)
{
    json_t *row;
    size_t i;
    json_array_foreach(get(fit, "exact"), i, row) json_array_append_new(
        list, recipe(json_string_value(get(row, "object")),
                     json_string("exactly, from the token alone"),
                     json_pack("[{s:O}]", "layer", get(row, "layer"))));
}

static void add_dense(json_t *list, const json_t *fit)
{
    if (json_array_size(get(fit, "dense")) == 0) return;
    json_array_append_new(
        list,
        recipe("index", json_string("left out: attention looks at the whole prefix"),
               json_incref(get(fit, "dense"))));
}

/* "layer by layer: copy, replay" */
static json_t *layer_words(const json_t *ways)
{
    kvm_text words = {0};
    json_t *way;
    size_t i;
    json_array_foreach(ways, i, way) kvm_text_addf(
        &words, "%s%s", i ? ", " : "layer by layer: ", json_string_value(way));
    const kvm_str text = kvm_text_str(&words);
    json_t *out = json_stringn(text.at, (size_t)text.len);
    kvm_text_free(&words);
    return out;
}

static json_t *state_words(const json_t *fit)
{
    const char *name = json_string_value(get(fit, "state_way"));
    const json_t *ways = get(fit, "state_ways");
    kvm_state_way way;
    if (ways) return layer_words(ways);
    if (!name || kvm_state_way_of_name(kvm_str_of(name), &way)) return json_null();
    return json_string(kvm_state_way_what(way));
}

static json_t *state_layer(const json_t *row, const char *held, const char *choose,
                           const char *copied)
{
    json_t *out = json_pack("{s:O}", "layer", get(row, "layer"));
    if (!get(row, held)) return out; /* empty states have no figures */
    json_object_set_new(out, "sources", json_pack("[O]", get(row, "source")));
    json_object_set_new(out, "r2_held",
                        kvm_report_figure(get(row, held), KVM_REPORT_NO_SHARE));
    json_object_set_new(out, "r2_choose",
                        kvm_report_figure(get(row, choose), KVM_REPORT_NO_SHARE));
    json_object_set_new(out, "r2_copy",
                        kvm_report_figure(get(row, copied), KVM_REPORT_NO_SHARE));
    return out;
}

/* states as they are fitted, or, where they are replayed, of the layers whose inputs
 * are predicted */
static void add_states(json_t *list, const json_t *fit)
{
    json_t *states = json_array(), *windows = json_array(), *row;
    size_t i;
    json_array_foreach(get(fit, "states"), i, row)
    {
        json_array_append_new(states,
                              state_layer(row, "r2_held", "r2_choose", "r2_copy"));
        json_array_append_new(
            windows,
            state_layer(row, "window_r2_held", "window_r2_choose", "window_r2_copy"));
    }
    json_t *inputs = map_layers(get(fit, "layers"), "input");
    json_array_foreach(inputs, i, row)
    {
        json_array_append_new(states, json_pack("{s:O}", "layer", get(row, "layer")));
        json_array_append_new(windows, json_pack("{s:O}", "layer", get(row, "layer")));
    }
    json_decref(inputs);
    if (json_array_size(states)) {
        json_array_append_new(list, recipe("state", state_words(fit), states));
        json_array_append_new(list, recipe("window", state_words(fit), windows));
    } else {
        json_decref(states);
        json_decref(windows);
    }
}

static bool makes_states(const json_t *objects)
{
    json_t *object;
    size_t i;
    json_array_foreach(objects, i,
                       object) if (strcmp(json_string_value(get(object, "object")),
                                          "state") == 0) return true;
    return false;
}

kvm_status kvm_report_recipes(kvm_report_builder *b, kvm_err *err)
{
    (void)err;
    json_t *list = json_array(), *group;
    size_t i;
    json_array_foreach(get(b->fit, "groups"), i, group) add_group(list, b->fit, group);
    add_exact(list, b->fit);
    add_dense(list, b->fit);
    add_states(list, b->fit);
    json_object_set_new(
        b->doc, "recipes",
        json_pack("{s:O*, s:O*, s:O*, s:o, s:O*, s:O*, s:O*}", "token",
                  get(b->fit, "token"), "latents", get(b->fit, "latents"), "identity",
                  get(b->fit, "identity"), "objects", list, "tried",
                  get(b->fit, "tried"), "lessons", get(b->fit, "tried_lessons"),
                  "after", get(b->fit, "tried_after")));
    json_t *recipes = get(b->doc, "recipes");
    if (makes_states(list))
        json_object_set(recipes, "states", get(b->fit, "state_way"));
    if (json_array_size(get(b->fit, "dense")) > 0)
        json_object_set_new(recipes, "indexers", json_string("dense"));
    return KVM_OK;
}

/* ---- training ---- */

enum { MOST_POINTS = 1000 };

/* the curve with at most so many points and one: every n-th, the best and the last */
static json_t *thinned(const json_t *curve, json_int_t best_step)
{
    const size_t n = json_array_size(curve), every = n / MOST_POINTS + 1;
    json_t *out = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *point = json_array_get(curve, i);
        const bool best = json_integer_value(get(point, "step")) == best_step;
        if (i % every == 0 || i == n - 1 || best) json_array_append(out, point);
    }
    return out;
}

static kvm_status seconds_of(kvm_report_builder *b, json_t *training, kvm_err *err)
{
    const kvm_job_input *in = kvm_job_find_input(b->job, "cost.distill");
    if (!in) return KVM_OK;
    json_t *cost;
    TRY(kvm_report_load(b, in, &cost, err));
    json_object_set(training, "seconds", get(cost, "seconds"));
    return KVM_OK;
}

kvm_status kvm_report_training(kvm_report_builder *b, kvm_err *err)
{
    static const char *const keys[] = {"steps",      "batch",      "lessons",
                                       "validation", "parameters", "closed_kl",
                                       "best_kl",    "best_step"};
    const kvm_job_input *in = kvm_job_find_input(b->job, "distill");
    if (!in) {
        json_object_set_new(b->absent, "training",
                            json_string("the spec has no section distill"));
        return KVM_OK;
    }
    json_t *figures, *training = json_object();
    json_object_set_new(b->doc, "training", training);
    TRY(kvm_report_load(b, in, &figures, err));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        json_object_set(training, keys[i], get(figures, keys[i]));
    const json_t *curve = get(figures, "curve");
    const json_t *last = json_array_get(curve, json_array_size(curve) - 1);
    json_object_set(training, "tokens_per_s", get(last, "tokens_per_s"));
    json_object_set_new(training, "curve",
                        thinned(curve, json_integer_value(get(figures, "best_step"))));
    return seconds_of(b, training, err);
}
