#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "workers/crew.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/os.h"

/* The page that is shared. Two rooms in turn: who is in the next call already may write
 * while others still read what the last one gave. */
typedef struct shared {
    _Atomic long arrived; /* at calls, of all ranks so far */
    char room[];          /* (2, size * KVM_TEAM_PIECE) */
} shared;

struct kvm_crew {
    shared *s;
    size_t bytes;
    int size;
    long calls; /* of this process */
};

static void unmap(void *arg)
{
    kvm_crew *c = arg;
    kvm_os->munmap(c->s, c->bytes);
}

kvm_status kvm_crew_new(kvm_crew **out, kvm_arena *keep, int size, kvm_err *err)
{
    if (size < 1 || size > KVM_CREW_MOST)
        return kvm_fail(err, KVM_RANGE, "a crew of %d; 1 to %d are possible", size,
                        KVM_CREW_MOST);
    kvm_crew *c = kvm_new(keep, kvm_crew, 1);
    if (!c) return kvm_nomem(err, keep);
    c->size = size;
    c->bytes = sizeof *c->s + 2 * (size_t)size * KVM_TEAM_PIECE;
    void *p = kvm_os->mmap(c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                           -1, 0);
    if (p == MAP_FAILED)
        return kvm_fail(err, KVM_NOMEM, "cannot share %zu bytes of memory", c->bytes);
    c->s = p;
    *out = c;
    return kvm_arena_defer(keep, unmap, c, err);
}

static kvm_status gather(kvm_team *t, const void *mine, ptrdiff_t n, const void **all,
                         kvm_err *err)
{
    enum { SPINS = 2000 };
    (void)err;
    kvm_crew *c = t->ctx;
    char *room = c->s->room + (c->calls++ % 2) * t->size * (ptrdiff_t)KVM_TEAM_PIECE;
    memcpy(room + t->rank * n, mine, (size_t)n);
    atomic_fetch_add(&c->s->arrived, 1);
    for (long spin = 0; atomic_load(&c->s->arrived) < c->calls * t->size; spin++)
        if (spin > SPINS) kvm_sleep(0.0001); /* others compute: leave them the CPU */
    *all = room;
    return KVM_OK;
}

void kvm_crew_join(kvm_crew *c, int rank, kvm_team *t)
{
    *t = (kvm_team){.rank = rank, .size = c->size, .gather = gather, .ctx = c};
}
