/* pretokenize.h - text to pieces, the way tokenizer.json's "pre_tokenizer" says.
 *
 * A pre-tokenizer is a list of steps; each cuts every piece of the step before. The
 * patterns of known families (pretokenizers.def) run as hand-written matchers, any
 * other through PCRE2; both give the same pieces (tests/golden/test_tokenizer.c). Text
 * is valid UTF-8 throughout. */
#ifndef KVM_MODELS_PRETOKENIZE_H
#define KVM_MODELS_PRETOKENIZE_H

#include "base/str.h"

/* A matcher: where the piece that begins at p (p < end) ends; it covers all text. */
typedef const unsigned char *kvm_piece_end(const unsigned char *classes,
                                           const unsigned char *p,
                                           const unsigned char *end);

/* Rows of pretokenizers.def: the pattern, its matcher, and what GGUF files, which carry
 * a name only, imply beside it. */
typedef struct kvm_pattern {
    const char *name;
    const char *gguf; /* names of `tokenizer.ggml.pre`, each between two commas */
    bool ignore_merges;
    bool nfc;
    bool digits_first; /* single digits are split off before the pattern */
    bool bos;          /* a text begins with bos unless the file says otherwise */
    const char *text;
    kvm_piece_end *match;
} kvm_pattern;
extern const kvm_pattern kvm_patterns[];
extern const ptrdiff_t kvm_patterns_n;
const kvm_pattern *kvm_pattern_by_text(kvm_str text); /* NULL: not a known one */
const kvm_pattern *kvm_pattern_by_name(const char *name);

typedef struct kvm_regex kvm_regex;

/* kvm_regex_new - compile a pattern written for the reference's Oniguruma: its classes
 * and escapes are spelt out for PCRE2. literal: the text itself is looked for. Freed by
 * keep's cleanup. KVM_FORMAT (place and PCRE2's reason), KVM_UNSUPPORTED for syntax
 * that the two engines read differently. */
KVM_MUST kvm_status kvm_regex_new(kvm_regex **re, kvm_arena *keep, kvm_str pattern,
                                  bool literal, kvm_arena scratch, kvm_err *err);
/* kvm_regex_text - what was handed to PCRE2, for messages and tests */
kvm_str kvm_regex_text(const kvm_regex *re);

typedef enum kvm_step_kind {
    KVM_STEP_MATCHER, /* cut where `match` says */
    KVM_STEP_REGEX,   /* cut at matches of `re` */
    KVM_STEP_DIGITS,  /* numbers apart from the rest */
    KVM_STEP_PREFIX   /* a space in front of a piece that has none */
} kvm_step_kind;

typedef struct kvm_step {
    kvm_step_kind kind;
    kvm_piece_end *match;
    kvm_regex *re;
    bool drop_match, drop_rest; /* regex: leave out what matched, or what did not */
    bool each;                  /* digits: every one a piece of its own */
    kvm_str source;             /* canonical text of the step, for the hash */
} kvm_step;

enum { KVM_STEPS_MAX = 16 };
typedef struct kvm_pretokenizer {
    const unsigned char *classes; /* unicode.h's table */
    kvm_step step[KVM_STEPS_MAX];
    int n;
} kvm_pretokenizer;

/* What one thread needs to run one; freed by keep's cleanup. */
typedef struct kvm_splitter kvm_splitter;
KVM_MUST kvm_status kvm_splitter_new(kvm_splitter **s, kvm_arena *keep,
                                     const kvm_pretokenizer *pre, kvm_err *err);
/* kvm_split - every piece of text (never an empty one), in order, to emit, whose first
 * failure ends it. Pieces borrow from text, or from a buffer that lives until emit
 * returns. */
typedef kvm_status kvm_emit(void *ctx, const unsigned char *p, ptrdiff_t n,
                            kvm_err *err);
KVM_MUST kvm_status kvm_split(kvm_splitter *s, kvm_str text, kvm_emit *emit, void *ctx,
                              kvm_err *err);

#endif
