/* backward.h - cases of the gradients for test_ops.c. */
#ifndef KVM_TESTS_BACKWARD_H
#define KVM_TESTS_BACKWARD_H

#include "tests/conform/bed.h"

static const struct {
    ptrdiff_t t, f, group, w;
} back_shapes[] = {{1, 3, 3, 3},     {3, 7, 7, 7},      {1, 576, 576, 576},
                   {40, 96, 24, 24}, {33, 64, 16, 64},  {5, 129, 43, 43},
                   {0, 8, 8, 8},     {70, 520, 65, 520}};

static void cases_rmsnorm_back(bed *b)
{
    for (size_t i = 0; i < COUNT(back_shapes); i++) {
        const ptrdiff_t t = back_shapes[i].t, f = back_shapes[i].f;
        const ptrdiff_t group = back_shapes[i].group;
        for (int form = 0; form < 8; form++) {
            LABEL(b, "T=%td F=%td group=%td form=%d", t, f, group, form);
            const kvm_tensor x = make(b, KVM_F32, t, f, form & 1);
            const kvm_tensor dy = make(b, KVM_F32, t, f, form & 1);
            kvm_tensor w = make(b, KVM_F32, 1, back_shapes[i].w, false);
            w = kvm_view1(w.data, KVM_F32, back_shapes[i].w);
            const kvm_tensor dx = make(b, KVM_F32, t, f, form & 1);
            RUN(b, dx,
                kvm_op_rmsnorm_back(c, o, x, w, dy, group, 1e-6, form & 2, form & 4,
                                    &err));
            RUN(b, dy,
                kvm_op_rmsnorm_back(c, o, x, w, o, group, 1e-6, form & 2, form & 4,
                                    &err));
        }
    }
}

/* form: 1 with gaps between rows, 2 added to what is there */
static void linear_back_case(bed *b, kvm_tensor m, ptrdiff_t t, int form)
{
    const kvm_tensor dy = make(b, KVM_F32, t, m.dim[0], form & 1);
    const kvm_tensor dx = make(b, KVM_F32, t, m.dim[1], form & 1);
    kvm_weight *w;
    kvm_err err0 = {0};
    check_ok(kvm_weight_new(&w, &b->keep, b->dev, m, NULL, &err0), &err0);
    RUN(b, dx, kvm_op_linear_back(c, o, dy, w, form & 2, &err));
}

static void cases_linear_back(bed *b)
{
    static const ptrdiff_t tokens[] = {0, 1, 3, 13, 14, 15, 64, 290};
    static const struct {
        ptrdiff_t i, o;
    } sizes[] = {{1, 1}, {5, 7}, {33, 64}, {200, 96}, {31, 1257}, {600, 40}, {17, 0}};
    for (size_t t = 0; t < COUNT(tokens); t++)
        for (size_t s = 0; s < COUNT(sizes); s++)
            for (int d = 0; d < 3; d++) {
                const kvm_dtype type = readable[d];
                LABEL(b, "%s T=%td I=%td O=%td", kvm_dtype_name(type), tokens[t],
                      sizes[s].i, sizes[s].o);
                linear_back_case(b, make_stored(b, type, sizes[s].o, sizes[s].i),
                                 tokens[t], (int)(t + s + (size_t)d) % 4);
            }
    for (size_t i = 3; i < COUNT(readable); i++) {
        const bool block = kvm_dtype_block(readable[i]) > 1;
        if (readable[i] == KVM_U8 || readable[i] == KVM_I32) continue;
        for (ptrdiff_t t = 1; t < 60; t = 3 * t + 2) {
            LABEL(b, "%s T=%td", kvm_dtype_name(readable[i]), t);
            linear_back_case(b, make_stored(b, readable[i], 35, block ? 256 : 33), t,
                             (int)t & 3);
            linear_back_case(b, make_stored(b, readable[i], 6, block ? 1280 : 70), t,
                             (int)t & 3);
        }
    }
    static const kvm_scales blocks[] = {{.rows = 128, .cols = 128},
                                        {.rows = 16, .cols = 16, .first = 28},
                                        {.rows = 1, .cols = 4096},
                                        {.rows = 5, .cols = 3, .first = 2}};
    for (size_t k = 0; k < COUNT(blocks); k++) {
        LABEL(b, "F8_E4M3 blocks %td x %td", blocks[k].rows, blocks[k].cols);
        linear_back_case(b, make_scaled(b, 300, 70, blocks[k]), 9, (int)k & 3);
        linear_back_case(b, make_scaled(b, 33, 700, blocks[k]), 40, (int)k & 3);
    }
}

typedef kvm_status gated_back_fn(kvm_compute *c, kvm_tensor dgate, kvm_tensor dup,
                                 kvm_tensor gate, kvm_tensor up, kvm_tensor dy,
                                 kvm_err *err);

