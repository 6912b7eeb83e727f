/* Views that do not fit: every op answers KVM_SHAPE, KVM_DTYPE or KVM_RANGE with a
 * message, and touches nothing. */
#include "kernels/backend.h"

#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "tests/support/check.h"

static kvm_arena keep;
static kvm_compute *c;
static float f32[4096];
static double f64[4096];
static const int32_t ids[8] = {0, 1, 2, 3};

static kvm_tensor f(ptrdiff_t n0, ptrdiff_t n1)
{
    return kvm_view2(f32, KVM_F32, n0, n1);
}
static kvm_tensor g(ptrdiff_t n0, ptrdiff_t n1) /* away from f */
{
    return kvm_view2(f32 + 2048, KVM_F32, n0, n1);
}
static kvm_tensor d(ptrdiff_t n0, ptrdiff_t n1)
{
    return kvm_view2(f64, KVM_F64, n0, n1);
}
static kvm_tensor e(ptrdiff_t n0, ptrdiff_t n1)
{
    return kvm_view2(f64 + 2048, KVM_F64, n0, n1);
}
static kvm_tensor cube(float *at, ptrdiff_t n0, ptrdiff_t n1, ptrdiff_t n2)
{
    return kvm_view3(at, KVM_F32, n0, n1, n2);
}

static void refused_at(kvm_status want, kvm_status got, const kvm_err *err,
                       const char *part, const char *file, int line)
{
    check_status_at(want, got, err, file, line);
    check_contains_at(err->msg, part, file, line);
    for (size_t i = 0; i < COUNT(f32); i++) assert_true(f32[i] == 1);
    for (size_t i = 0; i < COUNT(f64); i++) assert_true(f64[i] == 1);
}

#define refused(status, part, call)                                                    \
    do {                                                                               \
        kvm_err err = {0};                                                             \
        const kvm_status s_ = (call);                                                  \
        refused_at(status, s_, &err, part, __FILE__, __LINE__);                        \
    } while (0)

static int setup(void **state)
{
    (void)state;
    keep = check_arena((size_t)1 << 24);
    kvm_err err = {0};
    check_ok(kvm_compute_new(&c, &keep, kvm_backend_find(KVM_STR("cpu")), 2, &err),
             &err);
    for (size_t i = 0; i < COUNT(f32); i++) f32[i] = 1;
    for (size_t i = 0; i < COUNT(f64); i++) f64[i] = 1;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    return 0;
}

static void extents_must_agree(void **state)
{
    (void)state;
    kvm_err err0 = {0};
    kvm_weight *w;
    check_ok(kvm_weight_new(&w, &keep, c, g(6, 8), NULL, &err0), &err0);
    refused(KVM_SHAPE, "linear: w is (6,8)",
            kvm_op_linear(c, f(2, 6), g(2, 9), w, 0, &err));
    refused(KVM_SHAPE, "linear: w is (6,8)",
            kvm_op_linear(c, f(2, 7), g(2, 8), w, 0, &err));
    refused(KVM_SHAPE, "linear: x is (3,8)",
            kvm_op_linear(c, f(2, 6), g(3, 8), w, 0, &err));
    refused(KVM_SHAPE, "embed", kvm_op_embed(c, f(2, 6), ids, g(6, 8), &err));
    refused(KVM_SHAPE, "silu_mul", kvm_op_silu_mul(c, f(2, 6), g(2, 6), g(6, 2), &err));
    refused(KVM_SHAPE, "gram", kvm_op_gram(c, d(6, 7), f(3, 6), &err));
    refused(KVM_SHAPE, "cross", kvm_op_cross(c, d(6, 7), f(3, 6), f(4, 7), &err));
    refused(KVM_SHAPE, "cholesky", kvm_op_cholesky(c, d(6, 7), &err));
    refused(KVM_SHAPE, "eigh", kvm_op_eigh(c, d(6, 7), f64 + 99, &err));
    refused(KVM_SHAPE, "solve", kvm_op_cholesky_solve(c, d(6, 6), e(5, 2), &err));
    refused(KVM_SHAPE, "gemm64",
            kvm_op_gemm64(c, d(2, 3), e(2, 4), false, e(3, 4), false, &err));
    refused(KVM_SHAPE, "gemm32",
            kvm_op_gemm32(c, f(2, 3), g(2, 4), true, g(4, 3), false, 0, &err));
    refused(KVM_SHAPE, "axes",
            kvm_op_silu_mul(c, f(2, 6), cube(f32, 2, 3, 2), f(2, 6), &err));
    refused(KVM_SHAPE, "impossible",
            kvm_op_silu_mul(c, f(-2, 6), g(-2, 6), g(-2, 6), &err));
}

