/* plan_fit.c - work that follows from what a translator will consist of: products of
 * its blocks, ridges of its mappings, corrections of its states. */
#include <math.h>

#include "jobs/invert.h"
#include "jobs/plan_internal.h"
#include "translators/identity.h"
#include "translators/ridge.h"
#include "translators/states.h"

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

static double product_flops(kvm_space from, kvm_space to, const kvm_shapes *a,
                            const kvm_shapes *b, double rows)
{
    return (b || from != to ? 2 : 1) * rows * width_of(a, from) *
           width_of(b ? b : a, to);
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
        flops += product_flops(from, to, a, b, rows);
    }
    return flops;
}

static double set_flops(const kvm_block_set *set, const kvm_shapes *a,
                        const kvm_shapes *b, double rows)
{
    double flops = 0;
    for (ptrdiff_t i = 0; i < set->n; i++)
        flops += product_flops(set->id[i].a, set->id[i].b, a, b, rows);
    return flops;
}

double kvm_plan__moments_flops(const kvm_plan_pair *p, bool cross, double rows)
{
    const kvm_outline *o = &p->outline;
    const double gram = set_flops(&o->gram, p->source, NULL, rows);
    return !cross ? gram
                  : gram + set_flops(&o->cross, p->source, p->target, rows) +
                        set_flops(&o->own, p->target, NULL, rows);
}

/* ---- maps ---- */

typedef struct mapped {
    double layers, width; /* that it may read; features of one */
    double targets, out;  /* that it makes; entries of all of them */
    double token;         /* features of the token's embedding */
    bool own;             /* reads the target layer's rows */
} mapped;

/* entries of all layers for which a map makes these rows; the first layer's latents may
 * follow from the token */
static double width_made(const kvm_plan_pair *p, kvm_space space)
{
    double n = 0;
    const bool exact = space == KVM_SPACE_LATENT && p->outline.exact;
    for (ptrdiff_t l = exact; l < p->target->layers; l++)
        if (kvm_outline_makes(&p->outline, p->target, space, l))
            n += (double)kvm_shapes_width(p->target, space, l);
    return n;
}

static mapped size_of(const kvm_plan_pair *p, const kvm_mapping *m)
{
    const kvm_shapes *read = m->side == KVM_TARGET ? p->target : p->source;
    mapped s = {.own = m->side == KVM_TARGET};
    s.layers = fmax(1, (double)kvm_mapping_layers(m, m->side, read, NULL));
    s.targets = fmax(1, (double)kvm_mapping_layers(m, KVM_TARGET, p->target, NULL));
    for (int i = 0; i < kvm_mapping_spaces(m); i++)
        s.width += width_of(read, m->from[i]) / s.layers;
    s.out = width_made(p, m->out);
    if (m->token) s.token = (double)kvm_shapes_width(p->target, KVM_SPACE_TOKEN, 0);
    return s;
}

/* of a layer's own rows there is no choice */
double kvm_plan__sweep_flops(const kvm_plan_pair *p, double k_most, bool full)
{
    double flops = 0;
    for (int i = 0; i < p->outline.mappings; i++) {
        const mapped s = size_of(p, &p->outline.mapping[i]);
        flops += kvm_plan__map_flops(s.own ? 1 : s.layers, s.width, s.token, s.targets,
                                     s.out, s.own ? 1 : k_most, !s.own && full);
    }
    return flops;
}

/* Every source layer alone against every target layer (kvm_select_maps), keys in both
 * of their spaces, and then the sweep. */
double kvm_plan__fit_flops(const kvm_plan_pair *p, double k_most, bool full)
{
    double flops = kvm_plan__sweep_flops(p, k_most, full);
    for (int i = 0; i < p->outline.mappings; i++) {
        const kvm_mapping *m = &p->outline.mapping[i];
        const mapped s = size_of(p, m);
        const double w = s.width + s.token;
        const bool keys = kvm_space_rows[m->out].stored == KVM_SPACE_K;
        flops +=
            (keys && full ? 2 : 1) * s.layers * (w * w * w / 3 + 4 * w * w * s.out);
    }
    return flops;
}

/* entries that a map of k source layers reads */
static double inputs_of(const mapped *s, double k)
{
    return (s->own ? 1 : fmin(k, s->layers)) * s->width + s->token;
}

/* a token that is read out of the first layer is the nearest of a codebook */
static double decode_flops(const kvm_plan_pair *p, const kvm_model *target)
{
    if (p->outline.token != KVM_TOKEN_DECODED) return 0;
    const ptrdiff_t latent = kvm_shapes_width(p->source, KVM_SPACE_LATENT, 0);
    const double row =
        (double)(latent ? latent : kvm_shapes_width(p->source, KVM_SPACE_V, 0));
    return 2 * fmin(KVM_CODEBOOK_WIDTH, row) *
           (row + (double)kvm_model_info_of(target)->vocab);
}

