/* Importing: what becomes of one task of every format, of what is wrong, and of the
 * public files themselves where KVMILL_DATA has them. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "jobs/suite_import.h"
#include "tests/support/check.h"

#define DIR "build/tmp/suite_import"
#define CARD DIR "/out.yaml"

static kvm_arena arena;

static int setup(void **state)
{
    (void)state;
    arena = check_arena((size_t)1 << 33);
    check_tmpdir("suite_import");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&arena);
    return 0;
}

static kvm_import_options options(const char *format, const char *input)
{
    return (kvm_import_options){.format = kvm_str_of(format),
                                .input = kvm_str_of(input),
                                .card = KVM_STR(CARD)};
}

static kvm_suite *imported(const kvm_import_options *o, kvm_imported *done)
{
    kvm_err err = {0};
    kvm_suite *s;
    kvm_imported ignored;
    check_ok(kvm_suite_import(done ? done : &ignored, &arena, o, &err), &err);
    check_ok(kvm_suite_read(&s, &arena, o->card, &err), &err);
    return s;
}

/* content becomes the input of that format */
static kvm_suite *import(const char *format, const char *content, kvm_imported *done)
{
    check_write(DIR "/in.jsonl", kvm_str_of(content));
    const kvm_import_options o = options(format, DIR "/in.jsonl");
    return imported(&o, done);
}

static void refused(const char *format, const char *content, kvm_status status,
                    const char *part)
{
    kvm_err err = {0};
    kvm_imported done;
    check_write(DIR "/in.jsonl", kvm_str_of(content));
    const kvm_import_options o = options(format, DIR "/in.jsonl");
    check_status(status, kvm_suite_import(&done, &arena, &o, &err), &err);
    check_contains(err.msg, part);
}

static void openbookqa_completes_the_query(void **state)
{
    (void)state;
    kvm_imported done;
    const kvm_suite *s = import(
        "openbookqa",
        "{\"query\":\"Predators eat\",\"choices\":[\"lions\",\"grass\"],\"gold\":1}\n"
        "{\"query\":\"Frogs\",\"choices\":[\"hop\",\"fly\"],\"gold\":0}\n",
        &done);
    assert_int_equal(s->count, 1);
    assert_int_equal(done.left_out, 1);
    check_contains(done.why, "no cache to translate");
    check_str(s->items[0].prefix, "Predators eat");
    check_str(s->items[0].question, "");
    check_str(s->items[0].choices[1], " grass");
    assert_int_equal(s->items[0].answer, 1);
    assert_true(s->chance == 0.25);
    check_str(s->metric, "accuracy_norm");
    refused("openbookqa", "{\"query\":\"a b\",\"choices\":[\"x\",\"y\"],\"gold\":2}",
            KVM_RANGE, "in.jsonl:1");
    refused("openbookqa", "{\"query\":\"a b\",\"choices\":[\"x\"],\"gold\":0}",
            KVM_RANGE, "1 choices");
    refused("openbookqa", "\n{\"query\":\"a b\"}", KVM_FORMAT, "in.jsonl:2");
}

static void piqa_takes_its_labels_from_beside(void **state)
{
    (void)state;
    static const char two[] =
        "{\"goal\":\"boil an egg\",\"sol1\":\"ice\",\"sol2\":\"heat \"}\n"
        "{\"goal\":\"sleep\",\"sol1\":\"bed\",\"sol2\":\"drum\"}\n";
    check_write(DIR "/in-labels.lst", KVM_STR("1\n0\n"));
    const kvm_suite *s = import("piqa", two, NULL);
    check_str(s->items[0].prefix, "Question: boil an egg\n");
    check_str(s->items[0].question, "Answer:");
    check_str(s->items[0].choices[1], " heat");
    assert_int_equal(s->items[0].answer, 1);
    assert_int_equal(s->items[1].answer, 0);
    /* a question that is left out takes its label with it */
    kvm_imported done;
    check_write(DIR "/in-labels.lst", KVM_STR("1\n0\n1\n"));
    s = import("piqa",
               "{\"goal\":\"boil an egg\",\"sol1\":\"ice\",\"sol2\":\"heat \"}\n"
               "{\"goal\":\"sleep\",\"sol1\":\"bed\",\"sol2\":\" bed\"}\n"
               "{\"goal\":\"sleep\",\"sol1\":\"drum\",\"sol2\":\"bed\"}\n",
               &done);
    assert_int_equal(s->count, 2);
    assert_int_equal(done.left_out, 1);
    check_contains(done.why, "all choices are equal");
    assert_int_equal(s->items[1].answer, 1);
    check_write(DIR "/in-labels.lst", KVM_STR("1\n"));
    refused("piqa", two, KVM_MISMATCH, "1 labels for 2 questions");
    check_write(DIR "/in-labels.lst", KVM_STR("1\n2\n"));
    refused("piqa", two, KVM_FORMAT, "in-labels.lst:2");
    assert_int_equal(remove(DIR "/in-labels.lst"), 0);
    refused("piqa", two, KVM_NOTFOUND, "in-labels.lst");
}

