/* translator.h - what turns one model's cache into another's: an ordered list of steps.
 *
 * Each step makes the rows of one space of one target layer from rows of some source
 * layers, or of the layer's own translated rows (recipes.def). Features are ordered
 * token, then by the step's source list, then space, head and entry. A state step makes
 * what a recurrent layer keeps once per prompt, where no step makes its inputs. A
 * translator is whole or it is refused: its steps are one for each space of each target
 * layer, layer by layer and in the order of spaces.def, and they leave no object out.
 *
 * File: safetensors, one metadata entry `kvmill` whose JSON holds
 *   format "kvmill.translator.v2", or v3, which says indexers "dense": index keys are
 *   left out; source, target {fingerprint, name, tokenizer, layers, rows: {space:
 *   {heads, dim, keys} per layer}, rotary {width, interleaved, factor, theta, sha}};
 *   pair (the spec, any JSON); moments (hash); keys; token "none"|"given"|"decoded";
 *   steps [{rows, layer, map "ridge"|"mlp"|"exact", side, from, token, head_matched,
 *   sources, groups, hidden, layout, dtype, lambda, r2_fit, r2_held}]; states [{layer,
 *   map "zero"|"copy"|"bilinear", source, r2_held}]
 * Tensors per step <s>.<l> (s = the space's name), F32 or BF16, out x in:
 *   ridge  <s>.<l>.weight (O,I) or, head-matched, (H,Do,I);  <s>.<l>.bias (O) F32
 *   mlp    <s>.<l>.w1 (G,W,I) .w2 (G,W,W) .w3 (G,O/G,W), .b1 (G,W) .b2 (G,W) .b3 (O)
 *          F32; G = 1, or one group per target head
 * and of a bilinear state step, all F32: states.h says what they do
 *   state.<l>.left (H,K,K) .right (H,V,V), window.<l>.weight (B,D,D) .bias (C) */
#ifndef KVM_TRANSLATORS_TRANSLATOR_H
#define KVM_TRANSLATORS_TRANSLATOR_H

#include "translators/recipes.h"

/* X(id, NAME, "name", "what it is"); ids are not stored, names are */
#define KVM_MAP_KINDS(X)                                                               \
    X(1, RIDGE, "ridge", "one linear map with bias, closed form")                      \
    X(2, MLP, "mlp", "two hidden ReLU layers, trained")                                \
    X(3, EXACT, "exact", "rows that follow from the token alone, computed")
typedef enum kvm_map_kind {
#define X(id, name, text, what) KVM_MAP_##name = id,
    KVM_MAP_KINDS(X)
#undef X
} kvm_map_kind;

/* Where keys stand when they are mapped, and what is done to them after. */
#define KVM_KEY_SPACES(X)                                                              \
    X(1, CONTENT, "content", "strip the position, map, rotate by the target's rotary") \
    X(2, ROTATED, "rotated", "map the rotated keys as they are (ablation)")            \
    X(3, CONTENT_NOROTATE, "content-norerotate", "strip, map, leave bare (ablation)")
typedef enum kvm_key_space {
#define X(id, name, text, what) KVM_KEYS_##name = id,
    KVM_KEY_SPACES(X)
#undef X
} kvm_key_space;

/* Where the tokens come from that maps with token identity are told. */
#define KVM_TOKEN_KINDS(X)                                                             \
    X(0, NONE, "none", "maps see the source's rows alone")                             \
    X(1, GIVEN, "given", "ids come with the cache")                                    \
    X(2, DECODED, "decoded", "ids are read out of the source's first latents")
typedef enum kvm_token_kind {
#define X(id, name, text, what) KVM_TOKEN_##name = id,
    KVM_TOKEN_KINDS(X)
#undef X
} kvm_token_kind;
const char *kvm_token_kind_name(kvm_token_kind k);                  /* static */
kvm_status kvm_token_kind_of_name(kvm_str name, kvm_token_kind *k); /* KVM_NOTFOUND */

