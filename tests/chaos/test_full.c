/* Disks that are full or only read, under store, catalogue and logs, while jobs run:
 * the trouble is told and of the class that is tried again, nothing is half-published,
 * and when there is room again all goes on. (queue.md, 5: row 9; a held lock of SQLite
 * is in fault/test_catalogue_fault, each single call that fails in fault/.)
 *
 * The disks are tmpfs of a few MiB, in a mount namespace of this program's own. */
#define _GNU_SOURCE /* unshare; nftw */
#include <errno.h>
#include <sched.h>
#include <sys/mount.h>

#include "tests/chaos/fleet.h"

enum { JOBS = 8 };

static char disk[300], store_home[300];

static bool may_mount(void)
{
    if (unshare(CLONE_NEWNS) == 0 &&
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0)
        return true;
    printf("not ok 1 # SKIP\n# skipped: no file system may be mounted here (%s)\n",
           strerror(errno));
    return false;
}

static void put_disk(const char *where)
{
    snprintf(disk, sizeof disk, "%s", where);
    MUST(kvm_dir_make(kvm_str_of(where), e));
    assert_int_equal(mount("tmpfs", disk, "tmpfs", 0, "size=4m"), 0);
}

static void fill(void)
{
    char path[320];
    static const char block[4096] = "x";
    snprintf(path, sizeof path, "%s/filler", disk);
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    assert_true(fd >= 0);
    while (write(fd, block, sizeof block) > 0) continue;
    assert_int_equal(errno, ENOSPC);
    close(fd);
}
static void make_room(void)
{
    char path[320];
    snprintf(path, sizeof path, "%s/filler", disk);
    assert_int_equal(unlink(path), 0);
}
static void only_read(void)
{
    if (mount(NULL, disk, NULL, MS_REMOUNT | MS_RDONLY, "size=4m"))
        fail_msg("%s: %s", disk, strerror(errno));
}
static void write_again(void)
{
    assert_int_equal(mount(NULL, disk, NULL, MS_REMOUNT, "size=4m"), 0);
}

/* ---- a job that writes nothing but its output ---- */

static kvm_status run(kvm_job *j, kvm_err *err)
{
    enum { BYTES = 64 << 10 };
    int64_t n, ms;
    kvm_str path;
    TRY(kvm_json_i64(kvm_json_get(j->params, j->keep, "n"), &n, err));
    TRY(kvm_json_i64(kvm_json_get(j->params, j->keep, "ms"), &ms, err));
    TRY(fake_wait(j, ms, false, err));
    TRY(kvm_job_path(j, "out.bin", &path, err));
    const kvm_str text = kvm_str_fmt(j->keep, "%*lld", BYTES, (long long)n);
    TRY(kvm_file_publish(path, text, *j->keep, err));
    return j->host->output(j, "out", path, err);
}
static const kvm_job_kind kind = {
    .id = KVM_JOB_CAPTURE, .inputs = fake_inputs, .run = run};
static const kvm_job_kind *kind_of(kvm_kind_id id)
{
    return id == KVM_JOB_CAPTURE ? &kind : NULL;
}

/* ---- the base: where the catalogue is says the test ---- */

static void set_up_base(bool store, bool catalogue)
{
    const char *const home = kvm_test_home("full");
    snprintf(store_home, sizeof store_home, "%s/store", home);
    snprintf(fake_home, sizeof fake_home, "%.255s", store_home);
    if (store) put_disk(store_home);
    MUST(kvm_dir_make(kvm_str_of(store_home), e));
    MUST(kvm_arena_init(&b.keep, 64 << 20, e));
    char db[300];
    snprintf(db, sizeof db, "%s/db", home);
    if (catalogue) put_disk(db);
    MUST(kvm_dir_make(kvm_str_of(db), e));
    snprintf(b.db, sizeof b.db, "%s/catalogue.db", db);
    fake_catalogue = kvm_str_of(b.db);
    MUST(kvm_catalogue_open(&b.c, &b.keep, fake_catalogue, NULL, e));
    MUST(kvm_store_open(&b.store, &b.keep, kvm_str_of(store_home), NULL, e));
}

static int put_down(void **state)
{
    (void)state;
    kvm_arena_free(&b.keep);
    if (disk[0] && umount2(disk, MNT_DETACH)) return -1;
    disk[0] = '\0';
    return 0;
}

static void submit(int ms)
{
    kvm_graph g = kvm_test_graph(&b.keep, JOBS, false, KVM_JOB_CAPTURE, 0);
    for (int i = 0; i < JOBS; i++) fake_do(&g, i, "ok", ms);
    fake_submit(&b, &g, false);
}

/* As long as the trouble lasts, jobs are tried again. */
static kvm_worker_options options(void)
{
    kvm_worker_options o = fake_options(60);
    o.kind_of = kind_of;
    o.policy = (kvm_queue_policy){
        .backoff_s = 0.05, .backoff_most_s = 0.1, .retry_limit = 10000};
    return o;
}

/* A worker that ends by the trouble is started again, as systemd would. */
static void work_to_the_end(pid_t pid)
{
    for (int again = 0; fake_join(pid, 120) == 1; again++) {
        if (again == 20) fail_msg("the worker ends again and again");
        kvm_sleep(0.2);
        pid = fake_worker(options(), NULL);
    }
}

