/* queue.h - catalogues with jobs in them, for the tests of schema, scheduler and
 * workers. All in the header, since tests of lower floors are linked without these. The
 * includer defines _XOPEN_SOURCE 700 (nftw) first. */
#ifndef KVM_TESTS_SUPPORT_QUEUE_H
#define KVM_TESTS_SUPPORT_QUEUE_H

#include <ftw.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "scheduler/submit.h"
#include "schema/catalogue.h"
#include "schema/job_state.h"
#include "tests/support/check.h"
#include "tests/support/pg_server.h"

/* fails the test with the error's text */
#define MUST(call)                                                                     \
    do {                                                                               \
        kvm_err must_ = {0};                                                           \
        kvm_err *const e = &must_;                                                     \
        if (call)                                                                      \
            fail_msg("%s: %s (%s)", #call, must_.msg, kvm_status_name(must_.code));    \
    } while (0)

static inline int kvm_test_remove(const char *path, const struct stat *st, int type,
                                  struct FTW *f)
{
    (void)st, (void)type, (void)f;
    return remove(path);
}

/* an empty folder build/tmp/<name>-<build>; static text */
static inline const char *kvm_test_home(const char *name)
{
    static char path[256];
    const char *build = getenv("KVM_BUILD"); /* other builds may be tested meanwhile */
    const char *slash = build ? strrchr(build, '/') : NULL;
    snprintf(path, sizeof path, "build/tmp/%s-%.64s", name, slash ? slash + 1 : "");
    nftw(path, kvm_test_remove, 16, FTW_DEPTH | FTW_PHYS);
    MUST(kvm_dir_make(kvm_str_of(path), e));
    return path;
}

/* a graph of `count` nodes of one kind, in a row or all apart; params {"n": i +
 * base} */
static inline kvm_graph kvm_test_graph(kvm_arena *keep, ptrdiff_t count, bool chain,
                                       kvm_kind_id kind, int base)
{
    kvm_node *nodes = kvm_new(keep, kvm_node, count);
    assert_non_null(nodes);
    for (ptrdiff_t i = 0; i < count; i++) {
        json_t *params = kvm_json_own(keep, json_pack("{s:i}", "n", (int)i + base));
        kvm_node_input *in = kvm_new(keep, kvm_node_input, 1);
        assert_true(params && in);
        *in = (kvm_node_input){.name = "before", .node = i - 1, .output = "out"};
        nodes[i] = (kvm_node){.kind = kind,
                              .label = kvm_str_fmt(keep, "step %td", i),
                              .params = params,
                              .inputs = in,
                              .input_count = chain && i > 0};
    }
    return (kvm_graph){.pair = KVM_STR("small-large"),
                       .spec = kvm_str_fmt(keep, "{\"base\":%d}", base),
                       .nodes = nodes,
                       .count = count};
}

/* the state of a job by name, as v_queue has it */
static inline const char *kvm_test_state(kvm_catalogue *c, kvm_arena *keep, int64_t job)
{
    json_t *rows;
    const kvm_view_filter f = {.column = "job", .number = job};
    MUST(kvm_catalogue_view(c, &rows, keep, "v_queue", &f, 1, 0, e));
    assert_int_equal(json_array_size(rows), 1);
    return json_string_value(json_object_get(json_array_get(rows, 0), "state"));
}

/* takes the job that is next; run 0: of any */
static inline kvm_status kvm_test_claim(kvm_catalogue *c, kvm_claim *k, bool *found,
                                        kvm_arena *keep, int64_t worker, int64_t run,
                                        double lease_s, kvm_err *err)
{
    const kvm_want one = {.run = run, .most = 1};
    kvm_claim *claims;
    ptrdiff_t count;
    *found = false;
    TRY(kvm_jobs_take(c, &one, &claims, &count, keep, worker, lease_s, err));
    if (count) *k = *claims;
    *found = count > 0;
    return KVM_OK;
}

/* a job of a run of its own that a worker of its own holds; key: another each time */
static inline kvm_fence kvm_test_hold(kvm_catalogue *c, kvm_arena *keep,
                                      const char *key)
{
    int64_t run, job, worker;
    kvm_claim claim = {0};
    bool found;
    const kvm_run_new r = {
        .team = KVM_STR("t"), .pair = KVM_STR("p"), .spec = KVM_STR("{}"), .key = key};
    MUST(kvm_run_insert(c, &r, &run, e));
    const kvm_job_new j = {.run = run,
                           .kind = 1,
                           .kind_name = "capture",
                           .label = KVM_STR("x"),
                           .params = KVM_STR("{}"),
                           .identity = KVM_STR("{}")};
    MUST(kvm_job_insert(c, &j, &job, e));
    MUST(kvm_worker_register(c, kvm_str_of(key), KVM_STR("h"), KVM_STR("m"), &worker,
                             e));
    MUST(kvm_test_claim(c, &claim, &found, keep, worker, 0, 10, e));
    assert_true(found);
    return claim.fence;
}

/* ... that has succeeded with one artefact */
static inline void kvm_test_commit(kvm_catalogue *c, kvm_arena *keep, const char *sha,
                                   int64_t bytes)
{
    const kvm_fence fence = kvm_test_hold(c, keep, "k");
    const kvm_result_artefact a = {KVM_STR("out"), kvm_str_of(sha), bytes};
    const kvm_result result = {.artefacts = &a, .artefact_count = 1};
    MUST(kvm_job_succeed(c, fence, &result, e));
}

/* ---- one suite for both databases ----
 * kvm_test_both runs a group on SQLite and then on a server; a set-up asks
 * kvm_test_catalogue where its catalogue is. */

static bool kvm_test_on_server;

/* HOME/catalogue.db, or the address of an empty schema; static text */
static inline const char *kvm_test_catalogue(const char *home)
{
    static char path[300];
    if (kvm_test_on_server) return pg_server_schema();
    snprintf(path, sizeof path, "%s/catalogue.db", home);
    return path;
}

static inline int kvm_test_both_(const char *name, const struct CMUnitTest *tests,
                                 size_t count)
{
    char group[100];
    snprintf(group, sizeof group, "%s on SQLite", name);
    int bad = _cmocka_run_group_tests(group, tests, count, NULL, NULL);
    if (!pg_server_start()) return bad;
    kvm_test_on_server = true;
    snprintf(group, sizeof group, "%s on PostgreSQL", name);
    return bad + _cmocka_run_group_tests(group, tests, count, NULL, NULL);
}
#define kvm_test_both(name, tests)                                                     \
    kvm_test_both_(name, tests, sizeof(tests) / sizeof *(tests))

static inline bool kvm_test_is_server(const char *where)
{
    return kvm_str_starts(kvm_str_of(where), KVM_STR("postgres"));
}

static inline sqlite3 *kvm_test_open(const char *path)
{
    sqlite3 *db;
    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL), 0);
    sqlite3_busy_timeout(db, 10000);
    return db;
}

