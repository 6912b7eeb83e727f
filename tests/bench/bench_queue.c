/* bench_queue - how many jobs a second the catalogue hands out and takes back.
 *
 *   bench_queue [jobs of the long drain, 100000] [postgres://…: an empty database]
 *
 * With the address of a server: several processes at it, by one and by 64 jobs.
 *
 * Jobs are claimed (update + attempt row) and completed (one artefact, state, run
 * looked at, team charged) as a worker does it, without running anything. The floor is
 * SQLite doing the least that the protocol needs, two transactions of an UPDATE and an
 * INSERT on a bare table, in the same rounds. */
#include <sys/wait.h>

#include "tests/bench/queue.h"

enum { ROUNDS = 7 };

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
    open_file(&b, name, full);
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

/* ---- several processes ---- */

/* One of them: it waits for the others, and may look once in vain while they commit. */
static void take_part(const char *path, int64_t worker, int go, int batch)
{
    base own = {.worker = worker};
    char byte;
    OK(kvm_arena_init(&own.keep, 16 << 20, &err));
    OK(kvm_catalogue_open(&own.c, &own.keep, kvm_str_of(path), NULL, &err));
    one_batch(&own, 1, NULL); /* statements are prepared */
    if (read(go, &byte, 1) != 0) _exit(1);
    while (drain(&own, 1 << 30, batch) > 0) {
    }
    _exit(0);
}

/* jobs a second */
static double several(const char *where, int workers, int runs, long n, int batch)
{
    base b;
    int go[2], status, bad = 0;
    if (where)
        open_at(&b, where, false);
    else
        open_file(&b, "several", false);
    for (int i = 0; i < runs; i++) {
        if (i) add_run(&b);
        add_many(&b, n / runs);
    }
    fflush(stdout);
    if (pipe(go)) die("several", "no pipe");
    for (int i = 0; i < workers; i++)
        if (fork() == 0) {
            close(go[1]);
            take_part(b.path, b.worker, go[0], batch);
        }
    close(go[0]);
    kvm_sleep(0.3);
    const double start = kvm_now();
    close(go[1]);
    while (wait(&status) > 0) bad |= status;
    const double seconds = kvm_now() - start;
    kvm_run_state s;
    OK(kvm_run_state_of(b.c, b.run, &s, &err));
    if (bad || s != KVM_RUN_SUCCEEDED) die("several", "a worker failed");
    kvm_arena_free(&b.keep);
    return (double)(n - workers) / seconds;
}

static void several_times(const char *where, int workers, int runs, long n, int batch)
{
    enum { FEW = 5 };
    double x[FEW];
    for (int i = 0; i < FEW; i++) x[i] = several(where, workers, runs, n, batch);
    const double mid = median(x, FEW);
    printf("%d process%-3s %d run%-2s by %2d %8.0f jobs/s (least %.0f, most %.0f)\n",
           workers, workers > 1 ? "es," : ",", runs, runs > 1 ? "s" : "", batch, mid,
           x[0], x[FEW - 1]);
}

/* Quadratic growth shows as a last tenth that is slower than the first. */
static void long_drain(long n)
{
    base b;
    double tenth[10];
    open_file(&b, "long", false);
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
    open_file(&b, "waves", false);
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
    for (int workers = 1; server && workers <= 4; workers *= 2) {
        several_times(server, workers, 1, 200, 1);
        several_times(server, workers, 1, 6400, KVM_BATCH_MOST);
        if (workers > 1) several_times(server, workers, workers, 6400, KVM_BATCH_MOST);
    }
    if (server) return 0;
    rate("normal", false, 1, 4000);
    rate("normal, by 64", false, KVM_BATCH_MOST, 8000);
    rate("full", true, 1, 200);
    rate("full, by 64", true, KVM_BATCH_MOST, 640);
    several_times(NULL, 2, 1, 6400, KVM_BATCH_MOST);
    several_times(NULL, 4, 1, 2000, 1);
    waves(50, 50);
    long_drain(jobs);
    return 0;
}
