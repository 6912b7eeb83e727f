/* kill -9 of whoever takes part, while several workers are at work: the others outlive
 * it, each job ends once, nothing is left over. (queue.md, 5: row 1; what a worker
 * passes is test_worker_crash, gangs are gang/test_launch.) */
#define _XOPEN_SOURCE 700 /* nftw */
#include "base/rng.h"
#include "schema/fault.h"
#include "tests/support/fleet.h"

enum { WORKERS = 4 };

static fleet f;
static kvm_rng r;

static fleet_plan plan(void)
{
    return (fleet_plan){.name = "fleet_crash",
                        .jobs = chaos_count(40, 200),
                        .ms = 60,
                        .workers = WORKERS,
                        .lease_s = 3,
                        .reconcile_s = 1};
}

static void assert_killed(pid_t pid)
{
    assert_int_equal(fake_join(pid, 60), 128 + SIGKILL);
}

static void kill_scheduler(void)
{
    kill(f.scheduler, SIGKILL);
    assert_killed(f.scheduler);
    fleet_start_scheduler(&f, NULL);
}

static void kill_worker(void)
{
    const int i = (int)kvm_rng_below(&r, WORKERS);
    kill(f.workers[i], SIGKILL);
    assert_killed(f.workers[i]);
    fleet_start_worker(&f, i);
}

static void kill_redis(void)
{
    redis_server_stop();
    kvm_sleep(0.3 * kvm_rng_unit(&r));
    redis_server_again();
}

static void kill_postmaster(void)
{
    pg_server_kill();
    pg_server_again();
}

static void kill_backend(void)
{
    pg_server_kill_backend(f.b.db);
}

static void shut_down_at_once(void)
{
    pg_server_stop();
    kvm_sleep(0.3 * kvm_rng_unit(&r));
    pg_server_again();
}

static void kill_all(void)
{
    const pid_t scheduler = f.scheduler;
    kill(scheduler, SIGKILL);
    for (int i = 0; i < WORKERS; i++) kill(f.workers[i], SIGKILL);
    redis_server_stop();
    if (kvm_test_on_server) pg_server_kill();
    assert_killed(scheduler);
    for (int i = 0; i < WORKERS; i++) assert_killed(f.workers[i]);
    if (kvm_test_on_server) pg_server_again();
    redis_server_again();
    fleet_start_scheduler(&f, NULL);
    for (int i = 0; i < WORKERS; i++) fleet_start_worker(&f, i);
}

/* One fleet, struck while it has jobs, at most `most` times; gives how often. */
static int strike(const char *what, void (*fault)(void), int most)
{
    const fleet_plan p = plan();
    int struck = 0;
    fleet_begin(&f, &p);
    const double first = kvm_wall();
    while (struck < most && fleet_done(&f) < p.jobs - 2 * WORKERS) {
        fault();
        fleet_until_done(&f, fleet_done(&f) + 1);
        struck++;
        kvm_sleep(0.4 * kvm_rng_unit(&r));
    }
    const double rest = fleet_join(&f, first);
    sound_record(&f.b, "1", what, struck, rest);
    fleet_end(&f);
    return struck;
}

static void whoever_is_killed(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        void (*fault)(void);
        bool server; /* takes a server of the catalogue */
        bool keeps;  /* Redis keeps what it holds */
    } rows[] = {
        {"kill -9 of the scheduler", kill_scheduler, false, false},
        {"kill -9 of one of several workers", kill_worker, false, false},
        {"kill -9 of Redis", kill_redis, false, false},
        {"kill -9 of Redis with AOF", kill_redis, false, true},
        {"kill -9 of the postmaster", kill_postmaster, true, false},
        {"kill -9 of a backend", kill_backend, true, false},
        {"immediate shutdown", shut_down_at_once, true, false},
        {"kill -9 of all of them", kill_all, false, false},
    };
    r = kvm_rng_seed(20261201, 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].server && !kvm_test_on_server) continue;
        redis_server_keep(rows[i].keeps);
        for (int left = chaos_count(1, 10); left > 0;)
            left -= strike(rows[i].what, rows[i].fault, left);
    }
    redis_server_keep(false);
}

/* The scheduler dies between mark and hint, or behind the hint. */
static void a_scheduler_killed_at_every_point(void **state)
{
    (void)state;
    static const kvm_fault_id points[] = {KVM_FAULT_BEFORE_SEND, KVM_FAULT_AFTER_SEND};
    for (int i = 0; i < 2 * chaos_count(1, 3); i++) {
        char text[80];
        const char *point = kvm_fault_name(points[i % 2]);
        fleet_plan p = plan();
        snprintf(text, sizeof text, "%s:%d", point, i / 2 + 1);
        p.fault = text;
        fleet_begin(&f, &p);
        assert_killed(f.scheduler);
        const double healed = kvm_wall();
        fleet_start_scheduler(&f, NULL);
        const double rest = fleet_join(&f, healed);
        snprintf(text, sizeof text, "kill -9 of the scheduler at %s", point);
        sound_record(&f.b, "1", text, 1, rest);
        fleet_end(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whoever_is_killed),
        cmocka_unit_test(a_scheduler_killed_at_every_point),
    };
    if (!redis_server_start()) return 0;
    return kvm_test_both("fleet crashes", tests);
}
