/* Any bytes as what a Redis server answers, and any text as a batch: read, or refused,
 * and read by whatever asks. */
#include <stdint.h>
#include <stdlib.h>

#include "scheduler/queue_redis.h"
#include "scheduler/redis_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void walk(const kvm_reply *r, int depth)
{
    kvm_str id;
    kvm_job_batch b;
    if (depth > 9) abort();
    kvm_stream__entry(r, &id, &b);
    kvm_reply_number(kvm_reply_of(r, "pending"));
    kvm_reply_text(kvm_reply_at(kvm_reply_at(r, 0), r->count - 1));
    for (ptrdiff_t i = 0; i < r->count; i++) walk(kvm_reply_at(r, i), depth + 1);
}

/* What was read is written as it was. */
static void one_batch(kvm_str text)
{
    kvm_job_batch b, again;
    char out[KVM_BATCH_TEXT];
    if (!kvm_batch_read(&b, text)) return;
    if (b.count < 1 || b.count > KVM_BATCH_MOST) abort();
    if (!kvm_batch_read(&again, kvm_batch_write(&b, out)) || again.count != b.count)
        abort();
    for (ptrdiff_t i = 0; i < b.count; i++)
        if (again.jobs[i].job != b.jobs[i].job ||
            again.jobs[i].token != b.jobs[i].token)
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvm_arena keep;
    kvm_err err = {0};
    const kvm_reply *reply;
    one_batch((kvm_str){(const char *)data, (ptrdiff_t)size});
    if (kvm_arena_init(&keep, (size_t)1 << 24, &err)) return 0;
    redisReader *r = kvm_redis__reader(&keep);
    for (size_t at = 0; r && at < size; at++) { /* byte by byte, as a network may */
        if (redisReaderFeed(r, (const char *)data + at, 1)) break;
        if (kvm_redis__next(r, &reply, &err)) {
            if (err.msg[0] == 0) abort();
            break;
        }
        if (reply) walk(reply, 0);
    }
    if (r) redisReaderFree(r);
    kvm_arena_free(&keep);
    return 0;
}