static void gated_back_cases(bed *b, gated_back_fn *fn)
{
    for (size_t i = 0; i < COUNT(back_shapes); i++) {
        const ptrdiff_t t = back_shapes[i].t, f = back_shapes[i].f;
        for (int form = 0; form < 2; form++) {
            LABEL(b, "T=%td F=%td strided=%d", t, f, form);
            const kvm_tensor gate = make(b, KVM_F32, t, f, form);
            const kvm_tensor up = make(b, KVM_F32, t, f, form);
            const kvm_tensor dy = make(b, KVM_F32, t, f, form);
            const kvm_tensor other = make(b, KVM_F32, t, f, form);
            for (ptrdiff_t k = 0; k < t; k += 2) kvm_row32(&gate, k)[k % f] *= 60;
            RUN(b, gate, fn(c, o, copy(b, other), o, up, dy, &err));
            RUN(b, up, fn(c, copy(b, other), o, gate, o, dy, &err));
            RUN(b, dy, fn(c, o, copy(b, other), gate, up, o, &err));
            RUN(b, other, fn(c, copy(b, other), o, gate, up, dy, &err));
        }
    }
}

static void cases_silu_mul_back(bed *b)
{
    gated_back_cases(b, kvm_op_silu_mul_back);
}

static void cases_sigmoid_mul_back(bed *b)
{
    gated_back_cases(b, kvm_op_sigmoid_mul_back);
}

static void cases_relu2_back(bed *b)
{
    for (size_t i = 0; i < COUNT(back_shapes); i++) {
        const ptrdiff_t t = back_shapes[i].t, f = back_shapes[i].f;
        for (int form = 0; form < 2; form++) {
            LABEL(b, "T=%td F=%td strided=%d", t, f, form);
            const kvm_tensor x = make(b, KVM_F32, t, f, form);
            const kvm_tensor dy = make(b, KVM_F32, t, f, form);
            const kvm_tensor dx = make(b, KVM_F32, t, f, form);
            RUN(b, dx, kvm_op_relu2_back(c, o, x, dy, &err));
            RUN(b, x, kvm_op_relu2_back(c, o, o, dy, &err));
            RUN(b, dy, kvm_op_relu2_back(c, o, x, o, &err));
        }
    }
}

static void cases_kl_back(bed *b)
{
    static const ptrdiff_t widths[] = {1, 3, 16, 100, 2048, 49153};
    for (size_t i = 0; i < COUNT(widths); i++) {
        for (int form = 0; form < 2; form++) {
            LABEL(b, "V=%td strided=%d", widths[i], form);
            const ptrdiff_t t = form ? 7 : 1;
            const kvm_tensor x = make(b, KVM_F32, t, widths[i], form);
            const kvm_tensor p = make(b, KVM_F32, t, widths[i], form);
            double want[7], got[7];
            kvm_err err0 = {0};
            RUN(b, x, kvm_op_kl_back(c, c == b->ref ? want : got, o, p, 0.3, &err));
            for (ptrdiff_t k = 0; k < t; k++)
                if (!(fabs(want[k] - got[k]) <= kvm_op_rows[b->op].tolerance))
                    fail_msg("%s: %.9g, not %.9g", b->label, got[k], want[k]);
            check_ok(kvm_op_kl_back(b->dev, got, copy(b, p), p, 1, &err0), &err0);
            for (ptrdiff_t k = 0; k < t; k++) assert_true(fabs(got[k]) < 1e-6);
        }
    }
}

static void index_back_case(bed *b, ptrdiff_t t, ptrdiff_t h, ptrdiff_t d, ptrdiff_t n,
                            bool strided)
{
    LABEL(b, "T=%td H=%td D=%td C=%td strided=%d", t, h, d, n, strided);
    const kvm_tensor q = make3(b, t, h, d, strided);
    const kvm_tensor k = make(b, KVM_F32, n, d, strided);
    const kvm_tensor w = make(b, KVM_F32, t, h, strided);
    const kvm_tensor dy = make(b, KVM_F32, t, n, strided);
    const kvm_tensor dk = make(b, KVM_F32, n, d, strided);
    for (ptrdiff_t i = 0; i < n; i++) /* dots are +-1 at least */
        for (ptrdiff_t x = 0; x < d; x++)
            kvm_row32(&k, i)[x] = (float)(kvm_rng_below(&b->rng, 2) ? 1 : -1);
    for (ptrdiff_t i = 0; i < t * h; i++)
        for (ptrdiff_t x = 0; x < d; x++)
            kvm_head32(&q, i / h, i % h)[x] =
                (float)(x == 0                      ? 2 + 2 * (d / 2)
                        : kvm_rng_below(&b->rng, 2) ? 1
                                                    : -1) *
                (x == 0 && kvm_rng_below(&b->rng, 2) ? -1.0f : 1.0f);
    RUN(b, dk, kvm_op_index_score_back(c, o, q, k, w, dy, 0.3, &err));
}

