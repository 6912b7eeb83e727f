/* The verdict of a report: its rule, and what its sentence and tiles say. */
#include <string.h>

#include "reports/document.h"
#include "tests/support/pages.h"

static void check_headline(state *s, const char *doc, const char *headline)
{
    kvm_str got, sentence;
    kvm_err err = {0};
    check_ok(kvm_report_verdict(&got, &sentence, &s->keep, parse(s, doc), &err), &err);
    check_str(got, headline);
}

#define GATE(verdict, required)                                                        \
    ",\"gates\":[{\"name\":\"g\",\"verdict\":\"" verdict "\",\"required\":" required   \
    "}]"
#define SUITE(floor, native_lead, lead)                                                \
    ",\"suites\":[{\"name\":\"s\",\"arms\":{\"native\":{\"score\":1,\"versus_"         \
    "control\":" native_lead                                                           \
    "},\"closed_form\":{\"score\":1,\"floor_normalised\":" floor                       \
    ",\"versus_control\":" lead "}}}]"
#define SURE "{\"value\":0.5,\"low\":0.4,\"high\":0.6}"
#define UNSURE "{\"value\":0.1,\"low\":-0.1,\"high\":0.3}"

static void the_rule_of_the_verdict(void **at)
{
    const char *serves = "The translated cache serves.";
    const char *in_part = "The translated cache serves in part.";
    const char *not = "The translated cache does not serve.";
    const char *open = "Not decided: not everything was measured.";
    const char *mute = "Not decided: no measure tells a good cache from a bad one.";
    check_headline(*at, HEAD PAIR GATE("pass", "true") SUITE("0.9", SURE, SURE) "}",
                   serves);
    check_headline(*at, HEAD PAIR GATE("fail", "false") SUITE("0.9", SURE, SURE) "}",
                   open); /* advice alone decides nothing */
    check_headline(*at, HEAD PAIR GATE("fail", "true") SUITE("0.99", SURE, SURE) "}",
                   not );
    check_headline(*at, HEAD PAIR GATE("pass", "true") SUITE("0.89", SURE, SURE) "}",
                   in_part);
    check_headline(*at, HEAD PAIR GATE("pass", "true") SUITE("0.49", SURE, SURE) "}",
                   not );
    check_headline(*at, HEAD PAIR GATE("pass", "true") SUITE("0.95", SURE, UNSURE) "}",
                   in_part);
    check_headline(*at,
                   HEAD PAIR GATE("pass", "true") SUITE("0.95", UNSURE, UNSURE) "}",
                   mute); /* whatever the cache is, the suite would say so */
    check_headline(
        *at, HEAD PAIR GATE("unmeasured", "true") SUITE("0.95", SURE, SURE) "}", open);
    check_headline(*at, HEAD PAIR SUITE("0.95", SURE, SURE) "}", open);
    check_headline(*at, HEAD PAIR GATE("pass", "true") "}", open);
}

static const char *sentence_of(state *s, const char *doc)
{
    kvm_str headline, sentence;
    kvm_err err = {0};
    check_ok(kvm_report_verdict(&headline, &sentence, &s->keep, parse(s, doc), &err),
             &err);
    return sentence.at;
}

#define ARMS(arm)                                                                      \
    "\"arms\":{\"native\":{\"score\":1,\"versus_control\":" SURE                       \
    "},\"closed_form\":{\"score\":1,\"versus_control\":" SURE "," arm "}}"

/* the gap is said of measures that have a retention, and of how many */
static void one_sentence_speaks_of_the_same_measures(void **at)
{
    const char *doc = HEAD PAIR
        ",\"suites\":["
        "{\"name\":\"kl\",\"better\":\"low\"," ARMS(
            "\"gap_recovered\":0.9") "},"
                                     "{\"name\":\"a\"," ARMS(
                                         "\"retention\":0.8,\"gap_recovered\":"
                                         "0.5") "},"
                                                "{\"name\":\"b\"," ARMS(
                                                    "\"retention\":0.6") "}]}";
    check_contains(sentence_of(*at, doc), "On 2 measures, B keeps 70.0");
    check_contains(sentence_of(*at, doc),
                   " of the gap between the two models on the 1 where there is one");
}

#define MEASURE(name, items, arm)                                                      \
    "{\"name\":\"" name "\",\"items\":" items "," ARMS(arm) "}"

