/* vec.h - vectors of VW floats for the instruction set that the file is compiled for.
 *
 * Templates (gemm.h, attention.h, rows.h) are written once in these words and included
 * by cpu_plain.c, cpu_avx2.c, cpu_avx512.c and cpu_bf16.c. `vf` is a compiler vector:
 * + - * / work on it. FMA is asked for by name only, so a given instruction set always
 * gives the same bits. */
#ifndef KVM_KERNELS_VEC_H
#define KVM_KERNELS_VEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define V_INLINE static inline __attribute__((always_inline))
#define V_UNROLL _Pragma("GCC unroll 32")

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { VW = 16 };
typedef __m512 vf;
#elif defined(__AVX2__)
enum { VW = 8 };
typedef __m256 vf;
#else
enum { VW = 4 };
typedef float vf __attribute__((vector_size(16)));
#endif
typedef int32_t vi __attribute__((vector_size(4 * VW)));

/* ---- loads and stores; the n forms touch n <= VW elements, the rest reads as 0 --- */

V_INLINE vf v_load(const void *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

V_INLINE void v_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

V_INLINE vf v_all(float x)
{
#if defined(__AVX512F__)
    return _mm512_set1_ps(x);
#elif defined(__AVX2__)
    return _mm256_set1_ps(x);
#else
    return (vf){x, x, x, x};
#endif
}

V_INLINE vf v_load_n(const float *p, ptrdiff_t n)
{
#if defined(__AVX512F__)
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#else
    float tmp[VW] = {0};
    memcpy(tmp, p, (size_t)n * sizeof *p);
    return v_load(tmp);
#endif
}

V_INLINE void v_store_n(float *p, vf v, ptrdiff_t n)
{
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), v);
#else
    float tmp[VW];
    v_store(tmp, v);
    memcpy(p, tmp, (size_t)n * sizeof *p);
#endif
}

/* VW stored bf16 or f16 numbers, widened */
V_INLINE vf v_load_bf16(const void *p)
{
#if defined(__AVX512F__)
    const __m256i raw = _mm256_loadu_si256(p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
#elif defined(__AVX2__)
    const __m128i raw = _mm_loadu_si128(p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
#else
    uint16_t h[VW];
    memcpy(h, p, sizeof h);
    const vi wide = {h[0], h[1], h[2], h[3]};
    return (vf)(wide << 16);
#endif
}

V_INLINE vf v_load_f16(const void *p)
{
#if defined(__AVX512F__)
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
#elif defined(__AVX2__)
    return _mm256_cvtph_ps(_mm_loadu_si128(p));
#else
    float out[VW];
    uint16_t h[VW];
    memcpy(h, p, sizeof h);
    for (int i = 0; i < VW; i++) { /* as load_half of blocks.h */
        const uint32_t mag = h[i] & 0x7fffu;
        uint32_t bits = mag << 13;
        float f;
        memcpy(&f, &bits, sizeof f);
        f *= 0x1p112f;
        memcpy(&bits, &f, sizeof f);
        if (mag >= 0x7c00u) bits = 0x7f800000u | (mag & 0x3ffu) << 13;
        bits |= (uint32_t)(h[i] & 0x8000u) << 16;
        memcpy(&out[i], &bits, sizeof f);
    }
    return v_load(out);
#endif
}

/* VW stored E4M3 numbers / 256, widened: what f16 reads in the same bits of sign,
 * exponent and mantissa, subnormals too. Only the top code, NaN, is another there. */
V_INLINE vf v_load_e4m3(const void *p)
{
#if defined(__AVX512F__)
    const __m256i raw = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(p)), 7);
    const __m256i half = _mm256_and_si256(raw, _mm256_set1_epi16((short)0xbf80));
    const __m256i mag = _mm256_and_si256(raw, _mm256_set1_epi16(0x3f80));
    const __mmask16 nan = _mm256_cmpeq_epi16_mask(mag, _mm256_set1_epi16(0x3f80));
    return _mm512_cvtph_ps(_mm256_mask_mov_epi16(half, nan, _mm256_set1_epi16(0x7e00)));
#elif defined(__AVX2__)
    const __m128i raw = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64(p)), 7);
    const __m128i half = _mm_and_si128(raw, _mm_set1_epi16((short)0xbf80));
    const __m128i mag = _mm_and_si128(raw, _mm_set1_epi16(0x3f80));
    const __m128i nan = _mm_cmpeq_epi16(mag, _mm_set1_epi16(0x3f80));
    const __m128i top = _mm_and_si128(nan, _mm_set1_epi16(0x7c00));
    return _mm256_cvtph_ps(_mm_or_si128(half, top));
