/* What a scheduler asks of the catalogue: who leads, who is there, which hints nobody
 * has followed. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "schema/fleet.h"

#include "base/clock.h"
#include "schema/leader.h"
#include "tests/support/fake_kinds.h"

static fake_base b;

static int set_up(void **state)
{
    (void)state;
    fake_open(&b, "fleet");
    return 0;
}
static int tear_down(void **state)
{
    (void)state;
    fake_close(&b);
    return 0;
}

#define WHO KVM_STR("scheduler")

static bool holds(const char *name, double seconds)
{
    bool leads = false;
    MUST(kvm_leader_hold(b.c, WHO, kvm_str_of(name), seconds, &leads, e));
    return leads;
}
static const char *leader(void)
{
    kvm_str name;
    MUST(kvm_leader_of(b.c, WHO, &name, &b.keep, e));
    return name.at ? name.at : "";
}

static void one_leads_until_its_lease_ends(void **state)
{
    (void)state;
    assert_string_equal(leader(), "");
    assert_true(holds("a", 60));
    assert_false(holds("b", 60));
    assert_true(holds("a", 0.05)); /* renewed, for less */
    assert_string_equal(leader(), "a");
    kvm_sleep(0.1);
    assert_string_equal(leader(), "");
    assert_true(holds("b", 60));
    assert_false(holds("a", 60));
    MUST(kvm_leader_leave(b.c, WHO, KVM_STR("a"), e)); /* not his to leave */
    assert_string_equal(leader(), "b");
    MUST(kvm_leader_leave(b.c, WHO, KVM_STR("b"), e));
    assert_true(holds("a", 60));
}

static void a_copy_is_another_catalogue(void **state)
{
    (void)state;
    char id[3][KVM_CATALOGUE_ID];
    MUST(kvm_catalogue_id(b.c, id[0], e));
    MUST(kvm_catalogue_id(b.c, id[1], e));
    assert_string_equal(id[0], id[1]);
    assert_int_equal(strlen(id[0]), KVM_CATALOGUE_ID - 1);
    kvm_test_sql(b.db, "UPDATE schema_version SET applied_at = applied_at + 0.001");
    MUST(kvm_catalogue_id(b.c, id[2], e));
    assert_string_not_equal(id[0], id[2]);
}

static int64_t worker(const char *name, const char *class, int ranks, int64_t memory)
{
    int64_t id;
    const kvm_want w = {.classes = {kvm_str_of(class), KVM_STR("small")},
                        .class_count = 2,
                        .ranks = ranks,
                        .memory_mib = memory};
    MUST(
        kvm_worker_register(b.c, kvm_str_of(name), KVM_STR("h"), KVM_STR("m"), &id, e));
    MUST(kvm_worker_serves(b.c, id, &w, e));
    return id;
}

static ptrdiff_t look(kvm_fleet_workers **w)
{
    ptrdiff_t n;
    MUST(kvm_fleet_look(b.c, 30, w, &n, &b.keep, e));
    return n;
}

static void who_is_there_is_counted_by_what_it_can_do(void **state)
{
    (void)state;
    kvm_fleet_workers *w;
    assert_int_equal(look(&w), 0);
    worker("a", "cpu", 1, 0);
    worker("b", "cpu", 1, 0);
    worker("c", "gpu", 4, 1000);
    const int64_t gone = worker("d", "cpu", 1, 0);
    MUST(kvm_worker_gone(b.c, gone, e));
    assert_int_equal(look(&w), 2);
    assert_string_equal(w[0].classes.at, "cpu small");
    assert_int_equal(w[0].count, 2);
    assert_int_equal(w[1].ranks, 4);
    assert_int_equal(w[1].memory_mib, 1000);
    kvm_test_sql(b.db, "UPDATE worker SET drain = 1 WHERE name = 'a'");
    kvm_test_sql(b.db, "UPDATE worker SET seen_at = seen_at - 100, started_at = "
                       "started_at - 100 WHERE name = 'c'");
    assert_int_equal(look(&w), 1);
    assert_int_equal(w[0].count, 1);
}

