/* bpe.h - byte-level byte-pair encoding: one piece of text to token ids.
 *
 * A piece starts as one symbol per byte; the adjacent pair of lowest rank is merged,
 * the leftmost among equals, until no pair has a rank. Short pieces scan an array, long
 * ones keep a heap, so that a run of n equal bytes costs O(n log n).
 *
 * Where the ranks come from: a list of merges, or the tokens themselves (tiktoken): two
 * neighbours merge when their concatenation is a token, and its id is the rank. The
 * second is turned into a table of pairs too, one row for each way to cut a token in
 * two tokens; all rows of a token share its rank.
 *
 * Token texts come in the GPT-2 alphabet (each byte a printable character) and are kept
 * as raw bytes. A text with a character outside that alphabet can never come out of
 * merging; it is kept as it is ("verbatim"), for decoding only. */
#ifndef KVM_MODELS_BPE_H
#define KVM_MODELS_BPE_H

#include <stdint.h>

#include "base/str.h"

typedef struct kvm_merge {
    int32_t left, right, made;
} kvm_merge;

typedef struct kvm_bpe_pair { /* a row of the open-addressing table of merges */
    uint64_t key;             /* left << 32 | right; all ones: empty */
    uint32_t rank;
    int32_t made;
} kvm_bpe_pair;

typedef struct kvm_bpe {
    kvm_str *piece;          /* (size) raw bytes; at NULL: no token has this id */
    unsigned char *verbatim; /* (size) */
    ptrdiff_t size;          /* largest id + 1 */
    ptrdiff_t limit;         /* ids from here on are refused */
    int32_t *by_text;        /* (text_mask + 1) ids by text, -1 empty */
    uint64_t text_mask;
    kvm_merge *merges; /* (n_merges) by rank, or by id and cut when by_rank */
    ptrdiff_t n_merges;
    kvm_bpe_pair *pairs; /* (pair_mask + 1) */
    uint64_t pair_mask;
    int32_t byte_id[256]; /* -1: the vocabulary lacks this byte */
    int32_t unk;          /* stands for missing bytes; -1: they are left out */
    bool fuse_unk;        /* one unk for a run of missing bytes */
    bool ignore_merges;   /* a piece that is a token as a whole is that token */
    bool by_rank;         /* ranks are those of tokens, not of merges */
} kvm_bpe;

/* Building, in this order; all memory in keep. */
KVM_MUST kvm_status kvm_bpe_begin(kvm_bpe *b, kvm_arena *keep, ptrdiff_t pieces,
                                  kvm_err *err);
/* kvm_bpe_add - the token `text` (in the GPT-2 alphabet, or verbatim when it is not).
 * KVM_FORMAT for an id out of range or taken and for a text that is there already. */
KVM_MUST kvm_status kvm_bpe_add(kvm_bpe *b, kvm_arena *keep, int64_t id, kvm_str text,
                                kvm_err *err);
/* kvm_bpe_add_raw - the token of these bytes; else as kvm_bpe_add */
KVM_MUST kvm_status kvm_bpe_add_raw(kvm_bpe *b, kvm_arena *keep, int64_t id,
                                    kvm_str bytes, kvm_err *err);
KVM_MUST kvm_status kvm_bpe_begin_merges(kvm_bpe *b, kvm_arena *keep, ptrdiff_t merges,
                                         kvm_err *err);
/* kvm_bpe_add_merge - the next rank. KVM_FORMAT when a part or the whole is no
 * token. */
KVM_MUST kvm_status kvm_bpe_add_merge(kvm_bpe *b, kvm_str left, kvm_str right,
                                      kvm_arena scratch, kvm_err *err);
/* kvm_bpe_end - fill byte_id */
void kvm_bpe_end(kvm_bpe *b);
/* kvm_bpe_end_by_rank - instead of merges and kvm_bpe_end: ids are the ranks.
 * KVM_FORMAT for a single byte that is no token. Finding the cuts takes time with the
 * square of a token's length: tokens added have at most KVM_BPE_TOKEN_MAX bytes. */
enum { KVM_BPE_TOKEN_MAX = 2048 };
KVM_MUST kvm_status kvm_bpe_end_by_rank(kvm_bpe *b, kvm_arena *keep, kvm_err *err);

/* kvm_bpe_find - id of a token by its text as the file writes it, -1 when there is
 * none */
int32_t kvm_bpe_find(const kvm_bpe *b, kvm_str text, kvm_arena scratch);

/* What one thread needs to encode: buffers on the heap that grow with the longest
 * piece, and a cache of short pieces. */
typedef struct kvm_bpe_work kvm_bpe_work;
KVM_MUST kvm_status kvm_bpe_work_new(kvm_bpe_work **w, kvm_arena *keep, kvm_err *err);

/* kvm_bpe_encode - append the ids of piece p (n > 0 bytes) to out, which has room for
 * n.
 * *made: how many. KVM_NOMEM, KVM_RANGE (a piece of 1 GiB and more). */
KVM_MUST kvm_status kvm_bpe_encode(const kvm_bpe *b, kvm_bpe_work *w,
                                   const unsigned char *p, ptrdiff_t n, int32_t *out,
                                   ptrdiff_t *made, kvm_err *err);

#endif
