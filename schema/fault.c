#include "schema/fault.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const names[KVM_FAULT_COUNT] = {
#define X(NAME, name, what) [KVM_FAULT_##NAME] = #name,
#include "schema/faults.def"
#undef X
};

const char *kvm_fault_name(kvm_fault_id id)
{
    return names[id];
}

void kvm_fault(kvm_fault_id id)
{
    static atomic_int passings;
    const char *set = getenv("KVMILL_FAULT");
    if (!set) return;
    const size_t n = strlen(names[id]);
    if (strncmp(set, names[id], n) != 0 || (set[n] != ':' && set[n] != 0)) return;
    const long at = set[n] == ':' ? strtol(set + n + 1, NULL, 10) : 1;
    if (atomic_fetch_add(&passings, 1) + 1 == at) _exit(137);
}
