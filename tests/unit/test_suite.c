/* Suites: every kind is read; what is wrong is said with file and line. */
#include "jobs/suite.h"

#include "tests/support/check.h"

#define DIR "build/tmp/suite"

static kvm_arena arena;

static int setup(void **state)
{
    (void)state;
    arena = check_arena(64 << 20);
    check_tmpdir("suite");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&arena);
    return 0;
}

static void write_named(const char *name, const char *kind, const char *extra)
{
    check_write(DIR "/s.yaml",
                kvm_str_fmt(&arena,
                            "name: %s\nkind: %s\nfile: s.jsonl\nlicence: CC0-1.0\n"
                            "provenance: written for this test\n%s",
                            name, kind, extra));
}

static void write_card(const char *kind, const char *extra)
{
    write_named("s", kind, extra);
}

static kvm_status read(kvm_suite **s, kvm_err *err)
{
    *err = (kvm_err){0};
    return kvm_suite_read(s, &arena, KVM_STR(DIR "/s.yaml"), err);
}

static void multiple_choice_is_read(void **state)
{
    (void)state;
    kvm_err err;
    kvm_suite *s;
    write_card("multiple_choice", "chance: 0.5\n");
    check_write(
        DIR "/s.jsonl",
        KVM_STR(
            "{\"id\":\"a\",\"prefix\":\"p\",\"question\":\"q\","
            "\"choices\":[\"x\",\"y\"],\"answer\":1}\n\n"
            "{\"id\":\"b\",\"prefix\":\"p\",\"choices\":[\"x\",\"y\"],\"answer\":0}"));
    check_ok(read(&s, &err), &err);
    assert_int_equal(s->count,
                     2); /* the last line needs no newline, empty lines do not count */
    assert_int_equal(s->items[0].answer, 1);
    check_str(s->items[0].choices[1], "y");
    check_str(s->items[1].question, "");
    assert_true(s->chance == 0.5);
    assert_int_equal(s->max_new_tokens, 32);
    check_str(s->metric, "accuracy");
}

static void needle_and_generation_have_answers(void **state)
{
    (void)state;
    kvm_err err;
    kvm_suite *s;
    write_card("needle", "max_new_tokens: 6\n");
    check_write(DIR "/s.jsonl",
                KVM_STR("{\"id\":\"a\",\"prefix\":\"p\",\"question\":\"q\","
                        "\"answer\":\"7314\",\"length\":512,\"depth\":0.5}\n"));
    check_ok(read(&s, &err), &err);
    assert_int_equal(s->items[0].length, 512);
    check_str(s->items[0].choices[0], "7314");
    write_card("generation", "");
    check_write(DIR "/s.jsonl",
                KVM_STR("{\"id\":\"a\",\"prefix\":\"p\",\"question\":\"q\","
                        "\"answers\":[\"red\",\"scarlet\"]}\n"));
    check_ok(read(&s, &err), &err);
    assert_int_equal(s->items[0].choice_count, 2);
}

static void refused(const char *items, kvm_status status, const char *part)
{
    kvm_err err;
    kvm_suite *s;
    check_write(DIR "/s.jsonl", kvm_str_of(items));
    check_status(status, read(&s, &err), &err);
    check_contains(err.msg, part);
}

static void dialogues_have_turns(void **state)
{
    (void)state;
    kvm_err err;
    kvm_suite *s;
    write_card("dialogue", "max_new_tokens: 6\nstop: [\"\\n\"]\n");
    check_write(DIR "/s.jsonl",
                KVM_STR("{\"id\":\"a\",\"story\":\"Tom has a cat.\",\"turns\":["
                        "{\"question\":\"Who?\",\"answers\":[\"Tom\",\"it is Tom\"]},"
                        "{\"question\":\"What?\",\"answers\":[\"a cat\"]}]}\n"));
    check_ok(read(&s, &err), &err);
    check_str(s->items[0].prefix, "Tom has a cat.");
    assert_int_equal(s->items[0].turn_count, 2);
    check_str(s->items[0].turns[0].answers[1], "it is Tom");
    check_str(s->items[0].turns[1].question, "What?");
    assert_int_equal(s->items[0].stop_count, 1);
    check_str(s->metric, "f1");
    check_ok(kvm_suite_serves(s, KVM_HOLDS_DIALOGUES, &err), &err);
    check_status(KVM_USAGE, kvm_suite_serves(s, KVM_HOLDS_ITEMS, &err), &err);
    check_contains(err.msg, "holds dialogues");
}

