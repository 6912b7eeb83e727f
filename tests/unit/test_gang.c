/* Jobs on two and three ranks: the bits of one rank alone, also where there are more
 * ranks than work; a rank that fails, a cancellation, and an attempt that goes on. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tests/support/check.h"
#include "tests/support/crew.h"
#include "tests/support/host.h"

/* a pair of attention models with all steps, and one of hybrids, whose states a fit
 * corrects */
static host h, hybrids;

static const char spec[] =
    "name: pair\nsource: ../../tests/zoo/small\ntarget: ../../tests/zoo/large\n"
    "calibration: {text: calibration, sequences: 8, tokens: 48}\n"
    "fit: {allow_wide: true, k_most: 2}\n"
    "distill: {steps: 2, validate: 1, batch: 3, after: 16}\n"
    "evaluate: {suites: [facts-qa, prose], items: 5, attention_items: 3}\n"
    "analyse: {suites: [facts-mc], items: 4, inversion: false, tail_lengths: []}\n";
static const char latent_spec[] =
    "name: latents\nsource: ../../tests/zoo/kda\ntarget: ../../tests/zoo/mla\n"
    "calibration: {text: calibration, sequences: 5, tokens: 48}\n";
static const char sparse_spec[] =
    "name: sparse\nsource: ../../tests/zoo/gdn-a\ntarget: ../../tests/zoo/qsa\n"
    "calibration: {text: calibration, sequences: 3, tokens: 700, stride: 3}\n";
static const char hybrid_spec[] =
    "name: hybrids\nsource: ../../tests/zoo/gdn-a\ntarget: ../../tests/zoo/gdn-b\n"
    "calibration: {text: calibration, sequences: 8, tokens: 48, dtype: bf16}\n"
    "fit: {allow_wide: true, k: 1, sweep: false, states: bilinear}\n";

static int setup(void **state)
{
    (void)state;
    host_open(&h, "gang", spec);
    host_open(&hybrids, "gang_hybrids", hybrid_spec);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    host_close(&h);
    host_close(&hybrids);
    return 0;
}

/* all outputs of a node that has run but what it took: {name: bytes} */
static json_t *results(host *on, ptrdiff_t node)
{
    const char *name;
    json_t *path, *all = kvm_json_own(&on->keep, json_object());
    json_object_foreach(on->outputs[node], name, path)
    {
        if (!strcmp(name, "cost")) continue;
        const kvm_str text = check_read(&on->keep, json_string_value(path));
        json_object_set_new(all, name, json_stringn_nocheck(text.at, (size_t)text.len));
    }
    assert_true(json_object_size(all) > 0);
    return all;
}

/* a curve says how fast it went, which is no result */
static kvm_str without_speed(host *on, kvm_str text)
{
    kvm_jat root;
    kvm_err err = {0};
    size_t i;
    json_t *point;
    check_ok(kvm_json_parse(&root, &on->keep, text, KVM_STR("curve"), &err), &err);
    json_array_foreach(json_object_get(root.v, "curve"), i, point)
    {
        json_object_del(point, "tokens_per_s");
    }
    check_ok(kvm_json_canonical(&text, &on->keep, root.v, &err), &err);
    return text;
}

static void same_results(host *on, json_t *a, json_t *b)
{
    const char *name;
    json_t *x;
    assert_int_equal(json_object_size(a), json_object_size(b));
    json_object_foreach(a, name, x)
    {
        const json_t *y = json_object_get(b, name);
        assert_non_null(y);
        kvm_str p = {json_string_value(x), (ptrdiff_t)json_string_length(x)};
        kvm_str q = {json_string_value(y), (ptrdiff_t)json_string_length(y)};
        if (strstr(p.at, "\"tokens_per_s\"")) {
            p = without_speed(on, p);
            q = without_speed(on, q);
        }
        if (!kvm_str_eq(p, q)) fail_msg("%s differs", name);
    }
}

