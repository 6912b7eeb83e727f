/* switching.h - two open models and a translator between them, for the commands that
 * talk. */
#ifndef KVM_CLI_SWITCHING_H
#define KVM_CLI_SWITCHING_H

#include "cli/open.h"
#include "translators/apply.h"

typedef struct kvm_switching {
    kvm_compute *compute;
    kvm_model *source, *target;
    kvm_translator translator;
    kvm_apply *apply;
    kvm_cache *source_cache, *target_cache;
    kvm_taken *taken;   /* what the translator reads besides the cache; NULL: nothing */
    kvm_capture taking; /* the sink of the source's forwards, when taken */
    int32_t *ids;       /* (capacity) tokens of the source's cache */
    float *logits;      /* of the larger vocabulary */
    ptrdiff_t capacity;
} kvm_switching;

KVM_MUST kvm_status kvm_switching_open(kvm_switching *s, kvm_cli *cli, kvm_str source,
                                       kvm_str target, kvm_str translator,
                                       ptrdiff_t capacity, kvm_err *err);
/* kvm_switching_capture - what a forward of the source has to be given; NULL:
 * nothing */
const kvm_capture *kvm_switching_capture(const kvm_switching *s);
/* the tokens that the source's cache holds, from `from` on, for the translator */
void kvm_switching_tell(kvm_switching *s, const int32_t *ids, ptrdiff_t from,
                        ptrdiff_t n);
/* kvm_switching_catch_up - what the target's cache lacks of the source's, once, behind
 * what it holds */
KVM_MUST kvm_status kvm_switching_catch_up(kvm_switching *s, double *seconds,
                                           kvm_err *err);

/* Where the two ways to a first token are compared, each is gone once unmeasured before
 * it is timed. Both leave the target's cache empty. */

/* cold: the target reads these ids itself, first token included */
KVM_MUST kvm_status kvm_switching_cold(kvm_switching *s, const int32_t *ids,
                                       ptrdiff_t n, double *seconds, kvm_err *err);
/* kvm_switching_warm_up - the switch, unmeasured: the source's whole cache is
 * translated and the target reads the rest, first token included. What is to be timed
 * is a catch_up and a forward over the same tokens. */
KVM_MUST kvm_status kvm_switching_warm_up(kvm_switching *s, const int32_t *rest,
                                          ptrdiff_t n, kvm_err *err);

#endif
