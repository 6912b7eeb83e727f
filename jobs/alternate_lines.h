/* alternate_lines.h - one conversation, two models, a cache line each.
 *
 * The conversation is a list of ids; a line holds its beginning, as far as the model
 * has come. The model whose turn it is catches up on the rest: it reads all of it
 * again, has what it lacks translated out of the other's line, or all of it. Then it
 * reads the question and answers, and both belong to the conversation. A line counts
 * the tokens that its model read and those that were translated into it, so that what
 * is done twice shows.
 *
 * An answer is read again once it is whole: what came after a stop string goes, and
 * rows that only a forward hands out are taken. */
#ifndef KVM_JOBS_ALTERNATE_LINES_H
#define KVM_JOBS_ALTERNATE_LINES_H

#include "jobs/answer.h"
#include "translators/apply.h"

enum { KVM_SIDES = KVM_TARGET + 1 }; /* by kvm_side */

typedef enum kvm_catch_up {
    KVM_CATCH_UP_READ,    /* the line is emptied, its model reads everything */
    KVM_CATCH_UP_SEGMENT, /* what the line lacks is translated and appended */
    KVM_CATCH_UP_WHOLE    /* the line is emptied, everything is translated */
} kvm_catch_up;

typedef struct kvm_line {
    kvm_model *model; /* borrows */
    kvm_apply *into;  /* out of the other's line into this one; borrows */
    kvm_cache *cache;
    kvm_taken *taken; /* what the way out of this line needs; NULL: the cache does */
    double taken_seconds;       /* of taking, as far as a catch-up has counted it */
    ptrdiff_t read, translated; /* tokens, over the conversation */
} kvm_line;

typedef struct kvm_lines {
    kvm_line line[KVM_SIDES];
    kvm_cache
        *reference[KVM_SIDES]; /* what is said of a native re-read is said on it */
    int32_t *ids;              /* (n) the conversation */
    ptrdiff_t n, capacity;
} kvm_lines;

/* kvm_lines_new - of models[] and their translators, which are borrowed: into[side]
 * makes that side's line. capacity: the longest conversation in tokens */
KVM_MUST kvm_status kvm_lines_new(kvm_lines *l, kvm_arena *keep,
                                  kvm_model *const models[KVM_SIDES],
                                  kvm_apply *const into[KVM_SIDES], ptrdiff_t capacity,
                                  kvm_err *err);
/* kvm_lines_begin - another conversation, of which nobody knows anything yet */
KVM_MUST kvm_status kvm_lines_begin(kvm_lines *l, const int32_t *ids, ptrdiff_t n,
                                    kvm_err *err);
/* kvm_lines_catch_up - the whole conversation into a side's line. seconds: what it
 * took, with what the other side has spent on taking rows for it since it was last
 * asked */
KVM_MUST kvm_status kvm_lines_catch_up(kvm_lines *l, kvm_side side, kvm_catch_up how,
                                       double *seconds, kvm_err *err);
/* kvm_lines_ask - a question joins the conversation, and the side that has caught up
 * reads it. logits (V): after its last token */
KVM_MUST kvm_status kvm_lines_ask(kvm_lines *l, kvm_side side, const int32_t *ids,
                                  ptrdiff_t n, float *logits, kvm_err *err);
/* kvm_lines_answer - the side that was asked answers, after those logits; its answer
 * joins the conversation. Its ids and text lie in keep */
KVM_MUST kvm_status kvm_lines_answer(kvm_lines *l, kvm_side side, const kvm_item *item,
                                     ptrdiff_t most, const float *logits, kvm_answer *a,
                                     kvm_arena *keep, kvm_err *err);
/* kvm_lines_reference - logits (V) after the last token for a side that has read the
 * whole conversation itself; the last `question` tokens in a forward of their own, as
 * kvm_lines_ask reads them */
KVM_MUST kvm_status kvm_lines_reference(kvm_lines *l, kvm_side side, ptrdiff_t question,
                                        float *logits, kvm_err *err);

#endif
