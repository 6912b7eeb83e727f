#include "tests/support/check.h"

#include <math.h>
#include <string.h>

#include "base/json.h"
#include "reports/stats.h"

#define GOLDEN "tests/golden/reports/stats.json"

static kvm_arena keep, scratch;

static int begin(void **at)
{
    (void)at;
    keep = check_arena((size_t)64 << 20);
    scratch = check_arena((size_t)64 << 20);
    return 0;
}

static int end(void **at)
{
    (void)at;
    kvm_arena_free(&keep);
    kvm_arena_free(&scratch);
    return 0;
}

static double number(const json_t *in, const char *key)
{
    const json_t *v = json_object_get(in, key);
    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

static double *numbers(const json_t *list, ptrdiff_t *n)
{
    if (!json_is_array(list)) return NULL;
    *n = (ptrdiff_t)json_array_size(list);
    double *x = kvm_new(&keep, double, *n);
    for (ptrdiff_t i = 0; i < *n; i++)
        x[i] = json_number_value(json_array_get(list, (size_t)i));
    return x;
}

static const json_t *golden(void)
{
    kvm_jat doc;
    kvm_err err = {0};
    check_ok(kvm_json_read(&doc, &keep, KVM_STR(GOLDEN), &err), &err);
    return doc.v;
}

static void near(double got, double want, double tolerance, const char *what)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%s: got %.9g, want %.9g within %.3g", what, got, want, tolerance);
}

/* The value to rounding; the interval to the Monte-Carlo error of two bootstraps of
 * 10,000: the end of an interval has a standard error of about 0.7 % of its width. */
static void check_est(kvm_est got, const json_t *want, const char *what)
{
    if (!want) {
        if (kvm_est_has(got)) fail_msg("%s: %g where none belongs", what, got.value);
        if (!got.note.len) fail_msg("%s: missing without a reason", what);
        return;
    }
    const double low = number(want, "low"), high = number(want, "high");
    near(got.value, number(want, "value"), 1e-9 * (1 + fabs(got.value)), what);
    near(got.low, low, 0.05 * (high - low) + 1e-12, what);
    near(got.high, high, 0.05 * (high - low) + 1e-12, what);
}

/* of an arm's score */
static double value_of(const json_t *arm)
{
    return json_number_value(json_object_get(json_object_get(arm, "score"), "value"));
}

static void agrees_with_numpy(void **at)
{
    (void)at;
    const json_t *cases = json_object_get(golden(), "cases");
    int checked = 0;
    for (size_t c = 0; c < json_array_size(cases); c++) {
        const json_t *it = json_array_get(cases, c);
        const json_t *items = json_object_get(it, "items");
        kvm_scores s = {.chance = number(it, "chance"),
                        .lower_better = json_is_true(json_object_get(it, "lower")),
                        .exp_of_mean = json_is_true(json_object_get(it, "exp")),
                        .seed = 7};
        for (int a = 0; a < KVM_ARM_COUNT; a++)
            s.item[a] = numbers(json_object_get(items, kvm_arms[a].key), &s.n);
        s.weight = numbers(json_object_get(it, "weight"), &s.n);
        kvm_comparison got[KVM_ARM_COUNT];
        kvm_err err = {0};
        check_ok(kvm_compare(got, &s, scratch, &err), &err);
        for (int a = 0; a < KVM_ARM_COUNT; a++) {
            const json_t *want =
                json_object_get(json_object_get(it, "arms"), kvm_arms[a].key);
            check_est(got[a].score, json_object_get(want, "score"), "score");
            check_est(got[a].retention, json_object_get(want, "retention"),
                      "retention");
            check_est(got[a].floor_normalised,
                      json_object_get(want, "floor_normalised"), "floor_normalised");
            check_est(got[a].gap_recovered, json_object_get(want, "gap_recovered"),
                      "gap_recovered");
            check_est(got[a].versus_native, json_object_get(want, "versus_native"),
                      "versus_native");
            const json_t *control = json_object_get(want, "versus_control");
            check_est(got[a].versus_control, control, "versus_control");
            if (control)
                check_str(got[a].versus_control.note,
                          json_string_value(json_object_get(control, "note")));
            for (int k = 0; want && control && k < KVM_CONTROLS; k++) {
                const json_t *other = json_object_get(json_object_get(it, "arms"),
                                                      kvm_arms[kvm_controls[k]].key);
                const double by = value_of(want) - value_of(other);
                assert_int_equal(other != NULL, kvm_est_has(got[a].versus_each[k]));
                if (other) assert_true(fabs(got[a].versus_each[k].value - by) < 1e-9);
            }
            checked += want != NULL;
        }
    }
    assert_int_equal(checked, 8 + 4 + 5);
}

