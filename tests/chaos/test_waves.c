/* Many small runs at once, few large ones, and work without end: all of it is done
 * once, nothing is left in the table, and nobody grows. (queue.md, 5: row 6.) */
#define _XOPEN_SOURCE 700 /* nftw */
#include "tests/chaos/fleet.h"

enum { WORKERS = 2, SLICE = 5000, MIB_MORE = 24 };
static const double SOAK_S = 720; /* the whole soak ends after so long, done or not */

static pid_t workers[WORKERS];

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

/* A run of no-op jobs, each another step. */
static int64_t submit(kvm_queue *q, int jobs)
{
    static long serial;
    char params[40], key[40];
    int64_t run, id;
    snprintf(key, sizeof key, "run %ld", serial);
    const kvm_run_new r = {
        .team = KVM_STR("t"), .pair = KVM_STR("p"), .spec = KVM_STR("{}"), .key = key};
    MUST(kvm_catalogue_begin(b.c, e));
    MUST(kvm_run_insert(b.c, &r, &run, e));
    for (int i = 0; i < jobs; i++) {
        snprintf(params, sizeof params, "{\"n\":%ld}", serial++);
        const kvm_job_new j = {.run = run,
                               .kind = KVM_JOB_STATS,
                               .kind_name = "stats",
                               .version = kvm_job_kind_version(KVM_JOB_STATS),
                               .class = "small",
                               .label = KVM_STR("no-op"),
                               .params = kvm_str_of(params),
                               .identity = KVM_STR("{}")};
        MUST(kvm_job_insert(b.c, &j, &id, e));
    }
    MUST(kvm_catalogue_commit(b.c, e));
    MUST(kvm_queue_wake(q, e));
    return run;
}

static kvm_queue *begin(void)
{
    static char id[KVM_CATALOGUE_ID];
    kvm_queue *q;
    fleet_open("waves");
    MUST(kvm_catalogue_id(b.c, id, e));
    const kvm_queue_options o = {.where = kvm_str_of(redis_server_unix()),
                                 .catalogue = kvm_str_of(id),
                                 .name = KVM_STR("test")};
    MUST(kvm_queue_open(&q, &b.keep, &o, e));
    kvm_worker_options w = fleet_options(60);
    w.kind_of = kind_of;
    fleet_scheduler = fleet_start_scheduler();
    for (int i = 0; i < WORKERS; i++) workers[i] = fake_worker(w, NULL);
    return q;
}

/* All are done once, by one attempt each; no hint and no folder is left. */
static void end(int64_t jobs)
{
    fake_until(b.db, FLEET_LEFT, 0, 600);
    fleet_stop(workers, WORKERS);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM job WHERE state = 'succeeded'"),
                     jobs);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM attempt WHERE outcome <> 'released'"),
                     jobs);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM run WHERE state <> 'succeeded'"), 0);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM outbox WHERE sent_at IS NULL"), 0);
    char left[300];
    snprintf(left, sizeof left, "%s/work", fake_home);
    assert_int_equal(rmdir(left), 0); /* it is empty */
    fake_close(&b);
}

/* So many runs of so many jobs, one every `ms`. */
static void wave(int runs, int jobs, int ms)
{
    kvm_queue *q = begin();
    char what[80];
    double at = kvm_now();
    for (int i = 0; i < runs; i++, at += ms / 1e3) {
        kvm_sleep(at - kvm_now());
        submit(q, jobs);
    }
    const double submitted = kvm_now();
    fake_until(b.db, FLEET_LEFT, 0, 600);
    const double drained = kvm_now() - submitted;
    end((int64_t)runs * jobs);
    snprintf(what, sizeof what, "%d runs of %d, one every %d ms", runs, jobs, ms);
    fleet_record("6", what, 1, drained);
}

static void waves_drain(void **state)
{
    (void)state;
    wave(chaos_count(40, 1000), 1, 10);
    wave(chaos_count(60, 1000), 1, 5);
    wave(chaos_count(60, 5000), 4, 0);
    wave(chaos_count(3, 200), 200, 0);
}

/* ---- the soak ---- */

static long resident_kib(pid_t pid)
{
    char path[64], line[200];
    long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "VmRSS:", 6)) kib = strtol(line + 6, NULL, 10);
    if (f) fclose(f);
    assert_true(kib > 0);
    return kib;
}

static void look_at_all(long kib[WORKERS + 1])
{
    for (int i = 0; i < WORKERS; i++) kib[i] = resident_kib(workers[i]);
    kib[WORKERS] = resident_kib(fleet_scheduler);
}

static void wait_for(int64_t run)
{
    kvm_run_state s = KVM_RUN_OPEN;
    for (const double until = kvm_now() + 300; s == KVM_RUN_OPEN; kvm_sleep(0.01)) {
        MUST(kvm_run_state_of(b.c, run, &s, e));
        if (kvm_now() > until) fail_msg("run %lld does not end", (long long)run);
    }
    assert_int_equal(s, KVM_RUN_SUCCEEDED);
}

/* Slices, of which the next one always waits already. A tenth is to get warm. 100 bytes
 * lost by each of 500,000 jobs would be 48 MiB. */
static void nobody_grows(void **state)
{
    (void)state;
    kvm_queue *q = begin();
    const int slice = chaos_count(SLICE / 10, SLICE), slices = chaos_count(8, 100);
    long warm[WORKERS + 1], now[WORKERS + 1], most[2] = {0};
    const double begun = kvm_now();
    int n = 0;
    int64_t last = submit(q, slice);
    for (; n < slices && kvm_now() - begun < SOAK_S; n++) {
        const int64_t next = n + 1 < slices ? submit(q, slice) : 0;
        wait_for(last);
        if (n <= slices / 10) look_at_all(warm);
        last = next;
    }
    if (last) wait_for(last);
    look_at_all(now);
    for (int i = 0; i <= WORKERS; i++) {
        const long more = now[i] - warm[i];
        if (more > most[i == WORKERS]) most[i == WORKERS] = more;
        if (more > MIB_MORE * 1024L)
            fail_msg("%s: %ld KiB when warm, %ld KiB at the end",
                     i == WORKERS ? "scheduler" : "worker", warm[i], now[i]);
    }
    const int jobs = (n + (last != 0)) * slice;
    const double seconds = kvm_now() - begun;
    printf("# %d jobs, %.0f a second; a worker has grown by %.1f MiB, the scheduler by "
           "%.1f\n",
           jobs, jobs / seconds, (double)most[0] / 1024, (double)most[1] / 1024);
    end(jobs);
    char what[80];
    snprintf(what, sizeof what, "a soak of %d no-op jobs", jobs);
    fleet_record("6", what, 1, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waves_drain),
        cmocka_unit_test(nobody_grows),
    };
    if (!fleet_servers()) return 0;
    return cmocka_run_group_tests_name("waves", tests, NULL, NULL);
}
