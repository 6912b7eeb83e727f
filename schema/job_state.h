/* job_state.h - everything that changes a job's state, and nothing else does.
 *
 * job_state.c opens with the diagram and the invariants. A worker holds a job by its
 * *fence* (job, token): each write of a worker carries it, and a write whose fence is
 * stale changes nothing and says KVM_LOST. Times are the database's clock. Each call is
 * one transaction, or part of the one that the caller has open. What workers do they do
 * to several jobs at once, a *batch*; the calls for one job are batches of one. Who is
 * next is in job_order.h. */
#ifndef KVM_SCHEMA_JOB_STATE_H
#define KVM_SCHEMA_JOB_STATE_H

#include "schema/catalogue.h"

typedef enum kvm_job_state {
#define X(NAME, name, class) KVM_STATE_##NAME,
#include "schema/states.def"
#undef X
    KVM_STATE_COUNT
} kvm_job_state;
typedef enum kvm_state_class {
    KVM_CLASS_WAITING,
    KVM_CLASS_LIVE,
    KVM_CLASS_DONE,
    KVM_CLASS_ENDED
} kvm_state_class;
const char *kvm_state_name(kvm_job_state s);
kvm_state_class kvm_state_class_of(kvm_job_state s);
bool kvm_state_find(kvm_str name, kvm_job_state *s);

typedef struct kvm_fence {
    int64_t job;
    int64_t token;
} kvm_fence;

/* What is claimed together: one job, or several small ones. The token is the one that
 * was last read: a hint whose token is old claims nothing. */
enum { KVM_BATCH_MOST = 64 };
typedef struct kvm_job_batch {
    ptrdiff_t count;
    kvm_fence jobs[KVM_BATCH_MOST];
} kvm_job_batch;

/* How often, how soon, how long. Zero fields mean the default. */
typedef struct kvm_queue_policy {
    int crash_limit;       /* crashes that park a job: 3 */
    int retry_limit;       /* errors of the RETRY class that park it: 5 */
    double backoff_s;      /* before the first retry: 1; doubles, with jitter … */
    double backoff_most_s; /* … up to 300 */
} kvm_queue_policy;

/* ---- submit ---- */

/* kvm_run_insert makes the team, pair and spec rows as needed, and the event and the
 * outbox row. */

typedef struct kvm_run_new {
    kvm_str team, pair, spec; /* spec: canonical JSON */
    const char *key; /* SHA-256 hex: spec, graph, machine (scheduler/submit.h) */
    int priority;    /* higher first */
    kvm_str file;    /* the spec's, absolute; empty: not known */
} kvm_run_new;
KVM_MUST kvm_status kvm_run_insert(kvm_catalogue *c, const kvm_run_new *r, int64_t *run,
                                   kvm_err *err);

typedef struct kvm_job_dep {
    kvm_str input;  /* the name by which the job reads it */
    int64_t needs;  /* the producing job */
    kvm_str output; /* its output's name */
} kvm_job_dep;
typedef struct kvm_job_new {
    int64_t run;
    int kind; /* jobs/kinds.def */
    const char *kind_name;
    int version;
    bool timed; /* never reused */
    int priority;
    double timeout_s;   /* budget of one attempt; 0: none */
    const char *class;  /* what it runs on: cpu, gpu; small: beside others. NULL: cpu */
    int ranks;          /* processes of its gang; 0: 1, no gang */
    int64_t memory_mib; /* what it needs; 0: little, or not known */
    kvm_str label;
    kvm_str params, identity; /* canonical JSON */
    const kvm_job_dep *deps;
    ptrdiff_t dep_count;
} kvm_job_new;
/* kvm_job_insert - blocked, or ready when it needs nothing (its key is then known) */
KVM_MUST kvm_status kvm_job_insert(kvm_catalogue *c, const kvm_job_new *j, int64_t *job,
                                   kvm_err *err);

/* ---- workers ---- */

