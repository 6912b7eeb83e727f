/* widen.c - stored numbers to f32 and back, one element or block at a time.
 *
 * Small floats share one decoder and one encoder, told apart by exponent width,
 * mantissa width and whether the top exponent means infinity (IEEE) or is used for
 * numbers (E4M3FN). Block formats are in blocks.h. */
#include "kernels/blocks.h"

#include <math.h>
#include <string.h>

typedef struct small_float {
    int exp_bits, man_bits;
    bool ieee; /* top exponent holds infinities and NaN */
} small_float;

static const small_float half_format = {5, 10, true};
static const small_float e5m2_format = {5, 2, true};
static const small_float e4m3_format = {4, 3, false};

static float of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t to_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float small_widen(uint32_t bits, small_float s)
{
    const int width = 1 + s.exp_bits + s.man_bits, bias = (1 << (s.exp_bits - 1)) - 1;
    const uint32_t sign = bits >> (width - 1) << 31;
    const uint32_t mag = bits & ((1u << (width - 1)) - 1);
    const uint32_t top = ((1u << s.exp_bits) - 1) << s.man_bits;
    if (s.ieee && mag >= top) {
        const uint32_t quiet = mag > top ? 1u << 22 : 0;
        return of_bits(sign | 0x7f800000u | (mag - top) << (23 - s.man_bits) | quiet);
    }
    if (!s.ieee && mag == (1u << (width - 1)) - 1) return of_bits(sign | 0x7fc00000u);
    /* the exponent moves by a multiplication, which also makes subnormals normal */
    const float scale = of_bits((uint32_t)(127 + 127 - bias) << 23);
    return of_bits(sign | to_bits(of_bits(mag << (23 - s.man_bits)) * scale));
}

static uint32_t small_narrow(float f, small_float s)
{
    const int width = 1 + s.exp_bits + s.man_bits, bias = (1 << (s.exp_bits - 1)) - 1;
    const uint32_t u = to_bits(f), a = u & 0x7fffffffu;
    const uint32_t sign = u >> 31 << (width - 1);
    const uint32_t all = (1u << (width - 1)) - 1;
    const uint32_t top = ((1u << s.exp_bits) - 1) << s.man_bits;
    if (a > 0x7f800000u) return sign | (s.ieee ? top | 1u << (s.man_bits - 1) : all);

    const int e = (int)(a >> 23) - 127 + bias; /* biased exponent in the narrow type */
    uint32_t v = a - ((uint32_t)(127 - bias) << 23);
    int shift = 23 - s.man_bits;
    if (e < 1) { /* subnormal: shift the full mantissa further right */
        shift += 1 - e;
        if (shift > 25) return sign;
        v = (a & 0x7fffffu) | 0x800000u;
    }
    v += (1u << (shift - 1)) - 1 + ((v >> shift) & 1); /* ties to even */
    v >>= shift;
    if (s.ieee) return sign | (v >= top ? top : v);
    return sign |
           (v >= all ? all - 1 : v); /* saturates, infinity too, as PyTorch does */
}

static float e8m0_widen(uint8_t b)
{
    if (b == 0xff) return of_bits(0x7fc00000u);
    return b ? of_bits((uint32_t)b << 23) : of_bits(0x00400000u); /* 0 is 2^-127 */
}

static uint8_t e8m0_narrow(float f)
{
    const uint32_t u = to_bits(f), a = u & 0x7fffffffu;
    if (a >= 0x7f800000u) return 0xff;
    const uint32_t e = a >> 23, m = a & 0x7fffffu;
    const bool up = m > 0x400000u || (m == 0x400000u && e);
    return (uint8_t)(e + up);
}

/* ---- rows ------------------------------------------------------------------------ */

/* element i of an unaligned array of `type` */
#define LOOP_IN(type, expr)                                                            \
    for (ptrdiff_t i = 0; i < n; i++) {                                                \
        type v;                                                                        \
        memcpy(&v, (const char *)in + i * (ptrdiff_t)sizeof v, sizeof v);              \
        out[i] = (expr);                                                               \
    }                                                                                  \
    return KVM_OK

kvm_status kvm_widen_row(float *out, const void *in, kvm_dtype d, ptrdiff_t n,
                         kvm_err *err)
{
    ptrdiff_t bytes;
    if (!kvm_dtype_bytes(d, n, &bytes))
        return kvm_fail(err, KVM_SHAPE,
                        "a row of %td elements is no whole blocks of %s", n,
                        kvm_dtype_name(d));
    switch (d) {
    case KVM_F32:
        LOOP_IN(float, v);
    case KVM_F16:
        LOOP_IN(uint16_t, small_widen(v, half_format));
    case KVM_BF16:
        LOOP_IN(uint16_t, of_bits((uint32_t)v << 16));
    case KVM_F64:
        LOOP_IN(double, (float)v);
    case KVM_I64:
        LOOP_IN(int64_t, (float)v);
    case KVM_I32:
        LOOP_IN(int32_t, (float)v);
    case KVM_I16:
        LOOP_IN(int16_t, (float)v);
    case KVM_I8:
        LOOP_IN(int8_t, (float)v);
    case KVM_U8:
        LOOP_IN(uint8_t, (float)v);
    case KVM_BOOL:
        LOOP_IN(uint8_t, v ? 1.0f : 0.0f);
    case KVM_F8_E4M3:
        LOOP_IN(uint8_t, small_widen(v, e4m3_format));
    case KVM_F8_E5M2:
        LOOP_IN(uint8_t, small_widen(v, e5m2_format));
    case KVM_F8_E8M0:
        LOOP_IN(uint8_t, e8m0_widen(v));
    case KVM_Q4_0:
    case KVM_Q4_1:
    case KVM_Q5_0:
    case KVM_Q5_1:
    case KVM_Q8_0:
    case KVM_Q4_K:
    case KVM_Q5_K:
    case KVM_Q6_K:
        if (widen_blocks(out, in, d, n)) return KVM_OK;
        break;
    case KVM_DTYPES:
        break;
    }
    return kvm_fail(err, KVM_DTYPE, "unknown dtype %d", (int)d);
}