#else
    uint8_t b[VW];
    uint16_t half[VW];
    memcpy(b, p, sizeof b);
    for (int i = 0; i < VW; i++) {
        const unsigned mag = b[i] & 0x7fu, sign = b[i] & 0x80u;
        half[i] = (uint16_t)(sign << 8 | (mag == 0x7fu ? 0x7e00u : mag << 7));
    }
    return v_load_f16(half);
#endif
}

/* ---- arithmetic ------------------------------------------------------------------ */

V_INLINE vf v_fma(vf a, vf b, vf c) /* a*b + c, one rounding where the machine can */
{
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

/* the same for words that are pairs of bf16: c + a1*b1 + a0*b0; subnormals count as 0.
 * Not called where the machine cannot (tile.h). */
V_INLINE vf v_fma_pairs(vf a, vf b, vf c)
{
#if defined(__AVX512BF16__)
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
#else
    return v_fma(a, b, c);
#endif
}

V_INLINE vf v_max(vf a, vf b) /* b when either is NaN */
{
#if defined(__AVX512F__)
    return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
    return _mm256_max_ps(a, b);
#else
    const vi pick = a > b;
    return (vf)(((vi)a & pick) | ((vi)b & ~pick));
#endif
}

V_INLINE vf v_min(vf a, vf b) /* b when either is NaN */
{
#if defined(__AVX512F__)
    return _mm512_min_ps(a, b);
#elif defined(__AVX2__)
    return _mm256_min_ps(a, b);
#else
    const vi pick = a < b;
    return (vf)(((vi)a & pick) | ((vi)b & ~pick));
#endif
}

#if defined(__AVX2__)
V_INLINE __m128 v_fold(vf v, const bool top) /* halves onto each other down to four */
{
#if defined(__AVX512F__)
    const __m256 lo = _mm512_castps512_ps256(v), hi = _mm512_extractf32x8_ps(v, 1);
    const __m256 w = top ? _mm256_max_ps(lo, hi) : _mm256_add_ps(lo, hi);
#else
    const __m256 w = v;
#endif
    const __m128 a = _mm256_castps256_ps128(w), b = _mm256_extractf128_ps(w, 1);
    return top ? _mm_max_ps(a, b) : _mm_add_ps(a, b);
}
#else
V_INLINE vf v_fold(vf v, const bool top)
{
    (void)top;
    return v;
}
#endif

V_INLINE float v_sum(vf v) /* in a fixed order */
{
    float x[4];
    const __typeof__(v_fold(v, false)) four = v_fold(v, false);
    memcpy(x, &four, sizeof x);
    return (x[0] + x[2]) + (x[1] + x[3]);
}

V_INLINE float v_top(vf v)
{
    float x[4];
    const __typeof__(v_fold(v, true)) four = v_fold(v, true);
    memcpy(x, &four, sizeof x);
    const float a = x[0] > x[1] ? x[0] : x[1], b = x[2] > x[3] ? x[2] : x[3];
    return a > b ? a : b;
}

/* p[0..VW) += v in f64 */
V_INLINE void v_add_f64(double *p, vf v)
{
#if defined(__AVX512F__)
    const __m512d lo = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
    const __m512d hi = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
    _mm512_storeu_pd(p, _mm512_add_pd(_mm512_loadu_pd(p), lo));
    _mm512_storeu_pd(p + 8, _mm512_add_pd(_mm512_loadu_pd(p + 8), hi));
#elif defined(__AVX2__)
    const __m256d lo = _mm256_cvtps_pd(_mm256_castps256_ps128(v));
    const __m256d hi = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
    _mm256_storeu_pd(p, _mm256_add_pd(_mm256_loadu_pd(p), lo));
    _mm256_storeu_pd(p + 4, _mm256_add_pd(_mm256_loadu_pd(p + 4), hi));
#else
    for (int i = 0; i < VW; i++) p[i] += (double)v[i];
#endif
}

/* rows of a VW x VW block become its columns */
V_INLINE void v_transpose(vf r[VW])
{
#if defined(__AVX512F__)
    __m512d *d = (__m512d *)r;
    vf t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        for (int j = 0; j < 2; j++) {
            const __m512d a = _mm512_castps_pd(t[i + j]);
            const __m512d b = _mm512_castps_pd(t[i + j + 2]);
            d[i + 2 * j] = _mm512_unpacklo_pd(a, b);
            d[i + 2 * j + 1] = _mm512_unpackhi_pd(a, b);
        }
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 8; i++) {
        r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
    }
#elif defined(__AVX2__)
    vf t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        for (int j = 0; j < 2; j++) {
            u[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0x44);
            u[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0xee);
        }
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
#else
    for (int i = 0; i < VW; i++) {
        for (int j = 0; j < i; j++) {
            const float x = r[i][j];
            r[i][j] = r[j][i];
            r[j][i] = x;
        }
    }
#endif
}