/* a recurrent layer's projections, and its rule: a state decays, is read by the key and
 * takes in an outer product, at RULE multiplications of large matrices each */
static double replay_flops(const kvm_plan_pair *p, const kvm_model *target)
{
    enum { RULE = 6 };
    double flops = 0;
    for (ptrdiff_t i = 0; i < kvm_model_info_of(target)->objects; i++) {
        const kvm_object *o = kvm_model_object(target, i);
        if (o->replay == 0 ||
            kvm_outline_way(&p->outline, p->target, o->layer) != KVM_STATES_REPLAY)
            continue;
        flops +=
            2 * (double)(o->replay * o->inputs) + RULE * (double)(o->heads * o->dim);
    }
    return flops;
}

double kvm_plan__apply_flops(const kvm_plan_pair *p, const kvm_model *target, double k)
{
    double flops = 0;
    for (int i = 0; i < p->outline.mappings; i++) {
        const mapped s = size_of(p, &p->outline.mapping[i]);
        flops += 2 * s.out * inputs_of(&s, k);
    }
    return flops + decode_flops(p, target) + replay_flops(p, target);
}

/* ---- states ---- */

enum { PENALTIES = 6, ROUNDS = 3 }; /* of each, as they usually end (states_fit.c) */

/* heads, and rows and columns of one head's state, of a layer whose state is corrected;
 * false: it is not */
static bool corrected(const kvm_plan_pair *p, ptrdiff_t layer, double *heads, double *k,
                      double *v)
{
    const kvm_row_shape *of = p->target->of[KVM_SPACE_STATE];
    if (!of || of[layer].heads == 0 || of[layer].keys == 0) return false;
    *heads = (double)of[layer].heads;
    *k = (double)of[layer].keys;
    *v = (double)of[layer].dim / *k;
    return kvm_outline_way(&p->outline, p->target, layer) == KVM_STATES_BILINEAR;
}

/* multiplications of all states from both sides */
static double products_flops(const kvm_plan_pair *p)
{
    double flops = 0, heads, k, v;
    for (ptrdiff_t l = 0; l < p->target->layers; l++)
        if (corrected(p, l, &heads, &k, &v)) flops += heads * 2 * k * v * (k + v);
    return flops;
}

double kvm_plan__states_flops(const kvm_plan_pair *p, double fit, double choose)
{
    return PENALTIES * ROUNDS * products_flops(p) * (3 * fit + choose);
}

double kvm_plan__prompt_flops(const kvm_plan_pair *p)
{
    return products_flops(p);
}

/* of a layer's state, and of its window, in blocks of as many channels as a head's keys
 * have (kvm_states_block) */
static double corrections_of(const kvm_plan_pair *p, ptrdiff_t layer)
{
    double heads, k, v;
    if (!corrected(p, layer, &heads, &k, &v)) return 0;
    const kvm_row_shape state = p->target->of[KVM_SPACE_STATE][layer];
    const kvm_row_shape *window = p->target->of[KVM_SPACE_WINDOW];
    const double channels = window ? (double)window[layer].heads : 0;
    return heads * (k * k + v * v) + channels * ((double)kvm_states_block(state) + 1);
}

/* ---- what it will hold ---- */

double kvm_plan__parameters(const kvm_plan_pair *p, double k)
{
    double n = 0;
    for (int i = 0; i < p->outline.mappings; i++) {
        const mapped s = size_of(p, &p->outline.mapping[i]);
        n += s.out * (inputs_of(&s, k) + 1);
    }
    for (ptrdiff_t l = 0; l < p->target->layers; l++) n += corrections_of(p, l);
    return n;
}

/* ---- inversions ---- */

/* a layer's rows of `width`: a ridge to the embedding for each lambda and the one of
 * the best, then the vocabulary against the held-out rows */
static double invert_layer_flops(const kvm_model_info *m, double width, double held)
{
    const double hidden = (double)m->hidden;
    const double solve = pow(width, 3) / 3 + 4 * width * width * hidden;
    return 2 * (KVM_LAMBDAS + 1) * solve + /* fp64 */
           2 * held * hidden * (width + (double)m->vocab);
}

double kvm_plan__invert_flops(const kvm_shapes *s, const kvm_model *m, double held)
{
    kvm_spaces rows = 0;
    kvm_block_set read = {0};
    double flops = 0;
    kvm_invert_needs(&rows, &read, s);
    for (ptrdiff_t b = 0; b < read.n; b++) {
        if (read.id[b].b != KVM_SPACE_TOKEN) continue;
        for (ptrdiff_t l = 0; l < s->layers; l++) {
            const double width = (double)kvm_shapes_width(s, read.id[b].a, l);
            if (width > 0)
                flops += invert_layer_flops(kvm_model_info_of(m), width, held);
        }
    }
    return flops;
}
