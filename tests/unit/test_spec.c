/* Pair specs: what is wrong is named with line and remedy, before anything runs. */
#define SPECS "spec"
#include <string.h>

#include "tests/support/specs.h"

#define SCORED "evaluate: {suites: [prose]}\n"

static void refused(const char *yaml, kvm_status status, const char *place,
                    const char *remedy)
{
    kvm_spec s;
    kvm_err err;
    check_status(status, read(yaml, &s, &err), &err);
    check_contains(err.msg, place);
    check_contains(err.msg, remedy);
}

static void mistakes_are_named_with_their_line(void **state)
{
    (void)state;
    refused(HEAD "calibratoin: {text: calibration}\n", KVM_FORMAT, ":4", "calibration");
    refused(HEAD CALIBRATION "fit: {lamda: 3}\n", KVM_FORMAT, ":5", "lambda");
    refused(HEAD CALIBRATION "seed: soon\n", KVM_FORMAT, ":5", "integer");
    refused("name: a b\nsource: x\ntarget: y\n" CALIBRATION, KVM_FORMAT, ":1",
            "letters");
    refused("name: a\nsource: nowhere\ntarget: y\n" CALIBRATION, KVM_NOTFOUND, ":2",
            "nowhere");
    refused(HEAD "calibration: {text: no-such}\n", KVM_NOTFOUND, "no-such",
            "calibration");
    refused(HEAD, KVM_FORMAT, "calibration", "");
    /* a name becomes a file's: it stays in its folder and is not the other
     * direction's */
    refused(HEAD "reverse_name: ../x\n" CALIBRATION, KVM_FORMAT, ":4", "letters");
    refused(HEAD "reverse_name: small-large\n" CALIBRATION, KVM_FORMAT, ":4", "own");
}

/* Absent, it would silently be left undone; with defaults, run for hours. */
static void an_empty_section_is_refused(void **state)
{
    (void)state;
    kvm_spec s;
    kvm_err err;
    int sections = 0;
    for (const kvm_field *f = kvm_spec_fields; f->key; f++) {
        if (f->type != KVM_FIELD_OBJECT || f->required) continue;
        sections++;
        const char *empty =
            kvm_str_fmt(&arena, HEAD CALIBRATION "%s:\nseed: 2\n", f->key).at;
        const bool needs_suites =
            !strcmp(f->key, "evaluate") || !strcmp(f->key, "analyse");
        refused(empty, KVM_FORMAT, kvm_str_fmt(&arena, ":5: %s: is empty", f->key).at,
                needs_suites                   ? "it needs \"suites\"; leave the"
                : !strcmp(f->key, "alternate") ? "it needs \"suite\"; leave the"
                                               : "write {} for what it has");
    }
    assert_int_equal(sections, 7);
    refused(HEAD "calibration:\n", KVM_FORMAT, ":4: calibration: is empty", "");
    check_ok(read(HEAD CALIBRATION "distill: {}\n", &s, &err), &err);
}

/* of whatever ends first: reading the spec or building the graphs */
static kvm_status planned(const char *yaml, kvm_err *err)
{
    kvm_spec s;
    kvm_graph g[2];
    const kvm_status st = read(yaml, &s, err);
    return st ? st : build(yaml, g, err);
}

static void calibration_fits_the_context(void **state)
{
    (void)state;
    kvm_graph g[2];
    kvm_err err;
    check_status(
        KVM_RANGE,
        build(HEAD "calibration: {text: calibration, tokens: 50000}\n", g, &err), &err);
    check_contains(err.msg, ":4: calibration.tokens");
}

static void a_text_that_never_ends_is_refused(void **state)
{
    (void)state;
    kvm_graph g[2];
    kvm_err err;
    check_status(KVM_USAGE, build(HEAD "calibration: {text: /dev/zero}\n", g, &err),
                 &err);
    check_contains(err.msg, "/dev/zero");
}

