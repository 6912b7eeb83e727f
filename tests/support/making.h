/* making.h - translators that a test puts together step by step. On any failure the
 * test fails. */
#ifndef KVM_TESTS_SUPPORT_MAKING_H
#define KVM_TESTS_SUPPORT_MAKING_H

#include "translators/translator.h"

typedef struct making {
    kvm_translator t;
    kvm_arena *keep;
    kvm_step *step;
    kvm_state_step *state;
    kvm_rng rng;
} making;

/* from one model to another, with no step yet */
making making_begin(kvm_arena *keep, const kvm_model *from, const kvm_model *to,
                    kvm_token_kind token);
/* one linear step; its weights are drawn, or the identity behind the token's columns */
void making_step(making *m, kvm_space out, ptrdiff_t layer, const int32_t *source,
                 ptrdiff_t sources, bool identity);
/* layer 0's rows of a space, from the tokens */
void making_exact(making *m, kvm_space out);
/* of the same layer; a correction is the identity */
void making_state(making *m, ptrdiff_t layer, kvm_state_map map);
/* between a model and itself: every layer from itself */
kvm_translator making_identity(kvm_arena *keep, const kvm_model *model,
                               kvm_space latents, kvm_token_kind token,
                               kvm_state_map states);

#endif
