/* report_analyses.c - caches that were taken apart: their scores beside those of the
 * translated cache, and what reading a tail costs. */
#include <stdio.h>
#include <string.h>

#include "jobs/report_parts.h"

static json_t *get(const json_t *o, const char *key)
{
    return json_object_get(o, key);
}

/* the suite's headline, and losses, of which few parts of a cache are without */
static bool shown(const kvm_report_metric *m, const json_t *figures)
{
    const char *kind = json_string_value(get(figures, "kind"));
    const char *headline = json_string_value(get(figures, "metric"));
    if (strcmp(m->kind, kind) != 0 || m->mean == KVM_MEAN_PERPLEXITY) return false;
    return m->low || strcmp(m->name, headline) == 0;
}

typedef struct measuring {
    kvm_report_builder *b;
    const json_t *items;
    const kvm_report_metric *metric;
    const double *translated, *weight; /* (items); weight NULL: alike */
    kvm_arena scratch;
} measuring;

static kvm_status weights(measuring *m, kvm_err *err)
{
    if (m->metric->mean == KVM_MEAN_ITEM) return KVM_OK;
    const size_t n = json_array_size(m->items);
    double *w = kvm_new(&m->scratch, double, (ptrdiff_t)n + 1);
    if (!w) return kvm_nomem(err, &m->scratch);
    for (size_t i = 0; i < n; i++)
        w[i] = json_number_value(get(json_array_get(m->items, i), "scored"));
    m->weight = w;
    return KVM_OK;
}

static kvm_status compare(kvm_est *score, kvm_est *versus, const measuring *m,
                          const char *cache, kvm_err *err)
{
    kvm_arena scratch = m->scratch;
    double *x;
    TRY(kvm_report_column(&x, m->items, cache, m->metric->name, &scratch, err));
    const kvm_pair_of_scores p = {.item = x,
                                  .base = m->translated,
                                  .weight = m->weight,
                                  .n = (ptrdiff_t)json_array_size(m->items),
                                  .seed = m->b->seed};
    return kvm_paired(score, versus, &p, scratch, err);
}

/* what: the row of the figures that names the cache; of the translated one: NULL */
static kvm_status add_cache(const measuring *m, json_t *what, json_t *caches,
                            kvm_err *err)
{
    kvm_est score, versus;
    const char *name = what ? json_string_value(get(what, "cache")) : "translated";
    TRY(compare(&score, &versus, m, name, err));
    if (!what) versus = kvm_est_missing(KVM_STR("the cache to compare with"));
    json_array_append_new(
        caches, json_pack("{s:s, s:s, s:s, s:o, s:o, s:O*}", "name", name, "group",
                          what ? json_string_value(get(what, "group")) : "", "title",
                          what ? json_string_value(get(what, "title")) : "translated",
                          "score", kvm_est_json(score), "versus", kvm_est_json(versus),
                          "share", get(what, "share")));
    return KVM_OK;
}

/* ---- the best single layer ---- */

/* Every other item, from the first or the second on: the half that chooses a layer, and
 * the half that judges it, for one that is picked among many is flattered by the items
 * that picked it. Neighbours are alike (needles stand by length and depth), so both
 * halves are of one kind. */
enum { CHOOSING, JUDGING };
static kvm_status half(double **out, ptrdiff_t *n, const measuring *m, const double *x,
                       int which, kvm_arena *scratch, kvm_err *err)
{
    const ptrdiff_t all = (ptrdiff_t)json_array_size(m->items);
    *n = (all + 1 - which) / 2;
    *out = NULL;
    if (!x) return KVM_OK; /* weights, where all items count alike */
    *out = kvm_new(scratch, double, *n + 1);
    if (!*out) return kvm_nomem(err, scratch);
    for (ptrdiff_t i = 0; i < *n; i++) (*out)[i] = x[2 * i + which];
    return KVM_OK;
}

/* a cache's scores of one half of the items */
static kvm_status half_of(double **out, ptrdiff_t *n, const measuring *m,
                          const char *cache, int which, kvm_arena *scratch,
                          kvm_err *err)
{
    double *x;
    TRY(kvm_report_column(&x, m->items, cache, m->metric->name, scratch, err));
    return half(out, n, m, x, which, scratch, err);
}

