/* pool.h - a pool of threads for kernels.
 *
 * One parallel region at a time, entered only by the thread that owns the pool. Workers
 * spin for a short while, then sleep. Work is cut into `parts` with fixed bounds, so
 * the same thread count gives the same bits. Pool threads allocate nothing and talk to
 * nobody. n = 1 runs inline. */
#ifndef KVM_BASE_POOL_H
#define KVM_BASE_POOL_H

#include "base/arena.h"

typedef struct kvm_pool kvm_pool;
/* threads = 0: one per CPU this process may use (affinity). Joined by keep's cleanup.
 */
KVM_MUST kvm_status kvm_pool_new(kvm_pool **pool, kvm_arena *keep, int threads,
                                 kvm_err *err);
int kvm_pool_threads(const kvm_pool *pool); /* NULL: 1 */
/* kvm_pool_run - fn(ctx, part, thread) for part = 0 .. parts-1; parts are taken in
 * order by whoever is free (dynamic); results must not depend on which thread ran a
 * part. thread < kvm_pool_threads. */
void kvm_pool_run(kvm_pool *pool, ptrdiff_t parts,
                  void (*fn)(void *ctx, ptrdiff_t part, int thread), void *ctx);

#endif
