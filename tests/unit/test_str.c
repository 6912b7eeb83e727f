/* Strings: edges (empty, absent, overlong), numbers, nearest names, growing texts. */
#include "base/str.h"

#include <math.h>
#include <string.h>

#include "tests/support/check.h"

static const kvm_str none = {NULL, 0};

static void comparisons_know_lengths_and_bytes(void **state)
{
    (void)state;
    assert_true(kvm_str_eq(KVM_STR("ab"), kvm_str_of("ab")));
    assert_false(kvm_str_eq(KVM_STR("ab"), KVM_STR("abc")));
    assert_false(kvm_str_eq(KVM_STR("a\0b"), KVM_STR("a\0c")));
    assert_true(kvm_str_eq(none, KVM_STR("")));
    assert_true(kvm_str_cmp(KVM_STR("a"), KVM_STR("b")) < 0);
    assert_true(kvm_str_cmp(KVM_STR("ab"), KVM_STR("a")) > 0);
    assert_true(kvm_str_cmp(KVM_STR("\xff"), KVM_STR("a")) > 0);
    assert_int_equal(kvm_str_of(NULL).len, 0);
    assert_true(kvm_str_starts(KVM_STR("model.layers"), KVM_STR("model.")));
    assert_false(kvm_str_starts(KVM_STR("mod"), KVM_STR("model.")));
    assert_true(kvm_str_starts(none, none));
    assert_true(kvm_str_ends(KVM_STR("a.json"), KVM_STR(".json")));
    assert_false(kvm_str_ends(KVM_STR("json"), KVM_STR(".json")));
}

static void find_slice_trim_cut(void **state)
{
    (void)state;
    assert_int_equal(kvm_str_find(KVM_STR("aaab"), KVM_STR("aab")), 1);
    assert_int_equal(kvm_str_find(KVM_STR("aaab"), KVM_STR("b")), 3);
    assert_int_equal(kvm_str_find(KVM_STR("aaab"), KVM_STR("aaabc")), -1);
    assert_int_equal(kvm_str_find(KVM_STR("ab"), KVM_STR("ba")), -1);
    assert_int_equal(kvm_str_find(none, KVM_STR("a")), -1);
    assert_int_equal(kvm_str_find(none, none), 0);
    check_str(kvm_str_slice(KVM_STR("hello"), 1, 3), "el");
    check_str(kvm_str_slice(KVM_STR("hello"), -5, 99), "hello");
    check_str(kvm_str_slice(KVM_STR("hello"), 4, 2), "");
    check_str(kvm_str_slice(KVM_STR("hello"), 9, 12), "");
    assert_int_equal(kvm_str_slice(none, 0, 5).len, 0);
    check_str(kvm_str_trim(KVM_STR(" \t\r\n a b \n")), "a b");
    check_str(kvm_str_trim(KVM_STR(" \n ")), "");
    kvm_str head, tail;
    assert_true(kvm_str_cut(KVM_STR("k=v=w"), '=', &head, &tail));
    check_str(head, "k");
    check_str(tail, "v=w");
    assert_true(kvm_str_cut(KVM_STR("k="), '=', &head, &tail));
    check_str(tail, "");
    assert_false(kvm_str_cut(KVM_STR("kv"), '=', &head, &tail));
    check_str(head, "kv");
    check_str(tail, "");
    assert_false(kvm_str_cut(none, '=', &head, &tail));
}

static void whole_numbers(void **state)
{
    (void)state;
    int64_t v = 0;
    assert_true(kvm_str_to_i64(KVM_STR("9223372036854775807"), &v) && v == INT64_MAX);
    assert_true(kvm_str_to_i64(KVM_STR("-9223372036854775808"), &v) && v == INT64_MIN);
    assert_true(kvm_str_to_i64(KVM_STR("+12"), &v) && v == 12);
    v = 5;
    static const char *const bad[] = {"",
                                      "-",
                                      "+",
                                      "1 ",
                                      " 1",
                                      "0x1",
                                      "1.0",
                                      "1e3",
                                      "--1",
                                      "9223372036854775808",
                                      "-9223372036854775809",
                                      "99999999999999999999"};
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_false(kvm_str_to_i64(kvm_str_of(bad[i]), &v));
    assert_int_equal(v, 5);
}

static void real_numbers(void **state)
{
    (void)state;
    double v = 0.0;
    assert_true(kvm_str_to_f64(KVM_STR("1e-3"), &v) && v == 1e-3);
    assert_true(kvm_str_to_f64(KVM_STR("-.5"), &v) && v == -0.5);
    assert_true(kvm_str_to_f64(KVM_STR("2."), &v) && v == 2.0);
    assert_true(kvm_str_to_f64(KVM_STR("1E+3"), &v) && v == 1000.0);
    assert_true(kvm_str_to_f64(kvm_str_slice(KVM_STR("1234"), 0, 2), &v) && v == 12.0);
    v = 5.0;
    static const char *const bad[] = {
        "",      ".",  "-",  "e3",  "1e",    "1e+",    "inf",      "nan",  "0x1",
        "1e999", " 1", "1 ", "1,5", "1.2.3", "-1e999", "Infinity", "1_000"};
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_false(kvm_str_to_f64(kvm_str_of(bad[i]), &v));
    char longest[600];
    memset(longest, '1', sizeof longest);
    assert_false(kvm_str_to_f64((kvm_str){longest, sizeof longest}, &v));
    assert_true(v == 5.0);
    assert_true(kvm_str_to_f64((kvm_str){longest, 300}, &v) && isfinite(v));
}

