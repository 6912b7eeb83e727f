/* recurrent.h - a layer that keeps a state, however it is projected: the short
 * convolution, the rule by which the state moves on, the gate, and the two objects that
 * it keeps, a state and a window. The rule of here is the gated delta rule over keys
 * and queries of unit length.
 *
 * A kind's struct begins with kvm_recurrent and adds its projections; forward, replay
 * and objects of its table are those of here. */
#ifndef KVM_MODELS_RECURRENT_H
#define KVM_MODELS_RECURRENT_H

#include "models/activation.h"
#include "models/layer.h"

enum { KVM_RECURRENT_STATE, KVM_RECURRENT_WINDOW, KVM_RECURRENT_OBJECTS };

/* what a token's projections give, of T tokens of the layer's input */
typedef struct kvm_recurrent_inputs {
    kvm_tensor u;     /* (T, channels) before the convolution: q|k|v */
    kvm_tensor decay; /* (T,H), or (T, H*K) per channel: log; of Mamba-2 the step */
    kvm_tensor beta;  /* (T,H); of Mamba-2 unused */
} kvm_recurrent_inputs;

typedef struct kvm_recurrent kvm_recurrent;
struct kvm_recurrent {
    kvm_layer base;
    kvm_recurrent_config size;
    ptrdiff_t hidden, channels, values; /* numbers of a token's x, of q|k|v, of v, */
    ptrdiff_t inputs;                   /* of all that the rule reads */
    double eps;
    bool per_channel;             /* decay */
    bool unit;                    /* q and k of unit length before the rule */
    bool sigmoid;                 /* the gate; else silu */
    bool gate_first;              /* the norm sees what went through the gate */
    float *conv, *conv_bias;      /* (channels, window); (channels), or NULL */
    float *unit_query, *unit_key; /* (key_dim) of norms that give unit length */
    float *norm;                  /* (norm_width), of groups of norm_group numbers */
    ptrdiff_t norm_width, norm_group; /* value_dim, unless the kind says otherwise */
    kvm_weight *out;                  /* (hidden, values) */
    /* x (T,hidden) -> in; and the gate z (T, values) */
    kvm_status (*project)(const kvm_recurrent *l, const kvm_step *s, kvm_tensor x,
                          const kvm_recurrent_inputs *in, kvm_arena temp, kvm_err *err);
    kvm_status (*gate)(const kvm_recurrent *l, const kvm_step *s, kvm_tensor x,
                       kvm_tensor z, kvm_arena temp, kvm_err *err);
    /* dx += what the projections owe to x, given d, gradients of what project gave (in,
     * of which u is not looked at), which are overwritten; likewise of the gate */
    kvm_status (*project_back)(const kvm_recurrent *l, const kvm_step *s,
                               const kvm_recurrent_inputs *in,
                               const kvm_recurrent_inputs *d, kvm_tensor dx,
                               kvm_arena temp, kvm_err *err);
    kvm_status (*gate_back)(const kvm_recurrent *l, const kvm_step *s, kvm_tensor dz,
                            kvm_tensor dx, kvm_arena temp, kvm_err *err);
    /* in, its u after the convolution and of unit length -> o (T, values); state, its
     * numbers as the slot has them, moves on by T tokens */
    kvm_status (*rule)(const kvm_recurrent *l, const kvm_step *s,
                       const kvm_recurrent_inputs *in, float *state, kvm_tensor o,
                       kvm_err *err);
    /* gradients d of in; dstate from that of the state after the tokens to that of
     * `state`, which stood before them */
    kvm_status (*rule_back)(const kvm_recurrent *l, const kvm_step *s,
                            const kvm_recurrent_inputs *in,
                            const kvm_recurrent_inputs *d, float *state, float *dstate,
                            kvm_tensor dout, kvm_err *err);
};

/* sizes of the config, the unit norms and the delta rule; weights and the other
 * functions are the kind's to fill */
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

/* likewise (recurrent_back.c) */
size_t kvm_recurrent_backward_scratch(const kvm_layer *l, ptrdiff_t first, ptrdiff_t n);
KVM_MUST kvm_status kvm_recurrent_backward(const kvm_layer *l, const kvm_step *step,
                                           kvm_tensor x, kvm_tensor dy, kvm_tensor dx,
                                           kvm_err *err);
KVM_MUST kvm_status kvm_recurrent_replay_back(const kvm_layer *l, const kvm_step *step,
                                              kvm_tensor x, kvm_tensor dx,
                                              kvm_err *err);

/* the rest are shared by kinds and by recurrent_back.c */

/* numbers of decays of a token */
ptrdiff_t kvm_recurrent_decays(const kvm_recurrent *r);
/* y (T,channels) = the convolution of u, window moves on; u may be y */
KVM_MUST kvm_status kvm_recurrent_mix(const kvm_recurrent *r, const kvm_step *s,
                                      kvm_tensor y, kvm_tensor u, float *window,
                                      kvm_err *err);
/* q and k of u (T,channels) become of unit length, where the kind says so */
KVM_MUST kvm_status kvm_recurrent_units(const kvm_recurrent *r, const kvm_step *s,
                                        kvm_tensor u, kvm_err *err);
/* the gradient by u, in place, from that by what became of it */
KVM_MUST kvm_status kvm_recurrent_units_back(const kvm_recurrent *r, const kvm_step *s,
                                             kvm_tensor u, kvm_tensor du, kvm_err *err);

/* a log-decay from the layer's rate exp(A) > 0 and the projected number: -rate
 * softplus(x) */
float kvm_log_decay(float rate, float x);
/* its slope by x, where it is y */
float kvm_log_decay_slope(float rate, float y);
/* n numbers become their sigmoid; gradients of those, y, become gradients of the
 * numbers */
void kvm_sigmoids(float *x, ptrdiff_t n);
void kvm_sigmoids_back(float *d, const float *y, ptrdiff_t n);

#endif
