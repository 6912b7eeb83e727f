/* Many processes at one catalogue: what they do at random, each job ends once. */
#define _DEFAULT_SOURCE   /* MAP_ANONYMOUS */
#define _XOPEN_SOURCE 700 /* nftw */
#include "schema/job_state.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "tests/support/one_run.h"

enum { PEOPLE = 6, RUNS = 3, LAYERS = 5, WIDTH = 5, JOBS = RUNS * LAYERS * WIDTH };

/* what the processes share */
typedef struct crowd {
    atomic_bool calm;       /* no mischief any more: what is left is worked off */
    atomic_int done[JOBS];  /* how often somebody was told that it has committed */
    atomic_int busy, steps; /* calls that found a lock, or no server */
} crowd;
static crowd *shared;
static int64_t first_job, first_run;

static int set_up(void **state)
{
    (void)state;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(shared, MAP_FAILED);
    *shared = (crowd){0};
    return one_run_begin("job_crowd");
}
static int put_down(void **state)
{
    munmap(shared, sizeof *shared);
    return tear_down(state);
}

/* Layers of jobs that need all of the layer before. Jobs of a layer are pairs of equal
 * steps, and the runs are equal too: each step is there six times. */
static void fill(void)
{
    for (int r = 0; r < RUNS; r++) {
        int64_t ids[2][WIDTH];
        if (r > 0) {
            const kvm_run_new n = {.team = KVM_STR("t"),
                                   .pair = KVM_STR("p"),
                                   .spec = KVM_STR("{}"),
                                   .key = "k"};
            MUST(kvm_run_insert(c, &n, &run, e));
        }
        if (r == 0) first_run = run;
        for (int l = 0; l < LAYERS; l++)
            for (int i = 0; i < WIDTH; i++) {
                kvm_job_dep deps[WIDTH];
                for (int k = 0; k < WIDTH; k++)
                    deps[k] = (kvm_job_dep){kvm_str_fmt(&keep, "in%d", k),
                                            ids[(l + 1) % 2][k], KVM_STR("out")};
                ids[l % 2][i] = add_kind(1, l * WIDTH + i / 2, deps, l ? WIDTH : 0);
                if (r + l + i == 0) first_job = ids[0][0];
            }
    }
}

/* ---- one of them ---- */

typedef struct person {
    kvm_rng r;
    kvm_arena mem;
    kvm_catalogue *c;
    int64_t worker;
    kvm_claim held;
    bool holds;
} person;

static bool chance(person *p, uint64_t of)
{
    return kvm_rng_below(&p->r, of) == 0;
}

static kvm_status finish(person *p, kvm_err *err)
{
    const kvm_claim *k = &p->held;
    char sha[65];
    snprintf(sha, sizeof sha, "%064lld", (long long)k->fence.job);
    const kvm_result_artefact a = {KVM_STR("out"), kvm_str_of(sha), 3};
    const kvm_result r = {.artefacts = &a, .artefact_count = 1};
    const kvm_status s = k->equal ? kvm_job_skip(p->c, k->fence, k->equal, err)
                                  : kvm_job_succeed(p->c, k->fence, &r, err);
    if (!s) atomic_fetch_add(&shared->done[k->fence.job - first_job], 1);
    return s;
}

static const kvm_queue_policy never_park = {.crash_limit = 1 << 30,
                                            .retry_limit = 1 << 30,
                                            .backoff_s = 1e-3,
                                            .backoff_most_s = 1e-3};

static kvm_status give_up(person *p, kvm_err *err)
{
    const kvm_err why = {.code = KVM_IO, .msg = "disk"};
    switch (kvm_rng_below(&p->r, 4)) {
    case 0:
        return kvm_job_fail(p->c, p->held.fence, &why, NULL, &never_park, err);
    case 1:
        return kvm_job_crash(p->c, p->held.fence, KVM_STR("x"), NULL, &never_park, err);
    case 2:
        return kvm_job_release(p->c, p->held.fence, NULL, err);
    default:
        return KVM_OK; /* and says nothing: the lease runs out */
    }
}

static kvm_status meddle(person *p, kvm_err *err)
{
    const int64_t job = first_job + (int64_t)kvm_rng_below(&p->r, JOBS);
    const int64_t of = first_run + (int64_t)kvm_rng_below(&p->r, RUNS);
    ptrdiff_t n;
    switch (kvm_rng_below(&p->r, 4)) {
    case 0:
        return kvm_job_cancel(p->c, job, NULL, err);
    case 1:
        return kvm_job_retry(p->c, job, err);
    case 2:
        return chance(p, 8) ? kvm_run_cancel(p->c, of, err) : KVM_OK;
    default:
        return kvm_run_retry(p->c, of, &n, err);
    }
}

static kvm_status step(person *p, kvm_err *err)
{
    const bool calm = atomic_load(&shared->calm);
    ptrdiff_t n;
    if (chance(p, 6)) return kvm_jobs_reap(p->c, &never_park, &n, err);
    if (!calm && chance(p, 4)) return meddle(p, err);
    if (calm && chance(p, 4))
        return kvm_run_retry(p->c, first_run + (int64_t)kvm_rng_below(&p->r, RUNS), &n,
                             err);
    if (!p->holds) {
        kvm_arena_reset(&p->mem);
        return kvm_test_claim(p->c, &p->held, &p->holds, &p->mem, p->worker, 0,
                              chance(p, 4) ? 0.02 : 1, err);
    }
    p->holds = false;
    return calm || !chance(p, 3) ? finish(p, err) : give_up(p, err);
}

