/* fleet.h - a fleet on this machine: PostgreSQL, Redis, a scheduler and workers, each
 * in a process of its own. All in the header, as fake_kinds.h; the includer defines
 * _XOPEN_SOURCE 700 (nftw) first. */
#ifndef KVM_TESTS_CHAOS_FLEET_H
#define KVM_TESTS_CHAOS_FLEET_H

#include <sys/prctl.h>

#include "base/log.h"
#include "scheduler/queue.h"
#include "scheduler/scheduler.h"
#include "tests/support/redis_server.h"
#include "tests/support/sound.h"

static fake_base b;
static pid_t fleet_scheduler;

#define NUMBER(sql) kvm_test_number(b.db, sql)

/* Both servers are there, and catalogues are made on PostgreSQL; false: skipped, with a
 * line that says why. */
static inline bool fleet_servers(void)
{
    kvm_log_set(KVM_LOG_WARN, NULL, NULL);
    kvm_test_on_server = redis_server_start() && pg_server_start();
    return kvm_test_on_server;
}

/* a process of this one, with which it ends */
static inline pid_t fleet_fork(void)
{
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    return pid;
}

static inline pid_t fleet_start_scheduler(void)
{
    const pid_t pid = fleet_fork();
    if (pid > 0) return pid;
    kvm_err err = {0};
    char name[40];
    snprintf(name, sizeof name, "scheduler-%d", (int)getpid());
    const kvm_scheduler_options o = {
        .catalogue = fake_catalogue,
        .queue = kvm_str_of(redis_server_unix()),
        .home = kvm_str_of(fake_home),
        .name = kvm_str_of(name),
        .reconcile_s = 1,
        .lease_s = 3,
        .policy = {.backoff_s = 0.01, .backoff_most_s = 0.02},
        .signals = true};
    if (kvm_scheduler_run(&o, NULL, &err)) fprintf(stderr, "# %s\n", err.msg);
    _exit(err.code);
}

/* an empty base; the scheduler is there, workers are not */
static inline void fleet_open(const char *name)
{
    redis_server_do("FLUSHALL");
    fake_open(&b, name);
}

static inline kvm_worker_options fleet_options(double lease_s)
{
    kvm_worker_options o = fake_options(lease_s);
    o.queue = kvm_str_of(redis_server_unix());
    o.until_idle = false;
    o.poll_s = 2; /* hints are followed, not the catalogue */
    return o;
}

/* what is neither done nor given up */
#define FLEET_LEFT                                                                     \
    "SELECT COUNT(*) FROM job WHERE state IN "                                         \
    "('blocked','ready','dispatched','running','cancelling')"

/* told to stop, they end: 7 is a drained worker's code */
static inline void fleet_stop(const pid_t *workers, int count)
{
    for (int i = 0; i < count; i++) kill(workers[i], SIGTERM);
    for (int i = 0; i < count; i++) assert_int_equal(fake_join(workers[i], 60), 7);
    if (fleet_scheduler > 0) {
        kill(fleet_scheduler, SIGTERM);
        assert_int_equal(fake_join(fleet_scheduler, 60), 0);
        fleet_scheduler = 0;
    }
    fake_no_children();
}

/* notes a fault under which, as the test has found, no job was lost or doubled */
static inline void fleet_record(const char *row, const char *what, int injected,
                                double recovery_s)
{
    char text[160];
    snprintf(text, sizeof text, "%s, %s", what,
             kvm_test_on_server ? "PostgreSQL" : "SQLite");
    chaos_record(row, text, injected, 0, 0, recovery_s);
}

#endif
