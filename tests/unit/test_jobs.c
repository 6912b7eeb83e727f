/* Job kinds on a small pair, run in this process: what the figures are means of, whose
 * cache the wrong one is, what is refused. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "jobs/fit_sweep.h"
#include "jobs/score_item.h"
#include "tests/support/check.h"
#include "tests/support/host.h"

#define DIR "build/tmp/jobs_text"

static host h;

/* continuations of unlike length; b goes on from a, d says a again */
#define A "And the king said unto the queen, Behold, the"
#define LONG                                                                           \
    " heaven and the earth were finished, and all the host of them. And on the "       \
    "seventh day he ended the work which he had made, and rested from all his labour"
static const struct {
    const char *id, *prefix, *continuation;
} items[] = {
    {"a", A, " servants"},
    {"b", A " city is before thee", LONG},
    {"c", "There was a man in the land of Uz, and his name was", " Job; and"},
    {"d", A, " day is far spent, and the night cometh on, when no man can work"},
};

enum { ITEMS = COUNT(items) };

static void write_suite(void)
{
    kvm_text t = {0};
    check_tmpdir("jobs_text");
    for (size_t i = 0; i < ITEMS; i++)
        kvm_text_addf(
            &t, "{\"id\": \"%s\", \"prefix\": \"%s\", \"continuation\": \"%s\"}\n",
            items[i].id, items[i].prefix, items[i].continuation);
    check_write(DIR "/unlike.jsonl", (kvm_str){t.at, t.len});
    kvm_text_free(&t);
    check_write(DIR "/unlike.yaml",
                KVM_STR("name: unlike\nkind: perplexity\nfile: unlike.jsonl\n"
                        "licence: CC0-1.0\nprovenance: this test\n"));
}

static int setup(void **state)
{
    *state = &h;
    write_suite();
    host_open(&h, "jobs",
              "name: small-large\nsource: ../../tests/zoo/small\n"
              "target: ../../tests/zoo/large\n"
              "calibration: {text: calibration, sequences: 12, tokens: 64}\n"
              "fit: {k: 1, lambda: 1e-3}\n"
              "evaluate: {suites: [./jobs_text/unlike.yaml], attention_items: 1}\n");
    host_run_to(&h, h.graph.count - 1);
    return 0;
}

static ptrdiff_t evaluate_node(void)
{
    return host_node(&h, "evaluate unlike");
}

/* the line of an item, as JSON */
static kvm_jat line_of(ptrdiff_t i)
{
    kvm_err err = {0};
    kvm_jat line;
    kvm_str text = check_read(&h.keep, host_output(&h, evaluate_node(), "items").at);
    kvm_str at = {0};
    for (ptrdiff_t n = 0; n <= i; n++) assert_true(kvm_str_cut(text, '\n', &at, &text));
    check_ok(kvm_json_parse(&line, &h.keep, at, KVM_STR("items"), &err), &err);
    return line;
}

static double number(kvm_jat at, const char *const *keys)
{
    kvm_err err = {0};
    double v;
    for (; *keys; keys++) at = kvm_json_get(at, &h.keep, *keys);
    check_ok(kvm_json_f64(at, &v, &err), &err);
    return v;
}
#define NUMBER(at, ...) number(at, (const char *const[]){__VA_ARGS__, NULL})

/* the score of an arm on one measure of the suite, as the report has it */
static double reported(const char *measure, const char *arm)
{
    const kvm_jat doc = host_json(&h, h.graph.count - 1, "json");
    const kvm_jat suites = kvm_json_get(doc, &h.keep, "suites");
    kvm_err err = {0};
    ptrdiff_t n;
    check_ok(kvm_json_array(suites, &n, &err), &err);
    for (ptrdiff_t i = 0; i < n; i++) {
        const kvm_jat s = kvm_json_item(suites, &h.keep, i);
        kvm_str name;
        check_ok(kvm_json_str(kvm_json_get(s, &h.keep, "name"), &name, &err), &err);
        if (kvm_str_eq(name, kvm_str_of(measure)))
            return NUMBER(s, "arms", arm, "score", "value");
    }
    fail_msg("the report has no %s", measure);
    return 0;
}

/* summed nats and tokens of an item's continuation: its whole text in one pass of the
 * model, with no cache of a prefix and no job about */
