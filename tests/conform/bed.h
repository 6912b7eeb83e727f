/* bed.h - what the cases of one op on one backend share: views of random numbers, and
 * RUN, which holds a call against ref. Included once by a test program. */
#ifndef KVM_TESTS_BED_H
#define KVM_TESTS_BED_H

#include "kernels/backend.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "tests/support/check.h"

/* one op on one backend, all cases */
typedef struct bed {
    kvm_compute *ref, *dev;
    kvm_arena keep; /* emptied between cases */
    kvm_rng rng;
    kvm_op_id op;
    char label[160]; /* op, backend, shape of the case: for messages */
} bed;

static const kvm_dtype readable[] = {
    KVM_F32,     KVM_BF16,    KVM_F16,  KVM_F64,  KVM_I8,   KVM_U8,
    KVM_F8_E4M3, KVM_F8_E5M2, KVM_I32,  KVM_Q8_0, KVM_Q4_0, KVM_Q4_1,
    KVM_Q5_0,    KVM_Q5_1,    KVM_Q4_K, KVM_Q5_K, KVM_Q6_K,
};

typedef struct attention_shape {
    ptrdiff_t t, heads, kv, d, dv, c, first, window;
    kvm_dtype dtype;
} attention_shape;

enum { GUARD = 5 }; /* numbers between the rows of a strided view */

static kvm_tensor make(bed *b, kvm_dtype d, ptrdiff_t n0, ptrdiff_t n1, bool strided)
{
    kvm_tensor t = kvm_view2(NULL, d, n0, n1);
    if (strided) t.stride[0] += GUARD;
    const ptrdiff_t n = n0 * t.stride[0] + 1;
    t.data = kvm_arena_alloc(&b->keep, sizeof(double), 64, n);
    assert_non_null(t.data);
    for (ptrdiff_t i = 0; i < n; i++) {
        const double x = kvm_rng_normal(&b->rng);
        if (d == KVM_F64) ((double *)t.data)[i] = x;
        if (d == KVM_F32) ((float *)t.data)[i] = (float)x;
    }
    return t;
}

static kvm_tensor make3(bed *b, ptrdiff_t n0, ptrdiff_t n1, ptrdiff_t n2, bool strided)
{
    kvm_tensor flat = make(b, KVM_F32, n0, n1 * n2, strided);
    kvm_tensor t = kvm_view3(flat.data, KVM_F32, n0, n1, n2);
    t.stride[0] = flat.stride[0];
    return t;
}

static size_t span(const kvm_tensor *t)
{
    return (size_t)(t->dim[0] * t->stride[0] + 1) *
           (size_t)kvm_dtype_block_bytes(t->dtype);
}

static kvm_tensor copy(bed *b, kvm_tensor t)
{
    kvm_tensor r = t;
    r.data = kvm_arena_alloc(&b->keep, 1, 64, (ptrdiff_t)span(&t));
    assert_non_null(r.data);
    memcpy(r.data, t.data, span(&t));
    return r;
}

/* random bytes of a stored type: f32 rows narrowed, or blocks with small scales */
static kvm_tensor make_stored(bed *b, kvm_dtype d, ptrdiff_t n0, ptrdiff_t n1)
{
    kvm_err err = {0};
    kvm_tensor t = kvm_view2(NULL, d, n0, n1);
    ptrdiff_t bytes;
    assert_true(kvm_dtype_bytes(d, n0 * n1, &bytes));
    uint8_t *p = t.data = kvm_arena_alloc(&b->keep, 1, 64, bytes + 8);
    assert_non_null(p);
    if (kvm_dtype_block(d) == 1) {
        const kvm_tensor from = make(b, KVM_F32, n0, n1, false);
        check_ok(kvm_narrow_row(t.data, d, from.data, n0 * n1, &err), &err);
        return t;
    }
    const int step = kvm_dtype_block_bytes(d);
    for (ptrdiff_t i = 0; i < bytes; i++) p[i] = (uint8_t)kvm_rng_below(&b->rng, 256);
    for (ptrdiff_t i = 0; i < bytes; i += step) {
        /* f16 scales first (and second): 2^-9 .. 2^-6; Q6_K has its scale last */
        const int at = d == KVM_Q6_K ? 208 : 0;
        const bool two =
            d == KVM_Q4_1 || d == KVM_Q5_1 || d == KVM_Q4_K || d == KVM_Q5_K;
        p[i + at + 1] = (uint8_t)(0x18 + kvm_rng_below(&b->rng, 12));
        if (two) p[i + 3] = (uint8_t)(0x18 + kvm_rng_below(&b->rng, 12));
    }
    return t;
}

