/* redis.h - one connection to a Redis server that may be gone, slow, full or hostile.
 *
 * Commands are lists of byte strings, answers are trees in an arena that the next
 * command empties. A connection that failed, fell silent or made no sense is closed,
 * and made anew by the next command, with user, database and name; tries that fail come
 * in growing distances, and calls in between fail at once. What the server refuses
 * becomes a status, once (redis_reply.c). Belongs to one thread; SIGPIPE is never
 * raised; a program that is started does not inherit it, and a forked child must not
 * use it. */
#ifndef KVM_SCHEDULER_REDIS_H
#define KVM_SCHEDULER_REDIS_H

#include "base/str.h"

/* ---- where it is ---- */

typedef struct kvm_redis_address {
    kvm_str user, password; /* empty: none */
    kvm_str host;           /* empty: the unix socket at path */
    kvm_str path;
    int port, db;
    kvm_str shown; /* for messages: without the password */
} kvm_redis_address;

/* kvm_redis_address_read - redis://[USER[:PASSWORD]@]HOST[:PORT][/DB] or
 * redis+unix://[USER[:PASSWORD]@]/PATH[?db=N]; user and password percent-encoded where
 * they must be. One without a password takes it from KVMILL_REDIS_PASSWORD, or from the
 * file that KVMILL_REDIS_PASSWORD_FILE names (its first line). KVM_USAGE says what is
 * wrong, without showing a password; KVM_UNSUPPORTED for rediss://. Texts in keep. */
KVM_MUST kvm_status kvm_redis_address_read(kvm_redis_address *a, kvm_arena *keep,
                                           kvm_str where, kvm_err *err);

/* ---- answers ---- */

typedef enum kvm_reply_type {
    KVM_REPLY_NIL,
    KVM_REPLY_INT,
    KVM_REPLY_TEXT,
    KVM_REPLY_ERROR,
    KVM_REPLY_LIST
} kvm_reply_type;
typedef struct kvm_reply {
    kvm_reply_type type;
    int64_t number;
    kvm_str text; /* of a text or an error */
    const struct kvm_reply *items;
    ptrdiff_t count; /* of a list's items */
} kvm_reply;

/* Reading whatever came: what is of another type, or not there, reads as nil, "" or 0.
 * Nothing that a server sends can lead these astray. */
const kvm_reply *kvm_reply_at(const kvm_reply *list, ptrdiff_t i);
kvm_str kvm_reply_text(const kvm_reply *r);
int64_t kvm_reply_number(const kvm_reply *r); /* also of a text of digits */
/* kvm_reply_of - the value behind a name in a list of names and values */
const kvm_reply *kvm_reply_of(const kvm_reply *list, const char *name);

/* ---- the connection ---- */

typedef struct kvm_redis kvm_redis;
typedef struct kvm_redis_options {
    kvm_str name;       /* as the server lists it (CLIENT LIST) */
    double connect_s;   /* 0: 5 */
    double answer_s;    /* silent for so long beyond what was asked for: gone; 0: 5 */
    bool (*stop)(void); /* looked at while waiting; NULL: never */
} kvm_redis_options;

/* kvm_redis_open - reads the address; the first command connects. Closed by keep.
 * options NULL: defaults. */
KVM_MUST kvm_status kvm_redis_open(kvm_redis **r, kvm_arena *keep, kvm_str where,
                                   const kvm_redis_options *options, kvm_err *err);
const char *kvm_redis_shown(const kvm_redis *r); /* the address, without password */

/* the words of a command: KVM_WORDS(KVM_STR("XLEN"), key) */
#define KVM_WORDS(...)                                                                 \
    (const kvm_str[]){__VA_ARGS__},                                                    \
        (ptrdiff_t)(sizeof((const kvm_str[]){__VA_ARGS__}) / sizeof(kvm_str))

/* kvm_redis_add - a command for the next exchange; borrows nothing */
void kvm_redis_add(kvm_redis *r, const kvm_str *words, ptrdiff_t n);
/* kvm_redis_exchange - sends what was added and reads as many answers.
 *   wait_s   the server may take so long by itself (BLOCK)
 *   replies  out: a list with one item for each command, good until the next exchange;
 *            an item may be an error: kvm_redis_refused
 * KVM_BUSY: not connected, silent, or it closed; KVM_ENVIRONMENT: it lets nobody in;
 * KVM_FORMAT: it does not speak the protocol, or sends more than it may; KVM_CANCELLED:
 * `stop` said so. After each of these the connection is closed, and nothing is known of
 * what the server did. */
KVM_MUST kvm_status kvm_redis_exchange(kvm_redis *r, double wait_s,
                                       const kvm_reply **replies, kvm_err *err);
/* kvm_redis_call - one command; a refusal is its status */
KVM_MUST kvm_status kvm_redis_call(kvm_redis *r, const kvm_str *words, ptrdiff_t n,
                                   double wait_s, const kvm_reply **reply,
                                   kvm_err *err);
/* kvm_redis_refused - KVM_OK when the reply is no error. KVM_NOTFOUND: the stream or
 * its group is gone; KVM_EXISTS: the group is there; KVM_BUSY: loading, or about to be
 * another's replica; KVM_NOMEM: its memory is full; KVM_ENVIRONMENT: not allowed, or it
 * only reads; KVM_MISMATCH: the key is of another type; KVM_UNSUPPORTED: too old, or a
 * cluster; else KVM_IO. */
KVM_MUST kvm_status kvm_redis_refused(const kvm_redis *r, const kvm_reply *reply,
                                      kvm_err *err);

#endif
