/* The MLP map: gradients, learning, resume to the bit, the folded step. */
#include "translators/mlp.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "tests/support/captures.h"
#include "tests/support/check.h"
#include "translators/adam.h"
#include "translators/apply.h"
#include "translators/mlp_internal.h"

#define TMP "build/tmp/mlp/"

static kvm_arena keep, scratch;
static kvm_compute *compute;
static kvm_rows *source, *target;

enum { HEADS = 2, DIM = 4, WIDTH = HEADS * DIM };

/* target values: sizes of source entries, which no linear map finds */
static void crossed(void *ctx, int32_t s, ptrdiff_t t, float *row)
{
    const bool image = *(const bool *)ctx;
    kvm_rng rng = kvm_rng_seed((uint64_t)s * 1000 + (uint64_t)t, 1);
    float x[4 * WIDTH];
    for (int i = 0; i < 4 * WIDTH; i++) x[i] = (float)kvm_rng_normal(&rng);
    for (int i = 0; i < 2 * WIDTH; i++)
        row[i] = image ? 3 + 2 * fabsf(x[i]) - fabsf(x[i ^ 1]) : x[i];
}

static int setup(void **state)
{
    (void)state;
    kvm_err err = {0};
    static bool from = false, to = true;
    check_tmpdir("mlp");
    keep = check_arena((size_t)1 << 30);
    scratch = check_arena((size_t)1 << 30);
    check_ok(
        kvm_compute_new(&compute, &keep, kvm_backend_find(KVM_STR("cpu")), 2, &err),
        &err);
    made m = {.name = "from",
              .layers = 1,
              .heads = HEADS,
              .k_dim = DIM,
              .v_dim = DIM,
              .sequences = 25,
              .tokens = 40,
              .row = crossed,
              .ctx = &from};
    made_capture(&m, TMP "source");
    m.name = "to";
    m.ctx = &to;
    made_capture(&m, TMP "target");
    check_ok(kvm_rows_open(&source, &keep, KVM_STR(TMP "source"), &err), &err);
    check_ok(kvm_rows_open(&target, &keep, KVM_STR(TMP "target"), &err), &err);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    kvm_arena_free(&scratch);
    return 0;
}

/* L = mean (y - t)^2 in f64, written out */
static double loss_of(const kvm_net *n, const float *p, const float *x, const float *t,
                      ptrdiff_t rows)
{
    double sum = 0;
    for (ptrdiff_t r = 0; r < rows; r++) {
        double in[16] = {0}, out[16] = {0};
        for (ptrdiff_t i = 0; i < n->inputs; i++) in[i] = (double)x[r * n->inputs + i];
        for (int layer = 0; layer < 3; layer++) {
            const kvm_net_part q = kvm_net__part(n, layer);
            for (ptrdiff_t o = 0; o < q.out; o++) {
                out[o] = (double)p[q.bias + o];
                for (ptrdiff_t i = 0; i < q.in; i++)
                    out[o] += (double)p[q.weight + o * q.in + i] * in[i];
                if (layer < 2 && out[o] < 0) out[o] = 0;
            }
            memcpy(in, out, sizeof in);
        }
        for (ptrdiff_t o = 0; o < n->outputs; o++) {
            const double d = out[o] - (double)t[r * n->outputs + o];
            sum += d * d / (double)(rows * n->outputs);
        }
    }
    return sum;
}