static void cases_index_score_back(bed *b)
{
    static const ptrdiff_t shapes[][4] = {{0, 2, 4, 5},    {1, 1, 1, 1},
                                          {3, 5, 17, 70},  {40, 4, 16, 200},
                                          {9, 30, 64, 65}, {2, 64, 40, 130}};
    for (size_t i = 0; i < COUNT(shapes); i++)
        for (int form = 0; form < 2; form++)
            index_back_case(b, shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3],
                            form);
}

/* (n0,n1,n2); strided: rows of more than n2 numbers */
static kvm_tensor make_slot(bed *b, ptrdiff_t n0, ptrdiff_t n1, ptrdiff_t n2,
                            bool strided)
{
    kvm_tensor t = make3(b, n0, n1, n2 + (strided ? GUARD : 0), strided);
    t.dim[2] = n2;
    return t;
}

static void attention_back_case(bed *b, const attention_shape *s, bool strided,
                                bool masked)
{
    LABEL(b, "T=%td H=%td/%td D=%td/%td C=%td first=%td window=%td strided=%d mask=%d",
          s->t, s->heads, s->kv, s->d, s->dv, s->c, s->first, s->window, strided,
          masked);
    const kvm_tensor q = make3(b, s->t, s->heads, s->d, strided);
    const kvm_tensor dy = make3(b, s->t, s->heads, s->dv, strided);
    const kvm_tensor k = make_slot(b, s->kv, s->c, s->d, strided);
    const kvm_tensor v = make_slot(b, s->kv, s->c, s->dv, strided);
    const kvm_tensor dq = make3(b, s->t, s->heads, s->d, strided);
    const kvm_tensor dk = make_slot(b, s->kv, s->c, s->d, strided);
    const kvm_tensor dv = make_slot(b, s->kv, s->c, s->dv, strided);
    const double scale = 1 / sqrt((double)s->d);
    const ptrdiff_t words = (s->first + s->t + 63) / 64;
    kvm_mask m = {NULL, words};
    if (masked) {
        uint64_t *bits = kvm_new(&b->keep, uint64_t, s->t * words + 1);
        assert_non_null(bits);
        for (ptrdiff_t t = 0; t < s->t; t++) {
            const ptrdiff_t last = s->first + t;
            bits[t * words + last / 64] |= (uint64_t)1 << last % 64;
            for (ptrdiff_t i = 0; i < 1 + last / 9; i++) {
                const ptrdiff_t j =
                    (ptrdiff_t)kvm_rng_below(&b->rng, (uint64_t)last + 1);
                if (j / 64 % 3 == 1) continue; /* words of no key, for all queries */
                bits[t * words + j / 64] |= (uint64_t)1 << j % 64;
            }
        }
        m.bits = bits;
    }
    const kvm_mask *mask = masked ? &m : NULL;
    const ptrdiff_t window = masked ? 0 : s->window;
    RUN(b, dq,
        kvm_op_attention_back(c, o, copy(b, dk), copy(b, dv), q, k, v, dy, s->first,
                              window, mask, scale, &err));
    RUN(b, dk,
        kvm_op_attention_back(c, copy(b, dq), o, copy(b, dv), q, k, v, dy, s->first,
                              window, mask, scale, &err));
    RUN(b, dv,
        kvm_op_attention_back(c, copy(b, dq), copy(b, dk), o, q, k, v, dy, s->first,
                              window, mask, scale, &err));
}

static void cases_attention_back(bed *b)
{
    static const attention_shape shapes[] = {
        {0, 2, 1, 8, 8, 4, 2, 0, KVM_F32},
        {1, 1, 1, 1, 1, 1, 0, 0, KVM_F32},
        {1, 9, 3, 64, 64, 300, 299, 0, KVM_F32},
        {3, 4, 4, 16, 40, 260, 250, 100, KVM_F32},
        {8, 6, 2, 33, 17, 230, 222, 7, KVM_F32},
        {40, 4, 2, 16, 16, 45, 0, 0, KVM_F32},
        {40, 4, 2, 16, 16, 40, 0, 5, KVM_F32},
        {130, 9, 3, 24, 24, 400, 260, 0, KVM_F32},
        {61, 16, 1, 72, 64, 161, 100, 0, KVM_F32},
        {150, 3, 3, 20, 48, 340, 183, 1, KVM_F32},
    };
    for (size_t i = 0; i < COUNT(shapes); i++)
        for (int form = 0; form < 4; form++)
            attention_back_case(b, &shapes[i], form & 1, form & 2);
}

#endif