/* samples by what they are of: an item's arms have no order */
static json_t *by_name(host *on)
{
    size_t i;
    json_t *sample, *all = kvm_json_own(&on->keep, json_object());
    json_array_foreach(on->samples, i, sample)
    {
        char *name = json_dumps(json_array_get(sample, 0), JSON_ENCODE_ANY);
        for (size_t k = 1; k < 4; k++) {
            char *next = json_dumps(json_array_get(sample, k), JSON_ENCODE_ANY);
            const kvm_str both = kvm_str_fmt(&on->keep, "%s %s", name, next);
            free(name);
            free(next);
            name = strdup(both.at);
        }
        assert_null(json_object_get(all, name));
        json_object_set(all, name, json_array_get(sample, 4));
        free(name);
    }
    json_array_clear(on->samples);
    return all;
}

/* One rank, then more of them, on the same inputs. The samples, too. */
static void agrees(host *on, const char *label, int most)
{
    const ptrdiff_t node = host_node(on, label);
    host_run_to(on, node);
    json_t *alone = results(on, node);
    for (int ranks = 2; ranks <= most; ranks += ranks == 3 ? 5 : 1) {
        kvm_err err = {0};
        json_array_clear(on->samples);
        check_ok(host_run(on, node, &err), &err);
        json_t *before = by_name(on);
        check_ok(host_run_crew(on, node, ranks, &err), &err);
        same_results(on, alone, results(on, node));
        assert_true(json_equal(before, by_name(on)));
    }
}

static void captures(void **state)
{
    (void)state;
    agrees(&h, "capture small", 8); /* eight sequences */
    agrees(&hybrids, "capture gdn-b", 3);
}

/* Layers are dealt out instead of sequences: of each kind of model, to ranks that are
 * more than its layers, too, and of sequences that take two pieces. */
static void captures_by_layers(void **state)
{
    (void)state;
    static const struct {
        const char *name, *spec, *label;
        int most;
    } cases[] = {{"by_layers", spec, "capture small", 8},
                 {"by_layers_gdn", hybrid_spec, "capture gdn-b", 3},
                 {"by_layers_kda", latent_spec, "capture kda", 8},
                 {"by_layers_mla", latent_spec, "capture mla", 8},
                 {"by_layers_qsa", sparse_spec, "capture qsa", 3}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        host on;
        host_open(&on, cases[i].name, cases[i].spec);
        on.memory = 1000; /* bytes: no model fits */
        agrees(&on, cases[i].label, cases[i].most);
        host_close(&on);
    }
}

static void moments(void **state)
{
    (void)state;
    agrees(&h, "stats small", 8);
    agrees(&h, "stats small x large", 3);
}

static void fits(void **state)
{
    (void)state;
    agrees(&h, "fit pair", 8); /* more than there are layers */
    agrees(&hybrids, "fit hybrids", 3);
}

static void distillations(void **state)
{
    (void)state;
    agrees(&h, "distill pair", 8); /* more than lessons of a batch */
}

static void evaluations(void **state)
{
    (void)state;
    agrees(&h, "evaluate facts-qa", 8); /* five items */
    agrees(&h, "evaluate prose", 2);
    agrees(&h, "analyse facts-mc", 3);
}

/* ---- failures ---- */

static kvm_str left(const char *name)
{
    return kvm_str_fmt(&h.keep, "%s/%d/%s", h.dir.at, h.runs - 1, name);
}

/* rank 1 is asked to stop once it has done so many of its pieces */
static double stop_after;
static double reached;

static void look(kvm_progress *p, double done, double total, const char *unit,
                 double eta_s)
{
    (void)p, (void)total, (void)unit, (void)eta_s;
    reached = done;
}

static bool stop(kvm_progress *p)
{
    (void)p;
    return h.team && h.team->rank == 1 && reached >= stop_after;
}

static void a_rank_that_is_cancelled_stops_all_and_they_go_on(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_progress p = {.show = look, .cancelled = stop};
    const ptrdiff_t node = host_node(&h, "capture small");
    json_t *whole = results(&h, node);
    stop_after = 48; /* tokens: after one of its four sequences */
    kvm_progress_begin(&p, "capture");
    h.progress = &p;
    check_status(KVM_CANCELLED, host_run_crew(&h, node, 2, &err), &err);
    h.progress = NULL;
    check_contains(err.msg, "after 1 of 4 sequences");
    assert_false(kvm_path_exists(left("capture.safetensors")));
    const char *spools[] = {"capture.safetensors.0-2.spool",
                            "capture.safetensors.1-2.spool"};
    kvm_str before[2];
    for (int i = 0; i < 2; i++) before[i] = check_read(&h.keep, left(spools[i]).at);
    assert_true(before[0].len > before[1].len);
    for (int i = 0; i < 2; i++) host_leave(&h, spools[i], before[i]);
    err = (kvm_err){0};
    check_ok(host_run_crew(&h, node, 2, &err), &err);
    same_results(&h, whole, results(&h, node));
    assert_false(kvm_path_exists(left(spools[1])));
}