static void agrees_with_scipy(void **at)
{
    (void)at;
    const json_t *doc = golden();
    const json_t *mean = json_object_get(doc, "scipy_mean");
    const json_t *first = json_array_get(json_object_get(doc, "cases"), 0);
    kvm_scores s = {.chance = (double)NAN, .seed = 1};
    s.item[KVM_ARM_CLOSED_FORM] =
        numbers(json_object_get(json_object_get(first, "items"), "closed_form"), &s.n);
    kvm_comparison got[KVM_ARM_COUNT];
    kvm_err err = {0};
    check_ok(kvm_compare(got, &s, scratch, &err), &err);
    const kvm_est score = got[KVM_ARM_CLOSED_FORM].score;
    near(score.low, number(mean, "low"), 0.006, "low");
    near(score.high, number(mean, "high"), 0.006, "high");
}

static void quantiles_are_numpys(void **at)
{
    (void)at;
    const json_t *doc = golden();
    ptrdiff_t n = 0;
    double *x = numbers(json_object_get(doc, "sample"), &n);
    const kvm_est median = kvm_median(x, n, scratch);
    const json_t *want = json_object_get(doc, "quantiles");
    near(median.value, number(want, "0.5"), 1e-15, "median");
    near(median.low, number(want, "0.25"), 1e-15, "quartile");
    near(median.high, number(want, "0.75"), 1e-15, "quartile");
    for (ptrdiff_t i = 1; i < n; i++) /* insertion sort: the test's own */
        for (ptrdiff_t j = i; j > 0 && x[j] < x[j - 1]; j--) {
            const double t = x[j];
            x[j] = x[j - 1], x[j - 1] = t;
        }
    const kvm_jat all = {.v = want, .file = "", .path = ""};
    kvm_str key;
    const json_t *value;
    for (void *it = NULL; kvm_json_next(all, &it, &key, &value);) {
        double q;
        assert_true(kvm_str_to_f64(key, &q));
        near(kvm_quantile(x, n, q), json_number_value(value), 1e-15, key.at);
    }
    assert_true(isnan(kvm_quantile(x, 0, 0.5)));
    near(kvm_quantile(x, 1, 0.9), x[0], 0, "one value");
}

/* Intervals of 95 % must hold the truth about 95 times of 100. With 60 items of 0/1 the
 * percentile bootstrap is known to cover a little less: 91 to 98 % is asked. */
static void intervals_cover_the_truth(void **at)
{
    (void)at;
    enum { RUNS = 400, ITEMS = 60 };
    double native[ITEMS], arm[ITEMS];
    kvm_rng rng = kvm_rng_seed(20260131, 0);
    int mean_held = 0, difference_held = 0;
    for (int run = 0; run < RUNS; run++) {
        for (int i = 0; i < ITEMS; i++) {
            const double u = kvm_rng_unit(&rng);
            native[i] = u < 0.7;
            arm[i] = (kvm_rng_unit(&rng) < 0.8 ? u : kvm_rng_unit(&rng)) < 0.6;
        }
        kvm_scores s = {.n = ITEMS,
                        .chance = (double)NAN,
                        .seed = (uint64_t)run,
                        .resamples = 1000};
        s.item[KVM_ARM_NATIVE] = native;
        s.item[KVM_ARM_MLP] = arm;
        kvm_comparison got[KVM_ARM_COUNT];
        kvm_err err = {0};
        check_ok(kvm_compare(got, &s, scratch, &err), &err);
        const kvm_comparison *c = &got[KVM_ARM_MLP];
        mean_held += c->score.low <= 0.6 && 0.6 <= c->score.high;
        difference_held +=
            c->versus_native.low <= -0.1 && -0.1 <= c->versus_native.high;
    }
    assert_in_range(mean_held, RUNS * 91 / 100, RUNS * 98 / 100);
    assert_in_range(difference_held, RUNS * 91 / 100, RUNS * 98 / 100);
}