static void read_whole(kvm_model *m, kvm_encoder *e, size_t i, double *nats, double *n)
{
    kvm_err err = {0};
    int32_t *a, *b;
    ptrdiff_t an, bn;
    kvm_cache *cache;
    const ptrdiff_t vocab = kvm_model_info_of(m)->vocab;
    check_ok(kvm_encode(e, kvm_str_of(items[i].prefix), NULL, &h.keep, &a, &an, &err),
             &err);
    check_ok(
        kvm_encode(e, kvm_str_of(items[i].continuation), NULL, &h.keep, &b, &bn, &err),
        &err);
    int32_t *ids = kvm_new(&h.keep, int32_t, an + bn);
    float *logits = kvm_new(&h.keep, float, bn *vocab);
    assert_true(ids && logits);
    memcpy(ids, a, (size_t)an * sizeof *a);
    memcpy(ids + an, b, (size_t)bn * sizeof *b);
    check_ok(kvm_cache_new(&cache, &h.keep, m, an + bn, &err), &err);
    check_ok(kvm_model_forward(
                 m, cache, ids, an + bn - 1,
                 &(kvm_forward_options){.logits_last = bn, .logits = logits}, &err),
             &err);
    for (ptrdiff_t t = 0; t < bn; t++) {
        const float *row = logits + t * vocab;
        double most = -INFINITY, sum = 0;
        for (ptrdiff_t v = 0; v < vocab; v++) most = fmax(most, (double)row[v]);
        for (ptrdiff_t v = 0; v < vocab; v++) sum += exp((double)row[v] - most);
        *nats += most + log(sum) - (double)row[b[t]];
    }
    *n += (double)bn;
}

/* exp of nats per token over the tokens of all items, not a mean of items' means */
static void perplexity_weighs_every_token_alike(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_compute *c;
    kvm_model *m;
    kvm_encoder *e;
    double nats = 0, tokens = 0, means = 0;
    check_ok(kvm_compute_new(&c, &h.keep, kvm_backend_find(KVM_STR("ref")), 1, &err),
             &err);
    check_ok(kvm_model_open(&m, &h.keep, c, KVM_STR("tests/zoo/large"), NULL, &err),
             &err);
    check_ok(kvm_encoder_new(&e, &h.keep, kvm_model_tokenizer(m), &err), &err);
    for (size_t i = 0; i < ITEMS; i++) {
        double own = 0, n = 0;
        read_whole(m, e, i, &own, &n);
        nats += own;
        tokens += n;
        means += own / n / (double)ITEMS;
    }
    const double got = reported("unlike.nll", "native"), want = exp(nats / tokens);
    if (!(fabs(got - want) < 1e-4 * want)) fail_msg("%.9g, not %.9g", got, want);
    assert_true(fabs(exp(means) - want) > 0.02 * want); /* the test can tell */
}

static void divergence_weighs_every_token_alike(void **state)
{
    (void)state;
    double kl = 0, first = 0, tokens = 0, means = 0;
    for (ptrdiff_t i = 0; i < ITEMS; i++) {
        const kvm_jat line = line_of(i);
        const double n = NUMBER(line, "scored");
        const double mine = NUMBER(line, "scores", "closed_form", "kl");
        kl += n * mine;
        means += mine / (double)ITEMS;
        first += NUMBER(line, "scores", "closed_form", "first_kl");
        tokens += n;
    }
    const double got = reported("unlike.kl", "closed_form");
    assert_true(fabs(got - kl / tokens) < 1e-9 * got);
    assert_true(fabs(got - means) > 0.01 * got);
    assert_true(fabs(reported("unlike.first_kl", "closed_form") -
                     first / (double)ITEMS) < 1e-9);
}

/* scores and page say what computed them */
static void scores_name_their_backend(void **state)
{
    (void)state;
    const kvm_backend *backend = kvm_backend_find(KVM_STR("cpu"));
    const char *label = kvm_backend_label(backend, &h.keep).at;
    const kvm_jat figures = host_json(&h, evaluate_node(), "figures");
    assert_string_equal(json_string_value(json_object_get(figures.v, "backend")),
                        label);
    const kvm_str page =
        check_read(&h.keep, host_output(&h, h.graph.count - 1, "json").at);
    check_contains(page.at, "Backend of the scores");
    check_contains(page.at, label);
}

