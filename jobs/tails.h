/* tails.h - shares of a prefix that the target reads itself, behind a translated head:
 * for scores (analyse.c) and for times (timing.c). */
#ifndef KVM_JOBS_TAILS_H
#define KVM_JOBS_TAILS_H

#include "base/json.h"

enum { KVM_MOST_TAILS = 16 };
typedef struct kvm_tails {
    double share[KVM_MOST_TAILS]; /* (n) ascending, in (0, 1) */
    ptrdiff_t n;
} kvm_tails;

/* kvm_tails_read - "tails" of a job's parameters, or the n shares of `otherwise` where
 * they say nothing */
KVM_MUST kvm_status kvm_tails_read(kvm_tails *t, kvm_jat params, kvm_arena *keep,
                                   const double *otherwise, ptrdiff_t n, kvm_err *err);
/* those of an analysis that names none */
enum { KVM_DEFAULT_TAILS = 4 };
extern const double kvm_default_tails[KVM_DEFAULT_TAILS];
/* how many tokens of n the target reads itself: to the nearest, at least one is left to
 * translate */
ptrdiff_t kvm_tail_tokens(double share, ptrdiff_t n);

#endif
