/* A region is announced by one store to `ticket`: the number of the region in its high
 * half, the parts that nobody has taken yet in its low half. Whoever takes a part
 * lowers the low half by compare-and-swap.
 *
 *   idle ──kvm_pool_run──► open (parts left > 0) ──take()──► drained (parts left = 0)
 *     ▲                                                            │
 *     └──────────────── finish(): done = parts ◄───────────────────┘
 *
 * 1. fn, ctx, base and parts are written only while idle, before ticket (seq_cst
 *    store).
 * 2. They are read only by a thread that holds a part, i.e. between its
 *    compare-and-swap and its increment of done; the region cannot end before that, so
 *    they cannot change.
 * 3. A late thread that slept through a region finds 0 parts left or, by the number of
 *    the region, fails its compare-and-swap: it can never take a part of a region whose
 *    fields it has not seen.
 * 4. Nobody sleeps on news: a sleeper counts itself in `asleep` before it looks at
 *    ticket a last time, the owner stores ticket before it looks at asleep (both
 *    seq_cst). */
#define _GNU_SOURCE /* sched_getaffinity, CPU_COUNT */
#include "base/pool.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

enum { MAX_THREADS = 1024, SPINS = 4000, LINE = 64 };
#define PART_MAX ((ptrdiff_t)1 << 30) /* parts of one region; longer runs are cut */

typedef struct worker {
    kvm_pool *pool;
    pthread_t thread;
    int number; /* 1 .. threads - 1; the owner is thread 0 */
} worker;

/* ticket and done change with every part: each has a cache line of its own, so that the
 * fields that all threads read stay in every cache. NOLINTNEXTLINE(*Padding) */
struct kvm_pool {
    _Alignas(LINE) _Atomic uint64_t ticket;
    _Alignas(LINE) _Atomic ptrdiff_t done;
    _Alignas(LINE) void (*fn)(void *, ptrdiff_t, int);
    void *ctx;
    ptrdiff_t base, parts;
    uint32_t region; /* owner only */
    bool running;    /* owner only */
    int threads, started, spins;
    _Atomic bool stop;
    _Atomic int asleep;       /* workers in or near their wait */
    _Atomic bool owner_waits; /* the owner is in or near its wait */
    pthread_mutex_t lock;     /* guards only the two waits */
    pthread_cond_t work, finished;
    worker *workers; /* (threads - 1) */
};

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static uint32_t parts_left(uint64_t ticket)
{
    return (uint32_t)ticket;
}

/* Takes the next part; false when none is left. Gives the count that was left. */
static bool take(kvm_pool *p, uint32_t *left)
{
    uint64_t t = atomic_load(&p->ticket);
    while (parts_left(t) > 0)
        if (atomic_compare_exchange_weak(&p->ticket, &t, t - 1)) {
            *left = parts_left(t);
            return true;
        }
    return false;
}

static void work(kvm_pool *p, int thread)
{
    uint32_t left;
    while (take(p, &left)) {
        const ptrdiff_t parts = p->parts;
        p->fn(p->ctx, p->base + (parts - (ptrdiff_t)left), thread);
        /* from here on the region may end: nothing but the counters may be touched */
        if (atomic_fetch_add(&p->done, 1) + 1 == parts && thread > 0 &&
            atomic_load(&p->owner_waits)) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->finished);
            pthread_mutex_unlock(&p->lock);
        }
    }
}

static bool news(kvm_pool *p)
{
    return atomic_load(&p->stop) || parts_left(atomic_load(&p->ticket)) > 0;
}

static void await_work(kvm_pool *p)
{
    for (int i = 0; i < p->spins; i++) {
        if (news(p)) return;
        relax();
    }
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->asleep, 1);
    while (!news(p)) pthread_cond_wait(&p->work, &p->lock);
    atomic_fetch_sub(&p->asleep, 1);
    pthread_mutex_unlock(&p->lock);
}

static void *worker_main(void *arg)
{
    const worker *self = arg;
    kvm_pool *p = self->pool;
    for (;;) {
        await_work(p);
        if (atomic_load(&p->stop)) return NULL;
        work(p, self->number);
    }
}

