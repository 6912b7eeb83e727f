/* gang_rank.c - one rank of a gang: from the task to the verdict. */
#define _GNU_SOURCE /* sched_getaffinity, CPU_COUNT */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/build.h"
#include "base/clock.h"
#include "base/log.h"
#include "kernels/ops.h"
#include "schema/fault.h"
#include "workers/bounds.h"
#include "workers/gang_internal.h"
#include "workers/worker_internal.h"

static const double POLL_S = 0.2;  /* asks so often whether it is to stop */
static const double SHOW_S = 0.5;  /* says so often how far it is */
static const double ALONE_S = 120; /* the child has given no sign for so long */

/* ---- what it hears and says while it works ---- */

typedef struct ears {
    kvm_str folder;
    bool leads;
    double shown, polled, heard;
    struct timespec beat;
    bool cancelled;
} ears;

static void show(kvm_progress *p, double done, double total, const char *unit,
                 double eta_s)
{
    ears *e = p->ctx;
    kvm_gang_progress now = {.done = done, .total = total};
    (void)eta_s;
    if (!e->leads || kvm_now() - e->shown < SHOW_S) return;
    e->shown = kvm_now();
    snprintf(now.unit, sizeof now.unit, "%s", unit);
    kvm_gang__progress_write(e->folder, &now);
}

/* Its worker may have died on another machine, where no signal comes from: the job has
 * another one by then. */
static void end_alone(ears *e, double now)
{
    struct timespec beat = e->beat;
    if (e->heard <= 0) e->heard = now;
    if (kvm_gang__beat(e->folder, &beat) &&
        (beat.tv_sec != e->beat.tv_sec || beat.tv_nsec != e->beat.tv_nsec)) {
        e->beat = beat;
        e->heard = now;
    }
    if (now - e->heard < ALONE_S) return;
    kvm_log(KVM_LOG_ERROR, "rank.alone",
            "seconds=%.0f reason=\"no sign of its worker\"", now - e->heard);
    _exit(1);
}

static bool cancelled(kvm_progress *p)
{
    ears *e = p->ctx;
    const double now = kvm_now();
    if (now - e->polled < POLL_S) return e->cancelled;
    e->polled = now;
    e->cancelled |= kvm_gang__cancelled(e->folder);
    end_alone(e, now);
    return e->cancelled;
}

/* ---- the job ---- */

/* of 0, which means all: those that this process may use, shared with the ranks beside
 * it where they may use the same */
static int threads_of(int asked, kvm_seat seat)
{
    cpu_set_t set;
    if (asked > 0) return asked;
    if (sched_getaffinity(0, sizeof set, &set)) return 1;
    const int mine = CPU_COUNT(&set);
    const bool bound = mine < (int)sysconf(_SC_NPROCESSORS_ONLN);
    const int each = bound ? mine : mine / seat.size;
    return each > 0 ? each : 1;
}

/* Bits hang on program, instruction set and threads. */
static kvm_status agree_on_all(kvm_team *team, const kvm_job *j, kvm_arena *keep,
                               kvm_err *err)
{
    char threads[16];
    const kvm_backend *b;
    TRY(kvm_backend_choose(&b, kvm_str_of(j->backend), err));
    const kvm_str label = kvm_backend_label(b, keep);
    if (!label.at) return kvm_nomem(err, keep);
    snprintf(threads, sizeof threads, "%d", j->threads);
    TRY(kvm_team_same(team, "program", kvm_build_commit, err));
    TRY(kvm_team_same(team, "backend", label.at, err));
    return kvm_team_same(team, "threads", threads, err);
}

typedef struct rank {
    kvm_team *team;
    kvm_seat seat;
    kvm_task task;
    kvm_worker w; /* what kvm_child__open asks of one */
    kvm_recorder *recorder;
    kvm_arena keep;
} rank;

/* Inputs are hashed once on each machine, while the others wait. */
static kvm_status open_all(rank *r, kvm_job *j, const kvm_job_kind **kind, kvm_err *err)
{
    const kvm_claim *c = &r->task.claim;
    kvm_recorder *recorder = kvm_team_leads(r->team) ? r->recorder : NULL;
    kvm_status s = KVM_OK;
    if (r->seat.rank == 0) s = kvm_child__open(&r->w, c, recorder, j, kind, err);
    TRY(kvm_team_agree(r->team, s, err));
    if (r->seat.rank == 0) return KVM_OK;
    for (ptrdiff_t i = 0; i < c->input_count; i++)
        kvm_store_trust(r->w.store, c->inputs[i].sha.at);
    return kvm_child__open(&r->w, c, NULL, j, kind, err);
}

