/* What a section of a spec says that cannot be: refused when it is planned, by line,
 * with what can. */
#include "jobs/spec.h"
#include "tests/support/check.h"

#define SPEC "build/tmp/spec_sections/pair.yaml"
#define PAIR(source, target)                                                           \
    "name: pair\nsource: ../../../tests/zoo/" source                                   \
    "\ntarget: ../../../tests/zoo/" target                                             \
    "\ncalibration: {text: calibration, sequences: 12, tokens: 64}\n"

static kvm_status plan(const char *yaml, kvm_err *err)
{
    kvm_arena keep = check_arena((size_t)1 << 36);
    kvm_spec s;
    kvm_compute *c;
    kvm_graph g[2];
    ptrdiff_t n;
    *err = (kvm_err){0};
    check_write(SPEC, kvm_str_of(yaml));
    kvm_status st = kvm_spec_read(&s, &keep, KVM_STR(SPEC), err);
    if (!st) st = kvm_compute_new(&c, &keep, kvm_backend_find(KVM_STR("cpu")), 1, err);
    if (!st) st = kvm_spec_graphs(&s, &keep, c, g, &n, err);
    kvm_arena_free(&keep);
    return st;
}

static void refused(const char *yaml, kvm_status want, const char *says)
{
    kvm_err err;
    check_status(want, plan(yaml, &err), &err);
    check_contains(err.msg, says);
}

static void turns_lie_between_two_and_those_of_the_dialogues(void **state)
{
    (void)state;
#define TURNS(n)                                                                       \
    PAIR("small", "large")                                                             \
    "alternate: {suite: dialogues, items: 1, turns: " n "}\n"
    kvm_err err;
    static const char *const range =
        "must lie in 2..10: two models take turns, and the "
        "shortest dialogue asked of suite dialogues has 10";
    refused(TURNS("0"), KVM_RANGE, ":5: alternate.turns: is 0, ");
    refused(TURNS("0"), KVM_RANGE, range);
    refused(TURNS("1"), KVM_RANGE, range);
    refused(TURNS("-3"), KVM_RANGE, range);
    refused(TURNS("11"), KVM_RANGE, range);
    refused(TURNS("9000000000000000000"), KVM_RANGE, range);
    refused(TURNS("two"), KVM_FORMAT, ":5: alternate.turns: ");
    check_ok(plan(TURNS("10"), &err), &err);
}

static void suites_of_ablations_need_ablations(void **state)
{
    (void)state;
#define SUITES(rest)                                                                   \
    PAIR("small", "large") "evaluate: {suites: [facts-mc], items: 1, " rest "}\n"
    kvm_err err;
    static const char *const idle = ":5: evaluate.ablation_suites: is for "
                                    "evaluate.ablations, which names none: name "
                                    "some, or leave it out";
    refused(SUITES("ablation_suites: [facts-mc]"), KVM_USAGE, idle);
    refused(SUITES("ablations: [], ablation_suites: [facts-mc]"), KVM_USAGE, idle);
    refused(SUITES("ablations: [k1], ablation_suites: []"), KVM_FORMAT,
            "evaluate.ablation_suites: names none: name one, or leave the list out");
    check_ok(plan(SUITES("ablations: [k1], ablation_suites: [facts-mc]"), &err), &err);
    check_ok(plan(SUITES("ablations: []"), &err), &err);
}

static void auto_is_no_way_of_one_layer(void **state)
{
    (void)state;
    refused(
        PAIR("gdn-a", "gdn-b") "fit: {k: 1, states: [auto, copy]}\n", KVM_USAGE,
        ":5: fit.states[0]: is auto, which stands for the whole key (states: auto)");
}

static int setup(void **state)
{
    (void)state;
    check_tmpdir("spec_sections");
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_lie_between_two_and_those_of_the_dialogues),
        cmocka_unit_test(suites_of_ablations_need_ablations),
        cmocka_unit_test(auto_is_no_way_of_one_layer),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