static void wrong_items_are_named_by_line(void **state)
{
    (void)state;
    write_card("multiple_choice", "");
    refused("{\"id\":\"a\",\"prefix\":\"p\",\"choices\":[\"x\",\"y\"],\"answer\":0}\n{"
            "oops}\n",
            KVM_FORMAT, "s.jsonl:2");
    refused("{\"id\":\"a\",\"prefix\":\"p\",\"choices\":[\"x\"],\"answer\":1}\n",
            KVM_RANGE, "answer 1 of 1");
    refused("{\"id\":\"a\",\"prefix\":\"p\",\"choices\":[],\"answer\":0}\n", KVM_FORMAT,
            "empty");
    refused("{\"id\":\"a\",\"prefix\":\"p\",\"choices\":[\"x\",\"y\"],\"answer\":1,"
            "\"leads\":[\"z\"]}\n",
            KVM_RANGE, "1 leads for 2 choices");
    refused("{\"id\":7,\"prefix\":\"p\"}\n", KVM_FORMAT, "id");
    refused("", KVM_FORMAT, "no item");
    /* another encoding is no question */
    refused("{\"id\":\"a\",\"prefix\":\"p\",\"choices\":[\"x\",\"y\"],\"answer\":0}\n"
            "{\"id\":\"b\",\"prefix\":\"caf\xe9\",\"choices\":[\"x\"],\"answer\":0}\n",
            KVM_FORMAT, ":2:");
}

static void dialogues_without_words_are_refused(void **state)
{
    (void)state;
    write_card("dialogue", "");
    refused("{\"id\":\"a\",\"story\":\"\",\"turns\":[]}", KVM_FORMAT,
            "s.jsonl:1: story is empty");
    refused("{\"id\":\"a\",\"story\":\"s\",\"turns\":[]}", KVM_FORMAT,
            "turns is empty");
    refused("{\"id\":\"a\",\"story\":\"s\",\"turns\":[7]}", KVM_FORMAT, "turns");
    refused("{\"id\":\"a\",\"story\":\"s\",\"turns\":[{\"question\":\"q\","
            "\"answers\":[\"x\"]},{\"question\":\"\",\"answers\":[\"x\"]}]}",
            KVM_FORMAT, "turn 2: ");
    refused("{\"id\":\"a\",\"story\":\"s\",\"turns\":[{\"question\":\"q\","
            "\"answers\":[]}]}",
            KVM_FORMAT, "empty");
    refused("{\"id\":\"a\",\"story\":\"s\",\"turns\":[{\"question\":\"q\","
            "\"answers\":[\"x\",\" \"]}]}",
            KVM_FORMAT, "answer 1 is empty");
    refused("{\"id\":\"a\",\"story\":\"s\",\"turns\":[{\"question\":\"q\","
            "\"answer\":\"x\"}]}",
            KVM_FORMAT, "did you mean \"answers\"");
}

/* what would only fail, or score as nothing, once the models run */
static void items_that_cannot_be_scored_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *kind, *rest, *says;
    } rows[] = {
        {"multiple_choice", "\"choices\":[\"x\"],\"answer\":0}", "two that differ"},
        {"multiple_choice", "\"choices\":[\"x\",\"x\"],\"answer\":0}",
         "two that differ"},
        {"multiple_choice",
         "\"choices\":[\"x\",\"x\"],\"leads\":[\"l\",\"l\"],\"answer\":0}",
         "two that differ"},
        {"multiple_choice", "\"choices\":[\"x\",\"\"],\"answer\":0}",
         "choice 1 is empty"},
        {"multiple_choice", "\"choices\":[\" \",\"x\"],\"answer\":1}",
         "choice 0 is empty"},
        {"generation", "\"answers\":[\"x\",\"\"]}", "answer 1 is empty"},
        {"generation", "\"answers\":[\" \\n\"]}", "answer 0 is empty"},
        {"needle", "\"answer\":\"\",\"length\":9}", "answer 0 is empty"},
        {"perplexity", "\"continuation\":\"\"}", "continuation is empty"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        write_card(rows[i].kind, "");
        const kvm_str item =
            kvm_str_fmt(&arena, "\n{\"id\":\"a\",\"prefix\":\"p\",%s", rows[i].rest);
        refused(item.at, KVM_FORMAT, rows[i].says);
        refused(item.at, KVM_FORMAT, "s.jsonl:2: ");
    }
    refused("{\"id\":\"a\",\"prefix\":\"\",\"continuation\":\"x\"}", KVM_FORMAT,
            "s.jsonl:1: prefix is empty");
    /* one continuation behind two names (WinoGrande) is a choice between the names */
    kvm_err err;
    kvm_suite *s;
    write_card("multiple_choice", "");
    check_write(DIR "/s.jsonl",
                KVM_STR("{\"id\":\"a\",\"prefix\":\"p\",\"choices\":[\"x\",\"x\"],"
                        "\"leads\":[\"l\",\"m\"],\"answer\":0}\n"
                        "{\"id\":\"b\",\"prefix\":\"p\","
                        "\"choices\":[\"x\",\"x\",\"y\"],\"answer\":0}\n"));
    check_ok(read(&s, &err), &err);
}

