/* Ridge maps and layer selection: what must hold whatever the numbers. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/captures.h"
#include "tests/support/check.h"
#include "translators/select.h"

#define TMP "build/tmp/ridge/"

enum { LAYERS = 3, HEADS = 2, DIM = 4, WIDTH = HEADS * DIM, ROW = 2 * LAYERS * WIDTH };

static kvm_arena keep, scratch;
static kvm_compute *compute;

static int setup(void **state)
{
    (void)state;
    kvm_err err = {0};
    check_tmpdir("ridge");
    keep = check_arena((size_t)8 << 30);
    scratch = check_arena((size_t)1 << 30);
    check_ok(
        kvm_compute_new(&compute, &keep, kvm_backend_find(KVM_STR("cpu")), 2, &err),
        &err);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    kvm_arena_free(&scratch);
    return 0;
}

/* Source rows are eighths that come with their negatives, so every mean is 0; the
 * target is an exact linear image with dyadic weights plus a dyadic bias. Nothing is
 * ever rounded. */
typedef struct planted {
    double weight[ROW][ROW]; /* of target entry o from source entry i */
    double bias[ROW];
    bool target;
} planted;

static double eighth(int32_t s, ptrdiff_t t, ptrdiff_t i)
{
    kvm_rng rng = kvm_rng_seed((uint64_t)s * 1000 + (uint64_t)t / 2, (uint64_t)i);
    const double v = (double)kvm_rng_below(&rng, 33) / 8 - 2;
    return t % 2 ? -v : v;
}

static void planted_row(void *ctx, int32_t s, ptrdiff_t t, float *row)
{
    const planted *p = ctx;
    double x[ROW];
    for (ptrdiff_t i = 0; i < ROW; i++) x[i] = eighth(s, t, i);
    for (ptrdiff_t o = 0; o < ROW; o++) {
        double y = p->target ? p->bias[o] : x[o];
        for (ptrdiff_t i = 0; p->target && i < ROW; i++) y += x[i] * p->weight[i][o];
        row[o] = (float)y;
    }
}

static kvm_moments *moments_of(made a, made b, double fraction)
{
    kvm_err err = {0};
    kvm_rows *ra, *rb;
    kvm_moments *m;
    const kvm_moments_options o = {
        .seed = 4, .fraction = fraction, .hash_a = "a", .hash_b = "b"};
    made_capture(&a, TMP "a.capture");
    made_capture(&b, TMP "b.capture");
    check_ok(kvm_rows_open(&ra, &keep, KVM_STR(TMP "a.capture"), &err), &err);
    check_ok(kvm_rows_open(&rb, &keep, KVM_STR(TMP "b.capture"), &err), &err);
    check_ok(kvm_moments_gram(compute, ra, &o, KVM_STR(TMP "gram"), NULL, &err), &err);
    check_ok(kvm_moments_cross(compute, ra, rb, &o, KVM_STR(TMP "cross"), NULL, &err),
             &err);
    check_ok(kvm_moments_open(&m, &keep, KVM_STR(TMP "gram"), KVM_STR(TMP "cross"),
                              (kvm_str){0}, &err),
             &err);
    return m;
}

static made model(const char *name, ptrdiff_t sequences, ptrdiff_t tokens)
{
    return (made){.name = name,
                  .layers = LAYERS,
                  .heads = HEADS,
                  .k_dim = DIM,
                  .v_dim = DIM,
                  .sequences = sequences,
                  .tokens = tokens};
}

static const int32_t all[] = {0, 1, 2};

static kvm_features layers_of(kvm_space s, const int32_t *layers, ptrdiff_t count)
{
    return made_features(&keep, s, layers, count, -1);
}

/* target K of layer l = mix of source K of layers l and l+1; V of V likewise */
static void plant(planted *p)
{
    kvm_rng rng = kvm_rng_seed(11, 0);
    for (ptrdiff_t l = 0; l < LAYERS; l++)
        for (ptrdiff_t o = 0; o < 2; o++)
            for (ptrdiff_t from = l; from < l + 2; from++)
                for (ptrdiff_t i = 0; i < WIDTH; i++)
                    for (ptrdiff_t j = 0; j < WIDTH; j++)
                        p->weight[(from % LAYERS * 2 + o) * WIDTH + i]
                                 [(l * 2 + o) * WIDTH + j] =
                            (double)kvm_rng_below(&rng, 9) / 4 - 1;
    for (ptrdiff_t o = 0; o < ROW; o++) p->bias[o] = (double)(o % 7) - 3;
    p->target = true;
}

