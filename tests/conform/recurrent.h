/* recurrent.h - cases of conv, delta and scan for test_ops.c. */
#ifndef KVM_TESTS_RECURRENT_H
#define KVM_TESTS_RECURRENT_H

#include "tests/conform/bed.h"

static void same_bits(const bed *b, const kvm_tensor *one, const kvm_tensor *two)
{
    if (memcmp(one->data, two->data, span(one)))
        fail_msg("%s: bits depend on the cut", b->label);
}

static kvm_tensor rows_of(kvm_tensor t, ptrdiff_t from, ptrdiff_t to)
{
    t.data = kvm_row32(&t, from);
    t.dim[0] = to - from;
    return t;
}

/* ---- conv ------------------------------------------------------------------------ */

static void conv_in_cuts(bed *b, kvm_tensor x, kvm_tensor w, const float *bias,
                         kvm_tensor window)
{
    const kvm_tensor whole = copy(b, x), cut = copy(b, x);
    const kvm_tensor seen = copy(b, window), seen_cut = copy(b, window);
    kvm_err err = {0};
    check_ok(kvm_op_conv(b->dev, whole, x, w, bias, seen, &err), &err);
    for (ptrdiff_t t = 0, n = 1; t < x.dim[0]; t += n, n = 2 * n + 1) {
        const ptrdiff_t end = t + n < x.dim[0] ? t + n : x.dim[0];
        const kvm_tensor part = rows_of(cut, t, end);
        check_ok(kvm_op_conv(b->dev, part, part, w, bias, seen_cut, &err), &err);
    }
    same_bits(b, &whole, &cut);
    same_bits(b, &seen, &seen_cut);
}

static void conv_case(bed *b, ptrdiff_t t, ptrdiff_t channels, ptrdiff_t taps, int form)
{
    LABEL(b, "T=%td C=%td K=%td form=%d", t, channels, taps, form);
    const kvm_tensor x = make(b, KVM_F32, t, channels, form & 1);
    const kvm_tensor y = make(b, KVM_F32, t, channels, form & 1);
    const kvm_tensor w = make(b, KVM_F32, channels, taps, form & 1);
    const kvm_tensor window = make(b, KVM_F32, channels, taps, form & 1);
    const float *bias = form & 2 ? make(b, KVM_F32, 1, channels, false).data : NULL;
    for (ptrdiff_t i = 0; channels > 1 && i < t; i += 2) /* far ends of silu */
        kvm_row32(&x, i)[i % channels] *= 60;
    RUN(b, y, kvm_op_conv(c, o, x, w, bias, copy(b, window), &err));
    RUN(b, x, kvm_op_conv(c, o, o, w, bias, copy(b, window), &err));
    RUN(b, window, kvm_op_conv(c, y, x, w, bias, o, &err));
    conv_in_cuts(b, x, w, bias, window);
}

static void cases_conv(bed *b)
{
    static const ptrdiff_t channels[] = {1, 7, 16, 33, 256, 700};
    static const ptrdiff_t taps[] = {1, 2, 3, 4, 5, 8};
    for (size_t i = 0; i < COUNT(channels); i++)
        for (size_t k = 0; k < COUNT(taps); k++)
            for (ptrdiff_t t = 0; t < 80; t = 3 * t + 1)
                conv_case(b, t, channels[i], taps[k], (int)(i + k + (size_t)t) % 4);
    for (int form = 0; form < 4; form++) conv_case(b, 9, 37, 4, form);
}

/* ---- delta ----------------------------------------------------------------------- */

typedef enum delta_decay_kind { MIXED, STRONG, WEAK, NONE, DECAYS } delta_decay_kind;

typedef struct delta_shape {
    ptrdiff_t t, key_heads, heads, dk, dv;
} delta_shape;

/* log-decays: about -1 with leaps, -20, -1e-4, 0 */
static float log_decay(bed *b, delta_decay_kind kind)
{
    const double x = kvm_rng_unit(&b->rng);
    switch (kind) {
    case MIXED:
        return (float)(x < 0.1 ? -30 * x : x < 0.15 ? -50 : -x * x);
    case STRONG:
        return (float)(-19 - 2 * x);
    case WEAK:
        return (float)(-2e-4 * x);
    case NONE:
    case DECAYS:
        break;
    }
    return 0;
}

