#include "models/residual.h"

#include <string.h>

#include "models/activation.h"

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

/* ---- load ---- */

static kvm_status load_streams(kvm_site *s, kvm_loader *ld, const kvm_site_weights *w,
                               ptrdiff_t index, kvm_err *err)
{
    const ptrdiff_t wide = s->streams * s->hidden;
    const kvm_plain_map maps[] = {{w->down, s->rank, wide, &s->down},
                                  {w->up, wide, s->rank, &s->up},
                                  {w->inject, s->streams, wide, &s->inject}};
    TRY(kvm_load_norm(ld, w->stream_norm, index, wide, &s->norm, err));
    TRY(kvm_load_maps(ld, index, maps, w->head ? 2 : 3, err));
    return KVM_OK;
}

kvm_status kvm_site_load(kvm_site *out, kvm_loader *ld, kvm_layer_id kind,
                         const kvm_site_weights *weights, ptrdiff_t index, kvm_err *err)
{
    const kvm_config *c = ld->config;
    if (kind == KVM_LAYER_NONE && !weights->head) return KVM_OK;
    *out = (kvm_site){.eps = c->eps,
                      .hidden = c->hidden,
                      .streams = c->stream.count > 0 ? c->stream.count : 1,
                      .rank = c->stream.rank,
                      .mixed = c->family->mixed,
                      .mix_eps = c->stream.eps,
                      .mix_rounds = c->stream.rounds};
    TRY(c->family->streams ? load_streams(out, ld, weights, index, err)
        : c->family->mixed
            ? kvm_mix__load(out, ld, weights, index, err)
            : kvm_load_norm(ld, weights->norm, index, c->hidden, &out->norm, err));
    const kvm_layer_kind *k = kvm_layer_kinds[kind];
    if (kind == KVM_LAYER_NONE) return KVM_OK;
    TRY(k->load(&out->layer, ld, index, err));
    out->layer->kind = k;
    out->layer->index = index;
    return KVM_OK;
}

/* ---- forward ---- */

size_t kvm_site_scratch(const kvm_site *site, ptrdiff_t n)
{
    const ptrdiff_t wide = site->streams * site->hidden;
    const size_t mixing = site->down ? kvm_step_rows_bytes(n, site->streams) +
                                           2 * kvm_step_rows_bytes(n, wide) +
                                           kvm_step_rows_bytes(n, site->rank) +
                                           kvm_step_rows_bytes(n, site->hidden)
                                     : 0;
    return mixing + (site->mixed ? kvm_mix__scratch(site, n) : 0) +
           kvm_step_rows_bytes(n, site->hidden) +
           (site->layer ? site->layer->kind->scratch(site->layer, n) : 0);
}

/* h (n, streams * hidden) -> x (n, hidden), and inject (n, streams) unless at the
 * head */
static kvm_status mix(const kvm_site *site, const kvm_step *s, kvm_tensor h,
                      kvm_tensor x, kvm_tensor inject, kvm_arena temp, kvm_err *err)
{
    const ptrdiff_t n = h.dim[0], hidden = site->hidden, wide = site->streams * hidden;
    const float share = 1 / (float)site->streams;
    kvm_tensor r = kvm_step_rows(&temp, n, wide), m = kvm_step_rows(&temp, n, wide);
    kvm_tensor low = kvm_step_rows(&temp, n, site->rank);
    if (!r.data || !m.data || !low.data) return kvm_nomem(err, &temp);
    TRY(kvm_op_rmsnorm(s->compute, r, h, kvm_view1(site->norm, KVM_F32, wide), hidden,
                       site->eps, false, err));
    TRY(kvm_op_linear(s->compute, low, r, site->down, false, err));
    for (ptrdiff_t i = 0; i < n * site->rank; i++) {
        float *v = (float *)low.data + i;
        *v = kvm_silu(*v * share);
    }
    TRY(kvm_op_linear(s->compute, m, low, site->up, false, err));
    TRY(kvm_op_sigmoid_mul(s->compute, m, m, r, err));
    for (ptrdiff_t t = 0; t < n; t++) {
        const float *from = (const float *)m.data + t * wide;
        float *to = (float *)x.data + t * x.stride[0];
        for (ptrdiff_t i = 0; i < hidden; i++) {
            float sum = 0;
            for (ptrdiff_t k = 0; k < site->streams; k++) sum += from[k * hidden + i];
            to[i] = sum * share;
        }
    }
    if (!site->inject) return KVM_OK;
    TRY(kvm_op_linear(s->compute, inject, r, site->inject, false, err));
    for (ptrdiff_t i = 0; i < n * site->streams; i++) {
        float *v = (float *)inject.data + i;
        *v = 2 * kvm_sigmoid(*v * share);
    }
    return KVM_OK;
}

kvm_status kvm_site_read(const kvm_site *site, const kvm_step *step, kvm_tensor h,
                         kvm_tensor x, kvm_err *err)
{
    if (site->mixed) return kvm_mix__read(site, step, h, x, err);
    if (site->down) return mix(site, step, h, x, x, step->scratch, err);
    return kvm_op_rmsnorm(step->compute, x, h,
                          kvm_view1(site->norm, KVM_F32, site->hidden), site->hidden,
                          site->eps, false, err);
}

static kvm_status forward_streams(const kvm_site *site, const kvm_step *step,
                                  kvm_tensor h, ptrdiff_t rows, kvm_err *err)
{
    const ptrdiff_t hidden = site->hidden, out = step->out;
    kvm_step inner = *step;
    kvm_tensor x = kvm_step_rows(&inner.scratch, rows, hidden);
    kvm_tensor y = kvm_step_rows(&inner.scratch, out, hidden);
    kvm_tensor inject = kvm_step_rows(&inner.scratch, rows, site->streams);
    if (!x.data || !y.data || !inject.data) return kvm_nomem(err, &inner.scratch);
    TRY(mix(site, step, kvm_last_rows(h, rows), x, inject, inner.scratch, err));
    memset(y.data, 0, (size_t)(out * hidden) * sizeof(float));
    TRY(site->layer->kind->forward(site->layer, &inner, x, y, err));
    h = kvm_last_rows(h, out);
    inject = kvm_last_rows(inject, out);
    for (ptrdiff_t i = 0; i < out * site->streams; i++) {
        const float by = ((const float *)inject.data)[i];
        const float *from = (const float *)y.data + i / site->streams * hidden;
        float *to = (float *)h.data + i * hidden;
        for (ptrdiff_t k = 0; k < hidden; k++) to[k] += by * from[k];
    }
    return KVM_OK;
}

kvm_status kvm_site_forward(const kvm_site *site, const kvm_step *step, kvm_tensor h,
                            ptrdiff_t rows, kvm_err *err)
{
    if (rows == 0 || !site->layer) return KVM_OK;
    if (site->mixed) return kvm_mix__forward(site, step, h, rows, err);
    if (site->down) return forward_streams(site, step, h, rows, err);
    kvm_step inner = *step;
    kvm_tensor x = kvm_step_rows(&inner.scratch, rows, site->hidden);
    if (!x.data) return kvm_nomem(err, &inner.scratch);
    TRY(kvm_site_read(site, step, kvm_last_rows(h, rows), x, err));
    return site->layer->kind->forward(site->layer, &inner, x,
                                      kvm_last_rows(h, step->out), err);
}
