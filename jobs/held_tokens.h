/* held_tokens.h - the tokens of a capture's held-out rows, and how many of them can be
 * read out of the rows again. */
#ifndef KVM_JOBS_HELD_TOKENS_H
#define KVM_JOBS_HELD_TOKENS_H

#include "jobs/job.h"
#include "translators/identity.h"

typedef struct kvm_held_tokens {
    const ptrdiff_t *index; /* (n) rows of the capture */
    const int32_t *ids;     /* (n) their tokens */
    ptrdiff_t n;
} kvm_held_tokens;

/* kvm_held_tokens_read - of the rows that seed and fraction hold out (kvm_rows_split),
 * by the calibration text that the job's KVM_TEXT_PARAMS name; in the job's arena.
 * Captures that may be paired have the same. KVM_MISMATCH when the text is another than
 * the job was made for, or shorter than the capture. */
KVM_MUST kvm_status kvm_held_tokens_read(kvm_held_tokens *h, kvm_job *j,
                                         const kvm_rows *r, const kvm_tokenizer *t,
                                         uint64_t seed, double fraction, kvm_err *err);

/* What reads a token: a codebook, of rows as they stand, or as a map has made them. */
typedef struct kvm_token_reader {
    const kvm_codebook *book;
    const kvm_weight *map; /* (outputs, row); NULL: none */
    ptrdiff_t outputs;
} kvm_token_reader;

/* kvm_held_tokens_right - how many of them are read right out of a space's rows of one
 * layer */
KVM_MUST kvm_status kvm_held_tokens_right(const kvm_held_tokens *h, kvm_compute *c,
                                          const kvm_rows *r, kvm_space space,
                                          ptrdiff_t layer, kvm_token_reader by,
                                          ptrdiff_t *right, kvm_arena scratch,
                                          kvm_err *err);

#endif
