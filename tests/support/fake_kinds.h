/* fake_kinds.h - job kinds for tests of the worker, and workers in processes of their
 * own.
 *
 * Every kind does what its params say: {"n": 7, "do": "ok", "ms": 100}. `ok` writes out
 * = a line made of n and of the input's content. The pid of each child goes into
 * HOME/pids. */
#ifndef KVM_TESTS_SUPPORT_FAKE_KINDS_H
#define KVM_TESTS_SUPPORT_FAKE_KINDS_H

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "jobs/open.h"
#include "tests/support/queue.h"
#include "workers/worker.h"

static char fake_home[256];
static kvm_str fake_catalogue; /* fake_base's; empty: HOME/catalogue.db */

static inline void fake_mark_pid(void)
{
    char path[300], text[32];
    snprintf(path, sizeof path, "%s/pids", fake_home);
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0666);
    const int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    if (fd < 0 || write(fd, text, (size_t)n) != n) _exit(3);
    close(fd);
}

/* Waits in small steps; a cooperative job stops when asked. */
static inline kvm_status fake_wait(kvm_job *j, int64_t ms, bool deaf, kvm_err *err)
{
    const double until = kvm_now() + (double)ms / 1e3;
    double left;
    while ((left = until - kvm_now()) > 0) {
        kvm_progress_at(j->progress, (double)ms - 1e3 * left, (double)ms, "ms");
        if (!deaf && kvm_progress_cancelled(j->progress))
            return kvm_fail(err, KVM_CANCELLED, "stopped on request");
        kvm_sleep(0.005);
    }
    return KVM_OK;
}

static inline kvm_status fake_misbehave(kvm_str how, kvm_err *err)
{
    if (kvm_str_eq(how, KVM_STR("segv"))) raise(SIGSEGV);
    if (kvm_str_eq(how, KVM_STR("oom"))) raise(SIGKILL);
    if (kvm_str_eq(how, KVM_STR("exit"))) _exit(137);
    if (kvm_str_eq(how, KVM_STR("bad"))) return kvm_fail(err, KVM_SHAPE, "rows differ");
    if (kvm_str_eq(how, KVM_STR("disk")))
        return kvm_fail(err, KVM_NOSPACE, "no space, says the job");
    return KVM_OK;
}

/* The job's folder keeps what an earlier attempt left: "tries" counts them. */
static inline ptrdiff_t fake_tries(kvm_job *j, kvm_err *err)
{
    kvm_str path;
    if (kvm_job_path(j, "tries", &path, err)) _exit(3);
    const int fd = open(path.at, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (fd < 0 || write(fd, "x", 1) != 1) _exit(3);
    const off_t n = lseek(fd, 0, SEEK_CUR);
    close(fd);
    return (ptrdiff_t)n;
}

static inline kvm_status fake_run(kvm_job *j, kvm_err *err)
{
    const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    for (int i = 0; i < 5; i++)
        signal(crashes[i], SIG_DFL); /* cmocka's would go on testing */
    const double started = kvm_now();
    int64_t n = 0, ms = 0;
    kvm_str how, before = KVM_STR("");
    TRY(kvm_json_i64(kvm_json_get(j->params, j->keep, "n"), &n, err));
    TRY(kvm_json_i64_or(kvm_json_get(j->params, j->keep, "ms"), 0, &ms, err));
    TRY(kvm_json_str_or(kvm_json_get(j->params, j->keep, "do"), KVM_STR("ok"), &how,
                        err));
    fake_mark_pid();
    const ptrdiff_t tries = fake_tries(j, err);
    TRY(fake_wait(j, ms, kvm_str_eq(how, KVM_STR("deaf")), err));
    TRY(fake_misbehave(how, err));
    if (kvm_str_eq(how, KVM_STR("cost"))) TRY(kvm_job_put_cost(j, started, err));
    const kvm_job_input *in = kvm_job_find_input(j, "before");
    if (in) TRY(kvm_file_read(&before, j->keep, in->path, 1 << 20, err));
    kvm_str path;
    TRY(kvm_job_path(j, "out.bin", &path, err));
    const kvm_str text =
        kvm_str_fmt(j->keep, "%lld<%.*s>", (long long)n, KVM_STR_ARG(before));
    const double seconds[2] = {0.5, 0.25};
    json_t *labels = json_pack("{s:i}", "layer", 3);
    TRY(kvm_file_publish(path, text, *j->keep, err));
    TRY(j->host->output(j, "out", path, err));
    kvm_status s = j->host->metric(j, "n", (double)n, labels, err);
    json_decref(labels);
    TRY(s);
    TRY(j->host->metric(j, "tries", (double)tries, NULL, err));
    if (kvm_str_eq(how, KVM_STR("twice"))) /* which the catalogue refuses */
        TRY(j->host->metric(j, "tries", 0, NULL, err));
    TRY(j->host->event(j, "backend", kvm_str_of(j->backend), err));
    TRY(j->host->sample(j, "suite", "arm", "em", KVM_STR("item 1"), 1, err));
    TRY(j->host->timing(j, "cold", 64, "ttft", seconds, 2, err));
    return j->host->event(j, "done", text, err);
}

static const char *const fake_inputs[] = {"before?", NULL};
static const kvm_job_kind fake_kind_rows[] = {
    {.id = KVM_JOB_CAPTURE, .inputs = fake_inputs, .run = fake_run},
    {.id = KVM_JOB_STATS, .inputs = fake_inputs, .run = fake_run},
    {.id = KVM_JOB_TIMING, .inputs = fake_inputs, .run = fake_run},
};
static inline const kvm_job_kind *fake_kind_of(kvm_kind_id id)
{
    for (size_t i = 0; i < sizeof fake_kind_rows / sizeof *fake_kind_rows; i++)
        if (fake_kind_rows[i].id == id) return &fake_kind_rows[i];
    return NULL;
}

/* sets a param of a node made by kvm_test_graph */
static inline void fake_do(kvm_graph *g, ptrdiff_t node, const char *how, int ms)
{
    json_object_set_new(g->nodes[node].params, "do", json_string(how));
    json_object_set_new(g->nodes[node].params, "ms", json_integer(ms));
}

static inline kvm_worker_options fake_options(double lease_s)
{
    return (kvm_worker_options){.home = kvm_str_of(fake_home),
                                .catalogue = fake_catalogue,
                                .kind_of = fake_kind_of,
                                .machine = KVM_STR("test machine"),
                                .until_idle = true,
                                .lease_s = lease_s,
                                .poll_s = 0.02,
                                .job_bytes = 64 << 20,
                                .signals = true,
                                .policy = {.backoff_s = 0.01, .backoff_most_s = 0.02}};
}

/* A worker in a process of its own, which ends with this one. fault: KVMILL_FAULT or
 * NULL. Exit 0: done, 7: drained, 1: error. */
static inline pid_t fake_worker(kvm_worker_options o, const char *fault)
{
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0) return pid;
    kvm_worker_stats stats;
    kvm_err err = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (fault) setenv("KVMILL_FAULT", fault, 1);
    const kvm_status s = kvm_worker_run(&o, &stats, &err);
    if (s) fprintf(stderr, "# worker: %s\n", err.msg);
    _exit(s ? 1 : stats.drained ? 7 : 0);
}

