/* ref, the judge of the other backends, against float64 vectors of NumPy and PyTorch,
 * and the stored number formats against PyTorch and the gguf package
 * (tests/golden/ops/make.py). */
#include "kernels/backend.h"

#include <math.h>
#include <string.h>

#include "base/json.h"
#include "tests/support/check.h"

static kvm_arena keep;
static kvm_jat cases, dtypes;
static kvm_compute *c;

/* one case of the file */
typedef struct vector {
    kvm_jat at;
    ptrdiff_t n[8]; /* "ints" */
    float real;     /* the first of "reals" */
} vector;

static int digit(char x)
{
    return x <= '9' ? x - '0' : x - 'a' + 10;
}

/* the bytes of a hex member; count of elements of `size` bytes */
static void *bytes_of(kvm_jat at, const char *key, ptrdiff_t size, ptrdiff_t *count)
{
    kvm_err err = {0};
    kvm_str hex;
    check_ok(kvm_json_str(kvm_json_get(at, &keep, key), &hex, &err), &err);
    uint8_t *p = kvm_new_raw(&keep, uint8_t, hex.len / 2 + 1);
    assert_non_null(p);
    for (ptrdiff_t i = 0; i < hex.len / 2; i++)
        p[i] = (uint8_t)(digit(hex.at[2 * i]) << 4 | digit(hex.at[2 * i + 1]));
    if (count) *count = hex.len / 2 / size;
    return p;
}

static void *data(const vector *v, const char *key)
{
    return bytes_of(v->at, key, 1, NULL);
}

static kvm_tensor matrix(const vector *v, const char *key, ptrdiff_t n0, ptrdiff_t n1)
{
    return kvm_view2(data(v, key), KVM_F32, n0, n1);
}

static kvm_tensor matrix64(const vector *v, const char *key, ptrdiff_t n0, ptrdiff_t n1)
{
    return kvm_view2(data(v, key), KVM_F64, n0, n1);
}

static kvm_tensor empty(kvm_dtype d, ptrdiff_t n0, ptrdiff_t n1)
{
    kvm_tensor t = kvm_view2(kvm_new(&keep, double, n0 *n1 + 1), d, n0, n1);
    assert_non_null(t.data);
    return t;
}

static void equals(const vector *v, const char *op, kvm_tensor got)
{
    ptrdiff_t n;
    const double *want = bytes_of(v->at, "out", 8, &n);
    assert_true(n == kvm_tensor_count(&got) && n > 0);
    const bool wide = got.dtype == KVM_F64;
    /* ref sums in f64 and rounds once: half an ulp, and the same again for an input */
    const double allowed = wide ? 1e-12 : 1.2e-7;
    double top = 0, worst = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        const double x =
            wide ? ((double *)got.data)[i] : (double)((float *)got.data)[i];
        top = fmax(top, fabs(want[i]));
        if (!(fabs(x - want[i]) <= worst)) worst = fabs(x - want[i]);
    }
    if (!(worst <= allowed * top)) fail_msg("%s: off by %g of %g", op, worst, top);
}

/* ---- one function per op --------------------------------------------------------- */

static kvm_status golden_embed(const vector *v, kvm_tensor *out, kvm_err *err)
{
    (void)v, (void)out, (void)err; /* widening is tested type by type below */
    return KVM_OK;
}

static kvm_status golden_rmsnorm(const vector *v, kvm_tensor *out, kvm_err *err)
{
    const kvm_tensor x = matrix(v, "x", v->n[0], v->n[1]);
    const kvm_tensor w = kvm_view1(data(v, "w"), KVM_F32, v->n[3]);
    *out = x;
    return kvm_op_rmsnorm(c, x, x, w, v->n[2], 1e-5, v->n[4], err);
}

static kvm_status golden_linear(const vector *v, kvm_tensor *out, kvm_err *err)
{
    kvm_weight *w;
    TRY(kvm_weight_new(&w, &keep, c, matrix(v, "w", v->n[2], v->n[1]), data(v, "b"),
                       err));
    *out = matrix(v, "y", v->n[0], v->n[2]);
    return kvm_op_linear(c, *out, matrix(v, "x", v->n[0], v->n[1]), w, v->n[3], err);
}

