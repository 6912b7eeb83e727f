/* queue.h - how a worker hears which jobs it may take. The catalogue owns the jobs; a
 * queue only carries hints, so losing it loses time, never a job.
 *
 *   local  a FIFO beside the catalogue wakes the workers of this machine. A hint says
 *          nothing more; who misses it looks by itself.
 *   redis  a scheduler (scheduler.h) sends batches of (job, token), each an entry of
 *          the stream of those workers who can do it; one worker gets it, and settles
 *          it when what became of it is committed. An entry whose token is old claims
 *          nothing, so entries may come twice, late or never.
 *
 * A worker takes a hint, or, when none comes within some seconds or the queue is in
 * trouble, looks into the catalogue (schema/job_order.h). One queue belongs to one
 * thread; a forked child must not use it. */
#ifndef KVM_SCHEDULER_QUEUE_H
#define KVM_SCHEDULER_QUEUE_H

#include "schema/catalogue.h"
#include "schema/job_order.h"

/* Workers that can do the same: their class, the greatest gang that they start (1:
 * none) and their memory (0: not said). */
typedef struct kvm_queue_class {
    kvm_str name;
    int ranks;
    int64_t memory_mib;
} kvm_queue_class;

/* One entry: a batch to be claimed together. */
enum { KVM_RECEIPT_BYTES = 48 };
typedef struct kvm_hint {
    kvm_job_batch batch;
    int stream;                      /* the driver's: where it came from */
    char receipt[KVM_RECEIPT_BYTES]; /* the driver's; "": not from a queue */
} kvm_hint;

/* How a stream stands. */
typedef struct kvm_queue_stream {
    kvm_str key;
    int64_t length;    /* entries, those that somebody has included */
    int64_t pending;   /* handed out, not settled */
    int64_t consumers; /* workers that have read it */
    double oldest_s;   /* age of the oldest entry; 0: there is none */
} kvm_queue_stream;

typedef struct kvm_queue kvm_queue;
/* told of a batch; may not use the queue */
typedef kvm_status kvm_queue_there(void *ctx, const kvm_job_batch *b, kvm_err *err);

typedef struct kvm_queue_driver {
    const char *name;
    /* fills q->impl. A server that is not there is no failure; one that lets nobody in
     * is. */
    kvm_status (*open)(kvm_queue *q, kvm_err *err);
    kvm_status (*send)(kvm_queue *q, const kvm_queue_class *class,
                       const kvm_job_batch *batches, ptrdiff_t n, kvm_err *err);
    kvm_status (*take)(kvm_queue *q, kvm_hint *hint, bool *found, double seconds,
                       kvm_err *err);
    kvm_status (*settle)(kvm_queue *q, const kvm_hint *hint, kvm_err *err);
    kvm_status (*wake)(kvm_queue *q, kvm_err *err);
    /* ---- a scheduler's part; NULL: this queue has none ---- */
    kvm_status (*listen)(kvm_queue *q, double seconds, kvm_err *err);
    kvm_status (*waiting)(kvm_queue *q, const kvm_queue_class *class, ptrdiff_t *n,
                          kvm_err *err);
    kvm_status (*audit)(kvm_queue *q, const kvm_queue_class *class, double idle_s,
                        kvm_queue_there *there, void *ctx, kvm_err *err);
    kvm_status (*forget)(kvm_queue *q, const kvm_queue_class *live, ptrdiff_t n,
                         double idle_s, kvm_err *err);
    kvm_status (*look)(kvm_queue *q, kvm_queue_stream **streams, ptrdiff_t *n,
                       kvm_arena *keep, kvm_err *err);
} kvm_queue_driver;

typedef struct kvm_queue_options {
    kvm_str where;      /* redis://… (redis.h); empty: local */
    kvm_str home;       /* of a local queue: HOME/wake */
    kvm_str catalogue;  /* kvm_catalogue_id: whose jobs the hints are about */
    kvm_str name;       /* this worker's or scheduler's, unique for ever */
    kvm_want want;      /* what a worker can do; unused by a scheduler */
    bool (*stop)(void); /* ends waiting; NULL: nothing does */
} kvm_queue_options;

struct kvm_queue {
    const kvm_queue_driver *driver;
    kvm_queue_options o;
    kvm_arena *keep; /* what impl lives in, and is closed by */
    void *impl;
};

