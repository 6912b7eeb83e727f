/* launch_sbatch.c - a gang as a batch job of Slurm.
 *
 * Slurm is asked what runs in the gang's folder before anything is submitted: what an
 * earlier attempt has left is cancelled first, and the job of this very attempt, whose
 * number got lost, is taken up. It never starts a job again by itself (--no-requeue):
 * attempts are the catalogue's to count. What became of the job, squeue says while it
 * knows it, then the script's exit file; until one of them has spoken, the job is taken
 * for running. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "workers/launch.h"
#include "workers/process.h"

static const double ANSWER_S = 20;  /* a command of Slurm's may take so long */
static const double ASK_S = 1;      /* it is asked so often */
static const double SILENT_S = 120; /* gone from the queue without an exit file */

/* words that squeue has for a job's state; others mean that it runs or will */
static const struct {
    const char *name;
    kvm_launch_state state;
} states[] = {
    {"PENDING", KVM_LAUNCH_WAITING},     {"CONFIGURING", KVM_LAUNCH_WAITING},
    {"REQUEUED", KVM_LAUNCH_WAITING},    {"REQUEUE_HOLD", KVM_LAUNCH_GONE},
    {"COMPLETED", KVM_LAUNCH_ENDED},     {"FAILED", KVM_LAUNCH_ENDED},
    {"OUT_OF_MEMORY", KVM_LAUNCH_ENDED}, {"TIMEOUT", KVM_LAUNCH_GONE},
    {"DEADLINE", KVM_LAUNCH_GONE},       {"CANCELLED", KVM_LAUNCH_GONE},
    {"NODE_FAIL", KVM_LAUNCH_GONE},      {"BOOT_FAIL", KVM_LAUNCH_GONE},
    {"PREEMPTED", KVM_LAUNCH_GONE},      {"REVOKED", KVM_LAUNCH_GONE},
    {"SPECIAL_EXIT", KVM_LAUNCH_GONE},
};

kvm_launch_state kvm_slurm__state(kvm_str word)
{
    for (size_t i = 0; i < sizeof states / sizeof *states; i++)
        if (kvm_str_eq(word, kvm_str_of(states[i].name))) return states[i].state;
    return KVM_LAUNCH_RUNNING;
}

static kvm_status ask(kvm_str *text, int *code, const kvm_words *w, kvm_arena *keep,
                      kvm_err *err)
{
    TRY(kvm_words_check(w, err));
    TRY(kvm_process_read(text, code, w->at, ANSWER_S, keep, err));
    if (*code == 0) return KVM_OK;
    return kvm_fail(err, KVM_ENVIRONMENT, "%s has ended with %d: %.300s", w->at[0],
                    *code, kvm_quote(*text).at);
}

static kvm_status cancel(kvm_launch *l, int64_t job, kvm_err *err)
{
    kvm_words w = {.keep = l->keep};
    kvm_str text;
    int code;
    kvm_words_add(&w, "scancel");
    kvm_words_addf(&w, "%lld", (long long)job);
    return ask(&text, &code, &w, l->keep, err);
}

/* ---- what there is in the folder ---- */

/* Jobs of our user that run in the folder: the one of this attempt, whose number goes
 * into *mine, and `others`. */
static kvm_status find(kvm_launch *l, int64_t *mine, int64_t *others, int most, int *n,
                       kvm_err *err)
{
    kvm_words w = {.keep = l->keep};
    kvm_str text, line, job, name, folder, rest;
    int code;
    kvm_words_add(&w, "squeue");
    kvm_words_add(&w, "--me");
    kvm_words_add(&w, "--noheader");
    kvm_words_add(&w, "--format=%A|%j|%Z");
    TRY(ask(&text, &code, &w, l->keep, err));
    *mine = *n = 0;
    while (kvm_str_cut(text, '\n', &line, &text)) {
        int64_t number;
        if (!kvm_str_cut(line, '|', &job, &rest) ||
            !kvm_str_cut(rest, '|', &name, &folder) ||
            !kvm_str_to_i64(kvm_str_trim(job), &number) ||
            !kvm_str_eq(kvm_str_trim(folder), l->folder))
            continue;
        if (kvm_str_eq(name, l->name))
            *mine = number;
        else if (*n < most)
            others[(*n)++] = number;
    }
    return KVM_OK;
}

