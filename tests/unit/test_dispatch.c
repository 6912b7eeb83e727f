/* From ready jobs to hints: the window, what went astray, and the scheduler's loop. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "scheduler/dispatch.h"

#include "scheduler/scheduler.h"
#include "schema/leader.h"
#include "tests/support/fake_kinds.h"
#include "tests/support/redis_server.h"

static fake_base b;
static kvm_dispatch d;
static kvm_queue *q; /* a worker's */
static int64_t worker;
static char id[KVM_CATALOGUE_ID];

static kvm_queue *open_queue(const char *name)
{
    kvm_queue *out;
    MUST(kvm_queue_open(&out, &b.keep,
                        &(kvm_queue_options){.where = kvm_str_of(redis_server_unix()),
                                             .catalogue = kvm_str_of(id),
                                             .name = kvm_str_of(name)},
                        e));
    return out;
}

static int set_up(void **state)
{
    (void)state;
    redis_server_do("FLUSHALL");
    fake_open(&b, "dispatch");
    MUST(kvm_catalogue_id(b.c, id, e));
    d = (kvm_dispatch){.catalogue = b.c, .queue = open_queue("scheduler")};
    MUST(kvm_arena_init(&d.names, 1 << 20, e));
    MUST(kvm_arena_init(&d.scratch, 16 << 20, e));
    q = open_queue("worker");
    MUST(kvm_worker_register(b.c, KVM_STR("worker"), KVM_STR("h"), KVM_STR("m"),
                             &worker, e));
    MUST(kvm_worker_serves(b.c, worker, &(kvm_want){0}, e));
    return 0;
}
static int tear_down(void **state)
{
    (void)state;
    kvm_arena_free(&d.names);
    kvm_arena_free(&d.scratch);
    fake_close(&b);
    return 0;
}

static void submit(ptrdiff_t n, const char *class)
{
    const kvm_graph g = kvm_test_graph(&b.keep, n, false, KVM_JOB_CAPTURE, 0);
    char sql[100];
    fake_submit(&b, &g, false);
    snprintf(sql, sizeof sql, "UPDATE job SET class = '%s'", class);
    kvm_test_sql(b.db, sql);
}
static int64_t send_ready(void)
{
    int64_t jobs = 0;
    MUST(kvm_dispatch_look(&d, 30, e));
    MUST(kvm_dispatch_ready(&d, &jobs, e));
    return jobs;
}
static int64_t audit(void)
{
    int64_t jobs = 0;
    kvm_test_sql(b.db, "UPDATE job SET sent_at = sent_at - 10");
    MUST(kvm_dispatch_audit(&d, 60, &jobs, e));
    return jobs;
}
static int64_t waiting(const char *class)
{
    ptrdiff_t n;
    MUST(
        kvm_queue_waiting(d.queue, &(kvm_queue_class){kvm_str_of(class), 1, 0}, &n, e));
    return n;
}
static ptrdiff_t take_and_claim(void)
{
    kvm_hint hint;
    bool found;
    kvm_claim *claims;
    ptrdiff_t n;
    MUST(kvm_queue_take(q, &hint, &found, 0, e));
    if (!found) return 0;
    MUST(kvm_jobs_claim(b.c, &hint.batch, &claims, &n, &b.keep, worker, 60, e));
    MUST(kvm_queue_settle(q, &hint, e));
    return n;
}
#define NUMBER(sql) kvm_test_number(b.db, sql)
#define DISPATCHED NUMBER("SELECT COUNT(*) FROM job WHERE state = 'dispatched'")

static void no_more_hints_than_workers_need(void **state)
{
    (void)state;
    submit(100, "cpu");
    assert_int_equal(send_ready(), 2 + KVM_DISPATCH_SPARE);
    assert_int_equal(DISPATCHED, 2 + KVM_DISPATCH_SPARE);
    assert_int_equal(waiting("cpu"), 2 + KVM_DISPATCH_SPARE);
    assert_int_equal(send_ready(), 0);
    for (int i = 0; i < 10; i++) assert_int_equal(take_and_claim(), 1);
    assert_int_equal(send_ready(), 0); /* half of them will do */
    for (int i = 0; i < 23; i++) assert_int_equal(take_and_claim(), 1);
    assert_int_equal(send_ready(), 33);
    assert_int_equal(audit(), 0);
}

static void small_jobs_go_together(void **state)
{
    (void)state;
    submit(3 * KVM_BATCH_MOST + 5, "small");
    assert_int_equal(send_ready(), 3 * KVM_BATCH_MOST + 5);
    assert_int_equal(waiting("small"), 4);
    assert_int_equal(take_and_claim(), KVM_BATCH_MOST);
}

static void nobody_there_nothing_sent(void **state)
{
    (void)state;
    submit(3, "gpu");
    assert_int_equal(send_ready(), 0);
    MUST(kvm_worker_gone(b.c, worker, e));
    kvm_test_sql(b.db, "UPDATE job SET class = 'cpu'");
    assert_int_equal(send_ready(), 0);
    assert_int_equal(DISPATCHED, 0);
}

static void what_went_astray_is_sent_again_once(void **state)
{
    (void)state;
    submit(20, "cpu");
    assert_int_equal(send_ready(), 20);
    for (int i = 0; i < 5; i++) assert_int_equal(take_and_claim(), 1);
    assert_int_equal(audit(), 0);
    redis_server_do("FLUSHALL");
    assert_int_equal(audit(), 15);
    assert_int_equal(waiting("cpu"), 15);
    assert_int_equal(audit(), 0);
    for (int i = 0; i < 15; i++) assert_int_equal(take_and_claim(), 1);
    assert_int_equal(take_and_claim(), 0);
    assert_int_equal(audit(), 0);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM attempt"), 20);
}

