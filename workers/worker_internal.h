/* worker_internal.h - shared by worker.c (the loop), child.c (the job's process),
 * heartbeat.c and commit.c (results into store and catalogue). */
#ifndef KVM_WORKERS_WORKER_INTERNAL_H
#define KVM_WORKERS_WORKER_INTERNAL_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "scheduler/queue.h"
#include "schema/store.h"
#include "workers/host.h"
#include "workers/spent.h"
#include "workers/worker.h"

/* A page that the worker shares with its child. */
typedef struct kvm_shared {
    atomic_bool cancel;                           /* the worker asks the job to stop */
    _Atomic uint64_t done, total;                 /* bits of the doubles */
    _Atomic uint64_t unit[KVM_PROGRESS_UNIT / 8]; /* text */
    _Atomic unsigned long updates; /* raised after each progress report */
    kvm_err trouble; /* why the child left no verdict; read when it has ended */
} kvm_shared;

/* heartbeat.c: renews one lease from a thread of its own. */
typedef struct kvm_beat {
    kvm_catalogue *catalogue; /* a connection for its thread alone while it runs */
    kvm_fence fence;
    double lease_s;
    pthread_t thread;
    pthread_mutex_t lock; /* of stop */
    pthread_cond_t wake;
    bool stop;
    atomic_bool lost;       /* somebody else has the job */
    atomic_bool cancelling; /* a person asked to stop */
    _Atomic uint64_t until; /* bits of the kvm_now() until which the lease holds */
} kvm_beat;

/* claimed_at: kvm_now() before the claim */
KVM_MUST kvm_status kvm_beat__start(kvm_beat *b, kvm_catalogue *c, kvm_fence f,
                                    double lease_s, double claimed_at, kvm_err *err);
void kvm_beat__stop(kvm_beat *b);
double kvm_beat__left(const kvm_beat *b); /* seconds of lease that surely remain */

typedef struct kvm_worker {
    kvm_worker_options o; /* defaults filled in */
    kvm_arena keep;       /* for the worker's life */
    kvm_arena mem;        /* for one job; reset after it */
    kvm_catalogue *catalogue, *beat_catalogue;
    kvm_store *store;
    kvm_queue *queue;
    int64_t id;
    kvm_str host;
    kvm_shared *shared;
    bool full; /* the disk stayed full: nothing more can be recorded */
    kvm_worker_stats stats;
} kvm_worker;

/* One claimed job on its way. */
typedef struct kvm_work {
    kvm_claim claim;
    double started; /* kvm_now() before the claim */
    kvm_job_spent before;
    kvm_str folder; /* HOME/work/<job> */
    kvm_str dir;    /* the job's own, inside */
    kvm_str records_path;
    kvm_str log; /* below the home: logs/<job>-<token>.log */
    kvm_beat beat;
    kvm_records records;
} kvm_work;

/* How the child ended. */
typedef enum kvm_child_end {
    KVM_CHILD_EXITED,  /* by itself, well or not: exit_text says how */
    KVM_CHILD_FENCED,  /* the lease is lost or could not be renewed */
    KVM_CHILD_DRAINED, /* a signal to the worker */
    KVM_CHILD_TIMEOUT  /* ran past its budget */
} kvm_child_end;

/* kvm_child__run - start the job, watch it, wait for it. Between fork and return the
 * process has two threads: this one and the heartbeat. how: text for people, 128
 * bytes. */
KVM_MUST kvm_status kvm_child__run(kvm_worker *w, kvm_work *k, kvm_child_end *end,
                                   char how[128], kvm_err *err);

/* kvm_child__backend - what the claimed step is computed on; borrows of keep, w. One
 * that rounds is named by the step's identity, since its key holds it: a step that
 * names none is exact, also on a worker that was started with one that rounds ("cpu"
 * then). */
KVM_MUST kvm_status kvm_child__backend(const char **backend, const kvm_worker *w,
                                       const kvm_claim *c, kvm_arena *keep,
                                       kvm_err *err);

/* kvm_commit__results - outputs into the store, everything into the catalogue, state
 * succeeded. */
KVM_MUST kvm_status kvm_commit__results(kvm_worker *w, kvm_work *k, kvm_err *err);
/* kvm_commit__insist - call fn until it succeeds, fails for good, or the lease is about
 * to end; on a full disk so long as KVM_FULL_S, and w->full then says so */
enum { KVM_FULL_S = 3 };
KVM_MUST kvm_status kvm_commit__insist(kvm_worker *w, kvm_work *k,
                                       kvm_status (*fn)(kvm_worker *w, kvm_work *k,
                                                        const void *arg, kvm_err *err),
                                       const void *arg, kvm_err *err);
/* kvm_tree__remove - a folder and all in it, following no links; what cannot be removed
 * stays */
void kvm_tree__remove(kvm_str path);

/* tells who listens, and counts */
void kvm_worker__note(kvm_worker *w, const kvm_work *k, kvm_worker_what what,
                      const char *message);
int kvm_worker__drains(void); /* signals to stop so far: 1 drain, 2 now */

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
