/* team.h - the ranks that work on one job together.
 *
 * Every rank runs the same run() over the same inputs, in a process of its own, and
 * computes a share of the expensive things; then all of them get all of it, in an order
 * that does not depend on how many there are. So each rank goes through the same states
 * as one alone would, and a job's result is the same bits for any number of ranks, each
 * with as many threads as the one. Only the rank that leads (0) writes outputs and is
 * heard by the host.
 *
 * All ranks make the same calls in the same order. When one of them fails, it says so
 * with kvm_team_agree, and the others learn it from whatever call they wait in: all
 * then fail with the same error, that of the lowest rank that failed. What moves bytes
 * is one function, of the driver: forked processes that share memory (workers/crew.h),
 * or MPI (workers/gang_mpi.c). */
#ifndef KVM_JOBS_TEAM_H
#define KVM_JOBS_TEAM_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* bytes that a rank brings to one gather at most: larger arrays come in pieces */
enum { KVM_TEAM_PIECE = 1 << 20 };

typedef struct kvm_team kvm_team;
struct kvm_team {
    int rank, size;
    /* every rank's n bytes (n <= KVM_TEAM_PIECE, the same on all) side by side in the
     * order of ranks: *all (size, n), valid until the next call. A failure is the
     * driver's own, and final. NULL of a team of one. */
    kvm_status (*gather)(kvm_team *t, const void *mine, ptrdiff_t n, const void **all,
                         kvm_err *err);
    void *ctx;
    /* private: all have heard of a failure that not all have answered for yet */
    bool failing;
    kvm_err why;
};

/* a team of one, whose calls do nothing; it is never written */
extern kvm_team kvm_team_alone;

static inline bool kvm_team_leads(const kvm_team *t)
{
    return t->rank == 0;
}
/* whether piece i of what is dealt out is this rank's */
static inline bool kvm_team_mine(const kvm_team *t, ptrdiff_t i)
{
    return i % t->size == t->rank;
}

/* kvm_team_agree - all ranks come here with how they fared: KVM_OK when all fared well,
 * else everybody gets the same status and error. The team may go on after it. A rank
 * whose status came from another call of the team's answers for it here too. */
KVM_MUST kvm_status kvm_team_agree(kvm_team *t, kvm_status mine, kvm_err *err);

/* kvm_team_wait - returns when all ranks have come here, and what they have written
 * into files can be read */
KVM_MUST kvm_status kvm_team_wait(kvm_team *t, kvm_err *err);
/* kvm_team_unite - n bytes of which each was set by one rank at most, and is 0 on all
 * the others: as they were set, on all. Exact, whatever they stand for. */
KVM_MUST kvm_status kvm_team_unite(kvm_team *t, void *bytes, ptrdiff_t n, kvm_err *err);
/* kvm_team_sum - x (n) becomes the sum over ranks, added in their order */
KVM_MUST kvm_status kvm_team_sum(kvm_team *t, double *x, ptrdiff_t n, kvm_err *err);
/* kvm_team_add - sum (n), equal on all ranks, += part (n) of ranks 0, 1 .. parts-1, one
 * after the other: dealt out to any number of ranks, terms are added in one order */
KVM_MUST kvm_status kvm_team_add(kvm_team *t, float *sum, const float *part,
                                 ptrdiff_t n, int parts, kvm_err *err);
/* kvm_team_pass - n bytes (the same on all) go to the next rank: rank r > 0 gets what
 * r-1 had, rank 0 keeps its own, and the last rank's are gone. So what is worked on
 * moves through the ranks like pieces on a belt: all call it at each of its steps,
 * whether they have something on it or not. */
KVM_MUST kvm_status kvm_team_pass(kvm_team *t, void *bytes, ptrdiff_t n, kvm_err *err);
/* kvm_team_same - KVM_MISMATCH unless all ranks say the same text, which is of what
 * (backend, say) their bits hang on; it names two that differ */
KVM_MUST kvm_status kvm_team_same(kvm_team *t, const char *what, const char *text,
                                  kvm_err *err);

#endif
