/* JSON: what is refused and how the message reads, typed reads, canonical text. */
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/check.h"

static kvm_arena keep;

static kvm_jat parse(kvm_str text)
{
    kvm_jat root;
    kvm_err err = {0};
    check_ok(kvm_json_parse(&root, &keep, text, KVM_STR("t.json"), &err), &err);
    return root;
}

static kvm_jat parse_text(const char *text)
{
    return parse(kvm_str_of(text));
}

static void malformed_documents_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"", "t.json:1:"},
        {" ", "t.json:"},
        {"{", "t.json:1:"},
        {"{\"a\": 1,\n \"b\": }", "t.json:2:"},
        {"{\"a\": 1,}", "t.json:1:"},
        {"{\"a\": 1, \"a\": 2}", "duplicate object key"},
        {"{\"x\": {\"a\": 1, \"a\": 1}}", "duplicate object key"},
        {"{\"a\": NaN}", "t.json:1:"},
        {"{\"a\": Infinity}", "t.json:1:"},
        {"{\"a\": -Infinity}", "t.json:1:"},
        {"{\"a\": 1e999}", "real number overflow"},
        {"{\"a\": 010}", "t.json:1:"},
        {"{\"a\": 0x10}", "t.json:1:"},
        {"{\"a\": .5}", "t.json:1:"},
        {"{\"a\": +1}", "t.json:1:"},
        {"{'a': 1}", "t.json:1:"},
        {"{\"a\": \"x\n\"}", "unexpected newline"},
        {"{\"a\": \"x\x01\"}", "control character"},
        {"{\"a\": \"\\u0000\"}", "\\u0000 stands in a string, which no text may"},
        {"{\"a\\u0000\": 1}", "\\u0000 stands in a string, which no text may"},
        {"{\"a\": \"\xff\"}", "unable to decode byte 0x"},
        {"{\"a\": \"\xed\xa0\x80\"}", "unable to decode byte 0x"},
        {"{\"a\": \"\\ud800\"}", "t.json:1:"},
        {"{} {}", "end of file expected"},
        {"{\"a\": tru}", "invalid token"},
        {"\"open", "t.json:1:"},
        {"\"open\\", "t.json:1:"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        kvm_jat root = {.line = 77};
        kvm_err err = {0};
        const kvm_status s = kvm_json_parse(&root, &keep, kvm_str_of(rows[i].text),
                                            KVM_STR("t.json"), &err);
        check_status(KVM_FORMAT, s, &err);
        check_contains(err.msg, rows[i].message);
        assert_int_equal(root.line, 77);
    }
}

static void depth_is_limited_to_64(void **state)
{
    (void)state;
    char text[400];
    for (int depth = 1; depth <= 130; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        kvm_jat root;
        kvm_err err = {0};
        const kvm_status s =
            kvm_json_parse(&root, &keep, (kvm_str){text, 2 * (ptrdiff_t)depth},
                           KVM_STR("deep.json"), &err);
        check_status(depth <= 64 ? KVM_OK : KVM_FORMAT, s, &err);
        if (s) check_contains(err.msg, "deep.json:1: nested deeper than 64");
    }
    /* a million brackets cost no stack */
    static char many[1000000];
    memset(many, '[', sizeof many);
    kvm_jat root;
    kvm_err err = {0};
    check_status(
        KVM_FORMAT,
        kvm_json_parse(&root, &keep, (kvm_str){many, sizeof many}, KVM_STR("m"), &err),
        &err);
    /* brackets inside strings are no depth */
    memset(text, '[', sizeof text);
    text[0] = text[1] = text[sizeof text - 1] = '"';
    text[1] = '\\';
    text[2] = '"';
    kvm_str s;
    err = (kvm_err){0};
    check_ok(kvm_json_str(parse((kvm_str){text, sizeof text}), &s, &err), &err);
    assert_int_equal(s.len, (ptrdiff_t)sizeof text - 3);
}

