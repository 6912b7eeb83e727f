/* Opening, migrating and reading a catalogue; who is refused and why. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "schema/catalogue.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "schema/netfs.h"
#include "tests/support/chaos.h"
#include "tests/support/queue.h"

static kvm_arena keep;
static char path[400];

static int set_up(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "%s", kvm_test_catalogue(kvm_test_home("catalogue")));
    return kvm_arena_init(&keep, 64 << 20, NULL) ? -1 : 0;
}
static int tear_down(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    return 0;
}

/* A count of the tables, or of a table's or view's columns, of that name; NULL: any. */
static int64_t there_are(const char *what, const char *of, const char *name)
{
    const bool columns = !strcmp(what, "column");
    char sql[300];
    if (kvm_test_on_server)
        snprintf(sql, sizeof sql,
                 "SELECT COUNT(*) FROM information_schema.%ss WHERE table_schema = "
                 "current_schema() AND table_name = '%s' AND %s_name LIKE '%s'",
                 what, of, what, name ? name : "%");
    else if (columns)
        snprintf(sql, sizeof sql,
                 "SELECT COUNT(*) FROM pragma_table_info('%s') WHERE name LIKE '%s'",
                 of, name ? name : "%");
    else
        snprintf(sql, sizeof sql,
                 "SELECT COUNT(*) FROM sqlite_master WHERE type='table' AND name='%s'",
                 of);
    return kvm_test_number(path, sql);
}

static void a_new_one_gets_the_schema(void **state)
{
    (void)state;
    kvm_catalogue *c;
    int from = -1, to = -1;
    MUST(kvm_catalogue_open(&c, &keep, kvm_str_of(path), NULL, e));
    MUST(kvm_catalogue_migrate(c, &from, &to, e));
    assert_int_equal(from, kvm_catalogue_newest());
    assert_int_equal(to, kvm_catalogue_newest());
    assert_int_equal(kvm_test_number(path, "SELECT COUNT(*) FROM schema_version"),
                     kvm_catalogue_newest());
    if (!kvm_test_on_server)
        assert_int_equal(kvm_test_number(path, "SELECT journal_mode = 'wal' FROM "
                                               "pragma_journal_mode"),
                         1);
    static const char *const tables[] = {
        "team",   "model",   "text_set", "pair",   "spec",   "run",           "job",
        "dep",    "attempt", "artefact", "metric", "sample", "timing",        "event",
        "outbox", "worker",  "schedule", "tick",   "alert",  "schema_version"};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (there_are("table", tables[i], tables[i]) != 1)
            fail_msg("no table %s", tables[i]);
    kvm_catalogue_close(c);
    kvm_catalogue_close(c); /* twice is fine */
}

static void an_empty_one_is_left_alone_on_request(void **state)
{
    (void)state;
    kvm_catalogue *c;
    kvm_err err = {0};
    const kvm_catalogue_options o = {.no_migrate = true};
    assert_int_equal(kvm_catalogue_open(&c, &keep, kvm_str_of(path), &o, &err),
                     KVM_VERSION);
    assert_non_null(strstr(err.msg, "kvmill migrate"));
}

static void a_newer_schema_is_refused(void **state)
{
    (void)state;
    kvm_catalogue *c;
    kvm_err err = {0};
    MUST(kvm_catalogue_open(&c, &keep, kvm_str_of(path), NULL, e));
    kvm_catalogue_close(c);
    kvm_test_sql(path, "INSERT INTO schema_version VALUES (999, 'x', '9.9', 0)");
    assert_int_equal(kvm_catalogue_open(&c, &keep, kvm_str_of(path), NULL, &err),
                     KVM_VERSION);
    assert_non_null(strstr(err.msg, "newer"));
    chaos_record("10", "an older program meets a newer schema", 1, 0, 0, -1);
}

static void another_programs_database_is_refused(void **state)
{
    (void)state;
    kvm_catalogue *c;
    kvm_err err = {0};
    MUST(kvm_catalogue_open(&c, &keep, kvm_str_of(path), NULL, e));
    kvm_catalogue_close(c);
    kvm_test_sql(path, "DROP TABLE schema_version");
    assert_int_equal(kvm_catalogue_open(&c, &keep, kvm_str_of(path), NULL, &err),
                     KVM_ENVIRONMENT);
    assert_non_null(strstr(err.msg, "not a catalogue"));
}

