#define _GNU_SOURCE /* memfd_create, MAP_ANONYMOUS */
#include "workers/worker.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/os.h"
#include "schema/fault.h"
#include "workers/launch.h"
#include "workers/machine.h"
#include "workers/worker_internal.h"

static const double TEND_S = 1; /* look for dead workers and unsent hints so often */
static const double SLICE_S = 0.2, NEXT_LOOK_S = 0.2;
static const double GIVE_UP_S = 60; /* the catalogue has not answered for so long */

/* ---- signals ---- */

static volatile sig_atomic_t drains;

void kvm_worker_drain(void)
{
    drains = drains + 1;
}

static atomic_bool asked; /* the same by a person, who does not say it twice */

void kvm_worker__asked(void)
{
    atomic_store(&asked, true);
}

int kvm_worker__drains(void)
{
    return drains == 0 && atomic_load(&asked) ? 1 : drains;
}

static void on_signal(int number)
{
    (void)number;
    kvm_worker_drain();
}

static const int caught[] = {SIGTERM, SIGINT};
enum { CAUGHT = sizeof caught / sizeof *caught };

static void catch_signals(struct sigaction before[CAUGHT])
{
    struct sigaction a = {.sa_handler = on_signal};
    sigemptyset(&a.sa_mask);
    for (int i = 0; i < CAUGHT; i++) sigaction(caught[i], &a, &before[i]);
}

static void give_signals_back(const struct sigaction before[CAUGHT])
{
    for (int i = 0; i < CAUGHT; i++) sigaction(caught[i], &before[i], NULL);
}

/* ---- opening ---- */

static kvm_worker_options with_defaults(const kvm_worker_options *given)
{
    kvm_worker_options o = *given;
#ifdef __SANITIZE_ADDRESS__
    const size_t job_bytes = (size_t)1 << 30; /* its shadow is written at once */
#else
    const size_t job_bytes = (size_t)64 << 30;
#endif
    if (!o.backend) o.backend = "cpu";
    if (o.lease_s <= 0) o.lease_s = 30;
    if (o.grace_s <= 0) o.grace_s = 10;
    if (o.start_s <= 0) o.start_s = 300;
    if (o.want.ranks <= 0) o.want.ranks = 1;
    if (!o.launcher) o.launcher = &kvm_launch_fork;
    if (o.job_bytes == 0) o.job_bytes = job_bytes;
    o.want.run = o.run;
    /* a bucket that is away for a minute costs a job no attempt */
    if (o.store.http.tries == 0) o.store.http.tries = o.store.http.offline_tries = 8;
    return o;
}

