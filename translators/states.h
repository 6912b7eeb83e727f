/* states.h - what a recurrent layer has summed up, from one model into another.
 *
 * A state (H,K,V) cannot be mapped token by token. Where both models keep it in one
 * geometry, three ways stand here: zero, copy, and copy with a correction per head,
 *
 *   S' = A S B     A (K,K), B (V,V), both pulled towards the identity
 *
 * fitted by alternating ridge on states that both models reach after the same texts.
 * How hard it is pulled, and for how many rounds it is fitted, is chosen on texts of
 * their own, where it never errs more than the copy (states_fit.c). The window of the
 * layer's short convolution (C,W) goes with it: each block of D channels, in every
 * column alike, as W x + b. All is O(1) in the prompt's
 * length. Where geometries differ, the target's own recurrence runs over predicted
 * inputs instead: that is a step over the space "input". */
#ifndef KVM_TRANSLATORS_STATES_H
#define KVM_TRANSLATORS_STATES_H

#include "translators/translator.h"

typedef struct kvm_state_options {
    uint64_t seed; /* of the split by sequence */
    double fraction;
} kvm_state_options;

/* of a layer's states, or of its windows */
typedef struct kvm_state_figure {
    double penalty; /* relative to the mean diagonal of the normal equations; INFINITY:
                       as it is */
    int rounds;     /* down the path until there; 0: of a copy, and of windows */
    /* 1 - squared error / squares about the mean, per split; NaN of one sequence */
    double r2[KVM_SPLITS], r2_copy[KVM_SPLITS];
} kvm_state_figure;

typedef struct kvm_state_figures {
    kvm_state_figure state, window;
    ptrdiff_t sequences; /* that the fit saw */
} kvm_state_figures;

/* kvm_states_same - KVM_OK when states and windows of two layers have one geometry;
 * KVM_MISMATCH says how they differ and offers replay */
KVM_MUST kvm_status kvm_states_same(const kvm_shapes *source, ptrdiff_t source_layer,
                                    const kvm_shapes *target, ptrdiff_t target_layer,
                                    kvm_err *err);

/* channels that a window's map mixes: what both sides of a state's head divide by */
ptrdiff_t kvm_states_block(kvm_row_shape state);

/* kvm_states_fit - a step from captured states and windows; arrays in keep. Any map:
 * zero and copy have figures too. KVM_MISMATCH as above, KVM_RANGE for fewer than two
 * sequences to fit on, KVM_NAN when a solution is not finite; s and figures untouched
 * then. A correction errs at most as much as a copy on the split to choose.
 * O(rounds sequences H (K^2 V + K V^2)). */
KVM_MUST kvm_status kvm_states_fit(kvm_compute *c, const kvm_rows *source,
                                   const kvm_rows *target, kvm_state_map map,
                                   ptrdiff_t source_layer, ptrdiff_t target_layer,
                                   const kvm_state_options *o, kvm_state_step *s,
                                   kvm_state_figures *figures, kvm_arena *keep,
                                   kvm_arena scratch, kvm_err *err);

/* kvm_states_apply - state (H,K,V) and window (C,W) of the source layer into the
 * target's, which may not overlap them. temp: one head's K*V numbers. */
KVM_MUST kvm_status kvm_states_apply(kvm_compute *c, const kvm_state_step *s,
                                     kvm_row_shape state, kvm_row_shape window,
                                     const float *from, const float *from_window,
                                     float *to, float *to_window, float *temp,
                                     kvm_err *err);

#endif
