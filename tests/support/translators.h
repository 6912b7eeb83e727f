/* translators.h - made-up translators between any two models, for tests and benches. */
#ifndef KVM_TESTS_SUPPORT_TRANSLATORS_H
#define KVM_TESTS_SUPPORT_TRANSLATORS_H

#include "translators/outline.h"

/* made_translator - what outline.h says for these models, with random maps: weights
 * normal of `size` over the square root of a map's inputs, each reading its two nearest
 * source layers by depth; states near the identity. On any failure the test fails. */
void made_translator(kvm_translator *t, kvm_arena *keep, const kvm_model *source,
                     const kvm_model *target, const kvm_outline_options *o,
                     double size);

#endif