/* heads of unit length, `size` long */
static kvm_tensor make_unit(bed *b, ptrdiff_t t, ptrdiff_t heads, ptrdiff_t d,
                            double size, bool strided)
{
    kvm_tensor x = make3(b, t, heads, d + (strided ? GUARD : 0), strided);
    x.dim[2] = d;
    for (ptrdiff_t i = 0; i < t * heads; i++) {
        float *head = kvm_head32(&x, i / heads, i % heads);
        double sum = 1e-6;
        for (ptrdiff_t k = 0; k < d; k++) sum += (double)head[k] * (double)head[k];
        for (ptrdiff_t k = 0; k < d; k++)
            head[k] = (float)((double)head[k] * size / sqrt(sum));
    }
    return x;
}

/* q, k, v, g, beta of one case */
typedef struct delta_inputs {
    kvm_tensor q, k, v, g, beta;
} delta_inputs;

static delta_inputs make_delta(bed *b, const delta_shape *s, delta_decay_kind kind,
                               bool per_channel, bool strided)
{
    const double scale = 1 / sqrt((double)(s->dk ? s->dk : 1));
    delta_inputs in;
    in.q = make_unit(b, s->t, s->key_heads, s->dk, scale, strided);
    in.k = make_unit(b, s->t, s->key_heads, s->dk, 1, strided);
    in.v = make_unit(b, s->t, s->heads, s->dv, 3, strided);
    in.beta = make(b, KVM_F32, s->t, s->heads, strided);
    in.g = per_channel ? make_unit(b, s->t, s->heads, s->dk, 1, strided)
                       : make(b, KVM_F32, s->t, s->heads, strided);
    for (ptrdiff_t t = 0; t < s->t; t++) {
        for (ptrdiff_t h = 0; h < s->heads; h++) {
            kvm_row32(&in.beta, t)[h] = (float)kvm_rng_unit(&b->rng);
            for (ptrdiff_t d = 0; d < (per_channel ? s->dk : 1); d++)
                kvm_head32(&in.g, t, h)[d] = log_decay(b, kind);
        }
    }
    return in;
}

static void delta_in_cuts(bed *b, const delta_inputs *in, kvm_tensor y,
                          kvm_tensor state)
{
    const kvm_tensor whole = copy(b, y), cut = copy(b, y);
    const kvm_tensor left = copy(b, state), left_cut = copy(b, state);
    kvm_err err = {0};
    check_ok(
        kvm_op_delta(b->dev, whole, in->q, in->k, in->v, in->g, in->beta, left, &err),
        &err);
    for (ptrdiff_t t = 0, n = 1; t < y.dim[0]; t += n, n = 2 * n + 1) {
        const ptrdiff_t end = t + n < y.dim[0] ? t + n : y.dim[0];
        check_ok(kvm_op_delta(b->dev, rows_of(cut, t, end), rows_of(in->q, t, end),
                              rows_of(in->k, t, end), rows_of(in->v, t, end),
                              rows_of(in->g, t, end), rows_of(in->beta, t, end),
                              left_cut, &err),
                 &err);
    }
    same_bits(b, &whole, &cut);
    same_bits(b, &left, &left_cut);
}

static void delta_case(bed *b, const delta_shape *s, delta_decay_kind kind,
                       bool per_channel, bool strided)
{
    LABEL(b, "T=%td H=%td/%td D=%td Dv=%td decay=%d%s%s", s->t, s->heads, s->key_heads,
          s->dk, s->dv, (int)kind, per_channel ? " per channel" : "",
          strided ? " strided" : "");
    const delta_inputs in = make_delta(b, s, kind, per_channel, strided);
    const kvm_tensor y = make_unit(b, s->t, s->heads, s->dv, 1, strided);
    const kvm_tensor state = make_unit(b, s->heads, s->dk, s->dv, 1, strided);
    RUN(b, y,
        kvm_op_delta(c, o, in.q, in.k, in.v, in.g, in.beta, copy(b, state), &err));
    RUN(b, state, kvm_op_delta(c, y, in.q, in.k, in.v, in.g, in.beta, o, &err));
    /* ref keeps its state in f64 within a call */
    if (b->dev->backend != b->ref->backend) delta_in_cuts(b, &in, y, state);
}