static kvm_status golden_rope(const vector *v, kvm_tensor *out, kvm_err *err)
{
    const kvm_rope r = {data(v, "freq"), v->n[3], v->n[4], v->real};
    *out = kvm_view3(data(v, "x"), KVM_F32, v->n[0], v->n[1], v->n[2]);
    return kvm_op_rope(c, *out, data(v, "pos"), &r, v->n[5], err);
}

static kvm_status golden_attention(const vector *v, kvm_tensor *out, kvm_err *err)
{
    const ptrdiff_t *n = v->n;
    *out = empty(KVM_F32, n[0], n[1] * n[4]);
    const kvm_tensor y = kvm_view3(out->data, KVM_F32, n[0], n[1], n[4]);
    return kvm_op_attention(c, y, kvm_view3(data(v, "q"), KVM_F32, n[0], n[1], n[3]),
                            kvm_view3(data(v, "k"), KVM_F32, n[2], n[5], n[3]),
                            kvm_view3(data(v, "v"), KVM_F32, n[2], n[5], n[4]), n[6],
                            n[7], (double)v->real, err);
}

static kvm_status golden_silu_mul(const vector *v, kvm_tensor *out, kvm_err *err)
{
    *out = matrix(v, "gate", v->n[0], v->n[1]);
    return kvm_op_silu_mul(c, *out, *out, matrix(v, "up", v->n[0], v->n[1]), err);
}

static kvm_status golden_logprob(const vector *v, kvm_tensor *out, kvm_err *err)
{
    *out = empty(KVM_F64, 1, v->n[0]);
    return kvm_op_logprob(c, out->data, matrix(v, "x", v->n[0], v->n[1]),
                          data(v, "ids"), err);
}

static kvm_status golden_gram(const vector *v, kvm_tensor *out, kvm_err *err)
{
    *out = matrix64(v, "start", v->n[1], v->n[1]);
    return kvm_op_gram(c, *out, matrix(v, "x", v->n[0], v->n[1]), err);
}

static kvm_status golden_cross(const vector *v, kvm_tensor *out, kvm_err *err)
{
    *out = empty(KVM_F64, v->n[1], v->n[2]);
    return kvm_op_cross(c, *out, matrix(v, "x", v->n[0], v->n[1]),
                        matrix(v, "y", v->n[0], v->n[2]), err);
}

static kvm_status golden_cholesky(const vector *v, kvm_tensor *out, kvm_err *err)
{
    *out = matrix64(v, "a", v->n[0], v->n[0]);
    return kvm_op_cholesky(c, *out, err);
}

static kvm_status golden_cholesky_solve(const vector *v, kvm_tensor *out, kvm_err *err)
{
    *out = matrix64(v, "b", v->n[0], v->n[1]);
    return kvm_op_cholesky_solve(c, matrix64(v, "factor", v->n[0], v->n[0]), *out, err);
}

static kvm_status golden_eigh(const vector *v, kvm_tensor *out, kvm_err *err)
{
    *out = empty(KVM_F64, 1, v->n[0]);
    return kvm_op_eigh(c, matrix64(v, "a", v->n[0], v->n[0]), out->data, err);
}

/* a or b as stored: transposed or not */
static kvm_tensor side(const vector *v, const char *key, kvm_dtype d, ptrdiff_t n0,
                       ptrdiff_t n1, bool turned)
{
    return kvm_view2(data(v, key), d, turned ? n1 : n0, turned ? n0 : n1);
}

static kvm_status golden_gemm64(const vector *v, kvm_tensor *out, kvm_err *err)
{
    const ptrdiff_t *n = v->n;
    *out = empty(KVM_F64, n[0], n[2]);
    return kvm_op_gemm64(c, *out, side(v, "a", KVM_F64, n[0], n[1], n[3]), n[3],
                         side(v, "b", KVM_F64, n[1], n[2], n[4]), n[4], err);
}

