#include "reports/verdict.h"

#include "reports/report_tables_internal.h"

/* Text put together piece by piece; a spent arena is noticed once, at the end. */
typedef struct phrase {
    kvm_arena *mem;
    kvm_str so_far;
} phrase;

static void say(phrase *p, kvm_str s)
{
    if (!p->so_far.at) return;
    p->so_far =
        s.at ? kvm_str_fmt(p->mem, "%.*s%.*s", KVM_STR_ARG(p->so_far), KVM_STR_ARG(s))
             : s;
}

static void say_number(phrase *p, double v, kvm_format format)
{
    say(p, kvm_number(p->mem, v, format));
}

/* ---- beside the controls ---- */

/* An arm less the i-th control of a suite; in a document without differences from each,
 * less the strongest of them (i 0). False: not measured. */
static bool lead_of(const kvm_suite *s, int arm, int i, kvm_est *lead)
{
    const kvm_suite_arm *of = &s->arms[arm];
    bool each = false;
    for (int k = 0; k < KVM_CONTROLS; k++) each |= kvm_est_has(of->versus_each[k]);
    *lead = each ? of->versus_each[i] : of->versus_control;
    return of->present && kvm_est_has(*lead) && (each || i == 0);
}

/* the controls that an arm was held against on a suite: of which the strongest is one
 * that was picked among them */
static ptrdiff_t controls_of(const kvm_suite *s, int arm)
{
    ptrdiff_t n = 0;
    for (int i = 0; i < KVM_CONTROLS; i++)
        n += s->arms[kvm_controls[i]].present ||
             kvm_est_has(s->arms[arm].versus_each[i]);
    return n ? n : kvm_est_has(s->arms[arm].versus_control);
}

static bool surely_better(const kvm_suite *s, kvm_est lead)
{
    return s->lower_better ? kvm_est_most(lead) < 0 : kvm_est_least(lead) > 0;
}

static bool surely_worse(const kvm_suite *s, kvm_est lead)
{
    return s->lower_better ? kvm_est_least(lead) > 0 : kvm_est_most(lead) < 0;
}

/* one control on one suite; suite NULL: nowhere */
typedef struct beside {
    const kvm_suite *suite;
    int control; /* of kvm_controls */
} beside;

/* What the controls say of the suites, each for itself: a cache that holds nothing can
 * be told from the target's own where the source's rows, left as they are, cannot. */
typedef struct controls {
    /* One control that is better anywhere decides, so every comparison of the verdict
     * is a chance of a false alarm: intervals are widened for the number of them. */
    ptrdiff_t comparisons;
    double widening;
    ptrdiff_t telling, telling_apart; /* suites, of the mean and not of it, on which the
                                         target's own cache surely beats a control */
    const kvm_suite *silent; /* the first of the mean on which it beats none, or NULL */
    beside alike; /* the first on a telling one that it does not surely beat */
    beside
        beaten;   /* the first that it surely beats and the translated cache does not */
    beside worse; /* the first that is surely better than the translated cache */
} controls;

static void note(beside *first, const kvm_suite *s, int control)
{
    if (!first->suite) *first = (beside){s, control};
}

static bool beats(const controls *c, const kvm_suite *s, int arm, int control)
{
    kvm_est lead;
    return lead_of(s, arm, control, &lead) &&
           surely_better(s, kvm_est_widened(lead, c->widening));
}

static void ask_suite(controls *c, const kvm_suite *s, int arm)
{
    bool tells = false;
    kvm_est lead;
    for (int i = 0; i < KVM_CONTROLS; i++) tells |= beats(c, s, KVM_ARM_NATIVE, i);
    for (int i = 0; i < KVM_CONTROLS; i++) {
        const bool scored = lead_of(s, arm, i, &lead);
        if (scored && surely_worse(s, kvm_est_widened(lead, c->widening)))
            note(&c->worse, s, i);
        if (beats(c, s, KVM_ARM_NATIVE, i)) {
            if (!beats(c, s, arm, i)) note(&c->beaten, s, i);
        } else if (scored && tells) {
            note(&c->alike, s, i);
        }
    }
    const bool counts = kvm_est_has(s->arms[arm].floor_normalised);
    c->telling += tells && counts;
    c->telling_apart += tells && !counts;
    if (!tells && counts && !c->silent) c->silent = s;
}

