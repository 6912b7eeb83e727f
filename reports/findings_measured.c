/* findings_measured.c - findings that the translated cache itself shows: taken apart,
 * trained further, read back, carried over the turns of a dialogue. */
#include "reports/findings_internal.h"

/* ---- caches taken apart ---- */

/* "needle.recall" is of the metric "recall" */
static bool of_metric(kvm_str name, const char *metric)
{
    const kvm_str m = kvm_str_of(metric);
    return kvm_str_ends(name, m) && name.len > m.len &&
           name.at[name.len - m.len - 1] == '.';
}

static const kvm_analysis *analysis_of(const kvm_document *d, const char *metric)
{
    for (ptrdiff_t i = 0; i < d->analyses.suite_count; i++)
        if (of_metric(d->analyses.suites[i].name, metric) &&
            d->analyses.suites[i].count > 0)
            return &d->analyses.suites[i];
    return NULL;
}

static const kvm_analysed_cache *cache_of(const kvm_analysis *a, const char *name)
{
    for (ptrdiff_t i = 0; i < a->count; i++)
        if (kvm_str_eq(a->caches[i].name, kvm_str_of(name))) return &a->caches[i];
    return NULL;
}

/* of a recipe's layers, that one among them; 0: it is not */
static ptrdiff_t layers_beside(const kvm_recipe *r, int64_t layer)
{
    for (ptrdiff_t i = 0; i < r->count; i++)
        if (r->layers[i].layer == layer) return r->count;
    return 0;
}

/* how many layers keep what the best one keeps, as the recipes say; where they do not,
 * how many were made native one by one */
static ptrdiff_t layers_alike(const kvm_document *d, const kvm_analysis *a)
{
    ptrdiff_t alike = 0, swapped = 0;
    int64_t layer = -1; /* of no recipe */
    kvm_str head, number;
    if (kvm_str_cut(a->best.name, '.', &head, &number) &&
        !kvm_str_to_i64(number, &layer))
        layer = -1;
    for (ptrdiff_t i = 0; i < d->recipes.count; i++) {
        const ptrdiff_t n = layers_beside(&d->recipes.at[i], layer);
        alike = n > alike ? n : alike;
    }
    for (ptrdiff_t i = 0; i < a->count; i++)
        swapped += kvm_str_starts(a->caches[i].name, KVM_STR("layer."));
    return alike ? alike : swapped;
}

static void say_too_alike(kvm_judging *j, const kvm_best_layer *best, ptrdiff_t n)
{
    const kvm_str says =
        kvm_str_fmt(j->mem,
                    "%.*s: cannot tell, only %td layers keep the like, and one of %td "
                    "carries %.0f %% or more of anything",
                    KVM_STR_ARG(best->title), n, n, 100.0 / (double)n);
    if (!says.at)
        j->said.failed = true;
    else
        kvm_finding__say_text(j, says);
}

/* which layer, by which items, and its figures of the others */
static void say_best(kvm_judging *j, const kvm_analysis *a)
{
    const kvm_best_layer *best = &a->best;
    const kvm_format difference =
        a->format == KVM_FORMAT_PERCENT ? KVM_FORMAT_POINTS : a->format;
    const kvm_str on = kvm_counted(j->mem, best->chosen_on, "item");
    const kvm_str others = kvm_counted(j->mem, best->items, "other");
    const kvm_str says =
        kvm_str_fmt(j->mem, "%.*s, chosen on %.*s, judged on %.*s",
                    KVM_STR_ARG(best->title), KVM_STR_ARG(on), KVM_STR_ARG(others));
    kvm_finding__say_text(j, a->title);
    kvm_finding__say(j, "translated", best->translated, a->format);
    if (!on.at || !others.at || !says.at)
        j->said.failed = true;
    else
        kvm_finding__say_text(j, says);
    kvm_finding__say(j, "then", best->score, a->format);
    kvm_finding__say(j, "difference", best->versus, difference);
    kvm_finding__say(j, "of what all layers restore", best->share, KVM_FORMAT_PERCENT);
}

/* What one measure says of a single layer, on items that did not choose it; nothing
 * where nothing is left to restore. *few: the layers are so few that one of them holds
 * much whatever is measured. */
static void judge_layer(kvm_judging *j, const kvm_analysis *a, bool *few)
{
    const kvm_best_layer *best = &a->best;
    const double left = best->all.value - best->translated.value;
    if (a->lower_better ? !(left < 0) : !(left > 0)) return;
    const ptrdiff_t alike = layers_alike(j->d, a);
    say_best(j, a);
    if (j->bar * (double)alike < j->other) {
        say_too_alike(j, best, alike);
        *few = true;
        return;
    }
    kvm_finding__rests_on(j, best->items);
    kvm_finding__claim(j, kvm_claim_at_least(best->share, j->bar));
    kvm_finding__claim(j, a->lower_better ? kvm_claim_below(best->versus, 0)
                                          : kvm_claim_above(best->versus, 0));
}