/* what a suite refuses is left out, and counted */
static void what_cannot_be_scored_is_left_out(void **state)
{
    (void)state;
    kvm_imported done;
    const kvm_suite *s =
        import("winogrande",
               "{\"context_options\":[\"Ann saw Bob so Ann\",\"Ann saw Bob so Bob\"],"
               "\"continuation\":\"left.\",\"gold\":1}\n"
               "{\"context_options\":[\"Ann saw Bob\",\"Ann saw Bob\"],"
               "\"continuation\":\"left.\",\"gold\":1}\n",
               &done);
    assert_int_equal(s->count, 1);
    assert_int_equal(done.left_out, 1);
    s = import("triviaqa",
               "{\"context\":\"Question: Who?\\nAnswer:\",\"answer\":\"Ann\","
               "\"aliases\":[\"\",\"Anna\"]}\n"
               "{\"context\":\"Question: Who?\\nAnswer:\",\"answer\":\" \"}\n",
               &done);
    assert_int_equal(s->count, 1);
    assert_int_equal(s->items[0].choice_count, 2);
    check_str(s->items[0].choices[1], "Anna");
    assert_int_equal(done.left_out, 1);
}

static void winogrande_scores_what_follows_either_name(void **state)
{
    (void)state;
    kvm_imported done;
    const kvm_suite *s = import(
        "winogrande",
        "{\"context_options\":[\"Sarah knew Maria so Sarah\",\"Sarah knew Maria so "
        "Samira\"],\"continuation\":\"smiled.\",\"gold\":1}\n"
        "{\"context_options\":[\"Ann\",\"Bob\"],\"continuation\":\"left.\",\"gold\":0}"
        "\n",
        &done);
    assert_int_equal(s->count, 1);
    assert_int_equal(done.left_out, 1);
    check_str(s->items[0].prefix, "Sarah knew Maria so"); /* not "… so Sa" */
    check_str(s->items[0].leads[0], " Sarah");
    check_str(s->items[0].leads[1], " Samira");
    check_str(s->items[0].choices[0], " smiled.");
    check_str(s->items[0].choices[1], " smiled.");
    assert_int_equal(s->items[0].answer, 1);
    refused("winogrande",
            "{\"context_options\":[\"a b\",\"a c\",\"a d\"],\"continuation\":\"e\","
            "\"gold\":0}",
            KVM_RANGE, "two contexts");
}

static void hellaswag_has_six_lines_a_task(void **state)
{
    (void)state;
    const kvm_suite *s = import(
        "hellaswag", "Roof: A man sits. he\n3\nsleeps.\nsings.\nruns.\nworks.\n", NULL);
    check_str(s->items[0].prefix, "Roof: A man sits. he");
    check_str(s->items[0].choices[3], " works.");
    assert_int_equal(s->items[0].answer, 3);
    refused("hellaswag", "Roof: he\n3\na\nb\nc\nd\nSea: she\n1\na\n", KVM_FORMAT,
            "in.jsonl:7");
    refused("hellaswag", "Roof: he\nx\na\nb\nc\nd\n", KVM_FORMAT, "\"x\" is no number");
    refused("hellaswag", "Roof: he\n4\na\nb\nc\nd\n", KVM_RANGE, "in.jsonl:1");
}

#define HEADER "question,choice0,choice1,choice2,choice3,answer\r\n"
#define DEV "q1,a,b,c,d,0\nq2,a,b,c,d,1\nq3,a,b,c,d,2\nq4,a,b,c,d,3\nq5,a,b,c,d,0\n"

static void write_mmlu(const char *dev, const char *test)
{
    mkdir(DIR "/mmlu", 0777);
    mkdir(DIR "/mmlu/dev", 0777);
    mkdir(DIR "/mmlu/test", 0777);
    check_write(DIR "/mmlu/dev/high_school_art_dev.csv", kvm_str_of(dev));
    check_write(DIR "/mmlu/test/high_school_art_test.csv", kvm_str_of(test));
}