static bool looks_at(const kvm_suite *s, int arm)
{
    return arm >= 0 && s->arms[arm].present && kvm_suite_decides(s);
}

/* it would be looked at if it had more items */
static bool too_few(const kvm_suite *s, int arm)
{
    return arm >= 0 && s->arms[arm].present && !s->secondary && !kvm_suite_decides(s);
}

static controls ask_controls(const kvm_document *d, int arm)
{
    controls c = {0};
    for (ptrdiff_t i = 0; i < d->suite_count; i++)
        if (looks_at(&d->suites[i], arm))
            c.comparisons += controls_of(&d->suites[i], arm);
    c.widening = kvm_widening(c.comparisons);
    for (ptrdiff_t i = 0; i < d->suite_count; i++)
        if (looks_at(&d->suites[i], arm)) ask_suite(&c, &d->suites[i], arm);
    return c;
}

/* ---- gates and lengths ---- */

static void count_gates(kvm_verdict *v, const kvm_document *d)
{
    for (ptrdiff_t i = 0; i < d->gate_count; i++) {
        const kvm_gate *g = &d->gates[i];
        v->gates_apply += g->verdict != KVM_GATE_INAPPLICABLE;
        v->gates_passed += g->verdict == KVM_GATE_PASS;
        v->gates_failed += g->verdict == KVM_GATE_FAIL;
        v->gates_unmeasured += g->verdict == KVM_GATE_UNMEASURED;
        v->required_failed += g->required && g->verdict == KVM_GATE_FAIL;
        v->required_unmeasured += g->required && g->verdict == KVM_GATE_UNMEASURED;
    }
}

/* Lengths that quality was measured at end where the needles do. */
static void find_lengths(kvm_verdict *v, const kvm_document *d)
{
    double most = -1;
    for (ptrdiff_t i = 0; i < d->needle.count; i++)
        if (d->needle.points[i].tokens > most) most = d->needle.points[i].tokens;
    for (ptrdiff_t i = 0; i < d->timing.count; i++) {
        const kvm_time_point *p = &d->timing.points[i];
        if (!kvm_est_has(p->speedup) || !isfinite(p->tokens)) continue;
        if (!v->longest || p->tokens > v->longest->tokens) v->longest = p;
        if (p->tokens <= most && (!v->judged || p->tokens > v->judged->tokens))
            v->judged = p;
    }
}

static void decide(kvm_verdict *v, const controls *c)
{
    if (v->required_failed ||
        (v->floor_suites && v->floor_normalised < KVM_SERVES_NOT_BELOW)) {
        v->tone = KVM_TONE_BAD;
        v->headline = KVM_STR("The translated cache does not serve.");
    } else if (c->worse.suite) {
        v->tone = KVM_TONE_BAD;
        v->headline = KVM_STR("The translated cache is worse than a control.");
    } else if (!v->floor_suites && v->suites_too_few) {
        v->tone = KVM_TONE_MUTED;
        v->headline = KVM_STR("Not decided: too few items.");
    } else if (!v->floor_suites || v->gates_passed + v->required_unmeasured == 0 ||
               v->required_unmeasured) {
        v->tone = KVM_TONE_MUTED;
        v->headline = KVM_STR("Not decided: not everything was measured.");
    } else if (!c->telling) {
        v->tone = KVM_TONE_MUTED;
        v->headline =
            c->telling_apart
                ? KVM_STR("Not decided: no measure of the mean tells a good cache from "
                          "a bad one.")
                : KVM_STR("Not decided: no measure tells a good cache from a bad one.");
    } else if (v->floor_normalised < KVM_SERVES_FROM || c->beaten.suite) {
        v->tone = KVM_TONE_WARN;
        v->headline = KVM_STR("The translated cache serves in part.");
    } else {
        v->tone = KVM_TONE_GOOD;
        v->headline = KVM_STR("The translated cache serves.");
    }
}

