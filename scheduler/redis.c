/* redis.c - the connection.
 *
 *   closed ─connect─► set up (AUTH, SELECT, SETNAME) ─► open ─any trouble─► closed
 *
 * Invariants
 *   1. An answer belongs to the oldest command without one. After a failure, silence or
 *      a signal nobody knows which commands were carried out, so the connection is
 *      closed: going on would give the next command the last one's answer.
 *   2. What a session was given (user, database, name) it is given again by every
 *      connect, in the same place, before any command.
 *   3. Nothing waits without a deadline: the socket does not block and is polled, in
 *      slices in which `stop` is asked. An answer that comes at once is heard all the
 *      same: who stops has still to settle what it has done. The kernel's probes end a
 *      connection whose host died; one that takes bytes and answers none ends by the
 *      deadline.
 *   4. Tries to connect have growing distances (BACKOFF_S to BACKOFF_MOST_S, jittered);
 *      until the next one is due, commands fail at once.
 * hiredis is only asked to write and read the protocol: its own connections block
 * without end, lose their settings, and are inherited by what is started. */
#define _DEFAULT_SOURCE /* TCP_KEEPIDLE … */
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "scheduler/redis_internal.h"

static const double BACKOFF_S = 0.1, BACKOFF_MOST_S = 10, SLICE_S = 0.2;
enum { MOST_WORDS = 64 };
static const size_t MEMORY = 64 << 20; /* reserved: the answers of one exchange */

struct kvm_redis {
    kvm_redis_address where;
    kvm_redis_options o;
    char name[128];
    int fd; /* -1: closed */
    redisReader *reader;
    kvm_arena memory;  /* empty between exchanges … */
    kvm_arena answers; /* … a copy of it, which an exchange fills */
    kvm_text out;
    ptrdiff_t added; /* commands in out */
    double next_try, distance;
    bool brief; /* the exchange is for nothing but answers: `stop` does not end it */
    kvm_rng rng;
    kvm_err trouble; /* why the last try to connect failed */
};

static void close_link(kvm_redis *r)
{
    if (r->fd >= 0) close(r->fd);
    if (r->reader) redisReaderFree(r->reader);
    r->fd = -1;
    r->reader = NULL;
}

static void close_late(void *arg)
{
    kvm_redis *r = arg;
    close_link(r);
    kvm_text_free(&r->out);
    kvm_arena_free(&r->memory);
}

const char *kvm_redis_shown(const kvm_redis *r)
{
    return r->where.shown.at;
}

/* The server takes no blanks, no control and no other bytes beyond ASCII. */
static void set_name(kvm_redis *r, kvm_str name)
{
    snprintf(r->name, sizeof r->name, "%.*s", KVM_STR_ARG(name));
    if (!r->name[0]) snprintf(r->name, sizeof r->name, "kvmill");
    for (char *c = r->name; *c; c++)
        if (*c < '!' || *c > '~') *c = '_';
}

kvm_status kvm_redis_open(kvm_redis **out, kvm_arena *keep, kvm_str where,
                          const kvm_redis_options *options, kvm_err *err)
{
    kvm_redis *r = kvm_new(keep, kvm_redis, 1);
    if (!r) return kvm_nomem(err, keep);
    r->fd = -1;
    r->o = options ? *options : (kvm_redis_options){0};
    if (r->o.connect_s <= 0) r->o.connect_s = 5;
    if (r->o.answer_s <= 0) r->o.answer_s = 5;
    set_name(r, r->o.name);
    r->rng = kvm_rng_seed((uint64_t)getpid(), (uint64_t)(kvm_wall() * 1e6));
    TRY(kvm_redis_address_read(&r->where, keep, where, err));
    TRY(kvm_arena_init(&r->memory, MEMORY, err));
    r->answers = r->memory;
    TRY(kvm_arena_defer(keep, close_late, r, err));
    *out = r;
    return KVM_OK;
}

/* ---- bytes ---- */