static void mmlu_refused(const char *dev, const char *test, kvm_status status,
                         const char *part)
{
    kvm_err err = {0};
    kvm_imported done;
    const kvm_import_options o = options("mmlu", DIR "/mmlu");
    write_mmlu(dev, test);
    check_status(status, kvm_suite_import(&done, &arena, &o, &err), &err);
    check_contains(err.msg, part);
}

static void mmlu_has_five_shots(void **state)
{
    (void)state;
    write_mmlu(HEADER DEV,
               HEADER "\"Who said \"\"no,\nnever\"\"?\",Ann,\"Bob, Sr\",C,D,1\r\n"
                      "Which?,1,2,3,4,3");
    kvm_import_options o = options("mmlu", DIR "/mmlu");
    const kvm_suite *s = imported(&o, NULL);
    assert_int_equal(s->count, 2);
    check_str(
        s->items[0].prefix,
        "The following are multiple choice questions (with answers) about high school "
        "art.\n\n"
        "q1\nA. a\nB. b\nC. c\nD. d\nAnswer: A\n\nq2\nA. a\nB. b\nC. c\nD. d\nAnswer: "
        "B\n\nq3\nA. a\nB. b\nC. c\nD. d\nAnswer: C\n\nq4\nA. a\nB. b\nC. c\nD. d\n"
        "Answer: D\n\nq5\nA. a\nB. b\nC. c\nD. d\nAnswer: A\n\n"
        "Who said \"no,\nnever\"?\nA. Ann\nB. Bob, Sr\nC. C\nD. D\n");
    check_str(s->items[0].question, "Answer:");
    check_str(s->items[0].choices[1], " B");
    assert_int_equal(s->items[0].answer, 1);
    assert_int_equal(s->items[1].answer, 3);
    check_contains(s->provenance.at, "five shots");
    o.input = KVM_STR(DIR "/mmlu/test/high_school_art_test.csv");
    assert_int_equal(imported(&o, NULL)->count, 2);
    mmlu_refused(HEADER "q,a,b,c,d,0\n", HEADER "q,a,b,c,d,0\n", KVM_FORMAT,
                 "holds 1 examples");
    mmlu_refused(HEADER DEV, HEADER "q,a,b,c,d\n", KVM_FORMAT, "5 fields");
    mmlu_refused(HEADER DEV, HEADER "q,a,b,c,d,4\n", KVM_RANGE, "\"4\" is not 0..3");
    mmlu_refused(HEADER DEV, HEADER "\"q,a,b,c,d,0\n", KVM_FORMAT, "does not end");
    mmlu_refused(HEADER DEV, HEADER "\"q\"x,a,b,c,d,0\n", KVM_FORMAT, "test.csv:2");
    mmlu_refused(HEADER DEV, "q,a,b,c,d,0\n", KVM_FORMAT, "header");
}

static void answers_in_words(void **state)
{
    (void)state;
    const kvm_suite *s = import(
        "gsm8k",
        "{\"question\":\"How much? \",\"answer\":\"2*617=1234\\n#### 1,234\"}\n", NULL);
    check_str(s->items[0].prefix, "Question: How much?\n");
    check_str(s->items[0].question, "Answer:");
    check_str(s->items[0].choices[0], "1234");
    check_str(s->items[0].choices[1], "1,234");
    assert_int_equal(s->max_new_tokens, 256);
    refused("gsm8k", "{\"question\":\"q\",\"answer\":\"12\"}", KVM_FORMAT, "####");
    s = import("triviaqa",
               "{\"context\":\"Question: Which plant?\\nAnswer:\",\"answer\":\"Onion\","
               "\"aliases\":[\"Onions\",\"Onion\",\"Allium cepa\"]}\n",
               NULL);
    check_str(s->items[0].prefix, "Question: Which plant?\n");
    check_str(s->items[0].question, "Answer:");
    assert_int_equal(s->items[0].choice_count, 3);
    check_str(s->items[0].choices[2], "Allium cepa");
    refused("triviaqa", "{\"context\":\"Which?\",\"answer\":\"x\"}", KVM_FORMAT,
            "two lines");
}