/* a weight of 8 bits with a scale per block; rows from `first` of the blocks' matrix */
static kvm_tensor make_scaled(bed *b, ptrdiff_t outs, ptrdiff_t i, kvm_scales s)
{
    static kvm_scales kept; /* of one case at a time */
    kvm_tensor m = make_stored(b, KVM_F8_E4M3, outs, i);
    s.pitch = (i + s.cols - 1) / s.cols;
    const kvm_tensor grid =
        make(b, KVM_F32, (s.first + outs + s.rows - 1) / s.rows, s.pitch, false);
    s.grid = grid.data;
    kept = s;
    m.scales = &kept;
    return m;
}

static double entry(const kvm_tensor *t, ptrdiff_t i)
{
    return t->dtype == KVM_F64 ? ((const double *)t->data)[i]
                               : (double)((const float *)t->data)[i];
}

static double tolerance(const bed *b)
{
    const double own = b->op == KVM_OP_linear ? b->dev->backend->linear_tolerance : 0;
    return own > 0 ? own : kvm_op_rows[b->op].tolerance;
}

/* whether number i of a view's memory lies between its rows, or between its heads */
static bool in_gap(const kvm_tensor *t, ptrdiff_t i)
{
    const ptrdiff_t at = i % t->stride[0];
    if (t->rank == 2) return at >= t->dim[1];
    return at / t->stride[1] >= t->dim[1] || at % t->stride[1] >= t->dim[2];
}

/* got against want, both with the layout of t; in the gaps bits must be equal */
static void compare(bed *b, const kvm_tensor *want, const kvm_tensor *got)
{
    const ptrdiff_t n = want->dim[0] * want->stride[0];
    double top = 0, worst = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        if (in_gap(want, i)) {
            if (entry(want, i) == entry(got, i)) continue;
            fail_msg("%s: wrote between rows, at %td", b->label, i);
        }
        top = fmax(top, fabs(entry(want, i)));
        const double off = fabs(entry(want, i) - entry(got, i));
        if (!(off <= worst)) worst = off; /* NaN sticks */
    }
    if (!(worst <= tolerance(b) * top))
        fail_msg("%s: off by %.3g of %.3g, allowed %.3g (%s)", b->label, worst, top,
                 tolerance(b), kvm_op_rows[b->op].reason);
}

/* RUN(b, out, call using `c` and `o`): the op on ref once and on the backend twice,
 * each on its own copy of out */
#define RUN(b, out, call)                                                              \
    do {                                                                               \
        kvm_tensor o_[3] = {copy(b, out), copy(b, out), copy(b, out)};                 \
        for (int run_ = 0; run_ < 3; run_++) {                                         \
            kvm_compute *c = run_ ? (b)->dev : (b)->ref;                               \
            const kvm_tensor o = o_[run_];                                             \
            kvm_err err = {0};                                                         \
            const kvm_status s_ = (call);                                              \
            if (s_) fail_msg("%s: %s", (b)->label, err.msg);                           \
        }                                                                              \
        compare(b, &o_[0], &o_[1]);                                                    \
        if (memcmp(o_[1].data, o_[2].data, span(&o_[1])))                              \
            fail_msg("%s: two runs differ", (b)->label);                               \
    } while (0)

#define LABEL(b, ...)                                                                  \
    do {                                                                               \
        kvm_arena_reset(&(b)->keep);                                                   \
        const int n_ =                                                                 \
            snprintf((b)->label, sizeof(b)->label, "%s on %s-%s threads=%d ",          \
                     kvm_op_rows[(b)->op].name, kvm_backend_name((b)->dev->backend),   \
                     (b)->dev->backend->isa(), (b)->dev->threads);                     \
        snprintf((b)->label + n_, sizeof(b)->label - (size_t)n_, __VA_ARGS__);         \
    } while (0)

#endif
