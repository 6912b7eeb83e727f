/* queue_audit.c - the Redis queue as a scheduler sees it: what waits, what was taken
 * and never settled, what is left over.
 *
 * A stream holds the entries that wait and those that workers have; settled ones are
 * deleted. Left over may be: entries of workers that died or whose answer was lost
 * (pending for long: taken back and dropped, the scheduler sends their jobs again if
 * nobody has them); entries that were acknowledged and not deleted, or that no group
 * knows any more (they lie below the oldest pending one: trimmed); consumers that are
 * gone; streams that nobody reads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/queue_redis.h"

static const double CONSUMER_S = 600; /* without a sign of life: it would come back */
enum { PAGE = 256, PAGES = 1000 };

/* "milliseconds-number"; a stream's entries are ordered by both */
typedef struct entry_id {
    int64_t ms, seq;
} entry_id;

static bool read_id(kvm_str text, entry_id *id)
{
    kvm_str ms, seq;
    return kvm_str_cut(text, '-', &ms, &seq) && kvm_str_to_i64(ms, &id->ms) &&
           kvm_str_to_i64(seq, &id->seq) && id->ms >= 0 && id->seq >= 0 &&
           id->seq < INT64_MAX;
}

static const kvm_str page = {"256", 3};

/* ---- waking ---- */

/* The id of what was heard last is sent along, so nothing is missed between two calls;
 * after a restart without data, whose ids may be less, everything is new. */
kvm_status kvm_stream__listen(kvm_queue *q, double seconds, kvm_err *err)
{
    kvm_redis_queue *s = q->impl;
    char ms[24];
    const kvm_reply *reply;
    snprintf(ms, sizeof ms, "%lld", (long long)(seconds * 1e3) + 1);
    const kvm_status got =
        kvm_redis_call(s->r,
                       KVM_WORDS(KVM_STR("XREAD"), KVM_STR("BLOCK"), kvm_str_of(ms),
                                 KVM_STR("STREAMS"), s->wake, kvm_str_of(s->heard)),
                       seconds, &reply, err);
    if (got) {
        snprintf(s->heard, sizeof s->heard, "0");
        return got;
    }
    const kvm_reply *entries = kvm_reply_at(kvm_reply_at(reply, 0), 1);
    const kvm_str id =
        kvm_reply_text(kvm_reply_at(kvm_reply_at(entries, entries->count - 1), 0));
    if (id.len > 0 && id.len < KVM_RECEIPT_BYTES)
        snprintf(s->heard, sizeof s->heard, "%.*s", KVM_STR_ARG(id));
    return KVM_OK;
}

/* ---- one stream ---- */

kvm_status kvm_stream__waiting(kvm_queue *q, const kvm_queue_class *class, ptrdiff_t *n,
                               kvm_err *err)
{
    kvm_redis_queue *s = q->impl;
    char key[KVM_STREAM_BYTES];
    const kvm_reply *all;
    TRY(kvm_stream__key(s, class, key, err));
    kvm_redis_add(s->r, KVM_WORDS(KVM_STR("XLEN"), kvm_str_of(key)));
    kvm_redis_add(s->r,
                  KVM_WORDS(KVM_STR("XPENDING"), kvm_str_of(key), KVM_STREAM_GROUP));
    TRY(kvm_redis_exchange(s->r, 0, &all, err));
    TRY(kvm_redis_refused(s->r, kvm_reply_at(all, 0), err));
    const kvm_reply *pending = kvm_reply_at(all, 1); /* no group: nothing was taken */
    const kvm_status refused = kvm_redis_refused(s->r, pending, NULL);
    if (refused && refused != KVM_NOTFOUND)
        return kvm_redis_refused(s->r, pending, err);
    const int64_t left = kvm_reply_number(kvm_reply_at(all, 0)) -
                         kvm_reply_number(kvm_reply_at(pending, 0));
    *n = left > 0 ? (ptrdiff_t)left : 0;
    return KVM_OK;
}

/* Pending for too long: into our hands, and gone. Entries that were deleted meanwhile
 * are nil in a list, or left out. */
