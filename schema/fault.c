#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "schema/fault.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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

/* Passings are counted in memory that a worker shares with its children: the second
 * attempt of a job gets past a point where the first one died. */
static _Atomic long *passings(void)
{
    static _Atomic long *count;
    if (!count) {
        void *p = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) _exit(137);
        count = p;
    }
    return count;
}

void kvm_fault(kvm_fault_id id)
{
    const char *set = getenv("KVMILL_FAULT");
    if (!set) return;
    const size_t n = strlen(names[id]);
    _Atomic long *count = passings();
    if (strncmp(set, names[id], n) != 0 || (set[n] != ':' && set[n] != 0)) return;
    const long at = set[n] == ':' ? strtol(set + n + 1, NULL, 10) : 1;
    if (atomic_fetch_add(count, 1) + 1 != at) return;
    kill(getpid(), SIGKILL);
    _exit(137);
}
