/* invert.h - what reading tokens out of cached rows (invert.c) asks of a capture and of
 * its Gram file. */
#ifndef KVM_JOBS_INVERT_H
#define KVM_JOBS_INVERT_H

#include "translators/recipes.h"

/* kvm_invert_needs - rows of every object that an engine keeps of a token, at the
 * points where a capture can hold it, and the token's embedding; their products with
 * themselves and with it */
void kvm_invert_needs(kvm_spaces *rows, kvm_block_set *gram, const kvm_shapes *s);

#endif
