/* ridge.h - the closed form: ridge maps and their R2, from moments alone.
 *
 * With A = sum of (x-mean)(x-mean)^T over the fit split (f,f) and B = sum of
 * (x-mean)(y-mean)^T (f,p), features are first brought to unit diagonal, D =
 * diag(A)^-1/2:
 *   relative lambda:  (D A D + lambda I) Z = D B     (the mean of that diagonal is 1)
 *   absolute lambda:  (D A D + lambda D^2) Z = D B,  which is (A + lambda I) W = B
 *   W = D Z,  bias = mean_y - W^T mean_x
 * Constant features get weight 0. One Cholesky factor serves all heads of a target
 * layer and, since leading blocks of a factor are factors, every prefix of the feature
 * order.
 *
 * R2 of a head = 1 - (its summed squared error) / (its summed squares about the mean of
 * the same split); of a layer = the mean over its heads. The error of a split
 * outside of the fit includes the shift between the splits' means.
 *
 * Singular systems: diagonal jitter 1e-12 .. 1e-8 in tens, then the eigendecomposition
 * with eigenvalues below f * 2.2e-16 * largest dropped (pseudo-inverse). */
#ifndef KVM_TRANSLATORS_RIDGE_H
#define KVM_TRANSLATORS_RIDGE_H

#include "translators/moments.h"

typedef struct kvm_lambda {
    double value;  /* >= 0 */
    bool absolute; /* in units of A; else relative to the unit diagonal */
} kvm_lambda;

/* The default grid: relative 1e-6 .. 1e-1 in tens, then absolute 0.01 (the paper's). */
enum { KVM_LAMBDAS = 7 };
extern const kvm_lambda kvm_lambda_grid[KVM_LAMBDAS];

typedef struct kvm_ridge_figures {
    double r2[KVM_SPLITS];    /* mean over heads; NaN: not asked for, or no rows */
    double worst[KVM_SPLITS]; /* lowest head */
    ptrdiff_t rows, features; /* of the fit split; p/n = features / rows */
    double weight_norm; /* Frobenius norm of W on unit-variance inputs and outputs,
                                  over sqrt(outputs): 1 for a rotation */
    double jitter;      /* put on the unit diagonal; 0: none was needed */
    ptrdiff_t dropped;  /* eigenvalues dropped; 0 on the Cholesky path */
    bool refused;       /* rows <= features and not allowed: nothing was solved */
} kvm_ridge_figures;

typedef struct kvm_ridge_options {
    kvm_lambda lambda;
    bool allow_wide; /* solve although rows <= features */
} kvm_ridge_options;

/* A solved map of one target layer. */
typedef struct kvm_ridge_map {
    ptrdiff_t inputs, outputs;
    double *weight; /* (inputs, outputs), x W + bias */
    double *bias;   /* (outputs) */
} kvm_ridge_map;

/* kvm_ridge_fit - one map; arrays in keep. x.head >= 0 fits one head of the
 * output from that one head of each item (out_head says which; -1: all).
 * KVM_USAGE for lambda < 0 or not finite; KVM_MISMATCH when the moments lack a product
 * that is needed (kvm_moments_has); KVM_RANGE for rows <= features unless
 * allowed, naming both; KVM_NAN when the solution is not finite.
 * Time O(f^3/3 + 4 f^2 p); scratch kvm_ridge_bytes(f, p). */
KVM_MUST kvm_status kvm_ridge_fit(kvm_compute *c, const kvm_moments *m, kvm_features x,
                                  kvm_output y, ptrdiff_t out_head,
                                  const kvm_ridge_options *o, kvm_ridge_map *map,
                                  kvm_ridge_figures *figures, kvm_arena *keep,
                                  kvm_arena scratch, kvm_err *err);
size_t kvm_ridge_bytes(ptrdiff_t features, ptrdiff_t outputs);

/* kvm_ridge_sweep - figures of every prefix length ks[i] of the items x and every
 * lambda, one factorisation per lambda for all prefixes: figures (nk, nl), of the fit
 * and the choosing split: whatever is picked among them is flattered there. Prefixes
 * that have no more rows than features are marked refused. */
KVM_MUST kvm_status kvm_ridge_sweep(kvm_compute *c, const kvm_moments *m,
                                    kvm_features x, kvm_output y, const ptrdiff_t *ks,
                                    ptrdiff_t nk, const kvm_lambda *lambdas,
                                    ptrdiff_t nl, bool allow_wide,
                                    kvm_ridge_figures *figures, kvm_arena scratch,
                                    kvm_err *err);

/* kvm_ridge_score - R2 of any linear map (w row-major (f,p), bias) on all splits */
KVM_MUST kvm_status kvm_ridge_score(kvm_compute *c, const kvm_moments *m,
                                    kvm_features x, kvm_output y, ptrdiff_t out_head,
                                    const double *weight, const double *bias,
                                    kvm_ridge_figures *figures, kvm_arena scratch,
                                    kvm_err *err);

#endif
