/* findings_ablated.c - findings that the ablations show: what is lost when a part of
 * the translator is taken away. */
#include "reports/findings_internal.h"

/* ---- the table of ablations ---- */

static const kvm_ablation_row *row_of(const kvm_document *d, const char *name)
{
    for (ptrdiff_t i = 0; i < d->ablations.row_count; i++)
        if (kvm_str_eq(d->ablations.rows[i].name, kvm_str_of(name)))
            return &d->ablations.rows[i];
    return NULL;
}

/* over all items, or over those beyond the length of the calibration's sequences; -1:
 * no suite has it */
static ptrdiff_t column_of(const kvm_document *d, const char *metric, bool beyond)
{
    for (ptrdiff_t i = 0; i < d->ablations.column_count; i++) {
        const kvm_ablation_column *c = &d->ablations.columns[i];
        if (kvm_str_eq(c->metric, kvm_str_of(metric)) && !isfinite(c->tokens) &&
            isfinite(c->beyond) == beyond)
            return i;
    }
    return -1;
}

/* One figure of one ablation. */
typedef struct ablated {
    kvm_est whole, without, versus, native;
    double items;
} ablated;

/* false: it was not scored */
static bool read(const kvm_document *d, const kvm_ablation_row *row, const char *metric,
                 bool beyond, ablated *out)
{
    const kvm_ablation_row *whole = row_of(d, "none");
    const ptrdiff_t c = column_of(d, metric, beyond);
    if (!row || !row->versus || !whole || c < 0) return false;
    *out = (ablated){whole->cells[c], row->cells[c], row->versus[c],
                     d->ablations.columns[c].native, d->ablations.columns[c].items};
    return kvm_est_has(out->whole) && kvm_est_has(out->without) &&
           kvm_est_has(out->versus);
}

/* what the target makes of a cache of zeros, on the suite of a metric's column; NaN:
 * not scored */
static kvm_est zero_cache(const kvm_judging *j, const char *metric)
{
    const kvm_document *d = j->d;
    const ptrdiff_t c = column_of(d, metric, false);
    const kvm_str name = kvm_str_fmt(
        j->mem, "%.*s.%s", KVM_STR_ARG(d->ablations.columns[c].suite), metric);
    for (ptrdiff_t i = 0; i < d->suite_count; i++)
        if (kvm_str_eq(d->suites[i].name, name) &&
            d->suites[i].arms[KVM_ARM_ZERO].present)
            return d->suites[i].arms[KVM_ARM_ZERO].score;
    return kvm_est_missing(KVM_STR("not scored"));
}

static void say_recall(kvm_judging *j, const char *with, const char *without,
                       const ablated *a)
{
    kvm_finding__say(j, without, a->without, KVM_FORMAT_PERCENT);
    kvm_finding__say(j, with, a->whole, KVM_FORMAT_PERCENT);
    kvm_finding__say(j, "difference", a->versus, KVM_FORMAT_POINTS);
    kvm_finding__say(j, "the target’s own", a->native, KVM_FORMAT_PERCENT);
    kvm_finding__rests_on(j, a->items);
}

/* how the maps come by the token: of what is decoded, how much is right */
static void say_token(kvm_judging *j)
{
    const kvm_est right = j->d->recipes.token_top1;
    if (kvm_str_eq(j->d->recipes.token, KVM_STR("given")))
        kvm_finding__say_text(j, KVM_STR("maps are told the ids that come with the "
                                         "cache"));
    if (!kvm_str_eq(j->d->recipes.token, KVM_STR("decoded"))) return;
    const kvm_str of = kvm_counted(j->mem, j->d->recipes.token_rows, "held-out row");
    const kvm_str share = kvm_est_text(j->mem, right, KVM_FORMAT_PERCENT);
    const kvm_str says =
        kvm_str_fmt(j->mem,
                    "maps are told the token that the source’s first layer gives away: "
                    "the codebook reads the right one %s%.*s, of %.*s",
                    kvm_est_has(right) ? "" : "in a share that was ",
                    KVM_STR_ARG(share), KVM_STR_ARG(of));
    if (!of.at || !share.at || !says.at)
        j->said.failed = true;
    else
        kvm_finding__say_text(j, says);
}

