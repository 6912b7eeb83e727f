/* What a plan predicts for the example pair, against what the jobs' ops are asked
 * for. */
#include "jobs/plan.h"

#include <math.h>
#include <string.h>

#include "jobs/fit_sweep.h"
#include "kernels/backend.h"
#include "tests/support/captures.h"
#include "tests/support/check.h"

#define DIR "build/tmp/plan"

static void check_near(double got, double expected)
{
    assert_true(fabs(got - expected) <= 1e-9 * expected);
}

static json_t *plan_of(kvm_arena *keep, const char *path)
{
    kvm_err err = {0};
    kvm_compute *c;
    check_ok(kvm_compute_new(&c, keep, kvm_backend_find(KVM_STR("cpu")), 1, &err),
             &err);
    kvm_spec spec;
    check_ok(kvm_spec_read(&spec, keep, kvm_str_of(path), &err), &err);
    const kvm_machine_rates rates = {.flops = 1e9, .bytes = 1e9};
    json_t *plan;
    kvm_graph graphs[2];
    ptrdiff_t n;
    check_ok(kvm_spec_graphs(&spec, keep, c, graphs, &n, &err), &err);
    check_ok(kvm_plan_json(&plan, &spec, graphs, 0, n, c, &rates, keep, &err), &err);
    kvm_json_own(keep, plan);
    return plan;
}

static double number_of(const json_t *v, const char *list, size_t i, const char *key)
{
    const json_t *at = json_object_get(v, list);
    return json_number_value(
        json_object_get(json_is_array(at) ? json_array_get(at, i) : at, key));
}

static double fit_flops(const json_t *plan, size_t direction)
{
    return json_number_value(json_object_get(
        json_array_get(json_object_get(plan, "fit"), direction), "fit_flops"));
}

/* ---- a backend that counts ---- */

static kvm_backend counting;
static double counted;

static kvm_status count_cholesky(kvm_compute *c, kvm_in a, kvm_err *err)
{
    const double n = (double)a->dim[0];
    counted += n * n * n / 3;
    return kvm_backend_find(KVM_STR("cpu"))->cholesky(c, a, err);
}

static kvm_status count_solve(kvm_compute *c, kvm_in factor, kvm_in b, kvm_err *err)
{
    const double n = (double)factor->dim[0];
    counted += 2 * n * n * (double)b->dim[1];
    return kvm_backend_find(KVM_STR("cpu"))->cholesky_solve(c, factor, b, err);
}

static kvm_status count_gemm(kvm_compute *c, kvm_in out, kvm_in a, kvm_in b,
                             kvm_err *err)
{
    counted += 2.0 * (double)(a->dim[0] * a->dim[1] * b->dim[1]);
    return kvm_backend_find(KVM_STR("cpu"))->gemm64(c, out, a, b, err);
}

static kvm_status count_gram(kvm_compute *c, kvm_in g, kvm_in x, kvm_err *err)
{
    const double n = (double)x->dim[0], f = (double)x->dim[1];
    counted += n * f * f; /* half of a symmetric matrix */
    return kvm_backend_find(KVM_STR("cpu"))->gram(c, g, x, err);
}

static kvm_status count_cross(kvm_compute *c, kvm_in out, kvm_in x, kvm_in y,
                              kvm_err *err)
{
    counted += 2.0 * (double)(x->dim[0] * x->dim[1] * y->dim[1]);
    return kvm_backend_find(KVM_STR("cpu"))->cross(c, out, x, y, err);
}

enum { MADE_ROWS = 40 * 16 };
static double gram_flops[2], cross_flops; /* of the last sweep's moments */

