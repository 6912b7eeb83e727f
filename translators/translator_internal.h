/* translator_internal.h - shared by the translator file and the two public layouts */
#ifndef KVM_TRANSLATORS_TRANSLATOR_INTERNAL_H
#define KVM_TRANSLATORS_TRANSLATOR_INTERNAL_H

#include "models/safetensors.h"
#include "translators/translator.h"

/* features that one group of the step reads */
ptrdiff_t kvm_step__inputs(const kvm_translator *t, const kvm_step *s);
kvm_row_shape kvm_step__shape(const kvm_translator *t, const kvm_step *s); /* made */
/* a state step agrees with both sides (states.c) */
KVM_MUST kvm_status kvm_states__check(const kvm_translator *t, ptrdiff_t i,
                                      kvm_err *err);

/* ---- how a step lies in the file ---- */

/* The newer one says what it does with index keys; a reader of the older alone would
 * have to take a file that leaves them out for one that is not whole. */
#define KVM_TRANSLATOR_FORMAT "kvmill.translator.v2"
#define KVM_TRANSLATOR_FORMAT_DENSE "kvmill.translator.v3"
int kvm_step__parts(const kvm_step *s); /* weights, each with its bias */
/* "K.3.weight", "V.0.b2"; at NULL when keep is spent */
kvm_str kvm_step__part_name(kvm_arena *keep, const kvm_step *s, int part, bool bias);
ptrdiff_t kvm_step__bias_count(const kvm_step *s, int part);

/* tensors of a bilinear state step, F32: "state.2.left" */
enum { KVM_STATE_PARTS = 4 };
typedef struct kvm_state_part {
    const char *object, *name;
    int rank;
} kvm_state_part;
extern const kvm_state_part kvm_state_parts[KVM_STATE_PARTS];
kvm_str kvm_step__state_name(kvm_arena *keep, const kvm_state_step *s, int part);

/* n numbers of a F32 or BF16 tensor from element `at` on, as f32; KVM_NAN when not
 * finite */
KVM_MUST kvm_status kvm_step__widen(float *out, const kvm_tensor *t, ptrdiff_t at,
                                    ptrdiff_t n, kvm_err *err);
/* append n f32 numbers as dtype, through a small buffer */
KVM_MUST kvm_status kvm_step__append(kvm_st_writer *w, kvm_dtype dtype, const float *x,
                                     ptrdiff_t n, kvm_err *err);
/* true when the n numbers (F32 or BF16) are all finite */
bool kvm_step__finite(const kvm_tensor *t, ptrdiff_t n);

/* A list of source layers in a document: at most `layers` numbers in [0, layers). */
KVM_MUST kvm_status kvm_step__sources(kvm_jat list, ptrdiff_t layers, kvm_arena *keep,
                                      const int32_t **out, ptrdiff_t *n, kvm_err *err);

/* ---- what both public layouts ask of a translator, and how they name one ---- */

/* KVM_UNSUPPORTED unless all steps are ridge over all heads, K and V of a layer share
 * their sources, every layer has as many, and heads and sizes are the same
 * throughout */
KVM_MUST kvm_status kvm_layout__check(const kvm_translator *t, const char *layout,
                                      kvm_err *err);
/* that of all of a side's rows */
kvm_row_shape kvm_layout__shape(const kvm_side_info *s);
/* An element of W^T as stored: the layouts differ in where (input, output) lies. */
typedef struct kvm_layout_names {
    const char *weight[2], *bias[2]; /* printf formats of K and V tensors */
    bool heads_outermost;            /* (Ht, I, Dt); else (I, Ht*Dt) */
} kvm_layout_names;
KVM_MUST kvm_status kvm_layout__write(const kvm_translator *t,
                                      const kvm_layout_names *names, kvm_dtype dtype,
                                      const json_t *meta, kvm_str path,
                                      kvm_arena scratch, char sha_hex[65],
                                      kvm_err *err);
/* steps over an opened file; sources (target layers) of k layers each */
KVM_MUST kvm_status kvm_layout__read(kvm_translator *t, const kvm_st *st,
                                     const kvm_layout_names *names,
                                     const int32_t *const *sources, ptrdiff_t k,
                                     kvm_arena *keep, kvm_err *err);
/* "selected_layers" / "selected": one list of k source layers per target layer */
KVM_MUST kvm_status kvm_layout__selected(kvm_jat list, const kvm_translator *t,
                                         kvm_arena *keep, const int32_t ***out,
                                         ptrdiff_t *k, kvm_err *err);
/* equal shapes for all layers of a side */
KVM_MUST kvm_status kvm_layout__side(kvm_side_info *side, kvm_arena *keep,
                                     int64_t layers, int64_t heads, int64_t dim,
                                     const char *file, kvm_err *err);
json_t *kvm_layout__str_json(kvm_str s);
/* the string member, copied; "" when absent */
KVM_MUST kvm_status kvm_layout__copy_str(kvm_jat obj, kvm_arena *keep, const char *key,
                                         kvm_str *out, kvm_err *err);
/* pretty-print and publish; takes root, which may be NULL (no memory) */
KVM_MUST kvm_status kvm_layout__publish(json_t *root, kvm_str path, kvm_arena scratch,
                                        kvm_err *err);
json_t *kvm_layout__selected_json(const kvm_translator *t);
json_t *kvm_layout__r2_json(const kvm_translator *t, kvm_space space);

#endif
