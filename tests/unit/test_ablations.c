/* Recipes taken away one at a time, on a hybrid pair: each is fitted, applied and
 * scored on two suites, and the report has a column for each length of a needle. And
 * the gates that such a pair's evaluation and fit measure. */
#include <math.h>
#include <string.h>

#include "tests/support/check.h"
#include "tests/support/host.h"

#define DIR "build/tmp/ablations_text"

static host h;

static int setup(void **state)
{
    *state = &h;
    check_tmpdir("ablations_text");
    check_write(
        DIR "/two.jsonl",
        KVM_STR("{\"id\": \"a\", \"prefix\": \"And the king said unto the queen, "
                "Behold, the code is 4711. And the day is far spent.\", "
                "\"question\": \"The code is\", \"answer\": \"4711\", "
                "\"length\": 16, \"depth\": 0.5}\n"
                "{\"id\": \"b\", \"prefix\": \"There was a man in the land of Uz, "
                "and his code was 815; and he lived in a tent of goats' hair.\", "
                "\"question\": \"His code was\", \"answer\": \"815\", "
                "\"length\": 96, \"depth\": 0.5}\n"));
    check_write(DIR "/two.yaml",
                KVM_STR("name: two\nkind: needle\nfile: two.jsonl\nmax_new_tokens: 4\n"
                        "licence: CC0-1.0\nprovenance: this test\n"));
    host_open(
        &h, "ablations",
        "name: mla-kda\nsource: ../../tests/zoo/mla\ntarget: ../../tests/zoo/kda\n"
        "calibration: {text: calibration, sequences: 12, tokens: 64}\n"
        "fit: {k: 1, lambda: 1e-3, sweep: false}\n"
        "evaluate: {suites: [./ablations_text/two.yaml, prose], items: 2, "
        "attention_items: 1, ablation_suites: [prose, ./ablations_text/two.yaml], "
        "ablations: [engine, no_token, zero_states]}\n");
    host_run_to(&h, h.graph.count - 1);
    return 0;
}

static const json_t *doc(const char *part)
{
    return json_object_get(host_json(&h, h.graph.count - 1, "json").v, part);
}

static const json_t *table(const char *part)
{
    return json_object_get(doc("ablations"), part);
}

