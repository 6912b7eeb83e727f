/* pairs.h - rows of bf16 as words of two numbers (template; see vec.h): for instruction
 * sets that multiply such pairs (cpu_bf16.c).
 *
 * A row of I stored bf16 weights is I/2 words where it lies; a row of x is rounded to
 * nearest even into as many. Panels, tiles and the cut of the work are then those of
 * f32 rows of I/2 numbers. Rows of an odd length, or an odd number of weights apart,
 * are not whole words: they take the f32 way. */
#ifndef KVM_KERNELS_PAIRS_H
#define KVM_KERNELS_PAIRS_H

#include "kernels/backend.h"
#include "kernels/vec.h"

enum { ROUND_ROWS = 16 }; /* rows per part */

static bool are_pairs(kvm_in w)
{
    return w->dtype == KVM_BF16 && !w->scales && w->dim[1] % 2 == 0 &&
           w->stride[0] % 2 == 0;
}

/* bf16 (N,I) as words (N,I/2) of the same memory */
static kvm_tensor pairs_in_place(kvm_in w)
{
    kvm_tensor t = kvm_view2(w->data, KVM_F32, w->dim[0], w->dim[1] / 2);
    t.stride[0] = w->stride[0] / 2;
    return t;
}

typedef struct round_job {
    kvm_in x, words;
} round_job;

static void round_part(void *ctx, ptrdiff_t part, int thread)
{
    (void)thread;
    const round_job *j = ctx;
    const ptrdiff_t n = j->x->dim[1], first = part * ROUND_ROWS;
    for (ptrdiff_t t = first; t < first + ROUND_ROWS && t < j->x->dim[0]; t++) {
        const float *x = kvm_row32(j->x, t);
        char *to = kvm_row(j->words, t);
        for (ptrdiff_t i = 0; i < n; i += VW) {
            const ptrdiff_t left = n - i < VW ? n - i : VW;
            const __m256bh r = _mm512_cvtneps_pbh(v_load_n(x + i, left));
            memcpy(to + 2 * i, &r, (size_t)(2 * left));
        }
    }
}

/* x (T,I) f32 -> words (T,I/2) in scratch; false when that is spent */
static bool round_to_pairs(kvm_compute *c, kvm_arena *scratch, kvm_in x,
                           kvm_tensor *words)
{
    const ptrdiff_t tokens = x->dim[0], pairs = x->dim[1] / 2;
    *words =
        kvm_view2(kvm_new_raw(scratch, float, tokens *pairs), KVM_F32, tokens, pairs);
    round_job j = {.x = x, .words = words};
    if (!words->data) return false;
    kvm_pool_run(c->pool, (tokens + ROUND_ROWS - 1) / ROUND_ROWS, round_part, &j);
    return true;
}

#endif