/* A worker whose hands are full says nothing else. */
static void who_holds_a_job_is_there(void **state)
{
    (void)state;
    kvm_fleet_workers *w;
    const kvm_graph g = kvm_test_graph(&b.keep, 1, false, KVM_JOB_CAPTURE, 0);
    fake_submit(&b, &g, false);
    const int64_t id = worker("a", "cpu", 1, 0);
    kvm_claim *claims;
    ptrdiff_t n;
    MUST(kvm_jobs_take(b.c, &(kvm_want){0}, &claims, &n, &b.keep, id, 30, e));
    assert_int_equal(n, 1);
    kvm_test_sql(b.db, "UPDATE worker SET seen_at = 0, started_at = 0");
    assert_int_equal(look(&w), 1);
    MUST(kvm_job_release(b.c, claims[0].fence, NULL, e));
    assert_int_equal(look(&w), 0);
}

static void hints_that_nobody_followed_are_found(void **state)
{
    (void)state;
    const kvm_graph g = kvm_test_graph(&b.keep, 5, false, KVM_JOB_CAPTURE, 0);
    kvm_fleet_sent *sent;
    ptrdiff_t n, count;
    kvm_claim *claims;
    fake_submit(&b, &g, false);
    MUST(kvm_fleet_unclaimed(b.c, -60, &sent, &n, &b.keep, e));
    assert_int_equal(n, 0); /* ready jobs have no hint */
    const kvm_job_batch batch = {3, {{2, 0}, {3, 0}, {5, 0}}};
    MUST(kvm_jobs_dispatched(b.c, &batch, e));
    MUST(kvm_jobs_claim(b.c, &(kvm_job_batch){1, {{3, 0}}}, &claims, &count, &b.keep,
                        worker("a", "cpu", 1, 0), 30, e));
    MUST(kvm_fleet_unclaimed(b.c, 60, &sent, &n, &b.keep, e));
    assert_int_equal(n, 0); /* sent just now */
    MUST(kvm_fleet_unclaimed(b.c, -60, &sent, &n, &b.keep, e));
    assert_int_equal(n, 2);
    assert_int_equal(sent[0].fence.job + sent[1].fence.job, 7);
    assert_string_equal(sent[0].class.at, "cpu");
    assert_int_equal(sent[0].ranks, 1);
}

static void jobs_are_counted_by_class_and_state(void **state)
{
    (void)state;
    const kvm_graph g = kvm_test_graph(&b.keep, 5, false, KVM_JOB_CAPTURE, 0);
    kvm_fleet_jobs *jobs;
    ptrdiff_t n, count;
    kvm_claim *claims;
    fake_submit(&b, &g, false);
    MUST(kvm_jobs_dispatched(b.c, &(kvm_job_batch){1, {{2, 0}}}, e));
    MUST(kvm_jobs_claim(b.c, &(kvm_job_batch){1, {{3, 0}}}, &claims, &count, &b.keep,
                        worker("a", "cpu", 1, 0), 30, e));
    MUST(kvm_fleet_jobs_look(b.c, &jobs, &n, &b.keep, e));
    assert_int_equal(n, 3);
    int64_t ready = 0, other = 0;
    for (ptrdiff_t i = 0; i < n; i++)
        *(kvm_str_eq(jobs[i].state, KVM_STR("ready")) ? &ready : &other) +=
            jobs[i].count;
    assert_int_equal(ready, 3);
    assert_int_equal(other, 2);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(one_leads_until_its_lease_ends),
        TEST(a_copy_is_another_catalogue),
        TEST(who_is_there_is_counted_by_what_it_can_do),
        TEST(who_holds_a_job_is_there),
        TEST(hints_that_nobody_followed_are_found),
        TEST(jobs_are_counted_by_class_and_state),
    };
    return kvm_test_both("fleet", tests);
}