static void integers_beyond_64_bits_are_reals(void **state)
{
    (void)state;
    const kvm_jat root = parse_text(
        "{\"max\": 1000000000000000019884624838656, \"fits\": 9223372036854775807,"
        " \"low\": -9223372036854775809, \"text\": \"99999999999999999999\","
        " \"more\": [18446744073709551615,1]}");
    kvm_err err = {0};
    double v;
    int64_t n;
    check_ok(kvm_json_f64(kvm_json_get(root, &keep, "max"), &v, &err), &err);
    assert_true(v == 1e30);
    check_ok(kvm_json_i64(kvm_json_get(root, &keep, "fits"), &n, &err), &err);
    assert_true(n == INT64_MAX);
    check_ok(kvm_json_f64(kvm_json_get(root, &keep, "low"), &v, &err), &err);
    assert_true(v == -9223372036854775808.0);
    const kvm_jat more = kvm_json_get(root, &keep, "more");
    check_ok(kvm_json_i64(kvm_json_item(more, &keep, 1), &n, &err), &err);
    assert_int_equal(n, 1);
    kvm_str s;
    check_ok(kvm_json_str(kvm_json_get(root, &keep, "text"), &s, &err), &err);
    check_str(s, "99999999999999999999");
    check_status(KVM_FORMAT, kvm_json_i64(kvm_json_get(root, &keep, "max"), &n, &err),
                 &err);
}

static void typed_reads(void **state)
{
    (void)state;
    const kvm_jat root =
        parse_text("{\"i\": 3, \"f\": 3.0, \"h\": 2.5, \"s\": \"x\","
                   " \"t\": true, \"z\": null, \"l\": [1, 2], \"o\": {}}");
    kvm_err err = {0};
    int64_t n = 0;
    double v = 0.0;
    bool b = false;
    kvm_str s;
    ptrdiff_t len = 0;
#define AT(key) kvm_json_get(root, &keep, key)
    check_ok(kvm_json_i64(AT("i"), &n, &err), &err);
    assert_int_equal(n, 3);
    check_ok(kvm_json_i64(AT("f"), &n, &err), &err);
    assert_int_equal(n, 3);
    check_ok(kvm_json_f64(AT("i"), &v, &err), &err);
    assert_true(v == 3.0);
    check_ok(kvm_json_bool_or(AT("t"), false, &b, &err), &err);
    assert_true(b);
    check_ok(kvm_json_str(AT("s"), &s, &err), &err);
    check_str(s, "x");
    check_ok(kvm_json_array(AT("l"), &len, &err), &err);
    assert_int_equal(len, 2);
    check_ok(kvm_json_object(AT("o"), &err), &err);
    /* absent and null take the fallback */
    check_ok(kvm_json_i64_or(AT("z"), 8, &n, &err), &err);
    assert_int_equal(n, 8);
    check_ok(kvm_json_i64_or(AT("none"), 9, &n, &err), &err);
    assert_int_equal(n, 9);
    check_ok(kvm_json_f64_or(AT("none"), 0.5, &v, &err), &err);
    assert_true(v == 0.5);
    check_ok(kvm_json_bool_or(AT("z"), true, &b, &err), &err);
    assert_true(b);
    check_ok(kvm_json_str_or(AT("none"), KVM_STR("def"), &s, &err), &err);
    check_str(s, "def");
    check_ok(kvm_json_str_or(AT("s"), KVM_STR("def"), &s, &err), &err);
    check_str(s, "x");
    assert_false(kvm_json_has(AT("z")));
    assert_false(kvm_json_has(AT("none")));
    assert_true(kvm_json_has(AT("i")));
    /* other types are refused by the _or forms too, outputs untouched */
    n = 7;
    check_status(KVM_FORMAT, kvm_json_i64_or(AT("h"), 1, &n, &err), &err);
    assert_int_equal(n, 7);
    err = (kvm_err){0};
    check_status(KVM_FORMAT, kvm_json_f64_or(AT("s"), 1.0, &v, &err), &err);
    err = (kvm_err){0};
    check_status(KVM_FORMAT, kvm_json_bool_or(AT("i"), true, &b, &err), &err);
    err = (kvm_err){0};
    check_status(KVM_FORMAT, kvm_json_str_or(AT("t"), KVM_STR(""), &s, &err), &err);
    err = (kvm_err){0};
    check_status(KVM_FORMAT, kvm_json_array(AT("o"), &len, &err), &err);
    err = (kvm_err){0};
    check_status(KVM_FORMAT, kvm_json_object(AT("l"), &err), &err);
#undef AT
}

