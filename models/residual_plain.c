/* residual_plain.c - one stream: x = rms(h) w;  h += layer(x); after the last block
 * rms(h) w goes to the head. */
#include "models/residual.h"

#include <string.h>

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

static size_t backward_scratch(const kvm_site *s, ptrdiff_t n)
{
    return 2 * kvm_step_rows_bytes(n, s->hidden);
}

/* dh = the gradient by h of rms(h) w, or dh += */
static kvm_status norm_back(const kvm_site *s, const kvm_step *step, kvm_tensor h,
                            kvm_tensor dx, kvm_tensor dh, bool add, kvm_err *err)
{
    return kvm_op_rmsnorm_back(step->compute, dh, h,
                               kvm_view1(s->norm, KVM_F32, s->hidden), dx, s->hidden,
                               s->eps, false, add, err);
}

static kvm_status backward(const kvm_site *s, const kvm_step *step, kvm_tensor h,
                           kvm_tensor dh, kvm_err *err)
{
    kvm_step inner = *step;
    kvm_tensor x = kvm_step_rows(&inner.scratch, step->n, s->hidden);
    kvm_tensor dx = kvm_step_rows(&inner.scratch, step->n, s->hidden);
    if (!x.data || !dx.data) return kvm_nomem(err, &inner.scratch);
    TRY(read(s, step, h, x, err));
    memset(dx.data, 0, (size_t)kvm_tensor_count(&dx) * sizeof(float));
    TRY(s->layer->kind->backward(s->layer, &inner, x, dh, dx, err));
    return norm_back(s, step, h, dx, dh, true, err);
}

static kvm_status read_back(const kvm_site *s, const kvm_step *step, kvm_tensor h,
                            kvm_tensor dx, kvm_tensor dh, kvm_err *err)
{
    return norm_back(s, step, h, dx, dh, false, err);
}

const kvm_residual_kind kvm_residual_plain = {
    .name = "plain",
    .load = load,
    .scratch = scratch,
    .read = read,
    .forward = forward,
    .backward_scratch = backward_scratch,
    .backward = backward,
    .read_back = read_back,
};