static void groups_heads_and_positions_must_fit(void **state)
{
    (void)state;
    const kvm_tensor w = kvm_view1(f32 + 4000, KVM_F32, 4);
    refused(KVM_SHAPE, "groups of 5",
            kvm_op_rmsnorm(c, f(2, 8), g(2, 8), w, 5, 0, 0, &err));
    refused(KVM_SHAPE, "groups of 0",
            kvm_op_rmsnorm(c, f(2, 8), g(2, 8), w, 0, 0, 0, &err));
    refused(KVM_SHAPE, "w has 4",
            kvm_op_rmsnorm(c, f(2, 8), g(2, 8), w, 2, 0, 0, &err));
    refused(KVM_RANGE, "eps", kvm_op_rmsnorm(c, f(2, 8), g(2, 8), w, 4, NAN, 0, &err));

    kvm_rope r = {f32, 10, false, 1};
    const kvm_tensor x = cube(f32 + 64, 3, 2, 8);
    refused(KVM_SHAPE, "width 10", kvm_op_rope(c, x, ids, &r, false, &err));
    r.width = 3;
    refused(KVM_SHAPE, "width 3", kvm_op_rope(c, x, ids, &r, false, &err));
    r.width = 4, r.factor = 0;
    refused(KVM_RANGE, "factor", kvm_op_rope(c, x, ids, &r, true, &err));

    const kvm_tensor y = cube(f32, 3, 4, 8), q = cube(f32 + 512, 3, 4, 8);
    const kvm_tensor k = cube(f32 + 1024, 2, 5, 8), k3 = cube(f32 + 1024, 3, 5, 8);
    const kvm_tensor short_v = cube(f32 + 2048, 2, 4, 8);
    refused(KVM_SHAPE, "4 query heads",
            kvm_op_attention(c, y, q, k3, k3, 0, 0, 1, &err));
    refused(KVM_SHAPE, "from position 3",
            kvm_op_attention(c, y, q, k, k, 3, 0, 1, &err));
    refused(KVM_SHAPE, "from position -1",
            kvm_op_attention(c, y, q, k, k, -1, 0, 1, &err));
    refused(KVM_SHAPE, "position",
            kvm_op_attention(c, y, q, k, k, PTRDIFF_MAX, 0, 1, &err));
    refused(KVM_RANGE, "window", kvm_op_attention(c, y, q, k, k, 0, -1, 1, &err));
    refused(KVM_SHAPE, "v is", kvm_op_attention(c, y, q, k, short_v, 0, 0, 1, &err));
    refused(KVM_SHAPE, "y", kvm_op_attention(c, y, y, k, k, 0, 0, 1, &err));
}

