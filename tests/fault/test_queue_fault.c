/* What happens to Redis while jobs wait and run: each job ends once, after one attempt,
 * whatever the queue has lost, and work goes on within two periods of the reconciler.
 * (queue.md, 5: row 4.) */
#define _XOPEN_SOURCE 700 /* nftw */
#include "tests/support/fleet.h"

static fleet f;

static void on_stream(const char *verb, const char *rest)
{
    char text[120];
    snprintf(text, sizeof text, "%s kvmill:%s:cpu%s", verb, f.id, rest);
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
    kvm_sleep(chaos_count(1, 5));
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
    kill(f.scheduler, SIGKILL);
    assert_int_equal(fake_join(f.scheduler, 60), 128 + SIGKILL);
    fleet_start_scheduler(&f, NULL);
}

/* In the whole form a thousand wait and fifty run. */
static fleet_plan plan(void)
{
    return (fleet_plan){.name = "queue_fault",
                        .jobs = chaos_count(48, 1050),
                        .ms = chaos_count(60, 250),
                        .workers = chaos_count(4, 50),
                        .lease_s = 30,
                        .reconcile_s = chaos_count(1, 5)};
}

static void whatever_redis_loses(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        void (*fault)(void);
    } rows[] = {
        {"FLUSHALL", flush},
        {"DEL of the stream", delete_stream},
        {"XGROUP DESTROY", destroy_group},
        {"XGROUP SETID past what waits", drop_consumers},
        {"entries that are none", garbage},
        {"restart, empty", restart_empty},
        {"restart with old data, LOADING", restart_old},
        {"Redis gone for good", stay_away},
        {"OOM", full},
        {"READONLY", read_only},
        {"another's key in place of the stream", other_type},
        {"all connections killed ten times", kill_clients},
        {"the scheduler killed", kill_scheduler},
    };
    const fleet_plan p = plan();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (i % 3 && kvm_test_on_server && !chaos_count(0, 1)) continue; /* seen */
        fleet_begin(&f, &p);
        const double struck = kvm_wall();
        rows[i].fault();
        const double rest = fleet_join(&f, struck);
        sound_record(&f.b, "4", rows[i].what, 1, rest);
        assert_int_equal(kvm_test_number(f.b.db, "SELECT COUNT(*) FROM attempt"),
                         p.jobs);
        if (chaos_count(0, 1)) assert_true(rest <= 2 * p.reconcile_s);
        fleet_end(&f);
        redis_server_stop();
        redis_server_again();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_redis_loses),
    };
    if (!redis_server_start()) return 0;
    return kvm_test_both("queue faults", tests);
}
