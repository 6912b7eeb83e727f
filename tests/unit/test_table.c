#include "tests/support/check.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "reports/csv.h"
#include "reports/number.h"
#include "reports/table.h"

static kvm_arena keep;

static int begin(void **at)
{
    (void)at;
    keep = check_arena((size_t)4 << 20);
    return 0;
}

static int end(void **at)
{
    (void)at;
    kvm_arena_free(&keep);
    return 0;
}

/* ---- numbers in words; _ stands for the no-break space ---- */

static const struct {
    double v;
    kvm_format format;
    const char *text;
} words[] = {
    {0, KVM_FORMAT_NUMBER, "0"},
    {0.12345, KVM_FORMAT_NUMBER, "0.123"},
    {0.0123456, KVM_FORMAT_NUMBER, "0.0123"},
    {12.345, KVM_FORMAT_NUMBER, "12.3"},
    {999.9, KVM_FORMAT_NUMBER, "1000"},
    {1234.5, KVM_FORMAT_NUMBER, "1234"},
    {1.5e-6, KVM_FORMAT_NUMBER, "1.50e-6"},
    {2e12, KVM_FORMAT_NUMBER, "2.00e12"},
    {-3.25, KVM_FORMAT_NUMBER, "−3.25"},
    {0.976, KVM_FORMAT_PERCENT, "97.6_%"},
    {1, KVM_FORMAT_PERCENT, "100.0_%"},
    {-0.0001, KVM_FORMAT_PERCENT, "0.0_%"},
    {0.024, KVM_FORMAT_POINTS, "+2.4_pp"},
    {-0.024, KVM_FORMAT_POINTS, "−2.4_pp"},
    {0.8125, KVM_FORMAT_R2, "0.812"},
    {-509.25, KVM_FORMAT_R2, "−509.2"},
    {6.317, KVM_FORMAT_RATIO, "6.32×"},
    {25.13, KVM_FORMAT_RATIO, "25.1×"},
    {0.5, KVM_FORMAT_RATIO, "0.50×"},
    {0, KVM_FORMAT_SECONDS, "0_ns"},
    {0.0135, KVM_FORMAT_SECONDS, "13.5_ms"},
    {2.5e-7, KVM_FORMAT_SECONDS, "250_ns"},
    {1.2e-5, KVM_FORMAT_SECONDS, "12.0_µs"},
    {0.9999, KVM_FORMAT_SECONDS, "1.00_s"},
    {6.975, KVM_FORMAT_SECONDS, "6.97_s"},
    {119.2, KVM_FORMAT_SECONDS, "119_s"},
    {125, KVM_FORMAT_SECONDS, "2_min_05_s"},
    {7384, KVM_FORMAT_SECONDS, "2_h_03_min"},
    {7384, KVM_FORMAT_S, "7,384_s"},
    {0.0123, KVM_FORMAT_S, "0.0123_s"},
    {20.345, KVM_FORMAT_MS, "20,345_ms"},
    {0.00312, KVM_FORMAT_MS, "3.12_ms"},
    {2.31e-5, KVM_FORMAT_US, "23.1_µs"},
    {0, KVM_FORMAT_BYTES, "0_B"},
    {1023, KVM_FORMAT_BYTES, "1023_B"},
    {1024, KVM_FORMAT_BYTES, "1.00_KiB"},
    {3.5 * 1048576, KVM_FORMAT_BYTES, "3.50_MiB"},
    {32768, KVM_FORMAT_COUNT, "32,768"},
    {-1234567, KVM_FORMAT_COUNT, "−1,234,567"},
    {999, KVM_FORMAT_COUNT, "999"},
    {32768, KVM_FORMAT_TOKENS, "32K"},
    {1500, KVM_FORMAT_TOKENS, "1,500"},
    {1.35e6, KVM_FORMAT_RATE, "1.35_M"},
    {0, KVM_FORMAT_RATE, "0"},
    {(double)NAN, KVM_FORMAT_RATE, "–"},
    {(double)INFINITY, KVM_FORMAT_SECONDS, "–"},
};

static kvm_str with_spaces(const char *text)
{
    kvm_text out = {0};
    for (const char *p = text; *p; p++)
        kvm_text_add(&out, *p == '_' ? KVM_STR("\xc2\xa0") : (kvm_str){p, 1});
    const kvm_str s = kvm_str_copy(&keep, kvm_text_str(&out));
    kvm_text_free(&out);
    return s;
}