static void a_file_that_is_no_database_is_refused(void **state)
{
    (void)state;
    kvm_catalogue *c;
    kvm_err no_db = {0};
    char text[4096];
    memset(text, 'x', sizeof text);
    char other[320];
    snprintf(other, sizeof other, "%s/catalogue.txt", kvm_test_home("catalogue"));
    MUST(kvm_file_publish(kvm_str_of(other), (kvm_str){text, sizeof text}, keep, e));
    assert_int_equal(kvm_catalogue_open(&c, &keep, kvm_str_of(other), NULL, &no_db),
                     KVM_DAMAGED);
    assert_non_null(strstr(no_db.msg, "move the file away"));
    const char *once = strstr(no_db.msg, other);
    assert_non_null(once); /* the path is named, and once */
    assert_null(strstr(once + 1, other));
}

/* A place that cannot hold a catalogue is no fault of the work: the message names the
 * way out. */
static void a_folder_in_its_place_is_the_environments_fault(void **state)
{
    (void)state;
    kvm_catalogue *c;
    kvm_err err = {0};
    assert_int_equal(kvm_catalogue_open(&c, &keep, KVM_STR("build/tmp"), NULL, &err),
                     KVM_ENVIRONMENT);
    assert_non_null(strstr(err.msg, "another store"));
}

static void unknown_addresses_are_refused(void **state)
{
    (void)state;
    kvm_catalogue *c;
    assert_int_equal(kvm_catalogue_open(&c, &keep, KVM_STR("oracle://x/y"), NULL, NULL),
                     KVM_UNSUPPORTED);
    assert_int_equal(
        kvm_catalogue_open(&c, &keep, KVM_STR("build/no/such/folder/x.db"), NULL, NULL),
        KVM_ENVIRONMENT);
    assert_int_equal(kvm_catalogue_open(&c, &keep, KVM_STR(""), NULL, NULL), KVM_USAGE);
}

/* Eight processes open the same new catalogue at once, and one of them is killed a
 * little later: each other one ends well, and each migration is applied once. */
enum { STARTERS = 8 };

_Noreturn static void be_starter(int go)
{
    char byte;
    kvm_arena a;
    kvm_catalogue *c;
    kvm_err err = {0};
    if (read(go, &byte, 1) < 0 || kvm_arena_init(&a, 1 << 20, NULL)) _exit(2);
    const kvm_status s = kvm_catalogue_open(&c, &a, kvm_str_of(path), NULL, &err);
    if (s) fprintf(stderr, "# starter: %s\n", err.msg);
    _exit(s ? 1 : 0);
}

static void start_at_once(double kill_after_s)
{
    pid_t pids[STARTERS];
    int go[2];
    assert_int_equal(pipe(go), 0);
    for (int i = 0; i < STARTERS; i++) {
        pids[i] = fork();
        if (pids[i]) continue;
        close(go[1]);
        be_starter(go[0]);
    }
    close(go[0]);
    close(go[1]); /* all read the end of the pipe at once */
    if (kill_after_s > 0) {
        kvm_sleep(kill_after_s);
        kill(pids[0], SIGKILL);
    }
    for (int i = 0; i < STARTERS; i++) {
        int status;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        if (i || kill_after_s <= 0) assert_int_equal(status, 0);
    }
}

static void many_starters_migrate_once(void **state)
{
    const int rounds = chaos_count(3, 40);
    for (int i = 0; i < rounds; i++) {
        kvm_catalogue *c;
        json_t *problems;
        if (i) tear_down(state), set_up(state);
        start_at_once(0.005 * (i % 20));
        assert_int_equal(kvm_test_number(path, "SELECT COUNT(*) FROM schema_version"),
                         kvm_catalogue_newest());
        MUST(kvm_catalogue_open(&c, &keep, kvm_str_of(path), NULL, e));
        MUST(kvm_catalogue_check(c, &problems, &keep, e));
        assert_int_equal(json_array_size(problems), 0);
    }
    chaos_record("10", "eight starters migrate at once, one is killed", rounds, 0, 0,
                 -1);
}