/* closed, whatever the reason is; what was added is dropped */
static kvm_status lost(kvm_redis *r, kvm_status s, const char *why, kvm_err *err)
{
    close_link(r);
    return kvm_fail(err, s, "queue %s: %s", kvm_redis_shown(r), why);
}

/* Until the socket is ready for `events`. */
static kvm_status wait_for(kvm_redis *r, short events, double until, kvm_err *err)
{
    struct pollfd f = {.fd = r->fd, .events = events};
    for (;;) {
        const double left = until - kvm_now();
        if (!r->brief && r->o.stop && r->o.stop())
            return lost(r, KVM_CANCELLED, "stopped", err);
        if (left <= 0)
            return lost(r, KVM_BUSY,
                        "it has not answered in time; the connection is "
                        "given up",
                        err);
        const double slice = r->o.stop && left > SLICE_S ? SLICE_S : left;
        const int n = poll(&f, 1, (int)(slice * 1e3) + 1);
        if (n > 0) return KVM_OK;
        if (n < 0 && errno != EINTR) return lost(r, KVM_IO, strerror(errno), err);
    }
}

static kvm_status send_all(kvm_redis *r, kvm_str bytes, double until, kvm_err *err)
{
    while (bytes.len > 0) {
        const ssize_t n = send(r->fd, bytes.at, (size_t)bytes.len, MSG_NOSIGNAL);
        if (n >= 0)
            bytes = kvm_str_slice(bytes, n, bytes.len);
        else if (errno == EAGAIN)
            TRY(wait_for(r, POLLOUT, until, err));
        else if (errno != EINTR)
            return lost(r, KVM_BUSY, strerror(errno), err);
    }
    return KVM_OK;
}

/* *bytes: what this exchange has brought so far */
static kvm_status receive(kvm_redis *r, double until, ptrdiff_t *bytes, kvm_err *err)
{
    char part[16 << 10];
    const ssize_t n = recv(r->fd, part, sizeof part, 0);
    if (n == 0) return lost(r, KVM_BUSY, "it has closed the connection", err);
    if (n < 0 && errno == EAGAIN) return wait_for(r, POLLIN, until, err);
    if (n < 0 && errno == EINTR) return KVM_OK;
    if (n < 0) return lost(r, KVM_BUSY, strerror(errno), err);
    *bytes += n;
    if (*bytes > KVM_REDIS_MOST_BYTES)
        return lost(r, KVM_FORMAT, "an answer larger than it may be", err);
    if (redisReaderFeed(r->reader, part, (size_t)n) != REDIS_OK)
        return lost(r, KVM_FORMAT, r->reader->errstr, err);
    return KVM_OK;
}

/* The answers to `count` commands as a list. */
static kvm_status receive_all(kvm_redis *r, ptrdiff_t count, double until,
                              const kvm_reply **replies, kvm_err *err)
{
    ptrdiff_t bytes = 0;
    kvm_reply *list = kvm_new(&r->answers, kvm_reply, 1);
    kvm_reply *items = kvm_new(&r->answers, kvm_reply, count + 1);
    if (!list || !items) return lost(r, KVM_NOMEM, "too many commands at once", err);
    for (ptrdiff_t i = 0; i < count;) {
        kvm_err why = {0};
        const kvm_reply *one;
        if (kvm_redis__next(r->reader, &one, &why))
            return lost(r, why.code, why.msg, err);
        if (one)
            items[i++] = *one;
        else
            TRY(receive(r, until, &bytes, err));
    }
    if (r->reader->len > r->reader->pos)
        return lost(r, KVM_FORMAT, "an answer that nobody asked for", err);
    *list = (kvm_reply){.type = KVM_REPLY_LIST, .items = items, .count = count};
    *replies = list;
    return KVM_OK;
}

/* What comes on an idle connection is its end, or nothing that was asked for. */
static bool gone(const kvm_redis *r)
{
    struct pollfd f = {.fd = r->fd, .events = POLLIN};
    return poll(&f, 1, 0) != 0;
}

