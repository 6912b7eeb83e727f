/* plan_fit.c - work that follows from what a translator will consist of: products of
 * its blocks, ridges of its mappings, corrections of its states. */
#include <math.h>

#include "jobs/plan_internal.h"

static double width_of(const kvm_shapes *s, kvm_space space)
{
    double n = 0;
    for (ptrdiff_t l = 0; l < s->layers; l++)
        n += (double)kvm_shapes_width(s, space, l);
    return n;
}

double kvm_plan__capture_bytes(const json_t *spaces, const kvm_shapes *s, double rows,
                               double sequences, double row_bytes)
{
    double bytes = 0;
    size_t i;
    json_t *name;
    json_array_foreach(spaces, i, name)
    {
        kvm_space space;
        if (kvm_space_of_name(kvm_str_of(json_string_value(name)), &space)) continue;
        bytes += width_of(s, space) *
                 (kvm_space_once(space) ? sequences * sizeof(float) : rows * row_bytes);
    }
    return bytes;
}

double kvm_plan__blocks_flops(const json_t *blocks, const kvm_shapes *a,
                              const kvm_shapes *b, double rows)
{
    double flops = 0;
    size_t i;
    json_t *name;
    json_array_foreach(blocks, i, name)
    {
        kvm_str x, y;
        kvm_space from, to;
        if (!kvm_str_cut(kvm_str_of(json_string_value(name)), '+', &x, &y)) y = x;
        if (kvm_space_of_name(x, &from) || kvm_space_of_name(y, &to)) continue;
        flops += (b || from != to ? 2 : 1) * rows * width_of(a, from) *
                 width_of(b ? b : a, to);
    }
    return flops;
}

/* ---- maps ---- */

typedef struct mapped {
    double layers, width; /* that it may read; features of one */
    double targets, out;  /* that it makes; entries of all of them */
    double token;         /* features of the token's embedding */
    bool own;             /* reads the target layer's rows */
} mapped;

static mapped size_of(const kvm_plan_pair *p, const kvm_mapping *m)
{
    const kvm_shapes *read = m->side == KVM_TARGET ? p->target : p->source;
    mapped s = {.own = m->side == KVM_TARGET};
    s.layers = fmax(1, (double)kvm_mapping_layers(m, m->side, read, NULL));
    s.targets = fmax(1, (double)kvm_mapping_layers(m, KVM_TARGET, p->target, NULL));
    for (int i = 0; i < kvm_mapping_spaces(m); i++)
        s.width += width_of(read, m->from[i]) / s.layers;
    s.out = width_of(p->target, m->out);
    if (m->token)
        s.token =
            width_of(p->target, KVM_SPACE_TOKEN) / fmax(1, (double)p->target->layers);
    return s;
}

/* Every source layer alone against every target layer (kvm_select_maps), keys in both
 * of their spaces, and then the sweep; of a layer's own rows there is no choice. */
double kvm_plan__fit_flops(const kvm_plan_pair *p, double k_most, bool full)
{
    double flops = 0;
    for (int i = 0; i < p->outline.mappings; i++) {
        const kvm_mapping *m = &p->outline.mapping[i];
        const mapped s = size_of(p, m);
        const double w = s.width + s.token;
        const double alone = s.layers * (w * w * w / 3 + 4 * w * w * s.out);
        const bool keys = kvm_space_rows[m->out].stored == KVM_SPACE_K;
        flops +=
            (keys && full ? 2 : 1) * alone +
            (s.own ? kvm_plan__map_flops(1, w, s.targets, s.out, 1, false)
                   : kvm_plan__map_flops(s.layers, w, s.targets, s.out, k_most, full));
    }
    return flops;
}

double kvm_plan__apply_flops(const kvm_plan_pair *p, const kvm_model *target, double k)
{
    double flops = 0;
    bool replays = false;
    for (int i = 0; i < p->outline.mappings; i++) {
        const kvm_mapping *m = &p->outline.mapping[i];
        const mapped s = size_of(p, m);
        const double read = s.own ? 1 : fmin(k, s.layers);
        flops += 2 * s.out * (read * s.width + s.token);
        replays |= m->out == KVM_SPACE_INPUT;
    }
    /* a token that is read out of the first layer is the nearest of a codebook */
    if (p->outline.token == KVM_TOKEN_DECODED && p->outline.mappings > 0) {
        const mapped s = size_of(p, &p->outline.mapping[0]);
        flops += 2 * s.width * (double)kvm_model_info_of(target)->vocab;
    }
    /* what a replay multiplies is the layer's own: a share of its block's */
    if (replays) flops += kvm_model_info_of(target)->flops_per_token / 3;
    return flops;
}

/* ---- states ---- */

enum { PENALTIES = 6, ROUNDS = 3 }; /* of each, as they usually end (states_fit.c) */

double kvm_plan__states_flops(const kvm_plan_pair *p, double fit, double choose)
{
    double flops = 0;
    for (ptrdiff_t l = 0; l < p->target->layers; l++) {
        const kvm_row_shape *of = p->target->of[KVM_SPACE_STATE];
        if (!of || of[l].heads == 0 || of[l].keys == 0) continue;
        if (kvm_outline_way(&p->outline, p->target, l) != KVM_STATES_BILINEAR) continue;
        const double k = (double)of[l].keys, v = (double)of[l].dim / k;
        const double product = 2 * k * v * (k + v); /* of both sides with a state */
        flops +=
            (double)of[l].heads * PENALTIES * ROUNDS * product * (3 * fit + choose);
    }
    return flops;
}

double kvm_plan__prompt_flops(const kvm_plan_pair *p)
{
    return kvm_plan__states_flops(p, 1, 0) / (3 * PENALTIES * ROUNDS);
}