static void wake_workers(kvm_pool *p)
{
    if (atomic_load(&p->asleep) == 0) return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
}

static void await_finish(kvm_pool *p)
{
    for (int i = 0; i < p->spins; i++) {
        if (atomic_load(&p->done) == p->parts) return;
        relax();
    }
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->owner_waits, true);
    while (atomic_load(&p->done) != p->parts) pthread_cond_wait(&p->finished, &p->lock);
    atomic_store(&p->owner_waits, false);
    pthread_mutex_unlock(&p->lock);
}

static void run_region(kvm_pool *p, ptrdiff_t base, ptrdiff_t parts)
{
    p->base = base;
    p->parts = parts;
    atomic_store(&p->done, 0);
    atomic_store(&p->ticket, (uint64_t)++p->region << 32 | (uint64_t)parts);
    wake_workers(p);
    work(p, 0);
    await_finish(p);
}

void kvm_pool_run(kvm_pool *pool, ptrdiff_t parts,
                  void (*fn)(void *ctx, ptrdiff_t part, int thread), void *ctx)
{
    if (kvm_pool_threads(pool) == 1 || parts == 1) {
        for (ptrdiff_t i = 0; i < parts; i++) fn(ctx, i, 0);
        return;
    }
    assert(!pool->running); /* one region at a time, by the owner */
    pool->running = true;
    pool->fn = fn;
    pool->ctx = ctx;
    for (ptrdiff_t base = 0; base < parts; base += PART_MAX)
        run_region(pool, base, parts - base < PART_MAX ? parts - base : PART_MAX);
    pool->running = false;
}

int kvm_pool_threads(const kvm_pool *pool)
{
    return pool ? pool->threads : 1;
}

/* --- birth and death --- */

static void join_all(void *arg)
{
    kvm_pool *p = arg;
    atomic_store(&p->stop, true);
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->started; i++) pthread_join(p->workers[i].thread, NULL);
    pthread_cond_destroy(&p->finished);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
}

static int cpus_allowed(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set)) return 1; /* beyond 1024 CPUs: EINVAL */
    const int n = CPU_COUNT(&set);
    return n < 1 ? 1 : n;
}

/* Signals are for the main thread, so workers are born with all of them blocked. */
static kvm_status start_workers(kvm_pool *p, kvm_err *err)
{
    sigset_t all, before;
    int failed = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (!failed && p->started < p->threads - 1) {
        const int i = p->started;
        p->workers[i].pool = p;
        p->workers[i].number = i + 1;
        failed =
            pthread_create(&p->workers[i].thread, NULL, worker_main, &p->workers[i]);
        if (!failed) p->started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed) return KVM_OK;
    return kvm_fail(err, KVM_NOMEM, "cannot start thread %d of %d: %s", p->started + 2,
                    p->threads, strerror(failed));
}

kvm_status kvm_pool_new(kvm_pool **pool, kvm_arena *keep, int threads, kvm_err *err)
{
    const int cpus = cpus_allowed();
    if (threads == 0) threads = cpus;
    if (threads < 1 || threads > MAX_THREADS)
        return kvm_fail(err, KVM_USAGE,
                        "%d threads; possible are 1 to %d, or 0 for one "
                        "per CPU",
                        threads, MAX_THREADS);
    kvm_pool *p = kvm_new(keep, kvm_pool, 1);
    if (!p) return kvm_nomem(err, keep);
    p->workers = kvm_arena_alloc(keep, sizeof *p->workers, LINE, threads);
    if (!p->workers) return kvm_nomem(err, keep);
    p->threads = threads;
    /* with more threads than CPUs a spinning one only keeps a working one waiting */
    p->spins = threads > cpus ? 0 : SPINS;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->finished, NULL);
    const kvm_status s = start_workers(p, err);
    if (s) {
        join_all(p);
        return s;
    }
    TRY(kvm_arena_defer(keep, join_all, p, err));
    *pool = p;
    return KVM_OK;
}
