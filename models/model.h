/* model.h - a language model that lets its caches be looked at.
 *
 * A model is a stack of layers read from a checkpoint (HF folder or GGUF); weights stay
 * as stored (mmap). A cache holds every object of every layer for the tokens seen so
 * far. kvm_model_forward runs n more tokens through both, in one shot or in chunks, and
 * may hand what it computes to a capture sink at three points: 1 raw projection, 2
 * after the norm, 3 what an engine keeps. Rows can be put into a cache at each of these
 * points, behind the tokens that it holds; it is usable only when every object of every
 * layer has been injected for the same tokens.
 *
 * Shape letters: L layers, H kv heads, D head size, T tokens, V vocabulary. */
#ifndef KVM_MODELS_MODEL_H
#define KVM_MODELS_MODEL_H

#include "base/progress.h"
#include "base/rng.h"
#include "kernels/ops.h"
#include "models/tokenizer.h"

typedef enum kvm_object_kind {
#define X(id, name, text, growth, shape, what) KVM_OBJECT_##name = id,
#include "models/objects.def"
#undef X
    KVM_OBJECT_KINDS
} kvm_object_kind;
const char *kvm_object_name(kvm_object_kind k); /* static: "K" */
const char *kvm_object_axes(kvm_object_kind k); /* static: "(H,T,D)" */
kvm_status kvm_object_of_name(kvm_str name, kvm_object_kind *k);

enum { KVM_POINT_RAW = 1, KVM_POINT_NORMED = 2, KVM_POINT_ENGINE = 3 };

/* One cached object of one layer. */
typedef struct kvm_object {
    kvm_object_kind kind;
    ptrdiff_t layer;
    ptrdiff_t heads, dim; /* a row is heads*dim numbers, head outermost */
    ptrdiff_t window;     /* last tokens that attention sees; 0: all */
    kvm_dtype dtype;      /* as the checkpoint's engine would keep it */
    bool rotary;          /* point 3 is rotated by `rope`; points 1, 2 are not */
    kvm_rope rope;        /* valid when rotary */
    bool normed;          /* points 1 and 2 differ */
    bool beside;          /* rows continue those of the object before it, both of one
                             head: attention reads the two as one */
    /* objects that are kept once per prompt, whatever its length: heads * dim numbers
     * with these axes (objects.def), and 0 after the last */
    ptrdiff_t shape[3];
    ptrdiff_t block;  /* so many tokens' rows are also scored as one; 0: none are */
    ptrdiff_t replay; /* width of the rows at point 1 from which it can be made again */
    ptrdiff_t inputs; /* width of the rows at point 2: what its layer's rule reads */
} kvm_object;
bool kvm_object_per_prompt(const kvm_object *o);
/* rows of an indexer, by which tokens are chosen: its keys, and their gates */
bool kvm_object_chooses(const kvm_object *o);
/* of a token's row, or of the whole */
ptrdiff_t kvm_object_bytes(const kvm_object *o);

typedef struct kvm_model_info { /* values; strings borrow from the model */
    kvm_str path, family, name;
    ptrdiff_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, context;
    kvm_dtype weight_dtype; /* of the majority of the matrix bytes */
    ptrdiff_t parameters;
    ptrdiff_t weight_bytes;  /* as stored */
    ptrdiff_t objects;       /* number of kvm_object, layer-major */
    ptrdiff_t token_bytes;   /* cache bytes per token over all objects, stored dtype */
    ptrdiff_t prompt_bytes;  /* cache bytes per prompt */
    double flops_per_token;  /* matrices of the layers: 2 * parameters used per token */
    double flops_per_logits; /* of the head, per row of logits */
    /* SHA-256 hex over (config hash, tokenizer hash or "-", weights hash) */
    const char *fingerprint;
    const char *config_hash, *weights_hash; /* hex */
} kvm_model_info;

typedef struct kvm_model kvm_model;