static kvm_status look(person *p, bool *over, kvm_err *err)
{
    *over = true;
    for (int i = 0; i < RUNS; i++) {
        kvm_run_state s;
        TRY(kvm_run_state_of(p->c, first_run + i, &s, err));
        *over = *over && s == KVM_RUN_SUCCEEDED;
    }
    return KVM_OK;
}

/* Until all is done; what may happen to anybody is no failure. */
static int live(int number)
{
    person p = {.r = kvm_rng_seed(20261130, (uint64_t)number)};
    kvm_err err = {0};
    kvm_arena mine;
    bool over = false;
    char name[32];
    snprintf(name, sizeof name, "person %d", number);
    if (kvm_arena_init(&mine, 1 << 20, &err) || kvm_arena_init(&p.mem, 1 << 20, &err) ||
        kvm_catalogue_open(&p.c, &mine, kvm_str_of(path), NULL, &err) ||
        kvm_worker_register(p.c, kvm_str_of(name), KVM_STR("host"), KVM_STR("m"),
                            &p.worker, &err)) {
        fprintf(stderr, "# %s: %s\n", name, err.msg);
        return 1;
    }
    const double until = kvm_now() + 120;
    while (!over) {
        kvm_err e = {0};
        kvm_status s = step(&p, &e);
        if (!s && atomic_load(&shared->calm)) s = look(&p, &over, &e);
        atomic_fetch_add(&shared->steps, 1);
        if (s == KVM_BUSY || (s == KVM_ENVIRONMENT && kvm_test_on_server)) {
            atomic_fetch_add(&shared->busy, 1);
            kvm_sleep(0.02);
        } else if (s && s != KVM_LOST && s != KVM_CANCELLED && s != KVM_USAGE) {
            fprintf(stderr, "# %s: %s (%s)\n", name, e.msg, kvm_status_name(s));
            return 1;
        }
        if (kvm_now() > until) {
            fprintf(stderr, "# %s: it does not end\n", name);
            return 1;
        }
    }
    return 0;
}

static void gather(pid_t pids[PEOPLE])
{
    fflush(NULL);
    for (int i = 0; i < PEOPLE; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] == 0) _exit(live(i));
    }
}

static void all_ended_well(pid_t pids[PEOPLE])
{
    int bad = 0;
    for (int i = 0; i < PEOPLE; i++) {
        int status;
        waitpid(pids[i], &status, 0);
        bad += status != 0;
    }
    assert_int_equal(bad, 0);
}

/* ---- what must hold ---- */

#define NUMBER(sql) kvm_test_number(path, sql)

static void each_job_ended_once(bool answers_lost)
{
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM job WHERE state IN "
                            "('succeeded', 'skipped')"),
                     JOBS);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM run WHERE state = 'succeeded'"),
                     RUNS);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM job WHERE waits <> 0"), 0);
    /* one attempt each has brought it there, and left one artefact */
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM attempt WHERE outcome IN "
                            "('succeeded', 'skipped')"),
                     JOBS);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM artefact"), JOBS);
    assert_int_equal(NUMBER("SELECT COUNT(DISTINCT job_id) FROM artefact"), JOBS);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM attempt WHERE ended_at IS NULL"), 0);
    /* equal steps were done once */
    assert_int_equal(NUMBER("SELECT COUNT(DISTINCT key) FROM job"),
                     NUMBER("SELECT COUNT(*) FROM job WHERE state = 'succeeded'"));
    for (int i = 0; i < JOBS; i++) {
        const int told = atomic_load(&shared->done[i]);
        if (told != 1 && !(answers_lost && told == 0))
            fail_msg("job %d: committed %d times", i, told);
    }
}

static void nobody_waited_in_a_circle(void)
{
    char log[100];
    if (!kvm_test_on_server) return;
    snprintf(log, sizeof log, "%s/log", pg_server_folder());
    kvm_arena a = keep;
    assert_null(strstr(check_read(&a, log).at, "deadlock"));
}

static void a_crowd_ends_each_job_once(void **state)
{
    (void)state;
    pid_t pids[PEOPLE];
    fill();
    gather(pids);
    kvm_sleep(3);
    atomic_store(&shared->calm, true);
    all_ended_well(pids);
    each_job_ended_once(false);
    nobody_waited_in_a_circle();
    print_message("# %d calls, %d found a lock\n", shared->steps, shared->busy);
}

static void a_server_that_crashes_loses_nothing(void **state)
{
    (void)state;
    pid_t pids[PEOPLE];
    if (!kvm_test_on_server) return;
    fill();
    gather(pids);
    for (int i = 0; i < 3; i++) {
        kvm_sleep(1);
        const int64_t before = NUMBER("SELECT COUNT(*) FROM attempt");
        pg_server_stop();
        pg_server_again();
        assert_true(NUMBER("SELECT COUNT(*) FROM attempt") >= before);
    }
    atomic_store(&shared->calm, true);
    all_ended_well(pids);
    each_job_ended_once(true);
    nobody_waited_in_a_circle();
    print_message("# %d calls, %d found no server or a lock\n", shared->steps,
                  shared->busy);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, put_down)
    const struct CMUnitTest tests[] = {
        T(a_crowd_ends_each_job_once),
        T(a_server_that_crashes_loses_nothing),
    };
    return kvm_test_both("job_crowd", tests);
}
