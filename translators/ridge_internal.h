/* ridge_internal.h - one system of normal equations, factored; for ridge.c and
 * select.c */
#ifndef KVM_TRANSLATORS_RIDGE_INTERNAL_H
#define KVM_TRANSLATORS_RIDGE_INTERNAL_H

#include "translators/ridge.h"

/* Features are leading ones of x in its order; all matrices have pitch f. */
typedef struct kvm_system {
    kvm_compute *c;
    const kvm_moments *m;
    kvm_features x;
    ptrdiff_t f;               /* features of all of x */
    double *scale;             /* (f) 1/sqrt(A_ii), 0 for a constant feature */
    double *penalty;           /* (f) added to the unit diagonal, jitter included */
    double *mean;              /* (f) fit mean */
    double *factor;            /* (f,f) Cholesky factor, or eigenvectors as rows */
    double *value;             /* (f) eigenvalues when eigen */
    ptrdiff_t ready;           /* leading features that `factor` is good for; 0: none */
    kvm_split last;            /* figures are given of the splits up to this one */
    double *gram[KVM_SPLITS];  /* (f,f) of the splits outside of the fit */
    double *shift[KVM_SPLITS]; /* (f) their mean less the fit's */
    bool eigen; /* `factor` holds eigenvectors of exactly `ready` features */
    double jitter;
    ptrdiff_t dropped;
} kvm_system;

KVM_MUST kvm_status kvm_system__begin(kvm_system *y, kvm_compute *c,
                                      const kvm_moments *m, kvm_features x,
                                      kvm_split last, kvm_arena *room, kvm_err *err);
/* factor the leading n features; falls back as ridge.h says */
KVM_MUST kvm_status kvm_system__factor(kvm_system *y, ptrdiff_t n, kvm_lambda lambda,
                                       kvm_err *err);
/* z (n,p) in: cross moments B, out: D^-1 W. n <= ready, = ready when eigen. */
KVM_MUST kvm_status kvm_system__solve(kvm_system *y, ptrdiff_t n, double *z,
                                      ptrdiff_t p, kvm_arena scratch, kvm_err *err);
/* figures of the output's entries [from, from+p). z (n, p), pitch ldz: solution
 * from the leading n features; b (n,p), pitch ldz: the cross moments it came from. */
KVM_MUST kvm_status kvm_system__figures(kvm_system *y, ptrdiff_t n, const double *z,
                                        const double *b, ptrdiff_t ldz, kvm_output out,
                                        ptrdiff_t from, ptrdiff_t p,
                                        kvm_ridge_figures *figures, kvm_arena scratch,
                                        kvm_err *err);
/* R2 by head from error and total sums of squares (p), heads of `dim` entries */
void kvm_ridge__r2(const double *error, const double *total, ptrdiff_t p, ptrdiff_t dim,
                   double *mean, double *worst);
KVM_MUST kvm_status kvm_ridge__check_lambda(kvm_lambda l, kvm_err *err);

#endif
