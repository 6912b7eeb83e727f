/* Lessons out of a calibration's sequences: prefix and what follows, of one split. */
#include "jobs/lessons.h"

#include "tests/support/check.h"

enum { SEQUENCES = 20, TOKENS = 32, AFTER = 8 };

static kvm_arena keep;
static kvm_calibration text; /* SEQUENCES of TOKENS */

static int setup(void **state)
{
    (void)state;
    keep = check_arena((size_t)1 << 24);
    int32_t *ids = kvm_new(&keep, int32_t, SEQUENCES * TOKENS);
    ptrdiff_t *offset = kvm_new(&keep, ptrdiff_t, SEQUENCES + 1);
    assert_true(ids && offset);
    for (int32_t i = 0; i < SEQUENCES * TOKENS; i++) ids[i] = i;
    for (ptrdiff_t s = 0; s <= SEQUENCES; s++) offset[s] = s * TOKENS;
    text = (kvm_calibration){
        .ids = ids, .offset = offset, .sequences = SEQUENCES, .longest = TOKENS};
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    return 0;
}

static ptrdiff_t list(kvm_lesson **l, kvm_split split, ptrdiff_t prefix, ptrdiff_t most)
{
    kvm_err err = {0};
    ptrdiff_t n;
    const kvm_lesson_options o = {
        .seed = 1, .held_out = 0.4, .after = AFTER, .prefix = prefix, .most = most};
    check_ok(kvm_lessons_list(l, &n, &text, split, &o, &keep, &err), &err);
    return n;
}

/* what follows stands right behind the prefix, however short that was asked for */
static void a_prefix_is_capped(void **state)
{
    (void)state;
    static const ptrdiff_t asked[] = {0, 5, TOKENS}, got[] = {24, 5, 24};
    for (size_t i = 0; i < COUNT(asked); i++) {
        kvm_lesson *l;
        const ptrdiff_t n = list(&l, KVM_FIT, asked[i], 0);
        assert_int_equal(kvm_lessons_longest(l, n), got[i]);
        for (ptrdiff_t k = 0; k < n; k++) {
            assert_int_equal(l[k].prefix[0] % TOKENS, 0);
            assert_int_equal(l[k].prefix_n, got[i]);
            assert_ptr_equal(l[k].after, l[k].prefix + got[i]);
            assert_int_equal(l[k].after_n, AFTER);
        }
    }
}

/* no sequence is learned from and validated on; at most so many of each */
static void splits_share_no_sequence(void **state)
{
    (void)state;
    kvm_lesson *fit, *choose, *few;
    const ptrdiff_t n = list(&fit, KVM_FIT, 0, 0), m = list(&choose, KVM_CHOOSE, 0, 0);
    assert_true(n == 12 && m == 4);
    for (ptrdiff_t i = 0; i < n; i++)
        for (ptrdiff_t k = 0; k < m; k++)
            assert_ptr_not_equal(fit[i].prefix, choose[k].prefix);
    assert_int_equal(list(&few, KVM_FIT, 0, 3), 3);
    assert_ptr_equal(few[2].prefix, fit[2].prefix);
}

static void sequences_without_a_prefix_are_none(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_lesson *l;
    ptrdiff_t n;
    const kvm_lesson_options o = {.seed = 1, .held_out = 0.4, .after = TOKENS};
    check_status(KVM_RANGE,
                 kvm_lessons_list(&l, &n, &text, KVM_CHOOSE, &o, &keep, &err), &err);
    check_contains(err.msg, "no sequence of the split to choose has 32 tokens");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prefix_is_capped),
        cmocka_unit_test(splits_share_no_sequence),
        cmocka_unit_test(sequences_without_a_prefix_are_none),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
