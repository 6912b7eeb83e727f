/* One item on one cache: what is read, what is scored, what a lead is. */
#include "jobs/score_item.h"

#include <math.h>
#include <string.h>

#include "tests/support/check.h"

static kvm_arena arena;
static kvm_compute *compute;
static kvm_model *model;
static kvm_encoder *encoder;

static int setup(void **state)
{
    (void)state;
    kvm_err err = {0};
    arena = check_arena((size_t)1 << 36);
    check_ok(
        kvm_compute_new(&compute, &arena, kvm_backend_find(KVM_STR("cpu")), 2, &err),
        &err);
    check_ok(
        kvm_model_open(&model, &arena, compute, KVM_STR("tests/zoo/small"), NULL, &err),
        &err);
    check_ok(kvm_encoder_new(&encoder, &arena, kvm_model_tokenizer(model), &err), &err);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&arena);
    return 0;
}

static const kvm_str names[] = {{" Ann", 4}, {" Bob", 4}};
static const kvm_str smiles[] = {{" smiled at the king.", 20},
                                 {" smiled at the king.", 20}};

static double figure(const kvm_figures *f, const char *name)
{
    for (ptrdiff_t i = 0; i < f->n; i++)
        if (strcmp(f->name[i], name) == 0) return f->value[i];
    return NAN;
}

/* the figures of an item of the target's own cache */
static kvm_figures score(const kvm_item *item)
{
    const kvm_suite s = {.kind = KVM_SUITE_MULTIPLE_CHOICE};
    kvm_err err = {0};
    kvm_item_ids ids;
    kvm_cache *cache;
    kvm_figures f;
    check_ok(kvm_item_tokenise(&ids, &arena, encoder, -1, &s, item, &err), &err);
    check_ok(kvm_cache_new(&cache, &arena, model, ids.prefix_n + ids.longest, &err),
             &err);
    check_ok(kvm_model_forward(model, cache, ids.prefix, ids.prefix_n, NULL, &err),
             &err);
    check_ok(kvm_score_item(&f, &s, item, &ids, model, cache, true, NULL, 0, &arena,
                            NULL, &err),
             &err);
    assert_int_equal(kvm_cache_length(cache), ids.prefix_n + ids.feed_n);
    return f;
}

/* A lead is read like a question: what follows it scores the same. */
static void a_lead_is_read_and_not_scored(void **state)
{
    (void)state;
    for (int gold = 0; gold < 2; gold++) {
        const kvm_item led = {.id = KVM_STR("led"),
                              .prefix = KVM_STR("The queen was there, and"),
                              .question = KVM_STR(" then"),
                              .choices = smiles,
                              .leads = names,
                              .choice_count = 2,
                              .answer = gold};
        kvm_item asked = led;
        asked.leads = NULL;
        asked.question = gold ? KVM_STR(" then Bob") : KVM_STR(" then Ann");
        const kvm_figures of_led = score(&led), of_asked = score(&asked);
        const double a = figure(&of_led, "logprob_gold");
        const double b = figure(&of_asked, "logprob_gold");
        assert_true(isfinite(a) && fabs(a - b) < 1e-3 * fabs(b));
    }
}

/* the same words after either name: only the names can make the difference */
static void leads_tell_equal_choices_apart(void **state)
{
    (void)state;
    kvm_item item = {.id = KVM_STR("i"),
                     .prefix = KVM_STR("The queen was there, and"),
                     .question = KVM_STR(" then"),
                     .choices = smiles,
                     .leads = names,
                     .choice_count = 2};
    const kvm_figures first = score(&item);
    item.answer = 1;
    const kvm_figures second = score(&item);
    assert_true(figure(&first, "logprob_gold") != figure(&second, "logprob_gold"));
    assert_true(figure(&first, "accuracy") + figure(&second, "accuracy") == 1);
}

static void nothing_to_cache_is_refused(void **state)
{
    (void)state;
    const kvm_suite s = {.kind = KVM_SUITE_MULTIPLE_CHOICE};
    const kvm_item empty = {.id = KVM_STR("e"),
                            .prefix = KVM_STR(""),
                            .question = KVM_STR("a"),
                            .choices = names,
                            .choice_count = 2};
    kvm_item silent = empty;
    silent.prefix = KVM_STR("The queen was");
    silent.choices = (const kvm_str[]){{"", 0}, {"x", 1}};
    kvm_item_ids ids;
    kvm_err err = {0};
    check_status(KVM_RANGE,
                 kvm_item_tokenise(&ids, &arena, encoder, -1, &s, &empty, &err), &err);
    check_contains(err.msg, "too short to cache");
    err = (kvm_err){0};
    check_status(KVM_RANGE,
                 kvm_item_tokenise(&ids, &arena, encoder, -1, &s, &silent, &err), &err);
    check_contains(err.msg, "no tokens");
}

