/* worker_internal.h - shared by worker.c (the loop), child.c (the process in which jobs
 * run), folder.c (what a job keeps), heartbeat.c, settle.c (what becomes of them) and
 * commit.c (results into store and catalogue). */
#ifndef KVM_WORKERS_WORKER_INTERNAL_H
#define KVM_WORKERS_WORKER_INTERNAL_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "base/log.h"
#include "scheduler/queue.h"
#include "schema/store.h"
#include "workers/host.h"
#include "workers/spent.h"
#include "workers/worker.h"

/* How far the child is with a job. */
typedef enum kvm_phase { KVM_PHASE_WAITS, KVM_PHASE_RUNS, KVM_PHASE_OVER } kvm_phase;

/* A page that the worker shares with its child, which serves the jobs of a batch one
 * after another. Who writes stands with each. */
typedef struct kvm_shared {
    atomic_int at;                         /* child: the job that it is at */
    atomic_int phase[KVM_BATCH_MOST];      /* child: kvm_phase of each */
    _Atomic uint64_t took[KVM_BATCH_MOST]; /* child: bits of seconds, when it is over */
    _Atomic int64_t
        recorded[KVM_BATCH_MOST]; /* child: where its records end, likewise */
    /* child: of the job it is at: bits of kvm_now() and of its own CPU seconds when
     * that began */
    _Atomic uint64_t began, began_cpu;
    atomic_bool stop; /* worker: no other job is begun */
    atomic_bool
        cancel[KVM_BATCH_MOST];   /* worker: that job is to stop, or to stay out */
    _Atomic uint64_t done, total; /* child: bits of the doubles */
    _Atomic uint64_t unit[KVM_PROGRESS_UNIT / 8]; /* child: text */
    _Atomic unsigned long updates; /* child: raised after each progress report */
    kvm_err trouble; /* child: why it left no verdict; read when it has ended */
} kvm_shared;

/* The job that the child is at, of `count`. It writes the page, and a job may write
 * anywhere. */
static inline ptrdiff_t kvm_shared_at(const kvm_shared *s, ptrdiff_t count)
{
    const int at = atomic_load(&s->at);
    return at < 0 ? 0 : at < count ? at : count - 1;
}

/* heartbeat.c: renews the leases of a batch from a thread of its own. */
typedef struct kvm_beat {
    kvm_catalogue *catalogue; /* a connection for its thread alone while it runs */
    int64_t worker;
    const kvm_shared *shared; /* progress to write down; NULL: none */
    kvm_fence jobs[KVM_BATCH_MOST];
    ptrdiff_t count;
    double lease_s;
    pthread_t thread;
    pthread_mutex_t lock; /* of stop */
    pthread_cond_t wake;
    bool stop;
    atomic_uchar lease[KVM_BATCH_MOST]; /* kvm_lease of each, as last heard */
    _Atomic uint64_t until; /* bits of the kvm_now() until which the leases hold */
} kvm_beat;

/* kvm_beat__set - what it is about: the lease of each counts from claimed_at, a
 * kvm_now() before the claim. kvm_beat__start - and from now on it is renewed. */
void kvm_beat__set(kvm_beat *b, const kvm_fence *jobs, ptrdiff_t count, double lease_s,
                   double claimed_at);
KVM_MUST kvm_status kvm_beat__start(kvm_beat *b, kvm_catalogue *c, int64_t worker,
                                    const kvm_shared *shared, kvm_err *err);
void kvm_beat__stop(kvm_beat *b);
double kvm_beat__left(const kvm_beat *b); /* seconds of lease that surely remain */

typedef struct kvm_worker {
    kvm_worker_options o; /* defaults filled in */
    kvm_arena keep;       /* for the worker's life */
    kvm_arena mem;        /* for one batch; reset after it */
    kvm_catalogue *catalogue, *beat_catalogue;
    kvm_store *store;
    kvm_queue *queue;
    kvm_hint hint;
    bool hinted;    /* the hint is yet to be followed */
    bool alone;     /* the queue is in trouble: the catalogue is looked at */
    double look_at; /* kvm_now() when it is, without a hint */
    kvm_trouble queue_trouble;
    int64_t id;
    kvm_str host;
    kvm_shared *shared;
    int records; /* a file without a name, in which the child records */
    bool full;   /* the disk stayed full: nothing more can be recorded */
    kvm_worker_stats stats;
} kvm_worker;

/* One claimed job on its way. */
typedef struct kvm_work {
    kvm_claim claim;
    double started; /* kvm_now() before the claim */
    kvm_job_spent before;
    kvm_str folder; /* HOME/work/<job>; made when there is something to keep */
    kvm_str dir;    /* the job's own, inside */
    kvm_err why;    /* it could not be begun */
    bool timed_out; /* told to stop, for it ran past its budget */
    int code;       /* in the child, of a gang that left no verdict: to exit with */
    kvm_records records;
} kvm_work;

/* Those that were claimed together. */
typedef struct kvm_load {
    kvm_work *works;
    ptrdiff_t count;
    double started;
    kvm_beat beat;
    bool beating;
} kvm_load;

