/* Any text as a queue's address: refused with a reason, or read with everything in its
 * range; and no message and no shown address has the password. */
#include <stdint.h>
#include <stdlib.h>

#include "scheduler/redis.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define SECRET "s3cr3t-7f1c"

static void check_whole(const kvm_redis_address *a)
{
    const bool local = a->host.len == 0;
    if (a->db < 0 || a->shown.len == 0 || local == (a->path.len == 0)) abort();
    if (local ? a->path.at[0] != '/' : a->port < 1 || a->port > 65535) abort();
}

/* secret: whether what is shown would be the password */
static void read_one(kvm_arena *keep, kvm_str where, bool secret)
{
    kvm_redis_address a;
    kvm_err err = {0};
    if (kvm_redis_address_read(&a, keep, where, &err)) {
        a.shown = kvm_str_of(err.msg);
        if (a.shown.len == 0) abort();
    } else {
        check_whole(&a);
    }
    if (secret && kvm_str_find(a.shown, KVM_STR(SECRET)) >= 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const before[] = {"redis://me:" SECRET,
                                         "redis+unix://me:" SECRET};
    kvm_arena keep;
    const kvm_str text = {(const char *)data, (ptrdiff_t)size};
    const bool secret = kvm_str_find(text, KVM_STR(SECRET)) < 0;
    if (kvm_arena_init(&keep, (size_t)1 << 24, NULL)) return 0;
    read_one(&keep, text, false);
    for (int i = 0; i < 2; i++)
        read_one(&keep, kvm_str_fmt(&keep, "%s%.*s", before[i], KVM_STR_ARG(text)),
                 secret);
    kvm_arena_free(&keep);
    return 0;
}
