/* fleet.h - a scheduler, a Redis server and workers at one catalogue, with jobs under
 * way, for tests of what may happen to each of them. All in the header, as queue.h. */
#ifndef KVM_TESTS_SUPPORT_FLEET_H
#define KVM_TESTS_SUPPORT_FLEET_H

#include "scheduler/scheduler.h"
#include "tests/support/redis_server.h"
#include "tests/support/sound.h"

enum { FLEET_WORKERS = 50 };

typedef struct fleet_plan {
    const char *name;  /* of the test's folder */
    const char *queue; /* NULL: the server's socket */
    bool far;          /* the catalogue too is reached through the line */
    int jobs, ms;      /* of each job */
    int workers;
    double lease_s, reconcile_s;
    const char *fault; /* KVMILL_FAULT of the first scheduler */
} fleet_plan;

typedef struct fleet {
    fleet_plan plan;
    fake_base b;
    char id[KVM_CATALOGUE_ID], far[400];
    int64_t run;
    pid_t scheduler, workers[FLEET_WORKERS];
} fleet;

/* A scheduler in a process of its own. fault: KVMILL_FAULT or NULL */
static inline void fleet_start_scheduler(fleet *f, const char *fault)
{
    f->scheduler = fork();
    assert_true(f->scheduler >= 0);
    if (f->scheduler > 0) return;
    kvm_err err = {0};
    char name[40];
    if (fault) setenv("KVMILL_FAULT", fault, 1);
    snprintf(name, sizeof name, "scheduler-%d", (int)getpid());
    const kvm_scheduler_options o = {.catalogue = fake_catalogue,
                                     .queue = kvm_str_of(f->plan.queue),
                                     .name = kvm_str_of(name),
                                     .reconcile_s = f->plan.reconcile_s,
                                     .lease_s = 3,
                                     .policy.crash_limit = 100,
                                     .signals = true};
    if (kvm_scheduler_run(&o, NULL, &err)) fprintf(stderr, "# %s\n", err.msg);
    _exit(err.code);
}

/* It follows hints, not the catalogue: unless Redis is away, it looks there seldom. */
static inline void fleet_start_worker(fleet *f, int i)
{
    kvm_worker_options o = fake_options(f->plan.lease_s);
    o.queue = kvm_str_of(f->plan.queue);
    o.poll_s = 30;
    o.policy.crash_limit = 100; /* what is killed so often here is no poison */
    o.policy.retry_limit = 100;
    f->workers[i] = fake_worker(o, NULL);
}

static inline int fleet_done(const fleet *f)
{
    return (int)kvm_test_number(f->b.db,
                                "SELECT COUNT(*) FROM job WHERE state = 'succeeded'");
}

static inline void fleet_until_done(const fleet *f, int jobs)
{
    const double until = kvm_now() + 120;
    while (fleet_done(f) < jobs) {
        if (kvm_now() > until) fail_msg("after two minutes %d are done", fleet_done(f));
        kvm_sleep(0.01);
    }
}

/* Returns when all is under way: jobs are done, run, wait with a hint and without. */
static inline void fleet_begin(fleet *f, const fleet_plan *plan)
{
    *f = (fleet){.plan = *plan};
    fake_open(&f->b, plan->name);
    if (!plan->queue) f->plan.queue = redis_server_unix();
    redis_server_do("FLUSHALL");
    if (plan->far) {
        snprintf(f->far, sizeof f->far, "%s", pg_server_far(f->b.db));
        fake_catalogue = kvm_str_of(f->far);
    }
    MUST(kvm_catalogue_id(f->b.c, f->id, e));
    kvm_graph g = kvm_test_graph(&f->b.keep, plan->jobs, false, KVM_JOB_CAPTURE, 0);
    for (int i = 0; i < plan->jobs; i++) fake_do(&g, i, "ok", plan->ms);
    f->run = fake_submit(&f->b, &g, false).run;
    for (int i = 0; i < plan->workers; i++) fleet_start_worker(f, i);
    fleet_start_scheduler(f, plan->fault);
    fleet_until_done(f, plan->workers < plan->jobs / 6 ? plan->workers : 1);
}

/* Seconds from `healed` (kvm_wall) on in which nothing ended though jobs were there:
 * the longest time. */
static inline double fleet_longest_rest(const fleet *f, double healed)
{
    char sql[500];
    snprintf(
        sql, sizeof sql,
        "SELECT CAST(1000 * COALESCE(MAX(x.at - CASE WHEN x.prev > %.3f THEN x.prev "
        "ELSE %.3f END), 0) AS BIGINT) FROM (SELECT ended_at AS at, COALESCE("
        "LAG(ended_at) OVER (ORDER BY ended_at), 0) AS prev FROM attempt WHERE "
        "outcome = 'succeeded') x WHERE x.at > %.3f",
        healed, healed, healed);
    return (double)kvm_test_number(f->b.db, sql) / 1e3;
}

/* All workers end since all jobs have, and well. Gives the longest rest. */
static inline double fleet_join(fleet *f, double healed)
{
    for (int i = 0; i < f->plan.workers; i++)
        assert_int_equal(fake_join(f->workers[i], 180), 0);
    kill(f->scheduler, SIGTERM);
    assert_int_equal(fake_join(f->scheduler, 30), 0);
    return fleet_longest_rest(f, healed);
}

static inline void fleet_end(fleet *f)
{
    sound_assert(&f->b, f->run, f->plan.jobs, NULL);
    fake_close(&f->b);
}

#endif
