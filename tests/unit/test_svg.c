#include "tests/support/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reports/svg.h"
#include "tests/support/markup.h"

#define NAN_D ((double)NAN)
#define INF_D ((double)INFINITY)

static kvm_arena keep;

static int begin(void **at)
{
    (void)at;
    keep = check_arena((size_t)64 << 20);
    return 0;
}

static int end(void **at)
{
    (void)at;
    kvm_arena_free(&keep);
    return 0;
}

/* Takes the text: well-formed, and no coordinate that is no number or far outside. */
static kvm_str checked(kvm_text *out)
{
    assert_false(out->failed);
    const kvm_str s = kvm_str_copy(&keep, kvm_text_str(out));
    kvm_text_free(out);
    check_markup(s);
    check_contains(s.at, "<svg class=\"fig\" role=\"img\"");
    check_contains(s.at, "<title>");
    check_contains(s.at, "<desc>");
    static const char *const broken[] = {"=\"nan",  "=\"-nan", "=\"inf",
                                         "=\"-inf", " nan",    " inf",
                                         "Mnan",    "Lnan",    "-nan"};
    for (size_t i = 0; i < COUNT(broken); i++) {
        const char *found = strstr(s.at, broken[i]);
        if (found) fail_msg("%s in %.120s", broken[i], found - 60);
    }
    for (const char *p = s.at; (p = strstr(p, "=\"")); p++) {
        char *after;
        const double v = strtod(p + 2, &after);
        if (after != p + 2 && !(fabs(v) < 1e4)) fail_msg("%g in %.60s", v, p - 10);
    }
    return s;
}

static ptrdiff_t count(kvm_str s, const char *part)
{
    ptrdiff_t n = 0;
    for (const char *p = s.at; (p = strstr(p, part)); p++) n++;
    return n;
}

static kvm_str lines(const kvm_line_chart *c)
{
    kvm_text out = {0};
    kvm_svg_lines(&out, c);
    return checked(&out);
}

static kvm_str heat(const kvm_heat_map *h)
{
    kvm_text out = {0};
    kvm_svg_heat(&out, h);
    return checked(&out);
}

static kvm_str bars(const kvm_bar_chart *c)
{
    kvm_text out = {0};
    kvm_svg_bars(&out, c);
    return checked(&out);
}

static kvm_str stack(const kvm_stack_chart *c)
{
    kvm_text out = {0};
    kvm_svg_stack(&out, c);
    return checked(&out);
}

static void text_is_escaped(void **at)
{
    (void)at;
    kvm_text out = {0};
    kvm_xml_text(&out, KVM_STR("a<b>&\"c'\x01\xff\xc2\x85 é\xef\xbf\xbf"));
    check_str(kvm_str_copy(&keep, kvm_text_str(&out)),
              "a&lt;b&gt;&amp;&quot;c&#39;��� é�");
    kvm_text_free(&out);
}

static const double x3[] = {64, 256, 1024}, y3[] = {0.01, 0.1, 1},
                    low3[] = {0.009, 0.09, 0.9}, high3[] = {0.011, 0.11, 1.1};

static void a_line_has_points_band_legend_and_ticks(void **at)
{
    (void)at;
    const kvm_series series[] = {{.name = KVM_STR("cold"),
                                  .x = x3,
                                  .y = y3,
                                  .low = low3,
                                  .high = high3,
                                  .n = 3,
                                  .look = kvm_look_palette(0)},
                                 {.name = KVM_STR("switch"),
                                  .x = x3,
                                  .y = low3,
                                  .n = 3,
                                  .look = kvm_look_arm(KVM_ARM_MLP),
                                  .dashed = true}};
    const kvm_mark mark = {200, KVM_STR("break-even"), false};
    const kvm_line_chart c = {
        .title = KVM_STR("T"),
        .desc = KVM_STR("D"),
        .x = {.title = KVM_STR("tokens"),
              .format = KVM_FORMAT_TOKENS,
              .log = true,
              .doubling = true},
        .y = {.title = KVM_STR("time"), .format = KVM_FORMAT_SECONDS, .log = true},
        .series = series,
        .series_count = 2,
        .marks = &mark,
        .mark_count = 1};
    const kvm_str s = lines(&c);
    assert_int_equal(count(s, "<circle"), 6);
    assert_int_equal(count(s, "class=\"band\""), 1);
    check_contains(s.at, ">cold</text>");
    check_contains(s.at, ">break-even</text>");
    check_contains(s.at, ">1K</text>");
    check_contains(s.at, ">100\xc2\xa0ms</text>");
    check_contains(s.at, "<g class=\"a3\">");
}

