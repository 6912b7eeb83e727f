/* Reports of pairs whose objects stand in some layers only: what the document says of
 * recipes, maps, layers, gates and training is what the fit and the distillation
 * found. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "tests/support/check.h"
#include "tests/support/host.h"

#define SPEC(source, target, fit)                                                      \
    "name: pair\nsource: ../../tests/zoo/" source "\ntarget: ../../tests/zoo/" target  \
    "\ncalibration: {text: calibration, sequences: 24, tokens: 64}\n"                  \
    "fit: {allow_wide: true" fit "}\n"                                                 \
    "evaluate: {suites: [facts-mc], items: 1, attention_items: 0}\n"

static json_t *get(const json_t *o, const char *key)
{
    json_t *v = json_object_get(o, key);
    if (!v) fail_msg("no member %s", key);
    return v;
}

/* a member of the report's document */
static const json_t *part(host *h, const char *key)
{
    const ptrdiff_t last = h->graph.count - 1;
    if (!h->outputs[last]) host_run_to(h, last);
    return get(host_json(h, last, "json").v, key);
}

/* "3 7": a list of integers */
static const char *list(const json_t *a)
{
    static char text[256];
    size_t i;
    const json_t *v;
    text[0] = 0;
    json_array_foreach(a, i, v)
    {
        const size_t n = strlen(text);
        snprintf(text + n, sizeof text - n, "%s%d", i ? " " : "",
                 (int)json_integer_value(v));
    }
    return text;
}

/* the entry of a list whose member `key` is that word */
static json_t *find(const json_t *a, const char *key, const char *word)
{
    size_t i;
    json_t *v;
    json_array_foreach(a, i, v) if (strcmp(json_string_value(get(v, key)), word) ==
                                    0) return v;
    fail_msg("nothing whose %s is %s", key, word);
    return NULL;
}

/* "3 7": the target layers of an object's recipe */
static const char *layers_of(const json_t *recipe)
{
    json_t *numbers = json_array(), *row;
    size_t i;
    json_array_foreach(get(recipe, "layers"), i, row)
        json_array_append(numbers, get(row, "layer"));
    const char *text = list(numbers);
    json_decref(numbers);
    return text;
}

static void check_recipe(const json_t *recipes, const char *object, const char *how,
                         const char *layers)
{
    const json_t *r = find(get(recipes, "objects"), "object", object);
    assert_string_equal(json_string_value(get(r, "how")), how);
    assert_string_equal(layers_of(r), layers);
}

/* ---- keys and values in two of eight layers, states in the others, an indexer ---- */

static void recipes_of_states_and_indexers(void **state)
{
    host *h = *state;
    const json_t *recipes = part(h, "recipes");
    assert_string_equal(json_string_value(get(recipes, "token")), "given");
    check_recipe(recipes, "k", "keys from keys, by head content", "3 7");
    check_recipe(recipes, "v", "values from values", "3 7");
    check_recipe(recipes, "index", "index keys from the layer's translated keys",
                 "3 7");
    check_recipe(recipes, "state", "copied, then corrected in closed form",
                 "0 1 2 4 5 6");
    check_recipe(recipes, "window", "copied, then corrected in closed form",
                 "0 1 2 4 5 6");
    const json_t *objects = get(recipes, "objects");
    assert_int_equal(json_array_size(objects), 5);
    const json_t *k = json_array_get(get(find(objects, "object", "k"), "layers"), 1);
    const json_t *s =
        json_array_get(get(find(objects, "object", "state"), "layers"), 3);
    assert_string_equal(list(get(k, "sources")), "7");
    assert_true(json_number_value(get(k, "features")) > 64); /* token and keys */
    assert_string_equal(list(get(s, "sources")), "4");
    assert_true(json_is_real(get(s, "r2_copy")) && json_is_real(get(s, "r2_held")));
    /* nothing is chosen for what reads its own layer, nor for states */
    assert_null(json_object_get(find(objects, "object", "index"), "k"));
    assert_null(json_object_get(find(objects, "object", "state"), "lambda"));
}

