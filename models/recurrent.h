/* recurrent.h - what layers with a gated delta rule share, however they are projected:
 * the short convolution, keys and queries of unit length, the rule itself, and the two
 * objects that they keep, a state and a window. */
#ifndef KVM_MODELS_RECURRENT_H
#define KVM_MODELS_RECURRENT_H

#include "models/layer.h"

enum { KVM_RECURRENT_STATE, KVM_RECURRENT_WINDOW, KVM_RECURRENT_OBJECTS };

typedef struct kvm_recurrence {
    kvm_recurrent_config size;
    float *conv;                  /* (channels, window) */
    float *unit_query, *unit_key; /* (key_dim) of norms that give unit length */
} kvm_recurrence;

/* numbers of a token's q or k, of its v, and of all three */
ptrdiff_t kvm_recurrent_keys(const kvm_recurrent_config *r);
ptrdiff_t kvm_recurrent_values(const kvm_recurrent_config *r);
ptrdiff_t kvm_recurrent_channels(const kvm_recurrent_config *r);

/* all but the convolution's weights */
KVM_MUST kvm_status kvm_recurrence_of(kvm_recurrence *out, kvm_arena *keep,
                                      const kvm_config *c, kvm_err *err);
/* kvm_layer_kind's */
ptrdiff_t kvm_recurrent_objects(const kvm_config *c, ptrdiff_t layer,
                                const kvm_rope *rope, kvm_object *out);

/* kvm_recur - u (T,channels) raw projections q|k|v, spent; decay (T,H) or (T,H,K) log, beta
 * (T,H) -> o (T, H*V). The state and the window of l move on by T tokens. */
KVM_MUST kvm_status kvm_recur(const kvm_recurrence *r, const kvm_layer *l,
                              const kvm_step *s, kvm_tensor u, kvm_tensor decay,
                              kvm_tensor beta, kvm_tensor o, kvm_err *err);
/* o = rms(o) w act(z) per head, z spent; w (V) */
KVM_MUST kvm_status kvm_recurrent_gate(const kvm_recurrence *r, const kvm_step *s,
                                       kvm_tensor o, float *w, double eps, kvm_tensor z,
                                       bool sigmoid, kvm_err *err);

#endif
