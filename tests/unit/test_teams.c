/* Teams, their tokens, and what people ask of jobs and workers. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "schema/teams.h"

#include <math.h>

#include "schema/retention.h"
#include "tests/support/one_run.h"

static int set_up(void **state)
{
    (void)state;
    return one_run_begin("teams");
}

static json_t *row_of(const char *view, const char *column, const char *value)
{
    json_t *rows;
    const kvm_view_filter f = {column, kvm_str_of(value), 0};
    MUST(kvm_catalogue_view(c, &rows, &keep, view, &f, 1, 0, e));
    assert_int_equal(json_array_size(rows), 1);
    return json_array_get(rows, 0);
}

static double number(const json_t *row, const char *name)
{
    return json_number_value(json_object_get(row, name));
}

static void terms_are_given_and_changed(void **state)
{
    (void)state;
    kvm_err err = {0};
    MUST(kvm_team_set(c, KVM_STR("a"), &(kvm_team_terms){2.5, -1, -1}, e));
    MUST(kvm_team_set(c, KVM_STR("a"), &(kvm_team_terms){-1, 4, -1}, e));
    MUST(kvm_team_set(c, KVM_STR("a"), &(kvm_team_terms){-1, -1, 3600}, e));
    const json_t *row = row_of("v_teams", "team", "a");
    assert_true(number(row, "weight") == 2.5);
    assert_true(number(row, "quota_live") == 4);
    assert_true(number(row, "quota_day_s") == 3600);
    assert_true(number(row, "has_token") == 0);
    MUST(kvm_team_pause(c, KVM_STR("a"), true, e));
    assert_true(number(row_of("v_teams", "team", "a"), "paused") == 1);
    assert_int_equal(kvm_team_pause(c, KVM_STR("nobody"), true, &err), KVM_NOTFOUND);
    check_contains(err.msg, "teams list");
    static const char *const bad[] = {"", "-a", ".", "a b", "a/b", "\xc3\xa4"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(kvm_team_check_name(kvm_str_of(bad[i]), NULL), KVM_USAGE);
    MUST(kvm_team_check_name(KVM_STR("Team-1_x.y"), e));
}

static void a_token_admits_and_is_not_kept(void **state)
{
    (void)state;
    kvm_err without = {0}, wrong = {0};
    MUST(kvm_team_admit(c, KVM_STR("t"), KVM_STR(""), e)); /* it has none */
    MUST(kvm_team_admit(c, KVM_STR("nobody"), KVM_STR("x"), e));
    MUST(kvm_team_token(c, KVM_STR("t"), KVM_STR("secret"), e));
    MUST(kvm_team_admit(c, KVM_STR("t"), KVM_STR("secret"), e));
    assert_int_equal(kvm_team_admit(c, KVM_STR("t"), KVM_STR(""), &without), KVM_USAGE);
    check_contains(without.msg, "put it into KVMILL_TOKEN");
    assert_int_equal(kvm_team_admit(c, KVM_STR("t"), KVM_STR("secreT"), &wrong),
                     KVM_USAGE);
    assert_null(strstr(wrong.msg, "secreT"));
    assert_int_equal(
        kvm_test_number(path, "SELECT COUNT(*) FROM team WHERE token_sha = 'secret'"),
        0);
    MUST(kvm_team_token(c, KVM_STR("t"), KVM_STR("other"), e)); /* the old one is out */
    assert_int_equal(kvm_team_admit(c, KVM_STR("t"), KVM_STR("secret"), NULL),
                     KVM_USAGE);
    assert_int_equal(kvm_team_token(c, KVM_STR("nobody"), KVM_STR("x"), NULL),
                     KVM_NOTFOUND);
    kvm_test_sql(path, "UPDATE team SET token_sha = 'damaged'");
    assert_int_equal(kvm_team_admit(c, KVM_STR("t"), KVM_STR("other"), NULL),
                     KVM_USAGE);
}

static void use_is_forgotten_by_half_in_a_week(void **state)
{
    (void)state;
    assert_true(fabs(kvm_decayed(8, 7 * 86400) - 4) < 1e-9);
    assert_true(fabs(kvm_decayed(8, 21 * 86400) - 1) < 1e-9);
    assert_true(kvm_decayed(8, -5) == 8); /* a clock behind the catalogue's */
}

