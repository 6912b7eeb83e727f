/* YAML: the traps of 1.1, what is refused with its line, and the check against a table
 * of fields. */
#include "base/yaml.h"

#include <stdio.h>
#include <string.h>

#include "tests/support/check.h"

static kvm_arena keep;

static kvm_status read_yaml(kvm_jat *root, kvm_str text, kvm_err *err)
{
    return kvm_yaml_parse(root, &keep, text, KVM_STR("t.yaml"), err);
}

static kvm_jat parse(const char *text)
{
    kvm_jat root;
    kvm_err err = {0};
    check_ok(read_yaml(&root, kvm_str_of(text), &err), &err);
    return root;
}

static const char *const scalars[][2] = {
    /* numbers */
    {"a: 1e-3", "{\"a\":0.001}"},
    {"a: 1E3", "{\"a\":1000}"},
    {"a: 1.5", "{\"a\":1.5}"},
    {"a: -7", "{\"a\":-7}"},
    {"a: +7", "{\"a\":7}"},
    {"a: .5", "{\"a\":0.5}"},
    {"a: 0", "{\"a\":0}"},
    {"a: 0.25", "{\"a\":0.25}"},
    {"a: -0.5", "{\"a\":-0.5}"},
    {"a: 0x1F", "{\"a\":31}"},
    {"a: 0o17", "{\"a\":15}"},
    {"a: 9223372036854775807", "{\"a\":9223372036854775807}"},
    /* 1.1's truth values, sexagesimals, underscores, dates: texts in 1.2 */
    {"a: no", "{\"a\":\"no\"}"},
    {"a: Yes", "{\"a\":\"Yes\"}"},
    {"a: off", "{\"a\":\"off\"}"},
    {"a: y", "{\"a\":\"y\"}"},
    {"a: 12:30:45", "{\"a\":\"12:30:45\"}"},
    {"a: 1_000", "{\"a\":\"1_000\"}"},
    {"a: 2026-01-31", "{\"a\":\"2026-01-31\"}"},
    {"a: 1.2.3", "{\"a\":\"1.2.3\"}"},
    {"a: 0xZ", "{\"a\":\"0xZ\"}"},
    {"a: 0o9", "{\"a\":\"0o9\"}"},
    {"a: e3", "{\"a\":\"e3\"}"},
    {"a: '-'", "{\"a\":\"-\"}"},
    {"a: .", "{\"a\":\".\"}"},
    /* the core schema's words */
    {"a: true", "{\"a\":true}"},
    {"a: False", "{\"a\":false}"},
    {"a: TRUE", "{\"a\":true}"},
    {"a: tRue", "{\"a\":\"tRue\"}"},
    {"a: null", "{\"a\":null}"},
    {"a: ~", "{\"a\":null}"},
    {"a:", "{\"a\":null}"},
    /* quotes make texts */
    {"a: '1e-3'", "{\"a\":\"1e-3\"}"},
    {"a: \"true\"", "{\"a\":\"true\"}"},
    {"a: '010'", "{\"a\":\"010\"}"},
    {"a: ''", "{\"a\":\"\"}"},
    {"a: |\n  12\n", "{\"a\":\"12\\n\"}"},
    {"a: >\n  one\n  two\n", "{\"a\":\"one two\\n\"}"},
    /* keys are texts, whatever they look like */
    {"1: a\ntrue: b\nnull: c\n010: d\nno: e",
     "{\"010\":\"d\",\"1\":\"a\",\"no\":\"e\",\"null\":\"c\",\"true\":\"b\"}"},
    {"'<<': a", "{\"<<\":\"a\"}"},
    /* structure */
    {"a: {b: [1, 2, {c: d}], e: []}\nf:\n- 1\n- x: y\n",
     "{\"a\":{\"b\":[1,2,{\"c\":\"d\"}],\"e\":[]},\"f\":[1,{\"x\":\"y\"}]}"},
    {"{\"json\": [1, 2.5, null, true, \"s\"]}", "{\"json\":[1,2.5,null,true,\"s\"]}"},
    {"---\na: 1\n...\n", "{\"a\":1}"},
    {"%YAML 1.2\n---\na: 1\n", "{\"a\":1}"},
    {"\xef\xbb\xbf"
     "a: 1",
     "{\"a\":1}"},
    {"\xef\xbb\xbf"
     "a: 1\nb: {c: 2}\nd:\n  e: 3\n",
     "{\"a\":1,\"b\":{\"c\":2},\"d\":{\"e\":3}}"},
    {"a: 1\r\nb: 2\r\n", "{\"a\":1,\"b\":2}"},
    {"a: \xc3\xa9 # comment", "{\"a\":\"\xc3\xa9\"}"},
    {"just text", "\"just text\""},
    {"- 1\n- 2\n", "[1,2]"},
    /* anchors */
    {"a: &x {k: 1}\nb: *x\nc: [*x, *x]\n",
     "{\"a\":{\"k\":1},\"b\":{\"k\":1},\"c\":[{\"k\":1},{\"k\":1}]}"},
    {"a: &n 5\nb: *n\n", "{\"a\":5,\"b\":5}"},
};

