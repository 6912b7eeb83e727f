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
    kvm_state_way states;
    bool engine; /* latents as an engine keeps them, capture point 3; else point 1 */
    bool dense;  /* index keys are left out, and the whole prefix looked at */
} kvm_outline_options;

typedef struct kvm_outline {
    kvm_key_space keys;
    kvm_token_kind token;
    kvm_state_way states; /* not AUTO; of a target without states: ZERO */
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
 * geometries that differ */
KVM_MUST kvm_status kvm_outline_make(kvm_outline *out, const kvm_outline_options *o,
                                     const kvm_shapes *source, const kvm_shapes *target,
                                     kvm_err *err);

/* whether a fit of one makes what a fit of the other makes, as far as options say */
bool kvm_outline_same(const kvm_outline *a, const kvm_outline *b);

/* kvm_outline_state_source - the source layer whose state a target layer gets: at the
 * same relative depth among the layers that keep one */
ptrdiff_t kvm_outline_state_source(const kvm_shapes *source, const kvm_shapes *target,
                                   ptrdiff_t target_layer);

#endif
