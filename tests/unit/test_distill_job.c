/* The job `distill` from its spec and lessons to its files: what prefix and decay do,
 * killed and gone on, stopped by a loss that is no number, and what it does not go on
 * from. */
#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "jobs/distill_checkpoint.h"
#include "jobs/open.h"
#include "kernels/backend.h"
#include "models/safetensors.h"
#include "tests/support/check.h"
#include "tests/support/host.h"

enum { STEPS = 4, VALIDATE = 2, TOKENS = 64, AFTER = 16 };

/* sequences of so many tokens, and keys of the section distill */
#define SPEC(tokens, distill)                                                          \
    "name: pair\nsource: ../../tests/zoo/small\ntarget: ../../tests/zoo/large\n"       \
    "calibration: {text: calibration, sequences: 24, tokens: " tokens "}\n"            \
    "fit: {allow_wide: true, k: 1, lambda: 0.01, sweep: false}\n"                      \
    "distill: {batch: 2, lessons: 4, after: 16, " distill "}\n"
#define TRAINED "steps: 4, validate: 2"
#define ONCE "steps: 1, validate: 1, warmup: 0, rate: 0.1"

static host h;
static ptrdiff_t node; /* of the distillation */
static kvm_str whole;  /* the translator of a job that nobody disturbed */
static kvm_str half;   /* the checkpoint of step 2 */

/* what the latest attempt left */
static kvm_str left(const char *name)
{
    return check_read(&h.keep,
                      kvm_str_fmt(&h.keep, "%s/%d/%s", h.dir.at, h.runs - 1, name).at);
}

static bool three_are_done(kvm_progress *p)
{
    return p->ctx != NULL;
}

static void look(kvm_progress *p, double done, double total, const char *unit,
                 double eta_s)
{
    (void)eta_s;
    static bool yes;
    if (total == STEPS && strstr(unit, "steps") && done == 3) p->ctx = &yes;
}

static kvm_str translator(void)
{
    return check_read(&h.keep, host_output(&h, node, "translator").at);
}

/* a whole distillation, and one that ends after its third step */
static int setup(void **state)
{
    *state = &h;
    kvm_err err = {0};
    kvm_progress p = {.show = look, .cancelled = three_are_done};
    host_open(&h, "distill_job", SPEC("64", TRAINED));
    node = host_node(&h, "distill pair");
    host_run_to(&h, node);
    whole = translator();
    kvm_progress_begin(&p, "distill");
    h.progress = &p;
    check_status(KVM_CANCELLED, host_run(&h, node, &err), &err);
    check_contains(err.msg, "after 3 of 4 steps");
    h.progress = NULL;
    half = left("distill.checkpoint");
    return 0;
}

static void a_killed_one_goes_on_bit_for_bit(void **state)
{
    (void)state;
    kvm_err err = {0};
    host_leave(&h, "distill.checkpoint", half);
    check_ok(host_run(&h, node, &err), &err);
    const kvm_str again = translator();
    assert_true(kvm_str_eq(again, whole));
    const json_t *curve = json_object_get(host_json(&h, node, "figures").v, "curve");
    assert_int_equal(json_array_size(curve), 1 + STEPS / VALIDATE);
}

/* what the last validation's checkpoint holds; (n) each */
typedef struct trained {
    const float *p, *m, *v, *best;
    ptrdiff_t n;
} trained;

/* the job as another spec has it planned, on the fit that is there */
static trained train_as(const char *spec)
{
    kvm_err err = {0};
    host other;
    kvm_st *st;
    host_open(&other, "distill_job_other", spec);
    json_t *const given = h.graph.nodes[node].params;
    h.graph.nodes[node].params =
        other.graph.nodes[host_node(&other, "distill pair")].params;
    const kvm_status s = host_run(&h, node, &err);
    h.graph.nodes[node].params = given;
    host_close(&other);
    check_ok(s, &err);
    check_ok(
        kvm_st_parse(&st, &h.keep, left("distill.checkpoint"), KVM_STR("left"), &err),
        &err);
    const kvm_tensor *p = &kvm_st_find(st, KVM_STR("p"))->t;
    return (trained){.p = p->data,
                     .m = kvm_st_find(st, KVM_STR("m"))->t.data,
                     .v = kvm_st_find(st, KVM_STR("v"))->t.data,
                     .best = kvm_st_find(st, KVM_STR("best"))->t.data,
                     .n = p->dim[0]};
}

static bool same(const float *a, const float *b, ptrdiff_t n)
{
    return memcmp(a, b, sizeof *a * (size_t)n) == 0;
}

/* Capped at 8 tokens, a lesson is what sequences of 8 + 16 tokens give; a cap that is
 * longer than they are changes nothing. */