static void every_view_answers_and_names_its_columns(void **state)
{
    (void)state;
    static const char *const views[] = {
        "v_runs",      "v_queue",   "v_attempts", "v_events",      "v_metrics",
        "v_artefacts", "v_quality", "v_ttft",     "v_regressions", "v_pairs",
        "v_lineage",   "v_workers", "v_teams",    "v_schedules"};
    kvm_catalogue *c;
    json_t *rows;
    MUST(kvm_catalogue_open(&c, &keep, kvm_str_of(path), NULL, e));
    for (size_t i = 0; i < sizeof views / sizeof *views; i++) {
        /* the columns that filters may name are the view's own, in number and name */
        kvm_err err = {0};
        const kvm_view_filter bad = {.column = "no_such"};
        MUST(kvm_catalogue_view(c, &rows, &keep, views[i], NULL, 0, 5, e));
        assert_int_equal(json_array_size(rows), 0);
        assert_int_equal(
            kvm_catalogue_view(c, &rows, &keep, views[i], &bad, 1, 0, &err),
            KVM_NOTFOUND);
        const char *list = strstr(err.msg, "it has ");
        assert_non_null(list);
        kvm_str name, rest = kvm_str_of(list + 7);
        int64_t n = 0;
        while (rest.len > 0) {
            char text[64];
            kvm_str_cut(rest, ' ', &name, &rest);
            snprintf(text, sizeof text, "%.*s", KVM_STR_ARG(name));
            const kvm_view_filter f = {.column = text, .text = KVM_STR("x")};
            const kvm_view_filter n_is = {.column = text, .number = 7};
            if (kvm_catalogue_view(c, &rows, &keep, views[i], &f, 1, 0, NULL))
                MUST(kvm_catalogue_view(c, &rows, &keep, views[i], &n_is, 1, 0, e));
            assert_int_equal(there_are("column", views[i], text), 1);
            n++;
        }
        assert_int_equal(there_are("column", views[i], NULL), n);
    }
    kvm_err err = {0};
    assert_int_equal(
        kvm_catalogue_view(c, &rows, &keep, "job; DROP TABLE job", NULL, 0, 0, &err),
        KVM_NOTFOUND);
    assert_non_null(strstr(err.msg, "v_lineage"));
}

/* jobs of three runs, the second on another suite of the same name */
static void unequal_suites_are_not_compared(void **state)
{
    (void)state;
    static const struct {
        const char *sha;
        double value;
    } runs[] = {{"aa", 0.5}, {"bb", 1}, {"aa", 0.625}};
    kvm_catalogue *c;
    json_t *rows;
    MUST(kvm_catalogue_open(&c, &keep, kvm_str_of(path), NULL, e));
    for (int i = 0; i < 3; i++) {
        int64_t run, job;
        char sql[400];
        const kvm_run_new r = {.team = KVM_STR("t"),
                               .pair = KVM_STR("p"),
                               .spec = KVM_STR("{}"),
                               .key = "k"};
        MUST(kvm_run_insert(c, &r, &run, e));
        const kvm_job_new j = {
            .run = run,
            .kind = 5,
            .kind_name = "evaluate",
            .version = 1,
            .label = KVM_STR("evaluate needle"),
            .params = kvm_str_fmt(&keep, "{\"suite\":\"%s\"}", runs[i].sha),
            .identity = KVM_STR("{}")};
        MUST(kvm_job_insert(c, &j, &job, e));
        snprintf(
            sql, sizeof sql,
            "UPDATE job SET state = 'succeeded' WHERE id = %lld; INSERT INTO sample "
            "VALUES (%lld, 'needle', 'native', 'recall', 'x', %g);"
            "INSERT INTO artefact VALUES (%lld, 'items', 'h%d', 7, 0, NULL)",
            (long long)job, (long long)job, runs[i].value, (long long)job, i);
        kvm_test_sql(path, sql);
    }
    MUST(kvm_catalogue_view(c, &rows, &keep, "v_regressions", NULL, 0, 0, e));
    assert_int_equal(json_array_size(rows), 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *row = json_array_get(rows, i);
        const json_t *previous = json_object_get(row, "previous");
        if (json_integer_value(json_object_get(row, "run")) == 3)
            assert_true(json_number_value(previous) == 0.5);
        else
            assert_true(json_is_null(previous));
    }
    MUST(kvm_catalogue_view(c, &rows, &keep, "v_artefacts", NULL, 0, 0, e));
    assert_int_equal(json_array_size(rows), 3);
}

static void the_check_finds_drift_and_damage(void **state)
{
    (void)state;
    kvm_catalogue *c;
    json_t *problems;
    MUST(kvm_catalogue_open(&c, &keep, kvm_str_of(path), NULL, e));
    MUST(kvm_catalogue_check(c, &problems, &keep, e));
    assert_int_equal(json_array_size(problems), 0);
    kvm_test_sql(path, "UPDATE schema_version SET sha = 'other' WHERE version = 1");
    kvm_test_sql(path,
                 kvm_test_on_server
                     ? "ALTER TABLE tick DROP CONSTRAINT tick_schedule_id_fkey; INSERT "
                       "INTO tick(schedule_id, at, until_at) VALUES (77, 0, 0); "
                       "ALTER TABLE tick ADD FOREIGN KEY "
                       "(schedule_id) REFERENCES schedule(id) NOT VALID"
                     : "PRAGMA foreign_keys = OFF; INSERT INTO tick(schedule_id, at, "
                       "until_at) VALUES (77, 0, 0)");
    MUST(kvm_catalogue_check(c, &problems, &keep, e));
    assert_int_equal(json_array_size(problems), 2);
    kvm_test_sql(path, "DROP INDEX job_key_live; DROP VIEW v_lineage");
    MUST(kvm_catalogue_check(c, &problems, &keep, e));
    assert_int_equal(json_array_size(problems), 4);
}

