/* scheduler.c - the loop.
 *
 *   stand by ─lease is free─► lead: [take back, fire, audit, send]* ─stopped─► end
 *       ▲                              │
 *       └─ the lease was not renewed ◄─┘    (audit and send: where there is a queue)
 *
 * A turn begins when somebody wakes the queue (a submission, a worker that has settled
 * a batch) and every TICK_S: for jobs whose time to wait has passed, and for who
 * forgot. What waits in the outbox is marked when hints were sent for all there was. */
#include "scheduler/scheduler.h"

#include <signal.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "scheduler/dispatch.h"
#include "scheduler/fire.h"
#include "schema/leader.h"
#include "schema/retention.h"

static const double TICK_S = 0.5, REAP_S = 1, LOOK_S = 1, STAND_BY_S = 1;
static const double FIRE_S = 2, EXPIRE_S = 3600;
static const double SILENT_S = 30; /* workers say that they are here every 10 s */
static const size_t MEMORY = 64 << 20;

static volatile sig_atomic_t stops;

void kvm_scheduler_stop(void)
{
    stops = 1;
}

static bool stopped(void)
{
    return stops != 0;
}

static void on_signal(int number)
{
    (void)number;
    kvm_scheduler_stop();
}

static const int caught[] = {SIGTERM, SIGINT};
enum { CAUGHT = sizeof caught / sizeof *caught };

typedef struct scheduler {
    kvm_scheduler_options o;
    kvm_arena keep;
    kvm_dispatch d;
    kvm_fires fires;
    kvm_scheduler_stats stats;
    bool leads;
    /* kvm_now() of the next … */
    double hold_at, reap_at, expire_at, fire_at, look_at, audit_at;
} scheduler;

/* ---- opening ---- */

static kvm_status open_scheduler(scheduler *s, kvm_err *err)
{
    kvm_dispatch *d = &s->d;
    TRY(kvm_arena_init(&s->keep, 4 << 20, err));
    TRY(kvm_arena_init(&d->names, MEMORY, err));
    TRY(kvm_arena_init(&d->scratch, MEMORY, err));
    char *id = kvm_new(&s->keep, char, KVM_CATALOGUE_ID);
    if (!id) return kvm_nomem(err, &s->keep);
    TRY(kvm_catalogue_open(&d->catalogue, &s->keep, s->o.catalogue, NULL, err));
    if (s->o.queue.len == 0) return KVM_OK;
    TRY(kvm_catalogue_id(d->catalogue, id, err));
    return kvm_queue_open(&d->queue, &s->keep,
                          &(kvm_queue_options){.where = s->o.queue,
                                               .catalogue = kvm_str_of(id),
                                               .name = s->o.name,
                                               .stop = stopped},
                          err);
}

static void close_scheduler(scheduler *s)
{
    kvm_fires_stop(&s->fires);
    if (s->leads &&
        kvm_leader_leave(s->d.catalogue, KVM_STR("scheduler"), s->o.name, NULL))
        kvm_log(KVM_LOG_WARN, "scheduler.leave", "the lease runs out by itself");
    kvm_arena_free(&s->d.scratch);
    kvm_arena_free(&s->d.names);
    kvm_arena_free(&s->keep);
}

/* ---- a turn ---- */

static bool due(double *at, double period)
{
    const double now = kvm_now();
    if (now < *at) return false;
    *at = now + period;
    return true;
}

/* While the catalogue cannot be asked, nobody knows who leads. */
static kvm_status hold(scheduler *s, kvm_err *err)
{
    const bool led = s->leads;
    if (!due(&s->hold_at, led ? s->o.lease_s / 3 : STAND_BY_S)) return KVM_OK;
    s->leads = false;
    TRY(kvm_leader_hold(s->d.catalogue, KVM_STR("scheduler"), s->o.name, s->o.lease_s,
                        &s->leads, err));
    if (s->leads != led)
        kvm_log(KVM_LOG_INFO, s->leads ? "scheduler.leads" : "scheduler.stands_by",
                "name=%.*s", KVM_STR_ARG(s->o.name));
    if (s->leads && !led) s->audit_at = 0; /* what the last one may have left */
    return KVM_OK;
}

static kvm_status reap(scheduler *s, kvm_err *err)
{
    ptrdiff_t silent = 0, dead = 0;
    if (!due(&s->reap_at, REAP_S)) return KVM_OK;
    TRY(kvm_jobs_reap(s->d.catalogue, &s->o.policy, &silent, err));
    if (s->o.dead)
        TRY(kvm_jobs_reap_dead(s->d.catalogue, s->o.host, s->o.dead, &s->o.policy,
                               &dead, err));
    s->stats.taken_back += silent + dead;
    if (silent + dead > 0)
        kvm_log(KVM_LOG_INFO, "jobs.taken_back", "jobs=%td", silent + dead);
    return KVM_OK;
}

