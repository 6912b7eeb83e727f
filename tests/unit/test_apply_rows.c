/* One step on captured rows, of either side and of several spaces. */
#include <math.h>
#include <string.h>

#include "tests/support/check.h"
#include "translators/apply.h"

#define TMP "build/tmp/apply_rows/"

enum { SEQUENCES = 3, TOKENS = 5, ROWS = SEQUENCES * TOKENS };

static kvm_arena keep, scratch;
static kvm_compute *compute;
static kvm_rows *source, *target;

static float value(kvm_space s, ptrdiff_t layer, ptrdiff_t row, ptrdiff_t i)
{
    kvm_rng rng =
        kvm_rng_seed((uint64_t)((int)s * 10 + layer), (uint64_t)(row * 50 + i));
    return (float)kvm_rng_normal(&rng);
}

/* every row of the shapes, by value() */
static kvm_rows *capture(const char *path, const kvm_shapes *shapes)
{
    kvm_err err = {0};
    kvm_rows_writer *w;
    kvm_rows *r;
    const kvm_rows_info info = {.model = kvm_str_of(path),
                                .model_name = KVM_STR("made"),
                                .text = KVM_STR("made-up"),
                                .tokenizer = KVM_STR("none"),
                                .shapes = *shapes,
                                .stride = 1,
                                .tokens = TOKENS,
                                .rope = {.factor = 1}};
    static const int32_t position[] = {0, 1, 2, 3, 4};
    check_ok(kvm_rows_create(&w, &keep, kvm_str_of(path), &info, &err), &err);
    for (int q = 0; q < SEQUENCES; q++) {
        for (ptrdiff_t k = 0; k < KVM_SPACES * shapes->layers; k++) {
            const kvm_space s = (kvm_space)(k / shapes->layers);
            const ptrdiff_t l = k % shapes->layers, n = kvm_shapes_width(shapes, s, l);
            float rows[TOKENS * 16];
            if (n == 0 || kvm_space_derived(s)) continue;
            for (ptrdiff_t i = 0; i < TOKENS * n; i++)
                rows[i] = value(s, l, q * TOKENS + i / n, i % n);
            check_ok(kvm_rows_put(w, s, l, 0, TOKENS, rows, &err), &err);
        }
        check_ok(kvm_rows_end_sequence(w, q, position, TOKENS, &err), &err);
    }
    check_ok(kvm_rows_publish(w, NULL, &err), &err);
    check_ok(kvm_rows_open(&r, &keep, kvm_str_of(path), &err), &err);
    return r;
}

static int setup(void **state)
{
    (void)state;
    kvm_err err = {0};
    check_tmpdir("apply_rows");
    keep = check_arena((size_t)1 << 28);
    scratch = check_arena((size_t)1 << 28);
    check_ok(
        kvm_compute_new(&compute, &keep, kvm_backend_find(KVM_STR("cpu")), 2, &err),
        &err);
    static const kvm_row_shape k[] = {{2, 4, 0}, {1, 3, 0}},
                               v[] = {{2, 2, 0}, {1, 5, 0}}, latent[] = {{1, 5, 0}},
                               token[] = {{1, 3, 0}}, index[] = {{1, 2, 0}};
    const kvm_shapes from = kvm_shapes_kv(2, k, v);
    kvm_shapes to = {.layers = 1};
    to.of[KVM_SPACE_LATENT] = latent;
    to.of[KVM_SPACE_TOKEN] = token;
    to.of[KVM_SPACE_INDEX] = index;
    source = capture(TMP "source", &from);
    target = capture(TMP "target", &to);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    kvm_arena_free(&scratch);
    return 0;
}

/* latents from the token and keys and values of both layers, the second first; index
 * keys from the token and the latents */