static void numbers_read_well(void **at)
{
    (void)at;
    for (size_t i = 0; i < COUNT(words); i++)
        check_str(kvm_number(&keep, words[i].v, words[i].format),
                  with_spaces(words[i].text).at);
}

static void ticks_have_no_idle_digits(void **at)
{
    (void)at;
    check_str(kvm_tick(&keep, 0.5, KVM_FORMAT_PERCENT), with_spaces("50_%").at);
    check_str(kvm_tick(&keep, 0.125, KVM_FORMAT_PERCENT), with_spaces("12.5_%").at);
    check_str(kvm_tick(&keep, 0.001, KVM_FORMAT_NUMBER), "0.001");
    check_str(kvm_tick(&keep, 1e-6, KVM_FORMAT_NUMBER), "1e-6");
    check_str(kvm_tick(&keep, 100, KVM_FORMAT_NUMBER), "100");
    check_str(kvm_tick(&keep, 0.01, KVM_FORMAT_SECONDS), with_spaces("10_ms").at);
    check_str(kvm_tick(&keep, 20, KVM_FORMAT_COUNT), "20");
}

static void any_double_has_a_text_in_every_format(void **at)
{
    (void)at;
    static const double extreme[] = {1.7e308, -1.7e308, 5e-324,  -0.0,
                                     1e15,    999999.5, 0.99995, 59.9999};
    for (size_t i = 0; i < COUNT(extreme); i++)
        for (int f = 0; f < KVM_FORMAT_KINDS; f++) {
            const kvm_str s = kvm_number(&keep, extreme[i], (kvm_format)f);
            assert_in_range(s.len, 1, 40);
            assert_null(strstr(s.at, "inf"));
        }
}

/* an interval across units is read in that of the value */
static void an_interval_has_the_unit_of_its_value(void **at)
{
    (void)at;
    const kvm_est ms = {0.4, 0.0004, 1.25, {"", 0}}, s = {1.1, 0.95, 1.25, {"", 0}};
    check_str(kvm_est_text(&keep, ms, KVM_FORMAT_SECONDS),
              with_spaces("400_ms [0.400, 1,250]").at);
    check_str(kvm_est_text(&keep, s, KVM_FORMAT_SECONDS),
              with_spaces("1.10_s [0.950, 1.25]").at);
}

static void a_table_finds_one_unit_of_time(void **at)
{
    (void)at;
    static const kvm_column columns[] = {{"s", {"Time", 4}, KVM_COL_NUMBER},
                                         {"n", {"Rounds", 6}, KVM_COL_NUMBER}};
    kvm_table t = kvm_table_new(&keep, "t", KVM_STR("T"), columns, 2);
    assert_int_equal(kvm_table_seconds(&t), KVM_FORMAT_S); /* nothing to go by */
    kvm_table_num(&t, 0.004, KVM_FORMAT_SECONDS);
    kvm_table_num(&t, 1e9, KVM_FORMAT_COUNT); /* no time */
    assert_int_equal(kvm_table_seconds(&t), KVM_FORMAT_MS);
    kvm_table_num(&t, 50, KVM_FORMAT_SECONDS);
    kvm_table_num(&t, KVM_NONE, KVM_FORMAT_SECONDS);
    assert_int_equal(kvm_table_seconds(&t), KVM_FORMAT_MS); /* mean 0.45 s */
    kvm_table_num(&t, 100, KVM_FORMAT_SECONDS);
    kvm_table_num(&t, 0, KVM_FORMAT_SECONDS);
    assert_int_equal(kvm_table_seconds(&t), KVM_FORMAT_S);
}

static void figures_carry_interval_or_reason(void **at)
{
    (void)at;
    const kvm_est e = {0.976, 0.95, 0.991, {"", 0}};
    check_str(kvm_est_text(&keep, e, KVM_FORMAT_PERCENT),
              with_spaces("97.6_% [95.0, 99.1]").at);
    check_str(kvm_est_text(&keep, kvm_est_missing(KVM_STR("no items")), 0),
              "not measured (no items)");
    check_str(kvm_est_text(&keep, kvm_est_missing(KVM_STR("")), 0), "not measured");
    kvm_format format;
    assert_true(kvm_format_find(KVM_STR("seconds"), &format));
    assert_int_equal(format, KVM_FORMAT_SECONDS);
    assert_false(kvm_format_find(KVM_STR("furlongs"), &format));
}