/* What becomes of a recurrent layer's state. */
#define KVM_STATE_MAPS(X)                                                              \
    X(0, ZERO, "zero", "starts empty")                                                 \
    X(1, COPY, "copy", "that of a source layer as it is")                              \
    X(2, BILINEAR, "bilinear", "copied, corrected head by head from both sides")
typedef enum kvm_state_map {
#define X(id, name, text, what) KVM_STATE_##name = id,
    KVM_STATE_MAPS(X)
#undef X
} kvm_state_map;
const char *kvm_state_map_name(kvm_state_map k);                  /* static */
kvm_status kvm_state_map_of_name(kvm_str name, kvm_state_map *k); /* KVM_NOTFOUND */

const char *kvm_map_kind_name(kvm_map_kind k);                    /* static */
kvm_status kvm_map_kind_of_name(kvm_str name, kvm_map_kind *k);   /* KVM_NOTFOUND */
const char *kvm_key_space_name(kvm_key_space k);                  /* static */
kvm_status kvm_key_space_of_name(kvm_str name, kvm_key_space *k); /* KVM_NOTFOUND */

typedef struct kvm_step {
    kvm_mapping mapping; /* what it makes, and out of what */
    ptrdiff_t layer;     /* of the target */
    kvm_map_kind map;
    bool head_matched; /* ridge: head h reads only kvm_matched_head(h) of each source */
    ptrdiff_t sources;
    const int32_t *source; /* (sources) layers of the source model, best first */
    ptrdiff_t inputs;     /* of one group: all widths; head-matched: of one head each */
    ptrdiff_t outputs;    /* Ht*Dt */
    ptrdiff_t groups;     /* independent maps side by side; 1, or Ht */
    ptrdiff_t hidden;     /* mlp width */
    kvm_tensor weight[3]; /* (groups, out, in) F32 or BF16; ridge uses [0] */
    const float *bias[3]; /* (groups*out) */
    double lambda;        /* ridge: relative; < 0: absolute |lambda| */
    double r2_fit, r2_held; /* as measured when fitted; NaN: unknown */
} kvm_step;

/* State and window of one target layer. */
typedef struct kvm_state_step {
    ptrdiff_t layer; /* of the target */
    kvm_state_map map;
    ptrdiff_t source;               /* layer of the source; zero: not read */
    kvm_tensor left, right;         /* bilinear: (H,K,K), (H,V,V) F32 */
    kvm_tensor window;              /* (B,D,D) F32: B blocks of D channels */
    const float *bias;              /* (B*D) */
    double r2_held, r2_window_held; /* NaN: unknown */
} kvm_state_step;

typedef struct kvm_side_info {
    kvm_str fingerprint, name, tokenizer;
    kvm_shapes shapes;
    kvm_rope rope; /* of the keys; inv_freq NULL after loading: only its sha is kept */
    double theta;  /* as far as inv_freq tells; 0: no rotary */
    kvm_str rope_sha; /* of the inv_freq bytes, hex; "" without rotary */
} kvm_side_info;

typedef struct kvm_translator {
    kvm_side_info source, target;
    kvm_key_space keys;
    kvm_token_kind token;
    bool dense; /* index keys are left out: the target looks at the whole prefix */
    const kvm_step *steps; /* (count) by target layer, then space */
    ptrdiff_t count;
    const kvm_state_step *states; /* (state_count) by target layer */
    ptrdiff_t state_count;
    kvm_str pair;    /* JSON text of the pair spec, "" when none */
    kvm_str moments; /* hash, "" when none */
    kvm_str path;    /* it was read from; "" when made here */
} kvm_translator;

/* kvm_translator_find - the step that makes a space's rows of a layer, or NULL */
const kvm_step *kvm_translator_find(const kvm_translator *t, kvm_space s,
                                    ptrdiff_t layer);

/* kvm_side_of_rows / _of_model - a side's description; strings and arrays in keep */
KVM_MUST kvm_status kvm_side_of_rows(kvm_side_info *s, kvm_arena *keep,
                                     const kvm_rows *r, kvm_err *err);
