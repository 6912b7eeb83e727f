/* child.c - the process in which jobs run, from both sides of the fork.
 *
 * It serves the jobs of a batch one after another, each with memory and, if it asks for
 * one, a folder of its own (folder.c). Records and log are the batch's: for small jobs
 * making and removing files takes longer than the jobs. The page it shares with the
 * worker (kvm_shared) says which job it is at and where the records of each end.
 *
 *   waits ─► runs ─► over     what the worker asked not to begin stays in waits
 *
 * The child is its own process group and dies with the worker (PR_SET_PDEATHSIG). */
#define _DEFAULT_SOURCE /* WCOREDUMP, strsignal */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/os.h"
#include "base/yaml.h"
#include "jobs/open.h"
#include "kernels/ops.h"
#include "schema/fault.h"
#include "workers/bounds.h"
#include "workers/gang.h"
#include "workers/worker_internal.h"

static const double CANCEL_S =
    4; /* a job that does not stop by itself so long is killed */
static const double MARGIN =
    1.0 / 6;                       /* of the lease: the child ends so long before it */
static const double SPENT_S = 0.5; /* what the job has taken is noted so often */

/* ---- the child ---- */

void kvm_child__show(kvm_shared *s, double done, double total, const char *unit)
{
    uint64_t text[KVM_PROGRESS_UNIT / 8] = {0};
    snprintf((char *)text, sizeof text, "%s", unit);
    atomic_store(&s->done, kvm_bits(done));
    atomic_store(&s->total, kvm_bits(total));
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        atomic_store(&s->unit[i], text[i]);
    atomic_fetch_add(&s->updates, 1);
}

bool kvm_child__cancelled(const kvm_shared *s)
{
    return atomic_load(&s->cancel[atomic_load(&s->at)]);
}

static void child_show(kvm_progress *p, double done, double total, const char *unit,
                       double eta_s)
{
    (void)eta_s;
    kvm_child__show(p->ctx, done, total, unit);
}

static bool child_cancelled(kvm_progress *p)
{
    return kvm_child__cancelled(p->ctx);
}

/* "name?" and "name*" of a kind's table match what they should */
static bool input_matches(const char *row, kvm_str name)
{
    const size_t n = strcspn(row, "?*");
    if (row[n] == '*')
        return kvm_str_starts(name, (kvm_str){row, (ptrdiff_t)n}) &&
               name.len > (ptrdiff_t)n && name.at[n] == '.';
    return kvm_str_eq(name, (kvm_str){row, (ptrdiff_t)n});
}

static kvm_status check_inputs(const kvm_job_kind *kind, const kvm_claim *c,
                               kvm_err *err)
{
    for (const char *const *row = kind->inputs; row && *row; row++) {
        bool there = strpbrk(*row, "?*") != NULL;
        for (ptrdiff_t i = 0; i < c->input_count && !there; i++)
            there = input_matches(*row, c->inputs[i].name);
        if (!there)
            return kvm_fail(err, KVM_NOTFOUND,
                            "%.*s: the step before it has left no %s",
                            KVM_STR_ARG(c->label), *row);
    }
    return KVM_OK;
}

/* Verified paths of the inputs. Hashing is the child's work, so that the lease is
 * renewed meanwhile. */
static kvm_status open_inputs(const kvm_worker *w, const kvm_claim *c, kvm_recorder *r,
                              kvm_job *j, kvm_err *err)
{
    kvm_job_input *in = kvm_new(j->keep, kvm_job_input, c->input_count + 1);
    if (!in) return kvm_nomem(err, j->keep);
    for (ptrdiff_t i = 0; i < c->input_count; i++) {
        in[i].name = c->inputs[i].name.at;
        in[i].sha = c->inputs[i].sha.at;
        kvm_status s = kvm_store_get(w->store, &in[i].path, j->keep, in[i].sha,
                                     c->inputs[i].bytes, err);
        if (s) return kvm_err_prefix(err, s, "input %s", in[i].name);
        if (r) TRY(kvm_recorder_verified(r, c->inputs[i].sha, err));
    }
    j->inputs = in;
    j->input_count = c->input_count;
    return KVM_OK;
}