static void values_off_a_fixed_axis_are_marked(void **at)
{
    (void)at;
    const double x[] = {0, 1, 2, 3}, y[] = {0.5, -509, 0.6, 7};
    const kvm_series series = {
        .name = KVM_STR("V"), .x = x, .y = y, .n = 4, .look = kvm_look_palette(1)};
    const kvm_line_chart c = {.title = KVM_STR("T"),
                              .y = {.fixed = true, .lo = 0, .hi = 1},
                              .series = &series,
                              .series_count = 1};
    const kvm_str s = lines(&c);
    assert_int_equal(count(s, "class=\"off\""), 2);
    assert_int_equal(count(s, "<circle"), 2);
    check_contains(s.at, "−509"); /* its value is in the tooltip */
}

static void holes_break_a_line(void **at)
{
    (void)at;
    const double x[] = {1, 2, 3, 4, 5}, y[] = {1, 2, NAN_D, 4, INF_D};
    const kvm_series series = {
        .x = x, .y = y, .low = y, .high = y, .n = 5, .look = kvm_look_palette(1)};
    const kvm_line_chart c = {
        .title = KVM_STR("T"), .series = &series, .series_count = 1};
    const kvm_str s = lines(&c);
    assert_int_equal(count(s, "class=\"line\""), 2);
    assert_int_equal(count(s, "<circle"), 3);
}

/* what measuring can give when something is wrong */
static const double bad[] = {NAN_D,    INF_D,  -INF_D, 0,     -1,   1.7e308,
                             -1.7e308, 5e-324, 1e-300, 1e300, -0.0, 42};
enum { BAD = COUNT(bad) };

static void hostile_lines_still_draw(void **at)
{
    (void)at;
    for (ptrdiff_t from = 0; from < BAD; from++)
        for (ptrdiff_t len = 0; from + len <= BAD; len++)
            for (int logs = 0; logs < 4; logs++) {
                const kvm_series series = {.name = KVM_STR("s"),
                                           .x = bad + from,
                                           .y = bad + BAD - from - len,
                                           .low = bad + from,
                                           .high = bad,
                                           .n = len,
                                           .look = kvm_look_palette(from)};
                const kvm_mark marks[] = {{bad[from], KVM_STR("m"), false},
                                          {bad[BAD - 1 - from], KVM_STR("m"), true}};
                const kvm_line_chart c = {.title = KVM_STR("T"),
                                          .x = {.log = logs & 1, .doubling = true},
                                          .y = {.log = logs & 2},
                                          .series = &series,
                                          .series_count = 1,
                                          .marks = marks,
                                          .mark_count = 2};
                lines(&c);
                kvm_arena_reset(&keep);
            }
}