/* The role that reads: made by who may, else the SQL for who may. */
static void dashboards_read_views_and_nothing_else(void **state)
{
    (void)state;
    kvm_catalogue *c;
    kvm_str sql;
    MUST(kvm_catalogue_open(&c, &keep, kvm_str_of(path), NULL, e));
    MUST(kvm_catalogue_lacks_reader(c, &sql, &keep, e));
    assert_int_equal(sql.len, 0);
    if (!kvm_test_on_server) return;
    static const char may[] =
        "SELECT has_table_privilege('kvmill_reader', '%s', 'SELECT')::int";
    char text[200];
    snprintf(text, sizeof text, may, "v_pairs");
    assert_int_equal(kvm_test_number(path, text), 1);
    snprintf(text, sizeof text, may, "job");
    assert_int_equal(kvm_test_number(path, text), 0);

    kvm_test_sql(path, "REVOKE SELECT ON v_runs, v_ttft FROM kvmill_reader");
    MUST(kvm_catalogue_lacks_reader(c, &sql, &keep, e));
    check_contains(sql.at, "v_runs");
    kvm_test_sql(path, sql.at);
    MUST(kvm_catalogue_lacks_reader(c, &sql, &keep, e));
    assert_int_equal(sql.len, 0);
}

static void rollback_takes_all_back(void **state)
{
    (void)state;
    kvm_catalogue *c;
    int64_t run;
    const kvm_run_new r = {
        .team = KVM_STR("t"), .pair = KVM_STR("p"), .spec = KVM_STR("{}"), .key = "k"};
    MUST(kvm_catalogue_open(&c, &keep, kvm_str_of(path), NULL, e));
    MUST(kvm_catalogue_begin(c, e));
    MUST(kvm_run_insert(c, &r, &run, e));
    kvm_catalogue_rollback(c);
    assert_int_equal(kvm_catalogue_commit(c, NULL), KVM_DATABASE);
    assert_int_equal(kvm_test_number(path, "SELECT COUNT(*) FROM run"), 0);
    assert_int_equal(kvm_test_number(path, "SELECT COUNT(*) FROM team"), 0);
}

static void network_file_systems_are_known(void **state)
{
    (void)state;
    assert_string_equal(kvm_netfs_of_magic(0x6969), "NFS");
    assert_string_equal(kvm_netfs_of_magic(0xFF534D42), "CIFS");
    assert_string_equal(kvm_netfs_of_magic(0xFFFFFFFFFF534D42ul),
                        "CIFS"); /* sign bits */
    assert_string_equal(kvm_netfs_of_magic(0x0BD00BD0), "Lustre");
    assert_null(kvm_netfs_of_magic(0xEF53));
    const kvm_str mounts =
        KVM_STR("36 35 0:44 / /mnt/a rw,nosuid - fuse.sshfs host:/x rw,user_id=0\n"
                "37 35 0:45 / /mnt/b rw shared:2 - fuse.ntfs-3g /dev/sdb rw\n"
                "38 35 8:1 / / rw - ext4 /dev/sda1 rw\n");
    assert_string_equal(kvm_netfs_of_mounts(mounts, 0, 44), "sshfs");
    assert_null(kvm_netfs_of_mounts(mounts, 0, 45));
    assert_null(kvm_netfs_of_mounts(mounts, 8, 1));
    assert_null(kvm_netfs_of_mounts(KVM_STR("rubbish"), 0, 44));
    assert_null(kvm_netfs_name(KVM_STR("build")));
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest files[] = {
        T(a_file_that_is_no_database_is_refused),
        T(a_folder_in_its_place_is_the_environments_fault),
        T(unknown_addresses_are_refused),
        T(network_file_systems_are_known),
    };
    const struct CMUnitTest tests[] = {
        T(a_new_one_gets_the_schema),
        T(an_empty_one_is_left_alone_on_request),
        T(a_newer_schema_is_refused),
        T(another_programs_database_is_refused),
        T(many_starters_migrate_once),
        T(every_view_answers_and_names_its_columns),
        T(unequal_suites_are_not_compared),
        T(the_check_finds_drift_and_damage),
        T(dashboards_read_views_and_nothing_else),
        T(rollback_takes_all_back),
    };
    const int bad = cmocka_run_group_tests(files, NULL, NULL);
    return bad + kvm_test_both("catalogue", tests);
}
