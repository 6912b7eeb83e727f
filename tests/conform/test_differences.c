/* Gradients of ref against differences of its forward ops, both in f64. */
#include "tests/conform/f64.h"

#include "kernels/ref_backward.c"
#include "kernels/ref_model.c"

/* the views of one case: L = sum of y dy */
typedef struct bed {
    kvm_tensor x, y, dy, w, q, k, v;
    const kvm_mask *mask;
    ptrdiff_t first, window;
    bool other; /* plus_one, or sigmoid instead of silu */
} bed;

enum { GROUP = 6 };
static const double eps = 1e-3, scale = 0.4;

/* ---- rmsnorm, linear ---- */

static double norm_loss(void *ctx)
{
    bed *b = ctx;
    OK(kvm_ref__rmsnorm(&context, &b->y, &b->x, &b->w, GROUP, eps, b->other, &failure));
    return inner(b->y, b->dy);
}

static void test_rmsnorm(void **state)
{
    (void)state;
    for (int form = 0; form < 4; form++) {
        bed b = {.x = random_view(3, 2 * GROUP, 0), .other = form & 1};
        const kvm_tensor w = random_view(1, form & 2 ? GROUP : 2 * GROUP, 0);
        b.w = kvm_view1(w.data, KVM_F64, w.dim[1]);
        b.dy = random_view(3, 2 * GROUP, 0);
        b.y = zero_view(b.x);
        kvm_tensor dx = zero_view(b.x);
        OK(kvm_ref__rmsnorm_back(&context, &dx, &b.x, &b.w, &b.dy, GROUP, eps, b.other,
                                 true, &failure));
        check_gradient("rmsnorm", b.x, dx, norm_loss, &b);
    }
}

static double linear_loss(void *ctx)
{
    bed *b = ctx;
    const kvm_weight w = {.matrix = b->w};
    OK(kvm_ref__linear(&context, &b->y, &b->x, &w, false, &failure));
    return inner(b->y, b->dy);
}

static void test_linear(void **state)
{
    (void)state;
    bed b = {.x = random_view(3, 7, 0), .w = random_view(5, 7, 0)};
    b.dy = random_view(3, 5, 0);
    b.y = zero_view(b.dy);
    kvm_tensor dx = zero_view(b.x);
    const kvm_weight w = {.matrix = b.w};
    OK(kvm_ref__linear_back(&context, &dx, &b.dy, &w, false, &failure));
    check_gradient("linear", b.x, dx, linear_loss, &b);
}

/* ---- rope: its transpose is its inverse with the factor turned over ---- */

static const int32_t positions[] = {0, 3, 77};

static double rope_loss(void *ctx)
{
    const bed *b = ctx;
    static const double freq[] = {1, 0.3, 0.01};
    const kvm_rope r = {freq, 6, b->other, 1.5};
    memcpy(b->y.data, b->x.data, (size_t)kvm_tensor_count(&b->x) * sizeof(double));
    OK(kvm_ref__rope(&context, &b->y, positions, &r, false, &failure));
    return inner(b->y, b->dy);
}

static void test_rope(void **state)
{
    (void)state;
    for (int form = 0; form < 2; form++) {
        static const double freq[] = {1, 0.3, 0.01};
        const kvm_rope back = {freq, 6, form, 1 / 1.5};
        bed b = {.x = random_view(3, 2, 8), .dy = random_view(3, 2, 8), .other = form};
        b.y = zero_view(b.x);
        kvm_tensor dx = zero_view(b.x);
        memcpy(dx.data, b.dy.data, (size_t)kvm_tensor_count(&dx) * sizeof(double));
        OK(kvm_ref__rope(&context, &dx, positions, &back, true, &failure));
        check_gradient("rope", b.x, dx, rope_loss, &b);
    }
}

/* ---- attention ---- */

static double attention_loss(void *ctx)
{
    bed *b = ctx;
    OK(kvm_ref__attention(&context, &b->y, &b->q, &b->k, &b->v, b->first, b->window,
                          b->mask, scale, &failure));
    return inner(b->y, b->dy);
}

static void attention_case(ptrdiff_t window, const kvm_mask *mask)
{
    enum { T = 4, HEADS = 4, KV = 2, D = 5, E = 3, C = 12 };
    bed b = {.q = random_view(T, HEADS, D),
             .k = random_view(KV, C, D),
             .v = random_view(KV, C, E),
             .dy = random_view(T, HEADS, E),
             .first = 7,
             .window = window,
             .mask = mask};
    b.y = zero_view(b.dy);
    kvm_tensor dq = zero_view(b.q), dk = zero_view(b.k), dv = zero_view(b.v);
    OK(kvm_ref__attention_back(&context, &dq, &dk, &dv, &b.q, &b.k, &b.v, &b.dy,
                               b.first, window, mask, scale, &failure));
    check_gradient("queries", b.q, dq, attention_loss, &b);
    check_gradient("keys", b.k, dk, attention_loss, &b);
    check_gradient("values", b.v, dv, attention_loss, &b);
}

