/* ffn.c - the gated feed-forward: y += Wd (silu(Wg x) * Wu x). */
#include "models/layer.h"

typedef struct ffn {
    kvm_layer base;
    ptrdiff_t inner;
    kvm_weight *gate, *up, *down;
} ffn;

static kvm_status load(kvm_layer **out, kvm_loader *ld, ptrdiff_t index, kvm_err *err)
{
    const kvm_config *c = ld->config;
    ffn *f = kvm_new(ld->keep, ffn, 1);
    if (!f) return kvm_nomem(err, ld->keep);
    *f = (ffn){.inner = c->ffn};
    const kvm_linear_row rows[] = {
        {KVM_W_FFN_GATE, KVM_W_FFN_GATE_BIAS, index, c->ffn, c->hidden, c->mlp_bias, 0,
         0},
        {KVM_W_FFN_UP, KVM_W_FFN_UP_BIAS, index, c->ffn, c->hidden, c->mlp_bias, 0, 0},
        {KVM_W_FFN_DOWN, KVM_W_FFN_DOWN_BIAS, index, c->hidden, c->ffn, c->mlp_bias, 0,
         0},
    };
    kvm_weight **const maps[] = {&f->gate, &f->up, &f->down};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        TRY(kvm_load_linear(ld, &rows[i], maps[i], err));
    *out = &f->base;
    return KVM_OK;
}

static const ffn *of(const kvm_layer *l)
{
    return (const ffn *)(const void *)l;
}

static size_t scratch(const kvm_layer *l, ptrdiff_t n)
{
    const ffn *f = of(l);
    return 2 * kvm_step_rows_bytes(n, f->inner);
}

static kvm_status forward(const kvm_layer *l, const kvm_step *s, kvm_tensor x,
                          kvm_tensor y, kvm_err *err)
{
    const ffn *f = of(l);
    kvm_arena temp = s->scratch;
    kvm_tensor gate = kvm_step_rows(&temp, x.dim[0], f->inner);
    kvm_tensor up = kvm_step_rows(&temp, x.dim[0], f->inner);
    if (!gate.data || !up.data) return kvm_nomem(err, &temp);
    TRY(kvm_op_linear(s->compute, gate, x, f->gate, false, err));
    TRY(kvm_op_linear(s->compute, up, x, f->up, false, err));
    TRY(kvm_op_silu_mul(s->compute, gate, gate, up, err));
    return kvm_op_linear(s->compute, y, gate, f->down, true, err);
}

const kvm_layer_kind kvm_ffn = {
    .name = "ffn", .load = load, .scratch = scratch, .forward = forward};
