/* tokenizer_internal.h - what the parts of the tokenizer share.
 *
 *   tokenizer.c         open, look up, decode, hash, compare
 *   tokenizer_json.c      tokenizer.json          \
 *   tokenizer_files.c     vocab.json, merges.txt   \
 *   tokenizer_gguf.c      tokenizer.ggml.* keys     > fill a kvm_tokenizer
 *   tokenizer_tiktoken.c  tiktoken.model           /
 *   tokenizer_tekken.c    tekken.json             /
 *   tokenizer_config.c  the files beside it: bos, eos, stops, chat template
 *   tokenizer_added.c   finding added tokens in text
 *   tokenizer_nfc.c     normalization form C
 *   tokenizer_encode.c  text -> ids: added tokens, NFC, pieces (pretokenize.h), merging
 *                       (bpe.h) */
#ifndef KVM_MODELS_TOKENIZER_INTERNAL_H
#define KVM_MODELS_TOKENIZER_INTERNAL_H

#include "base/json.h"
#include "models/bpe.h"
#include "models/pretokenize.h"
#include "models/tokenizer.h"
#include "models/unicode.h"

typedef struct kvm_added {
    kvm_str content; /* as the file has it; decoding gives it back */
    kvm_str wanted;  /* what is looked for: content, in NFC when `normalized` */
    int32_t id;
    bool special;        /* left out by skip_specials, read as text by plain_specials */
    bool lstrip, rstrip; /* takes the white space before, after it */
    bool single_word;    /* only where no word character touches it */
    bool normalized;     /* looked for in the normalized text */
} kvm_added;

/* Added tokens sorted by `wanted`; first[c] .. first[c + 1] begin with byte c. */
typedef struct kvm_added_index {
    const kvm_added **by_wanted; /* (n) */
    ptrdiff_t n;
    int32_t first[257];
} kvm_added_index;

struct kvm_tokenizer {
    kvm_str file; /* for messages */
    kvm_bpe bpe;
    kvm_pretokenizer pre; /* its classes table serves the whole tokenizer */
    bool nfc;
    kvm_added *added; /* (n_added) in file order */
    ptrdiff_t n_added;
    kvm_added_index raw,
        normalized;    /* those of text as given, and of normalized text */
    int32_t *added_at; /* (size) index into added, -1: none */
    ptrdiff_t size;
    kvm_range *word; /* (n_word) Rust's \w; only when a token is single_word */
    ptrdiff_t n_word;
    int32_t *prefix, *suffix; /* what the post-processor puts around a text */
    ptrdiff_t n_prefix, n_suffix;
    int32_t bos, eos; /* -1: none */
    int32_t *stops;   /* (n_stops) */
    ptrdiff_t n_stops;
    kvm_str chat_template; /* Jinja, unread but for marks; empty: none */
    bool sliced;           /* long texts are encoded in parts, see tokenizer_encode.c */
    char hash[65];
};

/* The readers fill bpe, pre.step, nfc, added (content, id and flags), prefix, suffix;
 * bos and eos where the file or its kind says them.
 * tmp holds documents and goes when the tokenizer stands. */
KVM_MUST kvm_status kvm_tokenizer__from_files(kvm_tokenizer *t, kvm_arena *keep,
                                              kvm_str folder, kvm_arena *tmp,
                                              kvm_err *err);
KVM_MUST kvm_status kvm_tokenizer__from_gguf(kvm_tokenizer *t, kvm_arena *keep,
                                             kvm_str path, kvm_arena *tmp,
                                             kvm_err *err);
KVM_MUST kvm_status kvm_tokenizer__read_json(kvm_tokenizer *t, kvm_arena *keep,
                                             kvm_jat root, kvm_arena *tmp,
                                             kvm_err *err);
KVM_MUST kvm_status kvm_tokenizer__from_tiktoken(kvm_tokenizer *t, kvm_arena *keep,
                                                 kvm_str folder, kvm_arena *tmp,
                                                 kvm_err *err);
/* text: of tiktoken.model, called file in messages; config: tokenizer_config.json */
KVM_MUST kvm_status kvm_tokenizer__read_tiktoken(kvm_tokenizer *t, kvm_arena *keep,
                                                 kvm_str text, const char *file,
                                                 kvm_jat config, kvm_arena *tmp,
                                                 kvm_err *err);
/* the document of a file with tekken in its name, as Mistral's code finds it */
KVM_MUST kvm_status kvm_tokenizer__tekken_root(kvm_jat *root, kvm_arena *tmp,
                                               kvm_str path, kvm_err *err);