static void coqa_goes_turn_by_turn(void **state)
{
    (void)state;
    const kvm_suite *s = import(
        "coqa",
        "{\"data\":[{\"id\":\"x\",\"story\":\"Tom has a cat.\","
        "\"questions\":[{\"input_text\":\"Who?\",\"turn_id\":1},"
        "{\"input_text\":\"What?\",\"turn_id\":2}],"
        "\"answers\":[{\"input_text\":\"Tom\",\"turn_id\":1},"
        "{\"input_text\":\"a cat\",\"turn_id\":2}],"
        "\"additional_answers\":{\"0\":[{\"input_text\":\"Tom does\",\"turn_id\":1},"
        "{\"input_text\":\"cat\",\"turn_id\":2}]}}]}",
        NULL);
    assert_int_equal(s->count, 2);
    check_str(s->items[0].prefix, "Tom has a cat.\n\n");
    check_str(s->items[1].prefix, "Tom has a cat.\n\nQ: Who?\nA: Tom\n");
    check_str(s->items[1].question, "Q: What?\nA:");
    check_str(s->items[1].choices[0], "a cat");
    check_str(s->items[1].choices[1], "cat");
    assert_int_equal(s->stop_count, 1);
    check_str(s->stop[0], "\nQ:"); /* else the next question would be scored too */
    refused("coqa",
            "{\"data\":[{\"story\":\"s\",\"questions\":[{\"input_text\":\"q\"}]}]}",
            KVM_FORMAT, "answers");
}

/* one conversation about a story is one item of its turns */
static void coqa_is_also_dialogues(void **state)
{
    (void)state;
    static const char two[] =
        "{\"data\":[{\"story\":\" Tom has a cat. \","
        "\"questions\":[{\"input_text\":\"Who?\",\"turn_id\":1},"
        "{\"input_text\":\"What?\",\"turn_id\":2}],"
        "\"answers\":[{\"input_text\":\"Tom\",\"span_text\":\"Tom\",\"turn_id\":1},"
        "{\"input_text\":\"a cat\",\"span_text\":\"a cat\",\"turn_id\":2}],"
        "\"additional_answers\":{\"0\":[{\"input_text\":\"\",\"turn_id\":1},"
        "{\"input_text\":\"cat\",\"turn_id\":2}]}},"
        "{\"story\":\"s\",\"questions\":[{\"input_text\":\"q\"}],"
        "\"answers\":[{\"input_text\":\" \"}]},"
        "{\"story\":\"s\",\"questions\":[],\"answers\":[]}]}";
    kvm_imported done;
    check_write(DIR "/coqa.json", kvm_str_of(two));
    const kvm_import_options o = options("coqa_dialogues", DIR "/coqa.json");
    const kvm_suite *s = imported(&o, &done);
    assert_int_equal(s->kind, KVM_SUITE_DIALOGUE);
    assert_int_equal(s->count, 1);
    assert_int_equal(done.left_out, 2);
    const kvm_item *it = &s->items[0];
    check_str(it->prefix, "Tom has a cat.\n\n");
    assert_int_equal(it->turn_count, 2);
    check_str(it->turns[0].question, "Q: Who?\nA:");
    check_str(it->turns[1].question, "\nQ: What?\nA:");
    assert_int_equal(it->turns[0].answer_count, 1); /* an empty one accepts nothing */
    assert_int_equal(it->turns[1].answer_count, 2);
    check_str(it->turns[1].answers[1], "cat");
    check_str(s->stop[0], "\nQ:");
    check_str(s->metric, "f1");
    refused("coqa_dialogues",
            "{\"data\":[{\"story\":\"s\",\"questions\":[{\"input_text\":\"q\"}]}]}",
            KVM_FORMAT, "answers");
    refused("coqa_dialogues", "{\"data\":[{\"questions\":[]}]}", KVM_FORMAT, "story");
    static const char *const empty[] = {"[]", "{}", "{\"data\":[]}", "{\"data\":1}"};
    for (size_t i = 0; i < COUNT(empty); i++)
        refused("coqa", empty[i], KVM_FORMAT,
                "has no stories: this must be CoQA's own file, an object whose "
                "\"data\" lists them");
    refused("coqa_dialogues",
            "{\"data\":[{\"story\":\"s\","
            "\"questions\":[{\"input_text\":\"q\",\"turn_id\":2}],"
            "\"answers\":[{\"input_text\":\"a\",\"turn_id\":3}]}]}",
            KVM_FORMAT, "turn_id: is 3, and the question in its place is 2");
}

