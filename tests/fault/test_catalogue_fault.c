/* Disks that fail at the nth call, and writers that hold the lock: the catalogue and
 * the store stay sound, nothing is half published, and the error is one after which a
 * job is tried again. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "tests/support/fault.h"

#include <dirent.h>
#include <errno.h>

#include "base/hash.h"
#include "tests/support/chaos.h"
#include "tests/support/fake_kinds.h"

static kvm_arena keep;
static char db[400];

static void fresh_home(void)
{
    snprintf(fake_home, sizeof fake_home, "%s", kvm_test_home("catalogue_fault"));
    snprintf(db, sizeof db, "%s/catalogue.db", fake_home);
}

/* ---- a file system under SQLite whose nth call fails ---- */

typedef struct ffile {
    sqlite3_file base;
    sqlite3_file *real;
} ffile;

static sqlite3_vfs *real_vfs, fault_vfs;
static long calls, failing; /* failing: which call, from 1; 0: none */
static int with;            /* SQLITE_FULL or SQLITE_IOERR */
static bool fired;

static bool fails(void)
{
    if (++calls != failing) return false;
    return fired = true;
}
static sqlite3_file *real_of(sqlite3_file *f)
{
    return ((ffile *)f)->real;
}
#define PASS(f, method, ...) real_of(f)->pMethods->method(real_of(f), __VA_ARGS__)

static int f_close(sqlite3_file *f)
{
    const int rc = real_of(f)->pMethods ? real_of(f)->pMethods->xClose(real_of(f)) : 0;
    sqlite3_free(real_of(f));
    return rc;
}
static int f_read(sqlite3_file *f, void *to, int n, sqlite3_int64 at)
{
    return fails() ? SQLITE_IOERR_READ : PASS(f, xRead, to, n, at);
}
static int f_write(sqlite3_file *f, const void *from, int n, sqlite3_int64 at)
{
    return fails() ? (with == SQLITE_FULL ? SQLITE_FULL : SQLITE_IOERR_WRITE)
                   : PASS(f, xWrite, from, n, at);
}
static int f_truncate(sqlite3_file *f, sqlite3_int64 n)
{
    return fails() ? SQLITE_IOERR_TRUNCATE : PASS(f, xTruncate, n);
}
static int f_sync(sqlite3_file *f, int flags)
{
    return fails() ? SQLITE_IOERR_FSYNC : PASS(f, xSync, flags);
}
static int f_size(sqlite3_file *f, sqlite3_int64 *n)
{
    return fails() ? SQLITE_IOERR_FSTAT : PASS(f, xFileSize, n);
}
static int f_lock(sqlite3_file *f, int how)
{
    return PASS(f, xLock, how);
}
static int f_unlock(sqlite3_file *f, int how)
{
    return PASS(f, xUnlock, how);
}
static int f_reserved(sqlite3_file *f, int *out)
{
    return PASS(f, xCheckReservedLock, out);
}
static int f_control(sqlite3_file *f, int op, void *arg)
{
    return PASS(f, xFileControl, op, arg);
}
static int f_sector(sqlite3_file *f)
{
    return real_of(f)->pMethods->xSectorSize(real_of(f));
}
static int f_device(sqlite3_file *f)
{
    return real_of(f)->pMethods->xDeviceCharacteristics(real_of(f));
}
static int f_shm_map(sqlite3_file *f, int page, int size, int extend, void volatile **p)
{
    return fails() ? SQLITE_IOERR_SHMMAP : PASS(f, xShmMap, page, size, extend, p);
}
static int f_shm_lock(sqlite3_file *f, int offset, int n, int flags)
{
    return PASS(f, xShmLock, offset, n, flags);
}
static void f_shm_barrier(sqlite3_file *f)
{
    real_of(f)->pMethods->xShmBarrier(real_of(f));
}
static int f_shm_unmap(sqlite3_file *f, int delete)
{
    return PASS(f, xShmUnmap, delete);
}

static const sqlite3_io_methods f_methods = {
    .iVersion = 2,
    .xClose = f_close,
    .xRead = f_read,
    .xWrite = f_write,
    .xTruncate = f_truncate,
    .xSync = f_sync,
    .xFileSize = f_size,
    .xLock = f_lock,
    .xUnlock = f_unlock,
    .xCheckReservedLock = f_reserved,
    .xFileControl = f_control,
    .xSectorSize = f_sector,
    .xDeviceCharacteristics = f_device,
    .xShmMap = f_shm_map,
    .xShmLock = f_shm_lock,
    .xShmBarrier = f_shm_barrier,
    .xShmUnmap = f_shm_unmap,
};