static void scalars_mean_what_a_person_means(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(scalars); i++) {
        kvm_err err = {0};
        kvm_str text;
        check_ok(kvm_json_canonical(&text, &keep, parse(scalars[i][0]).v, &err), &err);
        check_str(text, scalars[i][1]);
    }
}

static const struct {
    const char *text, *message;
} traps[] = {
    {"", "t.yaml: is empty"},
    {"# only a comment\n", "t.yaml: is empty"},
    {"a: 1\nb: 010\n", "t.yaml:2: 010: octal or ten?"},
    {"b: -007", "t.yaml:1: -007: octal or ten?"},
    {"b: 00", "octal or ten?"},
    {"b: 01.5", "octal or ten?"},
    {"a: 1\nb: 2\na: 3\n",
     "t.yaml:3: the key \"a\" stands here for the second time (first on line 1)"},
    {"x: {a: 1, 'a': 2}", "second time"},
    {"1: a\n'1': b\n", "t.yaml:2: the key \"1\" stands here for the second time"},
    {"a:\n\t- 1\n", "t.yaml:2: a tab cannot indent YAML"},
    {"a:\n  b: 1\n\tc: 2\n", "t.yaml:3: a tab cannot indent YAML"},
    {"a: 1\n---\nb: 2\n", "t.yaml:2: a second document"},
    {"a: 1\n...\nb: 2\n", "t.yaml:3:1: did not find expected <document start>"},
    {"a: .inf\n", "t.yaml:1: .inf: numbers here are finite"},
    {"a: -.Inf\n", "numbers here are finite"},
    {"a: .nan\n", "numbers here are finite"},
    {"a: 1e999\n", "t.yaml:1: 1e999 is out of range"},
    {"a: 9223372036854775808", "does not fit 64 bits"},
    {"a: 0xFFFFFFFFFFFFFFFFF", "does not fit 64 bits"},
    {"a: !!str 5", "t.yaml:1: tags (tag:yaml.org,2002:str) are not read here"},
    {"a: !!python/object:os.system x", "tags"},
    {"a: !local {}", "tags (!local)"},
    {"a: ! x", "tags (!)"},
    {"!!int 1: a", "a key must be a plain text"},
    {"? [1, 2]\n: a\n", "a key must be a plain text"},
    {"&k a: 1\n", "a key must be a plain text"},
    {"&x a: 1\n*x : 2\n", "a key must be a plain text"},
    {"base: &b {k: 1}\nuse:\n  <<: *b\n", "t.yaml:3: merge keys (<<)"},
    {"a: *nowhere", "t.yaml:1: there is no anchor &nowhere above"},
    {"a: &x [1, *x]", "*x stands inside its own anchor"},
    {"a: &x {b: {c: *x}}", "*x stands inside its own anchor"},
    {"a: &x 1\nb: &x 2\n", "t.yaml:2: the anchor &x is set twice"},
    {"%YAML 1.1\n---\na: no\n", "%YAML 1.1; YAML 1.2 is read here"},
    {"a: [1, 2\nb: 3\n", "t.yaml:2:"},
    {"a: b: c", "t.yaml:1:"},
    {"a: 'open\n", "t.yaml:"},
    {"a: \"\\0\"", "a text holds a zero byte"},
    {"\"a\\0b\": 1", "a key holds a zero byte"},
    {"a: \xff\n", "t.yaml:"},
    {"a: \x01\n", "t.yaml:"},
    {"\xff\xfe"
     "a",
     "t.yaml:"}, /* UTF-16 */
    {"a: @x", "t.yaml:1:"},
    {"a: `x`", "t.yaml:1:"},
};