/* flops that a sweep up to k_most takes between captures of the example's shapes */
static double swept(ptrdiff_t sources, ptrdiff_t targets, ptrdiff_t k_most)
{
    const ptrdiff_t layers[] = {sources, targets};
    static const char *const name[] = {"source", "target"};
    static const char *const file[] = {DIR "/source.rows", DIR "/target.rows"};
    kvm_arena keep = check_arena((size_t)1 << 34), room = check_arena((size_t)1 << 34);
    kvm_err err = {0};
    kvm_compute *c;
    kvm_rows *rows[2];
    kvm_moments *m;
    kvm_ranking ranking;
    counting = *kvm_backend_find(KVM_STR("cpu"));
    counting.cholesky = count_cholesky;
    counting.cholesky_solve = count_solve;
    counting.gemm64 = count_gemm;
    counting.gram = count_gram;
    counting.cross = count_cross;
    check_ok(kvm_compute_new(&c, &keep, &counting, 1, &err), &err);
    check_tmpdir("plan");
    for (int i = 0; i < 2; i++) {
        const made one = {.name = name[i],
                          .layers = layers[i],
                          .heads = 2,
                          .k_dim = 32,
                          .v_dim = 32,
                          .sequences = 40,
                          .tokens = 16,
                          .dtype = KVM_F32};
        made_capture(&one, file[i]);
        check_ok(kvm_rows_open(&rows[i], &keep, kvm_str_of(file[i]), &err), &err);
    }
    const kvm_moments_options o = {.seed = 1, .fraction = 0.2};
    for (int i = 1; i >= 0; i--) { /* the source's last: it is kept */
        counted = 0;
        check_ok(kvm_moments_gram(c, rows[i], &o, KVM_STR(DIR "/gram"), NULL, &err),
                 &err);
        gram_flops[i] = counted;
    }
    counted = 0;
    check_ok(
        kvm_moments_cross(c, rows[0], rows[1], &o, KVM_STR(DIR "/cross"), NULL, &err),
        &err);
    cross_flops = counted;
    check_ok(kvm_moments_open(&m, &keep, KVM_STR(DIR "/gram"), KVM_STR(DIR "/cross"),
                              (kvm_str){0}, &err),
             &err);
    const kvm_mapping mapping[] = {kvm_mapping_same(KVM_SPACE_K),
                                   kvm_mapping_same(KVM_SPACE_V)};
    static const int32_t layer[] = {0, 1, 2, 3, 4, 5, 6, 7};
    const kvm_r2_map map = {sources, targets, layer, layer, {NULL}};
    assert_true(sources <= (ptrdiff_t)COUNT(layer) &&
                targets <= (ptrdiff_t)COUNT(layer));
    check_ok(kvm_select_depth(&ranking, &keep, &map, &err), &err);
    const kvm_fit_sweep s = {.compute = c,
                             .moments = m,
                             .ranking = &ranking,
                             .mapping = mapping,
                             .mappings = 2,
                             .full = true,
                             .team = &kvm_team_alone};
    kvm_fit_choice choice = {.k_most = k_most, .k_slack = 0.005};
    json_t *figures = json_object();
    kvm_json_own(&keep, figures);
    counted = 0;
    check_ok(kvm_fit_run_sweep(&s, &choice, figures, &keep, room, &err), &err);
    kvm_arena_free(&room);
    kvm_arena_free(&keep);
    return counted;
}

static void fit_of_both_directions(void **state)
{
    (void)state;
    kvm_arena keep = check_arena((size_t)1 << 34);
    const json_t *plan = plan_of(&keep, "tests/zoo/pair.yaml");
    const json_t *fits = json_object_get(plan, "fit");
    assert_int_equal(json_array_size(fits), 2);

    /* 4 and 6 layers of 2 heads x 32 */
    const json_t *up = json_array_get(fits, 0), *down = json_array_get(fits, 1);
    assert_string_equal(json_string_value(json_object_get(up, "source")), "small");
    assert_string_equal(json_string_value(json_object_get(down, "source")), "large");
    check_near(fit_flops(plan, 1), swept(6, 4, 4096));
    check_near(fit_flops(plan, 0), swept(4, 6, 4096));
    check_near(json_number_value(json_object_get(up, "fit_s")),
               2 * fit_flops(plan, 0) / 1e9);
    const double rows = json_number_value(
        json_object_get(json_array_get(json_object_get(plan, "capture"), 0), "rows"));
    /* the way back finds the cross moments there */
    check_near(json_number_value(json_object_get(up, "stats_flops")) / rows,
               (gram_flops[0] + cross_flops) / MADE_ROWS);
    check_near(json_number_value(json_object_get(down, "stats_flops")) / rows,
               gram_flops[1] / MADE_ROWS);
    kvm_arena_free(&keep);
}