static int f_open(sqlite3_vfs *v, const char *name, sqlite3_file *f, int flags,
                  int *out)
{
    ffile *ff = (ffile *)f;
    (void)v;
    f->pMethods = NULL;
    if (fails()) return SQLITE_CANTOPEN;
    ff->real = sqlite3_malloc(real_vfs->szOsFile);
    if (!ff->real) return SQLITE_NOMEM;
    memset(ff->real, 0, (size_t)real_vfs->szOsFile);
    const int rc = real_vfs->xOpen(real_vfs, name, ff->real, flags, out);
    if (rc)
        sqlite3_free(ff->real);
    else
        f->pMethods = &f_methods;
    return rc;
}
static int f_delete(sqlite3_vfs *v, const char *name, int sync)
{
    (void)v;
    return fails() ? SQLITE_IOERR_DELETE : real_vfs->xDelete(real_vfs, name, sync);
}

static void fault_vfs_on(long nth, int code)
{
    real_vfs = sqlite3_vfs_find("unix");
    fault_vfs = *real_vfs;
    fault_vfs.zName = "fault";
    fault_vfs.szOsFile = sizeof(ffile);
    fault_vfs.xOpen = f_open;
    fault_vfs.xDelete = f_delete;
    fault_vfs.pNext = NULL;
    calls = 0;
    failing = nth;
    with = code;
    fired = false;
    sqlite3_vfs_register(&fault_vfs, 1);
}
static void fault_vfs_off(void)
{
    failing = 0;
    sqlite3_vfs_unregister(&fault_vfs);
    sqlite3_vfs_register(real_vfs, 1);
}

static const char *const A =
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

/* From nothing to a succeeded and a failed job; the first error ends it. */
static kvm_status a_life(kvm_arena *a, kvm_err *err)
{
    kvm_catalogue *c;
    kvm_store *store;
    kvm_submitted s;
    kvm_claim k = {0};
    bool found = false;
    int64_t worker;
    const kvm_graph g = kvm_test_graph(a, 3, true, KVM_JOB_CAPTURE, 0);
    const kvm_result_artefact out = {KVM_STR("out"), kvm_str_of(A), 3};
    const kvm_result r = {.artefacts = &out, .artefact_count = 1};
    const kvm_err why = {.code = KVM_SHAPE, .msg = "bad"};
    TRY(kvm_catalogue_open(&c, a, kvm_str_of(db), NULL, err));
    TRY(kvm_store_open(&store, a, kvm_str_of(fake_home), NULL, err));
    TRY(kvm_submit(c, store, &g, NULL, &s, *a, err));
    TRY(kvm_worker_register(c, KVM_STR("w"), KVM_STR("h"), KVM_STR("m"), &worker, err));
    TRY(kvm_test_claim(c, &k, &found, a, worker, 0, 60, err));
    TRY(kvm_job_succeed(c, k.fence, &r, err));
    TRY(kvm_test_claim(c, &k, &found, a, worker, 0, 60, err));
    return kvm_job_fail(c, k.fence, &why, NULL, NULL, err);
}

/* Whatever was reached, it is one of the states between two transactions. */
static void assert_sound(void)
{
    kvm_catalogue *c;
    json_t *problems;
    kvm_arena a;
    MUST(kvm_arena_init(&a, 16 << 20, e));
    MUST(kvm_catalogue_open(&c, &a, kvm_str_of(db), NULL, e));
    MUST(kvm_catalogue_check(c, &problems, &a, e));
    assert_int_equal(json_array_size(problems), 0);
    const int64_t runs = kvm_test_number(db, "SELECT COUNT(*) FROM run");
    assert_in_range(runs, 0, 1);
    assert_int_equal(kvm_test_number(db, "SELECT COUNT(*) FROM job"), 3 * runs);
    assert_int_equal(kvm_test_number(db, "SELECT COUNT(*) FROM dep"), 2 * runs);
    assert_int_equal(kvm_test_number(db, "SELECT COUNT(*) FROM outbox"), runs);
    assert_int_equal(
        kvm_test_number(db, "SELECT COUNT(*) FROM job WHERE state='succeeded'"),
        kvm_test_number(db, "SELECT COUNT(*) FROM artefact"));
    assert_int_equal(kvm_test_number(db, "SELECT COALESCE(SUM(attempt), 0) FROM job"),
                     kvm_test_number(db, "SELECT COUNT(*) FROM attempt"));
    kvm_arena_free(&a);
}

