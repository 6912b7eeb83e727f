/* arena.h - memory with one lifetime.
 *
 * An arena is an address range reserved once and handed out from the front; pages cost
 * memory only when touched. Results go into `kvm_arena *keep`; temporaries into
 * `kvm_arena scratch`, passed BY VALUE: they vanish when the callee returns, on error
 * paths too. A spent arena gives NULL, which the caller turns into KVM_NOMEM
 * (kvm_nomem). Files, maps and handles register a cleanup on keep, run in reverse by
 * kvm_arena_free / kvm_arena_reset; never on a by-value scratch. */
#ifndef KVM_BASE_ARENA_H
#define KVM_BASE_ARENA_H

#include <stddef.h>

#include "base/status.h"

typedef struct kvm_cleanup kvm_cleanup;

typedef struct kvm_arena {
    char *base, *at, *end; /* reserved range; at is the first free byte */
    kvm_cleanup *cleanups; /* newest first */
    bool owns;             /* base was mapped by kvm_arena_init */
} kvm_arena;

/* kvm_arena_init - reserve `bytes` of address space (MAP_NORESERVE). KVM_NOMEM. */
KVM_MUST kvm_status kvm_arena_init(kvm_arena *a, size_t bytes, kvm_err *err);
/* kvm_arena_reserve - at most `bytes`, for who cannot know the need and asks for more
 * than enough. Where address space is limited (`ulimit -v`, strict overcommit in a
 * container) a quarter of what there is, so that the next ones and the libraries find
 * room too; at least KVM_ARENA_LEAST, else KVM_NOMEM says what to raise. */
enum { KVM_ARENA_LEAST = 16 << 20 };
KVM_MUST kvm_status kvm_arena_reserve(kvm_arena *a, size_t bytes, kvm_err *err);
void kvm_arena_free(
    kvm_arena *a); /* cleanups in reverse, then unmap; safe on a zero arena */
void kvm_arena_reset(
    kvm_arena *a); /* cleanups in reverse, then empty; gives pages back */

/* kvm_arena_alloc - count*size bytes aligned to align (power of two), zeroed; NULL when
 * spent or when the product overflows. kvm_arena_alloc_raw leaves the bytes as they
 * are. */
void *kvm_arena_alloc(kvm_arena *a, size_t size, size_t align, ptrdiff_t count);
void *kvm_arena_alloc_raw(kvm_arena *a, size_t size, size_t align, ptrdiff_t count);

#define kvm_new(a, type, n)                                                            \
    ((type *)kvm_arena_alloc(a, sizeof(type), _Alignof(type), n))
/* numbers for vector code: 64-byte aligned, not zeroed */
#define kvm_new_raw(a, type, n) ((type *)kvm_arena_alloc_raw(a, sizeof(type), 64, n))

/* kvm_arena_split - carve `bytes` off as an arena of its own (shares memory, no
 * cleanups); an arena of zero bytes when there is not enough. */
kvm_arena kvm_arena_split(kvm_arena *a, size_t bytes);
size_t kvm_arena_used(const kvm_arena *a);
size_t kvm_arena_left(const kvm_arena *a);

/* kvm_arena_defer - run fn(arg) when the arena is freed or reset. KVM_NOMEM (fn has
 * then been run). */
KVM_MUST kvm_status kvm_arena_defer(kvm_arena *a, void (*fn)(void *), void *arg,
                                    kvm_err *err);

#define kvm_nomem(err, a)                                                              \
    kvm_fail(err, KVM_NOMEM, "arena of %zu bytes is spent (%zu used)",                 \
             (size_t)((a)->end - (a)->base), kvm_arena_used(a))

#endif
