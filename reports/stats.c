#include "reports/stats.h"

#include <stdlib.h>
#include <string.h>

enum { KVM_RESAMPLES = 10000 };

const kvm_arm_info kvm_arms[KVM_ARM_COUNT] = {
#define X(NAME, key, label, group, what)                                               \
    [KVM_ARM_##NAME] = {key, label, what, "strongest control: " label, KVM_##group},
#include "reports/arms.def"
#undef X
};

const kvm_arm kvm_controls[KVM_CONTROLS] = {KVM_ARM_RAW_SOURCE, KVM_ARM_WRONG_DONOR,
                                            KVM_ARM_ZERO};

bool kvm_arm_find(kvm_str key, kvm_arm *out)
{
    for (int a = 0; a < KVM_ARM_COUNT; a++)
        if (kvm_str_eq(key, kvm_str_of(kvm_arms[a].key)))
            return *out = (kvm_arm)a, true;
    return false;
}

static void put_number(json_t *obj, const char *key, double v)
{
    if (isfinite(v)) json_object_set_new(obj, key, json_real(v));
}

json_t *kvm_est_json(kvm_est e)
{
    json_t *obj = json_object();
    if (!obj) return NULL;
    if (isfinite(e.value))
        put_number(obj, "value", e.value);
    else
        json_object_set_new(obj, "value", json_null());
    put_number(obj, "low", e.low);
    put_number(obj, "high", e.high);
    if (e.note.len)
        json_object_set_new(obj, "note", json_stringn(e.note.at, (size_t)e.note.len));
    return obj;
}

/* z such that a standard normal is further than z from 0 with probability p */
static double two_sided(double p)
{
    double low = 0, high = 40;
    for (int i = 0; i < 80; i++) {
        const double z = (low + high) / 2;
        if (erfc(z / sqrt(2.0)) > p)
            low = z;
        else
            high = z;
    }
    return low;
}

double kvm_widening(ptrdiff_t n)
{
    return n > 1 ? two_sided(0.05 / (double)n) / two_sided(0.05) : 1;
}

/* a percentile interval need not hold its value */
kvm_est kvm_est_widened(kvm_est e, double times)
{
    if (!kvm_est_has_interval(e)) return e;
    e.low = fmin(e.low, e.value - times * (e.value - e.low));
    e.high = fmax(e.high, e.value + times * (e.high - e.value));
    return e;
}

json_t *kvm_comparison_json(const kvm_comparison *c)
{
    json_t *obj = json_object();
    if (!obj) return NULL;
    json_object_set_new(obj, "score", kvm_est_json(c->score));
    json_object_set_new(obj, "retention", kvm_est_json(c->retention));
    json_object_set_new(obj, "floor_normalised", kvm_est_json(c->floor_normalised));
    json_object_set_new(obj, "gap_recovered", kvm_est_json(c->gap_recovered));
    json_object_set_new(obj, "versus_native", kvm_est_json(c->versus_native));
    json_object_set_new(obj, "versus_control", kvm_est_json(c->versus_control));
    json_t *each = json_object();
    for (int i = 0; i < KVM_CONTROLS; i++)
        if (kvm_est_has(c->versus_each[i]))
            json_object_set_new(each, kvm_arms[kvm_controls[i]].key,
                                kvm_est_json(c->versus_each[i]));
    if (json_object_size(each) > 0) json_object_set(obj, "versus_controls", each);
    json_decref(each);
    return obj;
}

/* ---- order statistics ---- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void sort(double *x, ptrdiff_t n)
{
    qsort(x, (size_t)n, sizeof *x, by_value);
}

double kvm_quantile(const double *sorted, ptrdiff_t n, double q)
{
    if (n <= 0) return KVM_NONE;
    const double at = q * (double)(n - 1);
    ptrdiff_t lo = (ptrdiff_t)floor(at);
    if (lo < 0) lo = 0;
    if (lo >= n - 1) return sorted[n - 1];
    const double t = at - (double)lo, step = sorted[lo + 1] - sorted[lo];
    return t < 0.5 ? sorted[lo] + t * step : sorted[lo + 1] - (1 - t) * step;
}

/* The 95 % percentile interval of the finite ones among x, which is reordered. */
static void interval(kvm_est *e, double *x, ptrdiff_t n)
{
    ptrdiff_t kept = 0;
    for (ptrdiff_t i = 0; i < n; i++)
        if (isfinite(x[i])) x[kept++] = x[i];
    sort(x, kept);
    e->low = kvm_quantile(x, kept, 0.025);
    e->high = kvm_quantile(x, kept, 0.975);
}

/* ---- one suite ---- */

/* The bootstrap of one suite: column 0 of each row is the whole sample, the others are
 * resamples; a row holds the mean of every arm that was run. */
typedef struct boot {
    const kvm_scores *s;
    double *means; /* (1 + resamples, KVM_ARM_COUNT); NaN: arm not run */
    double *stat;  /* (resamples) workspace */
    ptrdiff_t resamples;
} boot;

static double mean_of(const kvm_scores *s, double sum, double weight)
{
    const double mean = sum / weight;
    return s->exp_of_mean ? exp(mean) : mean;
}

static kvm_status check_scores(const kvm_scores *s, kvm_err *err)
{
    for (ptrdiff_t i = 0; s->weight && i < s->n; i++)
        if (!(s->weight[i] > 0) || !isfinite(s->weight[i]))
            return kvm_fail(err, KVM_RANGE, "item %td: weight %g is not above zero", i,
                            s->weight[i]);
    for (int a = 0; a < KVM_ARM_COUNT; a++)
        for (ptrdiff_t i = 0; s->item[a] && i < s->n; i++)
            if (!isfinite(s->item[a][i]))
                return kvm_fail(err, KVM_NAN, "item %td of arm %s has no finite score",
                                i, kvm_arms[a].key);
    return KVM_OK;
}

/* Items become rows of weighted scores with the weight last, so that one draw gathers
 * all arms from one cache line or two. */
static double *gather(const kvm_scores *s, kvm_arena *scratch)
{
    double *row =
        kvm_arena_alloc_raw(scratch, sizeof *row * (KVM_ARM_COUNT + 1), 64, s->n);
    if (!row) return NULL;
    for (ptrdiff_t i = 0; i < s->n; i++) {
        double *at = row + i * (KVM_ARM_COUNT + 1);
        const double w = s->weight ? s->weight[i] : 1.0;
        for (int a = 0; a < KVM_ARM_COUNT; a++)
            at[a] = s->item[a] ? w * s->item[a][i] : 0.0;
        at[KVM_ARM_COUNT] = w;
    }
    return row;
}

static void mean_row(const boot *b, const double *sum, ptrdiff_t to)
{
    double *mean = b->means + to * KVM_ARM_COUNT;
    for (int a = 0; a < KVM_ARM_COUNT; a++)
        mean[a] = b->s->item[a] ? mean_of(b->s, sum[a], sum[KVM_ARM_COUNT]) : KVM_NONE;
}

static void add_row(double *sum, const double *row)
{
    for (int a = 0; a <= KVM_ARM_COUNT; a++) sum[a] += row[a];
}

static kvm_status resample(boot *b, kvm_arena *scratch, kvm_err *err)
{
    const kvm_scores *s = b->s;
    b->means = kvm_arena_alloc_raw(scratch, sizeof *b->means * KVM_ARM_COUNT, 64,
                                   b->resamples + 1);
    b->stat = kvm_new_raw(scratch, double, b->resamples);
    double *row = gather(s, scratch);
    if (!b->means || !b->stat || !row) return kvm_nomem(err, scratch);
    double sum[KVM_ARM_COUNT + 1] = {0};
    for (ptrdiff_t i = 0; i < s->n; i++) add_row(sum, row + i * (KVM_ARM_COUNT + 1));
    mean_row(b, sum, 0);
    kvm_rng rng = kvm_rng_seed(s->seed, 0);
    for (ptrdiff_t r = 1; r <= b->resamples; r++) {
        memset(sum, 0, sizeof sum);
        for (ptrdiff_t i = 0; i < s->n; i++) {
            const uint64_t pick = kvm_rng_below(&rng, (uint64_t)s->n);
            add_row(sum, row + (ptrdiff_t)pick * (KVM_ARM_COUNT + 1));
        }
        mean_row(b, sum, r);
    }
    return KVM_OK;
}

/* A statistic is (arm - base) / (whole - base): base and whole are an arm, a constant
 * or nothing, which covers scores, differences and the three ratios. */
typedef struct term {
    int arm;      /* < 0: the constant */
    double value; /* of the constant */
} term;

static const term nothing = {-1, 0.0};

static double term_of(term t, const double *mean)
{
    return t.arm < 0 ? t.value : mean[t.arm];
}

/* arm - base, with its interval */
static kvm_est difference(const boot *b, int arm, term base)
{
    kvm_est e = kvm_est_of(b->means[arm] - term_of(base, b->means));
    if (!isfinite(e.value)) return kvm_est_missing(KVM_STR("the score overflows"));
    if (b->s->n < 2) return e;
    for (ptrdiff_t r = 0; r < b->resamples; r++) {
        const double *mean = b->means + (r + 1) * KVM_ARM_COUNT;
        b->stat[r] = mean[arm] - term_of(base, mean);
    }
    interval(&e, b->stat, b->resamples);
    return e;
}

/* (arm - base) / (native - base); missing with the reason `vanishes` when the
 * denominator cannot be told from zero */
static kvm_est ratio(const boot *b, int arm, term base, kvm_str vanishes)
{
    const kvm_est whole = difference(b, KVM_ARM_NATIVE, base);
    const double size = fabs(b->means[KVM_ARM_NATIVE]) + fabs(term_of(base, b->means));
    if (!kvm_est_has(whole) || fabs(whole.value) <= 1e-12 * size ||
        kvm_est_spans(whole, 0))
        return kvm_est_missing(vanishes);
    kvm_est e = kvm_est_of((b->means[arm] - term_of(base, b->means)) / whole.value);
    if (b->s->n < 2) return e;
    for (ptrdiff_t r = 0; r < b->resamples; r++) {
        const double *mean = b->means + (r + 1) * KVM_ARM_COUNT;
        const double from = term_of(base, mean);
        b->stat[r] = (mean[arm] - from) / (mean[KVM_ARM_NATIVE] - from);
    }
    interval(&e, b->stat, b->resamples);
    return e;
}

/* (arm - source) / (native - source): only where the target surely scores better than
 * the source alone is there a gap that a translator could close */
static kvm_est gap_recovered(const boot *b, int arm)
{
    const term source = {KVM_ARM_SOURCE, 0};
    const kvm_str alike = KVM_STR("no gap to recover: on these items the source alone "
                                  "is not shown to score worse than the target");
    const kvm_est lead = difference(b, KVM_ARM_NATIVE, source);
    const bool low = b->s->lower_better;
    const double least = low ? -kvm_est_most(lead) : kvm_est_least(lead);
    const double most = low ? -kvm_est_least(lead) : kvm_est_most(lead);
    if (most < 0)
        return kvm_est_missing(KVM_STR("no gap to recover: on these items the source "
                                       "alone scores better than the target"));
    return least > 0 ? ratio(b, arm, source, alike) : kvm_est_missing(alike);
}

static bool is_donor_control(int arm)
{
    for (int i = 0; i < KVM_CONTROLS; i++)
        if ((int)kvm_controls[i] == arm) return true;
    return false;
}

static kvm_est of_a_control(void)
{
    return kvm_est_missing(KVM_STR("is itself a control"));
}

/* the control that scores best, or -1 */
static int strongest_control(const boot *b)
{
    int best = -1;
    for (int a = 0; a < KVM_ARM_COUNT; a++) {
        if (!is_donor_control(a) || !isfinite(b->means[a])) continue;
        const double lead = best < 0 ? 1.0 : b->means[a] - b->means[best];
        if (best < 0 || (b->s->lower_better ? lead < 0 : lead > 0)) best = a;
    }
    return best;
}

static kvm_est versus_control(const boot *b, int arm, int control)
{
    if (is_donor_control(arm)) return of_a_control();
    if (control < 0) return kvm_est_missing(KVM_STR("no control was scored"));
    kvm_est e = difference(b, arm, (term){control, 0});
    e.note = kvm_str_of(kvm_arms[control].as_control);
    return e;
}

static void versus_each(kvm_est out[KVM_CONTROLS], const boot *b, int arm)
{
    for (int i = 0; i < KVM_CONTROLS; i++) {
        const int control = kvm_controls[i];
        out[i] = is_donor_control(arm) ? of_a_control()
                 : b->s->item[control]
                     ? difference(b, arm, (term){control, 0})
                     : kvm_est_missing(KVM_STR("this control was not scored"));
    }
}

static void compare_arm(kvm_comparison *out, const boot *b, int arm, int control)
{
    const kvm_scores *s = b->s;
    const kvm_str low = KVM_STR("lower is better: a share has no meaning");
    const kvm_str alone = KVM_STR("the target on its own cache was not scored");
    const bool native = s->item[KVM_ARM_NATIVE], source = s->item[KVM_ARM_SOURCE];
    out->score = difference(b, arm, nothing);
    out->versus_control = versus_control(b, arm, control);
    versus_each(out->versus_each, b, arm);
    out->versus_native =
        native ? difference(b, arm, (term){KVM_ARM_NATIVE, 0}) : kvm_est_missing(alone);
    if (s->lower_better || !native) {
        out->retention = out->floor_normalised = kvm_est_missing(native ? low : alone);
    } else {
        out->retention =
            ratio(b, arm, nothing, KVM_STR("the target's own score is not above zero"));
        out->floor_normalised =
            isfinite(s->chance)
                ? ratio(b, arm, (term){-1, s->chance},
                        KVM_STR("the target's own score is not clear of chance"))
                : kvm_est_missing(KVM_STR("no chance level for this metric"));
    }
    out->gap_recovered =
        is_donor_control(arm) ? of_a_control()
        : !native             ? kvm_est_missing(alone)
        : !source ? kvm_est_missing(KVM_STR("the source alone was not scored"))
                  : gap_recovered(b, arm);
}

static void missing_all(kvm_comparison *out, kvm_str why)
{
    const kvm_est e = kvm_est_missing(why);
    *out = (kvm_comparison){e, e, e, e, e, e, {e, e, e}};
}

kvm_status kvm_compare(kvm_comparison out[KVM_ARM_COUNT], const kvm_scores *s,
                       kvm_arena scratch, kvm_err *err)
{
    TRY(check_scores(s, err));
    boot b = {.s = s, .resamples = s->resamples > 0 ? s->resamples : KVM_RESAMPLES};
    if (s->n > 0) TRY(resample(&b, &scratch, err));
    const int control = s->n > 0 ? strongest_control(&b) : -1;
    for (int a = 0; a < KVM_ARM_COUNT; a++) {
        if (!s->item[a])
            missing_all(&out[a], KVM_STR("this arm was not run"));
        else if (s->n <= 0)
            missing_all(&out[a], KVM_STR("no items"));
        else
            compare_arm(&out[a], &b, a, control);
    }
    return KVM_OK;
}

kvm_status kvm_paired(kvm_est *score, kvm_est *versus, const kvm_pair_of_scores *p,
                      kvm_arena scratch, kvm_err *err)
{
    kvm_comparison c[KVM_ARM_COUNT];
    const kvm_scores s = {
        .item = {[KVM_ARM_NATIVE] = p->base, [KVM_ARM_CLOSED_FORM] = p->item},
        .weight = p->weight,
        .n = p->n,
        .chance = KVM_NONE,
        .lower_better = true, /* no ratios are asked for */
        .exp_of_mean = p->exp_of_mean,
        .seed = p->seed};
    TRY(kvm_compare(c, &s, scratch, err));
    *score = c[KVM_ARM_CLOSED_FORM].score;
    *versus = c[KVM_ARM_CLOSED_FORM].versus_native;
    return KVM_OK;
}

/* ---- timings ---- */

static double *sorted_copy(const double *x, ptrdiff_t n, kvm_arena *scratch)
{
    double *copy = kvm_new_raw(scratch, double, n);
    if (!copy) return NULL;
    memcpy(copy, x, (size_t)n * sizeof *x);
    sort(copy, n);
    return copy;
}

static bool all_finite(const double *x, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return false;
    return true;
}

kvm_est kvm_median(const double *x, ptrdiff_t n, kvm_arena scratch)
{
    if (n <= 0) return kvm_est_missing(KVM_STR("no rounds"));
    if (!all_finite(x, n))
        return kvm_est_missing(KVM_STR("a round has no finite time"));
    const double *sorted = sorted_copy(x, n, &scratch);
    if (!sorted) return kvm_est_missing(KVM_STR("out of memory"));
    return (kvm_est){kvm_quantile(sorted, n, 0.5),
                     kvm_quantile(sorted, n, 0.25),
                     kvm_quantile(sorted, n, 0.75),
                     {"", 0}};
}

kvm_est kvm_ratio_rounds(const double *a, const double *b, ptrdiff_t n, uint64_t seed,
                         kvm_arena scratch)
{
    if (n <= 0) return kvm_est_missing(KVM_STR("no rounds"));
    double *ratios = kvm_new_raw(&scratch, double, n);
    double *draw = kvm_new_raw(&scratch, double, n);
    double *stat = kvm_new_raw(&scratch, double, KVM_RESAMPLES);
    if (!ratios || !draw || !stat) return kvm_est_missing(KVM_STR("out of memory"));
    for (ptrdiff_t i = 0; i < n; i++) ratios[i] = a[i] / b[i];
    if (!all_finite(ratios, n))
        return kvm_est_missing(KVM_STR("a round has no finite ratio"));
    memcpy(draw, ratios, (size_t)n * sizeof *draw);
    sort(draw, n);
    kvm_est e = kvm_est_of(kvm_quantile(draw, n, 0.5));
    if (n < 2) return e;
    kvm_rng rng = kvm_rng_seed(seed, 0);
    for (int r = 0; r < KVM_RESAMPLES; r++) {
        for (ptrdiff_t i = 0; i < n; i++)
            draw[i] = ratios[kvm_rng_below(&rng, (uint64_t)n)];
        sort(draw, n);
        stat[r] = kvm_quantile(draw, n, 0.5);
    }
    interval(&e, stat, KVM_RESAMPLES);
    return e;
}

/* The length from which `ratio` stays above 1, by straight lines in log-log; the first
 * when it always is, NaN when it is not at the end. */
static double crossing(const double *tokens, const double *ratio, ptrdiff_t n)
{
    ptrdiff_t i = n - 1;
    while (i >= 0 && ratio[i] > 1) i--;
    if (i < 0) return tokens[0];
    if (i == n - 1) return KVM_NONE;
    const double behind = log(ratio[i]), ahead = log(ratio[i + 1]);
    return tokens[i] * pow(tokens[i + 1] / tokens[i], -behind / (ahead - behind));
}

static bool sooner_anywhere(const double *ratio, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++)
        if (ratio[i] > 1) return true;
    return false;
}