/* ---- exponentials ---------------------------------------------------------------- */

/* 2^f p, where n = round(x) sits in the low mantissa bits of t = x + 1.5*2^23: the
 * float 2^n is made of them. n = -127 gives 0. */
V_INLINE vf v_scale(vf p, vf t)
{
    return p * (vf)(((vi)t + 127) << 23);
}

/* 2^x for x <= 0, 0 below -127; Taylor of e^(f ln 2), |f| <= 1/2: truncated at 1.3e-8
 * relative, 1 ulp altogether. -inf gives 0, NaN stays. */
V_INLINE vf v_exp2(vf x)
{
    const vf magic = v_all(12582912.0f);
    x = v_max(v_all(-127.0f), x);
    const vf t = x + magic;
    const vf f = x - (t - magic);
    vf p = v_all(1.5252733804e-5f);
    p = v_fma(p, f, v_all(1.5403530394e-4f));
    p = v_fma(p, f, v_all(1.3333558147e-3f));
    p = v_fma(p, f, v_all(9.6181291076e-3f));
    p = v_fma(p, f, v_all(5.5504108665e-2f));
    p = v_fma(p, f, v_all(2.4022650696e-1f));
    p = v_fma(p, f, v_all(6.9314718056e-1f));
    p = v_fma(p, f, v_all(1.0f));
    return v_scale(p, t);
}

/* e^x, saturating at e^88 and 0; ln 2 in two parts (Cody and Waite), then as v_exp2 */
V_INLINE vf v_exp(vf x)
{
    const vf magic = v_all(12582912.0f);
    x = v_min(v_all(88.0f), v_max(v_all(-88.02969f), x)); /* -127 ln 2: gives 0 */
    const vf t = v_fma(x, v_all(1.44269504f), magic);
    const vf n = t - magic;
    vf r = v_fma(n, v_all(-0.693359375f), x);
    r = v_fma(n, v_all(2.12194440e-4f), r);
    vf p = v_all(1.9841270e-4f);
    p = v_fma(p, r, v_all(1.3888889e-3f));
    p = v_fma(p, r, v_all(8.3333333e-3f));
    p = v_fma(p, r, v_all(4.1666667e-2f));
    p = v_fma(p, r, v_all(1.6666667e-1f));
    p = v_fma(p, r, v_all(0.5f));
    p = v_fma(p, r, v_all(1.0f));
    p = v_fma(p, r, v_all(1.0f));
    return v_scale(p, t);
}

#endif
