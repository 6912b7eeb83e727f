#include "models/residual.h"

const kvm_layer_kind *const kvm_layer_kinds[] = {
#define X(NAME, name, what) [KVM_LAYER_##NAME] = &kvm_##name,
#include "models/layer_kinds.def"
#undef X
};

kvm_status kvm_site_load(kvm_site *out, kvm_loader *ld, kvm_layer_id kind,
                         kvm_weight_id norm, ptrdiff_t index, kvm_err *err)
{
    const kvm_layer_kind *k = kvm_layer_kinds[kind];
    out->eps = ld->config->eps;
    TRY(kvm_load_norm(ld, norm, index, ld->config->hidden, &out->norm, err));
    TRY(k->load(&out->layer, ld, index, err));
    out->layer->kind = k;
    out->layer->index = index;
    return KVM_OK;
}

size_t kvm_site_scratch(const kvm_site *site, ptrdiff_t n)
{
    return site->layer->kind->scratch(site->layer, n);
}

kvm_status kvm_site_forward(const kvm_site *site, const kvm_step *step, kvm_tensor h,
                            ptrdiff_t rows, kvm_err *err)
{
    const ptrdiff_t hidden = h.dim[1];
    kvm_step inner = *step;
    if (rows == 0) return KVM_OK;
    kvm_tensor x = kvm_step_rows(&inner.scratch, rows, hidden);
    if (!x.data) return kvm_nomem(err, &inner.scratch);
    TRY(kvm_op_rmsnorm(step->compute, x, kvm_last_rows(h, rows),
                       kvm_view1(site->norm, KVM_F32, hidden), hidden, site->eps, false,
                       err));
    return site->layer->kind->forward(site->layer, &inner, x,
                                      kvm_last_rows(h, step->out), err);
}