static kvm_status golden_gemm32(const vector *v, kvm_tensor *out, kvm_err *err)
{
    const ptrdiff_t *n = v->n;
    *out = matrix(v, "start", n[0], n[2]);
    return kvm_op_gemm32(c, *out, side(v, "a", KVM_F32, n[0], n[1], n[3]), n[3],
                         side(v, "b", KVM_F32, n[1], n[2], n[4]), n[4], (double)v->real,
                         err);
}

static kvm_status golden_sigmoid_mul(const vector *v, kvm_tensor *out, kvm_err *err)
{
    *out = matrix(v, "gate", v->n[0], v->n[1]);
    return kvm_op_sigmoid_mul(c, *out, *out, matrix(v, "up", v->n[0], v->n[1]), err);
}

/* outputs, then the state they leave, one after the other in a row of `out` */
static kvm_status golden_index_score(const vector *v, kvm_tensor *out, kvm_err *err)
{
    const ptrdiff_t t = v->n[0], heads = v->n[1], dim = v->n[2], tokens = v->n[3];
    *out = empty(KVM_F32, t, tokens);
    return kvm_op_index_score(c, *out, kvm_view3(data(v, "q"), KVM_F32, t, heads, dim),
                              matrix(v, "k", tokens, dim), matrix(v, "w", t, heads),
                              (double)v->real, err);
}

static kvm_status golden_conv(const vector *v, kvm_tensor *out, kvm_err *err)
{
    const ptrdiff_t t = v->n[0], channels = v->n[1], taps = v->n[2];
    *out = empty(KVM_F32, 1, (t + taps) * channels);
    const kvm_tensor y = kvm_view2(out->data, KVM_F32, t, channels);
    const kvm_tensor window =
        kvm_view2((float *)out->data + t * channels, KVM_F32, channels, taps);
    memcpy(window.data, data(v, "window"), (size_t)(channels * taps) * sizeof(float));
    return kvm_op_conv(c, y, matrix(v, "x", t, channels),
                       matrix(v, "w", channels, taps), v->n[3] ? data(v, "b") : NULL,
                       window, err);
}

static kvm_status golden_delta(const vector *v, kvm_tensor *out, kvm_err *err)
{
    const ptrdiff_t t = v->n[0], hk = v->n[1], h = v->n[2], dk = v->n[3], dv = v->n[4];
    *out = empty(KVM_F32, 1, h * dv * (t + dk));
    float *s = (float *)out->data + t * h * dv;
    memcpy(s, data(v, "state"), (size_t)(h * dk * dv) * sizeof *s);
    const kvm_tensor g = v->n[5] ? kvm_view3(data(v, "g"), KVM_F32, t, h, dk)
                                 : kvm_view2(data(v, "g"), KVM_F32, t, h);
    return kvm_op_delta(c, kvm_view3(out->data, KVM_F32, t, h, dv),
                        kvm_view3(data(v, "q"), KVM_F32, t, hk, dk),
                        kvm_view3(data(v, "k"), KVM_F32, t, hk, dk),
                        kvm_view3(data(v, "v"), KVM_F32, t, h, dv), g,
                        matrix(v, "beta", t, h), kvm_view3(s, KVM_F32, h, dk, dv), err);
}

static kvm_status golden_scan(const vector *v, kvm_tensor *out, kvm_err *err)
{
    const ptrdiff_t t = v->n[0], groups = v->n[1], h = v->n[2], d = v->n[3],
                    e = v->n[4];
    *out = empty(KVM_F32, 1, h * e * (t + d));
    float *s = (float *)out->data + t * h * e;
    memcpy(s, data(v, "state"), (size_t)(h * e * d) * sizeof *s);
    return kvm_op_scan(c, kvm_view3(out->data, KVM_F32, t, h, e),
                       kvm_view3(data(v, "q"), KVM_F32, t, groups, d),
                       kvm_view3(data(v, "k"), KVM_F32, t, groups, d),
                       kvm_view3(data(v, "v"), KVM_F32, t, h, e), matrix(v, "dt", t, h),
                       kvm_view1(data(v, "rate"), KVM_F32, h),
                       kvm_view1(data(v, "skip"), KVM_F32, h),
                       kvm_view3(s, KVM_F32, h, e, d), err);
}

