/* The pool: every part once, results that do not depend on threads, sleeping and
 * waking, more threads than CPUs. Run under ThreadSanitizer too (make tsan). */
#include "base/pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "tests/support/check.h"

typedef struct counts {
    _Atomic int seen[5000];
    _Atomic int wrong_thread;
    int threads;
} counts;

static void count_part(void *ctx, ptrdiff_t part, int thread)
{
    counts *c = ctx;
    atomic_fetch_add(&c->seen[part], 1);
    if (thread < 0 || thread >= c->threads) atomic_fetch_add(&c->wrong_thread, 1);
}

static void every_part_runs_exactly_once(void **state)
{
    (void)state;
    static counts c;
    for (int threads = 1; threads <= 5; threads++) {
        kvm_arena keep = check_arena(1 << 20);
        kvm_err err = {0};
        kvm_pool *pool;
        check_ok(kvm_pool_new(&pool, &keep, threads, &err), &err);
        assert_int_equal(kvm_pool_threads(pool), threads);
        for (ptrdiff_t parts = 0; parts <= 5000; parts += parts < 70 ? 1 : 986) {
            memset(&c, 0, sizeof c);
            c.threads = threads;
            kvm_pool_run(pool, parts, count_part, &c);
            for (ptrdiff_t i = 0; i < 5000; i++)
                assert_int_equal(atomic_load(&c.seen[i]), i < parts);
            assert_int_equal(atomic_load(&c.wrong_thread), 0);
        }
        kvm_arena_free(&keep);
    }
}

static void no_pool_is_one_thread(void **state)
{
    (void)state;
    static counts c = {.threads = 1};
    assert_int_equal(kvm_pool_threads(NULL), 1);
    kvm_pool_run(NULL, 10, count_part, &c);
    for (int i = 0; i < 10; i++) assert_int_equal(atomic_load(&c.seen[i]), 1);
    assert_int_equal(atomic_load(&c.wrong_thread), 0);
}

typedef struct orders {
    ptrdiff_t latest[3]; /* of each thread: only that thread writes it */
    _Atomic int backwards;
} orders;

static void note_order(void *ctx, ptrdiff_t part, int thread)
{
    orders *o = ctx;
    if (part < o->latest[thread]) atomic_fetch_add(&o->backwards, 1);
    o->latest[thread] = part;
}

static void parts_are_taken_in_order(void **state)
{
    (void)state;
    kvm_arena keep = check_arena(1 << 20);
    kvm_err err = {0};
    kvm_pool *pool;
    check_ok(kvm_pool_new(&pool, &keep, 3, &err), &err);
    for (int t = 0; t < 50; t++) {
        orders o = {.latest = {0}};
        kvm_pool_run(pool, 500, note_order, &o);
        assert_int_equal(atomic_load(&o.backwards), 0);
    }
    kvm_arena_free(&keep);
}

typedef struct sums {
    const float *x;      /* (parts, 1000) */
    double partial[200]; /* (parts) */
} sums;

static void sum_part(void *ctx, ptrdiff_t part, int thread)
{
    (void)thread;
    sums *s = ctx;
    double sum = 0.0;
    for (int i = 0; i < 1000; i++) sum += (double)s->x[part * 1000 + i] * 1.0000001;
    s->partial[part] = sum;
}

static void results_are_the_same_bits_for_any_number_of_threads(void **state)
{
    (void)state;
    kvm_arena keep = check_arena(4 << 20);
    float *x = kvm_new_raw(&keep, float, (ptrdiff_t)200 * 1000);
    kvm_rng r = kvm_rng_seed(1, 0);
    for (int i = 0; i < 200 * 1000; i++) x[i] = (float)kvm_rng_normal(&r);
    static sums first, again;
    for (int threads = 1; threads <= 4; threads++) {
        kvm_err err = {0};
        kvm_arena own = check_arena(1 << 20);
        kvm_pool *pool;
        check_ok(kvm_pool_new(&pool, &own, threads, &err), &err);
        for (int t = 0; t < 20; t++) {
            again = (sums){.x = x};
            kvm_pool_run(pool, 200, sum_part, &again);
            if (threads == 1 && t == 0) first = again;
            assert_memory_equal(first.partial, again.partial, sizeof first.partial);
        }
        kvm_arena_free(&own);
    }
    kvm_arena_free(&keep);
}

static void nothing(void *ctx, ptrdiff_t part, int thread)
{
    (void)part, (void)thread;
    atomic_fetch_add((_Atomic long *)ctx, 1);
}

/* Thousands of regions of few parts: late threads meet the next region, the owner often
 * finishes alone. Pauses in between send the workers to sleep and wake them. */