/* kvm_worker_register - name: host/boot/pid-namespace/pid/start/nonce, unique for
 * ever */
KVM_MUST kvm_status kvm_worker_register(kvm_catalogue *c, kvm_str name, kvm_str host,
                                        kvm_str machine, int64_t *worker, kvm_err *err);
KVM_MUST kvm_status kvm_worker_gone(kvm_catalogue *c, int64_t worker, kvm_err *err);
/* What a worker takes; zero fields mean the default. */
enum { KVM_CLASSES_MOST = 4 };
typedef struct kvm_want {
    int64_t run;                       /* 0: of any run */
    kvm_str classes[KVM_CLASSES_MOST]; /* none: cpu and small */
    int class_count;
    int ranks;          /* the largest gang: 1 */
    int64_t memory_mib; /* 0: any */
    int most;           /* jobs of a batch: KVM_BATCH_MOST */
    /* the dispatcher's: only jobs without a hint on its way, which count as live when a
     * team's quota is looked at */
    bool unsent;
} kvm_want;
/* kvm_worker_serves - writes down what it takes, for people to see */
KVM_MUST kvm_status kvm_worker_serves(kvm_catalogue *c, int64_t worker,
                                      const kvm_want *want, kvm_err *err);
/* kvm_worker_asked - whether a person wants it to drain; notes, once in 10 s, that it
 * was here */
KVM_MUST kvm_status kvm_worker_asked(kvm_catalogue *c, int64_t worker, bool *drain,
                                     kvm_err *err);
/* kvm_workers_drain - asks workers that are there to stop when their jobs have ended:
 * the one of this name, or all of this host. KVM_NOTFOUND when there is none. */
KVM_MUST kvm_status kvm_workers_drain(kvm_catalogue *c, kvm_str name, ptrdiff_t *asked,
                                      kvm_err *err);

typedef struct kvm_claim_input {
    kvm_str name;
    kvm_str sha;
    int64_t bytes;
} kvm_claim_input;
typedef struct kvm_claim {
    kvm_fence fence;
    kvm_str log; /* below the home: logs/<job>-<token>.log, of the batch's first */
    int64_t run;
    int attempt; /* 1, 2 … */
    int kind, version;
    int ranks; /* processes of its gang; 1: none */
    bool timed;
    double timeout_s;
    kvm_str pair, label, params, identity;
    kvm_str key; /* empty when timed */
    kvm_claim_input *inputs;
    ptrdiff_t input_count;
    int64_t equal;            /* a succeeded job with the same key, 0: none */
    kvm_claim_input *outputs; /* what that job published */
    ptrdiff_t output_count;
} kvm_claim;

/* kvm_jobs_claim - those of the batch that can be had, in its order: running, token +
 * 1, attempt + 1, lease. Jobs whose token is another by now, that are paused or whose
 * key is running elsewhere are passed over; so may be some that another is just looking
 * at. Claims (*count of them) and their texts live in keep. */
KVM_MUST kvm_status kvm_jobs_claim(kvm_catalogue *c, const kvm_job_batch *batch,
                                   kvm_claim **claims, ptrdiff_t *count,
                                   kvm_arena *keep, int64_t worker, double lease_s,
                                   kvm_err *err);
/* kvm_jobs_take - the same of those that are next (kvm_jobs_next, job_order.h), in one
 * transaction; *count 0: there is nothing to take */
KVM_MUST kvm_status kvm_jobs_take(kvm_catalogue *c, const kvm_want *want,
                                  kvm_claim **claims, ptrdiff_t *count, kvm_arena *keep,
                                  int64_t worker, double lease_s, kvm_err *err);
/* kvm_jobs_dispatched - hints are on their way: ready jobs become dispatched, and those
 * that are already are dispatched anew (sent_at). Others of the batch stay as they
 * are. */
KVM_MUST kvm_status kvm_jobs_dispatched(kvm_catalogue *c, const kvm_job_batch *batch,
                                        kvm_err *err);

