/* step_key.h - the name of a step: SHA-256 over the canonical JSON of all that its
 * result depends on. Equal keys, equal results; so an equal step is done once. */
#ifndef KVM_SCHEMA_STEP_KEY_H
#define KVM_SCHEMA_STEP_KEY_H

#include <jansson.h>

#include "base/json.h"

typedef struct kvm_step_facts {
    const char *kind;
    int version;
    const json_t *params, *identity; /* NULL: {} */
    const kvm_str *input_names;      /* [input_count], distinct */
    const kvm_str *input_shas;
    ptrdiff_t input_count;
    kvm_str machine; /* class of the machine, of timings only; else empty */
} kvm_step_facts;

/* kvm_step_key - hex of {identity, inputs: {name: sha}, kind, machine?, params,
 * version} */
KVM_MUST kvm_status kvm_step_key(char key[65], const kvm_step_facts *step,
                                 kvm_arena scratch, kvm_err *err);

#endif