/* what a verdict rests on is said, and on how many items */
static void the_measures_are_named_with_their_items(void **at)
{
    const char *doc = HEAD PAIR
        ",\"suites\":[{\"name\":\"plain\",\"title\":\"prose: "
        "KL\",\"better\":\"low\",\"items\":20," ARMS(
            "\"gap_recovered\":0."
            "9") "}," MEASURE("a", "1200",
                              "\"retention\":0.8") ",{\"name\":\"s\","
                                                   "\"secondary\":true,"
                                                   "\"items\":"
                                                   "7," ARMS(
                                                       "\"retention\":0."
                                                       "8") "}," MEASURE("b", "90",
                                                                         "\"retention\""
                                                                         ":0.6") "]"
                                                                                 "}";
    check_contains(sentence_of(*at, doc),
                   " The means rest on a (1,200 items), b (90 items); checked "
                   "against the controls only: prose: KL (20 items).");
}

/* a suite of losses: the target's own cache, then the closed form, each less raw
 * source, wrong donor and zero */
#define EACH(raw, donor, zero)                                                         \
    "{\"score\":1,\"versus_control\":" raw ",\"versus_controls\":{\"raw_source\":" raw \
    ",\"wrong_donor\":" donor ",\"zero\":" zero "}"
#define LOSSES(native, closed)                                                         \
    "{\"name\":\"p\",\"title\":\"prose: KL\",\"better\":\"low\",\"arms\":{"            \
    "\"native\":" native "},\"closed_form\":" closed "}}}"
#define HITS(native, closed)                                                           \
    "{\"name\":\"mc\",\"arms\":{\"native\":" native "},\"closed_form\":" closed        \
    ",\"floor_normalised\":0.97}}}"
#define BELOW "{\"value\":-0.3,\"low\":-0.31,\"high\":-0.29}"

/* two models whose caches are much alike: what is told apart, from which control, and
 * which of two caches is the better one */
static void each_control_is_asked_for_itself(void **at)
{
    const char *good = HEAD PAIR GATE("pass", "true") ",\"suites\":[" HITS(
        EACH(UNSURE, SURE, SURE), EACH(UNSURE, SURE, SURE)) "]}";
    check_headline(*at, good, "The translated cache serves.");
    check_contains(
        sentence_of(*at, good),
        "On mc not even the target's own cache is shown to be better than the "
        "control \"raw source cache\".");
    const char *part = HEAD PAIR GATE("pass", "true") ",\"suites\":[" HITS(
        EACH(UNSURE, SURE, SURE), EACH(UNSURE, SURE, UNSURE)) "]}";
    check_headline(*at, part, "The translated cache serves in part.");
    check_contains(
        sentence_of(*at, part),
        "On mc it is not shown to be better than the control \"zero cache\".");
    const char *worse = HEAD PAIR GATE("pass", "true") ",\"suites\":[" HITS(
        EACH(UNSURE, UNSURE, UNSURE),
        EACH(UNSURE, UNSURE, UNSURE)) "," LOSSES(EACH(BELOW, BELOW, BELOW),
                                                 EACH("{\"value\":0.018,\"low\":"
                                                      "0.012,\"high\":0.029}",
                                                      BELOW, BELOW)) "]}";
    check_headline(*at, worse, "The translated cache is worse than a control.");
    check_contains(sentence_of(*at, worse),
                   "On prose: KL the untranslated source cache is better than the "
                   "translated one (closed form − control, paired: 0.0180 [0.0120, "
                   "0.0290]).");
    assert_null(strstr(sentence_of(*at, worse), "prose: KL it is not shown"));
    const char *open = HEAD PAIR GATE("pass", "true") ",\"suites\":[" HITS(
        EACH(UNSURE, UNSURE, UNSURE),
        EACH(UNSURE, UNSURE, UNSURE)) "," LOSSES(EACH(BELOW, BELOW, BELOW),
                                                 EACH(BELOW, BELOW, BELOW)) "]}";
    check_headline(
        *at, open,
        "Not decided: no measure of the mean tells a good cache from a bad one.");
}

/* one of n items, each arm less raw source, wrong donor and zero */
#define OF_ITEMS(name, n, floor, native, closed)                                       \
    "{\"name\":\"" name "\",\"items\":" n ",\"arms\":{\"native\":" native              \
    "},\"closed_form\":" closed ",\"retention\":" floor ",\"floor_normalised\":" floor \
    "}}}"
#define OVER "{\"value\":-0.5,\"low\":-0.6,\"high\":-0.4}"

/* of 19 items nothing follows: not that it serves, nor that a control is better, nor is
 * the mean moved */
