/* queue_redis.h - what the two halves of the Redis queue share: queue_redis.c (workers)
 * and queue_audit.c (a scheduler). Private to them.
 *
 *   kvmill:ID:CLASS[:RANKS][:MEMORYm]  a stream of batches; group `workers`, a consumer
 *                                      for each worker, by its name
 *   kvmill:ID:wake                     a stream of one entry: look for ready jobs
 *   kvmill:ID:streams                  a set: the keys of the streams of batches
 * ID is the catalogue's, so that several may share a server. */
#ifndef KVM_SCHEDULER_QUEUE_REDIS_H
#define KVM_SCHEDULER_QUEUE_REDIS_H

#include "scheduler/queue.h"
#include "scheduler/redis.h"

enum { KVM_STREAM_BYTES = 128, KVM_STREAMS_MOST = 4 };
#define KVM_STREAM_GROUP KVM_STR("workers")

typedef struct kvm_redis_queue {
    kvm_redis *r;
    kvm_str prefix, wake, streams;                /* keys */
    char key[KVM_STREAMS_MOST][KVM_STREAM_BYTES]; /* a worker's */
    ptrdiff_t count;
    ptrdiff_t turn;                /* which of them is asked first */
    char heard[KVM_RECEIPT_BYTES]; /* the latest wake */
} kvm_redis_queue;

/* kvm_stream__key - KVM_USAGE: the class's name is too long */
KVM_MUST kvm_status kvm_stream__key(const kvm_redis_queue *s,
                                    const kvm_queue_class *class,
                                    char key[KVM_STREAM_BYTES], kvm_err *err);
/* kvm_stream__entry - one entry of an answer; false: it is none of ours, or broken.
 * *id (borrows) is set whenever there is one. */
bool kvm_stream__entry(const kvm_reply *entry, kvm_str *id, kvm_job_batch *b);
/* kvm_stream__done - adds the commands that end an entry */
void kvm_stream__done(const kvm_redis_queue *s, kvm_str key, kvm_str id);
/* kvm_stream__all - exchanges what was added; the first refusal counts */
KVM_MUST kvm_status kvm_stream__all(const kvm_redis_queue *s, kvm_err *err);

KVM_MUST kvm_status kvm_stream__listen(kvm_queue *q, double seconds, kvm_err *err);
KVM_MUST kvm_status kvm_stream__waiting(kvm_queue *q, const kvm_queue_class *class,
                                        ptrdiff_t *n, kvm_err *err);
KVM_MUST kvm_status kvm_stream__audit(kvm_queue *q, const kvm_queue_class *class,
                                      double idle_s, kvm_queue_there *there, void *ctx,
                                      kvm_err *err);
KVM_MUST kvm_status kvm_stream__forget(kvm_queue *q, const kvm_queue_class *live,
                                       ptrdiff_t n, double idle_s, kvm_err *err);
KVM_MUST kvm_status kvm_stream__look(kvm_queue *q, kvm_queue_stream **streams,
                                     ptrdiff_t *n, kvm_arena *keep, kvm_err *err);

#endif
