/* Scoring of answers and distributions, against values worked out by hand. */
#include "jobs/scoring.h"

#include <math.h>

#include "tests/support/check.h"

static kvm_answer_score score(const char *text, const char *gold)
{
    kvm_arena a = check_arena(1 << 20);
    kvm_err err = {0};
    kvm_answer_score s;
    const kvm_str accepted[] = {kvm_str_of(gold)};
    check_ok(kvm_score_answer(&s, kvm_str_of(text), accepted, 1, a, &err), &err);
    kvm_arena_free(&a);
    return s;
}

static void case_punctuation_and_articles_do_not_count(void **state)
{
    (void)state;
    const kvm_answer_score s = score("The  Blue, cat.", "blue CAT");
    assert_true(s.exact_match == 1);
    assert_true(s.f1 == 1);
    assert_true(s.gold_in_answer == 1);
}

/* Pairs and figures of tests/golden/scoring.py, which is the published SQuAD and CoQA
 * normalisation in Python. */
static void words_are_those_of_the_squad_scorer(void **state)
{
    (void)state;
    static const struct {
        const char *said, *gold;
        double exact_match, f1;
    } rows[] = {
#include "tests/golden/scoring.inc"
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const kvm_answer_score s = score(rows[i].said, rows[i].gold);
        assert_true(s.exact_match == rows[i].exact_match);
        assert_true(fabs(s.f1 - rows[i].f1) < 1e-12);
    }
    /* containment still finds a word that punctuation touches */
    assert_true(score("The code:7314.", "7314").gold_in_answer == 1);
}

static void overlap_counts_words_as_bags(void **state)
{
    (void)state;
    /* said {x,y,y,z}, gold {y,y,y}: 2 in common; P = 2/4, R = 2/3, F1 = 4/7 */
    const kvm_answer_score s = score("x y y z", "y y y");
    assert_true(s.exact_match == 0);
    assert_float_equal((float)s.f1, 4.0f / 7, 1e-6f);
}

static void gold_must_stand_in_a_row(void **state)
{
    (void)state;
    assert_true(score("it is red and blue", "red blue").gold_in_answer == 0);
    assert_true(score("code 7314 it is", "7314").gold_in_answer == 1);
    assert_true(score("73142", "7314").gold_in_answer == 0);
}

static void empty_texts_are_not_right_by_accident(void **state)
{
    (void)state;
    assert_true(score("", "7").exact_match == 0);
    assert_true(score("", "7").f1 == 0);
    assert_true(score("...", "7").gold_in_answer == 0);
    assert_true(score("words", "...").gold_in_answer == 0); /* gold of no words */
}

static void best_of_several_answers_counts(void **state)
{
    (void)state;
    kvm_arena a = check_arena(1 << 20);
    kvm_err err = {0};
    kvm_answer_score s;
    const kvm_str accepted[] = {KVM_STR("green"), KVM_STR("dark red"), KVM_STR("red")};
    check_ok(kvm_score_answer(&s, KVM_STR("Red"), accepted, 3, a, &err), &err);
    assert_true(s.exact_match == 1);
    kvm_arena_free(&a);
}

static void kl_of_two_coins(void **state)
{
    (void)state;
    const float p[] = {logf(0.75f), logf(0.25f)}, q[] = {0, 0};
    const double kl = 0.75 * log(1.5) + 0.25 * log(0.5);
    assert_true(fabs(kvm_score_kl(p, q, 2) - kl) < 1e-7);
    assert_true(kvm_score_kl(p, p, 2) == 0);
    const float shifted[] = {p[0] + 5, p[1] + 5}; /* softmax does not see a shift */
    assert_true(fabs(kvm_score_kl(shifted, q, 2) - kl) < 1e-6);
}

static void argmax_takes_the_first_of_equals(void **state)
{
    (void)state;
    const float x[] = {1, 3, 3, 2};
    assert_int_equal(kvm_score_argmax(x, 4), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_punctuation_and_articles_do_not_count),
        cmocka_unit_test(words_are_those_of_the_squad_scorer),
        cmocka_unit_test(overlap_counts_words_as_bags),
        cmocka_unit_test(gold_must_stand_in_a_row),
        cmocka_unit_test(empty_texts_are_not_right_by_accident),
        cmocka_unit_test(best_of_several_answers_counts),
        cmocka_unit_test(kl_of_two_coins),
        cmocka_unit_test(argmax_takes_the_first_of_equals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
