#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, MAP_NORESERVE, madvise */
#include "base/arena.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "base/os.h"

#ifndef __has_feature /* clang's way to ask what gcc says with __SANITIZE_ADDRESS__ */
#define __has_feature(x) 0
#endif

/* Under AddressSanitizer a poisoned red zone stands behind each block, so that an
 * overrun is caught inside an arena too. (Poisoning all that is free would touch the
 * shadow of every reserved byte.) */
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
enum { RED_ZONE = 32, FRONT = 4096 };
static void hide(const char *p, size_t n)
{
    ASAN_POISON_MEMORY_REGION(p, n);
}
static void show(const char *p, size_t n)
{
    ASAN_UNPOISON_MEMORY_REGION(p, n);
}
/* A page in front of what an arena maps says how far it or a copy of it ever went: to
 * unpoison all that is reserved would touch 128 GiB of shadow for the program's
 * arena. */
static char **high(const kvm_arena *a)
{
    return (char **)(void *)(a->base - FRONT);
}
static void went(const kvm_arena *a)
{
    if (a->owns && a->at > *high(a)) *high(a) = a->at;
}
static void show_all(const kvm_arena *a)
{
    if (*high(a)) show(a->base, (size_t)(*high(a) - a->base));
    *high(a) = NULL;
}
#else
enum { RED_ZONE = 0, FRONT = 0 };
static void hide(const char *p, size_t n)
{
    (void)p, (void)n;
}
static void show(const char *p, size_t n)
{
    (void)p, (void)n;
}
static void went(const kvm_arena *a)
{
    (void)a;
}
static void show_all(const kvm_arena *a)
{
    (void)a;
}
#endif

enum { HUGE_FROM = 1 << 25 }; /* reserved bytes from which huge pages are asked for */

struct kvm_cleanup {
    void (*fn)(void *);
    void *arg;
    kvm_cleanup *next;
};

kvm_status kvm_arena_init(kvm_arena *a, size_t bytes, kvm_err *err)
{
    const size_t page = 4096;
    if (bytes > PTRDIFF_MAX - 2 * page)
        return kvm_fail(err, KVM_NOMEM, "cannot reserve %zu bytes", bytes);
    bytes = bytes < page ? page : (bytes + page - 1) / page * page;
    char *base = kvm_os->mmap(bytes + FRONT, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return kvm_fail(err, KVM_NOMEM,
                        "cannot reserve %zu MiB of address space: raise the limit "
                        "(`ulimit -v`) or the memory of the container",
                        bytes >> 20);
    /* rows streamed through huge pages come faster by a third; only a hint, and small
     * arenas stay small */
    if (bytes >= HUGE_FROM) madvise(base, bytes + FRONT, MADV_HUGEPAGE);
    base += FRONT;
    *a = (kvm_arena){.base = base, .at = base, .end = base + bytes, .owns = true};
    return KVM_OK;
}

kvm_status kvm_arena_reserve(kvm_arena *a, size_t bytes, kvm_err *err)
{
    size_t room = bytes > PTRDIFF_MAX / 8 ? PTRDIFF_MAX / 2 : 4 * bytes;
    const size_t least = 4 * (size_t)KVM_ARENA_LEAST;
    while (room > least && kvm_arena_init(a, room, NULL)) room /= 2;
    if (room <= least) return kvm_arena_init(a, KVM_ARENA_LEAST, err);
    kvm_arena_free(a);
    return kvm_arena_init(a, room / 4, err);
}

static void run_cleanups(kvm_arena *a)
{
    while (a->cleanups) {
        const kvm_cleanup c = *a->cleanups;
        a->cleanups = c.next;
        c.fn(c.arg);
    }
}

void kvm_arena_free(kvm_arena *a)
{
    run_cleanups(a);
    if (a->owns) {
        show_all(a);
        kvm_os->munmap(a->base - FRONT, (size_t)(a->end - a->base) + FRONT);
    }
    *a = (kvm_arena){0};
}

void kvm_arena_reset(kvm_arena *a)
{
    run_cleanups(a);
    if (a->owns) {
        /* A scratch copy may have written beyond `at`, so the whole range is given
         * back. */
        show_all(a);
        madvise(a->base, (size_t)(a->end - a->base), MADV_DONTNEED);
    }
    a->at = a->base;
}

void *kvm_arena_alloc_raw(kvm_arena *a, size_t size, size_t align, ptrdiff_t count)
{
    size_t bytes;
    if (count < 0 || __builtin_mul_overflow(size, (size_t)count, &bytes)) return NULL;
    const size_t left = kvm_arena_left(a);
    const size_t pad = -(uintptr_t)a->at & (align - 1);
    if (pad > left || bytes > left - pad) return NULL;
    if (!a->at) return NULL; /* zero bytes of an arena that was never made */
    char *p = a->at + pad;
    const size_t rest = left - pad - bytes;
    const size_t red = rest > RED_ZONE ? RED_ZONE : rest;
    a->at = p + bytes + red;
    went(a);
    show(p, bytes);
    hide(p + bytes, red);
    return p;
}

void *kvm_arena_alloc(kvm_arena *a, size_t size, size_t align, ptrdiff_t count)
{
    void *p = kvm_arena_alloc_raw(a, size, align, count);
    return p ? memset(p, 0, size * (size_t)count) : NULL;
}

kvm_arena kvm_arena_split(kvm_arena *a, size_t bytes)
{
    char *base =
        bytes > PTRDIFF_MAX ? NULL : kvm_arena_alloc_raw(a, 1, 64, (ptrdiff_t)bytes);
    if (!base) return (kvm_arena){0};
    return (kvm_arena){.base = base, .at = base, .end = base + bytes};
}

size_t kvm_arena_used(const kvm_arena *a)
{
    return (size_t)(a->at - a->base);
}

size_t kvm_arena_left(const kvm_arena *a)
{
    return (size_t)(a->end - a->at);
}

kvm_status kvm_arena_defer(kvm_arena *a, void (*fn)(void *), void *arg, kvm_err *err)
{
    kvm_cleanup *c = kvm_new(a, kvm_cleanup, 1);
    if (!c) {
        fn(arg);
        return kvm_nomem(err, a);
    }
    *c = (kvm_cleanup){.fn = fn, .arg = arg, .next = a->cleanups};
    a->cleanups = c;
    return KVM_OK;
}
