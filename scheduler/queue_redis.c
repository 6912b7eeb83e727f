/* queue_redis.c - batches through the streams of a Redis server: a worker's half.
 *
 *   XADD ─► in the stream ─XREADGROUP─► pending with one worker ─XACK, XDEL─► gone
 *                  ▲                            │ idle too long (queue_audit.c)
 *                  └──── sent again, if need be ◄┘
 *
 * An entry is settled after the commit of what became of its jobs. That an XACK
 * succeeds says nothing (it does for who lost the entry, too): the fence is the token.
 * A stream without its group, or that is gone altogether (FLUSHALL, DEL, XGROUP
 * DESTROY, a restart without data), is made again by who misses it. */
#include "scheduler/queue_redis.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"

/* ---- keys and entries ---- */

kvm_status kvm_stream__key(const kvm_redis_queue *s, const kvm_queue_class *class,
                           char key[KVM_STREAM_BYTES], kvm_err *err)
{
    char ranks[16] = "", memory[32] = "";
    if (class->ranks > 1) snprintf(ranks, sizeof ranks, ":%d", class->ranks);
    if (class->memory_mib > 0)
        snprintf(memory, sizeof memory, ":%lldm", (long long)class->memory_mib);
    if (snprintf(key, KVM_STREAM_BYTES, "%.*s%.*s%s%s", KVM_STR_ARG(s->prefix),
                 KVM_STR_ARG(class->name), ranks, memory) >= KVM_STREAM_BYTES)
        return kvm_fail(err, KVM_USAGE, "the name of class %.40s… is too long",
                        class->name.at);
    return KVM_OK;
}

bool kvm_stream__entry(const kvm_reply *entry, kvm_str *id, kvm_job_batch *b)
{
    *id = kvm_reply_text(kvm_reply_at(entry, 0));
    return id->len > 0 && id->len < KVM_RECEIPT_BYTES &&
           kvm_batch_read(b, kvm_reply_text(kvm_reply_of(kvm_reply_at(entry, 1), "b")));
}

void kvm_stream__done(const kvm_redis_queue *s, kvm_str key, kvm_str id)
{
    kvm_redis_add(s->r, KVM_WORDS(KVM_STR("XACK"), key, KVM_STREAM_GROUP, id));
    kvm_redis_add(s->r, KVM_WORDS(KVM_STR("XDEL"), key, id));
}

kvm_status kvm_stream__all(const kvm_redis_queue *s, kvm_err *err)
{
    const kvm_reply *all;
    TRY(kvm_redis_exchange(s->r, 0, &all, err));
    for (ptrdiff_t i = 0; i < all->count; i++)
        TRY(kvm_redis_refused(s->r, kvm_reply_at(all, i), err));
    return KVM_OK;
}

static void add_batch(const kvm_redis_queue *s, kvm_str key, kvm_str text)
{
    kvm_redis_add(s->r,
                  KVM_WORDS(KVM_STR("XADD"), key, KVM_STR("*"), KVM_STR("b"), text));
}

static void add_wake(const kvm_redis_queue *s)
{
    kvm_redis_add(s->r,
                  KVM_WORDS(KVM_STR("XADD"), s->wake, KVM_STR("MAXLEN"), KVM_STR("1"),
                            KVM_STR("*"), KVM_STR("w"), KVM_STR("1")));
}

/* ---- opening ---- */

/* Who does not say what he takes gets what kvm_want says. */
static kvm_status name_streams(kvm_redis_queue *s, const kvm_want *w, kvm_err *err)
{
    static const kvm_str usual[] = {{"cpu", 3}, {"small", 5}};
    const kvm_str *classes = w->class_count ? w->classes : usual;
    const ptrdiff_t count = w->class_count ? w->class_count : 2;
    for (; s->count < count && s->count < KVM_STREAMS_MOST; s->count++)
        TRY(kvm_stream__key(
            s, &(kvm_queue_class){classes[s->count], w->ranks, w->memory_mib},
            s->key[s->count], err));
    return KVM_OK;
}

