/* Maps of what recurrent layers keep: planted ones found, unlike geometries refused. */
#include <math.h>
#include <string.h>

#include "tests/support/check.h"
#include "translators/states.h"

#define TMP "build/tmp/state_maps/"

/* two heads of (4,6), so windows mix blocks of gcd(4,6) = 2 channels */
enum {
    HEADS = 2,
    K = 4,
    V = 6,
    STATE = HEADS * K * V,
    CHANNELS = 28,
    COLUMNS = 3,
    WINDOW = CHANNELS * COLUMNS,
    BLOCK = 2,
    SEQUENCES = 600
};
static const kvm_row_shape state_shape[] = {{HEADS, K *V, K}},
                           window_shape[] = {{CHANNELS, COLUMNS, 0}};

static kvm_arena keep, scratch;
static kvm_compute *compute;

/* S' = A S B and w' = W w + b of a head and of a block */
typedef struct planted {
    double a[HEADS][K][K], b[HEADS][V][V];
    double w[CHANNELS / BLOCK][BLOCK][BLOCK], bias[CHANNELS];
} planted;
static planted plant;

static int setup(void **state)
{
    (void)state;
    kvm_err err = {0};
    check_tmpdir("state_maps");
    keep = check_arena((size_t)1 << 30);
    scratch = check_arena((size_t)1 << 28);
    check_ok(
        kvm_compute_new(&compute, &keep, kvm_backend_find(KVM_STR("cpu")), 2, &err),
        &err);
    kvm_rng rng = kvm_rng_seed(8, 1);
    double *x = (double *)&plant;
    for (size_t i = 0; i < sizeof plant / sizeof *x; i++)
        x[i] = 0.3 * kvm_rng_normal(&rng);
    /* near the identity, as between like models */
    for (int h = 0; h < HEADS; h++) {
        for (int i = 0; i < K * K; i++)
            plant.a[h][i / K][i % K] =
                0.2 * plant.a[h][i / K][i % K] + (i % (K + 1) == 0);
        for (int i = 0; i < V * V; i++)
            plant.b[h][i / V][i % V] =
                0.2 * plant.b[h][i / V][i % V] + (i % (V + 1) == 0);
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    kvm_arena_free(&scratch);
    return 0;
}

/* how captures are drawn: noise on the target's side; or nothing but zeros */
static struct {
    double noise;
    bool empty;
} drawn;

static void draw(ptrdiff_t sequence, float *state, float *window)
{
    kvm_rng rng = kvm_rng_seed((uint64_t)sequence, 2);
    const double size = !drawn.empty;
    for (int i = 0; i < STATE; i++) state[i] = (float)(size * kvm_rng_normal(&rng));
    for (int i = 0; i < WINDOW; i++) window[i] = (float)(size * kvm_rng_normal(&rng));
}

static void disturb(ptrdiff_t sequence, float *x, ptrdiff_t n)
{
    kvm_rng rng = kvm_rng_seed((uint64_t)sequence, 3);
    for (ptrdiff_t i = 0; i < n; i++)
        x[i] += (float)(drawn.noise * kvm_rng_normal(&rng));
}

static void image(const float *state, const float *window, float *to, float *to_window)
{
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < K; i++)
            for (int j = 0; j < V; j++) {
                double sum = 0;
                for (int k = 0; k < K; k++)
                    for (int v = 0; v < V; v++)
                        sum += plant.a[h][i][k] * (double)state[(h * K + k) * V + v] *
                               plant.b[h][v][j];
                to[(h * K + i) * V + j] = (float)sum;
            }
    for (int c = 0; c < CHANNELS; c++)
        for (int t = 0; t < COLUMNS; t++) {
            double sum = plant.bias[c];
            for (int i = 0; i < BLOCK; i++)
                sum += plant.w[c / BLOCK][c % BLOCK][i] *
                       (double)window[(c / BLOCK * BLOCK + i) * COLUMNS + t];
            to_window[c * COLUMNS + t] = (float)sum;
        }
}

