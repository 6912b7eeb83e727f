/* Garbage collection: what nobody needs goes, what a lease holds or a person may go on
 * with stays, and a kill in the middle is of no matter. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "workers/gc.h"

#include <errno.h>
#include <sys/stat.h>

#include "base/os.h"
#include "tests/support/fake_kinds.h"
#include "tests/support/fault.h"

static fake_base b;

static int set_up(void **state)
{
    (void)state;
    fake_open(&b, "gc");
    return 0;
}
static int tear_down(void **state)
{
    (void)state;
    fake_close(&b);
    return 0;
}

typedef struct tally {
    int found[KVM_SWEPT_COUNT];
    int64_t bytes;
} tally;

static void count(void *ctx, kvm_swept what, const char *path, int64_t bytes)
{
    tally *t = ctx;
    assert_non_null(path);
    t->found[what]++;
    t->bytes += bytes;
}

static tally collect(double age_s, bool dry)
{
    tally t = {0};
    const kvm_sweep o = {age_s, dry, count, &t};
    MUST(kvm_gc(kvm_str_of(fake_home), b.c, b.store, &o, e));
    return t;
}

static kvm_str put(const char *name, const char *content)
{
    const kvm_str path = kvm_str_fmt(&b.keep, "%s/%s", fake_home, name);
    ptrdiff_t end = path.len;
    while (path.at[end - 1] != '/') end--;
    MUST(kvm_dir_make(kvm_str_copy(&b.keep, kvm_str_slice(path, 0, end)), e));
    MUST(kvm_file_publish(path, kvm_str_of(content), b.keep, e));
    return path;
}

/* jobs 1 done, 2 failed, 3 running, 4 ready, each with a folder; 99 is nobody's */
static void five_folders(kvm_str file[5])
{
    kvm_graph g = kvm_test_graph(&b.keep, 4, false, KVM_JOB_CAPTURE, 0);
    kvm_claim claim;
    int64_t worker;
    bool found;
    fake_do(&g, 1, "bad", 0);
    fake_submit(&b, &g, false);
    kvm_test_sql(b.db, "UPDATE job SET run_after = run_after + 1000 WHERE id > 2");
    kvm_worker_options o = fake_options(30);
    o.until_idle = false;
    const pid_t pid = fake_worker(o, NULL);
    fake_until(b.db, "SELECT COUNT(*) FROM job WHERE state IN ('succeeded', 'failed')",
               2, 10);
    kill(pid, SIGTERM);
    fake_join(pid, 10);
    kvm_test_sql(b.db, "UPDATE job SET run_after = 0 WHERE id = 3");
    MUST(
        kvm_worker_register(b.c, KVM_STR("w"), KVM_STR("h"), KVM_STR("m"), &worker, e));
    MUST(kvm_test_claim(b.c, &claim, &found, &b.keep, worker, 0, 100, e));
    assert_true(found && claim.fence.job == 3);
    static const int jobs[] = {1, 2, 3, 4, 99};
    for (int i = 0; i < 5; i++) {
        char name[64];
        snprintf(name, sizeof name, "work/%d/dir/kept", jobs[i]);
        file[i] = put(name, "12345678");
    }
}

static void folders_go_by_what_their_job_is(void **state)
{
    (void)state;
    kvm_str file[5];
    five_folders(file);
    kvm_sleep(1.1);
    tally t = collect(3600, false); /* a job with results needs no folder at any age */
    assert_int_equal(t.found[KVM_SWEPT_FOLDER], 1);
    assert_false(kvm_path_exists(file[0]));
    for (int i = 1; i < 5; i++) assert_true(kvm_path_exists(file[i]));
    t = collect(0, true);
    assert_int_equal(t.found[KVM_SWEPT_FOLDER], 2);
    assert_true(kvm_path_exists(file[1]) && kvm_path_exists(file[4]));
    const int64_t bytes = t.bytes;
    t = collect(0, false);
    assert_int_equal(t.found[KVM_SWEPT_FOLDER], 2);
    assert_true(t.bytes == bytes && bytes >= 16);
    assert_false(kvm_path_exists(file[1]) || kvm_path_exists(file[4]));
    assert_true(kvm_path_exists(file[2]) && kvm_path_exists(file[3]));
    assert_int_equal(collect(0, false).bytes, 0);
    MUST(kvm_job_retry(b.c, 2, e)); /* it begins anew */
    kvm_test_sql(b.db, "UPDATE job SET run_after = 0");
    kvm_worker_stats stats;
    kvm_worker_options o = fake_options(30);
    o.run = 1;
    kvm_test_sql(b.db, "UPDATE job SET lease_until = 0 WHERE state = 'running'");
    MUST(kvm_worker_run(&o, &stats, e));
    assert_int_equal(stats.succeeded, 2);
    assert_int_equal(stats.failed, 1);
}