static kvm_status take_back(const kvm_queue *q, kvm_str key, double idle_s,
                            kvm_err *err)
{
    kvm_redis_queue *s = q->impl;
    char ms[24], from[KVM_RECEIPT_BYTES] = "0-0";
    snprintf(ms, sizeof ms, "%lld", (long long)(idle_s * 1e3));
    for (int i = 0; i < PAGES; i++) {
        const kvm_reply *reply;
        TRY(kvm_redis_call(s->r,
                           KVM_WORDS(KVM_STR("XAUTOCLAIM"), key, KVM_STREAM_GROUP,
                                     q->o.name, kvm_str_of(ms), kvm_str_of(from),
                                     KVM_STR("COUNT"), page),
                           0, &reply, err));
        const kvm_str next = kvm_reply_text(kvm_reply_at(reply, 0));
        if (next.len >= KVM_RECEIPT_BYTES) return KVM_OK;
        snprintf(from, sizeof from, "%.*s", KVM_STR_ARG(next));
        const kvm_reply *entries = kvm_reply_at(reply, 1);
        ptrdiff_t found = 0;
        for (ptrdiff_t k = 0; k < entries->count; k++) {
            const kvm_str id =
                kvm_reply_text(kvm_reply_at(kvm_reply_at(entries, k), 0));
            if (id.len > 0) kvm_stream__done(s, key, id), found++;
        }
        if (found) TRY(kvm_stream__all(s, err));
        if (!strcmp(from, "0-0") || !from[0]) return KVM_OK;
    }
    return KVM_OK;
}

/* The first id that may still be needed: the oldest pending entry, else what comes
 * after the last one that was handed out. false: not known, or all are. */
static kvm_status first_needed(kvm_redis_queue *s, kvm_str key,
                               char least[KVM_RECEIPT_BYTES], kvm_err *err)
{
    const kvm_reply *reply;
    entry_id id;
    least[0] = 0;
    TRY(kvm_redis_call(s->r, KVM_WORDS(KVM_STR("XINFO"), KVM_STR("GROUPS"), key), 0,
                       &reply, err));
    const kvm_reply *group = kvm_reply_at(reply, 0);
    if (reply->count != 1) return KVM_OK; /* another's groups: nothing is trimmed */
    const int64_t pending = kvm_reply_number(kvm_reply_of(group, "pending"));
    if (!read_id(kvm_reply_text(kvm_reply_of(group, "last-delivered-id")), &id))
        return KVM_OK;
    id.seq++;
    if (pending > 0) {
        TRY(kvm_redis_call(s->r, KVM_WORDS(KVM_STR("XPENDING"), key, KVM_STREAM_GROUP),
                           0, &reply, err));
        if (!read_id(kvm_reply_text(kvm_reply_at(reply, 1)), &id)) return KVM_OK;
    }
    snprintf(least, KVM_RECEIPT_BYTES, "%lld-%lld", (long long)id.ms,
             (long long)id.seq);
    return KVM_OK;
}

static kvm_status trim(kvm_redis_queue *s, kvm_str key, kvm_err *err)
{
    char least[KVM_RECEIPT_BYTES];
    const kvm_reply *reply;
    TRY(first_needed(s, key, least, err));
    if (!least[0]) return KVM_OK;
    return kvm_redis_call(
        s->r, KVM_WORDS(KVM_STR("XTRIM"), key, KVM_STR("MINID"), kvm_str_of(least)), 0,
        &reply, err);
}

