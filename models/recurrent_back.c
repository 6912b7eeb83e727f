/* recurrent_back.c - gradients through a layer that keeps a state (recurrent.h).
 *
 * What the forward made of x is made again: projections, the convolution, unit lengths,
 * and, where the layer's result has a gradient, that of the rule. State and window lie
 * in the slots as they stood before the step; the rule and the convolution move copies
 * of them on. */
#include <string.h>

#include "models/recurrent.h"

static const kvm_recurrent *of(const kvm_layer *l)
{
    return (const kvm_recurrent *)(const void *)l;
}

/* a step's tokens on their way through the layer, and the gradients coming back */
typedef struct passage {
    kvm_recurrent_inputs in;  /* u before the convolution */
    kvm_recurrent_inputs d;   /* of what the rule read, then of in */
    kvm_tensor mixed, read;   /* (T,channels) u after it; and of unit length */
    kvm_tensor state, window; /* copies of the slots', one row */
} passage;

static ptrdiff_t state_numbers(const kvm_recurrent *r)
{
    return r->size.value_heads * r->size.key_dim * r->size.value_dim;
}
static ptrdiff_t window_numbers(const kvm_recurrent *r)
{
    return r->channels * r->size.window;
}

size_t kvm_recurrent_backward_scratch(const kvm_layer *l, ptrdiff_t first, ptrdiff_t n)
{
    (void)first;
    const kvm_recurrent *r = of(l);
    return 4 * kvm_step_rows_bytes(n, r->channels) +
           2 * kvm_step_rows_bytes(n, kvm_recurrent_decays(r)) +
           2 * kvm_step_rows_bytes(n, r->size.value_heads) +
           4 * kvm_step_rows_bytes(n, r->values) +
           2 * kvm_step_rows_bytes(1, state_numbers(r)) +
           2 * kvm_step_rows_bytes(1, window_numbers(r));
}

static kvm_recurrent_inputs inputs(const kvm_recurrent *r, ptrdiff_t n, kvm_arena *temp)
{
    return (kvm_recurrent_inputs){.u = kvm_step_rows(temp, n, r->channels),
                                  .decay =
                                      kvm_step_rows(temp, n, kvm_recurrent_decays(r)),
                                  .beta = kvm_step_rows(temp, n, r->size.value_heads)};
}

/* a row of the numbers of a slot; without one, zeros */
static kvm_tensor row_of(const kvm_slot *slot, ptrdiff_t n, kvm_arena *temp)
{
    const kvm_tensor row = kvm_step_rows(temp, 1, n);
    if (row.data && slot) memcpy(row.data, slot->rows, (size_t)n * sizeof(float));
    if (row.data && !slot) memset(row.data, 0, (size_t)n * sizeof(float));
    return row;
}

/* x as far as the rule reads it; rows live in temp */
static kvm_status ahead(const kvm_recurrent *r, const kvm_step *s, kvm_tensor x,
                        passage *p, kvm_arena *temp, kvm_err *err)
{
    const kvm_slot *slot = &s->slots[r->base.first_object];
    const ptrdiff_t n = x.dim[0];
    p->in = inputs(r, n, temp);
    p->d = inputs(r, n, temp);
    p->mixed = kvm_step_rows(temp, n, r->channels);
    p->read = kvm_step_rows(temp, n, r->channels);
    p->state = row_of(&slot[KVM_RECURRENT_STATE], state_numbers(r), temp);
    p->window = row_of(&slot[KVM_RECURRENT_WINDOW], window_numbers(r), temp);
    if (!p->window.data) return kvm_nomem(err, temp);
    TRY(r->project(r, s, x, &p->in, *temp, err));
    TRY(kvm_recurrent_mix(r, s, p->mixed, p->in.u, p->window.data, err));
    memcpy(p->read.data, p->mixed.data,
           (size_t)kvm_tensor_count(&p->mixed) * sizeof(float));
    return kvm_recurrent_units(r, s, p->read, err);
}

/* dx += what passes through rule, convolution and projections, given dout (T,values);
 * dstate and dwindow from after the step to before it */
static kvm_status behind(const kvm_recurrent *r, const kvm_step *s, const passage *p,
                         kvm_tensor dout, float *dstate, float *dwindow, kvm_tensor dx,
                         kvm_arena temp, kvm_err *err)
{
    const kvm_slot *slot = &s->slots[r->base.first_object];
    const ptrdiff_t taps = r->size.window, c = r->channels;
    kvm_recurrent_inputs read = p->in;
    read.u = p->read;
    TRY(r->rule_back(r, s, &read, &p->d, slot[KVM_RECURRENT_STATE].rows, dstate, dout,
                     err));
    TRY(kvm_recurrent_units_back(r, s, p->mixed, p->d.u, err));
    TRY(kvm_op_conv_back(s->compute, p->d.u, kvm_view2(dwindow, KVM_F32, c, taps),
                         p->in.u, kvm_view2(r->conv, KVM_F32, c, taps), r->conv_bias,
                         kvm_view2(slot[KVM_RECURRENT_WINDOW].rows, KVM_F32, c, taps),
                         p->d.u, err));
    return r->project_back(r, s, &p->in, &p->d, dx, temp, err);
}