static void pairing_narrows_the_difference(void **at)
{
    (void)at;
    enum { ITEMS = 100 };
    double native[ITEMS], arm[ITEMS];
    for (int i = 0; i < ITEMS; i++) native[i] = i % 2, arm[i] = i == 0 ? 1 : i % 2;
    kvm_scores s = {.n = ITEMS, .chance = (double)NAN};
    s.item[KVM_ARM_NATIVE] = native;
    s.item[KVM_ARM_CLOSED_FORM] = arm;
    kvm_comparison got[KVM_ARM_COUNT];
    kvm_err err = {0};
    check_ok(kvm_compare(got, &s, scratch, &err), &err);
    const kvm_est score = got[KVM_ARM_CLOSED_FORM].score;
    const kvm_est difference = got[KVM_ARM_CLOSED_FORM].versus_native;
    assert_true(score.high - score.low > 0.15);
    assert_true(difference.high - difference.low < 0.05);
}

static void the_same_seed_gives_the_same_bits(void **at)
{
    (void)at;
    double x[50];
    for (int i = 0; i < 50; i++) x[i] = sqrt(i);
    kvm_comparison got[3][KVM_ARM_COUNT];
    for (int run = 0; run < 3; run++) {
        kvm_scores s = {.n = 50, .chance = 0, .seed = run < 2 ? 5 : 6};
        s.item[KVM_ARM_NATIVE] = x;
        kvm_err err = {0};
        memset(got[run], 0, sizeof got[run]);
        check_ok(kvm_compare(got[run], &s, scratch, &err), &err);
    }
    const kvm_est a = got[0][KVM_ARM_NATIVE].score, b = got[1][KVM_ARM_NATIVE].score,
                  c = got[2][KVM_ARM_NATIVE].score;
    assert_memory_equal(&a.low, &b.low, sizeof a.low);
    assert_memory_equal(&a.high, &b.high, sizeof a.high);
    assert_true(a.low != c.low || a.high != c.high);
}

/* ---- edges ---- */

static void compare_or_fail(kvm_comparison got[KVM_ARM_COUNT], const kvm_scores *s)
{
    kvm_err err = {0};
    check_ok(kvm_compare(got, s, scratch, &err), &err);
}

static void nothing_gives_reasons_not_infinity(void **at)
{
    (void)at;
    kvm_comparison got[KVM_ARM_COUNT];
    double one[] = {1}, zero[] = {0}, half[] = {0, 1, 0, 1}, ones[] = {1, 1, 1, 1},
           zeros[] = {0, 0, 0, 0};

    kvm_scores none = {.n = 0, .chance = 0.25};
    none.item[KVM_ARM_NATIVE] = one;
    compare_or_fail(got, &none);
    check_str(got[KVM_ARM_NATIVE].score.note, "no items");
    check_str(got[KVM_ARM_MLP].score.note, "this arm was not run");

    kvm_scores single = {.n = 1, .chance = 0.25};
    single.item[KVM_ARM_NATIVE] = one;
    single.item[KVM_ARM_SOURCE] = zero;
    single.item[KVM_ARM_MLP] = one;
    compare_or_fail(got, &single);
    near(got[KVM_ARM_MLP].retention.value, 1, 0, "retention");
    near(got[KVM_ARM_MLP].gap_recovered.value, 1, 0, "gap");
    assert_false(kvm_est_has_interval(got[KVM_ARM_MLP].retention));

    kvm_scores chance = {.n = 4, .chance = 0.5};
    chance.item[KVM_ARM_NATIVE] = half;
    chance.item[KVM_ARM_SOURCE] = half;
    chance.item[KVM_ARM_MLP] = ones;
    compare_or_fail(got, &chance);
    check_str(got[KVM_ARM_MLP].floor_normalised.note,
              "the target's own score is not clear of chance");
    check_str(got[KVM_ARM_MLP].gap_recovered.note,
              "no gap to recover: on these items the source alone is not shown to "
              "score worse than the target");

    kvm_scores nil = {.n = 4, .chance = 0};
    nil.item[KVM_ARM_NATIVE] = zeros;
    nil.item[KVM_ARM_MLP] = ones;
    compare_or_fail(got, &nil);
    check_str(got[KVM_ARM_MLP].retention.note,
              "the target's own score is not above zero");
    check_str(got[KVM_ARM_MLP].gap_recovered.note, "the source alone was not scored");
    check_str(got[KVM_ARM_MLP].versus_control.note, "no control was scored");

    kvm_scores alone = {.n = 4, .chance = 0};
    alone.item[KVM_ARM_MLP] = ones;
    compare_or_fail(got, &alone);
    check_str(got[KVM_ARM_MLP].retention.note,
              "the target on its own cache was not scored");

    kvm_scores huge = {.n = 4, .chance = (double)NAN, .exp_of_mean = true};
    double much[] = {1e6, 1e6, 1e6, 1e6};
    huge.item[KVM_ARM_NATIVE] = much;
    compare_or_fail(got, &huge);
    check_str(got[KVM_ARM_NATIVE].score.note, "the score overflows");
    assert_false(kvm_est_has(got[KVM_ARM_NATIVE].retention));
}