static void files_half_written_go(void **state)
{
    (void)state;
    put("reports/pair.html", "page");
    put("reports/pair.html.123-4.tmp", "pa");
    put("catalogue.db.bak", "kept");
    put("objects/ab/cd.123-4.tmp", "half");
    kvm_sleep(1.1);
    assert_int_equal(collect(3600, false).bytes, 0);
    const tally t = collect(0, false);
    assert_int_equal(t.found[KVM_SWEPT_TEMPORARY], 2);
    assert_int_equal(t.bytes, 2 + 4);
}

/* killed at every step: what is named stays whole, and the next one goes on */
static void killed_anywhere_it_leaves_a_store_that_works(void **state)
{
    (void)state;
    const kvm_graph g = kvm_test_graph(&b.keep, 2, true, KVM_JOB_CAPTURE, 0);
    fake_submit(&b, &g, false);
    kvm_worker_stats stats;
    const kvm_worker_options o = fake_options(30);
    MUST(kvm_worker_run(&o, &stats, e));
    assert_int_equal(stats.succeeded, 2);
    char sha[65];
    MUST(kvm_store_add(b.store, KVM_STR("nobody names this"), sha, e));
    MUST(kvm_store_add(b.store, KVM_STR("nor this"), sha, e));
    put("work/98/dir/a", "1");
    put("work/99/dir/b", "2");
    put("work/.gc-97/c", "3"); /* another one was killed before */
    kvm_sleep(1.1);
    for (int n = 1; n <= 5; n++) {
        const pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            setenv("KVMILL_FAULT", "in_sweep:1", 1);
            fake_base own = b; /* a connection does not survive the fork */
            if (kvm_catalogue_open(&own.c, &own.keep, kvm_str_of(b.db), NULL, NULL))
                _exit(1);
            tally t = {0};
            const kvm_sweep sweep = {0, false, count, &t};
            _exit(kvm_gc(kvm_str_of(fake_home), own.c, own.store, &sweep, NULL) ? 1
                                                                                : 0);
        }
        assert_int_equal(fake_join(pid, 10), 128 + SIGKILL);
        json_t *rows;
        MUST(kvm_catalogue_view(b.c, &rows, &b.keep, "v_lineage", NULL, 0, 0, e));
        assert_int_equal(json_array_size(rows), 2);
        for (size_t i = 0; i < 2; i++) {
            const json_t *row = json_array_get(rows, i);
            bool there;
            MUST(kvm_store_look(b.store, json_string_value(json_object_get(row, "sha")),
                                json_integer_value(json_object_get(row, "bytes")),
                                &there, e));
            assert_true(there);
        }
    }
    const tally t = collect(0, false);
    for (int i = 0; i < KVM_SWEPT_COUNT; i++) assert_int_equal(t.found[i], 0);
    assert_int_equal(fake_submit(&b, &g, false).outcome, KVM_SUBMIT_DONE);
}

