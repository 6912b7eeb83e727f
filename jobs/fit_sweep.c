#include "jobs/fit_sweep.h"

#include <math.h>

/* figures of each mapping: (targets, nk, nl) */
typedef struct grid {
    const kvm_fit_sweep *s;
    const ptrdiff_t *ks;
    ptrdiff_t nk, nl, targets;
    const kvm_lambda *lambdas;
    ptrdiff_t given; /* index of the lambda that the spec asks for; -1: none */
    kvm_ridge_figures *of[KVM_GROUP];
} grid;

static const kvm_ridge_figures *cell(const grid *g, int object, ptrdiff_t target,
                                     ptrdiff_t k, ptrdiff_t l)
{
    return &g->of[object][(target * g->nk + k) * g->nl + l];
}

/* mean over target layers; NaN when any was refused */
static double mean_r2(const grid *g, int object, kvm_split split, ptrdiff_t k,
                      ptrdiff_t l)
{
    double sum = 0;
    for (ptrdiff_t t = 0; t < g->targets; t++) {
        const kvm_ridge_figures *c = cell(g, object, t, k, l);
        if (c->refused) return (double)NAN;
        sum += c->r2[split];
    }
    return sum / (double)g->targets;
}

/* the lambda that the spec asks for, else the best relative one of this k by R2 on the
 * choosing split; -1 when refused */
static ptrdiff_t best_lambda(const grid *g, int object, ptrdiff_t k)
{
    ptrdiff_t best = -1;
    if (g->given >= 0)
        return isfinite(mean_r2(g, object, KVM_CHOOSE, k, g->given)) ? g->given : -1;
    for (ptrdiff_t l = 0; l < g->nl; l++) {
        if (g->lambdas[l].absolute) continue;
        const double r2 = mean_r2(g, object, KVM_CHOOSE, k, l);
        if (isfinite(r2) && (best < 0 || r2 > mean_r2(g, object, KVM_CHOOSE, k, best)))
            best = l;
    }
    return best;
}

static kvm_status fill(grid *g, kvm_arena *keep, kvm_arena scratch, kvm_err *err)
{
    const kvm_fit_sweep *s = g->s;
    const ptrdiff_t sources = s->ranking->sources;
    kvm_feature *item = kvm_new(&scratch, kvm_feature, 3 + 2 * sources);
    ptrdiff_t *items = kvm_new(&scratch, ptrdiff_t, g->nk);
    if (!item || !items) return kvm_nomem(err, &scratch);
    for (int o = 0; o < s->mappings; o++) {
        const kvm_mapping *m = &s->mapping[o];
        g->of[o] = kvm_new(keep, kvm_ridge_figures, g->targets * g->nk * g->nl);
        if (!g->of[o]) return kvm_nomem(err, keep);
        for (ptrdiff_t t = 0; t < g->targets; t++) {
            if (!kvm_team_mine(s->team, t)) continue;
            kvm_progress_at(s->progress, (double)(o * g->targets + t),
                            (double)(s->mappings * g->targets), "sweeps");
            if (kvm_progress_cancelled(s->progress))
                return kvm_fail(err, KVM_CANCELLED, "cancelled in the sweep");
            const int32_t layer = s->ranking->target[t];
            const int32_t *order = s->ranking->order + t * sources;
            for (ptrdiff_t k = 0; k < g->nk; k++)
                items[k] = kvm_mapping_items(m, order, g->ks[k], layer, item);
            const kvm_features x = {
                item, kvm_mapping_items(m, order, sources, layer, item), -1};
            TRY(kvm_ridge_sweep(s->compute, s->moments, x, (kvm_output){m->out, layer},
                                items, g->nk, g->lambdas, g->nl, s->allow_wide,
                                g->of[o] + t * g->nk * g->nl, scratch, err));
        }
    }
    const ptrdiff_t bytes =
        (ptrdiff_t)sizeof(kvm_ridge_figures) * g->targets * g->nk * g->nl;
    for (int o = 0; o < s->mappings; o++)
        TRY(kvm_team_unite(s->team, g->of[o], bytes, err));
    return KVM_OK;
}

static double joint_r2(const grid *g, ptrdiff_t k)
{
    double sum = 0;
    for (int o = 0; o < g->s->mappings; o++) {
        const ptrdiff_t l = best_lambda(g, o, k);
        if (l < 0) return (double)NAN;
        sum += mean_r2(g, o, KVM_CHOOSE, k, l);
    }
    return sum / g->s->mappings;
}

