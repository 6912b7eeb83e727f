/* stats.h - statistics of a comparison: what a score is worth, and how sure we are.
 *
 * Everything a report prints is a kvm_est: a value with, where it can be had, a 95 %
 * interval, or no value and the reason why. Division by nothing never gives inf: it
 * gives a missing value with words. Arms of a suite are scored on the same items, so
 * every interval comes from one paired bootstrap: the items are resampled, the arms
 * kept together. */
#ifndef KVM_REPORTS_STATS_H
#define KVM_REPORTS_STATS_H

#include <jansson.h>
#include <math.h>

#include "base/rng.h"
#include "base/str.h"

#define KVM_NONE ((double)NAN) /* no value */

typedef struct kvm_est {
    double value;     /* NaN: missing, and note says why */
    double low, high; /* 95 % interval, or quartiles of a timing; NaN: none */
    kvm_str note;     /* why it is missing, or a qualification ("at most"); borrows */
} kvm_est;

static inline bool kvm_est_has(kvm_est e)
{
    return isfinite(e.value);
}
static inline bool kvm_est_has_interval(kvm_est e)
{
    return isfinite(e.low) && isfinite(e.high);
}
/* the ends of a figure's interval; without one its value */
static inline double kvm_est_least(kvm_est e)
{
    return kvm_est_has_interval(e) ? e.low : e.value;
}
static inline double kvm_est_most(kvm_est e)
{
    return kvm_est_has_interval(e) ? e.high : e.value;
}
/* whether it cannot be told from v: the interval holds it */
static inline bool kvm_est_spans(kvm_est e, double v)
{
    return kvm_est_has_interval(e) && e.low <= v && e.high >= v;
}
static inline kvm_est kvm_est_of(double value)
{
    return (kvm_est){value, KVM_NONE, KVM_NONE, {"", 0}};
}
static inline kvm_est kvm_est_missing(kvm_str why)
{
    return (kvm_est){KVM_NONE, KVM_NONE, KVM_NONE, why};
}
/* the fewest items that decide anything, a verdict or a finding: resamples of few
 * items, which may all be alike, know nothing of the others */
enum { KVM_LEAST_ITEMS = 20 };

/* kvm_widening - how many times as wide a 95 % interval becomes when n comparisons are
 * made and none of them is to err in more than 5 % of cases: of the normal
 * distribution, z(1 - .05/2n) / z(1 - .05/2) (Bonferroni; Dunn, Multiple Comparisons
 * Among Means, 1961). n <= 1: 1. */
double kvm_widening(ptrdiff_t n);
/* e with each end of its interval so many times as far from its value, never nearer;
 * without an interval e */
kvm_est kvm_est_widened(kvm_est e, double times);

/* kvm_est_json - {"value","low","high","note"}, absent members left out, a missing
 * value as null; gives a new reference, NULL when memory is out */
json_t *kvm_est_json(kvm_est e);

/* ---- arms ---- */

typedef enum kvm_arm_group { KVM_ANCHOR, KVM_ARM, KVM_CONTROL } kvm_arm_group;

typedef enum kvm_arm {
#define X(NAME, key, label, group, what) KVM_ARM_##NAME,
#include "reports/arms.def"
#undef X
    KVM_ARM_COUNT
} kvm_arm;

typedef struct kvm_arm_info {
    const char *key, *label, *what;
    const char *as_control; /* "strongest control: zero cache" */
    kvm_arm_group group;
} kvm_arm_info;
extern const kvm_arm_info kvm_arms[KVM_ARM_COUNT];

/* the caches that should not serve, whatever the translator */
enum { KVM_CONTROLS = 3 };
extern const kvm_arm kvm_controls[KVM_CONTROLS];
bool kvm_arm_find(kvm_str key, kvm_arm *out);

/* ---- scores of one suite ---- */