static void the_nearest_name(void **state)
{
    (void)state;
    const kvm_str names[] = {KVM_STR("source"), KVM_STR("target"), KVM_STR("lambda"),
                             KVM_STR("top_k"), KVM_STR("k")};
    const ptrdiff_t n = (ptrdiff_t)COUNT(names);
    assert_int_equal(kvm_str_nearest(KVM_STR("lamda"), names, n), 2);
    assert_int_equal(kvm_str_nearest(KVM_STR("sorce"), names, n), 0);
    assert_int_equal(kvm_str_nearest(KVM_STR("tpo_k"), names, n), 3);
    assert_int_equal(kvm_str_nearest(KVM_STR("Target"), names, n), 1);
    assert_int_equal(kvm_str_nearest(KVM_STR("temperature"), names, n), -1);
    assert_int_equal(kvm_str_nearest(KVM_STR("x"), names, n), -1);
    assert_int_equal(kvm_str_nearest(none, names, n), -1);
    assert_int_equal(kvm_str_nearest(KVM_STR("source"), names, 0), -1);
    char long_name[200];
    memset(long_name, 'a', sizeof long_name);
    assert_int_equal(kvm_str_nearest((kvm_str){long_name, 200}, names, n), -1);
}

static void copies_end_in_a_zero_or_are_absent(void **state)
{
    (void)state;
    kvm_arena a = check_arena(4096);
    const kvm_str s = kvm_str_copy(&a, kvm_str_slice(KVM_STR("hello"), 1, 3));
    assert_string_equal(s.at, "el");
    assert_string_equal(kvm_str_copy(&a, none).at, "");
    const kvm_str f = kvm_str_fmt(&a, "%s-%d", "layer", 12);
    assert_string_equal(f.at, "layer-12");
    assert_int_equal(f.len, 8);
    assert_null(kvm_str_fmt(&a, "%8000d", 1).at);
    kvm_arena nothing = {0};
    assert_null(kvm_str_copy(&nothing, s).at);
    assert_null(kvm_str_fmt(&nothing, "x").at);
    assert_null(kvm_path_join(&nothing, s, s).at);
    kvm_arena_free(&a);
}

static void paths(void **state)
{
    (void)state;
    kvm_arena a = check_arena(4096);
    static const char *const rows[][3] = {
        {"a", "b", "a/b"},         {"a/", "b", "a/b"}, {"", "b", "b"},
        {"a", "/abs", "/abs"},     {"/", "b", "/b"},   {"a", "", "a/"},
        {"a/b", "c/d", "a/b/c/d"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        const kvm_str p =
            kvm_path_join(&a, kvm_str_of(rows[i][0]), kvm_str_of(rows[i][1]));
        check_str(p, rows[i][2]);
        assert_int_equal(p.at[p.len], 0);
    }
    kvm_arena_free(&a);
}

static void a_text_grows(void **state)
{
    (void)state;
    kvm_text t = {0};
    check_str(kvm_text_str(&t), "");
    for (int i = 0; i < 10000; i++) kvm_text_addf(&t, "%d,", i % 10);
    kvm_text_add(&t, KVM_STR("end"));
    kvm_text_add(&t, none);
    assert_false(t.failed);
    assert_int_equal(t.len, 20003);
    assert_string_equal(t.at + 20000, "end");
    kvm_text_free(&t);
    kvm_text_free(&t);
    assert_null(t.at);
}

static void a_quote_is_cut_at_a_character(void **state)
{
    (void)state;
    static const char euro[] = "\xe2\x82\xacx";
    char text[2 * KVM_QUOTE_BYTES];
    assert_string_equal(kvm_quote(KVM_STR("")).at, "");
    assert_string_equal(kvm_quote((kvm_str){0}).at, "");
    assert_string_equal(kvm_quote(KVM_STR("a\0b")).at, "a?b");
    for (int before = 0; before < 4;
         before++) { /* where the cut falls in a character */
        const ptrdiff_t n = KVM_QUOTE_BYTES + 3;
        for (ptrdiff_t i = 0; i < n; i++)
            text[i] = euro[i < before ? 3 : (i - before) % 3];
        const kvm_quoted q = kvm_quote((kvm_str){text, n});
        const ptrdiff_t len = (ptrdiff_t)strlen(q.at) - 3;
        assert_true(len > KVM_QUOTE_BYTES - 3 && len <= KVM_QUOTE_BYTES);
        assert_string_equal(q.at + len, "...");
        assert_int_equal((len - before) % 3, 0);
        assert_memory_equal(q.at, text, (size_t)len);
    }
    memset(text, 'y', sizeof text);
    assert_int_equal(strlen(kvm_quote((kvm_str){text, KVM_QUOTE_BYTES}).at),
                     KVM_QUOTE_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_quote_is_cut_at_a_character),
        cmocka_unit_test(comparisons_know_lengths_and_bytes),
        cmocka_unit_test(find_slice_trim_cut),
        cmocka_unit_test(whole_numbers),
        cmocka_unit_test(real_numbers),
        cmocka_unit_test(the_nearest_name),
        cmocka_unit_test(copies_end_in_a_zero_or_are_absent),
        cmocka_unit_test(paths),
        cmocka_unit_test(a_text_grows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