static void hostile_bars_and_maps_still_draw(void **at)
{
    (void)at;
    for (ptrdiff_t i = 0; i < BAD; i++) {
        const kvm_est whisker = {bad[i], bad[BAD - 1 - i], bad[(i + 5) % BAD], {"", 0}};
        const kvm_bar bar[] = {
            {KVM_STR("a"), whisker, kvm_look_arm(KVM_ARM_ZERO), false},
            {KVM_STR("b"), kvm_est_of(bad[(i + 3) % BAD]), kvm_look_palette(i), true}};
        const kvm_mark mark = {bad[i], KVM_STR("chance"), false};
        const kvm_bar_chart c = {.title = KVM_STR("T"),
                                 .lo = bad[i],
                                 .hi = bad[(i + 1) % BAD],
                                 .bars = bar,
                                 .bar_count = 2,
                                 .marks = &mark,
                                 .mark_count = 1};
        bars(&c);
        const kvm_heat_map h = {.title = KVM_STR("T"),
                                .value = bad,
                                .rows = 3,
                                .cols = 4,
                                .lo = bad[i],
                                .hi = bad[(i + 2) % BAD]};
        heat(&h);
    }
    const kvm_str names[] = {KVM_STR("p"), KVM_STR("q"), KVM_STR("r"), KVM_STR("s")};
    const kvm_look looks[4] = {kvm_look_palette(0)};
    const kvm_stack_chart shares = {.title = KVM_STR("T"),
                                    .part_names = names,
                                    .looks = looks,
                                    .part_count = 4,
                                    .row_names = names,
                                    .value = bad,
                                    .row_count = 3};
    stack(&shares);
}

static void empty_charts_say_so(void **at)
{
    (void)at;
    const kvm_line_chart c = {.title = KVM_STR("T")};
    const kvm_bar_chart b = {.title = KVM_STR("T")};
    const kvm_stack_chart s = {.title = KVM_STR("T")};
    const kvm_heat_map h = {.title = KVM_STR("T")};
    check_contains(lines(&c).at, "not measured");
    check_contains(bars(&b).at, "not measured");
    check_contains(stack(&s).at, "not measured");
    check_contains(heat(&h).at, "not measured");
    const kvm_bar missing = {KVM_STR("zero"), kvm_est_missing(KVM_STR("no items")),
                             kvm_look_palette(0), false};
    const kvm_bar_chart one = {.title = KVM_STR("T"), .bars = &missing, .bar_count = 1};
    const kvm_str drawn = bars(&one);
    check_contains(drawn.at, ">not measured</text>");
    check_contains(drawn.at, "no items");
}

static void a_heat_map_labels_its_values(void **at)
{
    (void)at;
    const double v[] = {0.81, 0.995, -0.2, NAN_D, 0.004, 1};
    const kvm_heat_map h = {.title = KVM_STR("K content"),
                            .desc = KVM_STR("R² of <each> layer"),
                            .value = v,
                            .rows = 2,
                            .cols = 3,
                            .row_title = KVM_STR("source layer"),
                            .col_title = KVM_STR("target layer"),
                            .lo = 0,
                            .hi = 1};
    const kvm_str s = heat(&h);
    check_contains(s.at, ">.81</text>");
    check_contains(s.at, ">1.0</text>");
    check_contains(s.at, ">−.20</text>");
    check_contains(s.at, ">.00</text>");
    check_contains(s.at, "class=\"hu\"");
    check_contains(s.at, "class=\"hn\"");
    check_contains(s.at, "class=\"h10\"");
    check_contains(s.at, "R² of &lt;each&gt; layer");
}

/* a loss that hardly moves: labels of ticks must not repeat */
static void close_ticks_are_told_apart(void **at)
{
    (void)at;
    const double x[] = {0, 1, 2}, y[] = {0.01341, 0.01344, 0.01363};
    const kvm_series line = {.x = x, .y = y, .n = 3, .look = kvm_look_palette(0)};
    const kvm_line_chart c = {
        .title = KVM_STR("T"), .series = &line, .series_count = 1};
    kvm_text out = {0};
    kvm_svg_lines(&out, &c);
    check_contains(out.at, ">0.01340</text>");
    check_contains(out.at, ">0.01345</text>");
    assert_null(strstr(out.at, ">0.0134</text>"));
    kvm_text_free(&out);
}

static void a_heat_map_shows_the_numbers_it_is_given(void **at)
{
    (void)at;
    const double v[] = {0.5, 0.25}, source[] = {11}, target[] = {3, 47};
    const kvm_heat_map h = {.title = KVM_STR("T"),
                            .value = v,
                            .rows = 1,
                            .cols = 2,
                            .row_number = source,
                            .col_number = target,
                            .lo = 0,
                            .hi = 1};
    const kvm_str s = heat(&h);
    check_contains(s.at, ">11</text>");
    check_contains(s.at, ">47</text>");
    check_contains(s.at, "11 → 47: 0.250");
}

