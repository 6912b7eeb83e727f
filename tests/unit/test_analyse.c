/* An analysis of a hybrid pair, run in this process: which caches there are, that all
 * of the target's own objects are its own cache again, that a killed one goes on. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jobs/analyse_caches.h"
#include "tests/support/check.h"
#include "tests/support/host.h"

#define DIR "build/tmp/analyse_text"
#define SPEC                                                                           \
    "source: ../../tests/zoo/mla\ntarget: ../../tests/zoo/kda\n"                       \
    "calibration: {text: calibration, sequences: 12, tokens: 64}\n"                    \
    "fit: {k: 1, lambda: 1e-3, sweep: false}\n"

static host h;

static int setup(void **state)
{
    *state = &h;
    check_tmpdir("analyse_text");
    check_write(
        DIR "/two.jsonl",
        KVM_STR(
            "{\"id\": \"a\", \"prefix\": \"And the king said unto the queen, Behold, "
            "the city is before thee\", \"continuation\": \" and the day is far "
            "spent\"}\n{\"id\": \"b\", \"prefix\": \"There was a man in the land of "
            "Uz, and his name was\", \"continuation\": \" Job; and\"}\n"));
    check_write(DIR "/two.yaml",
                KVM_STR("name: two\nkind: perplexity\nfile: two.jsonl\n"
                        "licence: CC0-1.0\nprovenance: this test\n"));
    host_open(&h, "analyse",
              "name: mla-kda\n" SPEC
              "analyse: {suites: [./analyse_text/two.yaml], tails: [0.25, 0.5], "
              "tail_lengths: [32]}\n");
    host_run_to(&h, h.graph.count - 1);
    return 0;
}

static ptrdiff_t node(void)
{
    return host_node(&h, "analyse two");
}

/* line i of the items */
static kvm_jat line_of(kvm_str text, ptrdiff_t i)
{
    kvm_err err = {0};
    kvm_jat line;
    kvm_str at = {0};
    for (ptrdiff_t n = 0; n <= i; n++) assert_true(kvm_str_cut(text, '\n', &at, &text));
    check_ok(kvm_json_parse(&line, &h.keep, at, KVM_STR("items"), &err), &err);
    return line;
}

static kvm_str items(void)
{
    return check_read(&h.keep, host_output(&h, node(), "items").at);
}

static double score(ptrdiff_t i, const char *cache, const char *metric)
{
    const json_t *scores = json_object_get(line_of(items(), i).v, "scores");
    const json_t *v = json_object_get(json_object_get(scores, cache), metric);
    if (!json_is_number(v)) fail_msg("no %s of %s", metric, cache);
    return json_number_value(v);
}

/* kda keeps states in layers 0-2 and 4-6, latents in 3 and 7 */
static void every_cache_is_named(void **state)
{
    (void)state;
    static const char *const want[] = {
        "layer.0",        "layer.1",     "layer.2",   "layer.3",
        "layer.4",        "layer.5",     "layer.6",   "layer.7",
        "swap.attention", "swap.states", "swap.all",  "only.attention",
        "only.states",    "nothing",     "tail.0.25", "tail.0.5"};
    const json_t *figures = host_json(&h, node(), "figures").v;
    const json_t *list = json_object_get(figures, "caches");
    assert_int_equal(json_array_size(list), COUNT(want));
    for (size_t i = 0; i < COUNT(want); i++) {
        const json_t *row = json_array_get(list, i);
        assert_string_equal(json_string_value(json_object_get(row, "cache")), want[i]);
        assert_true(score(0, want[i], "kl") >= 0);
    }
    assert_string_equal(json_string_value(json_object_get(figures, "translator")),
                        "closed_form");
}

/* the floor: were the mixing itself lossy, nothing else here could be believed */
static void all_native_is_native(void **state)
{
    (void)state;
    for (ptrdiff_t i = 0; i < 2; i++) {
        assert_true(score(i, "swap.all", "kl") == 0);
        assert_true(score(i, "swap.all", "nll") == score(i, "native", "nll"));
    }
}

/* each swap and split changes something, and nothing is worse than all that is
 * translated */
