/* Jobs that kill whoever works on them, and jobs that make no sense, among good ones:
 * each comes to its own end, with its reason and its logs; the good ones and the
 * workers do not notice. (queue.md, 5: rows 7 and 13.) */
#define _XOPEN_SOURCE 700 /* nftw */
#include "tests/chaos/fleet.h"

/* ---- a limit of memory that the kernel enforces ---- */

static char group[200]; /* a memory cgroup of ours; "": there is none to be had */

static bool write_to(const char *name, const char *text)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", group, name);
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    const bool good = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0) close(fd);
    return good;
}

static void limit_memory(void)
{
    static const char *const limits[] = {"memory.limit_in_bytes", "memory.max"};
    static const char *const roots[] = {"/sys/fs/cgroup/memory", "/sys/fs/cgroup"};
    for (int i = 0; i < 2; i++) {
        snprintf(group, sizeof group, "%s/kvmill-test-%d", roots[i], (int)getpid());
        if (mkdir(group, 0755)) continue;
        if (write_to(limits[i], "67108864")) return;
        rmdir(group);
    }
    group[0] = '\0';
    printf("# no memory cgroup can be made here: the kernel's killer is played by a "
           "signal\n");
}

static void lift_limit(void)
{
    for (int i = 0; i < 500 && group[0] && rmdir(group); i++) kvm_sleep(0.01);
}

/* more than the limit allows */
static void grow(void)
{
    char text[32];
    snprintf(text, sizeof text, "%d", (int)getpid());
    if (!group[0] || !write_to("cgroup.procs", text)) raise(SIGKILL);
    for (;;) {
        char *p = malloc(1 << 20);
        if (!p) raise(SIGKILL);
        memset(p, 1, 1 << 20);
    }
}

static kvm_status run(kvm_job *j, kvm_err *err)
{
    kvm_str how = KVM_STR("");
    kvm_err not_mine = {0};
    if (!kvm_json_str_or(kvm_json_get(j->params, j->keep, "do"), how, &how,
                         &not_mine) &&
        kvm_str_eq(how, KVM_STR("grow")))
        grow();
    return fake_run(j, err);
}
static const kvm_job_kind kinds[] = {
    {.id = KVM_JOB_CAPTURE, .inputs = fake_inputs, .run = run}};
static const kvm_job_kind *kind_of(kvm_kind_id id)
{
    return id == KVM_JOB_CAPTURE ? kinds : NULL;
}

/* ---- the jobs ---- */

#define DEEP "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["
#define MANY "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
static const struct bad {
    const char *row, *what;
    const char *how; /* "do" of its params */
    const char *set; /* of its row in the catalogue; NULL: it stands as submitted */
    const char *ends, *says;
    int attempts;
} bads[] = {
    {"7", "SIGSEGV", "segv", NULL, "parked", "ended by signal 11", 3},
    {"7", "ended by signal 9", "oom", NULL, "parked", "out of memory", 3},
    {"7", "a limit of memory", "grow", NULL, "parked", "out of memory", 3},
    {"7", "exit 137", "exit", NULL, "parked", "exited with 137", 3},
    {"13", "params that are no JSON", "ok", "params = '{oops'", "failed", "step", 1},
    {"13", "params that are empty", "ok", "params = ''", "failed", "step", 1},
    {"13", "params of another type", "ok", "params = '[]'", "failed", "", 1},
    {"13", "params without a key", "ok", "params = '{}'", "failed", "n", 1},
    {"13", "a number that is none", "ok", "params = '{\"n\":1e999}'", "failed", "step",
     1},
    {"13", "params that are nested too deep", "ok",
     "params = replace('" MANY "', 'x', '" DEEP "')", "failed", "step", 1},
    {"13", "an identity that is no JSON", "ok", "identity = '{'", "failed", "step", 1},
    {"13", "an unknown kind", "ok", "kind = 999", "failed", "does not know", 1},
    {"13", "a kind that is none", "ok", "kind = -1", "failed", "does not know", 1},
    {"13", "a newer version", "ok", "version = 99", "failed", "version 99", 1},
};
enum { BADS = sizeof bads / sizeof *bads, WORKERS = 2 };