kvm_status kvm_slurm__make_way(kvm_launch *l, int64_t *mine, kvm_err *err)
{
    enum { MOST = 16 };
    int64_t others[MOST] = {0};
    int n = 1;
    for (const double until = kvm_now() + SILENT_S; n > 0 && kvm_now() < until;) {
        TRY(find(l, mine, others, MOST, &n, err));
        for (int i = 0; i < n; i++) TRY(cancel(l, others[i], err));
        if (n > 0) kvm_sleep(ASK_S);
    }
    if (n == 0) return KVM_OK;
    return kvm_fail(err, KVM_BUSY,
                    "Slurm's job %lld of an earlier attempt does not end",
                    (long long)others[0]);
}

/* ---- submitting ---- */

static kvm_str exit_path(const kvm_launch *l)
{
    return kvm_path_join(l->keep, l->folder, KVM_STR("exit"));
}

/* a word of a shell's, whatever it holds */
static void quote(kvm_text *t, const char *word)
{
    kvm_text_add(t, KVM_STR("'"));
    for (; *word; word++)
        if (*word == '\'')
            kvm_text_add(t, KVM_STR("'\\''"));
        else
            kvm_text_add(t, (kvm_str){word, 1});
    kvm_text_add(t, KVM_STR("' "));
}

/* the script: mpirun within the job's machines, then how that ended */
static kvm_status script(kvm_launch *l, kvm_str *out, kvm_err *err)
{
    kvm_words w = {.keep = l->keep};
    kvm_text t = {0};
    kvm_words_mpirun(&w, l, false);
    TRY(kvm_words_check(&w, err));
    kvm_text_add(&t, KVM_STR("#!/bin/sh\n"));
    for (int i = 0; i < w.n; i++) quote(&t, w.at[i]);
    kvm_text_add(&t, KVM_STR("\ncode=$?\necho $code > exit.new && mv exit.new exit\n"
                             "exit $code\n"));
    *out = kvm_path_join(l->keep, l->folder, KVM_STR("gang.sh"));
    kvm_status s = t.failed || !out->at ? kvm_nomem(err, l->keep) : KVM_OK;
    if (!s) s = kvm_file_publish(*out, kvm_text_str(&t), *l->keep, err);
    kvm_text_free(&t);
    return s;
}

static kvm_status submit(kvm_launch *l, kvm_err *err)
{
    kvm_words w = {.keep = l->keep};
    kvm_str path, text, number, cluster;
    int code;
    TRY(script(l, &path, err));
    kvm_words_add(&w, "sbatch");
    kvm_words_add(&w, "--parsable");
    kvm_words_addf(&w, "--job-name=%.*s", KVM_STR_ARG(l->name));
    kvm_words_addf(&w, "--ntasks=%d", l->ranks);
    kvm_words_addf(&w, "--chdir=%.*s", KVM_STR_ARG(l->folder));
    kvm_words_addf(&w, "--output=%.*s", KVM_STR_ARG(l->log));
    kvm_words_add(&w, "--open-mode=append");
    kvm_words_add(&w, "--no-requeue");
    kvm_words_extra(&w, l);
    kvm_words_addf(&w, "%.*s", KVM_STR_ARG(path));
    TRY(ask(&text, &code, &w, l->keep, err));
    number = kvm_str_trim(text);
    if (kvm_str_cut(number, ';', &number, &cluster)) number = kvm_str_trim(number);
    if (kvm_str_to_i64(number, &l->slurm) && l->slurm > 0) return KVM_OK;
    return kvm_fail(err, KVM_ENVIRONMENT, "sbatch has given no number of a job: %.200s",
                    kvm_quote(text).at);
}