static void parts_matter(void **state)
{
    (void)state;
    const double whole = score(0, "translated", "kl");
    static const char *const parts[] = {
        "layer.0",     "layer.3",   "swap.attention", "swap.states",
        "only.states", "tail.0.25", "only.attention", "tail.0.5"};
    assert_true(whole > 0);
    for (size_t i = 0; i < COUNT(parts); i++)
        if (score(0, parts[i], "kl") == whole) fail_msg("%s changes nothing", parts[i]);
    assert_true(score(0, "nothing", "kl") > whole);
}

/* an attempt that was killed after one item gives the same bits as one that was not */
static void a_killed_analysis_goes_on(void **state)
{
    (void)state;
    kvm_err err = {0};
    const kvm_str whole = items();
    const ptrdiff_t first = kvm_str_find(whole, KVM_STR("\n")) + 1;
    const size_t samples = json_array_size(h.samples);
    host_leave(&h, "items.jsonl", kvm_str_slice(whole, 0, first));
    check_ok(host_run(&h, node(), &err), &err);
    assert_true(kvm_str_eq(whole, items()));
    /* of 18 caches, four metrics of two items */
    assert_int_equal(json_array_size(h.samples) - samples, 18 * 4 * 2);
    host_leave(&h, "items.jsonl", kvm_str_slice(whole, first, whole.len));
    check_status(KVM_MISMATCH, host_run(&h, node(), &err), &err);
    check_contains(err.msg, "line 1 is not item a");
}

/* a measure of the report, and one of its caches */
static const json_t *reported(const char *measure, const char *cache)
{
    const kvm_jat doc = host_json(&h, h.graph.count - 1, "json");
    const json_t *suites =
        json_object_get(json_object_get(doc.v, "analyses"), "suites");
    for (size_t i = 0; i < json_array_size(suites); i++) {
        const json_t *s = json_array_get(suites, i);
        const json_t *caches = json_object_get(s, "caches");
        if (strcmp(json_string_value(json_object_get(s, "title")), measure) != 0)
            continue;
        for (size_t k = 0; k < json_array_size(caches); k++) {
            const json_t *c = json_array_get(caches, k);
            if (!strcmp(json_string_value(json_object_get(c, "title")), cache))
                return c;
        }
    }
    fail_msg("the report has no %s of %s", cache, measure);
    return NULL;
}

static double value_of(const json_t *cache, const char *key)
{
    return json_number_value(json_object_get(json_object_get(cache, key), "value"));
}

/* KL over all tokens alike, the difference from the same items */
static void the_report_pairs_caches(void **state)
{
    (void)state;
    double kl = 0, base = 0, tokens = 0;
    for (ptrdiff_t i = 0; i < 2; i++) {
        const json_t *line = line_of(items(), i).v;
        const double n = json_number_value(json_object_get(line, "scored"));
        kl += n * score(i, "layer.3", "kl");
        base += n * score(i, "translated", "kl");
        tokens += n;
    }
    const json_t *c = reported("two: KL to native", "layer 3 native");
    assert_true(fabs(value_of(c, "score") - kl / tokens) < 1e-9);
    assert_true(fabs(value_of(c, "versus") - (kl - base) / tokens) < 1e-9);
    assert_true(value_of(reported("two: first-token KL", "all native"), "score") == 0);
    const json_t *doc = host_json(&h, h.graph.count - 1, "json").v;
    const json_t *tails = json_object_get(json_object_get(doc, "analyses"), "tails");
    const json_t *switches = json_object_get(json_array_get(tails, 0), "switches");
    assert_int_equal(json_array_size(switches), 3); /* of the whole, and two tails */
}

/* of two items the first chooses the layer, the second says what it is worth */
static void the_best_layer_is_judged_on_other_items(void **state)
{
    (void)state;
    const json_t *doc = host_json(&h, h.graph.count - 1, "json").v;
    const json_t *suites = json_object_get(json_object_get(doc, "analyses"), "suites");
    const json_t *suite = json_array_get(suites, 0);
    const json_t *best = json_object_get(suite, "best_layer");
    assert_string_equal(json_string_value(json_object_get(suite, "name")), "two.kl");
    assert_non_null(best);
    const char *cache = json_string_value(json_object_get(best, "cache"));
    assert_true(strncmp(cache, "layer.", 6) == 0);
    for (int l = 0; l < 8; l++) {
        char other[16];
        snprintf(other, sizeof other, "layer.%d", l);
        assert_true(score(0, cache, "kl") <= score(0, other, "kl"));
    }
    const double now = score(1, "translated", "kl"), then = score(1, cache, "kl");
    assert_int_equal(json_integer_value(json_object_get(best, "chosen_on")), 1);
    assert_int_equal(json_integer_value(json_object_get(best, "items")), 1);
    assert_true(fabs(value_of(best, "translated") - now) < 1e-12);
    assert_true(fabs(value_of(best, "score") - then) < 1e-12);
    assert_true(fabs(value_of(best, "versus") - (then - now)) < 1e-12);
    assert_true(value_of(best, "all") == 0);
    assert_true(fabs(value_of(best, "share") - (now - then) / now) < 1e-9);
}