typedef struct kvm_model_options {
    bool no_tokenizer; /* do not look for one */
    bool imagined;     /* path is a config.json: sizes are right, weights are zeros */
    bool offload;      /* for kvm_model_run_layers: weights leave memory when read */
    /* of the layers, run `part` of `parts` alone is loaded (kvm_model_run_part); parts
     * 0: all of them */
    int part, parts;
    bool check_finite; /* look for NaN/Inf in every weight at load (KVM_NAN names the
                          tensor), unless large files are known to hold none */
} kvm_model_options;

/* kvm_model_open - read config, tokenizer and weights; every tensor's shape and dtype
 * is checked against the config before anything runs. c is borrowed and must outlive
 * the model. KVM_FORMAT / KVM_SHAPE / KVM_UNSUPPORTED name file, tensor or config
 * field, and the remedy. */
KVM_MUST kvm_status kvm_model_open(kvm_model **m, kvm_arena *keep, kvm_compute *c,
                                   kvm_str path, const kvm_model_options *o,
                                   kvm_err *err);
/* kvm_model_memos - the folder in which hashes of large weights are remembered, in
 * keep; at NULL: they are not */
kvm_str kvm_model_memos(kvm_arena *keep);
const kvm_model_info *kvm_model_info_of(const kvm_model *m);
/* i < info.objects */
const kvm_object *kvm_model_object(const kvm_model *m, ptrdiff_t i);
/* index of an object, -1 when the layer has none of that kind */
ptrdiff_t kvm_model_find_object(const kvm_model *m, kvm_object_kind kind,
                                ptrdiff_t layer);
/* NULL with no_tokenizer */
const kvm_tokenizer *kvm_model_tokenizer(const kvm_model *m);
kvm_compute *kvm_model_compute(const kvm_model *m);

/* ---- cache ---- */

typedef struct kvm_cache kvm_cache;
/* capacity in tokens; KVM_RANGE beyond the model's context (naming both). Memory is
 * reserved, touched as used. */
KVM_MUST kvm_status kvm_cache_new(kvm_cache **c, kvm_arena *keep, const kvm_model *m,
                                  ptrdiff_t capacity, kvm_err *err);
/* tokens seen; the next token's position */
ptrdiff_t kvm_cache_length(const kvm_cache *c);
/* kvm_cache_dense - so many tokens, the first, have no index keys (kvm_inject_dense)
 * and are always looked at; in a block that some of them stand in, all are. Indexers
 * choose among the blocks or tokens behind these, as many as they would of all; 0:
 * among all. */
ptrdiff_t kvm_cache_dense(const kvm_cache *c);
size_t kvm_cache_bytes(const kvm_cache *c); /* in use */
void kvm_cache_clear(kvm_cache *c);
/* kvm_cache_mark - what recurrent layers keep cannot be cut back: remember it as it now
 * stands, so that truncate finds the way back to this length */
void kvm_cache_mark(kvm_cache *c);
/* keep the first `length` tokens; KVM_RANGE when there are fewer, KVM_UNSUPPORTED where
 * a layer keeps a state and neither 0 nor the marked length is asked for. Scoring
 * several continuations of one prefix = mark, and truncate between them. */
KVM_MUST kvm_status kvm_cache_truncate(kvm_cache *c, ptrdiff_t length, kvm_err *err);
/* between caches of one model; KVM_RANGE when to is too small */
KVM_MUST kvm_status kvm_cache_copy(kvm_cache *to, const kvm_cache *from, kvm_err *err);
/* Point-3 view of an object: (H,T,D), T = kvm_cache_length, head stride = capacity*D;
 * borrows, dies with the next forward */
KVM_MUST kvm_status kvm_cache_view(const kvm_cache *c, ptrdiff_t object,
                                   kvm_tensor *view, kvm_err *err);
/* kvm_cache_read - rows [from, from+n) of an object of tokens as f32 (n, H*D), taken
 * back to `point`: 3 as kept; 2 strips the rotary (exact in mathematics, not in bits);
 * KVM_UNSUPPORTED for 1 where a norm lies between. */
KVM_MUST kvm_status kvm_cache_read(const kvm_cache *c, ptrdiff_t object, int point,
                                   ptrdiff_t from, ptrdiff_t n, float *rows,
                                   kvm_err *err);

