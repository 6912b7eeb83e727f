/* A catalogue moved from one database to another and back. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "schema/copy.h"

#include "tests/support/one_run.h"

static char other[400];

static const char *const table_names[] = {
#define X(name, key, numbered, which) #name,
#include "schema/tables.def"
#undef X
};

/* One row in every table at least: jobs that were done, skipped and failed, results,
 * texts of all kinds, rows on more than one page. */
static void fill(void)
{
    const int64_t first = add(1), twin = add(1);
    const kvm_job_dep d = {KVM_STR("in"), first, KVM_STR("out")};
    add_kind(1, 2, &d, 1);
    const kvm_result_metric m = {KVM_STR("r2"), KVM_STR("{}"), 1.0 / 3};
    const double seconds[] = {0.1, 1e-300};
    const kvm_result_timing t = {KVM_STR("cold"), KVM_STR("ttft"), 512, seconds, 2};
    enum { SAMPLES = 1203 };
    static char items[SAMPLES][16];
    static kvm_result_sample samples[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) {
        snprintf(items[i], sizeof items[i], "%s%d", i % 2 ? "i" : "Ä_", i);
        samples[i] = (kvm_result_sample){KVM_STR("s"), KVM_STR("a"), KVM_STR("em"),
                                         kvm_str_of(items[i]), i / 7.0};
    }
    const kvm_result_event ev = {KVM_STR("note"), KVM_STR("cut \xe2\x86")};
    kvm_result r = with_output(A);
    r.metrics = &m, r.metric_count = 1, r.timings = &t, r.timing_count = 1;
    r.samples = samples, r.sample_count = SAMPLES, r.events = &ev, r.event_count = 1;
    kvm_claim k = claim_for(60);
    MUST(kvm_job_succeed(c, k.fence, &r, e));
    k = claim_for(60);
    assert_int_equal(k.fence.job, twin);
    MUST(kvm_job_skip(c, k.fence, first, e));
    kvm_test_sql(
        path, "INSERT INTO model(name, fingerprint, created_at) VALUES ('m', 'f', 1);"
              "INSERT INTO text_set(name, sha, created_at) VALUES ('t', 's', 2);"
              "INSERT INTO schedule(team_id, name, file, cron, zone, catch_up, again, "
              "paused, since_at, created_at) "
              "VALUES (1, 'n', '/s', '* *', 'UTC', 'one', 1, 0, 3, 3);"
              "INSERT INTO tick VALUES (1, 1.5, 2, 3, 0, '');"
              "INSERT INTO alert(run_id, at, what, text) VALUES (1, 2, 'w', '');"
              "INSERT INTO leader VALUES ('scheduler', 'h', 4)");
}

static int set_up(void **state)
{
    (void)state;
    const int s = one_run_begin("copy");
    if (s) return s;
    /* the other one is of the other kind */
    kvm_test_on_server = !kvm_test_on_server;
    snprintf(other, sizeof other, "%s", kvm_test_catalogue(kvm_test_home("copy_to")));
    kvm_test_on_server = !kvm_test_on_server;
    fill();
    return 0;
}

static int64_t rows_of(const char *where, const char *table)
{
    char sql[100];
    snprintf(sql, sizeof sql, "SELECT COUNT(*) FROM %s", table);
    return kvm_test_number(where, sql);
}

static kvm_status copy_to(const char *where, kvm_err *err)
{
    kvm_catalogue *to;
    kvm_copied *tables;
    ptrdiff_t count = 0;
    MUST(kvm_catalogue_open(&to, &keep, kvm_str_of(where), NULL, e));
    const kvm_status s = kvm_catalogue_copy(c, to, &tables, &count, &keep, err);
    kvm_catalogue_close(to);
    if (!s) assert_int_equal(count, COUNT(table_names) - 1); /* job is two parts */
    return s;
}

static void all_of_it_goes_over_and_on(void **state)
{
    (void)state;
    MUST(copy_to(other, e));
    for (size_t i = 0; i < COUNT(table_names); i++) {
        assert_true(rows_of(path, table_names[i]) > 0);
        assert_int_equal(rows_of(other, table_names[i]), rows_of(path, table_names[i]));
    }
    assert_int_equal(kvm_test_number(other, "SELECT COUNT(*) FROM metric WHERE value = "
                                            "1.0 / 3"),
                     1);
    check_refused(KVM_EXISTS, "not empty", copy_to(other, &no));

    /* numbers go on behind those that came over, and so does the work */
    const int64_t last = kvm_test_number(path, "SELECT MAX(id) FROM job");
    kvm_catalogue *before = c;
    MUST(kvm_catalogue_open(&c, &keep, kvm_str_of(other), NULL, e));
    assert_int_equal(add(9), last + 1);
    MUST(kvm_job_succeed(c, claim_for(60).fence, NULL, e));
    kvm_catalogue_close(c);
    c = before;
}

static void a_copy_is_whole_or_nothing(void **state)
{
    (void)state;
    kvm_catalogue *to;
    MUST(kvm_catalogue_open(&to, &keep, kvm_str_of(other), NULL, e));
    kvm_catalogue_close(to);
    kvm_test_sql(other, "DROP TABLE alert");
    kvm_test_sql(other, "CREATE TABLE alert (id BIGINT, run_id BIGINT, at DOUBLE "
                        "PRECISION, what TEXT CHECK (what <> 'w'), text TEXT, "
                        "closed_at DOUBLE PRECISION)");
    assert_int_equal(copy_to(other, NULL), KVM_MISMATCH);
    for (size_t i = 0; i < COUNT(table_names); i++)
        assert_int_equal(rows_of(other, table_names[i]), 0);
}

static void running_jobs_stay_where_they_are(void **state)
{
    (void)state;
    claim_for(60);
    check_refused(KVM_BUSY, "stop the workers", copy_to(other, &no));
}

static void no_table_is_forgotten(void **state)
{
    (void)state;
    char sql[2000] = "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table' AND name "
                     "NOT IN ('schema_version'";
    if (kvm_test_on_server) return;
    for (size_t i = 0; i < COUNT(table_names); i++) {
        const size_t n = strlen(sql);
        snprintf(sql + n, sizeof sql - n, ", '%s'", table_names[i]);
    }
    const size_t n = strlen(sql);
    snprintf(sql + n, sizeof sql - n, ")");
    assert_int_equal(kvm_test_number(path, sql), 0);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(all_of_it_goes_over_and_on),
        T(a_copy_is_whole_or_nothing),
        T(running_jobs_stay_where_they_are),
        T(no_table_is_forgotten),
    };
    if (!pg_server_start()) return 0;
    return kvm_test_both("copy", tests);
}
