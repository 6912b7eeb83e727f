#include "scheduler/queue.h"

#include <stdio.h>

#include "base/clock.h"

static const double TROUBLE_S = 1, SLICE_S = 0.2;

kvm_status kvm_queue_open(kvm_queue **out, kvm_arena *keep,
                          const kvm_queue_options *options, kvm_err *err)
{
    kvm_queue *q = kvm_new(keep, kvm_queue, 1);
    if (!q) return kvm_nomem(err, keep);
    *q = (kvm_queue){.driver = options->where.len ? &kvm_queue_redis : &kvm_queue_local,
                     .o = *options,
                     .keep = keep};
    TRY(q->driver->open(q, err));
    *out = q;
    return KVM_OK;
}

bool kvm_queue_scheduled(const kvm_queue *q)
{
    return q->driver->listen != NULL;
}

kvm_status kvm_queue_send(kvm_queue *q, const kvm_queue_class *class,
                          const kvm_job_batch *batches, ptrdiff_t n, kvm_err *err)
{
    return n > 0 ? q->driver->send(q, class, batches, n, err) : KVM_OK;
}

static void wait_out(const kvm_queue *q, double seconds)
{
    const double until = kvm_now() + (seconds < TROUBLE_S ? seconds : TROUBLE_S);
    for (double left; (left = until - kvm_now()) > 0;) {
        if (q->o.stop && q->o.stop()) return;
        kvm_sleep(left < SLICE_S ? left : SLICE_S);
    }
}

kvm_status kvm_queue_take(kvm_queue *q, kvm_hint *hint, bool *found, double seconds,
                          kvm_err *err)
{
    *found = false;
    const kvm_status s = q->driver->take(q, hint, found, seconds, err);
    if (s && s != KVM_CANCELLED) wait_out(q, seconds);
    return s;
}

kvm_status kvm_queue_settle(kvm_queue *q, const kvm_hint *hint, kvm_err *err)
{
    return q->driver->settle(q, hint, err);
}

kvm_status kvm_queue_wake(kvm_queue *q, kvm_err *err)
{
    return q->driver->wake(q, err);
}

kvm_status kvm_queue_relay(kvm_queue *q, kvm_catalogue *c, kvm_err *err)
{
    while (!kvm_queue_scheduled(q)) {
        int64_t ids[KVM_OUTBOX_MOST];
        ptrdiff_t count = 0;
        TRY(kvm_outbox_next(c, ids, &count, err));
        if (count == 0) return KVM_OK;
        for (ptrdiff_t i = 0; i < count; i++) TRY(kvm_queue_wake(q, err));
        TRY(kvm_outbox_sent(c, ids, count, err));
    }
    return KVM_OK;
}

/* ---- a scheduler's part ---- */

kvm_status kvm_queue_listen(kvm_queue *q, double seconds, kvm_err *err)
{
    return q->driver->listen(q, seconds, err);
}

kvm_status kvm_queue_waiting(kvm_queue *q, const kvm_queue_class *class, ptrdiff_t *n,
                             kvm_err *err)
{
    return q->driver->waiting(q, class, n, err);
}

kvm_status kvm_queue_audit(kvm_queue *q, const kvm_queue_class *class, double idle_s,
                           kvm_queue_there *there, void *ctx, kvm_err *err)
{
    return q->driver->audit(q, class, idle_s, there, ctx, err);
}

kvm_status kvm_queue_forget(kvm_queue *q, const kvm_queue_class *live, ptrdiff_t n,
                            double idle_s, kvm_err *err)
{
    return q->driver->forget(q, live, n, idle_s, err);
}

kvm_status kvm_queue_look(kvm_queue *q, kvm_queue_stream **streams, ptrdiff_t *n,
                          kvm_arena *keep, kvm_err *err)
{
    return q->driver->look(q, streams, n, keep, err);
}

/* ---- a batch as text ---- */

kvm_str kvm_batch_write(const kvm_job_batch *b, char text[KVM_BATCH_TEXT])
{
    int n = 0;
    for (ptrdiff_t i = 0; i < b->count; i++)
        n += snprintf(text + n, (size_t)(KVM_BATCH_TEXT - n), "%s%lld %lld",
                      i ? " " : "", (long long)b->jobs[i].job,
                      (long long)b->jobs[i].token);
    return (kvm_str){text, n};
}

/* the next number of digits alone; false: there is none */
static bool next_number(kvm_str *rest, bool *more, int64_t *n)
{
    kvm_str word;
    *more = kvm_str_cut(*rest, ' ', &word, rest);
    return word.len > 0 && word.at[0] >= '0' && word.at[0] <= '9' &&
           kvm_str_to_i64(word, n);
}

bool kvm_batch_read(kvm_job_batch *out, kvm_str text)
{
    kvm_job_batch b = {0};
    for (bool more = true; more;) {
        if (b.count == KVM_BATCH_MOST) return false;
        kvm_fence *f = &b.jobs[b.count++];
        if (!next_number(&text, &more, &f->job) || !more || f->job < 1) return false;
        if (!next_number(&text, &more, &f->token)) return false;
    }
    *out = b;
    return true;
}
