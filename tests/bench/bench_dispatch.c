/* bench_dispatch - no-op jobs from the catalogue through Redis to workers and back.
 *
 *   bench_dispatch [jobs, 20000] [workers, 2] [postgres://…: an empty database, else
 *   one of its own that syncs as PostgreSQL does by default; "sqlite"]
 *
 * A scheduler, workers and servers in processes of their own, as in a fleet; jobs are
 * `small` and do nothing, but each is a row with an attempt, claimed under a lease, run
 * in a worker's child and committed. Then the same workers are idle, and one job after
 * another is submitted: pickup is from the end of the submission's commit until the job
 * is claimed, as the database's clock has it. */
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "scheduler/queue.h"
#include "scheduler/scheduler.h"
#include "tests/bench/bench.h"
#include "tests/support/pg_server.h"
#include "tests/support/redis_server.h"
#include "workers/worker.h"

enum { PICKUPS = 300, WORKERS_MOST = 16 };

static char home[] = "build/tmp/bench_dispatch";
static char where[400];

static kvm_status noop(kvm_job *j, kvm_err *err)
{
    (void)j, (void)err;
    return KVM_OK;
}
static const kvm_job_kind noop_kind = {.id = KVM_JOB_STATS, .run = noop};
static const kvm_job_kind *kind_of(kvm_kind_id id)
{
    return id == KVM_JOB_STATS ? &noop_kind : NULL;
}