/* ---- the findings ---- */

enum { KVM_ENGINE_POINT = 3 }; /* of latents: as engines keep them */

void kvm_finding__TOKEN_IDENTITY(kvm_judging *j)
{
    ablated a = {0};
    if (!kvm_model_keeps(&j->d->source, "latent") ||
        !kvm_model_keeps(&j->d->target, "state"))
        kvm_finding__cannot(j, "it is of latents onto a target with recurrent states");
    else if (kvm_str_eq(j->d->recipes.token, KVM_STR("none")))
        kvm_finding__lacks(j, "this translator is told no token (fit.token: given or "
                              "decoded would tell it)");
    else if (!read(j->d, row_of(j->d, "no_token"), "recall", false, &a))
        kvm_finding__lacks(j, "evaluate.ablations: [no_token] with needles among "
                              "evaluate.ablation_suites would measure it");
    if (j->settled) return;
    say_token(j);
    say_recall(j, "with it", "recall without the token (an ablation)", &a);
    kvm_finding__claim(j, kvm_claim_below(a.without, j->bar));
    kvm_finding__claim(j, kvm_claim_below(a.versus, 0));
    kvm_finding__claim(j, kvm_claim_at_least(a.whole, j->other * a.native.value));
}

void kvm_finding__ZERO_STATES(kvm_judging *j)
{
    const kvm_ablation_row *row = row_of(j->d, "zero_states");
    ablated recall = {0}, kl = {0};
    if (!kvm_model_keeps(&j->d->target, "state"))
        kvm_finding__cannot(j, "the target keeps no states");
    else if (kvm_str_eq(j->d->recipes.states, KVM_STR("zero")))
        kvm_finding__lacks(j, "this translator has no other states to compare with "
                              "(fit.states)");
    else if (!read(j->d, row, "recall", false, &recall) ||
             !read(j->d, row, "kl", false, &kl))
        kvm_finding__lacks(j,
                           "evaluate.ablations: [zero_states] with needles and plain "
                           "text among evaluate.ablation_suites would measure it");
    if (j->settled) return;
    const kvm_est zero = zero_cache(j, "kl");
    if (!kvm_est_has(zero)) {
        kvm_finding__lacks(j, "the empty cache was not scored on that plain text");
        return;
    }
    say_recall(j, "with them", "recall without states", &recall);
    kvm_finding__say(j, "KL without states", kl.without, KVM_FORMAT_NUMBER);
    kvm_finding__say(j, "with them", kl.whole, KVM_FORMAT_NUMBER);
    kvm_finding__say(j, "of an empty cache", zero, KVM_FORMAT_NUMBER);
    kvm_finding__rests_on(j, kl.items);
    kvm_finding__claim(j, kvm_claim_below(recall.without, j->bar));
    kvm_finding__claim(j, kvm_claim_below(recall.versus, 0));
    kvm_finding__claim(j, kvm_claim_below(kl.without, j->other * zero.value));
}

void kvm_finding__STATE_CORRECTION(kvm_judging *j)
{
    const kvm_str states = j->d->recipes.states;
    ablated kl = {0};
    if (!kvm_model_keeps(&j->d->source, "state") ||
        !kvm_model_keeps(&j->d->target, "state"))
        kvm_finding__cannot(j, "one of the two models keeps no states to copy");
    else if (states.len && !kvm_str_eq(states, KVM_STR("bilinear")) &&
             !kvm_str_eq(states, KVM_STR("auto")))
        kvm_finding__lacks(j, "this translator corrects no states (fit.states: "
                              "bilinear does, where both have one geometry)");
    else if (!read(j->d, row_of(j->d, "copy_states"), "kl", false, &kl))
        kvm_finding__lacks(j, "evaluate.ablations: [copy_states] with plain text among "
                              "evaluate.ablation_suites would measure it");
    if (j->settled) return;
    kvm_finding__say(j, "KL with copied states", kl.without, KVM_FORMAT_NUMBER);
    kvm_finding__say(j, "with corrected ones", kl.whole, KVM_FORMAT_NUMBER);
    kvm_finding__say(j, "difference", kl.versus, KVM_FORMAT_NUMBER);
    kvm_finding__rests_on(j, kl.items);
    kvm_finding__claim(j, kvm_claim_above(kl.versus, 0));
}

