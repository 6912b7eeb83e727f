/* Captures, moments, ridge, selection and quality against numpy in float64
 * (tests/golden/translators/make.py). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/safetensors.h"
#include "tests/support/check.h"
#include "translators/quality.h"
#include "translators/select.h"

#define DIR "tests/golden/translators/"
#define TMP "build/tmp/golden_translators/"

typedef struct fixture {
    kvm_arena keep, scratch;
    kvm_compute *c;
    kvm_st *expected;
    kvm_moments *m;
} fixture;

static int setup(void **state)
{
    static fixture f;
    kvm_err err = {0};
    check_tmpdir("golden_translators");
    f.keep = check_arena((size_t)4 << 30);
    f.scratch = check_arena((size_t)1 << 30);
    check_ok(kvm_compute_new(&f.c, &f.keep, kvm_backend_find(KVM_STR("cpu")), 2, &err),
             &err);
    check_ok(
        kvm_st_open(&f.expected, &f.keep, KVM_STR(DIR "expected.safetensors"), &err),
        &err);
    check_ok(kvm_moments_open(&f.m, &f.keep, KVM_STR(DIR "gram.safetensors"),
                              KVM_STR(DIR "cross.safetensors"),
                              KVM_STR(DIR "own.safetensors"), &err),
             &err);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    kvm_arena_free(&f->keep);
    kvm_arena_free(&f->scratch);
    return 0;
}

static const kvm_tensor *golden(const fixture *f, const char *name)
{
    const kvm_st_tensor *t = kvm_st_find(f->expected, kvm_str_of(name));
    assert_non_null(t);
    return &t->t;
}

/* largest difference over the largest size */
static double distance(const double *a, const double *b, ptrdiff_t n)
{
    double most = 0, size = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        const double d = fabs(a[i] - b[i]);
        if (!(d <= most)) most = d; /* NaN too */
        size = fabs(b[i]) > size ? fabs(b[i]) : size;
    }
    return most / size;
}

static void the_split_is_the_described_one(void **state)
{
    fixture *f = *state;
    kvm_err err = {0};
    kvm_rows *r;
    ptrdiff_t *index, n;
    check_ok(
        kvm_rows_open(&r, &f->keep, KVM_STR(DIR "source.capture.safetensors"), &err),
        &err);
    const kvm_tensor *want = golden(f, "split");
    ptrdiff_t rows = 0;
    for (int p = 0; p < KVM_SPLITS; p++, rows += n) {
        check_ok(kvm_rows_split(r, 7, 0.25, (kvm_split)p, &f->keep, &index, &n, &err),
                 &err);
        for (ptrdiff_t i = 0; i < n; i++)
            assert_int_equal(((const int32_t *)want->data)[index[i]], p);
    }
    assert_int_equal(rows, want->dim[0]);
}

/* every tensor of two moments files, entries relative to the root of the two diagonals
 * where that is known, else to the largest entry */
static void compare_files(fixture *f, const char *ours, const char *theirs,
                          double limit)
{
    kvm_err err = {0};
    kvm_st *a, *b;
    check_ok(kvm_st_open(&a, &f->keep, kvm_str_of(ours), &err), &err);
    check_ok(kvm_st_open(&b, &f->keep, kvm_str_of(theirs), &err), &err);
    assert_int_equal(kvm_st_count(a), kvm_st_count(b));
    for (ptrdiff_t i = 0; i < kvm_st_count(b); i++) {
        const kvm_st_tensor *want = kvm_st_at(b, i);
        const kvm_st_tensor *have = kvm_st_find(a, want->name);
        assert_non_null(have);
        assert_int_equal(have->bytes, want->bytes);
        if (want->t.dtype == KVM_I64) {
            assert_memory_equal(have->t.data, want->t.data, want->bytes);
            continue;
        }
        const double d =
            distance(have->t.data, want->t.data, kvm_tensor_count(&want->t));
        if (!(d < limit)) fail_msg("%.*s differs by %g", KVM_STR_ARG(want->name), d);
    }
}

