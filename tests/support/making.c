#include "tests/support/making.h"

#include <math.h>

#include "tests/support/check.h"

making making_begin(kvm_arena *keep, const kvm_model *from, const kvm_model *to,
                    kvm_token_kind token)
{
    kvm_err err = {0};
    making m = {.t = {.keys = KVM_KEYS_CONTENT, .token = token},
                .keep = keep,
                .rng = kvm_rng_seed(6, 1)};
    check_ok(kvm_side_of_model(&m.t.source, keep, from, &err), &err);
    check_ok(kvm_side_of_model(&m.t.target, keep, to, &err), &err);
    m.step = kvm_new(keep, kvm_step, KVM_SPACES * m.t.target.shapes.layers);
    m.state = kvm_new(keep, kvm_state_step, m.t.target.shapes.layers);
    m.t.steps = m.step;
    m.t.states = m.state;
    return m;
}

static ptrdiff_t width_of(const kvm_shapes *s, kvm_space space, ptrdiff_t layer)
{
    return kvm_shapes_width(s, space, layer);
}

void making_step(making *m, kvm_space out, ptrdiff_t layer, const int32_t *source,
                 ptrdiff_t sources, bool identity)
{
    kvm_err err = {0};
    kvm_step *s = &m->step[m->t.count++];
    const bool token = m->t.token != KVM_TOKEN_NONE;
    *s = (kvm_step){.layer = layer,
                    .map = KVM_MAP_RIDGE,
                    .sources = sources,
                    .source = source,
                    .groups = 1};
    check_ok(kvm_mapping_find(&s->mapping, out, token, &m->t.source.shapes,
                              &m->t.target.shapes, &err),
             &err);
    s->outputs = width_of(&m->t.target.shapes, out, layer);
    kvm_feature item[16];
    const ptrdiff_t items =
        kvm_mapping_items(&s->mapping, source, sources, layer, item);
    for (ptrdiff_t i = 0; i < items; i++)
        s->inputs += width_of(item[i].side == KVM_SOURCE ? &m->t.source.shapes
                                                         : &m->t.target.shapes,
                              item[i].space, item[i].layer);
    float *w = kvm_new(m->keep, float, s->outputs * s->inputs);
    float *b = kvm_new(m->keep, float, s->outputs);
    const ptrdiff_t skip =
        token ? kvm_shapes_width(&m->t.target.shapes, KVM_SPACE_TOKEN, 0) : 0;
    if (identity) assert_int_equal(s->inputs - skip, s->outputs);
    for (ptrdiff_t i = 0; i < s->outputs * s->inputs; i++)
        w[i] = identity ? (float)(i / s->inputs + skip == i % s->inputs)
                        : (float)(kvm_rng_normal(&m->rng) / sqrt((double)s->inputs));
    for (ptrdiff_t i = 0; i < s->outputs; i++)
        b[i] = identity ? 0 : (float)kvm_rng_normal(&m->rng);
    s->weight[0] = kvm_view3(w, KVM_F32, 1, s->outputs, s->inputs);
    s->bias[0] = b;
}

void making_exact(making *m, kvm_space out)
{
    m->step[m->t.count++] = (kvm_step){.mapping = {.out = out}, .map = KVM_MAP_EXACT};
}

static kvm_tensor identities(kvm_arena *keep, ptrdiff_t n, ptrdiff_t side)
{
    float *x = kvm_new(keep, float, n *side *side);
    for (ptrdiff_t i = 0; i < n * side; i++) x[i * side + i % side] = 1;
    return kvm_view3(x, KVM_F32, n, side, side);
}

/* channels that a window's map mixes */
static ptrdiff_t common(ptrdiff_t a, ptrdiff_t b)
{
    return b ? common(b, a % b) : a;
}

void making_state(making *m, ptrdiff_t layer, kvm_state_map map)
{
    kvm_state_step *s = &m->state[m->t.state_count++];
    *s = (kvm_state_step){.layer = layer, .map = map, .source = layer};
    if (map != KVM_STATE_BILINEAR) return;
    const kvm_row_shape state = m->t.target.shapes.of[KVM_SPACE_STATE][layer];
    const kvm_row_shape window = m->t.target.shapes.of[KVM_SPACE_WINDOW][layer];
    const ptrdiff_t k = state.keys, v = state.dim / k, d = common(k, v);
    s->left = identities(m->keep, state.heads, k);
    s->right = identities(m->keep, state.heads, v);
    s->window = identities(m->keep, window.heads / d, d);
    s->bias = kvm_new(m->keep, float, window.heads);
}

kvm_translator making_identity(kvm_arena *keep, const kvm_model *model,
                               kvm_space latents, kvm_token_kind token,
                               kvm_state_map states)
{
    making m = making_begin(keep, model, model, token);
    const kvm_shapes *s = &m.t.target.shapes;
    const kvm_space spaces[] = {KVM_SPACE_K, KVM_SPACE_V, latents};
    for (ptrdiff_t l = 0; l < s->layers; l++) {
        int32_t *own = kvm_new(keep, int32_t, 1);
        own[0] = (int32_t)l;
        for (size_t i = 0; i < COUNT(spaces); i++) {
            if (width_of(s, spaces[i], l) == 0) continue;
            if (l == 0 && spaces[i] == KVM_SPACE_LATENT && token != KVM_TOKEN_NONE)
                making_exact(&m, KVM_SPACE_LATENT);
            else
                making_step(&m, spaces[i], l, own, 1, true);
        }
        /* there is no recipe from index keys: those are drawn */
        if (width_of(s, KVM_SPACE_INDEX, l) > 0)
            making_step(&m, KVM_SPACE_INDEX, l, NULL, 0, false);
        if (width_of(s, KVM_SPACE_STATE, l) > 0) making_state(&m, l, states);
    }
    return m.t;
}