static void equal_ids_are_refused_with_both_lines(void **state)
{
    (void)state;
    write_card("perplexity", "");
#define ITEM(id) "{\"id\":\"" id "\",\"prefix\":\"p\",\"continuation\":\"c\"}\n"
    refused(ITEM("a") ITEM("a"), KVM_FORMAT,
            "s.jsonl:2: id \"a\" also stands on line 1");
    refused(ITEM("b") ITEM("z") "\n" ITEM("ab") ITEM("z") ITEM("b") ITEM("b"),
            KVM_FORMAT, "s.jsonl:5: id \"z\" also stands on line 2");
    refused(ITEM("") ITEM("a") ITEM(""), KVM_FORMAT, "s.jsonl:3: id \"\"");
#undef ITEM
}

/* a misspelt field would otherwise be left out without a word */
static void unknown_fields_are_refused_as_a_cards_are(void **state)
{
    (void)state;
#define NEEDLE "{\"id\":\"a\",\"prefix\":\"p\",\"answer\":\"x\",\"length\":9,"
    static const struct {
        const char *kind, *item, *says;
        kvm_status status;
    } rows[] = {
        {"multiple_choice",
         "{\"id\":\"a\",\"prefix\":\"p\",\"choices\":[\"x\"],\"answer\":0,"
         "\"lead\":[\"z\"]}",
         "leads", KVM_FORMAT},
        {"perplexity",
         "{\"id\":\"a\",\"prefix\":\"p\",\"continuation\":\"x\",\"stop\":[\"z\"]}",
         "stop", KVM_FORMAT},
        {"generation",
         "{\"id\":\"a\",\"prefix\":\"p\",\"answers\":[\"x\"],\"answer\":\"x\"}",
         "answers", KVM_FORMAT},
        {"calibration", "{\"id\":\"a\",\"text\":\"p\",\"prefix\":\"x\"}", "prefix",
         KVM_FORMAT},
        {"needle", NEEDLE "\"dept\":1}", "depth", KVM_FORMAT},
        {"needle", NEEDLE "\"depth\":1.5}", "depth is 1.5", KVM_RANGE},
        {"needle", NEEDLE "\"depth\":-0.1}", "depth is -0.1", KVM_RANGE},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        write_card(rows[i].kind, "");
        refused(rows[i].item, rows[i].status, rows[i].says);
        refused(rows[i].item, rows[i].status, "s.jsonl:1");
    }
}

static void a_generated_answer_has_stop_strings(void **state)
{
    (void)state;
    kvm_err err;
    kvm_suite *s;
    write_card("generation", "stop: [\"\\nQ:\", END]\n");
    check_write(DIR "/s.jsonl",
                KVM_STR("{\"id\":\"a\",\"prefix\":\"p\",\"answers\":[\"x\"]}\n"
                        "{\"id\":\"b\",\"prefix\":\"p\",\"answers\":[\"x\"],"
                        "\"stop\":[\".\"]}\n"));
    check_ok(read(&s, &err), &err);
    assert_int_equal(s->items[0].stop_count, 2);
    check_str(s->items[0].stop[0], "\nQ:");
    assert_int_equal(s->items[1].stop_count, 1);
    check_str(s->items[1].stop[0], ".");
    refused("{\"id\":\"a\",\"prefix\":\"p\",\"answers\":[\"x\"],\"stop\":[\"\"]}\n",
            KVM_RANGE, "stop");
    write_card("perplexity", "stop: [x]\n");
    check_status(KVM_FORMAT, read(&s, &err), &err);
    check_contains(err.msg, "generated");
}

