/* outline.h - what a translator between two models will consist of, before any of it is
 * made: which mappings, in which groups; what becomes of states; where tokens come
 * from; and so which rows both captures must hold and which products of them are
 * needed. */
#ifndef KVM_TRANSLATORS_OUTLINE_H
#define KVM_TRANSLATORS_OUTLINE_H

#include "translators/translator.h"

/* How a target's recurrent layers come by their states. */
#define KVM_STATE_WAYS(X)                                                              \
    X(0, AUTO, "auto", "bilinear where both models keep one geometry, else replay")    \
    X(1, ZERO, "zero", "they start empty")                                             \
    X(2, COPY, "copy", "those of the source's layers at the same depth")               \
    X(3, BILINEAR, "bilinear", "copied, then corrected in closed form")                \
    X(4, REPLAY, "replay", "the target's own recurrence over predicted inputs")
typedef enum kvm_state_way {
#define X(id, name, text, what) KVM_STATES_##name = id,
    KVM_STATE_WAYS(X)
#undef X
} kvm_state_way;
const char *kvm_state_way_name(kvm_state_way w);                  /* static */
const char *kvm_state_way_what(kvm_state_way w);                  /* static */
kvm_status kvm_state_way_of_name(kvm_str name, kvm_state_way *w); /* KVM_NOTFOUND */

typedef struct kvm_outline_options {
    kvm_key_space keys;
    bool token_given; /* token says; else where a target needs it, as the source can */
    kvm_token_kind token;
    kvm_state_way states;      /* of every recurrent layer of the target; */
    const kvm_state_way *each; /* else (ways) in their order; borrowed. NULL: states */
    ptrdiff_t ways;
    bool engine; /* latents as an engine keeps them, capture point 3; else point 1 */
    bool dense;  /* index keys are left out, and the whole prefix looked at */
} kvm_outline_options;

typedef struct kvm_outline {
    kvm_key_space keys;
    kvm_token_kind token;
    kvm_state_way states; /* of a target without states: ZERO; AUTO: layers differ */
    const kvm_state_way *each; /* by recurrent layer, as the options list them; NULL:
                                  all as states says */
    ptrdiff_t ways;
    kvm_mapping mapping[KVM_SPACES];
    int group[KVM_SPACES]; /* mappings of one group share a choice of source layers */
    int mappings, groups;
    bool exact;                /* the first layer's latents follow from the token */
    bool dense;                /* index keys are left out */
    kvm_spaces source, target; /* rows that the captures hold */
    kvm_block_set gram, cross, own; /* products of the moments files */
} kvm_outline;

/* kvm_outline_make - KVM_UNSUPPORTED names what no recipe makes, or says that there are
 * no index keys to leave out; KVM_MISMATCH when states shall be copied between
 * geometries that differ; KVM_RANGE when not one way is listed for each recurrent
 * layer */
KVM_MUST kvm_status kvm_outline_make(kvm_outline *out, const kvm_outline_options *o,
                                     const kvm_shapes *source, const kvm_shapes *target,
                                     kvm_err *err);

/* how a recurrent layer of the target comes by its state */
kvm_state_way kvm_outline_way(const kvm_outline *o, const kvm_shapes *target,
                              ptrdiff_t layer);
/* whether a step makes these rows of the layer: inputs only of layers that replay */
bool kvm_outline_makes(const kvm_outline *o, const kvm_shapes *target, kvm_space space,
                       ptrdiff_t layer);

/* whether a fit of one makes what a fit of the other makes, as far as options say */
bool kvm_outline_same(const kvm_outline *a, const kvm_outline *b);

/* layers of a model that keep a state, or are made to */
ptrdiff_t kvm_outline_recurrent(const kvm_shapes *s);

/* kvm_outline_state_source - the source layer whose state a target layer gets: at the
 * same relative depth among the layers that keep one */
ptrdiff_t kvm_outline_state_source(const kvm_shapes *source, const kvm_shapes *target,
                                   ptrdiff_t target_layer);

#endif