/* what the capture would only find when it has begun */
static void calibration_is_checked_before_anything_runs(void **state)
{
    (void)state;
    static const struct {
        const char *section, *part;
        kvm_status status;
    } bad[] = {
        {"{text: calibration, tokens: 16, stride: 16}", ":5: calibration.stride: is 16",
         KVM_RANGE},
        {"{text: calibration, sequences: 5000}",
         ":5: calibration.sequences: is 5000, and the text gives 360", KVM_RANGE},
        {"{text: few.txt, sequences: 9, tokens: 8}",
         ":5: calibration.sequences: is 9, and the text gives 4", KVM_RANGE},
        {"{text: few.txt}", ":5: calibration.text: gives 1 of the at least 3",
         KVM_RANGE},
        {"{text: few.txt, tokens: 16}", ":5: calibration.text: gives 2 of", KVM_RANGE},
        {"{text: calibration, sequences: 2}", ":5: calibration.sequences: is 2",
         KVM_RANGE},
        {"{text: prose}", ":5: calibration.text: ", KVM_USAGE},
        {"{text: calibratio}", ":5: calibration.text: unknown suite", KVM_NOTFOUND},
        {"{text: latin.txt}", "latin.txt:2: byte 9 (0xe9) is not UTF-8", KVM_FORMAT},
        {"{text: calibration, sequences: 1}", ":5: calibration.sequences", KVM_RANGE},
        {"{text: calibration, dtype: f8}", ":5: calibration.dtype", KVM_USAGE},
        {"{text: calibration, held_out: 2}", ":5: calibration.held_out", KVM_RANGE},
    };
    check_write(DIR "/few.txt", KVM_STR(FEW));
    check_write(DIR "/latin.txt", KVM_STR("one two\nr\xe9sum\xe9\n"));
    for (size_t i = 0; i < COUNT(bad); i++) {
        kvm_err err;
        const kvm_str yaml =
            kvm_str_fmt(&arena, "%s\ncalibration: %s\n", HEAD, bad[i].section);
        const kvm_status st = planned(yaml.at, &err);
        check_status(bad[i].status, st, &err);
        check_contains(err.msg, bad[i].part);
        check_contains(err.msg, "pair.yaml");
    }
}

/* what only the tokens of the items show, named by the suite's place and the item's
 * id */
static void items_are_looked_at_before_anything_runs(void **state)
{
    (void)state;
    static const struct {
        const char *items, *part;
        kvm_status status;
    } bad[] = {
        {"{\"id\":\"a\",\"prefix\":\"x\",\"continuation\":\"y\"}",
         "item a: the prefix is too short to cache", KVM_RANGE},
        {"{\"id\":\"a\",\"prefix\":\"" FEW "\",\"continuation\":\" end\"}\n"
         "{\"id\":\"b\",\"prefix\":\"zero " FEW "\",\"continuation\":\" " FEW "\"}",
         "item b: tokens ", KVM_MISMATCH},
    };
    kvm_text text = {0};
    kvm_err err;
    for (int i = 0; i < 20; i++) kvm_text_addf(&text, "%s ", FEW);
    check_write(DIR "/text.txt", kvm_text_str(&text));
    check_write(DIR "/s.yaml", KVM_STR("name: s\nkind: perplexity\nfile: s.jsonl\n"
                                       "licence: CC0-1.0\nprovenance: this test\n"));
    const char *const spec = HEAD "calibration: {text: text.txt, tokens: 64}\n"
                                  "evaluate: {suites: [s.yaml], attention_items: 0}\n";
    for (size_t i = 0; i < COUNT(bad); i++) {
        check_write(DIR "/s.jsonl", kvm_str_of(bad[i].items));
        check_status(bad[i].status, planned(spec, &err), &err);
        check_contains(err.msg, "pair.yaml:5: evaluate.suites[0]: ");
        check_contains(err.msg, bad[i].part);
    }
    /* one that is not scored is not asked */
    check_write(
        DIR "/s.jsonl",
        kvm_str_fmt(&arena, "%s\n%s",
                    "{\"id\":\"z\",\"prefix\":\"a b c\",\"continuation\":\"d\"}",
                    bad[0].items));
    const char *const one =
        HEAD "calibration: {text: text.txt, tokens: 64}\n"
             "evaluate: {suites: [s.yaml], items: 1, attention_items: 0}\n";
    check_ok(planned(one, &err), &err);
    /* longer than the context */
    text.len = 0;
    kvm_text_addf(&text, "{\"id\":\"long\",\"continuation\":\"x\",\"prefix\":\"");
    for (int i = 0; i < 50000; i++) kvm_text_addf(&text, " %d", i);
    kvm_text_addf(&text, "\"}");
    check_write(DIR "/s.jsonl", kvm_text_str(&text));
    kvm_text_free(&text);
    check_status(KVM_RANGE, planned(spec, &err), &err);
    check_contains(err.msg, "item long: takes ");
    check_contains(err.msg, "the context of small holds 40960");
}

