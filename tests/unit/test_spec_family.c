/* A spec with a `family`: a pair of every two models, one capture of each for all. */
#include <string.h>

#include "jobs/spec.h"
#include "kernels/backend.h"
#include "tests/support/check.h"

#define DIR "build/tmp/spec_family"
#define ZOO "../../../tests/zoo/"
#define TEXT "calibration: {text: calibration, sequences: 20, tokens: 64}\n"
#define THREE "name: zoo\nfamily: [" ZOO "small, " ZOO "mla/, " ZOO "kda]\n" TEXT

static kvm_arena arena;

static int setup(void **state)
{
    (void)state;
    arena = check_arena((size_t)1 << 36);
    check_tmpdir("spec_family");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&arena);
    return 0;
}

static kvm_status read_all(const char *yaml, kvm_spec **specs, ptrdiff_t *n,
                           kvm_err *err)
{
    *err = (kvm_err){0};
    check_write(DIR "/family.yaml", kvm_str_of(yaml));
    return kvm_specs_read(specs, n, &arena, KVM_STR(DIR "/family.yaml"), err);
}

static kvm_graphs *graphs_of(const char *yaml, ptrdiff_t *n)
{
    kvm_err err;
    kvm_spec *specs;
    kvm_graphs *graphs;
    kvm_compute *c;
    check_ok(read_all(yaml, &specs, n, &err), &err);
    check_ok(kvm_compute_new(&c, &arena, kvm_backend_find(KVM_STR("cpu")), 1, &err),
             &err);
    check_ok(kvm_specs_graphs(specs, *n, &arena, c, &graphs, &err), &err);
    return graphs;
}

static void every_two_models_are_a_pair_both_ways(void **state)
{
    (void)state;
    static const char *const names[3][2] = {{"zoo.small-mla", "zoo.mla-small"},
                                            {"zoo.small-kda", "zoo.kda-small"},
                                            {"zoo.mla-kda", "zoo.kda-mla"}};
    ptrdiff_t n;
    const kvm_graphs *g = graphs_of(THREE, &n);
    assert_int_equal(n, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(g[i].n, 2);
        for (int d = 0; d < 2; d++) check_str(g[i].of[d].pair, names[i][d]);
    }
}

/* different params of the steps of one kind that take so many inputs, over all graphs:
 * equal ones are done once */
static int different(const kvm_graphs *g, ptrdiff_t n, kvm_kind_id kind,
                     ptrdiff_t inputs)
{
    const json_t *seen[64];
    int count = 0;
    for (ptrdiff_t i = 0; i < n; i++)
        for (ptrdiff_t d = 0; d < g[i].n; d++)
            for (ptrdiff_t k = 0; k < g[i].of[d].count; k++) {
                const kvm_node *node = &g[i].of[d].nodes[k];
                bool known = node->kind != kind || node->input_count != inputs;
                for (int j = 0; j < count && !known; j++)
                    known = json_equal(seen[j], node->params);
                if (!known) seen[count++] = node->params;
            }
    return count;
}

/* An MLA model is captured for its latents' sake by one pair and for the inputs of its
 * layers by another. */
static void a_model_is_captured_once_for_all_its_pairs(void **state)
{
    (void)state;
    ptrdiff_t n;
    const kvm_graphs *g = graphs_of(THREE, &n);
    assert_int_equal(different(g, n, KVM_JOB_CAPTURE, 0), 3);
    int apart = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        const char *const pairs[3] = {"small\ntarget: " ZOO "mla",
                                      "small\ntarget: " ZOO "kda",
                                      "mla\ntarget: " ZOO "kda"};
        ptrdiff_t one;
        const kvm_str yaml = kvm_str_fmt(
            &arena, "name: p\nboth_directions: true\nsource: " ZOO "%s\n" TEXT,
            pairs[i]);
        const kvm_graphs *alone = graphs_of(yaml.at, &one);
        assert_int_equal(one, 1);
        apart += !json_equal(alone->of[0].nodes[0].params, g[i].of[0].nodes[0].params);
    }
    assert_true(apart > 0); /* else this test shows nothing */
}

static void moments_of_one_capture_are_made_once(void **state)
{
    (void)state;
    ptrdiff_t n;
    const kvm_graphs *g = graphs_of(THREE, &n);
    for (ptrdiff_t i = 0; i < n; i++)
        for (ptrdiff_t d = 0; d < 2; d++)
            for (ptrdiff_t j = 0; j < n; j++)
                for (ptrdiff_t e = 0; e < 2; e++) {
                    const kvm_graph *a = &g[i].of[d], *b = &g[j].of[e];
                    for (ptrdiff_t k = 0; k < a->count; k++)
                        for (ptrdiff_t l = 0; l < b->count; l++) {
                            const kvm_node *x = &a->nodes[k], *y = &b->nodes[l];
                            if (x->kind == KVM_JOB_STATS && x->input_count == 1 &&
                                y->kind == KVM_JOB_STATS && y->input_count == 1 &&
                                kvm_str_eq(x->label, y->label))
                                assert_true(json_equal(x->params, y->params));
                        }
                }
}

static void a_pair_is_a_family_of_one(void **state)
{
    (void)state;
    kvm_err err;
    kvm_spec *specs;
    ptrdiff_t n;
    const char *yaml = "name: a-b\nsource: " ZOO "small\ntarget: " ZOO "large\n" TEXT;
    check_ok(read_all(yaml, &specs, &n, &err), &err);
    assert_int_equal(n, 1);
    check_str(specs->name, "a-b");
}

static void refused(const char *yaml, kvm_status status, const char *place,
                    const char *remedy)
{
    kvm_err err;
    kvm_spec *specs;
    ptrdiff_t n;
    check_status(status, read_all(yaml, &specs, &n, &err), &err);
    check_contains(err.msg, place);
    check_contains(err.msg, remedy);
}

static void mistakes_are_named_with_their_line(void **state)
{
    (void)state;
    refused("name: a\n" TEXT, KVM_FORMAT, "source", "family");
    refused("name: a\nfamily: [" ZOO "small]\n" TEXT, KVM_RANGE, ":2: family", "2..64");
    refused("name: a\nfamily: [" ZOO "small, " ZOO "small/]\n" TEXT, KVM_FORMAT,
            "family[1]", "named by them");
    refused("name: a\nfamily: [" ZOO "small, nowhere]\n" TEXT, KVM_NOTFOUND,
            "family[1]", "nowhere");
    refused("name: a\nsource: " ZOO "small\nfamily: [" ZOO "small, " ZOO
            "large]\n" TEXT,
            KVM_USAGE, ":2: source", "leave one");
    refused("name: a\nboth_directions: true\nfamily: [" ZOO "small, " ZOO
            "large]\n" TEXT,
            KVM_USAGE, ":2: both_directions", "leave one");
}

static void what_takes_one_pair_says_so(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_spec s;
    check_write(DIR "/family.yaml", KVM_STR(THREE));
    check_status(KVM_USAGE,
                 kvm_spec_read(&s, &arena, KVM_STR(DIR "/family.yaml"), &err), &err);
    check_contains(err.msg, "one pair");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_two_models_are_a_pair_both_ways),
        cmocka_unit_test(a_model_is_captured_once_for_all_its_pairs),
        cmocka_unit_test(moments_of_one_capture_are_made_once),
        cmocka_unit_test(a_pair_is_a_family_of_one),
        cmocka_unit_test(mistakes_are_named_with_their_line),
        cmocka_unit_test(what_takes_one_pair_says_so),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
