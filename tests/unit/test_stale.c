/* A spec submitted again on other content: just what depends on it is done anew, and
 * the run before says why. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "schema/stale.h"

#include "tests/support/fake_kinds.h"

static fake_base b;
static kvm_graph g;

static void set(ptrdiff_t node, const char *name, const char *value)
{
    json_object_set_new(g.nodes[node].params, name, json_string(value));
}

/* a capture, what is made of it, and an evaluation apart from both */
static int set_up(void **state)
{
    (void)state;
    static const kvm_kind_id kinds[] = {KVM_JOB_CAPTURE, KVM_JOB_STATS,
                                        KVM_JOB_CAPTURE};
    static const char *const labels[] = {"capture small", "stats small",
                                         "evaluate prose"};
    fake_open(&b, "stale");
    g = kvm_test_graph(&b.keep, 3, true, KVM_JOB_CAPTURE, 0);
    g.nodes[2].input_count = 0;
    for (int i = 0; i < 3; i++) {
        g.nodes[i].kind = kinds[i];
        g.nodes[i].label = kvm_str_of(labels[i]);
    }
    set(0, "model", "aa");
    set(0, "model_path", "/a");
    set(2, "source", "aa");
    set(2, "suite", "s1");
    return 0;
}
static int tear_down(void **state)
{
    (void)state;
    fake_close(&b);
    return 0;
}

static kvm_worker_stats work(void)
{
    kvm_worker_stats stats;
    const kvm_worker_options o = fake_options(30);
    MUST(kvm_worker_run(&o, &stats, e));
    assert_int_equal(stats.failed, 0);
    return stats;
}

static const char *why_of(int64_t run)
{
    json_t *rows;
    const kvm_view_filter f = {"run", {0}, run};
    MUST(kvm_catalogue_view(b.c, &rows, &b.keep, "v_runs", &f, 1, 0, e));
    const json_t *row = json_array_get(rows, 0);
    assert_true(json_is_null(json_object_get(row, "stale_at")) ==
                json_is_null(json_object_get(row, "stale_why")));
    return json_string_value(json_object_get(row, "stale_why"));
}

static int64_t stale_of_pair(void)
{
    json_t *rows;
    MUST(kvm_catalogue_view(b.c, &rows, &b.keep, "v_pairs", NULL, 0, 0, e));
    assert_int_equal(json_array_size(rows), 1);
    return json_integer_value(json_object_get(json_array_get(rows, 0), "stale"));
}

static void model(const char *fingerprint, const char *tokenizer, const char *weights)
{
    const kvm_model_new m = {KVM_STR("small"), KVM_STR("llama"), fingerprint, "c",
                             tokenizer,        weights};
    MUST(kvm_model_record(b.c, &m, e));
    MUST(kvm_model_record(b.c, &m, e)); /* known already */
}

static void a_changed_checkpoint_is_noticed(void **state)
{
    (void)state;
    const kvm_submitted first = fake_submit(&b, &g, false);
    assert_int_equal(first.stale.run, 0);
    assert_int_equal(work().succeeded, 3);
    model("aa", "t", "w1");
    model("bb", "t", "w2");
    set(0, "model", "bb");
    const kvm_submitted second = fake_submit(&b, &g, false);
    assert_int_equal(second.outcome, KVM_SUBMIT_NEW);
    assert_int_equal(second.stale.run, first.run);
    assert_string_equal(second.stale.why,
                        "capture small: the checkpoint changed (weights)");
    assert_string_equal(why_of(first.run), second.stale.why);
    assert_null(why_of(second.run));
    assert_int_equal(stale_of_pair(), 1);
    const kvm_worker_stats s = work();
    assert_int_equal(s.succeeded, 1); /* what it gives is the same: the rest is there */
    assert_int_equal(s.skipped, 2);

    set(0, "model", "aa"); /* taken back */
    const kvm_submitted third = fake_submit(&b, &g, false);
    assert_int_equal(third.outcome, KVM_SUBMIT_DONE);
    assert_int_equal(third.run, first.run);
    assert_int_equal(third.stale.run, second.run);
    assert_null(why_of(first.run));
    assert_non_null(why_of(second.run));
    assert_int_equal(stale_of_pair(), 1);
}

