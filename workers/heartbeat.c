/* heartbeat.c - the lease of the running job, renewed every third of it.
 *
 * The thread does nothing else and touches no kernel library, so no long computation
 * can starve it. It asks more often than it renews, since a cancellation must arrive
 * within 5 s. Whatever the clocks of other machines say, the worker trusts only
 * `until`: the monotonic time before the last renewal that succeeded, plus the
 * lease. */
#include <errno.h>
#include <math.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "schema/fault.h"
#include "workers/worker_internal.h"

double kvm_beat__left(const kvm_beat *b)
{
    return kvm_unbits(atomic_load(&b->until)) - kvm_now();
}

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

static kvm_status beat_once(kvm_beat *b, double *renewed, kvm_err *err)
{
    bool cancelling = false;
    const double now = kvm_now();
    if (now - *renewed >= b->lease_s / 3) {
        kvm_fault(KVM_FAULT_IN_RENEW);
        TRY(kvm_job_renew(b->catalogue, b->fence, b->lease_s, &cancelling, err));
        *renewed = now;
        atomic_store(&b->until, kvm_bits(now + b->lease_s));
    } else {
        TRY(kvm_job_asked(b->catalogue, b->fence, &cancelling, err));
    }
    if (cancelling) atomic_store(&b->cancelling, true);
    return KVM_OK;
}

static void *beat(void *arg)
{
    kvm_beat *b = arg;
    const double step = b->lease_s / 6 < 1 ? b->lease_s / 6 : 1;
    double renewed = kvm_unbits(atomic_load(&b->until)) - b->lease_s;
    kvm_trouble told = {0};
    while (!wait_stop(b, step)) {
        kvm_err err = {0};
        const kvm_status s = beat_once(b, &renewed, &err);
        if (s == KVM_LOST) {
            atomic_store(&b->lost, true);
            break;
        }
        if (s)
            kvm_log_trouble(&told, "lease.trouble", (long long)b->fence.job, err.msg);
        else
            kvm_log_relief(&told, "lease.trouble", (long long)b->fence.job);
    }
    return NULL;
}

kvm_status kvm_beat__start(kvm_beat *b, kvm_catalogue *c, kvm_fence f, double lease_s,
                           double claimed_at, kvm_err *err)
{
    pthread_condattr_t attr;
    sigset_t all, before;
    b->catalogue = c;
    b->fence = f;
    b->lease_s = lease_s;
    b->stop = false;
    atomic_store(&b->lost, false);
    atomic_store(&b->cancelling, false);
    atomic_store(&b->until, kvm_bits(claimed_at + lease_s));
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