static void a_large_map_keeps_cells_and_widens(void **at)
{
    (void)at;
    enum { ROWS = 48, COLS = 90 };
    double *v = kvm_new(&keep, double, (ptrdiff_t)ROWS *COLS);
    const kvm_heat_map h = {.title = KVM_STR("T"),
                            .value = v,
                            .rows = ROWS,
                            .cols = COLS,
                            .lo = 0,
                            .hi = 1};
    const kvm_str s = heat(&h);
    assert_int_equal(count(s, "<title>"), ROWS * COLS + 1);
    check_contains(s.at, "min-width:");  /* it scrolls in its own box */
    assert_null(strstr(s.at, "t cell")); /* no room for labels */
}

static void bars_show_value_whisker_and_cut(void **at)
{
    (void)at;
    const kvm_bar bar[] = {
        {KVM_STR("native"),
         {0.7, 0.6, 0.8, {"", 0}},
         kvm_look_arm(KVM_ARM_NATIVE),
         false},
        {KVM_STR("a name so long that it cannot stand beside its bar"), kvm_est_of(9),
         kvm_look_arm(KVM_ARM_ZERO), true}};
    const kvm_mark chance = {0.25, KVM_STR("chance"), false};
    const kvm_bar_chart c = {.title = KVM_STR("T"),
                             .format = KVM_FORMAT_PERCENT,
                             .lo = 0,
                             .hi = 1,
                             .bars = bar,
                             .bar_count = 2,
                             .marks = &chance,
                             .mark_count = 1};
    const kvm_str s = bars(&c);
    assert_int_equal(count(s, "class=\"whisker\""), 1);
    assert_int_equal(count(s, "class=\"cut\""), 1);
    check_contains(s.at, "native: 70.0\xc2\xa0% [60.0, 80.0]");
    check_contains(s.at, "…</text>");
    check_contains(s.at, ">chance</text>");
}

static void looks_are_classes_that_exist(void **at)
{
    (void)at;
    kvm_text css = {0};
    for (const char *const *line = kvm_svg_css; *line; line++)
        kvm_text_add(&css, kvm_str_of(*line));
    const kvm_str all = kvm_str_copy(&keep, kvm_text_str(&css));
    kvm_text_free(&css);
    for (int a = 0; a < KVM_ARM_COUNT; a++)
        check_contains(all.at,
                       kvm_str_fmt(&keep, ".%s", kvm_look_arm((kvm_arm)a).name).at);
    for (int i = 0; i <= 10; i++) {
        check_contains(all.at,
                       kvm_str_fmt(&keep, ".%s{", kvm_look_ramp(i / 10.0).name).at);
        check_contains(all.at, kvm_str_fmt(&keep, ".h%d{", i).at);
    }
    for (int i = 0; i < 8; i++)
        check_contains(all.at, kvm_str_fmt(&keep, ".%s{", kvm_look_palette(i).name).at);
    assert_string_equal(kvm_look_ramp(NAN_D).name, "r0");
    assert_string_equal(kvm_look_ramp(7).name, "r10");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(text_is_escaped),
        TEST(a_line_has_points_band_legend_and_ticks),
        TEST(values_off_a_fixed_axis_are_marked),
        TEST(holes_break_a_line),
        TEST(hostile_lines_still_draw),
        TEST(hostile_bars_and_maps_still_draw),
        TEST(empty_charts_say_so),
        TEST(a_heat_map_labels_its_values),
        TEST(close_ticks_are_told_apart),
        TEST(a_heat_map_shows_the_numbers_it_is_given),
        TEST(a_large_map_keeps_cells_and_widens),
        TEST(bars_show_value_whisker_and_cut),
        TEST(looks_are_classes_that_exist),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