static kvm_status open_redis(kvm_queue *q, kvm_err *err)
{
    kvm_redis_queue *s = kvm_new(q->keep, kvm_redis_queue, 1);
    if (!s) return kvm_nomem(err, q->keep);
    s->prefix = kvm_str_fmt(q->keep, "kvmill:%.*s:", KVM_STR_ARG(q->o.catalogue));
    s->wake = kvm_str_fmt(q->keep, "%.*swake", KVM_STR_ARG(s->prefix));
    s->streams = kvm_str_fmt(q->keep, "%.*sstreams", KVM_STR_ARG(s->prefix));
    if (!s->prefix.at || !s->wake.at || !s->streams.at) return kvm_nomem(err, q->keep);
    snprintf(s->heard, sizeof s->heard, "0");
    TRY(name_streams(s, &q->o.want, err));
    TRY(kvm_redis_open(&s->r, q->keep, q->o.where,
                       &(kvm_redis_options){.name = q->o.name, .stop = q->o.stop},
                       err));
    q->impl = s;
    kvm_err why = {0};
    const kvm_reply *pong;
    const kvm_status here =
        kvm_redis_call(s->r, KVM_WORDS(KVM_STR("PING")), 0, &pong, &why);
    if (!here || kvm_status_action(here) == KVM_STOP || here == KVM_BUSY) return KVM_OK;
    if (err && !err->code) *err = why;
    return here;
}

/* ---- sending ---- */

enum { SENT_AT_ONCE = 128 };

static kvm_status send_redis(kvm_queue *q, const kvm_queue_class *class,
                             const kvm_job_batch *batches, ptrdiff_t n, kvm_err *err)
{
    kvm_redis_queue *s = q->impl;
    char key[KVM_STREAM_BYTES], text[KVM_BATCH_TEXT];
    TRY(kvm_stream__key(s, class, key, err));
    for (ptrdiff_t i = 0; i < n;) {
        kvm_redis_add(s->r, KVM_WORDS(KVM_STR("SADD"), s->streams, kvm_str_of(key)));
        for (ptrdiff_t k = 0; k < SENT_AT_ONCE && i < n; k++)
            add_batch(s, kvm_str_of(key), kvm_batch_write(&batches[i++], text));
        TRY(kvm_stream__all(s, err));
    }
    return KVM_OK;
}

static kvm_status wake(kvm_queue *q, kvm_err *err)
{
    kvm_redis_queue *s = q->impl;
    add_wake(s);
    return kvm_stream__all(s, err);
}

static kvm_status settle(kvm_queue *q, const kvm_hint *hint, kvm_err *err)
{
    kvm_redis_queue *s = q->impl;
    if (hint && hint->receipt[0] && hint->stream >= 0 && hint->stream < s->count)
        kvm_stream__done(s, kvm_str_of(s->key[hint->stream]),
                         kvm_str_of(hint->receipt));
    add_wake(s);
    return kvm_stream__all(s, err);
}

/* ---- taking ---- */

static kvm_status make_groups(kvm_redis_queue *s, kvm_err *err)
{
    for (ptrdiff_t i = 0; i < s->count; i++) {
        kvm_err why = {0};
        const kvm_reply *reply;
        const kvm_str key = kvm_str_of(s->key[i]);
        TRY(kvm_redis_call(s->r, KVM_WORDS(KVM_STR("SADD"), s->streams, key), 0, &reply,
                           err));
        const kvm_status made = kvm_redis_call(
            s->r,
            KVM_WORDS(KVM_STR("XGROUP"), KVM_STR("CREATE"), key, KVM_STREAM_GROUP,
                      KVM_STR("0"), KVM_STR("MKSTREAM")),
            0, &reply, &why);
        if (made && made != KVM_EXISTS) {
            if (err && !err->code) *err = why;
            return made;
        }
    }
    return KVM_OK;
}

/* Streams `first` to `end`; seconds 0: only what is there. COUNT is per stream. */
static kvm_status read_streams(const kvm_queue *q, ptrdiff_t first, ptrdiff_t end,
                               double seconds, const kvm_reply **reply, kvm_err *err)
{
    kvm_redis_queue *s = q->impl;
    char ms[24];
    kvm_str words[9 + 2 * KVM_STREAMS_MOST];
    ptrdiff_t n = 0;
    words[n++] = KVM_STR("XREADGROUP");
    words[n++] = KVM_STR("GROUP");
    words[n++] = KVM_STREAM_GROUP;
    words[n++] = q->o.name;
    words[n++] = KVM_STR("COUNT");
    words[n++] = KVM_STR("1");
    if (seconds > 0) {
        snprintf(ms, sizeof ms, "%lld", (long long)(seconds * 1e3) + 1);
        words[n++] = KVM_STR("BLOCK");
        words[n++] = kvm_str_of(ms);
    }
    words[n++] = KVM_STR("STREAMS");
    for (ptrdiff_t i = first; i < end; i++) words[n++] = kvm_str_of(s->key[i]);
    for (ptrdiff_t i = first; i < end; i++) words[n++] = KVM_STR(">");
    return kvm_redis_call(s->r, words, n, seconds, reply, err);
}

