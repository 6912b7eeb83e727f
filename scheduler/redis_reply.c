/* redis_reply.c - answers: parsed into an arena with limits, read without surprises,
 * refusals turned into statuses.
 *
 * hiredis parses; what it builds is ours (its own replies cost an allocation each, and
 * a list that is announced as 2^31 items long is allocated before any of them is
 * there). An answer nested deeper than 7 lists, or in the newer protocol, it refuses
 * itself. */
#include <string.h>

#include "scheduler/redis_internal.h"

/* ---- parsing ---- */

/* A list's items lie in a row, so the place of an item is its parent's. */
static kvm_reply *place(const redisReadTask *t, kvm_reply_type type)
{
    kvm_arena *keep = t->privdata;
    kvm_reply *r =
        t->parent
            ? (kvm_reply *)(uintptr_t)((kvm_reply *)t->parent->obj)->items + t->idx
            : kvm_new(keep, kvm_reply, 1);
    if (r) r->type = type;
    return r;
}

static void *make_text(const redisReadTask *t, char *at, size_t n)
{
    kvm_arena *keep = t->privdata;
    kvm_reply *r =
        place(t, t->type == REDIS_REPLY_ERROR ? KVM_REPLY_ERROR : KVM_REPLY_TEXT);
    if (r) r->text = kvm_str_copy(keep, (kvm_str){at, (ptrdiff_t)n});
    return r && r->text.at ? r : NULL;
}

static void *make_list(const redisReadTask *t, int n)
{
    kvm_arena *keep = t->privdata;
    kvm_reply *r = place(t, KVM_REPLY_LIST);
    if (!r || n < 0 || n > KVM_REDIS_MOST_ITEMS) return NULL;
    r->items = kvm_new(keep, kvm_reply, n + 1);
    r->count = n;
    return r->items ? r : NULL;
}

static void *make_int(const redisReadTask *t, long long n)
{
    kvm_reply *r = place(t, KVM_REPLY_INT);
    if (r) r->number = n;
    return r;
}

static void *make_nil(const redisReadTask *t)
{
    return place(t, KVM_REPLY_NIL);
}

static redisReplyObjectFunctions makers = {make_text, make_list, make_int, make_nil,
                                           NULL};

redisReader *kvm_redis__reader(kvm_arena *keep)
{
    redisReader *r = redisReaderCreateWithFunctions(&makers);
    if (r) r->privdata = keep;
    return r;
}

kvm_status kvm_redis__next(redisReader *reader, const kvm_reply **reply, kvm_err *err)
{
    void *out = NULL;
    *reply = NULL;
    if (redisReaderGetReply(reader, &out) == REDIS_OK) {
        *reply = out;
        return KVM_OK;
    }
    if (reader->err == REDIS_ERR_OOM)
        return kvm_fail(err, KVM_FORMAT, "an answer larger than it may be");
    return kvm_fail(err, KVM_FORMAT, "not the protocol of Redis: %.100s",
                    reader->errstr);
}

/* ---- reading ---- */

const kvm_reply *kvm_reply_at(const kvm_reply *list, ptrdiff_t i)
{
    static const kvm_reply nil;
    if (!list || list->type != KVM_REPLY_LIST || i < 0 || i >= list->count) return &nil;
    return &list->items[i];
}

kvm_str kvm_reply_text(const kvm_reply *r)
{
    return r->type == KVM_REPLY_TEXT ? r->text : KVM_STR("");
}

int64_t kvm_reply_number(const kvm_reply *r)
{
    int64_t n = 0;
    if (r->type == KVM_REPLY_INT) return r->number;
    return kvm_str_to_i64(kvm_reply_text(r), &n) ? n : 0;
}

const kvm_reply *kvm_reply_of(const kvm_reply *list, const char *name)
{
    ptrdiff_t i = 0;
    while (list->type == KVM_REPLY_LIST && i + 1 < list->count &&
           !kvm_str_eq(kvm_reply_text(kvm_reply_at(list, i)), kvm_str_of(name)))
        i += 2;
    return kvm_reply_at(list, i + 1);
}

/* ---- refusals ---- */

/* By their first words; the first row that fits counts. */
static const struct {
    const char *begins;
    kvm_status status;
    const char *remedy; /* NULL: the message says it all */
} refusals[] = {
    {"NOGROUP", KVM_NOTFOUND, NULL},
    {"UNBLOCKED", KVM_NOTFOUND, NULL}, /* its stream was deleted meanwhile */
    {"ERR The XGROUP subcommand requires the key", KVM_NOTFOUND, NULL},
    {"ERR no such key", KVM_NOTFOUND, NULL},
    {"BUSYGROUP", KVM_EXISTS, NULL},
    {"LOADING", KVM_BUSY, "it is reading its data"},
    {"MASTERDOWN", KVM_BUSY, "it has lost the server that it copies"},
    {"BUSY", KVM_BUSY, "a script keeps it busy"},
    {"TRYAGAIN", KVM_BUSY, NULL},
    {"READONLY", KVM_ENVIRONMENT, "this server is a replica: name the one that writes"},
    {"OOM", KVM_NOMEM, "its memory is full: raise maxmemory (with noeviction)"},
    {"MISCONF", KVM_ENVIRONMENT, "it cannot save to its disk: free space there"},
    {"NOREPLICAS", KVM_BUSY, "too few replicas are there"},
    {"NOAUTH", KVM_ENVIRONMENT,
     "it asks for a password: KVMILL_REDIS_PASSWORD may hold it"},
    {"WRONGPASS", KVM_ENVIRONMENT, "user or password are not right"},
    {"ERR invalid password", KVM_ENVIRONMENT, "the password is not right"},
    {"ERR AUTH", KVM_ENVIRONMENT, "it knows no password: give none"},
    {"ERR Client sent AUTH", KVM_ENVIRONMENT, "it knows no password: give none"},
    {"NOPERM", KVM_ENVIRONMENT,
     "give this user the right (docs: ACL of kvmill's user)"},
    {"DENIED", KVM_ENVIRONMENT, "it is in protected mode: give it a password"},
    {"ERR DB index", KVM_ENVIRONMENT, "it has fewer databases: raise `databases`"},
    {"ERR max number of clients", KVM_BUSY, "raise maxclients"},
    {"WRONGTYPE", KVM_MISMATCH,
     "another program uses this name: take another database"},
    {"ERR unknown command", KVM_UNSUPPORTED, "Redis 6.2 or later is needed"},
    {"MOVED", KVM_UNSUPPORTED, "a cluster cannot be the queue: name a single server"},
    {"ASK", KVM_UNSUPPORTED, "a cluster cannot be the queue: name a single server"},
    {"CROSSSLOT", KVM_UNSUPPORTED,
     "a cluster cannot be the queue: name a single server"},
};

kvm_status kvm_redis_refused(const kvm_redis *r, const kvm_reply *reply, kvm_err *err)
{
    if (reply->type != KVM_REPLY_ERROR) return KVM_OK;
    const kvm_str text = kvm_str_slice(reply->text, 0, 200);
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
        if (kvm_str_starts(text, kvm_str_of(refusals[i].begins)))
            return kvm_fail(err, refusals[i].status, "queue %s: %.*s%s%s",
                            kvm_redis_shown(r), KVM_STR_ARG(text),
                            refusals[i].remedy ? "; " : "",
                            refusals[i].remedy ? refusals[i].remedy : "");
    return kvm_fail(err, KVM_IO, "queue %s: %.*s", kvm_redis_shown(r),
                    KVM_STR_ARG(text));
}