/* Whether an equal job's results can be had. */
static bool can_reuse(kvm_worker *w, const kvm_claim *c, kvm_arena *keep)
{
    if (!c->equal) return false;
    for (ptrdiff_t i = 0; i < c->output_count; i++) {
        kvm_err why = {0};
        kvm_str path;
        bool there = false; /* for the others who share the store, too */
        const char *sha = c->outputs[i].sha.at;
        kvm_status s = kvm_store_look(w->store, sha, c->outputs[i].bytes, &there, &why);
        if (!s && !there)
            s = kvm_fail(&why, KVM_DAMAGED, "%.12s… has gone from the store", sha);
        if (!s)
            s = kvm_store_get(w->store, &path, keep, sha, c->outputs[i].bytes, &why);
        if (s) {
            kvm_log(KVM_LOG_WARN, "job.redo", "job=%lld of=%lld why=\"%s\"",
                    (long long)c->fence.job, (long long)c->equal, why.msg);
            return false;
        }
    }
    return true;
}

kvm_status kvm_child__backend(const char **backend, const kvm_worker *w,
                              const kvm_claim *c, kvm_arena *keep, kvm_err *err)
{
    kvm_jat identity;
    kvm_str named;
    const kvm_backend *mine = kvm_backend_find(kvm_str_of(w->o.backend));
    const char *exact = mine && kvm_backend_rounds(mine) ? "cpu" : w->o.backend;
    TRY(kvm_json_parse(&identity, keep, c->identity, c->label, err));
    TRY(kvm_json_str_or(kvm_json_get(identity, keep, "backend"), kvm_str_of(exact),
                        &named, err));
    *backend = named.at;
    return KVM_OK;
}

kvm_status kvm_child__open(const kvm_worker *w, const kvm_claim *c, kvm_recorder *r,
                           kvm_job *j, const kvm_job_kind **out, kvm_err *err)
{
    const kvm_job_kind *kind = *out = w->o.kind_of((kvm_kind_id)c->kind);
    if (!kind)
        return kvm_fail(err, KVM_VERSION,
                        "job %lld is of kind %d, which this program does not know",
                        (long long)c->fence.job, c->kind);
    if (kvm_job_kind_version(kind->id) != c->version)
        return kvm_fail(err, KVM_VERSION,
                        "%.*s was submitted for version %d of its code, this program "
                        "has %d: submit it again",
                        KVM_STR_ARG(c->label), c->version,
                        kvm_job_kind_version(kind->id));
    TRY(kvm_json_parse(&j->params, j->keep, c->params, c->label, err));
    if (kind->params) TRY(kvm_schema_check(j->params, kind->params, *j->keep, err));
    TRY(kvm_job_places(j, err));
    TRY(check_inputs(kind, c, err));
    return open_inputs(w, c, r, j, err);
}

/* A job that is being served, and its folder's lock. */
typedef struct service {
    kvm_job job; /* first: a job leads back to this */
    const kvm_work *work;
    int lock; /* -1: it has not asked for its folder */
} service;

static kvm_status take_folder(const kvm_work *k, int *lock, kvm_arena scratch,
                              kvm_err *err)
{
    if (*lock >= 0) return KVM_OK;
    TRY(kvm_folder__make(k, scratch, err));
    return kvm_folder__lock(k, lock, err);
}

static kvm_status enter(kvm_job *j, kvm_err *err)
{
    service *v = (service *)(void *)j;
    return take_folder(v->work, &v->lock, *j->keep, err);
}