/* captures, moments and the fit would have run before the job says so */
static void lessons_that_do_not_fit_are_refused_when_planned(void **state)
{
    (void)state;
    kvm_graph g[2];
    kvm_err err;
    const char *head = HEAD "calibration: {text: calibration, sequences: 24, "
                            "tokens: 64}\n";
    const char *one =
        kvm_str_fmt(&arena, "%sdistill:\n  after: 16\n  memory_mib: 1\n", head).at;
    check_status(KVM_RANGE, build(one, g, &err), &err);
    check_contains(err.msg, ":7: distill.memory_mib: is 1, and 21 lessons take up to ");
    check_contains(err.msg, " MiB: raise it, or ask for fewer lessons");
    check_ok(
        build(kvm_str_fmt(&arena, "%sdistill: {after: 16, memory_mib: 1, lessons: 1}\n",
                          head)
                  .at,
              g, &err),
        &err);
}

/* a text that is made by something else than kvmill: the message says where to look */
static void a_text_that_is_not_there_is_named(void **state)
{
    (void)state;
    kvm_spec spec;
    kvm_err err;
    check_status(KVM_NOTFOUND,
                 read(HEAD "calibration: {text: ./none.yaml}\n", &spec, &err), &err);
    check_contains(err.msg, "calibration.text: there is no ");
    check_contains(err.msg,
                   "none.yaml: kvmill does not make it; the specs of tests/zoo "
                   "say in their first lines what does");
}

/* Conversations distil the other direction too, whose lessons may be the larger ones:
 * those of mla to kda take 34 MiB, those of kda to mla 12. */
static void lessons_of_the_way_back_have_to_fit_too(void **state)
{
    (void)state;
    kvm_graph g[2];
    kvm_err err;
#define WITH(section)                                                                  \
    "name: kda-mla\nsource: ../../../tests/zoo/kda\ntarget: ../../../tests/zoo/mla\n"  \
    "calibration: {text: calibration, sequences: 60, tokens: 256}\n"                   \
    "distill: {after: 16, native_top: 8, memory_mib: 20}\n" section
    check_ok(build(WITH(""), g, &err), &err);
    check_status(
        KVM_RANGE,
        build(WITH("alternate: {suite: dialogues, items: 1, turns: 2}\n"), g, &err),
        &err);
#undef WITH
    check_contains(err.msg, ":5: distill.memory_mib: is 20, and ");
}

static void more_layers_than_there_are_are_noted(void **state)
{
    (void)state;
    kvm_err err;
    kvm_graph g[2];
    check_ok(build(HEAD CALIBRATION SCORED "fit: {k_most: 5}\n", g, &err), &err);
    check_contains(g[0].warning.at,
                   "fit.k_most is 5, and 4 layers can be read: all are tried");
    check_ok(build(HEAD CALIBRATION SCORED "fit: {k_most: 4}\n", g, &err), &err);
    assert_true(kvm_str_find(g[0].warning, KVM_STR("k_most")) < 0);
}

/* a rate that never gets where the spec wants it is named before anything runs */
static void a_warmup_without_an_end_is_warned_of(void **state)
{
    (void)state;
    static const struct {
        const char *distill;
        bool warned;
    } specs[] = {{"{after: 16, steps: 10}", true},
                 {"{after: 16, steps: 20, warmup: 20}", true},
                 {"{after: 16, steps: 10, warmup: 9}", false},
                 {"{after: 16}", false}};
    for (size_t i = 0; i < COUNT(specs); i++) {
        kvm_err err;
        kvm_graph g[2];
        const kvm_str yaml = kvm_str_fmt(
            &arena, "%s%sevaluate: {suites: [facts-mc, prose]}\ndistill: %s\n", HEAD,
            CALIBRATION, specs[i].distill);
        check_ok(build(yaml.at, g, &err), &err);
        if (specs[i].warned)
            check_contains(g[0].warning.at, "distill.warmup is ");
        else
            assert_int_equal(g[0].warning.len, 0);
    }
}