/* One of each kind in each of so many rounds; between them good ones, and one that
 * needs a good one. */
enum { GOOD = 3, ROUND = BADS * (GOOD + 1) };

static bool is_bad(int node)
{
    return node % (GOOD + 1) == GOOD;
}

static kvm_graph graph(int rounds)
{
    kvm_graph g = kvm_test_graph(&b.keep, rounds * ROUND, true, KVM_JOB_CAPTURE, 0);
    for (int i = 0; i < rounds * ROUND; i++) {
        const bool needs = is_bad(i) && (i / ROUND) % 2; /* every second round */
        g.nodes[i].input_count = needs;
        if (is_bad(i)) fake_do(&g, i, bads[i % ROUND / (GOOD + 1)].how, 0);
    }
    return g;
}

static void spoil(int rounds)
{
    char sql[700];
    for (int i = 0; i < rounds * ROUND; i++) {
        const struct bad *d = &bads[i % ROUND / (GOOD + 1)];
        snprintf(sql, sizeof sql, "UPDATE job SET %s WHERE id = %d",
                 d->set ? d->set : "", i + 1);
        if (is_bad(i) && d->set) kvm_test_sql(b.db, sql);
    }
    /* a batch of small ones, and one at a time */
    kvm_test_sql(b.db, "UPDATE job SET class = 'small' WHERE id % 5 > 0");
}

static const json_t *rows_of(const char *view, int job)
{
    json_t *rows;
    const kvm_view_filter f = {.column = "job", .number = job};
    MUST(kvm_catalogue_view(b.c, &rows, &b.keep, view, &f, 1, 0, e));
    return rows;
}

static void check_bad(int job, const struct bad *d)
{
    char sql[300];
    snprintf(sql, sizeof sql,
             "SELECT COUNT(*) FROM job WHERE id = %d AND state = '%s' AND attempt = %d "
             "AND message LIKE '%%%s%%'",
             job, d->ends, d->attempts, d->says);
    if (NUMBER(sql) != 1)
        fail_msg("%s: %s", d->what, json_dumps(rows_of("v_queue", job), 0));
    const json_t *attempts = rows_of("v_attempts", job);
    assert_true(json_array_size(attempts) >= (size_t)d->attempts);
    for (size_t i = 0; i < json_array_size(attempts); i++) {
        const json_t *one = json_array_get(attempts, i);
        const kvm_str log = kvm_str_fmt(&b.keep, "%s/%s", fake_home,
                                        json_string_value(json_object_get(one, "log")));
        if (!kvm_path_exists(log)) fail_msg("%s: no %s", d->what, log.at);
    }
}

static void bad_jobs_end_alone(void **state)
{
    (void)state;
    const int rounds = chaos_count(2, 16), good = rounds * BADS * GOOD;
    pid_t pids[WORKERS];
    fleet_open("bad_jobs");
    const kvm_graph g = graph(rounds);
    fake_submit(&b, &g, false);
    spoil(rounds);
    kvm_worker_options o = fleet_options(60);
    o.kind_of = kind_of;
    fleet_scheduler = fleet_start_scheduler();
    for (int i = 0; i < WORKERS; i++) pids[i] = fake_worker(o, NULL);
    fake_until(b.db, FLEET_LEFT, 0, 300);
    fleet_stop(pids, WORKERS); /* which are those that were started */
    for (int i = 0; i < rounds * ROUND; i++)
        if (is_bad(i)) check_bad(i + 1, &bads[i % ROUND / (GOOD + 1)]);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM job WHERE state = 'succeeded' AND "
                            "attempt = 1 AND crashes + retries = 0"),
                     good);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM artefact"), good);
    assert_int_equal(sound_doubled(&b), 0);
    for (int i = 0; i < BADS; i++)
        fleet_record(bads[i].row, bads[i].what, rounds * bads[i].attempts, -1);
    fake_close(&b);
}

static int set_up(void **state)
{
    (void)state;
    limit_memory();
    return 0;
}
static int put_down(void **state)
{
    (void)state;
    lift_limit();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bad_jobs_end_alone)};
    if (!fleet_servers()) return 0;
    return cmocka_run_group_tests_name("bad jobs", tests, set_up, put_down);
}
