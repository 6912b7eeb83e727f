/* gather.h - what a forward hands out, object by object, becomes rows of spaces.
 *
 * A row of a space may hold parts of two objects (a latent and its rotary key), which
 * come one after the other. A gatherer is the sink of a forward: it waits for the parts
 * and hands whole rows on. It can also keep them: what a source's cache does not hold
 * (rows before a norm) has to be taken while the source reads. */
#ifndef KVM_TRANSLATORS_GATHER_H
#define KVM_TRANSLATORS_GATHER_H

#include "translators/rows.h"

/* rows (n, width) of a space of a layer, tokens first .. first+n-1; of a space that is
 * kept once: n 1, after `first` tokens */
typedef kvm_status kvm_gather_sink(void *ctx, kvm_space space, ptrdiff_t layer,
                                   ptrdiff_t first, ptrdiff_t n, const float *rows,
                                   kvm_err *err);

typedef struct kvm_gather kvm_gather;
/* kvm_gather_new - of these spaces of a model, by forwards in chunks of at most `most`.
 * The token's embedding is not a part of any object: it is not gathered. */
KVM_MUST kvm_status kvm_gather_new(kvm_gather **g, kvm_arena *keep, const kvm_model *m,
                                   kvm_spaces which, ptrdiff_t most,
                                   kvm_gather_sink *sink, void *ctx, kvm_err *err);
/* what a forward is given; borrows g */
kvm_capture kvm_gather_capture(kvm_gather *g);

/* ---- keeping them ---- */

typedef struct kvm_taken kvm_taken;
/* kvm_taken_new - room for `capacity` tokens' rows of these spaces, all layers. Memory
 * is reserved, touched as used. */
KVM_MUST kvm_status kvm_taken_new(kvm_taken **t, kvm_arena *keep, const kvm_model *m,
                                  kvm_spaces which, ptrdiff_t capacity, kvm_err *err);
kvm_capture kvm_taken_capture(kvm_taken *t);
double kvm_taken_seconds(const kvm_taken *t); /* that taking has cost so far */
/* kvm_taken_put - rows (n, width), ld floats apart, of tokens first .. that come from
 * elsewhere than a forward; nothing where the layer's rows are not kept. KVM_RANGE
 * beyond the capacity. */
KVM_MUST kvm_status kvm_taken_put(kvm_taken *t, kvm_space space, ptrdiff_t layer,
                                  ptrdiff_t first, ptrdiff_t n, const float *rows,
                                  ptrdiff_t ld, kvm_err *err);
/* kvm_taken_has - are the rows of tokens first .. first+n-1 of a layer there? Rows that
 * come for a token end what was known of later ones: the cache was cut before. Of
 * pieces with a gap between them the last is known. */
bool kvm_taken_has(const kvm_taken *t, kvm_space space, ptrdiff_t layer,
                   ptrdiff_t first, ptrdiff_t n);
/* kvm_taken_cut - only tokens before `length` are still known: the cache was cut, and
 * may grow by tokens whose rows are not taken */
void kvm_taken_cut(kvm_taken *t, ptrdiff_t length);
/* rows (capacity, width) of a layer by their tokens' positions; NULL: not kept */
const float *kvm_taken_rows(const kvm_taken *t, kvm_space space, ptrdiff_t layer);

#endif