/* its exit code; 128 + n when signal n ended it; fails the test after `seconds` */
static inline int fake_join(pid_t pid, double seconds)
{
    int status = 0;
    for (const double until = kvm_now() + seconds; kvm_now() < until;
         kvm_sleep(0.005)) {
        const pid_t got = waitpid(pid, &status, WNOHANG);
        if (got == pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        assert_int_equal(got, 0);
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    fail_msg("the process has not ended within %g s", seconds);
    return -1;
}

typedef struct fake_base {
    kvm_arena keep;
    kvm_catalogue *c;
    kvm_store *store;
    char db[400]; /* where the catalogue is */
} fake_base;

/* an empty one beside the store, in place of the one there was */
static inline void fake_new_catalogue(fake_base *b)
{
    const char *const ends[] = {"", "-wal", "-shm"};
    snprintf(b->db, sizeof b->db, "%s", kvm_test_catalogue(fake_home));
    fake_catalogue = kvm_str_of(b->db);
    for (int i = 0; i < 3 && !kvm_test_on_server; i++) {
        char path[420];
        snprintf(path, sizeof path, "%s%s", b->db, ends[i]);
        unlink(path);
    }
    MUST(kvm_catalogue_open(&b->c, &b->keep, fake_catalogue, NULL, e));
}

static inline void fake_open(fake_base *b, const char *name)
{
    snprintf(fake_home, sizeof fake_home, "%s", kvm_test_home(name));
    MUST(kvm_arena_init(&b->keep, 64 << 20, e));
    fake_new_catalogue(b);
    MUST(kvm_store_open(&b->store, &b->keep, kvm_str_of(fake_home), NULL, e));
}

static inline void fake_close(fake_base *b)
{
    kvm_arena_free(&b->keep);
}

static inline kvm_submitted fake_submit(fake_base *b, const kvm_graph *g, bool again)
{
    kvm_submitted s;
    const kvm_submit_options o = {.machine = KVM_STR("test machine"), .again = again};
    MUST(kvm_submit(b->c, b->store, g, &o, &s, b->keep, e));
    return s;
}

/* waits until the query gives this number */
static inline void fake_until(const char *db, const char *sql, int64_t number,
                              double seconds)
{
    const double until = kvm_now() + seconds;
    while (kvm_test_number(db, sql) != number) {
        if (kvm_now() > until)
            fail_msg("%s has not become %lld", sql, (long long)number);
        kvm_sleep(0.01);
    }
}

/* the last process but `skip` of HOME/pids; 0: there is none */
static inline long fake_pid(int skip)
{
    char path[300], line[32];
    long pids[256] = {0};
    int n = 0;
    snprintf(path, sizeof path, "%s/pids", fake_home);
    FILE *f = fopen(path, "r");
    while (f && n < 256 && fgets(line, sizeof line, f))
        pids[n++] = strtol(line, NULL, 10);
    if (f) fclose(f);
    return skip < n ? pids[n - 1 - skip] : 0;
}

static inline bool fake_alive(long pid)
{
    char path[64], text[256];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *f = fopen(path, "r");
    const char *state = f && fgets(text, sizeof text, f) ? strrchr(text, ')') : NULL;
    if (f) fclose(f);
    return state && state[2] != 'Z' && state[2] != 'X';
}

/* no child of any worker is left (zombies that nobody waits for do not count) */
static inline void fake_no_children(void)
{
    const double until = kvm_now() + 5;
    for (int i = 0; fake_pid(i); i++)
        while (fake_alive(fake_pid(i))) {
            if (kvm_now() > until) fail_msg("process %ld is still there", fake_pid(i));
            kvm_sleep(0.01);
        }
}

#endif
