/* params.h - parameters that a pair's spec sets and a job kind reads, each once: the
 * rows stand in the spec's section (spec.c) and in the kind's own table, which adds
 * what the graph fills in. (The fit's whole table is the spec's section:
 * kvm_fit_params.) */
#ifndef KVM_JOBS_PARAMS_H
#define KVM_JOBS_PARAMS_H

#include "base/yaml.h"
#include "jobs/job.h"
#include "kernels/tensor.h"

/* clang-format off */
#define KVM_MLP_PARAMS                                                                 \
    {"hidden", KVM_FIELD_INT, false, "width of both hidden layers (1024)", NULL, 0},   \
    {"epochs", KVM_FIELD_INT, false, "passes over the fit rows (20)", NULL, 0},        \
    {"batch", KVM_FIELD_INT, false, "rows per step (4096)", NULL, 0},                  \
    {"rate", KVM_FIELD_NUM, false, "Adam's learning rate (0.001)", NULL, 0},           \
    {"per_head", KVM_FIELD_BOOL, false,                                                \
     "a network for each head of a target layer, as the paper (false: one for the "    \
     "layer)", NULL, 0},                                                               \
    {"dtype", KVM_FIELD_STR, false, "weights in the file: f32 or bf16 (f32)", NULL, 0}

#define KVM_EVALUATE_PARAMS                                                            \
    {"items", KVM_FIELD_INT, false, "items per suite, spread evenly (0: all)", NULL,   \
     0},                                                                               \
    {"attention_items", KVM_FIELD_INT, false,                                          \
     "items of a perplexity suite whose attention outputs are compared (8)", NULL, 0}

#define KVM_DISTILL_PARAMS                                                             \
    {"steps", KVM_FIELD_INT, false, "updates (400)", NULL, 0},                         \
    {"batch", KVM_FIELD_INT, false, "lessons per update (8)", NULL, 0},                \
    {"after", KVM_FIELD_INT, false,                                                    \
     "tokens of each sequence that follow the prefix and are learned from (64)", NULL, \
     0},                                                                               \
    {"prefix", KVM_FIELD_INT, false, "longest prefix in tokens (all before those)",    \
     NULL, 0},                                                                         \
    {"rate", KVM_FIELD_NUM, false, "AdamW's learning rate (0.0003)", NULL, 0},         \
    {"warmup", KVM_FIELD_INT, false, "updates until it is reached (20); then a cosine",\
     NULL, 0},                                                                         \
    {"decay", KVM_FIELD_NUM, false, "AdamW's weight decay (0)", NULL, 0},              \
    {"clip", KVM_FIELD_NUM, false, "largest norm of a gradient, 0: none (1)", NULL, 0},\
    {"validate", KVM_FIELD_INT, false, "updates between validations (50)", NULL, 0},   \
    {"lessons", KVM_FIELD_INT, false, "at most so many sequences (0: all)", NULL, 0},  \
    {"native_top", KVM_FIELD_INT, false,                                               \
     "likeliest tokens that are kept of what the target says, the others together "    \
     "(0: all up to 16384, else 256)", NULL, 0},                                       \
    {"memory_mib", KVM_FIELD_INT, false, "that prepared lessons may take (4096)",      \
     NULL, 0},                                                                         \
    {"seed", KVM_FIELD_INT, false, "of the order of lessons (the spec's)", NULL, 0},   \
    {"dtype", KVM_FIELD_STR, false, "weights in the file: f32 or bf16 (f32)", NULL, 0}

#define KVM_TIMING_PARAMS                                                              \
    {"lengths", KVM_FIELD_LIST, false, "prefix lengths in tokens (64 ... 32768)",      \
     NULL, KVM_FIELD_INT},                                                             \
    {"rounds", KVM_FIELD_INT, false, "timed rounds per length (10)", NULL, 0},         \
    {"warmups", KVM_FIELD_INT, false, "untimed rounds per length (2)", NULL, 0},       \
    {"seconds", KVM_FIELD_NUM, false,                                                  \
     "stop a length's rounds after so long, not before 3 (0: never)", NULL, 0}

