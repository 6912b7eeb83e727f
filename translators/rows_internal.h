/* rows_internal.h - shared by rows.c and rows_write.c */
#ifndef KVM_TRANSLATORS_ROWS_INTERNAL_H
#define KVM_TRANSLATORS_ROWS_INTERNAL_H

#include "translators/rows.h"

bool kvm_rows__same_rope(const kvm_rope *a, const kvm_rope *b);

#endif
