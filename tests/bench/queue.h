/* queue.h - what the benches of the queue share: a catalogue with one worker and one
 * run, no-op jobs in it, and working them off by the batch. */
#ifndef KVM_TESTS_BENCH_QUEUE_H
#define KVM_TESTS_BENCH_QUEUE_H

#include <libpq-fe.h>
#include <sqlite3.h>
#include <unistd.h>

#include "base/file.h"
#include "schema/job_state.h"
#include "tests/bench/bench.h"

typedef struct base {
    kvm_arena keep;
    kvm_catalogue *c;
    int64_t worker, run;
    char path[300];
} base;

static inline void add_run(base *b)
{
    const kvm_run_new r = {
        .team = KVM_STR("t"), .pair = KVM_STR("p"), .spec = KVM_STR("{}"), .key = "k"};
    OK(kvm_run_insert(b->c, &r, &b->run, &err));
}

/* where: the path of a file that is there or not, or the address of a server */
static inline void open_at(base *b, const char *where, bool full)
{
    char name[40];
    const kvm_catalogue_options o = {.full_sync = full};
    snprintf(b->path, sizeof b->path, "%s", where);
    snprintf(name, sizeof name, "w%.9f", kvm_wall());
    OK(kvm_arena_init(&b->keep, 16 << 20, &err));
    OK(kvm_catalogue_open(&b->c, &b->keep, kvm_str_of(b->path), &o, &err));
    OK(kvm_worker_register(b->c, kvm_str_of(name), KVM_STR("h"), KVM_STR("m"),
                           &b->worker, &err));
    add_run(b);
}

/* a new file of that name */
static inline void open_file(base *b, const char *name, bool full)
{
    char where[100];
    OK(kvm_dir_make(KVM_STR("build/tmp/bench_queue"), &err));
    snprintf(where, sizeof where, "build/tmp/bench_queue/%s.db", name);
    const char *const ends[] = {"", "-wal", "-shm"};
    for (int i = 0; i < 3; i++) {
        char path[120];
        snprintf(path, sizeof path, "%s%s", where, ends[i]);
        unlink(path);
    }
    open_at(b, where, full);
}

static inline int64_t add(base *b, long n, const kvm_job_dep *deps, ptrdiff_t dep_count)
{
    char params[64];
    int64_t id;
    snprintf(params, sizeof params, "{\"n\":%ld}", n);
    const kvm_job_new j = {.run = b->run,
                           .kind = 1,
                           .kind_name = "capture",
                           .version = 1,
                           .class = "small",
                           .label = KVM_STR("job"),
                           .params = kvm_str_of(params),
                           .identity = KVM_STR("{}"),
                           .deps = deps,
                           .dep_count = dep_count};
    OK(kvm_job_insert(b->c, &j, &id, &err));
    return id;
}

/* through a connection of its own */
static inline void run_sql(const char *where, const char *sql)
{
    sqlite3 *db;
    if (kvm_str_starts(kvm_str_of(where), KVM_STR("postgres"))) {
        PGconn *conn = PQconnectdb(where);
        PGresult *r = PQexec(conn, sql);
        if (PQresultStatus(r) != PGRES_COMMAND_OK) die(sql, PQerrorMessage(conn));
        PQclear(r);
        PQfinish(conn);
        return;
    }
    if (sqlite3_open(where, &db) || sqlite3_exec(db, sql, NULL, NULL, NULL))
        die(sql, sqlite3_errmsg(db));
    sqlite3_close(db);
}

/* as many jobs again as fulfil the condition, each with a key of its own */
static inline void copy_jobs(const base *b, const char *run, const char *which)
{
    char sql[1200];
    snprintf(sql, sizeof sql,
             "INSERT INTO job(run_id, kind, kind_name, version, timed, label, params, "
             "identity, key, state, priority, waits, token, attempt, crashes, retries, "
             "run_after, timeout_s, status, message, created_at, finished_at, team_id, "
             "class) SELECT %s, kind, kind_name, version, timed, label, params, "
             "identity, CAST(id + (SELECT MAX(id) FROM job) AS TEXT) || "
             "substr(key, 1, 50), state, priority, waits, token, attempt, crashes, "
             "retries, run_after, timeout_s, status, message, created_at, finished_at, "
             "team_id, class FROM job WHERE %s",
             run, which);
    run_sql(b->path, sql);
}

static long serial;
static inline void add_many(base *b, long n)
{
    char run[24], which[80];
    const int64_t first = add(b, serial++, NULL, 0);
    snprintf(run, sizeof run, "%lld", (long long)b->run);
    for (long have = 1; have < n; have *= 2) {
        const long more = n - have < have ? n - have : have;
        snprintf(which, sizeof which, "id >= %lld ORDER BY id LIMIT %ld",
                 (long long)first, more);
        copy_jobs(b, run, which);
    }
}

/* Claims up to `most` jobs and completes them, each with one artefact; how many there
 * were. took (may be NULL): seconds of the claim. */
static inline long one_batch(base *b, int most, double *took)
{
    static const kvm_result_artefact a = {
        {"out", 3},
        {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 64},
        3};
    const kvm_result r = {.artefacts = &a, .artefact_count = 1};
    const kvm_want want = {.most = most};
    kvm_arena scratch = b->keep;
    kvm_claim *claims;
    kvm_end ends[KVM_BATCH_MOST];
    bool lost[KVM_BATCH_MOST];
    ptrdiff_t count;
    const double start = kvm_now();
    OK(kvm_jobs_take(b->c, &want, &claims, &count, &scratch, b->worker, 60, &err));
    if (took) *took = kvm_now() - start;
    for (ptrdiff_t i = 0; i < count; i++)
        ends[i] = (kvm_end){.fence = claims[i].fence, .result = &r, .seconds = 1e-3};
    OK(kvm_jobs_end(b->c, ends, count, lost, NULL, &err));
    for (ptrdiff_t i = 0; i < count; i++)
        if (lost[i]) die("drain", "a job was lost");
    return count;
}

/* up to n jobs; how many there were */
static inline long drain(base *b, long n, int batch)
{
    long done = 0;
    while (done < n) {
        const long more =
            one_batch(b, n - done < batch ? (int)(n - done) : batch, NULL);
        if (more == 0) break;
        done += more;
    }
    return done;
}

#endif