static void traps_are_refused_with_their_line(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(traps); i++) {
        kvm_jat root = {.line = 77};
        kvm_err err = {0};
        const kvm_status s = read_yaml(&root, kvm_str_of(traps[i].text), &err);
        if (s != KVM_FORMAT) print_error("text: %s\n", traps[i].text);
        check_status(KVM_FORMAT, s, &err);
        check_contains(err.msg, traps[i].message);
        assert_int_equal(root.line, 77);
    }
}

static void depth_is_limited_to_64(void **state)
{
    (void)state;
    char text[4000];
    for (int depth = 1; depth <= 100; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        kvm_jat root;
        kvm_err err = {0};
        check_status(depth <= 64 ? KVM_OK : KVM_FORMAT,
                     read_yaml(&root, (kvm_str){text, 2 * (ptrdiff_t)depth}, &err),
                     &err);
    }
    /* an alias brings the depth of its anchor along */
    kvm_text t = {0};
    kvm_text_add(&t, KVM_STR("a0: &a0 [0]\n"));
    for (int i = 1; i <= 63; i++) kvm_text_addf(&t, "a%d: &a%d [*a%d]\n", i, i, i - 1);
    kvm_jat root;
    kvm_err err = {0};
    check_status(KVM_FORMAT, read_yaml(&root, kvm_text_str(&t), &err), &err);
    check_contains(err.msg, "t.yaml:64: nested deeper than 64");
    kvm_text_free(&t);
}

/* "A billion laughs": ten lines that would be a billion values. */
static void aliases_that_multiply_are_refused(void **state)
{
    (void)state;
    kvm_text t = {0};
    kvm_text_add(&t, KVM_STR("a: &a [x, x, x, x, x, x, x, x, x, x]\n"));
    for (int c = 'b'; c <= 'j'; c++) {
        kvm_text_addf(&t, "%c: &%c [", c, c);
        for (int i = 0; i < 10; i++) kvm_text_addf(&t, "%s*%c", i ? ", " : "", c - 1);
        kvm_text_add(&t, KVM_STR("]\n"));
    }
    kvm_jat root;
    kvm_err err = {0};
    check_status(KVM_RANGE, read_yaml(&root, kvm_text_str(&t), &err), &err);
    check_contains(err.msg, "aliases repeat more than 1000000 values");
    kvm_text_free(&t);
}

/* few values, but of a long text: a tree of gigabytes out of a file of kilobytes */
static void aliases_that_multiply_text_are_refused(void **state)
{
    (void)state;
    enum { WORD = 1000, MOST = 1 << 20 };
    char word[WORD + 1] = "";
    memset(word, 'w', WORD);
    static const struct {
        const char *before, *after; /* the word, in what the anchor names */
        int bytes;                  /* of the text in it */
    } rows[] = {
        {"", "", WORD},
        {"[[x, ", "], y]", WORD + 2},
        {"{key: {k: ", "}}", 3 + 1 + WORD},
        {"{", ": 12}", WORD + 2},
        {"[{ab: [{", ": }]}]", 2 + WORD},
        {"{a: x, b: &b ", ", c: [*b, *b]}", 4 + 3 * WORD},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        const bool twice = strstr(rows[i].after, "*b") != NULL; /* two are aliases */
        const int fit = (MOST - (twice ? 2 * WORD : 0)) / rows[i].bytes;
        for (int more = 0; more <= 1; more++) {
            kvm_text t = {0};
            kvm_jat root;
            kvm_err err = {0};
            kvm_text_addf(&t, "a: &a %s%s%s\nz:\n", rows[i].before, word,
                          rows[i].after);
            for (int n = 0; n < fit + more; n++) kvm_text_add(&t, KVM_STR("  - *a\n"));
            check_status(more ? KVM_RANGE : KVM_OK,
                         read_yaml(&root, kvm_text_str(&t), &err), &err);
            if (more) check_contains(err.msg, "aliases repeat more than 1048576 bytes");
            kvm_text_free(&t);
        }
    }
}