/* How the child ended. */
typedef enum kvm_child_end {
    KVM_CHILD_EXITED, /* by itself, well or not: `how` says how */
    KVM_CHILD_FENCED, /* the leases could not be renewed */
    KVM_CHILD_DRAINED /* a signal to the worker, or a person's wish */
} kvm_child_end;

/* folder.c. kvm_folder__find - names k's folder; one that is there and another's is
 * removed, of one that is its own it is read what earlier attempts took.
 * kvm_folder__make - makes it, when it is not there; both sides of the fork may.
 * kvm_folder__lock - for the child: none of an earlier attempt is at it any more;
 * closing *lock gives it up. */
KVM_MUST kvm_status kvm_folder__find(kvm_work *k, kvm_str home, kvm_arena *keep,
                                     kvm_err *err);
KVM_MUST kvm_status kvm_folder__make(const kvm_work *k, kvm_arena scratch,
                                     kvm_err *err);
KVM_MUST kvm_status kvm_folder__lock(const kvm_work *k, int *lock, kvm_err *err);

/* kvm_child__run - start a child for the batch, watch it, wait for it. Between fork and
 * return the process has two threads: this one and the heartbeat, which goes on. how:
 * what ended it, text for people, 128 bytes. */
KVM_MUST kvm_status kvm_child__run(kvm_worker *w, kvm_load *l, kvm_child_end *end,
                                   char how[128], kvm_err *err);

/* kvm_child__backend - what the claimed step is computed on; borrows of keep, w. One
 * that rounds is named by the step's identity, since its key holds it: a step that
 * names none is exact, also on a worker that was started with one that rounds ("cpu"
 * then). */
KVM_MUST kvm_status kvm_child__backend(const char **backend, const kvm_worker *w,
                                       const kvm_claim *c, kvm_arena *keep,
                                       kvm_err *err);

/* what the child says of its job through the shared page, and hears */
void kvm_child__show(kvm_shared *s, double done, double total, const char *unit);
bool kvm_child__cancelled(const kvm_shared *s);
/* kvm_gang__watch - the child's part when its job is for several ranks (gang_watch.c).
 * KVM_OK: the ranks have recorded a verdict in the file `records`, which is in the
 * job's folder, or there is none and *code is what the child is to exit with. */
KVM_MUST kvm_status kvm_gang__watch(kvm_worker *w, const kvm_work *k, kvm_str records,
                                    int *code, kvm_err *err);

/* kvm_child__open - the claimed step's kind, and into j its parameters and inputs,
 * whose paths are verified (r, when it is not NULL, is told). j has its keep. */
KVM_MUST kvm_status kvm_child__open(const kvm_worker *w, const kvm_claim *c,
                                    kvm_recorder *r, kvm_job *j,
                                    const kvm_job_kind **kind, kvm_err *err);

/* kvm_settle__load - what becomes of the jobs when the child has ended: those that
 * have done their work are committed, the one it died of is charged with it, those it
 * did not come to are given back. failed: why there was no child, or NULL. */
void kvm_settle__load(kvm_worker *w, kvm_load *l, kvm_child_end end, const char *how,
                      const kvm_err *failed);

/* One job's end on its way into the catalogue. */
typedef struct kvm_ending {
    kvm_work *work;
    ptrdiff_t place; /* in the load */
    kvm_end end;
    kvm_err why;   /* end.why, when there is one */
    char how[128]; /* end.message, when there is one */
    bool lost;     /* out: the fence was stale */
} kvm_ending;
/* kvm_commit__hash - the outputs of a job that has done its work, where they lie:
 * durable and hashed, into its result. kvm_commit__publish - and into the store.
 * KVM_LOST. */
KVM_MUST kvm_status kvm_commit__hash(kvm_worker *w, kvm_work *k, kvm_err *err);
KVM_MUST kvm_status kvm_commit__publish(kvm_worker *w, const kvm_load *l,
                                        ptrdiff_t place, kvm_err *err);
/* kvm_commit__ends - everything into the catalogue in one transaction, or nothing;
 * insists until it succeeds, fails for good, or the leases are about to end; on a full
 * disk so long as KVM_FULL_S, and w->full then says so */
enum { KVM_FULL_S = 3 };
KVM_MUST kvm_status kvm_commit__ends(kvm_worker *w, const kvm_load *l, kvm_ending *e,
                                     ptrdiff_t count, kvm_err *err);
/* kvm_tree__remove - a folder and all in it, following no links; what cannot be removed
 * stays */
void kvm_tree__remove(kvm_str path);

/* tells who listens, and counts */
void kvm_worker__note(kvm_worker *w, const kvm_work *k, kvm_worker_what what,
                      const char *message);
/* kvm_worker__drains - told to stop so often: 1 soon, 2 now. kvm_worker__asked - a
 * person has asked for it in the catalogue, which counts as a first signal, not as one
 * more. */
int kvm_worker__drains(void);
void kvm_worker__asked(void);

static inline uint64_t kvm_bits(double v)
{
    union {
        double f;
        uint64_t u;
    } b = {.f = v};
    return b.u;
}
static inline double kvm_unbits(uint64_t u)
{
    union {
        uint64_t u;
        double f;
    } b = {.u = u};
    return b.f;
}

#endif