/* the next item with a text of its own, again in every run */
static void the_wrong_donor_is_wrong_and_the_same(void **state)
{
    (void)state;
    static const char *const want[] = {"c", "c", "d", "c"};
    for (ptrdiff_t i = 0; i < ITEMS; i++) {
        kvm_err err = {0};
        kvm_str donor;
        check_ok(kvm_json_str(kvm_json_get(line_of(i), &h.keep, "donor"), &donor, &err),
                 &err);
        check_str(donor, want[i]);
    }
    kvm_err err = {0};
    const ptrdiff_t node = evaluate_node();
    const kvm_str before = check_read(&h.keep, host_output(&h, node, "items").at);
    check_ok(host_run(&h, node, &err), &err);
    const kvm_str after = check_read(&h.keep, host_output(&h, node, "items").at);
    assert_true(kvm_str_eq(before, after));
}

/* the value of a sample that the last run reported; the test fails when there is
 * none */
static double sample_of(const char *arm, const char *metric, const char *item)
{
    for (size_t i = json_array_size(h.samples); i-- > 0;) {
        const char *got[4];
        double value;
        json_t *row = json_array_get(h.samples, i);
        assert_int_equal(json_unpack(row, "[s, s, s, s, F]", &got[0], &got[1], &got[2],
                                     &got[3], &value),
                         0);
        if (!strcmp(got[1], arm) && !strcmp(got[2], metric) && !strcmp(got[3], item))
            return value;
    }
    fail_msg("no sample %s %s of item %s", arm, metric, item);
    return 0;
}

/* what a killed attempt had scored comes into the catalogue as it was, whole numbers
 * too, which the log's canonical form writes as integers */
static void scores_of_a_killed_attempt_stand(void **state)
{
    (void)state;
    kvm_err err = {0};
    host_leave(&h, "items.jsonl",
               KVM_STR("{\"item\":\"a\",\"scores\":{\"native\":"
                       "{\"em\":1,\"f1\":0.5,\"none\":0}}}\n"));
    check_ok(host_run(&h, evaluate_node(), &err), &err);
    assert_true(sample_of("native", "em", "a") == 1);
    assert_true(sample_of("native", "f1", "a") == 0.5);
    assert_true(sample_of("native", "none", "a") == 0);

    err = (kvm_err){0};
    host_leave(&h, "items.jsonl",
               KVM_STR("{\"item\":\"a\",\"scores\":{\"native\":{\"em\":\"1\"}}}\n"));
    check_status(KVM_FORMAT, host_run(&h, evaluate_node(), &err), &err);
    check_contains(err.msg, "scores.native.em");
}

/* A node's parameters with another value, and the key's old one back. */
static json_t *replaced(ptrdiff_t node, const char *key, const char *value)
{
    json_t *params = h.graph.nodes[node].params;
    json_t *old = json_incref(json_object_get(params, key));
    json_object_set_new(params, key, json_string(value));
    return old;
}

static void put_back(ptrdiff_t node, const char *key, json_t *old)
{
    json_object_set_new(h.graph.nodes[node].params, key, old);
}

static void refused_as_changed(ptrdiff_t node, const char *what)
{
    kvm_err err = {0};
    check_status(KVM_MISMATCH, host_run(&h, node, &err), &err);
    check_contains(err.msg, what);
    check_contains(err.msg, "changed since the run was planned");
    check_contains(err.msg, "submit the pair again");
}

/* A result is known by the hashes of its plan: what has another one by the time it is
 * read must not become a result of that name. */