typedef enum kvm_lease {
    KVM_LEASE_LOST, /* somebody else has the job, or nobody */
    KVM_LEASE_HELD,
    KVM_LEASE_CANCELLING /* held, and a person has asked to stop */
} kvm_lease;
/* kvm_jobs_renew - leases until now + lease_s; states[i]: a kvm_lease for each fence */
KVM_MUST kvm_status kvm_jobs_renew(kvm_catalogue *c, const kvm_fence *fences,
                                   ptrdiff_t count, double lease_s,
                                   unsigned char *states, kvm_err *err);
/* kvm_jobs_asked - the same without renewing: reads only */
KVM_MUST kvm_status kvm_jobs_asked(kvm_catalogue *c, const kvm_fence *fences,
                                   ptrdiff_t count, unsigned char *states,
                                   kvm_err *err);
/* of one job; KVM_LOST. cancelling: whether a person has asked to stop. */
KVM_MUST kvm_status kvm_job_renew(kvm_catalogue *c, kvm_fence f, double lease_s,
                                  bool *cancelling, kvm_err *err);
KVM_MUST kvm_status kvm_job_asked(kvm_catalogue *c, kvm_fence f, bool *cancelling,
                                  kvm_err *err);
/* kvm_job_progress - how far the attempt is, for people: done of total, in unit */
KVM_MUST kvm_status kvm_job_progress(kvm_catalogue *c, kvm_fence f, double done,
                                     double total, kvm_str unit, kvm_err *err);

typedef struct kvm_result_artefact {
    kvm_str name;
    kvm_str sha;
    int64_t bytes;
} kvm_result_artefact;
typedef struct kvm_result_metric {
    kvm_str name, labels; /* labels: canonical JSON, "{}" */
    double value;
} kvm_result_metric;
typedef struct kvm_result_sample {
    kvm_str suite, arm, metric, item;
    double value;
} kvm_result_sample;
typedef struct kvm_result_timing {
    kvm_str arm, stage;
    int64_t tokens;
    const double *seconds; /* [count], in the order measured */
    ptrdiff_t count;
} kvm_result_timing;
typedef struct kvm_result_event {
    kvm_str what, text;
} kvm_result_event;

/* What an attempt leaves. On any end but success only the events are kept. */
typedef struct kvm_result {
    const kvm_result_artefact *artefacts;
    ptrdiff_t artefact_count;
    const kvm_result_metric *metrics;
    ptrdiff_t metric_count;
    const kvm_result_sample *samples;
    ptrdiff_t sample_count;
    const kvm_result_timing *timings;
    ptrdiff_t timing_count;
    const kvm_result_event *events;
    ptrdiff_t event_count;
    kvm_str key; /* of a timed job: computed by the worker */
} kvm_result;

typedef enum kvm_end_how {
    KVM_END_SUCCEED,
    KVM_END_SKIP, /* with the results of the job `equal` */
    /* by why's column in status.def: RETRY -> ready later (parked at the limit), FAIL
     * -> failed, CANCELLED -> cancelled */
    KVM_END_FAIL,
    KVM_END_CRASH,  /* the process died: ready later, parked at the limit */
    KVM_END_RELEASE /* drained: ready at once, the attempt is not counted */
} kvm_end_how;
typedef struct kvm_end {
    kvm_fence fence;
    const kvm_result *result; /* NULL: nothing */
    int64_t equal;
    const kvm_err *why; /* of FAIL */
    kvm_str message;    /* of CRASH: how */
    double seconds;     /* its team is charged for each rank; < 0: since the claim */
    kvm_end_how how;
    bool expired; /* the reaper's: only when its lease is over, else it is lost */
} kvm_end;
/* kvm_jobs_end - ends attempts, all in one transaction. lost[i]: the fence was stale
 * and nothing was written for it. KVM_CANCELLED (of SUCCEED and SKIP: a person has
 * asked to stop), KVM_MISMATCH (`equal` is not), or a result that cannot be written:
 * none has ended, and the caller may try them one by one. policy NULL: defaults. */