static void an_unknown_ablation_lists_those_there_are(void **state)
{
    (void)state;
    kvm_spec s;
    kvm_err err;
    kvm_compute *c;
    kvm_graph g[2];
    ptrdiff_t n;
    check_ok(read(HEAD CALIBRATION "evaluate: {suites: [prose], ablations: [kone]}\n",
                  &s, &err),
             &err);
    check_ok(kvm_compute_new(&c, &arena, kvm_backend_find(KVM_STR("cpu")), 1, &err),
             &err);
    check_status(KVM_USAGE, kvm_spec_graphs(&s, &arena, c, g, &n, &err), &err);
    check_contains(err.msg, "rotated");
}

/* sections of a spec, and what the message about it says */
static const struct {
    const char *section, *part;
} refused_ranges[] = {
    {"fit: {lambda: -1}\n", ":5: fit.lambda: is -1"},
    {"fit: {lambda: 1e308}\n", ":5: fit.lambda: is 1e+308, must lie in 0..1e+06"},
    {"fit: {lambda_absolute: 1e308}\n", ":5: fit.lambda_absolute: is 1e+308"},
    {"distill: {batch: 3, lessons: 2, after: 16}\n",
     ":5: distill.batch: is 3, and there are 2 lessons to learn from"},
    {"fit:\n  lambda: 1\n  lambda_absolute: 1\n", ":7: fit.lambda_absolute"},
    {"fit:\n  select: r2\n  k: 0\n",
     ":7: fit.k: is 0, must be a whole number from 1 to 4"},
    {"fit: {k: 5}\n", ":5: fit.k: is 5, must be a whole number from 1 to 4, the "
                      "layers of small"},
    {"fit: {k: 9999}\n", ":5: fit.k: is 9999, must be a whole number from 1 to 4"},
    {"fit: {k: 1.5}\n", ":5: fit.k: is 1.5, must be a whole number from 1 to 4"},
    {"fit: {k: some}\n", ":5: fit.k"},
    {"fit: {keys: x}\n", ":5: fit.keys"},
    {"fit: {heads: x}\n", ":5: fit.heads"},
    {"fit:\n  gates:\n    r2: 1\n", ":7: fit.gates.r2: is no gate"},
    {"fit:\n  gates:\n    attention_cosine: 1\n",
     ":7: fit.gates.attention_cosine: is 1, a gate that is never met: must be less "
     "than 1"},
    {"fit: {gates: {held_out_r2: 1.5}}\n", ":5: fit.gates.held_out_r2: is 1.5"},
    {"fit: {gates: {c_k: -1}}\n", ":5: fit.gates.c_k: is -1, a gate"},
    {"fit: {gates: {weight_norm: 0}}\n", "must be more than 0"},
    {"mlp: {hidden: 0}\n", ":5: mlp.hidden"},
    {"mlp:\n\n  rate: 2\n", ":7: mlp.rate"},
    {"mlp: {dtype: fp16}\n", ":5: mlp.dtype: is f32 or bf16, not \"fp16\""},
    {"mlp: {batch: 16385}\n", ":5: mlp.batch"},
    {"fit: {k_most: 2.5}\n", ":5: fit.k_most: expected an integer"},
    {"timing: {lengths: [64, 64]}\n", ":5: timing.lengths[1]: is 64"},
    {"timing: {rounds: 0}\n", ":5: timing.rounds"},
    {"timing: {lengths: [64, 50000]}\n", "40960"},
    {"seed: -1\n", ":5: seed"},
    {"evaluate: {suites: [calibration]}\n", ":5: evaluate.suites[0]: suite"},
    {"evaluate: {suites: [prose, pros]}\n",
     "suites[1]: unknown suite \"pros\"; did you mean \"prose\""},
    {"evaluate:\n  suites: [prose]\n  ablations: [k1]\n  ablation_suites: [x.yaml]\n",
     ":8: evaluate.ablation_suites[0]: "},
    {"evaluate:\n  suites: [prose]\n  ablations: [k1]\n  ablation_suites: [needle]\n",
     ":8: evaluate.ablation_suites[0]: \"needle\" is none of evaluate.suites"},
    {"evaluate:\n  suites: [prose]\n  ablation_suites: [needle]\n",
     ":7: evaluate.ablation_suites[0]: \"needle\" is none"},
    {"evaluate: {suites: [prose, prose.yaml]}\n",
     ":5: evaluate.suites[1]: \"prose.yaml\" has the name of a suite before it"},
    {"evaluate: {suites: [prose], items: 4, attention_items: 5}\n",
     ":5: evaluate.attention_items: is 5, and 4 items"},
    {"evaluate: {suites: [prose], attention_items: 4000}\n",
     ":5: evaluate.attention_items: is 4000, and "},
    {"evaluate: {suites: []}\n", ":5: evaluate.suites"},
    {"evaluate: {suites: [prose, prose]}\n", ":5: evaluate.suites[1]"},
    {"evaluate: {suites: [prose], items: -1}\n", ":5: evaluate.items"},
    {"evaluate: {suites: [prose], attention_items: -1}\n", "attention_items"},
    {"evaluate: {suites: [prose], ablations: [k1, k1]}\n", ":5: evaluate.ablations"},
    {"evaluate: {suites: [prose], ablation_suites: [prose, prose]}\n",
     ":5: evaluate.ablation_suites"},
    {"evaluate: {suites: [prose], ablation_suite: prose}\n",
     ":5: evaluate.ablation_suite: unknown key; did you mean \"ablation_suites\"?"},
    {"analyse: {suites: []}\n", ":5: analyse.suites: names none"},
    {"analyse: {suites: [prose, prose.yaml]}\n",
     ":5: analyse.suites[1]: \"prose.yaml\" has the name of a suite before it"},
    {"analyse: {suites: [prose], tails: [0.5, 0.1]}\n", ":5: analyse.tails[1]: is 0.1"},
    {"analyse: {suites: [prose], tails: [1]}\n", ":5: analyse.tails[0]: is 1, must be"},
    {"analyse: {suites: [prose], tail_lengths: [50000]}\n",
     ":5: analyse.tail_lengths[0]: is 50000"},
    {"analyse: {suites: [prose], tail_lengths: [8, 8]}\n",
     ":5: analyse.tail_lengths[1]: is 8"},
    {"fit: {states: x}\n", ":5: fit.states: is zero"},
    {"analyse: {suites: [prose], items: -1}\n", ":5: analyse.items"},
    {"analyse: {suites: [calibration]}\n", ":5: analyse.suites[0]: suite"},
    {"evaluate: {suites: [prose], ablations: [k1, engine]}\n",
     ":5: evaluate.ablations[1]: ablation engine: it takes nothing away: its maps read "
     "and make no latents"},
    {"evaluate: {suites: [prose], ablations: [no_token]}\n",
     "ablation no_token: it takes nothing away: its maps are told no token"},
    {"evaluate: {suites: [prose], ablations: [zero_states]}\n",
     "ablation zero_states: it takes nothing away: the target keeps no states"},
};