/* ---- gradients of recurrent ops: one after the other in a row of `out` ----------- */

/* the next of them */
static kvm_tensor next(float **at, kvm_tensor like)
{
    like.data = *at;
    *at += kvm_tensor_count(&like);
    return like;
}

/* likewise, with the gradient of what the tokens leave behind */
static kvm_tensor next_end(const vector *v, float **at, kvm_tensor like)
{
    const kvm_tensor d = next(at, like);
    memcpy(d.data, data(v, "dend"), (size_t)kvm_tensor_count(&d) * sizeof(float));
    return d;
}

static kvm_status golden_conv_back(const vector *v, kvm_tensor *out, kvm_err *err)
{
    const ptrdiff_t t = v->n[0], channels = v->n[1], taps = v->n[2];
    const kvm_tensor x = matrix(v, "x", t, channels);
    const kvm_tensor window = matrix(v, "window", channels, taps);
    *out = empty(KVM_F32, 1, (t + taps) * channels);
    float *at = out->data;
    const kvm_tensor dx = next(&at, x);
    return kvm_op_conv_back(
        c, dx, next_end(v, &at, window), x, matrix(v, "w", channels, taps),
        v->n[3] ? data(v, "b") : NULL, window, matrix(v, "dy", t, channels), err);
}

static kvm_status golden_delta_back(const vector *v, kvm_tensor *out, kvm_err *err)
{
    const ptrdiff_t t = v->n[0], hk = v->n[1], h = v->n[2], dk = v->n[3], dv = v->n[4];
    const kvm_tensor state = kvm_view3(data(v, "state"), KVM_F32, h, dk, dv);
    const kvm_delta_rows in = {.q = kvm_view3(data(v, "q"), KVM_F32, t, hk, dk),
                               .k = kvm_view3(data(v, "k"), KVM_F32, t, hk, dk),
                               .v = kvm_view3(data(v, "v"), KVM_F32, t, h, dv),
                               .g = v->n[5] ? kvm_view3(data(v, "g"), KVM_F32, t, h, dk)
                                            : kvm_view2(data(v, "g"), KVM_F32, t, h),
                               .beta = matrix(v, "beta", t, h)};
    *out = empty(KVM_F32, 1,
                 2 * t * hk * dk + t * h * (dv + (v->n[5] ? dk : 1) + 1) + h * dk * dv);
    float *at = out->data;
    kvm_delta_rows d;
    d.q = next(&at, in.q), d.k = next(&at, in.k), d.v = next(&at, in.v);
    d.g = next(&at, in.g), d.beta = next(&at, in.beta);
    return kvm_op_delta_back(c, &d, next_end(v, &at, state), &in, state,
                             kvm_view3(data(v, "dy"), KVM_F32, t, h, dv), err);
}

static kvm_status golden_scan_back(const vector *v, kvm_tensor *out, kvm_err *err)
{
    const ptrdiff_t t = v->n[0], groups = v->n[1], h = v->n[2], n = v->n[3];
    const ptrdiff_t e = v->n[4];
    const kvm_tensor state = kvm_view3(data(v, "state"), KVM_F32, h, e, n);
    const kvm_scan_rows in = {.q = kvm_view3(data(v, "q"), KVM_F32, t, groups, n),
                              .k = kvm_view3(data(v, "k"), KVM_F32, t, groups, n),
                              .v = kvm_view3(data(v, "v"), KVM_F32, t, h, e),
                              .dt = matrix(v, "dt", t, h)};
    *out = empty(KVM_F32, 1, 2 * t * groups * n + t * h * (e + 1) + h * e * n);
    float *at = out->data;
    kvm_scan_rows d;
    d.q = next(&at, in.q), d.k = next(&at, in.k), d.v = next(&at, in.v);
    d.dt = next(&at, in.dt);
    return kvm_op_scan_back(c, &d, next_end(v, &at, state), &in,
                            kvm_view1(data(v, "rate"), KVM_F32, h),
                            kvm_view1(data(v, "skip"), KVM_F32, h), state,
                            kvm_view3(data(v, "dy"), KVM_F32, t, h, e), err);
}

