/* fit_states.c - what becomes of recurrent layers' states in a fit, and its figures. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "jobs/fit_internal.h"

static kvm_state_map map_of(kvm_state_way w)
{
    return w == KVM_STATES_COPY       ? KVM_STATE_COPY
           : w == KVM_STATES_BILINEAR ? KVM_STATE_BILINEAR
                                      : KVM_STATE_ZERO;
}

/* a state is one row a sequence: of a single one that is held out no share can be
 * told; nor has a copy a penalty */
static json_t *share(double r2)
{
    return isfinite(r2) ? json_real(r2) : json_null();
}

/* members PREFIXr2_held, ...; a penalty of null: as it is */
static void put_state_figure(json_t *row, const char *prefix, const kvm_state_figure *g)
{
    const struct {
        const char *name;
        json_t *value;
    } members[] = {{"r2_choose", share(g->r2[KVM_CHOOSE])},
                   {"r2_choose_copy", share(g->r2_copy[KVM_CHOOSE])},
                   {"r2_held", share(g->r2[KVM_HELD])},
                   {"r2_copy", share(g->r2_copy[KVM_HELD])},
                   {"penalty", share(g->penalty)},
                   {"rounds", json_integer(g->rounds)}};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        char key[32];
        snprintf(key, sizeof key, "%s%s", prefix, members[i].name);
        json_object_set_new(row, key, members[i].value);
    }
}

/* What becomes of one layer's state; ranks take layers. */
static kvm_status fit_state(kvm_fit *f, ptrdiff_t layer, kvm_state_step *s,
                            kvm_state_figures *figures, kvm_err *err)
{
    kvm_job *j = f->job;
    kvm_state_options o = {0};
    const kvm_state_map map =
        map_of(kvm_outline_way(&f->outline, &f->translator.target.shapes, layer));
    *s = (kvm_state_step){.layer = layer,
                          .map = map,
                          .r2_held = (double)NAN,
                          .r2_window_held = (double)NAN};
    if (map == KVM_STATE_ZERO || !kvm_team_mine(j->team, layer)) return KVM_OK;
    kvm_moments_split(f->moments, &o.seed, &o.fraction);
    return kvm_states_fit(f->compute, f->rows[0], f->rows[1], map,
                          kvm_outline_state_source(&f->translator.source.shapes,
                                                   &f->translator.target.shapes, layer),
                          layer, &o, s, figures, j->keep, f->scratch, err);
}

/* a state step as ranks tell each other, but for its arrays */
typedef struct told {
    kvm_state_figures figures;
    double r2_held, r2_window_held;
    int64_t source, left[2], right[2], window[2]; /* (n, d) of n matrices d x d */
} told;

static void tell_shape(int64_t to[2], const kvm_tensor *t)
{
    to[0] = t->dim[0];
    to[1] = t->dim[1];
}

static kvm_status share_matrices(kvm_job *j, kvm_tensor *t, const int64_t shape[2],
                                 kvm_err *err)
{
    const ptrdiff_t n = shape[0], d = shape[1];
    if (n == 0) return KVM_OK; /* a copy has none */
    if (!t->data) {
        float *zeros = kvm_new(j->keep, float, n *d *d);
        if (!zeros) return kvm_nomem(err, j->keep);
        *t = kvm_view3(zeros, KVM_F32, n, d, d);
    }
    return kvm_team_unite(j->team, t->data, n * d * d * (ptrdiff_t)sizeof(float), err);
}

static kvm_status share_state(kvm_fit *f, kvm_state_step *s, kvm_state_figures *figures,
                              kvm_err *err)
{
    kvm_job *j = f->job;
    told t = {0};
    if (s->map == KVM_STATE_ZERO || j->team->size == 1) return KVM_OK;
    if (kvm_team_mine(j->team, s->layer)) {
        t = (told){.figures = *figures,
                   .r2_held = s->r2_held,
                   .r2_window_held = s->r2_window_held,
                   .source = s->source};
        tell_shape(t.left, &s->left);
        tell_shape(t.right, &s->right);
        tell_shape(t.window, &s->window);
    }
    TRY(kvm_team_unite(j->team, &t, sizeof t, err));
    *figures = t.figures;
    s->r2_held = t.r2_held;
    s->r2_window_held = t.r2_window_held;
    s->source = t.source;
    TRY(share_matrices(j, &s->left, t.left, err));
    TRY(share_matrices(j, &s->right, t.right, err));
    TRY(share_matrices(j, &s->window, t.window, err));
    const ptrdiff_t n = t.window[0] * t.window[1];
    if (n == 0) return KVM_OK;
    float *bias = kvm_new(j->keep, float, n);
    if (!bias) return kvm_nomem(err, j->keep);
    if (s->bias) memcpy(bias, s->bias, sizeof *bias * (size_t)n);
    s->bias = bias;
    return kvm_team_unite(j->team, bias, n * (ptrdiff_t)sizeof *bias, err);
}

static void put_state(const kvm_state_step *s, const kvm_state_figures *figures,
                      json_t *list)
{
    json_t *row = json_pack("{s:I}", "layer", (json_int_t)s->layer);
    json_array_append_new(list, row);
    if (s->map != KVM_STATE_ZERO)
        json_object_set_new(row, "source", json_integer(s->source));
    json_object_set_new(row, "map", json_string(kvm_state_map_name(s->map)));
    if (s->map == KVM_STATE_ZERO) return;
    put_state_figure(row, "", &figures->state);
    put_state_figure(row, "window_", &figures->window);
}

kvm_status kvm_fit__states(kvm_fit *f, kvm_err *err)
{
    const kvm_shapes *to = &f->translator.target.shapes;
    if (!to->of[KVM_SPACE_STATE] || f->outline.states == KVM_STATES_REPLAY)
        return KVM_OK;
    json_t *list = json_array();
    json_object_set_new(f->figures, "states", list);
    kvm_state_step *s = kvm_new(f->job->keep, kvm_state_step, to->layers);
    kvm_state_figures *figures = kvm_new(f->job->keep, kvm_state_figures, to->layers);
    if (!s || !figures) return kvm_nomem(err, f->job->keep);
    ptrdiff_t *n = &f->translator.state_count;
    f->translator.states = s;
    for (ptrdiff_t l = 0; l < to->layers; l++) {
        if (kvm_shapes_width(to, KVM_SPACE_STATE, l) == 0 ||
            kvm_outline_way(&f->outline, to, l) == KVM_STATES_REPLAY)
            continue;
        TRY(fit_state(f, l, &s[*n], &figures[*n], err));
        ++*n;
    }
    for (ptrdiff_t i = 0; i < *n; i++) {
        TRY(share_state(f, &s[i], &figures[i], err));
        put_state(&s[i], &figures[i], list);
    }
    return KVM_OK;
}