/* A process of this one, with which it ends. */
static pid_t start(void)
{
    fflush(NULL);
    const pid_t pid = fork();
    if (pid < 0) die("fork", "no more processes");
    if (pid == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    return pid;
}

static pid_t start_worker(void)
{
    const pid_t pid = start();
    if (pid) return pid;
    kvm_err err = {0};
    const kvm_worker_options o = {.home = kvm_str_of(home),
                                  .catalogue = kvm_str_of(where),
                                  .queue = kvm_str_of(redis_server_unix()),
                                  .kind_of = kind_of,
                                  .machine = KVM_STR("m"),
                                  .job_bytes = 64 << 20,
                                  .signals = true};
    if (kvm_worker_run(&o, NULL, &err)) die("worker", err.msg);
    _exit(0);
}

static pid_t start_scheduler(void)
{
    const pid_t pid = start();
    if (pid) return pid;
    kvm_err err = {0};
    const kvm_scheduler_options o = {.catalogue = kvm_str_of(where),
                                     .queue = kvm_str_of(redis_server_unix()),
                                     .name = KVM_STR("scheduler"),
                                     .signals = true};
    if (kvm_scheduler_run(&o, NULL, &err)) die("scheduler", err.msg);
    _exit(0);
}

typedef struct base {
    kvm_arena keep;
    kvm_catalogue *c;
    kvm_queue *q;
} base;

static void open_base(base *b)
{
    static char id[KVM_CATALOGUE_ID];
    OK(kvm_arena_init(&b->keep, (size_t)1 << 30, &err));
    OK(kvm_catalogue_open(&b->c, &b->keep, kvm_str_of(where), NULL, &err));
    OK(kvm_catalogue_id(b->c, id, &err));
    OK(kvm_queue_open(&b->q, &b->keep,
                      &(kvm_queue_options){.where = kvm_str_of(redis_server_unix()),
                                           .catalogue = kvm_str_of(id),
                                           .name = KVM_STR("bench")},
                      &err));
}

/* A run of n no-op jobs. */
static int64_t submit(base *b, long n)
{
    static long serial;
    char params[40], key[40];
    int64_t run, id;
    snprintf(key, sizeof key, "run %ld", serial);
    OK(kvm_catalogue_begin(b->c, &err));
    OK(kvm_run_insert(b->c,
                      &(kvm_run_new){.team = KVM_STR("t"),
                                     .pair = KVM_STR("p"),
                                     .spec = KVM_STR("{}"),
                                     .key = key},
                      &run, &err));
    for (long i = 0; i < n; i++) {
        snprintf(params, sizeof params, "{\"n\":%ld}", serial++);
        OK(kvm_job_insert(b->c,
                          &(kvm_job_new){.run = run,
                                         .kind = KVM_JOB_STATS,
                                         .kind_name = "stats",
                                         .version = kvm_job_kind_version(KVM_JOB_STATS),
                                         .class = "small",
                                         .label = KVM_STR("no-op"),
                                         .params = kvm_str_of(params),
                                         .identity = KVM_STR("{}")},
                          &id, &err));
    }
    OK(kvm_catalogue_commit(b->c, &err));
    return run;
}

static void wait_for(base *b, int64_t run)
{
    kvm_run_state s = KVM_RUN_OPEN;
    for (const double until = kvm_now() + 600; s == KVM_RUN_OPEN; kvm_sleep(0.005)) {
        OK(kvm_run_state_of(b->c, run, &s, &err));
        if (kvm_now() > until) die("run", "it does not end");
    }
    if (s != KVM_RUN_SUCCEEDED) die("run", "it has not succeeded");
}

static double claimed_at(base *b, int64_t run)
{
    json_t *rows;
    kvm_arena keep = kvm_arena_split(&b->keep, 1 << 20);
    const kvm_view_filter f = {.column = "run", .number = run};
    OK(kvm_catalogue_view(b->c, &rows, &keep, "v_queue", &f, 1, 0, &err));
    const double at =
        json_real_value(json_object_get(json_array_get(rows, 0), "started_at"));
    kvm_arena_free(&keep);
    return at;
}

/* Processes of one machine: its clock is the database's. */
static void pickup(base *b)
{
    double ms[PICKUPS];
    for (int i = 0; i < PICKUPS; i++) {
        const int64_t run = submit(b, 1);
        const double done = kvm_wall();
        OK(kvm_queue_wake(b->q, &err));
        wait_for(b, run);
        ms[i] = 1e3 * (claimed_at(b, run) - done);
        kvm_sleep(0.01);
    }
    qsort(ms, PICKUPS, sizeof *ms, by_size);
    printf("pickup: p50 %.2f ms, p90 %.2f, p99 %.2f, most %.2f (%d jobs)\n",
           ms[PICKUPS / 2], ms[PICKUPS * 9 / 10], ms[PICKUPS * 99 / 100],
           ms[PICKUPS - 1], PICKUPS);
}

static void choose_catalogue(int argc, char **argv)
{
    if (argc > 3 && strcmp(argv[3], "sqlite") != 0) {
        snprintf(where, sizeof where, "%s", argv[3]);
        return;
    }
    if (argc > 3) {
        snprintf(where, sizeof where, "%s/catalogue-%ld.db", home, (long)getpid());
        return;
    }
    setenv("KVM_PG_SYNC", "1", 1);
    if (!pg_server_start()) die("PostgreSQL", "install postgresql");
    snprintf(where, sizeof where, "%s", pg_server_schema());
}

int main(int argc, char **argv)
{
    const long jobs = number_of(argc, argv, 1, 20000);
    const int count = number_of(argc, argv, 2, 2);
    pid_t all[WORKERS_MOST + 1];
    base b;
    if (count < 1 || count > WORKERS_MOST) die("workers", "1 to 16");
    signal(SIGPIPE, SIG_IGN);
    OK(kvm_dir_make(kvm_str_of(home), &err));
    choose_catalogue(argc, argv);
    if (!redis_server_start()) die("Redis", "install redis-server");
    open_base(&b);
    const double begun = kvm_now();
    const int64_t run = submit(&b, jobs);
    printf("%s, %d workers\nsubmit: %.0f jobs/s\n",
           kvm_str_starts(kvm_str_of(where), KVM_STR("postgres")) ? "PostgreSQL"
                                                                  : "SQLite",
           count, (double)jobs / (kvm_now() - begun));
    const double started = kvm_now();
    all[count] = start_scheduler();
    for (int i = 0; i < count; i++) all[i] = start_worker();
    wait_for(&b, run);
    printf(
        "end to end: %.0f jobs/s (%ld no-op jobs, from the start of the processes)\n",
        (double)jobs / (kvm_now() - started), jobs);
    pickup(&b);
    for (int i = 0; i <= count; i++) kill(all[i], SIGTERM);
    for (int i = 0; i <= count; i++) waitpid(all[i], NULL, 0);
    kvm_arena_free(&b.keep);
    return 0;
}