static void few_items_decide_nothing(void **at)
{
    const char *few = HEAD PAIR GATE("pass", "true") ",\"suites\":[" OF_ITEMS(
        "a", "19", "0.97", EACH(SURE, SURE, SURE), EACH(SURE, SURE, SURE)) "]}";
    check_headline(*at, few, "Not decided: too few items.");
    check_contains(sentence_of(*at, few), "was measured on too few items");
    check_contains(sentence_of(*at, few),
                   " Too few items to decide (at least 20): a (19 items).");
    check_contains(page_of(*at, parse(*at, few)).at, "no measure of enough items");
    const char *beside = HEAD PAIR GATE("pass", "true") ",\"suites\":[" OF_ITEMS(
        "a", "19", "0.1", EACH(SURE, SURE, SURE),
        EACH(OVER, OVER, OVER)) "," OF_ITEMS("b", "20", "0.97", EACH(SURE, SURE, SURE),
                                             EACH(SURE, SURE, SURE)) "]}";
    check_headline(*at, beside, "The translated cache serves.");
    check_contains(sentence_of(*at, beside), "On 1 measure, B keeps 97.0");
}

/* clear of zero as the only comparison, and as one of three, not of six */
#define OF_ONE "{\"value\":-0.18,\"low\":-0.35,\"high\":-0.01}"
#define OF_THREE "{\"value\":-0.18,\"low\":-0.3,\"high\":-0.04}"

/* with every comparison more one is sooner better by chance */
static void comparisons_are_corrected_for_their_number(void **at)
{
    const char *worse = "The translated cache is worse than a control.";
    const char *in_part = "The translated cache serves in part.";
    check_headline(*at, HEAD PAIR GATE("pass", "true") SUITE("0.95", SURE, OF_ONE) "}",
                   worse);
    const char *three = HEAD PAIR GATE("pass", "true") ",\"suites\":[" OF_ITEMS(
        "a", "50", "0.97", EACH(SURE, SURE, SURE), EACH(OF_ONE, SURE, SURE)) "]}";
    check_headline(*at, three, in_part);
    check_contains(sentence_of(*at, three),
                   " With 3 comparisons with controls, one is sure when its 95 % "
                   "interval, made 1.22 times as wide (Bonferroni), is clear of zero.");
    check_headline(
        *at,
        HEAD PAIR GATE("pass", "true") ",\"suites\":[" OF_ITEMS(
            "a", "50", "0.97", EACH(SURE, SURE, SURE), EACH(OF_THREE, SURE, SURE)) "]}",
        worse);
    const char *six = HEAD PAIR GATE("pass", "true") ",\"suites\":[" OF_ITEMS(
        "a", "50", "0.97", EACH(SURE, SURE, SURE),
        EACH(SURE, SURE, SURE)) "," OF_ITEMS("b", "50", "0.97", EACH(SURE, SURE, SURE),
                                             EACH(OF_THREE, SURE, SURE)) "]}";
    check_headline(*at, six, in_part);
    check_contains(sentence_of(*at, six), " With 6 comparisons with controls");
    check_contains(sentence_of(*at, six), "made 1.35 times as wide");
}

/* what a pair cannot have is in no total */
static void a_gate_that_does_not_apply_counts_nowhere(void **at)
{
    const char *doc = HEAD PAIR
        ",\"gates\":[{\"name\":\"a\",\"verdict\":\"pass\"},{\"name\":\"b\",\"verdict\":"
        "\"inapplicable\",\"required\":false,\"note\":\"maps are told no token\"}]}";
    check_contains(sentence_of(*at, doc), " 1 of 1 gates passed.");
    const kvm_str html = page_of(*at, parse(*at, doc));
    check_contains(html.at, "of 1; 0 failed, 0 not measured; 1 more does not apply");
    check_contains(html.at, "– does not apply");
}

static void a_suite_that_cannot_tell_is_named(void **at)
{
    const char *doc = HEAD PAIR GATE("pass", "true") SUITE("0.95", UNSURE, UNSURE) "}";
    check_contains(sentence_of(*at, doc),
                   "On s not even the target's own cache is shown "
                   "to be better than any control: more items may tell");
}

static void speed_is_said_where_quality_was_measured(void **at)
{
    const char *doc =
        HEAD PAIR ",\"needle\":{\"points\":[{\"tokens\":512},{\"tokens\":1024}]},"
                  "\"timing\":{\"rounds\":10,\"warmups\":2,\"points\":["
                  "{\"tokens\":512,\"speedup\":4},{\"tokens\":1000,\"speedup\":5},"
                  "{\"tokens\":32768,\"speedup\":90,\"rounds\":3}]}}";
    check_contains(
        sentence_of(*at, doc),
        "At 1,000 tokens, up to where quality was measured, the first token "
        "comes 5.00\u00d7 sooner than after a cold prefill; at 32,768 tokens "
        "90.0\u00d7 sooner");
    const kvm_str html = page_of(*at, parse(*at, doc));
    check_contains(html.at, "cold ÷ switch at 1,000 tokens");
    check_contains(html.at, "3 to 10 rounds (the fewest where they take longest)");
}

