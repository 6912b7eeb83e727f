/* states.c - names and classes of states.def. */
#include "schema/job_state.h"

static const struct {
    const char *name;
    kvm_state_class class;
} states[KVM_STATE_COUNT] = {
#define X(NAME, name, class) [KVM_STATE_##NAME] = {#name, KVM_CLASS_##class},
#include "schema/states.def"
#undef X
};

const char *kvm_state_name(kvm_job_state s)
{
    return states[s].name;
}
kvm_state_class kvm_state_class_of(kvm_job_state s)
{
    return states[s].class;
}

bool kvm_state_find(kvm_str name, kvm_job_state *s)
{
    for (int i = 0; i < KVM_STATE_COUNT; i++)
        if (kvm_str_eq(name, kvm_str_of(states[i].name))) {
            *s = (kvm_job_state)i;
            return true;
        }
    return false;
}
