/* redis_address.c - where the server is and who we are there, out of one text. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "scheduler/redis.h"

static const char form[] = "redis://[USER[:PASSWORD]@]HOST[:PORT][/DB] or "
                           "redis+unix:///PATH[?db=N]";

/* The address itself is not shown: it may hold a password. */
static kvm_status bad(const char *what, kvm_err *err)
{
    return kvm_fail(err, KVM_USAGE, "the queue's address: %s; it is %s", what, form);
}

static int hex(char c)
{
    const char *const digits = "0123456789abcdef";
    const char *at = c ? strchr(digits, c >= 'A' && c <= 'F' ? c + 32 : c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* %41 is A; false for a '%' without two digits, or %00 */
static bool decode(kvm_str *s, kvm_arena *keep)
{
    char *out = kvm_new(keep, char, s->len + 1);
    ptrdiff_t n = 0;
    for (ptrdiff_t i = 0; out && i < s->len; i++) {
        out[n] = s->at[i];
        if (s->at[i] == '%') {
            const int high = i + 2 < s->len ? hex(s->at[i + 1]) : -1;
            const int low = i + 2 < s->len ? hex(s->at[i + 2]) : -1;
            if (high < 0 || low < 0 || high + low == 0) return false;
            out[n] = (char)(16 * high + low);
            i += 2;
        }
        n++;
    }
    *s = (kvm_str){out, n};
    return out;
}

static bool number_within(kvm_str s, int least, int most, int *out)
{
    int64_t n;
    if (!kvm_str_to_i64(s, &n) || n < least || n > most) return false;
    *out = (int)n;
    return true;
}

static kvm_status read_user(kvm_redis_address *a, kvm_arena *keep, kvm_str who,
                            kvm_err *err)
{
    kvm_str_cut(who, ':', &a->user, &a->password);
    if (!decode(&a->user, keep) || !decode(&a->password, keep))
        return bad("a % in user or password begins no %41", err);
    return KVM_OK;
}

/* HOST, HOST:PORT, [::1]:PORT */
static kvm_status read_host(kvm_redis_address *a, kvm_arena *keep, kvm_str at,
                            kvm_err *err)
{
    kvm_str port = {0};
    bool given;
    a->port = 6379;
    if (kvm_str_starts(at, KVM_STR("["))) {
        kvm_str rest;
        if (!kvm_str_cut(kvm_str_slice(at, 1, at.len), ']', &a->host, &rest))
            return bad("a [ without its ]", err);
        given = kvm_str_starts(rest, KVM_STR(":"));
        if (rest.len && !given) return bad("something behind the ]", err);
        port = kvm_str_slice(rest, 1, rest.len);
    } else {
        given = kvm_str_cut(at, ':', &a->host, &port);
    }
    if (given && !number_within(port, 1, 65535, &a->port))
        return bad("the port is no number of 1 to 65535", err);
    if (a->host.len == 0) return bad("the host is missing", err);
    a->host = kvm_str_copy(keep, a->host);
    return a->host.at ? KVM_OK : kvm_nomem(err, keep);
}

static kvm_status read_tcp(kvm_redis_address *a, kvm_arena *keep, kvm_str rest,
                           kvm_err *err)
{
    kvm_str at, db;
    if (kvm_str_cut(rest, '/', &at, &db) && db.len &&
        !number_within(db, 0, 1 << 20, &a->db))
        return bad("the database is no number", err);
    TRY(read_host(a, keep, at, err));
    a->shown =
        kvm_str_fmt(keep, "redis://%.*s%s%.*s:%d/%d", KVM_STR_ARG(a->user),
                    a->user.len ? "@" : "", KVM_STR_ARG(a->host), a->port, a->db);
    return a->shown.at ? KVM_OK : kvm_nomem(err, keep);
}

static kvm_status read_unix(kvm_redis_address *a, kvm_arena *keep, kvm_str rest,
                            kvm_err *err)
{
    kvm_str path, query, name, value;
    if (kvm_str_cut(rest, '?', &path, &query) &&
        (!kvm_str_cut(query, '=', &name, &value) || !kvm_str_eq(name, KVM_STR("db")) ||
         !number_within(value, 0, 1 << 20, &a->db)))
        return bad("what follows the ? is not db=N", err);
    if (!kvm_str_starts(path, KVM_STR("/")) || path.len < 2)
        return bad("the socket's path is missing", err);
    a->path = kvm_str_copy(keep, path);
    a->shown = kvm_str_fmt(keep, "redis+unix://%.*s%s%.*s?db=%d", KVM_STR_ARG(a->user),
                           a->user.len ? "@" : "", KVM_STR_ARG(path), a->db);
    return a->path.at && a->shown.at ? KVM_OK : kvm_nomem(err, keep);
}

/* The address's own password goes first, as everywhere. */
static kvm_status find_password(kvm_redis_address *a, kvm_arena *keep, kvm_err *err)
{
    kvm_str text, line, rest;
    const char *given = getenv("KVMILL_REDIS_PASSWORD");
    const char *file = getenv("KVMILL_REDIS_PASSWORD_FILE");
    if (a->password.len) return KVM_OK;
    if (given && *given) {
        a->password = kvm_str_copy(keep, kvm_str_of(given));
        return a->password.at ? KVM_OK : kvm_nomem(err, keep);
    }
    if (!file || !*file) return KVM_OK;
    const kvm_status s = kvm_file_read(&text, keep, kvm_str_of(file), 64 << 10, err);
    if (s) return kvm_err_prefix(err, s, "KVMILL_REDIS_PASSWORD_FILE");
    kvm_str_cut(text, '\n', &line, &rest);
    a->password = kvm_str_trim(line);
    return KVM_OK;
}

kvm_status kvm_redis_address_read(kvm_redis_address *out, kvm_arena *keep,
                                  kvm_str where, kvm_err *err)
{
    kvm_redis_address a = {0};
    const kvm_str tcp = KVM_STR("redis://"), local = KVM_STR("redis+unix://");
    if (kvm_str_starts(where, KVM_STR("rediss://")))
        return kvm_fail(err, KVM_UNSUPPORTED,
                        "the queue's address: no TLS here; go through a unix socket or "
                        "a tunnel (stunnel)");
    const bool is_local = kvm_str_starts(where, local);
    if (!is_local && !kvm_str_starts(where, tcp)) return bad("unknown scheme", err);
    kvm_str rest = kvm_str_slice(where, is_local ? local.len : tcp.len, where.len);
    const ptrdiff_t slash = kvm_str_find(rest, KVM_STR("/"));
    ptrdiff_t at = slash < 0 ? rest.len : slash;
    while (at > 0 && rest.at[at - 1] != '@')
        at--; /* the last: a password may hold one */
    if (at > 0) TRY(read_user(&a, keep, kvm_str_slice(rest, 0, at - 1), err));
    rest = kvm_str_slice(rest, at, rest.len);
    TRY(is_local ? read_unix(&a, keep, rest, err) : read_tcp(&a, keep, rest, err));
    TRY(find_password(&a, keep, err));
    *out = a;
    return KVM_OK;
}