static void gradients_are_finite_differences(void **state)
{
    (void)state;
    enum { N = 70, I = 5, W = 9, O = 3, SIZE = W * I + W + W * W + W + O * W + O };
    const kvm_net net = {I, W, O};
    assert_int_equal(kvm_net__size(&net), SIZE);
    float p[SIZE], grad[SIZE], x[N * I], t[N * O], h0[N * W], h1[N * W], back[N * W],
        y[N * O];
    kvm_rng rng = kvm_rng_seed(3, 0);
    kvm_net__init(&net, p, 1, 0);
    for (int i = 0; i < N * I; i++) x[i] = (float)kvm_rng_normal(&rng);
    for (int i = 0; i < N * O; i++) t[i] = (float)kvm_rng_normal(&rng);
    kvm_net_room room = {{h0, h1}, back, y};
    kvm_err err = {0};
    double loss;
    check_ok(kvm_net__forward(compute, &net, p, x, N, &room, &err), &err);
    check_ok(kvm_net__backward(compute, &net, p, x, t, O, N, &room, grad, &loss, &err),
             &err);
    assert_true(fabs(loss - loss_of(&net, p, x, t, N)) < 1e-6);
    for (int i = 0; i < SIZE; i++) {
        const float was = p[i], step = 1e-3F;
        p[i] = was + step;
        const double above = loss_of(&net, p, x, t, N);
        p[i] = was - step;
        const double below = loss_of(&net, p, x, t, N);
        p[i] = was;
        /* a kink between the two points moves a difference by up to its own size */
        assert_true(fabs((above - below) / (2 * (double)step) - (double)grad[i]) <
                    2e-3);
    }
}

static void adam_follows_its_equations(void **state)
{
    (void)state;
    /* as it is, and with gradients scaled and weights that decay */
    static const double by[] = {1, 0.25}, decay[] = {0, 0.5};
    for (int k = 0; k < 2; k++) {
        float p = 1, m = 0, v = 0;
        double pp = 1, mm = 0, vv = 0;
        for (int t = 1; t <= 5; t++) {
            const float g = (float)t - 2.5F;
            const double s = (double)g * by[k];
            kvm_adam_step(compute, &p, &m, &v, &g, 1, by[k], 0.01, decay[k], t);
            mm = 0.9 * mm + 0.1 * s;
            vv = 0.999 * vv + 0.001 * s * s;
            pp -= 0.01 * decay[k] * pp + 0.01 * (mm / (1 - pow(0.9, t))) /
                                             (sqrt(vv / (1 - pow(0.999, t))) + 1e-8);
            assert_true(fabs((double)p - pp) < 1e-5);
        }
    }
}

static const int32_t layers[] = {0};
static const kvm_mapping keys = {
    .out = KVM_SPACE_K, .side = KVM_SOURCE, .from = {KVM_SPACE_K, KVM_SPACE_K}};
static const kvm_mapping values = {
    .out = KVM_SPACE_V, .side = KVM_SOURCE, .from = {KVM_SPACE_V, KVM_SPACE_V}};

static kvm_mlp_options options(bool per_head)
{
    return (kvm_mlp_options){.hidden = 32,
                             .epochs = 30,
                             .batch = 96,
                             .rate = 3e-3,
                             .per_head = per_head,
                             .seed = 1,
                             .split_seed = 2};
}

static void it_learns_and_its_step_says_the_same(void **state)
{
    (void)state;
    for (int per_head = 0; per_head < 2; per_head++) {
        kvm_err err = {0};
        kvm_mlp_options o = options(per_head);
        kvm_step steps[2];
        kvm_mlp_figures f;
        check_ok(kvm_mlp_train(compute, source, target, &values, layers, 1, 0, &o,
                               &steps[1], &f, &keep, scratch, &err),
                 &err);
        assert_true(f.complete && f.epochs == 30 && f.steps == 270);
        if (!(f.r2_held > 0.6)) fail_msg("held %g fit %g", f.r2_held, f.r2_fit);
        assert_int_equal(steps[1].groups, per_head ? HEADS : 1);
        /* the folded step on raw rows gives the held-out R2 that training reported */
        kvm_translator t = {.steps = steps, .count = 2, .keys = KVM_KEYS_CONTENT};
        check_ok(kvm_side_of_rows(&t.source, &keep, source, &err), &err);
        check_ok(kvm_side_of_rows(&t.target, &keep, target, &err), &err);
        ptrdiff_t *index, n;
        check_ok(kvm_rows_split(source, 2, 0.2, KVM_HELD, &keep, &index, &n, &err),
                 &err);
        float *y = kvm_new(&keep, float, n *WIDTH),
              *z = kvm_new(&keep, float, n *WIDTH);
        check_ok(
            kvm_apply_rows(compute, &t, 1, source, NULL, index, n, y, scratch, &err),
            &err);
        check_ok(kvm_rows_read(compute, target, KVM_SPACE_V, 0, 1, 0, index, n, z,
                               WIDTH, &err),
                 &err);
        double r2 = 0;
        for (int h = 0; h < HEADS; h++) {
            double error = 0, total = 0;
            for (int i = h * DIM; i < (h + 1) * DIM; i++) {
                double mean = 0;
                for (ptrdiff_t r = 0; r < n; r++) mean += (double)z[r * WIDTH + i];
                mean /= (double)n;
                for (ptrdiff_t r = 0; r < n; r++) {
                    const double d =
                        (double)z[r * WIDTH + i] - (double)y[r * WIDTH + i];
                    const double e = (double)z[r * WIDTH + i] - mean;
                    error += d * d;
                    total += e * e;
                }
            }
            r2 += (1 - error / total) / HEADS;
        }
        assert_true(fabs(r2 - f.r2_held) < 1e-5);
    }
}

