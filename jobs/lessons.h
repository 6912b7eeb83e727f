/* lessons.h - what a calibration's sequences teach: a prefix, and the tokens after it.
 *
 * Those of the split to fit are learned from (distill.c), those of the split to choose
 * validate and choose (choose.c). */
#ifndef KVM_JOBS_LESSONS_H
#define KVM_JOBS_LESSONS_H

#include "jobs/calibration.h"
#include "translators/distill.h"

typedef struct kvm_lesson_options {
    uint64_t seed; /* of the split by sequence */
    double held_out;
    ptrdiff_t after;  /* tokens right behind the prefix */
    ptrdiff_t prefix; /* at most so many, a sequence's first; 0: all but `after` */
    ptrdiff_t most;   /* lessons; 0: all */
} kvm_lesson_options;

/* kvm_lessons_list - those of a split, in the order of the text, prefix and after
 * filled in (they borrow the text's ids); KVM_RANGE when there is none */
KVM_MUST kvm_status kvm_lessons_list(kvm_lesson **lesson, ptrdiff_t *n,
                                     const kvm_calibration *text, kvm_split split,
                                     const kvm_lesson_options *o, kvm_arena *keep,
                                     kvm_err *err);
/* tokens of the longest prefix among them */
ptrdiff_t kvm_lessons_longest(const kvm_lesson *lesson, ptrdiff_t n);

#endif
