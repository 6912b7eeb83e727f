/* recurrent_back.h - cases of conv_back, delta_back and scan_back for test_ops.c. */
#ifndef KVM_TESTS_RECURRENT_BACK_H
#define KVM_TESTS_RECURRENT_BACK_H

#include "tests/conform/recurrent.h"

enum { MOST_OUTS = 6 };

/* a call that writes several views */
typedef struct back_call {
    void (*run)(kvm_compute *c, const void *in, const kvm_tensor *out, kvm_err *err);
    const void *in;
    kvm_tensor out[MOST_OUTS]; /* with what stands there before */
    int outs;
} back_call;

/* RUN of all that the call writes */
static void run_back(bed *b, const back_call *call)
{
    kvm_tensor out[3][MOST_OUTS];
    for (int run = 0; run < 3; run++) {
        kvm_err err = {0};
        for (int i = 0; i < call->outs; i++) out[run][i] = copy(b, call->out[i]);
        call->run(run ? b->dev : b->ref, call->in, out[run], &err);
        if (err.code) fail_msg("%s: %s", b->label, err.msg);
    }
    const size_t at = strlen(b->label);
    for (int i = 0; i < call->outs; i++) {
        snprintf(b->label + at, sizeof b->label - at, " output %d", i);
        compare(b, &out[0][i], &out[1][i]);
        if (memcmp(out[1][i].data, out[2][i].data, span(&out[1][i])))
            fail_msg("%s: two runs differ", b->label);
    }
    b->label[at] = '\0';
}

/* ---- conv ------------------------------------------------------------------------ */

static void conv_back_case(bed *b, ptrdiff_t t, ptrdiff_t channels, ptrdiff_t taps,
                           int form)
{
    LABEL(b, "T=%td C=%td K=%td form=%d", t, channels, taps, form);
    const kvm_tensor x = make(b, KVM_F32, t, channels, form & 1);
    const kvm_tensor dy = make(b, KVM_F32, t, channels, form & 1);
    const kvm_tensor dx = make(b, KVM_F32, t, channels, form & 1);
    const kvm_tensor w = make(b, KVM_F32, channels, taps, form & 1);
    const kvm_tensor window = make(b, KVM_F32, channels, taps, form & 1);
    const kvm_tensor dwindow = make(b, KVM_F32, channels, taps, form & 1);
    const float *bias = form & 2 ? make(b, KVM_F32, 1, channels, false).data : NULL;
    for (ptrdiff_t i = 0; channels > 1 && i < t; i += 2) /* far ends of silu */
        kvm_row32(&x, i)[i % channels] *= 60;
    RUN(b, dx, kvm_op_conv_back(c, o, copy(b, dwindow), x, w, bias, window, dy, &err));
    RUN(b, dy, kvm_op_conv_back(c, o, copy(b, dwindow), x, w, bias, window, o, &err));
    RUN(b, dwindow, kvm_op_conv_back(c, dx, o, x, w, bias, window, dy, &err));
}

static void cases_conv_back(bed *b)
{
    static const ptrdiff_t channels[] = {1, 7, 16, 33, 256, 700};
    static const ptrdiff_t taps[] = {1, 2, 3, 4, 5, 8};
    for (size_t i = 0; i < COUNT(channels); i++)
        for (size_t k = 0; k < COUNT(taps); k++)
            for (ptrdiff_t t = 0; t < 80; t = 3 * t + 1)
                conv_back_case(b, t, channels[i], taps[k],
                               (int)(i + k + (size_t)t) % 4);
    for (int form = 0; form < 4; form++) conv_back_case(b, 3, 37, 4, form);
}

/* ---- delta ----------------------------------------------------------------------- */

typedef struct delta_back_in {
    kvm_delta_rows in;
    kvm_tensor state, dy;
} delta_back_in;

static void delta_back_run(kvm_compute *c, const void *ctx, const kvm_tensor *out,
                           kvm_err *err)
{
    const delta_back_in *k = ctx;
    const kvm_delta_rows d = {out[0], out[1], out[2], out[3], out[4]};
    if (kvm_op_delta_back(c, &d, out[5], &k->in, k->state, k->dy, err))
        assert_true(err->code);
}