static void a_resumed_run_ends_in_the_same_bits(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_mlp_options o = options(true);
    kvm_step whole, resumed;
    kvm_mlp_figures f;
    o.epochs = 5;
    check_ok(kvm_mlp_train(compute, source, target, &values, layers, 1, 0, &o, &whole,
                           &f, &keep, scratch, &err),
             &err);
    o.checkpoint = KVM_STR(TMP "checkpoint");
    o.stop_after = 2;
    check_ok(kvm_mlp_train(compute, source, target, &values, layers, 1, 0, &o, &resumed,
                           &f, &keep, scratch, &err),
             &err);
    assert_true(!f.complete && f.epochs == 2);
    o.stop_after = 0;
    check_ok(kvm_mlp_train(compute, source, target, &values, layers, 1, 0, &o, &resumed,
                           &f, &keep, scratch, &err),
             &err);
    assert_true(f.complete && f.epochs == 5);
    for (int p = 0; p < 3; p++) {
        const size_t n = (size_t)kvm_tensor_count(&whole.weight[p]);
        assert_memory_equal(whole.weight[p].data, resumed.weight[p].data,
                            n * sizeof(float));
    }
}

/* ---- checkpoints that are not to be gone on from ---- */

/* a training that may go on for `epochs` from what lies at checkpoint */
static kvm_status go_on(ptrdiff_t epochs, const char *identity, kvm_str checkpoint,
                        kvm_err *err)
{
    kvm_mlp_options o = options(false);
    kvm_step s;
    kvm_mlp_figures f;
    o.epochs = epochs;
    o.stop_after = 2;
    o.identity = identity;
    o.checkpoint = checkpoint;
    return kvm_mlp_train(compute, source, target, &values, layers, 1, 0, &o, &s, &f,
                         &keep, scratch, err);
}

static char warned[2048];

static void keep_warning(void *ctx, kvm_log_level level, const char *line)
{
    (void)ctx;
    if (level == KVM_LOG_WARN) snprintf(warned, sizeof warned, "%s", line);
}

/* what lies there is not used: the training ends where one without it does */
static void check_anew(ptrdiff_t epochs, const char *identity, kvm_str path)
{
    kvm_err err = {0};
    remove(TMP "fresh");
    check_ok(go_on(epochs, identity, KVM_STR(TMP "fresh"), &err), &err);
    warned[0] = 0;
    kvm_log_set(KVM_LOG_WARN, keep_warning, NULL);
    check_ok(go_on(epochs, identity, path, &err), &err);
    kvm_log_set(KVM_LOG_INFO, NULL, NULL);
    assert_true(kvm_str_eq(check_read(&keep, path.at), check_read(&keep, TMP "fresh")));
    check_contains(warned, "event=training.anew");
    check_contains(warned, path.at);
    assert_null(strstr(warned, "download"));
}