static void every_call_under_sqlite_may_fail(void **state)
{
    (void)state;
    const int codes[] = {SQLITE_IOERR, SQLITE_FULL};
    for (int i = 0; i < 2; i++) {
        long n = 1, failed = 0;
        for (;; n++) {
            kvm_err err = {0};
            kvm_arena a;
            fresh_home();
            MUST(kvm_arena_init(&a, 64 << 20, e));
            fault_vfs_on(n, codes[i]);
            const kvm_status s = a_life(&a, &err);
            kvm_arena_free(&a);
            fault_vfs_off();
            if (s) {
                failed++;
                if (kvm_status_action(s) != KVM_RETRY)
                    fail_msg("call %ld: %s (%s)", n, err.msg, kvm_status_name(s));
                assert_int_equal(err.code, s);
            }
            assert_sound();
            if (!fired) break;
        }
        assert_true(failed > 20);
        print_message("# %ld calls, %ld errors\n", n - 1, failed);
    }
}

/* ---- the store, through the seam of base/os.h ---- */

static void look_for_garbage(const char *sha, bool may_be_there)
{
    char dir[300];
    snprintf(dir, sizeof dir, "%s/objects/%.2s", fake_home, sha);
    DIR *d = opendir(dir);
    const struct dirent *entry;
    while (d && (entry = readdir(d))) {
        if (entry->d_name[0] == '.') continue;
        assert_string_equal(entry->d_name, sha + 2); /* no temporaries */
        assert_true(may_be_there);
    }
    if (d) closedir(d);
}

static kvm_status put_and_get(const char *path, kvm_arena *a, kvm_err *err)
{
    kvm_store *s;
    char sha[65];
    int64_t bytes;
    kvm_str out;
    TRY(kvm_store_open(&s, a, kvm_str_of(fake_home), NULL, err));
    TRY(kvm_store_hash(s, kvm_str_of(path), sha, &bytes, err));
    TRY(kvm_store_put(s, kvm_str_of(path), sha, bytes, err));
    TRY(kvm_store_get(s, &out, a, sha, bytes, err));
    return kvm_store_add(s, KVM_STR("in memory"), sha, err);
}

static void every_call_of_the_store_may_fail(void **state)
{
    (void)state;
    char path[300], sha[65], sha2[65];
    MUST(kvm_sha_of(KVM_STR("content"), sha, e));
    MUST(kvm_sha_of(KVM_STR("in memory"), sha2, e));
    const int errors[] = {EIO, ENOSPC};
    for (int i = 0; i < 2; i++)
        for (long n = 1;; n++) {
            kvm_err err = {0};
            kvm_arena a;
            kvm_store *fresh;
            kvm_str out;
            fresh_home();
            snprintf(path, sizeof path, "%s/file", fake_home);
            MUST(kvm_file_publish(kvm_str_of(path), KVM_STR("content"), keep, e));
            MUST(kvm_arena_init(&a, 8 << 20, e));
            fault_begin((fault_plan){.nth = n, .error = errors[i]});
            const kvm_status s = put_and_get(path, &a, &err);
            kvm_arena_free(&a);
            const bool fired_now = fault_end();
            assert_int_equal(fault_open_files(), 0);
            if (s && errors[i] == ENOSPC && strcmp(fault_call(), "mmap") != 0)
                assert_int_equal(s, KVM_NOSPACE);
            if (s) assert_int_equal(kvm_status_action(s), KVM_RETRY);
            if (s) assert_int_equal(err.code, s);
            /* whole or not at all */
            look_for_garbage(sha, true);
            look_for_garbage(sha2, true);
            MUST(kvm_arena_init(&a, 8 << 20, e));
            MUST(kvm_store_open(&fresh, &a, kvm_str_of(fake_home), NULL, e));
            bool there;
            MUST(kvm_store_look(fresh, sha, -1, &there, e));
            if (there)
                MUST(kvm_store_get(fresh, &out, &a, sha, 7, e));
            else
                assert_true(kvm_path_exists(kvm_str_of(path)));
            kvm_arena_free(&a);
            if (!fired_now) {
                assert_int_equal(s, KVM_OK);
                assert_true(n > 10);
                break;
            }
        }
}

/* ---- another process holds the write lock ---- */