static void windows_and_states_must_fit(void **state)
{
    (void)state;
    const kvm_tensor y = f(2, 6), x = g(2, 6);
    const kvm_tensor w = kvm_view2(f32 + 3000, KVM_F32, 6, 4);
    kvm_tensor window = kvm_view2(f32 + 3100, KVM_F32, 6, 4);
    refused(KVM_SHAPE, "overlaps", kvm_op_conv(c, y, x, w, NULL, w, &err));
    refused(KVM_SHAPE, "window is (4,6)",
            kvm_op_conv(c, y, x, w, NULL, kvm_view2(f32 + 512, KVM_F32, 4, 6), &err));
    const kvm_tensor wide = kvm_view2(f32 + 3000, KVM_F32, 6, 9);
    window.dim[1] = window.stride[0] = 9;
    refused(KVM_SHAPE, "window of 9", kvm_op_conv(c, y, x, wide, NULL, window, &err));

    const kvm_tensor o = cube(f32, 3, 4, 8), v = cube(f32 + 256, 3, 4, 8);
    const kvm_tensor k = cube(f32 + 512, 3, 2, 5), k3 = cube(f32 + 512, 3, 3, 5);
    const kvm_tensor s = cube(f32 + 1024, 4, 5, 8), beta = g(3, 4), decay = g(3, 4);
    refused(KVM_SHAPE, "4 value heads over 3",
            kvm_op_delta(c, o, k3, k3, v, decay, beta, s, &err));
    refused(KVM_SHAPE, "g has 1 axes",
            kvm_op_delta(c, o, k, k, v, kvm_view1(f32, KVM_F32, 3), beta, s, &err));
    refused(KVM_SHAPE, "g is (3,4,8)", kvm_op_delta(c, o, k, k, v, v, beta, s, &err));
    refused(KVM_SHAPE, "state is (3,4,8)",
            kvm_op_delta(c, o, k, k, v, decay, beta, v, &err));
    refused(KVM_SHAPE, "overlaps", kvm_op_delta(c, v, k, k, v, decay, beta, s, &err));

    const kvm_tensor rate = kvm_view1(f32 + 3200, KVM_F32, 4), turned = s;
    const kvm_tensor t = cube(f32 + 1024, 4, 8, 5);
    refused(KVM_SHAPE, "4 heads over 3 groups",
            kvm_op_scan(c, o, k3, k3, v, decay, rate, rate, t, &err));
    refused(KVM_SHAPE, "state is (4,5,8)",
            kvm_op_scan(c, o, k, k, v, decay, rate, rate, turned, &err));
    refused(KVM_SHAPE, "rate is (3)",
            kvm_op_scan(c, o, k, k, v, decay, kvm_view1(f32 + 3200, KVM_F32, 3), rate,
                        t, &err));
    refused(KVM_SHAPE, "overlaps",
            kvm_op_scan(c, v, k, k, v, decay, rate, rate, t, &err));
    refused(KVM_SHAPE, "relu2", kvm_op_relu2(c, f(2, 6), g(6, 2), &err));
}

static void gradients_must_fit(void **state)
{
    (void)state;
    const kvm_tensor w = kvm_view2(f32 + 3000, KVM_F32, 6, 4);
    const kvm_tensor window = kvm_view2(f32 + 3100, KVM_F32, 6, 4);
    kvm_tensor dwindow = kvm_view2(f32 + 3200, KVM_F32, 6, 4);
    const kvm_tensor x = g(2, 6), dx = f(2, 6),
                     dy = kvm_view2(f32 + 512, KVM_F32, 2, 6);
    refused(KVM_SHAPE, "window overlaps dwindow",
            kvm_op_conv_back(c, dx, window, x, w, NULL, window, dy, &err));
    refused(KVM_SHAPE, "dy is (2,5)",
            kvm_op_conv_back(c, dx, dwindow, x, w, NULL, window,
                             kvm_view2(f32 + 512, KVM_F32, 2, 5), &err));

    const kvm_tensor q = cube(f32, 3, 2, 5), v = cube(f32 + 64, 3, 4, 8);
    const kvm_tensor dq = cube(f32 + 512, 3, 2, 5), dk = cube(f32 + 600, 3, 2, 5);
    const kvm_tensor dv = cube(f32 + 700, 3, 4, 8),
                     dg = kvm_view2(f32 + 800, KVM_F32, 3, 4);
    const kvm_tensor db = kvm_view2(f32 + 900, KVM_F32, 3, 4), b = g(3, 4);
    const kvm_tensor s = cube(f32 + 1024, 4, 5, 8), ds = cube(f32 + 1200, 4, 5, 8);
    const kvm_delta_rows in = {q, q, v, b, b};
    kvm_delta_rows d = {dq, dk, dv, dg, db};
    refused(KVM_SHAPE, "state is (4,8,5)",
            kvm_op_delta_back(c, &d, ds, &in, cube(f32 + 1500, 4, 8, 5), v, &err));
    refused(KVM_SHAPE, "overlaps dstate", kvm_op_delta_back(c, &d, s, &in, s, v, &err));
    d.g = cube(f32 + 1500, 3, 4, 5);
    refused(KVM_SHAPE, "dg has 3 axes", kvm_op_delta_back(c, &d, ds, &in, s, v, &err));
    d.g = dg, d.k = dq;
    refused(KVM_SHAPE, "dk overlaps dq", kvm_op_delta_back(c, &d, ds, &in, s, v, &err));
    const kvm_tensor turned = cube(f32 + 1024, 4, 8, 5), dt = cube(f32 + 1200, 4, 8, 5);
    const kvm_tensor rate = kvm_view1(f32 + 1500, KVM_F32, 4), k3 = cube(f32, 3, 3, 5);
    const kvm_scan_rows to = {dq, dk, dv, db}, odd = {k3, k3, v, b};
    const kvm_scan_rows from = {q, q, v, b};
    refused(KVM_SHAPE, "scan_back: q is (3,3,5)",
            kvm_op_scan_back(c, &to, dt, &odd, rate, rate, turned, v, &err));
    refused(KVM_SHAPE, "scan_back: state is (4,5,8)",
            kvm_op_scan_back(c, &to, dt, &from, rate, rate, s, v, &err));
}