void kvm_scale_row(float *x, const kvm_scales *s, ptrdiff_t r, ptrdiff_t from,
                   ptrdiff_t n)
{
    const float *grid = s->grid + (s->first + r) / s->rows * s->pitch;
    for (ptrdiff_t i = 0; i < n;) {
        const ptrdiff_t block = (from + i) / s->cols;
        const ptrdiff_t left = (block + 1) * s->cols - from;
        const float by = grid[block];
        for (const ptrdiff_t end = left < n ? left : n; i < end; i++) x[i] *= by;
    }
}

kvm_status kvm_widen_at(float *out, const kvm_tensor *t, ptrdiff_t r, ptrdiff_t from,
                        ptrdiff_t n, kvm_err *err)
{
    const ptrdiff_t at = (r * t->stride[0] + from) / kvm_dtype_block(t->dtype);
    TRY(kvm_widen_row(out, (const char *)t->data + at * kvm_dtype_block_bytes(t->dtype),
                      t->dtype, n, err));
    if (t->scales) kvm_scale_row(out, t->scales, r, from, n);
    return KVM_OK;
}

#define LOOP_OUT(type, expr)                                                           \
    for (ptrdiff_t i = 0; i < n; i++) {                                                \
        const float v = in[i];                                                         \
        const type w = (type)(expr);                                                   \
        memcpy((char *)out + i * (ptrdiff_t)sizeof w, &w, sizeof w);                   \
    }                                                                                  \
    return KVM_OK

static uint16_t bf16_narrow(float f)
{
    const uint32_t u = to_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

/* every element of in, rounded, within [low, high): else KVM_RANGE */
static kvm_status in_range(const float *in, ptrdiff_t n, double low, double high,
                           kvm_dtype d, kvm_err *err)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        const double r = rint((double)in[i]);
        if (!(r >= low && r < high))
            return kvm_fail(err, KVM_RANGE, "element %td (%g) does not fit %s", i,
                            (double)in[i], kvm_dtype_name(d));
    }
    return KVM_OK;
}

kvm_status kvm_narrow_row(void *out, kvm_dtype d, const float *in, ptrdiff_t n,
                          kvm_err *err)
{
    if (n < 0) return kvm_fail(err, KVM_SHAPE, "a row of %td elements", n);
    switch (d) {
    case KVM_F32:
        LOOP_OUT(float, v);
    case KVM_F16:
        LOOP_OUT(uint16_t, small_narrow(v, half_format));
    case KVM_BF16:
        LOOP_OUT(uint16_t, bf16_narrow(v));
    case KVM_F64:
        LOOP_OUT(double, v);
    case KVM_I64:
        TRY(in_range(in, n, -0x1p63, 0x1p63, d, err));
        LOOP_OUT(int64_t, rintf(v));
    case KVM_I32:
        TRY(in_range(in, n, -0x1p31, 0x1p31, d, err));
        LOOP_OUT(int32_t, rintf(v));
    case KVM_I16:
        TRY(in_range(in, n, -0x1p15, 0x1p15, d, err));
        LOOP_OUT(int16_t, rintf(v));
    case KVM_I8:
        TRY(in_range(in, n, -128, 128, d, err));
        LOOP_OUT(int8_t, rintf(v));
    case KVM_U8:
        TRY(in_range(in, n, 0, 256, d, err));
        LOOP_OUT(uint8_t, rintf(v));
    case KVM_BOOL:
        LOOP_OUT(uint8_t, v < 0 || v > 0);
    case KVM_F8_E4M3:
        LOOP_OUT(uint8_t, small_narrow(v, e4m3_format));
    case KVM_F8_E5M2:
        LOOP_OUT(uint8_t, small_narrow(v, e5m2_format));
    case KVM_F8_E8M0:
        LOOP_OUT(uint8_t, e8m0_narrow(v));
    case KVM_Q4_0:
    case KVM_Q4_1:
    case KVM_Q5_0:
    case KVM_Q5_1:
    case KVM_Q8_0:
    case KVM_Q4_K:
    case KVM_Q5_K:
    case KVM_Q6_K:
    case KVM_DTYPES:
        break;
    }
    return kvm_fail(err, KVM_DTYPE, "%s can be read, not written", kvm_dtype_name(d));
}
