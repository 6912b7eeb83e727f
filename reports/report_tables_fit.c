/* report_tables_fit.c - tables of what a fit and a training found. */
#include "reports/report_tables_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- how linear the caches are ---- */

static void map_rows(kvm_table *t, const kvm_r2_map *m)
{
    for (ptrdiff_t i = 0; i < m->rows * m->cols; i++) {
        kvm_table__words(t, m->title);
        kvm_table_num(t, m->source[i / m->cols], KVM_FORMAT_COUNT);
        kvm_table_num(t, m->target[i % m->cols], KVM_FORMAT_COUNT);
        kvm_table_num(t, m->r2[i], KVM_FORMAT_R2);
    }
}

kvm_table kvm_report_table_maps(kvm_arena *keep, const kvm_document *d)
{
    static const kvm_column columns[] = {HEAD("object", "Object", TEXT),
                                         HEAD("source_layer", "Source layer", NUMBER),
                                         HEAD("target_layer", "Target layer", NUMBER),
                                         HEAD("r2", "R², choosing split", NUMBER)};
    kvm_table t =
        kvm_table_new(keep, "linearity", KVM_STR("R² of one layer"), COLUMNS(columns));
    for (ptrdiff_t g = 0; g < d->group_count; g++)
        for (ptrdiff_t m = 0; m < d->groups[g].map_count; m++)
            map_rows(&t, &d->groups[g].maps[m]);
    return t;
}

static void greedy_rows(kvm_table *t, const kvm_greedy *g)
{
    for (ptrdiff_t l = 0; l < g->count; l++) {
        const kvm_greedy_layer *layer = &g->layers[l];
        for (ptrdiff_t i = 0; i < layer->r2.n; i++) {
            kvm_table__words(t, g->title);
            kvm_table_num(t, (double)layer->target, KVM_FORMAT_COUNT);
            kvm_table_num(t, (double)(i + 1), KVM_FORMAT_COUNT);
            kvm_table_num(t, i < layer->order.n ? layer->order.at[i] : KVM_NONE,
                          KVM_FORMAT_COUNT);
            kvm_table_num(t, layer->r2.at[i], KVM_FORMAT_R2);
        }
    }
}

kvm_table kvm_report_table_greedy(kvm_arena *keep, const kvm_document *d)
{
    static const kvm_column columns[] = {HEAD("object", "Object", TEXT),
                                         HEAD("target_layer", "Target layer", NUMBER),
                                         HEAD("layers", "Layers used", NUMBER),
                                         HEAD("added", "Source layer added", NUMBER),
                                         HEAD("r2", "R², choosing split", NUMBER)};
    kvm_table t =
        kvm_table_new(keep, "greedy", KVM_STR("Greedy selection"), COLUMNS(columns));
    for (ptrdiff_t g = 0; g < d->group_count; g++)
        for (ptrdiff_t i = 0; i < d->groups[g].greedy_count; i++)
            greedy_rows(&t, &d->groups[g].greedy[i]);
    return t;
}

static void sweep_rows(kvm_table *t, const kvm_sweep *s, const char *knob)
{
    for (ptrdiff_t c = 0; c < s->count; c++) {
        for (ptrdiff_t i = 0; i < s->knob.n; i++) {
            kvm_table__static(t, knob);
            kvm_table_num(t, s->knob.at[i], KVM_FORMAT_NUMBER);
            kvm_table__words(t, s->titles[c]);
            kvm_table_num(t, s->r2[c].at[i], KVM_FORMAT_R2);
        }
        if (!s->absolute_r2.n) continue;
        kvm_table__static(t, "lambda, absolute");
        kvm_table_num(t, s->absolute, KVM_FORMAT_NUMBER);
        kvm_table__words(t, s->titles[c]);
        kvm_table_num(t, s->absolute_r2.at[c], KVM_FORMAT_R2);
    }
}

kvm_table kvm_report_table_sweeps(kvm_arena *keep, const kvm_document *d)
{
    static const kvm_column columns[] = {
        HEAD("knob", "Knob", TEXT), HEAD("value", "Value", NUMBER),
        HEAD("object", "Object", TEXT), HEAD("r2", "R², choosing split", NUMBER)};
    kvm_table t = kvm_table_new(keep, "sweeps", KVM_STR("Sweeps"), COLUMNS(columns));
    for (ptrdiff_t g = 0; g < d->group_count; g++) {
        sweep_rows(&t, &d->groups[g].k, "k");
        sweep_rows(&t, &d->groups[g].lambda, "lambda, relative");
    }
    return t;
}