static kvm_status run_job(kvm_worker *w, service *v, kvm_recorder *r, kvm_arena *keep,
                          kvm_err *err)
{
    const kvm_work *k = v->work;
    const kvm_claim *c = &k->claim;
    kvm_job *j = &v->job;
    const kvm_job_kind *kind;
    kvm_progress progress = {
        .show = child_show, .cancelled = child_cancelled, .ctx = w->shared};
    kvm_progress_begin(&progress, c->label.at);
    *j = (kvm_job){.host = &kvm_host_recorder,
                   .host_ctx = r,
                   .dir = k->dir,
                   .enter = enter,
                   .before = k->before,
                   .team = &kvm_team_alone,
                   .keep = keep,
                   .progress = &progress,
                   .threads = w->o.threads,
                   .offload = w->o.offload};
    TRY(kvm_child__backend(&j->backend, w, c, keep, err));
    TRY(kvm_child__open(w, c, r, j, &kind, err));
    return kind->run(j, err);
}

/* The ranks record into the job's folder. */
static kvm_status serve_gang(kvm_worker *w, kvm_work *k, service *v, kvm_recorder *r,
                             kvm_arena *keep, kvm_err *err)
{
    const kvm_str path = kvm_path_join(keep, k->folder, KVM_STR(KVM_GANG_RECORDS));
    if (!path.at) return kvm_nomem(err, keep);
    TRY(take_folder(k, &v->lock, *keep, err));
    TRY(kvm_gang__watch(w, k, path, &k->code, err));
    return k->code ? KVM_OK : kvm_recorder_copy(r, path, err);
}

static kvm_status serve(kvm_worker *w, kvm_work *k, service *v, kvm_recorder *r,
                        kvm_arena *keep, kvm_err *err)
{
    kvm_err why = {0};
    kvm_fault(KVM_FAULT_CHILD_START);
    if (can_reuse(w, &k->claim, keep)) {
        TRY(kvm_recorder_reuse(r, err));
        return kvm_recorder_end(r, KVM_OK, &why, err);
    }
    if (k->claim.ranks > 1) return serve_gang(w, k, v, r, keep, err);
    const kvm_status s = run_job(w, v, r, keep, &why);
    if (s)
        kvm_log(KVM_LOG_ERROR, "job.failed", "status=%s error=\"%s\" at=%s:%d",
                kvm_status_name(s), why.msg, why.file ? why.file : "?", why.line);
    return kvm_recorder_end(r, s, &why, err);
}

static void redirect(const kvm_worker *w, const kvm_work *k)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.*s/%.*s", KVM_STR_ARG(w->o.home),
             KVM_STR_ARG(k->claim.log));
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    const int log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    fflush(NULL);
    dup2(null, 0);
    dup2(log < 0 ? null : log, 1); /* a full disk: the job says so itself */
    dup2(log < 0 ? null : log, 2);
    close(null);
    if (log >= 0) close(log);
}

static double cpu_of(clockid_t clock)
{
    struct timespec t;
    return clock_gettime(clock, &t) ? 0 : kvm_seconds(t);
}

/* Says which job it is at, before anything of it is touched. */
static void begin(kvm_shared *s, ptrdiff_t i)
{
    atomic_store(&s->began, kvm_bits(kvm_now()));
    atomic_store(&s->began_cpu, kvm_bits(cpu_of(CLOCK_PROCESS_CPUTIME_ID)));
    atomic_store(&s->done, 0);
    atomic_store(&s->total, 0);
    atomic_store(&s->at, (int)i);
    atomic_store(&s->phase[i], KVM_PHASE_RUNS);
}

static void finish(kvm_shared *s, ptrdiff_t i, const kvm_recorder *r)
{
    atomic_store(&s->recorded[i], kvm_recorder_size(r));
    atomic_store(&s->took[i], kvm_bits(kvm_now() - kvm_unbits(atomic_load(&s->began))));
    atomic_store(&s->phase[i], KVM_PHASE_OVER);
}