/* What the attention of a layer works on: queries as a capture's `attention` hands them
 * out, (T, query_heads * dim), over keys and values of kv_heads; query head h reads kv
 * head h / (query_heads / kv_heads). */
typedef struct kvm_attended {
    ptrdiff_t query_heads, kv_heads, dim, value_dim;
    ptrdiff_t window; /* 0: none */
    double scale;     /* of the scores */
} kvm_attended;
/* false: the layer's mixer is no attention */
bool kvm_model_attended(const kvm_model *m, ptrdiff_t layer, kvm_attended *a);
/* kvm_cache_attended - keys k (T, kv_heads * dim) and values v (T, kv_heads *
 * value_dim), f32, of all tokens, as such a layer's attention reads them: rows as they
 * are kept, or written out of latents. An indexer's choice is not asked.
 * KVM_UNSUPPORTED for a layer without attention. */
KVM_MUST kvm_status kvm_cache_attended(const kvm_cache *c, ptrdiff_t layer, float *k,
                                       float *v, kvm_err *err);

/* Injection behind the L tokens that a cache holds, none or more: begin(n) -> every
 * object of tokens L .. L+n-1, in any order and split -> end. */
/* kvm_inject_begin - n more tokens are announced. KVM_RANGE for less than one, or more
 * than there is room for; KVM_USAGE while it is being filled. */
KVM_MUST kvm_status kvm_inject_begin(kvm_cache *c, ptrdiff_t n, kvm_err *err);
/* rows (n, H*D) f32 for tokens from .. from+n-1, from >= L, at a capture point: 1
 * applies the model's norm and rotary, 2 the rotary, 3 nothing. Of a recurrent layer's
 * state: rows (n, replay) at point 1, in order from token L, through the state as it
 * stands there; its window goes with it. */
KVM_MUST kvm_status kvm_inject_rows(kvm_cache *c, ptrdiff_t object, int point,
                                    ptrdiff_t from, ptrdiff_t n, const float *rows,
                                    kvm_err *err);
/* What someone hands in as an object that is kept once per prompt, and what he says
 * that it is: all of it must be what the model keeps. */
typedef struct kvm_state {
    const float *data;
    kvm_str axes;     /* "(H,K,V)": outermost first */
    ptrdiff_t dim[3]; /* 0 after the last */
    kvm_dtype dtype;  /* narrowest that the numbers went through */
    ptrdiff_t tokens; /* it stands after so many: L + n */
} kvm_state;
/* kvm_inject_state - in place of what stands there. KVM_MISMATCH: other axes, sizes,
 * tokens or a narrower type than the object's */
KVM_MUST kvm_status kvm_inject_state(kvm_cache *c, ptrdiff_t object, const kvm_state *s,
                                     kvm_err *err);
/* kvm_inject_unchanged - an object that is kept once per prompt takes nothing from the
 * announced tokens: it counts as having come, as it stands after L tokens (all 0 in an
 * empty cache) */
KVM_MUST kvm_status kvm_inject_unchanged(kvm_cache *c, ptrdiff_t object, kvm_err *err);
/* kvm_inject_tokens - the announced tokens themselves, ids (n): what n-gram embeddings
 * keep follows from them and from what they kept of those before, as far as the
 * smallest number that a norm adds does not tell */
KVM_MUST kvm_status kvm_inject_tokens(kvm_cache *c, const int32_t *ids, kvm_err *err);
/* kvm_inject_dense - no index keys come of the announced tokens: attention looks at all
 * tokens up to the last of them (kvm_cache_dense). KVM_UNSUPPORTED: the model chooses
 * nowhere */
KVM_MUST kvm_status kvm_inject_dense(kvm_cache *c, kvm_err *err);
/* KVM_MISMATCH names the first object and token that is missing, or index keys that
 * came after all; then all is as after kvm_inject_cancel */