/* "k_r2", "K R² held-out": a column of an object */
static kvm_column object_column(kvm_arena *keep, const kvm_object_name *o,
                                const char *suffix, const char *what)
{
    const kvm_str key = kvm_str_fmt(keep, "%.*s%s", KVM_STR_ARG(o->key), suffix);
    return (kvm_column){
        key.at, kvm_str_fmt(keep, "%.*s %s", KVM_STR_ARG(o->title), what), KVM_COL_EST};
}

/* states have no figure on the sequences that they were fitted on */
static bool has_fit(const kvm_document *d, ptrdiff_t object)
{
    for (ptrdiff_t s = 0; s < d->layer_count; s++)
        for (ptrdiff_t i = 0; i < d->layers[s].count; i++)
            if (kvm_est_has(d->layers[s].rows[i].r2_fit[object])) return true;
    return false;
}

static void layer_row(kvm_table *t, const kvm_document *d, kvm_arm arm,
                      const kvm_layer_row *row)
{
    kvm_table__static(t, kvm_arms[arm].label);
    kvm_table_num(t, (double)row->layer, KVM_FORMAT_COUNT);
    for (ptrdiff_t o = 0; o < d->layer_object_count; o++)
        kvm_table_est(t, row->r2[o], KVM_FORMAT_R2);
    for (ptrdiff_t o = 0; o < d->layer_object_count; o++)
        if (has_fit(d, o)) kvm_table_est(t, row->r2_fit[o], KVM_FORMAT_R2);
    kvm_table_est(t, row->cosine, KVM_FORMAT_R2);
    kvm_table_est(t, row->c_k, KVM_FORMAT_NUMBER);
    kvm_table_est(t, row->c_v, KVM_FORMAT_NUMBER);
}

/* columns for every object that the document names; gives how many there are */
static ptrdiff_t layer_columns(kvm_column *columns, kvm_arena *keep,
                               const kvm_document *d)
{
    static const kvm_column first[] = {HEAD("translator", "Translator", TEXT),
                                       HEAD("layer", "Target layer", NUMBER)},
                            last[] = {HEAD("cosine", "Output cosine", EST),
                                      HEAD("c_k", "c_K", EST), HEAD("c_v", "c_V", EST)};
    ptrdiff_t n = 2;
    memcpy(columns, first, sizeof first);
    for (ptrdiff_t o = 0; o < d->layer_object_count; o++)
        columns[n++] = object_column(keep, &d->layer_objects[o], "_r2", "R² held-out");
    for (ptrdiff_t o = 0; o < d->layer_object_count; o++)
        if (has_fit(d, o))
            columns[n++] =
                object_column(keep, &d->layer_objects[o], "_r2_fit", "R² in-sample");
    memcpy(columns + n, last, sizeof last);
    return n + 3;
}

kvm_table kvm_report_table_layers(kvm_arena *keep, const kvm_document *d)
{
    const kvm_table failed = {.name = "layers", .failed = true};
    kvm_column *columns = kvm_new(keep, kvm_column, 2 * d->layer_object_count + 5);
    if (!columns) return failed;
    const ptrdiff_t n = layer_columns(columns, keep, d);
    for (ptrdiff_t c = 0; c < n; c++)
        if (!columns[c].key || !columns[c].title.at) return failed;
    kvm_table t = kvm_table_new(keep, "layers", KVM_STR("Layers"), columns, n);
    for (ptrdiff_t s = 0; s < d->layer_count; s++)
        for (ptrdiff_t i = 0; i < d->layers[s].count; i++)
            layer_row(&t, d, d->layers[s].arm, &d->layers[s].rows[i]);
    return t;
}

/* ---- recipes ---- */

/* Layer numbers, in their order, as the next cell; `runs`: "0–2, 5" for 0, 1, 2,
 * 5. */