static void wrong_cards_are_named(void **state)
{
    (void)state;
    kvm_err err;
    kvm_suite *s;
    write_card("multiple-choice", "");
    check_status(KVM_FORMAT, read(&s, &err), &err);
    check_contains(err.msg, "multiple_choice");
    write_card("needle", "chanse: 0.1\n");
    check_status(KVM_FORMAT, read(&s, &err), &err);
    check_contains(err.msg, "chance");
    write_card("needle", "metric: f1\n");
    check_status(KVM_FORMAT, read(&s, &err), &err);
    check_contains(err.msg, "recall");
    write_card("needle", "chance: 1.5\n");
    check_status(KVM_RANGE, read(&s, &err), &err);
    check_contains(err.msg, "/s.yaml:6: chance: is 1.5, must lie in [0, 1)");
    write_card("needle", "max_new_tokens: 0\n");
    check_status(KVM_RANGE, read(&s, &err), &err);
    check_contains(err.msg, "/s.yaml:6: max_new_tokens: is 0, must lie in 1..4096");
    static const char *const names[] = {"a/b", "..", "../x", "\"\""};
    for (size_t i = 0; i < COUNT(names); i++) {
        write_named(names[i], "needle", "");
        check_status(KVM_FORMAT, read(&s, &err), &err);
        check_contains(err.msg, "/s.yaml:1: name: is \"");
    }
}

static void the_hash_covers_card_and_items(void **state)
{
    (void)state;
    kvm_err err;
    kvm_suite *a, *b, *c;
    write_card("calibration", "");
    check_write(DIR "/s.jsonl", KVM_STR("{\"id\":\"a\",\"text\":\"t\"}\n"));
    check_ok(read(&a, &err), &err);
    check_write(DIR "/s.jsonl", KVM_STR("{\"id\":\"a\",\"text\":\"u\"}\n"));
    check_ok(read(&b, &err), &err);
    write_card("calibration", "max_new_tokens: 9\n");
    check_ok(read(&c, &err), &err);
    assert_string_not_equal(a->sha, b->sha);
    assert_string_not_equal(b->sha, c->sha);
}

static void unknown_names_list_what_there_is(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_str path;
    check_status(
        KVM_NOTFOUND,
        kvm_suite_find(&path, &arena, KVM_STR("."), KVM_STR("no-such-suite"), &err),
        &err);
    check_contains(err.msg, "needle");
    err = (kvm_err){0};
    check_status(KVM_NOTFOUND,
                 kvm_suite_find(&path, &arena, KVM_STR("."), KVM_STR("needel"), &err),
                 &err);
    check_contains(err.msg, "did you mean \"needle\"");
    err = (kvm_err){0};
    check_ok(kvm_suite_find(&path, &arena, KVM_STR("x"), KVM_STR("y/z.yaml"), &err),
             &err);
    check_str(path, "x/y/z.yaml");
}

static void a_sample_is_spread_evenly(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_suite s = {.count = 10};
    ptrdiff_t *index, n;
    check_ok(kvm_suite_sample(&index, &n, &arena, &s, 4, &err), &err);
    assert_int_equal(n, 4);
    assert_int_equal(index[0], 0);
    assert_int_equal(index[3], 7);
    check_ok(kvm_suite_sample(&index, &n, &arena, &s, 0, &err), &err);
    assert_int_equal(n, 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(multiple_choice_is_read, setup, teardown),
        cmocka_unit_test_setup_teardown(needle_and_generation_have_answers, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(dialogues_have_turns, setup, teardown),
        cmocka_unit_test_setup_teardown(dialogues_without_words_are_refused, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(wrong_items_are_named_by_line, setup, teardown),
        cmocka_unit_test_setup_teardown(items_that_cannot_be_scored_are_refused, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(equal_ids_are_refused_with_both_lines, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(unknown_fields_are_refused_as_a_cards_are,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(a_generated_answer_has_stop_strings, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(wrong_cards_are_named, setup, teardown),
        cmocka_unit_test_setup_teardown(the_hash_covers_card_and_items, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(unknown_names_list_what_there_is, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_sample_is_spread_evenly, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
