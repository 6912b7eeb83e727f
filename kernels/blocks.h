/* blocks.h - block-quantised formats to f32, one block at a time (layouts of the GGUF
 * specification). Plain loops, compiled for each instruction set by its includer. */
#ifndef KVM_KERNELS_BLOCKS_H
#define KVM_KERNELS_BLOCKS_H

#include "kernels/tensor.h"

#include <string.h>

static inline uint16_t load16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline float load_half(const uint8_t *p)
{
    const uint32_t bits = load16(p), mag = bits & 0x7fffu;
    uint32_t u = mag << 13;
    float f;
    memcpy(&f, &u, sizeof f);
    f *= 0x1p112f; /* moves the exponent, and makes subnormals normal */
    memcpy(&u, &f, sizeof f);
    if (mag >= 0x7c00u) u = 0x7f800000u | (mag & 0x3ffu) << 13;
    u |= (bits & 0x8000u) << 16;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Unrolled whole, a run of 16 is left scalar by gcc 12; kept a loop it becomes
 * vectors. */
#define RUN(i) _Pragma("GCC unroll 1") for (int i = 0; i < 16; i++)

/* x = d * (q - zero) + m over 32 nibbles: low nibbles first, then high; fifth bits in
 * `high` (0 without) */
static inline void nibbles(float *out, const uint8_t *q, uint32_t high, float d,
                           float zero, float m)
{
    RUN(i)
    {
        const uint32_t lo = (q[i] & 15u) | (high >> i & 1u) << 4;
        const uint32_t hi = q[i] >> 4 | (high >> (i + 16) & 1u) << 4;
        out[i] = d * ((float)lo - zero) + m;
        out[i + 16] = d * ((float)hi - zero) + m;
    }
}

static inline void widen_q4_0(float *out, const uint8_t *b)
{
    nibbles(out, b + 2, 0, load_half(b), 8, 0);
}

static inline void widen_q4_1(float *out, const uint8_t *b)
{
    nibbles(out, b + 4, 0, load_half(b), 0, load_half(b + 2));
}

static inline void widen_q5_0(float *out, const uint8_t *b)
{
    const uint32_t high = load16(b + 2) | (uint32_t)load16(b + 4) << 16;
    nibbles(out, b + 6, high, load_half(b), 16, 0);
}

static inline void widen_q5_1(float *out, const uint8_t *b)
{
    const uint32_t high = load16(b + 4) | (uint32_t)load16(b + 6) << 16;
    nibbles(out, b + 8, high, load_half(b), 0, load_half(b + 2));
}

static inline void widen_q8_0(float *out, const uint8_t *b)
{
    const float d = load_half(b);
    for (int i = 0; i < 32; i++) out[i] = d * (float)(int8_t)b[2 + i];
}

/* 6-bit scale and minimum of sub-block j of a Q4_K or Q5_K block */
static inline void k_scale(const uint8_t *s, int j, float *scale, float *least)
{
    if (j < 4) {
        *scale = (float)(s[j] & 63);
        *least = (float)(s[j + 4] & 63);
    } else {
        *scale = (float)((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
        *least = (float)((s[j + 4] >> 4) | (s[j] >> 6) << 4);
    }
}

/* Q4_K, Q5_K: eight sub-blocks of 32; fifth: 32 bytes of fifth bits or NULL */
static inline void widen_k(float *out, const uint8_t *b, const uint8_t *fifth,
                           const uint8_t *q)
{
    const float d = load_half(b), dmin = load_half(b + 2);
    for (int j = 0; j < 8; j++) {
        float sc, mn;
        k_scale(b + 4, j, &sc, &mn);
        const uint8_t *from = q + j / 2 * 32;
        for (int l = 0; l < 32; l++) {
            const int nibble = j % 2 ? from[l] >> 4 : from[l] & 15;
            const int bit = fifth ? fifth[l] >> j & 1 : 0;
            out[j * 32 + l] = d * sc * (float)(nibble + 16 * bit) - dmin * mn;
        }
    }
}

static inline void widen_q4_k(float *out, const uint8_t *b)
{
    widen_k(out, b, NULL, b + 16);
}

static inline void widen_q5_k(float *out, const uint8_t *b)
{
    widen_k(out, b, b + 16, b + 48);
}

static inline void widen_q6_k(float *out, const uint8_t *b)
{
    const float d = load_half(b + 208);
    for (int run = 0; run < 16; run++) { /* 16 numbers of one scale */
        const int half = run / 8, part = run / 2 % 4, from = run % 2 * 16;
        const uint8_t *low = b + half * 64 + part % 2 * 32 + from;
        const uint8_t *high = b + 128 + half * 32 + from;
        const float scale = d * (float)(int8_t)b[192 + run];
        RUN(i)
        {
            const int nibble = part < 2 ? low[i] & 15 : low[i] >> 4;
            const int q = nibble | (high[i] >> 2 * part & 3) << 4;
            out[run * 16 + i] = scale * (float)(q - 32);
        }
    }
}
#undef RUN

/* widen_blocks - n elements, a multiple of the block, of a block-quantised type; false
 * for any other type */
#define BLOCKS(type, size, bytes, fn)                                                  \
    case type:                                                                         \
        for (ptrdiff_t i = 0; i < n / (size); i++)                                     \
            fn(out + i * (size), (const uint8_t *)in + i * (bytes));                   \
        return true
static inline bool widen_blocks(float *out, const void *in, kvm_dtype d, ptrdiff_t n)
{
    switch ((int)d) {
        BLOCKS(KVM_Q4_0, 32, 18, widen_q4_0);
        BLOCKS(KVM_Q4_1, 32, 20, widen_q4_1);
        BLOCKS(KVM_Q5_0, 32, 22, widen_q5_0);
        BLOCKS(KVM_Q5_1, 32, 24, widen_q5_1);
        BLOCKS(KVM_Q8_0, 32, 34, widen_q8_0);
        BLOCKS(KVM_Q4_K, 256, 144, widen_q4_k);
        BLOCKS(KVM_Q5_K, 256, 176, widen_q5_k);
        BLOCKS(KVM_Q6_K, 256, 210, widen_q6_k);
    default:
        return false;
    }
}
#undef BLOCKS

#endif