/* states of `sequences` prompts; those of the target are the source's images */
static kvm_rows *capture(const char *path, ptrdiff_t sequences, bool target)
{
    kvm_err err = {0};
    kvm_rows_writer *w;
    kvm_rows *r;
    kvm_rows_info info = {.model = kvm_str_of(path),
                          .model_name = KVM_STR("made"),
                          .text = KVM_STR("made-up"),
                          .tokenizer = KVM_STR("none"),
                          .shapes = {.layers = 1},
                          .stride = 1,
                          .tokens = 3,
                          .rope = {.factor = 1}};
    info.shapes.of[KVM_SPACE_STATE] = state_shape;
    info.shapes.of[KVM_SPACE_WINDOW] = window_shape;
    check_ok(kvm_rows_create(&w, &keep, kvm_str_of(path), &info, &err), &err);
    for (ptrdiff_t s = 0; s < sequences; s++) {
        static const int32_t position[] = {0, 1, 2};
        float x[2][STATE], y[2][WINDOW];
        draw(s, x[0], y[0]);
        image(x[0], y[0], x[1], y[1]);
        disturb(s, x[1], STATE);
        disturb(s, y[1], WINDOW);
        check_ok(kvm_rows_put(w, KVM_SPACE_STATE, 0, 0, 1, x[target], &err), &err);
        check_ok(kvm_rows_put(w, KVM_SPACE_WINDOW, 0, 0, 1, y[target], &err), &err);
        /* as many rows as the prompt has: ranks of sequences are no row numbers */
        check_ok(kvm_rows_end_sequence(w, (int32_t)s, position, 1 + s % 3, &err), &err);
    }
    check_ok(kvm_rows_publish(w, NULL, &err), &err);
    check_ok(kvm_rows_open(&r, &keep, kvm_str_of(path), &err), &err);
    return r;
}

static void fit(kvm_state_map map, kvm_state_step *s, kvm_state_figures *f)
{
    kvm_err err = {0};
    const kvm_state_options o = {.seed = 1, .fraction = 0.2};
    check_ok(kvm_states_fit(compute, capture(TMP "source", SEQUENCES, false),
                            capture(TMP "target", SEQUENCES, true), map, 0, 0, &o, s, f,
                            &keep, scratch, &err),
             &err);
    assert_int_equal(s->map, map);
    assert_int_equal(f->sequences, 480);
}

/* on states that nothing was fitted on: largest difference of state and window */
static void apply(const kvm_state_step *s, float worst[2], bool to_source)
{
    kvm_err err = {0};
    float x[STATE], y[WINDOW], want[STATE], want_w[WINDOW], got[STATE], got_w[WINDOW];
    float temp[K * V];
    draw(1000, x, y);
    image(x, y, want, want_w);
    check_ok(kvm_states_apply(compute, s, state_shape[0], window_shape[0], x, y, got,
                              got_w, temp, &err),
             &err);
    worst[0] = worst[1] = 0;
    for (int i = 0; i < STATE; i++)
        worst[0] = fmaxf(worst[0], fabsf(got[i] - (to_source ? x[i] : want[i])));
    for (int i = 0; i < WINDOW; i++)
        worst[1] = fmaxf(worst[1], fabsf(got_w[i] - (to_source ? y[i] : want_w[i])));
}

static void a_planted_correction_is_found(void **state)
{
    (void)state;
    kvm_state_step s;
    kvm_state_figures f;
    float worst[2];
    fit(KVM_STATE_BILINEAR, &s, &f);
    apply(&s, worst, false);
    /* what the smallest penalty leaves */
    if (!(worst[0] < 2e-3F && worst[1] < 2e-3F))
        fail_msg("states differ by %g, windows by %g", (double)worst[0],
                 (double)worst[1]);
    assert_true(f.state.penalty == 1e-4 && f.window.penalty == 1e-4);
    assert_true(f.state.rounds >= 1);
    for (int i = 0; i < KVM_SPLITS; i++) {
        assert_true(f.state.r2[i] > 1 - 1e-6 && f.window.r2[i] > 1 - 1e-6);
        assert_true(f.state.r2_copy[i] < 0.98 && f.window.r2_copy[i] < 0.5);
    }
    assert_true(s.r2_held == f.state.r2[KVM_HELD]);
    assert_true(s.r2_window_held == f.window.r2[KVM_HELD]);
}

/* the penalty is chosen, not met: states that have nothing to do with each other, few
 * of them, are copied; with a little in common they are corrected as far as it goes */
static void noise_ends_in_a_copy(void **state)
{
    (void)state;
    kvm_err err = {0};
    for (int i = 0; i < 3; i++) {
        static const ptrdiff_t few[] = {20, 40, 60};
        kvm_state_step s;
        kvm_state_figures f;
        float worst[2];
        const kvm_state_options o = {.seed = 1, .fraction = 0.2};
        drawn.noise = 3;
        const kvm_rows *from = capture(TMP "noisy", few[i], false);
        const kvm_rows *to = capture(TMP "noisy.target", few[i], true);
        drawn.noise = 0;
        check_ok(kvm_states_fit(compute, from, to, KVM_STATE_BILINEAR, 0, 0, &o, &s, &f,
                                &keep, scratch, &err),
                 &err);
        assert_true(f.state.r2[KVM_CHOOSE] >= f.state.r2_copy[KVM_CHOOSE] - 1e-6);
        assert_true(f.window.r2[KVM_CHOOSE] >= f.window.r2_copy[KVM_CHOOSE] - 1e-6);
        if (isfinite(f.state.penalty)) continue;
        apply(&s, worst, true);
        assert_true(worst[0] == 0 && f.state.rounds == 0);
    }
}

