/* states.h - what a recurrent layer has summed up, from one model into another.
 *
 * A state (H,K,V) cannot be mapped token by token. Where both models keep it in one
 * geometry, three ways stand here: zero, copy, and copy with a correction per head,
 *
 *   S' = A S B     A (K,K), B (V,V), both pulled towards the identity
 *
 * fitted by two rounds of alternating ridge on states that both models reach after the
 * same texts. The window of the layer's short convolution (C,W) goes with it: each
 * block of D channels, in every column alike, as W x + b. All is O(1) in the prompt's
 * length. Where geometries differ, the target's own recurrence runs over predicted
 * inputs instead: that is a step over the space "input". */
#ifndef KVM_TRANSLATORS_STATES_H
#define KVM_TRANSLATORS_STATES_H

#include "translators/translator.h"

typedef struct kvm_state_options {
    double lambda; /* relative to the mean diagonal of the normal equations; 0: 1e-3 */
    uint64_t seed; /* of the split by sequence */
    double fraction;
} kvm_state_options;

/* 1 - squared error / squares about the mean, on held-out sequences */
typedef struct kvm_state_figures {
    double r2_copy, r2, r2_window_copy, r2_window;
    ptrdiff_t sequences; /* that the fit saw */
} kvm_state_figures;

/* kvm_states_same - KVM_OK when states and windows of two layers have one geometry;
 * KVM_MISMATCH says how they differ and offers replay */
KVM_MUST kvm_status kvm_states_same(const kvm_shapes *source, ptrdiff_t source_layer,
                                    const kvm_shapes *target, ptrdiff_t target_layer,
                                    kvm_err *err);

/* kvm_states_fit - a step from captured states and windows; arrays in keep. Any map:
 * zero and copy have figures too. KVM_MISMATCH as above, KVM_RANGE for fewer than two
 * sequences to fit on, KVM_NAN when a solution is not finite.
 * O(sequences H (K^2 V + K V^2)). */
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