static void an_exact_linear_relation_is_recovered(void **state)
{
    (void)state;
    static planted from, to;
    plant(&to);
    made a = model("source", 20, 30), b = model("target", 20, 30);
    a.row = b.row = planted_row;
    a.ctx = &from;
    b.ctx = &to;
    const kvm_moments *m = moments_of(a, b, 0.2);
    for (ptrdiff_t l = 0; l < LAYERS; l++)
        for (int o = 0; o < 2; o++) {
            kvm_err err = {0};
            kvm_ridge_map map;
            kvm_ridge_figures g;
            check_ok(
                kvm_ridge_fit(compute, m,
                              layers_of(o ? KVM_SPACE_V : KVM_SPACE_K, all, LAYERS),
                              (kvm_output){o ? KVM_SPACE_V : KVM_SPACE_K, l}, -1,
                              &(kvm_ridge_options){0}, &map, &g, &keep, scratch, &err),
                &err);
            for (ptrdiff_t i = 0; i < map.inputs; i++)
                for (ptrdiff_t j = 0; j < WIDTH; j++) {
                    const ptrdiff_t x = (i / WIDTH * 2 + o) * WIDTH + i % WIDTH;
                    const double want = to.weight[x][(l * 2 + o) * WIDTH + j];
                    assert_true(fabs(map.weight[i * WIDTH + j] - want) < 1e-9);
                }
            for (ptrdiff_t j = 0; j < WIDTH; j++)
                assert_true(fabs(map.bias[j] - to.bias[(l * 2 + o) * WIDTH + j]) <
                            1e-9);
            assert_true(g.r2[KVM_FIT] > 1 - 1e-9 && g.r2[KVM_HELD] > 1 - 1e-9);
            assert_true(g.jitter == 0 && g.dropped == 0);
        }
}

static void noise_fits_in_sample_only(void **state)
{
    (void)state;
    /* 30 fit rows for 24 features */
    const kvm_moments *m =
        moments_of(model("noise-a", 8, 5), model("noise-b", 8, 5), 0.25);
    kvm_err err = {0};
    kvm_ridge_map map;
    kvm_ridge_figures g;
    kvm_ridge_options o = {.lambda = {1e-6, false}};
    assert_int_equal(kvm_moments_rows(m, KVM_FIT), 30);
    check_ok(kvm_ridge_fit(compute, m, layers_of(KVM_SPACE_K, all, 3),
                           (kvm_output){KVM_SPACE_K, 0}, -1, &o, &map, &g, &keep,
                           scratch, &err),
             &err);
    assert_true(g.r2[KVM_FIT] > 0.6); /* features / rows = .8 */
    assert_true(g.r2[KVM_HELD] < -0.5);
}

static void no_more_rows_than_features_is_refused(void **state)
{
    (void)state;
    /* 20 fit rows for 24 features */
    const kvm_moments *m = moments_of(model("few-a", 6, 5), model("few-b", 6, 5), 0.34);
    kvm_err err = {0};
    kvm_ridge_map map;
    kvm_ridge_figures g, sweep[2];
    kvm_ridge_options o = {.lambda = {1e-3, false}};
    assert_int_equal(kvm_moments_rows(m, KVM_FIT), 20);
    check_status(KVM_RANGE,
                 kvm_ridge_fit(compute, m, layers_of(KVM_SPACE_V, all, 3),
                               (kvm_output){KVM_SPACE_V, 1}, -1, &o, &map, &g, &keep,
                               scratch, &err),
                 &err);
    check_contains(err.msg, "20 rows for 24 features");
    o.allow_wide = true;
    err = (kvm_err){0};
    check_ok(kvm_ridge_fit(compute, m, layers_of(KVM_SPACE_V, all, 3),
                           (kvm_output){KVM_SPACE_V, 1}, -1, &o, &map, &g, &keep,
                           scratch, &err),
             &err);
    const ptrdiff_t ks[] = {2, 3};
    check_ok(kvm_ridge_sweep(compute, m, layers_of(KVM_SPACE_V, all, 3),
                             (kvm_output){KVM_SPACE_V, 1}, ks, 2, &o.lambda, 1, false,
                             sweep, scratch, &err),
             &err);
    assert_true(!sweep[0].refused && sweep[1].refused);
    const kvm_mapping keys = kvm_mapping_same(KVM_SPACE_K);
    kvm_r2_map maps;
    check_ok(kvm_select_maps(compute, m, &keys, &(kvm_map_options){0}, &maps, &keep,
                             scratch, &err),
             &err);
}

static void a_negative_lambda_is_refused(void **state)
{
    (void)state;
    const kvm_moments *m = moments_of(model("l-a", 8, 8), model("l-b", 8, 8), 0.25);
    const double bad[] = {-1e-9, NAN, INFINITY};
    for (size_t i = 0; i < COUNT(bad); i++) {
        kvm_err err = {0};
        kvm_ridge_map map;
        kvm_ridge_figures g;
        check_status(KVM_USAGE,
                     kvm_ridge_fit(compute, m, layers_of(KVM_SPACE_K, all, 1),
                                   (kvm_output){KVM_SPACE_K, 0}, -1,
                                   &(kvm_ridge_options){.lambda = {bad[i], false}},
                                   &map, &g, &keep, scratch, &err),
                     &err);
    }
}