/* a largest k bounds the factor, leaves out the wider prefixes and ends greedy
 * curves */
static void largest_k_bounds_the_sweep(void **state)
{
    (void)state;
    kvm_arena keep = check_arena((size_t)1 << 34);
    check_tmpdir("plan");
    check_write(DIR "/pair.yaml",
                KVM_STR("name: a-b\n"
                        "source: ../../../tests/zoo/small\n"
                        "target: ../../../tests/zoo/large\n"
                        "calibration: {text: calibration, sequences: 8, tokens: 128}\n"
                        "fit: {k_most: 2}\n"));
    const json_t *plan = plan_of(&keep, DIR "/pair.yaml");
    const double flops = swept(4, 6, 2);
    check_near(fit_flops(plan, 0), flops);
    assert_true(flops < swept(4, 6, 4) / 3);
    assert_int_equal(json_array_size(json_object_get(plan, "fit")), 1);
    kvm_arena_free(&keep);
}

/* a text shorter than the 300 sequences that a spec without a number means */
static void rows_are_those_of_the_text(void **state)
{
    (void)state;
    kvm_arena keep = check_arena((size_t)1 << 34);
    check_tmpdir("plan");
    check_write(DIR "/short.txt",
                KVM_STR("one two three four five six seven eight nine ten "
                        "eleven twelve thirteen fourteen"));
    check_write(DIR "/short.yaml",
                KVM_STR("name: a-b\n"
                        "source: ../../../tests/zoo/small\n"
                        "target: ../../../tests/zoo/large\n"
                        "calibration: {text: short.txt, tokens: 8}\n"));
    const json_t *plan = plan_of(&keep, DIR "/short.yaml");
    for (size_t i = 0; i < 2; i++)
        check_near(json_number_value(json_object_get(
                       json_array_get(json_object_get(plan, "capture"), i), "rows")),
                   4 * 8);
    kvm_arena_free(&keep);
}

static const json_t *row_of(const json_t *plan, const char *kind)
{
    size_t i;
    const json_t *row;
    json_array_foreach(json_object_get(plan, "jobs"), i, row)
    {
        if (!strcmp(json_string_value(json_object_get(row, "kind")), kind)) return row;
    }
    fail_msg("the plan has no %s", kind);
    return NULL;
}

static double of_kind(const json_t *plan, const char *kind, const char *key)
{
    return json_number_value(json_object_get(row_of(plan, kind), key));
}

static const char *shared(const json_t *plan, const char *kind)
{
    return json_string_value(json_object_get(row_of(plan, kind), "ranks_share"));
}

static double total(const json_t *plan, const char *key)
{
    return json_number_value(json_object_get(json_object_get(plan, "total"), key));
}

/* of both directions: two captures and the cross moments are shared */
static void every_kind_of_job_has_a_figure(void **state)
{
    (void)state;
    static const struct {
        const char *kind;
        int jobs;
    } rows[] = {{"capture", 2},  {"stats", 3},     {"fit", 2},    {"mlp", 2},
                {"evaluate", 8}, {"ablation", 26}, {"timing", 2}, {"report", 2}};
    kvm_arena keep = check_arena((size_t)1 << 34);
    const json_t *plan = plan_of(&keep, "tests/zoo/pair.yaml");
    double seconds = 0, bytes = 0;
    assert_int_equal(json_array_size(json_object_get(plan, "jobs")), COUNT(rows));
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_int_equal(of_kind(plan, rows[i].kind, "jobs"), rows[i].jobs);
        assert_true(of_kind(plan, rows[i].kind, "seconds") > 0);
        assert_true(of_kind(plan, rows[i].kind, "memory_bytes") <=
                    total(plan, "memory_bytes"));
        seconds += of_kind(plan, rows[i].kind, "seconds");
        bytes += of_kind(plan, rows[i].kind, "bytes");
    }
    check_near(total(plan, "seconds"), seconds);
    check_near(total(plan, "bytes"), bytes);
    /* 300 sequences of 512 tokens, every other one a row of 4 and 6 layers x 128 f32 */
    check_near(of_kind(plan, "capture", "bytes"), 300 * 256 * 4.0 * 128 * (4 + 6));
    assert_true(total(plan, "memory_bytes") > 64 << 20);
    assert_string_equal(shared(plan, "capture"), "work or layers");
    assert_string_equal(shared(plan, "evaluate"), "work");
    assert_string_equal(shared(plan, "report"), "nothing");
    kvm_arena_free(&keep);
}

