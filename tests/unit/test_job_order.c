/* Who is next: the rule on candidates alone, without a catalogue. */
#include "schema/job_order.h"

#include <math.h>
#include <string.h>

#include "tests/support/check.h"

enum { MOST = KVM_BATCH_MOST };

static kvm_job_candidate of(int64_t job, ptrdiff_t team, int64_t priority, bool small)
{
    return (kvm_job_candidate){
        .fence = {job, 1}, .team = team, .priority = priority, .small = small};
}

/* "3 1 2": the jobs of the batch that these candidates make */
static void assert_batch(kvm_job_candidate *c, ptrdiff_t n, kvm_team_use *teams,
                         ptrdiff_t most, const char *jobs)
{
    kvm_job_batch b;
    char text[400] = "";
    kvm_jobs_order(c, n, teams, most, &b);
    for (ptrdiff_t i = 0; i < b.count; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%lld",
                 i ? " " : "", (long long)b.jobs[i].job);
    assert_string_equal(text, jobs);
}

static void priority_then_share_then_age(void **state)
{
    (void)state;
    kvm_team_use teams[] = {{.id = 1, .weight = 1, .used_s = 100},
                            {.id = 2, .weight = 1, .used_s = 50}};
    kvm_job_candidate c[] = {of(1, 0, 0, true), of(2, 1, 0, true), of(3, 1, 0, true),
                             of(4, 0, 5, true), of(5, 0, 0, true)};
    assert_batch(c, 5, teams, MOST, "4 2 3 1 5");
}

static void a_heavier_team_may_use_more(void **state)
{
    (void)state;
    kvm_team_use teams[] = {{.id = 1, .weight = 3, .used_s = 100},
                            {.id = 2, .weight = 1, .used_s = 50}};
    kvm_job_candidate c[] = {of(2, 1, 0, true), of(7, 0, 0, true)};
    assert_batch(c, 2, teams, MOST, "7 2");
    assert_true(kvm_team_share(&(kvm_team_use){.used_s = 1}) == (double)INFINITY);
}

static void what_is_running_counts(void **state)
{
    (void)state;
    kvm_team_use teams[] = {{.id = 1, .weight = 1, .live = 1, .live_s = 10},
                            {.id = 2, .weight = 1}};
    kvm_job_candidate c[] = {of(1, 0, 0, true), of(2, 1, 0, true)};
    assert_batch(c, 2, teams, MOST, "2 1");
}

static void a_big_job_goes_alone(void **state)
{
    (void)state;
    kvm_team_use team = {.id = 1, .weight = 1};
    kvm_job_candidate first[] = {of(1, 0, 0, false), of(2, 0, 0, true)};
    assert_batch(first, 2, &team, MOST, "1");
    kvm_job_candidate behind[] = {of(1, 0, 0, true), of(2, 0, 0, false),
                                  of(3, 0, 0, true)};
    assert_batch(behind, 3, &team, MOST, "1 3");
}

static void a_batch_has_an_end(void **state)
{
    (void)state;
    kvm_team_use team = {.id = 1, .weight = 1};
    kvm_job_candidate c[] = {of(1, 0, 0, true), of(2, 0, 0, true), of(3, 0, 0, true)};
    assert_batch(c, 3, &team, 2, "1 2");
    assert_batch(c, 0, &team, 2, "");
}

static void equal_steps_are_not_in_one_batch(void **state)
{
    (void)state;
    kvm_team_use team = {.id = 1, .weight = 1};
    kvm_job_candidate c[] = {of(1, 0, 0, true), of(2, 0, 0, true), of(3, 0, 0, true),
                             of(4, 0, 0, true)};
    c[0].key = c[2].key = KVM_STR("a"); /* the others are timed */
    assert_batch(c, 4, &team, MOST, "1 2 4");
}

static void a_quota_leaves_so_much_room(void **state)
{
    (void)state;
    kvm_team_use teams[] = {{.id = 1, .weight = 1, .live = 3, .quota_live = 5},
                            {.id = 2, .weight = 1, .used_s = 9}};
    kvm_job_candidate c[] = {of(1, 0, 0, true), of(2, 0, 0, true), of(3, 0, 0, true),
                             of(4, 1, 0, true)};
    assert_batch(c, 4, teams, MOST, "1 2 4");
    assert_int_equal(kvm_team_room(&teams[0]), 0);
    assert_true(kvm_team_room(&teams[1]) > 1000);
    const kvm_team_use day = {
        .weight = 1, .quota_day_s = 100, .day_s = 60, .live_s = 40};
    assert_int_equal(kvm_team_room(&day), 0);
}

static void a_full_team_at_the_head_is_passed_over(void **state)
{
    (void)state;
    kvm_team_use teams[] = {{.id = 1, .weight = 1, .live = 5, .quota_live = 5},
                            {.id = 2, .weight = 1, .used_s = 9}};
    kvm_job_candidate c[] = {of(1, 0, 0, false), of(2, 1, 0, true), of(3, 1, 0, true)};
    assert_batch(c, 3, teams, MOST, "2 3");
    teams[1].live = 0;
    kvm_job_candidate d[] = {of(1, 0, 0, true), of(2, 1, 0, false), of(3, 1, 0, true)};
    assert_batch(d, 3, teams, MOST, "2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(priority_then_share_then_age),
        cmocka_unit_test(a_heavier_team_may_use_more),
        cmocka_unit_test(what_is_running_counts),
        cmocka_unit_test(a_big_job_goes_alone),
        cmocka_unit_test(a_batch_has_an_end),
        cmocka_unit_test(equal_steps_are_not_in_one_batch),
        cmocka_unit_test(a_quota_leaves_so_much_room),
        cmocka_unit_test(a_full_team_at_the_head_is_passed_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