static kvm_status expire(scheduler *s, kvm_err *err)
{
    ptrdiff_t count = 0;
    if (s->o.captures_s <= 0 || !due(&s->expire_at, EXPIRE_S)) return KVM_OK;
    TRY(kvm_captures_expire(s->d.catalogue, s->o.captures_s, &count, err));
    s->stats.expired += count;
    if (count > 0) kvm_log(KVM_LOG_INFO, "captures.expired", "artefacts=%td", count);
    return KVM_OK;
}

static kvm_status audit(scheduler *s, kvm_err *err)
{
    int64_t again = 0;
    if (!due(&s->audit_at, s->o.reconcile_s)) return KVM_OK;
    const kvm_status done = kvm_dispatch_audit(&s->d, s->o.reconcile_s, &again, err);
    s->stats.again += again;
    if (again > 0)
        kvm_log(KVM_LOG_INFO, "hints.sent_again", "jobs=%lld", (long long)again);
    return done;
}

static kvm_status send_ready(scheduler *s, kvm_err *err)
{
    for (ptrdiff_t count = KVM_OUTBOX_MOST; count == KVM_OUTBOX_MOST;) {
        int64_t ids[KVM_OUTBOX_MOST];
        TRY(kvm_outbox_next(s->d.catalogue, ids, &count, err));
        TRY(kvm_dispatch_ready(&s->d, &s->stats.sent, err));
        if (count > 0) TRY(kvm_outbox_sent(s->d.catalogue, ids, count, err));
    }
    return KVM_OK;
}

/* What needs no queue comes first. */
static kvm_status turn(scheduler *s, kvm_err *err)
{
    TRY(hold(s, err));
    if (!s->leads) return KVM_OK;
    TRY(reap(s, err));
    TRY(expire(s, err));
    if (s->o.home.len && due(&s->fire_at, FIRE_S))
        TRY(kvm_fires_turn(&s->fires, s->d.catalogue, s->d.scratch, err));
    if (!s->d.queue) return KVM_OK;
    if (s->d.count == 0) s->look_at = 0; /* the first one has not to wait */
    if (due(&s->look_at, LOOK_S)) TRY(kvm_dispatch_look(&s->d, SILENT_S, err));
    TRY(audit(s, err));
    return send_ready(s, err);
}

/* ---- the loop ---- */

static void rest(double seconds)
{
    const double until = kvm_now() + seconds;
    while (!stopped() && kvm_now() < until) kvm_sleep(0.05);
}

static bool is_final(kvm_status s)
{
    return s == KVM_DAMAGED || s == KVM_VERSION || s == KVM_INTERNAL;
}

/* What was marked and not sent is not waited for until the next audit is due. */
static kvm_status loop(scheduler *s, kvm_err *err)
{
    kvm_trouble told = {0};
    while (!stopped()) {
        kvm_err mine = {0};
        kvm_status got = turn(s, &mine);
        const bool listens = s->leads && s->d.queue;
        if (!got && listens) got = kvm_queue_listen(s->d.queue, TICK_S, &mine);
        if (is_final(got)) {
            if (err && !err->code) *err = mine;
            return got;
        }
        if (got && !stopped()) {
            kvm_log_trouble(&told, "scheduler.trouble", 0, mine.msg);
            s->audit_at = 0;
        } else
            kvm_log_relief(&told, "scheduler.trouble", 0);
        if (got || !listens) rest(TICK_S);
    }
    return KVM_OK;
}

kvm_status kvm_scheduler_run(const kvm_scheduler_options *options,
                             kvm_scheduler_stats *stats, kvm_err *err)
{
    scheduler s = {.o = *options,
                   .fires.o = {.home = options->home,
                               .catalogue = options->catalogue,
                               .allow = options->allow}};
    struct sigaction before[CAUGHT], stop = {.sa_handler = on_signal};
    if (s.o.reconcile_s <= 0) s.o.reconcile_s = 30;
    if (s.o.lease_s <= 0) s.o.lease_s = 10;
    stops = 0;
    sigemptyset(&stop.sa_mask);
    for (int i = 0; s.o.signals && i < CAUGHT; i++)
        sigaction(caught[i], &stop, &before[i]);
    kvm_status done = open_scheduler(&s, err);
    if (!done) done = loop(&s, err);
    close_scheduler(&s);
    for (int i = 0; s.o.signals && i < CAUGHT; i++)
        sigaction(caught[i], &before[i], NULL);
    if (stats) *stats = s.stats;
    return done;
}