/* Ranks that got unequally far: none does again what its spool has. */
static void layers_go_on_after_whole_sequences(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_progress p = {.show = look, .cancelled = stop};
    const ptrdiff_t node = host_node(&h, "capture small");
    json_t *whole = results(&h, node);
    h.memory = 1000;
    stop_after = 5; /* pieces of rank 1, when rank 0 is one further */
    kvm_progress_begin(&p, "capture");
    h.progress = &p;
    check_status(KVM_CANCELLED, host_run_crew(&h, node, 3, &err), &err);
    h.progress = NULL;
    check_contains(err.msg, "after 5 of 8 pieces");
    static const char *const spools[] = {"capture.safetensors.layers-0-3.spool",
                                         "capture.safetensors.layers-1-3.spool",
                                         "capture.safetensors.layers-2-3.spool"};
    kvm_str before[3];
    for (int i = 0; i < 3; i++) before[i] = check_read(&h.keep, left(spools[i]).at);
    before[2] = kvm_str_slice(before[2], 0, before[2].len - 1); /* torn */
    for (int i = 0; i < 3; i++) host_leave(&h, spools[i], before[i]);
    err = (kvm_err){0};
    check_ok(host_run_crew(&h, node, 3, &err), &err);
    same_results(&h, whole, results(&h, node));
    assert_false(kvm_path_exists(left(spools[1])));
    h.memory = 0;
}

static void scoring_goes_on_after_whole_lines(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_str line, rest;
    const ptrdiff_t node = host_node(&h, "evaluate facts-qa");
    json_t *whole = results(&h, node);
    json_array_clear(h.samples);
    check_ok(host_run_crew(&h, node, 2, &err), &err);
    json_t *samples = by_name(&h);
    const kvm_str second = check_read(&h.keep, left("items.1-2.jsonl").at);
    assert_true(kvm_str_cut(second, '\n', &line, &rest));
    host_leave(&h, "items.1-2.jsonl", kvm_str_slice(second, 0, line.len + 1));
    check_ok(host_run_crew(&h, node, 2, &err), &err);
    same_results(&h, whole, results(&h, node));
    assert_true(json_equal(samples, by_name(&h)));
    host_leave(&h, "items.1-2.jsonl", rest); /* which is of another item */
    check_status(KVM_MISMATCH, host_run_crew(&h, node, 2, &err), &err);
    check_contains(err.msg, "items.1-2.jsonl: line 1 is not item");
}

static void a_candidate_that_fails_on_one_rank_has_lost_on_all(void **state)
{
    (void)state;
    kvm_err err = {0};
    const ptrdiff_t node = host_node(&h, "fit pair");
    json_t *params = h.graph.nodes[node].params;
    json_object_set_new(params, "candidate", json_true());
    json_object_set_new(params, "k", json_integer(99)); /* there are fewer layers */
    check_ok(host_run_crew(&h, node, 2, &err), &err);
    const char *why =
        json_string_value(json_object_get(host_json(&h, node, "fit").v, "failed"));
    assert_non_null(why);
    check_contains(why, "k is 99");
    json_object_del(params, "candidate");
    check_status(KVM_RANGE, host_run_crew(&h, node, 3, &err), &err);
    assert_string_equal(err.msg, why);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(captures),
        cmocka_unit_test(captures_by_layers),
        cmocka_unit_test(moments),
        cmocka_unit_test(fits),
        cmocka_unit_test(distillations),
        cmocka_unit_test(evaluations),
        cmocka_unit_test(a_rank_that_is_cancelled_stops_all_and_they_go_on),
        cmocka_unit_test(layers_go_on_after_whole_sequences),
        cmocka_unit_test(scoring_goes_on_after_whole_lines),
        cmocka_unit_test(a_candidate_that_fails_on_one_rank_has_lost_on_all),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