/* One metric of one suite on the same n items for every arm. */
typedef struct kvm_scores {
    const double *item[KVM_ARM_COUNT]; /* (n) per item; NULL: arm not run */
    const double *weight;              /* (n) > 0, e.g. tokens; NULL: 1 each */
    ptrdiff_t n;
    double chance;       /* the score of guessing; NaN: unknown or none */
    bool lower_better;   /* KL, perplexity: retention has no meaning */
    bool exp_of_mean;    /* the score is exp(mean): perplexity from log-likelihood */
    uint64_t seed;       /* same seed, same intervals */
    ptrdiff_t resamples; /* 0: 10,000 */
} kvm_scores;

typedef struct kvm_comparison {
    kvm_est score;
    kvm_est retention;        /* score / native */
    kvm_est floor_normalised; /* (score - chance) / (native - chance) */
    kvm_est gap_recovered;    /* (score - source) / (native - source), where native is
                                 surely the better one of the two; not of the controls
                                 below, which would show how bad a cache can be */
    kvm_est versus_native;    /* score - native, paired */
    kvm_est versus_control;   /* score - the strongest of kvm_controls */
    kvm_est versus_each[KVM_CONTROLS]; /* score - each of them, paired */
} kvm_comparison;

/* kvm_compare - every arm of a suite at once.
 *   out  (KVM_ARM_COUNT)  an arm that was not run gets missing values
 * A ratio whose denominator's interval covers zero is missing with that reason. Needs
 * n >= 2 for intervals. KVM_NAN names the first item that is not finite; KVM_RANGE for
 * a weight <= 0. O(resamples n), deterministic. */
KVM_MUST kvm_status kvm_compare(kvm_comparison out[KVM_ARM_COUNT], const kvm_scores *s,
                                kvm_arena scratch, kvm_err *err);
/* kvm_comparison_json - the arm's object of a report document (page.h); new reference
 */
json_t *kvm_comparison_json(const kvm_comparison *c);

/* One column of scores beside another, of the same n items. */
typedef struct kvm_pair_of_scores {
    const double *item, *base; /* (n) */
    const double *weight;      /* (n) > 0; NULL: 1 each */
    ptrdiff_t n;
    uint64_t seed;
    bool exp_of_mean; /* as in kvm_scores */
} kvm_pair_of_scores;

/* kvm_paired - the mean of `item`, and item - base, with their intervals. Errors as
 * kvm_compare, whose resamples of the same seed these are. */
KVM_MUST kvm_status kvm_paired(kvm_est *score, kvm_est *versus,
                               const kvm_pair_of_scores *p, kvm_arena scratch,
                               kvm_err *err);

/* ---- timings ---- */

/* kvm_quantile - of n values in ascending order, 0 <= q <= 1, linear between order
 * statistics (numpy's default); NaN for n <= 0 */
double kvm_quantile(const double *sorted, ptrdiff_t n, double q);

/* kvm_median - the median with the quartiles as low and high (not a 95 % interval).
 * Missing with a reason for n <= 0 or a value that is not finite. */
kvm_est kvm_median(const double *x, ptrdiff_t n, kvm_arena scratch);

/* kvm_ratio_rounds - a/b where a[i] and b[i] were timed in the same round: the median
 * of the rounds' ratios, 95 % bootstrap interval over rounds (n >= 2). */
kvm_est kvm_ratio_rounds(const double *a, const double *b, ptrdiff_t n, uint64_t seed,
                         kvm_arena scratch);

/* kvm_break_even - the length from which the switch stays sooner than the cold start,
 * by straight lines in log-log between measured lengths; its interval by those of the
 * ratios. tokens (n) ascending, > 0; ratio (n) cold / switch, as kvm_ratio_rounds gives
 * it, > 0. Surely sooner at every length: the shortest length, note "at or below the
 * shortest length measured". Not sooner at the longest, or not surely: missing, the
 * note says so. */
kvm_est kvm_break_even(const double *tokens, const kvm_est *ratio, ptrdiff_t n,
                       kvm_arena scratch);

/* kvm_amortise - how many switches pay for the build: seconds / (cold - swap), rounded
 * up; missing when the switch saves nothing */
kvm_est kvm_amortise(double build_seconds, double cold, double swap);

#endif