/* by the lengths' ratios: those of one end of their intervals give the other's end */
static kvm_est stays_above(const double *tokens, const double *ratio, const double *low,
                           const double *high, ptrdiff_t n)
{
    const kvm_est e = {crossing(tokens, ratio, n), crossing(tokens, high, n),
                       crossing(tokens, low, n), KVM_STR("")};
    if (!sooner_anywhere(ratio, n))
        return kvm_est_missing(KVM_STR("not sooner at any length measured"));
    if (!kvm_est_has(e))
        return kvm_est_missing(KVM_STR("not sooner at the longest length measured"));
    if (!isfinite(e.high))
        return kvm_est_missing(KVM_STR("at the longest length measured the interval of "
                                       "the ratio reaches 1: not surely sooner"));
    if (e.high > tokens[0]) return e.low < e.high ? e : kvm_est_of(e.value);
    return (kvm_est){e.value, KVM_NONE, KVM_NONE,
                     KVM_STR("at or below the shortest length measured")};
}

kvm_est kvm_break_even(const double *tokens, const kvm_est *ratio, ptrdiff_t n,
                       kvm_arena scratch)
{
    if (n <= 0) return kvm_est_missing(KVM_STR("no lengths"));
    double *value = kvm_new_raw(&scratch, double, 3 * n);
    if (!value) return kvm_est_missing(KVM_STR("out of memory"));
    double *low = value + n, *high = low + n;
    for (ptrdiff_t i = 0; i < n; i++) {
        value[i] = ratio[i].value;
        low[i] = kvm_est_least(ratio[i]);
        high[i] = kvm_est_most(ratio[i]);
        if (!(tokens[i] > 0 && low[i] > 0) || !isfinite(tokens[i] + value[i] + high[i]))
            return kvm_est_missing(KVM_STR("a length has no ratio above zero"));
    }
    return stays_above(tokens, value, low, high, n);
}

kvm_est kvm_amortise(double build_seconds, double cold, double swap)
{
    if (!isfinite(build_seconds) || build_seconds < 0 || !isfinite(cold) ||
        !isfinite(swap))
        return kvm_est_missing(KVM_STR("a time is not known"));
    if (!(cold > swap)) return kvm_est_missing(KVM_STR("the switch saves nothing"));
    const double switches = ceil(build_seconds / (cold - swap));
    return isfinite(switches) ? kvm_est_of(switches)
                              : kvm_est_missing(KVM_STR("the switch saves nothing"));
}