void kvm_finding__ONE_LAYER(kvm_judging *j)
{
    static const char *const metrics[] = {"kl", "recall"};
    bool any = false, few = false;
    for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++) {
        const kvm_analysis *a = analysis_of(j->d, metrics[i]);
        if (!a || !a->best.name.len) continue;
        any = true;
        judge_layer(j, a, &few);
    }
    if (few && j->claims)
        kvm_finding__claim(j, KVM_CLAIM_OPEN); /* half of it was seen */
    if (!any)
        kvm_finding__lacks(j, "analyse.suites with plain text, and needles, would "
                              "measure it");
    else if (!j->claims && few)
        kvm_finding__cannot(j, "a target of more layers would tell");
    else if (!j->claims)
        kvm_finding__lacks(j, "native objects restore nothing: nothing is left over");
}

void kvm_finding__NEITHER_HALF(kvm_judging *j)
{
    static const char *const halves[] = {"only.attention", "only.states"};
    const kvm_analysis *a = analysis_of(j->d, "recall");
    if (!kvm_model_keeps(&j->d->target, "state") ||
        (!kvm_model_keeps(&j->d->target, "K") &&
         !kvm_model_keeps(&j->d->target, "latent")))
        kvm_finding__cannot(j, "the target keeps objects of one kind alone");
    else if (!a || !cache_of(a, halves[0]) || !cache_of(a, halves[1]))
        kvm_finding__lacks(j, "analyse.suites with needles would measure it");
    if (j->settled || !a) return;
    kvm_finding__rests_on(j, a->items);
    kvm_finding__say(j, "recall on both", a->caches[0].score, KVM_FORMAT_PERCENT);
    for (int i = 0; i < 2; i++) {
        const kvm_analysed_cache *half = cache_of(a, halves[i]);
        kvm_finding__say_text(j, half->title);
        kvm_finding__say(j, "then", half->score, KVM_FORMAT_PERCENT);
        kvm_finding__say(j, "difference", half->versus, KVM_FORMAT_POINTS);
        kvm_finding__claim(
            j, kvm_claim_below(half->score, j->bar * a->caches[0].score.value));
        kvm_finding__claim(j, kvm_claim_below(half->versus, 0));
    }
}

/* ---- what indexers choose ---- */

static const kvm_chosen_units *choice_on(const kvm_analysis *a, const char *cache)
{
    for (ptrdiff_t i = 0; i < a->chosen_count; i++)
        if (kvm_str_eq(a->chosen[i].title, kvm_str_of(cache)) &&
            kvm_est_has(a->chosen[i].needle))
            return &a->chosen[i];
    return NULL;
}

void kvm_finding__INDEX_KEYS(kvm_judging *j)
{
    const kvm_chosen_units *here = NULL, *native = NULL;
    double items = KVM_NONE;
    for (ptrdiff_t i = 0; i < j->d->analyses.suite_count && !here; i++) {
        items = j->d->analyses.suites[i].items;
        here = choice_on(&j->d->analyses.suites[i], "translated");
        native = choice_on(&j->d->analyses.suites[i], "native");
    }
    if (!kvm_model_keeps(&j->d->target, "index"))
        kvm_finding__cannot(j, "the target chooses no tokens by index keys");
    else if (kvm_str_eq(j->d->recipes.indexers, KVM_STR("dense")))
        kvm_finding__lacks(j, "this translator leaves index keys out (fit.indexers: "
                              "predicted makes them)");
    else if (!here || !native)
        kvm_finding__lacks(j,
                           "analyse.suites with needles that are longer than what is "
                           "chosen would measure it");
    if (j->settled || !here || !native) return;
    kvm_finding__say(j, "the needle is chosen by", here->needle, KVM_FORMAT_PERCENT);
    kvm_finding__say(j, "on the target’s own cache", native->needle,
                     KVM_FORMAT_PERCENT);
    kvm_finding__say(j, "of the native choice is chosen", here->overlap,
                     KVM_FORMAT_PERCENT);
    kvm_finding__rests_on(j, items);
    kvm_finding__claim(j,
                       kvm_claim_at_least(here->needle, j->bar * native->needle.value));
}

/* ---- turns ---- */

static const kvm_condition_figures *condition_of(const kvm_document *d, const char *key)
{
    for (ptrdiff_t i = 0; i < d->alternation.count; i++)
        if (kvm_str_eq(d->alternation.conditions[i].key, kvm_str_of(key)))
            return &d->alternation.conditions[i];
    return NULL;
}

