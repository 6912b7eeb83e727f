/* rows_internal.h - shared by rows.c and rows_write.c */
#ifndef KVM_TRANSLATORS_ROWS_INTERNAL_H
#define KVM_TRANSLATORS_ROWS_INTERNAL_H

#include "translators/rows.h"

#define KVM_CAPTURE_FORMAT "kvmill.capture.v2"

/* "K.3"; at NULL when keep is spent */
kvm_str kvm_rows__name(kvm_arena *keep, kvm_space s, ptrdiff_t layer);
bool kvm_rows__same_rope(const kvm_rope *a, const kvm_rope *b);

#endif