static void huge_documents_are_refused_or_read(void **state)
{
    (void)state;
    kvm_text t = {0};
    kvm_jat root;
    kvm_err err = {0};
    for (int i = 0; i < 100000; i++) kvm_text_addf(&t, "key%d: %d\n", i, i);
    check_ok(read_yaml(&root, kvm_text_str(&t), &err), &err);
    const kvm_jat last = kvm_json_get(root, &keep, "key99999");
    assert_int_equal(last.line, 100000);
    t.len = 0;
    kvm_text_add(&t, KVM_STR("["));
    for (int i = 0; i < 1000001; i++) kvm_text_add(&t, KVM_STR("1,"));
    kvm_text_add(&t, KVM_STR("]"));
    check_status(KVM_RANGE, read_yaml(&root, kvm_text_str(&t), &err), &err);
    check_contains(err.msg, "more than 1000000 values");
    err = (kvm_err){0};
    check_status(KVM_RANGE, read_yaml(&root, (kvm_str){t.at, (16 << 20) + 1}, &err),
                 &err);
    check_contains(err.msg, "limit for YAML");
    kvm_text_free(&t);
}

static void every_value_knows_its_line(void **state)
{
    (void)state;
    const kvm_jat root = parse("# comment\n"
                               "name: pair\n"
                               "fit:\n"
                               "  k: [1,\n"
                               "      2]\n"
                               "  on: true\n"
                               "  off: true\n"
                               "  none:\n"
                               "list:\n"
                               "  - a: 1\n"
                               "    b: 2\n"
                               "  -\n"
                               "    a: x\n");
    const kvm_jat fit = kvm_json_get(root, &keep, "fit");
    const kvm_jat k = kvm_json_get(fit, &keep, "k");
    const kvm_jat list = kvm_json_get(root, &keep, "list");
    const kvm_jat second = kvm_json_item(list, &keep, 1);
    assert_int_equal(root.line, 2);
    assert_int_equal(kvm_json_get(root, &keep, "name").line, 2);
    assert_int_equal(fit.line, 3);
    assert_int_equal(k.line, 4);
    assert_int_equal(kvm_json_item(k, &keep, 0).line, 4);
    assert_int_equal(kvm_json_item(k, &keep, 1).line, 5);
    /* jansson has one true and one null: their lines are the places', all the same */
    assert_int_equal(kvm_json_get(fit, &keep, "on").line, 6);
    assert_int_equal(kvm_json_get(fit, &keep, "off").line, 7);
    assert_int_equal(kvm_json_get(fit, &keep, "none").line, 8);
    assert_int_equal(second.line, 13);
    assert_int_equal(kvm_json_get(second, &keep, "a").line, 13);
    /* what is absent has the line of where it should be */
    assert_int_equal(kvm_json_get(fit, &keep, "missing").line, 3);

    kvm_err err = {0};
    int64_t n;
    (void)!kvm_json_i64(kvm_json_get(second, &keep, "a"), &n, &err);
    assert_string_equal(err.msg, "t.yaml:13: list[1].a: expected an integer, found the "
                                 "string \"x\"");
    bool b;
    err = (kvm_err){0};
    const kvm_jat no = parse("x: 1\nflag: No\n");
    (void)!kvm_json_bool_or(kvm_json_get(no, &keep, "flag"), true, &b, &err);
    assert_string_equal(err.msg, "t.yaml:2: flag: expected true or false, found the "
                                 "string \"No\": write false");
}

static const kvm_field fit_fields[] = {
    {.key = "k", .type = KVM_FIELD_LIST, .item = KVM_FIELD_INT},
    {.key = "lambda", .type = KVM_FIELD_NUM},
    {.key = "jitter", .type = KVM_FIELD_BOOL},
    {0},
};
static const kvm_field suite_fields[] = {
    {.key = "name", .type = KVM_FIELD_STR, .required = true, .help = "a known suite"},
    {.key = "items", .type = KVM_FIELD_INT},
    {0},
};
static const kvm_field fields[] = {
    {.key = "source", .type = KVM_FIELD_STR, .required = true, .help = "a checkpoint"},
    {.key = "target", .type = KVM_FIELD_STR},
    {.key = "fit", .type = KVM_FIELD_OBJECT, .inside = fit_fields},
    {.key = "suites", .type = KVM_FIELD_LIST, .inside = suite_fields},
    {.key = "extra", .type = KVM_FIELD_ANY},
    {.key = "free", .type = KVM_FIELD_OBJECT},
    {0},
};

