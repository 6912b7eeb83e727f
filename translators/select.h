/* select.h - which source layers predict which target layer.
 *
 * All from moments. The (source x target) R2 maps come from one factorisation per
 * source layer, solved against every target layer at once. Production selection is the
 * top k by single-layer R2, averaged over K content and V; greedy forward selection is
 * analysis: it adds the layer that lowers the joint error most, by a block-pivoted
 * Cholesky that keeps every candidate's Schur complement. */
#ifndef KVM_TRANSLATORS_SELECT_H
#define KVM_TRANSLATORS_SELECT_H

#include "translators/ridge.h"

/* R2 of target layer t from source layer s alone, mean over heads, on the fit and the
 * choosing split. */
typedef struct kvm_r2_map {
    ptrdiff_t sources, targets;
    double *r2[KVM_SPACES][KVM_HELD]; /* (sources, targets) each */
} kvm_r2_map;

typedef struct kvm_map_options {
    kvm_lambda lambda; /* value 0: relative 1e-6, as good as least squares */
    bool per_head;     /* head h from source head h only, as the paper's figure; needs
                          equal head counts (KVM_SHAPE); else all heads of the layer */
    bool allow_wide;
} kvm_map_options;
KVM_MUST kvm_status kvm_select_maps(kvm_compute *c, const kvm_moments *m,
                                    const kvm_map_options *o, kvm_r2_map *maps,
                                    kvm_arena *keep, kvm_arena scratch, kvm_err *err);
size_t kvm_select_bytes(const kvm_moments *m); /* scratch of maps and greedy */

/* For each target layer all source layers, best first. */
typedef struct kvm_ranking {
    ptrdiff_t sources, targets;
    int32_t *order; /* (targets, sources) */
} kvm_ranking;
/* by the mean of K content and V on the given split; ties go to the lower layer */
KVM_MUST kvm_status kvm_select_rank(kvm_ranking *r, kvm_arena *keep,
                                    const kvm_r2_map *maps, kvm_split split,
                                    kvm_err *err);
/* kvm_select_depth - by distance in relative depth (l+1/2)/L; the first is the matched
 * layer of a per-layer full-width map */
KVM_MUST kvm_status kvm_select_depth(kvm_ranking *r, kvm_arena *keep, ptrdiff_t sources,
                                     ptrdiff_t targets, kvm_err *err);

/* kvm_select_greedy - the first `count` layers that enter for one target layer, in
 * order; kvm_ridge_sweep over its prefixes gives the curve. */
KVM_MUST kvm_status kvm_select_greedy(kvm_compute *c, const kvm_moments *m, kvm_space s,
                                      ptrdiff_t target, kvm_lambda lambda,
                                      int32_t *order /* (count) */, ptrdiff_t count,
                                      kvm_arena scratch, kvm_err *err);

/* kvm_select_ks - {1,2,4,6,8,10,12,16,20,24} below `sources`, then all; gives how
 * many */
enum { KVM_KS = 11 };
ptrdiff_t kvm_select_ks(ptrdiff_t sources, ptrdiff_t ks[KVM_KS]);

/* The source head that head-matched maps read for target head h. */
ptrdiff_t kvm_matched_head(ptrdiff_t h, ptrdiff_t source_heads, ptrdiff_t target_heads);

#endif