static void gradients_of_maps_must_fit(void **state)
{
    (void)state;
    kvm_err err0 = {0};
    kvm_weight *w;
    const kvm_tensor norm = kvm_view1(f32 + 4000, KVM_F32, 4);
    check_ok(kvm_weight_new(&w, &keep, c, g(6, 8), NULL, &err0), &err0);
    refused(KVM_SHAPE, "linear_back: w is (6,8)",
            kvm_op_linear_back(c, f(2, 8), g(2, 7), w, 0, &err));
    refused(KVM_SHAPE, "linear_back: w is (6,8)",
            kvm_op_linear_back(c, f(2, 9), g(2, 6), w, 0, &err));
    refused(KVM_SHAPE, "rmsnorm_back: w has 4",
            kvm_op_rmsnorm_back(c, f(2, 8), g(2, 8), norm, g(2, 8), 8, 0, 0, 0, &err));
    refused(KVM_SHAPE, "dup overlaps dgate",
            kvm_op_silu_mul_back(c, f(2, 6), f(2, 6), g(2, 6), g(2, 6), g(2, 6), &err));
    refused(KVM_SHAPE, "no logits", kvm_op_kl_back(c, f64, f(2, 0), g(2, 0), 1, &err));
    const kvm_tensor k = cube(f32 + 1000, 1, 4, 8), q = cube(f32 + 2000, 2, 2, 8);
    const kvm_tensor dk = cube(f32, 1, 4, 8), dv = cube(f32 + 100, 1, 4, 8);
    const kvm_tensor dq = cube(f32 + 200, 2, 2, 8);
    refused(KVM_SHAPE, "attention_back: 2 queries from position 3, 4 keys",
            kvm_op_attention_back(c, dq, dk, dv, q, k, k, q, 3, 0, NULL, 1, &err));
    refused(KVM_SHAPE, "dv overlaps dk",
            kvm_op_attention_back(c, dq, dk, dk, q, k, k, q, 2, 0, NULL, 1, &err));
}

static void ids_must_be_rows(void **state)
{
    (void)state;
    const int32_t low[2] = {0, -1}, high[2] = {0, 6};
    double out[2];
    refused(KVM_RANGE, "id -1 at place 1",
            kvm_op_embed(c, f(2, 8), low, g(6, 8), &err));
    refused(KVM_RANGE, "not in 0..5", kvm_op_embed(c, f(2, 8), high, g(6, 8), &err));
    refused(KVM_RANGE, "logprob", kvm_op_logprob(c, out, f(2, 6), high, &err));
    refused(KVM_SHAPE, "no logits", kvm_op_logprob(c, out, f(2, 0), NULL, &err));
}

static void types_must_fit(void **state)
{
    (void)state;
    kvm_tensor odd = g(2, 6);
    odd.dtype = KVM_BF16;
    refused(KVM_DTYPE, "up cannot be BF16",
            kvm_op_silu_mul(c, f(2, 6), f(2, 6), odd, &err));
    odd.dtype = KVM_DTYPES;
    kvm_weight *w;
    refused(KVM_DTYPE, "linear", kvm_weight_new(&w, &keep, c, odd, NULL, &err));
    refused(KVM_DTYPE, "gram", kvm_op_gram(c, f(6, 6), g(2, 6), &err));
    static const float one = 1;
    static const kvm_scales scales = {&one, 2, 6, 1, 0}, none = {&one, 0, 6, 1, 0};
    odd = g(2, 6), odd.scales = &scales;
    refused(KVM_DTYPE, "up cannot have scales",
            kvm_op_silu_mul(c, f(2, 6), f(2, 6), odd, &err));
    odd.scales = &none;
    refused(KVM_SHAPE, "blocks of 0 x 6",
            kvm_weight_new(&w, &keep, c, odd, NULL, &err));
    kvm_tensor blocks = kvm_view2(f32, KVM_Q8_0, 2, 48);
    refused(KVM_SHAPE, "block", kvm_weight_new(&w, &keep, c, blocks, NULL, &err));
    odd = g(2, 6);
    odd.device = KVM_CUDA;
    refused(KVM_SHAPE, "device", kvm_op_silu_mul(c, f(2, 6), f(2, 6), odd, &err));
}

