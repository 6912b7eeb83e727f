/* Which of several fits is taken: the least KL; of equals the one with fewer
 * parameters; never one behind which something is not finite, or which cannot be. */
#include <string.h>

#include "jobs/candidates.h"
#include "tests/support/check.h"
#include "tests/support/host.h"
#include "translators/translator.h"

static host h;
static ptrdiff_t choose;

static int setup(void **state)
{
    *state = &h;
    host_open(
        &h, "choose",
        "name: mla-kda\nsource: ../../tests/zoo/mla\ntarget: ../../tests/zoo/kda\n"
        "calibration: {text: calibration, sequences: 24, tokens: 64}\n"
        "fit: {k: 1, lambda: 1e-3, sweep: false, states: auto}\n"
        "evaluate: {suites: [facts-mc], items: 1, attention_items: 0}\n");
    choose = host_node(&h, "choose mla-kda");
    host_run_to(&h, choose);
    return 0;
}

static const json_t *tried(size_t i)
{
    const json_t *figures = host_json(&h, choose, "fit").v;
    return json_array_get(json_object_get(figures, "tried"), i);
}

/* what stands written "auto" in the spec is a number in the figures */
static void the_capture_point_is_among_the_figures(void **state)
{
    (void)state;
    const json_t *figures = host_json(&h, choose, "fit").v;
    assert_int_equal(json_integer_value(json_object_get(figures, "latents")), 1);
}

static double number(const json_t *row, const char *key)
{
    return json_number_value(json_object_get(row, key));
}

static bool chosen(size_t i)
{
    return json_is_true(json_object_get(tried(i), "chosen"));
}

/* the fit that candidate i is of */
static ptrdiff_t fit_of(ptrdiff_t i)
{
    static const char *const labels[] = {"fit states zero: mla-kda",
                                         "fit states replay: mla-kda"};
    return host_node(&h, labels[i]);
}

static void same_file(kvm_str a, kvm_str b)
{
    const kvm_str x = check_read(&h.keep, a.at), y = check_read(&h.keep, b.at);
    assert_int_equal(x.len, y.len);
    assert_memory_equal(x.at, y.at, (size_t)x.len);
}

/* replayed states say what empty ones cannot */
static void the_least_is_taken(void **state)
{
    (void)state;
    assert_string_equal(json_string_value(json_object_get(tried(0), "title")),
                        "states zero");
    assert_string_equal(json_string_value(json_object_get(tried(1), "title")),
                        "states replay");
    assert_null(tried(2));
    assert_true(number(tried(1), "kl") > 0);
    assert_true(number(tried(1), "kl") < number(tried(0), "kl"));
    assert_true(!chosen(0) && chosen(1));
    same_file(host_output(&h, choose, "translator"),
              host_output(&h, fit_of(1), "translator"));
    /* all else is what its fit says */
    const json_t *figures = host_json(&h, choose, "fit").v;
    json_t *fit =
        kvm_json_own(&h.keep, json_deep_copy(host_json(&h, fit_of(1), "fit").v));
    json_t *value;
    const char *key;
    json_object_foreach(fit, key, value)
        assert_true(json_equal(value, json_object_get(figures, key)));
    assert_true(number(figures, "tried_lessons") == 2);
    assert_true(number(figures, "tried_after") == 32);
}

/* what takes a fit takes the choice, and the report shows what it was among */
static void the_report_takes_it(void **state)
{
    (void)state;
    host_run_to(&h, h.graph.count - 1);
    const json_t *doc = host_json(&h, h.graph.count - 1, "json").v;
    const json_t *recipes = json_object_get(doc, "recipes");
    assert_true(json_equal(json_object_get(recipes, "tried"),
                           json_object_get(host_json(&h, choose, "fit").v, "tried")));
    assert_true(number(recipes, "lessons") == 2);
    assert_true(number(recipes, "latents") == 1);
    static const char *const want[] = {"fit: states zero", "fit: states replay",
                                       "choice among the fits"};
    json_t *steps = json_object_get(json_object_get(doc, "build"), "steps"), *s;
    for (size_t w = 0; w < COUNT(want); w++) {
        bool found = false;
        size_t i;
        json_array_foreach(steps, i, s) found |=
            !strcmp(json_string_value(json_object_get(s, "title")), want[w]);
        if (!found) fail_msg("no cost of %s", want[w]);
    }
}