static void say_quality(phrase *p, const kvm_verdict *v, const kvm_document *d)
{
    if (v->arm < 0 || !v->retention_suites) {
        say(p, v->suites_too_few
                   ? KVM_STR("How much of its quality the target keeps was measured on "
                             "too few items, or not at all.")
                   : KVM_STR("How much of its quality the target keeps was not "
                             "measured."));
        return;
    }
    say(p, kvm_str_fmt(p->mem, "On %td %s, ", v->retention_suites,
                       v->retention_suites == 1 ? "measure" : "measures"));
    say(p, d->target.name);
    say(p, KVM_STR(" keeps "));
    say_number(p, v->retention, KVM_FORMAT_PERCENT);
    say(p, KVM_STR(" of its own score on the cache translated from "));
    say(p, d->source.name);
    say(p, kvm_str_fmt(p->mem, " (%s)", kvm_arms[v->arm].label));
    if (v->floor_suites) {
        say(p, KVM_STR(", "));
        say_number(p, v->floor_normalised, KVM_FORMAT_PERCENT);
        say(p, KVM_STR(" once chance is taken off"));
    }
    if (v->gap_suites) {
        say(p, KVM_STR(", and recovers "));
        say_number(p, v->gap_recovered, KVM_FORMAT_PERCENT);
        say(p, KVM_STR(" of the gap between the two models"));
        if (v->gap_suites != v->retention_suites)
            say(p,
                kvm_str_fmt(p->mem, " on the %td where there is one", v->gap_suites));
    }
    int best = -1;
    double most = -(double)INFINITY;
    for (int i = 0; i < KVM_CONTROLS; i++) {
        ptrdiff_t suites;
        const double mean = kvm_mean_ratio(d, (int)kvm_controls[i], 0, &suites);
        if (isfinite(mean) && mean > most) most = mean, best = (int)kvm_controls[i];
    }
    if (best >= 0) {
        say(p, KVM_STR("; the strongest control ("));
        say(p, kvm_str_of(kvm_arms[best].label));
        say(p, KVM_STR(") keeps "));
        say_number(p, most, KVM_FORMAT_PERCENT);
    }
    say(p, KVM_STR("."));
}

/* "ARC (400 items)" */
static void say_suite(phrase *p, const kvm_suite *s)
{
    say(p, s->title);
    say(p, KVM_STR(" ("));
    say(p, kvm_counted(p->mem, s->items, "item"));
    say(p, KVM_STR(")"));
}

/* the measures that the verdict looks at, with their items: those of the means, or
 * those that are held against the controls alone; how many */
static int say_measures(phrase *p, const kvm_verdict *v, const kvm_document *d,
                        bool of_means, kvm_str before)
{
    int named = 0;
    for (ptrdiff_t i = 0; i < d->suite_count && v->arm >= 0; i++) {
        const kvm_suite *s = &d->suites[i];
        const kvm_suite_arm *arm = &s->arms[v->arm];
        if (!looks_at(s, v->arm) || kvm_est_has(arm->retention) != of_means) continue;
        say(p, named++ ? KVM_STR(", ") : before);
        say_suite(p, s);
    }
    return named;
}

static void say_basis(phrase *p, const kvm_verdict *v, const kvm_document *d)
{
    const int means = say_measures(p, v, d, true, KVM_STR(" The means rest on "));
    const int others = say_measures(p, v, d, false,
                                    means ? KVM_STR("; checked against the controls "
                                                    "only: ")
                                          : KVM_STR(" Checked against the controls "
                                                    "only: "));
    if (means + others) say(p, KVM_STR("."));
}