static void a_capped_prefix_is_that_of_shorter_sequences(void **state)
{
    (void)state;
    const trained capped = train_as(SPEC("64", TRAINED ", prefix: 8"));
    const trained shorter = train_as(SPEC("24", TRAINED));
    const trained uncapped = train_as(SPEC("64", TRAINED ", prefix: 1000"));
    assert_true(kvm_str_eq(translator(), whole));
    assert_true(capped.n == shorter.n && capped.n == uncapped.n);
    assert_true(same(capped.p, shorter.p, capped.n));
    assert_false(same(capped.p, uncapped.p, capped.n));
}

/* AdamW's decay is rate * decay of each weight, beside Adam's step and not in its
 * moments. At a rate too high to gain anything the best weights are still those that
 * training began with. */
static void weights_decay_beside_the_gradient(void **state)
{
    (void)state;
    const double share = 0.1 * 0.5;
    const trained none = train_as(SPEC("64", ONCE));
    const trained some = train_as(SPEC("64", ONCE ", decay: 0.5"));
    const json_t *figures = host_json(&h, node, "figures").v;
    assert_int_equal(json_integer_value(json_object_get(figures, "best_step")), 0);
    assert_true(none.n == some.n && same(none.best, some.best, none.n));
    assert_true(same(none.m, some.m, none.n) && same(none.v, some.v, none.n));
    double most = 0;
    for (ptrdiff_t i = 0; i < none.n; i++) {
        const double began = (double)none.best[i];
        const double less = (double)none.p[i] - (double)some.p[i];
        if (!(fabs(less - share * began) < 1e-6 * (1 + fabs(began))))
            fail_msg("parameter %td of %g decays by %g, not %g", i, began, less,
                     share * began);
        most = fmax(most, fabs(began));
    }
    assert_true(share * most > 1e-3); /* which rounding alone would not be */
}

/* linear up over the warm-up, then a cosine towards a tenth */
static void the_rate_rises_and_falls(void **state)
{
    (void)state;
    kvm_err err = {0};
    static const struct {
        int warmup;
        double after[STEPS / VALIDATE]; /* of the full rate, in the step before */
    } runs[] = {{20, {2. / 20, 4. / 20}}, {1, {1, 0.55 - 0.45 / 2}}};
    json_t *params = h.graph.nodes[node].params;
    for (size_t i = 0; i < COUNT(runs); i++) {
        json_object_set_new(params, "warmup", json_integer(runs[i].warmup));
        check_ok(host_run(&h, node, &err), &err);
        const json_t *curve =
            json_object_get(host_json(&h, node, "figures").v, "curve");
        for (size_t k = 0; k < STEPS / VALIDATE; k++) {
            const json_t *point = json_array_get(curve, k + 1);
            const double rate = json_number_value(json_object_get(point, "rate"));
            assert_true(fabs(rate / 3e-4 - runs[i].after[k]) < 1e-9);
        }
    }
    json_object_del(params, "warmup");
}

/* `half` with weights whose rows overflow, as if training had run away */
static kvm_str run_away(void)
{
    kvm_err err = {0};
    kvm_compute *c;
    kvm_model *models[2];
    kvm_translator t;
    kvm_distill *d;
    kvm_st *st;
    kvm_arena *keep = &h.keep;
    const kvm_str path = kvm_str_fmt(keep, "%s/run_away", h.dir.at);
    static const char *const names[] = {"tests/zoo/small", "tests/zoo/large"};
    check_ok(kvm_compute_new(&c, keep, kvm_backend_find(KVM_STR("cpu")), 1, &err),
             &err);
    for (int i = 0; i < 2; i++)
        check_ok(kvm_model_open(&models[i], keep, c, kvm_str_of(names[i]),
                                &(kvm_model_options){0}, &err),
                 &err);
    const kvm_str closed = host_output(&h, host_node(&h, "fit pair"), "translator");
    check_ok(kvm_translator_open(&t, keep, closed, &err), &err);
    check_ok(kvm_distill_new(&d, keep, c, &t, models[0], models[1], TOKENS - AFTER,
                             AFTER, 0, &err),
             &err);
    check_ok(kvm_st_parse(&st, keep, half, KVM_STR("half"), &err), &err);
    const char *config = kvm_str_copy(keep, kvm_st_meta(st, KVM_STR("config"))).at;
    kvm_distill_progress at = {.curve = json_array()};
    assert_non_null(kvm_json_own(keep, at.curve));
    at.best = kvm_new(keep, float, kvm_distill_parameters(d));
    check_write(path.at, half);
    check_ok(kvm_distill_load(d, &at, config, STEPS, path, &err), &err);
    for (ptrdiff_t i = 0; i < kvm_distill_parameters(d); i++)
        kvm_distill_values(d)[i] = 1e38F;
    check_ok(kvm_distill_save(d, &at, config, path, &err), &err);
    return check_read(keep, path.at);
}