static void moments_of_a_capture(void **state)
{
    fixture *f = *state;
    kvm_err err = {0};
    kvm_rows *a, *b;
    check_ok(
        kvm_rows_open(&a, &f->keep, KVM_STR(DIR "source.capture.safetensors"), &err),
        &err);
    check_ok(
        kvm_rows_open(&b, &f->keep, KVM_STR(DIR "target.capture.safetensors"), &err),
        &err);
    const kvm_space k = KVM_SPACE_K, r = KVM_SPACE_K_ROTATED, v = KVM_SPACE_V,
                    token = KVM_SPACE_TOKEN;
    const kvm_block_id gram[] = {{k, k}, {r, r}, {v, v}, {k, v}},
                       own[] = {{token, token}, {v, token}},
                       cross[] = {{k, k}, {r, r},     {v, v},
                                  {k, v}, {k, token}, {v, token}};
    kvm_moments_options o = {.seed = 7,
                             .fraction = 0.25,
                             .blocks = gram,
                             .block_count = COUNT(gram),
                             .hash_a = "source-hash",
                             .hash_b = "target-hash"};
    check_ok(kvm_moments_gram(f->c, a, &o, KVM_STR(TMP "gram.safetensors"), NULL, &err),
             &err);
    o.blocks = cross;
    o.block_count = COUNT(cross);
    check_ok(
        kvm_moments_cross(f->c, a, b, &o, KVM_STR(TMP "cross.safetensors"), NULL, &err),
        &err);
    o.hash_a = "target-hash";
    o.blocks = own;
    o.block_count = COUNT(own);
    check_ok(kvm_moments_gram(f->c, b, &o, KVM_STR(TMP "own.safetensors"), NULL, &err),
             &err);
    compare_files(f, TMP "own.safetensors", DIR "own.safetensors", 2e-6);
    /* f32 products of a few hundred rows; angles of f32 rotaries */
    compare_files(f, TMP "gram.safetensors", DIR "gram.safetensors", 2e-6);
    compare_files(f, TMP "cross.safetensors", DIR "cross.safetensors", 4e-6);
}

typedef struct ridge_case {
    const char *name;
    kvm_space space, reads[2]; /* of the target; of the source */
    bool token;
    int32_t layers[3];
    ptrdiff_t count, head, target, out_head;
    kvm_lambda lambda;
} ridge_case;

static void ridge_solutions(void **state)
{
    fixture *f = *state;
    static const ridge_case cases[] = {
        {"relative",
         KVM_SPACE_K,
         {KVM_SPACE_K, KVM_SPACE_K},
         false,
         {2, 0},
         2,
         -1,
         1,
         -1,
         {1e-3, false}},
        {"absolute",
         KVM_SPACE_V,
         {KVM_SPACE_V, KVM_SPACE_V},
         false,
         {0, 1, 2},
         3,
         -1,
         0,
         -1,
         {0.01, true}},
        {"rotated",
         KVM_SPACE_K_ROTATED,
         {KVM_SPACE_K_ROTATED, KVM_SPACE_K_ROTATED},
         false,
         {1},
         1,
         -1,
         0,
         -1,
         {1e-2, false}},
        {"head",
         KVM_SPACE_K,
         {KVM_SPACE_K, KVM_SPACE_K},
         false,
         {1, 2},
         2,
         1,
         0,
         2,
         {1e-4, false}},
        {"least_squares",
         KVM_SPACE_K,
         {KVM_SPACE_K, KVM_SPACE_K},
         false,
         {0, 1, 2},
         3,
         -1,
         0,
         -1,
         {0, false}},
        {"two_spaces",
         KVM_SPACE_V,
         {KVM_SPACE_K, KVM_SPACE_V},
         false,
         {2, 0},
         2,
         -1,
         1,
         -1,
         {1e-3, false}},
        {"token",
         KVM_SPACE_V,
         {KVM_SPACE_K, KVM_SPACE_V},
         true,
         {1, 2},
         2,
         -1,
         0,
         -1,
         {1e-3, false}},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const ridge_case *r = &cases[i];
        kvm_err err = {0};
        char name[64];
        kvm_ridge_map map;
        kvm_ridge_figures g, again;
        const kvm_mapping mapping = {.out = r->space,
                                     .side = KVM_SOURCE,
                                     .from = {r->reads[0], r->reads[1]},
                                     .token = r->token};
        kvm_feature item[7];
        const ptrdiff_t items =
            kvm_mapping_items(&mapping, r->layers, r->count, r->target, item);
        const kvm_features x = {item, items, r->head};
        const kvm_output y = {r->space, r->target};
        check_ok(kvm_moments_has(f->m, x, y, &err), &err);
        check_ok(kvm_ridge_fit(f->c, f->m, x, y, r->out_head,
                               &(kvm_ridge_options){.lambda = r->lambda}, &map, &g,
                               &f->keep, f->scratch, &err),
                 &err);
        snprintf(name, sizeof name, "%s.w", r->name);
        const kvm_tensor *w = golden(f, name);
        assert_int_equal(map.inputs, w->dim[0]);
        assert_int_equal(map.outputs, w->dim[1]);
        const double d = distance(map.weight, w->data, map.inputs * map.outputs);
        if (!(d < 1e-9)) fail_msg("%s: weights differ by %g", r->name, d);
        snprintf(name, sizeof name, "%s.b", r->name);
        assert_true(distance(map.bias, golden(f, name)->data, map.outputs) < 1e-9);
        snprintf(name, sizeof name, "%s.r2", r->name);
        const kvm_tensor *r2 = golden(f, name);
        for (int p = 0; p < KVM_SPLITS; p++) {
            double mean = 0, worst = HUGE_VAL;
            for (ptrdiff_t h = 0; h < r2->dim[1]; h++) {
                const double v = ((const double *)r2->data)[p * r2->dim[1] + h];
                mean += v / (double)r2->dim[1];
                worst = v < worst ? v : worst;
            }
            assert_true(fabs(g.r2[p] - mean) < 1e-9);
            assert_true(fabs(g.worst[p] - worst) < 1e-9);
        }
        check_ok(kvm_ridge_score(f->c, f->m, x, y, r->out_head, map.weight, map.bias,
                                 &again, f->scratch, &err),
                 &err);
        for (int p = 0; p < KVM_SPLITS; p++)
            assert_true(fabs(again.r2[p] - g.r2[p]) < 1e-9);
        assert_true(fabs(again.weight_norm - g.weight_norm) < 1e-9 * g.weight_norm);
    }
}