/* What is left; broken entries go. there() may not use the queue. */
static kvm_status tell(kvm_redis_queue *s, kvm_str key, kvm_queue_there *there,
                       void *ctx, kvm_err *err)
{
    char from[KVM_RECEIPT_BYTES + 1] = "-";
    for (int i = 0; i < PAGES; i++) {
        const kvm_reply *list;
        bool broken = false;
        TRY(kvm_redis_call(s->r,
                           KVM_WORDS(KVM_STR("XRANGE"), key, kvm_str_of(from),
                                     KVM_STR("+"), KVM_STR("COUNT"), page),
                           0, &list, err));
        const ptrdiff_t n = list->count;
        for (ptrdiff_t k = 0; k < n; k++) {
            kvm_str id;
            kvm_job_batch b;
            if (kvm_stream__entry(kvm_reply_at(list, k), &id, &b)) {
                TRY(there(ctx, &b, err));
            } else if (id.len > 0) {
                kvm_stream__done(s, key, id);
                broken = true;
            }
            if (id.len > 0 && id.len < KVM_RECEIPT_BYTES)
                snprintf(from, sizeof from, "(%.*s", KVM_STR_ARG(id));
        }
        if (broken) TRY(kvm_stream__all(s, err));
        if (n < PAGE) return KVM_OK;
    }
    return KVM_OK;
}

/* least_ms: since the latest sign of life of any consumer; INT64_MAX: there is none */
static kvm_status consumers(kvm_redis_queue *s, kvm_str key, bool remove,
                            int64_t *least_ms, kvm_err *err)
{
    const kvm_reply *list;
    ptrdiff_t gone = 0;
    *least_ms = INT64_MAX;
    TRY(kvm_redis_call(
        s->r, KVM_WORDS(KVM_STR("XINFO"), KVM_STR("CONSUMERS"), key, KVM_STREAM_GROUP),
        0, &list, err));
    for (ptrdiff_t i = 0; i < list->count; i++) {
        const kvm_reply *c = kvm_reply_at(list, i);
        const kvm_str name = kvm_reply_text(kvm_reply_of(c, "name"));
        const int64_t idle = kvm_reply_number(kvm_reply_of(c, "idle"));
        if (idle < *least_ms) *least_ms = idle;
        if (!remove || (double)idle < CONSUMER_S * 1e3 || name.len == 0 ||
            kvm_reply_number(kvm_reply_of(c, "pending")) > 0)
            continue;
        kvm_redis_add(s->r, KVM_WORDS(KVM_STR("XGROUP"), KVM_STR("DELCONSUMER"), key,
                                      KVM_STREAM_GROUP, name));
        gone++;
    }
    return gone ? kvm_stream__all(s, err) : KVM_OK;
}

static kvm_status audit(const kvm_queue *q, kvm_str key, double idle_s, kvm_err *err)
{
    kvm_redis_queue *s = q->impl;
    int64_t ignored;
    TRY(take_back(q, key, idle_s, err));
    TRY(trim(s, key, err));
    return consumers(s, key, true, &ignored, err);
}

/* Without a group, or a stream, nothing was taken: there is nothing to take back. */
kvm_status kvm_stream__audit(kvm_queue *q, const kvm_queue_class *class, double idle_s,
                             kvm_queue_there *there, void *ctx, kvm_err *err)
{
    kvm_redis_queue *s = q->impl;
    char key[KVM_STREAM_BYTES];
    kvm_err why = {0};
    TRY(kvm_stream__key(s, class, key, err));
    const kvm_status done = audit(q, kvm_str_of(key), idle_s, &why);
    if (done && done != KVM_NOTFOUND) {
        if (err && !err->code) *err = why;
        return done;
    }
    return tell(s, kvm_str_of(key), there, ctx, err);
}

/* ---- all streams ---- */

/* the keys of ours in the set, copied; others' are left alone */
static kvm_status all_keys(kvm_redis_queue *s, kvm_str **keys, ptrdiff_t *n,
                           kvm_arena *keep, kvm_err *err)
{
    const kvm_reply *list;
    TRY(kvm_redis_call(s->r, KVM_WORDS(KVM_STR("SMEMBERS"), s->streams), 0, &list,
                       err));
    *n = 0;
    *keys = kvm_new(keep, kvm_str, list->count + 1);
    if (!*keys) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i < list->count; i++) {
        const kvm_str key = kvm_reply_text(kvm_reply_at(list, i));
        if (!kvm_str_starts(key, s->prefix) || key.len >= KVM_STREAM_BYTES) continue;
        (*keys)[*n] = kvm_str_copy(keep, key);
        if (!(*keys)[(*n)++].at) return kvm_nomem(err, keep);
    }
    return KVM_OK;
}