static void say_too_few(phrase *p, const kvm_verdict *v, const kvm_document *d)
{
    int named = 0;
    for (ptrdiff_t i = 0; i < d->suite_count; i++) {
        if (!too_few(&d->suites[i], v->arm)) continue;
        say(p, named++ ? KVM_STR(", ")
                       : kvm_str_fmt(p->mem, " Too few items to decide (at least %d): ",
                                     KVM_LEAST_ITEMS));
        say_suite(p, &d->suites[i]);
    }
    if (named) say(p, KVM_STR("."));
}

static void say_est(phrase *p, kvm_est e, kvm_format format)
{
    say(p, kvm_est_text(p->mem, e, format));
}

/* ---- what the controls say ---- */

/* "the raw source cache": where differences from each are not known, the strongest */
static kvm_str control_name(phrase *p, beside at, int arm)
{
    const kvm_suite_arm *of = &at.suite->arms[arm];
    if (!kvm_est_has(of->versus_each[at.control])) return KVM_STR("strongest control");
    return kvm_str_fmt(p->mem, "control \"%s\"",
                       kvm_arms[kvm_controls[at.control]].label);
}

/* "the raw source cache is better than the translated one" */
static void say_worse(phrase *p, beside at, int arm)
{
    kvm_est lead;
    const bool raw = kvm_controls[at.control] == KVM_ARM_RAW_SOURCE &&
                     kvm_est_has(at.suite->arms[arm].versus_each[at.control]);
    if (!lead_of(at.suite, arm, at.control, &lead)) return;
    lead.note = KVM_STR("");
    say(p, KVM_STR(" On "));
    say(p, at.suite->title);
    say(p, KVM_STR(" the "));
    say(p, raw ? KVM_STR("untranslated source cache") : control_name(p, at, arm));
    say(p, kvm_str_fmt(p->mem,
                       " is better than the translated one (%s − control, paired: ",
                       kvm_arms[arm].label));
    say_est(p, lead, kvm_table__difference(at.suite->format));
    say(p, KVM_STR(")."));
}

static void say_controls(phrase *p, const controls *c, int arm)
{
    if (c->comparisons > 1)
        say(p, kvm_str_fmt(p->mem,
                           " With %td comparisons with controls, one is sure when its "
                           "95 %% interval, made %.2f times as wide (Bonferroni), is "
                           "clear of zero.",
                           c->comparisons, c->widening));
    if (c->worse.suite) say_worse(p, c->worse, arm);
    if (c->beaten.suite &&
        (c->beaten.suite != c->worse.suite || c->beaten.control != c->worse.control)) {
        say(p, KVM_STR(" On "));
        say(p, c->beaten.suite->title);
        say(p, KVM_STR(" it is not shown to be better than the "));
        say(p, control_name(p, c->beaten, arm));
        say(p, KVM_STR("."));
    }
    if (c->alike.suite) {
        say(p, KVM_STR(" On "));
        say(p, c->alike.suite->title);
        say(p, KVM_STR(
                   " not even the target's own cache is shown to be better than the "));
        say(p, control_name(p, c->alike, arm));
        say(p, KVM_STR("."));
    }
    if (c->silent) {
        say(p, KVM_STR(" On "));
        say(p, c->silent->title);
        say(p,
            KVM_STR(" not even the target's own cache is shown to be better than any "
                    "control: more items may tell."));
    }
}

/* ---- time and gates ---- */

/* "4,096 tokens ... 5.00x [4.80, 5.20] sooner": only what the whole interval says */
static void say_speedup(phrase *p, const kvm_time_point *at, kvm_str until)
{
    const kvm_est by = at->speedup;
    const kvm_est slower = {1 / by.value, 1 / by.high, 1 / by.low, KVM_STR("")};
    say_number(p, at->tokens, KVM_FORMAT_COUNT);
    say(p, until);
    if (kvm_est_least(by) > 1) {
        say_est(p, by, KVM_FORMAT_RATIO);
        say(p, KVM_STR(" sooner than after a cold prefill"));
    } else if (kvm_est_most(by) < 1) {
        say_est(p, slower, KVM_FORMAT_RATIO);
        say(p, KVM_STR(" later than after a cold prefill"));
    } else {
        say(p, KVM_STR("neither surely sooner nor surely later than after a cold "
                       "prefill (cold ÷ switch "));
        say_est(p, by, KVM_FORMAT_RATIO);
        say(p, KVM_STR(")"));
    }
}