static void check_flipped(char *bytes, ptrdiff_t n, ptrdiff_t place, const char *named)
{
    bytes[place] ^= 1;
    check_write(TMP "flipped", (kvm_str){bytes, n});
    check_anew(4, "a", KVM_STR(TMP "flipped"));
    check_contains(warned, named);
    check_contains(warned, "a damaged checkpoint: " TMP "flipped");
    bytes[place] ^= 1;
}

/* Wherever a bit turns, it is found; in an array or in metadata, which one is said. */
static void a_flipped_bit_is_found_and_named(void **state)
{
    (void)state;
    static const char *const named[] = {"p is not", "m is not", "v is not"};
    kvm_err err = {0};
    check_ok(go_on(4, "a", KVM_STR(TMP "whole"), &err), &err);
    const kvm_str whole = check_read(&keep, TMP "whole");
    char *bytes = kvm_new(&keep, char, whole.len);
    memcpy(bytes, whole.at, (size_t)whole.len);
    const kvm_net net = {WIDTH, 32, WIDTH};
    const ptrdiff_t array = kvm_net__size(&net) * (ptrdiff_t)sizeof(float);
    const ptrdiff_t data = whole.len - 3 * array;
    for (int i = 0; i < 3; i++)
        check_flipped(bytes, whole.len, data + i * array + array / 3, named[i]);
    check_flipped(bytes, whole.len, kvm_str_find(whole, KVM_STR("\"loss\"")) + 10,
                  "metadata is not");
    for (ptrdiff_t i = 0; i < data; i += 41)
        check_flipped(bytes, whole.len, i, TMP "flipped");
}

static void a_cut_checkpoint_is_not_used(void **state)
{
    (void)state;
    kvm_err err = {0};
    check_ok(go_on(4, "a", KVM_STR(TMP "uncut"), &err), &err);
    const kvm_str whole = check_read(&keep, TMP "uncut");
    const ptrdiff_t sizes[] = {0, 7, 100, whole.len / 2, whole.len - 1};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        check_write(TMP "cut", kvm_str_slice(whole, 0, sizes[i]));
        check_anew(4, "a", KVM_STR(TMP "cut"));
        check_contains(warned, "a damaged checkpoint: ");
    }
}

static void a_checkpoint_of_another_training_is_not_used(void **state)
{
    (void)state;
    kvm_err err = {0};
    const kvm_str path = KVM_STR(TMP "others");
    check_ok(go_on(4, "a", path, &err), &err);
    check_anew(4, "b", path);
    check_contains(warned, "another run");
    check_anew(1, "b", path);
    check_contains(warned, "`epochs` is '2', expected a whole number from 0 to 1");
}

static void bad_options_and_divergence_are_reported(void **state)
{
    (void)state;
    kvm_step s;
    kvm_mlp_figures f;
    kvm_mlp_options o = options(false);
    kvm_err err = {0};
    o.batch = 100000;
    check_status(KVM_USAGE,
                 kvm_mlp_train(compute, source, target, &keys, layers, 1, 0, &o, &s, &f,
                               &keep, scratch, &err),
                 &err);
    o = options(false);
    err = (kvm_err){0};
    check_status(KVM_RANGE,
                 kvm_mlp_train(compute, source, target, &keys, layers, 1, 3, &o, &s, &f,
                               &keep, scratch, &err),
                 &err);
    o.rate = 1e30;
    err = (kvm_err){0};
    check_status(KVM_NAN,
                 kvm_mlp_train(compute, source, target, &keys, layers, 1, 0, &o, &s, &f,
                               &keep, scratch, &err),
                 &err);
    check_contains(err.msg, "lower the rate");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_finite_differences),
        cmocka_unit_test(adam_follows_its_equations),
        cmocka_unit_test(it_learns_and_its_step_says_the_same),
        cmocka_unit_test(a_resumed_run_ends_in_the_same_bits),
        cmocka_unit_test(a_flipped_bit_is_found_and_named),
        cmocka_unit_test(a_checkpoint_of_another_training_is_not_used),
        cmocka_unit_test(a_cut_checkpoint_is_not_used),
        cmocka_unit_test(bad_options_and_divergence_are_reported),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
