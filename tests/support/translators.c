#include "tests/support/translators.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/rng.h"
#include "translators/states.h"
#include "translators/translator_internal.h"

static void must(kvm_status s, const kvm_err *err)
{
    if (!s) return;
    fprintf(stderr, "making a translator: %s\n", err->msg);
    abort();
}

static float *noise(kvm_arena *keep, kvm_rng *rng, ptrdiff_t n, double size)
{
    float *x = kvm_new(keep, float, n);
    for (ptrdiff_t i = 0; i < n; i++) x[i] = (float)(size * kvm_rng_normal(rng));
    return x;
}

/* near the identity in every block */
static kvm_tensor near_identity(kvm_arena *keep, kvm_rng *rng, ptrdiff_t blocks,
                                ptrdiff_t n, double size)
{
    float *x = noise(keep, rng, blocks * n * n, size / sqrt((double)n));
    for (ptrdiff_t b = 0; b < blocks; b++)
        for (ptrdiff_t i = 0; i < n; i++) x[(b * n + i) * n + i] += 1;
    return kvm_view3(x, KVM_F32, blocks, n, n);
}

static void make_step(kvm_translator *t, kvm_step *s, const kvm_mapping *m,
                      ptrdiff_t layer, kvm_arena *keep, kvm_rng *rng, double size)
{
    int32_t *layers = kvm_new(keep, int32_t, t->source.shapes.layers);
    const ptrdiff_t n = kvm_mapping_layers(m, KVM_SOURCE, &t->source.shapes, layers);
    const ptrdiff_t at = layer * n / t->target.shapes.layers;
    *s = (kvm_step){.mapping = *m,
                    .layer = layer,
                    .map = KVM_MAP_RIDGE,
                    .sources = m->side == KVM_TARGET ? 0
                               : n > 1               ? 2
                                                     : 1,
                    .groups = 1,
                    .lambda = (double)NAN,
                    .r2_fit = (double)NAN,
                    .r2_held = (double)NAN};
    int32_t *source = kvm_new(keep, int32_t, 2);
    source[0] = layers[at];
    source[1] = layers[at + 1 < n ? at + 1 : at - 1 >= 0 ? at - 1 : 0];
    s->source = source;
    s->outputs = kvm_shapes_width(&t->target.shapes, m->out, layer);
    s->inputs = kvm_step__inputs(t, s);
    s->weight[0] = kvm_view3(
        noise(keep, rng, s->outputs * s->inputs, size / sqrt((double)s->inputs)),
        KVM_F32, 1, s->outputs, s->inputs);
    s->bias[0] = noise(keep, rng, s->outputs, 0.1 * size);
}

static void make_state(const kvm_translator *t, kvm_state_step *s, kvm_state_way way,
                       ptrdiff_t layer, kvm_arena *keep, kvm_rng *rng, double size)
{
    const kvm_row_shape r = t->target.shapes.of[KVM_SPACE_STATE][layer];
    const kvm_row_shape w = t->target.shapes.of[KVM_SPACE_WINDOW][layer];
    *s = (kvm_state_step){
        .layer = layer,
        .map = way == KVM_STATES_BILINEAR ? KVM_STATE_BILINEAR
               : way == KVM_STATES_COPY   ? KVM_STATE_COPY
                                          : KVM_STATE_ZERO,
        .source = kvm_outline_state_source(&t->source.shapes, &t->target.shapes, layer),
        .r2_held = (double)NAN,
        .r2_window_held = (double)NAN};
    if (s->map != KVM_STATE_BILINEAR) return;
    const ptrdiff_t k = r.keys, v = r.dim / k, d = kvm_states_block(r);
    s->left = near_identity(keep, rng, r.heads, k, size);
    s->right = near_identity(keep, rng, r.heads, v, size);
    s->window = near_identity(keep, rng, w.heads / d, d, size);
    s->bias = noise(keep, rng, w.heads, 0.1 * size);
}

void made_translator(kvm_translator *t, kvm_arena *keep, const kvm_model *source,
                     const kvm_model *target, const kvm_outline_options *o, double size)
{
    kvm_err err = {0};
    kvm_outline out;
    kvm_rng rng = kvm_rng_seed(7, 7);
    *t = (kvm_translator){.keys = o->keys, .pair = KVM_STR(""), .moments = KVM_STR("")};
    must(kvm_side_of_model(&t->source, keep, source, &err), &err);
    must(kvm_side_of_model(&t->target, keep, target, &err), &err);
    must(kvm_outline_make(&out, o, &t->source.shapes, &t->target.shapes, &err), &err);
    const ptrdiff_t layers = t->target.shapes.layers;
    kvm_step *steps = kvm_new(keep, kvm_step, KVM_SPACES * layers);
    kvm_state_step *states = kvm_new(keep, kvm_state_step, layers);
    t->token = out.token;
    t->dense = out.dense;
    t->steps = steps;
    t->states = states;
    for (ptrdiff_t l = 0; l < layers; l++) {
        for (int s = 0; s < KVM_SPACES; s++)
            for (int i = 0; i < out.mappings; i++) {
                const kvm_mapping *m = &out.mapping[i];
                if (m->out != (kvm_space)s ||
                    !kvm_outline_makes(&out, &t->target.shapes, m->out, l))
                    continue;
                kvm_step *step = &steps[t->count++];
                if (l == 0 && out.exact && m->out == KVM_SPACE_LATENT)
                    *step =
                        (kvm_step){.mapping = {.out = m->out}, .map = KVM_MAP_EXACT};
                else
                    make_step(t, step, m, l, keep, &rng, size);
            }
        if (kvm_shapes_width(&t->target.shapes, KVM_SPACE_STATE, l) == 0) continue;
        const kvm_state_way way = kvm_outline_way(&out, &t->target.shapes, l);
        if (way != KVM_STATES_REPLAY)
            make_state(t, &states[t->state_count++], way, l, keep, &rng, size);
    }
    must(kvm_translator_check(t, &err), &err);
}