/* What replies say over and over counts in their F1; the gold is what a cache has to
 * hold, so it decides where the dialogues have one. */
void kvm_finding__SEGMENTS(kvm_judging *j)
{
    const kvm_condition_figures *naive = condition_of(j->d, "naive");
    const kvm_condition_figures *segment = condition_of(j->d, "segment");
    if (!naive || !segment || !kvm_est_has(naive->versus_segment) ||
        !kvm_est_has(segment->versus_native)) {
        kvm_finding__lacks(j, "a section alternate would measure it");
        return;
    }
    const bool gold = kvm_est_has(naive->gold_versus_segment) &&
                      kvm_est_has(segment->gold_versus_native);
    const kvm_est lost = gold ? segment->gold_versus_native : segment->versus_native;
    const kvm_est apart = gold ? naive->gold_versus_segment : naive->versus_segment;
    kvm_finding__say(
        j, gold ? "gold in answer segment by segment" : "F1 segment by segment",
        gold ? segment->gold : segment->f1, KVM_FORMAT_PERCENT);
    kvm_finding__say(j, "less both models’ own reading", lost, KVM_FORMAT_POINTS);
    kvm_finding__say(j, "naive", gold ? naive->gold : naive->f1, KVM_FORMAT_PERCENT);
    kvm_finding__say(j, "less segment by segment", apart, KVM_FORMAT_POINTS);
    kvm_finding__rests_on(j, j->d->alternation.dialogues);
    kvm_finding__claim(j, kvm_claim_below(apart, 0));
    kvm_finding__claim(j, kvm_claim_above(lost, -j->bar));
}

/* ---- training ---- */

void kvm_finding__DISTILLATION(kvm_judging *j)
{
    for (ptrdiff_t i = 0; i < j->d->suite_count; i++) {
        const kvm_suite *s = &j->d->suites[i];
        const kvm_suite_arm *trained = &s->arms[KVM_ARM_DISTILLED];
        if (!of_metric(s->name, "kl") || !trained->present ||
            !kvm_est_has(trained->versus_closed))
            continue;
        kvm_finding__say_text(j, s->title);
        kvm_finding__say(j, "distilled", trained->score, s->format);
        kvm_finding__say(j, "closed form", s->arms[KVM_ARM_CLOSED_FORM].score,
                         s->format);
        kvm_finding__say(j, "difference", trained->versus_closed, s->format);
        kvm_finding__rests_on(j, s->items);
        kvm_finding__claim(j, kvm_claim_below(trained->versus_closed, 0));
    }
    if (kvm_document_kept_closed_form(j->d))
        kvm_finding__say_text(j, KVM_STR("no step validated better: the closed form "
                                         "was kept"));
    if (!j->d->training.present)
        kvm_finding__lacks(j, "a section distill would measure it");
    else if (!j->claims)
        kvm_finding__lacks(j, "plain text among evaluate.suites would measure it");
}

/* ---- tokens read back ---- */

/* a share of rows that are read right */
typedef struct readback {
    kvm_est right;
    double rows;
} readback;

static readback better(readback a, kvm_est right, double rows)
{
    const bool more = kvm_est_has(right) && !(a.right.value >= right.value);
    return more ? (readback){right, rows} : a;
}

/* by whatever has read them best: the translator's codebook, a ridge to embeddings */
void kvm_finding__LAYER_ZERO(kvm_judging *j)
{
    const kvm_document *d = j->d;
    readback best = {d->recipes.token_top1, d->recipes.token_rows};
    if (d->inversion.codebook.count)
        best = better(best, d->inversion.codebook.layers[0].top1, d->inversion.rows);
    for (ptrdiff_t i = 0; i < d->inversion.count; i++) {
        const kvm_inverted *v = &d->inversion.series[i];
        if (kvm_str_eq(v->side, KVM_STR("source")) && v->count &&
            v->layers[0].layer == 0)
            best = better(best, v->layers[0].top1, d->inversion.rows);
    }
    if (!kvm_est_has(best.right) && d->inversion.count)
        kvm_finding__cannot(j, "the source’s first layer keeps no rows of tokens");
    else if (!kvm_est_has(best.right))
        kvm_finding__lacks(j, "a section analyse, which reads tokens out of caches, "
                              "would measure it");
    if (j->settled) return;
    kvm_finding__say(j, "right tokens", best.right, KVM_FORMAT_PERCENT);
    kvm_finding__rests_on(j, best.rows);
    kvm_finding__claim(j, kvm_claim_at_least(best.right, j->bar));
}
