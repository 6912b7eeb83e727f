/* Whatever call of the catalogue fails, and however: the worker's loop ends each job
 * once. A process for every call and every way; most of their time is spent waiting. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "tests/support/db_fault.h"
#include "tests/support/fake_kinds.h"

enum { AT_ONCE = 12, JOBS = 3, MOST_CALLS = 400 };

/* A step, one that needs it, and the first one's twin, which is skipped. */
static kvm_graph work(kvm_arena *keep)
{
    kvm_graph g = kvm_test_graph(keep, JOBS, false, KVM_JOB_CAPTURE, 0);
    json_object_set_new(g.nodes[2].params, "n", json_integer(0));
    kvm_node_input *in = kvm_new(keep, kvm_node_input, 1);
    *in = (kvm_node_input){.name = "before", .node = 0, .output = "out"};
    g.nodes[1].inputs = in;
    g.nodes[1].input_count = 1;
    return g;
}

/* A worker that could not even begin is started again, as a supervisor does. */
static kvm_status work_off(const kvm_worker_options *o, kvm_err *err)
{
    kvm_status s = KVM_BUSY;
    for (int i = 0; i < 3 && s == KVM_BUSY; i++) {
        *err = (kvm_err){0};
        s = kvm_worker_run(o, NULL, err);
    }
    return s;
}

/* what must hold: a query and what it gives */
static const struct {
    const char *sql;
    int64_t number;
} after[] = {
    {"SELECT COUNT(*) FROM job WHERE state IN ('succeeded', 'skipped')", JOBS},
    {"SELECT COUNT(*) FROM job WHERE state = 'succeeded'", JOBS - 1},
    {"SELECT COUNT(*) FROM run WHERE state = 'succeeded'", 1},
    {"SELECT COUNT(*) FROM attempt WHERE outcome IN ('succeeded', 'skipped')", JOBS},
    {"SELECT COUNT(*) FROM attempt WHERE ended_at IS NULL", 0},
    {"SELECT COUNT(*) FROM artefact", JOBS},
    {"SELECT COUNT(*) FROM sample", JOBS - 1},
    {"SELECT COUNT(*) FROM outbox WHERE sent_at IS NULL", 0},
};

/* Exit code: 0 all is well and the fault has come, 7 the worker needs fewer calls. */
static int one(db_fault what, int n, const char *db)
{
    kvm_err err = {0};
    fake_catalogue = kvm_str_of(db);
    kvm_worker_options o = fake_options(1.5);
    o.policy.crash_limit = 100;
    o.policy.retry_limit = 100;
    db_fault_at(what, n);
    kvm_status s = work_off(&o, &err);
    const bool fired = db_fault_fired();
    db_fault_at(what, 0);
    if (s) fprintf(stderr, "# %s at call %d: %s\n", db_fault_text(what), n, err.msg);
    int bad = s != KVM_OK;
    for (size_t i = 0; i < COUNT(after); i++) {
        const int64_t got = kvm_test_number(db, after[i].sql);
        if (got == after[i].number) continue;
        fprintf(stderr, "# %s at call %d: %s: %lld\n", db_fault_text(what), n,
                after[i].sql, (long long)got);
        bad = 1;
    }
    return bad ? 1 : fired ? 0 : 7;
}

static pid_t begin(db_fault what, int n, int place)
{
    fake_base b;
    char name[64], db[400];
    snprintf(name, sizeof name, "worker_fault_%d_%d", (int)what, place);
    fake_open(&b, name);
    const kvm_graph g = work(&b.keep);
    fake_submit(&b, &g, false);
    snprintf(db, sizeof db, "%s", b.db);
    fake_close(&b);
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) _exit(one(what, n, db));
    return pid;
}

/* Calls 1, 1 + step … until a worker gets by with fewer. */
static void each_call(db_fault what, int step)
{
    pid_t pids[AT_ONCE];
    bool more = true;
    int n = 1, fired = 0;
    while (more && n < MOST_CALLS) {
        int count = 0;
        for (; count < AT_ONCE; count++, n += step) pids[count] = begin(what, n, count);
        for (int i = 0; i < count; i++) {
            const int code = fake_join(pids[i], 120);
            if (code != 0 && code != 7)
                fail_msg("%s, at call %d: see above", db_fault_text(what),
                         n - (count - i) * step);
            fired += code == 0;
            more = more && code == 0;
        }
    }
    assert_in_range(n, 50, MOST_CALLS - 1);
    print_message("# %s: at each of %d calls\n", db_fault_text(what), fired);
}

/* a server is asked the same calls: there some of them will do */
static int step(void)
{
    return kvm_test_on_server ? 5 : 1;
}

static void a_lock_is_waited_for(void **state)
{
    (void)state;
    each_call(DB_FAULT_BUSY, 3 * step());
}

static void a_lost_connection_loses_no_job(void **state)
{
    (void)state;
    each_call(DB_FAULT_LOST, step());
}

static void an_answer_that_is_lost_ends_no_job_twice(void **state)
{
    (void)state;
    each_call(DB_FAULT_UNHEARD, step());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lock_is_waited_for),
        cmocka_unit_test(a_lost_connection_loses_no_job),
        cmocka_unit_test(an_answer_that_is_lost_ends_no_job_twice),
    };
    return kvm_test_both("worker_fault", tests);
}