static void maps_and_greedy_order(void **state)
{
    fixture *f = *state;
    kvm_err err = {0};
    static const kvm_space spaces[] = {KVM_SPACE_K, KVM_SPACE_K_ROTATED, KVM_SPACE_V};
    for (size_t s = 0; s < COUNT(spaces); s++) {
        char name[64];
        kvm_r2_map map;
        const kvm_mapping mapping = kvm_mapping_same(spaces[s]);
        check_ok(kvm_select_maps(f->c, f->m, &mapping, &(kvm_map_options){0}, &map,
                                 &f->keep, f->scratch, &err),
                 &err);
        snprintf(name, sizeof name, "map.%s", kvm_space_name(spaces[s]));
        const double *want = golden(f, name)->data;
        for (ptrdiff_t p = 0; p < KVM_HELD; p++)
            for (ptrdiff_t i = 0; i < 6; i++)
                if (!(fabs(map.r2[p][i] - want[p * 6 + i]) < 1e-9))
                    fail_msg("%s split %td entry %td: %.12g, expected %.12g", name, p,
                             i, map.r2[p][i], want[p * 6 + i]);
    }
    const kvm_mapping keys = kvm_mapping_same(KVM_SPACE_K);
    int32_t order[3];
    check_ok(kvm_select_greedy(f->c, f->m, &keys, 0, (kvm_lambda){0}, order, 3,
                               f->scratch, &err),
             &err);
    assert_memory_equal(order, golden(f, "greedy")->data, sizeof order);
}

static void quality_figures(void **state)
{
    fixture *f = *state;
    kvm_err err = {0};
    kvm_quality q;
    const kvm_quality_input in = {.q = golden(f, "quality.q")->data,
                                  .k = golden(f, "quality.k")->data,
                                  .v = golden(f, "quality.v")->data,
                                  .k_map = golden(f, "quality.k_map")->data,
                                  .v_map = golden(f, "quality.v_map")->data,
                                  .n = 5,
                                  .context = 12,
                                  .first = 7,
                                  .query_heads = 4,
                                  .kv_heads = 2,
                                  .dim = 6,
                                  .value_dim = 5};
    check_ok(kvm_quality_layer(f->c, &in, &q, f->scratch, &err), &err);
    const double *want = golden(f, "quality")->data;
    const double have[] = {q.cosine, q.c_k,     q.c_k_raw,
                           q.c_v,    q.c_v_raw, q.cosine_worst};
    for (size_t i = 0; i < COUNT(have); i++)
        assert_true(fabs(have[i] - want[i]) < 5e-6 * fabs(want[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_split_is_the_described_one),
        cmocka_unit_test(moments_of_a_capture),
        cmocka_unit_test(ridge_solutions),
        cmocka_unit_test(maps_and_greedy_order),
        cmocka_unit_test(quality_figures),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
