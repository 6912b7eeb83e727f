/* launch.c - the table of launchers, and those whose gang lives as long as a process of
 * ours: ranks forked from it, or mpirun and srun. */
#define _DEFAULT_SOURCE /* prctl's constants */
#include "workers/launch.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "workers/process.h"

static const double LEFT_S = 5; /* one rank has ended well, and others go on so long */

static const kvm_launcher *const launchers[] = {&kvm_launch_fork, &kvm_launch_mpirun,
                                                &kvm_launch_srun, &kvm_launch_sbatch};
enum { LAUNCHERS = sizeof launchers / sizeof *launchers };

const kvm_launcher *kvm_launcher_find(kvm_str name)
{
    for (int i = 0; i < LAUNCHERS; i++)
        if (kvm_str_eq(name, kvm_str_of(launchers[i]->name))) return launchers[i];
    return NULL;
}

const char *kvm_launcher_names(void)
{
    static char names[64];
    int at = 0;
    for (int i = 0; i < LAUNCHERS; i++)
        at += snprintf(names + at, sizeof names - (size_t)at, "%s%s", i ? ", " : "",
                       launchers[i]->name);
    return names;
}

/* ---- words of a command ---- */

void kvm_words_add(kvm_words *w, const char *word)
{
    w->spent |= w->n == KVM_LAUNCH_WORDS - 1 || !word;
    if (!w->spent) w->at[w->n++] = word;
}

void kvm_words_addf(kvm_words *w, const char *fmt, ...)
{
    char word[4200];
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(word, sizeof word, fmt, args);
    va_end(args);
    const bool fits = n >= 0 && n < (int)sizeof word;
    kvm_words_add(w, fits ? kvm_str_copy(w->keep, kvm_str_of(word)).at : NULL);
}

void kvm_words_extra(kvm_words *w, const kvm_launch *l)
{
    for (const char *const *e = l->extra; e && *e; e++) kvm_words_add(w, *e);
}

kvm_status kvm_words_check(const kvm_words *w, kvm_err *err)
{
    return w->spent ? kvm_fail(err, KVM_RANGE, "the launcher's command is too long")
                    : KVM_OK;
}

/* ---- a process of ours ---- */

static kvm_launch_state look(kvm_launch *l)
{
    int left = 0, status;
    for (int i = 0; i < l->pids; i++) {
        if (l->pid[i] == 0) continue;
        const pid_t got = waitpid(l->pid[i], &status, WNOHANG);
        left += got == 0;
        if (got == 0) continue;
        l->pid[i] = 0;
        const int code = got > 0 ? kvm_process_code(status) : 1;
        if (l->code == 0) l->code = code;
        if (l->ended <= 0) l->ended = kvm_now();
    }
    if (left == 0) return KVM_LAUNCH_ENDED;
    if (l->ended > 0 && (l->code != 0 || kvm_now() - l->ended > LEFT_S)) {
        snprintf(l->why, sizeof l->why, "a rank has %s, and the others have not",
                 l->code ? "died" : "left");
        if (l->code == 0) l->code = 1;
        return KVM_LAUNCH_ENDED; /* the others go with the tree */
    }
    return KVM_LAUNCH_RUNNING;
}

static void stop(kvm_launch *l)
{
    for (int i = 0; i < l->pids; i++)
        if (l->pid[i] > 0) kill(l->pid[i], SIGKILL);
}

static kvm_status start(kvm_launch *l, const kvm_words *w, kvm_err *err)
{
    TRY(kvm_words_check(w, err));
    l->pids = 1;
    return kvm_process_start(&l->pid[0], w->at, -1, err);
}

/* ---- fork ---- */

_Noreturn static void be_rank(kvm_launch *l, kvm_crew *crew, int rank, pid_t parent)
{
    kvm_team team;
    kvm_err err = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    kvm_crew_join(crew, rank, &team);
    const kvm_status s =
        kvm_gang_rank(&team, (kvm_seat){rank, l->ranks}, l->folder, l->kind_of, &err);
    if (s)
        kvm_log(KVM_LOG_ERROR, "rank.failed", "rank=%d status=%s error=\"%s\"", rank,
                kvm_status_name(s), err.msg);
    fflush(NULL);
    _exit(s ? 1 : 0);
}