/* *best: the row of the figures; NULL: no layer was made native alone */
static kvm_status choose_layer(const json_t **best, const measuring *m,
                               const json_t *caches, kvm_err *err)
{
    double least = 0;
    size_t i;
    json_t *what;
    *best = NULL;
    json_array_foreach(caches, i, what)
    {
        kvm_arena scratch = m->scratch;
        const char *name = json_string_value(get(what, "cache"));
        double *x, *w, loss = 0, total = 0;
        ptrdiff_t n;
        if (strncmp(name, "layer.", 6) != 0) continue;
        TRY(half_of(&x, &n, m, name, CHOOSING, &scratch, err));
        TRY(half(&w, &n, m, m->weight, CHOOSING, &scratch, err));
        for (ptrdiff_t k = 0; k < n; k++) {
            loss += (w ? w[k] : 1) * (m->metric->low ? x[k] : -x[k]);
            total += w ? w[k] : 1;
        }
        if (*best && loss / total >= least) continue;
        least = loss / total;
        *best = what;
    }
    return KVM_OK;
}

/* The share of what all native restores is the gap between the translated cache and
 * that one which the layer closes (kvm_compare). */
static kvm_status judge_layer(json_t *out, const measuring *m, const char *name,
                              kvm_err *err)
{
    kvm_arena scratch = m->scratch;
    kvm_comparison c[KVM_ARM_COUNT];
    kvm_est score, versus;
    double *translated, *all, *layer, *weight;
    kvm_scores s = {
        .chance = KVM_NONE, .lower_better = m->metric->low, .seed = m->b->seed};
    TRY(half(&translated, &s.n, m, m->translated, JUDGING, &scratch, err));
    TRY(half_of(&all, &s.n, m, "swap.all", JUDGING, &scratch, err));
    TRY(half_of(&layer, &s.n, m, name, JUDGING, &scratch, err));
    TRY(half(&weight, &s.n, m, m->weight, JUDGING, &scratch, err));
    s.weight = weight;
    s.item[KVM_ARM_SOURCE] = translated;
    s.item[KVM_ARM_NATIVE] = all;
    s.item[KVM_ARM_CLOSED_FORM] = layer;
    TRY(kvm_compare(c, &s, scratch, err));
    const kvm_pair_of_scores p = {
        .item = layer, .base = translated, .weight = weight, .n = s.n, .seed = s.seed};
    TRY(kvm_paired(&score, &versus, &p, scratch, err));
    kvm_est share = c[KVM_ARM_CLOSED_FORM].gap_recovered;
    if (!kvm_est_has(share))
        share =
            kvm_est_missing(KVM_STR("all layers are not shown to restore anything"));
    json_object_set_new(out, "items", json_integer((json_int_t)s.n));
    json_object_set_new(out, "translated", kvm_est_json(c[KVM_ARM_SOURCE].score));
    json_object_set_new(out, "all", kvm_est_json(c[KVM_ARM_NATIVE].score));
    json_object_set_new(out, "score", kvm_est_json(score));
    json_object_set_new(out, "versus", kvm_est_json(versus));
    json_object_set_new(out, "share", kvm_est_json(share));
    return KVM_OK;
}

static kvm_status add_best(const measuring *m, json_t *suite, const json_t *caches,
                           kvm_err *err)
{
    const size_t n = json_array_size(m->items);
    const json_t *best;
    if (n < 2) return KVM_OK; /* none is left to judge on */
    TRY(choose_layer(&best, m, caches, err));
    if (!best) return KVM_OK;
    json_t *out = json_pack("{s:O, s:O, s:I}", "cache", get(best, "cache"), "title",
                            get(best, "title"), "chosen_on", (json_int_t)((n + 1) / 2));
    json_object_set_new(suite, "best_layer", out);
    return judge_layer(out, m, json_string_value(get(best, "cache")), err);
}

/* ---- one measure ---- */