/* one factorisation for all prefixes gives what separate fits give */
static void a_sweep_is_its_fits(void **state)
{
    (void)state;
    const kvm_moments *m = moments_of(model("s-a", 12, 16), model("s-b", 12, 16), 0.25);
    const int32_t order[] = {2, 0, 1};
    const ptrdiff_t ks[] = {1, 2, 3};
    kvm_ridge_figures sweep[3 * KVM_LAMBDAS];
    kvm_err err = {0};
    check_ok(kvm_ridge_sweep(compute, m, layers_of(KVM_SPACE_K_ROTATED, order, 3),
                             (kvm_output){KVM_SPACE_K_ROTATED, 1}, ks, 3,
                             kvm_lambda_grid, KVM_LAMBDAS, false, sweep, scratch, &err),
             &err);
    for (int k = 0; k < 3; k++)
        for (int l = 0; l < KVM_LAMBDAS; l++) {
            kvm_ridge_map map;
            kvm_ridge_figures g;
            check_ok(kvm_ridge_fit(compute, m,
                                   layers_of(KVM_SPACE_K_ROTATED, order, ks[k]),
                                   (kvm_output){KVM_SPACE_K_ROTATED, 1}, -1,
                                   &(kvm_ridge_options){.lambda = kvm_lambda_grid[l]},
                                   &map, &g, &keep, scratch, &err),
                     &err);
            const kvm_ridge_figures *s = &sweep[k * KVM_LAMBDAS + l];
            for (int p = 0; p < KVM_HELD; p++)
                assert_true(fabs(s->r2[p] - g.r2[p]) < 1e-10);
            assert_true(isnan(s->r2[KVM_HELD]) && isfinite(g.r2[KVM_HELD]));
            assert_true(fabs(s->weight_norm - g.weight_norm) < 1e-10);
            assert_int_equal(s->features, g.features);
        }
    /* more regularisation never fits better in sample */
    for (int l = 1; l < KVM_LAMBDAS - 1; l++)
        assert_true(sweep[l].r2[KVM_FIT] <= sweep[l - 1].r2[KVM_FIT] + 1e-12);
}

/* layer 1 repeats layer 0, and one entry never changes */
static void repeated_row(void *ctx, int32_t s, ptrdiff_t t, float *row)
{
    (void)ctx;
    kvm_rng rng = kvm_rng_seed((uint64_t)s * 1000 + (uint64_t)t, 3);
    for (ptrdiff_t i = 0; i < ROW; i++) row[i] = (float)kvm_rng_normal(&rng);
    for (int i = 0; i < 2 * WIDTH; i++) row[2 * WIDTH + i] = row[i];
    row[(ptrdiff_t)4 * WIDTH] = 7;
}

static void dependent_and_constant_features_are_survived(void **state)
{
    (void)state;
    made a = model("rep", 12, 16);
    a.row = repeated_row;
    const kvm_moments *m = moments_of(a, model("rep-b", 12, 16), 0.25);
    kvm_err err = {0};
    kvm_ridge_map map;
    kvm_ridge_figures both, one;
    check_ok(kvm_ridge_fit(compute, m, layers_of(KVM_SPACE_K, all, 2),
                           (kvm_output){KVM_SPACE_K, 0}, -1, &(kvm_ridge_options){0},
                           &map, &both, &keep, scratch, &err),
             &err);
    for (ptrdiff_t i = 0; i < map.inputs * map.outputs; i++)
        assert_true(fabs(map.weight[i]) < 10);
    assert_true(both.jitter > 0 || both.dropped > 0);
    check_ok(kvm_ridge_fit(compute, m, layers_of(KVM_SPACE_K, all, 1),
                           (kvm_output){KVM_SPACE_K, 0}, -1, &(kvm_ridge_options){0},
                           &map, &one, &keep, scratch, &err),
             &err);
    assert_true(fabs(both.r2[KVM_FIT] - one.r2[KVM_FIT]) < 1e-6);
    const int32_t last[] = {2};
    check_ok(kvm_ridge_fit(compute, m, layers_of(KVM_SPACE_K, last, 1),
                           (kvm_output){KVM_SPACE_K, 0}, -1,
                           &(kvm_ridge_options){.lambda = {1e-3, false}}, &map, &one,
                           &keep, scratch, &err),
             &err);
    for (ptrdiff_t j = 0; j < map.outputs; j++) assert_true(map.weight[j] == 0);
}

/* Target 0 = layer 0's content plus half of layer 2's; layer 1 is layer 0 with
 * noise. */