/* The share of a gap is one only where the target is the better of the two:
 * perplexities of 4.1 beside 4 would give hundreds of per cent, those of a better
 * source a sign that says the contrary. */
static void a_gap_needs_a_worse_source(void **at)
{
    (void)at;
    kvm_comparison got[KVM_ARM_COUNT];
    double better[] = {1.2, 1.3, 1.1, 1.4}, worse[] = {1.7, 1.9, 1.5, 1.8},
           near_by[] = {1.3, 1.2, 1.2, 1.3}, between[] = {1.4, 1.5, 1.3, 1.6};
    kvm_scores s = {.n = 4,
                    .chance = (double)NAN,
                    .lower_better = true,
                    .exp_of_mean = true,
                    .item = {[KVM_ARM_NATIVE] = better,
                             [KVM_ARM_SOURCE] = worse,
                             [KVM_ARM_CLOSED_FORM] = between}};
    compare_or_fail(got, &s);
    assert_true(got[KVM_ARM_CLOSED_FORM].gap_recovered.value > 0.4);
    s.item[KVM_ARM_ZERO] = worse; /* thousands of per cent below nothing */
    compare_or_fail(got, &s);
    check_str(got[KVM_ARM_ZERO].gap_recovered.note, "is itself a control");
    s.item[KVM_ARM_ZERO] = NULL;
    s.item[KVM_ARM_SOURCE] = near_by;
    compare_or_fail(got, &s);
    check_str(got[KVM_ARM_CLOSED_FORM].gap_recovered.note,
              "no gap to recover: on these items the source alone is not shown to "
              "score worse than the target");
    s.item[KVM_ARM_SOURCE] = better;
    s.item[KVM_ARM_NATIVE] = worse;
    compare_or_fail(got, &s);
    check_str(got[KVM_ARM_CLOSED_FORM].gap_recovered.note,
              "no gap to recover: on these items the source alone scores better than "
              "the target");
    s.lower_better = s.exp_of_mean = false; /* of shares it is the target that leads */
    compare_or_fail(got, &s);
    assert_true(kvm_est_has(got[KVM_ARM_CLOSED_FORM].gap_recovered));
}

static void bad_scores_are_named(void **at)
{
    (void)at;
    double x[] = {1, (double)NAN, 0}, good[] = {1, 1, 1}, weight[] = {1, 1, 0};
    kvm_comparison got[KVM_ARM_COUNT];
    kvm_scores s = {.n = 3, .chance = 0};
    s.item[KVM_ARM_WRONG_DONOR] = x;
    kvm_err err = {0};
    check_status(KVM_NAN, kvm_compare(got, &s, scratch, &err), &err);
    check_contains(err.msg, "item 1 of arm wrong_donor");
    s.item[KVM_ARM_WRONG_DONOR] = good;
    s.weight = weight;
    kvm_err second = {0};
    check_status(KVM_RANGE, kvm_compare(got, &s, scratch, &second), &second);
    check_contains(second.msg, "item 2");
    s.weight = NULL;
    kvm_err third = {0};
    kvm_arena all = scratch;
    check_status(KVM_NOMEM, kvm_compare(got, &s, kvm_arena_split(&all, 512), &third),
                 &third);
}

static void every_arm_is_found_by_its_key(void **at)
{
    (void)at;
    for (int a = 0; a < KVM_ARM_COUNT; a++) {
        kvm_arm found;
        assert_true(kvm_arm_find(kvm_str_of(kvm_arms[a].key), &found));
        assert_int_equal(found, a);
        assert_non_null(kvm_arms[a].what);
    }
    kvm_arm untouched = KVM_ARM_ZERO;
    assert_false(kvm_arm_find(KVM_STR("Native"), &untouched));
    assert_int_equal(untouched, KVM_ARM_ZERO);
}

