/* scoring.h - how close a generated answer is to the accepted ones.
 *
 * Exact match and F1 normalise as the SQuAD and CoQA scorers do: ASCII lower case,
 * punctuation deleted ("3.5" is the word 35, "U.S." is us), the articles a, an, the
 * dropped, white space folded. Containment takes punctuation for a space, so that
 * "code:7314." still holds 7314.
 * Scores are in [0,1]; with several accepted answers the best counts. */
#ifndef KVM_JOBS_SCORING_H
#define KVM_JOBS_SCORING_H

#include "base/str.h"

typedef struct kvm_answer_score {
    double exact_match; /* 1 when the normalised texts are equal */
    double f1;          /* harmonic mean of word precision and recall, as bags */
    /* 1 when the accepted answer's words stand in the text, in a row */
    double gold_in_answer;
} kvm_answer_score;

KVM_MUST kvm_status kvm_score_answer(kvm_answer_score *score, kvm_str text,
                                     const kvm_str *accepted, ptrdiff_t n,
                                     kvm_arena scratch, kvm_err *err);

/* KL(p || q) in nats between softmax(p) and softmax(q), fp64 inside; (V) each */
double kvm_score_kl(const float *p, const float *q, ptrdiff_t vocab);
ptrdiff_t kvm_score_argmax(const float *logits,
                           ptrdiff_t vocab); /* lowest index on ties */

#endif