static void messages_name_file_and_place(void **state)
{
    (void)state;
    const kvm_jat root =
        parse_text("{\"rope\": {\"factor\": \"8\", \"dims\": [1, {\"n\": true}]}}");
    const kvm_jat rope = kvm_json_get(root, &keep, "rope");
    const kvm_jat item = kvm_json_item(kvm_json_get(rope, &keep, "dims"), &keep, 1);
    kvm_err err = {0};
    double v;
    int64_t n;
    (void)!kvm_json_f64(kvm_json_get(rope, &keep, "factor"), &v, &err);
    assert_string_equal(err.msg, "t.json: rope.factor: expected a number, found the "
                                 "string \"8\"");
    err = (kvm_err){0};
    (void)!kvm_json_i64(kvm_json_get(item, &keep, "n"), &n, &err);
    assert_string_equal(err.msg,
                        "t.json: rope.dims[1].n: expected an integer, found true");
    err = (kvm_err){0};
    (void)!kvm_json_i64(kvm_json_get(rope, &keep, "base"), &n, &err);
    assert_string_equal(err.msg, "t.json: rope.base: is missing (expected an integer)");
    err = (kvm_err){0};
    (void)!kvm_json_i64(kvm_json_item(rope, &keep, 4), &n, &err); /* no list at all */
    assert_string_equal(err.msg, "t.json: rope[4]: is missing (expected an integer)");
    err = (kvm_err){0};
    check_status(KVM_RANGE, kvm_json_fail(&err, KVM_RANGE, rope, "must be %d", 3),
                 &err);
    assert_string_equal(err.msg, "t.json: rope: must be 3");
    err = (kvm_err){0};
    (void)!kvm_json_array(root, &(ptrdiff_t){0}, &err);
    assert_string_equal(err.msg, "t.json: expected a list, found an object");
}

static void members_come_in_the_order_of_the_file(void **state)
{
    (void)state;
    const kvm_jat root = parse_text("{\"z\": 1, \"a\": 2, \"m\": null}");
    kvm_text keys = {0};
    kvm_str key;
    const json_t *value;
    for (void *it = NULL; kvm_json_next(root, &it, &key, &value);)
        kvm_text_add(&keys, key);
    check_str(kvm_text_str(&keys), "zam");
    kvm_text_free(&keys);
    void *it = NULL;
    assert_false(kvm_json_next((kvm_jat){0}, &it, &key, &value));
    assert_false(kvm_json_next(parse_text("[1]"), &it, &key, &value));
    assert_false(kvm_json_next(parse_text("{}"), &it, &key, &value));
}

static void canonical_text(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"{ \"b\" : 1, \"a\" : [ 1 , 2.50 ] }", "{\"a\":[1,2.5],\"b\":1}"},
        {"{\"a\": 3.0}", "{\"a\":3}"},
        {"{\"a\": 1e-3}", "{\"a\":0.001}"},
        {"{\"a\": 0.1}", "{\"a\":0.1}"},
        {"{\"a\": 0.30000000000000004}", "{\"a\":0.30000000000000004}"},
        {"{\"a\": -0.0}", "{\"a\":0}"},
        {"{\"a\": 1e15}", "{\"a\":1000000000000000}"},
        {"{\"a\": 9223372036854775807}", "{\"a\":9223372036854775807}"},
        {"{\"a\": 1e300}", "{\"a\":1e+300}"},
        {"{\"a\": 5e-324}", "{\"a\":4.94065645841247e-324}"},
        {"[\"\\u00e9\\n\\t\\\"\\\\\\/\\u0001\"]",
         "[\"\xc3\xa9\\n\\u0009\\\"\\\\/\\u0001\"]"},
        {"[]", "[]"},
        {"{}", "{}"},
        {"[null, true, false, []]", "[null,true,false,[]]"},
        {"{\"aa\": 1, \"a\": 2, \"B\": 3, \"\\u00e9\": 4}",
         "{\"B\":3,\"a\":2,\"aa\":1,\"\xc3\xa9\":4}"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        kvm_err err = {0};
        kvm_str once, twice;
        check_ok(kvm_json_canonical(&once, &keep, parse_text(rows[i][0]).v, &err),
                 &err);
        check_str(once, rows[i][1]);
        assert_int_equal(once.at[once.len], 0);
        check_ok(kvm_json_canonical(&twice, &keep, parse(once).v, &err), &err);
        check_str(twice, rows[i][1]);
    }
}

static void pretty_text_keeps_the_order_and_reads_back(void **state)
{
    (void)state;
    const kvm_jat root = parse_text("{\"b\":[1,{\"c\":0.25}],\"a\":{},\"e\":[]}");
    kvm_err err = {0};
    kvm_str text, x, y;
    check_ok(kvm_json_pretty(&text, &keep, root.v, &err), &err);
    check_str(text, "{\n  \"b\": [\n    1,\n    {\n      \"c\": 0.25\n    }\n  ],\n"
                    "  \"a\": {},\n  \"e\": []\n}\n");
    check_ok(kvm_json_canonical(&x, &keep, root.v, &err), &err);
    check_ok(kvm_json_canonical(&y, &keep, parse(text).v, &err), &err);
    assert_true(kvm_str_eq(x, y));
}