KVM_MUST kvm_status kvm_side_of_model(kvm_side_info *s, kvm_arena *keep,
                                      const kvm_model *m, kvm_err *err);

/* kvm_translator_check - whole, in order, every shape agreeing with both sides.
 * KVM_MISMATCH / KVM_SHAPE name the step. Every writer and reader calls it. */
KVM_MUST kvm_status kvm_translator_check(const kvm_translator *t, kvm_err *err);
/* kvm_translator_fits - may it be applied between these models? KVM_MISMATCH names side
 * and field (fingerprint, layers, heads, rotary). force: fingerprints may differ. */
KVM_MUST kvm_status kvm_translator_fits(const kvm_translator *t,
                                        const kvm_model *source,
                                        const kvm_model *target, bool force,
                                        kvm_err *err);

/* kvm_translator_write - weights stored as dtype (F32 or BF16, rounded to nearest
 * even) */
KVM_MUST kvm_status kvm_translator_write(const kvm_translator *t, kvm_dtype dtype,
                                         kvm_str path, kvm_arena scratch,
                                         char sha_hex[65], kvm_err *err);
/* kvm_translator_read - weights are views of the map, which lives in keep.
 * KVM_FORMAT, KVM_VERSION, KVM_SHAPE, KVM_DTYPE, KVM_NAN name file and tensor. */
KVM_MUST kvm_status kvm_translator_read(kvm_translator *t, kvm_arena *keep,
                                        kvm_str path, kvm_err *err);
/* kvm_translator_parse - the same over the file's bytes, which the caller keeps
 * alive */
KVM_MUST kvm_status kvm_translator_parse(kvm_translator *t, kvm_arena *keep,
                                         kvm_str bytes, kvm_str name, kvm_err *err);
ptrdiff_t kvm_translator_parameters(const kvm_translator *t);

/* ---- the two public mapper layouts (folders; ridge steps, all heads, one source list
 * for K and V of a layer: others are KVM_UNSUPPORTED) ----
 * A: mapper.safetensors + manifest.json; key_weight.<l>, value_weight.<l> (Ht, k*Hs*Ds,
 * Dt)
 * B: mapper.safetensors + mapper.json;   K.W.<l>, V.W.<l> (k*Hs*Ds, Ht*Dt) */
KVM_MUST kvm_status kvm_layout_a_write(const kvm_translator *t, kvm_dtype dtype,
                                       kvm_str dir, kvm_arena scratch, kvm_err *err);
KVM_MUST kvm_status kvm_layout_a_read(kvm_translator *t, kvm_arena *keep, kvm_str dir,
                                      kvm_err *err);
KVM_MUST kvm_status kvm_layout_b_write(const kvm_translator *t, kvm_dtype dtype,
                                       kvm_str dir, kvm_arena scratch, kvm_err *err);
KVM_MUST kvm_status kvm_layout_b_read(kvm_translator *t, kvm_arena *keep, kvm_str dir,
                                      kvm_err *err);
/* kvm_translator_open - whichever of the three `path` is: a .safetensors file of ours,
 * or a folder with manifest.json (A) or mapper.json (B). Pickles (.pt, .bin) are
 * refused. */
KVM_MUST kvm_status kvm_translator_open(kvm_translator *t, kvm_arena *keep,
                                        kvm_str path, kvm_err *err);

/* ---- making steps ---- */

/* kvm_step_ridge - a step over W (inputs, outputs) fp64 and bias; arrays in keep as
 * f32, turned to out x in. Head-matched: W of head h is at weight[h]. */
KVM_MUST kvm_status kvm_step_ridge(kvm_step *s, kvm_arena *keep,
                                   const kvm_mapping *mapping, ptrdiff_t layer,
                                   const int32_t *source, ptrdiff_t sources,
                                   ptrdiff_t groups, ptrdiff_t inputs,
                                   ptrdiff_t outputs, const double *const *weight,
                                   const double *const *bias, kvm_err *err);

#endif
