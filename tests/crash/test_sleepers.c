/* A worker is stopped for three leases (its child goes on, or is stopped too); another
 * one does the job; the first wakes up: what it writes is refused and the winner's
 * artefact stands. (queue.md, 5: row 2.) They sleep together: one at a time a hundred
 * would take three minutes, most of it waiting. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "tests/support/sound.h"

#define NUMBER(sql) kvm_test_number(b.db, sql)

enum { MOST = 20 };
static const double LEASE_S = 0.5;

static fake_base b;

/* all have begun before the first one ends */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const int JOB_MS = 6000;
#else
static const int JOB_MS = 2000;
#endif

/* Who is stopped within a transaction keeps its locks, and with them everybody, until
 * the server ends it (30 s) or, with SQLite, for ever: that is not looked at here. */
static bool one_holds_locks(void)
{
    if (!kvm_test_on_server) return !kvm_test_writable(b.db);
    kvm_sleep(0.02); /* what was asked for last is done */
    return NUMBER("SELECT COUNT(*) FROM pg_stat_activity WHERE state LIKE 'idle in "
                  "transaction%'") > 0;
}

/* Such a one may end its transaction. */
static void stop_all(const pid_t *pids, int count)
{
    for (int i = 0; i < count; i++) kill(pids[i], SIGSTOP);
    for (int tries = 0; one_holds_locks(); tries++) {
        assert_true(tries < 100);
        for (int i = 0; i < count; i++) kill(pids[i], SIGCONT);
        kvm_sleep(0.005);
        for (int i = 0; i < count; i++) kill(pids[i], SIGSTOP);
    }
}

static void begin(int count, pid_t *slow)
{
    fake_open(&b, "sleepers");
    kvm_graph g = kvm_test_graph(&b.keep, count, false, KVM_JOB_CAPTURE, 0);
    for (int i = 0; i < count; i++) fake_do(&g, i, "ok", JOB_MS);
    fake_submit(&b, &g, false);
    for (int i = 0; i < count; i++) slow[i] = fake_worker(fake_options(LEASE_S), NULL);
    fake_until(b.db, "SELECT COUNT(*) FROM job WHERE state='running'", count, 60);
}

static void sleep_together(int count, int batch)
{
    pid_t slow[MOST], quick[MOST];
    begin(count, slow);
    kvm_sleep(0.02 * (batch + 1));
    for (int i = 0; i < count; i += 2)
        if (fake_pid(i)) kill((pid_t)fake_pid(i), SIGSTOP);
    stop_all(slow, count);
    const double stopped = kvm_now();
    for (int i = 0; i < count; i++) quick[i] = fake_worker(fake_options(30), NULL);
    fake_until(b.db, "SELECT COUNT(*) FROM job WHERE state='succeeded'", count, 120);
    const double recovery_s = kvm_now() - stopped - JOB_MS / 1e3;
    /* none was done by its sleeper; more than one taking over is no fault */
    assert_true(NUMBER("SELECT MIN(token) FROM job") >= 2);
    const int64_t tokens = NUMBER("SELECT SUM(token) FROM job");
    while (kvm_now() < stopped + 3 * LEASE_S) kvm_sleep(0.01);
    for (int i = count; fake_pid(i); i++) /* children of sleepers: the first */
        kill((pid_t)fake_pid(i), SIGCONT);
    for (int i = 0; i < count; i++) kill(slow[i], SIGCONT);
    for (int i = 0; i < count; i++) {
        assert_int_equal(fake_join(slow[i], 60), 0);
        assert_int_equal(fake_join(quick[i], 60), 0);
    }
    assert_int_equal(NUMBER("SELECT SUM(token) FROM job"), tokens);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM metric"), 2 * count);
    sound_record(&b, "2", "a worker sleeps three leases and wakes", count, recovery_s);
    sound_assert(&b, 1, count, NULL);
    fake_close(&b);
}

static void a_worker_that_slept_is_refused(void **state)
{
    (void)state;
    for (int batch = 0; batch < chaos_count(1, 5); batch++)
        sleep_together(chaos_count(2, MOST), batch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_worker_that_slept_is_refused),
    };
    return kvm_test_both("sleepers", tests);
}