static void say_break_even(phrase *p, kvm_est even)
{
    if (!kvm_est_has(even)) return;
    const bool always = even.note.len > 0; /* from the shortest length on */
    const kvm_est whole = {ceil(even.value), even.low, even.high, KVM_STR("")};
    say(p,
        always ? KVM_STR("; it is sooner from ") : KVM_STR("; the switch pays from "));
    say_est(p, whole, KVM_FORMAT_COUNT);
    say(p, always ? KVM_STR(" tokens, the shortest length measured")
                  : KVM_STR(" tokens on"));
}

static void say_timing(phrase *p, const kvm_verdict *v)
{
    if (!v->longest) {
        say(p, KVM_STR(" How much sooner it answers was not measured."));
        return;
    }
    say(p, KVM_STR(" At "));
    if (v->judged && v->judged != v->longest) {
        say_speedup(
            p, v->judged,
            KVM_STR(" tokens, up to where quality was measured, the first token "
                    "comes "));
        say(p, KVM_STR("; at "));
        say_speedup(p, v->longest, KVM_STR(" tokens "));
    } else {
        say_speedup(p, v->longest, KVM_STR(" tokens the first token comes "));
    }
    say_break_even(p, v->break_even);
    say(p, KVM_STR("."));
}

static void say_gates(phrase *p, const kvm_verdict *v, const kvm_document *d)
{
    if (!d->gate_count) {
        say(p, KVM_STR(" No gate was checked."));
        return;
    }
    say(p, kvm_str_fmt(p->mem, " %td of %td gates passed", v->gates_passed,
                       v->gates_apply));
    int named = 0;
    for (ptrdiff_t i = 0; i < d->gate_count && named < 4; i++) {
        const kvm_gate *g = &d->gates[i];
        if (g->verdict == KVM_GATE_PASS || g->verdict == KVM_GATE_INAPPLICABLE)
            continue;
        say(p, named++ ? KVM_STR("; ") : KVM_STR(": "));
        say(p, g->title);
        say(p, g->verdict == KVM_GATE_FAIL ? KVM_STR(" failed")
                                           : KVM_STR(" was not measured"));
        if (!g->required) say(p, KVM_STR(" (advice only)"));
    }
    say(p, KVM_STR("."));
}

kvm_status kvm_verdict_of(kvm_verdict *out, kvm_arena *keep, const kvm_document *d,
                          kvm_err *err)
{
    kvm_verdict v = {.arm = kvm_document_arm(d), .break_even = d->timing.break_even};
    v.retention = kvm_mean_ratio(d, v.arm, 0, &v.retention_suites);
    v.floor_normalised = kvm_mean_ratio(d, v.arm, 1, &v.floor_suites);
    v.gap_recovered = kvm_mean_ratio(d, v.arm, 2, &v.gap_suites);
    count_gates(&v, d);
    find_lengths(&v, d);
    for (ptrdiff_t i = 0; i < d->suite_count; i++)
        v.suites_too_few += too_few(&d->suites[i], v.arm);
    const controls c = ask_controls(d, v.arm);
    decide(&v, &c);
    phrase p = {keep, KVM_STR("")};
    say_quality(&p, &v, d);
    say_basis(&p, &v, d);
    say_too_few(&p, &v, d);
    say_controls(&p, &c, v.arm);
    say_timing(&p, &v);
    say_gates(&p, &v, d);
    if (!p.so_far.at) return kvm_nomem(err, keep);
    v.sentence = p.so_far;
    *out = v;
    return KVM_OK;
}
