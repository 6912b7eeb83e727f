/* backward.h - from a loss over continuation tokens back to the cache they ran behind.
 *
 * A tape records one forward of n tokens: what each half of a block was given, and
 * the objects per prompt as they stood before. Its backward forms logits a few rows at
 * a time, lets a loss turn them into gradients, and goes through the blocks in reverse;
 * each layer makes its own activations anew from what the tape kept. What comes out is
 * the gradient of the loss by every object of the prefix at point 3, and
 * kvm_model_pull takes it on to the rows that were injected. Weights are constants.
 *
 * Memory: halves of blocks * n * hidden numbers, and the activations of one layer. */
#ifndef KVM_MODELS_BACKWARD_H
#define KVM_MODELS_BACKWARD_H

#include "models/model.h"

/* The gradient of a loss by every object of a cache: slots of the same geometry. */
typedef struct kvm_gradients kvm_gradients;
/* room for `capacity` tokens: those of a prefix and those that run behind it */
KVM_MUST kvm_status kvm_gradients_new(kvm_gradients **g, kvm_arena *keep,
                                      const kvm_model *m, ptrdiff_t capacity,
                                      kvm_err *err);
/* all 0, for a prefix of so many tokens; KVM_RANGE beyond the capacity */
KVM_MUST kvm_status kvm_gradients_clear(kvm_gradients *g, ptrdiff_t tokens,
                                        kvm_err *err);
/* (H,T,D) as kvm_cache_view gives the object; borrows */
KVM_MUST kvm_status kvm_gradients_view(const kvm_gradients *g, ptrdiff_t object,
                                       kvm_tensor *view, kvm_err *err);
/* rows [from, from+n) of an object of tokens, (n, H*D) */
KVM_MUST kvm_status kvm_gradients_read(const kvm_gradients *g, ptrdiff_t object,
                                       ptrdiff_t from, ptrdiff_t n, float *rows,
                                       kvm_err *err);

typedef struct kvm_tape kvm_tape;
/* for prefixes of at most so many tokens, and so many behind them. KVM_UNSUPPORTED
 * names the first layer that has no backward. */
KVM_MUST kvm_status kvm_tape_new(kvm_tape **t, kvm_arena *keep, kvm_model *m,
                                 ptrdiff_t prefix_most, ptrdiff_t tokens_most,
                                 kvm_err *err);
/* kvm_tape_bytes - at most what such a tape takes: grows with either number of tokens,
 * and with the vocabulary up to a fixed piece of logits, never with their product */
size_t kvm_tape_bytes(const kvm_model *m, ptrdiff_t prefix_most, ptrdiff_t tokens_most);
/* n tokens in one step behind what the cache holds, which grows by them as in
 * kvm_model_forward; logits are not formed. The prefix must stay in the cache until
 * kvm_tape_backward. */
KVM_MUST kvm_status kvm_tape_record(kvm_tape *t, kvm_cache *cache, const int32_t *ids,
                                    ptrdiff_t n, kvm_err *err);

/* rows from .. from+n of the recorded tokens: logits (n,V) -> the gradient by them, in
 * place. Called once for each row, in order. */
typedef struct kvm_loss {
    kvm_status (*rows)(void *ctx, ptrdiff_t from, ptrdiff_t n, float *logits,
                       kvm_err *err);
    void *ctx;
} kvm_loss;
/* kvm_tape_backward - g, cleared for the cache's prefix, += the gradient of the loss by
 * the prefix's objects at point 3. May be run again with another loss. KVM_USAGE when
 * the cache does not stand behind the recorded tokens. */
KVM_MUST kvm_status kvm_tape_backward(kvm_tape *t, kvm_cache *cache,
                                      const kvm_loss *loss, kvm_gradients *g,
                                      kvm_err *err);

/* What a loss of their own makes of an indexer's scores. Row t is of the query at
 * position P + t, P tokens before the recorded ones, and column j of token j, or of the
 * j-th whole block of tokens where blocks are chosen; those that end behind the query
 * mean nothing and get no gradient. */
typedef struct kvm_tape_scores_loss {
    /* scores (n, units) -> the gradient by them, in place */
    kvm_status (*rows)(void *ctx, ptrdiff_t n, ptrdiff_t units, float *scores,
                       kvm_err *err);
    void *ctx;
    float *scores; /* room for n * kvm_tape_units */
} kvm_tape_scores_loss;
ptrdiff_t kvm_tape_units(const kvm_tape *t, ptrdiff_t object);
/* kvm_tape_scores - g += the gradient of such a loss by index keys at point 3 (object
 * is theirs) of the prefix, and by the gates beside them. What the recorded tokens
 * asked is a constant. */
KVM_MUST kvm_status kvm_tape_scores(kvm_tape *t, const kvm_cache *cache,
                                    ptrdiff_t object, const kvm_tape_scores_loss *loss,
                                    kvm_gradients *g, kvm_err *err);

/* kvm_model_pull - gradients by an object of tokens at point 3 -> at an earlier point,
 * in place.
 *   grad   in out (n, H*D)  of tokens first .. first+n-1
 *   rows   in     (n, H*D)  what was injected at that point; NULL where no norm lies
 *                           between
 * The transpose of what kvm_inject_rows does to rows. */
KVM_MUST kvm_status kvm_model_pull(const kvm_model *m, ptrdiff_t object, int point,
                                   ptrdiff_t first, ptrdiff_t n, const float *rows,
                                   float *grad, kvm_err *err);

/* kvm_model_pull_replay - gradients by a state that was replayed, and by the window
 * made with it -> by the inputs of the replay.
 *   rows     in  (n, replay)  all of them, from the prompt's first token
 *   dstate   in  (H*D) of the object, as kvm_gradients_view gives it
 *   dwindow  in  (H*D) of its layer's window; NULL: none
 *   grad     out (n, replay)
 * In segments: memory is a state for each 256 tokens and the activations of so many. */
KVM_MUST kvm_status kvm_model_pull_replay(const kvm_model *m, ptrdiff_t object,
                                          ptrdiff_t n, const float *rows,
                                          const float *dstate, const float *dwindow,
                                          float *grad, kvm_arena scratch, kvm_err *err);
/* bytes of scratch that it takes for n inputs, of whichever object takes the most */
size_t kvm_model_replay_bytes(const kvm_model *m, ptrdiff_t n);

#endif
