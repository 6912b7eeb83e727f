#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "workers/worker.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/os.h"
#include "schema/fault.h"
#include "workers/machine.h"
#include "workers/worker_internal.h"

static const double TEND_S = 1; /* look for dead workers and unsent hints so often */
static const double GIVE_UP_S = 60; /* the catalogue has not answered for so long */

/* ---- signals ---- */

static volatile sig_atomic_t drains;

void kvm_worker_drain(void)
{
    drains = drains + 1;
}

int kvm_worker__drains(void)
{
    return drains;
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
    if (o.poll_s <= 0) o.poll_s = 0.2;
    if (o.grace_s <= 0) o.grace_s = 10;
    if (o.job_bytes == 0) o.job_bytes = job_bytes;
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

static kvm_status open_worker(kvm_worker *w, kvm_err *err)
{
    kvm_worker_options *o = &w->o;
    TRY(kvm_arena_init(&w->keep, 16 << 20, err));
    TRY(kvm_arena_reserve(&w->mem, (size_t)1 << 30, err));
    TRY(share_page(w, err));
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
    TRY(kvm_store_open(&w->store, &w->keep, o->home, err));
    TRY(kvm_queue_local(&w->queue, &w->keep, o->home, err));
    return kvm_worker_register(w->catalogue, name, w->host, o->machine, &w->id, err);
}

static void close_worker(kvm_worker *w)
{
    if (w->catalogue && w->id && !w->full && kvm_worker_gone(w->catalogue, w->id, NULL))
        kvm_log(KVM_LOG_WARN, "worker.gone", "could not say goodbye to the catalogue");
    if (w->shared) kvm_os->munmap(w->shared, sizeof *w->shared);
    kvm_arena_free(&w->mem);
    kvm_arena_free(&w->keep);
}

/* ---- one job ---- */

static void count(kvm_worker_stats *s, kvm_worker_what what)
{
    switch (what) {
    case KVM_WORKER_START:
    case KVM_WORKER_DRAIN:
        break;
    case KVM_WORKER_SUCCEED:
        s->succeeded++;
        break;
    case KVM_WORKER_SKIP:
        s->skipped++;
        break;
    case KVM_WORKER_RETRY:
        s->retried++;
        break;
    case KVM_WORKER_FAIL:
        s->failed++;
        break;
    case KVM_WORKER_CANCEL:
        s->cancelled++;
        break;
    case KVM_WORKER_LOST:
        s->lost++;
        break;
    case KVM_WORKER_RELEASE:
        s->released++;
        break;
    }
}

void kvm_worker__note(kvm_worker *w, const kvm_work *k, kvm_worker_what what,
                      const char *message)
{
    count(&w->stats, what);
    if (!w->o.note) return;
    const kvm_worker_note n = {.what = what,
                               .run = k->claim.run,
                               .job = k->claim.fence.job,
                               .attempt = k->claim.attempt,
                               .kind = (kvm_kind_id)k->claim.kind,
                               .label = k->claim.label,
                               .seconds = kvm_now() - k->started,
                               .message = message,
                               .log = k->log};
    w->o.note(w->o.note_ctx, &n);
}

/* What a job's folder belongs to: not its number alone, which a new catalogue gives
 * again. */
static kvm_str folder_owner(const kvm_claim *c, kvm_arena *a)
{
    kvm_str s =
        kvm_str_fmt(a, "%.*s\n%.*s\n", KVM_STR_ARG(c->key), KVM_STR_ARG(c->params));
    for (ptrdiff_t i = 0; i < c->input_count && s.at; i++)
        s = kvm_str_fmt(a, "%.*s%.*s\n", KVM_STR_ARG(s), KVM_STR_ARG(c->inputs[i].sha));
    return s;
}

static kvm_status prepare(kvm_worker *w, kvm_work *k, kvm_err *err)
{
    kvm_arena *a = &w->mem;
    const long long job = k->claim.fence.job;
    k->folder = kvm_str_fmt(a, "%.*s/work/%lld", KVM_STR_ARG(w->o.home), job);
    k->dir = kvm_path_join(a, k->folder, KVM_STR("dir"));
    k->records_path = kvm_path_join(a, k->folder, KVM_STR("records.jsonl"));
    k->log = kvm_str_fmt(a, "logs/%lld-%lld.log", job, (long long)k->claim.fence.token);
    const kvm_str owner_path = kvm_path_join(a, k->folder, KVM_STR("owner"));
    const kvm_str owner = folder_owner(&k->claim, a);
    if (!owner.at || !owner_path.at) return kvm_nomem(err, a);
    kvm_str found;
    if (kvm_file_read(&found, a, owner_path, 64 << 20, NULL) ||
        !kvm_str_eq(found, owner))
        kvm_tree__remove(k->folder);
    TRY(kvm_dir_make(k->dir, err));
    return kvm_file_publish(owner_path, owner, *a, err);
}

static kvm_status do_skip(kvm_worker *w, kvm_work *k, const void *arg, kvm_err *err)
{
    (void)arg;
    kvm_fault(KVM_FAULT_IN_SKIP);
    return kvm_job_skip(w->catalogue, k->claim.fence, k->claim.equal, err);
}
static kvm_status do_fail(kvm_worker *w, kvm_work *k, const void *why, kvm_err *err)
{
    return kvm_job_fail(w->catalogue, k->claim.fence, why, &k->records.result,
                        &w->o.policy, err);
}
static kvm_status do_crash(kvm_worker *w, kvm_work *k, const void *how, kvm_err *err)
{
    return kvm_job_crash(w->catalogue, k->claim.fence, kvm_str_of(how),
                         &k->records.result, &w->o.policy, err);
}
static kvm_status do_release(kvm_worker *w, kvm_work *k, const void *arg, kvm_err *err)
{
    (void)arg;
    return kvm_job_release(w->catalogue, k->claim.fence, &k->records.result, err);
}

/* The job has no result: says so, and tells where that has led. */
static void end_badly(kvm_worker *w, kvm_work *k, const kvm_err *why, const char *how)
{
    kvm_err err = {0};
    kvm_job_state now = KVM_STATE_READY;
    k->records.result.artefact_count = 0;
    kvm_status s =
        kvm_commit__insist(w, k, why ? do_fail : do_crash,
                           why ? (const void *)why : (const void *)how, &err);
    if (!s) s = kvm_job_state_of(w->catalogue, k->claim.fence.job, &now, &err);
    const bool ended = !s && kvm_state_class_of(now) == KVM_CLASS_ENDED;
    if (s) {
        kvm_worker__note(w, k, KVM_WORKER_LOST, err.msg);
    } else if (now == KVM_STATE_CANCELLED) {
        kvm_worker__note(w, k, KVM_WORKER_CANCEL, "on request");
    } else {
        if (ended && w->stats.failed == 0) w->stats.why = why ? why->code : KVM_OK;
        kvm_worker__note(w, k, ended ? KVM_WORKER_FAIL : KVM_WORKER_RETRY,
                         why ? why->msg : how);
    }
}

static void release(kvm_worker *w, kvm_work *k)
{
    kvm_err err = {0};
    const kvm_status s = kvm_commit__insist(w, k, do_release, NULL, &err);
    kvm_worker__note(w, k, s ? KVM_WORKER_LOST : KVM_WORKER_RELEASE, err.msg);
}

/* The job has done its work (or an equal one had): commit. */
static void end_well(kvm_worker *w, kvm_work *k)
{
    kvm_err err = {0};
    const bool reuse = k->records.reuse;
    const kvm_status s = reuse ? kvm_commit__insist(w, k, do_skip, NULL, &err)
                               : kvm_commit__results(w, k, &err);
    if (s == KVM_LOST) {
        kvm_worker__note(w, k, KVM_WORKER_LOST, err.msg);
    } else if (s) {
        end_badly(w, k, &err, NULL);
    } else {
        kvm_fault(KVM_FAULT_AFTER_COMMIT);
        kvm_tree__remove(k->folder);
        kvm_fault(KVM_FAULT_AFTER_CLEAN);
        kvm_queue_wake(w->queue);
        kvm_worker__note(w, k, reuse ? KVM_WORKER_SKIP : KVM_WORKER_SUCCEED, "");
    }
}

static void settle(kvm_worker *w, kvm_work *k, kvm_child_end end, char how[128])
{
    kvm_err err = {0};
    if (end == KVM_CHILD_FENCED) {
        kvm_worker__note(w, k, KVM_WORKER_LOST, "the lease was lost");
        return;
    }
    if (kvm_records_read(&k->records, &w->mem, k->records_path, &err)) {
        k->records = (kvm_records){0};
        if (err.code == KVM_FORMAT) snprintf(how, 128, "%.127s", err.msg);
    }
    for (ptrdiff_t i = 0; i < k->records.verified_count; i++)
        kvm_store_trust(w->store, k->records.verified[i].at);
    const kvm_err *verdict = k->records.ended          ? &k->records.end
                             : w->shared->trouble.code ? &w->shared->trouble
                                                       : NULL;
    const bool stopped = !verdict || verdict->code == KVM_CANCELLED;
    if (verdict && !verdict->code)
        end_well(w, k);
    else if (stopped && end == KVM_CHILD_DRAINED)
        release(w, k);
    else if (stopped && end == KVM_CHILD_TIMEOUT) {
        snprintf(how, 128, "the job ran past its budget of %g s", k->claim.timeout_s);
        end_badly(w, k, NULL, how);
    } else
        end_badly(w, k, verdict, how);
}

static void work(kvm_worker *w, kvm_work *k)
{
    kvm_err err = {0};
    kvm_child_end end = KVM_CHILD_EXITED;
    char how[128] = "";
    kvm_worker__note(w, k, KVM_WORKER_START, "");
    kvm_status s = prepare(w, k, &err);
    kvm_fault(KVM_FAULT_BEFORE_RUN);
    if (w->o.progress) kvm_progress_begin(w->o.progress, k->claim.label.at);
    if (!s) s = kvm_child__run(w, k, &end, how, &err);
    kvm_progress_end(w->o.progress);
    if (s) {
        end_badly(w, k, &err, NULL);
        return;
    }
    kvm_fault(KVM_FAULT_AFTER_RUN);
    settle(w, k, end, how);
    kvm_beat__stop(&k->beat);
}

/* ---- the loop ---- */

static kvm_status tend(kvm_worker *w, kvm_err *err)
{
    ptrdiff_t silent = 0, dead = 0;
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

/* Claims and does one job; *found says whether there was one. */
static kvm_status one(kvm_worker *w, bool *found, kvm_err *err)
{
    kvm_work k = {.started = kvm_now()};
    kvm_fault(KVM_FAULT_BEFORE_CLAIM);
    TRY(kvm_job_claim(w->catalogue, &k.claim, found, &w->mem, w->id, w->o.run,
                      w->o.lease_s, err));
    if (*found) {
        kvm_fault(KVM_FAULT_AFTER_CLAIM);
        work(w, &k);
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
        if (!found && !over) kvm_queue_wait(w->queue, s ? 1 : w->o.poll_s);
    }
    return KVM_OK;
}

kvm_status kvm_worker_run(const kvm_worker_options *options, kvm_worker_stats *stats,
                          kvm_err *err)
{
    kvm_worker w = {.o = with_defaults(options)};
    struct sigaction before[CAUGHT];
    if (!w.o.kind_of)
        return kvm_fail(err, KVM_INTERNAL, "the worker was given no job kinds");
    drains = 0;
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