/* ---- gradients of the other ops, likewise ---- */

static kvm_status golden_rmsnorm_back(const vector *v, kvm_tensor *out, kvm_err *err)
{
    const ptrdiff_t t = v->n[0], f = v->n[1];
    *out = matrix(v, "dx", t, f);
    return kvm_op_rmsnorm_back(
        c, *out, matrix(v, "x", t, f), kvm_view1(data(v, "w"), KVM_F32, f),
        matrix(v, "dy", t, f), v->n[2], 1e-5, v->n[3], v->n[4], err);
}

static kvm_status golden_linear_back(const vector *v, kvm_tensor *out, kvm_err *err)
{
    kvm_weight *w;
    TRY(kvm_weight_new(&w, &keep, c, matrix(v, "w", v->n[2], v->n[1]), NULL, err));
    *out = matrix(v, "dx", v->n[0], v->n[1]);
    return kvm_op_linear_back(c, *out, matrix(v, "dy", v->n[0], v->n[2]), w, v->n[3],
                              err);
}

static kvm_status golden_attention_back(const vector *v, kvm_tensor *out, kvm_err *err)
{
    const ptrdiff_t *n = v->n;
    const kvm_tensor q = kvm_view3(data(v, "q"), KVM_F32, n[0], n[1], n[3]);
    const kvm_tensor k = kvm_view3(data(v, "k"), KVM_F32, n[2], n[5], n[3]);
    const kvm_tensor values = kvm_view3(data(v, "v"), KVM_F32, n[2], n[5], n[4]);
    const kvm_tensor dy = kvm_view3(data(v, "dy"), KVM_F32, n[0], n[1], n[4]);
    *out = empty(KVM_F32, 1, n[0] * n[1] * n[3] + n[2] * n[5] * (n[3] + n[4]));
    float *at = out->data;
    memset(at, 0, (size_t)kvm_tensor_count(out) * sizeof *at);
    const kvm_tensor dq = next(&at, q), dk = next(&at, k), dv = next(&at, values);
    return kvm_op_attention_back(c, dq, dk, dv, q, k, values, dy, n[6], n[7], NULL,
                                 (double)v->real, err);
}

static kvm_status gates_back(const vector *v, kvm_tensor *out, bool silu, kvm_err *err)
{
    const ptrdiff_t t = v->n[0], f = v->n[1];
    const kvm_tensor gate = matrix(v, "gate", t, f), up = matrix(v, "up", t, f);
    *out = empty(KVM_F32, 2 * t, f);
    float *at = out->data;
    const kvm_tensor dgate = next(&at, gate), dup = next(&at, up);
    return (silu ? kvm_op_silu_mul_back : kvm_op_sigmoid_mul_back)(
        c, dgate, dup, gate, up, matrix(v, "dy", t, f), err);
}

static kvm_status golden_silu_mul_back(const vector *v, kvm_tensor *out, kvm_err *err)
{
    return gates_back(v, out, true, err);
}

static kvm_status golden_sigmoid_mul_back(const vector *v, kvm_tensor *out,
                                          kvm_err *err)
{
    return gates_back(v, out, false, err);
}

static kvm_status golden_relu2_back(const vector *v, kvm_tensor *out, kvm_err *err)
{
    *out = matrix(v, "x", v->n[0], v->n[1]);
    return kvm_op_relu2_back(c, *out, *out, matrix(v, "dy", v->n[0], v->n[1]), err);
}

static kvm_status golden_index_score_back(const vector *v, kvm_tensor *out,
                                          kvm_err *err)
{
    const ptrdiff_t t = v->n[0], h = v->n[1], d = v->n[2], n = v->n[3];
    *out = empty(KVM_F32, n, d);
    memset(out->data, 0, (size_t)(n * d) * sizeof(float));
    return kvm_op_index_score_back(c, *out, kvm_view3(data(v, "q"), KVM_F32, t, h, d),
                                   matrix(v, "k", n, d), matrix(v, "w", t, h),
                                   matrix(v, "dy", t, n), (double)v->real, err);
}