static void maps_have_the_layers_numbers(void **state)
{
    host *h = *state;
    const json_t *groups = get(part(h, "linearity"), "groups");
    assert_int_equal(json_array_size(groups), 1); /* an indexer has no choice */
    const json_t *g = json_array_get(groups, 0);
    assert_string_equal(json_string_value(get(g, "title")), "K, V");
    const char *const objects[] = {"k", "k_rotated", "v"};
    for (size_t i = 0; i < COUNT(objects); i++) {
        const json_t *m = find(get(g, "maps"), "object", objects[i]);
        assert_string_equal(list(get(m, "source_layers")), "3 7");
        assert_string_equal(list(get(m, "target_layers")), "3 7");
    }
    const json_t *lambda = get(get(g, "lambda"), "series"),
                 *k = get(get(g, "k"), "series");
    assert_int_equal(json_array_size(lambda), 2);
    assert_true(json_number_value(get(json_array_get(lambda, 1), "chosen")) > 0);
    assert_true(json_number_value(get(json_array_get(k, 0), "chosen")) == 1);
    assert_true(json_number_value(get(part(h, "translator"), "bytes")) > 0);
}

static void every_object_layer_by_layer(void **state)
{
    host *h = *state;
    const json_t *layers = part(h, "layers");
    const json_t *rows = get(json_array_get(get(layers, "arms"), 0), "rows");
    assert_int_equal(json_array_size(get(layers, "objects")), 5);
    assert_int_equal(json_array_size(rows), 8);
    for (size_t l = 0; l < 8; l++) {
        const json_t *row = json_array_get(rows, l), *r2 = get(row, "r2");
        assert_int_equal(json_integer_value(get(row, "layer")), l);
        for (size_t o = 0; o < 5; o++) {
            const json_t *v = json_array_get(r2, o);
            const bool state_layer = l % 4 != 3, of_state = o >= 3;
            assert_int_equal(json_is_number(v), state_layer == of_state);
            if (state_layer != of_state)
                assert_string_equal(json_string_value(get(v, "note")), "no such map");
        }
    }
}

/* the gate's figure is that of the map it names, among all objects' */
static void gates_look_at_every_map(void **state)
{
    host *h = *state;
    const json_t *g = find(part(h, "gates"), "name", "held_out_r2"), *o, *l;
    const json_t *objects = get(part(h, "recipes"), "objects");
    double worst = 2;
    size_t i, n;
    char where[120] = "";
    json_array_foreach(objects, i, o) json_array_foreach(get(o, "layers"), n, l)
    {
        if (!json_object_get(o, "lambda")) continue; /* no map */
        if (json_number_value(get(l, "r2_held")) >= worst) continue;
        worst = json_number_value(get(l, "r2_held"));
        snprintf(
            where, sizeof where,
            "layer %d, %s: the worst of 6 maps (of K, V, index key; not of states and "
            "windows)",
            (int)json_integer_value(get(l, "layer")),
            json_string_value(get(o, "title")));
    }
    assert_string_equal(json_string_value(get(g, "where")), where);
    assert_true(json_number_value(get(g, "value")) == worst);
}

/* of twelve sequences one is held out: a share of no variance is none, and the layer
 * is still there */
static void a_single_state_has_no_share(void **state)
{
    (void)state;
    host h;
    host_open(
        &h, "report_single",
        "name: pair\nsource: ../../tests/zoo/gdn-a\ntarget: ../../tests/zoo/gdn-b\n"
        "calibration: {text: calibration, sequences: 12, tokens: 64}\n"
        "fit: {states: copy, k: 1, lambda: 0.01, sweep: false}\n"
        "evaluate: {suites: [facts-mc], items: 1, attention_items: 0}\n");
    const json_t *s = find(get(part(&h, "recipes"), "objects"), "object", "state");
    assert_string_equal(layers_of(s), "0 1 2 4 5 6");
    const json_t *held = get(json_array_get(get(s, "layers"), 0), "r2_held");
    assert_string_equal(json_string_value(get(held, "note")),
                        "too few sequences are held out");
    host_close(&h);
}

static int open_states(void **state)
{
    static host h;
    host_open(&h, "report_states", SPEC("gdn-a", "qsa", ", states: bilinear, k: 1"));
    *state = &h;
    return 0;
}