/* Every job has one result, which is whole; nothing else has a name. */
static void all_is_whole(void)
{
    kvm_result_artefact *all;
    ptrdiff_t n;
    json_t *problems;
    kvm_store *fresh; /* has verified nothing yet */
    MUST(kvm_store_open(&fresh, &b.keep, kvm_str_of(store_home), NULL, e));
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM job WHERE state = 'succeeded'"),
                     JOBS);
    assert_int_equal(sound_doubled(&b), 0);
    MUST(kvm_run_artefacts(b.c, 1, &all, &n, &b.keep, e));
    assert_int_equal(n, JOBS);
    for (ptrdiff_t i = 0; i < n; i++) {
        kvm_str path;
        MUST(kvm_store_get(fresh, &path, &b.keep, all[i].sha.at, all[i].bytes, e));
    }
    MUST(kvm_catalogue_check(b.c, &problems, &b.keep, e));
    assert_int_equal(json_array_size(problems), 0);
}

/* jobs that were tried, and shall be again, by that status */
static int64_t tried(kvm_status s)
{
    char sql[120];
    assert_int_equal(kvm_status_action(s), KVM_RETRY);
    snprintf(sql, sizeof sql,
             "SELECT COUNT(*) FROM attempt WHERE outcome = 'retry' AND status = %d",
             (int)s);
    return NUMBER(sql);
}

static void wait_for_trouble(kvm_status s)
{
    for (const double until = kvm_now() + 60; tried(s) == 0; kvm_sleep(0.02))
        if (kvm_now() > until) fail_msg("no job ends by %s", kvm_status_name(s));
}

static void a_store_that_is_full(void **state)
{
    (void)state;
    set_up_base(true, false);
    submit(20);
    MUST(kvm_dir_make(kvm_path_join(&b.keep, kvm_str_of(disk), KVM_STR("work")), e));
    MUST(kvm_dir_make(kvm_path_join(&b.keep, kvm_str_of(disk), KVM_STR("logs")), e));
    fill();
    const pid_t pid = fake_worker(options(), NULL);
    wait_for_trouble(KVM_NOSPACE);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM artefact"), 0);
    assert_int_equal(
        NUMBER("SELECT COUNT(*) FROM job WHERE message LIKE '%space%'") > 0, 1);
    make_room();
    const double room = kvm_now();
    work_to_the_end(pid);
    all_is_whole();
    fleet_record("9", "no space in the store", 1, kvm_now() - room);
}

static void a_store_that_is_only_read(void **state)
{
    (void)state;
    set_up_base(true, false);
    submit(20);
    MUST(kvm_dir_make(kvm_path_join(&b.keep, kvm_str_of(disk), KVM_STR("work")), e));
    MUST(kvm_dir_make(kvm_path_join(&b.keep, kvm_str_of(disk), KVM_STR("logs")), e));
    only_read();
    const pid_t pid = fake_worker(options(), NULL);
    wait_for_trouble(KVM_ENVIRONMENT);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM artefact"), 0);
    write_again();
    const double room = kvm_now();
    work_to_the_end(pid);
    all_is_whole();
    fleet_record("9", "a store on a read-only file system", 1, kvm_now() - room);
}

/* Filled when some jobs are done and one runs: its end cannot be written. The worker
 * says so and ends; what it has left is taken up. */
static void a_catalogue_that_is_full(void **state)
{
    (void)state;
    set_up_base(false, true);
    submit(300);
    pid_t pid = fake_worker(options(), NULL);
    fake_until(b.db, "SELECT COUNT(*) >= 2 FROM job WHERE state = 'succeeded'", 1, 60);
    fill();
    assert_int_equal(fake_join(pid, 120), 1);
    const int64_t done = NUMBER("SELECT COUNT(*) FROM job WHERE state = 'succeeded'");
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM artefact"), done);
    pid = fake_worker(options(), NULL); /* it cannot even say that it is there */
    assert_int_equal(fake_join(pid, 120), 1);
    make_room();
    const double room = kvm_now();
    work_to_the_end(fake_worker(options(), NULL));
    all_is_whole();
    fleet_record("9", "no space for the catalogue", 1, kvm_now() - room);
}

static void a_catalogue_that_is_only_read(void **state)
{
    (void)state;
    set_up_base(false, true);
    submit(20);
    kvm_catalogue_close(b.c); /* nobody holds a file that it writes to */
    only_read();
    kvm_catalogue *c;
    kvm_err err = {0};
    kvm_status s = kvm_catalogue_open(&c, &b.keep, fake_catalogue, NULL, &err);
    int64_t worker;
    if (!s)
        s = kvm_worker_register(c, KVM_STR("w"), KVM_STR("h"), KVM_STR("m"), &worker,
                                &err);
    assert_int_equal(kvm_status_action(s), KVM_RETRY);
    check_contains(err.msg, "catalogue.db");
    assert_int_equal(fake_join(fake_worker(options(), NULL), 120), 1);
    write_again();
    MUST(kvm_catalogue_open(&b.c, &b.keep, fake_catalogue, NULL, e));
    const double room = kvm_now();
    work_to_the_end(fake_worker(options(), NULL));
    all_is_whole();
    fleet_record("9", "a catalogue on a read-only file system", 1, kvm_now() - room);
}

/* What a job says is lost; the job is not. */
static void logs_that_are_full(void **state)
{
    (void)state;
    char logs[320];
    set_up_base(false, false);
    snprintf(logs, sizeof logs, "%s/logs", store_home);
    put_disk(logs);
    fill();
    submit(20);
    assert_int_equal(fake_join(fake_worker(options(), NULL), 120), 0);
    all_is_whole();
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM attempt"), JOBS);
    fleet_record("9", "no space for logs", 1, -1);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_teardown(f, put_down)
    const struct CMUnitTest tests[] = {
        TEST(a_store_that_is_full),     TEST(a_store_that_is_only_read),
        TEST(a_catalogue_that_is_full), TEST(a_catalogue_that_is_only_read),
        TEST(logs_that_are_full),
    };
    if (!may_mount()) return 0;
    kvm_log_set(KVM_LOG_WARN, NULL, NULL);
    return cmocka_run_group_tests_name("full disks", tests, NULL, NULL);
}