static kvm_status golden_kl_back(const vector *v, kvm_tensor *out, kvm_err *err)
{
    double kl[4];
    *out = matrix(v, "x", v->n[0], v->n[1]);
    return kvm_op_kl_back(c, kl, *out, matrix(v, "native", v->n[0], v->n[1]),
                          (double)v->real, err);
}

static kvm_status golden_relu2(const vector *v, kvm_tensor *out, kvm_err *err)
{
    *out = matrix(v, "x", v->n[0], v->n[1]);
    return kvm_op_relu2(c, *out, *out, err);
}

static kvm_status (*const golden[KVM_OPS])(const vector *, kvm_tensor *, kvm_err *) = {
#define X(id, name, rule, tolerance, reason) [id] = golden_##name,
#include "kernels/ops.def"
#undef X
};

static vector read_case(ptrdiff_t i)
{
    kvm_err err = {0};
    vector v = {.at = kvm_json_item(cases, &keep, i)};
    const kvm_jat ints = kvm_json_get(v.at, &keep, "ints");
    const kvm_jat reals = kvm_json_get(v.at, &keep, "reals");
    ptrdiff_t n;
    check_ok(kvm_json_array(ints, &n, &err), &err);
    assert_true(n <= 8);
    for (ptrdiff_t k = 0; k < n; k++) {
        int64_t x;
        check_ok(kvm_json_i64(kvm_json_item(ints, &keep, k), &x, &err), &err);
        v.n[k] = (ptrdiff_t)x;
    }
    check_ok(kvm_json_array(reals, &n, &err), &err);
    double real = 0;
    if (n) check_ok(kvm_json_f64(kvm_json_item(reals, &keep, 0), &real, &err), &err);
    v.real = (float)real;
    return v;
}

static void ref_equals_float64(void **state)
{
    (void)state;
    int seen[KVM_OPS] = {0};
    kvm_err err = {0};
    ptrdiff_t n;
    check_ok(kvm_json_array(cases, &n, &err), &err);
    for (ptrdiff_t i = 0; i < n; i++) {
        const vector v = read_case(i);
        kvm_str op;
        check_ok(kvm_json_str(kvm_json_get(v.at, &keep, "op"), &op, &err), &err);
        int id = 0;
        while (id < KVM_OPS && !kvm_str_eq(op, kvm_str_of(kvm_op_rows[id].name))) id++;
        assert_true(id < KVM_OPS);
        seen[id]++;
        kvm_tensor out;
        check_ok(golden[id](&v, &out, &err), &err);
        equals(&v, op.at, out);
    }
    for (int id = KVM_OP_embed + 1; id < KVM_OPS; id++) assert_true(seen[id]);
}

/* ---- stored types ---------------------------------------------------------------- */

static bool same(float a, float b, bool signed_zero)
{
    if (isnan(a) && isnan(b)) return true;
    return a == b && (!signed_zero || signbit(a) == signbit(b));
}

static kvm_dtype dtype_named(kvm_str name)
{
    int d = 0;
    while (d < KVM_DTYPES &&
           !kvm_str_eq(name, kvm_str_of(kvm_dtype_name((kvm_dtype)d))))
        d++;
    assert_true(d < KVM_DTYPES);
    return (kvm_dtype)d;
}

static void check_dtype(kvm_jat at)
{
    kvm_err err = {0};
    kvm_str name;
    check_ok(kvm_json_str(kvm_json_get(at, &keep, "name"), &name, &err), &err);
    const kvm_dtype d = dtype_named(name);
    ptrdiff_t n, m;
    const float *wide = bytes_of(at, "wide", 4, &n);
    float *got = kvm_new_raw(&keep, float, n);
    check_ok(kvm_widen_row(got, bytes_of(at, "raw", 1, NULL), d, n, &err), &err);
    for (ptrdiff_t i = 0; i < n; i++)
        if (!same(got[i], wide[i], kvm_dtype_block(d) == 1))
            fail_msg("%s: element %td is %.9g, not %.9g", name.at, i, (double)got[i],
                     (double)wide[i]);
    const float *source = kvm_dtype_block(d) > 1 ? NULL : bytes_of(at, "source", 4, &m);
    if (!source) {
        check_status(KVM_DTYPE, kvm_narrow_row(got, d, wide, n, &err), &err);
        return;
    }
    /* compared widened, for a NaN may have any payload */
    char *raw = kvm_new_raw(&keep, char, 8 * m);
    float *again = kvm_new_raw(&keep, float, m), *want = kvm_new_raw(&keep, float, m);
    check_ok(kvm_narrow_row(raw, d, source, m, &err), &err);
    check_ok(kvm_widen_row(again, raw, d, m, &err), &err);
    check_ok(kvm_widen_row(want, bytes_of(at, "narrow", 1, NULL), d, m, &err), &err);
    for (ptrdiff_t i = 0; i < m; i++)
        if (!same(again[i], want[i], true))
            fail_msg("%s: %.9g becomes %.9g, not %.9g", name.at, (double)source[i],
                     (double)again[i], (double)want[i]);
}