static kvm_status serve_all(kvm_worker *w, kvm_load *l, kvm_err *err)
{
    kvm_shared *s = w->shared;
    kvm_recorder *r;
    kvm_arena keep;
    TRY(kvm_bounds_set(w->o.allow, w->o.home, err));
    TRY(kvm_recorder_on(&r, &w->mem, w->records, KVM_STR("the job's records"), err));
    TRY(kvm_arena_reserve(&keep, w->o.job_bytes, err));
    for (ptrdiff_t i = 0; i < l->count && !atomic_load(&s->stop); i++) {
        const kvm_claim *c = &l->works[i].claim;
        service v = {.work = &l->works[i], .lock = -1};
        if (atomic_load(&s->cancel[i])) continue;
        begin(s, i);
        kvm_log(KVM_LOG_INFO, "job.begin",
                "job=%lld token=%lld attempt=%d label=\"%.*s\"",
                (long long)c->fence.job, (long long)c->fence.token, c->attempt,
                KVM_STR_ARG(c->label));
        TRY(serve(w, &l->works[i], &v, r, &keep, err));
        if (l->works[i].code) _exit(l->works[i].code); /* it is still at this job */
        kvm_arena_reset(&keep);
        /* who comes for the folder now has not to kill us */
        if (v.lock >= 0) close(v.lock);
        finish(s, i, r);
    }
    kvm_arena_free(&keep);
    return KVM_OK;
}

_Noreturn static void child_main(kvm_worker *w, kvm_load *l, pid_t parent)
{
    kvm_err err = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    setpgid(0, 0);
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    kvm_log_set(KVM_LOG_INFO, NULL, NULL);
    redirect(w, &l->works[0]);
    const kvm_status s = serve_all(w, l, &err);
    if (s)
        kvm_log(KVM_LOG_ERROR, "job.trouble", "status=%s error=\"%s\"",
                kvm_status_name(s), err.msg);
    if (s) w->shared->trouble = err; /* the verdict, when the records cannot hold it */
    fflush(NULL);
    _exit(s ? 1 : 0);
}

/* ---- the worker ---- */

/* Why and since when the child is being stopped. */
typedef struct watch {
    kvm_worker *w;
    kvm_load *l;
    pid_t pid;
    ptrdiff_t told; /* jobs whose beginning was told, or that were passed over */
    double noted;
    double asked;    /* the job that it is at was told to stop; 0: not yet */
    ptrdiff_t place; /* that job */
    double drain;    /* the first signal; 0: none */
    bool killed;
    kvm_child_end end;
    unsigned long shown;
} watch;

static kvm_phase phase_of(const watch *t, ptrdiff_t i)
{
    return (kvm_phase)atomic_load(&t->w->shared->phase[i]);
}

/* NULL: it is at none yet. */
static kvm_work *current(const watch *t)
{
    const ptrdiff_t at = kvm_shared_at(t->w->shared, t->l->count);
    return phase_of(t, at) == KVM_PHASE_WAITS ? NULL : &t->l->works[at];
}

static void tell_begun(watch *t)
{
    const ptrdiff_t at = kvm_shared_at(t->w->shared, t->l->count);
    for (; t->told <= at && phase_of(t, at) != KVM_PHASE_WAITS; t->told++) {
        kvm_work *k = &t->l->works[t->told];
        if (phase_of(t, t->told) == KVM_PHASE_WAITS) continue;
        kvm_progress_end(t->w->o.progress);
        kvm_worker__note(t->w, k, KVM_WORKER_START, "");
        if (t->w->o.progress) kvm_progress_begin(t->w->o.progress, k->claim.label.at);
    }
}