static void strides_must_be_sound(void **state)
{
    (void)state;
    kvm_tensor y = f(4, 6), x = g(4, 6), up = g(4, 6);
    y.stride[0] = 5; /* rows of y share numbers */
    refused(KVM_SHAPE, "overlap", kvm_op_silu_mul(c, y, x, up, &err));
    y.stride[0] = -6;
    refused(KVM_SHAPE, "overlap", kvm_op_silu_mul(c, y, x, up, &err));
    y = f(4, 6), x.stride[1] = 2;
    refused(KVM_SHAPE, "not contiguous", kvm_op_silu_mul(c, y, x, up, &err));
    x = g(4, 6), x.stride[0] = PTRDIFF_MAX / 2;
    refused(KVM_SHAPE, "overflow", kvm_op_silu_mul(c, y, x, up, &err));
    x = g(4, 6), x.data = NULL;
    refused(KVM_SHAPE, "no data", kvm_op_silu_mul(c, y, x, up, &err));
    kvm_tensor a = e(3, 3);
    a.stride[0] = 7, a.stride[1] = 2;
    refused(KVM_SHAPE, "not contiguous",
            kvm_op_gemm64(c, d(3, 3), a, false, e(3, 3), false, &err));
}

static void a_written_view_overlaps_no_other(void **state)
{
    (void)state;
    kvm_tensor y = f(4, 6), shifted = kvm_view2(f32 + 1, KVM_F32, 4, 6);
    refused(KVM_SHAPE, "overlaps", kvm_op_silu_mul(c, y, shifted, g(4, 6), &err));
    kvm_weight *w;
    kvm_err err0 = {0};
    check_ok(kvm_weight_new(&w, &keep, c, g(6, 6), NULL, &err0), &err0);
    refused(KVM_SHAPE, "overlaps", kvm_op_linear(c, y, y, w, false, &err));
    refused(KVM_SHAPE, "overlaps",
            kvm_op_gemm64(c, d(3, 3), d(3, 3), 0, e(3, 3), 0, &err));
}

/* gate and up side by side in one buffer, y over gate: allowed */
static void columns_of_one_buffer_do_not_overlap(void **state)
{
    (void)state;
    float buffer[4 * 12];
    for (int i = 0; i < 48; i++) buffer[i] = 1;
    kvm_tensor gate = kvm_view2(buffer, KVM_F32, 4, 6);
    gate.stride[0] = 12;
    kvm_tensor up = gate;
    up.data = buffer + 6;
    kvm_err err = {0};
    check_ok(kvm_op_silu_mul(c, gate, gate, up, &err), &err);
    assert_true(fabsf(buffer[0] - 0.7310586f) < 1e-6f && buffer[6] == 1);
}

static void backends_are_found_by_name(void **state)
{
    (void)state;
    assert_null(kvm_backend_find(KVM_STR("gpu")));
    assert_null(kvm_backend_find(KVM_STR("cpu-mmx")));
    assert_non_null(kvm_backend_find(KVM_STR("ref")));
    assert_non_null(kvm_backend_find(KVM_STR("cpu-plain")));
    /* the one that rounds activations is had by its own name alone */
    assert_string_not_equal(kvm_backend_find(KVM_STR("cpu"))->isa(), "bf16");
    check_contains(kvm_compute_describe(c, &keep).at, "cpu threads=2 isa=");
    kvm_compute *none;
    refused(KVM_NOTFOUND, "no such backend",
            kvm_compute_new(&none, &keep, NULL, 1, &err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(extents_must_agree),
        cmocka_unit_test(groups_heads_and_positions_must_fit),
        cmocka_unit_test(windows_and_states_must_fit),
        cmocka_unit_test(gradients_must_fit),
        cmocka_unit_test(gradients_of_maps_must_fit),
        cmocka_unit_test(ids_must_be_rows),
        cmocka_unit_test(types_must_fit),
        cmocka_unit_test(strides_must_be_sound),
        cmocka_unit_test(a_written_view_overlaps_no_other),
        cmocka_unit_test(columns_of_one_buffer_do_not_overlap),
        cmocka_unit_test(backends_are_found_by_name),
    };
    return cmocka_run_group_tests_name("op shapes", tests, setup, teardown);
}
