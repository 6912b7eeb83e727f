/* tile.h - the one inner loop of every product here: C (mr,NR) = A (mr,K) B (K,NR).
 *
 * A is rows in place, lda apart; B is a packed panel: NR numbers for each k. The sum
 * over k runs in order in one accumulator per entry, so an entry's bits depend on
 * neither the height of its tile nor the thread that made it. Where the instruction set
 * multiplies pairs of bf16, a second set of tiles takes words of A and B as such pairs
 * (pairs.h). */
#ifndef KVM_KERNELS_TILE_H
#define KVM_KERNELS_TILE_H

#include "kernels/vec.h"

#include <stdbool.h>

/* Heights that leave the accumulators, a row of B and one broadcast in registers: 16 of
 * them, or 32 with AVX-512. */
#if defined(__AVX512F__)
enum { MR = 14 };
#else
enum { MR = 6 };
#endif
enum { NV = 2, NR = NV * VW };

/* Rows are addressed as base + {0, 1, 2} * lda from every third row: one register per
 * three rows. The empty asm keeps the compiler from making one pointer per row, which
 * spills. */
V_INLINE void tile_sum(vf acc[][NV], const int mr, const bool pairs, const float *a,
                       ptrdiff_t lda, const float *b, ptrdiff_t k)
{
    /* an accumulator under an index that is no constant would live in memory: every
     * loop over them is unrolled */
    enum { BASES = (MR + 2) / 3 };
    const float *base[BASES];
    V_UNROLL for (int i = 0; i < (mr + 2) / 3; i++) base[i] = a + 3 * i * lda;
    V_UNROLL for (int i = 0; i < mr; i++) V_UNROLL for (int v = 0; v < NV; v++)
        acc[i][v] = v_all(0);
    for (ptrdiff_t p = 0; p < k; p++) {
        vf bv[NV];
        V_UNROLL for (int v = 0; v < NV; v++) bv[v] = v_load(b + p * NR + v * VW);
        V_UNROLL for (int i = 0; i < mr; i++)
        {
            const vf x = v_all(base[i / 3][i % 3 * lda]);
            V_UNROLL for (int v = 0; v < NV; v++) acc[i][v] =
                pairs ? v_fma_pairs(x, bv[v], acc[i][v]) : v_fma(x, bv[v], acc[i][v]);
        }
        V_UNROLL for (int i = 0; i < (mr + 2) / 3; i++)
        {
            base[i]++;
            __asm__("" : "+r"(base[i]));
        }
    }
}

/* tile_store - C = [C +] [bias +] sum over the first `cols` <= NR columns */
V_INLINE void tile_store(float *c, ptrdiff_t ldc, vf acc[][NV], const int mr,
                         const float *bias, bool add, ptrdiff_t cols)
{
    if (cols >= NR) {
        V_UNROLL for (int v = 0; v < NV; v++)
        {
            const vf b = bias ? v_load(bias + v * VW) : v_all(0);
            V_UNROLL for (int i = 0; i < mr; i++)
            {
                float *to = c + i * ldc + v * VW;
                vf sum = acc[i][v] + b;
                if (add) sum = sum + v_load(to);
                v_store(to, sum);
            }
        }
        return;
    }
    float sums[MR * NR];
    V_UNROLL for (int i = 0; i < mr; i++) V_UNROLL for (int v = 0; v < NV; v++)
        v_store(sums + i * NR + v * VW, acc[i][v]);
    for (int i = 0; i < mr; i++) {
        for (ptrdiff_t o = 0; o < cols; o++) {
            const float sum = sums[i * NR + o] + (bias ? bias[o] : 0);
            c[i * ldc + o] = add ? sum + c[i * ldc + o] : sum;
        }
    }
}

typedef void tile_fn(float *c, ptrdiff_t ldc, const float *a, ptrdiff_t lda,
                     const float *b, ptrdiff_t k, const float *bias, bool add,
                     ptrdiff_t cols);

/* X(height) for each height of a tile */
#if defined(__AVX512F__)
#define HEIGHTS(X)                                                                     \
    X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#else
#define HEIGHTS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#endif

#define TILE(name, pairs, mr)                                                          \
    static void name##_##mr(float *c, ptrdiff_t ldc, const float *a, ptrdiff_t lda,    \
                            const float *b, ptrdiff_t k, const float *bias, bool add,  \
                            ptrdiff_t cols)                                            \
    {                                                                                  \
        vf acc[mr][NV];                                                                \
        tile_sum(acc, mr, pairs, a, lda, b, k);                                        \
        tile_store(c, ldc, acc, mr, bias, add, cols);                                  \
    }

#define F32_TILE(mr) TILE(tile, false, mr)
#define F32_ENTRY(mr) [mr] = tile_##mr,
HEIGHTS(F32_TILE)
static tile_fn *const tile_of[MR + 1] = {HEIGHTS(F32_ENTRY)};

#if defined(__AVX512BF16__)
#define PAIR_TILE(mr) TILE(pair_tile, true, mr)
#define PAIR_ENTRY(mr) [mr] = pair_tile_##mr,
HEIGHTS(PAIR_TILE)
static tile_fn *const pair_tile_of[MR + 1] = {HEIGHTS(PAIR_ENTRY)};
#endif

/* height of tile i when `rows` rows are cut into tiles of nearly equal heights <= MR */
V_INLINE ptrdiff_t tiles_in(ptrdiff_t rows)
{
    return (rows + MR - 1) / MR;
}
V_INLINE ptrdiff_t tile_from(ptrdiff_t rows, ptrdiff_t i)
{
    return rows * i / tiles_in(rows);
}

#endif
