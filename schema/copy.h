/* copy.h - a whole catalogue from one database into another, either way.
 *
 * One transaction on either side: the source is read as it stood at one moment, the
 * destination has all of it or nothing, so a copy that was killed is simply begun
 * again. Every table is read back and compared by its count and a hash over its rows.
 * */
#ifndef KVM_SCHEMA_COPY_H
#define KVM_SCHEMA_COPY_H

#include "schema/catalogue.h"

typedef struct kvm_copied {
    const char *table; /* static */
    int64_t rows;
} kvm_copied;

/* kvm_catalogue_copy - both are catalogues of this program's schema.
 *   tables, count   out: what was copied; in keep
 * KVM_BUSY: jobs are running in the source: their results would go where nobody looks.
 * KVM_EXISTS: the destination is not empty. KVM_MISMATCH: what was read back differs.
 * */
KVM_MUST kvm_status kvm_catalogue_copy(kvm_catalogue *from, kvm_catalogue *to,
                                       kvm_copied **tables, ptrdiff_t *count,
                                       kvm_arena *keep, kvm_err *err);

#endif
