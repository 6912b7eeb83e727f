/* moments.h - the numbers behind every fit: second moments of captured rows.
 *
 * One Gram file per capture, shared by all its partners; one cross file per pair of
 * captures, read in either direction. Everything is centred and comes three times, for
 * the splits by sequence of rows.h: fit, choose, held. Sums are fp64 over fp32 products
 * of blocks of KVM_BLOCK_ROWS rows, each row less a provisional mean (its split's first
 * block's); the true mean is put in at the end (Chan, Golub & LeVeque 1979).
 *
 * A file holds blocks: products of the rows of one space with those of another, or of
 * one with itself. Features of a space are all layers' rows side by side, cut into
 * panels of whole layers (at most KVM_PANEL features, at least one layer). Blocks are
 * stored as tiles panel x panel; a memory budget decides how many panels are summed in
 * one pass over the rows, never what is summed in which order, so any budget gives the
 * same bits.
 *
 * File: safetensors, metadata format=kvmill.moments.v3, kind=gram|cross, split.seed,
 * split.fraction, blocks (comma-separated names), a.* (and b.* of a cross file) =
 * capture hash, model, model_name, shapes (meta.h); then per block b, which is named
 * "K" when it is of one space and "K+token" when of two, and split p, all F64:
 *   rows I64 (3): rows of each split
 *   mean.a.<b>.<p> (Fa), mean.b.<b>.<p> (Fb)
 *   gram.<b>.<p>.<i>.<j> (Bi,Bj)                   sum of (x-mean)(y-mean)^T; i <= j in
 *                                                  a block of one space
 *   cross.<b>.<p>.<i>.<j> (Bi,Bj) of a x b
 *   square.a.<b>.<p>, square.b.<b>.<p>             sums of squares about the mean
 * mean.b and both squares are not there in a Gram's block of one space. */
#ifndef KVM_TRANSLATORS_MOMENTS_H
#define KVM_TRANSLATORS_MOMENTS_H

#include "translators/rows.h"

enum { KVM_BLOCK_ROWS = 4096, KVM_PANEL = 1024 };

/* Products of a's rows of space `a` with b's of space `b`; in a Gram file, where both
 * are of one capture, a <= b. */
typedef struct kvm_block_id {
    kvm_space a, b;
} kvm_block_id;
enum { KVM_BLOCKS = KVM_SPACES * KVM_SPACES };

typedef struct kvm_moments_options {
    uint64_t seed;               /* of the split */
    double fraction;             /* kept from the fit; 0: 0.2 */
    size_t budget;               /* bytes of sums and row blocks; 0: 1 GiB */
    const kvm_block_id *blocks;  /* (block_count); NULL: each space that is on both */
    ptrdiff_t block_count;       /* sides with itself */
    const char *hash_a, *hash_b; /* of the capture files; NULL: computed here */
    int part, parts;        /* sum only this share of the file; parts 0: all of it */
    kvm_progress *progress; /* NULL */
} kvm_moments_options;

/* Smallest budget that kvm_moments_gram / _cross (b NULL / not NULL) can work in, as
 * far as options say what is summed. */
size_t kvm_moments_least_budget(const kvm_rows *a, const kvm_rows *b,
                                const kvm_moments_options *o);

/* kvm_moments_gram, kvm_moments_cross - sum and publish `path`. KVM_RANGE when the
 * budget is below the least (naming both), KVM_NAN names space and layer, KVM_MISMATCH
 * when the captures are no pair, KVM_RANGE when a block is of rows that a capture does
 * not hold. sha_hex may be NULL. O(N F^2). */
KVM_MUST kvm_status kvm_moments_gram(kvm_compute *c, const kvm_rows *a,
                                     const kvm_moments_options *o, kvm_str path,
                                     char sha_hex[65], kvm_err *err);
KVM_MUST kvm_status kvm_moments_cross(kvm_compute *c, const kvm_rows *a,
                                      const kvm_rows *b, const kvm_moments_options *o,
                                      kvm_str path, char sha_hex[65], kvm_err *err);

