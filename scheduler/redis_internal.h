/* redis_internal.h - shared by redis.c (the connection) and redis_reply.c (what comes
 * through it). */
#ifndef KVM_SCHEDULER_REDIS_INTERNAL_H
#define KVM_SCHEDULER_REDIS_INTERNAL_H

#include <hiredis.h>

#include "scheduler/redis.h"

/* The most that one exchange may bring. */
enum { KVM_REDIS_MOST_ITEMS = 1 << 16, KVM_REDIS_MOST_BYTES = 16 << 20 };

/* kvm_redis__reader - a parser that makes kvm_reply in *keep, whose address it keeps;
 * NULL: no memory. Ended by redisReaderFree. */
redisReader *kvm_redis__reader(kvm_arena *keep);
/* kvm_redis__next - the next whole answer among the bytes that the reader was fed;
 * *reply NULL: more are needed. KVM_FORMAT: none can follow. */
KVM_MUST kvm_status kvm_redis__next(redisReader *reader, const kvm_reply **reply,
                                    kvm_err *err);

#endif