/* A key of another type where a stream should be: that class's workers look by
 * themselves; the classes after it go on. */
static void a_broken_class_keeps_no_other_back(void **state)
{
    (void)state;
    submit(4, "cpu");
    kvm_test_sql(b.db, "UPDATE job SET class = 'small' WHERE id > 2");
    const kvm_str broken = kvm_str_fmt(&b.keep, "SET kvmill:%s:cpu x", id);
    redis_server_do(broken.at);
    assert_int_equal(send_ready(), 2);
    assert_int_equal(waiting("small"), 1);
    assert_int_equal(audit(), 0);
    redis_server_do("FLUSHALL");
    redis_server_do(broken.at);
    assert_int_equal(audit(), 2);
    assert_int_equal(waiting("small"), 1);
    assert_int_equal(d.trouble.times > 1, true);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM job WHERE state = 'ready'"), 2);
    redis_server_do("FLUSHALL"); /* mended */
    assert_int_equal(send_ready(), 2);
    assert_int_equal(waiting("cpu"), 2);
}

/* As a scheduler leaves it that dies between the two. */
static void what_was_marked_and_not_sent_is_sent(void **state)
{
    (void)state;
    submit(70, "small");
    kvm_job_batch one = {.count = 60};
    for (int i = 0; i < 60; i++) one.jobs[i] = (kvm_fence){i + 1, 0};
    MUST(kvm_jobs_dispatched(b.c, &one, e));
    assert_int_equal(send_ready(), 10);
    assert_int_equal(audit(), 60);
    assert_int_equal(take_and_claim(), 10);
    assert_int_equal(take_and_claim(), 60);
}

/* Hints for jobs that have gone on, and for jobs that are none, do nothing. */
static void a_stale_hint_claims_nothing(void **state)
{
    (void)state;
    submit(2, "cpu");
    assert_int_equal(send_ready(), 2);
    const kvm_job_batch stale = {3, {{1, 7}, {2, 5}, {99, 0}}};
    const kvm_queue_class cpu = {KVM_STR("cpu"), 1, 0};
    MUST(kvm_queue_send(d.queue, &cpu, &stale, 1, e));
    assert_int_equal(take_and_claim(), 1);
    assert_int_equal(take_and_claim(), 1);
    assert_int_equal(take_and_claim(), 0);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM attempt"), 2);
}

/* ---- the loop ---- */

static pid_t scheduler(const char *name, const char *fault)
{
    const pid_t pid = fork();
    if (pid > 0) return pid;
    if (fault) setenv("KVMILL_FAULT", fault, 1);
    kvm_err err = {0};
    const kvm_scheduler_options o = {.catalogue = fake_catalogue,
                                     .queue = kvm_str_of(redis_server_unix()),
                                     .name = kvm_str_of(name),
                                     .reconcile_s = 1,
                                     .lease_s = 2,
                                     .signals = true};
    if (kvm_scheduler_run(&o, NULL, &err)) fprintf(stderr, "# %s\n", err.msg);
    _exit(err.code);
}

static void it_sends_what_is_submitted_and_ends_when_told(void **state)
{
    (void)state;
    const pid_t pid = scheduler("one", NULL);
    submit(5, "cpu");
    MUST(kvm_queue_wake(q, e));
    fake_until(b.db, "SELECT COUNT(*) FROM job WHERE state = 'dispatched'", 5, 20);
    fake_until(b.db, "SELECT COUNT(*) FROM outbox WHERE sent_at IS NULL", 0, 20);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM leader"), 1);
    kill(pid, SIGTERM);
    assert_int_equal(fake_join(pid, 20), 0);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM leader"), 0);
}

/* Killed where it hurts most, or by chance; of two, one leads, and the other goes
 * on. */
static void the_next_one_goes_on(void **state)
{
    (void)state;
    submit(60, "cpu");
    assert_int_equal(fake_join(scheduler("a", "before_send:2"), 20), 137);
    assert_int_equal(fake_join(scheduler("b", "after_send:1"), 20), 137);
    const pid_t two[] = {scheduler("c", NULL), scheduler("d", NULL)};
    fake_until(b.db, "SELECT COUNT(*) FROM job WHERE state = 'dispatched'", 60, 20);
    int64_t done = 0;
    for (const double until = kvm_now() + 20; done < 60 && kvm_now() < until;
         kvm_sleep(0.01))
        done += take_and_claim();
    assert_int_equal(done, 60);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM attempt"), 60);
    for (int i = 0; i < 2; i++) {
        kill(two[i], SIGTERM);
        assert_int_equal(fake_join(two[i], 20), 0);
    }
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(no_more_hints_than_workers_need),
        TEST(small_jobs_go_together),
        TEST(nobody_there_nothing_sent),
        TEST(what_went_astray_is_sent_again_once),
        TEST(a_broken_class_keeps_no_other_back),
        TEST(what_was_marked_and_not_sent_is_sent),
        TEST(a_stale_hint_claims_nothing),
        TEST(it_sends_what_is_submitted_and_ends_when_told),
        TEST(the_next_one_goes_on),
    };
    if (!redis_server_start()) return 0;
    return kvm_test_both("dispatch", tests);
}
