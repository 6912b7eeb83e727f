/* tokenizer.h - text to token ids and back, byte for byte as the reference libraries do
 * it.
 *
 * Byte-level BPE from a folder's tokenizer.json (or vocab.json + merges.txt, or
 * tiktoken.model, or tekken.json) or from the tables inside a GGUF file. A tokenizer is
 * immutable once loaded and may be shared by threads; each thread encodes with a
 * kvm_encoder of its own (regex match data, merge heap, piece cache).
 *
 * The reference is the `tokenizers` library; for tiktoken.model and tekken.json it is
 * `tiktoken` within the code that ships with those files. Known deviations, each on
 * purpose: decoding gives an added token back as it is written (the library maps its
 * letters through the byte alphabet, so that "é" would turn into one byte); patterns
 * other than those of pretokenizers.def under (?i:) do not fold one character to
 * several (ß to ss). A byte that the vocabulary lacks is left out, or becomes unk, as
 * in the library. tekken.json: special tokens are found in text, which Mistral's own
 * code never does. */
#ifndef KVM_MODELS_TOKENIZER_H
#define KVM_MODELS_TOKENIZER_H

#include <stdint.h>

#include "base/str.h"

typedef struct kvm_tokenizer kvm_tokenizer;
typedef struct kvm_encoder kvm_encoder;

/* kvm_tokenizer_open - path is a checkpoint folder, a tokenizer.json, a tiktoken.model,
 * a tekken.json, or a .gguf file. A folder is searched in the order named above.
 * KVM_FORMAT names file and entry; KVM_UNSUPPORTED for SentencePiece and friends, with
 * the reason. */
KVM_MUST kvm_status kvm_tokenizer_open(kvm_tokenizer **t, kvm_arena *keep, kvm_str path,
                                       kvm_err *err);

ptrdiff_t kvm_tokenizer_size(const kvm_tokenizer *t); /* largest id + 1 */
/* raw bytes of a token; borrows; at NULL: no token has this id */
kvm_str kvm_tokenizer_piece(const kvm_tokenizer *t, int32_t id);
/* id of an added token by its text, -1: there is none */
int32_t kvm_tokenizer_special(const kvm_tokenizer *t, kvm_str content);
int32_t kvm_tokenizer_bos(const kvm_tokenizer *t); /* -1: none */
int32_t kvm_tokenizer_eos(const kvm_tokenizer *t); /* -1: none */
bool kvm_tokenizer_is_special(const kvm_tokenizer *t, int32_t id);
/* an end-of-turn or end-of-text token of the checkpoint's config, or a well-known
 * one */
bool kvm_tokenizer_stops(const kvm_tokenizer *t, int32_t id);
/* the Jinja text that came with the tokenizer; borrows; empty: none. It is never run,
 * only told apart (chat.h) */
kvm_str kvm_tokenizer_chat_template(const kvm_tokenizer *t);
/* SHA-256 over the canonical content (pieces by id, merges, added tokens, patterns):
 * equal hash = equal ids */
const char *kvm_tokenizer_hash(const kvm_tokenizer *t);
/* kvm_tokenizer_differ - KVM_OK when equal; else KVM_MISMATCH naming the first
 * differing entry */
KVM_MUST kvm_status kvm_tokenizer_differ(const kvm_tokenizer *a, const kvm_tokenizer *b,
                                         kvm_err *err);

KVM_MUST kvm_status kvm_encoder_new(kvm_encoder **e, kvm_arena *keep,
                                    const kvm_tokenizer *t, kvm_err *err);
typedef struct kvm_encode_options {
    bool add_bos; /* put around the text what the tokenizer's post_processor does:
                          * begin of text, and what may stand behind */
    bool plain_specials; /* read special tokens inside text as ordinary text; of a
                          * tiktoken.model or tekken.json all added tokens */
} kvm_encode_options;
/* kvm_encode - ids in keep; o NULL: neither option. Invalid UTF-8 becomes U+FFFD as the
 * reference's lossy decoding does. KVM_RANGE when a pattern of the file's own gives
 * up. */
KVM_MUST kvm_status kvm_encode(kvm_encoder *e, kvm_str text,
                               const kvm_encode_options *o, kvm_arena *keep,
                               int32_t **ids, ptrdiff_t *n, kvm_err *err);
/* kvm_decode - bytes in keep (may end inside a UTF-8 character); skip_specials drops
 * added specials. KVM_RANGE for an id that no token has. */
KVM_MUST kvm_status kvm_decode(const kvm_tokenizer *t, const int32_t *ids, ptrdiff_t n,
                               bool skip_specials, kvm_arena *keep, kvm_str *out,
                               kvm_err *err);

#endif