KVM_MUST kvm_status kvm_jobs_end(kvm_catalogue *c, const kvm_end *ends, ptrdiff_t count,
                                 bool *lost, const kvm_queue_policy *policy,
                                 kvm_err *err);

/* One job each: KVM_LOST when the fence was stale. */
KVM_MUST kvm_status kvm_job_succeed(kvm_catalogue *c, kvm_fence f, const kvm_result *r,
                                    kvm_err *err);
KVM_MUST kvm_status kvm_job_skip(kvm_catalogue *c, kvm_fence f, int64_t equal,
                                 kvm_err *err);
KVM_MUST kvm_status kvm_job_fail(kvm_catalogue *c, kvm_fence f, const kvm_err *why,
                                 const kvm_result *r, const kvm_queue_policy *policy,
                                 kvm_err *err);
KVM_MUST kvm_status kvm_job_crash(kvm_catalogue *c, kvm_fence f, kvm_str how,
                                  const kvm_result *r, const kvm_queue_policy *policy,
                                  kvm_err *err);
KVM_MUST kvm_status kvm_job_release(kvm_catalogue *c, kvm_fence f, const kvm_result *r,
                                    kvm_err *err);

/* kvm_job_at_rest - calls done(ctx, known) when nobody works on the job or will go on
 * with what it has left: it has its results, or ended without any more than age_s ago,
 * or the catalogue has no such job (known false). Nobody can claim or retry it
 * meanwhile. */
KVM_MUST kvm_status kvm_job_at_rest(kvm_catalogue *c, int64_t job, double age_s,
                                    kvm_status (*done)(void *ctx, bool known,
                                                       kvm_err *err),
                                    void *ctx, kvm_err *err);

/* ---- the reaper (every worker, now and then) ---- */

/* kvm_jobs_reap - leases that ran out: as a crash, or cancelled when that was asked */
KVM_MUST kvm_status kvm_jobs_reap(kvm_catalogue *c, const kvm_queue_policy *policy,
                                  ptrdiff_t *reaped, kvm_err *err);
/* kvm_jobs_reap_dead - jobs of workers on this host whose process `dead` knows to be
 * gone, without waiting for the lease */
KVM_MUST kvm_status kvm_jobs_reap_dead(kvm_catalogue *c, kvm_str host,
                                       bool (*dead)(kvm_str worker_name),
                                       const kvm_queue_policy *policy,
                                       ptrdiff_t *reaped, kvm_err *err);

/* ---- people ---- */

/* kvm_job_cancel - waiting: cancelled; live: cancelling (its worker sees it within 5
 * s); else unchanged. now (may be NULL): the state it is in afterwards. */
KVM_MUST kvm_status kvm_job_cancel(kvm_catalogue *c, int64_t job, kvm_job_state *now,
                                   kvm_err *err);
KVM_MUST kvm_status kvm_run_cancel(kvm_catalogue *c, int64_t run, kvm_err *err);
/* kvm_job_retry - failed, parked, cancelled: ready (or blocked) again with fresh
 * counters. KVM_USAGE for any other state. */
KVM_MUST kvm_status kvm_job_retry(kvm_catalogue *c, int64_t job, kvm_err *err);
/* kvm_run_retry - every ended job of the run, and the crash counters of all; the run is
 * open again */
KVM_MUST kvm_status kvm_run_retry(kvm_catalogue *c, int64_t run, ptrdiff_t *retried,
                                  kvm_err *err);
/* kvm_run_ranks - what the run has left to do of a kind is for gangs of so many from
 * now on: results are the same for any number */
KVM_MUST kvm_status kvm_run_ranks(kvm_catalogue *c, int64_t run, int kind, int ranks,
                                  kvm_err *err);

/* One job, or all of a run's that are not done. */
typedef struct kvm_which {
    int64_t job, run; /* one of them, the other 0 */
} kvm_which;
/* kvm_jobs_pause - passed over by every claim until resumed; what runs goes on. A state
 * it is not: a paused job can be cancelled, and becomes ready when its needs are done.
 * KVM_NOTFOUND; KVM_USAGE when it is done. */
