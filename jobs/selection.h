/* selection.h - what a target's indexers choose of a prefix: on the native cache, and
 * on one that was put together out of a translation.
 *
 * Queries are the tokens from which an item's answer is predicted: the last one that is
 * fed, and those of the answer but its last. Of several answers the first that is
 * accepted, of several choices the right one, read behind every cache alike. Counted
 * are pairs of query and layer with an indexer of its own, where the native choice
 * leaves some of the prefix out: elsewhere there is nothing to choose.
 *
 *   overlap  the share of the units (tokens, pools or blocks, those that stand in the
 *            prefix whole) chosen natively that are chosen here too, mean over pairs
 *   needle   the share of pairs in which a unit is chosen that holds a token of the
 *            answer, as it stands in the prefix */
#ifndef KVM_JOBS_SELECTION_H
#define KVM_JOBS_SELECTION_H

#include "jobs/score_item.h"

/* What an item asks behind its prefix. */
typedef struct kvm_asking {
    const int32_t *ids;    /* (n) fed and answered, without the last of it */
    ptrdiff_t n, queries;  /* the last so many of them */
    ptrdiff_t needle, end; /* tokens of the prefix; needle -1: it is not there */
} kvm_asking;

/* kvm_asking_of - arrays in keep. The answer of a needle item is found in the bytes of
 * the prefix's tokens; of several places the one nearest to the item's depth. A
 * needle's tokens are all that a byte of it stands in. */
KVM_MUST kvm_status kvm_asking_of(kvm_asking *a, kvm_arena *keep, kvm_encoder *e,
                                  const kvm_tokenizer *t, const kvm_suite *s,
                                  const kvm_item *item, const kvm_item_ids *ids,
                                  kvm_err *err);

/* The units of a prefix that were chosen, by pairs of layer and query. */
typedef struct kvm_selection {
    uint64_t *bits; /* (pairs, words) */
    ptrdiff_t pairs, words, units, block;
} kvm_selection;

/* kvm_selection_take - m reads what is asked behind a cache of the prefix, which grows
 * by it; bits in keep. Of a model without indexers: no pairs. */
KVM_MUST kvm_status kvm_selection_take(kvm_selection *s, kvm_arena *keep, kvm_model *m,
                                       kvm_cache *cache, const kvm_asking *a,
                                       kvm_err *err);
/* NaN where no pair counts; of the needle, where it stands in no unit */
double kvm_selection_overlap(const kvm_selection *native, const kvm_selection *s);
double kvm_selection_needle(const kvm_selection *native, const kvm_selection *s,
                            const kvm_asking *a);

#endif