static void a_table_of_fields_checks_a_document(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message; /* NULL: passes */
    } rows[] = {
        {"source: a", NULL},
        {"source: a\nfit: {k: [1, 2.0], lambda: 1, jitter: false}\n", NULL},
        {"source: a\nsuites: [{name: x}, {name: y, items: 3}]\nextra: [1, {}]\n", NULL},
        {"source: a\nfree: {anything: goes}\nfit: {}\n", NULL},
        {"source: a\nfit:\n",
         "t.yaml:2: fit: is empty: write {} for what it has by default"},
        {"target: a", "t.yaml:1: \"source\" is missing: a checkpoint"},
        {"source:\n", "\"source\" is missing"},
        {"source: a\nfit:\n  lamda: 1\n",
         "t.yaml:3: fit.lamda: unknown key; did you mean \"lambda\"?"},
        {"source: a\nwhatever: 1\n", "t.yaml:2: whatever: unknown key; known are: "
                                     "source, target, fit, suites, extra, free"},
        {"source: 5\n", "t.yaml:1: source: expected a string, found an integer"},
        {"source: a\nfit: 3\n", "t.yaml:2: fit: expected an object, found an integer"},
        {"source: a\nfit: {k: 3}\n", "t.yaml:2: fit.k: expected a list"},
        {"source: a\nfit: {k: [1, x]}\n", "fit.k[1]: expected an integer, found the"},
        {"source: a\nfit: {k: [1, 1.5]}\n",
         "fit.k[1]: expected an integer, found a num"},
        {"source: a\nfit: {k: [1, null]}\n", "fit.k[1]: is missing"},
        {"source: a\nfit:\n  jitter: yes\n", "t.yaml:3: fit.jitter: expected true or "
                                             "false, found the string \"yes\": write "
                                             "true"},
        {"source: a\nsuites:\n- name: x\n- items: 3\n",
         "t.yaml:4: suites[1]: \"name\" is missing: a known suite"},
        {"source: a\nsuites:\n- nmae: x\n",
         "t.yaml:3: suites[0].nmae: unknown key; did "
         "you mean \"name\"?"},
        {"source: a\nsuites: [x]\n", "suites[0]: expected an object"},
        {"source: a\nfree: 1\n", "free: expected an object"},
        {"- source\n", "t.yaml:1: expected an object, found a list"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        kvm_err err = {0};
        const kvm_jat root = parse(rows[i].text);
        const kvm_status s = kvm_schema_check(root, fields, keep, &err);
        check_status(rows[i].message ? KVM_FORMAT : KVM_OK, s, &err);
        if (rows[i].message) check_contains(err.msg, rows[i].message);
    }
    kvm_err err = {0};
    const kvm_arena nothing = {0};
    check_status(KVM_NOMEM, kvm_schema_check(parse("zzz: 1"), fields, nothing, &err),
                 &err);
}

static void files(void **state)
{
    (void)state;
    kvm_jat root;
    kvm_err err = {0};
    check_tmpdir("yaml");
    check_write("build/tmp/yaml/a.yaml", KVM_STR("a: 1\n"));
    check_ok(kvm_yaml_read(&root, &keep, KVM_STR("build/tmp/yaml/a.yaml"), &err), &err);
    assert_int_equal(json_object_size(root.v), 1);
    assert_string_equal(root.file, "build/tmp/yaml/a.yaml");
    check_status(KVM_NOTFOUND,
                 kvm_yaml_read(&root, &keep, KVM_STR("build/tmp/yaml/b.yaml"), &err),
                 &err);
}

static kvm_status parse_small(kvm_arena *a, kvm_err *err)
{
    kvm_jat root;
    return kvm_yaml_parse(&root, a, KVM_STR("a: [1, 2]\nb: &x {}\n"),
                          KVM_STR("small.yaml"), err);
}

static void spent_arenas_are_an_error_everywhere(void **state)
{
    (void)state;
    check_spent(600, parse_small);
}

static int setup(void **state)
{
    (void)state;
    keep = check_arena(256 << 20);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalars_mean_what_a_person_means),
        cmocka_unit_test(traps_are_refused_with_their_line),
        cmocka_unit_test(depth_is_limited_to_64),
        cmocka_unit_test(aliases_that_multiply_are_refused),
        cmocka_unit_test(aliases_that_multiply_text_are_refused),
        cmocka_unit_test(huge_documents_are_refused_or_read),
        cmocka_unit_test(every_value_knows_its_line),
        cmocka_unit_test(a_table_of_fields_checks_a_document),
        cmocka_unit_test(files),
        cmocka_unit_test(spent_arenas_are_an_error_everywhere),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