static void json_leaves_out_what_is_missing(void **at)
{
    (void)at;
    json_t *full = kvm_est_json((kvm_est){0.5, 0.4, 0.6, KVM_STR("n")});
    json_t *none = kvm_est_json(kvm_est_missing(KVM_STR("why")));
    assert_int_equal(json_object_size(full), 4);
    assert_int_equal(json_object_size(none), 2);
    assert_true(json_is_null(json_object_get(none, "value")));
    json_decref(full);
    json_decref(none);
    const kvm_est one = kvm_est_of(1), nothing = kvm_est_missing(KVM_STR("why"));
    kvm_comparison c = {one, one, one, one, one, one, {nothing, one, nothing}};
    json_t *arm = kvm_comparison_json(&c);
    const json_t *each = json_object_get(arm, "versus_controls");
    assert_int_equal(json_object_size(arm), 7);
    assert_int_equal(json_object_size(each), 1);
    assert_non_null(json_object_get(each, "wrong_donor"));
    json_decref(arm);
    c.versus_each[1] = nothing;
    arm = kvm_comparison_json(&c);
    assert_int_equal(json_object_size(arm), 6);
    json_decref(arm);
}

/* ---- timings ---- */

static void ratios_are_of_rounds(void **at)
{
    (void)at;
    /* the machine slows down half way: only the rounds' ratios stay at 2 */
    const double a[] = {2, 2.02, 1.98, 20, 20.2, 19.8}, b[] = {1, 1, 1, 10, 10, 10};
    const kvm_est e = kvm_ratio_rounds(a, b, 6, 3, scratch);
    near(e.value, 2, 1e-12, "ratio");
    assert_true(e.low >= 1.98 - 1e-12 && e.high <= 2.02 + 1e-12 && e.low < e.high);
    assert_false(kvm_est_has_interval(kvm_ratio_rounds(a, b, 1, 3, scratch)));
    check_str(kvm_ratio_rounds(a, b, 0, 3, scratch).note, "no rounds");
    const double zero[] = {0, 1};
    check_str(kvm_ratio_rounds(a, zero, 2, 3, scratch).note,
              "a round has no finite ratio");
    check_str(kvm_median(a, 0, scratch).note, "no rounds");
    const double bad[] = {1, INFINITY};
    check_str(kvm_median(bad, 2, scratch).note, "a round has no finite time");
}

static kvm_est even(const double *tokens, const double *cold, const double *swap,
                    ptrdiff_t n)
{
    kvm_est ratio[16];
    for (ptrdiff_t i = 0; i < n; i++) ratio[i] = kvm_est_of(cold[i] / swap[i]);
    return kvm_break_even(tokens, ratio, n, scratch);
}

static void break_even_lies_between_lengths(void **at)
{
    (void)at;
    const json_t *want = json_object_get(golden(), "break_even");
    ptrdiff_t n = 0;
    const double *tokens = numbers(json_object_get(want, "tokens"), &n);
    const double *cold = numbers(json_object_get(want, "cold"), &n);
    const double *swap = numbers(json_object_get(want, "switch"), &n);
    near(even(tokens, cold, swap, n).value, number(want, "at"), 1e-9, "break-even");

    const double t[] = {64, 128, 256, 512}, one[] = {1, 1, 1, 1};
    const double fast[] = {.5, .5, .5, .5}, slow[] = {2, 2, 2, 2};
    const double again[] = {.5, 2, .5, .5}, worse[] = {.5, .5, .5, 2},
                 equal[] = {1, 1, .5, .5};
    const kvm_est always = even(t, one, fast, 4);
    near(always.value, 64, 0, "always");
    check_str(always.note, "at or below the shortest length measured");
    check_str(even(t, one, slow, 4).note, "not sooner at any length measured");
    check_str(even(t, one, worse, 4).note, "not sooner at the longest length measured");
    near(even(t, one, again, 4).value, 128 * sqrt(2), 1e-9, "last crossing");
    near(even(t, one, equal, 4).value, 128, 1e-9, "equal is not sooner");
    check_str(even(t, one, one, 0).note, "no lengths");
    const double bad[] = {0, 1, 1, 1};
    check_str(even(t, bad, one, 4).note, "a length has no ratio above zero");
}