/* Of an open connection, also one that is being set up: what was added goes out. */
static kvm_status exchange(kvm_redis *r, kvm_str bytes, ptrdiff_t count, double wait_s,
                           const kvm_reply **replies, kvm_err *err)
{
    const double until = kvm_now() + wait_s + r->o.answer_s;
    r->answers = r->memory;
    r->brief = wait_s <= 0;
    TRY(send_all(r, bytes, until, err));
    return receive_all(r, count, until, replies, err);
}

/* ---- connecting ---- */

static void set_up_tcp(int fd)
{
    static const struct {
        int level, name, value;
    } all[] = {{IPPROTO_TCP, TCP_NODELAY, 1},  {SOL_SOCKET, SO_KEEPALIVE, 1},
               {IPPROTO_TCP, TCP_KEEPIDLE, 5}, {IPPROTO_TCP, TCP_KEEPINTVL, 2},
               {IPPROTO_TCP, TCP_KEEPCNT, 3},  {IPPROTO_TCP, TCP_USER_TIMEOUT, 10000}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        setsockopt(fd, all[i].level, all[i].name, &all[i].value, sizeof all[i].value);
}

/* Nobody is there. */
static bool nobody(kvm_redis *r, const char *why)
{
    close_link(r);
    r->trouble = (kvm_err){0};
    return kvm_fail(&r->trouble, KVM_BUSY, "queue %s: %s; is the server running there?",
                    kvm_redis_shown(r), why) == KVM_OK;
}

/* One address; false, with r->trouble, when nobody takes the call. */
static bool reach(kvm_redis *r, int family, const struct sockaddr *at, socklen_t n,
                  double until)
{
    kvm_err err = {0};
    int code = 0;
    socklen_t size = sizeof code;
    r->fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (r->fd >= 0 && family != AF_UNIX) set_up_tcp(r->fd);
    if (r->fd >= 0 && connect(r->fd, at, n) == 0) return true;
    if (r->fd >= 0 && errno == EINPROGRESS) {
        if (wait_for(r, POLLOUT, until, &err)) code = ETIMEDOUT;
        if (!code) getsockopt(r->fd, SOL_SOCKET, SO_ERROR, &code, &size);
        if (!code) return true;
        errno = code;
    }
    return nobody(r, strerror(errno));
}

static bool reach_path(kvm_redis *r, double until)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if ((size_t)r->where.path.len >= sizeof at.sun_path)
        return nobody(r, "the socket's path is too long");
    memcpy(at.sun_path, r->where.path.at, (size_t)r->where.path.len);
    return reach(r, AF_UNIX, (const struct sockaddr *)&at, sizeof at, until);
}

static bool reach_host(kvm_redis *r, double until)
{
    char port[16];
    struct addrinfo *all = NULL;
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    snprintf(port, sizeof port, "%d", r->where.port);
    const int code = getaddrinfo(r->where.host.at, port, &hints, &all);
    if (code) return nobody(r, gai_strerror(code));
    bool there = false;
    for (const struct addrinfo *a = all; a && !there && kvm_now() < until;
         a = a->ai_next)
        there = reach(r, a->ai_family, a->ai_addr, a->ai_addrlen, until);
    freeaddrinfo(all);
    return there;
}

static void add_to(kvm_text *out, const kvm_str *words, ptrdiff_t n)
{
    const char *at[MOST_WORDS];
    size_t len[MOST_WORDS];
    char *bytes = NULL;
    for (ptrdiff_t i = 0; i < n && n <= MOST_WORDS; i++) {
        at[i] = words[i].at;
        len[i] = (size_t)words[i].len;
    }
    const int size =
        n <= MOST_WORDS ? redisFormatCommandArgv(&bytes, (int)n, at, len) : -1;
    if (size < 0)
        out->failed = true;
    else
        kvm_text_add(out, (kvm_str){bytes, size});
    redisFreeCommand(bytes);
}