/* Killed between rename and removal, and the job's folder has come back since. */
static void leftovers_are_in_nobodys_way(void **state)
{
    (void)state;
    for (int job = 80; job < 90; job++) { /* in whatever order the folder lists them */
        char name[64];
        snprintf(name, sizeof name, "work/%d/dir/a", job);
        put(name, "12");
        snprintf(name, sizeof name, "work/.gc-%d/dir/b", job);
        put(name, "345");
    }
    kvm_sleep(1.1);
    assert_int_equal(collect(0, true).found[KVM_SWEPT_FOLDER], 20);
    const tally t = collect(0, false);
    assert_int_equal(t.found[KVM_SWEPT_FOLDER], 20);
    assert_int_equal(t.bytes, 10 * (2 + 3));
    assert_int_equal(collect(0, false).found[KVM_SWEPT_FOLDER], 0);
}

static void what_cannot_be_removed_is_not_counted(void **state)
{
    (void)state;
    const kvm_str file = put("work/.gc-90/a", "1"), other = put("work/90/dir/b", "2");
    kvm_sleep(1.1);
    fault_begin(
        (fault_plan){.nth = 1, .error = EACCES, .forever = true, .only = "unlink"});
    const tally t = collect(0, false);
    assert_true(fault_end());
    assert_int_equal(t.found[KVM_SWEPT_FOLDER], 0);
    assert_true(kvm_path_exists(file) && kvm_path_exists(other));
    assert_int_equal(collect(0, false).bytes, 2);
}

/* ---- an old object that nobody names is published again while a sweep is at it
 * ---- */

static char raced[400];  /* its path */
static int stats, races; /* looks at it; times the other was between two steps */

static int stat_then_publish(const char *path, struct stat *st)
{
    const int rc = kvm_os_real.stat(path, st);
    if (!strcmp(path, raced) && stats++ == 0) assert_int_equal(kvm_os->touch(path), 0);
    return rc;
}

static int touch_then_sweep(const char *path)
{
    const int rc = kvm_os_real.touch(path);
    if (!strcmp(path, raced) && races++ == 0) assert_int_equal(unlink(path), 0);
    return rc;
}

static void add_raced(const char *content)
{
    char sha[65];
    MUST(kvm_store_add(b.store, kvm_str_of(content), sha, e));
    snprintf(raced, sizeof raced, "%s/objects/%.2s/%s", fake_home, sha, sha + 2);
    assert_true(kvm_path_exists(kvm_str_of(raced)));
}

static void what_is_published_again_is_not_swept(void **state)
{
    (void)state;
    kvm_os_calls calls = kvm_os_real;
    calls.stat = stat_then_publish;
    stats = 0;
    add_raced("0<>");
    kvm_sleep(1.1);
    kvm_os = &calls;
    const tally t = collect(0, false);
    kvm_os = &kvm_os_real;
    assert_int_equal(t.found[KVM_SWEPT_OBJECT], 0);
    assert_true(stats > 0 && kvm_path_exists(kvm_str_of(raced)));
}

/* the moment in which it is: the job that lost its output to the sweep makes it
 * again */
static void a_swept_output_is_made_again(void **state)
{
    (void)state;
    kvm_os_calls calls = kvm_os_real;
    calls.touch = touch_then_sweep;
    races = 0;
    add_raced("0<>");
    const kvm_graph g = kvm_test_graph(&b.keep, 1, false, KVM_JOB_CAPTURE, 0);
    fake_submit(&b, &g, false);
    kvm_worker_stats done;
    const kvm_worker_options o = fake_options(30);
    kvm_os = &calls;
    MUST(kvm_worker_run(&o, &done, e));
    kvm_os = &kvm_os_real;
    assert_int_equal(races, 1);
    assert_int_equal(done.retried, 1);
    assert_int_equal(done.succeeded, 1);
    assert_true(kvm_path_exists(kvm_str_of(raced)));
    assert_int_equal(kvm_test_number(b.db, "SELECT COUNT(*) FROM v_attempts WHERE "
                                           "message LIKE '%gone from the store%'"),
                     1);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(folders_go_by_what_their_job_is),
        T(files_half_written_go),
        T(killed_anywhere_it_leaves_a_store_that_works),
        T(leftovers_are_in_nobodys_way),
        T(what_cannot_be_removed_is_not_counted),
        T(what_is_published_again_is_not_swept),
        T(a_swept_output_is_made_again),
    };
    return kvm_test_both("gc", tests);
}