/* its interval follows from those of the ratios */
static void a_break_even_is_as_sure_as_its_ratios(void **at)
{
    (void)at;
    const double t[] = {64, 256, 1024};
    kvm_est ratio[] = {
        {.5, .25, 1, KVM_STR("")}, {2, 1, 4, KVM_STR("")}, {4, 4, 4, KVM_STR("")}};
    const kvm_est e = kvm_break_even(t, ratio, 3, scratch);
    near(e.value, 128, 1e-9, "by the medians");
    near(e.low, 64, 1e-9, "by the upper ends");
    near(e.high, 256, 1e-9, "by the lower ends");
    ratio[0] = kvm_est_of(2); /* sooner everywhere, but not surely at 256 */
    const kvm_est wide = kvm_break_even(t, ratio, 3, scratch);
    near(wide.value, 64, 0, "sooner everywhere");
    near(wide.high, 256, 1e-9, "surely from here");
    assert_int_equal(wide.note.len, 0);
    ratio[2] = (kvm_est){2, .9, 3, KVM_STR("")};
    check_contains(kvm_break_even(t, ratio, 3, scratch).note.at, "not surely sooner");
}

static void a_build_pays_after_so_many_switches(void **at)
{
    (void)at;
    near(kvm_amortise(10, 3, 1).value, 5, 0, "switches");
    near(kvm_amortise(10.1, 3, 1).value, 6, 0, "rounded up");
    check_str(kvm_amortise(10, 1, 1).note, "the switch saves nothing");
    check_str(kvm_amortise(10, 1, 2).note, "the switch saves nothing");
    check_str(kvm_amortise((double)NAN, 2, 1).note, "a time is not known");
}

/* what a comparison says of the arm beside native, from two columns alone */
static void a_pair_is_a_comparison_of_two(void **state)
{
    (void)state;
    static const double x[] = {0.3, 0.1, 0.7, 0.2, 0.9},
                        base[] = {0.1, 0.1, 0.5, 0.3, 0.4};
    static const double weight[] = {1, 2, 3, 1, 5};
    kvm_err err = {0};
    kvm_est score, versus;
    const kvm_pair_of_scores p = {x, base, weight, 5, 7, false};
    check_ok(kvm_paired(&score, &versus, &p, scratch, &err), &err);
    assert_true(fabs(score.value - 7.3 / 12) < 1e-12);
    assert_true(fabs(versus.value - (7.3 / 12 - 4.1 / 12)) < 1e-12);
    assert_true(score.low < score.value && score.value < score.high);
    assert_true(versus.low < versus.value && versus.value < versus.high);
    /* a column beside itself differs by nothing, in every resample */
    const kvm_pair_of_scores same = {x, x, weight, 5, 7, false};
    check_ok(kvm_paired(&score, &versus, &same, scratch, &err), &err);
    assert_true(versus.value == 0 && versus.low == 0 && versus.high == 0);
}

/* ratios of scipy's normal quantiles */
static void more_comparisons_take_wider_intervals(void **state)
{
    (void)state;
    near(kvm_widening(0), 1, 0, "none");
    near(kvm_widening(1), 1, 0, "one");
    near(kvm_widening(3), 1.2214407094731936, 1e-12, "three");
    near(kvm_widening(12), 1.4618943312902386, 1e-12, "twelve");
    near(kvm_widening(1000), 2.0692354620351066, 1e-12, "a thousand");
    const kvm_est e = kvm_est_widened((kvm_est){1, 0.5, 3, KVM_STR("")}, 2);
    near(e.value, 1, 0, "value");
    near(e.low, 0, 1e-15, "low");
    near(e.high, 5, 1e-15, "high");
    /* an interval beside its value does not move towards it */
    const kvm_est beside = kvm_est_widened((kvm_est){1, 2, 3, KVM_STR("")}, 2);
    near(beside.low, 2, 0, "low beside");
    near(beside.high, 5, 0, "high beside");
    assert_false(kvm_est_has_interval(kvm_est_widened(kvm_est_of(1), 2)));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(a_pair_is_a_comparison_of_two),
        TEST(agrees_with_numpy),
        TEST(agrees_with_scipy),
        TEST(quantiles_are_numpys),
        TEST(intervals_cover_the_truth),
        TEST(pairing_narrows_the_difference),
        TEST(the_same_seed_gives_the_same_bits),
        TEST(nothing_gives_reasons_not_infinity),
        TEST(a_gap_needs_a_worse_source),
        TEST(bad_scores_are_named),
        TEST(every_arm_is_found_by_its_key),
        TEST(json_leaves_out_what_is_missing),
        TEST(ratios_are_of_rounds),
        TEST(break_even_lies_between_lengths),
        TEST(a_break_even_is_as_sure_as_its_ratios),
        TEST(a_build_pays_after_so_many_switches),
        TEST(more_comparisons_take_wider_intervals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