/* the number that a query gives, through a connection of its own; -1: no row */
static inline int64_t kvm_test_number(const char *db_path, const char *sql)
{
    if (kvm_test_is_server(db_path)) return pg_server_sql(db_path, sql);
    sqlite3 *db = kvm_test_open(db_path);
    sqlite3_stmt *st;
    if (sqlite3_prepare_v2(db, sql, -1, &st, NULL)) fail_msg("%s", sqlite3_errmsg(db));
    const int rc = sqlite3_step(st);
    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    const int64_t n = rc == SQLITE_ROW ? sqlite3_column_int64(st, 0) : -1;
    sqlite3_finalize(st);
    sqlite3_close(db);
    return n;
}

/* whether nobody holds the write lock */
static inline bool kvm_test_writable(const char *db_path)
{
    sqlite3 *db = kvm_test_open(db_path);
    sqlite3_busy_timeout(db, 0);
    const bool free_now =
        !sqlite3_exec(db, "BEGIN IMMEDIATE; ROLLBACK", NULL, NULL, NULL);
    sqlite3_close(db);
    return free_now;
}

static inline void kvm_test_sql(const char *db_path, const char *sql)
{
    if (kvm_test_is_server(db_path)) {
        pg_server_sql(db_path, sql);
        return;
    }
    sqlite3 *db = kvm_test_open(db_path);
    if (sqlite3_exec(db, sql, NULL, NULL, NULL)) fail_msg("%s", sqlite3_errmsg(db));
    sqlite3_close(db);
}

#endif