static void cases_delta(bed *b)
{
    static const delta_shape shapes[] = {
        {0, 1, 1, 8, 8},      {1, 1, 1, 1, 1},     {1, 2, 6, 33, 17},
        {2, 1, 1, 16, 40},    {7, 3, 3, 24, 64},   {8, 1, 2, 5, 3},
        {16, 2, 2, 16, 16},   {17, 1, 3, 70, 9},   {31, 2, 2, 64, 32},
        {64, 1, 1, 128, 128}, {130, 2, 4, 32, 48}, {300, 1, 1, 12, 20},
        {2000, 1, 1, 16, 24},
    };
    for (size_t i = 0; i < COUNT(shapes); i++)
        for (int form = 0; form < 2 * DECAYS; form++)
            delta_case(b, &shapes[i], (delta_decay_kind)(form / 2), form % 2,
                       (i + (size_t)form / 2) % 2);
    const delta_shape no_keys = {3, 1, 2, 0, 5}; /* o is 0 */
    delta_case(b, &no_keys, MIXED, false, false);
}

/* ---- scan ------------------------------------------------------------------------ */

typedef enum scan_step_kind {
    STEPS_MIXED,
    STEPS_LONG,
    STEPS_SHORT,
    STEPS
} scan_step_kind;

/* dt: about 1 with zeros and leaps, about 20, about 1e-4 */
static float step_size(bed *b, scan_step_kind kind)
{
    const double x = kvm_rng_unit(&b->rng);
    if (kind == STEPS_LONG) return (float)(19 + 2 * x);
    if (kind == STEPS_SHORT) return (float)(2e-4 * x);
    return (float)(x < 0.1 ? 0 : x < 0.15 ? 50 : 2 * x * x);
}

/* what scan reads of one case */
typedef struct scan_inputs {
    kvm_tensor q, k, v, dt, rate, skip;
} scan_inputs;

static scan_inputs make_scan(bed *b, const delta_shape *s, scan_step_kind kind,
                             bool strided)
{
    scan_inputs in;
    in.q = make_unit(b, s->t, s->key_heads, s->dk, 2, strided);
    in.k = make_unit(b, s->t, s->key_heads, s->dk, 2, strided);
    in.v = make_unit(b, s->t, s->heads, s->dv, 3, strided);
    in.dt = make(b, KVM_F32, s->t, s->heads, strided);
    in.rate = kvm_view1(make(b, KVM_F32, 1, s->heads, false).data, KVM_F32, s->heads);
    in.skip = kvm_view1(make(b, KVM_F32, 1, s->heads, false).data, KVM_F32, s->heads);
    for (ptrdiff_t h = 0; h < s->heads; h++) {
        float *r = (float *)in.rate.data + h;
        *r = 0.05f + *r * *r;
        for (ptrdiff_t t = 0; t < s->t; t++)
            kvm_row32(&in.dt, t)[h] = step_size(b, kind);
    }
    return in;
}

static void scan_case(bed *b, const delta_shape *s, scan_step_kind kind, bool strided)
{
    LABEL(b, "T=%td H=%td/%td D=%td E=%td steps=%d%s", s->t, s->heads, s->key_heads,
          s->dk, s->dv, (int)kind, strided ? " strided" : "");
    const scan_inputs in = make_scan(b, s, kind, strided);
    const kvm_tensor y = make_unit(b, s->t, s->heads, s->dv, 1, strided);
    const kvm_tensor state = make_unit(b, s->heads, s->dv, s->dk, 1, strided);
    RUN(b, y,
        kvm_op_scan(c, o, in.q, in.k, in.v, in.dt, in.rate, in.skip, copy(b, state),
                    &err));
    RUN(b, state,
        kvm_op_scan(c, y, in.q, in.k, in.v, in.dt, in.rate, in.skip, o, &err));
}

static void cases_scan(bed *b)
{
    static const delta_shape shapes[] = {
        {0, 1, 1, 8, 8},     {1, 1, 1, 1, 1},      {1, 2, 6, 33, 17},
        {2, 1, 1, 40, 16},   {4, 3, 3, 24, 64},    {5, 1, 2, 5, 3},
        {16, 2, 2, 16, 16},  {17, 1, 3, 9, 70},    {63, 2, 4, 64, 32},
        {64, 1, 1, 128, 64}, {65, 2, 4, 32, 48},   {130, 1, 40, 12, 20},
        {300, 2, 6, 70, 33}, {2000, 1, 1, 16, 24},
    };
    for (size_t i = 0; i < COUNT(shapes); i++)
        for (int kind = 0; kind < STEPS; kind++)
            scan_case(b, &shapes[i], (scan_step_kind)kind, (i + (size_t)kind) % 2);
    const delta_shape no_state = {3, 1, 2, 0, 5}; /* o is skip v */
    scan_case(b, &no_state, STEPS_MIXED, false);
}

#endif
