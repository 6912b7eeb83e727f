/* gang_watch.c - the worker's child while a gang has its job: it starts the ranks, says
 * what it hears of them, passes on that they are to stop, and sees to it that none is
 * left. */
#define _DEFAULT_SOURCE /* realpath, readlink */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "schema/fault.h"
#include "workers/launch.h"
#include "workers/process.h"
#include "workers/worker_internal.h"

static const double LOOK_S = 0.02; /* at the launcher */
static const double HEAR_S = 0.5;  /* how far the ranks are */
static const double ALIVE_S = 1;   /* that we are there */
static const double STOP_S = 3;    /* ranks that are asked to stop may take so long */
static const double TREE_S = 8;    /* until none is left */

typedef struct watched {
    kvm_worker *w;
    const kvm_work *k;
    kvm_str records; /* where rank 0 records */
    kvm_launch launch;
    double begun, heard, said;
    double asked; /* the ranks were told to stop; 0: not yet */
    bool started;
} watched;

static kvm_status absolute(kvm_str *out, kvm_str path, kvm_arena *keep, kvm_err *err)
{
    char full[PATH_MAX];
    const kvm_str given = kvm_str_copy(keep, path);
    if (!given.at) return kvm_nomem(err, keep);
    if (!realpath(given.at, full)) return kvm_fail_errno(err, "%s", given.at);
    *out = kvm_str_copy(keep, kvm_str_of(full));
    return out->at ? KVM_OK : kvm_nomem(err, keep);
}

/* kvmill-rank stands beside kvmill */
static kvm_status find_program(const kvm_worker *w, kvm_str *out, kvm_arena *keep,
                               kvm_err *err)
{
    char self[PATH_MAX];
    if (w->o.rank_program.len > 0) return absolute(out, w->o.rank_program, keep, err);
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self);
    ptrdiff_t end = n > 0 && n < (ssize_t)sizeof self ? (ptrdiff_t)n : 0;
    while (end > 0 && self[end - 1] != '/') end--;
    *out = kvm_path_join(keep, (kvm_str){self, end}, KVM_STR("kvmill-rank"));
    if (!out->at) return kvm_nomem(err, keep);
    if (access(out->at, X_OK) == 0) return KVM_OK;
    return kvm_fail(
        err, KVM_ENVIRONMENT,
        "%s is not there: `make` builds it beside kvmill, and `make install` "
        "installs it",
        out->at);
}

static kvm_status describe(watched *g, kvm_task *t, kvm_arena *keep, kvm_err *err)
{
    const kvm_worker *w = g->w;
    const kvm_claim *c = &g->k->claim;
    kvm_launch *l = &g->launch;
    kvm_str home;
    *l = (kvm_launch){.ranks = c->ranks,
                      .extra = w->o.launch_args,
                      .kind_of = w->o.kind_of,
                      .keep = keep};
    *t = (kvm_task){
        .claim = *c,
        .ranks = c->ranks,
        .folder = g->k->folder,
        .home = w->o.home,
        .allow = w->o.allow,
        .store = {.where = w->o.store.where, .cache_bytes = w->o.store.cache_bytes},
        .threads = w->o.threads,
        .offload = w->o.offload,
        .memory = (size_t)w->o.want.memory_mib << 20,
        .job_bytes = w->o.job_bytes,
        .before = g->k->before};
    TRY(kvm_child__backend(&t->backend, w, c, keep, err));
    TRY(absolute(&t->cwd, KVM_STR("."), keep, err));
    TRY(absolute(&t->place, g->k->folder, keep, err));
    TRY(absolute(&home, w->o.home, keep, err));
    l->folder = t->place;
    l->log = kvm_path_join(keep, home, g->k->claim.log);
    l->name = kvm_str_fmt(keep, "%lld.%lld", (long long)c->fence.job,
                          (long long)c->fence.token);
    if (!l->log.at || !l->name.at) return kvm_nomem(err, keep);
    return w->o.launcher->forks ? KVM_OK : find_program(w, &l->program, keep, err);
}

/* ---- while it runs ---- */

static void hear(watched *g, double now)
{
    kvm_gang_progress p;
    if (!g->started) g->started = kvm_gang_started(g->launch.folder);
    if (now - g->heard < HEAR_S) return;
    g->heard = now;
    if (kvm_gang_progress_read(g->launch.folder, &p))
        kvm_child__show(g->w->shared, p.done, p.total, p.unit);
}