static const json_t *plan_with(kvm_arena *keep, const char *sections)
{
    check_tmpdir("plan");
    kvm_text t = {0};
    kvm_text_addf(&t,
                  "name: a-b\n"
                  "source: ../../../tests/zoo/small\n"
                  "target: ../../../tests/zoo/large\n"
                  "calibration: {text: calibration, sequences: 8, tokens: 128}\n%s",
                  sections);
    check_write(DIR "/with.yaml", kvm_text_str(&t));
    kvm_text_free(&t);
    return plan_of(keep, DIR "/with.yaml");
}

static void lengths_and_rounds_are_the_specs(void **state)
{
    (void)state;
    kvm_arena keep = check_arena((size_t)1 << 34);
    const json_t *once = plan_with(&keep, "timing: {lengths: [64, 2048], rounds: 5, "
                                          "warmups: 1}\n");
    const json_t *twice = plan_with(&keep, "timing: {lengths: [64, 2048], rounds: 10, "
                                           "warmups: 2}\n");
    const json_t *brief = plan_with(&keep, "timing: {lengths: [64, 2048], rounds: 10, "
                                           "warmups: 2, seconds: 1e-6}\n");
    const json_t *ttft = json_object_get(once, "ttft");
    assert_int_equal(json_array_size(ttft), 2);
    assert_true(json_number_value(json_object_get(json_array_get(ttft, 1), "tokens")) ==
                2048);
    const double a = of_kind(once, "timing", "seconds");
    const double b = of_kind(twice, "timing", "seconds");
    const double c = of_kind(brief, "timing", "seconds");
    assert_true(b > 1.8 * a && b < 2 * a); /* but for the source's prefill */
    assert_true(c < 0.5 * b);              /* two warm-ups and three rounds */
    kvm_arena_free(&keep);
}

/* a plan of two hybrids; rest: of the spec */
static json_t *plan_of_hybrids(kvm_arena *keep, const char *source, const char *target,
                               const char *rest)
{
    const kvm_str text = kvm_str_fmt(
        keep,
        "name: pair\nsource: ../../tests/zoo/%s\ntarget: ../../tests/zoo/%s\n"
        "calibration: {text: calibration, sequences: 60, tokens: 64}\n%s",
        source, target, rest);
    check_write("build/tmp/plan.yaml", text);
    return plan_of(keep, "build/tmp/plan.yaml");
}

/* what the fit, the switch and a distillation of hybrids do beside multiplying by maps
 * of K and V */
static void hybrids_do_more_than_map(void **state)
{
    (void)state;
    kvm_arena keep = check_arena((size_t)1 << 34);
    const json_t *zero =
        plan_of_hybrids(&keep, "gdn-a", "gdn-b", "fit: {states: zero}\ntiming: {}\n");
    const json_t *bilinear = plan_of_hybrids(&keep, "gdn-a", "gdn-b",
                                             "fit: {states: bilinear}\ntiming: {}\n");
    const json_t *listed = plan_of_hybrids(&keep, "gdn-a", "gdn-b",
                                           "fit: {states: [bilinear, bilinear, "
                                           "bilinear, bilinear, bilinear, copy]}\n");
    const json_t *replay =
        plan_of_hybrids(&keep, "mla", "kda", "fit: {states: replay}\ntiming: {}\n");
    const json_t *empty =
        plan_of_hybrids(&keep, "mla", "kda", "fit: {states: zero}\ntiming: {}\n");
    assert_true(of_kind(bilinear, "fit", "seconds") >
                2 * of_kind(zero, "fit", "seconds"));
    assert_true(of_kind(listed, "fit", "seconds") >
                2 * of_kind(zero, "fit", "seconds"));
    assert_true(of_kind(listed, "fit", "seconds") <
                of_kind(bilinear, "fit", "seconds"));
    assert_true(of_kind(replay, "fit", "seconds") > of_kind(empty, "fit", "seconds"));
    assert_true(of_kind(replay, "stats", "seconds") >
                of_kind(empty, "stats", "seconds"));
    assert_true(of_kind(replay, "timing", "seconds") >
                of_kind(empty, "timing", "seconds"));
    const json_t *all =
        plan_of_hybrids(&keep, "gdn-a", "gdn-b", "distill: {steps: 1, after: 16}\n");
    const json_t *few = plan_of_hybrids(&keep, "gdn-a", "gdn-b",
                                        "distill: {steps: 1, after: 16, lessons: 2}\n");
    const json_t *whole =
        plan_of_hybrids(&keep, "gdn-a", "gdn-b",
                        "distill: {steps: 1, after: 16, prefix: 0}\n"); /* all of it */
    assert_true(of_kind(all, "distill", "seconds") >
                2 * of_kind(few, "distill", "seconds"));
    check_near(of_kind(whole, "distill", "seconds"),
               of_kind(all, "distill", "seconds"));
    kvm_arena_free(&keep);
}