static kvm_status start_fork(kvm_launch *l, kvm_err *err)
{
    kvm_crew *crew;
    const pid_t parent = getpid();
    TRY(kvm_crew_new(&crew, l->keep, l->ranks, err));
    fflush(NULL);
    for (int r = 0; r < l->ranks; r++) {
        const pid_t pid = fork();
        if (pid == 0) be_rank(l, crew, r, parent);
        if (pid < 0) return kvm_fail(err, KVM_NOMEM, "cannot fork rank %d", r);
        l->pid[l->pids++] = pid;
    }
    return KVM_OK;
}

const kvm_launcher kvm_launch_fork = {
    .name = "fork",
    .what = "processes of this machine, without MPI",
    .forks = true,
    .start = start_fork,
    .look = look,
    .stop = stop,
};

/* ---- mpirun ---- */

/* Whether all ranks are of this machine: nobody has named others, or chosen how they
 * speak; mpirun finds the machines of a batch system's job by itself. */
static bool stays_here(const kvm_launch *l)
{
    static const char *const outside[] = {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID",
                                          "PE_HOSTFILE", "OMPI_MCA_pml"};
    bool here = !l->extra || !l->extra[0];
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
        here = here && !getenv(outside[i]);
    return here;
}

void kvm_words_mpirun(kvm_words *w, const kvm_launch *l, bool extra)
{
    kvm_words_add(w, "mpirun");
    kvm_words_add(w, "-n");
    kvm_words_addf(w, "%d", l->ranks);
    if (geteuid() == 0) kvm_words_add(w, "--allow-run-as-root");
    kvm_words_add(w, "--oversubscribe"); /* how many there may be, the worker says */
    kvm_words_add(w, "--bind-to");       /* a rank has threads of its own */
    kvm_words_add(w, "none");
    if (extra &&
        stays_here(l)) { /* to look for fast networks takes longer than all else */
        kvm_words_add(w, "--mca");
        kvm_words_add(w, "pml");
        kvm_words_add(w, "ob1");
    }
    if (extra) kvm_words_extra(w, l);
    kvm_words_addf(w, "%.*s", KVM_STR_ARG(l->program));
    kvm_words_addf(w, "%.*s", KVM_STR_ARG(l->folder));
}

static kvm_status start_mpirun(kvm_launch *l, kvm_err *err)
{
    kvm_words w = {.keep = l->keep};
    kvm_words_mpirun(&w, l, true);
    return start(l, &w, err);
}

const kvm_launcher kvm_launch_mpirun = {
    .name = "mpirun",
    .what = "Open MPI, on this machine or on those that --launch-args name",
    .start = start_mpirun,
    .look = look,
    .stop = stop,
};

/* ---- srun ---- */

static kvm_status start_srun(kvm_launch *l, kvm_err *err)
{
    kvm_words w = {.keep = l->keep};
    int64_t mine;
    TRY(kvm_slurm__make_way(l, &mine, err));
    kvm_words_add(&w, "srun");
    kvm_words_addf(&w, "--ntasks=%d", l->ranks);
    kvm_words_addf(&w, "--job-name=%.*s", KVM_STR_ARG(l->name));
    kvm_words_addf(&w, "--chdir=%.*s", KVM_STR_ARG(l->folder));
    kvm_words_add(&w, "--kill-on-bad-exit=1");
    kvm_words_add(&w, "--quiet");
    kvm_words_add(&w, "--mpi=pmix");
    kvm_words_extra(&w, l);
    kvm_words_addf(&w, "%.*s", KVM_STR_ARG(l->program));
    kvm_words_addf(&w, "%.*s", KVM_STR_ARG(l->folder));
    return start(l, &w, err);
}

/* srun ends well when its node fails: Slurm is asked in any case */
static kvm_launch_state look_srun(kvm_launch *l)
{
    const kvm_launch_state s = look(l);
    return s == KVM_LAUNCH_ENDED && kvm_slurm__fate(l) ? KVM_LAUNCH_GONE : s;
}

/* srun passes a first signal on to the ranks, and ends the step at once at a second
 * one within a second; killed itself, it would leave them to Slurm */
static void stop_srun(kvm_launch *l)
{
    for (int i = 0; i < 3 && l->pid[0] > 0; i++) {
        kill(l->pid[0], SIGINT);
        kvm_sleep(0.2);
    }
}

const kvm_launcher kvm_launch_srun = {
    .name = "srun",
    .what = "Slurm, in a job of its own or in the one that the worker runs in",
    .start = start_srun,
    .look = look_srun,
    .stop = stop_srun,
};