static ptrdiff_t stream_of(const kvm_redis_queue *s, kvm_str key)
{
    for (ptrdiff_t i = 0; i < s->count; i++)
        if (kvm_str_eq(key, kvm_str_of(s->key[i]))) return i;
    return -1;
}

/* The first good entry is ours. Others, that have come with it when several streams
 * were waited for, go back to who is free; what is broken goes. */
static void pick(kvm_redis_queue *s, const kvm_reply *reply, kvm_hint *hint,
                 bool *found)
{
    kvm_err ignored = {0};
    bool more = false;
    for (ptrdiff_t i = 0; i < reply->count; i++) {
        const kvm_reply *stream = kvm_reply_at(reply, i),
                        *list = kvm_reply_at(stream, 1);
        const ptrdiff_t at = stream_of(s, kvm_reply_text(kvm_reply_at(stream, 0)));
        for (ptrdiff_t k = 0; k < list->count && at >= 0; k++) {
            kvm_str id;
            kvm_job_batch b;
            char text[KVM_BATCH_TEXT];
            const kvm_str key = kvm_str_of(s->key[at]);
            const bool good = kvm_stream__entry(kvm_reply_at(list, k), &id, &b);
            if (good && !*found) {
                *found = true;
                *hint = (kvm_hint){.batch = b, .stream = (int)at};
                memcpy(hint->receipt, id.at, (size_t)id.len);
                continue;
            }
            if (good) add_batch(s, key, kvm_batch_write(&b, text));
            if (!good)
                kvm_log(KVM_LOG_WARN, "queue.broken", "stream=%s entry=%.40s", key.at,
                        id.at);
            if (id.len > 0) kvm_stream__done(s, key, id);
            more = more || id.len > 0;
        }
    }
    /* in trouble they stay pending with us, and the audit drops them */
    if (more && kvm_stream__all(s, &ignored))
        kvm_log(KVM_LOG_WARN, "queue.hand_on", "%s", ignored.msg);
}

static kvm_status take_once(kvm_queue *q, kvm_hint *hint, bool *found, double seconds,
                            kvm_err *err)
{
    kvm_redis_queue *s = q->impl;
    const kvm_reply *reply;
    for (ptrdiff_t i = 0; i < s->count && !*found; i++) {
        const ptrdiff_t at = (s->turn + i) % s->count;
        TRY(read_streams(q, at, at + 1, 0, &reply, err));
        pick(s, reply, hint, found);
        if (*found) s->turn = (at + 1) % s->count;
    }
    if (*found || seconds <= 0 || s->count == 0) return KVM_OK;
    TRY(read_streams(q, 0, s->count, seconds, &reply, err));
    pick(s, reply, hint, found);
    return KVM_OK;
}

/* A group that is missing is made, and the look repeated. */
static kvm_status take(kvm_queue *q, kvm_hint *hint, bool *found, double seconds,
                       kvm_err *err)
{
    kvm_redis_queue *s = q->impl;
    kvm_err why = {0};
    kvm_status got = take_once(q, hint, found, seconds, &why);
    if (got == KVM_NOTFOUND) {
        TRY(make_groups(s, err));
        why = (kvm_err){0};
        got = take_once(q, hint, found, seconds, &why);
    }
    if (got && err && !err->code) *err = why;
    return got;
}

const kvm_queue_driver kvm_queue_redis = {.name = "redis",
                                          .open = open_redis,
                                          .send = send_redis,
                                          .take = take,
                                          .settle = settle,
                                          .wake = wake,
                                          .listen = kvm_stream__listen,
                                          .waiting = kvm_stream__waiting,
                                          .audit = kvm_stream__audit,
                                          .forget = kvm_stream__forget,
                                          .look = kvm_stream__look};