/* layers that a text has not moved keep zeros: their correction is the identity */
static void empty_states_stay_finite(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_state_step s;
    kvm_state_figures f;
    float worst[2];
    const kvm_state_options o = {.seed = 1, .fraction = 0.2};
    drawn.empty = true;
    const kvm_rows *from = capture(TMP "empty", 20, false);
    const kvm_rows *to = capture(TMP "empty.target", 20, false);
    drawn.empty = false;
    check_ok(kvm_states_fit(compute, from, to, KVM_STATE_BILINEAR, 0, 0, &o, &s, &f,
                            &keep, scratch, &err),
             &err);
    apply(&s, worst, true);
    assert_true(worst[0] == 0 && worst[1] == 0);
    assert_true(isinf(f.state.penalty) && isnan(f.state.r2[KVM_HELD]));
}

static void zero_and_copy_do_as_they_say(void **state)
{
    (void)state;
    kvm_state_step s;
    kvm_state_figures f;
    float worst[2], x[STATE], y[WINDOW], got[STATE], got_w[WINDOW];
    fit(KVM_STATE_COPY, &s, &f);
    apply(&s, worst, true);
    assert_true(worst[0] == 0 && worst[1] == 0);
    for (int i = 0; i < KVM_SPLITS; i++) {
        assert_true(f.state.r2[i] == f.state.r2_copy[i]);
        assert_true(f.window.r2[i] == f.window.r2_copy[i]);
    }
    fit(KVM_STATE_ZERO, &s, &f);
    kvm_err err = {0};
    draw(7, x, y);
    check_ok(kvm_states_apply(compute, &s, state_shape[0], window_shape[0], NULL, NULL,
                              got, got_w, NULL, &err),
             &err);
    for (int i = 0; i < STATE; i++) assert_true(got[i] == 0);
    for (int i = 0; i < WINDOW; i++) assert_true(got_w[i] == 0);
    assert_true(f.state.r2[KVM_HELD] < 0.01); /* no better than the mean */
}

static void too_few_prompts_are_refused(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_state_step s;
    kvm_state_figures f;
    const kvm_state_options o = {.seed = 1, .fraction = 0.2};
    const kvm_rows *from = capture(TMP "few", 3, false),
                   *to = capture(TMP "few.target", 3, true);
    check_status(KVM_RANGE,
                 kvm_states_fit(compute, from, to, KVM_STATE_BILINEAR, 0, 0, &o, &s, &f,
                                &keep, scratch, &err),
                 &err);
    check_contains(err.msg, "1 sequence");
    err = (kvm_err){0};
    check_ok(kvm_states_fit(compute, from, to, KVM_STATE_COPY, 0, 0, &o, &s, &f, &keep,
                            scratch, &err),
             &err);
}

/* as many numbers are no reason to copy: axes and windows have to be alike too */
static void unlike_geometries_are_refused(void **state)
{
    (void)state;
    static const kvm_row_shape none[] = {{0}}, heads[] = {{4, K * V / 2, K}},
                               keys[] = {{HEADS, K * V, V}},
                               keyless[] = {{HEADS, K * V, 0}},
                               columns[] = {{CHANNELS, COLUMNS - 1, 0}};
    static const struct {
        const kvm_row_shape *state, *window;
        const char *word;
    } cases[] = {{heads, window_shape, "state"},   {keys, window_shape, "state"},
                 {none, window_shape, "state"},    {NULL, NULL, "state"},
                 {state_shape, columns, "window"}, {state_shape, NULL, "window"}};
    kvm_shapes target = {.layers = 1};
    target.of[KVM_SPACE_STATE] = state_shape;
    target.of[KVM_SPACE_WINDOW] = window_shape;
    kvm_err err = {0};
    check_ok(kvm_states_same(&target, 0, &target, 0, &err), &err);
    check_status(KVM_MISMATCH, kvm_states_same(&target, 1, &target, 0, &err), &err);
    for (size_t i = 0; i < COUNT(cases); i++) {
        kvm_shapes source = {.layers = 1};
        source.of[KVM_SPACE_STATE] = cases[i].state;
        source.of[KVM_SPACE_WINDOW] = cases[i].window;
        err = (kvm_err){0};
        check_status(KVM_MISMATCH, kvm_states_same(&source, 0, &target, 0, &err), &err);
        check_contains(err.msg, cases[i].word);
        check_contains(err.msg, "replay");
    }
    /* a capture may say so of both sides: there is no matrix to correct */
    target.of[KVM_SPACE_STATE] = keyless;
    err = (kvm_err){0};
    check_status(KVM_MISMATCH, kvm_states_same(&target, 0, &target, 0, &err), &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_planted_correction_is_found),
        cmocka_unit_test(noise_ends_in_a_copy),
        cmocka_unit_test(empty_states_stay_finite),
        cmocka_unit_test(zero_and_copy_do_as_they_say),
        cmocka_unit_test(too_few_prompts_are_refused),
        cmocka_unit_test(unlike_geometries_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
