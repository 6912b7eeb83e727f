/* select.h - which source layers predict which target layer.
 *
 * All from moments, for one mapping at a time. The (source x target) R2 maps come from
 * one factorisation per source layer, solved against every target layer at once.
 * Production selection is the top k by single-layer R2, averaged over the mappings that
 * share a choice (K content and V); greedy forward selection is
 * analysis: it adds the layer that lowers the joint error most, by a block-pivoted
 * Cholesky that keeps every candidate's Schur complement. */
#ifndef KVM_TRANSLATORS_SELECT_H
#define KVM_TRANSLATORS_SELECT_H

#include "translators/recipes.h"
#include "translators/ridge.h"

/* R2 of target layer t from source layer s alone (and no token), mean over heads, on
 * the fit and the choosing split. Rows and columns are the layers that the mapping is
 * about. */
typedef struct kvm_r2_map {
    ptrdiff_t sources, targets;
    const int32_t *source, *target; /* which layers those are */
    double *r2[KVM_HELD];           /* (sources, targets) each */
} kvm_r2_map;

typedef struct kvm_map_options {
    kvm_lambda lambda; /* value 0: relative 1e-6, as good as least squares */
    bool per_head;     /* head h from source head h only, as the paper's figure; needs
                          equal head counts (KVM_SHAPE); else all heads of the layer */
    bool allow_wide;
    int part, parts; /* of source layers, dealt out: rows of the others stay 0; parts 0:
                        all of them */
} kvm_map_options;
KVM_MUST kvm_status kvm_select_maps(kvm_compute *c, const kvm_moments *m,
                                    const kvm_mapping *mapping,
                                    const kvm_map_options *o, kvm_r2_map *map,
                                    kvm_arena *keep, kvm_arena scratch, kvm_err *err);
/* scratch of maps and greedy */
size_t kvm_select_bytes(const kvm_moments *m, const kvm_mapping *mapping);

/* For each target layer all source layers, best first. */
typedef struct kvm_ranking {
    ptrdiff_t sources, targets;
    const int32_t *target; /* (targets) layers */
    int32_t *order;        /* (targets, sources) layers */
} kvm_ranking;
/* by the mean of n maps over the same layers, on the given split; ties go to the lower
 * layer */
KVM_MUST kvm_status kvm_select_rank(kvm_ranking *r, kvm_arena *keep,
                                    const kvm_r2_map *maps, ptrdiff_t n,
                                    kvm_split split, kvm_err *err);
/* kvm_select_depth - by distance in relative depth: (i+1/2)/n for the i-th of n layers
 * that a map is about; the first is the matched layer of a per-layer full-width map */
KVM_MUST kvm_status kvm_select_depth(kvm_ranking *r, kvm_arena *keep,
                                     const kvm_r2_map *map, kvm_err *err);

/* kvm_select_greedy - the first `count` layers that enter for one target layer, in
 * order; kvm_ridge_sweep over its prefixes gives the curve. */
KVM_MUST kvm_status kvm_select_greedy(kvm_compute *c, const kvm_moments *m,
                                      const kvm_mapping *mapping, ptrdiff_t target,
                                      kvm_lambda lambda, int32_t *order /* (count) */,
                                      ptrdiff_t count, kvm_arena scratch, kvm_err *err);

/* kvm_select_ks - {1,2,4,6,8,10,12,16,20,24} below `sources`, then all; gives how
 * many */
enum { KVM_KS = 11 };
ptrdiff_t kvm_select_ks(ptrdiff_t sources, ptrdiff_t ks[KVM_KS]);

/* The source head that head-matched maps read for target head h. */
ptrdiff_t kvm_matched_head(ptrdiff_t h, ptrdiff_t source_heads, ptrdiff_t target_heads);

#endif