static void one_cause_is_told_once(void **state)
{
    (void)state;
    const int64_t first = fake_submit(&b, &g, false).run;
    model("aa", "t1", "w1");
    model("bb", "t2", "w2");
    set(0, "model", "bb");
    set(2, "source", "bb");
    set(2, "suite", "s2");
    fake_submit(&b, &g, false);
    assert_string_equal(why_of(first),
                        "capture small: the checkpoint changed (tokenizer, weights); "
                        "evaluate prose: the suite changed");
    set(0, "model", "cc"); /* nothing is known of it */
    set(2, "source", "cc");
    assert_string_equal(fake_submit(&b, &g, false).stale.why,
                        "capture small: the checkpoint changed");
}

static void only_the_first_reasons_are_told(void **state)
{
    (void)state;
    const int64_t first = fake_submit(&b, &g, false).run;
    set(0, "text", "t2");
    set(0, "stride", "2");
    set(2, "suite", "s2");
    json_object_del(g.nodes[2].params, "source");
    g.nodes[1].label = KVM_STR("stats of small");
    fake_submit(&b, &g, false);
    const char *why = why_of(first);
    check_contains(why, "capture small: the calibration text changed");
    check_contains(why, "capture small: its stride changed");
    check_contains(why, "stats of small: a new step; 3 more");
}

static void a_newer_code_is_noticed(void **state)
{
    (void)state;
    const int64_t first = fake_submit(&b, &g, false).run;
    work();
    /* as an older program would have left it */
    kvm_test_sql(b.db, "UPDATE job SET version = 1, key = 'old' || id "
                       "WHERE kind_name = 'capture'; UPDATE run SET key = 'old'");
    const kvm_submitted second = fake_submit(&b, &g, false);
    char want[100];
    snprintf(want, sizeof want, "capture small: code version 1, now %d",
             kvm_job_kind_version(KVM_JOB_CAPTURE));
    assert_string_equal(why_of(first), want);
    assert_int_equal(second.outcome, KVM_SUBMIT_NEW);
    const kvm_worker_stats s = work();
    assert_int_equal(s.succeeded, 2);
    assert_int_equal(s.skipped, 1);
}

/* Moved, on another machine, on another backend, or asked for anew: nothing has
 * changed. */
static void what_has_not_changed_is_not_stale(void **state)
{
    (void)state;
    kvm_submitted s;
    kvm_submit_options o = {.machine = KVM_STR("m1"), .file = KVM_STR("/a/pair.yaml")};
    g.nodes[2].kind = KVM_JOB_TIMING;
    MUST(kvm_submit(b.c, b.store, &g, &o, &s, b.keep, e));
    const int64_t first = s.run;
    o.machine = KVM_STR("m2");
    MUST(kvm_submit(b.c, b.store, &g, &o, &s, b.keep, e));
    assert_true(s.run != first);
    o.again = true;
    MUST(kvm_submit(b.c, b.store, &g, &o, &s, b.keep, e));
    set(0, "model_path", "/b");
    MUST(kvm_submit(b.c, b.store, &g, &o, &s, b.keep, e));
    g.nodes[0].identity = kvm_json_own(&b.keep, json_pack("{s:s}", "backend", "x"));
    MUST(kvm_submit(b.c, b.store, &g, &o, &s, b.keep, e));
    assert_int_equal(stale_of_pair(), 0);
    g.spec = KVM_STR("{\"other\":1}"); /* another spec is no later one */
    set(2, "suite", "s2");
    MUST(kvm_submit(b.c, b.store, &g, &o, &s, b.keep, e));
    assert_int_equal(stale_of_pair(), 0);
    assert_int_equal(
        kvm_test_number(b.db, "SELECT COUNT(*) FROM run WHERE file = '/a/pair.yaml'"),
        6);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(a_changed_checkpoint_is_noticed),   T(one_cause_is_told_once),
        T(only_the_first_reasons_are_told),   T(a_newer_code_is_noticed),
        T(what_has_not_changed_is_not_stale),
    };
    return kvm_test_both("stale", tests);
}
