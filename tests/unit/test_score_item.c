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
    check_ok(kvm_item_tokenise(&ids, &arena, encoder, &s, item, &err), &err);
    check_ok(kvm_cache_new(&cache, &arena, model, ids.prefix_n + ids.longest, &err),
             &err);
    check_ok(kvm_model_forward(model, cache, ids.prefix, ids.prefix_n, NULL, &err),
             &err);
    check_ok(kvm_score_item(&f, &s, item, &ids, model, cache, true, NULL, &arena, NULL,
                            &err),
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
    check_status(KVM_RANGE, kvm_item_tokenise(&ids, &arena, encoder, &s, &empty, &err),
                 &err);
    check_contains(err.msg, "too short to cache");
    err = (kvm_err){0};
    check_status(KVM_RANGE, kvm_item_tokenise(&ids, &arena, encoder, &s, &silent, &err),
                 &err);
    check_contains(err.msg, "no tokens");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lead_is_read_and_not_scored),
        cmocka_unit_test(leads_tell_equal_choices_apart),
        cmocka_unit_test(nothing_to_cache_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