static void what_changed_since_the_plan_is_refused(void **state)
{
    (void)state;
    const ptrdiff_t capture = host_node(&h, "capture small"), node = evaluate_node();
    const kvm_str whole = check_read(&h.keep, DIR "/unlike.jsonl");
    const kvm_str card = check_read(&h.keep, DIR "/unlike.yaml");
    kvm_err err = {0};
    json_t *outputs[] = {h.outputs[capture], h.outputs[node]}; /* for other tests */
    json_t *text = replaced(capture, "text", "x");
    refused_as_changed(capture, "calibration.yaml");
    put_back(capture, "text", text);
    check_write(DIR "/other.txt", KVM_STR(A LONG A LONG A LONG A LONG));
    json_t *path = replaced(capture, "text_path", DIR "/other.txt");
    refused_as_changed(capture, "other.txt");
    put_back(capture, "text_path", path);
    path = replaced(node, "text_path", DIR "/other.txt");
    refused_as_changed(node, "other.txt");
    put_back(node, "text_path", path);

    check_write(DIR "/unlike.jsonl",
                kvm_str_slice(whole, 0, kvm_str_find(whole, KVM_STR("\n")) + 1));
    refused_as_changed(node, "unlike.yaml or its items");
    check_write(DIR "/unlike.jsonl", whole);
    check_write(DIR "/unlike.yaml",
                kvm_str_fmt(&h.keep, "%.*schance: 0.5\n", KVM_STR_ARG(card)));
    refused_as_changed(node, "unlike.yaml or its items");
    check_write(DIR "/unlike.yaml", card);
    check_ok(host_run(&h, node, &err), &err);
    h.outputs[capture] = outputs[0];
    h.outputs[node] = outputs[1];
}

/* A window that begins in the prefix and ends in the continuation is text that was
 * fitted on, though neither part alone is. */
static void a_continuation_that_was_fitted_on_is_refused(void **state)
{
    (void)state;
    const ptrdiff_t node = evaluate_node();
    char sha[65];
    kvm_err err = {0};
    check_write(DIR "/fitted.txt", KVM_STR("It was so. " A " city is before thee" LONG
                                           " and the people went out."));
    check_ok(kvm_sha_file(KVM_STR(DIR "/fitted.txt"), sha, h.keep, &err), &err);
    json_t *path = replaced(node, "text_path", DIR "/fitted.txt");
    json_t *text = replaced(node, "text", sha);
    check_status(KVM_MISMATCH, host_run(&h, node, &err), &err);
    check_contains(err.msg, "item b");
    check_contains(err.msg, "fitted.txt");
    /* another story, which shares the prefix alone: no window of it is long enough */
    check_write(DIR "/fitted.txt",
                KVM_STR("It was so. " A " city is before thee, the king's city."));
    err = (kvm_err){0};
    check_ok(kvm_sha_file(KVM_STR(DIR "/fitted.txt"), sha, h.keep, &err), &err);
    json_decref(replaced(node, "text", sha));
    check_ok(host_run(&h, node, &err), &err);
    put_back(node, "text_path", path);
    put_back(node, "text", text);
}

/* a step of the report's build table */
static kvm_jat build_step(const char *title)
{
    kvm_err err = {0};
    const kvm_jat build =
        kvm_json_get(host_json(&h, h.graph.count - 1, "json"), &h.keep, "build");
    const kvm_jat steps = kvm_json_get(build, &h.keep, "steps");
    ptrdiff_t n;
    check_ok(kvm_json_array(steps, &n, &err), &err);
    for (ptrdiff_t i = 0; i < n; i++) {
        const kvm_jat s = kvm_json_item(steps, &h.keep, i);
        kvm_str got;
        check_ok(kvm_json_str(kvm_json_get(s, &h.keep, "title"), &got, &err), &err);
        if (kvm_str_eq(got, kvm_str_of(title))) return s;
    }
    fail_msg("there is no step %s", title);
    return steps;
}

/* what a spec names has its hash under provenance: the spec itself, the text, the
 * suite */
static void provenance_has_a_hash_of_everything_named(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_suite *suite;
    char text[65], spec[65];
    const kvm_node *report = &h.graph.nodes[h.graph.count - 1];
    check_ok(kvm_suite_read(&suite, &h.keep, KVM_STR(DIR "/unlike.yaml"), &err), &err);
    check_ok(kvm_sha_of(
                 kvm_str_of(json_string_value(json_object_get(report->params, "spec"))),
                 spec, &err),
             &err);
    memcpy(text, json_string_value(json_object_get(report->params, "text")), 65);
    const struct {
        const char *name, *sha;
    } rows[] = {{"spec, as it stands", spec},
                {"calibration text", text},
                {"suite unlike", suite->sha}};
    const json_t *groups =
        json_object_get(host_json(&h, h.graph.count - 1, "json").v, "provenance");
    const json_t *inputs = json_object_get(json_array_get(groups, 1), "rows");
    for (size_t i = 0; i < COUNT(rows); i++) {
        const json_t *row = json_array_get(inputs, i);
        assert_string_equal(json_string_value(json_array_get(row, 0)), rows[i].name);
        assert_string_equal(json_string_value(json_array_get(row, 1)), rows[i].sha);
    }
}