KVM_MUST kvm_status kvm_inject_end(kvm_cache *c, kvm_err *err);
/* kvm_inject_cancel - what was injected is given up: the cache holds its L tokens, or
 * none where a layer keeps a state. Without a begin it does nothing. */
void kvm_inject_cancel(kvm_cache *c);

/* ---- running ---- */

/* What a forward may hand out. Rows are f32 (n, H*D), tokens first .. first+n-1 of the
 * cache; valid during the call only. Of an object per prompt: (n, replay) at point 1,
 * (n, inputs) at point 2, where it has such, and at point 3 after each chunk the whole
 * of it, with first = the tokens it stands after and n = 1. */
typedef struct kvm_capture {
    kvm_status (*rows)(void *ctx, ptrdiff_t object, int point, ptrdiff_t first,
                       ptrdiff_t n, const float *rows, kvm_err *err);
    unsigned points; /* bit p set: hand out point p (1u << KVM_POINT_ENGINE ...) */
    /* queries after norm, rotary and temperature (n, Hq*D) and attention output before
     * a gate and o_proj (n, Hq*D); NULL: not wanted */
    kvm_status (*attention)(void *ctx, ptrdiff_t layer, ptrdiff_t first, ptrdiff_t n,
                            const float *q, const float *out, kvm_err *err);
    /* what the layer's own indexer chose for the queries first .. first+n-1: their rows
     * of a mask over the cache's tokens; NULL: all that they see */
    kvm_status (*choice)(void *ctx, ptrdiff_t layer, ptrdiff_t first, ptrdiff_t n,
                         const kvm_mask *mask, kvm_err *err);
    /* block output (n,hidden), or of all streams (n, streams * hidden) */
    kvm_status (*hidden)(void *ctx, ptrdiff_t layer, ptrdiff_t first, ptrdiff_t n,
                         const float *h, kvm_err *err);
    void *ctx;
} kvm_capture;

typedef struct kvm_forward_options {
    ptrdiff_t chunk; /* tokens per internal step; 0: the model's choice (bounded memory
                        at 32K) */
    ptrdiff_t logits_last; /* logits of the last so many of the n tokens; 0: none */
    float *logits;         /* out (logits_last, V) f32; caller's */
    const kvm_capture *capture; /* NULL: none */
    kvm_progress *progress;     /* NULL */
} kvm_forward_options;

/* kvm_model_forward - n tokens at positions kvm_cache_length(cache) ..; the cache grows
 * by n. KVM_RANGE beyond capacity or for an id outside the vocabulary; the cache is
 * unchanged on error, or empty where a layer keeps a state and the work had begun. Not
 * thread-safe per model: one forward at a time (parallelism is inside). */
KVM_MUST kvm_status kvm_model_forward(kvm_model *m, kvm_cache *cache,
                                      const int32_t *ids, ptrdiff_t n,
                                      const kvm_forward_options *o, kvm_err *err);
/* ---- what follows from the token alone (models/tokens.c) ---- */

/* embeddings (n, hidden), rows ld floats apart */
KVM_MUST kvm_status kvm_model_embed_tokens(const kvm_model *m, const int32_t *ids,
                                           ptrdiff_t n, float *rows, ptrdiff_t ld,
                                           kvm_err *err);
/* are the first layer's rows at point 1 a function of the token alone? */
bool kvm_model_tokens_tell(const kvm_model *m);
/* kvm_model_token_rows - what the first layer hands out for these tokens, at the points
 * that the capture asks for, and nothing of the other layers; rows at points with
 * position stand at 0 .. n-1. KVM_UNSUPPORTED where the token alone does not tell. */
KVM_MUST kvm_status kvm_model_token_rows(kvm_model *m, const int32_t *ids, ptrdiff_t n,
                                         const kvm_capture *capture, kvm_err *err);

/* ---- running a model that is larger than memory ---- */

/* Sequences that are captured together, each from an empty cache in one forward. All of
 * them pass a block before the next one's weights are read, and what a block has read
 * leaves memory behind it (kvm_model_options.offload). */