KVM_MUST kvm_status kvm_jobs_pause(kvm_catalogue *c, kvm_which which, bool paused,
                                   kvm_err *err);
/* kvm_jobs_priority - higher goes first */
KVM_MUST kvm_status kvm_jobs_priority(kvm_catalogue *c, kvm_which which, int priority,
                                      kvm_err *err);

/* ---- the outbox: hints not yet handed to the queue (kvm_run_insert adds one) ---- */

/* kvm_outbox_next - the numbers of up to KVM_OUTBOX_MOST unsent rows, in order */
enum { KVM_OUTBOX_MOST = 100 };
KVM_MUST kvm_status kvm_outbox_next(kvm_catalogue *c, int64_t ids[KVM_OUTBOX_MOST],
                                    ptrdiff_t *count, kvm_err *err);
/* kvm_outbox_sent - these are on their way */
KVM_MUST kvm_status kvm_outbox_sent(kvm_catalogue *c, const int64_t *ids,
                                    ptrdiff_t count, kvm_err *err);

/* ---- how a run stands ---- */

typedef enum kvm_run_state {
    KVM_RUN_OPEN,      /* something is waiting or live */
    KVM_RUN_SUCCEEDED, /* every job succeeded or was skipped */
    KVM_RUN_FAILED,    /* nothing can go on, and a job failed or is parked */
    KVM_RUN_CANCELLED  /* nothing can go on, and a job was cancelled */
} kvm_run_state;
KVM_MUST kvm_status kvm_run_state_of(kvm_catalogue *c, int64_t run,
                                     kvm_run_state *state, kvm_err *err);
KVM_MUST kvm_status kvm_job_state_of(kvm_catalogue *c, int64_t job,
                                     kvm_job_state *state, kvm_err *err);
/* kvm_runs_open - whether any run is */
KVM_MUST kvm_status kvm_runs_open(kvm_catalogue *c, bool *open, kvm_err *err);

typedef struct kvm_run_info {
    int64_t run;
    kvm_run_state state;
    int64_t jobs[KVM_STATE_COUNT];
    double created_at, finished_at; /* 0: not yet */
    int64_t trouble;                /* first failed, parked or cancelled job; 0: none */
    kvm_status trouble_status;
    kvm_str trouble_label, trouble_message; /* in keep */
} kvm_run_info;
KVM_MUST kvm_status kvm_run_look(kvm_catalogue *c, int64_t run, kvm_run_info *info,
                                 kvm_arena *keep, kvm_err *err);
/* kvm_run_hold - within a transaction, until it ends: nobody else submits this key */
KVM_MUST kvm_status kvm_run_hold(kvm_catalogue *c, const char *key, kvm_err *err);
/* kvm_run_find - newest run with this key; *run = 0 when there is none */
KVM_MUST kvm_status kvm_run_find(kvm_catalogue *c, const char *key, int64_t *run,
                                 kvm_run_state *state, kvm_err *err);
/* kvm_run_fire - says, in the transaction that makes the run, for which time of a
 * schedule it is. kvm_run_fired - the run with this key that was made for it; *run = 0
 * when there is none */
KVM_MUST kvm_status kvm_run_fire(kvm_catalogue *c, int64_t run, kvm_str tick,
                                 kvm_err *err);
KVM_MUST kvm_status kvm_run_fired(kvm_catalogue *c, const char *key, kvm_str tick,
                                  int64_t *run, kvm_run_state *state, kvm_err *err);
/* kvm_run_artefacts - every artefact of a run's jobs */
KVM_MUST kvm_status kvm_run_artefacts(kvm_catalogue *c, int64_t run,
                                      kvm_result_artefact **artefacts, ptrdiff_t *count,
                                      kvm_arena *keep, kvm_err *err);

#endif