/* kvm_queue_open - closed by keep; options' texts are borrowed. KVM_USAGE for an
 * address that cannot be read; KVM_ENVIRONMENT, KVM_UNSUPPORTED for a server that says
 * no. */
KVM_MUST kvm_status kvm_queue_open(kvm_queue **q, kvm_arena *keep,
                                   const kvm_queue_options *options, kvm_err *err);
/* kvm_queue_scheduled - whether a scheduler sends the hints: workers then leave the
 * outbox to it */
bool kvm_queue_scheduled(const kvm_queue *q);
/* kvm_queue_send - n batches to workers of a class */
KVM_MUST kvm_status kvm_queue_send(kvm_queue *q, const kvm_queue_class *class,
                                   const kvm_job_batch *batches, ptrdiff_t n,
                                   kvm_err *err);
/* kvm_queue_take - a hint, waiting for one up to `seconds`. found: whether the hint
 * names jobs; a local queue's never does. In trouble it has waited too, a second at
 * most, so callers may look into the catalogue and call again. KVM_CANCELLED: `stop`
 * said so. */
KVM_MUST kvm_status kvm_queue_take(kvm_queue *q, kvm_hint *hint, bool *found,
                                   double seconds, kvm_err *err);
/* kvm_queue_settle - what became of jobs is committed: the hint is done with (NULL:
 * they came without one), and whoever hands out work may look for what was waiting for
 * them. A failure loses time only: the entry will be found stale. */
KVM_MUST kvm_status kvm_queue_settle(kvm_queue *q, const kvm_hint *hint, kvm_err *err);
/* kvm_queue_wake - there may be ready jobs (after a submission's commit) */
KVM_MUST kvm_status kvm_queue_wake(kvm_queue *q, kvm_err *err);
/* kvm_queue_relay - of a queue without a scheduler: hand the outbox's rows on and mark
 * them sent. Hint, then mark: a crash between the two hints again, which harms
 * nobody. */
KVM_MUST kvm_status kvm_queue_relay(kvm_queue *q, kvm_catalogue *c, kvm_err *err);

/* ---- for a scheduler: only of a queue that is kvm_queue_scheduled ---- */

/* kvm_queue_listen - until somebody wakes or settles, for at most `seconds` */
KVM_MUST kvm_status kvm_queue_listen(kvm_queue *q, double seconds, kvm_err *err);
/* kvm_queue_waiting - batches that are sent to a class and nobody has taken */
KVM_MUST kvm_status kvm_queue_waiting(kvm_queue *q, const kvm_queue_class *class,
                                      ptrdiff_t *n, kvm_err *err);
/* kvm_queue_audit - the entries of a class: those that somebody took idle_s ago and did
 * not settle are taken back and dropped (he is gone, or long at it), what is settled is
 * trimmed, consumers without a sign of life are removed; there(ctx) is told each batch
 * that is left, waiting or at work. */
KVM_MUST kvm_status kvm_queue_audit(kvm_queue *q, const kvm_queue_class *class,
                                    double idle_s, kvm_queue_there *there, void *ctx,
                                    kvm_err *err);
/* kvm_queue_forget - streams of other classes than those that live, when nobody has
 * read them for idle_s */
KVM_MUST kvm_status kvm_queue_forget(kvm_queue *q, const kvm_queue_class *live,
                                     ptrdiff_t n, double idle_s, kvm_err *err);
/* kvm_queue_look - all streams of this catalogue, by key */
KVM_MUST kvm_status kvm_queue_look(kvm_queue *q, kvm_queue_stream **streams,
                                   ptrdiff_t *n, kvm_arena *keep, kvm_err *err);

/* ---- a batch as text: "JOB TOKEN JOB TOKEN …" ---- */

enum { KVM_BATCH_TEXT = KVM_BATCH_MOST * 42 };
kvm_str kvm_batch_write(const kvm_job_batch *b, char text[KVM_BATCH_TEXT]);
/* kvm_batch_read - false, and *b untouched, for anything but 1 to KVM_BATCH_MOST pairs
 * of a positive number and one that is not negative, with single blanks between */
bool kvm_batch_read(kvm_job_batch *b, kvm_str text);

extern const kvm_queue_driver kvm_queue_local, kvm_queue_redis;

#endif
