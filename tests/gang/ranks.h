/* ranks.h - a job kind whose ranks behave as its params say, for tests of gangs that
 * really start: {"n": 7, "do": "ok", "rank": 1, "ms": 100}.
 *
 * Every rank writes its pid into HOME/rankN and HOME/pids and joins in a sum; "out" is
 * n times that sum. What `do` says, rank `rank` does before it: segv, exit (status 0),
 * exit7, abort, mpi_abort, spin, deaf (spins and hears nobody), bad (fails). A test
 * program of these is a rank's program too: its main() calls kvm_gang_main.
 */
#ifndef KVM_TESTS_GANG_RANKS_H
#define KVM_TESTS_GANG_RANKS_H

#include <mpi.h>

#include "tests/support/sound.h"
#include "workers/gang_mpi.h"
#include "workers/launch.h"

static inline void ranks_mark(const kvm_job *j, const char *file, int how)
{
    char path[400], text[32];
    snprintf(path, sizeof path, "%.*s/../../../%s", KVM_STR_ARG(j->dir), file);
    const int fd = open(path, O_WRONLY | O_CREAT | how, 0666);
    const int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    if (fd < 0 || write(fd, text, (size_t)n) != n) _exit(3);
    close(fd);
}

/* what a library that meets an error does; a rank that is forked has no MPI */
static inline void ranks_mpi_abort(void)
{
    int there = 0;
    if (!MPI_Initialized(&there) && there) MPI_Abort(MPI_COMM_WORLD, 3);
    abort();
}

static inline kvm_status ranks_misbehave(kvm_job *j, kvm_str how, kvm_err *err)
{
    if (kvm_str_eq(how, KVM_STR("segv"))) raise(SIGSEGV);
    if (kvm_str_eq(how, KVM_STR("abort"))) abort();
    if (kvm_str_eq(how, KVM_STR("mpi_abort"))) ranks_mpi_abort();
    if (kvm_str_eq(how, KVM_STR("exit"))) _exit(0);
    if (kvm_str_eq(how, KVM_STR("exit7"))) _exit(7);
    if (kvm_str_eq(how, KVM_STR("bad"))) return kvm_fail(err, KVM_SHAPE, "rows differ");
    while (kvm_str_eq(how, KVM_STR("deaf"))) kvm_sleep(0.01);
    while (kvm_str_eq(how, KVM_STR("spin")))
        if (kvm_progress_cancelled(j->progress))
            return kvm_fail(err, KVM_CANCELLED, "stopped on request");
    return KVM_OK;
}

static inline kvm_status ranks_run(kvm_job *j, kvm_err *err)
{
    int64_t n, rank, ms;
    kvm_str how;
    signal(SIGSEGV, SIG_DFL);
    signal(SIGABRT, SIG_DFL);
    TRY(kvm_json_i64(kvm_json_get(j->params, j->keep, "n"), &n, err));
    TRY(kvm_json_i64_or(kvm_json_get(j->params, j->keep, "rank"), 0, &rank, err));
    TRY(kvm_json_i64_or(kvm_json_get(j->params, j->keep, "ms"), 0, &ms, err));
    TRY(kvm_json_str_or(kvm_json_get(j->params, j->keep, "do"), KVM_STR("ok"), &how,
                        err));
    ranks_mark(j, j->team->rank == 0 ? "rank0" : "rank1", O_TRUNC);
    ranks_mark(j, "pids", O_APPEND);
    kvm_progress_at(j->progress, 1, 4, "parts");
    TRY(fake_wait(j, ms, false, err));
    if (j->team->rank == rank) TRY(ranks_misbehave(j, how, err));
    double sum = (double)n * (j->team->rank + 1);
    TRY(kvm_team_sum(j->team, &sum, 1, err));
    const kvm_str path = kvm_path_join(j->keep, j->dir, KVM_STR("out.bin"));
    const kvm_str text = kvm_str_fmt(j->keep, "%g of %d", sum, j->team->size);
    if (kvm_team_leads(j->team)) TRY(kvm_file_publish(path, text, *j->keep, err));
    TRY(j->host->metric(j, "sum", sum, NULL, err));
    return j->host->output(j, "out", path, err);
}

static const kvm_job_kind ranks_kind = {
    .id = KVM_JOB_CAPTURE, .inputs = fake_inputs, .run = ranks_run};
static inline const kvm_job_kind *ranks_kind_of(kvm_kind_id id)
{
    return id == KVM_JOB_CAPTURE ? &ranks_kind : NULL;
}

/* a worker of gangs of up to two ranks; the ranks are copies of this program */
static inline kvm_worker_options ranks_options(const kvm_launcher *launcher)
{
    static char self[4096];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(n > 0);
    self[n] = '\0';
    kvm_worker_options o = fake_options(5);
    o.kind_of = ranks_kind_of;
    o.want.ranks = 2;
    o.launcher = launcher;
    o.rank_program = kvm_str_of(self);
    o.job_bytes = (size_t)256 << 20;
    o.start_s = 60;
    return o;
}

/* ---- a base, and one job on it ---- */

static fake_base b;
static const kvm_launcher *launcher;

static inline int ranks_set_up(void **state)
{
    (void)state;
    fake_open(&b, launcher->name);
    return 0;
}
static inline int ranks_tear_down(void **state)
{
    (void)state;
    fake_close(&b);
    return 0;
}

/* a job for two ranks, of which `rank` does as `how` says */
static inline kvm_submitted ranks_submit(const char *how, int rank, int ms)
{
    kvm_graph g = kvm_test_graph(&b.keep, 1, false, KVM_JOB_CAPTURE, 5);
    fake_do(&g, 0, how, ms);
    json_object_set_new(g.nodes[0].params, "rank", json_integer(rank));
    const kvm_submitted s = fake_submit(&b, &g, false);
    kvm_test_sql(b.db, "UPDATE job SET ranks = 2");
    return s;
}

/* the process of that rank */
static inline pid_t ranks_pid(int rank)
{
    char path[300];
    kvm_str text;
    int64_t pid = 0;
    snprintf(path, sizeof path, "%s/rank%d", fake_home, rank);
    MUST(kvm_file_read(&text, &b.keep, kvm_str_of(path), 100, e));
    assert_true(kvm_str_to_i64(kvm_str_trim(text), &pid) && pid > 0);
    return (pid_t)pid;
}

/* the result of the only job */
static inline const char *ranks_result(kvm_submitted s)
{
    char sha[65];
    int64_t bytes;
    kvm_str path, text;
    MUST(kvm_catalogue_output(b.c, KVM_STR("small-large"), s.run, "capture", "out", sha,
                              &bytes, e));
    MUST(kvm_store_get(b.store, &path, &b.keep, sha, bytes, e));
    MUST(kvm_file_read(&text, &b.keep, path, 1000, e));
    return text.at;
}

#endif