static kvm_status choose(const grid *g, kvm_fit_choice *c, ptrdiff_t *chosen,
                         kvm_err *err)
{
    double best = -INFINITY;
    for (ptrdiff_t k = 0; k < g->nk; k++) best = fmax(best, joint_r2(g, k));
    if (!isfinite(best))
        return kvm_fail(
            err, KVM_RANGE,
            "rows <= features already for k = %td (%td fit rows): capture more "
            "tokens, or say allow_wide",
            g->ks[0], kvm_moments_rows(g->s->moments, KVM_FIT));
    *chosen = 0;
    while (!(joint_r2(g, *chosen) >= best - c->k_slack)) ++*chosen;
    c->k = g->ks[*chosen];
    for (int o = 0; o < g->s->mappings; o++)
        c->best[o] = g->lambdas[best_lambda(g, o, *chosen)];
    return KVM_OK;
}

/* ---- figures ---- */

static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static void put_k_curve(json_t *figures, const grid *g)
{
    json_t *ks = json_array(), *series = json_array();
    for (ptrdiff_t k = 0; k < g->nk; k++)
        json_array_append_new(ks, json_integer(g->ks[k]));
    for (int o = 0; o < g->s->mappings; o++) {
        json_t *choose = json_array(), *fit = json_array();
        for (ptrdiff_t k = 0; k < g->nk; k++) {
            const ptrdiff_t l = best_lambda(g, o, k);
            json_array_append_new(
                choose, number(l < 0 ? (double)NAN : mean_r2(g, o, KVM_CHOOSE, k, l)));
            json_array_append_new(
                fit, number(l < 0 ? (double)NAN : mean_r2(g, o, KVM_FIT, k, l)));
        }
        json_array_append_new(series, json_pack("{s:s, s:o, s:o}", "object",
                                                kvm_mapping_label(&g->s->mapping[o]),
                                                "choose", choose, "fit", fit));
    }
    json_object_set_new(figures, "k_curve",
                        json_pack("{s:o, s:o}", "k", ks, "series", series));
}

/* mean Gram diagonal of the first mapping's rows over all source layers: where an
 * absolute lambda falls on the relative axis */
static kvm_status mean_diagonal(const kvm_fit_sweep *s, double *mean, kvm_arena scratch,
                                kvm_err *err)
{
    double sum = 0, count = 0;
    kvm_mapping bare = s->mapping[0];
    bare.token = false;
    for (ptrdiff_t i = 0; i < s->ranking->sources; i++) {
        kvm_arena each = scratch;
        kvm_feature item[2];
        const kvm_features x = {
            item, kvm_mapping_items(&bare, &s->ranking->order[i], 1, 0, item), -1};
        const ptrdiff_t f = kvm_features_width(s->moments, x);
        double *g = kvm_new_raw(&each, double, f *f);
        if (!g) return kvm_nomem(err, &each);
        kvm_moments_get_gram(s->moments, KVM_FIT, x, g);
        for (ptrdiff_t e = 0; e < f; e++) sum += g[e * f + e];
        count += (double)f;
    }
    *mean = sum / count;
    return KVM_OK;
}

static void put_lambda_curve(json_t *figures, const grid *g, ptrdiff_t k,
                             double diagonal)
{
    json_t *lambdas = json_array(), *series = json_array();
    for (ptrdiff_t l = 0; l < KVM_LAMBDAS; l++) {
        const double value = g->lambdas[l].value;
        /* nowhere when the keys are the same in every row: the diagonal is 0 */
        json_array_append_new(
            lambdas,
            json_pack("{s:f, s:b, s:o}", "value", value, "absolute",
                      g->lambdas[l].absolute, "relative",
                      number(g->lambdas[l].absolute ? value / diagonal : value)));
    }
    for (int o = 0; o < g->s->mappings; o++) {
        json_t *choose = json_array(), *fit = json_array();
        for (ptrdiff_t l = 0; l < KVM_LAMBDAS; l++) {
            json_array_append_new(choose, number(mean_r2(g, o, KVM_CHOOSE, k, l)));
            json_array_append_new(fit, number(mean_r2(g, o, KVM_FIT, k, l)));
        }
        json_array_append_new(series, json_pack("{s:s, s:o, s:o}", "object",
                                                kvm_mapping_label(&g->s->mapping[o]),
                                                "choose", choose, "fit", fit));
    }
    json_object_set_new(figures, "lambda_curve",
                        json_pack("{s:o, s:o}", "lambda", lambdas, "series", series));
}

