/* needs.h - which rows the captures of a pair must hold, and which products their
 * moments, so that every fit of the spec finds its own: of the run and of its
 * ablations, in both directions. Both graphs ask for the same, and so share their
 * steps. */
#ifndef KVM_JOBS_NEEDS_H
#define KVM_JOBS_NEEDS_H

#include "jobs/spec.h"
#include "translators/outline.h"

/* Side 0 is the spec's source, side 1 its target, whichever direction is built. */
typedef struct kvm_needs {
    kvm_spaces rows[2];
    kvm_block_set gram[2];
    kvm_block_set cross; /* (side 0, side 1) */
    bool inversion;      /* of the rows of both sides, whose Gram files hold for it */
    bool own[2];         /* direction i reads its target's Gram file */
} kvm_needs;

/* KVM_UNSUPPORTED, KVM_MISMATCH, KVM_USAGE: the fit section asks for what these models
 * cannot do */
KVM_MUST kvm_status kvm_needs_read(kvm_needs *n, const kvm_spec *s,
                                   const kvm_shapes sides[2], kvm_arena *keep,
                                   kvm_err *err);
/* kvm_needs_gather - add what n needs of its side's model to what others need of it */
void kvm_needs_gather(kvm_spaces *rows, kvm_block_set *gram, const kvm_needs *n,
                      int side);
/* as parameters of a capture and of a stats job; new references */
json_t *kvm_needs_rows(kvm_spaces rows);
json_t *kvm_needs_blocks(const kvm_block_set *set);

#endif