static int close_host(void **state)
{
    host_close(*state);
    return 0;
}

/* ---- other recipes ---- */

static void states_that_are_replayed_stand_with_their_inputs(void **state)
{
    (void)state;
    host h;
    host_open(&h, "report_replay", SPEC("mla", "kda", ", k: 2, lambda: 0.01"));
    const json_t *recipes = part(&h, "recipes"), *groups;
    assert_string_equal(json_string_value(get(recipes, "token")), "decoded");
    check_recipe(recipes, "latent", "latents from latents", "3 7");
    check_recipe(recipes, "input", "inputs of recurrent layers from latents",
                 "0 1 2 4 5 6");
    check_recipe(recipes, "state", "the target's own recurrence over predicted inputs",
                 "0 1 2 4 5 6");
    groups = get(part(&h, "linearity"), "groups");
    assert_int_equal(json_array_size(groups), 2); /* each of a choice of its own */
    const json_t *m = json_array_get(get(json_array_get(groups, 1), "maps"), 0);
    assert_string_equal(list(get(m, "target_layers")), "0 1 2 4 5 6");
    assert_string_equal(list(get(m, "source_layers")), "0 1 2 3 4 5");
    host_close(&h);
}

static void what_follows_from_the_token_is_said(void **state)
{
    (void)state;
    host h;
    host_open(&h, "report_exact",
              SPEC("kda", "mla", ", k: 1, lambda: 0.01, sweep: false"));
    const json_t *objects = get(part(&h, "recipes"), "objects");
    assert_int_equal(json_array_size(objects), 2);
    assert_string_equal(layers_of(json_array_get(objects, 0)), "1 2 3 4 5");
    assert_string_equal(layers_of(json_array_get(objects, 1)), "0");
    assert_string_equal(json_string_value(get(json_array_get(objects, 1), "how")),
                        "exactly, from the token alone");
    const json_t *rows =
        get(json_array_get(get(part(&h, "layers"), "arms"), 0), "rows");
    const json_t *first = json_array_get(get(json_array_get(rows, 0), "r2"), 0);
    assert_string_equal(json_string_value(get(first, "note")),
                        "no figure: it is not fitted");
    check_contains(json_string_value(get(part(&h, "absent"), "linearity")),
                   "without its sweep");
    check_contains(json_string_value(get(part(&h, "absent"), "training")),
                   "no section distill");
    host_close(&h);
}

static void states_left_empty_are_said_to_be(void **state)
{
    (void)state;
    host h;
    host_open(
        &h, "report_zero",
        SPEC("gdn-a", "gdn-b", ", states: zero, k: 1, lambda: 0.01, sweep: false"));
    check_recipe(part(&h, "recipes"), "state", "they start empty", "0 1 2 4 5 6");
    host_close(&h);
}

/* ---- training ---- */

/* a distillation's figures with a curve of n points, the best the last but ten */
static void leave_curve(const char *path, int n)
{
    json_t *curve = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(
            curve, json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:f}", "step", i, "kl",
                             i == n - 11 ? 0.1 : 0.5, "first_kl", 0.2, "train_kl", 0.3,
                             "norm", 1.0, "rate", 1e-3, "tokens_per_s", 100.0));
    json_t *figures =
        json_pack("{s:o, s:i, s:i, s:f, s:f, s:i, s:i, s:i, s:i}", "curve", curve,
                  "steps", n - 1, "best_step", n - 11, "best_kl", 0.1, "closed_kl", 0.5,
                  "batch", 2, "lessons", 4, "validation", 1, "parameters", 10);
    assert_int_equal(json_dump_file(figures, path, 0), 0);
    json_decref(figures);
}