/* parameters that `kvmill run` makes with the plan's largest k, and a switch that takes
 * what the replay of six recurrent layers, or the correction of their states, does */
static void translators_of_hybrids_are_as_they_come_out(void **state)
{
    (void)state;
    kvm_arena keep = check_arena((size_t)1 << 34);
    const json_t *replay =
        plan_of_hybrids(&keep, "mla", "kda", "timing: {lengths: [2048]}\n");
    const json_t *empty = plan_of_hybrids(
        &keep, "mla", "kda", "fit: {states: zero}\ntiming: {lengths: [2048]}\n");
    const json_t *bilinear =
        plan_of_hybrids(&keep, "gdn-a", "gdn-b", "timing: {lengths: [1, 2048]}\n");
    const json_t *copy = plan_of_hybrids(
        &keep, "gdn-a", "gdn-b", "fit: {states: copy}\ntiming: {lengths: [1, 2048]}\n");
    const json_t *sizes = json_object_get(replay, "translator");
    check_near(
        number_of(replay, "translator", json_array_size(sizes) - 1, "parameters"),
        794592);
    check_near(number_of(bilinear, "translator", 0, "parameters"), 116480);
    assert_true(fit_flops(replay, 0) > 2 * fit_flops(empty, 0));
    assert_true(fit_flops(bilinear, 0) > 2 * fit_flops(copy, 0));
    assert_true(number_of(replay, "ttft", 0, "switch_s") >
                2 * number_of(empty, "ttft", 0, "switch_s"));
    /* six layers of 4 heads of 32 x 32, once a prompt, whatever its length */
    const double once = 6 * 4 * 2 * 32.0 * 32 * 64 / 1e9;
    for (size_t i = 0; i < 2; i++)
        assert_true(fabs(number_of(bilinear, "ttft", i, "switch_s") -
                         number_of(copy, "ttft", i, "switch_s") - once) < 1e-9);
    kvm_arena_free(&keep);
}

static void items_and_arms_count(void **state)
{
    (void)state;
    kvm_arena keep = check_arena((size_t)1 << 34);
    const json_t *few =
        plan_with(&keep, "evaluate: {suites: [prose, needle], items: 5, "
                         "attention_items: 0}\n");
    const json_t *more =
        plan_with(&keep, "mlp: {hidden: 16}\n"
                         "evaluate: {suites: [prose, needle], items: 20, "
                         "attention_items: 4, ablations: [k1]}\n");
    assert_true(of_kind(more, "evaluate", "seconds") >
                3 * of_kind(few, "evaluate", "seconds"));
    /* fit k1, evaluate k1, and the complete fit beside it: two arms instead of seven */
    assert_int_equal(of_kind(more, "ablation", "jobs"), 3);
    assert_true(of_kind(more, "ablation", "seconds") <
                of_kind(more, "evaluate", "seconds"));
    kvm_arena_free(&keep);
}

/* ---- of two configs ---- */