static void delta_back_case(bed *b, const delta_shape *s, delta_decay_kind kind,
                            bool per_channel, bool strided)
{
    LABEL(b, "T=%td H=%td/%td D=%td Dv=%td decay=%d%s%s", s->t, s->heads, s->key_heads,
          s->dk, s->dv, (int)kind, per_channel ? " per channel" : "",
          strided ? " strided" : "");
    const double scale = 1 / sqrt((double)(s->dk ? s->dk : 1));
    const delta_inputs in = make_delta(b, s, kind, per_channel, strided);
    const delta_back_in k = {
        {in.q, in.k, in.v, in.g, in.beta},
        make_unit(b, s->heads, s->dk, s->dv, 1, strided),
        make_unit(b, s->t, s->heads, s->dv, 1, strided),
    };
    const back_call call = {delta_back_run,
                            &k,
                            {copy(b, in.q), copy(b, in.k), copy(b, in.v), copy(b, in.g),
                             copy(b, in.beta),
                             make_unit(b, s->heads, s->dk, s->dv, scale, strided)},
                            6};
    run_back(b, &call);
}

static void cases_delta_back(bed *b)
{
    static const delta_shape shapes[] = {
        {0, 1, 1, 8, 8},      {1, 1, 1, 3, 1},     {1, 2, 6, 33, 17},
        {2, 1, 1, 16, 40},    {7, 3, 3, 24, 64},   {31, 1, 2, 5, 3},
        {32, 2, 2, 16, 16},   {33, 1, 3, 70, 9},   {65, 2, 2, 64, 32},
        {64, 1, 1, 128, 128}, {130, 2, 4, 32, 48}, {300, 1, 1, 12, 20},
        {2000, 1, 1, 16, 24},
    };
    for (size_t i = 0; i < COUNT(shapes); i++)
        for (int form = 0; form < 2 * DECAYS; form++)
            delta_back_case(b, &shapes[i], (delta_decay_kind)(form / 2), form % 2,
                            (i + (size_t)form / 2) % 2);
    const delta_shape no_keys = {3, 1, 2, 0, 5}, no_values = {3, 1, 2, 5, 0};
    delta_back_case(b, &no_keys, MIXED, false, false);
    delta_back_case(b, &no_values, MIXED, true, false);
}

/* ---- scan ------------------------------------------------------------------------ */

typedef struct scan_back_in {
    scan_inputs in;
    kvm_tensor state, dy;
} scan_back_in;

static void scan_back_run(kvm_compute *c, const void *ctx, const kvm_tensor *out,
                          kvm_err *err)
{
    const scan_back_in *k = ctx;
    const kvm_scan_rows d = {out[0], out[1], out[2], out[3]};
    const kvm_scan_rows in = {k->in.q, k->in.k, k->in.v, k->in.dt};
    if (kvm_op_scan_back(c, &d, out[4], &in, k->in.rate, k->in.skip, k->state, k->dy,
                         err))
        assert_true(err->code);
}

static void scan_back_case(bed *b, const delta_shape *s, scan_step_kind kind,
                           bool strided)
{
    LABEL(b, "T=%td H=%td/%td D=%td E=%td steps=%d%s", s->t, s->heads, s->key_heads,
          s->dk, s->dv, (int)kind, strided ? " strided" : "");
    const scan_back_in k = {
        make_scan(b, s, kind, strided),
        make_unit(b, s->heads, s->dv, s->dk, 1, strided),
        make_unit(b, s->t, s->heads, s->dv, 1, strided),
    };
    const back_call call = {scan_back_run,
                            &k,
                            {copy(b, k.in.q), copy(b, k.in.k), copy(b, k.in.v),
                             copy(b, k.in.dt),
                             make_unit(b, s->heads, s->dv, s->dk, 1, strided)},
                            5};
    run_back(b, &call);
}

static void cases_scan_back(bed *b)
{
    static const delta_shape shapes[] = {
        {0, 1, 1, 8, 8},     {1, 1, 1, 1, 1},      {1, 2, 6, 33, 17},
        {2, 1, 1, 40, 16},   {4, 3, 3, 24, 64},    {31, 1, 2, 5, 3},
        {32, 2, 2, 16, 16},  {33, 1, 3, 9, 70},    {63, 2, 4, 64, 32},
        {64, 1, 1, 128, 64}, {65, 2, 4, 32, 48},   {130, 1, 40, 12, 20},
        {300, 2, 6, 70, 33}, {2000, 1, 1, 16, 24},
    };
    for (size_t i = 0; i < COUNT(shapes); i++)
        for (int kind = 0; kind < STEPS; kind++)
            scan_back_case(b, &shapes[i], (scan_step_kind)kind, (i + (size_t)kind) % 2);
    const delta_shape no_state = {3, 1, 2, 0, 5}; /* o is skip v */
    scan_back_case(b, &no_state, STEPS_MIXED, false);
}

#endif