static kvm_status add_measure(kvm_report_builder *b, json_t *suites,
                              const json_t *items, const json_t *figures,
                              const kvm_report_metric *metric, kvm_arena scratch,
                              kvm_err *err)
{
    measuring m = {.b = b, .items = items, .metric = metric, .scratch = scratch};
    double *translated;
    kvm_est native, versus;
    char name[160], title[160];
    size_t i;
    json_t *what, *suite, *caches = json_array();
    TRY(weights(&m, err));
    TRY(kvm_report_column(&translated, items, "translated", metric->name, &m.scratch,
                          err));
    m.translated = translated;
    TRY(compare(&native, &versus, &m, "native", err));
    const char *of = json_string_value(get(figures, "suite"));
    snprintf(name, sizeof name, "%s.%s", of, metric->name);
    snprintf(title, sizeof title, "%s: %s", of, metric->title);
    suite = json_pack("{s:s, s:s, s:O, s:O, s:s, s:s, s:s, s:I, s:o, s:o}", "name",
                      name, "title", title, "suite", get(figures, "suite"),
                      "translator", get(figures, "translator"), "metric", metric->title,
                      "format", metric->format, "better", metric->low ? "low" : "high",
                      "items", (json_int_t)json_array_size(items), "native",
                      kvm_est_json(native), "caches", caches);
    json_array_append_new(suites, suite);
    TRY(add_cache(&m, NULL, caches, err));
    json_array_foreach(get(figures, "caches"), i, what)
        TRY(add_cache(&m, what, caches, err));
    return add_best(&m, suite, get(figures, "caches"), err);
}

/* ---- what indexers choose ---- */

/* the mean of a share over the items that have one */
static kvm_status share_of(kvm_est *out, const kvm_report_builder *b,
                           const json_t *items, const char *cache, const char *share,
                           kvm_arena scratch, kvm_err *err)
{
    kvm_est versus;
    double *x = kvm_new(&scratch, double, (ptrdiff_t)json_array_size(items) + 1);
    kvm_pair_of_scores p = {.item = x, .base = x, .seed = b->seed};
    const json_t *item;
    size_t i;
    if (!x) return kvm_nomem(err, &scratch);
    json_array_foreach(items, i, item)
    {
        const json_t *v = get(get(get(item, "scores"), cache), share);
        if (json_is_number(v)) x[p.n++] = json_number_value(v);
    }
    if (p.n > 0) return kvm_paired(out, &versus, &p, scratch, err);
    *out = kvm_est_missing(KVM_STR("no item has it"));
    return KVM_OK;
}

static kvm_status add_chosen(const kvm_report_builder *b, json_t *list,
                             const json_t *items, const char *cache, const char *title,
                             kvm_arena scratch, kvm_err *err)
{
    kvm_est overlap, needle;
    TRY(share_of(&overlap, b, items, cache, "overlap", scratch, err));
    TRY(share_of(&needle, b, items, cache, "needle", scratch, err));
    if (!kvm_est_has(overlap) && !kvm_est_has(needle)) return KVM_OK;
    if (strcmp(cache, "native") == 0)
        overlap = kvm_est_missing(KVM_STR("the choice to compare with"));
    json_array_append_new(list, json_pack("{s:s, s:o, s:o}", "title", title, "overlap",
                                          kvm_est_json(overlap), "needle",
                                          kvm_est_json(needle)));
    return KVM_OK;
}

/* of every cache that has such shares; nothing where none has */
static kvm_status add_choices(const kvm_report_builder *b, json_t *suite,
                              const json_t *items, const json_t *figures,
                              kvm_arena scratch, kvm_err *err)
{
    static const char *const whole[] = {"native", "translated"};
    json_t *list = json_array(), *what;
    size_t i;
    json_object_set_new(suite, "indexers", list);
    for (i = 0; i < sizeof whole / sizeof *whole; i++)
        TRY(add_chosen(b, list, items, whole[i], whole[i], scratch, err));
    json_array_foreach(get(figures, "caches"), i, what)
        TRY(add_chosen(b, list, items, json_string_value(get(what, "cache")),
                       json_string_value(get(what, "title")), scratch, err));
    if (json_array_size(list) == 0) json_object_del(suite, "indexers");
    return KVM_OK;
}