/* what other pairs of the models use too, or the other direction, is not this one's
 * cost alone */
static void the_cost_says_what_is_shared(void **state)
{
    (void)state;
    static const struct {
        const char *title;
        const char *whom;
    } steps[] = {{"capture of small", "model"},
                 {"capture of large", "model"},
                 {"moments of small", "model"},
                 {"moments of both models", "directions"},
                 {"fit", "direction"}};
    for (size_t i = 0; i < COUNT(steps); i++) {
        const kvm_jat s = build_step(steps[i].title);
        const kvm_jat serves = kvm_json_get(s, &h.keep, "serves");
        assert_string_equal(json_string_value(serves.v), steps[i].whom);
        assert_true(NUMBER(s, "seconds") > 0 && NUMBER(s, "cpu_seconds") > 0);
        assert_true(NUMBER(s, "attempts") == 1);
    }
}

/* the small model with 0 for every weight: 8 bytes say how long the header is */
static void write_zero_model(kvm_arena *keep)
{
    static const char *const files[] = {"config.json", "tokenizer.json",
                                        "tokenizer_config.json", "model.safetensors"};
    check_tmpdir("jobs_zero");
    for (size_t i = 0; i < COUNT(files); i++) {
        const kvm_str name = kvm_str_of(files[i]);
        const kvm_str from = kvm_path_join(keep, KVM_STR("tests/zoo/small"), name);
        const kvm_str to = kvm_path_join(keep, KVM_STR("build/tmp/jobs_zero"), name);
        const kvm_str text = check_read(keep, from.at);
        char *bytes = kvm_new(keep, char, text.len);
        assert_non_null(bytes);
        memcpy(bytes, text.at, (size_t)text.len);
        if (kvm_str_ends(name, KVM_STR(".safetensors"))) {
            uint64_t header;
            memcpy(&header, bytes, sizeof header);
            const size_t data = sizeof header + (size_t)header;
            memset(bytes + data, 0, (size_t)text.len - data);
        }
        check_write(to.at, (kvm_str){bytes, text.len});
    }
}

/* Keys that are the same in every row leave an absolute lambda no place on the relative
 * axis, and nothing else of the run is at fault: it ends with a report. */
static void a_model_of_zeros_has_a_report(void **state)
{
    (void)state;
    host zero;
    kvm_arena keep = check_arena(1 << 26);
    kvm_err err = {0};
    double relative;
    write_zero_model(&keep);
    host_open(&zero, "jobs_zeros",
              "name: zero-large\nsource: ./jobs_zero\n"
              "target: ../../tests/zoo/large\n"
              "calibration: {text: calibration, sequences: 12, tokens: 64}\n");
    host_run_to(&zero, zero.graph.count - 1);
    kvm_jat at = host_json(&zero, host_node(&zero, "fit zero-large"), "fit");
    at = kvm_json_get(kvm_json_get(at, &zero.keep, "lambda_curve"), &zero.keep,
                      "lambda");
    at = kvm_json_item(at, &zero.keep, KVM_LAMBDAS - 1);
    check_ok(
        kvm_json_f64_or(kvm_json_get(at, &zero.keep, "relative"), -1, &relative, &err),
        &err);
    assert_true(relative == -1);
    host_close(&zero);
    kvm_arena_free(&keep);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(perplexity_weighs_every_token_alike),
        cmocka_unit_test(divergence_weighs_every_token_alike),
        cmocka_unit_test(scores_name_their_backend),
        cmocka_unit_test(the_wrong_donor_is_wrong_and_the_same),
        cmocka_unit_test(a_continuation_that_was_fitted_on_is_refused),
        cmocka_unit_test(what_changed_since_the_plan_is_refused),
        cmocka_unit_test(provenance_has_a_hash_of_everything_named),
        cmocka_unit_test(the_cost_says_what_is_shared),
        cmocka_unit_test(scores_of_a_killed_attempt_stand),
        cmocka_unit_test(a_model_of_zeros_has_a_report),
    };
    return cmocka_run_group_tests(tests, setup, host_teardown);
}