typedef struct shape { /* of rows of one kind: layers, entries of one */
    double layers, width;
} shape;
typedef struct published {
    const char *config;
    double parameters; /* as its publisher counts them, in 1e9 */
    shape k, v, latent, rotary, index;
    double state_bytes;
    double hidden, inputs; /* entries of all recurrent layers' inputs */
    double states;         /* parameters that correct all its states and windows */
} published;

enum { QWEN_4, QWEN_8, QWEN_14, QWEN_32, LLAMA_8, LLAMA_70, MINI_3, MINI_8, MINI_14 };
enum { KIMI_VL = MINI_14 + 1, KIMI_LINEAR, QWEN_27, FLASH_NEXT };
#define DENSE(n)                                                                       \
    {n, 1024},                                                                         \
    {                                                                                  \
        n, 1024                                                                        \
    }
static const published models[] = {
    [QWEN_4] = {"qwen3_4b", 4.02, DENSE(36)},
    [QWEN_8] = {"qwen3_8b", 8.19, DENSE(36)},
    [QWEN_14] = {"qwen3_14b", 14.77, DENSE(40)},
    [QWEN_32] = {"qwen3_32b", 32.76, DENSE(64)},
    [LLAMA_8] = {"llama31_8b", 8.03, DENSE(32)},
    [LLAMA_70] = {"llama31_70b", 70.55, DENSE(80)},
    [MINI_3] = {"ministral3_3b", 3.43, DENSE(26)},
    [MINI_8] = {"ministral3_8b", 8.49, DENSE(34)},
    [MINI_14] = {"ministral3_14b", 13.5, DENSE(40)},
    [KIMI_VL] = {"kimi_vl", 16, .latent = {27, 512}, .rotary = {27, 64}},
    [KIMI_LINEAR] = {"kimi_linear_48b", 48, .latent = {7, 512}, .rotary = {7, 64},
                     .state_bytes = 20 * (32 * 128 * 128 * 4 + 3 * 4096 * 4 * 2),
                     .hidden = 2304, .inputs = 20 * 2304},
    [QWEN_27] = {"qwen3_5_27b",
                 27,
                 {16, 1024},
                 {16, 1024},
                 .state_bytes = 48 * (48 * 128 * 128 * 4 + 10240 * 4 * 2),
                 .hidden = 5120,
                 .states = 48 * (48 * 2 * 128 * 128 + 10240 * 129)},
    /* the published count leaves its n-gram tables out: 320 M rows of 160 */
    [FLASH_NEXT] = {"qwen3_8_flash_next",
                    125 + 51.2,
                    {12, 512},
                    {12, 512},
                    .index = {12, 128},
                    .state_bytes = 36 * (48 * 128 * 128 * 4 + 10240 * 4 * 2) +
                                   4 * 2560 * 9 * 2 + 2 * 8,
                    .hidden = 2560,
                    .states = 36 * (48 * 2 * 128 * 128 + 10240 * 129)},
};

static double all(shape s)
{
    return s.layers * s.width;
}

static double row_width(const published *p)
{
    return all(p->k) + all(p->v) + all(p->latent) + all(p->rotary) + all(p->index);
}

/* content, and rotated where there is a position, in three splits of fp64 */
static double moments(const published *a, const published *b)
{
    return 24 * (2 * all(a->k) * all(b->k) + all(a->v) * all(b->v) +
                 all(a->latent) * all(b->latent) + 2 * all(a->rotary) * all(b->rotary) +
                 2 * all(a->index) * all(b->index));
}

static double maps(shape s, double out, double beside, double k)
{
    return s.layers > 0 ? out * (fmin(k, s.layers) * s.width + beside + 1) : 0;
}

/* Keys and values layer by layer; latents, with the shared key, and the inputs of
 * recurrent layers also from the token's embedding; an indexer's keys from its own
 * layer's keys and the embedding. States of one geometry are corrected. */
static double parameters(const published *s, const published *t, double k)
{
    const shape latent = {s->latent.layers, s->latent.width + s->rotary.width};
    const double token = t->latent.layers + t->index.layers > 0 ? t->hidden : 0;
    return maps(s->k, all(t->k), token, k) + maps(s->v, all(t->v), token, k) +
           maps(latent, all(t->latent) + all(t->rotary) + t->inputs, token, k) +
           all(t->index) * (t->k.width + token + 1) + (s->states > 0 ? t->states : 0);
}

