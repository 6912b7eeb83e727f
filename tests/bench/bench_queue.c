/* bench_queue - how many jobs a second the catalogue hands out and takes back.
 *
 *   bench_queue [jobs of the long drain, 100000] [postgres://…: an empty database]
 *
 * With the address of a server: several processes at it, on one run and on one each.
 *
 * A job is claimed (update + attempt row) and completed (one artefact, state, run
 * looked at) as a worker does it, without running anything. The floor is SQLite doing
 * the least that the protocol needs, two transactions of an UPDATE and an INSERT on a
 * bare table, in the same rounds. */
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "schema/job_state.h"
#include "tests/bench/bench.h"

enum { ROUNDS = 7 };

typedef struct base {
    kvm_arena keep;
    kvm_catalogue *c;
    int64_t worker, run;
    char path[300];
} base;

static void add_run(base *b)
{
    const kvm_run_new r = {
        .team = KVM_STR("t"), .pair = KVM_STR("p"), .spec = KVM_STR("{}"), .key = "k"};
    OK(kvm_run_insert(b->c, &r, &b->run, &err));
}

static void open_at(base *b, const char *where, bool full)
{
    char name[40];
    const kvm_catalogue_options o = {.full_sync = full};
    snprintf(b->path, sizeof b->path, "%s", where);
    snprintf(name, sizeof name, "w%.9f", kvm_wall());
    OK(kvm_arena_init(&b->keep, 1 << 20, &err));
    OK(kvm_catalogue_open(&b->c, &b->keep, kvm_str_of(b->path), &o, &err));
    OK(kvm_worker_register(b->c, kvm_str_of(name), KVM_STR("h"), KVM_STR("m"),
                           &b->worker, &err));
    add_run(b);
}

static void open_base(base *b, const char *name, bool full)
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

static int64_t add(base *b, long n, const kvm_job_dep *deps, ptrdiff_t dep_count)
{
    char params[64];
    int64_t id;
    snprintf(params, sizeof params, "{\"n\":%ld}", n);
    const kvm_job_new j = {.run = b->run,
                           .kind = 1,
                           .kind_name = "capture",
                           .version = 1,
                           .label = KVM_STR("job"),
                           .params = kvm_str_of(params),
                           .identity = KVM_STR("{}"),
                           .deps = deps,
                           .dep_count = dep_count};
    OK(kvm_job_insert(b->c, &j, &id, &err));
    return id;
}

static long serial;
static void add_many(base *b, long n)
{
    OK(kvm_catalogue_begin(b->c, &err));
    for (long i = 0; i < n; i++) add(b, serial++, NULL, 0);
    OK(kvm_catalogue_commit(b->c, &err));
}

/* Claims and completes up to n jobs, `batch` to a transaction; how many there were. */
static long drain(base *b, long n, int batch)
{
    const kvm_result_artefact a = {
        KVM_STR("out"),
        KVM_STR("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"), 3};
    const kvm_result r = {.artefacts = &a, .artefact_count = 1};
    long done = 0;
    for (bool found = true; found && done < n;) {
        if (batch > 1) OK(kvm_catalogue_begin(b->c, &err));
        for (int i = 0; i < batch && found && done < n; i++) {
            kvm_arena scratch = b->keep;
            kvm_claim k;
            OK(kvm_job_claim(b->c, &k, &found, &scratch, b->worker, 0, 60, &err));
            if (!found) break;
            OK(kvm_job_succeed(b->c, k.fence, &r, &err));
            done++;
        }
        if (batch > 1) OK(kvm_catalogue_commit(b->c, &err));
    }
    return done;
}

/* ---- the floor ---- */

static sqlite3 *bare_open(bool full)
{
    sqlite3 *db;
    unlink("build/tmp/bench_queue/bare.db");
    if (sqlite3_open("build/tmp/bench_queue/bare.db", &db) ||
        sqlite3_exec(db, "PRAGMA journal_mode=WAL", NULL, NULL, NULL) ||
        sqlite3_exec(db, full ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=NORMAL",
                     NULL, NULL, NULL) ||
        sqlite3_exec(db,
                     "CREATE TABLE j(id INTEGER PRIMARY KEY, state TEXT, token INT);"
                     "CREATE TABLE a(id INTEGER PRIMARY KEY, job INT, what TEXT);"
                     "CREATE INDEX r ON j(id) WHERE state = 'ready'",
                     NULL, NULL, NULL))
        die("bare database", sqlite3_errmsg(db));
    return db;
}

static void bare_step(sqlite3_stmt *st)
{
    int rc;
    while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
    }
    if (rc != SQLITE_DONE) die("bare step", sqlite3_errstr(rc));
    sqlite3_reset(st);
}

static double bare_rate(sqlite3 *db, long n)
{
    static const char claim[] = "UPDATE j SET state='running', token=token+1 WHERE "
                                "id=(SELECT id FROM j INDEXED "
                                "BY r WHERE state='ready' ORDER BY id LIMIT 1)";
    static const char *const sql[] = {
        "BEGIN IMMEDIATE",
        "COMMIT",
        "INSERT INTO j(state, token) VALUES ('ready', 0)",
        claim,
        "INSERT INTO a(job, what) VALUES (1, 'x')",
        "UPDATE j SET state='done' WHERE id=(SELECT MAX(id) FROM a)"};
    sqlite3_stmt *st[6];
    for (int i = 0; i < 6; i++)
        if (sqlite3_prepare_v2(db, sql[i], -1, &st[i], NULL))
            die(sql[i], sqlite3_errmsg(db));
    bare_step(st[0]);
    for (long i = 0; i < n; i++) bare_step(st[2]);
    bare_step(st[1]);
    const double start = kvm_now();
    for (long i = 0; i < n; i++) {
        const int order[] = {0, 3, 4, 1, 0, 5, 4, 1};
        for (int k = 0; k < 8; k++) bare_step(st[order[k]]);
    }
    const double rate = (double)n / (kvm_now() - start);
    for (int i = 0; i < 6; i++) sqlite3_finalize(st[i]);
    return rate;
}