static void say(watched *g, double now)
{
    if (now - g->said >= ALIVE_S) {
        g->said = now;
        kvm_gang_alive(g->launch.folder);
    }
    if (g->asked <= 0 && kvm_child__cancelled(g->w->shared)) {
        g->asked = now;
        kvm_gang_cancel(g->launch.folder);
    }
}

/* Half-placed gangs give their places back: others may wait for just these. */
static kvm_status in_time(const watched *g, double now, kvm_err *err)
{
    if (g->asked > 0 && now - g->asked > STOP_S)
        return kvm_fail(err, KVM_CANCELLED, "cancelled; its ranks did not stop in %g s",
                        STOP_S);
    if (g->started || now - g->begun < g->w->o.start_s) return KVM_OK;
    return kvm_fail(
        err, KVM_BUSY,
        "%d ranks have not come together within %g s (%s); it is tried again "
        "later",
        g->launch.ranks, g->w->o.start_s, g->w->o.launcher->name);
}

static kvm_status wait_for_end(watched *g, kvm_launch_state *state, kvm_err *err)
{
    const kvm_launcher *how = g->w->o.launcher;
    for (;;) {
        *state = how->look(&g->launch);
        if (*state == KVM_LAUNCH_ENDED || *state == KVM_LAUNCH_GONE) return KVM_OK;
        const double now = kvm_now();
        say(g, now);
        hear(g, now);
        TRY(in_time(g, now, err));
        kvm_sleep(LOOK_S);
    }
}

/* ---- what has come of it ---- */

static bool has_verdict(const watched *g, kvm_arena keep)
{
    kvm_records r = {0};
    return !kvm_records_read(&r, &keep, g->records, NULL) && r.ended;
}

static kvm_status run(watched *g, kvm_arena *keep, int *code, kvm_err *err)
{
    const kvm_launcher *how = g->w->o.launcher;
    kvm_launch_state state = KVM_LAUNCH_RUNNING;
    kvm_task task;
    TRY(describe(g, &task, keep, err));
    TRY(kvm_task_write(&task, *keep, err));
    kvm_process_adopt();
    g->begun = kvm_now();
    kvm_log(KVM_LOG_INFO, "gang.begin", "ranks=%d launcher=%s", g->launch.ranks,
            how->name);
    kvm_status s = how->start(&g->launch, err);
    kvm_fault(KVM_FAULT_GANG_STARTED);
    if (!s) s = wait_for_end(g, &state, err);
    if (s) how->stop(&g->launch);
    if (!kvm_process_end_tree(TREE_S))
        kvm_log(KVM_LOG_ERROR, "gang.left", "job=%lld reason=\"ranks that do not end\"",
                (long long)g->k->claim.fence.job);
    if (has_verdict(g, *keep)) return KVM_OK;
    if (s) return s;
    kvm_log(KVM_LOG_ERROR, "gang.ended", "launcher=%s code=%d why=\"%s\"", how->name,
            g->launch.code, g->launch.why);
    if (state == KVM_LAUNCH_GONE)
        return kvm_fail(err, KVM_BUSY, "the gang was taken away: %s", g->launch.why);
    *code = g->launch.code > 0 ? g->launch.code : 1;
    return KVM_OK;
}

kvm_status kvm_gang__watch(kvm_worker *w, const kvm_work *k, kvm_str records, int *code,
                           kvm_err *err)
{
    kvm_arena keep = {0};
    watched *g = NULL;
    if (k->claim.ranks > w->o.want.ranks)
        return kvm_fail(
            err, KVM_ENVIRONMENT,
            "%.*s needs %d ranks, and this worker starts %d: give it --ranks",
            KVM_STR_ARG(k->claim.label), k->claim.ranks, w->o.want.ranks);
    TRY(kvm_arena_init(&keep, (size_t)4 << 30, err));
    g = kvm_new(&keep, watched, 1);
    kvm_status s = g ? KVM_OK : kvm_nomem(err, &keep);
    if (g) {
        g->w = w;
        g->k = k;
        g->records = records;
        s = run(g, &keep, code, err);
    }
    kvm_arena_free(&keep);
    return s;
}