static void check_sizes(const published *s, const published *t)
{
    kvm_arena keep = check_arena((size_t)1 << 38);
    kvm_err err = {0};
    kvm_compute *c;
    kvm_spec spec;
    json_t *plan;
    const kvm_machine_rates rates = {.flops = 1e12, .bytes = 1e11};
    const published *both[] = {s, t};
    check_write(DIR "/sizes.yaml",
                kvm_str_fmt(&keep,
                            "name: a-b\n"
                            "source: ../../../tests/golden/configs/%s.json\n"
                            "target: ../../../tests/golden/configs/%s.json\n"
                            "calibration: {text: calibration, sequences: 200, tokens: "
                            "1024, stride: 4, dtype: bf16}\n",
                            s->config, t->config));
    check_ok(kvm_compute_new(&c, &keep, kvm_backend_find(KVM_STR("cpu")), 1, &err),
             &err);
    check_ok(kvm_spec_read(&spec, &keep, KVM_STR(DIR "/sizes.yaml"), &err), &err);
    check_ok(kvm_plan_json(&plan, &spec, NULL, 0, 0, c, &rates, &keep, &err), &err);
    kvm_json_own(&keep, plan);
    for (size_t i = 0; i < 2; i++) {
        const double rows = 200 * 256;
        const double found = number_of(plan, "models", i, "parameters") / 1e9;
        if (fabs(found / both[i]->parameters - 1) > 0.04)
            fail_msg("%s: %.2f e9 parameters, published %.2f", both[i]->config, found,
                     both[i]->parameters);
        check_near(number_of(plan, "capture", i, "rows"), rows);
        check_near(number_of(plan, "capture", i, "bytes"),
                   rows * 2 * row_width(both[i]) + 200 * both[i]->state_bytes);
    }
    check_near(number_of(plan, "moments", 0, "gram_source_bytes"), moments(s, s) / 2);
    check_near(number_of(plan, "moments", 0, "gram_target_bytes"), moments(t, t) / 2);
    assert_true(fabs(number_of(plan, "moments", 0, "cross_bytes") - moments(s, t)) < 1);
    const json_t *sizes = json_object_get(plan, "translator");
    assert_true(json_array_size(sizes) > 0);
    for (size_t i = 0; i < json_array_size(sizes); i++) {
        const double k = number_of(plan, "translator", i, "k");
        check_near(number_of(plan, "translator", i, "parameters"), parameters(s, t, k));
        check_near(number_of(plan, "translator", i, "bytes_f32"),
                   4 * parameters(s, t, k));
    }
    kvm_arena_free(&keep);
}

/* the four pairs of the paper and the six of the article before it, from their
 * configs */
static void published_pairs(void **state)
{
    (void)state;
    static const int pairs[][2] = {
        {QWEN_4, QWEN_8},      {KIMI_VL, KIMI_LINEAR}, {QWEN_27, QWEN_27},
        {QWEN_27, FLASH_NEXT}, {QWEN_14, QWEN_32},     {QWEN_8, QWEN_32},
        {LLAMA_8, LLAMA_70},   {MINI_3, MINI_8},       {MINI_3, MINI_14},
        {MINI_8, MINI_14},
    };
    check_tmpdir("plan");
    for (size_t i = 0; i < COUNT(pairs); i++)
        check_sizes(&models[pairs[i][0]], &models[pairs[i][1]]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fit_of_both_directions),
        cmocka_unit_test(largest_k_bounds_the_sweep),
        cmocka_unit_test(rows_are_those_of_the_text),
        cmocka_unit_test(every_kind_of_job_has_a_figure),
        cmocka_unit_test(lengths_and_rounds_are_the_specs),
        cmocka_unit_test(hybrids_do_more_than_map),
        cmocka_unit_test(translators_of_hybrids_are_as_they_come_out),
        cmocka_unit_test(items_and_arms_count),
        cmocka_unit_test(published_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