static void jobs_are_paused_and_put_first(void **state)
{
    (void)state;
    const int64_t first = add(1), second = add(2);
    kvm_err err = {0};
    MUST(kvm_jobs_pause(c, (kvm_which){.job = first}, true, e));
    MUST(kvm_jobs_priority(c, (kvm_which){.job = second}, 7, e));
    assert_int_equal(kvm_test_number(path, "SELECT COUNT(*) FROM job WHERE paused = 1"),
                     1);
    assert_int_equal(kvm_test_number(path, "SELECT id FROM job WHERE priority = 7"),
                     second);
    kvm_claim k = claim_for(60);
    assert_int_equal(k.fence.job, second);
    const kvm_result r = with_output(A);
    MUST(kvm_job_succeed(c, k.fence, &r, e));
    MUST(kvm_jobs_pause(c, (kvm_which){.run = run}, false, e));
    MUST(kvm_jobs_priority(c, (kvm_which){.run = run}, 3, e));
    assert_int_equal(kvm_test_number(path, "SELECT COUNT(*) FROM job WHERE paused = 1"),
                     0);
    assert_int_equal(kvm_test_number(path, "SELECT priority FROM run"), 3);
    assert_int_equal(
        kvm_test_number(path, "SELECT COUNT(*) FROM job WHERE priority = 3"),
        1); /* what is done keeps its */
    assert_int_equal(kvm_jobs_pause(c, (kvm_which){.job = second}, true, &err),
                     KVM_USAGE);
    check_contains(err.msg, "is done");
    assert_int_equal(kvm_jobs_pause(c, (kvm_which){.job = 99}, true, NULL),
                     KVM_NOTFOUND);
    assert_int_equal(kvm_jobs_priority(c, (kvm_which){.run = 99}, 1, NULL),
                     KVM_NOTFOUND);
}

static void workers_are_asked_to_stop_by_name_or_host(void **state)
{
    (void)state;
    ptrdiff_t asked = 0;
    int64_t ids[4];
    static const char *const names[] = {"h1/b/p/1", "h1/b/p/2", "h10/b/p/1",
                                        "h1/b/p/gone"};
    for (int i = 0; i < 4; i++)
        MUST(kvm_worker_register(c, kvm_str_of(names[i]), KVM_STR("h"), KVM_STR("m"),
                                 &ids[i], e));
    MUST(kvm_worker_gone(c, ids[3], e));
    MUST(kvm_workers_drain(c, KVM_STR("h1/b/p/2"), &asked, e));
    assert_int_equal(asked, 1);
    MUST(kvm_workers_drain(c, KVM_STR("h1"), &asked, e));
    assert_int_equal(asked, 2);
    assert_true(number(row_of("v_workers", "worker", "h10/b/p/1"), "drain") == 0);
    assert_int_equal(kvm_workers_drain(c, KVM_STR("h"), &asked, NULL), KVM_NOTFOUND);
    assert_int_equal(kvm_workers_drain(c, KVM_STR("h1/b/p/gone"), &asked, NULL),
                     KVM_NOTFOUND);
}

/* a capture that is done, made so many days ago */
static int64_t capture(int n, const char *sha, int days)
{
    char sql[300];
    const int64_t id = add(n);
    kvm_test_sql(path, "UPDATE job SET kind_name = 'capture' WHERE state = 'ready'");
    const kvm_result_artefact a[] = {{KVM_STR("capture"), kvm_str_of(sha), 3},
                                     {KVM_STR("cost"), KVM_STR("c"), 1}};
    const kvm_result r = {.artefacts = a, .artefact_count = 2};
    MUST(kvm_job_succeed(c, claim_for(60).fence, &r, e));
    snprintf(sql, sizeof sql,
             "UPDATE artefact SET created_at = created_at - %d WHERE job_id = %lld",
             days * 86400, (long long)id);
    kvm_test_sql(path, sql);
    return id;
}

