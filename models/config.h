/* config.h - what a checkpoint says about its shape, in one form.
 *
 * Hugging Face's config.json (what wrappers nest, old and new rope dialects,
 * layer_types and their aliases) and the keys of a GGUF file end in the same struct;
 * every number is checked for range here, so that products of a few of them cannot
 * overflow later. */
#ifndef KVM_MODELS_CONFIG_H
#define KVM_MODELS_CONFIG_H

#include "base/json.h"
#include "models/gguf_meta.h"

typedef enum kvm_layer_id { /* rows of layer_kinds.def */
                            KVM_LAYER_NONE,
#define X(NAME, name, what) KVM_LAYER_##NAME,
#include "models/layer_kinds.def"
#undef X
} kvm_layer_id;

typedef enum kvm_residual_id { /* rows of residual_kinds.def */
#define X(NAME, name, what) KVM_RESIDUAL_##NAME,
#include "models/residual_kinds.def"
#undef X
                               KVM_RESIDUAL_KINDS
} kvm_residual_id;

typedef struct kvm_family { /* a row of families.def */
    const char *name, *gguf;
    kvm_layer_id mixer, ffn;  /* what a block is built of, */
    kvm_layer_id moe;         /* and the second half of those that have experts */
    kvm_layer_id recurrent;   /* and the mixer of those that keep a state */
    kvm_residual_id residual; /* what blocks add to */
    bool permuted, qkv_bias, qk_norm, tempered, windowed, scaled, sigmoid;
    bool indexed, index_interleaved;
    bool gated, plus_one, unrotated, one_based;
    bool single, squared, pooled;
    double eps, theta;
    double partial;  /* share of a head that is rotated; 0: all of it */
    double lora_eps; /* of the norms inside MLA; 0: rms_norm_eps */
    double lower_bound, swiglu_limit; /* 0: neither is read */
} kvm_family;
extern const kvm_family kvm_families[];
extern const ptrdiff_t kvm_families_count;

typedef enum kvm_rope_kind {
    KVM_ROPE_DEFAULT,
    KVM_ROPE_LINEAR,
    KVM_ROPE_LLAMA3,
    KVM_ROPE_YARN
} kvm_rope_kind;

/* multi-head latent attention */
typedef struct kvm_mla_config {
    ptrdiff_t query_rank; /* q_lora_rank; 0: queries are projected at once */
    ptrdiff_t rank;       /* kv_lora_rank: size of the latent */
    ptrdiff_t nope, rope; /* entries of a key without and with position */
    ptrdiff_t value;      /* entries of a head's value */
} kvm_mla_config;

/* mixture of experts */
typedef struct kvm_moe_config {
    ptrdiff_t experts, active;     /* and how many of them a token goes through */
    ptrdiff_t groups, open_groups; /* experts stand in groups; only the best are open */
    ptrdiff_t inner, shared; /* widths: of one expert, of the shared one (0: none) */
    ptrdiff_t latent; /* routed experts see the input in so many numbers; 0: as it is */
    bool normalised;  /* weights of the chosen sum to one */
    double scale;     /* of the routed experts' sum */
} kvm_moe_config;

/* layers that keep a state per head instead of rows per token. Of Mamba-2 key heads are
 * the groups and key_dim the state's N, values are its heads of P. */
typedef struct kvm_recurrent_config {
    ptrdiff_t key_heads, value_heads, key_dim, value_dim;
    ptrdiff_t window;   /* inputs of the short convolution */
    double lower_bound; /* of the log-decay, which then is a sigmoid; 0: none */
    bool sigmoid_gate;  /* outputs go through a sigmoid, else through silu */
    bool conv_bias;
    double step_least, step_most; /* of Mamba-2's steps; most 0: no limit */
} kvm_recurrent_config;

/* sparse attention: which tokens a layer looks at */
typedef struct kvm_index_config {
    ptrdiff_t heads, dim;
    ptrdiff_t most;  /* tokens that a query attends to */
    ptrdiff_t block; /* tokens that are chosen together; 1: each for itself */
    bool pooled;     /* keys of a block are weighed by gates of their own */
    ptrdiff_t context;
    bool interleaved; /* rotation of its keys */
    bool *full; /* (layers) has an indexer of its own; else it shares the one before */
} kvm_index_config;

