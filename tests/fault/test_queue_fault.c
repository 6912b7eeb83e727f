/* What happens to Redis, and on the way to it, while jobs wait and run: each job ends
 * once, after one attempt, whatever the queue has lost. (queue.md, 5: rows 4 and 5 in
 * short form.) */
#define _XOPEN_SOURCE 700 /* nftw */
#include "base/clock.h"
#include "scheduler/scheduler.h"
#include "tests/support/fake_kinds.h"
#include "tests/support/redis_server.h"

enum { JOBS = 48, WORKERS = 4, MS = 60 };

static fake_base b;
static char id[KVM_CATALOGUE_ID];
static pid_t scheduler, workers[WORKERS];

static pid_t start_scheduler(const char *where)
{
    const pid_t pid = fork();
    if (pid > 0) return pid;
    kvm_err err = {0};
    char name[40];
    snprintf(name, sizeof name, "scheduler-%d", (int)getpid());
    const kvm_scheduler_options o = {.catalogue = fake_catalogue,
                                     .queue = kvm_str_of(where),
                                     .name = kvm_str_of(name),
                                     .reconcile_s = 1,
                                     .lease_s = 3,
                                     .signals = true};
    if (kvm_scheduler_run(&o, NULL, &err)) fprintf(stderr, "# %s\n", err.msg);
    _exit(err.code);
}

/* Everything is under way: jobs are done, run, wait with a hint and without. */
static void begin(const char *where, int64_t done)
{
    fake_open(&b, "queue_fault");
    redis_server_do("FLUSHALL");
    MUST(kvm_catalogue_id(b.c, id, e));
    kvm_graph g = kvm_test_graph(&b.keep, JOBS, false, KVM_JOB_CAPTURE, 0);
    for (int i = 0; i < JOBS; i++) fake_do(&g, i, "ok", MS);
    fake_submit(&b, &g, false);
    kvm_worker_options o = fake_options(30);
    o.queue = kvm_str_of(where);
    o.poll_s = 2; /* hints are followed, not the catalogue */
    for (int i = 0; i < WORKERS; i++) workers[i] = fake_worker(o, NULL);
    scheduler = start_scheduler(where);
    char sql[120];
    snprintf(sql, sizeof sql,
             "SELECT CASE WHEN COUNT(*) >= %lld THEN 1 ELSE 0 END FROM job WHERE state "
             "= 'succeeded'",
             (long long)done);
    fake_until(b.db, sql, 1, 60);
}

#define NUMBER(sql) kvm_test_number(b.db, sql)

static void all_end_once(void)
{
    for (int i = 0; i < WORKERS; i++) assert_int_equal(fake_join(workers[i], 120), 0);
    kill(scheduler, SIGTERM);
    assert_int_equal(fake_join(scheduler, 30), 0);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM job WHERE state = 'succeeded'"),
                     JOBS);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM attempt"), JOBS);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM artefact"), JOBS);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM run WHERE state = 'succeeded'"), 1);
    fake_no_children();
    fake_close(&b);
}

static void on_stream(const char *verb, const char *rest)
{
    char text[120];
    snprintf(text, sizeof text, "%s kvmill:%s:cpu%s", verb, id, rest);
    redis_server_do(text);
}

static void flush(void)
{
    redis_server_do("FLUSHALL");
}
static void delete_stream(void)
{
    on_stream("DEL", "");
}
static void destroy_group(void)
{
    on_stream("XGROUP DESTROY", " workers");
}
static void drop_consumers(void) /* what they had in hand, and have not settled */
{
    on_stream("XGROUP SETID", " workers $");
}
static void garbage(void)
{
    on_stream("XADD", " * b \"1 0 2\"");
    on_stream("XADD", " * x y");
    on_stream("XADD", " * b \"999999 0\"");
}
static void restart_empty(void)
{
    redis_server_stop();
    kvm_sleep(0.5);
    redis_server_again();
}
static void restart_old(void)
{
    redis_server_do("DEBUG POPULATE 20 filler 2000");
    redis_server_do("SAVE");
    kvm_sleep(1);
    redis_server_stop();
    redis_server_again_from_disk();
}
static void stay_away(void)
{
    redis_server_stop();
}
static void full(void)
{
    redis_server_do("CONFIG SET maxmemory 1");
    kvm_sleep(1.5);
    redis_server_do("CONFIG SET maxmemory 0");
}
static void read_only(void)
{
    redis_server_do("REPLICAOF 127.0.0.1 1");
    kvm_sleep(1.5);
    redis_server_do("REPLICAOF NO ONE");
}
static void other_type(void)
{
    delete_stream();
    on_stream("SET", " text");
    kvm_sleep(1.5);
    delete_stream();
}
static void kill_clients(void)
{
    for (int i = 0; i < 10; i++) {
        redis_server_do("CLIENT KILL TYPE normal SKIPME yes");
        kvm_sleep(0.05);
    }
}
static void kill_scheduler(void)
{
    kill(scheduler, SIGKILL);
    assert_int_equal(fake_join(scheduler, 10), 128 + SIGKILL);
    scheduler = start_scheduler(redis_server_unix());
}

static void whatever_redis_loses(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        void (*fault)(void);
    } faults[] = {
        {"FLUSHALL", flush},
        {"DEL of the stream", delete_stream},
        {"XGROUP DESTROY", destroy_group},
        {"XGROUP SETID past what waits", drop_consumers},
        {"entries that are none", garbage},
        {"restart, empty", restart_empty},
        {"restart with old data, loading", restart_old},
        {"gone for good", stay_away},
        {"OOM", full},
        {"READONLY", read_only},
        {"another's key", other_type},
        {"connections killed", kill_clients},
        {"the scheduler killed", kill_scheduler},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        const double start = kvm_now();
        begin(redis_server_unix(), JOBS / 6);
        faults[i].fault();
        all_end_once();
        print_message("# %s: %.1f s\n", faults[i].name, kvm_now() - start);
        redis_server_stop();
        redis_server_again();
    }
}

/* One direction is swallowed, for good or for a while; a line that is slow. */
static void whatever_the_line_does(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        redis_proxy_way way;
        int delay_ms;
        double seconds; /* 0: until the end */
    } rows[] = {{"deaf for good", REDIS_PROXY_DEAF, 0, 0},
                {"mute for 3 s", REDIS_PROXY_MUTE, 0, 3},
                {"1 ms late", REDIS_PROXY_PASS, 1, 0},
                {"100 ms late", REDIS_PROXY_PASS, 100, 0}};
    const char *const where = redis_proxy_start();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const double start = kvm_now();
        redis_proxy_be(REDIS_PROXY_PASS, 0);
        begin(where, JOBS / 6);
        redis_proxy_be(rows[i].way, rows[i].delay_ms);
        if (rows[i].seconds > 0) {
            kvm_sleep(rows[i].seconds);
            redis_proxy_be(REDIS_PROXY_PASS, 0);
        }
        all_end_once();
        print_message("# %s: %.1f s\n", rows[i].name, kvm_now() - start);
    }
    redis_proxy_be(REDIS_PROXY_PASS, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_redis_loses),
        cmocka_unit_test(whatever_the_line_does),
    };
    if (!redis_server_start()) return 0;
    return cmocka_run_group_tests_name("queue faults", tests, NULL, NULL);
}
