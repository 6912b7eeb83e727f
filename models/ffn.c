/* ffn.c - the feed-forward of a block: y += Wd (silu(Wg x) * Wu x), or without a gate
 * (models/ffn.h). */
#include "models/ffn.h"

#include <math.h>

typedef struct ffn {
    kvm_layer base;
    kvm_ffn_maps maps;
} ffn;

static kvm_status load(kvm_layer **out, kvm_loader *ld, ptrdiff_t index, kvm_err *err)
{
    const kvm_config *c = ld->config;
    ffn *f = kvm_new(ld->keep, ffn, 1);
    if (!f) return kvm_nomem(err, ld->keep);
    f->maps.inner = c->ffn;
    f->maps.limit = c->swiglu_limit;
    const kvm_linear_row rows[] = {
        {KVM_W_FFN_UP, KVM_W_FFN_UP_BIAS, index, c->ffn, c->hidden, c->mlp_bias, 0, 0},
        {KVM_W_FFN_DOWN, KVM_W_FFN_DOWN_BIAS, index, c->hidden, c->ffn, c->mlp_bias, 0,
         0},
        {KVM_W_FFN_GATE, KVM_W_FFN_GATE_BIAS, index, c->ffn, c->hidden, c->mlp_bias, 0,
         0},
    };
    kvm_weight **const maps[] = {&f->maps.up, &f->maps.down, &f->maps.gate};
    for (int i = 0; i < (c->family->squared ? 2 : 3); i++)
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
    const kvm_ffn_maps *m = &of(l)->maps;
    return (m->gate ? 2 : 1) * kvm_step_rows_bytes(n, m->inner);
}

static void clip(float *x, ptrdiff_t n, float least, float most)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        if (x[i] > most) x[i] = most;
        if (x[i] < least) x[i] = least;
    }
}

/* what x makes of a gate, where there is one, and of up */
static kvm_status open_up(const kvm_step *s, const kvm_ffn_maps *m, kvm_tensor x,
                          kvm_tensor g, kvm_tensor u, kvm_err *err)
{
    if (m->gate) TRY(kvm_op_linear(s->compute, g, x, m->gate, false, err));
    TRY(kvm_op_linear(s->compute, u, x, m->up, false, err));
    if (m->limit > 0) {
        const float limit = (float)m->limit;
        clip(g.data, kvm_tensor_count(&g), -INFINITY, limit);
        clip(u.data, kvm_tensor_count(&u), -limit, limit);
    }
    return KVM_OK;
}

kvm_status kvm_ffn_run(const kvm_step *s, const kvm_ffn_maps *m, kvm_tensor x,
                       kvm_tensor y, bool add, float *gate, float *up, kvm_err *err)
{
    const kvm_tensor g = kvm_view2(gate, KVM_F32, x.dim[0], m->inner);
    kvm_tensor u = kvm_view2(up, KVM_F32, x.dim[0], m->inner);
    TRY(open_up(s, m, x, g, u, err));
    if (m->gate) {
        TRY(kvm_op_silu_mul(s->compute, g, g, u, err));
        u = g;
    } else {
        TRY(kvm_op_relu2(s->compute, u, u, err));
    }
    return kvm_op_linear(s->compute, y, u, m->down, add, err);
}

static kvm_status forward(const kvm_layer *l, const kvm_step *s, kvm_tensor x,
                          kvm_tensor y, kvm_err *err)
{
    const kvm_ffn_maps *m = &of(l)->maps;
    kvm_arena temp = s->scratch;
    const ptrdiff_t n = x.dim[0];
    float *up = kvm_step_rows(&temp, n, m->inner).data;
    float *gate = m->gate ? kvm_step_rows(&temp, n, m->inner).data : up;
    if (!gate || !up) return kvm_nomem(err, &temp);
    return kvm_ffn_run(s, m, x, y, true, gate, up, err);
}

/* ---- backward ---- */

size_t kvm_ffn_back_scratch(const kvm_ffn_maps *m, ptrdiff_t n)
{
    return 4 * kvm_step_rows_bytes(n, m->inner);
}

/* numbers that were clipped do not move */
static void hold(float *d, const float *x, ptrdiff_t n, float least, float most)
{
    for (ptrdiff_t i = 0; i < n; i++)
        if (x[i] >= most || x[i] <= least) d[i] = 0;
}

/* dots (n) of what Wd is given and du, the gradient by it; room (n, inner) */
static kvm_status dot_rows(const kvm_step *s, const kvm_ffn_maps *m, kvm_tensor g,
                           kvm_tensor u, kvm_tensor du, kvm_tensor room, float *dots,
                           kvm_err *err)
{
    TRY(m->gate ? kvm_op_silu_mul(s->compute, room, g, u, err)
                : kvm_op_relu2(s->compute, room, u, err));
    for (ptrdiff_t t = 0; t < u.dim[0]; t++) {
        const float *a = (const float *)room.data + t * m->inner;
        const float *b = (const float *)du.data + t * m->inner;
        dots[t] = 0;
        for (ptrdiff_t i = 0; i < m->inner; i++) dots[t] += a[i] * b[i];
    }
    return KVM_OK;
}

kvm_status kvm_ffn_back(const kvm_step *s, const kvm_ffn_maps *m, kvm_tensor x,
                        kvm_tensor dy, kvm_tensor dx, bool add, float *dots,
                        kvm_err *err)
{
    kvm_arena temp = s->scratch;
    const ptrdiff_t n = x.dim[0];
    const kvm_tensor g = kvm_step_rows(&temp, m->gate ? n : 0, m->inner);
    const kvm_tensor u = kvm_step_rows(&temp, n, m->inner);
    const kvm_tensor dg = kvm_step_rows(&temp, n, m->inner);
    const kvm_tensor du = kvm_step_rows(&temp, n, m->inner);
    if (!g.data || !u.data || !dg.data || !du.data) return kvm_nomem(err, &temp);
    TRY(open_up(s, m, x, g, u, err));
    TRY(kvm_op_linear_back(s->compute, du, dy, m->down, false, err));
    if (dots) TRY(dot_rows(s, m, g, u, du, dg, dots, err));
    if (!m->gate) {
        TRY(kvm_op_relu2_back(s->compute, du, u, du, err));
        return kvm_op_linear_back(s->compute, dx, du, m->up, add, err);
    }
    TRY(kvm_op_silu_mul_back(s->compute, dg, du, g, u, du, err));
    if (m->limit > 0) {
        const float limit = (float)m->limit;
        hold(dg.data, g.data, kvm_tensor_count(&g), -INFINITY, limit);
        hold(du.data, u.data, kvm_tensor_count(&u), -limit, limit);
    }
    TRY(kvm_op_linear_back(s->compute, dx, dg, m->gate, add, err));
    return kvm_op_linear_back(s->compute, dx, du, m->up, true, err);
}

static size_t backward_scratch(const kvm_layer *l, ptrdiff_t first, ptrdiff_t n)
{
    (void)first;
    return kvm_ffn_back_scratch(&of(l)->maps, n);
}

static kvm_status backward(const kvm_layer *l, const kvm_step *s, kvm_tensor x,
                           kvm_tensor dy, kvm_tensor dx, kvm_err *err)
{
    return kvm_ffn_back(s, &of(l)->maps, x, dy, dx, true, NULL, err);
}

const kvm_layer_kind kvm_ffn = {.name = "ffn",
                                .load = load,
                                .scratch = scratch,
                                .forward = forward,
                                .backward_scratch = backward_scratch,
                                .backward = backward};