/* what an attempt had scored before it was killed stands, and decides */
static void rerun_after(const char *log)
{
    kvm_err err = {0};
    host_leave(&h, "choose.jsonl", kvm_str_of(log));
    check_ok(host_run(&h, choose, &err), &err);
}

static void of_equals_the_smaller_is_taken(void **state)
{
    (void)state;
    rerun_after("{\"first_kl\":1,\"kl\":0.25,\"title\":\"states zero\"}\n"
                "{\"first_kl\":0,\"kl\":0.25,\"title\":\"states replay\"}\n");
    assert_true(number(tried(0), "parameters") < number(tried(1), "parameters"));
    assert_true(chosen(0) && !chosen(1));
    same_file(host_output(&h, choose, "translator"),
              host_output(&h, fit_of(0), "translator"));
    /* one of them stands, the other is scored */
    rerun_after("{\"first_kl\":0,\"kl\":1e-9,\"title\":\"states zero\"}\n");
    assert_true(number(tried(0), "kl") == 1e-9 && number(tried(1), "kl") > 1e-9);
    assert_true(chosen(0));
}

static void what_is_not_finite_loses(void **state)
{
    (void)state;
    kvm_err err = {0};
    rerun_after("{\"first_kl\":null,\"kl\":null,\"reason\":\"rows of no number\","
                "\"title\":\"states zero\"}\n"
                "{\"first_kl\":9,\"kl\":9,\"title\":\"states replay\"}\n");
    assert_true(!chosen(0) && chosen(1));
    assert_string_equal(json_string_value(json_object_get(tried(0), "reason")),
                        "rows of no number");
    assert_true(json_is_null(json_object_get(tried(0), "kl")));
    host_leave(&h, "choose.jsonl",
               KVM_STR("{\"first_kl\":null,\"kl\":null,\"reason\":\"none\","
                       "\"title\":\"states zero\"}\n"
                       "{\"first_kl\":null,\"kl\":null,\"reason\":\"none\","
                       "\"title\":\"states replay\"}\n"));
    check_status(KVM_UNSUPPORTED, host_run(&h, choose, &err), &err);
    check_contains(err.msg, "none of 2 fits");
}

/* the file of a fit whose rows overflow */
static void overflowing(kvm_str path)
{
    kvm_err err = {0};
    kvm_translator t;
    check_ok(kvm_translator_open(&t, &h.keep, path, &err), &err);
    kvm_step *steps = kvm_new(&h.keep, kvm_step, t.count);
    assert_non_null(steps);
    memcpy(steps, t.steps, sizeof *steps * (size_t)t.count);
    t.steps = steps;
    for (ptrdiff_t i = 0; i < t.count; i++) {
        kvm_step *s = &steps[i];
        const ptrdiff_t n = kvm_tensor_count(&s->weight[0]);
        float *w = kvm_new(&h.keep, float, n);
        assert_non_null(w);
        for (ptrdiff_t k = 0; k < n; k++) w[k] = 1e37F;
        if (n > 0) s->weight[0].data = w;
    }
    check_ok(kvm_translator_write(&t, KVM_F32, path, h.keep, NULL, &err), &err);
}

static void a_fit_that_overflows_says_why_it_lost(void **state)
{
    (void)state;
    kvm_err err = {0};
    host o;
    host_open(
        &o, "choose_overflow",
        "name: pair\nsource: ../../tests/zoo/small\n"
        "target: ../../tests/zoo/large\n"
        "calibration: {text: calibration, sequences: 24, tokens: 64}\n"
        "fit: {k: 1, lambda: 1e-3, sweep: false, token: auto, allow_wide: true}\n");
    const ptrdiff_t node = host_node(&o, "choose pair");
    host_run_to(&o, node - 1);
    overflowing(host_output(&o, host_node(&o, "fit token none: pair"), "translator"));
    check_ok(host_run(&o, node, &err), &err);
    const json_t *list = json_object_get(host_json(&o, node, "fit").v, "tried");
    const json_t *lost = json_array_get(list, 0);
    assert_true(json_is_null(json_object_get(lost, "kl")));
    check_contains(json_string_value(json_object_get(lost, "reason")), "finite");
    assert_true(json_is_true(json_object_get(json_array_get(list, 1), "chosen")));
    host_close(&o);
}