static const char *word(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

/* row r, column c of "cells" or "versus" */
static double cell(size_t r, const char *of, size_t c)
{
    const json_t *row = json_array_get(table("rows"), r);
    const json_t *est = json_array_get(json_object_get(row, of), c);
    assert_true(json_is_number(json_object_get(est, "value")));
    return json_number_value(json_object_get(est, "value"));
}

/* of needles each length, and those beyond the 64 tokens that maps were fitted at */
static void every_suite_and_length_has_a_column(void **state)
{
    (void)state;
    static const char *const want[][2] = {
        {"prose", "KL to native"}, {"prose", "first-token KL"},
        {"prose", "perplexity"},   {"prose", "next-token agreement"},
        {"two", "recall"},         {"two", "recall at 16"},
        {"two", "recall at 96"},   {"two", "recall beyond 64"}};
    static const char *const rows[] = {"none", "engine", "no_token", "zero_states"};
    assert_int_equal(json_array_size(table("columns")), COUNT(want));
    for (size_t i = 0; i < COUNT(want); i++) {
        const json_t *column = json_array_get(table("columns"), i);
        assert_string_equal(word(column, "suite"), want[i][0]);
        assert_string_equal(word(column, "title"), want[i][1]);
    }
    assert_int_equal(json_array_size(table("rows")), COUNT(rows));
    for (size_t i = 0; i < COUNT(rows); i++) {
        const json_t *row = json_array_get(table("rows"), i);
        assert_string_equal(word(row, "name"), rows[i]);
        assert_int_equal(json_array_size(json_object_get(row, "cells")), COUNT(want));
        assert_int_equal(json_object_get(row, "versus") != NULL, i > 0);
        assert_true(cell(i, "cells", 6) == cell(i, "cells", 7));
    }
}

static void differences_are_from_the_complete_row(void **state)
{
    (void)state;
    for (size_t r = 1; r < 4; r++)
        for (size_t c = 0; c < 8; c++)
            assert_true(fabs(cell(r, "versus", c) - cell(r, "cells", c) +
                             cell(0, "cells", c)) < 1e-6);
    assert_true(cell(3, "versus", 0) >
                0); /* empty states are worse than replayed ones */
    /* scored on the items that the evaluation scored, by the same translator */
    const json_t *suite = json_array_get(doc("suites"), 1);
    assert_string_equal(word(suite, "name"), "prose.kl");
    const json_t *arm = json_object_get(json_object_get(suite, "arms"), "closed_form");
    const json_t *kl = json_object_get(json_object_get(arm, "score"), "value");
    assert_true(fabs(cell(0, "cells", 0) - json_number_value(kl)) < 1e-12);
}

static const json_t *gate(const char *name)
{
    size_t i;
    json_t *g;
    json_array_foreach(doc("gates"), i, g) if (!strcmp(word(g, "name"), name)) return g;
    fail_msg("no gate %s", name);
    return NULL;
}

/* what a hybrid with latents keeps is measured like any other's */
static void gates_of_a_hybrid_are_measured(void **state)
{
    (void)state;
    const json_t *cosine = gate("attention_cosine"), *token = gate("token_identity"),
                 *style = gate("answer_style");
    assert_string_equal(word(cosine, "where"), "mean of 2 layers");
    assert_true(json_number_value(json_object_get(cosine, "value")) > 0.5);
    assert_true(json_number_value(json_object_get(cosine, "value")) < 1);
    assert_string_equal(word(token, "verdict"), "pass");
    assert_true(json_number_value(json_object_get(token, "value")) == 1);
    assert_string_equal(word(token, "where"), "64 held-out rows");
    assert_true(json_is_true(json_object_get(token, "required")));
    assert_true(json_number_value(json_object_get(style, "value")) >= 1);
    assert_non_null(strstr(word(style, "where"), "two, closed form: "));
    assert_false(json_is_true(json_object_get(style, "required")));
    const json_t *identity = json_object_get(doc("recipes"), "identity");
    assert_int_equal(json_integer_value(json_object_get(identity, "rows")), 64);
}

/* every cache on which something is said, beside the target's own */
static void answers_are_told_by_their_length(void **state)
{
    (void)state;
    const json_t *two = json_array_get(doc("answers"), 0);
    const json_t *arms = json_object_get(two, "arms"), *one;
    const json_t *native = json_object_get(arms, "native");
    assert_int_equal(json_array_size(doc("answers")), 1); /* prose asks for none */
    assert_string_equal(word(two, "suite"), "two");
    assert_true(json_object_size(arms) >= 6);
    one = json_object_get(json_object_get(native, "first_agreement"), "value");
    assert_true(json_number_value(one) == 1);
    one = json_object_get(json_object_get(native, "versus_native"), "value");
    assert_true(json_number_value(one) == 0);
    one = json_object_get(json_object_get(native, "tokens"), "value");
    assert_true(json_number_value(one) > 0 && json_number_value(one) <= 4);
}

/* the translator of a fit as its file's header says */
static bool reads(const char *fit, const char *what)
{
    const kvm_str file =
        check_read(&h.keep, host_output(&h, host_node(&h, fit), "translator").at);
    uint64_t header;
    memcpy(&header, file.at, sizeof header);
    return kvm_str_find(kvm_str_slice(file, 8, 8 + (ptrdiff_t)header),
                        kvm_str_of(what)) >= 0;
}

/* each without what it takes away, which the complete one has */
static void each_lacks_its_recipe(void **state)
{
    (void)state;
    assert_true(reads("fit mla-kda", "input.0.weight"));
    assert_true(reads("fit zero_states", "latent.3.weight"));
    assert_false(reads("fit zero_states", "input.0.weight"));
    assert_true(reads("fit engine", "latent_engine.3.weight"));
    assert_true(reads("fit engine", "input.0.weight"));
    assert_false(reads("fit mla-kda", "latent_engine.3.weight"));
    assert_true(reads("fit mla-kda", "decoded"));
    assert_false(reads("fit no_token", "decoded"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_suite_and_length_has_a_column),
        cmocka_unit_test(differences_are_from_the_complete_row),
        cmocka_unit_test(gates_of_a_hybrid_are_measured),
        cmocka_unit_test(answers_are_told_by_their_length),
        cmocka_unit_test(each_lacks_its_recipe),
    };
    return cmocka_run_group_tests(tests, setup, host_teardown);
}