static kvm_translator translator(void)
{
    static const int32_t order[] = {1, 0};
    static const ptrdiff_t inputs[] = {3 + 3 + 5 + 8 + 4, 3 + 5}, outputs[] = {5, 2};
    static const kvm_space out[] = {KVM_SPACE_LATENT, KVM_SPACE_INDEX};
    kvm_err err = {0};
    kvm_translator t = {.keys = KVM_KEYS_CONTENT, .token = KVM_TOKEN_GIVEN, .count = 2};
    kvm_step *s = kvm_new(&keep, kvm_step, 2);
    kvm_rng rng = kvm_rng_seed(5, 5);
    check_ok(kvm_side_of_rows(&t.source, &keep, source, &err), &err);
    check_ok(kvm_side_of_rows(&t.target, &keep, target, &err), &err);
    t.steps = s;
    for (int i = 0; i < 2; i++) {
        float *w = kvm_new(&keep, float, inputs[i] * outputs[i]);
        float *b = kvm_new(&keep, float, outputs[i]);
        for (ptrdiff_t e = 0; e < inputs[i] * outputs[i]; e++)
            w[e] = (float)kvm_rng_normal(&rng);
        for (ptrdiff_t e = 0; e < outputs[i]; e++) b[e] = (float)kvm_rng_normal(&rng);
        s[i] = (kvm_step){.map = KVM_MAP_RIDGE,
                          .sources = i ? 0 : 2,
                          .source = i ? NULL : order,
                          .inputs = inputs[i],
                          .outputs = outputs[i],
                          .groups = 1,
                          .weight = {kvm_view3(w, KVM_F32, 1, outputs[i], inputs[i])},
                          .bias = {b}};
        check_ok(kvm_mapping_find(&s[i].mapping, out[i], true, &t.source.shapes,
                                  &t.target.shapes, &err),
                 &err);
    }
    check_ok(kvm_translator_check(&t, &err), &err);
    return t;
}

/* what a step reads of one row, in the order of its inputs */
static ptrdiff_t inputs_of(int step, ptrdiff_t row, float *x)
{
    static const struct {
        kvm_space space;
        ptrdiff_t layer, width;
    } parts[2][5] = {{{KVM_SPACE_TOKEN, 0, 3},
                      {KVM_SPACE_K, 1, 3},
                      {KVM_SPACE_V, 1, 5},
                      {KVM_SPACE_K, 0, 8},
                      {KVM_SPACE_V, 0, 4}},
                     {{KVM_SPACE_TOKEN, 0, 3}, {KVM_SPACE_LATENT, 0, 5}}};
    ptrdiff_t n = 0;
    for (int p = 0; p < 5; p++)
        for (ptrdiff_t i = 0; i < parts[step][p].width; i++)
            x[n++] = value(parts[step][p].space, parts[step][p].layer, row, i);
    return n;
}

static void rows_of_both_sides(void **state)
{
    (void)state;
    static const ptrdiff_t index[] = {14, 0, 7, 8};
    const kvm_translator t = translator();
    for (int i = 0; i < 2; i++) {
        kvm_err err = {0};
        const kvm_step *s = &t.steps[i];
        float out[ROWS * 5], x[64];
        for (int all = 0; all < 2; all++) {
            const ptrdiff_t n = all ? ROWS : (ptrdiff_t)COUNT(index);
            check_ok(kvm_apply_rows(compute, &t, i, source, target, all ? NULL : index,
                                    n, out, scratch, &err),
                     &err);
            for (ptrdiff_t r = 0; r < n; r++) {
                assert_int_equal(inputs_of(i, all ? r : index[r], x), s->inputs);
                for (ptrdiff_t o = 0; o < s->outputs; o++) {
                    double y = (double)s->bias[0][o];
                    for (ptrdiff_t e = 0; e < s->inputs; e++)
                        y += (double)((const float *)s->weight[0]
                                          .data)[o * s->inputs + e] *
                             (double)x[e];
                    assert_true(fabs(y - (double)out[r * s->outputs + o]) < 1e-5);
                }
            }
        }
    }
}

static void captures_that_do_not_hold_them_are_refused(void **state)
{
    (void)state;
    const kvm_translator t = translator();
    float out[ROWS * 5];
    for (int i = 0; i < 2; i++) {
        kvm_err err = {0};
        check_status(
            KVM_USAGE,
            kvm_apply_rows(compute, &t, i, source, NULL, NULL, 1, out, scratch, &err),
            &err);
        check_contains(err.msg, "token");
        err = (kvm_err){0};
        check_status(
            KVM_MISMATCH,
            kvm_apply_rows(compute, &t, i, target, source, NULL, 1, out, scratch, &err),
            &err);
    }
    kvm_err err = {0};
    check_status(
        KVM_RANGE,
        kvm_apply_rows(compute, &t, 2, source, target, NULL, 1, out, scratch, &err),
        &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_both_sides),
        cmocka_unit_test(captures_that_do_not_hold_them_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
