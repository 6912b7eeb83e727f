/* residual.c - the list of residual kinds, and a site of any of them. */
#include "models/residual.h"

#include <string.h>

const kvm_residual_kind *const kvm_residual_kinds[] = {
#define X(NAME, name, what) [KVM_RESIDUAL_##NAME] = &kvm_residual_##name,
#include "models/residual_kinds.def"
#undef X
};

const kvm_site_weights kvm_mixer_site = {
    .norm = KVM_W_ATTN_NORM,
    .stream_norm = KVM_W_MIXER_STREAM_NORM,
    .down = KVM_W_MIXER_STREAM_DOWN,
    .up = KVM_W_MIXER_STREAM_UP,
    .inject = KVM_W_MIXER_STREAM_INJECT,
    .mix = KVM_W_MIXER_MIX,
    .mix_base = KVM_W_MIXER_MIX_BASE,
    .mix_scale = KVM_W_MIXER_MIX_SCALE,
};
const kvm_site_weights kvm_ffn_site = {
    .norm = KVM_W_FFN_NORM,
    .stream_norm = KVM_W_FFN_STREAM_NORM,
    .down = KVM_W_FFN_STREAM_DOWN,
    .up = KVM_W_FFN_STREAM_UP,
    .inject = KVM_W_FFN_STREAM_INJECT,
    .mix = KVM_W_FFN_MIX,
    .mix_base = KVM_W_FFN_MIX_BASE,
    .mix_scale = KVM_W_FFN_MIX_SCALE,
};
const kvm_site_weights kvm_final_site = {
    .norm = KVM_W_FINAL_NORM,
    .stream_norm = KVM_W_FINAL_STREAM_NORM,
    .down = KVM_W_FINAL_STREAM_DOWN,
    .up = KVM_W_FINAL_STREAM_UP,
    .head = true,
};

kvm_status kvm_site_load(kvm_site *out, kvm_loader *ld, kvm_layer_id kind,
                         const kvm_site_weights *weights, ptrdiff_t index, kvm_err *err)
{
    const kvm_config *c = ld->config;
    if (kind == KVM_LAYER_NONE && !weights->head) return KVM_OK;
    *out = (kvm_site){.kind = kvm_residual_kinds[c->family->residual],
                      .eps = c->eps,
                      .hidden = c->hidden,
                      .streams = c->stream.count > 0 ? c->stream.count : 1};
    TRY(out->kind->load(out, ld, weights, index, err));
    if (kind == KVM_LAYER_NONE) return KVM_OK;
    const kvm_layer_kind *k = kvm_layer_kinds[kind];
    TRY(k->load(&out->layer, ld, index, err));
    out->layer->kind = k;
    out->layer->index = index;
    return KVM_OK;
}

size_t kvm_site_scratch(const kvm_site *site, ptrdiff_t n)
{
    if (!site->kind) return 0;
    const kvm_layer *l = site->layer;
    return site->kind->scratch(site, n) + (l ? l->kind->scratch(l, n) : 0);
}

kvm_status kvm_site_read(const kvm_site *site, const kvm_step *step, kvm_tensor h,
                         kvm_tensor x, kvm_err *err)
{
    return site->kind->read(site, step, h, x, err);
}

kvm_status kvm_site_forward(const kvm_site *site, const kvm_step *step, kvm_tensor h,
                            ptrdiff_t rows, kvm_err *err)
{
    if (rows == 0 || !site->layer) return KVM_OK;
    return site->kind->forward(site, step, h, rows, err);
}

/* ---- the way back ---- */

kvm_status kvm_site__again(const kvm_site *site, const kvm_step *step, kvm_tensor x,
                           kvm_tensor y, kvm_err *err)
{
    kvm_step inner = *step;
    inner.slots = step->again;
    memset(y.data, 0, (size_t)kvm_tensor_count(&y) * sizeof(float));
    return site->layer->kind->forward(site->layer, &inner, x, y, err);
}

const char *kvm_site_lacks_backward(const kvm_site *site)
{
    if (!site->kind) return NULL;
    if (!site->kind->backward) return site->kind->name;
    return !site->layer || site->layer->kind->backward ? NULL : site->layer->kind->name;
}

size_t kvm_site_backward_scratch(const kvm_site *site, ptrdiff_t first, ptrdiff_t n)
{
    if (!site->kind) return 0;
    const kvm_layer *l = site->layer;
    const size_t back = l ? l->kind->backward_scratch(l, first, n) : 0;
    const size_t again = l ? l->kind->scratch(l, n) : 0;
    return site->kind->backward_scratch(site, n) + (back > again ? back : again);
}

kvm_status kvm_site_backward(const kvm_site *site, const kvm_step *step, kvm_tensor h,
                             kvm_tensor dh, kvm_err *err)
{
    return site->layer ? site->kind->backward(site, step, h, dh, err) : KVM_OK;
}

kvm_status kvm_site_read_back(const kvm_site *site, const kvm_step *step, kvm_tensor h,
                              kvm_tensor dx, kvm_tensor dh, kvm_err *err)
{
    return site->kind->read_back(site, step, h, dx, dh, err);
}