static void show_progress(watch *t)
{
    const kvm_shared *s = t->w->shared;
    const unsigned long updates = atomic_load(&s->updates);
    if (updates == t->shown || !t->w->o.progress) return;
    t->shown = updates;
    uint64_t text[KVM_PROGRESS_UNIT / 8];
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        text[i] = atomic_load(&s->unit[i]);
    ((char *)text)[sizeof text - 1] = 0;
    kvm_progress_at(t->w->o.progress, kvm_unbits(atomic_load(&s->done)),
                    kvm_unbits(atomic_load(&s->total)), (const char *)text);
}

/* the job that it is at is to stop */
static void ask(watch *t, double now)
{
    if (t->asked > 0) return;
    t->asked = now;
    atomic_store(&t->w->shared->cancel[t->place], true);
}

static void end_child(watch *t)
{
    if (!t->killed) kill(-t->pid, SIGKILL);
    kill(t->pid, SIGKILL);
    t->killed = true;
}

/* no lease could be renewed in time */
static bool out_of_time(const watch *t)
{
    return kvm_beat__left(&t->l->beat) < t->w->o.lease_s * MARGIN;
}

/* the folder may be another's by now */
static bool fenced(const watch *t)
{
    return atomic_load(&t->l->beat.lease[t->place]) == KVM_LEASE_LOST || out_of_time(t);
}

/* Jobs that it has yet to come to, and that are lost or cancelled, stay out. */
static void look_ahead(watch *t)
{
    for (ptrdiff_t i = t->place + 1; i < t->l->count; i++)
        if (atomic_load(&t->l->beat.lease[i]) != KVM_LEASE_HELD)
            atomic_store(&t->w->shared->cancel[i], true);
}

static void look_at_drain(watch *t, double now)
{
    const int drains = kvm_worker__drains();
    if (drains == 0) return;
    if (t->drain <= 0) {
        t->drain = now;
        kvm_worker__note(t->w, &t->l->works[t->place], KVM_WORKER_DRAIN, "");
    }
    if (drains < 2 && now - t->drain <= t->w->o.grace_s) return;
    t->end = KVM_CHILD_DRAINED;
    atomic_store(&t->w->shared->stop, true);
    ask(t, now);
    if (drains > 1) end_child(t);
}

/* Looks at everything that may end the child, or the job that it is at. */
static void look(watch *t)
{
    const double now = kvm_now();
    const ptrdiff_t at = kvm_shared_at(t->w->shared, t->l->count);
    if (at != t->place) t->asked = 0;
    t->place = at;
    if (fenced(t)) {
        end_child(t);
        return;
    }
    look_ahead(t);
    look_at_drain(t, now);
    kvm_work *k = current(t);
    if (atomic_load(&t->l->beat.lease[at]) == KVM_LEASE_CANCELLING) ask(t, now);
    if (k && k->claim.timeout_s > 0 && t->asked <= 0 &&
        now - kvm_unbits(atomic_load(&t->w->shared->began)) > k->claim.timeout_s) {
        k->timed_out = true;
        ask(t, now);
    }
    if (t->asked > 0 && now - t->asked > CANCEL_S) end_child(t);
}

/* What has run for a while gets a folder, to have it written there. cpu: of the child
 * so far. */
static void note_spent(watch *t, double now, double cpu)
{
    const kvm_shared *s = t->w->shared;
    const kvm_work *k = current(t);
    if (!k || fenced(t)) return;
    t->noted = now;
    if (now - kvm_unbits(atomic_load(&s->began)) < SPENT_S) return;
    if (kvm_folder__make(k, t->w->mem, NULL)) return;
    kvm_spent_write(
        k->folder,
        (kvm_job_spent){k->before.seconds + now - kvm_unbits(atomic_load(&s->began)),
                        k->before.cpu_seconds + cpu -
                            kvm_unbits(atomic_load(&s->began_cpu)),
                        k->before.attempts + 1});
}

static void note_running(watch *t)
{
    clockid_t clock;
    const double now = kvm_now();
    if (now - t->noted < SPENT_S || clock_getcpuclockid(t->pid, &clock)) return;
    note_spent(t, now, cpu_of(clock));
}