static void redundant_row(void *ctx, int32_t s, ptrdiff_t t, float *row)
{
    const bool target = *(const bool *)ctx;
    float x[ROW];
    kvm_rng rng = kvm_rng_seed((uint64_t)s * 1000 + (uint64_t)t, 9);
    for (ptrdiff_t i = 0; i < ROW; i++) x[i] = (float)kvm_rng_normal(&rng);
    const ptrdiff_t layer = 2 * (ptrdiff_t)WIDTH;
    for (ptrdiff_t i = 0; i < layer; i++) x[layer + i] = x[i] + 0.3F * x[layer + i];
    for (ptrdiff_t i = 0; i < ROW; i++)
        row[i] = target ? x[i % layer] + 0.6F * x[2 * layer + i % layer] : x[i];
}

static void greedy_sees_what_ranking_does_not(void **state)
{
    (void)state;
    static const bool source = false, target = true;
    made a = model("red", 30, 20), b = model("red-b", 30, 20);
    a.row = b.row = redundant_row;
    a.ctx = &(bool){source};
    b.ctx = &(bool){target};
    const kvm_moments *m = moments_of(a, b, 0.2);
    kvm_err err = {0};
    const kvm_mapping keys = kvm_mapping_same(KVM_SPACE_K),
                      values = kvm_mapping_same(KVM_SPACE_V);
    kvm_r2_map maps[2];
    kvm_ranking r;
    int32_t order[LAYERS];
    const kvm_map_options o[] = {{.per_head = false}, {.per_head = true}};
    for (size_t i = 0; i < COUNT(o); i++) {
        check_ok(
            kvm_select_maps(compute, m, &keys, &o[i], &maps[0], &keep, scratch, &err),
            &err);
        check_ok(
            kvm_select_maps(compute, m, &values, &o[i], &maps[1], &keep, scratch, &err),
            &err);
        check_ok(kvm_select_rank(&r, &keep, maps, 2, KVM_CHOOSE, &err), &err);
        for (ptrdiff_t t = 0; t < LAYERS; t++) {
            assert_int_equal(r.order[t * LAYERS], 0);
            assert_int_equal(r.order[t * LAYERS + 1], 1);
        }
    }
    check_ok(kvm_select_greedy(compute, m, &values, 1, (kvm_lambda){1e-6, false}, order,
                               LAYERS, scratch, &err),
             &err);
    assert_int_equal(order[0], 0);
    assert_int_equal(order[1], 2);
    assert_int_equal(order[2], 1);
    /* the first of them are the same, and no more are written */
    int32_t first[LAYERS] = {-1, -1, -1};
    check_ok(kvm_select_greedy(compute, m, &values, 1, (kvm_lambda){1e-6, false}, first,
                               2, scratch, &err),
             &err);
    assert_memory_equal(first, order, 2 * sizeof *first);
    assert_int_equal(first[2], -1);
}

static void depth_and_head_matching(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_ranking r;
    static const int32_t layers[] = {0, 1, 2, 3, 4, 5};
    const kvm_r2_map map = {
        .sources = 4, .targets = 6, .source = layers, .target = layers};
    check_ok(kvm_select_depth(&r, &keep, &map, &err), &err);
    const int32_t matched[] = {0, 0, 1, 2, 2, 3};
    for (ptrdiff_t t = 0; t < 6; t++) {
        bool seen[4] = {false};
        assert_int_equal(r.order[t * 4], matched[t]);
        for (ptrdiff_t i = 0; i < 4; i++) seen[r.order[t * 4 + i]] = true;
        assert_true(seen[0] && seen[1] && seen[2] && seen[3]);
    }
    for (ptrdiff_t h = 0; h < 8; h++) {
        assert_int_equal(kvm_matched_head(h, 8, 8), h);
        assert_int_equal(kvm_matched_head(h, 2, 8), h / 4);
    }
    assert_int_equal(kvm_matched_head(1, 8, 2), 4);
    ptrdiff_t ks[KVM_KS];
    assert_int_equal(kvm_select_ks(30, ks), 11);
    assert_int_equal(ks[10], 30);
    assert_int_equal(kvm_select_ks(4, ks), 3);
    assert_int_equal(ks[2], 4);
    assert_int_equal(kvm_select_ks(1, ks), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_exact_linear_relation_is_recovered),
        cmocka_unit_test(noise_fits_in_sample_only),
        cmocka_unit_test(no_more_rows_than_features_is_refused),
        cmocka_unit_test(a_negative_lambda_is_refused),
        cmocka_unit_test(a_sweep_is_its_fits),
        cmocka_unit_test(dependent_and_constant_features_are_survived),
        cmocka_unit_test(greedy_sees_what_ranking_does_not),
        cmocka_unit_test(depth_and_head_matching),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
