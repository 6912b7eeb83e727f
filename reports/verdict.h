/* verdict.h - what a report document amounts to, in words and five figures. The rule is
 * stated in page.h; nothing else in kvmill says whether a translated cache serves. */
#ifndef KVM_REPORTS_VERDICT_H
#define KVM_REPORTS_VERDICT_H

#include "reports/document.h"
#include "reports/table.h"

#define KVM_SERVES_FROM 0.90      /* mean floor-normalised retention that serves */
#define KVM_SERVES_NOT_BELOW 0.50 /* below it: does not serve */

typedef struct kvm_verdict {
    kvm_tone tone;
    kvm_str headline, sentence; /* plain text, in the arena */
    int arm;                    /* < 0: no translator was scored */
    double retention, floor_normalised, gap_recovered; /* means; NaN: not measured */
    ptrdiff_t retention_suites, floor_suites, gap_suites;
    ptrdiff_t suites_too_few; /* not secondary, of too few items to decide */
    ptrdiff_t gates_passed, gates_failed, gates_unmeasured; /* all of them */
    ptrdiff_t gates_apply; /* that can be measured of such a pair */
    ptrdiff_t required_failed, required_unmeasured;
    const kvm_time_point *longest; /* the greatest length with a speedup, or NULL */
    const kvm_time_point
        *judged;        /* the greatest that quality was measured at, or NULL */
    kvm_est break_even; /* tokens */
} kvm_verdict;

KVM_MUST kvm_status kvm_verdict_of(kvm_verdict *out, kvm_arena *keep,
                                   const kvm_document *d, kvm_err *err);

#endif