/* ---- tables ---- */

static const kvm_column columns[] = {{"name", {"Name", 4}, KVM_COL_TEXT},
                                     {"score", {"Score", 5}, KVM_COL_EST},
                                     {"n", {"n", 1}, KVM_COL_NUMBER}};

static kvm_table three_rows(void)
{
    kvm_table t = kvm_table_new(&keep, "t", KVM_STR("T"), columns, COUNT(columns));
    kvm_table_text(&t, KVM_STR("plain"), KVM_TONE_GOOD);
    kvm_table_est(&t, (kvm_est){0.5, 0.25, 0.75, {"", 0}}, KVM_FORMAT_NUMBER);
    kvm_table_num(&t, 7, KVM_FORMAT_COUNT);
    kvm_table_text(&t, KVM_STR("模型 é"), KVM_TONE_PLAIN);
    kvm_table_est(&t, kvm_est_missing(KVM_STR("no items")), KVM_FORMAT_NUMBER);
    kvm_table_num(&t, 1000, KVM_FORMAT_COUNT);
    kvm_table_text(&t, KVM_STR("=a,\"b\"\n"), KVM_TONE_PLAIN);
    kvm_table_est(&t, kvm_est_missing(KVM_STR("no items")), KVM_FORMAT_NUMBER);
    kvm_table_num(&t, (double)NAN, KVM_FORMAT_COUNT);
    return t;
}

static kvm_str printed(const kvm_table *t, kvm_term term)
{
    kvm_text out = {0};
    kvm_err err = {0};
    check_ok(kvm_table_print(&out, t, term, keep, &err), &err);
    const kvm_str s = kvm_str_copy(&keep, kvm_text_str(&out));
    kvm_text_free(&out);
    return s;
}

static void columns_align_by_width_not_bytes(void **at)
{
    (void)at;
    const kvm_table t = three_rows();
    check_str(printed(&t, (kvm_term){0}), "Name                    Score      n\n"
                                          "────────────────────────────────────\n"
                                          "plain    0.500 [0.250, 0.750]      7\n"
                                          "模型 é                     –¹  1,000\n"
                                          "=a,\"b\"                     –¹     –²\n"
                                          "¹ no items\n"
                                          "² not measured\n");
}

static void wide_text_is_cut_to_the_terminal(void **at)
{
    (void)at;
    kvm_table t = kvm_table_new(&keep, "t", KVM_STR("T"), columns, 1);
    kvm_table_text(&t, KVM_STR("a name that is longer than the terminal is wide"),
                   KVM_TONE_PLAIN);
    const kvm_str s = printed(&t, (kvm_term){.width = 20});
    for (kvm_str rest = s, line; kvm_str_cut(rest, '\n', &line, &rest);)
        assert_true(kvm_text_width(line) <= 20);
    check_contains(s.at, "a name that is long…\n");
}

static void colour_only_where_asked(void **at)
{
    (void)at;
    const kvm_table t = three_rows();
    assert_null(strchr(printed(&t, (kvm_term){0}).at, '\033'));
    check_contains(printed(&t, (kvm_term){.colour = true}).at, "\033[32mplain\033[0m");
    const int file = open("/dev/null", O_RDWR);
    const kvm_term none = kvm_term_of(file);
    assert_false(none.colour);
    assert_int_equal(none.width, 0);
    close(file);
}

static void no_color_is_honoured_on_a_terminal(void **at)
{
    (void)at;
    const int master = open("/dev/ptmx", O_RDWR | O_NOCTTY);
    if (master < 0) {
        print_message("no pseudo-terminal here: skipped\n");
        skip();
    }
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    assert_true(kvm_term_of(master).colour);
    assert_true(kvm_term_of(master).width > 0);
    setenv("NO_COLOR", "1", 1);
    assert_false(kvm_term_of(master).colour);
    unsetenv("NO_COLOR");
    setenv("TERM", "dumb", 1);
    assert_false(kvm_term_of(master).colour);
    close(master);
}