/* a residual of several streams, and n-gram embeddings that some blocks add to it */
typedef struct kvm_stream_config {
    ptrdiff_t count, rank;                      /* 0: the plain residual */
    bool *ngrams;                               /* (layers); NULL: none */
    ptrdiff_t ngram_dim, orders, heads, window; /* orders 2 .. orders; heads of each */
    ptrdiff_t parts;                            /* tensors that the table is cut into */
    int64_t end_id;                             /* where n-grams begin anew */
    double eps;                                 /* of mixed streams, and the next */
    ptrdiff_t rounds; /* in which a mix is made to sum to one */
    /* how tables were laid out: heads read primes from `base` on, rows fill up a
     * multiple; `seed` of the hash */
    ptrdiff_t base, multiple;
    int64_t seed;
} kvm_stream_config;

typedef struct kvm_block_kinds {
    kvm_layer_id mixer, ffn; /* KVM_LAYER_NONE: the block has no such half */
} kvm_block_kinds;

typedef struct kvm_rope_config {
    kvm_rope_kind kind;
    double theta, factor;
    double low, high;            /* llama3 */
    double beta_fast, beta_slow; /* YaRN, and the next four */
    double mscale, mscale_all_dim;
    double attention_factor; /* 0: follows from the others */
    bool truncate;
    ptrdiff_t original; /* original_max_position_embeddings */
    ptrdiff_t width;    /* rotated entries of a head */
    bool interleaved;   /* pairs (2j, 2j+1) instead of (j, j + width/2) */
} kvm_rope_config;

typedef struct kvm_config {
    const kvm_family *family;
    ptrdiff_t hidden, ffn, layers, heads, kv_heads, head_dim, vocab, context;
    double eps;
    bool tied; /* logits through the embedding */
    bool qkv_bias, o_bias, mlp_bias;
    double temperature;  /* beta of the query temperature; 0: none */
    double swiglu_limit; /* gate and up of a feed-forward end there; 0: nowhere */
    kvm_rope_config rope;
    kvm_mla_config mla; /* zero where no layer is of that kind, and the next */
    kvm_moe_config moe;
    kvm_recurrent_config recurrent;
    kvm_index_config index;
    kvm_stream_config stream;
    ptrdiff_t scale_rows, scale_cols; /* blocks of FP8 weights; 0: none are stated */
    kvm_block_kinds *blocks;          /* (layers) */
    ptrdiff_t *window;                /* (layers) tokens a layer sees; 0: all */
} kvm_config;

/* kvm_config_of_json / _of_gguf - out lives in keep. KVM_FORMAT, KVM_RANGE (the field
 * and what it may be) and KVM_UNSUPPORTED (what this file asks for and what runs
 * instead). */
KVM_MUST kvm_status kvm_config_of_json(kvm_config *out, kvm_arena *keep, kvm_jat root,
                                       kvm_err *err);
KVM_MUST kvm_status kvm_config_of_gguf(kvm_config *out, kvm_arena *keep,
                                       const kvm_gguf *g, kvm_err *err);
/* kvm_config_dtype - the type that a config.json says weights have, BF16 when it says
 * nothing */
KVM_MUST kvm_status kvm_config_dtype(kvm_dtype *d, kvm_arena *keep, kvm_jat root,
                                     kvm_err *err);
/* kvm_config_hash - SHA-256 over the canonical text of the struct: equal for the two
 * rope dialects of one config */
KVM_MUST kvm_status kvm_config_hash(const kvm_config *c, char hex[65],
                                    kvm_arena scratch, kvm_err *err);

/* shared by the two readers */
KVM_MUST kvm_status kvm_config__check(kvm_config *c, const char *file, kvm_err *err);
/* every block of the family's two kinds, no windows */
KVM_MUST kvm_status kvm_config__uniform(kvm_config *c, kvm_arena *keep, kvm_err *err);
const kvm_family *kvm_config__family(kvm_str name, bool gguf); /* NULL: unknown */
kvm_str kvm_config__family_list(kvm_arena *keep, bool gguf);   /* "llama, qwen2, ..." */

#endif