static kvm_status add_suite(kvm_report_builder *b, json_t *suites,
                            const kvm_job_input *items_in,
                            const kvm_job_input *figures_in, kvm_arena scratch,
                            kvm_err *err)
{
    json_t *items, *figures;
    TRY(kvm_report_load_lines(b, items_in, &items, err));
    TRY(kvm_report_load(b, figures_in, &figures, err));
    const size_t first = json_array_size(suites);
    for (const kvm_report_metric *m = kvm_report_metrics; m->kind; m++)
        if (shown(m, figures))
            TRY(add_measure(b, suites, items, figures, m, scratch, err));
    json_t *suite = json_array_get(suites, first);
    return suite ? add_choices(b, suite, items, figures, scratch, err) : KVM_OK;
}

/* ---- times ---- */

/* an arm of a timed length: the switch of the whole, or of what stands before a tail */
static void add_switch(const kvm_report_builder *b, json_t *switches, double share,
                       const json_t *cold, const json_t *arm, kvm_arena scratch)
{
    json_array_append_new(
        switches,
        json_pack("{s:f, s:o, s:o}", "share", share, "seconds",
                  kvm_est_json(kvm_report_median(arm, "total", scratch)), "speedup",
                  kvm_est_json(kvm_report_speedup(b, cold, arm, scratch))));
}

static kvm_status add_tails(kvm_report_builder *b, json_t *tails, kvm_arena scratch,
                            kvm_err *err)
{
    const kvm_job_input *in = kvm_job_find_input(b->job, "tails");
    json_t *timing, *point, *arm;
    const char *name;
    size_t i;
    if (!in) return KVM_OK;
    TRY(kvm_report_load(b, in, &timing, err));
    json_array_foreach(get(timing, "points"), i, point)
    {
        const json_t *cold = get(point, "cold");
        json_t *switches = json_array();
        add_switch(b, switches, 0, cold, get(point, "switch"), scratch);
        json_object_foreach(point, name, arm)
        {
            double share;
            kvm_str head, number;
            if (kvm_str_cut(kvm_str_of(name), '.', &head, &number) &&
                kvm_str_eq(head, KVM_STR("tail")) && kvm_str_to_f64(number, &share))
                add_switch(b, switches, share, cold, arm, scratch);
        }
        json_array_append_new(
            tails, json_pack("{s:O, s:O, s:o, s:o}", "tokens", get(point, "tokens"),
                             "rounds", get(point, "rounds"), "cold",
                             kvm_est_json(kvm_report_median(cold, "total", scratch)),
                             "switches", switches));
    }
    return KVM_OK;
}

/* ---- all ---- */

static kvm_status add_all(kvm_report_builder *b, json_t *suites, json_t *tails,
                          kvm_arena scratch, kvm_err *err)
{
    const kvm_job_input *items, *figures;
    const char *rest;
    for (ptrdiff_t i = 0; (items = kvm_report_nth(b, "analysis", i, &rest)); i++) {
        TRY(kvm_report_beside(b, "analysis_figures", rest, &figures, err));
        TRY(add_suite(b, suites, items, figures, scratch, err));
    }
    return add_tails(b, tails, scratch, err);
}

kvm_status kvm_report_analyses(kvm_report_builder *b, kvm_err *err)
{
    kvm_arena scratch = {0};
    if (!kvm_report_nth(b, "analysis", 0, NULL)) {
        json_object_set_new(b->absent, "analyses",
                            json_string("the spec asks for none"));
        return KVM_OK;
    }
    json_t *suites = json_array(), *tails = json_array();
    json_object_set_new(b->doc, "analyses",
                        json_pack("{s:o, s:o}", "suites", suites, "tails", tails));
    TRY(kvm_arena_reserve(&scratch, (size_t)4 << 30, err));
    const kvm_status s = add_all(b, suites, tails, scratch, err);
    kvm_arena_free(&scratch);
    return s;
}

/* its figures are the section */
kvm_status kvm_report_inversion(kvm_report_builder *b, kvm_err *err)
{
    const kvm_job_input *in = kvm_job_find_input(b->job, "inversion");
    json_t *figures;
    if (!in) {
        json_object_set_new(b->absent, "inversion",
                            json_string("the spec asks for none"));
        return KVM_OK;
    }
    TRY(kvm_report_load(b, in, &figures, err));
    json_object_set(b->doc, "inversion", figures);
    return KVM_OK;
}