static bool lives(const kvm_redis_queue *s, kvm_str key, const kvm_queue_class *live,
                  ptrdiff_t n)
{
    char its[KVM_STREAM_BYTES];
    for (ptrdiff_t i = 0; i < n; i++)
        if (!kvm_stream__key(s, &live[i], its, NULL) &&
            kvm_str_eq(key, kvm_str_of(its)))
            return true;
    return false;
}

kvm_status kvm_stream__forget(kvm_queue *q, const kvm_queue_class *live, ptrdiff_t n,
                              double idle_s, kvm_err *err)
{
    kvm_redis_queue *s = q->impl;
    kvm_arena scratch = *q->keep;
    kvm_str *keys;
    ptrdiff_t count;
    TRY(all_keys(s, &keys, &count, &scratch, err));
    for (ptrdiff_t i = 0; i < count; i++) {
        int64_t idle = INT64_MAX;
        if (lives(s, keys[i], live, n)) continue;
        const kvm_status got = consumers(s, keys[i], false, &idle, NULL);
        if ((got && got != KVM_NOTFOUND) || (double)idle < idle_s * 1e3) continue;
        kvm_redis_add(s->r, KVM_WORDS(KVM_STR("DEL"), keys[i]));
        kvm_redis_add(s->r, KVM_WORDS(KVM_STR("SREM"), s->streams, keys[i]));
        TRY(kvm_stream__all(s, err));
    }
    return KVM_OK;
}

static kvm_status look_at(kvm_redis_queue *s, kvm_queue_stream *out, kvm_err *err)
{
    const kvm_reply *all;
    entry_id first;
    kvm_redis_add(s->r, KVM_WORDS(KVM_STR("XLEN"), out->key));
    kvm_redis_add(s->r, KVM_WORDS(KVM_STR("XINFO"), KVM_STR("GROUPS"), out->key));
    kvm_redis_add(s->r, KVM_WORDS(KVM_STR("XRANGE"), out->key, KVM_STR("-"),
                                  KVM_STR("+"), KVM_STR("COUNT"), KVM_STR("1")));
    kvm_redis_add(s->r, KVM_WORDS(KVM_STR("TIME")));
    TRY(kvm_redis_exchange(s->r, 0, &all, err));
    const kvm_reply *group = kvm_reply_at(kvm_reply_at(all, 1), 0);
    out->length = kvm_reply_number(kvm_reply_at(all, 0));
    out->pending = kvm_reply_number(kvm_reply_of(group, "pending"));
    out->consumers = kvm_reply_number(kvm_reply_of(group, "consumers"));
    const kvm_str id =
        kvm_reply_text(kvm_reply_at(kvm_reply_at(kvm_reply_at(all, 2), 0), 0));
    const int64_t now = kvm_reply_number(kvm_reply_at(kvm_reply_at(all, 3), 0));
    if (read_id(id, &first)) out->oldest_s = (double)now - (double)first.ms / 1e3;
    if (out->oldest_s < 0) out->oldest_s = 0;
    return KVM_OK;
}

static int by_key(const void *a, const void *b)
{
    return kvm_str_cmp(((const kvm_queue_stream *)a)->key,
                       ((const kvm_queue_stream *)b)->key);
}

kvm_status kvm_stream__look(kvm_queue *q, kvm_queue_stream **out, ptrdiff_t *n,
                            kvm_arena *keep, kvm_err *err)
{
    kvm_redis_queue *s = q->impl;
    kvm_str *keys;
    TRY(all_keys(s, &keys, n, keep, err));
    kvm_queue_stream *list = kvm_new(keep, kvm_queue_stream, *n + 1);
    if (!list) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i < *n; i++) {
        list[i].key = keys[i];
        TRY(look_at(s, &list[i], err));
    }
    qsort(list, (size_t)*n, sizeof *list, by_key);
    *out = list;
    return KVM_OK;
}
