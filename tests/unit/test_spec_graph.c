/* The graph of a good spec: what its nodes take, what two directions share, and which
 * keys of the spec change which step. */
#define SPECS "spec_graph"
#include <string.h>

#include "tests/support/specs.h"

static void both_directions_have_names_of_their_own(void **state)
{
    (void)state;
    kvm_graph g[2];
    kvm_err err;
    const char *const rest = strchr(HEAD "both_directions: true\n" CALIBRATION, '\n');
    const char *const names[] = {"a-a", "a-", "a-.b"};
    for (size_t i = 0; i < COUNT(names); i++) {
        const kvm_str yaml = kvm_str_fmt(&arena, "name: %s%s", names[i], rest);
        check_ok(build(yaml.at, g, &err), &err);
        check_str(g[1].pair, kvm_str_fmt(&arena, "%s-reversed", names[i]).at);
    }
}

static ptrdiff_t count(const kvm_graph *g, kvm_kind_id kind)
{
    ptrdiff_t n = 0;
    for (ptrdiff_t i = 0; i < g->count; i++) n += g->nodes[i].kind == kind;
    return n;
}

static ptrdiff_t graphs(const char *yaml, kvm_graph g[2])
{
    kvm_spec s;
    kvm_err err;
    kvm_compute *c;
    ptrdiff_t n;
    check_ok(read(yaml, &s, &err), &err);
    check_ok(kvm_compute_new(&c, &arena, kvm_backend_find(KVM_STR("cpu")), 1, &err),
             &err);
    check_ok(kvm_spec_graphs(&s, &arena, c, g, &n, &err), &err);
    return n;
}

static void every_input_points_backwards(void **state)
{
    (void)state;
    kvm_graph g[2];
    assert_int_equal(graphs(HEAD
                            "both_directions: true\n" CALIBRATION
                            "mlp: {hidden: 8}\nevaluate: {suites: [prose, needle], "
                            "ablations: [k1]}\ntiming: {rounds: 3}\n",
                            g),
                     2);
    check_str(g[1].pair, "large-small");
    for (int d = 0; d < 2; d++) {
        for (ptrdiff_t i = 0; i < g[d].count; i++)
            for (ptrdiff_t k = 0; k < g[d].nodes[i].input_count; k++) {
                assert_true(g[d].nodes[i].inputs[k].node >= 0);
                assert_true(g[d].nodes[i].inputs[k].node < i);
            }
        assert_int_equal(count(&g[d], KVM_JOB_CAPTURE), 2);
        assert_int_equal(count(&g[d], KVM_JOB_STATS), 2);
        assert_int_equal(count(&g[d], KVM_JOB_FIT), 2);
        assert_int_equal(count(&g[d], KVM_JOB_EVALUATE), 4);
        assert_int_equal(g[d].nodes[g[d].count - 1].kind, KVM_JOB_REPORT);
    }
}

/* where maps read the target's own rows, moments of the target are made too */
static void all_moments_are_paid_for(void **state)
{
    (void)state;
    kvm_graph g[2];
    graphs("name: a-b\nsource: ../../../tests/zoo/gdn-a\n"
           "target: ../../../tests/zoo/qsa\n" CALIBRATION,
           g);
    assert_int_equal(count(&g[0], KVM_JOB_STATS), 3);
    const kvm_node *report = &g[0].nodes[g[0].count - 1];
    ptrdiff_t paid = 0;
    for (ptrdiff_t k = 0; k < report->input_count; k++)
        paid += g[0].nodes[report->inputs[k].node].kind == KVM_JOB_STATS &&
                strcmp(report->inputs[k].output, "cost") == 0;
    assert_int_equal(paid, 3);
}

/* the canonical parameters of the first node of a kind and label */
static kvm_str params_of(const kvm_graph *g, kvm_str label)
{
    kvm_err err = {0};
    kvm_str out = {0};
    for (ptrdiff_t i = 0; i < g->count; i++)
        if (kvm_str_eq(g->nodes[i].label, label))
            check_ok(kvm_json_canonical(&out, &arena, g->nodes[i].params, &err), &err);
    assert_non_null(out.at);
    return out;
}

static void both_directions_share_captures(void **state)
{
    (void)state;
    kvm_graph g[2];
    graphs(HEAD "both_directions: true\n" CALIBRATION, g);
    const char *const labels[] = {"capture small", "capture large"};
    for (int i = 0; i < 2; i++)
        assert_true(kvm_str_eq(params_of(&g[0], kvm_str_of(labels[i])),
                               params_of(&g[1], kvm_str_of(labels[i]))));
}

/* without a number the sequences are those that the text gives, up to 300: the steps
 * and the report say so, and the key is that of a spec that names the number */
static void sequences_are_those_of_the_text(void **state)
{
    (void)state;
    static const char *const labels[] = {"capture small", "capture large",
                                         "evaluate prose", "report small-large"};
    kvm_graph left_out[2], given[2];
    check_write(DIR "/few.txt", KVM_STR(FEW));
    graphs(HEAD "evaluate: {suites: [prose]}\n"
                "calibration: {text: few.txt, tokens: 8}\n",
           left_out);
    graphs(HEAD "evaluate: {suites: [prose]}\n"
                "calibration: {text: few.txt, tokens: 8, sequences: 4}\n",
           given);
    for (size_t i = 0; i < COUNT(labels); i++) {
        const kvm_str params = params_of(&left_out[0], kvm_str_of(labels[i]));
        check_contains(params.at, "\"sequences\":4,");
        if (i < 3) check_str(params, params_of(&given[0], kvm_str_of(labels[i])).at);
    }
    graphs(HEAD CALIBRATION, given);
    check_contains(params_of(&given[0], KVM_STR("capture small")).at,
                   "\"sequences\":300,");
}