/* of two, told maps have more features than there are rows: they are not fitted, and
 * the others are taken */
static void a_fit_that_cannot_be_loses(void **state)
{
    (void)state;
    kvm_err err = {0};
    host o;
    host_open(&o, "choose_wide",
              "name: pair\nsource: ../../tests/zoo/small\n"
              "target: ../../tests/zoo/large\n"
              "calibration: {text: calibration, sequences: 12, tokens: 24}\n"
              "fit: {k: 1, lambda: 1e-3, sweep: false, token: auto}\n");
    const ptrdiff_t node = host_node(&o, "choose pair");
    host_run_to(&o, node);
    const json_t *list = json_object_get(host_json(&o, node, "fit").v, "tried");
    const json_t *lost = json_array_get(list, 1);
    assert_true(json_is_true(json_object_get(json_array_get(list, 0), "chosen")));
    assert_true(json_is_null(json_object_get(lost, "kl")));
    assert_null(json_object_get(lost, "parameters"));
    check_contains(json_string_value(json_object_get(lost, "reason")),
                   "240 rows for 256 features");
    /* killed after the first: the log says what the second came to */
    host_leave(&o, "choose.jsonl",
               KVM_STR("{\"first_kl\":null,\"kl\":null,\"reason\":\"none\","
                       "\"title\":\"token none\"}\n"));
    check_status(KVM_UNSUPPORTED, host_run(&o, node, &err), &err);
    check_contains(err.msg, "none of 2 fits can be taken; the first: none");
    host_close(&o);
}

/* a file that was damaged says nothing of the fit */
static void a_translator_that_cannot_be_read_ends_the_job(void **state)
{
    (void)state;
    kvm_err err = {0};
    const char *path = host_output(&h, fit_of(0), "translator").at;
    const kvm_str whole = check_read(&h.keep, path);
    check_write(path, KVM_STR("no such file"));
    check_status(KVM_FORMAT, host_run(&h, choose, &err), &err);
    check_contains(err.msg, "states zero: ");
    check_contains(err.msg, path);
    check_write(path, whole);
}

/* What would go another time is no answer, a bug is none, nor is a checkpoint that was
 * changed since the plan: the key of the step would keep it. */
static void only_what_numbers_say_loses(void **state)
{
    (void)state;
    for (kvm_status s = KVM_OK; s <= KVM_DAMAGED; s++)
        assert_int_equal(kvm_candidate_lost(s), s == KVM_SHAPE || s == KVM_RANGE ||
                                                    s == KVM_SINGULAR || s == KVM_NAN ||
                                                    s == KVM_UNSUPPORTED);
}

static void a_log_of_others_is_refused(void **state)
{
    (void)state;
    kvm_err err = {0};
    host_leave(&h, "choose.jsonl",
               KVM_STR("{\"first_kl\":0,\"kl\":0,\"title\":\"states copy\"}\n"));
    check_status(KVM_MISMATCH, host_run(&h, choose, &err), &err);
    check_contains(err.msg, "line 1 is not of \"states zero\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_capture_point_is_among_the_figures),
        cmocka_unit_test(the_least_is_taken),
        cmocka_unit_test(the_report_takes_it),
        cmocka_unit_test(of_equals_the_smaller_is_taken),
        cmocka_unit_test(what_is_not_finite_loses),
        cmocka_unit_test(a_fit_that_overflows_says_why_it_lost),
        cmocka_unit_test(a_fit_that_cannot_be_loses),
        cmocka_unit_test(a_translator_that_cannot_be_read_ends_the_job),
        cmocka_unit_test(only_what_numbers_say_loses),
        cmocka_unit_test(a_log_of_others_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, host_teardown);
}