static kvm_status start(kvm_launch *l, kvm_err *err)
{
    int64_t mine;
    const kvm_str left = exit_path(l);
    if (!left.at) return kvm_nomem(err, l->keep);
    TRY(kvm_slurm__make_way(l, &mine, err));
    l->slurm = mine;
    if (mine > 0) return KVM_OK;
    TRY(kvm_file_remove(left, err));
    return submit(l, err);
}

/* ---- looking ---- */

/* what the script says of its end; false: nothing yet */
static bool read_exit(kvm_launch *l, kvm_arena keep)
{
    kvm_str text;
    int64_t code;
    const kvm_str path = kvm_path_join(&keep, l->folder, KVM_STR("exit"));
    if (!path.at || kvm_file_read(&text, &keep, path, 64, NULL)) return false;
    if (!kvm_str_to_i64(kvm_str_trim(text), &code) || code < 0 || code > 255) code = 1;
    l->code = (int)code;
    return true;
}

/* the state of the jobs that squeue knows by this option; RUNNING: it does not answer,
 * or forgot them */
static kvm_launch_state state_of(const char *option, kvm_arena *keep, kvm_str *word)
{
    kvm_words w = {.keep = keep};
    kvm_err why = {0};
    kvm_str rest;
    int code;
    kvm_words_add(&w, "squeue");
    kvm_words_add(&w, "--noheader");
    kvm_words_add(&w, "--states=all");
    kvm_words_add(&w, "--format=%T");
    kvm_words_add(&w, option);
    *word = KVM_STR("");
    if (ask(word, &code, &w, keep, &why)) return KVM_LAUNCH_RUNNING;
    kvm_str_cut(*word, '\n', word, &rest);
    *word = kvm_str_trim(*word);
    return word->len ? kvm_slurm__state(*word) : KVM_LAUNCH_RUNNING;
}

bool kvm_slurm__fate(kvm_launch *l)
{
    kvm_str word;
    const kvm_str option = kvm_str_fmt(l->keep, "--name=%.*s", KVM_STR_ARG(l->name));
    if (!option.at || state_of(option.at, l->keep, &word) != KVM_LAUNCH_GONE)
        return false;
    snprintf(l->why, sizeof l->why, "Slurm's job %.*s: %.*s", KVM_STR_ARG(l->name),
             KVM_STR_ARG(word));
    return true;
}

static kvm_launch_state look(kvm_launch *l)
{
    const double now = kvm_now();
    kvm_arena scratch = *l->keep;
    char option[48];
    kvm_str word;
    if (read_exit(l, *l->keep)) return KVM_LAUNCH_ENDED;
    if (now - l->asked < ASK_S) return l->state;
    l->asked = now;
    snprintf(option, sizeof option, "--jobs=%lld", (long long)l->slurm);
    l->state = state_of(option, &scratch, &word);
    if (word.len > 0) l->ended = 0;
    if (word.len == 0 && l->ended <= 0) l->ended = now;
    if (l->ended > 0 && now - l->ended > SILENT_S) {
        l->state = KVM_LAUNCH_GONE;
        snprintf(l->why, sizeof l->why,
                 "Slurm knows job %lld no more, and it left no "
                 "exit status",
                 (long long)l->slurm);
    } else if (l->state == KVM_LAUNCH_GONE) {
        snprintf(l->why, sizeof l->why, "Slurm's job %lld: %.*s", (long long)l->slurm,
                 KVM_STR_ARG(word));
    } else if (l->state == KVM_LAUNCH_ENDED) {
        l->code = kvm_str_eq(word, KVM_STR("COMPLETED")) ? 0 : 1;
        snprintf(l->why, sizeof l->why, "Slurm's job %lld: %.*s", (long long)l->slurm,
                 KVM_STR_ARG(word));
    }
    return l->state;
}

static void stop(kvm_launch *l)
{
    kvm_err why = {0};
    if (l->slurm > 0 && cancel(l, l->slurm, &why))
        snprintf(l->why, sizeof l->why, "%.250s", why.msg);
}

const kvm_launcher kvm_launch_sbatch = {
    .name = "sbatch",
    .what = "Slurm, as a batch job",
    .start = start,
    .look = look,
    .stop = stop,
};