static void many_small_regions(void **state)
{
    (void)state;
    for (int threads = 2; threads <= 4; threads++) {
        kvm_arena keep = check_arena(1 << 20);
        kvm_err err = {0};
        kvm_pool *pool;
        _Atomic long total = 0;
        long expected = 0;
        check_ok(kvm_pool_new(&pool, &keep, threads, &err), &err);
        for (int i = 0; i < 5000; i++) {
            const ptrdiff_t parts = 2 + i % 5;
            kvm_pool_run(pool, parts, nothing, &total);
            expected += parts;
            assert_int_equal(atomic_load(&total), expected);
            if (i % 500 == 0) kvm_sleep(0.002);
        }
        kvm_arena_free(&keep);
    }
}

static void slow_part(void *ctx, ptrdiff_t part, int thread)
{
    (void)thread;
    kvm_sleep(part == 0 ? 0.0 : 0.02);
    atomic_fetch_add((_Atomic long *)ctx, 1);
}

static void the_owner_waits_for_the_slowest(void **state)
{
    (void)state;
    kvm_arena keep = check_arena(1 << 20);
    kvm_err err = {0};
    kvm_pool *pool;
    _Atomic long total = 0;
    check_ok(kvm_pool_new(&pool, &keep, 3, &err), &err);
    for (long i = 1; i <= 5; i++) {
        kvm_pool_run(pool, 3, slow_part, &total);
        assert_int_equal(atomic_load(&total), 3 * i);
    }
    kvm_arena_free(&keep);
}

static void a_pool_that_is_never_used_ends(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        kvm_arena keep = check_arena(1 << 20);
        kvm_err err = {0};
        kvm_pool *pool;
        check_ok(kvm_pool_new(&pool, &keep, 1 + i % 4, &err), &err);
        kvm_arena_free(&keep);
    }
}

static void bad_sizes_are_refused(void **state)
{
    (void)state;
    kvm_arena keep = check_arena(1 << 20);
    kvm_pool *pool = NULL;
    kvm_err err = {0};
    check_status(KVM_USAGE, kvm_pool_new(&pool, &keep, -1, &err), &err);
    err = (kvm_err){0};
    check_status(KVM_USAGE, kvm_pool_new(&pool, &keep, 100000, &err), &err);
    err = (kvm_err){0};
    kvm_arena none = {0};
    check_status(KVM_NOMEM, kvm_pool_new(&pool, &none, 2, &err), &err);
    /* room for the pool, but not for its cleanup: the threads must be joined at once */
    for (size_t bytes = 64; bytes < 2048; bytes += 8) {
        kvm_arena part = kvm_arena_split(&keep, bytes);
        err = (kvm_err){0};
        const kvm_status s = kvm_pool_new(&pool, &part, 2, &err);
        if (s) check_status(KVM_NOMEM, s, &err);
        kvm_arena_free(&part);
    }
    err = (kvm_err){0};
    check_ok(kvm_pool_new(&pool, &keep, 0, &err), &err);
    assert_true(kvm_pool_threads(pool) >= 1);
    kvm_arena_free(&keep);
}

static _Atomic int in_worker;
static void check_signals(void *ctx, ptrdiff_t part, int thread)
{
    (void)ctx, (void)part;
    sigset_t set;
    pthread_sigmask(SIG_SETMASK, NULL, &set);
    if (thread > 0 && sigismember(&set, SIGTERM)) atomic_fetch_add(&in_worker, 1);
    if (thread == 0 && sigismember(&set, SIGTERM))
        atomic_fetch_add(&in_worker, 1000000);
    kvm_sleep(0.001);
}

static void signals_are_for_the_owner(void **state)
{
    (void)state;
    kvm_arena keep = check_arena(1 << 20);
    kvm_err err = {0};
    kvm_pool *pool;
    check_ok(kvm_pool_new(&pool, &keep, 2, &err), &err);
    for (int t = 0; t < 100 && atomic_load(&in_worker) == 0; t++)
        kvm_pool_run(pool, 20, check_signals, NULL);
    assert_true(atomic_load(&in_worker) > 0 && atomic_load(&in_worker) < 1000000);
    kvm_arena_free(&keep);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_part_runs_exactly_once),
        cmocka_unit_test(no_pool_is_one_thread),
        cmocka_unit_test(parts_are_taken_in_order),
        cmocka_unit_test(results_are_the_same_bits_for_any_number_of_threads),
        cmocka_unit_test(many_small_regions),
        cmocka_unit_test(the_owner_waits_for_the_slowest),
        cmocka_unit_test(a_pool_that_is_never_used_ends),
        cmocka_unit_test(bad_sizes_are_refused),
        cmocka_unit_test(signals_are_for_the_owner),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