static void test_attention(void **state)
{
    (void)state;
    static const uint64_t bits[] = {0x85, 0x1f2, 0x200, 0x7ff};
    const kvm_mask mask = {bits, 1};
    attention_case(0, NULL);
    attention_case(3, NULL);
    attention_case(0, &mask);
}

static double index_loss(void *ctx)
{
    bed *b = ctx;
    OK(kvm_ref__index_score(&context, &b->y, &b->q, &b->k, &b->w, scale, &failure));
    return inner(b->y, b->dy);
}

static void test_index(void **state)
{
    (void)state;
    bed b = {.q = random_view(3, 4, 5),
             .k = random_view(6, 5, 0),
             .w = random_view(3, 4, 0),
             .dy = random_view(3, 6, 0)};
    b.y = zero_view(b.dy);
    kvm_tensor dk = zero_view(b.k);
    OK(kvm_ref__index_score_back(&context, &dk, &b.q, &b.k, &b.w, &b.dy, scale,
                                 &failure));
    check_gradient("index keys", b.k, dk, index_loss, &b);
}

/* ---- gates ---- */

static double value_at(kvm_tensor t, ptrdiff_t i)
{
    return ((const double *)t.data)[i];
}

static double gated_loss(void *ctx)
{
    const bed *b = ctx;
    double sum = 0;
    for (ptrdiff_t i = 0; i < kvm_tensor_count(&b->x); i++) {
        const double g = value_at(b->x, i), s = 1 / (1 + exp(-g));
        sum += value_at(b->dy, i) * value_at(b->w, i) * (b->other ? s : g * s);
    }
    return sum;
}

static void test_gates(void **state)
{
    (void)state;
    for (int form = 0; form < 2; form++) {
        bed b = {.x = random_view(3, 5, 0),
                 .w = random_view(3, 5, 0),
                 .dy = random_view(3, 5, 0),
                 .other = form};
        kvm_tensor dgate = zero_view(b.x), dup = zero_view(b.x);
        OK((form ? kvm_ref__sigmoid_mul_back : kvm_ref__silu_mul_back)(
            &context, &dgate, &dup, &b.x, &b.w, &b.dy, &failure));
        check_gradient("gate", b.x, dgate, gated_loss, &b);
        check_gradient("up", b.w, dup, gated_loss, &b);
    }
}

static double relu2_loss(void *ctx)
{
    const bed *b = ctx;
    double sum = 0;
    for (ptrdiff_t i = 0; i < kvm_tensor_count(&b->x); i++)
        sum += value_at(b->dy, i) * pow(fmax(value_at(b->x, i), 0), 2);
    return sum;
}

static void test_relu2(void **state)
{
    (void)state;
    bed b = {.x = random_view(3, 5, 0), .dy = random_view(3, 5, 0)};
    kvm_tensor dx = zero_view(b.x);
    OK(kvm_ref__relu2_back(&context, &dx, &b.x, &b.dy, &failure));
    check_gradient("relu2", b.x, dx, relu2_loss, &b);
}

/* ---- the loss ---- */

static double kl_loss(void *ctx)
{
    const bed *b = ctx;
    double kl[3], sum = 0;
    memcpy(b->y.data, b->x.data, (size_t)kvm_tensor_count(&b->x) * sizeof(double));
    OK(kvm_ref__kl_back(&context, kl, &b->y, &b->w, 1, &failure));
    for (int t = 0; t < 3; t++) sum += kl[t];
    return 0.7 * sum;
}

static void test_kl(void **state)
{
    (void)state;
    double kl[3];
    bed b = {.x = random_view(3, 9, 0), .w = random_view(3, 9, 0)};
    b.y = zero_view(b.x);
    kvm_tensor dx = zero_view(b.x);
    memcpy(dx.data, b.x.data, (size_t)kvm_tensor_count(&dx) * sizeof(double));
    OK(kvm_ref__kl_back(&context, kl, &dx, &b.w, 0.7, &failure));
    check_gradient("kl", b.x, dx, kl_loss, &b);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, open_bed, close_bed)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_rmsnorm), TEST(test_linear), TEST(test_rope),  TEST(test_attention),
        TEST(test_index),   TEST(test_gates),  TEST(test_relu2), TEST(test_kl),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