static void note_ended(watch *t, const struct rusage *u)
{
    note_spent(t, kvm_now(), kvm_cpu_seconds(u));
}

/* Polls: the read end of a pipe that only the child holds open wakes us when it
 * ends. */
static int watch_child(watch *t, int life)
{
    int status = 0;
    for (;;) {
        struct pollfd p = {.fd = life, .events = POLLIN};
        struct rusage u;
        const pid_t got = wait4(t->pid, &status, WNOHANG, &u);
        tell_begun(t);
        if (got == t->pid) {
            t->place = kvm_shared_at(t->w->shared, t->l->count);
            note_ended(t, &u);
            break;
        }
        if (got < 0 && errno != EINTR) break;
        look(t);
        show_progress(t);
        note_running(t);
        const int ready = poll(&p, 1, 50);
        if (ready > 0)
            kvm_sleep(0.0005); /* closed, not yet waitable; or held by nobody */
    }
    if (out_of_time(t)) t->end = KVM_CHILD_FENCED; /* its files are not ours to take */
    kill(-t->pid, SIGKILL);                        /* what the child has left behind */
    kvm_progress_end(t->w->o.progress);
    return status;
}

static void describe(const watch *t, int status, char how[128])
{
    if (t->killed && WIFSIGNALED(status))
        snprintf(how, 128, "cancelled; did not stop within %g s", CANCEL_S);
    else if (WIFSIGNALED(status))
        snprintf(how, 128, "the job's process was ended by signal %d (%s%s)",
                 WTERMSIG(status), strsignal(WTERMSIG(status)),
                 WTERMSIG(status) == SIGKILL ? "; out of memory, perhaps" : "");
    else
        snprintf(how, 128, "the job's process exited with %d and left no verdict",
                 WEXITSTATUS(status));
}

static void reset_shared(kvm_shared *s, const kvm_load *l)
{
    atomic_store(&s->at, 0);
    atomic_store(&s->stop, false);
    atomic_store(&s->done, 0);
    atomic_store(&s->total, 0);
    atomic_store(&s->updates, 0);
    s->trouble = (kvm_err){0};
    for (ptrdiff_t i = 0; i < l->count; i++) {
        atomic_store(&s->phase[i], KVM_PHASE_WAITS);
        atomic_store(&s->took[i], 0);
        atomic_store(&s->recorded[i], 0);
        atomic_store(&s->cancel[i], l->works[i].why.code != KVM_OK);
    }
}

kvm_status kvm_child__run(kvm_worker *w, kvm_load *l, kvm_child_end *end, char how[128],
                          kvm_err *err)
{
    int life[2];
    const pid_t parent = getpid();
    reset_shared(w->shared, l);
    if (kvm_os->ftruncate(w->records, 0))
        return kvm_fail_errno(err, "cannot empty the records");
    if (pipe(life)) return kvm_fail_errno(err, "cannot make a pipe");
    fcntl(life[0], F_SETFD, FD_CLOEXEC);
    fcntl(life[1], F_SETFD, FD_CLOEXEC);
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        close(life[0]);
        child_main(w, l, parent);
    }
    close(life[1]);
    if (pid < 0) {
        close(life[0]);
        return kvm_fail(err, KVM_NOMEM, "cannot fork: %s", strerror(errno));
    }
    setpgid(pid, pid);
    watch t = {.w = w, .l = l, .pid = pid, .end = KVM_CHILD_EXITED};
    kvm_status s = kvm_beat__start(&l->beat, w->beat_catalogue, w->id, w->shared, err);
    l->beating = s == KVM_OK;
    if (s) {
        end_child(&t);
        waitpid(pid, NULL, 0);
    } else {
        const int status = watch_child(&t, life[0]);
        describe(&t, status, how);
        *end = t.end;
    }
    close(life[0]);
    return s;
}