static kvm_status share_page(kvm_worker *w, kvm_err *err)
{
    void *p = kvm_os->mmap(sizeof(kvm_shared), PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return kvm_fail(err, KVM_NOMEM, "cannot share a page of memory");
    w->shared = p;
    return KVM_OK;
}

static kvm_status make_folders(kvm_worker *w, kvm_err *err)
{
    static const char *const names[] = {"work", "logs"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const kvm_str path = kvm_path_join(&w->keep, w->o.home, kvm_str_of(names[i]));
        if (!path.at) return kvm_nomem(err, &w->keep);
        TRY(kvm_dir_make(path, err));
    }
    return KVM_OK;
}

static bool draining(void)
{
    return kvm_worker__drains() > 0;
}

/* Hints of a scheduler are of any run. */
static kvm_status open_queue(kvm_worker *w, kvm_str name, kvm_err *err)
{
    char *id = kvm_new(&w->keep, char, KVM_CATALOGUE_ID);
    if (!id) return kvm_nomem(err, &w->keep);
    TRY(kvm_catalogue_id(w->catalogue, id, err));
    const kvm_queue_options o = {.where = w->o.run > 0 ? KVM_STR("") : w->o.queue,
                                 .home = w->o.home,
                                 .catalogue = kvm_str_of(id),
                                 .name = name,
                                 .want = w->o.want,
                                 .stop = draining};
    TRY(kvm_queue_open(&w->queue, &w->keep, &o, err));
    if (w->o.poll_s <= 0) w->o.poll_s = kvm_queue_scheduled(w->queue) ? 5 : 0.2;
    return KVM_OK;
}

/* In trouble the entry is found stale, sooner or later. */
static void settle_queue(kvm_worker *w)
{
    kvm_err err = {0};
    const kvm_hint *hint = w->hinted ? &w->hint : NULL;
    w->hinted = false;
    if (kvm_queue_settle(w->queue, hint, &err))
        kvm_log_trouble(&w->queue_trouble, "queue.trouble", 0, err.msg);
}

/* Patience is for a bucket that goes away while jobs run; one that was never there is
 * told before any job is charged with it. */
static kvm_status look_at_store(kvm_worker *w, kvm_err *err)
{
    kvm_store *store;
    kvm_store_options o = w->o.store;
    o.http.tries = o.http.offline_tries = 2;
    TRY(kvm_store_open(&store, &w->keep, w->o.home, &o, err));
    return kvm_store_check(store, err);
}

static kvm_status open_worker(kvm_worker *w, kvm_err *err)
{
    kvm_worker_options *o = &w->o;
    TRY(kvm_arena_init(&w->keep, 16 << 20, err));
    TRY(kvm_arena_reserve(&w->mem, (size_t)1 << 30, err));
    TRY(share_page(w, err));
    w->records = memfd_create("records", MFD_CLOEXEC);
    if (w->records < 0) return kvm_fail_errno(err, "cannot make a file in memory");
    TRY(make_folders(w, err));
    if (o->catalogue.len == 0)
        o->catalogue = kvm_path_join(&w->keep, o->home, KVM_STR("catalogue.db"));
    if (o->machine.len == 0) o->machine = kvm_machine_class(&w->keep, o->backend);
    const kvm_str name = kvm_worker_name(&w->keep);
    w->host = kvm_machine_host(&w->keep);
    if (!o->catalogue.at || !o->machine.at || !name.at || !w->host.at)
        return kvm_nomem(err, &w->keep);
    /* a renewal that waited longer for a lock would come too late anyway */
    const int beat_ms = o->lease_s < 20 ? (int)(o->lease_s * 250) + 1 : 5000;
    TRY(kvm_catalogue_open(&w->catalogue, &w->keep, o->catalogue, NULL, err));
    TRY(kvm_catalogue_open(&w->beat_catalogue, &w->keep, o->catalogue,
                           &(kvm_catalogue_options){.busy_ms = beat_ms}, err));
    TRY(look_at_store(w, err));
    TRY(kvm_store_open(&w->store, &w->keep, o->home, &o->store, err));
    TRY(open_queue(w, name, err));
    TRY(kvm_worker_register(w->catalogue, name, w->host, o->machine, &w->id, err));
    TRY(kvm_worker_serves(w->catalogue, w->id, &o->want, err));
    settle_queue(w); /* who hands out work may look who is there */
    return KVM_OK;
}

static void close_worker(kvm_worker *w)
{
    if (w->catalogue && w->id && !w->full && kvm_worker_gone(w->catalogue, w->id, NULL))
        kvm_log(KVM_LOG_WARN, "worker.gone", "could not say goodbye to the catalogue");
    if (w->records >= 0) kvm_os->close(w->records);
    if (w->shared) kvm_os->munmap(w->shared, sizeof *w->shared);
    kvm_arena_free(&w->mem);
    kvm_arena_free(&w->keep);
}

/* ---- one batch ---- */

static void set_beat(kvm_worker *w, kvm_load *l)
{
    kvm_fence jobs[KVM_BATCH_MOST];
    for (ptrdiff_t i = 0; i < l->count; i++) jobs[i] = l->works[i].claim.fence;
    kvm_beat__set(&l->beat, jobs, l->count, w->o.lease_s, l->started);
}

static void work(kvm_worker *w, kvm_load *l)
{
    kvm_err err = {0};
    kvm_child_end end = KVM_CHILD_EXITED;
    char how[128] = "";
    set_beat(w, l);
    for (ptrdiff_t i = 0; i < l->count; i++) {
        kvm_work *k = &l->works[i];
        const kvm_status bad = kvm_folder__find(k, w->o.home, &w->mem, &k->why);
        (void)bad; /* in why: the others go on */
    }
    kvm_fault(KVM_FAULT_BEFORE_RUN);
    const kvm_status s = kvm_child__run(w, l, &end, how, &err);
    kvm_fault(KVM_FAULT_AFTER_RUN);
    kvm_settle__load(w, l, end, how, s ? &err : NULL);
    if (l->beating) kvm_beat__stop(&l->beat);
}

/* ---- the loop ---- */

static kvm_status tend(kvm_worker *w, kvm_err *err)
{
    ptrdiff_t silent = 0, dead = 0;
    bool drain = false;
    TRY(kvm_worker_asked(w->catalogue, w->id, &drain, err));
    if (drain) kvm_worker__asked();
    TRY(kvm_jobs_reap(w->catalogue, &w->o.policy, &silent, err));
    TRY(kvm_jobs_reap_dead(w->catalogue, w->host, kvm_worker_dead, &w->o.policy, &dead,
                           err));
    if (silent + dead > 0)
        kvm_log(KVM_LOG_INFO, "jobs.taken_back",
                "jobs=%td reason=\"their workers are gone; they go on here or with "
                "another\"",
                silent + dead);
    return kvm_queue_relay(w->queue, w->catalogue, err);
}

/* Folders of jobs that have their results: a worker died between the commit and
 * this. */
static void clean_leftovers(kvm_worker *w)
{
    const kvm_str path = kvm_path_join(&w->mem, w->o.home, KVM_STR("work"));
    DIR *d = path.at ? opendir(path.at) : NULL;
    const struct dirent *e;
    while (d && (e = readdir(d))) {
        int64_t job;
        kvm_job_state now;
        if (!kvm_str_to_i64(kvm_str_of(e->d_name), &job)) continue;
        if (kvm_job_state_of(w->catalogue, job, &now, NULL)) continue;
        const kvm_str folder = kvm_path_join(&w->mem, path, kvm_str_of(e->d_name));
        if (kvm_state_class_of(now) == KVM_CLASS_DONE && folder.at)
            kvm_tree__remove(folder);
    }
    if (d) closedir(d);
    kvm_arena_reset(&w->mem);
}

/* Waits for a hint, when nothing else is to be done. Its trouble is not the
 * worker's. */
static void hear(kvm_worker *w, double seconds)
{
    kvm_err err = {0};
    if (w->hinted) { /* it could not be followed: the catalogue was in trouble */
        kvm_sleep(seconds < SLICE_S ? seconds : SLICE_S);
        return;
    }
    const kvm_status s = kvm_queue_take(w->queue, &w->hint, &w->hinted, seconds, &err);
    w->alone = s != KVM_OK;
    if (s && s != KVM_CANCELLED)
        kvm_log_trouble(&w->queue_trouble, "queue.trouble", 0, err.msg);
    if (!s) kvm_log_relief(&w->queue_trouble, "queue.trouble", 0);
}

/* What to work on: the batch of a hint; without one, now and then, what is next by the
 * catalogue. Who found something there looks again soon: hints may not come at all. */
static kvm_status claim(kvm_worker *w, kvm_claim **claims, ptrdiff_t *count,
                        kvm_err *err)
{
    *count = 0;
    kvm_fault(KVM_FAULT_BEFORE_CLAIM);
    if (w->hinted)
        return kvm_jobs_claim(w->catalogue, &w->hint.batch, claims, count, &w->mem,
                              w->id, w->o.lease_s, err);
    if (kvm_queue_scheduled(w->queue) && !w->alone && kvm_now() < w->look_at)
        return KVM_OK;
    TRY(kvm_jobs_take(w->catalogue, &w->o.want, claims, count, &w->mem, w->id,
                      w->o.lease_s, err));
    w->look_at = kvm_now() + (*count ? NEXT_LOOK_S : w->o.poll_s);
    return KVM_OK;
}

/* Claims and does one batch; *found says whether there was one. */
static kvm_status one(kvm_worker *w, bool *found, kvm_err *err)
{
    kvm_load l = {.started = kvm_now()};
    kvm_claim *claims;
    TRY(claim(w, &claims, &l.count, err));
    *found = l.count > 0;
    if (!*found && w->hinted) settle_queue(w); /* stale */
    if (*found) {
        kvm_fault(KVM_FAULT_AFTER_CLAIM);
        l.works = kvm_new(&w->mem, kvm_work, l.count);
        if (!l.works) return kvm_nomem(err, &w->mem);
        for (ptrdiff_t i = 0; i < l.count; i++)
            l.works[i] = (kvm_work){.claim = claims[i], .started = l.started};
        work(w, &l);
        settle_queue(w);
    }
    kvm_arena_reset(&w->mem);
    return KVM_OK;
}

static kvm_status is_over(kvm_worker *w, bool *over, kvm_err *err)
{
    kvm_run_state state = KVM_RUN_OPEN;
    bool open = true;
    if (w->o.run > 0) TRY(kvm_run_state_of(w->catalogue, w->o.run, &state, err));
    if (w->o.until_idle) TRY(kvm_runs_open(w->catalogue, &open, err));
    *over = state != KVM_RUN_OPEN || !open;
    return KVM_OK;
}

static kvm_status step(kvm_worker *w, double *tended, bool *found, bool *over,
                       kvm_err *err)
{
    *found = false;
    if (kvm_now() - *tended > TEND_S) {
        TRY(tend(w, err));
        *tended = kvm_now();
    }
    TRY(one(w, found, err));
    return *found ? KVM_OK : is_over(w, over, err);
}

static kvm_status no_space(const kvm_worker *w, kvm_err *err)
{
    return kvm_fail(err, KVM_NOSPACE,
                    "no space left in %.*s: free some, then the same command goes on",
                    KVM_STR_ARG(w->o.home));
}

/* Whether trouble that has lasted so long is the worker's end. */
static bool is_final(const kvm_worker *w, kvm_status s, double lasted)
{
    if (s == KVM_NOSPACE) return w->full || lasted > KVM_FULL_S;
    return kvm_status_action(s) != KVM_RETRY || lasted > GIVE_UP_S;
}

/* since: when the trouble that lasts began; 0: there is none. Of a full disk the
 * worker's last message tells: it ends within seconds. */
static void note_trouble(kvm_trouble *told, kvm_status s, const char *msg,
                         double *since)
{
    if (!s) {
        *since = 0;
        kvm_log_relief(told, "worker.trouble", 0);
        return;
    }
    if (*since <= 0) *since = kvm_now();
    if (s != KVM_NOSPACE) kvm_log_trouble(told, "worker.trouble", 0, msg);
}

/* How long a hint is waited for: until the catalogue is looked at without one, and not
 * past the next look at dead workers. */
static double rest_of(const kvm_worker *w, bool found, kvm_status s)
{
    const bool scheduled = kvm_queue_scheduled(w->queue);
    if (s) return TEND_S;
    if (found && (w->alone || !scheduled)) return 0;
    const double left = scheduled ? w->look_at - kvm_now() : w->o.poll_s;
    return left < 0 ? 0 : left < TEND_S ? left : TEND_S;
}

/* The catalogue may be busy or gone for a while; a worker outlives that. */
static kvm_status loop(kvm_worker *w, kvm_err *err)
{
    double tended = -TEND_S, trouble = 0;
    bool over = false, found = false;
    kvm_trouble told = {0};
    while (!over && kvm_worker__drains() == 0) {
        kvm_err mine = {0};
        const kvm_status s = step(w, &tended, &found, &over, &mine);
        if (w->full) return no_space(w, err);
        note_trouble(&told, s, mine.msg, &trouble);
        if (s && is_final(w, s, kvm_now() - trouble)) {
            if (s == KVM_NOSPACE) return no_space(w, err);
            if (err && !err->code) *err = mine;
            return s;
        }
        if (over) break;
        if (!found || kvm_queue_scheduled(w->queue)) hear(w, rest_of(w, found, s));
    }
    return KVM_OK;
}

kvm_status kvm_worker_run(const kvm_worker_options *options, kvm_worker_stats *stats,
                          kvm_err *err)
{
    kvm_worker w = {.o = with_defaults(options), .records = -1};
    struct sigaction before[CAUGHT];
    if (!w.o.kind_of)
        return kvm_fail(err, KVM_INTERNAL, "the worker was given no job kinds");
    drains = 0;
    atomic_store(&asked, false);
    if (w.o.signals) catch_signals(before);
    kvm_status s = open_worker(&w, err);
    if (!s) {
        clean_leftovers(&w);
        s = loop(&w, err);
    }
    close_worker(&w);
    if (w.o.signals) give_signals_back(before);
    w.stats.drained = kvm_worker__drains() > 0;
    if (stats) *stats = w.stats;
    return s;
}