/* one greedy order and the R2 of its prefixes, for one object and target layer */
typedef struct greedy_curve {
    int32_t *order; /* (n) */
    double *r2;     /* (n) NaN: refused */
    ptrdiff_t n;
} greedy_curve;

static kvm_status find_greedy(const kvm_fit_sweep *s, int object, ptrdiff_t target,
                              kvm_lambda lambda, const greedy_curve *g,
                              kvm_arena scratch, kvm_err *err)
{
    const ptrdiff_t n = g->n;
    kvm_mapping bare = s->mapping[object];
    bare.token = false;
    kvm_feature *item = kvm_new(&scratch, kvm_feature, 2 * n);
    ptrdiff_t *ks = kvm_new(&scratch, ptrdiff_t, n);
    kvm_ridge_figures *f = kvm_new(&scratch, kvm_ridge_figures, n);
    if (!item || !ks || !f) return kvm_nomem(err, &scratch);
    TRY(kvm_select_greedy(s->compute, s->moments, &bare, target, lambda, g->order, n,
                          scratch, err));
    for (ptrdiff_t i = 0; i < n; i++)
        ks[i] = kvm_mapping_items(&bare, g->order, i + 1, target, item);
    TRY(kvm_ridge_sweep(s->compute, s->moments, (kvm_features){item, ks[n - 1], -1},
                        (kvm_output){bare.out, target}, ks, n, &lambda, 1,
                        s->allow_wide, f, scratch, err));
    for (ptrdiff_t i = 0; i < n; i++)
        g->r2[i] = f[i].refused ? (double)NAN : f[i].r2[KVM_CHOOSE];
    return KVM_OK;
}

static json_t *greedy_json(const kvm_mapping *m, ptrdiff_t target,
                           const greedy_curve *g)
{
    json_t *layers = json_array(), *r2 = json_array();
    for (ptrdiff_t i = 0; i < g->n; i++) {
        json_array_append_new(layers, json_integer(g->order[i]));
        json_array_append_new(r2, number(g->r2[i]));
    }
    return json_pack("{s:s, s:I, s:o, s:o}", "object", kvm_mapping_label(m), "target",
                     (json_int_t)target, "order", layers, "choose", r2);
}

ptrdiff_t kvm_fit_greedy_targets(ptrdiff_t targets, ptrdiff_t of[KVM_GREEDY_TARGETS])
{
    const ptrdiff_t last = targets - 1;
    const ptrdiff_t spread[] = {0, last / 3, 2 * last / 3, last};
    ptrdiff_t n = 0;
    for (int i = 0; i < KVM_GREEDY_TARGETS; i++)
        if (n == 0 || spread[i] != of[n - 1]) of[n++] = spread[i];
    return n;
}

static kvm_status put_greedy(json_t *figures, const kvm_fit_sweep *s,
                             const kvm_fit_choice *c, kvm_arena scratch, kvm_err *err)
{
    json_t *list = json_array();
    json_object_set_new(figures, "greedy", list);
    ptrdiff_t targets[KVM_GREEDY_TARGETS];
    const ptrdiff_t sources = s->ranking->sources;
    const ptrdiff_t most = c->k_most < sources ? c->k_most : sources;
    const ptrdiff_t n = kvm_fit_greedy_targets(s->ranking->targets, targets);
    const ptrdiff_t numbers = s->mappings * n * most;
    int32_t *order = kvm_new(&scratch, int32_t, numbers);
    double *r2 = kvm_new(&scratch, double, numbers);
    if (!order || !r2) return kvm_nomem(err, &scratch);
    for (ptrdiff_t i = 0; i < s->mappings * n; i++) {
        const greedy_curve g = {order + i * most, r2 + i * most, most};
        const int o = (int)(i / n);
        if (kvm_team_mine(s->team, i))
            TRY(find_greedy(s, o, s->ranking->target[targets[i % n]], c->best[o], &g,
                            scratch, err));
    }
    TRY(kvm_team_unite(s->team, order, numbers * (ptrdiff_t)sizeof *order, err));
    TRY(kvm_team_unite(s->team, r2, numbers * (ptrdiff_t)sizeof *r2, err));
    for (ptrdiff_t i = 0; i < s->mappings * n; i++) {
        const greedy_curve g = {order + i * most, r2 + i * most, most};
        json_array_append_new(
            list,
            greedy_json(&s->mapping[i / n], s->ranking->target[targets[i % n]], &g));
    }
    return KVM_OK;
}

static ptrdiff_t chosen_row(const grid *g, const kvm_fit_choice *c)
{
    for (ptrdiff_t k = 0; k < g->nk; k++)
        if (g->ks[k] == c->k) return k;
    return -1;
}