/* a ratio whose interval holds 1 is no speed-up */
static void no_speed_is_claimed_beyond_its_interval(void **at)
{
#define TIMED(speedup)                                                                 \
    HEAD PAIR                                                                          \
        ",\"timing\":{\"rounds\":10,\"points\":[{\"tokens\":4096,\"speedup\":" speedup \
        "}]}}"
    const char *unsure = TIMED("{\"value\":1.2,\"low\":0.9,\"high\":1.5}");
    check_contains(sentence_of(*at, unsure),
                   "At 4,096 tokens the first token comes neither surely sooner nor "
                   "surely later than after a cold prefill (cold ÷ switch 1.20× "
                   "[0.90, 1.50])");
    check_contains(page_of(*at, parse(*at, unsure)).at,
                   "neither surely sooner nor later");
    check_contains(sentence_of(*at, TIMED("{\"value\":2,\"low\":1.6,\"high\":2.5}")),
                   "comes 2.00× [1.60, 2.50] sooner than after a cold prefill");
    check_contains(sentence_of(*at, TIMED("{\"value\":0.5,\"low\":0.4,\"high\":0.8}")),
                   "comes 2.00× [1.25, 2.50] later than after a cold prefill");
#undef TIMED
}

/* a tile without a figure says why, and nothing of how it was got */
static void empty_tiles_have_their_reasons(void **at)
{
    const char *doc = HEAD PAIR ",\"suites\":[{\"name\":\"a\"," ARMS(
        "\"retention\":0.8,\"gap_recovered\":{\"value\":null,\"note\":\"no gap: "
        "they are alike\"}") "}]}";
    const kvm_str html = page_of(*at, parse(*at, doc));
    check_contains(html.at, "no gap<small>no gap: they are alike</small>");
    check_contains(html.at, "first token</dt><dd class=\"none\">not measured<small>no "
                            "timing section");
    check_contains(html.at, "Sooner from</dt><dd class=\"none\">not measured<small>no "
                            "timing section");
    assert_null(strstr(html.at, "interpolated"));
}

/* a training that gained nothing says so where it is read */
static void a_kept_closed_form_is_said(void **at)
{
    const char *kept = HEAD PAIR ",\"training\":{\"steps\":8,\"best_step\":0},"
                                 "\"recipes\":{\"objects\":[{\"title\":\"K\"}]}}";
    const char *trained = HEAD PAIR ",\"training\":{\"steps\":8,\"best_step\":4}}";
    const kvm_str html = page_of(*at, parse(*at, kept));
    check_contains(html.at, "The closed form was kept.");
    check_contains(html.at, "Training has changed nothing of it");
    assert_null(strstr(page_of(*at, parse(*at, trained)).at, "closed form was kept"));
}

static void items_are_counted_in_words(void **at)
{
    check_contains(
        page_of(*at, parse(*at, HEAD PAIR ",\"needle\":{\"points\":[{\"tokens\":64,"
                                          "\"items\":1}]}}"))
            .at,
        "1 item at each length");
    check_contains(
        page_of(*at, parse(*at, HEAD PAIR ",\"needle\":{\"points\":[{\"tokens\":64,"
                                          "\"items\":2},{\"tokens\":128,"
                                          "\"items\":3}]}}"))
            .at,
        "2 to 3 items at each length");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_rule_of_the_verdict, begin, end),
        cmocka_unit_test_setup_teardown(one_sentence_speaks_of_the_same_measures, begin,
                                        end),
        cmocka_unit_test_setup_teardown(each_control_is_asked_for_itself, begin, end),
        cmocka_unit_test_setup_teardown(few_items_decide_nothing, begin, end),
        cmocka_unit_test_setup_teardown(comparisons_are_corrected_for_their_number,
                                        begin, end),
        cmocka_unit_test_setup_teardown(a_gate_that_does_not_apply_counts_nowhere,
                                        begin, end),
        cmocka_unit_test_setup_teardown(a_suite_that_cannot_tell_is_named, begin, end),
        cmocka_unit_test_setup_teardown(speed_is_said_where_quality_was_measured, begin,
                                        end),
        cmocka_unit_test_setup_teardown(the_measures_are_named_with_their_items, begin,
                                        end),
        cmocka_unit_test_setup_teardown(no_speed_is_claimed_beyond_its_interval, begin,
                                        end),
        cmocka_unit_test_setup_teardown(items_are_counted_in_words, begin, end),
        cmocka_unit_test_setup_teardown(a_kept_closed_form_is_said, begin, end),
        cmocka_unit_test_setup_teardown(empty_tiles_have_their_reasons, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