static void captures_expire_and_say_so(void **state)
{
    (void)state;
    ptrdiff_t marked = 0;
    bool yes;
    const int64_t old = capture(1, "s1", 31);
    capture(2, "s2", 29);
    MUST(kvm_captures_expire(c, 30 * 86400, &marked, e));
    assert_int_equal(marked, 1);
    assert_int_equal(
        kvm_test_number(path, "SELECT job_id FROM artefact WHERE expired_at > 0"), old);
    assert_int_equal(kvm_test_number(path, "SELECT COUNT(*) FROM event WHERE what = "
                                           "'expired' AND text = 'capture'"),
                     1);
    MUST(kvm_run_expired(c, run, &yes, e));
    assert_true(yes);
    MUST(kvm_captures_expire(c, 30 * 86400, &marked, e));
    assert_int_equal(marked, 0);
    assert_int_equal(
        kvm_test_number(path, "SELECT COUNT(*) FROM v_artefacts WHERE sensitive = 1"),
        2);

    /* an equal step finds no results to reuse, and is done anew; the new rows are
     * young */
    MUST(kvm_run_insert(c,
                        &(kvm_run_new){.team = KVM_STR("t"),
                                       .pair = KVM_STR("p"),
                                       .spec = KVM_STR("{}"),
                                       .key = "k2"},
                        &run, e));
    const int64_t again = add(1);
    kvm_claim k = claim_for(60);
    assert_int_equal(k.fence.job, again);
    assert_int_equal(k.equal, 0);
    const kvm_result r = with_output(A);
    MUST(kvm_job_succeed(c, k.fence, &r, e));
    MUST(kvm_captures_expire(c, 30 * 86400, &marked, e));
    assert_int_equal(marked, 0);
}

static void what_is_at_work_does_not_expire(void **state)
{
    (void)state;
    ptrdiff_t marked = 0;
    capture(1, "s1", 31);
    const int64_t next = add(2); /* the run is open again */
    kvm_test_sql(path, "UPDATE run SET state = 'open'");
    MUST(kvm_captures_expire(c, 30 * 86400, &marked, e));
    assert_int_equal(marked, 0);
    MUST(kvm_job_cancel(c, next, NULL, e));
    /* another run is about to take its results */
    MUST(kvm_run_insert(c,
                        &(kvm_run_new){.team = KVM_STR("t"),
                                       .pair = KVM_STR("p"),
                                       .spec = KVM_STR("{}"),
                                       .key = "k2"},
                        &run, e));
    kvm_test_sql(path, "UPDATE job SET params = '{\"n\":1}' WHERE id = 1");
    add(1);
    const kvm_claim k = claim_for(60);
    assert_int_equal(k.equal, 1);
    MUST(kvm_captures_expire(c, 30 * 86400, &marked, e));
    assert_int_equal(marked, 0);
    MUST(kvm_job_skip(c, k.fence, 1, e));
    MUST(kvm_captures_expire(c, 30 * 86400, &marked, e));
    assert_int_equal(marked, 2); /* the copy has its age */
}

/* On a server a mark can come between a claim and the skip that it leads to. */
static void what_has_expired_is_not_taken_over(void **state)
{
    (void)state;
    kvm_err err = {0};
    ptrdiff_t marked = 0;
    const int64_t old = capture(1, "s1", 31);
    MUST(kvm_run_insert(c,
                        &(kvm_run_new){.team = KVM_STR("t"),
                                       .pair = KVM_STR("p"),
                                       .spec = KVM_STR("{}"),
                                       .key = "k2"},
                        &run, e));
    const int64_t again = add(1);
    kvm_claim k = claim_for(60);
    assert_int_equal(k.equal, old);
    kvm_test_sql(path, "UPDATE artefact SET expired_at = 1 WHERE name = 'capture'");
    assert_int_equal(kvm_job_skip(c, k.fence, old, &err), KVM_NOTFOUND);
    check_contains(err.msg, "have expired");
    assert_int_equal(
        kvm_test_number(path, "SELECT COUNT(*) FROM artefact WHERE expired_at IS NULL"),
        1);
    const kvm_err gone = {.code = KVM_IO, .msg = "gone"}; /* as a worker ends it */
    MUST(kvm_job_fail(c, k.fence, &gone, NULL, NULL, e));
    kvm_test_sql(path, "UPDATE job SET run_after = 0");
    k = claim_for(60);
    assert_int_equal(k.fence.job, again);
    assert_int_equal(k.equal, 0);
    MUST(kvm_captures_expire(c, 30 * 86400, &marked, e));
    assert_int_equal(marked, 0);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(terms_are_given_and_changed),
        T(a_token_admits_and_is_not_kept),
        T(use_is_forgotten_by_half_in_a_week),
        T(jobs_are_paused_and_put_first),
        T(workers_are_asked_to_stop_by_name_or_host),
        T(captures_expire_and_say_so),
        T(what_is_at_work_does_not_expire),
        T(what_has_expired_is_not_taken_over),
    };
    return kvm_test_both("teams", tests);
}