static void put_layers(kvm_table *t, const double *layer, ptrdiff_t n, bool runs)
{
    kvm_text out = {0};
    for (ptrdiff_t i = 0, to; i < n; i = to + 1) {
        for (to = i; runs && to + 1 < n && layer[to + 1] == layer[to] + 1;) to++;
        kvm_text_addf(&out, "%s%.0f", i ? ", " : "", layer[i]);
        if (to > i) kvm_text_addf(&out, "%s%.0f", to > i + 1 ? "–" : ", ", layer[to]);
    }
    const kvm_str list = kvm_str_copy(t->keep, n ? kvm_text_str(&out) : KVM_STR("–"));
    t->failed |= out.failed || !list.at;
    kvm_text_free(&out);
    kvm_table__words(t, list);
}

static void put_targets(kvm_table *t, const kvm_recipe *r)
{
    double *layer = kvm_new(t->keep, double, r->count + 1);
    t->failed |= !layer;
    for (ptrdiff_t i = 0; layer && i < r->count; i++)
        layer[i] = (double)r->layers[i].layer;
    put_layers(t, layer, layer ? r->count : 0, true);
}

static int by_number(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* all that any of its layers reads, ascending */
static void put_sources(kvm_table *t, const kvm_recipe *r)
{
    ptrdiff_t all = 0, n = 0, kept = 0;
    for (ptrdiff_t i = 0; i < r->count; i++) all += r->layers[i].sources.n;
    double *layer = kvm_new(t->keep, double, all + 1);
    t->failed |= !layer;
    for (ptrdiff_t i = 0; layer && i < r->count; i++)
        for (ptrdiff_t s = 0; s < r->layers[i].sources.n; s++)
            layer[n++] = r->layers[i].sources.at[s];
    if (n) qsort(layer, (size_t)n, sizeof *layer, by_number);
    for (ptrdiff_t i = 0; i < n; i++)
        if (!kept || layer[i] != layer[kept - 1]) layer[kept++] = layer[i];
    put_layers(t, layer, kept, true);
}

/* a figure that this way of making an object does not have */
static kvm_est or_none(double v)
{
    return isfinite(v) ? kvm_est_of(v) : kvm_est_missing(KVM_STR("does not apply"));
}

static kvm_est est_or_none(kvm_est e)
{
    return kvm_est_has(e) || e.note.len ? e : or_none(KVM_NONE);
}

static kvm_est lambda_of(const kvm_recipe *r)
{
    kvm_est e = or_none(r->lambda);
    if (kvm_est_has(e) && r->absolute) e.note = KVM_STR("absolute");
    return e;
}

/* mean, or with `least` the worst, over the layers that have the figure; where none
 * has, what the first says of it */
static kvm_est over_layers(const kvm_recipe *r, size_t figure, bool least)
{
    double sum = 0, worst = (double)INFINITY;
    ptrdiff_t n = 0;
    kvm_est none = kvm_est_missing(KVM_STR(""));
    for (ptrdiff_t i = 0; i < r->count; i++) {
        kvm_est e;
        memcpy(&e, (const char *)&r->layers[i] + figure, sizeof e);
        if (!kvm_est_has(e)) {
            if (!none.note.len) none = e;
            continue;
        }
        sum += e.value;
        worst = fmin(worst, e.value);
        n++;
    }
    return n ? kvm_est_of(least ? worst : sum / (double)n) : est_or_none(none);
}
#define OVER(r, member, least) over_layers(r, offsetof(kvm_recipe_layer, member), least)

static bool copies(const kvm_document *d)
{
    for (ptrdiff_t i = 0; i < d->recipes.count; i++)
        for (ptrdiff_t l = 0; l < d->recipes.at[i].count; l++)
            if (kvm_est_has(d->recipes.at[i].layers[l].r2_copy)) return true;
    return false;
}

kvm_table kvm_report_table_brief_recipes(kvm_arena *keep, const kvm_document *d)
{
    static const kvm_column columns[] = {HEAD("object", "Object", TEXT),
                                         HEAD("how", "Made how", TEXT),
                                         HEAD("layers", "Target layers", TEXT),
                                         HEAD("sources", "Source layers", TEXT),
                                         HEAD("k", "k", NUMBER),
                                         HEAD("lambda", "λ", NUMBER),
                                         HEAD("r2_fit", "R² fit", NUMBER),
                                         HEAD("r2_choose", "R² choosing", NUMBER),
                                         HEAD("r2_held", "R² held-out", NUMBER),
                                         HEAD("r2_worst", "worst held-out", NUMBER),
                                         HEAD("r2_copy", "R² as copied", NUMBER)};
    const bool copied = copies(d);
    const ptrdiff_t n = (ptrdiff_t)(sizeof columns / sizeof *columns) - !copied;
    kvm_table t = kvm_table_new(keep, "recipes", KVM_STR("Recipes"), columns, n);
    for (ptrdiff_t i = 0; i < d->recipes.count; i++) {
        const kvm_recipe *r = &d->recipes.at[i];
        kvm_table__words(&t, r->title);
        kvm_table__words(&t, r->how.len ? r->how : KVM_STR("–"));
        put_targets(&t, r);
        put_sources(&t, r);
        kvm_table_est(&t, or_none(r->k), KVM_FORMAT_COUNT);
        kvm_table_est(&t, lambda_of(r), KVM_FORMAT_NUMBER);
        kvm_table_est(&t, OVER(r, r2_fit, false), KVM_FORMAT_R2);
        kvm_table_est(&t, OVER(r, r2_choose, false), KVM_FORMAT_R2);
        kvm_table_est(&t, OVER(r, r2_held, false), KVM_FORMAT_R2);
        kvm_table_est(&t, OVER(r, r2_held, true), KVM_FORMAT_R2);
        if (copied) kvm_table_est(&t, OVER(r, r2_copy, false), KVM_FORMAT_R2);
    }
    return t;
}

static void recipe_row(kvm_table *t, const kvm_recipe *r, const kvm_recipe_layer *l)
{
    kvm_table__words(t, r->title);
    kvm_table__words(t, r->how.len ? r->how : KVM_STR("–"));
    kvm_table_num(t, (double)l->layer, KVM_FORMAT_COUNT);
    put_layers(t, l->sources.at, l->sources.n, false);
    kvm_table_est(t, or_none(r->k), KVM_FORMAT_COUNT);
    kvm_table_est(t, or_none(r->lambda), KVM_FORMAT_NUMBER);
    kvm_table__static(t, isfinite(r->lambda) ? (r->absolute ? "absolute" : "relative")
                                             : "–");
    kvm_table_est(t, est_or_none(l->r2_fit), KVM_FORMAT_R2);
    kvm_table_est(t, est_or_none(l->r2_choose), KVM_FORMAT_R2);
    kvm_table_est(t, est_or_none(l->r2_held), KVM_FORMAT_R2);
    kvm_table_est(t, est_or_none(l->r2_copy), KVM_FORMAT_R2);
    kvm_table_est(t, or_none(l->rows), KVM_FORMAT_COUNT);
    kvm_table_est(t, or_none(l->features), KVM_FORMAT_COUNT);
    kvm_table_est(t, or_none(l->weight_norm), KVM_FORMAT_NUMBER);
}

kvm_table kvm_report_table_recipes(kvm_arena *keep, const kvm_document *d)
{
    static const kvm_column columns[] = {HEAD("object", "Object", TEXT),
                                         HEAD("how", "Made how", TEXT),
                                         HEAD("layer", "Target layer", NUMBER),
                                         HEAD("sources", "Source layers", TEXT),
                                         HEAD("k", "k", NUMBER),
                                         HEAD("lambda", "λ", NUMBER),
                                         HEAD("lambda_kind", "λ is", TEXT),
                                         HEAD("r2_fit", "R² fit", NUMBER),
                                         HEAD("r2_choose", "R² choosing", NUMBER),
                                         HEAD("r2_held", "R² held-out", NUMBER),
                                         HEAD("r2_copy", "R² as copied", NUMBER),
                                         HEAD("rows", "Rows", NUMBER),
                                         HEAD("features", "Features", NUMBER),
                                         HEAD("weight_norm", "Weight norm", NUMBER)};
    kvm_table t = kvm_table_new(keep, "recipes", KVM_STR("Recipes"), COLUMNS(columns));
    for (ptrdiff_t i = 0; i < d->recipes.count; i++)
        for (ptrdiff_t l = 0; l < d->recipes.at[i].count; l++)
            recipe_row(&t, &d->recipes.at[i], &d->recipes.at[i].layers[l]);
    return t;
}

kvm_table kvm_report_table_tried(kvm_arena *keep, const kvm_document *d)
{
    static const kvm_column columns[] = {
        HEAD("candidate", "Fit", TEXT), HEAD("kl", "KL, nats", NUMBER),
        HEAD("first_kl", "KL of first token", NUMBER),
        HEAD("parameters", "Parameters", NUMBER), HEAD("outcome", "Outcome", TEXT)};
    kvm_table t = kvm_table_new(keep, "tried", KVM_STR("Fits tried"), COLUMNS(columns));
    for (ptrdiff_t i = 0; i < d->recipes.tried_count; i++) {
        const kvm_tried *a = &d->recipes.tried[i];
        kvm_table__words(&t, a->title);
        kvm_table_est(&t, or_none(a->kl), KVM_FORMAT_NUMBER);
        kvm_table_est(&t, or_none(a->first_kl), KVM_FORMAT_NUMBER);
        kvm_table_est(&t, or_none(a->parameters), KVM_FORMAT_COUNT);
        kvm_table__words(&t, a->chosen       ? KVM_STR("chosen")
                             : a->reason.len ? a->reason
                                             : KVM_STR("–"));
    }
    return t;
}

/* ---- training ---- */

kvm_table kvm_report_table_training(kvm_arena *keep, const kvm_document *d)
{
    static const kvm_column columns[] = {HEAD("steps", "Steps", NUMBER),
                                         HEAD("batch", "Lessons a step", NUMBER),
                                         HEAD("lessons", "Lessons", NUMBER),
                                         HEAD("validation", "to validate", NUMBER),
                                         HEAD("parameters", "Parameters", NUMBER),
                                         HEAD("closed_kl", "KL, closed form", NUMBER),
                                         HEAD("best_kl", "KL, best", NUMBER),
                                         HEAD("best_step", "at step", NUMBER),
                                         HEAD("tokens_per_s", "tokens/s", NUMBER),
                                         HEAD("seconds", "Time", NUMBER)};
    kvm_table t =
        kvm_table_new(keep, "training", KVM_STR("Training"), COLUMNS(columns));
    if (!d->training.present) return t;
    kvm_table_num(&t, d->training.steps, KVM_FORMAT_COUNT);
    kvm_table_num(&t, d->training.batch, KVM_FORMAT_COUNT);
    kvm_table_num(&t, d->training.lessons, KVM_FORMAT_COUNT);
    kvm_table_num(&t, d->training.validation, KVM_FORMAT_COUNT);
    kvm_table_num(&t, d->training.parameters, KVM_FORMAT_COUNT);
    kvm_table_num(&t, d->training.closed_kl, KVM_FORMAT_NUMBER);
    kvm_table_num(&t, d->training.best_kl, KVM_FORMAT_NUMBER);
    kvm_table_num(&t, d->training.best_step, KVM_FORMAT_COUNT);
    kvm_table_num(&t, d->training.tokens_per_s, KVM_FORMAT_RATE);
    kvm_table_num(&t, d->training.seconds, KVM_FORMAT_SECONDS);
    return t;
}

/* the step before the first has learned nothing yet */
static kvm_est learned(const kvm_training_point *p, double v)
{
    return isfinite(v) || p->step > 0
               ? kvm_est_of(v)
               : kvm_est_missing(KVM_STR("nothing was learned yet"));
}

kvm_table kvm_report_table_curve(kvm_arena *keep, const kvm_document *d)
{
    static const kvm_column columns[] = {
        HEAD("step", "Step", NUMBER),
        HEAD("kl", "KL, validation", NUMBER),
        HEAD("first_kl", "KL of the first token", NUMBER),
        HEAD("train_kl", "KL, training", NUMBER),
        HEAD("norm", "Gradient norm", NUMBER),
        HEAD("rate", "Learning rate", NUMBER),
        HEAD("tokens_per_s", "tokens/s", NUMBER)};
    kvm_table t =
        kvm_table_new(keep, "curve", KVM_STR("Training curve"), COLUMNS(columns));
    for (ptrdiff_t i = 0; i < d->training.count; i++) {
        const kvm_training_point *p = &d->training.points[i];
        kvm_table_num(&t, p->step, KVM_FORMAT_COUNT);
        kvm_table_num(&t, p->kl, KVM_FORMAT_NUMBER);
        kvm_table_num(&t, p->first_kl, KVM_FORMAT_NUMBER);
        kvm_table_est(&t, learned(p, p->train_kl), KVM_FORMAT_NUMBER);
        kvm_table_est(&t, learned(p, p->norm), KVM_FORMAT_NUMBER);
        kvm_table_num(&t, p->rate, KVM_FORMAT_NUMBER);
        kvm_table_num(&t, p->tokens_per_s, KVM_FORMAT_RATE);
    }
    return t;
}