static void terminals_cannot_be_forged(void **at)
{
    (void)at;
    check_str(kvm_printable(&keep, KVM_STR("plain é")), "plain é");
    const kvm_str forged = kvm_printable(&keep, KVM_STR("a\033[31mb\xff\xc2\x9b c\nd"));
    check_str(kvm_str_copy(&keep, forged), "a�[31mb�� c d");
    static const char override[] = {'x', (char)0xe2, (char)0x80, (char)0xae, ' ', 'y'};
    const kvm_str turned = kvm_printable(&keep, (kvm_str){override, 6});
    check_str(kvm_str_copy(&keep, turned), "x� y");
    assert_int_equal(kvm_text_width(KVM_STR("模型")), 4);
    assert_int_equal(kvm_text_width(KVM_STR("e\xcc\x81")), 1);
    check_str(kvm_str_copy(&keep, kvm_text_head(KVM_STR("模型"), 3)), "模");
}

static void csv_is_rfc_4180(void **at)
{
    (void)at;
    const kvm_table t = three_rows();
    kvm_text out = {0};
    kvm_table_csv(&out, &t);
    assert_false(out.failed);
    check_str(kvm_str_copy(&keep, kvm_text_str(&out)),
              "name,score,score_low,score_high,score_note,n\r\n"
              "plain,0.5,0.25,0.75,,7\r\n"
              "模型 é,,,,no items,1000\r\n"
              "\"'=a,\"\"b\"\"\n\",,,,no items,\r\n");
    kvm_text_free(&out);
}

static void csv_numbers_read_back(void **at)
{
    (void)at;
    static const double values[] = {
        0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, -0.0, 123456789012345680.0};
    for (size_t i = 0; i < COUNT(values); i++) {
        static const kvm_column one = {"x", {"x", 1}, KVM_COL_NUMBER};
        kvm_table t = kvm_table_new(&keep, "t", KVM_STR("T"), &one, 1);
        kvm_table_num(&t, values[i], KVM_FORMAT_NUMBER);
        kvm_text out = {0};
        kvm_table_csv(&out, &t);
        const double back = strtod(out.at + 3, NULL); /* after "x\r\n" */
        assert_memory_equal(&back, &values[i], sizeof back);
        kvm_text_free(&out);
    }
}

static void json_rows_have_the_columns_keys(void **at)
{
    (void)at;
    const kvm_table t = three_rows();
    json_t *rows = kvm_table_json(&t);
    assert_int_equal(json_array_size(rows), 3);
    const json_t *first = json_array_get(rows, 0);
    assert_true(json_number_value(json_object_get(first, "n")) == 7);
    assert_true(json_is_object(json_object_get(first, "score")));
    assert_true(json_is_null(json_object_get(json_array_get(rows, 2), "n")));
    json_decref(rows);
}

static void a_spent_arena_is_noticed(void **at)
{
    (void)at;
    kvm_arena all = keep, tiny = kvm_arena_split(&all, 256);
    kvm_table t = kvm_table_new(&tiny, "t", KVM_STR("T"), columns, COUNT(columns));
    for (int i = 0; i < 300; i++) kvm_table_num(&t, i, KVM_FORMAT_COUNT);
    assert_true(t.failed);
    kvm_text out = {0};
    kvm_err err = {0};
    check_status(KVM_NOMEM, kvm_table_print(&out, &t, (kvm_term){0}, keep, &err), &err);
    const kvm_table good = three_rows();
    kvm_err second = {0};
    kvm_arena rest = keep;
    check_status(KVM_NOMEM,
                 kvm_table_print(&out, &good, (kvm_term){0},
                                 kvm_arena_split(&rest, 100), &second),
                 &second);
    kvm_text_free(&out);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(numbers_read_well),
        TEST(ticks_have_no_idle_digits),
        TEST(any_double_has_a_text_in_every_format),
        TEST(an_interval_has_the_unit_of_its_value),
        TEST(a_table_finds_one_unit_of_time),
        TEST(figures_carry_interval_or_reason),
        TEST(columns_align_by_width_not_bytes),
        TEST(wide_text_is_cut_to_the_terminal),
        TEST(colour_only_where_asked),
        TEST(no_color_is_honoured_on_a_terminal),
        TEST(terminals_cannot_be_forged),
        TEST(csv_is_rfc_4180),
        TEST(csv_numbers_read_back),
        TEST(json_rows_have_the_columns_keys),
        TEST(a_spent_arena_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
