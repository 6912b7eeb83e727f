/* What attention reads of a cache: its keys and values, as they are kept or written out
 * of latents, make the outputs that the forward itself made. */
#include <math.h>
#include <string.h>

#include "models/model.h"
#include "tests/support/check.h"

enum { N = 40, LAYERS = 16, WIDTH = 1024 };

static kvm_arena arena;
static float q[LAYERS][N * WIDTH], y[LAYERS][N * WIDTH];
static bool came[LAYERS];

static kvm_status keep(void *ctx, ptrdiff_t layer, ptrdiff_t first, ptrdiff_t n,
                       const float *queries, const float *out, kvm_err *err)
{
    kvm_attended a;
    (void)err;
    assert_true(kvm_model_attended(ctx, layer, &a));
    const ptrdiff_t qw = a.query_heads * a.dim, yw = a.query_heads * a.value_dim;
    assert_true(layer < LAYERS && qw <= WIDTH && yw <= WIDTH);
    memcpy(q[layer] + first * qw, queries, (size_t)(n * qw) * sizeof *queries);
    memcpy(y[layer] + first * yw, out, (size_t)(n * yw) * sizeof *out);
    came[layer] = true;
    return KVM_OK;
}

static int setup(void **state)
{
    (void)state;
    arena = check_arena((size_t)8 << 30);
    memset(came, 0, sizeof came);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&arena);
    return 0;
}

/* rows (n, heads * dim) as attention wants them: (heads, n, dim) */
static kvm_tensor heads_of(float *rows, ptrdiff_t heads, ptrdiff_t dim)
{
    kvm_tensor t = kvm_view3(rows, KVM_F32, heads, N, dim);
    t.stride[0] = dim;
    t.stride[1] = heads * dim;
    return t;
}

static void check_layer(kvm_model *m, const kvm_cache *c, ptrdiff_t layer)
{
    kvm_err err = {0};
    kvm_attended a;
    assert_true(kvm_model_attended(m, layer, &a));
    float *k = kvm_new(&arena, float, N *a.kv_heads *a.dim);
    float *v = kvm_new(&arena, float, N *a.kv_heads *a.value_dim);
    float *out = kvm_new(&arena, float, N *a.query_heads *a.value_dim);
    check_ok(kvm_cache_attended(c, layer, k, v, &err), &err);
    check_ok(kvm_op_attention(kvm_model_compute(m),
                              kvm_view3(out, KVM_F32, N, a.query_heads, a.value_dim),
                              kvm_view3(q[layer], KVM_F32, N, a.query_heads, a.dim),
                              heads_of(k, a.kv_heads, a.dim),
                              heads_of(v, a.kv_heads, a.value_dim), 0, a.window,
                              a.scale, &err),
             &err);
    for (ptrdiff_t i = 0; i < N * a.query_heads * a.value_dim; i++)
        assert_true(fabs((double)out[i] - (double)y[layer][i]) < 1e-4);
}

static void check_model(const char *path, const char *attention)
{
    kvm_err err = {0};
    kvm_compute *compute;
    kvm_model *m;
    kvm_cache *c;
    int32_t ids[N];
    check_ok(
        kvm_compute_new(&compute, &arena, kvm_backend_find(KVM_STR("cpu")), 2, &err),
        &err);
    check_ok(kvm_model_open(&m, &arena, compute, kvm_str_of(path),
                            &(kvm_model_options){0}, &err),
             &err);
    for (int i = 0; i < N; i++) ids[i] = 7 + 11 * i;
    const kvm_capture sink = {.attention = keep, .ctx = m};
    check_ok(kvm_cache_new(&c, &arena, m, N, &err), &err);
    check_ok(
        kvm_model_forward(m, c, ids, N, &(kvm_forward_options){.capture = &sink}, &err),
        &err);
    for (ptrdiff_t l = 0; l < kvm_model_info_of(m)->layers; l++) {
        const bool has = attention[l] == 'a';
        kvm_attended a;
        assert_int_equal(kvm_model_attended(m, l, &a), has);
        assert_int_equal(came[l], has);
        if (has)
            check_layer(m, c, l);
        else
            assert_int_equal(kvm_cache_attended(c, l, q[l], y[l], &err),
                             KVM_UNSUPPORTED);
    }
}

static void rows_as_they_are_kept(void **state)
{
    (void)state;
    check_model("tests/zoo/small", "aaaa");
}

static void gated_attention_between_recurrent_layers(void **state)
{
    (void)state;
    check_model("tests/zoo/gdn-a", "---a---a");
}

static void latents_with_a_rotary_key(void **state)
{
    (void)state;
    check_model("tests/zoo/mla", "aaaaaa");
}

static void latents_between_recurrent_layers(void **state)
{
    (void)state;
    check_model("tests/zoo/kda", "---a---a");
}

int main(void)
{
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(rows_as_they_are_kept),
        TEST(gated_attention_between_recurrent_layers),
        TEST(latents_with_a_rotary_key),
        TEST(latents_between_recurrent_layers),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
