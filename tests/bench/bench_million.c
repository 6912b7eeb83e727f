/* bench_million - how long a claim, an end and the views take with a million jobs in
 * the catalogue.
 *
 *   bench_million [rows, 1000000] [postgres://…: an empty database]
 *
 * Half of the jobs have succeeded, the others are ready, in runs of 1,000. */
#include "tests/bench/queue.h"

enum { FIRST = 1000, CLAIMS = 400, VIEWS = 40 };

/* Runs and jobs are doubled until there are enough. */
static void fill(base *b, long rows)
{
    const double start = kvm_now();
    long n = FIRST;
    add_many(b, FIRST);
    run_sql(b->path, "UPDATE job SET state = 'succeeded', finished_at = created_at "
                     "WHERE id % 2 = 0");
    for (; n < rows; n *= 2) {
        run_sql(b->path, "INSERT INTO run(spec_id, key, priority, state, created_at) "
                         "SELECT spec_id, key, priority, state, created_at FROM run");
        copy_jobs(b, "run_id + (SELECT MAX(id) FROM run) / 2", "TRUE");
    }
    printf("%ld jobs: %.0f s\n", n, kvm_now() - start);
}

static void say(const char *what, double *x, int n)
{
    const double mid = median(x, n);
    printf("%-34s p50 %7.2f ms   p99 %7.2f ms\n", what, 1e3 * mid,
           1e3 * x[(int)(0.99 * n)]);
}

static void claim_by(base *b, int batch)
{
    double claim[CLAIMS], end[CLAIMS];
    char what[60];
    for (int i = 0; i < CLAIMS; i++) {
        const double start = kvm_now();
        if (one_batch(b, batch, &claim[i]) != batch) die("claim", "jobs are missing");
        end[i] = kvm_now() - start - claim[i];
    }
    snprintf(what, sizeof what, "claim of %d", batch);
    say(what, claim, CLAIMS);
    snprintf(what, sizeof what, "end of %d", batch);
    say(what, end, CLAIMS);
}

/* the first 100 rows, as a page shows them */
static void view(base *b, const char *name, const char *column, int64_t value)
{
    double x[VIEWS];
    char what[60];
    const kvm_view_filter f = {.column = column, .number = value};
    for (int i = 0; i < VIEWS; i++) {
        json_t *rows;
        kvm_arena a;
        OK(kvm_arena_init(&a, 16 << 20, &err));
        const double start = kvm_now();
        OK(kvm_catalogue_view(b->c, &rows, &a, name, &f, column != NULL, 100, &err));
        x[i] = kvm_now() - start;
        kvm_arena_free(&a);
    }
    snprintf(what, sizeof what, "%s%s%s", name, column ? " of one " : "",
             column ? column : "");
    say(what, x, VIEWS);
}

int main(int argc, char **argv)
{
    const long rows = number_of(argc, argv, 1, 1000000);
    base b;
    if (argc > 2)
        open_at(&b, argv[2], false);
    else
        open_file(&b, "million", false);
    fill(&b, rows);
    claim_by(&b, 1);
    claim_by(&b, KVM_BATCH_MOST);
    view(&b, "v_queue", NULL, 0);
    view(&b, "v_queue", "run", 1);
    view(&b, "v_runs", NULL, 0);
    view(&b, "v_attempts", NULL, 0);
    view(&b, "v_teams", NULL, 0);
    view(&b, "v_workers", NULL, 0);
    kvm_arena_free(&b.keep);
    return 0;
}