static void a_loss_that_is_no_number_leaves_the_checkpoint(void **state)
{
    (void)state;
    kvm_err err = {0};
    const kvm_str bad = run_away();
    host_leave(&h, "distill.checkpoint", bad);
    check_status(KVM_NAN, host_run(&h, node, &err), &err);
    check_contains(err.msg, "step 3, lesson ");
    check_contains(err.msg, "the checkpoint of the last validation stays");
    assert_true(kvm_str_eq(left("distill.checkpoint"), bad));
    err = (kvm_err){0};
    host_leave(&h, "distill.checkpoint", half);
    check_ok(host_run(&h, node, &err), &err);
    assert_true(kvm_str_eq(translator(), whole));
}

static char warned[2048];

static void keep_warning(void *ctx, kvm_log_level level, const char *line)
{
    (void)ctx;
    if (level == KVM_LOG_WARN) snprintf(warned, sizeof warned, "%s", line);
}

/* what lies there is not used, and a warning names it: the job begins anew */
static void run_anew(kvm_str checkpoint)
{
    kvm_err err = {0};
    warned[0] = 0;
    host_leave(&h, "distill.checkpoint", checkpoint);
    kvm_log_set(KVM_LOG_WARN, keep_warning, NULL);
    check_ok(host_run(&h, node, &err), &err);
    kvm_log_set(KVM_LOG_INFO, NULL, NULL);
    check_contains(warned, "event=training.anew");
    check_contains(warned, "/distill.checkpoint: ");
    assert_null(strstr(warned, "download"));
}

static void a_checkpoint_of_other_options_is_not_used(void **state)
{
    (void)state;
    json_t *params = h.graph.nodes[node].params;
    json_object_set_new(params, "rate", json_real(1e-3));
    run_anew(half);
    check_contains(warned, "/distill.checkpoint: a checkpoint of another distillation "
                           "(models, translator, lessons, options, backend or version "
                           "differ)");
    assert_false(kvm_str_eq(translator(), whole));
    json_object_del(params, "rate");
}

/* the format's name stands in the file's header, its length beside it stays */
static void a_checkpoint_of_another_version_is_not_used(void **state)
{
    (void)state;
    char *bytes = kvm_new(&h.keep, char, half.len);
    memcpy(bytes, half.at, (size_t)half.len);
    const ptrdiff_t at = kvm_str_find(half, KVM_STR("distill_checkpoint.v2"));
    assert_true(at > 0);
    bytes[at + 20] = '1';
    run_anew((kvm_str){bytes, half.len});
    check_contains(warned, "/distill.checkpoint: another version of kvmill began");
    check_contains(warned, "(its format is kvmill.distill_checkpoint.v1, here it ");
    assert_true(kvm_str_eq(translator(), whole));
}

static void a_damaged_checkpoint_is_not_used(void **state)
{
    (void)state;
    char *bytes = kvm_new(&h.keep, char, half.len);
    memcpy(bytes, half.at, (size_t)half.len);
    bytes[half.len - 5] ^= 4;
    run_anew((kvm_str){bytes, half.len});
    check_contains(warned, "a damaged checkpoint: ");
    check_contains(warned, "/distill.checkpoint: best is not what was written");
    assert_true(kvm_str_eq(translator(), whole));
    static const ptrdiff_t sizes[] = {0, 5, 300};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        run_anew(kvm_str_slice(half, 0, sizes[i]));
        check_contains(warned, "a damaged checkpoint: ");
        assert_true(kvm_str_eq(translator(), whole));
    }
}

static void config_on(const kvm_backend *b, char hex[65])
{
    kvm_err err = {0};
    kvm_compute *c;
    kvm_job j = {.params = {.v = h.graph.nodes[node].params}, .keep = &h.keep};
    check_ok(kvm_compute_new(&c, &h.keep, b, 1, &err), &err);
    check_ok(kvm_job_config(&j, KVM_JOB_DISTILL, c, hex, &err), &err);
}

/* backends that round make other numbers; exact ones go on with each other's */
static void a_config_knows_who_rounds(void **state)
{
    (void)state;
    char exact[65], hex[65];
    const kvm_backend *b;
    config_on(kvm_backend_find(KVM_STR("ref")), exact);
    for (int i = 0; (b = kvm_backend__at(i)); i++) {
        config_on(b, hex);
        assert_int_equal(strcmp(exact, hex) != 0, kvm_backend_rounds(b));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_one_goes_on_bit_for_bit),
        cmocka_unit_test(a_capped_prefix_is_that_of_shorter_sequences),
        cmocka_unit_test(weights_decay_beside_the_gradient),
        cmocka_unit_test(the_rate_rises_and_falls),
        cmocka_unit_test(a_loss_that_is_no_number_leaves_the_checkpoint),
        cmocka_unit_test(a_checkpoint_of_other_options_is_not_used),
        cmocka_unit_test(a_checkpoint_of_another_version_is_not_used),
        cmocka_unit_test(a_damaged_checkpoint_is_not_used),
        cmocka_unit_test(a_config_knows_who_rounds),
    };
    return cmocka_run_group_tests(tests, setup, host_teardown);
}