/* what a job would refuse when it runs is refused when it is planned */
static void ranges_are_checked_before_anything_runs(void **state)
{
    (void)state;
    check_write(DIR "/prose.yaml",
                KVM_STR("name: prose\nkind: perplexity\nfile: prose.jsonl\n"
                        "licence: CC0-1.0\nprovenance: this test\n"));
    check_write(
        DIR "/prose.jsonl",
        KVM_STR("{\"id\":\"a\",\"prefix\":\"one two\",\"continuation\":\"x\"}"));
    for (size_t i = 0; i < COUNT(refused_ranges); i++) {
        kvm_err err;
        const kvm_str yaml =
            kvm_str_fmt(&arena, "%s%s%s", HEAD, CALIBRATION, refused_ranges[i].section);
        const kvm_status st = planned(yaml.at, &err);
        assert_int_not_equal(st, KVM_OK);
        check_contains(err.msg, refused_ranges[i].part);
        check_contains(err.msg, "pair.yaml");
    }
}

/* recipes that the two models do not allow are named by their section */
static void what_the_pair_refuses_is_named_by_its_line(void **state)
{
    (void)state;
    static const struct {
        const char *source, *target, *rest, *part;
    } bad[] = {
        {"mla", "kda", "fit: {states: copy}\n",
         "pair.yaml:5: fit: the source keeps no states"},
        {"kda", "mla", "both_directions: true\nfit: {states: copy}\n",
         "pair.yaml:6: fit: in the reverse direction: the source keeps no states"},
        {"kda", "gdn-a", "fit: {states: copy}\n",
         "pair.yaml:5: fit: the window of source layer 0 has 384 heads of 4 (0 keys), "
         "that of target layer 0 256 of 4 (0): it cannot be copied; states: replay "
         "lets "
         "the target's own recurrence make it"},
        {"gdn-a", "gdn-b", "fit: {token: decoded}\n",
         "pair.yaml:5: fit: the source's first layer"},
        {"gdn-a", "qsa", "fit: {token: none}\n",
         "pair.yaml:5: fit: the target keeps n-grams"},
        {"gdn-a", "qsa", "evaluate: {suites: [needle], ablations: [no_token]}\n",
         "pair.yaml:5: evaluate.ablations[0]: ablation no_token: the target keeps"},
        {"small", "large", "fit:\n  latents: 3\n",
         "pair.yaml:6: fit.latents: says where latents are taken"},
        {"small", "large", "fit:\n  k: 1\n  states: auto\n",
         "pair.yaml:7: fit.states: is auto, and this pair leaves nothing to choose: "
         "only "
         "zero"},
        {"gdn-a", "qsa", "fit:\n  token: auto\n",
         "pair.yaml:6: fit.token: is auto, and this pair leaves nothing to choose: "
         "only "
         "given"},
        {"mla", "kda", "fit:\n  latents: sometimes\n",
         "pair.yaml:6: fit.latents: must be 1, 3 or auto"},
        {"gdn-a", "gdn-b", "fit:\n  k: 1\n  states: [copy, replay]\n",
         "pair.yaml:7: fit.states: lists 2 ways, and the target has 6 recurrent "
         "layers"},
        {"gdn-a", "gdn-b", "fit:\n  states: [copy, copy, copy, copy, copy, some]\n",
         "pair.yaml:6: fit.states[5]: is zero, copy, bilinear, replay or auto"},
        {"mla", "kda", "evaluate: {suites: [needle], ablations: [copy_states]}\n",
         "evaluate.ablations[0]: ablation copy_states: the source keeps no states"},
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        kvm_err err;
        const kvm_str yaml = kvm_str_fmt(
            &arena,
            "name: a-b\nsource: ../../../tests/zoo/%s\ntarget: ../../../tests/zoo/%s\n"
            "%s%s",
            bad[i].source, bad[i].target, CALIBRATION, bad[i].rest);
        assert_int_not_equal(planned(yaml.at, &err), KVM_OK);
        check_contains(err.msg, bad[i].part);
    }
}