static kvm_status introduce(kvm_redis *r, kvm_err *err)
{
    char db[16];
    kvm_text t = {0};
    ptrdiff_t n = 1;
    const kvm_redis_address *w = &r->where;
    const kvm_reply *replies;
    snprintf(db, sizeof db, "%d", w->db);
    n += w->password.len > 0;
    n += w->db > 0;
    if (w->password.len && w->user.len)
        add_to(&t, KVM_WORDS(KVM_STR("AUTH"), w->user, w->password));
    else if (w->password.len)
        add_to(&t, KVM_WORDS(KVM_STR("AUTH"), w->password));
    if (w->db) add_to(&t, KVM_WORDS(KVM_STR("SELECT"), kvm_str_of(db)));
    add_to(&t, KVM_WORDS(KVM_STR("CLIENT"), KVM_STR("SETNAME"), kvm_str_of(r->name)));
    kvm_status s = t.failed ? kvm_fail(err, KVM_NOMEM, "out of memory")
                            : exchange(r, kvm_text_str(&t), n, 0, &replies, err);
    for (ptrdiff_t i = 0; i < n && !s; i++)
        s = kvm_redis_refused(r, kvm_reply_at(replies, i), err);
    kvm_text_free(&t);
    return s;
}

/* A try that took long (nobody answered) is not soon followed by another: who calls has
 * better things to do than to wait. */
static void be_patient(kvm_redis *r, double began)
{
    const double took = kvm_now() - began;
    r->distance = r->distance > 0 ? 2 * r->distance : BACKOFF_S;
    if (r->distance < 2 * took) r->distance = 2 * took;
    if (r->distance > BACKOFF_MOST_S) r->distance = BACKOFF_MOST_S;
    r->next_try = kvm_now() + r->distance * (0.5 + 0.5 * kvm_rng_unit(&r->rng));
}

static kvm_status set_up(kvm_redis *r)
{
    r->trouble = (kvm_err){0};
    r->reader = kvm_redis__reader(&r->answers);
    const kvm_status s = r->reader ? introduce(r, &r->trouble)
                                   : kvm_fail(&r->trouble, KVM_NOMEM, "out of memory");
    if (s) close_link(r);
    return s;
}

/* Until the next try is due, the last one's failure stands. */
static kvm_status connect_link(kvm_redis *r, kvm_err *err)
{
    const double began = kvm_now(), until = began + r->o.connect_s;
    r->brief = false;
    if (began >= r->next_try) {
        const bool there =
            r->where.path.len ? reach_path(r, until) : reach_host(r, until);
        if (there && !set_up(r)) {
            r->distance = 0;
            return KVM_OK;
        }
        be_patient(r, began);
    }
    if (err && !err->code) *err = r->trouble;
    return r->trouble.code;
}

/* ---- commands ---- */

void kvm_redis_add(kvm_redis *r, const kvm_str *words, ptrdiff_t n)
{
    add_to(&r->out, words, n);
    r->added++;
}

kvm_status kvm_redis_exchange(kvm_redis *r, double wait_s, const kvm_reply **replies,
                              kvm_err *err)
{
    const ptrdiff_t count = r->added;
    kvm_status s = KVM_OK;
    if (r->out.failed) s = kvm_fail(err, KVM_NOMEM, "out of memory");
    if (!s && r->fd >= 0 && gone(r)) close_link(r);
    if (!s && r->fd < 0) s = connect_link(r, err);
    if (!s) s = exchange(r, kvm_text_str(&r->out), count, wait_s, replies, err);
    r->out.len = 0;
    r->out.failed = false;
    r->added = 0;
    return s;
}

kvm_status kvm_redis_call(kvm_redis *r, const kvm_str *words, ptrdiff_t n,
                          double wait_s, const kvm_reply **reply, kvm_err *err)
{
    const kvm_reply *all = NULL;
    kvm_redis_add(r, words, n);
    TRY(kvm_redis_exchange(r, wait_s, &all, err));
    *reply = kvm_reply_at(all, 0);
    return kvm_redis_refused(r, *reply, err);
}