static kvm_item_ids tokenised(int32_t bos, const char *prefix)
{
    const kvm_suite s = {.kind = KVM_SUITE_PERPLEXITY};
    const kvm_item item = {.id = KVM_STR("i"),
                           .prefix = kvm_str_of(prefix),
                           .question = KVM_STR(" so"),
                           .continuation = KVM_STR(" the queen smiled at the king.")};
    kvm_item_ids ids;
    kvm_err err = {0};
    check_ok(kvm_item_tokenise(&ids, &arena, encoder, bos, &s, &item, &err), &err);
    return ids;
}

/* a prompt with three begin-of-text ids is another prompt */
static void begin_of_text_stands_once(void **state)
{
    (void)state;
    const kvm_tokenizer *t = kvm_model_tokenizer(model);
    const int32_t bos = kvm_tokenizer_special(t, KVM_STR("<|im_start|>"));
    const kvm_item_ids none = tokenised(-1, "The queen was there, and");
    const kvm_item_ids put = tokenised(bos, "The queen was there, and");
    const kvm_item_ids had = tokenised(bos, "<|im_start|>The queen was there, and");
    assert_true(bos >= 0);
    assert_int_equal(put.prefix_n, none.prefix_n + 1);
    assert_int_equal(put.prefix[0], bos);
    assert_memory_equal(put.prefix + 1, none.prefix,
                        (size_t)none.prefix_n * sizeof *none.prefix);
    assert_int_equal(had.prefix_n, put.prefix_n);
    assert_memory_equal(had.prefix, put.prefix,
                        (size_t)put.prefix_n * sizeof *put.prefix);
}

static void one_story_with_more_said_is_no_wrong_donor(void **state)
{
    (void)state;
    const kvm_item_ids a = tokenised(-1, "The queen was there, and");
    const kvm_item_ids more = tokenised(-1, "The queen was there, and she sang");
    const kvm_item_ids other = tokenised(-1, "A king was there, and");
    assert_true(kvm_item_same_prefix(&a, &a));
    assert_true(kvm_item_same_prefix(&a, &more) && kvm_item_same_prefix(&more, &a));
    assert_false(kvm_item_same_prefix(&a, &other));
}

/* Native logits of a model whose vocabulary is padded further, the rest alike: the
 * padding takes no part, so KL is 0 and the arguments agree. */
static void padded_vocabularies_are_compared_where_both_have_ids(void **state)
{
    (void)state;
    enum { PADDING = 40 };
    const kvm_suite s = {.kind = KVM_SUITE_PERPLEXITY};
    const kvm_item_ids ids = tokenised(-1, "The queen was there, and");
    const kvm_item item = {.id = KVM_STR("i")};
    const ptrdiff_t vocab = kvm_model_info_of(model)->vocab, wide = vocab + PADDING;
    const ptrdiff_t n = ids.after_n[0];
    float *narrow = kvm_new(&arena, float, n *vocab),
          *padded = kvm_new(&arena, float, n *wide);
    kvm_err err = {0};
    kvm_cache *cache;
    kvm_figures f;
    check_ok(kvm_cache_new(&cache, &arena, model, ids.prefix_n + ids.longest, &err),
             &err);
    for (int native = 1; native >= 0; native--) {
        kvm_cache_clear(cache);
        check_ok(kvm_model_forward(model, cache, ids.prefix, ids.prefix_n, NULL, &err),
                 &err);
        check_ok(kvm_score_item(&f, &s, &item, &ids, model, cache, native,
                                native ? narrow : padded, native ? vocab : wide, &arena,
                                NULL, &err),
                 &err);
        for (ptrdiff_t t = 0; native && t < n; t++) {
            memcpy(padded + t * wide, narrow + t * vocab,
                   (size_t)vocab * sizeof *padded);
            for (ptrdiff_t i = vocab; i < wide; i++) padded[t * wide + i] = 50;
        }
    }
    assert_true(n > 3);
    assert_true(figure(&f, "kl") == 0);
    assert_true(figure(&f, "first_kl") == 0);
    assert_true(figure(&f, "agreement") == 1);
}

/* Per byte of the words: the blank that joins a choice to its question is no byte of
 * it */
