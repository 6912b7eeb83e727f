/* recurrent.h - a layer with a gated delta rule, however it is projected: the short
 * convolution, keys and queries of unit length, the rule, the gate, and the two objects
 * that it keeps, a state and a window.
 *
 * A kind's struct begins with kvm_recurrent and adds its projections; forward, replay and
 * objects of its table are those of here. */
#ifndef KVM_MODELS_RECURRENT_H
#define KVM_MODELS_RECURRENT_H

#include "models/layer.h"

enum { KVM_RECURRENT_STATE, KVM_RECURRENT_WINDOW, KVM_RECURRENT_OBJECTS };

/* what a token's projections give, of T tokens of the layer's input */
typedef struct kvm_recurrent_inputs {
    kvm_tensor u;     /* (T, channels) q|k|v before the convolution */
    kvm_tensor decay; /* (T,H), or (T, H*K) per channel: log */
    kvm_tensor beta;  /* (T,H) */
} kvm_recurrent_inputs;

typedef struct kvm_recurrent kvm_recurrent;
struct kvm_recurrent {
    kvm_layer base;
    kvm_recurrent_config size;
    ptrdiff_t hidden, channels, values; /* numbers of a token's x, of q|k|v, of v */
    double eps;
    bool per_channel;             /* decay */
    bool sigmoid;                 /* the gate; else silu */
    float *conv;                  /* (channels, window) */
    float *unit_query, *unit_key; /* (key_dim) of norms that give unit length */
    float *head_norm;             /* (value_dim) */
    kvm_weight *out;              /* (hidden, values) */
    /* x (T,hidden) -> in; and the gate z (T, values) */
    kvm_status (*project)(const kvm_recurrent *l, const kvm_step *s, kvm_tensor x,
                          const kvm_recurrent_inputs *in, kvm_arena temp, kvm_err *err);
    kvm_status (*gate)(const kvm_recurrent *l, const kvm_step *s, kvm_tensor x,
                       kvm_tensor z, kvm_arena temp, kvm_err *err);
};

/* sizes of the config and the unit norms; weights and functions are the kind's to fill */
KVM_MUST kvm_status kvm_recurrent_of(kvm_recurrent *out, kvm_arena *keep,
                                     const kvm_config *c, kvm_err *err);

/* kvm_layer_kind's; scratch besides what project and gate take of temp */
ptrdiff_t kvm_recurrent_objects(const kvm_config *c, ptrdiff_t layer,
                                const kvm_rope *rope, kvm_object *out);
size_t kvm_recurrent_scratch(const kvm_layer *l, ptrdiff_t n);
KVM_MUST kvm_status kvm_recurrent_forward(const kvm_layer *l, const kvm_step *step,
                                          kvm_tensor x, kvm_tensor y, kvm_err *err);
KVM_MUST kvm_status kvm_recurrent_replay(const kvm_layer *l, const kvm_step *step,
                                         kvm_tensor x, kvm_err *err);

/* a log-decay from the layer's rate exp(A) > 0 and the projected number: -rate softplus(x) */
float kvm_log_decay(float rate, float x);
/* n numbers become their sigmoid */
void kvm_sigmoid(float *x, ptrdiff_t n);

#endif