/* The sums may be dealt out: with options' parts > 1 kvm_moments_gram and _cross write
 * one share of them, bare, and kvm_moments_join puts the shares of all parts together
 * into the file that one call writes, bit for bit. A share is a run of rows of tiles:
 * each part reads all rows of the captures, but holds and multiplies its tiles
 * alone. */
/* kvm_moments_join - share (options' parts) paths in their order; b NULL: of one
 * capture. KVM_MISMATCH when a share has not the length that is its own. */
KVM_MUST kvm_status kvm_moments_join(const kvm_rows *a, const kvm_rows *b,
                                     const kvm_moments_options *o, const kvm_str *share,
                                     kvm_str path, char sha_hex[65], kvm_err *err);

/* ---- reading: Gram(S) and Cross(S,T) of one ordered pair ---- */

typedef struct kvm_moments kvm_moments;
typedef enum kvm_side { KVM_SOURCE, KVM_TARGET } kvm_side;

/* kvm_moments_open - the source is the capture that the Gram file is of; a cross file
 * made the other way round is read transposed. own: the target's Gram file, which is
 * needed where features are the target's (token embeddings); at NULL: there are none.
 * KVM_MISMATCH when they do not belong together. */
KVM_MUST kvm_status kvm_moments_open(kvm_moments **m, kvm_arena *keep, kvm_str gram,
                                     kvm_str cross, kvm_str own, kvm_err *err);
kvm_str kvm_moments_model(const kvm_moments *m, kvm_side side); /* fingerprint */
kvm_str kvm_moments_model_name(const kvm_moments *m, kvm_side side);
kvm_str kvm_moments_hash(const kvm_moments *m); /* over both files' metadata and sums */
void kvm_moments_split(const kvm_moments *m, uint64_t *seed, double *fraction);
const kvm_shapes *kvm_moments_shapes(const kvm_moments *m, kvm_side side);
ptrdiff_t kvm_moments_layers(const kvm_moments *m, kvm_side side);
kvm_row_shape kvm_moments_shape(const kvm_moments *m, kvm_side side, kvm_space s,
                                ptrdiff_t layer);
ptrdiff_t kvm_moments_rows(const kvm_moments *m, kvm_split split);

/* A layer's rows of one side, and a choice of them in this order: all heads, or one
 * head of each. */
typedef struct kvm_feature {
    kvm_side side;
    kvm_space space;
    ptrdiff_t layer;
} kvm_feature;
typedef struct kvm_features {
    const kvm_feature *item; /* (count) */
    ptrdiff_t count;
    ptrdiff_t head; /* -1: all heads of each item; else this head alone */
} kvm_features;
ptrdiff_t kvm_features_width(const kvm_moments *m, kvm_features x);
/* what is to be predicted: rows of a layer of the target */
typedef struct kvm_output {
    kvm_space space;
    ptrdiff_t layer;
} kvm_output;
/* kvm_moments_has - KVM_OK when the files hold every product of these features with
 * each other and with the output; KVM_MISMATCH names the first that they lack. The
 * functions below may be called after it alone. */
KVM_MUST kvm_status kvm_moments_has(const kvm_moments *m, kvm_features x, kvm_output y,
                                    kvm_err *err);

/* Gather, into caller's fp64 arrays. Of the output: entries [from, from+p). */
void kvm_moments_get_gram(const kvm_moments *m, kvm_split split, kvm_features x,
                          double *g /* (f,f) */);
void kvm_moments_get_cross(const kvm_moments *m, kvm_split split, kvm_features x,
                           kvm_output y, ptrdiff_t from, ptrdiff_t p,
                           double *b /* (f,p) */, ptrdiff_t ld);
void kvm_moments_get_mean(const kvm_moments *m, kvm_split split, kvm_features x,
                          double *mean /* (f) */);
/* sums of squares of the output's entries about their mean, and that mean; each may be
 * NULL */
void kvm_moments_get_target(const kvm_moments *m, kvm_split split, kvm_output y,
                            ptrdiff_t from, ptrdiff_t p, double *square, double *mean);

#endif