static void a_choice_is_as_long_as_its_words(void **state)
{
    (void)state;
    static const kvm_str choices[] = {{" he", 3}, {" told a story", 13}};
    kvm_item item = {.id = KVM_STR("i"),
                     .prefix = KVM_STR("And he said unto them,"),
                     .question = KVM_STR(" I am"),
                     .choices = choices,
                     .choice_count = 2};
    double sum[2];
    for (item.answer = 0; item.answer < 2; item.answer++) {
        const kvm_figures f = score(&item);
        sum[item.answer] = figure(&f, "logprob_gold");
    }
    assert_true(sum[0] / 3 > sum[1] / 13); /* with the blank the short one would win */
    assert_true(sum[0] / 2 < sum[1] / 12);
    item.answer = 1;
    const kvm_figures f = score(&item);
    assert_true(figure(&f, "accuracy_norm") == 1);
}

/* what is said after the prefix, its figures, and how many tokens are read for it */
static kvm_str answer(const kvm_item *item, kvm_figures *f, ptrdiff_t *tokens)
{
    const kvm_suite s = {.kind = KVM_SUITE_GENERATION, .max_new_tokens = 40};
    kvm_err err = {0};
    kvm_item_ids ids;
    kvm_cache *cache;
    kvm_answer said;
    check_ok(kvm_item_tokenise(&ids, &arena, encoder, -1, &s, item, &err), &err);
    check_ok(kvm_cache_new(&cache, &arena, model, ids.prefix_n + ids.longest, &err),
             &err);
    check_ok(kvm_model_forward(model, cache, ids.prefix, ids.prefix_n, NULL, &err),
             &err);
    check_ok(kvm_score_item(f, &s, item, &ids, model, cache, false, NULL, 0, &arena,
                            &said, &err),
             &err);
    *tokens = kvm_cache_length(cache) - ids.prefix_n - ids.feed_n;
    return said.text;
}

/* a stop string of any place and length, across tokens too; the first of several */
static void an_answer_ends_before_the_first_stop_string(void **state)
{
    (void)state;
    kvm_item item = {.id = KVM_STR("i"),
                     .prefix = KVM_STR("And the king said unto the"),
                     .question = KVM_STR(" queen, Behold"),
                     .choices = (const kvm_str[]){{"x", 1}},
                     .choice_count = 1};
    kvm_figures f;
    ptrdiff_t all, some;
    const kvm_str whole = answer(&item, &f, &all);
    assert_true(whole.len > 20 && all > 8);
    assert_true(figure(&f, "answer_tokens") == (double)all);
    for (ptrdiff_t n = 1; n <= 9; n += 4)
        for (ptrdiff_t at = 0; at + n < whole.len / 2; at += 3) {
            const kvm_str stop[] = {KVM_STR("never said"),
                                    kvm_str_slice(whole, at, at + n)};
            const ptrdiff_t first = kvm_str_find(whole, stop[1]);
            const kvm_str before = kvm_str_slice(whole, 0, first);
            item.stop = stop;
            item.stop_count = 2;
            item.choices = &before;
            const kvm_str said = answer(&item, &f, &some);
            const bool blank = kvm_str_trim(before).len == 0;
            assert_true(kvm_str_eq(said, before));
            assert_true(some < all &&
                        (figure(&f, "f1") == 1 || kvm_str_trim(before).len < 4));
            /* of the text before it, however many tokens the stop string took */
            assert_true(figure(&f, "answer_tokens") <= (double)some);
            assert_true(figure(&f, "answer_tokens") <= (double)before.len);
            assert_int_equal(figure(&f, "answer_empty") == 1, blank);
            assert_int_equal(figure(&f, "answer_blank") == 1,
                             before.len > 0 && before.at[0] == ' ');
        }
    static const kvm_str never[] = {{"never said", 10}};
    item.stop = item.choices = never;
    item.stop_count = 1;
    assert_true(kvm_str_eq(answer(&item, &f, &some), whole));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lead_is_read_and_not_scored),
        cmocka_unit_test(leads_tell_equal_choices_apart),
        cmocka_unit_test(nothing_to_cache_is_refused),
        cmocka_unit_test(begin_of_text_stands_once),
        cmocka_unit_test(one_story_with_more_said_is_no_wrong_donor),
        cmocka_unit_test(padded_vocabularies_are_compared_where_both_have_ids),
        cmocka_unit_test(a_choice_is_as_long_as_its_words),
        cmocka_unit_test(an_answer_ends_before_the_first_stop_string),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