static void what_is_too_deep_is_not_written(void **state)
{
    (void)state;
    json_t *v = json_array();
    for (int i = 0; i < 100; i++) {
        json_t *outer = json_array();
        json_array_append_new(outer, v);
        v = outer;
    }
    kvm_err err = {0};
    kvm_str text = {0};
    check_status(KVM_FORMAT, kvm_json_canonical(&text, &keep, v, &err), &err);
    err = (kvm_err){0};
    check_status(KVM_INTERNAL, kvm_json_canonical(&text, &keep, NULL, &err), &err);
    assert_null(text.at);
    json_decref(v);
}

static void files(void **state)
{
    (void)state;
    kvm_jat root;
    kvm_err err = {0};
    check_tmpdir("json");
    check_write("build/tmp/json/a.json", KVM_STR("\xef\xbb\xbf{\"a\": 1}"));
    check_ok(kvm_json_read(&root, &keep, KVM_STR("build/tmp/json/a.json"), &err), &err);
    assert_int_equal(json_object_size(root.v), 1);
    check_status(KVM_NOTFOUND,
                 kvm_json_read(&root, &keep, KVM_STR("build/tmp/json/b.json"), &err),
                 &err);
    check_contains(err.msg, "build/tmp/json/b.json");
    /* as Python writes it, where that is expected */
    double x;
    check_write("build/tmp/json/c.json",
                KVM_STR("{\"Infinity\": [1, Infinity, -Infinity, \"Infinity\"]}"));
    err = (kvm_err){0};
    check_status(KVM_FORMAT,
                 kvm_json_read(&root, &keep, KVM_STR("build/tmp/json/c.json"), &err),
                 &err);
    err = (kvm_err){0};
    check_ok(kvm_json_read_loose(&root, &keep, KVM_STR("build/tmp/json/c.json"), &err),
             &err);
    const kvm_jat list = kvm_json_get(root, &keep, "Infinity");
    check_ok(kvm_json_f64(kvm_json_item(list, &keep, 1), &x, &err), &err);
    assert_true(x > 1e308);
    check_ok(kvm_json_f64(kvm_json_item(list, &keep, 2), &x, &err), &err);
    assert_true(x < -1e308);
    kvm_str word;
    check_ok(kvm_json_str(kvm_json_item(list, &keep, 3), &word, &err), &err);
    check_str(word, "Infinity");
    err = (kvm_err){0};
    check_status(KVM_USAGE,
                 kvm_json_read(&root, &keep, KVM_STR("build/tmp/json"), &err), &err);
    check_contains(err.msg, "directory");
}

/* With every size of arena, from too small to large enough: KVM_NOMEM or the whole. */
static kvm_status parse_and_write(kvm_arena *a, kvm_err *err)
{
    kvm_jat root;
    kvm_str text;
    TRY(kvm_json_parse(&root, a, KVM_STR("{\"a\": [1, 2]}"), KVM_STR("small.json"),
                       err));
    TRY(kvm_json_canonical(&text, a, root.v, err));
    check_str(text, "{\"a\":[1,2]}");
    /* a path that does not fit is shortened, the value is still found */
    const kvm_jat at = kvm_json_get(root, a, "a");
    assert_int_equal(json_array_size(at.v), 2);
    return KVM_OK;
}

static void spent_arenas_are_an_error_everywhere(void **state)
{
    (void)state;
    check_spent(600, parse_and_write);
}

static int setup(void **state)
{
    (void)state;
    keep = check_arena(64 << 20);
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
        cmocka_unit_test(malformed_documents_are_refused),
        cmocka_unit_test(depth_is_limited_to_64),
        cmocka_unit_test(integers_beyond_64_bits_are_reals),
        cmocka_unit_test(typed_reads),
        cmocka_unit_test(messages_name_file_and_place),
        cmocka_unit_test(members_come_in_the_order_of_the_file),
        cmocka_unit_test(canonical_text),
        cmocka_unit_test(pretty_text_keeps_the_order_and_reads_back),
        cmocka_unit_test(what_is_too_deep_is_not_written),
        cmocka_unit_test(files),
        cmocka_unit_test(spent_arenas_are_an_error_everywhere),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
