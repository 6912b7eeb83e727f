/* calibration.h - the token sequences that both models of a pair are run over.
 *
 * From a calibration suite (one sequence per item, cut to `tokens`) or from a plain
 * text file (consecutive windows of `tokens`). Both models of a pair see the same ids:
 * that their tokenizers are equal is checked when the graph is made. */
#ifndef KVM_JOBS_CALIBRATION_H
#define KVM_JOBS_CALIBRATION_H

#include "models/tokenizer.h"

typedef struct kvm_calibration {
    ptrdiff_t sequences;
    ptrdiff_t
        *offset; /* (sequences+1): sequence s is ids[offset[s]] .. ids[offset[s+1]-1] */
    int32_t *ids;
    ptrdiff_t longest; /* tokens */
    char sha[65];      /* kvm_calibration_hash of what was read */
} kvm_calibration;

/* kvm_text_begin - the id that the tokenizer puts before a text, -1: none. Calibration
 * sequences and the prefixes of items begin with it, once: a model that was trained
 * with it keeps its attention sink there. */
KVM_MUST kvm_status kvm_text_begin(int32_t *bos, kvm_encoder *e, const kvm_tokenizer *t,
                                   kvm_arena scratch, kvm_err *err);
/* kvm_calibration_read - at most `sequences` of at most `tokens` ids each; sequences of
 * fewer than 2 tokens are left out. KVM_USAGE when nothing is left; KVM_FORMAT when a
 * plain text is no UTF-8, with the place of the first byte that is none. */
KVM_MUST kvm_status kvm_calibration_read(kvm_calibration *c, kvm_arena *keep,
                                         kvm_str path, const kvm_tokenizer *t,
                                         ptrdiff_t sequences, ptrdiff_t tokens,
                                         kvm_err *err);
/* kvm_calibration_count - how many sequences that would be, before anything is run over
 * them; fails as reading does. Of a plain text no more is tokenised than tells.
 * sha: kvm_calibration_hash of what was counted */
KVM_MUST kvm_status kvm_calibration_count(ptrdiff_t *found, char sha[65], kvm_str path,
                                          const kvm_tokenizer *t, ptrdiff_t sequences,
                                          ptrdiff_t tokens, kvm_err *err);
/* SHA-256 of what the text is made from (card and items, or the file) */
KVM_MUST kvm_status kvm_calibration_hash(char sha[65], kvm_str path, kvm_arena scratch,
                                         kvm_err *err);

/* Windows of the calibration ids, to refuse items that were fitted on. */
typedef struct kvm_overlap kvm_overlap;
enum { KVM_OVERLAP_TOKENS = 48 }; /* longer than any phrase two texts share by chance */
KVM_MUST kvm_status kvm_overlap_new(kvm_overlap **o, kvm_arena *keep,
                                    const kvm_calibration *c, kvm_err *err);
/* place of the first window of KVM_OVERLAP_TOKENS ids that also stands in the
 * calibration text, -1: none */
ptrdiff_t kvm_overlap_find(const kvm_overlap *o, const int32_t *ids, ptrdiff_t n);

#endif