static pid_t hold_lock(double seconds)
{
    int ready[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        sqlite3 *d = kvm_test_open(db);
        if (sqlite3_exec(d, "BEGIN IMMEDIATE", NULL, NULL, NULL)) _exit(1);
        if (write(ready[1], "x", 1) != 1) _exit(1);
        kvm_sleep(seconds);
        sqlite3_exec(d, "ROLLBACK", NULL, NULL, NULL);
        _exit(0);
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return pid;
}

static void a_held_lock_is_an_error_to_try_again(void **state)
{
    (void)state;
    kvm_catalogue *c;
    kvm_arena a;
    kvm_err err = {0};
    int64_t worker;
    fresh_home();
    MUST(kvm_arena_init(&a, 1 << 20, e));
    const kvm_catalogue_options o = {.busy_ms = 300};
    MUST(kvm_catalogue_open(&c, &a, kvm_str_of(db), &o, e));
    const pid_t pid = hold_lock(1.5);
    const double asked = kvm_now();
    const kvm_status s =
        kvm_worker_register(c, KVM_STR("w"), KVM_STR("h"), KVM_STR("m"), &worker, &err);
    assert_int_equal(s, KVM_BUSY);
    assert_int_equal(kvm_status_action(s), KVM_RETRY);
    assert_non_null(strstr(err.msg, "300 ms"));
    assert_true(kvm_now() - asked > 0.25);
    assert_int_equal(fake_join(pid, 10), 0);
    MUST(kvm_worker_register(c, KVM_STR("w"), KVM_STR("h"), KVM_STR("m"), &worker, e));
    kvm_arena_free(&a);
}

/* Longer than a statement waits (5 s): the worker waits on, within its lease, and
 * commits once. */
static void a_worker_outlasts_a_lock_of_ten_seconds(void **state)
{
    (void)state;
    fake_base b;
    fake_open(&b, "catalogue_fault");
    snprintf(db, sizeof db, "%s", b.db);
    kvm_graph g = kvm_test_graph(&b.keep, 1, false, KVM_JOB_CAPTURE, 0);
    fake_do(&g, 0, "ok", 300);
    fake_submit(&b, &g, false);
    const pid_t worker = fake_worker(fake_options(60), NULL);
    fake_until(b.db, "SELECT COUNT(*) FROM job WHERE state='running'", 1, 10);
    const pid_t holder = hold_lock(10);
    assert_int_equal(fake_join(holder, 20), 0);
    const double free_at = kvm_now();
    assert_int_equal(fake_join(worker, 20), 0);
    assert_string_equal(kvm_test_state(b.c, &b.keep, 1), "succeeded");
    assert_int_equal(kvm_test_number(b.db, "SELECT attempt FROM job"), 1);
    chaos_record("9", "SQLite's write lock is held for 10 s", 1, 0, 0,
                 kvm_now() - free_at);
    fake_close(&b);
}

/* A job whose disk is full is tried again, then parked; nothing of it is published. */
static void a_full_disk_parks_the_job(void **state)
{
    (void)state;
    fake_base b;
    fake_open(&b, "catalogue_fault");
    kvm_graph g = kvm_test_graph(&b.keep, 1, false, KVM_JOB_CAPTURE, 0);
    fake_submit(&b, &g, false);
    const char *const folders[] = {"work", "logs"}; /* the disk fills up later */
    for (int i = 0; i < 2; i++)
        MUST(kvm_dir_make(
            kvm_path_join(&b.keep, kvm_str_of(fake_home), kvm_str_of(folders[i])), e));
    const pid_t pid = fork();
    if (pid == 0) {
        kvm_worker_options o = fake_options(30);
        kvm_worker_stats stats;
        fault_begin(
            (fault_plan){.nth = 1, .error = ENOSPC, .forever = true, .only = "fsync"});
        _exit(kvm_worker_run(&o, &stats, NULL) ? 1 : 0);
    }
    assert_int_equal(fake_join(pid, 30), 0);
    assert_string_equal(kvm_test_state(b.c, &b.keep, 1), "parked");
    assert_int_equal(kvm_test_number(b.db, "SELECT status FROM job"), KVM_NOSPACE);
    assert_int_equal(kvm_test_number(b.db, "SELECT COUNT(*) FROM artefact"), 0);
    fake_close(&b);
}

static int set_up(void **state)
{
    (void)state;
    fresh_home();
    return kvm_arena_init(&keep, 64 << 20, NULL) ? -1 : 0;
}
static int tear_down(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    return 0;
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(every_call_under_sqlite_may_fail),
        T(every_call_of_the_store_may_fail),
        T(a_held_lock_is_an_error_to_try_again),
        T(a_worker_outlasts_a_lock_of_ten_seconds),
        T(a_full_disk_parks_the_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