/* tekken.json and tokenizer.json are told apart by what they hold */
bool kvm_tokenizer__is_tekken(kvm_jat root);
KVM_MUST kvm_status kvm_tokenizer__read_tekken(kvm_tokenizer *t, kvm_arena *keep,
                                               kvm_jat root, kvm_arena *tmp,
                                               kvm_err *err);
/* a tokenizer.json or tekken.json from bytes, for tests and fuzzers; name is for
 * messages */
KVM_MUST kvm_status kvm_tokenizer__parse_json(kvm_tokenizer **t, kvm_arena *keep,
                                              kvm_str text, kvm_str name, kvm_err *err);
/* likewise a tiktoken.model and the tokenizer_config.json beside it */
KVM_MUST kvm_status kvm_tokenizer__parse_tiktoken(kvm_tokenizer **t, kvm_arena *keep,
                                                  kvm_str text, kvm_str config,
                                                  kvm_str name, kvm_err *err);

/* Pieces that the readers share. */
/* text in base64 to bytes; -1: it is not, or more than a token may have */
ptrdiff_t kvm_tokenizer__base64(char out[KVM_BPE_TOKEN_MAX], kvm_str text);
KVM_MUST kvm_status kvm_tokenizer__vocab(kvm_tokenizer *t, kvm_arena *keep,
                                         kvm_jat vocab, kvm_err *err);
/* "left right" of a merges.txt line, a GGUF or an old tokenizer.json */
KVM_MUST kvm_status kvm_tokenizer__merge_text(kvm_tokenizer *t, kvm_str pair,
                                              kvm_arena scratch, kvm_err *err);
KVM_MUST kvm_status kvm_tokenizer__begin_added(kvm_tokenizer *t, kvm_arena *keep,
                                               ptrdiff_t n, kvm_err *err);
/* kvm_tokenizer__add - a with this id; copies a->content. KVM_FORMAT when the id is out
 * of range or belongs to another text, or the text to another id. */
KVM_MUST kvm_status kvm_tokenizer__add(kvm_tokenizer *t, kvm_arena *keep,
                                       const kvm_added *a, int64_t id,
                                       kvm_arena scratch, kvm_err *err);
KVM_MUST kvm_status kvm_tokenizer__add_json(kvm_tokenizer *t, kvm_arena *keep,
                                            kvm_jat token, int64_t id, kvm_arena *tmp,
                                            kvm_err *err);
/* append a step; for regex steps `pattern` is compiled unless a matcher knows it */
KVM_MUST kvm_status kvm_tokenizer__step(kvm_tokenizer *t, kvm_arena *keep,
                                        kvm_step step, kvm_str pattern, bool literal,
                                        kvm_arena scratch, kvm_err *err);

/* tokenizer_config.c: folder's tokenizer_config.json, config.json,
 * generation_config.json, chat_template.jinja, each optional */
KVM_MUST kvm_status kvm_tokenizer__config(kvm_tokenizer *t, kvm_arena *keep,
                                          kvm_str folder, kvm_arena *tmp, kvm_err *err);
/* stops from eos and from well-known end-of-turn tokens, beside what is there
 * already */
KVM_MUST kvm_status kvm_tokenizer__add_stop(kvm_tokenizer *t, kvm_arena *keep,
                                            int64_t id, kvm_err *err);
KVM_MUST kvm_status kvm_tokenizer__known_stops(kvm_tokenizer *t, kvm_arena *keep,
                                               kvm_err *err);
/* id of a token by its text, added or not; -1: none */
int32_t kvm_tokenizer__id(const kvm_tokenizer *t, kvm_str text, kvm_arena scratch);

/* tokenizer_added.c */
KVM_MUST kvm_status kvm_tokenizer__index_added(kvm_tokenizer *t, kvm_arena *keep,
                                               kvm_err *err);
typedef struct kvm_added_hit {
    const kvm_added *token; /* NULL: none from here to the end */
    ptrdiff_t begin, end;   /* of its text */
} kvm_added_hit;
/* the leftmost, and there the longest, token at or after `from` */
kvm_added_hit kvm_added_find(const kvm_added_index *x, kvm_str text, ptrdiff_t from);
bool kvm_tokenizer__is_word(const kvm_tokenizer *t, uint32_t c);

/* tokenizer_nfc.c: buffers on the heap that are used again and again */
typedef struct kvm_nfc {
    kvm_text out;
    int32_t *codes;
    ptrdiff_t cap;
} kvm_nfc;
/* text in NFC as the reference has it: text itself when it is so already, else
 * n->out */
KVM_MUST kvm_status kvm_nfc_apply(kvm_nfc *n, const unsigned char *classes,
                                  kvm_str text, kvm_str *out, kvm_err *err);
void kvm_nfc_free(kvm_nfc *n);

#endif
