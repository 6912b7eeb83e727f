/* said.h - what a model says, kept for later: rows of logits whole, or the likeliest
 * tokens of each with what is left to all others together.
 *
 * Of a row's p = softmax(logits) the `top` largest are kept as they are; the rest of
 * the probability is spread evenly over the other tokens. What that loses is known
 * when it is kept: KL(p || kept), per row. */
#ifndef KVM_TRANSLATORS_SAID_H
#define KVM_TRANSLATORS_SAID_H

#include <stdint.h>

#include "base/arena.h"

typedef struct kvm_said {
    ptrdiff_t rows, vocab, top; /* top 0: whole rows */
    float *logits;              /* (rows, vocab) whole */
    int32_t *id;                /* (rows, top) */
    float *kept, *rest;         /* (rows, top), (rows): ln p of these, of each other */
    double lost;                /* sum over rows of KL(p || kept) */
} kvm_said;

/* the tokens to keep where so many are asked for; 0 asked: all of a small vocabulary,
 * the 256 likeliest of one whose whole rows would take most of the memory */
ptrdiff_t kvm_said_top(ptrdiff_t vocab, ptrdiff_t asked);
/* numbers that it keeps */
ptrdiff_t kvm_said_numbers(ptrdiff_t rows, ptrdiff_t vocab, ptrdiff_t top);
/* top >= vocab is 0 */
KVM_MUST kvm_status kvm_said_new(kvm_said *s, kvm_arena *keep, ptrdiff_t rows,
                                 ptrdiff_t vocab, ptrdiff_t top, kvm_err *err);
/* one row of logits (vocab); O(vocab log top). KVM_NAN when none is finite */
KVM_MUST kvm_status kvm_said_put(kvm_said *s, ptrdiff_t row, const float *logits,
                                 kvm_err *err);
/* rows from .. from+n as logits (n, vocab): where they lie, or in room (n, vocab) */
float *kvm_said_rows(const kvm_said *s, ptrdiff_t from, ptrdiff_t n, float *room);

#endif