/* n sentences of five words of four letters: 25 bytes, so 6.25 tokens, each */
static void write_prose(int n)
{
    kvm_text t = {0};
    for (int i = 0; i < n; i++)
        kvm_text_addf(&t, "Word tale mill %04d stop.%s", i % 10000, i % 7 ? " " : "\n");
    check_write(DIR "/prose.txt", kvm_text_str(&t));
    kvm_text_free(&t);
}

static void text_is_cut_between_words(void **state)
{
    (void)state;
    write_prose(400);
    kvm_import_options o = options("text", DIR "/prose.txt");
    o.tokens = 100;
    const kvm_suite *s = imported(&o, NULL);
    assert_true(s->count > 10);
    for (ptrdiff_t i = 0; i < s->count; i++) {
        const kvm_item *it = &s->items[i];
        assert_in_range(it->prefix.len, 390, 410); /* 100 tokens of four bytes */
        assert_in_range(it->continuation.len, 70, 90);
        assert_true(it->continuation.at[0] == ' ' || it->continuation.at[0] == '\n');
        assert_true(it->prefix.at[0] != ' ');
    }
    o.limit = 3;
    assert_int_equal(imported(&o, NULL)->count, 3);
    refused("text", "short", KVM_FORMAT, "no item");
    refused("text", "ab\n\xff\xfe", KVM_FORMAT, ":2: byte 3 (0xff) is not UTF-8");
}

static void a_needle_lies_at_every_depth_once(void **state)
{
    (void)state;
    write_prose(2000);
    kvm_import_options o = options("needle", DIR "/prose.txt");
    o.tokens = 512;
    o.limit = 12;
    const kvm_suite *s = imported(&o, NULL);
    assert_int_equal(s->count, 12);
    assert_int_equal(s->items[0].length, 128);
    assert_int_equal(s->items[11].length, 512);
    for (ptrdiff_t i = 0; i < s->count; i++) {
        const kvm_item *it = &s->items[i];
        const ptrdiff_t at = kvm_str_find(it->prefix, KVM_STR("The access code of "));
        const double share = (double)at / (double)it->prefix.len;
        assert_true(at >= 0);
        assert_true(share > it->depth - 0.15 && share < it->depth + 0.15);
        assert_true(kvm_str_find(it->prefix, it->choices[0]) > at);
        assert_true(kvm_str_find(it->question, it->choices[0]) < 0);
        assert_in_range(it->prefix.len, it->length * 4 - 160, it->length * 4);
    }
    const kvm_str first = check_read(&arena, DIR "/out.jsonl");
    imported(&o, NULL);
    assert_true(kvm_str_eq(first, check_read(&arena, DIR "/out.jsonl"))); /* seeded */
    o.tokens = 1 << 20;
    kvm_err err = {0};
    kvm_imported done;
    check_status(KVM_RANGE, kvm_suite_import(&done, &arena, &o, &err), &err);
}

static void a_tokenizer_counts(void **state)
{
    (void)state;
    write_prose(2000);
    kvm_err err = {0};
    kvm_tokenizer *t;
    kvm_encoder *e;
    check_ok(kvm_tokenizer_open(&t, &arena, KVM_STR("tests/zoo/small"), &err), &err);
    check_ok(kvm_encoder_new(&e, &arena, t, &err), &err);
    kvm_import_options o = options("text", DIR "/prose.txt");
    o.tokens = 200;
    o.tokenizer = KVM_STR("tests/zoo/small");
    const kvm_suite *s = imported(&o, NULL);
    for (ptrdiff_t i = 0; i < s->count; i++) {
        int32_t *ids;
        ptrdiff_t n;
        check_ok(kvm_encode(e, s->items[i].prefix, NULL, &arena, &ids, &n, &err), &err);
        assert_in_range(n, 185, 210);
    }
}

static void bad_requests_are_refused(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_imported done;
    write_prose(10);
    kvm_import_options o = options("squad", DIR "/prose.txt");
    check_status(KVM_NOTFOUND, kvm_suite_import(&done, &arena, &o, &err), &err);
    check_contains(err.msg, "openbookqa, piqa");
    err = (kvm_err){0};
    o = options("text", DIR "/prose.txt");
    o.card = KVM_STR(DIR "/out.yml");
    check_status(KVM_USAGE, kvm_suite_import(&done, &arena, &o, &err), &err);
    check_contains(err.msg, "NAME.yaml");
    err = (kvm_err){0};
    o = options("text", DIR "/nothing.txt");
    check_status(KVM_NOTFOUND, kvm_suite_import(&done, &arena, &o, &err), &err);
    err = (kvm_err){0};
    check_write(DIR "/a.txt.gz", KVM_STR("x"));
    o = options("text", DIR "/a.txt.gz");
    check_status(KVM_UNSUPPORTED, kvm_suite_import(&done, &arena, &o, &err), &err);
    check_contains(err.msg, "gunzip");
}