/* rows of the series of that model, object and point */
static const json_t *inverted(const char *model, const char *object, int point)
{
    const json_t *figures = host_json(&h, host_node(&h, "invert mla-kda"), "figures").v;
    const json_t *series = json_object_get(figures, "series");
    for (size_t i = 0; i < json_array_size(series); i++) {
        const json_t *s = json_array_get(series, i);
        if (!strcmp(json_string_value(json_object_get(s, "model")), model) &&
            !strcmp(json_string_value(json_object_get(s, "object")), object) &&
            json_integer_value(json_object_get(s, "point")) == point)
            return json_object_get(s, "layers");
    }
    fail_msg("no %s of %s at point %d", object, model, point);
    return NULL;
}

static double top1(const json_t *layers, size_t i)
{
    return json_number_value(json_object_get(json_array_get(layers, i), "top1"));
}

/* The first layer's latents are a function of the token: a codebook knows all of them,
 * a ridge of few rows most. Guessing would be right once in 2,048. */
static void cached_rows_tell_their_tokens(void **state)
{
    (void)state;
    const json_t *figures = host_json(&h, host_node(&h, "invert mla-kda"), "figures").v;
    const json_t *book =
        json_object_get(json_object_get(figures, "codebook"), "layers");
    assert_int_equal(json_integer_value(json_object_get(figures, "rows")), 64);
    assert_int_equal(json_array_size(book), 1);
    assert_true(top1(book, 0) == 1);
    for (int point = 1; point <= 3; point += 2) {
        const json_t *source = inverted("mla", "latent", point);
        const json_t *target = inverted("kda", "latent", point);
        assert_int_equal(json_array_size(source), 6);
        assert_int_equal(json_array_size(target), 2);
        assert_int_equal(
            json_integer_value(json_object_get(json_array_get(target, 1), "layer")), 7);
        assert_true(top1(source, 0) > 0.3);
        assert_true(top1(source, 5) < 1);
    }
}

/* captures of a spec that does without hold no rows for it */
static void an_analysis_may_do_without_inversion(void **state)
{
    (void)state;
    host other;
    host_open(&other, "analyse_without",
              "name: mla-kda\n" SPEC
              "analyse: {suites: [./analyse_text/two.yaml], inversion: false, "
              "tail_lengths: []}\n");
    for (ptrdiff_t i = 0; i < other.graph.count; i++) {
        const kvm_node *n = &other.graph.nodes[i];
        char *rows = json_dumps(n->params, JSON_COMPACT);
        assert_true(n->kind != KVM_JOB_INVERT && n->kind != KVM_JOB_TIMING);
        if (n->kind == KVM_JOB_CAPTURE) assert_null(strstr(rows, "latent_engine"));
        free(rows);
    }
    host_close(&other);
}

static void the_target_reads_whole_tokens(void **state)
{
    (void)state;
    assert_int_equal(kvm_tail_tokens(0.05, 100), 5);
    assert_int_equal(kvm_tail_tokens(0.05, 9), 0);
    assert_int_equal(kvm_tail_tokens(0.05, 10), 1);
    assert_int_equal(kvm_tail_tokens(0.99, 3), 2); /* one is left to translate */
    assert_int_equal(kvm_tail_tokens(0.5, 1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cache_is_named),
        cmocka_unit_test(all_native_is_native),
        cmocka_unit_test(parts_matter),
        cmocka_unit_test(the_report_pairs_caches),
        cmocka_unit_test(the_best_layer_is_judged_on_other_items),
        cmocka_unit_test(cached_rows_tell_their_tokens),
        cmocka_unit_test(an_analysis_may_do_without_inversion),
        cmocka_unit_test(a_killed_analysis_goes_on),
        cmocka_unit_test(the_target_reads_whole_tokens),
    };
    return cmocka_run_group_tests(tests, setup, host_teardown);
}