/* Ours and the floor in turn. */
static void rate(const char *name, bool full, int batch, long n)
{
    base b;
    double ours[ROUNDS], bare[ROUNDS], ratio[ROUNDS], cpu[ROUNDS];
    open_base(&b, name, full);
    sqlite3 *db = bare_open(full);
    for (int i = 0; i < ROUNDS; i++) {
        bare[i] = bare_rate(db, n);
        add_many(&b, n);
        const double start = kvm_now();
        const clock_t cpu_start = clock();
        if (drain(&b, n, batch) != n) die(name, "jobs are missing");
        ours[i] = (double)n / (kvm_now() - start);
        cpu[i] = 1e6 * (double)(clock() - cpu_start) / CLOCKS_PER_SEC / (double)n;
        ratio[i] = ours[i] / bare[i];
    }
    const double least = (qsort(ours, ROUNDS, sizeof *ours, by_size), ours[0]);
    printf("%-24s %8.0f jobs/s (least %.0f, most %.0f)   floor %8.0f   ratio %.2f   "
           "%.0f us of CPU a job\n",
           name, median(ours, ROUNDS), least, ours[ROUNDS - 1], median(bare, ROUNDS),
           median(ratio, ROUNDS), median(cpu, ROUNDS));
    sqlite3_close(db);
    kvm_arena_free(&b.keep);
}

/* Each process claims from any run; a run's jobs lock it when they end. */
static void several(const char *where, int workers, int runs, long n)
{
    base b;
    if (where)
        open_at(&b, where, false);
    else
        open_base(&b, "several", false);
    for (int i = 0; i < runs; i++) {
        if (i) add_run(&b);
        add_many(&b, n / runs);
    }
    const double start = kvm_now();
    fflush(stdout);
    for (int i = 0; i < workers; i++)
        if (fork() == 0) {
            base own = {.worker = b.worker};
            OK(kvm_arena_init(&own.keep, 1 << 20, &err));
            OK(kvm_catalogue_open(&own.c, &own.keep, kvm_str_of(b.path), NULL, &err));
            drain(&own, n, 1);
            _exit(0);
        }
    int status, bad = 0;
    while (wait(&status) > 0) bad |= status;
    const double seconds = kvm_now() - start;
    kvm_run_state s;
    OK(kvm_run_state_of(b.c, b.run, &s, &err));
    if (bad || s != KVM_RUN_SUCCEEDED) die("several", "a worker failed");
    printf("%d processes, %d run%-8s %8.0f jobs/s\n", workers, runs,
           runs > 1 ? "s" : "", (double)n / seconds);
    kvm_arena_free(&b.keep);
}

/* Quadratic growth shows as a last tenth that is slower than the first. */
static void long_drain(long n)
{
    base b;
    double tenth[10];
    open_base(&b, "long", false);
    const double begun = kvm_now();
    add_many(&b, n);
    printf("insert %ld jobs: %.1f s\n", n, kvm_now() - begun);
    for (int i = 0; i < 10; i++) {
        const double start = kvm_now();
        if (drain(&b, n / 10, 1) != n / 10) die("long drain", "jobs are missing");
        tenth[i] = kvm_now() - start;
    }
    printf("drain %ld jobs, tenths of:", n);
    for (int i = 0; i < 10; i++) printf(" %.2f", tenth[i]);
    printf(" s; last / first %.2f\n", tenth[9] / tenth[0]);
    kvm_arena_free(&b.keep);
}

/* waves x width jobs, each needing all of the wave before it */
static void waves(int count, int width)
{
    base b;
    open_base(&b, "waves", false);
    kvm_job_dep *deps = calloc((size_t)width, sizeof *deps);
    int64_t *ids = calloc((size_t)width, 2 * sizeof *ids);
    char(*names)[16] = calloc((size_t)width, sizeof *names);
    if (!deps || !ids || !names) die("waves", "no memory");
    OK(kvm_catalogue_begin(b.c, &err));
    for (int w = 0; w < count; w++)
        for (int i = 0; i < width; i++) {
            for (int k = 0; k < width && i == 0; k++) {
                snprintf(names[k], sizeof names[k], "in.%d", k);
                deps[k] = (kvm_job_dep){kvm_str_of(names[k]),
                                        ids[(w + 1) % 2 * width + k], KVM_STR("out")};
            }
            ids[w % 2 * width + i] = add(&b, serial++, deps, w ? width : 0);
        }
    OK(kvm_catalogue_commit(b.c, &err));
    const double start = kvm_now();
    const long n = (long)count * width;
    if (drain(&b, n, 1) != n) die("waves", "the table does not drain");
    printf("%d waves of %d (%d needs each): %.0f jobs/s\n", count, width, width,
           (double)n / (kvm_now() - start));
    free(deps), free(ids), free(names);
    kvm_arena_free(&b.keep);
}

int main(int argc, char **argv)
{
    const long jobs = number_of(argc, argv, 1, 100000);
    const char *const server = argc > 2 ? argv[2] : NULL;
    for (int workers = 1; server && workers <= 8; workers *= 2) {
        several(server, workers, 1, 2000);
        several(server, workers, workers, 2000);
    }
    if (server) return 0;
    rate("normal", false, 1, 4000);
    rate("normal, 100 a batch", false, 100, 4000);
    rate("full", true, 1, 200);
    several(NULL, 4, 1, 8000);
    waves(50, 50);
    long_drain(jobs);
    return 0;
}
