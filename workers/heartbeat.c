/* heartbeat.c - the leases of the running batch, renewed every third of them.
 *
 * The thread does nothing else and touches no kernel library, so no long computation
 * can starve it. It asks more often than it renews, since a cancellation must arrive
 * within 5 s. Whatever the clocks of other machines say, the worker trusts only
 * `until`: the monotonic time before the last renewal that succeeded, plus the lease.
 * On the way it writes down how far the job is, and hears whether the worker is to
 * stop. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "schema/fault.h"
#include "workers/worker_internal.h"

static const double PROGRESS_S = 2; /* it is written down at most so often */

double kvm_beat__left(const kvm_beat *b)
{
    return kvm_unbits(atomic_load(&b->until)) - kvm_now();
}

/* What the thread remembers from one beat to the next. */
typedef struct memory {
    double renewed, written;
    unsigned long updates;
} memory;

/* Waits; true when it is time to end. */
static bool wait_stop(kvm_beat *b, double seconds)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    const double at = kvm_seconds(t) + seconds;
    t.tv_sec = (time_t)floor(at);
    t.tv_nsec = (long)((at - floor(at)) * 1e9);
    pthread_mutex_lock(&b->lock);
    while (!b->stop && pthread_cond_timedwait(&b->wake, &b->lock, &t) != ETIMEDOUT) {
    }
    const bool stop = b->stop;
    pthread_mutex_unlock(&b->lock);
    return stop;
}

static kvm_status renew(kvm_beat *b, memory *m, kvm_err *err)
{
    unsigned char states[KVM_BATCH_MOST];
    const double now = kvm_now();
    if (now - m->renewed >= b->lease_s / 3) {
        kvm_fault(KVM_FAULT_IN_RENEW);
        TRY(kvm_jobs_renew(b->catalogue, b->jobs, b->count, b->lease_s, states, err));
        m->renewed = now;
        atomic_store(&b->until, kvm_bits(now + b->lease_s));
    } else {
        TRY(kvm_jobs_asked(b->catalogue, b->jobs, b->count, states, err));
    }
    for (ptrdiff_t i = 0; i < b->count; i++) /* what is lost stays lost */
        if (atomic_load(&b->lease[i]) != KVM_LEASE_LOST)
            atomic_store(&b->lease[i], states[i]);
    return KVM_OK;
}

static kvm_status write_progress(kvm_beat *b, memory *m, kvm_err *err)
{
    const kvm_shared *s = b->shared;
    const unsigned long updates = s ? atomic_load(&s->updates) : 0;
    uint64_t text[KVM_PROGRESS_UNIT / 8];
    if (updates == m->updates || kvm_now() - m->written < PROGRESS_S) return KVM_OK;
    m->updates = updates;
    m->written = kvm_now();
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        text[i] = atomic_load(&s->unit[i]);
    ((char *)text)[sizeof text - 1] = 0;
    return kvm_job_progress(b->catalogue, b->jobs[kvm_shared_at(s, b->count)],
                            kvm_unbits(atomic_load(&s->done)),
                            kvm_unbits(atomic_load(&s->total)),
                            kvm_str_of((const char *)text), err);
}

static kvm_status beat_once(kvm_beat *b, memory *m, kvm_err *err)
{
    bool drain = false;
    TRY(renew(b, m, err));
    TRY(kvm_worker_asked(b->catalogue, b->worker, &drain, err));
    if (drain) kvm_worker__asked();
    return write_progress(b, m, err);
}

static void *beat(void *arg)
{
    kvm_beat *b = arg;
    const double step = b->lease_s / 6 < 1 ? b->lease_s / 6 : 1;
    memory m = {.renewed = kvm_unbits(atomic_load(&b->until)) - b->lease_s};
    kvm_trouble told = {0};
    while (!wait_stop(b, step)) {
        kvm_err err = {0};
        if (beat_once(b, &m, &err))
            kvm_log_trouble(&told, "lease.trouble", (long long)b->jobs[0].job, err.msg);
        else
            kvm_log_relief(&told, "lease.trouble", (long long)b->jobs[0].job);
    }
    return NULL;
}

void kvm_beat__set(kvm_beat *b, const kvm_fence *jobs, ptrdiff_t count, double lease_s,
                   double claimed_at)
{
    memcpy(b->jobs, jobs, sizeof *jobs * (size_t)count);
    b->count = count;
    b->lease_s = lease_s;
    for (ptrdiff_t i = 0; i < count; i++) atomic_store(&b->lease[i], KVM_LEASE_HELD);
    atomic_store(&b->until, kvm_bits(claimed_at + lease_s));
}

kvm_status kvm_beat__start(kvm_beat *b, kvm_catalogue *c, int64_t worker,
                           const kvm_shared *shared, kvm_err *err)
{
    pthread_condattr_t attr;
    sigset_t all, before;
    b->catalogue = c;
    b->worker = worker;
    b->shared = shared;
    b->stop = false;
    pthread_mutex_init(&b->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&b->wake, &attr);
    pthread_condattr_destroy(&attr);
    sigfillset(&all); /* signals are for the main thread */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int rc = pthread_create(&b->thread, NULL, beat, b);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc == 0) return KVM_OK;
    pthread_cond_destroy(&b->wake);
    pthread_mutex_destroy(&b->lock);
    return kvm_fail(err, KVM_NOMEM, "cannot start the heartbeat thread (error %d)", rc);
}

void kvm_beat__stop(kvm_beat *b)
{
    pthread_mutex_lock(&b->lock);
    b->stop = true;
    pthread_cond_signal(&b->wake);
    pthread_mutex_unlock(&b->lock);
    pthread_join(b->thread, NULL);
    pthread_cond_destroy(&b->wake);
    pthread_mutex_destroy(&b->lock);
}