/* what the verdict needs and nothing will measure is named before anything runs */
static void a_gate_that_will_not_be_measured_is_warned_of(void **state)
{
    (void)state;
    static const struct {
        const char *section;
        bool gate, quality; /* warned of */
    } specs[] = {{"", true, true},
                 {"evaluate: {suites: [facts-mc]}\n", true, false},
                 {"evaluate: {suites: [prose], attention_items: 0}\n", true, true},
                 {"evaluate: {suites: [prose]}\n", false, true},
                 {"evaluate: {suites: [facts-mc, prose]}\n", false, false}};
    for (size_t i = 0; i < COUNT(specs); i++) {
        kvm_err err;
        kvm_graph g[2];
        const kvm_str yaml =
            kvm_str_fmt(&arena, "%s%s%s", HEAD, CALIBRATION, specs[i].section);
        check_ok(build(yaml.at, g, &err), &err);
        const kvm_str w = g[0].warning;
        assert_int_equal(kvm_str_find(w, KVM_STR("attention_cosine")) >= 0,
                         specs[i].gate);
        assert_int_equal(kvm_str_find(w, KVM_STR("recall, choice or answers")) >= 0,
                         specs[i].quality);
        if (!specs[i].gate && !specs[i].quality) assert_int_equal(w.len, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            lessons_that_do_not_fit_are_refused_when_planned, setup, teardown),
        cmocka_unit_test_setup_teardown(a_text_that_is_not_there_is_named, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(lessons_of_the_way_back_have_to_fit_too, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(more_layers_than_there_are_are_noted, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_warmup_without_an_end_is_warned_of, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(an_empty_section_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(mistakes_are_named_with_their_line, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_gate_that_will_not_be_measured_is_warned_of,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(calibration_is_checked_before_anything_runs,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(items_are_looked_at_before_anything_runs, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(calibration_fits_the_context, setup, teardown),
        cmocka_unit_test_setup_teardown(a_text_that_never_ends_is_refused, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(ranges_are_checked_before_anything_runs, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(what_the_pair_refuses_is_named_by_its_line,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(an_unknown_ablation_lists_those_there_are,
                                        setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