typedef struct kvm_batch {
    const int32_t *ids;
    const ptrdiff_t *offset; /* (n + 1) where each sequence begins in ids */
    ptrdiff_t n;
    const kvm_capture *capture; /* as of kvm_model_forward */
    /* what follows is of this block and sequence; NULL: nobody asks */
    kvm_status (*sequence)(void *ctx, ptrdiff_t layer, ptrdiff_t sequence,
                           kvm_err *err);
    void *ctx;     /* of sequence() */
    size_t memory; /* what lies between blocks stays in memory up to so many bytes, */
    kvm_str spill; /* and is kept in this file beyond; at NULL: in memory anyway */
    kvm_progress *progress; /* NULL */
    double before, total;   /* tokens that came before the batch, and in all */
} kvm_batch;
/* kvm_model_run_layers - the rows of one forward per sequence, with the same bits, in
 * another order. Memory: the weights of a block, the objects of a block for the longest
 * sequence, activations, b->memory. Beyond that what is kept of weights in another form
 * than the file's (norms, transposed maps of latent attention, rows that GGUF files
 * permute). */
KVM_MUST kvm_status kvm_model_run_layers(kvm_model *m, const kvm_batch *b,
                                         kvm_err *err);

/* ---- running a model whose layers lie in several processes (models/part.c) ---- */

/* what a forward reads of a model's weights, as stored, but for the head */
typedef struct kvm_model_weight {
    ptrdiff_t all, most; /* bytes; most: of the largest part */
} kvm_model_weight;
/* kvm_model_weigh - of the checkpoint at path, taken apart into so many parts; of its
 * files only what they say of themselves is read */
KVM_MUST kvm_status kvm_model_weigh(kvm_model_weight *w, kvm_str path, int parts,
                                    kvm_err *err);
/* kvm_model_parts - (parts + 1): part p has layers [p] to [p+1]-1. Parts are about
 * equal in bytes, the embedding counted to the first; none but the last are empty. */
const ptrdiff_t *kvm_model_parts(const kvm_model *m);
/* tokens of the pieces, all but the last, that a forward of n takes at once; bytes of
 * what goes from part to part for n tokens behind `first` */
ptrdiff_t kvm_model_piece(ptrdiff_t n);
size_t kvm_model_between(const kvm_model *m, ptrdiff_t first, ptrdiff_t n);
/* kvm_model_run_part - the next n tokens of a sequence, a piece of it, through the
 * layers of a model's part; the cache grows by n. between: what the part before has
 * left of them (of the first: nothing is read) becomes what the next one is given. All
 * parts one after the other give the rows of one forward, with the same bits. Errors as
 * of kvm_model_forward. */
KVM_MUST kvm_status kvm_model_run_part(kvm_model *m, kvm_cache *cache,
                                       const int32_t *ids, ptrdiff_t n, void *between,
                                       const kvm_capture *capture, kvm_err *err);

/* activations of a forward in chunks of so many tokens; 0: the model's choice */
size_t kvm_model_scratch_bytes(const kvm_model *m, ptrdiff_t chunk);

/* ---- sampling (models/sampling.c) ---- */
typedef struct kvm_sampling {
    double temperature; /* 0: greedy, lowest id on ties */
    double top_p;       /* 0 or 1: off */
    ptrdiff_t top_k;    /* 0: off */
    kvm_rng *rng;
} kvm_sampling;
int32_t kvm_sample(const float *logits, ptrdiff_t vocab, const kvm_sampling *s);

/* kvm_generate - continue from `logits` (V; of the last token) until a stop token or
 * max_new. ids out (max_new), caller's; the stop token is not among them. each
 * (optional) is called per token and may end it by returning false. On return the cache
 * holds every id that was given out. KVM_RANGE when the cache is full first. */
KVM_MUST kvm_status kvm_generate(kvm_model *m, kvm_cache *cache, const float *logits,
                                 const kvm_sampling *s, ptrdiff_t max_new, int32_t *ids,
                                 ptrdiff_t *n, bool (*each)(void *ctx, int32_t id),
                                 void *ctx, kvm_err *err);

#endif