static kvm_status run(rank *r, kvm_arena *keep, kvm_err *err)
{
    const kvm_task *t = &r->task;
    const bool leads = kvm_team_leads(r->team);
    ears e = {.folder = t->folder, .leads = leads};
    kvm_progress progress = {.show = show, .cancelled = cancelled, .ctx = &e};
    const kvm_job_kind *kind;
    kvm_job j = {.host = leads ? &kvm_host_recorder : &kvm_host_silent,
                 .host_ctx = r->recorder,
                 .dir = kvm_path_join(keep, t->folder, KVM_STR("dir")),
                 .before = t->before,
                 .team = r->team,
                 .keep = keep,
                 .progress = &progress,
                 .backend = t->backend,
                 .threads = threads_of(t->threads, r->seat),
                 .offload = t->offload,
                 .memory = t->memory};
    if (!j.dir.at) return kvm_nomem(err, keep);
    kvm_progress_begin(&progress, t->claim.label.at);
    TRY(agree_on_all(r->team, &j, keep, err));
    TRY(open_all(r, &j, &kind, err));
    kvm_fault(leads ? KVM_FAULT_RANK_LEADS : KVM_FAULT_RANK_FOLLOWS);
    return kind->run(&j, err);
}

static kvm_status begin(rank *r, kvm_str place, kvm_kind_of *kind_of, kvm_err *err)
{
    kvm_task *t = &r->task;
    TRY(kvm_task_read(t, &r->keep, place, err));
    if (chdir(t->cwd.at)) return kvm_fail_errno(err, "%s", t->cwd.at);
    if (t->ranks != r->team->size)
        return kvm_fail(err, KVM_ENVIRONMENT,
                        "%.*s: is for %d ranks, and the launcher has put %d together: "
                        "does it know this MPI? (srun needs --mpi=pmix)",
                        KVM_STR_ARG(place), t->ranks, r->team->size);
    r->w.o = (kvm_worker_options){.home = t->home,
                                  .kind_of = kind_of,
                                  .backend = t->backend,
                                  .job_bytes = t->job_bytes};
    TRY(kvm_bounds_set(t->allow, t->home, err));
    return kvm_store_open(&r->w.store, &r->keep, t->home, &t->store, err);
}

static kvm_status lead(rank *r, kvm_err *err)
{
    if (!kvm_team_leads(r->team)) return KVM_OK;
    const kvm_str path =
        kvm_path_join(&r->keep, r->task.folder, KVM_STR(KVM_GANG_RECORDS));
    if (!path.at) return kvm_nomem(err, &r->keep);
    TRY(kvm_recorder_open(&r->recorder, &r->keep, path, err));
    kvm_gang__start(r->task.folder);
    return KVM_OK;
}

/* runs, and records what all agree has come of it */
static kvm_status end(rank *r, kvm_arena *job, kvm_err *err)
{
    kvm_err why = {0};
    const kvm_status s = kvm_team_agree(r->team, run(r, job, &why), &why);
    if (!kvm_team_leads(r->team)) return KVM_OK;
    if (s)
        kvm_log(KVM_LOG_ERROR, "job.failed", "status=%s error=\"%s\" at=%s:%d",
                kvm_status_name(s), why.msg, why.file ? why.file : "?", why.line);
    return kvm_recorder_end(r->recorder, s, &why, err);
}

kvm_status kvm_gang_rank(kvm_team *team, kvm_seat seat, kvm_str place,
                         kvm_kind_of *kind_of, kvm_err *err)
{
    rank r = {.team = team, .seat = seat};
    kvm_arena job = {0};
    TRY(kvm_arena_init(&r.keep, (size_t)1 << 30, err));
    kvm_status s = begin(&r, place, kind_of, err);
    if (!s) s = kvm_arena_reserve(&job, r.task.job_bytes, err);
    if (!s) s = lead(&r, err);
    s = kvm_team_agree(team, s, err);
    if (!s) s = end(&r, &job, err);
    kvm_arena_free(&job);
    kvm_arena_free(&r.keep);
    return s;
}