/* ---- the gate and the norm ---- */

static kvm_status gated(const kvm_recurrent *r, const kvm_step *s, kvm_tensor y,
                        kvm_tensor z, kvm_tensor up, kvm_err *err)
{
    return r->sigmoid ? kvm_op_sigmoid_mul(s->compute, y, z, up, err)
                      : kvm_op_silu_mul(s->compute, y, z, up, err);
}

/* z and d become the gradients by z and up, d given */
static kvm_status gated_back(const kvm_recurrent *r, const kvm_step *s, kvm_tensor z,
                             kvm_tensor up, kvm_tensor d, kvm_err *err)
{
    return r->sigmoid ? kvm_op_sigmoid_mul_back(s->compute, z, d, z, up, d, err)
                      : kvm_op_silu_mul_back(s->compute, z, d, z, up, d, err);
}

/* dout (T,values) = the gradient by o, the rule's; dx += what the gate owes to x */
static kvm_status give_back(const kvm_recurrent *r, const kvm_step *s, kvm_tensor x,
                            kvm_tensor o, kvm_tensor dy, kvm_tensor dout, kvm_tensor dx,
                            kvm_arena temp, kvm_err *err)
{
    const kvm_tensor w = kvm_view1(r->norm, KVM_F32, r->norm_width);
    const ptrdiff_t group = r->norm_group;
    const kvm_tensor z = kvm_step_rows(&temp, x.dim[0], r->values);
    const kvm_tensor mid = kvm_step_rows(&temp, x.dim[0], r->values);
    if (!z.data || !mid.data) return kvm_nomem(err, &temp);
    TRY(kvm_op_linear_back(s->compute, dout, dy, r->out, false, err));
    TRY(r->gate(r, s, x, z, temp, err));
    if (r->gate_first) {
        TRY(gated(r, s, mid, z, o, err));
        TRY(kvm_op_rmsnorm_back(s->compute, dout, mid, w, dout, group, r->eps, false,
                                false, err));
        TRY(gated_back(r, s, z, o, dout, err));
    } else {
        TRY(kvm_op_rmsnorm(s->compute, mid, o, w, group, r->eps, false, err));
        TRY(gated_back(r, s, z, mid, dout, err));
        TRY(kvm_op_rmsnorm_back(s->compute, dout, o, w, dout, group, r->eps, false,
                                false, err));
    }
    return r->gate_back(r, s, z, dx, temp, err);
}

/* ---- of the kind's table ---- */

static void add_to(const kvm_slot *to, const float *from)
{
    for (ptrdiff_t i = 0; i < to->heads * to->dim; i++) to->rows[i] += from[i];
}

kvm_status kvm_recurrent_backward(const kvm_layer *l, const kvm_step *s, kvm_tensor x,
                                  kvm_tensor dy, kvm_tensor dx, kvm_err *err)
{
    const kvm_recurrent *r = of(l);
    const kvm_slot *grads = &s->grads[l->first_object];
    kvm_arena temp = s->scratch;
    passage p;
    TRY(ahead(r, s, x, &p, &temp, err));
    const kvm_tensor o = kvm_step_rows(&temp, x.dim[0], r->values);
    const kvm_tensor dout = kvm_step_rows(&temp, x.dim[0], r->values);
    const kvm_tensor dstate = row_of(NULL, state_numbers(r), &temp);
    const kvm_tensor dwindow = row_of(NULL, window_numbers(r), &temp);
    if (!dwindow.data) return kvm_nomem(err, &temp);
    kvm_recurrent_inputs read = p.in;
    read.u = p.read;
    TRY(r->rule(r, s, &read, p.state.data, o, err));
    TRY(give_back(r, s, x, o, dy, dout, dx, temp, err));
    TRY(behind(r, s, &p, dout, dstate.data, dwindow.data, dx, temp, err));
    add_to(&grads[KVM_RECURRENT_STATE], dstate.data);
    add_to(&grads[KVM_RECURRENT_WINDOW], dwindow.data);
    return KVM_OK;
}

kvm_status kvm_recurrent_replay_back(const kvm_layer *l, const kvm_step *s,
                                     kvm_tensor x, kvm_tensor dx, kvm_err *err)
{
    const kvm_recurrent *r = of(l);
    const kvm_slot *grads = &s->grads[l->first_object];
    kvm_arena temp = s->scratch;
    passage p;
    TRY(ahead(r, s, x, &p, &temp, err));
    const kvm_tensor none = kvm_step_rows(&temp, x.dim[0], r->values);
    if (!none.data) return kvm_nomem(err, &temp);
    memset(none.data, 0, (size_t)kvm_tensor_count(&none) * sizeof(float));
    memset(dx.data, 0, (size_t)kvm_tensor_count(&dx) * sizeof(float));
    return behind(r, s, &p, none, grads[KVM_RECURRENT_STATE].rows,
                  grads[KVM_RECURRENT_WINDOW].rows, dx, temp, err);
}