static void stored_types_equal_their_definitions(void **state)
{
    (void)state;
    kvm_err err = {0};
    ptrdiff_t n;
    check_ok(kvm_json_array(dtypes, &n, &err), &err);
    assert_int_equal(n, 13);
    for (ptrdiff_t i = 0; i < n; i++) check_dtype(kvm_json_item(dtypes, &keep, i));
}

static void integers_round_and_refuse_what_does_not_fit(void **state)
{
    (void)state;
    const float fits[4] = {0.5f, 1.5f, -2.5f, 127.4f}, far = 128, none = NAN;
    int8_t small[4];
    int64_t big;
    kvm_err err = {0};
    check_ok(kvm_narrow_row(small, KVM_I8, fits, 4, &err), &err);
    assert_true(small[0] == 0 && small[1] == 2 && small[2] == -2 && small[3] == 127);
    check_status(KVM_RANGE, kvm_narrow_row(small, KVM_I8, &far, 1, &err), &err);
    check_contains(err.msg, "128");
    err = (kvm_err){0};
    check_status(KVM_RANGE, kvm_narrow_row(&big, KVM_I64, &none, 1, &err), &err);
}

static void names_and_sizes_come_from_the_table(void **state)
{
    (void)state;
    kvm_dtype d;
    ptrdiff_t bytes;
    assert_int_equal(kvm_dtype_of_safetensors(KVM_STR("BF16"), &d), KVM_OK);
    assert_int_equal(d, KVM_BF16);
    assert_int_equal(kvm_dtype_of_safetensors(KVM_STR(""), &d), KVM_DTYPE);
    assert_int_equal(kvm_dtype_of_gguf(14, &d), KVM_OK);
    assert_int_equal(d, KVM_Q6_K);
    assert_int_equal(kvm_dtype_of_gguf(-1, &d), KVM_DTYPE);
    assert_true(kvm_dtype_bytes(KVM_Q4_K, 512, &bytes) && bytes == 288);
    assert_false(kvm_dtype_bytes(KVM_Q4_K, 300, &bytes));
    assert_false(kvm_dtype_bytes(KVM_F64, PTRDIFF_MAX / 2, &bytes));
    kvm_err err = {0};
    float out[64];
    check_status(KVM_SHAPE, kvm_widen_row(out, out, KVM_Q8_0, 33, &err), &err);
}

static int setup(void **state)
{
    (void)state;
    kvm_err err = {0};
    keep = check_arena((size_t)1 << 26);
    kvm_jat root;
    check_ok(kvm_json_read(&root, &keep, KVM_STR("tests/golden/ops/ops.json"), &err),
             &err);
    cases = kvm_json_get(root, &keep, "cases");
    dtypes = kvm_json_get(root, &keep, "dtypes");
    check_ok(kvm_compute_new(&c, &keep, kvm_backend_find(KVM_STR("ref")), 1, &err),
             &err);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ref_equals_float64),
        cmocka_unit_test(stored_types_equal_their_definitions),
        cmocka_unit_test(integers_round_and_refuse_what_does_not_fit),
        cmocka_unit_test(names_and_sizes_come_from_the_table),
    };
    return cmocka_run_group_tests_name("golden ops", tests, setup, teardown);
}