/* the ks to try: the usual ones up to k_most with the spec's own among them, or its own
 * alone */
static ptrdiff_t list_ks(const kvm_fit_sweep *s, const kvm_fit_choice *c,
                         ptrdiff_t ks[KVM_KS + 1])
{
    const ptrdiff_t k = c->k;
    if (k && !s->full) return ks[0] = k, 1;
    ptrdiff_t n = kvm_select_ks(s->ranking->sources, ks), at = 0;
    while (n > 1 && ks[n - 1] > c->k_most) n--;
    while (at < n && ks[at] < k) at++;
    if (!k || (at < n && ks[at] == k)) return n;
    for (ptrdiff_t i = n; i > at; i--) ks[i] = ks[i - 1];
    ks[at] = k;
    return n + 1;
}

/* the grid of every fit, and the spec's own lambda behind it */
static ptrdiff_t list_lambdas(const kvm_fit_choice *c,
                              kvm_lambda lambdas[KVM_LAMBDAS + 1], ptrdiff_t *given)
{
    for (ptrdiff_t l = 0; l < KVM_LAMBDAS; l++) lambdas[l] = kvm_lambda_grid[l];
    lambdas[KVM_LAMBDAS] = c->lambda;
    *given = c->lambda_given ? KVM_LAMBDAS : -1;
    return KVM_LAMBDAS + c->lambda_given;
}

static void keep_k(const grid *g, kvm_fit_choice *choice, ptrdiff_t *row)
{
    *row = chosen_row(g, choice);
    for (int o = 0; o < g->s->mappings; o++) {
        const ptrdiff_t l = best_lambda(g, o, *row);
        choice->best[o] = g->lambdas[l < 0 ? 0 : l]; /* refused: the fit says so */
    }
}

kvm_status kvm_fit_run_sweep(const kvm_fit_sweep *s, kvm_fit_choice *choice,
                             json_t *figures, kvm_arena *keep, kvm_arena scratch,
                             kvm_err *err)
{
    ptrdiff_t ks[KVM_KS + 1], row;
    kvm_lambda lambdas[KVM_LAMBDAS + 1];
    double diagonal;
    grid g = {.s = s, .ks = ks, .lambdas = lambdas, .targets = s->ranking->targets};
    if (choice->k > s->ranking->sources)
        return kvm_fail(err, KVM_RANGE, "k is %td, the source has %td layers",
                        choice->k, s->ranking->sources);
    if (!s->full && choice->k && choice->lambda_given) return KVM_OK;
    g.nk = list_ks(s, choice, ks);
    g.nl = list_lambdas(choice, lambdas, &g.given);
    TRY(fill(&g, keep, scratch, err));
    if (choice->k)
        keep_k(&g, choice, &row);
    else
        TRY(choose(&g, choice, &row, err));
    if (!s->full) return KVM_OK;
    TRY(mean_diagonal(s, &diagonal, scratch, err));
    put_k_curve(figures, &g);
    put_lambda_curve(figures, &g, row, diagonal);
    return put_greedy(figures, s, choice, scratch, err);
}

static json_t *matrix(const double *r2, ptrdiff_t rows, ptrdiff_t columns)
{
    json_t *all = json_array();
    for (ptrdiff_t i = 0; i < rows; i++) {
        json_t *one = json_array();
        for (ptrdiff_t k = 0; k < columns; k++)
            json_array_append_new(one, number(r2[i * columns + k]));
        json_array_append_new(all, one);
    }
    return all;
}

static json_t *layers_json(const int32_t *layer, ptrdiff_t n)
{
    json_t *list = json_array();
    for (ptrdiff_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer(layer[i]));
    return list;
}

kvm_status kvm_fit_put_map(json_t *figures, const kvm_mapping *mapping,
                           const kvm_r2_map *map, kvm_err *err)
{
    json_t *one = json_object(), *all = json_object_get(figures, "maps");
    if (!all) json_object_set_new(figures, "maps", all = json_object());
    for (int p = 0; p < KVM_HELD; p++)
        json_object_set_new(one, kvm_split_name((kvm_split)p),
                            matrix(map->r2[p], map->sources, map->targets));
    json_object_set_new(one, "source_layers", layers_json(map->source, map->sources));
    json_object_set_new(one, "target_layers", layers_json(map->target, map->targets));
    return json_object_set_new(all, kvm_space_name(mapping->out), one)
               ? kvm_fail(err, KVM_NOMEM, "no memory for the figures")
               : KVM_OK;
}
