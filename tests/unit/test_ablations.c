/* Recipes taken away one at a time, on a hybrid pair: each is fitted, applied and
 * scored, and the report has a column for each length of a needle. */
#include <string.h>

#include "tests/support/check.h"
#include "tests/support/host.h"

#define DIR "build/tmp/ablations_text"

static host h;

static int setup(void **state)
{
    (void)state;
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
                "\"length\": 24, \"depth\": 0.5}\n"));
    check_write(DIR "/two.yaml",
                KVM_STR("name: two\nkind: needle\nfile: two.jsonl\nmax_new_tokens: 4\n"
                        "licence: CC0-1.0\nprovenance: this test\n"));
    host_open(
        &h, "ablations",
        "name: mla-kda\nsource: ../../tests/zoo/mla\ntarget: ../../tests/zoo/kda\n"
        "calibration: {text: calibration, sequences: 12, tokens: 64}\n"
        "fit: {k: 1, lambda: 1e-3, sweep: false}\n"
        "evaluate: {suites: [./ablations_text/two.yaml], "
        "ablations: [engine, no_token, zero_states]}\n");
    host_run_to(&h, h.graph.count - 1);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    host_close(&h);
    return 0;
}

static const json_t *table(const char *part)
{
    const json_t *doc = host_json(&h, h.graph.count - 1, "json").v;
    return json_object_get(json_object_get(doc, "ablations"), part);
}

static void every_length_has_a_column(void **state)
{
    (void)state;
    static const char *const want[] = {"recall", "recall at 16", "recall at 24"};
    assert_int_equal(json_array_size(table("columns")), COUNT(want));
    for (size_t i = 0; i < COUNT(want); i++) {
        const json_t *column = json_array_get(table("columns"), i);
        assert_string_equal(json_string_value(json_object_get(column, "title")),
                            want[i]);
    }
    assert_int_equal(json_array_size(table("rows")), 4);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(
            json_array_size(json_object_get(json_array_get(table("rows"), i), "cells")),
            COUNT(want));
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
        cmocka_unit_test(every_length_has_a_column),
        cmocka_unit_test(each_lacks_its_recipe),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