#define KVM_ANALYSE_PARAMS                                                             \
    {"items", KVM_FIELD_INT, false, "items per suite, spread evenly (0: all)", NULL,   \
     0},                                                                               \
    {"tails", KVM_FIELD_LIST, false,                                                   \
     "shares of the prefix that the target reads itself (0.05, 0.1, 0.25, 0.5)", NULL, \
     KVM_FIELD_NUM}

#define KVM_ALTERNATE_PARAMS                                                           \
    {"items", KVM_FIELD_INT, false, "dialogues, spread evenly (0: all)", NULL, 0},     \
    {"turns", KVM_FIELD_INT, false, "the first turns of each that are asked (5)",      \
     NULL, 0},                                                                         \
    {"refresh", KVM_FIELD_INT, false,                                                  \
     "the condition of that name re-reads once after this turn (4; of fewer than 5 "   \
     "turns, the last but one)", NULL, 0}

/* the calibration text, as kvm_held_tokens_read reads it; filled in by the graph */
#define KVM_TEXT_PARAMS(required)                                                      \
    {"text", KVM_FIELD_STR, required, "hash of the calibration text", NULL, 0},        \
    {"text_path", KVM_FIELD_STR, required, "the calibration text", NULL, 0},           \
    {"sequences", KVM_FIELD_INT, required, "calibration sequences", NULL, 0},          \
    {"tokens", KVM_FIELD_INT, required, "tokens per calibration sequence", NULL, 0}

/* both models, as kvm_job_model opens them; filled in by the graph */
#define KVM_PAIR_PARAMS                                                                \
    {"source", KVM_FIELD_STR, true, "fingerprint", NULL, 0},                           \
    {"source_path", KVM_FIELD_STR, true, "checkpoint", NULL, 0},                       \
    {"target", KVM_FIELD_STR, true, "fingerprint", NULL, 0},                           \
    {"target_path", KVM_FIELD_STR, true, "checkpoint", NULL, 0}

/* the text whose sequences are lessons (lessons.h), and how they are split; filled in
 * by the graph */
#define KVM_LESSON_PARAMS                                                              \
    KVM_TEXT_PARAMS(true),                                                             \
    {"split_seed", KVM_FIELD_INT, true, "of the split by sequence", NULL, 0},          \
    {"held_out", KVM_FIELD_NUM, true,                                                  \
     "fraction of the sequences that is kept from the fit", NULL, 0}

/* the suite, and the text that its items must not stand in, as kvm_scored_open reads
 * them; filled in by the graph */
#define KVM_SCORED_PARAMS                                                              \
    {"suite", KVM_FIELD_STR, true, "hash of card and items", NULL, 0},                 \
    {"suite_path", KVM_FIELD_STR, true, "the card", NULL, 0},                          \
    {"text", KVM_FIELD_STR, true,                                                      \
     "hash of the calibration text, to refuse overlap", NULL, 0},                      \
    {"text_path", KVM_FIELD_STR, true, "the calibration text", NULL, 0},               \
    {"sequences", KVM_FIELD_INT, true, "calibration sequences", NULL, 0},              \
    {"tokens", KVM_FIELD_INT, true, "tokens per calibration sequence", NULL, 0},       \
    {"as", KVM_FIELD_STR, false, "the suite's name in samples, when not its own",      \
     NULL, 0}
/* clang-format on */

/* kvm_param_word - "key" of the parameters is one of two words; absent: the first.
 * KVM_USAGE names the place */
KVM_MUST kvm_status kvm_param_word(kvm_job *j, const char *key, const char *first,
                                   const char *second, bool *is_second, kvm_err *err);
/* kvm_param_dtype - "dtype": how rows or weights are stored, f32 (when absent) or
 * bf16 */
KVM_MUST kvm_status kvm_param_dtype(kvm_job *j, kvm_dtype *d, kvm_err *err);

#endif
