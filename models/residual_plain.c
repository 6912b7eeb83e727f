/* residual_plain.c - one stream: x = rms(h) w;  h += layer(x); after the last block
 * rms(h) w goes to the head. */
#include "models/residual.h"

static kvm_status load(kvm_site *s, kvm_loader *ld, const kvm_site_weights *w,
                       ptrdiff_t index, kvm_err *err)
{
    return kvm_load_norm(ld, w->norm, index, s->hidden, &s->norm, err);
}

static size_t scratch(const kvm_site *s, ptrdiff_t n)
{
    return kvm_step_rows_bytes(n, s->hidden);
}

static kvm_status read(const kvm_site *s, const kvm_step *step, kvm_tensor h,
                       kvm_tensor x, kvm_err *err)
{
    return kvm_op_rmsnorm(step->compute, x, h, kvm_view1(s->norm, KVM_F32, s->hidden),
                          s->hidden, s->eps, false, err);
}

static kvm_status forward(const kvm_site *s, const kvm_step *step, kvm_tensor h,
                          ptrdiff_t rows, kvm_err *err)
{
    kvm_step inner = *step;
    kvm_tensor x = kvm_step_rows(&inner.scratch, rows, s->hidden);
    if (!x.data) return kvm_nomem(err, &inner.scratch);
    TRY(read(s, step, kvm_last_rows(h, rows), x, err));
    return s->layer->kind->forward(s->layer, &inner, x, kvm_last_rows(h, step->out),
                                   err);
}

const kvm_residual_kind kvm_residual_plain = {
    .name = "plain",
    .load = load,
    .scratch = scratch,
    .read = read,
    .forward = forward,
};