void kvm_finding__CAPTURE_POINT(kvm_judging *j)
{
    ablated a = {0};
    if (!kvm_model_keeps(&j->d->source, "latent") &&
        !kvm_model_keeps(&j->d->target, "latent"))
        kvm_finding__cannot(j, "neither model keeps latents");
    else if (j->d->recipes.latents == KVM_ENGINE_POINT)
        kvm_finding__lacks(j, "this translator is fitted at capture point 3 itself "
                              "(fit.latents: 1 would be compared with it)");
    else if (!read(j->d, row_of(j->d, "engine"), "recall", true, &a))
        kvm_finding__lacks(j, "evaluate.ablations: [engine] with needles longer than "
                              "the calibration’s sequences among "
                              "evaluate.ablation_suites would measure it");
    if (j->settled) return;
    say_recall(j, "before norm and position",
               "recall beyond that length as engines keep them", &a);
    kvm_finding__claim(j, kvm_claim_below(a.versus, 0));
    kvm_finding__claim(j, kvm_claim_at_least(a.whole, j->bar * a.native.value));
}

/* whether KL is below the bar's multiple of the complete translator's, asked of the
 * difference between the two, which is paired: hard items are hard for both */
static kvm_claim moderate(const kvm_judging *j, const ablated *kl)
{
    return kvm_claim_below(kl->versus, (j->bar - 1) * kl->whole.value);
}

/* One that loses recall behind a moderate KL is enough. */
void kvm_finding__HIDDEN_LOSS(kvm_judging *j)
{
    const kvm_ablation_row *shown = NULL;
    ablated kl, recall, worst = {0};
    kvm_claim best = KVM_CLAIM_FAILS; /* of what is shown */
    ptrdiff_t scored = 0;
    for (ptrdiff_t i = 0; i < j->d->ablations.row_count; i++) {
        const kvm_ablation_row *row = &j->d->ablations.rows[i];
        if (!read(j->d, row, "kl", false, &kl) ||
            !read(j->d, row, "recall", false, &recall))
            continue;
        scored++;
        kvm_finding__rests_on(j, fmin(kl.items, recall.items));
        const kvm_claim hides = moderate(j, &kl);
        if (hides == KVM_CLAIM_FAILS) continue;
        const kvm_claim lost = kvm_claim_below(recall.versus, -j->other);
        const kvm_claim c = lost > hides ? lost : hides; /* both have to hold */
        if (shown &&
            (c > best || (c == best && recall.versus.value >= worst.versus.value)))
            continue;
        best = c;
        shown = row;
        worst = recall;
    }
    if (!scored) {
        kvm_finding__lacks(j, "evaluate.ablations with needles and plain text among "
                              "evaluate.ablation_suites would measure it");
        return;
    }
    kvm_finding__claim(j, best);
    if (!shown) {
        kvm_finding__say_text(j, KVM_STR("no ablation’s KL is so moderate"));
        return;
    }
    (void)read(j->d, shown, "kl", false, &kl);
    kvm_finding__say_text(j, shown->title);
    kvm_finding__say(j, "KL", kl.without, KVM_FORMAT_NUMBER);
    kvm_finding__say(j, "of the complete translator", kl.whole, KVM_FORMAT_NUMBER);
    kvm_finding__say(j, "difference", kl.versus, KVM_FORMAT_NUMBER);
    kvm_finding__say(j, "recall", worst.without, KVM_FORMAT_PERCENT);
    kvm_finding__say(j, "difference", worst.versus, KVM_FORMAT_POINTS);
}