/* counts as the data's own description gives them, less what the form cannot express */
static void public_files_are_read_whole(void **state)
{
    (void)state;
    static const struct {
        const char *format, *file;
        ptrdiff_t items, left_out;
    } rows[] = {
        {"openbookqa", "openbookqa/openbook_qa.jsonl", 491, 9},
        {"piqa", "piqa/valid.jsonl", 1838, 0},
        {"winogrande", "winogrande/winogrande.jsonl", 1261, 6},
        {"mmlu", "mmlu", 14042, 0},
        {"gsm8k", "gsm8k/test.jsonl", 1319, 0},
        {"triviaqa", "triviaqa/triviaqa_sm_sub.jsonl", 3000, 0},
    };
    const char *data = getenv("KVMILL_DATA");
    if (!data) {
        print_message("# skipped: KVMILL_DATA names no folder with the data sets\n");
        return;
    }
    for (size_t i = 0; i < COUNT(rows); i++) {
        const kvm_str path = kvm_str_fmt(&arena, "%s/%s", data, rows[i].file);
        if (!kvm_path_exists(path)) {
            print_message("# skipped: there is no %s\n", path.at);
            continue;
        }
        kvm_imported done;
        const kvm_import_options o = options(rows[i].format, path.at);
        assert_int_equal(imported(&o, &done)->count, rows[i].items);
        assert_int_equal(done.left_out, rows[i].left_out);
    }
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
/* the first of four items is text that was fitted on; a card that stood there is
 * told */
static void items_of_the_calibration_text_are_left_out(void **state)
{
    (void)state;
    kvm_imported done;
    kvm_err err = {0};
    kvm_text t = {0}, boiler = {0};
    for (int i = 0; i < 12; i++)
        kvm_text_addf(&boiler, "This text may be copied, part %d, by all. ", i);
    for (int i = 0; i < 400; i++)
        kvm_text_addf(&t, "%sThe number %d is followed by the number %d. ",
                      i == 0 ? boiler.at : "", i * i, 7 * i + 1);
    check_write(DIR "/prose.txt", kvm_text_str(&t));
    check_write(DIR "/fitted.txt", kvm_text_str(&boiler));
    kvm_import_options o = options("text", DIR "/prose.txt");
    o.tokens = 256;
    o.tokenizer = KVM_STR("tests/zoo/small");
    const ptrdiff_t all = imported(&o, &done)->count;
    assert_true(all > 3);
    assert_int_equal(done.overlapping, 0);
    o.apart = KVM_STR(DIR "/fitted.txt");
    assert_int_equal(imported(&o, &done)->count, all - 1);
    assert_int_equal(done.overlapping, 1);
    assert_int_equal(done.replaced, all);
    assert_false(kvm_path_exists(KVM_STR(DIR "/out.all.yaml")));
    kvm_arena keep = check_arena((size_t)1 << 30);
    assert_int_equal(
        kvm_str_find(check_read(&keep, o.card.at), KVM_STR("max_new_tokens")), -1);
    kvm_arena_free(&keep);
    o.apart = o.input;
    check_status(KVM_MISMATCH, kvm_suite_import(&done, &arena, &o, &err), &err);
    o.tokenizer = (kvm_str){0};
    err = (kvm_err){0};
    check_status(KVM_USAGE, kvm_suite_import(&done, &arena, &o, &err), &err);
    kvm_text_free(&t);
    kvm_text_free(&boiler);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(openbookqa_completes_the_query),
        T(piqa_takes_its_labels_from_beside),
        T(what_cannot_be_scored_is_left_out),
        T(winogrande_scores_what_follows_either_name),
        T(hellaswag_has_six_lines_a_task),
        T(mmlu_has_five_shots),
        T(answers_in_words),
        T(coqa_goes_turn_by_turn),
        T(coqa_is_also_dialogues),
        T(text_is_cut_between_words),
        T(a_needle_lies_at_every_depth_once),
        T(a_tokenizer_counts),
        T(items_of_the_calibration_text_are_left_out),
        T(bad_requests_are_refused),
        T(public_files_are_read_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
