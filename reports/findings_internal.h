/* findings_internal.h - how one finding is judged: claims about figures, all of which
 * must hold, and a sentence that is said on the way.
 *
 * A claim holds when the whole interval of its figure lies on its side of a bar,
 * fails when it lies on the other, and is open in between; a figure without an
 * interval is its value. One claim that fails is "not reproduced", else one that is
 * open "undecided"; of fewer items than the row needs all are "undecided". */
#ifndef KVM_REPORTS_FINDINGS_INTERNAL_H
#define KVM_REPORTS_FINDINGS_INTERNAL_H

#include "reports/findings.h"

typedef enum kvm_claim { KVM_CLAIM_HOLDS, KVM_CLAIM_OPEN, KVM_CLAIM_FAILS } kvm_claim;

typedef struct kvm_judging {
    const kvm_document *d;
    double bar, other; /* of the row of findings.def */
    kvm_arena *mem;
    kvm_text said;
    kvm_claim worst; /* of the claims so far */
    ptrdiff_t claims;
    double fewest; /* items under any figure that is claimed of; NaN: not stated */
    kvm_finding_verdict verdict; /* set by lacks and cannot; else by the claims */
    bool settled;
} kvm_judging;

/* whether a figure is below, above, at least a bar */
kvm_claim kvm_claim_below(kvm_est e, double bar);
kvm_claim kvm_claim_above(kvm_est e, double bar);
kvm_claim kvm_claim_at_least(kvm_est e, double bar);
/* the claim takes part in the verdict */
void kvm_finding__claim(kvm_judging *j, kvm_claim c);

/* a figure that is claimed of is one of so many items (the row's unit); NaN: the
 * document does not say */
void kvm_finding__rests_on(kvm_judging *j, double items);

/* "WHAT 97.6 % [95.0, 99.1]", after what was said before */
void kvm_finding__say(kvm_judging *j, const char *what, kvm_est e, kvm_format format);
void kvm_finding__say_text(kvm_judging *j, kvm_str text);
/* not measured: what is missing, and the keys of a spec that would measure it */
void kvm_finding__lacks(kvm_judging *j, const char *what);
/* no such pair can show it: why */
void kvm_finding__cannot(kvm_judging *j, const char *why);

/* one evaluator for each row */
#define X(id, NAME, ...) void kvm_finding__##NAME(kvm_judging *j);
#include "reports/findings.def"
#undef X

#endif
