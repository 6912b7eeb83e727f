/* translator.h - what turns one model's cache into another's: an ordered list of steps.
 *
 * Each step makes one object (K or V) of one target layer from the same object of some
 * source layers. Features are ordered by the step's source list, then head, then entry.
 * A translator is whole or it is refused: exactly one step for every object of every
 * target layer.
 *
 * File: safetensors, one metadata entry `kvmill` whose JSON holds
 *   format "kvmill.translator.v1"; source, target {fingerprint, name, layers,
 *   tokenizer, K/V: heads and dim per layer, rotary {width, interleaved, factor, theta,
 *   sha}}; pair (the spec, any JSON); moments (hash); capture_point; steps [{object,
 *   layer, map "ridge"|"mlp", space, head_matched, sources, layout, dtype, lambda, r2}]
 * Tensors per step <o>.<l> (o = K, V), F32 or BF16, out x in:
 *   ridge  <o>.<l>.weight (O,I) or, head-matched, (H,Do,I);  <o>.<l>.bias (O) F32
 *   mlp    <o>.<l>.w1 (G,W,I) .w2 (G,W,W) .w3 (G,O/G,W), .b1 (G,W) .b2 (G,W) .b3 (O)
 *          F32; G = 1, or one group per target head */
#ifndef KVM_TRANSLATORS_TRANSLATOR_H
#define KVM_TRANSLATORS_TRANSLATOR_H

#include "translators/rows.h"

/* X(id, NAME, "name", "what it is"); ids are not stored, names are */
#define KVM_MAP_KINDS(X)                                                               \
    X(1, RIDGE, "ridge", "one linear map with bias, closed form")                      \
    X(2, MLP, "mlp", "two hidden ReLU layers, trained")
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
const char *kvm_map_kind_name(kvm_map_kind k);                    /* static */
const char *kvm_key_space_name(kvm_key_space k);                  /* static */
kvm_status kvm_key_space_of_name(kvm_str name, kvm_key_space *k); /* KVM_NOTFOUND */

typedef struct kvm_step {
    kvm_object_kind object; /* KVM_OBJECT_K or KVM_OBJECT_V */
    ptrdiff_t layer;        /* of the target */
    kvm_map_kind map;
    bool head_matched; /* ridge: head h reads only kvm_matched_head(h) of each source */
    ptrdiff_t sources;
    const int32_t *source; /* (sources) layers of the source model, best first */
    ptrdiff_t inputs;  /* of one group: sources * Hs*Ds, or sources * Ds head-matched */
    ptrdiff_t outputs; /* Ht*Dt */
    ptrdiff_t groups;  /* independent maps side by side; 1, or Ht */
    ptrdiff_t hidden;  /* mlp width */
    kvm_tensor weight[3];   /* (groups, out, in) F32 or BF16; ridge uses [0] */
    const float *bias[3];   /* (groups*out) */
    double lambda;          /* ridge: relative; < 0: absolute |lambda| */
    double r2_fit, r2_held; /* as measured when fitted; NaN: unknown */
} kvm_step;

typedef struct kvm_side_info {
    kvm_str fingerprint, name, tokenizer;
    ptrdiff_t layers;
    const kvm_row_shape *k, *v; /* (layers) */
    kvm_rope rope;              /* inv_freq NULL after loading: only its sha is kept */
    double theta;               /* as far as inv_freq tells; 0: no rotary */
    kvm_str rope_sha;           /* of the inv_freq bytes, hex; "" without rotary */
} kvm_side_info;

typedef struct kvm_translator {
    kvm_side_info source, target;
    kvm_key_space keys;
    const kvm_step *steps; /* (count): K.0, V.0, K.1, V.1 ... of the target */
    ptrdiff_t count;
    kvm_str pair;    /* JSON text of the pair spec, "" when none */
    kvm_str moments; /* hash, "" when none */
    kvm_str path;    /* it was read from; "" when made here */
} kvm_translator;

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
KVM_MUST kvm_status kvm_step_ridge(kvm_step *s, kvm_arena *keep, kvm_object_kind object,
                                   ptrdiff_t layer, const int32_t *source,
                                   ptrdiff_t sources, ptrdiff_t groups,
                                   ptrdiff_t inputs, ptrdiff_t outputs,
                                   const double *const *weight,
                                   const double *const *bias, kvm_err *err);

#endif