static void a_curve_is_thinned_but_for_its_best_and_last(void **state)
{
    (void)state;
    host h;
    kvm_err err = {0};
    host_open(
        &h, "report_training",
        SPEC(
            "small", "large",
            ", k: 1, lambda: 0.01, sweep: false") "distill: {steps: 2, validate: 1, "
                                                  "batch: 2, lessons: 4, after: 16}\n");
    const json_t *t = part(&h, "training");
    assert_int_equal(json_array_size(get(t, "curve")), 3); /* steps 0, 1 and 2 */
    assert_true(json_number_value(get(t, "closed_kl")) ==
                json_number_value(get(json_array_get(get(t, "curve"), 0), "kl")));
    assert_true(json_number_value(get(t, "seconds")) > 0);
    leave_curve(host_output(&h, host_node(&h, "distill pair"), "figures").at, 5003);
    check_ok(host_run(&h, h.graph.count - 1, &err), &err);
    const json_t *curve = get(part(&h, "training"), "curve");
    const size_t n = json_array_size(curve);
    assert_in_range(n, 500, 1002);
    assert_int_equal(json_integer_value(get(json_array_get(curve, n - 1), "step")),
                     5002);
    size_t i, best = 0;
    json_t *p;
    json_array_foreach(curve, i, p) best += json_number_value(get(p, "kl")) < 0.2;
    assert_int_equal(best, 1);
    host_close(&h);
}

/* ---- where it comes from ---- */

/* how many rows of the provenance have that hash */
static int named(const json_t *groups, const char *sha)
{
    int n = 0;
    size_t g, r;
    json_t *group, *row;
    json_array_foreach(groups, g, group)
    {
        json_array_foreach(get(group, "rows"), r, row) n +=
            strcmp(json_string_value(json_array_get(row, 1)), sha) == 0;
    }
    return n;
}

/* of every node that makes a translator: candidates, ablations, the way back */
static void every_translator_has_its_hash_and_cost(void **state)
{
    (void)state;
    host h;
    kvm_err err = {0};
    host_open(&h, "report_translators",
              "name: pair\nsource: ../../tests/zoo/small\n"
              "target: ../../tests/zoo/large\n"
              "calibration: {text: calibration, sequences: 24, tokens: 64}\n"
              "fit: {allow_wide: true, k: 1, lambda: 0.01, sweep: false, token: auto}\n"
              "evaluate: {suites: [facts-mc], items: 1, attention_items: 0, "
              "ablations: [k1]}\n"
              "mlp: {epochs: 1, hidden: 8}\n"
              "distill: {steps: 1, validate: 1, batch: 2, lessons: 4, after: 16}\n"
              "alternate: {suite: dialogues, items: 1, turns: 2}\n");
    const json_t *groups = part(&h, "provenance");
    int translators = 0;
    for (ptrdiff_t i = 0; i < h.graph.count; i++) {
        const json_t *path = json_object_get(h.outputs[i], "translator");
        char sha[65];
        if (!path) continue;
        translators++;
        check_ok(kvm_sha_file(kvm_str_of(json_string_value(path)), sha, h.keep, &err),
                 &err);
        if (!named(groups, sha))
            fail_msg("no hash of the translator of \"%.*s\"",
                     KVM_STR_ARG(h.graph.nodes[i].label));
    }
    assert_in_range(translators, 9, 99); /* 2 + 2 tried, chosen, trained, ablated */
    static const char *const steps[] = {
        "moments of large", "fit of the way back, 1", "fit of the way back, 2",
        "choice among the fits of the way back", "distillation of the way back"};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        find(get(part(&h, "build"), "steps"), "title", steps[i]);
    host_close(&h);
}

int main(void)
{
    const struct CMUnitTest states[] = {
        cmocka_unit_test(recipes_of_states_and_indexers),
        cmocka_unit_test(maps_have_the_layers_numbers),
        cmocka_unit_test(every_object_layer_by_layer),
        cmocka_unit_test(gates_look_at_every_map),
    };
    const struct CMUnitTest others[] = {
        cmocka_unit_test(states_that_are_replayed_stand_with_their_inputs),
        cmocka_unit_test(what_follows_from_the_token_is_said),
        cmocka_unit_test(states_left_empty_are_said_to_be),
        cmocka_unit_test(a_single_state_has_no_share),
        cmocka_unit_test(a_curve_is_thinned_but_for_its_best_and_last),
        cmocka_unit_test(every_translator_has_its_hash_and_cost),
    };
    return cmocka_run_group_tests(states, open_states, close_host) +
           cmocka_run_group_tests(others, NULL, NULL);
}