static void lambda_changes_the_fit_and_not_the_capture(void **state)
{
    (void)state;
    kvm_graph a[2], b[2];
    graphs(HEAD CALIBRATION, a);
    graphs(HEAD CALIBRATION "fit: {lambda: 1e-3}\n", b);
    assert_true(kvm_str_eq(params_of(&a[0], KVM_STR("capture small")),
                           params_of(&b[0], KVM_STR("capture small"))));
    assert_false(kvm_str_eq(params_of(&a[0], KVM_STR("fit small-large")),
                            params_of(&b[0], KVM_STR("fit small-large"))));
}

/* What a model gives on a backend that rounds activations is another result: steps that
 * run one are not equal to those of an exact backend, and the others are. Planning
 * multiplies nothing, so any machine can plan for any backend. */
static void a_backend_that_rounds_is_part_of_the_key(void **state)
{
    (void)state;
    int rounding = 0;
    for (int i = 0; kvm_backend__at(i); i++) {
        const kvm_backend *backend = kvm_backend__at(i);
        kvm_spec s;
        kvm_err err;
        kvm_compute *c;
        kvm_graph g[2];
        ptrdiff_t n;
        check_ok(read(HEAD CALIBRATION "mlp: {hidden: 8}\n"
                                       "evaluate: {suites: [prose], ablations: [k1]}\n"
                                       "timing: {rounds: 3}\n",
                      &s, &err),
                 &err);
        check_ok(kvm_compute_new(&c, &arena, backend, 1, &err), &err);
        check_ok(kvm_spec_graphs(&s, &arena, c, g, &n, &err), &err);
        const bool rounds = kvm_backend_rounds(backend);
        rounding += rounds;
        for (ptrdiff_t k = 0; k < g[0].count; k++) {
            const kvm_node *node = &g[0].nodes[k];
            const bool runs = node->kind == KVM_JOB_CAPTURE ||
                              node->kind == KVM_JOB_EVALUATE ||
                              node->kind == KVM_JOB_TIMING;
            assert_int_equal(node->identity != NULL, rounds && runs);
            if (node->identity)
                assert_string_equal(
                    json_string_value(json_object_get(node->identity, "backend")),
                    kvm_backend_label(backend, &arena).at);
        }
    }
    assert_true(rounding > 0);
}

/* whatever reads a suite, the report says that it did; of two of one name both */
static void the_report_is_told_of_every_suite(void **state)
{
    (void)state;
    kvm_graph g[2];
    check_write(DIR "/t.yaml", KVM_STR("name: prose\nkind: perplexity\nfile: t.jsonl\n"
                                       "licence: CC0-1.0\nprovenance: this test\n"));
    check_write(DIR "/t.jsonl", KVM_STR("{\"id\":\"a\",\"prefix\":\"" FEW
                                        "\",\"continuation\":\" end\"}\n"));
    graphs(HEAD CALIBRATION "evaluate: {suites: [prose], ablations: [k1]}\n"
                            "analyse: {suites: [t.yaml, needle]}\n",
           g);
    const kvm_str params = params_of(&g[0], KVM_STR("report small-large"));
    check_contains(params.at, "\"suites\":{\"needle\":\"");
    check_contains(params.at, "\"prose\":\"");
    check_contains(params.at, "\"prose, of analyse\":\"");
}

/* written out, auto is one fit for each word that the pair can do; left out, it is one
 * fit; what takes a fit takes the choice */
static void auto_is_a_fit_for_each_word(void **state)
{
    (void)state;
    static const struct {
        const char *source, *target, *fit;
        ptrdiff_t fits[2]; /* in both directions */
    } cases[] = {
        {"mla", "kda", "{}", {1, 1}},
        {"mla", "kda", "{states: auto}", {2, 1}},
        {"mla", "kda", "{states: auto, latents: auto}", {4, 2}},
        {"gdn-a", "gdn-b", "{states: auto}", {4, 4}},
        {"gdn-a", "gdn-b", "{states: auto, token: auto}", {8, 8}},
        {"small", "large", "{token: auto}", {2, 2}},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        kvm_graph g[2];
        const kvm_str yaml = kvm_str_fmt(
            &arena,
            "name: a-b\nsource: ../../../tests/zoo/%s\ntarget: ../../../tests/zoo/%s\n"
            "both_directions: true\n%sfit: %s\ndistill: {after: 16}\n",
            cases[i].source, cases[i].target, CALIBRATION, cases[i].fit);
        const ptrdiff_t n = graphs(yaml.at, g);
        for (ptrdiff_t d = 0; d < n; d++) {
            const bool several = cases[i].fits[d] > 1;
            assert_int_equal(count(&g[d], KVM_JOB_FIT), cases[i].fits[d]);
            assert_int_equal(count(&g[d], KVM_JOB_CHOOSE), several);
            for (ptrdiff_t k = 0; k < g[d].count; k++)
                if (g[d].nodes[k].kind == KVM_JOB_DISTILL)
                    assert_int_equal(g[d].nodes[g[d].nodes[k].inputs[0].node].kind,
                                     several ? KVM_JOB_CHOOSE : KVM_JOB_FIT);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_report_is_told_of_every_suite, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(every_input_points_backwards, setup, teardown),
        cmocka_unit_test_setup_teardown(all_moments_are_paid_for, setup, teardown),
        cmocka_unit_test_setup_teardown(both_directions_have_names_of_their_own, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(both_directions_share_captures, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(sequences_are_those_of_the_text, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(lambda_changes_the_fit_and_not_the_capture,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(a_backend_that_rounds_is_part_of_the_key, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(auto_is_a_fit_for_each_word, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
